//! Device plugins: the kubelet counts `devices.kubevirt.io/{kvm,tun,vhost-net}` and gives launcher pods the device nodes.
//!
//! ```text
//! Plugins::start ──► one task per device (register): socket in the kubelet's directory ─► Register ─► watch for a restart
//!                                            └─► plugin: ListAndWatch (1000 units, healthy or not), Allocate
//! ```
//!
//! Not here: whether KVM works ([`crate::node::kvm`]), and which pods ask for which device (the operator).

mod plugin;
mod register;

use std::path::PathBuf;

use tokio::sync::watch;

/// Units of each device that the kubelet may give away: as many as pods can ever ask for, as upstream has it.
pub(crate) const UNITS: usize = 1000;

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
    pub(crate) fn resource(self) -> String {
        format!("devices.kubevirt.io/{}", self.name)
    }

    /// Whether the node has it.
    pub(crate) fn exists(self) -> bool {
        std::path::Path::new(self.path).exists()
    }

    /// File name of its plugin's socket in the kubelet's directory.
    fn socket(self) -> String {
        format!("kubevirt-{}.sock", self.name)
    }
}

/// Whether each device of [`DEVICES`] is usable on this node, in that order.
pub(crate) type Health = [bool; DEVICES.len()];

/// The running plugins. They end with this.
#[derive(Debug)]
pub(crate) struct Plugins {
    registered: Vec<watch::Receiver<bool>>,
    /// Plugins see the end of this as the agent's.
    _health: watch::Sender<Health>,
}

impl Plugins {
    /// Serves and registers a plugin for each device, and registers again whenever the kubelet was restarted. `directory` is
    /// the kubelet's, with its socket in it. `health` reports which are usable.
    pub(crate) fn start(directory: &std::path::Path, health: Health) -> Self {
        let (tell_health, health) = watch::channel(health);
        let start = |(place, device): (usize, Device)| {
            let (tell, registered) = watch::channel(false);
            let plugin = register::Registration {
                device,
                directory: PathBuf::from(directory),
                health: health.clone(),
                place,
            };
            tokio::spawn(async move { plugin.keep(&tell).await });
            registered
        };
        let registered = DEVICES.into_iter().enumerate().map(start).collect();
        Self { registered, _health: tell_health }
    }

    /// Returns when the kubelet knows all of them.
    pub(crate) async fn registered(&mut self) {
        for registered in &mut self.registered {
            // An error means that its task ended, which happens at the end of the process only.
            drop(registered.wait_for(|yes| *yes).await);
        }
    }
}
