//! A real API server (`make kube`) to which kubectl applies the installed objects. No pod runs.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::credentials::Credentials;
use cluster::{Client, Config, Events, Key, Resource};
use operator::args::{Args, Command as Subcommand};
use operator::context::Context;
use operator::health::Health;
use operator::install::{Settings, manifests, yaml};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::{Server, program, start};

/// The platform's namespace.
pub(crate) const PLATFORM: &str = "kubevirt-hyperconverged";
/// The namespace of a user.
pub(crate) const TEAM: &str = "team";
pub(crate) const NAMESPACES: Resource = Resource::cluster("", "v1", "namespaces");
pub(crate) const PODS: Resource = Resource::namespaced("", "v1", "pods");
const ACCOUNTS: Resource = Resource::namespaced("", "v1", "serviceaccounts");
const BINDINGS: Resource = Resource::namespaced("rbac.authorization.k8s.io", "v1", "rolebindings");

/// Waits until something holds.
pub(crate) async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < Duration::from_secs(120), "not within 120 s: {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// An API server with a namespace of a user.
pub(crate) struct Site {
    server: Server,
    folder: TempDir,
    /// An administrator.
    pub(crate) admin: Client,
    /// Kubernetes' controllers, where they run.
    controllers: Option<Child>,
}

impl Site {
    pub(crate) async fn start() -> Self {
        let server = Server::start().await;
        let admin = server.client();
        let team = json!({"metadata": {"name": TEAM}});
        admin.create::<IgnoredAny>(NAMESPACES, "", &team).await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let [authority, certificate, key] = server.files();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "tests",
            "clusters": [{"name": "tests", "cluster": {
                "server": format!("https://127.0.0.1:{}", server.port()), "certificate-authority": authority,
            }}],
            "users": [{"name": "tests", "user": {"client-certificate": certificate, "client-key": key}}],
            "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
        });
        fs::write(folder.path().join("kubeconfig"), config.to_string()).unwrap();
        Self { server, folder, admin, controllers: None }
    }

    /// A kubeconfig with the administrator's certificate.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// The context of an area's controllers, with an administrator's rights.
    pub(crate) fn context(&self, area: &str) -> Context {
        let arguments = ["operator", "run", "--area", area];
        let parsed = <Args as clap::Parser>::try_parse_from(arguments).unwrap().command;
        let Subcommand::Run(run) = parsed else { panic!("not the command run") };
        Context {
            client: self.admin.clone(),
            events: Events::start(&self.admin, "ferrovirt-operator", "tests"),
            config: Arc::new(operator::config::Config::new(&run).unwrap()),
            health: Health::default(),
        }
    }

    /// Starts the garbage collector, the namespace controller and the one that counts what quotas have.
    pub(crate) fn start_controllers(&mut self) {
        let flags = [
            format!("--kubeconfig={}", self.kubeconfig().display()),
            "--controllers=garbage-collector-controller,namespace-controller,resourcequota-controller"
                .to_owned(),
            "--leader-elect=false".to_owned(),
            "--secure-port=0".to_owned(),
        ];
        let log = self.folder.path().join("controllers.log");
        self.controllers = Some(start("kube-controller-manager", &log, &flags));
    }

    /// Applies the installed objects that are chosen.
    pub(crate) fn install(&self, chosen: impl Fn(&Value) -> bool) -> Output {
        let objects: Vec<Value> = manifests(&Settings::default()).into_iter().filter(chosen).collect();
        let file = self.folder.path().join("manifests.yaml");
        fs::write(&file, yaml(&objects).unwrap()).unwrap();
        let mut kubectl = Command::new(program("kubectl"));
        kubectl.arg("--kubeconfig").arg(self.kubeconfig()).args(["apply", "--server-side", "-f"]).arg(file);
        kubectl.env("HOME", self.folder.path()).output().unwrap()
    }

    /// A client with the token of a ServiceAccount, which is made if it does not exist; of a pod if one is named.
    pub(crate) async fn account(&self, namespace: &str, name: &str, pod: Option<&Value>) -> Client {
        let account = json!({"metadata": {"name": name}});
        if let Err(error) = self.admin.create::<IgnoredAny>(ACCOUNTS, namespace, &account).await {
            assert!(error.is_already_exists(), "{error}");
        }
        let mut request = json!({"spec": {"audiences": ["https://tests"]}});
        if let Some(pod) = pod {
            let meta = &pod["metadata"];
            request["spec"]["boundObjectRef"] =
                json!({"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]});
        }
        let key = Key::new(namespace, name);
        let answer: Value = self.admin.create_sub(ACCOUNTS.sub("token"), &key, &request).await.unwrap();
        let token = answer["status"]["token"].as_str().unwrap();
        let credentials = Credentials::token(token).unwrap();
        let config = Config { identity: None, credentials, ..self.server.config() };
        Client::new(&config, name).unwrap()
    }

    /// A client of a user with the rights of the ClusterRole `edit` in its namespace. That role itself is filled by a
    /// controller, which does not run.
    pub(crate) async fn editor(&self) -> Client {
        let editor = self.account(TEAM, "default", None).await;
        let binding = json!({
            "metadata": {"name": "edit"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:aggregate-to-edit"},
            "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": TEAM}],
        });
        self.admin.create::<IgnoredAny>(BINDINGS, TEAM, &binding).await.unwrap();
        editor
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(controllers) = &mut self.controllers {
            let _ended = controllers.kill();
            let _reaped = controllers.wait();
        }
    }
}

/// The kind of an object.
pub(crate) fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap()
}
