//! Targets that are refused before their first byte is written, and the content of targets afterwards: devices in use, sizes
//! that cannot be had, stale content of a device.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;

use places::guest::Dice;
use places::{Loop, Mount, output, run};

use crate::support::server::{Served, Server};
use crate::support::{
    self, MIB, Pod, assert_exit, import, import_piped, importer, names, report, sha256, text,
};

/// A folder with a file of `len` bytes that do not compress.
fn image(len: u64) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    fs::write(&path, Dice(len).bytes(len as usize)).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

/// A device that holds nothing known and no zero.
fn used_device(size: u64, sector: u32) -> Loop {
    let device = Loop::new(size, sector);
    let file = OpenOptions::new().write(true).open(&device.device).unwrap();
    file.write_all_at(&vec![0xa5; size as usize], 0).unwrap();
    file.sync_all().unwrap();
    device
}

fn stderr(output: &std::process::Output) -> String {
    text(&output.stderr)
}

#[test]
fn a_device_in_use_is_refused_even_by_force() {
    let (_folder, source) = image(MIB);
    let mount = Mount::on_loop("ext4", 32 * MIB);
    fs::write(mount.path().join("file"), Dice(9).bytes(8 << 20)).unwrap();
    run("sync", &["-f", mount.path().to_str().unwrap()]);
    let device = mount.device().unwrap().to_str().unwrap();
    let before = sha256(Path::new(device));
    for more in [&[][..], &["--force"]] {
        let ran = import(&[&[source.as_str(), device], more].concat());
        assert_exit(&ran, 7, "mounted");
        assert!(stderr(&ran).contains("is mounted at"), "{}", stderr(&ran));
    }
    let ran = import(&["blank", device, "--force"]);
    assert_exit(&ran, 7, "mounted");
    assert_eq!(sha256(Path::new(device)), before, "nothing is written");

    // Held by a user that mounts nothing: RAID, swap, a virtual machine.
    let held = used_device(4 * MIB, 512);
    let device = held.device.to_str().unwrap();
    let alone = rustix::fs::OFlags::EXCL.bits().cast_signed();
    let holder = OpenOptions::new().read(true).custom_flags(alone).open(device).unwrap();
    let ran = import(&[&source, device, "--force"]);
    assert_exit(&ran, 7, "held");
    assert!(stderr(&ran).contains("is in use"), "{}", stderr(&ran));
    assert!(fs::read(device).unwrap().iter().all(|&byte| byte == 0xa5), "nothing is written");
    drop(holder);
    assert_exit(&import(&[&source, device, "--force"]), 0, "free again");
}

/// A loop device that takes no writes. Not by `blockdev --setro`, which outlives the loop device.
struct ReadOnly {
    device: String,
    _folder: tempfile::TempDir,
}

impl ReadOnly {
    fn new() -> Self {
        let (folder, backing) = image(4 * MIB);
        let device = run("losetup", &["--find", "--show", "--read-only", &backing]);
        Self { device, _folder: folder }
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        drop(output(std::process::Command::new("losetup").args(["-d", &self.device])));
    }
}

#[test]
fn a_read_only_device_is_reported_before_the_source_is_read() {
    let device = ReadOnly::new();
    let path = device.device.as_str();
    // Nothing listens there: asking the source first would fail otherwise.
    let ran = import(&["http://127.0.0.1:1/image", path, "--force"]);
    assert_exit(&ran, 7, "read-only");
    assert!(stderr(&ran).contains("is read-only"), "{}", stderr(&ran));
    let pod = Pod::new();
    symlink(&device.device, pod.path("dev/cdi-block-volume")).unwrap();
    let ran = output(&mut pod.command("http://127.0.0.1:1/image", "4Mi")).unwrap();
    assert_exit(&ran, 1, "read-only");
    assert!(pod.message().contains("is read-only"), "{}", pod.message());
}

