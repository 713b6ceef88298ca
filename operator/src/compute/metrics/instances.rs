//! Metrics of instances, with upstream's names and labels. Pure.

use serve::metrics::{Kind, Page};

use super::NONE;
use crate::compute::launcher::Settings;
use crate::view::{GuestOs, Instance, condition};

/// Adds the metrics of all instances. `settings` are those of launchers which start now, `pod` has the name of the pod that
/// runs one.
pub(in crate::compute) fn write<'a>(
    page: &mut Page,
    instances: &(impl Iterator<Item = &'a Instance> + Clone),
    settings: &Settings,
    pod: impl Fn(&Instance) -> Option<String>,
) {
    let image = settings.image.as_str();
    page.begin("kubevirt_vmi_info", Kind::Gauge, "Information about VirtualMachineInstances.");
    for instance in instances.clone() {
        let (meta, status) = (&instance.metadata, &instance.status);
        let named = |names: &[&str]| {
            let found = names.iter().find_map(|name| meta.annotation(name));
            found.filter(|name| !name.is_empty()).unwrap_or(NONE)
        };
        let os = status.guest_os_info.as_deref();
        let os = |of: fn(&GuestOs) -> &String| os.map_or("", |os| of(os).as_str());
        let (phase, pod) = (super::phase(instance), pod(instance).unwrap_or_default());
        let outdated = is_outdated(instance, image);
        let word = |yes: bool| if yes { "true" } else { "false" };
        let labels = [
            ("node", status.node_name.as_str()),
            ("namespace", meta.namespace.as_str()),
            ("name", meta.name.as_str()),
            ("phase", phase.as_str()),
            ("os", named(&["vm.kubevirt.io/os"])),
            ("workload", named(&["vm.kubevirt.io/workload"])),
            ("flavor", named(&["vm.kubevirt.io/flavor"])),
            (
                "instance_type",
                named(&["kubevirt.io/instancetype-name", "kubevirt.io/cluster-instancetype-name"]),
            ),
            ("preference", named(&["kubevirt.io/preference-name", "kubevirt.io/cluster-preference-name"])),
            ("guest_os_kernel_release", os(|os| &os.kernel_release)),
            ("guest_os_machine", os(|os| &os.machine)),
            ("guest_os_arch", os(|os| &os.machine)),
            ("guest_os_name", os(|os| &os.name)),
            ("guest_os_version_id", os(|os| &os.version_id)),
            ("evictable", word(!is_stuck(instance))),
            ("outdated", word(outdated)),
            ("vmi_pod", pod.as_str()),
        ];
        page.sample("kubevirt_vmi_info", &labels, 1);
    }
    let name = "kubevirt_vmi_non_evictable";
    page.begin(name, Kind::Gauge, "Whether a VMI is to be migrated when its node is drained, and cannot be.");
    for instance in instances.clone() {
        let (meta, node) = (&instance.metadata, instance.status.node_name.as_str());
        let labels = [("node", node), ("namespace", meta.namespace.as_str()), ("name", meta.name.as_str())];
        page.sample(name, &labels, u8::from(is_stuck(instance)));
    }
    let name = "kubevirt_vmi_launcher_memory_overhead_bytes";
    page.begin(name, Kind::Gauge, "Estimation of the memory that QEMU and the launcher of a VMI need.");
    for instance in instances.clone() {
        let Some(bytes) = instance.spec.overhead else { continue };
        let labels =
            [("namespace", instance.metadata.namespace.as_str()), ("name", instance.metadata.name.as_str())];
        page.sample(name, &labels, settings.overhead(bytes));
    }
    let help = "Instances with a launcher of another release than those that start now.";
    let outdated = instances.clone().filter(|instance| is_outdated(instance, image)).count();
    page.single("kubevirt_vmi_number_of_outdated", Kind::Gauge, help, outdated);
}

/// Whether an instance runs by the launcher of another release.
fn is_outdated(instance: &Instance, image: &str) -> bool {
    let own = &instance.status.launcher_image;
    !instance.is_final() && !own.is_empty() && own != image
}

/// Whether an instance is to be migrated when its node is drained, and cannot be.
fn is_stuck(instance: &Instance) -> bool {
    let migratable = condition(&instance.status.conditions, "LiveMigratable");
    instance.spec.eviction_strategy.as_deref() == Some("LiveMigrate")
        && migratable.is_some_and(|one| one.status != "True")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn instances_have_upstreams_labels() {
        let instance: Instance = serde_json::from_value(json!({
            "metadata": {"name": "a", "namespace": "n", "annotations": {
                "kubevirt.io/cluster-instancetype-name": "u1.small", "vm.kubevirt.io/os": "debian"}},
            "spec": {"evictionStrategy": "LiveMigrate", "domain": {"memory": {"guest": "1Gi"}, "devices": {}}},
            "status": {
                "phase": "Running",
                "nodeName": "one",
                "conditions": [{"type": "LiveMigratable", "status": "False"}],
                "guestOSInfo": {"name": "Debian GNU/Linux", "versionId": "12", "machine": "x86_64"},
                "launcherContainerImageVersion": "launcher:2",
            },
        }))
        .unwrap();
        let page_of = |image: &str| {
            let mut page = Page::default();
            let settings = Settings { image: image.to_owned(), overhead_percent: 200, ..Settings::default() };
            write(&mut page, &[instance.clone()].iter(), &settings, |_| Some("virt-launcher-a-x".to_owned()));
            page.text()
        };
        let text = page_of("launcher:2");
        assert!(text.contains("kubevirt_vmi_number_of_outdated 0"), "{text}");
        let later = page_of("launcher:3");
        assert!(later.contains(r#"outdated="true""#), "{later}");
        assert!(later.contains("kubevirt_vmi_number_of_outdated 1"), "{later}");
        for part in [
            r#"kubevirt_vmi_info{node="one",namespace="n",name="a",phase="running",os="debian","#,
            r#"workload="<none>",flavor="<none>",instance_type="u1.small",preference="<none>","#,
            r#"guest_os_arch="x86_64",guest_os_name="Debian GNU/Linux",guest_os_version_id="12","#,
            r#"evictable="false",outdated="false",vmi_pod="virt-launcher-a-x"} 1"#,
            r#"kubevirt_vmi_launcher_memory_overhead_bytes{namespace="n",name="a"} 343932928"#,
            r#"kubevirt_vmi_non_evictable{node="one",namespace="n",name="a"} 1"#,
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
