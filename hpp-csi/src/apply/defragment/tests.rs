//! Disks of volumes on filesystems of their own: which are defragmented, what stays the same, and which are left alone.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use super::*;
use crate::driver::Driver;
use crate::fault::Steps;
use crate::request::{Access, Allocation, Attributes, Capability, Mode, MountOptions, Parameters, Range};
use crate::testing::place::Place;
use crate::testing::{driver, eventually, id, names};

use super::super::volume;

const MIB: u64 = 1 << 20;
/// A pool whose disks are to have fewer extents than the scattered ones here.
const LIMIT: &str = r#","defragment":100,"reserve":"0""#;
/// Where the data begins: behind what tells which filesystem is in a file.
const DATA: u64 = 32 * MIB;
/// Behind its first block.
const BEHIND: usize = (32 << 20) + 4096;

fn folder() -> Capability {
    Capability { access: Access::Mount(MountOptions::default()), mode: Mode::Many }
}

fn block() -> Capability {
    Capability { access: Access::Block, mode: Mode::Many }
}

fn request(name: &str, mib: u64, capability: Capability) -> volume::Request {
    volume::Request {
        id: id(name),
        capabilities: vec![capability],
        parameters: Parameters { pool: None, sector: 512, copy: false },
        range: Range { required: mib * MIB, limit: 0 },
        source: None,
        attributes: Attributes::default(),
        inline: false,
    }
}

