//! Requests that mean harm, and pods that do: nothing outside of a pool is touched or shown, and the driver goes on.

use std::fs;
use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use csi::identity_client::IdentityClient;
use csi::registration::InfoRequest;
use csi::registration::registration_client::RegistrationClient;
use csi::volume_capability::{AccessType, MountVolume, access_mode::Mode};
use csi::*;
use tonic::Code;

use crate::support::place::{Place, mounts, run};
use crate::support::{
    Client, Driver, GIB, MIB, block, capability, eventually, from_snapshot, from_volume, mount, names,
    one_pool, one_pool_of, parameters, publish, refused, stage, volume,
};

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
}

#[test]
fn every_field_of_every_call_is_checked() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    client.create(volume("v", MIB, mount()));
    client.snapshot("s", "v");
    let long = "x".repeat(129);
    let outside =
        ["", "a/b", "../v", "/", ".", "..", ".hpp-csi", "snapshots", "data", "v\0", "v\n", "-v", "é", &long];
    let invalid = |what: &str, code: Code| assert_eq!(code, Code::InvalidArgument, "{what:?}");
    let path = place.beside("pods").join("v");
    let text = path.to_str().unwrap().to_owned();
    for id in outside {
        let id = id.to_owned();
        let source =
            |source| CreateVolumeRequest { volume_content_source: source, ..volume("new", MIB, mount()) };
        invalid(&id, refused(client.create_volume(source(from_volume(&id)))).0);
        invalid(&id, refused(client.create_volume(source(from_snapshot(&id)))).0);
        let snapshot = |name: &str, of: &str| CreateSnapshotRequest {
            name: name.into(),
            source_volume_id: of.into(),
            ..Default::default()
        };
        invalid(&id, refused(client.create_snapshot(snapshot(&id, "v"))).0);
        invalid(&id, refused(client.create_snapshot(snapshot("new", &id))).0);
        let range = Some(CapacityRange { required_bytes: MIB, limit_bytes: 0 });
        let expand = ControllerExpandVolumeRequest {
            volume_id: id.clone(),
            capacity_range: range,
            ..Default::default()
        };
        invalid(&id, refused(client.controller_expand_volume(expand)).0);
        invalid(&id, refused(client.node_stage_volume(stage(&id, &path, mount()))).0);
        invalid(&id, refused(client.node_publish_volume(publish(&id, &path, &path, mount()))).0);
        let unpublish = NodeUnpublishVolumeRequest { volume_id: id.clone(), target_path: text.clone() };
        invalid(&id, refused(client.node_unpublish_volume(unpublish)).0);
        let unstage = NodeUnstageVolumeRequest { volume_id: id.clone(), staging_target_path: text.clone() };
        invalid(&id, refused(client.node_unstage_volume(unstage)).0);
        let stats = NodeGetVolumeStatsRequest {
            volume_id: id.clone(),
            volume_path: text.clone(),
            ..Default::default()
        };
        invalid(&id, refused(client.node_get_volume_stats(stats)).0);
        let expand = NodeExpandVolumeRequest {
            volume_id: id.clone(),
            volume_path: text.clone(),
            ..Default::default()
        };
        invalid(&id, refused(client.node_expand_volume(expand)).0);
        invalid(
            &id,
            refused(client.controller_get_volume(ControllerGetVolumeRequest { volume_id: id.clone() })).0,
        );
    }
    for map in [parameters(&[("k", &"v".repeat(4096))]), parameters(&[(&"k".repeat(4097), "")])] {
        let class = CreateVolumeRequest { parameters: map.clone(), ..volume("new", MIB, mount()) };
        invalid("parameters", refused(client.create_volume(class)).0);
        let context =
            NodePublishVolumeRequest { volume_context: map.clone(), ..publish("v", &path, &path, mount()) };
        invalid("volume_context", refused(client.node_publish_volume(context)).0);
        let validate = ValidateVolumeCapabilitiesRequest {
            volume_id: "v".into(),
            volume_context: map.clone(),
            volume_capabilities: vec![mount()],
            ..Default::default()
        };
        invalid("volume_context", refused(client.validate_volume_capabilities(validate)).0);
        let class = GetCapacityRequest { parameters: map, ..Default::default() };
        invalid("parameters", refused(client.get_capacity(class)).0);
    }
    let full = parameters(&[("k", &"v".repeat(4095))]);
    client.create(CreateVolumeRequest { parameters: full, ..volume("full", MIB, mount()) });
    let mounted = |fs_type: &str, flags: &[&str], group: &str| {
        let mount = MountVolume {
            fs_type: fs_type.into(),
            mount_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            volume_mount_group: group.into(),
        };
        capability(Mode::SingleNodeWriter, AccessType::Mount(mount))
    };
    let many = "ro,".repeat(2000);
    for wrong in [
        mounted(&long, &[], ""),
        mounted("", &[&many], ""),
        mounted("", &["context=system_u"], ""),
        mounted("", &["lowerdir=/etc"], ""),
        mounted("", &[], "root"),
        VolumeCapability::default(),
    ] {
        invalid("capability", refused(client.create_volume(volume("new", MIB, wrong.clone()))).0);
        invalid("capability", refused(client.node_publish_volume(publish("v", &path, &path, wrong))).0);
    }
    for token in ["0", "v", "after:", "after:../v", "after:/etc", "\u{0}", &"x".repeat(100_000)] {
        let list = ListVolumesRequest { starting_token: token.into(), max_entries: 1 };
        assert_eq!(refused(client.list_volumes(list)).0, Code::Aborted, "{token:.20}");
        let list = ListSnapshotsRequest { starting_token: token.into(), ..Default::default() };
        assert_eq!(refused(client.list_snapshots(list)).0, Code::Aborted, "{token:.20}");
    }
    invalid(
        "max_entries",
        refused(client.list_volumes(ListVolumesRequest { max_entries: -1, ..Default::default() })).0,
    );
    for bad in ["relative", "/", "/a/..", "/a/../b", "a\0b", &format!("/{}", "x".repeat(5000))] {
        let target = Path::new(bad);
        invalid(bad, refused(client.node_publish_volume(publish("v", target, target, mount()))).0);
        invalid(bad, refused(client.node_stage_volume(stage("v", target, mount()))).0);
    }
    // More than a message may have; the driver goes on.
    assert!(client.create_volume(volume(&"x".repeat(2 << 20), MIB, mount())).is_err());
    assert_eq!(client.volumes(), ["full", "v"]);
    assert_eq!(names(&place.pool()), [".hpp-csi", "full", "snapshots", "v"]);
    assert!(!path.exists());
}

