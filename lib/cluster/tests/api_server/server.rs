//! A real API server with its etcd, on loopback and ports of its own; stopped when dropped.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cluster::config::Identity;
use cluster::{Client, Config};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use serde_json::Value;
use tempfile::TempDir;

/// A server and what is needed to reach it.
pub(crate) struct Server {
    folder: TempDir,
    port: u16,
    etcd_port: u16,
    etcd: Child,
    api: Option<Child>,
    authority: String,
    admin: (String, String),
}

/// The program of that name which `make kube` built.
pub(crate) fn program(name: &str) -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| Path::new(&std::env::var_os("HOME").unwrap()).join(".cache"));
    let folders = fs::read_dir(cache.join("ferrovirt/kube")).expect("Kubernetes' programs: run `make kube`");
    let mut found = folders.map(|folder| folder.unwrap().path().join(name)).filter(|path| path.is_file());
    found.next().unwrap_or_else(|| panic!("{name}: run `make kube`"))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts a program that dies with this process.
pub(crate) fn start(name: &str, log: &Path, flags: &[String]) -> Child {
    let log = fs::File::options().create(true).append(true).open(log).unwrap();
    Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "--"])
        .arg(program(name))
        .args(flags)
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap()
}

impl Server {
    /// Starts etcd and the API server and waits until it is ready.
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "tests");
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let sign = |name: &str, group: Option<&str>| {
            let mut params =
                CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
            params.extended_key_usages =
                vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            params.distinguished_name = rcgen::DistinguishedName::new();
            params.distinguished_name.push(DnType::CommonName, name);
            if let Some(group) = group {
                params.distinguished_name.push(DnType::OrganizationName, group);
            }
            let key = KeyPair::generate().unwrap();
            (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
        };
        let own = sign("kube-apiserver", None);
        let accounts = KeyPair::generate().unwrap();
        for (name, text) in [
            ("ca.crt", &authority.pem()),
            ("own.crt", &own.0),
            ("own.key", &own.1),
            ("accounts.key", &accounts.serialize_pem()),
            ("accounts.pub", &accounts.public_key_pem()),
        ] {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let etcd_port = free_port();
        let etcd = [
            format!("--data-dir={}", folder.path().join("etcd").display()),
            format!("--listen-client-urls=http://127.0.0.1:{etcd_port}"),
            format!("--advertise-client-urls=http://127.0.0.1:{etcd_port}"),
            format!("--listen-peer-urls=http://127.0.0.1:{}", free_port()),
            "--unsafe-no-fsync=true".to_owned(),
        ];
        let etcd = start("etcd", &folder.path().join("etcd.log"), &etcd);
        let admin = sign("admin", Some("system:masters"));
        let authority = authority.pem();
        let mut server = Self { folder, port: free_port(), etcd_port, etcd, api: None, authority, admin };
        server.resume().await;
        server
    }

    /// Starts the API server (again) and waits until it is ready.
    pub(crate) async fn resume(&mut self) {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let flags = [
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            format!("--secure-port={}", self.port),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
            format!("--client-ca-file={}", file("ca.crt")),
            format!("--tls-cert-file={}", file("own.crt")),
            format!("--tls-private-key-file={}", file("own.key")),
            "--service-account-issuer=https://tests".to_owned(),
            format!("--service-account-key-file={}", file("accounts.pub")),
            format!("--service-account-signing-key-file={}", file("accounts.key")),
            "--authorization-mode=RBAC".to_owned(),
            "--allow-privileged=true".to_owned(),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            format!("--requestheader-client-ca-file={}", file("ca.crt")),
            "--requestheader-allowed-names=front-proxy-client".to_owned(),
            "--requestheader-username-headers=X-Remote-User".to_owned(),
        ];
        self.api = Some(start("kube-apiserver", &self.folder.path().join("api.log"), &flags));
        let client = self.client();
        let begun = Instant::now();
        while client.read::<Value>("/apis").await.is_err()
            || client.read::<Value>("/api/v1/namespaces/kube-system").await.is_err()
        {
            let log = fs::read_to_string(self.folder.path().join("api.log")).unwrap();
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            assert!(begun.elapsed() < Duration::from_secs(180), "the API server does not come up: {last:#?}");
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    }

    /// Kills the API server; etcd stays.
    pub(crate) fn kill(&mut self) {
        if let Some(mut api) = self.api.take() {
            api.kill().unwrap();
            api.wait().unwrap();
        }
    }

    /// Where it is, with the administrator's certificate.
    pub(crate) fn config(&self) -> Config {
        let (certificates, key) = (self.admin.0.clone().into_bytes(), self.admin.1.clone().into_bytes());
        Config {
            authority: Some(self.authority.clone().into_bytes()),
            identity: Some(Identity { certificates, key }),
            ..Config::new(format!("https://127.0.0.1:{}", self.port))
        }
    }

    /// An administrator's client.
    pub(crate) fn client(&self) -> Client {
        Client::new(&self.config(), "tests").unwrap()
    }

    /// Files for curl: authority, certificate, key.
    pub(crate) fn files(&self) -> [PathBuf; 3] {
        let folder = self.folder.path();
        let files = [folder.join("ca.crt"), folder.join("admin.crt"), folder.join("admin.key")];
        fs::write(&files[1], &self.admin.0).unwrap();
        fs::write(&files[2], &self.admin.1).unwrap();
        files
    }

    /// Its port on loopback.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in self.api.iter_mut().chain([&mut self.etcd]) {
            let _ended = child.kill();
            let _reaped = child.wait();
        }
    }
}
