//! The platform as it is installed, with the operator's storage controllers and HTTPS server in this process: its Services
//! lead here, and its requests have the rights of its ServiceAccount.

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::thread;

use clap::Parser;
use cluster::credentials::Credentials;
use e2e::Cluster;
use operator::args::{Args, Command};
use operator::config::Config;
use operator::health::Health;
use operator::install::{self, Settings};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::storage::setup::CLUSTER;

/// Namespace of the platform.
pub(crate) const PLATFORM: &str = operator::defaults::NAMESPACE;

/// How often the storage controllers were killed and started.
static RESTARTS: LazyLock<watch::Sender<u32>> = LazyLock::new(|| watch::Sender::new(0));

/// Kills the storage controllers where they are, and starts others, which know nothing of what the first did.
pub(crate) fn restart() {
    RESTARTS.send_modify(|count| *count += 1);
}

/// Installs everything of storage, and runs the operator until the process ends.
pub(crate) fn install(cluster: &Cluster) {
    let address = SocketAddr::from((cluster.place().host_address(), 8443));
    let mut objects: Vec<Value> = install::manifests(&Settings { replicas: 1, ..Settings::default() });
    objects.retain(wanted);
    let mut endpoints = Vec::new();
    for object in &mut objects {
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        match object["kind"].as_str().unwrap() {
            "Service" if object["spec"]["selector"]["app"] == "ferrovirt-operator" => {
                object["spec"].as_object_mut().unwrap().remove("selector");
                let port = object["spec"]["ports"][0]["name"].clone();
                endpoints.push(json!({
                    "apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": name, "namespace": PLATFORM},
                    "subsets": [{"addresses": [{"ip": address.ip()}], "ports": [{"name": port, "port": address.port()}]}],
                }));
            }
            _ => {}
        }
    }
    objects.extend(endpoints);
    apply(cluster, &install::yaml(&objects).unwrap());
    apply(cluster, &foreign("referencegrants", "ReferenceGrant", "gateway.networking.k8s.io", "Namespaced"));
    apply(cluster, &foreign("volumepopulators", "VolumePopulator", "populator.storage.k8s.io", "Cluster"));
    kubectl(cluster, &["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"]);
    apply(
        cluster,
        "apiVersion: cdi.kubevirt.io/v1beta1\nkind: CDIConfig\nmetadata: {name: config}\nspec: {}\n",
    );
    run(cluster, address);
    let rollout = ["-n", PLATFORM, "rollout", "status", "deployment/cdi-uploadproxy", "--timeout=120s"];
    kubectl(cluster, &rollout);
    let available = "apiservice/v1beta1.upload.cdi.kubevirt.io";
    kubectl(cluster, &["wait", "--for=condition=Available", available, "--timeout=60s"]);
}

/// The operator's configuration.
fn config(serve: &str) -> Config {
    let args = Args::try_parse_from(["operator", "run", "--serve", serve]).unwrap();
    let Command::Run(args) = args.command else { unreachable!() };
    Config::new(&args).unwrap()
}

/// The image of a program, as the operator names it.
pub(crate) fn image(program: &str) -> String {
    config("127.0.0.1:0").image(program)
}

/// Verbs of requests that change something; the operator's other requests are in the audit log too.
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];

/// Writes of the operator (verb, resource, name) in a namespace, and cluster-scoped, to objects with one of these words in
/// their names. Events are not counted: they are written in the background, and may be dropped.
pub(crate) fn writes(namespace: &str, names: &[&str]) -> Vec<String> {
    let events = CLUSTER.audit().unwrap();
    let own = events.filter(|event| {
        let object = &event["objectRef"];
        let name = object["name"].as_str().unwrap_or_default();
        let inside = object["namespace"].as_str().is_none_or(|other| other == namespace);
        event["userAgent"].as_str().is_some_and(|agent| agent == "ferrovirt/operator")
            && event["verb"].as_str().is_some_and(|verb| WRITES.contains(&verb))
            && inside
            && object["resource"] != "events"
            && names.iter().any(|begin| name.contains(begin))
    });
    own.map(|event| {
        let object = &event["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        format!(
            "{} {}/{} {}",
            text(&event["verb"]),
            text(&object["resource"]),
            text(&object["subresource"]),
            text(&object["name"])
        )
    })
    .collect()
}

