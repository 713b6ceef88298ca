//! A tar stream, member by member: ustar, GNU and PAX headers, sparse files, every length bounded before memory is
//! taken for it. Follows POSIX.1-2017 `pax` and the GNU tar manual ("Basic Tar Format", "Storing Sparse Files").
//!
//! The `tar` crate decodes the fields of headers; its own iterator keeps names and sparse maps of any length.
//!
//! Not here: where members go (`volume::archive`), and what of them is allowed.

use std::io::{self, Read};
use std::ops::Range;

use tar::Header;

use crate::error::{Error, Kind};

const BLOCK: usize = 512;
/// Longest name or link. Linux takes 4095 bytes in one call.
const NAME_MAX: u64 = 64 << 10;
/// Longest PAX header.
const PAX_MAX: u64 = 1 << 20;
/// Most data ranges of a sparse file: 16 MiB of memory.
const MAP_MAX: usize = 1 << 20;
/// Headers in a row that describe a member that does not come.
const HEADERS_MAX: usize = 64;

/// Type of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum What {
    File,
    Folder,
    /// To this target, whatever it is.
    Symlink(Vec<u8>),
    /// To the member of this name.
    HardLink(Vec<u8>),
    Fifo,
    /// A character or block device.
    Device,
}

/// A member, its data aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    /// Its name as it stands in the archive, without trailing slashes.
    pub(crate) name: Vec<u8>,
    pub(crate) what: What,
    /// Permission bits, setuid, setgid and sticky included.
    pub(crate) mode: u32,
    /// Seconds since 1970, and nanoseconds.
    pub(crate) modified: (i64, u32),
    /// Length of the file.
    pub(crate) size: u64,
    /// Where the data goes that follows in the stream, in ascending order; the rest is a hole.
    pub(crate) data: Vec<Range<u64>>,
}

/// Reads members.
pub(crate) struct Members<R> {
    input: R,
    /// Bytes of the member's data that were not read yet, and the padding behind them.
    left: u64,
    padding: u64,
    /// PAX records that hold for all members that follow.
    global: Pax,
    /// Name of the last member.
    last: Option<Vec<u8>>,
    ended: bool,
}

fn damaged(what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("the archive is damaged, fetch or make it again: {what}"))
}

fn truncated() -> Error {
    Error::corrupt("the archive is truncated: it ends within a member; fetch it again")
}

/// The end of a stream between two members, `last` the one before. GNU tar takes it for the archive's end; a sender that
/// failed there would leave files out.
fn unmarked(last: &[u8]) -> Error {
    let what = format!(
        "the archive is truncated: it ends behind {} without an end mark (a block of zeroes), so files may be missing; check that its writer has succeeded, and make or fetch it again",
        escaped(last)
    );
    Error::corrupt(what)
}

fn unreadable(error: io::Error) -> Error {
    Error::from_source("the archive cannot be read", error)
}

/// A name for messages, escaped and shortened.
pub(crate) fn escaped(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().take(200).collect::<String>().escape_debug().to_string()
}

impl<R: Read> Members<R> {
    pub(crate) fn new(input: R) -> Self {
        Self { input, left: 0, padding: 0, global: Pax::default(), last: None, ended: false }
    }

