//! Tests of the store: what is kept, batches, what is looked at after a change.

use std::fs;

use api::cdi::DataVolume;
use api::core::{ConfigMap, PersistentVolumeClaim, Secret};
use api::kubevirt::VirtualMachine;
use serde_json::Value;

use super::batch::{JOURNAL, Journal, Journaled};
use super::*;

fn secret(name: &str) -> Secret {
    let mut secret = Secret::default();
    secret.metadata.name = name.to_owned();
    secret.metadata.namespace = Some("default".to_owned());
    secret
}

#[test]
fn stored_objects_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    let mut object = secret("a");
    store.put(&object).unwrap();
    store.put(&object).unwrap();
    assert_eq!(store.changes(), 1, "the same again is no change");
    object.purpose = Some("Opaque".to_owned());
    store.put(&object).unwrap();
    store.put(&secret("b")).unwrap();
    store.remove(&secret("b").key()).unwrap();
    store.remove(&secret("b").key()).unwrap();
    let store = Store::open(folder.path()).unwrap();
    let found: Vec<_> = store.all::<Secret>().collect();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].purpose.as_deref(), Some("Opaque"));
    assert_eq!(found[0].metadata.resource_version.as_deref(), Some("2"));
    assert!(store.get::<Secret>("default", "a").is_some());
    assert!(store.get::<ConfigMap>("default", "a").is_none());
}

#[test]
fn a_torn_or_newer_file_is_named_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    store.put(&secret("a")).unwrap();
    let file = folder.path().join("Secret/default/a");
    let whole = fs::read(&file).unwrap();
    for (text, problem) in [
        (&whole[..whole.len() / 2], "not valid JSON"),
        (b"", "not valid JSON"),
        (b"{\"version\": 3, \"object\": {}}", "newer release (version 3)"),
        (b"{\"version\": 1}", "no object"),
    ] {
        fs::write(&file, text).unwrap();
        let error = Store::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(problem) && error.contains("Secret/default/a"), "{error}");
        assert_eq!(fs::read(&file).unwrap(), text, "nothing is lost");
    }
    // A write that was cut short has another name.
    fs::write(&file, &whole).unwrap();
    fs::write(folder.path().join("Secret/default/.tmp1234"), "{").unwrap();
    assert_eq!(Store::open(folder.path()).unwrap().all::<Secret>().count(), 1);
}

#[test]
fn a_batch_is_kept_as_a_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    store.put(&secret("a")).unwrap();
    let mut changed = secret("a");
    changed.purpose = Some("Opaque".to_owned());
    store.begin();
    store.put_durably(&changed).unwrap();
    store.put_durably(&secret("b")).unwrap();
    assert!(store.get::<Secret>("default", "b").is_some());
    assert_eq!(store.roll_back().len(), 2);
    let is_before = |store: &Store| {
        let a = store.get::<Secret>("default", "a").unwrap();
        assert!(a.purpose.is_none() && store.get::<Secret>("default", "b").is_none());
    };
    is_before(&store);
    is_before(&Store::open(folder.path()).unwrap());
    // One of its files cannot be written.
    let space = folder.path().join("ConfigMap");
    fs::write(&space, "in the way").unwrap();
    let mut map = ConfigMap::default();
    map.metadata.name = "c".to_owned();
    map.metadata.namespace = Some("default".to_owned());
    store.begin();
    store.put_durably(&changed).unwrap();
    store.put_durably(&map).unwrap();
    let (error, keys) = store.commit().unwrap_err();
    assert!(error.to_string().contains("nothing of the request is kept"), "{error}");
    assert_eq!(keys.len(), 2);
    is_before(&store);
    fs::remove_file(&space).unwrap();
    is_before(&Store::open(folder.path()).unwrap());
    store.begin();
    store.put_durably(&changed).unwrap();
    store.put_durably(&map).unwrap();
    store.commit().unwrap();
    assert!(!folder.path().join(JOURNAL).exists());
    let store = Store::open(folder.path()).unwrap();
    assert!(store.get::<ConfigMap>("default", "c").is_some());
    assert!(store.get::<Secret>("default", "a").unwrap().purpose.is_some());
}

#[test]
fn a_batch_that_a_kill_cut_short_is_completed() {
    let folder = tempfile::tempdir().unwrap();
    let object = serde_json::to_value(secret("a")).unwrap();
    let object = Journaled { kind: "Secret".into(), namespace: "default".into(), name: "a".into(), object };
    let journal = serde_json::to_vec(&Journal { version: VERSION, objects: vec![object] }).unwrap();
    fs::write(folder.path().join(JOURNAL), journal).unwrap();
    for _ in 0..2 {
        let store = Store::open(folder.path()).unwrap();
        assert!(store.get::<Secret>("default", "a").is_some());
        assert!(!folder.path().join(JOURNAL).exists());
    }
    fs::write(folder.path().join(JOURNAL), "{").unwrap();
    let error = Store::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("journal: ") && error.contains("move it away"), "{error}");
}

#[test]
fn a_change_has_what_depends_on_it_looked_at_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Store::open(folder.path()).unwrap();
    let of = |object: &Value| object.clone();
    let machine = |name: &str, claim: &str| -> VirtualMachine {
        serde_json::from_value(of(&serde_json::json!({
            "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}")},
            "spec": {"template": {"spec": {
                "domain": {"devices": {}},
                "volumes": [{"name": "a", "persistentVolumeClaim": {"claimName": claim}}],
            }}},
        })))
        .unwrap()
    };
    let claim = |name: &str| -> PersistentVolumeClaim {
        serde_json::from_value(of(&serde_json::json!({
            "metadata": {"name": name, "namespace": "n", "uid": format!("uid-{name}")},
        })))
        .unwrap()
    };
    let clone: DataVolume = serde_json::from_value(of(&serde_json::json!({
        "metadata": {"name": "copy", "namespace": "n", "uid": "uid-copy"},
        "spec": {"source": {"pvc": {"name": "disk-1"}}},
    })))
    .unwrap();
    for number in 0..3 {
        store.put(&machine(&format!("vm-{number}"), &format!("disk-{number}"))).unwrap();
        store.put(&claim(&format!("disk-{number}"))).unwrap();
    }
    store.put(&clone).unwrap();
    store.take_dirty();
    store.touch_called("uid-disk-1");
    let names: Vec<String> = store.take_dirty().iter().map(ToString::to_string).collect();
    for name in [
        "PersistentVolumeClaim n/disk-1",
        "VirtualMachine n/vm-1",
        "DataVolume n/copy",
        "PersistentVolumeClaim n/copy",
    ] {
        assert!(names.iter().any(|one| one == name), "{name}: {names:?}");
    }
    assert!(!names.iter().any(|name| name.ends_with("-0") || name.ends_with("-2")), "{names:?}");
    assert_eq!(store.called::<VirtualMachine>("uid-vm-2").unwrap().metadata.name, "vm-2");
    assert_eq!(store.users::<VirtualMachine>("n", "disk-2").count(), 1);
    store.remove(&machine("vm-2", "").key()).unwrap();
    assert_eq!(store.users::<VirtualMachine>("n", "disk-2").count(), 0);
    assert!(store.called::<VirtualMachine>("uid-vm-2").is_none());
}
