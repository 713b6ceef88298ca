//! Command line and environment: upstream's flags and variables, and ours. Their meaning is in [`crate::config`].
//!
//! Flags are read as Go reads them: one dash or two, and the last of several counts.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::str::FromStr;
use std::time::Duration;

use clap::Parser;

use crate::config::{Config, Role};
use crate::error::Result;
use crate::namespaces::Policy;
use crate::tls::{TLS13, TlsProfile};
use api::net::Range;
use serve::authority::Intervals;
use serve::start::two_dashes;

/// Begins the message about intervals, before the broken rule.
const INTERVALS: &str =
    "CA_ROTATE_INTERVAL, CA_OVERLAP_INTERVAL, CERT_ROTATE_INTERVAL, CERT_OVERLAP_INTERVAL";

/// The end of `--help`.
const EXAMPLES: &str = "\
Examples:
  In a pod of the manifests, where the environment has the rest:
    macpool --v=production --wait-time=300
  A replica outside of a cluster, by a kubeconfig, that refuses duplicates:
    KUBECONFIG=admin.conf macpool --namespace=kubemacpool-system --name=here --ip=192.0.2.7 \\
      --range-start=02:00:00:00:00:00 --range-end=02:00:00:ff:ff:ff --duplicates=reject
  Certificates only, as upstream's second Deployment:
    RUN_CERT_MANAGER= macpool --namespace=kubemacpool-system --name=certificates";

/// MAC addresses for virtual machines and pods: kubemacpool's webhook. Serves until SIGTERM; reviews that are on their way
/// then are answered.
#[derive(Debug, Parser)]
#[command(name = "macpool", version, args_override_self = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Namespace of this replica's pod.
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: String,

    /// Name of this replica: its pod's.
    #[arg(long, env = "POD_NAME")]
    name: String,

    /// Address at which other replicas reach this one [default: the one that the way to the API server starts from].
    #[arg(long, env = "POD_IP")]
    ip: Option<IpAddr>,

    /// First MAC address, unless the ConfigMap kubemacpool-mac-range-config has another. Not needed for certificates only.
    #[arg(long, env = "RANGE_START")]
    range_start: Option<String>,

    /// Last MAC address.
    #[arg(long, env = "RANGE_END")]
    range_end: Option<String>,

    /// Policy for an address that another object has: allow, reject or rewrite. A namespace's annotation
    /// macpool.ferrovirt.io/duplicates overrides it.
    #[arg(long, default_value = "allow")]
    duplicates: Policy,

    /// Seconds for which an address is kept for an object that is not written.
    #[arg(long, default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    wait_time: u64,

    /// Where the webhook listens.
    #[arg(long, default_value = ":8000")]
    webhook_addr: Listen,

    /// Where other replicas are answered.
    #[arg(long, default_value = ":8001")]
    peer_addr: Listen,

    /// Where metrics are served over HTTPS, or 0.
    #[arg(long, default_value = ":8443")]
    metrics_addr: Listen,

    /// Least TLS version of the webhook and the metrics; 1.2 for what is older, too.
    #[arg(long, default_value = TLS13, value_parser = ["VersionTLS10", "VersionTLS11", "VersionTLS12", TLS13])]
    tls_min_version: String,

    /// Cipher suites of TLS 1.2 by Go's names, separated by commas [default: all that are supported]. Other suites of Go are
    /// ignored; those of TLS 1.3 are always enabled.
    #[arg(long, default_value = "", hide_default_value = true)]
    tls_cipher_suites: String,

    /// Age at which the authority is replaced.
    #[arg(long, env = "CA_ROTATE_INTERVAL", default_value = "48h", value_parser = duration)]
    ca_rotate_interval: Duration,

    /// How long the old one is trusted then.
    #[arg(long, env = "CA_OVERLAP_INTERVAL", default_value = "24h", value_parser = duration)]
    ca_overlap_interval: Duration,

    /// Age at which the certificate is replaced.
    #[arg(long, env = "CERT_ROTATE_INTERVAL", default_value = "24h", value_parser = duration)]
    cert_rotate_interval: Duration,

    /// How long the old one is good then.
    #[arg(long, env = "CERT_OVERLAP_INTERVAL", default_value = "12h", value_parser = duration)]
    cert_overlap_interval: Duration,

    /// Label app.kubernetes.io/component of objects that are made; the three below likewise.
    #[arg(long, env = "COMPONENT", hide = true)]
    component: Option<String>,

    #[arg(long, env = "PART_OF", hide = true)]
    part_of: Option<String>,

    #[arg(long = "version-label", env = "VERSION", hide = true)]
    release: Option<String>,

    #[arg(long, env = "MANAGED_BY", hide = true)]
    managed_by: Option<String>,

    /// Level of the log: production, debug, or a number as klog counts it.
    #[arg(long = "v", value_name = "LEVEL", default_value = "production")]
    level: Level,
}

