//! Memory of cached VMs: measured in a process of its own, against the process before the first object.

use std::process::Command;
use std::time::{Duration, Instant};

use cluster::{Cache, Client, Config, Resource, Scope};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::server::Server;

const VMS: Resource = Resource::namespaced("tests.ferrovirt.io", "v1", "machines");
const CRDS: Resource = Resource::cluster("apiextensions.k8s.io", "v1", "customresourcedefinitions");

/// Fields read of a VM.
#[derive(Deserialize)]
struct Machine {
    metadata: Metadata,
    spec: Value,
    #[serde(default)]
    status: Value,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(default)]
    generation: u64,
    #[serde(default)]
    uid: String,
}

/// Fields needed for decisions.
#[derive(Debug, PartialEq)]
struct Projection {
    uid: Box<str>,
    generation: u64,
    strategy: Box<str>,
    claims: Box<[Box<str>]>,
    networks: Box<[Box<str>]>,
    ready: bool,
}

impl From<&Machine> for Projection {
    fn from(machine: &Machine) -> Self {
        let text = |value: &Value| Box::<str>::from(value.as_str().unwrap_or_default());
        let list = |value: &Value, pointer: &str| {
            let values = value.as_array().into_iter().flatten();
            values.filter_map(|one| one.pointer(pointer)).map(text).collect()
        };
        let template = &machine.spec["template"]["spec"];
        Self {
            uid: machine.metadata.uid.as_str().into(),
            generation: machine.metadata.generation,
            strategy: text(&machine.spec["runStrategy"]),
            claims: list(&template["volumes"], "/dataVolume/name"),
            networks: list(&template["networks"], "/name"),
            ready: machine.status["ready"].as_bool().unwrap_or_default(),
        }
    }
}

/// A VM of about 6 KB.
fn machine(n: usize) -> Value {
    let disk = |disk: usize| json!({"name": format!("disk-{disk}"), "disk": {"bus": "virtio"}, "bootOrder": disk + 1});
    let volume = |disk: usize| json!({"name": format!("disk-{disk}"), "dataVolume": {"name": format!("vm-{n}-{disk}")}});
    json!({"apiVersion": "tests.ferrovirt.io/v1", "kind": "Machine",
    "metadata": {"name": format!("vm-{n}"), "namespace": "default", "labels": {"app": "web", "tier": "front"},
        "annotations": {"note": "x".repeat(2500)}},
    "spec": {"runStrategy": "Always", "template": {"spec": {
        "domain": {"devices": {"disks": (0..3).map(disk).collect::<Vec<_>>(),
            "interfaces": [{"name": "default", "masquerade": {}}, {"name": "blue", "bridge": {}}]}},
        "networks": [{"name": "default", "pod": {}}, {"name": "blue", "multus": {"networkName": "blue"}}],
        "volumes": (0..3).map(volume).collect::<Vec<_>>(),
        "userData": "#cloud-config\n".repeat(120),
    }}}})
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_vms_stay_small() {
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let count = if soak { 10_000 } else { 300 };
    let server = Server::start().await;
    let client = server.client();
    let crd = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "machines.tests.ferrovirt.io"},
        "spec": {"group": "tests.ferrovirt.io", "scope": "Namespaced",
            "names": {"plural": "machines", "singular": "machine", "kind": "Machine"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    client.create::<IgnoredAny>(CRDS, "", &crd).await.unwrap();
    // A kind that appears late fills a cache that began as empty.
    let early = Cache::<Projection>::builder().start::<Machine>(&client, VMS, &Scope::all());
    crate::eventually("the kind is served", async || {
        client.list::<IgnoredAny>(VMS, &Scope::all()).await.is_ok()
    })
    .await;
    for start in (0..count).step_by(100) {
        let made = (start..(start + 100).min(count)).map(|n| {
            let (client, object) = (client.clone(), machine(n));
            async move { client.create::<IgnoredAny>(VMS, "default", &object).await.map(drop) }
        });
        for made in futures_util::future::join_all(made).await {
            made.unwrap();
        }
    }
    crate::eventually("the early cache is complete", async || early.len() == count).await;
    let [authority, certificate, key] = server.files();
    let url = format!("https://127.0.0.1:{}/apis/tests.ferrovirt.io/v1/machines", server.port());
    let begun = Instant::now();
    let mut token = String::new();
    loop {
        let output = Command::new("curl")
            .arg("-sf")
            .arg("--cacert")
            .arg(&authority)
            .arg("--cert")
            .arg(&certificate)
            .arg("--key")
            .arg(&key)
            .arg(format!("{url}?limit=500&continue={token}"))
            .output()
            .unwrap();
        assert!(output.status.success(), "curl: {}", output.status);
        let page: Value = serde_json::from_slice(&output.stdout).unwrap();
        token = page["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
        if token.is_empty() {
            break;
        }
    }
    let curl = begun.elapsed();
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::cache_in_a_process_of_its_own", "--ignored", "--nocapture"])
        .env("CACHE_FILES", [&authority, &certificate, &key].map(|path| path.display().to_string()).join(":"))
        .env("CACHE_SERVER", format!("https://127.0.0.1:{}", server.port()))
        .env("CACHE_COUNT", count.to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let figures =
        text.lines().find_map(|line| line.split_once("figures: ")).expect("the child prints figures").1;
    let (grown, millis) = figures.split_once(' ').unwrap();
    let (grown, took) = (grown.parse::<u64>().unwrap(), Duration::from_millis(millis.parse().unwrap()));
    println!("{count} VMs: {:.1} MiB above the empty process, ready in {took:?}; curl {curl:?}", mib(grown));
    assert!(grown <= 20 << 20, "{:.1} MiB for {count} VMs", mib(grown));
    if soak {
        assert!(took <= curl.mul_f64(1.3), "ready in {took:?}, curl needs {curl:?}");
    }
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Not a test by itself: the other one runs it as a process.
#[tokio::test(flavor = "current_thread")]
#[ignore = "run by cached_vms_stay_small"]
async fn cache_in_a_process_of_its_own() {
    let Some(files) = std::env::var_os("CACHE_FILES") else { return };
    let files: Vec<Vec<u8>> =
        std::env::split_paths(&files).map(|path| std::fs::read(path).unwrap()).collect();
    let [authority, certificates, key] = <[Vec<u8>; 3]>::try_from(files).unwrap();
    let config = Config {
        authority: Some(authority),
        identity: Some(cluster::config::Identity { certificates, key }),
        ..Config::new(std::env::var("CACHE_SERVER").unwrap())
    };
    let client = Client::new(&config, "tests").unwrap();
    client.read::<Value>("/version").await.unwrap();
    let (empty, begun) = (resident(), Instant::now());
    let cache = Cache::<Projection>::builder().start::<Machine>(&client, VMS, &Scope::all());
    cache.synced().await;
    let took = begun.elapsed();
    assert_eq!(cache.len().to_string(), std::env::var("CACHE_COUNT").unwrap());
    println!("figures: {} {}", resident().saturating_sub(empty), took.as_millis());
}
