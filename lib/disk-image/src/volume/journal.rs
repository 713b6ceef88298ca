//! The durable part of an unfinished import, kept across processes.
//!
//! ```text
//!  .disk.img.import-journal          one line per record: crc32 of the JSON in hex, a space, the JSON
//!  5f3a09c1 {"version":2,"source":"sha256…","node":{…},"size":…,"format":"qcow2"}     the head
//!  0b77d2e4 {"seen":[[0,4096,1234567]],"done":[[0,33554432],[67108864,100663296]]}    appended after each sync
//! ```
//!
//! A record is written after the data it names was synced, and synced itself. Reading ends at the first line that is
//! torn or fails its checksum; the rest is cut off. No import resumes from
//! a head that names another file, image or size, nor on a target that no longer holds the recorded content. A long journal
//! is rewritten as one record.
//!
//! Not here: whether to resume, restart or refuse (`plan`).

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::RangeSet;
use crate::transfer::Ledger;
use crate::write::sync_folder;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::fingerprint::{self, Probe};
use super::target::Node;

const VERSION: u32 = 2;
/// A longer journal is not ours.
const LONGEST: u64 = 64 << 20;
/// A journal of this length is compacted, and again at twice the resulting length.
const LONG: u64 = 1 << 20;

/// Identity of an import. Two imports with equal heads put the same bytes into the same file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    version: u32,
    /// Hash of the image's identity; `None` when it has none, and then the import cannot be resumed.
    source: Option<String>,
    /// The target.
    pub(crate) node: Node,
    /// Size of the virtual disk, if known.
    size: Option<u64>,
    /// Format and compression.
    format: String,
}

impl Head {
    /// The head of an import. `identity` is anything that changes when the image's bytes do; it is stored as a hash,
    /// since addresses carry secrets.
    pub(crate) fn new(identity: Option<&str>, node: Node, size: Option<u64>, format: String) -> Self {
        let source = identity.map(|identity| {
            Sha256::digest(identity.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
        });
        Self { version: VERSION, source, node, size, format }
    }

    /// The same import onto the file or device `node`.
    pub(crate) fn at(&self, node: Node) -> Self {
        Self { node, ..self.clone() }
    }

    /// Whether an import with this head may resume one with head `other`.
    pub(crate) fn continues(&self, other: &Self) -> bool {
        self.source.is_some() && self == other
    }
}

/// The record of finished ranges, and of some bytes in them.
#[derive(Serialize, Deserialize)]
struct Done {
    seen: Vec<Probe>,
    done: Vec<(u64, u64)>,
}

impl Done {
    fn new(seen: Vec<Probe>, ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        Self { seen, done: ranges.into_iter().map(|range| (range.start, range.end)).collect() }
    }
}

/// Bytes of a target's name that its journal's has; what is added leaves it below the 255 that filesystems take.
const NAME: usize = 200;

/// Path of the journal of `target`: next to it, hidden, or in `folder` under a name that only this target has.
pub(crate) fn path_for(target: &Path, folder: Option<&Path>) -> PathBuf {
    let whole = target.file_name().unwrap_or_default().as_bytes();
    let mut name = [b".", &whole[..whole.len().min(NAME)]].concat();
    let told_apart = match folder {
        None if whole.len() <= NAME => None,
        None => Some(crc32fast::hash(whole)),
        Some(_) => {
            let path = std::path::absolute(target).unwrap_or_else(|_| target.to_owned());
            Some(crc32fast::hash(path.as_os_str().as_bytes()))
        }
    };
    if let Some(hash) = told_apart {
        name.extend(format!(".{hash:08x}").bytes());
    }
    name.extend(b".import-journal");
    let name = OsStr::from_bytes(&name);
    match folder {
        None => target.with_file_name(name),
        Some(folder) => folder.join(name),
    }
}

/// A journal as it was found.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct OpenedJournal {
    /// Its identity.
    pub(crate) head: Head,
    done: RangeSet,
    seen: Vec<Probe>,
    /// Bytes of whole, sound records.
    sound: u64,
}

impl OpenedJournal {
    /// Something is finished. Before that the target may still hold what was there when the import began.
    pub(crate) fn has_begun(&self) -> bool {
        !self.done.is_empty()
    }

