//! The importer in a guest whose power is cut at any moment: data that an import has reported as done survives, and the
//! import resumes. Not here: killed processes (`killed.rs`).
//!
//! ```text
//!  guest (TCG): importer ─► ext4 or XFS ─► virtio-blk ─► QEMU ─► nbdkit, write-back cache ─► file
//!                  ▲ HTTP, slow                                  flushed data only ──────────►
//! ```
//!
//! QEMU and nbdkit are killed. The guest's page cache is lost with QEMU; what the guest wrote and did not flush is lost
//! with nbdkit, which hands writes on only on a flush, as a disk with a volatile cache does.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use guests::{Console, Guest, Killed, Tree};
use places::run;

use crate::support::crash::{Random, Server, disk};
use crate::support::{MIB, count, names};

const SEED: u64 = 0x0ff0_0ff0_0000_0001;
/// How long the guest may take for anything; TCG on a busy machine is slow.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The guest.
fn guest(folder: &Path) -> Guest {
    let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/support/crash_init");
    let tree = Tree::new(folder, &["data"], "sh mount modprobe sleep cat ip", &init);
    tree.program(Path::new(env!("CARGO_BIN_EXE_importer")), Path::new("bin/importer"));
    tree.modules(&["virtio_pci", "virtio_blk", "virtio_net", "ext4", "xfs"]);
    tree.pack()
}

/// A running guest; dropping it cuts the power.
struct Machine {
    // QEMU first: a flush that reaches it is not lost any more.
    console: Console,
    _cache: Killed,
}

impl Machine {
    fn start(guest: &Guest, disk: &Path, fs: &str, url: &str) -> Self {
        let socket = disk.with_extension("socket");
        drop(fs::remove_file(&socket));
        let cache = Command::new("nbdkit")
            .args(["--foreground", "--exit-with-parent", "--filter=cache", "--unix"])
            .arg(&socket)
            .args(["file", disk.to_str().unwrap(), "cache=writeback"])
            .env("TMPDIR", disk.parent().unwrap())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        let cache = Killed(cache.unwrap_or_else(|e| panic!("nbdkit cannot be run ({e}): run make deps")));
        let begin = Instant::now();
        while !socket.exists() {
            assert!(begin.elapsed() < TIMEOUT, "nbdkit does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        let blockdev = format!("driver=nbd,node-name=d,server.type=unix,server.path={}", socket.display());
        let mut qemu = guest.command(512, &format!("fs={fs} url={url}"));
        qemu.args(["-blockdev", &blockdev, "-device", "virtio-blk-pci,drive=d,write-cache=on"]);
        qemu.args(["-netdev", "user,id=n", "-device", "virtio-net-pci,netdev=n,romfile="]);
        Self { console: Console::start(&mut qemu), _cache: cache }
    }

    #[track_caller]
    fn expect(&mut self, text: &str, what: &str) -> String {
        let line = self.console.line(text, TIMEOUT);
        line.unwrap_or_else(|| panic!("{what}: no \"{text}\" in {:#?}", self.console.said))
    }
}

/// A filesystem in a file, mounted; undone when dropped.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(disk: &Path) -> Self {
        let folder = tempfile::tempdir().unwrap();
        run("mount", &["-o", "loop", disk.to_str().unwrap(), folder.path().to_str().unwrap()]);
        Self(folder)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(self.0.path()).status());
    }
}

/// Settings shared by all imports.
struct Setting<'a> {
    guest: &'a Guest,
    server: &'a Server,
    /// The disk.
    wanted: &'a [u8],
}

/// One import and where it is cut off: each cut is in a part of its own of the `wire` bytes, of `of` equal parts.
struct Row<'a> {
    name: &'a str,
    fs: &'a str,
    wire: u64,
    of: u64,
    parts: &'a [u64],
}

