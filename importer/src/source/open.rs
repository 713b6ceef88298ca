//! From what was named to a source that is open: one arm per kind. Not here: protocols.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use disk_image::{FileSource, Source, Stop};

use crate::config::{Access, Limits, Location};
use crate::error::{Error, Kind};

/// An open source and what is known of it.
pub(crate) struct Opened {
    pub(crate) source: Arc<dyn Source>,
    /// Changes whenever the bytes do; `None` when nothing vouches for them, and then nothing is resumed.
    pub(crate) identity: Option<String>,
    /// The local file, if it is one: it may be cloned.
    pub(crate) local: Option<Arc<FileSource>>,
    /// Labels for the PVC.
    pub(crate) labels: BTreeMap<String, String>,
    /// To be called when the import is over, whichever way.
    pub(crate) farewell: Option<Box<dyn FnOnce() + Send>>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// Opens `location`.
///
/// # Errors
/// [`Kind::Connect`] when it cannot be reached or is not there; [`Kind::Refused`] when it is not built in.
pub(crate) fn open(
    location: &Location,
    access: &Access,
    limits: &Limits,
    stop: &Stop,
) -> Result<Opened, Error> {
    let _ = (access, limits);
    let not_yet = |what: &str| Err(Error::new(Kind::Refused, format!("{what} sources are not built in")));
    match location {
        Location::File(path) => file(path),
        Location::Stdin => super::stdin::open(stop).map(|source| Opened {
            source,
            identity: None,
            local: None,
            labels: BTreeMap::new(),
            farewell: None,
        }),
        Location::Blank => Err(Error::usage("an empty disk has no source to open")),
        Location::Http(_) => not_yet("http"),
        Location::S3(_) => not_yet("s3"),
        Location::Gcs(_) => not_yet("gcs"),
        Location::Registry(_) => not_yet("registry"),
        Location::NodePull(_) => not_yet("node pull"),
        Location::OciArchive(_) => not_yet("oci-archive"),
        Location::Nbd(_) => not_yet("nbd"),
    }
}

fn file(path: &Path) -> Result<Opened, Error> {
    let failed = |e| Error::connect(format!("cannot open {}", path.display()), e);
    let source = Arc::new(FileSource::open_path(path).map_err(failed)?);
    let meta = source.file().metadata().map_err(failed)?;
    // A device's content may change without a trace.
    let identity = meta.is_file().then(|| {
        format!("file {} {} {} {} {}", meta.dev(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec())
    });
    Ok(Opened {
        source: source.clone(),
        identity,
        local: Some(source),
        labels: BTreeMap::new(),
        farewell: None,
    })
}
