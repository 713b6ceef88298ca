//! Rights of the platform's accounts, by the roles that are installed, and their requests, by an audit log.
//!
//! A verb on a resource, of one rule, is a grant. A request uses the grants that cover it: those of the platform's namespace
//! if there are any, else those of all namespaces.
//!
//! Not here: rights of users, and the list of grants that no test uses.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};

use anyhow::{Context, Result};
use operator::defaults::NAMESPACE;
use operator::install::{Settings, manifests, uninstall_hooks};
use serde_json::Value;

use crate::place::Place;

/// Environment variable: folder for the clusters' audit results; unset, none are written.
pub const FOLDER: &str = "FERROVIRT_CLUSTER_AUDIT";

/// Programs that tests run outside of the cluster with an administrator's rights, by their user agent, and their account.
const OUTSIDE: [(&str, &str); 2] =
    [("ferrovirt/operator", "kubevirt-controller"), ("ferrovirt/macpool", "kubemacpool-sa")];

/// A verb that an account may use on a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// ServiceAccount.
    pub account: String,
    /// API group; empty for the core group.
    pub group: String,
    /// Resource with its subresource, such as `pods/status`.
    pub resource: String,
    /// Verb.
    pub verb: String,
    /// Whether it is limited to the platform's namespace.
    pub local: bool,
    /// Objects to which it is limited; empty for all.
    pub names: Vec<String>,
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} {}", self.account, self.verb, self.resource)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if !self.names.is_empty() {
            write!(f, " {}", self.names.join(","))?;
        }
        if self.local { f.write_str(" (platform's namespace)") } else { Ok(()) }
    }
}

impl Grant {
    fn covers(&self, request: &Request) -> bool {
        let resource = match self.resource.strip_prefix("*/") {
            Some(sub) => request.resource.split_once('/').is_some_and(|(_, one)| one == sub),
            None => self.resource == request.resource,
        };
        resource
            && (&self.account, &self.group, &self.verb) == (&request.account, &request.group, &request.verb)
            && (!self.local || request.namespace == NAMESPACE)
            && (self.names.is_empty() || self.names.contains(&request.name))
    }
}

/// The grants of the platform's own accounts, and of the Jobs of `helm uninstall`.
pub fn granted() -> BTreeSet<Grant> {
    let settings = Settings::default();
    of(&[manifests(&settings), uninstall_hooks(&settings)].concat())
}

fn of(objects: &[Value]) -> BTreeSet<Grant> {
    let words = |value: &Value| -> Vec<String> {
        let all = value.as_array().into_iter().flatten();
        all.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut all = BTreeSet::new();
    let bindings = objects.iter().filter(|one| one["roleRef"].is_object());
    for binding in bindings {
        let reference = &binding["roleRef"];
        let is_role =
            |one: &&Value| one["kind"] == reference["kind"] && one["metadata"]["name"] == reference["name"];
        // One of the cluster's own roles has no rules here.
        let rules = objects.iter().find(is_role).map(|role| &role["rules"]);
        for rule in rules.and_then(Value::as_array).into_iter().flatten() {
            let subjects = binding["subjects"].as_array().into_iter().flatten();
            // Prometheus' account has its own namespace.
            let is_own = |one: &&Value| one["kind"] == "ServiceAccount" && one["namespace"] == NAMESPACE;
            for account in subjects.filter(is_own) {
                for group in words(&rule["apiGroups"]) {
                    for resource in words(&rule["resources"]) {
                        for verb in words(&rule["verbs"]) {
                            all.insert(Grant {
                                account: account["name"].as_str().unwrap_or_default().to_owned(),
                                group: group.clone(),
                                resource: resource.clone(),
                                verb,
                                local: binding["kind"] == "RoleBinding",
                                names: words(&rule["resourceNames"]),
                            });
                        }
                    }
                }
            }
        }
    }
    all
}

/// A request of an account.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Request {
    account: String,
    group: String,
    resource: String,
    verb: String,
    namespace: String,
    name: String,
}

/// The requests of an audit event, if it is about an object and one of the platform's accounts made it: two for a
/// server-side apply that made an object.
fn requests(event: &Value) -> Vec<Request> {
    let Some(request) = request(event) else { return Vec::new() };
    let made = request.verb == "patch" && event["responseStatus"]["code"] == 201;
    let creation =
        made.then(|| Request { verb: "create".to_owned(), name: String::new(), ..request.clone() });
    [request].into_iter().chain(creation).collect()
}

