//! Volumes of a launcher pod: its own directories, the instance's claims, Secrets, ConfigMaps and token, and containerDisks
//! and kernels: images that the kubelet mounts, or containers that hold them.

use std::collections::BTreeSet;

use api::kubevirt::{CloudInit, VirtualMachineInstance, Volume};
use serde_json::{Value, json};
use virt::pod;

use super::{Purpose, Settings, Unsupported, container_security};

/// emptyDirs of every pod, and where container `compute` sees them.
const DIRECTORIES: [(&str, &str); 5] = [
    ("private", pod::PRIVATE),
    ("public", pod::PUBLIC),
    ("container-disks", pod::CONTAINER_DISKS),
    ("ephemeral-disks", pod::EPHEMERAL),
    ("hotplug-disks", pod::HOTPLUG),
];
/// emptyDir for temporary files of the guest's programs.
const TEMPORARY: &str = "launcher-tmp";
/// Where they make them: swtpm_setup has the first path built in, QEMU the second.
const TEMPORARY_DIRECTORIES: [&str; 2] = ["/tmp", "/var/tmp"];
/// emptyDir with the program that holds containerDisks.
const BINARY_VOLUME: &str = "virt-bin-share-dir";
/// Where containers see it.
const BINARY_DIRECTORY: &str = "/var/run/kubevirt-container-disk-bin";

/// Seconds that a token is valid for; the API server lets one of this age live on, as it does for pods.
const TOKEN_SECONDS: u32 = 3607;

/// The pod's part of an instance's volumes.
#[derive(Debug, Default)]
pub(super) struct Storage {
    pub(super) volumes: Vec<Value>,
    /// Of container `compute`.
    pub(super) mounts: Vec<Value>,
    /// Of container `compute`.
    pub(super) devices: Vec<Value>,
    pub(super) containers: Vec<Value>,
    pub(super) init_containers: Vec<Value>,
    /// Secrets with registry passwords.
    pub(super) pull_secrets: BTreeSet<String>,
    /// ServiceAccount of the token that the guest gets.
    pub(super) account: Option<String>,
}

/// The pod's part of an instance's volumes. `raw` is the instance's spec.
pub(super) fn storage(
    object: &VirtualMachineInstance,
    raw: &Value,
    settings: &Settings,
    purpose: Purpose,
    is_block: &dyn Fn(&str) -> bool,
) -> Result<Storage, Unsupported> {
    let mut storage = Storage::default();
    for (name, path) in DIRECTORIES {
        storage.volumes.push(json!({"name": name, "emptyDir": {}}));
        let mut mount = json!({"name": name, "mountPath": path});
        if name == "hotplug-disks" {
            mount["mountPropagation"] = json!("HostToContainer");
        }
        storage.mounts.push(mount);
    }
    if purpose == Purpose::Guest {
        storage.volumes.push(json!({"name": TEMPORARY, "emptyDir": {}}));
        let temporary = TEMPORARY_DIRECTORIES.iter();
        storage.mounts.extend(temporary.map(|path| json!({"name": TEMPORARY, "mountPath": path})));
    }
    refuse(raw)?;
    for (index, volume) in object.spec.volumes.iter().enumerate() {
        // One that comes and goes has a pod of its own once the guest has its node.
        if purpose == Purpose::Provision || !virt::live::is_hotpluggable(volume) {
            storage.claim(volume, is_block);
        }
        if purpose == Purpose::Guest {
            storage.files(index, volume);
            storage.container_disk(volume, settings);
            storage.token(volume);
        }
    }
    if purpose == Purpose::Guest {
        storage.kernel(object, settings);
        storage.credentials(raw);
        storage.binary(settings);
    }
    Ok(storage)
}

/// Volumes that this release cannot follow.
fn refuse(raw: &Value) -> Result<(), Unsupported> {
    const REFUSED: [(&str, &str); 4] = [
        ("hostDisk", "hostDisk is not supported: use a claim"),
        ("containerPath", "containerPath is not supported yet"),
        ("downwardMetrics", "downwardMetrics is not supported yet"),
        ("memoryDump", "a memory dump cannot be a volume of an instance that starts"),
    ];
    let volumes = raw.get("volumes").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for (index, volume) in volumes.iter().enumerate() {
        for (source, problem) in REFUSED {
            if volume.get(source).is_some_and(|source| !source.is_null()) {
                return Err(Unsupported::field(format!("spec.volumes[{index}].{source}"), problem));
            }
        }
    }
    Ok(())
}

