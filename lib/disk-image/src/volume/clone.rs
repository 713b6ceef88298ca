//! A raw disk from the same filesystem, shared or copied by the filesystem itself.
//! Not here: copying through this process, which `crate::transfer` does faster and sparser.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;

use crate::Stop;
use rustix::io::Errno;

/// Bytes asked of the filesystem at once.
const PIECE: usize = 64 << 20;

/// Filesystems whose copy_file_range does more than read and write: by their server, or by sharing blocks where
/// FICLONE is not offered. Magic numbers from linux/magic.h; ZFS from OpenZFS.
const COPIES_ITSELF: [u32; 5] = [0x6969, 0xff53_4d42, 0xfe53_4d42, 0x00c3_6400, 0x2fc1_2fc1];

/// How the bytes got there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    /// The files share blocks.
    Shared,
    /// The filesystem copied.
    Copied,
}

impl Method {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shared => "clone (FICLONE)",
            Self::Copied => "copy by the filesystem (copy_file_range)",
        }
    }
}

/// Makes the empty `target` hold what `source` holds, if the filesystem does that by itself; `None` if not, and then
/// `target` is empty as before.
///
/// # Errors
/// When it began and failed, or stopping was asked for.
pub(crate) fn clone(source: &File, target: &File, stop: &Stop) -> io::Result<Option<Method>> {
    let (from, to) = (source.metadata()?, target.metadata()?);
    if !from.is_file() || !to.is_file() || from.dev() != to.dev() || from.ino() == to.ino() {
        return Ok(None);
    }
    if rustix::fs::ioctl_ficlone(target, source).is_ok() {
        return Ok(Some(Method::Shared));
    }
    let kind = rustix::fs::fstatfs(target)?.f_type;
    if !COPIES_ITSELF.iter().any(|&magic| i64::from(magic) == kind) {
        return Ok(None);
    }
    let (mut read, mut written) = (0u64, 0u64);
    while written < from.len() {
        stop.check()?;
        match rustix::fs::copy_file_range(source, Some(&mut read), target, Some(&mut written), PIECE) {
            Ok(0) => {
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the source became shorter"));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) if written == 0 => return Ok(None),
            Err(e) => return Err(e.into()),
        }
    }
    Ok(Some(Method::Copied))
}
