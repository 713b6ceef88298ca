//! `KubeVirt` configuration of host devices that may be assigned to guests.

use std::collections::BTreeMap;

use crate::resource::resource;

resource! {
    /// Mediated devices that are created on the nodes.
    pub struct MediatedDevicesConfiguration {
        /// Whether mediated devices are created. Default: true.
        pub enabled: Option<bool>,
        /// Types of mediated devices.
        pub mediated_device_types: Vec<String>,
        /// Deprecated: use `mediatedDeviceTypes`.
        pub mediated_devices_types: Vec<String>,
        /// Types for single nodes.
        pub node_mediated_device_types: Vec<NodeMediatedDevices>,
    }

    /// Types of mediated devices for some nodes.
    pub struct NodeMediatedDevices {
        /// Types of mediated devices.
        pub mediated_device_types: Vec<String>,
        /// Deprecated: use `mediatedDeviceTypes`.
        pub mediated_devices_types: Vec<String>,
        /// Labels of the nodes.
        pub node_selector: BTreeMap<String, String> ["x-required" = true],
    }

    /// Host devices that may be assigned to guests.
    pub struct PermittedHostDevices {
        /// Mediated devices.
        pub mediated_devices: Vec<PermittedMediatedDevice>,
        /// PCI devices.
        pub pci_host_devices: Vec<PermittedPciDevice>,
        /// USB devices.
        pub usb: Vec<PermittedUsbDevice>,
    }

    /// Mediated device that may be assigned to guests.
    pub struct PermittedMediatedDevice {
        /// Whether another device plugin provides the resource. Default: false.
        pub external_resource_provider: Option<bool>,
        /// Name of the mediated device type.
        pub mdev_name_selector: String ["x-required" = true],
        /// Resource name by which VMs request the device.
        pub resource_name: String ["x-required" = true],
    }

    /// PCI device that may be assigned to guests.
    pub struct PermittedPciDevice {
        /// Whether another device plugin provides the resource. Default: false.
        pub external_resource_provider: Option<bool>,
        /// Vendor and device ID, such as `10DE:1EB8`.
        pub pci_vendor_selector: String ["x-required" = true],
        /// Resource name by which VMs request the device.
        pub resource_name: String ["x-required" = true],
    }

    /// Set of USB devices that may be assigned to guests.
    pub struct PermittedUsbDevice {
        /// Whether another device plugin provides the resource. Default: false.
        pub external_resource_provider: Option<bool>,
        /// Resource name by which VMs request the devices.
        pub resource_name: String ["x-required" = true],
        /// Devices of the set.
        pub selectors: Vec<UsbSelector>,
    }

    /// USB device.
    pub struct UsbSelector {
        /// Product ID, four hexadecimal digits.
        pub product: String ["x-required" = true],
        /// Vendor ID, four hexadecimal digits.
        pub vendor: String ["x-required" = true],
    }
}
