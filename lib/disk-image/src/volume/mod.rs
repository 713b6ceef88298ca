//! Turns a stream of image bytes into a volume: an empty disk, an archive's files, or an image's disk on the target. The
//! importer and the upload server do this, from sources of their own.
//!
//! ```text
//!  inspect ─► source ─► open image ─► sizes fit? ─► lock target ─► journal ─► writer ─► transfer ─► checksum ─► finish
//!             └─────────── nothing is written ───┘
//! ```
//!
//! Doing it twice gives the same volume; what an interrupted try has finished is kept. Not here: exit codes, messages,
//! where bytes come from.
//!
//! - `plan` decides, purely. `inspect`: the target, before a file is opened. `source`: the source, and its checksum.
//!   `lock`: the target, locked and opened. `journal`: its finished ranges; `fingerprint`: whether these are still there.
//! - `blank`, `unpack`, `disk`: the three kinds of import; `fill` moves a disk's bytes, `rollback` undoes an import that
//!   failed for good. `archive` reads tar.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::Metadata;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::source::{FileSource, Source};
use crate::stop::Stop;

mod archive;
mod blank;
mod checksum;
mod clone;
pub mod config;
mod disk;
pub mod error;
mod fill;
mod fingerprint;
mod folder_content;
mod inspect;
mod journal;
mod lock;
pub mod plan;
mod prepared;
mod progress;
mod rollback;
mod source;
mod storage;
mod target;
mod unpack;

pub use archive::Member;
pub use checksum::{Checked, Checksum};
pub use config::{Config, Contract, Holds, Owner, Place};
pub use error::{Error, Kind};
pub use progress::Meter;

use inspect::inspect;
use plan::Mode;

/// Inputs of filling a volume in addition to its configuration.
#[derive(Clone, Debug, Default)]
pub struct Session {
    /// The wish to stop.
    pub stop: Stop,
    /// How far it is.
    pub meter: Meter,
}

/// Checks at the end whether the bytes read are the expected ones.
pub type Verify = Arc<dyn Fn(&Stop) -> Result<(), Error> + Send + Sync>;

/// An open source and what is known of it.
pub struct Input {
    /// The bytes.
    pub source: Arc<dyn Source>,
    /// Changes whenever the bytes do; `None` when nothing vouches for them, and then nothing is resumed.
    pub identity: Option<String>,
    /// The local file, if it is one: it may be cloned.
    pub local: Option<Arc<FileSource>>,
    /// The file or device on this machine that the bytes come from, archives and standard input included.
    pub read_from: Option<Metadata>,
    /// Its name in messages, without secrets.
    pub name: Option<String>,
    /// The bytes are good once this check has passed, after they were read.
    pub verify: Option<Verify>,
}

