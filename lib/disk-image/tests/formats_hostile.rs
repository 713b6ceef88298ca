//! VMDK, VHD, VHDX and VDI that ask for what is never done, or lie: every refusal by an image made for it, mutants by
//! the thousand, and whatever survives mutation read as qemu-img reads it.

#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]
#![expect(clippy::cast_possible_truncation, reason = "images in tests fit in memory")]

mod support;

use std::ops::Range;

use disk_image::format::vhd::fixed_vhd;
use disk_image::{Format, Kind};
use support::mutate::{Rng, mutate};
use support::sys::Counting;
use support::{Options, count, first_difference, read_image, read_image_with, survey_repaired, tools};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// An image of `size` bytes made by qemu and written to here and there.
fn made(format: &str, options: &str, size: &str, writes: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let path = path.to_str().unwrap();
    tools::run("qemu-img", &["create", "-q", "-f", format, "-o", options, path, size]);
    let mut args = vec!["-f", format];
    for write in writes {
        args.extend(["-c", write]);
    }
    args.push(path);
    tools::run("qemu-io", &args);
    std::fs::read(path).unwrap()
}

const WRITES: &[&str] = &["write -P 1 0 70000", "write -P 2 3M 4096"];

fn sparse_vmdk() -> Vec<u8> {
    made("vmdk", "subformat=monolithicSparse,zeroed_grain=on", "4M", WRITES)
}

fn packed_vmdk() -> Vec<u8> {
    let writes = ["write -c -P 1 0 65536", "write -c -P 2 3M 65536"];
    made("vmdk", "subformat=streamOptimized", "4M", &writes)
}

fn dynamic_vhd() -> Vec<u8> {
    made("vpc", "subformat=dynamic,force_size=on", "7M", WRITES)
}

fn dynamic_vhdx() -> Vec<u8> {
    made("vhdx", "subformat=dynamic,block_size=1M", "4M", WRITES)
}

fn dynamic_vdi() -> Vec<u8> {
    made("vdi", "static=off", "4M", WRITES)
}

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

fn le32(image: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(image[at..at + 4].try_into().unwrap())
}

fn le64(image: &[u8], at: usize) -> usize {
    u64::from_le_bytes(image[at..at + 8].try_into().unwrap()) as usize
}

/// Puts the checksum of a VHD footer or header right: one's complement of the sum.
fn sum_vhd(image: &mut [u8], range: Range<usize>, at: usize) {
    if let Some(bytes) = image.get_mut(range) {
        bytes[at..at + 4].fill(0);
        let sum = bytes.iter().fold(0_u32, |sum, &byte| sum.wrapping_add(u32::from(byte)));
        bytes[at..at + 4].copy_from_slice(&(!sum).to_be_bytes());
    }
}

/// Puts both checksums at the front of a dynamic VHD right.
fn repair_vhd(image: &mut [u8]) {
    sum_vhd(image, 0..512, 64);
    let header = image.get(16..24).map(|b| u64::from_be_bytes(b.try_into().unwrap()) as usize);
    if let Some(header) = header.filter(|at| (512..1 << 20).contains(at)) {
        sum_vhd(image, header..header + 1024, 36);
    }
}

/// Puts the CRC-32C at offset 4 of a range right; bit by bit, to be nobody's kin.
fn sum_vhdx(image: &mut [u8], range: Range<usize>) {
    let Some(bytes) = image.get_mut(range) else {
        return;
    };
    bytes[4..8].fill(0);
    let sum = bytes.iter().fold(u32::MAX, |sum, &byte| crc_step(sum ^ u32::from(byte)));
    bytes[4..8].copy_from_slice(&(!sum).to_le_bytes());
}

fn crc_step(sum: u32) -> u32 {
    (0..8).fold(sum, |sum, _| if sum & 1 == 1 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 })
}

const VHDX_HEADERS: [usize; 2] = [0x1_0000, 0x2_0000];
const VHDX_REGIONS: [usize; 2] = [0x3_0000, 0x4_0000];

