//! Disks that fail under the driver: a filesystem that shut itself down, truncated files, full disks below. Errors are
//! clear, pods can end, and the driver recovers with the disk, without a restart.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use csi::*;
use tonic::Code;

use crate::support::place::{Place, loops, mounts, run};
use crate::support::{
    Client, GIB, MIB, block, eventually, mount, names, one_pool, parameters, publish, refused, stage, volume,
};

fn target(place: &Place, id: &str) -> PathBuf {
    place.beside("pods").join(id)
}

fn staging(place: &Place, id: &str) -> PathBuf {
    place.beside(&format!("staging-{id}")).join("globalmount")
}

/// Makes a volume and puts it in use.
fn use_of(client: &Client, place: &Place, id: &str, bytes: i64, capability: &VolumeCapability) {
    client.create(volume(id, bytes, capability.clone()));
    mount_volume(client, place, id, capability);
}

fn mount_volume(client: &Client, place: &Place, id: &str, capability: &VolumeCapability) {
    client.node_stage_volume(stage(id, &staging(place, id), capability.clone())).unwrap();
    client
        .node_publish_volume(publish(id, &staging(place, id), &target(place, id), capability.clone()))
        .unwrap();
}

fn unmount_volume(client: &Client, place: &Place, id: &str) {
    client.unpublish(id, &target(place, id));
    client.unstage(id, &staging(place, id));
}

/// The volume's condition in its statistics: whether it is abnormal, and the message.
fn condition(client: &Client, place: &Place, id: &str) -> (bool, String) {
    let condition = client.stats(id, &target(place, id)).volume_condition.unwrap();
    (condition.abnormal, condition.message)
}

/// Fills what is left of a filesystem.
fn fill(folder: &Path) {
    let hog = File::create(folder.join("hog")).unwrap();
    for step in [1 << 20, 4096] {
        let mut at = hog.metadata().unwrap().len();
        while hog.write_all_at(&vec![1; step], at).and_then(|()| hog.sync_data()).is_ok() {
            at += step as u64;
        }
    }
}

#[test]
fn a_filesystem_that_shut_itself_down_is_let_go_and_comes_back() {
    for more in ["", r#","enforce":"loop""#] {
        let place = Place::new("xfs", GIB);
        let (driver, client) = one_pool(&place, more);
        use_of(&client, &place, "folder", 16 * MIB, &mount());
        use_of(&client, &place, "disk", 16 * MIB, &block());
        fs::write(target(&place, "folder").join("file"), "kept").unwrap();
        File::open(target(&place, "folder").join("file")).unwrap().sync_all().unwrap();
        run("xfs_io", &["-x", "-c", "shutdown -f", place.pool().to_str().unwrap()]);

        let (code, message) = refused(client.create_volume(volume("new", MIB, mount())));
        assert_eq!(code, Code::ResourceExhausted, "another node may have room: {message}");
        assert!(message.contains("legacy"), "{message}");
        for id in ["folder", "disk"] {
            let request = DeleteVolumeRequest { volume_id: id.into(), ..Default::default() };
            assert_eq!(refused(client.delete_volume(request)).0, Code::FailedPrecondition);
            let (abnormal, message) = condition(&client, &place, id);
            assert!(abnormal && message.contains("legacy"), "{message}");
        }
        assert_eq!(client.available(), 0);
        assert_eq!(client.probe(ProbeRequest {}).unwrap().ready, Some(true));

        // Pods end, and nothing of ours keeps the filesystem from being unmounted and mended.
        for id in ["folder", "disk"] {
            unmount_volume(&client, &place, id);
        }
        assert_eq!(loops(&place.pool()), [] as [String; 0]);
        place.take_away_when_free();
        assert_eq!(names(&place.pool()), [] as [String; 0], "nothing is written below the mount point");
        place.put_back();
        assert_eq!(client.volumes(), ["disk", "folder"], "back without a restart");
        for (id, capability) in [("folder", mount()), ("disk", block())] {
            mount_volume(&client, &place, id, &capability);
        }
        assert_eq!(fs::read_to_string(target(&place, "folder").join("file")).unwrap(), "kept");
        client.create(volume("new", MIB, if more.is_empty() { mount() } else { block() }));
        for id in ["folder", "disk"] {
            unmount_volume(&client, &place, id);
        }
        let log = driver.log();
        assert!(log.contains("Input/output error"), "the log tells");
    }
}

