//! CustomResourceDefinitions of the kinds whose schemas are generated here: names, versions, columns, subresources.
//!
//! Not here: which of them are installed, and in what order.

use serde_json::{Value, json};

use crate::{addons, cdi, hostpath, hyperconverged, instancetype, kubevirt, multus, schema, ssp};

/// Definition of one kind.
#[derive(Clone, Copy)]
pub struct Definition {
    /// API group.
    pub group: &'static str,
    /// Kind.
    pub kind: &'static str,
    /// Resource in plural.
    pub plural: &'static str,
    /// Resource in singular.
    pub singular: &'static str,
    /// Short names for command lines.
    pub short_names: &'static [&'static str],
    /// Whether `kubectl get all` lists the kind.
    pub in_all: bool,
    /// Whether objects have a namespace.
    pub namespaced: bool,
    /// Served versions with the same schema; the first is stored.
    pub versions: &'static [&'static str],
    /// Further served versions, with schemas of their own. Such a kind needs a conversion webhook, unless fields that a
    /// version lacks may be lost: a write through one of these drops the fields that only the stored version has, too.
    pub others: &'static [Other],
    /// Whether `status` is a subresource.
    pub status: bool,
    /// Whether `scale` is a subresource, with upstream's paths.
    pub scale: bool,
    /// Columns of `kubectl get`.
    pub columns: &'static [Column],
    schema: fn() -> Value,
}

/// Served version with a schema of its own.
#[derive(Clone, Copy)]
pub struct Other {
    /// Version.
    pub version: &'static str,
    schema: fn() -> Value,
}

impl Other {
    /// Schema of the version.
    pub fn schema(&self) -> Value {
        (self.schema)()
    }
}

/// Column of `kubectl get`.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Heading.
    pub name: &'static str,
    /// OpenAPI type.
    pub kind: &'static str,
    /// JSON path of the value.
    pub path: &'static str,
    /// Whether only `-o wide` shows it.
    pub wide: bool,
}

const fn column(name: &'static str, path: &'static str) -> Column {
    Column { name, kind: "string", path, wide: false }
}

const fn number(name: &'static str, path: &'static str) -> Column {
    Column { kind: "integer", ..column(name, path) }
}

const fn wide(name: &'static str, path: &'static str) -> Column {
    Column { wide: true, ..column(name, path) }
}

const AGE: Column = Column { kind: "date", ..column("Age", ".metadata.creationTimestamp") };
const PHASE: Column = column("Phase", ".status.phase");
const READY: Column = column("Ready", ".status.conditions[?(@.type=='Ready')].status");

/// Definition of a namespaced kind of kubevirt.io.
const fn compute(kind: &'static str, plural: &'static str, schema: fn() -> Value) -> Definition {
    Definition {
        group: "kubevirt.io",
        kind,
        plural,
        singular: "",
        short_names: &[],
        in_all: true,
        namespaced: true,
        versions: &["v1", "v1alpha3"],
        others: &[],
        status: true,
        scale: false,
        columns: &[],
        schema,
    }
}

/// Definition of a kind of instancetype.kubevirt.io.
const fn flavor(
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
    schema: fn() -> Value,
) -> Definition {
    Definition {
        group: "instancetype.kubevirt.io",
        namespaced,
        versions: &["v1beta1"],
        status: false,
        ..compute(kind, plural, schema)
    }
}

/// Definition of a kind of cdi.kubevirt.io.
const fn storage(
    kind: &'static str,
    plural: &'static str,
    namespaced: bool,
    schema: fn() -> Value,
) -> Definition {
    Definition {
        group: "cdi.kubevirt.io",
        in_all: false,
        namespaced,
        versions: &["v1beta1"],
        status: false,
        ..compute(kind, plural, schema)
    }
}

