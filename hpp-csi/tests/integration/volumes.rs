//! Making, deleting and listing volumes through the built driver: the layout on disk, promises, and what another driver's
//! tree looks like to ours.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use csi::volume_capability::{AccessType, MountVolume, access_mode::Mode};
use csi::*;
use tonic::Code;

use crate::support::place::Place;
use crate::support::{
    Client, Driver, GIB, MIB, block, capability, count, eventually, from_snapshot, from_volume, mount, names,
    one_pool, one_pool_of, parameters, pool, publish, refused, volume,
};

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
    let left = client.available();
    assert!((left - (all - 500 * MIB)).abs() < MIB, "{left} of {all}: the folder itself takes little");
    let (code, message) = refused(client.create_volume(volume("b", 500 * MIB, mount())));
    assert_eq!(code, Code::ResourceExhausted);
    for word in ["legacy", "500.0 MiB", "free"] {
        assert!(message.contains(word), "{message}");
    }
    assert_eq!(client.volumes(), ["a"], "nothing half-made is listed");
    client.create(volume("c", left - left % 4096, block()));
    assert!(client.available() < MIB);
    let (code, _) = refused(client.controller_expand_volume(ControllerExpandVolumeRequest {
        volume_id: "a".into(),
        capacity_range: Some(CapacityRange { required_bytes: 501 * MIB, limit_bytes: 0 }),
        ..Default::default()
    }));
    assert_eq!(code, Code::OutOfRange, "the claim can be reduced again");
    client.delete("a");
    client.delete("c");
    eventually("all is to be had again", || (client.available() - all).abs() < MIB);
}

#[test]
fn the_room_of_a_deleted_volume_is_available_at_once() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    let all = client.available();
    client.create(volume("a", 500 * MIB, mount()));
    fs::write(place.pool().join("a/file"), vec![1; 400 << 20]).unwrap();
    rustix::fs::syncfs(fs::File::open(place.pool()).unwrap()).unwrap();
    client.delete("a");
    eventually("the room is there", || client.available() > all - 10 * MIB);
    client.create(volume("b", all - 20 * MIB, mount()));
}

/// Both are recorded by the same name, in folders of their own.
#[test]
fn a_volume_and_a_snapshot_of_one_name_are_made_at_once() {
    let place = Place::new("xfs", GIB);
    let (driver, client) = one_pool(&place, "");
    client.create(volume("base", MIB, mount()));
    let other = driver.client();
    for round in 0..count(30, 300) {
        let same = format!("same-{round}");
        std::thread::scope(|scope| {
            scope.spawn(|| other.snapshot(&same, "base"));
            client.create(volume(&same, 2 * MIB, mount()));
        });
    }
    drop((client, other));
    driver.kill();
    let (_driver, client) = one_pool(&place, "");
    let (volumes, snapshots) = (client.volumes(), client.snapshots());
    assert_eq!(volumes.len(), 1 + count(30, 300));
    assert_eq!(snapshots.len(), count(30, 300));
    for id in &snapshots {
        let request = ControllerGetVolumeRequest { volume_id: id.clone() };
        let found = client.controller_get_volume(request).unwrap();
        assert_eq!(found.volume.unwrap().capacity_bytes, 2 * MIB);
        assert!(!found.status.unwrap().volume_condition.unwrap().message.contains("adopted"), "{id}");
    }
    let all = client.list_snapshots(ListSnapshotsRequest::default()).unwrap().entries;
    assert!(all.into_iter().all(|entry| {
        let snapshot = entry.snapshot.unwrap();
        (snapshot.source_volume_id.as_str(), snapshot.size_bytes) == ("base", MIB)
    }));
}

