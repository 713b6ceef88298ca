//! Deletion of the objects `HyperConverged`, `KubeVirt` and `CDI` while workloads exist. Pure.

use cluster::Resource;
use cluster::review::{Answer, Request};

use crate::view::WAITS;

/// The object that switches the platform or a half of it on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Platform {
    KubeVirt,
    Cdi,
    HyperConverged,
}

/// A kind that blocks the deletion.
#[derive(Debug)]
pub(super) struct Workload {
    pub(super) resource: Resource,
    /// Its plural for people.
    name: &'static str,
}

const fn compute(plural: &'static str, name: &'static str) -> Workload {
    Workload { resource: Resource::namespaced("kubevirt.io", "v1", plural), name }
}

/// Pools, which may have no VM.
const POOLS: Workload = Workload {
    resource: Resource::namespaced("pool.kubevirt.io", "v1beta1", "virtualmachinepools"),
    name: "Virtual Machine Pools",
};
const COMPUTE: [Workload; 4] = [
    compute("virtualmachineinstances", "Virtual Machine Instances"),
    compute("virtualmachines", "Virtual Machines"),
    compute("virtualmachineinstancereplicasets", "Virtual Machine Instance Replica Sets"),
    POOLS,
];
const DATA_VOLUMES: Workload = Workload {
    resource: Resource::namespaced("cdi.kubevirt.io", "v1beta1", "datavolumes"),
    name: "DataVolumes",
};
const STORAGE: [Workload; 1] = [DATA_VOLUMES];
const EVERYTHING: [Workload; 5] = [
    compute("virtualmachineinstances", "Virtual Machine Instances"),
    compute("virtualmachines", "Virtual Machines"),
    compute("virtualmachineinstancereplicasets", "Virtual Machine Instance Replica Sets"),
    POOLS,
    DATA_VOLUMES,
];

/// The kinds of which no object may exist for this request to be allowed. A platform that is not deployed runs nothing,
/// and must be removable.
pub(super) fn blocking(platform: Platform, request: &Request) -> &'static [Workload] {
    let old = &request.old_object;
    let strategy = match platform {
        Platform::KubeVirt | Platform::Cdi => &old["spec"]["uninstallStrategy"],
        Platform::HyperConverged => &old["spec"]["deployment"]["uninstallStrategy"],
    };
    if request.operation != "DELETE" || strategy != WAITS {
        return &[];
    }
    if platform == Platform::HyperConverged {
        return &EVERYTHING;
    }
    let phase = old["status"]["phase"].as_str().unwrap_or_default();
    match platform {
        Platform::KubeVirt if phase == "Deployed" => &COMPUTE,
        Platform::Cdi if !["", "Error"].contains(&phase) => &STORAGE,
        Platform::KubeVirt | Platform::Cdi | Platform::HyperConverged => &[],
    }
}

/// The refusal, in upstream's words.
pub(super) fn refusal(platform: Platform, workload: &Workload) -> Answer {
    let name = workload.name;
    let (delete, product) = match platform {
        Platform::HyperConverged if name == DATA_VOLUMES.name => ("DataVolumes", "CDI"),
        Platform::KubeVirt | Platform::HyperConverged => ("KubeVirt related workloads", "KubeVirt"),
        Platform::Cdi => ("DataVolumes", "CDI"),
    };
    let text = format!(
        "Rejecting the uninstall request, since there are still {name} present. Either delete all {delete} or change the \
         uninstall strategy before uninstalling {product}."
    );
    Answer::refuse(400, "BadRequest", text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn deletion_looks_for_workloads_only_where_they_block_it() {
        for (platform, operation, strategy, phase, expected) in [
            (Platform::KubeVirt, "DELETE", WAITS, "Deployed", 4),
            (Platform::KubeVirt, "DELETE", WAITS, "Deploying", 0),
            (Platform::KubeVirt, "DELETE", "RemoveWorkloads", "Deployed", 0),
            (Platform::KubeVirt, "DELETE", "", "Deployed", 0),
            (Platform::KubeVirt, "UPDATE", WAITS, "Deployed", 0),
            (Platform::Cdi, "DELETE", WAITS, "Deployed", 1),
            (Platform::Cdi, "DELETE", WAITS, "Deploying", 1),
            (Platform::Cdi, "DELETE", WAITS, "Error", 0),
            (Platform::Cdi, "DELETE", WAITS, "", 0),
            (Platform::Cdi, "DELETE", "RemoveWorkloads", "Deployed", 0),
        ] {
            let old_object = json!({"spec": {"uninstallStrategy": strategy}, "status": {"phase": phase}});
            let request = Request { operation: operation.into(), old_object, ..Request::default() };
            let blocking = blocking(platform, &request);
            assert_eq!(blocking.len(), expected, "{platform:?} {operation} {strategy} {phase}");
        }
    }

    #[test]
    fn operator_uninstall_keeps_webhooks_for_the_same_kinds() {
        let kept = crate::removal::WORKLOADS;
        assert_eq!(kept.len(), EVERYTHING.len());
        for workload in &EVERYTHING {
            assert!(kept.contains(&workload.resource), "{}", workload.name);
        }
    }

    #[test]
    fn refusals_have_upstreams_words() {
        for (platform, workload, expected) in [
            (
                Platform::KubeVirt,
                &COMPUTE[1],
                "Rejecting the uninstall request, since there are still Virtual Machines present. Either delete all \
                 KubeVirt related workloads or change the uninstall strategy before uninstalling KubeVirt.",
            ),
            (
                Platform::Cdi,
                &STORAGE[0],
                "Rejecting the uninstall request, since there are still DataVolumes present. Either delete all \
                 DataVolumes or change the uninstall strategy before uninstalling CDI.",
            ),
        ] {
            let answer = refusal(platform, workload).write("u");
            assert_eq!(answer["response"]["status"]["message"], expected);
        }
    }
}
