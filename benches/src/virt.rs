//! The launcher compared with libvirt's own daemons, each as it runs in a guest's pod: the time from its start to a running
//! guest, its memory then, and its activity while nothing happens. And many guests, compared with one libvirtd that runs
//! already, as it does on a machine without pods.
//!
//! ```text
//!  a disk of one boot sector ─► ours: virt-launcher, capabilities known │ theirs: virtlogd + libvirtd, known or not │ bare QEMU
//!  many of them              ─► ours: a virt-launcher for each          │ theirs: virsh create for each, one libvirtd
//! ```
//!
//! The daemons get folders of their own in a mount namespace of their own. Guests run under TCG, on every machine. Theirs
//! have the same domain, except for the line in ours that only shortens libvirt's start. Needs root.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use api::launch::Launch;
use api::launcher::Request;
use guest::Client;
use serde_json::json;

use crate::compare::{Bar, Comparison, Figures};

/// The rows' names, in the order of the table.
pub const ROWS: &[&str] = &[
    "virt: start",
    "virt: private memory, MiB",
    "virt: idle CPU, % of a core",
    "virt: 50 guests in turn",
    "virt: 10 guests at once",
];

/// How often what is short is done, and what takes seconds.
const TIMES: usize = 20;
const FEW: usize = 3;
/// How long an idle launcher is watched.
const IDLE: Duration = Duration::from_secs(20);
const TIMEOUT: Duration = Duration::from_secs(60);
/// Guests that are started one after the other, and at once.
const IN_TURN: usize = 50;
const AT_ONCE: usize = 10;
/// How often those at once are.
const ROUNDS: usize = 5;

/// Code of a guest's first processor: `mov dx, 0x3f8; mov al, 'K'; out dx, al; cli; hlt; jmp` back.
const CODE: &[u8] = &[0xba, 0xf8, 0x03, 0xb0, b'K', 0xee, 0xfa, 0xf4, 0xeb, 0xfd];

/// libvirt's daemons in a mount namespace; `$1` is a folder with what they keep, their configuration and the domain, if it
/// has one. What runs ends with them. The users' files are those of the machine with libvirt's own user, which must be
/// there before its configuration selects another one.
const DAEMONS: &str = r#"
set -e
mkdir -p /run/libvirt /var/lib/libvirt /var/cache/libvirt /etc/libvirt
for file in passwd group; do
    cp /etc/$file "$1/$file"
    [ $file = group ] && rest= || rest=64055:libvirt:/var/lib/libvirt:/usr/sbin/nologin
    grep -q ^libvirt-qemu: "$1/$file" || echo "libvirt-qemu:x:64055:$rest" >> "$1/$file"
    mount --bind "$1/$file" /etc/$file
done
mount --bind "$1/run" /run/libvirt
mount --bind "$1/lib" /var/lib/libvirt
mount --bind "$1/cache" /var/cache/libvirt
mount --bind "$1/etc" /etc/libvirt
rm -f /run/libvirt/libvirt-sock
echo go
virtlogd --pid-file /run/libvirt/virtlogd.pid & logger=$!
libvirtd -f "$1/etc/libvirtd.conf" --pid-file /run/libvirt/libvirtd.pid & daemon=$!
end() {
    for name in $(virsh -c qemu:///system list --name 2>/dev/null); do
        virsh -c qemu:///system destroy "$name" >/dev/null 2>&1 || true
    done
    kill $daemon $logger 2>/dev/null
    wait
}
trap end EXIT
while [ ! -S /run/libvirt/libvirt-sock ]; do kill -0 $daemon; sleep 0.002; done
[ ! -e "$1/domain.xml" ] || virsh -c qemu:///system create "$1/domain.xml" >/dev/null
echo "runs $daemon $logger"
read -r _ || true
"#;

/// Stopped when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// A launcher with a guest; both end when it is dropped.
struct Guest {
    launcher: Process,
    client: Client,
    folder: tempfile::TempDir,
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.client.call(Request::Kill).ok();
        let until = Instant::now() + TIMEOUT;
        while Instant::now() < until && matches!(self.launcher.0.try_wait(), Ok(None)) {
            sleep(Duration::from_millis(20));
        }
    }
}

