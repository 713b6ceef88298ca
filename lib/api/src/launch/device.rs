//! Network interfaces, everything that is no disk, and where devices are.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::words;

words! {
    /// A network adapter.
    pub enum NicModel {
        /// virtio.
        Virtio = "virtio",
        /// Intel 82540EM.
        E1000 = "e1000",
        /// Intel 82574L.
        E1000e = "e1000e",
        /// NE2000 on PCI.
        Ne2kPci = "ne2k_pci",
        /// AMD PCnet.
        Pcnet = "pcnet",
        /// Realtek 8139.
        Rtl8139 = "rtl8139",
    }

    /// A screen's adapter.
    pub enum VideoModel {
        /// The standard one.
        Vga = "vga",
        /// The standard one without old modes, for EFI.
        Bochs = "bochs",
        /// virtio-gpu.
        Virtio = "virtio",
        /// A frame buffer in the guest's memory.
        Ramfb = "ramfb",
    }

    /// A sound card.
    pub enum SoundModel {
        /// Intel HD audio.
        Ich9 = "ich9",
        /// Intel AC97.
        Ac97 = "ac97",
    }

    /// The bus of an input device.
    pub enum InputBus {
        /// USB.
        Usb = "usb",
        /// virtio.
        Virtio = "virtio",
    }

    /// The action of a watchdog when the guest is silent.
    pub enum WatchdogAction {
        /// Reset.
        Reset = "reset",
        /// Switch off.
        Poweroff = "poweroff",
        /// Press the power button.
        Shutdown = "shutdown",
    }

    /// How a trusted platform module is reached.
    pub enum TpmModel {
        /// TIS.
        Tis = "tpm-tis",
        /// CRB.
        Crb = "tpm-crb",
    }

    /// A device by which a guest reports a crash.
    pub enum PanicModel {
        /// A port.
        Isa = "isa",
        /// Hyper-V's registers.
        Hyperv = "hyperv",
    }
}

/// A network interface on a tap device that is there, in the launcher's network namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Interface {
    /// Its name, unique among interfaces.
    pub name: String,
    /// The tap device.
    pub tap: String,
    /// Ethernet address in the guest: six pairs of lower-case hex digits with colons.
    pub mac: String,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// The adapter.
    pub model: NicModel,
    /// Pairs of queues; `None`: one. virtio only.
    pub queues: Option<u32>,
    /// Place among the devices that are booted from, from 1.
    pub boot_order: Option<u32>,
    /// Number by which systemd in the guest calls it.
    pub acpi_index: Option<u32>,
    /// The place on PCI that the guest's owner requests, one of [`Slot::at`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<PciAddress>,
    /// Whether the cable is in.
    pub link_up: bool,
    /// The guest's DHCP configuration; `None`: DHCP is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dhcp: Option<Dhcp>,
}

/// The DHCP configuration of a guest (RFC 2131 and RFC 8415) on one interface. Leases never end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Dhcp {
    /// The bridge of the tap device, in the launcher's network namespace, on which DHCP is served.
    pub link: String,
    /// Its address of IPv4.
    pub v4: Option<Lease4>,
    /// Its address of IPv6.
    pub v6: Option<Ipv6Addr>,
    /// The DNS resolvers.
    pub resolvers: Vec<IpAddr>,
    /// Domains that names are looked for in.
    pub search: Vec<String>,
    /// The guest's host name.
    pub host_name: String,
    /// Further options of DHCPv4.
    #[serde(default, skip_serializing_if = "DhcpOptions::is_empty")]
    pub options: DhcpOptions,
}

/// Options of DHCPv4 that the guest's owner adds to those of the network (RFC 2132).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DhcpOptions {
    /// The boot file (option 67).
    pub boot_file: Option<String>,
    /// The server of the boot file (option 66).
    pub tftp_server: Option<String>,
    /// NTP servers (option 42).
    pub ntp_servers: Vec<Ipv4Addr>,
    /// Options for private use, by number from 224 to 254.
    pub private: BTreeMap<u8, String>,
}

