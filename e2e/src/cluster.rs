//! The handle on a cluster: start, use, stop. Not here: the process that keeps it (`supervisor`), its programs (`node`).

use std::fmt::Debug;
use std::fs;
use std::future::Future;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::node::{self, SECCOMP, ctr};
use crate::place::Place;
use crate::programs::{self, Programs};
use crate::supervisor;

/// How long the cluster may take until its node is ready.
const READY: Duration = Duration::from_secs(60);
/// How long the supervisor may take to remove everything.
const STOP: Duration = Duration::from_secs(60);

/// A running cluster of one node. It is stopped when this is dropped, and also when the process ends in any other way.
pub struct Cluster {
    place: Place,
    programs: Programs,
    supervisor: Child,
    client: Client,
    runtime: tokio::runtime::Runtime,
    kept: bool,
}

impl Cluster {
    /// Starts a cluster and waits until its node is ready and pods can be made in the namespace `default`.
    ///
    /// # Errors
    /// When a program is missing or does not come up; the error has the ends of all logs. Nothing is left then.
    pub fn start() -> Result<Self> {
        needs_root()?;
        let programs = Programs::find()?;
        let mut supervisor = Command::new(programs::of_this_build("cluster")?)
            .arg("keep")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the supervisor")?;
        match Self::meet(&mut supervisor) {
            Ok((place, runtime, client)) => {
                Ok(Self { place, programs, supervisor, client, runtime, kept: false })
            }
            Err(error) => {
                // Its own failure, if it failed, is in `error` already.
                let _ = stop(&mut supervisor);
                Err(error)
            }
        }
    }

    fn meet(supervisor: &mut Child) -> Result<(Place, tokio::runtime::Runtime, Client)> {
        let place = Place::of(read_line(supervisor, supervisor::STARTED)?.parse()?)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let client = runtime.block_on(connect(&place.kubeconfig()))?;
        runtime.block_on(ready(&client))?;
        Ok((place, runtime, client))
    }

    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// A client with all rights. Its futures run in [`Cluster::run`].
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Runs a future to its end.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Stock kubectl with the administrator's configuration, to be given arguments.
    pub fn kubectl(&self) -> Command {
        let mut kubectl = Command::new(self.programs.kubectl());
        kubectl.arg("--kubeconfig").arg(self.place.kubeconfig());
        kubectl
    }

    /// Loads the images of an archive; a pod then names them with `imagePullPolicy: Never` or `IfNotPresent`.
    ///
    /// # Errors
    /// When containerd does not take it.
    pub fn import_images(&self, archive: &Path) -> Result<()> {
        import_images(&self.place, archive)
    }

    /// Gives an image another name, too.
    ///
    /// # Errors
    /// When there is no such image.
    pub fn tag_image(&self, name: &str, other: &str) -> Result<()> {
        ctr(&self.place, &["images", "tag", "--force", name, other])
    }

