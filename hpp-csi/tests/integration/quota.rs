//! Capacity held by project quota, and growing an ext4 in use, in a guest with Debian's kernel: the one that tests run on
//! may know no quota, and root on it may lack CAP_SYS_RESOURCE.
//!
//! ```text
//!  host: packs driver, mkfs, busybox and this very program into an initramfs ─► QEMU, two disks ─► reads the console
//!  guest: support/quota_init mounts the disks ─► this program with FERROVIRT_GUEST set: the tests proper
//! ```

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use csi::*;
use guests::{Guest, Tree};
use tonic::Code;

use crate::support::place::{Place, run};
use crate::support::{
    Client, Driver, GIB, MIB, eventually, from_snapshot, from_volume, mount, one_pool, parameters, pool,
    publish, refused, stage, volume,
};

/// How long the guest may take in all; TCG on a busy machine is slow.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Set in the guest.
const GUEST: &str = "FERROVIRT_GUEST";

/// The applets of busybox that `quota_init` uses.
const APPLETS: &str = "sh mount umount mkdir modprobe poweroff dd cat";

/// The guest.
fn guest(folder: &Path) -> Guest {
    let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/support/quota_init");
    let tree = Tree::new(folder, &["tmp", "xfs", "ext4"], APPLETS, &init);
    for name in ["mkfs.ext4", "mkfs.xfs"] {
        tree.program(&Path::new("/sbin").join(name), &Path::new("bin").join(name));
    }
    let driver = Path::new(env!("CARGO_BIN_EXE_hpp-csi"));
    tree.program(driver, driver);
    tree.program(&std::env::current_exe().unwrap(), Path::new("bin/tests"));
    tree.modules(&["crc32c-intel", "virtio_pci", "virtio_blk", "xfs", "loop", "quota_v2"]);
    tree.pack()
}

/// A disk of the guest.
fn disk(folder: &Path, filesystem: &str, options: &[&str]) -> String {
    let path = folder.join(filesystem);
    fs::File::create(&path).unwrap().set_len(1 << 30).unwrap();
    run(&format!("mkfs.{filesystem}"), &[options, &[path.to_str().unwrap()]].concat());
    format!("file={},format=raw,if=virtio,cache=unsafe", path.display())
}

