//! Subresources that this release refuses, with upstream's status and the reason: the feature is off, or the guest or the
//! node lacks what it needs. They are authorized like others.

use std::sync::Arc;

use cluster::{Key, Resource};
use http::{Method, StatusCode};
use serde_json::Value;
use serve::route::Call;

use super::Site;
use super::instance::INSTANCES;
use super::status::{Answered, Refusal};

const MACHINES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");

/// Why a subresource is refused.
#[derive(Clone, Copy, Debug)]
enum Why {
    /// A feature gate is off: 400, as upstream.
    Gate(&'static str),
    /// The object is not in a state for it: 409.
    State(fn(&Value) -> &'static str),
}

/// A subresource.
#[derive(Debug)]
pub(super) struct Row {
    /// Whether it is one of VMs; of instances otherwise.
    machine: bool,
    /// Last part of the path.
    pub(super) name: &'static str,
    /// Whether it is read; changed otherwise.
    pub(super) read: bool,
    why: Why,
}

const fn row(machine: bool, name: &'static str, read: bool, why: Why) -> Row {
    Row { machine, name, read, why }
}

const SEV: Why = Why::Gate("WorkloadEncryptionSEV");
const BACKUP: Why = Why::Gate("IncrementalBackup");
const GRAPH: Why = Why::Gate("ObjectGraph");

/// All of them.
pub(super) const ROWS: &[Row] = &[
    row(true, "objectgraph", true, GRAPH),
    row(false, "objectgraph", true, GRAPH),
    row(false, "usbredir", true, Why::State(usb)),
    row(false, "vsock", true, Why::Gate("VSOCK")),
    row(false, "sev/fetchcertchain", true, SEV),
    row(false, "sev/querylaunchmeasurement", true, SEV),
    row(false, "sev/setupsession", false, SEV),
    row(false, "sev/injectlaunchsecret", false, SEV),
    row(false, "backup", false, BACKUP),
    row(false, "redefine-checkpoint", false, BACKUP),
];

fn usb(instance: &Value) -> &'static str {
    if instance["spec"]["domain"]["devices"]["clientPassthrough"].is_object() {
        "USB redirection is not supported yet: the guest has no redirection channels"
    } else {
        "Not configured with USB Redirection"
    }
}

impl Row {
    /// Resource in plural.
    pub(super) fn plural(&self) -> &'static str {
        if self.machine { "virtualmachines" } else { "virtualmachineinstances" }
    }

    pub(super) fn method(&self) -> Method {
        if self.read { Method::GET } else { Method::PUT }
    }

    /// The refusal for an object.
    fn refusal(&self, name: &str, object: &Value) -> Refusal {
        let kind = if self.machine { "virtualmachine" } else { "virtualmachineinstance" };
        match self.why {
            Why::Gate(gate) => {
                Refusal::new(StatusCode::BAD_REQUEST, format!("'{gate}' feature gate is not enabled"))
            }
            Why::State(text) => Refusal::conflict(kind, name, text(object)),
        }
    }
}

/// Refuses a request.
pub(super) async fn handle(site: Arc<Site>, call: Call, row: &'static Row) -> Answered {
    site.gate.admit(&call, row.plural(), row.name).await?;
    let name = call.parameter("name");
    // As upstream: what is off is off for every object.
    if matches!(row.why, Why::Gate(_)) {
        return Err(row.refusal(name, &Value::Null));
    }
    let resource = if row.machine { MACHINES } else { INSTANCES };
    let kind = if row.machine { "virtualmachine" } else { "virtualmachineinstance" };
    let object: Option<Value> =
        site.client.find(resource, &Key::new(call.parameter("namespace"), name)).await?;
    let object = object.ok_or_else(|| Refusal::absent(kind, name))?;
    Err(row.refusal(name, &object))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_row_gives_status_and_reason() {
        let of = |name: &str, machine: bool, object: &Value| {
            let row = ROWS.iter().find(|row| row.name == name && row.machine == machine).unwrap();
            let refusal = row.refusal("vm", object);
            let (code, text) = refusal.code_and_message();
            (code, text.rsplit(": ").next().unwrap().to_owned())
        };
        let plain = json!({"spec": {"domain": {"devices": {}}}});
        let usb = json!({"spec": {"domain": {"devices": {"clientPassthrough": {}}}}});
        for (name, machine, object, code, text) in [
            ("sev/fetchcertchain", false, &plain, 400, "'WorkloadEncryptionSEV' feature gate is not enabled"),
            ("vsock", false, &plain, 400, "'VSOCK' feature gate is not enabled"),
            ("backup", false, &plain, 400, "'IncrementalBackup' feature gate is not enabled"),
            ("objectgraph", true, &plain, 400, "'ObjectGraph' feature gate is not enabled"),
            ("usbredir", false, &plain, 409, "Not configured with USB Redirection"),
            ("usbredir", false, &usb, 409, "the guest has no redirection channels"),
        ] {
            assert_eq!(of(name, machine, object), (code, text.to_owned()), "{name}");
        }
    }
}