fn repair_vhdx(image: &mut [u8]) {
    for at in VHDX_HEADERS {
        sum_vhdx(image, at..at + 4096);
    }
    for at in VHDX_REGIONS {
        sum_vhdx(image, at..at + 65536);
    }
}

/// Host offsets of the VHDX metadata region, its item of `id`'s entry and data, and the BAT.
struct VhdxPlaces {
    metadata: usize,
    bat: usize,
}

impl VhdxPlaces {
    fn of(image: &[u8]) -> Self {
        let region = |first: u8| {
            let entries = (0..2).map(|i| VHDX_REGIONS[0] + 16 + 32 * i);
            le64(image, entries.into_iter().find(|&at| image[at] == first).unwrap() + 16)
        };
        Self { metadata: region(0x06), bat: region(0x66) }
    }

    /// Offset of the metadata table's entry whose GUID starts with `first`.
    fn entry(&self, image: &[u8], first: u8) -> usize {
        (0..5).map(|i| self.metadata + 32 + 32 * i).find(|&at| image[at] == first).unwrap()
    }

    /// Offset of the item itself.
    fn item(&self, image: &[u8], first: u8) -> usize {
        self.metadata + le32(image, self.entry(image, first) + 16) as usize
    }
}

/// What reading `image` ends with, said briefly.
fn outcome(image: &[u8], format: Format) -> Result<usize, (Kind, String)> {
    read_image(image, format).map(|disk| disk.len()).map_err(|e| (e.kind(), e.to_string()))
}

fn refuses(image: &[u8], format: Format, kind: Kind, word: &str, what: &str) {
    match outcome(image, format) {
        Err((got, message)) if got == kind && message.contains(word) => {}
        other => panic!("{what}: {other:?}, not {kind:?} with {word:?}"),
    }
}

/// One damage done to a good image: name, offset, bytes, what it must end with and a word of the message.
type Case<'a> = (&'a str, usize, &'a [u8], Kind, &'a str);

