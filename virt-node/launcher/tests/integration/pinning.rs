//! Threads of guests that have CPUs of the host to themselves, under emulation.

use std::collections::BTreeSet;
use std::fs;

use api::launch::{Launch, Pinning};
use api::launcher::{AFFINITY, Answer, RefusedKind, Request};
use guest::CallError;

use crate::support::running::{HALTS, Launcher, status_line};

/// The CPUs of a list of the kernel, such as `0-2,7`.
fn listed(list: &str) -> Vec<usize> {
    let ranges = list.split(',').map(|range| range.split_once('-').unwrap_or((range, range)));
    ranges.flat_map(|(from, to)| from.parse::<usize>().unwrap()..=to.parse::<usize>().unwrap()).collect()
}

/// Two CPUs that this machine has.
fn two_cpus() -> [usize; 2] {
    let cpus = listed(&status_line(std::process::id(), "Cpus_allowed_list"));
    *cpus.first_chunk().expect("the machine has two CPUs")
}

/// A launcher that may use these CPUs, and a document of a guest with so many vCPUs.
fn launcher(cpus: &[usize], vcpus: u32, pinning: Pinning) -> (Launcher, Launch) {
    let list: Vec<String> = cpus.iter().map(usize::to_string).collect();
    let launcher = Launcher::on_cpus(&list.join(","));
    let mut document = launcher.document(HALTS);
    (document.cpu.sockets, document.cpu.max_sockets) = (vcpus, vcpus);
    document.cpu.pinning = Some(pinning);
    (launcher, document)
}

/// The CPUs of QEMU's threads: those of vCPUs, and those of the others.
fn threads(launcher: &Launcher) -> (Vec<String>, BTreeSet<String>) {
    let (mut vcpus, mut others) = (Vec::new(), BTreeSet::new());
    for entry in fs::read_dir(format!("/proc/{}/task", launcher.qemu().unwrap())).unwrap() {
        let thread = entry.unwrap().path();
        // One that ends has none.
        let Ok(status) = fs::read_to_string(thread.join("status")) else { continue };
        let line = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let cpus = line("Cpus_allowed_list:").unwrap().to_owned();
        if line("Name:").unwrap().starts_with("CPU ") {
            vcpus.push(cpus);
        } else {
            others.insert(cpus);
        }
    }
    (vcpus, others)
}

/// CPUs of the host that the guest's vCPUs may run on, as the launcher counts them.
fn affinity(launcher: &Launcher) -> u64 {
    let Answer::Stats(stats) = launcher.ask(Request::Stats).unwrap() else { panic!("counters") };
    stats.numbers[AFFINITY]
}

#[test]
fn each_vcpu_has_a_cpu_of_its_own() {
    let cpus = two_cpus();
    let (launcher, document) = launcher(&cpus, 2, Pinning::Vcpus);
    launcher.launch(&document);
    let (vcpus, _) = threads(&launcher);
    assert_eq!(vcpus.len(), 2);
    let wanted: BTreeSet<String> = cpus.iter().map(usize::to_string).collect();
    assert_eq!(vcpus.into_iter().collect::<BTreeSet<_>>(), wanted);
    assert_eq!(affinity(&launcher), 2, "one of each");
}

#[test]
fn affinity_of_a_vcpu_that_is_not_pinned_counts_all_cpus_that_it_may_use() {
    let (launcher, mut document) = launcher(&two_cpus(), 1, Pinning::Vcpus);
    document.cpu.pinning = None;
    launcher.launch(&document);
    let (vcpus, _) = threads(&launcher);
    assert_eq!(affinity(&launcher), listed(&vcpus[0]).len() as u64);
}

#[test]
fn other_threads_have_one_more_cpu_where_that_is_asked_for() {
    let cpus = two_cpus();
    let (launcher, document) = launcher(&cpus, 1, Pinning::All);
    launcher.launch(&document);
    let (mut all, others) = threads(&launcher);
    assert_eq!((all.len(), others.len()), (1, 1), "{all:?} {others:?}");
    all.extend(others);
    let wanted: BTreeSet<String> = cpus.iter().map(usize::to_string).collect();
    assert_eq!(all.into_iter().collect::<BTreeSet<_>>(), wanted);
}

#[test]
fn a_guest_is_refused_where_cpus_are_not_its_own() {
    let (launcher, document) = launcher(&two_cpus(), 1, Pinning::Vcpus);
    let refused = launcher.client().launch(&document);
    let is_named = |text: &str| text.contains("needs 1 CPUs to itself, and its launcher may use 2");
    assert!(
        matches!(&refused, Err(CallError::Refused(RefusedKind::Invalid, text)) if is_named(text)),
        "{refused:?}"
    );
    assert_eq!(launcher.qemu(), None, "QEMU is not started");
}
