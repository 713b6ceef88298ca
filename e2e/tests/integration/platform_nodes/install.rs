//! The platform is installed, runs a VM, is installed again over itself, and removed, several times: as `operator manifests`
//! and `operator uninstall` do, and as Helm does. In some rounds the operator is killed on the way. Once it is switched on
//! by the objects KubeVirt and CDI alone, and once it is in another namespace. Objects, and files, links, rules, mounts and
//! processes of the node, are compared.

use std::collections::BTreeSet;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cluster::Resource;
use e2e::platform;
use operator::install::Settings;
use places::guest::Dice;
use serde_json::{Value, json};

use crate::platform::machines::{create, machine, until_answers};
use crate::platform::place::{MACHINES, PLACE, PODS, TIMEOUT};
use crate::platform_nodes::helm::Chart;
use crate::platform_nodes::kills::{self, Program};
use crate::platform_nodes::workloads;

const KUBEVIRTS: Resource = Resource::namespaced("kubevirt.io", "v1", "kubevirts");
const CDIS: Resource = Resource::cluster("cdi.kubevirt.io", "v1beta1", "cdis");
const NAMESPACES: Resource = Resource::cluster("", "v1", "namespaces");
const PLATFORM: &str = operator::defaults::NAMESPACE;
/// `HyperConverged` as kubectl names it.
const OBJECT: &str = "hyperconverged.hco.kubevirt.io/kubevirt-hyperconverged";
/// Longest time until a namespace that is deleted is gone.
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

/// Nothing of the platform is left; after Helm has removed it, definitions, and the authorities in the namespace, are.
fn assert_nothing_is_left(way: Way) {
    let (kept, kinds): (&[&str], _) = match way {
        Way::Manifest => (&[], ",apiservices,crd,namespaces"),
        Way::Helm => (&["CustomResourceDefinition/", "Secret/", "ConfigMap/"], ""),
    };
    let mut left = installed(false);
    left.retain(|object| !kept.iter().any(|kind| object.starts_with(kind)));
    let everywhere = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,\
                      validatingwebhookconfigurations,validatingadmissionpolicies,\
                      validatingadmissionpolicybindings,csidrivers,storageclasses,priorityclasses";
    let named = kubectl(&["get", &format!("{everywhere}{kinds}"), "-o", "name"]);
    let ours = |name: &&str| ["kubevirt", "kubemacpool", "ferrovirt"].iter().any(|one| name.contains(one));
    left.extend(named.lines().filter(ours).map(str::to_owned));
    assert!(left.is_empty(), "{way:?}: {left:#?}");
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

/// Files that stay on nodes (docs/hyperconverged.md, Remove).
const KEPT: [&str; 2] = ["/opt/cni/bin/", "/csi-hostpath/hpp-csi-pools.json"];

/// Nothing of the platform and its guests is left on the node: no process of a pod, no file, mount or rule with one of `words`,
/// no file in shared directories. Its network is as after the first removal, which `first` keeps: until then the pods'
/// network had its bridge and chains to make.
fn assert_node_is_clean(words: &[String], first: &mut Option<BTreeSet<String>>) {
    PLACE.until_nothing_remains(PLATFORM, words);
    PLACE.until(PLATFORM, "processes of pods have ended", || {
        kills::processes_of(PLACE.cluster.place()).iter().all(|(_, _, pod)| !pod).then_some(())
    });
    let mut left = BTreeSet::new();
    let deadline = Instant::now() + TIMEOUT;
    while Instant::now() < deadline {
        // One that goes while it is listed is an error.
        let Ok(files) = PLACE.cluster.shared_files() else { continue };
        let network = PLACE.cluster.network().unwrap();
        let kept = |file: &String| KEPT.iter().any(|kept| file.contains(kept));
        left = files.difference(&PLACE.files).filter(|file| !kept(file)).cloned().collect();
        let before = first.get_or_insert_with(|| network.clone());
        left.extend(network.difference(before).cloned());
        if left.is_empty() {
            return;
        }
        thread::sleep(Duration::from_millis(500));
    }
    panic!("left on the node: {left:#?}");
}

/// The removal is refused while the VM exists, and changes nothing.
fn assert_blocked(way: Way, chart: &Chart) {
    match way {
        Way::Manifest => {
            let refused = uninstall(&[]);
            let why = String::from_utf8_lossy(&refused.stderr);
            assert!(!refused.status.success() && why.contains("HyperConverged"), "{why}");
            let strategy = "uninstall strategy";
            assert!(why.to_lowercase().contains(strategy) || why.contains("uninstallStrategy"), "{why}");
        }
        Way::Helm => {
            let why = chart.refused();
            assert!(why.contains("there are still Virtual Machine"), "{why}");
        }
    }
    let state = "jsonpath={.metadata.deletionTimestamp}{.status.systemHealthStatus}";
    assert_eq!(kubectl(&["-n", PLATFORM, "get", OBJECT, "-o", state]), "healthy");
}

fn set_strategy(strategy: &str) {
    let patch = json!({"spec": {"deployment": {"uninstallStrategy": strategy}}}).to_string();
    kubectl(&["-n", PLATFORM, "patch", OBJECT, "--type=merge", "-p", &patch]);
}

/// The program that installs the platform and removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Manifest,
    Helm,
}

