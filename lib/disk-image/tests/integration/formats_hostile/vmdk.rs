//! VMDK that is refused.

use disk_image::{Format, Kind};

use crate::formats_hostile::refused::{Case, outcome, refuses, run};
use crate::support::images::{le32, le64, packed_vmdk, put, sparse_vmdk};

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
        ("createType=", "x=", "no createType"),
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
