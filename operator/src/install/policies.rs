//! ValidatingAdmissionPolicies: limits that hold without any of the platform's pods.
//!
//! - The node agent writes only its own node and the instances on it: the API server puts the node of the agent's pod
//!   into its token, so an agent on a stolen node cannot name another one.
//! - The node agent writes events in the name of its own node only.
//! - The node agent changes nothing of a pod but the annotation network-status, on its own node.
//! - The node agent writes only claims, volumes, snapshots and capacities that the labels of its node are on; it takes a
//!   content of a snapshot that the operator offers to all nodes.
//! - Only the operator makes pods that count as launchers, and changes what identifies them: a launcher that is not found
//!   any more would be replaced while its guest still writes to its disks.
//! - The operator changes nothing of a ClusterRole but one label of `kubevirt.io:view`, `edit` and `admin` each, by which the
//!   role is part of the cluster's.
//! - `HyperConverged` has one name and one namespace.

use serde_json::{Value, json};

use super::accounts::{AGENT, OPERATOR};
use super::{Settings, object, roles, user_roles, with};

const ADMISSION: &str = "admissionregistration.k8s.io/v1";
/// Node of the pod whose token made the request; empty for other requests.
const NODE: &str = "request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')";

/// Values of a label of the old object.
fn old_label(name: &str) -> String {
    format!("oldObject.metadata.?labels[?'{name}'].orValue('')")
}

/// A policy for requests of one user (or of all others), and its binding.
fn policy(name: &str, rule: &Value, conditions: &Value, variables: &Value, checks: &Value) -> [Value; 2] {
    let mut spec = json!({
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule], "matchPolicy": "Equivalent"},
        "validations": checks,
    });
    if conditions.as_array().is_some_and(|list| !list.is_empty()) {
        spec["matchConditions"] = conditions.clone();
    }
    if variables.as_array().is_some_and(|list| !list.is_empty()) {
        spec["variables"] = variables.clone();
    }
    let policy = with(object(ADMISSION, "ValidatingAdmissionPolicy", name, None), json!({"spec": spec}));
    let binding = with(
        object(ADMISSION, "ValidatingAdmissionPolicyBinding", name, None),
        json!({"spec": {"policyName": name, "validationActions": ["Deny"]}}),
    );
    [policy, binding]
}

/// True where old and new object have the same value in a field of the metadata, which is `none` where it is missing.
fn same(field: &str, none: &str) -> String {
    format!("object.metadata.?{field}.orValue({none}) == oldObject.metadata.?{field}.orValue({none})")
}

/// True where old and new object have the same labels or annotations but for these; an absent one and an empty one differ.
fn same_but(field: &str, except: &[&str]) -> String {
    let except = except.iter().map(|key| format!("key == '{key}' || ")).collect::<String>();
    // Every other entry of one object is in the other object.
    let within = |one: &str, other: &str| {
        format!(
            "{one}.metadata.?{field}.orValue({{}}).all(key, {except}\
             {other}.metadata.?{field}[?key] == {one}.metadata.?{field}[?key])"
        )
    };
    format!("{} && {}", within("object", "oldObject"), within("oldObject", "object"))
}

/// True where old and new object have the same spec and status.
const SAME_CONTENT: &str = "object.spec == oldObject.spec && object.?status == oldObject.?status";

/// True where old and new object differ in the annotation network-status alone, as far as anything acts on it.
fn only_network_status() -> String {
    [
        same("labels", "{}"),
        same("finalizers", "[]"),
        same("ownerReferences", "[]"),
        SAME_CONTENT.to_owned(),
        same_but("annotations", &["k8s.v1.cni.cncf.io/network-status"]),
    ]
    .join(" && ")
}

