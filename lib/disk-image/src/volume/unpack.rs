//! An archive's files in a folder: the order of the steps. Not here: archives (`crate::volume::archive`).

use std::path::Path;

use super::inspect::Facts;
use super::source::{OpenSource, connect, verify};
use super::{Done, Origin, Session};
use crate::volume::archive;
use crate::volume::config::{Config, Contract, Holds};
use crate::volume::error::{Error, Kind, chain};
use crate::volume::folder_content::LOST_AND_FOUND;
use crate::volume::target::TargetKind;

/// The files of a tar archive in a folder.
pub(super) fn unpack(
    config: &Config,
    session: &Session,
    facts: &Facts,
    origin: &mut dyn Origin,
) -> Result<Done, Error> {
    session.meter.phase("connecting");
    let OpenSource { source, checked, input } = connect(config, origin)?;
    session.meter.phase("unpacking");
    if config.holds == Holds::Clone {
        archive::empty(&facts.path, config.contract)?;
    }
    let ours = config.contract == Contract::Environment && holds_nothing(&facts.path);
    let result = archive::unpack(source, &facts.path, config, session).and_then(|done| {
        verify(checked.as_deref(), &input, session)?;
        Ok(done)
    });
    match result {
        Err(error) if matches!(error.kind(), Kind::Checksum | Kind::Digest) => {
            archive::empty(&facts.path, config.contract)?;
            Err(error)
        }
        // A part of an archive would take the next one's space, and remain among its files.
        Err(error) if ours => {
            if let Err(kept) = archive::empty(&facts.path, config.contract) {
                tracing::warn!(error = chain(&kept), folder = %facts.path.display(), "the files of an incomplete archive cannot be removed");
            }
            Err(error)
        }
        other => other,
    }
}

/// Whether a folder is empty, or will be when it is made.
fn holds_nothing(folder: &Path) -> bool {
    match std::fs::read_dir(folder) {
        Ok(entries) => entries.flatten().all(|entry| entry.file_name() == LOST_AND_FOUND),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Refuses a folder of the command line that is not empty: members replace files of their names. A volume of the contract
/// is unpacked over, as upstream does; only a clone's is emptied first.
///
/// # Errors
/// [`Kind::Target`], naming what was found.
pub(super) fn check_folder(config: &Config, facts: &Facts) -> Result<(), Error> {
    if config.contract == Contract::Environment || config.force || facts.stands == TargetKind::Nothing {
        return Ok(());
    }
    let shown = facts.path.display();
    let failed = |e| Error::with(Kind::Target, format!("cannot list the folder {shown}"), e);
    for entry in std::fs::read_dir(&facts.path).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        if name != LOST_AND_FOUND {
            let what = format!(
                "{shown} is not empty (it holds {}); name another folder, or give --force to unpack over what is there",
                name.display()
            );
            return Err(Error::new(Kind::Target, what));
        }
    }
    Ok(())
}
