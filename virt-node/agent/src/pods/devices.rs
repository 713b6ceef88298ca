//! Block devices that a launcher's container may open in addition to those that the container runtime allowed at its
//! start: those of hotplugged volumes.
//!
//! The rule is the device controller's of control groups version 1. Not here: the device's file in the container.

use std::path::PathBuf;

use super::disk::Disk;
use super::process::Process;
use crate::error::{Error, Kind, Result};

/// The node's hierarchy of the device controller. The agent's container has its own part of it alone, and the node's
/// processes.
const HIERARCHY: &str = "/proc/1/root/sys/fs/cgroup/devices";

/// Allows the container of `launcher` to read and write a block device.
///
/// # Errors
/// The node has no such controller, or the kernel refuses.
pub(crate) fn permit(launcher: &Process, disk: &Disk) -> Result<()> {
    write(launcher, "devices.allow", disk)
}

/// Takes that back.
///
/// # Errors
/// As [`permit`].
pub(crate) fn forbid(launcher: &Process, disk: &Disk) -> Result<()> {
    write(launcher, "devices.deny", disk)
}

fn write(launcher: &Process, file: &str, disk: &Disk) -> Result<()> {
    let group = launcher.group("devices")?.ok_or_else(|| {
        let text = "a block volume cannot be attached to a running guest on this node: it has no device controller of control \
                    groups version 1; stop the VirtualMachine and start it again, or use a volume with a filesystem";
        Error::new(Kind::Content, text)
    })?;
    let path = PathBuf::from(format!("{HIERARCHY}{group}/{file}"));
    let (major, minor) = disk.number()?;
    std::fs::write(&path, format!("b {major}:{minor} rw"))
        .map_err(|error| Error::system(format!("cannot write {}", path.display()), error))
}
