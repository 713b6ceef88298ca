//! DataVolumes, DataImportCrons and the sources of claims: refusals of the spec, and what a clone is of. Pure.

use api::upload::token::{Claims, Grant};
use cluster::review::{Answer, Request, difference};
use serde_json::json;

use super::answer::{self, Cause, INVALID};
use crate::storage::admit;
use crate::storage::clone::authorize::{self, Origin};
use crate::storage::clone::cloned;
use crate::storage::clone::token::{self, Target};
use crate::storage::names;
use crate::storage::offered::Offered;

/// Refuses objects of storage that cannot work, and changes of their spec.
pub(super) fn validate(request: &Request) -> Answer {
    let object = &request.object;
    let kind = match request.resource.resource.as_str() {
        "dataimportcrons" => "DataImportCron",
        "volumeimportsources" => "VolumeImportSource",
        "volumeuploadsources" => "VolumeUploadSource",
        "objecttransfers" => "ObjectTransfer",
        _ => "DataVolume",
    };
    let verdict = match (request.operation.as_str(), kind) {
        ("CREATE", "DataImportCron") => admit::cron::create(object),
        ("CREATE", "VolumeImportSource") => admit::fill::import(object),
        ("CREATE", "VolumeUploadSource") => admit::fill::upload(object),
        ("CREATE", "ObjectTransfer") => admit::fill::transfer(object),
        ("CREATE", _) => admit::create(object),
        ("UPDATE", _) => admit::update(kind, &request.old_object, object),
        _ => Ok(()),
    };
    verdict.map_or_else(
        |admit::Cause { field, message }| answer::refuse(&[Cause { reason: INVALID, field, message }]),
        |()| Answer::allow(),
    )
}

/// Completes a claim that asks for it by its label, from its storage profile.
pub(super) fn rendered(request: &Request, offered: &Offered) -> Answer {
    match offered.complete(&request.object) {
        Ok(claim) => Answer::allow().patch(difference(&request.object, &claim)),
        Err(refusal) => {
            answer::refuse(&[Cause { reason: INVALID, field: "spec".to_owned(), message: refusal.message }])
        }
    }
}

/// The answer where the DataSource does not exist.
pub(super) fn absent(request: &Request, name: &str) -> Answer {
    if cloned::needs_no_source(&request.object) {
        return Answer::allow();
    }
    Answer::refuse(400, "BadRequest", format!("datasources.cdi.kubevirt.io {name:?} not found"))
}

fn target(request: &Request) -> Target<'_> {
    let name = request.object["metadata"]["name"].as_str().unwrap_or_default();
    Target { namespace: &request.namespace, name, uid: None }
}

/// The content of the token of a new DataVolume.
pub(super) fn grant(origin: &Origin, request: &Request) -> Grant {
    token::grant(origin, target(request))
}

/// The token that a new DataVolume has already.
pub(super) fn shown_token(request: &Request) -> Option<&str> {
    request.object["metadata"]["annotations"][names::CLONE_TOKEN].as_str()
}

/// Whether a token is for this clone.
pub(super) fn token_fits(claims: &Claims, origin: &Origin, request: &Request) -> bool {
    token::fits(claims, origin, target(request))
}

/// The answer with a token, by which the controller knows that the user may clone.
pub(super) fn granted(request: &Request, token: &str) -> Answer {
    let mut after = request.object.clone();
    after["metadata"]["annotations"][names::CLONE_TOKEN] = json!(token);
    Answer::allow().patch(difference(&request.object, &after))
}

/// The answer when it is known whether a user may clone from a namespace.
pub(super) fn verdict(allowed: bool, user: &str, namespace: &str) -> Answer {
    if allowed {
        return Answer::allow();
    }
    let message = authorize::denial(user, namespace);
    answer::refuse(&[Cause { reason: INVALID, field: authorize::FIELD.to_owned(), message }])
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn request(operation: &str, spec: &Value, old: &Value) -> Request {
        Request {
            operation: operation.into(),
            namespace: "mine".into(),
            object: json!({"metadata": {"name": "a"}, "spec": spec}),
            old_object: json!({"metadata": {"name": "a"}, "spec": old}),
            ..Request::default()
        }
    }

    #[test]
    fn wrong_volumes_are_refused_with_field_and_cause() {
        let good =
            json!({"source": {"blank": {}}, "storage": {"resources": {"requests": {"storage": "1Gi"}}}});
        let none = json!({"source": {"blank": {}}});
        for (operation, spec, old, expected) in [
            ("CREATE", &good, &Value::Null, None),
            ("CREATE", &none, &Value::Null, Some(("spec.PVC", "Missing Data volume PVC"))),
            ("UPDATE", &good, &good, None),
            ("UPDATE", &none, &good, Some(("spec", "Cannot update DataVolume Spec"))),
        ] {
            let answer = validate(&request(operation, spec, old)).write("u");
            let status = &answer["response"]["status"];
            assert_eq!(status["message"].as_str(), expected.map(|(_, message)| message));
            assert_eq!(status["details"]["causes"][0]["field"].as_str(), expected.map(|(field, _)| field));
        }
    }

    #[test]
    fn clones_are_refused_in_upstreams_words() {
        assert!(verdict(true, "bob", "golden").is_allowed());
        let answer = verdict(false, "bob", "golden").write("u");
        let cause = &answer["response"]["status"]["details"]["causes"][0];
        assert_eq!(
            cause["message"],
            "User bob has insufficient permissions in clone source namespace golden"
        );
        assert_eq!(cause["field"], "spec.source.PVC.namespace");
    }

    #[test]
    fn token_is_for_the_clone_that_was_asked_for() {
        let spec = json!({"source": {"pvc": {"name": "x", "namespace": "golden"}}});
        let mut request = request("CREATE", &spec, &Value::Null);
        let origin = Origin { namespace: "golden".into(), name: "x".into(), snapshot: false };
        let claims = Claims { grant: grant(&origin, &request), ..Claims::default() };
        assert!(token_fits(&claims, &origin, &request));
        let answer = granted(&request, "a.b.c").write("u");
        assert!(answer["response"]["allowed"] == true && answer["response"]["patch"].is_string());
        assert_eq!(shown_token(&request), None);
        request.object["metadata"]["annotations"][names::CLONE_TOKEN] = json!("a.b.c");
        assert_eq!(shown_token(&request), Some("a.b.c"));
        request.object["metadata"]["name"] = json!("other");
        assert!(!token_fits(&claims, &origin, &request));
    }

    #[test]
    fn missing_data_source_is_refused_unless_none_is_needed() {
        let mut request = request("CREATE", &json!({}), &Value::Null);
        assert!(!absent(&request, "x").is_allowed());
        request.object["metadata"]["annotations"] = json!({"cdi.kubevirt.io/storage.prePopulated": "a"});
        assert!(absent(&request, "x").is_allowed());
    }
}