impl DhcpOptions {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// An address of IPv4 and the way out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Lease4 {
    /// The guest's.
    pub address: Ipv4Addr,
    /// Length of its network's prefix in bits.
    pub prefix: u8,
    /// The server's address: the bridge's.
    pub server: Ipv4Addr,
    /// The way to everywhere else.
    pub gateway: Option<Ipv4Addr>,
    /// Ways to some networks.
    pub routes: Vec<Route4>,
}

/// A way to a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Route4 {
    /// The network.
    pub network: Ipv4Addr,
    /// Length of its prefix in bits.
    pub prefix: u8,
    /// The next hop; 0.0.0.0: the destination is on the link.
    pub gateway: Ipv4Addr,
}

/// A PCI device of the host that is given to the guest, bound to the driver vfio-pci there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HostDevice {
    /// Its name, unique among host devices of all kinds.
    pub name: String,
    /// Its address on the host.
    pub address: PciAddress,
}

/// A mediated device of the host, such as a virtual GPU, that is given to the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MediatedDevice {
    /// Its name, unique among host devices of all kinds.
    pub name: String,
    /// Its UUID on the host.
    pub uuid: String,
    /// Whether the guest's screen shows it.
    pub display: bool,
    /// Whether the screen shows a frame buffer in the guest's memory until the device's driver runs: one device's at most.
    pub ramfb: bool,
}

/// A USB device of the host that is given to the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UsbDevice {
    /// Its name, unique among host devices of all kinds.
    pub name: String,
    /// Its address on the host.
    pub address: UsbAddress,
}

/// An address on USB, until the device is unplugged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct UsbAddress {
    /// Number of the bus, from 1.
    pub bus: u8,
    /// Number of the device on it, from 1.
    pub device: u8,
}

impl UsbAddress {
    /// The address in a text such as `1:4`.
    pub fn parse(text: &str) -> Option<Self> {
        let (bus, device) = text.split_once(':')?;
        Some(Self { bus: bus.parse().ok()?, device: device.parse().ok()? })
    }

    /// The device's node.
    pub fn node(self) -> String {
        format!("/dev/bus/usb/{:03}/{:03}", self.bus, self.device)
    }
}

impl fmt::Display for UsbAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.bus, self.device)
    }
}

/// An address on PCI, written `0000:65:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PciAddress {
    /// Domain.
    pub domain: u16,
    /// Bus.
    pub bus: u8,
    /// Slot, below 32.
    pub slot: u8,
    /// Function, below 8.
    pub function: u8,
}

/// A text that is no address on PCI.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0:?} is not a PCI address such as 0000:65:00.0")]
pub struct NotPciAddress(String);

impl FromStr for PciAddress {
    type Err = NotPciAddress;

    fn from_str(text: &str) -> Result<Self, NotPciAddress> {
        let parsed = || {
            let (domain, rest) = text.split_once(':')?;
            let (bus, rest) = rest.split_once(':')?;
            let (slot, function) = rest.split_once('.')?;
            let fixed = [(domain, 4), (bus, 2), (slot, 2), (function, 1)];
            let good = fixed.iter().all(|(part, length)| {
                part.len() == *length && part.bytes().all(|byte| byte.is_ascii_hexdigit())
            });
            let byte = |part: &str| u8::from_str_radix(part, 16).ok();
            let address = Self {
                domain: u16::from_str_radix(domain, 16).ok()?,
                bus: byte(bus)?,
                slot: byte(slot)?,
                function: byte(function)?,
            };
            (good && address.slot < 32 && address.function < 8).then_some(address)
        };
        parsed().ok_or_else(|| NotPciAddress(text.to_owned()))
    }
}

impl TryFrom<String> for PciAddress {
    type Error = NotPciAddress;

    fn try_from(text: String) -> Result<Self, NotPciAddress> {
        text.parse()
    }
}

impl From<PciAddress> for String {
    fn from(address: PciAddress) -> Self {
        address.to_string()
    }
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, slot, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{slot:02x}.{function:x}")
    }
}

