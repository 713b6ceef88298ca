//! Rules of each kind; those of a guest's machine are [`crate::resolve`]'s.

use std::collections::BTreeMap;

use api::cdi::{DataVolume, DataVolumeSource, DataVolumeSpec, EXTERNAL_POPULATION, StorageSpec};
use api::cni::Configuration;
use api::core::{ClaimSpec, ConfigMap, PersistentVolumeClaim, Secret};
use api::kind::Kind;
use api::kubevirt::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec};
use api::launch::{Accelerator, DEVICES_MAX, DiskFormat, Layout, PciAddress, Storage, System};
use api::manifest::Document;
use api::multus::NetworkAttachmentDefinition;
use api::resource::{ObjectMeta, Quantity};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::{NAMESPACE, is_of_machine, read};
use crate::fields::Place;
use crate::finding::{Findings, Verdict};
use crate::host_devices;
use crate::machine::Strategy;
use crate::resolve::{self, Backend, Guest, Host, HostAddress, Made, Objects, Tap};

const ACCESS_MODES: [&str; 4] = ["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"];

fn strategies() -> String {
    Strategy::ALL.map(Strategy::word).join(", ")
}

/// Checks the object of a document.
pub(super) fn check(
    kind: Kind,
    document: &Document,
    objects: &Objects,
    place: Place,
    findings: &mut Findings,
) {
    name("metadata.name", &document.name, findings);
    if let Some(namespace) = &document.namespace {
        name("metadata.namespace", namespace, findings);
    }
    match kind {
        Kind::VirtualMachine => {
            if let Some(machine) = read::<VirtualMachine>(document, findings) {
                check_machine(&machine, objects, place, findings);
            }
        }
        Kind::VirtualMachineInstance => {
            if is_of_machine(&document.value) {
                let text =
                    "this instance belongs to a VirtualMachine, which creates it: this document is ignored";
                findings.add(Verdict::Ignored, "metadata.ownerReferences", text);
            }
            if let Some(instance) = read::<VirtualMachineInstance>(document, findings) {
                annotations("metadata", &instance.metadata, findings);
                guest(&instance.metadata, &instance.metadata, &instance.spec, "spec", objects, findings);
            }
        }
        Kind::DataVolume => {
            if let Some(volume) = read::<DataVolume>(document, findings) {
                data_volume("spec", &volume.spec, is_external(&volume.metadata, place), findings);
            }
        }
        Kind::PersistentVolumeClaim => {
            if let Some(claim) = read::<PersistentVolumeClaim>(document, findings) {
                check_claim(&claim.spec, findings);
            }
        }
        Kind::NetworkAttachmentDefinition => {
            if let Some(network) = read::<NetworkAttachmentDefinition>(document, findings) {
                check_network(&network, findings);
            }
        }
        Kind::Secret => {
            if let Some(secret) = read::<Secret>(document, findings) {
                let entries = secret.data.iter().map(|(key, value)| (key, value.0.as_str()));
                entries_in_base64("data", entries, findings);
            }
        }
        Kind::ConfigMap => {
            if let Some(map) = read::<ConfigMap>(document, findings) {
                let entries = map.binary_data.iter().map(|(key, value)| (key, value.as_str()));
                entries_in_base64("binaryData", entries, findings);
            }
        }
    }
}

/// Longest name of a libvirt domain, `NAMESPACE_NAME`: it is part of file names, the longest being `NAME-swtpm.log`.
const DOMAIN_NAME_MAX: usize = 245;

/// A DNS subdomain: what objects are called.
fn name(path: &str, name: &str, findings: &mut Findings) {
    let letters =
        |part: &str| part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
    let part =
        |part: &str| !part.is_empty() && letters(part) && !part.starts_with('-') && !part.ends_with('-');
    if name.is_empty() {
        findings.error(path, "missing");
    } else if name.len() > 253 || !name.split('.').all(part) {
        findings.error(path, "not a name of lower-case letters, digits, - and .");
    }
}

