//! The disk of an image that the node has pulled, from the server in that image's container in the same pod.
//!
//! The protocol is in [`api::import::node`]: wait for the ready file, read over HTTP on loopback, make the done file at
//! the end. The bytes come by the http source, with its ranges and retries; but nothing that is meant for the outside
//! goes there: no proxy, no credentials, no extra headers. Not here: when an import is over (`entry`).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use api::import::node::{self, ServerInfo};
use disk_image::{Source, Stop};
use rustix::fs::OFlags;
use url::Url;

use super::blocking::Net;
use super::http;
use super::remote::{Chain, Reach, RemoteSource};
use crate::error::{Error, Kind};

/// How often the ready file is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Longest name of a file, in bytes.
const NAME_MAX: u64 = 255;
/// Largest answer to /info that is read. A container's environment is a few kilobytes.
const INFO_MAX: u64 = 1 << 20;

/// Options.
#[derive(Clone, Debug)]
pub(crate) struct Options<'a> {
    /// Address of the disk; its last part gives way to the name in the ready file.
    pub(crate) url: &'a Url,
    /// Written by the server when it is ready; without one it is ready.
    pub(crate) ready_file: Option<&'a Path>,
    /// The server is on this host: no proxy, no name lookup, no TLS.
    pub(crate) reach: Reach,
}

/// A disk to read, and the labels its image asks for.
#[derive(Debug)]
pub(crate) struct Pulled {
    pub(crate) source: RemoteSource,
    pub(crate) labels: BTreeMap<String, String>,
}

/// Waits for the server and opens the disk.
///
/// # Errors
/// [`Kind::Connect`] when the server is not ready in 60 s or does not give the disk, [`Kind::Stopped`].
pub(crate) fn open(net: &Net, options: &Options<'_>) -> Result<Pulled, Error> {
    let name = match options.ready_file {
        Some(file) => ready(file, Duration::from_secs(node::READY_SECONDS), net.stop())?,
        None => None,
    };
    let source = http::open(net, at(options, &named(options.url, name.as_deref()))).map_err(|error| {
        if error.kind() == Kind::Connect {
            let what = "cannot read the disk of the pulled image; it must be the only file in /disk, and uid 107 must be allowed to read it";
            Error::connect(what, error)
        } else {
            error
        }
    })?;
    let labels = match info(net, options) {
        Ok(info) => node::labels(info.env.iter().map(String::as_str)),
        Err(error) if error.kind() == Kind::Stopped => return Err(error),
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "the pulled image's environment is not known; no labels come of it");
            BTreeMap::new()
        }
    };
    Ok(Pulled { source, labels })
}

