//! Devices that a VM has not, or has in addition: no serial console and no screen; a watchdog that switches the guest off.

use std::fs;

use serde_json::json;

use crate::platform::console::Console;
use crate::platform::guest;
use crate::platform::machines::{claim, machine};
use crate::platform::place::{EVENTS, INSTANCES, MACHINES, PLACE};
use crate::platform::streams::Streams;

#[test]
fn machine_without_serial_console_and_screen_runs_and_refuses_both() {
    let namespace = "headless";
    PLACE.namespace(namespace);
    let volume = claim(namespace, "vm", &guest::disk());
    let mut vm = machine("vm", "Always", &json!({"persistentVolumeClaim": {"claimName": "vm"}}));
    let devices = &mut vm["spec"]["template"]["spec"]["domain"]["devices"];
    devices["autoattachSerialConsole"] = json!(false);
    devices["autoattachGraphicsDevice"] = json!(false);
    PLACE.create(MACHINES, namespace, &vm);
    PLACE.until_status(namespace, "vm", "Running");
    PLACE.until(namespace, "the guest has counted its start", || {
        (fs::read(volume.path().join("disk.img")).unwrap()[guest::COUNT] == b'1').then_some(())
    });
    for (stream, words) in
        [("console", "No serial consoles are present."), ("vnc", "No graphics devices are present.")]
    {
        let refusal = Console::stream(&PLACE, namespace, "vm", stream).map(drop).unwrap_err();
        assert!(refusal.starts_with("400 ") && refusal.contains(words), "{stream}: {refusal}");
    }
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}

#[test]
fn expired_watchdog_switches_the_guest_off() {
    let namespace = "watchdog";
    PLACE.namespace(namespace);
    // An agent that is replaced has no event to write.
    let _agent = Streams::follow();
    let _volume = claim(namespace, "vm", &guest::watched());
    let mut vm = machine("vm", "Once", &json!({"persistentVolumeClaim": {"claimName": "vm"}}));
    vm["spec"]["template"]["spec"]["domain"]["devices"]["watchdog"] =
        json!({"name": "dog", "i6300esb": {"action": "poweroff"}});
    PLACE.create(MACHINES, namespace, &vm);
    // QEMU ends without a word about a shutdown, which upstream reports as a crash, too.
    PLACE.until(namespace, "the instance has failed", || {
        PLACE.find(INSTANCES, namespace, "vm").filter(|one| one["status"]["phase"] == "Failed")
    });
    PLACE.until(namespace, "the event about the watchdog", || {
        PLACE.list(EVENTS, namespace).iter().any(|event| event["reason"] == "Watchdog").then_some(())
    });
    PLACE.until_status(namespace, "vm", "Stopped");
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}
