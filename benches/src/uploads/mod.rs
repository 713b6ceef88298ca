//! The upload server and its proxy as processes, with curl as their client, over TLS on loopback: how long from the first
//! byte to a durable disk, how much memory, and how fast the proxy is in comparison with nginx.
//!
//! ```text
//!  curl ══ TLS ══► ours: uploadserver, a disk when it answers │ theirs: received to a file, synced, converted, synced
//!  curl ══ TLS ══► ours: uploadproxy │ theirs: nginx, buffering off ══ TLS ══► a sink
//! ```
//!
//! Not here: the servers around it (`stage`), the images (`crate::images`).

mod stage;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use api::upload::PROXY_CLIENT;

use crate::compare::{Bar, Comparison, Figures};
use crate::images::{Image, Images};
use crate::rows::Place;
use crate::run::Output;
use crate::{judge, measure, sys};
use stage::{Authority, Cluster, Keep, Receiver};

/// The rows' names, in the order of the table.
pub const ROWS: &[&str] = &[
    "upload: deflate qcow2",
    "upload: raw",
    "upload: memory, MiB",
    "uploadproxy: memory, 50 uploads, MiB",
    "uploadproxy: raw",
];

/// How often each is run.
const TIMES: usize = 5;
/// Ways to convert; the fastest of one run each counts.
const CONVERT: [&str; 3] = ["-m 16 -W -t none", "-m 8 -t none -T none", "-m 16 -W -t writeback"];
/// Uploads that pass through the proxy at once, and bytes of each.
const AT_ONCE: usize = 50;
const EACH: u64 = 64 << 20;
const TIMEOUT: Duration = Duration::from_secs(20);
/// The claim that is uploaded to, in the stand-in for a cluster.
const CLAIM: &str = "bench/disk";
const HOST: &str = "cdi-upload-disk.bench.svc";
const PATH: &str = "/v1beta1/upload";

/// Killed when dropped.
struct Process {
    /// `None` once its end was waited for.
    child: Option<Child>,
    port: u16,
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

impl Process {
    fn id(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }
}

/// State shared by all rows.
pub struct Bench {
    server: PathBuf,
    proxy: PathBuf,
    images: Images,
    authority: Authority,
    work: tempfile::TempDir,
}

impl Bench {
    /// A bench of the programs `server` and `proxy` that keeps its images below `cache`.
    ///
    /// # Errors
    /// There are no such programs, or the cache cannot be made.
    pub fn new(server: &Path, proxy: &Path, cache: &Path) -> Result<Self> {
        for program in [server, proxy] {
            ensure!(program.is_file(), "{} is not there: make builds it", program.display());
        }
        let work = tempfile::Builder::new().prefix("uploads-").tempdir_in(cache)?;
        let authority = Authority::new()?;
        for (file, name) in [("server", HOST), ("client", PROXY_CLIENT), ("proxy", "proxy")] {
            let (certificate, key) = authority.sign(name)?;
            fs::write(work.path().join(format!("{file}.crt")), certificate)?;
            fs::write(work.path().join(format!("{file}.key")), key)?;
        }
        fs::write(work.path().join("ca.crt"), authority.certificate())?;
        Ok(Self {
            server: server.to_owned(),
            proxy: proxy.to_owned(),
            images: Images::open(cache)?,
            authority,
            work,
        })
    }

