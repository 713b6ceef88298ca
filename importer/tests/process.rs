//! The program from outside: command line and environment contract, on raw disks (formats have their own tests).

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use support::{count, importer, text};

const MIB: usize = 1 << 20;

#[track_caller]
fn assert_exit(output: &Output, code: i32) {
    support::assert_exit(output, code, "");
}

fn run(arguments: &[&str]) -> Output {
    importer().args(arguments).output().unwrap()
}

/// Data, zeroes, data, and an end that is no whole page.
fn disk_bytes(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut state = 1u64;
    for (i, byte) in bytes.iter_mut().enumerate() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if (i / MIB) % 3 != 1 {
            *byte = u8::try_from(state >> 56).unwrap();
        }
    }
    bytes
}

fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

struct Place {
    folder: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        fs::write(self.path(name), bytes).unwrap();
        self.text(name)
    }

    /// Names in the folder, sorted.
    fn names(&self, folder: &str) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.path(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// A loop device on a file in `place`; gone with this value.
struct Loop {
    path: PathBuf,
}

impl Loop {
    fn new(place: &Place, name: &str, len: u64, fill: u8) -> Self {
        let backing = place.path(name);
        let mut file = File::create(&backing).unwrap();
        for _ in 0..len / MIB as u64 {
            file.write_all(&vec![fill; MIB]).unwrap();
        }
        file.set_len(len).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&backing).output();
        let output = output.expect("losetup is missing: run make deps");
        assert!(output.status.success(), "losetup: {}", text(&output.stderr));
        Self { path: PathBuf::from(text(&output.stdout).trim()) }
    }

    fn text(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        drop(Command::new("losetup").arg("--detach").arg(&self.path).status());
    }
}

#[test]
fn a_raw_file_becomes_a_disk() {
    let place = Place::new();
    for len in [0, 1, 511, 512, 513, 4096, 5 * MIB + 513, 9 * MIB] {
        let bytes = disk_bytes(len);
        let source = place.write("image", &bytes);
        let target = place.text("disk");
        let output = run(&[&source, &target, "--output", "json", "--force"]);
        assert_exit(&output, 0);
        assert_eq!(fs::read(&target).unwrap(), bytes, "{len} bytes");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["virtual_size"], len);
        for key in ["bytes_read", "bytes_written", "zeroes_skipped", "engine", "seconds"] {
            assert!(!report[key].is_null(), "{key} is missing in {report}");
        }
        assert_eq!(place.names("."), ["disk", "image"]);
    }
}

#[test]
fn zeroes_stay_holes() {
    let place = Place::new();
    let bytes = disk_bytes(12 * MIB);
    let source = place.write("image", &bytes);
    // Through a pipe, so that nothing can be cloned.
    let target = place.text("disk");
    let output = importer().args(["-", &target]).stdin(piped(Path::new(&source))).output().unwrap();
    assert_exit(&output, 0);
    assert_eq!(fs::read(&target).unwrap(), bytes);
    let allocated = fs::metadata(&target).unwrap().blocks() * 512;
    assert!(allocated <= 8 * MIB as u64 + 65536, "{allocated} bytes are allocated");
}

