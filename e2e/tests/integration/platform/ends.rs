//! How guests end, and what each run strategy does then: shutdown by the guest, crash of QEMU, the verbs of a client.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use crate::platform::console::Console;
use crate::platform::machines::{create, mac, until_answers};
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};
use crate::platform::streams::Streams;

/// The states of one object as kubectl shows them, a line each.
struct History {
    kubectl: Child,
    lines: std::thread::JoinHandle<Vec<String>>,
}

impl History {
    /// From now on; `shown` is kubectl's JSON path.
    fn of(namespace: &str, kind: &str, name: &str, shown: &str) -> Self {
        Self::with(namespace, kind, &format!("metadata.name={name}"), shown)
    }

    /// Reasons of the events about all objects of this kind and name.
    fn events(namespace: &str, kind: &str, name: &str) -> Self {
        let about = format!("involvedObject.kind={kind},involvedObject.name={name}");
        Self::with(namespace, "events", &about, "{.involvedObject.uid} {.reason}")
    }

    fn with(namespace: &str, kind: &str, fields: &str, shown: &str) -> Self {
        let output = format!("jsonpath={shown}{{\"\\n\"}}");
        let field = format!("--field-selector={fields}");
        let mut kubectl = PLACE.cluster.kubectl();
        kubectl.args(["-n", namespace, "get", kind, &field, "--watch", "-o", &output]);
        let mut kubectl = kubectl.stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(kubectl.stdout.take().unwrap());
        let lines = std::thread::spawn(move || stdout.lines().map_while(Result::ok).collect());
        Self { kubectl, lines }
    }

    /// The states until now, without repetitions.
    fn end(mut self) -> Vec<String> {
        self.kubectl.kill().unwrap();
        self.kubectl.wait().unwrap();
        let mut lines = self.lines.join().unwrap();
        lines.dedup();
        lines
    }
}

/// Checks the phases of all instances of a VM; gives the last of each.
#[track_caller]
fn ends_of(phases: &[String]) -> Vec<String> {
    let mut instances: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in phases {
        let (uid, phase) = line.split_once(' ').unwrap();
        match instances.last_mut() {
            Some((last, phases)) if *last == uid => phases.push(phase),
            _ => instances.push((uid, vec![phase])),
        }
    }
    let ends = instances.iter().enumerate().map(|(number, (_, phases))| {
        let mut all = vec!["Pending", "Scheduling", "Scheduled", "Running"];
        all.extend(phases.last().filter(|phase| ["Succeeded", "Failed"].contains(phase)));
        // The first one may be older than the watch.
        let whole = if number == 0 { all.ends_with(phases) } else { all == *phases };
        assert!(whole, "{instances:?}");
        (*phases.last().unwrap()).to_owned()
    });
    ends.collect()
}

/// Checks that each state of a VM may follow the one before, and counts how often it was Running.
#[track_caller]
fn runs_of(states: &[String]) -> usize {
    for pair in states.windows(2) {
        let may_follow: &[&str] = match pair[0].as_str() {
            "" => &["Stopped", "Starting", "WaitingForVolumeBinding", "ErrorUnschedulable"],
            "WaitingForVolumeBinding" => &["ErrorUnschedulable", "Starting"],
            "ErrorUnschedulable" => &["WaitingForVolumeBinding", "Starting"],
            "Stopped" | "CrashLoopBackOff" => &[
                "WaitingForVolumeBinding",
                "ErrorUnschedulable",
                "Starting",
                "Terminating",
                "CrashLoopBackOff",
            ],
            // The scheduler may look at the pod before its volume is bound.
            "Starting" => &["ErrorUnschedulable", "Running"],
            "Running" => &["Stopping", "Stopped", "Starting", "CrashLoopBackOff"],
            "Stopping" => &["Stopped", "Starting", "CrashLoopBackOff"],
            _ => &[],
        };
        assert!(may_follow.contains(&pair[1].as_str()), "{:?}: {states:?}", pair);
    }
    states.iter().filter(|state| *state == "Running").count()
}

/// Checks that the events about an object, `UID REASON`, have these reasons in this order, others between them allowed.
#[track_caller]
fn check_events(events: &[String], uid: &str, reasons: &[&str]) {
    let about: Vec<&str> =
        events.iter().filter_map(|line| line.strip_prefix(uid)?.strip_prefix(' ')).collect();
    let mut rest = about.iter();
    for reason in reasons {
        assert!(
            rest.any(|found| found == reason),
            "{reason} is missing or not in its place in {about:?}: {reasons:?}"
        );
    }
}

