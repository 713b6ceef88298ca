//! Filesystems and folders of a test's own, undone when dropped: whatever is still mounted in them, attached to files in
//! them, and they themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs a tool that must succeed; gives its output.
pub(crate) fn run(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{tool}: {error}; `make deps` installs what tests need"));
    assert!(output.status.success(), "{tool} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A folder with a filesystem mounted in it, and room beside it.
pub(crate) struct Place {
    folder: tempfile::TempDir,
    kind: String,
}

impl Place {
    /// A filesystem of `kind` (xfs, ext4, tmpfs) of `bytes`.
    pub(crate) fn new(kind: &str, bytes: i64) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap(), kind: kind.to_owned() };
        fs::create_dir(place.pool()).unwrap();
        if kind != "tmpfs" {
            let disk = place.folder.path().join("disk");
            fs::File::create(&disk).unwrap().set_len(bytes.try_into().unwrap()).unwrap();
            let quiet: &[&str] = if kind == "ext4" { &["-q", "-F", "-m", "0"] } else { &["-q", "-f"] };
            run(&format!("mkfs.{kind}"), &[quiet, &[disk.to_str().unwrap()]].concat());
        }
        place.mount(bytes);
        place
    }

    fn mount(&self, bytes: i64) {
        let pool = self.pool();
        let pool = pool.to_str().unwrap();
        if self.kind == "tmpfs" {
            run("mount", &["-t", "tmpfs", "-o", &format!("size={bytes}"), "none", pool]);
        } else {
            run("mount", &["-o", "loop", self.folder.path().join("disk").to_str().unwrap(), pool]);
        }
    }

    /// The pool's data folder, where the filesystem is mounted.
    pub(crate) fn pool(&self) -> PathBuf {
        self.folder.path().join("pool")
    }

    /// A folder beside the filesystem, made if need be.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// Takes the filesystem away.
    pub(crate) fn take_away(&self) {
        run("umount", &[self.pool().to_str().unwrap()]);
    }

    /// Puts it back.
    pub(crate) fn put_back(&self) {
        self.mount(0);
    }

    /// Lets nothing be written, or lets it again.
    pub(crate) fn remount(&self, how: &str) {
        run("mount", &["-o", &format!("remount,{how}"), self.pool().to_str().unwrap()]);
    }

    /// Bytes that are free.
    pub(crate) fn free(&self) -> u64 {
        let numbers = rustix::fs::statvfs(self.pool()).unwrap();
        numbers.f_bfree * numbers.f_frsize
    }
}

/// Loop devices whose backing file is below `folder`.
pub(crate) fn loops(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/sys/block").unwrap() {
        let entry = entry.unwrap();
        if let Ok(backing) = fs::read_to_string(entry.path().join("loop/backing_file"))
            && Path::new(backing.trim()).starts_with(folder)
        {
            found.push(entry.file_name().into_string().unwrap());
        }
    }
    found
}

/// Mount points below `folder`, the latest first.
pub(crate) fn mounts(folder: &Path) -> Vec<PathBuf> {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let points = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    let mut found: Vec<PathBuf> = points.filter(|point| point.starts_with(folder)).collect();
    found.reverse();
    found
}

impl Drop for Place {
    fn drop(&mut self) {
        for point in mounts(self.folder.path()) {
            let _ = Command::new("umount").arg(point).status();
        }
        for device in loops(self.folder.path()) {
            let _ = Command::new("losetup").args(["-d", &format!("/dev/{device}")]).status();
        }
        for point in mounts(self.folder.path()) {
            let _ = Command::new("umount").arg("-l").arg(point).status();
        }
    }
}