/// State shared by all rows.
pub struct Bench {
    launcher: PathBuf,
    work: tempfile::TempDir,
}

impl Bench {
    /// A bench of the program `launcher`.
    ///
    /// # Errors
    /// There is no such program, or no libvirt.
    pub fn new(launcher: &Path) -> Result<Self> {
        ensure!(launcher.is_file(), "{} is not there: make builds it", launcher.display());
        let work = tempfile::tempdir()?;
        run(Command::new("chmod").arg("755").arg(work.path()))?;
        let bench = Self { launcher: launcher.to_owned(), work };
        let mut disk = vec![0; 1 << 20];
        disk[..CODE.len()].copy_from_slice(CODE);
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
        // A disk is one guest's.
        for number in 0..IN_TURN {
            fs::write(bench.disk(number), &disk)?;
            run(Command::new("chmod").arg("666").arg(bench.disk(number)))?;
        }
        run(Command::new(launcher).arg("capabilities").arg(bench.work.path().join("capabilities")))?;
        Ok(bench)
    }

    fn disk(&self, number: usize) -> PathBuf {
        self.work.path().join(format!("disk{number}.img"))
    }

    /// Measures a row.
    ///
    /// # Errors
    /// A guest does not start.
    pub fn row(&self, name: &str) -> Result<Vec<Comparison>> {
        match name {
            "virt: start" => self.starts(name),
            "virt: private memory, MiB" => self.memory(name),
            "virt: idle CPU, % of a core" => self.idle(name),
            "virt: 50 guests in turn" => self.in_turn(name),
            "virt: 10 guests at once" => self.at_once(name),
            other => bail!("{other} is no row"),
        }
    }

    fn starts(&self, row: &str) -> Result<Vec<Comparison>> {
        let (mut ours, mut bare, mut known, mut empty) = (vec![], vec![], vec![], vec![]);
        let daemons = tempfile::tempdir()?;
        for _ in 0..FEW {
            fs::remove_dir_all(daemons.path().join("cache")).ok();
            empty.push(self.daemons(daemons.path())?.0);
        }
        for _ in 0..TIMES {
            bare.push(self.bare()?);
            ours.push(self.launch(0)?.0);
            known.push(self.daemons(daemons.path())?.0);
        }
        let ours = Figures::of(ours)?;
        Ok(vec![
            Comparison::new(row, ours, "QEMU to its QMP greeting", Figures::of(bare)?, Bar::None),
            Comparison::new(row, ours, "(at most 300 ms)", ours, Bar::Below(300.0)),
            Comparison::new(row, ours, "libvirtd, same cache", Figures::of(known)?, Bar::Faster(1.0)),
            Comparison::new(row, ours, "libvirtd, empty cache", Figures::of(empty)?, Bar::Faster(5.0)),
        ])
    }

    fn memory(&self, row: &str) -> Result<Vec<Comparison>> {
        let daemons = tempfile::tempdir()?;
        // Once for the capabilities: to find them out takes memory, too.
        drop(self.daemons(daemons.path())?);
        let theirs = {
            let (_, daemons, ids) = self.daemons(daemons.path())?;
            sleep(Duration::from_secs(4));
            let sum = private(&ids)?;
            drop(daemons);
            sum
        };
        let (_, guest) = self.launch(0)?;
        sleep(Duration::from_secs(4));
        let outer = guest.launcher.0.id();
        let ours = private(&[outer, worker(outer)?])?;
        let first = private(&[outer])?;
        Ok(vec![
            Comparison::new(row, Figures::one(ours), "(at most 12)", Figures::one(ours), Bar::Below(12.0)),
            Comparison::new(
                row,
                Figures::one(ours),
                "libvirtd + virtlogd",
                Figures::one(theirs),
                Bar::Slower(1.0),
            ),
            Comparison::new(
                "virt: first process alone, MiB",
                Figures::one(first),
                "(at most 1)",
                Figures::one(first),
                Bar::Below(1.0),
            ),
        ])
    }

    fn idle(&self, row: &str) -> Result<Vec<Comparison>> {
        let (_, guest) = self.launch(0)?;
        sleep(Duration::from_secs(4));
        let outer = guest.launcher.0.id();
        let both = [outer, worker(outer)?];
        let before = cpu(&both)?;
        sleep(IDLE);
        let used = cpu(&both)?.saturating_sub(before);
        let share = Figures::one(used.as_secs_f64() / IDLE.as_secs_f64() * 100.0);
        Ok(vec![Comparison::new(row, share, "(at most 0.1)", share, Bar::Below(0.1))])
    }

