//! Rights of the operator, compared with those that upstream's documentation lists for CDI's operator and controller,
//! cluster-wide and in their namespace: upper bounds for the needs of storage. Rights beyond have a reason.
//!
//! Not here: whether a right is used (`e2e/tests/integration/grants.rs`).

use std::collections::BTreeSet;

use operator::install::{Settings, manifests};
use serde_json::Value;

const OPERATOR: &str = "kubevirt-controller";

/// Bounds: group, resources, verbs; `*` is any.
type Bound = (&'static str, &'static [&'static str], &'static str);

/// Rights in all namespaces.
const CLUSTER: [Bound; 16] = [
    (
        "rbac.authorization.k8s.io",
        &["clusterroles", "clusterrolebindings"],
        "get list watch create update delete",
    ),
    ("security.openshift.io", &["securitycontextconstraints"], "get list watch create update"),
    (
        "apiextensions.k8s.io",
        &["customresourcedefinitions", "customresourcedefinitions/status"],
        "get list watch create update delete",
    ),
    ("cdi.kubevirt.io", &["*"], "*"),
    ("upload.cdi.kubevirt.io", &["*"], "*"),
    (
        "admissionregistration.k8s.io",
        &["mutatingwebhookconfigurations", "validatingwebhookconfigurations"],
        "get list watch create update delete",
    ),
    ("apiregistration.k8s.io", &["apiservices"], "get list watch create update delete"),
    ("", &["persistentvolumeclaims"], "*"),
    ("", &["persistentvolumes"], "get list watch update"),
    ("", &["persistentvolumeclaims/finalizers", "pods/finalizers"], "update"),
    ("", &["pods", "services"], "get list watch create delete"),
    ("", &["secrets", "events"], "create"),
    ("storage.k8s.io", &["storageclasses", "csidrivers"], "get list watch"),
    (
        "snapshot.storage.k8s.io",
        &["volumesnapshots", "volumesnapshotclasses", "volumesnapshotcontents"],
        "get list watch create delete",
    ),
    ("snapshot.storage.k8s.io", &["volumesnapshots"], "update deletecollection"),
    ("scheduling.k8s.io", &["priorityclasses"], "get list watch"),
];

/// Rights in the platform's namespace.
const LOCAL: [Bound; 8] = [
    ("rbac.authorization.k8s.io", &["roles", "rolebindings"], "get list watch create update delete"),
    (
        "",
        &["serviceaccounts", "configmaps", "events", "secrets", "services"],
        "get list watch create update delete",
    ),
    ("apps", &["deployments", "deployments/finalizers"], "get list watch create update delete"),
    ("route.openshift.io", &["routes", "routes/custom-host"], "get list watch create update"),
    ("monitoring.coreos.com", &["servicemonitors", "prometheusrules"], "get list watch create update delete"),
    ("coordination.k8s.io", &["leases"], "get create update"),
    ("batch", &["jobs"], "list watch create delete"),
    ("networking.k8s.io", &["ingresses"], "get list watch"),
];

/// Rights beyond: group, resource (`*`: any), verbs, reason.
const BEYOND: [(&str, &str, &str, &str); 39] = [
    ("kubevirt.io", "*", "*", "virtual machines: virt-operator's and virt-controller's work"),
    ("pool.kubevirt.io", "*", "*", "pools of virtual machines"),
    (
        "instancetype.kubevirt.io",
        "*",
        "*",
        "instance types of virtual machines, and those that the platform ships",
    ),
    ("hco.kubevirt.io", "*", "*", "HyperConverged"),
    ("ssp.kubevirt.io", "*", "*", "a child of HyperConverged"),
    (
        "networkaddonsoperator.network.kubevirt.io",
        "*",
        "*",
        "a child of HyperConverged, and the MAC pool that it asks for",
    ),
    ("hostpathprovisioner.kubevirt.io", "*", "*", "the operator of hostpath-provisioner"),
    ("", "events", "list patch", "events of provisioners about claims; an event that comes again is counted"),
    ("", "namespaces", "get", "the ratio of automatic memory limits, and the label of automatic CPU limits"),
    ("", "resourcequotas", "list", "whether a namespace demands limits of launcher pods"),
    ("", "nodes", "get list watch patch", "placement, silent nodes and their mark"),
    ("", "persistentvolumeclaims/status", "patch", "a condition of claims on a node that is gone"),
    (
        "",
        "persistentvolumes",
        "delete",
        "volumes of a node that is gone, when an administrator gives them up",
    ),
    ("", "secrets", "delete", "certificates of upload servers of claims that are gone"),
    ("apps", "controllerrevisions", "get list create delete", "revisions of VMs, pools and instance types"),
    ("apps", "daemonsets", "get list watch create delete patch", "the node agent and the CSI driver"),
    ("apps", "deployments", "list watch", "whether another snapshot controller runs"),
    (
        "authorization.k8s.io",
        "subjectaccessreviews",
        "create",
        "rights of users at clones and aggregated APIs",
    ),
    (
        "cbt.storage.k8s.io",
        "snapshotmetadataservices",
        "get create delete patch",
        "changed blocks of the CSI driver",
    ),
    (
        "console.openshift.io",
        "consoleclidownloads",
        "get create delete patch",
        "links of client downloads, HyperConverged's operator upstream",
    ),
    ("coordination.k8s.io", "leases", "list watch", "whether another snapshot controller leads"),
    ("discovery.k8s.io", "endpointslices", "list watch", "whether webhooks can be reached"),
    ("gateway.networking.k8s.io", "referencegrants", "get list", "clones from other namespaces"),
    ("groupsnapshot.storage.k8s.io", "*", "*", "the snapshot controller's work"),
    ("image.openshift.io", "imagestreams", "get", "images of streams that crons follow"),
    ("k8s.cni.cncf.io", "network-attachment-definitions", "get", "networks of virtual machines"),
    ("networking.k8s.io", "servicecidrs", "list", "cron sources at addresses of Services are refused"),
    ("populator.storage.k8s.io", "volumepopulators", "get create", "volume-data-source-validator"),
    (
        "rbac.authorization.k8s.io",
        "clusterroles",
        "escalate",
        "labels of three roles: roleAggregationStrategy of KubeVirt, virt-operator's work",
    ),
    ("security.openshift.io", "securitycontextconstraints", "delete", "they go with HyperConverged"),
    ("snapshot.storage.k8s.io", "*", "patch", "the snapshot controller's work, its status too"),
    (
        "storage.k8s.io",
        "csidrivers",
        "create delete patch",
        "the operator of hostpath-provisioner deploys its driver",
    ),
    ("storage.k8s.io", "csinodes", "get list watch", "the topology of drivers that no table knows"),
    ("storage.k8s.io", "csistoragecapacities", "get list watch", "the node with room for a claim"),
    ("storage.k8s.io", "storageclasses", "create", "classes of shared pools"),
    ("batch", "jobs", "get", "whether a pool is unmounted"),
    (
        "",
        "configmaps",
        "create",
        "copies of trustedCAProxy for importers; upstream's controller has it by its own role",
    ),
    ("", "pods/status", "patch", "the readiness gate of launchers, KubeVirt's controller upstream"),
    (
        "policy",
        "poddisruptionbudgets",
        "get create delete patch",
        "replicas of the operator and the MAC pool",
    ),
];

/// The rights of a role: group, resource, verb.
fn rights(kind: &str) -> BTreeSet<(String, String, String)> {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let all = manifests(&Settings::default());
    let role = all.iter().find(|one| one["kind"] == kind && one["metadata"]["name"] == OPERATOR).unwrap();
    let mut found = BTreeSet::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                for verb in texts(&rule["verbs"]) {
                    found.insert((group.clone(), resource.clone(), verb));
                }
            }
        }
    }
    found
}

