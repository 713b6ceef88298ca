//! Staging, publishing, statistics and growing through the built driver, and a restart of it in between.

use std::fs;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use csi::volume_capability::{AccessType, MountVolume, access_mode::Mode};
use csi::*;
use tonic::Code;

use crate::support::place::{Place, loops, mounts, run};
use crate::support::{
    self, Client, GIB, MIB, block, capability, mount, names, one_pool, parameters, pool, publish, refused,
    stage, volume,
};

fn target(place: &Place, name: &str) -> PathBuf {
    place.beside("pods").join(name)
}

fn staging(place: &Place, name: &str) -> PathBuf {
    place.beside(&format!("staging-{name}")).join("globalmount")
}

fn mounted_as(flags: &[&str], group: &str) -> VolumeCapability {
    let mount = MountVolume {
        fs_type: "xfs".into(),
        mount_flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        volume_mount_group: group.into(),
    };
    capability(Mode::SingleNodeWriter, AccessType::Mount(mount))
}

fn expand(client: &Client, id: &str, bytes: i64) -> ControllerExpandVolumeResponse {
    client
        .controller_expand_volume(ControllerExpandVolumeRequest {
            volume_id: id.into(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        })
        .unwrap()
}

fn expand_on_node(client: &Client, id: &str, path: &Path) {
    client
        .node_expand_volume(NodeExpandVolumeRequest {
            volume_id: id.into(),
            volume_path: path.to_str().unwrap().into(),
            ..Default::default()
        })
        .unwrap();
}

fn stats(client: &Client, id: &str, path: &Path) -> NodeGetVolumeStatsResponse {
    let request = NodeGetVolumeStatsRequest {
        volume_id: id.into(),
        volume_path: path.to_str().unwrap().into(),
        ..Default::default()
    };
    client.node_get_volume_stats(request).unwrap()
}

#[test]
fn a_folder_is_published_as_asked() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    client.create(volume("v", 100 * MIB, mount()));
    let (rw, ro) = (target(&place, "rw"), target(&place, "ro"));
    let stage_at = staging(&place, "v");
    client
        .node_publish_volume(publish("v", &stage_at, &rw, mounted_as(&["nosuid", "noexec"], "1234")))
        .unwrap();
    fs::write(rw.join("file"), "content").unwrap();
    assert_eq!(fs::read_to_string(place.pool().join("v/file")).unwrap(), "content");
    let root = fs::metadata(&rw).unwrap();
    assert_eq!(
        (root.gid(), root.mode() & 0o2070),
        (1234, 0o2070),
        "the group may write, without a recursive chown"
    );
    let options = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = options.lines().find(|line| line.contains(rw.to_str().unwrap())).unwrap();
    assert!(line.contains("nosuid") && line.contains("noexec"), "{line}");
    client
        .node_publish_volume(NodePublishVolumeRequest {
            readonly: true,
            ..publish("v", &stage_at, &ro, mount())
        })
        .unwrap();
    assert_eq!(fs::write(ro.join("x"), "").unwrap_err().raw_os_error(), Some(30), "EROFS");
    client.node_publish_volume(publish("v", &stage_at, &rw, mount())).unwrap();
    assert_eq!(mounts(&rw).len(), 1, "publishing twice mounts once");
    let other = NodePublishVolumeRequest { readonly: true, ..publish("v", &stage_at, &rw, mount()) };
    assert_eq!(refused(client.node_publish_volume(other)).0, Code::AlreadyExists);
    assert_eq!(
        refused(client.node_publish_volume(publish("v", &stage_at, &rw, block()))).0,
        Code::InvalidArgument
    );
    client.create(volume("w", MIB, mount()));
    assert_eq!(
        refused(client.node_publish_volume(publish("w", &stage_at, &rw, mount()))).0,
        Code::FailedPrecondition
    );

    let usage = stats(&client, "v", &rw);
    assert_eq!(usage.usage[0].total, 100 * MIB, "what was promised, not the pool's size");
    assert!(usage.usage[1].total > 0);
    let condition = usage.volume_condition.unwrap();
    assert!(!condition.abnormal && condition.message.contains("not enforced"), "{condition:?}");

    let request = DeleteVolumeRequest { volume_id: "v".into(), ..Default::default() };
    assert_eq!(refused(client.delete_volume(request.clone())).0, Code::FailedPrecondition, "it is published");
    for path in [&rw, &ro, &rw] {
        client.unpublish("v", path);
        assert!(!path.exists());
    }
    client.delete_volume(request).unwrap();
}

