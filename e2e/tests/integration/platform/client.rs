//! The client, as people use it: verbs, flags, messages and exit codes against the cluster.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use guests::telling;
use serde_json::{Value, json};

use crate::platform::machines::{claim, echoes, page};
use crate::platform::place::{INSTANCES, MACHINES, PLACE, SERVICES, TIMEOUT};
use crate::platform::streams::Streams;

const NAMESPACE: &str = "client";

/// A running client, killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn client(words: &[&str]) -> Command {
    PLACE.client(NAMESPACE, words)
}

fn text(output: &Output) -> String {
    let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    format!("{out}{error}")
}

/// Runs a verb that succeeds; gives its output.
#[track_caller]
fn succeed(words: &[&str]) -> String {
    let output = client(words).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", text(&output));
    text(&output)
}

/// Runs a verb that is refused with this exit code, and these words in its message.
#[track_caller]
fn refused(words: &[&str], code: i32, message: &str) {
    let output = client(words).output().unwrap();
    let said = text(&output);
    assert!(
        output.status.code() == Some(code) && said.contains(message),
        "{words:?}: {}: {said}",
        output.status
    );
}

/// A client that is not waited for.
fn spawn(words: &[&str]) -> Running {
    Running(
        client(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(),
    )
}

/// Reads a stream of a client on a thread of its own until `wanted` was read; all that came.
fn until_read(stream: impl Read + Send + 'static, wanted: &str) -> String {
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
            if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                return;
            }
        }
    });
    let deadline = Instant::now() + TIMEOUT;
    let mut all = String::new();
    while !all.contains(wanted) {
        let line = lines.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let line = line.unwrap_or_else(|_| panic!("{wanted:?} was not read: {all}"));
        all.push_str(&line);
        all.push('\n');
    }
    all
}

/// Joins the console until the guest has reported; its report.
fn report() -> Vec<String> {
    // As virtctl, the client waits for an instance that does not run yet, not for one that is not made yet.
    PLACE.until(NAMESPACE, "the instance is made", || PLACE.find(INSTANCES, NAMESPACE, "vm"));
    let mut console = spawn(&["console", "vm", "--timeout", "3"]);
    // The console ends with its standard input.
    let read = until_read(console.0.stdout.take().unwrap(), telling::TOLD);
    telling::facts(&read).unwrap()
}

fn status(wanted: &str) {
    PLACE.until_status(NAMESPACE, "vm", wanted);
}

/// Creates the VM by a manifest of the client, with the default disk of its volume and the default network.
fn create() {
    let words = [
        "create",
        "vm",
        "--name",
        "vm",
        "--run-strategy",
        "Manual",
        "--memory",
        "256Mi",
        "--termination-grace-period",
        "20",
        "--volume-pvc",
        "src:vm",
    ];
    let file = PLACE.cluster.place().path("client-vm.yaml");
    fs::write(&file, succeed(&words)).unwrap();
    PLACE.kubectl(&["apply", "-f", file.to_str().unwrap()]).unwrap();
    status("Stopped");
    let labels = json!({"spec": {"template": {"metadata": {"labels": {"site": "shop"}}}}}).to_string();
    PLACE.kubectl(&["-n", NAMESPACE, "patch", "vm", "vm", "--type=merge", "-p", &labels]).unwrap();
    let expanded: Value = serde_json::from_str(&succeed(&["expand", "--vm", "vm", "-o", "json"])).unwrap();
    assert_eq!(expanded["spec"]["template"]["spec"]["domain"]["memory"]["guest"], "256Mi");
    let expanded: Value =
        serde_json::from_str(&succeed(&["expand", "-f", file.to_str().unwrap(), "-o", "json"])).unwrap();
    assert_eq!(expanded["metadata"]["name"], "vm");
}

/// Port forwards to the guest, by a listener and by standard input and output.
fn forwards() {
    let mut forward = spawn(&["port-forward", "vm/vm", "0:80"]);
    let told = until_read(forward.0.stderr.take().unwrap(), "127.0.0.1:");
    let port = told.split("127.0.0.1:").nth(1).unwrap();
    let port: String = port.chars().take_while(char::is_ascii_digit).collect();
    let address: SocketAddr = format!("127.0.0.1:{port}").parse().unwrap();
    PLACE.until(NAMESPACE, "the guest's page through the forward", || page(address));
    drop(forward);
    let mut stdio = spawn(&["port-forward", "--stdio=true", "vmi/vm", "80"]);
    stdio.0.stdin.as_mut().unwrap().write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    until_read(stdio.0.stdout.take().unwrap(), telling::PAGE);
}

