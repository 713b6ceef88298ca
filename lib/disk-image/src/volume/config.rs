//! The target state of a volume: one [`Config`], from any caller. Not here: the source of the content ([`super::Origin`]),
//! reading arguments or the environment.

use std::path::{Path, PathBuf};

use crate::detect::Format;
use crate::transfer;
use crate::write::EngineKind;

use super::checksum::Checksum;

/// The caller's contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contract {
    /// A controller, by environment: fixed paths, the volume is ours to overwrite.
    Environment,
    /// A person or a script, by command line.
    CommandLine,
}

/// Content of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// One disk.
    Disk,
    /// The files of an archive, added to existing files.
    Files,
    /// The files of another volume, in an archive, and no others.
    Clone,
}

/// Where the content goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A pod's volume: the device if it exists, else the folder.
    Volume {
        /// The folder: of an archive's files.
        data: PathBuf,
        /// The disk in the folder.
        disk: PathBuf,
        /// The device.
        device: PathBuf,
    },
    /// The user's target: a file, a device, a directory for archives.
    Path(PathBuf),
}

/// Owner of a disk in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Permission bits.
    pub mode: u32,
    /// User and group. Without root they stay unchanged.
    pub id: u32,
}

/// One volume that is to be filled.
#[derive(Clone, Debug)]
pub struct Config {
    /// By which rules.
    pub contract: Contract,
    /// Its content.
    pub holds: Holds,
    /// Where it is.
    pub place: Place,
    /// Mode and owner of a disk in a file; as the process makes files, if none.
    pub owner: Option<Owner>,
    /// Where a scratch volume would be mounted.
    pub scratch: Option<PathBuf>,
    /// Keep a journal, so that another process can resume an interrupted import.
    pub remember: bool,
    /// Directory of the journal, if not next to the target.
    pub journal: Option<PathBuf>,
    /// Size the disk is to have, in bytes.
    pub size: Option<u64>,
    /// Share of a Filesystem volume that is not the disk's, 0 to 1.
    pub overhead: f64,
    /// Reserve all blocks of the disk.
    pub preallocate: bool,
    /// Go past the page cache where that works.
    pub direct: bool,
    /// How bytes get to the disk, if not by trying.
    pub engine: Option<EngineKind>,
    /// Expected checksum of the source.
    pub checksum: Option<Checksum>,
    /// The image's format, if not detected.
    pub format: Option<Format>,
    /// Overwrite what a person's target holds.
    pub force: bool,
    /// Bounds; capacity and re-reading are found out here.
    pub limits: transfer::Limits,
}

impl Config {
    /// Whether a scratch volume is mounted.
    pub fn scratch_mounted(&self) -> bool {
        mounted(self.scratch.as_deref()).is_some()
    }
}

/// Whether `folder` is there: a scratch volume is mounted, or is not.
pub(super) fn mounted(folder: Option<&Path>) -> Option<&Path> {
    folder.filter(|folder| folder.is_dir())
}
