//! Every program around a guest is killed at a random moment; the guest counts on its disk and console and never stops.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use e2e::Cluster;
use e2e::place::Place;
use e2e::processes::{self, Memory};
use places::guest::Dice;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::platform::console::Console;
use crate::platform::guest;
use crate::platform::machines::create_with;
use crate::platform::networks;
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};
use crate::platform_nodes::addresses;

const NAMESPACE: &str = "kills";
/// How long a status may be wrong after a kill.
const WRONG: Duration = Duration::from_secs(10);
/// Milliseconds within which the guest beats at least once; it does 18 times in a second.
const BEAT: u128 = 100;

/// A program that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Program {
    Operator,
    Agent,
    Driver,
    Worker,
    Containerd,
    Kubelet,
}

const ALL: [Program; 5] =
    [Program::Operator, Program::Agent, Program::Worker, Program::Containerd, Program::Kubelet];

/// Processes of the first node by command line and cgroup: id, command line, whether it is a pod's.
fn processes() -> Vec<(Pid, String, bool)> {
    processes_of(PLACE.cluster.place())
}

/// The same of the node in a place.
pub(crate) fn processes_of(place: &Place) -> Vec<(Pid, String, bool)> {
    let (group, folder) = (format!("/{}/", place.cgroup()), format!("{}/", place.folder().display()));
    let found = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let path = entry.ok()?.path();
        let pid = Pid::from_raw(path.file_name()?.to_str()?.parse().ok()?)?;
        let line = fs::read(path.join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let pod = fs::read_to_string(path.join("cgroup")).ok()?.contains(&group);
        (pod || line.contains(&folder)).then_some((pid, line, pod))
    });
    found.collect()
}

/// The agent's process on a node.
pub(crate) fn agent_of(node: &Place) -> Option<Pid> {
    let all = processes_of(node);
    all.into_iter().find(|(_, line, pod)| Program::Agent.is(line, *pod)).map(|(pid, ..)| pid)
}

fn api_server_of(cluster: &Cluster) -> Option<Pid> {
    let is_it = |line: &str| line.split(' ').next().is_some_and(|name| name.ends_with("/kube-apiserver"));
    let all = processes_of(cluster.place());
    all.into_iter().find(|(_, line, pod)| !pod && is_it(line)).map(|(pid, ..)| pid)
}

/// Kills the API server, and stops the next one while it starts: until it continues, connections are refused or hang.
pub(crate) fn stop_api_server(cluster: &Cluster) -> Pid {
    cluster.restart_killed("kube-apiserver").unwrap();
    let old = api_server_of(cluster).unwrap();
    kill_process(old, Signal::KILL).unwrap();
    let new = cluster.until("the next API server", || api_server_of(cluster).filter(|new| *new != old));
    kill_process(new, Signal::STOP).unwrap();
    new
}

/// Continues such an API server, and waits until it is ready.
pub(crate) fn continue_api_server(cluster: &Cluster, server: Pid) {
    kill_process(server, Signal::CONT).unwrap();
    cluster.until("the API server is ready", || {
        let ready = cluster.kubectl().args(["get", "--raw", "/readyz"]).output().unwrap();
        ready.status.success().then_some(())
    });
}

/// Stops the kubelet and the agent of a node, as if it hung; its guests go on.
pub(crate) fn hang(node: &Place) {
    let all = processes_of(node);
    for program in [Program::Kubelet, Program::Agent] {
        let found = all.iter().find(|(_, line, pod)| program.is(line, *pod));
        let (process, ..) = found.unwrap_or_else(|| panic!("{program:?} does not run: {all:#?}"));
        kill_process(*process, Signal::STOP).unwrap();
    }
}

/// The operator's process in the pod with this uid, on either node.
pub(crate) fn operator_of(uid: &str) -> Option<Pid> {
    let second = processes_of(&PLACE.cluster.place().second());
    let all = processes().into_iter().chain(second);
    let operators = all.filter(|(_, line, _)| line.starts_with("/usr/bin/operator "));
    let of_pod = processes::of_pod(uid);
    operators.map(|(pid, ..)| pid).find(|pid| of_pod.contains(pid))
}

impl Program {
    /// Whether a process is it, by its command line and whether it is a pod's.
    fn is(self, line: &str, pod: bool) -> bool {
        match self {
            Self::Operator => pod && line.starts_with("/usr/bin/operator "),
            Self::Agent => pod && line.starts_with("/usr/bin/virt-agent "),
            Self::Driver => pod && line.starts_with("/usr/bin/hpp-csi "),
            Self::Worker => pod && line.starts_with("virt-launcher worker"),
            Self::Containerd => !pod && line.starts_with("containerd "),
            Self::Kubelet => {
                !pod && line.split(' ').next().is_some_and(|program| program.ends_with("/kubelet"))
            }
        }
    }

