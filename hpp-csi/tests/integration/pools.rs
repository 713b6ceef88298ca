//! Pools that go away, come back, were replaced, or cannot be written: the errors, and that nothing lands on the disk below.

use std::fs;

use csi::*;
use tonic::Code;

use crate::support::place::Place;
use crate::support::{
    self, Client, Driver, GIB, MIB, eventually, mount, names, one_pool, parameters, pool, publish, refused,
    volume,
};

/// Checks the error of every call while the pool is away, and that nothing is written below.
fn is_away(client: &Client, place: &Place) {
    let (code, message) = refused(client.create_volume(volume("new", MIB, mount())));
    assert_eq!(code, Code::ResourceExhausted, "another node may have room: {message}");
    assert!(message.contains("legacy") && message.contains("not mounted"), "{message}");
    let path = place.beside("pods").join("v");
    let (code, message) = refused(client.node_publish_volume(publish("v", &path, &path, mount())));
    assert_eq!(code, Code::FailedPrecondition, "{message}");
    let request = DeleteVolumeRequest { volume_id: "v".into(), ..Default::default() };
    assert_eq!(
        refused(client.delete_volume(request)).0,
        Code::FailedPrecondition,
        "it is not gone, only away"
    );
    assert_eq!(refused(client.list_volumes(ListVolumesRequest::default())).0, Code::FailedPrecondition);
    assert_eq!(client.available(), 0);
    assert_eq!(client.probe(ProbeRequest {}).unwrap().ready, Some(true), "a restart would not help");
    assert_eq!(names(&place.pool()), [] as [String; 0], "nothing is written below the mount point");
    assert!(!path.exists());
}

#[test]
fn a_pool_that_is_not_mounted_is_not_ready() {
    let place = Place::new("xfs", GIB);
    let (driver, client) = one_pool(&place, "");
    client.create(volume("v", MIB, mount()));
    fs::write(place.pool().join("v/file"), "kept").unwrap();
    // No descriptor is kept: the filesystem can be unmounted under the driver.
    place.take_away();
    is_away(&client, &place);
    place.put_back();
    assert_eq!(client.volumes(), ["v"], "back without a restart");
    client.create(volume("new", MIB, mount()));
    drop((client, driver));

    place.take_away();
    let (_driver, client) = one_pool(&place, "");
    is_away(&client, &place);
    place.put_back();
    assert_eq!(client.volumes(), ["new", "v"]);
    assert_eq!(fs::read_to_string(place.pool().join("v/file")).unwrap(), "kept");
}

#[test]
fn a_pool_that_another_program_mounts_is_not_begun_before() {
    let place = Place::new("xfs", GIB);
    place.take_away();
    let (_driver, client) = one_pool(&place, r#","mounted":true"#);
    is_away(&client, &place);
    place.put_back();
    client.create(volume("v", MIB, mount()));
    place.take_away();
    is_away(&client, &place);
    place.put_back();
    assert_eq!(client.volumes(), ["v"]);
}

#[test]
fn pods_end_while_their_pool_is_away() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    client.create(volume("v", MIB, mount()));
    let path = place.beside("pods").join("v");
    client.node_publish_volume(publish("v", &path, &path, mount())).unwrap();
    place.take_away();
    let stats = client
        .node_get_volume_stats(NodeGetVolumeStatsRequest {
            volume_id: "v".into(),
            volume_path: path.to_str().unwrap().into(),
            ..Default::default()
        })
        .unwrap();
    let condition = stats.volume_condition.unwrap();
    assert!(condition.abnormal && condition.message.contains("not mounted"), "{condition:?}");
    client.unpublish("v", &path);
    assert!(!path.exists());
    place.put_back();
    client.delete("v");
}

#[test]
fn another_filesystem_in_its_place_is_not_the_pool() {
    let (place, other) = (Place::new("ext4", GIB), Place::new("ext4", GIB));
    drop(one_pool(&place, ""));
    drop(one_pool(&other, ""));
    place.take_away();
    support::place::run("mount", &["--bind", other.pool().to_str().unwrap(), place.pool().to_str().unwrap()]);
    let (_driver, client) = one_pool(&place, "");
    let (code, message) = refused(client.create_volume(volume("v", MIB, mount())));
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("another pool") && message.contains("hpp-csi-pools.json"), "{message}");
    assert_eq!(names(&other.pool()), [".hpp-csi", "lost+found"]);
}