    /// One guest after the other, all of which stay.
    fn in_turn(&self, row: &str) -> Result<Vec<Comparison>> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        let mut guests = Vec::new();
        for number in 0..IN_TURN {
            let (took, guest) = self.first_byte(number)?;
            ours.push(took);
            guests.push(guest);
        }
        drop(guests);
        let libvirtd = self.serving()?;
        for number in 0..IN_TURN {
            let domain = self.prepared(libvirtd.folder(), number)?;
            let begin = Instant::now();
            created(libvirtd.folder(), number, &domain)?;
            theirs.push(begin.elapsed());
        }
        let beside = "virsh create, libvirtd runs";
        Ok(vec![Comparison::new(row, Figures::of(ours)?, beside, Figures::of(theirs)?, Bar::Slower(1.0))])
    }

    /// Until the last of those that are started at once has written; no launcher knows of the others.
    fn at_once(&self, row: &str) -> Result<Vec<Comparison>> {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let (took, guests) = together(|number| self.first_byte(number).map(|(_, guest)| guest))?;
            ours.push(took);
            drop(guests);
            let libvirtd = self.serving()?;
            let folder = libvirtd.folder();
            let domains = (0..AT_ONCE).map(|number| self.prepared(folder, number));
            let domains = domains.collect::<Result<Vec<PathBuf>>>()?;
            theirs.push(together(|number| created(folder, number, &domains[number]))?.0);
        }
        let beside = "virsh create, libvirtd runs";
        Ok(vec![Comparison::new(row, Figures::of(ours)?, beside, Figures::of(theirs)?, Bar::Slower(1.0))])
    }

    /// From the launcher's start to the first byte that the guest writes to its serial port.
    fn first_byte(&self, number: usize) -> Result<(Duration, Guest)> {
        let begin = Instant::now();
        let (_, guest) = self.launch(number)?;
        written(&guest.folder.path().join("serial0.log"))?;
        Ok((begin.elapsed(), guest))
    }

    /// libvirt's daemons, which run, and know what QEMU can do.
    fn serving(&self) -> Result<Serving> {
        let folder = tempfile::tempdir()?;
        // One guest to know it by, and again without one.
        drop(self.daemons(folder.path())?);
        fs::remove_file(folder.path().join("domain.xml"))?;
        let (_, daemons, _) = start(folder.path())?;
        Ok(Serving { _daemons: daemons, folder })
    }

    /// Makes what libvirt's daemons need for this guest. Answers its domain's file.
    fn prepared(&self, folder: &Path, number: usize) -> Result<PathBuf> {
        let place = folder.join(format!("lib/qemu/{number}"));
        fs::create_dir_all(&place)?;
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777))?;
        let file = folder.join(format!("domain{number}.xml"));
        fs::write(&file, self.domain(Path::new(&format!("/var/lib/libvirt/qemu/{number}")), number)?)?;
        Ok(file)
    }

    /// From the launcher's start to a guest that runs.
    fn launch(&self, number: usize) -> Result<(Duration, Guest)> {
        let folder = tempfile::tempdir()?;
        let document = self.document(folder.path(), number)?;
        let begin = Instant::now();
        let launcher = Command::new(&self.launcher)
            .args(["run", "--capabilities"])
            .arg(self.work.path().join("capabilities"))
            .arg(folder.path())
            .stdin(Stdio::null())
            .spawn()?;
        let launcher = Process(launcher);
        let mut client = loop {
            match Client::connect(folder.path()) {
                Ok(client) => break client,
                Err(_) if begin.elapsed() < TIMEOUT => sleep(Duration::from_micros(500)),
                Err(error) => return Err(error).context("no socket"),
            }
        };
        client.launch(&document)?;
        Ok((begin.elapsed(), Guest { launcher, client, folder }))
    }

    fn document(&self, folder: &Path, number: usize) -> Result<Launch> {
        let chassis =
            json!({"manufacturer": null, "version": null, "serial": null, "asset": null, "sku": null});
        let document = json!({
            "version": 1, "name": format!("bench{number}"), "namespace": "default",
            "uid": format!("6b4f2c1e-0000-4000-8000-0000000a{number:04x}"),
            "folder": folder, "emulator": "/usr/bin/qemu-system-x86_64", "accelerator": "tcg", "machine": "q35",
            "smbios": {"uuid": format!("6b4f2c1e-0000-4000-8000-0000000b{number:04x}"), "serial": null,
                "chassis": chassis},
            "firmware": {"bios": {"serial": false}},
            "cpu": {"sockets": 1, "maxSockets": 1, "cores": 1, "threads": 1, "model": "maximum", "features": []},
            "memory": {"guest": 64 << 20, "maxGuest": 64 << 20, "hugePage": null},
            "clock": {"utc": []},
            "features": {"acpi": true, "apic": true, "apicEoi": null, "smm": null, "kvmHidden": false,
                "pvspinlock": null, "hyperv": null},
            "ioThreads": 0,
            "disks": [{"name": "root", "device": "disk", "bus": "sata",
                "media": {"storage": {"path": self.disk(number), "block": false, "format": "raw"}},
                "readOnly": false, "shareable": false, "cache": "writeback", "io": null, "discard": false,
                "errorPolicy": "stop", "serial": null, "bootOrder": 1, "ioThread": null, "queues": null,
                "blockSizes": null, "tray": null}],
            "interfaces": [],
            "devices": {"video": "vga", "serial": {"log": folder.join("serial0.log")}, "inputs": [], "guestAgent": true,
                "balloon": {"statisticsPeriod": 10}, "rng": false, "sound": null, "watchdog": null, "tpm": null,
                "panic": [], "scsiController": false, "hotplug": true, "transitional": false},
            "layout": {"ports": 0, "slots": {}, "units": {}},
            "graceSeconds": 0, "paused": false, "onReboot": "restart",
        });
        Ok(Launch::read(document.to_string().as_bytes())?)
    }

    /// The domain of the same guest, written plainly.
    fn domain(&self, folder: &Path, number: usize) -> Result<String> {
        const SPARED: (&str, &str) = ("<qemu:capabilities>", "</qemu:capabilities>");
        let xml = virt_launcher::domain(&self.document(folder, number)?)?.xml;
        let (before, rest) = xml.split_once(SPARED.0).context("nothing is spared")?;
        let (_, after) = rest.split_once(SPARED.1).context("an element without an end")?;
        Ok(format!("{before}{after}"))
    }

    /// From QEMU's start to its monitor's greeting.
    fn bare(&self) -> Result<Duration> {
        let begin = Instant::now();
        let child = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg", "-machine", "q35", "-m", "64", "-nodefaults", "-display", "none"])
            .args(["-device", "VGA", "-qmp", "stdio", "-drive"])
            .arg(format!("file={},format=raw", self.disk(0).display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut qemu = Process(child);
        let mut line = String::new();
        BufReader::new(qemu.0.stdout.take().context("standard output")?).read_line(&mut line)?;
        ensure!(line.contains("QMP"), "QEMU says {line}");
        Ok(begin.elapsed())
    }

    /// From the start of libvirt's daemons to the same guest, and the daemons' ids. What they know of QEMU stays in `folder`.
    fn daemons(&self, folder: &Path) -> Result<(Duration, Daemons, Vec<u32>)> {
        for name in ["run", "lib", "cache", "etc"] {
            fs::create_dir_all(folder.join(name))?;
        }
        run(Command::new("chmod").arg("755").arg(folder))?;
        fs::write(folder.join("etc/libvirtd.conf"), "auth_unix_rw = \"none\"\nauth_unix_ro = \"none\"\n")?;
        fs::write(
            folder.join("etc/qemu.conf"),
            "cgroup_controllers = []\nnamespaces = []\nsecurity_driver = \"none\"\nuser = \"root\"\ngroup = \"root\"\n",
        )?;
        // The same domain, from the same document, with sockets where the daemon's QEMU may make them.
        let place = folder.join("lib/qemu");
        fs::create_dir_all(&place)?;
        run(Command::new("chmod").arg("777").arg(&place))?;
        fs::write(folder.join("domain.xml"), self.domain(Path::new("/var/lib/libvirt/qemu"), 0)?)?;
        start(folder)
    }
}

/// Starts libvirt's daemons on what a folder has. Answers how long it took until they, and the folder's domain, if it has
/// one, ran, and their ids.
fn start(folder: &Path) -> Result<(Duration, Daemons, Vec<u32>)> {
    let child = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "bash", "-c", DAEMONS, "bash"])
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut child = Daemons(child);
    let mut lines = BufReader::new(child.0.stdout.take().context("standard output")?).lines();
    let first = lines.next().transpose()?;
    let begin = Instant::now();
    let second = lines.next().transpose()?.unwrap_or_default();
    let took = begin.elapsed();
    let ids: Vec<u32> = second.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    if first.as_deref() != Some("go") || ids.len() != 2 {
        drop(child.0.stdin.take());
        let mut said = String::new();
        if let Some(mut stderr) = child.0.stderr.take() {
            stderr.read_to_string(&mut said)?;
        }
        bail!("libvirt's daemons do not run a guest: {}", said.trim());
    }
    Ok((took, child, ids))
}

