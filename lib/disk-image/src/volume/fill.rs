//! Fills the target with the image's bytes: cloned by the filesystem, or moved by a transfer that the journal follows.

use std::sync::Arc;

use crate::Format;
use crate::transfer::{self, Forgetful, Ledger, Spool};
use crate::write::{Target, sync_folder};

use super::Done;
use super::inspect::Facts;
use super::lock::{open_target, open_writer, options};
use super::prepared::Prepared;
use super::source::verify;
use crate::volume::clone;
use crate::volume::config::{self, Config};
use crate::volume::error::{Error, Kind};
use crate::volume::journal::Journal;
use crate::volume::plan::{self, Mode};
use crate::volume::target;

/// Space for early bytes of a stream, best first: next to a disk of `final_size` bytes, then scratch.
pub(super) fn spool(config: &Config, facts: &Facts, final_size: u64) -> Spool {
    let mut folders = Vec::new();
    if facts.mode == Mode::File {
        let spare = plan::spare(facts.capacity, final_size);
        if spare > 0 {
            folders.push((target::folder_of(&facts.path), spare));
        }
    }
    if let Some(scratch) = config::mounted(config.scratch.as_deref())
        && let Ok(free) = target::free(scratch)
    {
        folders.push((scratch.to_owned(), plan::spare(free, 0)));
    }
    Spool { folders }
}

impl Prepared<'_> {
    /// Puts the image's bytes on the target: cloned where that works, transferred otherwise.
    pub(super) fn fill(&self, resumed: u64, keep: bool, mut journal: Option<Journal>) -> Result<Done, Error> {
        let target = open_target(self.config, self.facts, keep)?;
        let cloned = if keep { None } else { self.clone_locally(&target)? };
        let mut done = match cloned {
            Some(done) => done,
            None => {
                let ledger: &mut dyn Ledger = match &mut journal {
                    Some(journal) => journal,
                    None => &mut Forgetful,
                };
                self.transfer(target, ledger)?
            }
        };
        done.bytes_resumed = done.bytes_resumed.max(resumed.min(done.virtual_size));
        if let Some(journal) = journal {
            journal.remove().map_err(|e| {
                Error::with(Kind::Process, "the disk is complete, but its journal cannot be removed", e)
            })?;
        }
        Ok(done)
    }

    /// Size of the target's disk once the image's is known.
    fn final_size(&self, virtual_size: u64) -> u64 {
        match self.facts.mode {
            Mode::File => plan::final_size(
                self.config.contract,
                virtual_size,
                self.available,
                self.config.overhead,
                self.config.size,
            ),
            Mode::Block | Mode::Folder => {
                plan::zeroed(self.config.contract, self.facts.capacity, self.config.size)
            }
        }
    }

    /// Warning about a size that differs from the request.
    fn resized(&self, disk_size: u64) -> Vec<String> {
        let Config { contract, overhead, size, .. } = self.config;
        let told = match self.facts.mode {
            Mode::File => plan::resized(*contract, *overhead, *size, disk_size),
            Mode::Block | Mode::Folder => None,
        };
        told.into_iter().collect()
    }

    /// The one place that moves bytes.
    fn transfer(&self, target: Target, ledger: &mut dyn Ledger) -> Result<Done, Error> {
        let (config, session) = (self.config, self.session);
        // An image with a footer behind its disk may be larger than the available space.
        let known = self.image.virtual_size().map(|size| self.final_size(size.min(self.available)));
        let bound = known.unwrap_or(self.available);
        if known.is_some() && self.facts.mode == Mode::File && target.len()? > bound {
            // An earlier try was asked for a larger disk.
            target.set_len(bound)?;
        }
        let mut writer = open_writer(target, bound, &options(config, session, known.is_none()))?;
        session.meter.engine(writer.engine_now());
        session.meter.phase("importing");
        let progress = &session.meter.transfer;
        let report = transfer::run(
            self.image,
            &writer,
            ledger,
            &spool(config, self.facts, bound),
            progress,
            &session.stop,
        )?;
        verify(self.checked, self.input, session)?;
        session.meter.phase("syncing");
        plan::fits(config.contract, report.virtual_size, self.available, config.size)?;
        let disk_size = self.final_size(report.virtual_size);
        let resized = self.image.virtual_size() != Some(report.virtual_size);
        if resized {
            // First to where the disk ends: what was written behind it is no part of it.
            writer.set_len(report.virtual_size);
            writer.set_len(disk_size);
        }
        if self.facts.mode == Mode::Block && report.virtual_size < disk_size {
            // Stale data of the device must not be readable behind the image, and some of it matters at the very end.
            session.meter.phase("zeroing the rest");
            writer.zero(report.virtual_size..disk_size, Arc::new(()))?;
            session.meter.phase("syncing");
        }
        let written = writer.finish()?;
        Ok(Done {
            bytes_read: report.bytes_read,
            bytes_written: report.bytes_written,
            zeroes_skipped: report.bytes_zero,
            bytes_resumed: report.bytes_resumed,
            virtual_size: report.virtual_size,
            disk_size,
            format: self.shown_format(report.format),
            engine: written.engine.to_string(),
            preallocated: config.preallocate,
            warnings: self.resized(disk_size),
            ..Done::default()
        })
    }

    fn shown_format(&self, format: Format) -> String {
        match self.image.compression() {
            Some(compression) => format!("{}.{}", format.name(), compression.name()),
            None => format.name().to_owned(),
        }
    }

    /// A raw local file is cloned by its filesystem when that can be.
    fn clone_locally(&self, target: &Target) -> Result<Option<Done>, Error> {
        let whole = self.image.compression().is_none() && self.image.file().is_none();
        let raw = self.image.format() == Format::Raw && whole;
        let plain =
            raw && self.facts.mode == Mode::File && self.checked.is_none() && !self.config.preallocate;
        let (Some(local), true, Some(size)) = (&self.input.local, plain, self.image.virtual_size()) else {
            return Ok(None);
        };
        let failed = |e| Error::from(crate::Error::target("cloning the image", e));
        let Some(method) =
            clone::clone(local.file(), target.as_file(), &self.session.stop).map_err(failed)?
        else {
            return Ok(None);
        };
        let disk_size = self.final_size(size);
        target.set_len(disk_size)?;
        target.as_file().sync_all().map_err(failed)?;
        sync_folder(&self.facts.path).map_err(failed)?;
        tracing::info!(method = method.name(), "cloned");
        Ok(Some(Done {
            virtual_size: size,
            disk_size,
            format: "raw".to_owned(),
            engine: method.name().to_owned(),
            warnings: self.resized(disk_size),
            ..Done::default()
        }))
    }
}
