//! The actions of a plan. Every action is idempotent: repeating it after a crash changes nothing, and an action whose object
//! has changed since it was read fails and is planned again.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::storage::seen::Meta;

/// A change of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Create an object. The name is derived from its owner, so an object that exists already is the one from an
    /// earlier attempt.
    Create(Value),
    /// Change annotations and labels of a claim; `None` removes one.
    Annotate {
        /// Namespace and name.
        claim: (String, String),
        /// The claim's id; another claim of that name is left alone.
        uid: String,
        /// Annotations.
        annotations: BTreeMap<String, Option<String>>,
        /// Labels to add.
        labels: BTreeMap<String, String>,
    },
    /// Change annotations of a DataVolume.
    Mark {
        /// Namespace and name.
        volume: (String, String),
        /// Its id; another DataVolume of that name is left alone.
        uid: String,
        /// Annotations.
        annotations: BTreeMap<String, String>,
    },
    /// Point a volume at another claim.
    Rebind {
        /// The volume's name.
        volume: String,
        /// The version that was looked at: the write fails when the volume has changed since.
        version: String,
        /// Namespace, name and id of the claim that gets it.
        claim: (String, String, String),
    },
    /// Add an owner reference to a claim.
    Adopt {
        /// Namespace and name.
        claim: (String, String),
        /// The version that was looked at.
        version: String,
        /// All owner references, the new one included.
        owners: Value,
        /// Annotations to set with it.
        annotations: BTreeMap<String, String>,
    },
    /// Delete an object if it is still the one that was looked at.
    Delete {
        /// The kind of object.
        kind: Kind,
        /// Namespace and name.
        key: (String, String),
        /// Its id.
        uid: String,
    },
    /// Delete a claim's upload server's Service, and with it the Secret that it owns.
    Release {
        /// Namespace and name of the Service.
        service: (String, String),
        /// Id of the claim that it belongs to; another one's is left alone.
        claim: String,
    },
    /// Ask for more room in a claim.
    Expand {
        /// Namespace and name.
        claim: (String, String),
        /// The claim's id.
        uid: String,
        /// Bytes.
        size: u64,
    },
    /// Set a claim's finalizers.
    Finalize {
        /// Namespace and name.
        claim: (String, String),
        /// The version that was looked at.
        version: String,
        /// All of them.
        finalizers: Vec<String>,
    },
    /// Delete an object with a name made of an id, which no other object shares.
    Forget {
        /// The kind of object.
        kind: Kind,
        /// Namespace and name.
        key: (String, String),
    },
    /// Report something about an object.
    Report(Event),
}

/// Kinds that are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// PersistentVolumeClaim.
    Claim,
    /// Pod.
    Pod,
    /// Service.
    Service,
    /// Secret.
    Secret,
    /// VolumeSnapshot.
    Snapshot,
}

/// The object that an event is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// `apiVersion`.
    pub api_version: &'static str,
    /// `kind`.
    pub kind: &'static str,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Id.
    pub uid: String,
}

impl About {
    /// A claim.
    pub fn claim(meta: &Meta) -> Self {
        Self::of("v1", "PersistentVolumeClaim", meta)
    }

    /// A DataVolume.
    pub fn data_volume(meta: &Meta) -> Self {
        Self::of(super::names::API_VERSION, "DataVolume", meta)
    }

    /// A DataImportCron.
    pub fn cron(meta: &Meta) -> Self {
        Self::of(super::names::API_VERSION, "DataImportCron", meta)
    }

    fn of(api_version: &'static str, kind: &'static str, meta: &Meta) -> Self {
        let (namespace, name, uid) = (meta.namespace.clone(), meta.name.clone(), meta.uid.clone());
        Self { api_version, kind, namespace, name, uid }
    }
}

/// An event of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The object.
    pub about: About,
    /// Whether it is a Warning.
    pub warning: bool,
    /// For programs.
    pub reason: String,
    /// For people.
    pub message: String,
}

impl Event {
    /// A Normal event.
    pub fn normal(about: About, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { about, warning: false, reason: reason.into(), message: message.into() }
    }

    /// A Warning.
    pub fn warning(about: About, reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self { about, warning: true, reason: reason.into(), message: message.into() }
    }
}
