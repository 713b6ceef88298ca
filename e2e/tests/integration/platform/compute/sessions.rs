//! Streams of guests: a console that is flooded, many sessions, a client that takes over, screens, forwarded ports, users with
//! the cluster's roles, and the end of a stream with its permission or its VM. The memory of operator and agent is bounded
//! all the time.
//!
//! Small counts by default, the promised ones with `FERROVIRT_SOAK=1`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cluster::credentials::Credentials;
use cluster::{Client, Config, Resource};
use e2e::processes::Memory;
use serde_json::{Value, json};

use crate::platform::console::Console;
use crate::platform::guest;
use crate::platform::machines::{create, create_with, until_answers};
use crate::platform::place::{PLACE, PODS};
use crate::platform::streams::Streams;

const NAMESPACE: &str = "sessions";
const PLATFORM: &str = "kubevirt-hyperconverged";
const BINDINGS: Resource = Resource::namespaced("rbac.authorization.k8s.io", "v1", "rolebindings");
/// Most anonymous memory of a pod, in KiB.
const MEMORY_MAX: u64 = 128 << 10;
/// Forwarded ports at once.
const PORTS: usize = 20;
/// How long a stream may outlive its permission: the operator asks each 30 s.
const REVOKED: Duration = Duration::from_secs(45);
/// How long a flood may take.
const FLOOD: Duration = Duration::from_secs(3600);

fn soak() -> bool {
    std::env::var_os("FERROVIRT_SOAK").is_some()
}

/// The uids of the pods of operator and agent.
fn pods() -> Vec<(String, String)> {
    let named = |pod: &Value| {
        let name = pod["metadata"]["name"].as_str()?;
        let ours = name.starts_with("ferrovirt-operator-") || name.starts_with("virt-handler-");
        let running = pod["status"]["phase"] == "Running";
        (ours && running).then(|| (name.to_owned(), pod["metadata"]["uid"].as_str().unwrap().to_owned()))
    };
    PLACE.list(PODS, PLATFORM).iter().filter_map(named).collect()
}

/// Does `work`; gives the most memory that each pod had during it, in KiB.
fn measured(work: impl FnOnce()) -> Vec<(String, u64)> {
    let mut most: Vec<(String, String, u64)> = pods().into_iter().map(|(name, uid)| (name, uid, 0)).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watched = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for (_, uid, most) in &mut most {
                    // Other tests replace pods.
                    *most = (*most).max(Memory::of_pod(uid).unwrap_or_default().anonymous);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        // A failure ends the watch as well.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        over.store(true, Ordering::Relaxed);
        watched.join().unwrap();
        if let Err(panic) = done {
            std::panic::resume_unwind(panic);
        }
    });
    most.into_iter().map(|(name, _, most)| (name, most)).collect()
}

/// A user with the cluster's role in the namespace: a ServiceAccount.
fn user(role: &str) -> Client {
    PLACE.kubectl(&["-n", NAMESPACE, "create", "serviceaccount", role]).unwrap();
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": role},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": NAMESPACE, "name": role}],
    });
    PLACE.create(BINDINGS, NAMESPACE, &binding);
    let token = PLACE.kubectl(&["-n", NAMESPACE, "create", "token", role]).unwrap();
    let credentials = Credentials::token(token.trim()).unwrap();
    let administrator = Config::load(Some(&PLACE.cluster.kubeconfig()), None).unwrap();
    Client::new(&Config { identity: None, credentials, ..administrator }, "e2e").unwrap()
}

fn open_as(user: &Client, subresource: &str) -> Result<Console<'static>, String> {
    Console::stream_of(&PLACE, user, NAMESPACE, "vm", subresource)
}

/// A console that sends without an end is read at its pace.
fn flood() {
    let bytes = if soak() { 1 << 30 } else { 4 << 20 };
    let mut console = PLACE.until(NAMESPACE, "a console of the guest that floods", || {
        Console::open(&PLACE, NAMESPACE, "flood").ok()
    });
    let begun = Instant::now();
    // Bytes that the client does not read wait in the guest.
    std::thread::sleep(Duration::from_secs(2));
    console.drain(bytes, FLOOD).unwrap();
    println!("flood of a console: {} MiB in {:.1?}", bytes >> 20, begun.elapsed());
}