/// True where the agent takes a VolumeSnapshotContent of a snapshot that was not taken in the cluster, without a node: it adds
/// its node's label and removes the one that asks for it, and changes nothing else.
fn takes_content() -> String {
    let (node, asks) = ("snapshot.storage.kubernetes.io/managed-by", crate::volumes::seen::UNASSIGNED);
    [
        format!("variables.node != '' && {} != '' && {} == ''", old_label(asks), old_label(node)),
        format!("oldObject.spec.driver == '{}'", super::hostpath::DRIVER),
        "oldObject.spec.source.?snapshotHandle.orValue('') != ''".to_owned(),
        format!("object.metadata.?labels[?'{node}'].orValue('') == variables.node"),
        format!("!('{asks}' in object.metadata.labels)"),
        same_but("labels", &[node, asks]),
        same("annotations", "{}"),
        same("finalizers", "[]"),
        same("ownerReferences", "[]"),
        SAME_CONTENT.to_owned(),
    ]
    .join(" && ")
}

/// Policies of the objects of volumes: the agent writes those of its node only, which a label names.
fn volumes(agent: &Value, node: &Value) -> Vec<Value> {
    let label = |object: &str, name: &str| format!("{object}.metadata.?labels[?'{name}'].orValue('')");
    let rule = |group: &str, resources: &[&str], operations: &[&str]| {
        json!({
            "apiGroups": [group],
            "apiVersions": ["*"],
            "operations": operations,
            "resources": resources,
        })
    };
    let check = |expression: String, message: &str| json!({"expression": expression, "message": message, "reason": "Forbidden"});
    // The object as it is after a CREATE, as it was before an UPDATE or DELETE.
    let is = |name: &str, value: &str| {
        format!(
            "variables.node != '' && (request.operation == 'CREATE' ? {} : {}) == {value}",
            label("object", name),
            label("oldObject", name),
        )
    };
    let mine = is("ferrovirt.io/node", "variables.node");
    let mut all = Vec::new();
    all.extend(policy(
        "ferrovirt-agent-writes-claims-of-its-node",
        &rule("", &["persistentvolumeclaims", "persistentvolumeclaims/status"], &["UPDATE"]),
        agent,
        node,
        &json!([
            check(mine.clone(), "the node agent may change claims of its own node only"),
            check(
                "object.spec == oldObject.spec".to_owned(),
                "the node agent may not change the spec of a claim",
            ),
        ]),
    ));
    all.extend(policy(
        "ferrovirt-agent-writes-volumes-of-its-node",
        &rule("", &["persistentvolumes"], &["CREATE", "UPDATE", "DELETE"]),
        agent,
        node,
        &json!([
            check(mine, "the node agent may make, change and delete PersistentVolumes of its own node only"),
            check(
                format!(
                    "(request.operation == 'CREATE' ? object : oldObject).spec.?csi.?driver.orValue('') == '{}'",
                    super::hostpath::DRIVER,
                ),
                "the node agent may write PersistentVolumes of the hostpath driver only",
            ),
        ]),
    ));
    let labelled = is("snapshot.storage.kubernetes.io/managed-by", "variables.node");
    for (name, group, contents, kind, rule_of_kind) in [
        (
            "snapshots",
            "snapshot.storage.k8s.io",
            "volumesnapshotcontents",
            "VolumeSnapshotContents",
            format!("{labelled} || ({})", takes_content()),
        ),
        (
            "group-snapshots",
            "groupsnapshot.storage.k8s.io",
            "volumegroupsnapshotcontents",
            "VolumeGroupSnapshotContents",
            labelled.clone(),
        ),
    ] {
        all.extend(policy(
            &format!("ferrovirt-agent-writes-{name}-of-its-node"),
            &rule(group, &[contents, &format!("{contents}/status")], &["UPDATE"]),
            agent,
            node,
            &json!([check(rule_of_kind, &format!("the node agent may change {kind} of its own node only"),)]),
        ));
    }
    all.extend(policy(
        "ferrovirt-agent-writes-capacities-of-its-node",
        &rule("storage.k8s.io", &["csistoragecapacities"], &["CREATE", "UPDATE", "DELETE"]),
        agent,
        node,
        &json!([check(
            is("csi.storage.k8s.io/managed-by", "'external-provisioner-' + variables.node"),
            "the node agent may write CSIStorageCapacities of its own node only",
        )]),
    ));
    all
}