/// Signals the server that the import is done; repeating it has no effect.
///
/// # Errors
/// When the file cannot be made.
pub(crate) fn done(file: &Path) -> io::Result<()> {
    match File::options().write(true).create_new(true).open(file) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn at(options: &Options<'_>, url: &Url) -> http::Options {
    http::Options { reach: options.reach.clone(), ..http::Options::new(url.as_str()) }
}

/// Waits for `file` and gives the name in it, if it is one.
fn ready(file: &Path, patience: Duration, stop: &Stop) -> Result<Option<String>, Error> {
    let begun = Instant::now();
    tracing::info!(file = %file.display(), "waiting for the server in the pulled image's container");
    loop {
        stop.check()?;
        match fs::symlink_metadata(file) {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(Error::connect(format!("cannot look for the file {}", file.display()), error));
            }
        }
        if begun.elapsed() >= patience {
            let what = format!(
                "Timeout waiting for file {}: the server in the pulled image's container is not ready after {} s; see that container's log",
                file.display(),
                patience.as_secs_f32()
            );
            return Err(Error::new(Kind::Connect, what));
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    let failed = |e| Error::connect(format!("cannot read the file {}", file.display()), e);
    // A link or a pipe is none of the server's.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits();
    let flags = i32::try_from(flags).map_err(|e| failed(io::Error::other(e)))?;
    let open = File::options().read(true).custom_flags(flags).open(file).map_err(failed)?;
    let mut name = Vec::new();
    open.take(NAME_MAX + 1).read_to_end(&mut name).map_err(failed)?;
    Ok(file_name(&name))
}

/// `bytes` as the name of a file, if they are that and text. (The disk has another name in addition to its own.)
fn file_name(bytes: &[u8]) -> Option<String> {
    let name = std::str::from_utf8(bytes).ok()?;
    let fits = !name.is_empty() && bytes.len() as u64 <= NAME_MAX;
    let plain = !name.contains(['/', '\0']) && name != "." && name != "..";
    // The server answers another request at that name.
    let free = name != node::INFO_PATH.trim_start_matches('/');
    (fits && plain && free).then(|| name.to_owned())
}

/// The address of the disk by its own name.
fn named(url: &Url, name: Option<&str>) -> Url {
    let mut own = url.clone();
    if let Some(name) = name
        && url.path().ends_with(node::DISK_PATH)
        && let Ok(mut parts) = own.path_segments_mut()
    {
        parts.pop().push(name);
    }
    own
}

/// The server's environment.
fn info(net: &Net, options: &Options<'_>) -> Result<ServerInfo, Error> {
    let mut url = options.url.clone();
    url.set_path(node::INFO_PATH);
    url.set_query(None);
    let source = http::open(net, at(options, &url))?;
    let mut text = Vec::new();
    let failed =
        |e| Error::from(disk_image::Error::from_source("reading the image's environment from /info", e));
    source.open(0..INFO_MAX + 1).map_err(failed)?.read_to_end(&mut text).map_err(failed)?;
    if text.len() as u64 > INFO_MAX {
        return Err(Error::new(
            Kind::Connect,
            format!("the answer of {url} is longer than {INFO_MAX} bytes; is it cdi-containerimage-server?"),
        ));
    }
    ServerInfo::from_json(&text)
        .ok_or_else(|| Error::new(Kind::Connect, format!("the answer of {url} is not that of cdi-containerimage-server; check the pod's server container")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        let long = "x".repeat(255);
        for good in ["disk.img", "a b%.qcow2", "é", ".hidden", long.as_str()] {
            assert_eq!(file_name(good.as_bytes()).as_deref(), Some(good));
        }
        let longer = "x".repeat(256);
        for bad in ["", ".", "..", "a/b", "/etc/passwd", "a\0", "info", longer.as_str()] {
            assert_eq!(file_name(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(file_name(b"\xff"), None);
    }

    #[test]
    fn addresses() {
        let url = Url::parse("http://localhost:8100/disk.img").unwrap();
        for (name, expected) in [
            (None, "http://localhost:8100/disk.img"),
            (Some("a b?#%2f.qcow2"), "http://localhost:8100/a%20b%3F%23%252f.qcow2"),
            (Some("disk.img"), "http://localhost:8100/disk.img"),
        ] {
            assert_eq!(named(&url, name).as_str(), expected);
        }
        let other = Url::parse("http://localhost:8100/other").unwrap();
        assert_eq!(named(&other, Some("x")), other);
    }

    #[test]
    fn the_wait_has_an_end_and_can_be_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ready");
        let stop = Stop::new();
        let error = ready(&file, Duration::from_millis(150), &stop).unwrap_err();
        assert_eq!(error.kind(), Kind::Connect);
        assert!(error.to_string().starts_with("Timeout waiting for file "), "{error}");
        fs::write(&file, "a.qcow2").unwrap();
        assert_eq!(ready(&file, Duration::ZERO, &stop).unwrap().as_deref(), Some("a.qcow2"));
        fs::write(&file, "").unwrap();
        assert_eq!(ready(&file, Duration::ZERO, &stop).unwrap(), None);
        fs::remove_file(&file).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &file).unwrap();
        assert_eq!(ready(&file, Duration::ZERO, &stop).unwrap_err().kind(), Kind::Connect);
        stop.set();
        assert_eq!(ready(&file, Duration::from_secs(60), &stop).unwrap_err().kind(), Kind::Stopped);
    }

    #[test]
    fn done_may_be_signalled_twice() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("done");
        done(&file).unwrap();
        done(&file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().len(), 0);
        assert!(done(&folder.path().join("no/done")).is_err());
    }
}
