//! `virt-node addvolume` and `removevolume`: virtctl's flags and words.

use api::kubevirt::{Disk, DiskTarget, LunTarget};

use super::Daemon;
use crate::args::{DiskType, MoreVolume};
use crate::error::{Error, Kind};
use crate::protocol::Request;

/// The disk that the flags ask for.
fn disk(typed: &MoreVolume) -> Result<Disk, Error> {
    let name = typed.disk_name.as_ref().unwrap_or(&typed.volume_name);
    let mut disk = Disk {
        name: name.clone(),
        serial: Some(typed.serial.as_ref().unwrap_or(name).clone()),
        cache: typed.cache.clone(),
        ..Disk::default()
    };
    let bus = Some(typed.bus.clone());
    match typed.disk_type {
        DiskType::Disk => disk.disk = Some(DiskTarget { bus, ..DiskTarget::default() }),
        DiskType::Lun if typed.bus != "scsi" => {
            return Err(Error::new(Kind::Usage, "--disk-type lun is on --bus scsi only"));
        }
        DiskType::Lun => disk.lun = Some(LunTarget { bus, ..LunTarget::default() }),
    }
    Ok(disk)
}

/// Gives a machine one more volume.
pub(crate) fn add_volume(
    daemon: &mut Daemon,
    namespace: &str,
    name: &str,
    typed: MoreVolume,
) -> Result<String, Error> {
    let disk = Box::new(disk(&typed)?);
    let (namespace, of) = (namespace.to_owned(), name.to_owned());
    let MoreVolume { volume_name, dry_run, .. } = typed;
    let said = format!("Successfully submitted add volume request to VM {name} for volume {volume_name}\n");
    daemon.call(Request::AddVolume { namespace, name: of, claim: volume_name, disk, dry_run }).map(|_| said)
}

/// Takes a volume from a machine.
pub(crate) fn remove_volume(
    daemon: &mut Daemon,
    namespace: &str,
    name: &str,
    volume: String,
    dry_run: bool,
) -> Result<String, Error> {
    let (namespace, of) = (namespace.to_owned(), name.to_owned());
    let said = format!("Successfully submitted remove volume request to VM {name} for volume {volume}\n");
    daemon.call(Request::RemoveVolume { namespace, name: of, volume, dry_run }).map(|_| said)
}
