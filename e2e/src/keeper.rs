//! The process that keeps one cluster: it makes the state folder, the namespaces and the link, waits until nobody needs
//! the cluster any more, and leaves nothing behind.
//!
//! It outlives the test that started it by as long as that takes: when the test's process ends, in whatever way, the
//! keeper's standard input ends and it cleans up. It talks in lines on standard output: `started N`, or `failed` and
//! why. What it cannot do when it is killed itself, the next cluster in the same place does first.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::node;
use crate::pki;
use crate::place::Place;
use crate::programs::Programs;

/// How long the node's programs may take until all of them run.
const START: Duration = Duration::from_secs(60);
/// How long the node may take to end; its first process only exits, the kernel kills the others.
const END: Duration = Duration::from_secs(20);

enum Event {
    /// A line from the node's first process.
    Line(String),
    /// That process has ended.
    Ended,
    /// Nobody needs the cluster any more.
    Stop,
}

/// Keeps a cluster until standard input ends, or with `kept` until a signal comes.
///
/// # Errors
/// When the cluster cannot be started; nothing is left then either.
pub fn keep(kept: bool) -> Result<()> {
    // Not in the terminal's session: Ctrl-C is for the test, whose end is what we wait for.
    rustix::process::setsid().context("cannot start a session")?;
    let taken = Place::take()?;
    let place = &taken.place;
    clean(place).context("cannot remove what an earlier cluster left")?;
    let kept_until = run(place, kept);
    save_logs(place)?;
    let failure = kept_until.as_ref().err().map(|error| format!("{error:#}\n{}", tails(place)));
    let cleaned = clean(place).context("cannot remove the cluster");
    if let Some(failure) = failure {
        bail!(failure);
    }
    cleaned
}

fn run(place: &Place, kept: bool) -> Result<()> {
    prepare(place)?;
    let (sender, events) = mpsc::channel();
    let mut unshare = spawn(place, &sender)?;
    let lived = live(place, kept, &mut unshare, sender, &events);
    // The end of its standard input is the order to exit.
    drop(unshare.stdin.take());
    let ended = wait(&mut unshare, END);
    if ended.is_err() {
        // unshare's own death kills the first process, and with it everything in its namespace.
        unshare.kill()?;
        unshare.wait()?;
    }
    lived?;
    ended
}

fn live(
    place: &Place,
    kept: bool,
    unshare: &mut Child,
    sender: Sender<Event>,
    events: &Receiver<Event>,
) -> Result<()> {
    let deadline = Instant::now() + START;
    expect(events, node::NAMESPACES, deadline)?;
    link(place, &child_of(unshare.id())?)?;
    let stdin = unshare.stdin.as_mut().context("the node has a pipe")?;
    writeln!(stdin, "{}", node::LINK)?;
    expect(events, node::STARTED, deadline)?;

    watch(kept, sender)?;
    if kept {
        fs::write(place.path("kept.pid"), std::process::id().to_string())?;
    }
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "started {}", place.number())?;
    stdout.flush()?;

    match events.recv().context("all senders are gone")? {
        Event::Stop => Ok(()),
        Event::Line(line) => bail!("the node: {line}"),
        Event::Ended => bail!("the node's first process ended"),
    }
}

fn expect(events: &Receiver<Event>, line: &str, deadline: Instant) -> Result<()> {
    match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Event::Line(said)) if said == line => Ok(()),
        Ok(Event::Line(said)) => bail!("{said}"),
        Ok(Event::Ended) => bail!("the node's first process ended before it said {line:?}"),
        Ok(Event::Stop) => bail!("stopped while starting"),
        Err(RecvTimeoutError::Timeout) => bail!("the node did not say {line:?} in {START:?}"),
        Err(RecvTimeoutError::Disconnected) => bail!("all senders are gone"),
    }
}

