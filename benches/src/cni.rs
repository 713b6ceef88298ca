//! The CNI plugin beside the Go reference plugin, call by call: how long a runtime waits for one.
//!
//! ```text
//!  node (a network namespace that this thread is in) ─► calls, ours and theirs in turn ─► minimum and median ─► bars
//! ```
//!
//! What is measured is a process from its start to its end with its answer read, as a runtime sees it. Needs root.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Serialize;
use serde_json::{Value, json};

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
];

/// The heading of the table.
pub const HEADING: &str = "row                              ours min   p50 ms   beside                           min   p50 ms   compared        bar       kept";

/// How often what is compared with the reference is done.
const TIMES: usize = 200;
/// Attachments of the full node.
const MANY: usize = 900;
/// Attachments that a GC finds left behind.
const STALE: usize = 500;

/// Least and median of some calls, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// Least.
    pub least: f64,
    /// Median.
    pub median: f64,
}

/// What must hold between ours and what is beside it.
#[derive(Clone, Copy, Debug, Serialize)]
pub enum Bar {
    /// Least and median are faster by this factor.
    Faster(f64),
    /// The median takes at most so many times as long.
    Slower(f64),
    /// The least is at most so many milliseconds longer.
    Within(f64),
    /// The least is below so many milliseconds.
    Below(f64),
}

/// One comparison.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The row.
    pub row: String,
    /// Ours.
    pub ours: Figures,
    /// With what.
    pub beside: String,
    /// That.
    pub other: Figures,
    /// What must hold.
    pub bar: Bar,
    /// Whether it does.
    pub kept: bool,
}

impl Comparison {
    fn new(row: &str, ours: Figures, beside: &str, other: Figures, bar: Bar) -> Self {
        let kept = match bar {
            Bar::Faster(factor) => other.least / ours.least >= factor && other.median / ours.median >= factor,
            Bar::Slower(factor) => ours.median / other.median <= factor,
            Bar::Within(more) => ours.least - other.least <= more,
            Bar::Below(most) => ours.least < most,
        };
        Self { row: row.to_owned(), ours, beside: beside.to_owned(), other, bar, kept }
    }

    /// Its line of the table.
    pub fn line(&self) -> String {
        let (compared, bar) = match self.bar {
            Bar::Faster(factor) => (
                format!(
                    "{:.2}× {:.2}×",
                    self.other.least / self.ours.least,
                    self.other.median / self.ours.median
                ),
                format!("≥ {factor}×"),
            ),
            Bar::Slower(factor) => {
                (format!("{:.2}×", self.ours.median / self.other.median), format!("≤ {factor}×"))
            }
            Bar::Within(more) => {
                (format!("{:+.2} ms", self.ours.least - self.other.least), format!("≤ {more} ms"))
            }
            Bar::Below(most) => (String::new(), format!("< {most} ms")),
        };
        let mut text = String::new();
        let kept = if self.kept { "yes" } else { "NO" };
        _ = writeln!(
            text,
            "{:<32} {:>8.2} {:>8.2}   {:<28} {:>7.2} {:>8.2}   {compared:<15} {bar:<9} {kept}",
            self.row, self.ours.least, self.ours.median, self.beside, self.other.least, self.other.median
        );
        text
    }
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

/// Who is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Ours,
    Theirs,
}

/// Node, pod, and the plugins of both sides.
pub struct Bench {
    pod: Namespace,
    work: tempfile::TempDir,
    peers: PathBuf,
    home: File,
    /// This thread is in it as long as the bench lives.
    _node: Namespace,
}

impl Bench {
    /// A bench of the program `plugin` beside the reference plugins in the folder `peers`. This thread moves to another
    /// network namespace until the bench is dropped.
    ///
    /// # Errors
    /// There are no such programs, or no right to make namespaces.
    pub fn new(plugin: &Path, peers: &Path) -> Result<Self> {
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
        Ok(Self { pod, work, peers: peers.to_owned(), home, _node: node })
    }

