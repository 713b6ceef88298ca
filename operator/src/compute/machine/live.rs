//! Live updates: fields of a VM's template that its running instance follows, and whether the rest needs a restart.
//!
//! ```text
//! VM (with instance type) ─┐
//! instance ────────────────┼─► followed: volumes and interfaces that come and go, media in drives, sockets, memory,
//!                          │             placement ─► patch
//! revision of the start ───┘   everything else differs ─► RestartRequired
//! ```
//! Which fields are followed is decided in [`virt::live`], and in [`interfaces`]. Not here: the guest's part (the node agent).

use api::kubevirt::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec as Spec};
use api::resource::Quantity;
use cluster::{JsonPatch, Key};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;
use virt::instancetype::{Flavor, Which};
use virt::live;

use super::plan::{Observed, revision_name};
use super::{interfaces, render};
use crate::compute::caches::{INSTANCES, MACHINES, PODS, REVISIONS};
use crate::compute::context::{Compared, Context};
use crate::compute::launcher::{self, Purpose};
use crate::flavor::{self, Unusable};

/// Annotation of an instance with the names of volumes that are not in its VM's template, separated by commas.
pub(crate) const EPHEMERAL: &str = "kubevirt.io/ephemeral-hotplug-volumes";
/// Fields of an instance's spec that follow its VM.
const FOLLOWED: [&str; 7] = [
    "/volumes",
    "/domain/devices/disks",
    "/domain/cpu/sockets",
    "/domain/memory/guest",
    "/nodeSelector",
    "/affinity",
    "/tolerations",
];

/// Has the instance follow its VM; whether the rest needs a restart. `None`: that could not be read, and stays as it is.
/// Compared once for each generation of the VM, unless something waits until a volume is gone.
pub(super) async fn follow(context: &Context, observed: &Observed<'_>, key: &Key) -> Option<bool> {
    let meta = &observed.machine.metadata;
    let Some(instance) = observed.own_instance().filter(|instance| !instance.is_final()) else {
        return Some(false);
    };
    let started = instance.generation_of_machine()?;
    if started == meta.generation {
        return Some(false);
    }
    let uid = &instance.metadata.uid;
    if let Some(compared) = context.compared(key)
        && (compared.generation, &compared.instance, compared.settled) == (meta.generation, uid, true)
    {
        return Some(compared.restart_required);
    }
    let whole = context.whole(MACHINES, meta).await.ok()??;
    let running: Value = context.client.find(INSTANCES, key).await.ok()??;
    let run = VirtualMachineInstance::deserialize(&running).ok()?;
    if run.metadata.uid.as_ref() != Some(uid) {
        return None;
    }
    let applied = match flavored(context, &whole).await {
        Ok(applied) => applied,
        Err(error) => {
            tracing::warn!(vm = %key, error = error.chain(), "the VM cannot be compared with its instance");
            return None;
        }
    };
    let mut wanted = VirtualMachine::deserialize(&applied).ok()?.spec.template.spec;
    add_ephemeral_volumes(&mut wanted, &run);
    let limited = limited(context, &wanted, &run).await.ok()?;
    let mut settled = true;
    if instance.status.phase == "Running" && !instance.metadata.deleting() {
        if !meta.deleting()
            && let Some(patch) = interfaces::followed(&render::guest(&applied), &running)
        {
            if let Err(error) = context.client.json_patch::<IgnoredAny>(INSTANCES, key, &patch).await {
                tracing::debug!(vm = %key, error = error.chain(), "the instance's interfaces are not updated yet; retrying");
            }
            // The instance's change leads here again, with what is to be compared.
            return None;
        }
        let there = run.status.as_ref().map(|status| status.volume_status.clone()).unwrap_or_default();
        let next = followed(&wanted, &run.spec, &there, context.settings().live_update, limited);
        settled = next == run.spec && live::follow_volumes(&wanted, &run.spec, &[]) == run.spec;
        if let Some(patch) = patch(uid, &running["spec"], &run.spec, &next)
            && let Err(error) = context.client.json_patch::<IgnoredAny>(INSTANCES, key, &patch).await
        {
            tracing::debug!(vm = %key, error = error.chain(), "the instance is not updated yet; retrying");
            return None;
        }
    } else if live::follow_volumes(&wanted, &run.spec, &[]) != run.spec {
        // It follows once its guest runs.
        settled = false;
    }
    let revision = Key::new(&meta.namespace, &revision_name(&meta.uid, started));
    let mut revision: Value = context.client.find_cached(REVISIONS, &revision).await.ok()??;
    if !refers(&whole["spec"]) && refers(&revision["data"]["spec"]) {
        // It has in its template what it referred to. Where that is not there any more, the two differ.
        let mut then = whole.clone();
        then["spec"] = revision["data"]["spec"].clone();
        if let Ok(then) = flavored(context, &then).await {
            revision["data"]["spec"] = then["spec"].clone();
        }
    }
    let live_update = context.settings().live_update;
    let restart_required =
        restart_required(&whole, &revision, &wanted, &run.spec, &running, live_update, limited);
    let compared = Compared { generation: meta.generation, instance: uid.clone(), restart_required, settled };
    context.remember(key, Some(compared));
    Some(restart_required)
}