/// CSI leaves the name of the staging path to the orchestrator; the kubelet's ends in `globalmount`.
#[test]
fn a_volume_staged_at_any_path_is_unstaged_after_a_restart() {
    let place = Place::new("xfs", GIB);
    let (driver, client) = one_pool(&place, r#","enforce":"loop""#);
    client.create(volume("v", 300 * MIB, mount()));
    let (staging, target) = (place.beside("stage").join("here"), place.beside("pods").join("v"));
    client.node_stage_volume(stage("v", &staging, mount())).unwrap();
    driver.kill();
    let (_driver, client) = one_pool(&place, r#","enforce":"loop""#);
    client.node_publish_volume(publish("v", &staging, &target, mount())).unwrap();
    let (code, message) =
        refused(client.delete_volume(DeleteVolumeRequest { volume_id: "v".into(), ..Default::default() }));
    assert_eq!(code, Code::FailedPrecondition, "{message}");
    client.unpublish("v", &target);
    client.unstage("v", &staging);
    client.delete("v");
    assert_eq!(loops(&place.pool()), [] as [String; 0]);
}

#[test]
fn a_restart_forgets_nothing() {
    let place = Place::new("xfs", 2 * GIB);
    let (driver, client) = one_pool(&place, "");
    let alone = || capability(Mode::SingleNodeSingleWriter, AccessType::Mount(MountVolume::default()));
    client.create(volume("one", MIB, alone()));
    client.create(volume("disk", 16 * MIB, block()));
    let (a, b, device) = (target(&place, "a b"), target(&place, "b"), target(&place, "device"));
    let at = staging(&place, "disk");
    client.node_publish_volume(publish("one", &at, &a, alone())).unwrap();
    client.node_stage_volume(stage("disk", &at, block())).unwrap();
    client.node_publish_volume(publish("disk", &at, &device, block())).unwrap();
    assert_eq!(
        refused(client.node_publish_volume(publish("one", &at, &b, alone()))).0,
        Code::FailedPrecondition
    );
    drop(client);
    driver.kill();
    let open = fs::OpenOptions::new().write(true).open(&device).unwrap();
    open.write_all_at(&[1; 4096], 0).unwrap();

    let (_driver, client) = one_pool(&place, "");
    assert_eq!(
        refused(client.node_publish_volume(publish("one", &at, &b, alone()))).0,
        Code::FailedPrecondition
    );
    client.node_publish_volume(publish("one", &at, &a, alone())).unwrap();
    assert_eq!(mounts(&place.beside("pods")).len(), 2);
    client.node_stage_volume(stage("disk", &at, block())).unwrap();
    client.node_publish_volume(publish("disk", &at, &device, block())).unwrap();
    assert_eq!(loops(&place.pool()).len(), 1, "the device was found again");
    drop(open);
    for id in ["one", "disk"] {
        let request = DeleteVolumeRequest { volume_id: id.into(), ..Default::default() };
        assert_eq!(refused(client.delete_volume(request)).0, Code::FailedPrecondition);
    }
    client.unpublish("one", &a);
    client.node_publish_volume(publish("one", &at, &b, alone())).unwrap();
    client.unpublish("one", &b);
    client.unpublish("disk", &device);
    client.unstage("disk", &at);
    assert_eq!(loops(&place.pool()), [] as [String; 0]);
    client.delete("one");
    client.delete("disk");
}

#[test]
fn a_block_volume_is_a_device_that_grows_in_use() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    client.create(CreateVolumeRequest {
        parameters: parameters(&[("blockSize", "4096")]),
        ..volume("disk", 16 * MIB, block())
    });
    let (at, device, reader) = (staging(&place, "disk"), target(&place, "device"), target(&place, "reader"));
    assert_eq!(
        refused(client.node_publish_volume(publish("disk", &at, &device, block()))).0,
        Code::FailedPrecondition,
        "not staged"
    );
    for _ in 0..2 {
        client.node_stage_volume(stage("disk", &at, block())).unwrap();
        client.node_publish_volume(publish("disk", &at, &device, block())).unwrap();
    }
    assert!(fs::metadata(&device).unwrap().file_type().is_block_device());
    let attached = loops(&place.pool());
    assert_eq!(attached.len(), 1);
    let sys = |file: &str| {
        fs::read_to_string(format!("/sys/block/{}/{file}", attached[0])).unwrap().trim().to_owned()
    };
    assert_eq!(
        (sys("loop/dio"), sys("loop/autoclear"), sys("queue/logical_block_size")),
        ("1".into(), "0".into(), "4096".into())
    );
    let file =
        fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_SYNC).open(&device).unwrap();
    file.write_all_at(&[7; 8192], 4096).unwrap();
    let mut bytes = [0; 8192];
    let backing = fs::File::open(place.pool().join(".hpp-csi/block/disk")).unwrap();
    backing.read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!(bytes, [7; 8192]);

    assert!(expand(&client, "disk", 32 * MIB).node_expansion_required);
    expand_on_node(&client, "disk", &device);
    assert_eq!(sys("size"), (32 * MIB / 512).to_string());
    file.write_all_at(&[8; 4096], (32 * MIB - 4096) as u64).unwrap();
    let usage = stats(&client, "disk", &device);
    assert_eq!(usage.usage.len(), 1, "a device has no inodes");
    assert_eq!(usage.usage[0].total, 32 * MIB);
    assert!(usage.usage[0].used >= 12 << 10);

    let request = NodePublishVolumeRequest { readonly: true, ..publish("disk", &at, &reader, block()) };
    client.node_publish_volume(request).unwrap();
    let written =
        fs::OpenOptions::new().write(true).open(&reader).and_then(|file| file.write_all_at(&[9], 0));
    assert!(written.is_err(), "the device is read-only, not only the mount of its node");
    fs::File::open(&reader).unwrap().read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!(bytes, [7; 8192]);
    drop(file);
    client.unpublish("disk", &reader);
    client.unpublish("disk", &device);
    let holder = fs::File::open(format!("/dev/{}", attached[0])).unwrap();
    let request = NodeUnstageVolumeRequest {
        volume_id: "disk".into(),
        staging_target_path: at.to_str().unwrap().into(),
    };
    let (code, message) = refused(client.node_unstage_volume(request));
    assert_eq!(code, Code::FailedPrecondition);
    assert!(message.contains("still open"), "{message}");
    // Wanted again before it is gone, it does not go under its user.
    client.node_stage_volume(stage("disk", &at, block())).unwrap();
    client.node_publish_volume(publish("disk", &at, &device, block())).unwrap();
    drop(holder);
    assert_eq!((loops(&place.pool()), sys("loop/autoclear")), (attached.clone(), "0".to_owned()));
    fs::File::open(&device).unwrap().read_exact_at(&mut bytes, 4096).unwrap();
    assert_eq!(bytes, [7; 8192]);
    client.unpublish("disk", &device);
    client.unstage("disk", &at);
    assert_eq!(loops(&place.pool()), [] as [String; 0]);
}

