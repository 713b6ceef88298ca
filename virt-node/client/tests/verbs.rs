//! The program `kubectl-virt` against an API server of the test, which records requests and answers as the operator does:
//! requests, messages and exit codes of the verbs, and the bytes of consoles and forwarded ports.
//!
//! Not here: the operator itself.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Method, StatusCode};
use serde_json::{Value, json};
use serve::route::{Call, Router, json as answer};
use serve::server::{self, Limits};
use serve::websocket;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const S: &str = "/apis/subresources.kubevirt.io/v1/namespaces/{ns}";
const V: &str = "/apis/kubevirt.io/v1/namespaces/{ns}";
/// How long a connection of a test may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A request as it arrived: method and path, `Content-Type`-less body.
type RecordedRequest = (String, Value);

struct ApiServer {
    kubeconfig: PathBuf,
    seen: Arc<Mutex<Vec<RecordedRequest>>>,
    folder: tempfile::TempDir,
    _runtime: tokio::runtime::Runtime,
}

fn refusal(code: StatusCode, message: &str) -> serve::route::Answer {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message,
        "reason": "Conflict", "code": code.as_u16()});
    answer(code, status.to_string())
}

/// Sends back everything until a line `exit`.
async fn echo(mut stream: tokio::io::DuplexStream) {
    let mut all = Vec::new();
    let mut piece = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut piece).await {
        all.extend_from_slice(&piece[..count]);
        if stream.write_all(&piece[..count]).await.is_err() || all.ends_with(b"exit\n") {
            return;
        }
    }
}

async fn stream(mut call: Call) -> serve::route::Answer {
    match websocket::accept(&mut call, &["plain.kubevirt.io"]) {
        Err(refusal) => refusal.answer(),
        Ok((answer, pending)) => {
            assert_eq!(pending.protocol, Some("plain.kubevirt.io"));
            tokio::spawn(async move {
                let Ok((socket, _busy)) = pending.socket().await else { return };
                let (near, far) = tokio::io::duplex(1 << 16);
                tokio::spawn(echo(far));
                let (bytes, keep) = (websocket::Messages::Bytes, websocket::KeepAlive::default());
                drop(websocket::pipe(socket, near, bytes, keep, std::future::pending()).await);
            });
            answer
        }
    }
}

