//! The pods' network is ours: `bridge` with `host-local`, a gateway and masquerading, `loopback`, and the reference's
//! `portmap` after them. Many pods come and go at once, and the node is as it was.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use e2e::Cluster;
use e2e::node::BUSYBOX;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::{Value, json};

const NAMESPACE: &str = "network";
const PODS: usize = 50;
/// Every so many pods has a port of the node.
const WITH_A_PORT: usize = 5;
const FIRST_PORT: usize = 31_000;
const TIMEOUT: Duration = Duration::from_secs(240);

/// A web server that greets the host when it starts, by its own name.
fn pod(index: usize, host: SocketAddr) -> Value {
    let (ip, port) = (host.ip(), host.port());
    let hello = format!(
        "printf 'GET /%s HTTP/1.0\\r\\n\\r\\n' $(hostname) | nc -w 9 {ip} {port} && exec httpd -f -p 8080 -h /etc"
    );
    let mut port = json!({"containerPort": 8080});
    if index.is_multiple_of(WITH_A_PORT) {
        port["hostPort"] = json!(FIRST_PORT + index);
    }
    json!({
        "metadata": {"name": format!("pod-{index}")},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "containers": [{
                "name": "web", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", hello],
                "ports": [port],
            }],
        },
    })
}

/// A server that records its clients and their requests.
fn listener(host: IpAddr) -> (SocketAddr, mpsc::Receiver<(IpAddr, String)>) {
    let listener = TcpListener::bind((host, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, asked) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let from = stream.peer_addr().unwrap().ip();
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
            let path = path.trim_start_matches('/').to_owned();
            stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nhi\n").unwrap();
            if sender.send((from, path)).is_err() {
                return;
            }
        }
    });
    (address, asked)
}

/// The file /etc/passwd from the server in a pod.
fn fetch(address: SocketAddr) -> String {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(10)).unwrap();
    stream.write_all(b"GET /passwd HTTP/1.0\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Makes pods at once, and waits until every one of them runs and has sent its greeting.
fn create(cluster: &Cluster, indices: std::ops::Range<usize>, host: SocketAddr) -> Vec<Pod> {
    let pods = Api::<Pod>::namespaced(cluster.client(), NAMESPACE);
    for index in indices.clone() {
        cluster.create(&pods, pod(index, host)).unwrap();
    }
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let list = cluster.run(pods.list(&ListParams::default())).unwrap().items;
        let phase =
            |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        if list.len() == indices.len() && list.iter().all(|pod| phase(pod) == "Running") {
            return list;
        }
        if Instant::now() > deadline {
            let describe = cluster.kubectl().args(["-n", NAMESPACE, "describe", "pods"]).output().unwrap();
            panic!("{}", String::from_utf8_lossy(&describe.stdout));
        }
        thread::sleep(Duration::from_millis(200));
    }
}

fn delete(cluster: &Cluster) {
    let pods = Api::<Pod>::namespaced(cluster.client(), NAMESPACE);
    cluster.run(pods.delete_collection(&DeleteParams::default(), &ListParams::default())).unwrap();
    let deadline = Instant::now() + TIMEOUT;
    while !cluster.run(pods.list(&ListParams::default())).unwrap().items.is_empty() {
        assert!(Instant::now() < deadline, "pods do not go");
        thread::sleep(Duration::from_millis(200));
    }
}

fn address(pod: &Pod) -> IpAddr {
    pod.status.as_ref().unwrap().pod_ip.as_ref().unwrap().parse().unwrap()
}

#[test]
fn many_pods_at_once_leave_nothing() {
    let cluster = Cluster::start().unwrap();
    cluster.create_namespace(NAMESPACE, "privileged").unwrap();
    let place = cluster.place();
    let plugins = cluster.on_node("/opt/cni/bin/bridge").unwrap().output().unwrap();
    assert!(String::from_utf8_lossy(&plugins.stderr).contains("ferrovirt"), "{plugins:?}");
    let (host, asked) = listener(place.host_address().into());

    // The first one makes what stays: the bridge, and the chains that all share.
    create(&cluster, 0..1, host);
    delete(&cluster);
    let before = settled(&cluster, None);

    let begun = Instant::now();
    let pods = create(&cluster, 0..PODS, host);
    let running = begun.elapsed();
    let addresses: BTreeSet<IpAddr> = pods.iter().map(address).collect();
    assert_eq!(addresses.len(), PODS, "{addresses:?}");
    for address in &addresses {
        assert!(fetch((*address, 8080).into()).contains("qemu"), "{address}");
    }
    for index in (0..PODS).step_by(WITH_A_PORT) {
        let port = u16::try_from(FIRST_PORT + index).unwrap();
        assert!(fetch((place.node_address(), port).into()).contains("qemu"), "{port}");
    }
    // Outside the node the pods' addresses are hidden. The first pod sent its greeting twice.
    let said: Vec<(IpAddr, String)> = (0..=PODS).map(|_| asked.recv_timeout(TIMEOUT).unwrap()).collect();
    assert!(said.iter().all(|(from, _)| *from == IpAddr::from(place.node_address())), "{said:?}");
    let names: BTreeSet<&String> = said.iter().map(|(_, name)| name).collect();
    assert_eq!(names.len(), PODS, "{said:?}");
    assert!(cluster.network().unwrap().len() > before.len() + 3 * PODS, "{:#?}", cluster.network().unwrap());

    let begun = Instant::now();
    delete(&cluster);
    settled(&cluster, Some(&before));
    println!("{PODS} pods run after {running:.1?}, gone after {:.1?}", begun.elapsed());
}

/// Waits until the node is as `before`, or for the first time stays as it is.
fn settled(cluster: &Cluster, before: Option<&BTreeSet<String>>) -> BTreeSet<String> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut last = BTreeSet::new();
    loop {
        let now = cluster.network().unwrap();
        if before.map_or(now == last, |before| now == *before) {
            return now;
        }
        if let Some(before) = before {
            let left: Vec<_> = now.symmetric_difference(before).collect();
            assert!(Instant::now() < deadline, "left on the node: {left:#?}");
        }
        last = now;
        thread::sleep(Duration::from_secs(1));
    }
}
