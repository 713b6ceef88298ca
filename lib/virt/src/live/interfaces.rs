//! Interfaces that are attached and detached while the guest runs: those bridged to a network by name. One added to the
//! template is attached, one with `state: absent` is detached. The link state of every interface follows, too.

use api::kubevirt::{Interface, VirtualMachineInstanceSpec as Spec};

/// Whether an interface is to be detached, or was.
pub fn is_absent(one: &Interface) -> bool {
    one.state.as_deref() == Some("absent")
}

/// Whether an interface may come and go: it is bridged to a network by name that is not in the pod network's place.
fn is_live(spec: &Spec, one: &Interface) -> bool {
    let network = spec.networks.iter().find(|network| network.name == one.name);
    let multus = network.and_then(|network| network.multus.as_ref());
    one.bridge.is_some() && multus.is_some_and(|multus| multus.is_default != Some(true))
}

/// The new spec of a run, so that its interfaces follow its machine's template; `None`: they do, as far as they can now.
pub fn followed(template: &Spec, run: &Spec) -> Option<Spec> {
    let mut wanted = run.clone();
    let interfaces = &mut wanted.domain.devices.interfaces;
    for one in &template.domain.devices.interfaces {
        let network = template.networks.iter().find(|network| network.name == one.name);
        match (interfaces.iter_mut().find(|other| other.name == one.name), network) {
            (Some(other), _) => {
                if (is_live(template, one) || !is_absent(one)) && !is_absent(other) {
                    other.state.clone_from(&one.state);
                }
            }
            (None, Some(network)) => {
                let free = wanted.networks.iter().all(|other| other.name != one.name);
                if is_live(template, one) && free && !is_absent(one) {
                    interfaces.push(one.clone());
                    wanted.networks.push(network.clone());
                }
            }
            (None, None) => {}
        }
    }
    // Those that are gone are forgotten with the template's.
    let named = |name: &str| template.domain.devices.interfaces.iter().any(|one| one.name == name);
    let gone = |one: &Interface| is_absent(one) && !named(&one.name);
    wanted.networks.retain(|network| !interfaces.iter().any(|one| one.name == network.name && gone(one)));
    interfaces.retain(|one| !gone(one));
    (wanted != *run).then_some(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// A spec with interfaces of these names: `p` is the pod network's, others are bridged; `!` marks one that is absent,
    /// `-` one with its link down.
    fn spec(names: &[&str]) -> Spec {
        let interface = |text: &&str| -> Value {
            let name = text.trim_start_matches(['!', '-']);
            let mut one = json!({"name": name});
            one[if name == "p" { "masquerade" } else { "bridge" }] = json!({});
            if text.starts_with('!') {
                one["state"] = json!("absent");
            }
            if text.starts_with('-') {
                one["state"] = json!("down");
            }
            one
        };
        let network = |text: &&str| -> Value {
            match text.trim_start_matches(['!', '-']) {
                "p" => json!({"name": "p", "pod": {}}),
                name => json!({"name": name, "multus": {"networkName": name}}),
            }
        };
        let value = json!({
            "domain": {"devices": {"interfaces": names.iter().map(interface).collect::<Vec<_>>()}},
            "networks": names.iter().map(network).collect::<Vec<_>>(),
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn interfaces_follow_where_they_can() {
        for (template, run, wanted) in [
            (&["p", "a"][..], &["p", "a"][..], None),
            (&["p", "a"], &["p"], Some(&["p", "a"][..])),
            (&["p", "!a"], &["p", "a"], Some(&["p", "!a"])),
            (&["p", "!a"], &["p"], None),
            (&["p"], &["p", "!a"], Some(&["p"])),
            (&["-p", "-a"], &["p", "a"], Some(&["-p", "-a"])),
            (&["p"], &["-p"], Some(&["p"])),
            (&["-a"], &["!a"], None),
            // Only the next run has it, or has it no more.
            (&["p", "a"], &["a"], None),
            (&["p"], &["p", "a"], None),
            (&["!p", "a"], &["p", "a"], None),
        ] {
            assert_eq!(followed(&spec(template), &spec(run)), wanted.map(spec), "{template:?} {run:?}");
        }
    }
}
