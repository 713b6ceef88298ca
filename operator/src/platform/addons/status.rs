//! Status of a `NetworkAddonsConfig`. Pure.

use std::collections::BTreeSet;

use api::addons::{ComponentContainer, NetworkAddonsSpec, NetworkAddonsStatus};
use api::resource::Condition;
use cluster::event::Type;

use super::check;
use crate::install::macpool::{DEPLOYMENT, SERVICE};
use crate::platform::hyperconverged::render::Child;
use crate::platform::plan::Component;
use crate::platform::status::Note;
use crate::platform::without;

/// DaemonSet of the node agent, which has the parts of Multus and of the bridge plugin.
pub const AGENT: &str = "virt-handler";

/// Condition of an object that asks for Multus while only VMs get it; missing if it does not hold.
const FOR_VMS_ONLY: &str = "ferrovirt.io/MultusForVMsOnly";
/// Its reason and text.
const NO_MULTUS: (&str, &str) = (
    "NoMultus",
    "spec.multus: VMs are attached to networks by the node agent; pods with the annotation k8s.v1.cni.cncf.io/networks are \
     not, because no DaemonSet of Multus exists: install Multus if there are such pods",
);

/// Reason while deployed components of this version have pods or endpoints that are not ready.
const NOT_READY: &str = "ComponentsNotReady";

/// Reason and text of the event about a spec that differs from the one before it, in upstream's words.
pub const MODIFIED: (&str, &str) = ("Modified", "Config spec was modified");

/// Inputs of a status.
#[derive(Clone, Debug)]
pub struct Situation<'a> {
    /// Components and settings.
    pub spec: &'a NetworkAddonsSpec,
    /// Status until now.
    pub before: &'a NetworkAddonsStatus,
    /// Workloads of the platform.
    pub components: &'a [Component],
    /// Services that have a ready endpoint.
    pub services: &'a BTreeSet<String>,
    /// Whether Multus is installed, for pods that are not of VMs.
    pub multus: bool,
    /// Version of the operator.
    pub version: &'a str,
    /// Template of images; `{program}` stands for a program's name.
    pub image: &'a str,
    /// Why nothing could be applied: upstream's reason, and text.
    pub failure: Option<(&'static str, String)>,
    /// Point in time (RFC 3339).
    pub now: &'a str,
}

/// A workload that a spec needs.
struct Needed {
    kind: &'static str,
    name: &'static str,
    containers: Vec<(&'static str, &'static str)>,
}

fn needed(spec: &NetworkAddonsSpec) -> Vec<Needed> {
    let mut all = Vec::new();
    let mut containers = Vec::new();
    if spec.multus.is_some() || spec.linux_bridge.is_some() {
        containers.push((AGENT, "virt-agent"));
    }
    if spec.linux_bridge.is_some() {
        containers.push(("network-plugins", "cni"));
    }
    if !containers.is_empty() {
        all.push(Needed { kind: "DaemonSet", name: AGENT, containers });
    }
    if spec.kube_mac_pool.is_some() {
        all.push(Needed { kind: "Deployment", name: DEPLOYMENT, containers: vec![("manager", "macpool")] });
    }
    all
}

/// The platform's own conditions that hold.
fn notes(spec: &NetworkAddonsSpec, multus: bool) -> Vec<Note> {
    let settings = serde_json::to_value(spec).unwrap_or_default();
    let mut notes: Vec<Note> = without::note(Child::Network, &settings).into_iter().collect();
    if spec.multus.is_some() && !multus {
        let (reason, text) = NO_MULTUS;
        notes.push((FOR_VMS_ONLY, reason, text.to_owned()));
    }
    notes
}

