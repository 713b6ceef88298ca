//! A folder with a server of others in it.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::nbd::disks::KIB;

/// A folder with a server in it; both gone with this value.
pub(crate) struct Place {
    folder: TempDir,
    pub(crate) server: Option<Child>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), server: None }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> String {
        // Holes stay holes.
        let path = self.path(name);
        let file = fs::File::create(&path).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        for (i, part) in bytes.chunks(64 * KIB).enumerate() {
            if part.iter().any(|&b| b != 0) {
                std::os::unix::fs::FileExt::write_all_at(&file, part, (i * 64 * KIB) as u64).unwrap();
            }
        }
        self.text(name)
    }

    pub(crate) fn socket(&self) -> String {
        self.text("socket")
    }

    pub(crate) fn url(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket())
    }

    pub(crate) fn start(&mut self, command: &mut Command) {
        self.stop();
        drop(fs::remove_file(self.path("socket")));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.server = Some(child.expect("the server is missing: run make deps"));
        let patience = Instant::now();
        while !self.path("socket").exists() {
            assert!(patience.elapsed() < Duration::from_secs(10), "no socket: {command:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            drop(server.kill());
            drop(server.wait());
        }
    }

    /// Waits until the server has ended by itself.
    pub(crate) fn ends(&mut self) -> bool {
        let patience = Instant::now();
        while patience.elapsed() < Duration::from_secs(5) {
            if self.server.as_mut().unwrap().try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    pub(crate) fn qemu_nbd(&mut self, arguments: &[&str]) {
        let socket = self.socket();
        self.start(Command::new("qemu-nbd").args(["--socket", &socket]).args(arguments));
    }

    pub(crate) fn nbdkit(&mut self, arguments: &[&str]) {
        let socket = self.socket();
        self.start(Command::new("nbdkit").args(["--foreground", "--unix", &socket]).args(arguments));
    }
}

pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().expect("a tool is missing: run make deps");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

pub(crate) fn convert(from: &str, format: &str, to: &str) {
    run(Command::new("qemu-img").args(["convert", "-f", "raw", "-O", format, from, to]));
}

/// A port without a listener at this moment.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
