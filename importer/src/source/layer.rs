//! The disk inside a container image's layers: which layer holds it, and its bytes as a [`Source`].
//!
//! A disk is the one file in the folder `disk` of the image, as a container would see it. Layers are searched from the last
//! one down: the first that holds a file there has the disk, unless a later layer's whiteout hides it (OCI image-spec,
//! "Layers"). Another file in that folder, in whichever layer, makes the image refused: the choice would be ambiguous. The
//! stock importer takes the first layer from below instead and knows no whiteouts; for images with one such layer, which is
//! all that tools make, both are the same.
//!
//! Layers above and below the disk's are looked through before anything is written; what follows the disk in its own
//! layer is seen when the disk has been read.
//!
//! ```text
//!  blob ──► hash (Checked) ──► gz, zstd, none (by magic) ──► tar entries ──► disk/… ──► transfer
//!                                                               └─ behind it: another disk/… ? ─► error
//! ```
//!
//! The digest holds for the whole blob and there may be one file only, so both are known at the blob's end: the disk is good
//! once [`Disk::verify`] succeeds. Not here: the origin of blobs (`registry`, `oci_archive`).

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use disk_image::transfer::{self, Progress, Request, Spool};
use disk_image::{Access, Facts, Source, Stop, compress};

use super::manifest::{self, Descriptor, Image, Platform};
use super::tar_stream::{Entry, TarStream, What};
use crate::error::{Error, Kind};
use disk_image::volume::Checked;

/// The folder of an image that holds the disk.
const FOLDER: &str = "disk";
/// Prefix of the name of a file that hides another one.
const WHITEOUT: &str = ".wh.";
/// The whiteout that hides all of a folder.
const OPAQUE: &str = ".wh..wh..opq";
/// Names in the folder that are remembered.
const NAMES_MAX: usize = 4096;

/// Where blobs come from.
pub(crate) trait Blobs {
    /// The blob's bytes, read again or by ranges, not verified.
    ///
    /// # Errors
    /// When it is not there.
    fn blob(&self, descriptor: &Descriptor) -> Result<Arc<dyn Source>, Error>;

    /// A short blob, verified.
    ///
    /// # Errors
    /// When it is not there, does not match its digest, or is long.
    fn document(&self, descriptor: &Descriptor) -> Result<Vec<u8>, Error>;
}

/// Bounds for unpacking layers with compressors that declare at most `window` bytes.
pub(crate) fn limits(window: u64) -> transfer::Limits {
    transfer::Limits {
        windows: compress::Limits { window, windows: window.max(128 << 20) },
        ..transfer::Limits::default()
    }
}

/// Looks for the disk in `image`, which must be for the `requested` platform, if any. The index that lists the image decides
/// that, otherwise the image's configuration: published indexes hold images whose configuration names the builder's
/// architecture, and container runtimes run them.
///
/// # Errors
/// [`Kind::Refused`] when there is none, it is no plain file, or the image is for another platform, [`Kind::Digest`] for a
/// layer that does not match its digest, otherwise the error of fetching or reading.
pub(crate) fn find(
    image: &Image,
    requested: Option<&Platform>,
    blobs: &dyn Blobs,
    limits: &transfer::Limits,
    stop: &Stop,
) -> Result<Disk, Error> {
    if let (Some(platform), Some(config), false) = (requested, &image.config, image.listed) {
        manifest::is_for(&blobs.document(config)?, platform)?;
    }
    let environment = environment(image, blobs)?;
    let mut hidden = Hidden::default();
    let mut layers = &image.layers[..];
    while let Some((descriptor, lower)) = layers.split_last().filter(|_| !hidden.all) {
        layers = lower;
        let layer = Layer::open_blob(descriptor, blobs, limits, stop)?;
        let mut hides = Hidden::default();
        let Some((tar, member)) = layer.first(&hidden, &mut hides, stop)? else {
            hidden.add(hides)?;
            continue;
        };
        plain(&member)?;
        tracing::info!(layer = descriptor.digest, file = member.path, size = member.size, "found the disk");
        let mut parked = Some(tar);
        hides.learn(&member)?;
        let mut above = hidden.clone();
        above.add(hides.clone())?;
        if any_below(lower, above, blobs, limits, stop)?.is_some() {
            // Later entries of the disk's layer may hide it.
            let rest = layer.rest(&hidden, &member, parked.take(), stop)?;
            let mut above = hidden.clone();
            above.add(hides)?;
            above.add(rest)?;
            if let Some(other) = any_below(lower, above, blobs, limits, stop)? {
                return Err(several(&member, &other));
            }
        }
        let parked = Mutex::new(parked);
        return Ok(Disk(Arc::new(Inner { layer, member, hidden, environment, parked })));
    }
    Err(Error::new(
        Kind::Refused,
        "Failed to find VM disk image file in the container image: it has no file in /disk",
    ))
}

