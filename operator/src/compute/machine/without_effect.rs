//! Fields that a VM's instance type or preference gives to its guest and that have no effect, as a condition of the instance.
//! Pure. Not here: fields that the VM has itself, which admission names in warnings.

use std::collections::BTreeSet;

use api::kind::Kind;
use serde_json::Value;
use virt::fields::Place;
use virt::finding::{Finding, Verdict};
use virt::validate;

use crate::compute::conditions;
use crate::view::Condition;

/// The type of the condition.
const KIND: &str = "FieldsWithoutEffect";

/// The condition; none where all that they give has an effect. `written`: the VM as its user has it. `flavored`: the VM with
/// instance type and preference in its template. `now` is in seconds since 1970.
pub(super) fn condition(written: &Value, flavored: &Value, now: u64) -> Option<Condition> {
    if written["spec"]["template"] == flavored["spec"]["template"] {
        return None;
    }
    let own: BTreeSet<String> = findings(written).map(|finding| finding.path).collect();
    let given = findings(flavored).filter(|finding| !own.contains(&finding.path));
    let texts: Vec<String> = given
        .map(|Finding { path, text, .. }| format!("{}: {text}", path.trim_start_matches("spec.template.")))
        .collect();
    if texts.is_empty() {
        return None;
    }
    let mut all = Vec::new();
    conditions::set(&mut all, KIND, "True", "NotSupported", &texts.join("; "), now);
    all.pop()
}

/// Fields of a VM without an effect.
fn findings(machine: &Value) -> impl Iterator<Item = Finding> {
    let all = validate::object(Kind::VirtualMachine, machine, Place::Cluster);
    all.into_iter().filter(|finding| finding.verdict != Verdict::Error)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_of_instance_types_without_an_effect_are_named() {
        let machine = |cpu: Value, strategy: Value| {
            json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "metadata": {"name": "vm", "namespace": "n"},
                "spec": {"runStrategy": "Always", "template": {"spec": {
                    "evictionStrategy": strategy,
                    "domain": {"cpu": cpu, "memory": {"guest": "1Gi"}, "devices": {}},
                }}},
            })
        };
        let realtime = "spec.domain.cpu.realtime: not supported yet; it has no effect";
        let numa =
            "spec.domain.cpu.numa: not supported yet: the guest has one NUMA node, whatever its CPUs have";
        let exclusive = json!({"cores": 1, "realtime": {}, "numa": {"guestMappingPassthrough": {}}});
        for (written, flavored, message) in [
            (json!({}), json!({"cores": 1, "realtime": {}}), Some(realtime.to_owned())),
            (json!({}), exclusive, Some(format!("{numa}; {realtime}"))),
            // Admission has named the one that the VM has itself.
            (json!({"realtime": {}}), json!({"cores": 1, "realtime": {}}), None),
            (json!({}), json!({"cores": 1}), None),
            (json!({"cores": 1}), json!({"cores": 1}), None),
        ] {
            let strategy = || json!("LiveMigrate");
            let found = condition(&machine(written, strategy()), &machine(flavored, strategy()), 0);
            let said = found.as_ref().map(|one| (one.kind.as_str(), one.status.as_str()));
            assert_eq!(said, message.as_ref().map(|_| ("FieldsWithoutEffect", "True")), "{message:?}");
            assert_eq!(found.and_then(|one| one.message), message);
        }
    }
}
