//! Rights of the platform's own pods.

use serde_json::{Value, json};

use super::accounts::{AGENT, HOSTPATH, MACPOOL, OPERATOR, PRIORITY, UPLOAD_PROXY};
use super::related::LOCAL_ROLES;
use super::{Settings, object, openshift, webhooks, with};

pub(super) const RBAC: &str = "rbac.authorization.k8s.io/v1";

const READ: &[&str] = &["get", "list", "watch"];
/// Verbs for objects that the operator makes of HyperConverged.
const OWN: &[&str] = &["get", "list", "watch", "create", "update", "delete"];
const WRITE: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];

/// Instance types and preferences.
pub(super) const FLAVORS: &[&str] = &[
    "virtualmachineinstancetypes",
    "virtualmachineclusterinstancetypes",
    "virtualmachinepreferences",
    "virtualmachineclusterpreferences",
];

/// Those of them that belong to no namespace.
pub(super) const CLUSTER_FLAVORS: &[&str] =
    &["virtualmachineclusterinstancetypes", "virtualmachineclusterpreferences"];

/// Roles of users that KubeVirt's `roleAggregationStrategy` is about, as upstream, each with the cluster's role.
pub(crate) const COMPUTE_ROLES: [(&str, &str); 3] =
    [("kubevirt.io:view", "view"), ("kubevirt.io:edit", "edit"), ("kubevirt.io:admin", "admin")];

/// A rule: groups, resources, verbs.
pub(super) fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

/// A rule about single objects.
fn named(group: &str, resources: &[&str], names: &[&str], verbs: &[&str]) -> Value {
    let mut rule = rule(group, resources, verbs);
    rule["resourceNames"] = json!(names);
    rule
}

/// A ClusterRole.
pub(super) fn cluster_role(name: &str, rules: &[Value]) -> Value {
    with(object(RBAC, "ClusterRole", name, None), json!({"rules": rules}))
}

fn account(settings: &Settings, name: &str) -> Value {
    json!({"kind": "ServiceAccount", "name": name, "namespace": settings.namespace})
}

/// A ClusterRole and its binding to one account.
fn cluster(settings: &Settings, name: &str, to: &str, rules: &[Value]) -> [Value; 2] {
    let binding = with(
        object(RBAC, "ClusterRoleBinding", name, None),
        json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [account(settings, to)],
        }),
    );
    [cluster_role(name, rules), binding]
}

/// A Role in the platform's namespace and its binding to one account.
fn local(settings: &Settings, name: &str, to: &str, rules: &[Value]) -> [Value; 2] {
    let namespace = Some(settings.namespace.as_str());
    let role = with(object(RBAC, "Role", name, namespace), json!({"rules": rules}));
    let binding = with(
        object(RBAC, "RoleBinding", name, namespace),
        json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [account(settings, to)],
        }),
    );
    [role, binding]
}

/// Right of Prometheus to find the pods of the platform, upstream's name.
const MONITORING: &str = "kubevirt-monitoring";
/// Account of Prometheus, as kube-prometheus and OpenShift name it, and its namespaces there.
const PROMETHEUS: &str = "prometheus-k8s";
const PROMETHEUS_NAMESPACES: [&str; 2] = ["monitoring", "openshift-monitoring"];

/// A Role in the platform's namespace by which Prometheus finds what ServiceMonitors select, and its binding. Accounts that
/// do not exist get nothing.
fn monitoring(settings: &Settings) -> [Value; 2] {
    let rules = [rule("", &["services", "endpoints", "pods"], READ)];
    let [role, mut binding] = local(settings, MONITORING, PROMETHEUS, &rules);
    let subject =
        |namespace: &str| json!({"kind": "ServiceAccount", "name": PROMETHEUS, "namespace": namespace});
    binding["subjects"] = json!(PROMETHEUS_NAMESPACES.map(subject));
    [role, binding]
}