fn check_machine(machine: &VirtualMachine, objects: &Objects, place: Place, findings: &mut Findings) {
    let spec = &machine.spec;
    match (spec.running, spec.run_strategy.as_deref()) {
        (Some(_), Some(_)) => findings.error("spec.running", "running and runStrategy exclude each other"),
        (None, None) => findings.error("spec.runStrategy", format!("missing: one of {}", strategies())),
        (None, Some("WaitAsReceiver")) => {
            findings.error("spec.runStrategy", "WaitAsReceiver is for migrations between clusters");
        }
        (None, Some(strategy)) if Strategy::ALL.iter().all(|known| known.word() != strategy) => {
            findings.error("spec.runStrategy", format!("{strategy:?} is not one of {}", strategies()));
        }
        (Some(_), None) | (None, Some(_)) => {}
    }
    let templates = spec.data_volume_templates.len();
    if templates > DEVICES_MAX {
        let text = format!("{templates} DataVolumes; {DEVICES_MAX} is the limit");
        return findings.error("spec.dataVolumeTemplates", text);
    }
    for (index, template) in spec.data_volume_templates.iter().enumerate() {
        let at = format!("spec.dataVolumeTemplates[{index}]");
        name(&format!("{at}.metadata.name"), &template.metadata.name, findings);
        let before = &spec.data_volume_templates[..index];
        if before.iter().any(|other| other.metadata.name == template.metadata.name) {
            findings.error(format!("{at}.metadata.name"), "is given twice");
        }
        let external = is_external(&template.metadata, place);
        data_volume(&format!("{at}.spec"), &template.spec, external, findings);
    }
    let template = &spec.template;
    annotations("spec.template.metadata", &template.metadata, findings);
    guest(&machine.metadata, &template.metadata, &template.spec, "spec.template.spec", objects, findings);
}

/// Annotations of an instance that change the VM of upstream, and have no effect here.
const ANNOTATIONS: [&str; 7] = [
    "hooks.kubevirt.io/hookSidecars",
    "kubevirt.io/disablePCIHole64",
    "kubevirt.io/free-page-reporting-disabled",
    "kubevirt.io/ignitiondata",
    "kubevirt.io/keep-launcher-alive-after-failure",
    "kubevirt.io/libvirt-log-filters",
    "kubevirt.io/placePCIDevicesOnRootComplex",
];

/// Names annotations that are ignored, below `at`.
fn annotations(at: &str, metadata: &ObjectMeta, findings: &mut Findings) {
    for name in ANNOTATIONS.iter().filter(|name| metadata.annotations.contains_key(**name)) {
        let text = "not supported yet; it has no effect";
        findings.add(Verdict::Unsupported, format!("{at}.annotations.{name}"), text);
    }
}

/// Resolves a guest as a start would, on a machine that has everything.
fn guest(
    object: &ObjectMeta,
    labels: &ObjectMeta,
    spec: &VirtualMachineInstanceSpec,
    at: &str,
    objects: &Objects,
    findings: &mut Findings,
) {
    const NIL: &str = "00000000-0000-0000-0000-000000000000";
    let namespace = object.namespace.clone().unwrap_or_else(|| NAMESPACE.to_owned());
    let length = namespace.len() + 1 + object.name.len();
    if length > DOMAIN_NAME_MAX {
        let text = format!(
            "too long to start: namespace and name have {length} characters with the character between them; {DOMAIN_NAME_MAX} are the most"
        );
        findings.error("metadata.name", text);
    }
    let metadata = ObjectMeta {
        name: object.name.clone(),
        namespace: Some(namespace),
        labels: labels.labels.clone(),
        annotations: labels.annotations.clone(),
        ..ObjectMeta::default()
    };
    let guest =
        Guest { metadata, uid: NIL.to_owned(), smbios_uuid: NIL.to_owned(), smbios_serial: NIL.to_owned() };
    let ovmf = || Some(("/ovmf/code".to_owned(), "/ovmf/variables".to_owned()));
    let host = Host {
        accelerator: Accelerator::Kvm,
        emulator: "/usr/bin/qemu-system-x86_64".to_owned(),
        machine: "q35".to_owned(),
        ovmf: ovmf(),
        ovmf_secure: ovmf(),
        system: System::default(),
    };
    let (_, found) = resolve::resolve(spec, &guest, &host, &everything(spec), objects, at);
    // An invalid name has been reported with the metadata.
    findings.extend(found.into_iter().filter(|finding| finding.path != at));
}