fn run(format: Format, base: &[u8], repair: fn(&mut [u8]), cases: &[Case<'_>]) {
    assert!(outcome(base, format).is_ok());
    for (what, at, bytes, kind, word) in cases {
        let mut image = base.to_vec();
        put(&mut image, *at, bytes);
        repair(&mut image);
        refuses(&image, format, *kind, word, what);
    }
}

#[test]
fn vmdk_refusals() {
    use Kind::{Corrupt, Refused};
    let base = sparse_vmdk();
    let (gd, size) = (le64(&base, 56) * 512, base.len() as u64);
    let gt = le32(&base, gd) as usize * 512;
    let past = ((size / 512 + 1) as u32).to_le_bytes();
    #[rustfmt::skip] // A table.
    let cases: &[Case<'_>] = &[
        ("no magic", 0, b"KDMW", Corrupt, "magic"),
        ("COWD", 0, b"COWD", Refused, "COWD"),
        ("version 0", 4, &[0], Refused, "version 0"),
        ("version 4", 4, &[4], Refused, "version 4"),
        ("an unknown flag", 8, &[0x23], Refused, "flags 0x20"),
        ("compression without its flag", 77, &[1], Refused, "compression 1"),
        ("an unknown compression", 77, &[2], Refused, "compression 2"),
        ("compression without markers", 10, &[1], Refused, "compression 0"),
        ("line ends changed", 73, b"\n\n", Corrupt, "text mode"),
        ("no grain", 20, &[0], Refused, "grain of 0"),
        ("a grain of 2 KiB", 20, &[4], Refused, "grain of 4"),
        ("a grain of no power of two", 20, &[129], Refused, "grain of 129"),
        ("a grain of 2 GiB", 20, &[0, 0, 0x40], Refused, "grain of 4194304"),
        ("no entries", 44, &[0; 4], Corrupt, "0 entries"),
        ("too many entries", 44, &[1, 2], Corrupt, "513 entries"),
        ("an endless disk", 12, &[0xff; 8], Corrupt, "capacity"),
        ("a disk of 8 EiB", 12, &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f, 0], Corrupt, "too large"),
        ("more disk than directory", 12, &[0, 0, 0, 0, 0xf], Corrupt, "grain directory"),
        ("a directory past the end", 56, &[0xff, 0xff, 0xff], Corrupt, "past the image's end"),
        ("a directory in the header", 56, &[0; 8], Corrupt, "overlaps the VMDK header"),
        ("a directory in the descriptor", 56, &[2, 0, 0], Corrupt, "overlaps the VMDK descriptor"),
        ("a directory at the end that is missing", 56, &[0xff; 8], Corrupt, "footer is missing"),
        ("no descriptor", 36, &[0; 8], Refused, "descriptor is in another file"),
        ("a descriptor at 0", 28, &[0; 8], Refused, "descriptor is in another file"),
        ("an endless descriptor", 36, &[0, 0, 0, 1], Corrupt, "descriptor of"),
        ("a descriptor past the end", 28, &[0, 0, 0, 1], Corrupt, "past the image's end"),
        ("a table past the end", gd, &past, Corrupt, "past the image's end"),
        ("a table in the directory", gd, &((gd / 512) as u32).to_le_bytes(), Corrupt, "overlaps"),
        ("a grain past the end", gt, &past, Corrupt, "past the image's end"),
        ("a grain in the header", gt + 4, &[2, 0, 0, 0], Corrupt, "overlaps the VMDK descriptor"),
    ];
    run(Format::Vmdk, &base, |_| (), cases);

    let mut unclean = base.clone();
    unclean[72] = 1;
    assert!(outcome(&unclean, Format::Vmdk).is_ok(), "qemu reads it too");

    let mut without = base.clone();
    put(&mut without, 8, &[3]);
    put(&mut without, gt, &[1, 0, 0, 0]);
    refuses(&without, Format::Vmdk, Corrupt, "overlaps", "entry 1 where it does not mean zeroes");
    put(&mut without, 8, &[7]);
    assert!(outcome(&without, Format::Vmdk).is_ok(), "entry 1 where it means zeroes");

    let packed = packed_vmdk();
    run(
        Format::Vmdk,
        &packed,
        |_| (),
        &[("a packed grain of 4 MiB", 20, &[0, 0x20], Refused, "grain of 8192")],
    );
}

#[test]
fn vmdk_descriptors_that_lead_elsewhere() {
    let base = sparse_vmdk();
    let text =
        "version=1\nCID=1\nparentCID=ffffffff\ncreateType=\"monolithicSparse\"\nRW 8192 SPARSE \"a.vmdk\"\n";
    let with = |from: &str, to: &str| {
        let mut image = base.clone();
        image[512..512 + 20 * 512].fill(0);
        assert!(text.contains(from));
        put(&mut image, 512, text.replace(from, to).as_bytes());
        image
    };
    for (from, to) in [("CID=1", "CID=2"), ("createType", "CREATETYPE"), ("\n", "\r\n"), ("=", " = ")] {
        assert!(outcome(&with(from, to), Format::Vmdk).is_ok(), "{to}");
    }
    for (from, to, word) in [
        ("ffffffff", "12345678", "difference"),
        ("CID=1", "parentFileNameHint=\"/etc/passwd\"", "difference"),
        ("monolithicSparse", "monolithicFlat", "monolithicFlat"),
        ("monolithicSparse", "twoGbMaxExtentSparse", "twoGbMaxExtentSparse"),
        ("monolithicSparse", "\u{1b}[31m", "\\u{1b}"),
        ("createType=", "x=", "which type"),
        ("SPARSE", "FLAT", "another file"),
        ("RW 8192 SPARSE \"a.vmdk\"", "RW 1 SPARSE \"a\"\nRW 8191 SPARSE \"b\"", "2 extents"),
        ("RW 8192", "# 8192", "0 extents"),
        ("CID=1", "encryption.keySafe = \"vmware:key\"", "encrypted"),
    ] {
        refuses(&with(from, to), Format::Vmdk, Kind::Refused, word, to);
    }
    for text in ["# Disk DescriptorFile\nversion=1\n", "# disk descriptorfile"] {
        refuses(text.as_bytes(), Format::Vmdk, Kind::Refused, "-flat.vmdk", text);
    }
}

