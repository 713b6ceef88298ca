//! Typed calls on objects: read, list, create, replace, apply, patch, delete; also on subresources (`VMS.sub("status")`).
//! Not here: connections, limits and repeated requests (`client`).

use http::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::client::{Call, Client};
use crate::error::{Error, Kind, Result};
use crate::key::Key;
use crate::page;
use crate::resource::{Resource, Scope, escaped};

const JSON: &str = "application/json";

/// Server-side apply: the field manager, and whether fields of others are taken over.
#[derive(Clone, Copy, Debug)]
pub struct Apply<'a> {
    /// The field manager.
    pub manager: &'a str,
    /// Take fields that another manager owns; without, such a field is [`Kind::Conflict`].
    pub force: bool,
}

/// How a delete treats dependents of the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Propagation {
    /// The object goes at once, the garbage collector follows.
    Background,
    /// Dependents go first; the object stays with a finalizer until then.
    Foreground,
    /// Dependents stay.
    Orphan,
}

/// Options of a delete. Without any, the kind's defaults apply.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Delete {
    #[serde(skip_serializing_if = "Option::is_none")]
    propagation_policy: Option<Propagation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grace_period_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preconditions: Option<Preconditions>,
}

#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct Preconditions {
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource_version: Option<String>,
}

impl Delete {
    /// Deletion of dependents.
    #[must_use]
    pub fn propagation(mut self, propagation: Propagation) -> Self {
        self.propagation_policy = Some(propagation);
        self
    }

    /// Seconds for a graceful end; 0 removes at once.
    #[must_use]
    pub fn grace(mut self, seconds: u32) -> Self {
        self.grace_period_seconds = Some(seconds);
        self
    }

    /// Only the object with this uid; another one of the same name is [`Kind::Conflict`].
    #[must_use]
    pub fn uid(mut self, uid: &str) -> Self {
        self.preconditions.get_or_insert_default().uid = Some(uid.to_owned());
        self
    }

    /// Only as it was read.
    #[must_use]
    pub fn version(mut self, version: &str) -> Self {
        self.preconditions.get_or_insert_default().resource_version = Some(version.to_owned());
        self
    }
}

/// A JSON patch (RFC 6902). Paths are JSON pointers; [`JsonPatch::pointer`] escapes keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct JsonPatch(Vec<Value>);

impl JsonPatch {
    /// An empty patch.
    pub fn new() -> Self {
        Self::default()
    }

    /// A pointer of these keys, each escaped: `["metadata", "labels", "a/b"]` is `/metadata/labels/a~1b`.
    pub fn pointer<'a>(keys: impl IntoIterator<Item = &'a str>) -> String {
        keys.into_iter()
            .fold(String::new(), |path, key| format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")))
    }

    /// The patch applies only if the value at `path` is this one; `null` for "absent or null". A failed test is
    /// [`Kind::Conflict`].
    #[must_use]
    pub fn test(self, path: impl Into<String>, value: impl Serialize) -> Self {
        self.push("test", &path.into(), value)
    }

    /// Sets the value; in a list, inserts before an index, or appends at `-`.
    #[must_use]
    pub fn add(self, path: impl Into<String>, value: impl Serialize) -> Self {
        self.push("add", &path.into(), value)
    }

    /// Replaces a value that exists.
    #[must_use]
    pub fn replace(self, path: impl Into<String>, value: impl Serialize) -> Self {
        self.push("replace", &path.into(), value)
    }

    /// Removes a value that exists.
    #[must_use]
    pub fn remove(mut self, path: impl Into<String>) -> Self {
        self.0.push(json!({"op": "remove", "path": path.into()}));
        self
    }

    fn push(mut self, operation: &str, path: &str, value: impl Serialize) -> Self {
        // A value without a JSON form (a map with keys that are not text) is not a value of an object either.
        let value = serde_json::to_value(value).unwrap_or_default();
        self.0.push(json!({"op": operation, "path": path, "value": value}));
        self
    }

    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Its operations.
    pub fn operations(&self) -> &[Value] {
        &self.0
    }

    /// Appends the operations of another patch.
    pub fn extend(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    fn tests(&self) -> bool {
        self.0.iter().any(|one| one["op"] == "test")
    }
}

fn encoded(value: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(value)
        .map_err(|error| Error::caused(Kind::Input, "an object cannot be written as JSON", error))
}

/// An answer as the caller's type.
fn decoded<T: DeserializeOwned>(text: &[u8], path: &str) -> Result<T> {
    serde_json::from_slice(text).map_err(|error| {
        // The message names line and column only for data errors of the caller's type; values stay out.
        let text = format!("{path}: the API server's answer cannot be decoded");
        Error::caused(Kind::Unreadable, text, Position(error.line(), error.column()))
    })
}

/// Where an answer is wrong. serde's own message could quote the value, which may be a Secret's.
#[derive(Debug)]
struct Position(usize, usize);

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {} column {}", self.0, self.1)
    }
}

