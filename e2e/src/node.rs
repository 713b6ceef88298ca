//! The first process of the node's namespaces: it makes the node's file system and network, starts the programs, and
//! reaps what they leave. Its end is everyone's end: the kernel kills the rest of a PID namespace with its first process.
//!
//! The node sees the host's files, but /etc, /opt, /run, /var/lib and /var/log are its own, and so are those
//! settings of the kernel that kubelet changes. Not here: the world outside the namespaces, see `supervisor`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use image::archive::{self, Tag};
use image::layer::{self, Member};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::{Pid, WaitOptions, wait};
use serde_json::json;

use crate::place::Place;
use crate::programs::{Programs, Release};

/// Where the driver of volumes has its pool, on the node.
pub const POOL: &str = "/var/lib/hpvolumes/csi";
/// A disk in the state folder that is there before the node starts is mounted there.
pub(crate) const POOL_DISK: &str = "pool.disk";

/// Sent when the namespaces stand and the node waits for its link.
pub(crate) const NAMESPACES: &str = "namespaces";
/// The answer: the link is there.
pub(crate) const LINK: &str = "link";
/// Sent when every program runs.
pub(crate) const STARTED: &str = "started";

/// End of the name of a file in the state folder: the program before it is started again when it is killed.
pub(crate) const RESTARTED: &str = ".restarted";

/// Sent at the end about a program, between its name and how.
pub(crate) const ENDED: &str = " ended: ";

/// Settings of the whole machine that kubelet writes. It gets files instead, with the values that it would write.
const MACHINE: &[(&str, &str)] = &[
    ("/proc/sys/vm/overcommit_memory", "1"),
    ("/proc/sys/vm/panic_on_oom", "0"),
    ("/proc/sys/kernel/panic", "10"),
    ("/proc/sys/kernel/panic_on_oops", "1"),
    ("/proc/sys/kernel/keys/root_maxkeys", "1000000"),
    ("/proc/sys/kernel/keys/root_maxbytes", "25000000"),
];

/// Folders of the host that the node has its own of, and what they are called in the state folder.
const OWN: &[(&str, &str)] = &[("/var/lib", "var-lib"), ("/var/log", "var-log"), ("/opt", "opt")];

/// The image of the pods' sandboxes: busybox, asleep.
pub const PAUSE: &str = "localhost/pause:1";
/// A shell and small tools for the tests' own pods.
pub const BUSYBOX: &str = "localhost/busybox:1";

/// The runtime class of containers that may lock 64 KiB of memory only, as with many a distribution's default.
pub const LOW_MEMLOCK: &str = "low-memlock";

/// The domain of Services.
const DOMAIN: &str = "cluster.local";

/// Where the kubelet looks for seccomp profiles, in the state folder.
pub(crate) const SECCOMP: &str = "var-lib/kubelet/seccomp";

/// Writes what the node's programs read, into the state folder.
pub(crate) fn prepare(place: &Place, programs: &Programs) -> Result<()> {
    for (shared, _) in OWN {
        ensure!(
            !place.folder().starts_with(shared),
            "{} is hidden from the node by its own {shared}: set FERROVIRT_CACHE to another folder",
            place.folder().display()
        );
    }
    for folder in
        ["etc-upper", "etc-work", "machine", "registries", "volumes", SECCOMP, "var-log", "opt/cni/bin"]
    {
        fs::create_dir_all(place.path(folder))?;
    }
    plugins(place, programs)?;
    for (index, (_, value)) in MACHINE.iter().enumerate() {
        fs::write(place.path(&format!("machine/{index}")), value)?;
    }
    fs::write(place.path("resolv.conf"), "")?;
    fs::write(place.path("Corefile"), corefile(place))?;
    fs::write(place.path("kubelet.json"), kubelet(place).to_string())?;
    fs::write(place.path("containerd.toml"), containerd(place))?;
    busybox(place).context("cannot build the image of the sandboxes")
}

