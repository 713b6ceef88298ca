//! Labels of the node by which the scheduler finds nodes for CPU models, features and machine types, with KubeVirt's names:
//! from what libvirt reports (`virt-launcher capabilities`, in an init container), and from files of the node. Pure.
//!
//! Where libvirt's report is missing, vendor and features come from /proc/cpuinfo: names of features are the kernel's, which
//! libvirt shares but for a few; those that libvirt calls otherwise are translated.

use std::collections::BTreeMap;

use api::launcher::capabilities::Capabilities;
use api::nodes::{CPU_MANAGER, MERGED_PAGES};
use serde::Deserialize;

/// Features with different names in libvirt and the kernel.
const RENAMED: [(&str, &str); 3] = [("sse4_1", "sse4.1"), ("sse4_2", "sse4.2"), ("pclmulqdq", "pclmuldq")];
/// Most names of one kind; a processor has some hundred features.
const NAMES_MAX: usize = 512;
/// Longest name of a label, without its prefix.
const NAME_MAX: usize = 63;

/// Files of the node, as texts; empty where there are none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Files {
    /// /proc/cpuinfo.
    pub(crate) cpuinfo: String,
    /// cpu_manager_state of the kubelet.
    pub(crate) cpu_manager: String,
    /// /proc/sys/kernel/sched_rt_runtime_us.
    pub(crate) realtime: String,
    /// /sys/kernel/mm/ksm/run.
    pub(crate) ksm: String,
}

/// The kubelet's state of exclusive CPUs, as far as it is read.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CpuManager {
    policy_name: String,
}

/// The labels of a node. `found`: libvirt's report; `kvm`: guests run by KVM; `machine`: the type behind `q35`.
pub(crate) fn labels(
    found: Option<&Capabilities>,
    kvm: bool,
    machine: &str,
    files: &Files,
) -> BTreeMap<String, String> {
    let mut labels = Labels::default();
    let known = found.and_then(|found| if kvm { found.kvm.as_ref() } else { found.emulation.as_ref() });
    let processors = known.cloned().unwrap_or_default();
    let (vendor, flags) = of_kernel(&files.cpuinfo);
    labels.all("cpu-vendor", processors.vendor.as_deref().or(vendor));
    labels.all("cpu-model", processors.models.iter().map(String::as_str));
    labels.all("cpu-model-migration", processors.models.iter().map(String::as_str));
    labels.all("cpu-model-migration", processors.host_model.as_deref());
    labels.all("host-model-cpu", processors.host_model.as_deref());
    labels.all("host-model-required-features", processors.required.iter().map(String::as_str));
    labels.all("hyperv", processors.hyperv.iter().map(String::as_str));
    match processors.features.is_empty() {
        true => labels.all("cpu-feature", flags),
        false => labels.all("cpu-feature", processors.features.iter().map(String::as_str)),
    }
    labels.all("machine-type", ["q35", machine]);
    labels.all("machine-type", found.iter().flat_map(|found| &found.machines).map(String::as_str));
    if let Some(tsc) = found.filter(|_| kvm).and_then(|found| found.tsc) {
        labels.set("cpu-timer.node.kubevirt.io/tsc-frequency", tsc.frequency.to_string());
        labels.set("cpu-timer.node.kubevirt.io/tsc-scalable", tsc.scalable.to_string());
    }
    for kind in &processors.encryption {
        labels.set(&format!("kubevirt.io/{kind}"), String::new());
    }
    let manager: CpuManager = serde_json::from_str(&files.cpu_manager).unwrap_or_default();
    for name in CPU_MANAGER {
        labels.set(name, (manager.policy_name == "static").to_string());
    }
    // Realtime tasks may use the whole of a processor.
    if files.realtime.trim() == "-1" {
        labels.set("kubevirt.io/realtime", String::new());
    }
    labels.set(MERGED_PAGES, (files.ksm.trim() == "1").to_string());
    labels.0
}

#[derive(Default)]
struct Labels(BTreeMap<String, String>);

impl Labels {
    fn set(&mut self, name: &str, value: String) {
        self.0.insert(name.to_owned(), value);
    }

    /// A label for each name, where the API server takes it.
    fn all<'a>(&mut self, kind: &str, names: impl IntoIterator<Item = &'a str>) {
        let plain = |name: &&str| {
            let good = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
            let ends = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
            name.len() <= NAME_MAX
                && name.bytes().all(good)
                && ends(name.bytes().next())
                && ends(name.bytes().next_back())
        };
        for name in names.into_iter().filter(plain).take(NAMES_MAX) {
            self.set(&format!("{kind}.node.kubevirt.io/{name}"), "true".to_owned());
        }
    }
}