impl ApiServer {
    fn start() -> Self {
        let seen: Arc<Mutex<Vec<RecordedRequest>>> = Arc::default();
        let record = |code: StatusCode, body: Value| {
            let seen = Arc::clone(&seen);
            move |mut call: Call| {
                let (seen, body) = (Arc::clone(&seen), body.clone());
                async move {
                    let sent = call.bytes(1 << 20).await.ok().unwrap_or_default();
                    let sent = serde_json::from_slice(&sent).unwrap_or(Value::Null);
                    let line = format!("{} {}", call.head.method, call.head.uri);
                    seen.lock().unwrap().push((line, sent));
                    match code.is_success() {
                        true => answer(code, body.to_string()),
                        false => refusal(code, body.as_str().unwrap_or_default()),
                    }
                }
            }
        };
        let ok = |body: Value| record(StatusCode::OK, body);
        let waits = Arc::new(AtomicUsize::new(1));
        let put = |path: &str| format!("{S}/{path}");
        let router = Router::new()
            .route(Method::PUT, &put("virtualmachines/a/start"), record(StatusCode::ACCEPTED, Value::Null))
            .route(
                Method::PUT,
                &put("virtualmachines/a/stop"),
                record(
                    StatusCode::CONFLICT,
                    json!(
                        "Operation cannot be fulfilled on virtualmachine.kubevirt.io \"a\": VM is not running"
                    ),
                ),
            )
            .route(Method::PUT, &put("virtualmachineinstances/a/pause"), ok(Value::Null))
            .route(
                Method::PUT,
                &put("virtualmachineinstances/a/addvolume"),
                record(StatusCode::ACCEPTED, Value::Null),
            )
            .route(Method::PUT, &put("virtualmachineinstances/a/softreboot"), ok(Value::Null))
            .route(
                Method::PUT,
                &put("expand-vm-spec"),
                ok(json!({"kind": "VirtualMachine", "spec": {"x": 1}})),
            )
            .get(&put("virtualmachines/a/objectgraph"), ok(json!({"children": []})))
            .get(&put("virtualmachineinstances/a/userlist"), ok(json!({"items": [{"userName": "root"}]})))
            .get(&format!("{V}/virtualmachines/a"), ok(json!({"metadata": {"name": "a"}})))
            .get("/api/v1/namespaces/{ns}/persistentvolumeclaims/v", ok(json!({})))
            .route(Method::POST, "/api/v1/namespaces/{ns}/services", record(StatusCode::CREATED, json!({})))
            .get(
                "/apis/subresources.kubevirt.io",
                ok(json!({"preferredVersion": {"groupVersion": "subresources.kubevirt.io/v1"}})),
            )
            .get("/apis/subresources.kubevirt.io/v1/version", ok(json!({"gitVersion": "v1.9.0"})))
            .get(&put("virtualmachineinstances/a/console"), move |call| {
                let waits = Arc::clone(&waits);
                async move {
                    match waits.swap(0, Ordering::Relaxed) {
                        0 => stream(call).await,
                        _ => refusal(StatusCode::BAD_REQUEST, "VMI is not running"),
                    }
                }
            })
            .get(&put("virtualmachineinstances/a/usbredir"), stream)
            .get(&put("virtualmachines/a/portforward/22/tcp"), stream)
            .get(&put("virtualmachines/a/portforward/53/udp"), stream)
            .refuse_with(|head, _| refusal(StatusCode::NOT_FOUND, &format!("no {}", head.uri.path())));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let (send, bound) = std::sync::mpsc::channel::<SocketAddr>();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            send.send(listener.local_addr().unwrap()).unwrap();
            let (_open, closing) = tokio::sync::watch::channel(false);
            server::serve(listener, None, Limits::default(), Arc::new(router), closing).await;
        });
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("config");
        write_kubeconfig(&kubeconfig, &bound.recv().unwrap().to_string());
        Self { kubeconfig, seen, folder, _runtime: runtime }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-virt"));
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(words).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// The requests since the last question.
    fn take_requests(&self) -> Vec<RecordedRequest> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

