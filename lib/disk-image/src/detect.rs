//! Detects formats by magic alone: never by name, extension or declared type.

/// An image format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// The disk as it is, ISO images included.
    Raw,
    /// qcow2, version 2 and 3.
    Qcow2,
    /// VMDK, monolithicSparse and streamOptimized.
    Vmdk,
    /// VHD ("vpc"), dynamic and fixed.
    Vhd,
    /// VHDX.
    Vhdx,
    /// VDI.
    Vdi,
}

impl Format {
    /// The name users know it by, as in `qemu-img -f` except for VHD.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Vmdk => "vmdk",
            Self::Vhd => "vhd",
            Self::Vhdx => "vhdx",
            Self::Vdi => "vdi",
        }
    }
}

/// A compression around an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// gzip, possibly of several members.
    Gz,
    /// xz, possibly of several streams and blocks.
    Xz,
    /// Zstandard, possibly of several frames.
    Zst,
}

impl Compression {
    /// The name users know it by.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gz => "gz",
            Self::Xz => "xz",
            Self::Zst => "zst",
        }
    }
}

/// How many bytes of the front [`detect`] wants (fewer at a shorter source's end).
pub const HEAD: usize = 4096;

/// Formats found at the front of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detected {
    /// A compressed stream; detect again on what comes out of it (one layer only).
    Compressed(Compression),
    /// A disk image.
    Image(Format),
    /// A tar archive: content of an archive import, a registry layer or an OVA.
    Tar,
    /// Something known that is not a disk ("HTML", "XML", "JSON", "zip", "7z", "bzip2", "lz4"), or a disk in a form that is not
    /// read ("a LUKS container (encrypted)", "a QED image", …). Raw under the environment contract, refused by command
    /// line.
    Foreign(&'static str),
}

/// Detects the format of a stream by `head`, its first [`HEAD`] bytes (or all, if fewer).
///
/// Data without a known magic is a raw disk. A fixed VHD looks raw from the front: its mark is its last sector (see
/// [`crate::format::vhd::fixed_vhd`]).
pub fn detect(head: &[u8]) -> Detected {
    if let Some(format) = image(head) {
        return Detected::Image(format);
    }
    if let Some(compression) = compression(head) {
        return Detected::Compressed(compression);
    }
    if is_tar(head) {
        return Detected::Tar;
    }
    foreign(head).map_or(Detected::Image(Format::Raw), Detected::Foreign)
}

/// Images by the magic at their front (VDI: at offset 64, after a line of text).
fn image(head: &[u8]) -> Option<Format> {
    if head.starts_with(b"QFI\xfb") {
        return Some(Format::Qcow2);
    }
    // A descriptor in a file of its own and ESX's COWD extents are VMDK too: the decoder's error names the remedy.
    if head.starts_with(b"KDMV")
        || head.starts_with(b"COWD")
        || starts_with_text(head, "# disk descriptorfile")
    {
        return Some(Format::Vmdk);
    }
    if head.starts_with(b"conectix") {
        return Some(Format::Vhd);
    }
    if head.starts_with(b"vhdxfile") {
        return Some(Format::Vhdx);
    }
    (head.get(64..68) == Some(&0xbeda_107f_u32.to_le_bytes())).then_some(Format::Vdi)
}

fn compression(head: &[u8]) -> Option<Compression> {
    if head.starts_with(&[0x1f, 0x8b, 8]) {
        return Some(Compression::Gz);
    }
    if head.starts_with(b"\xfd7zXZ\0") {
        return Some(Compression::Xz);
    }
    is_zstd(head).then_some(Compression::Zst)
}

/// A zstd frame, or skippable frames as far as `head` shows and then a zstd frame (RFC 8878, 3.1).
fn is_zstd(mut head: &[u8]) -> bool {
    let mut skipped = false;
    loop {
        let Some((magic, rest)) = head.split_first_chunk::<4>() else {
            return skipped;
        };
        match u32::from_le_bytes(*magic) {
            0xfd2f_b528 => return true,
            0x184d_2a50..=0x184d_2a5f => {}
            _ => return false,
        }
        let Some((len, rest)) = rest.split_first_chunk::<4>() else {
            return false;
        };
        skipped = true;
        head = usize::try_from(u32::from_le_bytes(*len))
            .ok()
            .and_then(|len| rest.get(len..))
            .unwrap_or_default();
    }
}

