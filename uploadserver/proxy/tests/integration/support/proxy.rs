//! The built `uploadproxy` before upload servers of the tests: its files, its cluster, its port.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use super::cluster::{Cluster, key_pair};
use super::server::client::{Answer, Client};
use super::server::tls::Authority;
use super::server::{CLIENT, Pod, Setup};

/// A proxy; killed when dropped.
pub(crate) struct Proxy {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) cluster: Cluster,
    /// Signs everybody's certificates.
    pub(crate) authority: Arc<Authority>,
    port: u16,
    process: Child,
    /// Held while a server is added.
    hosts: Mutex<()>,
}

impl Proxy {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (private, public) = key_pair();
        let cluster = Cluster::start(&private);
        let authority = Arc::new(Authority::new());
        let path = |name: &str| folder.path().join(name);
        cluster.write_config(&path("kubeconfig"));
        fs::write(path("id_rsa"), private).unwrap();
        fs::write(path("id_rsa.pub"), public).unwrap();
        fs::write(path("hosts"), "").unwrap();
        let bundle = json!({"data": {"ca-bundle.crt": authority.certificate()}});
        cluster.put("/api/v1/namespaces/cdi/configmaps/cdi-uploadserver-signer-bundle", bundle);
        put_certificate(folder.path(), "server", &authority, "proxy");
        put_certificate(folder.path(), "client", &authority, CLIENT);
        let process = Command::new(env!("CARGO_BIN_EXE_uploadproxy"))
            .arg("-v=1")
            .current_dir(folder.path())
            .env_clear()
            .envs([
                ("KUBECONFIG", path("kubeconfig")),
                ("SERVER_CERT_FILE", path("server.crt")),
                ("SERVER_KEY_FILE", path("server.key")),
                ("UPLOAD_CLIENT_CERT_FILE", path("client.crt")),
                ("UPLOAD_CLIENT_KEY_FILE", path("client.key")),
                ("APISERVER_PUBLIC_KEY_FILE", path("id_rsa.pub")),
                ("APISERVER_REVOKED_KEYS_FILE", path("revoked.pub")),
                ("FERROVIRT_UPLOADPROXY_HOSTS", path("hosts")),
                // A free port, which the log names.
                ("LISTEN", "127.0.0.1:0".into()),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(path("log")).unwrap())
            .spawn()
            .unwrap();
        let mut proxy = Self { folder, cluster, authority, port: 0, process, hosts: Mutex::new(()) };
        let begun = Instant::now();
        while proxy.port == 0 {
            assert!(begun.elapsed() < Duration::from_secs(30), "it does not listen\n{}", proxy.log());
            std::thread::sleep(Duration::from_millis(20));
            proxy.port = proxy.named_port().unwrap_or(0);
        }
        proxy
    }

    /// The port for uploads, once the log names it.
    fn named_port(&self) -> Option<u16> {
        let log = self.log();
        let (_, port) = log.split_once("waiting for uploads address=127.0.0.1:")?;
        port.split_once('\n')?.0.parse().ok()
    }

    /// Sends SIGTERM.
    pub(crate) fn terminate(&self) {
        let sent = Command::new("kill").arg(self.process.id().to_string()).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until the process ends; whether it ends by itself with success within `time`.
    pub(crate) fn ends_within(&mut self, time: Duration) -> bool {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.success();
            }
            if begun.elapsed() > time {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// An upload server for the claim `ns/name`, ready.
    pub(crate) fn pod(&self, name: &str) -> Pod {
        self.pod_with(name, Setup::default())
    }

    pub(crate) fn pod_with(&self, name: &str, setup: Setup<'_>) -> Pod {
        let host = format!("cdi-upload-{name}.ns.svc");
        let authority = Some(self.authority.clone());
        let pod = Pod::start(&Setup { authority, host: Some(&host), ..setup });
        self.put_host(&host, pod.port());
        self.cluster.put_ready(name);
        pod
    }

    /// The server of this name listens at this port.
    pub(crate) fn put_host(&self, host: &str, port: u16) {
        let _one = self.hosts.lock().unwrap();
        let old = fs::read_to_string(self.path("hosts")).unwrap();
        let others =
            old.lines().filter(|line| !line.ends_with(&format!(" {host}"))).map(|line| format!("{line}\n"));
        let new = others.collect::<String>() + &format!("127.0.0.1:{port} {host}\n");
        put(self.folder.path(), "hosts", &new);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn process(&self) -> &Child {
        &self.process
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub(crate) fn connect(&self) -> io::Result<TcpStream> {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.connect().unwrap(), None).unwrap()
    }

    /// A header with a token for the claim `ns/name`.
    pub(crate) fn bearer(&self, name: &str) -> String {
        format!("Authorization: Bearer {}", self.cluster.token(&format!("ns/{name}")))
    }

    /// A request with a token for the claim `ns/name`, over a connection of its own.
    pub(crate) fn request(
        &self,
        name: &str,
        method: &str,
        path: &str,
        headers: &[&str],
        body: &[u8],
    ) -> Answer {
        let bearer = self.bearer(name);
        let headers: Vec<&str> = headers.iter().copied().chain([bearer.as_str()]).collect();
        self.client().request(method, path, &headers, body)
    }

    /// A command of the program, with what it needs to reach this proxy and its cluster.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_uploadproxy"));
        command.args(arguments).env_clear().env("KUBECONFIG", self.path("kubeconfig")).stdin(Stdio::null());
        command
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Replaces a file by rename, as certificate rotation does.
pub(crate) fn put(folder: &Path, name: &str, text: &str) {
    let new = folder.join(format!("{name}.new"));
    fs::write(&new, text).unwrap();
    fs::rename(new, folder.join(name)).unwrap();
}

/// Puts a new certificate and its key in place.
pub(crate) fn put_certificate(folder: &Path, file: &str, authority: &Authority, name: &str) {
    let (certificate, key) = authority.sign(name);
    put(folder, &format!("{file}.key"), &key);
    put(folder, &format!("{file}.crt"), &certificate);
}