fn write_kubeconfig(file: &Path, server: &str) {
    let text = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u, namespace: shop}}}}]\n\
         clusters: [{{name: k, cluster: {{server: 'http://{server}'}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
    );
    fs::write(file, text).unwrap();
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[track_caller]
fn good(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", err(output));
    out(output)
}

#[test]
fn verbs_send_requests_and_print_messages_of_virtctl() {
    let api = ApiServer::start();
    assert_eq!(good(&api.run(&["start", "a", "--paused"])), "VM a was scheduled to start\n");
    let path = "/apis/subresources.kubevirt.io/v1/namespaces/shop/virtualmachines/a/start";
    assert_eq!(api.take_requests(), [(format!("PUT {path}"), json!({"paused": true}))]);

    let dry = good(&api.run(&["pause", "vm", "a", "--dry-run", "-n", "other"]));
    assert_eq!(dry, "Dry Run execution\nVMI a was scheduled to pause\n");
    let seen = api.take_requests();
    assert!(
        seen[0].0.ends_with("/namespaces/other/virtualmachines/a"),
        "the machine is read first: {seen:?}"
    );
    assert_eq!(seen[1].1, json!({"dryRun": ["All"]}));

    good(&api.run(&["addvolume", "a", "--volume-name", "v"]));
    let seen = api.take_requests();
    let last = seen.last().unwrap();
    assert!(last.0.contains("virtualmachineinstances/a/addvolume"), "asked of the run after 404: {seen:?}");
    assert_eq!(last.1["volumeSource"]["persistentVolumeClaim"]["claimName"], "v");

    good(&api.run(&["soft-reboot", "a"]));
    assert_eq!(api.take_requests()[0].1, Value::Null);

    let exposed = good(&api.run(&["expose", "vm", "a", "--name", "web", "--port", "80"]));
    assert_eq!(exposed, "Service web successfully exposed for vm a\n");
    assert_eq!(api.take_requests()[1].1["spec"]["selector"], json!({"vmi.kubevirt.io/id": "a"}));

    let users: Value = serde_json::from_str(&good(&api.run(&["userlist", "a"]))).unwrap();
    assert_eq!(users["items"][0]["userName"], "root");
    let versions: Value = serde_json::from_str(&good(&api.run(&["version", "-o", "json"]))).unwrap();
    assert_eq!(versions["serverVersion"]["gitVersion"], "v1.9.0");

    let file = api.folder.path().join("vm.yaml");
    fs::write(&file, "kind: VirtualMachine\nspec: {}\n").unwrap();
    api.take_requests();
    let expanded = good(&api.run(&["expand", "-f", file.to_str().unwrap(), "-o", "json"]));
    assert_eq!(serde_json::from_str::<Value>(&expanded).unwrap()["spec"]["x"], 1);
    assert_eq!(api.take_requests()[0].1["kind"], "VirtualMachine");
    let graph = good(&api.run(&["objectgraph", "a", "--exclude-optional", "--selector", "k=v"]));
    assert_eq!(graph, "{\n  \"children\": []\n}\n");
    let path = "/apis/subresources.kubevirt.io/v1/namespaces/shop/virtualmachines/a/objectgraph";
    let asked = json!({"includeOptionalNodes": false, "labelSelector": {"matchLabels": {"k": "v"}}});
    assert_eq!(api.take_requests(), [(format!("GET {path}"), asked)]);
}

#[test]
fn exit_codes_distinguish_refusal_usage_and_system() {
    let api = ApiServer::start();
    let refused = api.run(&["stop", "a"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        err(&refused).contains("Error stopping VirtualMachine")
            && err(&refused).contains("VM is not running")
    );
    assert_eq!(api.run(&["reset", "missing"]).status.code(), Some(1));
    assert_eq!(api.run(&["stop", "a", "--grace-period", "5"]).status.code(), Some(2));
    assert_eq!(api.run(&["start"]).status.code(), Some(2));
    assert_eq!(api.run(&["--context", "none", "start", "a"]).status.code(), Some(2));
    // The port of a listener that is gone.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    write_kubeconfig(&api.kubeconfig, &gone.to_string());
    let unreachable = api.run(&["start", "a"]);
    assert_eq!(unreachable.status.code(), Some(3), "{}", err(&unreachable));
}

#[test]
fn manifests_and_completions_need_no_cluster() {
    let run = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kubectl-virt"));
        command.args(words).env("KUBECONFIG", "/nonexistent").env_remove("HOME").output().unwrap()
    };
    let words = ["create", "vm", "--name", "a", "--volume-containerdisk", "src:img", "-o", "json"];
    let made: Value = serde_json::from_str(&good(&run(&words))).unwrap();
    assert_eq!(made["spec"]["template"]["spec"]["volumes"][0]["containerDisk"]["image"], "img");
    assert!(good(&run(&["create", "vm", "--name", "a"])).contains("runStrategy: Always"));
    assert!(good(&run(&["completion", "bash"])).contains("port-forward"));
    assert!(good(&run(&["version", "--client"])).starts_with("Client Version:"));
    assert_eq!(run(&["start", "a"]).status.code(), Some(2));
}

/// A process that is killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn consoles_wait_for_the_guest_and_carry_bytes_both_ways() {
    let api = ApiServer::start();
    let mut child = api.command(&["console", "a"]);
    let mut child =
        Running(child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let mut typed = child.0.stdin.take().unwrap();
    typed.write_all(b"hello\nexit\n").unwrap();
    let mut shown = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
    assert_eq!(shown, "hello\nexit\n");
    let mut messages = String::new();
    child.0.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
    assert!(
        messages.contains("Waiting for a") && messages.contains("Successfully connected to a console"),
        "{messages}"
    );
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
}

/// Sends a text over a connection of its own; gives the answer, to the connection's end.
fn sent_back(address: impl ToSocketAddrs, text: &str) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(TIMEOUT)).unwrap();
    connection.write_all(text.as_bytes()).unwrap();
    let mut back = String::new();
    connection.read_to_string(&mut back).unwrap();
    back
}

#[test]
fn forwarded_ports_carry_connections_and_datagrams() {
    let api = ApiServer::start();
    let mut child = api.command(&["port-forward", "vm/a", "0:22", "udp/0:53"]);
    let mut child = Running(child.stderr(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
    let mut address = || {
        let line = lines.next().unwrap().unwrap();
        line.split(' ').nth(2).unwrap().parse::<SocketAddr>().unwrap()
    };
    let (tcp, udp) = (address(), address());
    assert_eq!(sent_back(tcp, "question\nexit\n"), "question\nexit\n");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut datagram = [0; 16];
    for text in [&b"one"[..], b"two"] {
        socket.send_to(text, udp).unwrap();
        let (count, _) = socket.recv_from(&mut datagram).unwrap();
        assert_eq!(&datagram[..count], text);
    }
}

#[test]
fn a_usb_device_is_connected_by_the_local_program() {
    let api = ApiServer::start();
    let program = api.folder.path().join("usbredirect");
    // Sends five bytes and keeps the answer; it finds the device 1-1 only.
    let script = "#!/bin/bash\n[ \"$1 $2 $3\" = '--device 1-1 --to' ] || exit 4\n\
        exec 3<>\"/dev/tcp/${4%:*}/${4#*:}\"\nprintf hello >&3\nhead -c 5 <&3 > \"$0.answer\"\n";
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", api.folder.path().display(), std::env::var("PATH").unwrap());
    let run = |words: &[&str], path: &str| api.command(words).env("PATH", path).output().unwrap();
    good(&run(&["usbredir", "1-1", "a"], &path));
    assert_eq!(fs::read_to_string(program.with_extension("answer")).unwrap(), "hello");
    let failed = run(&["usbredir", "2-2", "a"], &path);
    assert_eq!(failed.status.code(), Some(3));
    assert!(err(&failed).contains("usbredirect failed: exit status: 4"), "{}", err(&failed));
    let missing = run(&["usbredir", "1-1", "a"], "/nonexistent");
    assert!(err(&missing).contains("apt install usbredirect"), "{}", err(&missing));
    assert_eq!(api.run(&["usbredir", "1-1", "b"]).status.code(), Some(1));
    assert_eq!(api.run(&["usbredir", "a"]).status.code(), Some(2));

    let mut child = api.command(&["usbredir", "a", "--no-launch"]);
    let mut child = Running(child.stdout(Stdio::piped()).spawn().unwrap());
    let line = BufReader::new(child.0.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let address = line.strip_prefix("User can connect usbredir client at: ").unwrap();
    assert_eq!(sent_back(address, "hello\nexit\n"), "hello\nexit\n");
    assert_eq!(child.0.wait().unwrap().code(), Some(0));
}

#[test]
fn standard_input_and_output_become_a_connection() {
    let api = ApiServer::start();
    let mut child = api.command(&["port-forward", "--stdio=true", "vm/a", "22"]);
    let mut child = Running(child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap());
    child.0.stdin.take().unwrap().write_all(b"SSH-2.0\nexit\n").unwrap();
    let mut back = String::new();
    child.0.stdout.take().unwrap().read_to_string(&mut back).unwrap();
    assert_eq!(back, "SSH-2.0\nexit\n");
    let missing = api.run(&["port-forward", "--stdio=true", "vmi/a", "22"]);
    assert_eq!(missing.status.code(), Some(1), "{}", err(&missing));
}
