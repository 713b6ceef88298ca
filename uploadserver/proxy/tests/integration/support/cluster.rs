//! A stand-in for a cluster's API server: objects by their paths, as a test puts them there, and tokens for uploads. Plain
//! HTTP, so that nothing but what is asked and answered is tested with it; the real one is in `e2e`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use api::upload::token::{Grant, LIFETIME, Signer, Target};
use serde_json::{Value, json};

/// The cluster.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<Inside>);

struct Inside {
    port: u16,
    objects: Mutex<BTreeMap<String, Value>>,
    signer: Mutex<Arc<Signer>>,
    asked: Mutex<Vec<String>>,
}

/// Seconds of Unix time.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// A pair of RSA keys, PEM: private, public.
pub(crate) fn key_pair() -> (String, String) {
    let size = rcgen::RsaKeySize::_2048;
    let key = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, size).unwrap();
    (key.serialize_pem(), key.public_key_pem())
}

impl Cluster {
    /// One that signs tokens with this key.
    pub(crate) fn start(private: &str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let inside = Arc::new(Inside {
            port: listener.local_addr().unwrap().port(),
            objects: Mutex::default(),
            signer: Mutex::new(Arc::new(Signer::from_pem(private).unwrap())),
            asked: Mutex::default(),
        });
        let cluster = Self(inside.clone());
        // It ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let inside = inside.clone();
                std::thread::spawn(move || inside.serve_connection(&stream));
            }
        });
        cluster
    }

    /// Signs with another key from now on.
    pub(crate) fn sign_with(&self, private: &str) {
        *self.0.signer.lock().unwrap() = Arc::new(Signer::from_pem(private).unwrap());
    }

    /// A token for this claim.
    pub(crate) fn token(&self, target: &str) -> String {
        self.0.token(target)
    }

    /// Puts an object there.
    pub(crate) fn put(&self, path: &str, object: Value) {
        self.0.objects.lock().unwrap().insert(path.to_owned(), object);
    }

    /// Puts a claim of the namespace `ns` there.
    pub(crate) fn put_claim(&self, name: &str, annotations: &[(&str, &str)]) {
        let annotations: BTreeMap<String, &str> = annotations
            .iter()
            .map(|(key, value)| (format!("cdi.kubevirt.io/storage.{key}"), *value))
            .collect();
        let path = format!("/api/v1/namespaces/ns/persistentvolumeclaims/{name}");
        self.put(&path, json!({"metadata": {"name": name, "annotations": annotations}, "spec": {}}));
    }

    /// A claim with a ready upload server.
    pub(crate) fn put_ready(&self, name: &str) {
        self.put_claim(name, &[("upload.target", ""), ("pod.ready", "true"), ("pod.phase", "Running")]);
    }

    /// A file by which it is reached.
    pub(crate) fn write_config(&self, path: &Path) {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://127.0.0.1:{}", self.0.port)}}],
            "users": [{"name": "c", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c", "namespace": "cdi"}}],
        });
        std::fs::write(path, config.to_string()).unwrap();
    }

    /// Requests so far, verb and path.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.0.asked.lock().unwrap().clone()
    }
}

impl Inside {
    fn token(&self, target: &str) -> String {
        let signer = self.signer.lock().unwrap().clone();
        signer.sign(&Grant::upload(&Target::parse(target).unwrap()), now(), LIFETIME).unwrap()
    }

    /// Answers what comes over one connection.
    fn serve_connection(&self, stream: &TcpStream) {
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
            let (status, answer) = self.answer(words[0], words[1], &body);
            self.asked.lock().unwrap().push(format!("{} {}", words[0], words[1]));
            let answer = answer.to_string();
            let head = format!(
                "HTTP/1.1 {status} x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
                answer.len()
            );
            let mut writer = stream;
            if writer.write_all((head + &answer).as_bytes()).is_err() {
                return;
            }
        }
    }

    fn answer(&self, method: &str, path: &str, body: &[u8]) -> (u16, Value) {
        let path = path.split('?').next().unwrap();
        let tokens = path.strip_prefix("/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/");
        if let (Some(path), "POST") = (tokens, method) {
            let mut request: Value = serde_json::from_slice(body).unwrap();
            let namespace = path.strip_suffix("/uploadtokenrequests").unwrap();
            let target = format!("{namespace}/{}", request["spec"]["pvcName"].as_str().unwrap());
            request["status"] = json!({"token": self.token(&target)});
            return (201, request);
        }
        match self.objects.lock().unwrap().get(path) {
            Some(object) => (200, object.clone()),
            None => (
                404,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": "not found", "reason": "NotFound", "code": 404}),
            ),
        }
    }
}
