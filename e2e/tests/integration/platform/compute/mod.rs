//! KubeVirt's compute API at the real cluster: volumes that come and go, live updates, power with its options, instance
//! types, sets and pools.

mod devices;
mod hotplug;
mod inside;
mod live;
mod overhead;
mod power;
mod requests;
mod rights;
mod sessions;
mod sets;
mod tools;
mod usb;
mod vms;
mod waiting;

use std::fs;

use cluster::Resource;
use e2e::volume::Volume;
use serde_json::Value;

use crate::platform::guest;
use crate::platform::place::{INSTANCES, PLACE};

pub(super) const REVISIONS: Resource = Resource::namespaced("apps", "v1", "controllerrevisions");

/// Calls a verb of `subresources.kubevirt.io` with a body.
pub(super) fn put(namespace: &str, path: &str, body: &Value) -> Result<(), String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), body.to_string()).unwrap();
    let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/{path}");
    PLACE.kubectl(&["replace", "--raw", &path, "-f", file.path().to_str().unwrap()]).map(drop)
}

/// Reads a subresource.
pub(super) fn get(namespace: &str, path: &str) -> Result<Value, String> {
    let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/{path}");
    PLACE.kubectl(&["get", "--raw", &path]).map(|text| serde_json::from_str(&text).unwrap())
}

/// Merges a patch into a VM.
pub(super) fn patch(namespace: &str, name: &str, patch: &Value) {
    let patch = patch.to_string();
    PLACE.kubectl(&["-n", namespace, "patch", "vm", name, "--type=merge", "-p", &patch]).unwrap();
}

/// A condition of an object.
pub(super) fn condition(object: &Value, kind: &str) -> Option<Value> {
    let all = object["status"]["conditions"].as_array()?;
    all.iter().find(|one| one["type"] == kind).cloned()
}

/// The instance of a VM.
#[track_caller]
pub(super) fn instance(namespace: &str, name: &str) -> Value {
    PLACE.find(INSTANCES, namespace, name).unwrap()
}

/// A claim with an empty disk of 1 MiB: a file, or a device.
pub(super) fn claim(namespace: &str, name: &str, block: bool) -> Volume {
    if block {
        return Volume::block(&PLACE.cluster, namespace, name, guest::SIZE).unwrap();
    }
    let volume = Volume::filesystem(&PLACE.cluster, namespace, name, guest::SIZE).unwrap();
    let disk = volume.path().join("disk.img");
    fs::File::create(&disk).unwrap().set_len(guest::SIZE).unwrap();
    std::os::unix::fs::chown(&disk, Some(107), Some(107)).unwrap();
    volume
}
