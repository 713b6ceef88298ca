//! The chart of `operator helm-chart` in the hands of Helm: installed, upgraded, rolled back and removed.
//!
//! Not here: the VM that runs over the upgrade and blocks the removal, and what must be gone afterwards (`install`).

use std::fs;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use e2e::{platform, programs};
use operator::defaults::IMAGE;

use crate::platform::hyperconverged::{OBJECT, metric};
use crate::platform::place::PLACE;

const NAMESPACE: &str = operator::defaults::NAMESPACE;
const RELEASE: &str = "ferrovirt";
/// Values for a node of this harness.
const VALUES: [&str; 2] = ["--set", "emulation=true,replicas=1"];
/// Makes Helm wait until everything that it changed is ready, or gone.
const WAIT: [&str; 2] = ["--wait", "--timeout=3m"];

/// Images of the release that is upgraded to: the same by other names.
const NEXT: &str = "localhost/ferrovirt-next:{program}";
/// Workloads of the platform, each with the program of its image.
const WORKLOADS: [(&str, &str); 5] = [
    ("deployment/ferrovirt-operator", "operator"),
    ("deployment/cdi-uploadproxy", "uploadproxy"),
    ("deployment/kubemacpool-mac-controller-manager", "macpool"),
    ("daemonset/virt-handler", "virt-agent"),
    ("daemonset/hostpath-provisioner-csi", "hpp-csi"),
];

/// Waits until every workload runs images of this template, and `HyperConverged` is settled.
fn until_released(image: &str) {
    for (workload, program) in WORKLOADS {
        let wanted = image.replace("{program}", program);
        PLACE.until(NAMESPACE, &format!("{workload} has {wanted}"), || {
            let images = "jsonpath={.spec.template.spec.containers[*].image}";
            let found = PLACE.kubectl(&["-n", NAMESPACE, "get", workload, "-o", images]).ok()?;
            found.split(' ').any(|one| one == wanted).then_some(())
        });
        PLACE.kubectl(&["-n", NAMESPACE, "rollout", "status", workload, "--timeout=2m"]).unwrap();
    }
    PLACE.until(NAMESPACE, "HyperConverged is settled", || {
        let state =
            "jsonpath={.status.systemHealthStatus} {.status.conditions[?(@.type=='Progressing')].status}";
        let found = PLACE.kubectl(&["-n", NAMESPACE, "get", OBJECT, "-o", state]).ok()?;
        (found == "healthy False").then_some(())
    });
}

/// Waits until this holds for the number of guests that run under another release's launcher.
fn until_outdated(what: &str, holds: impl Fn(u64) -> bool) {
    PLACE.until(NAMESPACE, what, || {
        metric("kubevirt_vmi_number_of_outdated", "").filter(|count| holds(*count)).map(drop)
    });
}

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

    /// Upgrades the release with another value, and rolls it back; to `other_images` as well, if asked for.
    pub(crate) fn upgrade_and_roll_back(&self, other_images: bool) {
        let requested = || {
            let path = "jsonpath={.spec.template.spec.containers[0].resources.requests.memory}";
            PLACE.kubectl(&["-n", NAMESPACE, "get", "deployment/ferrovirt-operator", "-o", path]).unwrap()
        };
        let image = if other_images { NEXT } else { IMAGE };
        fs::write(self.folder.path().join("next.yaml"), format!("image: {image:?}\n")).unwrap();
        let more = ["upgrade", RELEASE, "chart", "--set", "resources.operator.requests.memory=65Mi"];
        let values = ["--values", "next.yaml"];
        if other_images {
            for program in image::product::SETS.iter().flat_map(|set| set.programs) {
                let named = |template: &str| template.replace("{program}", program.name);
                PLACE.cluster.tag_image(&named(IMAGE), &named(NEXT)).unwrap();
            }
        }
        self.must(&[&more[..], &VALUES, &values, &WAIT].concat());
        assert_eq!(requested(), "65Mi");
        if other_images {
            until_released(NEXT);
            until_outdated("guests run under the launcher before", |count| count > 0);
        }
        self.must(&[&["rollback", RELEASE, "1"][..], &WAIT].concat());
        assert_eq!(requested(), "64Mi");
        if other_images {
            until_released(IMAGE);
            until_outdated("guests run under the launcher of this release", |count| count == 0);
        }
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
