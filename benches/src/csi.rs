//! The CSI driver in comparison with a bare loop of the same system calls, and with the programs that other drivers run.
//!
//! ```text
//!  an XFS of its own ─► driver, asked over its socket ─┐
//!                    └► bare calls, `mount`, `cp` ─────┴ in turn ─► minimum and median ─► bars
//! ```
//!
//! A measurement is a call from its start to its answer, with gRPC and both processes' share of it. Needs root.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use csi::controller_client::ControllerClient;
use csi::node_client::NodeClient;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi::volume_content_source::{Type, VolumeSource};
use csi::{
    CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeCapability, VolumeContentSource,
};
use hyper_util::rt::TokioIo;
use rustix::fs::{
    AtFlags, CWD, Mode as Bits, OFlags, RenameFlags, fsync, mkdirat, openat, renameat, renameat_with,
    unlinkat,
};
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use crate::compare::{Bar, Comparison, Figures};

/// The rows' names, in the order of the table.
pub const ROWS: &[&str] = &[
    "csi: create and delete",
    "csi: publish and unpublish",
    "csi: 64 callers",
    "csi: stats with 1000 mounts",
    "csi: clone of 4 GiB",
    "csi: clone of 100 000 extents",
];

/// How often a call is made.
const TIMES: usize = 1000;
/// How often what takes a process is done.
const PROGRAMS: usize = 100;
/// Calls at once.
const CALLERS: usize = 64;
/// Memory of the driver, in MiB.
const MEMORY_MIB: f64 = 24.0;
/// Bytes of the filesystem: a file of 4 GiB fits into half of it as one extent.
const DISK: u64 = 16 << 30;
const MIB: i64 = 1 << 20;
const GIB: i64 = 1 << 30;

