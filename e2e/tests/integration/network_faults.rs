//! Secondary networks of VMs under faults: the API server stops and starts again, the agent is killed, or the node is
//! switched off and on, in the middle of attachments and again in the middle of detachments. Either the VMs run with all of
//! their networks, or nothing is left of them: ports, addresses, rules, network namespaces, notes of the agent.
//!
//! A cluster of its own, as all other tests need the API server. The VMs are on its second node, which has no other guests.
//!
//! ```text
//! VMs made ─► first note ─► fault ─► all run, attached ─► VMs deleted ─► first note gone ─► fault ─► nothing is left
//! ```

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use e2e::Second;
use places::guest::Dice;
use rustix::process::{Signal, kill_process};
use serde_json::{Value, json};

use crate::platform::networks::{define, diskless, leased, leases, listed_in, names, notes};
use crate::platform::place::{MACHINES, PLACE, PODS, TIMEOUT};
use crate::platform_nodes::{kills, nodes};

const NAMESPACE: &str = "faults";
/// Bridges and networks: one with rules of the packet filter, one with addresses. The plugin makes them where they are
/// missing, as on a node that has just been switched on.
const CHECKED: &str = "e2e-checked";
const LEASED: &str = "e2e-faults";
/// The beginning of the names of the chains for [`CHECKED`].
const CHAINS: &str = "cni-br-iface-";
/// The seed of the faults and of their moments.
const SEED: u64 = 26;
/// Longest time from an attachment's beginning to the fault, in milliseconds.
const LATEST: u64 = 400;
/// Notes of a whole attachment: before ADD and after it.
const NOTES: usize = 2;

#[derive(Clone, Copy, Debug)]
enum Fault {
    ApiServer,
    Agent,
    Node,
}

const ALL: [Fault; 3] = [Fault::ApiServer, Fault::Agent, Fault::Node];

impl Fault {
    /// Strikes after a time that the dice give; the node as it is afterwards.
    fn strike(self, second: Second, dice: &mut Dice) -> Second {
        thread::sleep(Duration::from_millis(dice.next(LATEST)));
        match self {
            Self::ApiServer => {
                let server = kills::stop_api_server(&PLACE.cluster);
                thread::sleep(Duration::from_secs(2 + dice.next(6)));
                kills::continue_api_server(&PLACE.cluster, server);
                second
            }
            Self::Agent => {
                let agent = PLACE.until(NAMESPACE, "the agent runs", || kills::agent_of(second.place()));
                kill_process(agent, Signal::KILL).unwrap();
                second
            }
            Self::Node => {
                // The power fails: all of its processes, namespaces and links are gone at once.
                drop(second);
                PLACE.cluster.start_second().unwrap()
            }
        }
    }
}

/// The faults of all rounds: each of them once, or as the dice fall.
fn faults(dice: &mut Dice) -> Vec<Fault> {
    let mut faults = ALL.to_vec();
    if std::env::var_os("FERROVIRT_SOAK").is_some() {
        faults.extend((ALL.len()..50).map(|_| ALL[usize::try_from(dice.next(3)).unwrap()]));
    }
    dice.shuffle(&mut faults);
    faults
}

/// Output of a program on the node; `None` if it fails.
fn printed(second: &Second, words: &str) -> Option<String> {
    let mut words = words.split(' ');
    let run = second.on_node(words.next().unwrap()).unwrap().args(words).output().unwrap();
    run.status.success().then(|| String::from_utf8(run.stdout).unwrap())
}

/// Everything that attachments leave on the node.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    /// Ports of both bridges.
    ports: [usize; 2],
    addresses: usize,
    rules: bool,
    notes: usize,
}

impl Found {
    fn on(second: &Second) -> Self {
        // The bridge is missing before the first attachment.
        let ports = |bridge| {
            let links = printed(second, &format!("ip -json link show master {bridge}"));
            links.map_or(0, |links| names(&links).len())
        };
        Self {
            ports: [CHECKED, LEASED].map(ports),
            addresses: leases(second.place(), LEASED).len(),
            rules: printed(second, "nft list ruleset bridge").unwrap().contains(CHAINS),
            notes: notes(second.place(), NAMESPACE).len(),
        }
    }

    /// Of this number of VMs that are attached to both networks.
    fn of(guests: usize) -> Self {
        Self { ports: [guests; 2], addresses: guests, rules: guests > 0, notes: NOTES * 2 * guests }
    }
}