/// Sectors smaller than the disk's leave no direct I/O.
#[test]
fn missing_direct_io_is_reported_only_where_it_is_missing() {
    for (large_sectors, sector, direct) in [(false, "512", true), (true, "4096", true), (true, "512", false)]
    {
        let place = if large_sectors { Place::of_large_sectors(GIB) } else { Place::new("xfs", GIB) };
        let (driver, client) = one_pool(&place, "");
        let parameters = parameters(&[("blockSize", sector)]);
        client.create(CreateVolumeRequest { parameters, ..volume("disk", 64 * MIB, block()) });
        mount_volume(&client, &place, "disk", &block());
        let (abnormal, message) = condition(&client, &place, "disk");
        let log = driver.log();
        let case = format!("{large_sectors} {sector}: {message}\n{log}");
        assert!(!abnormal, "{case}");
        assert_eq!(message == "healthy", direct, "{case}");
        for report in [&message, &log] {
            assert_eq!(report.contains("through the page cache"), !direct, "{case}");
        }
        unmount_volume(&client, &place, "disk");
    }
}

#[test]
fn a_truncated_file_is_reported_and_not_attached_again() {
    for (more, capability) in [("", block()), (r#","enforce":"loop""#, mount())] {
        let place = Place::new("xfs", GIB);
        let (_driver, client) = one_pool(&place, more);
        use_of(&client, &place, "v", 64 * MIB, &capability);
        let file = place.pool().join(if more.is_empty() { ".hpp-csi/block/v" } else { "v/image" });
        let file = OpenOptions::new().write(true).open(file).unwrap();
        assert!(!condition(&client, &place, "v").0);
        file.set_len(16 << 20).unwrap();
        let (abnormal, message) = condition(&client, &place, "v");
        assert!(abnormal && message.contains("16777216 of 67108864 bytes"), "{message}");
        unmount_volume(&client, &place, "v");
        let (code, message) =
            refused(client.node_stage_volume(stage("v", &staging(&place, "v"), capability.clone())));
        assert_eq!(code, Code::FailedPrecondition);
        assert!(message.contains("truncated"), "{message}");
        assert_eq!(loops(&place.pool()), [] as [String; 0]);
        if more.is_empty() {
            file.set_len(64 << 20).unwrap();
            mount_volume(&client, &place, "v", &capability);
            assert!(!condition(&client, &place, "v").0);
            unmount_volume(&client, &place, "v");
        }
        client.delete("v");
    }
}

#[test]
fn a_device_on_a_full_disk_fails_writes_and_recovers() {
    let place = Place::new("tmpfs", 64 * MIB);
    let (_driver, client) = one_pool(&place, "");
    use_of(&client, &place, "disk", 32 * MIB, &block());
    fill(&place.pool());
    let device = OpenOptions::new().write(true).open(target(&place, "disk")).unwrap();
    let write = || device.write_all_at(&[7; 1 << 20], 4 << 20).and_then(|()| device.sync_all());
    assert!(write().is_err(), "nothing is taken that cannot be kept");
    let (abnormal, message) = condition(&client, &place, "disk");
    assert!(abnormal && message.contains("nearly full"), "{message}");
    let (code, message) = refused(client.create_volume(volume("new", MIB, mount())));
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("legacy") && message.contains("free"), "{message}");
    fs::remove_file(place.pool().join("hog")).unwrap();
    write().unwrap();
    assert!(!condition(&client, &place, "disk").0);
    client.create(volume("new", MIB, mount()));
    drop(device);
    client.unpublish("disk", &target(&place, "disk"));
    client.unstage("disk", &staging(&place, "disk"));
}