/// A filesystem, a driver of it, a client.
pub struct Bench {
    work: tempfile::TempDir,
    driver: Child,
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

impl Bench {
    /// A bench of the program `driver`, with its disk in a file in the folder `cache`.
    ///
    /// # Errors
    /// There is no such program, or no right to mount.
    pub fn new(driver: &Path, cache: &Path) -> Result<Self> {
        ensure!(driver.is_file(), "{} is not there: make build builds it", driver.display());
        let work = tempfile::tempdir_in(cache)?;
        let (disk, pool) = (work.path().join("disk"), work.path().join("pool"));
        fs::create_dir(&pool)?;
        fs::create_dir(work.path().join("pods"))?;
        File::create(&disk)?.set_len(DISK)?;
        run(Command::new("mkfs.xfs").args(["-q", "-f", "-d", "agcount=2"]).arg(&disk))?;
        run(Command::new("mount").args(["-o", "loop"]).arg(&disk).arg(&pool))?;
        let socket = work.path().join("csi.sock");
        let mut child = Command::new(driver)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .args(["--drivername=kubevirt.io.hostpath-provisioner", "--nodeid=node1", "--version=bench"])
            .arg(format!("--endpoint=unix://{}", socket.display()))
            .arg(format!(r#"--datadir=[{{"name":"legacy","path":{pool:?}}}]"#))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(work.path().join("log"))?)
            .spawn()?;
        let until = Instant::now() + Duration::from_secs(20);
        while !socket.exists() {
            let ended = child.try_wait()?;
            ensure!(ended.is_none() && Instant::now() < until, "the driver does not serve: {ended:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let connect = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let endpoint = Endpoint::from_static("http://localhost");
        let channel = runtime.block_on(endpoint.connect_with_connector(connect))?;
        Ok(Self { work, driver: child, runtime, channel })
    }

    /// Measures a row.
    ///
    /// # Errors
    /// A call fails, or lacks its effect.
    pub fn row(&self, name: &str) -> Result<Vec<Comparison>> {
        match name {
            "csi: create and delete" => self.creates(),
            "csi: publish and unpublish" => self.publishes(),
            "csi: 64 callers" => self.callers(),
            "csi: stats with 1000 mounts" => self.stats(),
            "csi: clone of 4 GiB" => self.clone_of_one_extent(),
            "csi: clone of 100 000 extents" => self.clone_of_many_extents(),
            other => bail!("{other} is no row"),
        }
    }

    fn pool(&self) -> PathBuf {
        self.work.path().join("pool")
    }

    fn create(&self, request: CreateVolumeRequest) -> Result<Duration> {
        let mut controller = ControllerClient::new(self.channel.clone());
        let start = Instant::now();
        self.runtime.block_on(controller.create_volume(request))?;
        Ok(start.elapsed())
    }

    fn delete(&self, id: &str) -> Result<Duration> {
        let mut controller = ControllerClient::new(self.channel.clone());
        let request = DeleteVolumeRequest { volume_id: id.into(), ..Default::default() };
        let start = Instant::now();
        self.runtime.block_on(controller.delete_volume(request))?;
        Ok(start.elapsed())
    }

    fn publish(&self, id: &str) -> Result<Duration> {
        let mut node = NodeClient::new(self.channel.clone());
        let request = NodePublishVolumeRequest {
            volume_id: id.into(),
            target_path: self.target(id)?,
            volume_capability: Some(mount()),
            ..Default::default()
        };
        let start = Instant::now();
        self.runtime.block_on(node.node_publish_volume(request))?;
        Ok(start.elapsed())
    }

    fn unpublish(&self, id: &str) -> Result<Duration> {
        let mut node = NodeClient::new(self.channel.clone());
        let request = NodeUnpublishVolumeRequest { volume_id: id.into(), target_path: self.target(id)? };
        let start = Instant::now();
        self.runtime.block_on(node.node_unpublish_volume(request))?;
        Ok(start.elapsed())
    }

    fn target(&self, id: &str) -> Result<String> {
        Ok(self.work.path().join("pods").join(id).to_str().context("a path of UTF-8")?.to_owned())
    }

    fn creates(&self) -> Result<Vec<Comparison>> {
        let bare = Bare::new(&self.pool())?;
        let id = |turn: usize| format!("pvc-{turn:036}");
        let (mut made, mut made_bare, mut gone, mut gone_bare) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        // The order alternates from turn to turn.
        for turn in 0..TIMES {
            if turn.is_multiple_of(2) {
                made_bare.push(bare.create(&id(turn))?);
                made.push(self.create(volume(&id(turn), MIB, mount()))?);
            } else {
                made.push(self.create(volume(&id(turn), MIB, mount()))?);
                made_bare.push(bare.create(&id(turn))?);
            }
        }
        for turn in 0..TIMES {
            if turn.is_multiple_of(2) {
                gone_bare.push(bare.delete(&id(turn))?);
                gone.push(self.delete(&id(turn))?);
            } else {
                gone.push(self.delete(&id(turn))?);
                gone_bare.push(bare.delete(&id(turn))?);
            }
        }
        let [syncs_made, syncs_gone] = self.syncs()?;
        Ok(vec![
            Comparison::new(
                "csi: create",
                Figures::of(made)?,
                "the bare calls",
                Figures::of(made_bare)?,
                Bar::BothWithin(0.5),
            ),
            Comparison::new(
                "csi: create, syncs",
                syncs_made,
                "the bare calls",
                Figures::one(Bare::SYNCS_OF_CREATE),
                Bar::Same,
            ),
            Comparison::new(
                "csi: delete",
                Figures::of(gone)?,
                "the bare calls",
                Figures::of(gone_bare)?,
                Bar::BothWithin(0.3),
            ),
            Comparison::new(
                "csi: delete, syncs",
                syncs_gone,
                "the bare calls",
                Figures::one(Bare::SYNCS_OF_DELETE),
                Bar::Same,
            ),
        ])
    }

    /// Syncs of a create and of a delete, as strace counts them.
    fn syncs(&self) -> Result<[Figures; 2]> {
        let report = self.work.path().join("trace");
        let mut strace = Command::new("strace")
            .args(["-f", "-qq", "-e", "trace=fsync,fdatasync,syncfs,sync", "-o"])
            .arg(&report)
            .args(["-p", &self.driver.id().to_string()])
            .spawn()
            .context("strace; make deps installs it")?;
        let syncs = || -> Result<[Figures; 2]> {
            // Attached when a sync is seen.
            let until = Instant::now() + Duration::from_secs(10);
            while lines(&report) == 0 {
                ensure!(Instant::now() < until, "strace does not attach");
                self.create(volume("first", MIB, mount()))?;
                self.delete("first")?;
            }
            let before = lines(&report);
            self.create(volume("counted", MIB, mount()))?;
            let between = lines(&report);
            self.delete("counted")?;
            let after = lines(&report);
            let figure =
                |count: usize| Ok::<_, anyhow::Error>(Figures::one(f64::from(u32::try_from(count)?)));
            Ok([figure(between - before)?, figure(after - between)?])
        };
        let counted = syncs();
        strace.kill()?;
        strace.wait()?;
        counted
    }

    fn publishes(&self) -> Result<Vec<Comparison>> {
        self.create(volume("v", MIB, mount()))?;
        let (mut there, mut gone) = (Vec::new(), Vec::new());
        for _ in 0..TIMES {
            there.push(self.publish("v")?);
            gone.push(self.unpublish("v")?);
        }
        let target = self.work.path().join("pods/by-program");
        fs::create_dir(&target)?;
        let (mut mounted, mut unmounted) = (Vec::new(), Vec::new());
        for _ in 0..PROGRAMS {
            mounted.push(timed(Command::new("mount").arg("--bind").arg(self.pool().join("v")).arg(&target))?);
            unmounted.push(timed(Command::new("umount").arg(&target))?);
        }
        self.delete("v")?;
        let mounted = Figures::of(mounted)?;
        Ok(vec![
            Comparison::new(
                "csi: publish",
                Figures::of(there)?,
                "exec of mount --bind",
                mounted,
                Bar::Below(0.2),
            ),
            Comparison::new(
                "csi: unpublish",
                Figures::of(gone)?,
                "exec of umount",
                Figures::of(unmounted)?,
                Bar::Below(0.3),
            ),
        ])
    }

    fn callers(&self) -> Result<Vec<Comparison>> {
        let bare = Bare::new(&self.pool())?;
        let id = |turn: usize| format!("pvc-{turn:036}");
        let start = Instant::now();
        for turn in 0..TIMES {
            bare.create(&id(turn))?;
        }
        let alone = each(start.elapsed())?;
        let next = std::cell::Cell::new(0);
        let caller = async || -> Result<()> {
            let mut controller = ControllerClient::new(self.channel.clone());
            while next.get() < TIMES {
                let turn = next.replace(next.get() + 1);
                controller.create_volume(volume(&id(turn), MIB, mount())).await?;
            }
            Ok(())
        };
        let start = Instant::now();
        self.runtime.block_on(futures_util::future::try_join_all((0..CALLERS).map(|_| caller())))?;
        let together = each(start.elapsed())?;
        for turn in 0..TIMES {
            bare.delete(&id(turn))?;
            self.delete(&id(turn))?;
        }
        let status = fs::read_to_string(format!("/proc/{}/status", self.driver.id()))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("a peak")?;
        let peak: f64 = peak.trim().trim_end_matches(" kB").parse()?;
        let rss = Figures::one(peak / 1024.0);
        Ok(vec![
            Comparison::new(
                "csi: 64 callers, ms per create",
                together,
                "the bare calls, one thread",
                alone,
                Bar::Faster(2.0),
            ),
            Comparison::new("csi: 64 callers, RSS in MiB", rss, "-", rss, Bar::Below(MEMORY_MIB)),
        ])
    }

    fn stats(&self) -> Result<Vec<Comparison>> {
        let id = |turn: usize| format!("pvc-{turn:036}");
        let measured = || -> Result<Figures> {
            let mut node = NodeClient::new(self.channel.clone());
            let mut times = Vec::new();
            for _ in 0..TIMES {
                let volume_path = self.target(&id(0))?;
                let request =
                    NodeGetVolumeStatsRequest { volume_id: id(0), volume_path, ..Default::default() };
                let start = Instant::now();
                self.runtime.block_on(node.node_get_volume_stats(request))?;
                times.push(start.elapsed());
            }
            Figures::of(times)
        };
        self.create(volume(&id(0), MIB, mount()))?;
        self.publish(&id(0))?;
        let one = measured()?;
        for turn in 1..TIMES {
            self.create(volume(&id(turn), MIB, mount()))?;
            self.publish(&id(turn))?;
        }
        let many = measured()?;
        for turn in 0..TIMES {
            self.unpublish(&id(turn))?;
            self.delete(&id(turn))?;
        }
        Ok(vec![Comparison::new(
            "csi: stats with 1000 mounts",
            many,
            "ours, 1 mount",
            one,
            Bar::Slower(1.25),
        )])
    }

    fn clone_of_one_extent(&self) -> Result<Vec<Comparison>> {
        self.create(volume("golden", 4 * GIB, block()))?;
        let golden = self.pool().join(".hpp-csi/block/golden");
        run(Command::new("fallocate").args(["-l", "4GiB"]).arg(&golden))?;
        let file = File::options().write(true).open(&golden)?;
        let data = vec![7; 1 << 20];
        for at in 0..4096 {
            file.write_all_at(&data, at << 20)?;
        }
        file.sync_all()?;
        let (figures, copies, extents) = self.clones("golden", 4 * GIB, 20)?;
        ensure!(extents < 5, "the image has {extents} extents");
        self.delete("golden")?;
        // One to four, as the filesystem places the image: each adds its part to the time.
        let extents = Figures::one(f64::from(extents));
        Ok(vec![
            Comparison::new("csi: clone of 4 GiB", figures, "exec of cp --reflink", copies, Bar::Below(10.0)),
            Comparison::new("csi: the same, extents", extents, "the source's", extents, Bar::None),
        ])
    }

    fn clone_of_many_extents(&self) -> Result<Vec<Comparison>> {
        self.create(volume("holes", GIB, block()))?;
        let file = File::options().write(true).open(self.pool().join(".hpp-csi/block/holes"))?;
        for at in 0..100_000 {
            file.write_all_at(&[7; 4096], at * 8192)?;
        }
        file.sync_all()?;
        let (figures, copies, extents) = self.clones("holes", GIB, 3)?;
        self.delete("holes")?;
        let each = |figures: Figures| {
            let micros = |milliseconds: f64| milliseconds * 1e3 / f64::from(extents);
            Figures { least: micros(figures.least), median: micros(figures.median) }
        };
        Ok(vec![
            Comparison::new(
                &format!("csi: clone of {extents} extents"),
                figures,
                "exec of cp --reflink",
                copies,
                Bar::None,
            ),
            Comparison::new(
                "csi: the same, µs per extent",
                each(figures),
                "exec of cp --reflink",
                each(copies),
                Bar::None,
            ),
        ])
    }

    /// Clones a block volume, in turn with `cp`; nothing may be copied. Gives the figures of both and the image's extents.
    fn clones(&self, source: &str, bytes: i64, times: usize) -> Result<(Figures, Figures, u32)> {
        let folder = self.pool().join(".hpp-csi/block");
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut extents = 0;
        for turn in 0..times {
            let request = volume("clone", bytes, block());
            let kind = Type::Volume(VolumeSource { volume_id: source.into() });
            let content = Some(VolumeContentSource { r#type: Some(kind) });
            let before = self.free()?;
            ours.push(self.create(CreateVolumeRequest { volume_content_source: content, ..request })?);
            let taken = before.saturating_sub(self.free()?);
            let seen = run(Command::new("filefrag").arg("-v").arg(folder.join("clone")))?;
            // Lines of extents, and only those, have ranges in them.
            let all = seen.lines().filter(|line| line.contains(".."));
            let shared = all.clone().filter(|line| line.contains("shared")).count();
            ensure!(shared > 0 && shared == all.count(), "blocks are not shared: {seen}");
            extents = u32::try_from(shared)?;
            // A map of extents takes space of its own: 16 bytes each, and as much for reference counts.
            ensure!(taken <= (1 << 20) + u64::from(extents) * 64, "turn {turn}: {taken} bytes are taken");
            self.delete("clone")?;
            let copy = self.pool().join(".copy");
            theirs
                .push(timed(Command::new("cp").arg("--reflink=always").arg(folder.join(source)).arg(&copy))?);
            fs::remove_file(copy)?;
        }
        Ok((Figures::of(ours)?, Figures::of(theirs)?, extents))
    }

    fn free(&self) -> Result<u64> {
        let numbers = rustix::fs::statvfs(self.pool())?;
        Ok(numbers.f_bfree * numbers.f_frsize)
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.driver.kill().ok();
        self.driver.wait().ok();
        let table = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let points = table.lines().filter_map(|line| line.split(' ').nth(4));
        for point in points.filter(|point| Path::new(point).starts_with(self.work.path())).rev() {
            Command::new("umount").arg(point).status().ok();
        }
    }
}

/// The system calls of a create and of a delete, and nothing else, in a folder of their own on the same filesystem.
struct Bare {
    root: OwnedFd,
    records: OwnedFd,
    tmp: OwnedFd,
    trash: OwnedFd,
}

impl Bare {
    const SYNCS_OF_CREATE: f64 = 4.0;
    const SYNCS_OF_DELETE: f64 = 1.0;

    fn new(pool: &Path) -> Result<Self> {
        let open = |name: &str| -> Result<OwnedFd> {
            let path = pool.join(".bare").join(name);
            fs::create_dir_all(&path)?;
            Ok(openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY, Bits::empty())?)
        };
        Ok(Self { root: open("root")?, records: open("records")?, tmp: open("tmp")?, trash: open("trash")? })
    }

    fn create(&self, name: &str) -> Result<Duration> {
        let record = format!("{name}.json");
        let start = Instant::now();
        mkdirat(&self.tmp, name, Bits::from_raw_mode(0o755))?;
        fsync(openat(&self.tmp, name, OFlags::RDONLY | OFlags::DIRECTORY, Bits::empty())?)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let file = openat(&self.tmp, &record, flags, Bits::from_raw_mode(0o600))?;
        rustix::io::write(&file, &[b' '; 100])?;
        fsync(&file)?;
        renameat(&self.tmp, &record, &self.records, &record)?;
        fsync(&self.records)?;
        renameat_with(&self.tmp, name, &self.root, name, RenameFlags::NOREPLACE)?;
        fsync(&self.root)?;
        Ok(start.elapsed())
    }

    fn delete(&self, name: &str) -> Result<Duration> {
        let start = Instant::now();
        renameat(&self.root, name, &self.trash, name)?;
        fsync(&self.root)?;
        unlinkat(&self.records, format!("{name}.json"), AtFlags::empty())?;
        unlinkat(&self.trash, name, AtFlags::REMOVEDIR)?;
        Ok(start.elapsed())
    }
}

fn mount() -> VolumeCapability {
    capability(AccessType::Mount(MountVolume::default()))
}

fn block() -> VolumeCapability {
    capability(AccessType::Block(BlockVolume {}))
}

fn capability(access_type: AccessType) -> VolumeCapability {
    let mode = AccessMode { mode: Mode::SingleNodeWriter.into() };
    VolumeCapability { access_mode: Some(mode), access_type: Some(access_type) }
}

fn volume(name: &str, bytes: i64, capability: VolumeCapability) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        volume_capabilities: vec![capability],
        ..Default::default()
    }
}

/// Milliseconds of each of `TIMES` that took `all`.
fn each(all: Duration) -> Result<Figures> {
    Ok(Figures::one(all.as_secs_f64() * 1e3 / f64::from(u32::try_from(TIMES)?)))
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

fn run(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}; make deps installs it"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

/// How long a program takes.
fn timed(command: &mut Command) -> Result<Duration> {
    let start = Instant::now();
    run(command)?;
    Ok(start.elapsed())
}
