//! The two containers of a pod as processes, and requests by hand.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

pub(crate) const MIB: usize = 1 << 20;
/// Nothing here takes longer unless it hangs.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// The program that the init container copies.
pub(crate) fn server_program() -> PathBuf {
    let path = std::env::var_os("FERROVIRT_CONTAINERIMAGE_SERVER").map(PathBuf::from);
    path.filter(|path| path.is_file()).expect(
        "FERROVIRT_CONTAINERIMAGE_SERVER does not name the static server: run the tests by `make test`, or \
         `make server` and set the variable to the program it built",
    )
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Bytes that are no pattern, with a hole.
pub(crate) fn disk_bytes(len: usize) -> Vec<u8> {
    let mut state = 7u64;
    let mut bytes: Vec<u8> = (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            u8::try_from(state >> 56).unwrap()
        })
        .collect();
    bytes[len / 3..len / 2].fill(0);
    bytes
}

pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// A process of ours; gone with this value.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) log: Arc<Mutex<String>>,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let kept = log.clone();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let mut log = kept.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Self { child, log }
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for its end.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < TIMEOUT, "still running after {TIMEOUT:?}:\n{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The two containers' folders: `image` is the root of the server's, `image/shared` the volume between the two, and
/// everything else the importer's.
pub(crate) struct Pod {
    pub(crate) folder: tempfile::TempDir,
}

impl Pod {
    pub(crate) fn new() -> Self {
        let pod = Self { folder: tempfile::tempdir().unwrap() };
        for folder in ["data", "dev", "image", "image/disk", "image/shared"] {
            fs::create_dir(pod.path(folder)).unwrap();
        }
        // An emptyDir.
        pod.mode("image/shared", 0o777);
        // The work of the init container.
        // By another process: a program that is open for writing here, when another test forks, cannot be run.
        let copied =
            Command::new("cp").arg(server_program()).arg(pod.path("image/shared/server")).status().unwrap();
        assert!(copied.success());
        pod
    }

    pub(crate) fn with(name: &str, bytes: &[u8]) -> Self {
        let pod = Self::new();
        fs::write(pod.path("image/disk").join(name), bytes).unwrap();
        pod
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    pub(crate) fn mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.path(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    /// The command of the server's container, on `port` or any free one.
    pub(crate) fn server_command(&self, port: u16) -> Command {
        let mut command = Command::new("chroot");
        command.arg("--userspec=107:107").arg(self.path("image"));
        command.args(["/shared/server", "-p", &port.to_string(), "-image-dir", "/disk"]);
        command.args(["-ready-file", "/shared/ready", "-done-file", "/shared/done"]).env_clear();
        command.env("INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE", "u1.small");
        command.env("OTHER", "x").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }

    pub(crate) fn serve(&self, port: u16) -> Server {
        Server::ready(Process::start(self.server_command(port)))
    }

    /// The importer as the controller starts it.
    pub(crate) fn importer(&self, port: u16) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_importer"));
        command.env_clear().arg("-v=1").envs([
            ("FERROVIRT_IMPORTER_ROOT", self.folder.path().to_str().unwrap()),
            ("FERROVIRT_IMPORTER_METRICS_PORT", "0"),
            ("PREALLOCATION", "false"),
            ("FILESYSTEM_OVERHEAD", "0.06"),
            ("OWNER_UID", "1-2-3"),
            ("IMPORTER_CONTENTTYPE", "kubevirt"),
            ("IMPORTER_SOURCE", "http"),
            ("IMPORTER_PULL_METHOD", "node"),
            // Loopback is not reached by a proxy; this one would answer nothing.
            ("http_proxy", "http://127.0.0.1:9"),
        ]);
        command.env("IMPORTER_ENDPOINT", format!("http://localhost:{port}/disk.img"));
        command.env("IMPORTER_READY_FILE", self.path("image/shared/ready"));
        command.env("IMPORTER_DONE_FILE", self.path("image/shared/done"));
        command
    }

    pub(crate) fn import(&self, port: u16) -> Output {
        self.importer(port).stdin(Stdio::null()).output().unwrap()
    }

    #[track_caller]
    pub(crate) fn assert_imports(&self, port: u16, expected: &[u8]) {
        let output = self.import(port);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        self.assert_disk(expected);
    }

    #[track_caller]
    pub(crate) fn assert_disk(&self, expected: &[u8]) {
        assert!(fs::read(self.path("data/disk.img")).unwrap() == expected, "the disk has other bytes");
    }

    pub(crate) fn message(&self) -> String {
        fs::read_to_string(self.path("dev/termination-log")).unwrap()
    }

    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// A server that is ready.
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) port: u16,
}

impl Server {
    #[track_caller]
    pub(crate) fn ready(mut process: Process) -> Self {
        let mut port = None;
        eventually("the server is ready", || {
            let running = process.running();
            let log = process.log();
            port = log.lines().find_map(|line| line.rsplit_once(" on port ")?.1.parse().ok());
            assert!(running || port.is_some(), "the server ended: {log}");
            port.is_some()
        });
        Self { process, port: port.unwrap() }
    }

    #[track_caller]
    pub(crate) fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        ask(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)), method, path, headers)
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let matching = |line: &&str| {
            line.split_once(':').is_some_and(|(found, _)| found.trim().eq_ignore_ascii_case(name))
        };
        self.head.lines().find(matching).and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
    }
}

/// One request on a connection of its own, written by hand: what a client library would put right is seen as it is.
#[track_caller]
pub(crate) fn ask(address: SocketAddr, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    write!(stream, "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}\r\n")
        .unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let end = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap();
    let head = text(&bytes[..end]);
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head, body: bytes[end + 4..].to_vec() }
}
