//! Does what was planned: an empty disk, an archive's files, or an image's bytes on the target.
//!
//! ```text
//!  open source ─► open image ─► sizes fit? ─► hold target ─► journal ─► writer ─► transfer ─► checksum ─► finish
//!  └──────────── nothing is written ─────────────────────┘
//! ```
//!
//! Doing it twice gives the same disk; what an interrupted try has finished is kept. Not here: exit codes, messages.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use api::names;
use disk_image::transfer::{self, Forgetful, Image, Ledger, Request, Spool};
use disk_image::write::{Direct, Options, Target, Writer};
use disk_image::{Source, Stop, compress};

use crate::archive;
use crate::checksum::Checked;
use crate::clone;
use crate::config::{self, Config, Contract, Location, Place};
use crate::error::{Error, Kind};
use crate::journal::{self, Head, Journal};
use crate::plan::{self, Existing, Foreign, Mode, Resume};
use crate::progress::Meter;
use crate::report::Done;
use crate::source::open::{Opened, open};
use crate::source::remote::Changed;
use crate::target::{self, Held, Stands};

/// What an import needs beside its configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Session {
    pub(crate) stop: Stop,
    pub(crate) meter: Meter,
}

/// The target, looked at.
struct Facts {
    path: PathBuf,
    mode: Mode,
    stands: Stands,
    /// Bytes it could hold, leftovers included.
    capacity: u64,
}

/// Imports.
///
/// # Errors
/// The first thing that does not work; what is durable then is in the journal.
pub(crate) fn import(config: &Config, session: &Session) -> Result<Done, Error> {
    let started = Instant::now();
    let facts = look(config)?;
    let mut done = match (&config.location, facts.mode) {
        (Location::Blank, Mode::File | Mode::Block) => blank(config, session, &facts),
        (Location::Blank, Mode::Folder) => {
            Err(Error::usage("cannot create an empty disk with content type archive"))
        }
        (_, Mode::Folder) => again_if_changed(|| unpack(config, session, &facts)),
        (_, Mode::File | Mode::Block) => again_if_changed(|| disk(config, session, &look(config)?)),
    }?;
    session.meter.complete();
    done.seconds = started.elapsed().as_secs_f64();
    Ok(done)
}

/// Times a source may change under our hands.
const CHANGES_MAX: u32 = 3;

/// A source that became another while it was read is read from its start: the new one is imported, whole.
fn again_if_changed(mut import: impl FnMut() -> Result<Done, Error>) -> Result<Done, Error> {
    for _ in 0..CHANGES_MAX {
        match import() {
            Err(error) if Changed::find(&error).is_some() => {
                tracing::warn!(
                    error = crate::report::chain(&error),
                    "the source changed; starting again with the new one"
                );
            }
            other => return other,
        }
    }
    import()
}

fn look(config: &Config) -> Result<Facts, Error> {
    let (path, device) = match &config.place {
        Place::Volume { data, device } => {
            // The device node's existence alone decides.
            let block = device.exists();
            let folder = config.content == api::import::Content::Archive;
            let path = match (block, folder) {
                (true, _) => device.clone(),
                (false, true) => data.clone(),
                (false, false) => data.join(names::DISK_FILE),
            };
            (path, block)
        }
        Place::Path(path) => (path.clone(), matches!(target::look(path), Ok(Stands::Device { .. }))),
    };
    let mode = plan::mode(config.content, device)?;
    let stands = target::look(&path)?;
    let shown = path.display();
    let capacity = match (mode, stands) {
        (Mode::File, Stands::Nothing) => target::free(&target::folder_of(&path))?,
        (Mode::File, Stands::File { occupied, .. }) => {
            target::free(&target::folder_of(&path))?.saturating_add(occupied)
        }
        (Mode::Block, Stands::Device { .. }) => target::device_size(&path)?,
        (Mode::Folder, Stands::Folder) => target::free(&path)?,
        (Mode::Folder, Stands::Nothing) => target::free(&target::folder_of(&path))?,
        (Mode::File, Stands::Folder) => {
            return Err(Error::new(Kind::Target, format!("{shown} is a folder; name a file in it")));
        }
        (Mode::Folder, Stands::File { .. } | Stands::Device { .. }) => {
            return Err(Error::new(
                Kind::Target,
                format!("{shown} is no folder; an archive is unpacked into a folder"),
            ));
        }
        (Mode::File, Stands::Device { .. })
        | (Mode::Block, Stands::Nothing | Stands::File { .. } | Stands::Folder) => {
            return Err(Error::new(Kind::Target, format!("{shown} is no block device")));
        }
    };
    Ok(Facts { path, mode, stands, capacity })
}

