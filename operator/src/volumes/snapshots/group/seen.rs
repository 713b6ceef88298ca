//! VolumeGroupSnapshots and their contents, reduced to the fields that the snapshot controller decides on.

use api::core::LabelSelector;
use cluster::Resource;
use serde_json::Value;

use super::super::seen::{Announced, Failure, Object, text};
use crate::storage::seen::Meta;

const API: &str = "groupsnapshot.storage.k8s.io";
/// The version that is read and written. Others are served from the same objects.
const VERSION: &str = "v1beta2";
/// VolumeGroupSnapshots.
pub(in super::super) const GROUPS: Resource = Resource::namespaced(API, VERSION, "volumegroupsnapshots");
/// VolumeGroupSnapshotContents.
pub(in crate::volumes) const GROUP_CONTENTS: Resource =
    Resource::cluster(API, VERSION, "volumegroupsnapshotcontents");
/// VolumeGroupSnapshotClasses.
pub(in super::super) const GROUP_CLASSES: Resource =
    Resource::cluster(API, VERSION, "volumegroupsnapshotclasses");

/// Finalizer of a VolumeGroupSnapshot: its content is deleted with it.
pub(super) const BOUND: &str = "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-bound-protection";
/// Finalizer of a VolumeGroupSnapshotContent.
pub(super) const CONTENT: &str =
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshotcontent-bound-protection";
/// Annotation of a content: its VolumeGroupSnapshot is deleted.
pub(super) const BEING_DELETED: &str =
    "groupsnapshot.storage.kubernetes.io/volumegroupsnapshot-being-deleted";

/// The fields that are read of a VolumeGroupSnapshot.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in super::super) struct Group {
    /// Metadata.
    pub meta: Meta,
    /// `spec.volumeGroupSnapshotClassName`.
    pub class: Option<String>,
    /// `spec.source.selector`.
    pub selector: Option<LabelSelector>,
    /// `spec.source.volumeGroupSnapshotContentName`.
    pub named: Option<String>,
    /// `status.boundVolumeGroupSnapshotContentName`.
    pub bound: Option<String>,
    /// `status.readyToUse`.
    pub ready: Option<bool>,
    /// `status.creationTime`.
    pub taken: Option<String>,
    /// `status.error`.
    pub failure: Option<Failure>,
}

impl Group {
    /// The name of its content.
    pub(in super::super) fn content(&self) -> Option<String> {
        let made = || self.selector.as_ref().map(|_| format!("groupsnapcontent-{}", self.meta.uid));
        self.bound.clone().or_else(|| self.named.clone()).or_else(made)
    }

    /// Whether its deletion waits for the snapshot controller.
    pub(super) fn is_held(&self) -> bool {
        self.meta.deleting && self.meta.finalizers.iter().any(|name| name == BOUND)
    }
}

impl Object for Group {
    const RESOURCE: Resource = GROUPS;
    const KIND: &'static str = "VolumeGroupSnapshot";

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }
}

impl Announced for Group {
    const CREATING: &'static str = "CreatingGroupSnapshot";
    const CREATED: &'static str = "GroupSnapshotCreated";
    const READY: &'static str = "GroupSnapshotReady";
    const NOT_DELETED: &'static str = "GroupSnapshotContentObjectDeleteError";
}

impl From<&Value> for Group {
    fn from(object: &Value) -> Self {
        let (spec, status) = (&object["spec"], &object["status"]);
        let selector = spec["source"].get("selector").filter(|selector| selector.is_object());
        Self {
            meta: Meta::from(object),
            class: text(&spec["volumeGroupSnapshotClassName"]),
            selector: selector.and_then(|one| serde_json::from_value(one.clone()).ok()),
            named: text(&spec["source"]["volumeGroupSnapshotContentName"]),
            bound: text(&status["boundVolumeGroupSnapshotContentName"]).filter(|name| !name.is_empty()),
            ready: status["readyToUse"].as_bool(),
            taken: text(&status["creationTime"]),
            failure: Failure::of(&status["error"]),
        }
    }
}

