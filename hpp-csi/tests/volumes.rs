//! Making, deleting and listing volumes through the built driver: the layout on disk, promises, and what another driver's
//! tree looks like to ours.

mod support;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use hpp_csi::proto::*;
use support::place::Place;
use support::{
    Client, Driver, GIB, MIB, block, eventually, from_volume, mount, names, parameters, pool, refused, volume,
};
use tonic::Code;

fn one_pool(place: &Place, more: &str) -> (Driver, Client) {
    let driver = Driver::start(
        &place.beside("run"),
        "node1",
        &format!("[{}]", pool("legacy", &place.pool(), more)),
        &[],
    );
    let client = driver.client();
    (driver, client)
}

#[test]
fn the_layout_is_upstreams() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    let made = client.create(CreateVolumeRequest {
        parameters: parameters(&[("storagePool", "legacy"), ("csi.storage.k8s.io/pv/name", "pv")]),
        ..volume("pvc-1", 100 * MIB, mount())
    });
    assert_eq!(made.volume_id, "pvc-1");
    assert_eq!(made.capacity_bytes, 100 * MIB);
    assert_eq!(made.volume_context["csi.storage.k8s.io/pv/name"], "pv");
    assert_eq!(made.accessible_topology[0].segments["topology.hostpath.csi/node"], "node1");
    client.create(volume("block-1", 5 * MIB + 1, block()));
    client.snapshot("snap-1", "pvc-1");
    assert_eq!(
        names(&place.pool()),
        [".hpp-csi", "pvc-1", "snapshots"],
        "folders are volumes, by upstream's rule"
    );
    assert_eq!(names(&place.pool().join("snapshots/snap-1")), ["data", "pvc-1"]);
    assert_eq!(fs::metadata(place.pool().join(".hpp-csi")).unwrap().permissions().mode() & 0o777, 0o700);
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    let mode = fs::metadata(place.pool().join("pvc-1")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o777 & !umask.as_raw_mode());
    let file = fs::metadata(place.pool().join(".hpp-csi/block/block-1")).unwrap();
    assert_eq!(file.len(), (5 << 20) + 4096, "up to whole sectors");
    assert_eq!(file.blocks(), 0, "nothing is allocated");
    assert_eq!(client.volumes(), ["block-1", "pvc-1"]);
    assert_eq!(client.snapshots(), ["snap-1"]);

    for id in ["pvc-1", "block-1", "pvc-1", "nobody", "../../etc", "snapshots"] {
        client.delete(id);
    }
    assert_eq!(names(&place.pool()), [".hpp-csi", "snapshots"]);
    assert_eq!(client.snapshots(), ["snap-1"], "a snapshot outlives its volume");
    client
        .delete_snapshot(DeleteSnapshotRequest { snapshot_id: "snap-1".into(), ..Default::default() })
        .unwrap();
    assert_eq!(names(&place.pool().join("snapshots")), [] as [String; 0]);
    let own = place.pool().join(".hpp-csi");
    eventually("the trash is empty", || names(&own.join("trash/node1")).is_empty());
    for folder in ["tmp/node1", "volumes", "snapshots", "block"] {
        assert_eq!(names(&own.join(folder)), [] as [String; 0], "{folder}");
    }
}

#[test]
fn the_same_name_is_the_same_volume_or_none() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    let request = || volume("v", 10 * MIB, mount());
    client.create(request());
    fs::write(place.pool().join("v/file"), "kept").unwrap();
    assert_eq!(client.create(request()).capacity_bytes, 10 * MIB);
    assert_eq!(fs::read_to_string(place.pool().join("v/file")).unwrap(), "kept");
    client.create(volume("other", 10 * MIB, mount()));
    for different in [
        volume("v", 20 * MIB, mount()),
        volume("v", 10 * MIB, block()),
        CreateVolumeRequest { volume_content_source: from_volume("other"), ..request() },
    ] {
        assert_eq!(refused(client.create_volume(different)).0, Code::AlreadyExists);
    }
    let itself =
        CreateVolumeRequest { volume_content_source: from_volume("self"), ..volume("self", MIB, mount()) };
    assert_eq!(refused(client.create_volume(itself)).0, Code::InvalidArgument);
    let nowhere = CreateVolumeRequest { parameters: parameters(&[("storagePool", "fast")]), ..request() };
    let (code, message) = refused(client.create_volume(nowhere));
    assert_eq!(code, Code::InvalidArgument);
    assert!(message.contains("fast") && message.contains("legacy"), "{message}");
}

