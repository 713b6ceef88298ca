//! `cni check-node`: what this node's kernel offers to the plugins, found by trying each thing in a namespace that goes
//! away with the process. The host's own links and rules are never touched; a kernel may load a module for a try.

mod probe;

use serde_json::json;

use crate::error::Error;
use crate::format::Format;

/// Everything that is tried, in its order.
pub(crate) const NAMES: [&str; 10] = [
    "netlink",
    "bridge",
    "veth",
    "vlan-filtering",
    "tun",
    "ipv6",
    "nft-inet",
    "nft-bridge",
    "nft-masquerade",
    "iptables",
];

/// Without these no attachment can be made.
const REQUIRED: [&str; 3] = ["netlink", "bridge", "veth"];

/// One thing that was tried.
pub(super) struct Finding {
    name: &'static str,
    /// The plugins' purpose of the feature.
    purpose: &'static str,
    /// Why it is missing, if it is.
    missing: Option<String>,
    /// What offers it.
    remedy: &'static str,
}

/// Whether a bridge could filter VLANs.
///
/// # Errors
/// [`crate::Kind::Kernel`] when it could not; [`crate::Kind::Namespace`] when there is no namespace to try in.
pub(crate) fn offers_vlan_filtering() -> Result<(), Error> {
    probe::vlan_filtering()
}

/// Tries all; the report, and whether all that is required is there.
///
/// # Errors
/// [`crate::Kind::Namespace`] when the kernel gives no namespace to try in.
pub(crate) fn run(required: &[String], format: Format) -> Result<(String, bool), Error> {
    let findings = probe::all()?;
    let is_required = |name: &str| match required {
        [] => REQUIRED.contains(&name),
        required => required.iter().any(|one| one == name),
    };
    let good = !findings.iter().any(|finding| finding.missing.is_some() && is_required(finding.name));
    let report = match format {
        Format::Text => {
            let lines = findings.iter().map(|finding| {
                let Finding { name, purpose, missing, remedy } = finding;
                let mark = match missing {
                    None => "ok",
                    Some(_) if is_required(name) => "MISSING",
                    Some(_) => "missing",
                };
                let why =
                    missing.as_ref().map(|why| format!(": {why}; it takes {remedy}")).unwrap_or_default();
                format!("{mark:<8} {name:<15} {purpose}{why}\n")
            });
            lines.collect()
        }
        Format::Json => {
            let list: Vec<_> = findings
                .iter()
                .map(|finding| {
                    json!({
                        "name": finding.name,
                        "purpose": finding.purpose,
                        "offered": finding.missing.is_none(),
                        "required": is_required(finding.name),
                        "reason": finding.missing,
                        "remedy": finding.missing.as_ref().map(|_| finding.remedy),
                    })
                })
                .collect();
            format!("{:#}\n", json!({"good": good, "checks": list}))
        }
    };
    Ok((report, good))
}