    /// Its process on the first node; the operator's, with pods on any node, also on the second.
    pub(crate) fn process(self) -> Option<Pid> {
        let found = |all: Vec<(Pid, String, bool)>| {
            all.into_iter().find(|(_, line, pod)| self.is(line, *pod)).map(|(pid, _, _)| pid)
        };
        let second = || (self == Self::Operator).then(|| processes_of(&PLACE.cluster.place().second()));
        found(processes()).or_else(|| found(second()?))
    }

    /// Whether a stream from a user to the guest goes through other programs only.
    fn outside_of_streams(self) -> bool {
        matches!(self, Self::Containerd | Self::Kubelet)
    }

    /// Kills it; of pods that are started again later and later, the pod goes too.
    pub(crate) fn kill(self, again: bool) {
        let process = PLACE.until(NAMESPACE, &format!("{self:?} runs"), || self.process());
        kill_process(process, Signal::KILL).unwrap();
        let label = match self {
            Self::Operator => "app=ferrovirt-operator",
            Self::Agent => "kubevirt.io=virt-handler",
            Self::Driver => "k8s-app=hostpath-provisioner",
            Self::Worker | Self::Containerd | Self::Kubelet => return,
        };
        if again {
            let words =
                ["-n", "kubevirt-hyperconverged", "delete", "pod", "-l", label, "--force", "--wait=false"];
            PLACE.kubectl(&[&words[..], &["--grace-period=0"]].concat()).unwrap();
        }
    }
}

/// Longest time for which a guest may seem to stand still: a write of its disk waits for others on the machine.
const STILL: Duration = Duration::from_secs(1);
/// Fewest beats in a second on average, half of what the guest does on a machine that has nothing else to do.
const BEATS: u64 = 9;

