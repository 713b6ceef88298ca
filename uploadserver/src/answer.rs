//! The only place where outcomes become status codes, bodies and termination messages. Statuses and words are
//! upstream's (`pkg/uploadserver`): "Saving stream failed: …", 400 for what does not fit, 500 for the rest.

use api::import::Outcome;
use bytes::Bytes;
use disk_image::volume::error::contract_chain;
use disk_image::volume::plan::CONVERT;
use disk_image::volume::{Done, Error, Kind};
use http::header::{CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, LOCATION};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::Full;

use api::upload::resume::{COMPLETED, MISMATCH};

/// The body of an answer.
pub(crate) type Answer = Response<Full<Bytes>>;

/// Why a request is not even looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nothing there is.
    NotFound,
    /// No certificate, or another client's.
    Stranger,
    /// An upload is running.
    Busy,
    /// An upload was successful.
    Finished,
    /// The deadline has passed.
    Late,
    /// No resumable upload of that name.
    Unknown,
    /// Another request has resumed this upload.
    Overtaken,
    /// A PATCH of another content type.
    NotPartial,
}

/// The answer to a refused request.
pub(crate) fn refusal(refusal: Refusal) -> Answer {
    let (status, text) = match refusal {
        Refusal::NotFound => (StatusCode::NOT_FOUND, ""),
        Refusal::Stranger => (
            StatusCode::UNAUTHORIZED,
            "the client's certificate is missing or not the upload proxy's: upload through the proxy",
        ),
        Refusal::Busy => (
            StatusCode::SERVICE_UNAVAILABLE,
            "another upload to this volume is running; retry when it has ended",
        ),
        Refusal::Finished => (
            StatusCode::CONFLICT,
            "an upload to this volume has succeeded already; make another claim for another image",
        ),
        Refusal::Late => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the server's deadline has passed; retry, another server takes over",
        ),
        Refusal::Unknown => (StatusCode::NOT_FOUND, "no upload of this address is in progress; start over"),
        Refusal::Overtaken => (
            StatusCode::CONFLICT,
            "another request has resumed this upload; ask for its offset with HEAD before sending more",
        ),
        Refusal::NotPartial => (
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "a PATCH needs the header Content-Type: application/partial-upload",
        ),
    };
    answer(status, text)
}

/// An answer of plain text.
pub(crate) fn answer(status: StatusCode, text: impl Into<String>) -> Answer {
    let mut text: String = text.into();
    if !text.is_empty() {
        text.push('\n');
    }
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// The page of the probe, of the metrics.
pub(crate) fn page(text: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(text.into()));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}

/// The end of an upload.
pub(crate) fn ended(outcome: &Result<Done, Error>) -> Answer {
    match outcome {
        Ok(done) => match warned(&done.warnings) {
            warnings if warnings.is_empty() => Response::new(Full::default()),
            warnings => answer(StatusCode::OK, warnings.join("\n")),
        },
        Err(error) => failed(error),
    }
}

/// Warnings as they are shown.
fn warned(warnings: &[String]) -> Vec<String> {
    warnings.iter().map(|warning| format!("warning: {warning}")).collect()
}

/// A failure. The connection ends with it: the rest of the upload is of no use.
pub(crate) fn failed(error: &Error) -> Answer {
    let chain = contract_chain(error);
    let (status, why) = match error.kind() {
        Kind::NoRoom => (
            StatusCode::BAD_REQUEST,
            format!("effective image size is larger than the reported available storage: {chain}"),
        ),
        Kind::NeedsScratch => (StatusCode::BAD_REQUEST, format!("{chain}; {CONVERT}")),
        Kind::Usage | Kind::Checksum => (StatusCode::BAD_REQUEST, chain),
        Kind::Connect | Kind::Digest | Kind::Refused | Kind::Target | Kind::Process | Kind::Stopped => {
            (StatusCode::INTERNAL_SERVER_ERROR, chain)
        }
    };
    let mut answer = answer(status, format!("Saving stream failed: {why}"));
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// How far a resumable upload is.
pub(crate) fn resumable(status: StatusCode, state: HeaderMap, location: Option<&str>) -> Answer {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    *answer.headers_mut() = state;
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(location) = location.and_then(|location| HeaderValue::from_str(location).ok()) {
        answer.headers_mut().insert(LOCATION, location);
    }
    answer
}

/// An upload that cannot be resumed there: a problem (RFC 9457).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    /// The server has fewer or more bytes.
    Offset {
        /// The server's offset.
        expected: u64,
        /// The request's offset.
        provided: u64,
    },
    /// It has got everything.
    Complete,
}

