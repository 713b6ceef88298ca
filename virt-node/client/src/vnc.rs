//! `vnc`: a guest's screen at a port of this machine, with a viewer that is started for it or only the port; and
//! screenshots.

use std::ffi::OsString;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use cluster::client::Call;
use http::Method;

use crate::error::{Error, Kind, Result, failed};
use crate::output::{print, say};
use crate::site::Site;
use crate::stream;
use crate::target::Target;

/// Viewers that are looked for, and how each takes an address.
const VIEWERS: [(&str, &str); 4] =
    [("remote-viewer", "vnc://"), ("xtigervncviewer", ""), ("vncviewer", ""), ("gvncviewer", "")];

/// Flags of the screen.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Do not start a viewer; print the port as JSON
    #[arg(long)]
    pub(crate) proxy_only: bool,
    /// Port of this machine; 0: a free one
    #[arg(long, default_value_t = 0)]
    pub(crate) port: u16,
    /// Address of this machine
    #[arg(long, default_value = "127.0.0.1", value_name = "ADDRESS")]
    pub(crate) address: IpAddr,
    /// Viewer to start, with its path
    #[arg(long, value_name = "FILE")]
    pub(crate) vnc_path: Option<PathBuf>,
    /// Fail if another client has the screen open, instead of disconnecting it
    #[arg(long)]
    pub(crate) preserve_session: bool,
}

/// Serves one viewer and ends with it.
///
/// # Errors
/// The guest has no screen, or no viewer is found.
pub(crate) async fn screen(site: &Site, name: &str, options: Options) -> Result<()> {
    let target = Target::instance(name);
    let viewer = if options.proxy_only { None } else { Some(find(options.vnc_path.as_deref())?) };
    let path = format!("vnc?preserveSession={}", options.preserve_session);
    let access = format!("Can't access VMI {name}");
    let socket = stream::open(site, &target, &path).await.map_err(failed(access))?;
    let (listener, bound) = stream::listen(SocketAddr::new(options.address, options.port)).await?;
    let started = match viewer {
        None => {
            print(&format!("{{\"port\":{}}}\n", bound.port()))?;
            None
        }
        Some((program, scheme)) => {
            let what = format!("{} cannot be started", program.to_string_lossy());
            let started = stream::start(&program, [format!("{scheme}{bound}")]);
            Some(started.map_err(|error| Error::with(Kind::System, what, error))?)
        }
    };
    stream::serve(socket, &listener, started).await.map(drop)
}

/// A viewer and how it takes an address.
fn find(given: Option<&Path>) -> Result<(OsString, &'static str)> {
    if let Some(path) = given {
        let named = path.file_name().and_then(|name| VIEWERS.iter().find(|(viewer, _)| name == *viewer));
        return Ok((path.into(), named.map_or("", |(_, scheme)| scheme)));
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&folders).collect();
    let found = VIEWERS.iter().find(|(name, _)| folders.iter().any(|folder| folder.join(name).is_file()));
    found.map(|(name, scheme)| (OsString::from(name), *scheme)).ok_or_else(|| {
        let names: Vec<&str> = VIEWERS.iter().map(|(name, _)| *name).collect();
        let text = format!(
            "no VNC viewer found (looked for {}): install one, or use --proxy-only and connect to the port",
            names.join(", ")
        );
        Error::new(Kind::System, text)
    })
}

/// Saves a picture of the screen as PNG.
///
/// # Errors
/// The guest has no screen, or the file cannot be written.
pub(crate) async fn screenshot(site: &Site, name: &str, file: &Path, move_cursor: bool) -> Result<()> {
    let path = site.verb(&Target::instance(name), "vnc/screenshot")?;
    let call = Call::new(Method::GET, format!("{path}?moveCursor={move_cursor}"));
    let picture = site.client.call(&call).await;
    let picture = picture.map_err(failed(format!("Can't take a screenshot of VMI {name}")))?;
    fs::write(file, picture)
        .map_err(|error| Error::with(Kind::System, format!("cannot write {}", file.display()), error))?;
    say(&format!("saved {}", file.display()));
    Ok(())
}