/// Checks the condition Ready of a VM beside its states, `PRINTABLE READY`.
#[track_caller]
fn check_ready(states: &[String]) {
    let ready = |state: &&String| state.ends_with(" True");
    assert!(states.iter().any(|state| state == "Running True"), "{states:?}");
    for state in states.iter().filter(ready) {
        assert!(["Running True", "Stopping True"].contains(&state.as_str()), "{state}: {states:?}");
    }
}

/// Calls a verb that is refused.
#[track_caller]
fn refused(namespace: &str, name: &str, verb: &str, why: &str) {
    let error = PLACE.put(namespace, &format!("virtualmachines/{name}/{verb}")).unwrap_err();
    assert!(error.contains(why), "{verb}: {error}");
}

/// Has the guest switch itself off.
#[track_caller]
fn switch_off(namespace: &str, name: &str) {
    let _agent = Streams::follow();
    Console::open(&PLACE, namespace, name).unwrap().ask(b'q', "P").unwrap();
}

/// Kills the QEMU of a VM.
#[track_caller]
fn crash(namespace: &str, name: &str) {
    let wanted = format!("guest={namespace}_{name},");
    let found = fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let entry = entry.unwrap();
        let number: i32 = entry.file_name().to_str()?.parse().ok()?;
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        String::from_utf8_lossy(&line).contains(&wanted).then_some(number)
    });
    let found: Vec<i32> = found.collect();
    assert_eq!(found.len(), 1, "{wanted}: {found:?}");
    let process = rustix::process::Pid::from_raw(found[0]).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
}

/// Waits until the VM is stopped and no launcher pod of it runs.
#[track_caller]
fn until_stopped(namespace: &str, name: &str) {
    PLACE.until_status(namespace, name, "Stopped");
    PLACE.until(namespace, "no launcher pod runs", || {
        let pods = PLACE.list(PODS, namespace);
        let runs = pods.iter().any(|pod| {
            pod["metadata"]["labels"]["vm.kubevirt.io/name"] == name && pod["status"]["phase"] == "Running"
        });
        (!runs).then_some(())
    });
}

#[test]
fn strategy_decides_what_follows_the_end_of_a_guest() {
    let namespace = "ends";
    PLACE.namespace(namespace);
    for (strategy, after_shutdown, after_crash) in
        [("Always", true, true), ("RerunOnFailure", false, true), ("Manual", false, false)]
    {
        let name = strategy.to_lowercase();
        let states = History::of(namespace, "vm", &name, "{.status.printableStatus}");
        let ready = "{.status.printableStatus} {.status.conditions[?(@.type==\"Ready\")].status}";
        let ready = History::of(namespace, "vm", &name, ready);
        let phases = History::of(namespace, "vmi", &name, "{.metadata.uid} {.status.phase}");
        let of_machine = History::events(namespace, "VirtualMachine", &name);
        let of_instances = History::events(namespace, "VirtualMachineInstance", &name);
        let _volume = create(namespace, &name, strategy, 0);
        if strategy == "Manual" {
            until_stopped(namespace, &name);
            PLACE.put(namespace, &format!("virtualmachines/{name}/start")).unwrap();
        }
        until_answers(namespace, &name, 1);
        refused(namespace, &name, "start", "VM is already running");
        let first = mac(namespace, &name);
        let mut count = 2;
        for (event, runs_again) in [("shutdown", after_shutdown), ("crash", after_crash)] {
            if event == "shutdown" {
                switch_off(namespace, &name)
            } else {
                crash(namespace, &name)
            }
            if !runs_again {
                until_stopped(namespace, &name);
                PLACE.put(namespace, &format!("virtualmachines/{name}/start")).unwrap();
            }
            until_answers(namespace, &name, count);
            assert_eq!(mac(namespace, &name), first, "{strategy} after a {event}");
            count += 1;
        }
        PLACE.put(namespace, &format!("virtualmachines/{name}/restart")).unwrap();
        until_answers(namespace, &name, count);
        PLACE.put(namespace, &format!("virtualmachines/{name}/stop")).unwrap();
        until_stopped(namespace, &name);
        // An instance that ended can be restarted.
        PLACE.until(namespace, "the instance is gone", || {
            PLACE.find(INSTANCES, namespace, &name).is_none().then_some(())
        });
        refused(namespace, &name, "stop", "VM is not running");
        refused(
            namespace,
            &name,
            "restart",
            match strategy {
                // Its stop has made it Halted.
                "Always" => "Halted does not support manual restart requests",
                _ => "VM is not running",
            },
        );
        assert!(Console::open(&PLACE, namespace, &name).is_err());
        let (states, phases) = (states.end(), phases.end());
        let ends = ends_of(&phases);
        println!("{strategy}: {states:?}, ends of instances {ends:?}");
        // Created, after the shutdown, after the crash, after the restart.
        assert_eq!(runs_of(&states), 4, "{states:?}");
        assert_eq!(ends.len(), 4, "{ends:?}");
        assert_eq!((ends[0].as_str(), ends[1].as_str()), ("Succeeded", "Failed"), "{ends:?}");
        check_ready(&ready.end());
        let uid = PLACE.find(MACHINES, namespace, &name).unwrap()["metadata"]["uid"].clone();
        check_events(&of_machine.end(), uid.as_str().unwrap(), &["SuccessfulCreate", "SuccessfulDelete"]);
        let mut uids: Vec<&str> = phases.iter().filter_map(|line| line.split(' ').next()).collect();
        uids.dedup();
        let events = of_instances.end();
        for uid in &uids {
            check_events(&events, uid, &["SuccessfulCreate", "Created", "Started"]);
        }
        // An agent that another test replaces at the end of a guest has no event to write.
        for (last, of) in [("Stopped", &uids[..2]), ("Deleted", &uids[2..])] {
            assert!(of.iter().any(|uid| events.contains(&format!("{uid} {last}"))), "{last}: {events:#?}");
        }
        PLACE.delete(MACHINES, namespace, &name);
    }
    PLACE.until(namespace, "the VMs are gone", || PLACE.list(MACHINES, namespace).is_empty().then_some(()));
    PLACE.remove_namespace(namespace);
}