/// Concurrent requests never reserve more than the pool has.
#[test]
fn callers_together_are_promised_no_more_than_there_is() {
    let place = Place::new("xfs", 2 * GIB);
    let (_driver, client) = one_pool(&place, "");
    let all = client.available();
    let mut state = 3_u64;
    let mut size = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        i64::try_from(1 + (state >> 33) % 60).unwrap() * MIB
    };
    for round in 0..4 {
        let wanted: Vec<(String, i64)> = (0..100).map(|n| (format!("v{round}-{n}"), size())).collect();
        let call = |(id, bytes): (String, i64)| {
            let mut controller = controller_client::ControllerClient::new(client.channel());
            async move {
                let kind = if bytes % (2 * MIB) == 0 { block() } else { mount() };
                controller.create_volume(volume(&id, bytes, kind)).await
            }
        };
        let results = client.runtime().block_on(async {
            let tasks: Vec<_> = wanted.clone().into_iter().map(|one| tokio::spawn(call(one))).collect();
            let mut results = Vec::new();
            for task in tasks {
                results.push(task.await.unwrap());
            }
            results
        });
        let mut promised = 0;
        for ((id, bytes), result) in wanted.into_iter().zip(results) {
            match result {
                Ok(_) if bytes % (3 * MIB) == 0 => client.delete(&id),
                Ok(_) => promised += bytes,
                Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}"),
            }
        }
        let list = client.list_volumes(ListVolumesRequest::default()).unwrap();
        let sum: i64 = list.entries.iter().map(|entry| entry.volume.as_ref().unwrap().capacity_bytes).sum();
        assert!(promised > 0 || round > 0, "some had room");
        assert!(sum <= all, "{sum} bytes are promised of {all}");
        assert!((client.available() - (all - sum)).abs() < 8 * MIB, "what is told is what is left");
    }
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
        volume_content_source: from_snapshot("snap-old"),
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

/// A driver with two pools, "legacy" and "fast".
fn two_pools(node: &str, place: &Place, more: &str, arguments: &[&str]) -> (Driver, Client) {
    let folder = |name: &str| {
        fs::create_dir_all(place.pool().join(name)).unwrap();
        pool(name, &place.pool().join(name), more)
    };
    let pools = format!("[{},{}]", folder("legacy"), folder("fast"));
    let driver = Driver::start(&place.beside("run"), node, &pools, arguments);
    let client = driver.client();
    (driver, client)
}

#[test]
fn a_source_on_another_node_sends_the_claim_there() {
    let (here, there) = (Place::new("xfs", GIB), Place::new("xfs", GIB));
    let (here_driver, client) = two_pools("node1", &here, "", &[]);
    let (there_driver, other) = two_pools("node2", &there, "", &[]);
    let fast = || parameters(&[("storagePool", "fast")]);
    let id = "pvc-0a1b2c3d-0000-4000-8000-0123456789ab";
    let taken = "snapshot-0a1b2c3d-0000-4000-8000-0123456789ab";
    other.create(CreateVolumeRequest { parameters: fast(), ..volume(id, MIB, mount()) });
    other.snapshot(taken, id);
    let made_of = |name: &str, source| CreateVolumeRequest {
        parameters: fast(),
        volume_content_source: source,
        ..volume(name, MIB, mount())
    };
    let snapshot_of = |source: &str| CreateSnapshotRequest {
        name: "s".into(),
        source_volume_id: source.into(),
        ..Default::default()
    };
    for source in [from_volume(id), from_snapshot(taken)] {
        let (code, message) = refused(client.create_volume(made_of("clone", source)));
        assert_eq!(code, Code::ResourceExhausted);
        assert!(message.contains("node1"), "{message}");
    }
    let (code, message) = refused(client.create_snapshot(snapshot_of(id)));
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("node1"), "{message}");
    for source in [from_volume("nobody"), from_snapshot("nobody")] {
        assert_eq!(refused(client.create_volume(made_of("clone", source))).0, Code::NotFound);
    }
    assert_eq!(refused(client.create_snapshot(snapshot_of("nobody"))).0, Code::NotFound);
    other.create(made_of("clone", from_volume(id)));
    other.create(made_of("restored", from_snapshot(taken)));
    assert_eq!(names(&there.pool().join("fast")), [".hpp-csi", "clone", id, "restored", "snapshots"]);
    assert_eq!(names(&there.pool().join("legacy")), [".hpp-csi"]);
    // A clone from one pool to the other would be a copy, which the request does not allow.
    let across = CreateVolumeRequest { parameters: parameters(&[]), ..made_of("across", from_volume(id)) };
    let (code, message) = refused(other.create_volume(across));
    assert_eq!(code, Code::Unimplemented);
    assert!(message.contains("another pool"), "{message}");
    let elsewhere = CreateVolumeRequest {
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![Topology { segments: parameters(&[("topology.hostpath.csi/node", "node2")]) }],
            preferred: vec![],
        }),
        ..volume("v", MIB, mount())
    };
    assert_eq!(refused(client.create_volume(elsewhere.clone())).0, Code::ResourceExhausted);
    other.create(elsewhere);
    assert_eq!(client.volumes(), [] as [String; 0]);
    drop((client, here_driver, other, there_driver));

    // Where no other node can have it, it does not exist.
    let missing = "pvc-ffffffff-0000-4000-8000-0123456789ab";
    for (more, arguments) in [("", &["--single-node"][..]), (r#","shared":true"#, &[])] {
        let (_driver, client) = two_pools("node1", &here, more, arguments);
        assert_eq!(refused(client.create_volume(made_of("clone", from_volume(missing)))).0, Code::NotFound);
        assert_eq!(refused(client.create_snapshot(snapshot_of(missing))).0, Code::NotFound);
    }
}

