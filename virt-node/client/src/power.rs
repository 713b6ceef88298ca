//! Verbs that change what a machine does: start, stop, restart, pause, reset, migrate and the like. Each is one PUT, which
//! [`plan`] (pure) makes from the flags, and one message.

use cluster::{Delete, Key, Resource, Scope};
use serde_json::{Map, Value, json};

use crate::error::{Error, Kind, Result, failed, usage};
use crate::site::{MACHINES, Site, text};
use crate::target::{Target, TargetKind};

const MIGRATIONS: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstancemigrations");

/// A change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verb {
    /// Starts a machine, possibly with its processors stopped.
    Start { paused: bool },
    /// Stops a machine; with a grace period, under every run strategy.
    Stop { grace: Option<u64> },
    /// Stops and starts a machine.
    Restart { grace: Option<u64> },
    /// Stops the processors.
    Pause,
    /// Lets the processors run again.
    Unpause,
    /// Asks the guest to reboot.
    SoftReboot,
    /// Presses the reset button.
    Reset,
    /// Moves the guest to another node.
    Migrate { selector: Vec<(String, String)> },
    /// Takes back that the guest leaves its node.
    EvacuateCancel { node: Option<String> },
    /// Writes the guest's memory to a claim.
    DumpMemory { claim: Option<String> },
    /// Forgets the claim of a memory dump.
    ForgetDump,
}

/// The request and the messages of a verb.
#[derive(Debug, PartialEq)]
struct Plan {
    of: TargetKind,
    verb: &'static str,
    body: Option<Value>,
    said: String,
    failed: String,
}

fn plan(verb: &Verb, target: &Target, dry_run: bool) -> Plan {
    let name = &target.name;
    let mut options = Map::new();
    if dry_run {
        options.insert("dryRun".to_owned(), json!(["All"]));
    }
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            options.insert(key.to_owned(), value);
        }
    };
    let scheduled = |what: &str| format!("VM {name} was scheduled to {what}");
    let run = |what: &str| format!("VMI {name} was scheduled to {what}");
    let machine_failed = |doing: &str| format!("Error {doing} VirtualMachine");
    let run_failed = |doing: &str| format!("Error {doing} VirtualMachineInstance {name}");
    let (of, path, body, said, failed) = match verb {
        Verb::Start { paused } => {
            set("paused", paused.then_some(json!(true)));
            (TargetKind::Machine, "start", true, scheduled("start"), machine_failed("starting"))
        }
        Verb::Stop { grace } => {
            set("gracePeriod", grace.map(Value::from));
            (TargetKind::Machine, "stop", true, scheduled("stop"), machine_failed("stopping"))
        }
        Verb::Restart { grace } => {
            set("gracePeriodSeconds", grace.map(Value::from));
            (TargetKind::Machine, "restart", true, scheduled("restart"), machine_failed("restarting"))
        }
        Verb::Pause => (TargetKind::Instance, "pause", true, run("pause"), run_failed("pausing")),
        Verb::Unpause => (TargetKind::Instance, "unpause", true, run("unpause"), run_failed("unpausing")),
        Verb::SoftReboot => {
            (TargetKind::Instance, "softreboot", false, run("soft reboot"), run_failed("soft rebooting"))
        }
        Verb::Reset => (TargetKind::Instance, "reset", false, run("reset"), run_failed("resetting")),
        Verb::Migrate { selector } => {
            let labels: Map<String, Value> =
                selector.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
            set("addedNodeSelector", (!labels.is_empty()).then_some(Value::Object(labels)));
            (TargetKind::Machine, "migrate", true, scheduled("migrate"), machine_failed("migrating"))
        }
        Verb::EvacuateCancel { node } => {
            set("evacuationNodeName", node.clone().map(Value::from));
            let said = format!("VMI {name} was canceled evacuation");
            (target.kind, "evacuate/cancel", true, said, run_failed("canceling evacuation of"))
        }
        Verb::DumpMemory { claim } => {
            set("claimName", claim.clone().map(Value::from));
            let said = format!("Successfully submitted memory dump request of VMI {name}");
            (TargetKind::Machine, "memorydump", true, said, format!("error dumping vm memory {name}"))
        }
        Verb::ForgetDump => {
            let said = format!("Successfully submitted remove memory dump association of VM {name}");
            let failed = format!("error removing memory dump association of {name}");
            (TargetKind::Machine, "removememorydump", false, said, failed)
        }
    };
    Plan { of, verb: path, body: body.then_some(Value::Object(options)), said, failed }
}

/// Sends a verb.
///
/// # Errors
/// The API server refuses it.
pub(crate) async fn send(site: &Site, target: &Target, verb: &Verb, dry_run: bool) -> Result<String> {
    // As virtctl: a machine that does not exist is reported as such, not as a missing run.
    if matches!(verb, Verb::Pause | Verb::Unpause) && target.kind == TargetKind::Machine {
        let key = Key::new(site.namespace(target), &target.name);
        let what = format!("Error getting VirtualMachine {}", target.name);
        let _machine: Value = site.client.get(MACHINES, &key).await.map_err(failed(what))?;
    }
    let plan = plan(verb, target, dry_run);
    let path = site.verb(&Target { kind: plan.of, ..target.clone() }, plan.verb)?;
    site.put(&path, plan.body.as_ref()).await.map_err(failed(plan.failed))?;
    let dry = if dry_run { "Dry Run execution\n" } else { "" };
    Ok(format!("{dry}{}\n", plan.said))
}

