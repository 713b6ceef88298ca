//! How often the controller has reconciled each instance that exists.
//!
//! Not here: reconciliations by the node agents.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use cluster::Key;
use serve::metrics::{Kind, Page};

/// Reconciliations since the start of the process.
#[derive(Debug, Default)]
pub(in crate::compute) struct Syncs(Mutex<BTreeMap<Key, u64>>);

impl Syncs {
    /// Counts a reconciliation; `exists`: whether the instance does. Others are forgotten.
    pub(in crate::compute) fn count(&self, key: &Key, exists: bool) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if exists {
            *all.entry(key.clone()).or_default() += 1;
        } else {
            all.remove(key);
        }
    }

    /// Adds the metric.
    pub(in crate::compute) fn write(&self, page: &mut Page) {
        let name = "kubevirt_vmi_sync_total";
        page.begin(name, Kind::Counter, "Total number of times a VirtualMachineInstance was synced.");
        for (key, count) in &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            let labels =
                [("controller", "virt-controller"), ("namespace", key.namespace()), ("name", key.name())];
            page.sample(name, &labels, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_that_exist_are_counted() {
        let syncs = Syncs::default();
        let (kept, gone) = (Key::new("n", "kept"), Key::new("n", "gone"));
        for (key, exists) in [(&kept, true), (&gone, true), (&kept, true), (&gone, false)] {
            syncs.count(key, exists);
        }
        let mut page = Page::default();
        syncs.write(&mut page);
        let text = page.text();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let labels = r#"controller="virt-controller",namespace="n",name="kept""#;
        assert_eq!(samples, [format!("kubevirt_vmi_sync_total{{{labels}}} 2")]);
    }
}