#[test]
fn stale_device_data_is_not_readable_behind_the_image() {
    let (folder, source) = image(3 * MIB + 512);
    let wanted = fs::read(&source).unwrap();
    let packed = folder.path().join("image.gz");
    fs::write(&packed, fs::read(&source).unwrap()).unwrap();
    run("gzip", &["-k", "-f", &source]);
    let behind = |device: &Loop, zeroes_to: u64, what: &str| {
        let disk = fs::read(&device.device).unwrap();
        assert!(disk[..wanted.len()] == wanted, "{what}: the image");
        let (zeroes, rest) = disk[wanted.len()..].split_at(zeroes_to as usize - wanted.len());
        assert!(zeroes.iter().all(|&byte| byte == 0), "{what}: zeroes up to {zeroes_to}");
        assert!(rest.iter().all(|&byte| byte == 0xa5), "{what}: nothing behind {zeroes_to} is touched");
    };
    for (sector, size) in [(512, 9 * MIB + 512), (4096, 9 * MIB)] {
        let device = used_device(size, sector);
        let path = device.device.to_str().unwrap();
        let ran = import(&[&source, path, "--output", "json"]);
        assert_exit(&ran, 0, "whole");
        assert_eq!(report(&ran)["disk_size"], size);
        behind(&device, size, "a file");

        let device = used_device(size, sector);
        let path = device.device.to_str().unwrap();
        assert_exit(&import_piped(&packed, &["-", path]), 0, "piped");
        behind(&device, size, "a stream");

        // A person may give a limit.
        let device = used_device(size, sector);
        let path = device.device.to_str().unwrap();
        assert_exit(&import(&[&source, path, "--size", "5Mi"]), 0, "sized");
        behind(&device, 5 * MIB, "with --size");
        let before = fs::read(path).unwrap();
        assert_exit(&import(&["blank", path, "--size", "1Mi", "--force"]), 0, "blank");
        let after = fs::read(path).unwrap();
        assert!(
            after[..MIB as usize].iter().all(|&b| b == 0) && after[MIB as usize..] == before[MIB as usize..]
        );

        // A volume is the guest's to its end, whatever was requested.
        let device = used_device(size, sector);
        let pod = Pod::new();
        symlink(&device.device, pod.path("dev/cdi-block-volume")).unwrap();
        let server = Server::start(folder.path());
        let ran = output(&mut pod.command(&server.url(Served::Ranges, "image"), "4Mi")).unwrap();
        assert_exit(&ran, 0, "the contract");
        behind(&device, size, "a volume");
    }
}

#[test]
fn a_size_that_cannot_be_had_is_refused() {
    let (_folder, source) = image(MIB);
    let device = used_device(4 * MIB, 512);
    let path = device.device.to_str().unwrap();
    for arguments in [vec![source.as_str(), path, "--size", "5Mi"], vec!["blank", path, "--size", "5Mi"]] {
        let ran = import(&arguments);
        assert_exit(&ran, 5, "a device");
        for word in ["5242880", "4194304", "smaller --size"] {
            assert!(stderr(&ran).contains(word), "{}", stderr(&ran));
        }
        assert!(fs::read(path).unwrap().iter().all(|&byte| byte == 0xa5), "nothing is written");
    }
    let mount = Mount::on_loop("ext4", 64 * MIB);
    let target = mount.path().join("disk");
    let target = target.to_str().unwrap();
    let before = names(mount.path());
    for source in [source.as_str(), "blank"] {
        let ran = import(&[source, target, "--size", "200Gi", "--preallocate"]);
        assert_exit(&ran, 5, "reserved");
        for word in ["214748364800", "are free", "leave out --preallocate"] {
            assert!(stderr(&ran).contains(word), "{}", stderr(&ran));
        }
        assert_eq!(names(mount.path()), before, "nothing is reserved");
    }
    // A disk that is not reserved may outgrow the free space, and a warning is printed.
    let ran = import(&[&source, target, "--size", "200Gi"]);
    assert_exit(&ran, 0, "sparse");
    assert!(stderr(&ran).contains("the disk may grow to 214748364800 bytes"), "{}", stderr(&ran));
    assert_eq!(fs::metadata(target).unwrap().len(), 200 << 30);
}

#[test]
fn a_rounded_size_is_reported() {
    let (folder, source) = image(MIB + 1);
    let target = folder.path().join("disk");
    let target = target.to_str().unwrap();
    for (arguments, size, told) in [
        (vec![source.as_str(), target, "--size", "5000000"], 5 * MIB, true),
        (vec!["blank", target, "--size", "5000000"], 5 * MIB, true),
        (vec!["blank", target, "--size", "5000000", "--preallocate"], 5 * MIB, true),
        (vec!["blank", target, "--size", "10Mi", "--overhead", "0.06"], 9 * MIB, true),
        (vec![source.as_str(), target, "--size", "5Mi"], 5 * MIB, false),
        (vec![source.as_str(), target, "--size", "1048577"], MIB + 1, false),
    ] {
        let ran = import(&[&arguments[..], &["--force", "--output", "json"]].concat());
        assert_exit(&ran, 0, "rounded");
        let meta = fs::metadata(target).unwrap();
        assert_eq!(meta.len(), size, "{arguments:?}");
        assert!(!arguments.contains(&"--preallocate") || meta.blocks() * 512 >= size);
        let seen = report(&ran);
        assert_eq!(seen["disk_size"], size);
        let warnings = seen["warnings"].to_string();
        assert_eq!(warnings.contains(&format!("the disk has {size} bytes")), told, "{warnings}");
        let ran = import(&[&arguments[..], &["--force"]].concat());
        assert_eq!(text(&ran.stdout).contains("warning: the disk has"), told, "{}", text(&ran.stdout));
    }
    let ran = import(&[&source, target, "--size", "1Mi", "--force"]);
    assert_exit(&ran, 5, "larger than asked for");
    assert!(
        stderr(&ran).contains("give a larger --size") && !stderr(&ran).contains("PVC"),
        "{}",
        stderr(&ran)
    );
}

