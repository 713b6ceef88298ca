//! Metrics of `HyperConverged`, with upstream's names.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use api::hyperconverged::HyperConvergedStatus;
use api::hyperconverged::v1::HyperConverged;
use serve::metrics::{Kind, Page};

use super::patch;

/// Values of the metrics.
#[derive(Debug, Default)]
pub struct Metrics(Mutex<Values>);

#[derive(Debug, Default)]
struct Values {
    modifications: BTreeMap<String, u64>,
    unsafe_patches: BTreeMap<&'static str, u64>,
    exists: bool,
    health: u8,
    overcommit: i64,
}

impl Metrics {
    /// Counts a child that another client changed or deleted.
    pub fn modified(&self, kind: &str, name: &str) {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *values.modifications.entry(format!("{}/{name}", kind.to_lowercase())).or_default() += 1;
    }

    /// Takes the object over; nothing if there is none.
    pub fn observe(&self, owner: Option<(&HyperConverged, &HyperConvergedStatus)>) {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.exists = owner.is_some();
        let Some((owner, status)) = owner else { return };
        values.health = match status.system_health_status.as_deref() {
            Some("healthy") => 0,
            Some("warning") => 1,
            _ => 2,
        };
        let density = owner.spec.virtualization.as_ref().and_then(|one| one.higher_workload_density.as_ref());
        values.overcommit = density.and_then(|one| one.memory_overcommit_percentage).unwrap_or(100);
        let count = |name: &&'static str| {
            let text = owner.metadata.annotations.get(*name)?;
            Some((*name, patch::parse(text).map_or(0, |patch| patch.0.len() as u64)))
        };
        values.unsafe_patches = patch::ANNOTATIONS.iter().filter_map(count).collect();
    }

    /// Writes them.
    pub fn write(&self, page: &mut Page) {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = "kubevirt_hco_out_of_band_modifications_total";
        page.begin(name, Kind::Counter, "Child objects that were changed or deleted by others and restored.");
        for (component, count) in &values.modifications {
            page.sample(name, &[("component_name", component)], count);
        }
        let name = "kubevirt_hco_unsafe_modifications";
        page.begin(name, Kind::Gauge, "Operations in JSON patch annotations.");
        for (annotation, count) in &values.unsafe_patches {
            page.sample(name, &[("annotation_name", annotation)], count);
        }
        let exists = u8::from(values.exists);
        page.single(
            "kubevirt_hco_hyperconverged_cr_exists",
            Kind::Gauge,
            "Whether HyperConverged exists.",
            exists,
        );
        if values.exists {
            let help = "Health of the platform: 0 healthy, 1 warning, 2 error.";
            page.single("kubevirt_hco_system_health_status", Kind::Gauge, help, values.health);
            let help = "Guest memory as a percentage of the memory that pods request.";
            page.single("kubevirt_hco_memory_overcommit_percentage", Kind::Gauge, help, values.overcommit);
        }
    }
}
