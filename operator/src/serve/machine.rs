//! Subresources of VirtualMachines: start, stop, restart. What they change is decided by [`plan`] (pure) and written as a
//! JSON patch that tests what was decided on.

use std::sync::Arc;

use cluster::{Client, JsonPatch, Key, Resource};
use http::StatusCode;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use serve::route::{Call, text};

use super::Site;
use super::instance::{INSTANCES, Instance};
use super::options;
use super::status::{ATTEMPTS, Answered, Refusal};

const MACHINES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");
/// How errors name it.
const KIND: &str = "virtualmachine";

/// Requested operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Start,
    Stop,
    Restart,
}

/// All of them.
pub(super) const VERBS: &[Verb] = &[Verb::Start, Verb::Stop, Verb::Restart];

impl Verb {
    /// The last part of its path.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
        }
    }
}

/// A VirtualMachine, as far as it is decided on.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Machine {
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    running: Option<bool>,
    run_strategy: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    state_change_requests: Option<Value>,
    start_failure: Option<Value>,
}

/// Options of a request; virtctl sends some, kubectl none.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Options {
    paused: bool,
    grace_period: Option<i64>,
    grace_period_seconds: Option<i64>,
    dry_run: Option<Vec<String>>,
}

/// Changes that a request makes.
#[derive(Debug, PartialEq)]
struct Decision {
    /// Shorter time that the running guest gets to shut down, in seconds.
    grace: Option<i64>,
    /// Change of the VM; none where only the time is changed.
    change: Option<Change>,
}

/// A change of the spec or of the status.
#[derive(Debug, PartialEq)]
enum Change {
    Spec(JsonPatch),
    Status(JsonPatch),
}