/// A POSIX or GNU tar header, checksum included: five letters alone could stand in a boot sector.
fn is_tar(head: &[u8]) -> bool {
    let Some(header) = head.get(..512) else {
        return false;
    };
    let (before, field, after) = (&header[..148], &header[148..156], &header[156..]);
    let sum: u32 = before.iter().chain(b"        ").chain(after).map(|&byte| u32::from(byte)).sum();
    let digits = field.trim_ascii_start();
    let end = digits.iter().position(|byte| !(b'0'..=b'7').contains(byte)).unwrap_or(digits.len());
    let written = str::from_utf8(&digits[..end]).ok().and_then(|octal| u32::from_str_radix(octal, 8).ok());
    &header[257..262] == b"ustar" && written == Some(sum)
}

/// Known things that are no disks.
fn foreign(head: &[u8]) -> Option<&'static str> {
    let text = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    if starts_with_text(text, "<!doctype html") || starts_with_text(text, "<html") {
        return Some("HTML");
    }
    if starts_with_text(text, "<?xml") {
        return Some("XML");
    }
    if is_json(text) {
        return Some("JSON");
    }
    // Local header, empty archive, spanned archive.
    if [b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08"].iter().any(|magic| head.starts_with(*magic)) {
        return Some("zip");
    }
    if head.starts_with(b"7z\xbc\xaf\x27\x1c") {
        return Some("7z");
    }
    if is_bzip2(head) {
        return Some("bzip2");
    }
    // Frame and legacy frame.
    let lz4 = [0x184d_2204_u32, 0x184c_2102].iter().any(|magic| head.starts_with(&magic.to_le_bytes()));
    lz4.then_some("lz4").or_else(|| foreign_image(head))
}

/// An object of JSON, such as a server's error, as far as it is seen: a brace, a key, and nothing but text.
fn is_json(text: &[u8]) -> bool {
    let is_object = text.strip_prefix(b"{").is_some_and(|rest| rest.trim_ascii_start().starts_with(b"\""));
    // As a disk it would be followed by zeroes.
    let end = text.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    is_object && text[..end].iter().all(|byte| !byte.is_ascii_control() || byte.is_ascii_whitespace())
}

/// Disks in a form that is not read here.
fn foreign_image(head: &[u8]) -> Option<&'static str> {
    let table: [(&[u8], _); 7] = [
        // LUKS1 and LUKS2: cryptsetup's on-disk format, version 1 or 2 behind the magic.
        (b"LUKS\xba\xbe\0\x01", "a LUKS container (encrypted)"),
        (b"LUKS\xba\xbe\0\x02", "a LUKS container (encrypted)"),
        // Detected as by qemu's drivers.
        (b"QED\0", "a QED image"),
        (b"WithoutFreeSpace", "a Parallels image"),
        (b"WithouFreSpacExt", "a Parallels image"),
        (b"#!/bin/sh\n#V2.0 Format\n", "a cloop image"),
        (b"Bochs Virtual HD Image", "a Bochs image"),
    ];
    table.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, name)| *name)
}

/// Detects formats other than a raw disk by the last sector, where that can be reached: a DMG (Apple's UDIF), by the magic,
/// version and length of its trailer.
pub fn foreign_by_end(last: &[u8; 512]) -> Option<&'static str> {
    last.starts_with(b"koly\0\0\0\x04\0\0\x02\0").then_some("a DMG image")
}

/// How to handle an image of a format that is not read.
pub(crate) const CONVERT_IMAGE: &str =
    "convert it (qemu-img convert -O qcow2 IMAGE NEW) and import the result";

/// "BZh", the level, then the magic of a block or of the end of an empty stream.
fn is_bzip2(head: &[u8]) -> bool {
    let level = head.get(3).is_some_and(|level| (b'1'..=b'9').contains(level));
    let block = head.get(4..10);
    head.starts_with(b"BZh")
        && level
        && (block == Some(b"\x31\x41\x59\x26\x53\x59") || block == Some(b"\x17\x72\x45\x38\x50\x90"))
}

