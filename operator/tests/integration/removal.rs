//! `operator uninstall` against a real API server (`make kube`) without an operator: in a cluster where its image cannot be
//! pulled any more, and with definitions of another project.

use std::process::{Command, Output};

use cluster::{Delete, Key, Resource, Scope};
use operator::install::{Settings, custom_resources, manifests};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::site::{NAMESPACES, PLATFORM, Site, TEAM, eventually, kind};

const API_SERVICES: Resource = Resource::cluster("apiregistration.k8s.io", "v1", "apiservices");
const DEFINITIONS: Resource = Resource::cluster("apiextensions.k8s.io", "v1", "customresourcedefinitions");
const MACHINES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");
const NODES: Resource = Resource::cluster("", "v1", "nodes");
const OBJECTS: Resource = Resource::namespaced("hco.kubevirt.io", "v1", "hyperconvergeds");
const NETWORKS: Resource = Resource::namespaced("k8s.cni.cncf.io", "v1", "network-attachment-definitions");
const NETWORK_DEFINITION: &str = "network-attachment-definitions.k8s.cni.cncf.io";

/// Runs `operator uninstall`.
fn uninstall(site: &Site, seconds: u32, options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_operator"));
    command.arg("uninstall").arg("--kubeconfig").arg(site.kubeconfig()).args(options);
    command.args(["--timeout", &seconds.to_string()]).output().unwrap()
}

/// Writes on the node what an agent writes.
async fn report(site: &Site) {
    let written = json!({"metadata": {
        "labels": {"kubevirt.io/schedulable": "true", "cpu-vendor.node.kubevirt.io/Intel": "true"},
        "annotations": {"kubevirt.io/heartbeat": "2026-01-01T00:00:00Z"},
    }});
    let bridges = json!({"bridge.network.kubevirt.io/br0": "1k", "cpu": "2"});
    let status = json!({"status": {"capacity": bridges, "allocatable": bridges}});
    for (resource, patch) in [(NODES, written), (NODES.sub("status"), status)] {
        site.admin.merge_patch::<IgnoredAny>(resource, &Key::cluster("node"), &patch).await.unwrap();
    }
}

/// Nothing that an agent wrote is on the node.
async fn assert_node_is_clean(site: &Site) {
    let node: Value = site.admin.get(NODES, &Key::cluster("node")).await.unwrap();
    assert_eq!(node["metadata"]["labels"], json!({"zone": "a"}));
    assert_eq!(node["metadata"]["annotations"], Value::Null);
    for field in ["capacity", "allocatable"] {
        assert_eq!(node["status"][field], json!({"cpu": "2"}), "{field}");
    }
}

/// The number of APIServices and webhooks of the platform.
async fn entrances(site: &Site) -> usize {
    let ours = Scope::all().labels("app.kubernetes.io/part-of=ferrovirt");
    let mut count = 0;
    for resource in [
        API_SERVICES,
        Resource::cluster("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations"),
        Resource::cluster("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"),
    ] {
        count += site.admin.list::<IgnoredAny>(resource, &ours).await.unwrap().len();
    }
    count
}

