//! From what was named to a source that is open: one arm per kind. Not here: protocols.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use api::import::node;
use disk_image::{FileSource, Source, Stop};

use url::Url;

use super::blocking::Net;
use super::http::Header;
use super::layer::Disk;
use super::remote::{Reach, RemoteSource};
use super::retry::Policy;
use super::tls::{Proxies, Trust};
use super::{gcs, http, nbd, node_pull, oci_archive, registry, s3};
use crate::config::{Access, Limits, Location, Proxy};
use crate::error::{Error, Kind};

/// An open source and what is known of it.
pub(crate) struct Opened {
    pub(crate) source: Arc<dyn Source>,
    /// Changes whenever the bytes do; `None` when nothing vouches for them, and then nothing is resumed.
    pub(crate) identity: Option<String>,
    /// The local file, if it is one: it may be cloned.
    pub(crate) local: Option<Arc<FileSource>>,
    /// The file or device on this machine that the bytes come from, archives and standard input included.
    pub(crate) read_from: Option<Metadata>,
    /// The disk in a container image: good once it was verified, after it was read.
    pub(crate) unverified: Option<Disk>,
    /// Labels for the PVC.
    pub(crate) labels: BTreeMap<String, String>,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Opened {
    /// A source that nothing else is known of.
    fn new(source: Arc<dyn Source>, identity: Option<String>) -> Self {
        Self { source, identity, local: None, read_from: None, unverified: None, labels: BTreeMap::new() }
    }

    /// A disk in a container image. It has no identity: what an interrupted import wrote was not verified.
    fn of_image(disk: Disk) -> Self {
        let labels = node::labels(disk.environment().iter().map(String::as_str));
        Self { unverified: Some(disk.clone()), labels, ..Self::new(Arc::new(disk), None) }
    }

    fn remote(source: RemoteSource) -> Self {
        let identity = source.identity().map(str::to_owned);
        Self::new(Arc::new(source), identity)
    }
}

/// Opens `location`.
///
/// # Errors
/// [`Kind::Connect`] when it cannot be reached or is not there.
pub(crate) fn open(
    location: &Location,
    access: &Access,
    limits: &Limits,
    stop: &Stop,
) -> Result<Opened, Error> {
    match location {
        Location::File(path) => readable(path, false).and_then(|()| file(path)),
        Location::Stdin => super::stdin::open(stop)
            .map(|(source, read_from)| Opened { read_from: Some(read_from), ..Opened::new(source, None) }),
        Location::Blank => Err(Error::usage("an empty disk has no source to open")),
        Location::Http(url) => {
            http::open(&net(stop)?, http_options(url, access, limits)?).map(Opened::remote)
        }
        Location::S3(url) => s3::open(&net(stop)?, s3_options(url, access, limits)).map(Opened::remote),
        Location::Gcs(url) => gcs::open(&net(stop)?, gcs_options(url, access, limits)).map(Opened::remote),
        Location::Registry(image) => {
            registry::open(&net(stop)?, &registry_options(image, access, limits)).map(Opened::of_image)
        }
        Location::NodePull(url) => {
            let pulled = node_pull::open(&net(stop)?, &node_pull_options(url, access, limits))?;
            Ok(Opened { labels: pulled.labels, ..Opened::remote(pulled.source) })
        }
        Location::OciArchive(archive) => {
            let path = oci_archive::path(archive);
            readable(&path, true)?;
            let options = oci_archive::Options {
                platform: access.architecture.clone(),
                window: limits.window,
                ..oci_archive::Options::new(archive)
            };
            let disk = oci_archive::open(&options, stop)?;
            Ok(Opened { read_from: std::fs::metadata(&path).ok(), ..Opened::of_image(disk) })
        }
        // An export has no mark that changes with its bytes.
        Location::Nbd(url) => {
            Ok(Opened::new(Arc::new(nbd::open(&net(stop)?, nbd_options(url, access, limits))?), None))
        }
    }
}

pub(super) fn net(stop: &Stop) -> Result<Net, Error> {
    Net::new(stop.clone()).map_err(|e| Error::with(Kind::Process, "cannot start the network's thread", e))
}

fn reach(access: &Access, limits: &Limits) -> Reach {
    let (folders, files) =
        access.authorities.iter().cloned().partition(|path| path.is_dir() || !path.exists());
    let Proxy { http, https, none_for } = access.proxy.clone();
    Reach {
        trust: Trust { folders, files, insecure: access.insecure },
        proxies: Proxies { http, https, no_proxy: none_for },
        stall: limits.stall,
        retry: Policy {
            patience: limits.patience,
            first: limits.first.min(limits.patience),
            ..Policy::default()
        },
        connections: limits.connections,
    }
}

/// The name and value of a "Key: value" line.
fn header(line: &str, secret: bool) -> Result<Header, Error> {
    let (name, value) = line.split_once(':').ok_or_else(|| {
        // The line itself may be a secret.
        Error::usage("an extra header is no \"Key: value\" line")
    })?;
    Ok(Header { name: name.trim().to_owned(), value: value.trim().to_owned(), secret })
}

fn http_options(url: &Url, access: &Access, limits: &Limits) -> Result<http::Options, Error> {
    let open = access.headers.iter().map(|line| header(line, false));
    let secret = access.secret_headers.iter().map(|line| header(line, true));
    Ok(http::Options {
        headers: open.chain(secret).collect::<Result<_, _>>()?,
        user: access.user.as_ref().map(|user| user.name.clone()),
        password: access.user.as_ref().map(|user| user.secret.clone()),
        reach: reach(access, limits),
        ..http::Options::new(url.as_str())
    })
}

fn s3_options(url: &Url, access: &Access, limits: &Limits) -> s3::Options {
    s3::Options {
        keys: access.user.as_ref().map(|user| (user.name.clone(), user.secret.clone())),
        reach: reach(access, limits),
        ..s3::Options::new(url.as_str())
    }
}

fn gcs_options(url: &Url, access: &Access, limits: &Limits) -> gcs::Options {
    gcs::Options {
        credentials: access.google_credentials.clone(),
        reach: reach(access, limits),
        ..gcs::Options::new(url.as_str())
    }
}

fn node_pull_options<'a>(url: &'a Url, access: &'a Access, limits: &Limits) -> node_pull::Options<'a> {
    node_pull::Options {
        url,
        ready_file: access.ready_file.as_deref(),
        reach: Reach { trust: Trust::default(), proxies: Proxies::default(), ..reach(access, limits) },
    }
}

pub(super) fn registry_options(image: &str, access: &Access, limits: &Limits) -> registry::Options {
    registry::Options {
        user: access.user.as_ref().map(|user| user.name.clone()),
        password: access.user.as_ref().map(|user| user.secret.clone()),
        auth_file: access.registry_auth_file.clone(),
        platform: access.architecture.clone(),
        window: limits.window,
        reach: reach(access, limits),
        ..registry::Options::new(image)
    }
}

fn nbd_options(url: &Url, access: &Access, limits: &Limits) -> nbd::Options {
    nbd::Options { reach: reach(access, limits), ..nbd::Options::new(url.as_str()) }
}

/// Refuses a path other than a file before it is opened: opening a FIFO waits for a writer. A path that cannot be inspected
/// is left to the opening. `archive` is set when places all over the file are read.
fn readable(path: &Path, archive: bool) -> Result<(), Error> {
    let Ok(meta) = std::fs::metadata(path) else {
        if archive && path.as_os_str() == "-" {
            let what = "an archive needs random access and cannot be a stream; save it to a file first";
            return Err(Error::new(Kind::Connect, what));
        }
        return Ok(());
    };
    let (kind, shown) = (meta.file_type(), path.display());
    let what = if kind.is_file() || kind.is_block_device() {
        return Ok(());
    } else if archive && !kind.is_dir() {
        format!("{shown} is not a file, and an archive needs random access; save it to a file first")
    } else if kind.is_dir() {
        format!("{shown} is a folder; name the image in it")
    } else if kind.is_fifo() {
        format!("{shown} is a pipe; give - and the pipe as standard input: importer - TARGET < {shown}")
    } else if kind.is_socket() {
        format!("{shown} is a socket; give - and a pipe, or for an NBD server nbd+unix:///?socket={shown}")
    } else {
        format!("{shown} is neither a file nor a block device; give - and a pipe")
    };
    Err(Error::new(Kind::Connect, what))
}

fn file(path: &Path) -> Result<Opened, Error> {
    let failed = |e| Error::connect(format!("cannot open {}", path.display()), e);
    let source = Arc::new(FileSource::open_path(path).map_err(failed)?);
    let meta = source.file().metadata().map_err(failed)?;
    // A device's content may change without a trace.
    let identity = meta.is_file().then(|| {
        format!("file {} {} {} {} {}", meta.dev(), meta.ino(), meta.len(), meta.mtime(), meta.mtime_nsec())
    });
    Ok(Opened { local: Some(source.clone()), read_from: Some(meta), ..Opened::new(source, identity) })
}