#[test]
fn a_volume_of_another_node_grows_there() {
    let (here, there) = (Place::new("xfs", GIB), Place::new("xfs", GIB));
    let (_here, leader) = two_pools("node1", &here, "", &[]);
    let (_there, node) = two_pools("node2", &there, "", &[]);
    let id = "pvc-0a1b2c3d-0000-4000-8000-0123456789ab";
    node.create(volume(id, 100 * MIB, mount()));
    let target = there.beside("pods").join("v");
    node.node_publish_volume(publish(id, Path::new(""), &target, mount())).unwrap();
    let range = |bytes| Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 });
    let asked = |id: &str, bytes| ControllerExpandVolumeRequest {
        volume_id: id.into(),
        capacity_range: range(bytes),
        ..Default::default()
    };
    // csi-resizer calls the driver next to its leader, the kubelet the one of the node that has the volume.
    let left = leader.controller_expand_volume(asked(id, 200 * MIB)).unwrap();
    assert_eq!((left.capacity_bytes, left.node_expansion_required), (200 * MIB, true));
    let grown = |bytes| {
        node.node_expand_volume(NodeExpandVolumeRequest {
            volume_id: id.into(),
            volume_path: target.to_str().unwrap().into(),
            capacity_range: range(bytes),
            ..Default::default()
        })
    };
    let before = node.available();
    for _ in 0..2 {
        assert_eq!(grown(200 * MIB).unwrap().capacity_bytes, 200 * MIB);
    }
    assert!((node.available() - (before - 100 * MIB)).abs() < MIB, "it is promised once");
    assert_eq!(refused(grown(100 * GIB)).0, Code::OutOfRange, "the claim can be reduced again");
    assert_eq!(refused(leader.controller_expand_volume(asked(id, 0))).0, Code::InvalidArgument);
    assert_eq!(refused(leader.controller_expand_volume(asked("nobody", MIB))).0, Code::NotFound);
    node.unpublish(id, &target);
}

