//! The tables of fields that have no effect, or are refused.

use api::kind::Kind;

use crate::finding::Verdict::{self, Error, Ignored, Unsupported};

/// Where a row holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Where {
    /// On one machine and in a cluster.
    Anywhere,
    /// On one machine only: a cluster uses the field.
    Machine,
    /// In a cluster only.
    Cluster,
}

/// A field and what becomes of it and of all below it.
pub(super) struct Row {
    pub(super) field: &'static str,
    pub(super) verdict: Verdict,
    pub(super) text: &'static str,
    pub(super) place: Where,
}

/// The field is not supported yet.
pub(super) const LATER: &str = "not supported yet; it has no effect";

/// Devices of the host are for clusters: a device plugin counts them.
const NO_DEVICES: &str = "not supported yet on one machine: devices of the host cannot be given to a guest";
/// A launcher's pod has the ServiceAccount of a volume `serviceAccount`, or the namespace's default.
const ONLY_CLONES: &str = "used for clones by dataVolumeTemplates only; the launcher's pod does not have it";
/// Devices are allocated by a device plugin.
const NO_CLAIMS: &str = "not supported yet: name a device of permittedHostDevices in deviceName";

const fn row(field: &'static str, verdict: Verdict, text: &'static str) -> Row {
    Row { field, verdict, text, place: Where::Anywhere }
}

const fn later(field: &'static str) -> Row {
    row(field, Unsupported, LATER)
}

/// A cluster uses the field; for one machine it is not supported yet.
const fn later_alone(field: &'static str) -> Row {
    Row { field, verdict: Unsupported, text: LATER, place: Where::Machine }
}

/// The field has a meaning in a cluster only.
const fn only_cluster(field: &'static str) -> Row {
    Row { field, verdict: Ignored, text: "only for clusters", place: Where::Machine }
}

/// The field has a meaning in a cluster only, and none is built yet.
const fn later_in_cluster(field: &'static str) -> Row {
    Row { field, verdict: Unsupported, text: LATER, place: Where::Cluster }
}

/// A cluster uses the field; one machine refuses it.
const fn refused_alone(field: &'static str, text: &'static str) -> Row {
    Row { field, verdict: Error, text, place: Where::Machine }
}

/// Below a VirtualMachineInstance's spec.
const INSTANCE: &[Row] = &[
    later_alone("accessCredentials[].sshPublicKey.propagationMethod.qemuGuestAgent"),
    later_alone("accessCredentials[].userPassword"),
    only_cluster("affinity"),
    only_cluster("dnsConfig"),
    only_cluster("dnsPolicy"),
    only_cluster("evictionStrategy"),
    later_in_cluster("evictionStrategy"),
    later_alone("livenessProbe"),
    only_cluster("nodeSelector"),
    only_cluster("priorityClassName"),
    later_alone("readinessProbe"),
    row("resourceClaims", Error, NO_CLAIMS),
    only_cluster("schedulerName"),
    only_cluster("serviceAccountName"),
    Row { field: "serviceAccountName", verdict: Unsupported, text: ONLY_CLONES, place: Where::Cluster },
    only_cluster("subdomain"),
    only_cluster("tolerations"),
    only_cluster("topologySpreadConstraints"),
    later("utilityVolumes"),
    later_alone("domain.cpu.dedicatedCpuPlacement"),
    later_alone("domain.cpu.isolateEmulatorThread"),
    row(
        "domain.cpu.numa",
        Unsupported,
        "not supported yet: the guest has one NUMA node, whatever its CPUs have",
    ),
    later("domain.cpu.realtime"),
    later("domain.devices.autoattachVSOCK"),
    Row {
        field: "domain.devices.clientPassthrough",
        verdict: Unsupported,
        text: "not supported yet on one machine: the guest has the channels, and no command connects a USB device",
        place: Where::Machine,
    },
    row(
        "domain.devices.disks[].blockSize.custom.discardGranularity",
        Unsupported,
        "libvirt 9.0 cannot set it",
    ),
    later("domain.devices.disks[].changedBlockTracking"),
    later("domain.devices.disks[].lun.reservation"),
    later("domain.devices.downwardMetrics"),
    row("domain.devices.filesystems", Error, "not supported yet: use a disk"),
    row("domain.devices.gpus[].claimName", Error, NO_CLAIMS),
    row("domain.devices.gpus[].requestName", Error, NO_CLAIMS),
    later("domain.devices.gpus[].tag"),
    refused_alone("domain.devices.gpus", NO_DEVICES),
    row("domain.devices.hostDevices[].claimName", Error, NO_CLAIMS),
    row("domain.devices.hostDevices[].requestName", Error, NO_CLAIMS),
    later("domain.devices.hostDevices[].tag"),
    refused_alone("domain.devices.hostDevices", NO_DEVICES),
    row("domain.devices.interfaces[].binding", Error, "not supported yet: use masquerade or bridge"),
    row("domain.devices.interfaces[].macvtap", Error, "KubeVirt has removed it: use bridge"),
    row("domain.devices.interfaces[].passt", Error, "KubeVirt has removed it: use masquerade"),
    row("domain.devices.interfaces[].passtBinding", Error, "not supported yet: use masquerade"),
    row("domain.devices.interfaces[].slirp", Error, "KubeVirt has removed it: use masquerade"),
    row("domain.devices.interfaces[].sriov", Error, "not supported yet: use bridge"),
    row("domain.devices.watchdog.diag288", Error, "a device of s390x: use i6300esb"),
    later("domain.features.hyperv.tlbflush.direct"),
    later("domain.features.hyperv.tlbflush.extended"),
    later("domain.features.hypervPassthrough"),
    later("domain.firmware.acpi"),
    refused_alone("domain.firmware.kernelBoot", "not supported yet on one machine: boot from a disk"),
    row("domain.launchSecurity", Error, "not supported yet: the guest would run without it"),
    only_cluster("domain.memory.reservedOverhead"),
    later_in_cluster("domain.memory.reservedOverhead"),
    only_cluster("domain.resources.overcommitGuestOverhead"),
    later_in_cluster("domain.resources.overcommitGuestOverhead"),
    row("networks[].resourceClaim", Error, "not supported yet: use multus"),
    Row {
        field: "volumes[].containerDisk.path",
        verdict: Unsupported,
        text: "the only file of the image is used as the disk",
        place: Where::Machine,
    },
    row("volumes[].containerPath", Error, "not supported yet"),
    row("volumes[].downwardMetrics", Error, "not supported yet"),
    row("volumes[].memoryDump", Error, "KubeVirt deprecates it: request a dump by `virtctl memory-dump get`"),
    refused_alone("volumes[].serviceAccount", "ServiceAccounts are a cluster's; this machine has none"),
];