fn available(config: &Config, facts: &Facts) -> u64 {
    plan::available(config.contract, facts.mode, config.preallocate, facts.capacity, config.size)
}

/// Refuses what a person would not want overwritten. The contract's volumes are ours to write.
fn check_device(config: &Config, facts: &Facts) -> Result<(), Error> {
    match (facts.stands, config.contract) {
        (Stands::Device { number }, Contract::CommandLine) if !config.force => {
            target::unused(&facts.path, number)
        }
        (Stands::Nothing | Stands::File { .. } | Stands::Device { .. } | Stands::Folder, _) => Ok(()),
    }
}

/// Opens the target for writing. A device is opened exclusively unless it was forced; the contract's is ours alone.
fn open_target(config: &Config, facts: &Facts, keep: bool) -> Result<Target, Error> {
    if facts.mode == Mode::Block {
        let exclusive = config.contract == Contract::CommandLine && !config.force;
        return Target::block(&facts.path, exclusive)
            .map_err(|e| Error::with(Kind::Target, "cannot open the target", e));
    }
    let target = Target::file(&facts.path, keep)
        .map_err(|e| Error::with(Kind::Target, "cannot open the target", e))?;
    if config.contract == Contract::Environment {
        target.set_mode(names::DISK_MODE)?;
        if let Err(error) = target.set_owner(names::QEMU_ID, names::QEMU_ID) {
            // Not root: then it is the pod's user, and its fsGroup, already.
            tracing::debug!(error = crate::report::chain(&error), "the disk keeps its owner");
        }
    }
    Ok(target)
}

fn options(config: &Config, session: &Session, grows: bool) -> Options {
    Options {
        grows,
        preallocate: config.preallocate && !grows,
        direct: if config.direct { Direct::Try } else { Direct::Never },
        engine: config.engine,
        stop: session.stop.clone(),
        ..Options::default()
    }
}

/// An empty disk: a file of the right size; a device as it is, zeroed for a person, written if it is preallocated.
fn blank(config: &Config, session: &Session, facts: &Facts) -> Result<Done, Error> {
    session.meter.phase("creating");
    let available = available(config, facts);
    let size = match facts.mode {
        Mode::File => plan::blank_size(available, config.overhead, config.size)?,
        Mode::Block | Mode::Folder => facts.capacity,
    };
    if facts.mode == Mode::Block && config.contract == Contract::Environment && !config.preallocate {
        return Ok(Done { silent: true, ..Done::default() });
    }
    check_device(config, facts)?;
    let (_held, _) = hold(config, facts, None)?;
    if let Some(journal) = journal_path(config, facts) {
        // Of an import that was not finished; there is none, as a rule.
        drop(std::fs::remove_file(journal));
    }
    let writer = Writer::open(open_target(config, facts, false)?, size, &options(config, session, false))?;
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
        ..Done::default()
    })
}