    /// Whether `target` still holds what was written, as far as a few looks show.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn is_on(&self, target: &File) -> io::Result<bool> {
        fingerprint::hold(&self.seen, target)
    }
}

/// The start of every journal, after the eight hex digits of its first checksum.
const OPENING: &[u8] = b" {\"version\":";

/// The obstacle at the path of the journal or of its temporary file: a file that no import of ours left. A torn beginning
/// counts as ours, and so does an empty file.
///
/// # Errors
/// When it cannot be looked at.
pub(crate) fn foreign(path: &Path) -> io::Result<Option<PathBuf>> {
    for path in [path.to_owned(), fresh(path)] {
        let meta = match std::fs::symlink_metadata(&path) {
            Ok(meta) => meta,
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        // Links are not followed, and opening a FIFO would wait.
        if !meta.is_file() {
            return Ok(Some(path));
        }
        let file = match File::open(&path) {
            Ok(file) => file,
            // Another import has just finished.
            Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
            Err(e) => return Err(e),
        };
        let mut front = Vec::new();
        file.take(8 + OPENING.len() as u64).read_to_end(&mut front)?;
        let (sum, rest) = front.split_at(front.len().min(8));
        if !sum.iter().all(u8::is_ascii_hexdigit) || !OPENING.starts_with(rest) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Reads the journal at `path`; `None` when there is none or it is no journal of ours.
///
/// # Errors
/// When it is there and cannot be read.
pub(crate) fn find(path: &Path) -> io::Result<Option<OpenedJournal>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let mut bytes = Vec::new();
    if file.take(LONGEST + 1).read_to_end(&mut bytes)? as u64 > LONGEST {
        return Ok(None);
    }
    Ok(parse(&bytes))
}

fn parse(bytes: &[u8]) -> Option<OpenedJournal> {
    let mut lines = bytes.split_inclusive(|&b| b == b'\n');
    let first = lines.next()?;
    let head: Head = serde_json::from_slice(record(first)?).ok()?;
    if head.version != VERSION {
        return None;
    }
    let mut found =
        OpenedJournal { head, done: RangeSet::new(), seen: Vec::new(), sound: first.len() as u64 };
    for line in lines {
        let Some(Done { seen, done }) = record(line).and_then(|json| serde_json::from_slice(json).ok())
        else {
            break;
        };
        if done.iter().any(|(start, end)| start >= end) {
            break;
        }
        for (start, end) in done {
            found.done.insert(start..end);
        }
        found.seen.extend(seen);
        found.sound += line.len() as u64;
    }
    fingerprint::thin(&mut found.seen);
    Some(found)
}

/// The JSON of a whole line with the right checksum.
fn record(line: &[u8]) -> Option<&[u8]> {
    let line = line.strip_suffix(b"\n")?;
    let (sum, json) = line.split_at_checked(8)?;
    let sum = u32::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    let json = json.strip_prefix(b" ")?;
    (crc32fast::hash(json) == sum).then_some(json)
}

fn line(record: &impl Serialize) -> io::Result<Vec<u8>> {
    let json = serde_json::to_vec(record)?;
    let mut line = format!("{:08x} ", crc32fast::hash(&json)).into_bytes();
    line.extend_from_slice(&json);
    line.push(b'\n');
    Ok(line)
}

/// An open journal that is appended to.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    path: PathBuf,
    head: Head,
    done: RangeSet,
    /// To be looked at after each sync.
    target: File,
    seen: Vec<Probe>,
    len: u64,
    /// How long it may get.
    bound: u64,
}

impl Journal {
    /// Resumes with the journal found at `path`, of `target`.
    ///
    /// # Errors
    /// When it cannot be opened or its torn end not be cut off.
    pub(crate) fn resume(path: &Path, found: OpenedJournal, target: &File) -> io::Result<Self> {
        let OpenedJournal { head, done, seen, sound } = found;
        let mut file = OpenOptions::new().write(true).open(path)?;
        file.set_len(sound)?;
        file.seek(SeekFrom::End(0))?;
        let target = looked_at(target)?;
        Ok(Self { file, path: path.to_owned(), head, done, target, seen, len: sound, bound: LONG })
    }

    /// Starts a new one in place of whatever is there; durable when this returns.
    ///
    /// # Errors
    /// When it cannot be written, renamed or synced.
    pub(crate) fn start(path: &Path, head: &Head, target: &File) -> io::Result<Self> {
        let first = line(head)?;
        Ok(Self {
            file: replace(path, &first)?,
            path: path.to_owned(),
            head: head.clone(),
            done: RangeSet::new(),
            target: looked_at(target)?,
            seen: Vec::new(),
            len: first.len() as u64,
            bound: LONG,
        })
    }

    /// Has the same meaning in two lines.
    fn shorten(&mut self) -> io::Result<()> {
        fingerprint::thin(&mut self.seen);
        let mut lines = line(&self.head)?;
        lines.extend(line(&Done::new(self.seen.clone(), self.done.iter()))?);
        self.file = replace(&self.path, &lines)?;
        self.len = lines.len() as u64;
        Ok(())
    }

    /// Removes the journal: the import is complete, or never was.
    ///
    /// # Errors
    /// When it cannot be removed or its folder not be synced.
    pub(crate) fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)?;
        sync_folder(&self.path)
    }
}