#[test]
fn a_record_that_cannot_be_read_is_not_guessed_at() {
    let place = Place::new("xfs", 2 * GIB);
    let (driver, client) = one_pool(&place, r#","enforce":"loop""#);
    for id in ["good", "newer"] {
        client.create(volume(id, 16 * MIB, mount()));
    }
    client.snapshot("snap", "newer");
    drop(client);
    driver.kill();
    let own = place.pool().join(".hpp-csi");
    let record = own.join("volumes/newer.json");
    let kept = fs::read_to_string(&record).unwrap();
    fs::write(&record, kept.replace(r#""version":1"#, r#""version":2"#)).unwrap();
    fs::write(own.join("snapshots/snap.json"), "{").unwrap();
    let (_driver, client) = one_pool(&place, r#","enforce":"loop""#);
    // A filesystem in a file, taken for a folder, would be a pod's to spoil.
    let target = place.beside("pods").join("v");
    let tells = |(code, message): (Code, String)| {
        assert_eq!(code, Code::Internal);
        assert!(message.contains("newer.json") && message.contains("version 2"), "{message}");
    };
    tells(refused(client.node_publish_volume(publish("newer", Path::new(""), &target, mount()))));
    tells(refused(client.create_volume(volume("newer", 16 * MIB, mount()))));
    tells(refused(
        client.delete_volume(DeleteVolumeRequest { volume_id: "newer".into(), ..Default::default() }),
    ));
    assert_eq!(client.volumes(), ["good", "newer"]);
    let list = client.list_volumes(ListVolumesRequest::default()).unwrap();
    let condition = list.entries[1].status.clone().unwrap().volume_condition.unwrap();
    assert!(condition.abnormal && condition.message.contains("version 2"), "{condition:?}");
    assert_eq!(client.snapshots(), [] as [String; 0]);
    let restored =
        CreateVolumeRequest { volume_content_source: from_snapshot("snap"), ..volume("r", GIB, mount()) };
    let (code, message) = refused(client.create_volume(restored));
    assert_eq!(code, Code::Internal);
    assert!(message.contains("snap.json"), "{message}");
    fs::write(record, kept).unwrap();
    client.delete("newer");
    client.delete("good");
}

#[test]
fn a_caller_that_goes_away_changes_nothing() {
    let place = Place::new("ext4", GIB);
    let (_driver, client) = one_pool(&place, r#","copy":true"#);
    client.create(volume("golden", 100 * MIB, mount()));
    fs::write(place.pool().join("golden/file"), vec![7; 40 << 20]).unwrap();
    let request = || CreateVolumeRequest {
        parameters: parameters(&[("copy", "true")]),
        volume_content_source: from_volume("golden"),
        ..volume("copy", 100 * MIB, mount())
    };
    client.runtime().block_on(async {
        let mut controller = controller_client::ControllerClient::new(client.channel());
        let call = controller.create_volume(request());
        let patience = std::time::Duration::from_millis(30);
        assert!(tokio::time::timeout(patience, call).await.is_err(), "a copy takes longer");
    });
    eventually("the call goes on without its caller", || match client.create_volume(request()) {
        Ok(_) => true,
        Err(status) => {
            assert_eq!(status.code(), Code::Aborted, "{status:?}");
            false
        }
    });
    assert_eq!(fs::read(place.pool().join("copy/file")).unwrap(), vec![7; 40 << 20]);
    assert_eq!(client.volumes(), ["copy", "golden"]);
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

#[test]
fn writers_on_several_nodes_need_a_pool_that_allows_them() {
    let place = Place::new("xfs", GIB);
    let many = || capability(Mode::MultiNodeMultiWriter, AccessType::Mount(MountVolume::default()));
    let driver = one_pool_of("node1", &place, "", &[]);
    let client = driver.client();
    let (code, text) = refused(client.create_volume(volume("many", MIB, many())));
    assert_eq!(code, Code::InvalidArgument);
    assert!(text.contains("ReadWriteOnce") && text.contains("readWriteMany"), "{text}");
    assert_eq!(client.volumes(), [] as [String; 0]);
    client.create(volume("one", MIB, mount()));
    let validate = |client: &Client| {
        let request = ValidateVolumeCapabilitiesRequest {
            volume_id: "one".into(),
            volume_capabilities: vec![many()],
            ..Default::default()
        };
        client.validate_volume_capabilities(request).unwrap().confirmed.is_some()
    };
    assert!(!validate(&client));
    drop((client, driver));
    for allowed in [r#","readWriteMany":true"#, r#","shared":true"#] {
        let driver = one_pool_of("node1", &place, allowed, &[]);
        let client = driver.client();
        client.create(volume("many", MIB, many()));
        assert!(validate(&client), "{allowed}");
        client.delete("many");
    }
    // A shared pool can refuse them, too.
    let driver = one_pool_of("node1", &place, r#","shared":true,"readWriteMany":false"#, &[]);
    assert_eq!(refused(driver.client().create_volume(volume("many", MIB, many()))).0, Code::InvalidArgument);
}