#[test]
fn vhd_refusals() {
    use Kind::{Corrupt, Refused};
    let base = dynamic_vhd();
    let past = ((base.len() / 512) as u32).to_be_bytes();
    let bat = 1536;
    #[rustfmt::skip] // A table.
    let cases: &[Case<'_>] = &[
        ("no cookie", 0, b"x", Corrupt, "cookie"),
        ("a difference", 60, &4_u32.to_be_bytes(), Refused, "difference"),
        ("fixed, at the front", 60, &2_u32.to_be_bytes(), Refused, "type 2"),
        ("an unknown type", 60, &9_u32.to_be_bytes(), Refused, "type 9"),
        ("3 TiB", 48, &(3_u64 << 40).to_be_bytes(), Refused, "2040 GiB"),
        ("a header past the end", 16, &(1_u64 << 40).to_be_bytes(), Corrupt, "past the image's end"),
        ("a header nowhere", 16, &[0xff; 8], Corrupt, "impossible place"),
        ("a header in the footer", 16, &[0; 8], Corrupt, "overlaps"),
        ("no header", 512, b"x", Corrupt, "cookie"),
        ("no block size", 512 + 32, &[0; 4], Corrupt, "block of 0"),
        ("a block of 256 bytes", 512 + 32, &256_u32.to_be_bytes(), Corrupt, "block of 256"),
        ("a block of 3 MiB", 512 + 32, &(3_u32 << 20).to_be_bytes(), Corrupt, "block of 3145728"),
        ("too few blocks", 512 + 28, &1_u32.to_be_bytes(), Corrupt, "cannot hold"),
        ("a table larger than the image", 512 + 28, &[0xff; 4], Corrupt, "block table"),
        ("a table past the end", 512 + 16, &(1_u64 << 40).to_be_bytes(), Corrupt, "past the image's end"),
        ("a table in the header", 512 + 16, &512_u64.to_be_bytes(), Corrupt, "overlaps the VHD header"),
        ("a block past the end", bat, &past, Corrupt, "past the image's end"),
        ("a block in the table", bat, &3_u32.to_be_bytes(), Corrupt, "overlaps the VHD block table"),
    ];
    run(Format::Vhd, &base, repair_vhd, cases);
    run(
        Format::Vhd,
        &base,
        |_| (),
        &[
            ("a wrong footer", 70, &[0xaa], Corrupt, "footer has a wrong checksum"),
            ("a wrong header", 512 + 24, &[0xaa], Corrupt, "header has a wrong checksum"),
        ],
    );
}

/// Which of its two sizes a VHD has depends on who made it; so it does for qemu-img.
#[test]
fn vhd_size_by_its_creator() {
    let creators: &[&[u8; 4]] = &[
        b"vpc ",
        b"qemu",
        b"qem2",
        b"win ",
        b"d2v ",
        b"tap\0",
        b"tap ",
        b"CTXS",
        b"wa\0\0",
        b"vbox",
        b"vs  ",
        b"\0\0\0\0",
    ];
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image.vhd");
    for (kind, geometry) in [("dynamic", "on"), ("dynamic", "off"), ("fixed", "on"), ("fixed", "off")] {
        let base = made("vpc", &format!("subformat={kind},force_size={geometry}"), "5000192", WRITES);
        for creator in creators {
            let mut image = base.clone();
            let footer = image.len() - 512;
            for at in [footer, 0].into_iter().take(if kind == "fixed" { 1 } else { 2 }) {
                put(&mut image, at + 28, *creator);
                put(&mut image, at + 48, &4_000_256_u64.to_be_bytes());
                sum_vhd(&mut image, at..at + 512, 64);
            }
            std::fs::write(&path, &image).unwrap();
            let judge = tools::qemu_raw("vpc", &path);
            let ours = match fixed_vhd(image.last_chunk().unwrap(), image.len() as u64) {
                Some(size) => image[..size as usize].to_vec(),
                None => read_image(&image, Format::Vhd).unwrap(),
            };
            let what = format!("{kind}, {geometry}, {}", creator.escape_ascii());
            assert_eq!(first_difference(&ours, &judge), None, "{what}");
        }
    }
}

