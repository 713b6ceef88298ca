//! Command line: upstream's flags and the driver's own. [`crate::config`] holds their meaning.
//!
//! Flags are read as Go reads them: one dash or two, and the last of several counts. klog's flags other than `--v` are
//! accepted and do nothing; logs go to stderr.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use serve::start::two_dashes;
use serve::tls::{Certificate, Identity};

use crate::config::{self, Config, Listen, Metrics, Registration};
use crate::error::Result;
use crate::id::Id;

/// The metrics server refuses older TLS.
const TLS13: &str = "VersionTLS13";

/// klog's flags that are switches: a value follows after `=` only.
const KLOG_SWITCHES: [&str; 6] =
    ["logtostderr", "alsologtostderr", "add_dir_header", "skip_headers", "skip_log_headers", "one_output"];
/// klog's flags that have a value.
const KLOG_VALUES: [&str; 6] =
    ["stderrthreshold", "log_dir", "log_file", "log_file_max_size", "log_backtrace_at", "vmodule"];

/// End of `--help`.
const EXAMPLES: &str = "\
Examples:
  In the DaemonSet of hpp-csi/manifests, with one pool:
    hpp-csi --nodeid node1 --endpoint unix:///csi/csi.sock \\
      --datadir '[{\"name\": \"legacy\", \"path\": \"/csi-data-dir\"}]'
  With sizes enforced by filesystems in files, and without sidecars for registration and probes:
    hpp-csi --nodeid node1 --datadir '[{\"name\": \"fast\", \"path\": \"/mnt/nvme\", \"enforce\": \"loop\"}]' \\
      --registration-socket /registration/hostpath.sock --kubelet-registration-path /var/lib/kubelet/plugins/csi.sock \\
      --health-address [::]:9898";

/// Volumes from directories of a node: the hostpath CSI driver.
#[derive(Debug, Parser)]
#[command(
    name = "hpp-csi",
    version,
    disable_version_flag = true,
    args_override_self = true,
    after_help = EXAMPLES
)]
pub(crate) struct Args {
    /// Name of the driver.
    #[arg(long, default_value = "hostpath.csi.kubevirt.io")]
    drivername: String,

    /// Socket to serve CSI on.
    #[arg(long, env = "CSI_ENDPOINT", default_value = "unix:///csi/csi.sock")]
    endpoint: String,

    /// Name of this node.
    #[arg(long, env = "NODE_NAME")]
    nodeid: String,

    /// Version that GetPluginInfo reports.
    #[arg(long, env = "VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    version: String,

    /// The pools as JSON.
    #[arg(long, env = "PV_DIR")]
    datadir: String,

    /// Directory for driver state (must outlive the pod) [default: the socket's directory].
    #[arg(long)]
    statedir: Option<PathBuf>,

    /// This is the only node running the driver: report unknown snapshot and volume sources as NOT_FOUND.
    #[arg(long)]
    single_node: bool,

    /// Socket for the kubelet's plugin registration, for example /registration/kubevirt.io.hostpath-provisioner-reg.sock.
    #[arg(long, requires = "kubelet_registration_path", help_heading = "Registration and health")]
    registration_socket: Option<PathBuf>,

    /// Path of the driver's socket as the kubelet sees it.
    #[arg(long, help_heading = "Registration and health")]
    kubelet_registration_path: Option<String>,

    /// Address of /healthz, for example [::]:9898, or off.
    #[arg(long, default_value = "off", help_heading = "Registration and health")]
    health_address: Listen,

    /// Address of metrics over HTTPS, or off.
    #[arg(long, default_value = "[::]:8443", help_heading = "Metrics")]
    metrics_address: Listen,

    /// Certificate of the metrics server, PEM.
    #[arg(long, requires = "metrics_key_file", help_heading = "Metrics")]
    metrics_cert_file: Option<PathBuf>,

    /// Key of the metrics server, PEM.
    #[arg(long, requires = "metrics_cert_file", help_heading = "Metrics")]
    metrics_key_file: Option<PathBuf>,

