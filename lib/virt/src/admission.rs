//! The defaults that admission writes into a new VirtualMachine or instance, so that it stays the same when the cluster's
//! settings change later.
//!
//! Rules are not checked here ([`crate::validate`]); what is given is never changed.

use api::kubevirt::{
    BridgeBinding, CpuTopology, Domain, Firmware, Interface, Machine, MasqueradeBinding, MemoryStatus,
    Network, PodNetwork, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec,
};
use api::resource::{ObjectMeta, Quantity};

use crate::instancetype::Flavor;
use crate::resolve::{self, DEFAULT_INTERFACE, Growth};
use crate::status;

/// Finalizer of an instance, removed when its launcher pod is gone.
pub const FINALIZER: &str = "foregroundDeleteVirtualMachine";
/// Annotation that fixes how devices are placed.
pub const TOPOLOGY: &str = "kubevirt.io/pci-topology-version";
/// The placement that new guests get.
const TOPOLOGY_VERSION: &str = "v3";

/// How the default network interface is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DefaultBinding {
    /// Behind the pod's address.
    Masquerade,
    /// With the pod's address.
    Bridge,
}

/// Settings of the platform: KubeVirt's `spec.configuration`, or its defaults.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Machine type: `machineType`.
    pub machine: String,
    /// Architecture.
    pub architecture: String,
    /// Processor model, where the spec names none: `cpuModel`. `None`: the host's.
    pub cpu_model: Option<String>,
    /// `network.defaultNetworkInterface`.
    pub binding: DefaultBinding,
    /// Limits of CPU and memory hotplug: `liveUpdateConfiguration`.
    pub growth: Growth,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            machine: "q35".to_owned(),
            architecture: "amd64".to_owned(),
            cpu_model: None,
            binding: DefaultBinding::Masquerade,
            growth: Growth::default(),
        }
    }
}

/// The SMBIOS identity of a guest: random, and kept with the object.
#[derive(Clone, Debug)]
pub struct Identity {
    /// UUID of the machine.
    pub uuid: String,
    /// Serial number, a UUID too.
    pub serial: String,
}

/// Fills in a VirtualMachine that is created. What its instance type and preference decide stays open: they are applied
/// to the template of each start.
pub fn machine(machine: &mut VirtualMachine, settings: &Settings, identity: &Identity, flavor: &Flavor) {
    let mut settings = settings.clone();
    let preference = flavor.preference.as_ref();
    let preferred = |field: Option<&String>, default: &mut String| {
        if let Some(value) = field.filter(|value| !value.is_empty()) {
            default.clone_from(value);
        }
    };
    preferred(preference.and_then(|one| one.preferred_architecture.as_ref()), &mut settings.architecture);
    let kind = preference.and_then(|one| one.machine.as_ref()?.preferred_machine_type.as_ref());
    preferred(kind, &mut settings.machine);
    let devices = preference.and_then(|one| one.devices.as_ref());
    if devices.is_some_and(|devices| devices.preferred_interface_masquerade.is_some()) {
        settings.binding = DefaultBinding::Masquerade;
    }
    let attach = devices.and_then(|devices| devices.preferred_autoattach_pod_interface).unwrap_or(true);
    let sized = machine.spec.instancetype.is_none();
    let template = &mut machine.spec.template;
    platform(&mut template.metadata, &mut template.spec, &settings, identity);
    if sized {
        size(&mut template.spec, &settings);
    }
    network(&mut template.spec, settings.binding, attach);
}

