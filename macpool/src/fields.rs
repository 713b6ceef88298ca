//! The fields read from Kubernetes objects: raw JSON by paths. A part that is missing or of an unexpected shape counts as
//! absent, and causes no error.
//!
//! Not here: what follows from it ([`crate::review`], [`api::net::pool`]).

use jiff::Timestamp;
use serde_json::Value;

use api::net::Mac;
use api::net::pool::{Owner, Stamp, View};

/// Annotation of VirtualMachines: when the webhook last let a change pass, RFC 3339 with nanoseconds.
pub const STAMP: &str = "kubemacpool.io/transaction-timestamp";
/// Annotation of pods: the networks they are attached to (Network Plumbing Working Group's standard, 1.2).
pub const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// Annotation of pods: to what they were attached.
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";
/// Finalizer of releases before 0.20, which no component removes any more.
pub const LEGACY_FINALIZER: &str = "k8s.v1.cni.cncf.io/kubeMacPool";

/// Where an instance's specification is in a VirtualMachine.
pub const TEMPLATE: &str = "/spec/template/spec";
/// Where a specification of an instance has its interfaces.
pub const INTERFACES: &str = "/domain/devices/interfaces";

/// The address in an interface's specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address<'a> {
    /// Nothing.
    Blank,
    /// This text.
    Text(&'a str),
    /// Something that is no text.
    Strange,
}

/// One network interface of a guest.
#[derive(Clone, Copy, Debug)]
pub struct Interface<'a> {
    /// Its place in the list.
    pub index: usize,
    /// Its name, if it is an object with one.
    pub name: Option<&'a str>,
    /// Its address.
    pub address: Address<'a>,
    /// Whether its address is ours to give: it masquerades, or is on a network of Multus.
    pub managed: bool,
}

impl Interface<'_> {
    /// Its address, if it has a right one.
    pub fn mac(&self) -> Option<Mac> {
        match self.address {
            Address::Text(text) => Mac::parse(text),
            Address::Blank | Address::Strange => None,
        }
    }
}

/// The interfaces of an instance's specification; none where there is no list of them.
pub fn interfaces(specification: Option<&Value>) -> Vec<Interface<'_>> {
    let list = specification.and_then(|spec| spec.pointer(INTERFACES)).and_then(Value::as_array);
    let networks = specification.and_then(|spec| spec.get("networks")).and_then(Value::as_array);
    let given = |value: Option<&Value>| value.is_some_and(|value| !value.is_null());
    let on_multus = |name: &str| {
        let mut networks = networks.into_iter().flatten();
        networks.any(|network| text(network, "name") == Some(name) && given(network.get("multus")))
    };
    let read = |(index, one)| {
        let name = text(one, "name");
        let address = match one.get("macAddress") {
            None | Some(Value::Null) => Address::Blank,
            Some(Value::String(text)) if text.is_empty() => Address::Blank,
            Some(Value::String(text)) => Address::Text(text),
            Some(Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => Address::Strange,
        };
        // Only an object can be given an address.
        let managed = one.is_object() && (given(one.get("masquerade")) || name.is_some_and(on_multus));
        Interface { index, name, address, managed }
    };
    list.into_iter().flatten().enumerate().map(read).collect()
}

/// The networks of a pod's annotation, if it is a list in JSON.
pub fn networks(pod: &Value) -> Option<Vec<Value>> {
    serde_json::from_str(annotation(pod, NETWORKS)?).ok()
}

/// An annotation's text.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.get("metadata")?.get("annotations")?.get(key)?.as_str()
}

/// A text of an object's metadata that is not empty.
pub fn metadata<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    text(object.get("metadata")?, key)
}

fn text<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str().filter(|text| !text.is_empty())
}

/// The name of the instance that the pod belongs to.
pub fn guest_of(pod: &Value) -> Option<&str> {
    let owners = pod.pointer("/metadata/ownerReferences")?.as_array()?;
    owners.iter().find_map(|owner| {
        text(owner, "name").filter(|_| text(owner, "kind") == Some("VirtualMachineInstance"))
    })
}

/// Whether all of a pod's containers have ended for good: its network is gone, though the object may stay for long.
fn has_ended(pod: &Value) -> bool {
    let phase = pod.pointer("/status/phase").and_then(Value::as_str);
    phase.is_some_and(|phase| phase == "Succeeded" || phase == "Failed")
}

/// A time as a stamp; `None` before 1970 and after 2554.
pub fn stamp_of(text: &str) -> Option<Stamp> {
    Stamp::try_from(text.parse::<Timestamp>().ok()?.as_nanosecond()).ok()
}

/// A stamp as the annotation has it.
pub fn stamp_text(stamp: Stamp) -> String {
    Timestamp::from_nanosecond(stamp.into()).unwrap_or(Timestamp::MAX).to_string()
}

/// The facts about an existing object.
#[derive(Clone, Debug)]
pub struct ObservedObject {
    /// Its owner.
    pub owner: Owner,
    /// Up to which promise it is what was promised.
    pub stamp: Option<Stamp>,
    /// The prefix from which the API server generated its name.
    pub prefix: Option<Box<str>>,
    /// All addresses it names, managed or not; usable ones.
    pub macs: Vec<Mac>,
}

