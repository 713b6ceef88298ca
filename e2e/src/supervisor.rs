//! The process that supervises one cluster: it makes the state folder, the namespaces and the link, waits until the cluster
//! is no longer needed, and leaves nothing behind.
//!
//! It outlives the process that started it by as long as that takes: when that ends, in whatever way, the supervisor's
//! standard input ends and it cleans up, unless it was asked to keep the cluster before. It communicates in lines on
//! standard output. If it is killed itself, the next cluster in the same place cleans up first.

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::node;
use crate::pki;
use crate::place::Place;
use crate::programs::Programs;

/// How long the node's programs may take until all of them run.
const START: Duration = Duration::from_secs(60);
/// How long the node may take to end; its first process only exits, the kernel kills the others.
const END: Duration = Duration::from_secs(20);

/// Sent when the node's programs run, before the number of the place.
pub(crate) const STARTED: &str = "started ";
/// Sent to the supervisor: the cluster stays until a signal comes.
pub(crate) const KEEP: &str = "keep";
/// The answer: from now on it does.
pub(crate) const KEPT: &str = "kept";
/// Sent at the end before the error, also by the node's first process.
pub const FAILED: &str = "failed: ";

enum Event {
    /// A line from the node's first process.
    Line(String),
    /// That process has ended.
    Ended,
    /// The end of standard input has no effect any more.
    Keep,
    /// The cluster is no longer needed.
    Stop,
}

/// Keeps a cluster until standard input ends, or a signal comes.
///
/// # Errors
/// When the cluster cannot be started, or ends by itself; nothing is left then either.
pub fn keep() -> Result<()> {
    leave_session()?;
    let taken = Place::acquire()?;
    let place = &taken.place;
    clean(place).context("cannot remove what an earlier cluster left")?;
    let failure = run(place, &link).err().map(|error| with_logs(place, &format!("{error:#}")));
    let saved = save_logs(place).context("cannot save the logs");
    let saved = saved.and(crate::grants::save(place).context("cannot save which rights were used"));
    let reported = match &failure {
        // The reader is gone.
        Some(failure) if place.kept().is_some() => fs::write(place.report(), failure),
        Some(_) | None => Ok(()),
    };
    clean(place).context("cannot remove the cluster")?;
    if let Some(failure) = failure {
        bail!(failure);
    }
    reported.with_context(|| format!("cannot write {}", place.report().display()))?;
    saved
}

/// Leaves the terminal's session: Ctrl-C is for the test, and its end ends the cluster. A process that leads a session or a group
/// has one of its own already, as one that `setsid` has started.
fn leave_session() -> Result<()> {
    match rustix::process::setsid() {
        Ok(_) | Err(rustix::io::Errno::PERM) => Ok(()),
        Err(error) => Err(error).context("cannot start a session"),
    }
}

/// Supervises the second node of the cluster of the first process `first`, until standard input ends. Its state folder
/// stays, as a machine's disk does: a node that is started again is one that was switched off and on.
///
/// # Errors
/// When the node cannot be started, or ends by itself.
pub fn keep_second(number: u8, first: &str) -> Result<()> {
    leave_session()?;
    let place = &Place::of(number)?.second();
    remove_groups(place)?;
    let kept = run(place, &|place, node| link_second(place, first, node));
    let failure = kept.err().map(|error| with_logs(place, &format!("{error:#}")));
    remove_groups(place)?;
    failure.map_or(Ok(()), |failure| bail!(failure))
}

fn run(place: &Place, link: &dyn Fn(&Place, &str) -> Result<()>) -> Result<()> {
    let (sender, events) = mpsc::channel();
    watch(&sender)?;
    prepare(place)?;
    let mut unshare = spawn(place, sender)?;
    let lived = live(place, &mut unshare, &events, link);
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
    unshare: &mut Child,
    events: &Receiver<Event>,
    link: &dyn Fn(&Place, &str) -> Result<()>,
) -> Result<()> {
    let deadline = Instant::now() + START;
    expect(events, node::NAMESPACES, deadline)?;
    link(place, &child_of(unshare.id())?)?;
    let stdin = unshare.stdin.as_mut().context("the node has a pipe")?;
    writeln!(stdin, "{}", node::LINK)?;
    expect(events, node::STARTED, deadline)?;
    node::say(&format!("{STARTED}{}", place.number()))?;
    loop {
        match events.recv().context("all senders are gone")? {
            Event::Stop => return Ok(()),
            Event::Line(line) => return Err(unexpected(&line)),
            Event::Ended => bail!("the node's first process ended"),
            Event::Keep => {
                place.set_kept()?;
                // The requester may be gone since, and then no process knows of the cluster.
                if node::say(KEPT).is_err() {
                    return Ok(());
                }
            }
        }
    }
}

/// The error for an unexpected line of the node's first process.
fn unexpected(line: &str) -> anyhow::Error {
    anyhow!("{}", line.strip_prefix(FAILED).unwrap_or(line))
}