/// A pod swaps a folder of its volume for a link to the node's files and back, as fast as it can, while its volume is
/// cloned, measured, handed to a group and deleted.
#[test]
fn a_pod_that_swaps_links_in_shows_and_changes_nothing() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    let secret = place.beside("secret");
    fs::write(secret.join("file"), "of the node").unwrap();
    let before = fs::metadata(&secret).unwrap();
    client.create(volume("v", MIB, mount()));
    let v = place.pool().join("v");
    fs::create_dir(v.join("real")).unwrap();
    fs::write(v.join("real/file"), "of the pod").unwrap();
    symlink(&secret, v.join("planted")).unwrap();
    run("mkfifo", &[v.join("pipe").to_str().unwrap()]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            let open = fs::File::open(&v).unwrap();
            while !stop.load(Ordering::Relaxed) {
                rustix::fs::renameat_with(&open, "real", &open, "planted", exchange).unwrap();
            }
        });
        let grouped = MountVolume { volume_mount_group: "4321".into(), ..Default::default() };
        let grouped = capability(Mode::SingleNodeWriter, AccessType::Mount(grouped));
        for n in 0..30 {
            let id = format!("clone-{n}");
            let made = client.create_volume(CreateVolumeRequest {
                volume_content_source: from_volume("v"),
                ..volume(&id, MIB, mount())
            });
            if made.is_ok() {
                for name in ["real", "planted"] {
                    let path = place.pool().join(&id).join(name);
                    if let Ok(found) = fs::symlink_metadata(&path)
                        && found.is_dir()
                        && path.join("file").exists()
                    {
                        assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "of the pod");
                    }
                }
                client.delete(&id);
            } else {
                assert!(!place.pool().join(&id).exists(), "nothing half made");
            }
            let target = place.beside("pods").join("v");
            if client.node_publish_volume(publish("v", &target, &target, grouped.clone())).is_ok() {
                client.unpublish("v", &target);
            }
            // So that the next one hands over again.
            std::os::unix::fs::chown(&v, None, Some(0)).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let after = fs::metadata(&secret).unwrap();
    let numbers = |metadata: &fs::Metadata| {
        use std::os::unix::fs::MetadataExt;
        (metadata.gid(), metadata.mode(), metadata.ctime(), metadata.ctime_nsec())
    };
    assert_eq!(numbers(&before), numbers(&after));
    client.delete("v");
    place.is_clean();
    assert_eq!(fs::read_to_string(secret.join("file")).unwrap(), "of the node");
    assert_eq!(mounts(&place.beside("pods")), [] as [std::path::PathBuf; 0]);
}

