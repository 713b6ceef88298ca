//! Lifetimes of certificates, from the objects KubeVirt and CDI. Pure.
//!
//! `duration` is the validity of a certificate, `renewBefore` the time before its end at which the next one is made. A
//! CA stays in the bundle for half of that time after the next one was made, so that it is always valid while it is there.
//! Values that are too short are raised; the objects' conditions name them.

use std::time::Duration;

use api::duration;
use serde_json::Value;
use serve::authority::Intervals;

/// Shortest validity.
const SHORTEST: Duration = Duration::from_secs(600);
/// Shortest time that the certificates of a transfer must last: it waits for half of that time, and runs as long again.
const TRANSFER: Duration = HOUR;
const HOUR: Duration = Duration::from_secs(3600);

/// Intervals, and settings that were raised: `PATH from VALUE to SECONDS`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lifetimes {
    /// Of an authority, and of the certificates of each kind that it signs.
    pub(crate) intervals: Intervals,
    /// The settings.
    pub(crate) raised: Vec<String>,
}

/// Bounds and defaults of a certificate's validity and renewal.
struct Rule {
    duration: Duration,
    renew_before: Option<Duration>,
    shortest: Duration,
    shortest_before: Duration,
}

/// The lifetimes that the spec of a KubeVirt object asks for. Without any setting: CA 7 days, certificates one day, renewed
/// when a fifth is left.
pub(crate) fn of_kubevirt(spec: &Value) -> Lifetimes {
    let path = "spec.certificateRotateStrategy.selfSigned";
    let settings = &spec["certificateRotateStrategy"]["selfSigned"];
    let rule = |duration: Duration| Rule {
        duration,
        renew_before: None,
        shortest: SHORTEST,
        shortest_before: Duration::ZERO,
    };
    let mut raised = Vec::new();
    let mut settings = settings.clone();
    for (kind, old) in [("ca", "caRotateInterval"), ("server", "certRotateInterval")] {
        if read(&settings[kind]["duration"]).is_none() && settings[old].is_string() {
            settings[kind]["duration"] = settings[old].clone();
        }
    }
    let ca = lifetime(&settings["ca"], &rule(HOUR * 24 * 7), &format!("{path}.ca"), &mut raised);
    let server = lifetime(&settings["server"], &rule(HOUR * 24), &format!("{path}.server"), &mut raised);
    Lifetimes { intervals: intervals(ca, server), raised }
}

/// The lifetimes of servers' and of clients' certificates that the spec of a CDI object asks for. Without any setting: CA
/// 48 hours, certificates 24, renewed when half is left. Certificates last longer than a transfer, which is made with those
/// that it began with.
pub(crate) fn of_cdi(spec: &Value) -> [Lifetimes; 2] {
    let settings = &spec["certConfig"];
    let ca_rule = Rule {
        duration: HOUR * 48,
        renew_before: Some(HOUR * 24),
        shortest: TRANSFER * 4,
        shortest_before: TRANSFER * 2,
    };
    let rule = Rule {
        duration: HOUR * 24,
        renew_before: Some(HOUR * 12),
        shortest: TRANSFER,
        shortest_before: Duration::ZERO,
    };
    let mut raised_ca = Vec::new();
    let ca = lifetime(&settings["ca"], &ca_rule, "spec.certConfig.ca", &mut raised_ca);
    ["server", "client"].map(|kind| {
        let mut raised = if kind == "server" { raised_ca.clone() } else { Vec::new() };
        let leaf = lifetime(&settings[kind], &rule, &format!("spec.certConfig.{kind}"), &mut raised);
        Lifetimes { intervals: intervals(ca, leaf), raised }
    })
}

/// How long a server of a transfer waits for its client. A transfer that begins then has as long again until a certificate
/// ends or leaves the bundle.
pub(crate) fn patience(server: &Intervals) -> Duration {
    server.ca_overlap.min(server.cert_rotate + server.cert_overlap) / 2
}

fn read(value: &Value) -> Option<Duration> {
    value.as_str().and_then(duration::parse).filter(|time| !time.is_zero())
}

/// Validity and time of renewal.
fn lifetime(asked: &Value, rule: &Rule, path: &str, raised: &mut Vec<String>) -> (Duration, Duration) {
    let mut bounded = |field: &str, default: Duration, shortest: Duration| {
        let given = read(&asked[field]);
        if given.is_some_and(|given| given < shortest) {
            let from = asked[field].as_str().unwrap_or_default();
            raised.push(format!("{path}.{field} from {from} to {}s", shortest.as_secs()));
        }
        given.unwrap_or(default).max(shortest)
    };
    let all = bounded("duration", rule.duration, rule.shortest);
    let before = bounded("renewBefore", rule.renew_before.unwrap_or(all / 5), rule.shortest_before);
    // Half of the time remains for the certificate to be used.
    (all, before.min(all / 2))
}