#[test]
fn machine_that_runs_once_is_not_started_again() {
    let namespace = "once";
    PLACE.namespace(namespace);
    let _volume = create(namespace, "vm", "Once", 0);
    until_answers(namespace, "vm", 1);
    switch_off(namespace, "vm");
    until_stopped(namespace, "vm");
    assert_eq!(PLACE.find(INSTANCES, namespace, "vm").unwrap()["status"]["phase"], "Succeeded");
    refused(namespace, "vm", "start", "Once does not support manual start requests");
    refused(namespace, "vm", "restart", "Once does not support manual restart requests");
    PLACE.delete(MACHINES, namespace, "vm");
    let _crashed = create(namespace, "crashed", "Once", 0);
    until_answers(namespace, "crashed", 1);
    crash(namespace, "crashed");
    until_stopped(namespace, "crashed");
    assert_eq!(PLACE.find(INSTANCES, namespace, "crashed").unwrap()["status"]["phase"], "Failed");
    refused(namespace, "crashed", "start", "Once does not support manual start requests");
    PLACE.delete(MACHINES, namespace, "crashed");
    let _ended = create(namespace, "ended", "Once", 0);
    until_answers(namespace, "ended", 1);
    PLACE.put(namespace, "virtualmachines/ended/stop").unwrap();
    until_stopped(namespace, "ended");
    PLACE.delete(MACHINES, namespace, "ended");
    // Halted runs when it is started, which makes it Always, and is Halted again when it is stopped.
    let _halted = create(namespace, "halted", "Halted", 0);
    until_stopped(namespace, "halted");
    refused(namespace, "halted", "stop", "VM is not running");
    refused(namespace, "halted", "restart", "Halted does not support manual restart requests");
    let strategy = || PLACE.find(MACHINES, namespace, "halted").unwrap()["spec"]["runStrategy"].clone();
    PLACE.put(namespace, "virtualmachines/halted/start").unwrap();
    assert_eq!(strategy(), "Always");
    until_answers(namespace, "halted", 1);
    switch_off(namespace, "halted");
    until_answers(namespace, "halted", 2);
    crash(namespace, "halted");
    until_answers(namespace, "halted", 3);
    PLACE.put(namespace, "virtualmachines/halted/restart").unwrap();
    until_answers(namespace, "halted", 4);
    PLACE.put(namespace, "virtualmachines/halted/stop").unwrap();
    assert_eq!(strategy(), "Halted");
    until_stopped(namespace, "halted");
    PLACE.delete(MACHINES, namespace, "halted");
    PLACE.remove_namespace(namespace);
}