/// Made for a guest whatever it needs.
pub(super) fn everything(spec: &VirtualMachineInstanceSpec) -> Made {
    let block =
        |name: &str| spec.domain.devices.disks.iter().any(|disk| disk.name == name && disk.lun.is_some());
    let volumes = spec.volumes.iter().filter(|volume| resolve::is_storage(volume)).map(|volume| {
        let storage = Storage {
            path: format!("/volumes/{}", volume.name),
            block: block(&volume.name),
            format: DiskFormat::Raw,
            backing: None,
        };
        let backend = Backend { storage, direct: true, preallocated: false, block_sizes: None };
        (volume.name.clone(), backend)
    });
    let tap = Tap {
        link: "tap0".to_owned(),
        mac: "02:00:00:00:00:01".to_owned(),
        mtu: 1500,
        many_queues: true,
        dhcp: None,
    };
    let taps = resolve::interfaces_of(spec).into_iter().map(|one| (one.name, tap.clone()));
    let mut addresses = (0..=u8::MAX)
        .flat_map(|bus| (0..32).map(move |slot| PciAddress { domain: 0, bus, slot, function: 0 }));
    let mut devices: BTreeMap<String, Vec<HostAddress>> = BTreeMap::new();
    for (resource, count) in host_devices::resources(spec) {
        let some = addresses.by_ref().take(count).map(HostAddress::Pci);
        devices.insert(resource.to_owned(), some.collect());
    }
    Made {
        folder: "/run/guest".to_owned(),
        state: "/state/guest".to_owned(),
        volumes: volumes.collect(),
        taps: taps.collect(),
        host_devices: devices,
        own_cpus: true,
        layout: Layout::default(),
    }
}

/// Whether another program fills the claim of a DataVolume, by its annotation. One machine has no such program.
fn is_external(metadata: &ObjectMeta, place: Place) -> bool {
    place == Place::Cluster
        && metadata.annotations.get(EXTERNAL_POPULATION).is_some_and(|value| value == "true")
}

/// `external`: as [`is_external`] has it.
fn data_volume(at: &str, spec: &DataVolumeSpec, external: bool, findings: &mut Findings) {
    let claim = spec.pvc.as_ref().or(spec.storage.as_ref());
    // Filled by a populator that does not belong to the platform.
    let external =
        external || claim.is_some_and(|claim| claim.data_source.is_some() || claim.data_source_ref.is_some());
    let path = format!("{at}.source");
    match (&spec.source, &spec.source_ref) {
        (None, None) if external => {}
        (None, None) => findings.error(&path, "the source of the content is missing"),
        _ if external => {
            findings.error(&path, "External population is incompatible with Source and SourceRef");
        }
        (Some(_), Some(_)) => findings.error(&path, "source and sourceRef exclude each other"),
        (None, Some(_)) | (Some(_), None) => {}
    }
    if let Some(source) = &spec.source {
        data_source(&path, source, findings);
    }
    if let Some(content) = spec.content_type.as_deref().filter(|word| !word.is_empty())
        && !["kubevirt", "archive"].contains(&content)
    {
        findings.error(format!("{at}.contentType"), format!("{content:?} is neither kubevirt nor archive"));
    }
    // A clone that is rendered has the size of its source.
    let clone = spec.source_ref.is_some()
        || spec.source.as_ref().is_some_and(|source| source.pvc.is_some() || source.snapshot.is_some());
    match (&spec.pvc, &spec.storage) {
        (Some(_), Some(_)) => findings.error(at, "pvc and storage exclude each other"),
        (None, None) => findings.error(at, "needs pvc or storage"),
        (Some(claim), None) => storage(&format!("{at}.pvc"), claim, true, findings),
        (None, Some(claim)) => storage(&format!("{at}.storage"), claim, !clone, findings),
    }
}

