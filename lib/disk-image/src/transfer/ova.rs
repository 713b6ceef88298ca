//! An OVA with one disk: a tar archive that begins with an OVF descriptor. Its disk becomes a source of its own: a range of the
//! archive where ranges can be read, else the stream from the disk on.
//!
//! Source: DMTF DSP0243 (OVF 1.1 and 2.1): the descriptor comes first; `References` name files, `DiskSection` the disks in them.
//! The disk's format and size are those of its own header. Not here: other tar archives (`volume::archive`), the rest of a
//! descriptor (hardware, networks), the checksums of a manifest.
//!
//! ```text
//!  vm.ovf │ vm.mf │ disk.vmdk ······· │ other files
//!  File id ◄─ fileRef Disk      └─ Source
//! ```

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Kind};
use crate::members::{Members, What, escaped};
use crate::source::{Access, Facts, Once, Source, read_full, read_range};

/// Longest descriptor, in bytes; those of a VM have some KiB.
const DESCRIPTOR_MAX: u64 = 1 << 20;
/// Most files in front of the disk.
const FILES_MAX: usize = 1000;
/// Bytes of an archive that are read at once where it has ranges.
const WINDOW: u64 = 64 << 10;
/// Most names in a message.
const NAMES_MAX: usize = 8;

/// Whether an archive that begins with `head` is an OVA: its first file is a descriptor.
pub(super) fn begins(head: &[u8]) -> bool {
    let first = Members::new(head).next();
    first.is_ok_and(|member| {
        member.is_some_and(|member| member.what == What::File && is_descriptor(&member.name))
    })
}

fn is_descriptor(name: &[u8]) -> bool {
    name.last_chunk().is_some_and(|end: &[u8; 4]| end.eq_ignore_ascii_case(b".ovf"))
}

/// The disk of an OVA.
pub(super) struct Disk {
    /// Its name in the archive.
    pub(super) name: String,
    pub(super) source: Arc<dyn Source>,
}

/// Looks for the one disk of the OVA in `source`. A stream that is read once is consumed up to the disk.
///
/// # Errors
/// [`Kind::Refused`] when there is no such disk, or several; [`Kind::Corrupt`] when the archive is damaged.
pub(super) fn disk(source: &Arc<dyn Source>) -> Result<Disk, Error> {
    let facts = source.facts();
    let input = match facts.access {
        Access::Ranges => Input::Ranges(Window { source: source.clone(), at: 0, held: Vec::new(), from: 0 }),
        Access::Blocks(_) | Access::Again | Access::Once => {
            let stream = source.open(0..u64::MAX);
            Input::Stream(stream.map_err(|e| Error::from_source("cannot read the OVA", e))?, 0)
        }
    };
    let mut members = Members::new(input);
    let mut wanted = None;
    for _ in 0..FILES_MAX {
        let Some(member) = members.next()? else { break };
        let Some(disk) = &wanted else {
            wanted = Some(one_disk(&mut members, member.size)?);
            continue;
        };
        let name = member.name.strip_prefix(b"./").unwrap_or(&member.name);
        if member.what != What::File || !named(disk, name) {
            let (input, rest) = members.leave();
            input.skip(rest)?;
            continue;
        }
        let name = escaped(name);
        let whole = 0..member.size;
        if member.data != [whole.clone()] {
            return Err(Error::refused(format!(
                "the disk {name} is stored in the OVA as a sparse or empty file; unpack it (tar -xf) and import the disk"
            )));
        }
        let (input, _) = members.leave();
        let start = input.at();
        let Some(end) = start.checked_add(whole.end) else {
            return Err(Error::corrupt(format!("the disk {name} of the OVA has an impossible length")));
        };
        if let Some(size) = facts.size
            && end > size
        {
            return Err(Error::corrupt(format!(
                "the OVA is truncated: it ends at byte {size}, and its disk {name} at {end}"
            )));
        }
        let source: Arc<dyn Source> = match (facts.access, members.into_input()) {
            (Access::Once, Input::Stream(rest, _)) => {
                let part = Part { inner: rest, left: whole.end, drain: true };
                Arc::new(Once::new("the disk of an OVA", Some(whole.end), Box::new(part)))
            }
            _ => Arc::new(Inside { archive: source.clone(), range: start..end }),
        };
        return Ok(Disk { name, source });
    }
    Err(Error::refused(match wanted {
        Some(disk) => format!("the OVA names the disk {}, and holds no such file", escaped(disk.as_bytes())),
        None => "the OVA holds no descriptor".to_owned(),
    }))
}