#[test]
fn a_device_of_a_file_removed_by_hand_is_detached() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    let (at, device) = (staging(&place, "disk"), target(&place, "device"));
    client.create(volume("disk", 16 * MIB, block()));
    client.node_stage_volume(stage("disk", &at, block())).unwrap();
    client.node_publish_volume(publish("disk", &at, &device, block())).unwrap();
    let [number] = <[String; 1]>::try_from(loops(&place.pool())).unwrap();
    fs::remove_file(place.pool().join(".hpp-csi/block/disk")).unwrap();
    client.unpublish("disk", &device);
    client.unstage("disk", &at);
    let backing = fs::read_to_string(format!("/sys/block/{number}/loop/backing_file")).unwrap_or_default();
    assert!(!backing.contains(place.pool().to_str().unwrap()), "{backing}");
}

#[test]
fn a_number_that_a_stopped_filesystem_has_by_now_prevents_no_call() {
    let (place, stopped) = (Place::new("xfs", GIB), Place::new("xfs", GIB));
    let (_driver, client) = one_pool(&place, "");
    let at = staging(&place, "disk");
    client.create(volume("disk", 16 * MIB, block()));
    let file = stopped.pool().join("file");
    fs::File::create(&file).unwrap().set_len(MIB as u64).unwrap();
    // Others take devices, too: until it is the same one.
    support::eventually("the other file has the same device", || {
        client.node_stage_volume(stage("disk", &at, block())).unwrap();
        let [number] = <[String; 1]>::try_from(loops(&place.pool())).unwrap();
        client.unstage("disk", &at);
        let mut losetup = Command::new("losetup");
        losetup.arg(format!("/dev/{number}")).arg(&file).stderr(Stdio::null()).status().unwrap().success()
    });
    stopped.cut_power();
    client.node_stage_volume(stage("disk", &at, block())).unwrap();
    client.unstage("disk", &at);
    client.delete_volume(DeleteVolumeRequest { volume_id: "disk".into(), ..Default::default() }).unwrap();
    place.is_clean();
}

