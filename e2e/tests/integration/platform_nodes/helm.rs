//! The chart of `operator helm-chart` in the hands of Helm: installed, upgraded, rolled back and removed.
//!
//! Not here: the VM that runs over the upgrade and blocks the removal, and what must be gone afterwards (`install`).

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use e2e::{platform, programs};

use crate::platform::place::PLACE;

const NAMESPACE: &str = operator::defaults::NAMESPACE;
const RELEASE: &str = "ferrovirt";
/// Values for a node of this harness.
const VALUES: [&str; 2] = ["--set", "emulation=true,replicas=1"];
/// Makes Helm wait until everything that it changed is ready, or gone.
const WAIT: [&str; 2] = ["--wait", "--timeout=3m"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A chart in a folder.
pub(crate) struct Chart {
    folder: tempfile::TempDir,
}

impl Chart {
    /// Writes the chart of this build.
    pub(crate) fn write() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let operator = programs::of_this_build("operator").unwrap();
        let mut command = Command::new(operator);
        let made =
            command.args(["helm-chart", "--output"]).arg(folder.path().join("chart")).output().unwrap();
        assert!(made.status.success(), "{}", text(&made.stderr));
        Self { folder }
    }

    fn helm(&self, words: &[&str]) -> Output {
        let mut helm = Command::new(programs::built("helm").unwrap().join("helm"));
        helm.arg("--kubeconfig").arg(PLACE.cluster.kubeconfig()).args(["--namespace", NAMESPACE]).args(words);
        helm.env("HOME", self.folder.path()).current_dir(self.folder.path()).output().unwrap()
    }

    /// Runs Helm, which must succeed.
    #[track_caller]
    fn must(&self, words: &[&str]) {
        let run = self.helm(words);
        let pods = || PLACE.kubectl(&["-n", NAMESPACE, "get", "pods,jobs"]).unwrap_or_else(|error| error);
        assert!(run.status.success(), "helm {words:?}: {}\n{}", text(&run.stderr), pods());
    }

    /// Installs the chart and switches the platform on; gives the time until it is available.
    pub(crate) fn install(&self) -> Duration {
        // Its pods enter guests' namespaces.
        PLACE.cluster.create_namespace(NAMESPACE, "privileged").unwrap();
        PLACE.kubectl(&["label", "namespace", NAMESPACE, "runlevel=0"]).unwrap();
        let begun = Instant::now();
        // Without `--wait`: the upload proxy waits for keys that the operator makes for the object CDI.
        self.must(&[&["install", RELEASE, "chart"][..], &VALUES].concat());
        platform::switch_on(&PLACE.cluster, &platform::settings()).unwrap();
        begun.elapsed()
    }

    /// Upgrades the release with another value, and rolls it back.
    pub(crate) fn upgrade_and_roll_back(&self) {
        let requested = || {
            let path = "jsonpath={.spec.template.spec.containers[0].resources.requests.memory}";
            PLACE.kubectl(&["-n", NAMESPACE, "get", "deployment/ferrovirt-operator", "-o", path]).unwrap()
        };
        let more = ["upgrade", RELEASE, "chart", "--set", "resources.operator.requests.memory=65Mi"];
        self.must(&[&more[..], &VALUES, &WAIT].concat());
        assert_eq!(requested(), "65Mi");
        self.must(&[&["rollback", RELEASE, "1"][..], &WAIT].concat());
        assert_eq!(requested(), "64Mi");
    }

    /// Begins a removal, which a VM blocks; gives the reason in the log of the Job.
    pub(crate) fn refused(&self) -> String {
        let refused = self.helm(&["uninstall", RELEASE, "--timeout=2m"]);
        assert!(!refused.status.success(), "{}", text(&refused.stdout));
        PLACE.kubectl(&["-n", NAMESPACE, "logs", "job/ferrovirt-uninstall"]).unwrap()
    }

    pub(crate) fn uninstall(&self) {
        self.must(&[&["uninstall", RELEASE][..], &WAIT].concat());
    }
}
