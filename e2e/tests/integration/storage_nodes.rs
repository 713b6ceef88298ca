//! An import on a node that is switched off and on again: it continues where it was.
//!
//! A cluster of its own: with a second node the other tests' volumes would be made there, too.

use std::fs::File;
use std::io::Write;
use std::process::Command;
use std::time::Instant;

use e2e::peer::flaky::Flaky;
use e2e::{programs, storage};
use serde_json::json;

use crate::storage::platform;
use crate::storage::setup::{CLUSTER, MIB, WAITING};
use crate::storage::space::{Space, until};
use crate::storage::timeline::Timeline;

/// Bytes of the disk, none of them zero.
const SIZE: u64 = 192 * MIB;

fn kubectl(words: &[&str]) {
    let said = CLUSTER.kubectl().args(words).output().unwrap();
    assert!(said.status.success(), "{words:?}: {}", String::from_utf8_lossy(&said.stderr));
}

#[test]
fn an_import_continues_when_its_node_is_switched_on_again() {
    storage::prepare_second(&CLUSTER, 4 << 30).unwrap();
    let second = CLUSTER.start_second().unwrap();
    second.import_images(&programs::image().unwrap()).unwrap();
    second.import_images(&CLUSTER.place().path("sidecars.tar")).unwrap();
    until("the driver runs on the second node", || {
        let words = ["get", "csinode", "node2", "-o", "jsonpath={.spec.drivers[*].name}"];
        let said = CLUSTER.kubectl().args(words).output().unwrap();
        String::from_utf8_lossy(&said.stdout).contains(storage::DRIVER).then_some(())
    });
    kubectl(&["cordon", "node1"]);
    let raw = CLUSTER.place().path("large.raw");
    let mut file = File::create(&raw).unwrap();
    let block: Vec<u8> = (0..MIB).map(|at| u8::try_from(at % 251).unwrap() | 1).collect();
    for number in 0..SIZE / MIB {
        file.write_all(&number.to_be_bytes()).unwrap();
        file.write_all(&block[8..]).unwrap();
    }
    let server = Flaky::start(CLUSTER.place(), &raw, 16 * MIB).unwrap();
    let space = Space::new("rebooted");
    let timeline = Timeline::start(&space);
    let forced = json!({"cdi.kubevirt.io/storage.bind.immediate.requested": ""});
    space.create(
        "DataVolume",
        json!({
            "metadata": {"name": "disk", "annotations": forced},
            "spec": {
                "source": {"http": {"url": server.url()}},
                "storage": {"resources": {"requests": {"storage": SIZE.to_string()}}, "storageClassName": WAITING},
            },
        }),
    );
    until("most of the disk is sent", || (server.sent() > SIZE * 3 / 4).then_some(()));
    let before = server.sent();
    let off = Instant::now();
    // The power fails: the API server is not notified.
    drop(second);
    let second = CLUSTER.start_second().unwrap();
    println!(
        "{} MiB of {} sent, node off and ready again after {:.1?}",
        before / MIB,
        SIZE / MIB,
        off.elapsed()
    );
    space.phases("disk", "Succeeded");
    println!("switched off until Succeeded {:.1?}, {} MiB sent in all", off.elapsed(), server.sent() / MIB);
    timeline.at("DataVolume", "disk", "Succeeded");
    assert_eq!(timeline.phases("disk"), ["Pending", "ImportScheduled", "ImportInProgress", "Succeeded"]);
    space.completed("disk");
    for reason in ["ImportScheduled", "ImportInProgress", "ImportSucceeded"] {
        until(&format!("one event {reason}"), || {
            let events = space.events("disk");
            (events.iter().filter(|event| event.0 == reason).count() == 1).then_some(())
        });
    }
    let restarts = space.get("DataVolume", "disk").unwrap()["status"]["restartCount"].as_u64();
    assert!(restarts.is_some_and(|count| count >= 1), "{restarts:?}");
    until("the claim has its volume", || {
        (space.get("PersistentVolumeClaim", "disk")?["status"]["phase"] == "Bound").then_some(())
    });
    let disk = second.node_path(&space.path("disk")).unwrap();
    let compared = Command::new("cmp").args(["-n", &SIZE.to_string()]).args([&raw, &disk]).output().unwrap();
    assert!(compared.status.success(), "{}", String::from_utf8_lossy(&compared.stderr));
    assert!(server.sent() <= SIZE + SIZE / 10 + 64 * MIB, "{} MiB sent", server.sent() / MIB);
    let pods = platform::pods_made(&space.0);
    assert_eq!(pods.len(), 1, "the same pod goes on: {pods:?}");
}