#[test]
fn a_filesystem_of_its_own_holds_the_limit_and_grows_in_use() {
    let place = Place::new("xfs", 4 * GIB);
    let (_driver, client) = one_pool(&place, r#","enforce":"loop""#);
    for name in ["v", "neighbour"] {
        client.create(volume(name, 400 * MIB, mounted_as(&[], "")));
        client.node_stage_volume(stage(name, &staging(&place, name), mount())).unwrap();
        client
            .node_publish_volume(publish(name, &staging(&place, name), &target(&place, name), mount()))
            .unwrap();
    }
    let path = target(&place, "v");
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
    fs::write(target(&place, "neighbour").join("file"), vec![1; 1 << 20]).unwrap();
    let fill = |name: &str| {
        let file = fs::File::create(path.join(name)).unwrap();
        (0..1000_u64).find_map(|n| {
            file.write_all_at(&[1; 1 << 20], n << 20)
                .and_then(|()| file.sync_data())
                .err()
                .map(|error| (n, error))
        })
    };
    let (written, error) = fill("full").unwrap();
    assert_eq!(error.raw_os_error(), Some(28), "ENOSPC");
    assert!((250..400).contains(&written), "{written} MiB");
    let usage = stats(&client, "v", &path);
    assert!(usage.usage[0].total > 250 * MIB && usage.usage[0].total <= 400 * MIB, "df shows the limit");
    assert_eq!(fs::read(target(&place, "neighbour").join("file")).unwrap(), vec![1; 1 << 20]);

    assert!(expand(&client, "v", 800 * MIB).node_expansion_required);
    expand_on_node(&client, "v", &path);
    assert!(stats(&client, "v", &path).usage[0].total > 600 * MIB);
    fs::write(path.join("more"), vec![1; 200 << 20]).unwrap();
    for name in ["v", "neighbour"] {
        client.unpublish(name, &target(&place, name));
        client.unstage(name, &staging(&place, name));
        client.delete(name);
    }
    assert_eq!(loops(&place.pool()), [] as [String; 0]);
    assert_eq!(names(&place.pool()), [".hpp-csi"]);
}

/// 64 clones that take long, and the kubelet's calls at the same time.
#[test]
fn the_kubelets_calls_do_not_wait_for_clones() {
    let place = Place::new("xfs", 16 * GIB);
    let (driver, client) = one_pool(&place, r#","overcommit":1000"#);
    client.create(volume("golden", 64 * MIB, mount()));
    for n in 0..support::count(2000, 10_000) {
        fs::write(place.pool().join("golden").join(format!("file-{n}")), [7; 4096]).unwrap();
    }
    client.create(volume("v", 16 * MIB, mount()));
    let clones: Vec<_> = (0..64)
        .map(|n| {
            let mut controller = controller_client::ControllerClient::new(client.channel());
            let request = CreateVolumeRequest {
                volume_content_source: support::from_volume("golden"),
                ..volume(&format!("clone-{n}"), 64 * MIB, mount())
            };
            client.runtime().spawn(async move { controller.create_volume(request).await })
        })
        .collect();
    let tmp = place.pool().join(".hpp-csi/tmp/node1");
    support::eventually("clones are made", || names(&tmp).len() >= 8);
    let kubelet = driver.client();
    let mut slowest = std::time::Duration::ZERO;
    for n in 0..20 {
        let path = target(&place, &format!("pod-{n}"));
        let begun = std::time::Instant::now();
        kubelet.node_publish_volume(publish("v", &place.beside("none"), &path, mount())).unwrap();
        let published = begun.elapsed();
        let begun = std::time::Instant::now();
        stats(&kubelet, "v", &path);
        slowest = slowest.max(published).max(begun.elapsed());
        kubelet.unpublish("v", &path);
    }
    let going = clones.iter().filter(|clone| !clone.is_finished()).count();
    println!("beside {going} of 64 clones: {slowest:?} at most");
    assert!(going > 0, "the clones were too fast to say anything");
    let limit = if support::count(0, 1) == 1 { 100 } else { 3000 };
    assert!(slowest.as_millis() <= limit, "{slowest:?}");
    driver.kill();
}

#[test]
fn inline_volumes_live_and_die_with_their_pod() {
    for more in ["", r#","enforce":"loop""#] {
        let place = Place::new("xfs", 2 * GIB);
        let (_driver, client) = one_pool(&place, more);
        let id = format!("csi-{}", "0f".repeat(32));
        let path = target(&place, "inline");
        let request = NodePublishVolumeRequest {
            volume_context: parameters(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "400Mi")]),
            ..publish(&id, &place.beside("none"), &path, mount())
        };
        for _ in 0..2 {
            client.node_publish_volume(request.clone()).unwrap();
        }
        fs::write(path.join("file"), "x").unwrap();
        assert_eq!(client.volumes().join(" "), id);
        assert_eq!(
            stats(&client, &id, &path).usage[0].total / (100 * MIB),
            if more.is_empty() { 4 } else { 3 }
        );
        for _ in 0..2 {
            client.unpublish(&id, &path);
        }
        assert_eq!(names(&place.pool()), [".hpp-csi"]);
        assert_eq!(loops(&place.pool()), [] as [String; 0]);
    }
}