impl Input {
    /// A source that nothing else is known of.
    pub fn new(source: Arc<dyn Source>) -> Self {
        Self { source, identity: None, local: None, read_from: None, name: None, verify: None }
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Where the content of a volume comes from.
pub trait Origin {
    /// Opens the source. Called when the target was looked at, again only after [`Origin::changed`].
    ///
    /// # Errors
    /// When it cannot be reached.
    fn connect(&mut self) -> Result<Input, Error>;

    /// Whether `error` means that the source changed while it was read: the new one is then read from its start.
    fn changed(&self, error: &Error) -> bool {
        let _ = error;
        false
    }
}

/// Result of filling a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Done {
    /// Bytes read from the source, as they came.
    pub bytes_read: u64,
    /// Bytes of data written.
    pub bytes_written: u64,
    /// Bytes of zeroes that were skipped.
    pub zeroes_skipped: u64,
    /// Bytes an earlier, interrupted try had finished.
    pub bytes_resumed: u64,
    /// Size of the image's disk.
    pub virtual_size: u64,
    /// Size of the target's disk.
    pub disk_size: u64,
    /// The image's format.
    pub format: String,
    /// How bytes were written.
    pub engine: String,
    /// From start to end.
    pub seconds: f64,
    /// All blocks of the target are allocated.
    pub preallocated: bool,
    /// Warnings.
    pub warnings: Vec<String>,
    /// Labels for the PVC; filled in by the source.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// An empty block device without preallocation: upstream reports nothing at all.
    #[serde(skip)]
    pub silent: bool,
}

/// Fills the volume from `origin`.
///
/// # Errors
/// The first failure; ranges that are durable by then are in the journal.
pub fn import(config: &Config, session: &Session, origin: &mut dyn Origin) -> Result<Done, Error> {
    let started = Instant::now();
    let facts = inspect(config)?;
    let done = match facts.mode {
        Mode::Folder => {
            unpack::check_folder(config, &facts)?;
            again_if_changed(origin, |origin| unpack::unpack(config, session, &facts, origin))
        }
        Mode::File | Mode::Block => {
            again_if_changed(origin, |origin| disk::disk(config, session, &inspect(config)?, origin))
        }
    }?;
    session.meter.complete();
    Ok(Done { seconds: started.elapsed().as_secs_f64(), ..done })
}

/// Makes the volume an empty disk.
///
/// # Errors
/// When it is none that can hold a disk, or cannot be written.
pub fn blank(config: &Config, session: &Session) -> Result<Done, Error> {
    let started = Instant::now();
    let facts = inspect(config)?;
    let done = match facts.mode {
        Mode::File | Mode::Block => blank::blank(config, session, &facts),
        Mode::Folder => Err(Error::usage("cannot create an empty disk with content type archive")),
    }?;
    session.meter.complete();
    Ok(Done { seconds: started.elapsed().as_secs_f64(), ..done })
}

/// Times a source may change under our hands.
const CHANGES_MAX: u32 = 3;

/// A source that became another while it was read is read from its start: the new one is taken, whole.
fn again_if_changed(
    origin: &mut dyn Origin,
    mut import: impl FnMut(&mut dyn Origin) -> Result<Done, Error>,
) -> Result<Done, Error> {
    for _ in 0..CHANGES_MAX {
        match import(origin) {
            Err(error) if origin.changed(&error) => {
                tracing::warn!(
                    error = error::chain(&error),
                    "the source changed; starting again with the new one"
                );
            }
            other => return other,
        }
    }
    import(origin)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::path::{Path, PathBuf};

    use super::journal::{Head, Journal};
    use super::*;
    use crate::RangeSet;
    use crate::transfer::{Ledger as _, Limits};

    const MIB: u64 = 1 << 20;

    /// A local file that vouches for its bytes.
    struct Local(PathBuf);

    impl Origin for Local {
        fn connect(&mut self) -> Result<Input, Error> {
            let source = FileSource::open_path(&self.0).map_err(|e| Error::connect("cannot open it", e))?;
            Ok(Input { identity: Some("v1".into()), ..Input::new(Arc::new(source)) })
        }
    }

    /// A pod's volume below a folder.
    fn config(folder: &Path) -> Config {
        let data = folder.join("data");
        std::fs::create_dir_all(&data).unwrap();
        Config {
            contract: Contract::Environment,
            holds: Holds::Disk,
            place: Place::Volume { disk: data.join("disk.img"), data, device: folder.join("device") },
            owner: None,
            scratch: Some(folder.join("scratch")),
            remember: true,
            journal: None,
            size: None,
            overhead: 0.0,
            preallocate: false,
            direct: true,
            engine: None,
            checksum: None,
            format: None,
            force: true,
            limits: Limits::default(),
        }
    }

    /// Makes `disk` what an unfinished import of `v1` left: a raw image of `size` bytes of which `done` is there.
    fn journaled(disk: &Path, size: u64, done: Range<u64>) {
        let held = target::hold(disk, false).unwrap();
        let head = Head::new(Some("v1"), held.node().unwrap(), Some(size), "raw".into());
        let mut journal = Journal::start(&journal::path_for(disk, None), &head, held.file()).unwrap();
        let mut ranges = RangeSet::new();
        if !done.is_empty() {
            ranges.insert(done);
        }
        journal.commit(&ranges).unwrap();
    }

    /// Bytes with zeroes in every other MiB.
    fn striped(len: u64) -> Vec<u8> {
        (0..len)
            .map(|i| if (i / MIB).is_multiple_of(2) { u8::try_from(i % 251).unwrap() } else { 0 })
            .collect()
    }

    #[test]
    fn previous_data_does_not_show_through() {
        // Killed when its journal was there, and the file not emptied yet.
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let (image, disk) = (folder.path().join("image"), folder.path().join("data/disk.img"));
        std::fs::write(&image, striped(8 * MIB)).unwrap();
        std::fs::write(&disk, vec![0xee; 8 << 20]).unwrap();
        journaled(&disk, 8 * MIB, 0..0);
        import(&config, &Session::default(), &mut Local(image)).unwrap();
        assert!(std::fs::read(&disk).unwrap() == striped(8 * MIB));
    }

    #[test]
    fn a_target_with_foreign_writes_is_not_an_unfinished_import() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::write(&image, striped(8 * MIB)).unwrap();
        for contract in [Contract::Environment, Contract::CommandLine] {
            let force = contract == Contract::Environment;
            let config = Config { contract, force, ..config(folder.path()) };
            let disk = folder.path().join("data/disk.img");
            let others: [(&str, &dyn Fn()); 3] = [
                ("overwritten", &|| std::fs::write(&disk, vec![0xee; 8 << 20]).unwrap()),
                ("cut", &|| {
                    std::fs::OpenOptions::new().write(true).open(&disk).unwrap().set_len(2 << 20).unwrap()
                }),
                ("another file", &|| {
                    // Kept, so that its inode number is not reused: then the birth time would decide.
                    std::fs::rename(&disk, folder.path().join("old")).unwrap();
                    std::fs::write(&disk, vec![0xee; 8 << 20]).unwrap();
                }),
            ];
            for (what, change) in others {
                std::fs::write(&disk, striped(8 * MIB)).unwrap();
                journaled(&disk, 8 * MIB, 0..5 * MIB);
                change();
                let result = import(&config, &Session::default(), &mut Local(image.clone()));
                match contract {
                    Contract::Environment => {
                        assert_eq!(result.unwrap().bytes_resumed, 0, "{what}");
                        assert!(std::fs::read(&disk).unwrap() == striped(8 * MIB), "{what}");
                    }
                    Contract::CommandLine => assert_eq!(result.unwrap_err().kind(), Kind::Target, "{what}"),
                }
                std::fs::remove_file(&disk).unwrap();
            }
        }
    }

