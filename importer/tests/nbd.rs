//! The NBD source against servers of others (qemu-nbd, nbdkit, the `nbd` crate) and against one of ours that does
//! everything wrong. Whatever a server does: the right bytes, or an error that names the cause.

#![expect(clippy::cast_possible_truncation, reason = "small test data")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::expect_used, reason = "a test fails by panicking")]
#![expect(clippy::wildcard_enum_match_arm, reason = "a server does one thing wrong and the rest right")]

use std::fs;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use disk_image::{Access, Source, Stop};
use importer::source::blocking::Net;
use importer::source::nbd::{self, NbdSource, Options};
use importer::source::remote::Changed;
use importer::source::remote::Reach;
use importer::source::retry::Policy;
use importer::source::tls::Trust;
use tempfile::TempDir;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Random bytes, the same for the same seed.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(1);
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    out.truncate(len);
    out
}

/// A disk of `mib` MiB: data, a hole, data, a hole …
fn sparse(mib: usize, seed: u64) -> Vec<u8> {
    let mut disk = noise(mib * MIB, seed);
    for (i, part) in disk.chunks_mut(MIB).enumerate() {
        if i % 3 == 1 {
            part.fill(0);
        }
    }
    disk
}

fn options(url: &str) -> Options {
    let retry = Policy {
        patience: Duration::from_secs(20),
        first: Duration::from_secs(10),
        longest: Duration::from_millis(400),
        ..Policy::default()
    };
    Options {
        reach: Reach { retry, stall: Duration::from_secs(20), ..Reach::default() },
        ..Options::new(url)
    }
}

/// Gives up quickly.
fn hasty(url: &str) -> Options {
    let retry = Policy {
        patience: Duration::from_millis(300),
        first: Duration::from_millis(300),
        base: Duration::from_millis(5),
        longest: Duration::from_millis(20),
        ..Policy::default()
    };
    Options {
        reach: Reach { retry, stall: Duration::from_millis(700), ..Reach::default() },
        ..Options::new(url)
    }
}

fn open(options: Options) -> Result<NbdSource, importer::Error> {
    nbd::open(&Net::new(Stop::new()).unwrap(), options)
}

