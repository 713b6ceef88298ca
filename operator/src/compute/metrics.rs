//! Metrics of VMs and instances, with upstream's names, from what the controllers observe. Pure.

use std::collections::BTreeMap;

use serve::metrics::{Kind, Page};

use super::clock;
use crate::view::{Instance, Machine};

/// Groups of printableStatus; each has a metric with the time of the last change.
const GROUPS: [(&str, &[&str]); 5] = [
    ("running", &["Running"]),
    ("starting", &["Provisioning", "Starting", "WaitingForVolumeBinding", "WaitingForReceiver"]),
    ("migrating", &["Migrating"]),
    ("non_running", &["Stopped", "Paused", "Stopping", "Terminating"]),
    (
        "error",
        &[
            "CrashLoopBackOff",
            "Unknown",
            "ErrorUnschedulable",
            "ErrImagePull",
            "ImagePullBackOff",
            "ErrorPvcNotFound",
            "DataVolumeError",
        ],
    ),
];

/// Adds the metrics of all VMs and instances.
pub(super) fn write<'a>(
    page: &mut Page,
    machines: &(impl Iterator<Item = &'a Machine> + Clone),
    instances: impl Iterator<Item = &'a Instance>,
) {
    let mut by_namespace = BTreeMap::<&str, u64>::new();
    for machine in machines.clone() {
        *by_namespace.entry(&machine.metadata.namespace).or_default() += 1;
    }
    page.begin("kubevirt_number_of_vms", Kind::Gauge, "The number of VMs in the cluster by namespace.");
    for (namespace, count) in by_namespace {
        page.sample("kubevirt_number_of_vms", &[("namespace", namespace)], count);
    }
    page.begin("kubevirt_vm_info", Kind::Gauge, "Information about virtual machines.");
    for machine in machines.clone() {
        let meta = &machine.metadata;
        let status = machine.status.printable_status.as_str();
        let named = |which: &Option<api::kubevirt::FlavorReference>| {
            which.as_ref().and_then(|one| one.name.clone()).unwrap_or_else(|| "<none>".to_owned())
        };
        let (size, preference) = (named(&machine.spec.instancetype), named(&machine.spec.preference));
        let labels = [
            ("namespace", meta.namespace.as_str()),
            ("name", meta.name.as_str()),
            ("instance_type", size.as_str()),
            ("preference", preference.as_str()),
            ("status", status),
            ("status_group", group(status)),
        ];
        page.sample("kubevirt_vm_info", &labels, 1);
    }
    for (word, _) in GROUPS {
        let name = format!("kubevirt_vm_{word}_status_last_transition_timestamp_seconds");
        page.begin(
            &name,
            Kind::Counter,
            "Time of the last transition to this group of states, seconds since 1970.",
        );
        for machine in machines.clone().filter(|one| group(&one.status.printable_status) == word) {
            let labels = [
                ("namespace", machine.metadata.namespace.as_str()),
                ("name", machine.metadata.name.as_str()),
            ];
            page.sample(&name, &labels, transition(machine));
        }
    }
    let mut phases = BTreeMap::<(String, &str), u64>::new();
    for instance in instances {
        let phase: &str = if instance.status.phase.is_empty() { "Pending" } else { &instance.status.phase };
        *phases.entry((phase.to_lowercase(), instance.status.node_name.as_str())).or_default() += 1;
    }
    page.begin("kubevirt_vmi_phase_count", Kind::Gauge, "Sum of VMIs per phase and node.");
    for ((phase, node), count) in phases {
        page.sample("kubevirt_vmi_phase_count", &[("node", node), ("phase", phase.as_str())], count);
    }
    for name in ["kubevirt_virt_controller_leading_status", "kubevirt_virt_controller_ready_status"] {
        page.single(name, Kind::Gauge, "Whether this process runs the compute controllers.", 1);
    }
}

/// Adds, for each VM with `Block` volumes of Ceph RBD, whether one of them lacks `krbd:rxbounce`. The iterator has whether
/// all of them have it.
pub(super) fn write_bounces<'a>(page: &mut Page, machines: impl Iterator<Item = (&'a Machine, bool)>) {
    let name = "kubevirt_ssp_vm_rbd_block_volume_without_rxbounce";
    page.begin(name, Kind::Gauge, "VM with RBD mounted Block volume (without rxbounce option set).");
    for (machine, bounces) in machines {
        let meta = &machine.metadata;
        let labels = [("name", meta.name.as_str()), ("namespace", meta.namespace.as_str())];
        page.sample(name, &labels, u64::from(!bounces));
    }
}

fn group(status: &str) -> &'static str {
    GROUPS.iter().find(|(_, words)| words.contains(&status)).map_or("error", |(group, _)| group)
}

/// Time of the latest change of a condition, or of the creation.
fn transition(machine: &Machine) -> u64 {
    let changes = machine.status.conditions.iter().filter_map(|one| one.last_transition_time.as_deref());
    let created = machine.metadata.creation_timestamp.as_deref();
    changes.chain(created).filter_map(clock::seconds).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn machines_and_instances_are_counted_under_upstreams_names() {
        let machine = |name: &str, status: &str| -> Machine {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "n", "creationTimestamp": "1970-01-01T00:00:10Z"},
                "spec": {"instancetype": {"name": "u1.small"}},
                "status": {"printableStatus": status, "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:01:00Z"}]},
            }))
            .unwrap()
        };
        let instance: Instance =
            serde_json::from_value(json!({"status": {"phase": "Running", "nodeName": "one"}})).unwrap();
        let machines = [machine("a", "Running"), machine("b", "CrashLoopBackOff")];
        let mut page = Page::default();
        write(&mut page, &machines.iter(), [instance].iter());
        write_bounces(&mut page, machines.iter().zip([true, false]));
        let text = page.text();
        for line in [
            r#"kubevirt_ssp_vm_rbd_block_volume_without_rxbounce{name="a",namespace="n"} 0"#,
            r#"kubevirt_ssp_vm_rbd_block_volume_without_rxbounce{name="b",namespace="n"} 1"#,
            r#"kubevirt_number_of_vms{namespace="n"} 2"#,
            r#"kubevirt_vm_info{namespace="n",name="a",instance_type="u1.small",preference="<none>",status="Running",status_group="running"} 1"#,
            r#"kubevirt_vm_running_status_last_transition_timestamp_seconds{namespace="n",name="a"} 60"#,
            r#"kubevirt_vm_error_status_last_transition_timestamp_seconds{namespace="n",name="b"} 60"#,
            r#"kubevirt_vmi_phase_count{node="one",phase="running"} 1"#,
            "kubevirt_virt_controller_leading_status 1",
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
    }
}