/// A file in the folder in one of the layers `lower`, lowest first, that nothing above hides.
fn any_below(
    lower: &[Descriptor],
    mut hidden: Hidden,
    blobs: &dyn Blobs,
    limits: &transfer::Limits,
    stop: &Stop,
) -> Result<Option<Entry>, Error> {
    for descriptor in lower.iter().rev() {
        if hidden.all {
            break;
        }
        let layer = Layer::open_blob(descriptor, blobs, limits, stop)?;
        let mut hides = Hidden::default();
        if let Some((_, entry)) = layer.first(&hidden, &mut hides, stop)? {
            return Ok(Some(entry));
        }
        hidden.add(hides)?;
    }
    Ok(None)
}

fn several(one: &Entry, other: &Entry) -> Error {
    let what = format!("image directory contains more than one file: {} and {}", one.path, other.path);
    Error::new(Kind::Refused, what)
}

/// The image's environment. The disk can be imported without.
fn environment(image: &Image, blobs: &dyn Blobs) -> Result<Vec<String>, Error> {
    let Some(config) = &image.config else { return Ok(Vec::new()) };
    match blobs.document(config).and_then(|bytes| manifest::environment(&bytes)) {
        Err(error) if error.kind() != Kind::Stopped => {
            let error = crate::error::chain(&error);
            tracing::warn!(error, "the image's environment is not known; no labels come of it");
            Ok(Vec::new())
        }
        other => other,
    }
}

/// Refuses what stands where the disk should.
fn plain(entry: &Entry) -> Result<(), Error> {
    let path = &entry.path;
    let refuse = |why: String| Err(Error::new(Kind::Refused, why));
    if path.matches('/').count() > 1 {
        return refuse(format!(
            "image directory contains another directory: {path}; the disk must lie in /disk"
        ));
    }
    match entry.what {
        What::File => Ok(()),
        What::Link => refuse(format!("{path} is a link; the image must hold the disk itself")),
        What::Sparse => refuse(format!("{path} is stored as a sparse file; build the image without that")),
        What::Folder | What::Other => {
            refuse(format!("{path} is not a regular file; the image must hold the disk itself"))
        }
    }
}

/// Entries in earlier layers' disk directories that later layers hide.
#[derive(Clone, Debug, Default)]
struct Hidden {
    /// Names of which nothing below shows.
    names: BTreeSet<String>,
    /// Folders: files of their names below do not show, folders do.
    folders: BTreeSet<String>,
    all: bool,
}

impl Hidden {
    /// Whether `entry` is a file in the folder that a container would see; folders do not count.
    fn counts(&self, entry: &Entry) -> bool {
        let Some(name) = inside(&entry.path) else { return false };
        let last = name.rsplit('/').next().unwrap_or(name);
        let first = name.split('/').next().unwrap_or(name);
        let seen = match entry.what {
            What::File | What::Sparse | What::Link => true,
            What::Folder | What::Other => false,
        };
        let replaced = name == first && self.folders.contains(name);
        seen && !last.starts_with(WHITEOUT) && !self.names.contains(first) && !replaced
    }

