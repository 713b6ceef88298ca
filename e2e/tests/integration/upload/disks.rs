//! Disks to upload and clone, each made in the cluster's state folder, and what a volume must hold after it.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use e2e::volume::Volume;
use sha2::{Digest, Sha256};

use crate::upload::{CLUSTER, MIB};

/// A disk of 64 MiB, a third of it data that does not compress, in some forms.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) raw: PathBuf,
    pub(crate) size: u64,
}

/// Where disks are made.
pub(crate) fn folder(name: &str) -> PathBuf {
    let folder = CLUSTER.place().path("disks").join(name);
    fs::create_dir_all(&folder).unwrap();
    folder
}

impl Disk {
    /// Another one for each name.
    pub(crate) fn new(name: &str) -> Self {
        let raw = folder(name).join("disk.raw");
        let size = 64 * MIB;
        let file = File::create_new(&raw).unwrap();
        file.set_len(size).unwrap();
        fill(&file, name);
        Self { raw, size }
    }

    fn shell(&self, script: &str, to: &str) -> PathBuf {
        let to = self.raw.with_file_name(to);
        let done = Command::new("sh").args(["-ec", script, "sh"]).args([&self.raw, &to]).status().unwrap();
        assert!(done.success(), "{script}");
        to
    }

    pub(crate) fn qcow2(&self) -> PathBuf {
        self.shell("qemu-img convert -q -c -f raw -O qcow2 \"$1\" \"$2\"", "disk.qcow2")
    }

    pub(crate) fn gz(&self) -> PathBuf {
        self.shell("gzip -1 -c \"$1\" > \"$2\"", "disk.raw.gz")
    }

    /// That a volume holds this disk and zeroes behind it.
    #[track_caller]
    pub(crate) fn assert_in(&self, volume: &Volume) {
        let disk = if volume.is_block() { volume.path().to_owned() } else { volume.path().join("disk.img") };
        assert_eq!(hash(&disk, self.size), hash(&self.raw, self.size), "{}", disk.display());
    }
}

/// Writes a seeded pattern to every third MiB of a disk of 64 MiB.
pub(crate) fn fill(file: &File, seed: &str) {
    let mut state = seed.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    for at in (0..64).step_by(3) {
        let words = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        let piece: Vec<u8> = words.take(1 << 17).flatten().collect();
        file.write_all_at(&piece, at * MIB).unwrap();
    }
}

/// SHA-256 of the first `size` bytes, and whether the rest is zeroes.
fn hash(path: &Path, size: u64) -> (Vec<u8>, bool) {
    let mut file = File::open(path).unwrap();
    let mut hasher = Sha256::new();
    std::io::copy(&mut (&mut file).take(size), &mut HashWriter(&mut hasher)).unwrap();
    let mut rest = Vec::new();
    file.read_to_end(&mut rest).unwrap();
    (hasher.finalize().to_vec(), rest.iter().all(|&byte| byte == 0))
}

struct HashWriter<'a>(&'a mut Sha256);

impl std::io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
