//! Group snapshots through the built driver: all of one point in time, all or none, under every interruption.

use std::fs;
use std::io::{Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use csi::*;
use tonic::Code;

use crate::support::place::Place;
use crate::support::{
    Client, GIB, MIB, block, eventually, from_snapshot, mount, names, one_pool, parameters, publish, refused,
    stage, volume,
};

fn group(name: &str, volumes: &[&str]) -> CreateVolumeGroupSnapshotRequest {
    CreateVolumeGroupSnapshotRequest {
        name: name.into(),
        source_volume_ids: volumes.iter().map(|&volume| volume.to_owned()).collect(),
        ..Default::default()
    }
}

fn create(client: &Client, name: &str, volumes: &[&str]) -> VolumeGroupSnapshot {
    client.create_volume_group_snapshot(group(name, volumes)).unwrap().group_snapshot.unwrap()
}

fn ids(group: &VolumeGroupSnapshot) -> Vec<String> {
    group.snapshots.iter().map(|snapshot| snapshot.snapshot_id.clone()).collect()
}

fn get(
    client: &Client,
    name: &str,
    snapshots: &[String],
) -> Result<GetVolumeGroupSnapshotResponse, tonic::Status> {
    client.get_volume_group_snapshot(GetVolumeGroupSnapshotRequest {
        group_snapshot_id: name.into(),
        snapshot_ids: snapshots.to_vec(),
        ..Default::default()
    })
}

fn delete(
    client: &Client,
    name: &str,
    snapshots: &[String],
) -> Result<DeleteVolumeGroupSnapshotResponse, tonic::Status> {
    client.delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: name.into(),
        snapshot_ids: snapshots.to_vec(),
        ..Default::default()
    })
}

/// Stops the writers when the test ends, also when it fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Writes one number to both files again and again, to the first one first, until stopped; each durable before the next if
/// `synced`.
fn write_in_turn(files: [&Path; 2], synced: bool, stop: &AtomicBool) {
    let mut files =
        files.map(|path| fs::OpenOptions::new().write(true).create(true).truncate(false).open(path).unwrap());
    for n in 0_u64.. {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        for file in &mut files {
            file.rewind().unwrap();
            file.write_all(format!("{n:020}").as_bytes()).unwrap();
            if synced {
                file.sync_data().unwrap();
            }
        }
    }
}

#[test]
fn a_group_is_there_as_a_whole_and_goes_as_a_whole() {
    let place = Place::new("xfs", 2 * GIB);
    let (driver, client) = one_pool(&place, "");
    client.create(volume("files", 100 * MIB, mount()));
    client.create(volume("disk", 100 * MIB, block()));
    fs::write(place.pool().join("files/a"), "before").unwrap();
    let taken = create(&client, "group", &["files", "disk"]);
    assert!(taken.ready_to_use && taken.creation_time.is_some());
    assert_eq!(taken.group_snapshot_id, "group");
    assert_eq!(taken.snapshots.len(), 2);
    for (snapshot, source) in taken.snapshots.iter().zip(["files", "disk"]) {
        assert_eq!(
            (snapshot.source_volume_id.as_str(), snapshot.group_snapshot_id.as_str()),
            (source, "group")
        );
        assert!(snapshot.ready_to_use && snapshot.size_bytes == 100 * MIB);
    }
    assert_eq!(create(&client, "group", &["disk", "files"]), taken, "the same group, not another");
    assert_eq!(
        refused(client.create_volume_group_snapshot(group("group", &["files"]))).0,
        Code::AlreadyExists
    );
    assert_eq!(get(&client, "group", &ids(&taken)).unwrap().group_snapshot.unwrap(), taken);
    assert_eq!(client.snapshots().len(), 2);

    // Each of them can be restored, none deleted alone, and no other list of them is taken.
    client.create(CreateVolumeRequest {
        volume_content_source: from_snapshot(&taken.snapshots[0].snapshot_id),
        ..volume("restored", 100 * MIB, mount())
    });
    assert_eq!(fs::read_to_string(place.pool().join("restored/a")).unwrap(), "before");
    let one = DeleteSnapshotRequest { snapshot_id: ids(&taken)[0].clone(), ..Default::default() };
    assert_eq!(refused(client.delete_snapshot(one)).0, Code::InvalidArgument);
    for wrong in [&[][..], &ids(&taken)[..1], &["x".to_owned(), "y".to_owned()]] {
        assert_eq!(refused(get(&client, "group", wrong)).0, Code::InvalidArgument);
        assert_eq!(refused(delete(&client, "group", wrong)).0, Code::InvalidArgument);
    }
    // It outlives the driver.
    drop(client);
    driver.kill();
    let (_driver, client) = one_pool(&place, "");
    assert_eq!(get(&client, "group", &ids(&taken)).unwrap().group_snapshot.unwrap(), taken);
    delete(&client, "group", &ids(&taken)).unwrap();
    delete(&client, "group", &ids(&taken)).unwrap();
    assert_eq!(refused(get(&client, "group", &ids(&taken))).0, Code::NotFound);
    assert_eq!(client.snapshots(), [] as [&str; 0]);
    assert_eq!(names(&place.pool().join("snapshots")), [] as [&str; 0]);
    for folder in ["snapshots", "groups", "tmp/node1"] {
        assert_eq!(names(&place.pool().join(".hpp-csi").join(folder)), [] as [&str; 0], "{folder}");
    }
}

