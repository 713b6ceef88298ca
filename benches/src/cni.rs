//! The CNI plugin and the Go reference plugin, call by call: how long a runtime waits for each.
//!
//! ```text
//!  node (a network namespace that this thread is in) ─► calls, ours and theirs in turn ─► minimum and median ─► bars
//! ```
//!
//! A measurement is a process from its start to its end with its answer read, as a runtime sees it. Needs root.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::{Value, json};

use crate::compare::{Bar, Comparison, Figures};

mod frames;

/// The rows' names, in the order of the table.
pub const ROWS: &[&str] = &[
    "cni: L2 ADD",
    "cni: ADD + macspoofchk",
    "cni: ADD, host-local, gateway",
    "cni: ADD + ipMasq nftables",
    "cni: DEL",
    "cni: DEL of nothing",
    "cni: GC of 500 stale",
    "cni: 900 attachments",
    "cni: macspoofchk at 900",
    "cni: frames at 400",
];

/// How often a call is made, and how many attachments there are.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    /// Calls of each side of a comparison.
    pub times: usize,
    /// Attachments of the full node.
    pub many: usize,
    /// Attachments that a GC finds left behind.
    pub stale: usize,
    /// Attachments of the bridge that forwards frames.
    pub forwarding: usize,
    /// How often each bridge forwards, in turn.
    pub rounds: usize,
    /// Datagrams of one round.
    pub datagrams: usize,
    /// Bytes of one round.
    pub bytes: usize,
}

impl Counts {
    /// Those of the rows' names.
    pub const FULL: Self = Self {
        times: 200,
        many: 900,
        stale: 500,
        forwarding: 400,
        rounds: 15,
        datagrams: 200_000,
        bytes: 256 << 20,
    };
}

/// A network namespace that goes when dropped.
struct Namespace {
    name: String,
}

impl Namespace {
    fn new(what: &str) -> Result<Self> {
        let name = format!("cni-bench-{}-{what}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        Ok(Self { name })
    }

    fn path(&self) -> String {
        format!("/run/netns/{}", self.name)
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        Command::new("ip").args(["netns", "del", &self.name]).stderr(Stdio::null()).status().ok();
    }
}

/// The subject of a call.
#[derive(Clone, Copy)]
struct Attachment<'a> {
    container: &'a str,
    interface: &'a str,
    pod: &'a Namespace,
}

/// The plugin called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Ours,
    Theirs,
}

/// Node, pod, and the plugins of both sides.
pub struct Bench {
    counts: Counts,
    pod: Namespace,
    work: tempfile::TempDir,
    peers: PathBuf,
    home: File,
    /// This thread is in it as long as the bench lives.
    _node: Namespace,
}

impl Bench {
    /// A bench of the program `plugin` and the reference plugins in the directory `peers`. This thread moves to another
    /// network namespace until the bench is dropped.
    ///
    /// # Errors
    /// There are no such programs, or no right to make namespaces.
    pub fn new(plugin: &Path, peers: &Path, counts: Counts) -> Result<Self> {
        ensure!(plugin.is_file(), "{} is not there: make cni builds it", plugin.display());
        ensure!(peers.join("bridge").is_file(), "{} has no plugins: make peers builds them", peers.display());
        let work = tempfile::tempdir()?;
        for name in ["bridge", "host-local"] {
            std::os::unix::fs::symlink(std::path::absolute(plugin)?, work.path().join(name))?;
        }
        let home = File::open("/proc/thread-self/ns/net")?;
        let (node, pod) = (Namespace::new("node")?, Namespace::new("pod")?);
        move_into_link_name_space(File::open(node.path())?.as_fd(), Some(LinkNameSpaceType::Network))?;
        run(Command::new("ip").args(["link", "set", "lo", "up"]))?;
        // A port that never goes: a bridge without ports loses its Ethernet address, and the reference then fails.
        run(Command::new("ip").args(["link", "add", "br0", "up", "type", "bridge"]))?;
        run(Command::new("ip").args(["link", "add", "keep0", "up", "type", "veth", "peer", "name", "keep1"]))?;
        run(Command::new("ip").args(["link", "set", "keep0", "up", "master", "br0"]))?;
        run(Command::new("ip").args(["link", "set", "keep1", "up"]))?;
        Ok(Self { counts, pod, work, peers: peers.to_owned(), home, _node: node })
    }

