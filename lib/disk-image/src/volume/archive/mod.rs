//! A tar archive, possibly in gz, xz or zstd, into a folder; and one file out of a tar stream.
//!
//! Names are kept inside the folder: a member that would lead out of it, or a device, ends the import before it is
//! touched. Owners are not restored, since the importer is unprivileged; modes and times are, as upstream's
//! `tar --preserve-permissions --no-same-owner` does. An interrupted import is repeated: members replace what stands
//! at their names.
//!
//! - [`crate::members`]: the tar stream. `folder`: names, links, modes.

use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use crate::members::{self, Members, What};
use crate::transfer::{self, Request, Spool};
use crate::{Source, Stop};

use crate::volume::config::{Config, Contract};
use crate::volume::error::{Error, Kind};
use crate::volume::folder_content::empty_folder;
use crate::volume::{Done, Session};

mod folder;

use folder::Folder;

/// Bytes moved at a time.
const PIECE: usize = 256 << 10;

/// Unpacks `source` into `folder`.
///
/// # Errors
/// When it is no archive, is damaged, or its files cannot be written.
pub(crate) fn unpack(
    source: Arc<dyn Source>,
    folder: &Path,
    config: &Config,
    session: &Session,
) -> Result<Done, Error> {
    let source_error = |e| Error::from(crate::Error::from_source("cannot read the archive", e));
    session.meter.expect_bytes(source.facts().size);
    let (compression, source) = transfer::unwrap(Request {
        source,
        format: None,
        limits: config.limits,
        progress: session.meter.transfer.clone(),
        spool: Spool::default(),
    })?;
    let format = compression.map_or("tar".to_owned(), |compression| format!("tar.{}", compression.name()));
    std::fs::create_dir_all(folder)
        .map_err(|e| Error::with(Kind::Target, format!("cannot make the folder {}", folder.display()), e))?;
    let reader = source.open(0..u64::MAX).map_err(source_error)?;
    let opened = Folder::open(folder)
        .map_err(|e| Error::with(Kind::Target, format!("cannot open the folder {}", folder.display()), e))?;
    let (written, opened) = extract(reader, opened, &session.stop)?;
    rustix::fs::syncfs(opened)
        .map_err(|e| Error::from(crate::Error::target("syncing the unpacked files to disk", e.into())))?;
    Ok(Done { bytes_written: written, bytes_read: session.meter.transfer.read(), format, ..Done::default() })
}

/// Unpacks every member; gives the bytes of files, and the folder.
fn extract(reader: Box<dyn Read + Send>, mut folder: Folder, stop: &Stop) -> Result<(u64, dir::Dir), Error> {
    let mut members = Members::new(reader);
    let mut piece = vec![0; PIECE];
    let (mut written, mut any) = (0u64, false);
    while let Some(member) = members.next().map_err(unread)? {
        stop.check()?;
        any = true;
        let Some(file) = folder.place(&member)? else { continue };
        for range in &member.data {
            let mut at = range.start;
            while at < range.end {
                stop.check()?;
                let len = piece.len().min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
                members.read_exact(&mut piece[..len]).map_err(unread)?;
                file.write_all_at(&piece[..len], at).map_err(|e| unwritten(&member.name, e))?;
                at += len as u64;
                written += len as u64;
            }
        }
        Folder::complete(&file, &member)?;
    }
    if !any {
        return Err(Error::new(
            Kind::Refused,
            "the content is not a tar archive, or an empty one; an archive may be compressed with gzip, xz or zstd",
        ));
    }
    members.drain(|| stop.check()).map_err(unread)?;
    Ok((written, folder.finish()?))
}

/// An error of the archive's reader, in words that need no others.
fn unread(error: crate::Error) -> Error {
    match error.kind() == crate::Kind::Corrupt || error.kind() == crate::Kind::Refused {
        true => Error::new(Kind::Refused, error.to_string()),
        false => error.into(),
    }
}

/// The filesystem's error for a member.
fn unwritten(name: &[u8], error: io::Error) -> Error {
    let error = crate::Error::target(format!("unpacking {}", members::escaped(name)), error);
    if matches!(error.kind(), crate::Kind::Target) {
        Error::with(Kind::Process, "the archive's files cannot be written", error)
    } else {
        error.into()
    }
}

/// Removes what was unpacked: all of a volume of the contract, nothing of a person's folder.
///
/// # Errors
/// When it cannot be removed.
pub(crate) fn empty(folder: &Path, contract: Contract) -> Result<(), Error> {
    match contract {
        Contract::Environment => empty_folder(folder)
            .map_err(|e| Error::with(Kind::Process, format!("cannot empty {}", folder.display()), e)),
        Contract::CommandLine => {
            tracing::warn!(
                "the files unpacked into {} stay, but the archive does not match its checksum: remove them",
                folder.display()
            );
            Ok(())
        }
    }
}

/// A file in a tar stream, as bytes; holes are zeroes. What follows it in the archive is read too: only then is it known
/// whether the stream was whole.
pub struct Member {
    members: Members<Box<dyn Read + Send>>,
    data: std::vec::IntoIter<Range<u64>>,
    /// The range that is read, or comes after the hole that is.
    now: Range<u64>,
    at: u64,
    size: u64,
}

impl Member {
    /// The first file of the archive in `stream` with `part` in its name.
    ///
    /// # Errors
    /// When there is none, or the archive is damaged.
    pub fn find(stream: Box<dyn Read + Send>, part: &str) -> Result<Self, Error> {
        let mut members = Members::new(stream);
        while let Some(member) = members.next().map_err(unread)? {
            let named = member.name.windows(part.len()).any(|name| name == part.as_bytes());
            if member.what == What::File && named {
                let size = member.size;
                return Ok(Self { members, data: member.data.into_iter(), now: 0..0, at: 0, size });
            }
        }
        Err(Error::new(Kind::Refused, format!("the archive holds no file {part}")))
    }

    /// Length of the file.
    pub fn size(&self) -> u64 {
        self.size
    }
}

impl std::fmt::Debug for Member {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Member").field("size", &self.size).field("at", &self.at).finish_non_exhaustive()
    }
}

impl Read for Member {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if self.at == self.size {
            self.members.drain(|| Ok(())).map_err(unread)?;
            return Ok(0);
        }
        while self.now.end <= self.at {
            self.now = self.data.next().unwrap_or(self.size..u64::MAX);
        }
        let (end, hole) = match self.at < self.now.start {
            true => (self.now.start.min(self.size), true),
            false => (self.now.end.min(self.size), false),
        };
        let len = buf.len().min(usize::try_from(end - self.at).unwrap_or(usize::MAX));
        match hole {
            true => buf[..len].fill(0),
            false => self.members.read_exact(&mut buf[..len]).map_err(unread)?,
        }
        self.at += len as u64;
        Ok(len)
    }
}
