//! Filesystems and folders of a test's own, undone when dropped: whatever is still mounted in them, attached to files in
//! them, and they themselves.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::names;

/// Runs a tool that must succeed; gives its output.
pub(crate) fn run(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("{tool}: {error}; `make deps` installs what tests need"));
    assert!(output.status.success(), "{tool} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A directory with a filesystem mounted in it, and room next to it.
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
            place.make_disk(bytes);
        }
        place.mount(bytes);
        place
    }

    /// The same on a disk that is a file on a tmpfs of `room` bytes.
    pub(crate) fn on_tmpfs(kind: &str, bytes: i64, room: i64) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap(), kind: kind.to_owned() };
        fs::create_dir(place.pool()).unwrap();
        let below = place.below();
        run("mount", &["-t", "tmpfs", "-o", &format!("size={room}"), "none", below.to_str().unwrap()]);
        std::os::unix::fs::symlink("below/disk", place.folder.path().join("disk")).unwrap();
        place.make_disk(bytes);
        place.mount(bytes);
        place
    }

    /// An XFS of `bytes` on a disk with sectors of 4096 bytes.
    pub(crate) fn of_large_sectors(bytes: i64) -> Self {
        let place = Self { folder: tempfile::tempdir().unwrap(), kind: "xfs".to_owned() };
        fs::create_dir(place.pool()).unwrap();
        let disk = place.folder.path().join("disk");
        fs::File::create(&disk).unwrap().set_len(bytes.try_into().unwrap()).unwrap();
        let device = run("losetup", &["--sector-size", "4096", "--find", "--show", disk.to_str().unwrap()]);
        run("mkfs.xfs", &["-q", "-f", device.trim()]);
        run("mount", &[device.trim(), place.pool().to_str().unwrap()]);
        place
    }

    /// Where the disk is, when it is on a tmpfs.
    pub(crate) fn below(&self) -> PathBuf {
        self.beside("below")
    }

    fn make_disk(&self, bytes: i64) {
        let disk = self.folder.path().join("disk");
        fs::File::create(&disk).unwrap().set_len(bytes.try_into().unwrap()).unwrap();
        let quiet: &[&str] = if self.kind == "ext4" { &["-q", "-F", "-m", "0"] } else { &["-q", "-f"] };
        run(&format!("mkfs.{}", self.kind), &[quiet, &[disk.to_str().unwrap()]].concat());
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

    /// Puts another filesystem in its place, on the same device.
    pub(crate) fn recreate(&self, bytes: i64) {
        self.take_away_when_free();
        self.make_disk(bytes);
        self.put_back();
    }

    /// The pool's data folder, where the filesystem is mounted.
    pub(crate) fn pool(&self) -> PathBuf {
        self.folder.path().join("pool")
    }

    /// A directory next to the filesystem, created if absent.
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

    /// Unmounts the filesystem as soon as it is unused.
    pub(crate) fn take_away_when_free(&self) {
        super::eventually("nobody holds the pool", || {
            let mut umount = Command::new("umount");
            umount.arg(self.pool()).stderr(Stdio::null()).status().unwrap().success()
        });
    }

    /// Lets the filesystem stop; nothing more reaches the disk, not even what the log still has in memory. XFS only.
    pub(crate) fn cut_power(&self) {
        run("xfs_io", &["-x", "-c", "shutdown", self.pool().to_str().unwrap()]);
    }

    /// Leaves what a machine finds when it starts: no device and nothing mounted but the pool.
    pub(crate) fn reboot(&self) {
        let pool = self.pool();
        for point in mounts(self.folder.path()).into_iter().filter(|point| *point != pool) {
            run("umount", &[point.to_str().unwrap()]);
        }
        for device in loops(&pool) {
            run("losetup", &["-d", &format!("/dev/{device}")]);
        }
        self.take_away_when_free();
        // Mounted while the device that it had is going, it would get that again, and the filesystem that has stopped.
        let disk = self.folder.path().join("disk");
        super::eventually("the disk is free", || loops(&disk).is_empty());
        self.put_back();
    }

    /// Lets nothing be written, or lets it again.
    pub(crate) fn remount(&self, how: &str) {
        run("mount", &["-o", &format!("remount,{how}"), self.pool().to_str().unwrap()]);
    }

    /// Whether nothing is left of volumes and snapshots that are deleted and unpublished, of `node1`.
    pub(crate) fn is_clean(&self) {
        let own = self.pool().join(".hpp-csi");
        super::eventually("the trash is empty", || names(&own.join("trash/node1")).is_empty());
        let none: [String; 0] = [];
        for folder in ["tmp/node1", "volumes", "snapshots", "groups", "block"] {
            assert_eq!(names(&own.join(folder)), none, "{folder}");
        }
        assert_eq!(loops(&self.pool()), none);
        let pool = self.pool();
        let mounts: Vec<PathBuf> =
            mounts(self.folder.path()).into_iter().filter(|point| *point != pool).collect();
        assert_eq!(mounts, [] as [PathBuf; 0]);
        let seen: Vec<String> = names(&pool)
            .into_iter()
            .filter(|name| !matches!(name.as_str(), "snapshots" | "lost+found"))
            .collect();
        assert_eq!(seen, [".hpp-csi"]);
        if pool.join("snapshots").exists() {
            assert_eq!(names(&pool.join("snapshots")), none);
        }
    }

    /// Bytes that are free.
    pub(crate) fn free(&self) -> u64 {
        let numbers = rustix::fs::statvfs(self.pool()).unwrap();
        numbers.f_bfree * numbers.f_frsize
    }
}

/// Loop devices with a backing file below `folder`.
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