#[test]
fn invalid_groups_are_refused() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    client.create(volume("a", 10 * MIB, mount()));
    let code =
        |name: &str, volumes: &[&str]| refused(client.create_volume_group_snapshot(group(name, volumes))).0;
    assert_eq!(code("", &["a"]), Code::InvalidArgument);
    assert_eq!(code("../g", &["a"]), Code::InvalidArgument);
    assert_eq!(code("g", &[]), Code::InvalidArgument);
    assert_eq!(code("g", &["a", "a"]), Code::InvalidArgument);
    assert_eq!(code("g", &["a", "gone"]), Code::NotFound);
    assert_eq!(client.snapshots(), [] as [&str; 0]);
    let bad =
        CreateVolumeGroupSnapshotRequest { parameters: parameters(&[("copy", "x")]), ..group("g", &["a"]) };
    assert_eq!(refused(client.create_volume_group_snapshot(bad)).0, Code::InvalidArgument);
}

#[test]
fn filesystems_in_files_are_cut_together_while_they_are_written_to() {
    let place = Place::new("xfs", 12 * GIB);
    let (_driver, client) = one_pool(&place, r#","enforce":"loop""#);
    let at = |name: &str| {
        (
            place.beside(&format!("s-{name}")).join("globalmount"),
            place.beside(&format!("t-{name}")).join("mount"),
        )
    };
    let use_it = |name: &str| {
        let (staging, target) = at(name);
        client.node_stage_volume(stage(name, &staging, mount())).unwrap();
        client.node_publish_volume(publish(name, &staging, &target, mount())).unwrap();
        target
    };
    let leave_it = |name: &str| {
        let (staging, target) = at(name);
        client.unpublish(name, &target);
        client.unstage(name, &staging);
    };
    let targets = ["first", "second"].map(|name| {
        client.create(volume(name, 400 * MIB, mount()));
        use_it(name).join("number")
    });
    let stop = AtomicBool::new(false);
    let groups: Vec<VolumeGroupSnapshot> = std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| write_in_turn([&targets[0], &targets[1]], true, &stop));
        eventually("writing begins", || targets[1].exists());
        (0..3).map(|n| create(&client, &format!("g{n}"), &["first", "second"])).collect()
    });
    for (n, group) in groups.iter().enumerate() {
        let read: Vec<u64> = ["first", "second"]
            .iter()
            .zip(&group.snapshots)
            .map(|(of, snapshot)| {
                let name = format!("{of}-{n}");
                client.create(CreateVolumeRequest {
                    volume_content_source: from_snapshot(&snapshot.snapshot_id),
                    ..volume(&name, 400 * MIB, mount())
                });
                let text = fs::read_to_string(use_it(&name).join("number")).unwrap();
                leave_it(&name);
                text.parse().unwrap()
            })
            .collect();
        assert!(read[0] == read[1] || read[0] == read[1] + 1, "no moment had {read:?}");
    }
    leave_it("first");
    leave_it("second");
}

