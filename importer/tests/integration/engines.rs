//! How bytes get to the disk when something is refused: io_uring by a seccomp filter, locked memory by a limit, direct I/O
//! by the filesystem at opening or by the device at a write. The bytes are right, and the report and the metric match the
//! program's behaviour: strace is the judge, and for the page cache its remaining content.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use places::guest::Dice;
use places::{Loop, Mount, output, run, sys};

use crate::support::{self, MIB, assert_exit, text};

/// System calls of a run on its target.
#[derive(Debug, Default)]
struct Calls {
    /// `io_uring_setup` and `io_uring_enter` that the kernel took.
    ring: u64,
    /// Buffers were registered with the ring.
    registered: bool,
    /// Bytes written by `pwrite` through descriptors with O_DIRECT, and through others.
    direct: u64,
    cached: u64,
    /// Opening with O_DIRECT, and writing so, as the kernel answered.
    opened_direct: bool,
    refused_at_open: bool,
    refused_at_write: bool,
}

/// The result of a line of strace's: the number, or the error's name.
fn result(line: &str) -> Result<i64, &str> {
    let answer = line.rsplit_once(" = ").map_or("", |(_, answer)| answer);
    let mut words = answer.split([' ', '<']);
    let number = words.next().unwrap_or_default().parse::<i64>().unwrap_or(0);
    if number < 0 { Err(words.next().unwrap_or_default()) } else { Ok(number) }
}

impl Calls {
    /// Reads the files that `strace -ff -y -o PREFIX` wrote, one per thread.
    fn read(folder: &Path, target: &Path) -> Self {
        let mut lines = Vec::new();
        for name in support::names(folder).iter().filter(|name| name.starts_with("calls.")) {
            lines.extend(fs::read_to_string(folder.join(name)).unwrap().lines().map(str::to_owned));
        }
        let shown = format!("<{}", target.display());
        let mut calls = Self::default();
        let mut direct = BTreeSet::new();
        // Not O_DIRECTORY.
        for line in lines.iter().filter(|line| line.starts_with("open") && line.contains("O_DIRECT|")) {
            match result(line) {
                Ok(number) => {
                    calls.opened_direct = true;
                    direct.insert(number);
                }
                Err(_) => calls.refused_at_open = true,
            }
        }
        for line in &lines {
            if line.starts_with("io_uring_setup(") || line.starts_with("io_uring_enter(") {
                calls.ring += u64::from(result(line).is_ok());
            } else if line.starts_with("io_uring_register(") && line.contains("IORING_REGISTER_BUFFERS") {
                calls.registered = result(line).is_ok();
            } else if let Some(rest) = line.strip_prefix("pwrite64(").filter(|rest| rest.contains(&shown)) {
                let number: i64 = rest.split('<').next().unwrap().parse().unwrap();
                match (result(line), direct.contains(&number)) {
                    (Ok(bytes), true) => calls.direct += bytes.cast_unsigned(),
                    (Ok(bytes), false) => calls.cached += bytes.cast_unsigned(),
                    (Err("EINVAL"), true) => calls.refused_at_write = true,
                    (Err(errno), _) => assert!(matches!(errno, "EAGAIN" | "EINTR"), "{line}"),
                }
            }
        }
        calls
    }
}

/// A disk of runs of pages between zeroes, some of a single page, that ends in a lone sector.
fn disk(seed: u64) -> Vec<u8> {
    let mut dice = Dice(seed);
    let mut disk = vec![0; (6 * MIB + 512) as usize];
    // Two runs of one page make writes that are aligned to pages only.
    let mut at = 4096;
    let end = disk.len();
    while at < end {
        let pages = [1, 3, 16, 70][dice.next(4) as usize];
        let stop = (at + pages * 4096).min(end);
        let noise = dice.bytes(stop - at);
        disk[at..stop].copy_from_slice(&noise);
        at = stop + [1, 2, 5, 9][dice.next(4) as usize] * 4096;
    }
    disk[end - 512..].fill(0x5a);
    disk
}

