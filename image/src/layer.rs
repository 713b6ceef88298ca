//! A layer: files, folders and links as a gzip-compressed tar.
//!
//! The same input gives the same bytes: members are sorted, owned by root unless an owner is given, and all of one time.
//! Follows the OCI image specification 1.1, `layer.md`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};

/// The modification time of every member that is made here, in seconds since 1970: 2025-01-01.
pub const EPOCH: u64 = 1_735_689_600;

/// Type of a member.
#[derive(Clone, Debug)]
pub enum Member {
    /// A folder.
    Folder {
        /// Permissions.
        mode: u32,
    },
    /// A file with the content of one on this machine.
    File {
        /// Where the content is read.
        from: PathBuf,
        /// Permissions.
        mode: u32,
    },
    /// A file with this content.
    Text {
        /// The content.
        content: String,
        /// Permissions.
        mode: u32,
    },
    /// A symbolic link.
    Link {
        /// Its target.
        to: String,
    },
}

/// A compressed layer, in a file.
#[derive(Clone, Debug)]
pub struct Layer {
    /// The compressed tar.
    pub file: PathBuf,
    /// SHA-256 of the compressed tar, hexadecimal.
    pub digest: String,
    /// SHA-256 of the tar before compression, hexadecimal.
    pub diff_id: String,
    /// Bytes of the compressed tar.
    pub size: u64,
}

/// Packs `members`, named by their path without a leading slash, into `file`.
///
/// # Errors
/// When a file cannot be read or the layer cannot be written.
pub fn pack(members: &BTreeMap<String, Member>, file: &Path) -> Result<Layer> {
    compress(file, |layer| {
        let mut tar = tar::Builder::new(layer);
        tar.mode(tar::HeaderMode::Deterministic);
        for (name, member) in members {
            append(&mut tar, name, member).with_context(|| format!("cannot pack {name}"))?;
        }
        tar.finish()?;
        Ok(())
    })
}

/// Compresses a tar that exists into `file`.
///
/// # Errors
/// When it cannot be read or the layer cannot be written.
pub fn from_tar(mut tar: impl Read, file: &Path) -> Result<Layer> {
    compress(file, |layer| {
        io::copy(&mut tar, layer)?;
        Ok(())
    })
}

fn append(tar: &mut tar::Builder<&mut dyn Write>, name: &str, member: &Member) -> Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_mtime(EPOCH);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(0);
    match member {
        Member::Folder { mode } => {
            header.set_entry_type(tar::EntryType::Directory);
            header.set_mode(*mode);
            tar.append_data(&mut header, name, io::empty())?;
        }
        Member::File { from, mode } => {
            let content = File::open(from).with_context(|| format!("cannot open {}", from.display()))?;
            header.set_size(content.metadata()?.len());
            header.set_mode(*mode);
            tar.append_data(&mut header, name, content)?;
        }
        Member::Text { content, mode } => {
            header.set_size(u64::try_from(content.len())?);
            header.set_mode(*mode);
            tar.append_data(&mut header, name, content.as_bytes())?;
        }
        Member::Link { to } => {
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_mode(0o777);
            tar.append_link(&mut header, name, to)?;
        }
    }
    Ok(())
}

/// Hashes what goes into the compressor and what comes out of it.
fn compress(file: &Path, fill: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<Layer> {
    let created = File::create(file).with_context(|| format!("cannot create {}", file.display()))?;
    let compressed = Hashed::new(io::BufWriter::new(created));
    let mut tar = Hashed::new(GzEncoder::new(compressed, Compression::new(6)));
    fill(&mut tar)?;
    let (diff_id, _, compressor) = tar.end();
    let (digest, size, mut written) = compressor.finish()?.end();
    written.flush()?;
    Ok(Layer { file: file.to_owned(), digest, diff_id, size })
}

/// Counts and hashes what passes.
struct Hashed<W> {
    inner: W,
    hash: Sha256,
    size: u64,
}

impl<W> Hashed<W> {
    fn new(inner: W) -> Self {
        Self { inner, hash: Sha256::new(), size: 0 }
    }

    fn end(self) -> (String, u64, W) {
        (hex(&self.hash.finalize()), self.size, self.inner)
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The SHA-256 of `bytes`, hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