/// A pipe that gives the bytes of `path`.
fn piped(path: &Path) -> Stdio {
    let mut child = Command::new("cat").arg(path).stdout(Stdio::piped()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    std::thread::spawn(move || child.wait());
    Stdio::from(out)
}

#[test]
fn the_size_that_was_asked_for() {
    let place = Place::new();
    let bytes = disk_bytes(2 * MIB + 513);
    let source = place.write("image", &bytes);
    let target = place.text("disk");
    let output = run(&[&source, &target, "--size", "5Mi"]);
    assert_exit(&output, 0);
    let disk = fs::read(&target).unwrap();
    assert_eq!(disk.len(), 5 * MIB);
    assert!(disk[..bytes.len()] == bytes && disk[bytes.len()..].iter().all(|&b| b == 0));

    let output = run(&[&source, &place.text("small"), "--size", "1Mi"]);
    assert_exit(&output, 5);
    let expected = format!(
        "virtual image size {} is larger than the reported available storage 1048576; give a larger --size, or leave it out",
        bytes.len()
    );
    assert!(text(&output.stderr).contains(&expected), "{}", text(&output.stderr));
    assert_eq!(place.names("."), ["disk", "image"], "nothing is left of a refused import");

    // A stream's size is known at its end only.
    let output = importer()
        .args(["-", &place.text("small"), "--size", "1Mi"])
        .stdin(piped(Path::new(&source)))
        .output()
        .unwrap();
    assert_exit(&output, 5);
    assert!(
        text(&output.stderr).contains("is larger than the reported available"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn preallocated_disks_have_their_blocks() {
    let place = Place::new();
    let source = place.write("image", &vec![0; 4 * MIB]);
    let target = place.text("disk");
    assert_exit(&run(&[&source, &target, "--preallocate", "--size", "8Mi"]), 0);
    assert!(fs::metadata(&target).unwrap().blocks() * 512 >= 8 * MIB as u64);
    assert_exit(&run(&["blank", &place.text("blank"), "--preallocate", "--size", "3Mi"]), 0);
    let meta = fs::metadata(place.path("blank")).unwrap();
    assert!(meta.len() == 3 * MIB as u64 && meta.blocks() * 512 >= 3 * MIB as u64);
}

#[test]
fn empty_disks() {
    let place = Place::new();
    assert_exit(&run(&["blank", &place.text("blank"), "--size", "1Gi"]), 0);
    let meta = fs::metadata(place.path("blank")).unwrap();
    assert_eq!(meta.len(), 1 << 30);
    assert!(meta.blocks() < 1000);
    assert_exit(&run(&["blank", &place.text("other")]), 2);
    assert_eq!(place.names("."), ["blank"]);
}

#[test]
fn what_exists_is_kept_without_force() {
    let place = Place::new();
    let source = place.write("image", &disk_bytes(MIB));
    let target = place.write("disk", b"precious");
    let output = run(&[&source, &target]);
    assert_exit(&output, 7);
    assert!(text(&output.stderr).contains("--force"), "{}", text(&output.stderr));
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    assert_eq!(place.names("."), ["disk", "image"]);
    let output = run(&["blank", &target, "--size", "1Mi"]);
    assert_exit(&output, 7);
    assert_eq!(fs::read(&target).unwrap(), b"precious");
    assert_exit(&run(&[&source, &target, "--force"]), 0);
    assert_eq!(fs::read(&target).unwrap(), disk_bytes(MIB));

    std::os::unix::fs::symlink(&target, place.path("link")).unwrap();
    assert_exit(&run(&[&source, &place.text("link"), "--force"]), 7);
    assert_exit(&run(&[&source, place.folder.path().to_str().unwrap()]), 7);
    assert_exit(&run(&[&source, &place.text("no/disk")]), 7);
}

#[test]
fn checksums_are_over_the_wire() {
    let place = Place::new();
    let bytes = disk_bytes(3 * MIB + 7);
    let source = place.write("image", &bytes);
    let good = format!("sha256:{}", checksum(&bytes));
    let target = place.text("disk");
    assert_exit(&run(&[&source, &target, "--checksum", &good]), 0);
    assert_eq!(fs::read(&target).unwrap(), bytes);

    let packed = gzip(&bytes);
    let packed_source = place.write("image.gz", &packed);
    let good = format!("sha256:{}", checksum(&packed));
    assert_exit(&run(&[&packed_source, &target, "--checksum", &good, "--force"]), 0);
    assert_eq!(fs::read(&target).unwrap(), bytes);
    fs::remove_file(&target).unwrap();

    let bad = format!("sha256:{}", checksum(b"else"));
    for arguments in [vec![source.as_str(), &target], vec!["-", &target]] {
        let output = importer()
            .args(&arguments)
            .args(["--checksum", &bad])
            .stdin(piped(Path::new(&source)))
            .output()
            .unwrap();
        assert_exit(&output, 6);
        assert!(text(&output.stderr).contains("checksum mismatch"));
        assert_eq!(place.names("."), ["image", "image.gz"], "what was written is deleted");
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut child =
        Command::new("gzip").arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let feed = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let mut packed = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut packed).unwrap();
    feed.join().unwrap();
    assert!(child.wait().unwrap().success());
    packed
}

#[test]
fn what_is_no_disk_is_refused_unless_told() {
    let place = Place::new();
    let page = place.write("page", b"<!DOCTYPE html><html><body>404</body></html>");
    let output = run(&[&page, &place.text("disk")]);
    assert_exit(&output, 4);
    assert!(text(&output.stderr).contains("HTML") && text(&output.stderr).contains("--format raw"));
    assert_eq!(place.names("."), ["page"]);
    assert_exit(&run(&[&page, &place.text("disk"), "--format", "raw"]), 0);
    assert_exit(&run(&[&place.text("missing"), &place.text("other")]), 3);
    assert_exit(&run(&["ftp://h/x", &place.text("other")]), 2);
    assert_eq!(place.names("."), ["disk", "page"]);
}

#[test]
fn inspect_and_completion() {
    let place = Place::new();
    let source = place.write("image", &disk_bytes(MIB));
    let output = run(&["inspect", &source, "--output", "json"]);
    assert_exit(&output, 0);
    let seen: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&seen["format"], &seen["virtual_size"]), (&"raw".into(), &MIB.into()));
    let output = run(&["inspect", &place.write("image.gz", &gzip(&disk_bytes(MIB)))]);
    assert_exit(&output, 0);
    assert!(text(&output.stdout).contains("compression:  gz"), "{}", text(&output.stdout));
    for shell in ["bash", "zsh", "fish"] {
        assert!(text(&run(&["completion", shell]).stdout).contains("importer"));
    }
    let help = run(&["--help"]);
    assert_exit(&help, 0);
    assert!(text(&help.stdout).contains("Examples:"));
    assert_exit(&run(&[]), 2);
    assert_eq!(place.names("."), ["image", "image.gz"]);
}

#[test]
fn a_device_is_written_whole_and_guarded() {
    let place = Place::new();
    let bytes = disk_bytes(4 * MIB + 512);
    let source = place.write("image", &bytes);
    // Not zero at the start, and nothing on it that is known.
    let device = Loop::new(&place, "backing", 8 * MIB as u64, 0xa5);
    assert!(fs::metadata(&device.path).unwrap().file_type().is_block_device());
    assert_exit(&run(&[&source, device.text()]), 0);
    let disk = fs::read(&device.path).unwrap();
    assert!(disk[..bytes.len()] == bytes, "the disk is the image");
    assert!(disk[bytes.len()..].iter().all(|&b| b == 0), "behind the image nothing old is left");

    assert!(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&device.path).status().unwrap().success());
    let output = run(&[&source, device.text()]);
    assert_exit(&output, 7);
    assert!(text(&output.stderr).contains("an ext filesystem"), "{}", text(&output.stderr));

    let mount = place.path("mount");
    fs::create_dir(&mount).unwrap();
    assert!(Command::new("mount").arg(&device.path).arg(&mount).status().unwrap().success());
    let output = run(&[&source, device.text()]);
    assert!(Command::new("umount").arg(&mount).status().unwrap().success());
    assert_exit(&output, 7);
    assert!(text(&output.stderr).contains("is mounted at"), "{}", text(&output.stderr));

    assert_exit(&run(&[&source, device.text(), "--force"]), 0);
    assert!(fs::read(&device.path).unwrap()[..bytes.len()] == bytes);

    let large = place.text("large");
    File::create(&large).unwrap().set_len(9 * MIB as u64).unwrap();
    let output = run(&[&large, device.text(), "--force"]);
    assert_exit(&output, 5);
    assert!(text(&output.stderr).contains(
        "virtual image size 9437184 is larger than the reported available storage 8388608; use a larger target, or free some room"
    ));
    // A device gets its zeroes, too.
    let zeroes = place.write("zeroes", &vec![0; 8 * MIB]);
    assert_exit(&run(&[&zeroes, device.text(), "--force"]), 0);
    assert!(fs::read(&device.path).unwrap().iter().all(|&b| b == 0));
}

#[test]
fn archives_are_unpacked() {
    let place = Place::new();
    fs::create_dir(place.path("in")).unwrap();
    fs::write(place.path("in/a"), "first").unwrap();
    fs::create_dir(place.path("in/sub")).unwrap();
    fs::write(place.path("in/sub/b"), disk_bytes(MIB)).unwrap();
    let tar = place.text("files.tar");
    let status =
        Command::new("tar").args(["-cf", &tar, "-C"]).arg(place.path("in")).arg(".").status().unwrap();
    assert!(status.success());
    let packed = place.write("files.tar.gz", &gzip(&fs::read(&tar).unwrap()));
    for (source, target) in [(&tar, "out"), (&packed, "packed")] {
        assert_exit(&run(&[source, &place.text(target), "--archive"]), 0);
        assert_eq!(fs::read(place.path(target).join("a")).unwrap(), b"first");
        assert_eq!(fs::read(place.path(target).join("sub/b")).unwrap(), disk_bytes(MIB));
    }
    let output = importer()
        .args(["-", &place.text("piped"), "--archive"])
        .stdin(piped(Path::new(&packed)))
        .output()
        .unwrap();
    assert_exit(&output, 0);
    assert_eq!(place.names("piped"), ["a", "sub"]);
    // As a disk it is refused.
    assert_exit(&run(&[&tar, &place.text("disk")]), 4);
    // Something else than a tar is no archive.
    let raw = place.write("raw", &disk_bytes(MIB));
    assert_ne!(run(&[&raw, &place.text("none"), "--archive"]).status.code(), Some(0));
}

#[test]
fn archives_go_into_empty_folders() {
    let place = Place::new();
    let pack = |name: &str, files: &[(&str, &[u8])]| {
        let mut tar = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            tar.append_data(&mut header, name, *bytes).unwrap();
        }
        place.write(name, &tar.into_inner().unwrap())
    };
    let source = pack("files.tar", &[("a", b"theirs"), ("b", b"new")]);
    let refused = |folder: &str, source: &str, holds: &str| {
        let ran = run(&[source, folder, "--archive"]);
        assert_exit(&ran, 7);
        let said = text(&ran.stderr);
        assert!(said.contains(&format!("it holds {holds}")) && said.contains("--force"), "{said}");
    };
    for kept in ["a", "other", ".hidden"] {
        let folder = format!("with{kept}");
        fs::create_dir(place.path(&folder)).unwrap();
        fs::write(place.path(&folder).join(kept), "mine").unwrap();
        refused(&place.text(&folder), &source, kept);
        assert_eq!(place.names(&folder), [kept]);
        assert_eq!(fs::read(place.path(&folder).join(kept)).unwrap(), b"mine");
    }
    // The archive in the folder that it is to be unpacked into.
    fs::create_dir(place.path("own")).unwrap();
    let inside = pack("own/files.tar", &[("files.tar", b"gone"), ("b", b"new")]);
    let before = fs::read(&inside).unwrap();
    refused(&place.text("own"), &inside, "files.tar");
    assert_eq!(fs::read(&inside).unwrap(), before);

    assert_exit(&run(&[&source, &place.text("witha"), "--archive", "--force"]), 0);
    assert_eq!(fs::read(place.path("witha/a")).unwrap(), b"theirs");
    fs::create_dir_all(place.path("fresh/lost+found")).unwrap();
    assert_exit(&run(&[&source, &place.text("fresh"), "--archive"]), 0);
    assert_eq!(place.names("fresh"), ["a", "b", "lost+found"]);
}

