//! The command line, as it was typed.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args as Group, Parser, Subcommand, ValueEnum};

/// Runs the platform's controllers, admission webhooks and aggregated APIs.
#[derive(Debug, Parser)]
#[command(name = "operator", version, about, after_help = EXAMPLES, arg_required_else_help = true)]
pub struct Args {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  In its pod, with the ServiceAccount of the pod:
    operator run
  On a developer's machine, only the storage controllers:
    operator run --kubeconfig ~/.kube/config --area storage --log-format text

  Install the platform, wait for its definitions, and switch it on:
    operator manifests | kubectl apply --server-side -f -
    kubectl wait --for condition=established crd/hyperconvergeds.hco.kubevirt.io
    kubectl -n kubevirt-hyperconverged rollout status deploy/ferrovirt-operator
    operator manifests --custom-resources | kubectl apply --server-side -f -

  Install with Helm:
    operator helm-chart --output chart
    helm install ferrovirt chart --namespace kubevirt-hyperconverged

  Collect what a bug report needs:
    operator support-bundle --output bundle

  Remove it; virtual machines and DataVolumes must be gone first, unless the uninstall strategy is RemoveWorkloads:
    operator uninstall";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run until SIGTERM.
    Run(Run),
    /// Print everything that is installed, for `kubectl apply --server-side -f -`.
    Manifests(Manifests),
    /// Write a Helm chart of everything that is installed.
    HelmChart(HelmChart),
    /// Collect objects and logs for a bug report, without Secrets.
    SupportBundle(SupportBundle),
    /// Remove the platform from a cluster.
    Uninstall(Uninstall),
}

/// How logs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// For people.
    Text,
}

/// Options of `run`.
#[derive(Debug, Group)]
pub struct Run {
    /// Kubeconfig file; without it KUBECONFIG, then the pod's ServiceAccount, then ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the installation; leases, certificates and settings are kept there
    #[arg(long, env = "OPERATOR_NAMESPACE", default_value = crate::defaults::NAMESPACE)]
    pub namespace: String,
    /// Name of this replica in leases and events; by default the host name, which is the pod's name
    #[arg(long, env = "POD_NAME", value_name = "NAME")]
    pub identity: Option<String>,
    /// Images of the worker programs; {program} stands for importer, uploadserver, virt-launcher, …
    #[arg(long, env = "IMAGE", value_name = "TEMPLATE", default_value = "localhost/ferrovirt:{program}")]
    pub image: String,
    /// Areas with controllers that run here; all by default
    #[arg(long = "area", value_name = "NAME")]
    pub areas: Vec<String>,
    /// Run guests without KVM on nodes that lack it; written to the KubeVirt object of a HyperConverged
    #[arg(long, env = "KVM_EMULATION", action = clap::ArgAction::Set, num_args = 0..=1, default_value = "false", default_missing_value = "true")]
    pub kvm_emulation: bool,
    /// Keep two replicas of the Deployment ferrovirt-operator where two nodes take pods, and one on a single node
    #[arg(long, env = "SCALE", action = clap::ArgAction::Set, num_args = 0..=1, default_value = "false", default_missing_value = "true")]
    pub scale: bool,
    /// The kubelet's directory on nodes, for the CSI driver; virt-agent has its own
    #[arg(
        long,
        env = "KUBELET_DIRECTORY",
        value_name = "DIRECTORY",
        default_value = crate::defaults::KUBELET_DIRECTORY
    )]
    pub kubelet_directory: String,
    /// URL of the pages about alerts; %s stands for an alert's name. Without one, alerts that upstream has lead to upstream's
    #[arg(long, env = "RUNBOOK_URL_TEMPLATE", value_name = "URL")]
    pub runbook_url_template: Option<String>,
    /// Address of /healthz, /readyz and /metrics (plain HTTP)
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8081")]
    pub health: SocketAddr,
    /// Address of the aggregated APIs (HTTPS)
    #[arg(long, value_name = "ADDRESS", default_value = "[::]:8443")]
    pub serve: SocketAddr,
    /// Log format
    #[arg(long, value_enum, default_value = "json")]
    pub log_format: LogFormat,
    /// Log more: -v for debug, -vv for trace
    #[arg(short, action = clap::ArgAction::Count)]
    pub verbose: u8,
}

