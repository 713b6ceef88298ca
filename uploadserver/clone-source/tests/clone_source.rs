//! `clone-source`, the built program: its stream to real upload servers, the same stream read by GNU tar, and its end
//! without a server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../tests/integration/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use api::resource::Confidential;
use api::upload::clone::{Mode, Source};
use places::guest::Dice;
use places::{Loop, run};
use support::client::Client;
use support::session::{Crowd, peak};
use support::tls::{Authority, server};
use support::{MIB, Pod, Setup, count, sha256};

/// As the controller names a clone's client.
const NAME: &str = "ns/from-ns/to";
const SENT: &str = r#"{"message":"Clone Complete"}"#;
const TAKEN: &str = r#"{"preallocationApplied":false,"message":"Clone Complete"}"#;

/// A sending pod; killed when dropped.
struct Sender {
    folder: tempfile::TempDir,
    process: Child,
}

impl Sender {
    /// One that sends `volume` to `port`, and is known to `authority` by this name.
    fn start(volume: &Path, mode: Mode, port: u16, authority: &Authority, name: &str) -> Self {
        Self::with(&Self::source(volume, mode, port, authority, name))
    }

    fn source(volume: &Path, mode: Mode, port: u16, authority: &Authority, name: &str) -> Source {
        let (client_cert, client_key) = authority.sign(name);
        Source {
            client_cert,
            client_key: Confidential(client_key),
            server_ca_cert: authority.certificate(),
            upload_url: format!("https://localhost:{port}/v1beta1/upload"),
            owner_uid: "1-2-3".into(),
            preallocation: false,
            mode,
            mount_point: volume.to_str().unwrap().to_owned(),
        }
    }

    fn with(source: &Source) -> Self {
        Self::with_variables(source, &[])
    }

