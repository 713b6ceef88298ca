//! The aggregated group upload.cdi.kubevirt.io: its only kind, UploadTokenRequest, is answered with a token when it is
//! created, and kept nowhere. The claim is not looked at: clients ask before it is ready, and the upload proxy refuses
//! later.
//!
//! Refusals are plain text with status 401, as upstream's: virtctl prints them.

use api::upload::request;
use api::upload::token::Target;
use cluster::access::Access;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use serve::route::{Answer, Call, Router, json};

use super::Site;
use super::status::Refusal;
use crate::storage::keys;

/// The group.
const GROUP: &str = "upload.cdi.kubevirt.io";
/// Its version.
const VERSION: &str = "v1beta1";
/// Longest body of a request.
const MOST_BODY: usize = 64 << 10;

fn group() -> Value {
    let version = json!({"groupVersion": request::API_VERSION, "version": VERSION});
    json!({"kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version], "preferredVersion": version})
}

fn resources() -> Value {
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": request::API_VERSION, "resources": [{
        "name": request::PLURAL, "singularName": "uploadtokenrequest", "namespaced": true, "kind": request::KIND,
        "verbs": ["create"], "shortNames": ["utr", "utrs"],
    }]})
}

fn openapi_v3() -> Value {
    json!({"openapi": "3.0.0", "info": {"title": GROUP, "version": VERSION}, "paths": {}, "components": {}})
}

/// The group's entry in the list of groups.
pub(super) fn listed() -> Value {
    group()
}

/// Path and document of its description in OpenAPI's list.
pub(super) fn described() -> (String, Value) {
    let base = format!("apis/{GROUP}/{VERSION}");
    let at = format!("/openapi/v3/{base}?hash={}", env!("CARGO_PKG_VERSION"));
    (base, json!({"serverRelativeURL": at}))
}

/// Adds the group's documents.
pub(super) fn routes(mut router: Router) -> Router {
    for (path, document) in [
        (format!("/apis/{GROUP}"), group()),
        (format!("/apis/{GROUP}/{VERSION}"), resources()),
        (format!("/openapi/v3/apis/{GROUP}/{VERSION}"), openapi_v3()),
    ] {
        let document = document.to_string();
        router = router.get(&path, move |_| {
            let document = document.clone();
            async move { json(StatusCode::OK, document) }
        });
    }
    router
}

/// Where tokens are asked for.
pub(super) fn pattern() -> (Method, String) {
    (Method::POST, format!("/apis/{GROUP}/{VERSION}/namespaces/{{namespace}}/{}", request::PLURAL))
}

/// Answers a request for a token.
pub(super) async fn handle(site: &Site, mut call: Call) -> Answer {
    match answer(site, &mut call).await {
        Ok(answer) => answer,
        Err(refusal) => refusal.plain(),
    }
}

async fn answer(site: &Site, call: &mut Call) -> Result<Answer, Refusal> {
    let user = site.gate.user(call)?;
    let namespace = call.parameter("namespace").to_owned();
    let access = Access {
        namespace: &namespace,
        verb: "create",
        group: GROUP,
        version: VERSION,
        resource: request::PLURAL,
        subresource: "",
        name: "",
    };
    if !site.gate.may(&user, &access).await? {
        let text = format!(
            "User {:?} cannot create resource {:?} in API group {GROUP:?} in the namespace {namespace:?}",
            user.username,
            request::PLURAL
        );
        return Err(Refusal::new(StatusCode::UNAUTHORIZED, text));
    }
    let body = match call.bytes(MOST_BODY).await {
        Ok(body) => body,
        Err(refusal) => return Ok(refusal.answer()),
    };
    let (document, target) = read(&body, &namespace)?;
    let keys = keys::read(&site.client, &site.namespace).await?;
    let token = keys.ring.upload(&target, crate::storage::signers::now()).map_err(|error| {
        let text = format!("tokens cannot be signed yet: {}", ::error::chain(&error));
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, text)
    })?;
    Ok(json(StatusCode::CREATED, answered(document, &namespace, &token).to_string()))
}

/// The request, and the claim that it names.
fn read(body: &[u8], namespace: &str) -> Result<(Value, Target), Refusal> {
    let bad = |text: String| Refusal::new(StatusCode::BAD_REQUEST, text);
    let document: Value = serde_json::from_slice(body)
        .map_err(|error| bad(format!("the body is not a JSON document: {error}")))?;
    let claim = document["spec"]["pvcName"].as_str().unwrap_or_default();
    let target = Target::new(namespace, claim)
        .ok_or_else(|| bad(format!("spec.pvcName {claim:?} is not the name of a claim")))?;
    Ok((document, target))
}

/// The request with its token.
fn answered(mut document: Value, namespace: &str, token: &str) -> Value {
    document["kind"] = json!(request::KIND);
    document["apiVersion"] = json!(request::API_VERSION);
    document["metadata"]["namespace"] = json!(namespace);
    document["status"] = json!({"token": token});
    document
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_answered_with_their_token() {
        let body = json!({"metadata": {"generateName": "t-"}, "spec": {"pvcName": "disk"}}).to_string();
        let (document, target) = read(body.as_bytes(), "ns").unwrap();
        assert_eq!(target.to_string(), "ns/disk");
        let answer = answered(document, "ns", "a.b.c");
        assert_eq!(
            (&answer["status"]["token"], &answer["spec"]["pvcName"]),
            (&json!("a.b.c"), &json!("disk"))
        );
        assert_eq!(answer["metadata"]["namespace"], "ns");
        for (body, word) in
            [("", "JSON"), ("{}", "not the name of a claim"), (r#"{"spec":{"pvcName":"../x"}}"#, "../x")]
        {
            let (code, said) = read(body.as_bytes(), "ns")
                .map(|_| ())
                .map_err(|it| (it.code_and_message().0, it.code_and_message().1.to_owned()))
                .unwrap_err();
            assert!(code == 400 && said.contains(word), "{said}");
        }
    }
}