#[test]
fn a_journal_that_is_none_is_left_alone() {
    let place = Place::new();
    let source = place.write("image", &disk_bytes(2 * MIB));
    let target = place.text("disk");
    for name in [".disk.import-journal", ".disk.import-journal.new"] {
        let journal = place.path(name);
        let refused = |source: &[&str]| {
            let ran = run(&[source, &[&target, "--force"]].concat());
            assert_exit(&ran, 7);
            assert!(text(&ran.stderr).contains(name), "{}", text(&ran.stderr));
            assert!(!Path::new(&target).exists());
        };
        fs::write(&journal, "notes of mine").unwrap();
        refused(&[&source]);
        refused(&["blank", "--size", "1Mi"]);
        assert_eq!(fs::read(&journal).unwrap(), b"notes of mine");
        fs::remove_file(&journal).unwrap();
        let pointed = place.write("pointed", b"elsewhere");
        std::os::unix::fs::symlink(&pointed, &journal).unwrap();
        refused(&[&source]);
        assert_eq!(fs::read(&pointed).unwrap(), b"elsewhere");
        fs::remove_file(&journal).unwrap();
        fs::create_dir(&journal).unwrap();
        refused(&[&source]);
        fs::remove_dir(&journal).unwrap();
        // Torn ones of ours.
        for torn in ["", "0b77", "0b77d2e4 {\"ver", "0b77d2e4 {\"version\":1,\"sou"] {
            fs::write(&journal, torn).unwrap();
            assert_exit(&run(&[&source, &target]), 0);
            assert!(!journal.exists(), "{torn}");
            fs::remove_file(&target).unwrap();
        }
    }
}

