//! The ValidatingAdmissionPolicies in a real API server (`make kube`): requests of the platform's accounts, of users and of
//! Kubernetes' controllers, each with a token of its ServiceAccount.

use std::sync::atomic::{AtomicU32, Ordering};

use cluster::{Client, Delete, Key, Resource};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::site::{PLATFORM, PODS, Site, TEAM, eventually, kind};

const EVENTS: Resource = Resource::namespaced("", "v1", "events");
const INSTANCES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstances");
const NODES: Resource = Resource::cluster("", "v1", "nodes");
const ROLES: Resource = Resource::cluster("rbac.authorization.k8s.io", "v1", "clusterroles");

/// An API server with the platform's accounts, roles and policies.
async fn site() -> Site {
    let site = Site::start().await;
    let installed = site.install(|object| {
        let kind = kind(object);
        let decides = ["Namespace", "ServiceAccount", "CustomResourceDefinition"].contains(&kind);
        decides
            || ["Role", "RoleBinding", "AdmissionPolicy", "PolicyBinding"]
                .iter()
                .any(|end| kind.ends_with(end))
    });
    assert!(installed.status.success(), "{installed:?}");
    site
}

/// A pod of nothing but its metadata.
fn pod(name: &str, labels: &Value, owners: &Value) -> Value {
    json!({
        "metadata": {
            "name": name, "labels": labels, "ownerReferences": owners,
            "annotations": {"kubevirt.io/domain": "vm"},
        },
        "spec": {"containers": [{"name": "compute", "image": "none"}]},
    })
}

/// Asserts that a request was refused with this text.
#[track_caller]
fn refused<T>(answer: cluster::Result<T>, text: &str, what: &str) {
    let Err(error) = answer else { panic!("{what}: accepted") };
    assert!(error.chain().contains(text), "{what}: {}", error.chain());
}

