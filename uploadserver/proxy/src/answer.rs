//! The only place where the proxy's outcomes become status codes and bodies, and where answers get the headers by which
//! browsers show them to pages of other origins (Fetch, 3.2). Statuses are upstream's (`pkg/uploadproxy`). Not here:
//! answers of upload servers, which pass as they are but for those headers.

use std::pin::Pin;
use std::task::{Context, Poll};

use api::upload::PROGRESS_HEADER;
use api::upload::resume::{COMPLETE_HEADER, LENGTH_HEADER, LIMIT_HEADER, OFFSET_HEADER, VERSION_HEADER};
use api::upload::token::TokenError;
use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS, CONTENT_TYPE,
    HeaderMap, HeaderValue, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::task::JoinHandle;

/// The body of an answer.
pub(crate) type Answer = Response<Reply>;

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Reply {
    /// Ours.
    Text(Full<Bytes>),
    /// An upload server's, and its connection.
    Passed {
        /// Its bytes.
        body: Incoming,
        /// Ends with this.
        _running: Running,
    },
}

/// The connection to an upload server, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Running(pub(crate) JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match self.get_mut() {
            Self::Text(text) => Pin::new(text).poll_frame(context).map_err(|never| match never {}),
            Self::Passed { body, .. } => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Text(text) => text.is_end_stream(),
            Self::Passed { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Text(text) => text.size_hint(),
            Self::Passed { body, .. } => body.size_hint(),
        }
    }
}

/// Why a request does not come to an upload server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nothing there is.
    NotFound,
    /// No token, or not in the way it is shown.
    NoToken,
    /// A token that fails its verification.
    Token(TokenError),
    /// A good token for something else.
    WrongClaims,
    /// The claim cannot take it, now or ever.
    NotReady(String),
    /// Our own certificate or the servers' authorities are of no use.
    Unprepared,
    /// The upload server does not answer, or its certificate is not the expected one.
    Unreachable,
    /// The upload server went away without an answer.
    Broken,
    /// The client sent nothing for too long.
    Silent,
}

/// The answer to a request that is not passed on.
pub(crate) fn refusal(refusal: &Refusal) -> Answer {
    match refusal {
        Refusal::NotFound => text(StatusCode::NOT_FOUND, ""),
        Refusal::NoToken => text(
            StatusCode::BAD_REQUEST,
            "the header Authorization: Bearer TOKEN is missing; request a token as an UploadTokenRequest",
        ),
        Refusal::Token(error) => text(StatusCode::UNAUTHORIZED, &error.to_string()),
        Refusal::WrongClaims => text(
            StatusCode::BAD_REQUEST,
            "the token is not an upload token: request one as an UploadTokenRequest",
        ),
        Refusal::NotReady(why) => text(StatusCode::SERVICE_UNAVAILABLE, why),
        Refusal::Unprepared => text(
            StatusCode::INTERNAL_SERVER_ERROR,
            "the proxy's certificates cannot be used; its log has the reason",
        ),
        Refusal::Unreachable => text(
            StatusCode::BAD_GATEWAY,
            "the upload server cannot be reached; the proxy's log has the reason",
        ),
        Refusal::Broken => text(
            StatusCode::BAD_GATEWAY,
            "the upload server ended without an answer; see the log of the claim's upload pod",
        ),
        Refusal::Silent => {
            text(StatusCode::REQUEST_TIMEOUT, "no data arrived for too long; send the upload again")
        }
    }
}

/// An answer of plain text.
pub(crate) fn text(status: StatusCode, words: &str) -> Answer {
    let mut words = words.to_owned();
    if !words.is_empty() && status != StatusCode::OK {
        words.push('\n');
    }
    let mut answer = Response::new(Reply::Text(Full::new(Bytes::from(words))));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    // Reasons contain names that users chose.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

/// Rights of a page of another origin: all, because the token decides. `*` does not include Authorization, so the answer
/// names the requested headers.
pub(crate) fn preflight(asked: &HeaderMap) -> Answer {
    let mut answer = text(StatusCode::NO_CONTENT, "");
    let headers = answer.headers_mut();
    headers.remove(CONTENT_TYPE);
    let methods = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE");
    headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
    let wanted = asked.get(ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    let wanted = wanted.unwrap_or(HeaderValue::from_static("authorization, content-type"));
    headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, wanted);
    headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    headers.insert(VARY, HeaderValue::from_name(ACCESS_CONTROL_REQUEST_HEADERS));
    answer
}

/// Shows an answer to pages of every origin.
pub(crate) fn open<B>(answer: &mut Response<B>) {
    let headers = answer.headers_mut();
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    let shown = [
        "location",
        VERSION_HEADER,
        COMPLETE_HEADER,
        OFFSET_HEADER,
        LENGTH_HEADER,
        LIMIT_HEADER,
        PROGRESS_HEADER,
    ];
    if let Ok(shown) = HeaderValue::try_from(shown.join(", ")) {
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, shown);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_have_upstreams_statuses() {
        for (what, status) in [
            (Refusal::NotFound, 404),
            (Refusal::NoToken, 400),
            (Refusal::Token(TokenError::Forged), 401),
            (Refusal::Token(TokenError::Expired), 401),
            (Refusal::WrongClaims, 400),
            (Refusal::NotReady("why".into()), 503),
            (Refusal::Unprepared, 500),
            (Refusal::Unreachable, 502),
            (Refusal::Broken, 502),
            (Refusal::Silent, 408),
        ] {
            assert_eq!(refusal(&what).status(), status, "{what:?}");
        }
    }
}