#[test]
fn promises_end_where_the_room_ends() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, r#","reserve":"100Mi""#);
    let all = client.available();
    assert!(all > 700 * MIB && all <= 924 * MIB, "{all}: one GiB less the reserve and XFS's own");
    client.create(volume("a", 500 * MIB, mount()));
    assert_eq!(client.available(), all - 500 * MIB);
    let (code, message) = refused(client.create_volume(volume("b", 500 * MIB, mount())));
    assert_eq!(code, Code::ResourceExhausted);
    for word in ["legacy", "500.0 MiB", "free"] {
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(client.volumes(), ["a"], "nothing half-made is listed");
    client.create(volume("c", all - 500 * MIB, block()));
    assert_eq!(client.available(), 0);
    let (code, _) = refused(client.controller_expand_volume(ControllerExpandVolumeRequest {
        volume_id: "a".into(),
        capacity_range: Some(CapacityRange { required_bytes: 501 * MIB, limit_bytes: 0 }),
        ..Default::default()
    }));
    assert_eq!(code, Code::ResourceExhausted);
    client.delete("a");
    client.delete("c");
    assert_eq!(client.available(), all);
}

#[test]
fn promises_hold_after_a_restart_and_count_what_others_use() {
    let place = Place::new("ext4", GIB);
    let (driver, client) = one_pool(&place, "");
    let all = client.available();
    client.create(volume("a", 300 * MIB, mount()));
    fs::write(place.pool().join("a/content"), vec![1; 50 << 20]).unwrap();
    drop(client);
    assert_eq!(driver.stop(), Some(0));
    fs::create_dir(place.pool().join(".others")).unwrap();
    fs::write(place.pool().join(".others/file"), vec![1; 100 << 20]).unwrap();
    rustix::fs::syncfs(fs::File::open(place.pool()).unwrap()).unwrap();
    let (_driver, client) = one_pool(&place, "");
    let left = client.available();
    let expected = all - 300 * MIB - 100 * MIB;
    assert!((left - expected).abs() < 2 * MIB, "{left} and {expected}: content of a volume is not foreign");
}