fn data_source(at: &str, source: &DataVolumeSource, findings: &mut Findings) {
    let DataVolumeSource { http, s3, gcs, registry, pvc, blank, upload, glance, imageio, snapshot, vddk } =
        source;
    let given = [
        http.is_some(),
        s3.is_some(),
        gcs.is_some(),
        registry.is_some(),
        pvc.is_some(),
        blank.is_some(),
        upload.is_some(),
        glance.is_some(),
        imageio.is_some(),
        snapshot.is_some(),
        vddk.is_some(),
    ];
    if given.into_iter().filter(|one| *one).count() != 1 {
        findings.error(at, "needs exactly one of http, s3, gcs, registry, pvc, blank, upload");
    }
    let urls = [
        ("http", http.as_ref().map(|one| one.url.as_str()), &["http://", "https://", "file:///"][..]),
        ("s3", s3.as_ref().map(|one| one.url.as_str()), &["s3://", "http://", "https://"]),
        ("gcs", gcs.as_ref().map(|one| one.url.as_str()), &["gs://", "http://", "https://"]),
        (
            "registry",
            registry
                .as_ref()
                .filter(|one| one.image_stream.is_none())
                .map(|one| one.url.as_deref().unwrap_or("")),
            &["docker://", "oci-archive:"],
        ),
    ];
    for (field, url, starts) in urls {
        let Some(url) = url else { continue };
        if !starts.iter().any(|start| url.len() > start.len() && url.starts_with(start)) {
            findings
                .error(format!("{at}.{field}.url"), format!("does not begin with {}", starts.join(" or ")));
        }
    }
    if let Some(method) = registry.as_ref().and_then(|one| one.pull_method.as_deref())
        && !["pod", "node"].contains(&method)
    {
        findings.error(format!("{at}.registry.pullMethod"), format!("{method:?} is neither pod nor node"));
    }
    if pvc.as_ref().is_some_and(|claim| claim.name.is_empty()) {
        findings.error(format!("{at}.pvc.name"), "missing");
    }
}

fn storage(at: &str, spec: &StorageSpec, sized: bool, findings: &mut Findings) {
    claim(at, &spec.access_modes, spec.volume_mode.as_deref(), findings);
    let size = spec.resources.as_ref().and_then(|resources| resources.requests.get("storage"));
    claim_size(at, size, sized, findings);
}

fn check_claim(spec: &ClaimSpec, findings: &mut Findings) {
    claim("spec", &spec.access_modes, spec.volume_mode.as_deref(), findings);
    claim_size("spec", spec.resources.requests.get("storage"), true, findings);
}

fn claim(at: &str, modes: &[String], volume_mode: Option<&str>, findings: &mut Findings) {
    for (index, mode) in modes.iter().enumerate() {
        if !ACCESS_MODES.contains(&mode.as_str()) {
            let text = format!("{mode:?} is not one of {}", ACCESS_MODES.join(", "));
            findings.error(format!("{at}.accessModes[{index}]"), text);
        }
    }
    if let Some(mode) = volume_mode.filter(|mode| !["Filesystem", "Block"].contains(mode)) {
        findings.error(format!("{at}.volumeMode"), format!("{mode:?} is neither Filesystem nor Block"));
    }
}

fn claim_size(at: &str, size: Option<&Quantity>, needed: bool, findings: &mut Findings) {
    let path = format!("{at}.resources.requests.storage");
    match size.map(Quantity::bytes) {
        None if needed => findings.error(path, "the size is missing"),
        None | Some(Ok(1..)) => {}
        Some(Ok(0)) => findings.error(path, "nothing"),
        Some(Err(error)) => findings.error(path, error.to_string()),
    }
}

fn check_network(network: &NetworkAttachmentDefinition, findings: &mut Findings) {
    let path = "spec.config";
    let Some(config) = network.spec.config.as_deref().filter(|config| !config.trim().is_empty()) else {
        findings.error(path, "needs a CNI configuration");
        return;
    };
    if let Err(said) = Configuration::read(config, &network.metadata.name) {
        findings.error(path, said);
    }
}

