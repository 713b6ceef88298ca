//! `KubeVirt` and `CDI` without `HyperConverged`: the placement of pods, which their schemas do not check. Pure. Not here:
//! their deletion ([`super::uninstall`]).

use api::core::NodePlacement;
use cluster::review::{Answer, Request};
use serde::Deserialize;

use super::answer::{Cause, INVALID, refuse};
use crate::platform::hyperconverged::check;

/// Placements of `KubeVirt`.
pub(super) const KUBEVIRT: [&str; 2] = ["/spec/infra/nodePlacement", "/spec/workloads/nodePlacement"];
/// Placements of `CDI`.
pub(super) const CDI: [&str; 2] = ["/spec/infra", "/spec/workload"];

/// Judges a new object or an update by the placements at these pointers.
pub(super) fn validate(request: &Request, placements: [&str; 2]) -> Answer {
    if request.object["metadata"]["deletionTimestamp"].is_string() {
        return Answer::allow();
    }
    let problems = placements.into_iter().filter_map(|pointer| {
        // The schema refuses what is not of the type.
        let placement = NodePlacement::deserialize(request.object.pointer(pointer)?).ok()?;
        Some(check::placement(&placement, &pointer.trim_start_matches('/').replace('/', ".")))
    });
    let causes: Vec<Cause> = problems
        .flatten()
        .map(|check::Problem { field, text }| Cause {
            reason: INVALID,
            message: format!("{field}: {text}"),
            field,
        })
        .collect();
    if causes.is_empty() { Answer::allow() } else { refuse(&causes) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn response(placements: [&str; 2], object: Value) -> Value {
        validate(&Request { object, ..Request::default() }, placements).write("u")["response"].clone()
    }

    #[test]
    fn placements_follow_the_rules_of_hyper_converged() {
        let tolerates = |operator: &str| json!({"tolerations": [{"key": "a", "operator": operator}]});
        let kubevirt = |infra: Value, workloads: Value| json!({"spec": {"infra": {"nodePlacement": infra}, "workloads": {"nodePlacement": workloads}}});
        let cdi = |infra: Value, workload: Value| json!({"spec": {"infra": infra, "workload": workload}});
        for (object, placements, field) in [
            (kubevirt(tolerates("Same"), tolerates("Exists")), KUBEVIRT, "spec.infra.nodePlacement"),
            (kubevirt(json!({}), tolerates("Same")), KUBEVIRT, "spec.workloads.nodePlacement"),
            (cdi(tolerates("Same"), Value::Null), CDI, "spec.infra"),
            (cdi(tolerates("Equal"), tolerates("Same")), CDI, "spec.workload"),
        ] {
            let refused = response(placements, object.clone());
            let causes = refused["status"]["details"]["causes"].as_array().unwrap();
            assert_eq!(causes.len(), 1, "{object}");
            assert_eq!(causes[0]["field"], format!("{field}.tolerations[0].operator"));
            let mut gone = object;
            gone["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            assert_eq!(response(placements, gone)["allowed"], true, "finalizers can be removed");
        }
        for (object, placements) in [
            (json!({"spec": {}}), KUBEVIRT),
            (kubevirt(tolerates("Exists"), tolerates("Equal")), KUBEVIRT),
            (json!({"spec": {}}), CDI),
            (cdi(tolerates("Exists"), json!({"nodeSelector": {"disk": "fast"}})), CDI),
        ] {
            assert_eq!(response(placements, object.clone())["allowed"], true, "{object}");
        }
    }
}