/// The name of the one disk by the descriptor of `size` bytes that `members` is at.
fn one_disk(members: &mut Members<Input>, size: u64) -> Result<String, Error> {
    if size > DESCRIPTOR_MAX {
        return Err(Error::refused(format!(
            "the OVA's descriptor has {size} bytes, and {DESCRIPTOR_MAX} are the most that are read"
        )));
    }
    let mut text = vec![0; usize::try_from(size).unwrap_or(0)];
    members.read_exact(&mut text)?;
    let mut disks = disks(&String::from_utf8_lossy(&text))?;
    match disks.len() {
        0 => Err(Error::refused(
            "the OVA's descriptor names no disk with a file; unpack it (tar -xf) to see its content",
        )),
        1 => Ok(disks.remove(0)),
        all => {
            let names: Vec<_> = disks.iter().take(NAMES_MAX).map(|name| escaped(name.as_bytes())).collect();
            let more = if all > NAMES_MAX { ", …" } else { "" };
            Err(Error::refused(format!(
                "the OVA holds {all} disks ({}{more}), and one volume takes one; unpack it (tar -xf) and import each \
                 disk into a volume of its own",
                names.join(", ")
            )))
        }
    }
}

/// Whether the file `name` of the archive is the one that the descriptor calls `href`.
fn named(href: &str, name: &[u8]) -> bool {
    href.as_bytes() == name || unescaped(href) == name
}

/// A reference without its percent signs (RFC 3986, 2.1).
fn unescaped(href: &str) -> Vec<u8> {
    let bytes = href.as_bytes();
    let (mut out, mut at) = (Vec::new(), 0);
    while let Some(&byte) = bytes.get(at) {
        let digits =
            bytes.get(at + 1..at + 3).filter(|_| byte == b'%').and_then(|two| str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(value) => {
                out.push(value);
                at += 3;
            }
            None => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

/// The files of all disks that a descriptor names, each once, in their order.
fn disks(descriptor: &str) -> Result<Vec<String>, Error> {
    let (mut files, mut wanted, mut seen) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
    for tag in Tags(descriptor) {
        let Tag { name, attributes } = tag?;
        let get = |key: &str| attributes.iter().find(|(name, _)| *name == key).map(|(_, value)| &**value);
        if name == "File"
            && let (Some(id), Some(href)) = (get("id"), get("href"))
        {
            let pieces = get("chunkSize").is_some();
            files.entry(id.to_owned()).or_insert_with(|| (href.to_owned(), pieces));
        } else if name == "Disk"
            && let Some(file) = get("fileRef")
            && seen.insert(file.to_owned())
        {
            wanted.push(file.to_owned());
        }
    }
    let file = |id: String| match files.get(&id) {
        Some((href, false)) => Ok(href.strip_prefix("./").unwrap_or(href).to_owned()),
        Some((href, true)) => Err(Error::refused(format!(
            "the OVA's disk {} is cut into several files; join them and import the result",
            escaped(href.as_bytes())
        ))),
        None => Err(Error::corrupt(format!("the OVA's descriptor names no file {}", escaped(id.as_bytes())))),
    };
    wanted.into_iter().map(file).collect()
}

/// A start tag: its local name, and its attributes by their local names.
struct Tag<'a> {
    name: &'a str,
    attributes: Vec<(&'a str, Cow<'a, str>)>,
}

/// The start tags of an XML document, as much of it as a descriptor takes. Comments, processing instructions and CDATA are
/// skipped; a document type, which could define entities, is refused.
struct Tags<'a>(&'a str);

impl<'a> Iterator for Tags<'a> {
    type Item = Result<Tag<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (_, rest) = self.0.split_once('<')?;
            let skipped = [("!--", "-->"), ("![CDATA[", "]]>"), ("?", "?>"), ("/", ">")];
            let skipped = skipped.iter().find_map(|(start, end)| Some((rest.strip_prefix(start)?, end)));
            if let Some((inside, end)) = skipped {
                self.0 = inside.split_once(end).map_or("", |(_, behind)| behind);
                continue;
            }
            let tag = if rest.starts_with('!') { None } else { start_tag(rest) };
            self.0 = tag.as_ref().map_or("", |(_, behind)| behind);
            return Some(tag.map(|(tag, _)| tag).ok_or_else(|| {
                Error::corrupt("the OVA's descriptor is not XML of the kind that descriptors are made of")
            }));
        }
    }
}

