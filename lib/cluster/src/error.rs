//! The error of every call: a kind to act on, a sentence, the API server's Status where it sent one, the source below.
//!
//! A type of its own rather than `error::Error<Kind>`, because of the Status that travels with it.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Kind of failure, as far as callers act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// 404: the object, its namespace or its kind does not exist.
    NotFound,
    /// 409 with reason AlreadyExists: a create of an object that exists.
    AlreadyExists,
    /// 409: the object changed since it was read, or another field manager owns a field.
    Conflict,
    /// 410: the resource version or continue token is too old.
    Gone,
    /// 422 or 400: the API server refuses the object or patch as it is.
    Invalid,
    /// 403: no permission, a quota, or an admission refusal.
    Forbidden,
    /// 401: the credentials are not accepted.
    Unauthorized,
    /// 429: still too many requests after the retries.
    TooManyRequests,
    /// Any 5xx answer.
    Server,
    /// No connection, or it broke before the answer was complete.
    Unreachable,
    /// No complete answer in time.
    Timeout,
    /// The answer is not what the API promises: not JSON, too long, another type.
    Unreadable,
    /// Configuration or credentials cannot be used.
    Config,
    /// The caller's own input cannot be sent: a name that is no path segment, a body that is no JSON.
    Input,
    /// Any other status.
    Other,
}

/// The `Status` object of the API server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// For programs, in CamelCase: `NotFound`, `AlreadyExists`, `Expired`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The HTTP status.
    pub code: u16,
    /// More about the object and the causes.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub details: Value,
}

/// An error of this library.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    status: Option<Box<Status>>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// Results of this library.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `kind` with a sentence: the fault and its place.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), status: None, source: None }
    }

    /// The same with the error below it.
    pub fn caused(
        kind: Kind,
        message: impl Into<String>,
        source: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self { kind, message: message.into(), status: None, source: Some(source.into()) }
    }

    /// The error of an answer with a status that is not a success. `body` may hold a Status object.
    pub(crate) fn refused(what: &str, code: StatusCode, body: &[u8]) -> Self {
        let status = serde_json::from_slice::<Status>(body).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(body.get(..512).unwrap_or(body)).trim().to_owned(),
            ..Status::default()
        });
        let status = Status { code: code.as_u16(), ..status };
        let message = match status.message.as_str() {
            "" => format!("{what}: the API server answers {code}"),
            text => format!("{what}: {text}"),
        };
        Self { kind: kind(&status), message, status: Some(Box::new(status)), source: None }
    }

    /// The kind of failure, to match on.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The API server's Status, if it sent one.
    pub fn status(&self) -> Option<&Status> {
        self.status.as_deref()
    }

    /// The HTTP status of the answer, if there was one.
    pub fn code(&self) -> Option<u16> {
        self.status.as_ref().map(|status| status.code)
    }

    /// Whether the object or kind does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind == Kind::NotFound
    }

    /// Whether a create found the object present.
    pub fn is_already_exists(&self) -> bool {
        self.kind == Kind::AlreadyExists
    }

    /// Whether the object changed since it was read: read it again and decide again.
    pub fn is_conflict(&self) -> bool {
        self.kind == Kind::Conflict
    }

    /// Whether the same call may succeed later without any change by the caller.
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, Kind::Unreachable | Kind::Timeout | Kind::TooManyRequests | Kind::Server)
    }

    /// The sentence and those of all errors below it, as one text.
    pub fn chain(&self) -> String {
        error::chain(self)
    }

    /// How long the API server asks to wait: `details.retryAfterSeconds`.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        let seconds = self.status.as_ref()?.details.get("retryAfterSeconds")?.as_u64()?;
        Some(Duration::from_secs(seconds))
    }

    pub(crate) fn with_kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }
}

fn kind(status: &Status) -> Kind {
    match (status.code, status.reason.as_str()) {
        (404, _) => Kind::NotFound,
        (409, "AlreadyExists") => Kind::AlreadyExists,
        (409, _) => Kind::Conflict,
        (410, _) => Kind::Gone,
        (400 | 422, _) => Kind::Invalid,
        (403, _) => Kind::Forbidden,
        (401, _) => Kind::Unauthorized,
        (429, _) => Kind::TooManyRequests,
        (500.., _) => Kind::Server,
        _ => Kind::Other,
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_follow_code_and_reason() {
        for (code, reason, kind) in [
            (404, "NotFound", Kind::NotFound),
            (409, "AlreadyExists", Kind::AlreadyExists),
            (409, "Conflict", Kind::Conflict),
            (410, "Expired", Kind::Gone),
            (400, "BadRequest", Kind::Invalid),
            (422, "Invalid", Kind::Invalid),
            (403, "Forbidden", Kind::Forbidden),
            (401, "Unauthorized", Kind::Unauthorized),
            (429, "TooManyRequests", Kind::TooManyRequests),
            (500, "InternalError", Kind::Server),
            (503, "", Kind::Server),
            (418, "", Kind::Other),
        ] {
            let body = format!(
                r#"{{"kind":"Status","message":"no","reason":"{reason}","code":{code},"details":{{"retryAfterSeconds":3}}}}"#
            );
            let error = Error::refused("GET /x", StatusCode::from_u16(code).unwrap(), body.as_bytes());
            assert_eq!(error.kind(), kind, "{code} {reason}");
            assert_eq!(error.to_string(), "GET /x: no");
            assert_eq!(error.retry_after(), Some(Duration::from_secs(3)));
        }
    }

    #[test]
    fn answers_without_a_status_object_keep_their_text() {
        let code = StatusCode::BAD_GATEWAY;
        let text = |body: &str| Error::refused("GET /x", code, body.as_bytes()).to_string();
        assert_eq!(text("no route\n"), "GET /x: no route");
        assert_eq!(text(""), "GET /x: the API server answers 502 Bad Gateway");
        assert!(text(&"é".repeat(9000)).len() < 1200);
    }
}
