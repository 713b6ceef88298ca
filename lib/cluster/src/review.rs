//! AdmissionReview in and out, and the smallest JSON patch between two objects.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::access::User;
use crate::call::JsonPatch;
use crate::error::{Error, Kind, Result, Status};

/// The API server's request to a webhook.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Request {
    /// To be repeated in the answer.
    pub uid: String,
    /// Group, version and kind of the object as it is sent.
    pub kind: GroupVersionKind,
    /// Group, version and kind of the object as the user wrote it.
    pub request_kind: GroupVersionKind,
    /// Group, version and plural of the request.
    pub resource: GroupVersionResource,
    /// Subresource, or empty.
    pub sub_resource: String,
    /// Name; empty for a create by generateName.
    pub name: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// `CREATE`, `UPDATE`, `DELETE` or `CONNECT`.
    pub operation: String,
    /// The requesting user.
    pub user_info: User,
    /// The new object; null for DELETE.
    pub object: Value,
    /// The object until now; null for CREATE.
    pub old_object: Value,
    /// Nothing may be changed anywhere.
    pub dry_run: Option<bool>,
    /// CreateOptions, UpdateOptions or DeleteOptions.
    pub options: Value,
}

/// Group, version and kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GroupVersionKind {
    /// Group; empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Kind.
    pub kind: String,
}

/// Group, version and plural name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct GroupVersionResource {
    /// Group; empty for core.
    pub group: String,
    /// Version.
    pub version: String,
    /// Plural.
    pub resource: String,
}

/// A webhook's answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    refusal: Option<Status>,
    patch: JsonPatch,
    warnings: Vec<String>,
}

impl Request {
    /// Reads the request of an AdmissionReview of admission.k8s.io/v1.
    ///
    /// # Errors
    /// [`Kind::Input`] if the text is none.
    pub fn read(text: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Review {
            api_version: String,
            kind: String,
            request: Request,
        }
        // The parser's message would quote the object.
        let review: Review = serde_json::from_slice(text).map_err(|error| {
            let text = format!("not an AdmissionReview, at line {} column {}", error.line(), error.column());
            Error::new(Kind::Input, text)
        })?;
        if review.kind != "AdmissionReview" || review.api_version != "admission.k8s.io/v1" {
            let text =
                format!("{} {} is not admission.k8s.io/v1 AdmissionReview", review.api_version, review.kind);
            return Err(Error::new(Kind::Input, text));
        }
        Ok(review.request)
    }
}

impl Answer {
    /// The request is allowed.
    pub fn allow() -> Self {
        Self::default()
    }

    /// The request is refused with an HTTP status, a reason for programs (`Invalid`, `Forbidden`) and a message.
    pub fn refuse(code: u16, reason: &str, message: impl Into<String>) -> Self {
        let status =
            Status { code, reason: reason.to_owned(), message: message.into(), details: Value::Null };
        Self { refusal: Some(status), ..Self::default() }
    }

    /// The request is refused with a whole Status (causes by field).
    pub fn status(status: Status) -> Self {
        Self { refusal: Some(status), ..Self::default() }
    }

    /// The request is allowed with this change of the object.
    #[must_use]
    pub fn patch(mut self, patch: JsonPatch) -> Self {
        self.patch = patch;
        self
    }

    /// With a warning that kubectl prints; at most 120 characters are sure to arrive.
    #[must_use]
    pub fn warn(mut self, text: impl Into<String>) -> Self {
        self.warnings.push(text.into());
        self
    }

    /// Whether the request is allowed.
    pub fn is_allowed(&self) -> bool {
        self.refusal.is_none()
    }

    /// The AdmissionReview to send.
    pub fn write(&self, uid: &str) -> Value {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Response<'a> {
            uid: &'a str,
            allowed: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            status: Option<&'a Status>,
            #[serde(skip_serializing_if = "Option::is_none")]
            patch_type: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            patch: Option<String>,
            #[serde(skip_serializing_if = "<[_]>::is_empty")]
            warnings: &'a [String],
        }
        let patched = self.is_allowed() && !self.patch.is_empty();
        let patch = patched.then(|| BASE64_STANDARD.encode(json!(self.patch.operations()).to_string()));
        let response = Response {
            uid,
            allowed: self.is_allowed(),
            status: self.refusal.as_ref(),
            patch_type: patched.then_some("JSONPatch"),
            patch,
            warnings: &self.warnings,
        };
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }
}

