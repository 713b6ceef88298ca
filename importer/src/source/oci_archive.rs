//! `oci-archive:` sources: a tar of an OCI image layout in a local file.
//!
//! The file is looked through once for where its blobs lie; layers are then read from there in place. Source: OCI
//! image-spec 1.1, "image-layout". What `docker save` writes since version 25 is such a layout, too. Not here: which
//! file of the image is the disk (`layer`), and archives that are compressed as a whole, which have no places to read
//! from.

use std::collections::HashMap;
use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use disk_image::{Access, Compression, Detected, Facts, FileSource, Source, Stop, detect, source};

use super::layer::{self, Blobs, Disk};
use super::manifest::{self, DOCUMENT_MAX, Descriptor, Platform};
use super::tar_stream::{TarStream, What};
use crate::error::{Error, Kind};

/// The file that a layout is entered by.
const INDEX: &str = "index.json";
/// Blobs of an archive that are remembered.
const FILES_MAX: usize = 100_000;
/// Longest path of a blob: that of a sha512 digest, with room.
const PATH_MAX: usize = 200;

/// Archive and options.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file, and the image's name in it after a colon if it holds several: `/a/b.tar:v1`.
    pub archive: PathBuf,
    /// "architecture", "os/architecture" or "os/architecture/variant"; this machine's if `None`.
    pub platform: Option<String>,
    /// Largest window a compressed layer may declare, in bytes.
    pub window: u64,
}

impl Options {
    /// The defaults for `archive`.
    pub fn new(archive: impl Into<PathBuf>) -> Self {
        Self { archive: archive.into(), platform: None, window: 128 << 20 }
    }
}

/// Opens the disk of an image in an archive.
///
/// # Errors
/// [`Kind::Connect`] when the file cannot be read, [`Kind::Refused`] when it is no such archive or holds no disk,
/// [`Kind::Digest`] when a document does not match its digest.
pub fn open(options: &Options, stop: &Stop) -> Result<Disk, Error> {
    let (path, name) = split(&options.archive);
    let shown = format!("oci-archive:{}", path.display());
    let failed = |error: Error| Error::with(error.kind(), format!("failed to pull image {shown}"), error);
    let archive = Archive::open(&path, stop).map_err(failed)?;
    find(&archive, name.as_deref(), options, stop).map_err(failed)
}

fn find(archive: &Archive, name: Option<&str>, options: &Options, stop: &Stop) -> Result<Disk, Error> {
    let platform = Platform::parse(options.platform.as_deref())?;
    let index = archive.file(INDEX).ok_or_else(|| {
        Error::new(
            Kind::Refused,
            "the archive has no index.json: it is no OCI layout (write it with skopeo copy … oci-archive:FILE, or docker 25)",
        )
    })?;
    let chosen = manifest::in_layout(&archive.bytes(&index)?, name, &platform)?;
    let image = manifest::resolve(&archive.document(&chosen)?, &platform, |d| archive.document(d))?;
    let requested = options.platform.is_some().then_some(&platform);
    layer::find(&image, requested, archive, &layer::limits(options.window), stop)
}

/// The path in what was named, which may have an image's name behind it.
pub(crate) fn path(archive: &Path) -> PathBuf {
    split(archive).0
}

/// Path and name; a path that exists is all path, whatever colons it has.
fn split(archive: &Path) -> (PathBuf, Option<String>) {
    let text = archive.to_string_lossy();
    match text.split_once(':') {
        Some((path, name)) if !archive.exists() => {
            (PathBuf::from(path), Some(name.to_owned()).filter(|name| !name.is_empty()))
        }
        Some(_) | None => (archive.to_owned(), None),
    }
}

/// An archive with an index of its files.
struct Archive {
    source: Arc<dyn Source>,
    files: HashMap<String, Range<u64>>,
}

impl Archive {
    fn open(path: &Path, stop: &Stop) -> Result<Self, Error> {
        let failed = |e| Error::connect(format!("cannot open {}", path.display()), e);
        let source: Arc<dyn Source> = Arc::new(FileSource::open_path(path).map_err(failed)?);
        let mut head = vec![0; disk_image::detect::HEAD];
        let mut reader = source.open(0..u64::MAX).map_err(failed)?;
        let got = source::read_full(&mut *reader, &mut head).map_err(failed)?;
        if let Detected::Compressed(compression) = detect(&head[..got]) {
            let tool = match compression {
                Compression::Gz => "gunzip",
                Compression::Xz => "unxz",
                Compression::Zst => "unzstd",
            };
            let what = format!("the archive is compressed as a whole; unpack it with {tool} first");
            return Err(Error::new(Kind::Refused, what));
        }
        let damaged = |e| Error::with(Kind::Refused, "the archive cannot be read", e);
        let mut tar = TarStream::open(&source).map_err(damaged)?;
        let mut files = HashMap::new();
        while let Some(entry) = tar.next().map_err(damaged)? {
            stop.check()?;
            let wanted = entry.path == INDEX || entry.path.starts_with("blobs/");
            if entry.what != What::File || !wanted || entry.path.len() > PATH_MAX {
                continue;
            }
            if files.len() >= FILES_MAX {
                return Err(Error::new(
                    Kind::Refused,
                    format!("the archive has more than {FILES_MAX} blobs"),
                ));
            }
            let range = entry.offset..entry.end();
            files.insert(entry.path, range);
        }
        Ok(Self { source, files })
    }

    fn file(&self, name: &str) -> Option<Range<u64>> {
        self.files.get(name).cloned()
    }

    fn place(&self, descriptor: &Descriptor) -> Result<Range<u64>, Error> {
        let Descriptor { digest, size } = descriptor;
        let place = self
            .file(&format!("blobs/{}", digest.replacen(':', "/", 1)))
            .ok_or_else(|| Error::new(Kind::Connect, format!("the archive lacks the blob {digest}")))?;
        let found = place.end - place.start;
        if found != *size {
            let what = format!("the blob {digest} has {found} bytes, but its manifest declares {size}");
            return Err(Error::new(Kind::Digest, what));
        }
        Ok(place)
    }

    fn bytes(&self, place: &Range<u64>) -> Result<Vec<u8>, Error> {
        let len = place.end - place.start;
        let len = usize::try_from(len).ok().filter(|_| len <= DOCUMENT_MAX).ok_or_else(|| {
            Error::new(Kind::Refused, format!("a document of {len} bytes is longer than {DOCUMENT_MAX}"))
        })?;
        source::read_range(&*self.source, place.start, len)
            .map_err(|e| Error::connect("cannot read the archive", e))
    }
}

impl fmt::Debug for Archive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archive").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl Blobs for Archive {
    fn blob(&self, descriptor: &Descriptor) -> Result<Arc<dyn Source>, Error> {
        let place = self.place(descriptor)?;
        Ok(Arc::new(Window { source: self.source.clone(), place }))
    }

    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>, Error> {
        let bytes = self.bytes(&self.place(descriptor)?)?;
        descriptor.check(&bytes)?;
        Ok(bytes)
    }
}

/// A part of a file.
struct Window {
    source: Arc<dyn Source>,
    place: Range<u64>,
}

impl Source for Window {
    fn facts(&self) -> Facts {
        Facts { size: Some(self.place.end - self.place.start), access: Access::Ranges }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let at = |offset: u64| self.place.start.saturating_add(offset).min(self.place.end);
        self.source.open(at(range.start)..at(range.end))
    }
}
