//! Connections that the proxy makes: an address, TLS, HTTP/1.1. Not here: what is sent, and the client `push`.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::error::{Error, Kind, Result};

/// Ports of an upload server: its pod's, which a headless Service shows, and that of a Service with an address.
const PORTS: [u16; 2] = [api::names::UPLOAD_PORT, 443];
/// How long a port may take to answer before the next one is tried.
const NEXT_PORT: Duration = Duration::from_secs(3);

/// How often files are read that are just being replaced, and how long is waited in between.
const READINGS: u32 = 5;
const BETWEEN: Duration = Duration::from_millis(100);

/// Bytes that wait in a connection because the other end does not read: one record of TLS.
const UNSENT: usize = 16 << 10;

/// Longest wait for a connection, and for its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// One connection.
pub(crate) type Stream = TokioIo<TlsStream<TcpStream>>;

/// A certificate, with those that lead to an authority, and its key.
type Pair = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Who we are to upload servers.
#[derive(Clone, Debug)]
pub(crate) struct Own {
    /// Our certificate, PEM.
    pub(crate) certificate: PathBuf,
    /// Its key, PEM.
    pub(crate) key: PathBuf,
    /// A file of lines `address:port name`, where there is no DNS of a cluster.
    pub(crate) hosts: Option<PathBuf>,
    /// What both files held when they were last of use.
    pub(crate) last: Arc<Mutex<Option<Pair>>>,
}

impl Own {
    /// How upload servers are spoken to, by files as they are now, or were when they were last of use: whoever is signed by
    /// one of `authorities`, PEM.
    ///
    /// # Errors
    /// [`Kind::Process`] when the files were never of use, or there are no authorities.
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
                // The certificate of before with the key of after, say.
                Err(_) if tries.next().is_some() => tokio::time::sleep(BETWEEN).await,
                Err(error) => break error,
            }
        };
        match &*self.last() {
            Some(pair) => {
                tracing::warn!(
                    error = error.chain(),
                    "our certificate cannot be read anew; the old one stays"
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
            return secure(dial(address).await?, host, tls).await;
        }
        secure(dial_first(host, PORTS).await?, host, tls).await
    }
}

/// TLS by this certificate with whom these authorities have signed.
fn config(roots: &Arc<RootCertStore>, (chain, key): &Pair) -> Result<Arc<ClientConfig>> {
    ClientConfig::builder()
        .with_root_certificates(roots.clone())
        .with_client_auth_cert(chain.clone(), key.clone_key())
        .map(Arc::new)
        .map_err(|e| Error::with(Kind::Process, "cannot use our certificate", e))
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

/// The authorities of a text in PEM.
///
/// # Errors
/// When there is none, or one that is none.
pub(crate) fn roots(pem: &[u8]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate
            .map_err(|e| Error::with(Kind::Process, "the authorities' certificates are no PEM", e))?;
        roots.add(certificate).map_err(|e| Error::with(Kind::Process, "cannot use an authority", e))?;
    }
    match roots.is_empty() {
        true => Err(Error::new(Kind::Process, "there is no authority's certificate")),
        false => Ok(roots),
    }
}

/// Connects.
///
/// # Errors
/// [`Kind::Unreachable`].
pub(crate) async fn dial(
    address: impl tokio::net::ToSocketAddrs + std::fmt::Debug + Clone,
) -> Result<TcpStream> {
    let failed = || format!("cannot connect to {address:?}");
    match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address.clone())).await {
        Ok(Ok(stream)) => {
            serve::server::tune(&stream);
            Ok(stream)
        }
        Ok(Err(error)) => Err(Error::with(Kind::Unreachable, failed(), error)),
        Err(_) => Err(Error::new(Kind::Unreachable, failed() + ": no answer")),
    }
}

/// Connects to the first of a host's ports that answers.
///
/// # Errors
/// [`Kind::Unreachable`].
pub(crate) async fn dial_first(host: &str, ports: [u16; 2]) -> Result<TcpStream> {
    let mut last = None;
    for port in ports {
        match tokio::time::timeout(NEXT_PORT, dial((host, port))).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = Some(error),
            Err(_) => {}
        }
    }
    Err(last.unwrap_or_else(|| Error::new(Kind::Unreachable, format!("{host} does not answer"))))
}

/// Speaks TLS with who must be `host`.
///
/// # Errors
/// [`Kind::Unreachable`].
pub(crate) async fn secure(stream: TcpStream, host: &str, tls: Arc<ClientConfig>) -> Result<Stream> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|e| Error::with(Kind::Unreachable, format!("{host} is no name of a server"), e))?;
    match tokio::time::timeout(CONNECT_TIMEOUT, TlsConnector::from(tls).connect(name, stream)).await {
        Ok(Ok(mut stream)) => {
            stream.get_mut().1.set_buffer_limit(Some(UNSENT));
            Ok(TokioIo::new(stream))
        }
        Ok(Err(error)) => Err(Error::with(Kind::Unreachable, format!("no TLS with {host}"), error)),
        Err(_) => Err(Error::new(Kind::Unreachable, format!("no TLS with {host}: no answer"))),
    }
}
