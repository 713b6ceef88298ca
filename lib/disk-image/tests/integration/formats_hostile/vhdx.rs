//! VHDX that is refused: regions, metadata, headers and the log.

use disk_image::{Format, Kind};

use crate::formats_hostile::refused::{Case, outcome, refuses, run};
use crate::support::images::{
    Change, LogEntry, VHDX_HEADERS, VHDX_REGIONS, VhdxPlaces, dynamic_vhdx, le64, put, put_in_log,
    repair_vhdx, set_log_id, sum_vhdx,
};
use crate::support::read_image;

/// A log's identifier.
const ID: [u8; 16] = [7; 16];

#[test]
fn vhdx_refusals() {
    use Kind::{Corrupt, Refused};
    let base = dynamic_vhdx();
    let places = VhdxPlaces::of(&base);
    let (meta, bat) = (places.metadata, places.bat);
    let parameters = places.item(&base, 0x37);
    let disk = places.item(&base, 0x24);
    let sector = places.item(&base, 0x1d);
    let first_region = VHDX_REGIONS[0] + 16;
    let block = |mib: u64, state: u64| ((mib << 20) | state).to_le_bytes();
    let past = block(1 << 20, 6);
    let mut unknown = [0x55; 32];
    unknown[28] = 1;
    #[rustfmt::skip] // A table.
    let cases: &[Case<'_>] = &[
        ("no signature", 0, b"x", Corrupt, "signature"),
        ("no region table", VHDX_REGIONS[0] + 8, &[0; 4], Corrupt, "names no"),
        ("too many regions", VHDX_REGIONS[0] + 8, &2048_u32.to_le_bytes(), Corrupt, "2048 entries"),
        ("a region that is unknown and needed", first_region, &unknown, Refused, "region"),
        ("a region that is missing", first_region, &[0x55], Corrupt, "names no"),
        ("a region at no MiB", first_region + 16, &[1], Corrupt, "not at a MiB"),
        ("a region past the end", first_region + 16, &(1_u64 << 40).to_le_bytes(), Corrupt, "past the image's end"),
        ("a region in the header", first_region + 16, &0_u64.to_le_bytes(), Corrupt, "overlaps"),
        ("a region of nothing", first_region + 24, &0_u32.to_le_bytes(), Corrupt, "not at a MiB"),
        ("no metadata", meta, b"x", Corrupt, "metadata table"),
        ("too many items", meta + 10, &[0xff, 0xff], Corrupt, "metadata table"),
        ("no items", meta + 10, &[0, 0], Corrupt, "file parameters is missing"),
        ("an item that is unknown and needed", places.entry(&base, 0x37), &[0x55], Refused, "metadata"),
        ("a parent's place", places.entry(&base, 0x37), &PARENT, Refused, "difference"),
        ("an item in the table", places.entry(&base, 0x24) + 16, &[0; 4], Corrupt, "metadata at 0"),
        ("an item past its region", places.entry(&base, 0x24) + 16, &[0xff; 4], Corrupt, "metadata at"),
        ("a parent", parameters + 4, &[2], Refused, "difference"),
        ("an unknown parameter", parameters + 4, &[4], Refused, "parameters 0x4"),
        ("no block size", parameters, &[0; 4], Corrupt, "block of 0"),
        ("a block of 3 MiB", parameters, &(3_u32 << 20).to_le_bytes(), Corrupt, "block of"),
        ("a block of 512 MiB", parameters, &(512_u32 << 20).to_le_bytes(), Corrupt, "block of"),
        ("a sector of 520 bytes", sector, &520_u32.to_le_bytes(), Corrupt, "sector of 520"),
        ("half a sector", disk, &513_u64.to_le_bytes(), Corrupt, "disk of 513"),
        ("more than 64 TiB", disk, &((64_u64 << 40) + 512).to_le_bytes(), Corrupt, "disk of"),
        ("more disk than table", disk, &(1_u64 << 40).to_le_bytes(), Corrupt, "block table"),
        ("a partly present block", bat, &block(4, 7), Refused, "difference"),
        ("an unknown state", bat, &block(4, 4), Corrupt, "state 4"),
        ("a block past the end", bat, &past, Corrupt, "past the image's end"),
        ("a block in the header", bat, &block(0, 6), Corrupt, "overlaps"),
        ("a block in the table", bat, &block((bat >> 20) as u64, 6), Corrupt, "overlaps"),
    ];
    run(Format::Vhdx, &base, repair_vhdx, cases);
    let mut late = base.clone();
    for at in VHDX_HEADERS {
        put(&mut late, at + 64, &[1]);
    }
    repair_vhdx(&mut late);
    refuses(&late, Format::Vhdx, Refused, "log version 1", "a later log");

    for state in [0, 1, 2, 3, 5] {
        let mut image = base.clone();
        put(&mut image, bat, &block(4, state));
        let disk = read_image(&image, Format::Vhdx).unwrap();
        assert!(disk[..1 << 20].iter().all(|&b| b == 0), "state {state}");
    }
    let mut spare = base.clone();
    spare[first_region + 28] = 0;
    put(&mut spare, first_region + 32 * 2, &[0x55; 32]);
    spare[first_region + 32 * 2 + 28] = 0;
    spare[VHDX_REGIONS[0] + 8] = 3;
    repair_vhdx(&mut spare);
    assert!(outcome(&spare, Format::Vhdx).is_ok(), "a region that is unknown but not needed");
}