#[test]
fn another_filesystem_on_the_same_device_is_not_the_pool() {
    for filesystem in ["xfs", "ext4"] {
        let place = Place::new(filesystem, GIB);
        let (_driver, client) = one_pool(&place, "");
        client.create(volume("v", MIB, mount()));
        place.recreate(GIB);
        let (code, message) = refused(client.create_volume(volume("w", MIB, mount())));
        assert_eq!(code, Code::ResourceExhausted);
        assert!(message.contains("not mounted"), "{message}");
        // The same device, mount point and inode numbers, and a pool: of another driver.
        let pools = format!("[{}]", support::pool("legacy", &place.pool(), ""));
        drop(support::Driver::start(&place.beside("other"), "node1", &pools, &[]));
        let (code, message) = refused(client.create_volume(volume("w", MIB, mount())));
        assert_eq!(code, Code::ResourceExhausted, "{filesystem}");
        assert!(message.contains("another pool"), "{message}");
        assert!(!place.pool().join("w").exists());
    }
}

#[test]
fn a_mount_that_a_pod_made_in_its_volume_is_not_the_volumes() {
    let (place, host) = (Place::new("xfs", GIB), Place::new("xfs", GIB));
    let (_driver, client) = one_pool(&place, "");
    fs::write(host.pool().join("file"), "the host's").unwrap();
    client.create(volume("v", 100 * MIB, mount()));
    let inside = place.pool().join("v/inside");
    fs::create_dir(&inside).unwrap();
    support::place::run("mount", &["--bind", host.pool().to_str().unwrap(), inside.to_str().unwrap()]);
    let clone = CreateVolumeRequest {
        volume_content_source: support::from_volume("v"),
        ..volume("clone", 100 * MIB, mount())
    };
    let (code, message) = refused(client.create_volume(clone.clone()));
    assert_eq!(code, Code::FailedPrecondition, "{message}");
    let request = DeleteVolumeRequest { volume_id: "v".into(), ..Default::default() };
    drop(client.delete_volume(request));
    assert_eq!(fs::read_to_string(host.pool().join("file")).unwrap(), "the host's");
    for point in support::place::mounts(&place.pool()).iter().filter(|point| **point != place.pool()) {
        support::place::run("umount", &[point.to_str().unwrap()]);
    }
    client.delete("v");
    assert_eq!(fs::read_to_string(host.pool().join("file")).unwrap(), "the host's");
}

#[test]
fn a_shared_pool_counts_what_other_nodes_promise() {
    let place = Place::new("xfs", GIB);
    let pools = format!("[{}]", support::pool("legacy", &place.pool(), r#","shared":true"#));
    let nodes = ["node1", "node2"]
        .map(|node| support::Driver::start(&place.beside(&format!("run-{node}")), node, &pools, &[]));
    let [first, second] = nodes.each_ref().map(|node| node.client());
    let all = second.available();
    let near = |told: i64, expected: i64| (told - expected).abs() < 4 * MIB;
    first.create(volume("a", 300 * MIB, mount()));
    assert!(near(second.available(), all - 300 * MIB), "{} of {all}", second.available());
    second.create(volume("b", 100 * MIB, mount()));
    let request = ControllerExpandVolumeRequest {
        volume_id: "b".into(),
        capacity_range: Some(CapacityRange { required_bytes: 200 * MIB, limit_bytes: 0 }),
        ..Default::default()
    };
    second.controller_expand_volume(request).unwrap();
    assert!(near(first.available(), all - 500 * MIB), "{} of {all}", first.available());
    first.delete("b");
    assert!(near(second.available(), all - 300 * MIB), "{} of {all}", second.available());
    let (code, _) = refused(second.create_volume(volume("c", all - 200 * MIB, mount())));
    assert_eq!(code, Code::ResourceExhausted);
}

#[test]
fn a_read_only_pool_serves_what_it_holds() {
    let place = Place::new("ext4", GIB);
    let (_driver, client) = one_pool(&place, "");
    client.create(volume("v", MIB, mount()));
    fs::write(place.pool().join("v/file"), "kept").unwrap();
    place.remount("ro");
    let (code, _) = refused(client.create_volume(volume("new", MIB, mount())));
    assert!(matches!(code, Code::FailedPrecondition | Code::ResourceExhausted), "{code:?}");
    assert_eq!(client.available(), 0);
    let path = place.beside("pods").join("v");
    client.node_publish_volume(publish("v", &path, &path, mount())).unwrap();
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "kept");
    let list = client.list_volumes(ListVolumesRequest::default()).unwrap();
    let condition = list.entries[0].status.clone().unwrap().volume_condition.unwrap();
    assert!(condition.abnormal && condition.message.contains("read-only"), "{condition:?}");
    client.unpublish("v", &path);
    place.remount("rw");
    client.create(volume("new", MIB, mount()));
}

#[test]
fn a_full_pool_is_reported_and_recovers() {
    let place = Place::new("ext4", GIB);
    let (_driver, client) = one_pool(&place, "");
    client.create(volume("v", 100 * MIB, mount()));
    let hog = place.pool().join("v/hog");
    let free = place.free();
    support::place::run("fallocate", &["-l", &(free - (40 << 20)).to_string(), hog.to_str().unwrap()]);
    let (code, message) = refused(client.create_volume(volume("new", MIB, mount())));
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("reserved"), "{message}");
    let list = client.list_volumes(ListVolumesRequest::default()).unwrap();
    let condition = list.entries[0].status.clone().unwrap().volume_condition.unwrap();
    assert!(condition.abnormal && condition.message.contains("nearly full"), "{condition:?}");
    client.delete("v");
    eventually("what was deleted is removed", || place.free() + (20 << 20) > free);
    client.create(volume("new", MIB, mount()));
}

