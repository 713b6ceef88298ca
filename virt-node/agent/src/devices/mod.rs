//! Device plugins: the kubelet counts `devices.kubevirt.io/{kvm,tun,vhost-net}` and the PCI, mediated and USB devices that
//! guests may have ([`permitted`]), and gives launcher pods the device nodes.
//!
//! ```text
//! Plugins::start,  ──► one task per resource (register): socket in the kubelet's directory ─► Register ─► watch for
//! permitted::keep                 └─► plugin: ListAndWatch (units, healthy or not), Allocate               a restart
//! ```
//!
//! Not here: whether KVM works ([`crate::node::kvm`]), and which pods ask for which device (the operator).

mod mediated;
pub(crate) mod mediated_types;
mod pci;
pub(crate) mod permitted;
mod plugin;
mod register;
mod usb;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use csi::deviceplugin::{ContainerAllocateResponse, DeviceSpec};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::{Error, Kind};
use crate::settings::Settings;

/// Units of each device that the kubelet may give away: as many as pods can ever ask for, as upstream has it.
const UNITS: usize = 1000;

/// A device that pods can ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// The name after `devices.kubevirt.io/`.
    pub(crate) name: &'static str,
    /// Its node, on the host and in the container.
    pub(crate) path: &'static str,
}

/// All of them.
pub(crate) const DEVICES: [Device; 3] = [KVM, TUN, VHOST_NET];
/// The processor's virtualization.
pub(crate) const KVM: Device = Device { name: "kvm", path: "/dev/kvm" };
/// Tap devices.
pub(crate) const TUN: Device = Device { name: "tun", path: "/dev/net/tun" };
/// Network packets moved by the kernel.
pub(crate) const VHOST_NET: Device = Device { name: "vhost-net", path: "/dev/vhost-net" };

impl Device {
    /// The resource that pods request.
    fn resource(self) -> String {
        format!("devices.kubevirt.io/{}", self.name)
    }

    /// Whether the node has it.
    pub(crate) fn exists(self) -> bool {
        Path::new(self.path).exists()
    }

    /// The offer of its plugin.
    fn offer(self, units: watch::Receiver<Units>) -> Offer {
        let socket = format!("kubevirt-{}.sock", self.name);
        Offer { resource: self.resource(), socket, units, give: Give::Node(self.path) }
    }

    /// Its units: as many as pods can ever ask for.
    fn units(self, healthy: bool) -> Units {
        (0..UNITS).map(|number| (format!("{}{number}", self.name), healthy)).collect()
    }
}

/// Whether each device of [`DEVICES`] is usable on this node, in that order.
pub(crate) type Health = [bool; DEVICES.len()];

/// Units of a resource by their ids, and whether each is healthy.
type Units = BTreeMap<String, bool>;

/// The devices that a container gets with a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Give {
    /// This device node.
    Node(&'static str),
    /// Those on this bus that the unit is called after, found in this directory.
    Found(Bus, PathBuf),
}

/// A bus with devices of the node that guests may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bus {
    /// PCI: a unit is a device.
    Pci,
    /// Mediated devices: a unit is a device.
    Mediated,
    /// USB: a unit is a set of devices.
    Usb,
}

/// The node that opens VFIO's others.
const VFIO: &str = "/dev/vfio/vfio";

impl Bus {
    /// All of them, in the order in which a resource takes its units from one.
    const ALL: [Self; 3] = [Self::Pci, Self::Mediated, Self::Usb];

