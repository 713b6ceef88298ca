//! Failures during an import, as the controller and the kubelet see them: exit codes, termination messages, restarts.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;
use std::thread;
use std::time::Duration;

use e2e::peer::flaky::{Flaky, Mood};
use e2e::peer::web::Web;
use e2e::volume::Volume;
use serde_json::json;

use crate::importer::disks::{self, Disk, SMALL};
use crate::importer::memory::Sampler;
use crate::importer::pod::Import;
use crate::importer::{CLUSTER, MIB, count, namespace, profiles};

const SIZE: u64 = 128 * MIB;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The one failure that is not tried again: exit code 0, and the controller finds the words.
#[test]
fn bytes_that_are_not_those_of_the_checksum() {
    let namespace = namespace("checksum");
    let web = Web::start(CLUSTER.place(), &disks::folder_of(&SMALL)).unwrap();
    let volume = Volume::filesystem(&CLUSTER, namespace, "disk", SIZE).unwrap();
    let mut import = Import::new(&CLUSTER, namespace, &volume, SIZE, web.url(SMALL.file()));
    import.checksum = Some(format!("sha256:{}", "0".repeat(64)));
    let end = import.start().end();
    assert_eq!(end.restarts, 0);
    let message: serde_json::Value = serde_json::from_str(&end.message).expect("one line of JSON");
    assert!(message["message"].as_str().unwrap().contains("checksum mismatch"), "{}", end.message);
    assert_eq!(names(volume.path()), [""; 0], "deleting the data that was written");
}

#[test]
fn a_disk_that_is_larger_than_the_volume() {
    let namespace = namespace("too-large");
    let web = Web::start(CLUSTER.place(), &disks::folder_of(&SMALL)).unwrap();
    let small = 32 * MIB;
    let [folder, device] = [
        Volume::filesystem(&CLUSTER, namespace, "folder", small).unwrap(),
        Volume::block(&CLUSTER, namespace, "device", small).unwrap(),
    ];
    for volume in [&folder, &device] {
        let import = Import::new(&CLUSTER, namespace, volume, small, web.url(SMALL.file()));
        let running = import.start();
        let failure = running.failure();
        assert_eq!(failure.exit, 1);
        let message = &failure.message;
        assert!(message.starts_with("Unable to process data: "), "{message}");
        assert!(message.contains("is larger than the reported available"), "{message}");
        running.delete();
    }
    assert_eq!(names(folder.path()), [""; 0], "nothing is written");
}

/// The kubelet restarts the container until there is an image to import; the importer waits for a server that fails later.
#[test]
fn a_server_that_fails_and_recovers() {
    let namespace = namespace("recovers");
    let server = Flaky::start(CLUSTER.place(), &SMALL.qcow2, 16 * MIB).unwrap();
    server.set_mood(Mood::Missing);
    let volume = Volume::filesystem(&CLUSTER, namespace, "disk", SIZE).unwrap();
    let import = Import::new(&CLUSTER, namespace, &volume, SIZE, server.url());
    let running = import.start();
    let failure = running.failure();
    assert_eq!(failure.exit, 1);
    let message = &failure.message;
    assert!(message.starts_with("Unable to connect to http data source: "), "{message}");
    assert!(message.contains("404 Not Found"), "{message}");
    running.until("a restart", |running| (running.status()?.restart_count >= 1).then_some(()));
    server.set_mood(Mood::Well);
    running.until("some bytes", |_| (server.sent() > 8 * MIB).then_some(()));
    server.set_mood(Mood::Broken);
    thread::sleep(Duration::from_secs(count(3, 20)));
    server.set_mood(Mood::Well);
    let end = running.end();
    // A container that follows one with some progress logs it.
    let again = end.log.contains("going on with an interrupted import");
    assert!(!again, "trouble on the way is waited for: {}", end.log);
    SMALL.assert_in(&volume);
    let length = fs::metadata(&SMALL.qcow2).unwrap().len();
    println!(
        "a server that fails and recovers: {} of {length} bytes sent, {} restarts",
        server.sent(),
        end.restarts
    );
}

/// Small enough to be made quickly, large enough to distinguish resuming from starting again.
static MIDDLING: LazyLock<Disk> =
    LazyLock::new(|| Disk::create("middling", count(384, 1024), count(320, 1000), false));

#[test]
fn a_pod_that_is_deleted_midway_and_made_again() {
    let namespace = namespace("deleted");
    let length = fs::metadata(&MIDDLING.qcow2).unwrap().len();
    let server = Flaky::start(CLUSTER.place(), &MIDDLING.qcow2, 48 * MIB).unwrap();
    let size = MIDDLING.size * 2;
    let volume = Volume::filesystem(&CLUSTER, namespace, "disk", size).unwrap();
    let import = Import::new(&CLUSTER, namespace, &volume, size, server.url());
    let first = import.start();
    first.until("most of the bytes", |_| (server.sent() > length * 7 / 10).then_some(()));
    first.delete();
    let before = server.sent();
    let end = import.start().end();
    assert!(end.log.contains("going on with an interrupted import"), "{}", end.log);
    let bar = length + length / 10 + 64 * MIB;
    println!(
        "a pod deleted midway: {} MiB of {} before, {} in all; bar {}",
        before / MIB,
        length / MIB,
        server.sent() / MIB,
        bar / MIB
    );
    assert!(server.sent() <= bar);
    MIDDLING.assert_in(&volume);
}

/// The disk of the least memory: 4 GiB, written as fast as it goes.
static LARGE: LazyLock<Disk> = LazyLock::new(|| Disk::create("large", 4096, count(640, 4096), false));

#[test]
fn a_limit_of_100_mib_and_a_disk_of_4_gib() {
    let namespace = namespace("little-memory");
    let web = Web::start(CLUSTER.place(), &disks::folder_of(&LARGE)).unwrap();
    let size = 5 << 30;
    for (claim, seccomp) in [
        ("direct", json!({"type": "RuntimeDefault"})),
        ("buffered", json!({"type": "Localhost", "localhostProfile": profiles::NO_DIRECT})),
    ] {
        let volume = Volume::filesystem(&CLUSTER, namespace, claim, size).unwrap();
        let mut import = Import::new(&CLUSTER, namespace, &volume, size, web.url(LARGE.file()));
        import.memory = "100Mi";
        import.seccomp = seccomp;
        let running = import.start();
        let sampler = Sampler::start(running.memory_group());
        let end = running.end();
        println!("100 MiB, 4 GiB, {claim}: {}", sampler.stop());
        assert_eq!(end.restarts, 0, "{}", end.log);
        assert_eq!(profiles::engine(&end.log).contains("page cache"), claim == "buffered", "{}", end.log);
        LARGE.assert_in(&volume);
        fs::remove_file(volume.path().join("disk.img")).unwrap();
    }
}
