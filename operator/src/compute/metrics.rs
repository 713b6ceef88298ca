//! Metrics of VMs and instances, with upstream's names, from what the controllers observe. Pure.
//!
//! - [`instances`]: of each instance. [`transitions`]: how long instances take from phase to phase. [`syncs`]: how often
//!   each is reconciled.

pub(super) mod instances;
pub(super) mod syncs;
pub(super) mod transitions;

use std::collections::BTreeMap;
use std::sync::Arc;

use serve::metrics::{Kind, Page};

use super::clock;
use super::launcher::Settings;
use crate::view::{Claim, Description, Instance, Machine, Size};

/// Stands for what is not known.
const NONE: &str = "<none>";

/// Groups of printableStatus, and for each the metric with the time of the last change.
const GROUPS: [(&str, &str, &[&str]); 5] = [
    ("running", "kubevirt_vm_running_status_last_transition_timestamp_seconds", &["Running"]),
    (
        "starting",
        "kubevirt_vm_starting_status_last_transition_timestamp_seconds",
        &["Provisioning", "Starting", "WaitingForVolumeBinding", "WaitingForReceiver"],
    ),
    ("migrating", "kubevirt_vm_migrating_status_last_transition_timestamp_seconds", &["Migrating"]),
    (
        "non_running",
        "kubevirt_vm_non_running_status_last_transition_timestamp_seconds",
        &["Stopped", "Paused", "Stopping", "Terminating"],
    ),
    (
        "error",
        "kubevirt_vm_error_status_last_transition_timestamp_seconds",
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
        let printed = machine.status.printable_status.as_str();
        let status = printed.to_lowercase();
        let named = |which: &Option<api::kubevirt::FlavorReference>| {
            which.as_ref().and_then(|one| one.name.clone()).unwrap_or_else(|| NONE.to_owned())
        };
        let (size, preference) = (named(&machine.spec.instancetype), named(&machine.spec.preference));
        let known = |word: Option<&'a str>| word.filter(|word| !word.is_empty()).unwrap_or(NONE);
        let described = |of: fn(&Description) -> &Option<Box<str>>| {
            known(machine.description().and_then(|one| of(one).as_deref()))
        };
        let labels = [
            ("namespace", meta.namespace.as_str()),
            ("name", meta.name.as_str()),
            ("os", described(|one| &one.os)),
            ("workload", described(|one| &one.workload)),
            ("flavor", described(|one| &one.flavor)),
            ("machine_type", known(machine.spec.template.spec.machine.as_deref())),
            ("instance_type", size.as_str()),
            ("preference", preference.as_str()),
            ("status", status.as_str()),
            ("status_group", group(printed)),
        ];
        page.sample("kubevirt_vm_info", &labels, 1);
    }
    for (word, name, _) in GROUPS {
        page.begin(
            name,
            Kind::Counter,
            "Time of the last transition to this group of states, seconds since 1970.",
        );
        for machine in machines.clone().filter(|one| group(&one.status.printable_status) == word) {
            let labels = [
                ("namespace", machine.metadata.namespace.as_str()),
                ("name", machine.metadata.name.as_str()),
            ];
            page.sample(name, &labels, transition(machine));
        }
    }
    let mut phases = BTreeMap::<(String, &str), u64>::new();
    for instance in instances {
        *phases.entry((phase(instance), instance.status.node_name.as_str())).or_default() += 1;
    }
    page.begin("kubevirt_vmi_phase_count", Kind::Gauge, "Sum of VMIs per phase and node.");
    for ((phase, node), count) in phases {
        page.sample("kubevirt_vmi_phase_count", &[("node", node), ("phase", phase.as_str())], count);
    }
    let help = "Whether this process runs the compute controllers.";
    page.single("kubevirt_virt_controller_leading_status", Kind::Gauge, help, 1);
}

/// Adds settings of the platform.
pub(super) fn write_settings(page: &mut Page, settings: &Settings) {
    let help = "Indicates whether the Software Emulation is enabled in the configuration.";
    page.single("kubevirt_configuration_emulation_enabled", Kind::Gauge, help, u8::from(settings.emulation));
}

