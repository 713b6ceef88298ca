//! An archive's files in a folder: the order of the steps. Not here: archives (`crate::archive`).

use std::path::Path;

use super::Session;
use super::connect::{Wire, connect, verify};
use super::look::Facts;
use crate::archive;
use crate::config::Config;
use crate::error::{Error, Kind};
use crate::report::Done;

/// The files of a tar archive in a folder.
pub(super) fn unpack(config: &Config, session: &Session, facts: &Facts) -> Result<Done, Error> {
    session.meter.phase("connecting");
    let Wire { source, checked, opened } = connect(config, session)?;
    session.meter.phase("unpacking");
    let result = archive::unpack(source, &facts.path, config, session).and_then(|done| {
        verify(checked.as_deref(), &opened, session)?;
        Ok(done)
    });
    match result {
        Err(error) if matches!(error.kind(), Kind::Checksum | Kind::Digest) => {
            archive::empty(&facts.path, config.contract)?;
            Err(error)
        }
        other => other,
    }
}

/// Removes what `folder` holds.
pub(crate) fn empty_folder(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        // ext's own; not ours to remove.
        if entry.file_name() == "lost+found" {
            continue;
        }
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