/// Name of a volume in the pod: its own, unless one of the pod's directories has that.
fn name_in_pod(name: &str) -> String {
    let taken = DIRECTORIES.iter().any(|(own, _)| *own == name)
        || [BINARY_VOLUME, TEMPORARY, pod::STATE_VOLUME].contains(&name);
    if taken { format!("{name}-disk") } else { name.to_owned() }
}

impl Storage {
    fn claim(&mut self, volume: &Volume, is_block: &dyn Fn(&str) -> bool) {
        let ephemeral = volume.ephemeral.as_ref().and_then(|one| one.persistent_volume_claim.as_ref());
        let named = volume.persistent_volume_claim.as_ref().or(ephemeral);
        let data_volume = volume.data_volume.as_ref().map(|one| one.name.as_str());
        let Some(claim) = data_volume.or_else(|| named.map(|one| one.claim_name.as_str())) else { return };
        let name = name_in_pod(&volume.name);
        let mut source = json!({"claimName": claim});
        if named.is_some_and(|one| one.read_only == Some(true)) {
            source["readOnly"] = json!(true);
        }
        self.volumes.push(json!({"name": name, "persistentVolumeClaim": source}));
        if is_block(claim) {
            self.devices.push(json!({"name": name, "devicePath": pod::claim_device(&volume.name)}));
        } else {
            self.mounts.push(json!({"name": name, "mountPath": pod::claim_directory(&volume.name)}));
        }
    }

    /// Secrets and ConfigMaps, which virt-agent reads from the kubelet's directory.
    fn files(&mut self, index: usize, volume: &Volume) {
        let name = name_in_pod(&volume.name);
        if let Some(secret) = &volume.secret {
            self.secret(&name, &volume.name, &secret.secret_name, secret.optional);
        }
        if let Some(map) = &volume.config_map {
            self.config_map(&name, &volume.name, &map.name, map.optional);
        }
        if let Some(sysprep) = &volume.sysprep {
            if let Some(secret) = &sysprep.secret {
                self.secret(&name, &volume.name, &secret.name, None);
            } else if let Some(map) = &sysprep.config_map {
                self.config_map(&name, &volume.name, &map.name, None);
            }
        }
        if let Some(data) = volume.cloud_init_no_cloud.as_ref().or(volume.cloud_init_config_drive.as_ref()) {
            self.cloud_init(index, volume, data);
        }
    }

    fn cloud_init(&mut self, index: usize, volume: &Volume, data: &CloudInit) {
        let references = [("udata", &data.secret_ref), ("ndata", &data.network_data_secret_ref)];
        for (kind, reference) in references {
            if let Some(secret) = reference {
                // The volume's name may be as long as a volume's name in a pod can be.
                let name = format!("cloud-init-{index}-{kind}");
                self.secret(&name, &format!("{}-{kind}", volume.name), &secret.name, None);
            }
        }
    }

    fn secret(&mut self, name: &str, volume: &str, secret: &str, optional: Option<bool>) {
        let mut source = json!({"secretName": secret});
        if let Some(optional) = optional {
            source["optional"] = json!(optional);
        }
        self.volumes.push(json!({"name": name, "secret": source}));
        self.mounts.push(json!({"name": name, "mountPath": pod::secret(volume), "readOnly": true}));
    }

    fn config_map(&mut self, name: &str, volume: &str, map: &str, optional: Option<bool>) {
        let mut source = json!({"name": map});
        if let Some(optional) = optional {
            source["optional"] = json!(optional);
        }
        self.volumes.push(json!({"name": name, "configMap": source}));
        self.mounts.push(json!({"name": name, "mountPath": pod::config_map(volume), "readOnly": true}));
    }

    /// Secrets of `accessCredentials`.
    fn credentials(&mut self, raw: &Value) {
        let credentials = raw.get("accessCredentials").and_then(Value::as_array);
        for (index, credential) in credentials.into_iter().flatten().enumerate() {
            let secret = ["/sshPublicKey/source/secret/secretName", "/userPassword/source/secret/secretName"]
                .iter()
                .find_map(|path| credential.pointer(path).and_then(Value::as_str));
            if let Some(secret) = secret {
                let name = format!("access-credential-{index}");
                self.secret(&name, &name, secret, None);
            }
        }
    }

