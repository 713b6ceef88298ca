//! qcow2 images that are refused, damaged or hostile: clear errors, no panic, bounded memory, no hang.

use disk_image::format::{self, Prologue, Step};
use disk_image::{Format, Kind};

use crate::support::mutate::Rng;
use crate::support::qcow2::{self, PLAN, Plan, Written, disk, get64, put32, put64, write};
use crate::support::{self, count, first_difference, mutate, open, read_image, survey, sys, tools};

fn made(plan: Plan) -> Written {
    let mut rng = Rng::new(99);
    let disk = disk(&mut rng, 20 << plan.cluster_bits, plan.cluster_bits);
    let mut disk = disk;
    disk[..64].fill(1);
    write(&disk, &plan, &mut rng)
}

/// Where the entry of guest cluster 0 stands.
fn first_l2(image: &Written) -> usize {
    image.l2[0].start
}

/// Changes a good image and returns the error of reading it.
fn failure(plan: Plan, change: impl FnOnce(&mut Written)) -> (Kind, String) {
    let mut image = made(plan);
    assert!(read_image(&image.bytes, Format::Qcow2).is_ok(), "the unchanged image reads");
    change(&mut image);
    let error = read_image(&image.bytes, Format::Qcow2).unwrap_err();
    (error.kind(), error.to_string())
}

fn at32(at: usize, value: u32) -> impl FnOnce(&mut Written) {
    move |image| put32(&mut image.bytes, at, value)
}

fn at64(at: usize, value: u64) -> impl FnOnce(&mut Written) {
    move |image| put64(&mut image.bytes, at, value)
}

/// `qemu-img convert` reads one, too: only reference counts may be wrong.
#[test]
fn a_dirty_image_is_read_with_a_warning() {
    let mut image = made(PLAN);
    let clean = read_image(&image.bytes, Format::Qcow2).unwrap();
    assert_eq!(open(&image.bytes, Format::Qcow2, true).unwrap().note(), None);
    at64(72, 1)(&mut image);
    let layout = open(&image.bytes, Format::Qcow2, true).unwrap();
    assert!(layout.note().unwrap().contains("dirty bit"), "{layout:?}");
    assert!(first_difference(&clean, &read_image(&image.bytes, Format::Qcow2).unwrap()).is_none());
}

type Change = Box<dyn FnOnce(&mut Written)>;

