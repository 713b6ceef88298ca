//! Volumes: sources of an instance's volumes, claims and DataVolumes, as controllers see them.

use std::collections::BTreeMap;

use api::resource::Quantity;
use serde::Deserialize;

use super::{Condition, Meta};

/// A volume of a VM or instance, as far as it names a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct VolumeSource {
    pub(crate) name: String,
    data_volume: Option<DataVolumeName>,
    persistent_volume_claim: Option<ClaimName>,
    ephemeral: Option<Ephemeral>,
    memory_dump: Option<ClaimName>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct DataVolumeName {
    name: String,
    hotpluggable: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ClaimName {
    claim_name: String,
    hotpluggable: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Ephemeral {
    persistent_volume_claim: Option<ClaimName>,
}

impl VolumeSource {
    /// A volume that a guest's memory is dumped to.
    pub(crate) fn dump(name: String, claim_name: String) -> Self {
        let claim = ClaimName { claim_name, hotpluggable: true };
        Self { name, memory_dump: Some(claim), ..Self::default() }
    }

    /// Whether it is one that a guest's memory is dumped to.
    pub(crate) fn is_dump(&self) -> bool {
        self.memory_dump.is_some()
    }

    /// Name of the claim that holds the volume: a DataVolume's claim has the DataVolume's name.
    pub(crate) fn claim(&self) -> Option<&str> {
        let ephemeral =
            self.ephemeral.as_ref().and_then(|ephemeral| ephemeral.persistent_volume_claim.as_ref());
        let claim = self.persistent_volume_claim.as_ref().or(self.memory_dump.as_ref()).or(ephemeral);
        self.data_volume().or_else(|| claim.map(|claim| claim.claim_name.as_str()))
    }

    /// Whether it may come and go while the guest runs.
    pub(crate) fn is_hotpluggable(&self) -> bool {
        self.persistent_volume_claim.as_ref().is_some_and(|claim| claim.hotpluggable)
            || self.data_volume.as_ref().is_some_and(|volume| volume.hotpluggable)
            || self.is_dump()
    }

    /// Whether its kind of source is one that snapshots are taken of: a claim that keeps what is written.
    pub(crate) fn is_snapshottable(&self) -> bool {
        self.ephemeral.is_none() && self.claim().is_some()
    }

    /// Name of the DataVolume, where the volume names one.
    pub(crate) fn data_volume(&self) -> Option<&str> {
        self.data_volume.as_ref().map(|volume| volume.name.as_str())
    }
}

/// A PersistentVolumeClaim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Claim {
    pub(crate) metadata: Meta,
    pub(crate) spec: ClaimSpec,
    pub(crate) status: ClaimStatus,
}

/// Its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ClaimSpec {
    pub(crate) volume_mode: Option<String>,
    pub(crate) storage_class_name: Option<String>,
    pub(crate) access_modes: Vec<String>,
    pub(crate) resources: ClaimResources,
}

/// Requested resources.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimResources {
    pub(crate) requests: BTreeMap<String, Quantity>,
}

/// Its status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct ClaimStatus {
    pub(crate) phase: String,
    pub(crate) capacity: BTreeMap<String, Quantity>,
}

impl Claim {
    pub(crate) fn is_bound(&self) -> bool {
        self.status.phase == "Bound"
    }

    pub(crate) fn is_block(&self) -> bool {
        self.spec.volume_mode.as_deref() == Some("Block")
    }

    /// Whether all blocks of its disk are allocated.
    pub(crate) fn is_preallocated(&self) -> bool {
        self.metadata.annotation("cdi.kubevirt.io/storage.preallocation") == Some("true")
    }
}

/// A VolumeSnapshotClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotClass {
    /// Name of the driver that takes the snapshots.
    pub(crate) driver: String,
}

/// CDIConfig: shares of filesystems that are no disk's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct TransferConfig {
    status: TransferStatus,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TransferStatus {
    filesystem_overhead: Overheads,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Overheads {
    global: Option<String>,
    storage_class: BTreeMap<String, String>,
}

impl TransferConfig {
    /// Share of a filesystem claim that its filesystem takes.
    pub(crate) fn overhead(&self, class: Option<&str>) -> Option<&str> {
        let overheads = &self.status.filesystem_overhead;
        let of_class = class.and_then(|class| overheads.storage_class.get(class));
        of_class.or(overheads.global.as_ref()).map(String::as_str)
    }
}

/// For a cache, which keeps all of it.
impl From<&Self> for TransferConfig {
    fn from(read: &Self) -> Self {
        read.clone()
    }
}

/// A DataVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct DataVolume {
    pub(crate) metadata: Meta,
    pub(crate) status: DataVolumeStatus,
}

/// Its status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct DataVolumeStatus {
    pub(crate) phase: String,
    pub(crate) conditions: Vec<Condition>,
}

/// A cache keeps what was read.
impl From<&Self> for Claim {
    fn from(read: &Self) -> Self {
        read.clone()
    }
}

/// A cache keeps what was read.
impl From<&Self> for DataVolume {
    fn from(read: &Self) -> Self {
        read.clone()
    }
}

/// A cache keeps what was read.
impl From<&Self> for SnapshotClass {
    fn from(read: &Self) -> Self {
        read.clone()
    }
}
