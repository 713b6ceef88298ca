//! Fields that a VM's instance type or preference gives to its guest and that have no effect, as a condition of the instance.
//! Pure but for the time of the condition. Not here: fields that the VM has itself, which admission names in warnings.

use std::collections::BTreeSet;

use api::kind::Kind;
use api::resource::Condition;
use serde_json::Value;
use virt::fields::Place;
use virt::finding::{Finding, Verdict};
use virt::validate;

/// The condition; none where all that they give has an effect. `written`: the VM as its user has it. `flavored`: the VM with
/// instance type and preference in its template.
pub(super) fn conditions(written: &Value, flavored: &Value) -> Vec<Condition> {
    let mut conditions = Vec::new();
    if written["spec"]["template"] != flavored["spec"]["template"] {
        let own: BTreeSet<String> = findings(written).map(|finding| finding.path).collect();
        let given = findings(flavored).filter(|finding| !own.contains(&finding.path));
        // Paths are the instance's.
        let of_instance = |finding: Finding| {
            let path = finding.path.strip_prefix("spec.template.").unwrap_or(&finding.path).to_owned();
            Finding { path, ..finding }
        };
        virt::status::fields(&mut conditions, &given.map(of_instance).collect::<Vec<_>>());
    }
    conditions
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
        let machine = |cpu: Value| {
            json!({
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
                "metadata": {"name": "vm", "namespace": "n"},
                "spec": {"runStrategy": "Always", "template": {"spec": {
                    "evictionStrategy": "LiveMigrate",
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
            let found = conditions(&machine(written), &machine(flavored));
            let said = found.first().map(|one| (one.kind.as_str(), one.status.as_str()));
            assert_eq!(said, message.as_ref().map(|_| ("FieldsWithoutEffect", "True")), "{message:?}");
            assert_eq!(found.into_iter().next().and_then(|one| one.message), message);
        }
    }
}
