//! Lifetimes of certificates, from the KubeVirt object. Pure.
//!
//! `duration` is the validity of a certificate, `renewBefore` the time before its end at which the next one is made. A
//! CA stays in the bundle for half of that time after the next one was made, so that it is always valid while it is there.

use std::time::Duration;

use api::duration;
use serde_json::Value;
use serve::authority::Intervals;

/// Shortest validity; shorter ones count as this.
const SHORTEST: Duration = Duration::from_secs(600);
const HOUR: Duration = Duration::from_secs(3600);

/// The intervals that the spec of a KubeVirt object asks for. Without any setting: CA 7 days, certificates one day, renewed when a
/// fifth is left.
pub(super) fn intervals(spec: &Value) -> Intervals {
    let settings = &spec["certificateRotateStrategy"]["selfSigned"];
    let read = |value: &Value| value.as_str().and_then(duration::parse).filter(|time| !time.is_zero());
    let lifetime = |kind: &str, old: &Value, default: Duration| {
        let all = read(&settings[kind]["duration"]).or_else(|| read(old)).unwrap_or(default).max(SHORTEST);
        let before = read(&settings[kind]["renewBefore"]).unwrap_or(all / 5);
        // Half of the time remains for the certificate to be used.
        (all, before.min(all / 2))
    };
    let (ca, ca_before) = lifetime("ca", &settings["caRotateInterval"], HOUR * 24 * 7);
    let (server, server_before) = lifetime("server", &settings["certRotateInterval"], HOUR * 24);
    let ca_rotate = ca - ca_before;
    let cert_rotate = (server - server_before).min(ca_rotate);
    Intervals {
        ca_rotate,
        ca_overlap: ca_before / 2,
        cert_rotate,
        cert_overlap: server_before.min(cert_rotate),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(ca: [&str; 2], server: [&str; 2]) -> [u64; 4] {
        let kubevirt = json!({"certificateRotateStrategy": {"selfSigned": {
            "ca": {"duration": ca[0], "renewBefore": ca[1]},
            "server": {"duration": server[0], "renewBefore": server[1]},
        }}});
        let found = intervals(&kubevirt).check().unwrap();
        [found.ca_rotate, found.ca_overlap, found.cert_rotate, found.cert_overlap]
            .map(|time| time.as_secs() / 60)
    }

    #[test]
    fn settings_become_intervals_that_keep_certificates_within_their_ca() {
        for (ca, server, expected) in [
            (["48h0m0s", "24h0m0s"], ["24h0m0s", "12h0m0s"], [1440, 720, 720, 720]),
            (["20m", "10m"], ["20m", "10m"], [10, 5, 10, 10]),
            // Half of the validity remains.
            (["10m", "10m"], ["10m", "10m"], [5, 2, 5, 5]),
            // A certificate is replaced before its CA is.
            (["48h", "40h"], ["47h", "1h"], [1440, 720, 1440, 60]),
            // An unreadable value counts as missing, a too short one as ten minutes.
            (["soon", ""], ["1m", "0s"], [8064, 1008, 8, 2]),
        ] {
            assert_eq!(of(ca, server), expected, "{ca:?} {server:?}");
        }
        let default = intervals(&Value::Null).check().unwrap();
        assert_eq!(default.ca_rotate + default.ca_overlap * 2, HOUR * 24 * 7);
    }
}
