//! The importer in a guest whose power is cut at any moment: what an import has called done survives, and the import
//! goes on. Not here: killed processes (`killed.rs`).
//!
//! ```text
//!  guest (TCG): importer ─► ext4 or XFS ─► virtio-blk ─► QEMU ─► nbdkit, write-back cache ─► file
//!                  ▲ HTTP, slow                                  flushed data only ──────────►
//! ```
//!
//! QEMU and nbdkit are killed. The guest's page cache is lost with QEMU; what the guest wrote and did not flush is lost
//! with nbdkit, whose cache hands writes on only when it is told to flush, as a disk with a volatile cache.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use support::crash::{Random, Server, disk};
use support::places::run;
use support::{MIB, count, names};

const SEED: u64 = 0x0ff0_0ff0_0000_0001;
/// How long the guest may take for anything; TCG on a busy machine is slow.
const PATIENCE: Duration = Duration::from_secs(90);

/// Kernel and initramfs of the guest.
struct Guest {
    kernel: PathBuf,
    initramfs: PathBuf,
    _folder: tempfile::TempDir,
}

/// Packs busybox, the importer with its libraries, and the drivers.
fn guest() -> Guest {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support");
    let tree = PathBuf::from(run(here.join("crash_kernel").to_str().unwrap(), &[]).trim());
    let release = names(&tree.join("lib/modules")).remove(0);
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    for name in ["bin", "proc", "sys", "dev", "data", "lib/modules"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    let copy = |from: &Path, to: &str| {
        let to = root.join(to.trim_start_matches('/'));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(from, to).unwrap_or_else(|e| panic!("{}: {e}: run make deps", from.display()));
    };
    copy(Path::new("/bin/busybox"), "bin/busybox");
    for name in ["sh", "mount", "modprobe", "sleep", "cat", "ip"] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    symlink("bin", root.join("sbin")).unwrap();
    copy(&here.join("crash_init"), "init");
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755)).unwrap();
    let program = env!("CARGO_BIN_EXE_importer");
    run("strip", &["-o", root.join("bin/importer").to_str().unwrap(), program]);
    // Of "libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x…)" and "/lib64/ld-linux-x86-64.so.2 (0x…)" the paths.
    for path in run("ldd", &[program]).split_whitespace().filter(|word| word.starts_with('/')) {
        copy(Path::new(path), path);
    }
    let modules = Path::new("lib/modules").join(&release);
    let dependencies = fs::read_to_string(tree.join(&modules).join("modules.dep")).unwrap();
    copy(&tree.join(&modules).join("modules.dep"), modules.join("modules.dep").to_str().unwrap());
    for driver in ["virtio_pci", "virtio_blk", "virtio_net", "ext4", "xfs"] {
        let file = format!("/{driver}.ko");
        let built_in = fs::read_to_string(tree.join(&modules).join("modules.builtin")).unwrap();
        let Some(line) =
            dependencies.lines().find(|l| l.split(':').next().is_some_and(|f| f.ends_with(&file)))
        else {
            assert!(built_in.lines().any(|line| line.ends_with(&file)), "the kernel has no {driver}");
            continue;
        };
        for name in line.split([':', ' ']).filter(|name| !name.is_empty()) {
            copy(&tree.join(&modules).join(name), modules.join(name).to_str().unwrap());
        }
    }
    let initramfs = folder.path().join("initramfs");
    let pack = "cd \"$0\" && find . | cpio --quiet -o -H newc -R 0:0 > \"$1\"";
    run("sh", &["-c", pack, root.to_str().unwrap(), initramfs.to_str().unwrap()]);
    Guest { kernel: tree.join(format!("boot/vmlinuz-{release}")), initramfs, _folder: folder }
}

/// A process that is killed, by its id, when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// A running guest; dropping it cuts the power.
struct Machine {
    // QEMU first: a flush it would be told of is not lost any more.
    _qemu: Killed,
    _cache: Killed,
    console: Receiver<String>,
    seen: Vec<String>,
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
            assert!(begin.elapsed() < PATIENCE, "nbdkit does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        let blockdev = format!("driver=nbd,node-name=d,server.type=unix,server.path={}", socket.display());
        let append = format!("mitigations=off quiet console=ttyS0 panic=-1 fs={fs} url={url}");
        let qemu = Command::new("qemu-system-x86_64")
            .args(["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "512", "-nodefaults"])
            .args(["-display", "none", "-no-reboot", "-serial", "stdio", "-blockdev", &blockdev])
            .args(["-device", "virtio-blk-pci,drive=d,write-cache=on", "-netdev", "user,id=n"])
            .args(["-device", "virtio-net-pci,netdev=n,romfile=", "-append", &append])
            .arg("-kernel")
            .arg(&guest.kernel)
            .arg("-initrd")
            .arg(&guest.initramfs)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn();
        let mut qemu = qemu.unwrap_or_else(|e| panic!("QEMU cannot be run ({e}): run make deps"));
        let out = qemu.stdout.take().unwrap();
        let (lines, console) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                if lines.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                    return;
                }
            }
        });
        Self { _qemu: Killed(qemu), _cache: cache, console, seen: Vec::new() }
    }

    /// Waits for a line of the console that holds `text`; `None` if there is none within `patience`.
    fn line(&mut self, text: &str, patience: Duration) -> Option<String> {
        let until = Instant::now() + patience;
        while let Ok(line) = self.console.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.seen.push(line.clone());
            if line.contains(text) {
                return Some(line);
            }
        }
        None
    }

    #[track_caller]
    fn expect(&mut self, text: &str, what: &str) -> String {
        self.line(text, PATIENCE).unwrap_or_else(|| panic!("{what}: no \"{text}\" in {:#?}", self.seen))
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

/// What all imports have in common.
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
        // The moment is told in bytes, since the guest's pace is not known: anywhere in one part of `of`.
        let share = wire / of;
        let moment = share * part + random.next() % share;
        what += &format!(", cut after {moment} bytes");
        let mut machine = Machine::start(guest, &path, fs, &url);
        machine.expect("guest: importing", &what);
        let begin = Instant::now();
        while server.sent() < moment && machine.line("guest: exit", Duration::from_millis(5)).is_none() {
            assert!(begin.elapsed() < PATIENCE, "{what}: {:#?}", machine.seen);
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
        assert!(exit.contains("exit 0") || exit.contains("exit 7"), "{what}: {:#?}", machine.seen);
        for line in &machine.seen {
            if let Some((_, rest)) = line.split_once("\"bytes_resumed\":") {
                resumed = rest.split(',').next().unwrap().parse::<u64>().unwrap();
            }
        }
        // The power goes in the moment in which the import says that it is done.
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
    let guest = guest();
    let bytes = disk(48, SEED);
    let folder = tempfile::tempdir().unwrap();
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