    /// Measures a row.
    ///
    /// # Errors
    /// A call fails, or leaves links, rules or files.
    pub fn row(&self, name: &str) -> Result<Vec<Comparison>> {
        let addresses = json!({
            "isGateway": true,
            "ipam": {"type": "host-local", "subnet": "10.89.0.0/16", "dataDir": self.work.path().join("leases")},
        });
        let mut masquerade = addresses.clone();
        masquerade["ipMasq"] = json!(true);
        masquerade["ipMasqBackend"] = json!("nftables");
        let compared = match name {
            "cni: L2 ADD" => vec![self.adds(name, &json!({}), 2.5)?],
            "cni: ADD + macspoofchk" => vec![self.adds(name, &json!({"macspoofchk": true}), 5.0)?],
            "cni: ADD, host-local, gateway" => vec![self.adds(name, &addresses, 3.0)?],
            "cni: ADD + ipMasq nftables" => vec![self.adds(name, &masquerade, 5.0)?],
            "cni: DEL" => self.deletes(name)?,
            "cni: DEL of nothing" => vec![self.deletes_of_nothing(name)?],
            "cni: GC of 500 stale" => vec![self.collection(name)?],
            "cni: 900 attachments" => self.full_node(name)?,
            "cni: macspoofchk at 900" => vec![self.checked_on_a_full_node(name)?],
            "cni: frames at 400" => frames::compare(self, name)?,
            other => bail!("{other} is no row"),
        };
        Ok(compared)
    }

    /// An ADD of each side in turn, and a DEL after each.
    fn adds(&self, row: &str, keys: &Value, factor: f64) -> Result<Comparison> {
        let config = config("net", keys);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        self.warm(&config)?;
        for turn in 0..self.counts.times {
            for side in in_turn(turn) {
                let took = self.call(side, "ADD", self.one("c1"), &config)?;
                self.call(side, "DEL", self.one("c1"), &config)?;
                match side {
                    Side::Ours => ours.push(took),
                    Side::Theirs => theirs.push(took),
                }
            }
        }
        let figures = (Figures::of(ours)?, Figures::of(theirs)?);
        Ok(Comparison::new(row, figures.0, "Go plugin v1.9.1", figures.1, Bar::Faster(factor)))
    }

    /// A DEL of each side in turn, and the kernel's part of it alone: one message that deletes a link like that. The bar is
    /// compared with that part. The rest of a DEL is the same for both sides, so the reference's is printed only.
    fn deletes(&self, row: &str) -> Result<Vec<Comparison>> {
        let config = config("net", &json!({}));
        let (mut ours, mut theirs, mut kernel) = (Vec::new(), Vec::new(), Vec::new());
        self.warm(&config)?;
        for turn in 0..self.counts.times {
            for side in in_turn(turn) {
                self.call(side, "ADD", self.one("c1"), &config)?;
                let took = self.call(side, "DEL", self.one("c1"), &config)?;
                match side {
                    Side::Ours => ours.push(took),
                    Side::Theirs => theirs.push(took),
                }
            }
            let answer = self.answer(Side::Ours, "ADD", self.one("c1"), &config)?.1;
            let answer: Value = serde_json::from_slice(&answer)?;
            let link = answer["interfaces"][1]["name"].as_str().context("the host's end")?;
            kernel.push(delete_link(link)?);
        }
        let ours = Figures::of(ours)?;
        Ok(vec![
            Comparison::new(row, ours, "one netlink call", Figures::of(kernel)?, Bar::Within(1.0)),
            Comparison::new(row, ours, "Go plugin v1.9.1", Figures::of(theirs)?, Bar::None),
        ])
    }

    fn deletes_of_nothing(&self, row: &str) -> Result<Comparison> {
        let config = config("net", &json!({}));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for turn in 0..self.counts.times {
            for side in in_turn(turn) {
                let took = self.call(side, "DEL", self.one("c1"), &config)?;
                match side {
                    Side::Ours => ours.push(took),
                    Side::Theirs => theirs.push(took),
                }
            }
        }
        let figures = (Figures::of(ours)?, Figures::of(theirs)?);
        Ok(Comparison::new(row, figures.0, "Go plugin v1.9.1", figures.1, Bar::Faster(2.0)))
    }

    fn collection(&self, row: &str) -> Result<Comparison> {
        let config = config("stale", &json!({"macspoofchk": true}));
        let _pods = self.fill(self.counts.stale, &config)?;
        let took = Figures::of(vec![self.collect(&config)?])?;
        let left = String::from_utf8(run(Command::new("ip").args(["-o", "link"]))?)?;
        ensure!(!left.contains("stale/"), "the GC left links behind: {left}");
        Ok(Comparison::new(row, took, "-", took, Bar::Below(1000.0)))
    }

