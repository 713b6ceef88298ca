//! Threads of a guest on CPUs of the host that are its own: each vCPU's on one of them, and all others, where they are not to
//! disturb vCPUs, on one more. libvirt pins no vCPU of an emulated guest, so this does it for all guests.
//!
//! Not here: which CPUs the launcher may use. The kubelet decides that by its CPU manager.

use std::collections::BTreeSet;
use std::fs;

use api::launch::{Cpu, Pinning};
use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::libvirt::{self, Domain, Failure};

/// CPUs of the host for the threads of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pins {
    /// Of each vCPU.
    vcpus: Vec<usize>,
    /// Of all other threads; `None`: those of the launcher.
    others: Option<usize>,
}

/// The CPUs of a guest's threads, out of those that the launcher may use; `None`: the guest is not pinned.
///
/// # Errors
/// The launcher may use more CPUs or fewer than the guest needs, so they are not its own.
pub(super) fn pins(cpu: &Cpu) -> Result<Option<Pins>, String> {
    let Some(pinning) = cpu.pinning else { return Ok(None) };
    let cpus = own().map_err(|error| format!("the launcher's CPUs cannot be read: {error}"))?;
    plan(cpu, pinning, &cpus).map(Some)
}

/// The same of these CPUs, in their order.
fn plan(cpu: &Cpu, pinning: Pinning, cpus: &[usize]) -> Result<Pins, String> {
    let count = usize::try_from(cpu.sockets * cpu.cores * cpu.threads).unwrap_or(usize::MAX);
    let (vcpus, rest) = cpus.split_at(count.min(cpus.len()));
    let others = match pinning {
        Pinning::Vcpus => 0,
        Pinning::All => 1,
    };
    if vcpus.len() != count || rest.len() != others {
        return Err(format!(
            "the guest needs {} CPUs to itself, and its launcher may use {}: the kubelet's CPU manager has given it none of \
             its own (policy static)",
            count.saturating_add(others),
            cpus.len()
        ));
    }
    Ok(Pins { vcpus: vcpus.to_vec(), others: rest.first().copied() })
}

/// The CPUs that this process may use: those of one core follow one another, as vCPUs of one core do.
fn own() -> Result<Vec<usize>, Errno> {
    let set = sched_getaffinity(None)?;
    let mut cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    cpus.sort_by_cached_key(|cpu| (first_of_core(*cpu), *cpu));
    Ok(cpus)
}

/// The lowest CPU of the core that a CPU belongs to.
fn first_of_core(cpu: usize) -> usize {
    let file = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
    let siblings = fs::read_to_string(file).unwrap_or_default();
    siblings.split([',', '-', '\n']).next().and_then(|first| first.parse().ok()).unwrap_or(cpu)
}

/// Pins the threads of a guest that runs.
pub(super) fn pin(running: &Domain<'_>, pins: &Pins) -> Result<(), Failure> {
    let vcpus = libvirt::vcpu_threads(running)?;
    if vcpus.len() != pins.vcpus.len() {
        return Err(Failure(format!("QEMU has {} threads for {} vCPUs", vcpus.len(), pins.vcpus.len())));
    }
    for (thread, cpu) in vcpus.iter().zip(&pins.vcpus) {
        set(*thread, *cpu).map_err(|error| failed(*thread, error))?;
    }
    let (Some(cpu), Some(first)) = (pins.others, vcpus.first()) else { return Ok(()) };
    let vcpus: BTreeSet<i32> = vcpus.iter().copied().collect();
    // The second round finds threads that others started during the first one.
    for _ in 0..2 {
        let threads = fs::read_dir(format!("/proc/{first}/task"))
            .map_err(|error| Failure(format!("QEMU's threads cannot be listed: {error}")))?;
        let threads = threads.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        for thread in threads.filter(|thread| !vcpus.contains(thread)) {
            match set(thread, cpu) {
                // It has ended.
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(failed(thread, error)),
            }
        }
    }
    Ok(())
}

fn failed(thread: i32, error: Errno) -> Failure {
    Failure(format!("QEMU's thread {thread} cannot be pinned: {error}"))
}

/// How many CPUs of the host each vCPU may run on, added up: as many as there are vCPUs where they are pinned.
pub(super) fn affinity(running: &Domain<'_>) -> Result<u64, Failure> {
    let cpus = libvirt::vcpu_threads(running)?.into_iter().map(|thread| {
        let pid = Pid::from_raw(thread).ok_or(Errno::SRCH);
        let set = pid.and_then(|pid| sched_getaffinity(Some(pid)));
        set.map(|set| u64::from(set.count()))
            .map_err(|error| Failure(format!("the CPUs of QEMU's thread {thread} cannot be read: {error}")))
    });
    cpus.sum()
}

/// Lets a thread run on this CPU only.
fn set(thread: i32, cpu: usize) -> Result<(), Errno> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    let thread = Pid::from_raw(thread).ok_or(Errno::SRCH)?;
    sched_setaffinity(Some(thread), &cpus)
}

#[cfg(test)]
mod tests {
    use api::launch::CpuModel;

    use super::*;

    #[test]
    fn each_vcpu_has_a_cpu_and_the_rest_has_what_is_left() {
        for (sockets, threads, pinning, cpus, wanted) in [
            (1, 1, Pinning::Vcpus, vec![3], Some((vec![3], None))),
            (1, 2, Pinning::Vcpus, vec![2, 10], Some((vec![2, 10], None))),
            (2, 1, Pinning::All, vec![2, 3, 4], Some((vec![2, 3], Some(4)))),
            // Those of the whole node, and too few.
            (1, 1, Pinning::Vcpus, vec![0, 1, 2, 3], None),
            (2, 1, Pinning::All, vec![2, 3], None),
            (2, 1, Pinning::Vcpus, vec![2], None),
            (1, 1, Pinning::Vcpus, vec![], None),
        ] {
            let (model, features) = (CpuModel::HostModel, Vec::new());
            let cpu = Cpu {
                sockets,
                max_sockets: sockets,
                cores: 1,
                threads,
                model,
                features,
                pinning: Some(pinning),
            };
            let found = plan(&cpu, pinning, &cpus);
            let wanted = wanted.map(|(vcpus, others)| Pins { vcpus, others });
            assert_eq!(found.as_ref().ok(), wanted.as_ref(), "{sockets} {threads} {cpus:?}: {found:?}");
        }
    }

    #[test]
    fn a_guest_without_pinning_has_no_pins() {
        let (model, features) = (CpuModel::HostModel, Vec::new());
        let cpu = Cpu { sockets: 1, max_sockets: 4, cores: 1, threads: 1, model, features, pinning: None };
        assert_eq!(pins(&cpu), Ok(None));
    }

    #[test]
    fn cpus_of_this_process_are_those_that_the_kernel_lists() {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
        let ranges = line.trim().split(',').map(|range| range.split_once('-').unwrap_or((range, range)));
        let listed: BTreeSet<usize> = ranges
            .flat_map(|(from, to)| from.parse::<usize>().unwrap()..=to.parse::<usize>().unwrap())
            .collect();
        assert_eq!(own().unwrap().into_iter().collect::<BTreeSet<_>>(), listed);
    }
}
