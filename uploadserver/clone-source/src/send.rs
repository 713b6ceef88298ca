//! The stream on its way to an upload server: a request of chunks, the answer. Not here: what the stream is made of
//! (`pack`).

use std::sync::Arc;

use api::names;
use api::upload::{CLONE_SIZE_HEADER, CONTENT_TYPE_HEADER, CloneOf};
use http::header::{CONTENT_TYPE, HOST};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use rustls::ClientConfig;
use serve::body::Made;

use crate::config::Receiver;
use serve::failure::{Error, Kind, Result};
use serve::peer::{Stream, dial, dial_first, secure};

/// Bytes of an answer that are read.
const ANSWER_MAX: usize = 64 << 10;
/// Ports of an upload server where the URL gives none: that of a Service with an address, and its pod's, which a headless
/// Service shows.
const PORTS: [u16; 2] = [443, names::UPLOAD_PORT];

/// Sends the stream, of a device of `size` bytes where it is one, and waits until the server has made a volume of it.
///
/// # Errors
/// [`Kind::Unreachable`]; [`Kind::Refused`] with the server's text.
pub(crate) async fn send(
    to: &Receiver,
    tls: &Arc<ClientConfig>,
    kind: CloneOf,
    size: u64,
    body: Made,
) -> Result<()> {
    let mut request = Request::post(&to.path)
        .header(HOST, &to.host)
        .header(CONTENT_TYPE, "application/octet-stream")
        .header(CONTENT_TYPE_HEADER, kind.header());
    // How long an archive will be is not known before it is made.
    if kind == CloneOf::Device {
        request = request.header(CLONE_SIZE_HEADER, size);
    }
    let request =
        request.body(body).map_err(|e| Error::with(Kind::Usage, "UPLOAD_URL has no valid path", e))?;
    let broke = |e| {
        Error::with(Kind::Unreachable, format!("the connection to the upload server {} broke", to.host), e)
    };
    let stream = connect(to, tls).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await.map_err(broke)?;
    let connection = tokio::spawn(connection);
    let answered = async {
        let (head, body) = sender.send_request(request).await.map_err(broke)?.into_parts();
        // Words that do not come whole are words too few.
        let words = Limited::new(body, ANSWER_MAX).collect().await;
        let words = words.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let words = String::from_utf8_lossy(&words);
        match head.status {
            StatusCode::OK => Ok(()),
            status => {
                let what = format!("the upload server answers {}: {}", status.as_u16(), words.trim());
                Err(Error::new(Kind::Refused, what))
            }
        }
    };
    let answered = answered.await;
    connection.abort();
    answered
}

async fn connect(to: &Receiver, tls: &Arc<ClientConfig>) -> Result<Stream> {
    let host = to.host.as_str();
    let stream = match to.port {
        Some(port) => dial(host, port).await?,
        None => dial_first(host, PORTS).await?,
    };
    Ok(secure(stream, host, tls.clone()).await?)
}
