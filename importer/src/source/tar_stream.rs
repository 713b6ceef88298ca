//! A tar archive read forward, for what is found inside layers and OCI archives.
//!
//! It gives entries and where their content lies; nothing is unpacked. Every length that the archive declares is
//! bounded before memory is taken for it. Source: POSIX.1-2017 pax, "pax Interchange Format" and "ustar Interchange
//! Format", and the GNU extensions for long names and sparse files. Not here: what names mean (`layer`).

use std::io::{self, Read};
use std::sync::Arc;

use disk_image::source::read_full;
use disk_image::{Access, Source};

use crate::error::{Error, Kind};

/// Size of a header, and what content is padded to.
const BLOCK: u64 = 512;
/// Longest name that is read; Linux allows 4096 bytes.
const NAME_MAX: u64 = 8 << 10;
/// Largest pax header that is read: it may hold extended attributes in addition to the name.
const PAX_MAX: u64 = 1 << 20;
/// Long-name and pax headers in front of one entry.
const PREFIXES_MAX: usize = 16;
/// Content up to this length is read over rather than jumped over.
const JUMP: u64 = 64 << 10;

/// Type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A regular file.
    File,
    /// A regular file stored without its holes.
    Sparse,
    /// A hard or symbolic link.
    Link,
    /// A folder.
    Folder,
    /// A device, a pipe, an entry of an unknown type.
    Other,
}

/// An entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its name without "." and empty components; empty for the root, and for a name that climbs out of it.
    pub(crate) path: String,
    pub(crate) what: What,
    /// Offset of its content in the archive.
    pub(crate) offset: u64,
    /// Length of its content in bytes.
    pub(crate) size: u64,
}

impl Entry {
    /// Offset after its content.
    pub(crate) fn end(&self) -> u64 {
        self.offset.saturating_add(self.size)
    }
}

/// An archive somewhere between its start and its end.
pub(crate) struct TarStream {
    reader: Box<dyn Read + Send>,
    /// For jumps, if the archive has ranges.
    ranges: Option<Arc<dyn Source>>,
    /// Bytes of the archive before the reader.
    at: u64,
    /// Where the next header is.
    next: u64,
}

impl TarStream {
    /// Opens `source` at its start.
    ///
    /// # Errors
    /// The source's error.
    pub(crate) fn open(source: &Arc<dyn Source>) -> io::Result<Self> {
        let ranges = (source.facts().access == Access::Ranges).then(|| source.clone());
        Ok(Self { reader: source.open(0..u64::MAX)?, ranges, at: 0, next: 0 })
    }

