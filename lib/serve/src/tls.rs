//! Who a server is: a certificate that it signs itself, or one in files that is read anew when they change; and whose
//! client certificates it knows. Not here: what a client may do.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SupportedCipherSuite};
use thiserror::Error;

/// Clients that show a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clients {
    /// Certificates of those who sign theirs, PEM. One that is signed by nobody of these ends the handshake; none at
    /// all is fine.
    pub authorities: PathBuf,
}

/// Who a server is.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Certificate {
    /// Signed by itself, for these DNS names and addresses.
    SelfSigned(Vec<String>),
    /// In files, PEM; whoever changes them renames new ones over old ones.
    Files {
        /// The certificate, and those between it and a known authority.
        chain: PathBuf,
        /// Its key.
        key: PathBuf,
    },
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
    #[error("cannot understand {0}")]
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

    /// What a server needs that knows no clients.
    pub(crate) fn config(&self) -> Result<ServerConfig, TlsError> {
        self.server_config(None)
    }

    /// What a server needs.
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
                let files = Files::read(chain.clone(), key.clone(), provider)?;
                Ok(builder.with_cert_resolver(Arc::new(files)))
            }
        }
    }
}

impl Clients {
    fn verifier(&self, provider: &Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        let pem = fs::read(&self.authorities).map_err(|e| TlsError::Read(self.authorities.clone(), e))?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate.map_err(|e| TlsError::Pem(self.authorities.clone(), e))?;
            roots.add(certificate).map_err(TlsError::Refused)?;
        }
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
            .allow_unauthenticated()
            .build()
            .map_err(|e| TlsError::Refused(rustls::Error::General(e.to_string())))
    }
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

/// What tells one version of a file from the next: device, inode, length, time of the last change.
type Stamp = (u64, u64, u64, i64, i64);

fn stamp(path: &Path) -> Result<Stamp, TlsError> {
    let found = fs::metadata(path).map_err(|error| TlsError::Read(path.to_owned(), error))?;
    Ok((found.dev(), found.ino(), found.len(), found.ctime(), found.ctime_nsec()))
}

/// A certificate in files, and what it was when it was last read.
#[derive(Debug)]
struct Files {
    chain: PathBuf,
    key: PathBuf,
    provider: Arc<CryptoProvider>,
    known: Mutex<Known>,
}

/// What was read, and the files' stamps just before.
#[derive(Debug)]
struct Known {
    stamps: [Stamp; 2],
    certified: Arc<CertifiedKey>,
}

impl Files {
    fn read(chain: PathBuf, key: PathBuf, provider: Arc<CryptoProvider>) -> Result<Self, TlsError> {
        let known = Known::read(&chain, &key, &provider)?;
        Ok(Self { chain, key, provider, known: Mutex::new(known) })
    }

    /// The certificate as it is now. One that cannot be used is not taken: the old one may still be good.
    fn now(&self) -> Arc<CertifiedKey> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.anew(&self.chain, &self.key, &self.provider) {
            Ok(None) => {}
            Ok(Some(new)) => *known = new,
            Err(error) => {
                let because = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, because, "the certificate cannot be read anew; the old one stays");
            }
        }
        known.certified.clone()
    }
}

impl Known {
    fn read(chain: &Path, key: &Path, provider: &CryptoProvider) -> Result<Self, TlsError> {
        // The stamps first: a file that changes while it is read is read again.
        let stamps = [stamp(chain)?, stamp(key)?];
        Ok(Self { stamps, certified: load(chain, key, provider)? })
    }

    /// What is there now; `None` when it is the same.
    fn anew(&self, chain: &Path, key: &Path, provider: &CryptoProvider) -> Result<Option<Self>, TlsError> {
        if [stamp(chain)?, stamp(key)?] == self.stamps {
            return Ok(None);
        }
        Self::read(chain, key, provider).map(Some)
    }
}

fn load(chain: &Path, key: &Path, provider: &CryptoProvider) -> Result<Arc<CertifiedKey>, TlsError> {
    let [chain_pem, key_pem] =
        [chain, key].map(|path| fs::read(path).map_err(|error| TlsError::Read(path.to_owned(), error)));
    let certificates = CertificateDer::pem_slice_iter(&chain_pem?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| TlsError::Pem(chain.to_owned(), error))?;
    let private =
        PrivateKeyDer::from_pem_slice(&key_pem?).map_err(|error| TlsError::Pem(key.to_owned(), error))?;
    CertifiedKey::from_der(certificates, private, provider).map(Arc::new).map_err(TlsError::Refused)
}

impl ResolvesServerCert for Files {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Puts a new certificate and key in place, as whoever rotates them does.
    fn put(folder: &Path) -> Vec<u8> {
        let pair = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).unwrap();
        for (name, pem) in [("crt", pair.cert.pem()), ("key", pair.signing_key.serialize_pem())] {
            fs::write(folder.join("new"), pem).unwrap();
            fs::rename(folder.join("new"), folder.join(name)).unwrap();
        }
        pair.cert.der().to_vec()
    }

    #[test]
    fn files_are_read_anew_when_they_change_and_kept_when_they_are_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let [chain, key] = ["crt", "key"].map(|name| folder.path().join(name));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        assert!(matches!(
            Files::read(chain.clone(), key.clone(), provider.clone()),
            Err(TlsError::Read(path, _)) if path == chain
        ));
        let first = put(folder.path());
        let files = Files::read(chain.clone(), key, provider).unwrap();
        assert_eq!(files.now().cert[0].as_ref(), first);
        let second = put(folder.path());
        assert_eq!(files.now().cert[0].as_ref(), second);
        fs::write(&chain, "no certificate").unwrap();
        assert_eq!(files.now().cert[0].as_ref(), second);
        let third = put(folder.path());
        assert_eq!(files.now().cert[0].as_ref(), third);
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