fn read(source: &dyn Source, range: Range<u64>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.open(range)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The whole export, by several readers over uneven parts.
fn read_all(source: &NbdSource) -> io::Result<Vec<u8>> {
    let size = source.facts().size.unwrap();
    let part = (size / 5 + 777).max(1);
    let starts: Vec<u64> = (0..size).step_by(part as usize).collect();
    let parts: Vec<io::Result<Vec<u8>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = starts
            .iter()
            .map(|&start| scope.spawn(move || read(source, start..(start + part).min(size))))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    Ok(parts.into_iter().collect::<io::Result<Vec<_>>>()?.concat())
}

/// An error with everything below it.
fn told(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(inner) => inner.source(),
        None => error.source(),
    };
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

#[track_caller]
fn assert_told(error: &(dyn std::error::Error + 'static), words: &[&str]) {
    let text = told(error);
    for word in words {
        assert!(text.contains(word), "\"{word}\" is not in: {text}");
    }
}

/// A folder with a server in it; both gone with this value.
struct Place {
    folder: TempDir,
    server: Option<Child>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Place {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), server: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        // Holes stay holes.
        let path = self.path(name);
        let file = fs::File::create(&path).unwrap();
        file.set_len(bytes.len() as u64).unwrap();
        for (i, part) in bytes.chunks(64 * KIB).enumerate() {
            if part.iter().any(|&b| b != 0) {
                std::os::unix::fs::FileExt::write_all_at(&file, part, (i * 64 * KIB) as u64).unwrap();
            }
        }
        self.text(name)
    }

    fn socket(&self) -> String {
        self.text("socket")
    }

    fn url(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket())
    }

    fn start(&mut self, command: &mut Command) {
        self.stop();
        drop(fs::remove_file(self.path("socket")));
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.server = Some(child.expect("the server is missing: run make deps"));
        let patience = Instant::now();
        while !self.path("socket").exists() {
            assert!(patience.elapsed() < Duration::from_secs(10), "no socket: {command:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            drop(server.kill());
            drop(server.wait());
        }
    }

    /// Waits until the server has ended by itself.
    fn ends(&mut self) -> bool {
        let patience = Instant::now();
        while patience.elapsed() < Duration::from_secs(5) {
            if self.server.as_mut().unwrap().try_wait().unwrap().is_some() {
                return true;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        false
    }

    fn qemu_nbd(&mut self, arguments: &[&str]) {
        let socket = self.socket();
        self.start(Command::new("qemu-nbd").args(["--socket", &socket]).args(arguments));
    }

    fn nbdkit(&mut self, arguments: &[&str]) {
        let socket = self.socket();
        self.start(Command::new("nbdkit").args(["--foreground", "--unix", &socket]).args(arguments));
    }
}

fn run(command: &mut Command) -> Output {
    let output = command.output().expect("a tool is missing: run make deps");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn convert(from: &str, format: &str, to: &str) {
    run(Command::new("qemu-img").args(["convert", "-f", "raw", "-O", format, from, to]));
}

#[track_caller]
fn assert_reads(source: &NbdSource, disk: &[u8]) {
    assert_eq!(source.facts().size, Some(disk.len() as u64));
    assert_eq!(source.facts().access, Access::Ranges);
    assert!(read_all(source).unwrap() == disk, "other bytes");
    assert_ranges(source, disk);
}

/// Outside of the ranges that the source names there are only zeroes; gives how many bytes they have.
#[track_caller]
fn assert_ranges(source: &NbdSource, disk: &[u8]) -> Option<u64> {
    let size = disk.len() as u64;
    let mut data = 0;
    for within in [0..size, size / 3..size / 2, size.saturating_sub(1)..size] {
        let ranges = source.data_ranges(within.clone()).unwrap()?;
        data = if within == (0..size) { ranges.iter().map(|r| r.end - r.start).sum() } else { data };
        let mut at = within.start;
        for range in ranges.into_iter().chain(std::iter::once(within.end..within.end)) {
            assert!(range.start >= at && range.end <= within.end, "{range:?} in {within:?}");
            assert!(disk[at as usize..range.start as usize].iter().all(|&b| b == 0), "data before {range:?}");
            at = range.end;
        }
    }
    Some(data)
}

#[test]
fn qemu_nbd_serves_disks_of_images() {
    let mut place = Place::new();
    let disk = sparse(20, 1);
    let raw = place.write("raw", &disk);
    convert(&raw, "qcow2", &place.text("qcow2"));
    let qcow2 = place.text("qcow2");
    place.qemu_nbd(&["--persistent", "--read-only", "-e", "8", "-f", "qcow2", &qcow2]);
    let source = open(options(&place.url(""))).unwrap();
    assert_reads(&source, &disk);
    assert_eq!(assert_ranges(&source, &disk), Some(13 << 20));
    assert!(source.connections() > 1);

    // The image itself, over TCP, under a name.
    let port = free_port().to_string();
    let mut tcp = Place::new();
    tcp.server = Some(
        Command::new("qemu-nbd")
            .args([
                "--persistent",
                "--read-only",
                "-f",
                "raw",
                "-b",
                "127.0.0.1",
                "-p",
                &port,
                "-x",
                "a b",
                &qcow2,
            ])
            .spawn()
            .expect("qemu-nbd is missing: run make deps"),
    );
    // It may not listen yet: that is what trying again is for.
    let source = open(options(&format!("nbd://127.0.0.1:{port}/a%20b"))).unwrap();
    assert_reads(&source, &fs::read(&qcow2).unwrap());
}

/// A port that nobody listens on just now.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn a_server_for_one_client_gets_one_connection() {
    let mut place = Place::new();
    let disk = sparse(33, 2);
    let raw = place.write("raw", &disk);
    // Takes one client, and ends with its connection; says that it could have several.
    place.qemu_nbd(&["--read-only", "-f", "raw", &raw]);
    let source = open(options(&place.url(""))).unwrap();
    assert_reads(&source, &disk);
    drop(source);
    assert!(place.ends(), "qemu-nbd has not heard that we are gone");
}

#[test]
fn nbdkit_serves_files_and_memory() {
    let mut place = Place::new();
    let disk = sparse(9, 3);
    let raw = place.write("raw", &disk[..8 * MIB + 700]);
    let disk = &disk[..8 * MIB + 700];
    let plain = ["file", &raw];
    for before in [
        &[][..],
        &["--no-sr"],
        &["--mask-handshake=0"],
        &["--mask-handshake=1"],
        &["--mask-handshake=2"],
        &["--filter=noextents"],
        &["--filter=nozero"],
        &["--filter=multi-conn", "multi-conn-mode=disable"],
        &["--filter=cow"],
        &["--filter=delay", "rdelay=5ms"],
        &["--filter=noparallel"],
        &["--threads=1"],
    ] {
        let (flags, parameters): (Vec<&str>, Vec<&str>) = before.iter().partition(|a| a.starts_with('-'));
        place.nbdkit(&[&flags[..], &plain, &parameters].concat());
        let source = open(options(&place.url(""))).unwrap();
        assert_reads(&source, disk);
        let told = assert_ranges(&source, disk);
        let cannot = ["--no-sr", "--mask-handshake=0", "--mask-handshake=2"];
        assert_eq!(told.is_none(), before.iter().any(|b| cannot.contains(b)), "{before:?}");
        if before.is_empty() {
            assert!(told.unwrap() < 7 << 20, "{told:?} bytes of data");
        }
    }
}

#[test]
fn block_sizes_are_kept() {
    let mut place = Place::new();
    let disk = noise(MIB, 4);
    let raw = place.write("raw", &disk);
    for (min, preferred, max) in [("512", "4096", "8192"), ("4096", "64K", "64K"), ("64K", "1M", "32M")] {
        place.nbdkit(&[
            "--filter=blocksize-policy",
            "file",
            &raw,
            &format!("blocksize-minimum={min}"),
            &format!("blocksize-preferred={preferred}"),
            &format!("blocksize-maximum={max}"),
            "blocksize-error-policy=error",
        ]);
        let source = open(options(&place.url(""))).unwrap();
        assert_reads(&source, &disk);
        for range in [1..2, 511..513, 4095..70_000, 1_048_575..1_048_576, 700..700] {
            let expected = &disk[range.start as usize..range.end as usize];
            assert!(read(&source, range.clone()).unwrap() == expected, "{range:?} of {min}");
        }
    }
}

#[test]
fn a_terabyte_of_nothing_costs_little() {
    let mut place = Place::new();
    place.nbdkit(&["memory", "1T"]);
    let source = open(options(&place.url(""))).unwrap();
    assert_eq!(source.facts().size, Some(1 << 40));
    let started = Instant::now();
    for at in 0..1024u64 {
        assert_eq!(source.data_ranges(at << 30..(at + 1) << 30).unwrap(), Some(Vec::new()));
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(read(&source, (1 << 39)..(1 << 39) + 5).unwrap() == [0; 5]);
}

#[test]
fn errors_of_the_server_are_named() {
    let mut place = Place::new();
    let disk = noise(2 * MIB, 5);
    let raw = place.write("raw", &disk);
    for flag in ["--no-sr", "--exit-with-parent"] {
        place.nbdkit(&[flag, "--filter=error", "file", &raw, "error-pread=EIO", "error-pread-rate=100%"]);
        let source = open(options(&place.url(""))).unwrap();
        let error = read(&source, 5..9).unwrap_err();
        assert_told(&error, &["EIO", "byte 5", "socket", "8 times"]);
    }
    // Some requests fail, none for ever.
    place.nbdkit(&["--filter=error", "file", &raw, "error-pread=EIO", "error-pread-rate=20%"]);
    let source = open(options(&place.url(""))).unwrap();
    assert!(read_all(&source).unwrap() == disk);
    // Not to be told about extents is no failure.
    place.nbdkit(&["--filter=error", "file", &raw, "error-extents=EIO", "error-extents-rate=100%"]);
    let source = open(options(&place.url(""))).unwrap();
    assert_eq!(source.data_ranges(0..100).unwrap(), Some(vec![0..100; 1]));
    assert!(read_all(&source).unwrap() == disk);
}

#[test]
fn exports_that_are_not_there_are_named() {
    let mut place = Place::new();
    let raw = place.write("raw", &noise(4 * KIB, 6));
    place.qemu_nbd(&["--persistent", "--read-only", "-f", "raw", "-x", "disk", &raw]);
    let error = open(options(&place.url("disc"))).unwrap_err();
    assert_told(&error, &["no export \"disc\"", "it has \"disk\"", "after the last slash"]);
    assert_eq!(error.kind(), importer::Kind::Connect);
    assert_eq!(read(&open(options(&place.url("disk"))).unwrap(), 0..4).unwrap().len(), 4);
    // Nobody listens.
    place.stop();
    drop(fs::remove_file(place.path("socket")));
    assert_told(
        &open(hasty(&place.url("disk"))).unwrap_err(),
        &["cannot open", "socket", "tries", "No such file"],
    );
    // Somebody else listens.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nbd://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"));
    assert_told(&open(options(&url)).unwrap_err(), &["does not speak NBD"]);
}

#[test]
fn over_tls() {
    let mut place = Place::new();
    let disk = noise(3 * MIB, 7);
    let raw = place.write("raw", &disk);
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificates = place.path("pki");
    fs::create_dir(&certificates).unwrap();
    fs::write(certificates.join("server-cert.pem"), made.cert.pem()).unwrap();
    fs::write(certificates.join("ca-cert.pem"), made.cert.pem()).unwrap();
    fs::write(certificates.join("server-key.pem"), made.signing_key.serialize_pem()).unwrap();
    let port = free_port();
    let folder = format!("--tls-certificates={}", certificates.display());
    place.server = Some(
        Command::new("nbdkit")
            .args([
                "--foreground",
                "--tls=require",
                &folder,
                "-i",
                "127.0.0.1",
                "-p",
                &port.to_string(),
                "file",
                &raw,
            ])
            .stderr(Stdio::null())
            .spawn()
            .expect("nbdkit is missing: run make deps"),
    );
    let url = format!("nbds://localhost:{port}/");
    let trust = Trust { files: vec![certificates.join("ca-cert.pem")], ..Trust::default() };
    let trusting = |trust| {
        let mut options = options(&url);
        options.reach.trust = trust;
        options
    };
    let source = open(trusting(trust)).unwrap();
    assert_reads(&source, &disk);
    let insecure = Trust { insecure: true, ..Trust::default() };
    assert_reads(&open(trusting(insecure)).unwrap(), &disk);
    assert_told(&open(options(&url)).unwrap_err(), &["TLS", "certificate"]);
    assert_told(&open(options(&format!("nbd://localhost:{port}/"))).unwrap_err(), &["use nbds://"]);
    // And a server without it.
    let mut plain = Place::new();
    let port = free_port();
    plain.server = Some(
        Command::new("nbdkit")
            .args(["--foreground", "-i", "127.0.0.1", "-p", &port.to_string(), "file", &raw])
            .spawn()
            .unwrap(),
    );
    assert_told(&open(options(&format!("nbds://localhost:{port}/"))).unwrap_err(), &["no TLS"]);
}

#[test]
fn a_server_that_comes_back_is_read_on() {
    let mut place = Place::new();
    let disk = noise(24 * MIB, 8);
    let raw = place.write("raw", &disk);
    let arguments = ["--persistent", "--read-only", "-e", "4", "-f", "raw", &raw];
    place.qemu_nbd(&arguments);
    let source = open(options(&place.url(""))).unwrap();
    let mut reader = source.open(0..disk.len() as u64).unwrap();
    let mut got = vec![0; MIB + 5];
    reader.read_exact(&mut got).unwrap();
    for _ in 0..3 {
        place.qemu_nbd(&arguments);
        let had = got.len();
        got.resize(had + 6 * MIB, 0);
        reader.read_exact(&mut got[had..]).unwrap();
    }
    reader.read_to_end(&mut got).unwrap();
    assert!(got == disk);
    // With other content of another size it is another source.
    let mut reader = source.open(7..disk.len() as u64).unwrap();
    reader.read_exact(&mut got[..5]).unwrap();
    fs::write(&raw, noise(20 * MIB, 9)).unwrap();
    place.qemu_nbd(&arguments);
    let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
    assert!(Changed::find(&error).is_some(), "{}", told(&error));
    assert_told(&error, &["changed", "25165824", "20971520"]);
}

#[test]
fn stopping_is_quick() {
    let mut place = Place::new();
    place.nbdkit(&["--filter=delay", "memory", "1M", "rdelay=5"]);
    let stop = Stop::new();
    let net = Net::new(stop.clone()).unwrap();
    let source = nbd::open(&net, options(&place.url(""))).unwrap();
    let asked = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        stop.set();
        Instant::now()
    });
    let error = read(&source, 0..5).unwrap_err();
    let late = asked.join().unwrap().elapsed();
    assert!(late < Duration::from_millis(200), "{late:?}");
    assert!(told(&error).contains("stopped"), "{}", told(&error));
}

/// A disk for the `nbd` crate's server, which wants something to write to.
struct Disk(Cursor<Vec<u8>>);

impl Read for Disk {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Seek for Disk {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl Write for Disk {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The server of that crate knows neither GO nor structured replies, and closes on everything it does not know.
#[test]
fn the_server_of_the_nbd_crate() {
    let disk = noise(5 * MIB + 3, 10);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let content = disk.clone();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let (mut socket, content) = (socket.unwrap(), content.clone());
            std::thread::spawn(move || -> io::Result<()> {
                let size = content.len() as u64;
                let () = ::nbd::server::handshake(&mut socket, |name| match name {
                    "disk" => Ok(::nbd::Export { size, readonly: true, ..::nbd::Export::<()>::default() }),
                    _ => Err(io::ErrorKind::NotFound.into()),
                })?;
                ::nbd::server::transmission(&mut socket, Disk(Cursor::new(content)))
            });
        }
    });
    let source = open(options(&format!("nbd://{address}/disk"))).unwrap();
    assert_reads(&source, &disk);
    assert_eq!(source.data_ranges(0..5).unwrap(), None);
    let error = open(hasty(&format!("nbd://{address}/disc"))).unwrap_err();
    assert_told(&error, &["\"disc\"", "does it have it?"]);
}

/// What a server does wrong, or in its own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Nothing wrong.
    Right,
    /// Nothing wrong, but all answers in pieces and in any order.
    Shuffled,
    /// The connection ends after so many bytes.
    Cut(usize),
    SilentHandshake,
    Silent,
    ListedAndRefused,
    WrongOptionMagic,
    WrongOption,
    HugeOptionReply,
    EndlessOptionReplies,
    NoSize,
    HugeSize,
    BadBlockSizes,
    WrongContextName,
    WrongMagic,
    UnknownCookie,
    AnsweredTwice,
    HugeData,
    DataBefore,
    DataBehind,
    DataTwice,
    DataShort,
    DataForStatus,
    HoleOfNothing,
    HoleTooLong,
    HoleWrongLength,
    SimpleForRead,
    UnknownType,
    NoneWithData,
    NoneNotDone,
    ErrorLies,
    HugeError,
    ShutsDown,
    InvalidArgument,
    StatusOfNothing,
    StatusTooMany,
    StatusHuge,
    StatusOdd,
    StatusEmpty,
    StatusWrongContext,
}

/// The socket of a server, which may be cut.
struct Line {
    socket: TcpStream,
    left: usize,
}

impl Line {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let n = bytes.len().min(self.left);
        self.socket.write_all(&bytes[..n])?;
        self.left -= n;
        if n < bytes.len() || self.left == 0 {
            drop(self.socket.shutdown(std::net::Shutdown::Both));
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    }

    fn take<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.socket.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
        let mut message = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
        message.extend(option.to_be_bytes());
        message.extend(kind.to_be_bytes());
        message.extend((data.len() as u32).to_be_bytes());
        message.extend(data);
        self.send(&message)
    }
}

