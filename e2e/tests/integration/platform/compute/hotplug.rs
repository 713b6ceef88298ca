//! Volumes that come to a guest that runs, and go: in random order, through the VM and through the instance, on files and
//! devices, while the agent is killed; and media of a CD drive.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use e2e::volume::Volume;
use places::guest::Dice;
use serde_json::{Value, json};

use super::{claim, condition, instance, put};
use crate::platform::guest;
use crate::platform::machines::{create_with, machine, until_answers};
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

/// A volume that is plugged and unplugged.
struct Plug {
    name: &'static str,
    /// The kind of object to which it is added.
    of: &'static str,
    volume: Volume,
    plugged: bool,
}

impl Plug {
    /// Plugs it, or unplugs it.
    fn toggle(&self, namespace: &str) {
        let (verb, body) = match self.plugged {
            false => ("addvolume", body(self.name, self.name, &scsi())),
            true => ("removevolume", json!({"name": self.name})),
        };
        put(namespace, &format!("{}/vm/{verb}", self.of), &body).unwrap();
    }

    /// Waits until the guest has it, or has it no more.
    #[track_caller]
    fn until_moved(&self, namespace: &str) {
        if !self.plugged {
            return until_gone(namespace, self.name);
        }
        let status = until_ready(namespace, self.name);
        assert_eq!(status["persistentVolumeClaimInfo"]["claimName"], self.name);
        assert!(status["hotplugVolume"]["attachPodName"].as_str().unwrap().starts_with("hp-volume-"));
        let again =
            put(namespace, &format!("{}/vm/addvolume", self.of), &body(self.name, self.name, &scsi()));
        let again = again.unwrap_err();
        assert!(again.contains("because volume with that name already exists"), "{again}");
    }
}

/// Description of the VM's domain, as the launcher gives it.
fn domain(namespace: &str) -> String {
    let pods = PLACE.list(PODS, namespace);
    let mut names = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str());
    let pod = names.find(|name| name.starts_with("virt-launcher-")).unwrap();
    let virsh = ["-c", "compute", "--", "virsh", "dumpxml", &format!("{namespace}_vm")];
    PLACE.kubectl(&[&["-n", namespace, "exec", pod][..], &virsh].concat()).unwrap()
}

/// The list of devices that the launcher's container may open; `None`: the node has control groups of version 2 alone.
fn device_rules(namespace: &str) -> Option<String> {
    let groups = fs::read_to_string(format!("{}/cgroup", qemu(namespace))).unwrap();
    let group = groups.lines().find_map(|line| line.split_once(":devices:"))?.1;
    Some(fs::read_to_string(format!("/sys/fs/cgroup/devices{group}/devices.list")).unwrap())
}

/// Checks that the guest has each plugged volume once, and nothing of the others.
#[track_caller]
fn check(namespace: &str, plugs: &[Plug]) {
    let plugged = |of: &str| {
        let found = plugs.iter().filter(|plug| plug.plugged && plug.of.starts_with(of));
        found.map(|plug| plug.name.to_owned()).collect::<Vec<_>>()
    };
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let named = |volumes: &Value, field: &str| {
        let volumes = volumes.as_array().unwrap().iter();
        sorted(volumes.map(|one| one[field].as_str().unwrap().to_owned()).collect())
    };
    let with_root = |names: Vec<String>| sorted([names, vec!["root".to_owned()]].concat());
    let run = instance(namespace, "vm");
    assert_eq!(named(&run["status"]["volumeStatus"], "name"), with_root(plugged("virtualmachine")));
    let mut targets = named(&run["status"]["volumeStatus"], "target");
    targets.dedup();
    assert_eq!(targets.iter().filter(|target| target.starts_with("sd")).count(), plugged("").len());
    assert_eq!(targets.len(), plugged("").len() + 1, "{targets:?}");
    assert!(condition(&run, "Paused").is_none(), "{run}");
    let vm = PLACE.find(MACHINES, namespace, "vm").unwrap();
    assert_eq!(vm["status"]["printableStatus"], "Running");
    assert_eq!(condition(&vm, "RestartRequired"), None);
    let of_vm = with_root(plugged("virtualmachines"));
    assert_eq!(named(&vm["spec"]["template"]["spec"]["volumes"], "name"), of_vm);
    let (domain, rules) = (domain(namespace), device_rules(namespace));
    for Plug { name, volume, plugged, .. } in plugs {
        let count = domain.matches(&format!("hotplug-disks/{name}.img")).count();
        assert_eq!(count, usize::from(*plugged), "{name} in {domain}");
        assert_eq!(opened(namespace, &disk(volume)) != 0, *plugged, "{name} is open in QEMU");
        if let (true, Some(rules)) = (volume.is_block(), &rules) {
            let device = fs::metadata(volume.path()).unwrap().rdev();
            let rule = format!("b {}:{} rw", rustix::fs::major(device), rustix::fs::minor(device));
            assert_eq!(rules.lines().any(|line| line == rule), *plugged, "{name} in {rules}");
        }
    }
    assert_eq!(hotplug_mounts(namespace), plugged("").len());
    PLACE.until(namespace, "an attachment pod for each plugged volume", || {
        (attachment_pods(namespace).len() == plugged("").len()).then_some(())
    });
}

