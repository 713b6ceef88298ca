//! The cluster of these tests: the platform as pods, and requests of tests to it.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use cluster::{Client, Config, Delete, Key, Resource, Scope};
use e2e::{Cluster, platform};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

pub(crate) const MACHINES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");
pub(crate) const INSTANCES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstances");
pub(crate) const DATA_VOLUMES: Resource = Resource::namespaced("cdi.kubevirt.io", "v1beta1", "datavolumes");
pub(crate) const DATA_SOURCES: Resource = Resource::namespaced("cdi.kubevirt.io", "v1beta1", "datasources");
pub(crate) const CLAIMS: Resource = Resource::namespaced("", "v1", "persistentvolumeclaims");
pub(crate) const EVENTS: Resource = Resource::namespaced("", "v1", "events");
pub(crate) const PODS: Resource = Resource::namespaced("", "v1", "pods");
pub(crate) const SERVICES: Resource = Resource::namespaced("", "v1", "services");
pub(crate) const SNAPSHOTS: Resource =
    Resource::namespaced("snapshot.storage.k8s.io", "v1", "volumesnapshots");
pub(crate) const CONTENTS: Resource =
    Resource::cluster("snapshot.storage.k8s.io", "v1", "volumesnapshotcontents");
pub(crate) const SNAPSHOT_CLASSES: Resource =
    Resource::cluster("snapshot.storage.k8s.io", "v1", "volumesnapshotclasses");
pub(crate) const SECRETS: Resource = Resource::namespaced("", "v1", "secrets");

/// Bytes of the pool; it takes what is written.
const POOL: u64 = 20 << 30;
/// How long a step of a VM may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(240);

/// A cluster with the platform.
pub(crate) struct Place {
    pub(crate) cluster: Cluster,
    /// The administrator.
    pub(crate) client: Client,
    /// Files that the platform shares with others on the node, before it was installed.
    pub(crate) files: BTreeSet<String>,
    /// Time from the first object to Available.
    pub(crate) installed: Duration,
    /// Whether a VM was accepted at that moment.
    pub(crate) accepted: Result<(), String>,
}

/// One for all tests. It ends with the process.
pub(crate) static PLACE: LazyLock<Place> = LazyLock::new(|| {
    let cluster = Cluster::start().unwrap();
    platform::prepare(&cluster, POOL).unwrap();
    let files = cluster.shared_files().unwrap();
    let installed = platform::install(&cluster, &platform::settings()).unwrap();
    let accepted = cluster.run(crate::platform::webhooks::accepted(cluster.client()));
    let accepted = accepted.map_err(|error| error.to_string());
    let config = Config::load(Some(&cluster.kubeconfig()), None).unwrap();
    let client = Client::new(&config, "e2e").unwrap();
    Place { cluster, client, files, installed, accepted }
});

impl Place {
    pub(crate) fn find(&self, resource: Resource, namespace: &str, name: &str) -> Option<Value> {
        self.cluster.run(self.client.find(resource, &Key::new(namespace, name))).unwrap()
    }

    pub(crate) fn list(&self, resource: Resource, namespace: &str) -> Vec<Value> {
        self.cluster.run(self.client.list(resource, &Scope::all().namespace(namespace))).unwrap()
    }