/// Each session takes the console over from the one before.
fn sessions() {
    let count = if soak() { 200 } else { 20 };
    let begun = Instant::now();
    let mut before: Option<Console<'_>> = None;
    for _ in 0..count {
        let mut console = Console::open(&PLACE, NAMESPACE, "vm").unwrap();
        console.ask(b's', "G1s").unwrap();
        if let Some(mut before) = before.replace(console) {
            let ended = before.listen("never").unwrap_err();
            assert!(!ended.contains("has sent"), "the session before is still open: {ended}");
        }
    }
    println!("{count} sessions of a console: {:.1?}", begun.elapsed());
}

fn screens() {
    let vnc =
        |preserve: bool| Console::stream(&PLACE, NAMESPACE, "vm", &format!("vnc?preserveSession={preserve}"));
    let mut first = vnc(false).unwrap();
    assert!(first.bytes(12).unwrap().starts_with(b"RFB 003."));
    let refused = vnc(true).map(drop).unwrap_err();
    assert!(
        refused.starts_with("503") && refused.contains("Active VNC connection. Request denied."),
        "{refused}"
    );
    first.send(b"RFB 003.008\n").unwrap();
    assert_eq!(first.bytes(2).unwrap(), [1, 1], "the session goes on: one security type, none");
    let mut second = vnc(false).unwrap();
    assert!(second.bytes(12).unwrap().starts_with(b"RFB 003."));
    assert!(first.bytes(1 << 20).is_err(), "the second client takes over");
    for number in 0..8 {
        drop(second);
        second = vnc(false).unwrap();
        assert!(second.bytes(12).unwrap().starts_with(b"RFB 003."), "screen {number} after another");
    }
}

/// Ports of the guest at once: datagrams, which need no listener there.
fn ports() -> Vec<Console<'static>> {
    let mut open: Vec<_> = (0..PORTS)
        .map(|number| {
            let path = format!("portforward/{}/udp", 1000 + number);
            Console::stream(&PLACE, NAMESPACE, "vm", &path).unwrap()
        })
        .collect();
    for port in &mut open {
        port.send(b"datagram").unwrap();
    }
    open
}

fn users() {
    let [view, edit, admin] = ["view", "edit", "admin"].map(user);
    let reads = PLACE.until(NAMESPACE, "the roles are bound", || open_as(&admin, "console").ok());
    drop(reads);
    for subresource in ["console", "vnc", "portforward/7/udp"] {
        let refused = open_as(&view, subresource).map(drop).unwrap_err();
        assert!(refused.starts_with("403"), "view {subresource}: {refused}");
        for (role, user) in [("edit", &edit), ("admin", &admin)] {
            open_as(user, subresource).unwrap_or_else(|why| panic!("{role} {subresource}: {why}"));
        }
    }
    let mut console = open_as(&edit, "console").unwrap();
    let mut port = open_as(&edit, "portforward/7/udp").unwrap();
    console.ask(b'u', "G1u").unwrap();
    PLACE.delete(BINDINGS, NAMESPACE, "edit");
    for stream in [&mut console, &mut port] {
        let (code, reason) = stream.closure(REVOKED).unwrap();
        assert_eq!((code, reason.as_str()), (1008, "the user's permission for this stream was revoked"));
    }
    open_as(&edit, "console").map(drop).unwrap_err();
}

#[test]
fn streams_are_bounded_and_end_with_the_permission_or_the_machine() {
    PLACE.namespace(NAMESPACE);
    let _streams = Streams::follow();
    let _root = create(NAMESPACE, "vm", "Manual", 0);
    let _flood = create_with(NAMESPACE, "flood", "Always", 0, &guest::floods());
    PLACE.put(NAMESPACE, "virtualmachines/vm/start").unwrap();
    until_answers(NAMESPACE, "vm", 1);
    let mut open = Vec::new();
    // A client of a port answers pings while the test reads from it, so the ports come last.
    let mut forward = || open = ports();
    let parts: [(&str, &mut dyn FnMut()); 5] = [
        ("flood", &mut flood),
        ("sessions", &mut sessions),
        ("screens", &mut screens),
        ("users", &mut users),
        ("ports", &mut forward),
    ];
    for (what, work) in parts {
        for (pod, most) in measured(work) {
            println!("{what}: {pod} has at most {} MiB", most >> 10);
            assert!(most <= MEMORY_MAX, "{what}: {pod}: {most} KiB");
        }
    }
    PLACE.put(NAMESPACE, "virtualmachines/vm/stop").unwrap();
    for mut port in open {
        let (code, reason) = port.closure(REVOKED).unwrap();
        assert!(code == 1000 && reason.starts_with("the VMI "), "{code} {reason}");
    }
    PLACE.remove_namespace(NAMESPACE);
}
