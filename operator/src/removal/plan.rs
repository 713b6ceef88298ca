//! The order of a removal, and what stays. Pure.

use api::nodes::{CPU_MANAGER, HEARTBEAT, MERGED_PAGES, PROCESSOR, SCHEDULABLE};
use api::resource::ObjectMeta;
use cluster::{Key, Resource};
use serde_json::{Map, Value, json};

/// An object to be removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) kind: String,
    pub(super) resource: Resource,
    pub(super) key: Key,
}

/// Objects that are removed together; the next group follows when they are gone.
pub(super) type Group = Vec<Target>;

/// Kinds of the objects by which users switch the platform on, in the order of their removal: what others are made from
/// comes first.
pub(crate) const SWITCHES: [(&str, Resource); 6] = [
    ("HyperConverged", Resource::namespaced("hco.kubevirt.io", "v1", "hyperconvergeds")),
    (
        "HostPathProvisioner",
        Resource::cluster("hostpathprovisioner.kubevirt.io", "v1beta1", "hostpathprovisioners"),
    ),
    ("KubeVirt", Resource::namespaced("kubevirt.io", "v1", "kubevirts")),
    ("CDI", Resource::cluster("cdi.kubevirt.io", "v1beta1", "cdis")),
    (
        "NetworkAddonsConfig",
        Resource::cluster("networkaddonsoperator.network.kubevirt.io", "v1", "networkaddonsconfigs"),
    ),
    ("SSP", Resource::namespaced("ssp.kubevirt.io", "v1beta3", "ssps")),
];

/// Kinds of installed objects.
const KINDS: [(&str, Resource); 19] = [
    ("APIService", Resource::cluster("apiregistration.k8s.io", "v1", "apiservices")),
    (
        "MutatingWebhookConfiguration",
        Resource::cluster("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations"),
    ),
    (
        "ValidatingWebhookConfiguration",
        Resource::cluster("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"),
    ),
    (
        "ValidatingAdmissionPolicy",
        Resource::cluster("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"),
    ),
    (
        "ValidatingAdmissionPolicyBinding",
        Resource::cluster("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings"),
    ),
    (
        "CustomResourceDefinition",
        Resource::cluster("apiextensions.k8s.io", "v1", "customresourcedefinitions"),
    ),
    ("ClusterRole", Resource::cluster("rbac.authorization.k8s.io", "v1", "clusterroles")),
    ("ClusterRoleBinding", Resource::cluster("rbac.authorization.k8s.io", "v1", "clusterrolebindings")),
    ("Role", Resource::namespaced("rbac.authorization.k8s.io", "v1", "roles")),
    ("RoleBinding", Resource::namespaced("rbac.authorization.k8s.io", "v1", "rolebindings")),
    ("Deployment", Resource::namespaced("apps", "v1", "deployments")),
    ("DaemonSet", Resource::namespaced("apps", "v1", "daemonsets")),
    ("PodDisruptionBudget", Resource::namespaced("policy", "v1", "poddisruptionbudgets")),
    ("NetworkPolicy", Resource::namespaced("networking.k8s.io", "v1", "networkpolicies")),
    ("Service", Resource::namespaced("", "v1", "services")),
    ("ServiceAccount", Resource::namespaced("", "v1", "serviceaccounts")),
    ("FlowSchema", Resource::cluster("flowcontrol.apiserver.k8s.io", "v1", "flowschemas")),
    ("PriorityClass", Resource::cluster("scheduling.k8s.io", "v1", "priorityclasses")),
    ("StorageClass", Resource::cluster("storage.k8s.io", "v1", "storageclasses")),
];
const NAMESPACES: Resource = Resource::cluster("", "v1", "namespaces");

/// The definition of another project that is installed too, because its objects are used, and its objects. On a cluster
/// with Multus both are the users'.
pub(super) const FOREIGN: (&str, Resource) = (
    "network-attachment-definitions.k8s.cni.cncf.io",
    Resource::namespaced("k8s.cni.cncf.io", "v1", "network-attachment-definitions"),
);