/// Looks at the guest's counts on its disk until it is stopped; the longest time without a beat, and beats in a second.
fn watch(disk: PathBuf, over: Arc<AtomicBool>) -> std::thread::JoinHandle<(Duration, u64)> {
    std::thread::spawn(move || {
        let begun = Instant::now();
        let (mut last, mut since, mut longest) = (guest::counted(&disk).1, begun, Duration::ZERO);
        let mut all = 0;
        while !over.load(Ordering::Relaxed) {
            let (starts, beats) = guest::counted(&disk);
            assert_eq!(starts, 1, "the guest was started again");
            longest = longest.max(since.elapsed());
            if beats != last {
                // The guest's number begins again after an hour.
                all += u64::from(beats.wrapping_sub(last));
                (last, since) = (beats, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        (longest, all / begun.elapsed().as_secs().max(1))
    })
}

/// Why the status of the guest, which runs, is not true.
fn wrong() -> Option<String> {
    let Some(instance) = PLACE.find(INSTANCES, NAMESPACE, "vm") else { return Some("no instance".into()) };
    let ready = instance["status"]["conditions"].as_array().into_iter().flatten();
    let ready = ready.filter(|one| one["type"] == "Ready").any(|one| one["status"] == "True");
    let machine = PLACE.find(MACHINES, NAMESPACE, "vm").unwrap();
    let status = &machine["status"]["printableStatus"];
    let wrong = instance["status"]["phase"] != "Running" || !ready || status != "Running";
    wrong.then(|| format!("{}, ready {ready}, {status}", instance["status"]["phase"]))
}

/// These beats follow each other without a gap.
fn follow(beats: &[u8]) -> Result<(), String> {
    let gap = beats.windows(2).find(|pair| pair[1] != pair[0].wrapping_add(1));
    gap.map_or(Ok(()), |gap| Err(format!("beats {gap:?} in {} bytes", beats.len())))
}

/// The guest's beats on its console follow each other.
fn beats(console: &mut Console<'_>) -> Result<(), String> {
    follow(&console.bytes(6)?)
}

pub(crate) fn guest_outlives_every_program() {
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let rounds = if soak { 20 } else { 1 };
    for program in ["containerd", "kubelet"] {
        PLACE.cluster.restart_killed(program).unwrap();
    }
    PLACE.namespace(NAMESPACE);
    let volume = create_with(NAMESPACE, "vm", "Always", 0, &guest::beats());
    PLACE.until_status(NAMESPACE, "vm", "Running");
    let uid = |object: Option<Value>| object.unwrap()["metadata"]["uid"].clone();
    let first = uid(PLACE.find(INSTANCES, NAMESPACE, "vm"));
    let disk = volume.path().join("disk.img");
    PLACE.until(NAMESPACE, "the guest counts", || (guest::counted(&disk).1 > 0).then_some(()));
    let over = Arc::new(AtomicBool::new(false));
    let watching = watch(disk.clone(), Arc::clone(&over));
    let seed = 21;
    println!("moments of the kills by seed {seed}");
    let mut dice = Dice(seed);
    for program in ALL {
        let mut slowest = Duration::ZERO;
        for round in 0..rounds {
            std::thread::sleep(Duration::from_millis(dice.next(1500)));
            let before = program.process();
            let mut held =
                program.outside_of_streams().then(|| Console::open(&PLACE, NAMESPACE, "vm").unwrap());
            if let Some(console) = &mut held {
                beats(console).unwrap();
            }
            program.kill(round > 0);
            let killed = Instant::now();
            // True, or true again in time.
            while let Some(wrong) = wrong() {
                assert!(killed.elapsed() < e2e::bar(WRONG), "{program:?} killed: {wrong}");
                std::thread::sleep(Duration::from_millis(100));
            }
            // A console that was open before has every beat. A new one ends it: the guest has one viewer at a time.
            if let Some(console) = &mut held {
                PLACE.until(NAMESPACE, &format!("{program:?} runs again"), || {
                    program.process().filter(|process| Some(*process) != before)
                });
                let expected = usize::try_from(killed.elapsed().as_millis() / BEAT).unwrap();
                follow(&console.bytes(expected).unwrap()).unwrap_or_else(|gap| panic!("{program:?}: {gap}"));
            }
            let mut console =
                PLACE.until(NAMESPACE, &format!("the console after {program:?} was killed"), || {
                    let again = program.process().is_some_and(|process| Some(process) != before);
                    let mut console = Console::open(&PLACE, NAMESPACE, "vm").ok().filter(|_| again)?;
                    beats(&mut console).ok()?;
                    Some(console)
                });
            slowest = slowest.max(killed.elapsed());
            beats(&mut console).unwrap();
            assert!(wrong().is_none(), "{program:?}: {:?}", wrong());
        }
        println!("{program:?} killed {rounds} times, console again after at most {slowest:?}");
    }
    assert_eq!(uid(PLACE.find(INSTANCES, NAMESPACE, "vm")), first);
    over.store(true, Ordering::Relaxed);
    let (longest, beats_in_a_second) = watching.join().unwrap();
    println!("longest time without a beat on the disk: {longest:?}, {beats_in_a_second} beats in a second");
    assert!(longest < e2e::bar(STILL), "{longest:?}");
    assert!(!soak || beats_in_a_second >= BEATS, "{beats_in_a_second}");
    end_while_the_agent_is_gone(&disk);
    PLACE.delete(MACHINES, NAMESPACE, "vm");
    PLACE.until(NAMESPACE, "the VM is gone", || {
        (PLACE.list(MACHINES, NAMESPACE).is_empty() && PLACE.list(PODS, NAMESPACE).is_empty()).then_some(())
    });
    PLACE.remove_namespace(NAMESPACE);
}

/// A guest that ends when no agent is there to see it is not reported as running.
fn end_while_the_agent_is_gone(disk: &std::path::Path) {
    let uid = PLACE.find(INSTANCES, NAMESPACE, "vm").unwrap()["metadata"]["uid"].clone();
    Program::Agent.kill(true);
    let found = processes().into_iter().find(|(_, line, pod)| *pod && line.contains("guest=kills_vm,"));
    kill_process(found.unwrap().0, Signal::KILL).unwrap();
    let killed = Instant::now();
    PLACE.until(NAMESPACE, "the end is reported", || {
        let instance = PLACE.find(INSTANCES, NAMESPACE, "vm");
        let same =
            instance.filter(|one| one["metadata"]["uid"] == uid && one["status"]["phase"] == "Running");
        same.is_none().then_some(())
    });
    let reported = killed.elapsed();
    println!("guest and agent killed -> the end is reported after {reported:?}");
    assert!(reported < e2e::bar(WRONG), "{reported:?}");
    PLACE.until(NAMESPACE, "the guest runs again", || (guest::counted(disk).0 == 2).then_some(()));
    PLACE.until_status(NAMESPACE, "vm", "Running");
}

/// Memory of a program.
pub(crate) fn memory(program: Program) -> Memory {
    Memory::of(program.process().unwrap()).unwrap()
}

/// The operator with many halted VMs and the agent with some guests stay within their memory.
pub(crate) fn memory_is_bounded() {
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let (halted, running): (usize, usize) = if soak { (1000, 10) } else { (100, 2) };
    let namespace = "memory";
    PLACE.namespace(namespace);
    let volumes: Vec<_> = (0..running)
        .map(|number| create_with(namespace, &format!("run{number}"), "Always", 0, &guest::beats()))
        .collect();
    addresses::create_at_once(namespace, halted);
    for number in 0..running {
        PLACE.until_status(namespace, &format!("run{number}"), "Running");
    }
    PLACE.until_status(namespace, &format!("halted{}", halted - 1), "Stopped");
    networks::refuse_large(namespace);
    let (operator, agent) = (memory(Program::Operator), memory(Program::Agent));
    let mib = |Memory { resident, anonymous }: Memory| {
        format!("{} MiB resident, {} MiB of it anonymous", resident >> 10, anonymous >> 10)
    };
    println!("operator with {halted} halted VMs: {}", mib(operator));
    println!("agent with {running} guests, and others with large networks: {}", mib(agent));
    assert!(operator.counted().unwrap() <= 64 << 10, "{operator:?}");
    assert!(agent.counted().unwrap() <= 48 << 10, "{agent:?}");
    PLACE.remove_namespace(namespace);
    drop(volumes);
}