    /// Measures a row.
    ///
    /// # Errors
    /// A call fails, or leaves something behind.
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
            other => bail!("{other} is no row"),
        };
        Ok(compared)
    }

    /// An ADD of each side in turn, and a DEL after each.
    fn adds(&self, row: &str, keys: &Value, factor: f64) -> Result<Comparison> {
        let config = config("net", keys);
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        self.warm(&config)?;
        for turn in 0..TIMES {
            for side in in_turn(turn) {
                let took = self.call(side, "ADD", "c1", "net1", &config)?;
                self.call(side, "DEL", "c1", "net1", &config)?;
                match side {
                    Side::Ours => ours.push(took),
                    Side::Theirs => theirs.push(took),
                }
            }
        }
        let figures = (figures(ours)?, figures(theirs)?);
        Ok(Comparison::new(row, figures.0, "Go plugin v1.9.1", figures.1, Bar::Faster(factor)))
    }

    /// A DEL of each side in turn, and the kernel's part of it alone: one message that deletes a link like that.
    fn deletes(&self, row: &str) -> Result<Vec<Comparison>> {
        let config = config("net", &json!({}));
        let (mut ours, mut theirs, mut kernel) = (Vec::new(), Vec::new(), Vec::new());
        self.warm(&config)?;
        for turn in 0..TIMES {
            for side in in_turn(turn) {
                self.call(side, "ADD", "c1", "net1", &config)?;
                let took = self.call(side, "DEL", "c1", "net1", &config)?;
                match side {
                    Side::Ours => ours.push(took),
                    Side::Theirs => theirs.push(took),
                }
            }
            let answer = self.answer(Side::Ours, "ADD", "c1", "net1", &config)?.1;
            let answer: Value = serde_json::from_slice(&answer)?;
            let link = answer["interfaces"][1]["name"].as_str().context("the host's end")?;
            kernel.push(delete_link(link)?);
        }
        let ours = figures(ours)?;
        Ok(vec![
            Comparison::new(row, ours, "one netlink call", figures(kernel)?, Bar::Within(1.0)),
            Comparison::new(row, ours, "Go plugin v1.9.1", figures(theirs)?, Bar::Faster(1.0)),
        ])
    }

    fn deletes_of_nothing(&self, row: &str) -> Result<Comparison> {
        let config = config("net", &json!({}));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for turn in 0..TIMES {
            for side in in_turn(turn) {
                let took = self.call(side, "DEL", "c1", "net1", &config)?;
                match side {
                    Side::Ours => ours.push(took),
                    Side::Theirs => theirs.push(took),
                }
            }
        }
        let figures = (figures(ours)?, figures(theirs)?);
        Ok(Comparison::new(row, figures.0, "Go plugin v1.9.1", figures.1, Bar::Faster(2.0)))
    }

    fn collection(&self, row: &str) -> Result<Comparison> {
        let config = config("stale", &json!({"macspoofchk": true}));
        for index in 0..STALE {
            self.call(Side::Ours, "ADD", &format!("s{index}"), &format!("s{index}"), &config)?;
        }
        let mut call: Value = serde_json::from_str(&config)?;
        call["cni.dev/valid-attachments"] = json!([]);
        let took = figures(vec![self.call(Side::Ours, "GC", "", "", &call.to_string())?])?;
        let left = String::from_utf8(run(Command::new("ip").args(["-o", "link"]))?)?;
        ensure!(!left.contains("stale/"), "the GC left links behind: {left}");
        Ok(Comparison::new(row, took, "-", took, Bar::Below(500.0)))
    }

    /// ADD and DEL on an empty node, then on one with 900 attachments.
    fn full_node(&self, row: &str) -> Result<Vec<Comparison>> {
        let leases = self.work.path().join("leases");
        let keys = json!({
            "macspoofchk": true,
            "ipam": {"type": "host-local", "subnet": "10.90.0.0/16", "dataDir": leases},
        });
        let config = config("many", &keys);
        let measured = || -> Result<(Figures, Figures)> {
            let (mut adds, mut deletes) = (Vec::new(), Vec::new());
            for _ in 0..TIMES / 4 {
                adds.push(self.call(Side::Ours, "ADD", "c1", "net1", &config)?);
                deletes.push(self.call(Side::Ours, "DEL", "c1", "net1", &config)?);
            }
            Ok((figures(adds)?, figures(deletes)?))
        };
        let empty = measured()?;
        for index in 0..MANY {
            self.call(Side::Ours, "ADD", &format!("m{index}"), &format!("m{index}"), &config)?;
        }
        let full = measured()?;
        let mut call: Value = serde_json::from_str(&config)?;
        call["cni.dev/valid-attachments"] = json!([]);
        self.call(Side::Ours, "GC", "", "", &call.to_string())?;
        Ok(vec![
            Comparison::new(&format!("{row}: ADD"), full.0, "ours, empty node", empty.0, Bar::Slower(1.2)),
            Comparison::new(&format!("{row}: DEL"), full.1, "ours, empty node", empty.1, Bar::Slower(1.5)),
        ])
    }

    /// Both sides once, so that tables, modules and the page cache are there.
    fn warm(&self, config: &str) -> Result<()> {
        for side in [Side::Theirs, Side::Ours] {
            self.call(side, "ADD", "c0", "net0", config)?;
            self.call(side, "DEL", "c0", "net0", config)?;
        }
        Ok(())
    }

    fn call(
        &self,
        side: Side,
        verb: &str,
        container: &str,
        interface: &str,
        config: &str,
    ) -> Result<Duration> {
        self.answer(side, verb, container, interface, config).map(|(took, _)| took)
    }

    /// One call, and what it answered.
    fn answer(
        &self,
        side: Side,
        verb: &str,
        container: &str,
        interface: &str,
        config: &str,
    ) -> Result<(Duration, Vec<u8>)> {
        let folder = match side {
            Side::Ours => self.work.path(),
            Side::Theirs => &self.peers,
        };
        let mut command = Command::new(folder.join("bridge"));
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", container)
            .env("CNI_IFNAME", interface)
            .env("CNI_NETNS", self.pod.path())
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
        ensure!(status.success(), "{side:?} {verb} of {config}: {status}: {said}");
        Ok((took, answer))
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        move_into_link_name_space(self.home.as_fd(), Some(LinkNameSpaceType::Network)).ok();
    }
}

/// Who is first changes from turn to turn.
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

fn figures(mut times: Vec<Duration>) -> Result<Figures> {
    times.sort_unstable();
    let milliseconds = |time: &Duration| time.as_secs_f64() * 1e3;
    let least = times.first().map(milliseconds).context("at least one call")?;
    let median = times.get(times.len() / 2).map(milliseconds).context("at least one call")?;
    Ok(Figures { least, median })
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