/// The tag that begins behind a `<`, and what follows it.
fn start_tag(text: &str) -> Option<(Tag<'_>, &str)> {
    let end = text.find(|c: char| c.is_ascii_whitespace() || c == '/' || c == '>')?;
    let (name, mut rest) = text.split_at(end);
    let mut attributes = Vec::new();
    loop {
        rest = rest.trim_ascii_start();
        if let Some(behind) = rest.strip_prefix('>').or_else(|| rest.strip_prefix("/>")) {
            return Some((Tag { name: local(name), attributes }, behind));
        }
        let (key, value) = rest.split_once('=')?;
        let value = value.trim_ascii_start();
        let quote = value.chars().next().filter(|quote| *quote == '"' || *quote == '\'')?;
        let (value, behind) = value[1..].split_once(quote)?;
        attributes.push((local(key.trim_ascii_end()), plain(value)));
        rest = behind;
    }
}

/// A name without its namespace.
fn local(name: &str) -> &str {
    name.rsplit(':').next().unwrap_or(name)
}

/// A value with XML's own entities replaced.
fn plain(value: &str) -> Cow<'_, str> {
    if !value.contains('&') {
        return Cow::Borrowed(value);
    }
    let table = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    Cow::Owned(table.iter().fold(value.to_owned(), |value, (entity, plain)| value.replace(entity, plain)))
}

/// An archive while its headers are read.
enum Input {
    Ranges(Window),
    /// A stream, and how much of it is read.
    Stream(Box<dyn Read + Send>, u64),
}

/// A source with ranges, a piece at a time.
struct Window {
    source: Arc<dyn Source>,
    /// Offset of the next byte.
    at: u64,
    /// The piece that is held, and its offset.
    held: Vec<u8>,
    from: u64,
}

impl Input {
    /// Offset of the next byte.
    fn at(&self) -> u64 {
        match self {
            Self::Ranges(window) => window.at,
            Self::Stream(_, at) => *at,
        }
    }

    /// Moves forward by `bytes`.
    fn skip(&mut self, bytes: u64) -> Result<(), Error> {
        let at = self.at().saturating_add(bytes);
        let end = match self {
            Self::Ranges(window) => {
                window.at = at;
                window.source.facts().size.unwrap_or(u64::MAX)
            }
            Self::Stream(..) => {
                let skipped = io::copy(&mut self.take(bytes), &mut io::sink());
                skipped.map_err(|e| Error::from_source("cannot read the OVA", e))?;
                self.at()
            }
        };
        if end < at {
            return Err(Error::corrupt(format!(
                "the OVA is truncated: it ends at byte {end}, within a file"
            )));
        }
        Ok(())
    }
}

impl Read for Input {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Ranges(window) => window.read(buf),
            Self::Stream(stream, at) => {
                let got = stream.read(buf)?;
                *at += got as u64;
                Ok(got)
            }
        }
    }
}

impl Read for Window {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let held = |window: &Self| {
            let from = window.at.checked_sub(window.from).and_then(|from| usize::try_from(from).ok());
            from.filter(|from| *from < window.held.len())
        };
        let from = match held(self) {
            Some(from) => from,
            None => {
                let end = self.source.facts().size.unwrap_or(u64::MAX).min(self.at.saturating_add(WINDOW));
                let len = usize::try_from(end.saturating_sub(self.at)).unwrap_or(0);
                if len == 0 {
                    return Ok(0);
                }
                self.held = read_range(&*self.source, self.at, len)?;
                self.from = self.at;
                0
            }
        };
        let got = (&self.held[from..]).read(buf)?;
        self.at += got as u64;
        Ok(got)
    }
}