/// The expected report.
struct Expected<'a> {
    /// How the engine's description starts.
    engine: &'static str,
    /// And what it gives as reasons.
    why: &'a [&'a str],
}

/// One import, traced; the metric is read while the last bytes are still missing.
fn judge(
    name: &str,
    expected: &Expected<'_>,
    target: &Path,
    more: &[&str],
    prepare: impl FnOnce(&mut Command),
) -> String {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    // A copy, as the build folder may be closed to others.
    let program = folder.path().join("importer");
    // By another process: a program that is open for writing here, when another test forks, cannot be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_importer")).arg(&program).status().unwrap();
    assert!(copied.success());
    let bytes = disk(name.len() as u64);
    let mut command = Command::new("strace");
    command.env_clear().env("PATH", std::env::var("PATH").unwrap()).current_dir(folder.path());
    command.args(["-ff", "-y", "-s", "0", "-o", "calls"]);
    command.args(["-e", "trace=open,openat,pwrite64,io_uring_setup,io_uring_enter,io_uring_register"]);
    command.arg(&program).args(["-", target.to_str().unwrap(), "--output", "json", "-v=1"]);
    command.args(["--metrics", "127.0.0.1:0", "--progress", "none"]).args(more);
    prepare(&mut command);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        command.spawn().unwrap_or_else(|e| panic!("strace cannot be run ({e}); `make deps` installs it"));
    // Its log, as it comes: where its metrics are served.
    let mut stderr = child.stderr.take().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let (mut log, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = stderr.read(&mut piece) {
            log.extend_from_slice(&piece[..n]);
            tell.send(text(&log)).ok();
        }
        text(&log)
    });
    let mut input = child.stdin.take().unwrap();
    let most = bytes.len() - (2 << 20);
    let fed = input.write_all(&bytes[..most]).and_then(|()| input.flush());
    let address = told.iter().find_map(|log| {
        let rest = log.split_once("serving metrics local=")?.1;
        rest.split_once(|c: char| c.is_whitespace()).map(|(address, _)| address.to_owned())
    });
    let metric = address.and_then(|address| written_metric(&address, 2 << 20, &mut child));
    fed.and_then(|()| input.write_all(&bytes[most..])).ok();
    drop(input);
    let mut stdout = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    let status = child.wait().unwrap();
    let log = reader.join().unwrap();
    assert!(status.success(), "{name}: {}{log}", text(&stdout));
    let told: serde_json::Value = serde_json::from_slice(&stdout).unwrap();
    let engine = told["engine"].as_str().unwrap().to_owned();

    // Before any reader.
    let cached = in_page_cache(target);
    // The bytes.
    let mut seen = Vec::new();
    File::open(target).unwrap().take(bytes.len() as u64).read_to_end(&mut seen).unwrap();
    assert!(seen == bytes, "{name}: the disk's bytes ({engine})");
    // The report.
    assert!(engine.starts_with(expected.engine), "{name}: {engine}");
    for why in expected.why {
        assert!(engine.contains(why), "{name}: {engine}");
    }
    // The system calls.
    let calls = Calls::read(folder.path(), target);
    let ring = engine.starts_with("io_uring");
    let direct = engine.contains(", direct");
    let written = told["bytes_written"].as_u64().unwrap();
    if ring {
        assert!(calls.ring > 1, "{name}: says {engine}, and makes no ring: {calls:?}");
        assert_eq!(engine.contains(", registered"), calls.registered, "{name}: {engine}: {calls:?}");
        assert!(calls.direct + calls.cached < written / 2, "{name}: {engine}: {calls:?}");
    } else {
        assert_eq!(calls.ring, 0, "{name}: says {engine}, and uses a ring: {calls:?}");
        // A device is given its zeroes as well, where they fill no sector.
        let all = calls.direct + calls.cached;
        let zeroes = if target.is_file() { 0 } else { written / 10 };
        assert!((written..=written + zeroes).contains(&all), "{name}: {engine}: {written}, {calls:?}");
        assert_eq!(direct, calls.direct > calls.cached, "{name}: {engine}: {calls:?}");
    }
    assert_eq!(engine.contains("refused at opening"), calls.refused_at_open, "{name}: {engine}: {calls:?}");
    assert_eq!(
        engine.contains("refused at the write"),
        calls.refused_at_write,
        "{name}: {engine}: {calls:?}"
    );
    assert!(!direct || calls.opened_direct, "{name}: {engine}: {calls:?}");
    if let Some(cached) = cached {
        let right = if direct { cached <= 64 << 10 } else { cached > MIB };
        assert!(right, "{name}: {engine}, and {cached} bytes are in the page cache");
    }
    let metric = metric.unwrap_or_else(|| panic!("{name}: no metrics: {log}"));
    let kind = if ring { "io_uring" } else { "pwrite" };
    let line = format!("ferrovirt_import_engine_info{{engine=\"{kind}\",direct=\"{direct}\"}} 1");
    assert!(metric.contains(&line), "{name}: the metric is not \"{line}\" midway:\n{metric}");
    println!(
        "{name}: {engine}; ring calls {}, pwrite direct {}, cached {}",
        calls.ring, calls.direct, calls.cached
    );
    engine
}