#[test]
fn unfreezable_volumes_are_cut_when_idle_and_refused_when_busy() {
    let place = Place::new("xfs", 2 * GIB);
    let (_driver, client) = one_pool(&place, "");
    for name in ["first", "second"] {
        client.create(volume(name, 100 * MIB, mount()));
    }
    let files = ["first", "second"].map(|name| place.pool().join(name).join("number"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        // Without a pause: a writer that waits for the disk longer than a cut takes lets it be made.
        scope.spawn(|| write_in_turn([&files[0], &files[1]], false, &stop));
        eventually("writing begins", || files[1].exists());
        // Where the writer itself is delayed for as long as a cut, the cut succeeds; only one of the two outcomes is valid.
        eventually("a cut that is refused", || {
            let cut = client.create_volume_group_snapshot(group("g", &["first", "second"]));
            if let Ok(taken) = cut {
                delete(&client, "g", &ids(&taken.group_snapshot.unwrap())).unwrap();
                return false;
            }
            let (code, why) = refused(cut);
            assert_eq!(code, Code::FailedPrecondition);
            assert!(why.contains("volume first") && why.contains("enforce"), "{why}");
            true
        });
    });
    assert_eq!(client.snapshots(), [] as [&str; 0]);
    assert_eq!(names(&place.pool().join(".hpp-csi/tmp/node1")), [] as [&str; 0]);
    assert_eq!(create(&client, "g", &["first", "second"]).snapshots.len(), 2, "without a writer");
}

#[test]
fn a_group_that_a_killed_driver_began_is_not_there() {
    let place = Place::new("xfs", GIB);
    let (driver, client) = one_pool(&place, "");
    client.create(volume("a", 10 * MIB, mount()));
    client.create(volume("b", 10 * MIB, mount()));
    let taken = create(&client, "g", &["a", "b"]);
    // As a kill before the last step of making it, or after the first one of deleting it, leaves it.
    let own = place.pool().join(".hpp-csi");
    fs::rename(own.join("groups/g.json"), own.join("tmp/node1/g.g")).unwrap();
    assert_eq!(client.snapshots(), [] as [&str; 0], "none of them is there");
    let restored = CreateVolumeRequest {
        volume_content_source: from_snapshot(&ids(&taken)[0]),
        ..volume("restored", 10 * MIB, mount())
    };
    assert!(client.create_volume(restored).is_err());
    drop(client);
    driver.kill();
    let (_driver, client) = one_pool(&place, "");
    assert_eq!(client.snapshots(), [] as [&str; 0]);
    assert_eq!(names(&place.pool().join("snapshots")), [] as [&str; 0]);
    for folder in ["snapshots", "tmp/node1"] {
        assert_eq!(names(&own.join(folder)), [] as [&str; 0], "{folder}");
    }
    // And as a failure in the middle of deleting leaves it: the next call goes on.
    let taken = create(&client, "g", &["a", "b"]);
    fs::rename(own.join("groups/g.json"), own.join("tmp/node1/g.g")).unwrap();
    delete(&client, "g", &ids(&taken)).unwrap();
    assert_eq!(names(&place.pool().join("snapshots")), [] as [&str; 0]);
}

#[test]
fn a_group_of_copies_is_never_resumed() {
    let place = Place::new("ext4", GIB);
    let (driver, client) = one_pool(&place, r#","copy":true"#);
    client.create(volume("files", 100 * MIB, mount()));
    client.create(volume("disk", 100 * MIB, block()));
    fs::write(place.pool().join("files/a"), vec![1; 64 << 20]).unwrap();
    let copied = |name: &str| CreateVolumeGroupSnapshotRequest {
        parameters: parameters(&[("copy", "true")]),
        ..group(name, &["files", "disk"])
    };
    let tmp = place.pool().join(".hpp-csi/tmp/node1");
    std::thread::scope(|scope| {
        let cut = scope.spawn(|| client.create_volume_group_snapshot(copied("group")));
        eventually("the copy begins", || names(&tmp).iter().any(|name| name.starts_with("s.")));
        driver.kill();
        assert!(cut.join().unwrap().is_err());
    });
    let (_driver, client) = one_pool(&place, r#","copy":true"#);
    assert_eq!(client.snapshots(), [] as [&str; 0]);
    assert_eq!(names(&tmp), [] as [&str; 0], "nothing waits for the next try");
    let taken = client.create_volume_group_snapshot(copied("group")).unwrap().group_snapshot.unwrap();
    let data = place.pool().join("snapshots").join(&taken.snapshots[0].snapshot_id).join("data");
    assert_eq!(fs::read(data.join("a")).unwrap(), vec![1; 64 << 20]);
    for path in [data.join("a"), data] {
        assert!(
            rustix::fs::getxattr(&path, "trusted.hpp-csi.copy", &mut [0; 512]).is_err(),
            "no trace stays"
        );
    }
    delete(&client, "group", &ids(&taken)).unwrap();
    assert_eq!(names(&tmp), [] as [&str; 0]);
}
