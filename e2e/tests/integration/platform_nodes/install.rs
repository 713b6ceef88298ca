//! The platform with a VM, applied again, removed and installed, several times: as `operator uninstall` and as Helm does.

use std::collections::BTreeSet;
use std::process::Output;
use std::time::{Duration, Instant};

use e2e::platform;
use serde_json::{Value, json};

use crate::platform::machines::{create, until_answers};
use crate::platform::place::{MACHINES, PLACE};

/// `HyperConverged` as kubectl names it.
const OBJECT: &str = "hyperconverged.hco.kubevirt.io/kubevirt-hyperconverged";
/// Longest time until a namespace of a user is gone.
const GONE: Duration = Duration::from_secs(30);
/// Longest time from the first object to Available, images present.
const AVAILABLE: Duration = Duration::from_secs(30);

fn kubectl(arguments: &[&str]) -> String {
    PLACE.kubectl(arguments).unwrap()
}

/// Installed objects of all kinds that have the platform's label, each with its generation if `generations` is set.
fn installed(generations: bool) -> BTreeSet<String> {
    let kinds = kubectl(&["api-resources", "--verbs=list", "-o", "name"]);
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let generation = if generations { " {.metadata.generation}" } else { "" };
    let template =
        format!("jsonpath={{range .items[*]}}{{.kind}}/{{.metadata.name}}{generation}{{\"\\n\"}}{{end}}");
    // Those that the operator makes itself have the second label only; they come and go.
    let label = if generations {
        "app.kubernetes.io/managed-by=ferrovirt"
    } else {
        "app.kubernetes.io/part-of=ferrovirt"
    };
    // EndpointSlices have the labels of their Services, and change with the pods.
    kubectl(&["get", &kinds.join(","), "-A", "-l", label, "-o", &template])
        .lines()
        .filter(|line| !line.starts_with("EndpointSlice/"))
        .map(str::to_owned)
        .collect()
}

/// Runs `operator uninstall`.
fn uninstall(arguments: &[&str]) -> Output {
    platform::removal(&PLACE.cluster, &platform::settings(), arguments).unwrap().output().unwrap()
}

/// A VM that runs, in a namespace of its own.
fn machine(namespace: &str) {
    PLACE.namespace(namespace);
    create(namespace, "vm", "Always", 0);
    until_answers(namespace, "vm", 1);
}

/// The VM's namespace goes in time, with no aggregated API in its way.
fn assert_namespace_goes(namespace: &str) {
    let begun = Instant::now();
    PLACE.remove_namespace(namespace);
    assert!(begun.elapsed() < e2e::bar(GONE), "{namespace}: {:?}", begun.elapsed());
}

/// Nothing of the platform is left.
fn assert_nothing_is_left() {
    assert_eq!(installed(false), BTreeSet::new());
    let everywhere = "apiservices,crd,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,\
                      validatingwebhookconfigurations,validatingadmissionpolicies,csidrivers,storageclasses,\
                      priorityclasses,namespaces";
    let left: Vec<String> = kubectl(&["get", everywhere, "-o", "name"])
        .lines()
        .filter(|name| {
            name.contains("kubevirt") || name.contains("kubemacpool") || name.contains("ferrovirt")
        })
        .map(str::to_owned)
        .collect();
    assert!(left.is_empty(), "{left:?}");
    let nodes: Value = serde_json::from_str(&kubectl(&["get", "nodes", "-o", "json"])).unwrap();
    for node in nodes["items"].as_array().unwrap() {
        let fields = [("metadata", "labels"), ("metadata", "annotations"), ("status", "allocatable")];
        let names = fields.iter().flat_map(|(of, field)| node[of][field].as_object().into_iter().flatten());
        // The kubelet itself forgets devices of plugins that are gone, after a while.
        let ours = |name: &str| name.contains("kubevirt.io/") && !name.starts_with("devices.kubevirt.io/");
        let left: Vec<&String> = names.map(|(name, _)| name).filter(|name| ours(name)).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

/// The removal is refused while the VM exists, and changes nothing.
fn assert_blocked(refused: &Output) {
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("HyperConverged"), "{why}");
    let strategy = "uninstall strategy";
    assert!(why.to_lowercase().contains(strategy) || why.contains("uninstallStrategy"), "{why}");
    let state = "jsonpath={.metadata.deletionTimestamp}{.status.systemHealthStatus}";
    let namespace = platform::settings().namespace;
    assert_eq!(kubectl(&["-n", &namespace, "get", OBJECT, "-o", state]), "healthy");
}

fn set_strategy(strategy: &str) {
    let namespace = platform::settings().namespace;
    let patch = json!({"spec": {"deployment": {"uninstallStrategy": strategy}}}).to_string();
    kubectl(&["-n", &namespace, "patch", OBJECT, "--type=merge", "-p", &patch]);
}

/// Begins a removal and kills it and the operator in the middle. Gives how long the removal ran.
fn interrupt(after: Duration) -> Duration {
    let settings = platform::settings();
    let begun = Instant::now();
    let mut removal = platform::removal(&PLACE.cluster, &settings, &[]).unwrap().spawn().unwrap();
    std::thread::sleep(after);
    let label = "app=ferrovirt-operator";
    let words = ["-n", &settings.namespace, "delete", "pod", "-l", label, "--force", "--grace-period=0"];
    PLACE.kubectl(&[&words[..], &["--wait=false"]].concat()).unwrap();
    assert!(removal.try_wait().unwrap().is_none(), "the removal was over after {:?}", begun.elapsed());
    removal.kill().unwrap();
    removal.wait().unwrap();
    begun.elapsed()
}

pub(crate) fn removed_without_a_trace() {
    let settings = platform::settings();
    println!("available after {:?}", PLACE.installed);
    let rounds: u64 = if std::env::var_os("FERROVIRT_SOAK").is_some() { 20 } else { 2 };
    for round in 0..rounds {
        let before = installed(true);
        assert!(before.len() > 60, "{before:?}");
        let begun = Instant::now();
        platform::install(&PLACE.cluster, &settings).unwrap();
        let again = begun.elapsed();
        assert_eq!(installed(true), before, "applied again, it changes something");
        let namespace = &format!("install-{round}");
        machine(namespace);
        assert_blocked(&uninstall(&[]));
        // With one strategy the VM goes first, with the other one with the platform.
        let cascade = round % 2 == 1;
        if cascade {
            set_strategy("RemoveWorkloads");
        } else {
            PLACE.delete(MACHINES, namespace, "vm");
            PLACE.until(namespace, "the VM is gone", || {
                PLACE.find(MACHINES, namespace, "vm").is_none().then_some(())
            });
        }
        let killed = (round % 4 == 1).then(|| interrupt(Duration::from_millis(100 * (1 + round / 4))));
        let removed = platform::uninstall(&PLACE.cluster, &settings).unwrap();
        assert_nothing_is_left();
        assert_namespace_goes(namespace);
        let took = platform::install(&PLACE.cluster, &settings).unwrap();
        println!(
            "round {round}: applied again in {again:?}, removed in {removed:?} (cascade {cascade}, killed after {killed:?}), \
             available in {took:?}"
        );
        assert!(took < e2e::bar(AVAILABLE), "{took:?}");
    }
}
