//! Frames over a bridge with many attachments: checked by our plugin, unchecked, and checked by the reference, in turn.
//!
//! ```text
//!  pod ─► bridge of a node (one for each way of checking, with as many attachments) ─► pod: time until all has arrived
//! ```
//!
//! The medians of the rounds are compared. Nothing but the bridge differs between the nodes.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd as _;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::json;

use super::{Attachment, Bench, Namespace, Side, config, run};
use crate::compare::{Bar, Comparison, Figures};

/// Addresses of the two pods that exchange frames.
const SENDER: &str = "10.91.0.1";
const RECEIVER: &str = "10.91.0.2";
const PORT: u16 = 9;
/// Bytes of a datagram: the least frame there is.
const DATAGRAM: usize = 18;
/// Bytes that are sent in one call over TCP.
const CHUNK: usize = 64 << 10;
/// How much longer it may take than unchecked: 0.95 of the frames in the same time.
const SLOWER: f64 = 1.05;

/// A node with many attachments, and two pods on its bridge.
struct Node {
    /// The other attachments' ends.
    _crowd: Namespace,
    sender: Namespace,
    receiver: Namespace,
    _node: Namespace,
}

/// Measures the row: the time for 1000 datagrams, and that for 64 MiB over one connection.
pub(super) fn compare(bench: &Bench, row: &str) -> Result<Vec<Comparison>> {
    let nodes = [
        Node::new(bench, "checked", Side::Ours, true)?,
        Node::new(bench, "unchecked", Side::Ours, false)?,
        Node::new(bench, "theirs", Side::Theirs, true)?,
    ];
    let (mut packets, mut streams) = ([const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for round in 0..bench.counts.rounds {
        for turn in 0..nodes.len() {
            // Each node is the first one of a round as often as the others.
            let at = (turn + round) % nodes.len();
            packets[at].push(nodes[at].datagrams(bench.counts.datagrams)?);
            streams[at].push(nodes[at].stream(bench.counts.bytes)?);
        }
    }
    let mut compared = Vec::new();
    for (what, times) in [("1000 packets", packets), ("64 MiB", streams)] {
        let row = format!("{row}: {what}");
        let [ours, unchecked, theirs] = times;
        let (ours, unchecked) = (Figures::of(ours)?, Figures::of(unchecked)?);
        compared.push(Comparison::new(&row, ours, "unchecked", unchecked, Bar::Slower(SLOWER)));
        compared.push(Comparison::new(&row, ours, "Go plugin v1.9.1", Figures::of(theirs)?, Bar::None));
    }
    Ok(compared)
}

impl Node {
    fn new(bench: &Bench, what: &str, side: Side, checked: bool) -> Result<Self> {
        let name = |part: &str| Namespace::new(&format!("{what}-{part}"));
        let (node, crowd, sender, receiver) = (name("node")?, name("crowd")?, name("from")?, name("to")?);
        for pod in [&crowd, &sender, &receiver] {
            inside(pod, || {
                // No announcements among the measured frames.
                std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")?;
                Ok(())
            })?;
        }
        let config = config("frames", &json!({"macspoofchk": checked}));
        let attach = |container: &str, interface: &str, pod: &Namespace| {
            let one = Attachment { container, interface, pod };
            bench.call(side, "ADD", one, &config).map(drop)
        };
        inside(&node, || {
            for number in 0..bench.counts.forwarding.saturating_sub(2) {
                attach(&format!("crowd{number}"), &format!("n{number}"), &crowd)?;
            }
            attach("sender", "net1", &sender)?;
            attach("receiver", "net1", &receiver)
        })?;
        for (pod, address) in [(&sender, SENDER), (&receiver, RECEIVER)] {
            let address = format!("{address}/24");
            run(Command::new("ip").args(["-n", &pod.name, "address", "add", &address, "dev", "net1"]))?;
        }
        let node = Self { _crowd: crowd, sender, receiver, _node: node };
        // Neighbours, caches.
        node.datagrams(1000)?;
        node.stream(1 << 20)?;
        Ok(node)
    }

    /// Time for 1000 datagrams; the kernel carries one to its receiver while it is sent.
    fn datagrams(&self, count: usize) -> Result<Duration> {
        let receiver = inside(&self.receiver, || Ok(UdpSocket::bind((RECEIVER, PORT))?))?;
        let sender = inside(&self.sender, || {
            let socket = UdpSocket::bind((SENDER, PORT))?;
            socket.connect((RECEIVER, PORT))?;
            Ok(socket)
        })?;
        let before = self.arrived()?;
        let start = Instant::now();
        for _ in 0..count {
            sender.send(&[0; DATAGRAM])?;
        }
        let took = start.elapsed();
        // A queue may have dropped some: counted are those that arrived.
        let arrived = self.arrived()? - before;
        drop(receiver);
        ensure!(arrived * 10 >= count * 9, "{arrived} of {count} datagrams arrived");
        Ok(took.mul_f64(1000.0 / f64::from(u32::try_from(arrived)?)))
    }

    /// Frames that have come in at the receiver's interface.
    fn arrived(&self) -> Result<usize> {
        let words = ["-n", &self.receiver.name, "-s", "-json", "link", "show", "net1"];
        let shown: serde_json::Value = serde_json::from_slice(&run(Command::new("ip").args(words))?)?;
        let count = shown[0]["stats64"]["rx"]["packets"].as_u64().context("the receiver's packets")?;
        Ok(usize::try_from(count)?)
    }

    /// Time for 64 MiB over a connection.
    fn stream(&self, bytes: usize) -> Result<Duration> {
        let listener = inside(&self.receiver, || Ok(TcpListener::bind((RECEIVER, PORT))?))?;
        let receiving = std::thread::spawn(move || -> Result<usize> {
            let (mut connection, _) = listener.accept()?;
            let (mut buffer, mut all) = (vec![0; CHUNK], 0);
            loop {
                let read = connection.read(&mut buffer)?;
                if read == 0 {
                    return Ok(all);
                }
                all += read;
            }
        });
        let mut sender = inside(&self.sender, || Ok(TcpStream::connect((RECEIVER, PORT))?))?;
        let start = Instant::now();
        for _ in 0..bytes / CHUNK {
            sender.write_all(&[0; CHUNK])?;
        }
        drop(sender);
        let received = receiving.join().ok().context("the receiver's thread ended before its work")??;
        let took = start.elapsed();
        ensure!(received == bytes / CHUNK * CHUNK, "{received} of {bytes} bytes were received");
        Ok(took.mul_f64(f64::from(64 << 20) / f64::from(u32::try_from(received)?)))
    }
}

/// Does `work` in a namespace; this thread stays in its own.
fn inside<T: Send>(namespace: &Namespace, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let file = File::open(namespace.path())?;
    let enter = || {
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))?;
        work()
    };
    let done = std::thread::scope(|scope| scope.spawn(enter).join());
    done.ok().context("the thread in a network namespace ended before its work")?
}