fn expect(events: &Receiver<Event>, line: &str, deadline: Instant) -> Result<()> {
    match events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(Event::Line(said)) if said == line => Ok(()),
        Ok(Event::Line(said)) => Err(unexpected(&said)),
        Ok(Event::Ended) => bail!("the node's first process ended before it said {line:?}"),
        Ok(Event::Stop | Event::Keep) => bail!("stopped while starting"),
        Err(RecvTimeoutError::Timeout) => bail!("the node did not say {line:?} in {START:?}"),
        Err(RecvTimeoutError::Disconnected) => bail!("all senders are gone"),
    }
}

/// Ends the cluster: on a signal, or at the end of our standard input before it is to be kept.
fn watch(sender: &Sender<Event>) -> Result<()> {
    let heard = sender.clone();
    thread::spawn(move || {
        let kept = io::stdin().lock().lines().map_while(io::Result::ok).any(|line| line == KEEP);
        let _ = heard.send(if kept { Event::Keep } else { Event::Stop });
    });
    let sender = sender.clone();
    serve::signals::watch(move |_| {
        let _ = sender.send(Event::Stop);
    })?;
    Ok(())
}

/// The node's first process in namespaces of its own. Killing `unshare` kills it, and all others with it.
fn spawn(place: &Place, sender: Sender<Event>) -> Result<Child> {
    let log = fs::File::create(place.logs().join("node.log"))?;
    let mut unshare = Command::new("unshare")
        .args(["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .arg(std::env::current_exe()?)
        .args(["node", &place.number().to_string()])
        .args(place.is_second().then_some("--second"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .context("cannot run unshare; `make deps` installs it")?;
    let stdout = unshare.stdout.take().context("a pipe")?;
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

/// The node's first process, as the process `supervisor` started it.
///
/// # Errors
/// When it is gone.
pub(crate) fn node_of(supervisor: u32) -> Result<String> {
    child_of(child_of(supervisor)?.parse()?)
}

fn child_of(parent: u32) -> Result<String> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"))?;
    Ok(children.split_whitespace().next().with_context(|| format!("{parent} has no child"))?.to_owned())
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

/// The pair that joins the first node and the second, and the routes to the second's pods. All of it dies with the
/// second node's network namespace; the host's routes with the first's link.
fn link_second(place: &Place, first: &str, second: &str) -> Result<()> {
    let node = place.node_address().to_string();
    let on_first = |arguments: &[&str]| {
        let mut command = Command::new("nsenter");
        command.args(["--target", first, "--net", "--", "ip"]).args(arguments);
        succeed(&mut command)
    };
    on_first(&["link", "add", "node2", "type", "veth", "peer", "name", "eth0", "netns", second])?;
    on_first(&["address", "add", &format!("{}/24", place.gateway()), "dev", "node2"])?;
    on_first(&["link", "set", "node2", "up"])?;
    on_first(&["route", "add", &place.pods(), "via", &node, "dev", "node2"])?;
    let (host, first) = (place.host_link(), Place::of(place.number())?.node_address().to_string());
    for network in [place.nodes(), place.pods()] {
        ip(&["route", "replace", &network, "via", &first, "dev", &host])?;
    }
    Ok(())
}

fn succeed(command: &mut Command) -> Result<()> {
    let run = command.output().with_context(|| format!("cannot run {command:?}; `make deps` installs it"))?;
    let why = String::from_utf8_lossy(&run.stderr);
    ensure!(run.status.success(), "{command:?}: {}", why.trim());
    Ok(())
}

fn ip(arguments: &[&str]) -> Result<()> {
    let run =
        Command::new("ip").args(arguments).output().context("cannot run ip; `make deps` installs it")?;
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
    let nodes = [place, &place.second()].map(|node| (node.node_name(), node.node_address()));
    if !place.is_second() {
        pki::Files::create(&place.pki(), &server, &hosts, &nodes)?;
    }
    for hierarchy in hierarchies()? {
        hand_down(&hierarchy)?;
        let group = Path::new(&hierarchy).join(place.cgroup());
        fs::create_dir_all(&group).with_context(|| format!("cannot create {}", group.display()))?;
        inherit_cpuset(&hierarchy, &group)?;
    }
    node::prepare(place, &programs)
}

/// Where there is only version 2 (cgroups(7)), a group has the controllers that the one above it hands down; the kubelet
/// wants these, and they stay switched on, as container engines leave them.
fn hand_down(hierarchy: &str) -> Result<()> {
    let file = Path::new(hierarchy).join("cgroup.subtree_control");
    if hierarchy != "/sys/fs/cgroup" || !file.exists() {
        return Ok(());
    }
    let here = fs::read_to_string(Path::new(hierarchy).join("cgroup.controllers"))?;
    let wanted = ["cpu", "cpuset", "hugetlb", "memory", "pids"];
    for controller in here.split_whitespace().filter(|controller| wanted.contains(controller)) {
        fs::write(&file, format!("+{controller}"))
            .with_context(|| format!("cannot switch {controller} on in {}", file.display()))?;
    }
    Ok(())
}

/// A new group of the cpuset hierarchy of version 1 has no processors and no memory, and takes no process until it has.
fn inherit_cpuset(hierarchy: &str, group: &Path) -> Result<()> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(value) = fs::read_to_string(Path::new(hierarchy).join(file)) {
            fs::write(group.join(file), value)?;
        }
    }
    Ok(())
}

/// Mount points of the cgroup hierarchies of both versions: a machine may have those of the first and also the one of the
/// second, where containers get groups too.
pub(crate) fn hierarchies() -> Result<Vec<String>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    Ok(fields
        .filter(|fields| ["cgroup", "cgroup2"].contains(&fields[2]))
        .map(|fields| fields[1].to_owned())
        .collect())
}

/// Removes everything that a cluster in this place has, or an earlier one left: its link, loop devices on its files,
/// its cgroups, its folder.
pub(crate) fn clean(place: &Place) -> Result<()> {
    remove_link(&place.host_link())?;
    for device in loop_devices(place.folder())? {
        let detached = Command::new("losetup").args(["-d", &device]).status()?;
        // A mount's own device goes with the mount, maybe when the one above it has gone.
        let file = device.replace("/dev/", "/sys/block/") + "/loop/backing_file";
        ensure!(detached.success() || !Path::new(&file).exists(), "losetup -d {device}: {detached}");
    }
    remove_groups(place)?;
    remove_groups(&place.second())?;
    // No mount of the node's is visible here: its mount namespace is gone, and never was the host's.
    patiently(|| fs::remove_dir_all(place.folder()))
        .with_context(|| format!("cannot remove {}", place.folder().display()))
}

/// Resources of processes that are just ending can be removed a moment later; a missing one counts as removed.
fn patiently(mut remove: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match remove() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(50)),
            done => return done,
        }
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

/// Loop devices with a file in `folder`, and before each of them those above it: on a filesystem that it holds (so a driver
/// has block volumes in a pool), or on its node (so the kubelet holds a pod's device). When the node is gone the kernel has
/// no other name for the lower ones than their numbers.
fn loop_devices(folder: &Path) -> Result<Vec<String>> {
    let list = ["--list", "--noheadings", "--output", "NAME,BACK-MAJ:MIN,BACK-INO,BACK-FILE"];
    let run =
        Command::new("losetup").args(list).output().context("cannot run losetup; `make deps` installs it")?;
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
    let numbers = |of: u64| format!("{}:{}", rustix::fs::major(of), rustix::fs::minor(of));
    let below = all.iter().filter(|(.., file)| Path::new(file).starts_with(folder));
    let mut devices: Vec<&str> = below.map(|(device, ..)| *device).collect();
    let mut looked_above = 0;
    while let Some(device) = devices.get(looked_above) {
        let node = fs::metadata(device)?;
        let [held, on, inode] = [numbers(node.rdev()), numbers(node.dev()), node.ino().to_string()];
        let is_above = |file: &(&str, &str)| file.0 == held || *file == (on.as_str(), inode.as_str());
        for (above, file, _) in &all {
            if is_above(file) && !devices.contains(above) {
                devices.push(above);
            }
        }
        looked_above += 1;
    }
    Ok(devices.into_iter().rev().map(str::to_owned).collect())
}

fn remove_groups(place: &Place) -> Result<()> {
    for hierarchy in hierarchies()? {
        remove_cgroup(&Path::new(&hierarchy).join(place.cgroup()))?;
    }
    Ok(())
}

/// A group can be removed when those in it are.
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
    patiently(|| fs::remove_dir(group)).with_context(|| format!("cannot remove {}", group.display()))
}

