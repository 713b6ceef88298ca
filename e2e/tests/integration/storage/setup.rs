//! The cluster of these tests: storage, kinds, images to import, and the controllers.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use e2e::{Cluster, programs, storage};

use crate::storage::platform;
pub(crate) use crate::storage::platform::{PLATFORM, apply};

pub(crate) const MIB: u64 = 1 << 20;
/// Bytes of the pool, for all volumes at once. Its file is sparse.
const POOL: u64 = 64 << 30;
/// The class of the driver's manifests, which waits for the first consumer.
pub(crate) const WAITING: &str = "hostpath-csi";
/// The same, bound at once.
pub(crate) const IMMEDIATE: &str = "hostpath-immediate";

/// A cluster with storage, kinds, controllers, webhooks and the upload proxy. It ends with the process.
pub(crate) static CLUSTER: LazyLock<Cluster> = LazyLock::new(|| {
    let image = programs::image().unwrap();
    let cluster = Cluster::start().unwrap();
    cluster.import_images(&image).unwrap();
    storage::install(&cluster, POOL, storage::Provisioner::Sidecars).unwrap();
    let class = format!(
        "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{name: {IMMEDIATE}}}\n\
         provisioner: kubevirt.io.hostpath-provisioner\nvolumeBindingMode: Immediate\n\
         allowVolumeExpansion: true\nparameters: {{storagePool: legacy}}\n"
    );
    apply(&cluster, &class);
    platform::install(&cluster);
    cluster
});

/// A disk of 64 MiB, a quarter of it data, and its qcow2.
pub(crate) struct Disk {
    pub(crate) raw: PathBuf,
    pub(crate) qcow2: PathBuf,
}

pub(crate) const DISK_SIZE: u64 = 64 * MIB;

pub(crate) static DISK: LazyLock<Disk> = LazyLock::new(|| {
    let folder = CLUSTER.place().path("images");
    fs::create_dir_all(&folder).unwrap();
    let disk = Disk { raw: folder.join("disk.raw"), qcow2: folder.join("disk.qcow2") };
    let mut file = File::create(&disk.raw).unwrap();
    let mut state = 5_u64;
    let bytes = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        state.to_be_bytes()
    });
    let bytes: Vec<u8> = bytes.take(2 << 20).flatten().collect();
    file.write_all(&bytes).unwrap();
    file.set_len(DISK_SIZE).unwrap();
    let convert = ["convert", "-q", "-f", "raw", "-O", "qcow2"];
    assert!(
        Command::new("qemu-img").args(convert).args([&disk.raw, &disk.qcow2]).status().unwrap().success()
    );
    disk
});

/// A tar file with the disk as `files.raw`; web servers of the disk's folder have it, too, as [`ARCHIVE_URL`].
pub(crate) static ARCHIVE: LazyLock<PathBuf> = LazyLock::new(|| {
    let file = DISK.raw.parent().unwrap().join(ARCHIVE_URL);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let tar = Command::new("tar")
        .args(["--transform", "s/.*/files.raw/", "-cf"])
        .arg(&file)
        .arg("-C")
        .arg(DISK.raw.parent().unwrap())
        .arg(DISK.raw.file_name().unwrap())
        .status();
    assert!(tar.unwrap().success());
    file
});

/// Where the archive is below the disk's folder.
pub(crate) const ARCHIVE_URL: &str = "archive/files.tar";

/// Whether a volume begins with the disk's bytes.
#[track_caller]
pub(crate) fn assert_same(volume: &Path) {
    let size = DISK_SIZE.to_string();
    let compared = Command::new("cmp").args(["-n", &size]).args([&DISK.raw, volume]).output().unwrap();
    assert!(compared.status.success(), "{}", String::from_utf8_lossy(&compared.stderr));
}

/// Whether a volume is as large as the disk at least, and has nothing but zeros.
#[track_caller]
pub(crate) fn assert_empty(volume: &Path) {
    let size = fs::metadata(volume).unwrap().len();
    assert!(size >= DISK_SIZE, "{}: {size} bytes", volume.display());
    let compared =
        Command::new("cmp").args(["-n", &size.to_string(), "/dev/zero"]).arg(volume).output().unwrap();
    assert!(compared.status.success(), "{}", String::from_utf8_lossy(&compared.stdout));
}
