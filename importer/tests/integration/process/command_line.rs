//! Command lines and their messages.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::process::Command;

use crate::process::place::{Loop, MIB, Place, assert_exit, checksum, disk_bytes, gzip, piped, run};
use crate::support::{self, importer, text};

#[test]
fn a_raw_file_becomes_a_disk() {
    let place = Place::new();
    for len in [0, 1, 511, 512, 513, 4096, 5 * MIB + 513, 9 * MIB] {
        let bytes = disk_bytes(len);
        let source = place.write("image", &bytes);
        let target = place.text("disk");
        // An empty source is refused, unless its format is given.
        let format: &[&str] = if len == 0 { &["--format", "raw"] } else { &[] };
        let arguments = [&[source.as_str(), &target, "--output", "json", "--force"], format].concat();
        let output = run(&arguments);
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
fn names_of_any_bytes_and_length() {
    let place = Place::new();
    let bytes = disk_bytes(MIB);
    let longest = "x".repeat(255);
    for name in [OsStr::from_bytes(b"a b\xff\n"), OsStr::new("näme 💾"), OsStr::new(&longest)] {
        let (source, target) = (place.path("from").join(name), place.path("to").join(name));
        fs::create_dir_all(place.path("from")).unwrap();
        fs::create_dir_all(place.path("to")).unwrap();
        fs::write(&source, &bytes).unwrap();
        let output = importer().arg(&source).arg(&target).output().unwrap();
        assert_exit(&output, 0);
        assert!(fs::read(&target).unwrap() == bytes);
        assert_exit(&importer().arg("inspect").arg(&source).output().unwrap(), 0);
        assert_exit(&importer().arg(&source).arg(&target).output().unwrap(), 7);
        fs::remove_dir_all(place.path("from")).unwrap();
        assert_eq!(fs::read_dir(place.path("to")).unwrap().count(), 1, "no journal stays");
        fs::remove_dir_all(place.path("to")).unwrap();
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
    // A disk with its size known at its end only.
    let bytes = disk_bytes(5 * MIB + 513);
    let source = place.write("image", &bytes);
    for size in ["6Mi", "9Mi"] {
        let output = importer()
            .args(["-", &target, "--preallocate", "--force", "--size", size])
            .stdin(piped(Path::new(&source)))
            .output()
            .unwrap();
        assert_exit(&output, 0);
        let meta = fs::metadata(&target).unwrap();
        assert!(meta.blocks() * 512 >= meta.len(), "{size}: {} of {}", meta.blocks() * 512, meta.len());
        assert!(fs::read(&target).unwrap().starts_with(&bytes));
    }
}

#[test]
fn every_failure_is_also_reported_as_json() {
    let place = Place::new();
    let there = place.write("there", b"precious");
    let (image, target) = (place.write("image", &disk_bytes(MIB)), place.text("disk"));
    let page = place.write("page", b"<!DOCTYPE html><html></html>");
    let cases: [(&[&str], u64, &str); 11] = [
        (&["--no-such-flag", &image, &target], 2, "usage"),
        (&["--size", "many", &image, &target], 2, "usage"),
        (&[&image], 2, "usage"),
        (&["ftp://h/x", &target], 2, "usage"),
        (&["blank", &target], 2, "usage"),
        (&["--user-file", "/nothing", &image, &target], 2, "usage"),
        (&["inspect"], 2, "usage"),
        (&["inspect", "/nothing"], 3, "source"),
        (&["/nothing", &target], 3, "source"),
        (&[&page, &target], 4, "refused"),
        (&[&image, &there], 7, "target"),
    ];
    for (arguments, code, kind) in cases {
        for json in [&["--output", "json"][..], &["--output=json"]] {
            let output = run(&[arguments, json].concat());
            assert_exit(&output, i32::try_from(code).unwrap());
            let told: serde_json::Value = serde_json::from_slice(&output.stdout)
                .unwrap_or_else(|e| panic!("{arguments:?}: {e}: {}", text(&output.stdout)));
            assert_eq!((&told["kind"], &told["exit_code"]), (&kind.into(), &code.into()), "{arguments:?}");
            assert!(!told["error"].as_str().unwrap().is_empty() && !output.stderr.is_empty());
        }
    }
    // Words after -- are not flags.
    let output = run(&["--no-such-flag", "--", "--output=json"]);
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
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
fn existing_targets_are_kept_without_force() {
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
        assert_eq!(place.names("."), ["image", "image.gz"], "deleting the data that was written");
    }
}

#[test]
fn unrecognized_content_is_refused_unless_allowed() {
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
    let said = run(&["inspect", &source]).stdout;
    assert!(text(&said).contains("as a stream:  yes"), "{}", text(&said));
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
fn a_size_that_leaves_no_disk_is_reported() {
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
