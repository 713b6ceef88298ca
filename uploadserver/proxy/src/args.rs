//! The command line and the environment: upstream's flags and variables, and ours. Not here: their meaning (`config`).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use api::upload::token::Target;
use clap::{Parser, Subcommand};

use serve::peer;
use serve::start::Log;

/// End of `--help`.
const EXAMPLES: &str = "\
Examples:
  In a pod of the manifests, which set the environment:
    uploadproxy
  Upload an image into a claim of the cluster of KUBECONFIG:
    uploadproxy push disk.qcow2 --pvc default/disk
  With a token and the address of the proxy, without access to the API server:
    uploadproxy push disk.qcow2 --pvc default/disk --url proxy.example.com --token \"$TOKEN\" --ca ca.crt";

/// Authenticates upload requests by token and forwards them to the claim's upload server, in place of cdi-uploadproxy.
#[derive(Clone, Debug, Parser)]
#[command(name = "uploadproxy", version, args_conflicts_with_subcommands = true, after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) serve: Serve,
    #[command(flatten, next_help_heading = "Logs")]
    pub(crate) log: Log,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The proxy.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Serve {
    /// Kubeconfig file. Default: KUBECONFIG, else the pod's ServiceAccount.
    #[arg(long)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// URL of the cluster's API server, in place of the configured one.
    #[arg(long)]
    pub(crate) server: Option<String>,
    /// The proxy's certificate, PEM.
    #[arg(
        long,
        env = "SERVER_CERT_FILE",
        default_value = "/var/run/certs/cdi-uploadproxy-server-cert/tls.crt"
    )]
    pub(crate) server_cert_file: PathBuf,
    /// Its key, PEM.
    #[arg(
        long,
        env = "SERVER_KEY_FILE",
        default_value = "/var/run/certs/cdi-uploadproxy-server-cert/tls.key"
    )]
    pub(crate) server_key_file: PathBuf,
    /// Lowest TLS version, then cipher suites, one in a line; VersionTLS12 and all suites where the file is missing.
    #[arg(
        long,
        env = "TLS_PROFILE_FILE",
        default_value = "/var/run/certs/cdi-uploadproxy-server-cert/tls.profile"
    )]
    pub(crate) tls_profile_file: PathBuf,
    /// The proxy's client certificate for upload servers, PEM.
    #[arg(
        long,
        env = "UPLOAD_CLIENT_CERT_FILE",
        default_value = "/var/run/certs/cdi-uploadserver-client-cert/tls.crt"
    )]
    pub(crate) upload_client_cert_file: PathBuf,
    /// Its key, PEM.
    #[arg(
        long,
        env = "UPLOAD_CLIENT_KEY_FILE",
        default_value = "/var/run/certs/cdi-uploadserver-client-cert/tls.key"
    )]
    pub(crate) upload_client_key_file: PathBuf,
    /// ConfigMap of the proxy's namespace with the authorities of upload servers' certificates, entry ca-bundle.crt.
    #[arg(
        long,
        env = "UPLOAD_SERVER_CA_BUNDLE_CONFIG_MAP",
        default_value = "cdi-uploadserver-signer-bundle"
    )]
    pub(crate) upload_server_ca_bundle_config_map: String,
    /// The public key of tokens, PEM.
    #[arg(long, env = "APISERVER_PUBLIC_KEY", value_name = "PEM", hide_env_values = true)]
    pub(crate) apiserver_public_key: Option<String>,
    /// A file of public keys of tokens, PEM, read again when it changes. Keys that leave it stay valid until their last
    /// token has expired.
    #[arg(long, env = "APISERVER_PUBLIC_KEY_FILE", value_name = "FILE")]
    pub(crate) apiserver_public_key_file: Option<PathBuf>,
    /// A file of revoked public keys, PEM. A key is invalid as soon as the file contains it.
    #[arg(long, env = "APISERVER_REVOKED_KEYS_FILE", value_name = "FILE")]
    pub(crate) apiserver_revoked_keys_file: Option<PathBuf>,
    /// Address to serve uploads on.
    #[arg(long, env = "LISTEN", default_value = "[::]:8443", value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,
    /// Address for polls of cron sources by the operator. Default: none are answered.
    #[arg(long, env = "POLL_LISTEN", value_name = "ADDRESS", requires = "poll_client_ca_file")]
    pub(crate) poll_listen: Option<SocketAddr>,
    /// Authorities of the operator's client certificate, PEM.
    #[arg(long, env = "POLL_CLIENT_CA_FILE", value_name = "FILE")]
    pub(crate) poll_client_ca_file: Option<PathBuf>,
    /// Address for downloads of clients, plain HTTP. Default: none are served.
    #[arg(long, env = "DOWNLOADS_LISTEN", value_name = "ADDRESS")]
    pub(crate) downloads_listen: Option<SocketAddr>,
    /// Folder of supplied clients, asked before the one of the image.
    #[arg(long, env = "CLIENTS_FOLDER", value_name = "FOLDER", default_value = "/var/run/clients")]
    pub(crate) clients_folder: PathBuf,
    /// Folder of the image's own client.
    #[arg(
        long,
        env = "OWN_CLIENTS_FOLDER",
        value_name = "FOLDER",
        default_value = "/usr/share/ferrovirt/clients"
    )]
    pub(crate) own_clients_folder: PathBuf,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Command {
    /// Sign a token for an upload and print it.
    Token(Token),
    /// Upload a file to a claim, resuming after a broken connection.
    Push(Push),
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Token {
    /// The private key of tokens, PEM: entry id_rsa of the Secret cdi-api-signing-key.
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,
    /// The claim.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = target)]
    pub(crate) pvc: Target,
    /// Validity in seconds.
    #[arg(long, default_value_t = api::upload::token::LIFETIME, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) lifetime: u64,
}

#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Push {
    /// The image, in any format and compression that the upload server reads.
    pub(crate) file: PathBuf,
    /// The claim.
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = target)]
    pub(crate) pvc: Target,
    /// A token. Default: a new one from the cluster for each attempt.
    #[arg(long, env = "UPLOAD_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// The proxy. Default: the one that the cluster's CDIConfig names.
    #[arg(long)]
    pub(crate) url: Option<String>,
    /// Authorities of the proxy's certificate, PEM. Default: the system's.
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    pub(crate) ca: Option<PathBuf>,
    /// Skip verification of the proxy's certificate.
    #[arg(long)]
    pub(crate) insecure: bool,
    /// Kubeconfig file. Default: KUBECONFIG, else ~/.kube/config.
    #[arg(long)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Consecutive resume attempts without progress before giving up.
    #[arg(long, default_value_t = 5)]
    pub(crate) retries: u32,
    /// Longest wait for the answer once everything is sent, while the server writes the disk to its end.
    #[arg(long, value_name = "DURATION", default_value = peer::ANSWER_TIMEOUT, value_parser = peer::answer_timeout)]
    pub(crate) answer_timeout: Duration,
}

fn target(text: &str) -> Result<Target, String> {
    Target::parse(text).ok_or_else(|| "not a namespace and a name, / between them".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Args, clap::Error> {
        Args::try_parse_from(["uploadproxy"].iter().chain(arguments))
    }

    #[test]
    fn a_pods_arguments_and_the_commands() {
        for good in [
            &["-v=1"][..],
            &["-v", "3", "--alsologtostderr"],
            &["--kubeconfig", "k", "--server", "http://x"],
            &["token", "--key", "k", "--pvc", "a/b"],
            &["push", "disk.qcow2", "--pvc", "a/b", "--token", "t", "--url", "u", "--insecure", "-v=1"],
        ] {
            assert!(parse(good).is_ok(), "{good:?} {:?}", parse(good));
        }
        for bad in [
            &["token", "--key", "k", "--pvc", "b"][..],
            &["token", "--key", "k", "--pvc", "a/../b"],
            &["token", "--key", "k", "--pvc", "a/b", "--lifetime", "0"],
            &["push", "--pvc", "a/b"],
            &["push", "f", "--pvc", "a/b", "--insecure", "--ca", "x"],
            &["push", "f", "--pvc", "a/b", "--answer-timeout", "0s"],
            &["pull"],
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }
}