/// Names of pods that the operator made in a namespace, each as often as it was made.
pub(crate) fn pods_made(namespace: &str) -> Vec<String> {
    let events = CLUSTER.audit().unwrap();
    let made = events.filter(|event| {
        event["userAgent"] == "ferrovirt/operator"
            && event["verb"] == "create"
            && event["objectRef"]["resource"] == "pods"
            && event["objectRef"]["namespace"] == namespace
            && event["responseStatus"]["code"] == 201
    });
    made.map(|event| event["objectRef"]["name"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Applies objects as an administrator.
#[track_caller]
pub(crate) fn apply(cluster: &Cluster, text: &str) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let file = cluster.place().path(&format!("storage-tests-{number}.yaml"));
    fs::write(&file, text).unwrap();
    let run = cluster.kubectl().args(["apply", "--server-side", "-f"]).arg(&file).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

/// A kind of another project, as far as the operator reads and writes it.
fn foreign(plural: &str, kind: &str, group: &str, scope: &str) -> String {
    let approved = format!("api-approved.kubernetes.io: \"https://{group}\"");
    format!(
        "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\n\
         metadata: {{name: {plural}.{group}, annotations: {{{approved}}}}}\n\
         spec:\n  group: {group}\n  scope: {scope}\n  names: {{plural: {plural}, kind: {kind}}}\n  versions:\n\
         \x20 - name: v1beta1\n    served: true\n    storage: true\n    schema:\n      openAPIV3Schema:\n\
         \x20       type: object\n        x-kubernetes-preserve-unknown-fields: true\n"
    )
}

/// The part of the platform that these tests use.
fn wanted(object: &Value) -> bool {
    let name = object["metadata"]["name"].as_str().unwrap();
    match object["kind"].as_str().unwrap() {
        // The driver is installed by its own manifests.
        _ if name.starts_with("hostpath") => false,
        "Deployment" => name == "cdi-uploadproxy",
        "APIService" => name.contains("upload.cdi"),
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => name.starts_with("cdi-api"),
        "DaemonSet"
        | "PodDisruptionBudget"
        | "CSIDriver"
        | "ValidatingAdmissionPolicy"
        | "ValidatingAdmissionPolicyBinding" => false,
        _ => true,
    }
}

#[track_caller]
fn kubectl(cluster: &Cluster, arguments: &[&str]) -> String {
    let said = cluster.kubectl().args(arguments).output().unwrap();
    assert!(said.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).unwrap()
}

/// The operator's storage area and HTTPS server, with a token of its ServiceAccount.
fn run(cluster: &Cluster, address: SocketAddr) {
    let kubeconfig = cluster.kubeconfig();
    let serve = address.to_string();
    let words = ["-n", PLATFORM, "create", "token", "kubevirt-controller", "--duration=24h"];
    let token = kubectl(cluster, &words);
    thread::spawn(move || {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async {
            let config = Arc::new(config(&serve));
            let administrator = cluster::Config::load(Some(&kubeconfig), None).unwrap();
            let credentials = Credentials::token(token.trim()).unwrap();
            let reach = cluster::Config { identity: None, credentials, ..administrator };
            let client = cluster::Client::new(&reach, "operator").unwrap();
            let events = cluster::Events::start(&client, "ferrovirt-operator", "e2e");
            let listener = operator::serve::listen(&config).unwrap();
            let (_stopper, stop) = cluster::stop::pair();
            let health = Health::default();
            let context = operator::context::Context {
                client: client.clone(),
                events: events.clone(),
                config: Arc::clone(&config),
                health: health.clone(),
            };
            tokio::join!(
                async {
                    let mut restarts = RESTARTS.subscribe();
                    loop {
                        tokio::select! {
                            () = operator::storage::run(context.clone(), stop.clone()) => break,
                            _ = restarts.changed() => {}
                        }
                    }
                },
                operator::serve::run(listener, &config, (&client, &events), &health, &stop),
            );
        });
    });
}
