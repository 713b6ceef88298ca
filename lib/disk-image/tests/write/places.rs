//! Places to write to: folders on several filesystems and loop devices, all undone when dropped.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{PoisonError, RwLock};

use disk_image::write::Target;

/// Held for reading while a device is opened, for writing while a child is started: a child has our descriptors until
/// it runs its program, which would keep a device of another test in use.
static STARTING: RwLock<()> = RwLock::new(());

/// Runs `command` to its end.
pub(crate) fn output(command: &mut Command) -> io::Result<Output> {
    let started = {
        let _alone = STARTING.write().unwrap_or_else(PoisonError::into_inner);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
    };
    started?.wait_with_output()
}

/// Opens a block device that nobody else may hold.
pub(crate) fn open_alone(device: &Path) -> Target {
    let _nobody_starts = STARTING.read().unwrap_or_else(PoisonError::into_inner);
    Target::block(device, true).unwrap()
}

/// Runs a tool and gives what it printed; a missing tool or a refusal fails the test.
pub(crate) fn run(tool: &str, args: &[&str]) -> String {
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
pub(crate) struct Loop {
    pub(crate) device: PathBuf,
    pub(crate) backing: PathBuf,
    _folder: tempfile::TempDir,
}

impl Loop {
    /// Of `size` bytes with sectors of `sector` bytes.
    pub(crate) fn new(size: u64, sector: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let backing = folder.path().join("backing");
        std::fs::File::create(&backing).unwrap().set_len(size).unwrap();
        Self::over(backing, sector, folder)
    }

    /// Over `backing`, which need not lie in `folder`.
    pub(crate) fn over(backing: PathBuf, sector: u32, folder: tempfile::TempDir) -> Self {
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
pub(crate) struct Mount {
    kind: String,
    folder: tempfile::TempDir,
    under: Option<Loop>,
}

impl Mount {
    /// tmpfs or ramfs; tmpfs of `size` bytes.
    pub(crate) fn memory(kind: &str, size: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let options = if kind == "tmpfs" { format!("size={size}") } else { "rw".to_owned() };
        run("mount", &["-t", kind, "-o", &options, "none", folder.path().to_str().unwrap()]);
        Self { kind: kind.to_owned(), folder, under: None }
    }

    /// ext4, xfs or btrfs on a loop device of `size` bytes.
    pub(crate) fn on_loop(kind: &str, size: u64) -> Self {
        let under = Loop::new(size, 512);
        let device = under.device.to_str().unwrap().to_owned();
        let tool = format!("mkfs.{kind}");
        let quiet: &[&str] = if kind == "ext4" { &["-q", "-F", "-m", "0"] } else { &["-q", "-f"] };
        run(&tool, &[quiet, &[&device]].concat());
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
    pub(crate) fn grow(&self, size: u64) {
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
            run("e2fsck", &["-fy", device]);
            run("resize2fs", &[device]);
            self.attach();
        } else {
            run("xfs_growfs", &[folder]);
        }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn device(&self) -> Option<&Path> {
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