    /// Measures a row.
    ///
    /// # Errors
    /// A program fails, a tool is missing, or a disk is wrong.
    pub fn row(&self, name: &str) -> Result<Vec<Comparison>> {
        match name {
            "upload: deflate qcow2" => self.qcow2(name),
            "upload: raw" => self.raw(name),
            "upload: memory, MiB" => self.memory(name),
            "uploadproxy: memory, 50 uploads, MiB" => self.proxy_memory(name),
            "uploadproxy: raw" => self.proxy_raw(name),
            other => bail!("{other} is no row"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn qcow2(&self, row: &str) -> Result<Vec<Comparison>> {
        let image = Image::QcowZlib;
        self.images.make(image)?;
        let mut fastest = (f64::INFINITY, "");
        for options in CONVERT {
            let took = self.received_and_converted(image, options)?.as_secs_f64();
            if took < fastest.0 {
                fastest = (took, options);
            }
        }
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..TIMES {
            theirs.push(self.received_and_converted(image, fastest.1)?);
            ours.push(self.uploaded(image, ours.is_empty(), self.work.path())?.0);
        }
        let beside = format!("receive, {}", fastest.1);
        Ok(vec![Comparison::new(row, Figures::of(ours)?, &beside, Figures::of(theirs)?, Bar::Faster(3.0))])
    }

    fn raw(&self, row: &str) -> Result<Vec<Comparison>> {
        let image = Image::RawFull;
        self.images.make(image)?;
        let length = fs::metadata(self.images.path(image))?.len();
        let (mut ours, mut received, mut written) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..TIMES {
            received.push(self.received(image, Keep::Nothing)?);
            let file = self.path("written");
            let cost = measure::direct_write(&file, length)?;
            written.push(Duration::from_secs_f64(cost.wall));
            self.clear(&file)?;
            ours.push(self.uploaded(image, ours.is_empty(), self.work.path())?.0);
        }
        let (ours, received, written) = (Figures::of(ours)?, Figures::of(received)?, Figures::of(written)?);
        let slower = received.least > written.least;
        let bar = |this: bool| if this { Bar::Faster(0.8) } else { Bar::None };
        Ok(vec![
            Comparison::new(row, ours, "TLS receive, kept nowhere", received, bar(slower)),
            Comparison::new(row, ours, "direct write", written, bar(!slower)),
        ])
    }

    fn memory(&self, row: &str) -> Result<Vec<Comparison>> {
        let output = Output::make(Place::Xfs, self.work.path())?;
        let mut peak = Vec::new();
        for image in [Image::QcowZlib, Image::QcowZlib64G] {
            self.images.make(image)?;
            peak.push(Figures::one(self.uploaded(image, false, output.folder())?.1));
        }
        let [small, large] = peak.as_slice() else { bail!("two images") };
        Ok(vec![Comparison::new(row, *large, "1.5 GiB, not 64", *small, Bar::Below(64.0))])
    }

    fn proxy_memory(&self, row: &str) -> Result<Vec<Comparison>> {
        let receiver = Receiver::start(&self.authority.sign(HOST)?, Keep::Nothing)?;
        let cluster = Cluster::start(&self.authority.certificate())?;
        let proxy = self.proxy(&cluster, receiver.port())?;
        let image = self.path("each");
        measure::direct_write(&image, EACH)?;
        let header = self.bearer()?;
        let mut clients = Vec::new();
        for _ in 0..AT_ONCE {
            let mut curl = self.curl(&image, proxy.port, &["--limit-rate", "8M", "-H", &header]);
            clients.push(curl.spawn().context("start curl")?);
        }
        for mut client in clients {
            ensure!(client.wait()?.success(), "an upload through the proxy failed");
        }
        let peak = peak_mib(&proxy)?;
        fs::remove_file(image)?;
        Ok(vec![Comparison::new(row, Figures::one(peak), "the bar", Figures::one(24.0), Bar::Below(24.0))])
    }

    fn proxy_raw(&self, row: &str) -> Result<Vec<Comparison>> {
        let image = Image::RawFull;
        self.images.make(image)?;
        let receiver = Receiver::start(&self.authority.sign(HOST)?, Keep::Nothing)?;
        let cluster = Cluster::start(&self.authority.certificate())?;
        let proxy = self.proxy(&cluster, receiver.port())?;
        let nginx = stage::passing(self.work.path(), receiver.port())?;
        let header = self.bearer()?;
        let (mut ours, mut theirs, mut direct) = (Vec::new(), Vec::new(), Vec::new());
        measure::warm(&self.images.path(image))?;
        for _ in 0..TIMES {
            for (port, times) in
                [(nginx.port(), &mut theirs), (proxy.port, &mut ours), (receiver.port(), &mut direct)]
            {
                let mut curl = self.curl(&self.images.path(image), port, &["-H", &header]);
                times.push(timed(&mut curl)?);
            }
        }
        let ours = Figures::of(ours)?;
        Ok(vec![
            Comparison::new(row, ours, "nginx, buffering off", Figures::of(theirs)?, Bar::Faster(0.9)),
            Comparison::new(row, ours, "no proxy", Figures::of(direct)?, Bar::None),
        ])
    }

    /// The upload of an image: how long until it is answered, which is when the disk is durable, and the most memory that the
    /// server has had, in MiB.
    fn uploaded(&self, image: Image, judged: bool, within: &Path) -> Result<(Duration, f64)> {
        let folder = tempfile::tempdir_in(within)?;
        for name in ["data", "dev"] {
            fs::create_dir(folder.path().join(name))?;
        }
        let log = folder.path().join("log");
        let mut command = Command::new(&self.server);
        command.arg("-v=1").env_clear().envs([
            ("FERROVIRT_UPLOADSERVER_ROOT", folder.path().display().to_string()),
            ("LISTEN_ADDRESS", "127.0.0.1".into()),
            ("LISTEN_PORT", "0".into()),
            ("TLS_CERT_FILE", self.text("server.crt")),
            ("TLS_KEY_FILE", self.text("server.key")),
            ("CLIENT_CERT_FILE", self.text("ca.crt")),
            ("CLIENT_NAME", PROXY_CLIENT.into()),
            ("FILESYSTEM_OVERHEAD", "0".into()),
        ]);
        let mut process = started(&mut command, &log, "waiting for an upload address=127.0.0.1:")?;
        let path = self.images.path(image);
        measure::warm(&path)?;
        rustix::fs::sync();
        let took = timed(&mut self.curl(&path, process.port, &[]))?;
        let id = i32::try_from(process.id())?;
        drop(process.child.take());
        let (status, usage) = sys::wait(id)?;
        ensure!(status.success(), "the upload server: {status}: {}", fs::read_to_string(&log)?);
        let disk = folder.path().join("data/disk.img");
        if judged {
            let truth = if image == Image::RawFull { image } else { Image::RawSparse };
            self.images.make(truth)?;
            let differs = judge::first_difference(&disk, &self.images.path(truth))?;
            ensure!(differs.is_none(), "the disk differs from {} at {differs:?}", truth.file_name());
        }
        drop(folder);
        rustix::fs::sync();
        Ok((took, f64::from(u32::try_from(usage.peak_kib)?) / 1024.0))
    }

    /// A plain receipt of an image.
    fn received(&self, image: Image, keep: Keep) -> Result<Duration> {
        let receiver = Receiver::start(&self.authority.sign(HOST)?, keep)?;
        let path = self.images.path(image);
        measure::warm(&path)?;
        rustix::fs::sync();
        timed(&mut self.curl(&path, receiver.port(), &[]))
    }

    /// The work without our programs: received to a file, synced, converted, synced.
    fn received_and_converted(&self, image: Image, options: &str) -> Result<Duration> {
        let (file, disk) = (self.path("received"), self.path("converted"));
        let received = self.received(image, Keep::Synced(file.clone()))?;
        let line = format!(
            "qemu-img convert -f {} -O raw {options} \"$1\" \"$2\" && sync \"$2\"",
            image.qemu_format()
        );
        let begun = Instant::now();
        let convert = Command::new("bash").args(["-euc", &line, "bash"]).args([&file, &disk]).status()?;
        ensure!(convert.success(), "{line}: {convert}");
        let took = received + begun.elapsed();
        self.clear(&file)?;
        self.clear(&disk)?;
        Ok(took)
    }

    /// Removes a file, and lets the disk come to rest.
    fn clear(&self, file: &Path) -> Result<()> {
        fs::remove_file(file)?;
        rustix::fs::sync();
        Ok(())
    }

    /// A client that sends a file and wants to hear 200.
    fn curl(&self, file: &Path, port: u16, more: &[&str]) -> Command {
        let mut curl = Command::new("curl");
        curl.args(["-sSf", "-o", "/dev/null", "-X", "POST", "-H", "Expect:", "--noproxy", "*"])
            .args(["--cacert", &self.text("ca.crt"), "--cert", &self.text("client.crt")])
            .args(["--key", &self.text("client.key")])
            .args(more)
            .arg("-T")
            .arg(file)
            .arg(format!("https://localhost:{port}{PATH}"))
            .stdin(Stdio::null());
        curl
    }

    /// A proxy in a cluster with its only server at `port`.
    fn proxy(&self, cluster: &Cluster, port: u16) -> Result<Process> {
        fs::write(self.path("kubeconfig"), cluster.kubeconfig())?;
        fs::write(self.path("hosts"), format!("127.0.0.1:{port} {HOST}\n"))?;
        let (private, public) = stage::token_key()?;
        fs::write(self.path("id_rsa"), private)?;
        fs::write(self.path("id_rsa.pub"), public)?;
        let mut command = Command::new(&self.proxy);
        command.arg("-v=1").env_clear().envs([
            ("KUBECONFIG", self.text("kubeconfig")),
            ("SERVER_CERT_FILE", self.text("proxy.crt")),
            ("SERVER_KEY_FILE", self.text("proxy.key")),
            ("UPLOAD_CLIENT_CERT_FILE", self.text("client.crt")),
            ("UPLOAD_CLIENT_KEY_FILE", self.text("client.key")),
            ("APISERVER_PUBLIC_KEY_FILE", self.text("id_rsa.pub")),
            ("FERROVIRT_UPLOADPROXY_HOSTS", self.text("hosts")),
            ("LISTEN", "127.0.0.1:0".into()),
        ]);
        started(&mut command, &self.path("proxy.log"), "waiting for uploads address=127.0.0.1:")
    }

    /// A header with a token, by the program itself.
    fn bearer(&self) -> Result<String> {
        let key = self.text("id_rsa");
        let arguments = ["token", "--key", &key, "--pvc", CLAIM];
        let said = Command::new(&self.proxy).args(arguments).output()?;
        ensure!(said.status.success(), "no token: {}", String::from_utf8_lossy(&said.stderr));
        Ok(format!("Authorization: Bearer {}", String::from_utf8(said.stdout)?.trim()))
    }
}

/// Starts a program and waits until its log contains the port after `mark`.
fn started(command: &mut Command, log: &Path, mark: &str) -> Result<Process> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(log)?)
        .spawn()
        .with_context(|| format!("start {command:?}"))?;
    let mut process = Process { child: Some(child), port: 0 };
    let until = Instant::now() + TIMEOUT;
    while process.port == 0 {
        let said = fs::read_to_string(log)?;
        ensure!(Instant::now() < until, "{command:?} does not listen: {said}");
        let port = said.split_once(mark).and_then(|(_, port)| port.split_once('\n')?.0.parse().ok());
        process.port = port.unwrap_or(0);
        sleep(Duration::from_millis(10));
    }
    Ok(process)
}

fn timed(command: &mut Command) -> Result<Duration> {
    let begun = Instant::now();
    let said = command.output().with_context(|| format!("start {command:?}"))?;
    ensure!(said.status.success(), "{command:?}: {}", String::from_utf8_lossy(&said.stderr).trim());
    Ok(begun.elapsed())
}

/// The most memory a process has had so far, in MiB.
fn peak_mib(process: &Process) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", process.id()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("a process has memory")?;
    let kib: u32 = line.trim().strip_suffix(" kB").context("in kB")?.parse()?;
    Ok(f64::from(kib) / 1024.0)
}
