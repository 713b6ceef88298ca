//! Opens the source, with its checksum taken while it is read, and judges what was read at the end.

use std::sync::Arc;

use disk_image::Source;

use super::Session;
use crate::checksum::Checked;
use crate::config::Config;
use crate::error::Error;
use crate::source::open::{Opened, open};

/// An open source, hashed if a checksum was given.
pub(super) struct Wire {
    pub(super) source: Arc<dyn Source>,
    pub(super) checked: Option<Arc<Checked>>,
    pub(super) opened: Opened,
}

/// Opens the source.
///
/// # Errors
/// When it cannot be reached.
pub(super) fn connect(config: &Config, session: &Session) -> Result<Wire, Error> {
    let opened = open(&config.location, &config.access, &config.limits, &session.stop)?;
    tracing::info!(source = %config.location, facts = ?opened.source.facts(), "opened the source");
    let checked =
        config.checksum.clone().map(|expected| Arc::new(Checked::new(opened.source.clone(), expected)));
    let source = match &checked {
        Some(checked) => checked.clone() as Arc<dyn Source>,
        None => opened.source.clone(),
    };
    Ok(Wire { source, checked, opened })
}

/// Whether what was read is what it should be.
///
/// # Errors
/// `Checksum` or `Digest` when it is not.
pub(super) fn verify(checked: Option<&Checked>, opened: &Opened, session: &Session) -> Result<(), Error> {
    if let Some(checked) = checked {
        session.meter.phase("checking");
        checked.verify(&session.stop)?;
    }
    if let Some(disk) = &opened.unverified {
        session.meter.phase("checking");
        disk.verify(&session.stop)?;
    }
    Ok(())
}
