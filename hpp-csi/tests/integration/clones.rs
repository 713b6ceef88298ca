//! Snapshots, clones and copies through the built driver: content, metadata, shared blocks, and what is not to be had.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use csi::controller_service_capability::{Type, rpc};
use csi::*;
use tonic::Code;

use crate::support::place::{Place, run};
use crate::support::{
    self, Client, GIB, MIB, block, from_snapshot, from_volume, mount, names, one_pool, parameters, refused,
    volume,
};

/// Whether the kernel reports shared blocks for a file.
fn shares(file: &Path) -> bool {
    run("filefrag", &["-v", file.to_str().unwrap()]).contains("shared")
}

#[test]
fn a_clone_is_its_source_down_to_the_attributes() {
    let place = Place::new("xfs", GIB);
    let (_driver, client) = one_pool(&place, "");
    client.create(volume("golden", 200 * MIB, mount()));
    let golden = place.pool().join("golden");
    fs::create_dir_all(golden.join("a/b/c")).unwrap();
    fs::write(golden.join("a/b/c/disk.img"), vec![3; 8 << 20]).unwrap();
    fs::write(golden.join("a/script"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(golden.join("a/script"), fs::Permissions::from_mode(0o4755)).unwrap();
    std::os::unix::fs::chown(golden.join("a/b"), Some(107), Some(108)).unwrap();
    fs::hard_link(golden.join("a/script"), golden.join("linked")).unwrap();
    symlink("/etc/passwd", golden.join("link")).unwrap();
    run("mkfifo", &[golden.join("pipe").to_str().unwrap()]);
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(golden.join("a/script"), "user.colour", b"blue", flags).unwrap();
    // cap_net_bind_service, effective and permitted (struct vfs_cap_data, revision 2).
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    rustix::fs::setxattr(golden.join("a/b/c/disk.img"), "security.capability", &capability, flags).unwrap();
    let sparse = fs::File::create(golden.join("sparse")).unwrap();
    sparse.set_len(50 << 20).unwrap();
    sparse.write_all_at(b"end", 40 << 20).unwrap();
    fs::set_permissions(&golden, fs::Permissions::from_mode(0o2770)).unwrap();

    let snapshot = client.snapshot("snap", "golden");
    assert!(snapshot.ready_to_use);
    assert_eq!(snapshot.size_bytes, 200 * MIB, "what a volume needs to hold it");
    assert_eq!(client.snapshot("snap", "golden"), snapshot, "the same snapshot, not another");
    fs::write(golden.join("later"), "not in it").unwrap();
    client.create(CreateVolumeRequest {
        volume_content_source: from_volume("golden"),
        ..volume("clone", 200 * MIB, mount())
    });
    client.create(CreateVolumeRequest {
        volume_content_source: from_snapshot("snap"),
        ..volume("restored", 300 * MIB, mount())
    });
    for name in ["clone", "restored"] {
        let copy = place.pool().join(name);
        let expected = ["a", "later", "link", "linked", "pipe", "sparse"];
        let expected: Vec<_> =
            expected.into_iter().filter(|one| *one != "later" || name == "clone").collect();
        assert_eq!(names(&copy), expected);
        assert_eq!(fs::read(copy.join("a/b/c/disk.img")).unwrap(), vec![3; 8 << 20]);
        assert!(shares(&copy.join("a/b/c/disk.img")), "no block was copied");
        let script = fs::metadata(copy.join("a/script")).unwrap();
        assert_eq!(script.mode() & 0o7777, 0o4755);
        assert_eq!(script.ino(), fs::metadata(copy.join("linked")).unwrap().ino());
        assert_eq!(script.mtime(), fs::metadata(golden.join("a/script")).unwrap().mtime());
        let below = fs::metadata(copy.join("a/b")).unwrap();
        assert_eq!((below.uid(), below.gid()), (107, 108));
        assert_eq!(fs::metadata(&copy).unwrap().mode() & 0o7777, 0o2770);
        assert_eq!(fs::read_link(copy.join("link")).unwrap(), Path::new("/etc/passwd"));
        let mut attribute = [0; 4];
        rustix::fs::getxattr(copy.join("a/script"), "user.colour", &mut attribute).unwrap();
        assert_eq!(&attribute, b"blue");
        let mut attribute = [0; 20];
        rustix::fs::getxattr(copy.join("a/b/c/disk.img"), "security.capability", &mut attribute).unwrap();
        assert_eq!(attribute, capability);
        let sparse = fs::metadata(copy.join("sparse")).unwrap();
        assert!(sparse.len() == 50 << 20 && sparse.blocks() * 512 < 1 << 20);
    }
    let small = CreateVolumeRequest {
        volume_content_source: from_snapshot("snap"),
        ..volume("small", 100 * MIB, mount())
    };
    assert_eq!(refused(client.create_volume(small)).0, Code::OutOfRange);
    let other = CreateVolumeRequest {
        volume_content_source: from_snapshot("snap"),
        ..volume("other", 300 * MIB, block())
    };
    assert_eq!(refused(client.create_volume(other)).0, Code::InvalidArgument);
    let same_name =
        CreateSnapshotRequest { name: "snap".into(), source_volume_id: "clone".into(), ..Default::default() };
    assert_eq!(refused(client.create_snapshot(same_name)).0, Code::AlreadyExists);
}

#[test]
fn a_clone_of_four_gib_takes_no_time_and_no_room() {
    let place = Place::new("xfs", 12 * GIB);
    let (_driver, client) = one_pool(&place, "");
    client.create(volume("golden", 4 * GIB, block()));
    let file = place.pool().join(".hpp-csi/block/golden");
    run("fallocate", &["-l", "4G", file.to_str().unwrap()]);
    fs::OpenOptions::new().write(true).open(&file).unwrap().write_all_at(&[9; 4096], 1 << 30).unwrap();
    rustix::fs::syncfs(fs::File::open(place.pool()).unwrap()).unwrap();
    let free = place.free();
    let begun = Instant::now();
    client.create(CreateVolumeRequest {
        volume_content_source: from_volume("golden"),
        ..volume("clone", 4 * GIB, block())
    });
    let took = begun.elapsed();
    println!("clone of 4 GiB: {took:?}");
    assert!(free.abs_diff(place.free()) < 1 << 20, "no room is taken");
    // A copy takes longer, also beside other tests.
    assert!(took.as_millis() < support::count(3000, 500) as u128, "{took:?}");
    let clone = place.pool().join(".hpp-csi/block/clone");
    assert!(shares(&clone));
    let mut bytes = [0; 4096];
    fs::File::open(clone).unwrap().read_exact_at(&mut bytes, 1 << 30).unwrap();
    assert_eq!(bytes, [9; 4096]);
}

#[test]
fn without_shared_blocks_nothing_is_announced_and_copies_are_asked_for() {
    let place = Place::new("ext4", GIB);
    let (driver, client) = one_pool(&place, "");
    let can = |client: &Client| -> Vec<i32> {
        let answer = client.controller_get_capabilities(ControllerGetCapabilitiesRequest {}).unwrap();
        answer
            .capabilities
            .into_iter()
            .map(|one| match one.r#type {
                Some(Type::Rpc(rpc)) => rpc.r#type,
                None => 0,
            })
            .collect()
    };
    let clone_volume: i32 = rpc::Type::CloneVolume.into();
    assert!(!can(&client).contains(&clone_volume));
    client.create(volume("golden", 100 * MIB, mount()));
    fs::write(place.pool().join("golden/disk.img"), vec![3; 5 << 20]).unwrap();
    let clone = |name: &str| CreateVolumeRequest {
        volume_content_source: from_volume("golden"),
        ..volume(name, 100 * MIB, mount())
    };
    let asked =
        |name: &str| CreateVolumeRequest { parameters: parameters(&[("copy", "true")]), ..clone(name) };
    for request in [clone("a"), asked("a")] {
        assert_eq!(refused(client.create_volume(request)).0, Code::Unimplemented);
    }
    drop((client, driver));
    let (_driver, client) = one_pool(&place, r#","copy":true"#);
    assert!(can(&client).contains(&clone_volume));
    assert_eq!(refused(client.create_volume(clone("a"))).0, Code::Unimplemented);
    client.create(asked("a"));
    assert_eq!(fs::read(place.pool().join("a/disk.img")).unwrap(), vec![3; 5 << 20]);
}

#[test]
fn a_snapshot_of_a_mounted_filesystem_is_of_one_moment() {
    let place = Place::new("xfs", 12 * GIB);
    let (driver, client) = one_pool(&place, r#","enforce":"loop""#);
    let (staging, target) = (place.beside("s").join("globalmount"), place.beside("t").join("mount"));
    client.create(volume("v", 400 * MIB, mount()));
    client.node_stage_volume(support::stage("v", &staging, mount())).unwrap();
    client.node_publish_volume(support::publish("v", &staging, &target, mount())).unwrap();
    // Two files with equal content, written in turn: a snapshot between the two writes shows a difference of one.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0_u64.. {
                if stop.load(std::sync::atomic::Ordering::Relaxed) {
                    break;
                }
                for name in ["first", "second"] {
                    fs::write(target.join(name), n.to_string()).unwrap();
                    Command::new("sync").arg(target.join(name)).status().unwrap();
                }
            }
        });
        for n in 0..5 {
            client.snapshot(&format!("snap-{n}"), "v");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    for n in 0..5 {
        let name = format!("restored-{n}");
        client.create(CreateVolumeRequest {
            volume_content_source: from_snapshot(&format!("snap-{n}")),
            ..volume(&name, 800 * MIB, mount())
        });
        let (staging, target) = (
            place.beside(&format!("s{n}")).join("globalmount"),
            place.beside(&format!("t{n}")).join("mount"),
        );
        client.node_stage_volume(support::stage(&name, &staging, mount())).unwrap();
        client.node_publish_volume(support::publish(&name, &staging, &target, mount())).unwrap();
        let read =
            |file: &str| fs::read_to_string(target.join(file)).ok().and_then(|text| text.parse::<u64>().ok());
        if let (Some(first), Some(second)) = (read("first"), read("second")) {
            assert!(first == second || first == second + 1, "{first} {second}");
        }
        let size = rustix::fs::statvfs(&target).unwrap();
        assert!(
            size.f_blocks * size.f_frsize > 600 << 20,
            "the restored filesystem has grown with its volume"
        );
        client.unpublish(&name, &target);
        client.unstage(&name, &staging);
    }
    client.unpublish("v", &target);
    client.unstage("v", &staging);
    assert!(!driver.log().contains("page cache"), "direct I/O works on files that share blocks");
}

/// Capacity is enforced by nothing or a filesystem in a file, reported as requested or as upstream does, and content is
/// shared or copied. By quota: [`crate::quota`].
#[test]
fn a_restore_to_a_larger_claim_has_its_size() {
    const SOURCE: i64 = 400 * MIB;
    const LARGER: i64 = 800 * MIB;
    let none = r#","enforce":"none""#;
    let as_upstream = r#","enforce":"none","capacity":"filesystem""#;
    let copied = r#","enforce":"none","copy":true"#;
    let in_a_file = r#","enforce":"loop""#;
    let in_a_file_as_upstream = r#","enforce":"loop","capacity":"filesystem""#;
    let in_a_file_copied = r#","enforce":"loop","copy":true"#;
    for (filesystem, more, capability) in [
        ("xfs", none, mount()),
        ("xfs", as_upstream, mount()),
        ("ext4", copied, mount()),
        ("xfs", in_a_file, mount()),
        ("xfs", in_a_file_as_upstream, mount()),
        ("ext4", in_a_file_copied, mount()),
        ("xfs", none, block()),
        ("xfs", as_upstream, block()),
        ("ext4", copied, block()),
    ] {
        let place = Place::new(filesystem, 8 * GIB);
        let (_driver, client) = one_pool(&place, more);
        let whole = capability == mount() && more == as_upstream;
        let own_filesystem = capability == mount() && more.contains("loop");
        let parameters = parameters(&[("copy", "true")]);
        client.create(volume("source", SOURCE, capability.clone()));
        let taken = client.create_snapshot(CreateSnapshotRequest {
            name: "snap".into(),
            source_volume_id: "source".into(),
            parameters: parameters.clone(),
            ..Default::default()
        });
        taken.unwrap();
        for (name, source) in [("clone", from_volume("source")), ("restored", from_snapshot("snap"))] {
            let case = format!("{name} {filesystem}{more} {capability:?}");
            let made = client.create(CreateVolumeRequest {
                volume_content_source: source,
                parameters: parameters.clone(),
                ..volume(name, LARGER, capability.clone())
            });
            let (staging, target) =
                (place.beside(&format!("s-{name}")).join("globalmount"), place.beside("pods").join(name));
            client.node_stage_volume(support::stage(name, &staging, capability.clone())).unwrap();
            client
                .node_publish_volume(support::publish(name, &staging, &target, capability.clone()))
                .unwrap();
            let listed = client.list_volumes(ListVolumesRequest::default()).unwrap().entries;
            let listed = listed
                .into_iter()
                .filter_map(|entry| entry.volume)
                .find(|one| one.volume_id == name)
                .unwrap();
            assert_eq!(listed.capacity_bytes, made.capacity_bytes, "{case}");
            let total = client.stats(name, &target).usage[0].total;
            if capability == block() {
                let device = fs::File::open(&target).unwrap();
                let length = rustix::fs::seek(&device, rustix::fs::SeekFrom::End(0)).unwrap();
                assert_eq!(length, LARGER as u64, "{case}: what the pod sees");
            } else {
                let seen = rustix::fs::statvfs(&target).unwrap();
                let seen = i64::try_from(seen.f_blocks * seen.f_frsize).unwrap();
                let pool = rustix::fs::statvfs(place.pool()).unwrap();
                let pool = i64::try_from(pool.f_blocks * pool.f_frsize).unwrap();
                if own_filesystem {
                    assert!((600 * MIB..=LARGER).contains(&seen), "{case}: what the pod sees: {seen}");
                } else {
                    assert_eq!(seen, pool, "{case}: nothing limits the pod");
                }
                assert!(total == seen || !(own_filesystem || whole), "{case}: {total} {seen}");
            }
            if whole {
                assert!((7 * GIB..=8 * GIB).contains(&made.capacity_bytes), "{case}: {made:?}");
            } else {
                assert_eq!(made.capacity_bytes, LARGER, "{case}");
                assert!(total == LARGER || own_filesystem, "{case}: {total}");
            }
            client.unpublish(name, &target);
            client.unstage(name, &staging);
        }
    }
}

#[test]
fn a_filesystem_that_a_killed_driver_held_still_goes_on() {
    let place = Place::new("xfs", 4 * GIB);
    let (driver, client) = one_pool(&place, r#","enforce":"loop""#);
    let (staging, target) = (place.beside("s").join("globalmount"), place.beside("t").join("mount"));
    client.create(volume("v", 400 * MIB, mount()));
    client.node_stage_volume(support::stage("v", &staging, mount())).unwrap();
    client.node_publish_volume(support::publish("v", &staging, &target, mount())).unwrap();
    drop(client);
    driver.kill();
    // As a kill between holding and releasing leaves it.
    fs::write(place.pool().join(".hpp-csi/tmp/node1/f.v"), "").unwrap();
    run("fsfreeze", &["-f", target.to_str().unwrap()]);
    let (_driver, client) = one_pool(&place, r#","enforce":"loop""#);
    assert!(
        Command::new("timeout").args(["5", "touch"]).arg(target.join("file")).status().unwrap().success(),
        "writes go on"
    );
    client.unpublish("v", &target);
    client.unstage("v", &staging);
}
