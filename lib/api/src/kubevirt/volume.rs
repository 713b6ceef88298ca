//! Volumes: storage behind the disks of a guest.

use crate::resource::{Confidential, Empty, LocalReference, Quantity, resource};

resource! {
    /// Volume for the launcher that the guest does not see.
    pub struct UtilityVolume {
        /// Claim.
        pub claim_name: String ["x-required" = true],
        /// Name.
        pub name: String ["x-required" = true],
        /// Whether the volume is read-only. Default: false.
        pub read_only: Option<bool>,
        /// `MemoryDump`, or empty.
        #[serde(rename = "type")]
        pub kind: Option<String>,
    }

    /// Volume; exactly one source is set.
    pub struct Volume {
        /// Name, a DNS label.
        pub name: String ["x-required" = true],
        /// PersistentVolumeClaim: its block device, or `disk.img` in its filesystem.
        pub persistent_volume_claim: Option<ClaimVolume>,
        /// DataVolume.
        pub data_volume: Option<DataVolumeReference>,
        /// Disk in a container image; changes are lost when the guest stops.
        pub container_disk: Option<ContainerDisk>,
        /// Empty disk that is lost when the guest stops.
        pub empty_disk: Option<EmptyDisk>,
        /// Claim that is left unchanged; changes are lost when the guest stops.
        pub ephemeral: Option<EphemeralVolume>,
        /// File of the node.
        pub host_disk: Option<HostDisk>,
        /// cloud-init data as a CD with label `cidata`.
        pub cloud_init_no_cloud: Option<CloudInit>,
        /// cloud-init data as a CD with label `config-2`.
        pub cloud_init_config_drive: Option<CloudInit>,
        /// Windows setup files as a CD.
        pub sysprep: Option<Sysprep>,
        /// ConfigMap entries as files on a CD, or shared by virtiofs.
        pub config_map: Option<ConfigMapVolume>,
        /// Secret entries as files on a CD, or shared by virtiofs.
        pub secret: Option<SecretVolume>,
        /// Fields of the object as files on a CD, or shared by virtiofs.
        #[serde(rename = "downwardAPI")]
        pub downward_api: Option<DownwardApi>,
        /// Directory of the launcher container, shared by virtiofs.
        pub container_path: Option<ContainerPath>,
        /// Metrics of the host as a small disk.
        pub downward_metrics: Option<Empty>,
        /// Claim for a memory dump; added by the `memorydump` subresource.
        pub memory_dump: Option<ClaimVolume>,
        /// ServiceAccount token as a file on a CD, or shared by virtiofs.
        pub service_account: Option<ServiceAccountVolume>,
    }

    /// cloud-init data; at most one form each of user data and network data.
    pub struct CloudInit {
        /// User data.
        pub user_data: Option<Confidential>,
        /// User data in base64.
        pub user_data_base64: Option<Confidential>,
        /// Secret with user data (`userdata` or `userData`) and network data (`networkdata` or `networkData`).
        pub secret_ref: Option<LocalReference>,
        /// Network configuration.
        pub network_data: Option<Confidential>,
        /// Network configuration in base64.
        pub network_data_base64: Option<Confidential>,
        /// Secret with network data (`networkdata` or `networkData`).
        pub network_data_secret_ref: Option<LocalReference>,
    }

    /// ConfigMap entries as files.
    pub struct ConfigMapVolume {
        /// Name of the ConfigMap.
        pub name: String ["x-default" = ""],
        /// Whether the ConfigMap may be missing. Default: false.
        pub optional: Option<bool>,
        /// Label of the CD. Default: `cfgdata`.
        pub volume_label: Option<String>,
    }

    /// Container image with a disk below `/disk`.
    pub struct ContainerDisk {
        /// Image reference, or `oci-archive:FILE` on a standalone machine.
        pub image: String ["x-required" = true],
        /// Pull secret.
        pub image_pull_secret: Option<String>,
        /// `Always`, `IfNotPresent` or `Never`. Default: `Always` for the tag `latest`, else `IfNotPresent`.
        pub image_pull_policy: Option<String>,
        /// Path of the disk in the image. Default: the only file below `/disk`.
        pub path: Option<String>,
    }

    /// Directory of the launcher container.
    pub struct ContainerPath {
        /// Absolute path without `..`.
        pub path: String ["x-required" = true, "maxLength" = 4096, "x-kubernetes-validations" = [{"rule": "self.startsWith('/')"}, {"rule": "!self.contains('..')"}]],
        /// Always true.
        pub read_only: Option<bool> ["x-default" = true, "x-kubernetes-validations" = [{"rule": "self == true"}]],
    }

    /// DataVolume in the same namespace.
    pub struct DataVolumeReference {
        /// Name of the DataVolume and its claim.
        pub name: String ["x-required" = true],
        /// Whether the volume may be removed while the guest runs. Default: false.
        pub hotpluggable: Option<bool>,
    }

    /// Fields of the object as files.
    pub struct DownwardApi {
        /// Files.
        pub fields: Vec<DownwardApiField>,
        /// Label of the CD. Default: `cfgdata`.
        pub volume_label: Option<String>,
    }

    /// Field of the object as a file.
    pub struct DownwardApiField {
        /// Path of the file.
        pub path: String ["x-required" = true],
        /// Metadata field of the VirtualMachineInstance.
        pub field_ref: Option<FieldReference>,
        /// File mode.
        pub mode: Option<i32>,
        /// Resource of a container of the launcher pod.
        pub resource_field_ref: Option<ResourceFieldReference>,
    }

    /// Metadata field.
    pub struct FieldReference {
        /// `metadata.name`, `metadata.namespace`, `metadata.uid`, `metadata.labels` or `metadata.annotations`; the
        /// last two optionally with a key: `metadata.labels['KEY']`.
        pub field_path: String ["x-required" = true],
        /// Version of the schema. Default: `v1`.
        pub api_version: Option<String>,
    }

    /// Resource of a container.
    pub struct ResourceFieldReference {
        /// Name of the container.
        pub container_name: Option<String>,
        /// Unit of the value. Default: 1.
        pub divisor: Option<Quantity>,
        /// `requests.cpu`, `limits.memory` and similar.
        pub resource: String ["x-required" = true],
    }

    /// Empty disk.
    pub struct EmptyDisk {
        /// Size.
        pub capacity: Option<Quantity> ["x-required" = true],
    }

    /// Claim that is left unchanged.
    pub struct EphemeralVolume {
        /// Claim.
        pub persistent_volume_claim: Option<ClaimVolume> ["x-omit" = ["hotpluggable"]],
    }

    /// Claim in the same namespace.
    pub struct ClaimVolume {
        /// Name.
        pub claim_name: String ["x-required" = true],
        /// Whether the guest cannot write. Default: false.
        pub read_only: Option<bool>,
        /// Whether the volume may be removed while the guest runs. Default: false.
        pub hotpluggable: Option<bool>,
    }

    /// File of the node.
    pub struct HostDisk {
        /// Absolute path.
        pub path: String ["x-required" = true],
        /// `Disk` needs an existing file, `DiskOrCreate` creates a missing one with `capacity`.
        #[serde(rename = "type")]
        pub kind: String ["x-required" = true],
        /// Size of a created file.
        pub capacity: Option<Quantity>,
        /// Whether all nodes see the same file. Default: false.
        pub shared: Option<bool>,
    }

    /// Secret entries as files.
    pub struct SecretVolume {
        /// Name of the Secret.
        pub secret_name: String,
        /// Whether the Secret may be missing. Default: false.
        pub optional: Option<bool>,
        /// Label of the CD. Default: `cfgdata`.
        pub volume_label: Option<String>,
    }

    /// ServiceAccount token.
    pub struct ServiceAccountVolume {
        /// Name of the ServiceAccount.
        pub service_account_name: Option<String>,
    }

    /// Windows setup files such as `autounattend.xml`; one field is set.
    pub struct Sysprep {
        /// Secret with the files.
        pub secret: Option<LocalReference>,
        /// ConfigMap with the files.
        pub config_map: Option<LocalReference>,
    }
}