/// Steps of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Install,
    Start,
    Again,
    Removal,
}

impl Way {
    /// In which step of a round the operator is killed: five of 20 rounds, all steps in turn.
    fn killed_in(self, round: u64) -> Option<Step> {
        let steps = match self {
            Self::Manifest => [Step::Removal, Step::Install, Step::Start, Step::Again],
            Self::Helm => [Step::Again, Step::Removal, Step::Install, Step::Start],
        };
        round
            .is_multiple_of(4)
            .then(|| steps.into_iter().cycle().nth(usize::try_from(round / 4).unwrap()))
            .flatten()
    }
}

/// Takes a step of a round. The operator is killed `after` it runs in it, if that is given.
fn disturbed<T>(after: Option<Duration>, step: impl FnOnce() -> T) -> T {
    let Some(after) = after else { return step() };
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let killing = scope.spawn(|| {
            PLACE.until(PLATFORM, "the operator runs", || Program::Operator.process());
            thread::sleep(after);
            assert!(!over.load(Ordering::Relaxed), "the step was over after {after:?}");
            Program::Operator.kill(true);
        });
        let done = step();
        over.store(true, Ordering::Relaxed);
        killing.join().unwrap();
        done
    })
}

/// Begins a removal and kills it and the operator in the middle.
fn interrupt(after: Duration) {
    let mut removal = platform::removal(&PLACE.cluster, &platform::settings(), &[]).unwrap().spawn().unwrap();
    thread::sleep(after);
    Program::Operator.kill(true);
    assert!(removal.try_wait().unwrap().is_none(), "the removal was over after {after:?}");
    removal.kill().unwrap();
    removal.wait().unwrap();
}

/// Removes the platform.
fn remove(way: Way, chart: &Chart, killed: Option<Duration>) {
    match way {
        Way::Manifest => {
            if let Some(after) = killed {
                interrupt(after);
            }
            platform::uninstall(&PLACE.cluster, &platform::settings()).unwrap();
        }
        Way::Helm => {
            disturbed(killed, || chart.uninstall());
            PLACE.until(PLATFORM, "the last pods are gone", || {
                PLACE.list(PODS, PLATFORM).is_empty().then_some(())
            });
        }
    }
}