#[test]
fn remains_of_a_crash_are_swept() {
    let place = Place::new("xfs", GIB);
    let (driver, client) = one_pool(&place, "");
    client.create(volume("v", MIB, mount()));
    drop(client);
    driver.kill();
    let own = place.pool().join(".hpp-csi");
    fs::create_dir(own.join("tmp/node1/v.half")).unwrap();
    fs::write(own.join("tmp/node1/v.half/file"), "half").unwrap();
    fs::write(own.join("tmp/node1/r.half"), "{").unwrap();
    fs::copy(own.join("volumes/v.json"), own.join("volumes/half.json")).unwrap();
    fs::write(own.join("snapshots/half.json"), "{}").unwrap();
    let mut deep = own.join("trash/node1/deep");
    for _ in 0..300 {
        fs::create_dir(&deep).unwrap();
        deep.push("folder");
    }
    let (_driver, client) = one_pool(&place, "");
    assert_eq!(client.volumes(), ["v"]);
    eventually("nothing is left", || names(&own.join("trash/node1")).is_empty());
    assert_eq!(names(&own.join("tmp/node1")), [] as [String; 0]);
    assert_eq!(names(&own.join("volumes")), ["v.json"]);
    assert_eq!(names(&own.join("snapshots")), [] as [String; 0]);
}

/// Deleting the volume `vv` of the outer pool would delete all volumes of the inner one.
#[test]
fn a_pool_that_a_bind_mount_puts_into_another_is_refused() {
    let place = Place::new("xfs", GIB);
    let (outer, bound) = (place.pool().join("outer"), place.beside("bound"));
    for inner in ["outer/vv/deep", "outer"] {
        let inner = place.pool().join(inner);
        fs::create_dir_all(&inner).unwrap();
        support::place::run("mount", &["--bind", inner.to_str().unwrap(), bound.to_str().unwrap()]);
        let pools = format!("[{},{}]", pool("outer", &outer, ""), pool("inner", &bound, ""));
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_hpp-csi"))
            .arg(format!("--endpoint=unix://{}", place.beside("run").join("csi.sock").display()))
            .args(["--nodeid=node1", "--metrics-address=off"])
            .arg(format!("--datadir={pools}"))
            .output()
            .unwrap();
        support::place::run("umount", &[bound.to_str().unwrap()]);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{errors}");
        assert!(errors.contains("inner") && errors.contains("mounts lead to one directory"), "{errors}");
    }
}

#[test]
fn two_pools_of_one_filesystem_do_not_reserve_the_same_bytes() {
    let place = Place::new("xfs", GIB);
    let pools: Vec<String> = ["legacy", "fast"]
        .map(|name| {
            fs::create_dir_all(place.pool().join(name)).unwrap();
            pool(name, &place.pool().join(name), r#","reserve":"0""#)
        })
        .into();
    let driver = Driver::start(&place.beside("run"), "node1", &format!("[{}]", pools.join(",")), &[]);
    let client = driver.client();
    let of_fast = |name: &str, bytes| CreateVolumeRequest {
        parameters: parameters(&[("storagePool", "fast")]),
        ..volume(name, bytes, mount())
    };
    let before = client.available();
    client.create(of_fast("a", 600 * MIB));
    let after = client.available();
    assert!((before - after - 600 * MIB).abs() < 8 * MIB, "{before}, {after}");
    let (code, message) = refused(client.create_volume(volume("b", 600 * MIB, mount())));
    assert_eq!(code, Code::ResourceExhausted, "{message}");
    client.create(volume("b", 200 * MIB, mount()));
    assert_eq!(refused(client.create_volume(of_fast("c", 400 * MIB))).0, Code::ResourceExhausted);
    client.delete("a");
    client.create(volume("c", 400 * MIB, mount()));
}