impl std::error::Error for Position {}

impl Client {
    async fn typed<T: DeserializeOwned>(&self, call: Call, path: &str) -> Result<T> {
        decoded(&self.call(&call).await?, path)
    }

    /// Reads a path that is no object, such as `/version`.
    ///
    /// # Errors
    /// As every call: by the answer's status, or because there was none.
    pub async fn read<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.typed(Call::new(Method::GET, path), path).await
    }

    /// Posts a document to a path that answers one, such as a SubjectAccessReview.
    ///
    /// # Errors
    /// As every call.
    pub async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T> {
        self.typed(Call::new(Method::POST, path).body(JSON, encoded(body)?), path).await
    }

    /// Reads an object as it is now.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if it does not exist, [`Kind::Unreadable`] if it is not a `T`.
    pub async fn get<T: DeserializeOwned>(&self, resource: Resource, key: &Key) -> Result<T> {
        let path = resource.object(key)?;
        self.typed(Call::new(Method::GET, path.as_str()), &path).await
    }

    /// The same; `None` if it does not exist.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn find<T: DeserializeOwned>(&self, resource: Resource, key: &Key) -> Result<Option<T>> {
        absent(self.get(resource, key).await)
    }

    /// Reads an object from the API server's own cache (`resourceVersion=0`): cheap, and possibly a little old. Enough
    /// before a write that carries its version.
    ///
    /// # Errors
    /// As [`Client::get`].
    pub async fn find_cached<T: DeserializeOwned>(&self, resource: Resource, key: &Key) -> Result<Option<T>> {
        let path = resource.object(key)?;
        absent(self.typed(Call::new(Method::GET, format!("{path}?resourceVersion=0")), &path).await)
    }

    /// Lists in pages of 500 and hands over one object at a time; gives the resource version of the list.
    ///
    /// # Errors
    /// [`Kind::Gone`] if the list took so long that the API server forgot its begin: list again.
    pub async fn each<T: DeserializeOwned>(
        &self,
        resource: Resource,
        scope: &Scope,
        mut hear: impl FnMut(T),
    ) -> Result<String> {
        let path = scope.path(&resource)?;
        page::list(self, &path, |one: page::Listed<'_>| match one.object::<T>() {
            Ok(object) => {
                hear(object);
                Ok(())
            }
            Err(error) => {
                let text = format!("{} {}: the object cannot be decoded", resource.plural, one.key());
                Err(Error::caused(Kind::Unreadable, text, Position(error.line(), error.column())))
            }
        })
        .await
    }

    /// Lists into memory. For small collections; [`Client::each`] or a [`crate::Cache`] for those that grow.
    ///
    /// # Errors
    /// As [`Client::each`].
    pub async fn list<T: DeserializeOwned>(&self, resource: Resource, scope: &Scope) -> Result<Vec<T>> {
        let mut all = Vec::new();
        self.each(resource, scope, |one| all.push(one)).await?;
        Ok(all)
    }

    /// Creates an object in a namespace (empty for a cluster-scoped one).
    ///
    /// # Errors
    /// [`Kind::AlreadyExists`], [`Kind::Invalid`], [`Kind::Forbidden`] (also quotas and admission).
    pub async fn create<T: DeserializeOwned>(
        &self,
        resource: Resource,
        namespace: &str,
        object: &impl Serialize,
    ) -> Result<T> {
        let path = resource.collection(namespace)?;
        self.typed(Call::new(Method::POST, path.as_str()).body(JSON, encoded(object)?), &path).await
    }

    /// Posts to a subresource of an object: `pods/eviction`, `serviceaccounts/token`. 429 is not repeated: it is the
    /// answer of an eviction.
    ///
    /// # Errors
    /// As every call.
    pub async fn create_sub<T: DeserializeOwned>(
        &self,
        resource: Resource,
        key: &Key,
        object: &impl Serialize,
    ) -> Result<T> {
        let path = resource.object(key)?;
        self.typed(Call::new(Method::POST, path.as_str()).body(JSON, encoded(object)?).once(), &path).await
    }

    /// Replaces an object; if it carries a resource version, only as it was read.
    ///
    /// # Errors
    /// [`Kind::Conflict`] if it changed since, [`Kind::NotFound`].
    pub async fn replace<T: DeserializeOwned>(
        &self,
        resource: Resource,
        key: &Key,
        object: &impl Serialize,
    ) -> Result<T> {
        let path = resource.object(key)?;
        self.typed(Call::new(Method::PUT, path.as_str()).body(JSON, encoded(object)?), &path).await
    }

    /// Creates or changes an object by server-side apply. The object needs apiVersion, kind, name and (if it has one)
    /// namespace.
    ///
    /// # Errors
    /// [`Kind::Conflict`] if another manager owns a field and `force` is off.
    pub async fn apply<T: DeserializeOwned>(
        &self,
        resource: Resource,
        key: &Key,
        object: &impl Serialize,
        apply: Apply<'_>,
    ) -> Result<T> {
        let path = resource.object(key)?;
        let (manager, force) = (escaped(apply.manager), apply.force);
        let call = Call::new(Method::PATCH, format!("{path}?fieldManager={manager}&force={force}"));
        self.typed(call.body("application/apply-patch+yaml", encoded(object)?), &path).await
    }

    /// Changes an object by a JSON patch.
    ///
    /// # Errors
    /// [`Kind::Conflict`] if a `test` of the patch failed or the object changed under the API server's hands,
    /// [`Kind::NotFound`].
    pub async fn json_patch<T: DeserializeOwned>(
        &self,
        resource: Resource,
        key: &Key,
        patch: &JsonPatch,
    ) -> Result<T> {
        let path = resource.object(key)?;
        let call =
            Call::new(Method::PATCH, path.as_str()).body("application/json-patch+json", encoded(patch)?);
        self.typed(call, &path).await.map_err(|error| {
            // The API server answers 422 to a failed test, as to an object that its schema refuses; only the latter
            // names the object's kind and causes with fields.
            if error.code() == Some(422) && patch.tests() && !names_fields(&error) {
                error.with_kind(Kind::Conflict)
            } else {
                error
            }
        })
    }

    /// Changes an object by a JSON merge patch: `null` removes, lists are replaced whole.
    ///
    /// # Errors
    /// As every call.
    pub async fn merge_patch<T: DeserializeOwned>(
        &self,
        resource: Resource,
        key: &Key,
        patch: &impl Serialize,
    ) -> Result<T> {
        let path = resource.object(key)?;
        let call =
            Call::new(Method::PATCH, path.as_str()).body("application/merge-patch+json", encoded(patch)?);
        self.typed(call, &path).await
    }

    /// Deletes an object; returns whether it existed.
    ///
    /// # Errors
    /// [`Kind::Conflict`] if a precondition of the options does not hold.
    pub async fn delete(&self, resource: Resource, key: &Key, options: &Delete) -> Result<bool> {
        let path = resource.object(key)?;
        let call = Call::new(Method::DELETE, path).body(JSON, encoded(options)?);
        Ok(absent(self.call(&call).await)?.is_some())
    }
}

