//! Volumes: where the bytes of disks are.

use crate::resource::{Confidential, LocalReference, Quantity, resource};

resource! {
    /// A volume: a name, and exactly one of the sources.
    pub struct Volume {
        /// Its name, a DNS label.
        pub name: String,
        /// A PersistentVolumeClaim: `disk.img` in its filesystem, or its block device.
        pub persistent_volume_claim: Option<ClaimVolume>,
        /// A DataVolume: the claim it makes.
        pub data_volume: Option<DataVolumeReference>,
        /// The disk in a container image; what the guest writes is lost when it stops.
        pub container_disk: Option<ContainerDisk>,
        /// A new disk that is lost when the guest stops.
        pub empty_disk: Option<EmptyDisk>,
        /// A claim that stays as it is; what the guest writes is lost when it stops.
        pub ephemeral: Option<EphemeralVolume>,
        /// A file of the host.
        pub host_disk: Option<HostDisk>,
        /// A small CD for cloud-init, label `cidata`.
        pub cloud_init_no_cloud: Option<CloudInit>,
        /// A small CD for cloud-init, label `config-2`.
        pub cloud_init_config_drive: Option<CloudInit>,
        /// A small CD for Windows' setup.
        pub sysprep: Option<Sysprep>,
        /// The entries of a ConfigMap as files on a small CD.
        pub config_map: Option<ConfigMapVolume>,
        /// The entries of a Secret as files on a small CD.
        pub secret: Option<SecretVolume>,
        /// Fields of the object as files on a small CD.
        #[serde(rename = "downwardAPI")]
        pub downward_api: Option<DownwardApi>,
    }

    /// A claim in the same namespace.
    pub struct ClaimVolume {
        /// Its name.
        pub claim_name: String,
        /// The guest cannot write. Default: no.
        pub read_only: Option<bool>,
        /// Whether it may be taken away while the guest runs. Default: no.
        pub hotpluggable: Option<bool>,
    }

    /// A DataVolume in the same namespace.
    pub struct DataVolumeReference {
        /// Its name, and that of its claim.
        pub name: String,
        /// Whether it may be taken away while the guest runs. Default: no.
        pub hotpluggable: Option<bool>,
    }

    /// A container image with one disk under `/disk`.
    pub struct ContainerDisk {
        /// Where the image is: a registry's reference, or `oci-archive:FILE` (standalone).
        pub image: String,
        /// The Secret with a password for it.
        pub image_pull_secret: Option<String>,
        /// `Always`, `IfNotPresent` or `Never`. Default: `Always` for the tag `latest`, else `IfNotPresent`.
        pub image_pull_policy: Option<String>,
        /// The disk's path in the image. Default: the one file under `/disk`.
        pub path: Option<String>,
    }

    /// A new disk.
    pub struct EmptyDisk {
        /// Its size.
        pub capacity: Option<Quantity>,
    }

    /// A claim that stays as it is.
    pub struct EphemeralVolume {
        /// The claim.
        pub persistent_volume_claim: Option<ClaimVolume>,
    }

    /// A file of the host.
    pub struct HostDisk {
        /// Its absolute path.
        pub path: String,
        /// `Disk`: it is there. `DiskOrCreate`: it is made, with `capacity`.
        #[serde(rename = "type")]
        pub kind: String,
        /// Size of a file that is made.
        pub capacity: Option<Quantity>,
        /// Whether all nodes see the same file. Default: no.
        pub shared: Option<bool>,
    }

    /// Data for cloud-init: of user data and of network data at most one form each.
    pub struct CloudInit {
        /// User data.
        pub user_data: Option<Confidential>,
        /// User data in base64.
        pub user_data_base64: Option<Confidential>,
        /// A Secret with user data under `userdata` (or `userData`), and network data under `networkdata`.
        pub secret_ref: Option<LocalReference>,
        /// Network configuration.
        pub network_data: Option<Confidential>,
        /// Network configuration in base64.
        pub network_data_base64: Option<Confidential>,
        /// A Secret with network data under `networkdata` (or `networkData`).
        pub network_data_secret_ref: Option<LocalReference>,
    }

    /// Files for Windows' setup, such as `autounattend.xml`: one of the two.
    pub struct Sysprep {
        /// From a Secret.
        pub secret: Option<LocalReference>,
        /// From a ConfigMap.
        pub config_map: Option<LocalReference>,
    }

    /// The entries of a ConfigMap as files.
    pub struct ConfigMapVolume {
        /// Its name.
        pub name: String,
        /// Whether it may be missing. Default: no.
        pub optional: Option<bool>,
        /// Label of the CD. Default: `cfgdata`.
        pub volume_label: Option<String>,
    }

    /// The entries of a Secret as files.
    pub struct SecretVolume {
        /// Its name.
        pub secret_name: String,
        /// Whether it may be missing. Default: no.
        pub optional: Option<bool>,
        /// Label of the CD. Default: `cfgdata`.
        pub volume_label: Option<String>,
    }

    /// Fields of the object as files.
    pub struct DownwardApi {
        /// The files.
        pub fields: Vec<DownwardApiField>,
        /// Label of the CD. Default: `cfgdata`.
        pub volume_label: Option<String>,
    }

    /// One field as a file.
    pub struct DownwardApiField {
        /// The file's path on the CD.
        pub path: String,
        /// The field.
        pub field_ref: Option<FieldReference>,
    }

    /// A field of the object.
    pub struct FieldReference {
        /// `metadata.name`, `metadata.namespace`, `metadata.uid`, `metadata.labels`, `metadata.annotations`, or one of
        /// the last two with a key: `metadata.labels['KEY']`.
        pub field_path: String,
    }
}
