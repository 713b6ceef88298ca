//! Subresources of VirtualMachineInstances: they are checked against its state here and answered by the agent of its node.

use std::sync::Arc;
use std::time::Duration;

use cluster::{Key, Resource};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use serve::route::{Call, text, with_type};
use serve::websocket::{self, KeepAlive, Messages};

use super::Site;
use super::access::Permission;
use super::options;
use super::status::{Answered, Refusal};

pub(super) const INSTANCES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstances");
/// How errors name it.
const KIND: &str = "virtualmachineinstance";
/// The subprotocol of all streams.
const PROTOCOL: &str = "plain.kubevirt.io";
/// Shutdown grace period of a guest without one in its spec, in seconds.
const GRACE_SECONDS: i64 = 30;
const JSON: &str = "application/json";
/// How long a client with a forwarded port may leave pings unanswered. Other streams have no such limit, as upstream: a
/// terminal that is suspended keeps its console.
const FORWARD_SILENCE: Duration = Duration::from_secs(60);

/// A subresource.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verb {
    /// The last part of its path.
    pub(super) name: &'static str,
    /// Bytes in both directions over a WebSocket.
    pub(super) stream: bool,
    /// GET; a change by PUT otherwise.
    pub(super) read: bool,
    /// Media type of the answer.
    media: &'static str,
    /// Required state of the instance.
    needs: Needs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needs {
    Running,
    /// Running with a serial console.
    Serial,
    /// Running with a graphics device.
    Screen,
    /// Running with USB redirection channels.
    Redirection,
    Unpaused,
    Paused,
    Guest,
    /// Unpaused, with something that can shut the guest down: its agent or ACPI.
    Reboot,
}

const fn stream(name: &'static str, needs: Needs) -> Verb {
    Verb { name, stream: true, read: true, media: JSON, needs }
}

const fn change(name: &'static str, needs: Needs) -> Verb {
    Verb { name, stream: false, read: false, media: JSON, needs }
}

const fn read(name: &'static str) -> Verb {
    Verb { name, stream: false, read: true, media: JSON, needs: Needs::Guest }
}

/// All but portforward, which has more parameters in its path.
pub(super) const VERBS: &[Verb] = &[
    stream("console", Needs::Serial),
    stream("vnc", Needs::Screen),
    stream("usbredir", Needs::Redirection),
    change("pause", Needs::Unpaused),
    change("unpause", Needs::Paused),
    change("softreboot", Needs::Reboot),
    change("reset", Needs::Running),
    // As upstream, the node answers for a guest without an agent.
    change("freeze", Needs::Running),
    change("unfreeze", Needs::Running),
    read("guestosinfo"),
    read("userlist"),
    read("filesystemlist"),
    Verb { name: "vnc/screenshot", stream: false, read: true, media: "image/png", needs: Needs::Screen },
];

impl Verb {
    pub(super) fn method(&self) -> Method {
        if self.read { Method::GET } else { Method::PUT }
    }
}