/// The folder of network plugins: ours as a node's administrator installs them, and of the reference's what we do not have.
fn plugins(place: &Place, programs: &Programs) -> Result<()> {
    let folder = place.path("opt/cni/bin");
    let run = Command::new(&programs.cni).args(["install", "--all"]).arg(&folder).output()?;
    let why = String::from_utf8_lossy(&run.stderr);
    ensure!(run.status.success(), "{} install: {}", programs.cni.display(), why.trim());
    for entry in fs::read_dir(&programs.judges)? {
        let entry = entry?;
        match symlink(entry.path(), folder.join(entry.file_name())) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

/// Runs as the first process of its namespaces until standard input ends or a program dies.
///
/// # Errors
/// When a program cannot be started or ends.
pub fn run(place: &Place) -> Result<()> {
    ensure!(std::process::id() == 1, "this runs as the first process of a PID namespace; start `cluster up`");
    let programs = Programs::find()?;
    mounts(place)?;
    say(NAMESPACES)?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    ensure!(line.trim() == LINK, "nobody needs the node any more");
    network(place)?;

    let over = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&over);
    thread::spawn(move || {
        let mut nothing = Vec::new();
        let _ = io::stdin().read_to_end(&mut nothing);
        ended.store(true, Ordering::Relaxed);
    });
    let mut running = Running { place, programs: Vec::new() };
    start(&mut running, &programs, &over)?;
    say(STARTED)?;
    while !over.load(Ordering::Relaxed) {
        running.reap()?;
        thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Sends a line to the parent process.
pub(crate) fn say(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

/// A file system like the host's with some folders of the node's own.
fn mounts(place: &Place) -> Result<()> {
    // Shared among the node and its pods; unshare has cut it off from the host.
    mount_change("/", MountPropagationFlags::SHARED | MountPropagationFlags::REC)?;
    for (folder, own) in OWN {
        mount_bind(place.path(own), *folder).with_context(|| format!("cannot bind {folder}"))?;
    }
    let disk = place.path(POOL_DISK);
    if disk.exists() {
        fs::create_dir_all(POOL)?;
        let run = Command::new("mount").args(["-o", "loop"]).arg(&disk).arg(POOL).output()?;
        ensure!(run.status.success(), "cannot mount {POOL}: {}", String::from_utf8_lossy(&run.stderr).trim());
    }
    let [upper, work] = ["etc-upper", "etc-work"].map(|name| place.path(name));
    let options = format!("lowerdir=/etc,upperdir={},workdir={}", upper.display(), work.display());
    let options = std::ffi::CString::new(options)?;
    mount("overlay", "/etc", "overlay", MountFlags::empty(), options.as_c_str())
        .context("cannot mount /etc")?;
    mount("tmpfs", "/run", "tmpfs", MountFlags::NOSUID, c"mode=755").context("cannot mount /run")?;
    for (index, (setting, _)) in MACHINE.iter().enumerate() {
        mount_bind(place.path(&format!("machine/{index}")), *setting)
            .with_context(|| format!("cannot bind {setting}"))?;
    }
    rustix::system::sethostname(place.node_name().as_bytes())?;
    fs::create_dir_all("/etc/cni/net.d")?;
    fs::write("/etc/cni/net.d/10-pods.conflist", pod_network(place).to_string())?;
    Ok(())
}

fn network(place: &Place) -> Result<()> {
    let commands = format!(
        "link set lo up\n\
         address add {}/24 dev eth0\n\
         link set eth0 up\n\
         route add default via {}\n",
        place.node_address(),
        place.gateway()
    );
    let mut ip =
        Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().context("cannot run ip")?;
    ip.stdin.take().context("a pipe")?.write_all(commands.as_bytes())?;
    let status = ip.wait()?;
    ensure!(status.success(), "ip: {status}");
    fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
    Ok(())
}

/// The programs that must live.
struct Running<'a> {
    place: &'a Place,
    programs: Vec<Started>,
}

struct Started {
    name: &'static str,
    program: PathBuf,
    arguments: Vec<String>,
    pid: Pid,
}

impl Running<'_> {
    fn start(&mut self, name: &'static str, program: impl AsRef<Path>, arguments: &[String]) -> Result<()> {
        let (program, arguments) = (program.as_ref().to_owned(), arguments.to_owned());
        let pid = self.spawn(name, &program, &arguments)?;
        self.programs.push(Started { name, program, arguments, pid });
        Ok(())
    }

    fn spawn(&self, name: &str, program: &Path, arguments: &[String]) -> Result<Pid> {
        let log = self.place.logs().join(format!("{name}.log"));
        let log = fs::File::options().create(true).append(true).open(log)?;
        let child = Command::new(program)
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot run {}; `make deps` installs it", program.display()))?;
        // Its end is seen by `reap`, like everyone's.
        Pid::from_raw(i32::try_from(child.id())?).context("a process id")
    }

    /// Reaps processes: orphans silently; a program of the node as a failure, unless it is to be started again.
    fn reap(&mut self) -> Result<()> {
        while let Some((pid, status)) = wait(WaitOptions::NOHANG)? {
            let Some(index) = self.programs.iter().position(|one| one.pid == pid) else { continue };
            let Some(Started { name, program, arguments, .. }) = self.programs.get(index) else { continue };
            let killed = status.terminating_signal().is_some();
            if killed && self.place.path(&format!("{name}{RESTARTED}")).exists() {
                let again = self.spawn(name, program, arguments)?;
                if let Some(started) = self.programs.get_mut(index) {
                    started.pid = again;
                }
                continue;
            }
            let how = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => format!("exit code {code}"),
                (None, Some(signal)) => format!("signal {signal}"),
                (None, None) => format!("{status:?}"),
            };
            bail!("{name}{ENDED}{how}");
        }
        Ok(())
    }

    /// Asks until the answer is yes.
    fn until(
        &mut self,
        what: &str,
        over: &AtomicBool,
        mut answer: impl FnMut() -> Result<bool>,
    ) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(45);
        while !answer()? {
            self.reap()?;
            ensure!(!over.load(Ordering::Relaxed), "nobody needs the node any more");
            ensure!(Instant::now() < deadline, "{what} did not come in time");
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

fn start(running: &mut Running<'_>, programs: &Programs, over: &AtomicBool) -> Result<()> {
    let place = running.place;
    if !place.is_second() {
        running.start("etcd", programs.etcd.join("etcd"), &etcd(place))?;
        fs::write(place.path("audit.yaml"), AUDIT)?;
        running.start("kube-apiserver", programs.kubernetes.join("kube-apiserver"), &apiserver(place))?;
    }
    let memlock = place.path("low-memlock.json");
    fs::write(&memlock, low_memlock()?)?;
    running.start(
        "containerd",
        "containerd",
        &["--config".into(), display(&place.path("containerd.toml"))],
    )?;
    running
        .until("containerd", over, || Ok(place.containerd().exists() && ctr(place, &["version"]).is_ok()))?;
    ctr(place, &["images", "import", &display(&place.path("busybox.tar"))])?;
    // A program that finds no API server waits longer and longer before it asks again.
    running.until("the API server", over, || {
        let asked = Command::new(programs.kubectl())
            .args(["--kubeconfig", &display(&place.kubeconfig()), "get", "--raw", "/readyz"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("cannot run kubectl")?;
        Ok(asked.success())
    })?;
    let program = |name: &str| programs.kubernetes.join(name);
    running.start(
        "coredns",
        programs.dns.join("coredns"),
        &["-conf".into(), display(&place.path("Corefile"))],
    )?;
    running.start("kubelet", program("kubelet"), &kubelet_arguments(place))?;
    if !place.is_second() {
        let manager = program("kube-controller-manager");
        running.start("kube-controller-manager", manager, &controller_manager(place))?;
        running.start("kube-scheduler", program("kube-scheduler"), &scheduler(place))?;
    }
    running.start("kube-proxy", program("kube-proxy"), &proxy(place))
}

/// containerd's own client, on this cluster's containerd.
pub(crate) fn ctr(place: &Place, arguments: &[&str]) -> Result<()> {
    let run = Command::new("ctr")
        .args(["--address", &display(&place.containerd()), "--namespace", "k8s.io"])
        .args(arguments)
        .output()
        .context("cannot run ctr; `make deps` installs it")?;
    let why = String::from_utf8_lossy(&run.stderr);
    ensure!(run.status.success(), "ctr {}: {}", arguments.join(" "), why.trim());
    Ok(())
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

/// `--name=value` for each pair.
fn flags<const N: usize>(pairs: [(&str, String); N]) -> Vec<String> {
    pairs.into_iter().map(|(name, value)| format!("--{name}={value}")).collect()
}

fn etcd(place: &Place) -> Vec<String> {
    flags([
        ("data-dir", display(&place.path("etcd"))),
        ("listen-client-urls", "http://127.0.0.1:2379".into()),
        ("advertise-client-urls", "http://127.0.0.1:2379".into()),
        ("listen-peer-urls", "http://127.0.0.1:2380".into()),
        // The data dies with the cluster.
        ("unsafe-no-fsync", "true".into()),
    ])
}

/// Writes are logged, so that tests can count them, and everything that the platform's accounts do, so that it can be compared
/// with their rights.
const AUDIT: &str = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
    - {level: Metadata, userGroups: ['system:serviceaccounts:kubevirt-hyperconverged']}\n\
    - {level: Metadata, verbs: [create, update, patch, delete, deletecollection]}\n- {level: None}\n";

fn apiserver(place: &Place) -> Vec<String> {
    let pki = |name: &str| display(&place.pki().join(name));
    flags([
        ("etcd-servers", "http://127.0.0.1:2379".into()),
        ("secure-port", "6443".into()),
        ("advertise-address", place.node_address().to_string()),
        ("service-cluster-ip-range", place.services()),
        ("client-ca-file", pki("ca.crt")),
        ("tls-cert-file", pki("apiserver.crt")),
        ("tls-private-key-file", pki("apiserver.key")),
        ("service-account-issuer", "https://kubernetes.default.svc".into()),
        ("service-account-key-file", pki("accounts.pub")),
        ("service-account-signing-key-file", pki("accounts.key")),
        ("authorization-mode", "Node,RBAC".into()),
        ("enable-admission-plugins", "NodeRestriction".into()),
        ("kubelet-client-certificate", pki("admin.crt")),
        ("kubelet-client-key", pki("admin.key")),
        ("kubelet-certificate-authority", pki("ca.crt")),
        // The node's name is in no DNS; logs and exec go by address.
        ("kubelet-preferred-address-types", "InternalIP".into()),
        ("requestheader-client-ca-file", pki("front-proxy-ca.crt")),
        ("requestheader-allowed-names", "front-proxy-client".into()),
        ("requestheader-extra-headers-prefix", "X-Remote-Extra-".into()),
        ("requestheader-group-headers", "X-Remote-Group".into()),
        ("requestheader-username-headers", "X-Remote-User".into()),
        ("proxy-client-cert-file", pki("front-proxy.crt")),
        ("proxy-client-key-file", pki("front-proxy.key")),
        // Webhooks and aggregated APIs are reached by endpoint, with no DNS.
        ("enable-aggregator-routing", "true".into()),
        ("allow-privileged", "true".into()),
        ("audit-policy-file", display(&place.path("audit.yaml"))),
        ("audit-log-path", display(&place.path("audit.log"))),
    ])
}

fn controller_manager(place: &Place) -> Vec<String> {
    let config = display(&place.config("controller-manager"));
    let pki = |name: &str| display(&place.pki().join(name));
    flags([
        ("kubeconfig", config.clone()),
        ("authentication-kubeconfig", config.clone()),
        ("authorization-kubeconfig", config),
        ("service-account-private-key-file", pki("accounts.key")),
        ("root-ca-file", pki("ca.crt")),
        ("cluster-signing-cert-file", pki("ca.crt")),
        ("cluster-signing-key-file", pki("ca.key")),
        ("use-service-account-credentials", "true".into()),
        ("leader-elect", "false".into()),
        // Tests wait for volumes to be bound.
        ("pvclaimbinder-sync-period", "3s".into()),
        // OpenShift's. Each controller sends 20 requests per second by default, and binding a claim takes five of them:
        // tests of many claims would measure this limit.
        ("kube-api-qps", "150".into()),
        ("kube-api-burst", "300".into()),
    ])
}

fn scheduler(place: &Place) -> Vec<String> {
    let config = display(&place.config("scheduler"));
    flags([
        ("kubeconfig", config.clone()),
        ("authentication-kubeconfig", config.clone()),
        ("authorization-kubeconfig", config),
        ("leader-elect", "false".into()),
    ])
}

fn proxy(place: &Place) -> Vec<String> {
    flags([
        ("kubeconfig", display(&place.config("proxy"))),
        ("proxy-mode", "nftables".into()),
        ("hostname-override", place.node_name()),
        ("cluster-cidr", place.pods()),
        // The table of connections has one size for the whole machine.
        ("conntrack-max-per-core", "0".into()),
        // Kubernetes has the mode without it from 1.31 on.
        ("feature-gates", "NFTablesProxyMode=true".into()),
    ])
}

/// Names of Services and pods; there are no others, and no resolver outside is asked.
fn corefile(place: &Place) -> String {
    format!(
        ".:53 {{\n    bind {}\n    errors\n    kubernetes {DOMAIN} in-addr.arpa {{\n        kubeconfig {}\n    }}\n    \
         template ANY ANY {{\n        rcode NXDOMAIN\n    }}\n}}\n",
        place.node_address(),
        place.kubeconfig().display()
    )
}

fn kubelet_arguments(place: &Place) -> Vec<String> {
    flags([
        ("config", display(&place.path("kubelet.json"))),
        ("kubeconfig", display(&place.config(&format!("kubelet-{}", place.node_name())))),
        ("hostname-override", place.node_name()),
        ("node-ip", place.node_address().to_string()),
    ])
}

fn kubelet(place: &Place) -> serde_json::Value {
    let pki = |name: &str| display(&place.pki().join(name));
    let mut config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": pki("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", place.cgroup()),
        "failSwapOn": false,
        "containerRuntimeEndpoint": format!("unix://{}", place.containerd().display()),
        "tlsCertFile": pki(&format!("kubelet-{}.crt", place.node_name())),
        "tlsPrivateKeyFile": pki(&format!("kubelet-{}.key", place.node_name())),
        "resolvConf": display(&place.path("resolv.conf")),
        "clusterDNS": [place.node_address()],
        "clusterDomain": DOMAIN,
        // The machine's disk may be full of other files; no image and pod is removed because of that.
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "serializeImagePulls": false,
        // Tests of many transfers have a pod for each.
        "maxPods": 240,
        // Metrics of volumes are as old as this; a minute otherwise.
        "volumeStatsAggPeriod": "5s",
        // A pod's volume grows when the kubelet looks at the pod again; a minute otherwise.
        "syncFrequency": "5s",
    });
    if Release::of_this_run() == Release::Newest {
        config["failCgroupV1"] = false.into();
        // Tests of restarts wait for one.
        config["featureGates"] = json!({"KubeletCrashLoopBackOffMax": true});
        config["crashLoopBackOff"] = json!({"maxContainerRestartPeriod": "2s"});
    }
    config
}

fn containerd(place: &Place) -> String {
    let socket = display(&place.containerd());
    let memlock = display(&place.path("low-memlock.json"));
    let registries = display(&place.path("registries"));
    // restrict_oom_score_adj: lowering a score needs CAP_SYS_RESOURCE; without it a pod would not start.
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{socket}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  device_ownership_from_security_context = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{registries}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{LOW_MEMLOCK}]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "{memlock}"
"#
    )
}

/// The runtime's own default container, with less memory to lock.
fn low_memlock() -> Result<String> {
    let run = Command::new("ctr").args(["oci", "spec"]).output().context("cannot run ctr")?;
    ensure!(run.status.success(), "ctr oci spec: {}", String::from_utf8_lossy(&run.stderr).trim());
    let mut spec: serde_json::Value = serde_json::from_slice(&run.stdout)?;
    let limits = spec["process"]["rlimits"].as_array_mut().context("the default container has limits")?;
    limits.push(json!({"type": "RLIMIT_MEMLOCK", "hard": 65536, "soft": 65536}));
    Ok(spec.to_string())
}

fn pod_network(place: &Place) -> serde_json::Value {
    json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "bridge",
            "bridge": "cni0",
            "isDefaultGateway": true,
            "ipMasq": true,
            "hairpinMode": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": place.pods()}]]},
        }, {
            // Ports of the node that lead to a pod; the reference's.
            "type": "portmap",
            "capabilities": {"portMappings": true},
        }],
    })
}

