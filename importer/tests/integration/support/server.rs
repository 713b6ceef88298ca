//! nginx on loopback, with a configuration and a folder of its own; stopped when dropped.
//! Not here: servers that misbehave.

use std::fs;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running server.
pub(crate) struct Server {
    process: Child,
    port: u16,
    /// Configuration, logs and temporary files.
    _folder: tempfile::TempDir,
}

/// How a file is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Served {
    /// With ranges.
    Ranges,
    /// Without ranges.
    Whole,
    /// With ranges, 4 MiB a second and connection.
    Slowly,
}

impl Served {
    fn prefix(self) -> &'static str {
        match self {
            Self::Ranges => "ranges",
            Self::Whole => "whole",
            Self::Slowly => "slowly",
        }
    }
}

impl Server {
    /// Serves the files of `root`.
    pub(crate) fn start(root: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().display();
        let root = root.display();
        // The port is free at this moment; no other program on a test machine takes it before nginx does.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {own}/{name}; "))
            .concat();
        let configuration = format!(
            "user root; daemon off; worker_processes 2; pid {own}/pid; error_log {own}/error.log;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log off; sendfile on; {temporary}\n\
             server {{ listen 127.0.0.1:{port};\n\
             location /ranges/ {{ alias {root}/; }}\n\
             location /whole/ {{ alias {root}/; max_ranges 0; }}\n\
             location /slowly/ {{ alias {root}/; limit_rate 4m; }} }} }}\n"
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, configuration).unwrap();
        let mut process = Command::new("nginx")
            .arg("-p")
            .arg(folder.path())
            .arg("-e")
            .arg(folder.path().join("error.log"))
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("nginx cannot be run ({e}); `make deps` installs it"));
        for _ in 0..200 {
            let ended = process.try_wait().unwrap();
            let errors = || fs::read_to_string(folder.path().join("error.log")).unwrap_or_default();
            assert!(ended.is_none(), "nginx ended: {}", errors());
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Self { process, port, _folder: folder };
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("nginx does not answer");
    }

    /// The URL of a file.
    pub(crate) fn url(&self, served: Served, file: &str) -> String {
        format!("http://127.0.0.1:{}/{}/{file}", self.port, served.prefix())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The master stops its workers when asked by TERM; killed outright it would leave them behind.
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&self.process),
            rustix::process::Signal::TERM,
        )
        .ok();
        self.process.wait().ok();
    }
}
