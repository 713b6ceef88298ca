//! Disks to import, each made once per run in the cluster's state folder, and what a volume must hold after it.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{LazyLock, Mutex, PoisonError};

use e2e::volume::Volume;

use crate::importer::{CLUSTER, MIB};

/// A disk and the image of it.
#[derive(Clone, Debug)]
pub(crate) struct Disk {
    /// The bytes of the disk.
    pub(crate) raw: PathBuf,
    /// A qcow2 of it.
    pub(crate) qcow2: PathBuf,
    /// Bytes of the disk.
    pub(crate) size: u64,
}

/// The folder that servers serve.
pub(crate) fn folder() -> PathBuf {
    CLUSTER.place().path("images")
}

/// The disk of most tests.
pub(crate) static SMALL: LazyLock<Disk> = LazyLock::new(|| Disk::create("small", 64, 48, true));

impl Disk {
    /// A disk of `size` MiB of which the first `data` hold data: of every eight, one is zero, one compresses well,
    /// the rest does not compress. Deflated if `deflate`.
    pub(crate) fn create(name: &str, size: u64, data: u64, deflate: bool) -> Self {
        // One at a time: they are made from random numbers and compressed, on two cores.
        static ALONE: Mutex<()> = Mutex::new(());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        fs::create_dir_all(folder()).unwrap();
        let [raw, qcow2] = ["raw", "qcow2"].map(|form| folder().join(format!("{name}.{form}")));
        let mut file = BufWriter::new(File::create_new(&raw).unwrap());
        let mut state = 0x6532_6500_0000_0001_u64;
        let mut block = Vec::new();
        for index in 0..data {
            block.clear();
            let end = usize::try_from(MIB).unwrap();
            match index % 8 {
                3 => block.resize(end, 0),
                6 => block.resize(end, u8::try_from(index % 250).unwrap() + 1),
                _ => {
                    while block.len() < end {
                        state ^= state << 13;
                        state ^= state >> 7;
                        state ^= state << 17;
                        block.extend_from_slice(&state.to_le_bytes());
                    }
                }
            }
            file.write_all(&block).unwrap();
        }
        file.into_inner().unwrap().set_len(size * MIB).unwrap();
        let mut convert = Command::new("qemu-img");
        convert.args(["convert", "-q", "-W", "-f", "raw", "-O", "qcow2"]);
        if deflate {
            convert.arg("-c");
        }
        let converted = convert.arg(&raw).arg(&qcow2).status().expect("qemu-img is missing: run make deps");
        assert!(converted.success());
        Self { raw, qcow2, size: size * MIB }
    }

    /// The image's name among those of [`folder`].
    pub(crate) fn file(&self) -> &str {
        self.qcow2.file_name().unwrap().to_str().unwrap()
    }

    /// That a volume holds this disk and nothing else.
    #[track_caller]
    pub(crate) fn assert_in(&self, volume: &Volume) {
        if volume.is_block() {
            assert_same(&self.raw, volume.path(), self.size);
            return;
        }
        let names: Vec<_> =
            fs::read_dir(volume.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["disk.img"]);
        let disk = volume.path().join("disk.img");
        let facts = fs::metadata(&disk).unwrap();
        assert_eq!((facts.mode() & 0o7777, facts.uid(), facts.gid()), (0o660, 107, 107));
        assert!(facts.len() >= self.size, "{} bytes", facts.len());
        assert_same(&self.raw, &disk, self.size);
    }

    /// `sha256:…` of the image, for IMPORTER_CHECKSUM.
    pub(crate) fn checksum(&self) -> String {
        let sum = Command::new("sha256sum").arg(&self.qcow2).output().unwrap();
        format!("sha256:{}", String::from_utf8(sum.stdout).unwrap().split(' ').next().unwrap())
    }
}

/// The folder that a disk's image is in.
pub(crate) fn folder_of(disk: &Disk) -> PathBuf {
    disk.qcow2.parent().unwrap().to_owned()
}

/// That a device starts with this disk, whatever is after it.
#[track_caller]
pub(crate) fn assert_starts_with(disk: &Disk, volume: &Volume) {
    let size = disk.size.to_string();
    let compared = Command::new("cmp").args(["-n", &size]).args([&disk.raw, volume.path()]).output().unwrap();
    assert!(compared.status.success(), "{}", String::from_utf8_lossy(&compared.stdout));
}

/// That two files start with the same `size` bytes, and that the second has nothing but zeroes after them.
#[track_caller]
fn assert_same(one: &Path, other: &Path, size: u64) {
    let [mut first, mut second] = [one, other].map(|path| File::open(path).unwrap());
    let mut buffers = [vec![0; 1 << 20], vec![0; 1 << 20]];
    let mut at = 0;
    loop {
        let [wanted, found] = &mut buffers;
        let n = second.read(found).unwrap();
        if n == 0 {
            assert!(at >= size, "{}: only {at} of {size} bytes", other.display());
            return;
        }
        let mut known = 0;
        while known < n {
            match first.read(&mut wanted[known..n]).unwrap() {
                0 => break,
                more => known += more,
            }
        }
        assert!(wanted[..known] == found[..known], "{} differs in the MiB at {at}", other.display());
        assert!(found[known..n].iter().all(|&byte| byte == 0), "{}: bytes after its end", other.display());
        at += n as u64;
    }
}
