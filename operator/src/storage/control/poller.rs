//! One request to the polling process: HTTP/1.1 over mutual TLS.

use std::sync::Arc;
use std::time::Duration;

use api::poll::{self, Answer, Request};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serve::authority::Identity;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a poll may take; the other side ends earlier.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest answer.
const MOST_ANSWER: usize = 64 << 10;

/// Asks the process at `address`; its certificate names `server`.
pub(super) async fn ask(
    address: &str,
    server: &str,
    trusted: &str,
    identity: &Identity,
    request: &Request,
) -> Answer {
    let polled =
        tokio::time::timeout(ANSWER_TIMEOUT, call(address, server, trusted, identity, request)).await;
    let failed = |why: String| {
        Answer::Failed(format!("the polling process (Service {}) cannot be reached: {why}", poll::SERVICE))
    };
    match polled {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => failed(error::chain(&*error)),
        Err(_) => failed("no answer in time".to_owned()),
    }
}

async fn call(
    address: &str,
    server: &str,
    trusted: &str,
    identity: &Identity,
    request: &Request,
) -> Result<Answer, Box<dyn std::error::Error + Send + Sync>> {
    let tls = serve::tls::client_config(trusted, Some((&identity.certificate, &identity.key)))?;
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect((address, 443))).await??;
    let name = ServerName::try_from(server.to_owned())?;
    let stream = TlsConnector::from(Arc::new(tls)).connect(name, stream).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "the connection to the polling process broke");
        }
    });
    let body = serde_json::to_vec(request)?;
    let request = http::Request::post(poll::PATH)
        .header(HOST, server)
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))?;
    let answer = sender.send_request(request).await?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), MOST_ANSWER).collect().await?.to_bytes();
    if !status.is_success() {
        return Err(format!("{status}: {}", String::from_utf8_lossy(&body).trim()).into());
    }
    Ok(serde_json::from_slice(&body)?)
}