/// Whether `bytes` begins with `text` (given in lower case), whatever the case of its letters.
fn starts_with_text(bytes: &[u8], text: &str) -> bool {
    bytes.get(..text.len()).is_some_and(|front| front.eq_ignore_ascii_case(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: usize, magic: &[u8]) -> Vec<u8> {
        let mut head = vec![0; HEAD];
        head[offset..offset + magic.len()].copy_from_slice(magic);
        head
    }

    fn tar_header() -> Vec<u8> {
        let mut head = at(257, b"ustar\x0000");
        head[..8].copy_from_slice(b"disk.img");
        let sum: u32 = head[..512].iter().map(|&b| u32::from(b)).sum::<u32>() + 8 * 32;
        head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        head
    }

    #[test]
    fn every_magic_is_detected() {
        use Detected::{Compressed, Foreign, Image};
        let table: &[(&[u8], Detected)] = &[
            (b"QFI\xfb\0\0\0\x03", Image(Format::Qcow2)),
            (b"QFI\xfb\0\0\0\x01", Image(Format::Qcow2)),
            (b"KDMV", Image(Format::Vmdk)),
            (b"COWD", Image(Format::Vmdk)),
            (b"# Disk DescriptorFile\nversion=1\n", Image(Format::Vmdk)),
            (b"# disk descriptorfile\r\n", Image(Format::Vmdk)),
            (b"conectix", Image(Format::Vhd)),
            (b"vhdxfile", Image(Format::Vhdx)),
            (b"\x1f\x8b\x08\0", Compressed(Compression::Gz)),
            (b"\xfd7zXZ\0", Compressed(Compression::Xz)),
            (b"\x28\xb5\x2f\xfd", Compressed(Compression::Zst)),
            (b"\x50\x2a\x4d\x18\x02\0\0\0ab\x28\xb5\x2f\xfd", Compressed(Compression::Zst)),
            (b"\x5f\x2a\x4d\x18\xff\xff\xff\xff", Compressed(Compression::Zst)),
            (b"\x50\x2a\x4d\x18\x02\0\0\0abcdefgh", Image(Format::Raw)),
            (b"\xef\xbb\xbf\r\n <!DocType HTML>", Foreign("HTML")),
            (b"<html lang=en>", Foreign("HTML")),
            (b"\n<?XML version='1.0'?>", Foreign("XML")),
            (b"{\"error\": \"no such object\"}\n", Foreign("JSON")),
            (b"{\"a\": \"\x01\"}", Image(Format::Raw)),
            (b"{ a disk", Image(Format::Raw)),
            (b"PK\x03\x04", Foreign("zip")),
            (b"PK\x05\x06", Foreign("zip")),
            (b"7z\xbc\xaf\x27\x1c", Foreign("7z")),
            (b"BZh91AY&SY", Foreign("bzip2")),
            (b"BZh1\x17\x72\x45\x38\x50\x90", Foreign("bzip2")),
            (b"BZh0\x31\x41\x59\x26\x53\x59", Image(Format::Raw)),
            (b"BZh9 is no archive", Image(Format::Raw)),
            (b"\x04\x22\x4d\x18", Foreign("lz4")),
            (b"\x02\x21\x4c\x18", Foreign("lz4")),
            (b"LUKS\xba\xbe\0\x01", Foreign("a LUKS container (encrypted)")),
            (b"LUKS\xba\xbe\0\x02", Foreign("a LUKS container (encrypted)")),
            (b"LUKS\xba\xbe\0\x03", Image(Format::Raw)),
            (b"QED\0", Foreign("a QED image")),
            (b"QED!", Image(Format::Raw)),
            (b"WithoutFreeSpace", Foreign("a Parallels image")),
            (b"WithouFreSpacExt", Foreign("a Parallels image")),
            (b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop", Foreign("a cloop image")),
            (b"#!/bin/sh\n", Image(Format::Raw)),
            (b"Bochs Virtual HD Image", Foreign("a Bochs image")),
            (b"", Image(Format::Raw)),
            (b"\xeb\x63\x90", Image(Format::Raw)),
            (b"<<< not VirtualBox", Image(Format::Raw)),
        ];
        for (magic, expected) in table {
            assert_eq!(detect(magic), *expected, "{}", magic.escape_ascii());
            // Followed by zeroes up to a whole head it is still the same, except for frames with a length field.
            if !magic.starts_with(b"\x50") {
                assert_eq!(detect(&at(0, magic)), *expected, "{} padded", magic.escape_ascii());
            }
        }
        assert_eq!(detect(&at(64, &[0x7f, 0x10, 0xda, 0xbe])), Image(Format::Vdi));
        assert_eq!(detect(&at(0x7f00 % HEAD, b"CD001")), Image(Format::Raw));
    }

    #[test]
    fn tar_detection_checks_the_header_checksum() {
        assert_eq!(detect(&tar_header()), Detected::Tar);
        assert_eq!(detect(&tar_header()[..512]), Detected::Tar);
        assert_eq!(detect(&tar_header()[..511]), Detected::Image(Format::Raw));
        assert_eq!(detect(&at(257, b"ustar")), Detected::Image(Format::Raw));
        let mut damaged = tar_header();
        damaged[0] ^= 1;
        assert_eq!(detect(&damaged), Detected::Image(Format::Raw));
    }

    #[test]
    fn no_prefix_of_any_head_panics() {
        for head in [tar_header(), at(64, &[0x7f, 0x10, 0xda, 0xbe]), at(0, b"\x50\x2a\x4d\x18\x08")] {
            for len in 0..head.len() {
                detect(&head[..len]);
            }
        }
    }
}