/// Options of `manifests`.
#[derive(Debug, Group)]
pub struct Manifests {
    /// Namespace of the platform's own pods
    #[arg(long, default_value = crate::defaults::NAMESPACE)]
    pub namespace: String,
    /// Images of the programs; {program} stands for operator, virt-agent, macpool, …
    #[arg(long, value_name = "TEMPLATE", default_value = crate::defaults::IMAGE)]
    pub image: String,
    /// Replicas of the operator; 0: two where two nodes take pods, else one
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=9))]
    pub replicas: u32,
    /// Run guests without KVM; for tests
    #[arg(long)]
    pub emulation: bool,
    /// Claim with clients to be downloaded, such as arm64/mac/virtctl.zip, in the platform's namespace
    #[arg(long, value_name = "NAME")]
    pub clients_claim: Option<String>,
    /// Install the rights of stock CSI sidecars, which the annotation ferrovirt.io/sidecars of a HostPathProvisioner asks
    /// for
    #[arg(long)]
    pub sidecars: bool,
    /// The nodes' directory of network plugins; /var/lib/cni/bin on OpenShift
    #[arg(long, value_name = "DIRECTORY", default_value = crate::defaults::CNI_DIRECTORY)]
    pub cni_directory: String,
    /// The kubelet's directory on nodes (its --root-dir); /var/lib/k0s/kubelet with k0s
    #[arg(long, value_name = "DIRECTORY", default_value = crate::defaults::KUBELET_DIRECTORY)]
    pub kubelet_directory: String,
    /// Namespaces with NetworkAttachmentDefinitions that VMs of all namespaces may use, in addition to default; *: all
    #[arg(long, value_name = "NAMESPACE", value_delimiter = ',')]
    pub shared_network_namespaces: Vec<String>,
    /// Leave the roles kubevirt.io:view, edit and admin out of the cluster's roles of these names, for administrators to
    /// bind
    #[arg(long)]
    pub manual_roles: bool,
    /// VMs that the cluster is to hold. The operator asks for 64 MiB of memory for up to 1000, and 64 MiB more for each
    /// further 9000
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub machines: u32,
    /// Print the object that switches the platform on (HyperConverged) instead
    #[arg(long)]
    pub custom_resources: bool,
}

/// Options of `helm-chart`.
#[derive(Debug, Group)]
pub struct HelmChart {
    /// Directory of the chart; it is created, files in it are replaced
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
}

/// Options of `support-bundle`.
#[derive(Debug, Group)]
#[command(after_help = "\
Examples:
  operator support-bundle --output bundle
  operator support-bundle --output bundle --kubeconfig ~/.kube/config --namespace virtualization

Secrets are never read. Cloud-init data, HTTP headers and credentials in URLs are replaced; look through the files
before you send them.")]
pub struct SupportBundle {
    /// Directory that is created; it may exist if it is empty
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// Kubeconfig file; without it KUBECONFIG, then the pod's ServiceAccount, then ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the platform
    #[arg(long, env = "OPERATOR_NAMESPACE", default_value = crate::defaults::NAMESPACE)]
    pub namespace: String,
}

/// Options of `uninstall`.
#[derive(Debug, Group)]
#[command(after_help = "\
The objects that switch the platform on go first: while virtual machines or DataVolumes exist their removal is refused,
unless spec.deployment.uninstallStrategy of HyperConverged is RemoveWorkloads. Then follow APIServices, webhooks,
definitions with all their objects, and everything else. A second run continues an interrupted one.")]
pub struct Uninstall {
    /// Kubeconfig file; without it KUBECONFIG, then the pod's ServiceAccount, then ~/.kube/config
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the platform
    #[arg(long, env = "OPERATOR_NAMESPACE", default_value = crate::defaults::NAMESPACE)]
    pub namespace: String,
    /// Remove only the objects that switch the platform on, and wait until they are gone
    #[arg(long)]
    pub only_custom_resources: bool,
    /// Remove only what node agents, which must be gone, wrote on nodes
    #[arg(long, conflicts_with = "only_custom_resources")]
    pub only_nodes: bool,
    /// Seconds until it gives up
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub timeout: u64,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Args::command().debug_assert();
        let args =
            Args::try_parse_from(["operator", "run", "--area", "storage", "--area", "compute"]).unwrap();
        let Command::Run(run) = args.command else { panic!("{args:?}") };
        assert_eq!(run.areas, ["storage", "compute"]);
    }
}