/// The VM with its instance type and preference applied.
pub(super) async fn flavored(context: &Context, machine: &Value) -> cluster::Result<Value> {
    let flavor = flavor_of(context, machine).await?;
    render::flavored(machine, &flavor).map_err(|text| cluster::Error::new(cluster::Kind::Input, text))
}

/// The VM as it is written with its instance type and preference in place of the references to them.
pub(super) async fn expanded(context: &Context, machine: &Value) -> cluster::Result<Value> {
    let flavor = flavor_of(context, machine).await?;
    render::expanded(machine, &flavor).map_err(|text| cluster::Error::new(cluster::Kind::Input, text))
}

async fn flavor_of(context: &Context, machine: &Value) -> cluster::Result<Flavor> {
    let read = VirtualMachine::deserialize(machine);
    let read = read.map_err(|error| {
        cluster::Error::new(cluster::Kind::Input, format!("the VirtualMachine cannot be read: {error}"))
    })?;
    let namespace = machine["metadata"]["namespace"].as_str().unwrap_or_default();
    flavor::flavor(&context.client, namespace, &read).await.map_err(unusable)
}

pub(super) fn unusable(unusable: Unusable) -> cluster::Error {
    match unusable {
        Unusable::Failed(error) => error,
        Unusable::Refused { text, .. } => cluster::Error::new(cluster::Kind::Input, text),
    }
}

/// Adds volumes to a template that the instance got for itself.
fn add_ephemeral_volumes(wanted: &mut Spec, run: &VirtualMachineInstance) {
    let Some(names) = run.metadata.annotations.get(EPHEMERAL) else { return };
    for name in names.split(',').filter(|name| !name.is_empty()) {
        if live::volume(wanted, name).is_some() {
            continue;
        }
        wanted.volumes.extend(live::volume(&run.spec, name).cloned());
        let disks = &mut wanted.domain.devices.disks;
        if !disks.iter().any(|disk| disk.name == name) {
            disks.extend(run.spec.domain.devices.disks.iter().find(|disk| disk.name == name).cloned());
        }
    }
}

/// The spec that the instance is to have. `limited`: its launcher's pod has a memory limit.
fn followed(
    wanted: &Spec,
    run: &Spec,
    there: &[api::kubevirt::VolumeStatus],
    live_update: bool,
    limited: bool,
) -> Spec {
    let mut next = live::follow_volumes(wanted, run, there);
    if live_update {
        next = live::follow_size(wanted, &next);
        if limited {
            next.domain.memory.clone_from(&run.domain.memory);
        }
        next.node_selector.clone_from(&wanted.node_selector);
        next.affinity.clone_from(&wanted.affinity);
        next.tolerations.clone_from(&wanted.tolerations);
    }
    next
}

/// Memory of the guest.
fn memory(spec: &Spec) -> Option<&Quantity> {
    spec.domain.memory.as_ref().and_then(|memory| memory.guest.as_ref())
}

/// Whether the launcher's pod has a memory limit, which more memory of its guest would exceed: the instance's, or one
/// because of its namespace. The pod is read only if the memory is to change.
async fn limited(context: &Context, wanted: &Spec, run: &VirtualMachineInstance) -> cluster::Result<bool> {
    if has_limit(&run.spec) || memory(wanted) == memory(&run.spec) {
        return Ok(has_limit(&run.spec));
    }
    let meta = &run.metadata;
    let name = launcher::pod_name(&meta.name, meta.uid.as_deref().unwrap_or_default(), Purpose::Guest);
    let key = Key::new(meta.namespace.as_deref().unwrap_or_default(), &name);
    let pod: Option<Value> = context.client.find(PODS, &key).await?;
    let containers = pod.as_ref().and_then(|pod| pod["spec"]["containers"].as_array());
    Ok(containers.into_iter().flatten().any(|container| {
        container["name"] == "compute" && container["resources"]["limits"]["memory"].is_string()
    }))
}

