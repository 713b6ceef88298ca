//! Rules of a `NetworkAddonsConfig`. Pure.

use std::time::Duration;

use api::addons::{NAME, NetworkAddonsSpec, SelfSigned};
use api::duration;
use api::net::Range;

/// All problems of a spec, each with the path of its field.
pub fn problems(spec: &NetworkAddonsSpec) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(policy) = &spec.image_pull_policy
        && !["Always", "IfNotPresent", "Never"].contains(&policy.as_str())
    {
        found.push(format!("spec.imagePullPolicy: {policy:?} is not Always, IfNotPresent or Never"));
    }
    if let Some(pool) = &spec.kube_mac_pool {
        match (text(&pool.range_start), text(&pool.range_end)) {
            (None, None) => {}
            (Some(start), Some(end)) => {
                if let Err(error) = Range::parse(start, end) {
                    found.push(format!("spec.kubeMacPool: {error}"));
                }
            }
            (None, Some(_)) => found.push("spec.kubeMacPool.rangeStart: missing, rangeEnd is set".to_owned()),
            (Some(_), None) => found.push("spec.kubeMacPool.rangeEnd: missing, rangeStart is set".to_owned()),
        }
    }
    if let Some(times) = &spec.self_sign_configuration {
        of_times(times, &mut found);
    }
    if spec.multus_dynamic_networks.is_some() && spec.multus.is_none() {
        found.push("spec.multusDynamicNetworks: needs spec.multus".to_owned());
    }
    if let Some(profile) = &spec.tls_security_profile
        && profile.kind.as_deref() == Some("Custom")
        && profile.custom.is_none()
    {
        found.push("spec.tlsSecurityProfile.custom: missing, type is Custom".to_owned());
    }
    found
}

/// Reason and text for an object of this name, if it is not the one that is deployed.
pub fn ignored(name: &str) -> Option<(&'static str, String)> {
    let text = || format!("metadata.name: {name:?} is ignored; the object {NAME:?} is deployed");
    (name != NAME).then(|| ("FailedToValidate", text()))
}

/// Changes that are refused once components were deployed, each with the path of its field. `before`: the spec that was
/// applied last.
pub fn refused_changes(before: Option<&NetworkAddonsSpec>, spec: &NetworkAddonsSpec) -> Vec<String> {
    let old = before.and_then(|before| text(&before.image_pull_policy));
    let (Some(old), Some(new)) = (old, text(&spec.image_pull_policy)) else { return Vec::new() };
    if old == new {
        return Vec::new();
    }
    vec![format!(
        "spec.imagePullPolicy: components were deployed with {old}, which cannot be changed to {new}"
    )]
}

/// A text that is given.
pub(super) fn text(field: &Option<String>) -> Option<&str> {
    field.as_deref().filter(|text| !text.is_empty())
}

fn of_times(times: &SelfSigned, found: &mut Vec<String>) {
    let all = [
        ("caRotateInterval", text(&times.ca_rotate_interval)),
        ("caOverlapInterval", text(&times.ca_overlap_interval)),
        ("certRotateInterval", text(&times.cert_rotate_interval)),
        ("certOverlapInterval", text(&times.cert_overlap_interval)),
    ];
    if all.iter().all(|(_, text)| text.is_none()) {
        return;
    }
    let mut read = [Duration::ZERO; 4];
    let before = found.len();
    for ((name, text), slot) in all.iter().zip(&mut read) {
        let path = format!("spec.selfSignConfiguration.{name}");
        match text.map(|text| (text, duration::parse(text))) {
            None => found.push(format!("{path}: missing, others are set")),
            Some((_, Some(time))) if !time.is_zero() => *slot = time,
            Some((text, _)) => found.push(format!("{path}: {text:?} is not a duration above zero")),
        }
    }
    let [authority, authority_overlap, certificate, certificate_overlap] = read;
    if found.len() > before {
        return;
    }
    for (long, short, names) in [
        (authority, authority_overlap, ("caRotateInterval", "caOverlapInterval")),
        (authority, certificate, ("caRotateInterval", "certRotateInterval")),
        (certificate, certificate_overlap, ("certRotateInterval", "certOverlapInterval")),
    ] {
        if long < short {
            found.push(format!("spec.selfSignConfiguration.{}: shorter than {}", names.0, names.1));
        }
    }
}