/// A structured answer.
fn chunk(cookie: u64, kind: u16, done: bool, claimed: u32, payload: &[u8]) -> Vec<u8> {
    let mut message = 0x668e_33ef_u32.to_be_bytes().to_vec();
    message.extend(u16::from(done).to_be_bytes());
    message.extend(kind.to_be_bytes());
    message.extend(cookie.to_be_bytes());
    message.extend(claimed.to_be_bytes());
    message.extend(payload);
    message
}

fn data_chunk(cookie: u64, done: bool, offset: u64, data: &[u8]) -> Vec<u8> {
    let payload = [&offset.to_be_bytes()[..], data].concat();
    chunk(cookie, 1, done, payload.len() as u32, &payload)
}

fn status_chunk(cookie: u64, context: u32, extents: &[(u32, u32)]) -> Vec<u8> {
    let mut payload = context.to_be_bytes().to_vec();
    for (len, flags) in extents {
        payload.extend(len.to_be_bytes());
        payload.extend(flags.to_be_bytes());
    }
    chunk(cookie, 5, true, payload.len() as u32, &payload)
}

const CONTEXT: u32 = 7;

/// A server of `disk` on loopback; gives its address and the number of its connections.
fn server(disk: &[u8], way: Way) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nbd://{}/e", listener.local_addr().unwrap());
    let connections = Arc::<AtomicUsize>::default();
    let (disk, counted) = (Arc::new(disk.to_vec()), connections.clone());
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            counted.fetch_add(1, Ordering::SeqCst);
            let Ok(socket) = socket else { return };
            socket.set_nodelay(true).unwrap();
            let disk = disk.clone();
            std::thread::spawn(move || {
                let left = if let Way::Cut(left) = way { left } else { usize::MAX };
                let mut line = Line { socket, left };
                if way == Way::SilentHandshake {
                    std::thread::sleep(Duration::from_secs(3));
                }
                // It ends when the client has enough, or by its own fault.
                let _ =
                    handshake(&mut line, disk.len() as u64, way).and_then(|()| serve(&mut line, &disk, way));
            });
        }
    });
    (url, connections)
}

