//! The instance types and preferences that the platform ships, against the platform's controllers and a real API server
//! (`make kube`). No pod runs: the platform stays Deploying.

use std::collections::BTreeMap;

use cluster::{Delete, Key, Resource, Scope};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::site::{Site, TEAM, eventually, kind};

const KUBEVIRTS: Resource = Resource::namespaced("kubevirt.io", "v1", "kubevirts");
const TYPES: Resource =
    Resource::cluster("instancetype.kubevirt.io", "v1beta1", "virtualmachineclusterinstancetypes");
const PREFERENCES: Resource =
    Resource::cluster("instancetype.kubevirt.io", "v1beta1", "virtualmachineclusterpreferences");

/// Names of all objects, with the version of each.
async fn versions(site: &Site, resource: Resource) -> BTreeMap<String, String> {
    let all: Vec<Value> = site.admin.list(resource, &Scope::all()).await.unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    all.iter()
        .map(|one| (text(&one["metadata"]["name"]), text(&one["metadata"]["resourceVersion"])))
        .collect()
}

/// How many instance types and preferences there are.
async fn counts(site: &Site) -> (usize, usize) {
    (versions(site, TYPES).await.len(), versions(site, PREFERENCES).await.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shipped_ones_are_there_while_kubevirt_asks_for_them() {
    let site = Site::start().await;
    let installed = site.install(|object| kind(object) == "CustomResourceDefinition");
    assert!(installed.status.success(), "{installed:?}");
    // A user's own, and one of a name that is shipped as well.
    for name in ["mine", "u1.micro"] {
        let own = json!({
            "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineClusterInstancetype",
            "metadata": {"name": name}, "spec": {"cpu": {"guest": 3}, "memory": {"guest": "3Gi"}},
        });
        eventually("the definition is served", async || {
            site.admin.create::<IgnoredAny>(TYPES, "", &own).await.is_ok()
        })
        .await;
    }
    let (stopper, stop) = cluster::stop::pair();
    let controllers = tokio::spawn(operator::platform::run(site.context("platform"), stop));
    let kubevirt = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": {},
    });
    site.admin.create::<IgnoredAny>(KUBEVIRTS, TEAM, &kubevirt).await.unwrap();
    eventually("all are there", async || counts(&site).await == (66, 54)).await;
    let micro = Key::cluster("u1.micro");
    let shipped = async || {
        let live: Value = site.admin.get(TYPES, &micro).await.unwrap();
        live["spec"] == json!({"cpu": {"guest": 1}, "memory": {"guest": "1Gi"}})
            && live["metadata"]["labels"]["instancetype.kubevirt.io/size"] == "micro"
    };
    eventually("the type of a shipped name is as shipped", shipped).await;

    // Other clients' changes are undone; only what differs is written.
    let before = versions(&site, TYPES).await;
    let change = json!({
        "metadata": {"labels": {"team": "a"}},
        "spec": {"cpu": {"guest": 2, "isolateEmulatorThread": true}},
    });
    site.admin.merge_patch::<IgnoredAny>(TYPES, &micro, &change).await.unwrap();
    let fedora = Key::cluster("fedora");
    assert!(site.admin.delete(PREFERENCES, &fedora, &Delete::default()).await.unwrap());
    eventually("the changed one is restored", shipped).await;
    eventually("the deleted one is restored", async || {
        site.admin.find::<IgnoredAny>(PREFERENCES, &fedora).await.unwrap().is_some()
    })
    .await;
    let after = versions(&site, TYPES).await;
    let written: Vec<&String> = after
        .iter()
        .filter(|(name, version)| before.get(*name) != Some(*version))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(written, ["u1.micro"]);
    let live: Value = site.admin.get(TYPES, &micro).await.unwrap();
    assert_eq!(live["metadata"]["labels"]["team"], "a", "labels of users stay");

    // The setting removes them and brings them back.
    let key = Key::new(TEAM, "kubevirt");
    for (enabled, wanted) in [(false, (1, 0)), (true, (66, 54))] {
        let setting =
            json!({"spec": {"configuration": {"commonInstancetypesDeployment": {"enabled": enabled}}}});
        site.admin.merge_patch::<IgnoredAny>(KUBEVIRTS, &key, &setting).await.unwrap();
        eventually("the setting is followed", async || counts(&site).await == wanted).await;
    }

    // They are gone before the object.
    site.admin.delete(KUBEVIRTS, &key, &Delete::default()).await.unwrap();
    eventually("KubeVirt is gone", async || {
        site.admin.find::<IgnoredAny>(KUBEVIRTS, &key).await.unwrap().is_none()
    })
    .await;
    let left = versions(&site, TYPES).await;
    assert_eq!(
        (left.keys().map(String::as_str).collect::<Vec<_>>(), counts(&site).await.1),
        (vec!["mine"], 0)
    );
    stopper.stop();
    controllers.await.unwrap();
}