    /// The next member; what was not read of the last one is skipped. `None` at the end of the archive.
    ///
    /// # Errors
    /// When it cannot be read or is damaged.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, Error> {
        let (mut name, mut link, mut pax) = (None, None, Pax::default());
        for headers in 0..HEADERS_MAX {
            let Some(header) = self.header()? else {
                return if headers == 0 { Ok(None) } else { Err(truncated()) };
            };
            match header.entry_type().as_byte() {
                b'L' => name = Some(until_nul(self.text(NAME_MAX)?)),
                b'K' => link = Some(until_nul(self.text(NAME_MAX)?)),
                b'x' => pax = Pax::parse(&self.text(PAX_MAX)?)?,
                b'g' => self.global = Pax::parse(&self.text(PAX_MAX)?)?,
                // The name of the archive itself.
                b'V' => self.skip_member()?,
                _ => return self.member(&header, name, link.as_deref(), &pax).map(Some),
            }
        }
        Err(damaged("its last header describes a member that is missing"))
    }

    /// The next header; `None` at the end. Sets what is left of its data.
    fn header(&mut self) -> Result<Option<Header>, Error> {
        self.skip_member()?;
        if self.ended {
            return Ok(None);
        }
        let mut header = Header::new_old();
        let block = header.as_mut_bytes();
        let got = crate::source::read_full(&mut self.input, block).map_err(unreadable)?;
        if got == 0
            && let Some(last) = &self.last
        {
            return Err(unmarked(last));
        }
        if got == 0 || block.iter().all(|&byte| byte == 0) {
            self.ended = true;
            return if got == 0 || got == BLOCK { Ok(None) } else { Err(truncated()) };
        }
        if got < BLOCK {
            return Err(truncated());
        }
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(at, &b)| u32::from(if (148..156).contains(&at) { b' ' } else { b }))
            .sum();
        if header.cksum().ok() != Some(sum) {
            return Err(damaged("the checksum of a header is wrong, or the content is not a tar archive"));
        }
        let size = header.entry_size().map_err(|_| damaged("a member's size is no number"))?;
        self.expect(size);
        Ok(Some(header))
    }

    /// The input, as far as it is read.
    pub(crate) fn into_input(self) -> R {
        self.input
    }

    /// Leaves the rest of the current member out: gives the input, which the caller moves forward by so many bytes.
    pub(crate) fn leave(&mut self) -> (&mut R, u64) {
        let rest = self.left + self.padding;
        (self.left, self.padding) = (0, 0);
        (&mut self.input, rest)
    }

    fn expect(&mut self, size: u64) {
        self.left = size;
        self.padding = size.wrapping_neg() % BLOCK as u64;
    }

    fn skip_member(&mut self) -> Result<(), Error> {
        let mut scratch = [0; 16 << 10];
        while self.left > 0 || self.padding > 0 {
            let left = if self.left > 0 { &mut self.left } else { &mut self.padding };
            let want = scratch.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
            match self.input.read(&mut scratch[..want]) {
                Ok(0) => return Err(truncated()),
                Ok(n) => *left -= n as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(unreadable(e)),
            }
        }
        Ok(())
    }

    /// All data of a member that describes another one.
    fn text(&mut self, longest: u64) -> Result<Vec<u8>, Error> {
        if self.left > longest {
            return Err(damaged(format!("it has a name or header of {} bytes", self.left)));
        }
        let mut text = vec![0; usize::try_from(self.left).unwrap_or(0)];
        self.read_exact(&mut text)?;
        Ok(text)
    }

    /// Reads data of the current member.
    ///
    /// # Errors
    /// When the archive ends before `out` is full.
    pub(crate) fn read_exact(&mut self, out: &mut [u8]) -> Result<(), Error> {
        if out.len() as u64 > self.left {
            return Err(damaged("a member is longer than its data"));
        }
        let got = crate::source::read_full(&mut self.input, out).map_err(unreadable)?;
        self.left -= got as u64;
        if got < out.len() { Err(truncated()) } else { Ok(()) }
    }

    /// Reads the members that are left, and what follows the end of the archive: only then is it known whether the stream
    /// was whole.
    ///
    /// # Errors
    /// When it cannot be read, is damaged or has no end.
    pub(crate) fn drain(&mut self, mut check: impl FnMut() -> Result<(), Error>) -> Result<(), Error> {
        while self.next()?.is_some() {
            check()?;
        }
        let mut scratch = [0; 16 << 10];
        while crate::source::read_full(&mut self.input, &mut scratch).map_err(unreadable)? > 0 {
            check()?;
        }
        Ok(())
    }

    fn member(
        &mut self,
        header: &Header,
        long_name: Option<Vec<u8>>,
        long_link: Option<&[u8]>,
        pax: &Pax,
    ) -> Result<Member, Error> {
        if let Some(size) = pax.number("size")? {
            self.expect(size);
        }
        if header.entry_type().is_hard_link() {
            // Some writers repeat the size of the file there; no data follows (as GNU tar has it).
            self.expect(0);
        }
        let get = |key: &str| pax.get(key).or_else(|| self.global.get(key));
        let sparse = get("GNU.sparse.name").map(<[u8]>::to_vec);
        let mut name = sparse
            .or(long_name)
            .or_else(|| get("path").map(<[u8]>::to_vec))
            .unwrap_or_else(|| header.path_bytes().into_owned());
        let link = || -> Result<Vec<u8>, Error> {
            let link = long_link
                .or_else(|| get("linkpath"))
                .map(<[u8]>::to_vec)
                .or_else(|| header.link_name_bytes().map(std::borrow::Cow::into_owned));
            link.filter(|link| !link.is_empty()).ok_or_else(|| damaged("a link without a target"))
        };
        let slash = name.ends_with(b"/");
        while name.len() > 1 && name.ends_with(b"/") {
            name.pop();
        }
        self.last = Some(name.clone());
        let what = match header.entry_type().as_byte() {
            b'1' => What::HardLink(link()?),
            b'2' => What::Symlink(link()?),
            b'3' | b'4' => What::Device,
            b'5' | b'D' => What::Folder,
            b'6' => What::Fifo,
            b'M' => {
                return Err(Error::new(
                    Kind::Refused,
                    "the archive is one volume of several; join them into one archive first",
                ));
            }
            // Before there was a type for folders.
            0 | b'0' if slash => What::Folder,
            // Unknown types are files (POSIX).
            _ => What::File,
        };
        let mode =
            header.mode().map_err(|_| damaged(format!("the mode of {} is no number", escaped(&name))))?;
        let modified = match get("mtime") {
            Some(text) => moment(text).ok_or_else(|| damaged("a time is no number"))?,
            None => (i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0), 0),
        };
        let (size, data) = match what {
            What::File => self.layout(header, pax)?,
            What::Folder | What::Symlink(_) | What::HardLink(_) | What::Fifo | What::Device => {
                (0, Vec::new())
            }
        };
        Ok(Member { name, what, mode: mode & 0o7777, modified, size, data })
    }

    /// Length of a file and where its data goes.
    fn layout(&mut self, header: &Header, pax: &Pax) -> Result<(u64, Vec<Range<u64>>), Error> {
        let mut map = Map::default();
        let size = if header.entry_type().is_gnu_sparse() {
            self.old_map(header, &mut map)?
        } else if pax.get("GNU.sparse.major") == Some(b"1") {
            self.map_in_data(&mut map)?;
            pax.number("GNU.sparse.realsize")?.ok_or_else(|| damaged("a sparse file without a size"))?
        } else if let Some(size) = pax.number("GNU.sparse.size")? {
            pax.map(&mut map)?;
            size
        } else {
            map.add(0, self.left)?;
            self.left
        };
        if map.bytes != self.left || map.end > size {
            return Err(damaged("the map of a sparse file does not fit its data"));
        }
        Ok((size, map.ranges))
    }

    /// The map of GNU tar's own format: four ranges in the header, the others in blocks behind it.
    fn old_map(&mut self, header: &Header, map: &mut Map) -> Result<u64, Error> {
        let failed = |_| damaged("the map of a sparse file is invalid");
        let gnu =
            header.as_gnu().ok_or_else(|| damaged("a sparse file with a header that is not GNU tar's"))?;
        let add = |map: &mut Map, entry: &tar::GnuSparseHeader| {
            if entry.is_empty() {
                return Ok(());
            }
            map.add(entry.offset().map_err(failed)?, entry.length().map_err(failed)?)
        };
        for entry in &gnu.sparse {
            add(map, entry)?;
        }
        let mut more = gnu.is_extended();
        while more {
            let mut block = tar::GnuExtSparseHeader::new();
            let got = crate::source::read_full(&mut self.input, block.as_mut_bytes()).map_err(unreadable)?;
            if got < BLOCK {
                return Err(truncated());
            }
            for entry in block.sparse() {
                add(map, entry)?;
            }
            // A chain of blocks without content has no end of its own.
            map.blocks += 1;
            if map.blocks > MAP_MAX {
                return Err(too_scattered());
            }
            more = block.is_extended();
        }
        gnu.real_size().map_err(failed)
    }

    /// The map of PAX format 1.0: decimal lines before the data, filled up to a block.
    fn map_in_data(&mut self, map: &mut Map) -> Result<(), Error> {
        let mut block = [0; BLOCK];
        let (mut at, mut number) = (BLOCK, None);
        let mut next = |members: &mut Self| -> Result<u64, Error> {
            loop {
                if at == BLOCK {
                    members.read_exact(&mut block)?;
                    at = 0;
                }
                let byte = block[at];
                at += 1;
                match (byte, number) {
                    (b'\n', Some(value)) => {
                        number = None;
                        return Ok(value);
                    }
                    (b'0'..=b'9', value) => {
                        let value: Option<u64> = value.unwrap_or(0_u64).checked_mul(10);
                        number = value.and_then(|value| value.checked_add(u64::from(byte - b'0')));
                        if number.is_none() {
                            return Err(damaged("the map of a sparse file holds too large a number"));
                        }
                    }
                    _ => return Err(damaged("the map of a sparse file holds something other than numbers")),
                }
            }
        };
        let entries = next(self)?;
        for _ in 0..entries {
            let (offset, len) = (next(self)?, next(self)?);
            map.add(offset, len)?;
        }
        Ok(())
    }
}

