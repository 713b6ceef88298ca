//! Volumes: the source of each, and whether it can be used. Not here: the disks in front of them (`disks`).

use api::kubevirt::{
    CloudInit, ConfigMapVolume, Disk, DownwardApi, SecretVolume, ServiceAccountVolume, Sysprep,
    VirtualMachineInstanceSpec, Volume,
};
use api::launch::DEVICES_MAX;
use api::resource::Quantity;

use super::Resolution;

/// The kind of a volume.
pub(super) enum Source<'a> {
    /// A file or device that another component makes: a claim, an image, a new disk, a file of the host.
    Storage,
    /// A CD for cloud-init, label `cidata`.
    NoCloud(&'a CloudInit),
    /// A CD for cloud-init, label `config-2`.
    ConfigDrive(&'a CloudInit),
    /// A CD for Windows' setup.
    Sysprep(&'a Sysprep),
    /// A CD with a ConfigMap's entries.
    ConfigMap(&'a ConfigMapVolume),
    /// A CD with a Secret's entries.
    Secret(&'a SecretVolume),
    /// A CD with fields of the object.
    Downward(&'a DownwardApi),
    /// A CD with the token of a ServiceAccount.
    Account(&'a ServiceAccountVolume),
}

/// Sources that a volume has: exactly one, if it is right.
fn sources(volume: &Volume) -> Vec<Source<'_>> {
    let Volume {
        name: _,
        persistent_volume_claim,
        data_volume,
        container_disk,
        empty_disk,
        ephemeral,
        host_disk,
        cloud_init_no_cloud,
        cloud_init_config_drive,
        sysprep,
        config_map,
        secret,
        downward_api,
        container_path: _,
        downward_metrics: _,
        memory_dump: _,
        service_account,
    } = volume;
    let storages = [
        persistent_volume_claim.is_some(),
        data_volume.is_some(),
        container_disk.is_some(),
        empty_disk.is_some(),
        ephemeral.is_some(),
        host_disk.is_some(),
    ];
    let mut found: Vec<Source<'_>> = storages.iter().filter(|one| **one).map(|_| Source::Storage).collect();
    found.extend(cloud_init_no_cloud.as_ref().map(Source::NoCloud));
    found.extend(cloud_init_config_drive.as_ref().map(Source::ConfigDrive));
    found.extend(sysprep.as_ref().map(Source::Sysprep));
    found.extend(config_map.as_ref().map(Source::ConfigMap));
    found.extend(secret.as_ref().map(Source::Secret));
    found.extend(downward_api.as_ref().map(Source::Downward));
    found.extend(service_account.as_ref().map(Source::Account));
    found
}

/// The one source of a volume.
pub(super) fn source(volume: &Volume) -> Option<Source<'_>> {
    let mut sources = sources(volume);
    if sources.len() == 1 { sources.pop() } else { None }
}

/// Whether a volume is a file or device that is made before the guest is resolved.
pub fn is_storage(volume: &Volume) -> bool {
    matches!(source(volume), Some(Source::Storage))
}

/// The claim that a volume of a guest is: a DataVolume's has its name.
pub fn claim_of(volume: &Volume) -> Option<&str> {
    let claim = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str());
    claim.or(volume.data_volume.as_ref().map(|volume| volume.name.as_str()))
}

/// All claims that a guest needs, those of ephemeral volumes included.
pub fn claims_of(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = &str> {
    spec.volumes.iter().filter_map(|volume| {
        let ephemeral = volume.ephemeral.as_ref().and_then(|one| one.persistent_volume_claim.as_ref());
        claim_of(volume).or(ephemeral.map(|claim| claim.claim_name.as_str()))
    })
}

/// Whether a volume has no disk.
pub(super) fn lacks_disks(spec: &VirtualMachineInstanceSpec) -> bool {
    without_disk(spec).next().is_some()
}

/// Gives every volume without a disk one with the defaults, after the others, as upstream.
pub fn add_disks(spec: &mut VirtualMachineInstanceSpec) {
    let disks = without_disk(spec).map(|name| Disk { name: name.to_owned(), ..Disk::default() });
    let disks: Vec<_> = disks.collect();
    spec.domain.devices.disks.extend(disks);
}

/// Takes everything out of a spec that needs its volumes, for those that ask about the rest.
pub fn leave_volumes_out(spec: &mut VirtualMachineInstanceSpec) {
    spec.volumes.clear();
    spec.domain.devices.disks.clear();
    spec.access_credentials.clear();
}

fn without_disk(spec: &VirtualMachineInstanceSpec) -> impl Iterator<Item = &str> {
    let disks = &spec.domain.devices.disks;
    // More are refused as too many.
    let few = spec.volumes.len() <= DEVICES_MAX && disks.len() <= DEVICES_MAX;
    // A name that is there twice is refused as such.
    let first = |index: usize, name: &str| !spec.volumes[..index].iter().any(|other| other.name == name);
    let volumes = spec.volumes.iter().enumerate();
    let volumes = volumes.filter(move |(index, volume)| {
        few && !disks.iter().any(|disk| disk.name == volume.name) && first(*index, &volume.name)
    });
    volumes.map(|(_, volume)| volume.name.as_str())
}

/// A DNS label: what names of volumes, disks and networks are.
pub fn is_label(name: &str) -> bool {
    let letters = name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    (1..=63).contains(&name.len()) && letters && !name.starts_with('-') && !name.ends_with('-')
}

/// Whether an object may have this name: a DNS subdomain.
pub(super) fn is_object_name(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_label)
}

impl Resolution<'_> {
    /// Checks every volume on its own.
    pub(super) fn volumes(&mut self) {
        let volumes = &self.spec.volumes;
        for (index, volume) in volumes.iter().enumerate() {
            let at = format!("volumes[{index}]");
            if !is_label(&volume.name) {
                self.error(&format!("{at}.name"), "not a name of lower-case letters, digits and -");
            } else if volumes[..index].iter().any(|other| other.name == volume.name) {
                self.error(&format!("{at}.name"), format!("{:?} is given twice", volume.name));
            }
            match sources(volume).len() {
                1 => {}
                // The table of fields refuses these sources; a second finding would be noise.
                0 if volume.container_path.is_some()
                    || volume.downward_metrics.is_some()
                    || volume.memory_dump.is_some() => {}
                0 => self.error(&at, "no source, such as dataVolume or containerDisk"),
                _ => self.error(&at, "more than one source"),
            }
            let account = volume.service_account.is_some();
            if account && volumes[..index].iter().any(|other| other.service_account.is_some()) {
                let text = "a guest can have only one volume of this kind: its pod has one account";
                self.error(&format!("{at}.serviceAccount"), text);
            }
            self.storage(&at, volume);
        }
    }

    fn storage(&mut self, at: &str, volume: &Volume) {
        let claims = [
            (
                "persistentVolumeClaim.claimName",
                volume.persistent_volume_claim.as_ref().map(|one| &one.claim_name),
            ),
            ("dataVolume.name", volume.data_volume.as_ref().map(|one| &one.name)),
            ("containerDisk.image", volume.container_disk.as_ref().map(|one| &one.image)),
        ];
        for (field, name) in claims {
            if name.is_some_and(String::is_empty) {
                self.error(&format!("{at}.{field}"), "missing");
            }
        }
        let secret_of = |init: Option<&CloudInit>| Some(init?.secret_ref.as_ref()?.name.clone());
        let objects = [
            (
                "persistentVolumeClaim.claimName",
                volume.persistent_volume_claim.as_ref().map(|one| one.claim_name.clone()),
            ),
            ("dataVolume.name", volume.data_volume.as_ref().map(|one| one.name.clone())),
            ("configMap.name", volume.config_map.as_ref().map(|one| one.name.clone())),
            ("secret.secretName", volume.secret.as_ref().map(|one| one.secret_name.clone())),
            ("cloudInitNoCloud.secretRef.name", secret_of(volume.cloud_init_no_cloud.as_ref())),
            ("cloudInitConfigDrive.secretRef.name", secret_of(volume.cloud_init_config_drive.as_ref())),
        ];
        for (field, name) in objects {
            if name.is_some_and(|name| !name.is_empty() && !is_object_name(&name)) {
                let text = "not a name of lower-case letters, digits, - and .";
                self.error(&format!("{at}.{field}"), text);
            }
        }
        if let Some(ephemeral) = &volume.ephemeral
            && ephemeral.persistent_volume_claim.as_ref().is_none_or(|claim| claim.claim_name.is_empty())
        {
            self.error(&format!("{at}.ephemeral.persistentVolumeClaim.claimName"), "missing");
        }
        if let Some(empty) = &volume.empty_disk {
            self.capacity(&format!("{at}.emptyDisk.capacity"), empty.capacity.as_ref(), true);
        }
        if let Some(path) = volume.container_disk.as_ref().and_then(|disk| disk.path.as_ref())
            && !is_path(path)
        {
            self.error(&format!("{at}.containerDisk.path"), "not an absolute path without . and ..");
        }
        if let Some(host) = &volume.host_disk {
            if !is_path(&host.path) {
                self.error(&format!("{at}.hostDisk.path"), "not an absolute path without . and ..");
            }
            let made = match host.kind.as_str() {
                "Disk" => false,
                "DiskOrCreate" => true,
                other => {
                    let text = format!("{other:?} is neither Disk nor DiskOrCreate");
                    self.error(&format!("{at}.hostDisk.type"), text);
                    false
                }
            };
            self.capacity(&format!("{at}.hostDisk.capacity"), host.capacity.as_ref(), made);
        }
    }

    fn capacity(&mut self, field: &str, capacity: Option<&Quantity>, needed: bool) {
        match capacity.map(Quantity::bytes) {
            None if needed => self.error(field, "missing"),
            None => {}
            Some(Ok(0)) => self.error(field, "nothing"),
            Some(Ok(_)) => {}
            Some(Err(error)) => self.error(field, error.to_string()),
        }
    }
}

/// An absolute path that stays below what it names.
pub(super) fn is_path(path: &str) -> bool {
    path.starts_with('/')
        && path.len() < 4096
        && !path.contains(char::is_control)
        && !path.split('/').any(|part| part == "." || part == "..")
}
