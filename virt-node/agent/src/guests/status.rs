//! The status of a VMI from Scheduled on, computed whole from what is known: pure but for the clock of the conditions.

use api::kubevirt::{
    InterfaceStatus, VirtualMachineInstanceSpec, VirtualMachineInstanceStatus as Status, VolumeStatus,
};
use api::launch::{Accelerator, Cpu, Memory};
use api::launcher::{self, State};
use api::names::QEMU_ID;
use cluster::event::Type;
use virt::status::{self as words, condition, without};

use super::osinfo::{self, Abilities};
use super::plan::End;
use super::pod::Pod;
use crate::error::Error;

/// Condition: the guest's agent lacks commands that the platform needs.
const UNSUPPORTED: &str = "AgentVersionNotSupported";
/// Condition: the guest has its keys and passwords.
const CREDENTIALS: &str = "AccessCredentialsSynchronized";

/// The parameters of a guest's start.
#[derive(Clone, Debug)]
pub(crate) struct Started {
    /// Its machine type.
    pub(crate) machine: String,
    pub(crate) cpu: Cpu,
    pub(crate) memory: Memory,
    pub(crate) accelerator: Accelerator,
    /// The SELinux context of the launcher's files; `None`: it could not be read.
    pub(crate) selinux_context: Option<String>,
    /// Its interfaces, by their names in the spec.
    pub(crate) interfaces: Vec<InterfaceStatus>,
}

/// Facts about a running guest.
#[derive(Debug)]
pub(crate) struct Running<'a> {
    pub(crate) spec: &'a VirtualMachineInstanceSpec,
    pub(crate) seen: &'a launcher::Status,
    /// The parameters of its start; `None`: the status has them already.
    pub(crate) started: Option<&'a Started>,
    /// All of its interfaces, where they changed while it ran.
    pub(crate) attached: Option<&'a [InterfaceStatus]>,
    pub(crate) pod: &'a Pod,
    pub(crate) os: Option<&'a api::kubevirt::GuestOsInfo>,
    /// The agent's answer about interfaces.
    pub(crate) interfaces: Option<&'a str>,
    /// Commands that its agent has; `None`: that is not known now.
    pub(crate) abilities: Option<Abilities>,
    /// Whether the guest has its keys and passwords; `None`: that is not known now, or nothing is asked for.
    pub(crate) credentials: Option<&'a Result<(), String>>,
}

