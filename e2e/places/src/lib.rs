//! Places that tests of several programs write disks to: folders on several filesystems and loop devices, all undone when
//! dropped; disks as guests write them; and children that are forbidden what some machines forbid.
//!
//! Used by tests alone, as a dev-dependency. Not here: the tests' writes.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that has no place to write to fails by panicking"
)]
#![expect(clippy::cast_possible_truncation, reason = "numbers of system calls, and small test data")]

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

pub mod forms;
pub mod guest;
pub mod sys;

/// Held for reading while a device is opened, for writing while a child is started: a child has our descriptors until
/// it runs its program, which would keep a device of another test in use.
static STARTING: RwLock<()> = RwLock::new(());

/// Held for writing while a loop device is attached: of two processes that find the same free one, the later one claims it
/// for a moment before the kernel reports that it is taken.
static ATTACHING: RwLock<()> = RwLock::new(());

/// A program of this workspace, as the tests' build made it: `cargo test --workspace` builds all of them.
///
/// # Panics
/// It is not built.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let found = test.ancestors().nth(2).unwrap().join(name);
    assert!(found.exists(), "{} is missing: cargo build --workspace builds it", found.display());
    found
}

/// Runs `command` to its end.
///
/// # Errors
/// It cannot be started.
pub fn output(command: &mut Command) -> io::Result<Output> {
    let started = {
        let _alone = STARTING.write().unwrap_or_else(PoisonError::into_inner);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    started?.wait_with_output()
}

/// Opens a file or device exclusively: not even a child of this process between fork and exec may hold it.
pub fn alone<T>(open: impl FnOnce() -> T) -> T {
    let _nobody_attaches = ATTACHING.read().unwrap_or_else(PoisonError::into_inner);
    let _nobody_starts = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    open()
}

/// Runs a tool; gives its output.
///
/// # Panics
/// The tool is missing, or fails.
pub fn run(tool: &str, args: &[&str]) -> String {
    let output = output(Command::new(tool).args(args)).unwrap_or_else(|e| {
        panic!("{tool} cannot be run ({e}); `make deps` installs it, and the tests need root")
    });
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool} {args:?} failed (the tests need root): {stderr}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Runs a tool that may fail; whether it did not.
fn tried(tool: &str, args: &[&str]) -> bool {
    output(Command::new(tool).args(args)).is_ok_and(|output| output.status.success())
}

/// A loop device over a sparse file.
#[derive(Debug)]
pub struct Loop {
    /// The device.
    pub device: PathBuf,
    /// The file.
    pub backing: PathBuf,
    _folder: tempfile::TempDir,
}

impl Loop {
    /// Of `size` bytes with sectors of `sector` bytes.
    ///
    /// # Panics
    /// It cannot be made; the same of all functions here.
    pub fn new(size: u64, sector: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let backing = folder.path().join("backing");
        std::fs::File::create(&backing).unwrap().set_len(size).unwrap();
        Self::over(backing, sector, folder)
    }

    /// Over `backing`, which need not lie in `folder`.
    pub fn over(backing: PathBuf, sector: u32, folder: tempfile::TempDir) -> Self {
        let _alone = ATTACHING.write().unwrap_or_else(PoisonError::into_inner);
        let device =
            run("losetup", &["--find", "--show", "-b", &sector.to_string(), backing.to_str().unwrap()]);
        Self { device: device.into(), backing, _folder: folder }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        tried("losetup", &["-d", self.device.to_str().unwrap_or_default()]);
    }
}

/// A mounted filesystem.
#[derive(Debug)]
pub struct Mount {
    kind: String,
    folder: tempfile::TempDir,
    under: Option<Loop>,
}

impl Mount {
    /// tmpfs or ramfs; tmpfs of `size` bytes.
    pub fn memory(kind: &str, size: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = if kind == "tmpfs" { format!("size={size}") } else { "rw".to_owned() };
        run("mount", &["-t", kind, "-o", &options, "none", folder.path().to_str().unwrap()]);
        Self { kind: kind.to_owned(), folder, under: None }
    }

    /// ext4, xfs or btrfs on a loop device of `size` bytes.
    pub fn on_loop(kind: &str, size: u64) -> Self {
        Self::on_loop_as(kind, size, &[])
    }

    /// The same, made with `more` flags.
    pub fn on_loop_as(kind: &str, size: u64, more: &[&str]) -> Self {
        let under = Loop::new(size, 512);
        let device = under.device.to_str().unwrap().to_owned();
        let tool = format!("mkfs.{kind}");
        let quiet: &[&str] = if kind == "ext4" { &["-q", "-F", "-m", "0"] } else { &["-q", "-f"] };
        run(&tool, &[quiet, more, &[&device]].concat());
        let folder = tempfile::tempdir().unwrap();
        let mount = Self { kind: kind.to_owned(), folder, under: Some(under) };
        mount.attach();
        mount
    }

    fn attach(&self) {
        if let Some(under) = &self.under {
            run("mount", &[under.device.to_str().unwrap(), self.folder.path().to_str().unwrap()]);
        }
    }

    /// Makes the filesystem larger: ext4 unmounted, as growing it while mounted needs more than root has everywhere;
    /// XFS mounted, as it wants.
    pub fn grow(&self, size: u64) {
        let folder = self.folder.path().to_str().unwrap();
        let under = self.under.as_ref().unwrap();
        let device = under.device.to_str().unwrap();
        let ext4 = self.kind == "ext4";
        if ext4 {
            run("umount", &[folder]);
        }
        std::fs::OpenOptions::new().write(true).open(&under.backing).unwrap().set_len(size).unwrap();
        run("losetup", &["-c", device]);
        if ext4 {
            // A mount namespace made in between has the mount for as long as it exists.
            let begun = Instant::now();
            while !tried("e2fsck", &["-fy", device]) {
                assert!(
                    begun.elapsed() < Duration::from_secs(20),
                    "{device} is held by somebody, or damaged"
                );
                std::thread::sleep(Duration::from_millis(200));
            }
            run("resize2fs", &[device]);
            self.attach();
        } else {
            run("xfs_growfs", &[folder]);
        }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The device that it is on.
    pub fn device(&self) -> Option<&Path> {
        self.under.as_ref().map(|under| under.device.as_path())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let folder = self.folder.path().to_str().unwrap_or_default();
        if !tried("umount", &[folder]) {
            tried("umount", &["-l", folder]);
            assert!(std::thread::panicking(), "somebody still holds a file on {folder}");
        }
    }
}