fn entries_in_base64<'a>(
    at: &str,
    entries: impl Iterator<Item = (&'a String, &'a str)>,
    findings: &mut Findings,
) {
    for (key, value) in entries {
        let value: String = value.split_ascii_whitespace().collect();
        if STANDARD.decode(value).is_err() {
            findings.error(format!("{at}.{key}"), "not base64");
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::validate::object;

    /// Fields of a DataVolume's spec that are refused in a VM's template.
    fn refused(place: Place, volume: &Value) -> Vec<String> {
        refused_with(place, &json!({}), volume)
    }

    /// The same with annotations of the DataVolume.
    fn refused_with(place: Place, annotations: &Value, volume: &Value) -> Vec<String> {
        let machine = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "a"},
            "spec": {
                "runStrategy": "Halted",
                "dataVolumeTemplates": [{"metadata": {"name": "d", "annotations": annotations}, "spec": volume}],
                "template": {"spec": {"domain": {"memory": {"guest": "1Gi"}, "devices": {}}}},
            },
        });
        let findings = object(Kind::VirtualMachine, &machine, place).into_iter();
        let errors = findings.filter(|finding| finding.verdict == Verdict::Error);
        let below = "spec.dataVolumeTemplates[0].spec.";
        errors.map(|one| one.path.strip_prefix(below).unwrap_or(&one.path).to_owned()).collect()
    }

    #[test]
    fn templates_of_data_volumes_need_the_source_and_size_that_cdi_demands() {
        const PVC_SIZE: &str = "pvc.resources.requests.storage";
        const STORAGE_SIZE: &str = "storage.resources.requests.storage";
        let size = || json!({"requests": {"storage": "1Gi"}});
        let pvc = || json!({"pvc": {"namespace": "n", "name": "c"}});
        let snapshot = || json!({"snapshot": {"namespace": "n", "name": "s"}});
        let referred = || json!({"kind": "DataSource", "name": "d"});
        let populator = || json!({"apiGroup": "example.com", "kind": "Image", "name": "i"});
        let rows = [
            (json!({"source": pvc(), "storage": {}}), &[][..]),
            (json!({"source": snapshot(), "storage": {}}), &[]),
            (json!({"sourceRef": referred(), "storage": {}}), &[]),
            (json!({"sourceRef": referred(), "storage": {"resources": size()}}), &[]),
            (json!({"source": pvc(), "pvc": {}}), &[PVC_SIZE]),
            (json!({"source": snapshot(), "pvc": {}}), &[PVC_SIZE]),
            (json!({"sourceRef": referred(), "pvc": {}}), &[PVC_SIZE]),
            (json!({"source": pvc(), "pvc": {"resources": size()}}), &[]),
            (json!({"source": {"blank": {}}, "storage": {}}), &[STORAGE_SIZE]),
            (json!({"storage": {"resources": size()}}), &["source"]),
            (json!({"source": pvc(), "sourceRef": referred(), "storage": {}}), &["source"]),
            (json!({"storage": {"resources": size(), "dataSourceRef": populator()}}), &[]),
            (json!({"storage": {"resources": size(), "dataSource": populator()}}), &[]),
            (json!({"pvc": {"resources": size(), "dataSourceRef": populator()}}), &[]),
            (json!({"storage": {"dataSourceRef": populator()}}), &[STORAGE_SIZE]),
            (
                json!({"source": {"blank": {}}, "storage": {"resources": size(), "dataSourceRef": populator()}}),
                &["source"],
            ),
        ];
        for (volume, expected) in rows {
            assert_eq!(refused(Place::Cluster, &volume), expected, "{volume}");
        }
        let sized = json!({"storage": {"resources": size()}});
        let both = json!({"source": {"blank": {}}, "storage": {"resources": size()}});
        for (place, external, volume, expected) in [
            (Place::Cluster, "true", &sized, &[][..]),
            (Place::Cluster, "false", &sized, &["source"]),
            (Place::Cluster, "true", &both, &["source"]),
            (Place::Machine, "true", &sized, &["source"]),
        ] {
            let annotations = json!({EXTERNAL_POPULATION: external});
            assert_eq!(refused_with(place, &annotations, volume), expected, "{place:?} {external} {volume}");
        }
        // One machine has neither DataSources nor snapshots that it clones from, nor populators.
        for (volume, expected) in [
            (json!({"sourceRef": referred(), "storage": {}}), "sourceRef"),
            (json!({"source": snapshot(), "storage": {}}), "source.snapshot"),
            (
                json!({"storage": {"resources": size(), "dataSourceRef": populator()}}),
                "storage.dataSourceRef",
            ),
            (json!({"pvc": {"resources": size(), "dataSource": populator()}}), "pvc.dataSource"),
        ] {
            assert_eq!(refused(Place::Machine, &volume), [expected], "{volume}");
        }
    }
}