/// Whether a list of verbs has one. A patch changes less than an update, or as much.
fn allows(verbs: &str, verb: &str) -> bool {
    let verb = if verb == "patch" { "update" } else { verb };
    verbs == "*" || verbs.split(' ').any(|one| one == verb)
}

/// Whether upstream's components have a right.
fn is_within(bounds: &[Bound], (group, resource, verb): &(String, String, String)) -> bool {
    bounds.iter().any(|(one, resources, verbs)| {
        one == group && resources.iter().any(|of| *of == "*" || of == resource) && allows(verbs, verb)
    })
}

fn reason((group, resource, verb): &(String, String, String)) -> Option<&'static str> {
    let found = BEYOND.iter().find(|(one, of, verbs, _)| {
        one == group
            && (*of == "*" || of == resource)
            && (*verbs == "*" || verbs.split(' ').any(|one| one == verb))
    });
    found.map(|(.., reason)| *reason)
}

#[test]
fn rights_are_those_of_upstreams_storage_or_have_a_reason() {
    let mut used = BTreeSet::new();
    let mut wrong = Vec::new();
    // Rights in all namespaces are rights in the platform's.
    let local: Vec<Bound> = LOCAL.into_iter().chain(CLUSTER).collect();
    for (kind, bounds) in [("ClusterRole", &CLUSTER[..]), ("Role", &local[..])] {
        for right in rights(kind).iter().filter(|right| !is_within(bounds, right)) {
            match reason(right) {
                Some(reason) => drop(used.insert(reason)),
                None => wrong.push(format!("{kind}: {right:?}")),
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} rights beyond upstream's, without a reason:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    for (group, resource, _, reason) in BEYOND {
        assert!(used.contains(reason), "{resource}.{group} is within upstream's: {reason}");
    }
}