    /// Bytes of the archive that were read or passed over.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Reads bytes of the archive as they are.
    ///
    /// # Errors
    /// The source's error.
    pub(crate) fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.reader.read(buf)?;
        self.at += n as u64;
        Ok(n)
    }

    /// Goes forward to `offset`.
    ///
    /// # Errors
    /// When the archive ends before it, or the source's error.
    pub(crate) fn pass_to(&mut self, offset: u64) -> io::Result<()> {
        let left = offset.saturating_sub(self.at);
        if left > JUMP
            && let Some(source) = &self.ranges
        {
            if source.facts().size.is_some_and(|size| offset > size) {
                return Err(ends(self.at));
            }
            self.reader = source.open(offset..u64::MAX)?;
            self.at = offset;
            return Ok(());
        }
        let passed = io::copy(&mut (&mut self.reader).take(left), &mut io::sink())?;
        self.at += passed;
        if passed < left { Err(ends(self.at)) } else { Ok(()) }
    }

    /// Marks the entry ending at `end` as done.
    pub(crate) fn go_on_after(&mut self, end: u64) {
        self.next = end.next_multiple_of(BLOCK);
    }

    /// The next entry; `None` at the archive's end. Whatever is left of the entry before is passed over.
    ///
    /// # Errors
    /// When the archive is damaged or ends early, or the source's error.
    pub(crate) fn next(&mut self) -> io::Result<Option<Entry>> {
        let mut name = None;
        let mut pax = Pax::default();
        for _ in 0..PREFIXES_MAX {
            self.pass_to(self.next)?;
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let size = number(&header[124..136]).ok_or_else(|| self.damaged("size"))?;
            let kind = header[156];
            match kind {
                b'L' => {
                    let bytes = self.content(size, NAME_MAX, "name")?;
                    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
                    name = Some(bytes[..end].to_vec());
                }
                b'x' => {
                    let bytes = self.content(size, PAX_MAX, "pax header")?;
                    pax = Pax::parse(&bytes).ok_or_else(|| self.damaged("pax header"))?;
                }
                // The target of a link, and defaults for all entries: neither is of use here.
                b'K' | b'g' => self.end_content(size)?,
                _ => return self.entry(&header, size, name, pax).map(Some),
            }
        }
        Err(self.damaged("series of headers without a file"))
    }

    /// Reads to the end of the source; what follows an archive is no part of it, but of the bytes that are hashed.
    ///
    /// # Errors
    /// The error of the source, or of `check`.
    pub(crate) fn drain(&mut self, mut check: impl FnMut() -> io::Result<()>) -> io::Result<()> {
        let mut buf = vec![0; 256 << 10];
        loop {
            check()?;
            match self.read(&mut buf) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn entry(&mut self, header: &[u8; 512], size: u64, name: Option<Vec<u8>>, pax: Pax) -> io::Result<Entry> {
        let name = pax.path.or(name).unwrap_or_else(|| short_name(header));
        let what = match header[156] {
            b'0' | b'7' | 0 if pax.sparse => What::Sparse,
            0 | b'0' if name.ends_with(b"/") => What::Folder,
            0 | b'0' | b'7' => What::File,
            b'S' => What::Sparse,
            b'1' | b'2' => What::Link,
            b'5' => What::Folder,
            _ => What::Other,
        };
        if header[156] == b'S' {
            // The map of an old GNU sparse file goes on in blocks of its own.
            let mut more = header[482] != 0;
            while more {
                let block = self.block()?.ok_or_else(|| ends(self.at))?;
                more = block[504] != 0;
            }
        }
        // Links, directories and devices have no content, regardless of their size field.
        let size = if (b'1'..=b'6').contains(&header[156]) { 0 } else { pax.size.unwrap_or(size) };
        let offset = self.at;
        let end = offset.checked_add(size).filter(|&end| end <= u64::MAX / 2);
        self.go_on_after(end.ok_or_else(|| self.damaged("size"))?);
        Ok(Entry { path: path(&name), what, offset, size })
    }

    /// The next header; `None` at a block of zeroes or the end.
    fn header(&mut self) -> io::Result<Option<[u8; 512]>> {
        let Some(header) = self.block()? else { return Ok(None) };
        if header.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let sum: u64 =
            header[..148].iter().chain(b"        ").chain(&header[156..]).map(|&byte| u64::from(byte)).sum();
        if number(&header[148..156]) != Some(sum) {
            if self.at == BLOCK {
                return Err(no_tar());
            }
            return Err(self.damaged("header checksum"));
        }
        Ok(Some(header))
    }

    /// A whole block; `None` at the end of the source.
    fn block(&mut self) -> io::Result<Option<[u8; 512]>> {
        let mut block = [0; 512];
        let got = read_full(&mut *self.reader, &mut block)?;
        self.at += got as u64;
        self.next = self.at;
        match got {
            0 => Ok(None),
            512 => Ok(Some(block)),
            _ if self.at < BLOCK => Err(no_tar()),
            _ => Err(ends(self.at)),
        }
    }

    /// Content of at most `max` bytes that belongs to the entry that follows.
    fn content(&mut self, size: u64, max: u64, what: &str) -> io::Result<Vec<u8>> {
        let Some(len) = Some(size).filter(|&size| size <= max).and_then(|size| usize::try_from(size).ok())
        else {
            return Err(self.damaged(&format!("{what} of {size} bytes")));
        };
        let mut bytes = vec![0; len];
        let start = self.at;
        let got = read_full(&mut *self.reader, &mut bytes)?;
        self.at += got as u64;
        if got < len {
            return Err(ends(self.at));
        }
        self.go_on_after(start + size);
        Ok(bytes)
    }

    fn end_content(&mut self, size: u64) -> io::Result<()> {
        let end = self.at.checked_add(size).filter(|&end| end <= u64::MAX / 2);
        self.go_on_after(end.ok_or_else(|| self.damaged("size"))?);
        Ok(())
    }

    fn damaged(&self, what: &str) -> io::Error {
        let what = format!("the tar archive is damaged: it has an invalid {what} at byte {}", self.at);
        Error::new(Kind::Refused, what).into()
    }
}

fn no_tar() -> io::Error {
    Error::new(Kind::Refused, "the content is not a tar archive").into()
}

fn ends(at: u64) -> io::Error {
    Error::new(Kind::Refused, format!("the tar archive is cut short at byte {at}; fetch it again")).into()
}

/// Records of a pax header for the entry that follows it.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pax {
    path: Option<Vec<u8>>,
    size: Option<u64>,
    sparse: bool,
}

