//! One file over HTTP/1.1, with ranges and a strong ETag, with configurable speed and faults, and a count of the bytes sent.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::place::Place;

/// Bytes handed to a connection at once.
const CHUNK: usize = 64 << 10;

/// How requests are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mood {
    /// As they should be.
    Well,
    /// With 404, as if the file had not been uploaded yet.
    Missing,
    /// With 503; bodies on their way are cut.
    Broken,
}

/// A running server, in this process.
#[derive(Debug)]
pub struct Flaky {
    address: SocketAddr,
    site: Arc<Site>,
}

#[derive(Debug)]
struct Site {
    file: File,
    len: u64,
    mood: Mutex<Mood>,
    /// Bytes per second, all connections together.
    rate: u64,
    /// When the next chunk may leave.
    next: Mutex<Instant>,
    sent: AtomicU64,
    over: AtomicBool,
}

impl Flaky {
    /// Serves `file` at the host's address of `place`, at most `rate` bytes per second.
    ///
    /// # Errors
    /// When the file or the address cannot be used.
    pub fn start(place: &Place, file: &Path, rate: u64) -> Result<Self> {
        let file = File::open(file).with_context(|| format!("cannot open {}", file.display()))?;
        let len = file.metadata()?.len();
        let listener =
            TcpListener::bind((place.host_address(), 0)).context("the node's link has no such address")?;
        let address = listener.local_addr()?;
        let site = Arc::new(Site {
            file,
            len,
            mood: Mutex::new(Mood::Well),
            rate,
            next: Mutex::new(Instant::now()),
            sent: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let served = site.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                if served.over.load(Ordering::SeqCst) {
                    return;
                }
                let (site, Ok(stream)) = (served.clone(), stream) else { continue };
                thread::spawn(move || while site.answer(&stream).is_ok() {});
            }
        });
        Ok(Self { address, site })
    }

    /// Address of the file.
    pub fn url(&self) -> String {
        format!("http://{}/disk", self.address)
    }

    /// Changes how requests are answered, from now on.
    pub fn set_mood(&self, mood: Mood) {
        *self.site.mood.lock().unwrap_or_else(PoisonError::into_inner) = mood;
    }

    /// Bytes of bodies sent so far.
    pub fn sent(&self) -> u64 {
        self.site.sent.load(Ordering::SeqCst)
    }
}

impl Drop for Flaky {
    fn drop(&mut self) {
        self.site.over.store(true, Ordering::SeqCst);
        // Wakes the thread that listens.
        drop(TcpStream::connect(self.address));
    }
}

impl Site {
    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `bytes` more may leave.
    fn wait(&self, bytes: u64) {
        let cost = Duration::from_micros(bytes.saturating_mul(1_000_000) / self.rate.max(1));
        let until = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            *next = (*next).max(Instant::now()) + cost;
            *next
        };
        thread::sleep(until.saturating_duration_since(Instant::now()));
    }

    /// One request of a connection; an error ends the connection.
    fn answer(&self, mut stream: &TcpStream) -> io::Result<()> {
        // Queued bytes count as sent; keep the queue short.
        rustix::net::sockopt::set_socket_send_buffer_size(stream, CHUNK)?;
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let refusal = match self.mood() {
            Mood::Well => None,
            Mood::Missing => Some("404 Not Found"),
            Mood::Broken => Some("503 Service Unavailable"),
        };
        if let Some(status) = refusal {
            return write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n");
        }
        let range = head.lines().find_map(|line| {
            let (first, last) = line.strip_prefix("range: bytes=")?.split_once('-')?;
            let end = last.trim().parse::<u64>().map_or(self.len, |last| last.saturating_add(1));
            Some((first.parse::<u64>().ok()?, end.min(self.len)))
        });
        let (from, to) = range.unwrap_or((0, self.len));
        if from >= to {
            return write!(stream, "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n");
        }
        let status = match range {
            Some(_) => format!("206 Partial Content\r\nContent-Range: bytes {from}-{}/{}", to - 1, self.len),
            None => "200 OK".to_owned(),
        };
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nAccept-Ranges: bytes\r\nETag: \"one\"\r\n\r\n",
            to - from
        )?;
        if head.starts_with("head ") { Ok(()) } else { self.body(stream, from, to) }
    }

    fn body(&self, mut stream: &TcpStream, from: u64, to: u64) -> io::Result<()> {
        let mut buffer = vec![0; CHUNK];
        let mut at = from;
        while at < to {
            let len = usize::try_from(to - at).unwrap_or(CHUNK).min(CHUNK);
            let chunk = &mut buffer[..len];
            self.file.read_exact_at(chunk, at)?;
            self.wait(chunk.len() as u64);
            if self.mood() != Mood::Well {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            stream.write_all(chunk)?;
            at += chunk.len() as u64;
            self.sent.fetch_add(chunk.len() as u64, Ordering::SeqCst);
        }
        Ok(())
    }
}
