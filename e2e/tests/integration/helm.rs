//! The chart of `operator helm-chart` in the hands of Helm: installed, upgraded, rolled back and removed, while a VM runs
//! over the upgrade and blocks the removal. Part of `make soak`, which builds Helm.

use std::collections::BTreeSet;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use e2e::{Cluster, platform, programs};
use operator::install::{Settings, custom_resources, yaml};
use serde_json::json;

const NAMESPACE: &str = operator::defaults::NAMESPACE;
const RELEASE: &str = "ferrovirt";
/// Namespace of the VM.
const USER: &str = "helm-user";
const POOL: u64 = 8 << 30;
/// How long a step may take.
const TIMEOUT: Duration = Duration::from_secs(180);

struct Place {
    cluster: Cluster,
    chart: tempfile::TempDir,
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl Place {
    fn kubectl(&self, words: &[&str]) -> Result<String, String> {
        let run = self.cluster.kubectl().args(words).output().unwrap();
        if run.status.success() { Ok(text(&run.stdout)) } else { Err(text(&run.stderr)) }
    }

    fn helm(&self, words: &[&str]) -> Output {
        let mut helm = Command::new(programs::built("helm").unwrap().join("helm"));
        helm.arg("--kubeconfig").arg(self.cluster.kubeconfig()).args(["--namespace", NAMESPACE]).args(words);
        helm.env("HOME", self.chart.path()).output().unwrap()
    }

    /// Runs Helm, which must succeed; prints how long it took.
    #[track_caller]
    fn must(&self, words: &[&str]) {
        let begun = Instant::now();
        let run = self.helm(words);
        let pods = || self.kubectl(&["-n", NAMESPACE, "get", "pods,jobs"]).unwrap_or_else(|error| error);
        assert!(run.status.success(), "helm {words:?}: {}\n{}", text(&run.stderr), pods());
        println!("helm {}: {:?}", words[0], begun.elapsed());
    }

    fn apply(&self, name: &str, objects: &[serde_json::Value]) -> Result<String, String> {
        let file = self.chart.path().join(name);
        std::fs::write(&file, yaml(objects).unwrap()).unwrap();
        self.kubectl(&["apply", "--server-side", "-f", file.to_str().unwrap()])
    }

    #[track_caller]
    fn until<T>(&self, wanted: &str, mut found: impl FnMut() -> Result<T, String>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            match found() {
                Ok(found) => return found,
                Err(why) if Instant::now() > deadline => panic!("{wanted}: not in {TIMEOUT:?}: {why}"),
                Err(_) => std::thread::sleep(Duration::from_millis(200)),
            }
        }
    }

    fn jsonpath(&self, words: &[&str], path: &str) -> String {
        self.kubectl(&[words, &["-o", &format!("jsonpath={path}")]].concat()).unwrap()
    }

    /// Memory that the operator asks for.
    fn requested(&self) -> String {
        let path = "{.spec.template.spec.containers[0].resources.requests.memory}";
        self.jsonpath(&["-n", NAMESPACE, "get", "deployment/ferrovirt-operator"], path)
    }

    /// Objects of the platform that are left, without definitions, which Helm keeps.
    fn left(&self) -> BTreeSet<String> {
        let kinds = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,\
                     validatingwebhookconfigurations,validatingadmissionpolicies,\
                     validatingadmissionpolicybindings,csidrivers,storageclasses,priorityclasses";
        let ours =
            |name: &&str| ["kubevirt", "ferrovirt", "kubemacpool"].iter().any(|one| name.contains(one));
        let local = "deployments,daemonsets,services,jobs,pods,roles,rolebindings,networkpolicies";
        let everywhere = self.kubectl(&["get", kinds, "-o", "name"]).unwrap();
        let here = self.kubectl(&["-n", NAMESPACE, "get", local, "-o", "name"]).unwrap();
        // Those of definitions have no Service.
        let services = "{range .items[?(@.spec.service)]}{.metadata.name}{\"\\n\"}{end}";
        let aggregated = self.jsonpath(&["get", "apiservices"], services);
        let all = everywhere.lines().chain(here.lines()).chain(aggregated.lines());
        all.filter(ours).map(str::to_owned).collect()
    }
}