/// A file of an archive that can be read more than once.
struct Inside {
    archive: Arc<dyn Source>,
    range: Range<u64>,
}

impl Source for Inside {
    fn facts(&self) -> Facts {
        let access = match self.archive.facts().access {
            Access::Ranges => Access::Ranges,
            Access::Blocks(_) | Access::Again | Access::Once => Access::Again,
        };
        Facts { size: Some(self.range.end - self.range.start), access }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let within = |at: u64| self.range.start.saturating_add(at).min(self.range.end);
        let place = within(range.start)..within(range.end);
        if self.facts().access == Access::Ranges {
            return self.archive.open(place);
        }
        let mut inner = self.archive.open(0..u64::MAX)?;
        io::copy(&mut (&mut inner).take(place.start), &mut io::sink())?;
        Ok(Box::new(Part { inner, left: place.end - place.start, drain: place.end == self.range.end }))
    }

    fn connections(&self) -> usize {
        self.archive.connections()
    }

    fn part_size(&self) -> u64 {
        self.archive.part_size()
    }
}

/// The next `left` bytes of a stream. Behind the disk the archive is read to its end: only then is it known whether the stream
/// was whole.
struct Part {
    inner: Box<dyn Read + Send>,
    left: u64,
    drain: bool,
}

impl Read for Part {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 && std::mem::take(&mut self.drain) {
            let mut scratch = [0; 16 << 10];
            while read_full(&mut *self.inner, &mut scratch)? > 0 {}
        }
        let want = buf.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let got = self.inner.read(&mut buf[..want])?;
        if got == 0 {
            let what = format!("the OVA is truncated: {} bytes of its disk are missing", self.left);
            return Err(Error::new(Kind::Source, what).into());
        }
        self.left -= got as u64;
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As VirtualBox and ovftool write it.
    const OVF: &str = r#"<?xml version="1.0"?>
<!-- <Disk ovf:fileRef="no"/> -->
<Envelope ovf:version="1.0" xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">
  <References><File ovf:href="my%20disk&amp;1.vmdk" ovf:id="file1" ovf:size='7'/>
    <ovf:File ovf:id="nvram" ovf:href="vm.nvram"></ovf:File></References>
  <DiskSection><Info>a &gt; b <![CDATA[<Disk fileRef="no"/>]]></Info>
    <Disk ovf:capacity="1" ovf:diskId="vmdisk1" ovf:fileRef = "file1" ovf:format="a>b"/>
    <Disk ovf:capacity="1" ovf:diskId="empty"/>
  </DiskSection>
</Envelope>"#;

    #[test]
    fn a_descriptor_names_the_files_of_its_disks() {
        assert_eq!(disks(OVF).unwrap(), ["my%20disk&1.vmdk"]);
        assert!(named("my%20disk&1.vmdk", b"my disk&1.vmdk") && named("a%2", b"a%2") && !named("a", b"b"));
        let two = OVF.replace(r#"ovf:diskId="empty""#, r#"ovf:fileRef='nvram'"#);
        assert_eq!(disks(&two).unwrap(), ["my%20disk&1.vmdk", "vm.nvram"]);
        let twice = OVF.replace(r#"ovf:diskId="empty""#, r#"ovf:fileRef='file1'"#);
        assert_eq!(disks(&twice).unwrap().len(), 1);
        assert!(disks("").unwrap().is_empty() && disks("<a><Disk/></a>").unwrap().is_empty());
    }

    #[test]
    fn damaged_descriptors_are_refused() {
        for (what, text) in [
            ("a file that is missing", "<Disk fileRef='a'/>"),
            ("a document type", "<!DOCTYPE a [<!ENTITY b 'c'>]><Disk fileRef='a'/>"),
            ("no end", "<Disk fileRef='a"),
            ("no quotes", "<Disk fileRef=a/>"),
            ("no value", "<Disk fileRef/>"),
            ("nothing", "<"),
        ] {
            assert!(disks(text).is_err(), "{what}");
        }
        let pieces = "<File id='a' href='b' chunkSize='7'/><Disk fileRef='a'/>";
        assert_eq!(disks(pieces).unwrap_err().kind(), Kind::Refused);
        for end in 0..OVF.len() {
            drop(disks(&OVF[..end]));
        }
    }
}