fn handshake(line: &mut Line, size: u64, way: Way) -> io::Result<()> {
    line.send(b"NBDMAGICIHAVEOPT\0\x03")?;
    line.take::<4>()?;
    loop {
        let head = line.take::<16>()?;
        let option = u32::from_be_bytes(head[8..12].try_into().unwrap());
        let len = u32::from_be_bytes(head[12..].try_into().unwrap());
        io::copy(&mut (&line.socket).take(u64::from(len)), &mut io::sink())?;
        match (option, way) {
            (8, Way::WrongOptionMagic) => line.send(&[0xab; 20])?,
            (8, Way::WrongOption) => line.reply(7, 1, &[])?,
            (8, Way::HugeOptionReply) => {
                let mut message = 0x0003_e889_0455_65a9_u64.to_be_bytes().to_vec();
                message.extend([0, 0, 0, 8, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]);
                line.send(&message)?;
            }
            (8, Way::EndlessOptionReplies) => loop {
                line.reply(8, 2, b"\0\0\0\x01x")?;
            },
            (8, _) => line.reply(8, 1, &[])?,
            (10, Way::WrongContextName) => line.reply(10, 4, b"\0\0\0\x07base:other")?,
            (10, _) => {
                line.reply(10, 4, b"\0\0\0\x07base:allocation")?;
                line.reply(10, 1, &[])?;
            }
            (7, Way::ListedAndRefused) => line.reply(7, 0x8000_0006, b"not now")?,
            (3, Way::ListedAndRefused) => {
                line.reply(3, 2, b"\0\0\0\0")?;
                line.reply(3, 2, b"\0\0\0\x01e")?;
                line.reply(3, 1, &[])?;
            }
            (7, _) => {
                let size = if way == Way::HugeSize { u64::MAX } else { size };
                if way != Way::NoSize {
                    let facts = [&[0, 0][..], &size.to_be_bytes(), &[1, 3]].concat();
                    line.reply(7, 3, &facts)?;
                }
                let sizes: [u32; 3] = if way == Way::BadBlockSizes { [3, 0, 0] } else { [1, 4096, 1 << 25] };
                let sizes: Vec<u8> = sizes.iter().flat_map(|size| size.to_be_bytes()).collect();
                line.reply(7, 3, &[&[0, 3][..], &sizes].concat())?;
                line.reply(7, 1, &[])?;
                return Ok(());
            }
            _ => line.reply(option, 0x8000_0001, &[])?,
        }
    }
}

