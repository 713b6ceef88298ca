//! Ten hollow nodes: an agent's storage and a driver each, without a machine, kubelet or Node object. Each agent reaches
//! the API server through a proxy, which counts its calls, keeps what it receives and injects faults. The API server is
//! away for a while; after that every watch has expired, and writes conflict. All claims are served, no agent calls more
//! often than its back-off allows, and none receives an object of another node. The operator, which labels the claims, is
//! behind such a proxy, too.
//!
//! Not here: the scheduler's choice of a node, which the claims have from the start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use cluster::{Client, Config};
use e2e::programs;
use e2e::storage::{DRIVER, NAMESPACE, Provisioner};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::hpp_csi::faulty::{Fault, Faulty};
use crate::hpp_csi::modes::THROUGH;
use crate::hpp_csi::space::{Space, until};
use crate::hpp_csi::{CLUSTER, alone, provisioner};
use crate::platform_nodes::kills;

const NODES: usize = 10;
/// Namespace of the claims.
const SPACE: &str = "hollow";
/// Collections that an agent follows: the driver's pods, claims, PVs, classes, contents with and without a node, groups.
const COLLECTIONS: u32 = 7;
/// Calls for one claim: a look for its PV and the PV, or an event, each time.
const CALLS: u32 = 2;
/// Pauses of a watch that cannot be opened, the first and the longest, and of work that failed.
const WATCHES: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(30)];
const WORK: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(300)];
/// Time between two looks at the room in the pools.
const ROOM: Duration = Duration::from_secs(5);

/// Answers to requests of agents.
const EXPIRED: Fault = Fault::Answer(
    410,
    None,
    r#"{"kind":"Status","message":"too old resource version","reason":"Expired","code":410}"#,
);
const EXPIRED_LATER: Fault = Fault::Answer(
    200,
    None,
    concat!(
        r#"{"type":"ERROR","object":{"kind":"Status","message":"too old","reason":"Expired","code":410}}"#,
        "\n"
    ),
);
const CONFLICT: Fault = Fault::Answer(
    409,
    None,
    r#"{"kind":"Status","message":"the object has been modified","reason":"Conflict","code":409}"#,
);

/// Writes of an agent, as faults name them.
const CREATE_VOLUME: &str = "POST /api/v1/persistentvolumes";
const WRITE_VOLUME: &str = "PATCH /api/v1/persistentvolumes/";
const DELETE_VOLUME: &str = "DELETE /api/v1/persistentvolumes/";
const WRITE_CLAIM: &str = "PATCH /api/v1/namespaces/hollow/persistentvolumeclaims/";

/// Volumes of each node.
type Volumes = BTreeMap<String, BTreeSet<String>>;

/// A node: its driver, the folder of its pool and socket, and what is between its agent and the API server.
struct Hollow {
    name: String,
    folder: tempfile::TempDir,
    driver: Child,
    proxy: Faulty,
}

impl Drop for Hollow {
    fn drop(&mut self) {
        drop(self.driver.kill());
        drop(self.driver.wait());
    }
}

impl Hollow {
    /// Starts the driver, and the agent's storage in the runtime.
    fn start(number: usize, config: &Config, runtime: &Runtime) -> Self {
        let name = name(number);
        let folder = tempfile::tempdir().unwrap();
        let pool = folder.path().join("pool");
        let socket = folder.path().join("csi.sock");
        fs::create_dir(&pool).unwrap();
        let driver = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(programs::of_this_build("hpp-csi").unwrap())
            .arg(format!("--drivername={DRIVER}"))
            .args(["--version=test", "--metrics-address=off"])
            .arg(format!("--nodeid={name}"))
            .arg(format!("--endpoint=unix://{}", socket.display()))
            .arg(format!("--datadir={}", json!([{"name": "legacy", "path": pool}])))
            .stderr(fs::File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let proxy = runtime.block_on(Faulty::start(config));
        let client = Client::new(&Config::new(proxy.address.as_str()), &name).unwrap();
        let settings = virt_agent::storage::Settings {
            node: name.clone(),
            socket,
            namespace: NAMESPACE.to_owned(),
            daemon_set: "hostpath-provisioner-csi".to_owned(),
        };
        runtime.spawn(virt_agent::storage::run(client, settings, std::future::pending()));
        Self { name, folder, driver, proxy }
    }

    /// The volumes in its pool.
    fn volumes(&self) -> BTreeSet<String> {
        let all = fs::read_dir(self.folder.path().join("pool")).unwrap();
        let names = all.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("pvc-")).collect()
    }

    /// Requests of its agent so far.
    fn calls(&self) -> usize {
        self.proxy.asked.lock().unwrap().len()
    }
}

