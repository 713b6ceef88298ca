//! Subresources that this release refuses, with upstream's status and the reason: the feature gate is off, or the guest or
//! the node lacks what it needs. They are authorized like others.

use std::sync::Arc;

use cluster::Key;
use http::{Method, StatusCode};
use serde_json::Value;
use serve::route::Call;

use super::Site;
use super::instance::INSTANCES;
use super::status::{Answered, Refusal};

/// How errors name an instance.
const KIND: &str = "virtualmachineinstance";

/// Why a subresource of an instance is refused.
#[derive(Clone, Copy, Debug)]
enum Why {
    /// The instance lacks a device: 400.
    Device(&'static str),
    /// The instance is not in a state for it: 409.
    State(&'static str),
    /// This release does not serve it: 404.
    Unserved(&'static str),
}

/// A subresource of instances.
#[derive(Debug)]
pub(super) struct Row {
    /// Last part of the path.
    pub(super) name: &'static str,
    /// Whether it is read; changed otherwise.
    pub(super) read: bool,
    /// The feature gate without which it is refused with 400, as upstream.
    gate: &'static str,
    why: Why,
}

const fn row(name: &'static str, read: bool, gate: &'static str, why: Why) -> Row {
    Row { name, read, gate, why }
}

const SEV: &str = "WorkloadEncryptionSEV";
const UNMEASURED: Why = Why::State("Attestation not requested for VMI");
const BACKUP: &str = "IncrementalBackup";
const NO_BACKUP: Why = Why::Unserved("this release does not serve backups of changed blocks");

/// All of them.
pub(super) const ROWS: &[Row] = &[
    // Guests have no such device: autoattachVSOCK has no effect.
    row("vsock", true, "VSOCK", Why::Device("VSOCK is not attached.")),
    row("sev/fetchcertchain", true, SEV, UNMEASURED),
    row("sev/querylaunchmeasurement", true, SEV, UNMEASURED),
    row("sev/setupsession", false, SEV, UNMEASURED),
    row("sev/injectlaunchsecret", false, SEV, UNMEASURED),
    row("backup", false, BACKUP, NO_BACKUP),
    row("redefine-checkpoint", false, BACKUP, NO_BACKUP),
];

impl Row {
    pub(super) fn method(&self) -> Method {
        if self.read { Method::GET } else { Method::PUT }
    }

    /// The gate that it lacks.
    fn closed(&self, is_on: impl Fn(&str) -> bool) -> Option<Refusal> {
        (!is_on(self.gate)).then(|| Refusal::gate(self.gate))
    }

    /// The refusal for an instance.
    fn refusal(&self, name: &str) -> Refusal {
        match self.why {
            Why::Device(text) => Refusal::new(StatusCode::BAD_REQUEST, text),
            Why::State(text) => Refusal::conflict(KIND, name, text),
            Why::Unserved(text) => Refusal::new(StatusCode::NOT_FOUND, text),
        }
    }
}

/// Refuses a request.
pub(super) async fn handle(site: Arc<Site>, call: Call, row: &'static Row) -> Answered {
    site.gate.admit(&call, "virtualmachineinstances", row.name).await?;
    // As upstream: what is off is off for every object.
    if let Some(refusal) = row.closed(|gate| site.admission.gate(gate)) {
        return Err(refusal);
    }
    let name = call.parameter("name");
    let key = Key::new(call.parameter("namespace"), name);
    let instance: Option<Value> = site.client.find(INSTANCES, &key).await?;
    Err(instance.map_or_else(|| Refusal::absent(KIND, name), |_| row.refusal(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_gives_status_and_reason() {
        let of = |name: &str, gates: &[&str]| {
            let row = ROWS.iter().find(|row| row.name == name).unwrap();
            let refusal = row.closed(|gate| gates.contains(&gate));
            let refusal = refusal.unwrap_or_else(|| row.refusal("vm"));
            let (code, text) = refusal.code_and_message();
            (code, text.rsplit(": ").next().unwrap().to_owned())
        };
        let [sev, vsock, backup] = ["WorkloadEncryptionSEV", "VSOCK", "IncrementalBackup"];
        for (name, gates, code, text) in [
            ("sev/fetchcertchain", &[vsock][..], 400, "'WorkloadEncryptionSEV' feature gate is not enabled"),
            ("sev/fetchcertchain", &[sev], 409, "Attestation not requested for VMI"),
            ("vsock", &[], 400, "'VSOCK' feature gate is not enabled"),
            ("vsock", &[vsock], 400, "VSOCK is not attached."),
            ("backup", &[], 400, "'IncrementalBackup' feature gate is not enabled"),
            ("backup", &[backup], 404, "this release does not serve backups of changed blocks"),
        ] {
            assert_eq!(of(name, gates), (code, text.to_owned()), "{name} {gates:?}");
        }
    }
}
