//! Expansion of claims: first the volume, then the disk in it; a running guest is notified.
//!
//! ```text
//! document with a larger request ─► claim's spec ─► CSI expand ─► disk.img or device ─► guest
//! ```
//!
//! No volume becomes smaller. Each step reads the present sizes, and may be interrupted at any point. Not here: sockets and
//! memory of guests (`cpu_memory_hotplug`).

use api::launcher::{RefusedKind, Request};

use super::csi_client::{Driver, Volume};
use super::run::Run;
use crate::error::{Error, Kind};
use guest::CallError;

/// Guests' disks have whole sectors.
const SECTOR: u64 = 512;

/// Expands a volume and the disk in it to the requested size, and notifies guests. Returns the new size.
///
/// `shown`: the runs of guests that have the volume, and its disk's name in each.
///
/// # Errors
/// The driver's error; a guest's disk that does not grow.
pub(super) fn grow(driver: &Driver, volume: &Volume, shown: &[(Run, String)]) -> Result<u64, Error> {
    let capacity = driver.expand(volume)?;
    let size = volume.size / SECTOR * SECTOR;
    let mut told = false;
    for (run, disk) in shown {
        let request = Request::ResizeDisk { name: disk.clone(), size };
        let answer = run.client().map_err(CallError::from).and_then(|mut client| client.call(request));
        match answer {
            Ok(_) => told = true,
            // It ended just now, or has the disk under another one.
            Err(CallError::Refused(RefusedKind::State | RefusedKind::Invalid, _)) => {}
            Err(error) => {
                return Err(Error::with(
                    Kind::System,
                    format!("the guest's disk {disk} does not grow"),
                    error,
                ));
            }
        }
    }
    if !told && !volume.block {
        // One that holds files has no disk in it, nor has one that no guest had yet.
        volume.grow_disk(size)?;
    }
    Ok(capacity)
}
