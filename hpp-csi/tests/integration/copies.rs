//! Copies on pools without reflinks: a driver that is killed during a copy resumes it, unless the source has changed, and
//! removes copies that no request resumes.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use csi::*;
use tonic::Code;

use crate::support::place::Place;
use crate::support::{
    Client, Driver, GIB, MIB, block, eventually, from_volume, mount, names, one_pool, parameters, refused,
    volume,
};

/// How a pool allows copies.
const COPY: &str = r#","copy":true"#;
/// Bytes of what is copied: long enough to be cut short.
const LENGTH: u64 = 200 << 20;

fn request(id: &str, capability: VolumeCapability) -> CreateVolumeRequest {
    CreateVolumeRequest {
        parameters: parameters(&[("copy", "true")]),
        volume_content_source: from_volume("golden"),
        ..volume(id, 256 * MIB, capability)
    }
}

/// How far the copy in a file is, by what is written down at it.
fn so_far(file: &Path) -> u64 {
    let mut value = [0; 512];
    match rustix::fs::getxattr(file, "trusted.hpp-csi.copy", &mut value) {
        Ok(length) => {
            let text = std::str::from_utf8(&value[..length]).unwrap();
            text.rsplit(' ').next().unwrap().parse().unwrap()
        }
        Err(_) => 0,
    }
}

/// Starts a copy and kills the driver in the middle of the large file.
fn cut_short(place: &Place, driver: Driver, client: &Client, capability: VolumeCapability, file: &Path) {
    std::thread::scope(|scope| {
        let copy = scope.spawn(move || client.create_volume(request("v", capability)));
        eventually("much is copied", || so_far(file) >= 64 << 20);
        driver.kill();
        assert!(copy.join().unwrap().is_err());
    });
    assert!(!place.pool().join("v").exists());
}

fn fill(file: &Path) {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(file).unwrap();
    for at in (0..LENGTH).step_by(1 << 20) {
        file.write_all_at(&[7; 1 << 20], at).unwrap();
    }
    file.sync_all().unwrap();
}

/// Changes a byte that is copied already, so that one sees whether it is copied again.
fn spoil(file: &Path) {
    OpenOptions::new().write(true).open(file).unwrap().write_all_at(&[9], 1 << 20).unwrap();
}

fn byte(file: &Path) -> u8 {
    let mut byte = [0];
    File::open(file).unwrap().read_exact_at(&mut byte, 1 << 20).unwrap();
    byte[0]
}

fn golden_tree(place: &Place, client: &Client) -> PathBuf {
    client.create(volume("golden", 256 * MIB, mount()));
    let golden = place.pool().join("golden");
    fs::create_dir(golden.join("a")).unwrap();
    fs::write(golden.join("a/early"), "early").unwrap();
    fs::write(golden.join("a/gone"), "gone").unwrap();
    fs::hard_link(golden.join("a/early"), golden.join("a/linked")).unwrap();
    std::os::unix::fs::symlink("early", golden.join("a/link")).unwrap();
    // A source file that is not older than the copy may have changed.
    std::thread::sleep(std::time::Duration::from_secs(4));
    fill(&golden.join("disk.img"));
    golden
}

#[test]
fn a_tree_goes_on() {
    let place = Place::new("ext4", GIB);
    let (driver, client) = one_pool(&place, COPY);
    let golden = golden_tree(&place, &client);
    let begun = place.pool().join(".hpp-csi/tmp/node1/cv.v");
    cut_short(&place, driver, &client, mount(), &begun.join("disk.img"));
    let numbers =
        |folder: &Path| ["disk.img", "a/early"].map(|name| fs::metadata(folder.join(name)).unwrap().ino());
    let before = begun.join("a/early").exists().then(|| numbers(&begun));
    spoil(&begun.join("disk.img"));
    fs::remove_file(golden.join("a/gone")).unwrap();
    let (_driver, client) = one_pool(&place, COPY);
    assert_eq!(client.volumes(), ["golden"]);
    client.create(request("v", mount()));
    let v = place.pool().join("v");
    if let Some(before) = before {
        assert_eq!(numbers(&v), before, "what was copied is kept");
    }
    assert_eq!(names(&v.join("a")), ["early", "link", "linked"]);
    assert_eq!(fs::read_to_string(v.join("a/link")).unwrap(), "early");
    // A name that was put away may still be in the trash.
    eventually("two names", || fs::metadata(v.join("a/early")).unwrap().nlink() == 2);
    let (original, copy) =
        (fs::metadata(golden.join("disk.img")).unwrap(), fs::metadata(v.join("disk.img")).unwrap());
    assert_eq!((original.len(), original.mtime_nsec()), (copy.len(), copy.mtime_nsec()));
    assert_eq!(byte(&v.join("disk.img")), 9, "it went on where it was");
    for file in [v.join("disk.img"), v.clone()] {
        let mut value = [0; 512];
        let told = rustix::fs::getxattr(&file, "trusted.hpp-csi.copy", &mut value);
        assert!(told.is_err(), "no trace of it stays");
    }
    assert_eq!(names(begun.parent().unwrap()), [] as [String; 0]);
}

#[test]
fn a_device_goes_on_unless_its_source_has_changed() {
    for changed in [false, true] {
        let place = Place::new("ext4", GIB);
        let (driver, client) = one_pool(&place, COPY);
        client.create(volume("golden", 256 * MIB, block()));
        let golden = place.pool().join(".hpp-csi/block/golden");
        fill(&golden);
        let begun = place.pool().join(".hpp-csi/tmp/node1/cv.v");
        cut_short(&place, driver, &client, block(), &begun);
        spoil(&begun);
        if changed {
            OpenOptions::new().write(true).open(&golden).unwrap().write_all_at(&[5], 0).unwrap();
        }
        let (_driver, client) = one_pool(&place, COPY);
        client.create(request("v", block()));
        let v = place.pool().join(".hpp-csi/block/v");
        assert_eq!(byte(&v), if changed { 7 } else { 9 });
        assert_eq!(fs::metadata(v).unwrap().len(), 256 << 20);
    }
}

#[test]
fn an_abandoned_copy_is_removed() {
    let place = Place::new("ext4", GIB);
    let (driver, client) = one_pool(&place, COPY);
    client.create(volume("golden", 256 * MIB, block()));
    fill(&place.pool().join(".hpp-csi/block/golden"));
    let begun = place.pool().join(".hpp-csi/tmp/node1/cv.v");
    cut_short(&place, driver, &client, block(), &begun);
    let (driver, client) = one_pool(&place, COPY);
    assert!(begun.exists(), "it waits for the next try");
    client.delete("v");
    assert!(!begun.exists());
    cut_short(&place, driver, &client, block(), &begun);
    // Another source is requested, and then none.
    let (driver, client) = one_pool(&place, COPY);
    client.create(volume("other", 256 * MIB, block()));
    let other = CreateVolumeRequest { volume_content_source: from_volume("other"), ..request("v", block()) };
    client.create(other);
    assert_eq!(byte(&place.pool().join(".hpp-csi/block/v")), 0);
    client.delete("v");
    cut_short(&place, driver, &client, block(), &begun);
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(8 * 24 * 3600);
    OpenOptions::new().write(true).open(&begun).unwrap().set_modified(old).unwrap();
    let (_driver, client) = one_pool(&place, COPY);
    for id in ["golden", "other"] {
        client.delete(id);
    }
    place.is_clean();
    let request = CreateVolumeRequest { parameters: parameters(&[]), ..request("v", block()) };
    assert_eq!(refused(client.create_volume(request)).0, Code::NotFound);
}