/// The size of a stream without a length is known only when the space is gone, or is not.
#[test]
fn a_packed_stream_onto_little_room() {
    let mount = Mount::memory("tmpfs", 16 * MIB);
    let (folder, source) = image(24 * MIB);
    let packed = folder.path().join("packed");
    fs::write(&packed, run_gzip(&fs::read(&source).unwrap())).unwrap();
    let target = mount.path().join("disk");
    let ran = import_piped(&packed, &["-", target.to_str().unwrap()]);
    assert_exit(&ran, 5, "full");
    assert!(stderr(&ran).contains("no space left on device"), "{}", stderr(&ran));
    assert!(!stderr(&ran).contains("virtual image size"), "its size is not known: {}", stderr(&ran));
    // With a bound the size is reported as a minimum.
    let ran = import_piped(&packed, &["-", target.to_str().unwrap(), "--size", "4Mi", "--force"]);
    assert_exit(&ran, 5, "bound");
    assert!(
        stderr(&ran).contains("bytes or more, is larger than the reported available"),
        "{}",
        stderr(&ran)
    );
    fs::remove_file(&target).unwrap();
    // Mostly zeroes: a thin disk larger than the room.
    let mut disk = vec![0; 40 << 20];
    disk[..1 << 20].copy_from_slice(&Dice(3).bytes(1 << 20));
    fs::write(&packed, run_gzip(&disk)).unwrap();
    assert_exit(&import_piped(&packed, &["-", target.to_str().unwrap()]), 0, "thin");
    assert!(fs::read(&target).unwrap() == disk);
}

fn run_gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).unwrap();
    packer.finish().unwrap()
}

#[test]
fn a_filesystem_without_such_large_files_is_not_called_full() {
    let mount = Mount::on_loop("ext4", 64 * MIB);
    let target = mount.path().join("disk");
    let ran = import(&["blank", target.to_str().unwrap(), "--size", "20Ti"]);
    assert_exit(&ran, 5, "too large");
    assert!(stderr(&ran).contains("its largest file is too small"), "{}", stderr(&ran));
    assert!(!stderr(&ran).contains("is full"), "{}", stderr(&ran));
}

#[test]
fn a_journal_that_cannot_be_written_is_reported_and_leaves_nothing() {
    let (folder, source) = image(MIB);
    let target = folder.path().join("disk");
    let mount = Mount::memory("tmpfs", MIB);
    let journals = mount.path().to_str().unwrap();
    run("mount", &["-o", "remount,ro", journals]);
    let ran = import(&[&source, target.to_str().unwrap(), "--journal", journals]);
    assert_exit(&ran, 7, "read-only");
    for word in ["cannot write the journal", "--journal DIR", "Read-only"] {
        assert!(stderr(&ran).contains(word), "{}", stderr(&ran));
    }
    assert_eq!(names(folder.path()), ["image"]);
}

/// A directory that may be written to and not read, for other users than root.
#[test]
fn a_folder_that_cannot_be_listed_is_written_to() {
    let (folder, source) = image(2 * MIB + 513);
    let (open, program) = (folder.path().join("open"), folder.path().join("importer"));
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o733)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    // A copy, as the build folder may be closed to others; by another process, so that it can be run at once.
    run("cp", &[env!("CARGO_BIN_EXE_importer"), program.to_str().unwrap()]);
    let target = open.join("disk");
    let target = target.to_str().unwrap();
    for arguments in [vec![source.as_str(), target], vec!["blank", target, "--size", "1Mi", "--force"]] {
        let mut command = std::process::Command::new(&program);
        command.env_clear().env("PATH", std::env::var("PATH").unwrap()).args(&arguments).uid(107).gid(107);
        assert_exit(&output(&mut command).unwrap(), 0, "a folder of others");
        assert_eq!(names(&open), ["disk"]);
        if arguments.len() == 2 {
            assert_eq!(sha256(Path::new(target)), sha256(Path::new(&source)));
        }
    }
}