/// Has libvirt's daemon, which runs, create a domain, and waits for the first byte that the guest writes to its serial port.
fn created(folder: &Path, number: usize, domain: &Path) -> Result<()> {
    let socket = folder.join("run/libvirt-sock");
    let uri = format!("qemu+unix:///system?socket={}", socket.display());
    run(Command::new("virsh").args(["-c", &uri, "create"]).arg(domain))?;
    written(&folder.join(format!("lib/qemu/{number}/serial0.log")))
}

/// Waits until a file is not empty.
fn written(file: &Path) -> Result<()> {
    let until = Instant::now() + TIMEOUT;
    while !fs::metadata(file).is_ok_and(|facts| facts.len() > 0) {
        ensure!(Instant::now() < until, "{}: nothing in {TIMEOUT:?}", file.display());
        sleep(Duration::from_micros(500));
    }
    Ok(())
}

/// Runs a function for each of the guests that are started at once, and returns the total time.
fn together<T: Send>(each: impl Fn(usize) -> Result<T> + Sync) -> Result<(Duration, Vec<T>)> {
    let begin = Instant::now();
    let each = &each;
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|number| scope.spawn(move || each(number))).collect();
        let joined = threads.into_iter().map(|thread| thread.join().ok().context("a thread panicked")?);
        joined.collect::<Result<Vec<T>>>()
    })?;
    Ok((begin.elapsed(), all))
}