/// Components of a spec that are not deployed: field, and why.
pub fn unsupported(spec: &NetworkAddonsSpec) -> Vec<(&'static str, &'static str)> {
    let mut found = Vec::new();
    let mut add = |asked: bool, field, why| {
        if asked {
            found.push((field, why));
        }
    };
    add(spec.ovs.is_some(), "spec.ovs", "the Open vSwitch plugin is not deployed; install ovs-cni");
    add(spec.macvtap.is_some(), "spec.macvtap", "no device plugin for macvtap is deployed");
    add(spec.kube_secondary_dns.is_some(), "spec.kubeSecondaryDNS", "no DNS server is deployed");
    add(
        spec.kubevirt_ipam_controller.is_some(),
        "spec.kubevirtIpamController",
        "addresses of primary networks are not managed",
    );
    add(
        spec.multus_dynamic_networks.is_some(),
        "spec.multusDynamicNetworks",
        "running pods are not attached to further networks; VMs are, by the node agent",
    );
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn spec(value: Value) -> NetworkAddonsSpec {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn invalid_specs_are_named_by_their_fields() {
        let times = |ca: &str, overlap: &str, cert: &str, short: &str| {
            json!({"selfSignConfiguration": {"caRotateInterval": ca, "caOverlapInterval": overlap,
                "certRotateInterval": cert, "certOverlapInterval": short}})
        };
        for (value, wanted) in [
            (json!({}), ""),
            (json!({"kubeMacPool": {}, "multus": {}, "linuxBridge": {}}), ""),
            (json!({"kubeMacPool": {"rangeStart": "", "rangeEnd": ""}}), ""),
            (
                json!({"kubeMacPool": {"rangeStart": "02:00:00:00:00:00", "rangeEnd": "02:00:00:00:00:ff"}}),
                "",
            ),
            (json!({"imagePullPolicy": "Sometimes"}), "spec.imagePullPolicy"),
            (json!({"kubeMacPool": {"rangeStart": "02:00:00:00:00:00"}}), "spec.kubeMacPool.rangeEnd"),
            (json!({"kubeMacPool": {"rangeEnd": "02:00:00:00:00:00"}}), "spec.kubeMacPool.rangeStart"),
            (json!({"kubeMacPool": {"rangeStart": "here", "rangeEnd": "there"}}), "spec.kubeMacPool"),
            (
                // Every octet but the first grows: upstream takes it and its pool does not start.
                json!({"kubeMacPool": {"rangeStart": "04:00:00:00:00:00", "rangeEnd": "02:ff:ff:ff:ff:ff"}}),
                "spec.kubeMacPool",
            ),
            (
                json!({"kubeMacPool": {"rangeStart": "01:00:00:00:00:00", "rangeEnd": "02:ff:ff:ff:ff:ff"}}),
                "spec.kubeMacPool",
            ),
            (times("48h0m0s", "24h0m0s", "24h0m0s", "12h0m0s"), ""),
            (times("", "24h0m0s", "24h0m0s", "12h0m0s"), "spec.selfSignConfiguration.caRotateInterval"),
            (times("48h", "0s", "24h0m0s", "12h0m0s"), "spec.selfSignConfiguration.caOverlapInterval"),
            (times("48h", "24h", "soon", "12h0m0s"), "spec.selfSignConfiguration.certRotateInterval"),
            (times("12h", "24h", "8h", "4h"), "spec.selfSignConfiguration.caRotateInterval"),
            (times("24h", "12h", "36h", "4h"), "spec.selfSignConfiguration.caRotateInterval"),
            (times("24h", "12h", "8h", "9h"), "spec.selfSignConfiguration.certRotateInterval"),
            (json!({"multusDynamicNetworks": {}}), "spec.multusDynamicNetworks"),
            (json!({"tlsSecurityProfile": {"type": "Custom"}}), "spec.tlsSecurityProfile.custom"),
        ] {
            let found = problems(&spec(value.clone()));
            let fields: Vec<&str> = found.iter().filter_map(|one| one.split(": ").next()).collect();
            assert_eq!(fields.join(" "), wanted, "{value}: {found:?}");
        }
    }

    #[test]
    fn objects_of_other_names_are_ignored() {
        assert_eq!(ignored("cluster"), None);
        let (reason, text) = ignored("second").unwrap();
        assert_eq!(reason, "FailedToValidate");
        assert!(text.contains("\"second\" is ignored") && text.contains("\"cluster\""), "{text}");
    }

    #[test]
    fn components_that_are_not_deployed_are_named() {
        let all = json!({"ovs": {}, "macvtap": {}, "kubeSecondaryDNS": {}, "kubevirtIpamController": {},
            "multus": {}, "multusDynamicNetworks": {}, "linuxBridge": {}, "kubeMacPool": {},
            "placementConfiguration": {"infra": {"nodeSelector": {"a": "b"}}, "workloads": {"nodeSelector": {"a": "b"}}}});
        let found: Vec<&str> = unsupported(&spec(all)).into_iter().map(|one| one.0).collect();
        let wanted = [
            "spec.ovs",
            "spec.macvtap",
            "spec.kubeSecondaryDNS",
            "spec.kubevirtIpamController",
            "spec.multusDynamicNetworks",
        ];
        assert_eq!(found, wanted);
        let supported = json!({"multus": {}, "linuxBridge": {}, "kubeMacPool": {},
            "placementConfiguration": {"infra": {"nodeSelector": {"a": "b"}}, "workloads": {}}});
        assert!(unsupported(&spec(supported)).is_empty());
    }

    #[test]
    fn the_pull_policy_stays_once_components_were_deployed() {
        let of = |policy: &str| spec(json!({"imagePullPolicy": policy}));
        for (before, after, refused) in [
            (None, of("Always"), false),
            (Some(spec(json!({}))), of("Always"), false),
            (Some(of("Always")), of("Always"), false),
            (Some(of("Always")), spec(json!({})), false),
            (Some(of("Always")), of("Never"), true),
        ] {
            let found = refused_changes(before.as_ref(), &after);
            assert_eq!(!found.is_empty(), refused, "{found:?}");
            assert!(found.iter().all(|one| one.starts_with("spec.imagePullPolicy: ")), "{found:?}");
        }
    }
}
