//! Kinds of stored objects and their keys. Not here: the files ([`super::store`]).

use api::cdi::DataVolume;
use api::core::{ConfigMap, PersistentVolumeClaim, Secret};
use api::kind::Kind;
use api::kubevirt::{VirtualMachine, VirtualMachineInstance};
use api::multus::NetworkAttachmentDefinition;
use api::resource::ObjectMeta;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The key of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// The key of events of the daemon itself: a part of it, in no namespace, and no object.
    pub(crate) fn daemon(part: &str) -> Self {
        Self::new(Kind::ConfigMap, "", part)
    }

    /// The kind in messages for users.
    pub(crate) fn shown_kind(&self) -> &'static str {
        if self.kind == Kind::ConfigMap && self.namespace.is_empty() { "Daemon" } else { self.kind.name() }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}/{}", self.shown_kind(), self.namespace, self.name)
    }
}

/// A kind of object that is kept.
pub(super) trait Stored: Serialize + DeserializeOwned + Clone + Send + Sync + 'static {
    const KIND: Kind;
    fn metadata(&self) -> &ObjectMeta;
    fn metadata_mut(&mut self) -> &mut ObjectMeta;

    fn key(&self) -> Key {
        let metadata = self.metadata();
        Key::new(Self::KIND, metadata.namespace.as_deref().unwrap_or_default(), &metadata.name)
    }

    fn uid(&self) -> &str {
        self.metadata().uid.as_deref().unwrap_or_default()
    }

    fn is_deleting(&self) -> bool {
        self.metadata().deletion_timestamp.is_some()
    }
}

macro_rules! stored {
    ($($kind:ident: $type:ty,)*) => {$(
        impl Stored for $type {
            const KIND: Kind = Kind::$kind;
            fn metadata(&self) -> &ObjectMeta {
                &self.metadata
            }
            fn metadata_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    )*};
}
stored! {
    VirtualMachine: VirtualMachine,
    VirtualMachineInstance: VirtualMachineInstance,
    DataVolume: DataVolume,
    PersistentVolumeClaim: PersistentVolumeClaim,
    NetworkAttachmentDefinition: NetworkAttachmentDefinition,
    Secret: Secret,
    ConfigMap: ConfigMap,
}
