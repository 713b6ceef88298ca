//! The state folder: what is in it, by name, and that one daemon has it.
//!
//! ```text
//! lock  version  boot              one daemon; which version, and the oldest that reads it; which boot of the machine it was
//! virt-node.sock                   the daemon's socket
//! objects/KIND/NAMESPACE/NAME      what a person wrote and what is known of it (store)
//! events                           what happened, a line each
//! addresses                        the range that guests' MAC addresses are given out of
//! ids                              the users of VMs and transfers, by number
//! guests/UID/                      kept between a VM's runs: kept.json; vm/: what its user writes (EFI variables, TPM)
//! run/UID/                         a run (12 digits of its UID): disks, log; vm/: its user's, the launcher's directory
//! claims/UID/                      a volume: data/ or dev/, and the importer's word about it
//! images/HASH/                     the disk of a container image
//! volumes/                         the pool of volumes; csi/: the driver's socket and memory
//! netns/UID                        a guest's network namespace: nsenter --net=… enters it
//! networks/, plugins/              what CNI plugins were asked and answered; the plugins, ours by their names
//! capabilities/, kvm               what QEMU and libvirt can do, and whether KVM works (in this boot)
//! ```
//!
//! Names that a person chose are names of files in `objects` only, and checked there; everything else is called by UIDs.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::ids::Ids;
use super::process;
use super::run::Run;
use crate::error::{Error, Kind};

/// The version of the state directory that is written, and the oldest release that may read it, as a version. Readers ignore
/// fields that they do not know, so that most new versions can be read by older releases; version 2 moved what a VM's user
/// writes to a directory of its own, where a release of version 1 would not find running VMs.
pub(super) const VERSION: u64 = 2;
const READABLE_BY: u64 = 2;
/// Default of the state directory.
pub(crate) const DEFAULT: &str = "/var/lib/ferrovirt";
/// Error text for a directory that another daemon has.
pub(crate) const TAKEN: &str = "is in use by another virt-node serve";
/// Longest file with the version, in bytes.
const VERSION_MAX: u64 = 256;
/// Longest path of the folder: sockets of runs below it have short names only.
const PATH_MAX: usize = 32;
/// Digits of a UID that name a run's folder.
const SHORT: usize = 12;

/// The lock of a state directory. It ends with this value, also while a child between `fork` and `exec` has a copy of the
/// descriptor.
#[derive(Debug)]
struct Lock(File);

impl Lock {
    /// None if another process or value has it.
    fn try_acquire(file: File) -> Option<Self> {
        flock(&file, FlockOperation::NonBlockingLockExclusive).ok().map(|()| Self(file))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        flock(&self.0, FlockOperation::Unlock).unwrap_or(());
    }
}

/// The state folder, held by this process alone.
#[derive(Debug)]
pub(crate) struct State {
    folder: PathBuf,
    lock: Lock,
    ids: Ids,
}

/// The daemon's socket in a state folder.
pub(crate) fn socket(folder: &Path) -> PathBuf {
    folder.join("virt-node.sock")
}

impl State {
    /// Opens and locks the folder; creates it if it does not exist. After a boot of the machine no run is left.
    ///
    /// # Errors
    /// Another daemon has it, or a newer release wrote it.
    pub(super) fn open(folder: &Path) -> Result<Self, Error> {
        let shown = folder.display().to_string();
        let failed = |error: io::Error| {
            Error::with(Kind::System, format!("cannot open the state directory {shown}"), error)
        };
        fs::create_dir_all(folder).map_err(failed)?;
        let folder = fs::canonicalize(folder).map_err(failed)?;
        if folder.as_os_str().len() > PATH_MAX {
            let text = format!(
                "the path of the state directory {shown} has more than {PATH_MAX} bytes, too long for the sockets in it; give a \
                 shorter one with --state"
            );
            return Err(Error::new(Kind::Usage, text));
        }
        let lock = File::create(folder.join("lock")).map_err(failed)?;
        let lock =
            Lock::try_acquire(lock).ok_or_else(|| Error::new(Kind::System, format!("{shown} {TAKEN}")))?;
        check_version(&folder)?;
        let ids = Ids::open(&folder.join("ids"))?;
        let state = Self { folder, lock, ids };
        // The guests' user passes through to what is its own; only root sees what is where.
        for (name, mode) in [
            ("", 0o711),
            ("objects", 0o700),
            ("guests", 0o711),
            ("run", 0o711),
            ("claims", 0o711),
            ("images", 0o711),
            ("volumes", 0o700),
            ("csi", 0o700),
        ] {
            let path = state.folder.join(name);
            fs::create_dir_all(&path).map_err(failed)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(failed)?;
        }
        state.note_boot().map_err(failed)?;
        state.refuse_older_runs()?;
        write_version(&state.folder)?;
        Ok(state)
    }

    /// Users and groups of VMs and transfers.
    pub(super) fn ids(&self) -> &Ids {
        &self.ids
    }

    /// The launcher of a VM that an earlier release started is in another place: the VM would be taken for lost, and started
    /// a second time.
    fn refuse_older_runs(&self) -> Result<(), Error> {
        for entry in fs::read_dir(self.folder.join("run")).into_iter().flatten().flatten() {
            let run = Run::new(entry.path());
            if !run.own().is_dir() && process::lives(&run.log()) {
                let text = format!(
                    "a VM of an earlier release runs in {}: stop it with that release, or restart the machine",
                    run.path().display()
                );
                return Err(Error::new(Kind::System, text));
            }
        }
        Ok(())
    }

    /// Whether the folder is still the one that was taken: one that was removed, or put in its place, may be another daemon's.
    pub(super) fn is_there(&self) -> bool {
        let there = fs::metadata(self.folder.join("lock"));
        let own = self.lock.0.metadata();
        there.is_ok_and(|there| own.is_ok_and(|own| (there.dev(), there.ino()) == (own.dev(), own.ino())))
    }