#[test]
fn a_disk_on_a_full_tmpfs_breaks_and_is_mended() {
    let place = Place::on_tmpfs("xfs", GIB, 200 * MIB);
    let (_driver, client) = one_pool(&place, r#","reserve":"0""#);
    use_of(&client, &place, "v", 100 * MIB, &mount());
    fill(&place.below());
    let file = File::create(target(&place, "v").join("file")).unwrap();
    let mut broken = false;
    for at in 0..200 {
        broken = broken || file.write_all_at(&[1; 1 << 20], at << 20).and_then(|()| file.sync_all()).is_err();
    }
    assert!(broken, "the pool says it has room, its disk has none");
    drop(file);
    // Metadata cannot be written either: sooner or later each call fails.
    let mut codes = Vec::new();
    for n in 0..50 {
        if let Err(status) = client.create_volume(volume(&format!("new-{n}"), MIB, mount())) {
            codes.push(status);
        }
    }
    for status in &codes {
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    }
    unmount_volume(&client, &place, "v");
    fs::remove_file(place.below().join("hog")).unwrap();
    place.take_away_when_free();
    place.put_back();
    mount_volume(&client, &place, "v", &mount());
    fs::write(target(&place, "v").join("more"), "x").unwrap();
    client.create(volume("after", MIB, mount()));
    unmount_volume(&client, &place, "v");
    assert_eq!(mounts(&place.beside("pods")), [] as [PathBuf; 0]);
}

#[test]
fn a_disk_without_a_free_block_refuses_and_deletes() {
    for filesystem in ["xfs", "ext4"] {
        let place = Place::new(filesystem, 400 * MIB);
        let (_driver, client) = one_pool(&place, r#","reserve":"0","overcommit":100"#);
        client.create(volume("v", 10 * MIB, mount()));
        fill(&place.pool().join("v"));
        let mut refusals = 0;
        for n in 0..200 {
            if let Err(status) = client.create_volume(volume(&format!("new-{n}"), MIB, mount())) {
                assert_eq!(status.code(), Code::ResourceExhausted, "{filesystem}: {status:?}");
                for word in ["legacy", "1.0 MiB are asked for", "free"] {
                    assert!(status.message().contains(word), "{status:?}");
                }
                refusals += 1;
            }
        }
        assert!(refusals > 0, "{filesystem}");
        let listed = client.volumes();
        let folders: Vec<String> = names(&place.pool())
            .into_iter()
            .filter(|name| !name.starts_with('.') && name != "lost+found")
            .collect();
        assert_eq!(listed, folders, "nothing half made");
        // Deleting a volume helps and is possible.
        client.delete("v");
        eventually("there is room again", || place.free() > 100 << 20);
        client.create(volume("after", MIB, mount()));
        for id in client.volumes() {
            client.delete(&id);
        }
    }
}

#[test]
fn a_read_only_pool_refuses_what_writes() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    client.create(volume("v", MIB, mount()));
    client.snapshot("s", "v");
    place.remount("ro");
    let (code, message) = refused(client.create_volume(volume("new", MIB, mount())));
    assert_eq!(code, Code::ResourceExhausted, "{message}");
    let request = DeleteVolumeRequest { volume_id: "v".into(), ..Default::default() };
    let (code, message) = refused(client.delete_volume(request.clone()));
    assert_eq!(code, Code::FailedPrecondition, "{message}");
    assert!(message.contains("read-only") || message.contains("Read-only"), "{message}");
    let expand = ControllerExpandVolumeRequest {
        volume_id: "v".into(),
        capacity_range: Some(CapacityRange { required_bytes: 2 * MIB, limit_bytes: 0 }),
        ..Default::default()
    };
    assert_eq!(refused(client.controller_expand_volume(expand.clone())).0, Code::FailedPrecondition);
    let delete = DeleteSnapshotRequest { snapshot_id: "s".into(), ..Default::default() };
    assert_eq!(refused(client.delete_snapshot(delete.clone())).0, Code::FailedPrecondition);
    let snapshot =
        CreateSnapshotRequest { name: "t".into(), source_volume_id: "v".into(), ..Default::default() };
    let (code, _) = refused(client.create_snapshot(snapshot));
    assert!(matches!(code, Code::FailedPrecondition | Code::Unimplemented), "{code:?}");
    assert_eq!((client.volumes(), client.snapshots()), (vec!["v".into()], vec!["s".into()]));
    place.remount("rw");
    client.controller_expand_volume(expand).unwrap();
    client.delete_snapshot(delete).unwrap();
    client.delete_volume(request).unwrap();
    place.is_clean();
}
