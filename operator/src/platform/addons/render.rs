//! The MAC pool of a `NetworkAddonsConfig`: its settings, and the spec that is kept. Pure.

use api::addons::{MacPool, NetworkAddonsSpec};
use api::core::NodePlacement;
use api::hyperconverged::TlsProfile;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::check::text;
use crate::install::macpool::Pool;
use crate::platform::replicas::wanted;

/// Label of nodes of the control plane, and key of their taint.
const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// The range in effect: the one given, else the one applied before, else one of the object's own: `02:XX:XX` by its UID.
pub fn range(given: &MacPool, before: Option<&MacPool>, uid: &str) -> (String, String) {
    let of = |pool: &MacPool| Some((text(&pool.range_start)?.to_owned(), text(&pool.range_end)?.to_owned()));
    of(given).or_else(|| before.and_then(of)).unwrap_or_else(|| {
        let hash = Sha256::digest(uid);
        let prefix = format!("02:{:02x}:{:02x}", hash[0], hash[1]);
        (format!("{prefix}:00:00:00"), format!("{prefix}:ff:ff:ff"))
    })
}

/// The pull policy in effect: the one given, else the one applied before, else `IfNotPresent`.
fn pull_policy(spec: &NetworkAddonsSpec, before: Option<&NetworkAddonsSpec>) -> String {
    let before = before.and_then(|before| text(&before.image_pull_policy));
    text(&spec.image_pull_policy).or(before).unwrap_or("IfNotPresent").to_owned()
}

/// Replicas of the MAC pool in a cluster of so many nodes, of which `workers` take pods: two or one, as for the operator itself.
/// `present`: those of its Deployment.
pub fn replicas(nodes: usize, workers: usize, present: u32) -> u32 {
    wanted(nodes, workers, present).clamp(1, 2)
}

/// The MAC pool that a spec asks for, of so many replicas.
pub fn pool(
    spec: &NetworkAddonsSpec,
    before: Option<&NetworkAddonsSpec>,
    uid: &str,
    replicas: u32,
) -> Option<Pool> {
    let given = spec.kube_mac_pool.as_ref()?;
    let mut pool = Pool {
        range: range(given, before.and_then(|before| before.kube_mac_pool.as_ref()), uid),
        replicas,
        pull_policy: Some(pull_policy(spec, before)),
        tls: spec.tls_security_profile.as_ref().map(tls).unwrap_or_default(),
        ..Pool::default()
    };
    if let Some(times) = &spec.self_sign_configuration {
        let all = [
            &times.ca_rotate_interval,
            &times.ca_overlap_interval,
            &times.cert_rotate_interval,
            &times.cert_overlap_interval,
        ];
        for ((_, value), given) in pool.intervals.iter_mut().zip(all) {
            if let Some(given) = text(given) {
                given.clone_into(value);
            }
        }
    }
    let infra = spec.placement_configuration.as_ref().and_then(|one| one.infra.as_ref());
    pool.placement = infra.map_or_else(preferred, placement);
    Some(pool)
}

/// The part of a pod's spec that a placement is.
fn placement(given: &NodePlacement) -> Value {
    let mut placement = json!({});
    if !given.node_selector.is_empty() {
        placement["nodeSelector"] = json!(given.node_selector);
    }
    if let Some(affinity) = &given.affinity {
        placement["affinity"] = json!(affinity);
    }
    if !given.tolerations.is_empty() {
        placement["tolerations"] = json!(given.tolerations);
    }
    placement
}

/// Where nothing else is given, nodes of the control plane are preferred, as upstream: VMs cannot be written without the pool.
fn preferred() -> Value {
    let exists = json!({"key": CONTROL_PLANE, "operator": "Exists"});
    json!({
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 10, "preference": {"matchExpressions": [exists]}},
        ]}},
        "tolerations": [{"key": CONTROL_PLANE, "operator": "Exists", "effect": "NoSchedule"}],
    })
}

/// The spec to keep: the one given, with the range and the pull policy in effect.
pub fn kept(spec: &NetworkAddonsSpec, before: Option<&NetworkAddonsSpec>, pool: Option<&Pool>) -> Value {
    let mut kept = json!(spec);
    kept["imagePullPolicy"] = json!(pull_policy(spec, before));
    if let Some(Pool { range: (first, last), .. }) = pool {
        kept["kubeMacPool"] = json!({"rangeStart": first, "rangeEnd": last});
    }
    kept
}

/// Arguments of the MAC pool for a TLS profile. Without one it speaks TLS 1.3 alone, as upstream's `Modern`.
fn tls(profile: &TlsProfile) -> Vec<String> {
    let least = |version: &str| format!("--tls-min-version={version}");
    match (profile.kind.as_deref(), &profile.custom) {
        (Some("Old" | "Intermediate"), _) => vec![least("VersionTLS12")],
        (Some("Custom"), Some(custom)) => {
            let version = custom.min_tls_version.as_deref().unwrap_or("VersionTLS12");
            let mut arguments = vec![least(version)];
            let suites: Vec<String> = custom.ciphers.iter().filter_map(|name| go_name(name)).collect();
            if !suites.is_empty() {
                arguments.push(format!("--tls-cipher-suites={}", suites.join(",")));
            }
            arguments
        }
        _ => Vec::new(),
    }
}