/// The metrics page once `bytes` are written; `None` if the program ends or waits before that.
fn written_metric(address: &str, bytes: u64, child: &mut Child) -> Option<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let client = reqwest::Client::builder().danger_accept_invalid_certs(true).build().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut last = String::new();
    runtime.block_on(async {
        while Instant::now() < deadline && child.try_wait().unwrap().is_none() {
            if let Ok(answer) = client.get(format!("https://{address}/metrics")).send().await {
                last = answer.text().await.unwrap_or_default();
                let written = last
                    .lines()
                    .find_map(|line| line.strip_prefix("ferrovirt_import_written_bytes_total "))
                    .and_then(|value| value.parse::<u64>().ok());
                if written.is_some_and(|written| written >= bytes) {
                    // Bytes counted as handed on reach the kernel a moment later.
                    tokio::time::sleep(Duration::from_millis(300)).await;
                    let answer = client.get(format!("https://{address}/metrics")).send().await.unwrap();
                    return answer.text().await.ok();
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        println!("{bytes} bytes are not written: {last}");
        None
    })
}

/// Bytes of a file that are in the page cache; `None` where that is meaningless: devices, which have none left once they are
/// closed, and files that are nothing but memory.
fn in_page_cache(path: &Path) -> Option<u64> {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    let kind = rustix::fs::statfs(path).unwrap().f_type;
    if !path.is_file() || kind == TMPFS || kind == RAMFS {
        return None;
    }
    let said = run("fincore", &["-b", "-n", "-r", "-o", "RES", path.to_str().unwrap()]);
    Some(said.trim().parse().unwrap())
}

/// A world-writable directory.
fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

const RING: Expected<'static> = Expected { engine: "io_uring, direct, registered", why: &[] };

#[test]
fn with_nothing_refused() {
    let folder = open_folder();
    let target = folder.path().join("disk");
    judge("nothing refused", &RING, &target, &[], |_| ());
    fs::remove_file(&target).unwrap();
    let cached = Expected { engine: "pwrite, page cache", why: &["direct I/O was not asked for"] };
    judge("writeback", &cached, &target, &["--cache", "writeback"], |_| ());
    fs::remove_file(&target).unwrap();
    let threads = Expected { engine: "pwrite, direct", why: &[] };
    judge("pwrite asked for", &threads, &target, &["--engine", "pwrite"], |_| ());
}

#[test]
fn io_uring_refused_by_a_filter() {
    let folder = open_folder();
    let target = folder.path().join("disk");
    for (name, errno, words) in [
        ("seccomp, EPERM", libc::EPERM, "io_uring is refused: Operation not permitted"),
        ("seccomp, ENOSYS", libc::ENOSYS, "io_uring is refused: Function not implemented"),
    ] {
        let why = [words];
        let expected = Expected { engine: "pwrite, direct", why: &why };
        judge(name, &expected, &target, &[], |command| sys::forbid_io_uring(command, errno));
        fs::remove_file(&target).unwrap();
    }
    // Asked for by name it is an error, and nothing is written.
    let mut command = support::importer();
    let image = folder.path().join("image");
    fs::write(&image, disk(1)).unwrap();
    command.arg(&image).arg(&target).args(["--engine", "io_uring", "--checksum"]);
    command.arg(format!("sha256:{}", support::sha256(&image)));
    sys::forbid_io_uring(&mut command, libc::EPERM);
    let ran = output(&mut command).unwrap();
    assert_exit(&ran, 7, "io_uring by name");
    assert!(text(&ran.stderr).contains("io_uring cannot be used to write"), "{}", text(&ran.stderr));
    assert!(!support::names(folder.path()).iter().any(|name| name != "image"), "nothing is left");
}

#[test]
fn locked_memory_limited_as_uid_107() {
    let folder = open_folder();
    let target = folder.path().join("disk");
    let limited = |command: &mut Command| {
        command.uid(107).gid(107);
        sys::limit_memlock(command, 64 << 10);
    };
    let expected = Expected { engine: "", why: &["direct"] };
    let engine = judge("64 KiB of locked memory", &expected, &target, &[], limited);
    // Unlike root, which may lock any amount.
    assert!(engine.starts_with("pwrite") || engine.contains("registering buffers is refused"), "{engine}");
    fs::remove_file(&target).unwrap();
    let expected = Expected { engine: "pwrite, direct", why: &["io_uring is refused"] };
    judge("both", &expected, &target, &[], |command| {
        limited(command);
        sys::forbid_io_uring(command, libc::EPERM);
    });
}

#[test]
fn direct_io_refused_at_opening() {
    let ramfs = Mount::memory("ramfs", 0);
    let target = ramfs.path().join("disk");
    let why = &["direct I/O is refused at opening: Invalid argument"];
    judge("ramfs", &Expected { engine: "pwrite, page cache", why }, &target, &[], |_| ());
    let tmpfs = Mount::memory("tmpfs", 64 << 20);
    let target = tmpfs.path().join("disk");
    // Accepted since Linux 6.6.
    judge("tmpfs", &Expected { engine: "io_uring, direct", why: &[] }, &target, &[], |_| ());
}

/// Writes are whole pages, so sectors of 4096 bytes refuse nothing; larger ones do, and a 512-aligned tail goes
/// through the page cache everywhere.
#[test]
fn direct_io_refused_at_a_write() {
    let size = 8 * MIB;
    for sector in [512, 4096] {
        let device = Loop::new(size, sector);
        let name = format!("sectors of {sector} bytes");
        judge(&name, &RING, &device.device, &[], |_| ());
    }
    let device = Loop::new(size, 16384);
    let why = &["direct I/O is refused at the write to", "Invalid argument"];
    let ring = Expected { engine: "io_uring, page cache", why };
    judge("sectors of 16384 bytes, ring", &ring, &device.device, &["--force"], |_| ());
    let threads = Expected { engine: "pwrite, page cache", why };
    judge(
        "sectors of 16384 bytes, threads",
        &threads,
        &device.device,
        &["--force", "--engine", "pwrite"],
        |_| (),
    );
}

/// The file that a test would write to by mistake stays as it is.
#[test]
fn the_system_setting_is_left_alone() {
    let setting = PathBuf::from("/proc/sys/kernel/io_uring_disabled");
    assert_eq!(fs::read_to_string(setting).unwrap().trim(), "0", "these tests need io_uring");
}
