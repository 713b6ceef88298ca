//! Connections to upload servers and proxies: an address, then TLS. Not here: requests ([`crate::push`]), and the
//! trusted authorities and the own certificate, which a program's configuration of TLS holds.

use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Longest wait for a connection, and for its handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for one port before the next one is tried.
const NEXT_PORT: Duration = Duration::from_secs(3);
/// Between two rounds over a host's ports.
const NEXT_ROUND: Duration = Duration::from_millis(200);
/// Bytes that wait in a connection because the other end does not read: one record of TLS.
const UNSENT: usize = 16 << 10;
/// Default of `--answer-timeout`, the longest wait for the answer of an upload server that has received everything: it still
/// writes the disk to its end.
pub const ANSWER_TIMEOUT: &str = "15m";

/// Why there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The name or the certificates are malformed.
    Usage,
    /// The server does not answer, or is not the one that was asked for.
    Unreachable,
}

/// Why there is no connection.
pub type Error = error::Error<Kind>;
type Result<T> = std::result::Result<T, Error>;

/// One connection.
pub type Stream = TokioIo<TlsStream<TcpStream>>;

/// The authorities of a text in PEM.
///
/// # Errors
/// [`Kind::Usage`]: it holds no certificate, or one that is malformed.
pub fn roots(pem: &[u8]) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|error| {
            Error::with(Kind::Usage, "the certificates of the server's authority are not PEM", error)
        })?;
        roots.add(certificate).map_err(|error| {
            Error::with(Kind::Usage, "a certificate cannot be used as that of an authority", error)
        })?;
    }
    match roots.is_empty() {
        true => Err(Error::new(Kind::Usage, "the certificates of the server's authority are empty")),
        false => Ok(roots),
    }
}

/// Connects to a port of a host, given by name or address.
///
/// # Errors
/// [`Kind::Unreachable`].
pub async fn dial(host: &str, port: u16) -> Result<TcpStream> {
    let failed = || match host.contains(':') {
        true => format!("cannot connect to [{host}]:{port}"),
        false => format!("cannot connect to {host}:{port}"),
    };
    match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port))).await {
        Ok(Ok(stream)) => {
            crate::server::tune(&stream);
            Ok(stream)
        }
        Ok(Err(error)) => Err(Error::with(Kind::Unreachable, failed(), error)),
        Err(_) => Err(Error::new(Kind::Unreachable, failed() + ": no answer")),
    }
}

/// Connects to the first of a host's ports that answers. The name of a Service leads to its pod only some time after the
/// pod is ready, so the ports are tried again for [`CONNECT_TIMEOUT`].
///
/// # Errors
/// [`Kind::Unreachable`].
pub async fn dial_first(host: &str, ports: [u16; 2]) -> Result<TcpStream> {
    let until = Instant::now() + CONNECT_TIMEOUT;
    loop {
        let mut last = None;
        for port in ports {
            match tokio::time::timeout(NEXT_PORT, dial(host, port)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => last = Some(error),
                Err(_) => {}
            }
        }
        if Instant::now() + NEXT_ROUND >= until {
            let silent = || Error::new(Kind::Unreachable, format!("{host} does not answer"));
            return Err(last.unwrap_or_else(silent));
        }
        tokio::time::sleep(NEXT_ROUND).await;
    }
}

/// The value of an option `--answer-timeout`.
///
/// # Errors
/// It is no duration, or zero.
pub fn answer_timeout(text: &str) -> std::result::Result<Duration, String> {
    let timeout = api::duration::parse(text).filter(|timeout| !timeout.is_zero());
    timeout.ok_or_else(|| "not a duration above zero, such as 15m or 90s".to_owned())
}