/// Go's name of a cipher suite of TLS 1.2 that OpenSSL names, of those that the MAC pool speaks.
fn go_name(openssl: &str) -> Option<String> {
    let (exchange, cipher) = openssl
        .strip_prefix("ECDHE-ECDSA-")
        .map(|cipher| ("ECDHE_ECDSA", cipher))
        .or_else(|| openssl.strip_prefix("ECDHE-RSA-").map(|cipher| ("ECDHE_RSA", cipher)))?;
    let cipher = match cipher {
        "AES128-GCM-SHA256" => "AES_128_GCM_SHA256",
        "AES256-GCM-SHA384" => "AES_256_GCM_SHA384",
        "CHACHA20-POLY1305" => "CHACHA20_POLY1305_SHA256",
        _ => return None,
    };
    Some(format!("TLS_{exchange}_WITH_{cipher}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(value: Value) -> NetworkAddonsSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn ranges_are_given_or_kept_or_of_the_object() {
        let of = |start: &str, end: &str| MacPool {
            range_start: Some(start.to_owned()),
            range_end: Some(end.to_owned()),
        };
        let (a, b) =
            (of("02:00:00:00:00:00", "02:00:00:00:00:ff"), of("02:01:00:00:00:00", "02:01:00:00:00:ff"));
        let first = |pool: (String, String)| pool.0;
        assert_eq!(first(range(&a, Some(&b), "u")), "02:00:00:00:00:00");
        assert_eq!(first(range(&MacPool::default(), Some(&b), "u")), "02:01:00:00:00:00");
        let (start, end) = range(&MacPool::default(), None, "u");
        assert_eq!((&start[..9], &start[9..]), (&end[..9], "00:00:00"));
        assert_ne!(start, first(range(&MacPool::default(), None, "v")), "two clusters have two ranges");
        assert!(api::net::Range::parse(&start, &end).is_ok());
    }

    #[test]
    fn a_node_in_maintenance_takes_no_replica_away() {
        for (nodes, workers, present, expected) in
            [(1, 1, 2, 1), (2, 2, 1, 2), (2, 1, 2, 2), (2, 1, 1, 1), (3, 3, 5, 2), (2, 1, 0, 1)]
        {
            assert_eq!(replicas(nodes, workers, present), expected, "{nodes} {workers} {present}");
        }
    }

    #[test]
    fn settings_reach_the_pool_and_its_range_is_kept() {
        assert_eq!(pool(&spec(json!({"multus": {}})), None, "u", 3), None);
        let asked = spec(json!({
            "kubeMacPool": {},
            "imagePullPolicy": "Never",
            "selfSignConfiguration": {"caRotateInterval": "1h", "caOverlapInterval": "30m",
                "certRotateInterval": "40m", "certOverlapInterval": "20m"},
            "placementConfiguration": {"infra": {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]}},
            "tlsSecurityProfile": {"type": "Custom", "custom": {"minTLSVersion": "VersionTLS12",
                "ciphers": ["ECDHE-ECDSA-CHACHA20-POLY1305", "DES-CBC3-SHA", "ECDHE-RSA-AES128-GCM-SHA256"]}},
        }));
        let one = pool(&asked, None, "u", 1).unwrap();
        assert_eq!((one.replicas, one.pull_policy.as_deref()), (1, Some("Never")));
        assert_eq!(one.intervals.map(|one| one.1).join(" "), "1h 30m 40m 20m");
        assert_eq!(
            one.placement,
            json!({"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]})
        );
        assert_eq!(
            one.tls.join(" "),
            "--tls-min-version=VersionTLS12 --tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,\
             TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"
        );
        let two = pool(&asked, None, "u", 2).unwrap();
        assert_eq!(two.replicas, 2);
        let before = serde_json::from_value(kept(&asked, None, Some(&two))).unwrap();
        let later = pool(&spec(json!({"kubeMacPool": {}})), Some(&before), "another object", 2).unwrap();
        assert_eq!(later.range, two.range, "the range outlives the object");
        assert_eq!(later.tls.len(), 0);
        assert_eq!(later.pull_policy.as_deref(), Some("Never"), "a policy that is not given any more stays");
        let first = pool(&spec(json!({"kubeMacPool": {}})), None, "u", 2).unwrap();
        assert_eq!(first.pull_policy.as_deref(), Some("IfNotPresent"));
        assert_eq!(first.placement["tolerations"][0]["key"], CONTROL_PLANE);
        let nodes = &first.placement["affinity"]["nodeAffinity"];
        let preferred = &nodes["preferredDuringSchedulingIgnoredDuringExecution"][0]["preference"];
        assert_eq!(preferred["matchExpressions"][0], json!({"key": CONTROL_PLANE, "operator": "Exists"}));
        let anywhere = spec(json!({"kubeMacPool": {}, "placementConfiguration": {"infra": {}}}));
        assert_eq!(pool(&anywhere, None, "u", 2).unwrap().placement, json!({}));
    }
}
