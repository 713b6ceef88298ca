//! HTTP/1 upgrades (RFC 9110, 7.8): a stream of bytes in place of the connection. Not here: WebSocket
//! ([`crate::websocket`]).

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{HeaderMap, Response, StatusCode};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;

use crate::route::{Answer, Call, Refusal, whole};
use crate::server::Busy;

/// The bytes behind an upgrade. Its connection counts as busy until it is dropped.
pub type Stream = TokioIo<Upgraded>;

/// A stream that exists once the answer is sent.
#[derive(Debug)]
pub struct Pending {
    upgrade: OnUpgrade,
    busy: Busy,
}

impl Pending {
    /// Waits until the answer is sent and the connection is a stream. The guard keeps it from being evicted.
    ///
    /// # Errors
    /// When the connection ends before.
    pub async fn stream(self) -> hyper::Result<(Stream, Busy)> {
        Ok((TokioIo::new(self.upgrade.await?), self.busy))
    }
}

/// Accepts an upgrade to `protocol`. The answer (101) must be returned by the handler; the stream exists after that, so it
/// is to be awaited by another task.
///
/// # Errors
/// [`Refusal::Upgrade`] when the request asks for no upgrade, or another one.
pub fn accept(call: &mut Call, protocol: &'static str) -> Result<(Answer, Pending), Refusal> {
    if !has_token(&call.head.headers, UPGRADE.as_str(), protocol)
        || !has_token(&call.head.headers, CONNECTION.as_str(), "upgrade")
    {
        return Err(Refusal::Upgrade("this path needs an Upgrade request"));
    }
    let pending = pending(call)?;
    let mut answer = Response::new(whole(""));
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    answer.headers_mut().insert(UPGRADE, HeaderValue::from_static(protocol));
    Ok((answer, pending))
}

/// The stream that follows the answer of a call.
pub(crate) fn pending(call: &mut Call) -> Result<Pending, Refusal> {
    let upgrade = call.head.extensions.remove::<OnUpgrade>();
    let upgrade = upgrade.ok_or(Refusal::Upgrade("this connection cannot be upgraded: use HTTP/1.1"))?;
    Ok(Pending { upgrade, busy: call.connection().busy() })
}

/// Whether a header that is a list (RFC 9110, 5.6.1) has `token`, without regard to case.
pub(crate) fn has_token(headers: &HeaderMap, name: &str, token: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|one| one.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_in_lists_and_repeated_headers() {
        let mut headers = HeaderMap::new();
        headers.append(CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        headers.append(CONNECTION, HeaderValue::from_static("x"));
        for (token, expected) in [("upgrade", true), ("X", true), ("keep", false), ("", false)] {
            assert_eq!(has_token(&headers, "connection", token), expected, "{token}");
        }
    }
}
