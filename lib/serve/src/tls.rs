//! TLS configurations of servers and clients: identity from files, from memory or self-signed, client certificates, reload.
//!
//! A server asks a [`Current`] for its configuration at every connection, so certificate, key and client authorities change
//! without a restart: [`Reloading`] follows files, [`Live`] is set by the program.
//!
//! Not here: making certificates ([`crate::authority`]), what a client may do.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, SupportedCipherSuite};
use thiserror::Error;

/// Client certificates that a server accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients {
    /// The authorities that sign them. A certificate of any other authority ends the handshake.
    pub authorities: Authorities,
    /// Whether a client without a certificate is refused.
    pub required: bool,
}

/// Certificates of authorities, PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authorities {
    /// In a file.
    File(PathBuf),
    /// In memory.
    Pem(String),
}

/// The identity of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The certificate.
    pub certificate: Certificate,
    /// Whether clients that know nothing newer than TLS 1.2 are refused.
    pub only_tls13: bool,
    /// Names of cipher suites of TLS 1.2, as [`provider`] takes them.
    pub ciphers: Vec<String>,
}

/// Where a certificate comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum Certificate {
    /// Signed by itself, for these DNS names and addresses.
    SelfSigned(Vec<String>),
    /// In files, PEM. They are replaced by renaming new ones over them.
    Files {
        /// The certificate, and those between it and a known authority.
        chain: PathBuf,
        /// Its key.
        key: PathBuf,
    },
    /// In memory, PEM.
    Pem {
        /// The certificate, and those between it and a known authority.
        chain: String,
        /// Its key.
        key: String,
    },
}

impl fmt::Debug for Certificate {
    /// Without keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SelfSigned(names) => f.debug_tuple("SelfSigned").field(names).finish(),
            Self::Files { chain, key } => {
                f.debug_struct("Files").field("chain", chain).field("key", key).finish()
            }
            Self::Pem { .. } => f.debug_struct("Pem").finish_non_exhaustive(),
        }
    }
}

/// The TLS configuration that a server has now.
pub trait Current: Send + Sync + 'static {
    /// The configuration for a new connection; `None` if there is none yet.
    fn current(&self) -> Option<Arc<ServerConfig>>;
}

/// A configuration that the program sets, and may change while a server uses it.
#[derive(Debug, Default)]
pub struct Live(Mutex<Option<Arc<ServerConfig>>>);

impl Live {
    /// A configuration that never changes, unless [`Live::set`] is called.
    pub fn of(config: ServerConfig) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Some(Arc::new(config)))))
    }

    /// From now on, new connections use `config`.
    pub fn set(&self, config: Arc<ServerConfig>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(config);
    }
}

impl Current for Live {
    fn current(&self) -> Option<Arc<ServerConfig>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// A configuration from files, read again when one of them changes: certificate, key and client authorities. While the files
/// cannot be used, the configuration before them stays.
#[derive(Debug)]
pub struct Reloading {
    identity: Identity,
    clients: Option<Clients>,
    http2: bool,
    profile: Option<PathBuf>,
    known: Mutex<(Vec<Stamp>, Arc<ServerConfig>)>,
}

/// The text of a file that [`Reloading::with_profile`] reads: the lowest TLS version, such as `VersionTLS12`, then cipher
/// suites of TLS 1.2, one in a line.
pub fn profile_text(least: &str, ciphers: &[String]) -> String {
    std::iter::once(least).chain(ciphers.iter().map(String::as_str)).map(|line| format!("{line}\n")).collect()
}

impl Reloading {
    /// The configuration of `identity` and `clients`; offers HTTP/2 next to HTTP/1.1 if `http2`.
    ///
    /// # Errors
    /// When certificate, key or authorities cannot be read or used.
    pub fn new(identity: Identity, clients: Option<Clients>, http2: bool) -> Result<Arc<Self>, TlsError> {
        Self::with_profile(identity, clients, http2, None)
    }

    /// The same, with the versions and cipher suites of the file `profile` ([`profile_text`]) while it exists.
    ///
    /// # Errors
    /// When certificate, key or authorities cannot be read or used.
    pub fn with_profile(
        identity: Identity,
        clients: Option<Clients>,
        http2: bool,
        profile: Option<PathBuf>,
    ) -> Result<Arc<Self>, TlsError> {
        let known = Mutex::new(Self::read(&identity, clients.as_ref(), http2, profile.as_deref())?);
        Ok(Arc::new(Self { identity, clients, http2, profile, known }))
    }