/// The parent locator's GUID.
const PARENT: [u8; 16] =
    [0x2d, 0x5f, 0xd3, 0xa8, 0x0b, 0xb3, 0x4d, 0x45, 0xab, 0xf7, 0xd3, 0xd8, 0x48, 0x34, 0xab, 0x0c];

#[test]
fn vhdx_headers_and_log() {
    let base = dynamic_vhdx();
    let good = read_image(&base, Format::Vhdx).unwrap();
    let reads = |image: &[u8], what: &str| {
        assert_eq!(read_image(image, Format::Vhdx).unwrap_or_else(|e| panic!("{what}: {e}")), good, "{what}");
    };
    for at in [VHDX_HEADERS[0], VHDX_HEADERS[1], VHDX_REGIONS[0], VHDX_REGIONS[1]] {
        let mut image = base.clone();
        image[at + 100] ^= 1;
        reads(&image, "one copy damaged");
    }
    let mut both = base.clone();
    let mut regions = base.clone();
    for i in 0..2 {
        both[VHDX_HEADERS[i] + 100] ^= 1;
        regions[VHDX_REGIONS[i] + 100] ^= 1;
    }
    refuses(&both, Format::Vhdx, Kind::Corrupt, "neither VHDX header", "both headers damaged");
    refuses(&regions, Format::Vhdx, Kind::Corrupt, "neither VHDX region", "both region tables damaged");
    let (one, two) = (VHDX_HEADERS[0], VHDX_HEADERS[1]);
    let mut same = base.clone();
    same.copy_within(one..one + 4096, two);
    reads(&same, "the same header twice");
    same[two + 16] ^= 1;
    sum_vhdx(&mut same, two..two + 4096);
    refuses(&same, Format::Vhdx, Kind::Corrupt, "both VHDX headers", "two current headers");

    // A log under an id without a valid entry is empty.
    let mut log = base.clone();
    set_log_id(&mut log, ID);
    reads(&log, "an empty log");
    // Lengths and places that no log has.
    for (at, bytes, kind, word) in [
        (68, (8_u32 << 20).to_le_bytes(), Kind::Refused, "more than the 4194304 that are replayed"),
        (68, (1_u32 << 30).to_le_bytes(), Kind::Corrupt, "past the image's end"),
        (68, 4096_u32.to_le_bytes(), Kind::Corrupt, "not at a MiB"),
        (72, 4096_u32.to_le_bytes(), Kind::Corrupt, "not at a MiB"),
        (72, 0_u32.to_le_bytes(), Kind::Corrupt, "overlaps"),
    ] {
        let mut image = log.clone();
        for header in VHDX_HEADERS {
            put(&mut image, header + at, &bytes);
            sum_vhdx(&mut image, header..header + 4096);
        }
        refuses(&image, Format::Vhdx, kind, word, &format!("log field {at}"));
    }
}

