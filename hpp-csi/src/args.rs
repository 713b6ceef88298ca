//! What was typed: upstream's flags, and ours. What it means is [`crate::config`]'s.
//!
//! Flags are read as Go reads them: one dash or two. `--logtostderr` and other switches of klog that choose where logs go
//! are accepted and do nothing; logs go to stderr.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

use crate::config::{self, Config, Metrics, Registration};
use crate::error::Result;
use crate::id::Id;

/// Volumes from the folders of a node: the hostpath CSI driver.
#[derive(Debug, Parser)]
#[command(name = "hpp-csi", version, disable_version_flag = true)]
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

    /// Version that GetPluginInfo tells.
    #[arg(long, env = "VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    version: String,

    /// The pools as JSON.
    #[arg(long, env = "PV_DIR")]
    datadir: String,

    /// Folder for what must be remembered outside of the pools [default: the socket's folder].
    #[arg(long)]
    statedir: Option<PathBuf>,

    /// No other node runs this driver: a source that is not here is nowhere.
    #[arg(long)]
    single_node: bool,

    /// Socket for the kubelet's plugin registration, like /registration/kubevirt.io.hostpath-provisioner-reg.sock.
    #[arg(long, requires = "kubelet_registration_path")]
    registration_socket: Option<PathBuf>,

    /// Path of our socket as the kubelet sees it.
    #[arg(long)]
    kubelet_registration_path: Option<String>,

    /// Where /healthz is answered, like 0.0.0.0:9898.
    #[arg(long)]
    health_address: Option<SocketAddr>,

    /// Where metrics are served over HTTPS, like 0.0.0.0:8443.
    #[arg(long)]
    metrics_address: Option<SocketAddr>,

    /// Certificate of the metrics server, PEM.
    #[arg(long, requires = "metrics_key_file")]
    metrics_cert_file: Option<PathBuf>,

    /// Key of the metrics server, PEM.
    #[arg(long, requires = "metrics_cert_file")]
    metrics_key_file: Option<PathBuf>,

    /// Least TLS version of the metrics server: VersionTLS12 or VersionTLS13.
    #[arg(long, default_value = "VersionTLS13", value_parser = ["VersionTLS12", "VersionTLS13"])]
    metrics_tls_version: String,

    /// Level of the log as klog counts it: 3 and 4 are debug, 5 and more trace.
    #[arg(short, long = "v", default_value_t = 1)]
    v: u8,

    /// Log lines as JSON.
    #[arg(long)]
    log_json: bool,

    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    logtostderr: Option<Option<bool>>,

    #[arg(long, hide = true, num_args = 0..=1, require_equals = true)]
    alsologtostderr: Option<Option<bool>>,
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
        Self::try_parse_from(arguments.into_iter().map(two_dashes))
    }

    /// What it means.
    ///
    /// # Errors
    /// [`crate::error::Kind::Invalid`] when a value makes no sense.
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
            metrics_tls_version: _,
            v,
            log_json,
            logtostderr: _,
            alsologtostderr: _,
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
            health: health_address,
            metrics: metrics_address
                .map(|address| Metrics { address, certificate: metrics_cert_file.zip(metrics_key_file) }),
        };
        Ok((config, Logs { v, json: log_json }))
    }
}

/// Go's flag package takes one dash for two.
fn two_dashes(argument: OsString) -> OsString {
    match argument.to_str() {
        Some(text) if text.len() > 2 && text.starts_with('-') && !text.starts_with("--") => {
            format!("-{text}").into()
        }
        _ => argument,
    }
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
        ]);
        assert_eq!(config.driver, "kubevirt.io.hostpath-provisioner");
        assert_eq!(config.node.as_str(), "node01");
        assert_eq!(config.socket, PathBuf::from("/csi/csi.sock"));
        assert_eq!(config.state, PathBuf::from("/csi"));
        assert_eq!(config.version, "latest");
        assert_eq!(logs, Logs { v: 3, json: false });
        assert_eq!(config.registration, None);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
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
        ] {
            assert!(refused(&wrong), "{wrong:?}");
        }
    }
}
