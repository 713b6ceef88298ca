//! Restrictions of containers: io_uring by a seccomp filter, locked memory by a limit. Each in a child process, which is
//! this test binary running one test.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use disk_image::write::{EngineKind, Options, Target, Writer};
use places::guest::Dice;
use places::{output, sys};

use super::alignment::{parts, write_parts};
use super::check_disk;

/// Names the folder the child writes to.
const FOLDER: &str = "DISK_IMAGE_TEST_FOLDER";

/// Run by itself it proves the default engine; as a child it proves what is left of it.
#[test]
fn writes_with_what_is_allowed() {
    let own = tempfile::tempdir();
    let folder = std::env::var_os(FOLDER).map_or_else(|| own.unwrap().path().to_owned(), Into::into);
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("disk.img");
    let mut disk = vec![0; 4_000_000];
    let parts = parts(&mut Dice(77), &mut disk);
    let writer =
        Writer::open(Target::file(&path, false).unwrap(), disk.len() as u64, &Options::default()).unwrap();
    write_parts(&writer, parts, 77);
    let engine = writer.finish().unwrap().engine;
    check_disk(&path, &disk, "with what is allowed");
    println!("engine: {engine}");
    let forced = Options { engine: Some(EngineKind::IoUring), ..Options::default() };
    let forced = Writer::open(Target::file(&path, false).unwrap(), 4096, &forced);
    assert_eq!(
        forced.is_ok(),
        engine.kind == EngineKind::IoUring,
        "the engine reported is the one that works"
    );
    std::fs::remove_file(&path).unwrap();
}

/// Runs it as a child prepared by `prepare` and gives its line about the engine.
fn child(prepare: impl FnOnce(&mut Command, &Path)) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    // A copy, as the build folder may be closed to others. Another process makes it: a child of a concurrent test would
    // inherit our descriptor for writing, and the kernel runs no file that is open for writing (ETXTBSY).
    let binary = folder.path().join("test");
    let copied = output(Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&binary)).unwrap();
    assert!(copied.status.success(), "{copied:?}");
    let mut command = Command::new(&binary);
    command.args([
        "--exact",
        "write::refused::writes_with_what_is_allowed",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env(FOLDER, folder.path().join("disk")).env("TMPDIR", folder.path()).current_dir(folder.path());
    prepare(&mut command, folder.path());
    let output = output(&mut command).unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    text.lines().find_map(|line| line.split_once("engine: ")).unwrap_or_else(|| panic!("{text}")).1.to_owned()
}

#[test]
fn without_a_filter_the_ring_is_used() {
    let engine = child(|_, _| {});
    assert!(engine.starts_with("io_uring, direct, registered"), "{engine}");
}

#[test]
fn a_seccomp_filter_leaves_pwrite() {
    let engine = child(|command, _| sys::forbid_io_uring(command, libc::EPERM));
    assert!(engine.starts_with("pwrite, direct"), "{engine}");
    assert!(engine.contains("io_uring is refused: Operation not permitted"), "{engine}");
}

#[test]
fn uid_107_with_64_kib_of_locked_memory_writes_too() {
    let engine = child(|command, _| {
        command.uid(107).gid(107);
        sys::limit_memlock(command, 64 << 10);
    });
    assert!(engine.contains("direct"), "{engine}");
    // Unlike root, whose locked memory is unlimited.
    assert!(engine.starts_with("pwrite") || engine.contains("registering buffers is refused"), "{engine}");
}

#[test]
fn uid_107_with_both_writes_too() {
    let engine = child(|command, _| {
        command.uid(107).gid(107);
        sys::limit_memlock(command, 64 << 10);
        sys::forbid_io_uring(command, libc::EPERM);
    });
    assert!(engine.starts_with("pwrite, direct"), "{engine}");
}
