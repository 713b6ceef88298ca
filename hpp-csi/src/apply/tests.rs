//! Calls of the driver on filesystems of their own: what a call that fails leaves, and what volumes that are files give back.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use crate::driver::Driver;
use crate::error::{Kind, Result};
use crate::fault::Steps;
use crate::id::Id;
use crate::pool::{scan, trash, tree};
use crate::request::{
    Access, Allocation, Attributes, Capability, Mode, MountOptions, Parameters, Range, Source,
};
use crate::sys;
use crate::testing::place::{Place, loops, mounts, run};
use crate::testing::{driver, eventually, id, names};

use super::{publish, room, upkeep, volume};

const MIB: u64 = 1 << 20;

fn mounted() -> Capability {
    Capability { access: Access::Mount(MountOptions::default()), mode: Mode::Many }
}

fn device() -> Capability {
    Capability { access: Access::Block, mode: Mode::Many }
}

fn parameters() -> Parameters {
    Parameters { pool: None, sector: 512, copy: true }
}

fn range(mib: u64) -> Range {
    Range { required: mib * MIB, limit: 0 }
}

fn volume(name: &Id, mib: u64, capability: &Capability) -> volume::Request {
    volume::Request {
        id: name.clone(),
        capabilities: vec![capability.clone()],
        parameters: parameters(),
        range: range(mib),
        source: None,
        attributes: Attributes::default(),
        inline: false,
    }
}

fn published(place: &Place, name: &Id, capability: &Capability) -> publish::Request {
    publish::Request {
        id: name.clone(),
        target: target(place).to_str().unwrap().to_owned(),
        staging: staging(place),
        capability: capability.clone(),
        read_only: false,
        inline: None,
    }
}

fn staging(place: &Place) -> String {
    place.beside("staging").join("globalmount").to_str().unwrap().to_owned()
}

fn target(place: &Place) -> PathBuf {
    place.beside("pods").join("v")
}

/// Puts a volume in use.
fn mount(driver: &Driver, place: &Place, name: &Id, capability: &Capability) {
    driver.staging.stage(name, &staging(place), capability).unwrap();
    driver.publishing.publish(&published(place, name, capability)).unwrap();
}

/// Ends its use. Another process that is just being started may hold the mount for a moment.
fn unmount(driver: &Driver, place: &Place, name: &Id) {
    eventually("the volume is unpublished", || {
        driver.publishing.unpublish(name, target(place).to_str().unwrap()).is_ok()
    });
    eventually("the volume is unstaged", || driver.staging.unstage(name, &staging(place)).is_ok());
}

/// Mounts and devices of a place's volumes.
fn held(place: &Place) -> (Vec<PathBuf>, Vec<String>) {
    let pool = place.pool();
    let points = mounts(&place.beside("pods")).into_iter().chain(mounts(&place.beside("staging")));
    (points.collect(), loops(&pool))
}

const NONE: (Vec<PathBuf>, Vec<String>) = (Vec::new(), Vec::new());

/// Repeats a call with a failure injected after no step, after one, after two, until no step fails. `left` gets each error,
/// and brings everything to where the next call begins. Answers how many calls failed.
fn at_every_step<T: Debug>(mut call: impl FnMut() -> Result<T>, mut left: impl FnMut(&str)) -> u32 {
    let mut failed = 0;
    loop {
        let steps = Steps::fail_after(failed);
        let result = call();
        let passed = steps.passed();
        drop(steps);
        if passed {
            result.unwrap();
            return failed;
        }
        left(&result.unwrap_err().chain());
        failed += 1;
    }
}