#[test]
fn fixed_vhd_is_told_by_its_footer() {
    let image = made("vpc", "subformat=fixed,force_size=on", "1M", &["write -P 1 0 70000"]);
    let footer: [u8; 512] = *image.last_chunk().unwrap();
    let size = image.len() as u64;
    assert_eq!(fixed_vhd(&footer, size), Some(1 << 20));
    assert_eq!(fixed_vhd(&footer, size + 512), Some(1 << 20));
    for less in [size - 1, 512, 511, 0] {
        assert_eq!(fixed_vhd(&footer, less), None, "{less}");
    }
    for (at, byte) in [(0, b'x'), (70, 1), (63, 3)] {
        let mut footer = footer;
        footer[at] = byte;
        assert_eq!(fixed_vhd(&footer, size), None, "byte {at}");
    }
    let mut dynamic = footer;
    dynamic[63] = 3;
    sum_vhd(&mut dynamic, 0..512, 64);
    assert_eq!(fixed_vhd(&dynamic, size), None, "dynamic");
}

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
    // As many entries as there are sectors, each said to be the whole log: refused before all are summed.
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

#[test]
fn vdi_refusals() {
    use Kind::{Corrupt, Refused};
    let base = dynamic_vdi();
    let map = le32(&base, 340) as usize;
    let past = ((base.len() >> 20) as u32).to_le_bytes();
    #[rustfmt::skip] // A table.
    let cases: &[Case<'_>] = &[
        ("no signature", 64, &[0], Corrupt, "signature"),
        ("version 2.0", 68, &0x2_0000_u32.to_le_bytes(), Refused, "version 2.0"),
        ("an undo image", 76, &[3], Refused, "difference"),
        ("a difference", 76, &[4], Refused, "difference"),
        ("an unknown type", 76, &[9], Refused, "type 9"),
        ("a link", 424, &[1], Refused, "parent"),
        ("a parent", 440, &[1], Refused, "parent"),
        ("blocks of 2 MiB", 376, &(2_u32 << 20).to_le_bytes(), Refused, "2097152"),
        ("blocks with more before them", 380, &512_u32.to_le_bytes(), Refused, "+512"),
        ("sectors of 4 KiB", 360, &4096_u32.to_le_bytes(), Refused, "4096"),
        ("a map at no sector", 340, &[1], Corrupt, "not at a sector"),
        ("data at no sector", 344, &[1], Corrupt, "not at a sector"),
        ("a map in the header", 340, &[0; 4], Corrupt, "overlaps the VDI header"),
        ("a map past the end", 340, &0x7fff_fe00_u32.to_le_bytes(), Corrupt, "past the image's end"),
        ("fewer blocks than disk", 384, &3_u32.to_le_bytes(), Corrupt, "3 blocks"),
        ("more blocks than image", 384, &0x3fff_ffff_u32.to_le_bytes(), Corrupt, "VDI map"),
        ("more blocks than any", 384, &[0xff; 4], Corrupt, "4294967295 blocks"),
        ("an endless disk", 368, &[0xff; 8], Corrupt, "cannot hold"),
        ("a block past the end", map, &past, Corrupt, "past the image's end"),
        ("the farthest block", map, &0xffff_fffd_u32.to_le_bytes(), Corrupt, "past the image's end"),
        ("data in the header", 344, &[0; 4], Corrupt, "overlaps the VDI header"),
    ];
    run(Format::Vdi, &base, |_| (), cases);

    let mut zero = base.clone();
    put(&mut zero, map, &0xffff_fffe_u32.to_le_bytes());
    assert!(read_image(&zero, Format::Vdi).unwrap()[..1 << 20].iter().all(|&b| b == 0), "a discarded block");
    let mut odd = base.clone();
    put(&mut odd, 368, &((4_u64 << 20) - 700).to_le_bytes());
    assert_eq!(outcome(&odd, Format::Vdi), Ok((4 << 20) - 512), "an odd size ends at the next sector");
}