    fn read(
        identity: &Identity,
        clients: Option<&Clients>,
        http2: bool,
        profile: Option<&Path>,
    ) -> Result<(Vec<Stamp>, Arc<ServerConfig>), TlsError> {
        // The stamps first: a file that changes while it is read is read again.
        let stamps = stamps(identity, clients, profile)?;
        let mut identity = identity.clone();
        if let Some(text) = profile.and_then(|path| fs::read_to_string(path).ok()) {
            let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
            identity.only_tls13 = lines.next() == Some("VersionTLS13");
            identity.ciphers = lines.map(str::to_owned).collect();
        }
        let mut config = identity.server_config(clients)?;
        if http2 {
            offer_http2(&mut config);
        }
        Ok((stamps, Arc::new(config)))
    }
}

impl Current for Reloading {
    fn current(&self) -> Option<Arc<ServerConfig>> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (clients, profile) = (self.clients.as_ref(), self.profile.as_deref());
        let read = stamps(&self.identity, clients, profile).and_then(|stamps| match stamps == known.0 {
            true => Ok(None),
            false => Self::read(&self.identity, clients, self.http2, profile).map(Some),
        });
        match read {
            Ok(None) => {}
            Ok(Some(new)) => {
                tracing::info!("the TLS configuration was reloaded");
                *known = new;
            }
            Err(error) => {
                let error = error::chain(&error);
                tracing::warn!(error, "cannot reload the TLS configuration; the previous one stays in use");
            }
        }
        Some(known.1.clone())
    }
}

/// Lets clients choose HTTP/2 (ALPN, RFC 7301); HTTP/1.1 otherwise.
pub fn offer_http2(config: &mut ServerConfig) {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
}

/// Configuration of a client that trusts the `authorities` (PEM) and shows `identity` (certificate and key, PEM) if given.
///
/// # Errors
/// When a certificate or key cannot be read or used.
pub fn client_config(authorities: &str, identity: Option<(&str, &str)>) -> Result<ClientConfig, TlsError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(provider(&[])))
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Refused)?
        .with_root_certificates(roots(authorities.as_bytes(), Path::new("memory"))?);
    let Some((chain, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    let (chain, key) = parse(chain.as_bytes(), key.as_bytes(), [Path::new("memory"); 2])?;
    builder.with_client_auth_cert(chain, key).map_err(TlsError::Refused)
}

/// Why there is no TLS.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TlsError {
    /// The certificate cannot be made.
    #[error("cannot make a certificate")]
    Make(#[source] rcgen::Error),
    /// A file cannot be read.
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] std::io::Error),
    /// A file holds no PEM of its kind.
    #[error("cannot parse {0}")]
    Pem(PathBuf, #[source] rustls::pki_types::pem::Error),
    /// TLS refuses certificate, key or configuration.
    #[error("cannot use the certificate")]
    Refused(#[source] rustls::Error),
}

impl Identity {
    /// TLS 1.2 and 1.3 with a fresh certificate for `localhost`: for pollers that do not verify.
    pub fn self_signed() -> Self {
        let certificate = Certificate::SelfSigned(vec!["localhost".to_owned()]);
        Self { certificate, only_tls13: false, ciphers: Vec::new() }
    }

    /// The configuration of a server, as the files are now; see [`Reloading`] for one that follows them.
    ///
    /// # Errors
    /// When certificate, key or authorities cannot be read or used.
    pub fn server_config(&self, clients: Option<&Clients>) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(provider(&self.ciphers));
        let builder = ServerConfig::builder_with_provider(provider.clone());
        let builder = if self.only_tls13 {
            builder.with_protocol_versions(&[&rustls::version::TLS13])
        } else {
            builder.with_safe_default_protocol_versions()
        };
        let builder = builder.map_err(TlsError::Refused)?;
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(clients) => builder.with_client_cert_verifier(clients.verifier(&provider)?),
        };
        match &self.certificate {
            Certificate::SelfSigned(names) => {
                let pair = rcgen::generate_simple_self_signed(names.clone()).map_err(TlsError::Make)?;
                let key = PrivateKeyDer::try_from(pair.signing_key.serialize_der())
                    .map_err(|e| TlsError::Refused(rustls::Error::General(e.to_owned())))?;
                builder.with_single_cert(vec![pair.cert.der().clone()], key).map_err(TlsError::Refused)
            }
            Certificate::Files { chain, key } => {
                let (chain, key) = parse(&read(chain)?, &read(key)?, [chain, key])?;
                builder.with_single_cert(chain, key).map_err(TlsError::Refused)
            }
            Certificate::Pem { chain, key } => {
                let (chain, key) = parse(chain.as_bytes(), key.as_bytes(), [Path::new("memory"); 2])?;
                builder.with_single_cert(chain, key).map_err(TlsError::Refused)
            }
        }
    }
}