#[test]
fn a_stage_that_fails_at_any_step_leaves_nothing() {
    let place = Place::new("xfs", 2 << 30);
    let driver = driver(&place, r#","enforce":"loop""#);
    let name = id("v");
    let prepare = || {
        driver.volumes.create(&volume(&name, 304, &mounted())).unwrap();
        // Larger than its filesystem: staging grows it.
        driver.volumes.expand(&name, range(320)).unwrap();
    };
    prepare();
    let stage = || driver.staging.stage(&name, &staging(&place), &mounted());
    let failed = at_every_step(stage, |why| {
        assert!(why.contains("injected"), "{why}");
        eventually(&format!("nothing is left: {why}"), || held(&place) == NONE);
        assert_eq!(names(&place.beside("staging")), [] as [&str; 0], "{why}");
        // It can be deleted without having been unstaged.
        driver.volumes.delete(&name).unwrap();
        prepare();
    });
    assert!(failed >= 6, "{failed} steps");
    unmount(&driver, &place, &name);
    driver.volumes.delete(&name).unwrap();
}

#[test]
fn a_publish_that_fails_at_any_step_leaves_the_volume_staged() {
    let place = Place::new("xfs", 2 << 30);
    let driver = driver(&place, "");
    let name = id("v");
    driver.volumes.create(&volume(&name, 64, &device())).unwrap();
    driver.staging.stage(&name, &staging(&place), &device()).unwrap();
    let staged = held(&place);
    // A reader gets a device of its own.
    let request = publish::Request { read_only: true, ..published(&place, &name, &device()) };
    let failed = at_every_step(
        || driver.publishing.publish(&request),
        |why| {
            eventually(&format!("nothing is left: {why}"), || held(&place) == staged);
            assert_eq!(names(&place.beside("pods")), [] as [&str; 0], "{why}");
        },
    );
    assert!(failed >= 5, "{failed} steps");
    unmount(&driver, &place, &name);
    driver.volumes.delete(&name).unwrap();
}

#[test]
fn an_inline_publish_that_fails_at_any_step_leaves_no_volume() {
    for (more, least) in [("", 7), (r#","enforce":"loop""#, 13)] {
        let place = Place::new("xfs", 2 << 30);
        let driver = driver(&place, more);
        let name = id(&format!("csi-{}", "0f".repeat(32)));
        let request = publish::Request {
            inline: Some((parameters(), range(64))),
            ..published(&place, &name, &mounted())
        };
        let failed = at_every_step(
            || driver.publishing.publish(&request),
            |why| {
                assert!(why.contains("injected"), "{why}");
                eventually(&format!("nothing is left: {why}"), || held(&place) == NONE);
                assert_eq!(names(&place.beside("pods")), [] as [&str; 0], "{why}");
                assert!(driver.pools.volume(&name).unwrap().is_none(), "{why}");
                let open = driver.pools.all[0].open().unwrap();
                assert_eq!(trash::empty(&open).unwrap(), 0);
                place.is_clean();
            },
        );
        assert!(failed >= least, "{failed} steps");
        // A second publish that fails takes nothing from the pod that has it.
        let elsewhere = place.beside("others").join("v").to_str().unwrap().to_owned();
        let second = publish::Request { target: elsewhere, ..request };
        let steps = Steps::fail_after(0);
        driver.publishing.publish(&second).unwrap_err();
        drop(steps);
        assert!(driver.pools.volume(&name).unwrap().is_some());
        eventually("it is unpublished", || {
            driver.publishing.unpublish(&name, target(&place).to_str().unwrap()).is_ok()
        });
        assert!(driver.pools.volume(&name).unwrap().is_none());
    }
}

#[test]
fn a_device_that_a_killed_driver_left_does_not_keep_a_volume_from_being_deleted() {
    let place = Place::new("xfs", 2 << 30);
    let driver = driver(&place, r#","enforce":"loop""#);
    let name = id("v");
    driver.volumes.create(&volume(&name, 64, &mounted())).unwrap();
    let (open, found) = driver.pools.need_volume(&name).unwrap();
    open.pool.devices.attach(&open.need_image(&found).unwrap(), 4096, false).unwrap();
    drop(open);
    driver.volumes.delete(&name).unwrap();
    assert_eq!(held(&place), NONE);
    // A block volume that is staged looks the same, and is in use.
    driver.volumes.create(&volume(&name, 64, &device())).unwrap();
    driver.staging.stage(&name, &staging(&place), &device()).unwrap();
    assert_eq!(driver.volumes.delete(&name).unwrap_err().kind(), Kind::Precondition);
    unmount(&driver, &place, &name);
    driver.volumes.delete(&name).unwrap();
}

#[test]
fn blocks_that_a_filesystem_in_a_file_frees_come_back_to_the_pool() {
    let place = Place::new("xfs", 2 << 30);
    let driver = driver(&place, r#","enforce":"loop""#);
    let name = id("v");
    driver.volumes.create(&volume(&name, 400, &mounted())).unwrap();
    mount(&driver, &place, &name, &mounted());
    let open = driver.pools.all[0].open().unwrap();
    upkeep::of_pool(&driver.volumes.locks, &open, true);
    let image = place.pool().join("v/image");
    let bytes = || fs::metadata(&image).unwrap().blocks() * 512;
    let file = target(&place).join("file");
    fs::write(&file, vec![1; 100 << 20]).unwrap();
    File::open(&file).unwrap().sync_all().unwrap();
    upkeep::of_pool(&driver.volumes.locks, &open, true);
    let full = bytes();
    assert!(full >= 100 * MIB, "used blocks stay: {full}");
    fs::remove_file(&file).unwrap();
    rustix::fs::syncfs(File::open(target(&place)).unwrap()).unwrap();
    eventually("free blocks are given back", || {
        upkeep::of_pool(&driver.volumes.locks, &open, true);
        bytes() < full - 90 * MIB
    });
    unmount(&driver, &place, &name);
}

#[test]
fn a_thick_volume_stays_thick_whatever_is_discarded() {
    let place = Place::new("xfs", 2 << 30);
    let driver = driver(&place, r#","enforce":"loop""#);
    let thick = Attributes { allocation: Some(Allocation::Thick) };
    let blocks = |file: &str| fs::metadata(place.pool().join(file)).unwrap().blocks() * 512;
    // A device, and a filesystem in a file.
    let disk = id("disk");
    driver.volumes.create(&volume::Request { attributes: thick, ..volume(&disk, 64, &device()) }).unwrap();
    mount(&driver, &place, &disk, &device());
    let discard = || run("blkdiscard", &["--force", target(&place).to_str().unwrap()]);
    let open = driver.pools.all[0].open().unwrap();
    let room = || open.room().unwrap().available();
    let before = room();
    discard();
    assert!(blocks(".hpp-csi/block/disk") < MIB, "the device passes discards");
    assert!(room().abs_diff(before) < 4 * MIB, "its room stays its own");
    upkeep::of_pool(&driver.volumes.locks, &open, false);
    assert!(blocks(".hpp-csi/block/disk") >= 64 * MIB);
    // One that is thin again gives up what is discarded.
    driver.volumes.modify(&disk, Attributes { allocation: Some(Allocation::Thin) }).unwrap();
    discard();
    upkeep::of_pool(&driver.volumes.locks, &open, true);
    assert!(blocks(".hpp-csi/block/disk") < MIB);
    unmount(&driver, &place, &disk);

    let files = id("files");
    driver.volumes.create(&volume::Request { attributes: thick, ..volume(&files, 400, &mounted()) }).unwrap();
    mount(&driver, &place, &files, &mounted());
    // The worker gives back what filesystems free, of thin ones.
    upkeep::of_pool(&driver.volumes.locks, &open, true);
    assert!(blocks("files/image") >= 400 * MIB);
    run("fstrim", &[target(&place).to_str().unwrap()]);
    assert!(blocks("files/image") < 400 * MIB);
    upkeep::of_pool(&driver.volumes.locks, &open, true);
    assert!(blocks("files/image") >= 400 * MIB);
    unmount(&driver, &place, &files);
}

#[test]
fn a_volume_in_use_is_not_copied() {
    let place = Place::new("ext4", 1 << 30);
    for (more, capability) in [("", mounted()), ("", device()), (r#","enforce":"loop""#, mounted())] {
        let driver = driver(&place, &format!(r#","copy":true{more}"#));
        let name = id("source");
        driver.volumes.create(&volume(&name, 64, &capability)).unwrap();
        mount(&driver, &place, &name, &capability);
        let clone = volume::Request {
            source: Some(Source::Volume(name.clone())),
            ..volume(&id("clone"), 64, &capability)
        };
        let error = driver.volumes.create(&clone).unwrap_err();
        assert_eq!(error.kind(), Kind::Precondition);
        assert!(error.to_string().contains("published at"), "{error}");
        assert_eq!(driver.snapshots.create(&id("s"), &name, true).unwrap_err().kind(), Kind::Precondition);
        let group = driver.groups.create(&id("g"), std::slice::from_ref(&name), true);
        assert_eq!(group.unwrap_err().kind(), Kind::Precondition);
        unmount(&driver, &place, &name);
        driver.volumes.create(&clone).unwrap();
        driver.snapshots.create(&id("s"), &name, true).unwrap();
        for other in ["source", "clone"] {
            driver.volumes.delete(&id(other)).unwrap();
        }
        driver.snapshots.delete(&id("s")).unwrap();
    }
}

#[test]
fn a_copy_of_a_volume_that_changes_is_discarded() {
    let place = Place::new("ext4", 4 << 30);
    let driver = driver(&place, r#","copy":true,"copyPublished":true"#);
    for (capability, file) in [(mounted(), "source/disk.img"), (device(), ".hpp-csi/block/source")] {
        let name = id("source");
        driver.volumes.create(&volume(&name, 128, &capability)).unwrap();
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(place.pool().join(file))
            .unwrap();
        for at in 0..100 {
            file.write_all_at(&[7; 1 << 20], at << 20).unwrap();
        }
        file.sync_all().unwrap();
        let clone = volume::Request {
            source: Some(Source::Volume(name.clone())),
            ..volume(&id("clone"), 128, &capability)
        };
        let tmp = place.pool().join(".hpp-csi/tmp/node1");
        for made in ["a clone", "a snapshot"] {
            let result = std::thread::scope(|scope| {
                let copied = scope.spawn(|| match made {
                    "a clone" => driver.volumes.create(&clone).map(drop),
                    _ => driver.snapshots.create(&id("s"), &name, true).map(drop),
                });
                eventually("the copy begins", || !names(&tmp).is_empty());
                // The first block is copied already, or not: the copy is of no point in time.
                file.write_all_at(&[9; 4096], 0).unwrap();
                copied.join().unwrap()
            });
            let error = result.unwrap_err();
            assert_eq!(error.kind(), Kind::Precondition, "{}", error.chain());
            assert!(error.to_string().contains("written to while"), "{error}");
            assert_eq!(names(&tmp), [] as [&str; 0]);
        }
        // Publications is not written to.
        mount(&driver, &place, &name, &capability);
        driver.volumes.create(&clone).unwrap();
        driver.snapshots.create(&id("s"), &name, true).unwrap();
        unmount(&driver, &place, &name);
        for other in ["source", "clone"] {
            driver.volumes.delete(&id(other)).unwrap();
        }
        driver.snapshots.delete(&id("s")).unwrap();
    }
}

/// A page that was dirty before the copy gets no new time stamp for a write, unless it is written out first.
#[test]
fn a_copy_of_a_volume_that_changes_in_mapped_memory_is_discarded() {
    let place = Place::new("ext4", 4 << 30);
    let driver = driver(&place, r#","copy":true"#);
    let name = id("source");
    driver.volumes.create(&volume(&name, 256, &mounted())).unwrap();
    let path = place.pool().join("source/disk.img");
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    for at in 0..200 {
        file.write_all_at(&[7; 1 << 20], at << 20).unwrap();
    }
    file.sync_all().unwrap();
    let last = sys::MappedByte::of(&file, 199 << 20);
    last.set(1);
    std::thread::sleep(std::time::Duration::from_millis(100));
    let error = std::thread::scope(|scope| {
        let taken = scope.spawn(|| driver.snapshots.create(&id("s"), &name, true).map(drop));
        eventually("the file is being copied", || {
            let tmp = place.pool().join(".hpp-csi/tmp/node1");
            names(&tmp).iter().any(|copy| {
                let places = ["disk.img", "data/disk.img"].map(|file| tmp.join(copy).join(file));
                places.iter().any(|place| fs::metadata(place).is_ok_and(|copied| copied.blocks() > 0))
            })
        });
        last.set(2);
        taken.join().unwrap().unwrap_err()
    });
    assert_eq!(error.kind(), Kind::Precondition, "{}", error.chain());
    assert!(error.to_string().contains("written to while"), "{error}");
}

#[test]
fn a_snapshot_takes_the_room_that_its_volume_may_need_again() {
    let place = Place::new("xfs", 1 << 30);
    let driver = driver(&place, r#","reserve":"0""#);
    let open = driver.pools.all[0].open().unwrap();
    let available = || open.room().unwrap().available();
    for (capability, file) in [(mounted(), "v/disk.img"), (device(), ".hpp-csi/block/v")] {
        let all = available();
        let name = id("v");
        driver.volumes.create(&volume(&name, 100, &capability)).unwrap();
        let near = |told: u64, expected: u64| told.abs_diff(expected) < 4 * MIB;
        assert!(near(available(), all - 100 * MIB));
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(place.pool().join(file))
            .unwrap();
        // As large as it gets: a filesystem allocates ahead of what makes a file longer.
        file.set_len(100 << 20).unwrap();
        file.write_all_at(&vec![7; 80 << 20], 0).unwrap();
        file.sync_all().unwrap();
        let measure = || scan::measure(&open, &mut tree::Budget::default(), None).unwrap();
        measure();
        assert!(near(available(), all - 100 * MIB), "written bytes were promised");
        driver.snapshots.create(&id("s"), &name, false).unwrap();
        assert!(near(available(), all - 180 * MIB), "{} of {all}", available());
        measure();
        assert!(near(available(), all - 180 * MIB), "the filesystem agrees");
        file.write_all_at(&vec![8; 80 << 20], 0).unwrap();
        file.sync_all().unwrap();
        measure();
        assert!(near(available(), all - 180 * MIB), "rewritten blocks are its own");
        driver.snapshots.delete(&id("s")).unwrap();
        driver.volumes.delete(&name).unwrap();
        drop(file);
        trash::empty(&open).unwrap();
        eventually("all is to be had again, without a look", || near(available(), all));
    }
}

#[test]
fn volumes_are_looked_at_only_where_the_promises_leave_too_little_room() {
    let place = Place::new("xfs", 1 << 30);
    let driver = driver(&place, r#","reserve":"0""#);
    let name = id("v");
    driver.volumes.create(&volume(&name, 100, &device())).unwrap();
    let file = OpenOptions::new().write(true).open(place.pool().join(".hpp-csi/block/v")).unwrap();
    file.write_all_at(&vec![7; 60 << 20], 0).unwrap();
    file.sync_all().unwrap();
    let open = driver.pools.all[0].open().unwrap();
    let used = || open.known.book().volumes[&name].used;
    // As if none of the 100 MiB was written.
    let least = open.room_by_accounts().available();
    drop(room::promise(&open, least - 4 * MIB).unwrap());
    assert!(used() < MIB, "{}", used());
    drop(room::promise(&open, least + 50 * MIB).unwrap());
    assert!(used() >= 60 * MIB, "{}", used());
    assert_eq!(room::promise(&open, least + 70 * MIB).unwrap_err().kind(), Kind::Exhausted);
}

#[test]
fn deleted_folders_and_files_are_removed_even_if_they_are_immutable() {
    let place = Place::new("xfs", 1 << 30);
    let driver = driver(&place, "");
    let name = id("v");
    driver.volumes.create(&volume(&name, 64, &mounted())).unwrap();
    let trash = place.pool().join(".hpp-csi/trash/node1");
    let (volume, left) = (place.pool().join("v"), trash.join("left"));
    fs::create_dir_all(volume.join("full/deep")).unwrap();
    fs::write(volume.join("full/deep/file"), "kept").unwrap();
    for folder in [&volume.join("empty"), &left] {
        fs::create_dir(folder).unwrap();
    }
    for path in ["full/deep/file", "full/deep", "full", "empty"].map(|path| volume.join(path)) {
        run("chattr", &["+i", path.to_str().unwrap()]);
    }
    run("chattr", &["+i", left.to_str().unwrap()]);
    driver.volumes.delete(&name).unwrap();
    assert_eq!(trash::empty(&driver.pools.all[0].open().unwrap()).unwrap(), 0);
    assert_eq!(names(&trash), [] as [&str; 0]);
}