/// Puts a file of `bytes` in place of whatever is at `path`; durable when this returns.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let fresh = fresh(path);
    let mut file = File::create(&fresh)?;
    if let Err(error) = file.write_all(bytes).and_then(|()| file.sync_all()) {
        // Half of a journal is of no use.
        drop(std::fs::remove_file(&fresh));
        return Err(error);
    }
    std::fs::rename(&fresh, path)?;
    sync_folder(path)?;
    Ok(file)
}

/// A descriptor for probes. What stands around them is not read ahead: others write there, past the page cache.
fn looked_at(target: &File) -> io::Result<File> {
    // Advice that is refused costs nothing but time.
    let _ = rustix::fs::fadvise(target, 0, None, rustix::fs::Advice::Random);
    target.try_clone()
}

/// Removes the journal at `path`, if there is one, and what is left of one that could not be written, for good: no
/// crash brings it back.
///
/// # Errors
/// When it cannot be removed or its folder not be synced.
pub(crate) fn discard(path: &Path) -> io::Result<()> {
    for path in [path, &fresh(path)] {
        match std::fs::remove_file(path) {
            // A read-only filesystem is reported first.
            Err(e) if e.kind() != io::ErrorKind::NotFound && path.symlink_metadata().is_ok() => {
                return Err(e);
            }
            Ok(()) | Err(_) => {}
        }
    }
    sync_folder(path)
}

/// Where a journal is written before it gets its name.
fn fresh(path: &Path) -> PathBuf {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    PathBuf::from(fresh)
}

impl Ledger for Journal {
    fn done(&self) -> RangeSet {
        self.done.clone()
    }

    fn commit(&mut self, ranges: &RangeSet) -> io::Result<()> {
        let new: Vec<Range<u64>> = ranges.iter().flat_map(|range| self.done.gaps(range)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let seen = fingerprint::sample(&self.target, &new)?;
        let line = line(&Done::new(seen.clone(), new.iter().cloned()))?;
        self.file.write_all(&line)?;
        self.file.sync_data()?;
        self.len += line.len() as u64;
        self.seen.extend(seen);
        for range in new {
            self.done.insert(range);
        }
        if self.len > self.bound {
            if let Err(error) = self.shorten() {
                tracing::debug!(%error, "the journal stays long");
            }
            self.bound = LONG.max(self.len.saturating_mul(2));
        }
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "sets of one range are meant")]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    fn node(number: u64) -> Node {
        Node { number, born: Some(1) }
    }

    fn head() -> Head {
        Head::new(Some("https://host/image etag=1"), node(7), Some(1 << 30), "qcow2".into())
    }

    /// A target without a byte.
    fn target() -> File {
        tempfile::tempfile().unwrap()
    }

    fn set(ranges: &[Range<u64>]) -> RangeSet {
        let mut set = RangeSet::new();
        for range in ranges {
            set.insert(range.clone());
        }
        set
    }