#[test]
#[ignore = "needs Helm, which `make soak` builds"]
fn helm_installs_upgrades_rolls_back_and_removes_the_platform() {
    let cluster = Cluster::start().unwrap();
    platform::prepare(&cluster, POOL).unwrap();
    let place = Place { cluster, chart: tempfile::tempdir().unwrap() };
    let chart = place.chart.path().join("chart");
    let chart = chart.to_str().unwrap();
    let operator = programs::of_this_build("operator").unwrap();
    let made = Command::new(operator).args(["helm-chart", "--output", chart]).output().unwrap();
    assert!(made.status.success(), "{}", text(&made.stderr));
    // Its pods enter guests' namespaces.
    place.cluster.create_namespace(NAMESPACE, "privileged").unwrap();
    place.kubectl(&["label", "namespace", NAMESPACE, "runlevel=0"]).unwrap();
    place.cluster.create_namespace(USER, "restricted").unwrap();
    let rounds = if std::env::var_os("FERROVIRT_SOAK").is_some() { 20 } else { 1 };
    for round in 0..rounds {
        // The upload proxy waits for keys that the operator makes for the object CDI.
        let values = ["--set", "emulation=true,replicas=1"];
        place.must(&[&["install", RELEASE, chart][..], &values].concat());
        let switches = custom_resources(&Settings { replicas: 1, ..Settings::default() });
        place.until("the switches are taken", || place.apply("switches.yaml", &switches));
        let wait = ["wait", "--for=condition=Available", "--timeout=120s", "-n", NAMESPACE];
        place
            .kubectl(&[&wait[..], &["hyperconverged.hco.kubevirt.io/kubevirt-hyperconverged"]].concat())
            .unwrap();
        let machine = json!({
            "apiVersion": "kubevirt.io/v1",
            "kind": "VirtualMachine",
            "metadata": {"name": "vm", "namespace": USER},
            "spec": {"runStrategy": "Always", "template": {"spec": {
                "terminationGracePeriodSeconds": 0,
                "domain": {"memory": {"guest": "64Mi"}, "devices": {}},
            }}},
        });
        place.until("the VM is taken", || place.apply("vm.yaml", std::slice::from_ref(&machine)));
        place.kubectl(&["-n", USER, "wait", "vm/vm", "--for=condition=Ready", "--timeout=120s"]).unwrap();
        let pods = || place.jsonpath(&["-n", USER, "get", "pods"], "{.items[*].metadata.uid}");
        let running = pods();

        let upgrade = ["upgrade", RELEASE, chart, "--set", "resources.operator.requests.memory=65Mi"];
        place.must(&[&upgrade[..], &values, &["--wait", "--timeout=3m"]].concat());
        assert_eq!(place.requested(), "65Mi");
        place.must(&["rollback", RELEASE, "1", "--wait", "--timeout=3m"]);
        assert_eq!(place.requested(), "64Mi");
        assert_eq!(pods(), running, "the guest runs in the pod that it ran in");

        // The VM blocks the removal, which changes nothing.
        let refused = place.helm(&["uninstall", RELEASE, "--timeout=2m"]);
        assert!(!refused.status.success(), "{}", text(&refused.stdout));
        let log = place.kubectl(&["-n", NAMESPACE, "logs", "job/ferrovirt-uninstall"]).unwrap();
        assert!(log.contains("there are still Virtual Machine"), "{log}");
        assert_eq!(pods(), running);
        assert_eq!(place.requested(), "64Mi");

        if round % 2 == 0 {
            place.kubectl(&["-n", USER, "delete", "vm/vm", "--timeout=60s"]).unwrap();
        } else {
            let patch = r#"{"spec": {"deployment": {"uninstallStrategy": "RemoveWorkloads"}}}"#;
            let object = "hyperconverged.hco.kubevirt.io/kubevirt-hyperconverged";
            place.kubectl(&["-n", NAMESPACE, "patch", object, "--type=merge", "-p", patch]).unwrap();
        }
        place.must(&["uninstall", RELEASE, "--wait", "--timeout=3m"]);
        let left = place.until("the last pods are gone", || {
            let left = place.left();
            if left.iter().any(|one| one.starts_with("pod/")) { Err(format!("{left:?}")) } else { Ok(left) }
        });
        assert_eq!(left, BTreeSet::new());
        let kept = place.kubectl(&["get", "crd", "-o", "name"]).unwrap();
        assert!(kept.contains("virtualmachines.kubevirt.io"), "definitions stay: {kept}");
    }
    let begun = Instant::now();
    for namespace in [USER, NAMESPACE] {
        place.kubectl(&["delete", "namespace", namespace, "--timeout=30s"]).unwrap();
    }
    println!("namespaces gone after {:?}", begun.elapsed());
}