    fn container_disk(&mut self, volume: &Volume, settings: &Settings) {
        let Some(disk) = &volume.container_disk else { return };
        let (policy, secret) = (disk.image_pull_policy.as_ref(), disk.image_pull_secret.as_ref());
        self.image(settings, &volume.name, &disk.image, policy, secret);
    }

    /// The image with the guest's kernel.
    fn kernel(&mut self, object: &VirtualMachineInstance, settings: &Settings) {
        let boot = object.spec.domain.firmware.as_ref().and_then(|firmware| firmware.kernel_boot.as_ref());
        let Some(kernel) = boot.and_then(|boot| boot.container.as_ref()) else { return };
        let (policy, secret) = (kernel.image_pull_policy.as_ref(), kernel.image_pull_secret.as_ref());
        self.image(settings, pod::KERNEL_VOLUME, &kernel.image, policy, secret);
    }

    /// The token of a ServiceAccount as the kubelet gives it to pods, to container `compute` alone: containers of users'
    /// images have none.
    fn token(&mut self, volume: &Volume) {
        let Some(account) = volume.service_account.as_ref().and_then(|one| one.service_account_name.clone())
        else {
            return;
        };
        let name = name_in_pod(&volume.name);
        let namespace =
            json!({"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}});
        let sources = json!([
            {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_SECONDS}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [namespace]}},
        ]);
        self.volumes.push(json!({"name": name, "projected": {"sources": sources}}));
        self.mounts.push(json!({"name": name, "mountPath": pod::ACCOUNT, "readOnly": true}));
        self.account = Some(account);
    }

    /// The claim for what the guest keeps besides its disks.
    pub(super) fn state(&mut self, claim: &str) {
        let name = pod::STATE_VOLUME;
        self.volumes.push(json!({"name": name, "persistentVolumeClaim": {"claimName": claim}}));
        self.mounts.push(json!({"name": name, "mountPath": pod::STATE}));
    }

    /// An image: a volume where the kubelet mounts it, else a container that keeps it open.
    fn image(
        &mut self,
        settings: &Settings,
        volume: &str,
        image: &str,
        policy: Option<&String>,
        secret: Option<&String>,
    ) {
        self.pull_secrets.extend(secret.cloned());
        if settings.image_volumes {
            let name = name_in_pod(volume);
            let mut source = json!({"reference": image});
            if let Some(policy) = policy {
                source["pullPolicy"] = json!(policy);
            }
            self.volumes.push(json!({"name": name, "image": source}));
            let path = pod::image_directory(volume);
            self.mounts.push(json!({"name": name, "mountPath": path, "readOnly": true}));
            return;
        }
        let mut container = json!({
            "name": pod::image_container(volume),
            "image": image,
            "command": [format!("{BINARY_DIRECTORY}/container-disk")],
            "securityContext": container_security(),
            "resources": helper_resources(),
            "volumeMounts": [{"name": BINARY_VOLUME, "mountPath": BINARY_DIRECTORY, "readOnly": true}],
        });
        if let Some(policy) = policy {
            container["imagePullPolicy"] = json!(policy);
        }
        self.containers.push(container);
    }

    /// The program of containers that hold containerDisks, where there are any.
    fn binary(&mut self, settings: &Settings) {
        if self.containers.is_empty() {
            return;
        }
        self.volumes.push(json!({"name": BINARY_VOLUME, "emptyDir": {}}));
        let mut container = json!({
            "name": "container-disk-binary",
            "image": settings.image,
            "command": ["/usr/bin/cp", "/usr/bin/container-disk", format!("{BINARY_DIRECTORY}/container-disk")],
            "securityContext": container_security(),
            "resources": helper_resources(),
            "volumeMounts": [{"name": BINARY_VOLUME, "mountPath": BINARY_DIRECTORY}],
        });
        if let Some(policy) = &settings.pull_policy {
            container["imagePullPolicy"] = json!(policy);
        }
        self.init_containers.push(container);
    }
}

/// Requests equal limits, so that a pod with a guest of class Guaranteed is of that class.
pub(super) fn helper_resources() -> Value {
    json!({"requests": {"cpu": "10m", "memory": "40M"}, "limits": {"cpu": "10m", "memory": "40M"}})
}
