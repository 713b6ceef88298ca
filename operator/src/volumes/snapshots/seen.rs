//! VolumeSnapshots, their contents, classes and source claims, reduced to the fields that the snapshot controller decides on.

use cluster::Resource;
use serde_json::Value;

use crate::storage::seen::{Meta, Owner};
use crate::volumes::seen::{CONTENTS, MANAGED_BY, SNAPSHOTS};

/// VolumeSnapshotClasses.
pub(super) const CLASSES: Resource =
    Resource::cluster("snapshot.storage.k8s.io", "v1", "volumesnapshotclasses");

/// Finalizer of a VolumeSnapshot: claims may be restored from it.
pub(super) const AS_SOURCE: &str = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection";
/// Finalizer of a VolumeSnapshot: its content is deleted with it.
pub(super) const BOUND: &str = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection";
/// Finalizer of a VolumeSnapshot that is a member of a VolumeGroupSnapshot.
pub(super) const IN_GROUP: &str = "snapshot.storage.kubernetes.io/volumesnapshot-in-group-protection";
/// Finalizer of a VolumeSnapshotContent.
pub(super) const CONTENT: &str = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection";
/// Finalizer of a claim that a snapshot is being taken of.
pub(super) const CLAIM: &str = "snapshot.storage.kubernetes.io/pvc-as-source-protection";
/// Annotation of a content: its VolumeSnapshot is deleted.
pub(super) const BEING_DELETED: &str = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted";
/// Annotations of a driver's default VolumeSnapshotClass and VolumeGroupSnapshotClass.
const IS_DEFAULT: [&str; 2] = [
    "snapshot.storage.kubernetes.io/is-default-class",
    "groupsnapshot.storage.kubernetes.io/is-default-class",
];

/// An object whose status, finalizers and events the controller writes.
pub(super) trait Object {
    /// The collection of its kind.
    const RESOURCE: Resource;
    /// Its kind.
    const KIND: &'static str;
    /// Its metadata.
    fn meta(&self) -> &Meta;
    /// Its `status.error`.
    fn failure(&self) -> Option<&Failure>;
}

/// A snapshot or group: reasons of its events.
pub(super) trait Announced: Object {
    /// The driver is asked for it.
    const CREATING: &'static str;
    /// The driver has taken it.
    const CREATED: &'static str;
    /// It can be restored.
    const READY: &'static str;
    /// Its content could not be deleted.
    const NOT_DELETED: &'static str;
}

pub(super) fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

/// The node that serves a content.
pub(super) fn node(content: &Meta) -> Option<&str> {
    content.labels.get(MANAGED_BY).map(String::as_str)
}

/// `status.error` of a snapshot or content.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Failure {
    /// When it was noticed.
    pub time: String,
    /// The error.
    pub message: String,
}

impl Failure {
    pub(super) fn of(error: &Value) -> Option<Self> {
        let part = |name: &str| text(&error[name]).unwrap_or_default();
        error.is_object().then(|| Self { time: part("time"), message: part("message") })
    }
}

/// The fields that are read of a VolumeSnapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Snapshot {
    /// Metadata.
    pub meta: Meta,
    /// `spec.volumeSnapshotClassName`.
    pub class: Option<String>,
    /// `spec.source.persistentVolumeClaimName`.
    pub claim: Option<String>,
    /// `spec.source.volumeSnapshotContentName`.
    pub named: Option<String>,
    /// `status.boundVolumeSnapshotContentName`.
    pub bound: Option<String>,
    /// `status.readyToUse`.
    pub ready: Option<bool>,
    /// `status.creationTime`.
    pub taken: Option<String>,
    /// `status.restoreSize`.
    pub size: Option<String>,
    /// `status.error`.
    pub failure: Option<Failure>,
    /// The VolumeGroupSnapshot that it is a member of.
    pub group: Option<Owner>,
}

impl Snapshot {
    /// Whether claims can be restored from it.
    pub(super) fn is_ready(&self) -> bool {
        self.ready == Some(true)
    }

    /// The name of its content.
    pub(super) fn content(&self) -> Option<String> {
        let made = || self.claim.as_ref().map(|_| format!("snapcontent-{}", self.meta.uid));
        self.bound.clone().or_else(|| self.named.clone()).or_else(made)
    }

    /// Whether its deletion waits for the snapshot controller.
    pub(super) fn is_held(&self) -> bool {
        self.meta.deleting
            && self.meta.finalizers.iter().any(|name| [AS_SOURCE, BOUND, IN_GROUP].contains(&name.as_str()))
    }
}

impl Object for Snapshot {
    const RESOURCE: Resource = SNAPSHOTS;
    const KIND: &'static str = "VolumeSnapshot";

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }
}

