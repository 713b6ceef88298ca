//! The checksum of the bytes on the wire, taken while they pass.
//!
//! A [`Checked`] source gives one forward reader at a time and hashes what each of them reads on a thread of its own.
//! [`Checked::verify`] reads what is left (bytes behind the image that no decoder wanted) and compares. A source that
//! was read more than once must have given the same bytes each time: the front that an unfinished reading saw is
//! compared with the complete one.
//!
//! Not here: the form in which programs report a difference.

use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::str::FromStr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::{Access, Facts, Source, Stop};
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

use crate::volume::error::{Error, Kind};

/// Bytes handed to the hashing thread at once.
const CHUNK: usize = 256 << 10;
/// Chunks waiting for the hashing thread.
const WAITING: usize = 4;

/// A hash function the contract knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Md5,
    Sha1,
    Sha256,
    Sha512,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Self::Md5 => "md5",
            Self::Sha1 => "sha1",
            Self::Sha256 => "sha256",
            Self::Sha512 => "sha512",
        }
    }

    fn digest_len(self) -> usize {
        match self {
            Self::Md5 => 16,
            Self::Sha1 => 20,
            Self::Sha256 => 32,
            Self::Sha512 => 64,
        }
    }
}

/// Expected checksum: "algo:hex".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    algorithm: Algorithm,
    digest: Vec<u8>,
}

impl FromStr for Checksum {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, hex) = text.trim().split_once(':').ok_or_else(|| {
            format!("\"{text}\" is not a checksum: write algorithm:hex, as in sha256:9f86d0…")
        })?;
        let algorithm = [Algorithm::Md5, Algorithm::Sha1, Algorithm::Sha256, Algorithm::Sha512]
            .into_iter()
            .find(|a| a.name().eq_ignore_ascii_case(name))
            .ok_or_else(|| format!("\"{name}\" is not a known checksum: use md5, sha1, sha256 or sha512"))?;
        let digest = unhex(hex).filter(|digest| digest.len() == algorithm.digest_len()).ok_or_else(|| {
            format!(
                "a {} checksum has {} hex digits, not \"{hex}\"",
                algorithm.name(),
                algorithm.digest_len() * 2
            )
        })?;
        Ok(Self { algorithm, digest })
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), hex(&self.digest))
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok());
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes().chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[derive(Clone)]
enum Hasher {
    Md5(Md5),
    Sha1(Sha1),
    Sha256(Sha256),
    Sha512(Sha512),
}

impl Hasher {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::Md5 => Self::Md5(Md5::new()),
            Algorithm::Sha1 => Self::Sha1(Sha1::new()),
            Algorithm::Sha256 => Self::Sha256(Sha256::new()),
            Algorithm::Sha512 => Self::Sha512(Sha512::new()),
        }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Md5(h) => h.update(bytes),
            Self::Sha1(h) => h.update(bytes),
            Self::Sha256(h) => h.update(bytes),
            Self::Sha512(h) => h.update(bytes),
        }
    }

    fn digest(self) -> Vec<u8> {
        match self {
            Self::Md5(h) => h.finalize().to_vec(),
            Self::Sha1(h) => h.finalize().to_vec(),
            Self::Sha256(h) => h.finalize().to_vec(),
            Self::Sha512(h) => h.finalize().to_vec(),
        }
    }
}

/// The front of the source as one reading saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Front {
    len: u64,
    digest: Vec<u8>,
}

/// Result of a hashing thread: the digest of all bytes, and those of the prefixes given to it.
struct Hashed {
    whole: Front,
    fronts: Vec<Front>,
}

/// Hashes chunks as they come, noting the digest at the length of each front.
fn hash(algorithm: Algorithm, mut lengths: Vec<u64>, chunks: &Receiver<Vec<u8>>) -> Hashed {
    lengths.sort_unstable();
    let mut lengths = lengths.into_iter().peekable();
    let (mut hasher, mut at, mut fronts) = (Hasher::new(algorithm), 0u64, Vec::new());
    for chunk in chunks {
        let mut rest = &chunk[..];
        while let Some(len) = lengths.next_if(|&len| len <= at + rest.len() as u64) {
            let (front, behind) = rest.split_at(usize::try_from(len - at).unwrap_or(0));
            hasher.update(front);
            fronts.push(Front { len, digest: hasher.clone().digest() });
            (rest, at) = (behind, len);
        }
        hasher.update(rest);
        at += rest.len() as u64;
    }
    Hashed { whole: Front { len: at, digest: hasher.digest() }, fronts }
}

