//! Refusals as the API server passes them on: a Status with one cause per field, and warnings.

use api::kubevirt::{PermittedHostDevices, VirtualMachineInstanceSpec};
use cluster::Status;
use cluster::review::Answer;
use serde::Deserialize;
use serde_json::{Value, json};
use virt::finding::{Finding, Verdict};

use super::settings::Permitted;

/// Most warnings of an answer.
const MOST_WARNINGS: usize = 20;
/// Longest warning in characters that is sure to arrive.
const LONGEST_WARNING: usize = 120;
/// Most causes of a refusal.
const MOST_CAUSES: usize = 20;

/// Why a value is refused, for programs.
pub(super) const INVALID: &str = "FieldValueInvalid";
/// Why a value that nothing else is wrong with is refused, for programs.
pub(super) const NOT_SUPPORTED: &str = "FieldValueNotSupported";

/// Why a reference to what does not exist is refused, for programs.
pub(super) const NOT_FOUND: &str = "FieldValueNotFound";

/// One cause of a refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Cause {
    /// [`INVALID`] or [`NOT_SUPPORTED`].
    pub(super) reason: &'static str,
    /// The field's path; empty for the object.
    pub(super) field: String,
    /// For people. A refusal's message is made of these.
    pub(super) message: String,
}

/// The devices, interfaces and dedicated CPUs of an instance's spec, whose path is `at`, that are not permitted. A spec that
/// cannot be read is refused by other rules.
pub(super) fn not_permitted(spec: &Value, at: &str, permitted: &Permitted) -> Vec<Cause> {
    let mut causes = devices_refused(spec, at, permitted.devices.as_ref());
    causes.extend(cpus_refused(spec, at));
    if !permitted.pod_bridges {
        causes.extend(pod_bridges(spec, at));
    }
    causes
}

/// Interfaces with a bridge on the pod network.
fn pod_bridges(spec: &Value, at: &str) -> Vec<Cause> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let networks = list(&spec["networks"]);
    let on_pod = |name: &Value| networks.iter().any(|one| one["name"] == *name && one["pod"].is_object());
    let refused = |index: usize| Cause {
        reason: INVALID,
        field: format!("{at}.domain.devices.interfaces[{index}].name"),
        message: "Bridge on pod network configuration is not enabled under kubevirt-config".to_owned(),
    };
    let interfaces = list(&spec["domain"]["devices"]["interfaces"]).into_iter().enumerate();
    let bridges = interfaces.filter(|(_, one)| one["bridge"].is_object() && on_pod(&one["name"]));
    bridges.map(|(index, _)| refused(index)).collect()
}

/// Devices of the host that a spec asks for and may not have.
fn devices_refused(spec: &Value, at: &str, permitted: Option<&PermittedHostDevices>) -> Vec<Cause> {
    let devices = &spec["domain"]["devices"];
    // Most ask for none, and their spec is not read a second time.
    if ["gpus", "hostDevices"].into_iter().all(|list| devices[list].as_array().is_none_or(Vec::is_empty)) {
        return Vec::new();
    }
    let Ok(spec) = VirtualMachineInstanceSpec::deserialize(spec) else { return Vec::new() };
    let refused = virt::host_devices::refused(&spec, permitted).into_iter();
    refused.map(|(path, message)| Cause { reason: INVALID, field: format!("{at}.{path}"), message }).collect()
}

/// Dedicated CPUs, and what comes with them, that a spec asks for in a way that upstream refuses.
fn cpus_refused(spec: &Value, at: &str) -> Vec<Cause> {
    let cpu = &spec["domain"]["cpu"];
    // Most ask for none of these, and their spec is not read a second time.
    if ["dedicatedCpuPlacement", "isolateEmulatorThread", "numa"]
        .into_iter()
        .all(|field| cpu[field].is_null())
    {
        return Vec::new();
    }
    let Ok(spec) = VirtualMachineInstanceSpec::deserialize(spec) else { return Vec::new() };
    let refused = virt::dedicated::refused(&spec, at).into_iter();
    refused.map(|(field, message)| Cause { reason: INVALID, field, message }).collect()
}

/// A refusal (422, Invalid).
pub(super) fn refuse(causes: &[Cause]) -> Answer {
    let (shown, rest) = causes.split_at(causes.len().min(MOST_CAUSES));
    let mut message = shown.iter().map(|cause| cause.message.as_str()).collect::<Vec<_>>().join(", ");
    if !rest.is_empty() {
        message.push_str(&format!(", and {} more", rest.len()));
    }
    let causes: Vec<_> = shown
        .iter()
        .map(|cause| {
            let mut object = json!({"reason": cause.reason, "message": cause.message});
            if !cause.field.is_empty() {
                object["field"] = json!(cause.field);
            }
            object
        })
        .collect();
    let details = json!({"causes": causes});
    Answer::status(Status { code: 422, reason: "Invalid".to_owned(), message, details })
}

