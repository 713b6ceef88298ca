//! Fields that an instance type sets in a template, and which fields of a template conflict with it. Pure.

use api::instancetype::{
    VirtualMachineInstancetypeSpec as Instancetype, VirtualMachinePreferenceSpec as Preference,
};
use api::kubevirt::{Cpu, Memory, VirtualMachineInstanceSpec as Spec};
use api::resource::{ObjectMeta, Quantity};

use super::Conflicts;

/// Cores per socket, or threads per core, of the topology `spread` where the preference gives no ratio.
const SPREAD_RATIO: u32 = 2;
/// Threads per core with `SocketsCoresThreads`.
const SPREAD_THREADS: u32 = 2;

/// Fields that both set, as paths below the template.
pub(super) fn conflicts(instancetype: &Instancetype, metadata: &ObjectMeta, spec: &Spec) -> Conflicts {
    let mut found = Vec::new();
    let mut conflict = |path: &str, both: bool| {
        if both {
            found.push(path.to_owned());
        }
    };
    let domain = &spec.domain;
    let none = Cpu::default();
    let cpu = domain.cpu.as_ref().unwrap_or(&none);
    let size = &instancetype.cpu;
    let resources = domain.resources.as_ref();
    let requests = |name: &str| resources.is_some_and(|resources| resources.requests.contains_key(name));
    let limits = |name: &str| resources.is_some_and(|resources| resources.limits.contains_key(name));
    let on = |field: Option<bool>, of_type: Option<bool>| field == Some(true) && of_type.is_some();

    conflict("spec.nodeSelector", !spec.node_selector.is_empty() && !instancetype.node_selector.is_empty());
    conflict("spec.schedulerName", spec.scheduler_name.is_some() && instancetype.scheduler_name.is_some());
    conflict("spec.domain.cpu.cores", cpu.cores.is_some_and(|count| count > 0));
    conflict("spec.domain.cpu.sockets", cpu.sockets.is_some_and(|count| count > 0));
    conflict("spec.domain.cpu.threads", cpu.threads.is_some_and(|count| count > 0));
    conflict("spec.domain.cpu.model", cpu.model.is_some() && size.model.is_some());
    conflict("spec.domain.cpu.maxSockets", cpu.max_sockets.is_some() && size.max_sockets.is_some());
    conflict(
        "spec.domain.cpu.dedicatedCpuPlacement",
        on(cpu.dedicated_cpu_placement, size.dedicated_cpu_placement),
    );
    conflict(
        "spec.domain.cpu.isolateEmulatorThread",
        on(cpu.isolate_emulator_thread, size.isolate_emulator_thread),
    );
    conflict("spec.domain.cpu.numa", cpu.numa.is_some() && size.numa.is_some());
    conflict("spec.domain.cpu.realtime", cpu.realtime.is_some() && size.realtime.is_some());
    conflict("spec.domain.resources.requests.cpu", requests("cpu"));
    conflict("spec.domain.resources.limits.cpu", limits("cpu"));
    let memory = domain.memory.as_ref();
    conflict("spec.domain.memory.guest", memory.is_some_and(|memory| memory.guest.is_some()));
    conflict(
        "spec.domain.memory.hugepages",
        memory.is_some_and(|memory| memory.hugepages.is_some()) && instancetype.memory.hugepages.is_some(),
    );
    conflict(
        "spec.domain.memory.maxGuest",
        memory.is_some_and(|memory| memory.max_guest.is_some()) && instancetype.memory.max_guest.is_some(),
    );
    conflict("spec.domain.resources.requests.memory", requests("memory"));
    conflict("spec.domain.resources.limits.memory", limits("memory"));
    conflict(
        "spec.domain.ioThreadsPolicy",
        domain.io_threads_policy.is_some() && instancetype.io_threads_policy.is_some(),
    );
    conflict("spec.domain.ioThreads", domain.io_threads.is_some() && instancetype.io_threads.is_some());
    conflict(
        "spec.domain.launchSecurity",
        domain.launch_security.is_some() && instancetype.launch_security.is_some(),
    );
    conflict("spec.domain.devices.gpus", !domain.devices.gpus.is_empty() && !instancetype.gpus.is_empty());
    conflict(
        "spec.domain.devices.hostDevices",
        !domain.devices.host_devices.is_empty() && !instancetype.host_devices.is_empty(),
    );
    for (name, value) in &instancetype.annotations {
        let other = metadata.annotations.get(name).is_some_and(|other| other != value);
        conflict(&format!("metadata.annotations.{name}"), other);
    }
    found
}

