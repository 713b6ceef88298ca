//! Launcher pods that lose their labels or owner, against the compute controllers and a real API server (`make kube`): the
//! instance is not taken for one without a pod. There is no scheduler: pods stay Pending.

use std::time::Duration;

use cluster::{Delete, Key, Resource};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::site::{PODS, Site, TEAM, eventually, kind};

const EVENTS: Resource = Resource::namespaced("", "v1", "events");
const NODES: Resource = Resource::cluster("", "v1", "nodes");
const INSTANCES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstances");

/// Creates an instance and waits until it has its pod.
async fn create(site: &Site, name: &str) {
    let instance = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "finalizers": ["kubevirt.io/foregroundDeleteVirtualMachine"]},
        "spec": {"domain": {"devices": {}, "memory": {"guest": "64Mi"}}},
    });
    eventually("the definition is served", async || {
        site.admin.create::<IgnoredAny>(INSTANCES, TEAM, &instance).await.is_ok()
    })
    .await;
    eventually(name, async || phase(site, name).await == "Scheduling").await;
}

async fn phase(site: &Site, name: &str) -> String {
    let instance: Value = site.admin.get(INSTANCES, &Key::new(TEAM, name)).await.unwrap();
    instance["status"]["phase"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instance_is_not_failed_while_its_pod_exists() {
    let site = Site::start().await;
    let installed = site.install(|object| kind(object) == "CustomResourceDefinition");
    assert!(installed.status.success(), "{installed:?}");
    let (stopper, stop) = cluster::stop::pair();
    let controllers = tokio::spawn(operator::compute::run(site.context("compute"), stop));
    for (name, change) in [
        ("unlabelled", json!({"labels": {"kubevirt.io": null, "kubevirt.io/created-by": null}})),
        ("half", json!({"labels": {"kubevirt.io/created-by": null}})),
        ("orphaned", json!({"ownerReferences": null})),
    ] {
        create(&site, name).await;
        let pods: Vec<Value> = site.admin.list(PODS, &cluster::Scope::all().namespace(TEAM)).await.unwrap();
        let prefix = format!("virt-launcher-{name}-");
        let pod = pods.iter().filter_map(|pod| pod["metadata"]["name"].as_str());
        let pod = Key::new(TEAM, pod.clone().find(|pod| pod.starts_with(&prefix)).unwrap());
        site.admin.merge_patch::<IgnoredAny>(PODS, &pod, &json!({"metadata": change})).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(phase(&site, name).await, "Scheduling", "{name}");
        // When the pod is gone, this is noticed although no watch shows it.
        site.admin.delete(PODS, &pod, &Delete::default().grace(0)).await.unwrap();
        eventually(name, async || phase(&site, name).await == "Failed").await;
    }
    stopper.stop();
    controllers.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_with_instances_and_no_agent_has_an_event() {
    let site = Site::start().await;
    let installed = site.install(|object| kind(object) == "CustomResourceDefinition");
    assert!(installed.status.success(), "{installed:?}");
    let (stopper, stop) = cluster::stop::pair();
    let controllers = tokio::spawn(operator::compute::run(site.context("compute"), stop));
    create(&site, "vm").await;
    let running = json!({"status": {"phase": "Running", "nodeName": "node"}});
    site.admin.merge_patch::<IgnoredAny>(INSTANCES, &Key::new(TEAM, "vm"), &running).await.unwrap();
    let node = json!({"metadata": {
        "name": "node", "labels": {"kubevirt.io/schedulable": "true"},
        "annotations": {"kubevirt.io/heartbeat": "2026-01-01T00:00:00Z"},
    }});
    site.admin.create::<IgnoredAny>(NODES, "", &node).await.unwrap();
    eventually("the node has the event", async || {
        let events: Vec<Value> = site.admin.list(EVENTS, &cluster::Scope::all()).await.unwrap();
        let orphans = |event: &Value| {
            event["involvedObject"]["name"] == "node"
                && event["reason"] == "NodeUnresponsive"
                && event["message"].as_str().is_some_and(|text| text.contains("there are orphaned vmis"))
        };
        events.iter().any(orphans)
    })
    .await;
    stopper.stop();
    controllers.await.unwrap();
}