/// Every image cut anywhere in its front and tables, its size known and not: an error or, when only unused bytes are
/// missing, the same disk; never a panic, never other bytes.
#[test]
fn cut_images() {
    for (format, base) in [
        (Format::Vmdk, sparse_vmdk()),
        (Format::Vmdk, packed_vmdk()),
        (Format::Vhd, dynamic_vhd()),
        (Format::Vhdx, dynamic_vhdx()),
        (Format::Vdi, dynamic_vdi()),
    ] {
        let disk = read_image(&base, format).unwrap();
        let mut rng = Rng::new(9);
        let mut lengths: Vec<u64> = (0..70).collect();
        lengths.extend((0..150).map(|_| rng.below(base.len() as u64)));
        lengths.extend((0..60).map(|_| base.len() as u64 - 1 - rng.below(70_000)));
        for len in lengths {
            for size_known in [true, false] {
                let options = Options { size_known, ..Options::default() };
                if let Ok(read) = read_image_with(&base[..len as usize], format, &options) {
                    assert!(read == disk, "{} cut to {len} reads differently", format.name());
                }
            }
        }
    }
}

/// Good images of a format, with the places worth damaging.
fn bases(format: Format) -> Vec<(Vec<u8>, Vec<Range<usize>>)> {
    match format {
        Format::Vmdk => [sparse_vmdk(), packed_vmdk()]
            .into_iter()
            .map(|image| {
                let gd = le64(&image, 56) * 512;
                let gt = le32(&image, gd) as usize * 512;
                let grain = le32(&image, gt) as usize * 512;
                let places =
                    vec![0..80, 12..80, 512..900, gd..gd + 4, gt..gt + 200, gt..gt + 260, grain..grain + 80];
                (image, places)
            })
            .collect(),
        Format::Vhd => vec![(dynamic_vhd(), vec![0..88, 16..64, 512..560, 528..548, 1536..1568, 1536..1556])],
        Format::Vhdx => {
            let image = dynamic_vhdx();
            let VhdxPlaces { metadata, bat } = VhdxPlaces::of(&image);
            let items = metadata + 0x1_0000;
            let places = vec![
                0..16,
                VHDX_HEADERS[0]..VHDX_HEADERS[0] + 80,
                VHDX_HEADERS[1]..VHDX_HEADERS[1] + 80,
                VHDX_REGIONS[0]..VHDX_REGIONS[0] + 80,
                VHDX_REGIONS[1]..VHDX_REGIONS[1] + 80,
                metadata..metadata + 192,
                items..items + 40,
                bat..bat + 40,
                bat..bat + 32,
            ];
            vec![(image, places)]
        }
        Format::Vdi => vec![(dynamic_vdi(), vec![64..84, 340..392, 368..388, 424..456, 512..532, 512..528])],
        Format::Raw | Format::Qcow2 => unreachable!("not tested here"),
    }
}

/// Puts the checksums right in most mutants, so that the damage is seen.
fn repair(format: Format, image: &mut [u8], seed: u64) {
    if seed.is_multiple_of(8) {
        return;
    }
    match format {
        Format::Vhd => repair_vhd(image),
        Format::Vhdx => {
            for at in VHDX_HEADERS {
                sum_vhdx(image, at..at + 4096);
            }
            // The slow ones now and then only; damage elsewhere leaves them right.
            if seed % 8 == 1 {
                repair_vhdx(image);
            }
        }
        Format::Vmdk | Format::Vdi | Format::Raw | Format::Qcow2 => {}
    }
}

