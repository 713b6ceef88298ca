//! The first process of the node's namespaces: it makes the node's file system and network, starts the programs, and
//! reaps what they leave. Its end is everyone's end: the kernel kills the rest of a PID namespace with its first process.
//!
//! The node sees the host's files, but /etc, /opt, /run, /var/lib and /var/log are its own, and so are those
//! settings of the kernel that kubelet changes. Not here: the world outside the namespaces, see `supervisor`; arguments and
//! files of the programs, see [`settings`].

mod settings;

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

use crate::place::Place;
use crate::programs::Programs;
use settings::display;

pub use settings::LOW_MEMLOCK;

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

/// A shell and small tools for the tests' own pods.
pub const BUSYBOX: &str = "localhost/busybox:1";

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
    fs::write(place.path("Corefile"), settings::corefile(place))?;
    fs::write(place.path("kubelet.json"), settings::kubelet(place).to_string())?;
    fs::write(place.path("containerd.toml"), settings::containerd(place))?;
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
    ensure!(line.trim() == LINK, "the node is not needed any more");
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
    fs::write("/etc/cni/net.d/10-pods.conflist", settings::pod_network(place).to_string())?;
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
            ensure!(!over.load(Ordering::Relaxed), "the node is not needed any more");
            ensure!(Instant::now() < deadline, "{what} did not come in time");
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

fn start(running: &mut Running<'_>, programs: &Programs, over: &AtomicBool) -> Result<()> {
    let place = running.place;
    if !place.is_second() {
        running.start("etcd", programs.etcd.join("etcd"), &settings::etcd(place))?;
        fs::write(place.path("audit.yaml"), settings::AUDIT)?;
        running.start(
            "kube-apiserver",
            programs.kubernetes.join("kube-apiserver"),
            &settings::apiserver(place),
        )?;
    }
    let memlock = place.path("low-memlock.json");
    fs::write(&memlock, settings::low_memlock()?)?;
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
    running.start("kubelet", program("kubelet"), &settings::kubelet_arguments(place))?;
    if !place.is_second() {
        let manager = program("kube-controller-manager");
        running.start("kube-controller-manager", manager, &settings::controller_manager(place))?;
        running.start("kube-scheduler", program("kube-scheduler"), &settings::scheduler(place))?;
    }
    running.start("kube-proxy", program("kube-proxy"), &settings::proxy(place))
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
