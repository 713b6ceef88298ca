//! Processors and memory that are added while the guest runs: more sockets and more memory in the template, up to what the
//! instance was started with room for.
//!
//! Not here: how much room there is ([`crate::resolve`]).

use api::kubevirt::{VirtualMachineInstanceSpec as Spec, VirtualMachineInstanceStatus as Status};
use api::launch::{Cpu, Memory};
use api::resource::Quantity;

use crate::status;

/// Condition of an instance with a guest that has not yet taken all of its vCPUs.
pub const PROCESSORS: &str = "HotVCPUChange";
/// Condition of an instance with a guest that has not yet taken all of its memory.
pub const MEMORY: &str = "HotMemoryChange";
/// Memory comes in blocks of so many bytes.
const BLOCK: u64 = 2 << 20;
/// Guests' memory is whole mebibytes.
const MIB: u64 = 1 << 20;

fn bytes(amount: Option<&Quantity>) -> Option<u64> {
    amount?.bytes().ok()
}

fn sockets(spec: &Spec) -> Option<u32> {
    spec.domain.cpu.as_ref()?.sockets
}

/// Bytes of memory that a guest is to have.
fn memory(spec: &Spec) -> Option<u64> {
    bytes(spec.domain.memory.as_ref()?.guest.as_ref())?.checked_next_multiple_of(MIB)
}

/// A run's spec with the sockets and the memory of its machine's template, where these are more and there is room. vCPUs with
/// CPUs of their own get no more: the pod's CPUs are those of its start.
pub fn followed(template: &Spec, run: &Spec) -> Spec {
    let mut spec = run.clone();
    if let (Some(wanted), Some(cpu)) = (sockets(template), &mut spec.domain.cpu)
        && (cpu.sockets.unwrap_or(1)..=cpu.max_sockets.unwrap_or(0)).contains(&wanted)
        && !crate::resolve::is_dedicated(run)
    {
        cpu.sockets = Some(wanted);
    }
    let wanted = template.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    if let (Some(bytes_wanted), Some(memory)) = (bytes(wanted), &mut spec.domain.memory)
        && let (Some(before), Some(most)) = (bytes(memory.guest.as_ref()), bytes(memory.max_guest.as_ref()))
        && (before..=most).contains(&bytes_wanted)
        && (bytes_wanted - before).is_multiple_of(BLOCK)
    {
        memory.guest = wanted.cloned();
    }
    spec
}

/// Whether a run has another size than its machine, apart from hotplugged processors and memory; with an instance type,
/// whether it differs in a field that this decides.
pub fn needs_restart(template: &Spec, run: &Spec) -> bool {
    let mut wanted = template.clone();
    give_room(&mut wanted, run);
    let size = |spec: &Spec| {
        let (sockets, cores, threads) = crate::resolve::topology(spec);
        (sockets, cores, threads, memory(spec))
    };
    let others = |spec: &Spec| {
        let domain = &spec.domain;
        let devices = (domain.devices.gpus.clone(), domain.devices.host_devices.clone());
        (domain.io_threads_policy.clone(), domain.launch_security.clone(), devices)
    };
    size(&wanted) != size(&followed(&wanted, run)) || others(template) != others(run)
}

/// Writes into a run's spec how much its guest can have, where that was left to us.
pub fn keep_room(spec: &mut Spec, cpu: &Cpu, memory: &Memory) {
    spec.domain.cpu.get_or_insert_default().max_sockets.get_or_insert(cpu.max_sockets);
    let most = Quantity(format!("{}Mi", memory.max_guest / MIB));
    spec.domain.memory.get_or_insert_default().max_guest.get_or_insert(most);
}

/// Gives a template the room of a run, where it leaves that to us.
pub fn give_room(template: &mut Spec, run: &Spec) {
    if let Some(most) = run.domain.cpu.as_ref().and_then(|cpu| cpu.max_sockets) {
        template.domain.cpu.get_or_insert_default().max_sockets.get_or_insert(most);
    }
    if let Some(most) = run.domain.memory.as_ref().and_then(|memory| memory.max_guest.clone()) {
        template.domain.memory.get_or_insert_default().max_guest.get_or_insert(most);
    }
}

/// Sockets and bytes of memory that a guest lacks, as how many it is to have; `None`: none.
pub fn wanted(spec: &Spec, status: &Status) -> Option<(u32, u64)> {
    let there = status.current_cpu_topology.as_ref()?.sockets?;
    let requested = bytes(status.memory.as_ref()?.guest_requested.as_ref())?;
    let (sockets, memory) = (sockets(spec).unwrap_or(there), memory(spec).unwrap_or(requested));
    (sockets > there || memory > requested).then(|| (sockets.max(there), memory.max(requested)))
}