/// Vendor and features, from the text of /proc/cpuinfo; the first processor speaks for all.
fn of_kernel(cpuinfo: &str) -> (Option<&str>, impl Iterator<Item = &str>) {
    let field = |name: &str| {
        let line =
            cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        line.split_once(':').map(|(_, value)| value.trim())
    };
    let vendor = match field("vendor_id") {
        Some("GenuineIntel") => Some("Intel"),
        Some("AuthenticAMD") => Some("AMD"),
        Some("HygonGenuine") => Some("Hygon"),
        Some(_) | None => None,
    };
    let flags = field("flags").unwrap_or_default().split_whitespace();
    let flags = flags
        .map(|flag| RENAMED.iter().find(|(kernel, _)| *kernel == flag).map_or(flag, |(_, libvirt)| libvirt));
    (vendor, flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::launcher::capabilities::{Processors, Tsc};

    fn list(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn cpuinfo() -> Files {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu pni sse4_2 avx2\n\nprocessor\t: 1\nflags\t: other\n";
        Files { cpuinfo: text.to_owned(), ..Files::default() }
    }

    /// Names of the labels that are "true" and have a prefix of KubeVirt's.
    fn named(labels: &BTreeMap<String, String>) -> Vec<&str> {
        let all = labels.iter().filter(|(name, value)| name.contains(".node.") && *value == "true");
        all.map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn without_a_report_vendor_and_features_are_the_kernels() {
        assert_eq!(
            named(&labels(None, true, "pc-q35-7.2", &cpuinfo())),
            [
                "cpu-feature.node.kubevirt.io/avx2",
                "cpu-feature.node.kubevirt.io/fpu",
                "cpu-feature.node.kubevirt.io/pni",
                "cpu-feature.node.kubevirt.io/sse4.2",
                "cpu-vendor.node.kubevirt.io/Intel",
                "machine-type.node.kubevirt.io/pc-q35-7.2",
                "machine-type.node.kubevirt.io/q35",
            ]
        );
    }

    #[test]
    fn labels_are_those_of_the_accelerator_in_use() {
        let of = |host: &str, vendor: &str, model: &str, feature: &str| Processors {
            models: list(&[model, "not a label", "-"]),
            host_model: Some(host.to_owned()),
            vendor: Some(vendor.to_owned()),
            required: list(&["pku"]),
            features: list(&[feature, "pku"]),
            hyperv: list(&["synic"]),
            encryption: if vendor == "AMD" { Vec::new() } else { list(&["sev", "sev-es"]) },
        };
        let found = Capabilities {
            machines: list(&["pc-q35-7.1", "q35"]),
            tsc: Some(Tsc { frequency: 7, scalable: false }),
            kvm: Some(of("Haswell", "Intel", "Penryn", "vmx")),
            emulation: Some(of("EPYC", "AMD", "qemu64", "svm")),
        };
        let emulated = labels(Some(&found), false, "pc-q35-7.2", &cpuinfo());
        assert_eq!(
            named(&emulated),
            [
                "cpu-feature.node.kubevirt.io/pku",
                "cpu-feature.node.kubevirt.io/svm",
                "cpu-model-migration.node.kubevirt.io/EPYC",
                "cpu-model-migration.node.kubevirt.io/qemu64",
                "cpu-model.node.kubevirt.io/qemu64",
                "cpu-vendor.node.kubevirt.io/AMD",
                "host-model-cpu.node.kubevirt.io/EPYC",
                "host-model-required-features.node.kubevirt.io/pku",
                "hyperv.node.kubevirt.io/synic",
                "machine-type.node.kubevirt.io/pc-q35-7.1",
                "machine-type.node.kubevirt.io/pc-q35-7.2",
                "machine-type.node.kubevirt.io/q35",
            ]
        );
        for name in ["cpu-timer.node.kubevirt.io/tsc-frequency", "kubevirt.io/sev"] {
            assert_eq!(emulated.get(name), None, "{name}");
        }
        let fast = labels(Some(&found), true, "pc-q35-7.2", &cpuinfo());
        for (name, value) in [
            ("cpu-model.node.kubevirt.io/Penryn", Some("true")),
            ("cpu-model.node.kubevirt.io/qemu64", None),
            ("cpu-feature.node.kubevirt.io/vmx", Some("true")),
            ("host-model-cpu.node.kubevirt.io/Haswell", Some("true")),
            ("cpu-timer.node.kubevirt.io/tsc-frequency", Some("7")),
            ("cpu-timer.node.kubevirt.io/tsc-scalable", Some("false")),
            ("kubevirt.io/sev", Some("")),
            ("kubevirt.io/sev-es", Some("")),
            ("kubevirt.io/tdx", None),
        ] {
            assert_eq!(fast.get(name).map(String::as_str), value, "{name}");
        }
    }

    #[test]
    fn files_of_the_node_give_the_rest() {
        let tuned = Files {
            cpu_manager: r#"{"policyName":"static","defaultCpuSet":"0-3","checksum":1}"#.to_owned(),
            realtime: "-1\n".to_owned(),
            ksm: "1\n".to_owned(),
            ..Files::default()
        };
        let plain = Files {
            cpu_manager: r#"{"policyName":"none"}"#.to_owned(),
            realtime: "950000\n".to_owned(),
            ksm: "0\n".to_owned(),
            ..Files::default()
        };
        for (files, manager, realtime, ksm) in [
            (tuned, "true", Some(""), "true"),
            (plain, "false", None, "false"),
            (Files::default(), "false", None, "false"),
        ] {
            let labels = labels(None, false, "pc-q35-7.2", &files);
            assert_eq!((&*labels["cpumanager"], &*labels["kubevirt.io/cpumanager"]), (manager, manager));
            assert_eq!(labels.get("kubevirt.io/realtime").map(String::as_str), realtime);
            assert_eq!(labels["kubevirt.io/ksm-enabled"], ksm);
        }
    }
}