/// What a client sends before it stops in the middle of its first frame.
const UNFINISHED: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x10\x00\x04\x00\x00";
/// Most memory of its own that the driver may have, in KiB.
const MEMORY_MAX: u64 = 64 << 10;

/// The driver's memory of its own, in KiB.
fn own_memory(driver: &Driver) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", driver.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// The median and the longest of eleven calls, each on a connection of its own.
fn timed(call: impl Fn()) -> (Duration, Duration) {
    let mut took = [(); 11].map(|()| {
        let begun = Instant::now();
        call();
        begun.elapsed()
    });
    took.sort();
    (took[5], took[10])
}

/// The full count of `make soak` is 1 000 idle connections and 256 that stop within a frame, at each socket.
#[test]
fn idle_connections_and_unfinished_frames_delay_no_call() {
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let (idle, unfinished) = if soak { (1000, 256) } else { (200, 48) };
    let place = Place::new("xfs", GIB);
    let registration = place.beside("registry").join("reg.sock");
    let arguments = [
        &format!("--registration-socket={}", registration.display()),
        "--kubelet-registration-path=/var/lib/kubelet/plugins/csi-hostpath/csi.sock",
    ];
    let driver = one_pool_of("node1", &place, "", &arguments);
    eventually("the registration socket", || registration.exists());
    let gather = |socket: &Path| {
        let mut crowd: Vec<UnixStream> =
            (0..idle + unfinished).map(|_| UnixStream::connect(socket).unwrap()).collect();
        for stream in crowd.iter_mut().skip(idle) {
            // An evicted connection takes nothing.
            let _ = stream.write_all(UNFINISHED);
        }
        crowd
    };
    let csi = driver.socket();
    let called = {
        let _crowd = gather(&csi);
        timed(|| {
            let client = Client::new(&csi);
            let mut identity = IdentityClient::new(client.channel());
            client.runtime().block_on(identity.probe(ProbeRequest {})).unwrap();
        })
    };
    let registered = {
        let _crowd = gather(&registration);
        timed(|| {
            let client = Client::new(&registration);
            let mut kubelet = RegistrationClient::new(client.channel());
            client.runtime().block_on(kubelet.get_info(InfoRequest {})).unwrap();
        })
    };
    let memory = own_memory(&driver);
    println!(
        "{idle} idle connections, {unfinished} unfinished frames: CSI {called:.1?}, registration {registered:.1?} (median, \
         longest), {memory} KiB"
    );
    // The machine may have other work: the median is the promise's.
    let bar = Duration::from_millis(if soak { 100 } else { 1000 });
    for (median, longest) in [called, registered] {
        assert!(
            median < bar && longest < Duration::from_secs(4),
            "CSI {called:?}, registration {registered:?}"
        );
    }
    assert!(memory <= MEMORY_MAX, "{memory} KiB");
}