/// The answer to a request to `host`, which must come within `timeout` after the request is sent whole. `option` names what
/// sets the timeout.
///
/// # Errors
/// [`Kind::Unreachable`]: it does not come.
pub async fn answer<T>(
    answer: impl Future<Output = T>,
    sent: impl Future<Output = ()>,
    timeout: Duration,
    host: &str,
    option: &str,
) -> Result<T> {
    within(answer, sent, timeout).await.ok_or_else(|| {
        let what = format!(
            "the upload server {host} received everything but did not answer within {} s: see its log; if it is still \
             writing, allow more time with {option}",
            timeout.as_secs_f32()
        );
        Error::new(Kind::Unreachable, what)
    })
}

/// The answer to a request without a body, which must come within `timeout`.
///
/// # Errors
/// [`Kind::Unreachable`]: it does not come.
pub async fn reply<T>(answer: impl Future<Output = T>, timeout: Duration, host: &str) -> Result<T> {
    within(answer, std::future::ready(()), timeout).await.ok_or_else(|| {
        let what = format!("the upload server {host} did not answer within {} s", timeout.as_secs_f32());
        Error::new(Kind::Unreachable, what)
    })
}

/// What `answer` gives within `timeout` after `sent`.
async fn within<T>(
    answer: impl Future<Output = T>,
    sent: impl Future<Output = ()>,
    timeout: Duration,
) -> Option<T> {
    let late = async {
        sent.await;
        tokio::time::sleep(timeout).await;
    };
    tokio::select! {
        biased;
        answer = answer => Some(answer),
        () = late => None,
    }
}

/// Begins TLS with a server that must be `host`.
///
/// # Errors
/// [`Kind::Usage`]: `host` is not a server's name. [`Kind::Unreachable`]: the handshake fails.
pub async fn secure(stream: TcpStream, host: &str, tls: Arc<ClientConfig>) -> Result<Stream> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| Error::with(Kind::Usage, format!("{host} is not a host name"), error))?;
    match tokio::time::timeout(CONNECT_TIMEOUT, TlsConnector::from(tls).connect(name, stream)).await {
        Ok(Ok(mut stream)) => {
            stream.get_mut().1.set_buffer_limit(Some(UNSENT));
            Ok(TokioIo::new(stream))
        }
        Ok(Err(error)) => {
            Err(Error::with(Kind::Unreachable, format!("cannot set up TLS with {host}"), error))
        }
        Err(_) => Err(Error::new(Kind::Unreachable, format!("cannot set up TLS with {host}: no answer"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_that_opens_later_is_found() {
        // Both ports of a host that has nothing but this address.
        let host = "127.93.7.1";
        let server = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(500)).await;
            tokio::net::TcpListener::bind((host, 18443)).await.unwrap().accept().await.unwrap();
        });
        dial_first(host, [18442, 18443]).await.unwrap();
        server.await.unwrap();
    }

    #[tokio::test]
    async fn an_answer_is_waited_for_from_the_end_of_the_request_on() {
        let ms = Duration::from_millis;
        let after = |time| async move {
            tokio::time::sleep(time).await;
        };
        // However long the request takes.
        assert!(answer(after(ms(200)), after(ms(150)), ms(100), "h", "-t").await.is_ok());
        assert!(answer(after(ms(50)), std::future::pending(), ms(1), "h", "-t").await.is_ok());
        let silent = std::future::pending::<()>;
        let error = answer(silent(), after(ms(10)), ms(100), "h", "-t").await.unwrap_err();
        assert_eq!(error.kind(), Kind::Unreachable);
        assert_eq!(
            error.to_string(),
            "the upload server h received everything but did not answer within 0.1 s: see its log; if it is still writing, \
             allow more time with -t"
        );
        let error = reply(silent(), ms(10), "h").await.unwrap_err();
        assert_eq!(error.to_string(), "the upload server h did not answer within 0.01 s");
    }

    #[test]
    fn timeouts_of_answers() {
        assert_eq!(answer_timeout(ANSWER_TIMEOUT), Ok(Duration::from_secs(900)));
        assert_eq!(answer_timeout("1.5s"), Ok(Duration::from_millis(1500)));
        for bad in ["", "0s", "15", "-1s", "soon"] {
            assert!(answer_timeout(bad).is_err(), "{bad}");
        }
    }
}
