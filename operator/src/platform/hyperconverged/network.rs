//! Spec of the NetworkAddonsConfig object of a `HyperConverged`. Pure. Not in it: components that are not deployed and
//! that upstream's operator always asks for.

use serde_json::{Value, json};

use super::input::{Input, extend, value};

/// Group and version of the kind.
pub(super) const API_VERSION: &str = api::addons::API_VERSION;

pub(super) fn spec(input: &Input<'_>) -> Value {
    let [[ca, ca_before], [server, server_before]] = input.lifetimes();
    let [infra, workload] = input.placements();
    let networking = input.spec().networking.clone().unwrap_or_default();
    let mut spec = json!({
        "multus": {},
        "linuxBridge": {},
        "kubeMacPool": networking.kube_mac_pool_configuration.as_ref().map_or_else(|| json!({}), value),
        "selfSignConfiguration": {
            "caRotateInterval": ca,
            "caOverlapInterval": ca_before,
            "certRotateInterval": server,
            "certOverlapInterval": server_before,
        },
        "tlsSecurityProfile": input.tls_profile(),
    });
    if input.gate("deployKubeSecondaryDNS") {
        let mut names = json!({});
        extend(&mut names, [("nameServerIP", value(&networking.kube_secondary_dns_name_server_ip))]);
        spec["kubeSecondaryDNS"] = names;
    }
    let mut placement = json!({});
    extend(
        &mut placement,
        [("infra", infra.unwrap_or_default()), ("workloads", workload.unwrap_or_default())],
    );
    extend(&mut spec, [("placementConfiguration", placement)]);
    spec
}