#[test]
fn refused_headers_give_a_reason_and_an_action() {
    let table: Vec<(&str, Change, Kind, &str)> = vec![
        ("version 1", Box::new(at32(4, 1)), Kind::Refused, "qemu-img convert -f qcow"),
        ("version 4", Box::new(at32(4, 4)), Kind::Refused, "version 4 is not known"),
        ("magic", Box::new(at32(0, 0x5146_49fc)), Kind::Corrupt, "not a qcow2 image"),
        ("cluster bits 8", Box::new(at32(20, 8)), Kind::Corrupt, "2^8"),
        ("cluster bits 22", Box::new(at32(20, 22)), Kind::Corrupt, "2^22"),
        ("AES", Box::new(at32(32, 1)), Kind::Refused, "encrypted (AES)"),
        ("LUKS", Box::new(at32(32, 2)), Kind::Refused, "encrypted (LUKS)"),
        ("other encryption", Box::new(at32(32, 77)), Kind::Refused, "encrypted (method 77)"),
        ("corrupt", Box::new(at64(72, 2)), Kind::Refused, "qemu-img check -r all"),
        ("data file", Box::new(at64(72, 4)), Kind::Refused, "external file"),
        ("known by name", Box::new(at64(72, 1 << 33)), Kind::Refused, "\"teleportation\" (bit 33)"),
        ("not known by name", Box::new(at64(72, 1 << 63 | 1 << 5)), Kind::Refused, "bit 5, bit 63"),
        ("zstd bit alone", Box::new(at64(72, 8)), Kind::Corrupt, "compression type bit is set"),
        ("refcount width", Box::new(at32(96, 7)), Kind::Corrupt, "2^7 bits"),
        ("header too short", Box::new(at32(100, 103)), Kind::Corrupt, "103 bytes"),
        ("header too long", Box::new(at32(100, 65_537)), Kind::Corrupt, "65537 bytes"),
        ("L1 above 32 MiB", Box::new(at32(36, (4 << 20) + 1)), Kind::Refused, "33554440 bytes"),
        ("L1 too small", Box::new(at32(36, 0)), Kind::Corrupt, "needs 1"),
        ("virtual size 2^62", Box::new(at64(24, 1 << 62)), Kind::Corrupt, "its virtual size of"),
        ("virtual size 2^64", Box::new(at64(24, u64::MAX)), Kind::Corrupt, "its virtual size of"),
        (
            "L1 unaligned",
            Box::new(|i| {
                let at = get64(&i.bytes, 40);
                put64(&mut i.bytes, 40, at + 8)
            }),
            Kind::Corrupt,
            "does not start at a cluster",
        ),
        ("L1 in header", Box::new(at64(40, 0)), Kind::Corrupt, "overlaps the header"),
        ("L1 past the end", Box::new(at64(40, 1 << 40)), Kind::Corrupt, "past the image's end"),
        (
            "L1 past everything",
            Box::new(at64(40, 0xffff_ffff_ffff_0000)),
            Kind::Corrupt,
            "past the image's end",
        ),
        (
            "L1 on the refcount table",
            Box::new(|i| {
                let at = get64(&i.bytes, 48);
                put64(&mut i.bytes, 40, at)
            }),
            Kind::Corrupt,
            "overlaps the refcount table",
        ),
        (
            "refcount table over everything",
            Box::new(at32(56, u32::MAX)),
            Kind::Corrupt,
            "overlaps the refcount table",
        ),
        (
            "refcount table unaligned",
            Box::new(at64(48, 12_345)),
            Kind::Corrupt,
            "refcount table at offset 12345",
        ),
        (
            "refcount table past the end",
            Box::new(at64(48, 1 << 40)),
            Kind::Corrupt,
            "refcount table at offset 1099511627776 is past",
        ),
        (
            "snapshot table past the end",
            Box::new(|i| {
                put64(&mut i.bytes, 64, 1 << 40);
                put32(&mut i.bytes, 60, 1);
            }),
            Kind::Corrupt,
            "snapshot table at offset 1099511627776 is past",
        ),
        (
            "snapshot table on L1",
            Box::new(|i| {
                let at = get64(&i.bytes, 40);
                put64(&mut i.bytes, 64, at);
                put32(&mut i.bytes, 60, 1);
            }),
            Kind::Corrupt,
            "overlaps the snapshot table",
        ),
        (
            "extension too long",
            Box::new(|i| {
                let at = if i.bytes[103] == 112 { 112 } else { 104 };
                put32(&mut i.bytes, at + 4, 65_536);
            }),
            Kind::Corrupt,
            "leaves the header",
        ),
        (
            "cut within the header",
            Box::new(|i| i.bytes.truncate(71)),
            Kind::Corrupt,
            "ends within its header",
        ),
        ("cut to nothing", Box::new(|i| i.bytes.clear()), Kind::Corrupt, "after 0 bytes"),
    ];
    for (what, change, kind, text) in table {
        // Refcounts before the L1 table, so that a longer refcount table runs into it.
        let (got, message) = failure(PLAN, change);
        assert_eq!(got, kind, "{what}: {message}");
        assert!(message.contains(text), "{what}: {message}");
    }
}

#[test]
fn the_backing_file_is_named_and_never_opened() {
    let (kind, message) = failure(PLAN, |image| {
        let name = b"/etc/shadow";
        put64(&mut image.bytes, 8, 1024);
        put32(&mut image.bytes, 16, u32::try_from(name.len()).unwrap());
        image.bytes[1024..1024 + name.len()].copy_from_slice(name);
    });
    assert_eq!(kind, Kind::Refused);
    assert!(message.contains("backing file \"/etc/shadow\""), "{message}");
    for (at, len) in [(65_536, 1), (1024, 1024), (u64::MAX, 5), (65_530, 7), (1024, u32::MAX)] {
        let (kind, message) = failure(PLAN, |image| {
            put64(&mut image.bytes, 8, at);
            put32(&mut image.bytes, 16, len);
        });
        assert_eq!(kind, Kind::Corrupt, "{message}");
        assert!(message.contains("outside its cluster"), "{message}");
    }
}

#[test]
fn extensions_deep_in_the_header_cluster_are_found() {
    // An extension that pushes the names of features beyond the first bytes asked for.
    let deep = |image: &mut Written| {
        let at = if image.bytes[103] == 112 { 112 } else { 104 };
        image.bytes[at..at + 8192].fill(0);
        put32(&mut image.bytes, at, 0x1234_5678);
        put32(&mut image.bytes, at + 4, 7001);
        let at = at + 8 + 7008;
        put32(&mut image.bytes, at, 0x6803_f857);
        put32(&mut image.bytes, at + 4, 48);
        image.bytes[at + 8..at + 15].copy_from_slice(b"\0\x29depth");
    };
    let mut image = made(PLAN);
    deep(&mut image);
    assert!(read_image(&image.bytes, Format::Qcow2).is_ok());
    let (kind, message) = failure(PLAN, |image| {
        deep(image);
        put64(&mut image.bytes, 72, 1 << 41);
    });
    assert_eq!((kind, message.contains("\"depth\" (bit 41)")), (Kind::Refused, true), "{message}");
    let (kind, message) = failure(PLAN, |image| {
        put64(&mut image.bytes, 8, 60_000);
        put32(&mut image.bytes, 16, 4);
        image.bytes[60_000..60_004].copy_from_slice(b"base");
    });
    assert_eq!((kind, message.contains("\"base\"")), (Kind::Refused, true), "{message}");
}