/// A Service reaches the guest by a label of the VM's template, and rules at the pod's interface on the node, as an enforcer of
/// NetworkPolicies sets them, hold for it.
fn service() {
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "page"},
        "spec": {"selector": {"site": "shop"}, "ports": [{"port": 8000, "targetPort": 80}]},
    });
    PLACE.create(SERVICES, NAMESPACE, &service);
    let found = PLACE.find(SERVICES, NAMESPACE, "page").unwrap();
    let address: SocketAddr =
        format!("{}:8000", found["spec"]["clusterIP"].as_str().unwrap()).parse().unwrap();
    PLACE.until(NAMESPACE, "the guest's page through the Service", || page(address));
    let pod = PLACE.find(INSTANCES, NAMESPACE, "vm").unwrap()["status"]["interfaces"][0]["ipAddress"].clone();
    let pod = pod.as_str().unwrap();
    let direct: SocketAddr = format!("{pod}:80").parse().unwrap();
    // Without a list of ports all of them lead to the guest.
    let other = SocketAddr::new(direct.ip(), 7);
    PLACE.until(NAMESPACE, "another port of the guest", || echoes(other).then_some(()));
    let nft = |rule: &str| {
        let run = PLACE.cluster.on_node("nft").unwrap().arg(rule).output().unwrap();
        assert!(run.status.success(), "{rule}: {}", String::from_utf8_lossy(&run.stderr));
    };
    let chain = "{ type filter hook forward priority 0; policy accept;";
    nft(&format!("table ip e2e-policy {{ chain forward {chain} ip daddr {pod} tcp dport != 80 drop; }}; }}"));
    assert!(page(direct).is_some() && page(address).is_some(), "a port that is allowed");
    assert!(!echoes(other), "a port that is denied");
    nft(&format!("add rule ip e2e-policy forward ip daddr {pod} tcp dport 80 drop"));
    assert!(page(direct).is_none() && page(address).is_none(), "a port that is denied");
    nft("delete table ip e2e-policy");
    assert!(page(direct).is_some() && page(address).is_some() && echoes(other));
    PLACE.delete(SERVICES, NAMESPACE, "page");
}

/// The screen: the port, and the handshake of VNC.
fn screen() {
    let mut vnc = spawn(&["vnc", "vm", "--proxy-only"]);
    let told = until_read(vnc.0.stdout.take().unwrap(), "}");
    let port = serde_json::from_str::<Value>(&told).unwrap()["port"].as_u64().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", u16::try_from(port).unwrap())).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let mut greeting = [0; 12];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting[..8], b"RFB 003.", "{greeting:?}");
}

#[test]
fn verbs_of_the_client_work_with_virtctls_flags_and_exit_codes() {
    let _streams = Streams::follow();
    PLACE.namespace(NAMESPACE);
    let version = succeed(&["version"]);
    assert!(version.contains("Client Version") && version.contains("Server Version"), "{version}");
    let disk = PLACE.cluster.place().path("client-guest.raw");
    telling::disk(&disk);
    let _volume = claim(NAMESPACE, "vm", &fs::read(&disk).unwrap());
    create();
    refused(&["stop", "vm"], 1, "VM is not running");
    refused(&["console", "absent"], 1, "absent");
    refused(&["start", "absent"], 1, "not found");
    refused(&["start"], 2, "Usage");

    assert!(succeed(&["start", "vm", "--dry-run"]).contains("Dry Run execution"));
    assert_eq!(succeed(&["start", "vm"]), "VM vm was scheduled to start\n");
    let facts = report();
    assert!(
        facts.iter().any(|fact| fact.starts_with("network eth0") && fact.contains("10.0.2.2/24 by 10.0.2.1")),
        "{facts:#?}"
    );
    status("Running");
    refused(&["start", "vm"], 1, "VM is already running");
    forwards();
    service();
    screen();
    for verb in ["guestosinfo", "userlist", "fslist"] {
        refused(&[verb, "vm"], 1, "VMI does not have guest agent connected");
    }

    assert!(succeed(&["pause", "vm", "vm"]).contains("VMI vm was scheduled to pause"));
    status("Paused");
    refused(&["pause", "vmi", "vm"], 1, "VMI is already paused");
    refused(&["soft-reboot", "vm"], 1, "VMI is paused");
    succeed(&["unpause", "vmi", "vm"]);
    status("Running");
    refused(&["unpause", "vm", "vm"], 1, "VMI is not paused");
    PLACE.delete(MACHINES, NAMESPACE, "vm");
    PLACE.remove_namespace(NAMESPACE);
}