    /// Takes note of what `entry` hides in layers below its own.
    fn learn(&mut self, entry: &Entry) -> Result<(), Error> {
        let path = entry.path.as_str();
        // The folder itself is replaced by a file, removed, or made opaque; or all of the root is.
        self.all |= path == FOLDER && entry.what != What::Folder;
        self.all |= path == OPAQUE || path.strip_prefix(WHITEOUT) == Some(FOLDER);
        match inside(path) {
            Some(OPAQUE) => self.all = true,
            Some(name) if !name.contains('/') => {
                if let Some(hides) = name.strip_prefix(WHITEOUT) {
                    self.names.insert(hides.to_owned());
                } else if entry.what == What::Folder {
                    self.folders.insert(name.to_owned());
                } else {
                    self.names.insert(name.to_owned());
                }
            }
            Some(_) | None => {}
        }
        self.bounded()
    }

    fn add(&mut self, more: Self) -> Result<(), Error> {
        self.all |= more.all;
        self.names.extend(more.names);
        self.folders.extend(more.folders);
        self.bounded()
    }

    fn bounded(&self) -> Result<(), Error> {
        if self.names.len() + self.folders.len() > NAMES_MAX {
            return Err(Error::new(
                Kind::Refused,
                "the image's layers name too many files in /disk; the image must hold one disk there",
            ));
        }
        Ok(())
    }
}

/// The part of `path` below the folder.
fn inside(path: &str) -> Option<&str> {
    path.strip_prefix(FOLDER)?.strip_prefix('/')
}

/// A layer's blob, hashed and unpacked.
struct Layer {
    digest: String,
    checked: Arc<Checked>,
    unpacked: Arc<dyn Source>,
}

impl Layer {
    fn open(
        descriptor: &Descriptor,
        blob: Arc<dyn Source>,
        limits: &transfer::Limits,
    ) -> Result<Self, Error> {
        let digest = descriptor.digest.clone();
        let checked = Arc::new(Checked::new(blob, descriptor.checksum()?));
        // By magic: media types are often wrong about the compression. Bytes are counted where the disk is read.
        let (_, unpacked) = transfer::unwrap(Request {
            source: checked.clone(),
            format: None,
            limits: *limits,
            progress: Progress::new(),
            spool: Spool::default(),
        })?;
        Ok(Self { digest, checked, unpacked })
    }

    /// Opens the layer of `descriptor`, to be searched.
    fn open_blob(
        descriptor: &Descriptor,
        blobs: &dyn Blobs,
        limits: &transfer::Limits,
        stop: &Stop,
    ) -> Result<Self, Error> {
        stop.check()?;
        tracing::debug!(layer = descriptor.digest, size = descriptor.size, "looking for the disk");
        Self::open(descriptor, blobs.blob(descriptor)?, limits)
    }

    /// The first file in the folder that `hidden` does not hide, and the layer where it begins; else the layer is read
    /// to its end and verified. What the entries before it hide is added to `hides`.
    fn first(
        &self,
        hidden: &Hidden,
        hides: &mut Hidden,
        stop: &Stop,
    ) -> Result<Option<(TarStream, Entry)>, Error> {
        let mut tar = self.tar()?;
        while let Some(entry) = tar.next().map_err(|e| self.failed(e))? {
            stop.check()?;
            if hidden.counts(&entry) {
                return Ok(Some((tar, entry)));
            }
            hides.learn(&entry)?;
        }
        self.end(tar, stop)?;
        Ok(None)
    }

    /// Reads on behind `member`, from where `parked` is or from the start, to the layer's end, and verifies it. Returns the
    /// paths that the entries there hide.
    fn rest(
        &self,
        hidden: &Hidden,
        member: &Entry,
        parked: Option<TarStream>,
        stop: &Stop,
    ) -> Result<Hidden, Error> {
        let mut tar = match parked {
            Some(tar) => tar,
            None => self.tar()?,
        };
        let mut hides = Hidden::default();
        tar.pass_to(member.end()).map_err(|e| self.failed(e))?;
        tar.go_on_after(member.end());
        while let Some(entry) = tar.next().map_err(|e| self.failed(e))? {
            stop.check()?;
            if hidden.counts(&entry) {
                return Err(several(member, &entry));
            }
            hides.learn(&entry)?;
        }
        self.end(tar, stop)?;
        Ok(hides)
    }

    fn end(&self, mut tar: TarStream, stop: &Stop) -> Result<(), Error> {
        tar.drain(|| Ok(stop.check()?)).map_err(|e| self.failed(e))?;
        drop(tar);
        self.verify(stop)
    }