/// libvirt's daemons on a folder of their own.
struct Serving {
    _daemons: Daemons,
    folder: tempfile::TempDir,
}

impl Serving {
    fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Ends with its standard input.
struct Daemons(Child);

impl Drop for Daemons {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().ok();
    }
}

/// The worker below a launcher's first process.
fn worker(outer: u32) -> Result<u32> {
    let children = fs::read_to_string(format!("/proc/{outer}/task/{outer}/children"))?;
    let ids = children.split_whitespace().filter_map(|word| word.parse().ok());
    let is_worker = |id: &u32| {
        fs::read_to_string(format!("/proc/{id}/comm")).is_ok_and(|name| name.trim() == "launcher-worker")
    };
    ids.into_iter().find(is_worker).context("no worker")
}

/// Private memory in MiB (proc_pid_smaps_rollup).
fn private(processes: &[u32]) -> Result<f64> {
    let mut kib = 0;
    for process in processes {
        let roll = fs::read_to_string(format!("/proc/{process}/smaps_rollup"))?;
        for line in roll.lines().filter(|line| line.starts_with("Private_")) {
            kib += line.split_whitespace().nth(1).context("a number")?.parse::<u32>()?;
        }
    }
    Ok(f64::from(kib) / 1024.0)
}

/// CPU time of processes (proc_pid_schedstat: nanoseconds on a processor, of each thread).
fn cpu(processes: &[u32]) -> Result<Duration> {
    let mut sum = Duration::ZERO;
    for process in processes {
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let text = fs::read_to_string(thread?.path().join("schedstat"))?;
            sum += Duration::from_nanos(text.split_whitespace().next().context("a number")?.parse()?);
        }
    }
    Ok(sum)
}

fn run(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("{command:?}; make deps installs it"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output.stdout)
}
