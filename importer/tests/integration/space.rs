//! Targets that are too small: reported before anything is written, or found out midway. The strings are those that
//! controllers match on, and a target that has grown succeeds, resuming the import.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use places::guest::Dice;
use places::{Loop, Mount, output, run};

use crate::support::server::{Served, Server};
use crate::support::{self, MIB, Pod, assert_exit, import, names, report, sha256, text};

/// A raw image of bytes that do not compress, in a folder that is served.
struct Image {
    folder: tempfile::TempDir,
    server: Server,
    sha256: String,
    size: u64,
}

impl Image {
    fn new(size: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut file = File::create(folder.path().join("image")).unwrap();
        let block = Dice(size).bytes(1 << 20);
        for number in 0..size / MIB {
            // Every block is different, so that a block at the wrong place shows.
            file.write_all(&number.to_le_bytes()).unwrap();
            file.write_all(&block[8..]).unwrap();
        }
        let sha256 = sha256(&folder.path().join("image"));
        let server = Server::start(folder.path());
        Self { folder, server, sha256, size }
    }

    fn path(&self) -> String {
        self.folder.path().join("image").to_str().unwrap().to_owned()
    }

    fn url(&self, served: Served) -> String {
        self.server.url(served, "image")
    }
}

/// Takes all the room that is left in `folder`.
fn fill(folder: &Path) {
    use rustix::fs::{FallocateFlags, fallocate};
    let file = File::create(folder.join("filler")).unwrap();
    let mut end = 0;
    for len in [16 << 20, 1 << 20, 4096] {
        while fallocate(&file, FallocateFlags::empty(), end, len).is_ok() {
            end += len;
        }
    }
    file.sync_all().unwrap();
}

/// "virtual image size … is larger than …", whole, with the room it names.
#[track_caller]
fn assert_larger(message: &str, size: u64, room: std::ops::RangeInclusive<u64>) -> u64 {
    let start = format!(
        "Unable to process data: virtual image size {size} is larger than the reported available storage "
    );
    let rest = message.strip_prefix(&start).unwrap_or_else(|| panic!("{message}"));
    let number = rest.strip_suffix(". A larger PVC is required").unwrap_or_else(|| panic!("{message}"));
    let told: u64 = number.parse().unwrap();
    assert!(room.contains(&told), "{told} is not in {room:?}");
    told
}