impl Pax {
    /// Records are "length key=value\n", the length counting itself.
    fn parse(mut bytes: &[u8]) -> Option<Self> {
        let mut pax = Self::default();
        while !bytes.is_empty() {
            let space = bytes.iter().take(20).position(|&byte| byte == b' ')?;
            let len: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
            let record = bytes.get(space + 1..len)?.strip_suffix(b"\n")?;
            bytes = &bytes[len..];
            let equals = record.iter().position(|&byte| byte == b'=')?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            match key {
                // An empty value resets an earlier header's.
                b"path" => pax.path = (!value.is_empty()).then(|| value.to_vec()),
                b"size" if value.is_empty() => pax.size = None,
                b"size" => pax.size = Some(std::str::from_utf8(value).ok()?.parse().ok()?),
                _ => pax.sparse |= key.starts_with(b"GNU.sparse."),
            }
        }
        Some(pax)
    }
}

/// Octal digits, or binary when the first bit is set (GNU).
fn number(field: &[u8]) -> Option<u64> {
    if let Some((&first, rest)) = field.split_first()
        && first & 0x80 != 0
    {
        // A negative number, or one above 64 bits, has more bits set than fit.
        let (high, low) = rest.split_at_checked(rest.len().checked_sub(8)?)?;
        let fits = first == 0x80 && high.iter().all(|&byte| byte == 0);
        return Some(u64::from_be_bytes(low.try_into().ok()?)).filter(|_| fits);
    }
    let is_blank = |byte: &u8| *byte == b' ' || *byte == 0;
    let start = field.iter().position(|byte| !is_blank(byte)).unwrap_or(field.len());
    let digits = &field[start..];
    let end = digits.iter().position(is_blank).unwrap_or(digits.len());
    if end == 0 {
        return Some(0);
    }
    let digits = std::str::from_utf8(&digits[..end]).ok().filter(|text| !text.starts_with('+'))?;
    u64::from_str_radix(digits, 8).ok()
}

/// Name and, in a POSIX header, the prefix before it.
fn short_name(header: &[u8; 512]) -> Vec<u8> {
    let text = |field: &[u8]| {
        let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
        field[..end].to_vec()
    };
    let name = text(&header[..100]);
    let prefix = if &header[257..263] == b"ustar\0" { text(&header[345..500]) } else { Vec::new() };
    if prefix.is_empty() { name } else { [prefix, name].join(&b'/') }
}