/// The files of a tar archive in a folder.
fn unpack(config: &Config, session: &Session, facts: &Facts) -> Result<Done, Error> {
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

/// An open source, hashed if a checksum was given.
struct Wire {
    source: Arc<dyn Source>,
    checked: Option<Arc<Checked>>,
    opened: Opened,
}

fn connect(config: &Config, session: &Session) -> Result<Wire, Error> {
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
fn verify(checked: Option<&Checked>, opened: &Opened, session: &Session) -> Result<(), Error> {
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

/// Limits as `disk_image` wants them.
pub(crate) fn transfer_limits(limits: &config::Limits, capacity: u64) -> transfer::Limits {
    transfer::Limits {
        windows: compress::Limits { window: limits.window, windows: limits.window.max(128 << 20) },
        memory: limits.memory,
        connections: limits.connections,
        capacity,
        ..transfer::Limits::default()
    }
}

fn disk(config: &Config, session: &Session, facts: &Facts) -> Result<Done, Error> {
    session.meter.phase("connecting");
    check_device(config, facts)?;
    let Wire { source, checked, opened } = connect(config, session)?;
    if let Some(local) = &opened.local {
        target::not_the_source(local.file(), &facts.path)?;
    }
    let available = available(config, facts);
    // A stream of unknown size cannot be checked before; what is free bounds it then.
    let bound = available.min(facts.capacity);
    let reread = plan::reread(source.facts().size, opened.local.is_some());
    let image = transfer::open(Request {
        source,
        format: config.format,
        limits: transfer::Limits { reread, ..transfer_limits(&config.limits, bound) },
        progress: session.meter.transfer.clone(),
    })?;
    let mut warnings = Vec::new();
    let seen = if image.is_tar() { Some("a tar archive") } else { image.foreign() };
    if let Foreign::Warn(warning) = plan::foreign(config.contract, config.format.is_some(), seen)? {
        tracing::warn!("{warning}");
        warnings.push(warning);
    }
    if let Some(size) = image.virtual_size() {
        plan::fits(size, available)?;
        if facts.mode == Mode::File && size > facts.capacity {
            let warning = format!("the disk may grow to {size} bytes, and only {} are free", facts.capacity);
            tracing::warn!("{warning}");
        }
    }
    tracing::info!(
        format = image.format().name(),
        compression = image.compression().map(disk_image::Compression::name),
        virtual_size = image.virtual_size(),
        way = %image.way(),
        "opened the image"
    );
    let work = Work {
        config,
        session,
        facts,
        image: &image,
        opened: &opened,
        checked: checked.as_deref(),
        available,
    };
    let mut done = work.run()?;
    done.warnings.extend(warnings);
    done.labels = opened.labels;
    Ok(done)
}

/// Everything is known; now it is done.
struct Work<'a> {
    config: &'a Config,
    session: &'a Session,
    facts: &'a Facts,
    image: &'a Image,
    opened: &'a Opened,
    checked: Option<&'a Checked>,
    available: u64,
}

/// Where the journal of a target lies; devices have none without a folder for it.
fn journal_path(config: &Config, facts: &Facts) -> Option<PathBuf> {
    let scratch = config::mounted(config.scratch.as_deref());
    match (facts.mode, &config.journal) {
        (_, Some(folder)) => Some(journal::path_for(&facts.path, Some(folder))),
        (Mode::Block, None) => scratch.map(|folder| journal::path_for(&facts.path, Some(folder))),
        (Mode::File | Mode::Folder, None) => Some(journal::path_for(&facts.path, None)),
    }
}

/// Locks the target and says how to go on with what it holds.
fn hold(
    config: &Config,
    facts: &Facts,
    head: Option<&Head>,
) -> Result<(Held, (Resume, Option<journal::Found>)), Error> {
    let failed = |e| Error::with(Kind::Target, "cannot read the journal of an earlier import", e);
    // Asked again once the lock is ours: somebody may have finished meanwhile.
    let held = target::hold(&facts.path, facts.mode == Mode::Block)?;
    let path = journal_path(config, facts);
    let found = path.as_deref().map(journal::find).transpose().map_err(failed)?.flatten();
    let node = match facts.stands {
        Stands::Device { number } => number,
        Stands::Nothing | Stands::File { .. } | Stands::Folder => held.inode().map_err(failed)?,
    };
    let ours = found.as_ref().is_some_and(|found| found.head.node == node);
    let same_image =
        head.zip(found.as_ref()).is_some_and(|(head, found)| head.at(node).continues(&found.head));
    let existing = match facts.stands {
        // What a device carries was looked at; only a journal says that it is an unfinished import.
        Stands::Device { .. } => Some(Existing { content: false, ours, same_image }),
        Stands::Nothing | Stands::File { .. } | Stands::Folder => (!held.created).then(|| {
            let content =
                target::look(&facts.path).is_ok_and(|now| !matches!(now, Stands::File { len: 0, .. }));
            Existing { content, ours, same_image }
        }),
    };
    let resume = plan::existing(config.contract, config.force, existing, &facts.path.display().to_string())?;
    Ok((held, (resume, found)))
}

impl Work<'_> {
    fn run(&self) -> Result<Done, Error> {
        let mut head = self.head();
        let (held, (resume, found)) = hold(self.config, self.facts, Some(&head))?;
        let node = match self.facts.stands {
            Stands::Device { number } => number,
            Stands::Nothing | Stands::File { .. } | Stands::Folder => {
                held.inode().map_err(|e| Error::with(Kind::Target, "cannot look at the target", e))?
            }
        };
        head = head.at(node);
        let journal = self.journal(&head, resume, found)?;
        let keep = resume == Resume::Continue;
        let result = self.fill(journal.as_ref().map_or(0, |j| j.done().bytes()), keep, journal);
        if let Err(error) = &result {
            self.undo(error, &held);
        }
        result
    }

    fn head(&self) -> Head {
        let compression = self.image.compression().map_or("", disk_image::Compression::name);
        let format = format!("{} {compression}", self.image.format().name());
        Head::new(self.opened.identity.as_deref(), 0, self.image.virtual_size(), format.trim().to_owned())
    }

    fn journal(
        &self,
        head: &Head,
        resume: Resume,
        found: Option<journal::Found>,
    ) -> Result<Option<Journal>, Error> {
        let shown = self.facts.path.display();
        let Some(path) = journal_path(self.config, self.facts) else {
            tracing::info!(
                "{shown} has no journal: an interrupted import starts again (give --journal DIR to go on instead)"
            );
            return Ok(None);
        };
        let failed = |e| {
            let error = disk_image::Error::target(format!("cannot write the journal {}", path.display()), e);
            Error::from(error)
        };
        match (resume, found) {
            (Resume::Continue, Some(found)) => {
                let journal = Journal::go_on(&path, found).map_err(failed)?;
                tracing::info!(done = journal.done().bytes(), "going on with an interrupted import");
                Ok(Some(journal))
            }
            (Resume::Continue | Resume::Restart | Resume::Fresh, _) => {
                if resume == Resume::Restart {
                    tracing::info!("starting from the beginning");
                }
                Journal::start(&path, head).map(Some).map_err(failed)
            }
        }
    }

    fn fill(&self, resumed: u64, keep: bool, mut journal: Option<Journal>) -> Result<Done, Error> {
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
            journal.remove().map_err(|e| Error::with(Kind::Process, "cannot remove the journal", e))?;
        }
        Ok(done)
    }

    /// Size of the target's disk once the image's is known.
    fn final_size(&self, virtual_size: u64) -> u64 {
        match self.facts.mode {
            Mode::File => {
                plan::final_size(virtual_size, self.available, self.config.overhead, self.config.size)
            }
            Mode::Block | Mode::Folder => virtual_size,
        }
    }

    /// The one place that moves bytes.
    fn transfer(&self, target: Target, ledger: &mut dyn Ledger) -> Result<Done, Error> {
        let (config, session) = (self.config, self.session);
        let known = self.image.virtual_size().map(|size| self.final_size(size));
        let bound = known.unwrap_or(self.available.min(self.facts.capacity));
        let writer = Writer::open(target, bound, &options(config, session, known.is_none()))?;
        session.meter.engine(writer.engine_now());
        session.meter.phase("importing");
        let progress = &session.meter.transfer;
        let report = transfer::run(self.image, &writer, ledger, &self.spool(bound), progress, &session.stop)?;
        verify(self.checked, self.opened, session)?;
        session.meter.phase("syncing");
        plan::fits(report.virtual_size, self.available)?;
        let disk_size = self.final_size(report.virtual_size);
        if known.is_none() {
            writer.set_len(disk_size)?;
        }
        let written = writer.finish()?;
        if config.preallocate && known.is_none() && self.facts.mode == Mode::File {
            Target::file(&self.facts.path, true)?.preallocate(disk_size)?;
        }
        Ok(Done {
            bytes_read: report.bytes_read,
            bytes_written: report.bytes_written,
            zeroes_skipped: report.bytes_zero,
            bytes_resumed: report.bytes_resumed,
            virtual_size: report.virtual_size,
            disk_size,
            format: self.head_format(),
            engine: written.engine.to_string(),
            preallocated: config.preallocate,
            ..Done::default()
        })
    }

    fn head_format(&self) -> String {
        match self.image.compression() {
            Some(compression) => format!("{}.{}", self.image.format().name(), compression.name()),
            None => self.image.format().name().to_owned(),
        }
    }

    /// Room for early bytes of a stream, best first: beside the disk, then scratch.
    fn spool(&self, final_size: u64) -> Spool {
        let mut folders = Vec::new();
        if self.facts.mode == Mode::File {
            let spare = plan::spare(self.facts.capacity, final_size);
            if spare > 0 {
                folders.push((target::folder_of(&self.facts.path), spare));
            }
        }
        if let Some(scratch) = config::mounted(self.config.scratch.as_deref())
            && let Ok(free) = target::free(scratch)
        {
            folders.push((scratch.to_owned(), plan::spare(free, 0)));
        }
        Spool { folders }
    }

    /// A raw local file is cloned by its filesystem when that can be.
    fn clone_locally(&self, target: &Target) -> Result<Option<Done>, Error> {
        let raw = self.image.format() == disk_image::Format::Raw && self.image.compression().is_none();
        let plain =
            raw && self.facts.mode == Mode::File && self.checked.is_none() && !self.config.preallocate;
        let (Some(local), true, Some(size)) = (&self.opened.local, plain, self.image.virtual_size()) else {
            return Ok(None);
        };
        let failed = |e| Error::from(disk_image::Error::target("cloning the image", e));
        let Some(method) =
            clone::clone(local.file(), target.as_file(), &self.session.stop).map_err(failed)?
        else {
            return Ok(None);
        };
        let disk_size = self.final_size(size);
        target.set_len(disk_size)?;
        target.as_file().sync_all().map_err(failed)?;
        journal::sync_folder(&self.facts.path).map_err(failed)?;
        tracing::info!(method = method.name(), "cloned");
        Ok(Some(Done {
            virtual_size: size,
            disk_size,
            format: "raw".to_owned(),
            engine: method.name().to_owned(),
            ..Done::default()
        }))
    }

    /// What failed for good leaves nothing behind; what may be gone on with stays.
    fn undo(&self, error: &Error, held: &Held) {
        let worthless =
            matches!(error.kind(), Kind::Checksum | Kind::Digest | Kind::Refused | Kind::NeedsScratch);
        let untouched = held.created && std::fs::metadata(&self.facts.path).is_ok_and(|meta| meta.len() == 0);
        if !worthless && !untouched {
            return;
        }
        if let Some(path) = journal_path(self.config, self.facts) {
            drop(std::fs::remove_file(path));
        }
        let wiped = match self.facts.mode {
            Mode::File => std::fs::remove_file(&self.facts.path).map_err(|e| e.to_string()),
            Mode::Block => self.wipe().map_err(|e| crate::report::chain(&e)),
            Mode::Folder => Ok(()),
        };
        match wiped {
            Ok(()) => tracing::info!("what was written is deleted"),
            Err(error) => tracing::error!(error, "what was written cannot be deleted"),
        }
        drop(journal::sync_folder(&self.facts.path));
    }

    /// Makes what was written to a device unreadable as a disk.
    fn wipe(&self) -> Result<(), Error> {
        let size = self.image.virtual_size().unwrap_or(self.facts.capacity).min(self.facts.capacity);
        let target = open_target(self.config, self.facts, false)?;
        let writer = Writer::open(target, size, &options(self.config, self.session, false))?;
        writer.zero(0..size, Arc::new(()))?;
        writer.finish()?;
        Ok(())
    }
}

