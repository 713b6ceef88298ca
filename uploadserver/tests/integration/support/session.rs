//! Hostile clients and crowds at a listener for uploads: the server's, or the proxy's before it. Not here: how a client is
//! let in, which each test defines.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use places::guest::Dice;

use super::client::Client;
use super::{Pod, count, sha256};

const UPLOAD: &str = "/v1beta1/upload";

/// The listener, and a client that may upload.
pub(crate) struct TestListener<'a> {
    pub(crate) connect: Box<dyn Fn() -> TcpStream + Sync + 'a>,
    /// Its certificate and key.
    pub(crate) identity: Option<(String, String)>,
    pub(crate) bearer: Option<String>,
}

impl TestListener<'_> {
    fn client(&self) -> Client {
        Client::new((self.connect)(), self.identity.as_ref()).unwrap()
    }

    /// The head of an admitted request, without its last line.
    fn post(&self) -> String {
        let bearer = self.bearer.as_ref().map(|bearer| format!("{bearer}\r\n")).unwrap_or_default();
        format!("POST {UPLOAD} HTTP/1.1\r\nHost: x\r\n{bearer}")
    }

    /// Requests with contradictory heads. Each is refused, or cut off; none is an upload.
    fn knock(&self) {
        let post = self.post();
        let chunked = format!("{post}Transfer-Encoding: chunked\r\n\r\n");
        let second = format!("{post}Content-Length: 1\r\n\r\nx");
        for (what, request) in [
            ("two lengths", format!("{post}Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef")),
            ("a list of lengths", format!("{post}Content-Length: 5, 6\r\n\r\nabcdef")),
            ("a signed length", format!("{post}Content-Length: +5\r\n\r\nabcde")),
            ("a length of letters", format!("{post}Content-Length: 0x5\r\n\r\nabcde")),
            ("chunked is not last", format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n")),
            ("chunked by another name", format!("{post}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n")),
            ("chunked with a tab", format!("{post}Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n{second}")),
            ("a space before the colon", format!("{post}Content-Length : 5\r\n\r\nabcde")),
            ("a size that is none", format!("{chunked}zz\r\n")),
            ("a size below zero", format!("{chunked}-5\r\nabcde\r\n0\r\n\r\n")),
            ("a size too large", format!("{chunked}ffffffffffffffffff\r\n")),
            ("a chunk that is longer", format!("{chunked}5\r\nabcdefgh\r\n0\r\n\r\n")),
            ("a giant extension", format!("{chunked}5;{}\r\nabcde\r\n0\r\n\r\n", "e".repeat(1 << 20))),
            ("a giant trailer", format!("{chunked}1\r\nx\r\n0\r\nT: {}\r\n\r\n", "t".repeat(1 << 20))),
            ("a giant header", format!("{post}X: {}\r\n\r\n", "y".repeat(1 << 20))),
            ("many headers", format!("{post}{}\r\n", "X: y\r\n".repeat(1000))),
            ("a name with a space", format!("{post}X y: z\r\n\r\n")),
            ("a giant path", format!("POST {UPLOAD}/{} HTTP/1.1\r\nHost: x\r\n\r\n", "p".repeat(1 << 20))),
            ("NUL", format!("{post}X: a\0b\r\n\r\n")),
            ("an old version", format!("POST {UPLOAD} HTTP/0.9\r\n\r\n")),
            ("the other protocol", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
            ("no request", "nonsense\r\n\r\n".to_owned()),
        ] {
            let mut client = self.client();
            let _early = client.send(request.as_bytes());
            let status = client.answer().map_or(400, |answer| answer.status);
            assert!((400..=505).contains(&status), "{what}: {status}");
        }
        // One that announces more than it sends, and goes.
        for request in [format!("{post}Content-Length: 1000000\r\n\r\nx"), format!("{chunked}fffff\r\nx")] {
            self.client().send(request.as_bytes()).unwrap();
        }
    }

    /// Connections that send byte by byte, some in a handshake, some in the head of a request. All of them are cut off.
    /// `there` is notified when all are connected.
    fn trickle(&self, connections: u64, there: &Sender<()>) {
        let mut open = Vec::new();
        for _ in 0..connections {
            let stream = (self.connect)();
            stream.set_nonblocking(true).unwrap();
            open.push(stream);
        }
        let mut heads: Vec<Client> = (0..8).map(|_| self.client()).collect();
        for client in &mut heads {
            client.send(b"POST /").unwrap();
        }
        there.send(()).unwrap();
        // The beginning of a handshake that would be a long one.
        let hello = [&[0x16, 3, 1, 0x3f, 0xff, 1, 0, 0x3f, 0xfb, 3, 3][..], &[7; 600]].concat();
        let begun = Instant::now();
        for byte in hello.iter().cycle() {
            open.retain_mut(|stream| is_open(stream, *byte));
            heads.retain_mut(|client| client.send(b"x").is_ok());
            if open.is_empty() && heads.is_empty() {
                return;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(180),
                "{} and {} still there",
                open.len(),
                heads.len()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Sends one more byte; whether the other end is still there.
fn is_open(stream: &mut TcpStream, byte: u8) -> bool {
    let would_wait = |result: std::io::Result<usize>| match result {
        Ok(0) => false,
        Ok(_) => true,
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    };
    let mut answer = [0; 64];
    would_wait(stream.read(&mut answer)) && would_wait(stream.write(&[byte]))
}

/// A good upload with bad company: half of it, all of them, the other half.
pub(crate) fn beside(door: &TestListener<'_>, pod: &mut Pod) {
    // When the place is free they have no luck either.
    door.knock();
    assert!(pod.runs() && pod.message().is_empty());
    let image = Dice(77).bytes(3 << 20);
    let (front, rest) = image.split_at(1 << 20);
    let post = format!("{}Content-Length: {}\r\n\r\n", door.post(), image.len());
    // The last of them may have to be found gone first.
    let mut good = door.client();
    pod.wait_for("it is free", || {
        good = door.client();
        good.send(post.as_bytes()).unwrap();
        good.send(front).unwrap();
        std::thread::sleep(Duration::from_millis(300));
        let page = pod.client_named(None).request("GET", "/metrics", &[], b"").body;
        let line = page.lines().find_map(|line| line.strip_prefix("ferrovirt_upload_read_bytes_total "));
        line.is_some_and(|read| read.parse::<usize>().unwrap() > front.len() / 2)
    });
    door.knock();
    std::thread::scope(|scope| {
        let (there, all_there) = channel();
        let trickling = scope.spawn(move || door.trickle(count(60, 1000), &there));
        // The door is there as long as the upload is.
        all_there.recv_timeout(Duration::from_secs(100)).unwrap();
        for piece in rest.chunks(200_000) {
            good.send(piece).unwrap();
            std::thread::sleep(Duration::from_millis(100));
        }
        assert_eq!(good.answer().unwrap().status, 200, "{}", pod.log());
        trickling.join().unwrap();
    });
    pod.assert_uploaded();
    let disk = fs::read(pod.disk()).unwrap();
    assert!(disk.starts_with(&image) && sha256(&pod.disk(), image.len() as u64).1);
}

/// Peak of a process's memory, in KiB.
pub(crate) fn peak(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// Connections without a byte, parts of handshakes, and parts of a head after a handshake, all at once.
pub(crate) struct Crowd {
    pub(crate) idle: Vec<TcpStream>,
    pub(crate) unfinished: Vec<Client>,
}

impl Crowd {
    pub(crate) fn gather(connect: &dyn Fn() -> TcpStream) -> Self {
        let (idle, heads) = (count(300, 1000), count(64, 256));
        let open = |number| {
            let mut stream = connect();
            if number % 2 == 0 {
                drop(stream.write_all(&[0x16, 3, 1, 0x3f, 0xff, 1, 0]));
            }
            stream
        };
        let idle = (0..idle).map(open).collect();
        let part = format!("POST {UPLOAD} HTTP/1.1\r\nHost: x\r\nX: {}", "x".repeat(15 << 10));
        let head = |_| {
            // A client without a certificate.
            let mut client = Client::new(connect(), None).unwrap();
            drop(client.send(part.as_bytes()));
            client
        };
        Self { idle, unfinished: (0..heads).map(head).collect() }
    }
}

/// A [`Crowd`] at the door; then probes and an
/// upload. The programs' peaks stay within their limit.
/// Returns the measured times and peaks.
pub(crate) fn crowded(door: &TestListener<'_>, pod: &mut Pod, processes: &[(&str, u32)]) -> String {
    let crowd = Crowd::gather(&door.connect);
    let mut probes: Vec<Duration> = (0..10)
        .map(|_| {
            let begun = Instant::now();
            let answer = Client::new((door.connect)(), None).unwrap().request("GET", "/healthz", &[], b"");
            assert_eq!(answer.status, 200, "{answer:?}");
            begun.elapsed()
        })
        .collect();
    probes.sort();
    let image = Dice(78).bytes(3 << 20);
    let begun = Instant::now();
    let mut good = door.client();
    good.send(format!("{}Content-Length: {}\r\n\r\n", door.post(), image.len()).as_bytes()).unwrap();
    good.send(&image).unwrap();
    assert_eq!(good.answer().unwrap().status, 200, "{}", pod.log());
    let upload = begun.elapsed();
    let peaks: Vec<(&str, u64)> = processes.iter().map(|(name, id)| (*name, peak(*id))).collect();
    let (fastest, slowest) = (probes[0], probes[probes.len() - 1]);
    let measured = format!(
        "{} idle connections and {} unfinished heads: probes {fastest:?} to {slowest:?}, \
         upload of 3 MiB {upload:?}, peaks {peaks:?} KiB",
        crowd.idle.len(),
        crowd.unfinished.len()
    );
    // The machine does other work, too; without evictions it takes 5 s and more.
    assert!(probes[probes.len() / 2] < Duration::from_secs(1) && upload < Duration::from_secs(4));
    for (name, peak) in peaks {
        assert!(peak <= 64 << 10, "{name}: {peak} KiB");
    }
    pod.assert_uploaded();
    assert!(fs::read(pod.disk()).unwrap().starts_with(&image));
    measured
}