/// The policy of pods that count as launchers: by these labels, annotations and owners operator and agent find the pod of a
/// guest and the pods of its volumes. The kubelet and network plugins change other fields, the namespace controller deletes.
fn launchers(settings: &Settings) -> [Value; 2] {
    const LABELS: [&str; 2] = ["kubevirt.io", "kubevirt.io/created-by"];
    const ANNOTATIONS: [&str; 5] = [
        "kubevirt.io/domain",
        "kubevirt.io/ephemeral-provisioning",
        "kubevirt.io/owner-vmi-name",
        "kubevirt.io/owner-vmi-uid",
        "ferrovirt.io/volume",
    ];
    let is_launcher = |object: &str| {
        format!("{object}.metadata.?labels[?'kubevirt.io'].orValue('') in ['virt-launcher', 'hotplug-disk']")
    };
    let was_launcher = format!("request.operation == 'UPDATE' && {}", is_launcher("oldObject"));
    let same = |field: &str, names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| format!("'{name}'")).collect();
        format!(
            "[{}].all(name, object.metadata.?{field}[?name] == oldObject.metadata.?{field}[?name])",
            names.join(", "),
        )
    };
    let owners = |object: &str| format!("{object}.metadata.?ownerReferences.orValue([])");
    // Its account, and its user where the controllers have no accounts of their own.
    let collector = "request.userInfo.username in ['system:serviceaccount:kube-system:generic-garbage-collector', \
                     'system:kube-controller-manager']";
    let identity =
        "labels, annotations and owners by which a launcher pod is found are changed by the operator only";
    let [labels, annotations] = [same("labels", &LABELS), same("annotations", &ANNOTATIONS)];
    policy(
        "ferrovirt-operator-makes-launchers",
        &json!({
            "apiGroups": [""],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["pods", "pods/status"],
        }),
        &json!([
            {"name": "launcher", "expression": format!("{} || ({was_launcher})", is_launcher("object"))},
            {
                "name": "others",
                "expression": format!("request.userInfo.username != '{}'", settings.user(OPERATOR)),
            },
        ]),
        &json!([]),
        &json!([
            {
                "expression": was_launcher,
                "message": "pods with the label kubevirt.io=virt-launcher or hotplug-disk are made by the operator only",
                "reason": "Forbidden",
            },
            {
                "expression": format!("!({was_launcher}) || ({labels} && {annotations})"),
                "message": identity,
                "reason": "Forbidden",
            },
            {
                "expression": format!(
                    "!({was_launcher}) || {} == {} || {collector}",
                    owners("object"),
                    owners("oldObject"),
                ),
                "message": identity,
                "reason": "Forbidden",
            },
        ]),
    )
}

/// The policy of ClusterRoles: the operator has the verb `escalate` for [`roles::COMPUTE_ROLES`], and changes one label of each.
fn labels_of_roles(settings: &Settings) -> [Value; 2] {
    let labels = roles::COMPUTE_ROLES.map(|(_, to)| format!("{}{to}", user_roles::AGGREGATE));
    let check = |expression: String| {
        json!({
            "expression": expression,
            "message": "the operator may change only the aggregation label of each of its ClusterRoles",
            "reason": "Forbidden",
        })
    };
    let mut checks = vec![
        check("object.?rules.orValue([]) == oldObject.?rules.orValue([])".to_owned()),
        check("object.?aggregationRule == oldObject.?aggregationRule".to_owned()),
        check(same_but("labels", &labels.each_ref().map(String::as_str))),
        check(same("annotations", "{}")),
        check(same("finalizers", "[]")),
        check(same("ownerReferences", "[]")),
    ];
    checks.extend(roles::COMPUTE_ROLES.iter().zip(&labels).map(|((name, _), label)| {
        check(format!(
            "object.metadata.name == '{name}' || \
             object.metadata.?labels[?'{label}'] == oldObject.metadata.?labels[?'{label}']"
        ))
    }));
    policy(
        "ferrovirt-operator-labels-roles",
        &json!({
            "apiGroups": ["rbac.authorization.k8s.io"],
            "apiVersions": ["*"],
            "operations": ["UPDATE"],
            "resources": ["clusterroles"],
        }),
        &json!([{
            "name": "operator",
            "expression": format!("request.userInfo.username == '{}'", settings.user(OPERATOR)),
        }]),
        &json!([]),
        &Value::Array(checks),
    )
}

