//! Points in time as objects write them: RFC 3339, whole seconds, UTC.

use jiff::Timestamp;

/// `seconds` since 1970 as RFC 3339.
pub(super) fn text(seconds: u64) -> String {
    let point = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    point.unwrap_or(Timestamp::MAX).to_string()
}

/// Seconds since 1970 of an RFC 3339 text; `None` if it is none.
pub(super) fn seconds(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<Timestamp>().ok()?.as_second()).ok()
}
