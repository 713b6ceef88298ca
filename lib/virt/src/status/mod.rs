//! The status of objects, in KubeVirt's and CDI's terms. Not here: the steps of VMs and runs (`machine`, `run`).

pub mod machine;
pub mod pod;

use api::kubevirt::{CpuTopology, MemoryStatus, PhaseTransition, VirtualMachineInstanceStatus};
use api::launch::{Accelerator, Cpu, Memory};
use api::launcher::{PauseReason, State as Doing, Status};
use api::resource::{Condition, Quantity};

use crate::finding::{Finding, Verdict};
use crate::time;

/// Sets a condition; its time is that of the last change.
pub fn condition(conditions: &mut Vec<Condition>, kind: &str, status: bool, reason: &str, message: &str) {
    let status = if status { "True" } else { "False" };
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let found = conditions.iter().position(|condition| condition.kind == kind);
    let before = found.map(|place| conditions[place].clone()).filter(|before| before.status == status);
    let time = before.and_then(|before| before.last_transition_time);
    let condition = Condition {
        kind: kind.to_owned(),
        status: status.to_owned(),
        reason: given(reason),
        message: given(message),
        last_transition_time: Some(time.unwrap_or_else(|| time::text(time::now()))),
        ..Condition::default()
    };
    match found {
        Some(place) => conditions[place] = condition,
        None => conditions.push(condition),
    }
}

/// Takes a condition away.
pub fn without(conditions: &mut Vec<Condition>, kind: &str) {
    conditions.retain(|condition| condition.kind != kind);
}

/// A condition that is true, by its kind.
pub fn holds<'a>(conditions: &'a [Condition], kind: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.kind == kind && condition.status == "True")
}

/// Goes into a phase, now.
pub fn phase(status: &mut VirtualMachineInstanceStatus, phase: &str) {
    phase_at(status, phase, time::now());
}

/// Goes into a phase at a time in seconds since 1970; nothing changes where it is in that phase.
pub fn phase_at(status: &mut VirtualMachineInstanceStatus, phase: &str, now: u64) {
    if status.phase.as_deref() != Some(phase) {
        status.phase = Some(phase.to_owned());
        status
            .phase_transition_timestamps
            .push(PhaseTransition { phase: phase.to_owned(), phase_transition_timestamp: time::text(now) });
    }
}

/// When a phase began, in seconds since 1970.
pub fn since(status: &VirtualMachineInstanceStatus, phase: &str) -> Option<u64> {
    let of_phase = status.phase_transition_timestamps.iter().rev().find(|one| one.phase == phase)?;
    time::seconds(&of_phase.phase_transition_timestamp)
}

/// Sets the state of a guest.
pub fn doing(status: &mut VirtualMachineInstanceStatus, seen: &Status, accelerator: Accelerator) {
    let conditions = &mut status.conditions;
    let paused = seen.state == Doing::Paused;
    match (paused, seen.reason) {
        (true, Some(PauseReason::IoError)) => {
            condition(conditions, "Paused", true, "PausedIOError", "VMI was paused, IO error");
        }
        (true, _) => condition(conditions, "Paused", true, "PausedByUser", "VMI was paused by user"),
        (false, _) => without(conditions, "Paused"),
    }
    for volume in &mut status.volume_status {
        if let Some(target) = seen.targets.get(&volume.name) {
            volume.target.0.clone_from(target);
        }
    }
    if let Some(size) = seen.size {
        if let Some(topology) = &mut status.current_cpu_topology {
            let per_socket = topology.cores.unwrap_or(1) * topology.threads.unwrap_or(1);
            topology.sockets = Some(size.processors / per_socket.max(1));
        }
        if let Some(memory) = &mut status.memory {
            memory.guest_current = Some(amount(size.memory));
        }
    }
    if seen.agent {
        condition(conditions, "AgentConnected", true, "", "");
    } else {
        without(conditions, "AgentConnected");
    }
    let (reason, message) = if paused { ("GuestNotRunning", "the guest is paused") } else { ("", "") };
    condition(conditions, "Ready", !paused, reason, message);
    let software = accelerator == Accelerator::Tcg;
    let (reason, message) =
        if software { ("NoKVM", "the guest runs in software, many times slower") } else { ("", "") };
    condition(conditions, "SoftwareEmulation", software, reason, message);
    let only = "live migration needs a cluster; this is a single machine";
    condition(conditions, "LiveMigratable", false, "SingleNode", only);
    phase(status, "Running");
}

