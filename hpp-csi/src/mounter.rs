//! `hpp-csi mounter`: the program of a pool's pod. It mounts the volume of the pool's claim in the pool's directory of the
//! node, and keeps it mounted.
//!
//! ```text
//!  claim ─ kubelet ─► /source or /dev/data in the pod ─ mounter ─► <path>/csi of the node ─ propagation ─► the driver
//! ```
//!
//! Flags are those of upstream's mounter. The mount stays when the pod ends: the pool goes on while the pod is replaced.
//! `--unmount` takes it off; `--check` reports by its exit code whether it is there (readiness probe). `--remove` deletes a
//! directory instead: a volume of upstream's provisioner without CSI.
//!
//! [`plan`] decides (pure). Not here: pools as the driver uses them ([`crate::pool`]), Kubernetes.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use clap::Parser;

use crate::apply::image::{self, Filesystem};
use crate::error::{Error, Kind, Result};
use crate::mounts::{self, Place};
use dir::Dir;

/// First argument that selects this program.
pub(crate) const NAME: &str = "mounter";
/// Time between two looks at the mount.
const INTERVAL: Duration = Duration::from_secs(2);
/// Bytes at the beginning and at the end of a device that must be zero for a filesystem to be made on it.
const BLANK: usize = 1 << 20;

/// Mounts the volume of a pool's claim in the pool's directory of the node.
#[derive(Debug, Parser)]
#[command(name = "mounter", args_override_self = true)]
struct Args {
    /// The claim's volume in this pod: a directory, or a block device.
    #[arg(long = "storagePoolPath", required_unless_present_any = ["unmount", "remove"])]
    storage_pool_path: Option<PathBuf>,

    /// Directory of the node at which it is mounted.
    #[arg(long = "mountPath")]
    mount_path: PathBuf,

    /// Directory of this pod that shows the node's.
    #[arg(long = "hostPath", default_value = "/host")]
    host_path: PathBuf,

    /// Unmount it and end.
    #[arg(long)]
    unmount: bool,

    /// Delete the directory with all that is in it, and end: a volume of upstream's provisioner without CSI.
    #[arg(long, conflicts_with_all = ["unmount", "check"])]
    remove: bool,

    /// End at once; exit code 0: it is mounted.
    #[arg(long)]
    check: bool,
}

/// The program: arguments in (its name first), exit code out.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let args = match Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => {
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    serve::logs::init(serve::logs::klog_level(1), false);
    match work(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            tracing::error!(error = %error.chain(), path = %args.mount_path.display(), "the pool is not mounted");
            ExitCode::FAILURE
        }
    }
}

fn work(args: &Args) -> Result<bool> {
    let target = Target::new(&args.host_path, &args.mount_path)?;
    if args.remove {
        return Ok(target.folder.remove_all(&target.name).map(|_| true)?);
    }
    let Some(source) = args.storage_pool_path.as_deref().filter(|_| !args.unmount) else {
        return target.unmount().map(|()| true);
    };
    if args.check {
        return Ok(plan(&Source::read(source)?, target.stat()?)? == Step::Nothing);
    }
    let (stop, stopped) = mpsc::channel();
    serve::signals::watch(move |_| stop.send(()).unwrap_or_default())
        .map_err(|error| Error::io("watch for signals", error))?;
    loop {
        target.mount(source)?;
        match stopped.recv_timeout(INTERVAL) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return Ok(true),
        }
    }
}

/// The claim's volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// A directory: device and inode.
    Folder((u64, u64)),
    /// A block device: its number.
    Device(u64),
}

impl Source {
    fn read(path: &Path) -> Result<Self> {
        let found = std::fs::metadata(path)
            .map_err(|error| Error::io(format!("look at {}", path.display()), error))?;
        if found.file_type().is_block_device() {
            Ok(Self::Device(found.rdev()))
        } else if found.is_dir() {
            Ok(Self::Folder((found.dev(), found.ino())))
        } else {
            Err(Error::new(
                Kind::Invalid,
                format!("{} is neither a directory nor a block device", path.display()),
            ))
        }
    }
}

/// A step towards the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Nothing,
    Mount,
}

/// The step from the present state of the pool's place.
fn plan(source: &Source, place: Option<Place>) -> Result<Step> {
    let place = match place {
        None => return Ok(Step::Mount),
        Some(place) if !place.is_folder => {
            return Err(Error::new(Kind::Precondition, "the pool's path is not a directory"));
        }
        Some(place) if !place.mounted => return Ok(Step::Mount),
        Some(place) => place,
    };
    let same = match source {
        Source::Folder(file) => place.file == *file,
        Source::Device(device) => place.file.0 == *device,
    };
    if same {
        return Ok(Step::Nothing);
    }
    Err(Error::new(
        Kind::Precondition,
        "another filesystem is mounted at the pool's path; unmount it, or give the pool another path",
    ))
}

/// The pool's place on the node.
struct Target {
    folder: Dir,
    name: PathBuf,
}

impl Target {
    fn new(host: &Path, path: &Path) -> Result<Self> {
        let invalid = || Error::new(Kind::Invalid, format!("{} is not an absolute path", path.display()));
        let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(invalid)?;
        let beneath = parent.strip_prefix("/").map_err(|_| invalid())?;
        let parent = host.join(beneath);
        let missing = || Error::new(Kind::NotReady, format!("{} does not exist", parent.display()));
        let folder = Dir::find(&parent)?.ok_or_else(missing)?;
        Ok(Self { folder, name: PathBuf::from(name) })
    }

    fn stat(&self) -> Result<Option<Place>> {
        mounts::stat(&self.folder, &self.name)
    }