#[test]
fn a_size_that_leaves_no_disk_is_told() {
    for (size, overhead) in [("500Ki", "0"), ("1Mi", "0.06"), ("0", "0")] {
        let pod = support::Pod::new();
        let ran = pod
            .command("", size)
            .envs([("IMPORTER_SOURCE", "none"), ("FILESYSTEM_OVERHEAD", overhead)])
            .output()
            .unwrap();
        assert_exit(&ran, 1);
        let bytes = match size {
            "500Ki" => "512000 bytes",
            "1Mi" => "1048576 bytes",
            _ => "0 bytes",
        };
        assert!(pod.message().contains(bytes), "{}", pod.message());
        assert!(support::names(&pod.path("data")).is_empty());
    }
}

#[test]
fn archives_stay_in_their_folder() {
    let place = Place::new();
    let mut tar = tar::Builder::new(Vec::new());
    let mut add = |name: &[u8], kind: tar::EntryType, link: Option<&str>, bytes: &[u8]| {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name);
        header.set_entry_type(kind);
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        if let Some(link) = link {
            header.set_link_name(link).unwrap();
        }
        header.set_cksum();
        tar.append(&header, bytes).unwrap();
    };
    add(b"good", tar::EntryType::Regular, None, b"good");
    add(b"../escaped", tar::EntryType::Regular, None, b"bad");
    add(b"up", tar::EntryType::Symlink, Some(".."), b"");
    add(b"up/escaped", tar::EntryType::Regular, None, b"bad");
    let source = place.write("evil.tar", &tar.into_inner().unwrap());
    drop(run(&[&source, &place.text("out"), "--archive"]));
    assert!(!place.path("escaped").exists());
    assert_eq!(fs::read(place.path("out/good")).unwrap(), b"good");
}