/// A request: command, cookie, offset, length.
type Request = (u16, u64, u64, u32);

fn request(line: &mut Line) -> io::Result<Request> {
    let head = line.take::<28>()?;
    assert_eq!(head[..4], 0x2560_9513_u32.to_be_bytes());
    let number = |range: Range<usize>| head[range].iter().fold(0u64, |n, &b| n << 8 | u64::from(b));
    Ok((number(6..8) as u16, number(8..16), number(16..24), number(24..28) as u32))
}

fn serve(line: &mut Line, disk: &[u8], way: Way) -> io::Result<()> {
    let mut seed = 1u64;
    loop {
        let mut requests = vec![request(line)?];
        if way == Way::Shuffled {
            // As many as come.
            line.socket.set_nonblocking(true)?;
            std::thread::sleep(Duration::from_millis(3));
            while requests.len() < 64 && line.socket.peek(&mut [0; 28]).is_ok_and(|n| n == 28) {
                requests.push(request(line)?);
            }
            line.socket.set_nonblocking(false)?;
        }
        let mut messages = Vec::new();
        for (command, cookie, offset, len) in requests {
            let end = offset + u64::from(len);
            assert!(end <= disk.len() as u64, "{offset} {len}");
            let data = &disk[offset as usize..end as usize];
            match command {
                0 if way == Way::Shuffled => messages.extend(pieces(cookie, offset, data, &mut seed)),
                0 => line.send(&wrong_read(way, cookie, offset, data))?,
                7 => line.send(&wrong_status(way, cookie, len))?,
                _ => return Ok(()),
            }
        }
        for message in shuffled(messages, &mut seed) {
            line.send(&message)?;
        }
    }
}