/// The JSON patch that makes `after` of `before`: keys are added, replaced and removed one by one; lists of equal length
/// element by element, others as a whole.
pub fn difference(before: &Value, after: &Value) -> JsonPatch {
    let mut patch = JsonPatch::new();
    compare(before, after, &mut String::new(), &mut patch);
    patch
}

fn compare(before: &Value, after: &Value, path: &mut String, patch: &mut JsonPatch) {
    if before == after {
        return;
    }
    let length = path.len();
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, value) in old {
                path.push_str(&JsonPatch::pointer([key.as_str()]));
                match new.get(key) {
                    Some(now) => compare(value, now, path, patch),
                    None => *patch = std::mem::take(patch).remove(path.as_str()),
                }
                path.truncate(length);
            }
            for (key, value) in new.iter().filter(|(key, _)| !old.contains_key(*key)) {
                path.push_str(&JsonPatch::pointer([key.as_str()]));
                *patch = std::mem::take(patch).add(path.as_str(), value);
                path.truncate(length);
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (value, now)) in old.iter().zip(new).enumerate() {
                path.push_str(&format!("/{index}"));
                compare(value, now, path, patch);
                path.truncate(length);
            }
        }
        _ => *patch = std::mem::take(patch).replace(path.as_str(), after),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reviews_are_read_and_others_refused() {
        let text = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "kind": {"group": "kubevirt.io", "version": "v1", "kind": "VirtualMachine"},
            "operation": "CREATE", "namespace": "n", "object": {"spec": 1}, "oldObject": null, "options": null,
            "userInfo": {"username": "bob", "groups": ["g"], "extra": {"k": ["v"]}}, "dryRun": false}});
        let request = Request::read(text.to_string().as_bytes()).unwrap();
        assert_eq!((request.uid.as_str(), request.object["spec"].as_u64()), ("u", Some(1)));
        assert_eq!((request.user_info.username.as_str(), request.old_object.is_null()), ("bob", true));
        for wrong in [
            json!({}),
            json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {}}),
        ] {
            assert_eq!(Request::read(wrong.to_string().as_bytes()).unwrap_err().kind(), Kind::Input);
        }
    }

    #[test]
    fn answers_are_written_with_patch_or_status() {
        let patch = JsonPatch::new().add("/a", 1);
        let written = Answer::allow().patch(patch.clone()).warn("w").write("u");
        let response = &written["response"];
        assert_eq!((&response["uid"], &response["allowed"]), (&json!("u"), &json!(true)));
        let decoded = BASE64_STANDARD.decode(response["patch"].as_str().unwrap()).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&decoded).unwrap(), json!(patch));
        assert_eq!(response["warnings"], json!(["w"]));
        let response = &Answer::refuse(422, "Invalid", "no").patch(patch).write("u")["response"];
        assert_eq!((&response["allowed"], &response["patch"]), (&json!(false), &Value::Null));
        assert_eq!(response["status"], json!({"code": 422, "reason": "Invalid", "message": "no"}));
    }

    #[test]
    fn difference_is_small_and_leads_from_one_object_to_the_other() {
        let before = json!({"a/b": 1, "same": {"x": [1, 2]}, "list": [{"n": 1}, {"n": 2}], "gone": null, "grown": [1]});
        let after = json!({"a/b": 2, "same": {"x": [1, 2]}, "list": [{"n": 1}, {"n": 3}], "grown": [1, 2], "new": {}});
        let expected = json!([
            {"op": "replace", "path": "/a~1b", "value": 2},
            {"op": "remove", "path": "/gone"},
            {"op": "replace", "path": "/grown", "value": [1, 2]},
            {"op": "replace", "path": "/list/1/n", "value": 3},
            {"op": "add", "path": "/new", "value": {}},
        ]);
        assert_eq!(json!(difference(&before, &after)), expected);
        assert!(difference(&before, &before).is_empty());
        assert_eq!(
            json!(difference(&json!(1), &json!(2))),
            json!([{"op": "replace", "path": "", "value": 2}])
        );
    }
}