/// One reading of the source from its start.
struct Reading {
    reader: Box<dyn Read + Send>,
    pending: Vec<u8>,
    chunks: SyncSender<Vec<u8>>,
    thread: JoinHandle<Hashed>,
    ended: bool,
}

impl Reading {
    fn start(reader: Box<dyn Read + Send>, algorithm: Algorithm, lengths: Vec<u64>) -> io::Result<Self> {
        let (chunks, receiver) = sync_channel(WAITING);
        let thread = std::thread::Builder::new()
            .name("checksum".into())
            .spawn(move || hash(algorithm, lengths, &receiver))?;
        Ok(Self { reader, pending: Vec::with_capacity(CHUNK), chunks, thread, ended: false })
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let got = self.reader.read(buf)?;
        self.ended |= got == 0 && !buf.is_empty();
        let mut rest = &buf[..got];
        while !rest.is_empty() {
            let (front, behind) = rest.split_at(rest.len().min(CHUNK - self.pending.len()));
            self.pending.extend_from_slice(front);
            rest = behind;
            if self.pending.len() == CHUNK {
                self.hand_over()?;
            }
        }
        Ok(got)
    }

    fn hand_over(&mut self) -> io::Result<()> {
        let chunk = std::mem::replace(&mut self.pending, Vec::with_capacity(CHUNK));
        self.chunks.send(chunk).map_err(|_| io::Error::other("the checksum's thread has ended"))
    }