/// All rights.
pub(super) fn roles(settings: &Settings) -> Vec<Value> {
    let mut all = Vec::new();
    all.extend(cluster(settings, OPERATOR, OPERATOR, &operator()));
    all.extend(local(settings, OPERATOR, OPERATOR, &operator_locally()));
    all.push(with(
        object(RBAC, "RoleBinding", "kubevirt-controller-authentication-reader", Some("kube-system")),
        json!({
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Role",
                "name": "extension-apiserver-authentication-reader",
            },
            "subjects": [account(settings, OPERATOR)],
        }),
    ));
    all.extend(cluster(settings, AGENT, AGENT, &agent()));
    all.extend(local(settings, AGENT, AGENT, &agent_locally()));
    all.extend(cluster(settings, "kubemacpool-manager-role", MACPOOL, &macpool()));
    all.extend(local(settings, "kubemacpool-manager-role", MACPOOL, &macpool_locally()));
    all.push(cluster_role(
        "kubemacpool-metrics-reader",
        &[json!({"nonResourceURLs": ["/metrics"], "verbs": ["get"]})],
    ));
    all.extend(monitoring(settings));
    let claims = [rule("", &["persistentvolumeclaims"], &["get"])];
    all.extend(cluster(settings, UPLOAD_PROXY, UPLOAD_PROXY, &claims));
    let signers = [named("", &["configmaps"], &["cdi-uploadserver-signer-bundle"], &["get"])];
    all.extend(local(settings, UPLOAD_PROXY, UPLOAD_PROXY, &signers));
    if settings.sidecars {
        all.extend(cluster(settings, HOSTPATH, HOSTPATH, &sidecars()));
        all.extend(local(settings, HOSTPATH, HOSTPATH, &sidecars_locally()));
    }
    all
}