/// A client of the agent on a node, which is made too.
async fn agent(site: &Site, node: &str) -> Client {
    let object = json!({"metadata": {"name": node}});
    site.admin.create::<IgnoredAny>(NODES, "", &object).await.unwrap();
    let pod = json!({
        "metadata": {"name": format!("virt-handler-{node}")},
        "spec": {
            "nodeName": node, "serviceAccountName": "kubevirt-handler",
            "containers": [{"name": "virt-handler", "image": "none"}],
        },
    });
    let pod: Value = site.admin.create(PODS, PLATFORM, &pod).await.unwrap();
    site.account(PLATFORM, "kubevirt-handler", Some(&pod)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_write_objects_of_their_own_node_only() {
    let site = site().await;
    let admin = &site.admin;
    let (own, other) = (agent(&site, "own").await, agent(&site, "other").await);
    // Of no pod, and so of no node.
    let nowhere = site.account(PLATFORM, "kubevirt-handler", None).await;
    let instance = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "labels": {"kubevirt.io/nodeName": "own"}},
        "spec": {"domain": {"devices": {}}}, "status": {"phase": "Scheduled", "nodeName": "own"},
    });
    eventually("the definition is served", async || {
        admin.create::<IgnoredAny>(INSTANCES, TEAM, &instance).await.is_ok()
    })
    .await;
    let mut guest = pod("guest", &json!({}), &json!([]));
    guest["spec"]["nodeName"] = json!("own");
    admin.create::<IgnoredAny>(PODS, TEAM, &guest).await.unwrap();
    let event = |name: &str, instance: &str, host: Option<&str>| {
        json!({
            "metadata": {"name": name}, "reason": "R", "message": "m", "type": "Normal",
            "involvedObject": {"kind": "Pod", "namespace": TEAM, "name": "guest"},
            "reportingComponent": "virt-handler", "reportingInstance": instance,
            "source": {"component": "virt-handler", "host": host},
        })
    };
    let schedulable = json!({"metadata": {"labels": {"kubevirt.io/schedulable": "true"}}});
    let bridge = json!({"status": {"capacity": {"bridge.network.kubevirt.io/b": "1k"}}});
    let running = json!({"status": {"phase": "Running"}});
    let status = json!({"metadata": {"annotations": {"k8s.v1.cni.cncf.io/network-status": "[]"}}});
    let count = json!({"count": 2});
    let node = || Key::cluster("own");
    let team = |name: &str| Key::new(TEAM, name);
    let cases = [
        (NODES, node(), &schedulable, "its own node only"),
        (NODES.sub("status"), node(), &bridge, "its own node only"),
        (INSTANCES, team("vm"), &running, "instances of its own node only"),
        (PODS.sub("status"), team("guest"), &status, "pods of its own node only"),
        (EVENTS, team("event"), &count, "events of its own node only"),
    ];
    let first = event("event", "own", None);
    own.create::<IgnoredAny>(EVENTS, TEAM, &first).await.unwrap();
    for (resource, key, patch, text) in &cases {
        // Policies are in force some time after they are created.
        eventually(text, async || {
            let answer = other.merge_patch::<IgnoredAny>(*resource, key, patch).await;
            answer.is_err_and(|error| error.chain().contains(text))
        })
        .await;
        let answer = nowhere.merge_patch::<Value>(*resource, key, patch).await;
        refused(answer, text, &format!("{key} by an agent of no node"));
        own.merge_patch::<IgnoredAny>(*resource, key, patch).await.unwrap();
    }
    for (instance, host) in [("own", None), ("", None), ("other", Some("own"))] {
        let answer = other.create::<Value>(EVENTS, TEAM, &event("forged", instance, host)).await;
        refused(answer, "events of its own node only", &format!("{instance}, {host:?}"));
    }
    other.create::<IgnoredAny>(EVENTS, TEAM, &event("true", "other", Some("other"))).await.unwrap();

    // On its own node, too, it changes only what it is there for.
    for (resource, key, patch, text) in [
        (
            INSTANCES,
            team("vm"),
            json!({"spec": {"terminationGracePeriodSeconds": 1}}),
            "may not change the spec of an instance",
        ),
        (
            INSTANCES,
            team("vm"),
            json!({"metadata": {"labels": {"kubevirt.io/nodeName": "other"}}}),
            "may not change the labels of an instance",
        ),
        (
            PODS.sub("status"),
            team("guest"),
            json!({"metadata": {"annotations": {"other": "x"}}}),
            "only the annotation network-status",
        ),
        (PODS.sub("status"), team("guest"), json!({"status": {"phase": "Failed"}}), "only the annotation"),
    ] {
        refused(own.merge_patch::<Value>(resource, &key, &patch).await, text, &patch.to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn launcher_pods_keep_their_identity() {
    const MADE: &str = "made by the operator only";
    const CHANGED: &str = "changed by the operator only";
    let site = site().await;
    let (admin, editor) = (&site.admin, &site.editor().await);
    let operator = site.account(PLATFORM, "kubevirt-controller", None).await;
    let collector = site.account("kube-system", "generic-garbage-collector", None).await;
    let owners = json!([{
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm", "uid": "u",
        "controller": true,
    }]);
    let labels = json!({"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": "u", "app": "web"});
    let launcher = pod("launcher", &labels, &owners);
    // Policies are in force some time after they are created.
    eventually("the policy is in force", async || {
        let trial = editor.create::<IgnoredAny>(PODS, TEAM, &launcher).await;
        let refused = trial.as_ref().is_err_and(|error| error.chain().contains(MADE));
        if trial.is_ok() {
            editor.delete(PODS, &Key::new(TEAM, "launcher"), &Delete::default().grace(0)).await.unwrap();
        }
        refused
    })
    .await;
    refused(admin.create::<Value>(PODS, TEAM, &launcher).await, MADE, "create by an administrator");
    operator.create::<IgnoredAny>(PODS, TEAM, &launcher).await.unwrap();
    let volume = pod("volume", &json!({"kubevirt.io": "hotplug-disk"}), &owners);
    operator.create::<IgnoredAny>(PODS, TEAM, &volume).await.unwrap();
    editor.create::<IgnoredAny>(PODS, TEAM, &pod("other", &json!({"app": "web"}), &json!([]))).await.unwrap();

    let key = |name: &str| Key::new(TEAM, name);
    for change in [
        json!({"labels": {"kubevirt.io": null}}),
        json!({"labels": {"kubevirt.io": "other"}}),
        json!({"labels": null}),
        json!({"labels": {"kubevirt.io/created-by": null}}),
        json!({"labels": {"kubevirt.io/created-by": "another"}}),
        json!({"annotations": {"kubevirt.io/ephemeral-provisioning": "true"}}),
        json!({"annotations": {"kubevirt.io/domain": null}}),
        json!({"ownerReferences": null}),
        json!({"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": "c"}]}),
    ] {
        let patch = json!({"metadata": change});
        for (user, client) in [("user", editor), ("administrator", admin)] {
            let answer = client.merge_patch::<Value>(PODS, &key("launcher"), &patch).await;
            refused(answer, CHANGED, &format!("{user}: {patch}"));
        }
        // The API server ignores changes of owners of this request.
        if change.get("ownerReferences").is_none() {
            let answer = admin.merge_patch::<Value>(PODS.sub("status"), &key("launcher"), &patch).await;
            refused(answer, CHANGED, &format!("status: {patch}"));
        }
    }
    for change in [
        json!({"labels": {"kubevirt.io": null}}),
        json!({"annotations": {"kubevirt.io/owner-vmi-uid": "another"}}),
        json!({"annotations": {"kubevirt.io/owner-vmi-name": "another"}}),
        json!({"annotations": {"ferrovirt.io/volume": "another"}}),
        json!({"ownerReferences": null}),
    ] {
        let patch = json!({"metadata": change});
        let answer = editor.merge_patch::<Value>(PODS, &key("volume"), &patch).await;
        refused(answer, CHANGED, &format!("volume: {patch}"));
    }

    // Everything else can be changed, and every field of other pods.
    let free = json!({"metadata": {"labels": {"app": "db", "b": "c"}, "annotations": {"d": "e"}}});
    editor.merge_patch::<IgnoredAny>(PODS, &key("launcher"), &free).await.unwrap();
    let kubelet = json!({"status": {"phase": "Running", "podIP": "10.0.0.1"}});
    admin.merge_patch::<IgnoredAny>(PODS.sub("status"), &key("launcher"), &kubelet).await.unwrap();
    let other = json!({"metadata": {"labels": {"kubevirt.io/created-by": "u"}, "ownerReferences": owners}});
    editor.merge_patch::<IgnoredAny>(PODS, &key("other"), &other).await.unwrap();
    let launcher = json!({"metadata": {"labels": {"kubevirt.io": "virt-launcher"}}});
    for resource in [PODS, PODS.sub("status")] {
        let answer = admin.merge_patch::<Value>(resource, &key("other"), &launcher).await;
        refused(answer, MADE, &format!("{resource:?}: {launcher}"));
    }

    // The garbage collector releases dependents of an owner that is deleted without them, and nothing else.
    let orphaned = json!({"metadata": {"ownerReferences": null}});
    let found = json!({"metadata": {"ownerReferences": null, "labels": {"kubevirt.io/created-by": null}}});
    let answer = collector.merge_patch::<Value>(PODS, &key("launcher"), &found).await;
    refused(answer, CHANGED, "a label by the garbage collector");
    collector.merge_patch::<IgnoredAny>(PODS, &key("launcher"), &orphaned).await.unwrap();

    // The namespace controller and users delete.
    for (client, name) in [(editor, "launcher"), (admin, "volume")] {
        assert!(client.delete(PODS, &key(name), &Delete::default().grace(0)).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_changes_labels_of_roles_and_not_their_rules() {
    const LABELS_ONLY: &str = "only the aggregation label";
    let site = site().await;
    let operator = site.account(PLATFORM, "kubevirt-controller", None).await;
    let role = Key::cluster("kubevirt.io:edit");
    let label = |name: &str, value: &str| json!({"metadata": {"labels": {name: value}}});
    // Policies are in force some time after they are created.
    let trials = AtomicU32::new(0);
    eventually("the policy is in force", async || {
        let name = format!("trial-{}", trials.fetch_add(1, Ordering::Relaxed));
        let rule =
            json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["get"], "resourceNames": [name]});
        let answer = operator.merge_patch::<IgnoredAny>(ROLES, &role, &json!({"rules": [rule]})).await;
        answer.is_err_and(|error| error.chain().contains(LABELS_ONLY))
    })
    .await;
    let owner = json!({"apiVersion": "v1", "kind": "Namespace", "name": TEAM, "uid": "u"});
    for change in [
        json!({"rules": null}),
        json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"a": "b"}}]}}),
        label("rbac.authorization.k8s.io/aggregate-to-team", "true"),
        label("team", ""),
        json!({"metadata": {"annotations": {"rbac.authorization.kubernetes.io/autoupdate": "false"}}}),
        json!({"metadata": {"finalizers": ["ferrovirt.io/trial"]}}),
        json!({"metadata": {"ownerReferences": [owner]}}),
        // Those of the other roles.
        label("rbac.authorization.k8s.io/aggregate-to-view", "true"),
        label("rbac.authorization.k8s.io/aggregate-to-admin", "true"),
    ] {
        let answer = operator.merge_patch::<Value>(ROLES, &role, &change).await;
        refused(answer, LABELS_ONLY, &change.to_string());
    }
    let admins = Key::cluster("kubevirt.io:admin");
    let to_view = label("rbac.authorization.k8s.io/aggregate-to-view", "true");
    let answer = operator.merge_patch::<Value>(ROLES, &admins, &to_view).await;
    refused(answer, LABELS_ONLY, "rights of administrators for all who may view");
    for to in ["view", "edit", "admin"] {
        let role = Key::cluster(&format!("kubevirt.io:{to}"));
        let label = label(&format!("rbac.authorization.k8s.io/aggregate-to-{to}"), "manual");
        operator.merge_patch::<IgnoredAny>(ROLES, &role, &label).await.unwrap();
    }
    let other = Key::cluster("cdi.kubevirt.io:edit");
    let label = label("rbac.authorization.k8s.io/aggregate-to-edit", "manual");
    refused(operator.merge_patch::<Value>(ROLES, &other, &label).await, "forbidden", "another role");
}