/// Applies an instance type. There are no conflicts.
pub(super) fn apply(
    instancetype: &Instancetype,
    preference: Option<&Preference>,
    metadata: &mut ObjectMeta,
    spec: &mut Spec,
) {
    for (name, value) in &instancetype.annotations {
        metadata.annotations.insert(name.clone(), value.clone());
    }
    if !instancetype.node_selector.is_empty() {
        spec.node_selector.clone_from(&instancetype.node_selector);
    }
    let set = |field: &mut Option<String>, value: &Option<String>| {
        if value.is_some() {
            field.clone_from(value);
        }
    };
    set(&mut spec.scheduler_name, &instancetype.scheduler_name);
    let domain = &mut spec.domain;
    processors(instancetype, preference, domain.cpu.get_or_insert_default());
    let memory = domain.memory.get_or_insert_default();
    amount(instancetype, memory);
    if let Some(requested) = reserved(instancetype) {
        domain.resources.get_or_insert_default().requests.insert("memory".to_owned(), requested);
    }
    set(&mut domain.io_threads_policy, &instancetype.io_threads_policy);
    if let Some(threads) = &instancetype.io_threads {
        domain.io_threads = Some(threads.clone());
    }
    if let Some(security) = &instancetype.launch_security {
        domain.launch_security = Some(security.clone());
    }
    if !instancetype.gpus.is_empty() {
        domain.devices.gpus.clone_from(&instancetype.gpus);
    }
    if !instancetype.host_devices.is_empty() {
        domain.devices.host_devices.clone_from(&instancetype.host_devices);
    }
}

fn processors(instancetype: &Instancetype, preference: Option<&Preference>, cpu: &mut Cpu) {
    let size = &instancetype.cpu;
    let (sockets, cores, threads) = topology(size.guest, preference);
    (cpu.sockets, cpu.cores, cpu.threads) = (Some(sockets), Some(cores), Some(threads));
    cpu.dedicated_cpu_placement = size.dedicated_cpu_placement.or(cpu.dedicated_cpu_placement);
    cpu.isolate_emulator_thread = size.isolate_emulator_thread.or(cpu.isolate_emulator_thread);
    cpu.max_sockets = size.max_sockets.or(cpu.max_sockets);
    cpu.model = size.model.clone().or(cpu.model.take());
    cpu.numa = size.numa.clone().or(cpu.numa.take());
    cpu.realtime = size.realtime.clone().or(cpu.realtime.take());
}

fn amount(instancetype: &Instancetype, memory: &mut Memory) {
    memory.guest = Some(instancetype.memory.guest.clone());
    if let Some(pages) = &instancetype.memory.hugepages {
        memory.hugepages = Some(pages.clone());
    }
    if let Some(most) = &instancetype.memory.max_guest {
        memory.max_guest = Some(most.clone());
    }
}

/// Memory that the launcher pod requests where the instance type overcommits it.
fn reserved(instancetype: &Instancetype) -> Option<Quantity> {
    let percent = instancetype.memory.overcommit_percent.filter(|percent| *percent > 0)?;
    let bytes = u128::from(instancetype.memory.guest.bytes().ok()?);
    let left = bytes * u128::from(100_u32.saturating_sub(percent)) / 100;
    Some(Quantity(left.to_string()))
}

/// Sockets, cores and threads of a number of vCPUs.
pub(super) fn topology(count: u32, preference: Option<&Preference>) -> (u32, u32, u32) {
    if count <= 1 {
        return (1, 1, 1);
    }
    match word(preference) {
        "cores" | "preferCores" => (1, count, 1),
        "threads" | "preferThreads" => (1, 1, count),
        "spread" | "preferSpread" => match spread(preference) {
            ("CoresThreads", ratio) => (1, count / ratio, ratio),
            ("SocketsCoresThreads", ratio) => (count / SPREAD_THREADS / ratio, ratio, SPREAD_THREADS),
            (_, ratio) => (count / ratio, ratio, 1),
        },
        _ => (count, 1, 1),
    }
}

/// The preferred topology's word.
fn word(preference: Option<&Preference>) -> &str {
    let cpu = preference.and_then(|preference| preference.cpu.as_ref());
    cpu.and_then(|cpu| cpu.preferred_cpu_topology.as_deref()).unwrap_or("sockets")
}

/// Across what vCPUs are spread, and the ratio.
fn spread(preference: Option<&Preference>) -> (&str, u32) {
    let options = preference.and_then(|preference| preference.cpu.as_ref()?.spread_options.as_ref());
    let old = preference.and_then(|preference| preference.prefer_spread_socket_to_core_ratio);
    let ratio = options.and_then(|options| options.ratio).or(old).filter(|ratio| *ratio > 0);
    let across = options.and_then(|options| options.across.as_deref());
    (across.unwrap_or("SocketsCores"), ratio.unwrap_or(SPREAD_RATIO))
}

/// Why vCPUs cannot be spread as preferred.
pub(super) fn unspreadable(count: u32, preference: Option<&Preference>) -> Option<String> {
    if count <= 1 || !matches!(word(preference), "spread" | "preferSpread") {
        return None;
    }
    let (across, ratio) = spread(preference);
    let threads = if across == "SocketsCoresThreads" { SPREAD_THREADS } else { 1 };
    let divisor = ratio.saturating_mul(threads);
    (!count.is_multiple_of(divisor)).then(|| {
        format!(
            "{count} vCPUs provided by the instance type are not divisible by {divisor}, as the preferred CPU topology \
             spread across {across} with ratio {ratio} requires"
        )
    })
}