/// One round; the first way's first one finds the platform installed.
fn round(way: Way, number: u64, chart: &Chart, dice: &mut Dice, network: &mut Option<BTreeSet<String>>) {
    let settings = platform::settings();
    let step = way.killed_in(number);
    let (moment, cascade) = (Duration::from_millis(dice.next(1500)), dice.next(2) == 1);
    let kill = |now: Step| (step == Some(now)).then_some(moment);
    let namespace = &format!("{way:?}-{number}").to_lowercase();
    let took = match (way, number) {
        (Way::Manifest, 0) => PLACE.installed,
        (Way::Manifest, _) => {
            disturbed(kill(Step::Install), || platform::install(&PLACE.cluster, &settings)).unwrap()
        }
        (Way::Helm, _) => disturbed(kill(Step::Install), || chart.install()),
    };
    assert!(took < e2e::bar(AVAILABLE) || step == Some(Step::Install), "{took:?}");
    PLACE.namespace(namespace);
    let _volume = disturbed(kill(Step::Start), || {
        let volume = create(namespace, "vm", "Always", 0);
        until_answers(namespace, "vm", 1);
        volume
    });
    workloads::create(namespace);
    let begun = Instant::now();
    match way {
        Way::Manifest => {
            let before = installed(true);
            assert!(before.len() > 60, "{before:?}");
            disturbed(kill(Step::Again), || platform::install(&PLACE.cluster, &settings)).unwrap();
            assert_eq!(installed(true), before, "applied again, it changes something");
        }
        // Other images in the second round: nodes' pods are replaced, which takes its time.
        Way::Helm => disturbed(kill(Step::Again), || chart.upgrade_and_roll_back(number == 1)),
    }
    let again = begun.elapsed();
    // It has been started once: it runs on.
    until_answers(namespace, "vm", 1);
    assert_blocked(way, chart);
    let words = [PLACE.words(namespace), PLACE.words(PLATFORM)].concat();
    // With one strategy the workloads go first, with the other one with the platform.
    if cascade {
        set_strategy("RemoveWorkloads");
    } else {
        workloads::remove(namespace);
        PLACE.delete(MACHINES, namespace, "vm");
        PLACE.until(namespace, "the VM is gone", || {
            PLACE.find(MACHINES, namespace, "vm").is_none().then_some(())
        });
    }
    let begun = Instant::now();
    remove(way, chart, kill(Step::Removal));
    let removed = begun.elapsed();
    assert_nothing_is_left(way);
    assert_node_is_clean(&words, network);
    PLACE.remove_namespace(namespace);
    if way == Way::Helm {
        PLACE.remove_namespace(PLATFORM);
    }
    println!(
        "{way:?} {number}: available in {took:?}, again in {again:?}, removed in {removed:?} (cascade {cascade}, operator killed \
         in {step:?} after {moment:?})"
    );
}

/// Follows namespaces until it is over; the longest time for which one was being deleted.
fn terminating(over: Arc<AtomicBool>) -> JoinHandle<Duration> {
    thread::spawn(move || {
        let (mut deleted, mut longest) = (Vec::<(Value, Instant)>::new(), Duration::ZERO);
        while !over.load(Ordering::Relaxed) {
            let mut now = PLACE.list(NAMESPACES, "");
            now.retain(|one| one["metadata"]["deletionTimestamp"].is_string());
            let uids: Vec<Value> = now.into_iter().map(|one| one["metadata"]["uid"].clone()).collect();
            deleted.retain(|(uid, _)| uids.contains(uid));
            for uid in uids {
                match deleted.iter().find(|(known, _)| *known == uid) {
                    Some((_, since)) => longest = longest.max(since.elapsed()),
                    None => deleted.push((uid, Instant::now())),
                }
            }
            thread::sleep(Duration::from_millis(200));
        }
        longest
    })
}