/// Reports whether the guest still lacks some of its requested vCPUs or memory.
pub fn note(status: &mut Status, spec: &Spec) {
    let there = status.current_cpu_topology.as_ref().and_then(|topology| topology.sockets);
    let taken = bytes(status.memory.as_ref().and_then(|memory| memory.guest_current.as_ref()));
    let processors = there.zip(sockets(spec)).is_some_and(|(there, wanted)| there < wanted);
    let memory = taken.zip(memory(spec)).is_some_and(|(taken, wanted)| taken < wanted);
    for (kind, lacks) in [(PROCESSORS, processors), (MEMORY, memory)] {
        if lacks {
            status::condition(
                &mut status.conditions,
                kind,
                true,
                "",
                "the guest has not taken all of it yet",
            );
        } else {
            status::without(&mut status.conditions, kind);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::volumes::needs_restart;
    use super::*;
    use serde_json::json;

    fn spec(cpu: &serde_json::Value, memory: &serde_json::Value) -> Spec {
        serde_json::from_value(json!({"domain": {"cpu": cpu, "memory": memory}})).unwrap()
    }

    /// A run that was started with one socket of two, and 1 GiB of 4.
    fn run() -> Spec {
        spec(&json!({"sockets": 1, "maxSockets": 2}), &json!({"guest": "1Gi", "maxGuest": "4096Mi"}))
    }

    #[test]
    fn more_is_followed_where_there_is_room() {
        for (name, cpu, memory, sockets, guest) in [
            ("the same", json!({"sockets": 1}), json!({"guest": "1Gi"}), 1, "1Gi"),
            ("more", json!({"sockets": 2}), json!({"guest": "3Gi"}), 2, "3Gi"),
            ("too much", json!({"sockets": 3}), json!({"guest": "5Gi"}), 1, "1Gi"),
            ("less", json!({"sockets": 0}), json!({"guest": "512Mi"}), 1, "1Gi"),
            ("no blocks", json!({"sockets": 2}), json!({"guest": "1025Mi"}), 2, "1Gi"),
            ("nothing", json!(null), json!(null), 1, "1Gi"),
        ] {
            let wanted = spec(
                &json!({"sockets": sockets, "maxSockets": 2}),
                &json!({"guest": guest, "maxGuest": "4096Mi"}),
            );
            assert_eq!(followed(&spec(&cpu, &memory), &run()), wanted, "{name}");
        }
        let without_room = spec(&json!({"sockets": 1}), &json!({"guest": "1Gi"}));
        assert_eq!(followed(&run(), &without_room), without_room);
        let mut pinned = run();
        pinned.domain.cpu.as_mut().unwrap().dedicated_cpu_placement = Some(true);
        for (sockets, restart) in [(1, false), (2, true)] {
            let cpu = json!({"sockets": sockets, "dedicatedCpuPlacement": true});
            let template = spec(&cpu, &json!({"guest": "1Gi"}));
            assert_eq!(followed(&template, &pinned), pinned, "{sockets}");
            assert_eq!(needs_restart(&template, &pinned), restart, "{sockets}");
        }
    }

    #[test]
    fn live_changes_need_no_restart() {
        let template =
            |sockets: u32, guest: &str| spec(&json!({"sockets": sockets}), &json!({"guest": guest}));
        for (sockets, guest, restart) in
            [(1, "1Gi", false), (2, "4Gi", false), (3, "1Gi", true), (1, "512Mi", true), (2, "5Gi", true)]
        {
            let needs = needs_restart(&template(sockets, guest), &run());
            assert_eq!(needs, restart, "{sockets} {guest}");
        }
        // KubeVirt grows the memory of `memory.guest`, and nothing else.
        let requested = |amount: &str| -> Spec {
            let resources = json!({"requests": {"memory": amount}});
            serde_json::from_value(json!({"domain": {"resources": resources}})).unwrap()
        };
        assert!(!needs_restart(&requested("1Gi"), &requested("1Gi")));
        assert!(
            needs_restart(&requested("2Gi"), &requested("1Gi")),
            "a request alone waits for the next run"
        );
        let mut started = template(1, "1Gi");
        let cpu = Cpu {
            sockets: 1,
            max_sockets: 4,
            cores: 1,
            threads: 1,
            model: api::launch::CpuModel::HostModel,
            features: Vec::new(),
            pinning: None,
        };
        keep_room(&mut started, &cpu, &Memory { guest: 1 << 30, max_guest: 4 << 30, huge_page: None });
        assert!(!needs_restart(&template(1, "1Gi"), &started), "room that was filled in");
        assert_eq!(followed(&template(4, "4Gi"), &started).domain.cpu.unwrap().sockets, Some(4));
    }

    #[test]
    fn missing_vcpus_and_memory_are_wanted_until_present() {
        let mut status = Status::default();
        assert_eq!(wanted(&run(), &status), None, "not started");
        let cpu = Cpu {
            sockets: 1,
            max_sockets: 2,
            cores: 1,
            threads: 1,
            model: api::launch::CpuModel::HostModel,
            features: Vec::new(),
            pinning: None,
        };
        status::size(&mut status, &cpu, &Memory { guest: 1 << 30, max_guest: 4 << 30, huge_page: None });
        assert_eq!(wanted(&run(), &status), None);
        let more = followed(&spec(&json!({"sockets": 2}), &json!({"guest": "2Gi"})), &run());
        assert_eq!(wanted(&more, &status), Some((2, 2 << 30)));
        note(&mut status, &more);
        let kinds: Vec<&str> = status.conditions.iter().map(|one| one.kind.as_str()).collect();
        assert_eq!(kinds, [PROCESSORS, MEMORY]);
        status.memory.as_mut().unwrap().guest_requested = Some(Quantity("2Gi".to_owned()));
        status.current_cpu_topology.as_mut().unwrap().sockets = Some(2);
        assert_eq!(wanted(&more, &status), None, "it is offered");
        note(&mut status, &more);
        assert_eq!(status.conditions.len(), 1, "but not taken");
        status.memory.as_mut().unwrap().guest_current = Some(Quantity("2Gi".to_owned()));
        note(&mut status, &more);
        assert_eq!(status.conditions, []);
    }
}