    fn with_variables(source: &Source, variables: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("dev")).unwrap();
        // The contract's paths are below the pod's folder, the volume where it is.
        let mut source = source.clone();
        if !source.mount_point.is_empty() {
            symlink(&source.mount_point, folder.path().join("volume")).unwrap();
            source.mount_point = "/volume".into();
        }
        let process = Command::new(env!("CARGO_BIN_EXE_clone-source"))
            .args(["-v=1", "--alsologtostderr"])
            .env_clear()
            .envs(source.to_env())
            .envs(variables.iter().copied())
            .env("FERROVIRT_CLONE_SOURCE_ROOT", folder.path())
            .env("FERROVIRT_CLONE_SOURCE_METRICS_PORT", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        Self { folder, process }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    fn message(&self) -> String {
        fs::read_to_string(self.folder.path().join("dev/termination-log")).unwrap_or_default()
    }

    #[track_caller]
    fn end(&mut self) -> Option<i32> {
        let begun = std::time::Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status.code();
            }
            assert!(begun.elapsed() < Duration::from_secs(120), "it does not end\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// A receiving pod for one clone.
fn receiver(device: Option<&Path>, more: &[(&'static str, &str)]) -> Pod {
    let mut variables = vec![("CLIENT_NAME", NAME.to_owned())];
    variables.extend(more.iter().map(|&(name, value)| (name, value.to_owned())));
    Pod::start(&Setup { device, variables, ..Setup::default() })
}

/// A Filesystem volume with a disk, holes in it, and what else may be there.
fn files(folder: &Path) -> PathBuf {
    let volume = folder.join("volume");
    fs::create_dir_all(volume.join("sub/deep")).unwrap();
    let disk = File::create(volume.join("disk.img")).unwrap();
    disk.set_len(48 * MIB).unwrap();
    // More pieces than fit one header of a sparse member, and zeroes that are data.
    for at in (0..48).step_by(2) {
        disk.write_all_at(&Dice(at).bytes(70_000), at * MIB).unwrap();
    }
    disk.write_all_at(&vec![0; 1 << 20], 5 * MIB).unwrap();
    fs::write(volume.join("sub/deep/text"), "text").unwrap();
    fs::write(volume.join(format!("sub/{}", "long".repeat(50))), "a long name").unwrap();
    fs::set_permissions(volume.join("sub/deep/text"), fs::Permissions::from_mode(0o640)).unwrap();
    symlink("sub/deep", volume.join("link")).unwrap();
    symlink("/etc/hostname", volume.join("out")).unwrap();
    volume
}

fn same(one: &Path, other: &Path) {
    run("diff", &["-r", "--no-dereference", one.to_str().unwrap(), other.to_str().unwrap()]);
}

#[test]
fn files_become_files_and_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let volume = files(folder.path());
    let device = Loop::new(50 * MIB, 512);
    fs::write(&device.device, vec![0xaa; 50 << 20]).unwrap();
    for target in [None, Some(device.device.as_path())] {
        let mut pod = receiver(target, &[]);
        let mut sender = Sender::start(&volume, Mode::Filesystem, pod.port(), &pod.authority, NAME);
        assert_eq!(sender.end(), Some(0), "{}\n{}", sender.log(), pod.log());
        assert!(pod.end().success());
        assert_eq!((sender.message().as_str(), pod.message().as_str()), (SENT, TAKEN));
        let disk = volume.join("disk.img");
        match target {
            None => {
                same(&volume, &pod.path("data"));
                let copy = fs::metadata(pod.disk()).unwrap();
                assert!(copy.blocks() * 512 < 8 * MIB, "{} blocks", copy.blocks());
                let text = fs::metadata(pod.path("data/sub/deep/text")).unwrap();
                assert_eq!(text.permissions().mode() & 0o777, 0o640);
            }
            Some(device) => {
                assert_eq!(sha256(device, 48 * MIB), (sha256(&disk, 48 * MIB).0, true));
            }
        }
    }
}

#[test]
fn a_device_becomes_a_file_and_a_device() {
    let from = Loop::new(24 * MIB + 512, 512);
    let mut bytes = Dice(9).bytes(6 << 20);
    // An image on the source disk is content, not a format to convert.
    bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
    let device = fs::OpenOptions::new().write(true).open(&from.device).unwrap();
    device.write_all_at(&bytes, 0).unwrap();
    device.write_all_at(&bytes, 17 * MIB).unwrap();
    device.sync_all().unwrap();
    let to = Loop::new(32 * MIB, 512);
    fs::write(&to.device, vec![0xaa; 32 << 20]).unwrap();
    for target in [None, Some(to.device.as_path())] {
        let mut pod = receiver(target, &[]);
        let mut sender = Sender::start(&from.device, Mode::Block, pod.port(), &pod.authority, NAME);
        assert_eq!(sender.end(), Some(0), "{}\n{}", sender.log(), pod.log());
        assert!(pod.end().success());
        assert_eq!((sender.message().as_str(), pod.message().as_str()), (SENT, TAKEN));
        let disk = target.map_or_else(|| pod.disk(), Path::to_owned);
        let size = 24 * MIB + 512;
        assert_eq!(sha256(&disk, size), (sha256(&from.device, size).0, true));
    }
}

/// A server that keeps the first request's head and body and answers when the request is complete, or never.
struct Collecting {
    port: u16,
    /// Receives once the head is read.
    head: std::sync::mpsc::Receiver<()>,
    request: std::thread::JoinHandle<(String, Vec<u8>)>,
}

fn collecting(authority: &Authority, answers: bool) -> Collecting {
    let (has_head, head) = std::sync::mpsc::channel();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = server(&authority.sign("x"));
    let request = std::thread::spawn(move || {
        // Localhost may be asked for at more than one address.
        let (stream, _) = listener.accept().unwrap();
        let connection = rustls::ServerConnection::new(config).unwrap();
        let mut stream = BufReader::new(rustls::StreamOwned::new(connection, stream));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(stream.read_line(&mut head).unwrap() > 0);
        }
        has_head.send(()).unwrap();
        let mut body = Vec::new();
        if !answers {
            // Until the other end goes.
            let mut some = vec![0; 64 << 10];
            while let Ok(1..) = stream.get_mut().sock.read(&mut some) {}
            return (head, body);
        }
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            let size = usize::from_str_radix(line.trim(), 16).unwrap();
            let mut chunk = vec![0; size + 2];
            stream.read_exact(&mut chunk).unwrap();
            if size == 0 {
                let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
                stream.get_mut().write_all(answer).unwrap();
                stream.get_mut().flush().unwrap();
                return (head, body);
            }
            body.extend_from_slice(&chunk[..size]);
        }
    });
    Collecting { port, head, request }
}

/// Its archive has no member of its own, and was refused as no archive.
#[test]
fn an_empty_volume_becomes_an_empty_volume() {
    let folder = tempfile::tempdir().unwrap();
    let volume = folder.path().join("volume");
    fs::create_dir_all(volume.join("lost+found")).unwrap();
    let mut pod = receiver(None, &[]);
    let mut sender = Sender::start(&volume, Mode::Filesystem, pod.port(), &pod.authority, NAME);
    assert_eq!(sender.end(), Some(0), "{}\n{}", sender.log(), pod.log());
    assert!(pod.end().success());
    assert_eq!(fs::read_dir(pod.path("data")).unwrap().count(), 0);
}

#[test]
fn gnu_tar_reads_the_sent_archive() {
    let folder = tempfile::tempdir().unwrap();
    let volume = files(folder.path());
    let authority = Authority::new();
    let server = collecting(&authority, true);
    let mut sender = Sender::start(&volume, Mode::Filesystem, server.port, &authority, NAME);
    assert_eq!(sender.end(), Some(0), "{}", sender.log());
    let (head, body) = server.request.join().unwrap();
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("post /v1beta1/upload http/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nx-cdi-content-type: filesystem-clone\r\n"), "{head}");
    // Holes and zeroes are neither.
    assert!(body.len() < 4 << 20, "{} bytes", body.len());
    let (tar, unpacked) = (folder.path().join("tar"), folder.path().join("unpacked"));
    let mut decoder = snap::read::FrameDecoder::new(&body[..]);
    std::io::copy(&mut decoder, &mut File::create(&tar).unwrap()).unwrap();
    fs::create_dir(&unpacked).unwrap();
    run("tar", &["-C", unpacked.to_str().unwrap(), "-xpf", tar.to_str().unwrap()]);
    same(&volume, &unpacked);
}

#[test]
fn refused_clients_and_volumes_that_do_not_fit_end_with_the_servers_reason() {
    let folder = tempfile::tempdir().unwrap();
    let volume = files(folder.path());
    let mut pod = receiver(None, &[("UPLOAD_IMAGE_SIZE", "1Mi")]);
    let stranger = Authority::new();
    let device = Loop::new(4 * MIB, 512);
    fs::write(&device.device, Dice(3).bytes(4 << 20)).unwrap();
    let (folder, block) = (volume.as_path(), device.device.as_path());
    let authority = pod.authority.clone();
    let known = &*authority;
    for (from, mode, authority, name, code, words) in [
        (folder, Mode::Filesystem, known, "ns/other-ns/to", 4, "401"),
        (folder, Mode::Filesystem, &stranger, NAME, 3, "cannot set up TLS with localhost"),
        (block, Mode::Block, known, NAME, 4, "larger than the reported available storage"),
        (Path::new("/nowhere"), Mode::Filesystem, known, NAME, 1, "cannot read"),
    ] {
        let mut sender = Sender::start(from, mode, pod.port(), authority, name);
        assert_eq!(sender.end(), Some(code), "{words}: {}", sender.log());
        assert!(sender.log().contains(words), "{words}: {}", sender.log());
        assert!(sender.message().is_empty());
        assert!(!sender.log().contains("PRIVATE KEY"));
    }
    assert!(pod.runs() && pod.message().is_empty());
    // No server listens.
    let port = pod.port();
    drop(pod);
    let mut sender = Sender::start(&volume, Mode::Filesystem, port, &authority, NAME);
    assert_eq!(sender.end(), Some(3), "{}", sender.log());
    // Unusable environments.
    let mut sender = Sender::with(&Source { upload_url: "https://x/".into(), ..Source::default() });
    assert_eq!(sender.end(), Some(2), "{}", sender.log());
    assert!(sender.log().contains("CLIENT_CERT"), "{}", sender.log());
}

#[test]
fn one_that_is_stopped_or_left_is_no_success() {
    let device = Loop::new(64 * MIB, 512);
    fs::write(&device.device, Dice(4).bytes(64 << 20)).unwrap();
    // SIGTERM during a request that the server never answers.
    let authority = Authority::new();
    let server = collecting(&authority, false);
    let mut sender = Sender::start(&device.device, Mode::Block, server.port, &authority, NAME);
    let began = server.head.recv_timeout(Duration::from_secs(30));
    assert!(began.is_ok(), "no request: {}", sender.log());
    run("kill", &[&sender.process.id().to_string()]);
    assert_eq!(sender.end(), Some(143), "{}", sender.log());
    assert!(sender.message().is_empty());
    server.request.join().unwrap();
    // It is killed while a server reads: that goes on waiting for a whole one.
    let mut pod = receiver(None, &[]);
    let mut sender = Sender::start(&device.device, Mode::Block, pod.port(), &pod.authority, NAME);
    pod.wait_for("something came", || {
        let page = pod.client_named(None).request("GET", "/metrics", &[], b"").body;
        let line = page.lines().find_map(|line| line.strip_prefix("ferrovirt_upload_read_bytes_total "));
        line.is_some_and(|read| read != "0")
    });
    sender.process.kill().unwrap();
    let killed = sender.end().is_none();
    if killed {
        pod.wait_for("it is free", || {
            assert!(pod.message().is_empty(), "a part of a volume is none");
            pod.client_named(Some(NAME)).request("POST", "/v1beta1/upload", &[], b"").status == 500
        });
        let mut sender = Sender::start(&device.device, Mode::Block, pod.port(), &pod.authority, NAME);
        assert_eq!(sender.end(), Some(0), "{}\n{}", sender.log(), pod.log());
    }
    assert!(pod.end().success());
    assert_eq!(sha256(&pod.disk(), 64 * MIB), (sha256(&device.device, 64 * MIB).0, true));
}

#[test]
fn silent_server_ends_a_clone_after_the_timeout_of_the_answer() {
    let device = Loop::new(MIB, 512);
    let authority = Authority::new();
    let server = collecting(&authority, false);
    let source = Sender::source(&device.device, Mode::Block, server.port, &authority, NAME);
    let timeout = |value| [("FERROVIRT_CLONE_SOURCE_ANSWER_TIMEOUT", value)];
    let mut sender = Sender::with_variables(&source, &timeout("1500ms"));
    let began = server.head.recv_timeout(Duration::from_secs(30));
    assert!(began.is_ok(), "no request: {}", sender.log());
    assert_eq!(sender.end(), Some(3), "{}", sender.log());
    let said = "the upload server localhost received everything but did not answer within 1.5 s: see its log; if it is still \
                writing, allow more time with FERROVIRT_CLONE_SOURCE_ANSWER_TIMEOUT";
    assert!(sender.log().contains(said), "{}", sender.log());
    assert!(sender.message().is_empty());
    server.request.join().unwrap();
    let mut sender = Sender::with_variables(&source, &timeout("soon"));
    assert_eq!(sender.end(), Some(2), "{}", sender.log());
    assert!(sender.log().contains("not a duration above zero"), "{}", sender.log());
}

#[test]
fn idle_connections_and_unfinished_heads_delay_no_metrics() {
    let device = Loop::new(64 * MIB, 512);
    fs::write(&device.device, Dice(5).bytes(64 << 20)).unwrap();
    let authority = Authority::new();
    let server = collecting(&authority, false);
    let sender = Sender::start(&device.device, Mode::Block, server.port, &authority, NAME);
    server.head.recv_timeout(Duration::from_secs(30)).unwrap();
    let log = sender.log();
    let port = log.lines().find_map(|line| {
        let rest = line.split_once("serving metrics")?.1.rsplit_once(':')?.1;
        rest.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u16>().ok()
    });
    let port = port.unwrap_or_else(|| panic!("no port in the log: {log}"));
    let connect = move || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let crowd = Crowd::gather(&connect);
    let mut times: Vec<Duration> = (0..11)
        .map(|_| {
            let begun = std::time::Instant::now();
            let answer = Client::new(connect(), None).unwrap().request("GET", "/metrics", &[], b"");
            assert!(answer.body.contains("ownerUID"), "{answer:?}");
            begun.elapsed()
        })
        .collect();
    times.sort();
    let peak = peak(sender.process.id());
    println!(
        "{} idle connections and {} unfinished heads: metrics {:?} to {:?}, {peak} KiB",
        crowd.idle.len(),
        crowd.unfinished.len(),
        times[0],
        times[10]
    );
    // The machine does other work, too; without evictions it takes 5 s and more.
    assert!(times[5] < Duration::from_secs(1) && times[10] < Duration::from_secs(4), "{times:?}");
    assert!(peak <= 64 << 10, "{peak} KiB");
}

#[test]
fn a_large_sparse_volume_takes_little_time_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    let volume = folder.path().join("volume");
    fs::create_dir(&volume).unwrap();
    let disk = File::create(volume.join("disk.img")).unwrap();
    let size = count(64, 1024) << 30;
    disk.set_len(size).unwrap();
    for at in [0, size / 2, size - MIB] {
        disk.write_all_at(&Dice(at).bytes(1 << 20), at).unwrap();
    }
    let mut pod = receiver(None, &[]);
    let mut sender = Sender::start(&volume, Mode::Filesystem, pod.port(), &pod.authority, NAME);
    let mut most = 0;
    let status = format!("/proc/{}/status", sender.process.id());
    while sender.process.try_wait().unwrap().is_none() {
        let peak = fs::read_to_string(&status).ok().and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
            line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
        });
        most = most.max(peak.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(sender.end(), Some(0), "{}\n{}", sender.log(), pod.log());
    assert!(pod.end().success());
    println!("{} GiB, 3 MiB of them data: {most} KiB resident at most", size >> 30);
    assert!(most <= 64 << 10, "{most} KiB");
    let copy = fs::metadata(pod.disk()).unwrap();
    assert!(copy.len() == size && copy.blocks() * 512 <= 4 * MIB, "{} blocks", copy.blocks());
    for at in [0, size / 2, size - MIB] {
        let mut found = vec![0; 1 << 20];
        File::open(pod.disk()).unwrap().read_exact_at(&mut found, at).unwrap();
        assert!(found == Dice(at).bytes(1 << 20), "at {at}");
    }
}
