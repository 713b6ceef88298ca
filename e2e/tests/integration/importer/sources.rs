//! Every kind of source that needs the cluster's network, into a file and onto a device.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use e2e::peer::flaky::Flaky;
use e2e::peer::registry::{self, Registry};
use e2e::peer::s3::{ACCESS_KEY, SECRET_KEY, Store};
use e2e::peer::web::Web;
use e2e::volume::Volume;
use image::layer::{self, Layer, Member};

use crate::importer::disks::{self, Disk, SMALL};
use crate::importer::pod::{Import, authority, keys, login};
use crate::importer::{CLUSTER, MIB, metrics, namespace};

const SIZE: u64 = 128 * MIB;
const COMPLETE: &str = r#"{"message":"Import Complete"}"#;

#[test]
fn http_with_a_certificate_of_ones_own() {
    let namespace = namespace("http-tls");
    let web = Web::start(CLUSTER.place(), &disks::folder_of(&SMALL)).unwrap();
    let volume = Volume::filesystem(&CLUSTER, namespace, "disk", SIZE).unwrap();
    let mut import = Import::new(&CLUSTER, namespace, &volume, SIZE, web.https_url(SMALL.file()));
    import.authority = Some(authority(&CLUSTER, namespace, web.authority()));
    import.checksum = Some(SMALL.checksum());
    let end = import.start().end();
    assert_eq!((end.message.as_str(), end.restarts), (COMPLETE, 0), "{}", end.log);
    SMALL.assert_in(&volume);
}

#[test]
fn a_certificate_without_a_trusted_issuer() {
    let namespace = namespace("http-untrusted");
    let web = Web::start(CLUSTER.place(), &disks::folder_of(&SMALL)).unwrap();
    let volume = Volume::filesystem(&CLUSTER, namespace, "disk", SIZE).unwrap();
    let import = Import::new(&CLUSTER, namespace, &volume, SIZE, web.https_url(SMALL.file()));
    let failure = import.start().failure();
    assert_eq!(failure.exit, 1);
    let message = &failure.message;
    assert!(message.starts_with("Unable to connect to http data source: "), "{message}");
    assert!(message.contains("not trusted"), "{message}");
}

/// Loop devices and their files, as the kernel shows them.
fn loop_devices() -> Vec<String> {
    let mut devices = Vec::new();
    for entry in fs::read_dir("/sys/block").unwrap() {
        let entry = entry.unwrap();
        if let Ok(file) = fs::read_to_string(entry.path().join("loop/backing_file")) {
            devices.push(format!("{} {}", entry.file_name().to_string_lossy(), file.trim()));
        }
    }
    devices
}

/// The kubelet holds the device of a pod by a loop device of its own.
#[test]
fn onto_a_device_of_which_nothing_stays_with_the_node() {
    let namespace = namespace("block");
    let web = Web::start(CLUSTER.place(), &disks::folder_of(&SMALL)).unwrap();
    let volume = Volume::block(&CLUSTER, namespace, "disk", SIZE).unwrap();
    let name = volume.path().file_name().unwrap().to_str().unwrap().to_owned();
    // The stale content of the device must not show in the disk.
    let fill =
        format!("dd if=/dev/zero bs=1M count=128 status=none | tr '\\0' x > {}", volume.path().display());
    assert!(Command::new("sh").args(["-c", &fill]).status().unwrap().success());
    let import = Import::new(&CLUSTER, namespace, &volume, SIZE, web.url(SMALL.file()));
    let running = import.start();
    let end = running.end();
    assert_eq!((end.message.as_str(), end.restarts), (COMPLETE, 0), "{}", end.log);
    disks::assert_starts_with(&SMALL, &volume);
    running.delete();
    let deadline = Instant::now() + Duration::from_secs(20);
    let held =
        || loop_devices().into_iter().filter(|line| line.ends_with(&format!("/{name}"))).collect::<Vec<_>>();
    while !held().is_empty() {
        assert!(Instant::now() < deadline, "{:?}", held());
        thread::sleep(Duration::from_millis(100));
    }
    drop(volume);
    let still = loop_devices().into_iter().filter(|line| line.starts_with(&format!("{name} "))).count();
    assert_eq!(still, 0, "{:?}", loop_devices());
}

/// A layer with a disk and nothing else.
fn disk_layer(disk: &Disk) -> (Layer, tempfile::TempDir) {
    let folder = tempfile::tempdir_in(disks::folder_of(&SMALL)).unwrap();
    let members = BTreeMap::from([
        ("disk".to_owned(), Member::Folder { mode: 0o755 }),
        (format!("disk/{}", disk.file()), Member::File { from: disk.qcow2.clone(), mode: 0o444 }),
    ]);
    (layer::pack(&members, &folder.path().join("layer")).unwrap(), folder)
}

