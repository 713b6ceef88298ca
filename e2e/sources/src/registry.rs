//! A container registry: Debian's docker-registry over a storage folder, with a login or without, over TLS with a CA of its
//! own, and what fills that folder.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::Value;

use crate::images::{DOCKER_GZIP, DOCKER_MANIFEST, HTPASSWD, Layer, OCI_MANIFEST, digest, manifest};
use crate::tls::server_config;

/// A CA, and a server's certificate by it.
pub struct Tls {
    /// `certs/ca.crt`, `server.pem`, `server.key`.
    pub folder: tempfile::TempDir,
    /// The server's.
    pub key: KeyPair,
    /// The server's certificate.
    pub der: Vec<u8>,
}

impl Tls {
    /// Makes them, for 127.0.0.1 and localhost.
    ///
    /// # Panics
    /// When it cannot.
    pub fn make() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let server = CertificateParams::new(names).unwrap().signed_by(&key, &ca).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("certs")).unwrap();
        fs::write(folder.path().join("certs/ca.crt"), ca.pem()).unwrap();
        fs::write(folder.path().join("server.pem"), server.pem()).unwrap();
        fs::write(folder.path().join("server.key"), key.serialize_pem()).unwrap();
        Self { folder, der: server.der().to_vec(), key }
    }

    /// The folder with the CA alone.
    pub fn certs(&self) -> PathBuf {
        self.folder.path().join("certs")
    }

    /// The certificate of a server of ours.
    pub fn config(&self) -> Arc<rustls::ServerConfig> {
        server_config(self.der.clone().into(), &self.key)
    }
}

/// How a registry lets one in.
pub enum Login {
    /// Everyone.
    Open,
    /// [`USER`](crate::images::USER) with [`PASSWORD`](crate::images::PASSWORD).
    Password,
    /// Access by a token of this server, whose CA is in this folder.
    Token(SocketAddr, PathBuf),
}

/// A registry; stopped when dropped.
pub struct Registry {
    process: Child,
    /// Where it listens.
    pub address: SocketAddr,
    _config: tempfile::TempDir,
}

impl Registry {
    /// Serves a storage folder.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(storage: &Path, tls: Option<&Tls>, login: &Login) -> Self {
        // Between the look-up of a free port and its use, another process may take it: then another one.
        (0..5).find_map(|_| Self::try_start(storage, tls, login)).expect("the registry does not start")
    }

    fn try_start(storage: &Path, tls: Option<&Tls>, login: &Login) -> Option<Self> {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let config = tempfile::tempdir().unwrap();
        let mut yaml = format!(
            "version: 0.1\nlog:\n  level: error\n  accesslog:\n    disabled: true\nstorage:\n  filesystem:\n    \
             rootdirectory: {}\nhttp:\n  addr: {address}\n",
            storage.display()
        );
        if let Some(tls) = tls {
            let folder = tls.folder.path().display();
            yaml += &format!("  tls:\n    certificate: {folder}/server.pem\n    key: {folder}/server.key\n");
        }
        match login {
            Login::Open => {}
            Login::Password => {
                let path = config.path().join("htpasswd");
                fs::write(&path, HTPASSWD).unwrap();
                yaml += &format!("auth:\n  htpasswd:\n    realm: test\n    path: {}\n", path.display());
            }
            Login::Token(address, certificates) => {
                yaml += &format!(
                    "auth:\n  token:\n    realm: https://{}/token\n    service: the registry\n    issuer: test\n    \
                     rootcertbundle: {}/ca.crt\n",
                    address,
                    certificates.display()
                );
            }
        }
        let path = config.path().join("config.yml");
        fs::write(&path, yaml).unwrap();
        let process = Command::new("docker-registry")
            .arg("serve")
            .arg(&path)
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(config.path().join("log")).unwrap())
            .spawn()
            .expect("docker-registry is missing: run make deps");
        let mut registry = Self { process, address, _config: config };
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(20) {
            if registry.process.try_wait().unwrap().is_some() {
                return None;
            }
            if TcpStream::connect(address).is_ok() {
                return Some(registry);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// The reference of an image.
    pub fn image(&self, name: &str) -> String {
        format!("docker://{}/{name}", self.address)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A storage folder and the registry that fills it.
pub struct Store {
    folder: tempfile::TempDir,
    /// The registry that fills it.
    pub writer: Registry,
}

impl Store {
    /// An empty one.
    ///
    /// # Panics
    /// When the registry does not start.
    pub fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let writer = Registry::start(folder.path(), None, &Login::Open);
        Self { folder, writer }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Where the registry keeps a blob.
    ///
    /// # Panics
    /// When it is no digest.
    pub fn blob(&self, digest: &str) -> PathBuf {
        let hex = digest.strip_prefix("sha256:").unwrap();
        self.path().join(format!("docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]))
    }

    /// One request to the writing registry; gives status and Location.
    ///
    /// # Panics
    /// When there is no answer.
    pub fn request(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(self.writer.address).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            self.writer.address,
            body.len()
        )
        .unwrap();
        stream.write_all(body).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let status = answer.split_whitespace().nth(1).unwrap().parse().unwrap();
        let location = answer.lines().find_map(|line| line.strip_prefix("Location: ")).unwrap_or_default();
        (status, location.trim().to_owned())
    }

    /// Pushes a blob; gives its digest.
    ///
    /// # Panics
    /// When it is refused.
    pub fn push_blob(&self, name: &str, bytes: &[u8]) -> String {
        let digest = digest(bytes);
        let (status, location) = self.request("POST", &format!("/v2/{name}/blobs/uploads/"), "", b"");
        assert_eq!(status, 202);
        let path = location.split_once(&self.writer.address.to_string()).unwrap().1;
        let put = format!("{path}&digest={digest}");
        let (status, _) = self.request("PUT", &put, "application/octet-stream", bytes);
        assert_eq!(status, 201);
        digest
    }

    /// Pushes a manifest or index as it is; gives its digest and length.
    ///
    /// # Panics
    /// When it is refused.
    pub fn push_document(&self, name: &str, tag: &str, kind: &str, document: &Value) -> (String, usize) {
        let bytes = document.to_string().into_bytes();
        let (status, answer) = self.request("PUT", &format!("/v2/{name}/manifests/{tag}"), kind, &bytes);
        assert_eq!(status, 201, "{answer}");
        (digest(&bytes), bytes.len())
    }

    /// Pushes an image as `name:tag`; gives the manifest's digest and length and the layers' digests.
    pub fn push(&self, name: &str, tag: &str, layers: &[Layer]) -> (String, usize, Vec<String>) {
        let docker = layers.iter().any(|layer| layer.kind == DOCKER_GZIP);
        let (kind, config_kind) = if docker {
            (DOCKER_MANIFEST, "application/vnd.docker.container.image.v1+json")
        } else {
            (OCI_MANIFEST, "application/vnd.oci.image.config.v1+json")
        };
        let config = br#"{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/bin","INSTANCETYPE_KUBEVIRT_IO_DEFAULT_PREFERENCE=debian"]},"rootfs":{"type":"layers","diff_ids":[]}}"#;
        self.push_blob(name, config);
        let digests: Vec<String> = layers.iter().map(|layer| self.push_blob(name, &layer.blob)).collect();
        let manifest = manifest(kind, config_kind, config, layers);
        let (digest, len) = self.push_document(name, tag, kind, &manifest);
        (digest, len, digests)
    }
}