/// An address to listen on, as Go writes it: `:8000` is all of the machine's; `0` is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Listen(Option<SocketAddr>);

impl FromStr for Listen {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        match text {
            "0" => Ok(Self(None)),
            _ if text.starts_with(':') => format!("[::]{text}").parse().map(|address| Self(Some(address))),
            _ => text.parse().map(|address| Self(Some(address))),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Level(u8);

impl FromStr for Level {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        match text {
            "production" => Ok(Self(0)),
            "debug" => Ok(Self(4)),
            _ => text.parse().map(Self),
        }
    }
}

/// The role of the process. A range is required, except for certificates only.
fn role(start: Option<String>, end: Option<String>, only_certificates: bool) -> Result<Role> {
    if only_certificates {
        return Ok(Role::Certificates);
    }
    let (Some(start), Some(end)) = (start, end) else {
        let message =
            "the range is missing: give RANGE_START and RANGE_END, or --range-start and --range-end";
        return Err(crate::Error::new(crate::Kind::Invalid, message));
    };
    Ok(Role::Addresses(Range::parse(&start, &end)?))
}

/// The address from which packets go to the API server, as a pod without POD_IP finds its own; nothing is sent.
fn own_address() -> IpAddr {
    let found = || {
        let server: IpAddr = std::env::var("KUBERNETES_SERVICE_HOST").ok()?.parse().ok()?;
        let any: IpAddr =
            if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect((server, 443)).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    found().unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// A label of objects that are made, if it can be one.
fn label((key, value): (&str, Option<String>)) -> Option<(String, String)> {
    let value = value.filter(|value| is_label(value))?;
    Some((format!("app.kubernetes.io/{key}"), value))
}

/// Whether a text is a label's value by Kubernetes' rules, and not empty.
fn is_label(text: &str) -> bool {
    let ends = |end: Option<char>| end.is_some_and(|end| end.is_ascii_alphanumeric());
    let within = text.chars().all(|one| one.is_ascii_alphanumeric() || "-_.".contains(one));
    text.len() <= 63 && within && ends(text.chars().next()) && ends(text.chars().last())
}

fn duration(text: &str) -> std::result::Result<Duration, String> {
    api::duration::parse(text).ok_or_else(|| "not a duration like 48h0m0s".to_owned())
}

impl Args {
    pub(crate) fn parse_from_os(
        arguments: impl IntoIterator<Item = OsString>,
    ) -> std::result::Result<Self, clap::Error> {
        Self::try_parse_from(arguments.into_iter().map(two_dashes))
    }

    /// The checked configuration, and the level of the log.
    ///
    /// # Errors
    /// [`crate::Kind::Invalid`], naming the flag.
    pub(crate) fn config(self) -> Result<(Config, u8)> {
        let Self { namespace, name, ip, range_start, range_end, duplicates, wait_time, .. } = self;
        let Self { webhook_addr, peer_addr, metrics_addr, tls_min_version, tls_cipher_suites, .. } = self;
        let Self {
            ca_rotate_interval, ca_overlap_interval, cert_rotate_interval, cert_overlap_interval, ..
        } = self;
        let Self { component, part_of, release, managed_by, .. } = self;
        let labels = [
            ("component", component),
            ("part-of", part_of),
            ("version", release),
            ("managed-by", managed_by),
        ];
        let needed = |listen: Listen, flag: &str| {
            let none = || crate::Error::new(crate::Kind::Invalid, format!("{flag} cannot be 0"));
            listen.0.ok_or_else(none)
        };
        let peers = needed(peer_addr, "--peer-addr")?;
        // Upstream's second Deployment has this variable, whatever its value, and no range.
        let only_certificates = std::env::var_os("RUN_CERT_MANAGER").is_some();
        let config = Config {
            namespace,
            name,
            duty: role(range_start, range_end, only_certificates)?,
            wait: Duration::from_secs(wait_time),
            policy: duplicates,
            webhook: needed(webhook_addr, "--webhook-addr")?,
            peers,
            address: SocketAddr::new(ip.unwrap_or_else(own_address), peers.port()).to_string(),
            metrics: metrics_addr.0,
            offer: TlsProfile::read(&tls_min_version, &tls_cipher_suites)?,
            labels: labels.into_iter().filter_map(label).collect(),
            intervals: Intervals {
                ca_rotate: ca_rotate_interval,
                ca_overlap: ca_overlap_interval,
                cert_rotate: cert_rotate_interval,
                cert_overlap: cert_overlap_interval,
            }
            .check()
            .map_err(|error| crate::Error::with(crate::Kind::Invalid, INTERVALS, error))?,
        };
        Ok((config, self.level.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDED: [&str; 5] = [
        "macpool",
        "--namespace=n",
        "--name=p",
        "--range-start=02:00:00:00:00:00",
        "--range-end=02:00:00:00:00:ff",
    ];

    fn parse(more: &[&str]) -> Option<Config> {
        let arguments = NEEDED.iter().chain(more).map(OsString::from);
        Args::parse_from_os(arguments).ok()?.config().ok().map(|(config, _)| config)
    }

    #[test]
    fn defaults_are_upstreams() {
        let config = parse(&[]).unwrap();
        assert_eq!(config.webhook, "[::]:8000".parse().unwrap());
        assert_eq!(config.metrics, Some("[::]:8443".parse().unwrap()));
        assert_eq!((config.wait, config.policy), (Duration::from_secs(600), Policy::Allow));
        assert!(config.offer.only_tls13);
        assert_eq!(config.intervals.ca_rotate, Duration::from_secs(48 * 3600));
        assert_eq!(config.hosts()[2], "kubemacpool-service.n.svc");
        let config =
            parse(&["--v=debug", "--metrics-addr=0", "--peer-addr=127.0.0.1:9", "--ip=10.0.0.1"]).unwrap();
        assert_eq!((config.metrics, config.address.as_str()), (None, "10.0.0.1:9"));
        assert!(!parse(&["--tls-min-version=VersionTLS12", "--v=5"]).unwrap().offer.only_tls13);
        // OpenShift's profiles include versions that are out of use.
        for old in ["VersionTLS10", "VersionTLS11"] {
            let more = [format!("--tls-min-version={old}"), "--tls-cipher-suites=".to_owned()];
            assert!(!parse(&more.each_ref().map(String::as_str)).unwrap().offer.only_tls13, "{old}");
        }
    }

    #[test]
    fn flags_are_gos() {
        let config = parse(&["-wait-time", "300", "-v=debug", "-metrics-addr=0", "--v", "3"]).unwrap();
        assert_eq!((config.wait, config.metrics), (Duration::from_secs(300), None));
        let help = Args::parse_from_os(["macpool", "-help"].map(OsString::from)).unwrap_err().to_string();
        assert!(help.contains("Examples:") && help.contains("--duplicates"), "{help}");
    }

    #[test]
    fn labels_are_taken_as_far_as_they_can_be_ones() {
        let labels = |more: &[&str]| parse(more).unwrap().labels;
        let found =
            labels(&["--component=network", "--part-of=", "--version-label=v1.2.3", "--managed-by=a b"]);
        let found: Vec<(&str, &str)> =
            found.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(
            found,
            [("app.kubernetes.io/component", "network"), ("app.kubernetes.io/version", "v1.2.3")]
        );
        for wrong in ["", "-a", "a.", "ä", &"a".repeat(64)] {
            assert!(!is_label(wrong), "{wrong}");
        }
    }

    #[test]
    fn a_process_for_certificates_needs_no_range() {
        let range = Some("02:00:00:00:00:00".to_owned());
        assert_eq!(role(None, None, true).unwrap(), Role::Certificates);
        assert_eq!(role(range.clone(), range.clone(), true).unwrap(), Role::Certificates);
        assert!(matches!(role(range.clone(), range.clone(), false), Ok(Role::Addresses(_))));
        for (start, end) in [(None, None), (range.clone(), None), (None, range)] {
            assert!(role(start, end, false).unwrap_err().to_string().contains("RANGE_START"));
        }
    }

    #[test]
    fn invalid_flags_are_refused() {
        for wrong in [
            "--range-end=01:00:00:00:00:00",
            "--duplicates=maybe",
            "--wait-time=0",
            "--webhook-addr=0",
            "--webhook-addr=8000",
            "--tls-min-version=VersionTLS9",
            "--tls-cipher-suites=TLS_NONSENSE",
            "--ca-rotate-interval=5",
            "--ca-rotate-interval=1h",
            "--v=much",
        ] {
            assert!(parse(&[wrong]).is_none(), "{wrong}");
        }
    }
}
