//! Devices of the host that a guest asks for, and which of them the platform's settings permit. Pure.
//!
//! A device is asked for by the name of a resource of `permittedHostDevices`; which device of that resource a guest gets is
//! decided by the kubelet, which hands it to the launcher's container.
//!
//! Not here: the device plugin, the guest's device.

use std::collections::BTreeMap;

use api::kubevirt::{PermittedHostDevices, VirtualGpuOptions, VirtualMachineInstanceSpec};

/// A device that a guest asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested<'a> {
    /// Its path below the instance's spec, such as `domain.devices.gpus[0]`.
    pub path: String,
    /// The kind, as messages have it.
    kind: &'static str,
    /// The start of its alias in the guest.
    alias: &'static str,
    /// Its name.
    pub name: &'a str,
    /// Its resource; empty where none is named.
    pub resource: &'a str,
    /// The guest's screen and it, if it is a mediated device.
    pub display: Display,
}

/// Whether the guest's screen shows a mediated device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Display {
    /// It does.
    pub shown: bool,
    /// And shows a frame buffer in the guest's memory until the device's driver runs.
    pub ramfb: bool,
    /// The guest's spec asks for it.
    pub explicit: bool,
}

impl Display {
    /// Of a GPU: on unless its options say otherwise, as upstream.
    fn of(options: Option<&VirtualGpuOptions>) -> Self {
        let Some(options) = options else { return Self { shown: true, ramfb: true, explicit: false } };
        let Some(display) = &options.display else { return Self::default() };
        let shown = display.enabled != Some(false);
        let ramfb = display.ram_fb.as_ref().and_then(|ramfb| ramfb.enabled) != Some(false);
        Self { shown, ramfb: shown && ramfb, explicit: true }
    }
}

/// The kind of devices in `gpus`.
const GPU: &str = "GPU";

impl Requested<'_> {
    /// Its name among all host devices of the guest.
    pub fn alias(&self) -> String {
        format!("{}-{}", self.alias, self.name)
    }

    /// The name of the USB device of this number, from 0, of its set.
    pub fn usb_alias(&self, number: usize) -> String {
        // The first one's is upstream's.
        let number = if number == 0 { String::new() } else { number.to_string() };
        format!("usb-host{number}-{}", self.name)
    }

    /// Why it cannot be a USB device.
    pub fn no_usb(&self) -> Option<String> {
        (self.kind == GPU).then(|| format!("{GPU} {} is a USB device: list it in hostDevices", self.resource))
    }
}

/// The devices that a guest asks for, GPUs first.
pub fn requested(spec: &VirtualMachineInstanceSpec) -> Vec<Requested<'_>> {
    let devices = &spec.domain.devices;
    let gpus = devices.gpus.iter().enumerate().map(|(index, one)| Requested {
        path: format!("domain.devices.gpus[{index}]"),
        kind: GPU,
        alias: "gpu",
        name: &one.name,
        resource: one.device_name.as_deref().unwrap_or_default(),
        display: Display::of(one.virtual_gpu_options.as_ref()),
    });
    let others = devices.host_devices.iter().enumerate().map(|(index, one)| Requested {
        path: format!("domain.devices.hostDevices[{index}]"),
        kind: "HostDevice",
        alias: "hostdevice",
        name: &one.name,
        resource: one.device_name.as_deref().unwrap_or_default(),
        display: Display::default(),
    });
    gpus.chain(others).collect()
}

/// How many devices of each resource a guest asks for.
pub fn resources(spec: &VirtualMachineInstanceSpec) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for one in requested(spec).into_iter().filter(|one| !one.resource.is_empty()) {
        *counts.entry(one.resource).or_default() += 1;
    }
    counts
}