/// The status of a guest that runs, from the status that its object has.
pub(crate) fn running(before: &Status, known: &Running<'_>) -> Status {
    let mut status = before.clone();
    if let Some(started) = known.started {
        status.machine.get_or_insert_default().kind.clone_from(&started.machine);
        words::size(&mut status, &started.cpu, &started.memory);
        status.interfaces = started.interfaces.clone();
        status.runtime_user = Some(QEMU_ID);
        status.selinux_context.clone_from(&started.selinux_context);
        status.reason = None;
        for volume in &known.spec.volumes {
            if !status.volume_status.iter().any(|one| one.name == volume.name) {
                status
                    .volume_status
                    .push(VolumeStatus { name: volume.name.clone(), ..VolumeStatus::default() });
            }
        }
        without(&mut status.conditions, "Synchronized");
    }
    if let Some(attached) = known.attached {
        let named =
            |all: &[InterfaceStatus], one: &InterfaceStatus| all.iter().any(|other| other.name == one.name);
        for one in &mut status.interfaces {
            if let Some(new) = attached.iter().find(|new| new.name == one.name) {
                one.link_state.clone_from(&new.link_state);
            }
        }
        // Without a name: reported by the guest's agent alone.
        status.interfaces.retain(|one| one.name.is_none() || named(attached, one));
        let new = attached.iter().filter(|one| !named(&status.interfaces, one)).cloned().collect::<Vec<_>>();
        status.interfaces.extend(new);
        without(&mut status.conditions, "Synchronized");
    }
    let software =
        status.conditions.iter().any(|one| one.kind == "SoftwareEmulation" && one.status == "True");
    let accelerator = match known.started {
        Some(started) => started.accelerator,
        None if software => Accelerator::Tcg,
        None => Accelerator::Kvm,
    };
    let ready = status.conditions.iter().find(|one| one.kind == "Ready").cloned();
    words::doing(&mut status, known.seen, accelerator);
    migratable(&mut status, known.spec);
    match known.abilities.map(|abilities| abilities.lack(known.spec)) {
        Some(Some(why)) if known.seen.agent => condition(&mut status.conditions, UNSUPPORTED, true, why, ""),
        None if known.seen.agent => {}
        _ => without(&mut status.conditions, UNSUPPORTED),
    }
    status.conditions.retain(|one| one.kind != "Ready");
    status.conditions.extend(ready);
    self::ready(&mut status, known.pod, known.seen.state != State::Ended);
    match known.credentials {
        None => {}
        Some(Ok(())) => condition(&mut status.conditions, CREDENTIALS, true, "", ""),
        Some(Err(text)) => condition(&mut status.conditions, CREDENTIALS, false, "", text),
    }
    status.guest_os_info = known.os.cloned();
    status.fs_freeze_status = known.seen.frozen.then(|| "frozen".to_owned());
    if let Some(text) = known.interfaces {
        let masqueraded: Vec<String> = known
            .spec
            .domain
            .devices
            .interfaces
            .iter()
            .filter(|one| one.bridge.is_none())
            .map(|one| one.name.clone())
            .collect();
        if let Some(merged) = osinfo::merge(&status.interfaces, &masqueraded, text) {
            status.interfaces = merged;
        }
    }
    status
}

/// The event of interfaces that cannot be attached or detached.
pub(crate) fn interfaces_event(error: &Error) -> Option<(Type, &'static str, String)> {
    (!error.kind().is_awaited()).then(|| (Type::Warning, "NicHotplug", error.chain()))
}

/// The event of a change of whether the guest has its keys and passwords, as upstream.
pub(crate) fn credentials_event(before: &Status, after: &Status) -> Option<(Type, &'static str, String)> {
    let of = |status: &Status| status.conditions.iter().find(|one| one.kind == CREDENTIALS).cloned();
    let (before, after) = (of(before), of(after)?);
    if before.is_some_and(|before| before.status == after.status && before.message == after.message) {
        return None;
    }
    Some(match after.status.as_str() {
        "True" => {
            (Type::Normal, "AccessCredentialsSyncSuccess", "Access credentials sync successful.".to_owned())
        }
        _ => {
            let why = after.message.unwrap_or_default();
            let text = format!("Access credentials resulted in error: {why}");
            (Type::Warning, "AccessCredentialsSyncFailed", text)
        }
    })
}

/// Ready as the pod is, so that readiness probes show through; a paused guest is not ready.
fn ready(status: &mut Status, pod: &Pod, runs: bool) {
    let paused = words::holds(&status.conditions, "Paused").is_some();
    let ready = pod.ready.as_ref().map(|(status, reason, message)| (&status[..], &reason[..], &message[..]));
    let pod = words::pod::Pod { terminating: pod.deleting, ready };
    words::pod::ready(&mut status.conditions, Some(pod), runs, paused);
}