/// Whether the instance itself gives its pod a memory limit.
fn has_limit(run: &Spec) -> bool {
    let resources = run.domain.resources.as_ref();
    let hugepages = run.domain.memory.as_ref().is_some_and(|memory| memory.hugepages.is_some());
    hugepages || resources.is_some_and(|resources| resources.limits.contains_key("memory"))
}

/// The change of the instance's spec; each field is tested to be as it was read.
fn patch(uid: &str, stored: &Value, run: &Spec, next: &Spec) -> Option<JsonPatch> {
    let (before, after) = (serde_json::to_value(run).ok()?, serde_json::to_value(next).ok()?);
    let mut patch = JsonPatch::new().test("/metadata/uid", uid);
    let tests = patch.operations().len();
    for field in FOLLOWED {
        if before.pointer(field) == after.pointer(field) {
            continue;
        }
        let path = format!("/spec{field}");
        patch = patch.test(path.clone(), stored.pointer(field));
        patch = match after.pointer(field) {
            Some(value) => patch.add(path, value),
            None => patch.remove(path),
        };
    }
    (patch.operations().len() > tests).then_some(patch)
}

/// Whether a VM's spec refers to an instance type or a preference.
fn refers(spec: &Value) -> bool {
    Which::BOTH.into_iter().any(|which| spec[which.field()].is_object())
}