/// Installs the platform next to a definition of Multus, with its object HyperConverged as an operator that ran holds it, a
/// VM and a node with an agent's labels.
async fn install(site: &Site) {
    let admin = &site.admin;
    let mut multus = manifests(&Settings::default());
    multus.retain(|object| object["metadata"]["name"] == NETWORK_DEFINITION);
    multus[0]["metadata"] = json!({"name": NETWORK_DEFINITION});
    multus[0]["spec"]["versions"][0]["schema"] =
        json!({"openAPIV3Schema": {"type": "object", "description": "of Multus"}});
    admin.create::<IgnoredAny>(DEFINITIONS, "", &multus[0]).await.unwrap();
    // Without --force-conflicts, kubectl does not take over what another program manages.
    let taken = site.install(|object| object["metadata"]["name"] == NETWORK_DEFINITION);
    let text = String::from_utf8_lossy(&taken.stderr);
    assert!(!taken.status.success() && text.contains("conflict"), "{text}");

    let own = |object: &Value| object["metadata"]["name"] != NETWORK_DEFINITION;
    let first = ["Namespace", "CustomResourceDefinition"];
    let installed = site.install(|object| own(object) && first.contains(&kind(object)));
    assert!(installed.status.success(), "{installed:?}");
    let mut object = custom_resources(&Settings::default()).swap_remove(0);
    object["metadata"]["finalizers"] = json!(["kubevirt.io/hyperconverged"]);
    let machine = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {"devices": {}}}}},
    });
    let network = json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition", "metadata": {"name": "net"},
    });
    for (resource, namespace, object) in
        [(OBJECTS, PLATFORM, &object), (MACHINES, TEAM, &machine), (NETWORKS, TEAM, &network)]
    {
        eventually("the definition is served", async || {
            admin.create::<IgnoredAny>(resource, namespace, object).await.is_ok()
        })
        .await;
    }
    let installed = site.install(|object| own(object) && !first.contains(&kind(object)));
    assert!(installed.status.success(), "{installed:?}");
    let node = json!({"metadata": {"name": "node", "labels": {"zone": "a"}}});
    admin.create::<IgnoredAny>(NODES, "", &node).await.unwrap();
    report(site).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn platform_without_an_operator_is_removed_and_blocks_no_namespace() {
    let mut site = Site::start().await;
    site.start_controllers();
    install(&site).await;
    let admin = &site.admin;
    let all = entrances(&site).await;
    assert!(all > 10, "{all}");

    // As the chart does after everything else.
    let cleaned = uninstall(&site, 10, &["--only-nodes"]);
    assert!(cleaned.status.success(), "{cleaned:?}");
    assert_node_is_clean(&site).await;
    assert_eq!(entrances(&site).await, all);
    report(&site).await;

    // While a VM exists, webhooks that could protect it stay.
    let refused = uninstall(&site, 3, &[]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("HyperConverged"), "{text}");
    assert_eq!(entrances(&site).await, all);

    let key = Key::new(TEAM, "vm");
    admin.delete(MACHINES, &key, &Delete::default()).await.unwrap();
    let waiting = uninstall(&site, 40, &[]);
    let text = String::from_utf8_lossy(&waiting.stderr).into_owned();
    assert!(!waiting.status.success() && text.contains("is still there"), "{text}");
    assert_eq!(entrances(&site).await, 0, "{text}");
    let other = json!({"metadata": {"name": "other"}});
    admin.create::<IgnoredAny>(NAMESPACES, "", &other).await.unwrap();
    admin.delete(NAMESPACES, &Key::cluster("other"), &Delete::default()).await.unwrap();
    eventually("the namespace is gone", async || {
        admin.find::<IgnoredAny>(NAMESPACES, &Key::cluster("other")).await.unwrap().is_none()
    })
    .await;

    // As an operator that runs again lets its object go.
    let key = Key::new(PLATFORM, PLATFORM);
    let released = json!({"metadata": {"finalizers": null}});
    admin.merge_patch::<IgnoredAny>(OBJECTS, &key, &released).await.unwrap();
    let removed = uninstall(&site, 120, &[]);
    let text = String::from_utf8_lossy(&removed.stderr).into_owned();
    assert!(removed.status.success(), "{text}");
    assert!(text.contains("stays: it was not installed with the platform"), "{text}");
    let definitions: Vec<Value> = admin.list(DEFINITIONS, &Scope::all()).await.unwrap();
    let names: Vec<&str> = definitions.iter().map(|one| one["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, [NETWORK_DEFINITION]);
    assert!(admin.find::<IgnoredAny>(NETWORKS, &Key::new(TEAM, "net")).await.unwrap().is_some());
    assert!(admin.find::<IgnoredAny>(NAMESPACES, &Key::cluster(PLATFORM)).await.unwrap().is_none());
    assert_node_is_clean(&site).await;
}