    /// Makes a namespace that enforces a Pod Security level (`privileged`, `baseline`, `restricted`) and waits until pods
    /// can be made in it. Namespaces end with the cluster.
    ///
    /// # Errors
    /// When it exists, or the name is none.
    pub fn create_namespace(&self, name: &str, level: &str) -> Result<()> {
        let namespace: Namespace = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"pod-security.kubernetes.io/enforce": level}},
        }))?;
        self.run(async {
            let namespaces = Api::<Namespace>::all(self.client());
            namespaces.create(&PostParams::default(), &namespace).await?;
            account(&self.client, name, Instant::now() + READY).await
        })
    }

    /// Creates an object, given as JSON without its kind.
    ///
    /// # Errors
    /// When it is none of this kind, or the API server does not take it.
    pub fn create<K>(&self, api: &Api<K>, object: Value) -> Result<K>
    where
        K: Clone + Debug + DeserializeOwned + Serialize,
    {
        let object = serde_json::from_value(object)?;
        Ok(self.run(api.create(&PostParams::default(), &object))?)
    }

    /// Makes the node's containerd pull from a registry (`host:port`) by TLS with this authority, PEM.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn trust_registry(&self, registry: &str, authority: &str) -> Result<()> {
        let folder = self.place.path("registries").join(registry);
        fs::create_dir_all(&folder)?;
        let certificate = folder.join("ca.crt");
        fs::write(&certificate, authority)?;
        let hosts = format!(
            "server = \"https://{registry}\"\n[host.\"https://{registry}\"]\n  capabilities = [\"pull\", \"resolve\"]\n  \
             ca = \"{}\"\n",
            certificate.display()
        );
        Ok(fs::write(folder.join("hosts.toml"), hosts)?)
    }

    /// Gives the node a seccomp profile, that pods name by `localhostProfile`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn add_seccomp_profile(&self, name: &str, profile: &Value) -> Result<()> {
        Ok(fs::write(self.place.path(SECCOMP).join(name), profile.to_string())?)
    }

    /// The process id of the supervisor, for a test that kills it.
    pub fn keeper_id(&self) -> u32 {
        self.supervisor.id()
    }

    /// Has the node's first process start a program again whenever it is killed; otherwise its end is the node's.
    ///
    /// # Errors
    /// When the request cannot be written to the state folder.
    pub fn restart_killed(&self, program: &str) -> Result<()> {
        Ok(fs::write(self.place.path(&format!("{program}{}", node::RESTARTED)), "")?)
    }

    /// A program that sees what the node sees: its network, its files.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn on_node(&self, program: &str) -> Result<Command> {
        on_node(&self.supervisor, program)
    }

    /// Where a file of the node is to be found on the host, as long as the node lives.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn node_path(&self, path: &str) -> Result<PathBuf> {
        node_path(&self.supervisor, path)
    }

    /// The kubeconfig file, for programs.
    pub fn kubeconfig(&self) -> PathBuf {
        self.place.kubeconfig()
    }

    /// Adds a second node and waits until it is ready. After an earlier one has ended, it is that node switched on
    /// again, with what was on its disk.
    ///
    /// # Errors
    /// When it is there, or does not come up in time.
    pub fn start_second(&self) -> Result<Second> {
        let first = supervisor::node_of(self.supervisor.id())?;
        let mut supervisor = Command::new(programs::of_this_build("cluster")?)
            .args(["keep-second", &self.place.number().to_string(), &first])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the second node's supervisor")?;
        let place = self.place.second();
        let name = place.node_name();
        let started = read_line(&mut supervisor, supervisor::STARTED)
            .and_then(|_| self.run(node_ready(&self.client, &name, Instant::now() + READY)));
        let second = Second { place, supervisor };
        started.map(|()| second)
    }

    /// The events of the API server's audit log so far, in no order of time.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn audit(&self) -> Result<impl Iterator<Item = Value>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(self.place.folder())? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("audit") && name.ends_with(".log") {
                files.push(fs::File::open(path)?);
            }
        }
        let lines = files.into_iter().flat_map(|file| BufReader::new(file).lines().map_while(Result::ok));
        // The last line may be half written.
        Ok(lines.filter_map(|line| serde_json::from_str(&line).ok()))
    }

    /// Lets it stay after this process, until [`stop_kept`].
    ///
    /// # Errors
    /// When it has ended.
    pub fn keep(mut self) -> Result<()> {
        writeln!(self.supervisor.stdin.as_mut().context("a pipe")?, "{}", supervisor::KEEP)?;
        read_line(&mut self.supervisor, supervisor::KEPT)?;
        self.kept = true;
        Ok(())
    }

    /// Stops it now, and waits until nothing is left.
    ///
    /// # Errors
    /// When a part of it could not be removed.
    pub fn stop(mut self) -> Result<()> {
        self.kept = true;
        stop(&mut self.supervisor)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !self.kept {
            // An error has nowhere to go; the test of leftovers finds what stays.
            let _ = stop(&mut self.supervisor);
        }
    }
}

/// A cluster's second node: kubelet, containerd and kube-proxy in namespaces of their own. It is switched off when this is
/// dropped: all its processes are killed at once, and the API server is not notified.
pub struct Second {
    place: Place,
    supervisor: Child,
}

impl Second {
    /// Where it is.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Loads the images of an archive, as [`Cluster::import_images`] does on the first node.
    ///
    /// # Errors
    /// When containerd does not take it.
    pub fn import_images(&self, archive: &Path) -> Result<()> {
        import_images(&self.place, archive)
    }

    /// A program that sees what the node sees: its network, its files.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn on_node(&self, program: &str) -> Result<Command> {
        on_node(&self.supervisor, program)
    }

    /// Where a file of the node is to be found on the host, as long as the node lives.
    ///
    /// # Errors
    /// When the node is gone.
    pub fn node_path(&self, path: &str) -> Result<PathBuf> {
        node_path(&self.supervisor, path)
    }

    /// Switches it off.
    ///
    /// # Errors
    /// When a part of the node could not be removed.
    pub fn stop(mut self) -> Result<()> {
        stop(&mut self.supervisor)
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        // An error has nowhere to go; the test of leftovers finds what stays.
        let _ = stop(&mut self.supervisor);
    }
}

fn import_images(place: &Place, archive: &Path) -> Result<()> {
    ctr(place, &["images", "import", &archive.display().to_string()])
}

/// A program in the network and mount namespace of the node that `supervisor` keeps.
fn on_node(supervisor: &Child, program: &str) -> Result<Command> {
    let mut command = Command::new("nsenter");
    let first = supervisor::node_of(supervisor.id())?;
    command.args(["--target", &first, "--net", "--mount", "--", program]);
    Ok(command)
}

/// The host's path of a file of the node that `supervisor` keeps.
fn node_path(supervisor: &Child, path: &str) -> Result<PathBuf> {
    Ok(PathBuf::from(format!("/proc/{}/root{path}", supervisor::node_of(supervisor.id())?)))
}

/// Where clusters ended.
#[derive(Debug, Default)]
pub struct Ended {
    /// Where a person had one.
    pub stopped: Vec<Place>,
    /// Where a killed supervisor had left files, mounts or devices.
    pub removed: Vec<Place>,
}