/// What ends the cluster: a signal, or the end of our standard input unless it is kept for a person.
fn watch(kept: bool, sender: Sender<Event>) -> Result<()> {
    if !kept {
        let sender = sender.clone();
        thread::spawn(move || {
            let mut nothing = Vec::new();
            let _ = io::stdin().read_to_end(&mut nothing);
            let _ = sender.send(Event::Stop);
        });
    }
    serve::signals::watch(move |_| {
        let _ = sender.send(Event::Stop);
    })?;
    Ok(())
}

/// The node's first process in namespaces of its own. Killing `unshare` kills it, and all others with it.
fn spawn(place: &Place, sender: &Sender<Event>) -> Result<Child> {
    let log = fs::File::create(place.logs().join("node.log"))?;
    let mut unshare = Command::new("unshare")
        .args(["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe()?)
        .args(["node", &place.number().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("cannot run unshare; `make deps` installs it")?;
    let stdout = unshare.stdout.take().context("a pipe")?;
    let sender = sender.clone();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(io::Result::ok) {
            if sender.send(Event::Line(line)).is_err() {
                return;
            }
        }
        let _ = sender.send(Event::Ended);
    });
    Ok(unshare)
}

fn child_of(parent: u32) -> Result<String> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    Ok(children.split_whitespace().next().context("unshare has a child")?.to_owned())
}

/// The pair that joins host and node, and the host's routes to pods and Services. All of it dies with the node's
/// network namespace.
fn link(place: &Place, node: &str) -> Result<()> {
    let host = place.host_link();
    ip(&["link", "add", &host, "type", "veth", "peer", "name", "eth0", "netns", node])?;
    ip(&["address", "add", &format!("{}/24", place.host_address()), "dev", &host])?;
    ip(&["link", "set", &host, "up"])?;
    let node = place.node_address().to_string();
    ip(&["route", "add", &place.pods(), "via", &node, "dev", &host])?;
    ip(&["route", "add", &place.services(), "via", &node, "dev", &host])
}

fn ip(arguments: &[&str]) -> Result<()> {
    let run = Command::new("ip").args(arguments).output().context("cannot run ip")?;
    let why = String::from_utf8_lossy(&run.stderr);
    ensure!(run.status.success(), "ip {}: {}", arguments.join(" "), why.trim());
    Ok(())
}

/// Everything in the state folder that is there before the node is.
fn prepare(place: &Place) -> Result<()> {
    let programs = Programs::find()?;
    fs::create_dir_all(place.logs())?;
    let server = format!("https://{}:6443", place.node_address());
    let own = ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
    let mut hosts: Vec<String> = own.map(str::to_owned).to_vec();
    hosts.extend(["127.0.0.1".to_owned(), place.node_address().to_string(), place.api_service().to_string()]);
    let node = ["node1".to_owned(), place.node_address().to_string()];
    pki::Files::create(&place.path("pki"), &server, &hosts, &node)?;
    for hierarchy in hierarchies()? {
        let group = Path::new(&hierarchy).join(place.cgroup());
        fs::create_dir(&group).with_context(|| format!("cannot create {}", group.display()))?;
        inherit_cpuset(&hierarchy, &group)?;
    }
    node::prepare(place, &programs)
}

/// A new group of the cpuset hierarchy has no processors and no memory, and takes no process until it has.
fn inherit_cpuset(hierarchy: &str, group: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(value) = fs::read_to_string(Path::new(hierarchy).join(file)) {
            fs::write(group.join(file), value)?;
        }
    }
    Ok(())
}

/// Mount points of the cgroup hierarchies of version 1.
pub(crate) fn hierarchies() -> Result<Vec<String>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    Ok(fields.filter(|fields| fields[2] == "cgroup").map(|fields| fields[1].to_owned()).collect())
}