#[test]
fn links_and_standard_output_are_no_targets() {
    let (folder, source) = image(MIB);
    let link = folder.path().join("link");
    symlink("nowhere", &link).unwrap();
    for more in [&[][..], &["--force"]] {
        let ran = import(&[&[source.as_str(), link.to_str().unwrap()], more].concat());
        assert_exit(&ran, 7, "a link to nothing");
        assert!(stderr(&ran).contains("is a symbolic link to nothing"), "{}", stderr(&ran));
    }
    let mut command = support::importer();
    let ran = output(command.args([&source, "-"]).current_dir(folder.path())).unwrap();
    assert_exit(&ran, 2, "standard output");
    assert!(stderr(&ran).contains("name a file or a block device"), "{}", stderr(&ran));
    assert_eq!(names(folder.path()), ["image", "link"]);
}

/// The message for a target that is the source in disguise; the source stays unchanged.
#[track_caller]
fn assert_own_source(ran: &std::process::Output, source: &Path, before: &str, what: &str) {
    assert_exit(ran, 7, what);
    assert!(stderr(ran).contains("is the source itself"), "{what}: {}", stderr(ran));
    assert_eq!(sha256(source), before, "{what}: the source is touched");
}

#[test]
fn the_source_itself_is_never_the_target() {
    let (folder, source) = image(4 * MIB);
    let path = Path::new(&source);
    let before = sha256(path);
    let check = |ran: &std::process::Output, what: &str| assert_own_source(ran, path, &before, what);
    let linked = folder.path().join("linked").to_str().unwrap().to_owned();
    fs::hard_link(path, &linked).unwrap();
    for target in [&source, &linked] {
        check(&import(&[&source, target, "--force"]), "by name");
        let from = || fs::File::open(path).unwrap();
        let ran = importer().args(["-", target, "--force"]).stdin(from()).output().unwrap();
        check(&ran, "standard input");
        // Not from its start, which is read as a pipe is.
        let mut later = from();
        std::io::Seek::seek(&mut later, std::io::SeekFrom::Start(512)).unwrap();
        let ran = importer().args(["-", target, "--force"]).stdin(later).output().unwrap();
        check(&ran, "the rest of standard input");
    }

    // A loop device and the file behind it, either way round, and two over the same bytes.
    let attach = |more: &[&str]| {
        let device = run("losetup", &[&["--find", "--show"], more, &[&source]].concat());
        Detached(device)
    };
    let (one, two) = (attach(&[]), attach(&[]));
    for (from, to) in [(&one.0, &source), (&one.0, &linked), (&source, &one.0), (&one.0, &two.0)] {
        check(&import(&[from, to, "--force"]), &format!("{from} {to}"));
    }
    let device = fs::File::open(&one.0).unwrap();
    let ran = importer().args(["-", &source, "--force"]).stdin(device).output().unwrap();
    check(&ran, "a device as standard input");
    drop((one, two));

    // Halves of one file are not the same bytes.
    let (size, half) = ((2 * MIB).to_string(), fs::read(&source).unwrap()[..2 << 20].to_vec());
    let first = attach(&["--sizelimit", &size]);
    let second = attach(&["--offset", &size]);
    assert_exit(&import(&[&first.0, &second.0, "--force"]), 0, "halves");
    assert!(fs::read(&source).unwrap() == [half.clone(), half].concat());
}

/// A loop device that is taken away.
struct Detached(String);

impl Drop for Detached {
    fn drop(&mut self) {
        drop(output(std::process::Command::new("losetup").args(["-d", &self.0])));
    }
}

/// A length that is known at the end only is set when nothing is on its way any more: XFS would zero what just arrived.
#[test]
fn a_stream_without_a_length_keeps_its_end() {
    let volume = Mount::on_loop("xfs", 6 << 30);
    let size = 4_u64 << 30;
    let folder = tempfile::tempdir().unwrap();
    let (raw, packed) = (folder.path().join("raw"), folder.path().join("packed"));
    let disk = OpenOptions::new().write(true).create_new(true).open(&raw).unwrap();
    disk.set_len(size).unwrap();
    let end = Dice(7).bytes(1 << 20);
    disk.write_all_at(&end, size - MIB).unwrap();
    run("sh", &["-c", &format!("zstd -1 -q -c < '{}' > '{}'", raw.display(), packed.display())]);
    let target = volume.path().join("disk.img");
    for _ in 0..10 {
        assert_exit(&import_piped(&packed, &["-", target.to_str().unwrap()]), 0, "piped");
        let mut found = vec![0; end.len()];
        fs::File::open(&target).unwrap().read_exact_at(&mut found, size - MIB).unwrap();
        assert!(found == end, "its last MiB");
        fs::remove_file(&target).unwrap();
    }
}
