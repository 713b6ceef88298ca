//! VirtualMachineInstanceReplicaSets and VirtualMachinePools: their templates by the rules of what is made of them, and
//! their selectors. Pure.

use api::core::LabelSelector;
use cluster::review::{Answer, Request};
use serde::Deserialize;
use serde_json::{Value, json};
use virt::finding::Finding;
use virt::instancetype::Flavor;

use super::answer::{self, Cause, INVALID};
use super::settings::Permitted;
use super::{instance, machine};
use crate::view::{selector_problem, selects};

/// Path of a pool's template.
const TEMPLATE: &str = "spec.virtualMachineTemplate";

/// Refuses a replica set with an invalid template, or with a selector that does not match the template's labels.
pub(super) fn validate_set(request: &Request, own: bool, permitted: &Permitted) -> Answer {
    if own || machine::is_settled(request) {
        return Answer::allow();
    }
    let (object, template) = (&request.object, &request.object["spec"]["template"]);
    let (causes, findings) = instance::check(&made("VirtualMachineInstance", object, template), permitted);
    let (mut causes, findings) = moved(causes, findings, "spec.template");
    causes.extend(mismatch(&object["spec"]["selector"], template));
    answer::judge(causes, &findings)
}

/// Refuses a pool with an invalid template, with a selector that does not match the template's labels, or with another
/// selector than before. `member`: a VM of the pool, with its references completed; `flavor`: its instance type and
/// preference. `None`: one of them does not exist yet, and the webhook of VMs checks each member when it is created.
pub(super) fn validate_pool(
    request: &Request,
    own: bool,
    member: &Value,
    flavor: Option<&Flavor>,
    permitted: &Permitted,
) -> Answer {
    if own || machine::is_settled(request) {
        return Answer::allow();
    }
    let object = &request.object;
    let checked = flavor.map(|flavor| machine::check(member, flavor, permitted));
    let (causes, findings) = match checked {
        Some(Ok(wrong)) => wrong,
        Some(Err(conflict)) => (vec![conflict], Vec::new()),
        None => (Vec::new(), Vec::new()),
    };
    let (mut causes, findings) = moved(causes, findings, TEMPLATE);
    let selector = &object["spec"]["selector"];
    causes.extend(mismatch(selector, &object["spec"]["virtualMachineTemplate"]));
    if request.operation == "UPDATE" && *selector != request.old_object["spec"]["selector"] {
        causes.push(of_selector("selector is immutable after creation.".to_owned()));
    }
    answer::judge(causes, &findings)
}

/// A VM of a pool, as far as rules need it.
pub(super) fn member(pool: &Value) -> Value {
    made("VirtualMachine", pool, &pool["spec"]["virtualMachineTemplate"])
}

