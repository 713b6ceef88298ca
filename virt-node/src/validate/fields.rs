//! The table of fields that KubeVirt, CDI and Kubernetes have and the types of `api` do not: what becomes of each here.
//!
//! A field that is in the types is accepted; one that is neither there nor here is unknown. Lists are written `[]`.

use api::kind::Kind;

use crate::finding::Verdict::{self, Error, Ignored, Unsupported};

/// A field and its lot; the whole of what is below it is meant.
type Row = (&'static str, Verdict, &'static str);

/// Has no meaning without a cluster.
const CLUSTER: &str = "for clusters; this machine is the only one";
/// Is not built yet.
const LATER: &str = "not built yet; it has no effect";

/// Below a VirtualMachineInstance's spec.
const INSTANCE: &[Row] = &[
    ("accessCredentials", Unsupported, LATER),
    ("affinity", Ignored, CLUSTER),
    ("dnsConfig", Unsupported, LATER),
    ("dnsPolicy", Ignored, CLUSTER),
    ("evictionStrategy", Ignored, CLUSTER),
    ("livenessProbe", Unsupported, LATER),
    ("nodeSelector", Ignored, CLUSTER),
    ("priorityClassName", Ignored, CLUSTER),
    ("readinessProbe", Unsupported, LATER),
    ("resourceClaims", Error, "not built yet: devices of the machine cannot be given to a guest"),
    ("schedulerName", Ignored, CLUSTER),
    ("serviceAccountName", Ignored, CLUSTER),
    ("subdomain", Ignored, CLUSTER),
    ("tolerations", Ignored, CLUSTER),
    ("topologySpreadConstraints", Ignored, CLUSTER),
    ("utilityVolumes", Unsupported, LATER),
    ("domain.cpu.dedicatedCpuPlacement", Unsupported, LATER),
    ("domain.cpu.isolateEmulatorThread", Unsupported, LATER),
    ("domain.cpu.numa", Unsupported, LATER),
    ("domain.cpu.realtime", Unsupported, LATER),
    ("domain.devices.autoattachVSOCK", Unsupported, LATER),
    ("domain.devices.clientPassthrough", Unsupported, LATER),
    ("domain.devices.disks[].blockSize.custom.discardGranularity", Unsupported, "libvirt 9.0 cannot set it"),
    ("domain.devices.disks[].changedBlockTracking", Unsupported, LATER),
    ("domain.devices.disks[].disk.pciAddress", Unsupported, "devices keep the places that they are given"),
    ("domain.devices.disks[].lun.reservation", Unsupported, LATER),
    ("domain.devices.downwardMetrics", Unsupported, LATER),
    ("domain.devices.filesystems", Error, "not built yet: use a disk"),
    ("domain.devices.gpus", Error, "not built yet: devices of the machine cannot be given to a guest"),
    ("domain.devices.hostDevices", Error, "not built yet: devices of the machine cannot be given to a guest"),
    ("domain.devices.interfaces[].binding", Error, "not built yet: use masquerade or bridge"),
    ("domain.devices.interfaces[].dhcpOptions", Unsupported, LATER),
    ("domain.devices.interfaces[].macvtap", Error, "KubeVirt has it no more: use bridge"),
    ("domain.devices.interfaces[].passt", Error, "KubeVirt has it no more: use masquerade"),
    ("domain.devices.interfaces[].passtBinding", Error, "not built yet: use masquerade"),
    ("domain.devices.interfaces[].pciAddress", Unsupported, "devices keep the places that they are given"),
    ("domain.devices.interfaces[].portRanges", Unsupported, LATER),
    ("domain.devices.interfaces[].slirp", Error, "KubeVirt has it no more: use masquerade"),
    ("domain.devices.interfaces[].sriov", Error, "not built yet: use bridge"),
    ("domain.devices.watchdog.diag288", Error, "a device of s390x: use i6300esb"),
    ("domain.features.hyperv.tlbflush.direct", Unsupported, LATER),
    ("domain.features.hyperv.tlbflush.extended", Unsupported, LATER),
    ("domain.features.hypervPassthrough", Unsupported, LATER),
    ("domain.firmware.acpi", Unsupported, LATER),
    ("domain.firmware.kernelBoot", Error, "not built yet: boot from a disk"),
    ("domain.launchSecurity", Error, "not built yet: the guest would run without it"),
    ("domain.memory.reservedOverhead", Ignored, CLUSTER),
    ("domain.resources.overcommitGuestOverhead", Ignored, CLUSTER),
    ("networks[].resourceClaim", Error, "not built yet: use multus"),
    ("volumes[].containerPath", Error, "not built yet"),
    ("volumes[].downwardMetrics", Error, "not built yet"),
    ("volumes[].memoryDump", Error, "not built yet"),
    ("volumes[].serviceAccount", Error, "there are no service accounts without a cluster"),
];

/// Below a VirtualMachine's spec.
const MACHINE: &[Row] = &[
    ("instancetype", Error, "not built yet: write cpu and memory into the template"),
    ("preference", Unsupported, LATER),
    ("updateVolumesStrategy", Unsupported, LATER),
];

