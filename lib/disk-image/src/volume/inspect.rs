//! Looks at the target: what stands there, what it could hold, whether it may be overwritten. Nothing is changed.

use std::path::PathBuf;

use crate::volume::config::{self, Config, Contract, Holds, Place};
use crate::volume::error::{Error, Kind};
use crate::volume::journal;
use crate::volume::plan::{self, Mode};
use crate::volume::target::{self, TargetKind};

/// The target, looked at.
pub(super) struct Facts {
    pub(super) path: PathBuf,
    pub(super) mode: Mode,
    pub(super) stands: TargetKind,
    /// Bytes it could hold, leftovers included.
    pub(super) capacity: u64,
}

/// Inspects the target that `config` names.
///
/// # Errors
/// When it is nothing that can be written, or nothing of the right kind.
pub(super) fn inspect(config: &Config) -> Result<Facts, Error> {
    let (path, device) = match &config.place {
        Place::Volume { data, disk, device } => {
            // The device node's existence alone decides.
            let block = device.exists();
            let path = match (block, config.holds) {
                (true, _) => device.clone(),
                (false, Holds::Files | Holds::Clone) => data.clone(),
                (false, Holds::Disk) => disk.clone(),
            };
            (path, block)
        }
        Place::Path(path) => (path.clone(), matches!(target::inspect(path), Ok(TargetKind::Device { .. }))),
    };
    let mode = plan::mode(config.holds, device)?;
    let stands = target::inspect(&path)?;
    let shown = path.display();
    let capacity = match (mode, stands) {
        (Mode::File, TargetKind::Nothing) => target::free(&target::folder_of(&path))?,
        (Mode::File, TargetKind::File { occupied, .. }) => {
            target::free(&target::folder_of(&path))?.saturating_add(occupied)
        }
        (Mode::Block, TargetKind::Device { .. }) => target::device_size(&path)?,
        (Mode::Folder, TargetKind::Folder) => target::free(&path)?,
        (Mode::Folder, TargetKind::Nothing) => target::free(&target::folder_of(&path))?,
        (Mode::File, TargetKind::Folder) => {
            return Err(Error::new(Kind::Target, format!("{shown} is a folder; name a file in it")));
        }
        (Mode::Folder, TargetKind::File { .. } | TargetKind::Device { .. }) => {
            return Err(Error::new(
                Kind::Target,
                format!("{shown} is no folder; an archive is unpacked into a folder"),
            ));
        }
        (Mode::File, TargetKind::Device { .. })
        | (Mode::Block, TargetKind::Nothing | TargetKind::File { .. } | TargetKind::Folder) => {
            return Err(Error::new(Kind::Target, format!("{shown} is no block device")));
        }
    };
    Ok(Facts { path, mode, stands, capacity })
}

/// The path of a target's journal; a device has none without a directory for it, and neither has an import without
/// resumption.
pub(super) fn journal_path(config: &Config, facts: &Facts) -> Option<PathBuf> {
    if !config.remember {
        return None;
    }
    match (facts.mode, &config.journal) {
        (_, Some(folder)) => Some(journal::path_for(&facts.path, Some(folder))),
        (Mode::Block, None) => config::mounted(config.scratch.as_deref())
            .map(|folder| journal::path_for(&facts.path, Some(folder))),
        (Mode::File | Mode::Folder, None) => Some(journal::path_for(&facts.path, None)),
    }
}

/// Bytes the disk may have.
pub(super) fn available(config: &Config, facts: &Facts) -> u64 {
    plan::available(config.contract, facts.mode, config.preallocate, facts.capacity, config.size)
}

/// Refuses a device that cannot be written, is in use, or holds what a person would not want overwritten. The
/// contract's device is ours to write. What an unfinished import left on it is judged once the device is held.
///
/// # Errors
/// [`Kind::Target`], saying what was found and how to go on.
pub(super) fn check_device(config: &Config, facts: &Facts) -> Result<(), Error> {
    let TargetKind::Device { number } = facts.stands else { return Ok(()) };
    target::writable(&facts.path, number)?;
    match config.contract {
        Contract::Environment => Ok(()),
        Contract::CommandLine => {
            target::unused(&facts.path, number)?;
            let journaled = journal_path(config, facts).is_some_and(|journal| journal.exists());
            if config.force || journaled { Ok(()) } else { target::without_content(&facts.path) }
        }
    }
}

/// Refuses a size that was asked for and cannot be had.
///
/// # Errors
/// [`Kind::NoRoom`], by command line only.
pub(super) fn check_size(config: &Config, facts: &Facts) -> Result<(), Error> {
    match (config.contract, config.size) {
        (Contract::CommandLine, Some(request)) => {
            let asked = plan::requested_size(facts.mode, request, config.overhead);
            let shown = facts.path.display().to_string();
            plan::granted(facts.mode, config.preallocate, asked, facts.capacity, &shown)
        }
        (Contract::CommandLine, None) | (Contract::Environment, _) => Ok(()),
    }
}
