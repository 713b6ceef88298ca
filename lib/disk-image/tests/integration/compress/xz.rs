//! xz: blocks by their index, dictionaries, hostile indexes.

use std::io::Read;
use std::ops::Range;

use disk_image::compress::{Limits, open};
use disk_image::{Access, Compression, Facts, Kind, Source};

use crate::compress::packed::{Seed, both, content, count, once, pipe, ranged, same, unpack};

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
    // The longest possible index, which must not be read.
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
