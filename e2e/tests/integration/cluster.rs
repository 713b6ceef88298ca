//! The harness itself: a node comes up in time, runs a pod, and leaves nothing on the machine, however it ends.
//!
//! These tests compare the whole machine before and after, so they take turns, and no other cluster may run at the same
//! time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use e2e::leftovers::Leftovers;
use e2e::node::BUSYBOX;
use e2e::peer::registry::Registry;
use e2e::peer::web::Web;
use e2e::place::Place;
use e2e::volume::Volume;
use e2e::{Cluster, programs, storage};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::Api;
use rustix::process::Pid;
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
    holds(cluster, "device");
    volume
}

/// The same with a device of the CSI driver's: one more loop device, on a filesystem that is on another.
fn holds_a_volume(cluster: &Cluster) {
    cluster.import_images(&programs::image().unwrap()).unwrap();
    storage::install(cluster, 1 << 30, storage::Provisioner::Sidecars).unwrap();
    cluster.create_namespace("volume", "restricted").unwrap();
    let claims = Api::<PersistentVolumeClaim>::namespaced(cluster.client(), "volume");
    let claim = json!({
        "metadata": {"name": "disk"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": "hostpath-csi",
            "resources": {"requests": {"storage": "16Mi"}},
        },
    });
    cluster.create(&claims, claim).unwrap();
    holds(cluster, "volume");
}

/// A pod that has the claim `disk` open.
fn holds(cluster: &Cluster, namespace: &str) {
    let pods = Api::<Pod>::namespaced(cluster.client(), namespace);
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
            || cluster.kubectl().args(["-n", namespace, "describe", "pod"]).output().unwrap().stdout;
        assert!(Instant::now() < deadline, "{}", String::from_utf8_lossy(&describe()));
        thread::sleep(Duration::from_millis(100));
    }
}

fn cycles() -> usize {
    if std::env::var_os("FERROVIRT_SOAK").is_some() { 20 } else { 2 }
}

/// A pod that prints a line, through kubelet, containerd, the network plugin and the logs.
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
    // By these the kubelet evicts pods.
    let node = cluster.place().node_name();
    let summary: serde_json::Value = cluster.until("the kubelet measures its filesystems", || {
        let path = format!("/api/v1/nodes/{node}/proxy/stats/summary");
        let answer = cluster.kubectl().args(["get", "--raw", &path]).output().unwrap();
        serde_json::from_slice(&answer.stdout).ok()
    });
    for filesystem in [&summary["node"]["fs"], &summary["node"]["runtime"]["imageFs"]] {
        assert!(filesystem["capacityBytes"].as_u64().is_some_and(|bytes| bytes > 0), "{summary:#}");
    }
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
    holds_a_volume(&cluster);
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
        .args(["--exact", "cluster::holds_a_cluster", "--ignored", "--nocapture"])
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

/// `make cluster` as a terminal runs it: its processes are a group of their own.
fn up() -> Command {
    let mut up = Command::new(env!("CARGO_BIN_EXE_cluster"));
    up.arg("up").stdin(Stdio::null()).process_group(0);
    up
}

/// The output of `make cluster-down`, which must succeed.
fn down() -> String {
    let down = Command::new(env!("CARGO_BIN_EXE_cluster")).arg("down").output().unwrap();
    assert!(down.status.success(), "{}", String::from_utf8_lossy(&down.stderr));
    String::from_utf8(down.stderr).unwrap() + &String::from_utf8(down.stdout).unwrap()
}

/// A node that stays, until this is dropped.
struct Kept(Place);

impl Kept {
    fn start() -> Self {
        let up = up().output().unwrap();
        let said = String::from_utf8_lossy(&up.stderr);
        assert!(up.status.success(), "{said}");
        let kept = Self(Place::taken().unwrap().pop().unwrap());
        let expected = format!("export KUBECONFIG={}\n", kept.0.kubeconfig().display());
        assert_eq!(String::from_utf8_lossy(&up.stdout), expected);
        kept
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        down();
    }
}