/// Adds size and limits of each VM. `running` has that of its instance, which an instance type decided.
pub(super) fn write_sizes<'a>(
    page: &mut Page,
    machines: &(impl Iterator<Item = &'a Machine> + Clone),
    running: impl Fn(&Machine) -> Option<Size>,
) {
    let name = "kubevirt_vm_create_date_timestamp_seconds";
    page.begin(name, Kind::Gauge, "Virtual Machine creation timestamp.");
    for machine in machines.clone() {
        let meta = &machine.metadata;
        let created = meta.creation_timestamp.as_deref().and_then(clock::seconds).unwrap_or(0);
        page.sample(name, &[("name", meta.name.as_str()), ("namespace", meta.namespace.as_str())], created);
    }
    let size_of = |machine: &Machine| {
        let written = machine.spec.template.spec.size;
        match &machine.spec.instancetype {
            Some(_) => running(machine).unwrap_or(written),
            None => written,
        }
    };
    let name = "kubevirt_vm_resource_requests";
    page.begin(name, Kind::Gauge, "Resources requested by Virtual Machine.");
    for machine in machines.clone() {
        let (meta, size) = (&machine.metadata, size_of(machine));
        let mut sample = |resource: &str, unit: &str, source: &str, value: u64| {
            let labels = [
                ("name", meta.name.as_str()),
                ("namespace", meta.namespace.as_str()),
                ("resource", resource),
                ("unit", unit),
                ("source", source),
            ];
            page.sample(name, &labels, value);
        };
        let source = if size.has_topology() { "domain" } else { "default" };
        for (unit, value) in [("cores", size.cores), ("threads", size.threads), ("sockets", size.sockets)] {
            sample("cpu", unit, source, value.unwrap_or(1));
        }
        for (source, value) in [("domain", size.requested), ("guest", size.guest)] {
            if let Some(value) = value {
                sample("memory", "bytes", source, value);
            }
        }
    }
    let name = "kubevirt_vm_resource_limits";
    page.begin(name, Kind::Gauge, "Resources limits by Virtual Machine.");
    for machine in machines.clone() {
        let (meta, size) = (&machine.metadata, size_of(machine));
        let limits = [
            ("cpu", "cores", size.cpu_limit.map(cores)),
            ("memory", "bytes", size.limit.map(|bytes| bytes.to_string())),
        ];
        for (resource, unit, limit) in limits {
            let Some(limit) = limit else { continue };
            let labels = [
                ("name", meta.name.as_str()),
                ("namespace", meta.namespace.as_str()),
                ("resource", resource),
                ("unit", unit),
            ];
            page.sample(name, &labels, limit);
        }
    }
}

/// Adds the network interfaces of each VM.
pub(super) fn write_nics<'a>(page: &mut Page, machines: impl Iterator<Item = &'a Machine>) {
    let name = "kubevirt_vm_vnic_info";
    page.begin(name, Kind::Gauge, "Network interfaces of a Virtual Machine: binding and network of each.");
    for machine in machines {
        for nic in machine.spec.template.spec.nics.iter() {
            let labels = [
                ("name", machine.metadata.name.as_str()),
                ("namespace", machine.metadata.namespace.as_str()),
                ("vnic_name", &*nic.name),
                ("binding_type", nic.kind),
                ("network", &*nic.network),
                ("binding_name", &*nic.binding),
            ];
            page.sample(name, &labels, 1);
        }
    }
}

/// CPUs, of thousandths of one.
fn cores(thousandths: u64) -> String {
    format!("{}.{:03}", thousandths / 1000, thousandths % 1000)
}

/// Adds the size of each volume of each VM that has a claim: as the VM's template of a DataVolume requests it, otherwise as
/// the claim does. `claim`: the claim of a VM's namespace and this name.
pub(super) fn write_disks<'a>(
    page: &mut Page,
    machines: impl Iterator<Item = &'a Machine>,
    claim: impl Fn(&Machine, &str) -> Option<Arc<Claim>>,
) {
    let name = "kubevirt_vm_disk_allocated_size_bytes";
    page.begin(
        name,
        Kind::Gauge,
        "Allocated disk size of a Virtual Machine in bytes, based on its PersistentVolumeClaim.",
    );
    for machine in machines {
        for volume in &machine.spec.template.spec.volumes {
            let named = volume.claim().filter(|_| volume.is_snapshottable() && !volume.is_dump());
            let Some(claim) = named.and_then(|name| claim(machine, name)) else { continue };
            let templates = machine.spec.data_volume_templates.iter();
            let mut own = templates.filter(|one| volume.data_volume() == Some(one.metadata.name.as_str()));
            let requested = claim.spec.resources.requests.get("storage");
            let size = own.find_map(|one| one.requested.0);
            let size = size.or_else(|| requested?.bytes().ok()).unwrap_or(0);
            let labels = [
                ("name", machine.metadata.name.as_str()),
                ("namespace", machine.metadata.namespace.as_str()),
                ("persistentvolumeclaim", claim.metadata.name.as_str()),
                ("volume_mode", claim.spec.volume_mode.as_deref().unwrap_or_default()),
                ("device", volume.name.as_str()),
            ];
            page.sample(name, &labels, size);
        }
    }
}

