//! A small server that answers the reads that clients of Google Cloud Storage send. A real one cannot be had here.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// A server.
#[derive(Debug)]
pub struct Fake {
    /// Where it is.
    pub url: String,
    /// Heads of requests that came.
    pub requests: Arc<Mutex<Vec<String>>>,
    /// Whether the object is another one since.
    pub second: Arc<AtomicBool>,
}

impl Fake {
    /// Serves `data` as `gs://bucket/dir/disk.img`; every third answer is a 503, and every body over 1 MB is cut there. After `second` is set the object
    /// has another ETag.
    ///
    /// # Panics
    /// When it cannot.
    pub fn start(data: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (requests, second) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicBool>::default());
        let fake = Self { url, requests: requests.clone(), second: second.clone() };
        let (data, count) = (Arc::new(data), Arc::<AtomicUsize>::default());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (requests, second) = (requests.clone(), second.clone());
                let (data, count) = (data.clone(), count.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &data, &requests, &second, &count));
            }
        });
        fake
    }

    /// An account's file, as Google writes it, that leads to this server.
    pub fn account(&self) -> String {
        format!(
            r#"{{"private_key": "p", "private_key_id": "i", "client_email": "e", "disable_oauth": true, "gcs_base_url": "{}"}}"#,
            self.url
        )
    }
}

fn serve(
    mut stream: TcpStream,
    data: &[u8],
    requests: &Mutex<Vec<String>>,
    second: &AtomicBool,
    count: &AtomicUsize,
) -> Option<()> {
    loop {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).ok()?;
            head.push(byte[0]);
        }
        // The client escapes more than it must.
        let head = String::from_utf8(head).unwrap().replace("%2F", "/").replace("%2E", ".");
        requests.lock().unwrap().push(head.clone());
        let header = |name: &str| {
            let line = head.lines().find(|l| l.to_ascii_lowercase().starts_with(&format!("{name}:")));
            line.map(|l| l[name.len() + 1..].trim().to_owned())
        };
        let etag = if second.load(Ordering::SeqCst) { "\"two\"" } else { "\"one\"" };
        if count.fetch_add(1, Ordering::SeqCst) % 3 == 2 {
            write!(stream, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n").ok()?;
            continue;
        }
        if !head.contains(" /bucket/dir/disk.img ") {
            write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").ok()?;
            continue;
        }
        if header("if-match").is_some_and(|wanted| wanted != etag) {
            write!(stream, "HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n").ok()?;
            continue;
        }
        let range = header("range").and_then(|range| {
            let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
            Some((first.parse::<usize>().ok()?, last.parse::<usize>().ok()? + 1))
        });
        let (start, end) = range.map_or((0, data.len()), |(start, end)| (start, end.min(data.len())));
        if range.is_some() && start >= data.len() {
            write!(stream, "HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n").ok()?;
            continue;
        }
        match range {
            Some(_) => write!(
                stream,
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{}/{}\r\n",
                end - 1,
                data.len()
            ),
            None => write!(stream, "HTTP/1.1 200 OK\r\n"),
        }
        .ok()?;
        let marks = format!("ETag: {etag}\r\nLast-Modified: Sat, 01 Aug 2026 10:00:00 GMT");
        write!(stream, "{marks}\r\nContent-Length: {}\r\n\r\n", end - start).ok()?;
        stream.write_all(&data[start..end.min(start + 1_000_000)]).ok()?;
        if end - start > 1_000_000 {
            return None;
        }
    }
}