    /// ADD and DEL on an empty node, then on one with 900 attachments.
    fn full_node(&self, row: &str) -> Result<Vec<Comparison>> {
        let leases = self.work.path().join("leases");
        let keys = json!({
            "macspoofchk": true,
            "ipam": {"type": "host-local", "subnet": "10.90.0.0/16", "dataDir": leases},
        });
        let config = config("many", &keys);
        let measured = |side, times| -> Result<(Figures, Figures)> {
            let (mut adds, mut deletes) = (Vec::new(), Vec::new());
            for _ in 0..times {
                adds.push(self.call(side, "ADD", self.one("c1"), &config)?);
                deletes.push(self.call(side, "DEL", self.one("c1"), &config)?);
            }
            Ok((Figures::of(adds)?, Figures::of(deletes)?))
        };
        let times = self.counts.times;
        let kernels = || -> Result<(Figures, Figures)> {
            let (mut adds, mut deletes) = (Vec::new(), Vec::new());
            for _ in 0..times / 4 {
                adds.push(self.in_netlink("ADD", &config)?);
                deletes.push(self.in_netlink("DEL", &config)?);
            }
            Ok((Figures::of(adds)?, Figures::of(deletes)?))
        };
        self.warm(&config)?;
        let (empty, kernel_empty) = (measured(Side::Ours, times / 4)?, kernels()?);
        let _pods = self.fill(self.counts.many, &config)?;
        let (full, kernel_full) = (measured(Side::Ours, times / 4)?, kernels()?);
        let theirs = measured(Side::Theirs, times / 20)?;
        self.collect(&config)?;
        let (add, delete) = (format!("{row}: ADD"), format!("{row}: DEL"));
        Ok(vec![
            Comparison::new(&add, full.0, "ours, empty node", empty.0, Bar::Slower(1.2)),
            Comparison::new(&add, full.0, "Go plugin v1.9.1 there", theirs.0, Bar::Faster(5.0)),
            Comparison::new(&add, kernel_full.0, "netlink alone, full and empty", kernel_empty.0, Bar::None),
            Comparison::new(&delete, full.1, "ours, empty node", empty.1, Bar::Slower(1.5)),
            Comparison::new(&delete, full.1, "Go plugin v1.9.1 there", theirs.1, Bar::Faster(2.0)),
            Comparison::new(
                &delete,
                kernel_full.1,
                "netlink alone, full and empty",
                kernel_empty.1,
                Bar::None,
            ),
        ])
    }

    /// ADD with and without macspoofchk in turn, on a node with 900 checked attachments.
    fn checked_on_a_full_node(&self, row: &str) -> Result<Comparison> {
        let (checked, plain) = (config("many", &json!({"macspoofchk": true})), config("many", &json!({})));
        self.warm(&checked)?;
        let _pods = self.fill(self.counts.many, &checked)?;
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for turn in 0..self.counts.times {
            let mut both = [(&checked, &mut with), (&plain, &mut without)];
            if !turn.is_multiple_of(2) {
                both.reverse();
            }
            for (config, times) in both {
                times.push(self.call(Side::Ours, "ADD", self.one("c1"), config)?);
                self.call(Side::Ours, "DEL", self.one("c1"), config)?;
            }
        }
        self.collect(&checked)?;
        let (with, without) = (Figures::of(with)?, Figures::of(without)?);
        Ok(Comparison::new(row, with, "ours, without macspoofchk", without, Bar::BothWithin(0.3)))
    }

    /// GC of all attachments of the network of a configuration.
    fn collect(&self, config: &str) -> Result<Duration> {
        let mut call: Value = serde_json::from_str(config)?;
        call["cni.dev/valid-attachments"] = json!([]);
        self.call(Side::Ours, "GC", self.no_attachment(), &call.to_string())
    }

    /// Attaches so many pods.
    fn fill(&self, count: usize, config: &str) -> Result<Vec<Namespace>> {
        let attach = |index| {
            let container = format!("m{index}");
            // One each: were they all in one, it would be that one's table of routes that is full.
            let pod = Namespace::new(&container)?;
            let one = Attachment { container: &container, interface: "net1", pod: &pod };
            self.call(Side::Ours, "ADD", one, config)?;
            Ok(pod)
        };
        (0..count).map(attach).collect()
    }

    /// Both sides once, so that tables, modules and the page cache are there.
    fn warm(&self, config: &str) -> Result<()> {
        for side in [Side::Theirs, Side::Ours] {
            self.call(side, "ADD", self.one("c0"), config)?;
            self.call(side, "DEL", self.one("c0"), config)?;
        }
        Ok(())
    }