impl Clients {
    /// Clients may show a certificate of the authorities in a file.
    pub fn optional(authorities: PathBuf) -> Self {
        Self { authorities: Authorities::File(authorities), required: false }
    }

    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let roots = match &self.authorities {
            Authorities::File(path) => roots(&read(path)?, path)?,
            Authorities::Pem(pem) => roots(pem.as_bytes(), Path::new("memory"))?,
        };
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
        let builder = if self.required { builder } else { builder.allow_unauthenticated() };
        builder.build().map_err(|e| TlsError::Refused(rustls::Error::General(e.to_string())))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(path).map_err(|error| TlsError::Read(path.to_owned(), error))
}

fn roots(pem: &[u8], path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|e| TlsError::Pem(path.to_owned(), e))?;
        roots.add(certificate).map_err(TlsError::Refused)?;
    }
    Ok(roots)
}

fn parse(
    chain: &[u8],
    key: &[u8],
    paths: [&Path; 2],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), TlsError> {
    let unread = |path: &Path, error| TlsError::Pem(path.to_owned(), error);
    let chain = CertificateDer::pem_slice_iter(chain)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unread(paths[0], error))?;
    Ok((chain, PrivateKeyDer::from_pem_slice(key).map_err(|error| unread(paths[1], error))?))
}

/// The cryptography, of the cipher suites of TLS 1.2 with those that are named, by IANA or by OpenSSL; with all, if none of
/// them is known.
pub fn provider(names: &[String]) -> CryptoProvider {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let old = |suite: &SupportedCipherSuite| suite.tls13().is_none();
    let named = |suite: &SupportedCipherSuite| {
        let name = format!("{:?}", suite.suite());
        names.iter().any(|wanted| canonical(wanted) == canonical(&name))
    };
    if provider.cipher_suites.iter().any(|suite| old(suite) && named(suite)) {
        provider.cipher_suites.retain(|suite| !old(suite) || named(suite));
    }
    provider
}

/// The name of a cipher suite without what IANA, OpenSSL and rustls write differently.
fn canonical(name: &str) -> String {
    let name = name.to_ascii_uppercase().replace("-", "_").replace("_WITH_", "_").replace("TLS_", "");
    name.replace("_SHA256", "").replace("AES_", "AES").replace("_POLY1305", "")
}

/// Distinguishes one version of a file from the next: device, inode, length, time of the last change.
type Stamp = (u64, u64, u64, i64, i64);