/// Reads an object; `None` for one without a name.
pub fn read(view: View, object: &Value) -> Option<ObservedObject> {
    let namespace = metadata(object, "namespace").unwrap_or_default();
    let mut owner = Owner::new(view, namespace, metadata(object, "name")?);
    let of_guest =
        |specification| interfaces(specification).iter().filter_map(Interface::mac).collect::<Vec<Mac>>();
    let (stamp, mut macs) = match view {
        View::Machine => (annotation(object, STAMP).and_then(stamp_of), of_guest(object.pointer(TEMPLATE))),
        View::Instance => (None, of_guest(object.get("spec"))),
        View::Pod => {
            owner.guest = guest_of(object).map(Into::into);
            let macs = if has_ended(object) { Vec::new() } else { networks(object).unwrap_or_default() };
            let macs = macs.iter().filter_map(|network| Mac::parse(text(network, "mac")?)).collect();
            // Whole seconds: a review in the same second came before it.
            let made = metadata(object, "creationTimestamp").and_then(stamp_of);
            (made.map(|made| made.saturating_add(1_000_000_000)), macs)
        }
    };
    macs.retain(|mac| mac.is_usable());
    let prefix = metadata(object, "generateName").map(Into::into);
    Some(ObservedObject { owner, stamp, prefix, macs })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn stamps_are_read_as_they_are_written() {
        for (stamp, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1_790_000_000_123_456_789, "2026-09-21T14:13:20.123456789Z"),
            (1_790_000_000_500_000_000, "2026-09-21T14:13:20.5Z"),
        ] {
            assert_eq!((stamp_text(stamp).as_str(), stamp_of(text)), (text, Some(stamp)));
        }
        // Upstream writes the zone of its machine.
        assert_eq!(stamp_of("2026-09-21T16:13:20.5+02:00"), Some(1_790_000_000_500_000_000));
        for wrong in ["", "now", "1969-12-31T23:59:59Z", "2026-09-21"] {
            assert_eq!(stamp_of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn strange_shapes_hold_nothing() {
        for strange in [
            json!(null),
            json!([]),
            json!({"metadata": {"name": "a"}}),
            json!({"metadata": {"name": "a"}, "spec": []}),
            json!({"metadata": {"name": "a"}, "spec": {"template": {"spec": {"domain": {"devices": []}}}}}),
            json!({"metadata": {"name": "a"}, "spec": {"template": {"spec": {"domain": {"devices": {
                "interfaces": ["x", 1, null, {"macAddress": 7}, {"macAddress": "x"}, {"macAddress": "01:00:00:00:00:00"}],
            }}}}}}),
        ] {
            assert!(read(View::Machine, &strange).is_none_or(|seen| seen.macs.is_empty()), "{strange}");
        }
        for networks in ["", "a,b", "{", "{}", "[1]", r#"[{"mac":1}]"#, r#"[{"mac":""}]"#] {
            let pod = json!({"metadata": {"name": "a", "annotations": {NETWORKS: networks}}});
            assert!(read(View::Pod, &pod).unwrap().macs.is_empty(), "{networks}");
        }
    }

    #[test]
    fn addresses_of_every_kind_of_object() {
        let domain = json!({"devices": {"interfaces": [
            {"name": "a", "bridge": {}, "macAddress": "0A:00:00:00:00:01"},
            {"name": "b", "masquerade": {}},
            {"name": "c", "sriov": {}, "macAddress": "0a-00-00-00-00-02"},
        ]}});
        let both = ["0a:00:00:00:00:01", "0a:00:00:00:00:02"].map(|text| Mac::parse(text).unwrap());
        let metadata = json!({"namespace": "n", "name": "v", "annotations": {STAMP: "1970-01-01T00:00:01Z"}});
        let machine = json!({"metadata": metadata, "spec": {"template": {"spec": {"domain": domain}}}});
        let found = read(View::Machine, &machine).unwrap();
        assert_eq!((found.macs, found.stamp), (both.to_vec(), Some(1_000_000_000)));
        let instance = json!({"metadata": {"namespace": "n", "name": "v"}, "spec": {"domain": domain}});
        let found = read(View::Instance, &instance).unwrap();
        assert_eq!((found.macs, found.owner), (both.to_vec(), Owner::new(View::Instance, "n", "v")));
        let pod = json!({"metadata": {
            "namespace": "n",
            "name": "virt-launcher-v-abc",
            "generateName": "virt-launcher-v-",
            "creationTimestamp": "1970-01-01T00:00:05Z",
            "ownerReferences": [{"kind": "X", "name": "x"}, {"kind": "VirtualMachineInstance", "name": "v"}],
            "annotations": {NETWORKS: r#"[{"name":"x","mac":"0a:00:00:00:00:01"},{"name":"y"}]"#},
        }});
        let found = read(View::Pod, &pod).unwrap();
        assert_eq!((found.macs, found.stamp), (both[..1].to_vec(), Some(6_000_000_000)));
        assert_eq!(
            (found.owner.guest.as_deref(), found.prefix.as_deref()),
            (Some("v"), Some("virt-launcher-v-"))
        );
        for (phase, count) in
            [("Pending", 1), ("Running", 1), ("Unknown", 1), ("Succeeded", 0), ("Failed", 0)]
        {
            let mut pod = pod.clone();
            pod["status"] = json!({"phase": phase});
            assert_eq!(read(View::Pod, &pod).unwrap().macs.len(), count, "{phase}");
        }
    }
}