fn open_file(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Writes `mib` of data into a disk, and every second block of it again while a snapshot has the old ones.
fn scatter(driver: &Driver, name: &str, path: &Path, mib: u64) {
    let file = open_file(path);
    for at in 0..mib {
        file.write_all_at(&[at.to_le_bytes()[0] | 1; 1 << 20], DATA + at * MIB).unwrap();
    }
    file.sync_all().unwrap();
    driver.snapshots.create(&id(&format!("of-{name}")), &id(name), false).unwrap();
    for block in 0..mib * 128 {
        file.write_all_at(&[block.to_le_bytes()[0]; 4096], DATA + block * 8192).unwrap();
    }
    file.sync_all().unwrap();
    assert!(extents(path) > 200, "{}", extents(path));
    measure(driver);
}

fn measure(driver: &Driver) {
    scan::measure(&driver.pools.all[0].open().unwrap(), &mut tree::Budget::default(), None).unwrap();
}

fn extents(path: &Path) -> u64 {
    sys::extent_count(File::open(path).unwrap().as_fd()).unwrap()
}

fn inode(path: &Path) -> u64 {
    fs::metadata(path).unwrap().ino()
}

/// Whether a write from now on has another time stamp.
fn settled(path: &Path) -> bool {
    is_settled(&State::of_file(&File::open(path).unwrap()).unwrap())
}

fn defragmenter(driver: &Driver) -> Defragmenter {
    Defragmenter::new(driver.pools.clone(), driver.volumes.locks.clone(), driver.published.clone())
}

/// Defragments one volume.
fn defragment(driver: &Driver, name: &str) -> Result<Outcome> {
    defragmenter(driver).volume(&driver.pools.all[0].open().unwrap(), &id(name), 100)
}

fn is_swept(place: &Place) {
    assert_eq!(names(&place.pool().join(".hpp-csi/tmp/node1")), [] as [&str; 0]);
}

#[test]
fn a_fragmented_disk_becomes_whole_and_stays_the_same() {
    for (filesystem, more, capability, file) in [
        ("xfs", "", folder(), "v/disk.img"),
        ("xfs", "", block(), ".hpp-csi/block/v"),
        ("xfs", r#","enforce":"loop""#, folder(), "v/image"),
        ("btrfs", "", folder(), "v/disk.img"),
        ("btrfs", "", block(), ".hpp-csi/block/v"),
    ] {
        let what = format!("{filesystem} {more} {file}");
        let place = Place::new(filesystem, 2 << 30);
        let driver = driver(&place, &format!("{LIMIT}{more}"));
        driver.volumes.create(&request("v", 304, capability)).unwrap();
        let path = place.pool().join(file);
        let disk = open_file(&path);
        disk.set_len(304 * MIB).unwrap();
        scatter(&driver, "v", &path, 16);
        std::os::unix::fs::fchown(&disk, Some(107), Some(108)).unwrap();
        disk.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
        rustix::fs::fsetxattr(&disk, "user.x", b"y", rustix::fs::XattrFlags::empty()).unwrap();
        // Allocated ahead, and never written.
        fallocate(&disk, FallocateFlags::KEEP_SIZE, 200 * MIB, 8 * MIB).unwrap();
        disk.sync_all().unwrap();
        drop(disk);
        measure(&driver);
        let (before, content, old) = (extents(&path), fs::read(&path).unwrap(), fs::metadata(&path).unwrap());
        let snapshot = place.pool().join("snapshots/of-v");
        let golden = fs::read(
            names(&snapshot)
                .iter()
                .find_map(|name| match name.as_str() {
                    "image" => Some(snapshot.join("image")),
                    "data" => Some(snapshot.join("data/disk.img")),
                    _ => None,
                })
                .unwrap(),
        )
        .unwrap();
        let open = driver.pools.all[0].open().unwrap();
        let available = open.room().unwrap().available();

        defragmenter(&driver).run();

        let (after, new) = (extents(&path), fs::metadata(&path).unwrap());
        println!("{what}: {before} extents, then {after}");
        assert!(after < 20, "{what}: {after}");
        assert_ne!(old.ino(), new.ino(), "{what}");
        assert!(fs::read(&path).unwrap() == content, "{what}");
        let facts =
            |of: &fs::Metadata| (of.len(), of.mode(), of.uid(), of.gid(), of.mtime(), of.mtime_nsec());
        assert_eq!(facts(&old), facts(&new), "{what}");
        // 16 MiB are written and 8 are not; XFS had allocated more ahead.
        assert!(
            new.blocks() <= old.blocks().max(24 << 11) && new.blocks() >= 24 << 11,
            "{what}: {}",
            new.blocks()
        );
        let mut value = [0; 1];
        rustix::fs::getxattr(&path, "user.x", &mut value).unwrap();
        assert_eq!(&value, b"y");
        assert_eq!(open.known.book().volumes[&id("v")].extents, Some(after));
        assert_eq!(open.pool.defragmented.load(Ordering::Relaxed), 1);
        eventually("the pool has as much room as before", || {
            open.room().unwrap().available().abs_diff(available) < 24 * MIB
        });
        is_swept(&place);
        // The snapshot is what it was, and the volume is of use.
        let clone = volume::Request {
            source: Some(crate::request::Source::Snapshot(id("of-v"))),
            ..request("clone", 304, if file.ends_with('v') { block() } else { folder() })
        };
        driver.volumes.create(&clone).unwrap();
        assert!(
            fs::read(place.pool().join(file.replace("v/", "clone/").replace("block/v", "block/clone")))
                .unwrap()
                == golden
        );
        driver.snapshots.create(&id("again"), &id("v"), false).unwrap();
        // There is nothing left to do.
        defragmenter(&driver).run();
        assert_eq!(inode(&path), new.ino());
    }
}

#[test]
fn a_pool_that_does_not_ask_for_it_is_left_alone() {
    let place = Place::new("xfs", 1 << 30);
    let driver = driver(&place, "");
    driver.volumes.create(&request("v", 64, block())).unwrap();
    let path = place.pool().join(".hpp-csi/block/v");
    scatter(&driver, "v", &path, 8);
    let old = inode(&path);
    defragmenter(&driver).run();
    assert_eq!(inode(&path), old);
}

#[test]
fn a_volume_in_use_is_left_alone() {
    let place = Place::new("xfs", 1 << 30);
    let driver = driver(&place, LIMIT);
    for (name, capability, file) in
        [("device", block(), ".hpp-csi/block/device"), ("files", folder(), "files/disk.img")]
    {
        driver.volumes.create(&request(name, 64, capability.clone())).unwrap();
        let path = place.pool().join(file);
        scatter(&driver, name, &path, 8);
        let staging = place.beside(name).join("globalmount").to_str().unwrap().to_owned();
        let target = place.beside("pods").join(name).to_str().unwrap().to_owned();
        driver.staging.stage(&id(name), &staging, &capability).unwrap();
        driver
            .publishing
            .publish(&super::super::publish::Request {
                id: id(name),
                target: target.clone(),
                staging: staging.clone(),
                capability,
                read_only: false,
                inline: None,
            })
            .unwrap();
        let old = inode(&path);
        assert_eq!(defragment(&driver, name).unwrap(), Outcome::LeftAlone, "{name}");
        // Nor does a driver that knows nothing of it yet.
        let mut other = defragmenter(&driver);
        other.published = Arc::default();
        let open = driver.pools.all[0].open().unwrap();
        assert_eq!(other.volume(&open, &id(name), 100).unwrap(), Outcome::LeftAlone, "{name}");
        assert_eq!(inode(&path), old, "{name}");
        eventually("it is unpublished", || driver.publishing.unpublish(&id(name), &target).is_ok());
        eventually("it is unstaged", || driver.staging.unstage(&id(name), &staging).is_ok());
        // Not by us, but it is open.
        let held = open_file(&path);
        assert_eq!(defragment(&driver, name).unwrap(), Outcome::LeftAlone, "{name}");
        assert_eq!(inode(&path), old, "{name}");
        drop(held);
        assert!(matches!(defragment(&driver, name), Ok(Outcome::Done { .. })), "{name}");
        assert_ne!(inode(&path), old, "{name}");
        is_swept(&place);
    }
}

#[test]
fn calls_come_before_a_copy_that_is_being_made() {
    let place = Place::new("xfs", 2 << 30);
    let driver = driver(&place, LIMIT);
    driver.volumes.create(&request("v", 128, block())).unwrap();
    let path = place.pool().join(".hpp-csi/block/v");
    scatter(&driver, "v", &path, 64);
    let (staging, content) =
        (place.beside("staging").join("globalmount").to_str().unwrap().to_owned(), fs::read(&path).unwrap());
    let tmp = place.pool().join(".hpp-csi/tmp/node1");
    let during = |call: &dyn Fn()| {
        std::thread::scope(|scope| {
            let work = scope.spawn(|| defragment(&driver, "v"));
            eventually("the copy begins", || {
                fs::metadata(tmp.join("d.v")).is_ok_and(|copy| copy.blocks() > 0)
            });
            call();
            let result = work.join().unwrap();
            is_swept(&place);
            result
        })
    };
    let old = inode(&path);
    let error = during(&|| driver.staging.stage(&id("v"), &staging, &block()).unwrap()).unwrap_err();
    assert!(error.to_string().contains("staged or published"), "{error}");
    eventually("it is unstaged", || driver.staging.unstage(&id("v"), &staging).is_ok());
    let write = || open_file(&path).write_all_at(&[9; 4096], DATA).unwrap();
    let error = during(&write).unwrap_err();
    assert!(error.to_string().contains("written to while"), "{error}");
    let held = std::cell::Cell::new(None);
    let error = during(&|| held.set(Some(open_file(&path)))).unwrap_err();
    assert!(error.to_string().contains("a process has"), "{error}");
    drop(held);
    assert_eq!(inode(&path), old);
    // A snapshot changes nothing.
    let snapshot = || drop(driver.snapshots.create(&id("s"), &id("v"), false).unwrap());
    assert!(matches!(during(&snapshot), Ok(Outcome::Done { .. })));
    let now = fs::read(&path).unwrap();
    assert!(now[..BEHIND] != content[..BEHIND], "the write of before");
    assert!(now[BEHIND..] == content[BEHIND..]);
    drop((now, content));
    // A delete leaves nothing, also of a directory, in which the disk stays.
    driver.volumes.create(&request("files", 128, folder())).unwrap();
    scatter(&driver, "files", &place.pool().join("files/disk.img"), 64);
    std::thread::scope(|scope| {
        let work = scope.spawn(|| defragment(&driver, "files"));
        eventually("the copy begins", || tmp.join("d.files").exists());
        driver.volumes.delete(&id("files")).unwrap();
        let error = work.join().unwrap().unwrap_err();
        assert!(error.to_string().contains("was deleted"), "{error}");
    });
    is_swept(&place);
}

#[test]
fn without_room_a_disk_is_left_alone() {
    let place = Place::new("xfs", 1 << 30);
    let driver = driver(&place, LIMIT);
    driver.volumes.create(&request("v", 128, block())).unwrap();
    let path = place.pool().join(".hpp-csi/block/v");
    scatter(&driver, "v", &path, 64);
    let open = driver.pools.all[0].open().unwrap();
    let available = open.room().unwrap().available() / MIB;
    driver.volumes.create(&request("large", available - 50, block())).unwrap();
    let old = inode(&path);
    let mut work = defragmenter(&driver);
    work.run();
    assert_eq!(inode(&path), old, "the large volume has the room, although it is not written yet");
    assert_eq!(defragment(&driver, "v").unwrap_err().kind(), Kind::Exhausted);
    is_swept(&place);
    driver.volumes.delete(&id("large")).unwrap();
    work.run();
    assert_ne!(inode(&path), old, "there is room now");
}

#[test]
fn a_thick_volume_stays_thick() {
    let place = Place::new("xfs", 1 << 30);
    let driver = driver(&place, LIMIT);
    let thick = Attributes { allocation: Some(Allocation::Thick) };
    driver.volumes.create(&volume::Request { attributes: thick, ..request("v", 64, block()) }).unwrap();
    let path = place.pool().join(".hpp-csi/block/v");
    scatter(&driver, "v", &path, 8);
    let (old, content) = (inode(&path), fs::read(&path).unwrap());
    defragmenter(&driver).run();
    assert_ne!(inode(&path), old);
    assert!(fs::metadata(&path).unwrap().blocks() * 512 >= 64 * MIB);
    assert!(fs::read(&path).unwrap() == content);
}

#[test]
fn holes_are_no_reason_to_copy_a_disk() {
    let place = Place::new("xfs", 1 << 30);
    let driver = driver(&place, LIMIT);
    driver.volumes.create(&request("v", 64, block())).unwrap();
    let path = place.pool().join(".hpp-csi/block/v");
    let file = open_file(&path);
    for block in 0..400 {
        file.write_all_at(&[1; 4096], block * 16384).unwrap();
        file.sync_data().unwrap();
    }
    assert!(extents(&path) > 200);
    let open = driver.pools.all[0].open().unwrap();
    let mut defragmenter = defragmenter(&driver);
    let mut look = || defragmenter.volume(&open, &id("v"), 100).unwrap();
    eventually("the last write is of the past", || settled(&path));
    assert_eq!(look(), Outcome::LeftAlone);
    assert_eq!(look(), Outcome::Unchanged, "the ranges are not read again");
    file.write_all_at(&[2; 4096], 0).unwrap();
    file.sync_data().unwrap();
    drop(file);
    eventually("the last write is of the past", || settled(&path));
    assert_eq!([look(), look()], [Outcome::LeftAlone, Outcome::Unchanged], "it was written to");
    // A disk without holes is copied, whatever it was before.
    fallocate(open_file(&path), FallocateFlags::empty(), 0, 64 * MIB).unwrap();
    scatter(&driver, "v", &path, 8);
    assert!(matches!(look(), Outcome::Done { .. }));
}

#[test]
fn a_failure_at_any_step_leaves_the_old_disk() {
    let place = Place::new("xfs", 1 << 30);
    let driver = driver(&place, LIMIT);
    driver.volumes.create(&request("v", 64, block())).unwrap();
    let path = place.pool().join(".hpp-csi/block/v");
    scatter(&driver, "v", &path, 8);
    let (old, content) = (inode(&path), fs::read(&path).unwrap());
    let mut failed = 0;
    loop {
        let steps = Steps::fail_after(failed);
        let result = defragment(&driver, "v");
        if steps.passed() {
            assert!(matches!(result, Ok(Outcome::Done { .. })));
            break;
        }
        drop(steps);
        assert!(result.unwrap_err().chain().contains("injected"));
        assert_eq!(inode(&path), old);
        is_swept(&place);
        failed += 1;
    }
    assert!(failed >= 3, "{failed}");
    assert!(fs::read(&path).unwrap() == content);
}

#[test]
fn ranges_that_touch_are_one() {
    let range = |offset, length, written| Allocated { offset, length, written };
    let mut ranges = Vec::new();
    for one in [
        range(0, 4, true),
        range(4, 4, true),
        range(8, 4, false),
        range(12, 4, false),
        // Behind a hole.
        range(20, 4, false),
        range(24, 8, true),
        // Up to the end, and beyond it.
        range(32, 8, true),
        range(40, 8, true),
    ] {
        add(&mut ranges, one, 35);
    }
    assert_eq!(ranges, [range(0, 8, true), range(8, 8, false), range(20, 4, false), range(24, 11, true)]);
}
