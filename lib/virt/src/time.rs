//! Points in time as objects write them: RFC 3339, whole seconds, UTC.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Seconds since 1970 as objects write them, such as `2026-11-21T17:30:05Z`.
pub fn text(seconds: u64) -> String {
    let point = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    point.unwrap_or(Timestamp::MAX).to_string()
}

/// The seconds of a text that [`text`] wrote.
pub fn seconds(text: &str) -> Option<u64> {
    u64::try_from(text.parse::<Timestamp>().ok()?.as_second()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_and_read() {
        for (seconds_since, written) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_795_282_205, "2026-11-21T17:30:05Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(text(seconds_since), written);
            assert_eq!(seconds(written), Some(seconds_since));
        }
        assert_eq!(seconds("yesterday"), None);
    }
}