fn too_scattered() -> Error {
    Error::new(Kind::Refused, format!("a sparse file of the archive has more than {MAP_MAX} parts"))
}

/// Data ranges of a file.
#[derive(Default)]
struct Map {
    ranges: Vec<Range<u64>>,
    bytes: u64,
    end: u64,
    blocks: usize,
}

impl Map {
    fn add(&mut self, offset: u64, len: u64) -> Result<(), Error> {
        let end = offset.checked_add(len).filter(|_| offset >= self.end);
        let Some(end) = end else {
            return Err(damaged("the map of a sparse file is out of order"));
        };
        if self.ranges.len() >= MAP_MAX {
            return Err(too_scattered());
        }
        if len > 0 {
            self.ranges.push(offset..end);
        }
        self.end = end;
        // The ranges do not overlap, so that the sum is at most the end.
        self.bytes += len;
        Ok(())
    }
}

/// Up to the first NUL, which ends a name that was written by a C program.
fn until_nul(mut text: Vec<u8>) -> Vec<u8> {
    if let Some(end) = text.iter().position(|&byte| byte == 0) {
        text.truncate(end);
    }
    text
}

/// Seconds and nanoseconds of "1350244992.023960108"; negative ones are before 1970.
fn moment(text: &[u8]) -> Option<(i64, u32)> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !part.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let nanos: u32 = format!("{part:0<9}").get(..9)?.parse().ok()?;
    match (whole.starts_with('-'), nanos) {
        (true, 1..) => Some((seconds.checked_sub(1)?, 1_000_000_000 - nanos)),
        _ => Some((seconds, nanos)),
    }
}