    #[test]
    fn going_on_with_a_smaller_size_gives_that_size() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        std::fs::write(&image, striped(8 * MIB)).unwrap();
        let config = Config { contract: Contract::CommandLine, ..config(folder.path()) };
        let disk = folder.path().join("data/disk.img");
        for (before, size, after) in
            [(64, None, 8), (64, Some(16 * MIB), 16), (8, Some(16 * MIB), 16), (16, Some(16 * MIB), 16)]
        {
            let mut bytes = striped(5 * MIB);
            bytes.resize(before << 20, 0);
            std::fs::write(&disk, bytes).unwrap();
            journaled(&disk, 8 * MIB, 0..5 * MIB);
            let config = Config { size, ..config.clone() };
            let done = import(&config, &Session::default(), &mut Local(image.clone())).unwrap();
            assert_eq!((done.bytes_resumed, done.disk_size), (5 * MIB, after * MIB), "{before} {size:?}");
            let mut expected = striped(8 * MIB);
            expected.resize(usize::try_from(after * MIB).unwrap(), 0);
            assert!(std::fs::read(&disk).unwrap() == expected, "{before} {size:?}");
            std::fs::remove_file(&disk).unwrap();
        }
    }

    #[test]
    fn journaled_ranges_are_not_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let (image, disk) = (folder.path().join("image"), folder.path().join("data/disk.img"));
        let bytes: Vec<u8> = (0..8u32 << 20).map(|i| u8::try_from(i % 251).unwrap()).collect();
        std::fs::write(&image, &bytes).unwrap();
        // An earlier attempt that finished the first half; other bytes there distinguish it from the image.
        std::fs::write(&disk, vec![0xee; 8 << 20]).unwrap();
        journaled(&disk, 8 * MIB, 0..4 * MIB);
        let done = import(&config, &Session::default(), &mut Local(image)).unwrap();
        assert_eq!(done.bytes_resumed, 4 * MIB);
        assert!(done.bytes_read < 5 * MIB, "{} bytes were read", done.bytes_read);
        let disk = std::fs::read(disk).unwrap();
        assert!(disk[..4 << 20].iter().all(|&b| b == 0xee) && disk[4 << 20..] == bytes[4 << 20..]);
        let names: Vec<_> = std::fs::read_dir(folder.path().join("data")).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }

    #[test]
    fn leftovers_do_not_count_against_the_space() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let disk = folder.path().join("data/disk.img");
        // Other programs use this filesystem, too: one undisturbed try is enough.
        let differences = (0..20).map(|_| {
            std::fs::write(&disk, vec![1; 16 << 20]).unwrap();
            let with = inspect(&config).unwrap().capacity;
            std::fs::remove_file(&disk).unwrap();
            with.abs_diff(inspect(&config).unwrap().capacity)
        });
        let tried: Vec<_> = differences.take_while(|difference| *difference >= 12 * MIB).collect();
        assert!(tried.len() < 20, "{tried:?}");
    }

    #[test]
    fn scratch_is_there_or_not() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        assert!(!config.scratch_mounted());
        std::fs::create_dir(folder.path().join("scratch")).unwrap();
        assert!(config.scratch_mounted());
    }
}