/// Fills in an instance that is created, with its first phase. `now` is in seconds since 1970.
pub fn instance(instance: &mut VirtualMachineInstance, settings: &Settings, identity: &Identity, now: u64) {
    platform(&mut instance.metadata, &mut instance.spec, settings, identity);
    size(&mut instance.spec, settings);
    network(&mut instance.spec, settings.binding, true);
    resolve::add_disks(&mut instance.spec);
    room(&mut instance.spec, settings.growth);
    let finalizers = &mut instance.metadata.finalizers;
    if !finalizers.iter().any(|one| one == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let status = instance.status.get_or_insert_default();
    if status.phase.is_none() {
        status::phase_at(status, "Pending", now);
    }
    let cpu = instance.spec.domain.cpu.clone().unwrap_or_default();
    status.current_cpu_topology =
        Some(CpuTopology { cores: cpu.cores, sockets: cpu.sockets, threads: cpu.threads });
    if let Some(memory) = instance.spec.domain.memory.as_ref().and_then(|memory| memory.guest.clone()) {
        status.memory = Some(MemoryStatus {
            guest_at_boot: Some(memory.clone()),
            guest_current: Some(memory.clone()),
            guest_requested: Some(memory),
            ..MemoryStatus::default()
        });
    }
}

/// Topology, architecture, machine type and identity.
fn platform(
    metadata: &mut ObjectMeta,
    spec: &mut VirtualMachineInstanceSpec,
    settings: &Settings,
    identity: &Identity,
) {
    metadata.annotations.entry(TOPOLOGY.to_owned()).or_insert_with(|| TOPOLOGY_VERSION.to_owned());
    spec.architecture.get_or_insert_with(|| settings.architecture.clone());
    let domain = &mut spec.domain;
    let machine = domain.machine.get_or_insert_with(Machine::default);
    if machine.kind.is_empty() {
        machine.kind.clone_from(&settings.machine);
    }
    let firmware = domain.firmware.get_or_insert_with(Firmware::default);
    let or = |given: &Option<String>, text: &str| {
        given.clone().filter(|given| !given.is_empty()).or_else(|| Some(text.to_owned()))
    };
    firmware.uuid = or(&firmware.uuid, &identity.uuid);
    firmware.serial = or(&firmware.serial, &identity.serial);
}

/// Processors and memory.
fn size(spec: &mut VirtualMachineInstanceSpec, settings: &Settings) {
    let (sockets, cores, threads) = resolve::topology(spec);
    let domain = &mut spec.domain;
    let cpu = domain.cpu.get_or_insert_default();
    cpu.sockets.get_or_insert(sockets);
    cpu.cores.get_or_insert(cores);
    cpu.threads.get_or_insert(threads);
    if cpu.model.is_none() {
        cpu.model.clone_from(&settings.cpu_model);
    }
    memory(domain);
}

/// Guest memory, where only requests or limits have it.
fn memory(domain: &mut Domain) {
    if domain.memory.as_ref().is_some_and(|memory| memory.guest.is_some()) {
        return;
    }
    let resources = domain.resources.clone().unwrap_or_default();
    let asked = resources.requests.get("memory").or_else(|| resources.limits.get("memory"));
    if let Some(amount) = asked {
        domain.memory.get_or_insert_default().guest = Some(amount.clone());
    }
}

/// The default interface on the pod network. `attach`: whether a spec that does not decide it gets one.
fn network(spec: &mut VirtualMachineInstanceSpec, binding: DefaultBinding, attach: bool) {
    let devices = &mut spec.domain.devices;
    let attach = devices.autoattach_pod_interface.unwrap_or(attach);
    if !attach || !devices.interfaces.is_empty() || !spec.networks.is_empty() {
        return;
    }
    let (masquerade, bridge) = match binding {
        DefaultBinding::Masquerade => (Some(MasqueradeBinding::default()), None),
        DefaultBinding::Bridge => (None, Some(BridgeBinding::default())),
    };
    let name = DEFAULT_INTERFACE.to_owned();
    devices.interfaces.push(Interface { name: name.clone(), masquerade, bridge, ..Interface::default() });
    spec.networks.push(Network { name, pod: Some(PodNetwork::default()), ..Network::default() });
}

/// How much the guest can have later, where that is left to the platform.
fn room(spec: &mut VirtualMachineInstanceSpec, growth: Growth) {
    let (sockets, memory) = resolve::room(spec, growth);
    let domain = &mut spec.domain;
    if let (Some(cpu), Some(sockets)) = (&mut domain.cpu, sockets) {
        cpu.max_sockets.get_or_insert(sockets);
    }
    if let (Some(asked), Some(memory)) = (&mut domain.memory, memory) {
        asked.max_guest.get_or_insert_with(|| Quantity(format!("{}Mi", memory >> 20)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn identity() -> Identity {
        Identity { uuid: "u".into(), serial: "s".into() }
    }

    #[test]
    fn a_machine_gets_what_it_leaves_open() {
        let mut new: VirtualMachine = serde_json::from_value(json!({"spec": {"template": {"spec": {
            "domain": {"resources": {"requests": {"memory": "2Gi", "cpu": "3"}}},
        }}}}))
        .unwrap();
        machine(&mut new, &Settings::default(), &identity(), &Flavor::default());
        let spec = &new.spec.template.spec;
        assert_eq!(new.spec.template.metadata.annotations[TOPOLOGY], "v3");
        let domain = serde_json::to_value(&spec.domain).unwrap();
        assert_eq!(domain["machine"], json!({"type": "q35"}));
        assert_eq!(domain["firmware"], json!({"uuid": "u", "serial": "s"}));
        assert_eq!(domain["cpu"], json!({"sockets": 3, "cores": 1, "threads": 1}));
        assert_eq!(domain["memory"], json!({"guest": "2Gi"}));
        assert_eq!(domain["devices"]["interfaces"], json!([{"name": "default", "masquerade": {}}]));
        assert_eq!(serde_json::to_value(&spec.networks).unwrap(), json!([{"name": "default", "pod": {}}]));
        let mut again = new.clone();
        let other = Identity { uuid: "x".into(), serial: "y".into() };
        machine(&mut again, &Settings::default(), &other, &Flavor::default());
        assert_eq!(again, new, "what is given stays");
    }

    #[test]
    fn a_machine_with_an_instance_type_keeps_what_that_decides_open() {
        let mut new: VirtualMachine = serde_json::from_value(json!({"spec": {
            "instancetype": {"name": "u1.small"}, "preference": {"name": "p"},
            "template": {"spec": {"domain": {"devices": {}}}},
        }}))
        .unwrap();
        let preference = json!({"preferredArchitecture": "arm64", "machine": {"preferredMachineType": "virt"},
            "devices": {"preferredAutoattachPodInterface": false}});
        let flavor =
            Flavor { preference: Some(serde_json::from_value(preference).unwrap()), ..Flavor::default() };
        machine(&mut new, &Settings::default(), &identity(), &flavor);
        let spec = serde_json::to_value(&new.spec.template.spec).unwrap();
        assert_eq!((spec["domain"].get("cpu"), spec["domain"].get("memory")), (None, None));
        assert_eq!(spec["domain"]["machine"]["type"], "virt");
        assert_eq!(spec["architecture"], "arm64");
        assert_eq!(spec.get("networks"), None);
        assert_eq!(spec["domain"]["firmware"]["uuid"], "u");
    }

    #[test]
    fn an_instance_begins_pending_with_room_to_grow() {
        let mut new: VirtualMachineInstance = serde_json::from_value(
            json!({"spec": {"domain": {"cpu": {"cores": 2}, "memory": {"guest": "1Gi"},
                "devices": {"autoattachPodInterface": false, "disks": [{"name": "b", "disk": {"bus": "sata"}}]}},
                "volumes": [{"name": "a", "emptyDisk": {"capacity": "1Mi"}}, {"name": "b"}, {"name": "c"}]}}),
        )
        .unwrap();
        instance(&mut new, &Settings::default(), &identity(), 0);
        let spec = serde_json::to_value(&new.spec).unwrap();
        assert_eq!(spec["domain"]["cpu"], json!({"sockets": 1, "cores": 2, "threads": 1, "maxSockets": 4}));
        assert_eq!(spec["domain"]["memory"], json!({"guest": "1Gi", "maxGuest": "4096Mi"}));
        assert!(new.spec.networks.is_empty());
        let disks = json!([{"name": "b", "disk": {"bus": "sata"}}, {"name": "a"}, {"name": "c"}]);
        assert_eq!(spec["domain"]["devices"]["disks"], disks);
        assert_eq!(new.metadata.finalizers, [FINALIZER]);
        let status = new.status.unwrap();
        assert_eq!(status.phase.as_deref(), Some("Pending"));
        let begun = &status.phase_transition_timestamps[0].phase_transition_timestamp;
        assert_eq!(begun, "1970-01-01T00:00:00Z");
        assert_eq!(status.current_cpu_topology.unwrap().cores, Some(2));
        assert_eq!(status.memory.unwrap().guest_at_boot, Some(Quantity("1Gi".into())));
    }

    #[test]
    fn room_to_grow_follows_the_limits_of_the_platform_where_the_spec_leaves_it_open() {
        const GI: u64 = 1 << 30;
        let by = |sockets, memory, ratio| Growth { sockets, memory, ratio };
        let plain = || (json!({"sockets": 2}), json!({"guest": "2Gi"}));
        for (growth, (cpu, memory), sockets, most) in [
            (Growth::default(), plain(), 8, "8192Mi"),
            (by(None, None, 2), plain(), 4, "4096Mi"),
            (
                Growth::default(),
                (json!({"sockets": 2, "dedicatedCpuPlacement": true}), json!({"guest": "2Gi"})),
                2,
                "8192Mi",
            ),
            (by(None, None, 1), plain(), 2, "2048Mi"),
            (by(Some(6), Some(3 * GI), 4), plain(), 6, "3072Mi"),
            (by(Some(1), Some(GI), 4), plain(), 2, "2048Mi"),
            (by(None, Some(3 * GI + 1), 4), plain(), 8, "3072Mi"),
            (
                by(Some(1000), None, 4),
                (json!({"sockets": 1, "cores": 64}), json!({"guest": "2Gi"})),
                8,
                "8192Mi",
            ),
            (by(Some(6), Some(8 * GI), 4), (json!({"sockets": 1}), json!({"guest": "512Mi"})), 6, "512Mi"),
            (
                by(Some(6), Some(8 * GI), 4),
                (json!({"sockets": 1, "maxSockets": 3}), json!({"guest": "1Gi", "maxGuest": "2Gi"})),
                3,
                "2Gi",
            ),
        ] {
            let mut new: VirtualMachineInstance =
                serde_json::from_value(json!({"spec": {"domain": {"cpu": cpu, "memory": memory}}})).unwrap();
            instance(&mut new, &Settings { growth, ..Settings::default() }, &identity(), 0);
            let domain = new.spec.domain;
            assert_eq!(domain.cpu.unwrap().max_sockets, Some(sockets), "{growth:?} {cpu}");
            assert_eq!(domain.memory.unwrap().max_guest.unwrap().0, most, "{growth:?} {memory}");
        }
    }
}
