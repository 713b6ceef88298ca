//! `VirtualMachineInstanceReplicaSet` and `VirtualMachinePool` as controllers see them. Their templates are read when
//! something is made of them.

use api::core::LabelSelector;
use api::kubevirt::{Autohealing, PoolUpdateStrategy, ScaleInStrategy};
use api::resource::IntOrString;
use serde::{Deserialize, Serialize};

use super::{Condition, Meta};

/// A VirtualMachineInstanceReplicaSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct ReplicaSet {
    pub(crate) metadata: Meta,
    pub(crate) spec: ReplicaSetSpec,
    pub(crate) status: SetStatus,
}

/// Its spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct ReplicaSetSpec {
    pub(crate) paused: bool,
    pub(crate) replicas: Option<u32>,
    pub(crate) selector: LabelSelector,
}

/// A VirtualMachinePool.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Pool {
    pub(crate) metadata: Meta,
    pub(crate) spec: PoolSpec,
    pub(crate) status: SetStatus,
}

/// Its spec.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct PoolSpec {
    pub(crate) paused: bool,
    pub(crate) replicas: Option<u32>,
    pub(crate) selector: LabelSelector,
    pub(crate) max_unavailable: Option<IntOrString>,
    pub(crate) scale_in_strategy: Option<ScaleInStrategy>,
    pub(crate) update_strategy: Option<PoolUpdateStrategy>,
    pub(crate) autohealing: Option<Autohealing>,
}

/// The status of both.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct SetStatus {
    pub(crate) replicas: u32,
    pub(crate) ready_replicas: u32,
    pub(crate) label_selector: String,
    pub(crate) conditions: Vec<Condition>,
}

/// A cache keeps what was read.
impl From<&Self> for ReplicaSet {
    fn from(read: &Self) -> Self {
        read.clone()
    }
}

/// A cache keeps what was read.
impl From<&Self> for Pool {
    fn from(read: &Self) -> Self {
        read.clone()
    }
}

/// A ControllerRevision, without the object that it keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Revision {
    pub(crate) metadata: Meta,
}