/// Devices that a guest may not have: paths below the instance's spec, and why. Without a list of permitted devices a guest may
/// have those of every device plugin, as upstream.
pub fn refused(
    spec: &VirtualMachineInstanceSpec,
    permitted: Option<&PermittedHostDevices>,
) -> Vec<(String, String)> {
    let problem = |one: &Requested<'_>| {
        let Requested { kind, resource, .. } = one;
        // Kubernetes' own resources, such as cpu, have no domain: the pod's request would be another one.
        if !resource.contains('/') {
            return Some(format!("{kind} {resource} is not a device plugin's resource: DOMAIN/NAME"));
        }
        let PermittedHostDevices { pci_host_devices, mediated_devices, usb } = permitted?;
        let pci = pci_host_devices.iter().map(|device| &device.resource_name);
        let mut all = pci.chain(mediated_devices.iter().map(|device| &device.resource_name));
        if all.any(|name| name == resource) {
            None
        } else if usb.iter().any(|device| device.resource_name == *resource) {
            one.no_usb()
        } else {
            Some(format!("{kind} {resource} is not permitted in permittedHostDevices configuration"))
        }
    };
    let named = requested(spec).into_iter().filter(|one| !one.resource.is_empty());
    named.filter_map(|one| Some((format!("{}.deviceName", one.path), problem(&one)?))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn devices_are_permitted_by_their_resource() {
        let permitted: PermittedHostDevices = serde_json::from_value(json!({
            "pciHostDevices": [{"pciVendorSelector": "10DE:1EB8", "resourceName": "nvidia.com/T4"}],
            "mediatedDevices": [{"mdevNameSelector": "GRID T4-1Q", "resourceName": "nvidia.com/vT4"}],
            "usb": [{"resourceName": "kubevirt.io/stick"}],
        }))
        .unwrap();
        let permitted = Some(&permitted);
        let none = PermittedHostDevices::default();
        let absent = |kind: &str, name: &str| {
            Some(format!("{kind} {name} is not permitted in permittedHostDevices configuration"))
        };
        let usb = "GPU kubevirt.io/stick is a USB device: list it in hostDevices".to_owned();
        let native = |kind: &str, name: &str| {
            Some(format!("{kind} {name} is not a device plugin's resource: DOMAIN/NAME"))
        };
        for (list, resource, permitted, wanted) in [
            ("gpus", "nvidia.com/T4", permitted, None),
            ("hostDevices", "nvidia.com/T4", permitted, None),
            ("hostDevices", "nvidia.com/T5", permitted, absent("HostDevice", "nvidia.com/T5")),
            ("gpus", "nvidia.com/T4", Some(&none), absent("GPU", "nvidia.com/T4")),
            ("gpus", "nvidia.com/T4", None, None),
            ("gpus", "nvidia.com/vT4", permitted, None),
            ("hostDevices", "kubevirt.io/stick", permitted, None),
            ("gpus", "kubevirt.io/stick", permitted, Some(usb)),
            ("hostDevices", "cpu", permitted, native("HostDevice", "cpu")),
            ("gpus", "memory", None, native("GPU", "memory")),
            // A missing name is found with the other rules.
            ("hostDevices", "", None, None),
        ] {
            let devices = json!({list: [{"name": "a", "deviceName": resource}]});
            let spec = serde_json::from_value(json!({"domain": {"devices": devices}})).unwrap();
            let found = refused(&spec, permitted);
            let path = format!("domain.devices.{list}[0].deviceName");
            let wanted: Vec<_> = wanted.into_iter().map(|text| (path.clone(), text)).collect();
            assert_eq!(found, wanted, "{list} {resource}");
        }
    }

    #[test]
    fn devices_of_one_resource_are_counted() {
        let spec = serde_json::from_value(json!({"domain": {"devices": {
            "gpus": [{"name": "a", "deviceName": "x/y"}],
            "hostDevices": [{"name": "a", "deviceName": "x/y"}, {"name": "b", "deviceName": "x/z"}, {"name": "c"}],
        }}}))
        .unwrap();
        assert_eq!(resources(&spec), BTreeMap::from([("x/y", 2), ("x/z", 1)]));
        let aliases: Vec<String> = requested(&spec).iter().map(Requested::alias).collect();
        assert_eq!(aliases, ["gpu-a", "hostdevice-a", "hostdevice-b", "hostdevice-c"]);
        let usb: Vec<String> = (0..3).map(|number| requested(&spec)[1].usb_alias(number)).collect();
        assert_eq!(usb, ["usb-host-a", "usb-host1-a", "usb-host2-a"]);
    }

    #[test]
    fn a_virtual_gpu_has_the_screen_unless_its_options_forbid_it() {
        for (options, wanted) in [
            (json!(null), (true, true, false)),
            (json!({}), (false, false, false)),
            (json!({"display": {}}), (true, true, true)),
            (json!({"display": {"enabled": false}}), (false, false, true)),
            (json!({"display": {"ramFB": {"enabled": false}}}), (true, false, true)),
        ] {
            let gpu = json!({"name": "a", "deviceName": "x/y", "virtualGPUOptions": options});
            let devices = json!({"gpus": [gpu], "hostDevices": [{"name": "b", "deviceName": "x/y"}]});
            let spec = serde_json::from_value(json!({"domain": {"devices": devices}})).unwrap();
            let displays: Vec<Display> = requested(&spec).iter().map(|one| one.display).collect();
            let (shown, ramfb, explicit) = wanted;
            assert_eq!(displays, [Display { shown, ramfb, explicit }, Display::default()], "{options}");
        }
    }
}
