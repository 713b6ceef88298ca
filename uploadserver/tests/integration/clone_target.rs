//! Clones and archives: what another volume's pod sends, and tar files, into folders and onto devices.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use places::guest::Dice;
use places::{Loop, run};

use crate::support::{MIB, Pod, Setup, sha256};

const UPLOAD: &str = "/v1beta1/upload";
const FILESYSTEM: &str = "x-cdi-content-type: filesystem-clone";
const DEVICE: &str = "x-cdi-content-type: blockdevice-clone";
const CLONE_COMPLETE: &str = r#"{"preallocationApplied":false,"message":"Clone Complete"}"#;

fn snappy(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = snap::write::FrameEncoder::new(Vec::new());
    encoder.write_all(bytes).unwrap();
    encoder.into_inner().unwrap()
}

/// A Filesystem volume as a tar archive, sparse files as such, and its folder.
fn volume(folder: &Path) -> Vec<u8> {
    let from = folder.join("volume");
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::write(from.join("a-first-file"), vec![1; 100_000]).unwrap();
    let disk = File::create(from.join("disk.img")).unwrap();
    disk.set_len(16 * MIB).unwrap();
    for at in [0, 3 * MIB, 9 * MIB + 512, 15 * MIB] {
        disk.write_all_at(&Dice(at).bytes(70_000), at).unwrap();
    }
    // An image on the source disk is content, not a format to convert.
    disk.write_all_at(b"QFI\xfb\0\0\0\x03", 0).unwrap();
    fs::write(from.join("sub/other"), "text").unwrap();
    fs::set_permissions(from.join("sub/other"), fs::Permissions::from_mode(0o640)).unwrap();
    let tar = folder.join("tar");
    run("tar", &["-C", from.to_str().unwrap(), "-cSf", tar.to_str().unwrap(), "."]);
    let bytes = fs::read(tar).unwrap();
    assert!(bytes.len() < 1 << 20, "holes are not in the archive");
    bytes
}

#[test]
fn a_filesystem_into_a_filesystem() {
    let folder = tempfile::tempdir().unwrap();
    let stream = snappy(&volume(folder.path()));
    let mut pod = Pod::new();
    // Leftovers of an earlier attempt.
    fs::create_dir(pod.path("data/old")).unwrap();
    fs::write(pod.path("data/old/file"), "of before").unwrap();
    let answer = pod.client().chunked(UPLOAD, &[FILESYSTEM], &stream, 100_000);
    assert_eq!(answer.status, 200, "{answer:?}\n{}", pod.log());
    assert!(pod.end().success());
    assert_eq!(pod.message(), CLONE_COMPLETE);
    let data = pod.path("data");
    run("diff", &["-r", folder.path().join("volume").to_str().unwrap(), data.to_str().unwrap()]);
    assert_eq!(fs::metadata(data.join("sub/other")).unwrap().permissions().mode() & 0o777, 0o640);
    let disk = fs::metadata(data.join("disk.img")).unwrap();
    assert!(disk.len() == 16 * MIB && disk.blocks() * 512 < 2 * MIB, "{} blocks", disk.blocks());
}

#[test]
fn a_filesystems_disk_onto_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let stream = snappy(&volume(folder.path()));
    let device = Loop::new(17 * MIB, 512);
    fs::write(&device.device, vec![0xaa; 17 << 20]).unwrap();
    let mut pod = Pod::start(&Setup { device: Some(&device.device), ..Setup::default() });
    let answer = pod.client().request("POST", UPLOAD, &[FILESYSTEM], &stream);
    assert_eq!(answer.status, 200, "{answer:?}\n{}", pod.log());
    assert!(pod.end().success());
    assert_eq!(pod.message(), CLONE_COMPLETE);
    let disk = folder.path().join("volume/disk.img");
    assert_eq!(sha256(&device.device, 16 * MIB), (sha256(&disk, 16 * MIB).0, true));
    // One without a disk.
    let mut pod = Pod::start(&Setup { device: Some(&device.device), ..Setup::default() });
    fs::remove_file(disk).unwrap();
    let from = folder.path().join("volume");
    let tar = folder.path().join("tar");
    run("tar", &["-C", from.to_str().unwrap(), "-cf", tar.to_str().unwrap(), "."]);
    let answer = pod.client().request("POST", UPLOAD, &[FILESYSTEM], &snappy(&fs::read(tar).unwrap()));
    assert_eq!(answer.status, 500, "{answer:?}");
    assert!(answer.body.contains("disk.img") && pod.runs(), "{answer:?}");
}