/// The base with an identifier and `entries` in its log, one behind the other from sector `at` on; none is repaired.
fn with_log(base: &[u8], at: usize, entries: &[Vec<u8>]) -> Vec<u8> {
    let mut image = base.to_vec();
    set_log_id(&mut image, ID);
    put_in_log(&mut image, at * 4096, &entries.concat());
    image
}

/// An entry that makes the first block of the disk all of one value, at its place in the file.
fn entry(base: &[u8], sequence: u64, tail: usize, value: u8) -> LogEntry {
    let block = le64(base, VhdxPlaces::of(base).bat) as u64 >> 20 << 20;
    let (id, size) = (ID, base.len() as u64);
    let changes = vec![Change::Data(block, vec![value; 4096])];
    LogEntry { id, sequence, tail: tail as u32 * 4096, flushed: size, last: size, changes }
}

#[test]
fn vhdx_log_entries_that_do_not_count() {
    let base = dynamic_vhdx();
    let good = read_image(&base, Format::Vhdx).unwrap();
    let value = |image: &[u8], what: &str| {
        let disk = read_image(image, Format::Vhdx).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(disk[4096..], good[4096..], "{what}");
        assert!(disk[..4096].iter().all(|&byte| byte == disk[0]), "{what}");
        disk[0]
    };
    assert_eq!(value(&base, "clean"), 1);
    // At the front, inside, and around the end.
    for at in [0, 17, 255] {
        let image = with_log(&base, at, &[entry(&base, 5, at, 0x33).bytes()]);
        assert_eq!(value(&image, &format!("one entry at {at}")), 0x33);
    }
    // Headers that no entry has: with the checksum right, the entry does not exist.
    let one = entry(&base, 5, 0, 0x33).bytes();
    for (what, at, bytes) in [
        ("no signature", 0, &b"LOGE"[..]),
        ("no length", 8, &[0; 4]),
        ("half a sector", 8, &6000_u32.to_le_bytes()),
        ("longer than the log", 8, &(2_u32 << 20).to_le_bytes()),
        ("no sequence number", 16, &[0; 8]),
        ("more descriptors than bytes", 24, &u32::MAX.to_le_bytes()),
        ("more descriptors than sectors", 24, &255_u32.to_le_bytes()),
        ("another log", 32, &[8; 16]),
    ] {
        let mut entry = one.clone();
        put(&mut entry, at, bytes);
        sum_vhdx(&mut entry, 0..8192);
        assert_eq!(value(&with_log(&base, 0, &[entry]), what), 1, "{what}");
    }
    // Torn: the log ends before it.
    let two = [entry(&base, 5, 0, 0x33), entry(&base, 6, 0, 0x44)].map(|entry| entry.bytes());
    assert_eq!(value(&with_log(&base, 0, &two), "two entries"), 0x44);
    for torn in [4, 64, 4096, 8191] {
        let mut two = two.clone();
        two[1][torn] ^= 1;
        assert_eq!(value(&with_log(&base, 0, &two), &format!("torn at {torn}")), 0x33);
    }
    // Of two sequences the newer one; entries before its tail have been written to their places.
    let separate = [entry(&base, 5, 0, 0x33), entry(&base, 6, 2, 0x44)].map(|entry| entry.bytes());
    assert_eq!(value(&with_log(&base, 0, &separate), "a tail of its own"), 0x44);
    let mut image = with_log(&base, 0, &[entry(&base, 9, 0, 0x33).bytes()]);
    put_in_log(&mut image, 40 * 4096, &entry(&base, 8, 40, 0x44).bytes());
    assert_eq!(value(&image, "an older sequence behind the newer"), 0x33);
    // The last number there is.
    let last =
        [entry(&base, u64::MAX - 1, 0, 0x33), entry(&base, u64::MAX, 0, 0x44)].map(|entry| entry.bytes());
    assert_eq!(value(&with_log(&base, 0, &last), "the last numbers"), 0x44);
}