    /// Minimum TLS version of the metrics server: VersionTLS12 or VersionTLS13.
    #[arg(long, default_value = TLS13, value_parser = ["VersionTLS12", TLS13], help_heading = "Metrics")]
    metrics_tls_version: String,

    /// Addresses and names for the certificate that the metrics server signs itself.
    #[arg(long, env = "POD_IP", hide = true)]
    pod_ip: Option<String>,
    #[arg(long, env = "POD_NAMESPACE", hide = true)]
    pod_namespace: Option<String>,
    #[arg(long, env = "SERVICE_NAME", hide = true)]
    service_name: Option<String>,

    /// Log level in klog's numbers: 3 and 4 are debug, 5 and more trace.
    #[arg(short, long = "v", default_value_t = 1, help_heading = "Logs")]
    v: u8,

    /// Log lines as JSON.
    #[arg(long, help_heading = "Logs")]
    log_json: bool,
}

/// How to log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Logs {
    pub(crate) v: u8,
    pub(crate) json: bool,
}

impl Args {
    /// Reads a command line, its program name first.
    pub(crate) fn parse_from_os(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> std::result::Result<Self, clap::Error> {
        Self::try_parse_from(without_klog(arguments.into_iter().map(two_dashes)))
    }

    /// The configuration that the arguments describe.
    ///
    /// # Errors
    /// [`crate::error::Kind::Invalid`] when a value is invalid or two contradict each other.
    pub(crate) fn config(self) -> Result<(Config, Logs)> {
        let Self {
            drivername,
            endpoint,
            nodeid,
            version,
            datadir,
            statedir,
            single_node,
            registration_socket,
            kubelet_registration_path,
            health_address,
            metrics_address,
            metrics_cert_file,
            metrics_key_file,
            metrics_tls_version,
            pod_ip,
            pod_namespace,
            service_name,
            v,
            log_json,
        } = self;
        let socket = config::socket(&endpoint)?;
        let state = statedir.or_else(|| socket.parent().map(PathBuf::from)).unwrap_or_default();
        let config = Config {
            driver: config::driver_name(drivername)?,
            node: Id::parse("--nodeid", &nodeid)?,
            version,
            socket,
            state,
            pools: config::pools(&datadir)?,
            single_node,
            registration: registration_socket
                .zip(kubelet_registration_path)
                .map(|(socket, endpoint)| Registration { socket, endpoint }),
            health: health_address.0,
            metrics: metrics_address.0.map(|address| Metrics {
                address,
                identity: Identity {
                    certificate: match metrics_cert_file.zip(metrics_key_file) {
                        Some((chain, key)) => Certificate::Files { chain, key },
                        None => Certificate::SelfSigned(names(pod_ip, service_name.zip(pod_namespace))),
                    },
                    only_tls13: metrics_tls_version == TLS13,
                    ciphers: Vec::new(),
                },
            }),
        };
        Ok((config, Logs { v, json: log_json }))
    }
}

/// Names of the metrics server in its certificate: the pod's address, and its Service's name.
fn names(address: Option<String>, service: Option<(String, String)>) -> Vec<String> {
    let given = |name: &String| !name.is_empty();
    let service = service.filter(|(name, namespace)| given(name) && given(namespace));
    let in_cluster = service
        .into_iter()
        .flat_map(|(name, of)| [format!("{name}.{of}.svc"), format!("{name}.{of}.svc.cluster.local")]);
    ["localhost".to_owned()].into_iter().chain(address.filter(given)).chain(in_cluster).collect()
}

/// Leaves klog's flags out.
fn without_klog(mut arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut rest = Vec::new();
    while let Some(argument) = arguments.next() {
        let flag = argument.to_str().and_then(|text| text.strip_prefix("--")).unwrap_or_default();
        let (name, value) = flag.split_once('=').map_or((flag, None), |(name, value)| (name, Some(value)));
        if KLOG_VALUES.contains(&name) {
            if value.is_none() {
                arguments.next();
            }
        } else if !KLOG_SWITCHES.contains(&name) {
            rest.push(argument);
        }
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> (Config, Logs) {
        Args::parse_from_os(arguments.iter().map(OsString::from)).unwrap().config().unwrap()
    }

    #[test]
    fn upstreams_daemon_set_starts_it() {
        let (config, logs) = parse(&[
            "hpp-csi",
            "--drivername=kubevirt.io.hostpath-provisioner",
            "-v=3",
            "--endpoint=unix:///csi/csi.sock",
            "-nodeid=node01",
            "--version=latest",
            r#"--datadir=[{"name":"legacy","path":"/csi-data-dir"}]"#,
            "--metrics-tls-version=VersionTLS12",
            "--logtostderr",
            "-alsologtostderr=false",
            "-stderrthreshold",
            "INFO",
            "--vmodule=a=1,b=2",
        ]);
        assert_eq!(config.driver, "kubevirt.io.hostpath-provisioner");
        assert_eq!(config.node.as_str(), "node01");
        assert_eq!(config.socket, PathBuf::from("/csi/csi.sock"));
        assert_eq!(config.state, PathBuf::from("/csi"));
        assert_eq!(config.version, "latest");
        assert_eq!(logs, Logs { v: 3, json: false });
        assert_eq!((config.registration, config.health), (None, None));
        let metrics = config.metrics.unwrap();
        assert_eq!(metrics.address.to_string(), "[::]:8443", "upstream's, without being told");
        assert!(!metrics.identity.only_tls13);
    }

    #[test]
    fn servers_listen_on_configured_addresses() {
        let pool = r#"--datadir=[{"name":"legacy","path":"/p"}]"#;
        let (config, _) = parse(&[
            "x",
            "--nodeid=n",
            pool,
            "--metrics-address=off",
            "--health-address=127.0.0.1:9898",
            "--registration-socket=/registration/d-reg.sock",
            "--kubelet-registration-path=/var/lib/kubelet/plugins/d/csi.sock",
        ]);
        assert_eq!((config.metrics, config.health), (None, Some("127.0.0.1:9898".parse().unwrap())));
        assert_eq!(config.registration.unwrap().endpoint, "/var/lib/kubelet/plugins/d/csi.sock");
        let files = ["x", "--nodeid=n", pool, "--metrics-cert-file=/c", "--metrics-key-file=/k"];
        let identity = parse(&files).0.metrics.unwrap().identity;
        assert!(identity.only_tls13);
        assert_eq!(identity.certificate, Certificate::Files { chain: "/c".into(), key: "/k".into() });
        let service = Some(("hpp".to_owned(), "storage".to_owned()));
        let all = ["localhost", "10.0.0.1", "hpp.storage.svc", "hpp.storage.svc.cluster.local"];
        assert_eq!(names(Some("10.0.0.1".to_owned()), service), all);
        assert_eq!(names(Some(String::new()), None), ["localhost"]);
    }

    #[test]
    fn rejects_invalid_arguments() {
        let refused = |arguments: &[&str]| {
            Args::parse_from_os(arguments.iter().map(OsString::from))
                .map_or(true, |args| args.config().is_err())
        };
        let pool = r#"--datadir=[{"name":"legacy","path":"/p"}]"#;
        assert!(!refused(&["x", "--nodeid=n", pool]));
        for wrong in [
            vec!["x", "--nodeid=n"],
            vec!["x", "--nodeid=", pool],
            vec!["x", "--nodeid=a/b", pool],
            vec!["x", "--nodeid=n", pool, "--drivername=-a"],
            vec!["x", "--nodeid=n", pool, "--endpoint=tcp://a"],
            vec!["x", "--nodeid=n", pool, "--metrics-tls-version=1"],
            vec!["x", "--nodeid=n", pool, "--metrics-cert-file=/c"],
            vec!["x", "--nodeid=n", pool, "--metrics-address=8443"],
            vec!["x", "--nodeid=n", pool, "--registration-socket=/r"],
        ] {
            assert!(refused(&wrong), "{wrong:?}");
        }
    }
}
