//! Locks the target, reads the journal of an earlier attempt, opens it for writing. Not here: the decision about the earlier
//! attempt's data (`plan`).

use std::path::Path;

use crate::write::{Direct, Options, Target, Writer};

use super::Session;
use super::inspect::{Facts, journal_path};
use crate::volume::config::{Config, Contract};
use crate::volume::error::{Error, Kind};
use crate::volume::journal::{self, Head};
use crate::volume::plan::{self, Existing, Mode, Resume};
use crate::volume::target::{self, TargetKind, TargetLock};

/// Locks the target and decides how to resume.
pub(super) fn hold(
    config: &Config,
    facts: &Facts,
    head: Option<&Head>,
) -> Result<(TargetLock, (Resume, Option<journal::OpenedJournal>)), Error> {
    let failed = |e| {
        Error::with(
            Kind::Target,
            format!("cannot read the journal of an earlier import of {}", facts.path.display()),
            e,
        )
    };
    let shown = facts.path.display().to_string();
    let path = journal_path(config, facts);
    if let Some(path) = &path {
        clear(config.contract, path).map_err(failed)??;
    }
    // Checked again under the lock: another process may have finished in between.
    let held = target::hold(&facts.path, facts.mode == Mode::Block)?;
    let unreadable = |e| Error::with(Kind::Target, format!("cannot inspect the target {shown}"), e);
    let node = held.node().map_err(unreadable)?;
    let mut found = path.as_deref().map(journal::find).transpose().map_err(failed)?.flatten();
    found = found.filter(|found| found.head.node == node);
    if let Some(journal) = &found
        && !journal.is_on(held.file()).map_err(unreadable)?
    {
        tracing::warn!(
            target = %shown,
            "another program has written to the target of an unfinished import: the import starts over"
        );
        found = None;
    }
    let begun = found.as_ref().is_some_and(journal::OpenedJournal::has_begun);
    let same_image =
        begun && head.zip(found.as_ref()).is_some_and(|(head, found)| head.at(node).continues(&found.head));
    let ours = found.is_some();
    let existing = match facts.stands {
        TargetKind::Device { .. } => {
            if config.contract == Contract::CommandLine && !config.force && !begun {
                target::without_content(&facts.path)?;
            }
            Some(Existing { content: false, ours, same_image })
        }
        TargetKind::Nothing | TargetKind::File { .. } | TargetKind::Folder => (!held.created).then(|| {
            let content =
                target::inspect(&facts.path).is_ok_and(|now| !matches!(now, TargetKind::File { len: 0, .. }));
            Existing { content, ours, same_image }
        }),
    };
    let resume = plan::existing(config.contract, config.force, existing, &shown)?;
    Ok((held, (resume, found)))
}

/// Deals with what is no journal of ours where one is to be: a person's is left alone, the contract's volume is ours.
fn clear(contract: Contract, path: &Path) -> std::io::Result<Result<(), Error>> {
    while let Some(foreign) = journal::foreign(path)? {
        match contract {
            Contract::CommandLine => {
                let what = format!(
                    "{} has the name of the import's journal and is not one; move it, or give --journal DIR",
                    foreign.display()
                );
                return Ok(Err(Error::new(Kind::Target, what)));
            }
            Contract::Environment => {
                tracing::warn!(path = %foreign.display(), "a file with the name of the import's journal is not one: removing it");
                if std::fs::symlink_metadata(&foreign)?.is_dir() {
                    std::fs::remove_dir_all(&foreign)?;
                } else {
                    std::fs::remove_file(&foreign)?;
                }
            }
        }
    }
    Ok(Ok(()))
}

/// Opens the target for writing. A person's device is opened exclusively; the contract's is ours alone.
pub(super) fn open_target(config: &Config, facts: &Facts, keep: bool) -> Result<Target, Error> {
    if facts.mode == Mode::Block {
        let exclusive = config.contract == Contract::CommandLine;
        return Target::block(&facts.path, exclusive).map_err(|e| {
            Error::with(Kind::Target, format!("cannot open the target {}", facts.path.display()), e)
        });
    }
    let target = Target::file(&facts.path, keep).map_err(|e| {
        Error::with(Kind::Target, format!("cannot open the target {}", facts.path.display()), e)
    })?;
    if let Some(owner) = config.owner {
        target.set_mode(owner.mode)?;
        if let Err(error) = target.set_owner(owner.id, owner.id) {
            // Not root: then it is the pod's user, and its fsGroup, already.
            tracing::debug!(error = crate::volume::error::chain(&error), "the disk keeps its owner");
        }
    }
    Ok(target)
}

/// How the target is written. `grows` is set while the disk's size is unknown.
pub(super) fn options(config: &Config, session: &Session, grows: bool) -> Options {
    Options {
        grows,
        preallocate: config.preallocate,
        direct: if config.direct { Direct::Try } else { Direct::Never },
        engine: config.engine,
        stop: session.stop.clone(),
        ..Options::default()
    }
}

/// Opens the writer of a disk of `size` bytes. That it does not work at all, as with an engine that is asked for and
/// refused, is the target's failure.
///
/// # Errors
/// [`Kind::Target`], or [`Kind::NoRoom`] when the size is too much.
pub(super) fn open_writer(target: Target, size: u64, options: &Options) -> Result<Writer, Error> {
    Writer::open(target, size, options).map_err(|error| {
        if error.kind() == crate::Kind::Target {
            return Error::with(Kind::Target, "the target cannot be written", error);
        }
        error.into()
    })
}
