//! Refusals of the aggregated APIs, as the Status objects that kubectl and virtctl read. The one place where errors become
//! answers.

use http::StatusCode;
use http::request::Parts;
use serde_json::{Value, json};
use serve::route::{self, Answer, json, text};

/// How often a request is decided again because its object changed between read and write.
pub(super) const ATTEMPTS: usize = 5;

/// An answer, or why there is none.
pub(super) type Answered = Result<Answer, Refusal>;

/// A refusal with its HTTP status.
#[derive(Debug)]
pub(super) struct Refusal {
    code: StatusCode,
    message: String,
    details: Value,
}

impl Refusal {
    /// A refusal with a message for people.
    pub(super) fn new(code: StatusCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Value::Null }
    }

    /// 409: the object is not in a state for this; in upstream's words, which scripts match.
    pub(super) fn conflict(kind: &str, name: &str, why: &str) -> Self {
        Self {
            code: StatusCode::CONFLICT,
            message: format!("Operation cannot be fulfilled on {kind}.kubevirt.io {name:?}: {why}"),
            details: json!({"name": name, "group": "kubevirt.io", "kind": kind}),
        }
    }

    /// 409: the object changed in each of [`ATTEMPTS`].
    pub(super) fn raced(kind: &str, name: &str) -> Self {
        Self::conflict(kind, name, "it was changed at the same time; try again")
    }

    /// 400: the KubeVirt object does not switch a feature gate on.
    pub(super) fn gate(name: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, format!("'{name}' feature gate is not enabled"))
    }

    /// 404: no such object.
    pub(super) fn absent(kind: &str, name: &str) -> Self {
        Self {
            code: StatusCode::NOT_FOUND,
            message: format!("{kind}.kubevirt.io {name:?} not found"),
            details: json!({"name": name, "group": "kubevirt.io", "kind": kind}),
        }
    }

    pub(super) fn answer(&self) -> Answer {
        let mut body = document(self.code, reason(self.code), &self.message);
        if !self.details.is_null() {
            body["details"] = self.details.clone();
        }
        json(self.code, body.to_string())
    }

    /// The refusal as plain text, for clients that print the body.
    pub(super) fn plain(&self) -> Answer {
        text(self.code, self.message.clone())
    }

    #[cfg(test)]
    pub(super) fn code_and_message(&self) -> (u16, &str) {
        (self.code.as_u16(), &self.message)
    }
}

impl From<route::Refusal> for Refusal {
    /// A body that cannot be read.
    fn from(refusal: route::Refusal) -> Self {
        Self::new(refusal.status(), refusal.to_string())
    }
}

impl From<cluster::Error> for Refusal {
    /// A failed call to the API server: what is absent or refused there is so here; all else is ours to solve.
    fn from(error: cluster::Error) -> Self {
        let kind = error.kind();
        let code = if kind == cluster::Kind::NotFound {
            StatusCode::NOT_FOUND
        } else if kind == cluster::Kind::Conflict {
            StatusCode::CONFLICT
        } else if matches!(kind, cluster::Kind::Invalid | cluster::Kind::Input) {
            StatusCode::BAD_REQUEST
        } else {
            StatusCode::INTERNAL_SERVER_ERROR
        };
        Self::new(code, error.chain())
    }
}

/// A Status object as an answer.
pub(super) fn answer(code: StatusCode, why: &str, message: &str) -> Answer {
    let why = if why.is_empty() { reason(code) } else { why };
    json(code, document(code, why, message).to_string())
}

/// A Status object for a request that no route answers; of a subresource, it names the object as far as the path does.
pub(super) fn unserved(head: &Parts, refusal: &route::Refusal) -> Answer {
    let mut path = head.uri.path().split('/').skip(1);
    let parts: Vec<&str> = path.by_ref().take(7).collect();
    let (["apis", group, version, "namespaces", namespace, resource, name], route::Refusal::NotFound) =
        (parts.as_slice(), refusal)
    else {
        return answer(refusal.status(), "", &refusal.to_string());
    };
    let subresource = path.collect::<Vec<_>>().join("/");
    let text = format!(
        "this release does not serve {subresource:?} of {resource}.{group}/{version} {namespace}/{name}"
    );
    let mut body = document(refusal.status(), reason(refusal.status()), &text);
    body["details"] = json!({"name": name, "group": group, "kind": resource});
    json(refusal.status(), body.to_string())
}

fn document(code: StatusCode, reason: &str, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code.as_u16()})
}

fn reason(code: StatusCode) -> &'static str {
    match code.as_u16() {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        409 => "Conflict",
        413 => "RequestEntityTooLarge",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn unserved_request_gets_a_status_that_names_the_object() {
        let asked = |path: &str| http::Request::builder().uri(path).body(()).unwrap().into_parts().0;
        let path = "/apis/subresources.kubevirt.io/v1/namespaces/n/virtualmachines/vm/evacuate/later";
        for (path, refusal, code, reason, message, name) in [
            (
                path,
                route::Refusal::NotFound,
                404,
                "NotFound",
                "this release does not serve \"evacuate/later\" of virtualmachines.subresources.kubevirt.io/v1 n/vm",
                json!("vm"),
            ),
            (
                path,
                route::Refusal::Method(Vec::new()),
                405,
                "MethodNotAllowed",
                "method not allowed",
                Value::Null,
            ),
            ("/else", route::Refusal::NotFound, 404, "NotFound", "not found", Value::Null),
        ] {
            let answer = unserved(&asked(path), &refusal);
            assert_eq!(answer.status().as_u16(), code);
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!((&body["kind"], &body["status"]), (&json!("Status"), &json!("Failure")));
            assert_eq!((&body["reason"], &body["message"]), (&json!(reason), &json!(message)));
            assert_eq!(body["details"]["name"], name);
        }
    }
}
