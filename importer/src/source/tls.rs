//! Trusted authorities and proxies: one configuration for every network source.
//!
//! Certificates come from the system and from folders that Kubernetes mounts; TLS is 1.2 or later by rustls with
//! aws-lc-rs. Not here: servers' certificates, and reading the environment (the proxies are handed in).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use hyper_util::client::proxy::matcher::Matcher;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::error::{Error, Kind};

/// Largest certificate file that is read. A whole system bundle has a quarter of a megabyte.
const FILE_LIMIT: u64 = 4 << 20;

/// Trusted authorities.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// Folders of `.crt` and `.pem` files that are trusted in addition to the system's roots. A missing folder is no error:
    /// the mounts are optional.
    pub folders: Vec<PathBuf>,
    /// Certificate files trusted as well, whatever their name; they must be readable.
    pub files: Vec<PathBuf>,
    /// Trust every certificate. The connection is still encrypted, to an unverified peer.
    pub insecure: bool,
}

/// Which way out. Empty or absent: direct.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// For `http://` addresses: `[http://][user:password@]host:port`.
    pub http: Option<String>,
    /// For `https://` addresses, through CONNECT.
    pub https: Option<String>,
    /// Hosts, domains and networks reached directly, comma separated.
    pub no_proxy: Option<String>,
}

// By hand: a proxy's address may carry a password.
impl std::fmt::Debug for Proxies {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxies")
            .field("http", &self.http.is_some())
            .field("https", &self.https.is_some())
            .field("no_proxy", &self.no_proxy)
            .finish()
    }
}

impl Proxies {
    /// " through the proxy HOST:PORT" for an error about `url`, without credentials; nothing where it is reached
    /// directly. By the rules that the client itself goes by.
    pub(crate) fn through(&self, url: &str) -> String {
        let Ok(url) = url.parse::<http::Uri>() else { return String::new() };
        let given = |address: &Option<String>| address.as_deref().unwrap_or_default().trim().to_owned();
        let proxy = Matcher::builder()
            .http(given(&self.http))
            .https(given(&self.https))
            .no(given(&self.no_proxy))
            .build()
            .intercept(&url);
        let authority = proxy.as_ref().and_then(|proxy| proxy.uri().authority());
        authority.map_or_else(String::new, |authority| {
            let place = authority.as_str();
            format!(" through the proxy {}", place.rsplit_once('@').map_or(place, |(_, place)| place))
        })
    }
}

/// The TLS side of every client: roots read once, sessions shared by all connections.
///
/// # Errors
/// [`Kind::Usage`] when one of [`Trust::files`] cannot be used.
pub fn client_config(trust: &Trust) -> Result<ClientConfig, Error> {
    let roots = if trust.insecure { None } else { Some(roots(trust)?) };
    let config = serve::trust::client(roots);
    let mut config = config.map_err(|e| Error::with(Kind::Usage, "cannot set up TLS", e))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// A client over HTTP/1.1 that follows no redirect, unpacks nothing and reads no environment.
///
/// # Errors
/// [`Kind::Usage`] when a proxy's address cannot be parsed.
pub fn client(config: &ClientConfig, proxies: &Proxies, user_agent: &str) -> Result<reqwest::Client, Error> {
    use std::time::Duration;
    let mut builder = reqwest::Client::builder()
        .tls_backend_preconfigured(config.clone())
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .referer(false)
        .user_agent(user_agent)
        .connect_timeout(Duration::from_secs(30))
        .tcp_keepalive(Duration::from_secs(30))
        .tcp_keepalive_interval(Duration::from_secs(10))
        .tcp_keepalive_retries(4u32)
        .pool_max_idle_per_host(1)
        .no_proxy();
    let not_for = || proxies.no_proxy.as_deref().and_then(reqwest::NoProxy::from_string);
    let given = |address: &Option<String>| address.clone().filter(|a| !a.trim().is_empty());
    if let Some(address) = given(&proxies.http) {
        let proxy = reqwest::Proxy::http(address.trim()).map_err(|e| bad_proxy("http_proxy", e))?;
        builder = builder.proxy(proxy.no_proxy(not_for()));
    }
    if let Some(address) = given(&proxies.https) {
        let proxy = reqwest::Proxy::https(address.trim()).map_err(|e| bad_proxy("https_proxy", e))?;
        builder = builder.proxy(proxy.no_proxy(not_for()));
    }
    builder.build().map_err(|e| Error::with(Kind::Usage, "cannot set up the HTTP client", e.without_url()))
}

fn bad_proxy(name: &str, error: reqwest::Error) -> Error {
    Error::with(
        Kind::Usage,
        format!("{name} is not the address of a proxy: write http://host:port"),
        error.without_url(),
    )
}

/// The system's roots and everything in the folders and files.
fn roots(trust: &Trust) -> Result<RootCertStore, Error> {
    let mut store = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    for error in system.errors {
        tracing::debug!(%error, "a system certificate cannot be read");
    }
    store.add_parsable_certificates(system.certs);
    let certificates = folder_certificates(&trust.folders);
    store.add_parsable_certificates(certificates);
    for path in &trust.files {
        let certificates = read_pem(path).map_err(|e| {
            Error::with(Kind::Usage, format!("cannot read certificates from {}", path.display()), e)
        })?;
        store.add_parsable_certificates(certificates);
    }
    if store.is_empty() {
        tracing::warn!(
            "no certificate authority is known, and every https server will be refused: install ca-certificates or give a CA certificate"
        );
    }
    Ok(store)
}

/// The certificates in the `.crt` and `.pem` files of `folders`; what cannot be read is warned about and left out.
///
/// Also for clients that take certificates rather than a configuration, such as a registry's.
pub fn folder_certificates(folders: &[PathBuf]) -> Vec<CertificateDer<'static>> {
    let mut certificates = Vec::new();
    for folder in folders {
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => {
                tracing::warn!(folder = %folder.display(), %error, "cannot list the folder of certificate authorities");
                continue;
            }
        };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|e| e.path())).collect();
        paths.sort();
        for path in paths.iter().filter(|path| named_as_certificate(path)) {
            match read_pem(path) {
                Ok(more) => certificates.extend(more),
                Err(error) => {
                    tracing::warn!(file = %path.display(), %error, "a file in the folder of certificate authorities is ignored");
                }
            }
        }
    }
    certificates
}

/// A mounted ConfigMap also holds `..data` and dated folders; only these two names count, as with nbdkit and registries.
fn named_as_certificate(path: &Path) -> bool {
    let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    !hidden && path.extension().is_some_and(|e| e == "crt" || e == "pem") && path.is_file()
}

/// All certificates of one PEM file; each must parse as one.
fn read_pem(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    use std::io::Read;
    let mut text = Vec::new();
    fs::File::open(path)?.take(FILE_LIMIT + 1).read_to_end(&mut text)?;
    if text.len() as u64 > FILE_LIMIT {
        return Err(io::Error::other("larger than 4 MiB"));
    }
    let certificates: Vec<_> =
        CertificateDer::pem_slice_iter(&text).collect::<Result<_, _>>().map_err(io::Error::other)?;
    if certificates.is_empty() {
        return Err(io::Error::other("it has no PEM certificate"));
    }
    let (usable, unusable) = RootCertStore::empty().add_parsable_certificates(certificates.iter().cloned());
    if unusable > 0 {
        tracing::warn!(file = %path.display(), usable, unusable, "some certificates do not parse");
    }
    if usable == 0 {
        return Err(io::Error::other("none of its certificates parses"));
    }
    Ok(certificates)
}