#[test]
fn foreign_content_of_a_target_path_stays() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    client.create(volume("v", MIB, mount()));
    let path = target(&place, "v");
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("data"), "somebody's").unwrap();
    let request =
        NodeUnpublishVolumeRequest { volume_id: "v".into(), target_path: path.to_str().unwrap().into() };
    assert_eq!(refused(client.node_unpublish_volume(request)).0, Code::FailedPrecondition);
    assert_eq!(fs::read_to_string(path.join("data")).unwrap(), "somebody's");
    for bad in ["relative", "/", "/a/..", "/a/../b", "a\0b"] {
        let request =
            NodePublishVolumeRequest { target_path: bad.into(), ..publish("v", &path, &path, mount()) };
        assert_eq!(refused(client.node_publish_volume(request)).0, Code::InvalidArgument, "{bad:?}");
    }
    // A link at the target is not followed.
    let link = target(&place, "link");
    std::os::unix::fs::symlink("/tmp", &link).unwrap();
    assert_eq!(
        refused(client.node_publish_volume(publish("v", &path, &link, mount()))).0,
        Code::FailedPrecondition
    );
}

fn unpublish_refused(client: &Client, id: &str, path: &Path) {
    let request =
        NodeUnpublishVolumeRequest { volume_id: id.into(), target_path: path.to_str().unwrap().into() };
    let (code, message) = refused(client.node_unpublish_volume(request));
    assert_eq!(code, Code::FailedPrecondition, "{id} at {}: {message}", path.display());
    assert!(message.contains("another filesystem is mounted"), "{message}");
}

#[test]
fn a_mount_that_is_not_the_volume_stays() {
    let place = Place::new("xfs", GIB);
    let (driver, client) = one_pool(&place, "");
    for id in ["a", "b"] {
        client.create(volume(id, MIB, mount()));
        let path = target(&place, id);
        client.node_publish_volume(publish(id, &path, &path, mount())).unwrap();
    }
    let a = target(&place, "a");
    fs::write(a.join("file"), "x").unwrap();
    unpublish_refused(&client, "b", &a);
    unpublish_refused(&client, "unknown", &a);
    unpublish_refused(&client, "a", &place.pool());
    let foreign = place.beside("foreign");
    run("mount", &["-t", "tmpfs", "none", foreign.to_str().unwrap()]);
    fs::write(foreign.join("file"), "x").unwrap();
    for id in ["a", "unknown"] {
        unpublish_refused(&client, id, &foreign);
    }
    let unstage = NodeUnstageVolumeRequest {
        volume_id: "unknown".into(),
        staging_target_path: foreign.to_str().unwrap().into(),
    };
    assert_eq!(refused(client.node_unstage_volume(unstage)).0, Code::FailedPrecondition);
    assert!(a.join("file").exists() && foreign.join("file").exists());
    // The mount below the volume's stays, too.
    client.node_publish_volume(publish("b", &foreign, &foreign, mount())).unwrap_err();
    run("mount", &["--bind", a.to_str().unwrap(), foreign.to_str().unwrap()]);
    client.unpublish("a", &foreign);
    assert!(foreign.join("file").exists());
    run("umount", &[foreign.to_str().unwrap()]);
    // A volume that is gone with its record is known by the names that the kernel keeps.
    fs::remove_dir_all(place.pool().join("a")).unwrap();
    driver.kill();
    let (_driver, client) = one_pool(&place, "");
    unpublish_refused(&client, "b", &a);
    client.unpublish("a", &a);
    client.unpublish("b", &target(&place, "b"));
    assert!(mounts(&place.beside("pods")).is_empty());
}

#[test]
fn a_socket_that_answers_is_left_alone() {
    let place = Place::new("xfs", GIB);
    let (driver, client) = one_pool(&place, "");
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_hpp-csi"))
        .arg(format!("--endpoint=unix://{}", driver.socket().display()))
        .args(["--nodeid=other", "--metrics-address=off"])
        .arg(format!("--datadir=[{}]", pool("legacy", &place.pool(), "")))
        .output()
        .unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("another process answers"), "{said}");
    client.create(volume("v", MIB, mount()));
}
