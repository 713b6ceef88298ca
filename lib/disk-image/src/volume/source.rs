//! Opens the source, with its checksum taken while it is read, and judges what was read at the end.

use std::sync::Arc;

use crate::source::Source;

use super::checksum::Checked;
use super::config::Config;
use super::error::Error;
use super::{Input, Origin, Session};

/// An open source, hashed if a checksum was given.
pub(super) struct OpenSource {
    pub(super) source: Arc<dyn Source>,
    pub(super) checked: Option<Arc<Checked>>,
    pub(super) input: Input,
}

/// Opens the source.
///
/// # Errors
/// When it cannot be reached.
pub(super) fn connect(config: &Config, origin: &mut dyn Origin) -> Result<OpenSource, Error> {
    let input = origin.connect()?;
    let checked =
        config.checksum.clone().map(|expected| Arc::new(Checked::new(input.source.clone(), expected)));
    let source = match &checked {
        Some(checked) => checked.clone() as Arc<dyn Source>,
        None => input.source.clone(),
    };
    Ok(OpenSource { source, checked, input })
}

/// Whether what was read is what it should be.
///
/// # Errors
/// `Checksum` or `Digest` when it is not.
pub(super) fn verify(checked: Option<&Checked>, input: &Input, session: &Session) -> Result<(), Error> {
    if let Some(checked) = checked {
        session.meter.phase("checking");
        checked.verify(&session.stop)?;
    }
    if let Some(verify) = &input.verify {
        session.meter.phase("checking");
        verify(&session.stop)?;
    }
    Ok(())
}
