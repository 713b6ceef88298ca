//! Interfaces of a VM that come and go while its guest runs: those of its template that are bridged to a secondary
//! network are brought into its instance. Pure.
//!
//! Not here: attaching them (the node agent).

use api::kubevirt::VirtualMachineInstanceSpec as Spec;
use cluster::JsonPatch;
use serde::Deserialize;
use serde_json::{Value, json};
use virt::live::{follow_interfaces, is_absent};

/// The patch by which the interfaces of an instance follow the template of its VM; `None`: they do.
pub(super) fn followed(template: &Value, instance: &Value) -> Option<JsonPatch> {
    let template = Spec::deserialize(template).ok()?;
    let run = Spec::deserialize(&instance["spec"]).ok()?;
    let wanted = follow_interfaces(&template, &run)?;
    let patch = JsonPatch::new()
        .test("/metadata/uid", &instance["metadata"]["uid"])
        .test("/metadata/resourceVersion", &instance["metadata"]["resourceVersion"])
        .add("/spec/networks", json!(wanted.networks))
        .add("/spec/domain/devices/interfaces", json!(wanted.domain.devices.interfaces));
    Some(patch)
}

/// Takes interfaces out of the template of a VM now and of the one that its instance started from, where the instance has
/// followed already: they need no restart.
pub(super) fn leave_out(now: &mut Value, then: &mut Value, instance: &Value) {
    let (Ok(new), Ok(old)) = (Spec::deserialize(&*now), Spec::deserialize(&*then)) else { return };
    let Ok(run) = Spec::deserialize(&instance["spec"]) else { return };
    let present = |spec: &Spec, name: &str| {
        spec.domain.devices.interfaces.iter().any(|one| one.name == name && !is_absent(one))
    };
    let is_live = |spec: &Spec, name: &str| {
        let bridged =
            spec.domain.devices.interfaces.iter().any(|one| one.name == name && one.bridge.is_some());
        let multus = spec.networks.iter().find(|one| one.name == name).and_then(|one| one.multus.as_ref());
        bridged && multus.is_some_and(|multus| multus.is_default != Some(true))
    };
    let state = |spec: &Spec, name: &str| {
        let one = spec.domain.devices.interfaces.iter().find(|one| one.name == name);
        one.map(|one| one.state.clone().unwrap_or_default())
    };
    for one in new.domain.devices.interfaces.iter().filter(|one| !is_absent(one)) {
        if state(&new, &one.name) == state(&run, &one.name) {
            for spec in [&mut *now, &mut *then] {
                let all = spec.pointer_mut("/domain/devices/interfaces").and_then(Value::as_array_mut);
                let same = all.into_iter().flatten().find(|other| other["name"] == one.name.as_str());
                if let Some(fields) = same.and_then(Value::as_object_mut) {
                    fields.remove("state");
                }
            }
        }
    }
    let all = new.domain.devices.interfaces.iter().chain(&old.domain.devices.interfaces);
    let names: Vec<String> = all
        .map(|one| one.name.clone())
        .filter(|name| is_live(&new, name) || is_live(&old, name))
        // One that was there before and is there now is compared field by field.
        .filter(|name| !(present(&new, name) && present(&old, name)))
        .filter(|name| present(&new, name) == present(&run, name))
        .collect();
    for spec in [now, then] {
        for list in ["/networks", "/domain/devices/interfaces"] {
            if let Some(all) = spec.pointer_mut(list).and_then(Value::as_array_mut) {
                all.retain(|one| !names.iter().any(|name| one["name"] == name.as_str()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest's spec with interfaces of these names: `p` is on the pod network; `!` marks one that is absent, `-` one with
    /// its link down.
    fn spec(names: &[&str]) -> Value {
        let interface = |text: &&str| {
            let name = text.trim_start_matches(['!', '-']);
            let mut one = json!({"name": name, "macAddress": format!("02:00:00:00:00:0{}", name.len())});
            one[if name == "p" { "masquerade" } else { "bridge" }] = json!({});
            if text.starts_with('!') {
                one["state"] = json!("absent");
            }
            if text.starts_with('-') {
                one["state"] = json!("down");
            }
            one
        };
        let network = |text: &&str| match text.trim_start_matches(['!', '-']) {
            "p" => json!({"name": "p", "pod": {}}),
            name => json!({"name": name, "multus": {"networkName": name}}),
        };
        json!({
            "domain": {"devices": {"interfaces": names.iter().map(interface).collect::<Vec<_>>()}},
            "networks": names.iter().map(network).collect::<Vec<_>>(),
        })
    }

    fn instance(names: &[&str]) -> Value {
        json!({"metadata": {"uid": "i", "resourceVersion": "7"}, "spec": spec(names)})
    }

    #[test]
    fn instances_follow_the_template() {
        for (template, run, wanted) in [
            (&["p", "a"][..], &["p", "a"][..], None),
            (&["p", "a"], &["p"], Some("p a")),
            (&["p", "!a"], &["p", "a"], Some("p !a")),
            (&["p"], &["p", "!a"], Some("p")),
        ] {
            let patch = followed(&spec(template), &instance(run));
            let names = patch.map(|patch| {
                let operations = patch.operations();
                assert_eq!(operations[1]["value"], "7", "written only to what was read");
                let all = operations[3]["value"].as_array().unwrap();
                let name = |one: &Value| {
                    let mark = if one["state"] == "absent" { "!" } else { "" };
                    format!("{mark}{}", one["name"].as_str().unwrap())
                };
                all.iter().map(name).collect::<Vec<_>>().join(" ")
            });
            assert_eq!(names.as_deref(), wanted, "{template:?} {run:?}");
        }
    }

    #[test]
    fn interfaces_that_the_instance_follows_need_no_restart() {
        for (now, then, run, same) in [
            (&["p", "a"][..], &["p"][..], &["p", "a"][..], true),
            (&["p", "a"], &["p"], &["p"], false),
            (&["p", "!a"], &["p", "a"], &["p", "!a"], true),
            (&["p"], &["p", "a"], &["p"], true),
            (&["p"], &["p", "a"], &["p", "a"], false),
            (&["a"], &["p", "a"], &["p", "a"], false),
            (&["-p", "-a"], &["p", "a"], &["-p", "-a"], true),
            (&["-p"], &["p"], &["p"], false),
            (&["p"], &["-p"], &["p"], true),
        ] {
            let (mut new, mut old) = (spec(now), spec(then));
            leave_out(&mut new, &mut old, &instance(run));
            assert_eq!(new == old, same, "{now:?} {then:?} {run:?}");
        }
    }
}