/// Seed of the order and of the kills.
const SEED: u64 = 28;

/// 4 volumes in random order, on files and devices, of the VM and of the instance alone.
#[test]
fn disks_come_and_go_while_the_guest_runs() {
    let namespace = "hotplug";
    PLACE.namespace(namespace);
    let root = create_with(namespace, "vm", "Always", 0, &guest::beats());
    let counted = || guest::counted(&disk(&root));
    let mut plugs = [
        ("file", false, "virtualmachines"),
        ("device", true, "virtualmachines"),
        ("own-file", false, "virtualmachineinstances"),
        ("own-device", true, "virtualmachineinstances"),
    ]
    .map(|(name, block, of)| Plug { name, of, volume: claim(namespace, name, block), plugged: false });
    PLACE.until(namespace, "the guest writes", || matches!(counted(), (1, 5..)).then_some(()));
    PLACE.until_status(namespace, "vm", "Running");
    // At least 50 of each.
    let steps = if std::env::var_os("FERROVIRT_SOAK").is_some() { 104 } else { 6 };
    println!("volumes and kills of the agent by seed {SEED}");
    let mut dice = Dice(SEED);
    let mut cut = [0; 2];
    for _ in 0..steps {
        let before = counted();
        let plug = &mut plugs[usize::try_from(dice.next(4)).unwrap()];
        let pause = Duration::from_millis(dice.next(1500));
        let cuts = &mut cut[usize::from(plug.plugged)];
        // The next agent continues where this one was cut off: the first of each kind always.
        if dice.next(6) == 0 || *cuts == 0 {
            *cuts += 1;
            replace_agent_at(|| {
                plug.toggle(namespace);
                std::thread::sleep(pause);
            });
        } else {
            plug.toggle(namespace);
        }
        plug.plugged = !plug.plugged;
        plug.until_moved(namespace);
        check(namespace, &plugs);
        // The guest was started once, and none of its writes failed.
        PLACE.until(namespace, "the guest writes to its other disk", || {
            let now = counted();
            assert_eq!(now.0, 1, "the guest was started again");
            (now != before).then_some(())
        });
    }
    println!("{steps} steps; the agent was killed at {} plugs and {} removals", cut[0], cut[1]);
    assert!(cut.iter().all(|count| *count > 0), "{cut:?}");
    for plug in &mut plugs {
        if plug.plugged {
            plug.toggle(namespace);
            plug.plugged = false;
            plug.until_moved(namespace);
        }
    }
    check(namespace, &plugs);
    let events =
        PLACE.kubectl(&["get", "events", "-n", namespace, "-o", "jsonpath={.items[*].reason}"]).unwrap();
    let moved = ["VolumeMountedToPod", "VolumeReady", "VolumeUnMountedFromPod", "VolumeUnplugged"];
    for reason in ["SuccessfulCreate"].into_iter().chain(moved) {
        assert!(events.contains(reason), "{reason}: {events}");
    }
    assert!(!events.contains("IOerror"), "{events}");
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