    /// Reads to the end of the source.
    fn drain(&mut self, stop: &Stop) -> io::Result<()> {
        let mut buf = vec![0; CHUNK];
        while !self.ended {
            stop.check()?;
            match self.read(&mut buf) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    fn finish(mut self) -> io::Result<Hashed> {
        self.hand_over()?;
        drop(self.chunks);
        self.thread.join().map_err(|_| io::Error::other("the checksum's thread panicked"))
    }
}

#[derive(Default)]
struct State {
    /// A reading that was dropped before the end.
    parked: Option<Reading>,
    /// Fronts that unfinished readings saw.
    fronts: Vec<Front>,
    /// The one complete reading.
    complete: Option<Front>,
    /// A later reading saw other bytes.
    changed: bool,
}

impl State {
    /// Closes the parked reading: it was complete, or saw a front that complete ones must agree with.
    fn retire(&mut self) -> io::Result<()> {
        let Some(reading) = self.parked.take() else {
            return Ok(());
        };
        let ended = reading.ended;
        let Hashed { whole, fronts } = reading.finish()?;
        // Fronts longer than this reading stay to be compared.
        self.changed |= self.fronts.iter().any(|front| front.len <= whole.len && !fronts.contains(front));
        self.fronts.retain(|front| front.len > whole.len);
        if !ended {
            self.fronts.push(whole);
        } else {
            self.changed |= !self.fronts.is_empty();
            self.changed |= self.complete.as_ref().is_some_and(|complete| *complete != whole);
            self.complete = Some(whole);
        }
        Ok(())
    }
}

/// A source that hashes its bytes as they pass.
pub struct Checked {
    inner: Arc<dyn Source>,
    expected: Checksum,
    state: Arc<Mutex<State>>,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Checked {
    /// Wraps `inner`; its bytes must hash to `expected`.
    pub fn new(inner: Arc<dyn Source>, expected: Checksum) -> Self {
        Self { inner, expected, state: Arc::default() }
    }

    /// Reads what is left and compares.
    ///
    /// # Errors
    /// [`Kind::Checksum`] when the bytes differ, or differed at another reading; else the reader's error.
    pub fn verify(&self, stop: &Stop) -> Result<(), Error> {
        let failed = |e| Error::from(crate::Error::from_source("cannot read the rest for the checksum", e));
        let mut state = locked(&self.state);
        if state.complete.is_none() || !state.fronts.is_empty() || state.parked.is_some() {
            let open = |state: &mut State| -> io::Result<()> {
                if state.parked.is_none() && (state.complete.is_none() || !state.fronts.is_empty()) {
                    state.parked = Some(self.start(state)?);
                }
                if let Some(reading) = &mut state.parked {
                    reading.drain(stop)?;
                }
                state.retire()
            };
            open(&mut state).map_err(failed)?;
        }
        let Some(found) = &state.complete else {
            return Err(Error::new(
                Kind::Process,
                "the checksum cannot be verified: the source was not read to its end",
            ));
        };
        if state.changed {
            return Err(Error::new(
                Kind::Checksum,
                format!(
                    "checksum mismatch: the source gave other bytes when it was read again ({} expected); start over",
                    self.expected
                ),
            ));
        }
        if found.digest != self.expected.digest {
            return Err(Error::new(
                Kind::Checksum,
                format!(
                    "checksum mismatch: expected {}, got {}:{} over {} bytes",
                    self.expected,
                    self.expected.algorithm.name(),
                    hex(&found.digest),
                    found.len
                ),
            ));
        }
        Ok(())
    }

    fn start(&self, state: &State) -> io::Result<Reading> {
        let lengths = state.fronts.iter().map(|front| front.len).collect();
        Reading::start(self.inner.open(0..u64::MAX)?, self.expected.algorithm, lengths)
    }
}

impl Source for Checked {
    fn facts(&self) -> Facts {
        let Facts { size, access } = self.inner.facts();
        let access = match access {
            Access::Once => Access::Once,
            Access::Ranges | Access::Blocks(_) | Access::Again => Access::Again,
        };
        Facts { size, access }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let mut state = locked(&self.state);
        state.retire()?;
        let mut reading = self.start(&state)?;
        drop(state);
        let mut skipped = io::copy(&mut (Passing(&mut reading)).take(range.start), &mut io::sink())?;
        skipped = skipped.min(range.start);
        let left = range.end.saturating_sub(skipped.max(range.start));
        Ok(Box::new(CheckedReader { reading: Some(reading), left, state: self.state.clone() }))
    }
}

struct Passing<'a>(&'a mut Reading);

impl Read for Passing<'_> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

/// Gives its reading back when it is let go, so that what it did not read can be read for the checksum.
struct CheckedReader {
    reading: Option<Reading>,
    left: u64,
    state: Arc<Mutex<State>>,
}

impl Read for CheckedReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let want = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let Some(reading) = &mut self.reading else {
            return Ok(0);
        };
        let got = reading.read(&mut buf[..want])?;
        self.left -= got as u64;
        Ok(got)
    }
}

