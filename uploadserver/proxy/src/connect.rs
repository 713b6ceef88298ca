//! Connections to upload servers, with the proxy's certificate. Not here: what is sent, and the client `push`.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serve::peer::{Stream, dial, dial_first, roots, secure};

use serve::failure::{Error, Kind, Result};

/// Ports of an upload server: its pod's, which a headless Service shows, and that of a Service with an address.
const PORTS: [u16; 2] = [api::names::UPLOAD_PORT, 443];

/// How often files are read that are just being replaced, and how long is waited in between.
const READINGS: u32 = 5;
const BETWEEN: Duration = Duration::from_millis(100);

/// A certificate, with those that lead to an authority, and its key.
type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The proxy's identity at upload servers.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    /// Our certificate, PEM.
    pub(crate) certificate: PathBuf,
    /// Its key, PEM.
    pub(crate) key: PathBuf,
    /// A file of lines `address:port name`, where there is no DNS of a cluster.
    pub(crate) hosts: Option<PathBuf>,
    /// Content of both files when they were last usable.
    pub(crate) last: Arc<Mutex<Option<Pair>>>,
}

impl Own {
    /// TLS to upload servers that one of `authorities` (PEM) signed, with the certificate that the files hold now, or held
    /// when they were last usable.
    ///
    /// # Errors
    /// [`Kind::Process`] when the files were never usable; [`Kind::Usage`] without authorities.
    pub(crate) async fn tls(&self, authorities: &str) -> Result<Arc<ClientConfig>> {
        let roots = Arc::new(roots(authorities.as_bytes())?);
        let mut tries = 1..READINGS;
        let error = loop {
            let read = self.read().and_then(|pair| Ok((config(&roots, &pair)?, pair)));
            match read {
                Ok((config, pair)) => {
                    *self.last() = Some(pair);
                    return Ok(config);
                }
                // The old certificate with the new key, for example.
                Err(_) if tries.next().is_some() => tokio::time::sleep(BETWEEN).await,
                Err(error) => break error,
            }
        };
        match &*self.last() {
            Some(pair) => {
                tracing::warn!(
                    error = error.chain(),
                    "the proxy's certificate cannot be reloaded; the loaded one stays in use"
                );
                config(&roots, pair)
            }
            None => Err(error),
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<Pair>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> Result<Pair> {
        let useless =
            |path: &Path, e| Error::with(Kind::Process, format!("cannot use {}", path.display()), e);
        let pem = fs::read(&self.certificate).map_err(|e| unread(&self.certificate, e))?;
        let chain = CertificateDer::pem_slice_iter(&pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| useless(&self.certificate, e))?;
        let pem = fs::read(&self.key).map_err(|e| unread(&self.key, e))?;
        let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|e| useless(&self.key, e))?;
        Ok((chain, key))
    }

    /// Connects to the upload server of this name.
    ///
    /// # Errors
    /// [`Kind::Unreachable`].
    pub(crate) async fn connect(&self, host: &str, tls: Arc<ClientConfig>) -> Result<Stream> {
        let known = self.hosts.as_deref().map(|file| known(file, host)).transpose()?.flatten();
        if let Some(address) = known {
            return Ok(secure(dial(&address.ip().to_string(), address.port()).await?, host, tls).await?);
        }
        Ok(secure(dial_first(host, PORTS).await?, host, tls).await?)
    }
}

/// TLS with this client certificate and these authorities.
fn config(roots: &Arc<RootCertStore>, (chain, key): &Pair) -> Result<Arc<ClientConfig>> {
    ClientConfig::builder()
        .with_root_certificates(roots.clone())
        .with_client_auth_cert(chain.clone(), key.clone_key())
        .map(Arc::new)
        .map_err(|e| Error::with(Kind::Process, "cannot use the proxy's client certificate with its key", e))
}

fn unread(path: &Path, error: std::io::Error) -> Error {
    Error::with(Kind::Process, format!("cannot read {}", path.display()), error)
}

/// The address of a name in a file of them.
fn known(file: &Path, host: &str) -> Result<Option<SocketAddr>> {
    let text = fs::read_to_string(file).map_err(|e| unread(file, e))?;
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    Ok(lines.find(|(_, name)| *name == host).and_then(|(address, _)| address.parse().ok()))
}
