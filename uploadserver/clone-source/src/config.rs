//! The clone as the environment describes it: one checked [`Config`]. Not here: reading and sending the volume.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::names;
use api::upload::CloneOf;
use api::upload::clone::{Mode, SOURCE_DIR, Source};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serve::failure::{Error, Kind, Result};
use serve::peer::roots;

/// One clone.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// The sent part of the volume.
    pub(crate) kind: CloneOf,
    /// The device, or the folder.
    pub(crate) volume: PathBuf,
    pub(crate) to: Receiver,
    /// The client certificate and the trusted authorities.
    pub(crate) tls: Arc<ClientConfig>,
    /// Label of the progress metric.
    pub(crate) owner_uid: String,
    /// Where the metric is served.
    pub(crate) metrics: SocketAddr,
    pub(crate) termination_log: PathBuf,
}

/// Where an upload server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Receiver {
    pub(crate) host: String,
    /// The one that the URL gives; else it is looked for.
    pub(crate) port: Option<u16>,
    pub(crate) path: String,
}

impl Config {
    /// The clone that the environment describes, with the contract's paths below `root`.
    ///
    /// # Errors
    /// A variable is missing or malformed.
    pub(crate) fn from_source(source: Source, root: &Path, metrics_port: u16) -> Result<Self> {
        let below = |path: &str| root.join(path.trim_start_matches('/'));
        // Exhaustive: a new variable of the contract is given a meaning here or does not compile.
        let Source {
            client_key,
            client_cert,
            server_ca_cert,
            upload_url,
            owner_uid,
            // The receiver's business.
            preallocation: _,
            mode,
            mount_point,
        } = source;
        let (kind, usual) = match mode {
            Mode::Filesystem => (CloneOf::Filesystem, SOURCE_DIR),
            Mode::Block => (CloneOf::Device, names::BLOCK_DEVICE),
        };
        let volume = if mount_point.is_empty() { usual } else { &mount_point };
        Ok(Self {
            kind,
            volume: below(volume),
            to: receiver(&upload_url)?,
            tls: tls(&client_cert, &client_key.0, &server_ca_cert)?,
            owner_uid,
            metrics: SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), metrics_port),
            termination_log: below(names::TERMINATION_LOG),
        })
    }
}

fn receiver(url: &str) -> Result<Receiver> {
    let nonsense = || Error::new(Kind::Usage, format!("UPLOAD_URL=\"{url}\" is not an https URL"));
    let uri: http::Uri = url.parse().map_err(|_| nonsense())?;
    match (uri.scheme_str(), uri.host()) {
        (Some("https"), Some(host)) => Ok(Receiver {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: uri.port_u16(),
            path: uri.path().to_owned(),
        }),
        _ => Err(nonsense()),
    }
}

/// Both TLS's, from PEM that the environment holds.
fn tls(certificate: &str, key: &str, authorities: &str) -> Result<Arc<ClientConfig>> {
    for (name, text) in [("CLIENT_CERT", certificate), ("CLIENT_KEY", key), ("SERVER_CA_CERT", authorities)] {
        if text.is_empty() {
            return Err(Error::new(Kind::Usage, format!("{name} is not set")));
        }
    }
    let useless = |name: &str, e| Error::with(Kind::Usage, format!("{name} is invalid"), e);
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| useless("CLIENT_CERT", e))?;
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|e| useless("CLIENT_KEY", e))?;
    let roots = roots(authorities.as_bytes())
        .map_err(|e| Error::with(Kind::Usage, "SERVER_CA_CERT holds no usable certificate", e))?;
    ClientConfig::builder()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map(Arc::new)
        .map_err(|e| Error::with(Kind::Usage, "cannot use CLIENT_CERT with CLIENT_KEY", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_upload_servers() {
        let of = |host: &str, port, path: &str| Receiver { host: host.into(), port, path: path.into() };
        for (url, expected) in [
            (
                "https://cdi-upload-x.ns.svc/v1beta1/upload",
                Some(of("cdi-upload-x.ns.svc", None, "/v1beta1/upload")),
            ),
            ("https://localhost:1/v1beta1/upload", Some(of("localhost", Some(1), "/v1beta1/upload"))),
            ("https://[::1]:1/x", Some(of("::1", Some(1), "/x"))),
            ("http://localhost/v1beta1/upload", None),
            ("localhost", None),
            ("", None),
        ] {
            assert_eq!(receiver(url).ok(), expected, "{url}");
        }
    }

    #[test]
    fn missing_and_malformed_variables_are_named() {
        let source = Source { upload_url: "https://x/y".into(), ..Source::default() };
        let told = |source| Config::from_source(source, Path::new("/"), 0).unwrap_err().chain();
        assert!(told(Source::default()).contains("UPLOAD_URL"));
        assert!(told(source.clone()).contains("CLIENT_CERT is not set"));
        let some = || "x".to_owned();
        let source = Source { client_cert: some(), server_ca_cert: some(), ..source };
        assert!(told(source.clone()).contains("CLIENT_KEY is not set"));
        let source = Source { client_key: api::resource::Confidential(some()), ..source };
        assert!(told(source).contains("is invalid"));
    }
}