/// The answer to a PATCH that does not fit.
pub(crate) fn problem(problem: Problem, state: HeaderMap) -> Answer {
    let body = match problem {
        Problem::Offset { expected, provided } => format!(
            r#"{{"type":"{MISMATCH}","title":"the request's offset differs from the upload's","expected-offset":{expected},"provided-offset":{provided}}}"#
        ),
        Problem::Complete => format!(r#"{{"type":"{COMPLETED}","title":"the upload is complete"}}"#),
    };
    let status = match problem {
        Problem::Offset { .. } => StatusCode::CONFLICT,
        Problem::Complete => StatusCode::BAD_REQUEST,
    };
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = status;
    *answer.headers_mut() = state;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

/// How the server ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ended {
    /// With an upload.
    Uploaded {
        /// It was a clone.
        clone: bool,
        /// All blocks of the target are allocated.
        preallocated: bool,
        /// Warnings about its content.
        warnings: Vec<String>,
    },
    /// Without one.
    DeadlinePassed,
}

/// The termination message.
pub(crate) fn termination(ended: &Ended) -> String {
    let outcome = match ended {
        Ended::Uploaded { clone, preallocated, warnings } => {
            let word = if *clone { "Clone Complete" } else { "Upload Complete" };
            let message =
                std::iter::once(word.to_owned()).chain(warned(warnings)).collect::<Vec<_>>().join("; ");
            Outcome { preallocation_applied: Some(*preallocated), ..Outcome::message(message) }
        }
        Ended::DeadlinePassed => {
            Outcome { deadline_passed: Some(true), ..Outcome::message("Deadline Passed") }
        }
    };
    outcome.to_line()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_upstreams_statuses() {
        for (kind, status, words) in [
            (Kind::NoRoom, 400, "Saving stream failed: effective image size is larger than"),
            (Kind::NeedsScratch, 400, "Saving stream failed: why; convert the image first (qemu-img"),
            (Kind::Usage, 400, "Saving stream failed: why"),
            (Kind::Checksum, 400, "Saving stream failed: why"),
            (Kind::Refused, 500, "Saving stream failed: why"),
            (Kind::Process, 500, "Saving stream failed: why"),
            (Kind::Target, 500, "Saving stream failed: why"),
            (Kind::Stopped, 500, "Saving stream failed: why"),
        ] {
            let answer = failed(&Error::new(kind, "why"));
            assert_eq!(answer.status(), status, "{kind:?}");
            assert!(format!("{:?}", answer.body()).contains(words), "{:?}", answer.body());
        }
    }

    #[test]
    fn the_termination_message_is_upstreams() {
        for (ended, line) in [
            (
                Ended::Uploaded { clone: false, preallocated: false, warnings: Vec::new() },
                r#"{"preallocationApplied":false,"message":"Upload Complete"}"#,
            ),
            (
                Ended::Uploaded { clone: true, preallocated: true, warnings: Vec::new() },
                r#"{"preallocationApplied":true,"message":"Clone Complete"}"#,
            ),
            (
                Ended::Uploaded { clone: false, preallocated: false, warnings: vec!["odd".to_owned()] },
                r#"{"preallocationApplied":false,"message":"Upload Complete; warning: odd"}"#,
            ),
            (Ended::DeadlinePassed, r#"{"deadlinePassed":true,"message":"Deadline Passed"}"#),
        ] {
            assert_eq!(termination(&ended), line);
        }
    }
}