/// Imports in guests that are cut off; gives the bytes that the last one went on with, and a line for people.
fn cut(setting: &Setting<'_>, row: &Row<'_>, seed: u64) -> (u64, String) {
    let Setting { guest, server, wanted } = *setting;
    let Row { name, fs, wire, of, parts } = *row;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk");
    fs::File::create(&path).unwrap().set_len(400 * MIB).unwrap();
    match fs {
        "xfs" => run("mkfs.xfs", &["-q", path.to_str().unwrap()]),
        _ => run("mkfs.ext4", &["-q", "-F", path.to_str().unwrap()]),
    };
    // Slirp gives the guest our loopback as this address.
    let url = server.url(&format!("/{name}")).replace("127.0.0.1", "10.0.2.2");
    let mut random = Random(seed);
    let mut what = format!("{name} on {fs}, seed {seed:#x}");
    server.take_sent();
    let mut wasted = 0;
    for part in parts {
        // The moment is given in bytes, since the guest's pace is not known: anywhere in one part of `of`.
        let share = wire / of;
        let moment = share * part + random.next() % share;
        what += &format!(", cut after {moment} bytes");
        let mut machine = Machine::start(guest, &path, fs, &url);
        machine.expect("guest: importing", &what);
        let begin = Instant::now();
        while server.sent() < moment
            && machine.console.line("guest: exit", Duration::from_millis(5)).is_none()
        {
            assert!(begin.elapsed() < TIMEOUT, "{what}: {:#?}", machine.console.said);
        }
        std::thread::sleep(Duration::from_millis(random.next() % 300));
        wasted += 1;
    }
    let mut resumed = 0;
    let begin = Instant::now();
    let fetched = server.take_sent();
    {
        let mut machine = Machine::start(guest, &path, fs, &url);
        machine.expect("guest: importing", &what);
        let exit = machine.expect("guest: exit", &what);
        assert!(exit.contains("exit 0") || exit.contains("exit 7"), "{what}: {:#?}", machine.console.said);
        for line in &machine.console.said {
            if let Some((_, rest)) = line.split_once("\"bytes_resumed\":") {
                resumed = rest.split(',').next().unwrap().parse::<u64>().unwrap();
            }
        }
        // The power goes in the moment in which the import reports its end.
    }
    let last = server.take_sent();
    let mounted = Mounted::new(&path);
    let found = fs::read(mounted.0.path().join("disk.img")).unwrap();
    assert!(found == wanted, "{what}: wrong bytes");
    let left: Vec<_> = names(mounted.0.path()).into_iter().filter(|name| name != "lost+found").collect();
    assert_eq!(left, ["disk.img"], "{what}");
    let line = format!(
        "power cut: {name} on {fs}: {wasted} cuts, then done in {:.1} s; {} of {} MiB were there already; {} MiB fetched before, {} MiB by the last run",
        begin.elapsed().as_secs_f64(),
        resumed / MIB,
        wanted.len() as u64 / MIB,
        fetched / MIB,
        last / MIB,
    );
    (resumed, line)
}

#[test]
fn imports_survive_the_power() {
    let bytes = disk(48, SEED);
    let folder = tempfile::tempdir().unwrap();
    let guest = guest(folder.path());
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("raw"), &bytes).unwrap();
    run("qemu-img", &["convert", "-q", "-f", "raw", "-O", "qcow2", "-c", &path("raw"), &path("qcow2")]);
    let files = ["raw", "qcow2"].map(|name| (format!("/{name}"), Arc::new(fs::read(path(name)).unwrap())));
    let server = Server::start(files.to_vec(), 8e6);
    let setting = Setting { guest: &guest, server: &server, wanted: &bytes };
    // Two cuts, or ten on request; each in a part of the image of its own.
    let rows: &[(&str, &str, u64, &[u64])] = match count(2, 10) {
        2 => &[("qcow2", "ext4", 2, &[0]), ("raw", "xfs", 2, &[1])],
        _ => &[
            ("raw", "ext4", 4, &[0, 1, 3]),
            ("qcow2", "ext4", 3, &[1, 2]),
            ("raw", "xfs", 3, &[0, 2]),
            ("qcow2", "xfs", 3, &[0, 1, 2]),
        ],
    };
    let (mut cuts, mut resumed) = (0, 0);
    for (index, &(name, fs, of, parts)) in rows.iter().enumerate() {
        let wire = files.iter().find(|(file, _)| file.ends_with(name)).unwrap().1.len() as u64;
        let row = Row { name, fs, wire, of, parts };
        let (went_on, line) = cut(&setting, &row, SEED + index as u64);
        println!("{line}");
        cuts += parts.len();
        resumed += went_on;
    }
    println!("power cut: {cuts} cuts in {} imports, all right", rows.len());
    assert!(resumed > 0, "no import went on with what it had");
}