/// Answer to findings: errors and unknown fields refuse, all others are warnings. `causes` refuse as well.
pub(super) fn judge(mut causes: Vec<Cause>, findings: &[Finding]) -> Answer {
    let mut warnings = Vec::new();
    for finding in findings {
        let text = match finding.path.as_str() {
            "" => finding.text.clone(),
            path => format!("{path}: {}", finding.text),
        };
        let reason = match finding.verdict {
            Verdict::Error => INVALID,
            Verdict::Unknown => NOT_SUPPORTED,
            Verdict::Unsupported | Verdict::Ignored => {
                warnings.push(text);
                continue;
            }
        };
        causes.push(Cause { reason, field: finding.path.clone(), message: text });
    }
    if causes.is_empty() { warn(Answer::allow(), &warnings) } else { refuse(&causes) }
}

/// Adds warnings, as many and as long as arrive.
fn warn(mut answer: Answer, warnings: &[String]) -> Answer {
    for warning in warnings.iter().take(MOST_WARNINGS) {
        answer = answer.warn(shortened(warning));
    }
    match warnings.len().saturating_sub(MOST_WARNINGS) {
        0 => answer,
        more => answer.warn(format!("and {more} more fields without effect")),
    }
}

fn shortened(text: &str) -> String {
    if text.chars().count() <= LONGEST_WARNING {
        return text.to_owned();
    }
    text.chars().take(LONGEST_WARNING - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn finding(path: &str, verdict: Verdict, text: &str) -> Finding {
        Finding { path: path.to_owned(), verdict, text: text.to_owned() }
    }

    #[test]
    fn errors_and_unknown_fields_refuse_and_the_rest_warns() {
        let error = finding("spec.a", Verdict::Error, "wrong");
        let unknown = finding("spec.b", Verdict::Unknown, "no such field");
        let unsupported = finding("spec.c", Verdict::Unsupported, "not supported yet");
        let response =
            judge(Vec::new(), &[error, unknown, unsupported.clone()]).write("u")["response"].clone();
        assert_eq!(response["status"]["message"], "spec.a: wrong, spec.b: no such field");
        assert_eq!(
            (&response["status"]["code"], &response["status"]["reason"]),
            (&json!(422), &json!("Invalid"))
        );
        assert_eq!(
            response["status"]["details"]["causes"],
            json!([
                {"reason": INVALID, "message": "spec.a: wrong", "field": "spec.a"},
                {"reason": NOT_SUPPORTED, "message": "spec.b: no such field", "field": "spec.b"},
            ])
        );
        let response = judge(Vec::new(), &[unsupported]).write("u")["response"].clone();
        assert_eq!(
            (&response["allowed"], &response["warnings"]),
            (&json!(true), &json!(["spec.c: not supported yet"]))
        );
    }

    #[test]
    fn bridges_on_the_pod_network_are_refused_where_they_are_not_permitted() {
        const MESSAGE: &str = "Bridge on pod network configuration is not enabled under kubevirt-config";
        let bridge = || json!({"name": "a", "bridge": {}});
        let spec = |interfaces: Value, networks: Value| json!({"domain": {"devices": {"interfaces": interfaces}}, "networks": networks});
        let pod = || json!({"name": "a", "pod": {}});
        let other = || json!({"name": "a", "multus": {"networkName": "n"}});
        for (spec, refused) in [
            (spec(json!([bridge()]), json!([pod()])), Some("at.domain.devices.interfaces[0].name")),
            (spec(json!([bridge()]), json!([other()])), None),
            (spec(json!([{"name": "a", "masquerade": {}}]), json!([pod()])), None),
            (
                spec(
                    json!([{"name": "b", "bridge": {}}, bridge()]),
                    json!([pod(), {"name": "b", "multus": {"networkName": "n"}}]),
                ),
                Some("at.domain.devices.interfaces[1].name"),
            ),
            (json!({"domain": {}}), None),
        ] {
            let cause =
                |field: &str| Cause { reason: INVALID, field: field.to_owned(), message: MESSAGE.to_owned() };
            let off = Permitted { pod_bridges: false, ..Permitted::default() };
            let expected: Vec<Cause> = refused.into_iter().map(cause).collect();
            assert_eq!(not_permitted(&spec, "at", &off), expected, "{spec}");
            assert_eq!(not_permitted(&spec, "at", &Permitted::default()), [], "{spec}");
        }
    }

    #[test]
    fn causes_and_warnings_are_bounded() {
        let many = |verdict| (0..50).map(|_| finding("p", verdict, &"ä".repeat(200))).collect::<Vec<_>>();
        let response = judge(Vec::new(), &many(Verdict::Ignored)).write("u")["response"].clone();
        let warnings = response["warnings"].as_array().unwrap();
        assert_eq!(warnings.len(), MOST_WARNINGS + 1);
        let longest = warnings.iter().filter_map(Value::as_str).map(|one| one.chars().count()).max();
        assert_eq!(longest, Some(LONGEST_WARNING));
        let response = judge(Vec::new(), &many(Verdict::Error)).write("u")["response"].clone();
        assert_eq!(response["status"]["details"]["causes"].as_array().unwrap().len(), MOST_CAUSES);
        assert!(response["status"]["message"].as_str().unwrap().ends_with(", and 30 more"));
    }
}