    /// Forgets the runs of an earlier boot of the machine: their processes, mounts and links are gone.
    fn note_boot(&self) -> io::Result<()> {
        let path = self.folder.join("boot");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        if fs::read_to_string(&path).is_ok_and(|before| before == boot) {
            return Ok(());
        }
        // KVM is probed once per boot.
        drop(fs::remove_file(self.folder.join("kvm")));
        let runs = self.folder.join("run");
        fs::remove_dir_all(&runs)?;
        fs::create_dir(&runs)?;
        fs::set_permissions(&runs, fs::Permissions::from_mode(0o711))?;
        Ok(dir::replace(&path, boot.as_bytes(), 0o600)?)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The daemon's socket.
    pub(super) fn socket(&self) -> PathBuf {
        socket(&self.folder)
    }

    /// The folder of a run.
    pub(super) fn run(&self, uid: &str) -> Run {
        let digits: String = uid.chars().filter(char::is_ascii_hexdigit).take(SHORT).collect();
        Run::new(self.folder.join("run").join(digits))
    }

    /// The state of a VM that is kept between runs.
    pub(super) fn guest(&self, uid: &str) -> PathBuf {
        self.folder.join("guests").join(uid)
    }

    /// The folder of a claim's volume.
    pub(super) fn claim(&self, uid: &str) -> PathBuf {
        self.folder.join("claims").join(uid)
    }
}

fn version_failed(path: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |error| Error::with(Kind::System, path.display().to_string(), error)
}

/// Whether this release reads the state directory: its version is known, or the release that wrote it lists this one as a reader.
fn check_version(folder: &Path) -> Result<(), Error> {
    let path = folder.join("version");
    let Some(text) = dir::read(&path, VERSION_MAX).map_err(|error| version_failed(&path)(error.into()))?
    else {
        return Ok(());
    };
    let text = String::from_utf8_lossy(&text);
    let words: Option<Vec<u64>> = text.split_whitespace().map(|word| word.parse().ok()).collect();
    let (version, oldest) = match words.as_deref() {
        Some([version]) => (*version, *version),
        Some([version, oldest, ..]) => (*version, *oldest),
        Some([]) | None => {
            let text = format!(
                "{}: no version; write {VERSION} into it if the directory is ferrovirt's",
                path.display()
            );
            return Err(Error::new(Kind::Content, text));
        }
    };
    if version <= VERSION || oldest <= VERSION {
        return Ok(());
    }
    let text = format!(
        "{}: written by a newer release (version {version}, readable by version {oldest} and later; this one is {VERSION}): install that one; nothing was changed",
        path.display()
    );
    Err(Error::new(Kind::Content, text))
}

/// Notes which release writes the state directory now.
fn write_version(folder: &Path) -> Result<(), Error> {
    let (path, text) = (folder.join("version"), format!("{VERSION} {READABLE_BY}\n"));
    if fs::read_to_string(&path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    dir::replace_durably(&path, text.as_bytes(), 0o600).map_err(|error| version_failed(&path)(error.into()))
}

/// A UUID, version 4.
///
/// # Errors
/// The kernel has no random numbers.
pub(super) fn uuid() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/uuid")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_daemon_has_the_folder_and_none_reads_a_newer_one() {
        let folder = tempfile::tempdir().unwrap();
        let state = State::open(folder.path()).unwrap();
        let again = State::open(folder.path()).unwrap_err();
        assert!(again.to_string().contains("in use by another"), "{again}");
        assert!(state.is_there());
        fs::remove_file(folder.path().join("lock")).unwrap();
        assert!(!state.is_there(), "removed");
        let other = State::open(folder.path()).unwrap();
        assert!(other.is_there() && !state.is_there(), "another daemon's");
        drop((state, other));
        fs::write(folder.path().join("version"), "3\n").unwrap();
        let newer = State::open(folder.path()).unwrap_err();
        assert!(newer.to_string().contains("newer release (version 3"), "{newer}");
        assert_eq!(newer.kind(), Kind::Content);
        fs::write(folder.path().join("version"), "").unwrap();
        assert!(State::open(folder.path()).is_err());
    }

    #[test]
    fn a_later_version_is_read_where_it_allows_that_and_an_earlier_one_is_upgraded() {
        let folder = tempfile::tempdir().unwrap();
        let version = folder.path().join("version");
        for (before, read) in
            [("1\n", true), ("2 2\n", true), ("3 2\n", true), ("3 3 more\n", false), ("4 3\n", false)]
        {
            fs::write(&version, before).unwrap();
            assert_eq!(State::open(folder.path()).is_ok(), read, "{before}");
            let after = if read { "2 2\n" } else { before };
            assert_eq!(fs::read_to_string(&version).unwrap(), after, "{before}");
        }
    }

    #[test]
    fn runs_of_an_earlier_boot_are_forgotten_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        drop(State::open(folder.path()).unwrap());
        fs::create_dir(folder.path().join("run/0123")).unwrap();
        fs::create_dir(folder.path().join("guests/a")).unwrap();
        drop(State::open(folder.path()).unwrap());
        assert!(folder.path().join("run/0123").exists(), "the same boot");
        fs::write(folder.path().join("boot"), "another").unwrap();
        drop(State::open(folder.path()).unwrap());
        assert!(!folder.path().join("run/0123").exists());
        assert!(folder.path().join("guests/a").exists());
    }

    #[test]
    fn long_paths_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = State::open(&folder.path().join("a".repeat(60))).unwrap_err();
        assert_eq!(error.kind(), Kind::Usage);
    }
}