#[test]
fn the_front_may_come_in_any_pieces() {
    let image = made(PLAN).bytes;
    for size in [None, Some(image.len() as u64)] {
        for piece in [64usize, 1000, 4096, 10_000] {
            let mut prologue = Prologue::new(size);
            // The bytes read to detect the format, and a piece that leaves a gap.
            prologue.supply(0, image[..piece].to_vec());
            prologue.supply(20_000, image[20_000..20_100].to_vec());
            let mut asked = 0;
            while let Step::Need(range) = format::open(Format::Qcow2, &prologue).unwrap() {
                let from = usize::try_from(range.start).unwrap();
                let to = usize::try_from(range.end).unwrap().min(from + piece);
                prologue.supply(range.start, image[from..to].to_vec());
                asked += 1;
                assert!(asked < 100, "still asking");
            }
        }
        for len in 0..104 {
            let mut prologue = Prologue::new(size.map(|_| len));
            let mut asked = 0;
            let error = loop {
                match format::open(Format::Qcow2, &prologue) {
                    Ok(Step::Need(range)) => {
                        let part = support::part(&image[..usize::try_from(len).unwrap()], &range);
                        prologue.supply(range.start, part.to_vec());
                        asked += 1;
                        assert!(asked < 5, "still asking");
                    }
                    Ok(Step::Ready(layout)) => panic!("{layout:?} out of {len} bytes"),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), Kind::Corrupt, "{error}");
        }
    }
}

#[test]
fn compression_types_and_extended_entries_are_checked() {
    let zstd = Plan { zstd: true, ..PLAN };
    let (kind, message) = failure(zstd, |image| image.bytes[104] = 2);
    assert_eq!((kind, message.contains("compression type 2")), (Kind::Refused, true), "{message}");
    let (kind, message) = failure(zstd, |image| put64(&mut image.bytes, 72, 0));
    assert_eq!((kind, message.contains("bit is not set")), (Kind::Corrupt, true), "{message}");
    let (kind, message) = failure(zstd, |image| put32(&mut image.bytes, 100, 104));
    assert_eq!((kind, message.contains("zlib or missing")), (Kind::Corrupt, true), "{message}");
    let small = Plan { cluster_bits: 13, ..PLAN };
    let (kind, message) = failure(small, at64(72, 16));
    assert_eq!((kind, message.contains("16384 is the least")), (Kind::Corrupt, true), "{message}");
}

#[test]
fn entries_that_are_impossible_are_corrupt() {
    let l1 = |value: u64| move |image: &mut Written| put64(&mut image.bytes, image.l1.start, value);
    let l2 = |value: u64| {
        move |image: &mut Written| {
            let at = first_l2(image);
            put64(&mut image.bytes, at, value);
        }
    };
    let table: Vec<(&str, Change, &str)> = vec![
        ("L1 reserved low", Box::new(|i| i.bytes[i.l1.start + 7] |= 1), "reserved bits"),
        ("L1 reserved high", Box::new(|i| i.bytes[i.l1.start] |= 0x40), "reserved bits"),
        ("L1 unaligned", Box::new(l1(1 << 16 | 512)), "start of a cluster"),
        ("L2 past the end", Box::new(l1(1 << 40)), "past the image's end"),
        (
            "L2 on L1",
            Box::new(|i| {
                let at = get64(&i.bytes, 40);
                put64(&mut i.bytes, i.l1.start, at)
            }),
            "into the header or the L1",
        ),
        ("L2 reserved low", Box::new(l2(1 << 16 | 2)), "reserved bits"),
        ("L2 reserved high", Box::new(l2(1 << 16 | 1 << 60)), "reserved bits"),
        ("cluster unaligned", Box::new(l2(1 << 16 | 512)), "start of a cluster"),
        ("zero cluster unaligned", Box::new(l2(1 << 16 | 512 | 1)), "start of a cluster"),
        ("cluster past the end", Box::new(l2(1 << 40)), "past the image's end"),
        (
            "cluster on L1",
            Box::new(|i| {
                let (at, l1) = (first_l2(i), get64(&i.bytes, 40));
                put64(&mut i.bytes, at, l1);
            }),
            "into the header or the L1",
        ),
        ("packed past the end", Box::new(l2(1 << 62 | 1 << 40)), "past the image's end"),
        ("packed in the header", Box::new(l2(1 << 62 | 300)), "into the header or the L1"),
    ];
    for (what, change, text) in table {
        let (kind, message) = failure(PLAN, change);
        assert_eq!(kind, Kind::Corrupt, "{what}: {message}");
        assert!(message.contains(text), "{what}: {message}");
    }
    let (kind, message) = failure(Plan { version: 2, ..PLAN }, l2(1));
    assert_eq!((kind, message.contains("version 2 does not have")), (Kind::Corrupt, true), "{message}");
}