    /// Time that one of our calls about `net1` waits for the kernel to carry out its netlink messages: it does so while they
    /// are sent. The rest of the call, and what strace costs, is left out.
    fn in_netlink(&self, verb: &str, config: &str) -> Result<Duration> {
        let report = self.work.path().join("trace");
        let mut command = Command::new("strace");
        command.args(["-T", "-e", "trace=sendto", "-o"]).arg(&report).arg(self.work.path().join("bridge"));
        ask(command, self.work.path(), verb, self.one("c1"), config)?;
        let trace = std::fs::read_to_string(report)?;
        let times = trace.lines().filter_map(|line| line.strip_suffix('>')?.rsplit_once('<')?.1.parse().ok());
        Ok(times.map(Duration::from_secs_f64).sum())
    }

    /// `net1` of a container.
    fn one<'a>(&'a self, container: &'a str) -> Attachment<'a> {
        Attachment { container, interface: "net1", pod: &self.pod }
    }

    /// For a verb that is about no attachment.
    fn no_attachment(&self) -> Attachment<'_> {
        Attachment { container: "", interface: "", pod: &self.pod }
    }

    fn call(&self, side: Side, verb: &str, one: Attachment<'_>, config: &str) -> Result<Duration> {
        self.answer(side, verb, one, config).map(|(took, _)| took)
    }

    /// One call, and its answer.
    fn answer(
        &self,
        side: Side,
        verb: &str,
        one: Attachment<'_>,
        config: &str,
    ) -> Result<(Duration, Vec<u8>)> {
        let folder = match side {
            Side::Ours => self.work.path(),
            Side::Theirs => &self.peers,
        };
        ask(Command::new(folder.join("bridge")), folder, verb, one, config)
    }
}

/// A call by a command that ends with the plugin, with further plugins in `folder`; how long it took, and its answer.
fn ask(
    mut command: Command,
    folder: &Path,
    verb: &str,
    one: Attachment<'_>,
    config: &str,
) -> Result<(Duration, Vec<u8>)> {
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", one.container)
        .env("CNI_IFNAME", one.interface)
        .env("CNI_NETNS", one.pod.path())
        .env("CNI_PATH", folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let start = Instant::now();
    let mut child = command.spawn()?;
    child.stdin.take().context("standard input")?.write_all(config.as_bytes())?;
    let mut answer = Vec::new();
    child.stdout.take().context("standard output")?.read_to_end(&mut answer)?;
    let status = child.wait()?;
    let took = start.elapsed();
    let said = String::from_utf8_lossy(&answer);
    ensure!(status.success(), "{command:?} {verb} of {config}: {status}: {said}");
    Ok((took, answer))
}

impl Drop for Bench {
    fn drop(&mut self) {
        move_into_link_name_space(self.home.as_fd(), Some(LinkNameSpaceType::Network)).ok();
    }
}

/// The order alternates from turn to turn.
fn in_turn(turn: usize) -> [Side; 2] {
    if turn.is_multiple_of(2) { [Side::Theirs, Side::Ours] } else { [Side::Ours, Side::Theirs] }
}

fn config(name: &str, keys: &Value) -> String {
    let mut config = json!({"cniVersion": "1.1.0", "name": name, "type": "bridge", "bridge": "br0"});
    if let (Some(config), Some(keys)) = (config.as_object_mut(), keys.as_object()) {
        config.extend(keys.clone());
    }
    config.to_string()
}

/// Deletes a link by one message, `RTM_DELLINK` by its name, and takes the answer.
fn delete_link(name: &str) -> Result<Duration> {
    const RTM_DELLINK: u16 = 17;
    const NLM_F_REQUEST_ACK: u16 = 5;
    const IFLA_IFNAME: u16 = 3;
    let mut attribute = name.as_bytes().to_vec();
    attribute.push(0);
    let length = u16::try_from(attribute.len() + 4)?;
    attribute.resize(attribute.len().next_multiple_of(4), 0);
    let mut message = Vec::new();
    message.extend(u32::try_from(16 + 16 + 4 + attribute.len())?.to_ne_bytes());
    message.extend(RTM_DELLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST_ACK.to_ne_bytes());
    message.extend([0; 8 + 16]);
    message.extend(length.to_ne_bytes());
    message.extend(IFLA_IFNAME.to_ne_bytes());
    message.extend(&attribute);
    let socket = Socket::new(NETLINK_ROUTE)?;
    let start = Instant::now();
    socket.send(&message, 0)?;
    let mut answer = Vec::with_capacity(4096);
    socket.recv(&mut answer, 0)?;
    let took = start.elapsed();
    ensure!(answer.get(16..20) == Some(&[0; 4]), "the kernel did not delete {name}");
    Ok(took)
}

fn run(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("{command:?}; make deps installs it"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}