#[test]
fn a_container_image_pulled_by_the_pod() {
    let namespace = namespace("registry");
    let registry = Registry::start(CLUSTER.place()).unwrap();
    let (layer, _folder) = disk_layer(&SMALL);
    let image = CLUSTER.run(registry.push("disks/small", &layer, &[])).unwrap();
    let volume = Volume::filesystem(&CLUSTER, namespace, "disk", SIZE).unwrap();
    let mut import = Import::new(&CLUSTER, namespace, &volume, SIZE, format!("docker://{image}"));
    import.source = "registry";
    import.authority = Some(authority(&CLUSTER, namespace, registry.authority()));
    import.keys = Some(keys(&CLUSTER, namespace, registry::USER, registry::PASSWORD));
    let end = import.start().end();
    assert_eq!((end.message.as_str(), end.restarts), (COMPLETE, 0), "{}", end.log);
    SMALL.assert_in(&volume);
}

#[test]
fn a_container_image_pulled_by_the_node() {
    let namespace = namespace("node-pull");
    let registry = Registry::start(CLUSTER.place()).unwrap();
    CLUSTER.trust_registry(&registry.address(), registry.authority()).unwrap();
    let (layer, _folder) = disk_layer(&SMALL);
    let environment = ["INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.small"];
    let image = CLUSTER.run(registry.push("disks/small", &layer, &environment)).unwrap();
    let volume = Volume::filesystem(&CLUSTER, namespace, "disk", SIZE).unwrap();
    let endpoint = "http://localhost:8100/disk.img".to_owned();
    let mut import = Import::new(&CLUSTER, namespace, &volume, SIZE, endpoint);
    import.node_pull = Some((image, login(&CLUSTER, namespace, &registry.docker_config())));
    let running = import.start();
    let end = running.end();
    let labels = r#"{"labels":{"instancetype.kubevirt.io/default-instancetype":"u1.small"},"message":"Import Complete"}"#;
    assert_eq!((end.message.as_str(), end.restarts), (labels, 0), "{}", end.log);
    SMALL.assert_in(&volume);
    // The server in the same pod ends in order, or the pod would run for ever.
    running.until("the pod's success", |running| (running.phase()? == "Succeeded").then_some(()));
}

#[test]
fn an_object_of_a_store() {
    let namespace = namespace("s3");
    let folder = tempfile::tempdir_in(disks::folder_of(&SMALL)).unwrap();
    fs::create_dir(folder.path().join("images")).unwrap();
    fs::copy(&SMALL.qcow2, folder.path().join("images/disk.qcow2")).unwrap();
    let store = Store::start(CLUSTER.place(), folder.path()).unwrap();
    let volume = Volume::filesystem(&CLUSTER, namespace, "disk", SIZE).unwrap();
    let mut import = Import::new(&CLUSTER, namespace, &volume, SIZE, store.url("images", "disk.qcow2"));
    import.source = "s3";
    import.authority = Some(authority(&CLUSTER, namespace, store.authority()));
    import.keys = Some(keys(&CLUSTER, namespace, ACCESS_KEY, SECRET_KEY));
    let end = import.start().end();
    assert_eq!((end.message.as_str(), end.restarts), (COMPLETE, 0), "{}", end.log);
    SMALL.assert_in(&volume);
}

/// CDI's controller does this every two seconds.
#[test]
fn progress_is_read_over_the_pod_network() {
    let namespace = namespace("progress");
    let server = Flaky::start(CLUSTER.place(), &SMALL.qcow2, 8 * MIB).unwrap();
    let volume = Volume::filesystem(&CLUSTER, namespace, "disk", SIZE).unwrap();
    let import = Import::new(&CLUSTER, namespace, &volume, SIZE, server.url());
    let running = import.start();
    let metric = format!("kubevirt_cdi_import_progress_total{{ownerUID=\"{}\"}}", volume.uid);
    let mut seen = Vec::new();
    let end = running.until("the end", |running| {
        if let Some(progress) = metrics::page(running).and_then(|page| metrics::value(&page, &metric)) {
            seen.push(progress);
        }
        running.status()?.state?.terminated
    });
    assert_eq!((end.exit_code, end.message.as_deref()), (0, Some(COMPLETE)));
    assert!(seen.is_sorted() && seen.iter().all(|percent| (0.0..=100.0).contains(percent)), "{seen:?}");
    seen.dedup();
    assert!(seen.len() >= 5 && seen[seen.len() / 2] > 5.0, "it goes on: {seen:?}");
    SMALL.assert_in(&volume);
}
