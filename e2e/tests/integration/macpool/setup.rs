//! The pool in a cluster: its manifests, and replicas as processes that are stopped when they are dropped.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use e2e::processes::Memory;
use e2e::{Cluster, programs};
use rustix::process::Pid;
use serde_json::{Value, json};

pub(crate) const NAMESPACE: &str = "kubemacpool-system";
pub(crate) const STAMP: &str = "kubemacpool.io/transaction-timestamp";
const TIMEOUT: Duration = Duration::from_secs(180);

/// A cluster with the pool's manifests in it, and how to be its service account.
pub(crate) struct Place {
    pub(crate) cluster: Cluster,
    kubeconfig: PathBuf,
    reader: String,
}

/// One replica.
pub(crate) struct Replica {
    child: Child,
    /// The token of a user that may read its metrics.
    reader: String,
    pub(crate) number: u16,
    address: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) ready_after: Duration,
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Replica {
    /// Where the webhook listens.
    pub(crate) fn webhook(&self) -> SocketAddr {
        (self.address, self.port).into()
    }

    /// SIGKILL.
    pub(crate) fn kill(self) {
        drop(self);
    }

    /// SIGTERM; gives how it ended.
    pub(crate) fn terminate(mut self) -> ExitStatus {
        terminate(&mut self.child)
    }

    /// The answer of the webhook's port for a path: the status, and the text.
    pub(crate) fn get(&self, path: &str) -> Option<(u16, String)> {
        self.ask(self.port, path, &[])
    }

    fn ask(&self, port: u16, path: &str, more: &[&str]) -> Option<(u16, String)> {
        let url = format!("https://{}:{port}{path}", self.address);
        let mut curl = Command::new("curl");
        let run = curl.args(["-sk", "-m5", "-w", "\n%{http_code}", &url]).args(more).output().unwrap();
        let text = String::from_utf8_lossy(&run.stdout).into_owned();
        let (body, status) = text.trim_end().rsplit_once('\n')?;
        Some((status.parse().ok()?, body.to_owned()))
    }

    /// Posts a review, past the API server.
    pub(crate) fn post(&self, review: &Value) -> Value {
        let mut command = Command::new("curl");
        let url = format!("https://{}/mutate-virtualmachines", self.webhook());
        command.args(["-sk", "-m5", "--data-binary", "@-", &url]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(review.to_string().as_bytes()).unwrap();
        serde_json::from_slice(&child.wait_with_output().unwrap().stdout).unwrap()
    }

    /// Its metrics, asked for with a token.
    pub(crate) fn metrics(&self, token: &str) -> (u16, String) {
        let header = format!("Authorization: Bearer {token}");
        self.ask(self.port + 20, "/metrics", &["-H", &header]).unwrap()
    }

    /// A metric of its page, named with its labels.
    pub(crate) fn metric(&self, name: &str) -> Option<u64> {
        let (status, page) = self.metrics(&self.reader);
        assert_eq!(status, 200, "{page}");
        let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.parse().ok()
    }

    /// Resident memory, in KiB.
    pub(crate) fn resident(&self) -> u64 {
        Memory::of(Pid::from_child(&self.child)).unwrap().resident
    }
}

impl Place {
    /// A cluster with a pool of this range. No replica runs yet.
    pub(crate) fn new(start: &str, end: &str) -> Self {
        let cluster = Cluster::start().unwrap();
        let kubeconfig = cluster.place().path("macpool.kubeconfig");
        let mut place = Self { kubeconfig, cluster, reader: String::new() };
        place.kinds();
        place.apply(&manifests(start, end));
        place.log_in();
        place.kubectl(&["-n", "default", "create", "serviceaccount", "reader"]);
        let role = ["--clusterrole=kubemacpool-metrics-reader", "--serviceaccount=default:reader"];
        place.kubectl(&[&["create", "clusterrolebinding", "reader"], &role[..]].concat());
        place.reader = place.token("default", "reader");
        place
    }

    /// Makes KubeVirt's kinds.
    pub(crate) fn kinds(&self) {
        let kinds = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/macpool/kubevirt.yaml");
        self.kubectl(&["apply", "-f", kinds.to_str().unwrap()]);
        self.kubectl(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=30s"]);
    }

    /// A token of a service account.
    pub(crate) fn token(&self, namespace: &str, name: &str) -> String {
        self.kubectl(&["-n", namespace, "create", "token", name, "--duration=2h"]).trim().to_owned()
    }

    /// A kubeconfig of the pool's service account.
    fn log_in(&self) {
        let token = self.token(NAMESPACE, "kubemacpool-sa");
        let admin = fs::read_to_string(self.cluster.kubeconfig()).unwrap();
        let clusters = admin.lines().find(|line| line.starts_with("clusters:")).unwrap();
        let config = format!(
            "apiVersion: v1\nkind: Config\n{clusters}\nusers: [{{name: u, user: {{token: \"{}\"}}}}]\n\
             contexts: [{{name: m, context: {{cluster: c, user: u}}}}]\ncurrent-context: m\n",
            token
        );
        fs::write(&self.kubeconfig, config).unwrap();
    }

    pub(crate) fn kubectl(&self, arguments: &[&str]) -> String {
        let run = self.try_kubectl(arguments);
        assert!(run.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    }

    pub(crate) fn try_kubectl(&self, arguments: &[&str]) -> Output {
        self.cluster.kubectl().args(arguments).output().unwrap()
    }

    /// `kubectl apply` of a text.
    pub(crate) fn apply(&self, text: &str) {
        let run = self.feed(&["apply", "-f", "-"], text);
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    }

    /// kubectl with a text on its standard input.
    pub(crate) fn feed(&self, arguments: &[&str], text: &str) -> Output {
        let mut command = self.cluster.kubectl();
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// An object, or null.
    pub(crate) fn get(&self, namespace: &str, what: &str) -> Value {
        let run = self.try_kubectl(&["-n", namespace, "get", what, "-o", "json"]);
        serde_json::from_slice(&run.stdout).unwrap_or_default()
    }

    pub(crate) fn namespace(&self, name: &str, labels: &Value) {
        let object =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        self.apply(&object.to_string());
    }

    /// The namespace `reject`, with that policy. Replicas see it soon after.
    pub(crate) fn reject(&self) {
        self.namespace("reject", &json!({}));
        self.kubectl(&["annotate", "namespace", "reject", "macpool.ferrovirt.io/duplicates=reject"]);
    }

    /// The object of blocks.
    pub(crate) fn book(&self) -> Value {
        let map = self.get(NAMESPACE, "configmap/kubemacpool-blocks");
        serde_json::from_str(map["data"]["blocks.json"].as_str().unwrap()).unwrap()
    }

    /// Starts a replica, waits until it is ready and the Service leads to it.
    pub(crate) fn replica(&self, number: u16, more: &[&str]) -> Replica {
        let replica = self.start(number, more);
        self.lead(&replica);
        replica
    }

    /// Has the Service lead to a replica, and waits until that is so.
    pub(crate) fn lead(&self, replica: &Replica) {
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("macpool-{}", replica.number),
                "namespace": NAMESPACE,
                "labels": {"kubernetes.io/service-name": "kubemacpool-service"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [replica.address], "conditions": {"ready": true}}],
            "ports": [{"name": "webhook", "port": replica.port}],
        });
        self.apply(&slice.to_string());
        // The node's rules follow, and the API server's knowledge of the bundle.
        until("the webhook answers", || {
            let probe = machine("probe", &json!([]));
            let arguments = ["-n", "default", "create", "--dry-run=server", "-f", "-"];
            self.feed(&arguments, &probe.to_string()).status.success().then_some(())
        });
    }

    /// The program with the rights of the pool's service account, and its log.
    pub(crate) fn command(&self, number: u16) -> Command {
        let log = fs::File::create(self.cluster.place().path(&format!("log/macpool-{number}.log"))).unwrap();
        let mut command = Command::new(programs::macpool().unwrap());
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .env("POD_NAMESPACE", NAMESPACE)
            .env("POD_NAME", format!("macpool-{number}"))
            .stderr(log);
        command
    }

    /// Starts a replica, with more arguments, and waits until it is ready.
    pub(crate) fn start(&self, number: u16, more: &[&str]) -> Replica {
        let address = self.cluster.place().host_address();
        let port = 8100 + number * 100;
        let listen = |port: u16| format!("{address}:{port}");
        let map = self.get(NAMESPACE, "configmap/kubemacpool-mac-range-config");
        let began = Instant::now();
        let mut command = self.command(number);
        command
            .env("POD_IP", address.to_string())
            .env("RANGE_START", map["data"]["RANGE_START"].as_str().unwrap())
            .env("RANGE_END", map["data"]["RANGE_END"].as_str().unwrap())
            .arg(format!("--webhook-addr={}", listen(port)))
            .arg(format!("--peer-addr={}", listen(port + 10)))
            .arg(format!("--metrics-addr={}", listen(port + 20)))
            .args(["--wait-time=5", "--v=debug"])
            .args(more);
        let child = command.spawn().unwrap();
        let reader = self.reader.clone();
        let mut replica = Replica { child, reader, number, address, port, ready_after: Duration::ZERO };
        until("a replica is ready", || {
            let ended = replica.child.try_wait().unwrap();
            assert!(ended.is_none(), "{}", self.log(number));
            (replica.get("/readyz")?.0 == 200).then_some(())
        });
        replica.ready_after = began.elapsed();
        replica
    }

    /// The log of a replica.
    pub(crate) fn log(&self, number: u16) -> String {
        fs::read_to_string(self.cluster.place().path(&format!("log/macpool-{number}.log"))).unwrap()
    }

    /// Addresses that a replica decided on without the one that has their block, as that did not answer in time: only these
    /// can have another owner, though duplicates are rejected. By the logs of the two that run.
    pub(crate) fn unanswered(&self) -> HashSet<String> {
        let logs = [0, 1].map(|number| self.log(number));
        let said = "the replica that owns the block does not answer macs=";
        let macs = logs.iter().flat_map(|log| log.lines()).filter_map(|line| Some(line.split_once(said)?.1));
        let macs = macs.filter_map(|macs| macs.split(' ').next());
        macs.flat_map(|macs| macs.split(',')).map(str::to_owned).collect()
    }
}

/// The pool's manifests, with this range and no replica: those are processes here.
pub(crate) fn manifests(start: &str, end: &str) -> String {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../macpool/manifests/macpool.yaml");
    let text = fs::read_to_string(file).unwrap().replace("replicas: 2", "replicas: 0");
    let text = text.replace("02:00:00:00:00:00", start).replace("02:ff:ff:ff:ff:ff", end);
    assert!(text.contains("replicas: 0") && text.contains(start) && text.contains(end));
    text
}

/// Ends a process as the kubelet does.
pub(crate) fn terminate(child: &mut Child) -> ExitStatus {
    assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
    child.wait().unwrap()
}

/// The runs of blocks that a replica has.
pub(crate) fn blocks(book: &Value, name: &str) -> Vec<(u64, u64)> {
    let runs = book["replicas"][name]["blocks"].as_array().unwrap().iter();
    runs.map(|run| (run[0].as_u64().unwrap(), run[1].as_u64().unwrap())).collect()
}

/// A review of a new machine in the namespace `reject`.
pub(crate) fn review(name: &str, mac: Option<&str>) -> Value {
    let mut object = machine(name, &json!([{"name": "a", "bridge": {}}]));
    if let Some(mac) = mac {
        object["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"] = mac.into();
    }
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": name, "operation": "CREATE", "namespace": "reject", "name": name, "object": object,
    }})
}