fn intervals((ca, ca_before): (Duration, Duration), (leaf, leaf_before): (Duration, Duration)) -> Intervals {
    let ca_rotate = ca - ca_before;
    let cert_rotate = (leaf - leaf_before).min(ca_rotate);
    Intervals {
        ca_rotate,
        ca_overlap: ca_before / 2,
        cert_rotate,
        cert_overlap: leaf_before.min(cert_rotate),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn minutes(found: Intervals) -> [u64; 4] {
        let found = found.check().unwrap();
        [found.ca_rotate, found.ca_overlap, found.cert_rotate, found.cert_overlap]
            .map(|time| time.as_secs() / 60)
    }

    fn of(ca: [&str; 2], server: [&str; 2]) -> ([u64; 4], Vec<String>) {
        let found = of_kubevirt(&json!({"certificateRotateStrategy": {"selfSigned": {
            "ca": {"duration": ca[0], "renewBefore": ca[1]},
            "server": {"duration": server[0], "renewBefore": server[1]},
        }}}));
        (minutes(found.intervals), found.raised)
    }

    #[test]
    fn settings_become_intervals_that_keep_certificates_within_their_ca() {
        let server = "spec.certificateRotateStrategy.selfSigned.server.duration from 1m to 600s";
        for (ca, server, expected, raised) in [
            (["48h0m0s", "24h0m0s"], ["24h0m0s", "12h0m0s"], [1440, 720, 720, 720], &[][..]),
            (["20m", "10m"], ["20m", "10m"], [10, 5, 10, 10], &[]),
            // Half of the validity remains.
            (["10m", "10m"], ["10m", "10m"], [5, 2, 5, 5], &[]),
            // A certificate is replaced before its CA is.
            (["48h", "40h"], ["47h", "1h"], [1440, 720, 1440, 60], &[]),
            // An unreadable value counts as missing, a too short one as ten minutes.
            (["soon", ""], ["1m", "0s"], [8064, 1008, 8, 2], &[server]),
        ] {
            let found = of(ca, server);
            assert_eq!(
                (found.0, found.1.iter().map(String::as_str).collect::<Vec<_>>()),
                (expected, raised.to_vec()),
                "{ca:?} {server:?}"
            );
        }
        let default = of_kubevirt(&Value::Null).intervals.check().unwrap();
        assert_eq!(default.ca_rotate + default.ca_overlap * 2, HOUR * 24 * 7);
        let old = json!({"caRotateInterval": "100m", "certRotateInterval": "50m"});
        let old = json!({"certificateRotateStrategy": {"selfSigned": old}});
        assert_eq!(minutes(of_kubevirt(&old).intervals), [80, 10, 40, 10]);
    }

    #[test]
    fn certificates_of_transfers_last_longer_than_a_transfer() {
        let times = |ca: [&str; 2], leaf: [&str; 2]| {
            let leaf = json!({"duration": leaf[0], "renewBefore": leaf[1]});
            json!({"certConfig": {"ca": {"duration": ca[0], "renewBefore": ca[1]}, "server": leaf, "client": leaf}})
        };
        for (spec, expected, raised) in [
            (json!({}), [1440, 720, 720, 720], [0, 0]),
            (times(["48h0m0s", "24h0m0s"], ["24h0m0s", "12h0m0s"]), [1440, 720, 720, 720], [0, 0]),
            (times(["96h", "48h"], ["8h", "2h"]), [2880, 1440, 360, 120], [0, 0]),
            (times(["20m", "10m"], ["20m", "10m"]), [120, 60, 50, 10], [3, 1]),
        ] {
            let [server, client] = of_cdi(&spec);
            assert_eq!(
                (minutes(server.intervals), minutes(client.intervals)),
                (expected, expected),
                "{spec}"
            );
            assert_eq!(
                [server.raised.len(), client.raised.len()],
                raised,
                "{:?} {:?}",
                server.raised,
                client.raised
            );
            let wait = patience(&server.intervals);
            assert!(wait * 2 >= TRANSFER && wait * 2 <= server.intervals.ca_overlap);
        }
        let [server, _] = of_cdi(&times(["20m", "10m"], ["2h", "1h"]));
        assert_eq!(server.raised[0], "spec.certConfig.ca.duration from 20m to 14400s");
    }
}
