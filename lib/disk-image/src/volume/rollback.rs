//! Takes back an import that failed for good.

use std::sync::Arc;

use super::inspect::journal_path;
use super::lock::{open_target, open_writer, options};
use super::prepared::Prepared;
use crate::volume::config::Contract;
use crate::volume::error::{Error, Kind};
use crate::volume::journal;
use crate::volume::plan::Mode;
use crate::volume::target::TargetLock;
use crate::write::sync_folder;

impl Prepared<'_> {
    /// A permanent failure leaves nothing behind; a resumable import stays.
    pub(super) fn undo(&self, error: &Error, held: &TargetLock) {
        // A device of the command line may hold other data behind the image.
        let contract = self.config.contract == Contract::Environment;
        let unidentified = self.input.identity.is_none();
        let (refused, restarts) = match error.kind() {
            Kind::Checksum | Kind::Digest | Kind::Refused | Kind::NeedsScratch => (true, false),
            // The next try starts from the beginning and needs none of it.
            Kind::Connect | Kind::Process => (false, self.input.verify.is_some() || unidentified),
            Kind::Stopped => (false, contract && unidentified),
            Kind::Usage | Kind::NoRoom | Kind::Target => (false, false),
        };
        let worthless = refused || restarts && (contract || self.facts.mode != Mode::Block);
        let untouched = held.created && std::fs::metadata(&self.facts.path).is_ok_and(|meta| meta.len() == 0);
        if !worthless && !untouched {
            return;
        }
        // For good, before what it speaks of goes.
        if let Some(path) = journal_path(self.config, self.facts)
            && let Err(error) = journal::discard(&path)
        {
            tracing::error!(%error, path = %path.display(), "the journal cannot be removed");
        }
        let wiped = match self.facts.mode {
            Mode::File => std::fs::remove_file(&self.facts.path).map_err(|e| e.to_string()),
            // The device is not to pass for a disk.
            Mode::Block if refused => self.wipe().map_err(|e| crate::volume::error::chain(&e)),
            // The next upload overwrites it: its blocks are worth a discard, not the time to write zeroes.
            Mode::Block => match self.discard() {
                Ok(true) => Ok(()),
                Ok(false) => {
                    tracing::info!(
                        "the device cannot discard: it keeps what was written until it is filled again"
                    );
                    return;
                }
                Err(error) => Err(crate::volume::error::chain(&error)),
            },
            Mode::Folder => Ok(()),
        };
        match wiped {
            Ok(()) => tracing::info!("deleting the data that was written"),
            Err(error) => {
                tracing::error!(error, target = %self.facts.path.display(), "cannot delete the data that was written; delete it before the disk is used")
            }
        }
        drop(sync_folder(&self.facts.path));
    }

    /// Gives back a device's blocks, if it can.
    fn discard(&self) -> Result<bool, Error> {
        Ok(open_target(self.config, self.facts, false)?.discard(self.facts.capacity)?)
    }

    /// Makes what was written to a device unreadable as a disk.
    fn wipe(&self) -> Result<(), Error> {
        let size = self.image.virtual_size().unwrap_or(self.facts.capacity).min(self.facts.capacity);
        let target = open_target(self.config, self.facts, false)?;
        let writer = open_writer(target, size, &options(self.config, self.session, false))?;
        writer.zero(0..size, Arc::new(()))?;
        writer.finish()?;
        Ok(())
    }
}
