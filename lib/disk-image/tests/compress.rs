//! gz, xz and zst sources against the command-line compressors: same bytes, or an error, never anything else.
#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "what cannot be read or made here is a failed test; the casts take seven bits"
)]

use std::io::{self, Read};
use std::ops::Range;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use disk_image::compress::{Limits, ahead, open};
use disk_image::{Access, Compression, Error, Facts, Kind, Source};

/// Small counts by default, the full ones with FERROVIRT_SOAK=1.
fn count(small: usize, full: usize) -> usize {
    if std::env::var_os("FERROVIRT_SOAK").is_some_and(|v| v == "1") { full } else { small }
}

/// A sequence of numbers that is the same in every run (splitmix64).
struct Seed(u64);

impl Seed {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Image-like content: text, noise, zeroes and repeats in runs.
fn content(len: usize, seed: u64) -> Vec<u8> {
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
fn pipe(command: &str, input: &[u8]) -> Vec<u8> {
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
struct Memory {
    bytes: Arc<[u8]>,
    facts: Facts,
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

struct MemoryReader {
    bytes: Arc<[u8]>,
    at: usize,
    end: usize,
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

fn ranged(bytes: &[u8]) -> Arc<dyn Source> {
    let facts = Facts { size: Some(bytes.len() as u64), access: Access::Ranges };
    Arc::new(Memory { bytes: bytes.into(), facts })
}

fn once(bytes: &[u8]) -> Arc<dyn Source> {
    Arc::new(Memory { bytes: bytes.into(), facts: Facts { size: None, access: Access::Once } })
}

fn both(bytes: &[u8]) -> [Arc<dyn Source>; 2] {
    [ranged(bytes), once(bytes)]
}

/// Everything `source` unpacks to.
fn unpack(compression: Compression, source: Arc<dyn Source>, limits: Limits) -> Result<Vec<u8>, Error> {
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
fn same(what: &str, compression: Compression, packed: &[u8], model: &[u8]) {
    for source in both(packed) {
        let out = unpack(compression, source, Limits::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(out == model, "{what}: {} bytes differ from the model's {}", out.len(), model.len());
    }
}

const GZ: [&str; 5] = ["gzip -1", "gzip -9", "gzip -n6", "pigz -p2 -b128", "pigz -p1 -9"];
const XZ: [&str; 12] = [
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
const ZST: [&str; 6] = [
    "zstd -1 -c",
    "zstd -19 -c",
    "zstd -3 --long=27 -c",
    "zstd -3 --no-check -c",
    "zstd -1 -T2 -c",
    "zstd --fast=5 -c",
];

fn every() -> impl Iterator<Item = (Compression, &'static str)> {
    GZ.iter()
        .map(|c| (Compression::Gz, *c))
        .chain(XZ.iter().map(|c| (Compression::Xz, *c)))
        .chain(ZST.iter().map(|c| (Compression::Zst, *c)))
}

#[test]
fn every_compressor_and_level_unpacks_to_the_same() {
    for len in [0, 1, 511, 4096, 1_000_003] {
        let model = content(len, len as u64);
        for (compression, command) in every() {
            same(&format!("{command} of {len}"), compression, &pipe(command, &model), &model);
        }
    }
}

#[test]
fn parts_one_after_another_are_one_stream() {
    let (a, b) = (content(150_000, 1), content(70_001, 2));
    let model = [&a[..], &b[..], &a[..]].concat();
    for (compression, command) in every() {
        let (a, empty, b) = (pipe(command, &a), pipe(command, &[]), pipe(command, &b));
        same(command, compression, &[&a[..], &empty, &b, &empty, &a].concat(), &model);
    }
    let long = content(3_000_000, 3);
    let packed = pipe("pzstd -q -p 2 -c -", &long);
    same("pzstd", Compression::Zst, &packed, &long);
    let skippable =
        [&[0x5d, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &packed, &[0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0]];
    same("skippable frames", Compression::Zst, &skippable.concat(), &long);
}

#[test]
fn xz_stream_padding_is_skipped_and_odd_padding_refused() {
    let model = content(200_000, 4);
    let packed = pipe("xz -0 --block-size=50000", &model);
    let twice = [&model[..], &model[..]].concat();
    for padding in [4, 8, 4096, 100_000, 3 << 20] {
        let between = [&packed[..], &vec![0; padding], &packed].concat();
        same("between", Compression::Xz, &between, &twice);
        let after = [&packed[..], &vec![0; padding]].concat();
        same("after", Compression::Xz, &after, &model);
    }
    for bad in [1, 2, 3, 5] {
        for source in both(&[&packed[..], &vec![0; bad]].concat()) {
            let error = unpack(Compression::Xz, source, Limits::default()).unwrap_err();
            assert_eq!(error.kind(), Kind::Compression, "{error}");
        }
        let before = [&vec![0; bad * 4][..], &packed].concat();
        for source in both(&before) {
            unpack(Compression::Xz, source, Limits::default()).unwrap_err();
        }
    }
}

#[test]
fn what_follows_a_gzip_stream_is_handled_as_gzip_does() {
    let model = content(100_000, 5);
    let packed = pipe("gzip -6", &model);
    let ignored: [&[u8]; 7] =
        [&[0], &[0; 511], &[0; 300_000], b"garbage", b"\n", &[0, 0, 0, 7], &[0, 0, 0x1f, 0x8b, 8, 0]];
    for tail in ignored {
        same("ignored", Compression::Gz, &[&packed[..], tail].concat(), &model);
    }
    let refused: [&[u8]; 8] = [
        &[0x1f],
        &[0x1f, 0x8b],
        &[0x1f, 0x8b, 8],
        &[0x1f, 0x8b, 8, 0, 0, 0],
        &[0x1f, 0x8b, 7, 0, 0, 0, 0, 0, 0, 3],
        &[0x1f, 0xcb, 8, 0, 0, 0, 0, 0, 0, 3],
        &[0x1e, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3],
        &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xff, 0xff],
    ];
    for tail in refused {
        let error =
            unpack(Compression::Gz, once(&[&packed[..], tail].concat()), Limits::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Compression, "{tail:x?}: {error}");
    }
}

#[test]
fn zstd_refuses_what_is_no_frame() {
    let packed = pipe("zstd -1 -c", b"hello");
    for tail in [&b"x"[..], b"garbage of any length that is no frame", &[0; 4], &[0x28, 0xb5, 0x2f]] {
        let error =
            unpack(Compression::Zst, once(&[&packed[..], tail].concat()), Limits::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Compression, "{error}");
    }
    let error =
        unpack(Compression::Zst, once(&[0x28, 0xb5, 0x2f, 0xfd, 0x23, 7, 0, 0, 0, 1]), Limits::default());
    assert!(error.unwrap_err().to_string().contains("dictionary"));
}

#[test]
fn a_stream_cut_anywhere_is_an_error() {
    let model = content(60_000, 6);
    for (compression, command) in every() {
        let packed = pipe(command, &model);
        let step = (packed.len() / count(150, 5000)).max(1);
        let edges = (0..40).chain(packed.len() - 40..packed.len());
        for cut in (0..packed.len()).step_by(step).chain(edges) {
            for source in both(&packed[..cut]) {
                match unpack(compression, source, Limits::default()) {
                    Ok(out) => panic!("{command} cut at {cut} of {} gave {} bytes", packed.len(), out.len()),
                    // An index that points before the file is read as far as it goes.
                    Err(e) => assert_eq!(e.kind(), Kind::Compression, "{command} cut at {cut}: {e}"),
                }
            }
        }
        // The source shrinks after it was measured.
        for cut in [10, packed.len() / 2, packed.len() - 1] {
            let facts = Facts { size: Some(packed.len() as u64), access: Access::Ranges };
            let source: Arc<dyn Source> = Arc::new(Memory { bytes: packed[..cut].into(), facts });
            unpack(compression, source, Limits::default()).unwrap_err();
        }
    }
}

/// Streams that check all they carry.
const CHECKED: [(Compression, &str); 9] = [
    (Compression::Gz, "gzip -6"),
    (Compression::Gz, "pigz -p2 -b128"),
    (Compression::Xz, "xz -0 --lzma2=dict=4KiB --block-size=7000"),
    (Compression::Xz, "xz -0 --check=sha256 --block-size=9000"),
    (Compression::Xz, "xz -0 --check=crc32"),
    (Compression::Xz, "xz --x86 --lzma2=dict=64KiB"),
    (Compression::Zst, "zstd -3 -c"),
    (Compression::Zst, "zstd -19 -c"),
    (Compression::Zst, "zstd --fast=3 -c"),
];

#[test]
fn mutants_give_an_error_or_the_same_bytes() {
    let model = content(24_000, 7);
    let (mut right, mut wrong) = (0u32, 0u32);
    let each = count(1700, 34_000);
    for (number, (compression, command)) in CHECKED.iter().enumerate() {
        let half = pipe(command, &model[..12_000]);
        let packed = [half, pipe(command, &model[12_000..])].concat();
        let mut seed = Seed(number as u64);
        for _ in 0..each {
            let mut mutant = packed.clone();
            let at = usize::try_from(seed.below(packed.len() as u64)).unwrap();
            match seed.below(5) {
                0..3 => mutant[at] ^= 1 << seed.below(8),
                3 => mutant[at] = seed.next().to_le_bytes()[0],
                _ => {
                    let end = (at + 1 + usize::try_from(seed.below(16)).unwrap()).min(mutant.len());
                    mutant.drain(at..end);
                }
            }
            // Only a gzip stream's later members can be mistaken for something to ignore.
            let member_lost = *compression == Compression::Gz;
            for source in both(&mutant) {
                match unpack(*compression, source, Limits { window: 1 << 20, windows: 2 << 20 }) {
                    Ok(out) if out == model => right += 1,
                    Ok(out) if member_lost && out == model[..12_000] => {
                        assert!(gzip_ignores(&mutant), "{command} at {at}: a member was dropped");
                    }
                    Ok(_) => panic!("{command}: wrong bytes from a mutant at {at}"),
                    Err(e) => {
                        // Refused: it asks for a larger window than allowed now.
                        let known = matches!(e.kind(), Kind::Compression | Kind::Refused);
                        assert!(known, "{command}: {e}");
                        wrong += 1;
                    }
                }
            }
        }
    }
    println!("mutants: {right} unharmed, {wrong} refused");
    assert!(right > 0 && wrong > right);
}

/// Whether `gzip -d` unpacks this with no more than a warning.
fn gzip_ignores(bytes: &[u8]) -> bool {
    let mut file = tempfile::tempfile().unwrap();
    io::Write::write_all(&mut file, bytes).unwrap();
    io::Seek::rewind(&mut file).unwrap();
    let status = Command::new("gzip")
        .arg("-dc")
        .stdin(file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    status.code() == Some(2)
}

#[test]
fn windows_above_the_limit_are_refused_by_size() {
    let model = content(300_000, 8);
    let zst = pipe("zstd -3 --ultra --long=28 -c --no-progress", &model);
    let xz = pipe("xz -9 --block-size=100000", &model);
    let cases = [
        (Compression::Zst, &zst, 128 << 20, "256 MiB", "128 MiB"),
        (Compression::Xz, &xz, 32 << 20, "64 MiB", "32 MiB"),
    ];
    for (compression, packed, window, asked, limit) in cases {
        for source in both(packed) {
            let error = unpack(compression, source, Limits { window, windows: 1 << 30 }).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.kind(), Kind::Refused);
            assert!(
                text.contains(asked) && text.contains(limit) && text.contains("--window-limit"),
                "{text}"
            );
        }
        for source in both(packed) {
            let limits = Limits { window: 256 << 20, windows: 256 << 20 };
            assert!(unpack(compression, source, limits).unwrap() == model);
        }
    }
    // Exactly at the limit.
    for (command, window) in
        [("xz -9", 64 << 20), ("xz --x86 --lzma2=preset=0", 256 << 10), ("xz --lzma2=dict=4KiB", 4096)]
    {
        for source in both(&pipe(command, &model)) {
            assert!(unpack(Compression::Xz, source, Limits { window, windows: window }).unwrap() == model);
        }
    }
    // A later stream, and a later frame.
    let late = [pipe("xz -0", &model), xz].concat();
    for source in both(&late) {
        let error =
            unpack(Compression::Xz, source, Limits { window: 32 << 20, windows: 1 << 30 }).unwrap_err();
        assert!(error.to_string().contains("--window-limit"), "{error}");
    }
    let late = [pipe("zstd -c", &model), zst].concat();
    let error = unpack(Compression::Zst, once(&late), Limits::default()).unwrap_err();
    assert!(error.to_string().contains("--window-limit"), "{error}");
    // A frame of one segment declares its content size as its window.
    let single = [0x28, 0xb5, 0x2f, 0xfd, 0xe0, 1, 0, 0, 0, 0, 1, 0, 0];
    let error = unpack(Compression::Zst, once(&single), Limits::default()).unwrap_err();
    assert!(error.to_string().contains("--window-limit"), "{error}");
}

#[test]
fn xz_decoders_are_as_many_as_their_dictionaries_fit() {
    let packed = pipe("xz -9 --block-size=100000", &content(500_000, 9));
    let readers = |windows: u64| {
        open(Compression::Xz, ranged(&packed), Limits { window: 128 << 20, windows }).unwrap().connections()
    };
    let cores = std::thread::available_parallelism().unwrap().get();
    assert_eq!(readers(1), 1);
    assert_eq!(readers(127 << 20), 1);
    assert_eq!(readers(128 << 20), 2.min(cores));
    assert_eq!(readers(1 << 40), cores.min(5));
}

#[test]
fn xz_blocks_open_anywhere() {
    let model = content(900_000, 10);
    let packed = [
        pipe("xz -0 --block-size=65536", &model[..400_000]),
        pipe("xz -0", &[]),
        vec![0; 64],
        pipe("xz -0 --check=crc32 --block-size=10000", &model[400_000..450_000]),
        pipe("xz -1 -T2 --block-size=100000 --check=sha256", &model[450_000..]),
    ]
    .concat();
    let source = open(Compression::Xz, ranged(&packed), Limits::default()).unwrap();
    let Facts { size: Some(900_000), access: Access::Blocks(blocks) } = source.facts() else {
        panic!("{:?}", source.facts());
    };
    assert_eq!(blocks.len(), 7 + 5 + 5);
    let mut end = 0;
    for block in blocks.iter() {
        assert_eq!(block.start, end);
        end = block.end;
        check_range(&*source, block.clone(), &model);
    }
    assert_eq!(end, 900_000);
    let mut seed = Seed(11);
    for _ in 0..count(200, 5000) {
        let start = seed.below(900_100);
        let end = start + seed.below(200_000);
        check_range(&*source, start..end, &model);
    }
    check_range(&*source, 0..u64::MAX, &model);
    check_range(&*source, 899_999..u64::MAX, &model);
    check_range(&*source, 900_000..u64::MAX, &model);
    // Sources that are only decoded from the start.
    for (compression, command) in
        [(Compression::Gz, "gzip"), (Compression::Zst, "zstd -c"), (Compression::Xz, "xz -0")]
    {
        let source = open(compression, ranged(&pipe(command, &model)), Limits::default()).unwrap();
        assert_eq!(source.facts().access, Access::Again);
        for _ in 0..5 {
            let start = seed.below(900_100);
            check_range(&*source, start..start + seed.below(200_000), &model);
        }
        let source = open(compression, once(&pipe(command, &model)), Limits::default()).unwrap();
        assert_eq!(source.facts(), Facts { size: None, access: Access::Once });
    }
}

fn check_range(source: &dyn Source, range: Range<u64>, model: &[u8]) {
    let len = model.len() as u64;
    let (from, to) = (range.start.min(len), range.end.min(len));
    let model = &model[usize::try_from(from).unwrap()..usize::try_from(to.max(from)).unwrap()];
    let mut out = Vec::new();
    source.open(range.clone()).unwrap().read_to_end(&mut out).unwrap();
    assert!(out == model, "{range:?} gives {} bytes", out.len());
}

/// A damaged block is an error before its last byte, even for a reader that stops there.
#[test]
fn the_last_byte_of_an_xz_block_comes_only_after_its_check() {
    let model = content(30_000, 12);
    for command in ["xz -0 --block-size=10000", "xz -0"] {
        let packed = pipe(command, &model);
        let blocks = if command.contains("block") { 3 } else { 1 };
        let source = open(Compression::Xz, ranged(&packed), Limits::default()).unwrap();
        assert_eq!(source.facts().size, Some(30_000));
        // The check value lies before the index; the index of so few blocks is short.
        let index =
            usize::try_from(u32::from_le_bytes(packed[packed.len() - 8..][..4].try_into().unwrap())).unwrap();
        let mut damaged = packed.clone();
        let check = packed.len() - 12 - (index + 1) * 4 - 1;
        damaged[check] ^= 1;
        let source = open(Compression::Xz, ranged(&damaged), Limits::default()).unwrap();
        let start = if blocks == 3 { 20_000 } else { 0 };
        let mut reader = source.open(start..30_000).unwrap();
        let mut out = vec![0; 30_000 - usize::try_from(start).unwrap()];
        assert!(reader.read_exact(&mut out).is_err());
        assert!(reader.read(&mut out).is_err(), "an error stays");
    }
}

/// Parts of an .xz file of one stream.
struct Xz {
    header: Vec<u8>,
    blocks: Vec<u8>,
    records: Vec<(u64, u64)>,
}

fn vli(mut n: u64, to: &mut Vec<u8>) {
    while n >= 0x80 {
        to.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    to.push(n as u8);
}

fn read_vli(bytes: &mut &[u8]) -> u64 {
    let (mut n, mut shift) = (0, 0);
    loop {
        let byte = bytes[0];
        *bytes = &bytes[1..];
        n |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return n;
        }
    }
}

impl Xz {
    fn of(packed: &[u8]) -> Self {
        let backward = u32::from_le_bytes(packed[packed.len() - 8..][..4].try_into().unwrap());
        let index = packed.len() - 12 - (usize::try_from(backward).unwrap() + 1) * 4;
        let mut rest = &packed[index + 1..];
        let records = (0..read_vli(&mut rest)).map(|_| (read_vli(&mut rest), read_vli(&mut rest))).collect();
        Self { header: packed[..12].to_vec(), blocks: packed[12..index].to_vec(), records }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut records = Vec::new();
        vli(self.records.len() as u64, &mut records);
        for (unpadded, unpacked) in &self.records {
            vli(*unpadded, &mut records);
            vli(*unpacked, &mut records);
        }
        self.with_records(&records)
    }

    fn with_records(&self, records: &[u8]) -> Vec<u8> {
        let mut index = vec![0];
        index.extend(records);
        index.resize(index.len().next_multiple_of(4), 0);
        index.extend(crc32fast::hash(&index).to_le_bytes());
        let mut footer = (u32::try_from(index.len() / 4).unwrap() - 1).to_le_bytes().to_vec();
        footer.extend(&self.header[6..8]);
        let crc = crc32fast::hash(&footer).to_le_bytes();
        [&self.header, &self.blocks, &index, &crc[..], &footer, b"YZ"].concat()
    }
}

#[test]
fn hostile_xz_indexes_are_refused() {
    let model = content(50_000, 131);
    let good = Xz::of(&pipe("xz -0 --block-size=10000", &model));
    same("rewritten", Compression::Xz, &good.bytes(), &model);
    type Change = fn(&mut Vec<(u64, u64)>);
    let changes: [(&str, Change); 16] = [
        ("one record fewer", |r| r.truncate(4)),
        ("first missing", |r| r.drain(..1).for_each(|_| ())),
        ("none", Vec::clear),
        ("one more", |r| r.push((40, 10))),
        ("one more, empty", |r| r.push((24, 0))),
        ("swapped", |r| r.reverse()),
        ("packed longer", |r| r[1].0 += 1),
        ("packed longer by a word", |r| r[1].0 += 4),
        ("packed shorter", |r| r[1].0 -= 4),
        ("moved by a word", |r| (r[0].0, r[1].0) = (r[0].0 + 4, r[1].0 - 4)),
        ("unpacked longer", |r| r[1].1 += 1),
        ("unpacked shorter", |r| r[1].1 -= 1),
        ("moved by a byte", |r| (r[0].1, r[1].1) = (r[0].1 + 1, r[1].1 - 1)),
        ("last empty", |r| r[4].1 = 0),
        ("unpacked overflows", |r| (r[0].1, r[1].1) = ((1 << 63) - 1, (1 << 63) - 1)),
        ("packed overflows", |r| (r[0].0, r[1].0, r[2].0) = ((1 << 63) - 4, (1 << 63) - 4, 8)),
    ];
    for (what, change) in changes {
        let mut bad =
            Xz { header: good.header.clone(), blocks: good.blocks.clone(), records: good.records.clone() };
        change(&mut bad.records);
        assert_ne!(bad.records, good.records, "{what}");
        for source in both(&bad.bytes()) {
            let error = unpack(Compression::Xz, source, Limits::default());
            let error = error.map(|out| out.len()).expect_err(what);
            assert_eq!(error.kind(), Kind::Compression, "{what}: {error}");
        }
    }
    let mut huge = Vec::new();
    vli(1 << 62, &mut huge);
    huge.extend([5, 1]);
    let raw: [(&str, Vec<u8>); 6] = [
        ("huge count", huge),
        ("count without end", vec![0xff; 30]),
        ("not minimal", vec![0x81, 0x00, 40, 10]),
        ("no records", vec![5]),
        ("size zero", vec![1, 0, 1]),
        ("padding", vec![0, 1, 1]),
    ];
    for (what, records) in raw {
        for source in both(&good.with_records(&records)) {
            let error =
                unpack(Compression::Xz, source, Limits::default()).map(|out| out.len()).expect_err(what);
            assert_eq!(error.kind(), Kind::Compression, "{what}: {error}");
        }
    }
    // The longest index there can be, which nobody should read.
    let mut claimed = good.bytes();
    let at = claimed.len() - 8;
    claimed[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    let crc = crc32fast::hash(&claimed[at..at + 6]).to_le_bytes();
    claimed[at - 4..at].copy_from_slice(&crc);
    for source in both(&claimed) {
        unpack(Compression::Xz, source, Limits::default()).unwrap_err();
    }
}

#[test]
fn random_xz_indexes_never_change_the_bytes() {
    let model = content(20_000, 14);
    let good = Xz::of(&pipe("xz -0 --lzma2=dict=4KiB --block-size=3000", &model));
    let mut seed = Seed(15);
    let mut refused = 0;
    for _ in 0..count(3000, 100_000) {
        let mut bad =
            Xz { header: good.header.clone(), blocks: good.blocks.clone(), records: good.records.clone() };
        for _ in 0..=seed.below(2) {
            let at = usize::try_from(seed.below(bad.records.len() as u64)).unwrap();
            let wide = seed.next() >> seed.below(64) & ((1 << 63) - 1);
            let (near, sign) = (seed.below(9), seed.below(2) == 0);
            let record = &mut bad.records[at];
            let field = if seed.below(2) == 0 { &mut record.0 } else { &mut record.1 };
            *field = match seed.below(3) {
                0 => wide,
                _ if sign => *field + near,
                _ => field.saturating_sub(near),
            };
        }
        for source in both(&bad.bytes()) {
            match unpack(Compression::Xz, source, Limits { window: 1 << 20, windows: 1 << 20 }) {
                Ok(out) => assert!(out == model),
                Err(e) => {
                    assert_eq!(e.kind(), Kind::Compression, "{e}");
                    refused += 1;
                }
            }
        }
    }
    println!("random indexes: {refused} refused");
    assert!(refused > 1000);
}

#[test]
fn more_xz_blocks_or_streams_than_are_kept_are_decoded_from_the_start() {
    let one = Xz::of(&pipe("xz -0 --lzma2=dict=4KiB --check=none", b"x"));
    let blocks = 300_000;
    let many = Xz {
        header: one.header.clone(),
        blocks: one.blocks.repeat(blocks),
        records: one.records.repeat(blocks),
    };
    let packed = many.bytes();
    let source = open(Compression::Xz, ranged(&packed), Limits::default()).unwrap();
    assert_eq!(source.facts(), Facts { size: None, access: Access::Again });
    same("many blocks", Compression::Xz, &packed, &vec![b'x'; blocks]);
    same("many streams", Compression::Xz, &pipe("xz -0", b"xyz").repeat(500), &b"xyz".repeat(500));
    let some = Xz { header: one.header, blocks: one.blocks.repeat(2000), records: one.records.repeat(2000) };
    let source = open(Compression::Xz, ranged(&some.bytes()), Limits::default()).unwrap();
    assert!(matches!(source.facts().access, Access::Blocks(blocks) if blocks.len() == 2000));
    same("fewer blocks", Compression::Xz, &some.bytes(), &[b'x'; 2000]);
}

/// Later blocks may have larger dictionaries than the first, within what all readers together may use.
#[test]
fn a_later_xz_block_with_a_larger_dictionary_is_bounded() {
    let model = content(40_000, 16);
    let small = Xz::of(&pipe("xz --lzma2=dict=64KiB", &model));
    let large = Xz::of(&pipe("xz --lzma2=dict=64MiB", &model));
    let mixed = Xz {
        header: small.header.clone(),
        blocks: [&small.blocks[..], &large.blocks].concat(),
        records: [&small.records[..], &large.records].concat(),
    };
    let twice = [&model[..], &model].concat();
    same("mixed", Compression::Xz, &mixed.bytes(), &twice);
    let limits = Limits { window: 128 << 20, windows: 64 << 20 };
    let source = open(Compression::Xz, ranged(&mixed.bytes()), limits).unwrap();
    if source.connections() > 1 {
        let error = unpack(Compression::Xz, ranged(&mixed.bytes()), limits).unwrap_err();
        assert!(error.to_string().contains("--window-limit"), "{error}");
    }
}

/// Fails with a connection reset at an offset.
struct Failing {
    bytes: Arc<[u8]>,
    at: usize,
}

impl Source for Failing {
    fn facts(&self) -> Facts {
        Facts { size: None, access: Access::Again }
    }

    fn open(&self, _: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let good = MemoryReader { bytes: self.bytes.clone(), at: 0, end: self.at };
        Ok(Box::new(good.chain(FailingReader)))
    }
}

struct FailingReader;

impl Read for FailingReader {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server hung up"))
    }
}

#[test]
fn an_error_of_the_source_stays_the_sources() {
    let model = content(50_000, 17);
    for (compression, command) in every() {
        let packed = pipe(command, &model);
        for at in [0, 1, 5, 11, 12, 19, 30, packed.len() / 2, packed.len() - 1, packed.len()] {
            let source = Arc::new(Failing { bytes: packed[..].into(), at });
            let error = unpack(compression, source, Limits::default()).unwrap_err();
            assert_eq!(error.kind(), Kind::Source, "{command} at {at}: {error}");
            let below = std::error::Error::source(&error).unwrap().to_string();
            assert_eq!(below, "the server hung up", "{command} at {at}");
        }
    }
}

/// An endless reader that tells when it is dropped.
struct Endless {
    pause: Duration,
    dropped: Arc<AtomicBool>,
}

impl Read for Endless {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        sleep(self.pause);
        buf.fill(0);
        Ok(buf.len())
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Release);
    }
}

#[test]
fn a_dropped_reader_takes_its_thread_with_it() {
    for (pause, reads) in [(0, 0), (0, 3), (2000, 0)] {
        let dropped = Arc::new(AtomicBool::new(false));
        let pause = Duration::from_millis(pause);
        let endless = Endless { pause, dropped: dropped.clone() };
        let mut reader = ahead::read(Box::new(endless)).unwrap();
        for _ in 0..reads {
            reader.read_exact(&mut [0; 100]).unwrap();
        }
        let begin = Instant::now();
        drop(reader);
        assert!(begin.elapsed() < Duration::from_secs(1), "dropping waits for nobody");
        while !dropped.load(Ordering::Acquire) {
            assert!(begin.elapsed() < pause + Duration::from_secs(2), "the thread goes on");
            sleep(Duration::from_millis(1));
        }
    }
}

/// Counts its reads.
struct Counting(Arc<AtomicUsize>);

impl Read for Counting {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.fetch_add(1, Ordering::AcqRel);
        buf.fill(0);
        Ok(buf.len())
    }
}

#[test]
fn three_buffers_are_read_ahead_and_no_more() {
    let reads = Arc::new(AtomicUsize::new(0));
    let mut reader = ahead::read(Box::new(Counting(reads.clone()))).unwrap();
    for taken in 0..5 {
        let begin = Instant::now();
        while reads.load(Ordering::Acquire) < taken + 3 {
            assert!(begin.elapsed() < Duration::from_secs(10), "nothing is read ahead");
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_millis(20));
        assert_eq!(reads.load(Ordering::Acquire), taken + 3, "more than three buffers");
        // The buffer in hand goes back when the next one is asked for.
        reader.read_exact(&mut vec![0; if taken == 0 { (256 << 10) + 1 } else { 256 << 10 }]).unwrap();
    }
}
