//! The command line, and the environment of the DaemonSet `virt-handler`. [`crate::config`] holds their meaning.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::config::{Config, Emulation};
use crate::error::{Error, Kind, Result};

/// End of `--help`.
const EXAMPLES: &str = "\
Examples:
  In the DaemonSet of `operator manifests`, which sets the environment:
    virt-agent --port 8186
  On a node without a working KVM, with guests run in software:
    virt-agent --kvm never
  Next to a cluster, by a kubeconfig:
    KUBECONFIG=admin.conf NODE_NAME=node1 virt-agent --tls-directory tls";

/// Runs the virtual machines of one Kubernetes node: starts guests in their launcher pods, reports their state, serves
/// their consoles to the operator, and offers KVM, tap and vhost devices to pods. Guests keep running when it ends.
#[derive(Debug, Parser)]
#[command(name = "virt-agent", version, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Name of the node
    #[arg(long, env = "NODE_NAME")]
    node_name: String,

    /// The kubelet's directory
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/kubelet")]
    kubelet_directory: PathBuf,

    /// Directory of what the agent keeps between its starts
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/lib/ferrovirt")]
    state_directory: PathBuf,

    /// Address that the operator connects to, for consoles and power commands
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8186")]
    listen: SocketAddr,

    /// Address of health over plain HTTP, for the kubelet's probes
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8187")]
    health: SocketAddr,

    /// Address of metrics over HTTPS
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8443")]
    metrics: SocketAddr,

    /// Address of the SnapshotMetadata service: changed blocks of the node's snapshots, over TLS
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8188")]
    metadata: SocketAddr,

    /// Directory with the certificate to serve with (tls.crt, tls.key)
    #[arg(long, value_name = "DIRECTORY", default_value = "/etc/virt-handler/servercertificates")]
    tls_directory: PathBuf,

    /// File with the certificates of the operator's authority, PEM
    #[arg(long, value_name = "FILE", default_value = "/etc/virt-handler/ca/ca-bundle")]
    client_ca: PathBuf,

    /// Whether guests may run by KVM: `auto` tries a guest of one sector first
    #[arg(long, value_enum, default_value = "auto")]
    kvm: Kvm,

    /// Copy the network plugin from this file to the node before anything else; needs --cni-directory
    #[arg(long, value_name = "FILE", requires = "cni_directory")]
    install_cni: Option<PathBuf>,

    /// The node's directory of network plugins
    #[arg(long, value_name = "DIRECTORY")]
    cni_directory: Option<PathBuf>,

    /// The node's directories of network plugins, as the container runtime has them
    #[arg(
        long,
        value_name = "DIRECTORY",
        env = "CNI_DIRECTORIES",
        value_delimiter = ',',
        default_value = "/opt/cni/bin"
    )]
    cni_path: Vec<PathBuf>,

    /// Namespaces with NetworkAttachmentDefinitions that VMs of all namespaces may use, in addition to `default`; `*`: all
    #[arg(long, value_name = "NAMESPACE", env = "SHARED_NETWORK_NAMESPACES", value_delimiter = ',')]
    shared_network_namespaces: Vec<String>,

    /// Print links, addresses, routes and the packet filter of network plugins of the node and its guests' pods as JSON,
    /// and end; support bundles have it
    #[arg(long)]
    pub(crate) show_network: bool,

    /// Namespace of the CSI driver hostpath-provisioner; the agent makes its volumes where no sidecar does
    #[arg(long, value_name = "NAMESPACE", env = "POD_NAMESPACE", default_value = "kubevirt-hyperconverged")]
    storage_namespace: String,

    /// Verbosity of the log, as klog counts it: 0 to 2 informational, 3 and 4 debug, 5 and more trace
    #[arg(long = "v", short = 'v', value_name = "LEVEL", default_value_t = 2)]
    verbosity: u8,

    /// Log JSON lines
    #[arg(long)]
    log_json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kvm {
    /// If a test guest runs.
    Auto,
    /// Without a test.
    Always,
    /// Guests run in software.
    Never,
}

/// How to log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Logs {
    pub(crate) verbosity: u8,
    pub(crate) json: bool,
}

impl Args {
    pub(crate) fn parse_from_os(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> std::result::Result<Self, clap::Error> {
        Self::try_parse_from(arguments)
    }

    /// The checked command line.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a value that cannot be.
    pub(crate) fn config(self) -> Result<(Config, Logs)> {
        let Self { node_name, kubelet_directory, state_directory, .. } = self;
        let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        if node_name.is_empty() || node_name.len() > 253 || !node_name.bytes().all(good) {
            return Err(Error::new(Kind::Usage, format!("{node_name:?} is not the name of a node")));
        }
        let cni = self.install_cni.zip(self.cni_directory);
        let config = Config {
            node: node_name,
            kubelet: kubelet_directory,
            state: state_directory,
            listen: self.listen,
            health: self.health,
            metrics: self.metrics,
            metadata: self.metadata,
            certificate: self.tls_directory.join("tls.crt"),
            key: self.tls_directory.join("tls.key"),
            client_ca: self.client_ca,
            emulation: match self.kvm {
                Kvm::Auto => Emulation::Probe,
                Kvm::Always => Emulation::Never,
                Kvm::Never => Emulation::Always,
            },
            cni,
            plugins: self.cni_path,
            // The DaemonSet sets the variable also without a value.
            shared: self.shared_network_namespaces.into_iter().filter(|name| !name.is_empty()).collect(),
            storage_namespace: self.storage_namespace,
        };
        Ok((config, Logs { verbosity: self.verbosity, json: self.log_json }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> std::result::Result<Result<(Config, Logs)>, clap::Error> {
        let words = ["virt-agent"].iter().chain(words).map(|word| OsString::from(*word));
        Args::parse_from_os(words).map(Args::config)
    }

    #[test]
    fn defaults_are_those_of_the_daemon_set() {
        let (config, logs) = parse(&["--node-name", "node1"]).unwrap().unwrap();
        assert_eq!((config.node.as_str(), config.listen.port()), ("node1", 8186));
        assert_eq!(config.emulation, Emulation::Probe);
        assert_eq!((logs.verbosity, logs.json), (2, false));
    }

    #[test]
    fn invalid_values_are_refused() {
        for words in [&["--node-name", "A b"][..], &["--node-name", ""]] {
            assert_eq!(parse(words).unwrap().unwrap_err().kind(), Kind::Usage, "{words:?}");
        }
        for words in
            [&["--node-name", "a", "--install-cni", "cni"][..], &["--node-name", "a", "--listen", "8186"]]
        {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }
}
