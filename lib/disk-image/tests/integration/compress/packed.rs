//! Content, the compressors of the command line, and sources in memory.

use std::io::{self, Read};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::Arc;

use disk_image::compress::{Limits, open};
use disk_image::{Access, Compression, Error, Facts, Source};

/// Small counts by default, the full ones with FERROVIRT_SOAK=1.
pub(crate) fn count(small: usize, full: usize) -> usize {
    if std::env::var_os("FERROVIRT_SOAK").is_some_and(|v| v == "1") { full } else { small }
}

/// A sequence of numbers that is the same in every run (splitmix64).
pub(crate) struct Seed(pub(crate) u64);

impl Seed {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Image-like content: text, noise, zeroes and repeats in runs.
pub(crate) fn content(len: usize, seed: u64) -> Vec<u8> {
    let mut seed = Seed(seed);
    let mut out = Vec::with_capacity(len + 70_000);
    while out.len() < len {
        let run = 512 + usize::try_from(seed.below(5_000)).unwrap();
        match seed.below(4) {
            0 => out.resize(out.len() + run, 0),
            1 => out.extend((0..run / 8).flat_map(|_| seed.next().to_le_bytes())),
            2 => {
                let from = usize::try_from(seed.below(out.len() as u64 + 1)).unwrap();
                let to = (from + run).min(out.len());
                out.extend_from_within(from..to);
            }
            _ => {
                while seed.below(400) != 0 {
                    out.extend(format!("file{:x} /usr/lib/{} ", seed.below(4096), seed.below(99)).bytes());
                }
            }
        }
    }
    out.truncate(len);
    out
}

/// Runs `command` in a shell with `input` as its standard input; its output.
pub(crate) fn pipe(command: &str, input: &[u8]) -> Vec<u8> {
    let mut file = tempfile::tempfile().unwrap();
    io::Write::write_all(&mut file, input).unwrap();
    io::Seek::rewind(&mut file).unwrap();
    let out = Command::new("bash").args(["-c", command]).stdin(file).stderr(Stdio::piped()).output().unwrap();
    assert!(
        out.status.success(),
        "`{command}` failed; run `make deps`: {}",
        String::from_utf8_lossy(&out.stderr)
    );
    out.stdout
}

/// Bytes in memory, with any access.
pub(crate) struct Memory {
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) facts: Facts,
}

impl Source for Memory {
    fn facts(&self) -> Facts {
        self.facts.clone()
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let end = usize::try_from(range.end.min(self.bytes.len() as u64)).unwrap();
        let at = usize::try_from(range.start).unwrap().min(end);
        Ok(Box::new(MemoryReader { bytes: self.bytes.clone(), at, end }))
    }
}

pub(crate) struct MemoryReader {
    pub(crate) bytes: Arc<[u8]>,
    pub(crate) at: usize,
    pub(crate) end: usize,
}

impl Read for MemoryReader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // Odd pieces, so that everything falls on a boundary sometimes.
        let n = buf.len().min(self.end - self.at).min(1 + self.at % 5003);
        buf[..n].copy_from_slice(&self.bytes[self.at..self.at + n]);
        self.at += n;
        Ok(n)
    }
}

pub(crate) fn ranged(bytes: &[u8]) -> Arc<dyn Source> {
    let facts = Facts { size: Some(bytes.len() as u64), access: Access::Ranges };
    Arc::new(Memory { bytes: bytes.into(), facts })
}

pub(crate) fn once(bytes: &[u8]) -> Arc<dyn Source> {
    Arc::new(Memory { bytes: bytes.into(), facts: Facts { size: None, access: Access::Once } })
}

pub(crate) fn both(bytes: &[u8]) -> [Arc<dyn Source>; 2] {
    [ranged(bytes), once(bytes)]
}

/// Everything `source` unpacks to.
pub(crate) fn unpack(
    compression: Compression,
    source: Arc<dyn Source>,
    limits: Limits,
) -> Result<Vec<u8>, Error> {
    let source = open(compression, source, limits)?;
    let mut out = Vec::new();
    let read = source.open(0..u64::MAX).and_then(|mut r| r.read_to_end(&mut out));
    read.map_err(|e| Error::from_source("reading", e))?;
    if let Some(size) = source.facts().size {
        assert_eq!(size, out.len() as u64, "the size promised");
    }
    Ok(out)
}

#[track_caller]
pub(crate) fn same(what: &str, compression: Compression, packed: &[u8], model: &[u8]) {
    for source in both(packed) {
        let out = unpack(compression, source, Limits::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(out == model, "{what}: {} bytes differ from the model's {}", out.len(), model.len());
    }
}

pub(crate) const GZ: [&str; 5] = ["gzip -1", "gzip -9", "gzip -n6", "pigz -p2 -b128", "pigz -p1 -9"];
pub(crate) const XZ: [&str; 12] = [
    "xz -0",
    "xz -6",
    "xz -9",
    "xz -T2 -1",
    "xz -0 -T2 --block-size=100000",
    "xz -0 --block-size=4096",
    "xz -0 --check=none",
    "xz -0 --check=crc32",
    "xz -0 --check=crc64",
    "xz -0 --check=sha256 --block-size=65536",
    "xz --x86 --lzma2=preset=1",
    "xz --delta=dist=4 --lzma2=preset=0 --block-size=70000",
];
pub(crate) const ZST: [&str; 6] = [
    "zstd -1 -c",
    "zstd -19 -c",
    "zstd -3 --long=27 -c",
    "zstd -3 --no-check -c",
    "zstd -1 -T2 -c",
    "zstd --fast=5 -c",
];

pub(crate) fn every() -> impl Iterator<Item = (Compression, &'static str)> {
    GZ.iter()
        .map(|c| (Compression::Gz, *c))
        .chain(XZ.iter().map(|c| (Compression::Xz, *c)))
        .chain(ZST.iter().map(|c| (Compression::Zst, *c)))
}