    #[test]
    fn committed_extents_are_found_after_reopening() {
        let folder = tempfile::tempdir().unwrap();
        let path = path_for(&folder.path().join("disk.img"), None);
        assert_eq!(path.file_name().unwrap(), ".disk.img.import-journal");
        assert_eq!(find(&path).unwrap(), None);
        let mut journal = Journal::start(&path, &head(), &target()).unwrap();
        journal.commit(&set(&[0..10, 20..30])).unwrap();
        journal.commit(&set(&[0..10])).unwrap();
        drop(journal);
        let found = find(&path).unwrap().unwrap();
        assert!(head().continues(&found.head));
        let mut journal = Journal::resume(&path, found, &target()).unwrap();
        assert_eq!(journal.done(), set(&[0..10, 20..30]));
        journal.commit(&set(&[5..25])).unwrap();
        let found = find(&path).unwrap().unwrap();
        assert_eq!(found.done, set(&[0..30]));
        journal.remove().unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn every_torn_end_keeps_the_records_before_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let mut journal = Journal::start(&path, &head(), &target()).unwrap();
        let mut ends = vec![std::fs::metadata(&path).unwrap().len()];
        for i in 0..5u64 {
            journal.commit(&set(&[i * 100..i * 100 + 50])).unwrap();
            ends.push(std::fs::metadata(&path).unwrap().len());
        }
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            let records = ends.iter().filter(|&&end| end <= cut as u64).count();
            match parse(&whole[..cut]) {
                None => assert_eq!(records, 0, "cut at {cut}"),
                Some(found) => {
                    assert_eq!(found.done.len() + 1, records, "cut at {cut}");
                    assert_eq!(found.sound, ends[records - 1]);
                }
            }
        }
        // A torn journal is whole again after resuming.
        std::fs::write(&path, &whole[..whole.len() - 3]).unwrap();
        let mut journal = Journal::resume(&path, find(&path).unwrap().unwrap(), &target()).unwrap();
        journal.commit(&set(&[400..450])).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), whole);
    }

    #[test]
    fn a_flipped_bit_never_adds_a_range() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let mut journal = Journal::start(&path, &head(), &target()).unwrap();
        for i in 0..4u64 {
            journal.commit(&set(&[i * 100..i * 100 + 50])).unwrap();
        }
        let all = journal.done();
        let whole = std::fs::read(&path).unwrap();
        for at in 0..whole.len() {
            for bit in 0..8 {
                let mut bytes = whole.clone();
                bytes[at] ^= 1 << bit;
                if let Some(found) = parse(&bytes) {
                    assert!(found.head == head() && found.done.iter().all(|range| all.contains(&range)));
                    // The case of a hex digit is the one thing that may change without being noticed.
                    assert!(found.done != all || bytes.eq_ignore_ascii_case(&whole), "byte {at} bit {bit}");
                }
            }
        }
    }

    #[test]
    fn journals_of_other_sources_are_not_resumed() {
        let head = head();
        assert!(head.continues(&head.clone()));
        for other in [
            Head::new(Some("https://host/image etag=2"), node(7), Some(1 << 30), "qcow2".into()),
            Head::new(Some("https://host/image etag=1"), node(8), Some(1 << 30), "qcow2".into()),
            head.at(Node { number: 7, born: Some(2) }),
            head.at(Node { number: 7, born: None }),
            Head::new(Some("https://host/image etag=1"), node(7), Some(1 << 29), "qcow2".into()),
            Head::new(Some("https://host/image etag=1"), node(7), None, "qcow2".into()),
            Head::new(Some("https://host/image etag=1"), node(7), Some(1 << 30), "raw".into()),
            Head::new(None, node(7), Some(1 << 30), "qcow2".into()),
        ] {
            assert!(!head.continues(&other) && !other.continues(&head));
        }
        let unknown = Head::new(None, node(7), Some(1 << 30), "qcow2".into());
        assert!(!unknown.continues(&unknown.clone()));
        assert!(!serde_json::to_string(&head).unwrap().contains("host"));
    }

    #[test]
    fn a_target_with_foreign_writes_is_not_resumed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let file = target();
        file.write_all_at(&[1; 1 << 16], 0).unwrap();
        let mut journal = Journal::start(&path, &head(), &file).unwrap();
        assert!(!find(&path).unwrap().unwrap().has_begun());
        journal.commit(&set(&[0..1 << 13])).unwrap();
        journal.commit(&set(&[1 << 15..1 << 16])).unwrap();
        let found = find(&path).unwrap().unwrap();
        assert!(found.has_begun() && found.is_on(&file).unwrap());
        assert!(!found.is_on(&target()).unwrap(), "another file");
        file.write_all_at(&[0, 0], 510).unwrap();
        assert!(!found.is_on(&file).unwrap(), "a signature was wiped");
    }

    #[test]
    fn a_long_journal_is_compacted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        let mut journal = Journal::start(&path, &head(), &target()).unwrap();
        // Every other page of a large disk, in pieces, then the pages between them.
        let pages = |odd: u64, piece: u64| {
            let ranges: Vec<_> =
                (0..2000).map(|i| (piece * 2000 + i) * 8192 + odd * 4096).map(|at| at..at + 4096).collect();
            set(&ranges)
        };
        let (mut longest, mut written_anew) = (0, 0);
        let mut inode = 0;
        for (odd, piece) in [0, 1].into_iter().flat_map(|odd| (0..40).map(move |piece| (odd, piece))) {
            journal.commit(&pages(odd, piece)).unwrap();
            let meta = std::fs::metadata(&path).unwrap();
            longest = longest.max(meta.len());
            written_anew += u32::from(std::mem::replace(&mut inode, meta.ino()) != meta.ino());
            if piece % 8 == 7 {
                let found = find(&path).unwrap().unwrap();
                assert!(found.done == journal.done() && found.head == head(), "{odd} {piece}");
            }
        }
        assert_eq!(journal.done(), set(&[0..80_000 * 8192]));
        // Not at each commit: the first file, and then now and then.
        assert!(longest < 5 * LONG && (2..8).contains(&written_anew), "{longest} {written_anew}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn non_journals_are_not_read_as_journals() {
        for bytes in ["", "\n", "00000000 {}\n", "some text", "zzzzzzzz {}\n", "ééééé\n"] {
            assert_eq!(parse(bytes.as_bytes()), None, "{bytes:?}");
        }
        let reversed =
            [line(&head()).unwrap(), line(&Done { seen: Vec::new(), done: vec![(9, 3)] }).unwrap()].concat();
        assert!(parse(&reversed).unwrap().done.is_empty());
        let newer = line(&Head { version: VERSION + 1, ..head() }).unwrap();
        assert_eq!(parse(&newer), None);
    }

    #[test]
    fn files_not_left_by_an_import_are_foreign() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("j");
        assert_eq!(foreign(&path).unwrap(), None);
        drop(Journal::start(&path, &head(), &target()).unwrap());
        let whole = std::fs::read(&path).unwrap();
        for place in [&path, &fresh(&path)] {
            for cut in 0..=whole.len() {
                std::fs::write(place, &whole[..cut]).unwrap();
                assert_eq!(foreign(&path).unwrap(), None, "cut at {cut}");
            }
            for other in ["x", "notes of mine\n", "00000000", "00000000 {}", "0000000g"] {
                std::fs::write(place, other).unwrap();
                let ours = other == "00000000";
                assert_eq!(foreign(&path).unwrap().as_ref(), (!ours).then_some(place), "{other}");
            }
            std::fs::remove_file(place).unwrap();
            std::os::unix::fs::symlink(folder.path().join("nothing"), place).unwrap();
            assert_eq!(foreign(&path).unwrap().as_ref(), Some(place));
            std::fs::remove_file(place).unwrap();
        }
    }

    #[test]
    fn names_in_a_folder_do_not_collide() {
        let folder = Some(Path::new("/j"));
        assert_ne!(path_for(Path::new("/a/disk.img"), folder), path_for(Path::new("/b/disk.img"), folder));
        assert!(path_for(Path::new("/dev/vda"), folder).starts_with("/j"));
        for folder in [None, folder] {
            let long = |end: &str| path_for(Path::new(&("x".repeat(254) + end)), folder);
            assert_ne!(long("a"), long("b"));
            assert!(fresh(&long("a")).file_name().unwrap().len() < 255);
            let odd = |byte: u8| path_for(Path::new(OsStr::from_bytes(&[b'a', byte])), folder);
            assert_ne!(odd(0xfe), odd(0xff));
        }
    }
}