/// Records of a PAX header, in their order.
#[derive(Default)]
struct Pax(Vec<(Vec<u8>, Vec<u8>)>);

impl Pax {
    /// Parses "LENGTH KEY=VALUE\n" records; a value may hold any byte.
    fn parse(mut text: &[u8]) -> Result<Self, Error> {
        let broken = || damaged("a PAX header is invalid");
        let mut records = Vec::new();
        while !text.is_empty() && text[0] != 0 {
            let digits = text.iter().position(|&b| b == b' ').ok_or_else(broken)?;
            let len: usize = std::str::from_utf8(&text[..digits])
                .ok()
                .and_then(|len| len.parse().ok())
                .ok_or_else(broken)?;
            let record = text.get(digits + 1..len).and_then(|r| r.strip_suffix(b"\n")).ok_or_else(broken)?;
            let equals = record.iter().position(|&b| b == b'=').ok_or_else(broken)?;
            records.push((record[..equals].to_vec(), record[equals + 1..].to_vec()));
            text = &text[len..];
        }
        Ok(Self(records))
    }

    /// The value of `key`; the last one counts, and an empty one takes an earlier one back.
    fn get(&self, key: &str) -> Option<&[u8]> {
        let found = self.0.iter().rev().find(|(name, _)| name == key.as_bytes());
        found.map(|(_, value)| value.as_slice()).filter(|value| !value.is_empty())
    }