/// Why a foreign definition stays, of which this many objects exist; `None`: it is removed.
pub(super) fn stays(definition: &ObjectMeta, objects: usize) -> Option<String> {
    // Helm sets the label managed-by to its own name.
    let ours = definition.labels.get("app.kubernetes.io/part-of").is_some_and(|label| label == "ferrovirt");
    match (ours, objects) {
        (false, _) => Some("it was not installed with the platform".to_owned()),
        (true, 0) => None,
        (true, objects) => Some(format!("{objects} objects of its kind exist")),
    }
}

/// Whether a label or annotation of a node is one that agents or operator write; users' own, such as skip-node, are not.
fn is_of_platform(name: &str) -> bool {
    let begins = PROCESSOR.iter().any(|prefix| name.starts_with(prefix));
    begins || CPU_MANAGER.contains(&name) || [HEARTBEAT, MERGED_PAGES, SCHEDULABLE].contains(&name)
}

/// The prefix of the resources that agents report of nodes.
const BRIDGES: &str = "bridge.network.kubevirt.io/";

/// The merge patches of a Node and of its status that remove what the platform wrote on it; `None`: there is nothing.
pub(super) fn cleaned(node: &Value) -> (Option<Value>, Option<Value>) {
    let without = |of: &Value, fields: [&str; 2], is_ours: fn(&str) -> bool| {
        let mut changes = Map::new();
        for field in fields {
            let names = of[field].as_object().into_iter().flat_map(Map::keys);
            let ours = names.filter(|name| is_ours(name));
            let gone: Map<String, Value> = ours.map(|name| (name.clone(), Value::Null)).collect();
            if !gone.is_empty() {
                changes.insert(field.to_owned(), Value::Object(gone));
            }
        }
        (!changes.is_empty()).then_some(Value::Object(changes))
    };
    let metadata = without(&node["metadata"], ["labels", "annotations"], is_of_platform);
    let status = without(&node["status"], ["capacity", "allocatable"], |name| name.starts_with(BRIDGES));
    (metadata.map(|changes| json!({"metadata": changes})), status.map(|changes| json!({"status": changes})))
}

/// Kinds by when they are removed. While an APIService of a server that is gone exists, no namespace can be removed;
/// definitions follow while the operator still releases what has finalizers.
const FIRST: [&[&str]; 3] = [
    &["APIService"],
    &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"],
    &["CustomResourceDefinition"],
];

/// Groups that stand between users and the API server: without the operator behind them they refuse requests.
pub(super) const ENTRANCES: usize = 2;