/// The request of an audit event.
fn request(event: &Value) -> Option<Request> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let user = event["user"]["username"].as_str().unwrap_or_default();
    let account = match user.strip_prefix(&format!("system:serviceaccount:{NAMESPACE}:")) {
        Some(account) => account,
        None => OUTSIDE.iter().find(|(agent, _)| event["userAgent"] == *agent)?.1,
    };
    let object = event.get("objectRef")?;
    let subresource = object["subresource"].as_str().map(|sub| format!("/{sub}")).unwrap_or_default();
    Some(Request {
        account: account.to_owned(),
        group: text(&object["apiGroup"]),
        resource: text(&object["resource"]) + &subresource,
        verb: text(&event["verb"]),
        namespace: text(&object["namespace"]),
        name: text(&object["name"]),
    })
}

/// The grants that a request uses.
fn use_of<'a>(grants: &'a BTreeSet<Grant>, request: &Request) -> Vec<&'a Grant> {
    let covering: Vec<&Grant> = grants.iter().filter(|grant| grant.covers(request)).collect();
    let local: Vec<&Grant> = covering.iter().copied().filter(|grant| grant.local).collect();
    if local.is_empty() { covering } else { local }
}

/// Writes the grants that were used in a cluster into [`FOLDER`].
///
/// # Errors
/// When the log cannot be read, or the file not be written.
pub(crate) fn save(place: &Place) -> Result<()> {
    let Some(folder) = std::env::var_os(FOLDER) else { return Ok(()) };
    let mut all = BTreeSet::new();
    for entry in fs::read_dir(place.folder())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // A long log continues in another file.
        if name.starts_with("audit") && name.ends_with(".log") {
            for line in BufReader::new(File::open(&path)?).lines() {
                let event = serde_json::from_str::<Value>(&line?);
                all.extend(event.ok().as_ref().map(requests).unwrap_or_default());
            }
        }
    }
    let granted = granted();
    let used: BTreeSet<String> =
        all.iter().flat_map(|request| use_of(&granted, request)).map(ToString::to_string).collect();
    let text: String = used.iter().map(|grant| format!("{grant}\n")).collect();
    fs::create_dir_all(&folder)?;
    let file = std::path::Path::new(&folder).join(format!("{}-{}", place.number(), std::process::id()));
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requests_use_the_narrowest_grants_that_cover_them() {
        let role = |kind: &str, rules: Value| {
            let name = json!({"name": "role"});
            let account = |namespace: &str, name: &str| json!({"kind": "ServiceAccount", "namespace": namespace, "name": name});
            let subjects =
                json!([account(NAMESPACE, "kubevirt-controller"), account("monitoring", "prometheus-k8s")]);
            [
                json!({"kind": kind, "metadata": name, "rules": rules}),
                json!({"kind": format!("{kind}Binding"), "metadata": name, "subjects": subjects,
                    "roleRef": {"kind": kind, "name": "role"}}),
            ]
        };
        let everywhere = json!([
            {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list"]},
            {"apiGroups": ["kubevirt.io"], "resources": ["*/status"], "verbs": ["patch"]},
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["a"], "verbs": ["get"]},
        ]);
        let local =
            json!([{"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["list", "patch"]}]);
        let grants = of(&[role("ClusterRole", everywhere), role("Role", local)].concat());
        assert!(grants.iter().all(|grant| grant.account == "kubevirt-controller"), "{grants:?}");
        let used = |user: &str, agent: &str, verb: &str, object: Value| -> Vec<String> {
            let event =
                json!({"user": {"username": user}, "userAgent": agent, "verb": verb, "objectRef": object});
            requests(&event).iter().flat_map(|one| use_of(&grants, one)).map(ToString::to_string).collect()
        };
        let own = format!("system:serviceaccount:{NAMESPACE}:kubevirt-controller");
        let deployments =
            |namespace: Value| json!({"apiGroup": "apps", "resource": "deployments", "namespace": namespace});
        for (user, agent, verb, object, wanted) in [
            (
                &own[..],
                "",
                "list",
                deployments(json!(null)),
                &["kubevirt-controller: list deployments.apps"][..],
            ),
            (
                &own,
                "",
                "list",
                deployments(json!(NAMESPACE)),
                &["kubevirt-controller: list deployments.apps (platform's namespace)"],
            ),
            (&own, "", "patch", deployments(json!("other")), &[]),
            (
                "admin",
                "ferrovirt/operator",
                "patch",
                json!({"apiGroup": "kubevirt.io", "resource": "virtualmachines", "subresource": "status", "name": "vm"}),
                &["kubevirt-controller: patch */status.kubevirt.io"],
            ),
            ("admin", "kubectl", "list", deployments(json!(null)), &[]),
            (&own, "", "get", json!({"resource": "configmaps", "name": "b"}), &[]),
            (
                &own,
                "",
                "get",
                json!({"resource": "configmaps", "name": "a"}),
                &["kubevirt-controller: get configmaps a"],
            ),
        ] {
            assert_eq!(used(user, agent, verb, object.clone()), wanted, "{user} {agent} {verb} {object}");
        }
    }
}