/// The phase of an instance, as metrics have it.
fn phase(instance: &Instance) -> String {
    let phase = &instance.status.phase;
    if phase.is_empty() { "pending".to_owned() } else { phase.to_lowercase() }
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
    GROUPS.iter().find(|(.., words)| words.contains(&status)).map_or("error", |(group, ..)| group)
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
    use crate::install::monitoring::{self, Allowed};

    #[test]
    fn machines_and_instances_are_counted_under_upstreams_names() {
        let machine = |name: &str, status: &str| -> Machine {
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "n", "creationTimestamp": "1970-01-01T00:00:10Z"},
                "spec": {"instancetype": {"name": "u1.small"}, "template": {
                    "metadata": {"annotations": {"vm.kubevirt.io/os": "debian", "vm.kubevirt.io/flavor": "", "a": "b"}},
                    "spec": {
                        "networks": [{"name": "default", "pod": {}}, {"name": "lan", "multus": {"networkName": "lan"}}],
                        "domain": {"machine": {"type": "q35"}, "cpu": {"cores": 2}, "memory": {"guest": "1Gi"}, "devices": {"interfaces": [
                            {"name": "default", "masquerade": {}}, {"name": "lan", "binding": {"name": "passt"}},
                        ]}},
                    }}},
                "status": {"printableStatus": status, "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": "1970-01-01T00:01:00Z"}]},
            }))
            .unwrap()
        };
        let instance: Instance =
            serde_json::from_value(json!({"status": {"phase": "Running", "nodeName": "one"}})).unwrap();
        let machines = [machine("a", "Running"), machine("b", "CrashLoopBackOff")];
        // The schema allows a template's metadata to be null.
        let bare: Machine = serde_json::from_value(json!({
            "metadata": {"name": "c", "namespace": "n"}, "spec": {"template": {"metadata": null}}}))
        .unwrap();
        let mut page = Page::default();
        write(&mut page, &machines.iter().chain([&bare]), [instance].iter());
        write_bounces(&mut page, machines.iter().zip([true, false]));
        write_nics(&mut page, machines.iter().chain([&bare]));
        let running =
            Size { sockets: Some(4), limit: Some(1 << 31), cpu_limit: Some(1500), ..Size::default() };
        let mut stored = machines[0].clone();
        let volumes = json!([
            {"name": "root", "dataVolume": {"name": "a-root"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "a-data"}},
            {"name": "gone", "persistentVolumeClaim": {"claimName": "none"}},
            {"name": "scratch", "ephemeral": {"persistentVolumeClaim": {"claimName": "a-data"}}},
        ]);
        stored.spec.template.spec.volumes = serde_json::from_value(volumes).unwrap();
        let template = json!([{"metadata": {"name": "a-root"},
            "spec": {"storage": {"resources": {"requests": {"storage": "2Gi"}}}}}]);
        stored.spec.data_volume_templates = serde_json::from_value(template).unwrap();
        write_disks(&mut page, [&stored].into_iter(), |_, name| {
            let claim = json!({"metadata": {"name": name}, "spec": {"volumeMode": "Block",
                "resources": {"requests": {"storage": "3Gi"}}}});
            (name != "none").then(|| Arc::new(serde_json::from_value(claim).unwrap()))
        });
        write_settings(&mut page, &Settings { emulation: true, ..Settings::default() });
        write_sizes(&mut page, &machines.iter(), |one| (one.metadata.name == "b").then_some(running));
        let text = page.text();
        assert_eq!(text.matches("kubevirt_vm_disk_allocated_size_bytes{").count(), 2);
        assert_eq!(text.matches("kubevirt_vm_resource_limits{").count(), 2, "of VMs with limits only");
        for line in [
            r#"kubevirt_ssp_vm_rbd_block_volume_without_rxbounce{name="a",namespace="n"} 0"#,
            r#"kubevirt_ssp_vm_rbd_block_volume_without_rxbounce{name="b",namespace="n"} 1"#,
            r#"kubevirt_vm_vnic_info{name="a",namespace="n",vnic_name="default",binding_type="core",network="pod networking",binding_name="masquerade"} 1"#,
            r#"kubevirt_vm_vnic_info{name="b",namespace="n",vnic_name="lan",binding_type="plugin",network="lan",binding_name="passt"} 1"#,
            r#"kubevirt_number_of_vms{namespace="n"} 3"#,
            r#"kubevirt_vm_info{namespace="n",name="a",os="debian",workload="<none>",flavor="<none>",machine_type="q35",instance_type="u1.small",preference="<none>",status="running",status_group="running"} 1"#,
            r#"kubevirt_vm_info{namespace="n",name="c",os="<none>",workload="<none>",flavor="<none>",machine_type="<none>",instance_type="<none>",preference="<none>",status="",status_group="error"} 1"#,
            r#"kubevirt_vm_running_status_last_transition_timestamp_seconds{namespace="n",name="a"} 60"#,
            r#"kubevirt_vm_error_status_last_transition_timestamp_seconds{namespace="n",name="b"} 60"#,
            r#"kubevirt_vmi_phase_count{node="one",phase="running"} 1"#,
            r#"kubevirt_vm_disk_allocated_size_bytes{name="a",namespace="n",persistentvolumeclaim="a-root",volume_mode="Block",device="root"} 2147483648"#,
            r#"kubevirt_vm_disk_allocated_size_bytes{name="a",namespace="n",persistentvolumeclaim="a-data",volume_mode="Block",device="data"} 3221225472"#,
            "kubevirt_virt_controller_leading_status 1",
            "kubevirt_configuration_emulation_enabled 1",
            r#"kubevirt_vm_create_date_timestamp_seconds{name="a",namespace="n"} 10"#,
            r#"kubevirt_vm_resource_requests{name="a",namespace="n",resource="cpu",unit="cores",source="domain"} 2"#,
            r#"kubevirt_vm_resource_requests{name="a",namespace="n",resource="cpu",unit="threads",source="domain"} 1"#,
            r#"kubevirt_vm_resource_requests{name="a",namespace="n",resource="memory",unit="bytes",source="guest"} 1073741824"#,
            r#"kubevirt_vm_resource_requests{name="b",namespace="n",resource="cpu",unit="sockets",source="domain"} 4"#,
            r#"kubevirt_vm_resource_limits{name="b",namespace="n",resource="cpu",unit="cores"} 1.500"#,
            r#"kubevirt_vm_resource_limits{name="b",namespace="n",resource="memory",unit="bytes"} 2147483648"#,
        ] {
            assert!(text.lines().any(|one| one == line), "{line}\n{text}");
        }
    }

    #[test]
    fn the_alert_about_disks_on_ceph_fires_while_a_machine_has_one_without_the_option() {
        let objects = monitoring::objects("n", &Allowed::default(), None);
        let groups = objects.iter().flat_map(|one| one["spec"]["groups"].as_array().into_iter().flatten());
        let mut rules = groups.flat_map(|group| group["rules"].as_array().into_iter().flatten());
        let alert = rules.find(|rule| rule["alert"] == "VMStorageClassWarning").unwrap();
        let expression = alert["expr"].as_str().unwrap();
        // Series above zero are counted, none is zero, and the alert fires above zero.
        let metric =
            expression.strip_prefix("(count(").unwrap().strip_suffix(" > 0) or vector(0)) > 0").unwrap();
        let machine = |name: &str| -> Machine {
            serde_json::from_value(
                json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"template": {}}}),
            )
            .unwrap()
        };
        let machines = [machine("a"), machine("b")];
        let affected = |bounces: &[bool]| {
            let mut page = Page::default();
            write_bounces(&mut page, machines.iter().zip(bounces.iter().copied()));
            let text = page.text();
            let series = text.lines().filter(|line| line.starts_with(&format!("{metric}{{")));
            let above = series.filter(|line| !line.ends_with(" 0"));
            above.map(|line| line.trim_end_matches(" 1").to_owned()).collect::<Vec<_>>()
        };
        assert!(affected(&[]).is_empty() && affected(&[true, true]).is_empty(), "it does not fire");
        assert_eq!(affected(&[true, false]), [format!("{metric}{{name=\"b\",namespace=\"n\"}}")]);
        assert_eq!(affected(&[false, false]).len(), 2);
        // The count has no labels: texts of the alert have none, and its runbook names the machines by the metric's.
        assert!(!alert["annotations"].to_string().contains("$labels"), "{alert}");
        let runbook = include_str!("../../../docs/runbooks/VMStorageClassWarning.md");
        assert!(runbook.contains(&format!("`{metric} == 1` names the machines")));
        assert!(include_str!("../../../docs/metrics.md").contains(&format!("`{metric}{{name,namespace}}`")));
        let documented = include_str!("../../../docs/data-import.md");
        assert!(
            documented.contains("`mapOptions: krbd:rxbounce`")
                && documented.contains("`VMStorageClassWarning`")
        );
    }
}