/// Answers a request.
pub(super) async fn handle(site: Arc<Site>, mut call: Call, verb: Verb) -> Answered {
    site.gate.admit(&call, "virtualmachines", verb.name()).await?;
    let options: Options = options::read(&mut call).await?;
    let name = call.parameter("name");
    let key = Key::new(call.parameter("namespace"), name);
    for _ in 0..ATTEMPTS {
        let machine: Option<Machine> = site.client.find(MACHINES, &key).await?;
        let machine = machine.ok_or_else(|| Refusal::absent(KIND, name))?;
        let instance: Option<Instance> = site.client.find(INSTANCES, &key).await?;
        let decision = plan(verb, name, &machine, instance.as_ref(), &options)?;
        // Upstream sends the patch with dryRun; the decision is what it would show.
        let written = match options.dry_run.as_ref().is_some_and(|dry| !dry.is_empty()) {
            true => Ok(()),
            false => write(&site.client, &key, &decision, instance.as_ref()).await,
        };
        match written {
            Ok(()) => return Ok(text(StatusCode::ACCEPTED, "")),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(Refusal::raced(KIND, name))
}

/// Writes the decision; a conflict means that an object changed since.
async fn write(
    client: &Client,
    key: &Key,
    decision: &Decision,
    instance: Option<&Instance>,
) -> cluster::Result<()> {
    if let (Some(seconds), Some(instance)) = (decision.grace, instance) {
        let patch = JsonPatch::new()
            .test("/metadata/uid", &instance.metadata.uid)
            .add("/spec/terminationGracePeriodSeconds", seconds);
        client.json_patch::<IgnoredAny>(INSTANCES, key, &patch).await?;
    }
    let (resource, patch) = match &decision.change {
        None => return Ok(()),
        Some(Change::Spec(patch)) => (MACHINES, patch),
        Some(Change::Status(patch)) => (MACHINES.sub("status"), patch),
    };
    client.json_patch::<IgnoredAny>(resource, key, patch).await.map(drop)
}

/// Changes that a request makes, or the refusal.
fn plan(
    verb: Verb,
    name: &str,
    machine: &Machine,
    instance: Option<&Instance>,
    options: &Options,
) -> Result<Decision, Refusal> {
    let change = change(verb, name, machine, instance, options)?;
    let alive = instance.filter(|instance| !instance.is_final());
    let grace = match verb {
        Verb::Start => None,
        Verb::Stop => shorter(alive, options.grace_period),
        Verb::Restart => shorter(alive, options.grace_period_seconds),
    };
    Ok(Decision { grace, change })
}

/// The time that a request gives the guest to shut down, if that is shorter than its own.
fn shorter(alive: Option<&Instance>, asked: Option<i64>) -> Option<i64> {
    asked.filter(|seconds| *seconds >= 0 && alive.is_some_and(|instance| *seconds < instance.grace()))
}

fn change(
    verb: Verb,
    name: &str,
    machine: &Machine,
    instance: Option<&Instance>,
    options: &Options,
) -> Result<Option<Change>, Refusal> {
    let refused = |why: &str| Err(Refusal::conflict(KIND, name, why));
    let strategy = match (&machine.spec.run_strategy, machine.spec.running) {
        (Some(strategy), _) => strategy.as_str(),
        (None, Some(true)) => "Always",
        (None, _) => "Halted",
    };
    let alive = instance.filter(|instance| !instance.is_final());
    match (verb, strategy) {
        (Verb::Start, _) if alive.is_some() => refused("VM is already running"),
        (Verb::Start, "Halted") if !options.paused => Ok(Some(run(machine, "Always"))),
        (Verb::Start, "RerunOnFailure") if instance.is_some_and(Instance::has_failed) => {
            refused("RerunOnFailure does not support starting VM from failed state")
        }
        (Verb::Start, "Halted" | "Manual" | "RerunOnFailure") => {
            let data = if options.paused { json!({"paused": "true"}) } else { Value::Null };
            let mut request = json!({"action": "Start"});
            if options.paused {
                request["data"] = data;
            }
            request_changes(name, machine, instance, json!([request])).map(Some)
        }
        (Verb::Start, _) => refused(&format!("{strategy} does not support manual start requests")),
        (Verb::Stop, "Halted") if alive.is_none() => refused("VM is not running"),
        // It is being stopped already; it can only be stopped sooner.
        (Verb::Stop, "Halted") => match shorter(alive, options.grace_period) {
            Some(_) => Ok(None),
            None => refused("Halted only supports manual stop requests with a shorter graceperiod"),
        },
        (Verb::Stop, "Always" | "Once") => Ok(Some(run(machine, "Halted"))),
        (Verb::Stop, _) => match alive {
            None => refused("VM is not running"),
            Some(alive) => request_changes(
                name,
                machine,
                instance,
                json!([{"action": "Stop", "uid": alive.metadata.uid}]),
            )
            .map(Some),
        },
        (Verb::Restart, _) => restart(name, machine, instance, strategy, options).map(Some),
    }
}

/// The requests of a restart. An instance that ended is replaced, too.
fn restart(
    name: &str,
    machine: &Machine,
    instance: Option<&Instance>,
    strategy: &str,
    options: &Options,
) -> Result<Change, Refusal> {
    let refused = |why: &str| Err(Refusal::conflict(KIND, name, why));
    let bad = |why: &str| Err(Refusal::new(StatusCode::BAD_REQUEST, why));
    match options.grace_period_seconds {
        Some(seconds) if seconds > 0 => {
            return bad("For force restart, only gracePeriod=0 is supported for now");
        }
        Some(seconds) if seconds < 0 => return bad("gracePeriod has to be greater or equal to 0"),
        Some(_) | None => {}
    }
    if matches!(strategy, "Halted" | "Once") {
        // Clients match upstream's spelling.
        return refused(&format!("RunStategy {strategy} does not support manual restart requests"));
    }
    let Some(instance) = instance else { return refused("VM is not running: Halted") };
    let stop = json!({"action": "Stop", "uid": instance.metadata.uid});
    request_changes(name, machine, Some(instance), json!([stop, {"action": "Start"}]))
}

/// The spec with another run strategy, by the field that it uses.
fn run(machine: &Machine, strategy: &str) -> Change {
    let patch = JsonPatch::new();
    Change::Spec(match (machine.spec.running, &machine.spec.run_strategy) {
        (Some(running), None) => {
            patch.test("/spec/running", running).replace("/spec/running", strategy == "Always")
        }
        (_, before) => patch.test("/spec/runStrategy", before).add("/spec/runStrategy", strategy),
    })
}

/// The status with these requests, if no other one waits; a stop replaces those that wait. Failed starts are forgotten: the
/// next one does not wait for the end of a back-off.
fn request_changes(
    name: &str,
    machine: &Machine,
    instance: Option<&Instance>,
    requests: Value,
) -> Result<Change, Refusal> {
    let before = machine.status.state_change_requests.as_ref();
    let waiting = before.and_then(Value::as_array).is_some_and(|waiting| !waiting.is_empty());
    // A request to start may follow the stop of an instance that is ending.
    let ending = instance.is_some_and(Instance::is_final);
    let stops = requests.as_array().is_some_and(|all| all.iter().all(|one| one["action"] == "Stop"));
    if waiting && !ending && !stops {
        let text = "unable to complete request: stop/start already underway";
        return Err(Refusal::conflict(KIND, name, text));
    }
    let path = "/status/stateChangeRequests";
    let patch = JsonPatch::new().test(path, before).add(path, requests);
    Ok(Change::Status(match machine.status.start_failure {
        Some(_) => patch.remove("/status/startFailure"),
        None => patch,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(
        verb: Verb,
        machine: Value,
        phase: Option<&str>,
        options: Value,
    ) -> Result<Value, (u16, String)> {
        let machine: Machine = serde_json::from_value(machine).unwrap();
        let instance = phase.map(|phase| {
            let object = json!({"metadata": {"name": "vm", "uid": "u1"}, "status": {"phase": phase}});
            serde_json::from_value::<Instance>(object).unwrap()
        });
        let options = serde_json::from_value(options).unwrap();
        match plan(verb, "vm", &machine, instance.as_ref(), &options) {
            Ok(Decision { change: Some(Change::Spec(patch) | Change::Status(patch)), .. }) => {
                Ok(json!(patch.operations().last()))
            }
            Ok(Decision { grace, change: None }) => Ok(json!({"grace": grace})),
            Err(refusal) => {
                let (code, text) = refusal.code_and_message();
                let why = text.split_once("\"vm\": ").map_or(text, |(_, why)| why);
                Err((code, why.to_owned()))
            }
        }
    }

    #[test]
    fn run_strategies_decide_what_start_stop_and_restart_change() {
        let strategy = |name: &str| json!({"spec": {"runStrategy": name}});
        let set = |name: &str| Ok(json!({"op": "add", "path": "/spec/runStrategy", "value": name}));
        let ask =
            |value: Value| Ok(json!({"op": "add", "path": "/status/stateChangeRequests", "value": value}));
        let no = |code: u16, text: &str| Err((code, text.to_owned()));
        let stop = json!({"action": "Stop", "uid": "u1"});
        let running = Some("Running");
        for (verb, machine, phase, options, expected) in [
            (Verb::Start, strategy("Halted"), None, json!({}), set("Always")),
            (Verb::Start, strategy("Halted"), Some("Succeeded"), json!({}), set("Always")),
            (Verb::Start, strategy("Halted"), running, json!({}), no(409, "VM is already running")),
            (Verb::Start, strategy("Manual"), None, json!({}), ask(json!([{"action": "Start"}]))),
            (
                Verb::Start,
                strategy("Halted"),
                None,
                json!({"paused": true}),
                ask(json!([{"action": "Start", "data": {"paused": "true"}}])),
            ),
            (
                Verb::Start,
                strategy("Always"),
                None,
                json!({}),
                no(409, "Always does not support manual start requests"),
            ),
            (Verb::Stop, strategy("Always"), running, json!({}), set("Halted")),
            (Verb::Stop, strategy("Once"), running, json!({}), set("Halted")),
            (Verb::Stop, strategy("Halted"), None, json!({}), no(409, "VM is not running")),
            (
                Verb::Stop,
                strategy("Halted"),
                running,
                json!({"gracePeriod": 60}),
                no(409, "Halted only supports manual stop requests with a shorter graceperiod"),
            ),
            (Verb::Stop, strategy("Halted"), running, json!({"gracePeriod": 0}), Ok(json!({"grace": 0}))),
            (Verb::Stop, strategy("Manual"), None, json!({}), no(409, "VM is not running")),
            (Verb::Stop, strategy("RerunOnFailure"), running, json!({}), ask(json!([stop]))),
            (Verb::Restart, strategy("Always"), running, json!({}), ask(json!([stop, {"action": "Start"}]))),
            (Verb::Restart, strategy("Always"), None, json!({}), no(409, "VM is not running: Halted")),
            (
                Verb::Restart,
                strategy("Manual"),
                Some("Succeeded"),
                json!({}),
                ask(json!([stop, {"action": "Start"}])),
            ),
            (
                Verb::Restart,
                strategy("Halted"),
                None,
                json!({}),
                no(409, "RunStategy Halted does not support manual restart requests"),
            ),
            (
                Verb::Restart,
                strategy("Halted"),
                None,
                json!({"gracePeriodSeconds": 5}),
                no(400, "For force restart, only gracePeriod=0 is supported for now"),
            ),
            (
                Verb::Restart,
                strategy("Always"),
                running,
                json!({"gracePeriodSeconds": -1}),
                no(400, "gracePeriod has to be greater or equal to 0"),
            ),
            (
                Verb::Start,
                strategy("RerunOnFailure"),
                Some("Failed"),
                json!({}),
                no(409, "RerunOnFailure does not support starting VM from failed state"),
            ),
            (
                Verb::Start,
                strategy("RerunOnFailure"),
                Some("Succeeded"),
                json!({}),
                ask(json!([{"action": "Start"}])),
            ),
        ] {
            let shown = format!("{verb:?} {machine} {phase:?}");
            assert_eq!(decided(verb, machine, phase, options), expected, "{shown}");
        }
        let forced = |verb: Verb, options: Value| {
            let machine = serde_json::from_value(strategy("Manual")).unwrap();
            let object = json!({"metadata": {"uid": "u"}, "spec": {"terminationGracePeriodSeconds": 20},
                "status": {"phase": "Running"}});
            let instance: Instance = serde_json::from_value(object).unwrap();
            plan(verb, "vm", &machine, Some(&instance), &serde_json::from_value(options).unwrap())
                .unwrap()
                .grace
        };
        assert_eq!(forced(Verb::Stop, json!({"gracePeriod": 5})), Some(5));
        assert_eq!(forced(Verb::Stop, json!({"gracePeriod": 25})), None, "it is not lengthened");
        assert_eq!(forced(Verb::Restart, json!({"gracePeriodSeconds": 0})), Some(0));
        let old = decided(Verb::Start, json!({"spec": {"running": false}}), None, json!({})).unwrap();
        assert_eq!(old, json!({"op": "replace", "path": "/spec/running", "value": true}));
    }

    #[test]
    fn a_stop_replaces_waiting_requests_and_others_are_refused() {
        let waiting = |requests: Value| {
            let status = json!({"stateChangeRequests": requests});
            json!({"spec": {"runStrategy": "Manual"}, "status": status})
        };
        let underway = Err((409, "unable to complete request: stop/start already underway".to_owned()));
        let (start, stop) = (json!({"action": "Start"}), json!({"action": "Stop", "uid": "u1"}));
        let replaced = json!({"op": "add", "path": "/status/stateChangeRequests", "value": [stop]});
        let running = Some("Running");
        let restarting = || waiting(json!([stop, start]));
        assert_eq!(decided(Verb::Start, waiting(json!([stop])), None, json!({})), underway);
        assert_eq!(decided(Verb::Restart, restarting(), running, json!({})), underway);
        assert_eq!(decided(Verb::Stop, restarting(), running, json!({})), Ok(replaced));
    }

    #[test]
    fn requests_forget_failed_starts() {
        let failure = json!({"consecutiveFailCount": 4});
        let failing = json!({"spec": {"runStrategy": "RerunOnFailure"}, "status": {"startFailure": failure}});
        let removed = json!({"op": "remove", "path": "/status/startFailure"});
        for (verb, phase) in
            [(Verb::Start, None), (Verb::Stop, Some("Pending")), (Verb::Restart, Some("Pending"))]
        {
            assert_eq!(decided(verb, failing.clone(), phase, json!({})).as_ref(), Ok(&removed), "{verb:?}");
        }
    }
}
