//! A stand-in for an API server with one DataImportCron: GET and PUT with resource versions, over plain HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};

const PATH: &str = "/apis/cdi.kubevirt.io/v1beta1/namespaces/images/dataimportcrons/nightly";

#[derive(Default)]
struct State {
    object: Value,
    methods: Vec<String>,
    /// So many writes come after one of another program.
    conflicts: u32,
}

/// The server; it ends with the test's process.
pub(crate) struct ApiServer {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl ApiServer {
    pub(crate) fn start(object: Value) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { object, ..State::default() }));
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                thread::spawn(move || answer(&stream, &state));
            }
        });
        Self { address, state }
    }

    pub(crate) fn object(&self) -> Value {
        self.state.lock().unwrap().object.clone()
    }

    /// Methods of the requests so far.
    pub(crate) fn methods(&self) -> Vec<String> {
        self.state.lock().unwrap().methods.clone()
    }

    /// Another program writes before each of the next `count` writes.
    pub(crate) fn conflict(&self, count: u32) {
        self.state.lock().unwrap().conflicts = count;
    }

    /// A kubeconfig that leads here.
    pub(crate) fn write_config(&self, path: &Path) {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{}", self.address)}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        });
        std::fs::write(path, config.to_string()).unwrap();
    }
}

/// Answers the requests of one connection.
fn answer(mut stream: &TcpStream, state: &Mutex<State>) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).unwrap();
            let Some((name, value)) = header.trim_end().split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let (status, answer) = state.lock().unwrap().answer(words[0], words[1], &body);
        let answer = answer.to_string();
        let head = format!(
            "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        if stream.write_all((head + &answer).as_bytes()).is_err() {
            return;
        }
    }
}

impl State {
    fn answer(&mut self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        self.methods.push(method.to_owned());
        if path != PATH {
            return (
                404,
                json!({"kind": "Status", "code": 404, "reason": "NotFound", "message": "not found"}),
            );
        }
        if method == "PUT" {
            if self.conflicts > 0 {
                self.conflicts -= 1;
                let other = self.object["metadata"]["annotations"]["other"].as_str().unwrap_or("0");
                let other: u32 = other.parse().unwrap();
                self.object["metadata"]["annotations"]["other"] = json!((other + 1).to_string());
                self.written();
            }
            let mut new: Value = serde_json::from_slice(body).unwrap();
            if new["metadata"]["resourceVersion"] != self.object["metadata"]["resourceVersion"] {
                let status =
                    json!({"kind": "Status", "code": 409, "reason": "Conflict", "message": "changed"});
                return (409, status);
            }
            std::mem::swap(&mut self.object, &mut new);
            self.written();
        }
        (200, self.object.clone())
    }

    fn written(&mut self) {
        let version: u32 = self.object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        self.object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
    }
}
