//! Exponential back-off with jitter, and the API server's two ways to write a time.

use std::time::Duration;

use jiff::Timestamp;

/// `metav1.MicroTime` of now: `2026-01-02T03:04:05.678901Z`.
pub fn micro() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string()
}

/// `metav1.Time` of now: `2026-01-02T03:04:05Z`.
pub fn seconds() -> String {
    Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `base`·2ⁿ, at most `most`, less up to a quarter at random so that many clients do not return at the same moment.
pub fn backoff(base: Duration, most: Duration, failures: u32) -> Duration {
    let full = base.saturating_mul(1u32.checked_shl(failures.min(31)).unwrap_or(u32::MAX)).min(most);
    full.mul_f64(1.0 - fastrand::f64() / 4.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_form_that_the_api_server_reads() {
        let (micro, seconds) = (micro(), seconds());
        assert_eq!((micro.len(), seconds.len()), (27, 20), "{micro} {seconds}");
        assert!(micro.parse::<Timestamp>().is_ok() && seconds.parse::<Timestamp>().is_ok());
    }

    #[test]
    fn backoff_doubles_up_to_its_limit() {
        let (base, most) = (Duration::from_millis(5), Duration::from_secs(300));
        for failures in 0..80 {
            let full = Duration::from_millis(5u64 << failures.min(20)).min(most);
            let wait = backoff(base, most, failures);
            assert!(wait <= full && wait >= full.mul_f64(0.749), "{failures}: {wait:?}");
        }
    }
}