/// Below a DataVolume's spec.
const DATA_VOLUME: &[Row] = &[
    ("checkpoints", Error, "multi-stage imports are not planned"),
    ("finalCheckpoint", Error, "multi-stage imports are not planned"),
    ("priorityClassName", Ignored, CLUSTER),
    ("pvc.dataSource", Error, "not built yet: use source.pvc"),
    ("pvc.dataSourceRef", Error, "not built yet: use source.pvc"),
    ("pvc.selector", Ignored, CLUSTER),
    ("pvc.volumeAttributesClassName", Ignored, CLUSTER),
    ("pvc.volumeName", Ignored, CLUSTER),
    ("serviceAccountName", Ignored, CLUSTER),
    ("source.imageio", Error, "not planned"),
    ("source.registry.imageStream", Error, "image streams are OpenShift's; use url"),
    ("source.snapshot", Error, "not built yet: use source.pvc"),
    ("source.vddk", Error, "not planned"),
    ("sourceRef", Error, "not built yet: use source"),
    ("storage.dataSource", Error, "not built yet: use source.pvc"),
    ("storage.dataSourceRef", Error, "not built yet: use source.pvc"),
    ("storage.selector", Ignored, CLUSTER),
    ("storage.volumeName", Ignored, CLUSTER),
];

/// Below a PersistentVolumeClaim's spec.
const CLAIM: &[Row] = &[
    ("dataSource", Error, "not built yet: use a DataVolume with source.pvc"),
    ("dataSourceRef", Error, "not built yet: use a DataVolume with source.pvc"),
    ("selector", Ignored, CLUSTER),
    ("volumeAttributesClassName", Ignored, CLUSTER),
    ("volumeName", Ignored, CLUSTER),
];

/// Tables of a kind, each with the path it is below.
fn tables(kind: Kind) -> &'static [(&'static str, &'static [Row])] {
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

/// What becomes of a field that the types do not have; `None`: it is unknown.
pub(super) fn lot(kind: Kind, path: &str) -> Option<(Verdict, &'static str)> {
    if path == "status" || path.starts_with("status.") {
        return Some((Ignored, "written by the program, not read"));
    }
    let path = without_indexes(path);
    let below = |table: &'static [Row], path: &str| {
        table.iter().find(|(field, _, _)| {
            path.strip_prefix(field).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    };
    tables(kind)
        .iter()
        .find_map(|(start, table)| path.strip_prefix(start).and_then(|path| below(table, path)))
        .map(|(_, verdict, text)| (*verdict, *text))
}

/// `a[3].b` as `a[].b`.
fn without_indexes(path: &str) -> String {
    let mut plain = String::with_capacity(path.len());
    let mut inside = false;
    for c in path.chars() {
        match c {
            '[' => {
                inside = true;
                plain.push(c);
            }
            ']' => {
                inside = false;
                plain.push(c);
            }
            c if inside && c.is_ascii_digit() => {}
            c => plain.push(c),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    /// Whether a schema has the field of a row.
    fn has(schema: &Value, path: &str) -> bool {
        let mut place = schema;
        for step in path.split('.') {
            let (name, list) = step.strip_suffix("[]").map_or((step, false), |name| (name, true));
            let Some(next) = place["properties"].get(name) else { return false };
            place = if list { &next["items"] } else { next };
        }
        true
    }

    #[test]
    fn no_row_is_about_a_field_of_the_types_and_all_are_where_the_types_end() {
        for kind in Kind::ALL {
            let schema = kind.schema();
            for (start, table) in tables(kind) {
                for (field, _, text) in *table {
                    let path = format!("{start}{field}");
                    assert!(!has(&schema, &path), "{} has {path}", kind.name());
                    let above = path.rsplit_once('.').unwrap().0;
                    assert!(has(&schema, above), "{}: {path}: {above} is not there", kind.name());
                    assert!(!text.is_empty());
                }
            }
        }
    }

    #[test]
    fn a_row_is_about_all_below_it_and_nothing_beside_it() {
        let machine = Kind::VirtualMachine;
        for (path, wanted) in [
            ("spec.template.spec.affinity", Some(Ignored)),
            ("spec.template.spec.affinity.nodeAffinity", Some(Ignored)),
            ("spec.template.spec.affinityX", None),
            ("spec.template.spec.domain.devices.disks[12].changedBlockTracking", Some(Unsupported)),
            ("spec.dataVolumeTemplates[0].spec.sourceRef", Some(Error)),
            ("spec.instancetype", Some(Error)),
            ("spec.affinity", None),
            ("status.anything", Some(Ignored)),
            ("nodeSelector", None),
        ] {
            assert_eq!(lot(machine, path).map(|(verdict, _)| verdict), wanted, "{path}");
        }
        assert_eq!(
            lot(Kind::VirtualMachineInstance, "spec.affinity").map(|(verdict, _)| verdict),
            Some(Ignored)
        );
    }
}
