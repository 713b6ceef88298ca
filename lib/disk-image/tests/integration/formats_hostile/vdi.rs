//! VDI that is refused.

use disk_image::{Format, Kind};

use crate::formats_hostile::refused::{Case, outcome, run};
use crate::support::images::{dynamic_vdi, le32, put};
use crate::support::read_image;

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
