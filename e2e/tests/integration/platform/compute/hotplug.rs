//! Volumes that come to a guest that runs, and go: through the VM and through the instance, on files and devices, while the
//! agent is replaced; and media of a CD drive.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use e2e::volume::Volume;
use serde_json::{Value, json};

use super::{claim, condition, instance, put};
use crate::platform::guest;
use crate::platform::machines::{create, machine, until_answers};
use crate::platform::place::{MACHINES, PLACE, PODS};
use crate::platform::streams::replace_agent_at;

/// The body of `addvolume`.
fn body(name: &str, claim: &str, disk: &Value) -> Value {
    json!({"name": name, "disk": disk, "volumeSource": {"persistentVolumeClaim": {"claimName": claim}}})
}

fn scsi() -> Value {
    json!({"disk": {"bus": "scsi"}})
}

/// A volume in the status of the instance.
fn volume(namespace: &str, name: &str) -> Option<Value> {
    let status = instance(namespace, "vm")["status"]["volumeStatus"].clone();
    status.as_array()?.iter().find(|one| one["name"] == name).cloned()
}

#[track_caller]
fn until_ready(namespace: &str, name: &str) -> Value {
    PLACE.until(namespace, &format!("volume {name} is Ready"), || {
        volume(namespace, name).filter(|one| one["phase"] == "Ready")
    })
}

#[track_caller]
fn until_gone(namespace: &str, name: &str) {
    PLACE.until(namespace, &format!("volume {name} is gone"), || {
        volume(namespace, name).is_none().then_some(())
    });
}

/// The process of a VM's QEMU.
#[track_caller]
fn qemu(namespace: &str) -> String {
    let wanted = format!("guest={namespace}_vm,");
    let found = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let line = fs::read(path.join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(&wanted).then(|| path.display().to_string())
    });
    let found: Vec<String> = found.collect();
    assert_eq!(found.len(), 1, "{wanted}: {found:?}");
    found[0].clone()
}

/// How often the VM's QEMU has a file or device open.
fn opened(namespace: &str, path: &Path) -> usize {
    let wanted = fs::metadata(path).unwrap();
    let same = |found: &fs::Metadata| match wanted.rdev() {
        0 => (found.dev(), found.ino()) == (wanted.dev(), wanted.ino()),
        device => found.rdev() == device,
    };
    let files = fs::read_dir(format!("{}/fd", qemu(namespace))).unwrap();
    files.filter(|file| fs::metadata(file.as_ref().unwrap().path()).is_ok_and(|found| same(&found))).count()
}

/// Mounts of volumes in the launcher's container.
fn hotplug_mounts(namespace: &str) -> usize {
    let mounts = fs::read_to_string(format!("{}/mounts", qemu(namespace))).unwrap();
    mounts.lines().filter(|line| line.contains("hotplug-disks/")).count()
}

fn attachment_pods(namespace: &str) -> Vec<String> {
    let pods = PLACE.list(PODS, namespace);
    let names = pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned());
    names.filter(|name| name.starts_with("hp-volume-")).collect()
}

/// The disk of a claim.
fn disk(volume: &Volume) -> std::path::PathBuf {
    if volume.is_block() { volume.path().to_owned() } else { volume.path().join("disk.img") }
}

