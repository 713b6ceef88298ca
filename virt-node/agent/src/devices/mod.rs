//! Device plugins: the kubelet counts `devices.kubevirt.io/{kvm,tun,vhost-net}` and the PCI and mediated devices that guests
//! may have ([`permitted`]), and gives launcher pods the device nodes.
//!
//! ```text
//! Plugins::start,  ──► one task per resource (register): socket in the kubelet's directory ─► Register ─► watch for
//! permitted::keep                 └─► plugin: ListAndWatch (units, healthy or not), Allocate               a restart
//! ```
//!
//! Not here: whether KVM works ([`crate::node::kvm`]), and which pods ask for which device (the operator).

pub(crate) mod mediated;
pub(crate) mod pci;
pub(crate) mod permitted;
mod plugin;
mod register;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use csi::deviceplugin::{ContainerAllocateResponse, DeviceSpec};
use tokio::sync::watch;
use tokio::task::JoinHandle;

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
    /// The PCI device that the unit is called after, found in this directory.
    Pci(PathBuf),
    /// The mediated device that the unit is called after, found in this directory.
    Mediated(PathBuf),
}

/// The name of what a symbolic link of the kernel leads to.
fn linked(link: &Path) -> Option<String> {
    std::fs::read_link(link).ok()?.file_name()?.to_str().map(str::to_owned)
}

/// The environment variable of a container with its devices of a resource, separated by commas.
fn variable(prefix: &str, resource: &str) -> String {
    format!("{prefix}_{}", resource.to_uppercase().replace(['/', '.'], "_"))
}

/// The nodes of VFIO for the devices `ids`, and the variable with them; `group` gives the group of devices that one is isolated
/// with, or why it has none.
fn allocate(
    variable: String,
    ids: &[String],
    group: impl Fn(&str) -> Result<String, String>,
) -> Result<ContainerAllocateResponse, String> {
    let mut nodes = BTreeSet::from(["/dev/vfio/vfio".to_owned()]);
    for id in ids {
        nodes.insert(format!("/dev/vfio/{}", group(id)?));
    }
    Ok(ContainerAllocateResponse {
        envs: [(variable, ids.join(","))].into(),
        devices: nodes.into_iter().map(node).collect(),
    })
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
