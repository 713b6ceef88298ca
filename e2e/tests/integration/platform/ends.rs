//! How guests end, and what each run strategy does then: shutdown by the guest, crash of QEMU, the verbs of a client.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::platform::console::Console;
use crate::platform::machines::{create, mac, until_answers};
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};
use crate::platform::streams::Streams;

/// Until kubectl has shown the last change.
const UNDER_WAY: Duration = Duration::from_secs(1);

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

/// States of a VM that runs four times: its guest shuts down, then QEMU crashes, then it is restarted, then stopped. They are
/// the same whether it is started again by its strategy or by a user.
const FOUR_RUNS: [&str; 14] = [
    "Starting", "Running", "Stopped", // Shutdown.
    "Starting", "Running", "Stopped", // Crash.
    "Starting", "Running", "Stopping", "Stopped", // Restart.
    "Starting", "Running", "Stopping", "Stopped",
];
const ENDS_OF_FOUR: [&str; 4] = ["Succeeded", "Failed", "Succeeded", "Succeeded"];

/// States without the one between the end of a restart's first instance and the start of its second one.
fn without_pauses<'a>(states: &[&'a str]) -> Vec<&'a str> {
    let pause = |at: usize| {
        let before = at.checked_sub(1).and_then(|before| states.get(before));
        (before, states.get(at), states.get(at + 1))
            == (Some(&"Stopping"), Some(&"Stopped"), Some(&"Starting"))
    };
    states.iter().enumerate().filter(|(at, _)| !pause(*at)).map(|(_, state)| *state).collect()
}

/// Checks the states of a VM, of which `first` is one in which it waits to be started. How long its pod waits for a volume
/// depends on the scheduler: such states do not count.
#[track_caller]
fn check_states(states: &[String], first: Option<&str>, expected: &[&str]) {
    const WAITING: [&str; 3] = ["", "WaitingForVolumeBinding", "ErrorUnschedulable"];
    let mut seen: Vec<&str> =
        states.iter().map(String::as_str).filter(|state| !WAITING.contains(state)).collect();
    seen.dedup();
    // It may be over before it is seen, and so may be the moment between the two instances of a restart.
    let seen = seen.strip_prefix(first.as_slice()).unwrap_or(&seen);
    assert_eq!(without_pauses(seen), without_pauses(expected), "{states:?}");
}

/// Follows a VM from before it is made to its last state; gives what `life` gives, its states, and the ends of its instances.
#[track_caller]
fn followed<T>(namespace: &str, name: &str, life: impl FnOnce() -> T) -> (T, Vec<String>, Vec<String>) {
    let states = History::of(namespace, "vm", name, "{.status.printableStatus}");
    let phases = History::of(namespace, "vmi", name, "{.metadata.uid} {.status.phase}");
    let lived = life();
    std::thread::sleep(UNDER_WAY);
    (lived, states.end(), ends_of(&phases.end()))
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

/// Checks the condition Ready of a VM against its states, `PRINTABLE READY`.
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
        std::thread::sleep(UNDER_WAY);
        let (states, phases) = (states.end(), phases.end());
        let ends = ends_of(&phases);
        println!("{strategy}: {states:?}, ends of instances {ends:?}");
        check_states(&states, (strategy == "Manual").then_some("Stopped"), &FOUR_RUNS);
        assert_eq!(ends, ENDS_OF_FOUR);
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
    let mut volumes = Vec::new();
    for (name, end, states, phase) in [
        ("vm", "shutdown", &["Starting", "Running", "Stopped"][..], "Succeeded"),
        ("crashed", "crash", &["Starting", "Running", "Stopped"], "Failed"),
        ("ended", "stop", &["Starting", "Running", "Stopping", "Stopped"], "Succeeded"),
    ] {
        let (volume, seen, ends) = followed(namespace, name, || {
            let volume = create(namespace, name, "Once", 0);
            until_answers(namespace, name, 1);
            match end {
                "shutdown" => switch_off(namespace, name),
                "crash" => crash(namespace, name),
                _ => PLACE.put(namespace, &format!("virtualmachines/{name}/stop")).unwrap(),
            }
            until_stopped(namespace, name);
            volume
        });
        check_states(&seen, None, states);
        assert_eq!(ends, [phase], "{name}");
        if end != "stop" {
            assert_eq!(PLACE.find(INSTANCES, namespace, name).unwrap()["status"]["phase"], phase);
            refused(namespace, name, "start", "Once does not support manual start requests");
            refused(namespace, name, "restart", "Once does not support manual restart requests");
        }
        PLACE.delete(MACHINES, namespace, name);
        volumes.push(volume);
    }
    halted(namespace);
    PLACE.remove_namespace(namespace);
}

/// A VM that is Halted runs when it is started, which makes it Always, and is Halted again when it is stopped.
fn halted(namespace: &str) {
    let strategy = || PLACE.find(MACHINES, namespace, "halted").unwrap()["spec"]["runStrategy"].clone();
    let (_volume, states, ends) = followed(namespace, "halted", || {
        let volume = create(namespace, "halted", "Halted", 0);
        until_stopped(namespace, "halted");
        refused(namespace, "halted", "stop", "VM is not running");
        refused(namespace, "halted", "restart", "Halted does not support manual restart requests");
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
        volume
    });
    check_states(&states, Some("Stopped"), &FOUR_RUNS);
    assert_eq!(ends, ENDS_OF_FOUR);
    PLACE.delete(MACHINES, namespace, "halted");
}