/// All definitions.
pub const ALL: &[Definition] = &[
    Definition {
        singular: "virtualmachine",
        short_names: &["vm", "vms"],
        columns: &[AGE, column("Status", ".status.printableStatus"), READY],
        ..compute("VirtualMachine", "virtualmachines", schema::structural::<kubevirt::VirtualMachine>)
    },
    Definition {
        singular: "virtualmachineinstance",
        short_names: &["vmi", "vmis"],
        status: false,
        columns: &[
            AGE,
            PHASE,
            column("IP", ".status.interfaces[0].ipAddress"),
            column("NodeName", ".status.nodeName"),
            READY,
            wide("Live-Migratable", ".status.conditions[?(@.type=='LiveMigratable')].status"),
            wide("Paused", ".status.conditions[?(@.type=='Paused')].status"),
        ],
        ..compute(
            "VirtualMachineInstance",
            "virtualmachineinstances",
            schema::structural::<kubevirt::VirtualMachineInstance>,
        )
    },
    Definition {
        singular: "virtualmachineinstancemigration",
        short_names: &["vmim", "vmims"],
        columns: &[PHASE, column("VMI", ".spec.vmiName")],
        ..compute(
            "VirtualMachineInstanceMigration",
            "virtualmachineinstancemigrations",
            schema::structural::<kubevirt::VirtualMachineInstanceMigration>,
        )
    },
    Definition {
        singular: "virtualmachineinstancereplicaset",
        short_names: &["vmirs", "vmirss"],
        scale: true,
        columns: &[
            number("Desired", ".spec.replicas"),
            number("Current", ".status.replicas"),
            number("Ready", ".status.readyReplicas"),
            AGE,
        ],
        ..compute(
            "VirtualMachineInstanceReplicaSet",
            "virtualmachineinstancereplicasets",
            schema::structural::<kubevirt::VirtualMachineInstanceReplicaSet>,
        )
    },
    Definition {
        singular: "virtualmachineinstancepreset",
        short_names: &["vmipreset", "vmipresets"],
        versions: &["v1alpha3", "v1"],
        status: false,
        ..compute(
            "VirtualMachineInstancePreset",
            "virtualmachineinstancepresets",
            schema::structural::<kubevirt::VirtualMachineInstancePreset>,
        )
    },
    Definition {
        singular: "kubevirt",
        short_names: &["kv", "kvs"],
        columns: &[AGE, PHASE],
        ..compute("KubeVirt", "kubevirts", schema::structural::<kubevirt::KubeVirt>)
    },
    Definition {
        group: "pool.kubevirt.io",
        singular: "virtualmachinepool",
        short_names: &["vmpool", "vmpools"],
        versions: &["v1beta1", "v1alpha1"],
        scale: true,
        columns: &[
            number("Desired", ".spec.replicas"),
            number("Current", ".status.replicas"),
            number("Ready", ".status.readyReplicas"),
            AGE,
        ],
        ..compute(
            "VirtualMachinePool",
            "virtualmachinepools",
            schema::structural::<kubevirt::VirtualMachinePool>,
        )
    },
    Definition {
        group: "migrations.kubevirt.io",
        singular: "migrationpolicy",
        namespaced: false,
        versions: &["v1alpha1"],
        ..compute("MigrationPolicy", "migrationpolicies", schema::structural::<kubevirt::MigrationPolicy>)
    },
    Definition {
        singular: "virtualmachineinstancetype",
        short_names: &["vminstancetype", "vminstancetypes", "vmf", "vmfs"],
        ..flavor(
            "VirtualMachineInstancetype",
            "virtualmachineinstancetypes",
            true,
            schema::structural::<instancetype::VirtualMachineInstancetype>,
        )
    },
    Definition {
        singular: "virtualmachineclusterinstancetype",
        short_names: &["vmclusterinstancetype", "vmclusterinstancetypes", "vmcf", "vmcfs"],
        ..flavor(
            "VirtualMachineClusterInstancetype",
            "virtualmachineclusterinstancetypes",
            false,
            schema::structural::<instancetype::VirtualMachineClusterInstancetype>,
        )
    },
    Definition {
        singular: "virtualmachinepreference",
        short_names: &["vmpref", "vmprefs", "vmp", "vmps"],
        ..flavor(
            "VirtualMachinePreference",
            "virtualmachinepreferences",
            true,
            schema::structural::<instancetype::VirtualMachinePreference>,
        )
    },
    Definition {
        singular: "virtualmachineclusterpreference",
        short_names: &["vmcp", "vmcps"],
        ..flavor(
            "VirtualMachineClusterPreference",
            "virtualmachineclusterpreferences",
            false,
            schema::structural::<instancetype::VirtualMachineClusterPreference>,
        )
    },
    Definition {
        singular: "datavolume",
        short_names: &["dv", "dvs"],
        in_all: true,
        status: true,
        columns: &[
            PHASE,
            column("Progress", ".status.progress"),
            number("Restarts", ".status.restartCount"),
            AGE,
        ],
        ..storage("DataVolume", "datavolumes", true, schema::structural::<cdi::DataVolume>)
    },
    Definition {
        singular: "cdi",
        short_names: &["cdi", "cdis"],
        columns: &[AGE, PHASE],
        ..storage("CDI", "cdis", false, schema::structural::<cdi::Cdi>)
    },
    Definition {
        singular: "cdiconfig",
        ..storage("CDIConfig", "cdiconfigs", false, schema::structural::<cdi::CdiConfig>)
    },
    Definition {
        singular: "storageprofile",
        status: true,
        ..storage("StorageProfile", "storageprofiles", false, schema::structural::<cdi::StorageProfile>)
    },
    Definition {
        singular: "datasource",
        short_names: &["das"],
        in_all: true,
        ..storage("DataSource", "datasources", true, schema::structural::<cdi::DataSource>)
    },
    Definition {
        singular: "dataimportcron",
        short_names: &["dic", "dics"],
        in_all: true,
        columns: &[column("Format", ".status.sourceFormat")],
        ..storage("DataImportCron", "dataimportcrons", true, schema::structural::<cdi::DataImportCron>)
    },
    Definition {
        singular: "volumeimportsource",
        ..storage(
            "VolumeImportSource",
            "volumeimportsources",
            true,
            schema::structural::<cdi::VolumeImportSource>,
        )
    },
    Definition {
        singular: "volumeuploadsource",
        ..storage(
            "VolumeUploadSource",
            "volumeuploadsources",
            true,
            schema::structural::<cdi::VolumeUploadSource>,
        )
    },
    Definition {
        singular: "volumeclonesource",
        ..storage(
            "VolumeCloneSource",
            "volumeclonesources",
            true,
            schema::structural::<cdi::VolumeCloneSource>,
        )
    },
    Definition {
        singular: "objecttransfer",
        short_names: &["ot", "ots"],
        status: true,
        columns: &[AGE, PHASE],
        ..storage("ObjectTransfer", "objecttransfers", false, schema::structural::<cdi::ObjectTransfer>)
    },
    Definition {
        group: "k8s.cni.cncf.io",
        singular: "network-attachment-definition",
        short_names: &["net-attach-def"],
        versions: &["v1"],
        ..storage(
            "NetworkAttachmentDefinition",
            "network-attachment-definitions",
            true,
            schema::structural::<multus::NetworkAttachmentDefinition>,
        )
    },
    Definition {
        group: hyperconverged::GROUP,
        singular: "hyperconverged",
        short_names: &["hco", "hcos"],
        in_all: false,
        versions: &["v1"],
        others: &[Other {
            version: "v1beta1",
            schema: || entry_point(schema::structural::<hyperconverged::v1beta1::HyperConverged>()),
        }],
        columns: &[AGE],
        ..compute("HyperConverged", "hyperconvergeds", || {
            entry_point(schema::structural::<hyperconverged::v1::HyperConverged>())
        })
    },
    Definition {
        group: "ssp.kubevirt.io",
        singular: "ssp",
        in_all: false,
        versions: &["v1beta3"],
        others: &[Other { version: "v1beta2", schema: || ssp::v1beta2(schema::structural::<ssp::Ssp>()) }],
        columns: &[AGE, PHASE],
        ..compute("SSP", "ssps", schema::structural::<ssp::Ssp>)
    },
    Definition {
        group: addons::GROUP,
        singular: "networkaddonsconfig",
        in_all: false,
        namespaced: false,
        versions: &["v1", "v1alpha1"],
        ..compute(
            "NetworkAddonsConfig",
            "networkaddonsconfigs",
            schema::structural::<addons::NetworkAddonsConfig>,
        )
    },
    Definition {
        group: hostpath::GROUP,
        singular: "hostpathprovisioner",
        in_all: false,
        namespaced: false,
        versions: &["v1beta1"],
        status: false,
        ..compute(
            "HostPathProvisioner",
            "hostpathprovisioners",
            schema::structural::<hostpath::HostPathProvisioner>,
        )
    },
];