/// Everything that is neither disk nor network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Devices {
    /// A screen, seen by VNC on the socket `vnc`; `None`: none.
    pub video: Option<VideoModel>,
    /// A serial console on the socket `serial0`.
    pub serial: Option<SerialConsole>,
    /// Input devices.
    pub inputs: Vec<Input>,
    /// The channel of the guest agent, on the socket `agent`.
    pub guest_agent: bool,
    /// The virtio balloon.
    pub balloon: Option<Balloon>,
    /// A source of random numbers.
    pub rng: bool,
    /// A sound card.
    pub sound: Option<SoundModel>,
    /// Intel's 6300ESB watchdog.
    pub watchdog: Option<WatchdogAction>,
    /// A trusted platform module.
    pub tpm: Option<Tpm>,
    /// Devices by which a guest reports a crash.
    pub panic: Vec<PanicModel>,
    /// A virtio-scsi controller even without disks on it, for those that come later.
    pub scsi_controller: bool,
    /// Free ports for devices that come later.
    pub hotplug: bool,
    /// virtio 0.9 as well.
    pub transitional: bool,
    /// Channels through which clients give the guest USB devices, on the sockets that [`usb_channel`] names, numbered from
    /// 0; `None`: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usb_channels: Option<u8>,
}

/// USB redirection channels of a guest that has them, as upstream.
pub const USB_CHANNELS: u8 = 4;

/// The socket of a USB redirection channel, which is its alias in the guest, too.
pub fn usb_channel(number: u8) -> String {
    format!("usbredir{number}")
}

/// A serial console.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SerialConsole {
    /// File that keeps what the guest wrote.
    pub log: Option<String>,
}

/// An input device: a tablet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Input {
    /// Its name, unique among input devices.
    pub name: String,
    /// Its bus.
    pub bus: InputBus,
}

/// The virtio balloon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Balloon {
    /// Seconds between the guest's reports; 0: none.
    pub statistics_period: u32,
}

/// A trusted platform module, version 2.0, by swtpm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Tpm {
    /// How it is reached.
    pub model: TpmModel,
    /// Whether what it holds is kept when the guest stops.
    pub persistent: bool,
    /// Folder that keeps it; without one it is in the run's folder, and ends with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
}

/// Where devices are, by alias (`net-NAME`, `disk-NAME`, `scsi0`, …): kept over runs, since guests name devices by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Layout {
    /// PCI Express ports there are, numbered from 1.
    pub ports: u8,
    /// Devices on PCI.
    pub slots: BTreeMap<String, Slot>,
    /// Devices on other buses: their place there.
    pub units: BTreeMap<String, u16>,
}

impl Layout {
    /// Whether the device of this alias has a place.
    pub fn has(&self, alias: &str) -> bool {
        let mut units = self.units.keys().filter_map(|key| key.split_once('/'));
        self.slots.contains_key(alias) || units.any(|(_, device)| device == alias)
    }
}

/// A place on PCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum Slot {
    /// The PCI Express port of this number.
    Port(u8),
    /// This slot, from 1 to 31, of the bus for devices of conventional PCI.
    Conventional(u8),
    /// This slot of bus 00, where a device is for as long as the guest runs.
    Root(u8),
}

impl Slot {
    /// The place at an address that the guest sees; `None`: its board has none for devices there. Slots 06 to 1a of bus 00
    /// are free; each bus from 01 to 20 is a port's, with slot 00 alone.
    pub fn at(address: PciAddress) -> Option<Self> {
        match address {
            PciAddress { domain: 0, bus: 0, slot: slot @ 0x06..=0x1a, function: 0 } => Some(Self::Root(slot)),
            PciAddress { domain: 0, bus: bus @ 0x01..=0x20, slot: 0, function: 0 } => Some(Self::Port(bus)),
            PciAddress { .. } => None,
        }
    }
}

/// An attached network interface: what a launch document needs to know of it. Not part of the document itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tap {
    /// The tap device.
    pub link: String,
    /// Ethernet address that was given to the guest.
    pub mac: String,
    /// Largest packet in bytes.
    pub mtu: u32,
    /// Whether it was made for several queues.
    pub many_queues: bool,
    /// The DHCP configuration of the guest's interface; none without a DHCP server.
    pub dhcp: Option<Dhcp>,
}
