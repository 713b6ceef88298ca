//! `HyperConverged`: defaults that the object shows, and rules that its schema cannot express, with the field's path in
//! the version that the user wrote. Pure.

use api::hyperconverged::v1::HyperConverged;
use api::hyperconverged::{NAME, beta_path};
use cluster::review::{Answer, Request, difference};

use super::answer::{Cause, INVALID, refuse};
use crate::fill::fill;
use crate::platform::hyperconverged::check;
use crate::platform::hyperconverged::input::bind_at_once;
use crate::platform::hyperconverged::read::Facts;
use crate::platform::hyperconverged::render::{Child, child};

/// Writes into imports of boot images that their claims are filled at once. Defaults that follow from the cluster, such as
/// `evictionStrategy` from the number of nodes, are not written: they would stay when the cluster changes.
pub(super) fn mutate(request: &Request) -> Answer {
    let mut object = request.object.clone();
    fill::<HyperConverged>(&mut object, |filled| {
        let sources = filled.spec.workload_sources.iter_mut();
        let imports = sources.flat_map(|sources| &mut sources.data_import_cron_templates);
        for template in imports.filter(|template| template.spec.is_some()) {
            bind_at_once(template.metadata.get_or_insert_default());
        }
    });
    Answer::allow().patch(difference(&request.object, &object))
}

/// Judges a new object or an update. `namespace` is the platform's.
pub(super) fn validate(request: &Request, namespace: &str) -> Answer {
    if request.object["metadata"]["deletionTimestamp"].is_string() {
        return Answer::allow();
    }
    let object: HyperConverged = match serde_json::from_value(request.object.clone()) {
        Ok(object) => object,
        Err(error) => {
            return Answer::refuse(400, "BadRequest", format!("HyperConverged cannot be read: {error}"));
        }
    };
    let mut problems: Vec<(String, String)> =
        check::problems(&object).into_iter().map(|one| (one.field, one.text)).collect();
    if request.operation == "CREATE" && request.namespace != namespace {
        let text = format!("must be {namespace}, the namespace of the operator");
        problems.push(("metadata.namespace".to_owned(), text));
    }
    if request.operation == "CREATE" && request.name != NAME && object.metadata.name != NAME {
        problems.push(("metadata.name".to_owned(), format!("must be {NAME}")));
    }
    if problems.is_empty() {
        let facts = Facts { namespace: namespace.to_owned(), ..Facts::default() };
        for one in Child::ALL {
            if let Err((annotation, error)) = child(one, &object, &facts) {
                problems.push((format!("metadata.annotations[{annotation}]"), error.to_string()));
            }
        }
    }
    if problems.is_empty() {
        return Answer::allow();
    }
    let beta = request.request_kind.version == "v1beta1";
    let causes: Vec<Cause> = problems
        .into_iter()
        .map(|(field, text)| {
            let field = if beta { beta_path(&field) } else { field };
            Cause { reason: INVALID, message: format!("{field}: {text}"), field }
        })
        .collect();
    refuse(&causes)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;
    use cluster::review::GroupVersionKind;
    use serde_json::{Value, json};

    use super::*;

    fn review(version: &str, operation: &str, namespace: &str, object: Value) -> Value {
        let request = Request {
            operation: operation.to_owned(),
            namespace: namespace.to_owned(),
            request_kind: GroupVersionKind { version: version.to_owned(), ..GroupVersionKind::default() },
            object,
            ..Request::default()
        };
        validate(&request, "ns").write("u")["response"].clone()
    }

    #[test]
    fn refusals_name_the_field_in_the_version_of_the_request() {
        let object = json!({"metadata": {"name": NAME}, "spec": {"security": {"certConfig": {"ca": {"duration": "5m"}}}}});
        for (version, field) in
            [("v1", "spec.security.certConfig.ca.duration"), ("v1beta1", "spec.certConfig.ca.duration")]
        {
            let response = review(version, "UPDATE", "ns", object.clone());
            assert_eq!(response["status"]["details"]["causes"][0]["field"], field);
            assert_eq!(response["status"]["code"], 422);
        }
    }

    #[test]
    fn imports_show_that_their_claims_are_filled_at_once() {
        let spec = json!({"schedule": "", "managedDataSource": "a", "template": {"spec": {}}});
        let import =
            |annotations: Value| json!({"metadata": {"name": "a", "annotations": annotations}, "spec": spec});
        let chosen = json!({"cdi.kubevirt.io/storage.bind.immediate.requested": "false"});
        let switched_off = json!({"metadata": {"name": "common"}});
        let sources =
            |imports: Value| json!({"spec": {"workloadSources": {"dataImportCronTemplates": imports}}});
        let sent = sources(json!([import(json!({"b": "c"})), import(chosen), switched_off]));
        let response = |object: &Value| {
            mutate(&Request { object: object.clone(), ..Request::default() }).write("u")["response"].clone()
        };
        let patch = response(&sent)["patch"].as_str().map(|text| BASE64_STANDARD.decode(text).unwrap());
        let patch: Value = serde_json::from_slice(&patch.unwrap()).unwrap();
        let path = "/spec/workloadSources/dataImportCronTemplates/0/metadata/annotations/\
                    cdi.kubevirt.io~1storage.bind.immediate.requested";
        assert_eq!(patch, json!([{"op": "add", "path": path, "value": "true"}]));
        for complete in [json!({"spec": {}}), sources(json!([]))] {
            let response = response(&complete);
            assert_eq!((&response["allowed"], &response["patch"]), (&json!(true), &Value::Null));
        }
    }

    #[test]
    fn the_object_has_one_place_and_patches_must_fit() {
        let named = |name: &str| json!({"metadata": {"name": name}, "spec": {}});
        assert_eq!(review("v1", "CREATE", "ns", named(NAME))["allowed"], true);
        let response = review("v1", "CREATE", "elsewhere", named("other"));
        let causes = response["status"]["details"]["causes"].as_array().unwrap();
        assert_eq!(
            (&causes[0]["field"], &causes[1]["field"]),
            (&json!("metadata.namespace"), &json!("metadata.name"))
        );
        let text = r#"[{"op": "remove", "path": "/spec/missing"}]"#;
        let object = json!({"metadata": {"name": NAME, "annotations": {"kubevirt.kubevirt.io/jsonpatch": text}}, "spec": {}});
        let response = review("v1", "UPDATE", "ns", object);
        let field = &response["status"]["details"]["causes"][0]["field"];
        assert_eq!(field, "metadata.annotations[kubevirt.kubevirt.io/jsonpatch]");
        let mut gone = named(NAME);
        gone["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        gone["spec"] = json!({"security": {"certConfig": {"ca": {"duration": "5m"}}}});
        assert_eq!(review("v1", "UPDATE", "ns", gone)["allowed"], true, "finalizers can be removed");
    }
}