    /// The kernel's list of the devices, below that of buses.
    fn list(self) -> &'static str {
        match self {
            Self::Pci => "pci/devices",
            Self::Mediated => "mdev/devices",
            Self::Usb => "usb/devices",
        }
    }

    /// The environment variable of a container with its devices of a resource, separated by commas.
    pub(crate) fn variable(self, resource: &str) -> String {
        let prefix = match self {
            Self::Pci => "PCI_RESOURCE",
            Self::Mediated => "MDEV_PCI_RESOURCE",
            Self::Usb => "USB_RESOURCE",
        };
        format!("{prefix}_{}", resource.to_uppercase().replace(['/', '.'], "_"))
    }

    /// The node's units of each resource that is permitted and not another plugin's, found in the kernel's list `devices`.
    /// `before`: units that were offered.
    fn offered(
        self,
        settings: &Settings,
        devices: &Path,
        before: &BTreeMap<String, Units>,
    ) -> BTreeMap<String, Units> {
        match self {
            Self::Pci => pci::offered(&settings.pci_devices, devices),
            Self::Mediated => mediated::offered(&settings.mediated_devices, devices),
            Self::Usb => usb::offered(&settings.usb_devices, devices, before),
        }
    }

    /// The device nodes of a unit, found in the kernel's list `devices`; an error: it is gone.
    fn nodes(self, devices: &Path, id: &str) -> Result<Vec<String>, String> {
        let isolated = |group: String| vec![VFIO.to_owned(), format!("/dev/vfio/{group}")];
        let (found, what) = match self {
            Self::Pci => {
                let what = "PCI device that is bound to vfio-pci and isolated by an IOMMU";
                (pci::group(devices, id).map(isolated), what)
            }
            Self::Mediated => {
                let what = "mediated device that is isolated by an IOMMU";
                (mediated::group(devices, id).map(isolated), what)
            }
            Self::Usb => (usb::nodes(devices, id), "set of USB devices of this node"),
        };
        found.ok_or_else(|| format!("{id} is no {what}"))
    }

    /// The device nodes and the variable for the units `ids` of a resource; an error names the one that is gone.
    fn allocate(
        self,
        devices: &Path,
        resource: &str,
        ids: &[String],
    ) -> Result<ContainerAllocateResponse, String> {
        let mut nodes = BTreeSet::new();
        for id in ids {
            nodes.extend(self.nodes(devices, id)?);
        }
        Ok(ContainerAllocateResponse {
            envs: [(self.variable(resource), ids.join(","))].into(),
            devices: nodes.into_iter().map(node).collect(),
        })
    }
}

/// Longest note in bytes.
const NOTE_MAX: u64 = 1 << 20;

/// The content of the file `note`, which an agent keeps for the next one of the node; the default if there is no file.
fn noted<T: DeserializeOwned + Default>(note: &Path) -> Result<T, Error> {
    let Some(text) = dir::read(note, NOTE_MAX)? else { return Ok(T::default()) };
    serde_json::from_slice(&text)
        .map_err(|error| Error::with(Kind::System, format!("{} cannot be read", note.display()), error))
}

/// Writes a note, so that it holds after a power cut.
fn write_note<T: Serialize>(note: &Path, content: &T) -> Result<(), Error> {
    Ok(dir::replace_durably(note, serde_json::json!(content).to_string().as_bytes(), 0o600)?)
}

/// The name of what a symbolic link of the kernel leads to.
fn linked(link: &Path) -> Option<String> {
    std::fs::read_link(link).ok()?.file_name()?.to_str().map(str::to_owned)
}

/// A device node that a container gets under the node's own path.
fn node(path: String) -> DeviceSpec {
    DeviceSpec { container_path: path.clone(), host_path: path, permissions: "mrw".to_owned() }
}

/// A plugin's offer to the kubelet.
#[derive(Clone, Debug)]
struct Offer {
    /// The resource that pods request.
    resource: String,
    /// File name of the plugin's socket in the kubelet's directory.
    socket: String,
    units: watch::Receiver<Units>,
    give: Give,
}

/// A plugin that is served and registered. It ends with this.
#[derive(Debug)]
struct Running {
    registered: watch::Receiver<bool>,
    task: JoinHandle<()>,
    socket: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
        // A socket that is not there is none that the kubelet could find.
        drop(std::fs::remove_file(&self.socket));
    }
}

/// Serves and registers a plugin, and registers it again whenever the kubelet was restarted.
fn start(offer: Offer, directory: &Path) -> Running {
    let (tell, registered) = watch::channel(false);
    let socket = directory.join(&offer.socket);
    let plugin = register::Registration { offer, directory: PathBuf::from(directory) };
    let task = tokio::spawn(async move { plugin.keep(&tell).await });
    Running { registered, task, socket }
}

/// The running plugins of [`DEVICES`]. They end with this.
#[derive(Debug)]
pub(crate) struct Plugins {
    running: Vec<Running>,
    /// Plugins see the end of these as the agent's.
    _units: Vec<watch::Sender<Units>>,
}

impl Plugins {
    /// Serves and registers a plugin for each device. `directory` is the kubelet's, with its socket in it. `health` reports
    /// which are usable.
    pub(crate) fn start(directory: &Path, health: Health) -> Self {
        let start = |(device, healthy): (Device, bool)| {
            let (tell, units) = watch::channel(device.units(healthy));
            (start(device.offer(units), directory), tell)
        };
        let (running, units) = DEVICES.into_iter().zip(health).map(start).unzip();
        Self { running, _units: units }
    }

    /// Returns when the kubelet knows all of them.
    pub(crate) async fn registered(&mut self) {
        for one in &mut self.running {
            // An error means that its task ended, which happens at the end of the process only.
            drop(one.registered.wait_for(|yes| *yes).await);
        }
    }
}
