//! Shared by the tests of uploadserver, uploadproxy and clone-source: a pod of the built server, certificates, and a client
//! over real TLS that sends given bytes. Filesystems, loop devices and disks are those of other packages' tests.

#![allow(dead_code, reason = "each package uses its part of this module")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure here is a failed test")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "small test data"
)]

use std::fs::{self, File};
use std::io::{self, Read};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

pub(crate) mod client;
pub(crate) mod session;
pub(crate) mod tls;

use client::Client;
use tls::Authority;

pub(crate) const MIB: u64 = 1 << 20;
/// The one client's name, as upstream's proxy has it.
pub(crate) const CLIENT: &str = "client.upload-server.cdi.kubevirt.io";

/// Full counts of the acceptance table (`FERROVIRT_SOAK=1`) instead of the small ones; same code, same seeds.
pub(crate) fn count(small: u64, soak: u64) -> u64 {
    if std::env::var("FERROVIRT_SOAK").is_ok_and(|v| v == "1") { soak } else { small }
}

/// The program in a pod's folder, with certificates; killed when dropped.
pub(crate) struct Pod {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) authority: Arc<Authority>,
    port: u16,
    process: Child,
}

/// Parts of a pod.
#[derive(Clone, Debug, Default)]
pub(crate) struct Setup<'a> {
    /// The volume's mount, if it is one of its own.
    pub(crate) volume: Option<&'a Path>,
    /// The device, if the volume is one.
    pub(crate) device: Option<&'a Path>,
    /// The authority of its certificates, if it is not one of its own.
    pub(crate) authority: Option<Arc<Authority>>,
    /// The name in its certificate, if it is not the usual one.
    pub(crate) host: Option<&'a str>,
    /// Further variables, and replacements of the contract's usual ones.
    pub(crate) variables: Vec<(&'a str, String)>,
}

impl Pod {
    pub(crate) fn new() -> Self {
        Self::start(&Setup::default())
    }

    /// With a volume of this request.
    pub(crate) fn of_size(size: &str) -> Self {
        Self::start(&Setup { variables: vec![("UPLOAD_IMAGE_SIZE", size.to_owned())], ..Setup::default() })
    }

    pub(crate) fn start(setup: &Setup<'_>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("dev")).unwrap();
        match setup.volume {
            Some(mount) => symlink(mount, path("data")).unwrap(),
            None => fs::create_dir(path("data")).unwrap(),
        }
        if let Some(device) = setup.device {
            symlink(device, path("dev/cdi-block-volume")).unwrap();
        }
        let authority = setup.authority.clone().unwrap_or_else(|| Arc::new(Authority::new()));
        let (certificate, key) = authority.sign(setup.host.unwrap_or("cdi-upload-pvc.ns.svc"));
        fs::write(path("tls.crt"), certificate).unwrap();
        fs::write(path("tls.key"), key).unwrap();
        fs::write(path("ca.crt"), authority.certificate()).unwrap();
        let text = |name: &str| path(name).to_str().unwrap().to_owned();
        let process = Command::new(places::program("uploadserver"))
            .arg("-v=1")
            .env_clear()
            .envs([
                ("FERROVIRT_UPLOADSERVER_ROOT", folder.path().to_str().unwrap().to_owned()),
                ("LISTEN_ADDRESS", "127.0.0.1".to_owned()),
                // A free port, which the log names.
                ("LISTEN_PORT", "0".to_owned()),
                ("TLS_CERT_FILE", text("tls.crt")),
                ("TLS_KEY_FILE", text("tls.key")),
                ("CLIENT_CERT_FILE", text("ca.crt")),
                ("CLIENT_NAME", CLIENT.to_owned()),
                ("FILESYSTEM_OVERHEAD", "0".to_owned()),
                ("PREALLOCATION", "false".to_owned()),
                ("OWNER_UID", "1-2-3".to_owned()),
            ])
            .envs(setup.variables.clone())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(path("log")).unwrap())
            .spawn()
            .unwrap();
        let mut pod = Self { folder, authority, port: 0, process };
        let port = |log: String| {
            let (_, port) = log.split_once("waiting for an upload address=127.0.0.1:")?;
            port.split_once('\n')?.0.parse().ok()
        };
        let mut found = None;
        pod.wait_for("it listens", || {
            found = port(pod.log());
            found.is_some()
        });
        pod.port = found.unwrap();
        pod
    }

    /// Waits for something that comes soon.
    pub(crate) fn wait_for(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !holds() {
            assert!(begun.elapsed() < Duration::from_secs(30), "not within 30 s: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn connect(&self) -> io::Result<TcpStream> {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))
    }

    /// A connection of the one client.
    pub(crate) fn client(&self) -> Client {
        self.client_named(Some(CLIENT))
    }

    /// A connection of a client with a certificate of this name, or without one.
    pub(crate) fn client_named(&self, name: Option<&str>) -> Client {
        let identity = name.map(|name| self.authority.sign(name));
        Client::new(self.connect().unwrap(), identity.as_ref()).unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.path("data/disk.img")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    pub(crate) fn message(&self) -> String {
        fs::read_to_string(self.path("dev/termination-log")).unwrap_or_default()
    }

    pub(crate) fn process(&self) -> &Child {
        &self.process
    }

    /// How it ended.
    #[track_caller]
    pub(crate) fn end(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not end\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether it still runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.process.try_wait().unwrap().is_none()
    }

    /// It ended in order, with an upload.
    #[track_caller]
    pub(crate) fn assert_uploaded(&mut self) {
        let status = self.end();
        assert!(status.success(), "{status}\n{}", self.log());
        // A warning may follow.
        let begin = r#"{"preallocationApplied":false,"message":"Upload Complete"#;
        assert!(self.message().starts_with(begin), "{}", self.message());
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A raw image of 3 MiB and a sector.
pub(crate) fn image() -> Vec<u8> {
    (0..3 * MIB + 512).map(|at| (at % 251) as u8).collect()
}

/// Whether the pod's disk begins with `image` and has only zeroes behind it.
pub(crate) fn is_disk(pod: &Pod, image: &[u8]) -> bool {
    let disk = fs::read(pod.disk()).unwrap();
    disk.strip_prefix(image).is_some_and(|rest| rest.iter().all(|&byte| byte == 0))
}

/// SHA-256 of the first `len` bytes of a file or device, in hex, and whether the rest is zeroes.
pub(crate) fn sha256(path: &Path, len: u64) -> (String, bool) {
    let mut file = File::open(path).unwrap();
    let mut hasher = Sha256::new();
    let (mut buffer, zeroes) = (vec![0; 1 << 20], vec![0; 1 << 20]);
    let (mut at, mut clean) = (0u64, true);
    loop {
        // Behind them holes need not be read; a device has none.
        if at >= len {
            match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
                Ok(data) => at = data,
                Err(rustix::io::Errno::NXIO) => break,
                Err(rustix::io::Errno::INVAL) => {}
                Err(error) => panic!("{}: {error}", path.display()),
            }
        }
        let got = file.read(&mut buffer).unwrap();
        if got == 0 {
            break;
        }
        let (inside, behind) = buffer[..got].split_at((len.saturating_sub(at) as usize).min(got));
        hasher.update(inside);
        clean &= behind == &zeroes[..behind.len()];
        at += got as u64;
    }
    (hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect(), clean)
}
