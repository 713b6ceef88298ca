//! State of a VM that is kept between its runs.
//!
//! ```text
//! guests/UID/kept.json   root's: machine type, CPU model, places of devices, addresses
//! guests/UID/vm/         the VM's user's: EFI variables, the TPM's memory
//! ```
//!
//! Not here: what goes into a launch document.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use api::launch::{Accelerator, CpuFeature, CpuModel, Launch, Layout, NamedCpu};
use dir::{Dir, Durability, Owner};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind};
use crate::network::Addresses;

/// The directory of the VM's user.
const OWN: &str = "vm";
/// The record.
const RECORD: &str = "kept.json";
/// Longest record, in bytes.
const RECORD_MAX: u64 = 1 << 20;

/// State in a VM's directory that is kept between its runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Kept {
    /// The machine type of the first run.
    pub(super) machine: String,
    /// The accelerator of the guest that runs, or of the last one.
    pub(super) accelerator: Option<Accelerator>,
    /// Why it is that one.
    pub(super) why: String,
    /// Its CPU model in the first run.
    pub(super) processor: Option<KeptCpu>,
    /// Where devices were.
    pub(super) layout: Layout,
    /// The addresses that its interfaces had.
    pub(super) addresses: Addresses,
}

/// The CPU model that a VM's `host-model` resolved to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct KeptCpu {
    /// The accelerator: the features of another one are another model.
    accelerator: Accelerator,
    /// Features that the machine asked for then; with others, it becomes another one.
    asked: Vec<CpuFeature>,
    became: NamedCpu,
}

impl KeptCpu {
    /// The model that the requested features resolved to under this accelerator.
    pub(super) fn new(accelerator: Accelerator, asked: Vec<CpuFeature>, became: NamedCpu) -> Self {
        Self { accelerator, asked, became }
    }

    /// Gives a guest the processors that it had, where it asks for the same as then.
    pub(super) fn give(&self, launch: &mut Launch) {
        let same = launch.accelerator == self.accelerator && launch.cpu.features == self.asked;
        if same && launch.cpu.model == CpuModel::HostModel {
            launch.cpu.model = CpuModel::Named(self.became.model.clone());
            launch.cpu.features.clone_from(&self.became.features);
        }
    }
}

fn failed(keep: &Path) -> impl Fn(io::Error) -> Error + '_ {
    move |error| Error::with(Kind::System, keep.display().to_string(), error)
}

/// The part of the VM's user in the directory `keep`.
pub(super) fn own(keep: &Path) -> PathBuf {
    keep.join(OWN)
}

/// Makes the directory, or brings that of an earlier release, which belonged to the guests' user as a whole, into its form.
///
/// # Errors
/// The filesystem's error.
pub(super) fn make(keep: &Path, user: Owner) -> Result<(), Error> {
    let made = || -> io::Result<()> {
        let (Some(above), Some(name)) = (keep.parent(), keep.file_name()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let above = Dir::open(above)?;
        let before = format!(".{}.before", name.to_string_lossy());
        if above.dir(name)?.is_some_and(|dir| dir.stat(OWN).is_ok_and(|found| found.is_none())) {
            above.rename_new(name, &above, &before)?;
        }
        let dir = above.dir_or_make(name, 0o711)?;
        fs::set_permissions(keep, fs::Permissions::from_mode(0o711))?;
        if above.dir(&before)?.is_some() {
            dir.chown_self(Owner::ROOT)?;
            above.rename_new(&before, &dir, OWN)?;
        }
        let own = dir.dir_or_make(OWN, 0o700)?;
        let owner = own.stat_self()?;
        if (owner.st_uid, owner.st_gid) != (user.uid, user.gid) {
            own.chown_all(user)?;
        }
        Ok(())
    };
    made().map_err(failed(keep))
}

/// The record; that of an earlier release lay among the user's files.
///
/// # Errors
/// It cannot be read, or is none.
pub(super) fn read(keep: &Path) -> Result<Kept, Error> {
    let found = || -> io::Result<Option<Kept>> {
        let Some(dir) = Dir::find(keep)? else { return Ok(None) };
        let record = match dir.read(RECORD, RECORD_MAX)? {
            Some(record) => Some(record),
            None => dir.dir(OWN)?.map(|own| own.read(RECORD, RECORD_MAX)).transpose()?.flatten(),
        };
        Ok(record.map(|record| serde_json::from_slice(&record)).transpose()?)
    };
    found().map(Option::unwrap_or_default).map_err(failed(keep))
}

/// Writes the record durably.
///
/// # Errors
/// It cannot be written.
pub(super) fn write(keep: &Path, kept: &Kept) -> Result<(), Error> {
    let written = || -> io::Result<()> {
        let json = serde_json::to_vec(kept)?;
        Ok(Dir::open(keep)?.replace(RECORD, &json, 0o600, Durability::Durable)?)
    };
    written().map_err(failed(keep))
}

/// Removes all of it.
///
/// # Errors
/// Something stays.
pub(super) fn remove(keep: &Path) -> Result<(), Error> {
    let (Some(above), Some(name)) = (keep.parent(), keep.file_name()) else { return Ok(()) };
    let removed = Dir::open(above).and_then(|dir| dir.remove_all(name));
    removed.map(drop).map_err(|error| failed(keep)(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> Owner {
        Owner { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw() }
    }

    #[test]
    fn a_record_is_kept_apart_from_the_users_files() {
        let place = tempfile::tempdir().unwrap();
        let keep = place.path().join("uid");
        assert_eq!(read(&keep).unwrap(), Kept::default());
        make(&keep, me()).unwrap();
        let kept = Kept { machine: "pc-q35-7.2".to_owned(), ..Kept::default() };
        write(&keep, &kept).unwrap();
        // Files that its user writes are not read as the record.
        fs::write(own(&keep).join(RECORD), "{\"machine\": \"theirs\"}").unwrap();
        make(&keep, me()).unwrap();
        assert_eq!(read(&keep).unwrap(), kept);
        remove(&keep).unwrap();
        assert!(!keep.exists());
    }

    #[test]
    fn the_directory_of_an_earlier_release_is_taken_over() {
        let place = tempfile::tempdir().unwrap();
        let keep = place.path().join("uid");
        fs::create_dir(&keep).unwrap();
        fs::write(keep.join(RECORD), "{\"machine\": \"pc-q35-7.2\"}").unwrap();
        fs::write(keep.join("efi"), "variables").unwrap();
        make(&keep, me()).unwrap();
        assert_eq!(read(&keep).unwrap().machine, "pc-q35-7.2");
        assert_eq!(fs::read(own(&keep).join("efi")).unwrap(), b"variables");
        assert!(!keep.join("efi").exists());
    }

    #[test]
    fn a_planted_record_is_neither_followed_nor_waited_for() {
        let (place, outside) = (tempfile::tempdir().unwrap(), tempfile::NamedTempFile::new().unwrap());
        fs::write(outside.path(), "{\"machine\": \"theirs\"}").unwrap();
        let keep = place.path().join("uid");
        make(&keep, me()).unwrap();
        let record = own(&keep).join(RECORD);
        std::os::unix::fs::symlink(outside.path(), &record).unwrap();
        assert!(read(&keep).is_err());
        fs::remove_file(&record).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &record,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o666),
            0,
        )
        .unwrap();
        assert!(read(&keep).is_err());
    }
}