    /// Creates an object. A webhook's pod that is replaced at the moment delays it, as for users of GitOps tools.
    pub(crate) fn create(&self, resource: Resource, namespace: &str, object: &Value) {
        let deadline = Instant::now() + TIMEOUT;
        while let Err(error) = self.cluster.run(self.client.create::<IgnoredAny>(resource, namespace, object))
        {
            let absent = error.to_string().contains("failed calling webhook");
            assert!(absent && Instant::now() < deadline, "{error}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    pub(crate) fn delete(&self, resource: Resource, namespace: &str, name: &str) {
        let key = Key::new(namespace, name);
        assert!(self.cluster.run(self.client.delete(resource, &key, &Delete::default())).unwrap());
    }

    /// Runs kubectl; gives its output.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let run = self.cluster.kubectl().args(arguments).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if run.status.success() { Ok(text(&run.stdout)) } else { Err(text(&run.stderr)) }
    }

    /// The project's client, to be given a verb; objects are of `namespace`.
    pub(crate) fn client(&self, namespace: &str, words: &[&str]) -> std::process::Command {
        let mut client = std::process::Command::new(e2e::programs::of_this_build("kubectl-virt").unwrap());
        client.arg("--kubeconfig").arg(self.cluster.kubeconfig()).args(["-n", namespace]).args(words);
        client.stdin(std::process::Stdio::null());
        client
    }

    /// Calls a verb of `subresources.kubevirt.io`, such as `virtualmachines/NAME/stop`.
    pub(crate) fn put(&self, namespace: &str, path: &str) -> Result<(), String> {
        self.put_with(namespace, path, &json!({}))
    }

    /// The same with options.
    pub(crate) fn put_with(&self, namespace: &str, path: &str, options: &Value) -> Result<(), String> {
        let body = self.cluster.place().path(&format!("{namespace}-options.json"));
        fs::write(&body, options.to_string()).unwrap();
        let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/{path}");
        self.kubectl(&["replace", "--raw", &path, "-f", body.to_str().unwrap()]).map(drop)
    }

    /// Waits until `found` gives a value.
    #[track_caller]
    pub(crate) fn until<T>(&self, namespace: &str, wanted: &str, mut found: impl FnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = found() {
                return found;
            }
            assert!(Instant::now() < deadline, "{wanted}: not in {TIMEOUT:?}\n{}", self.state(namespace));
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until a VM's `printableStatus` is `wanted`, and gives the VM.
    #[track_caller]
    pub(crate) fn until_status(&self, namespace: &str, name: &str, wanted: &str) -> Value {
        self.until(namespace, &format!("{name} is {wanted}"), || {
            self.find(MACHINES, namespace, name)
                .filter(|machine| machine["status"]["printableStatus"] == wanted)
        })
    }

    /// Words by which the node's files, rules and processes can be recognised: uid and address of each pod of a namespace,
    /// name of each volume.
    pub(crate) fn words(&self, namespace: &str) -> Vec<String> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let pods = self.list(PODS, namespace);
        let pods = pods.iter().flat_map(|pod| [text(&pod["metadata"]["uid"]), text(&pod["status"]["podIP"])]);
        let claims = self.list(CLAIMS, namespace);
        let volumes = claims.iter().map(|claim| text(&claim["spec"]["volumeName"]));
        pods.chain(volumes).flatten().collect()
    }

    /// Waits until nothing on the node has one of these words.
    #[track_caller]
    pub(crate) fn until_nothing_remains(&self, namespace: &str, words: &[String]) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = self.cluster.remains(words).unwrap();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < deadline, "of the pods of {namespace} remains: {left:#?}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// The objects and logs of a namespace, for the text of a failure.
    fn state(&self, namespace: &str) -> String {
        let mut text = String::new();
        for arguments in [
            &["get", "vm,vmi,pod,dv,pvc", "-o", "wide", "-n", namespace][..],
            &["get", "vmi", "-o", "jsonpath={.items[*].status}", "-n", namespace],
            &["get", "events", "-n", namespace],
            &["get", "pods", "-n", "kubevirt-hyperconverged"],
            &["logs", "--tail=20", "daemonset/virt-handler", "-n", "kubevirt-hyperconverged"],
            &["logs", "--tail=20", "deployment/ferrovirt-operator", "-n", "kubevirt-hyperconverged"],
            &["logs", "--tail=20", "-l", "kubevirt.io=virt-launcher", "-n", namespace],
        ] {
            let shown = self.kubectl(arguments).unwrap_or_else(|error| error);
            writeln!(text, "$ kubectl {}\n{shown}", arguments.join(" ")).unwrap();
        }
        text
    }

    /// A namespace of a test of its own.
    pub(crate) fn namespace(&self, name: &str) {
        self.cluster.create_namespace(name, "restricted").unwrap();
    }

    /// Deletes a namespace and waits until it is gone.
    #[track_caller]
    pub(crate) fn remove_namespace(&self, name: &str) {
        self.kubectl(&["delete", "namespace", name, "--wait=false"]).unwrap();
        self.until(name, &format!("namespace {name} is gone"), || {
            self.kubectl(&["get", "namespace", name]).is_err().then_some(())
        });
    }
}