#[test]
fn subclusters_that_are_impossible_are_corrupt() {
    let plan = Plan { extended_l2: true, ..PLAN };
    let both = |image: &mut Written| {
        let at = first_l2(image) + 8;
        put64(&mut image.bytes, at, 1 << 33 | 2);
    };
    let (kind, message) = failure(plan, both);
    assert_eq!((kind, message.contains("both stored and zero")), (Kind::Corrupt, true), "{message}");
    let (kind, message) = failure(plan, |image| {
        let at = first_l2(image);
        put64(&mut image.bytes, at, 0);
        put64(&mut image.bytes, at + 8, 4);
    });
    assert_eq!((kind, message.contains("but no cluster")), (Kind::Corrupt, true), "{message}");
    let (kind, message) = failure(plan, |image| {
        let at = first_l2(image);
        image.bytes[at + 7] |= 1;
    });
    assert_eq!((kind, message.contains("reserved bits")), (Kind::Corrupt, true), "{message}");
    let (kind, message) = failure(Plan { packed_of_ten: 10, ..plan }, |image| {
        let at = first_l2(image);
        put64(&mut image.bytes, at, 1 << 62 | 70_000);
        put64(&mut image.bytes, at + 8, 1);
    });
    assert_eq!(
        (kind, message.contains("compressed and has subclusters")),
        (Kind::Corrupt, true),
        "{message}"
    );
}

#[test]
fn a_cluster_that_inflates_to_another_length_is_corrupt() {
    for zstd in [false, true] {
        let plan = Plan { zstd, packed_of_ten: 10, ..PLAN };
        let half = vec![7u8; 1 << 15];
        let double = vec![7u8; 1 << 17];
        for data in [half, double] {
            let (kind, message) = failure(plan, |image| {
                let stream = if zstd {
                    zstd::bulk::compress(&data, 1).unwrap()
                } else {
                    let mut c = libdeflater::Compressor::new(libdeflater::CompressionLvl::default());
                    let mut out = vec![0; 4096];
                    let len = c.deflate_compress(&data, &mut out).unwrap();
                    out.truncate(len);
                    out
                };
                let at = image.bytes.len() as u64;
                image.bytes.extend(stream);
                let entry = first_l2(image);
                put64(&mut image.bytes, entry, 1 << 62 | 1 << 54 | at);
            });
            assert_eq!(kind, Kind::Corrupt, "{message}");
            assert!(message.contains("cluster at guest offset 0"), "{message}");
        }
    }
}

#[test]
fn the_allocator_counts() {
    sys::reset_peak();
    drop(vec![1u8; 3 << 20]);
    assert!((3 << 20..4 << 20).contains(&sys::peak()), "{}", sys::peak());
}

#[test]
fn mutants_neither_panic_nor_allocate_nor_hang() {
    let bases = qcow2::bases();
    // One unpacked cluster of at most 2 MiB, a slice of extents, and the header's cluster, which the image's size bounds.
    let survey = survey(Format::Qcow2, &bases, count(5_000, 100_000), 4 << 20);
    println!("qcow2: {survey:?}");
}

#[test]
fn mutants_are_read_as_qemu_img_reads_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let bases = qcow2::bases();
    let (mut both, mut stricter, mut looser) = (0, 0, 0);
    for seed in 0..count(100, 3_000) {
        let (base, places) = &bases[usize::try_from(seed).unwrap() % bases.len()];
        let mut image = base.clone();
        let what = mutate::mutate(&mut image, places, 1 << 40 | seed);
        let small = open(&image, Format::Qcow2, true).map(|layout| layout.virtual_size() <= 16 << 20);
        let ours = match small {
            Ok(true) => read_image(&image, Format::Qcow2),
            Ok(false) => continue,
            Err(e) => Err(e),
        };
        std::fs::write(&path, &image).unwrap();
        match (ours, tools::qemu_try_raw("qcow2", &path)) {
            (Ok(ours), Some(judge)) => {
                assert_eq!(first_difference(&ours, &judge), None, "mutant {seed}: {what}");
                both += 1;
            }
            (Ok(_), None) => {
                println!("{seed}: we read it, qemu-img does not ({what})");
                looser += 1;
            }
            (Err(e), Some(_)) => {
                println!("{seed}: qemu-img reads it, we do not: {e} ({what})");
                stricter += 1;
            }
            (Err(_), None) => {}
        }
    }
    println!("both read {both}; we alone {looser}; qemu-img alone {stricter}");
    assert!(both >= 10, "too few mutants were compared: {both}");
}