#[expect(clippy::print_stdout, reason = "the figures are part of the result")]
fn mutants(format: Format, peak_max: u64) {
    let bases = bases(format);
    let started = std::time::Instant::now();
    let survey = survey_repaired(format, &bases, count(5_000, 100_000), peak_max, |image, seed| {
        repair(format, image, seed)
    });
    println!("{}: {survey:?} in {:?}", format.name(), started.elapsed());

    // What survives is read as qemu reads it, where qemu reads it at all.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let (mut agreed, mut seed) = (0, 0);
    while agreed < count(15, 500) {
        seed += 1;
        let (base, places) = &bases[seed as usize % bases.len()];
        let mut image = base.clone();
        let what = mutate(&mut image, places, seed);
        repair(format, &mut image, seed);
        let small = support::open(&image, format, true).is_ok_and(|layout| layout.virtual_size() <= 64 << 20);
        let Some(ours) = small.then(|| read_image(&image, format).ok()).flatten() else {
            continue;
        };
        std::fs::write(&path, &image).unwrap();
        let qemu = if format == Format::Vhd { "vpc" } else { format.name() };
        if let Some(judge) = tools::qemu_try_raw(qemu, &path) {
            assert_eq!(first_difference(&ours, &judge), None, "{} mutant {seed}: {what}", format.name());
            agreed += 1;
        }
    }
}

#[test]
fn vmdk_mutants() {
    // A packed grain may be 2 MiB.
    mutants(Format::Vmdk, 4 << 20);
}

#[test]
fn vhd_mutants() {
    mutants(Format::Vhd, 1 << 20);
}

#[test]
fn vhdx_mutants() {
    mutants(Format::Vhdx, 4 << 20);
}

#[test]
fn vdi_mutants() {
    mutants(Format::Vdi, 1 << 20);
}

/// The largest disks each format is used for: opening them costs no memory, and what a guest wrote at the far end is
/// found there.
#[test]
fn huge_disks() {
    let vdi = if count(0, 1) == 1 { 64 << 40 } else { 8_u64 << 40 };
    for (format, options, size) in [
        (Format::Vmdk, "subformat=monolithicSparse", 2 << 40),
        (Format::Vmdk, "subformat=streamOptimized", 2 << 40),
        (Format::Vhd, "force_size=on", 2040_u64 << 30),
        (Format::Vhdx, "block_size=256M", 64 << 40),
        (Format::Vdi, "static=off", vdi),
    ] {
        let last = size - 65536;
        let (qemu, flag) = match format {
            Format::Vhd => ("vpc", ""),
            Format::Vmdk if options.contains("stream") => ("vmdk", "-c"),
            Format::Vmdk | Format::Vhdx | Format::Vdi | Format::Raw | Format::Qcow2 => (format.name(), ""),
        };
        let image = made(qemu, options, &size.to_string(), &[&format!("write {flag} -P 7 {last} 65536")]);
        support::sys::reset_peak();
        let layout = support::open(&image, format, true).unwrap();
        assert!(
            support::sys::peak() < 1 << 20,
            "{} {options}: {} bytes",
            format.name(),
            support::sys::peak()
        );
        assert_eq!(layout.virtual_size(), size, "{} {options}", format.name());
        let mut fetch = support::Fetch::new();
        let mut end = None;
        let options = Options { slice: 1 << 16, ..Options::default() };
        support::drive(&image, format, &options, &mut |layout, extent| {
            let bytes = fetch.get(&image, layout, extent)?;
            end = bytes.and_then(|bytes| bytes.last_chunk::<65536>().copied());
            Ok(())
        })
        .unwrap();
        assert_eq!(end, Some([7; 65536]), "{}", format.name());
    }
}