/// Below a VirtualMachine's spec.
const MACHINE: &[Row] = &[
    row("dataVolumeTemplates[].status", Ignored, "set by the program; ignored here"),
    refused_alone("instancetype", "not supported yet: write cpu and memory into the template"),
    Row { field: "preference", verdict: Unsupported, text: LATER, place: Where::Machine },
    later("updateVolumesStrategy"),
];

/// Below a DataVolume's spec.
const DATA_VOLUME: &[Row] = &[
    row("checkpoints", Error, "multi-stage imports are not planned"),
    row("finalCheckpoint", Error, "multi-stage imports are not planned"),
    only_cluster("priorityClassName"),
    refused_alone("pvc.dataSource", "not supported yet: use source.pvc"),
    refused_alone("pvc.dataSourceRef", "not supported yet: use source.pvc"),
    only_cluster("pvc.selector"),
    only_cluster("pvc.volumeAttributesClassName"),
    only_cluster("pvc.volumeName"),
    only_cluster("serviceAccountName"),
    row("source.glance", Error, "not planned"),
    row("source.imageio", Error, "not planned"),
    refused_alone("source.registry.imageStream", "image streams are OpenShift's; use url"),
    refused_alone("source.snapshot", "not supported yet: use source.pvc"),
    row("source.vddk", Error, "not planned"),
    refused_alone("sourceRef", "not supported yet: use source"),
    refused_alone("storage.dataSource", "not supported yet: use source.pvc"),
    refused_alone("storage.dataSourceRef", "not supported yet: use source.pvc"),
    only_cluster("storage.selector"),
    only_cluster("storage.volumeName"),
];

/// Below a PersistentVolumeClaim's spec.
const CLAIM: &[Row] = &[
    row("dataSource", Error, "not supported yet: use a DataVolume with source.pvc"),
    row("dataSourceRef", Error, "not supported yet: use a DataVolume with source.pvc"),
    only_cluster("selector"),
    only_cluster("volumeAttributesClassName"),
    only_cluster("volumeName"),
];

/// The tables of a kind, each with the path it is below.
pub(super) fn tables(kind: Kind) -> &'static [(&'static str, &'static [Row])] {
    match kind {
        Kind::VirtualMachine => &[
            ("spec.template.spec.", INSTANCE),
            ("spec.dataVolumeTemplates[].spec.", DATA_VOLUME),
            ("spec.", MACHINE),
        ],
        Kind::VirtualMachineInstance => &[("spec.", INSTANCE)],
        Kind::DataVolume => &[("spec.", DATA_VOLUME)],
        Kind::PersistentVolumeClaim => &[("spec.", CLAIM)],
        Kind::NetworkAttachmentDefinition | Kind::Secret | Kind::ConfigMap => &[],
    }
}
