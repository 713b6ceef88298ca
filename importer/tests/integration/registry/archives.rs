//! `oci-archive:` files: images in a tar, and damaged ones.

use std::fs;
use std::path::PathBuf;

use disk_image::Stop;
use importer::source::oci_archive;
use importer::{Error, Kind};

use crate::registry::pull::read;
use crate::support::errors::chain;
use sources::images::{GZIP, Layer, MIB, PLAIN, ZSTD, archive, disk, tar};

fn pull_archive(archive: impl Into<PathBuf>) -> Result<Vec<u8>, Error> {
    read(&oci_archive::open(&oci_archive::Options::new(archive), &Stop::new())?)
}

#[test]
fn archives_hold_images() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let raw = disk(3 * MIB, 6);
    for (name, kind) in [("gz", GZIP), ("zst", ZSTD), ("plain", PLAIN)] {
        fs::write(path(name), archive(&[("v1", Layer::new(kind, &[("disk/a", &raw)]))])).unwrap();
        assert!(pull_archive(path(name)).unwrap() == raw, "{name}");
        assert!(pull_archive(format!("{}:v1", path(name).display())).unwrap() == raw, "{name}");
    }
    let fails = |archive: PathBuf, kind: Kind, words: &str| {
        let error = pull_archive(archive).unwrap_err();
        assert!(
            error.kind() == kind && chain(&error).contains(words),
            "{:?} {}",
            error.kind(),
            chain(&error)
        );
        chain(&error)
    };
    fails(format!("{}:v2", path("gz").display()).into(), Kind::Refused, "no image called v2");
    let two = archive(&[
        ("a", Layer::new(GZIP, &[("disk/a", b"1")])),
        ("b", Layer::new(GZIP, &[("disk/b", b"2")])),
    ]);
    fs::write(path("two:odd"), &two).unwrap();
    assert_eq!(
        pull_archive(format!("{}:b", path("two:odd").display())).err().map(|e| e.kind()),
        Some(Kind::Connect)
    );
    fs::rename(path("two:odd"), path("two")).unwrap();
    assert_eq!(pull_archive(format!("{}:b", path("two").display())).unwrap(), b"2");
    fails(path("two"), Kind::Refused, "the image is not there for");

    // Damage: every byte of a small archive, flipped, gives the disk or an error, and never another disk.
    let small = archive(&[("v1", Layer::new(PLAIN, &[("disk/a", b"0123456789abcdef")]))]);
    for at in (0..small.len()).step_by(7) {
        let mut bytes = small.clone();
        bytes[at] ^= 0x21;
        fs::write(path("bad"), &bytes).unwrap();
        if let Ok(disk) = pull_archive(path("bad")) {
            assert_eq!(disk, b"0123456789abcdef", "byte {at}");
        }
    }
    for at in (0..small.len()).step_by(97) {
        fs::write(path("bad"), &small[..at]).unwrap();
        if let Ok(disk) = pull_archive(path("bad")) {
            assert_eq!(disk, b"0123456789abcdef", "cut at {at}");
        }
    }
    fs::write(path("bad"), tar(&[("manifest.json", b"[]")])).unwrap();
    let told = fails(path("bad"), Kind::Refused, "no index.json");
    assert!(told.starts_with("failed to pull image oci-archive:"), "{told}");
    fs::write(path("bad"), Layer::of_tar(GZIP, &two).blob).unwrap();
    fails(path("bad"), Kind::Refused, "gunzip");
    fails(path("missing"), Kind::Connect, "cannot open");
}
