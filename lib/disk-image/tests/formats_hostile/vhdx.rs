//! VHDX that is refused: regions, metadata, headers and the log.

use disk_image::{Format, Kind};

use crate::refused::{Case, outcome, refuses, run};
use crate::support::images::{
    VHDX_HEADERS, VHDX_REGIONS, VhdxPlaces, dynamic_vhdx, le64, put, repair_vhdx, sum_vhdx,
};
use crate::support::read_image;

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

    // A log under an id: empty it is no harm, with one valid entry anywhere it is.
    let mut log = base.clone();
    for at in VHDX_HEADERS {
        put(&mut log, at + 48, &[7; 16]);
        sum_vhdx(&mut log, at..at + 4096);
    }
    reads(&log, "an empty log");
    let start = le64(&base, one + 72);
    for sector in [0, 17, 255] {
        let mut image = log.clone();
        let at = start + sector * 4096;
        put(&mut image, at, b"loge");
        put(&mut image, at + 8, &4096_u32.to_le_bytes());
        put(&mut image, at + 16, &1_u64.to_le_bytes());
        put(&mut image, at + 32, &[7; 16]);
        reads(&image, "an entry without a checksum");
        sum_vhdx(&mut image, at..at + 4096);
        refuses(&image, Format::Vhdx, Kind::Refused, "not closed cleanly", "an entry");
        put(&mut image, at + 32, &[8; 16]);
        sum_vhdx(&mut image, at..at + 4096);
        reads(&image, "another log's entry");
    }
    // An entry that goes on at the log's front.
    let mut entry = vec![0; 8192];
    put(&mut entry, 0, b"loge");
    put(&mut entry, 8, &8192_u32.to_le_bytes());
    put(&mut entry, 32, &[7; 16]);
    sum_vhdx(&mut entry, 0..8192);
    let mut image = log.clone();
    put(&mut image, start + 255 * 4096, &entry[..4096]);
    put(&mut image, start, &entry[4096..]);
    refuses(&image, Format::Vhdx, Kind::Refused, "not closed cleanly", "an entry around the end");
    // As many entries as there are sectors, each declared as the whole log: refused before all are summed.
    let mut image = log.clone();
    for at in (start..start + (1 << 20)).step_by(4096) {
        put(&mut image, at, b"loge");
        put(&mut image, at + 8, &(1_u32 << 20).to_le_bytes());
        put(&mut image, at + 32, &[7; 16]);
    }
    refuses(&image, Format::Vhdx, Kind::Refused, "not closed cleanly", "a log that takes for ever");
    // Lengths and places that no log has.
    for (at, bytes, kind, word) in [
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
