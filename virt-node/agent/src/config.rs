//! The configuration of the process, after [`crate::args`] was checked.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::storage;

/// When guests are run in software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emulation {
    /// When a test guest does not run under KVM.
    Probe,
    /// Never: KVM is taken to work.
    Never,
    /// Always.
    Always,
}

/// The agent's configuration.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// Name of the node.
    pub(crate) node: String,
    /// The kubelet's directory.
    pub(crate) kubelet: PathBuf,
    /// State that the agent keeps between its starts.
    pub(crate) state: PathBuf,
    /// Address of the streams and power commands.
    pub(crate) listen: SocketAddr,
    /// Address of health.
    pub(crate) health: SocketAddr,
    /// Address of metrics.
    pub(crate) metrics: SocketAddr,
    /// Address of the SnapshotMetadata service.
    pub(crate) metadata: SocketAddr,
    /// Files of the serving certificate and its key.
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// File of the authorities of clients.
    pub(crate) client_ca: PathBuf,
    /// When guests are run in software.
    pub(crate) emulation: Emulation,
    /// The network plugin's file, and the node's directory that it is copied to.
    pub(crate) cni: Option<(PathBuf, PathBuf)>,
    /// The node's folders of network plugins, in the order they are looked through.
    pub(crate) plugins: Vec<PathBuf>,
    /// Namespaces with NetworkAttachmentDefinitions that VMs of all namespaces may use, in addition to `default`.
    pub(crate) shared: Vec<String>,
    /// Namespace of the CSI driver's DaemonSet.
    pub(crate) storage_namespace: String,
}

impl Config {
    /// The kubelet's directory of device plugins.
    pub(crate) fn device_plugins(&self) -> PathBuf {
        self.kubelet.join("device-plugins")
    }

    /// The CSI driver's socket.
    fn driver(&self) -> PathBuf {
        self.kubelet.join("plugins/csi-hostpath/csi.sock")
    }

    /// Settings of the SnapshotMetadata service.
    pub(crate) fn snapshot_metadata(&self) -> storage::metadata::Settings {
        storage::metadata::Settings {
            node: self.node.clone(),
            namespace: self.storage_namespace.clone(),
            socket: self.driver(),
            authorities: self.client_ca.clone(),
        }
    }

    /// Settings of the volumes of the node.
    pub(crate) fn storage(&self) -> storage::Settings {
        storage::Settings {
            node: self.node.clone(),
            socket: self.driver(),
            namespace: self.storage_namespace.clone(),
            daemon_set: "hostpath-provisioner-csi".to_owned(),
        }
    }
}