/// All policies.
pub(super) fn policies(settings: &Settings) -> Vec<Value> {
    let agent = json!([{
        "name": "agent",
        "expression": format!("request.userInfo.username == '{}'", settings.user(AGENT)),
    }]);
    let node = json!([{"name": "node", "expression": NODE}]);
    let mut all = Vec::new();
    all.extend(policy(
        "ferrovirt-agent-writes-its-node",
        &json!({
            "apiGroups": [""],
            "apiVersions": ["*"],
            "operations": ["UPDATE"],
            "resources": ["nodes", "nodes/status"],
        }),
        &agent,
        &node,
        &json!([{
            "expression": "variables.node != '' && variables.node == object.metadata.name",
            "message": "the node agent may change its own node only",
            "reason": "Forbidden",
        }]),
    ));
    let on_node = format!(
        "variables.node != '' && (variables.node == {} || variables.node == {})",
        old_label("kubevirt.io/nodeName"),
        old_label("kubevirt.io/migrationTargetNodeName"),
    );
    all.extend(policy(
        "ferrovirt-agent-writes-instances-of-its-node",
        &json!({
            "apiGroups": ["kubevirt.io"],
            "apiVersions": ["*"],
            "operations": ["UPDATE"],
            "resources": ["virtualmachineinstances"],
        }),
        &agent,
        &node,
        &json!([
            {
                "expression": on_node,
                "message": "the node agent may change instances of its own node only",
                "reason": "Forbidden",
            },
            {
                "expression": "object.spec == oldObject.spec",
                "message": "the node agent may not change the spec of an instance",
                "reason": "Forbidden",
            },
            {
                "expression": "object.metadata.?labels.orValue({}) == oldObject.metadata.?labels.orValue({})",
                "message": "the node agent may not change the labels of an instance",
                "reason": "Forbidden",
            },
        ]),
    ));
    all.extend(policy(
        "ferrovirt-agent-writes-network-status",
        &json!({
            "apiGroups": [""],
            "apiVersions": ["*"],
            "operations": ["UPDATE"],
            "resources": ["pods", "pods/status"],
        }),
        &agent,
        &node,
        &json!([
            {
                "expression": "variables.node != '' && variables.node == oldObject.spec.?nodeName.orValue('')",
                "message": "the node agent may change pods of its own node only",
                "reason": "Forbidden",
            },
            {
                "expression": only_network_status(),
                "message": "the node agent may change only the annotation network-status of a pod",
                "reason": "Forbidden",
            },
        ]),
    ));
    let reported_here = |object: &str| {
        format!(
            "{object}.?reportingInstance.orValue('') == variables.node && \
             {object}.?source.?host.orValue('') in ['', variables.node]"
        )
    };
    all.extend(policy(
        "ferrovirt-agent-writes-events-of-its-node",
        &json!({
            "apiGroups": [""],
            "apiVersions": ["*"],
            "operations": ["CREATE", "UPDATE"],
            "resources": ["events"],
        }),
        &agent,
        &node,
        &json!([{
            "expression": format!(
                "variables.node != '' && {} && (request.operation == 'CREATE' || {})",
                reported_here("object"),
                reported_here("oldObject"),
            ),
            "message": "the node agent may write events of its own node only",
            "reason": "Forbidden",
        }]),
    ));
    all.extend(volumes(&agent, &node));
    all.extend(launchers(settings));
    all.extend(labels_of_roles(settings));
    // Upstream's name. The webhook refuses the same while the operator runs.
    let place = |field: &str, value: &str| {
        json!({
            "expression": format!("object.{field} == '{value}'"),
            "message": format!("{field}: must be {value}"),
            "reason": "Invalid",
        })
    };
    all.extend(policy(
        "hyperconverged-namespace-policy",
        &json!({
            "apiGroups": ["hco.kubevirt.io"],
            "apiVersions": ["*"],
            "operations": ["CREATE"],
            "resources": ["hyperconvergeds"],
        }),
        &json!([]),
        &json!([]),
        &json!([
            place("metadata.namespace", &settings.namespace),
            place("metadata.name", api::hyperconverged::NAME),
        ]),
    ));
    all
}