/// Rights of the operator in all namespaces. It reads no Secret or ConfigMap outside of its own namespace.
fn operator() -> Vec<Value> {
    vec![
        rule(
            "kubevirt.io",
            &["kubevirts", "virtualmachines", "virtualmachineinstances", "virtualmachineinstancereplicasets"],
            READ,
        ),
        rule(
            "kubevirt.io",
            &["kubevirts", "virtualmachines", "virtualmachineinstances"],
            &["create", "patch", "delete"],
        ),
        rule("kubevirt.io", &["kubevirts", "virtualmachines"], &["update"]),
        rule(
            "kubevirt.io",
            &["kubevirts/status", "virtualmachines/status", "virtualmachineinstancereplicasets/status"],
            &["patch"],
        ),
        rule("pool.kubevirt.io", &["virtualmachinepools"], READ),
        rule("pool.kubevirt.io", &["virtualmachinepools/status"], &["patch"]),
        rule("instancetype.kubevirt.io", FLAVORS, &["get"]),
        // Those that the platform ships.
        rule("instancetype.kubevirt.io", CLUSTER_FLAVORS, &["list", "watch", "create", "update", "delete"]),
        rule(
            "cdi.kubevirt.io",
            &[
                "cdis",
                "cdiconfigs",
                "dataimportcrons",
                "datasources",
                "datavolumes",
                "objecttransfers",
                "storageprofiles",
            ],
            READ,
        ),
        rule(
            "cdi.kubevirt.io",
            &["volumeclonesources", "volumeimportsources", "volumeuploadsources"],
            &["get"],
        ),
        rule("cdi.kubevirt.io", &["cdis", "cdiconfigs", "datasources", "datavolumes"], &["create", "patch"]),
        rule("cdi.kubevirt.io", &["cdis", "cdiconfigs"], &["update"]),
        rule("cdi.kubevirt.io", &["cdis", "datavolumes"], &["delete"]),
        rule("cdi.kubevirt.io", &["storageprofiles"], &["create"]),
        rule("cdi.kubevirt.io", &["dataimportcrons"], &["patch"]),
        rule(
            "cdi.kubevirt.io",
            &["datavolumes/status", "objecttransfers/status", "storageprofiles/status"],
            &["patch"],
        ),
        // Owners of what the operator makes: OpenShift lets only those refer to an owner who may change its finalizers.
        rule("kubevirt.io", &["*/finalizers"], &["update"]),
        rule("pool.kubevirt.io", &["virtualmachinepools/finalizers"], &["update"]),
        rule("cdi.kubevirt.io", &["*/finalizers"], &["update"]),
        rule("hco.kubevirt.io", &["hyperconvergeds"], &["get", "list", "watch", "patch"]),
        rule("hco.kubevirt.io", &["hyperconvergeds/status", "hyperconvergeds/finalizers"], &["update"]),
        rule("ssp.kubevirt.io", &["ssps"], OWN),
        rule("ssp.kubevirt.io", &["ssps/status"], &["patch"]),
        rule("networkaddonsoperator.network.kubevirt.io", &["networkaddonsconfigs"], OWN),
        rule("networkaddonsoperator.network.kubevirt.io", &["networkaddonsconfigs/status"], &["patch"]),
        // The MAC pool's objects are owned by NetworkAddonsConfig: its deletion waits for them.
        rule("networkaddonsoperator.network.kubevirt.io", &["networkaddonsconfigs/finalizers"], &["update"]),
        // Its status is written with the object; the driver's objects are owned by it.
        rule(
            "hostpathprovisioner.kubevirt.io",
            &["hostpathprovisioners"],
            &["get", "list", "watch", "patch"],
        ),
        rule("hostpathprovisioner.kubevirt.io", &["hostpathprovisioners/finalizers"], &["update"]),
        rule("k8s.cni.cncf.io", &["network-attachment-definitions"], &["get"]),
        // Labels of aggregation. The API server asks for `escalate` when any field of a role changes whose rules the
        // account does not have; a ValidatingAdmissionPolicy leaves those labels only.
        named(
            "rbac.authorization.k8s.io",
            &["clusterroles"],
            &COMPUTE_ROLES.map(|(name, _)| name),
            &["get", "patch", "escalate"],
        ),
        rule("", &["pods"], &["get", "list", "watch", "create", "delete"]),
        rule("", &["pods/finalizers"], &["update"]),
        // Limits that launcher pods have because of their namespace.
        rule("", &["resourcequotas"], &["list"]),
        rule("", &["namespaces"], &["get"]),
        // Readiness gates of launcher pods, and their networks.
        rule("", &["pods/status"], &["patch"]),
        rule("", &["persistentvolumeclaims"], WRITE),
        rule("", &["persistentvolumeclaims/finalizers"], &["update"]),
        // Of a node that is gone: a condition, and PVs that an administrator has given up.
        rule("", &["persistentvolumeclaims/status"], &["patch"]),
        rule("", &["persistentvolumes"], &["get", "list", "watch", "patch", "delete"]),
        rule("", &["nodes"], &["get", "list", "watch", "patch"]),
        // Servers of uploads and clones: their Services, and Secrets with their certificates.
        rule("", &["services"], &["get", "create", "delete"]),
        rule("", &["secrets"], &["create", "delete"]),
        // Certificates of the import proxy, for importers.
        rule("", &["configmaps"], &["create"]),
        // Events of provisioners about claims are listed.
        rule("", &["events"], &["create", "patch", "list"]),
        rule("apps", &["controllerrevisions"], &["get", "list", "create", "delete"]),
        rule("storage.k8s.io", &["storageclasses", "csidrivers", "csinodes"], READ),
        // The names of objects are not known to the authorizer when they are created.
        rule("storage.k8s.io", &["csidrivers", "storageclasses"], &["create"]),
        named("storage.k8s.io", &["csidrivers"], &[super::hostpath::DRIVER], &["patch", "delete"]),
        // Which node makes a claim's volume: its room, and whether sidecars of the driver choose.
        rule("storage.k8s.io", &["csistoragecapacities"], READ),
        rule("apps", &["daemonsets"], READ),
        rule("snapshot.storage.k8s.io", &["volumesnapshots"], WRITE),
        // The snapshot controller's work, and whether another one does it.
        rule("snapshot.storage.k8s.io", &["volumesnapshots/status"], &["patch"]),
        rule("snapshot.storage.k8s.io", &["volumesnapshotclasses"], READ),
        rule(
            "snapshot.storage.k8s.io",
            &["volumesnapshotcontents"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        rule("snapshot.storage.k8s.io", &["volumesnapshotcontents/status"], &["patch"]),
        rule("groupsnapshot.storage.k8s.io", &["volumegroupsnapshots"], &["get", "list", "watch", "patch"]),
        rule("groupsnapshot.storage.k8s.io", &["volumegroupsnapshots/status"], &["patch"]),
        rule("groupsnapshot.storage.k8s.io", &["volumegroupsnapshotclasses"], READ),
        rule(
            "groupsnapshot.storage.k8s.io",
            &["volumegroupsnapshotcontents"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        rule("apps", &["deployments"], &["list", "watch"]),
        named("coordination.k8s.io", &["leases"], &["snapshot-controller-leader"], &["list", "watch"]),
        // The names of objects are not known to the authorizer when they are created.
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["create"]),
        // Cron sources at their addresses are refused.
        rule("networking.k8s.io", &["servicecidrs"], &["list"]),
        // Images of streams that crons follow.
        rule("image.openshift.io", &["imagestreams"], &["get"]),
        // Clones from other namespaces, and what volume-data-source-validator knows.
        rule("gateway.networking.k8s.io", &["referencegrants"], &["get", "list"]),
        rule("populator.storage.k8s.io", &["volumepopulators"], &["get", "create"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["get"]),
        named("apiextensions.k8s.io", &["customresourcedefinitions"], &super::CONVERTED, &["patch"]),
        // The driver's SnapshotMetadataService.
        rule("cbt.storage.k8s.io", &["snapshotmetadataservices"], &["create"]),
        named(
            "cbt.storage.k8s.io",
            &["snapshotmetadataservices"],
            &[super::hostpath::DRIVER],
            &["get", "patch", "delete"],
        ),
        rule(
            "admissionregistration.k8s.io",
            &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            &["list"],
        ),
        named(
            "admissionregistration.k8s.io",
            &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
            &webhooks::NAMES,
            &["patch"],
        ),
        // The MAC pool's webhook. The names of objects are not known to the authorizer when they are created.
        rule("admissionregistration.k8s.io", &["mutatingwebhookconfigurations"], &["create"]),
        named(
            "admissionregistration.k8s.io",
            &["mutatingwebhookconfigurations"],
            &["kubemacpool-mutator"],
            &["get", "patch", "delete"],
        ),
        // Objects of OpenShift. The names of objects are not known to the authorizer when they are created.
        rule("security.openshift.io", &["securitycontextconstraints"], &["create"]),
        named(
            "security.openshift.io",
            &["securitycontextconstraints"],
            &openshift::CONSTRAINTS,
            &["get", "patch", "delete"],
        ),
        rule("console.openshift.io", &["consoleclidownloads"], &["create"]),
        named(
            "console.openshift.io",
            &["consoleclidownloads"],
            &[openshift::LINKS],
            &["get", "patch", "delete"],
        ),
        // Objects that the status of HyperConverged lists.
        named("scheduling.k8s.io", &["priorityclasses"], &[PRIORITY], &["get"]),
        rule("apiregistration.k8s.io", &["apiservices"], &["list"]),
        named("apiregistration.k8s.io", &["apiservices"], &webhooks::API_SERVICES, &["patch"]),
    ]
}

/// Rights of the operator in the platform's namespace.
fn operator_locally() -> Vec<Value> {
    vec![
        rule("", &["secrets"], &["get", "create", "update", "patch", "delete"]),
        rule("", &["configmaps"], &["get", "create", "patch", "delete"]),
        // Whether webhooks can be reached.
        rule("discovery.k8s.io", &["endpointslices"], &["list", "watch"]),
        // How the upload proxy is reached from outside.
        rule("networking.k8s.io", &["ingresses"], &["list"]),
        rule("route.openshift.io", &["routes"], &["get"]),
        // Client downloads, and the upload proxy with the certificates that its router trusts.
        rule("route.openshift.io", &["routes"], &["create"]),
        named("route.openshift.io", &["routes"], &[api::downloads::SERVICE, UPLOAD_PROXY], &["patch"]),
        rule("route.openshift.io", &["routes/custom-host"], &["create", "update"]),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update"]),
        rule("apps", &["deployments", "daemonsets"], &["get", "list", "watch", "patch"]),
        // The MAC pool; the CSI driver.
        rule("apps", &["deployments", "daemonsets"], &["create"]),
        named("apps", &["daemonsets"], &[super::hostpath::DAEMON_SET], &["delete"]),
        // The MAC pool, and pods of pools: their names contain the node's.
        rule("apps", &["deployments"], &["delete"]),
        rule("batch", &["jobs"], &["get", "list", "create", "delete"]),
        rule("policy", &["poddisruptionbudgets"], &["create"]),
        named(
            "policy",
            &["poddisruptionbudgets"],
            &["kubemacpool-mac-controller-manager", super::OPERATOR_DEPLOYMENT],
            &["get", "patch", "delete"],
        ),
        rule("monitoring.coreos.com", &["prometheusrules", "servicemonitors"], &["create", "patch"]),
        // Objects that the status of HyperConverged lists.
        named("rbac.authorization.k8s.io", &["roles", "rolebindings"], &LOCAL_ROLES, &["get"]),
    ]
}

/// Rights of the node agent; which objects it may write is limited by a ValidatingAdmissionPolicy.
fn agent() -> Vec<Value> {
    vec![
        rule("kubevirt.io", &["virtualmachineinstances"], &["get", "list", "watch", "patch"]),
        // The level of its log, and devices of the host that guests may have.
        rule("kubevirt.io", &["kubevirts"], &["list", "watch"]),
        rule("", &["nodes"], &["get", "list", "watch", "patch"]),
        // Bridges of the node, as resources.
        rule("", &["nodes/status"], &["patch"]),
        rule("", &["pods"], READ),
        // The annotation network-status. Through its status a pod's spec cannot be changed.
        rule("", &["pods/status"], &["patch"]),
        rule("k8s.cni.cncf.io", &["network-attachment-definitions"], &["get"]),
        rule("", &["events"], &["create", "patch"]),
        // The node's volumes.
        rule("", &["persistentvolumes"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "patch"]),
        rule("", &["persistentvolumeclaims/status"], &["patch"]),
        rule("storage.k8s.io", &["storageclasses"], READ),
        rule("storage.k8s.io", &["volumeattributesclasses"], &["get"]),
        rule("snapshot.storage.k8s.io", &["volumesnapshots"], &["get"]),
        rule("snapshot.storage.k8s.io", &["volumesnapshotclasses"], &["get"]),
        rule("snapshot.storage.k8s.io", &["volumesnapshotcontents"], &["get", "list", "watch", "patch"]),
        rule("snapshot.storage.k8s.io", &["volumesnapshotcontents/status"], &["patch"]),
        rule("groupsnapshot.storage.k8s.io", &["volumegroupsnapshotclasses"], &["get"]),
        rule(
            "groupsnapshot.storage.k8s.io",
            &["volumegroupsnapshotcontents"],
            &["get", "list", "watch", "patch"],
        ),
        rule("groupsnapshot.storage.k8s.io", &["volumegroupsnapshotcontents/status"], &["patch"]),
        // Clients of changed blocks.
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ]
}

/// Rights of the node agent in the platform's namespace: how much room its pools have.
fn agent_locally() -> Vec<Value> {
    vec![
        rule("storage.k8s.io", &["csistoragecapacities"], &["list", "create", "patch", "delete"]),
        named("apps", &["daemonsets"], &[super::hostpath::DAEMON_SET], &["get"]),
    ]
}

fn macpool() -> Vec<Value> {
    vec![
        rule("", &["pods", "namespaces"], &["list", "watch"]),
        rule("kubevirt.io", &["virtualmachines", "virtualmachineinstances"], &["list", "watch"]),
        rule("", &["events"], &["create"]),
        named(
            "admissionregistration.k8s.io",
            &["mutatingwebhookconfigurations"],
            &["kubemacpool-mutator"],
            &["list", "watch", "update"],
        ),
        rule("authentication.k8s.io", &["tokenreviews"], &["create"]),
        rule("authorization.k8s.io", &["subjectaccessreviews"], &["create"]),
    ]
}

fn macpool_locally() -> Vec<Value> {
    vec![
        // The names of objects are not known to the authorizer when they are created.
        rule("", &["configmaps", "secrets"], &["create"]),
        named("", &["configmaps"], &["kubemacpool-blocks"], &["get", "list", "watch", "update"]),
        named("", &["configmaps"], &["kubemacpool-mac-range-config"], &["list", "watch"]),
        named("", &["secrets"], &["kubemacpool-service"], &["list", "watch", "update"]),
    ]
}

/// Rights of the CSI sidecars; the driver itself has none.
fn sidecars() -> Vec<Value> {
    vec![
        rule("", &["nodes", "pods"], READ),
        rule("", &["persistentvolumes"], &["get", "list", "watch", "create", "patch", "delete"]),
        rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "update", "patch"]),
        rule("", &["persistentvolumeclaims/status"], &["patch"]),
        rule("", &["events"], &["list", "watch", "create", "update", "patch"]),
        rule(
            "storage.k8s.io",
            &["storageclasses", "csinodes", "volumeattachments", "volumeattributesclasses"],
            READ,
        ),
        rule("snapshot.storage.k8s.io", &["volumesnapshotclasses"], READ),
        rule("snapshot.storage.k8s.io", &["volumesnapshots"], &["get", "list", "watch", "update"]),
        rule(
            "snapshot.storage.k8s.io",
            &["volumesnapshotcontents"],
            &["get", "list", "watch", "update", "patch"],
        ),
        rule("snapshot.storage.k8s.io", &["volumesnapshotcontents/status"], &["update", "patch"]),
    ]
}

fn sidecars_locally() -> Vec<Value> {
    vec![
        rule(
            "storage.k8s.io",
            &["csistoragecapacities"],
            &["get", "list", "watch", "create", "update", "patch", "delete"],
        ),
        rule("coordination.k8s.io", &["leases"], &["get", "list", "watch", "create", "update", "delete"]),
        rule("apps", &["daemonsets"], &["get"]),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_finds_the_platforms_pods_and_nothing_else() {
        let all = roles(&Settings::default());
        let of =
            |kind: &str| all.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == MONITORING);
        let (role, binding) = (of("Role").unwrap(), of("RoleBinding").unwrap());
        assert_eq!(role["rules"], json!([rule("", &["services", "endpoints", "pods"], READ)]));
        let subjects = binding["subjects"].as_array().unwrap().iter();
        let subjects: Vec<_> = subjects.map(|one| (&one["name"], &one["namespace"])).collect();
        let name = json!("prometheus-k8s");
        assert_eq!(subjects, [(&name, &json!("monitoring")), (&name, &json!("openshift-monitoring"))]);
        let bound = |one: &&Value| one.to_string().contains(PROMETHEUS);
        assert_eq!(all.iter().filter(bound).count(), 1);
    }

    #[test]
    fn the_drivers_account_has_rights_only_for_sidecars() {
        let bound = |settings: &Settings| {
            let all = roles(settings);
            let of = |one: &&Value| one["subjects"][0]["name"] == HOSTPATH;
            all.iter().filter(of).count()
        };
        assert_eq!(bound(&Settings::default()), 0);
        assert_eq!(bound(&Settings { sidecars: true, ..Settings::default() }), 2);
    }
}
