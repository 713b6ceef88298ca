//! `virtualmachines/NAME/expand-spec` and `expand-vm-spec`: a VM with its instance type and preference written out. Nothing
//! is changed in the cluster.

use std::sync::Arc;

use api::kubevirt::VirtualMachine;
use cluster::{Key, Resource};
use http::StatusCode;
use serde::Deserialize;
use serde_json::Value;
use serve::route::{Call, json};
use virt::instancetype;

use super::Site;
use super::status::{Answered, Refusal};
use crate::flavor::{self, Unusable};

const MACHINES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");
/// How errors name it.
const KIND: &str = "virtualmachine";
/// Longest VM: the API server's limit for objects.
const MOST_BODY: usize = 3 << 20;

/// Expands a VM of the cluster.
pub(super) async fn stored(site: Arc<Site>, call: Call) -> Answered {
    site.gate.admit(&call, "virtualmachines", "expand-spec").await?;
    let (namespace, name) = (call.parameter("namespace"), call.parameter("name"));
    let machine: Option<Value> = site.client.find(MACHINES, &Key::new(namespace, name)).await?;
    let machine = machine.ok_or_else(|| Refusal::absent(KIND, name))?;
    expanded(&site, namespace, machine, StatusCode::INTERNAL_SERVER_ERROR).await
}

/// Expands the VM that a client sends.
pub(super) async fn sent(site: Arc<Site>, mut call: Call) -> Answered {
    site.gate.admit(&call, "expand-vm-spec", "").await?;
    let body = call.bytes(MOST_BODY).await?;
    let machine = parse(&body, call.parameter("namespace"))?;
    expanded(&site, call.parameter("namespace"), machine, StatusCode::BAD_REQUEST).await
}

/// The VM of a request.
fn parse(body: &[u8], namespace: &str) -> Result<Value, Refusal> {
    let bad = |text: String| Refusal::new(StatusCode::BAD_REQUEST, text);
    if body.is_empty() {
        return Err(bad("empty request body".to_owned()));
    }
    let machine: Value = serde_json::from_slice(body)
        .map_err(|error| bad(format!("the request's body is not a VirtualMachine: {error}")))?;
    if machine["kind"] != "VirtualMachine" {
        return Err(bad("Object is not a valid VirtualMachine".to_owned()));
    }
    match machine["metadata"]["namespace"].as_str() {
        None | Some("") => Ok(machine),
        Some(other) if other == namespace => Ok(machine),
        Some(other) => Err(bad(format!("VM namespace must be empty or {namespace}, not {other}"))),
    }
}

/// Answers with the expanded VM, or `failed` if it cannot be expanded.
async fn expanded(site: &Site, namespace: &str, mut object: Value, failed: StatusCode) -> Answered {
    let machine = VirtualMachine::deserialize(&object);
    let mut machine = machine
        .map_err(|error| Refusal::new(failed, format!("the VirtualMachine cannot be read: {error}")))?;
    instancetype::complete(&mut machine);
    let found = flavor::infer(&site.client, namespace, &mut machine).await;
    let found = match found {
        Ok(()) => flavor::flavor(&site.client, namespace, &machine).await,
        Err(error) => Err(error),
    };
    let flavor = found.map_err(|error| match error {
        Unusable::Failed(error) => Refusal::from(error),
        Unusable::Refused { text, .. } => Refusal::new(failed, text),
    })?;
    if flavor.is_empty() {
        return Ok(json(StatusCode::OK, object.to_string()));
    }
    instancetype::expand(&mut machine, &flavor).map_err(|conflicts| {
        let fields = conflicts.join(", ");
        Refusal::new(failed, format!("VM field(s) {fields} conflicts with selected instance type"))
    })?;
    let spec = serde_json::to_value(&machine.spec);
    object["spec"] = spec.map_err(|error| Refusal::new(failed, format!("cannot write the VM: {error}")))?;
    Ok(json(StatusCode::OK, object.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_machines_of_the_requested_namespace_are_expanded() {
        for (body, expected) in [
            ("", Some("empty request body")),
            ("{", Some("the request's body is not a VirtualMachine: ")),
            (r#"{"kind":"Pod"}"#, Some("Object is not a valid VirtualMachine")),
            (
                r#"{"kind":"VirtualMachine","metadata":{"namespace":"b"}}"#,
                Some("VM namespace must be empty or a, not b"),
            ),
            (r#"{"kind":"VirtualMachine","metadata":{"namespace":"a"}}"#, None),
            (r#"{"kind":"VirtualMachine"}"#, None),
        ] {
            let refused = parse(body.as_bytes(), "a").err();
            let text = refused.as_ref().map(|refusal| refusal.code_and_message().1);
            assert_eq!(text.is_some(), expected.is_some(), "{body}");
            assert!(text.unwrap_or_default().starts_with(expected.unwrap_or_default()), "{body}: {text:?}");
        }
    }
}
