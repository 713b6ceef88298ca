//! Does what was planned: an empty disk, an archive's files, or an image's bytes on the target.
//!
//! ```text
//!  open source ─► open image ─► sizes fit? ─► hold target ─► journal ─► writer ─► transfer ─► checksum ─► finish
//!  └──────────── nothing is written ─────────────────────┘
//! ```
//!
//! Doing it twice gives the same disk; what an interrupted try has finished is kept. Not here: exit codes, messages.
//!
//! - `look`: the target, before anything is opened. `connect`: the source. `hold`: the target, locked and opened.
//! - `blank`, `unpack`, `disk`: the three things there are to do; `fill` moves a disk's bytes, `undo` takes back what
//!   failed for good.

use std::time::Instant;

use disk_image::{Stop, compress, transfer};

use crate::config::{self, Config, Location};
use crate::error::Error;
use crate::plan::Mode;
use crate::progress::Meter;
use crate::report::Done;
use crate::source::remote::Changed;

mod blank;
mod connect;
mod disk;
mod fill;
mod hold;
mod look;
mod undo;
mod unpack;

use blank::blank;
use disk::disk;
use look::look;
pub(crate) use unpack::empty_folder;
use unpack::{check_folder, unpack};

/// What an import needs beside its configuration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Session {
    pub(crate) stop: Stop,
    pub(crate) meter: Meter,
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
        (_, Mode::Folder) => {
            check_folder(config, &facts).and_then(|()| again_if_changed(|| unpack(config, session, &facts)))
        }
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

/// Whether scratch is mounted, for the answer to the controller.
pub(crate) fn scratch_mounted(config: &Config) -> bool {
    config::mounted(config.scratch.as_deref()).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Root;
    use crate::journal::{self, Head, Journal};
    use crate::report::{self, Answer, Asked};
    use crate::source::open::open;
    use api::import::{Content, Job};
    use disk_image::transfer::Ledger as _;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::path::PathBuf;

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