#[test]
fn vhdx_log_damage_is_refused() {
    let base = dynamic_vhdx();
    let log = le64(&base, VHDX_HEADERS[0] + 72) as u64;
    let size = base.len() as u64;
    let one = entry(&base, 5, 0, 0x33);
    let refused =
        |image: &[u8], word: &str, what: &str| refuses(image, Format::Vhdx, Kind::Corrupt, word, what);
    // Damage with the checksum right.
    for (what, at, bytes, word) in [
        ("a tail at no sector", 12, &[1][..], "is missing"),
        ("a tail past the log", 12, &(1_u32 << 20).to_le_bytes(), "is missing"),
        ("a tail without an entry", 12, &(80_u32 << 12).to_le_bytes(), "is missing"),
        ("an image that was longer", 48, &(size + 1).to_le_bytes(), "truncated"),
        ("an image without end", 56, &u64::MAX.to_le_bytes(), "impossible"),
        ("an image of 2 GiB more", 56, &(size + (2 << 30)).to_le_bytes(), "lengthens"),
        ("an unknown descriptor", 64, b"DESC", "kind is unknown"),
        ("another descriptor", 88, &[6], "sequence number"),
        ("at no sector", 80, &[1], "impossible"),
        ("past every file", 80, &(u64::MAX - 4095).to_le_bytes(), "impossible"),
        ("in the headers", 80, &(64_u64 << 10).to_le_bytes(), "in the headers or the log"),
        ("in the log", 80, &(log + 4096).to_le_bytes(), "in the headers or the log"),
        ("far behind the image", 80, &(1_u64 << 40).to_le_bytes(), "lengthens"),
        ("data of another kind", 4096, b"DATA", "another entry"),
        ("data of a later number", 4100, &[1], "another entry"),
        ("data of another number", 8188, &[6], "another entry"),
    ] {
        let mut entry = one.bytes();
        put(&mut entry, at, bytes);
        sum_vhdx(&mut entry, 0..8192);
        refused(&with_log(&base, 0, &[entry]), word, what);
    }
    // Zeroes without end, over the headers and at odd lengths.
    for (host, len, word) in [
        (4 << 20, u64::MAX - 4095, "impossible"),
        (4 << 20, 1 << 62, "lengthens"),
        (4 << 20, 4097, "impossible"),
        (0, 1 << 20, "in the headers or the log"),
        (192 << 10, 8 << 20, "in the headers or the log"),
    ] {
        let changes = vec![Change::Zero(host, len)];
        let image = with_log(&base, 0, &[LogEntry { changes, ..one.clone() }.bytes()]);
        refused(&image, word, &format!("{len} zeroes at {host}"));
    }
    // More data than the entry has.
    let changes = vec![one.changes[0].clone(); 2];
    let mut bytes = LogEntry { changes, ..one.clone() }.bytes();
    bytes.truncate(8192);
    put(&mut bytes, 8, &8192_u32.to_le_bytes());
    sum_vhdx(&mut bytes, 0..8192);
    refused(&with_log(&base, 0, &[bytes]), "data is missing", "a missing sector");
    // One of three is damaged, or has another number.
    let three = [1, 2, 3].map(|n| entry(&base, n, 0, 0x30 + n as u8));
    assert!(outcome(&with_log(&base, 0, &three.clone().map(|entry| entry.bytes())), Format::Vhdx).is_ok());
    for n in [0, 1] {
        let mut damaged = three.clone().map(|entry| entry.bytes());
        damaged[n][5000] ^= 1;
        refused(&with_log(&base, 0, &damaged), "one is missing", &format!("entry {n} is damaged"));
        let mut numbers = three.clone();
        numbers[n].sequence = 7 + n as u64;
        numbers[2].sequence = 20;
        let image = with_log(&base, 0, &numbers.map(|entry| entry.bytes()));
        refused(&image, "one is missing", &format!("entry {n} has another number"));
    }
    // A tail that lies ahead, so that a walk from it never meets the entry.
    let ahead = [entry(&base, 6, 2, 0x33), entry(&base, 5, 0, 0x44)].map(|entry| entry.bytes());
    refused(&with_log(&base, 0, &ahead), "one is missing", "a tail ahead");
    // As many entries as there are sectors, each declared as the whole log: refused before all are summed.
    let mut image = with_log(&base, 0, &[]);
    for at in 0..256 {
        put_in_log(
            &mut image,
            at * 4096,
            &[&one.bytes()[..8], &(1_u32 << 20).to_le_bytes(), &one.bytes()[12..4096]].concat(),
        );
    }
    refused(&image, "overlap", "a log that takes for ever");
}
