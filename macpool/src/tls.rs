//! What the certificate store is to TLS: the webhook's server, the server for other replicas, the client of those.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
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
}