/// Removes everything that a cluster in this place has, or an earlier one left: its link, loop devices on its files,
/// its cgroups, its folder.
fn clean(place: &Place) -> Result<()> {
    remove_link(&place.host_link())?;
    for device in loop_devices(place.folder())? {
        let detached = Command::new("losetup").args(["-d", &device]).status()?;
        ensure!(detached.success(), "losetup -d {device}: {detached}");
    }
    for hierarchy in hierarchies()? {
        remove_cgroup(&Path::new(&hierarchy).join(place.cgroup()))?;
    }
    // No mount of the node's is visible here: its mount namespace is gone, and never was the host's.
    match fs::remove_dir_all(place.folder()) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", place.folder().display()))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The kernel removes a link some time after the namespace of its other end, maybe while we do.
fn remove_link(link: &str) -> Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while Path::new("/sys/class/net").join(link).exists() {
        let deleted = ip(&["link", "delete", link]);
        ensure!(deleted.is_ok() || Instant::now() < deadline, "cannot remove the link {link}: {deleted:?}");
    }
    Ok(())
}

/// Loop devices whose file is in `folder`, and before them those over one of these: so the kubelet holds a pod's device,
/// and when the node is gone the kernel has no other name for what is below than its numbers.
fn loop_devices(folder: &Path) -> Result<Vec<String>> {
    let list = ["--list", "--noheadings", "--output", "NAME,BACK-MAJ:MIN,BACK-INO,BACK-FILE"];
    let run = Command::new("losetup").args(list).output().context("cannot run losetup")?;
    ensure!(run.status.success(), "losetup: {}", String::from_utf8_lossy(&run.stderr).trim());
    let list = String::from_utf8_lossy(&run.stdout).into_owned();
    let mut all = Vec::new();
    for line in list.lines() {
        let mut words = line.split_whitespace();
        // One of them may just be going away, and have no file any more.
        let (Some(device), Some(file_system), Some(inode)) = (words.next(), words.next(), words.next())
        else {
            continue;
        };
        all.push((device, (file_system, inode), words.collect::<Vec<_>>().join(" ")));
    }
    let below = all.iter().filter(|(.., file)| Path::new(file).starts_with(folder));
    let mut devices = Vec::new();
    for (device, ..) in below {
        let node = fs::metadata(device)?;
        let (major, minor) = (rustix::fs::major(node.dev()), rustix::fs::minor(node.dev()));
        let [file_system, inode] = [format!("{major}:{minor}"), node.ino().to_string()];
        let above = all.iter().filter(|(_, file, _)| *file == (&*file_system, &*inode));
        devices.extend(above.map(|(device, ..)| (*device).to_owned()));
        devices.push((*device).to_owned());
    }
    Ok(devices)
}

/// A group can be removed when its processes are gone, and a moment later.
fn remove_cgroup(group: &Path) -> Result<()> {
    if !group.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match fs::remove_dir(group) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
            Err(error) => return Err(error).with_context(|| format!("cannot remove {}", group.display())),
        }
    }
}

fn wait(child: &mut Child, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    while child.try_wait()?.is_none() {
        ensure!(Instant::now() < deadline, "the node did not end in {patience:?}");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The last lines of each log, for whoever wonders why there is no cluster.
fn tails(place: &Place) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(place.logs()).into_iter().flatten().flatten() {
        let log = fs::read(entry.path()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(8)..];
        text.push_str(&format!("--- {}\n{}\n", entry.file_name().to_string_lossy(), tail.join("\n")));
    }
    text
}

/// Copies the logs to `FERROVIRT_CLUSTER_LOGS`, if that is set.
fn save_logs(place: &Place) -> Result<()> {
    let Some(folder) = std::env::var_os("FERROVIRT_CLUSTER_LOGS") else { return Ok(()) };
    let folder = Path::new(&folder).join(format!("{}-{}", place.number(), std::process::id()));
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir(place.logs())? {
        let entry = entry?;
        fs::copy(entry.path(), folder.join(entry.file_name()))?;
    }
    Ok(())
}
