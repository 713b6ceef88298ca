//! Launcher pods and namespaces of running guests are deleted.

use std::time::Instant;

use e2e::volume::Volume;

use crate::platform::console::Console;
use crate::platform::machines::{create, mac, until_answers};
use crate::platform::place::{MACHINES, PLACE};
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
