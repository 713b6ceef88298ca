//! A volume as a stream: a tar archive of its files, holes as such, or a device's bytes, in snappy's framing format. A
//! block of zeroes is always the same few bytes there: it is neither compressed nor hashed again. Not here: the
//! stream's receiver.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use api::upload::CloneOf;
use dir::Dir;
use rustix::fs::{OFlags, SeekFrom, readlinkat, seek};
use snap::write::FrameEncoder;

/// Bytes that a frame holds at most, by the format.
const BLOCK: usize = 64 << 10;
/// Bytes that are read of a device at once.
const READ: usize = 1 << 20;
/// Bytes of a member's head in an archive.
const HEAD: u64 = 512;
/// The directory that mkfs.ext4 makes at the top, for root alone.
const LEFT_OUT: &str = "lost+found";

/// The sent volume.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) kind: CloneOf,
    /// The device, or the folder.
    pub(crate) path: PathBuf,
}

impl Volume {
    /// Bytes before compression, as far as they are known beforehand.
    ///
    /// # Errors
    /// When it cannot be looked at.
    pub(crate) fn size(&self) -> io::Result<u64> {
        match self.kind {
            CloneOf::Device => Ok(seek(File::open(&self.path)?, SeekFrom::End(0))?),
            CloneOf::Filesystem => {
                let mut sum = 0;
                walk(&Dir::open(&self.path)?, Path::new(""), &mut |found| {
                    sum += HEAD + if found.facts.is_file() { found.facts.blocks() * 512 } else { 0 };
                    Ok(())
                })?;
                Ok(sum)
            }
        }
    }

    /// Writes the stream, counting bytes before compression.
    ///
    /// # Errors
    /// When the volume cannot be read, or `to` takes no more.
    pub(crate) fn write<W: Write>(&self, to: W, counted: &Arc<AtomicU64>) -> io::Result<W> {
        let mut frames = Frames::new(to, counted.clone())?;
        match self.kind {
            CloneOf::Device => {
                let mut device = File::open(&self.path)?;
                let mut buffer = vec![0; READ];
                loop {
                    match device.read(&mut buffer)? {
                        0 => break,
                        got => frames.write_all(buffer.get(..got).unwrap_or_default())?,
                    }
                }
            }
            CloneOf::Filesystem => frames = self.archive(frames)?,
        }
        frames.finish()
    }

    fn archive<W: Write>(&self, frames: Frames<W>) -> io::Result<Frames<W>> {
        let mut archive = tar::Builder::new(frames);
        let mut empty = true;
        walk(&Dir::open(&self.path)?, Path::new(""), &mut |found| {
            let kind = found.facts.file_type();
            if kind.is_socket() {
                tracing::debug!(member = %found.member.display(), "a socket is not copied");
                return Ok(());
            }
            empty = false;
            if kind.is_file() {
                let file = found.dir.file(found.name, OFlags::RDONLY)?;
                // One that was removed since is not part of the clone.
                return file.map_or(Ok(()), |mut file| archive.append_file(found.member, &mut file));
            }
            let mut header = tar::Header::new_gnu();
            header.set_metadata(&found.facts);
            header.set_size(0);
            if kind.is_symlink() {
                let target = readlinkat(found.dir, found.name, Vec::new())?.into_bytes();
                let target = <OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(&target);
                archive.append_link(&mut header, found.member, target)
            } else {
                archive.append_data(&mut header, found.member, io::empty())
            }
        })?;
        // An archive without a member is refused as one that is no archive.
        if empty {
            let mut header = tar::Header::new_gnu();
            header.set_metadata(&std::fs::metadata(&self.path)?);
            header.set_size(0);
            archive.append_data(&mut header, "./", io::empty())?;
        }
        archive.into_inner()
    }
}

/// A member of a volume.
struct Member<'a> {
    /// The directory that holds it, open: a change of the directories above leads nowhere else.
    dir: &'a Dir,
    /// Its name there.
    name: &'a OsStr,
    /// Its path in the volume.
    member: &'a Path,
    /// Its kind; links are not followed.
    facts: Metadata,
}

