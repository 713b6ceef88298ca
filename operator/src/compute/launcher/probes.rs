//! Probes of an instance as probes of its pod: what is run in the guest is run through virt-probe.

use serde_json::{Value, json};

/// Seconds that a probe has where none are given.
const TIMEOUT: u64 = 1;

/// The pod's probe for an instance's.
pub(super) fn probe(wanted: &Value, namespace: &str, name: &str) -> Value {
    let mut probe = wanted.clone();
    let Some(fields) = probe.as_object_mut() else { return probe };
    let domain = format!("{namespace}_{name}");
    let timeout = wanted.get("timeoutSeconds").and_then(Value::as_u64).unwrap_or(TIMEOUT).to_string();
    if fields.remove("guestAgentPing").is_some() {
        let command =
            json!(["virt-probe", "--guestAgentPing", "--domainName", domain, "--timeoutSeconds", timeout]);
        fields.insert("exec".to_owned(), json!({"command": command}));
        return probe;
    }
    let command = wanted.pointer("/exec/command").and_then(Value::as_array);
    if let Some([program, arguments @ ..]) = command.map(Vec::as_slice) {
        let mut command = vec![
            json!("virt-probe"),
            json!("--domainName"),
            json!(domain),
            json!("--timeoutSeconds"),
            json!(timeout),
            json!("--command"),
            program.clone(),
            json!("--"),
        ];
        command.extend(arguments.iter().cloned());
        fields.insert("exec".to_owned(), json!({"command": command}));
    }
    probe
}
