//! What the certificate store is to TLS: the webhook's server, the server for other replicas, the client of those.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedProtocolVersion};

use crate::certificates::Store;
use crate::error::{Error, Kind, Result};

/// TLS configurations of one state of the store.
#[derive(Clone, Debug)]
pub(crate) struct Material {
    /// For the API server, which shows no certificate that we could know.
    pub(crate) webhook: Arc<ServerConfig>,
    /// For other replicas, which show ours.
    pub(crate) peers: Arc<ServerConfig>,
    /// To call other replicas.
    pub(crate) client: Arc<ClientConfig>,
}

/// The certificates in use, when there are some.
#[derive(Debug, Default)]
pub(crate) struct InUse {
    now: Mutex<(Option<Store>, Option<Material>)>,
}

impl InUse {
    /// What the store is to TLS.
    pub(crate) fn material(&self) -> Option<Material> {
        self.lock().1.clone()
    }

    /// The store.
    pub(crate) fn store(&self) -> Option<Store> {
        self.lock().0.clone()
    }

    /// From now on this store is in use; what it is to TLS too, if it has a certificate.
    pub(crate) fn take(&self, store: Store, material: Option<Material>) {
        let mut now = self.lock();
        now.0 = Some(store);
        if material.is_some() {
            now.1 = material;
        }
    }

    fn lock(&self) -> MutexGuard<'_, (Option<Store>, Option<Material>)> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Material {
    /// Reads the store. The webhook's server speaks TLS 1.2 too, unless `only_tls13`.
    ///
    /// # Errors
    /// [`Kind::Internal`] when a certificate or key cannot be used, or there is none yet.
    pub(crate) fn new(store: &Store, only_tls13: bool) -> Result<Self> {
        let unusable =
            |error: rustls::Error| Error::caused(Kind::Internal, "cannot use the certificate", error);
        let unread = |error| Error::caused(Kind::Internal, "cannot read the certificate", error);
        let Some(serving) = &store.serving else {
            return Err(Error::new(Kind::Internal, "there is no certificate yet"));
        };
        let chain = vec![CertificateDer::from_pem_slice(serving.certificate.as_bytes()).map_err(unread)?];
        let key = PrivateKeyDer::from_pem_slice(serving.key.as_bytes()).map_err(unread)?;
        let mut roots = RootCertStore::empty();
        for authority in &store.authorities {
            let certificate =
                CertificateDer::from_pem_slice(authority.certificate.as_bytes()).map_err(unread)?;
            roots.add(certificate).map_err(unusable)?;
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let tls13: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13];
        let versions = if only_tls13 { tls13 } else { rustls::DEFAULT_VERSIONS };
        let server = |versions| {
            ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(versions)
                .map_err(unusable)
        };
        let webhook = server(versions)?
            .with_no_client_auth()
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| Error::caused(Kind::Internal, "cannot verify clients", error))?;
        let peers = server(tls13)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        let client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(tls13)
            .map_err(unusable)?
            .with_root_certificates(roots)
            .with_client_auth_cert(chain, key)
            .map_err(unusable)?;
        Ok(Self { webhook: Arc::new(webhook), peers: Arc::new(peers), client: Arc::new(client) })
    }

    /// Checks that whoever trusts the store's authorities trusts its certificate under this name, at the time when it was
    /// made: what time makes of it is [`Store::plan`]'s.
    ///
    /// # Errors
    /// [`Kind::Internal`] when not: somebody else put one of the two there.
    pub(crate) fn check(self, store: &Store, host: String) -> Result<Self> {
        let untrusted =
            |error| Error::caused(Kind::Internal, "the certificate is not its authority's", error);
        let Some(serving) = &store.serving else { return Ok(self) };
        let read = |pem: &str| {
            let unread = |error| Error::caused(Kind::Internal, "cannot read the certificate", error);
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(unread)
        };
        let mut roots = RootCertStore::empty();
        for authority in &store.authorities {
            roots.add(read(&authority.certificate)?).map_err(untrusted)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| Error::caused(Kind::Internal, "cannot verify the certificate", error))?;
        let name = ServerName::try_from(host)
            .map_err(|error| Error::caused(Kind::Internal, "the namespace is no name", error))?;
        let made = UnixTime::since_unix_epoch(Duration::from_secs(serving.from));
        let certificate = read(&serving.certificate)?;
        verifier.verify_server_cert(&certificate, &[], &name, &[], made).map_err(untrusted)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::{Intervals, Step};

    fn store(host: &str) -> Store {
        let hour = Duration::from_secs(3600);
        let intervals =
            Intervals { ca_rotate: hour, ca_overlap: hour, cert_rotate: hour, cert_overlap: hour };
        let names = [host.to_owned()];
        let mut store = Store::default();
        for step in [Step::Authority, Step::Sign(0)] {
            store = store.apply(step, &names, intervals, 1_700_000_000).unwrap();
        }
        store
    }

    /// Whether a store would be taken into use.
    fn taken(store: &Store) -> bool {
        Material::new(store, true).and_then(|material| material.check(store, "a.b.svc".to_owned())).is_ok()
    }

    #[test]
    fn what_others_put_into_the_store_is_not_used() {
        // Made years ago: whether it is in date is not asked here.
        let good = store("a.b.svc");
        assert!(taken(&good));
        let other = store("a.b.svc");
        assert!(!taken(&Store { authorities: other.authorities, ..good.clone() }), "another's authority");
        let serving = |change: fn(&mut crate::certificates::Identity)| {
            let mut store = good.clone();
            change(store.serving.as_mut().unwrap());
            store
        };
        assert!(!taken(&serving(|one| one.certificate = "torn".to_owned())));
        assert!(!taken(&serving(|one| one.key.truncate(60))));
        assert!(!taken(&Store { authorities: Vec::new(), ..good.clone() }));
        let key = other.serving.unwrap().key;
        let mut mixed = good.clone();
        mixed.serving.as_mut().unwrap().key = key;
        assert!(!taken(&mixed), "another's key");
        assert!(!taken(&store("elsewhere.svc")), "another's name");
    }
}
