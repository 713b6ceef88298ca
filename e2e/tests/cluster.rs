//! The harness itself: a node comes up in time, runs a pod, and leaves nothing on the machine, however it ends.
//!
//! These tests compare the whole machine before and after, so they take turns, and no other cluster may stand meanwhile.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use e2e::Cluster;
use e2e::leftovers::Leftovers;
use e2e::node::BUSYBOX;
use e2e::peer::registry::Registry;
use e2e::peer::web::Web;
use e2e::place::Place;
use e2e::volume::Volume;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use serde_json::json;

static ALONE: Mutex<()> = Mutex::new(());

/// The machine when no cluster stands. That of other tests may still be going away.
fn before() -> Leftovers {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !Place::taken().unwrap().is_empty() {
        assert!(
            Instant::now() < deadline,
            "another cluster is running; `make cluster-down` stops those made by hand"
        );
        thread::sleep(Duration::from_millis(50));
    }
    Leftovers::now().unwrap()
}

/// Waits until the machine is as it was. A process that was killed takes a moment to be gone.
fn nothing_left(before: &Leftovers) {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let changes = Leftovers::now().unwrap().changes(before);
        if changes.is_empty() {
            return;
        }
        assert!(Instant::now() < deadline, "left on the machine:\n{}", changes.join("\n"));
        thread::sleep(Duration::from_millis(100));
    }
}

/// A pod that has a device and does not end by itself: the kubelet holds the device by a loop device over ours.
fn holds_a_device(cluster: &Cluster) -> Volume {
    cluster.create_namespace("device", "restricted").unwrap();
    let volume = Volume::block(cluster, "device", "disk", 16 << 20).unwrap();
    let pods = Api::<Pod>::namespaced(cluster.client(), "device");
    let pod = json!({
        "metadata": {"name": "holder"},
        "spec": {
            "securityContext": {"runAsNonRoot": true, "runAsUser": 107, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "holder", "image": BUSYBOX, "command": ["sh", "-c", "exec sleep 600 < /dev/disk"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                "volumeDevices": [{"name": "disk", "devicePath": "/dev/disk"}],
            }],
            "volumes": [{"name": "disk", "persistentVolumeClaim": {"claimName": "disk"}}],
        },
    });
    cluster.create(&pods, pod).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while cluster.run(pods.get("holder")).unwrap().status.and_then(|status| status.phase).as_deref()
        != Some("Running")
    {
        let describe =
            || cluster.kubectl().args(["-n", "device", "describe", "pod"]).output().unwrap().stdout;
        assert!(Instant::now() < deadline, "{}", String::from_utf8_lossy(&describe()));
        thread::sleep(Duration::from_millis(100));
    }
    volume
}

fn cycles() -> usize {
    if std::env::var_os("FERROVIRT_SOAK").is_some() { 20 } else { 2 }
}

/// A pod that says something, through kubelet, containerd, the network plugin and the logs.
fn runs_a_pod(cluster: &Cluster) {
    cluster.create_namespace("first", "restricted").unwrap();
    let overrides = r#"{"spec":{"securityContext":{"runAsNonRoot":true,"runAsUser":107,
        "seccompProfile":{"type":"RuntimeDefault"}},"containers":[{"name":"hello","image":"localhost/busybox:1",
        "imagePullPolicy":"Never","command":["sh","-c","id -u; echo hello"],
        "securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"]}}}]}}"#;
    let run = cluster
        .kubectl()
        .args(["-n", "first", "run", "hello", "--image=localhost/busybox:1", "--restart=Never"])
        .arg(format!("--overrides={overrides}"))
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let wait =
        ["-n", "first", "wait", "pod/hello", "--timeout=60s", "--for=jsonpath={.status.phase}=Succeeded"];
    let wait = cluster.kubectl().args(wait).output().unwrap();
    let describe =
        || cluster.kubectl().args(["-n", "first", "describe", "pod", "hello"]).output().unwrap().stdout;
    assert!(wait.status.success(), "{}", String::from_utf8_lossy(&describe()));
    let logs = cluster.kubectl().args(["-n", "first", "logs", "hello"]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&logs.stdout), "107\nhello\n", "{logs:?}");
}

#[test]
fn a_node_is_ready_in_time_and_leaves_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(|broken| broken.into_inner());
    let before = before();
    for cycle in 0..cycles() {
        let begun = Instant::now();
        let cluster = Cluster::start().unwrap();
        let ready = begun.elapsed();
        let held = (cycle == 0).then(|| {
            runs_a_pod(&cluster);
            holds_a_device(&cluster)
        });
        let begun = Instant::now();
        cluster.stop().unwrap();
        drop(held);
        println!("cycle {cycle}: ready after {ready:.1?}, gone after {:.1?}", begun.elapsed());
        let changes = Leftovers::now().unwrap().changes(&before);
        assert!(changes.is_empty(), "left on the machine:\n{}", changes.join("\n"));
        assert!(ready < Duration::from_secs(40), "ready after {ready:?}");
    }
}

#[test]
#[ignore = "run by the next test, which kills it"]
fn holds_a_cluster() {
    let cluster = Cluster::start().unwrap();
    let _held = holds_a_device(&cluster);
    let _web = Web::start(cluster.place(), cluster.place().folder()).unwrap();
    let _registry = Registry::start(cluster.place()).unwrap();
    println!("holding");
    thread::sleep(Duration::from_secs(600));
}

#[test]
fn a_killed_test_leaves_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(|broken| broken.into_inner());
    let before = before();
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holds_a_cluster", "--ignored", "--nocapture"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = std::io::BufRead::lines(std::io::BufReader::new(test.stdout.take().unwrap()));
    assert!(said.map_while(Result::ok).any(|line| line.ends_with("holding")), "no cluster was started");
    assert!(!Leftovers::now().unwrap().changes(&before).is_empty(), "the comparison sees a running cluster");
    test.kill().unwrap();
    test.wait().unwrap();
    nothing_left(&before);
}

#[test]
fn what_a_killed_keeper_leaves_is_removed_by_the_next() {
    let _alone = ALONE.lock().unwrap_or_else(|broken| broken.into_inner());
    let before = before();
    let cluster = Cluster::start().unwrap();
    let place = cluster.place().number();
    let killed = Command::new("kill").args(["-KILL", &cluster.keeper_id().to_string()]).status().unwrap();
    assert!(killed.success());
    drop(cluster);
    // Everything that runs ends by itself.
    let running = |line: &String| !line.starts_with("+ cgroup") && !line.starts_with("+ state folder");
    let deadline = Instant::now() + Duration::from_secs(30);
    while Leftovers::now().unwrap().changes(&before).iter().any(running) {
        assert!(Instant::now() < deadline, "still there: {:#?}", Leftovers::now().unwrap().changes(&before));
        thread::sleep(Duration::from_millis(100));
    }
    assert!(!Leftovers::now().unwrap().changes(&before).is_empty(), "nothing for the next one to remove");
    let next = Cluster::start().unwrap();
    assert_eq!(next.place().number(), place);
    next.stop().unwrap();
    nothing_left(&before);
}