/// A process under the environment contract, with its paths below a folder.
struct Pod {
    place: Place,
}

impl Pod {
    fn new() -> Self {
        let place = Place::new();
        fs::create_dir(place.path("data")).unwrap();
        fs::create_dir(place.path("dev")).unwrap();
        Self { place }
    }

    fn command(&self, environment: &[(&str, &str)]) -> Command {
        let mut command = importer();
        command
            .arg("-v=1")
            .envs([
                ("FERROVIRT_IMPORTER_ROOT", self.place.folder.path().to_str().unwrap()),
                ("FERROVIRT_IMPORTER_METRICS_PORT", "0"),
                ("PREALLOCATION", "false"),
                ("FILESYSTEM_OVERHEAD", "0.06"),
                ("OWNER_UID", "1-2-3"),
                ("IMPORTER_CONTENTTYPE", "kubevirt"),
            ])
            .envs(environment.iter().copied());
        command
    }

    fn run(&self, environment: &[(&str, &str)]) -> Output {
        self.command(environment).stdin(Stdio::null()).output().unwrap()
    }

    fn message(&self) -> Option<String> {
        fs::read_to_string(self.place.path("dev/termination-log")).ok()
    }
}

#[test]
fn blank_volumes_of_the_contract() {
    let pod = Pod::new();
    assert_exit(&pod.run(&[("IMPORTER_SOURCE", "none"), ("IMPORTER_IMAGE_SIZE", "64Mi")]), 0);
    assert_eq!(pod.message().as_deref(), Some(r#"{"message":"Import Complete"}"#));
    let meta = fs::metadata(pod.place.path("data/disk.img")).unwrap();
    assert_eq!(
        (meta.len(), meta.uid(), meta.gid(), meta.permissions().mode() & 0o7777),
        (60 << 20, 107, 107, 0o660)
    );
    assert_eq!(pod.place.names("data"), ["disk.img"]);

    let pod = Pod::new();
    let blank = [("IMPORTER_SOURCE", "none"), ("IMPORTER_IMAGE_SIZE", "64Mi"), ("PREALLOCATION", "true")];
    assert_exit(&pod.run(&blank), 0);
    assert_eq!(
        pod.message().as_deref(),
        Some(r#"{"preallocationApplied":true,"message":"Import Complete"}"#)
    );
    assert!(fs::metadata(pod.place.path("data/disk.img")).unwrap().blocks() * 512 >= 60 << 20);

    // A device: nothing is done and nothing said.
    let pod = Pod::new();
    let device = Loop::new(&pod.place, "backing", 4 * MIB as u64, 0x5a);
    std::os::unix::fs::symlink(&device.path, pod.place.path("dev/cdi-block-volume")).unwrap();
    assert_exit(&pod.run(&[("IMPORTER_SOURCE", "none"), ("IMPORTER_IMAGE_SIZE", "4Mi")]), 0);
    assert_eq!(pod.message(), None);
    assert!(fs::read(&device.path).unwrap().iter().all(|&b| b == 0x5a));
}

#[test]
fn failures_of_the_contract() {
    for (environment, expected) in [
        (
            &[("IMPORTER_SOURCE", "vddk")][..],
            "Unable to process data: the source \"vddk\" is asked for; this importer does not do that",
        ),
        (&[("IMPORTER_SOURCE", "http")], "Unable to process data: IMPORTER_ENDPOINT is not set"),
        (
            &[("IMPORTER_SOURCE", "http"), ("PREALLOCATION", "perhaps")],
            "Unable to process data: the environment makes no sense: PREALLOCATION=\"perhaps\" is not one of true, false, 1, 0, t, f",
        ),
        (
            &[("IMPORTER_SOURCE", "none"), ("IMPORTER_IMAGE_SIZE", "lots")],
            "Unable to process data: the environment makes no sense: IMPORTER_IMAGE_SIZE: \"lots\" is not a quantity like 10Gi, 500M or 1073741824",
        ),
        (
            &[("IMPORTER_SOURCE", "none"), ("IMPORTER_CONTENTTYPE", "archive")],
            "Unable to process data: the source \"none\" cannot have content type archive; only http can",
        ),
        (
            &[
                ("IMPORTER_SOURCE", "registry"),
                ("IMPORTER_ENDPOINT", "docker://r/i"),
                ("IMPORTER_CONTENTTYPE", "archive"),
            ],
            "Unable to process data: the source \"registry\" cannot have content type archive; only http can",
        ),
        (
            &[
                ("IMPORTER_SOURCE", "http"),
                ("IMPORTER_ENDPOINT", "http://h/i"),
                ("IMPORTER_CURRENT_CHECKPOINT", "s1"),
            ],
            "Unable to process data: a multi-stage import with checkpoints is asked for; this importer does not do that",
        ),
    ] {
        let pod = Pod::new();
        assert_exit(&pod.run(environment), 1);
        assert_eq!(pod.message().as_deref(), Some(expected));
        assert!(pod.place.names("data").is_empty());
    }
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An import from a pipe that has given `bytes` and stays open.
fn stalled(arguments: &[&str], bytes: &[u8]) -> (Child, std::process::ChildStdin) {
    let mut child = importer()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(bytes).unwrap();
    input.flush().unwrap();
    (child, input)
}

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn signals_stop_within_two_seconds() {
    for (sent, code) in [(rustix::process::Signal::TERM, 143), (rustix::process::Signal::INT, 130)] {
        let place = Place::new();
        let (mut child, _input) = stalled(&["-", &place.text("disk")], &disk_bytes(4 * MIB));
        wait_for("writing", || fs::metadata(place.path("disk")).ok().filter(|meta| meta.blocks() > 0));
        let asked = Instant::now();
        signal(&child, sent);
        let status = child.wait().unwrap();
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
        assert_eq!(status.code(), Some(code));
        // What is there is known as ours: no --force is needed to begin again.
        let bytes = disk_bytes(MIB);
        assert_exit(&run(&[&place.write("image", &bytes), &place.text("disk")]), 0);
        assert_eq!(fs::read(place.path("disk")).unwrap(), bytes);
        assert_eq!(place.names("."), ["disk", "image"]);
    }
}

#[test]
fn two_importers_never_share_a_target() {
    let place = Place::new();
    let (mut child, input) = stalled(&["-", &place.text("disk")], &disk_bytes(4 * MIB));
    wait_for("writing", || fs::metadata(place.path("disk")).ok().filter(|meta| meta.blocks() > 0));
    let source = place.write("image", &disk_bytes(MIB));
    let output = run(&[&source, &place.text("disk"), "--force"]);
    assert_exit(&output, 7);
    assert!(text(&output.stderr).contains("another import is writing"), "{}", text(&output.stderr));
    drop(input);
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read(place.path("disk")).unwrap(), disk_bytes(4 * MIB));
}

#[test]
fn progress_is_served_as_the_controller_reads_it() {
    let place = Place::new();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    let arguments = ["-", &place.text("disk"), "--metrics", &address];
    let (mut child, input) = stalled(&arguments, &disk_bytes(4 * MIB));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let client = reqwest::Client::builder().danger_accept_invalid_certs(true).build().unwrap();
    let get = |path: &str| {
        runtime.block_on(async {
            let answer = client.get(format!("https://{address}{path}")).send().await.ok()?;
            Some((answer.status().as_u16(), answer.text().await.ok()?))
        })
    };
    let (status, page) = wait_for("metrics", || get("/metrics"));
    assert_eq!(status, 200);
    let line = page.lines().find(|line| line.starts_with("kubevirt_cdi_import_progress_total")).unwrap();
    let value = line.strip_prefix("kubevirt_cdi_import_progress_total{ownerUID=\"\"} ").unwrap();
    assert!(value.chars().all(|c| c.is_ascii_digit() || c == '.'), "{line}");
    assert_eq!(get("/healthz").unwrap(), (200, "ok\n".to_owned()));
    assert_eq!(get("/").unwrap().0, 404);
    // Somebody who talks no TLS, and somebody who says nothing, hold nobody up.
    let mut plain = std::net::TcpStream::connect(&address).unwrap();
    plain.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let _silent = std::net::TcpStream::connect(&address).unwrap();
    assert_eq!(get("/metrics").unwrap().0, 200);
    wait_for("the engine's metric", || {
        get("/metrics")?.1.contains("ferrovirt_import_engine_info{engine=").then_some(())
    });
    drop(input);
    assert!(child.wait().unwrap().success());
}

#[test]
fn killed_imports_go_on() {
    let place = Place::new();
    let bytes = disk_bytes(384 * MIB);
    let source = place.write("image", &bytes);
    let wanted = checksum(&bytes);
    let target = place.text("disk");
    let mut state = 42u64;
    let mut resumed = 0;
    for round in 0..count(20, 200) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let moment = Duration::from_micros(5_000 + (state >> 33) % 250_000);
        let arguments = [source.as_str(), &target, "--output", "json", "--force"];
        let mut child = importer()
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(moment);
        drop(child.kill());
        drop(child.wait());
        let output = run(&arguments);
        assert_exit(&output, 0);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        resumed += u32::from(report["bytes_resumed"].as_u64().unwrap() > 0);
        assert_eq!(checksum(&fs::read(&target).unwrap()), wanted, "round {round}, killed after {moment:?}");
        assert_eq!(place.names("."), ["disk", "image"]);
        fs::remove_file(&target).unwrap();
    }
    assert!(resumed > 0, "no round went on where it was killed");
    println!("{resumed} imports went on where they were killed");
}

#[test]
fn the_source_is_no_target_whatever_its_name() {
    let place = Place::new();
    let bytes = disk_bytes(4 * MIB);
    let source = place.write("image", &bytes);
    fs::hard_link(&source, place.path("link")).unwrap();
    std::os::unix::fs::symlink("image", place.path("way")).unwrap();
    let (link, way) = (place.text("link"), place.text("way"));
    for (from, to) in [(&source, &source), (&source, &link), (&way, &source)] {
        let output = run(&[from, to, "--force"]);
        assert_exit(&output, 7);
        assert!(String::from_utf8_lossy(&output.stderr).contains("is the source itself"), "{output:?}");
        assert!(fs::read(&source).unwrap() == bytes, "{from} {to}");
    }
    let device = Loop::new(&place, "backing", 4 * MIB as u64, 0x11);
    let output = run(&[device.text(), device.text(), "--force"]);
    assert_exit(&output, 7);
    assert!(fs::read(&device.path).unwrap().iter().all(|&byte| byte == 0x11));
}

#[test]
fn another_image_is_a_clean_restart() {
    let place = Place::new();
    let first = disk_bytes(96 * MIB);
    let source = place.write("image", &first);
    let target = place.text("disk");
    let mut child = importer().args([&source, &target]).stderr(Stdio::null()).spawn().unwrap();
    // Killed as soon as something is journaled.
    let journal = place.path(".disk.import-journal");
    wait_for("a journal record", || {
        let lines = fs::read_to_string(&journal).unwrap_or_default().lines().count();
        (lines > 1 || child.try_wait().unwrap().is_some()).then_some(())
    });
    drop(child.kill());
    drop(child.wait());
    let second: Vec<u8> = first.iter().map(|b| b ^ 0x55).collect();
    fs::write(&source, &second).unwrap();
    let output = run(&[&source, &target, "--force", "--output", "json"]);
    assert_exit(&output, 0);
    assert!(fs::read(&target).unwrap() == second, "the new image, not a mixture");
    assert_eq!(place.names("."), ["disk", "image"]);
}

#[test]
fn a_device_goes_on_with_a_journal_folder() {
    let place = Place::new();
    let bytes = disk_bytes(64 * MIB);
    let source = place.write("image", &bytes);
    fs::create_dir(place.path("journals")).unwrap();
    let device = Loop::new(&place, "backing", 64 * MIB as u64, 0x11);
    let journals = place.text("journals");
    let arguments = [source.as_str(), device.text(), "--journal", &journals, "--output", "json"];
    let mut child = importer().args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait_for("a journal record", || {
        let found = fs::read_dir(&journals)
            .unwrap()
            .any(|entry| fs::read_to_string(entry.unwrap().path()).unwrap_or_default().lines().count() > 1);
        (found || child.try_wait().unwrap().is_some()).then_some(())
    });
    drop(child.kill());
    drop(child.wait());
    let output = run(&[&arguments[..], &["--force"]].concat());
    assert_exit(&output, 0);
    assert!(fs::read(&device.path).unwrap() == bytes);
    assert!(place.names("journals").is_empty());
}