/// Whether scratch is mounted, for the answer to the controller.
pub(crate) fn scratch_mounted(config: &Config) -> bool {
    config::mounted(config.scratch.as_deref()).is_some()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Root;
    use crate::report::{self, Answer, Asked};
    use api::import::{Content, Job};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    const MIB: u64 = 1 << 20;

    /// A pod's paths below a folder, and the import of a local file under the contract. (The contract has no local
    /// source; everything behind the source is the same.)
    struct Pod {
        folder: tempfile::TempDir,
    }

    impl Pod {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            std::fs::create_dir(folder.path().join("data")).unwrap();
            Self { folder }
        }

        fn config(&self, job: Job, bytes: &[u8]) -> Config {
            let image = self.folder.path().join("image");
            std::fs::write(&image, bytes).unwrap();
            let root = Root { folder: self.folder.path().to_owned(), metrics_port: 0 };
            let job = Job { endpoint: "http://h/i".into(), filesystem_overhead: 0.06, ..job };
            let mut config = Config::from_job(job, Vec::new(), &root).unwrap();
            config.location = Location::File(image);
            config
        }

        fn run(&self, job: Job, bytes: &[u8]) -> Answer {
            let config = self.config(job, bytes);
            let outcome = import(&config, &Session::default());
            report::answer(Asked::of(&config, scratch_mounted(&config), None), &outcome)
        }

        fn disk(&self) -> PathBuf {
            self.folder.path().join("data/disk.img")
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(self.folder.path().join("data")).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        }
    }

    #[test]
    fn the_contracts_disk() {
        let pod = Pod::new();
        let bytes = vec![7; 3 * 1024 * 1024 + 512];
        let answer = pod.run(Job { image_size: Some(64 * MIB), ..Job::default() }, &bytes);
        assert_eq!(answer.exit, 0);
        assert_eq!(answer.termination.as_deref(), Some(r#"{"message":"Import Complete"}"#));
        let meta = std::fs::metadata(pod.disk()).unwrap();
        assert_eq!(
            (meta.len(), meta.uid(), meta.gid(), meta.permissions().mode() & 0o7777),
            (60 * MIB, 107, 107, 0o660)
        );
        let disk = std::fs::read(pod.disk()).unwrap();
        assert!(disk[..bytes.len()] == bytes && disk[bytes.len()..].iter().all(|&b| b == 0));
        assert_eq!(pod.names(), ["disk.img"]);
        // Again, over what is there: the same disk.
        assert_eq!(pod.run(Job { image_size: Some(64 * MIB), ..Job::default() }, &bytes).exit, 0);
        assert!(std::fs::read(pod.disk()).unwrap() == disk);
    }

    #[test]
    fn an_image_larger_than_the_request() {
        let pod = Pod::new();
        let answer = pod.run(Job { image_size: Some(MIB), ..Job::default() }, &vec![7; 2 << 20]);
        assert_eq!(answer.exit, 1);
        assert_eq!(
            answer.termination.as_deref(),
            Some(
                "Unable to process data: virtual image size 2097152 is larger than the reported available storage 1048576. A larger PVC is required"
            )
        );
        assert!(pod.names().is_empty());
        // The retry after the volume grew succeeds.
        assert_eq!(pod.run(Job { image_size: Some(4 * MIB), ..Job::default() }, &vec![7; 2 << 20]).exit, 0);
    }

    #[test]
    fn a_checksum_mismatch_deletes_and_exits_0() {
        let pod = Pod::new();
        let checksum = "md5:d41d8cd98f00b204e9800998ecf8427e";
        let answer = pod.run(Job { checksum: checksum.into(), ..Job::default() }, b"something");
        assert_eq!(answer.exit, 0);
        let message = answer.termination.unwrap();
        assert!(message.starts_with(r#"{"message":"checksum mismatch"#), "{message}");
        assert!(pod.names().is_empty());
    }

    #[test]
    fn what_is_no_disk_is_imported_with_a_warning() {
        let pod = Pod::new();
        let page = b"<!DOCTYPE html><html></html>";
        let answer = pod.run(Job::default(), page);
        assert_eq!(answer.exit, 0);
        let message = answer.termination.unwrap();
        assert!(message.contains("Import Complete; warning: ") && message.contains("HTML"), "{message}");
        assert_eq!(std::fs::read(pod.disk()).unwrap(), page);
    }

    #[test]
    fn archives_go_into_the_volume_itself() {
        let pod = Pod::new();
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(4);
        header.set_mode(0o644);
        tar.append_data(&mut header, "sub/file", &b"text"[..]).unwrap();
        let bytes = tar.into_inner().unwrap();
        let job = Job { content: Content::Archive, ..Job::default() };
        assert_eq!(pod.run(job.clone(), &bytes).exit, 0);
        assert_eq!(std::fs::read(pod.folder.path().join("data/sub/file")).unwrap(), b"text");
        let wrong = Job { checksum: "md5:d41d8cd98f00b204e9800998ecf8427e".into(), ..job };
        assert_eq!(pod.run(wrong, &bytes).exit, 0);
        assert!(pod.names().is_empty());
    }

    #[test]
    fn what_was_journaled_is_not_read_again() {
        let pod = Pod::new();
        let bytes: Vec<u8> = (0..8u32 << 20).map(|i| u8::try_from(i % 251).unwrap()).collect();
        let config = pod.config(Job::default(), &bytes);
        // An earlier try that finished the first half, and is told apart from the image by other bytes there.
        std::fs::write(pod.disk(), vec![0xee; 8 << 20]).unwrap();
        let session = Session::default();
        let opened = open(&config.location, &config.access, &config.limits, &session.stop).unwrap();
        let node = std::fs::metadata(pod.disk()).unwrap().ino();
        let head = Head::new(opened.identity.as_deref(), node, Some(8 * MIB), "raw".into());
        let path = journal::path_for(&pod.disk(), None);
        let mut journal = Journal::start(&path, &head).unwrap();
        let mut half = disk_image::RangeSet::new();
        half.insert(0..4 * MIB);
        journal.commit(&half).unwrap();
        drop(journal);
        let done = import(&config, &session).unwrap();
        assert_eq!(done.bytes_resumed, 4 * MIB);
        assert!(done.bytes_read < 5 * MIB, "{} bytes were read", done.bytes_read);
        let disk = std::fs::read(pod.disk()).unwrap();
        assert!(disk[..4 << 20].iter().all(|&b| b == 0xee) && disk[4 << 20..] == bytes[4 << 20..]);
        assert_eq!(pod.names(), ["disk.img"]);
    }

    #[test]
    fn leftovers_do_not_count_against_the_space() {
        let pod = Pod::new();
        std::fs::write(pod.disk(), vec![1; 16 << 20]).unwrap();
        let config = pod.config(Job::default(), b"x");
        let with = look(&config).unwrap().capacity;
        std::fs::remove_file(pod.disk()).unwrap();
        let without = look(&config).unwrap().capacity;
        // Others use this filesystem as well.
        assert!(with.abs_diff(without) < 12 * MIB, "{with} {without}");
    }

    #[test]
    fn scratch_is_asked_for_when_it_would_help() {
        let pod = Pod::new();
        let config = pod.config(Job::default(), b"x");
        assert!(!scratch_mounted(&config));
        std::fs::create_dir(pod.folder.path().join("scratch")).unwrap();
        assert!(scratch_mounted(&config));
    }
}