/// An instance, as far as it is decided on.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Instance {
    pub(super) metadata: Metadata,
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    domain: Domain,
    liveness_probe: Option<Probe>,
    termination_grace_period_seconds: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Probe {
    guest_agent_ping: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Domain {
    devices: Devices,
    features: Option<Features>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Devices {
    autoattach_serial_console: Option<bool>,
    autoattach_graphics_device: Option<bool>,
    client_passthrough: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Features {
    acpi: Option<Feature>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Feature {
    enabled: Option<bool>,
}

/// Options of a change.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    dry_run: Option<Vec<String>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct Metadata {
    pub(super) uid: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    phase: String,
    node_name: String,
    conditions: Vec<Condition>,
    interfaces: Vec<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
}

impl Instance {
    /// Whether it has ended with a failure.
    pub(super) fn has_failed(&self) -> bool {
        self.status.phase == "Failed"
    }

    /// Whether it has ended.
    pub(super) fn is_final(&self) -> bool {
        matches!(self.status.phase.as_str(), "Succeeded" | "Failed")
    }

    /// Seconds that its guest gets to shut down.
    pub(super) fn grace(&self) -> i64 {
        self.spec.termination_grace_period_seconds.unwrap_or(GRACE_SECONDS)
    }

    fn has(&self, condition: &str) -> bool {
        self.status.conditions.iter().any(|one| one.kind == condition && one.status == "True")
    }

    /// Why it cannot be asked for this now. Clients that wait for a console ask again at 400, and give up at 409.
    fn check(&self, name: &str, stream: bool, needs: Needs) -> Result<(), Refusal> {
        let refused = |why: &str| Err(Refusal::conflict(KIND, name, why));
        let devices = &self.spec.domain.devices;
        // As upstream, in every phase.
        if needs == Needs::Redirection && devices.client_passthrough.is_none() {
            return refused("Not configured with USB Redirection");
        }
        let phase = self.status.phase.as_str();
        if stream && phase == "Failed" {
            return refused("VMI is in failed status");
        }
        if phase != "Running" {
            return match stream {
                true => Err(Refusal::new(StatusCode::BAD_REQUEST, "VMI is not running")),
                false => refused("VMI is not running"),
            };
        }
        let bad = |why: &str| Err(Refusal::new(StatusCode::BAD_REQUEST, why));
        let acpi = self.spec.domain.features.as_ref().and_then(|features| features.acpi.as_ref());
        let acpi = acpi.is_none_or(|acpi| acpi.enabled != Some(false));
        let probe = self.spec.liveness_probe.as_ref();
        match needs {
            Needs::Serial if devices.autoattach_serial_console == Some(false) => {
                bad("No serial consoles are present.")
            }
            Needs::Screen if devices.autoattach_graphics_device == Some(false) => {
                bad("No graphics devices are present.")
            }
            Needs::Reboot if self.has("Paused") => refused("VMI is paused"),
            Needs::Reboot if !acpi && !self.has("AgentConnected") => {
                refused("VMI neither have the agent connected nor the ACPI feature enabled")
            }
            Needs::Unpaused if probe.is_some_and(|probe| probe.guest_agent_ping.is_none()) => {
                Err(Refusal::new(
                    StatusCode::FORBIDDEN,
                    "Pausing VMIs with a non-GuestAgentPing LivenessProbe is not supported",
                ))
            }
            Needs::Unpaused if self.has("Paused") => refused("VMI is already paused"),
            Needs::Paused if !self.has("Paused") => refused("VMI is not paused"),
            Needs::Guest if !self.has("AgentConnected") => refused("VMI does not have guest agent connected"),
            Needs::Running
            | Needs::Serial
            | Needs::Screen
            | Needs::Redirection
            | Needs::Unpaused
            | Needs::Paused
            | Needs::Guest
            | Needs::Reboot => Ok(()),
        }
    }

    /// Why no connection to a port of the guest can be made now.
    fn check_forward(&self, name: &str) -> Result<(), Refusal> {
        let phase = self.status.phase.as_str();
        if !matches!(phase, "Running" | "Scheduled") {
            let text = format!(
                "Unable to connect to VirtualMachineInstance because phase is {phase} instead of Running or Scheduled"
            );
            return Err(Refusal::conflict(KIND, name, &text));
        }
        if self.has("Paused") {
            return Err(Refusal::conflict(KIND, name, "VMI is paused"));
        }
        if self.status.interfaces.is_empty() {
            return Err(Refusal::new(StatusCode::BAD_REQUEST, "no network interfaces are present"));
        }
        Ok(())
    }
}

/// Answers a request.
pub(super) async fn handle(site: Arc<Site>, mut call: Call, verb: &'static Verb) -> Answered {
    let permission = site.gate.admit(&call, "virtualmachineinstances", verb.name).await?;
    let path = match call.head.uri.query() {
        Some(query) => format!("{}?{query}", verb.name),
        None => verb.name.to_owned(),
    };
    if verb.stream {
        let check = |instance: &Instance, name: &str| instance.check(name, true, verb.needs);
        let bytes = (Messages::Bytes, KeepAlive::default());
        return connect(site, &mut call, permission, &path, bytes, check).await;
    }
    let body = call.bytes(options::MOST_BODY).await?;
    let key = Key::new(call.parameter("namespace"), call.parameter("name"));
    let instance = ready(&site, &key, |instance, name| instance.check(name, false, verb.needs)).await?;
    if !verb.read && !body.is_empty() {
        let options: Options = options::parse(&body)?;
        if options.dry_run.is_some_and(|dry| !dry.is_empty()) {
            return Ok(text(StatusCode::OK, ""));
        }
    }
    let node = &instance.status.node_name;
    let (code, body) = site.agents.ask(node, verb.method(), &key, &path, body).await?;
    Ok(with_type(code, verb.media, body))
}

/// Forwards a connection to a port of the guest.
pub(super) async fn forward(site: Arc<Site>, mut call: Call, kind: &'static str) -> Answered {
    let permission = site.gate.admit(&call, kind, "portforward").await?;
    let bad = |why: &str| Refusal::new(StatusCode::BAD_REQUEST, why);
    let port = call.parameter("port").parse::<u16>().ok().filter(|port| *port > 0);
    let port = port.ok_or_else(|| bad("the port is not a number from 1 to 65535"))?;
    let (protocol, messages) = match call.parameter("protocol") {
        "" | "tcp" => ("tcp", Messages::Bytes),
        "udp" => ("udp", Messages::Datagrams),
        _ => return Err(bad("the protocol is neither tcp nor udp")),
    };
    let path = format!("portforward/{port}/{protocol}");
    let keep = KeepAlive { silence: Some(FORWARD_SILENCE), ..KeepAlive::default() };
    connect(site, &mut call, permission, &path, (messages, keep), Instance::check_forward).await
}

/// Connects a WebSocket with a stream of the agent, until the permission or the VM's run ends. The agent's
/// refusals are answered before the upgrade.
async fn connect(
    site: Arc<Site>,
    call: &mut Call,
    permission: Permission,
    path: &str,
    (messages, keep): (Messages, KeepAlive),
    check: impl Fn(&Instance, &str) -> Result<(), Refusal>,
) -> Answered {
    let key = Key::new(call.parameter("namespace"), call.parameter("name"));
    if !websocket::is_asked_for(call) {
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "this path needs a WebSocket request"));
    }
    let place = site.streams.enter(&permission.user.username, &key)?;
    let instance = ready(&site, &key, check).await?;
    let stream = site.agents.stream(&instance.status.node_name, &key, path).await?;
    let accepted = websocket::accept(call, &[PROTOCOL]);
    let (answer, pending) =
        accepted.map_err(|refusal| Refusal::new(refusal.status(), refusal.to_string()))?;
    tokio::spawn(async move {
        // A client that goes away before the answer arrives has no stream to end.
        let Ok((socket, _busy)) = pending.socket().await else { return };
        let over = site.over(&permission, &key, &instance.metadata.uid);
        if let Err(error) = websocket::pipe(socket, stream, messages, keep, over).await {
            tracing::debug!(%key, %error, "a stream broke");
        }
        drop(place);
    });
    Ok(answer)
}

/// An instance that can be asked.
async fn ready(
    site: &Site,
    key: &Key,
    check: impl Fn(&Instance, &str) -> Result<(), Refusal>,
) -> Result<Instance, Refusal> {
    let instance: Option<Instance> = site.client.find(INSTANCES, key).await?;
    let instance = instance.ok_or_else(|| Refusal::absent(KIND, key.name()))?;
    check(&instance, key.name())?;
    Ok(instance)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn devices_and_features_of_the_instance_decide_the_refusal() {
        let instance = |spec: Value, conditions: &[&str]| {
            let conditions: Vec<_> =
                conditions.iter().map(|name| json!({"type": name, "status": "True"})).collect();
            let status = json!({"phase": "Running", "conditions": conditions});
            serde_json::from_value::<Instance>(json!({"spec": spec, "status": status})).unwrap()
        };
        let said = |result: Result<(), Refusal>| {
            result.err().map(|refusal| {
                let (code, text) = refusal.code_and_message();
                (code, text.rsplit(": ").next().unwrap().to_owned())
            })
        };
        let devices = |field: &str| json!({"domain": {"devices": {field: false}}});
        let acpi = || json!({"domain": {"features": {"acpi": {"enabled": false}}}});
        for (spec, conditions, needs, code, text) in [
            (
                devices("autoattachSerialConsole"),
                &[][..],
                Needs::Serial,
                400,
                "No serial consoles are present.",
            ),
            (
                devices("autoattachGraphicsDevice"),
                &[][..],
                Needs::Screen,
                400,
                "No graphics devices are present.",
            ),
            (
                acpi(),
                &[][..],
                Needs::Reboot,
                409,
                "VMI neither have the agent connected nor the ACPI feature enabled",
            ),
            (json!({}), &["Paused"][..], Needs::Reboot, 409, "VMI is paused"),
            (json!({}), &[][..], Needs::Redirection, 409, "Not configured with USB Redirection"),
            (
                json!({"livenessProbe": {"tcpSocket": {"port": 1}}}),
                &[][..],
                Needs::Unpaused,
                403,
                "Pausing VMIs with a non-GuestAgentPing LivenessProbe is not supported",
            ),
        ] {
            let found = said(instance(spec, conditions).check("vm", false, needs));
            assert_eq!(found, Some((code, text.to_owned())));
        }
        for (spec, conditions, needs) in [
            (devices("autoattachGraphicsDevice"), &[][..], Needs::Serial),
            (json!({}), &[][..], Needs::Reboot),
            (acpi(), &["AgentConnected"][..], Needs::Reboot),
            (json!({"livenessProbe": {"guestAgentPing": {}}}), &[][..], Needs::Unpaused),
            (json!({"domain": {"devices": {"clientPassthrough": {}}}}), &[][..], Needs::Redirection),
        ] {
            assert_eq!(said(instance(spec, conditions).check("vm", false, needs)), None);
        }
        let none = instance(json!({}), &[]);
        assert_eq!(
            said(none.check_forward("vm")),
            Some((400, "no network interfaces are present".to_owned()))
        );
        let mut connected = instance(json!({}), &[]);
        connected.status.interfaces = vec![json!({"ipAddress": "10.0.0.1"})];
        for (phase, code) in
            [("Running", None), ("Scheduled", None), ("Scheduling", Some(409)), ("Failed", Some(409))]
        {
            connected.status.phase = phase.to_owned();
            assert_eq!(said(connected.check_forward("vm")).map(|(code, _)| code), code, "{phase}");
        }
    }

    #[test]
    fn freezes_are_refused_by_the_node_for_guests_without_an_agent() {
        let needs = |name: &str| VERBS.iter().find(|verb| verb.name == name).unwrap().needs;
        assert_eq!(["freeze", "unfreeze"].map(needs), [Needs::Running; 2]);
        assert_eq!(["guestosinfo", "userlist", "filesystemlist"].map(needs), [Needs::Guest; 3]);
    }

    #[test]
    fn state_of_the_instance_decides_the_refusal() {
        let instance = |phase: &str, conditions: &[&str]| {
            let conditions: Vec<_> =
                conditions.iter().map(|name| json!({"type": name, "status": "True"})).collect();
            serde_json::from_value::<Instance>(json!({"status": {"phase": phase, "conditions": conditions}}))
                .unwrap()
        };
        for (phase, conditions, stream, needs, expected) in [
            ("Running", &[][..], true, Needs::Running, None),
            ("Scheduling", &[][..], true, Needs::Running, Some((400, "VMI is not running"))),
            ("Failed", &[][..], true, Needs::Running, Some((409, "VMI is in failed status"))),
            (
                "Scheduling",
                &[][..],
                true,
                Needs::Redirection,
                Some((409, "Not configured with USB Redirection")),
            ),
            ("Scheduled", &[][..], false, Needs::Unpaused, Some((409, "VMI is not running"))),
            ("Running", &["Paused"][..], false, Needs::Unpaused, Some((409, "VMI is already paused"))),
            ("Running", &[][..], false, Needs::Paused, Some((409, "VMI is not paused"))),
            ("Running", &[][..], false, Needs::Guest, Some((409, "VMI does not have guest agent connected"))),
            ("Running", &["AgentConnected"][..], false, Needs::Guest, None),
        ] {
            let result = instance(phase, conditions).check("vm", stream, needs);
            let said = result.err().map(|refusal| {
                let (code, text) = refusal.code_and_message();
                (code, text.rsplit(": ").next().unwrap().to_owned())
            });
            assert_eq!(said, expected.map(|(code, text)| (code, text.to_owned())), "{phase} {conditions:?}");
        }
    }
}