impl Drop for CheckedReader {
    fn drop(&mut self) {
        let mut state = locked(&self.state);
        // Readers are one at a time; should an older one still be parked, its front counts all the same.
        if state.retire().is_ok() {
            state.parked = self.reading.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Gives `bytes`, or other bytes from the n-th opening on.
    struct Fickle {
        bytes: Vec<u8>,
        later: Option<(usize, Vec<u8>)>,
        opened: AtomicUsize,
        access: Access,
    }

    impl Source for Fickle {
        fn facts(&self) -> Facts {
            Facts { size: None, access: self.access.clone() }
        }

        fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
            assert_eq!(range.start, 0);
            let n = self.opened.fetch_add(1, Ordering::SeqCst);
            let bytes = match &self.later {
                Some((from, other)) if n >= *from => other.clone(),
                _ => self.bytes.clone(),
            };
            Ok(Box::new(Cursor::new(bytes)))
        }
    }

    fn bytes() -> Vec<u8> {
        (0..1_000_003u32).map(|i| u8::try_from(i * 7 % 251).unwrap()).collect()
    }

    fn checked(later: Option<(usize, Vec<u8>)>) -> Checked {
        let expected = format!("sha256:{}", hex(&Sha256::digest(bytes()))).parse().unwrap();
        let source = Fickle { bytes: bytes(), later, opened: AtomicUsize::new(0), access: Access::Ranges };
        Checked::new(Arc::new(source), expected)
    }

    fn read(source: &Checked, len: u64) -> usize {
        let mut out = Vec::new();
        source.open(0..len).unwrap().read_to_end(&mut out).unwrap();
        assert_eq!(out, bytes()[..out.len()]);
        out.len()
    }

    #[test]
    fn texts() {
        for good in [
            "md5:d41d8cd98f00b204e9800998ecf8427e",
            "sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709",
            "SHA256:E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855",
        ] {
            let checksum: Checksum = good.parse().unwrap();
            assert_eq!(checksum.to_string(), good.to_lowercase());
        }
        for bad in [
            "",
            "md5",
            "md5:",
            "md5:xyz",
            "crc:00",
            "sha256:00",
            "md5:d41d8cd98f00b204e9800998ecf8427é",
            "md5:d41d8cd98f00b204e9800998ecf8427",
        ] {
            assert!(bad.parse::<Checksum>().is_err(), "{bad}");
        }
    }

    #[test]
    fn every_algorithm_agrees_with_known_digests() {
        for (text, input) in [
            ("md5:900150983cd24fb0d6963f7d28e17f72", "abc"),
            ("sha1:a9993e364706816aba3e25717850c26c9cd0d89d", "abc"),
            ("sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "abc"),
            (
                "sha512:ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
                "abc",
            ),
            ("md5:d41d8cd98f00b204e9800998ecf8427e", ""),
        ] {
            let source = Fickle {
                bytes: input.as_bytes().to_vec(),
                later: None,
                opened: AtomicUsize::new(0),
                access: Access::Once,
            };
            let checked = Checked::new(Arc::new(source), text.parse().unwrap());
            assert_eq!(checked.facts().access, Access::Once);
            checked.verify(&Stop::new()).unwrap();
        }
    }

    #[test]
    fn skipped_bytes_are_hashed_too() {
        for len in [0, 1, 4096, CHUNK as u64, 999_999, u64::MAX] {
            let source = checked(None);
            assert_eq!(source.facts().access, Access::Again);
            read(&source, len);
            source.verify(&Stop::new()).unwrap();
            source.verify(&Stop::new()).unwrap();
        }
    }

    #[test]
    fn several_readings_agree() {
        let source = checked(None);
        for len in [4096, 10, u64::MAX, 700_000, u64::MAX, 3] {
            read(&source, len);
        }
        source.verify(&Stop::new()).unwrap();
    }

    #[test]
    fn other_bytes_at_another_reading_are_seen() {
        // The first reading is decoded from, the last one has the right checksum, or the other way round.
        for len in [1u64, 4096, 900_000, u64::MAX] {
            for first in [true, false] {
                let mut other = bytes();
                other[0] ^= 1;
                let (right, later) = if first { (other.clone(), bytes()) } else { (bytes(), other) };
                let mut source = checked(None);
                source.inner = Arc::new(Fickle {
                    bytes: right,
                    later: Some((1, later)),
                    opened: AtomicUsize::new(0),
                    access: Access::Again,
                });
                for _ in 0..2 {
                    io::copy(&mut source.open(0..len).unwrap(), &mut io::sink()).unwrap();
                }
                let error = source.verify(&Stop::new()).unwrap_err();
                assert_eq!(error.kind(), Kind::Checksum, "{len} {first}");
                assert!(error.to_string().contains("checksum mismatch"));
            }
        }
    }

    #[test]
    fn a_wrong_or_shorter_source_is_a_mismatch() {
        let mut source = checked(None);
        source.inner = Arc::new(Fickle {
            bytes: bytes()[..999_999].to_vec(),
            later: None,
            opened: AtomicUsize::new(0),
            access: Access::Again,
        });
        let error = source.verify(&Stop::new()).unwrap_err();
        assert_eq!(error.kind(), Kind::Checksum);
        assert!(error.to_string().contains("999999 bytes"), "{error}");
    }
}