/// Installed objects in groups, in the order of their removal: [`FIRST`], then the others the other way round than they
/// were created, the namespace last. Kinds that are missing here are given back.
pub(super) fn groups(manifests: &[Value]) -> Result<Vec<Group>, String> {
    let mut first: Vec<Group> = vec![Vec::new(); FIRST.len()];
    let (mut others, mut last) = (Vec::new(), Vec::new());
    for object in manifests.iter().rev() {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let kind = text(&object["kind"]);
        let (name, namespace) = (text(&object["metadata"]["name"]), text(&object["metadata"]["namespace"]));
        if kind == "Namespace" {
            last.push(Target { kind, resource: NAMESPACES, key: Key::cluster(&name) });
            continue;
        }
        let Some((_, resource)) = KINDS.iter().find(|one| one.0 == kind) else { return Err(kind) };
        let key = if resource.namespaced { Key::new(&namespace, &name) } else { Key::cluster(&name) };
        let group = FIRST.iter().position(|kinds| kinds.contains(&kind.as_str()));
        let group = group.and_then(|index| first.get_mut(index)).unwrap_or(&mut others);
        group.push(Target { kind, resource: *resource, key });
    }
    first.extend([others, last]);
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::{Settings, manifests};

    #[test]
    fn every_installed_object_is_removed_once_apis_first_and_the_namespace_last() {
        let all = manifests(&Settings::default());
        let groups = groups(&all).unwrap();
        let flat: Vec<&Target> = groups.iter().flatten().collect();
        assert_eq!(flat.len(), all.len());
        let place = |kind: &str| {
            let found: Vec<usize> = (0..flat.len()).filter(|index| flat[*index].kind == kind).collect();
            (found[0], found[found.len() - 1])
        };
        assert_eq!(place("APIService").0, 0);
        for (before, after) in [
            ("APIService", "MutatingWebhookConfiguration"),
            ("ValidatingWebhookConfiguration", "CustomResourceDefinition"),
            ("CustomResourceDefinition", "Deployment"),
            ("Deployment", "ClusterRole"),
            ("Deployment", "ServiceAccount"),
            ("ServiceAccount", "Namespace"),
        ] {
            assert!(place(before).1 < place(after).0, "{before} before {after}");
        }
        assert_eq!(flat[flat.len() - 1].kind, "Namespace");
        for (object, target) in all
            .iter()
            .rev()
            .filter(|one| one["kind"] == "Service")
            .zip(flat.iter().filter(|one| one.kind == "Service"))
        {
            assert_eq!(target.key.name(), object["metadata"]["name"]);
            assert_eq!(target.resource.api_version(), object["apiVersion"]);
        }
    }

    #[test]
    fn entrances_are_apis_and_webhooks() {
        let groups = groups(&manifests(&Settings::default())).unwrap();
        for (index, group) in groups.iter().enumerate() {
            let entrance = group
                .iter()
                .all(|target| target.kind == "APIService" || target.kind.ends_with("WebhookConfiguration"));
            assert_eq!(entrance, index < ENTRANCES, "group {index}");
        }
    }

    #[test]
    fn foreign_definition_stays_with_its_users() {
        let definition = |label: Option<&str>| -> ObjectMeta {
            let labels = label.map_or(json!({}), |label| json!({"app.kubernetes.io/part-of": label}));
            serde_json::from_value(json!({"name": FOREIGN.0, "labels": labels})).unwrap()
        };
        for (label, objects, stays_there) in [
            (None, 0, true),
            (None, 2, true),
            (Some("multus"), 0, true),
            (Some("ferrovirt"), 0, false),
            (Some("ferrovirt"), 2, true),
        ] {
            let why = stays(&definition(label), objects);
            assert_eq!(why.is_some(), stays_there, "{label:?}, {objects} objects: {why:?}");
        }
        let installed = manifests(&Settings::default());
        let definitions = installed.iter().filter(|one| one["kind"] == "CustomResourceDefinition");
        let foreign = definitions.filter(|one| {
            let group = one["spec"]["group"].as_str().unwrap();
            !group.ends_with("kubevirt.io")
        });
        let foreign: Vec<&str> = foreign.map(|one| one["metadata"]["name"].as_str().unwrap()).collect();
        assert_eq!(foreign, [FOREIGN.0]);
    }

    #[test]
    fn nodes_lose_labels_and_resources_of_the_platform_alone() {
        let clean = json!({
            "metadata": {
                "labels": {"node-labeller.kubevirt.io/skip-node": "true", "zone": "a"},
                "annotations": {"a": "b"},
            },
            "status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}},
        });
        assert_eq!(cleaned(&clean), (None, None));
        let mut node = clean;
        let (vendor, bridge) = ("cpu-vendor.node.kubevirt.io/Intel", "bridge.network.kubevirt.io/br0");
        node["metadata"]["labels"]["kubevirt.io/schedulable"] = json!("true");
        node["metadata"]["labels"][vendor] = json!("true");
        node["metadata"]["annotations"]["kubevirt.io/heartbeat"] = json!("2026-01-01T00:00:00Z");
        node["status"]["capacity"][bridge] = json!("1k");
        node["status"]["allocatable"][bridge] = json!("1k");
        let wanted = (
            Some(json!({"metadata": {
                "labels": {"kubevirt.io/schedulable": null, vendor: null},
                "annotations": {"kubevirt.io/heartbeat": null},
            }})),
            Some(json!({"status": {"capacity": {bridge: null}, "allocatable": {bridge: null}}})),
        );
        assert_eq!(cleaned(&node), wanted);
    }

    #[test]
    fn versions_are_those_of_the_installed_objects() {
        for object in manifests(&Settings::default()) {
            let kind = object["kind"].as_str().unwrap();
            let resource = KINDS.iter().find(|one| one.0 == kind).map_or(NAMESPACES, |one| one.1);
            assert_eq!(resource.api_version(), object["apiVersion"], "{kind}");
            assert_eq!(resource.namespaced, object["metadata"]["namespace"].is_string(), "{kind}");
        }
        for (kind, resource) in SWITCHES {
            let definition = api::definition::ALL.iter().find(|one| one.kind == kind).unwrap();
            assert_eq!((resource.group, resource.plural), (definition.group, definition.plural));
        }
    }
}