#[test]
fn disks_come_and_go_while_the_guest_runs() {
    let namespace = "hotplug";
    PLACE.namespace(namespace);
    let _root = create(namespace, "vm", "Always", 0);
    let (file, device) = (claim(namespace, "file", false), claim(namespace, "device", true));
    until_answers(namespace, "vm", 1);
    let rounds = if std::env::var_os("FERROVIRT_SOAK").is_some() { 12 } else { 2 };
    for round in 0..rounds {
        let add = || {
            put(namespace, "virtualmachines/vm/addvolume", &body("file", "file", &scsi())).unwrap();
            put(namespace, "virtualmachineinstances/vm/addvolume", &body("device", "device", &scsi()))
                .unwrap();
            let again =
                put(namespace, "virtualmachines/vm/addvolume", &body("file", "file", &scsi())).unwrap_err();
            assert!(again.contains("because volume with that name already exists"), "{again}");
        };
        // The next agent continues where this one was cut off.
        if round == 1 {
            replace_agent_at(add)
        } else {
            add()
        }
        for (name, of) in [("file", &file), ("device", &device)] {
            let status = until_ready(namespace, name);
            assert!(status["target"].as_str().unwrap().starts_with("sd"), "{status}");
            assert_eq!(status["persistentVolumeClaimInfo"]["claimName"], name);
            assert!(status["hotplugVolume"]["attachPodName"].as_str().unwrap().starts_with("hp-volume-"));
            assert_ne!(opened(namespace, &disk(of)), 0, "{name} is not open");
        }
        assert_eq!((attachment_pods(namespace).len(), hotplug_mounts(namespace)), (2, 2));
        until_answers(namespace, "vm", 1);
        let vm = PLACE.find(MACHINES, namespace, "vm").unwrap();
        assert_eq!(condition(&vm, "RestartRequired"), None);
        let names = |object: &Value, path: &str| -> Vec<String> {
            let volumes = object.pointer(path).unwrap().as_array().unwrap();
            volumes.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(names(&vm, "/spec/template/spec/volumes"), ["root", "file"]);
        put(namespace, "virtualmachines/vm/removevolume", &json!({"name": "file"})).unwrap();
        until_gone(namespace, "file");
        assert_eq!(opened(namespace, &disk(&file)), 0, "QEMU still has the file open");
        // A volume of the instance alone stays when the VM's goes.
        until_ready(namespace, "device");
        put(namespace, "virtualmachineinstances/vm/removevolume", &json!({"name": "device"})).unwrap();
        until_gone(namespace, "device");
        assert_eq!(opened(namespace, &disk(&device)), 0, "QEMU still has the device open");
        PLACE.until(namespace, "no attachment pod is left", || {
            attachment_pods(namespace).is_empty().then_some(())
        });
        assert_eq!(hotplug_mounts(namespace), 0);
        until_answers(namespace, "vm", 1);
    }
    let events =
        PLACE.kubectl(&["get", "events", "-n", namespace, "-o", "jsonpath={.items[*].reason}"]).unwrap();
    let moved = ["VolumeMountedToPod", "VolumeReady", "VolumeUnMountedFromPod", "VolumeUnplugged"];
    for reason in ["SuccessfulCreate"].into_iter().chain(moved) {
        assert!(events.contains(reason), "{reason}: {events}");
    }
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}

#[test]
fn volume_of_the_template_is_there_at_the_start_and_its_pod_goes_with_the_guest() {
    let namespace = "plugged";
    PLACE.namespace(namespace);
    let root = claim(namespace, "root", false);
    fs::write(disk(&root), guest::disk()).unwrap();
    let more = claim(namespace, "more", false);
    let mut vm = machine("vm", "Always", &json!({"persistentVolumeClaim": {"claimName": "root"}}));
    let spec = &mut vm["spec"]["template"]["spec"];
    let disks = spec["domain"]["devices"]["disks"].as_array_mut().unwrap();
    disks.push(json!({"name": "more", "disk": {"bus": "scsi"}}));
    disks.push(json!({"name": "cd", "cdrom": {"bus": "sata"}}));
    let claimed =
        json!({"name": "more", "persistentVolumeClaim": {"claimName": "more", "hotpluggable": true}});
    spec["volumes"].as_array_mut().unwrap().push(claimed);
    PLACE.create(MACHINES, namespace, &vm);
    until_answers(namespace, "vm", 1);
    until_ready(namespace, "more");
    assert_ne!(opened(namespace, &disk(&more)), 0);
    assert_eq!(attachment_pods(namespace).len(), 1);
    // A medium for the drive, which was started empty; and another one.
    let media = [claim(namespace, "first", false), claim(namespace, "second", false)];
    for medium in &media {
        let cdrom = json!({"cdrom": {"bus": "sata"}});
        put(namespace, "virtualmachines/vm/addvolume", &body("cd", &medium.claim, &cdrom)).unwrap();
        until_ready(namespace, "cd");
        assert_ne!(opened(namespace, &disk(medium)), 0, "{}", medium.claim);
        put(namespace, "virtualmachines/vm/removevolume", &json!({"name": "cd"})).unwrap();
        until_gone(namespace, "cd");
        PLACE.until(namespace, "the medium is closed", || {
            (opened(namespace, &disk(medium)) == 0).then_some(())
        });
    }
    let vm = PLACE.find(MACHINES, namespace, "vm").unwrap();
    assert_eq!(condition(&vm, "RestartRequired"), None);
    until_answers(namespace, "vm", 1);
    put(namespace, "virtualmachines/vm/stop", &json!({})).unwrap();
    PLACE.until_status(namespace, "vm", "Stopped");
    PLACE.until(namespace, "no pod is left", || PLACE.list(PODS, namespace).is_empty().then_some(()));
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}
