//! WebSockets of the API server (console, VNC, port-forward): a connection of their own over HTTP/1.1, because the shared
//! HTTP/2 connection carries no upgrades. Refusals before the upgrade are errors with the API server's Status.
//!
//! Not here: the content of messages.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::header::{
    AUTHORIZATION, CONNECTION, HOST, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE, USER_AGENT,
};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::client::Client;
use crate::error::{Error, Kind, Result};

/// How long the connection, and then the answer, may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
/// Longest refusal that is read.
const MOST_REFUSAL: usize = 1 << 20;
/// Longest message that is taken.
const MOST_MESSAGE: usize = 4 << 20;

/// A WebSocket to the API server.
pub type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// Both kinds of connection.
trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

impl Client {
    /// Opens a WebSocket at `path`, which may have a query, with one subprotocol.
    ///
    /// # Errors
    /// By the status of the API server's refusal, [`Kind::Unreachable`], [`Kind::Timeout`].
    pub async fn websocket(&self, path: &str, protocol: &'static str) -> Result<Socket> {
        match self.handshake(path, protocol, false).await {
            Err(error) if error.kind() == Kind::Unauthorized && self.credentials().renewable() => {
                self.handshake(path, protocol, true).await
            }
            opened => opened,
        }
    }

    async fn handshake(&self, path: &str, protocol: &'static str, stale: bool) -> Result<Socket> {
        let shown = path.split('?').next().unwrap_or(path);
        let what = format!("WebSocket {shown}");
        let key = BASE64_STANDARD.encode(fastrand::u128(..).to_be_bytes());
        let uri: Uri = format!("{}{path}", self.server())
            .parse()
            .map_err(|error| Error::caused(Kind::Input, what.clone(), error))?;
        let host = uri.authority().map_or("", http::uri::Authority::as_str);
        let target = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let mut request = Request::builder()
            .uri(target)
            .header(HOST, host)
            .header(USER_AGENT, self.agent())
            .header(CONNECTION, "Upgrade")
            .header(UPGRADE, "websocket")
            .header(SEC_WEBSOCKET_VERSION, "13")
            .header(SEC_WEBSOCKET_KEY, &key)
            .header(SEC_WEBSOCKET_PROTOCOL, protocol);
        if let Some(token) = self.credentials().header(stale).await? {
            request = request.header(AUTHORIZATION, token);
        }
        let request = request.body(Empty::<Bytes>::new());
        let request = request.map_err(|error| Error::caused(Kind::Input, what.clone(), error))?;
        let late = |limit: Duration| Error::new(Kind::Timeout, format!("{what}: no answer in {limit:?}"));
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, self.dial(&uri)).await;
        let stream = connected.map_err(|_| late(CONNECT_TIMEOUT))??;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(&what, error))?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a WebSocket's connection to the API server broke");
            }
        });
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, sender.send_request(request)).await;
        let answer = answer.map_err(|_| late(ANSWER_TIMEOUT))?.map_err(|error| unreachable(&what, error))?;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Err(refused(&what, answer).await);
        }
        check(&what, &answer, &key, protocol)?;
        let stream = hyper::upgrade::on(answer).await.map_err(|error| unreachable(&what, error))?;
        let limits = WebSocketConfig::default()
            .max_message_size(Some(MOST_MESSAGE))
            .max_frame_size(Some(MOST_MESSAGE));
        Ok(WebSocketStream::from_raw_socket(TokioIo::new(stream), Role::Client, Some(limits)).await)
    }

    /// A connection to the API server, with TLS unless its address is an http URL.
    async fn dial(&self, uri: &Uri) -> Result<Box<dyn Connection>> {
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
        let secure = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let failed = |error| {
            let text = format!("cannot reach the API server at {host}:{port}");
            Error::caused(Kind::Unreachable, text, error)
        };
        let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        if !secure {
            return Ok(Box::new(stream));
        }
        let name = self.server_name().unwrap_or(host).to_owned();
        let name = ServerName::try_from(name)
            .map_err(|error| Error::caused(Kind::Config, format!("{host} is not a host name"), error))?;
        // Without ALPN the API server speaks HTTP/1.1.
        let stream =
            TlsConnector::from(Arc::clone(self.tls())).connect(name, stream).await.map_err(failed)?;
        Ok(Box::new(stream))
    }
}

fn unreachable(what: &str, error: hyper::Error) -> Error {
    Error::caused(Kind::Unreachable, format!("{what}: the connection to the API server broke"), error)
}

async fn refused(what: &str, answer: Response<Incoming>) -> Error {
    let code = answer.status();
    let body = tokio::time::timeout(ANSWER_TIMEOUT, Limited::new(answer.into_body(), MOST_REFUSAL).collect());
    // Without its text it is a refusal, too.
    let body = body.await.ok().and_then(std::result::Result::ok);
    Error::refused(what, code, &body.map(http_body_util::Collected::to_bytes).unwrap_or_default())
}

/// Whether the answer belongs to this request and agrees on the subprotocol.
fn check(what: &str, answer: &Response<Incoming>, key: &str, protocol: &str) -> Result<()> {
    let header = |name| answer.headers().get(name).map(HeaderValue::as_bytes);
    let accepted = header(SEC_WEBSOCKET_ACCEPT) == Some(derive_accept_key(key.as_bytes()).as_bytes());
    let agreed = header(SEC_WEBSOCKET_PROTOCOL).is_none_or(|chosen| chosen == protocol.as_bytes());
    if accepted && agreed {
        return Ok(());
    }
    let text =
        format!("{what}: the answer is not that of a WebSocket server with the subprotocol {protocol}");
    Err(Error::new(Kind::Unreadable, text))
}