    fn tar(&self) -> Result<TarStream, Error> {
        TarStream::open(&self.unpacked).map_err(|e| self.failed(e))
    }

    fn failed(&self, error: io::Error) -> Error {
        disk_image::Error::from_source(format!("cannot read the layer {}", self.digest), error).into()
    }

    /// Reads what is left of the blob and compares its digest.
    fn verify(&self, stop: &Stop) -> Result<(), Error> {
        self.checked.verify(stop).map_err(|error| match error.kind() {
            Kind::Checksum => {
                let what = format!("the layer {} does not match its digest", self.digest);
                Error::with(Kind::Digest, what, error)
            }
            Kind::Usage
            | Kind::Connect
            | Kind::NeedsScratch
            | Kind::Refused
            | Kind::NoRoom
            | Kind::Target
            | Kind::Process
            | Kind::Digest
            | Kind::Stopped => error,
        })
    }
}

/// A disk in a layer. It can be read again from its start, one reader at a time.
#[derive(Clone)]
pub struct Disk(Arc<Inner>);

struct Inner {
    layer: Layer,
    member: Entry,
    hidden: Hidden,
    environment: Vec<String>,
    /// The layer where the last reader left it.
    parked: Mutex<Option<TarStream>>,
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Disk")
            .field("layer", &self.0.layer.digest)
            .field("file", &self.0.member.path)
            .finish_non_exhaustive()
    }
}

impl Disk {
    /// The file's name in the image, such as "disk/fedora.qcow2".
    pub fn file(&self) -> &str {
        &self.0.member.path
    }

    /// The environment of the image's containers, as "NAME=value": some variables are labels of the disk.
    pub fn environment(&self) -> &[String] {
        &self.0.environment
    }

    /// Reads the layer to its end: whether there is another file next to the disk, and whether the blob has the digest that
    /// the image's manifest gives it. Until then nothing that was read can be relied on.
    ///
    /// # Errors
    /// [`Kind::Refused`] for a second file, [`Kind::Digest`] when the digest is another, else the error of reading.
    pub fn verify(&self, stop: &Stop) -> Result<(), Error> {
        let inner = &*self.0;
        let parked = inner.take(inner.member.end());
        inner.layer.rest(&inner.hidden, &inner.member, parked, stop).map(drop)
    }

    /// Digest of the layer that holds the file.
    pub fn layer(&self) -> &str {
        &self.0.layer.digest
    }
}

impl Inner {
    /// The parked layer, if it is not past `offset`.
    fn take(&self, offset: u64) -> Option<TarStream> {
        let parked = self.parked.lock().unwrap_or_else(PoisonError::into_inner).take();
        parked.filter(|tar| tar.at() <= offset)
    }
}

impl Source for Disk {
    fn facts(&self) -> Facts {
        Facts { size: Some(self.0.member.size), access: Access::Again }
    }

    fn open(&self, range: Range<u64>) -> io::Result<Box<dyn Read + Send>> {
        let inner = self.0.clone();
        let start = inner.member.offset.saturating_add(range.start.min(inner.member.size));
        let end = inner.member.offset.saturating_add(range.end.min(inner.member.size));
        let mut tar = match inner.take(start) {
            Some(tar) => tar,
            None => TarStream::open(&inner.layer.unpacked)?,
        };
        tar.pass_to(start)?;
        Ok(Box::new(Reader { tar: Some(tar), end, inner }))
    }
}

/// The disk's bytes. Gives the layer back when it is let go, so that the rest of it can be verified.
struct Reader {
    tar: Option<TarStream>,
    end: u64,
    inner: Arc<Inner>,
}

impl Read for Reader {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let Some(tar) = &mut self.tar else { return Ok(0) };
        let left = self.end.saturating_sub(tar.at());
        let want = buf.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        if want == 0 {
            return Ok(0);
        }
        let n = tar.read(&mut buf[..want])?;
        if n == 0 {
            let what =
                format!("the layer {} ends inside {}", self.inner.layer.digest, self.inner.member.path);
            return Err(Error::new(Kind::Refused, what).into());
        }
        Ok(n)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let parked = self.tar.take();
        *self.inner.parked.lock().unwrap_or_else(PoisonError::into_inner) = parked;
    }
}
