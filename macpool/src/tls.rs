//! TLS with the certificate store: the webhook's server, the server for other replicas, the client of those.
//!
//! Not here: the metrics' server, which has a certificate of its own ([`serve::http`]) and the same [`TlsProfile`].

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

/// The name of the newest version, as Go's flags have it.
pub(crate) const TLS13: &str = "VersionTLS13";

/// Cipher suites of TLS 1.3 by Go's names. They are always enabled, as in Go.
const OF_TLS13: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];
/// Those of TLS 1.2 that are spoken here.
const OF_TLS12: [&str; 6] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];
/// Other names of two of them, which Kubernetes' flags take, too.
const OF_OLD: [&str; 2] = ["TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305", "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305"];
/// Other suites of Go, which are not supported: without forward secrecy, or with CBC, RC4, 3DES.
const NOT_SPOKEN: [&str; 16] = [
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_RSA_WITH_RC4_128_SHA",
];

/// TLS that the webhook and the metrics offer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsProfile {
    /// Whether TLS 1.2 is refused.
    pub(crate) only_tls13: bool,
    /// Cipher suites of TLS 1.2; all, if empty.
    pub(crate) ciphers: Vec<String>,
}

impl TlsProfile {
    /// The offer of a least version and a list of cipher suites, with commas between them, by Go's names.
    ///
    /// # Errors
    /// [`Kind::Invalid`] for a name that Go does not know, and when no client could use the TLS 1.2 that is allowed.
    pub(crate) fn read(least: &str, suites: &str) -> Result<Self> {
        let invalid = |why: String| Error::new(Kind::Invalid, format!("--tls-cipher-suites: {why}"));
        let names: Vec<&str> = suites.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let spoken = |name: &&str| OF_TLS12.contains(name) || OF_OLD.contains(name);
        let known = |name: &&str| spoken(name) || OF_TLS13.contains(name) || NOT_SPOKEN.contains(name);
        if let Some(unknown) = names.iter().find(|name| !known(name)) {
            return Err(invalid(format!(
                "{unknown:?} is not a cipher suite; those of TLS 1.2 are {}",
                OF_TLS12.join(", ")
            )));
        }
        let ciphers: Vec<String> = names.iter().copied().filter(spoken).map(str::to_owned).collect();
        // As in Go: a list of TLS 1.3 suites only leaves none for older clients.
        let newest = !names.is_empty() && names.iter().all(|name| OF_TLS13.contains(name));
        let only_tls13 = least == TLS13 || newest;
        if !only_tls13 && !names.is_empty() && ciphers.is_empty() {
            let needed = OF_TLS12.join(", ");
            let why =
                format!("none of these is supported; name one of {needed}, or --tls-min-version={TLS13}");
            return Err(invalid(why));
        }
        Ok(Self { only_tls13, ciphers })
    }
}

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
    /// Identities and authorities of the store.
    pub(crate) fn material(&self) -> Option<Material> {
        self.lock().1.clone()
    }

    /// The store.
    pub(crate) fn store(&self) -> Option<Store> {
        self.lock().0.clone()
    }

    /// From now on this store is in use; what it is to TLS too, if it has a certificate.
    pub(crate) fn install(&self, store: Store, material: Option<Material>) {
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
    /// Reads the store. The offer decides versions and suites of the webhook's server; replicas use TLS 1.3.
    ///
    /// # Errors
    /// [`Kind::Internal`] when a certificate or key cannot be used, or there is none yet.
    pub(crate) fn new(store: &Store, offer: &TlsProfile) -> Result<Self> {
        let unusable =
            |error: rustls::Error| Error::with(Kind::Internal, "cannot use the certificate", error);
        let unread = |error| Error::with(Kind::Internal, "cannot read the certificate", error);
        let Some(serving) = &store.serving else {
            return Err(Error::new(Kind::Internal, "macpool has no certificate yet"));
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
        let versions = if offer.only_tls13 { tls13 } else { rustls::DEFAULT_VERSIONS };
        let offered = Arc::new(serve::tls::provider(&offer.ciphers));
        let webhook = ServerConfig::builder_with_provider(offered)
            .with_protocol_versions(versions)
            .map_err(unusable)?
            .with_no_client_auth()
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| Error::with(Kind::Internal, "cannot verify clients", error))?;
        let peers = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(tls13)
            .map_err(unusable)?
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

    /// Checks that the store's authorities have signed its certificate for this name, at the time when it was made:
    /// [`Store::plan`] decides about its age.
    ///
    /// # Errors
    /// [`Kind::Internal`] when not: another program wrote one of the two.
    pub(crate) fn check(self, store: &Store, host: String) -> Result<Self> {
        let untrusted = |error| {
            Error::with(Kind::Internal, "the certificate is not signed by the pool's authority", error)
        };
        let Some(serving) = &store.serving else { return Ok(self) };
        let read = |pem: &str| {
            let unread = |error| Error::with(Kind::Internal, "cannot read the certificate", error);
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(unread)
        };
        let mut roots = RootCertStore::empty();
        for authority in &store.authorities {
            roots.add(read(&authority.certificate)?).map_err(untrusted)?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| Error::with(Kind::Internal, "cannot verify the certificate", error))?;
        let name = ServerName::try_from(host)
            .map_err(|error| Error::with(Kind::Internal, "the namespace is not a DNS name", error))?;
        let made = UnixTime::since_unix_epoch(Duration::from_secs(serving.from));
        let certificate = read(&serving.certificate)?;
        verifier.verify_server_cert(&certificate, &[], &name, &[], made).map_err(untrusted)?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serve::authority::{Identity, Intervals};

    /// The store that is made for a name at a time.
    fn store_of(host: &str, now: u64) -> Store {
        let hour = Duration::from_secs(3600);
        let intervals =
            Intervals { ca_rotate: hour, ca_overlap: hour, cert_rotate: hour, cert_overlap: hour };
        let names = [host.to_owned()];
        let mut store = Store::default();
        while let Some(step) = store.plan(intervals, now) {
            store = store.apply(&step, &names, intervals, now).unwrap();
        }
        store
    }

    fn store(host: &str) -> Store {
        store_of(host, 1_700_000_000)
    }

    /// Whether a store would be taken into use.
    fn taken(store: &Store) -> bool {
        let offer = TlsProfile::read(TLS13, "").unwrap();
        Material::new(store, &offer).and_then(|material| material.check(store, "a.b.svc".to_owned())).is_ok()
    }

    #[test]
    fn cipher_suites_are_gos() {
        let all = [OF_TLS12.join(","), OF_TLS13.join(","), NOT_SPOKEN.join(","), OF_OLD.join(",")].join(",");
        let read = |least: &str, suites: &str| TlsProfile::read(least, suites).ok();
        let offer = |only_tls13: bool, ciphers: &[&str]| {
            Some(TlsProfile { only_tls13, ciphers: ciphers.iter().map(|&name| name.to_owned()).collect() })
        };
        let old = "VersionTLS12";
        let [cbc, rsa] = [NOT_SPOKEN[0], OF_TLS12[3]];
        for (least, suites, expected) in [
            (old, "", offer(false, &[])),
            (TLS13, "", offer(true, &[])),
            (old, &*format!("{rsa}, {cbc},{}", OF_TLS13[0]), offer(false, &[rsa])),
            (old, &*all, offer(false, &[&OF_TLS12[..], &OF_OLD[..]].concat())),
            (old, &*OF_TLS13.join(","), offer(true, &[])),
            (TLS13, cbc, offer(true, &[])),
            (old, cbc, None),
            (old, &*format!("{cbc},{}", OF_TLS13[0]), None),
            (old, "TLS_NONSENSE", None),
            (TLS13, "ECDHE-RSA-AES128-GCM-SHA256", None),
        ] {
            assert_eq!(read(least, suites), expected, "{least} {suites}");
        }
        let said = TlsProfile::read(old, "TLS_NONSENSE").unwrap_err().to_string();
        assert!(said.contains("\"TLS_NONSENSE\"") && said.contains(OF_TLS12[5]), "{said}");
        // Each name that is spoken is one suite of the library.
        let count = |names: &[String]| {
            let suites = serve::tls::provider(names).cipher_suites;
            suites.iter().filter(|suite| suite.tls13().is_none()).count()
        };
        assert_eq!(count(&[]), OF_TLS12.len());
        for name in OF_TLS12.iter().chain(&OF_OLD) {
            assert_eq!(count(&[(*name).to_owned()]), 1, "{name}");
        }
    }

    /// The suite that a client with these alone agrees on with the webhook.
    fn agreed(offer: &TlsProfile, client: &[&str]) -> Option<String> {
        let store = store_of("a.b.svc", UnixTime::now().as_secs());
        let server = Material::new(&store, offer).unwrap().webhook;
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(store.authorities[0].certificate.as_bytes()).unwrap())
            .unwrap();
        let names: Vec<String> = client.iter().map(|&name| name.to_owned()).collect();
        let client = ClientConfig::builder_with_provider(Arc::new(serve::tls::provider(&names)))
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("a.b.svc").unwrap();
        let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
        let mut server = rustls::ServerConnection::new(server).unwrap();
        while server.is_handshaking() {
            let mut sent = Vec::new();
            client.write_tls(&mut sent).unwrap();
            server.read_tls(&mut &sent[..]).unwrap();
            server.process_new_packets().ok()?;
            let mut sent = Vec::new();
            server.write_tls(&mut sent).unwrap();
            client.read_tls(&mut &sent[..]).unwrap();
            client.process_new_packets().ok()?;
        }
        server.negotiated_cipher_suite().map(|suite| format!("{:?}", suite.suite()))
    }

    #[test]
    fn clients_of_tls12_get_the_suites_that_are_named() {
        let [small, large] = [OF_TLS12[0], OF_TLS12[1]];
        let offer = TlsProfile::read("VersionTLS12", large).unwrap();
        assert_eq!(agreed(&offer, &[large, small]).as_deref(), Some(large));
        assert_eq!(agreed(&offer, &[small]), None);
        let all = TlsProfile::read("VersionTLS12", "").unwrap();
        assert_eq!(agreed(&all, &[small]).as_deref(), Some(small));
        assert_eq!(agreed(&TlsProfile::read(TLS13, "").unwrap(), &[small]), None);
    }

    #[test]
    fn foreign_certificates_in_the_store_are_not_used() {
        // Made years ago: whether it is in date is not asked here.
        let good = store("a.b.svc");
        assert!(taken(&good));
        let other = store("a.b.svc");
        assert!(!taken(&Store { authorities: other.authorities, ..good.clone() }), "another's authority");
        let serving = |change: fn(&mut Identity)| {
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
