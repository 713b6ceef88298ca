//! Whether a user may perform an action (SubjectAccessReview), and the user of a token (TokenReview).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::Client;
use crate::error::Result;

/// The user of a request, as the API server knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct User {
    /// User name.
    #[serde(alias = "user")]
    pub username: String,
    /// Uid, where the authenticator gives one.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Further facts, such as the node of a ServiceAccount's pod.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub extra: BTreeMap<String, Vec<String>>,
}

/// A verb on a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Access<'a> {
    /// Namespace; empty for cluster-scoped resources, or for all namespaces.
    pub namespace: &'a str,
    /// `get`, `update`, `create`, …
    pub verb: &'a str,
    /// API group.
    pub group: &'a str,
    /// Version.
    pub version: &'a str,
    /// Plural name of the resource.
    pub resource: &'a str,
    /// Subresource.
    pub subresource: &'a str,
    /// Name of one object; empty for all.
    pub name: &'a str,
}

/// An answer, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it is allowed.
    pub allowed: bool,
    /// The authorizer's reason; may be empty.
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer<S> {
    status: S,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct AccessStatus {
    allowed: bool,
    denied: bool,
    reason: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenStatus {
    authenticated: bool,
    user: User,
    audiences: Vec<String>,
}

impl Client {
    /// Asks the API server whether `user` may do this.
    ///
    /// # Errors
    /// As every call; an error is not a permission.
    pub async fn may(&self, user: &User, access: &Access<'_>) -> Result<Verdict> {
        self.subject(user, json!({"resourceAttributes": access})).await
    }

    /// Asks whether `user` may `verb` a path that is no resource, such as `/metrics`.
    ///
    /// # Errors
    /// As every call; an error is not a permission.
    pub async fn may_path(&self, user: &User, verb: &str, path: &str) -> Result<Verdict> {
        self.subject(user, json!({"nonResourceAttributes": {"path": path, "verb": verb}})).await
    }

    async fn subject(&self, user: &User, mut spec: Value) -> Result<Verdict> {
        let User { username, uid, groups, extra } = user;
        spec["user"] = json!(username);
        spec["uid"] = json!(uid);
        spec["groups"] = json!(groups);
        spec["extra"] = json!(extra);
        let body =
            json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec});
        let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
        let answer: Answer<AccessStatus> = self.post(path, &body).await?;
        let AccessStatus { allowed, denied, reason } = answer.status;
        Ok(Verdict { allowed: allowed && !denied, reason })
    }

    /// The user of a bearer token; `None` if the API server does not know it.
    ///
    /// # Errors
    /// As every call.
    pub async fn user_of(&self, token: &str) -> Result<Option<User>> {
        let status = self.review(json!({"token": token})).await?;
        Ok(status.authenticated.then_some(status.user))
    }

    /// The user of a bearer token for an audience; `None` if the API server does not know it or it is for others only.
    ///
    /// # Errors
    /// As every call.
    pub async fn user_for(&self, token: &str, audience: &str) -> Result<Option<User>> {
        let status = self.review(json!({"token": token, "audiences": [audience]})).await?;
        let meant = status.authenticated && status.audiences.iter().any(|one| one == audience);
        Ok(meant.then_some(status.user))
    }

    async fn review(&self, spec: Value) -> Result<TokenStatus> {
        let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec});
        let answer: Answer<TokenStatus> =
            self.post("/apis/authentication.k8s.io/v1/tokenreviews", &body).await?;
        Ok(answer.status)
    }
}