impl Announced for Snapshot {
    const CREATING: &'static str = "CreatingSnapshot";
    const CREATED: &'static str = "SnapshotCreated";
    const READY: &'static str = "SnapshotReady";
    const NOT_DELETED: &'static str = "SnapshotContentObjectDeleteError";
}

impl From<&Value> for Snapshot {
    fn from(object: &Value) -> Self {
        let (meta, status) = (Meta::from(object), &object["status"]);
        let source = &object["spec"]["source"];
        Self {
            class: text(&object["spec"]["volumeSnapshotClassName"]),
            claim: text(&source["persistentVolumeClaimName"]),
            named: text(&source["volumeSnapshotContentName"]),
            bound: text(&status["boundVolumeSnapshotContentName"]).filter(|name| !name.is_empty()),
            ready: status["readyToUse"].as_bool(),
            taken: text(&status["creationTime"]),
            size: text(&status["restoreSize"]),
            failure: Failure::of(&status["error"]),
            group: meta.owners.iter().find(|owner| owner.kind == "VolumeGroupSnapshot").cloned(),
            meta,
        }
    }
}

/// The fields that are read of a VolumeSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    /// Metadata.
    pub meta: Meta,
    /// Whether `spec.deletionPolicy` is Delete.
    pub deletes: bool,
    /// `spec.volumeSnapshotClassName`.
    pub class: Option<String>,
    /// Namespace, name and id in `spec.volumeSnapshotRef`.
    pub of: (String, String, String),
    /// `spec.source.volumeHandle`.
    pub volume: Option<String>,
    /// `spec.source.snapshotHandle`.
    pub snapshot: Option<String>,
    /// `status.creationTime`, nanoseconds since 1970.
    pub taken: Option<u64>,
    /// `status.readyToUse`.
    pub ready: Option<bool>,
    /// `status.restoreSize`, bytes.
    pub size: Option<u64>,
    /// `status.error`.
    pub failure: Option<Failure>,
}

impl Content {
    /// Whether it refers to this snapshot: `bound` also by its id.
    pub(super) fn is_of(&self, snapshot: &Snapshot, bound: bool) -> bool {
        let (namespace, name, uid) = &self.of;
        let same = *namespace == snapshot.meta.namespace && *name == snapshot.meta.name;
        same && (*uid == snapshot.meta.uid || (!bound && uid.is_empty()))
    }

    /// Whether its snapshot is marked as deleted.
    pub(super) fn is_marked(&self) -> bool {
        self.meta.annotation(BEING_DELETED).is_some()
    }
}

impl Object for Content {
    const RESOURCE: Resource = CONTENTS;
    const KIND: &'static str = "VolumeSnapshotContent";

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }
}

impl From<&Value> for Content {
    fn from(object: &Value) -> Self {
        let (spec, status) = (&object["spec"], &object["status"]);
        let of = |name: &str| text(&spec["volumeSnapshotRef"][name]).unwrap_or_default();
        Self {
            meta: Meta::from(object),
            deletes: spec["deletionPolicy"] == "Delete",
            class: text(&spec["volumeSnapshotClassName"]),
            of: (of("namespace"), of("name"), of("uid")),
            volume: text(&spec["source"]["volumeHandle"]),
            snapshot: text(&spec["source"]["snapshotHandle"]),
            taken: status["creationTime"].as_u64(),
            ready: status["readyToUse"].as_bool(),
            size: status["restoreSize"].as_u64(),
            failure: Failure::of(&status["error"]),
        }
    }
}

/// The fields that are read of a VolumeSnapshotClass or VolumeGroupSnapshotClass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    /// Its name.
    pub name: String,
    /// `driver`.
    pub driver: String,
    /// Whether it is marked as the driver's default.
    pub is_default: bool,
}

impl From<&Value> for Class {
    fn from(object: &Value) -> Self {
        Self {
            name: text(&object["metadata"]["name"]).unwrap_or_default(),
            driver: text(&object["driver"]).unwrap_or_default(),
            is_default: IS_DEFAULT.iter().any(|name| object["metadata"]["annotations"][name] == "true"),
        }
    }
}

/// The fields that are read of a claim.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Claim {
    /// Whether it has the finalizer of a source.
    pub protected: bool,
    /// Whether it is bound.
    pub bound: bool,
    /// The VolumeSnapshot that it is being restored from.
    pub restores: Option<String>,
}

impl From<&Value> for Claim {
    fn from(object: &Value) -> Self {
        let phase = object["status"]["phase"].as_str();
        let finalizers = object["metadata"]["finalizers"].as_array().into_iter().flatten();
        let source = &object["spec"]["dataSource"];
        let restored = phase == Some("Pending")
            && source["kind"] == "VolumeSnapshot"
            && source["apiGroup"] == "snapshot.storage.k8s.io";
        Self {
            protected: finalizers.into_iter().any(|one| one == CLAIM),
            bound: phase == Some("Bound"),
            restores: text(&source["name"]).filter(|_| restored),
        }
    }
}