/// Bytes for people: guests' memory is whole mebibytes.
pub fn amount(bytes: u64) -> Quantity {
    let mebibytes = bytes >> 20;
    Quantity(match mebibytes % 1024 {
        0 => format!("{}Gi", mebibytes / 1024),
        _ => format!("{mebibytes}Mi"),
    })
}

/// Sets the vCPUs and memory of a guest at its start, where they are not set.
pub fn size(status: &mut VirtualMachineInstanceStatus, cpu: &Cpu, memory: &Memory) {
    let sized = |memory: &MemoryStatus| memory.guest_at_boot.is_some();
    if status.current_cpu_topology.is_some() && status.memory.as_ref().is_some_and(sized) {
        return;
    }
    status.current_cpu_topology =
        Some(CpuTopology { cores: Some(cpu.cores), sockets: Some(cpu.sockets), threads: Some(cpu.threads) });
    let amount = Some(amount(memory.guest));
    status.memory = Some(MemoryStatus {
        guest_at_boot: amount.clone(),
        guest_current: amount.clone(),
        guest_requested: amount,
        memory_overhead: status.memory.take().and_then(|memory| memory.memory_overhead),
    });
}

/// Sets whether the disks of a run that has not begun are filled.
pub fn volumes(conditions: &mut Vec<Condition>, ready: bool) {
    let (reason, message) = if ready {
        ("AllDVsReady", "All of the VMI's DVs are bound and ready")
    } else {
        ("NotAllDVsReady", "Not all of the VMI's DVs are ready")
    };
    condition(conditions, "DataVolumesReady", ready, reason, message);
}

/// Sets the condition about fields of an object without effect, the first of them by name; removes it, where all have one.
pub fn fields(conditions: &mut Vec<Condition>, told: &[Finding]) {
    const KIND: &str = "FieldsWithoutEffect";
    const NAMED: usize = 20;
    if told.is_empty() {
        return without(conditions, KIND);
    }
    let mut texts: Vec<String> =
        told.iter().take(NAMED).map(|finding| format!("{}: {}", finding.path, finding.text)).collect();
    if told.len() > NAMED {
        texts.push(format!("and {} more", told.len() - NAMED));
    }
    let unsupported = told.iter().any(|finding| finding.verdict == Verdict::Unsupported);
    let reason = if unsupported { "NotBuiltYet" } else { "NoMeaningHere" };
    condition(conditions, KIND, true, reason, &texts.join("; "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_the_time_of_its_last_change() {
        let mut conditions = Vec::new();
        condition(&mut conditions, "Ready", false, "Waits", "for this");
        conditions[0].last_transition_time = Some("before".into());
        condition(&mut conditions, "Ready", false, "Waits", "for that");
        assert_eq!(conditions.len(), 1);
        assert_eq!(conditions[0].message.as_deref(), Some("for that"));
        assert_eq!(conditions[0].last_transition_time.as_deref(), Some("before"));
        condition(&mut conditions, "Ready", true, "", "");
        assert_ne!(conditions[0].last_transition_time.as_deref(), Some("before"));
        assert!(holds(&conditions, "Ready").is_some());
        without(&mut conditions, "Ready");
        assert!(holds(&conditions, "Ready").is_none());
    }

    #[test]
    fn the_size_of_a_start_keeps_the_overhead_and_what_admission_has_set() {
        let cpu = serde_json::json!(
            {"sockets": 2, "maxSockets": 2, "cores": 1, "threads": 1, "model": "hostModel", "features": []}
        );
        let cpu: Cpu = serde_json::from_value(cpu).unwrap();
        let memory = Memory { guest: 64 << 20, max_guest: 64 << 20, huge_page: None };
        let quantity = |text: &str| Some(Quantity(text.into()));
        let overhead = MemoryStatus { memory_overhead: quantity("164Mi"), ..MemoryStatus::default() };
        let mut status = VirtualMachineInstanceStatus {
            memory: Some(overhead),
            ..VirtualMachineInstanceStatus::default()
        };
        size(&mut status, &cpu, &memory);
        let sized = MemoryStatus {
            guest_at_boot: quantity("64Mi"),
            guest_current: quantity("64Mi"),
            guest_requested: quantity("64Mi"),
            memory_overhead: quantity("164Mi"),
        };
        assert_eq!(status.memory.as_ref(), Some(&sized));
        assert_eq!(status.current_cpu_topology.as_ref().and_then(|cpu| cpu.sockets), Some(2));
        size(&mut status, &cpu, &Memory { guest: 128 << 20, max_guest: 128 << 20, huge_page: None });
        assert_eq!(status.memory, Some(sized));
    }
}