#[test]
fn a_node_for_a_person_stays_until_it_is_stopped_or_its_keeper_killed() {
    let _alone = ALONE.lock().unwrap_or_else(|broken| broken.into_inner());
    let before = before();
    let node = Kept::start();
    assert!(down().starts_with(&format!("stopped: node {} in /", node.0.number())));
    nothing_left(&before);
    assert_eq!(down(), "there was no node to stop\n");

    let node = Kept::start();
    rustix::process::kill_process(node.0.kept().unwrap(), rustix::process::Signal::KILL).unwrap();
    while node.0.kept().is_some() {
        thread::sleep(Duration::from_millis(20));
    }
    assert!(down().starts_with("removed: what node"));
    nothing_left(&before);
}

/// The process with this argument.
fn process_with(argument: &str) -> Pid {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let has = |process: &fs::DirEntry| {
        let arguments = fs::read(process.path().join("cmdline")).unwrap_or_default();
        arguments.split(|&byte| byte == 0).any(|one| one == argument.as_bytes())
    };
    let found: Vec<_> = processes.filter(has).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    Pid::from_raw(found[0].file_name().to_str().unwrap().parse().unwrap()).unwrap()
}

#[test]
fn a_node_reports_the_death_of_its_program() {
    let _alone = ALONE.lock().unwrap_or_else(|broken| broken.into_inner());
    let before = before();
    for told_by in [down, || String::from_utf8(up().output().unwrap().stderr).unwrap()] {
        let node = Kept::start();
        let etcd = format!("--data-dir={}", node.0.path("etcd").display());
        rustix::process::kill_process(process_with(&etcd), rustix::process::Signal::KILL).unwrap();
        nothing_left(&before);
        let said = told_by();
        let number = node.0.number();
        assert!(
            said.starts_with(&format!(
                "node {number} has ended by itself: etcd ended: signal 9\n--- etcd.log\n"
            )),
            "{said}"
        );
        assert!(said.lines().count() > 5, "{said}");
        assert!(!down().contains("by itself"), "it is said once");
    }
}

#[test]
fn a_second_up_finds_the_first() {
    let _alone = ALONE.lock().unwrap_or_else(|broken| broken.into_inner());
    let before = before();
    let first = Kept::start();
    let second = Kept::start();
    assert_eq!(second.0.number(), first.0.number());
    assert_eq!(Place::taken().unwrap().len(), 1);
    drop(second);
    nothing_left(&before);
}

#[test]
fn up_and_down_report_that_they_need_root() {
    let _alone = ALONE.lock().unwrap_or_else(|broken| broken.into_inner());
    // Where anyone finds it.
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.path().join("cluster");
    // By another process: a program that is open for writing here, when another test forks, cannot be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_cluster")).arg(&program).status().unwrap();
    assert!(copied.success());
    for action in ["up", "down"] {
        let run = Command::new(&program).arg(action).uid(65534).gid(65534).output().unwrap();
        assert_eq!(run.status.code(), Some(1));
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(said.starts_with("failed: root is needed"), "{said}");
        assert_eq!(said.lines().count(), 1);
        assert!(run.stdout.is_empty());
    }
}

#[test]
fn an_interrupted_up_leaves_nothing() {
    let _alone = ALONE.lock().unwrap_or_else(|broken| broken.into_inner());
    // A background job of a shell ignores Ctrl-C's own signal.
    for signal in ["-TERM", "-KILL"] {
        let before = before();
        let mut up = up().spawn().unwrap();
        // The last of the node's programs has been started; the node is not ready yet.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !Place::all().unwrap().iter().any(|place| place.logs().join("kube-proxy.log").exists()) {
            assert!(Instant::now() < deadline, "the node does not start");
            thread::sleep(Duration::from_millis(20));
        }
        let group = format!("-{}", up.id());
        assert!(Command::new("kill").args([signal, "--", &group]).status().unwrap().success());
        assert!(!up.wait().unwrap().success(), "it was not interrupted");
        nothing_left(&before);
    }
}

#[test]
fn remains_of_a_killed_supervisor_are_removed_by_the_next() {
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