/// A snapshot of a group, as the driver made it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// Its volume.
    pub volume: String,
    /// Its handle.
    pub snapshot: String,
    /// When it was taken, nanoseconds since 1970.
    pub time: Option<u64>,
    /// Whether it can be restored.
    pub ready: Option<bool>,
    /// Bytes that a volume restored from it needs.
    pub size: Option<u64>,
}

/// The fields that are read of a VolumeGroupSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct GroupContent {
    /// Metadata.
    pub meta: Meta,
    /// `spec.deletionPolicy`.
    pub policy: String,
    /// `spec.driver`.
    pub driver: String,
    /// Namespace, name and id in `spec.volumeGroupSnapshotRef`.
    pub of: (String, String, String),
    /// `spec.volumeGroupSnapshotClassName`.
    pub class: Option<String>,
    /// Whether it has `spec.source.groupSnapshotHandles`: its group was taken elsewhere.
    pub given: bool,
    /// `status.volumeGroupSnapshotHandle`.
    pub(super) handle: Option<String>,
    /// `status.volumeSnapshotInfoList`.
    pub(super) taken: Vec<Taken>,
    /// `status.creationTime`.
    pub time: Option<String>,
    /// `status.readyToUse`.
    pub ready: Option<bool>,
    /// `status.error`.
    pub failure: Option<Failure>,
}

impl GroupContent {
    /// Whether it refers to this group.
    pub(super) fn is_of(&self, group: &Group) -> bool {
        self.of.2 == group.meta.uid && self.names(group)
    }

    /// Whether it refers to this group by name, and to no other by id.
    pub(super) fn may_be_of(&self, group: &Group) -> bool {
        self.names(group) && (self.of.2.is_empty() || self.of.2 == group.meta.uid)
    }

    fn names(&self, group: &Group) -> bool {
        let (namespace, name, _) = &self.of;
        *namespace == group.meta.namespace && *name == group.meta.name
    }

    /// Whether the group is deleted with it.
    pub(super) fn deletes(&self) -> bool {
        self.policy == "Delete"
    }

    /// Whether its group is marked as deleted.
    pub(super) fn is_marked(&self) -> bool {
        self.meta.annotation(BEING_DELETED).is_some()
    }
}

impl Object for GroupContent {
    const RESOURCE: Resource = GROUP_CONTENTS;
    const KIND: &'static str = "VolumeGroupSnapshotContent";

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }
}

impl From<&Value> for GroupContent {
    fn from(object: &Value) -> Self {
        let (spec, status) = (&object["spec"], &object["status"]);
        let of = |name: &str| text(&spec["volumeGroupSnapshotRef"][name]).unwrap_or_default();
        let taken = status["volumeSnapshotInfoList"].as_array().into_iter().flatten();
        let taken = taken.map(|one| Taken {
            volume: text(&one["volumeHandle"]).unwrap_or_default(),
            snapshot: text(&one["snapshotHandle"]).unwrap_or_default(),
            time: one["creationTime"].as_u64(),
            ready: one["readyToUse"].as_bool(),
            size: one["restoreSize"].as_u64(),
        });
        Self {
            meta: Meta::from(object),
            policy: text(&spec["deletionPolicy"]).unwrap_or_default(),
            driver: text(&spec["driver"]).unwrap_or_default(),
            of: (of("namespace"), of("name"), of("uid")),
            class: text(&spec["volumeGroupSnapshotClassName"]),
            given: spec["source"]["groupSnapshotHandles"].is_object(),
            handle: text(&status["volumeGroupSnapshotHandle"]).filter(|handle| !handle.is_empty()),
            taken: taken.collect(),
            time: text(&status["creationTime"]),
            ready: status["readyToUse"].as_bool(),
            failure: Failure::of(&status["error"]),
        }
    }
}