pub(crate) fn rounds_leave_nothing_behind() {
    let rounds: u64 = if std::env::var_os("FERROVIRT_SOAK").is_some() { 20 } else { 1 };
    let chart = Chart::write();
    let seed = 26;
    println!("moments of the kills by seed {seed}");
    let mut dice = Dice(seed);
    let over = Arc::new(AtomicBool::new(false));
    let followed = terminating(Arc::clone(&over));
    let mut network = None;
    for way in [Way::Manifest, Way::Helm] {
        for number in 0..rounds {
            round(way, number, &chart, &mut dice, &mut network);
        }
    }
    // The definitions that Helm keeps.
    platform::uninstall(&PLACE.cluster, &platform::settings()).unwrap();
    assert_nothing_is_left(Way::Manifest);
    over.store(true, Ordering::Relaxed);
    let longest = followed.join().unwrap();
    println!("longest deletion of a namespace: {longest:?}");
    assert!(longest < e2e::bar(GONE), "{longest:?}");
    let took = platform::install(&PLACE.cluster, &platform::settings()).unwrap();
    assert!(took < e2e::bar(AVAILABLE), "{took:?}");
}

/// Objects KubeVirt and CDI that a user makes, without HyperConverged, give a platform on which VMs run. The platform is
/// installed with HyperConverged afterwards, as before.
pub(crate) fn kubevirt_and_cdi_work_alone() {
    let removed = uninstall(&["--only-custom-resources"]);
    assert!(removed.status.success(), "{}", String::from_utf8_lossy(&removed.stderr));
    let emulation = json!({"configuration": {"developerConfiguration": {"useEmulation": true}}});
    let object = |version: &str, kind: &str, spec: Value| {
        let metadata = json!({"name": "alone"});
        json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})
    };
    PLACE.create(KUBEVIRTS, PLATFORM, &object("kubevirt.io/v1", "KubeVirt", emulation));
    PLACE.create(CDIS, "", &object("cdi.kubevirt.io/v1beta1", "CDI", json!({})));
    for kind in ["kubevirt.kubevirt.io", "cdi.cdi.kubevirt.io"] {
        let object = format!("{kind}/alone");
        kubectl(&["-n", PLATFORM, "wait", &object, "--for=condition=Available", "--timeout=2m"]);
    }
    let namespace = "without-hyperconverged";
    PLACE.namespace(namespace);
    PLACE.create(MACHINES, namespace, &machine("vm", "Always", &json!({"emptyDisk": {"capacity": "1Mi"}})));
    PLACE.until_status(namespace, "vm", "Running");
    assert_eq!(kubectl(&["-n", PLATFORM, "get", "hyperconvergeds", "-o", "name"]), "");
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.until(namespace, "the VM and its pod are gone", || {
        (PLACE.find(MACHINES, namespace, "vm").is_none() && PLACE.list(PODS, namespace).is_empty())
            .then_some(())
    });
    PLACE.remove_namespace(namespace);
    platform::uninstall(&PLACE.cluster, &platform::settings()).unwrap();
    assert_nothing_is_left(Way::Manifest);
    platform::install(&PLACE.cluster, &platform::settings()).unwrap();
}

/// The platform works in a namespace of another name. It is installed in its own one afterwards, as before.
pub(crate) fn works_in_another_namespace() {
    let settings = Settings { namespace: "virtualization".to_owned(), ..platform::settings() };
    platform::uninstall(&PLACE.cluster, &platform::settings()).unwrap();
    platform::install(&PLACE.cluster, &settings).unwrap();
    let namespace = "of-another-platform";
    PLACE.namespace(namespace);
    let _volume = create(namespace, "vm", "Always", 0);
    until_answers(namespace, "vm", 1);
    workloads::create(namespace);
    let words = [PLACE.words(namespace), PLACE.words(&settings.namespace)].concat();
    workloads::remove(namespace);
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE
        .until(namespace, "the VM is gone", || PLACE.find(MACHINES, namespace, "vm").is_none().then_some(()));
    platform::uninstall(&PLACE.cluster, &settings).unwrap();
    assert_nothing_is_left(Way::Manifest);
    PLACE.kubectl(&["get", "namespace", &settings.namespace]).unwrap_err();
    PLACE.until_nothing_remains(namespace, &words);
    PLACE.remove_namespace(namespace);
    platform::install(&PLACE.cluster, &platform::settings()).unwrap();
}
