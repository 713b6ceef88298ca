//! Properties of every compressor.

use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;

use disk_image::compress::Limits;
use disk_image::{Access, Compression, Facts, Kind, Source};

use crate::compress::packed::{Memory, Seed, both, content, count, every, once, pipe, same, unpack};

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
fn data_after_a_gzip_stream_is_handled_as_by_gzip() {
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
