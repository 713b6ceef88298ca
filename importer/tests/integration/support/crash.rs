//! Shared by the tests of interrupted imports: a server that counts and is slow, disks to import, seeded moments. Not here:
//! faults of servers (`http.rs`), formats (`matrix.rs`).

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::MIB;

/// Numbers that are the same in every run (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// A disk of `mib` MiB: of every eight, one is zero, one compresses well, the rest does not compress.
pub(crate) fn disk(mib: u64, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = Vec::with_capacity(usize::try_from(mib * MIB).unwrap());
    for index in 0..mib {
        let end = bytes.len() + usize::try_from(MIB).unwrap();
        match index % 8 {
            3 => bytes.resize(end, 0),
            6 => bytes.resize(end, u8::try_from(index % 250).unwrap() + 1),
            _ => {
                while bytes.len() < end {
                    bytes.extend_from_slice(&random.next().to_le_bytes());
                }
            }
        }
    }
    bytes
}

/// Bytes per second that all connections share.
struct Throttle {
    rate: f64,
    next: Mutex<Instant>,
}

impl Throttle {
    fn wait(&self, bytes: usize) {
        if self.rate.is_infinite() {
            return;
        }
        let cost = Duration::from_secs_f64(f64::from(u32::try_from(bytes).unwrap()) / self.rate);
        let until = {
            let mut next = self.next.lock().unwrap();
            *next = (*next).max(Instant::now()) + cost;
            *next
        };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
    }
}

/// Files with their paths, slash first.
pub(crate) type Files = Vec<(String, Arc<Vec<u8>>)>;

/// Serves files over HTTP/1.1 with ranges and a strong ETag; counts the bytes of bodies. Stops when dropped.
pub(crate) struct Server {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
}

struct Site {
    files: Files,
    throttle: Throttle,
    sent: Arc<AtomicU64>,
}

impl Server {
    /// Serves `files` at `rate` bytes per second, all connections together.
    pub(crate) fn start(files: Files, rate: f64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (over, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let throttle = Throttle { rate, next: Mutex::new(Instant::now()) };
        let site = Arc::new(Site { files, throttle, sent: sent.clone() });
        let ended = over.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let (site, Ok(stream)) = (site.clone(), stream) else { continue };
                std::thread::spawn(move || while answer(&site, &stream).is_ok() {});
            }
        });
        Self { address, over, sent }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Bytes of bodies sent since they were last taken.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    /// Bytes of bodies sent since the last call.
    pub(crate) fn take_sent(&self) -> u64 {
        self.sent.swap(0, Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

/// One request of a connection.
fn answer(site: &Site, mut stream: &TcpStream) -> io::Result<()> {
    // Bytes in buffers count as sent; keep them few.
    rustix::net::sockopt::set_socket_send_buffer_size(stream, 64 << 10)?;
    stream.set_nodelay(true)?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut words = head.split_whitespace();
    let (method, path) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    let Some((_, data)) = site.files.iter().find(|(name, _)| name == path) else {
        return write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    };
    let range = head.lines().find_map(|line| {
        let line = line.to_ascii_lowercase();
        let (first, last) = line.strip_prefix("range: bytes=")?.split_once('-')?;
        let first: usize = first.parse().ok()?;
        Some((first, last.parse::<usize>().map_or(data.len(), |last| (last + 1).min(data.len()))))
    });
    let (from, to) = range.unwrap_or((0, data.len()));
    if from >= to {
        return write!(stream, "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n");
    }
    let status = match range {
        Some(_) => format!("206 Partial Content\r\nContent-Range: bytes {from}-{}/{}", to - 1, data.len()),
        None => "200 OK".to_owned(),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\nAccept-Ranges: bytes\r\nETag: \"one\"\r\n\r\n",
        to - from
    )?;
    if method == "HEAD" {
        return Ok(());
    }
    for chunk in data[from..to].chunks(64 << 10) {
        site.throttle.wait(chunk.len());
        stream.write_all(chunk)?;
        site.sent.fetch_add(chunk.len() as u64, Ordering::SeqCst);
    }
    Ok(())
}
