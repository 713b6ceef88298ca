//! VHD that is refused, how large its disk is, and which are fixed.

use disk_image::format::vhd::fixed_vhd;
use disk_image::{Format, Kind};

use crate::formats_hostile::refused::{Case, run};
use crate::support::images::{WRITES, dynamic_vhd, made, put, repair_vhd, sum_vhd};
use crate::support::{first_difference, read_image, tools};

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

/// Which of its two sizes a VHD has depends on its creator; so it does for qemu-img.
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
fn fixed_vhd_is_detected_by_its_footer() {
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
