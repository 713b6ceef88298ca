//! The command line: upstream's flags, and those of the logs. Not here: their meaning, and the environment (`config`).
//!
//! Flags are read as Go reads them: one dash or two, and the last of several counts.

use std::path::PathBuf;

use clap::Parser;
use clap::builder::NonEmptyStringValueParser;
use serve::start::Log;

/// End of `--help`.
const NOTES: &str = "\
Examples:
  In a pod of CDI's CronJob, with the rights of its ServiceAccount:
    cdi-source-update-poller -ns images -cron fedora -url docker://quay.io/containerdisks/fedora
  On a machine, by a kubeconfig:
    cdi-source-update-poller --kubeconfig admin.conf --ns images --cron fedora \\
      --url docker://quay.io/containerdisks/fedora:41

Environment:
  IMPORTER_ACCESS_KEY_ID, IMPORTER_SECRET_KEY   user and password at the registry
  REGISTRY_AUTH_FILE                            file of registry credentials, used without these
  INSECURE_TLS                                  true: certificates are not verified; plain HTTP allowed
  http_proxy, https_proxy, no_proxy             the way to the registry
Certificates in /proxycerts/ are trusted as well.

Exit codes:
  0 the digest is written, or is unchanged   2 wrong usage
  1 the digest cannot be read                3 the API server is not reachable or refuses";

/// Reads the digest of a DataImportCron's container image and writes it to the DataImportCron, in place of CDI's program of
/// this name.
#[derive(Clone, Debug, Parser)]
#[command(name = "cdi-source-update-poller", version, args_override_self = true, after_help = NOTES)]
pub(crate) struct Args {
    /// Namespace of the DataImportCron.
    #[arg(long, value_name = "NAMESPACE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) ns: String,
    /// Name of the DataImportCron.
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) cron: String,
    /// The image: docker://[HOST[:PORT]/]REPOSITORY[:TAG].
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    pub(crate) url: String,
    /// Directory of CA certificates (.crt, .pem) to trust as well.
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    pub(crate) certdir: String,
    /// Kubeconfig file. Default: KUBECONFIG, else the pod's ServiceAccount.
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// URL of the cluster's API server, in place of the configured one.
    #[arg(long, value_name = "URL")]
    pub(crate) server: Option<String>,
    #[command(flatten, next_help_heading = "Logs")]
    pub(crate) log: Log,
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use serve::start::two_dashes;

    use super::*;

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        let words = ["cdi-source-update-poller"].iter().chain(words).map(OsString::from);
        Args::try_parse_from(words.map(two_dashes))
    }

    #[test]
    fn upstreams_cron_job_starts_it() {
        let url = "docker://quay.io/containerdisks/fedora:latest";
        let line = ["-ns", "images", "-cron", "fedora", "-url", url, "-certdir", "/certs"];
        let args = parse(&line).unwrap();
        assert_eq!((args.ns.as_str(), args.cron.as_str(), args.url.as_str()), ("images", "fedora", url));
        assert_eq!((args.certdir.as_str(), args.server), ("/certs", None));
        let args = parse(&["--ns=a", "-cron=b", "-url=c", "-url", "d", "-v=3"]).unwrap();
        assert_eq!((args.cron.as_str(), args.url.as_str(), args.log.v), ("b", "d", 3));
    }

    #[test]
    fn missing_and_empty_flags_are_usage_errors_that_do_not_show_the_url() {
        for line in [
            &[][..],
            &["-ns", "a", "-cron", "b"],
            &["-ns", "a", "-url", "docker://u:hunter2@h/i"],
            &["-ns", "", "-cron", "b", "-url", "docker://u:hunter2@h/i"],
            &["-ns", "a", "-cron", "b", "-url", "docker://u:hunter2@h/i", "-none"],
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line:?}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        assert_eq!(parse(&["-help"]).unwrap_err().exit_code(), 0);
    }
}
