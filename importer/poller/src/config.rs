//! The checked meaning of command line and environment. Not here: files and connections.

use std::fmt;
use std::path::PathBuf;

use api::import::{Job, SourceKind};
use api::names;
use cluster::Key;
use serve::start::Log;

use crate::args::Args;
use crate::error::{Error, Kind, Result};

/// A poll.
#[derive(Clone)]
pub(crate) struct Config {
    /// The DataImportCron.
    pub(crate) cron: Key,
    /// The importer's job, which names the image and the way to it.
    pub(crate) job: Job,
    /// Kubeconfig file, in place of the usual ones.
    pub(crate) kubeconfig: Option<PathBuf>,
    /// URL of the API server, in place of the configured one.
    pub(crate) server: Option<String>,
    /// Flags of the importer's logs.
    pub(crate) log: Log,
    /// Termination log, of the importer and of this program.
    pub(crate) termination_log: PathBuf,
}

// By hand: the job has a password.
impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("cron", &self.cron).finish_non_exhaustive()
    }
}

impl Config {
    /// The poll that arguments and environment ask for. Of the environment, the variables of CDI's CronJob count, and
    /// REGISTRY_AUTH_FILE.
    ///
    /// # Errors
    /// [`Kind::Usage`] for a variable of the importer with an invalid value.
    pub(crate) fn new(args: Args, variables: Vec<(String, String)>) -> Result<Self> {
        // Exhaustive: a new flag is given a meaning here or does not compile.
        let Args { ns, cron, url, certdir, kubeconfig, server, log } = args;
        let root = variables.iter().find(|(name, _)| name == names::ROOT_VARIABLE);
        let root = PathBuf::from(root.map_or("/", |(_, folder)| folder));
        // A required variable of imports, without meaning here.
        let preallocation = ("PREALLOCATION".to_owned(), "false".to_owned());
        let given = Job::from_env(variables.into_iter().chain([preallocation]))
            .map_err(|e| Error::with(Kind::Usage, "invalid environment configuration", e))?;
        let job = Job {
            source: SourceKind::Registry,
            endpoint: url,
            cert_dir: certdir,
            proxy_cert_dir: names::PROXY_CERT_DIR.to_owned(),
            access_key_id: given.access_key_id,
            secret_key: given.secret_key,
            registry_auth_file: given.registry_auth_file,
            insecure_tls: given.insecure_tls,
            http_proxy: given.http_proxy,
            https_proxy: given.https_proxy,
            no_proxy: given.no_proxy,
            ..Job::default()
        };
        let termination_log = root.join(names::TERMINATION_LOG.trim_start_matches('/'));
        Ok(Self { cron: Key::new(&ns, &cron), job, kubeconfig, server, log, termination_log })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn config(variables: &[(&str, &str)]) -> Result<Config> {
        let line = ["p", "--ns=images", "--cron=fedora", "--url=docker://h/i", "--certdir=/certs"];
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Config::new(Args::parse_from(line), variables.collect())
    }

    #[test]
    fn the_variables_of_the_cron_job_reach_the_importer() {
        let config = config(&[
            ("IMPORTER_ACCESS_KEY_ID", "robot"),
            ("IMPORTER_SECRET_KEY", "hunter2"),
            ("INSECURE_TLS", "true"),
            ("http_proxy", "http://p:1"),
            ("https_proxy", "http://p:2"),
            ("no_proxy", "10.0.0.0/8"),
            // Left behind by something else.
            ("IMPORTER_ENDPOINT", "http://other/"),
            ("IMPORTER_PULL_METHOD", "node"),
            ("OWNER_UID", "1"),
        ])
        .unwrap();
        let expected = Job {
            source: SourceKind::Registry,
            endpoint: "docker://h/i".into(),
            cert_dir: "/certs".into(),
            proxy_cert_dir: "/proxycerts/".into(),
            access_key_id: "robot".into(),
            secret_key: "hunter2".into(),
            insecure_tls: true,
            http_proxy: "http://p:1".into(),
            https_proxy: "http://p:2".into(),
            no_proxy: "10.0.0.0/8".into(),
            ..Job::default()
        };
        assert_eq!(config.job, expected);
        assert_eq!(config.cron.to_string(), "images/fedora");
        assert_eq!(config.termination_log, PathBuf::from("/dev/termination-log"));
        assert!(!format!("{config:?}").contains("hunter2"));
    }

    #[test]
    fn invalid_variables_are_usage_errors() {
        assert_eq!(config(&[("IMPORTER_SOURCE", "ftp")]).unwrap_err().kind(), Kind::Usage);
        // As upstream reads it.
        assert!(!config(&[("INSECURE_TLS", "maybe")]).unwrap().job.insecure_tls);
        let rooted = config(&[(names::ROOT_VARIABLE, "/tmp/pod")]).unwrap();
        assert_eq!(rooted.termination_log, PathBuf::from("/tmp/pod/dev/termination-log"));
    }
}