/// Everything below `dir`, which is `path` of the volume, directories before what is in them, in the order of their names.
fn walk(dir: &Dir, path: &Path, visit: &mut dyn FnMut(&Member<'_>) -> io::Result<()>) -> io::Result<()> {
    let mut names = dir.names()?;
    names.sort();
    for name in &names {
        let member = path.join(name);
        if member == Path::new(LEFT_OUT) {
            continue;
        }
        let Some(handle) = dir.handle(name)? else { continue };
        let facts = File::from(handle).metadata()?;
        let below = if facts.is_dir() { dir.dir(name)? } else { None };
        let failed = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", member.display()));
        visit(&Member { dir, name, member: &member, facts }).map_err(failed)?;
        if let Some(below) = below {
            walk(&below, &member, visit)?;
        }
    }
    Ok(())
}

/// Snappy's frames.
struct Frames<W: Write> {
    encoder: FrameEncoder<W>,
    block: Vec<u8>,
    /// A block of zeroes, and its frame.
    zeroes: Vec<u8>,
    frame_of_zeroes: Vec<u8>,
    counted: Arc<AtomicU64>,
}

impl<W: Write> Frames<W> {
    fn new(to: W, counted: Arc<AtomicU64>) -> io::Result<Self> {
        let zeroes = vec![0; BLOCK];
        let mut encoder = FrameEncoder::new(Vec::new());
        encoder.write_all(&zeroes)?;
        // It begins with the mark of a stream, which may stand before any frame.
        let frame_of_zeroes = encoder.into_inner().map_err(|error| io::Error::other(error.to_string()))?;
        let block = Vec::with_capacity(BLOCK);
        Ok(Self { encoder: FrameEncoder::new(to), block, zeroes, frame_of_zeroes, counted })
    }

    /// Writes what is there as one frame.
    fn put(&mut self) -> io::Result<()> {
        if self.block == self.zeroes {
            // The encoder holds nothing back: what it was given was flushed.
            self.encoder.get_mut().write_all(&self.frame_of_zeroes)?;
        } else {
            self.encoder.write_all(&self.block)?;
            self.encoder.flush()?;
        }
        self.counted.fetch_add(self.block.len() as u64, Ordering::Relaxed);
        self.block.clear();
        Ok(())
    }

    fn finish(mut self) -> io::Result<W> {
        self.put()?;
        self.encoder.into_inner().map_err(|error| io::Error::other(error.to_string()))
    }
}

impl<W: Write> Write for Frames<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(BLOCK - self.block.len());
        self.block.extend_from_slice(bytes.get(..taken).unwrap_or_default());
        if self.block.len() == BLOCK {
            self.put()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::FileExt;

    use super::*;

    fn unpacked(stream: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        snap::read::FrameDecoder::new(stream).read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn frames_read_back_and_zeroes_are_small() {
        let zeroes = |len: usize| vec![0; len];
        let noise: Vec<u8> =
            (0..200_000u32).flat_map(|n| n.wrapping_mul(0x9e37_79b1).to_le_bytes()).collect();
        for bytes in [
            Vec::new(),
            zeroes(1),
            zeroes(BLOCK),
            zeroes(3 * BLOCK + 5),
            [zeroes(BLOCK), noise.clone(), zeroes(5 * BLOCK), noise.clone()].concat(),
            [noise.clone(), zeroes(BLOCK - 1)].concat(),
        ] {
            let counted = Arc::new(AtomicU64::new(0));
            let mut frames = Frames::new(Vec::new(), counted.clone()).unwrap();
            for piece in bytes.chunks(70_001) {
                frames.write_all(piece).unwrap();
            }
            let stream = frames.finish().unwrap();
            assert!(unpacked(&stream) == bytes, "{} bytes", bytes.len());
            assert_eq!(counted.load(Ordering::Relaxed), bytes.len() as u64);
        }
        let mut frames = Frames::new(Vec::new(), Arc::default()).unwrap();
        frames.write_all(&zeroes(16 << 20)).unwrap();
        let stream = frames.finish().unwrap();
        assert!(stream.len() < 1 << 20, "{} bytes", stream.len());
    }

    #[test]
    fn holes_are_not_in_the_archive_nor_what_is_not_the_volumes() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let disk = File::create(at("disk.img")).unwrap();
        disk.set_len(1 << 30).unwrap();
        disk.write_all_at(b"data", 512 << 20).unwrap();
        fs::create_dir(at("lost+found")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("folder/file"), "text").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let volume = Volume { kind: CloneOf::Filesystem, path: folder.path().to_owned() };
        assert!(volume.size().unwrap() < 1 << 20);
        let counted = Arc::new(AtomicU64::new(0));
        let archive = unpacked(&volume.write(Vec::new(), &counted).unwrap());
        assert!(archive.len() < 1 << 20, "{} bytes", archive.len());
        let mut archive = tar::Archive::new(&archive[..]);
        let members: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|member| {
                let member = member.unwrap();
                (member.path().unwrap().to_str().unwrap().to_owned(), member.size())
            })
            .collect();
        let names: Vec<&str> = members.iter().map(|(name, _)| name.trim_end_matches('/')).collect();
        assert_eq!(names, ["disk.img", "folder", "folder/file", "link"]);
        assert_eq!(members[0].1, 1 << 30);
    }

    #[test]
    fn links_are_archived_as_links_and_never_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", folder.path().join("sub")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", folder.path().join("file")).unwrap();
        let mut found = Vec::new();
        walk(&Dir::open(folder.path()).unwrap(), Path::new(""), &mut |one| {
            assert!(one.facts.is_symlink() && one.dir.file(one.name, OFlags::RDONLY).is_err());
            found.push(one.member.to_owned());
            Ok(())
        })
        .unwrap();
        assert_eq!(found, [Path::new("file"), Path::new("sub")]);
    }
}