/// The status.
pub fn status(situation: &Situation<'_>) -> NetworkAddonsStatus {
    let Situation { spec, before, components, services, multus, version, image, failure, now } = situation;
    let needed = needed(spec);
    let mut absent = None;
    let mut waiting = Vec::new();
    for one in &needed {
        match components.iter().find(|found| found.name == one.name) {
            None => {
                let reason = if one.kind == "DaemonSet" { "NoDaemonSet" } else { "NoDeployment" };
                absent.get_or_insert(reason);
                waiting.push(format!("{} {} does not exist", one.kind, one.name));
            }
            Some(found) if found.is_ready() => {}
            Some(found) => waiting.push(found.progress(one.kind)),
        }
    }
    // Its webhook refuses VMs while nothing answers.
    if spec.kube_mac_pool.is_some() && !services.contains(SERVICE) {
        waiting.push(format!("Service {SERVICE} has no ready endpoint"));
    }
    let unsupported = check::unsupported(spec);
    let unsupported: Vec<String> = unsupported.iter().map(|(field, why)| format!("{field}: {why}")).collect();
    let (available, progressing, degraded) = match failure {
        Some((reason, text)) => {
            let bad = ("False", "Failing", text.clone());
            (bad, ("False", *reason, text.clone()), ("True", *reason, text.clone()))
        }
        None => {
            let degraded = if unsupported.is_empty() {
                ("False", "", String::new())
            } else {
                ("True", "InvalidConfiguration", unsupported.join("; "))
            };
            let text = waiting.join("; ");
            let was_available = is(before, "Available", "True");
            match &before.observed_version {
                _ if waiting.is_empty() => {
                    (("True", "", String::new()), ("False", "", String::new()), degraded)
                }
                Some(deployed) if was_available && absent.is_none() && deployed == version => {
                    (("True", "", String::new()), ("False", "", String::new()), ("True", NOT_READY, text))
                }
                // As KubeVirt and CDI while the next release replaces the deployed one.
                Some(_) if was_available && absent.is_none() => {
                    let fact = ("True", "Deploying", text);
                    (fact.clone(), fact.clone(), fact)
                }
                Some(_) | None => {
                    let reason = absent.unwrap_or("Deploying");
                    (("False", reason, text.clone()), ("True", reason, text), degraded)
                }
            }
        }
    };
    let is_complete = failure.is_none() && waiting.is_empty();
    let condition = |kind: &str, (value, reason, message): (&str, &str, String)| {
        let old = before.conditions.iter().find(|one| one.kind == kind);
        let same = old.filter(|one| one.status == value);
        let optional = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let mut new = Condition {
            kind: kind.to_owned(),
            status: value.to_owned(),
            reason: optional(reason),
            message: optional(&message),
            last_transition_time: same
                .map_or_else(|| Some((*now).to_owned()), |one| one.last_transition_time.clone()),
            ..Condition::default()
        };
        let unchanged = same.filter(|one| one.reason == new.reason && one.message == new.message);
        new.last_heartbeat_time =
            unchanged.map_or_else(|| Some((*now).to_owned()), |one| one.last_heartbeat_time.clone());
        new
    };
    let mut conditions = vec![
        condition("Available", available),
        condition("Progressing", progressing),
        condition("Degraded", degraded),
    ];
    for (kind, reason, text) in notes(spec, *multus) {
        conditions.push(condition(kind, ("True", reason, text)));
    }
    NetworkAddonsStatus {
        conditions,
        containers: needed
            .iter()
            .flat_map(|one| {
                one.containers.iter().map(|(name, program)| ComponentContainer {
                    image: image.replace("{program}", program),
                    name: (*name).to_owned(),
                    parent_kind: one.kind.to_owned(),
                    parent_name: one.name.to_owned(),
                })
            })
            .collect(),
        observed_version: if is_complete {
            Some((*version).to_owned())
        } else {
            before.observed_version.clone()
        },
        operator_version: Some((*version).to_owned()),
        target_version: Some((*version).to_owned()),
    }
}