/// Waits until two replicas know of each other's blocks: each refuses what the other has just given. To be called when they
/// know the namespace `reject`.
pub(crate) fn wait_until_peered(replicas: [&Replica; 2]) {
    let [one, other] = replicas;
    for (giver, asked) in [(one, other), (other, one)] {
        let mut number = 0;
        until("replicas know each other's blocks", || {
            number += 1;
            let names = ["giver", "taker"].map(|name| format!("{name}-{}-{number}", giver.number));
            let mac = given_by(&giver.post(&review(&names[0], None)))?;
            let reply = asked.post(&review(&names[1], Some(&mac)));
            (reply["response"]["allowed"] == false).then_some(())
        });
    }
}

/// The address that a reply gives; `None` when it gives none.
pub(crate) fn given_by(reply: &Value) -> Option<String> {
    let patch =
        base64::engine::general_purpose::STANDARD.decode(reply["response"]["patch"].as_str()?).unwrap();
    let patch: Vec<Value> = serde_json::from_slice(&patch).unwrap();
    let found = patch.iter().find(|one| one["path"].as_str().unwrap().ends_with("/macAddress"))?;
    Some(found["value"].as_str().unwrap().to_owned())
}

/// Waits until `look` gives a value.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {TIMEOUT:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

/// A VirtualMachine with these interfaces, all on Multus but the one named "pod".
pub(crate) fn machine(name: &str, interfaces: &Value) -> Value {
    let names = interfaces.as_array().unwrap().iter().filter_map(|interface| interface["name"].as_str());
    let network = |name: &str| match name {
        "pod" => json!({"name": name, "pod": {}}),
        _ => json!({"name": name, "multus": {"networkName": name}}),
    };
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": {"running": false, "template": {"spec": {
            "domain": {"devices": {"interfaces": interfaces, "disks": [{"name": "d", "disk": {}}]}},
            "networks": names.map(network).collect::<Vec<_>>(),
        }}},
    })
}

/// An instance with a running guest, with this address.
pub(crate) fn guest(namespace: &str, name: &str, mac: &str) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachineInstance",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "domain": {"devices": {"interfaces": [{"name": "a", "bridge": {}}]}},
            "networks": [{"name": "a", "multus": {"networkName": "a"}}],
        },
        "status": {"phase": "Running", "interfaces": [
            {"name": "a", "mac": mac},
            // The guest's own bridge for containers, as its agent reports.
            {"interfaceName": "docker0", "mac": "02:42:00:00:00:01"},
        ]},
    })
}

/// The addresses of a machine's interfaces, in order; "" where there is none.
pub(crate) fn addresses(machine: &Value) -> Vec<String> {
    let interfaces = &machine["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"];
    let interfaces = interfaces.as_array().unwrap().iter();
    interfaces.map(|interface| interface["macAddress"].as_str().unwrap_or_default().to_owned()).collect()
}
