//! The instance types and preferences that every cluster has: those of upstream's common-instancetypes 1.7.0, with
//! descriptions of our own. `shipped.jsonl` has them, an object in each line.
//!
//! Not here: writing them to a cluster.

use serde::Deserialize;
use serde_json::Value;

use super::Which;

/// The objects, those of one kind after those of the other.
const OBJECTS: &str = include_str!("shipped.jsonl");

/// An instance type or preference that is shipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shipped {
    /// Its kind.
    pub which: Which,
    /// Its name.
    pub name: &'static str,
    text: &'static str,
}

#[derive(Deserialize)]
struct Head<'a> {
    kind: &'a str,
    #[serde(borrow)]
    metadata: Metadata<'a>,
}

#[derive(Deserialize)]
struct Metadata<'a> {
    name: &'a str,
}

impl Shipped {
    fn read(text: &'static str) -> Option<Self> {
        let head: Head<'static> = serde_json::from_str(text).ok()?;
        let which = Which::BOTH.into_iter().find(|which| which.cluster_kind() == head.kind)?;
        Some(Self { which, name: head.metadata.name, text })
    }

    /// The whole object.
    pub fn object(&self) -> Value {
        serde_json::from_str(self.text).unwrap_or_default()
    }
}

/// All of them.
pub fn shipped() -> impl Iterator<Item = Shipped> {
    OBJECTS.lines().filter_map(Shipped::read)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use api::instancetype::{VirtualMachineInstancetypeSpec, VirtualMachinePreferenceSpec};
    use serde_json::json;

    use super::*;

    /// Labels that repeat fields of the spec.
    const REPEATED: [(&str, &str); 7] = [
        ("cpu", "/cpu/guest"),
        ("memory", "/memory/guest"),
        ("dedicatedCPUPlacement", "/cpu/dedicatedCPUPlacement"),
        ("isolateEmulatorThread", "/cpu/isolateEmulatorThread"),
        ("hugepages", "/memory/hugepages/pageSize"),
        ("required-cpu", "/requirements/cpu/guest"),
        ("required-memory", "/requirements/memory/guest"),
    ];

    #[test]
    fn every_line_is_an_object_of_its_kind_and_a_name_is_used_once() {
        let all: Vec<Shipped> = shipped().collect();
        assert_eq!(all.len(), OBJECTS.lines().count());
        let of = |which| all.iter().filter(|one| one.which == which).count();
        assert_eq!((of(Which::Instancetype), of(Which::Preference)), (65, 54));
        let names: BTreeSet<&str> = all.iter().map(|one| one.name).collect();
        assert_eq!(names.len(), all.len());
        for one in &all {
            let object = one.object();
            assert_eq!(object["apiVersion"], "instancetype.kubevirt.io/v1beta1");
            // Written as it is read, so that a stored object is never taken for a changed one.
            let spec = object["spec"].clone();
            let again = match one.which {
                Which::Instancetype => {
                    json!(serde_json::from_value::<VirtualMachineInstancetypeSpec>(spec.clone()).unwrap())
                }
                Which::Preference => {
                    json!(serde_json::from_value::<VirtualMachinePreferenceSpec>(spec.clone()).unwrap())
                }
            };
            assert_eq!(again, spec, "{}", one.name);
        }
    }

    #[test]
    fn labels_repeat_the_fields() {
        for one in shipped() {
            let object = one.object();
            let labels = object["metadata"]["labels"].as_object().unwrap();
            for (label, field) in REPEATED {
                let label = labels.get(&format!("instancetype.kubevirt.io/{label}"));
                let field = object["spec"]
                    .pointer(field)
                    .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
                assert_eq!(label.and_then(Value::as_str), field.as_deref(), "{}", one.name);
            }
            assert_eq!(labels["instancetype.kubevirt.io/vendor"], "kubevirt.io");
            assert_eq!(labels["instancetype.kubevirt.io/common-instancetypes-version"], "v1.7.0");
        }
    }
}