/// The operator behind a proxy, as long as this lives.
struct Operator {
    proxy: Faulty,
}

impl Operator {
    fn start(config: &Config, runtime: &Runtime) -> Self {
        let proxy = runtime.block_on(Faulty::start(config));
        THROUGH.send_replace(Some(proxy.address.clone()));
        let operator = Self { proxy };
        until("the operator is behind its proxy", || (operator.calls() > 0).then_some(()));
        operator
    }

    /// Its watches expire, and it writes claims through conflicts.
    fn plan(&self) {
        for _ in 0..COLLECTIONS {
            self.proxy.plan("watch=true", EXPIRED);
            self.proxy.plan("watch=true", EXPIRED_LATER);
        }
        for _ in 0..NODES / 2 {
            self.proxy.plan(WRITE_CLAIM, CONFLICT);
        }
    }

    /// Its requests so far.
    fn calls(&self) -> usize {
        self.proxy.asked.lock().unwrap().len()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        THROUGH.send_replace(None);
    }
}

fn name(number: usize) -> String {
    format!("hollow-{}", number % NODES)
}

fn claim_of(number: usize) -> String {
    format!("claim-{number}")
}

/// A claim as the scheduler leaves it for a node.
fn claim(space: &Space, number: usize, mib: u64) {
    let selected = json!({"volume.kubernetes.io/selected-node": name(number)});
    space.claim_with(&claim_of(number), mib, &json!({}), &selected);
}

/// Waits until claims are bound; gives their volumes.
fn bound(space: &Space, claims: usize) -> Volumes {
    let mut all: Volumes = (0..NODES).map(|number| (name(number), BTreeSet::new())).collect();
    for number in 0..claims {
        let (claim, node) = (claim_of(number), name(number));
        let volume = space.bound(&claim);
        let term = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0];
        assert_eq!(term["matchExpressions"][0]["values"], json!([node]));
        assert_eq!(volume["metadata"]["name"], format!("pvc-{}", space.uid(&claim)));
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str().unwrap().to_owned();
        assert!(all.get_mut(&node).unwrap().insert(handle));
    }
    all
}

/// The most attempts in a time, when each pause is twice as long as the one before, less up to a quarter.
fn attempts([first, longest]: [Duration; 2], time: Duration) -> u32 {
    let (mut count, mut at, mut pause) = (1, Duration::ZERO, first);
    while at < time {
        at += pause.mul_f64(0.75);
        pause = (pause * 2).min(longest);
        count += 1;
    }
    count
}

/// A claim that its pool has no room for is given back, through a conflict.
fn too_large_is_given_back(space: &Space, node: &Hollow, number: usize) {
    node.proxy.plan(WRITE_CLAIM, CONFLICT);
    claim(space, number, 1 << 30);
    until("the claim is given back", || {
        let claim = space.get("PersistentVolumeClaim", &claim_of(number))?;
        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"].is_null().then_some(())
    });
    space.delete("PersistentVolumeClaim", &claim_of(number));
}

/// A volume of each node grows, through conflicts.
fn volumes_grow(space: &Space, nodes: &[Hollow]) {
    for (number, node) in nodes.iter().enumerate() {
        node.proxy.plan(WRITE_CLAIM, CONFLICT);
        node.proxy.plan(WRITE_VOLUME, CONFLICT);
        let larger = json!({"spec": {"resources": {"requests": {"storage": "32Mi"}}}});
        space.patch("PersistentVolumeClaim", &claim_of(number), &larger);
    }
    for number in 0..nodes.len() {
        until("the claim is larger", || {
            let claim = space.get("PersistentVolumeClaim", &claim_of(number))?;
            (claim["status"]["capacity"]["storage"] == "32Mi").then_some(())
        });
    }
}

/// Deletes the claims, through conflicts, and waits until nothing of them is left.
fn volumes_go(space: &Space, nodes: &[Hollow], volumes: &Volumes) {
    for node in nodes {
        node.proxy.plan(DELETE_VOLUME, CONFLICT);
        node.proxy.plan(WRITE_VOLUME, CONFLICT);
    }
    for number in 0..volumes.values().flatten().count() {
        space.delete("PersistentVolumeClaim", &claim_of(number));
    }
    for node in nodes {
        until("the pool is empty", || node.volumes().is_empty().then_some(()));
    }
    for volume in volumes.values().flatten() {
        until("the PV is gone", || space.get("PersistentVolume", volume).is_none().then_some(()));
    }
}

