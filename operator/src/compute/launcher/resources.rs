//! Resources of container `compute`: the guest's, the overhead of QEMU and the launcher, and devices.

use api::kubevirt::VirtualMachineInstanceSpec;
use api::quantity;
use serde_json::{Map, Value, json};
use virt::overhead;

use super::{AutoLimits, Settings, Unsupported};

/// Memory of the guest in bytes.
fn guest_memory(spec: &VirtualMachineInstanceSpec) -> Result<u64, Unsupported> {
    let guest = spec.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref());
    let resources = spec.domain.resources.as_ref();
    let named = [
        ("spec.domain.memory.guest", guest),
        ("spec.domain.resources.requests.memory", resources.and_then(|one| one.requests.get("memory"))),
        ("spec.domain.resources.limits.memory", resources.and_then(|one| one.limits.get("memory"))),
    ];
    for (path, amount) in named {
        if let Some(amount) = amount {
            return amount.bytes().map_err(|error| Unsupported::field(path, error.to_string()));
        }
    }
    Err(Unsupported::field("spec.domain.memory.guest", "no memory is given for the guest"))
}

/// `resources` of container `compute`. `raw` is the instance's spec; `automatic`: limits where it gives none.
pub(super) fn compute(
    spec: &VirtualMachineInstanceSpec,
    raw: &Value,
    settings: &Settings,
    automatic: AutoLimits,
) -> Result<Value, Unsupported> {
    let guest = guest_memory(spec)?;
    let beside = settings.overhead(overhead::bytes(&spec.domain, guest));
    let given = |list: &str, name: &str| raw.pointer(&format!("/domain/resources/{list}/{name}"));
    let bytes = |list: &str, name: &str| -> Result<Option<u64>, Unsupported> {
        let Some(value) = given(list, name) else { return Ok(None) };
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let error = |error: quantity::QuantityError| {
            Unsupported::field(format!("spec.domain.resources.{list}.{name}"), error.to_string())
        };
        quantity::bytes(&text).map(Some).map_err(error)
    };
    let (mut requests, mut limits) = (Map::new(), Map::new());
    let dedicated = virt::resolve::is_dedicated(spec);

    let memory_request;
    let hugepages = spec.domain.memory.as_ref().and_then(|memory| memory.hugepages.as_ref());
    if let Some(size) = hugepages.and_then(|hugepages| hugepages.page_size.as_ref()) {
        let name = format!("hugepages-{}", size);
        requests.insert(name.clone(), json!(guest.to_string()));
        limits.insert(name, json!(guest.to_string()));
        memory_request = beside;
    } else {
        let limit = bytes("limits", "memory")?;
        // With dedicated CPUs the request is the limit: less than the guest's memory would kill it.
        let percent = if dedicated { 100 } else { settings.memory_overcommit.max(1) };
        let overcommitted = guest.saturating_mul(100) / u64::from(percent);
        let request = bytes("requests", "memory")?.or(limit).unwrap_or(overcommitted);
        memory_request = request.saturating_add(beside);
        if let Some(limit) = limit {
            limits.insert("memory".into(), json!(limit.saturating_add(beside).to_string()));
        }
    }
    requests.insert("memory".into(), json!(memory_request.to_string()));
    if let (Some(percent), None) = (automatic.memory_percent, limits.get("memory")) {
        let limit = memory_request.saturating_mul(u64::from(percent)) / 100;
        limits.insert("memory".into(), json!(limit.to_string()));
    }

    let count = overhead::vcpus(&spec.domain);
    if dedicated {
        let emulator = u64::from(raw.pointer("/domain/cpu/isolateEmulatorThread") == Some(&json!(true)));
        let cpus = json!((count + emulator).to_string());
        requests.insert("cpu".into(), cpus.clone());
        limits.insert("cpu".into(), cpus);
        let memory = requests.get("memory").cloned();
        limits.extend(memory.map(|memory| ("memory".to_owned(), memory)));
    } else {
        let ratio = u64::from(settings.cpu_allocation_ratio.max(1));
        let share = json!(format!("{}m", (count * 1000 / ratio).max(1)));
        let limit = given("limits", "cpu");
        requests.insert("cpu".into(), given("requests", "cpu").or(limit).cloned().unwrap_or(share));
        if let Some(limit) = limit {
            limits.insert("cpu".into(), limit.clone());
        } else if automatic.cpu {
            // Whole CPUs, at least those that are requested.
            let cpus = bytes("requests", "cpu")?.unwrap_or(0).max(count);
            limits.insert("cpu".into(), json!(cpus.to_string()));
        }
    }
    for list in ["requests", "limits"] {
        for name in ["ephemeral-storage"] {
            if let Some(value) = given(list, name) {
                let target = if list == "requests" { &mut requests } else { &mut limits };
                target.insert(name.to_owned(), value.clone());
            }
        }
    }

    let mut devices = vec!["tun"];
    if !settings.emulation {
        devices.push("kvm");
        if wants_vhost(spec) {
            devices.push("vhost-net");
        }
    }
    for device in devices {
        let name = format!("devices.kubevirt.io/{device}");
        requests.insert(name.clone(), json!("1"));
        limits.insert(name, json!("1"));
    }
    Ok(json!({"requests": requests, "limits": limits}))
}

/// Adds the devices of the host that the guest is to have.
pub(super) fn host_devices(
    resources: &mut Value,
    spec: &VirtualMachineInstanceSpec,
    settings: &Settings,
) -> Result<(), Unsupported> {
    let refused = virt::host_devices::refused(spec, settings.host_devices.as_ref());
    if let Some((path, problem)) = refused.into_iter().next() {
        return Err(Unsupported::field(format!("spec.{path}"), problem));
    }
    for (resource, count) in virt::host_devices::resources(spec) {
        for list in ["requests", "limits"] {
            resources[list][resource] = json!(count.to_string());
        }
    }
    Ok(())
}

/// Whether an interface can use the kernel's virtio back end.
fn wants_vhost(spec: &VirtualMachineInstanceSpec) -> bool {
    let devices = &spec.domain.devices;
    let implicit = devices.interfaces.is_empty() && devices.autoattach_pod_interface != Some(false);
    implicit
        || devices.interfaces.iter().any(|one| one.model.as_deref().is_none_or(|model| model == "virtio"))
}