fn next(seed: &mut u64, below: usize) -> usize {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as usize % below
}

/// An answer in pieces, zeroes as holes; the last one is the end.
fn pieces(cookie: u64, offset: u64, data: &[u8], seed: &mut u64) -> Vec<(u64, Vec<u8>)> {
    let mut messages = Vec::new();
    let mut at = 0;
    while at < data.len() {
        let len = (1 + next(seed, 40_000)).min(data.len() - at);
        let piece = &data[at..at + len];
        let place = offset + at as u64;
        messages.push((
            cookie,
            if piece.iter().all(|&b| b == 0) {
                chunk(cookie, 2, false, 12, &[&place.to_be_bytes()[..], &(len as u32).to_be_bytes()].concat())
            } else {
                data_chunk(cookie, false, place, piece)
            },
        ));
        at += len;
    }
    messages.push((cookie, chunk(cookie, 0, true, 0, &[])));
    messages
}

/// Any order, but the end of each answer last.
fn shuffled(mut messages: Vec<(u64, Vec<u8>)>, seed: &mut u64) -> Vec<Vec<u8>> {
    for i in (1..messages.len()).rev() {
        messages.swap(i, next(seed, i + 1));
    }
    let is_end = |message: &(u64, Vec<u8>)| message.1[5] == 1;
    // An end that comes before a piece of its answer changes places with it.
    for i in 0..messages.len() {
        if is_end(&messages[i])
            && let Some(last) = (i + 1..messages.len()).rev().find(|&j| messages[j].0 == messages[i].0)
        {
            messages.swap(i, last);
        }
    }
    messages.into_iter().map(|(_, message)| message).collect()
}

fn wrong_read(way: Way, cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let right = data_chunk(cookie, true, offset, data);
    let hole = |at: u64, len: u32| [&at.to_be_bytes()[..], &len.to_be_bytes()].concat();
    let len = data.len() as u32;
    match way {
        Way::Silent => Vec::new(),
        Way::WrongMagic => vec![0x66; right.len()],
        Way::UnknownCookie => data_chunk(cookie + 1000, true, offset, data),
        Way::AnsweredTwice => [&right[..], &right].concat(),
        Way::HugeData => chunk(cookie, 1, true, u32::MAX, &right[20..]),
        Way::DataBefore => data_chunk(cookie, true, offset.wrapping_sub(1), data),
        Way::DataBehind => data_chunk(cookie, true, offset + 1, data),
        Way::DataTwice => {
            [data_chunk(cookie, false, offset, &data[..1]), data_chunk(cookie, false, offset, data)].concat()
        }
        Way::DataShort => data_chunk(cookie, true, offset, &data[..data.len() - 1]),
        Way::HoleOfNothing => chunk(cookie, 2, false, 12, &hole(offset, 0)),
        Way::HoleTooLong => chunk(cookie, 2, true, 12, &hole(offset, u32::MAX)),
        Way::HoleWrongLength => chunk(cookie, 2, true, 16, &[0; 16]),
        Way::SimpleForRead => {
            let mut message = 0x6744_6698_u32.to_be_bytes().to_vec();
            message.extend(0u32.to_be_bytes());
            message.extend(cookie.to_be_bytes());
            [&message[..], data].concat()
        }
        Way::UnknownType => chunk(cookie, 99, true, len, data),
        Way::NoneWithData => chunk(cookie, 0, true, len, data),
        Way::NoneNotDone => chunk(cookie, 0, false, 0, &[]),
        Way::ErrorLies => chunk(cookie, 0x8001, true, 6, &[0, 0, 0, 5, 0xff, 0xff]),
        Way::HugeError => chunk(cookie, 0x8001, true, u32::MAX, &[0; 64]),
        Way::ShutsDown => chunk(cookie, 0x8001, true, 9, b"\0\0\0\x6c\0\x03bye"),
        Way::InvalidArgument => chunk(cookie, 0x8002, true, 18, b"\0\0\0\x16\0\x04why?\0\0\0\0\0\0\0\0"),
        _ => right,
    }
}