/// Nothing that an agent received names another node.
fn received_its_own_only(nodes: &[Hollow]) {
    for node in nodes {
        let own = node.proxy.received(&node.name);
        assert!(!own.is_empty(), "{} received nothing", node.name);
        let others = nodes.iter().map(|other| other.name.as_str()).filter(|other| *other != node.name);
        for other in others.chain(["node1"]) {
            let foreign = node.proxy.received(&format!("\"{other}\""));
            assert!(foreign.is_empty(), "{} received objects of {other}: {foreign:#?}", node.name);
        }
    }
}

/// The CSIStorageCapacity objects of agents that have ended.
fn remove_capacities() {
    let managers: Vec<String> =
        (0..NODES).map(|number| format!("external-provisioner-{}", name(number))).collect();
    let ours = format!("csi.storage.k8s.io/managed-by in ({})", managers.join(","));
    let words = ["-n", NAMESPACE, "delete", "csistoragecapacities", "-l", &ours];
    let run = CLUSTER.kubectl().args(words).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

#[test]
fn agents_of_ten_nodes_converge_after_the_api_server_was_away() {
    let _driver = alone();
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let (each, away, idle) = if soak { (7, 60, 120) } else { (1, 12, 15) };
    let (third, away, idle) = (each * NODES, Duration::from_secs(away), Duration::from_secs(idle));
    let space = Space::new(SPACE);
    let config = Config::load(Some(&CLUSTER.kubeconfig()), None).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let nodes: Vec<Hollow> = (0..NODES).map(|number| Hollow::start(number, &config, &runtime)).collect();
    let operator = Operator::start(&config, &runtime);
    let calls = || -> Vec<usize> { nodes.iter().map(Hollow::calls).collect() };
    let since = |before: &[usize]| -> Vec<usize> {
        calls().iter().zip(before).map(|(now, before)| now - before).collect()
    };

    // A third of the claims before, a third unfinished, a third after.
    (0..third).for_each(|number| claim(&space, number, 16));
    bound(&space, third);
    (third..2 * third).for_each(|number| claim(&space, number, 16));
    let server = kills::stop_api_server(&CLUSTER);
    let before = calls();
    thread::sleep(away);
    let while_away = since(&before);
    // Watches open again only after this, so all of them meet it.
    for node in &nodes {
        for _ in 0..COLLECTIONS {
            node.proxy.plan("watch=true", EXPIRED);
            node.proxy.plan("watch=true", EXPIRED_LATER);
        }
        node.proxy.plan(CREATE_VOLUME, CONFLICT);
    }
    operator.plan();
    let asked = operator.calls();
    let (begun, before) = (Instant::now(), calls());
    kills::continue_api_server(&CLUSTER, server);
    let ready = begun.elapsed();
    (2 * third..3 * third).for_each(|number| claim(&space, number, 16));
    let volumes = bound(&space, 3 * third);
    let converged = begun.elapsed() - ready;
    println!("calls of each agent in {away:?} without API server: {while_away:?}");
    println!(
        "{} claims: all bound {converged:?} after the API server was ready again, which took {ready:?}; calls: {:?}",
        3 * third,
        since(&before)
    );
    println!("calls of the operator meanwhile: {}", operator.calls() - asked);
    until("each fault of the operator is met", || (operator.proxy.left() == 0).then_some(()));
    let most = COLLECTIONS * attempts(WATCHES, away)
        + u32::try_from(each).unwrap() * CALLS * attempts(WORK, away)
        + attempts([ROOM, ROOM], away);
    assert!(
        while_away.iter().all(|calls| *calls <= usize::try_from(most).unwrap()),
        "the back-off allows {most} calls: {while_away:?}"
    );
    for node in &nodes {
        until("the pool has the PVs' volumes", || (node.volumes() == volumes[&node.name]).then_some(()));
        until("each fault is met", || (node.proxy.left() == 0).then_some(()));
    }

    let before = calls();
    thread::sleep(idle);
    let seconds = usize::try_from(idle.as_secs()).unwrap();
    let each: Vec<usize> = since(&before).into_iter().map(|calls| calls * 60 / seconds).collect();
    println!("calls per minute of each idle agent: {each:?}");
    too_large_is_given_back(&space, &nodes[0], 3 * third);
    // Stock csi-resizer takes the claims of all nodes for its own.
    if provisioner() == Provisioner::Agent {
        volumes_grow(&space, &nodes);
    }
    volumes_go(&space, &nodes, &volumes);
    for node in &nodes {
        until("each conflict is met", || (node.proxy.left() == 0).then_some(()));
    }
    let expired = |node: &Hollow| node.proxy.received(r#""reason":"Expired""#).len();
    let expired: Vec<usize> = nodes.iter().map(expired).collect();
    println!("watches of each agent that expired at the API server itself: {expired:?}");
    received_its_own_only(&nodes);
    drop(operator);
    drop(runtime);
    remove_capacities();
}