/// Events about the conditions that have become true: kind, reason and text, in upstream's words.
pub fn events(
    before: &NetworkAddonsStatus,
    after: &NetworkAddonsStatus,
) -> Vec<(Type, &'static str, String)> {
    let is_new = |kind: &str| is(after, kind, "True") && !is(before, kind, "True");
    let mut events = Vec::new();
    if is_new("Available") {
        events.push((Type::Normal, "Available", "All applied components are available".to_owned()));
    }
    if is_new("Progressing") {
        events.push((Type::Normal, "Progressing", "Operator is progressing".to_owned()));
    }
    if is_new("Degraded") {
        let degraded = after.conditions.iter().find(|one| one.kind == "Degraded");
        let why = degraded.and_then(|one| one.message.clone()).unwrap_or_default();
        events.push((Type::Warning, "Failed", format!("Operator failed: {why}")));
    }
    events
}

/// Whether a condition has a value.
pub fn is(status: &NetworkAddonsStatus, kind: &str, value: &str) -> bool {
    status.conditions.iter().any(|one| one.kind == kind && one.status == value)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn component(name: &str, ready: u32) -> Component {
        Component { name: name.to_owned(), desired: 1, ready, current: true }
    }

    fn of(
        spec: Value,
        components: &[Component],
        failure: Option<(&'static str, String)>,
    ) -> NetworkAddonsStatus {
        with_services(spec, components, &[SERVICE], failure)
    }

    fn with_services(
        spec: Value,
        components: &[Component],
        services: &[&str],
        failure: Option<(&'static str, String)>,
    ) -> NetworkAddonsStatus {
        let spec: NetworkAddonsSpec = serde_json::from_value(spec).unwrap();
        status(&Situation {
            spec: &spec,
            before: &NetworkAddonsStatus::default(),
            components,
            services: &services.iter().map(|name| (*name).to_owned()).collect(),
            multus: true,
            version: "1",
            image: "x:{program}",
            failure,
            now: "2026-01-01T00:00:00Z",
        })
    }

    fn words(status: &NetworkAddonsStatus) -> String {
        let all = status.conditions.iter();
        let all =
            all.map(|one| format!("{}={} {}", one.kind, one.status, one.reason.clone().unwrap_or_default()));
        all.collect::<Vec<_>>().join(", ").replace(" ,", ",").trim_end().to_owned()
    }

    #[test]
    fn conditions_follow_the_components() {
        let everything = json!({"multus": {}, "linuxBridge": {}, "kubeMacPool": {}});
        let ready = [component(AGENT, 1), component(DEPLOYMENT, 1)];
        for (spec, components, failure, wanted) in [
            (json!({}), &[][..], None, "Available=True, Progressing=False, Degraded=False"),
            (everything.clone(), &ready[..], None, "Available=True, Progressing=False, Degraded=False"),
            (
                everything.clone(),
                &ready[..1],
                None,
                "Available=False NoDeployment, Progressing=True NoDeployment, Degraded=False",
            ),
            (
                everything.clone(),
                &ready[1..],
                None,
                "Available=False NoDaemonSet, Progressing=True NoDaemonSet, Degraded=False",
            ),
            (
                json!({"kubeMacPool": {}}),
                &[component(DEPLOYMENT, 0)][..],
                None,
                "Available=False Deploying, Progressing=True Deploying, Degraded=False",
            ),
            (
                json!({"ovs": {}, "kubeMacPool": {}}),
                &ready[..],
                None,
                "Available=True, Progressing=False, Degraded=True InvalidConfiguration",
            ),
            (
                json!({"placementConfiguration": {"workloads": {"nodeSelector": {"a": "b"}}}}),
                &[][..],
                None,
                "Available=True, Progressing=False, Degraded=False, \
                 ferrovirt.io/SettingsWithoutEffect=True NotImplemented",
            ),
            (
                everything.clone(),
                &ready[..],
                Some(("FailedToValidate", "spec.kubeMacPool: …".to_owned())),
                "Available=False Failing, Progressing=False FailedToValidate, Degraded=True FailedToValidate",
            ),
        ] {
            assert_eq!(words(&of(spec.clone(), components, failure)), wanted, "{spec}");
        }
        let unreachable = with_services(everything, &ready, &[], None);
        let wanted = "Available=False Deploying, Progressing=True Deploying, Degraded=False";
        assert_eq!(words(&unreachable), wanted, "no endpoint");
    }

    #[test]
    fn pods_without_multus_are_named() {
        for (spec, multus, holds) in [
            (json!({"multus": {}, "linuxBridge": {}}), false, true),
            (json!({"multus": {}}), true, false),
            (json!({"linuxBridge": {}}), false, false),
        ] {
            let found = notes(&serde_json::from_value(spec.clone()).unwrap(), multus);
            let kinds: Vec<&str> = found.iter().map(|note| note.0).collect();
            assert_eq!(kinds, if holds { vec![FOR_VMS_ONLY] } else { vec![] }, "{spec} {multus}");
            assert!(found.iter().all(|note| note.2.starts_with("spec.multus: ")), "{found:?}");
        }
    }

    #[test]
    fn deployed_components_stay_available() {
        let everything: NetworkAddonsSpec =
            serde_json::from_value(json!({"multus": {}, "kubeMacPool": {}})).unwrap();
        let after = |before: &NetworkAddonsStatus, version: &str, components: &[Component]| {
            status(&Situation {
                spec: &everything,
                before,
                components,
                services: &BTreeSet::from([SERVICE.to_owned()]),
                multus: true,
                version,
                image: "x:{program}",
                failure: None,
                now: "2026-01-01T00:00:00Z",
            })
        };
        let ready = [component(AGENT, 1), component(DEPLOYMENT, 1)];
        let failing = [component(AGENT, 0), component(DEPLOYMENT, 1)];
        let deployed = after(&NetworkAddonsStatus::default(), "1", &ready);
        for (version, components, wanted) in [
            ("1", &failing[..], "Available=True, Progressing=False, Degraded=True ComponentsNotReady"),
            ("1", &ready[..1], "Available=False NoDeployment, Progressing=True NoDeployment, Degraded=False"),
            (
                "2",
                &failing[..],
                "Available=True Deploying, Progressing=True Deploying, Degraded=True Deploying",
            ),
        ] {
            let next = after(&deployed, version, components);
            assert_eq!((words(&next).as_str(), next.observed_version.as_deref()), (wanted, Some("1")));
        }
        let degraded = after(&deployed, "1", &failing);
        assert_eq!(words(&after(&degraded, "1", &ready)), words(&deployed));
        assert_eq!(after(&degraded, "2", &ready).observed_version.as_deref(), Some("2"));
    }

    #[test]
    fn events_are_about_conditions_that_became_true() {
        let none = NetworkAddonsStatus::default();
        let ready = of(json!({"ovs": {}}), &[], None);
        let progressing = of(json!({"multus": {}}), &[], None);
        let words = |before: &NetworkAddonsStatus, after: &NetworkAddonsStatus| {
            let all = events(before, after).into_iter();
            all.map(|(kind, reason, text)| format!("{kind:?} {reason}: {text}")).collect::<Vec<_>>()
        };
        let failed =
            format!("Warning Failed: Operator failed: {}", ready.conditions[2].message.as_ref().unwrap());
        assert_eq!(
            words(&none, &ready),
            ["Normal Available: All applied components are available".to_owned(), failed]
        );
        assert!(words(&ready, &ready).is_empty());
        assert_eq!(words(&ready, &progressing), ["Normal Progressing: Operator is progressing"]);
    }

    #[test]
    fn containers_are_those_of_the_components() {
        let status = of(json!({"linuxBridge": {}, "kubeMacPool": {}}), &[], None);
        let all = status.containers.iter();
        let all: Vec<String> = all
            .map(|one| format!("{} {} {} {}", one.parent_kind, one.parent_name, one.name, one.image))
            .collect();
        let wanted = [
            "DaemonSet virt-handler virt-handler x:virt-agent",
            "DaemonSet virt-handler network-plugins x:cni",
            "Deployment kubemacpool-mac-controller-manager manager x:macpool",
        ];
        assert_eq!(all, wanted);
        assert_eq!((status.observed_version, status.target_version.as_deref()), (None, Some("1")));
    }
}