#[test]
fn overcommit_and_upstreams_numbers_are_settings() {
    let place = Place::new("xfs", GIB);
    let (driver, client) = one_pool(&place, r#","overcommit":2.0"#);
    client.create(volume("a", 1500 * MIB, mount()));
    drop((client, driver));
    let (_driver, client) = one_pool(&place, r#","capacity":"filesystem""#);
    let made = client.create(volume("b", 100 * GIB, mount()));
    let numbers = rustix::fs::statvfs(place.pool()).unwrap();
    let size = i64::try_from(numbers.f_blocks * numbers.f_frsize).unwrap();
    assert_eq!(made.capacity_bytes, size / MIB * MIB, "the whole filesystem, as upstream says");
    let capacity = client.get_capacity(GetCapacityRequest::default()).unwrap();
    assert_eq!(capacity.maximum_volume_size, Some(size));
    assert_eq!(client.create(volume("c", GIB, block())).capacity_bytes, GIB, "a device is as large as asked");
}

#[test]
fn a_tree_of_upstream_is_adopted() {
    let place = Place::new("xfs", GIB);
    let csi = place.pool();
    for folder in [
        "pvc-old",
        "csi-inline",
        "lost+found",
        ".hidden",
        "snapshots/snap-old/data",
        "snapshots/snap-old/pvc-old",
    ] {
        fs::create_dir_all(csi.join(folder)).unwrap();
    }
    fs::write(csi.join("pvc-old/disk.img"), vec![7; 3 << 20]).unwrap();
    fs::write(csi.join("snapshots/snap-old/data/disk.img"), vec![5; 2 << 20]).unwrap();
    fs::write(csi.join("a-file"), "no volume").unwrap();
    let (_driver, client) = one_pool(&place, "");
    assert_eq!(client.volumes(), ["csi-inline", "pvc-old"]);
    let volumes = client.list_volumes(ListVolumesRequest::default()).unwrap().entries;
    let condition = volumes[1].status.clone().unwrap().volume_condition.unwrap();
    assert!(!condition.abnormal && condition.message.contains("adopted"), "{condition:?}");
    assert_eq!(volumes[1].volume.clone().unwrap().capacity_bytes, 3 * MIB, "it promises what it uses");
    let snapshots = client.list_snapshots(ListSnapshotsRequest::default()).unwrap().entries;
    let snapshot = snapshots[0].snapshot.clone().unwrap();
    assert_eq!((snapshot.snapshot_id.as_str(), snapshot.source_volume_id.as_str()), ("snap-old", "pvc-old"));
    assert!(snapshot.ready_to_use && snapshot.size_bytes >= 2 * MIB);

    client.create(CreateVolumeRequest {
        volume_content_source: support::from_snapshot("snap-old"),
        ..volume("restored", 10 * MIB, mount())
    });
    assert_eq!(fs::read(csi.join("restored/disk.img")).unwrap(), vec![5; 2 << 20]);
    let expanded = client
        .controller_expand_volume(ControllerExpandVolumeRequest {
            volume_id: "pvc-old".into(),
            capacity_range: Some(CapacityRange { required_bytes: 20 * MIB, limit_bytes: 0 }),
            ..Default::default()
        })
        .unwrap();
    assert_eq!(expanded.capacity_bytes, 20 * MIB, "an adopted volume gets a size");
    client.delete("pvc-old");
    assert!(!csi.join("pvc-old").exists());
}

#[test]
fn hostile_requests_are_refused_and_touch_nothing() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    let long = "x".repeat(129);
    for name in ["", "a/b", "../a", "/etc", ".hpp-csi", "snapshots", "a\0b", "-a", "ä", &long] {
        assert_eq!(
            refused(client.create_volume(volume(name, MIB, mount()))).0,
            Code::InvalidArgument,
            "{name:?}"
        );
    }
    for (bytes, code) in
        [(-1, Code::InvalidArgument), (i64::MIN, Code::InvalidArgument), (i64::MAX, Code::ResourceExhausted)]
    {
        assert_eq!(refused(client.create_volume(volume("a", bytes, mount()))).0, code);
    }
    assert_eq!(refused(client.create_volume(volume("a", i64::MAX, block()))).0, Code::OutOfRange);
    let crowded = CreateVolumeRequest {
        parameters: parameters(&[("k", &"v".repeat(5000))]),
        ..volume("a", MIB, mount())
    };
    assert_eq!(refused(client.create_volume(crowded)).0, Code::InvalidArgument);
    // A pod plants links in place of a volume and of a snapshot.
    std::os::unix::fs::symlink("/etc", place.pool().join("planted")).unwrap();
    fs::create_dir(place.pool().join("snapshots")).unwrap();
    std::os::unix::fs::symlink("/etc", place.pool().join("snapshots/planted")).unwrap();
    assert_eq!(client.volumes(), [] as [String; 0]);
    assert_eq!(client.snapshots(), [] as [String; 0]);
    client.delete("planted");
    client
        .delete_snapshot(DeleteSnapshotRequest { snapshot_id: "planted".into(), ..Default::default() })
        .unwrap();
    assert!(fs::symlink_metadata(place.pool().join("planted")).unwrap().is_symlink());
    assert_eq!(refused(client.create_volume(volume("planted", MIB, mount()))).0, Code::AlreadyExists);
    assert!(fs::metadata("/etc/passwd").is_ok());
}

#[test]
fn a_source_on_another_node_sends_the_claim_there() {
    let (here, there) = (Place::new("xfs", GIB), Place::new("xfs", GIB));
    let (_driver, client) = one_pool(&here, "");
    let other_driver = Driver::start(
        &there.beside("run"),
        "node2",
        &format!("[{}]", pool("legacy", &there.pool(), "")),
        &[],
    );
    let other = other_driver.client();
    let id = "pvc-0a1b2c3d-0000-4000-8000-0123456789ab";
    other.create(volume(id, MIB, mount()));
    let clone = |source: &str| CreateVolumeRequest {
        volume_content_source: from_volume(source),
        ..volume("clone", MIB, mount())
    };
    let (code, message) = refused(client.create_volume(clone(id)));
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("node1"), "{message}");
    assert_eq!(refused(client.create_volume(clone("nobody"))).0, Code::NotFound);
    other.create(clone(id));
    let elsewhere = CreateVolumeRequest {
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![Topology { segments: parameters(&[("topology.hostpath.csi/node", "node2")]) }],
            preferred: vec![],
        }),
        ..volume("v", MIB, mount())
    };
    assert_eq!(refused(client.create_volume(elsewhere.clone())).0, Code::ResourceExhausted);
    other.create(elsewhere);
    drop((other, other_driver));
    let alone = ["--single-node"];
    let driver = Driver::start(
        &there.beside("run"),
        "node2",
        &format!("[{}]", pool("legacy", &there.pool(), "")),
        &alone,
    );
    let missing = "pvc-ffffffff-0000-4000-8000-0123456789ab";
    let again = CreateVolumeRequest { name: "clone-2".into(), ..clone(missing) };
    assert_eq!(refused(driver.client().create_volume(again)).0, Code::NotFound);
}

#[test]
fn many_callers_get_what_they_ask_for() {
    let place = Place::new("xfs", 2 * GIB);
    let (_driver, client) = one_pool(&place, "");
    let make = |n: usize| {
        let mut controller = controller_client::ControllerClient::new(client.channel());
        async move { controller.create_volume(volume(&format!("v{n:03}"), MIB, mount())).await }
    };
    let results = client.runtime().block_on(async {
        let tasks: Vec<_> = (0..200).map(|n| tokio::spawn(make(n))).collect();
        let mut results = Vec::new();
        for task in tasks {
            results.push(task.await.unwrap());
        }
        results
    });
    for result in results {
        result.unwrap();
    }
    assert_eq!(client.volumes().len(), 200);
    let mut paged = Vec::new();
    let mut token = String::new();
    loop {
        let page = client.list_volumes(ListVolumesRequest { max_entries: 7, starting_token: token }).unwrap();
        paged.extend(page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id));
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(paged, client.volumes());
}
