//! Launcher pods and namespaces of running guests are deleted.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use e2e::volume::Volume;
use serde_json::json;

use crate::platform::console::Console;
use crate::platform::guest;
use crate::platform::machines::{create, mac, machine, until_answers};
use crate::platform::place::{EVENTS, MACHINES, PLACE};
use crate::platform::streams::Streams;

#[test]
fn pod_that_is_deleted_shuts_its_guest_down_and_the_machine_runs_again() {
    let namespace = "evicted";
    PLACE.namespace(namespace);
    let _streams = Streams::follow();
    let _volume = create(namespace, "vm", "Always", 60);
    until_answers(namespace, "vm", 1);
    let first = mac(namespace, "vm");
    let mut console = Console::open(&PLACE, namespace, "vm").unwrap();
    let begun = Instant::now();
    PLACE.kubectl(&["-n", namespace, "delete", "pod", "--all", "--wait=false"]).unwrap();
    // The guest's answer to its power button; without that the guest would be killed after a minute.
    console.listen("P").unwrap();
    println!("pod deleted -> guest switches itself off: {:?}", begun.elapsed());
    until_answers(namespace, "vm", 2);
    assert_eq!(mac(namespace, "vm"), first);
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}

#[test]
fn namespace_with_running_machines_is_deleted() {
    let namespace = "deleted";
    PLACE.namespace(namespace);
    let _streams = Streams::follow();
    let count = if std::env::var_os("FERROVIRT_SOAK").is_some() { 5 } else { 2 };
    let names: Vec<String> = (0..count).map(|number| format!("vm{number}")).collect();
    let _volumes: Vec<Volume> = names.iter().map(|name| create(namespace, name, "Always", 60)).collect();
    for name in &names {
        until_answers(namespace, name, 1);
    }
    let mut consoles: Vec<Console<'_>> =
        names.iter().map(|name| Console::open(&PLACE, namespace, name).unwrap()).collect();
    let begun = Instant::now();
    PLACE.kubectl(&["delete", "namespace", namespace, "--wait=false"]).unwrap();
    for console in &mut consoles {
        console.listen("P").unwrap();
    }
    PLACE.until(namespace, "the namespace is gone", || {
        PLACE.kubectl(&["get", "namespace", namespace]).is_err().then_some(())
    });
    println!("namespace with {count} running VMs deleted: {:?}", begun.elapsed());
}

/// How many QEMU processes of this guest run.
fn emulators(guest: &str) -> usize {
    let lines = fs::read_dir("/proc").unwrap().flatten();
    let lines = lines.filter_map(|process| fs::read_to_string(process.path().join("cmdline")).ok());
    lines.filter(|line| line.contains("qemu-system") && line.contains(&format!("guest={guest},"))).count()
}

#[test]
fn block_claim_has_one_guest_when_its_pod_is_deleted_by_force() {
    let namespace = "forced";
    PLACE.namespace(namespace);
    let _streams = Streams::follow();
    let volume = Volume::block(&PLACE.cluster, namespace, "vm", guest::SIZE).unwrap();
    let disk = fs::File::options().write(true).open(volume.path()).unwrap();
    disk.write_all_at(&guest::beats(), 0).unwrap();
    disk.sync_all().unwrap();
    let mut vm = machine("vm", "Always", &json!({"persistentVolumeClaim": {"claimName": "vm"}}));
    // The guest does not obey its power button.
    vm["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(20);
    PLACE.create(MACHINES, namespace, &vm);
    let starts = || {
        assert!(emulators("forced_vm") <= 1, "two guests on one disk");
        guest::counted(volume.path())
    };
    PLACE.until(namespace, "the guest beats", || matches!(starts(), (1, 5..)).then_some(()));
    PLACE
        .kubectl(&["-n", namespace, "delete", "pod", "--all", "--force", "--grace-period=0", "--wait=false"])
        .unwrap();
    let begun = Instant::now();
    PLACE.until(namespace, "the guest beats again", || (starts().0 == 2).then_some(()));
    let events = PLACE.list(EVENTS, namespace);
    let told =
        events.iter().any(|one| one["message"].as_str().is_some_and(|text| text.contains("is in use")));
    println!(
        "pod deleted by force -> the next guest starts: {:.1?}, refused before: {told}",
        begun.elapsed()
    );
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}