fn stamps(
    identity: &Identity,
    clients: Option<&Clients>,
    profile: Option<&Path>,
) -> Result<Vec<Stamp>, TlsError> {
    let mut paths = Vec::new();
    if let Certificate::Files { chain, key } = &identity.certificate {
        paths.extend([chain, key]);
    }
    if let Some(Clients { authorities: Authorities::File(path), .. }) = clients {
        paths.push(path);
    }
    let stamp =
        |found: fs::Metadata| (found.dev(), found.ino(), found.len(), found.ctime(), found.ctime_nsec());
    let required =
        |path: &PathBuf| fs::metadata(path).map(stamp).map_err(|error| TlsError::Read(path.clone(), error));
    let mut all = paths.into_iter().map(required).collect::<Result<Vec<_>, _>>()?;
    all.extend(profile.and_then(|path| fs::metadata(path).ok()).map(stamp));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replaces certificate, key and client authorities.
    fn put(folder: &Path) {
        let pair = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).unwrap();
        for (name, pem) in
            [("crt", pair.cert.pem()), ("key", pair.signing_key.serialize_pem()), ("ca", pair.cert.pem())]
        {
            fs::write(folder.join("new"), pem).unwrap();
            fs::rename(folder.join("new"), folder.join(name)).unwrap();
        }
    }

    #[test]
    fn changed_files_are_reloaded_and_damaged_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let [chain, key, ca] = ["crt", "key", "ca"].map(|name| folder.path().join(name));
        let identity = Identity {
            certificate: Certificate::Files { chain: chain.clone(), key },
            ..Identity::self_signed()
        };
        let new = || Reloading::new(identity.clone(), Some(Clients::optional(ca.clone())), true);
        assert!(matches!(new(), Err(TlsError::Read(path, _)) if path == chain));
        put(folder.path());
        let reloading = new().unwrap();
        let first = reloading.current().unwrap();
        assert_eq!(first.alpn_protocols[0], b"h2");
        assert!(Arc::ptr_eq(&first, &reloading.current().unwrap()), "unchanged files are not read");
        put(folder.path());
        let second = reloading.current().unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        fs::write(&chain, "no certificate").unwrap();
        assert!(Arc::ptr_eq(&second, &reloading.current().unwrap()));
        fs::remove_file(&ca).unwrap();
        assert!(Arc::ptr_eq(&second, &reloading.current().unwrap()));
        put(folder.path());
        assert!(!Arc::ptr_eq(&second, &reloading.current().unwrap()));
    }

    #[test]
    fn profile_of_a_file_is_in_effect_while_the_file_exists() {
        let folder = tempfile::tempdir().unwrap();
        let [chain, key, profile] = ["crt", "key", "profile"].map(|name| folder.path().join(name));
        put(folder.path());
        let certificate = Certificate::Files { chain, key };
        let identity = Identity { certificate, ..Identity::self_signed() };
        let reloading = Reloading::with_profile(identity, None, false, Some(profile.clone())).unwrap();
        // Cipher suites of TLS 1.2, and all.
        let offered = || {
            let config = reloading.current().unwrap();
            let all = &config.crypto_provider().cipher_suites;
            (all.iter().filter(|suite| suite.tls13().is_none()).count(), all.len())
        };
        let usual = offered();
        fs::write(&profile, profile_text("VersionTLS12", &["ECDHE-ECDSA-AES128-GCM-SHA256".to_owned()]))
            .unwrap();
        assert_eq!(offered().0, 1);
        // The server judges the client's first message; trust in its certificate comes later.
        let handshake = |versions: &[&'static rustls::SupportedProtocolVersion]| {
            let provider = Arc::new(provider(&[]));
            let client = ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(versions)
                .unwrap()
                .with_root_certificates(RootCertStore::empty())
                .with_no_client_auth();
            let name = rustls::pki_types::ServerName::try_from("a").unwrap();
            let mut client = rustls::ClientConnection::new(client.into(), name).unwrap();
            let mut server = rustls::ServerConnection::new(reloading.current().unwrap()).unwrap();
            let mut sent = Vec::new();
            client.write_tls(&mut sent).unwrap();
            server.read_tls(&mut &sent[..]).unwrap();
            server.process_new_packets().is_ok()
        };
        assert!(handshake(&[&rustls::version::TLS12]));
        fs::write(&profile, profile_text("VersionTLS13", &[])).unwrap();
        assert!(!handshake(&[&rustls::version::TLS12]) && handshake(&[&rustls::version::TLS13]));
        fs::remove_file(&profile).unwrap();
        assert_eq!(offered(), usual);
        assert!(handshake(&[&rustls::version::TLS12]));
    }

    #[test]
    fn keys_are_not_printed() {
        let certificate = Certificate::Pem { chain: "c".to_owned(), key: "secret".to_owned() };
        assert!(!format!("{certificate:?}").contains("secret"));
    }

    #[test]
    fn ciphers_are_known_by_both_names() {
        let left = |names: &[&str]| {
            let provider = provider(&names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
            provider.cipher_suites.iter().filter(|suite| suite.tls13().is_none()).count()
        };
        let all = left(&[]);
        assert!(all > 2);
        for (names, count) in [
            (&["ECDHE-RSA-AES128-GCM-SHA256"][..], 1),
            (&["TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"], 2),
            (&["ECDHE-RSA-CHACHA20-POLY1305"], 1),
            (&["AES128-SHA", "nonsense"], all),
        ] {
            assert_eq!(left(names), count, "{names:?}");
        }
    }
}