fn absent<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

fn names_fields(error: &Error) -> bool {
    #[derive(Deserialize)]
    struct Cause {
        #[serde(default)]
        field: String,
    }
    let causes = error.status().and_then(|status| status.details.get("causes"));
    let causes = causes.and_then(|causes| Vec::<Cause>::deserialize(causes).ok()).unwrap_or_default();
    causes.iter().any(|cause| !cause.field.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_are_written_as_in_rfc_6902() {
        let label = JsonPatch::pointer(["metadata", "labels", "a/b~c"]);
        let patch = JsonPatch::new()
            .test("/metadata/uid", "u")
            .add(label, 1)
            .replace("/spec", json!({}))
            .remove("/x");
        let text = serde_json::to_value(&patch).unwrap();
        let expected = json!([
            {"op": "test", "path": "/metadata/uid", "value": "u"},
            {"op": "add", "path": "/metadata/labels/a~1b~0c", "value": 1},
            {"op": "replace", "path": "/spec", "value": {}},
            {"op": "remove", "path": "/x"},
        ]);
        assert_eq!(text, expected);
    }

    #[test]
    fn delete_options_contain_only_requested_fields() {
        assert_eq!(serde_json::to_value(Delete::default()).unwrap(), json!({}));
        let options = Delete::default().propagation(Propagation::Foreground).grace(0).uid("u").version("7");
        let expected = json!({"propagationPolicy": "Foreground", "gracePeriodSeconds": 0,
            "preconditions": {"uid": "u", "resourceVersion": "7"}});
        assert_eq!(serde_json::to_value(options).unwrap(), expected);
    }

    #[test]
    fn unreadable_answers_are_not_quoted() {
        let error = decoded::<u8>(br#""sesame""#, "/api/v1/x").unwrap_err();
        assert_eq!(error.kind(), Kind::Unreadable);
        assert!(!error.chain().contains("sesame"), "{}", error.chain());
    }
}
