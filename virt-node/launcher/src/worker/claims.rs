//! Block devices that only this guest may write, claimed at the kernel for the guest's life. QEMU locks files, but a lock
//! belongs to an inode, and each pod has device nodes of its own: two guests would not notice each other. A device that is
//! open with O_EXCL (open(2)) belongs to its opener alone, by whatever node: the next such open fails with EBUSY, as it does
//! while a filesystem, LVM or RAID of the host uses the device.
//!
//! Not here: how the open devices pass from worker to worker ([`crate::handover`]).

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use api::launch::{DiskDevice, Launch, Media};
use rustix::fs::{FileType, Mode, OFlags, fstat, open, stat};
use rustix::io::Errno;

use crate::error::{Error, Kind};
use crate::handover::Kept;

/// The claims of this guest.
pub(super) struct Claims(Mutex<Held>);

struct Held {
    kept: Kept,
    /// Open devices, by their number.
    devices: BTreeMap<u64, OwnedFd>,
}

/// Disks on block devices that the guest writes and shares with no other: name and path.
fn wanted(launch: &Launch) -> impl Iterator<Item = (&str, &str)> {
    launch.disks.iter().filter_map(|disk| match &disk.media {
        Media::Storage(storage)
            if storage.block && !disk.read_only && !disk.shareable && disk.device != DiskDevice::Cdrom =>
        {
            Some((disk.name.as_str(), storage.path.as_str()))
        }
        Media::Storage(_) | Media::Empty | Media::Medium(_) => None,
    })
}

/// The number of a block device; `None`: there is no such device, which QEMU reports.
fn number(path: &str) -> Option<u64> {
    let found = stat(path).ok()?;
    (FileType::from_raw_mode(found.st_mode) == FileType::BlockDevice).then_some(found.st_rdev)
}

impl Claims {
    /// The claims that the worker before left.
    pub(super) fn new(kept: Kept, devices: Vec<OwnedFd>) -> Self {
        let numbered = devices.into_iter().filter_map(|device| Some((fstat(&device).ok()?.st_rdev, device)));
        Self(Mutex::new(Held { kept, devices: numbered.collect() }))
    }

    /// Claims the devices of a guest that is about to use them, and lets go of others.
    ///
    /// # Errors
    /// Another guest or this host uses one. Nothing has changed.
    pub(super) fn hold(&self, launch: &Launch) -> Result<(), Error> {
        self.change(launch, true)
    }

    /// The same for a guest that runs: a device that cannot be claimed is passed over.
    pub(super) fn keep(&self, launch: &Launch) -> Result<(), Error> {
        self.change(launch, false)
    }

    /// Lets go of all devices.
    pub(super) fn release(&self) -> Result<(), Error> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.devices.clear();
        held.kept.set(&[]).map_err(lost)
    }

    fn change(&self, launch: &Launch, strict: bool) -> Result<(), Error> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut devices = BTreeMap::new();
        for (name, path) in wanted(launch) {
            let Some(number) = number(path) else { continue };
            if devices.contains_key(&number) {
                continue;
            }
            let opened = match held.devices.get(&number) {
                Some(device) => device.try_clone(),
                None => open(
                    path,
                    OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK,
                    Mode::empty(),
                )
                .map_err(io::Error::from),
            };
            match opened {
                Ok(device) => drop(devices.insert(number, device)),
                Err(error) if strict && error.raw_os_error() == Some(Errno::BUSY.raw_os_error()) => {
                    let text = format!(
                        "disk {name}: the block device {path} is in use: another guest writes it, or this host has \
                         mounted it or uses it for LVM or RAID; end that use, or make the disk shareable"
                    );
                    return Err(Error::new(Kind::System, text));
                }
                // QEMU reports what it cannot open.
                Err(_) => {}
            }
        }
        let mut files = Vec::with_capacity(devices.len());
        for device in devices.values() {
            files.push(device.try_clone().map_err(lost)?);
        }
        held.kept.set(&files).map_err(lost)?;
        held.devices = devices;
        Ok(())
    }
}

fn lost(error: io::Error) -> Error {
    Error::with(Kind::System, "block devices cannot be kept open for the next worker", error)
}