/// LiveMigratable and StorageLiveMigratable with upstream's reasons, in upstream's order. The second leaves out the disks: they
/// would move with the guest.
fn migratable(status: &mut Status, spec: &VirtualMachineInstanceSpec) {
    let pod_network = |name: &str| spec.networks.iter().any(|one| one.name == name && one.pod.is_some());
    let bridged =
        spec.domain.devices.interfaces.iter().any(|one| one.bridge.is_some() && pod_network(&one.name));
    let mut obstacles = Vec::new();
    if bridged {
        obstacles.push((
            "InterfaceNotLiveMigratable",
            "cannot migrate VMI which does not use masquerade, bridge with \
             kubevirt.io/allow-pod-bridge-network-live-migration VM annotation or a migratable plugin to connect to the pod \
             network"
                .to_owned(),
        ));
    }
    if let Some(device) = virt::host_devices::requested(spec).first() {
        let text = format!("cannot migrate VMI: {} is a device of the node", device.name);
        obstacles.push(("HostDeviceNotLiveMigratable", text));
    }
    let disks = spec.volumes.iter().find_map(virt::resolve::claim_of).map(|claim| {
        let text = format!(
            "cannot migrate VMI: PVC {claim} is not shared, live migration requires that all PVCs must be shared (using \
             ReadWriteMany access mode)"
        );
        ("DisksNotLiveMigratable", text)
    });
    let release = || ("MigrationNotSupported", "this release does not migrate guests".to_owned());
    let (reason, text) = obstacles.first().cloned().or(disks).unwrap_or_else(release);
    condition(&mut status.conditions, "LiveMigratable", false, reason, &text);
    obstacles.push(release());
    let all: Vec<String> = obstacles.iter().map(|(reason, text)| format!("{reason}: {text}")).collect();
    condition(&mut status.conditions, "StorageLiveMigratable", false, "NotMigratable", &all.join(", "));
}

/// The status of a guest that ended, and its event: whether it is a warning, reason, text.
pub(crate) fn ended(
    before: &Status,
    end: &End,
    deleting: bool,
) -> (Status, (bool, &'static str, &'static str)) {
    let mut status = before.clone();
    let failed = match end {
        End::Reported(exit) => exit.code != 0,
        End::Code(code) => *code != 0,
        End::Lost => !deleting,
        End::NeverStarted => false,
    };
    words::phase(&mut status, if failed { "Failed" } else { "Succeeded" });
    for kind in ["Paused", "AgentConnected", UNSUPPORTED, "LiveMigratable", "StorageLiveMigratable"] {
        without(&mut status.conditions, kind);
    }
    condition(&mut status.conditions, "Ready", false, "PodTerminating", "virt-launcher pod is terminating");
    status.guest_os_info = None;
    let event = match (end, failed) {
        (End::NeverStarted, _) => (false, "Deleted", "VirtualMachineInstance stopping"),
        (_, true) => (true, "Stopped", "The VirtualMachineInstance crashed."),
        (_, false) => (false, "Stopped", "The VirtualMachineInstance was shut down."),
    };
    (status, event)
}