/// Components joined by single slashes.
fn path(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    let parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") { String::new() } else { parts.join("/") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk_image::Facts;
    use std::io::Cursor;
    use std::ops::Range;

    struct Bytes(Vec<u8>, Access);

    impl Source for Bytes {
        fn facts(&self) -> Facts {
            Facts { size: Some(self.0.len() as u64), access: self.1.clone() }
        }
        fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
            let start = usize::try_from(range.start).unwrap().min(self.0.len());
            Ok(Box::new(Cursor::new(self.0[start..].to_vec())))
        }
    }

    fn entries(bytes: &[u8]) -> io::Result<Vec<Entry>> {
        let mut both = Vec::new();
        for access in [Access::Again, Access::Ranges] {
            let source: Arc<dyn Source> = Arc::new(Bytes(bytes.to_vec(), access));
            let mut tar = TarStream::open(&source)?;
            let mut found = Vec::new();
            while let Some(entry) = tar.next()? {
                found.push(entry);
            }
            both.push(found);
        }
        assert_eq!(both[0], both[1]);
        Ok(both.remove(0))
    }

    fn header(name: &str, kind: u8, size: &[u8]) -> [u8; 512] {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..124 + size.len()].copy_from_slice(size);
        header[156] = kind;
        header[257..265].copy_from_slice(b"ustar\x0000");
        seal(&mut header);
        header
    }

    fn seal(header: &mut [u8; 512]) {
        header[148..156].copy_from_slice(b"        ");
        let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    }

    #[test]
    fn archives_of_the_tar_crate_are_read() {
        let mut builder = tar::Builder::new(Vec::new());
        let long = format!("a/{}/file", "x".repeat(300));
        let sizes = [("./disk/a.img", 0usize), ("/b", 1), (long.as_str(), 512), ("c//d", 200_000)];
        for (name, size) in sizes {
            let mut header = tar::Header::new_gnu();
            header.set_size(size as u64);
            let name = name.trim_start_matches('/');
            builder.append_data(&mut header, name, &vec![7; size][..]).unwrap();
        }
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Directory);
        header.set_size(0);
        builder.append_data(&mut header, "disk/", io::empty()).unwrap();
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, "l", "disk").unwrap();
        let bytes = builder.into_inner().unwrap();
        let found = entries(&bytes).unwrap();
        let seen: Vec<_> = found.iter().map(|e| (e.path.as_str(), e.what, e.size)).collect();
        assert_eq!(
            seen,
            [
                ("disk/a.img", What::File, 0),
                ("b", What::File, 1),
                (long.as_str(), What::File, 512),
                ("c/d", What::File, 200_000),
                ("disk", What::Folder, 0),
                ("l", What::Link, 0)
            ]
        );
        let at = usize::try_from(found[3].offset).unwrap();
        assert!(bytes[at..at + 200_000].iter().all(|&byte| byte == 7));
    }

    #[test]
    fn pax_records_override_name_and_size() {
        let records = b"22 path=disk/from-pax\n9 size=3\n17 comment=a=b=c\n";
        let mut bytes = header("pax", b'x', format!("{:011o}", records.len()).as_bytes()).to_vec();
        bytes.extend_from_slice(records);
        bytes.resize(1024, 0);
        bytes.extend_from_slice(&header("short", b'0', b"00000000000"));
        bytes.extend_from_slice(b"abc");
        bytes.resize(2048, 0);
        bytes.extend_from_slice(&header("next", b'0', b"00000000000"));
        let found = entries(&bytes).unwrap();
        assert_eq!((found[0].path.as_str(), found[0].offset, found[0].size), ("disk/from-pax", 1536, 3));
        assert_eq!(found[1].path, "next");
        assert_eq!(Pax::parse(b"5 a=b"), None);
        assert_eq!(Pax::parse(b"6 a=b\n"), Some(Pax::default()));
        assert_eq!(Pax::parse(b"99999999999999999999 a=b\n"), None);
        assert!(Pax::parse(b"20 GNU.sparse.major=1\n").is_none());
        assert!(Pax::parse(b"22 GNU.sparse.major=1\n").unwrap().sparse);
    }

    #[test]
    fn numbers() {
        #[rustfmt::skip]
        let table: [(&[u8], Option<u64>); 9] = [
            (b"00000000017\0", Some(15)),
            (b"   17 \0", Some(15)),
            (b"\0\0\0\0", Some(0)),
            (b"+17", None),
            (b"18", None),
            (b"\x80\0\0\0\0\0\0\0\0\0\x01\0", Some(256)),
            (b"\x80\0\0\x01\0\0\0\0\0\0\0\0", None),
            (b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", None),
            (b"7777777777777777777777777", None),
        ];
        for (field, want) in table {
            assert_eq!(number(field), want, "{}", field.escape_ascii());
        }
    }

    #[test]
    fn names_stay_inside() {
        for (name, want) in [
            ("./disk/x", "disk/x"),
            ("/disk//x/", "disk/x"),
            ("../disk/x", ""),
            ("disk/../x", ""),
            ("./", ""),
        ] {
            assert_eq!(path(name.as_bytes()), want, "{name}");
        }
    }

    #[test]
    fn declared_lengths_are_bounded() {
        for (kind, size) in [(b'L', NAME_MAX + 1), (b'x', PAX_MAX + 1), (b'x', u64::MAX / 4)] {
            let mut binary = [0; 12];
            binary[0] = 0x80;
            binary[4..].copy_from_slice(&size.to_be_bytes());
            let error = entries(&header("x", kind, &binary)).unwrap_err();
            let (error, size) = (error.to_string(), format!("of {size} bytes"));
            assert!(error.contains("damaged") && error.contains(&size), "{error}");
        }
        let many = header("x", b'g', b"0").repeat(100);
        assert!(entries(&many).unwrap_err().to_string().contains("series of headers without a file"));
    }

    #[test]
    fn damage_is_an_error_and_never_a_panic() {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(3000);
        builder.append_data(&mut header, format!("disk/{}", "y".repeat(200)), &vec![1; 3000][..]).unwrap();
        let good = builder.into_inner().unwrap();
        for len in 0..good.len() {
            let cut = entries(&good[..len]);
            assert!(len % 512 == 0 || len >= good.len() - 1024 || cut.is_err(), "cut at {len}");
        }
        let mut state = 1u64;
        for _ in 0..3000 {
            let mut bytes = good.clone();
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = usize::try_from(state >> 33).unwrap() % bytes.len();
            bytes[at] ^= u8::try_from(state & 0xff).unwrap() | 1;
            drop(entries(&bytes));
        }
        assert!(entries(b"this is no archive").is_err());
        assert_eq!(entries(b"").unwrap(), []);
    }
}