/// `evacuate-cancel`, which needs to know the node.
///
/// # Errors
/// The run does not exist, or the API server refuses it.
pub(crate) async fn cancel_evacuation(site: &Site, target: &Target, dry_run: bool) -> Result<String> {
    let key = Key::new(site.namespace(target), &target.name);
    let what = format!("Error getting VirtualMachineInstance {}", target.name);
    let run: Value = site.client.get(crate::site::INSTANCES, &key).await.map_err(failed(what))?;
    let node = Some(text(&run, "/status/nodeName").to_owned()).filter(|node| !node.is_empty());
    send(site, target, &Verb::EvacuateCancel { node }, dry_run).await
}

/// `migrate-cancel`: deletes the migration that is under way.
///
/// # Errors
/// There is none, or the API server refuses it.
pub(crate) async fn cancel_migration(site: &Site, name: &str, dry_run: bool) -> Result<String> {
    let scope = Scope::all().namespace(&site.namespace).labels(&format!("kubevirt.io/vmi-name=={name}"));
    let migrations: Vec<Value> = site
        .client
        .list(MIGRATIONS, &scope)
        .await
        .map_err(failed(format!("Error fetching virtual machine instance migration list for {name}")))?;
    let moving = migrations.iter().find(|one| !matches!(text(one, "/status/phase"), "Succeeded" | "Failed"));
    let Some(moving) = moving else {
        let text = format!("Found no migration to cancel for {name}");
        return Err(Error::new(Kind::Refused, text));
    };
    if !dry_run {
        let key = Key::new(&site.namespace, text(moving, "/metadata/name"));
        let what = format!("Error canceling migration {} of {name}", key.name());
        site.client.delete(MIGRATIONS, &key, &Delete::default()).await.map_err(failed(what))?;
    }
    let dry = if dry_run { "Dry Run execution\n" } else { "" };
    Ok(format!("{dry}VM {name} was scheduled to migrate-cancel\n"))
}

/// The grace period that `--force` and `--grace-period` mean.
///
/// # Errors
/// A grace period without `--force`.
pub(crate) fn grace(force: bool, seconds: Option<u64>) -> Result<Option<u64>> {
    match (force, seconds) {
        (true, seconds) => Ok(Some(seconds.unwrap_or(0))),
        (false, None) => Ok(None),
        (false, Some(_)) => usage("Can not set gracePeriod without --force=true"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_send_what_virtctl_sends() {
        let machine = Target::machine("a");
        let table = [
            (Verb::Start { paused: false }, false, "start", Some(json!({}))),
            (Verb::Start { paused: true }, false, "start", Some(json!({"paused": true}))),
            (Verb::Start { paused: false }, true, "start", Some(json!({"dryRun": ["All"]}))),
            (Verb::Stop { grace: None }, false, "stop", Some(json!({}))),
            (Verb::Stop { grace: Some(0) }, false, "stop", Some(json!({"gracePeriod": 0}))),
            (Verb::Restart { grace: Some(0) }, false, "restart", Some(json!({"gracePeriodSeconds": 0}))),
            (Verb::Pause, true, "pause", Some(json!({"dryRun": ["All"]}))),
            (Verb::Unpause, false, "unpause", Some(json!({}))),
            (Verb::SoftReboot, false, "softreboot", None),
            (Verb::Reset, false, "reset", None),
            (
                Verb::Migrate { selector: vec![("zone".to_owned(), "b".to_owned())] },
                false,
                "migrate",
                Some(json!({"addedNodeSelector": {"zone": "b"}})),
            ),
            (
                Verb::EvacuateCancel { node: Some("n1".to_owned()) },
                false,
                "evacuate/cancel",
                Some(json!({"evacuationNodeName": "n1"})),
            ),
            (
                Verb::DumpMemory { claim: Some("c".to_owned()) },
                false,
                "memorydump",
                Some(json!({"claimName": "c"})),
            ),
            (Verb::ForgetDump, false, "removememorydump", None),
        ];
        for (verb, dry, path, body) in table {
            let plan = plan(&verb, &machine, dry);
            assert_eq!((plan.verb, plan.body), (path, body), "{verb:?}");
        }
    }

    #[test]
    fn messages_are_those_of_virtctl() {
        let said = |verb: Verb| plan(&verb, &Target::machine("a"), false).said;
        assert_eq!(said(Verb::Start { paused: false }), "VM a was scheduled to start");
        assert_eq!(said(Verb::Stop { grace: None }), "VM a was scheduled to stop");
        assert_eq!(said(Verb::Restart { grace: None }), "VM a was scheduled to restart");
        assert_eq!(said(Verb::Pause), "VMI a was scheduled to pause");
        assert_eq!(said(Verb::Unpause), "VMI a was scheduled to unpause");
        assert_eq!(said(Verb::SoftReboot), "VMI a was scheduled to soft reboot");
        assert_eq!(said(Verb::Reset), "VMI a was scheduled to reset");
        assert_eq!(said(Verb::Migrate { selector: Vec::new() }), "VM a was scheduled to migrate");
    }

    #[test]
    fn a_grace_period_needs_force() {
        assert_eq!(grace(false, None).unwrap(), None);
        assert_eq!(grace(true, None).unwrap(), Some(0));
        assert_eq!(grace(true, Some(5)).unwrap(), Some(5));
        assert_eq!(grace(false, Some(5)).unwrap_err().kind(), Kind::Usage);
    }
}
