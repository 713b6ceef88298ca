//! Servers that pods connect to: real ones as processes outside the cluster, at the host's address on the node's link, and
//! one of our own with configurable faults.
//!
//! Each ends when it is dropped, and also when the test's process ends in any other way. Not here: the node's programs.

pub mod flaky;
pub mod registry;
pub mod s3;
pub mod web;

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::pki::{Authority, Identity};
use crate::place::Place;

/// How long a server may take to answer.
const START: Duration = Duration::from_secs(20);

/// Runs a program until its own standard input ends, which is when the holder of the other end is gone.
const WHILE_NEEDED: &str = r#""$@" & peer=$!; trap '' INT; read -r _; kill "$peer"; wait "$peer""#;

/// A server's process.
#[derive(Debug)]
struct Process {
    shell: Child,
}

impl Process {
    /// Starts a program and waits until `address` answers. What it writes goes to `log`.
    fn start(program: &str, arguments: &[&str], address: SocketAddr, log: &std::path::Path) -> Result<Self> {
        let output = fs::File::create(log)?;
        let shell = Command::new("sh")
            .args(["-c", WHILE_NEEDED, "sh", program])
            .args(arguments)
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdin(Stdio::piped())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .context("cannot run sh")?;
        let process = Self { shell };
        let deadline = Instant::now() + START;
        while TcpStream::connect(address).is_err() {
            if Instant::now() > deadline {
                let mut said = String::new();
                fs::File::open(log)?.read_to_string(&mut said)?;
                bail!("{program} does not answer on {address} (`make deps` installs it): {said}");
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(process)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        // It ends by itself now; a failure has no reader left.
        let _ = self.shell.wait();
    }
}

/// A folder for a server's files, gone with the value or with the cluster.
fn folder(place: &Place) -> Result<tempfile::TempDir> {
    let parent = place.path("peers");
    fs::create_dir_all(&parent)?;
    Ok(tempfile::tempdir_in(parent)?)
}

/// A port of `host` without a listener at this moment, and another at each call: the kernel may give one twice while its
/// server has not started. Other processes have clusters with other addresses.
fn free_port(host: Ipv4Addr) -> Result<u16> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    loop {
        let listener = TcpListener::bind((host, 0)).context("the node's link has no such address")?;
        let port = listener.local_addr()?.port();
        if GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(port) {
            return Ok(port);
        }
    }
}

/// A certificate for servers at `host`, and the authority's own, PEM: what a ConfigMap holds.
///
/// # Errors
/// When the system gives no random numbers.
pub fn certificate(host: Ipv4Addr) -> Result<(Identity, String)> {
    let authority = Authority::new("the test's own")?;
    let identity = authority.sign("server", None, &[host.to_string()])?;
    Ok((identity, authority.certificate()))
}