/// Whether the container runtime keeps network namespaces for the node's pods alone.
fn has_namespaces_of_pods_alone(second: &Second) -> bool {
    let kept = fs::read_dir(second.node_path("/run/netns").unwrap()).map_or(0, Iterator::count);
    let words = ["get", "pods", "-A", "-o", "json", "--field-selector", "spec.nodeName=node2"];
    let pods: Value = serde_json::from_str(&PLACE.kubectl(&words).unwrap()).unwrap();
    let has_one = |pod: &&Value| pod["spec"]["hostNetwork"] != true && pod["status"]["phase"] == "Running";
    kept == pods["items"].as_array().unwrap().iter().filter(has_one).count()
}

/// Whether a VM runs in one pod that lists the pod network and both others.
fn is_attached(name: &str) -> bool {
    let runs = PLACE
        .find(MACHINES, NAMESPACE, name)
        .is_some_and(|machine| machine["status"]["printableStatus"] == "Running");
    let of_vm = |pod: &Value| {
        pod["metadata"]["labels"]["vm.kubevirt.io/name"] == name && pod["status"]["phase"] == "Running"
    };
    let pods: Vec<Value> = PLACE.list(PODS, NAMESPACE).into_iter().filter(of_vm).collect();
    runs && pods.len() == 1 && pods.iter().all(|pod| listed_in(pod).len() == 3)
}

/// A VM on the second node with both networks.
fn create(name: &str) {
    let mut vm = diskless(name, &[("checked", "checked"), ("leased", "leased")]);
    vm["spec"]["template"]["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": "node2"});
    PLACE.create(MACHINES, NAMESPACE, &vm);
}

/// Waits until the node has what `guests` attached VMs have there.
#[track_caller]
fn until_found(second: &Second, what: &str, guests: usize) {
    let mut last = Found::on(second);
    let begun = Instant::now();
    while last != Found::of(guests) {
        assert!(begun.elapsed() < TIMEOUT, "{what}: {last:?}");
        thread::sleep(Duration::from_millis(200));
        last = Found::on(second);
    }
}

#[test]
fn nothing_is_left_of_networks_when_api_server_agent_or_node_fail() {
    PLACE.namespace(NAMESPACE);
    let mut second = nodes::add_second(NAMESPACE);
    let checked = json!({
        "cniVersion": "1.0.0", "name": CHECKED, "type": "bridge", "bridge": CHECKED,
        "macspoofchk": true, "spoofchkBackend": "nftables",
    });
    define(NAMESPACE, "checked", Some(&checked.to_string()), None);
    define(NAMESPACE, "leased", Some(&leased(LEASED)), None);
    let guests = if std::env::var_os("FERROVIRT_SOAK").is_some() { 3 } else { 2 };
    let guests: Vec<String> = (0..guests).map(|at| format!("vm{at}")).collect();
    let mut dice = Dice(SEED);
    println!("faults and their moments by seed {SEED}");
    for (round, fault) in faults(&mut dice).into_iter().enumerate() {
        let what = |state: &str| format!("round {round}, {fault:?}: {state}");
        let noted = |second: &Second| notes(second.place(), NAMESPACE).len();
        let begun = Instant::now();
        guests.iter().for_each(|name| create(name));
        PLACE.until(NAMESPACE, &what("an attachment begins"), || (noted(&second) > 0).then_some(()));
        second = fault.strike(second, &mut dice);
        PLACE.until(NAMESPACE, &what("the VMs run with all networks"), || {
            guests.iter().all(|name| is_attached(name)).then_some(())
        });
        until_found(&second, &what("the attachments of the VMs alone"), guests.len());
        let attached = begun.elapsed();

        guests.iter().for_each(|name| PLACE.delete(MACHINES, NAMESPACE, name));
        let all = NOTES * 2 * guests.len();
        PLACE.until(NAMESPACE, &what("a detachment ends"), || (noted(&second) < all).then_some(()));
        second = fault.strike(second, &mut dice);
        PLACE.until(NAMESPACE, &what("the VMs are gone"), || {
            let gone = [MACHINES, PODS].into_iter().all(|kind| PLACE.list(kind, NAMESPACE).is_empty());
            gone.then_some(())
        });
        until_found(&second, &what("nothing is left"), 0);
        PLACE.until(NAMESPACE, &what("the network namespaces are gone"), || {
            has_namespaces_of_pods_alone(&second).then_some(())
        });
        println!("{}: {attached:.1?}, all {:.1?}", what("attached after"), begun.elapsed());
    }
    PLACE.remove_namespace(NAMESPACE);
}
