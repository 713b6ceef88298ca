//! Labels of the node's processor by which the scheduler finds nodes for CPU models and features, from /proc/cpuinfo: pure.
//!
//! Names of features are the kernel's, which libvirt shares but for a few; those that libvirt calls otherwise are
//! translated. Not here: models that libvirt would find for this processor; a guest with a named model runs wherever its
//! features are.

use std::collections::BTreeMap;

/// Features with different names in libvirt and the kernel.
const RENAMED: [(&str, &str); 3] = [("sse4_1", "sse4.1"), ("sse4_2", "sse4.2"), ("pclmulqdq", "pclmuldq")];
/// Most features; a processor has some hundred.
const FEATURES_MAX: usize = 512;

/// The labels, from the text of /proc/cpuinfo; the first processor speaks for all.
pub(crate) fn labels(cpuinfo: &str) -> BTreeMap<String, String> {
    let field = |name: &str| {
        let line =
            cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        line.split_once(':').map(|(_, value)| value.trim())
    };
    let mut labels = BTreeMap::new();
    let vendor = match field("vendor_id") {
        Some("GenuineIntel") => Some("Intel"),
        Some("AuthenticAMD") => Some("AMD"),
        Some("HygonGenuine") => Some("Hygon"),
        Some(_) | None => None,
    };
    let yes = || "true".to_owned();
    if let Some(vendor) = vendor {
        labels.insert(format!("cpu-vendor.node.kubevirt.io/{vendor}"), yes());
    }
    for flag in field("flags").unwrap_or_default().split_whitespace().take(FEATURES_MAX) {
        let name = RENAMED.iter().find(|(kernel, _)| *kernel == flag).map_or(flag, |(_, libvirt)| libvirt);
        let plain =
            name.len() <= 63 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b));
        if plain && name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric()) {
            labels.insert(format!("cpu-feature.node.kubevirt.io/{name}"), yes());
        }
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vendor_and_features_become_labels() {
        let text = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu pni sse4_2 avx2\n\nprocessor\t: 1\nflags\t: other\n";
        let found = labels(text);
        let names: Vec<_> = found.keys().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "cpu-feature.node.kubevirt.io/avx2",
                "cpu-feature.node.kubevirt.io/fpu",
                "cpu-feature.node.kubevirt.io/pni",
                "cpu-feature.node.kubevirt.io/sse4.2",
                "cpu-vendor.node.kubevirt.io/Intel",
            ]
        );
        assert!(labels("").is_empty());
    }
}
