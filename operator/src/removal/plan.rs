//! The order of a removal. Pure.

use cluster::{Key, Resource};
use serde_json::Value;

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
const KINDS: [(&str, Resource); 18] = [
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
    ("PriorityClass", Resource::cluster("scheduling.k8s.io", "v1", "priorityclasses")),
    ("StorageClass", Resource::cluster("storage.k8s.io", "v1", "storageclasses")),
];
const NAMESPACES: Resource = Resource::cluster("", "v1", "namespaces");

/// Kinds by when they are removed. While an APIService of a server that is gone exists, no namespace can be removed;
/// definitions follow while the operator still releases what has finalizers.
const FIRST: [&[&str]; 3] = [
    &["APIService"],
    &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"],
    &["CustomResourceDefinition"],
];

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