/// The tests' own image, under two names: the sandboxes' and the tools'.
fn busybox(place: &Place) -> Result<()> {
    let layer = layer::pack(&shell()?, &place.path("busybox.layer"))?;
    let tag = |repository: &str, entrypoint: &[&str]| Tag {
        repository: repository.into(),
        name: "1".into(),
        entrypoint: entrypoint.iter().map(|&word| word.to_owned()).collect(),
        user: None,
    };
    let tags = [
        tag("localhost/pause", &["/bin/busybox", "sleep", "2147483647"]),
        tag("localhost/busybox", &["/bin/sh"]),
    ];
    archive::write(&place.path("busybox.tar"), &[layer], &tags)?;
    Ok(())
}

/// Files of an image with a shell and small tools: busybox.
///
/// # Errors
/// When it is not installed.
pub fn shell() -> Result<BTreeMap<String, Member>> {
    let program = Path::new("/bin/busybox");
    let listed =
        Command::new(program).arg("--list").output().context("cannot run busybox; run `make deps`")?;
    let mut members: BTreeMap<_, _> = ["dev", "etc", "proc", "run", "sys", "var"]
        .map(|folder| (folder.to_owned(), Member::Folder { mode: 0o755 }))
        .into();
    members.insert("tmp".into(), Member::Folder { mode: 0o1777 });
    members.insert("bin/busybox".into(), Member::File { from: program.to_owned(), mode: 0o755 });
    for applet in String::from_utf8_lossy(&listed.stdout).lines().filter(|applet| *applet != "busybox") {
        members.insert(format!("bin/{applet}"), Member::Link { to: "busybox".into() });
    }
    members.insert("etc/passwd".into(), Member::Text { content: PASSWD.into(), mode: 0o644 });
    Ok(members)
}

const PASSWD: &str = "root:x:0:0:root:/:/bin/sh\nqemu:x:107:107:qemu:/:/bin/sh\n";