fn wait(child: &mut Child, patience: Duration) -> Result<()> {
    let deadline = Instant::now() + patience;
    while child.try_wait()?.is_none() {
        ensure!(Instant::now() < deadline, "the node did not end in {patience:?}");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Why there is no cluster, with the last lines of the log of the program that has ended, or of each.
fn with_logs(place: &Place, why: &str) -> String {
    let mut text = why.to_owned();
    let ended = why.split_once(node::ENDED).map(|(program, _)| format!("{program}.log"));
    for entry in fs::read_dir(place.logs()).into_iter().flatten().flatten() {
        let log = entry.file_name().to_string_lossy().into_owned();
        if ended.as_ref().is_none_or(|ended| *ended == log) {
            let tail = tail(&entry.path(), if ended.is_some() { 30 } else { 8 }).unwrap_or_default();
            text.push_str(&format!("\n--- {log}\n{tail}"));
        }
    }
    text
}

/// The last lines of a file, of its last 64 KiB at most.
fn tail(path: &Path, lines: usize) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(64 << 10)))?;
    let mut end = Vec::new();
    file.take(64 << 10).read_to_end(&mut end)?;
    let end = String::from_utf8_lossy(&end);
    let all: Vec<_> = end.lines().collect();
    Ok(all[all.len().saturating_sub(lines)..].join("\n"))
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