#[test]
fn a_device_into_both() {
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = Dice(5).bytes(3 << 20);
    bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    bytes.resize(8 << 20, 0);
    let raw = folder.path().join("raw");
    fs::write(&raw, &bytes).unwrap();
    let device = Loop::new(9 * MIB, 512);
    fs::write(&device.device, vec![0xaa; 9 << 20]).unwrap();
    for block in [false, true] {
        let target = block.then_some(device.device.as_path());
        let mut pod = Pod::start(&Setup { device: target, ..Setup::default() });
        let answer = pod.client().chunked(UPLOAD, &[DEVICE], &snappy(&bytes), 65_000);
        assert_eq!(answer.status, 200, "{answer:?}\n{}", pod.log());
        assert!(pod.end().success());
        assert_eq!(pod.message(), CLONE_COMPLETE);
        let disk = target.map_or_else(|| pod.disk(), Path::to_owned);
        assert_eq!(sha256(&disk, 8 * MIB), (sha256(&raw, 8 * MIB).0, true), "block: {block}");
    }
}

/// An empty device was reported as a complete clone.
#[test]
fn a_device_that_is_empty_or_not_of_the_announced_size_is_no_clone() {
    let mut pod = Pod::new();
    for (bytes, more) in [
        (&b""[..], None),
        (b"", Some("ferrovirt-clone-size: 0")),
        (b"", Some("ferrovirt-clone-size: 4096")),
        (&[1; 4096], Some("ferrovirt-clone-size: 8192")),
        (&[1; 8192], Some("ferrovirt-clone-size: 4096")),
        (&[1; 4096], Some("ferrovirt-clone-size: many")),
        (&[1; 4096], Some("ferrovirt-clone-size: 4096\r\nferrovirt-clone-size: 8192")),
    ] {
        let headers: Vec<&str> = [DEVICE].into_iter().chain(more).collect();
        let answer = pod.client().request("POST", UPLOAD, &headers, &snappy(bytes));
        assert!(answer.status >= 400, "{} bytes, {more:?}: {answer:?}", bytes.len());
        assert!(answer.body.contains("clone"), "{answer:?}");
        assert!(pod.runs() && !pod.message().contains("Complete"), "{more:?}");
    }
    let bytes = Dice(7).bytes(1 << 20);
    let size = "ferrovirt-clone-size: 1048576";
    let answer = pod.client().request("POST", UPLOAD, &[DEVICE, size], &snappy(&bytes));
    assert_eq!(answer.status, 200, "{answer:?}\n{}", pod.log());
    assert!(pod.end().success());
    assert_eq!(pod.message(), CLONE_COMPLETE);
}

#[test]
fn a_clone_that_is_damaged_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let stream = snappy(&volume(folder.path()));
    let mut flipped = stream.clone();
    flipped[stream.len() / 2] ^= 1;
    let mut pod = Pod::new();
    for (what, bytes) in [("cut", &stream[..stream.len() / 2]), ("flipped", &flipped)] {
        for kind in [FILESYSTEM, DEVICE] {
            let answer = pod.client().request("POST", UPLOAD, &[kind], bytes);
            // A device's stream that ends between two frames has no mark of its end.
            if (what, kind) != ("cut", DEVICE) || answer.status != 200 {
                assert_eq!(answer.status, 500, "{what} {kind}: {answer:?}");
                assert!(pod.runs() && pod.message().is_empty());
            }
        }
    }
    assert_eq!(pod.client().request("POST", UPLOAD, &[FILESYSTEM], &stream).status, 200, "{}", pod.log());
    assert!(pod.end().success());
}