fn wrong_status(way: Way, cookie: u64, len: u32) -> Vec<u8> {
    match way {
        Way::DataForStatus => data_chunk(cookie, true, 0, b"data"),
        Way::StatusOfNothing => status_chunk(cookie, CONTEXT, &[(1, 0), (0, 3)]),
        Way::StatusTooMany => status_chunk(cookie, CONTEXT, &[(len, 3), (1, 3)]),
        Way::StatusHuge => chunk(cookie, 5, true, u32::MAX - 3, &[0, 0, 0, 7, 0, 0, 0, 9]),
        Way::StatusOdd => chunk(cookie, 5, true, 13, &[0; 13]),
        Way::StatusEmpty => chunk(cookie, 0, true, 0, &[]),
        Way::StatusWrongContext => status_chunk(cookie, CONTEXT + 1, &[(len, 3)]),
        _ => status_chunk(cookie, CONTEXT, &[(len, 0)]),
    }
}

#[test]
fn pieces_in_any_order_find_their_place() {
    let mut disk = sparse(7, 11);
    disk.truncate(7 * MIB - 300);
    let (url, connections) = server(&disk, Way::Shuffled);
    let source = open(options(&url)).unwrap();
    assert_reads(&source, &disk);
    // The server says that it can have several, and five readers were there at once.
    let connections = connections.load(Ordering::SeqCst);
    assert!((2..=8).contains(&connections), "{connections} connections");
}

/// Never wrong bytes, always the cause.
#[test]
fn hostile_servers_are_survived() {
    let disk = noise(100 * KIB, 12);
    let breaks = "breaks the NBD protocol";
    #[rustfmt::skip]
    let table: &[(Way, bool, &[&str])] = &[
        // what it does, whether the export opens, what is said
        (Way::SilentHandshake,      false, &["no NBD handshake within 0.7 s"]),
        (Way::WrongOptionMagic,     false, &[breaks, "starts with 0xabababab"]),
        (Way::WrongOption,          false, &[breaks, "option 7 instead of 8"]),
        (Way::HugeOptionReply,      false, &[breaks, "claims 4294967295 bytes"]),
        (Way::EndlessOptionReplies, false, &[breaks, "1024 replies"]),
        (Way::NoSize,               false, &[breaks, "size is not told"]),
        (Way::HugeSize,             false, &[breaks, "18446744073709551615"]),
        (Way::BadBlockSizes,        false, &[breaks, "block sizes are 3, 0 and 0"]),
        (Way::WrongContextName,     false, &[breaks, "base:other"]),
        (Way::Silent,               true,  &["sent nothing for 0.7 s", "byte 0"]),
        (Way::WrongMagic,           true,  &[breaks, "0x66666666"]),
        (Way::UnknownCookie,        true,  &[breaks, "which is not open"]),
        (Way::HugeData,             true,  &[breaks, "data for"]),
        (Way::DataBefore,           true,  &[breaks, "data for"]),
        (Way::DataBehind,           true,  &[breaks, "data for"]),
        (Way::DataTwice,            true,  &[breaks, "came twice"]),
        (Way::DataShort,            true,  &[breaks, "is answered with"]),
        (Way::HoleOfNothing,        true,  &[breaks, "data for"]),
        (Way::HoleTooLong,          true,  &[breaks, "data for"]),
        (Way::HoleWrongLength,      true,  &[breaks, "type 2 claims 16 bytes"]),
        (Way::SimpleForRead,        true,  &[breaks, "without structure"]),
        (Way::UnknownType,          true,  &[breaks, "type 99"]),
        (Way::NoneWithData,         true,  &[breaks, "type 0"]),
        (Way::NoneNotDone,          true,  &[breaks, "type 0"]),
        (Way::ErrorLies,            true,  &[breaks, "longer than its message"]),
        (Way::HugeError,            true,  &[breaks, "claims 4294967295 bytes"]),
        (Way::ShutsDown,            true,  &["ESHUTDOWN", "bye"]),
        (Way::InvalidArgument,      true,  &["EINVAL", "why?", "byte 0"]),
    ];
    std::thread::scope(|scope| {
        for (way, opens, words) in table {
            let disk = &disk;
            scope.spawn(move || {
                let (url, _) = server(disk, *way);
                let error = match open(hasty(&url)) {
                    Err(error) => {
                        assert!(!opens, "{way:?}: {}", told(&error));
                        assert_eq!(error.kind(), importer::Kind::Connect);
                        told(&error)
                    }
                    Ok(source) => {
                        assert!(opens, "{way:?} opened");
                        told(&read(&source, 0..disk.len() as u64).unwrap_err())
                    }
                };
                for word in *words {
                    assert!(error.contains(word), "{way:?}: \"{word}\" is not in: {error}");
                }
            });
        }
    });
    // An answer that comes twice breaks the connection, but what came before is right.
    let (url, _) = server(&disk, Way::AnsweredTwice);
    assert!(read_all(&open(hasty(&url)).unwrap()).unwrap() == disk);
}

