//! The ValidatingAdmissionPolicies in a real API server (`make kube`): requests of the platform's accounts, of users and of
//! Kubernetes' controllers, each with a token of its ServiceAccount.

use cluster::{Delete, Key};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::site::{PLATFORM, PODS, Site, TEAM, eventually, kind};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn launcher_pods_keep_what_they_are_found_by() {
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
        for (who, client) in [("user", editor), ("administrator", admin)] {
            let answer = client.merge_patch::<Value>(PODS, &key("launcher"), &patch).await;
            refused(answer, CHANGED, &format!("{who}: {patch}"));
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