    fn mount(&self, source: &Path) -> Result<()> {
        let found = Source::read(source)?;
        if plan(&found, self.stat()?)? == Step::Nothing {
            return Ok(());
        }
        self.folder.dir_or_make(&self.name, 0o755)?;
        let mount = match found {
            Source::Folder(_) => mounts::bound(Dir::open(source)?.as_fd(), 0, 0)?,
            Source::Device(_) => mounts::filesystem(prepare(source)?.name(), source, false)?,
        };
        mounts::attach(mount.as_fd(), &self.folder, &self.name)?;
        tracing::info!(path = %self.folder.path_of(&self.name).display(), "the pool is mounted");
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        mounts::detach(&self.folder, &self.name, |_| Ok(true)).map(drop)
    }
}

/// The filesystem of a device: the one that it has, or on a blank device a new XFS (ext4 where it is too small for that).
fn prepare(path: &Path) -> Result<Filesystem> {
    let failed = |error| Error::io(format!("read {}", path.display()), error);
    let device = File::options().read(true).write(true).open(path).map_err(failed)?;
    if let Some(found) = Filesystem::of(&device)? {
        return Ok(found);
    }
    let size =
        rustix::fs::seek(&device, rustix::fs::SeekFrom::End(0)).map_err(|error| failed(error.into()))?;
    let length = BLANK.min(usize::try_from(size).unwrap_or(BLANK));
    let mut bytes = vec![0; length];
    for at in [0, size.saturating_sub(u64::try_from(length).unwrap_or(0))] {
        device.read_exact_at(&mut bytes, at).map_err(failed)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Err(Error::new(
                Kind::Precondition,
                format!(
                    "{} holds data and neither XFS nor ext4; wipe it if the pool is to have it",
                    path.display()
                ),
            ));
        }
    }
    image::format(&device, "", size)?;
    Filesystem::of(&device)?
        .ok_or_else(|| Error::new(Kind::Internal, format!("{} has no filesystem", path.display())))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::testing::eventually;
    use crate::testing::place::{self, Place as Filesystems};

    #[test]
    fn a_place_gets_the_claims_volume_and_no_other() {
        let place = Place { mounted: false, file: (1, 2), block: None, is_folder: true, read_only: false };
        let (folder, device) = (Source::Folder((7, 8)), Source::Device(7));
        let mounted = |file| Some(Place { mounted: true, file, ..place });
        for (source, seen, wanted) in [
            (folder, None, Some(Step::Mount)),
            (folder, Some(place), Some(Step::Mount)),
            (folder, mounted((7, 8)), Some(Step::Nothing)),
            (folder, mounted((7, 9)), None),
            (device, mounted((7, 128)), Some(Step::Nothing)),
            (device, mounted((6, 128)), None),
            (folder, Some(Place { is_folder: false, ..place }), None),
        ] {
            assert_eq!(plan(&source, seen).ok(), wanted, "{source:?} {seen:?}");
        }
    }

    #[test]
    fn a_volume_is_mounted_once_and_taken_off() {
        let place = Filesystems::new("tmpfs", 16 << 20);
        let (source, host) = (place.pool().join("source"), place.pool().join("host"));
        fs::create_dir_all(&source).unwrap();
        fs::create_dir_all(host.join("data")).unwrap();
        fs::write(source.join("file"), "kept").unwrap();
        let target = Target::new(&host, Path::new("/data/csi")).unwrap();
        for _ in 0..2 {
            target.mount(&source).unwrap();
        }
        assert!(target.stat().unwrap().unwrap().mounted);
        assert_eq!(fs::read_to_string(host.join("data/csi/file")).unwrap(), "kept");
        let other = place.pool().join("other");
        fs::create_dir_all(&other).unwrap();
        target.mount(&other).unwrap_err();
        for _ in 0..2 {
            target.unmount().unwrap();
        }
        assert!(!host.join("data/csi/file").exists());
        assert!(source.join("file").exists());
        let node = place.pool();
        let remove = ["mounter", "--remove", "--mountPath", "/source", "--hostPath", node.to_str().unwrap()];
        for _ in 0..2 {
            assert!(work(&Args::try_parse_from(remove).unwrap()).unwrap());
        }
        assert!(!source.exists());
        assert!(Target::new(&host, Path::new("data/csi")).is_err());
    }

    #[test]
    fn a_blank_device_gets_a_filesystem_and_another_is_refused() {
        let place = Filesystems::new("tmpfs", 256 << 20);
        let (disk, host) = (place.pool().join("disk"), place.pool().join("host"));
        fs::create_dir(&host).unwrap();
        let target = Target::new(&host, Path::new("/csi")).unwrap();
        let file = File::create(&disk).unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(b"data", (64 << 20) - 4).unwrap();
        let device = place::run("losetup", &["-f", "--show", disk.to_str().unwrap()]);
        let device = Path::new(device.trim());
        let refused = target.mount(device).unwrap_err();
        assert!(refused.chain().contains("holds data"), "{}", refused.chain());
        file.write_all_at(&[0; 4], (64 << 20) - 4).unwrap();
        for _ in 0..2 {
            target.mount(device).unwrap();
        }
        fs::write(host.join("csi/file"), "kept").unwrap();
        // A child of another test may have a copy of the file's descriptor between fork and exec.
        eventually("the file is closed everywhere", || target.unmount().is_ok());
        target.mount(device).unwrap();
        assert_eq!(fs::read_to_string(host.join("csi/file")).unwrap(), "kept", "it is not made again");
        // A child of another test may have a copy of the file's descriptor between fork and exec.
        eventually("the file is closed everywhere", || target.unmount().is_ok());
    }
}
