//! nginx on loopback, with a configuration and a folder of its own; stopped when dropped.

use std::{
    collections::BTreeSet,
    fs,
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;

/// A running nginx.
#[derive(Debug)]
pub struct Nginx {
    process: Child,
    port: u16,
    /// Configuration, logs and temporary files.
    folder: TempDir,
}

impl Nginx {
    /// Starts one with the directives of `http` that are made for its port and its folder.
    ///
    /// # Errors
    /// nginx is missing, or does not answer within ten seconds.
    pub fn start(http: impl FnOnce(u16, &Path) -> String) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let own = folder.path().display();
        // The port is free at this moment; no other program on a test machine takes it before nginx does.
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let user = if rustix::process::getuid().is_root() { "user root;" } else { "" };
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {own}/{name}; "))
            .concat();
        let configuration = format!(
            "{user} daemon off; worker_processes 2; pid {own}/pid; error_log {own}/error.log;\n\
             events {{ worker_connections 256; }}\n\
             http {{ access_log off; {temporary}\n{} }}\n",
            http(port, folder.path())
        );
        let file = folder.path().join("nginx.conf");
        fs::write(&file, configuration)?;
        let process = Command::new("nginx")
            .arg("-p")
            .arg(folder.path())
            .arg("-e")
            .arg(folder.path().join("error.log"))
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("start nginx; `make deps` installs it")?;
        let nginx = Self { process, port, folder };
        for _ in 0..100 {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(nginx);
            }
            sleep(Duration::from_millis(100));
        }
        bail!(
            "nginx does not answer: {}",
            fs::read_to_string(nginx.folder.path().join("error.log")).unwrap_or_default()
        );
    }

    /// Where it listens, on loopback.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The master stops its workers when asked by TERM; killed outright it would leave them behind.
        if let Some(pid) = i32::try_from(self.process.id()).ok().and_then(rustix::process::Pid::from_raw) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM).ok();
        }
        self.process.wait().ok();
    }
}

/// One that serves files.
#[derive(Debug)]
pub struct Server(Nginx);

impl Server {
    /// Serves the files of `root`; those of [`Server::paced_url`] at `pace` (in nginx's notation) for each connection.
    ///
    /// # Errors
    /// Those of [`Nginx::start`].
    pub fn start(root: &Path, pace: &str) -> Result<Self> {
        let root = root.display();
        Nginx::start(|port, own| {
            format!(
                "log_format connection $connection; sendfile on;\n\
                 server {{ listen 127.0.0.1:{port}; root {root};\n\
                 location /paced/ {{ alias {root}/; limit_rate {pace}; access_log {}/paced connection; }} }}",
                own.display()
            )
        })
        .map(Self)
    }

    /// The URL of a file served at a fixed rate, with its connections counted.
    pub fn paced_url(&self, file: &str) -> String {
        self.url(&format!("paced/{file}"))
    }

    /// How many connections files at a pace came over since the last call.
    ///
    /// # Errors
    /// nginx's log cannot be read.
    pub fn paced_connections(&self) -> Result<usize> {
        let log = self.0.folder.path().join("paced");
        let connections = fs::read_to_string(&log).with_context(|| format!("read {}", log.display()))?;
        // Emptied, not removed: nginx keeps it open, and appends.
        fs::write(&log, "")?;
        Ok(connections.lines().collect::<BTreeSet<_>>().len())
    }

    /// The URL of a file.
    pub fn url(&self, file: &str) -> String {
        format!("http://127.0.0.1:{}/{file}", self.0.port)
    }
}