/// The object of a kind that a template of a set gives.
fn made(kind: &str, set: &Value, template: &Value) -> Value {
    let mut metadata = json!({});
    for (from, field) in [(set, "name"), (set, "namespace"), (template, "labels"), (template, "annotations")]
    {
        if let Some(value) = from["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    json!({"apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": metadata, "spec": template["spec"]})
}

/// Causes and findings about what is made of a template, at the paths of the template. Names are the set's own.
fn moved(mut causes: Vec<Cause>, mut findings: Vec<Finding>, template: &str) -> (Vec<Cause>, Vec<Finding>) {
    let at = |path: &str| match path {
        "" => template.to_owned(),
        "metadata.name" | "metadata.namespace" => path.to_owned(),
        _ => format!("{template}.{path}"),
    };
    for cause in &mut causes {
        cause.field = cause.field.split(", ").map(at).collect::<Vec<_>>().join(", ");
    }
    for finding in &mut findings {
        finding.path = at(&finding.path);
    }
    (causes, findings)
}

/// The refusal of a selector that is wrong, or does not select what is made of the template.
fn mismatch(selector: &Value, template: &Value) -> Option<Cause> {
    // One that cannot be read is refused by the schema.
    let selector = LabelSelector::deserialize(selector).ok()?;
    let label = |name: &str| template["metadata"]["labels"].get(name)?.as_str();
    let problem = selector_problem(&selector);
    let problem = problem
        .or_else(|| (!selects(&selector, label)).then(|| "selector does not match labels.".to_owned()));
    problem.map(of_selector)
}

fn of_selector(message: String) -> Cause {
    Cause { reason: INVALID, field: "spec.selector".to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guest() -> Value {
        json!({"domain": {"memory": {"guest": "1Gi"}, "devices": {}}})
    }

    fn set(labels: &Value, spec: &Value) -> Value {
        json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet",
            "metadata": {"name": "web", "namespace": "n"},
            "spec": {"selector": {"matchLabels": {"app": "web"}},
                "template": {"metadata": {"labels": labels}, "spec": spec}}})
    }

    fn pool(labels: &Value, spec: &Value) -> Value {
        json!({"apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool",
            "metadata": {"name": "web", "namespace": "n"},
            "spec": {"selector": {"matchLabels": {"app": "web"}},
                "virtualMachineTemplate": {"metadata": {"labels": labels},
                    "spec": {"runStrategy": "Always", "template": {"spec": spec}}}}})
    }

    fn request(operation: &str, object: &Value, old: &Value) -> Request {
        Request {
            operation: operation.into(),
            object: object.clone(),
            old_object: old.clone(),
            ..Request::default()
        }
    }

    /// Fields and messages of a refusal.
    fn refused(answer: &Answer) -> Vec<(String, String)> {
        let response = answer.write("u")["response"].clone();
        let causes = response["status"]["details"]["causes"].as_array().cloned().unwrap_or_default();
        let text = |cause: &Value, field: &str| cause[field].as_str().unwrap_or_default().to_owned();
        causes.iter().map(|cause| (text(cause, "field"), text(cause, "message"))).collect()
    }

    fn of_set(operation: &str, object: &Value, old: &Value) -> Vec<(String, String)> {
        refused(&validate_set(&request(operation, object, old), false, &Permitted::default()))
    }

    fn of_pool(operation: &str, object: &Value, old: &Value) -> Vec<(String, String)> {
        let (request, flavor) = (request(operation, object, old), Flavor::default());
        refused(&pool_answer(&request, false, Some(&flavor)))
    }

    fn pool_answer(request: &Request, own: bool, flavor: Option<&Flavor>) -> Answer {
        let permitted = Permitted::default();
        validate_pool(request, own, &member(&request.object), flavor, &permitted)
    }

    #[test]
    fn templates_are_refused_by_their_own_path() {
        let (web, none) = (json!({"app": "web"}), Value::Null);
        let mut unbacked = guest();
        unbacked["domain"]["devices"]["disks"] = json!([{"name": "testdisk", "disk": {}}]);
        let reserved = json!({"app": "web", "kubevirt.io/nodeName": "n"});
        let disk = "domain.devices.disks[0]";
        assert_eq!(of_set("CREATE", &set(&web, &guest()), &none), []);
        assert_eq!(of_pool("CREATE", &pool(&web, &guest()), &none), []);
        for (found, path) in [
            (of_set("CREATE", &set(&web, &unbacked), &none), format!("spec.template.spec.{disk}")),
            (
                of_pool("CREATE", &pool(&web, &unbacked), &none),
                format!("spec.virtualMachineTemplate.spec.template.spec.{disk}"),
            ),
            (of_set("CREATE", &set(&reserved, &guest()), &none), "spec.template.metadata.labels".to_owned()),
        ] {
            assert!(matches!(&found[..], [(field, _)] if field.starts_with(&path)), "{path}: {found:?}");
        }
        let mut stopped = pool(&web, &guest());
        stopped["spec"]["virtualMachineTemplate"]["spec"]["runStrategy"] = json!("Sometimes");
        let found = of_pool("CREATE", &stopped, &none);
        assert_eq!(found[0].0, "spec.virtualMachineTemplate.spec.runStrategy");
        // The flavor that would complete it does not exist yet.
        let later = request("CREATE", &stopped, &none);
        assert_eq!(refused(&pool_answer(&later, false, None)), []);
        // Own writes, and changes that keep the spec.
        assert!(pool_answer(&later, true, Some(&Flavor::default())).is_allowed());
        assert_eq!(of_pool("UPDATE", &stopped, &stopped), []);
    }

    #[test]
    fn selectors_have_to_match_the_template_and_a_pool_keeps_its_own() {
        let (web, db, none) = (json!({"app": "web"}), json!({"app": "db"}), Value::Null);
        let one = |message: &str| vec![("spec.selector".to_owned(), message.to_owned())];
        let unmatched = one("selector does not match labels.");
        assert_eq!(of_set("CREATE", &set(&db, &guest()), &none), unmatched);
        assert_eq!(of_set("CREATE", &set(&json!({}), &guest()), &none), unmatched);
        assert_eq!(of_pool("CREATE", &pool(&db, &guest()), &none), unmatched);
        let mut wrong = set(&web, &guest());
        wrong["spec"]["selector"] = json!({"matchExpressions": [{"key": "app", "operator": "Like"}]});
        assert_eq!(of_set("CREATE", &wrong, &none), one("\"Like\" is not a valid label selector operator"));
        let old = pool(&web, &guest());
        let mut other = pool(&db, &guest());
        other["spec"]["selector"] = json!({"matchLabels": {"app": "db"}});
        assert_eq!(of_pool("UPDATE", &other, &old), one("selector is immutable after creation."));
        let mut scaled = old.clone();
        scaled["spec"]["replicas"] = json!(5);
        assert_eq!(of_pool("UPDATE", &scaled, &old), []);
    }

    #[test]
    fn a_conflict_with_an_instance_type_names_the_fields_of_the_pool() {
        let instancetype = json!({"cpu": {"guest": 2}, "memory": {"guest": "2Gi"}});
        let flavor =
            Flavor { instancetype: Some(serde_json::from_value(instancetype).unwrap()), preference: None };
        let mut object = pool(&json!({"app": "web"}), &guest());
        object["spec"]["virtualMachineTemplate"]["spec"]["instancetype"] = json!({"name": "u1.small"});
        assert!(machine::has_flavor(&member(&object)));
        let request = request("CREATE", &object, &Value::Null);
        let found = refused(&pool_answer(&request, false, Some(&flavor)));
        assert_eq!(found[0].0, "spec.virtualMachineTemplate.spec.template.spec.domain.memory.guest");
    }
}
