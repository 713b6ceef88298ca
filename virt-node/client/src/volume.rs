//! `addvolume` and `removevolume`: asked of the machine, and of its run where there is no machine, as virtctl does.

use clap::ValueEnum;
use cluster::Key;
use serde_json::{Value, json};

use crate::error::{Error, Kind, Result, failed, usage};
use crate::site::{CLAIMS, Site, VOLUMES};
use crate::target::Target;

/// Kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DiskType {
    /// A disk.
    Disk,
    /// A SCSI device that is passed through.
    Lun,
}

/// Flags of a volume to attach.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Volume {
    /// DataVolume or PersistentVolumeClaim
    #[arg(long, value_name = "NAME")]
    volume_name: String,
    /// Name of the volume in the machine [default: the volume's name]
    #[arg(long, value_name = "NAME")]
    disk_name: Option<String>,
    /// Serial number that the guest reads [default: the volume's name]
    #[arg(long)]
    serial: Option<String>,
    /// Cache mode of the host
    #[arg(long, value_parser = ["none", "writethrough", "writeback"])]
    cache: Option<String>,
    /// Kind of device
    #[arg(long, value_enum, default_value_t = DiskType::Disk)]
    disk_type: DiskType,
    /// Bus of the device
    #[arg(long, value_parser = ["scsi", "virtio"], default_value = "scsi")]
    bus: String,
    /// No effect: the volume always stays with the machine
    #[arg(long, hide = true)]
    persist: bool,
    /// Check the request without changing anything
    #[arg(long)]
    dry_run: bool,
}

/// The request of a volume; `data_volume`: the source is a DataVolume.
fn request(typed: &Volume, data_volume: bool) -> Result<Value> {
    let name = &typed.volume_name;
    if typed.disk_type == DiskType::Lun && typed.bus != "scsi" {
        return usage("Invalid bus type for LUN disk: only scsi is supported");
    }
    let target = json!({"bus": typed.bus});
    let mut disk = match typed.disk_type {
        DiskType::Disk => json!({"disk": target}),
        DiskType::Lun => json!({"lun": target}),
    };
    disk["serial"] = json!(typed.serial.as_ref().unwrap_or(name));
    if let Some(cache) = &typed.cache {
        disk["cache"] = json!(cache);
    }
    let source = if data_volume {
        json!({"dataVolume": {"name": name, "hotpluggable": true}})
    } else {
        json!({"persistentVolumeClaim": {"claimName": name, "hotpluggable": true}})
    };
    let name = typed.disk_name.as_ref().unwrap_or(name);
    let mut request = json!({"name": name, "disk": disk, "volumeSource": source});
    if typed.dry_run {
        request["dryRun"] = json!(["All"]);
    }
    Ok(request)
}

/// Attaches a volume.
///
/// # Errors
/// There is no such volume, or the API server refuses it.
pub(crate) async fn add(site: &Site, name: &str, typed: &Volume) -> Result<String> {
    let volume = &typed.volume_name;
    let key = Key::new(&site.namespace, volume);
    let looked = format!("error adding volume, {volume} cannot be read");
    let data_volume =
        site.client.find::<Value>(VOLUMES, &key).await.map_err(failed(looked.clone()))?.is_some();
    if !data_volume && site.client.find::<Value>(CLAIMS, &key).await.map_err(failed(looked))?.is_none() {
        let text =
            format!("error adding volume, {volume} is neither a DataVolume nor a PersistentVolumeClaim");
        return Err(Error::new(Kind::Refused, text));
    }
    send(site, name, "addvolume", &request(typed, data_volume)?, "error adding volume").await?;
    Ok(format!("Successfully submitted add volume request to VM {name} for volume {volume}\n"))
}

/// Detaches a volume.
///
/// # Errors
/// The API server refuses it.
pub(crate) async fn remove(site: &Site, name: &str, volume: &str, dry_run: bool) -> Result<String> {
    let mut request = json!({"name": volume});
    if dry_run {
        request["dryRun"] = json!(["All"]);
    }
    send(site, name, "removevolume", &request, "error removing volume").await?;
    Ok(format!("Successfully submitted remove volume request to VM {name} for volume {volume}\n"))
}

/// Asks the machine, and its run if there is no machine.
async fn send(site: &Site, name: &str, verb: &str, body: &Value, what: &str) -> Result<()> {
    let path = site.verb(&Target::machine(name), verb)?;
    let sent = match site.put(&path, Some(body)).await {
        Err(error) if error.is_not_found() => {
            let path = site.verb(&Target::instance(name), verb)?;
            site.put(&path, Some(body)).await
        }
        sent => sent,
    };
    sent.map(|_| ()).map_err(failed(what))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Typed {
        #[command(flatten)]
        volume: Volume,
    }

    fn request_of(words: &str, data_volume: bool) -> Result<Value> {
        request(&Typed::try_parse_from(format!("x {words}").split(' ')).unwrap().volume, data_volume)
    }

    #[test]
    fn flags_become_the_request_of_virtctl() {
        assert_eq!(
            request_of("--volume-name v", true).unwrap(),
            json!({"name": "v", "disk": {"disk": {"bus": "scsi"}, "serial": "v"},
                "volumeSource": {"dataVolume": {"name": "v", "hotpluggable": true}}})
        );
        assert_eq!(
            request_of(
                "--volume-name v --disk-name d --serial s --cache none --disk-type lun --dry-run",
                false
            )
            .unwrap(),
            json!({"name": "d", "disk": {"lun": {"bus": "scsi"}, "serial": "s", "cache": "none"},
                "volumeSource": {"persistentVolumeClaim": {"claimName": "v", "hotpluggable": true}},
                "dryRun": ["All"]})
        );
        assert!(request_of("--volume-name v --disk-type lun --bus virtio", true).is_err());
    }
}
