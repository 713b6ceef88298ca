//! A disk image onto the target: everything that can refuse comes first, then the target is taken and filled.

use std::io;

use crate::transfer::{self, Ledger as _, Request};

use super::fill::spool;
use super::inspect::{Facts, available, check_device, check_size, journal_path};
use super::lock::hold;
use super::prepared::Prepared;
use super::source::{OpenSource, connect};
use super::{Done, Origin, Session};
use crate::volume::config::{Config, Contract};
use crate::volume::error::{Error, Kind};
use crate::volume::journal::{self, Head, Journal};
use crate::volume::plan::{self, Foreign, Mode, Resume};
use crate::volume::target::{self, Node, TargetLock};

/// Imports one disk image.
///
/// # Errors
/// The first failure; ranges that are durable by then are in the journal.
pub(super) fn disk(
    config: &Config,
    session: &Session,
    facts: &Facts,
    origin: &mut dyn Origin,
) -> Result<Done, Error> {
    session.meter.phase("connecting");
    check_device(config, facts)?;
    check_size(config, facts)?;
    let OpenSource { source, checked, input } = connect(config, origin)?;
    if let Some(read_from) = &input.read_from {
        target::not_the_source(read_from, &facts.path)?;
    }
    let available = available(config, facts);
    let reread = plan::reread(source.facts().size, input.local.is_some());
    let image = transfer::open(Request {
        source,
        format: config.format,
        limits: transfer::Limits { reread, capacity: available, ..config.limits },
        progress: session.meter.transfer.clone(),
        // Before the headers are read only the request bounds the disk's size.
        spool: spool(config, facts, config.size.unwrap_or(0)),
    })?;
    let mut warnings = Vec::new();
    let seen = if image.is_tar() { Some("a tar archive") } else { image.foreign() };
    if let Foreign::Warn(warning) = plan::foreign(config.contract, config.format.is_some(), seen)? {
        tracing::warn!("{warning}");
        warnings.push(warning);
    }
    if let Some(note) = image.note() {
        tracing::warn!("{note}");
        warnings.push(note.to_owned());
    }
    if image.is_empty() {
        plan::empty(config.contract, config.format.is_some(), input.name.as_deref())?;
    }
    if let Some(size) = image.virtual_size() {
        // An image that may end in a footer is judged again when its end is known.
        if image.least_size().is_some_and(|least| least > available) {
            plan::fits(config.contract, size, available, config.size)?;
        }
        let size = size.max(config.size.unwrap_or(0));
        if config.contract == Contract::CommandLine && facts.mode == Mode::File && size > facts.capacity {
            let warning = format!("the disk may grow to {size} bytes, and only {} are free", facts.capacity);
            tracing::warn!("{warning}");
        }
    }
    tracing::info!(
        format = image.format().name(),
        compression = image.compression().map(crate::Compression::name),
        file = image.file(),
        virtual_size = image.virtual_size(),
        way = %image.way(),
        "opened the image"
    );
    let prepared = Prepared {
        config,
        session,
        facts,
        image: &image,
        input: &input,
        checked: checked.as_deref(),
        available,
    };
    let mut done = prepared.run()?;
    if let Some(warning) = plan::odd(&done.format, done.virtual_size) {
        tracing::warn!("{warning}");
        warnings.push(warning);
    }
    done.warnings.extend(warnings);
    Ok(done)
}

impl Prepared<'_> {
    fn run(&self) -> Result<Done, Error> {
        let mut head = self.head();
        let (held, (resume, found)) = hold(self.config, self.facts, Some(&head))?;
        head = head.at(held.node().map_err(|e| {
            Error::with(Kind::Target, format!("cannot inspect the target {}", self.facts.path.display()), e)
        })?);
        let result = self.journal(&head, resume, found, &held).and_then(|journal| {
            let keep = resume == Resume::Continue;
            self.fill(journal.as_ref().map_or(0, |j| j.done().bytes()), keep, journal)
        });
        if let Err(error) = &result {
            self.undo(error, &held);
        }
        result
    }

    /// Of this import, onto a target that is not held yet.
    fn head(&self) -> Head {
        let compression = self.image.compression().map_or("", crate::Compression::name);
        let format = format!("{} {compression}", self.image.format().name());
        let identity = self.input.identity.as_deref();
        Head::new(identity, Node::default(), self.image.virtual_size(), format.trim().to_owned())
    }

    fn journal(
        &self,
        head: &Head,
        resume: Resume,
        found: Option<journal::OpenedJournal>,
        held: &TargetLock,
    ) -> Result<Option<Journal>, Error> {
        let shown = self.facts.path.display();
        let Some(path) = journal_path(self.config, self.facts) else {
            if self.config.remember {
                tracing::info!(
                    "{shown} has no journal: an interrupted import starts again (give --journal DIR to go on instead)"
                );
            }
            return Ok(None);
        };
        let failed = |e| {
            let error = crate::Error::target(format!("cannot write the journal {}", path.display()), e);
            if error.kind() != crate::Kind::Target || self.config.contract == Contract::Environment {
                return Error::from(error);
            }
            let what = "progress cannot be recorded, so an interrupted import would start over; --journal DIR names a directory for the journal";
            Error::with(Kind::Target, what, error)
        };
        match (resume, found) {
            (Resume::Continue, Some(found)) => {
                let journal = Journal::resume(&path, found, held.file()).map_err(failed)?;
                tracing::info!(done = journal.done().bytes(), "going on with an interrupted import");
                Ok(Some(journal))
            }
            (Resume::Continue | Resume::Restart | Resume::Fresh, _) => {
                if resume == Resume::Restart {
                    tracing::info!("starting from the beginning");
                }
                match Journal::start(&path, head, held.file()) {
                    // An earlier attempt that cannot be resumed occupies the space: it is removed first.
                    Err(e) if e.kind() == io::ErrorKind::StorageFull && self.facts.mode == Mode::File => {
                        journal::discard(&path).and_then(|()| held.empty()).map_err(failed)?;
                        Journal::start(&path, head, held.file()).map(Some).map_err(failed)
                    }
                    other => other.map(Some).map_err(failed),
                }
            }
        }
    }
}
