//! Launcher pods in namespaces with quotas, against the compute controllers and the quotas of a real API server
//! (`make kube`). There is no scheduler: pods stay Pending.

use cluster::{Key, Resource, Scope};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::site::{NAMESPACES, PODS, Site, TEAM, eventually, kind};

const INSTANCES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstances");
const KUBEVIRTS: Resource = Resource::namespaced("kubevirt.io", "v1", "kubevirts");
const QUOTAS: Resource = Resource::namespaced("", "v1", "resourcequotas");

/// Creates an instance and waits for its pod; the requests and limits of memory, and the limit of CPUs.
async fn created(site: &Site, namespace: &str, name: &str) -> (u64, Option<u64>, Value) {
    let instance = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": name},
        "spec": {"domain": {"cpu": {"cores": 3}, "devices": {}, "memory": {"guest": "64Mi"}}},
    });
    eventually("the definition is served", async || {
        site.admin.create::<IgnoredAny>(INSTANCES, namespace, &instance).await.is_ok()
    })
    .await;
    let prefix = format!("virt-launcher-{name}-");
    let pod = async || {
        let pods: Vec<Value> = site.admin.list(PODS, &Scope::all().namespace(namespace)).await.unwrap();
        pods.into_iter().find(|pod| pod["metadata"]["name"].as_str().unwrap().starts_with(&prefix))
    };
    eventually(name, async || pod().await.is_some()).await;
    let resources = pod().await.unwrap()["spec"]["containers"][0]["resources"].clone();
    let memory =
        |list: &str| resources[list]["memory"].as_str().map(|text| api::quantity::bytes(text).unwrap());
    (memory("requests").unwrap(), memory("limits"), resources["limits"]["cpu"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_on_limits_take_launcher_pods() {
    let mut site = Site::start().await;
    site.start_controllers();
    let installed = site.install(|object| kind(object) == "CustomResourceDefinition");
    assert!(installed.status.success(), "{installed:?}");
    for (name, labels) in [
        ("free", json!({})),
        ("labelled", json!({"limited": "true"})),
        ("ratio", json!({"alpha.kubevirt.io/auto-memory-limits-ratio": "1.5"})),
    ] {
        let namespace = json!({"metadata": {"name": name, "labels": labels}});
        site.admin.create::<IgnoredAny>(NAMESPACES, "", &namespace).await.unwrap();
    }
    let hard = json!({"limits.memory": "8Gi", "limits.cpu": "8", "requests.memory": "8Gi", "pods": "4"});
    let quota = json!({"metadata": {"name": "quota"}, "spec": {"hard": hard}});
    for namespace in [TEAM, "ratio"] {
        site.admin.create::<IgnoredAny>(QUOTAS, namespace, &quota).await.unwrap();
        eventually("the quota is counted", async || {
            let quota: Value = site.admin.get(QUOTAS, &Key::new(namespace, "quota")).await.unwrap();
            quota["status"]["hard"].is_object()
        })
        .await;
    }
    let (stopper, stop) = cluster::stop::pair();
    let controllers = tokio::spawn(operator::compute::run(site.context("compute"), stop));
    let (request, limit, cpu) = created(&site, TEAM, "quota").await;
    assert_eq!((limit, cpu), (Some(request * 2), json!("3")));
    let (request, limit, cpu) = created(&site, "ratio", "ratio").await;
    assert_eq!((limit, cpu), (Some(request * 3 / 2), json!("3")));
    let (_, limit, cpu) = created(&site, "labelled", "before").await;
    assert_eq!((limit, cpu), (None, Value::Null));
    let kubevirt = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"},
        "spec": {"configuration": {"autoCPULimitNamespaceLabelSelector": {"matchLabels": {"limited": "true"}}}},
    });
    site.admin.create::<IgnoredAny>(KUBEVIRTS, TEAM, &kubevirt).await.unwrap();
    // The setting is followed by pods that are created from then on.
    let mut number = 0;
    eventually("the selector counts", async || {
        number += 1;
        created(&site, "labelled", &format!("after-{number}")).await.2 == json!("3")
    })
    .await;
    let (_, limit, cpu) = created(&site, "free", "free").await;
    assert_eq!((limit, cpu), (None, Value::Null));
    stopper.stop();
    controllers.await.unwrap();
}
