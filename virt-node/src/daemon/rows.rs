//! What `list` shows of objects: a line's words of each machine, run and volume, so that a thousand machines are a short
//! answer. Not here: the objects as they are kept (`requests`), columns (`command::objects`).

use api::kind::Kind;
use serde_json::Value;
use virt::time;

use super::store::{Key, Store};
use crate::protocol::{Answer, GuestRow, VolumeRow};

/// The lines, sorted by namespace and name; machines come before runs that belong to none.
pub(super) fn rows(store: &Store) -> Answer {
    let mut guests: Vec<GuestRow> =
        store.values(Kind::VirtualMachine).map(|machine| guest(machine, "/status/printableStatus")).collect();
    let alone = store
        .values(Kind::VirtualMachineInstance)
        .filter(|run| run.pointer("/metadata/ownerReferences").is_none());
    guests.extend(alone.map(|run| guest(run, "/status/phase")));
    let volumes = store.values(Kind::PersistentVolumeClaim).map(|claim| volume(store, claim)).collect();
    Answer::Rows { guests, volumes }
}

fn text(object: &Value, path: &str) -> String {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn created(object: &Value) -> u64 {
    time::seconds(&text(object, "/metadata/creationTimestamp")).unwrap_or_else(time::now)
}

fn guest(object: &Value, state: &str) -> GuestRow {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    let ready = conditions.into_iter().flatten().find(|one| one["type"] == "Ready");
    GuestRow {
        namespace: text(object, "/metadata/namespace"),
        name: text(object, "/metadata/name"),
        created: created(object),
        state: text(object, state),
        ready: ready.and_then(|one| one["status"].as_str()).unwrap_or("False").to_owned(),
    }
}

fn volume(store: &Store, claim: &Value) -> VolumeRow {
    let (namespace, name) = (text(claim, "/metadata/namespace"), text(claim, "/metadata/name"));
    let source = store.value(&Key::new(Kind::DataVolume, &namespace, &name));
    VolumeRow {
        created: created(claim),
        state: text(source.unwrap_or(claim), "/status/phase"),
        size: text(claim, "/spec/resources/requests/storage"),
        progress: source.map(|source| text(source, "/status/progress")).unwrap_or_default(),
        namespace,
        name,
    }
}