#[test]
fn a_filesystem_that_is_too_small_is_reported_before_anything_is_written() {
    let image = Image::new(40 * MIB);
    for (kind, small, grown) in [("ext4", 24 * MIB, 96 * MIB), ("xfs", 320 * MIB, 420 * MIB)] {
        let mount = Mount::on_loop(kind, small);
        let filler = mount.path().join("filler");
        if kind == "xfs" {
            // XFS is never this small: most of it is taken.
            let fs = rustix::fs::statvfs(mount.path()).unwrap();
            let taken = (fs.f_bavail * fs.f_frsize - 24 * MIB).to_string();
            run("fallocate", &["-l", &taken, filler.to_str().unwrap()]);
        }
        let before = names(mount.path());
        let pod = Pod::with_volume(mount.path());
        let ran = output(&mut pod.command(&image.url(Served::Ranges), "64Mi")).unwrap();
        assert_exit(&ran, 1, kind);
        let room = assert_larger(&pod.message(), image.size, 8 * MIB..=39 * MIB);
        assert_eq!(names(mount.path()), before, "{kind}: nothing is written");
        mount.grow(grown);
        let ran = output(&mut pod.command(&image.url(Served::Ranges), "64Mi")).unwrap();
        assert_exit(&ran, 0, kind);
        assert_eq!(pod.message(), r#"{"message":"Import Complete"}"#);
        let disk = mount.path().join("disk.img");
        // As large as was asked for, or as there is room for.
        assert!((image.size..=64 * MIB).contains(&fs::metadata(&disk).unwrap().len()));
        fs::OpenOptions::new().write(true).open(&disk).unwrap().set_len(image.size).unwrap();
        assert_eq!(sha256(&disk), image.sha256);
        println!("{kind}: too small by {} MiB is told; grown, it works", (image.size - room) / MIB);
    }
}

#[test]
fn a_request_and_a_device_that_are_too_small() {
    let image = Image::new(4 * MIB);
    let pod = Pod::new();
    let ran = output(&mut pod.command(&image.url(Served::Whole), "3Mi")).unwrap();
    assert_exit(&ran, 1, "the request");
    assert_larger(&pod.message(), image.size, 3 * MIB..=3 * MIB);
    assert!(names(&pod.path("data")).is_empty());

    let device = Loop::new(4 * MIB - 512, 512);
    let file = fs::OpenOptions::new().write(true).open(&device.device).unwrap();
    file.write_all_at(&vec![0xa5; (4 * MIB - 512) as usize], 0).unwrap();
    drop(file);
    let pod = Pod::new();
    std::os::unix::fs::symlink(&device.device, pod.path("dev/cdi-block-volume")).unwrap();
    let ran = output(&mut pod.command(&image.url(Served::Ranges), "64Mi")).unwrap();
    assert_exit(&ran, 1, "the device");
    assert_larger(&pod.message(), image.size, 4 * MIB - 512..=4 * MIB - 512);
    assert!(fs::read(&device.device).unwrap().iter().all(|&byte| byte == 0xa5), "nothing is written");

    fs::OpenOptions::new().write(true).open(&device.backing).unwrap().set_len(5 * MIB).unwrap();
    run("losetup", &["-c", device.device.to_str().unwrap()]);
    let ran = output(&mut pod.command(&image.url(Served::Ranges), "64Mi")).unwrap();
    assert_exit(&ran, 0, "the grown device");
    let disk = fs::read(&device.device).unwrap();
    assert!(disk[..image.size as usize] == fs::read(image.path()).unwrap());
}

/// Another process takes the space during the import, by the environment contract.
#[test]
fn a_disk_that_fills_up_midway() {
    let image = Image::new(64 * MIB);
    for (kind, size, grown) in [("ext4", 128 * MIB, 256 * MIB), ("xfs", 320 * MIB, 448 * MIB)] {
        let mount = Mount::on_loop(kind, size);
        let pod = Pod::with_volume(mount.path());
        let mut importing = pod
            .command(&image.url(Served::Slowly), "64Mi")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let journal = mount.path().join(".disk.img.import-journal");
        let deadline = Instant::now() + Duration::from_secs(60);
        while fs::read_to_string(&journal).unwrap_or_default().lines().count() < 2 {
            assert!(Instant::now() < deadline, "{kind}: nothing is journaled");
            assert!(importing.try_wait().unwrap().is_none(), "{kind}: it ended before the disk was full");
            std::thread::sleep(Duration::from_millis(10));
        }
        fill(mount.path());
        let ended = importing.wait_with_output().unwrap();
        assert_exit(&ended, 1, kind);
        let message = pod.message();
        assert!(
            message.starts_with("Unable to process data: ") && message.contains("no space left on device"),
            "{kind}: {message}"
        );
        assert!(message.lines().count() == 1 && message.len() <= 4096, "{kind}: {message}");
        assert_eq!(names(mount.path()), [".disk.img.import-journal", "disk.img", "filler"], "{kind}");
        // Without more room it fails again, and loses nothing by that.
        let again = output(&mut pod.command(&image.url(Served::Slowly), "64Mi")).unwrap();
        assert_exit(&again, 1, kind);
        let told = pod.message();
        assert!(
            told.contains("no space left on device")
                || told.contains("is larger than the reported available"),
            "{kind}: {told}"
        );
        mount.grow(grown);
        let retried = output(&mut pod.command(&image.url(Served::Slowly), "64Mi")).unwrap();
        assert_exit(&retried, 0, kind);
        let log = text(&retried.stderr);
        let resumed = log
            .lines()
            .find(|line| line.contains("going on with an interrupted import"))
            .unwrap_or_else(|| panic!("{kind}: {log}"));
        assert_eq!(sha256(&mount.path().join("disk.img")), image.sha256, "{kind}");
        assert_eq!(names(mount.path()), ["disk.img", "filler"], "{kind}");
        println!("{kind}: \"{message}\"; after growing: {}", resumed.trim());
    }
}

/// A thin disk that outgrows its filesystem, by command line.
#[test]
fn a_thin_disk_outgrows_its_filesystem() {
    let image = Image::new(160 * MIB);
    let mount = Mount::on_loop("ext4", 128 * MIB);
    let target = mount.path().join("disk");
    // Slowly, so that some of it is synced and journaled before the disk is full.
    let arguments = [&image.url(Served::Slowly), target.to_str().unwrap(), "--output", "json"];
    let ran = import(&arguments);
    assert_exit(&ran, 5, "full");
    // The disk's write fails with the words of a pod's message, the journal's with those of the system.
    let said = text(&ran.stderr).to_lowercase();
    assert!(said.contains("the disk may grow to") && said.contains("no space left on device"), "{said}");
    assert_eq!(report(&ran)["kind"], "no-room");
    mount.grow(256 * MIB);
    let ran = import(&arguments);
    assert_exit(&ran, 0, "grown");
    let resumed = report(&ran)["bytes_resumed"].as_u64().unwrap();
    assert!(resumed > 0, "nothing was kept");
    assert_eq!(sha256(&target), image.sha256);
    assert_eq!(names(mount.path()), ["disk"]);
    // With all blocks reserved it is reported before.
    let tight = Mount::on_loop("ext4", 64 * MIB);
    let target = tight.path().join("disk");
    let ran = import(&[&image.path(), target.to_str().unwrap(), "--preallocate"]);
    assert_exit(&ran, 5, "preallocated");
    assert!(text(&ran.stderr).contains(&format!(
        "virtual image size {} is larger than the reported available storage ",
        image.size
    )));
    assert!(names(tight.path()).is_empty());
    println!("{} of {} MiB were kept and gone on with", resumed / MIB, image.size / MIB);
}

/// Data written before the disk was full is kept, synced or not by then, and is there the next time.
#[test]
fn data_written_before_the_disk_was_full_is_kept() {
    let image = Image::new(160 * MIB);
    for engine in ["io_uring", "pwrite"] {
        let mount = Mount::on_loop("ext4", 128 * MIB);
        let target = mount.path().join("disk");
        // A local file is not journaled for 128 MiB or a second: nothing would be, without the end.
        let arguments = [&image.path(), target.to_str().unwrap(), "--engine", engine, "--output", "json"];
        let ran = import(&arguments);
        assert_exit(&ran, 5, engine);
        let written = fs::metadata(&target).unwrap().blocks() * 512;
        mount.grow(256 * MIB);
        let ran = import(&arguments);
        assert_exit(&ran, 0, engine);
        let resumed = report(&ran)["bytes_resumed"].as_u64().unwrap();
        assert_eq!(sha256(&target), image.sha256, "{engine}");
        // Less what was in flight.
        assert!(resumed + 24 * MIB >= written, "{engine}: {resumed} of {written} were kept");
        println!("{engine}: {} of {} MiB written were kept", resumed / MIB, written / MIB);
    }
}

/// A quota is in no figure of the filesystem's: it is met midway only.
#[test]
fn a_quota_that_is_exceeded() {
    let image = Image::new(48 * MIB);
    let mount = Mount::on_loop("btrfs", 512 * MIB);
    let folder = mount.path().to_str().unwrap();
    run("btrfs", &["quota", "enable", folder]);
    run("btrfs", &["qgroup", "limit", "24M", folder]);
    let pod = Pod::with_volume(mount.path());
    let ran = output(&mut pod.command(&image.url(Served::Ranges), "64Mi")).unwrap();
    assert_exit(&ran, 1, "quota");
    let message = pod.message();
    assert!(
        message.starts_with("Unable to process data: ") && message.contains("disk quota exceeded"),
        "{message}"
    );
    run("btrfs", &["qgroup", "limit", "none", folder]);
    let ran = output(&mut pod.command(&image.url(Served::Ranges), "64Mi")).unwrap();
    assert_exit(&ran, 0, "without the quota");
    let disk = mount.path().join("disk.img");
    fs::OpenOptions::new().write(true).open(&disk).unwrap().set_len(image.size).unwrap();
    assert_eq!(sha256(&disk), image.sha256);
    println!("btrfs: \"{message}\"");
}

/// SIGXFSZ would end the process where it stands.
#[test]
fn a_file_size_limit_is_reported() {
    let image = Image::new(4 * MIB);
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("disk");
    let target = target.to_str().unwrap();
    let known = image.path();
    let program = support::importer().get_program().to_str().unwrap().to_owned();
    // The length is set before anything is written; of a stream it is not known.
    for script in ["$0 \"$1\" \"$2\" \"$3\"", "cat \"$2\" | $0 \"$1\" - \"$3\""] {
        let mut limited = std::process::Command::new("sh");
        limited.args(["-c", script, "prlimit --fsize=1048576 --core=0 --", &program, &known, target]);
        let ran = output(&mut limited).unwrap();
        assert_exit(&ran, 5, script);
        assert!(text(&ran.stderr).contains("or a limit"), "{}", text(&ran.stderr));
    }
    assert_exit(&import(&[&known, target]), 0, "without the limit");
    assert_eq!(sha256(Path::new(target)), image.sha256);
    assert_eq!(names(folder.path()), ["disk"]);
}