/// A sender that fails between two members ends the stream there.
#[test]
fn a_clone_without_its_end_mark_is_none() {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in [("disk.img", vec![7; 1 << 20]), ("other", vec![8; 512])] {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, &bytes[..]).unwrap();
    }
    let whole = builder.into_inner().unwrap();
    let device = Loop::new(2 * MIB, 512);
    for block in [false, true] {
        let target = block.then_some(device.device.as_path());
        let mut pod = Pod::start(&Setup { device: target, ..Setup::default() });
        for (cut, last) in [(1024, "other"), (1024 + 1024, "disk.img")] {
            let stream = snappy(&whole[..whole.len() - cut]);
            let answer = pod.client().request("POST", UPLOAD, &[FILESYSTEM], &stream);
            assert_eq!(answer.status, 500, "block: {block}, {last}: {answer:?}");
            assert!(answer.body.contains(&format!("behind {last} without an end mark")), "{answer:?}");
            assert!(pod.runs() && pod.message().is_empty(), "block: {block}, {last}");
            assert!(block || !pod.path("data/disk.img").exists(), "{last}: a part of the clone is left");
        }
        let answer = pod.client().request("POST", UPLOAD, &[FILESYSTEM], &snappy(&whole));
        assert_eq!(answer.status, 200, "block: {block}: {answer:?}\n{}", pod.log());
        assert!(pod.end().success());
        assert_eq!(pod.message(), CLONE_COMPLETE);
    }
}

#[test]
fn an_archive_that_failed_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let tar = volume(folder.path());
    let path = "/v1beta1/upload-archive";
    let mut pod = Pod::new();
    let data = pod.path("data");
    fs::create_dir(data.join("lost+found")).unwrap();
    let names = || fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    // Cut by its sender, and by its connection.
    let answer = pod.client().request("POST", path, &[], &tar[..tar.len() / 2]);
    assert_eq!(answer.status, 500, "{answer:?}");
    assert_eq!(names(), ["lost+found"]);
    let mut client = pod.client();
    client.head("POST", path, &[format!("Content-Length: {}", tar.len())]).unwrap();
    client.send(&tar[..tar.len() / 2]).unwrap();
    pod.wait_for("something is unpacked", || names().len() > 1);
    drop(client);
    pod.wait_for("it is gone", || names() == ["lost+found"]);
    // Files of an earlier owner stay.
    fs::write(data.join("before"), "x").unwrap();
    assert_eq!(pod.client().request("POST", path, &[], &tar[..tar.len() / 2]).status, 500);
    assert!(data.join("before").exists());
    assert_eq!(pod.client().request("POST", path, &[], &tar).status, 200, "{}", pod.log());
    pod.assert_uploaded();
    assert_eq!(fs::read_to_string(data.join("before")).unwrap(), "x");
    run(
        "cmp",
        &[folder.path().join("volume/disk.img").to_str().unwrap(), data.join("disk.img").to_str().unwrap()],
    );
}

#[test]
fn archives_go_into_folders_only() {
    let folder = tempfile::tempdir().unwrap();
    let tar = volume(folder.path());
    let packed = folder.path().join("packed");
    for command in ["cat", "gzip -c", "xz -c", "zstd -q -c"] {
        run("sh", &["-c", &format!("{command} < {0}/tar > {0}/packed", folder.path().display())]);
        let mut pod = Pod::new();
        let path = "/v1beta1/upload-archive";
        let answer = pod.client().request("POST", path, &[], &fs::read(&packed).unwrap());
        assert_eq!(answer.status, 200, "{command}: {answer:?}\n{}", pod.log());
        pod.assert_uploaded();
        let (from, data) = (folder.path().join("volume"), pod.path("data"));
        run("diff", &["-r", from.to_str().unwrap(), data.to_str().unwrap()]);
    }
    let device = Loop::new(MIB, 512);
    let mut pod = Pod::start(&Setup { device: Some(&device.device), ..Setup::default() });
    let answer = pod.client().request("POST", "/v1beta1/upload-archive", &[], &tar);
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.body.contains("Filesystem volume") && pod.runs(), "{answer:?}");
    // A member that would lead out.
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.as_old_mut().name[..9].copy_from_slice(b"../escape");
    header.set_size(0);
    header.set_mode(0o644);
    header.set_mtime(1);
    header.set_cksum();
    builder.append(&header, &b""[..]).unwrap();
    let mut pod = Pod::new();
    let hostile = builder.into_inner().unwrap();
    let answer = pod.client().request("POST", "/v1beta1/upload-archive", &[], &hostile);
    assert_eq!(answer.status, 500, "{answer:?}");
    assert!(answer.body.contains("lead out") && pod.runs() && !pod.path("escape").exists());
}
