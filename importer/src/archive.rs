//! A tar archive, possibly in gz, xz or zstd, into a folder. Not here: disks.
//!
//! Names are kept inside the folder (the `tar` crate leaves out what climbs out of it, links included); owners are
//! not restored, since the importer is nobody special; modes are.

use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use disk_image::transfer::{self, Request};
use disk_image::{Source, Stop};

use crate::apply::{self, Session};
use crate::config::{Config, Contract};
use crate::error::{Error, Kind};
use crate::report::Done;

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
    let source_error = |e| Error::from(disk_image::Error::from_source("cannot read the archive", e));
    session.meter.expect_bytes(source.facts().size);
    let (compression, source) = transfer::unwrap(Request {
        source,
        format: None,
        limits: apply::transfer_limits(&config.limits, u64::MAX),
        progress: session.meter.transfer.clone(),
    })?;
    let format = compression.map_or("tar".to_owned(), |compression| format!("tar.{}", compression.name()));
    std::fs::create_dir_all(folder)
        .map_err(|e| Error::with(Kind::Target, format!("cannot make the folder {}", folder.display()), e))?;
    let reader = source.open(0..u64::MAX).map_err(source_error)?;
    let written = extract(reader, folder, &session.stop)?;
    rustix::fs::open(
        folder,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY,
        rustix::fs::Mode::empty(),
    )
    .and_then(rustix::fs::syncfs)
    .map_err(|e| Error::from(disk_image::Error::target("syncing the files", e.into())))?;
    Ok(Done { bytes_written: written, bytes_read: session.meter.transfer.read(), format, ..Done::default() })
}

/// Unpacks every entry; gives the bytes of files.
fn extract(reader: Box<dyn Read + Send>, folder: &Path, stop: &Stop) -> Result<u64, Error> {
    let mut archive = tar::Archive::new(reader);
    archive.set_preserve_permissions(true);
    archive.set_preserve_ownerships(false);
    archive.set_overwrite(true);
    let damaged = |e| Error::from(disk_image::Error::from_source("the archive cannot be read", e));
    let (mut written, mut entries) = (0u64, 0u64);
    for entry in archive.entries().map_err(damaged)? {
        stop.check()?;
        let mut entry = entry.map_err(damaged)?;
        let name = entry.path().map_err(damaged)?.into_owned();
        let size = entry.size();
        let unpacked = entry.unpack_in(folder).map_err(|e| {
            Error::from(disk_image::Error::target(format!("unpacking {}", name.display()), e))
        })?;
        if unpacked {
            written = written.saturating_add(size);
            entries += 1;
        } else {
            tracing::warn!(name = %name.display(), "left out: its name is not inside the folder");
        }
    }
    if entries == 0 {
        return Err(Error::new(Kind::Refused, "the content is no tar archive, or an empty one"));
    }
    Ok(written)
}

/// Removes what was unpacked: all of a volume of the contract, nothing of a person's folder.
///
/// # Errors
/// When it cannot be removed.
pub(crate) fn empty(folder: &Path, contract: Contract) -> Result<(), Error> {
    match contract {
        Contract::Environment => apply::empty_folder(folder)
            .map_err(|e| Error::with(Kind::Process, format!("cannot empty {}", folder.display()), e)),
        Contract::CommandLine => {
            tracing::warn!(
                "what was unpacked into {} is not what the checksum vouches for",
                folder.display()
            );
            Ok(())
        }
    }
}