#[test]
fn quota_holds_in_a_guest() {
    if std::env::var_os(GUEST).is_some() {
        held_by_quota("xfs");
        held_by_quota("ext4");
        a_disk_as_large_as_its_quota_is_defragmented();
        an_ext4_in_a_file_grows_in_use();
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let disks = [
        disk(folder.path(), "xfs", &["-q", "-f"]),
        disk(folder.path(), "ext4", &["-q", "-F", "-O", "quota,project"]),
    ];
    let (seen, took) = guest(folder.path()).run(1024, &disks, "", TIMEOUT);
    let said = |what: &str| seen.iter().filter(|line| line.contains(what)).count();
    assert_eq!(said("test result: ok. 1 passed"), 1, "{seen:#?}");
    println!("quota: {} things seen right in a guest, {:.1} s", said("guest: ok"), took.as_secs_f64());
    assert_eq!(said("guest: ok"), 18, "{seen:#?}");
}

fn good(what: &str) {
    println!("guest: ok {what}");
}

/// A driver with a pool in the guest.
fn driver(folder: &str, path: &Path, more: &str) -> (Driver, Client) {
    let run = Path::new("/run").join(folder);
    let driver = Driver::start(&run, "node1", &format!("[{}]", pool("legacy", path, more)), &[]);
    let client = driver.client();
    (driver, client)
}

/// Writes up to so many MiB as a user without CAP_SYS_RESOURCE; returns how many fit.
fn write(file: &Path, mebibytes: u32) -> u64 {
    let written = Command::new("dd")
        .arg("if=/dev/zero")
        .arg(format!("of={}", file.display()))
        .args(["bs=1M", &format!("count={mebibytes}"), "conv=fsync"])
        .uid(1000)
        .stderr(Stdio::null())
        .status()
        .unwrap();
    let length = fs::metadata(file).unwrap().len() >> 20;
    assert_eq!(written.success(), length == u64::from(mebibytes), "{length}");
    length
}

/// MiB of the filesystem that is seen at a path.
fn size(path: &Path) -> u64 {
    let numbers = rustix::fs::statvfs(path).unwrap();
    (numbers.f_blocks * numbers.f_frsize) >> 20
}

fn publish_at(client: &Client, id: &str) -> PathBuf {
    let target = Path::new("/run/pods").join(id);
    fs::create_dir_all("/run/pods").unwrap();
    client.node_publish_volume(publish(id, Path::new(""), &target, mount())).unwrap();
    fs::set_permissions(&target, fs::Permissions::from_mode(0o777)).unwrap();
    target
}

fn expand(client: &Client, id: &str, bytes: i64) {
    client
        .controller_expand_volume(ControllerExpandVolumeRequest {
            volume_id: id.into(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        })
        .unwrap();
}

fn held_by_quota(filesystem: &str) {
    let path = Path::new("/").join(filesystem);
    let (running, client) = driver(filesystem, &path, r#","copy":true"#);
    restored_to_a_larger_claim(filesystem, &client);
    for id in ["v", "neighbour"] {
        client.create(volume(id, 32 * MIB, mount()));
    }
    let (v, neighbour) = (publish_at(&client, "v"), publish_at(&client, "neighbour"));
    assert_eq!((size(&v), size(&neighbour)), (32, 32));
    good(&format!("{filesystem}: df shows the limit"));
    let written = write(&v.join("file"), 64);
    assert!((24..=32).contains(&written), "{written}");
    good(&format!("{filesystem}: a write past the limit fails"));
    assert_eq!(write(&neighbour.join("file"), 20), 20);
    good(&format!("{filesystem}: the neighbour has its room"));
    let stats = client.stats("v", &v);
    assert_eq!(stats.usage[0].total, 32 * MIB);
    assert!(stats.usage[0].available < 2 * MIB, "{stats:?}");
    let condition = stats.volume_condition.unwrap();
    assert!(!condition.abnormal && !condition.message.contains("not enforced"), "{condition:?}");
    good(&format!("{filesystem}: statistics are the volume's own"));
    expand(&client, "v", 64 * MIB);
    assert_eq!(size(&v), 64);
    assert_eq!(write(&v.join("more"), 20), 20);
    good(&format!("{filesystem}: it grows in use"));
    if filesystem == "xfs" {
        client.snapshot("s", "v");
        for (id, source) in [("clone", from_volume("v")), ("restored", from_snapshot("s"))] {
            client.create(CreateVolumeRequest {
                volume_content_source: source,
                ..volume(id, 64 * MIB, mount())
            });
            let target = publish_at(&client, id);
            assert_eq!(size(&target), 64);
            let written = write(&target.join("third"), 40);
            assert!(written < 16, "shared blocks count in full: {written}");
            client.unpublish(id, &target);
            client.delete(id);
        }
        good("xfs: clones have limits of their own");
    }
    drop(client);
    running.kill();
    let (_running, client) = driver(filesystem, &path, "");
    for (id, target) in [("v", &v), ("neighbour", &neighbour)] {
        client.unpublish(id, target);
        client.delete(id);
    }
    client.create(volume("v", 16 * MIB, mount()));
    let v = publish_at(&client, "v");
    assert_eq!(size(&v), 16);
    assert!((8..=16).contains(&write(&v.join("file"), 64)));
    client.unpublish("v", &v);
    client.delete("v");
    good(&format!("{filesystem}: a name that comes again gets the new limit"));
}

/// XFS shares the content's blocks, ext4 gets a copy.
fn restored_to_a_larger_claim(filesystem: &str, client: &Client) {
    let parameters = parameters(&[("copy", "true")]);
    client.create(volume("source", 16 * MIB, mount()));
    let snapshot = CreateSnapshotRequest {
        name: "taken".into(),
        source_volume_id: "source".into(),
        parameters: parameters.clone(),
        ..Default::default()
    };
    client.create_snapshot(snapshot).unwrap();
    for (id, source) in [("clone", from_volume("source")), ("restored", from_snapshot("taken"))] {
        let made = client.create(CreateVolumeRequest {
            volume_content_source: source,
            parameters: parameters.clone(),
            ..volume(id, 48 * MIB, mount())
        });
        let target = publish_at(client, id);
        assert_eq!((made.capacity_bytes, size(&target)), (48 * MIB, 48), "{id}");
        assert_eq!(client.stats(id, &target).usage[0].total, 48 * MIB, "{id}");
        assert_eq!(write(&target.join("file"), 40), 40, "{id}");
        client.unpublish(id, &target);
        client.delete(id);
    }
    let snapshot_id = "taken".into();
    client.delete_snapshot(DeleteSnapshotRequest { snapshot_id, ..Default::default() }).unwrap();
    client.delete("source");
    good(&format!("{filesystem}: a restore to a larger claim has its size"));
}

/// While it is copied there are two of it, of which the limit allows one.
fn a_disk_as_large_as_its_quota_is_defragmented() {
    let (running, client) = driver("xfs", Path::new("/xfs"), "");
    client.create(volume("v", 32 * MIB, mount()));
    let disk = Path::new("/xfs/v/disk.img");
    let file = fs::File::create(disk).unwrap();
    file.write_all_at(&[7; 28 << 20], 0).unwrap();
    file.sync_all().unwrap();
    client.snapshot("full", "v");
    for block in 0..2000 {
        file.write_all_at(&[9; 4096], block * 8192).unwrap();
    }
    file.sync_all().unwrap();
    drop((file, client));
    running.kill();
    let (old, content) = (fs::metadata(disk).unwrap().ino(), fs::read(disk).unwrap());
    let (_running, client) = driver("xfs", Path::new("/xfs"), r#","defragment":100"#);
    eventually("the disk is defragmented", || fs::metadata(disk).unwrap().ino() != old);
    assert!(fs::read(disk).unwrap() == content);
    let v = publish_at(&client, "v");
    assert_eq!(size(&v), 32);
    let written = write(&v.join("more"), 16);
    assert!((1..=4).contains(&written), "the copy counts as the disk did: {written}");
    client.unpublish("v", &v);
    client.delete("v");
    good("xfs: a disk as large as its quota is defragmented");
}

fn an_ext4_in_a_file_grows_in_use() {
    let (_running, client) = driver("ext4-loop", Path::new("/ext4"), r#","enforce":"loop""#);
    client.create(volume("v", 64 * MIB, mount()));
    let (staging, target) = (Path::new("/run/staging/globalmount"), Path::new("/run/pods/v"));
    fs::create_dir_all("/run/staging").unwrap();
    client.node_stage_volume(stage("v", staging, mount())).unwrap();
    client.node_publish_volume(publish("v", staging, target, mount())).unwrap();
    assert!((40..=64).contains(&size(target)), "{}", size(target));
    fs::set_permissions(target, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(write(&target.join("file"), 100) < 64);
    good("a filesystem in a file holds the limit");
    expand(&client, "v", 256 * MIB);
    client
        .node_expand_volume(NodeExpandVolumeRequest {
            volume_id: "v".into(),
            volume_path: target.to_str().unwrap().into(),
            ..Default::default()
        })
        .unwrap();
    assert!(size(target) > 200, "{}", size(target));
    assert_eq!(write(&target.join("more"), 100), 100);
    good("an ext4 in a file grows in use");
    client.unpublish("v", target);
    client.unstage("v", staging);
    client.delete("v");
}

#[test]
fn missing_quota_support_is_reported() {
    let place = Place::new("tmpfs", GIB);
    let (running, client) = one_pool(&place, "");
    client.create(volume("v", MIB, mount()));
    drop(client);
    running.kill();
    let (_running, client) = one_pool(&place, r#","enforce":"quota""#);
    let (code, message) = refused(client.create_volume(volume("new", MIB, mount())));
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("legacy") && message.contains("quota"), "{message}");
    let list = client.list_volumes(ListVolumesRequest::default()).unwrap();
    let condition = list.entries[0].status.clone().unwrap().volume_condition.unwrap();
    assert!(
        condition.abnormal && condition.message.contains("does not enforce project quota"),
        "{condition:?}"
    );
}