/// Stops all clusters that were kept, and removes the remains of those whose supervisors were killed. Clusters of tests
/// stay.
///
/// # Errors
/// Without root's rights, when one does not end, or a part cannot be removed.
pub fn stop_kept() -> Result<Ended> {
    needs_root()?;
    let mut ended = Ended::default();
    for place in Place::all()?.into_iter().filter(|place| place.folder().exists()) {
        let kept = place.kept();
        if let Some(supervisor) = kept {
            rustix::process::kill_process(supervisor, rustix::process::Signal::TERM)?;
        }
        let deadline = Instant::now() + STOP;
        let mut taken = place.clone().try_acquire()?;
        while taken.is_none() && kept.is_some() {
            ensure!(Instant::now() < deadline, "the supervisor, process {kept:?}, did not end in {STOP:?}");
            thread::sleep(Duration::from_millis(50));
            taken = place.clone().try_acquire()?;
        }
        if taken.is_some() {
            supervisor::clean(&place).with_context(|| format!("cannot remove node {}", place.number()))?;
            if kept.is_some() { ended.stopped.push(place) } else { ended.removed.push(place) }
        }
    }
    Ok(ended)
}

/// Takes the reports of kept clusters that have ended by themselves.
///
/// # Errors
/// When it cannot be read or removed.
pub fn failures() -> Result<Vec<String>> {
    let mut failures = Vec::new();
    for place in Place::all()? {
        let report = place.report();
        match fs::read_to_string(&report) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            read => {
                let read = read.with_context(|| format!("cannot read {}", report.display()))?;
                failures.push(format!("node {} has ended by itself: {read}", place.number()));
                fs::remove_file(&report)?;
            }
        }
    }
    Ok(failures)
}

/// # Errors
/// Without root's rights.
pub fn needs_root() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "root is needed: a node has namespaces, links, mounts and cgroups of its own"
    );
    Ok(())
}

/// The supervisor's next line, without the beginning that it must have.
fn read_line(supervisor: &mut Child, beginning: &str) -> Result<String> {
    let stdout = supervisor.stdout.as_mut().context("a pipe")?;
    let mut said = Vec::new();
    let mut byte = [0];
    // Not a byte more than the line: nothing after it is ours.
    while stdout.read(&mut byte)? == 1 && byte[0] != b'\n' {
        said.push(byte[0]);
    }
    let line = String::from_utf8_lossy(&said).into_owned();
    if let Some(rest) = line.strip_prefix(beginning) {
        return Ok(rest.to_owned());
    }
    let mut rest = String::new();
    stdout.read_to_string(&mut rest)?;
    bail!("{}", failure(&format!("{line}\n{rest}")));
}

fn stop(supervisor: &mut Child) -> Result<()> {
    drop(supervisor.stdin.take());
    let pid = rustix::process::Pid::from_child(supervisor);
    if supervisor.try_wait()?.is_none() {
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
    }
    let deadline = Instant::now() + STOP;
    loop {
        if let Some(status) = supervisor.try_wait()? {
            let mut said = String::new();
            if let Some(stdout) = &mut supervisor.stdout {
                stdout.read_to_string(&mut said)?;
            }
            ensure!(status.success(), "{}", failure(&said));
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the supervisor did not end in {STOP:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The error in the output of a supervisor.
fn failure(said: &str) -> &str {
    let said = said.trim();
    if said.is_empty() {
        "the supervisor was killed"
    } else {
        said.strip_prefix(supervisor::FAILED).unwrap_or(said)
    }
}

async fn connect(kubeconfig: &Path) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // The node is directly reachable, regardless of the environment's proxy.
    config.proxy_url = None;
    Ok(Client::try_from(config)?)
}

/// Waits until the node is ready and the namespace `default` has its service account.
async fn ready(client: &Client) -> Result<()> {
    let deadline = Instant::now() + READY;
    node_ready(client, "node1", deadline).await?;
    account(client, "default", deadline).await
}

async fn node_ready(client: &Client, name: &str, deadline: Instant) -> Result<()> {
    let nodes = Api::<Node>::all(client.clone());
    // A node that was there before is ready by its old report until its kubelet's lease is renewed.
    let started = jiff::Timestamp::now() - Duration::from_secs(1);
    loop {
        let node = nodes.get_opt(name).await?;
        let conditions = node.as_ref().and_then(|node| node.status.as_ref()?.conditions.as_ref());
        let is_ready = conditions.into_iter().flatten().any(|one| {
            let reported = one.last_heartbeat_time.as_ref().is_some_and(|time| time.0 >= started);
            one.type_ == "Ready" && one.status == "True" && (reported || name == "node1")
        });
        if is_ready {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the node {name} is not ready after {READY:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits for a namespace's service account, without which no pod can be made.
async fn account(client: &Client, namespace: &str, deadline: Instant) -> Result<()> {
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), namespace);
    while accounts.get_opt("default").await?.is_none() {
        ensure!(Instant::now() < deadline, "the namespace {namespace} has no service account");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
