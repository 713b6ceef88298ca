//! Installed objects that the status of `HyperConverged` lists. Not here: reading them.

use api::hostpath::METADATA_SERVICE;
use api::{downloads, poll};
use cluster::Resource;

use super::accounts::{AGENT, OPERATOR, PRIORITY, UPLOAD_PROXY};
use super::services::MACPOOL;

const PRIORITIES: Resource = Resource::cluster("scheduling.k8s.io", "v1", "priorityclasses");
const SERVICES: Resource = Resource::namespaced("", "v1", "services");
const ROLES: Resource = Resource::namespaced("rbac.authorization.k8s.io", "v1", "roles");
const BINDINGS: Resource = Resource::namespaced("rbac.authorization.k8s.io", "v1", "rolebindings");

/// Roles of the platform's namespace, and their bindings.
pub(super) const LOCAL_ROLES: [&str; 3] = [OPERATOR, AGENT, UPLOAD_PROXY];

/// The objects: resource, kind, name.
pub(crate) const RELATED: [(Resource, &str, &str); 21] = [
    (PRIORITIES, "PriorityClass", PRIORITY),
    (SERVICES, "Service", "virt-api"),
    (SERVICES, "Service", "cdi-api"),
    (SERVICES, "Service", "kubevirt-operator-webhook"),
    (SERVICES, "Service", "hco-webhook-service"),
    (SERVICES, "Service", "kubevirt-prometheus-metrics"),
    (SERVICES, "Service", "kubevirt-hyperconverged-operator-metrics"),
    (SERVICES, "Service", "cdi-prometheus-metrics"),
    (SERVICES, "Service", UPLOAD_PROXY),
    (SERVICES, "Service", poll::SERVICE),
    (SERVICES, "Service", downloads::SERVICE),
    (SERVICES, "Service", MACPOOL),
    (SERVICES, "Service", "kubemacpool-metrics-service"),
    (SERVICES, "Service", "hpp-prometheus-metrics"),
    (SERVICES, "Service", METADATA_SERVICE),
    (ROLES, "Role", OPERATOR),
    (ROLES, "Role", AGENT),
    (ROLES, "Role", UPLOAD_PROXY),
    (BINDINGS, "RoleBinding", OPERATOR),
    (BINDINGS, "RoleBinding", AGENT),
    (BINDINGS, "RoleBinding", UPLOAD_PROXY),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_objects_of_these_kinds_are_listed() {
        let all = crate::install::manifests(&crate::install::Settings::default());
        let installed = |kind: &str, name: &str| {
            all.iter().any(|one| one["kind"] == kind && one["metadata"]["name"] == name)
        };
        for (resource, kind, name) in RELATED {
            assert!(installed(kind, name), "{kind} {name} is not installed");
            let object =
                all.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == name).unwrap();
            assert_eq!(object["apiVersion"], resource.api_version());
        }
        for object in all.iter().filter(|one| one["kind"] == "Service") {
            let name = object["metadata"]["name"].as_str().unwrap();
            assert!(RELATED.iter().any(|(_, kind, one)| *kind == "Service" && *one == name), "{name}");
        }
    }
}
