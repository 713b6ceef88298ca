//! A server that misbehaves on request: a thread per connection over a plain listener, because faults are made by hand.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// One request, as far as the faults look at it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) headers: HashMap<String, String>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// First and one past the last byte asked for.
    pub(crate) fn range(&self, len: u64) -> Option<(u64, u64)> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let first = first.parse().unwrap();
        let end = last.parse::<u64>().map_or(len, |last| (last + 1).min(len));
        Some((first, end))
    }
}

pub(crate) type Handler = dyn Fn(&Request, &mut dyn Connection) -> io::Result<()> + Send + Sync;

pub(crate) trait Connection: Read + Write {
    /// Breaks the connection off.
    fn cut(&mut self);

    /// The bare connection, to pass bytes on.
    fn bare(&self) -> TcpStream;
}

impl Connection for TcpStream {
    fn cut(&mut self) {
        let _ = self.shutdown(Shutdown::Both);
    }

    fn bare(&self) -> TcpStream {
        self.try_clone().unwrap()
    }
}

impl Connection for rustls::StreamOwned<rustls::ServerConnection, TcpStream> {
    fn cut(&mut self) {
        self.sock.cut();
    }

    fn bare(&self) -> TcpStream {
        self.sock.bare()
    }
}

/// A server; stops when dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) over: Arc<AtomicBool>,
    pub(crate) seen: Arc<Mutex<Vec<Request>>>,
    pub(crate) connections: Arc<AtomicUsize>,
}

impl Server {
    pub(crate) fn start(
        handler: impl Fn(&Request, &mut dyn Connection) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(None, handler)
    }

    pub(crate) fn start_with(
        tls: Option<Arc<rustls::ServerConfig>>,
        handler: impl Fn(&Request, &mut dyn Connection) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            over: Arc::default(),
            seen: Arc::default(),
            connections: Arc::default(),
        };
        let (over, seen, connections) =
            (server.over.clone(), server.seen.clone(), server.connections.clone());
        let handler: Arc<Handler> = Arc::new(handler);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                connections.fetch_add(1, Ordering::SeqCst);
                let (handler, seen, tls) = (handler.clone(), seen.clone(), tls.clone());
                std::thread::spawn(move || match tls {
                    None => serve(&mut stream, &seen, &*handler),
                    Some(tls) => {
                        let connection = rustls::ServerConnection::new(tls).unwrap();
                        serve(&mut rustls::StreamOwned::new(connection, stream), &seen, &*handler);
                    }
                });
            }
        });
        server
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

/// Requests of one connection until it is cut or an answer asked for closing.
pub(crate) fn serve(stream: &mut dyn Connection, seen: &Mutex<Vec<Request>>, handler: &Handler) {
    while let Some(request) = read_request(stream) {
        seen.lock().unwrap().push(request.clone());
        if handler(&request, stream).is_err() {
            break;
        }
    }
    stream.cut();
}

/// A byte at a time: bytes of a following request must not be read.
pub(crate) fn read_request(input: &mut dyn Connection) -> Option<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        input.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let mut lines = head.lines();
    let mut words = lines.next()?.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned())).collect();
    Some(Request { method, path, headers })
}

/// The answer of a correct server; faults are differences from it.
#[derive(Clone)]
pub(crate) struct Answer {
    pub(crate) data: Arc<Vec<u8>>,
    pub(crate) ranges: bool,
    pub(crate) head: bool,
    pub(crate) length: bool,
    pub(crate) etag: Option<&'static str>,
    pub(crate) modified: Option<&'static str>,
    /// Bytes of a body after which the connection is cut.
    pub(crate) cut: u64,
}

impl Answer {
    pub(crate) fn new(data: &Arc<Vec<u8>>) -> Self {
        Self {
            data: data.clone(),
            ranges: true,
            head: true,
            length: true,
            etag: Some("\"one\""),
            modified: Some("Sat, 01 Aug 2026 10:00:00 GMT"),
            cut: u64::MAX,
        }
    }

    pub(crate) fn give(&self, request: &Request, out: &mut dyn Connection) -> io::Result<()> {
        let len = self.data.len() as u64;
        let head = request.method == "HEAD";
        if head && !self.head {
            return plain(out, "403 Forbidden", "");
        }
        let mut marks = String::new();
        if let Some(etag) = self.etag {
            marks += &format!("ETag: {etag}\r\n");
        }
        if let Some(modified) = self.modified {
            marks += &format!("Last-Modified: {modified}\r\n");
        }
        if self.ranges {
            marks += "Accept-Ranges: bytes\r\n";
        }
        let condition =
            request.header("if-range").is_none_or(|c| Some(c) == self.etag || Some(c) == self.modified);
        let range = request.range(len).filter(|_| self.ranges && condition);
        let (start, end) = range.unwrap_or((0, len));
        if range.is_some() && start >= len {
            return plain(out, "416 Range Not Satisfiable", &format!("Content-Range: bytes */{len}\r\n"));
        }
        let body = &self.data[start as usize..end as usize];
        if range.is_some() {
            write!(
                out,
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {start}-{}/{len}\r\n",
                end - 1
            )?;
        } else {
            write!(out, "HTTP/1.1 200 OK\r\n")?;
        }
        let chunked = !self.length && !head;
        if chunked {
            write!(out, "Transfer-Encoding: chunked\r\n{marks}\r\n")?;
        } else if self.length {
            write!(out, "Content-Length: {}\r\n{marks}\r\n", body.len())?;
        } else {
            write!(out, "{marks}\r\n")?;
        }
        if head {
            return Ok(());
        }
        let kept = &body[..body.len().min(usize::try_from(self.cut).unwrap_or(usize::MAX))];
        for chunk in kept.chunks(100_000) {
            if chunked {
                write!(out, "{:x}\r\n", chunk.len())?;
            }
            out.write_all(chunk)?;
            if chunked {
                write!(out, "\r\n")?;
            }
        }
        if kept.len() < body.len() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if chunked {
            write!(out, "0\r\n\r\n")?;
        }
        Ok(())
    }
}

pub(crate) fn plain(out: &mut dyn Connection, status: &str, headers: &str) -> io::Result<()> {
    write!(out, "HTTP/1.1 {status}\r\n{headers}Content-Length: 0\r\n\r\n")
}