/// Whether the VM differs from what its instance was started from, in a field that the instance does not follow.
/// `instance` is what `run` was read from.
fn restart_required(
    machine: &Value,
    revision: &Value,
    wanted: &Spec,
    run: &Spec,
    instance: &Value,
    live_update: bool,
    limited: bool,
) -> bool {
    let (mut now, mut then) = (machine["spec"].clone(), revision["data"]["spec"].clone());
    interfaces::leave_out(&mut now["template"]["spec"], &mut then["template"]["spec"], instance);
    let (now, then) = (&now, &then);
    let name = |spec: &Value, which: Which| {
        (spec[which.field()]["name"].clone(), spec[which.field()]["kind"].clone())
    };
    let other = |which| name(now, which) != name(then, which);
    let typed = |spec: &Value| Spec::deserialize(&spec["template"]["spec"]).ok();
    let (Some(now_template), Some(mut then_template)) = (typed(now), typed(then)) else { return true };
    if other(Which::Preference) {
        return true;
    }
    if limited && memory(wanted).is_some() && memory(wanted) != memory(run) {
        return true;
    }
    if other(Which::Instancetype) || now["instancetype"].is_object() {
        if !live_update && other(Which::Instancetype) {
            return true;
        }
        if live::size_needs_restart(wanted, run) {
            return true;
        }
    } else if live_update {
        // Its size of now, after live updates.
        let size = (run.domain.cpu.clone(), run.domain.memory.clone());
        let (cpu, memory) = (&mut then_template.domain.cpu, &mut then_template.domain.memory);
        if let (Some(then), Some(run)) = (cpu, size.0) {
            (then.sockets, then.max_sockets) = (run.sockets, then.max_sockets.or(run.max_sockets));
        }
        if let (Some(then), Some(run)) = (memory, size.1) {
            (then.guest, then.max_guest) = (run.guest, then.max_guest.clone().or(run.max_guest));
        }
    }
    live::needs_restart(&now_template, &then_template)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn machine(cpu: u32, memory: &str, volumes: &Value) -> Value {
        let disks: Vec<Value> = volumes
            .as_array()
            .unwrap()
            .iter()
            .map(|volume| json!({"name": volume["name"], "disk": {"bus": "scsi"}}))
            .collect();
        json!({"metadata": {"uid": "u", "generation": 2}, "spec": {"template": {"spec": {
            "domain": {"cpu": {"sockets": cpu, "cores": 1, "threads": 1}, "memory": {"guest": memory},
                "devices": {"disks": disks}},
            "volumes": volumes,
        }}}})
    }

    fn run(machine: &Value) -> Spec {
        let mut spec = machine["spec"]["template"]["spec"].clone();
        spec["domain"]["cpu"]["maxSockets"] = json!(4);
        spec["domain"]["memory"]["maxGuest"] = json!("4096Mi");
        serde_json::from_value(spec).unwrap()
    }

    fn spec(machine: &Value) -> Spec {
        serde_json::from_value(machine["spec"]["template"]["spec"].clone()).unwrap()
    }

    #[test]
    fn size_volumes_and_placement_are_followed_and_the_rest_needs_a_restart() {
        let none = json!([]);
        let data =
            json!([{"name": "data", "persistentVolumeClaim": {"claimName": "data", "hotpluggable": true}}]);
        let before = machine(1, "1Gi", &none);
        let revision = json!({"data": {"spec": before["spec"]}});
        let place = |mut machine: Value| {
            machine["spec"]["template"]["spec"]["nodeSelector"] = json!({"zone": "b"});
            machine
        };
        let cores = |mut machine: Value| {
            machine["spec"]["template"]["spec"]["domain"]["cpu"]["cores"] = json!(2);
            machine
        };
        for (name, after, restart, patched) in [
            ("same", machine(1, "1Gi", &none), false, 0),
            ("more sockets", machine(2, "1Gi", &none), false, 1),
            ("too many sockets", machine(5, "1Gi", &none), true, 0),
            ("more memory", machine(1, "2Gi", &none), false, 1),
            ("less memory", machine(1, "512Mi", &none), true, 0),
            ("a volume", machine(1, "1Gi", &data), false, 2),
            ("placement", place(machine(1, "1Gi", &none)), false, 1),
            ("cores", cores(machine(1, "1Gi", &none)), true, 0),
        ] {
            let run = run(&before);
            let next = followed(&spec(&after), &run, &[], true, false);
            let changed = patch("u", &serde_json::to_value(&run).unwrap(), &run, &next);
            let count = changed.map_or(0, |patch| patch.operations().len() / 2);
            assert_eq!(count, patched, "{name}");
            assert_eq!(
                restart_required(&after, &revision, &spec(&after), &next, &Value::Null, true, false),
                restart,
                "{name}"
            );
        }
        let grown = machine(1, "2Gi", &none);
        let next = followed(&spec(&grown), &run(&before), &[], true, true);
        assert_eq!(next, run(&before), "a pod with a memory limit");
        assert!(restart_required(&grown, &revision, &spec(&grown), &next, &Value::Null, true, true));
        let mut own = before.clone();
        assert!(!has_limit(&spec(&own)));
        own["spec"]["template"]["spec"]["domain"]["resources"] = json!({"limits": {"memory": "1Gi"}});
        assert!(has_limit(&spec(&own)));
        let staged = machine(2, "1Gi", &none);
        assert!(
            restart_required(&staged, &revision, &spec(&staged), &run(&before), &Value::Null, false, false),
            "staged"
        );
        // A guest that has grown does not shrink.
        assert!(restart_required(
            &before,
            &revision,
            &spec(&before),
            &run(&machine(2, "1Gi", &none)),
            &Value::Null,
            true,
            false
        ));
    }

    #[test]
    fn another_instance_type_grows_the_guest_or_needs_a_restart() {
        let of = |name: &str| json!({"metadata": {}, "spec": {"instancetype": {"name": name}, "template": {"spec": {}}}});
        let revision = json!({"data": {"spec": of("small")["spec"]}});
        let none = json!([]);
        let small = run(&machine(1, "1Gi", &none));
        for (sockets, memory, restart) in [(2, "2Gi", false), (5, "2Gi", true), (1, "8Gi", true)] {
            let wanted = spec(&machine(sockets, memory, &none));
            let next = followed(&wanted, &small, &[], true, false);
            assert_eq!(
                restart_required(&of("large"), &revision, &wanted, &next, &Value::Null, true, false),
                restart,
                "{sockets} {memory}"
            );
        }
        let mut other = of("small");
        other["spec"]["preference"] = json!({"name": "linux"});
        assert!(restart_required(
            &other,
            &revision,
            &spec(&machine(1, "1Gi", &none)),
            &small,
            &Value::Null,
            true,
            false
        ));
    }
}
