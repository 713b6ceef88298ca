//! A guest that fits into a boot sector: it counts its starts on its disk, answers on its serial console, and obeys its
//! power button.
//!
//! Started, it reads the disk's second sector, adds one to its first byte, writes it back, and sends `B` and the byte.
//! To each byte that it receives it answers `G`, the count, and the byte. At `q`, and when its power button is pressed, it
//! sends `P` and switches itself off.

use std::path::Path;
use std::process::Command;

/// Bytes of the disk.
pub(crate) const SIZE: u64 = 1 << 20;
/// Where the count is on the disk; the first start makes it the letter `1`.
pub(crate) const COUNT: usize = 512;

/// 16-bit code, loaded at 0x7c00; DL is the BIOS's number of the disk, and ACPI's ports are where SeaBIOS puts them on q35.
const CODE: &[u8] = &[
    0x31, 0xc0, 0x8e, 0xd8, // ds = 0
    0xbe, 0x79, 0x7c, 0xb4, 0x42, 0xcd, 0x13, // read the packet's sector, by the BIOS
    0xfe, 0x06, 0x00, 0x80, // count one start
    0xb8, 0x00, 0x43, 0xbe, 0x79, 0x7c, 0xcd, 0x13, // write it back
    0xba, 0x02, 0x06, 0xb8, 0x00, 0x01, 0xef, // enable the power button: bit 8 of the port 0x602
    0xb3, 0x42, 0xe8, 0x47, 0x00, // send 'B'
    0x8a, 0x1e, 0x00, 0x80, 0xe8, 0x40, 0x00, // send the count
    0xfb, 0xf4, // wait: for an interrupt, the timer's at the latest
    0xba, 0x00, 0x06, 0xed, 0xf6, 0xc4, 0x01, 0x75, 0x25, // the power button was pressed: off
    0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xed, // until the serial port has a byte
    0xba, 0xf8, 0x03, 0xec, 0x88, 0xc1, // read it
    0x3c, 0x71, 0x74, 0x13, // 'q': off
    0xb3, 0x47, 0xe8, 0x1e, 0x00, // send 'G'
    0x8a, 0x1e, 0x00, 0x80, 0xe8, 0x17, 0x00, // send the count
    0x88, 0xcb, 0xe8, 0x12, 0x00, 0xeb, 0xd0, // send the byte; wait again
    0xb3, 0x50, 0xe8, 0x0b, 0x00, // off: send 'P'
    0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, // sleep in S5: 0x2000 to the port 0x604
    0xfa, 0xf4, 0xeb, 0xfd, // halt until then
    0xba, 0xfd, 0x03, 0xec, 0xa8, 0x20, 0x74, 0xfb, // send: until the serial port takes a byte
    0xba, 0xf8, 0x03, 0x88, 0xd8, 0xee, 0xc3, // write it; return
    0x10, 0x00, 0x01, 0x00, 0x00, 0x80, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, // packet: one sector, number 1, at 0x8000
];

/// A guest that never waits for anything but its timer: started, it adds one to the first byte of the disk's second sector;
/// at each interrupt of its timer, 18 in a second, it adds one to the sector's second word, writes the sector, and sends the
/// word's lower byte.
const BEATS: &[u8] = &[
    0x31, 0xc0, 0x8e, 0xd8, // ds = 0
    0xbe, 0x3a, 0x7c, 0xb4, 0x42, 0xcd, 0x13, // read the packet's sector, by the BIOS
    0xfe, 0x06, 0x00, 0x80, // count one start
    0xfb, 0xf4, // wait for an interrupt
    0xff, 0x06, 0x02, 0x80, // count one beat
    0xb8, 0x00, 0x43, 0xbe, 0x3a, 0x7c, 0xcd, 0x13, // write the sector
    0x52, // keep DL, the number of the disk
    0xba, 0xfd, 0x03, 0xec, 0xa8, 0x20, 0x74, 0xfb, // until the serial port takes a byte
    0xba, 0xf8, 0x03, 0xa0, 0x02, 0x80, 0xee, // write the beat's lower byte
    0x5a, 0xeb, 0xdf, // DL; again
    0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, // nothing
    0x10, 0x00, 0x01, 0x00, 0x00, 0x80, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
    0x00, // packet: one sector, number 1, at 0x8000
];

/// A guest that sends `x` without an end.
const FLOODS: &[u8] = &[
    0xba, 0xfd, 0x03, 0xec, 0xa8, 0x20, 0x74, 0xfb, // until the serial port takes a byte
    0xba, 0xf8, 0x03, 0xb0, 0x78, 0xee, 0xeb, 0xf0, // write 'x'; again
];

/// The disk of the guest that sends without an end.
pub(crate) fn floods() -> Vec<u8> {
    bootable(FLOODS)
}

/// The disk of the guest that starts its watchdog and halts.
pub(crate) fn watched() -> Vec<u8> {
    bootable(guests::boot::WATCHED)
}

/// The disk of the guest that counts its beats, raw, before its first start.
pub(crate) fn beats() -> Vec<u8> {
    bootable(BEATS)
}

/// Starts and beats on the disk of that guest.
pub(crate) fn counted(disk: &Path) -> (u8, u16) {
    use std::os::unix::fs::FileExt;
    let mut sector = [0; 4];
    std::fs::File::open(disk).unwrap().read_exact_at(&mut sector, COUNT as u64).unwrap();
    (sector[0] - b'0', u16::from_le_bytes([sector[2], sector[3]]))
}

fn bootable(code: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; usize::try_from(SIZE).unwrap()];
    disk[..code.len()].copy_from_slice(code);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk[COUNT] = b'0';
    disk
}

/// The disk, raw, before its first start.
pub(crate) fn disk() -> Vec<u8> {
    bootable(CODE)
}

/// The disk as a qcow2 image in `file`.
pub(crate) fn qcow2(file: &Path) {
    let raw = file.with_extension("raw");
    std::fs::write(&raw, disk()).unwrap();
    let convert = ["convert", "-q", "-f", "raw", "-O", "qcow2"];
    assert!(Command::new("qemu-img").args(convert).args([raw.as_path(), file]).status().unwrap().success());
}
