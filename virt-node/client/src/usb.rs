//! `usbredir`: a USB device of this machine for a guest, by the program usbredirect, which connects to a port of this machine.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, SocketAddr};

use crate::error::{Error, Kind, Result, failed};
use crate::output::print;
use crate::site::Site;
use crate::stream;
use crate::target::Target;

/// The program that reads the device, of the project usbredir.
const PROGRAM: &str = "usbredirect";

/// Connects a device, and ends with its program; without a device, serves one client that is started by hand.
///
/// # Errors
/// The guest has no free USB channel, or the program fails.
pub(crate) async fn redirect(site: &Site, name: &str, device: Option<&str>) -> Result<()> {
    let access = format!("Can't access VMI {name}");
    let socket = stream::open(site, &Target::instance(name), "usbredir").await.map_err(failed(access))?;
    let (listener, bound) = stream::listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
    let started = match device {
        None => {
            print(&format!("User can connect usbredir client at: {bound}\n"))?;
            None
        }
        Some(device) => {
            let to = bound.to_string();
            let started = stream::start(OsStr::new(PROGRAM), ["--device", device, "--to", &to]);
            let missing = "usbredirect cannot be started; on Debian: apt install usbredirect";
            Some(started.map_err(|error| Error::with(Kind::System, missing, error))?)
        }
    };
    match stream::serve(socket, &listener, started).await? {
        Some(status) if !status.success() => {
            Err(Error::new(Kind::System, format!("{PROGRAM} failed: {status}")))
        }
        Some(_) | None => Ok(()),
    }
}