#[test]
fn hostile_statuses_are_survived() {
    let disk = noise(100 * KIB, 13);
    let breaks = "breaks the NBD protocol";
    #[rustfmt::skip]
    let table: &[(Way, &[&str])] = &[
        (Way::DataForStatus,      &[breaks, "Data is no answer"]),
        (Way::StatusOfNothing,    &[breaks, "length zero"]),
        (Way::StatusTooMany,      &[breaks, "more extents"]),
        (Way::StatusHuge,         &[breaks, "type 5 claims 4294967292 bytes"]),
        (Way::StatusOdd,          &[breaks, "type 5 claims 13 bytes"]),
        (Way::StatusEmpty,        &[breaks, "says nothing"]),
        (Way::StatusWrongContext, &[breaks, "context 8"]),
    ];
    std::thread::scope(|scope| {
        for (way, words) in table {
            let disk = &disk;
            scope.spawn(move || {
                let (url, _) = server(disk, *way);
                let source = open(hasty(&url)).unwrap();
                let error = source.data_ranges(0..disk.len() as u64).unwrap_err();
                for word in *words {
                    assert!(told(&error).contains(word), "{way:?}: \"{word}\" is not in: {}", told(&error));
                }
                assert!(read_all(&source).unwrap() == *disk, "{way:?}");
            });
        }
    });
    let (url, _) = server(&disk, Way::Right);
    assert_reads(&open(hasty(&url)).unwrap(), &disk);
}

/// However few bytes a connection brings: the right ones, or an error.
#[test]
fn connections_that_break_at_every_byte() {
    let disk = noise(700, 14);
    let step = if std::env::var_os("FERROVIRT_SOAK").is_some() { 1 } else { 11 };
    let cuts: Vec<usize> = (0..1200).step_by(step).collect();
    let whole = AtomicUsize::new(0);
    let policy = Policy {
        patience: Duration::from_millis(400),
        first: Duration::from_millis(30),
        base: Duration::from_millis(1),
        longest: Duration::from_millis(5),
        ..Policy::default()
    };
    std::thread::scope(|scope| {
        for cuts in cuts.chunks(cuts.len().div_ceil(8)) {
            let (disk, whole, policy) = (&disk, &whole, &policy);
            scope.spawn(move || {
                for &cut in cuts {
                    let (url, _) = server(disk, Way::Cut(cut));
                    let mut options = hasty(&url);
                    options.reach.retry = policy.clone();
                    let result = open(options)
                        .map_err(io::Error::from)
                        .and_then(|source| read(&source, 0..disk.len() as u64));
                    match result {
                        Ok(bytes) => {
                            assert!(bytes == *disk, "cut after {cut}: other bytes");
                            whole.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            assert!(cut < 400, "cut after {cut}: {}", told(&error));
                            assert_told(&error, &["tries in"]);
                        }
                    }
                }
            });
        }
    });
    assert!(whole.load(Ordering::Relaxed) >= (1200 - 400) / step);
}

fn importer(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_importer"));
    command.env_clear().env("PATH", std::env::var("PATH").unwrap()).args(arguments).stdin(Stdio::null());
    command
}

#[test]
fn the_program_imports_from_qemu_nbd() {
    let mut place = Place::new();
    let disk = sparse(40, 15);
    let raw = place.write("raw", &disk);
    convert(&raw, "qcow2", &place.text("qcow2"));
    let (target, qcow2) = (place.text("disk"), place.text("qcow2"));
    for (format, fetched) in [("qcow2", 27 * MIB), ("raw", 28 * MIB)] {
        place.qemu_nbd(&["--read-only", "-f", format, &qcow2]);
        let output = run(&mut importer(&[&place.url(""), &target, "--output", "json", "--force"]));
        assert!(fs::read(&target).unwrap() == disk, "{format}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let read = report["bytes_read"].as_u64().unwrap() as usize;
        assert!((27 * MIB..fetched + MIB).contains(&read), "{format}: {report}");
        assert!(place.ends(), "the server has not heard that we are gone");
    }
    // What is listed, and not given all the same.
    let (url, _) = server(&disk, Way::ListedAndRefused);
    for (address, which) in
        [(url.as_str(), "the export \"e\""), (url.trim_end_matches('e'), "its default export")]
    {
        let output = importer(&[address, &target, "--force"]).output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = format!("lists {which} and does not give it (not now)");
        assert!(text.contains(&told) && !text.contains("it has"), "{text}");
    }
    // What an address asks for and is not done.
    let output = importer(&[&format!("{url}?tls-certificates=/c"), &target, "--force"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("\"tls-certificates\""), "{text}");
    // What is not there.
    place.qemu_nbd(&["--persistent", "-f", "raw", "-x", "disk", &raw]);
    let output = importer(&[&place.url("disc"), &target, "--force"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("it has \"disk\""), "{text}");
}

#[test]
fn the_program_survives_a_restarted_server() {
    let mut place = Place::new();
    let disk = noise(24 * MIB, 16);
    let raw = place.write("raw", &disk);
    let target = place.text("disk");
    let arguments = ["--filter=delay", "--threads=1", "file", &raw, "rdelay=40ms"];
    place.nbdkit(&arguments);
    let url = place.url("");
    let import = std::thread::spawn(move || run(importer(&[&url, &target]).stdout(Stdio::piped())));
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(300));
        place.nbdkit(&arguments);
    }
    import.join().unwrap();
    assert!(fs::read(place.path("disk")).unwrap() == disk);
}
