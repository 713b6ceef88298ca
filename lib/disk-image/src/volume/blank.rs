//! An empty disk.

use std::sync::Arc;

use super::inspect::{Facts, available, check_device, check_size, journal_path};
use super::lock::{hold, open_target, open_writer, options};
use super::{Done, Session};
use crate::volume::config::{Config, Contract};
use crate::volume::error::{Error, Kind};
use crate::volume::journal;
use crate::volume::plan::{self, Mode};

/// An empty disk: a file of the right size; a device as it is, zeroed for a person, written if it is preallocated.
pub(super) fn blank(config: &Config, session: &Session, facts: &Facts) -> Result<Done, Error> {
    session.meter.phase("creating");
    let available = available(config, facts);
    let size = match facts.mode {
        Mode::File => plan::blank_size(config.contract, available, config.overhead, config.size)?,
        Mode::Block | Mode::Folder => plan::zeroed(config.contract, facts.capacity, config.size),
    };
    if facts.mode == Mode::Block && config.contract == Contract::Environment && !config.preallocate {
        return Ok(Done { silent: true, ..Done::default() });
    }
    check_device(config, facts)?;
    check_size(config, facts)?;
    let (_held, _) = hold(config, facts, None)?;
    if let Some(journal) = journal_path(config, facts) {
        // Of an import that was not finished; there is none, as a rule.
        let failed = |e| Error::with(Kind::Target, format!("cannot remove {}", journal.display()), e);
        journal::discard(&journal).map_err(failed)?;
    }
    let writer = open_writer(open_target(config, facts, false)?, size, &options(config, session, false))?;
    session.meter.engine(writer.engine_now());
    if facts.mode == Mode::Block {
        writer.zero(0..size, Arc::new(()))?;
    }
    let written = writer.finish()?;
    Ok(Done {
        virtual_size: size,
        disk_size: size,
        zeroes_skipped: size,
        format: "blank".to_owned(),
        engine: written.engine.to_string(),
        preallocated: config.preallocate,
        warnings: plan::resized(config.contract, config.overhead, config.size, size).into_iter().collect(),
        ..Done::default()
    })
}