    fn number(&self, key: &str) -> Result<Option<u64>, Error> {
        let Some(value) = self.get(key) else { return Ok(None) };
        number(value).map(Some).ok_or_else(|| damaged(format!("{key} in a PAX header is no number")))
    }

    /// The map of formats 0.0 (pairs of records) and 0.1 (one list).
    fn map(&self, map: &mut Map) -> Result<(), Error> {
        let broken = || damaged("the map of a sparse file is invalid");
        if let Some(list) = self.get("GNU.sparse.map") {
            let numbers: Option<Vec<u64>> = list.split(|&b| b == b',').map(number).collect();
            for pair in numbers.ok_or_else(broken)?.chunks(2) {
                let &[offset, len] = pair else { return Err(broken()) };
                map.add(offset, len)?;
            }
            return Ok(());
        }
        let mut offset = None;
        for (key, value) in &self.0 {
            match key.as_slice() {
                b"GNU.sparse.offset" => offset = Some(number(value).ok_or_else(broken)?),
                b"GNU.sparse.numbytes" => {
                    let offset = offset.take().ok_or_else(broken)?;
                    map.add(offset, number(value).ok_or_else(broken)?)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        for (text, expected) in [
            ("0", Some((0, 0))),
            ("1350244992.023960108", Some((1_350_244_992, 23_960_108))),
            ("12.5", Some((12, 500_000_000))),
            ("12.0000000019", Some((12, 1))),
            ("-1.25", Some((-2, 750_000_000))),
            ("-3", Some((-3, 0))),
            ("x", None),
            ("1.x", None),
            ("1.é", None),
        ] {
            assert_eq!(moment(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn pax_records() {
        let pax = Pax::parse(b"12 path=a\nb\n9 size=7\n9 size=8\n7 uid=\n\0\0").unwrap();
        assert_eq!(pax.get("path"), Some(&b"a\nb"[..]));
        assert_eq!(pax.number("size").unwrap(), Some(8));
        assert_eq!(pax.get("uid"), None);
        for bad in [
            "1",
            "5 a",
            "99999 a=b\n",
            "4 =\n",
            "6 a=bc",
            "0 a=b\n",
            "18446744073709551616 a=b\n",
            "-3 a=b\n",
            "3 a\n",
        ] {
            let parsed = Pax::parse(bad.as_bytes());
            assert!(parsed.is_err() || bad == "4 =\n", "{bad:?}");
        }
    }

    #[test]
    fn maps_are_in_order() {
        let mut map = Map::default();
        map.add(0, 5).unwrap();
        map.add(5, 0).unwrap();
        map.add(10, 5).unwrap();
        assert_eq!((map.bytes, map.end, map.ranges.len()), (10, 15, 2));
        assert!(map.add(14, 1).is_err());
        assert!(map.add(15, u64::MAX).is_err());
    }
}