/// The status of a guest that cannot be started (yet).
pub(crate) fn failing(before: &Status, reason: &str, text: &str) -> Status {
    let mut status = before.clone();
    condition(&mut status.conditions, "Synchronized", false, reason, text);
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::launcher::{Cause, Exit};
    use serde_json::json;

    fn launcher_status(state: State, agent: bool) -> launcher::Status {
        serde_json::from_value(json!({
            "state": state, "reason": null, "uid": "u", "exit": null, "agent": agent,
            "size": {"processors": 1, "memory": 64 << 20}, "targets": {"root": "vda"},
        }))
        .unwrap()
    }

    fn spec() -> VirtualMachineInstanceSpec {
        serde_json::from_value(json!({
            "domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}]}},
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [{"name": "root", "persistentVolumeClaim": {"claimName": "c"}}],
        }))
        .unwrap()
    }

    fn pod() -> Pod {
        Pod { ready: Some(("True".into(), String::new(), String::new())), ..Pod::default() }
    }

    fn started() -> Started {
        let cpu = json!({"sockets": 1, "maxSockets": 4, "cores": 1, "threads": 1, "model": "hostModel", "features": []});
        Started {
            machine: "pc-q35-7.2".into(),
            cpu: serde_json::from_value(cpu).unwrap(),
            memory: Memory { guest: 64 << 20, max_guest: 256 << 20, huge_page: None },
            accelerator: Accelerator::Tcg,
            selinux_context: Some("none".into()),
            interfaces: vec![InterfaceStatus { name: Some("default".into()), ..InterfaceStatus::default() }],
        }
    }

    fn of<'a>(status: &'a Status, kind: &str) -> Option<(&'a str, Option<&'a str>)> {
        let found = status.conditions.iter().find(|one| one.kind == kind)?;
        Some((&found.status, found.reason.as_deref()))
    }

    #[test]
    fn a_start_is_one_status_with_everything_in_it() {
        let (spec, pod, started) = (spec(), pod(), started());
        let before = Status { phase: Some("Scheduled".into()), ..Status::default() };
        let seen = launcher_status(State::Running, false);
        let mut known = Running {
            spec: &spec,
            seen: &seen,
            started: Some(&started),
            attached: None,
            pod: &pod,
            os: None,
            interfaces: None,
            abilities: None,
            credentials: None,
        };
        let status = running(&before, &known);
        assert_eq!(status.phase.as_deref(), Some("Running"));
        assert_eq!(status.machine.as_ref().unwrap().kind, "pc-q35-7.2");
        assert_eq!(status.selinux_context.as_deref(), Some("none"));
        assert_eq!(status.volume_status[0].target.0, "vda");
        assert_eq!(of(&status, "Ready"), Some(("True", None)));
        assert_eq!(of(&status, "SoftwareEmulation").unwrap().0, "True");
        assert_eq!(of(&status, "LiveMigratable"), Some(("False", Some("DisksNotLiveMigratable"))));
        assert_eq!(of(&status, "StorageLiveMigratable"), Some(("False", Some("NotMigratable"))));
        let of_storage = status.conditions.iter().find(|one| one.kind == "StorageLiveMigratable").unwrap();
        let text = "MigrationNotSupported: this release does not migrate guests";
        assert_eq!(of_storage.message.as_deref(), Some(text), "its disks would move with it");
        assert_eq!(status.phase_transition_timestamps.len(), 1);
        // The same facts later, as after an agent's restart, change nothing.
        known.started = None;
        assert_eq!(running(&status, &known), status);
    }

    #[test]
    fn interfaces_that_cannot_come_are_an_event_unless_it_is_awaited() {
        use crate::error::Kind;
        let of = |kind| interfaces_event(&Error::new(kind, "no bridge br1"));
        let (kind, reason, text) = of(Kind::System).unwrap();
        assert_eq!((kind, reason, text.as_str()), (Type::Warning, "NicHotplug", "no bridge br1"));
        assert!(of(Kind::Content).is_some());
        assert!(of(Kind::Launcher).is_none());
    }

    #[test]
    fn interfaces_that_come_and_go_are_in_the_status() {
        let (spec, pod, seen) = (spec(), pod(), launcher_status(State::Running, false));
        let named = |name: &str| InterfaceStatus { name: Some(name.into()), ..InterfaceStatus::default() };
        let reported = InterfaceStatus { interface_name: Some("eth9".into()), ..InterfaceStatus::default() };
        let mut before = Status { phase: Some("Running".into()), ..Status::default() };
        before.interfaces = vec![named("default"), named("old"), reported.clone()];
        let attached = [named("default"), named("new")];
        let known = Running {
            spec: &spec,
            seen: &seen,
            started: None,
            attached: Some(&attached),
            pod: &pod,
            os: None,
            interfaces: None,
            abilities: None,
            credentials: None,
        };
        let status = running(&before, &known);
        assert_eq!(status.interfaces, [named("default"), reported, named("new")]);
        assert_eq!(running(&status, &known), status);
    }

    #[test]
    fn credentials_are_a_condition_and_an_event_of_its_change() {
        let (spec, pod, seen) = (spec(), pod(), launcher_status(State::Running, true));
        let mut status = Status { phase: Some("Running".into()), ..Status::default() };
        let offline = Err("Guest agent is offline".to_owned());
        for (told, condition, event) in [
            (None, None, None),
            (
                Some(&offline),
                Some("False"),
                Some("Access credentials resulted in error: Guest agent is offline"),
            ),
            (Some(&offline), Some("False"), None),
            (Some(&Ok(())), Some("True"), Some("Access credentials sync successful.")),
            // As after the node agent's restart.
            (None, Some("True"), None),
        ] {
            let known = Running {
                spec: &spec,
                seen: &seen,
                started: None,
                attached: None,
                pod: &pod,
                os: None,
                interfaces: None,
                abilities: None,
                credentials: told,
            };
            let after = running(&status, &known);
            assert_eq!(of(&after, CREDENTIALS).map(|(status, _)| status), condition);
            let said = credentials_event(&status, &after).map(|(_, _, text)| text);
            assert_eq!(said.as_deref(), event);
            status = after;
        }
    }

    #[test]
    fn an_agent_that_lacks_commands_is_a_condition_while_it_is_connected() {
        let (spec, pod) = (spec(), pod());
        let lacking = osinfo::abilities(
            r#"{"return": {"supported_commands": [{"name": "guest-ping", "enabled": true}]}}"#,
        );
        assert!(lacking.is_some());
        let mut status = Status { phase: Some("Running".into()), ..Status::default() };
        for (agent, abilities, expected) in [
            (true, None, false),
            (true, lacking, true),
            // As after the node agent's restart.
            (true, None, true),
            (false, None, false),
        ] {
            let seen = launcher_status(State::Running, agent);
            let known = Running {
                spec: &spec,
                seen: &seen,
                started: None,
                attached: None,
                pod: &pod,
                os: None,
                interfaces: None,
                abilities,
                credentials: None,
            };
            status = running(&status, &known);
            let why = "This guest agent doesn't support required basic commands";
            assert_eq!(of(&status, UNSUPPORTED), expected.then_some(("True", Some(why))), "{agent}");
        }
    }

    #[test]
    fn a_paused_guest_is_not_ready() {
        let (spec, pod) = (spec(), pod());
        let seen = launcher_status(State::Paused, true);
        let known = Running {
            spec: &spec,
            seen: &seen,
            started: None,
            attached: None,
            pod: &pod,
            os: None,
            interfaces: None,
            abilities: None,
            credentials: None,
        };
        let status = running(&Status::default(), &known);
        assert_eq!(of(&status, "Paused"), Some(("True", Some("PausedByUser"))));
        assert_eq!(of(&status, "Ready"), Some(("False", Some("ReadinessGatesNotReady"))));
        assert_eq!(of(&status, "AgentConnected").unwrap().0, "True");
    }

    #[test]
    fn an_end_is_succeeded_or_failed_with_upstreams_event() {
        let exit = |cause: Cause| End::Reported(Exit { uid: "u".into(), cause, code: cause.code(), time: 1 });
        for (end, deleting, phase, text) in [
            (exit(Cause::Shutdown), false, "Succeeded", "The VirtualMachineInstance was shut down."),
            (exit(Cause::Killed), true, "Succeeded", "The VirtualMachineInstance was shut down."),
            (exit(Cause::Crashed), false, "Failed", "The VirtualMachineInstance crashed."),
            (End::Code(0), false, "Succeeded", "The VirtualMachineInstance was shut down."),
            (End::Code(137), false, "Failed", "The VirtualMachineInstance crashed."),
            (End::Lost, false, "Failed", "The VirtualMachineInstance crashed."),
            (End::Lost, true, "Succeeded", "The VirtualMachineInstance was shut down."),
            (End::NeverStarted, true, "Succeeded", "VirtualMachineInstance stopping"),
        ] {
            let (status, (warning, _, said)) = ended(&Status::default(), &end, deleting);
            assert_eq!((status.phase.as_deref(), said), (Some(phase), text), "{end:?}");
            assert_eq!(warning, phase == "Failed");
        }
    }
}