/// A schema whose objects have the one allowed name.
fn entry_point(mut schema: Value) -> Value {
    schema["properties"]["metadata"]["properties"]["name"] =
        json!({"type": "string", "pattern": hyperconverged::NAME});
    schema
}

impl Definition {
    /// Name of the CustomResourceDefinition object.
    pub fn name(&self) -> String {
        format!("{}.{}", self.plural, self.group)
    }

    /// Schema of [`Self::versions`].
    pub fn schema(&self) -> Value {
        (self.schema)()
    }

    /// The CustomResourceDefinition object.
    pub fn manifest(&self) -> Value {
        let schema = self.schema();
        let equal = self.versions.iter().map(|version| (*version, schema.clone()));
        let others = self.others.iter().map(|other| (other.version, other.schema()));
        let versions = equal.chain(others).enumerate().map(|(index, (version, schema))| {
            let mut version = json!({
                "name": version,
                "served": true,
                "storage": index == 0,
                "schema": {"openAPIV3Schema": schema},
            });
            if !self.columns.is_empty() {
                version["additionalPrinterColumns"] = self.columns.iter().map(Column::manifest).collect();
            }
            if self.status {
                version["subresources"]["status"] = json!({});
            }
            if self.scale {
                version["subresources"]["scale"] = json!({
                    "specReplicasPath": ".spec.replicas",
                    "statusReplicasPath": ".status.replicas",
                    "labelSelectorPath": ".status.labelSelector",
                });
            }
            version
        });
        let mut names = json!({
            "kind": self.kind,
            "listKind": format!("{}List", self.kind),
            "plural": self.plural,
            "singular": self.singular,
        });
        if !self.short_names.is_empty() {
            names["shortNames"] = json!(self.short_names);
        }
        if self.in_all {
            names["categories"] = json!(["all"]);
        }
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": self.name()},
            "spec": {
                "group": self.group,
                "names": names,
                "scope": if self.namespaced { "Namespaced" } else { "Cluster" },
                "versions": versions.collect::<Vec<_>>(),
            },
        })
    }
}

impl Column {
    fn manifest(&self) -> Value {
        let mut column = json!({"name": self.name, "type": self.kind, "jsonPath": self.path});
        if self.wide {
            column["priority"] = json!(1);
        }
        column
    }
}
