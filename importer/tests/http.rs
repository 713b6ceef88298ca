//! The http source against servers that misbehave: whatever they do, the bytes are right or there is an error that
//! names the cause.
//!
//! The server is a thread per connection over a plain listener, because faults are made by hand. It is faster to
//! fail than a real one: patience and stall limits are seconds here.

#![expect(clippy::cast_possible_truncation, reason = "small test data")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/tls.rs"]
mod tls;

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use disk_image::{Access, Source, Stop};
use importer::source::blocking::Net;
use importer::source::http::{self, Changed, Header, Options};
use importer::source::remote::RemoteSource;
use importer::source::retry::Policy;
use importer::source::tls::{Proxies, Trust};
use tls::server_config;

/// One request, as far as the faults look at it.
#[derive(Clone, Debug, Default)]
struct Request {
    method: String,
    path: String,
    headers: HashMap<String, String>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// First and one past the last byte asked for.
    fn range(&self, len: u64) -> Option<(u64, u64)> {
        let (first, last) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let first = first.parse().unwrap();
        let end = last.parse::<u64>().map_or(len, |last| (last + 1).min(len));
        Some((first, end))
    }
}

type Handler = dyn Fn(&Request, &mut dyn Connection) -> io::Result<()> + Send + Sync;

trait Connection: Read + Write {
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
struct Server {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    seen: Arc<Mutex<Vec<Request>>>,
    connections: Arc<AtomicUsize>,
}

impl Server {
    fn start(
        handler: impl Fn(&Request, &mut dyn Connection) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        Self::start_with(None, handler)
    }

    fn start_with(
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

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn seen(&self) -> Vec<Request> {
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
fn serve(stream: &mut dyn Connection, seen: &Mutex<Vec<Request>>, handler: &Handler) {
    while let Some(request) = read_request(stream) {
        seen.lock().unwrap().push(request.clone());
        if handler(&request, stream).is_err() {
            break;
        }
    }
    stream.cut();
}

/// A byte at a time: nothing may be read that belongs to whoever comes after.
fn read_request(input: &mut dyn Connection) -> Option<Request> {
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

/// How a well-meaning server would answer; the faults are told as differences from it.
#[derive(Clone)]
struct Answer {
    data: Arc<Vec<u8>>,
    ranges: bool,
    head: bool,
    length: bool,
    etag: Option<&'static str>,
    modified: Option<&'static str>,
    /// Bytes of a body after which the connection is cut.
    cut: u64,
}

impl Answer {
    fn new(data: &Arc<Vec<u8>>) -> Self {
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

    fn give(&self, request: &Request, out: &mut dyn Connection) -> io::Result<()> {
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

fn plain(out: &mut dyn Connection, status: &str, headers: &str) -> io::Result<()> {
    write!(out, "HTTP/1.1 {status}\r\n{headers}Content-Length: 0\r\n\r\n")
}

/// Bytes that repeat nowhere nearby.
fn data(len: usize) -> Arc<Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    Arc::new(bytes)
}

/// Seconds where the product has minutes.
fn quick(url: String) -> Options {
    let mut options = Options::new(url);
    options.reach.stall = Duration::from_secs(2);
    options.reach.retry = Policy {
        patience: Duration::from_secs(3),
        first: Duration::from_secs(3),
        base: Duration::from_millis(10),
        ..Policy::default()
    };
    options
}

fn open(options: Options) -> Result<RemoteSource, importer::Error> {
    http::open(&Net::new(Stop::new()).unwrap(), options)
}

/// Reads like the transfer does: parts on several threads if there are ranges, else one stream.
fn read_all(source: &RemoteSource) -> io::Result<Vec<u8>> {
    let facts = source.facts();
    if facts.access != Access::Ranges {
        let mut all = Vec::new();
        source.open(0..u64::MAX)?.read_to_end(&mut all)?;
        return Ok(all);
    }
    let size = facts.size.unwrap();
    let next = AtomicU64::new(0);
    let parts = Mutex::new(Vec::new());
    let part_size = 2_500_000;
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let start = next.fetch_add(part_size, Ordering::SeqCst);
                    if start >= size {
                        return;
                    }
                    let mut bytes = Vec::new();
                    let end = (start + part_size).min(size);
                    match source.open(start..end).and_then(|mut reader| reader.read_to_end(&mut bytes)) {
                        Ok(n) if n as u64 == end - start => parts.lock().unwrap().push((start, bytes)),
                        Ok(n) => panic!("{n} bytes without an error"),
                        Err(error) => {
                            *failure.lock().unwrap() = Some(error);
                            return;
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().unwrap() {
        return Err(error);
    }
    let mut parts = parts.into_inner().unwrap();
    parts.sort();
    Ok(parts.into_iter().flat_map(|(_, bytes)| bytes).collect())
}

fn text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        text += &format!(": {error}");
        next = error.source();
    }
    text
}

fn survives(options: Options, want: &[u8]) -> RemoteSource {
    let source = open(options).unwrap_or_else(|e| panic!("{}", text(&e)));
    let got = read_all(&source).unwrap_or_else(|e| panic!("{}", text(&e)));
    assert!(
        got == want,
        "{} bytes, wanted {}; equal up to {:?}",
        got.len(),
        want.len(),
        difference(&got, want)
    );
    source
}

fn difference(a: &[u8], b: &[u8]) -> Option<usize> {
    a.iter().zip(b).position(|(a, b)| a != b)
}

/// The error of opening or reading.
fn fails(options: Options) -> String {
    match open(options) {
        Err(error) => text(&error),
        Ok(source) => match read_all(&source) {
            Ok(bytes) => panic!("{} bytes and no error", bytes.len()),
            Err(error) => text(&error),
        },
    }
}

#[test]
fn a_good_server_is_read_in_parts_on_few_connections() {
    let data = data(9_000_001);
    let answer = Answer::new(&data);
    let server = Server::start(move |request, out| answer.give(request, out));
    let source = survives(quick(server.url("/a.img?token=secret")), &data);
    assert_eq!(source.facts().access, Access::Ranges);
    assert_eq!(source.facts().size, Some(9_000_001));
    let identity = source.identity().unwrap();
    assert!(
        identity.contains("/a.img") && identity.contains("one") && !identity.contains("secret"),
        "{identity}"
    );
    assert!(server.connections.load(Ordering::SeqCst) <= 4, "{:?}", server.connections);
    for request in server.seen() {
        assert_eq!(request.header("user-agent"), Some("cdi-golang-importer"));
        assert_eq!(request.header("accept-encoding"), Some("identity"));
    }
    let parts = server.seen().into_iter().filter(|r| r.header("range").is_some()).skip(1);
    assert!(parts.map(|r| r.header("if-range").map(str::to_owned)).all(|c| c.as_deref() == Some("\"one\"")));
}

#[test]
fn survived_drops_every_3_mb() {
    let data = data(20_000_000);
    let answer = Answer { cut: 3_000_000, ..Answer::new(&data) };
    let server = Server::start(move |request, out| answer.give(request, out));
    let source = open(quick(server.url("/"))).unwrap();
    let mut got = Vec::new();
    source.open(0..u64::MAX).unwrap().read_to_end(&mut got).unwrap();
    assert!(got == *data);
    survives(quick(server.url("/")), &data);
}

#[test]
fn survived_drops_without_ranges_when_each_answer_gets_further() {
    let data = data(10_000_000);
    let answer = Answer { ranges: false, ..Answer::new(&data) };
    let answers = AtomicU64::new(0);
    let server = Server::start(move |request, out| {
        let n = if request.method == "GET" { answers.fetch_add(1, Ordering::SeqCst) + 1 } else { 0 };
        Answer { cut: 3_000_000 * n, ..answer.clone() }.give(request, out)
    });
    let source = survives(quick(server.url("/")), &data);
    assert_eq!(source.facts().access, Access::Again);
    // Three breaks; the answer to the first question was used, not thrown away.
    assert_eq!(server.seen().iter().filter(|r| r.method == "GET").count(), 4);
}

#[test]
fn survived_200_for_a_range() {
    let data = data(5_000_000);
    let answer = Answer { ranges: false, ..Answer::new(&data) };
    let server = Server::start(move |request, out| answer.give(request, out));
    let source = survives(quick(server.url("/")), &data);
    assert_eq!(source.facts().access, Access::Again);
}

#[test]
fn survived_ranges_that_stop_working_midway() {
    let data = data(9_000_000);
    for wrong in [false, true] {
        let answer = Answer::new(&data);
        let server = Server::start(move |request, out| {
            let late = request.range(9_000_000).is_some_and(|(start, _)| start >= 5_000_000);
            if late && wrong {
                return write!(
                    out,
                    "HTTP/1.1 206 Partial Content\r\nContent-Length: 4\r\nContent-Range: bytes 0-3/9000000\r\n\r\nabcd"
                );
            }
            Answer { ranges: !late, ..answer.clone() }.give(request, out)
        });
        let source = survives(quick(server.url("/")), &data);
        assert_eq!(source.facts().access, Access::Again);
        let mut tail = Vec::new();
        source.open(6_000_000..6_000_100).unwrap().read_to_end(&mut tail).unwrap();
        assert_eq!(tail, data[6_000_000..6_000_100]);
    }
}

#[test]
fn survived_no_head() {
    let data = data(3_000_000);
    let answer = Answer { head: false, ..Answer::new(&data) };
    let server = Server::start(move |request, out| answer.give(request, out));
    let source = survives(quick(server.url("/")), &data);
    assert_eq!(source.facts().access, Access::Ranges);
}

#[test]
fn survived_head_that_breaks_the_connection() {
    let data = data(3_000_000);
    let answer = Answer::new(&data);
    let server = Server::start(move |request, out| {
        if request.method == "HEAD" { Err(io::ErrorKind::Other.into()) } else { answer.give(request, out) }
    });
    survives(quick(server.url("/")), &data);
}

#[test]
fn survived_no_length() {
    let data = data(3_000_000);
    let answer = Answer { length: false, ranges: false, ..Answer::new(&data) };
    let server = Server::start(move |request, out| answer.give(request, out));
    let source = survives(quick(server.url("/")), &data);
    assert_eq!(source.facts(), disk_image::Facts { size: None, access: Access::Again });
}

#[test]
fn survived_no_length_with_breaks() {
    let data = data(3_000_000);
    let answer = Answer { length: false, ranges: false, etag: None, modified: None, ..Answer::new(&data) };
    let answers = AtomicU64::new(0);
    let server = Server::start(move |request, out| {
        let n = answers.fetch_add(1, Ordering::SeqCst);
        Answer { cut: 1_000_000 * n, ..answer.clone() }.give(request, out)
    });
    survives(quick(server.url("/")), &data);
}

#[test]
fn survived_a_body_that_ends_with_the_connection() {
    let data = data(1_000_000);
    let bytes = data.clone();
    let server = Server::start(move |request, out| {
        if request.method == "HEAD" {
            return plain(out, "405 Method Not Allowed", "");
        }
        write!(out, "HTTP/1.0 200 OK\r\n\r\n")?;
        out.write_all(&bytes)?;
        Err(io::ErrorKind::Other.into())
    });
    survives(quick(server.url("/")), &data);
}

#[test]
fn survived_ranges_without_length() {
    let data = data(6_000_000);
    let answer = Answer { length: false, head: false, ..Answer::new(&data) };
    let server = Server::start(move |request, out| answer.give(request, out));
    let source = survives(quick(server.url("/")), &data);
    assert_eq!(source.facts().access, Access::Ranges);
}

#[test]
fn survived_one_good_answer_in_four() {
    let data = data(8_000_000);
    let answer = Answer::new(&data);
    let count = AtomicU64::new(0);
    let server = Server::start(move |request, out| match count.fetch_add(1, Ordering::SeqCst) % 4 {
        0 => plain(out, "500 Internal Server Error", ""),
        1 => Err(io::ErrorKind::Other.into()),
        2 => plain(out, "429 Too Many Requests", "Retry-After: 0\r\n"),
        _ => answer.give(request, out),
    });
    survives(quick(server.url("/")), &data);
}

#[test]
fn survived_a_stall_shorter_than_the_limit() {
    let data = data(2_000_000);
    let answer = Answer { cut: 1_000_000, ..Answer::new(&data) };
    let server = Server::start(move |request, out| {
        std::thread::sleep(Duration::from_millis(300));
        let outcome = answer.give(request, out);
        std::thread::sleep(Duration::from_millis(1200));
        outcome
    });
    survives(quick(server.url("/")), &data);
}

#[test]
fn an_empty_file_is_empty() {
    let data = data(0);
    let answer = Answer::new(&data);
    let server = Server::start(move |request, out| answer.give(request, out));
    let source = survives(quick(server.url("/")), &data);
    assert_eq!(source.facts().size, Some(0));
}

#[test]
fn retry_after_is_honoured() {
    let data = data(1000);
    let answer = Answer::new(&data);
    let count = AtomicU64::new(0);
    let server = Server::start(move |request, out| match count.fetch_add(1, Ordering::SeqCst) {
        1 => plain(out, "503 Service Unavailable", "Retry-After: 1\r\n"),
        _ => answer.give(request, out),
    });
    let start = Instant::now();
    survives(quick(server.url("/")), &data);
    assert!(start.elapsed() >= Duration::from_secs(1));
}

#[test]
fn a_changed_file_is_told_and_the_next_try_gets_the_new_one() {
    let (old, new) = (data(6_000_000), Arc::new(vec![7; 6_000_000]));
    for (ranges, etag, modified) in [
        (true, true, true),
        (true, false, true),
        (false, true, false),
        (false, false, true),
        (false, false, false),
    ] {
        let first = Answer {
            ranges,
            etag: etag.then_some("\"one\""),
            modified: modified.then_some("Sat, 01 Aug 2026 10:00:00 GMT"),
            cut: 1_000_000,
            ..Answer::new(&old)
        };
        let second = Answer {
            data: new.clone(),
            etag: etag.then_some("\"two\""),
            modified: modified.then_some("Sun, 02 Aug 2026 10:00:00 GMT"),
            cut: u64::MAX,
            ..first.clone()
        };
        let switched = Arc::new(AtomicBool::new(false));
        let now = switched.clone();
        let server = Server::start(move |request, out| {
            if now.load(Ordering::SeqCst) { second.give(request, out) } else { first.give(request, out) }
        });
        let options = quick(server.url("/"));
        let source = open(options.clone()).unwrap();
        let mut reader = source.open(0..u64::MAX).unwrap();
        let mut start = vec![0; 500_000];
        reader.read_exact(&mut start).unwrap();
        switched.store(true, Ordering::SeqCst);
        let error = reader.read_to_end(&mut start).expect_err("the file changed");
        assert!(Changed::find(&error).is_some(), "{}", text(&error));
        survives(options, &new);
    }
}

#[test]
fn a_changed_length_is_told() {
    let old = data(6_000_000);
    let first = Answer { etag: None, modified: None, cut: 1_000_000, ..Answer::new(&old) };
    let second = Answer { data: data(5_000_000), ..first.clone() };
    let gets = AtomicU64::new(0);
    let server = Server::start(move |request, out| {
        let n = gets.fetch_add(1, Ordering::SeqCst);
        if n < 3 { first.give(request, out) } else { second.give(request, out) }
    });
    let source = open(quick(server.url("/"))).unwrap();
    assert_eq!(source.identity(), None, "a length alone tells nothing");
    let error = source.open(0..u64::MAX).unwrap().read_to_end(&mut Vec::new()).expect_err("shorter");
    assert!(Changed::find(&error).is_some(), "{}", text(&error));
}

#[test]
fn failed_truncated_for_good() {
    let data = data(4_000_000);
    for ranges in [true, false] {
        let answer = Answer { ranges, ..Answer::new(&data) };
        let server = Server::start(move |request, out| {
            let start = if ranges { request.range(4_000_000).map_or(0, |(start, _)| start) } else { 0 };
            let cut = 3_500_000_u64.saturating_sub(start);
            Answer { cut, ..answer.clone() }.give(request, out)
        });
        let error = fails(quick(server.url("/")));
        assert!(error.contains("ends at byte 3500000 of 4000000 declared"), "{error}");
    }
}

#[test]
fn failed_wrong_length() {
    let data = data(2_000_000);
    // HEAD tells more, GET tells nothing and ends by the rules.
    let answer = Answer { ranges: false, ..Answer::new(&data) };
    let server = Server::start(move |request, out| match request.method.as_str() {
        "HEAD" => write!(out, "HTTP/1.1 200 OK\r\nContent-Length: 2000001\r\n\r\n"),
        _ => Answer { length: false, ..answer.clone() }.give(request, out),
    });
    let error = fails(quick(server.url("/")));
    assert!(error.contains("ends at byte 2000000 of 2000001 declared"), "{error}");

    // HEAD tells less.
    let answer = Answer { ranges: false, ..Answer::new(&data) };
    let server = Server::start(move |request, out| match request.method.as_str() {
        "HEAD" => write!(out, "HTTP/1.1 200 OK\r\nContent-Length: 1999999\r\n\r\n"),
        _ => Answer { length: false, ..answer.clone() }.give(request, out),
    });
    let error = fails(quick(server.url("/")));
    assert!(error.contains("more than the length it declared (1999999 bytes)"), "{error}");

    // A range brings more than it says.
    let answer = Answer::new(&data);
    let server = Server::start(move |request, out| {
        let Some((start, end)) = request.range(2_000_000).filter(|r| r.1 > 1) else {
            return answer.give(request, out);
        };
        write!(
            out,
            "HTTP/1.1 206 Partial Content\r\nTransfer-Encoding: chunked\r\nContent-Range: bytes {start}-{}/2000000\r\n\r\n",
            end - 1
        )?;
        for _ in 0..30 {
            write!(out, "186a0\r\n")?;
            out.write_all(&[7; 100_000])?;
            write!(out, "\r\n")?;
        }
        write!(out, "0\r\n\r\n")
    });
    let error = fails(quick(server.url("/")));
    assert!(error.contains("more than the length it declared"), "{error}");
}

#[test]
fn failed_redirect_loop() {
    let server = Server::start(|request, out| {
        let to = if request.path == "/a" { "/b" } else { "/a" };
        plain(out, "302 Found", &format!("Location: {to}\r\n"))
    });
    let error = fails(quick(server.url("/a")));
    assert!(error.contains("redirect loop") && error.contains("/b →"), "{error}");

    let server = Server::start(|request, out| {
        let n: u32 = request.path[1..].parse().unwrap();
        plain(out, "302 Found", &format!("Location: /{}\r\n", n + 1))
    });
    let error = fails(quick(server.url("/0")));
    assert!(error.contains("more than 10 redirects"), "{error}");
    assert!(server.seen().len() <= 22, "{}", server.seen().len());
}

#[test]
fn failed_stall_past_the_limit() {
    let data = data(2_000_000);
    let bytes = data.clone();
    let answer = Answer { ranges: false, ..Answer::new(&data) };
    let server = Server::start(move |request, out| {
        if request.method == "HEAD" {
            return answer.give(request, out);
        }
        write!(out, "HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n")?;
        out.write_all(&bytes[..500_000])?;
        std::thread::sleep(Duration::from_secs(6));
        Err(io::ErrorKind::Other.into())
    });
    let start = Instant::now();
    let error = fails(quick(server.url("/")));
    assert!(error.contains("stalled at byte 500000") && error.contains("2 s"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
}

#[test]
fn failed_for_good() {
    for (status, hint) in
        [("401 Unauthorized", "user and password"), ("404 Not Found", "nothing of that name")]
    {
        let server = Server::start(move |_, out| plain(out, status, ""));
        let start = Instant::now();
        let error = fails(quick(server.url("/x?sig=hunter2")));
        assert!(error.contains(status) && error.contains(hint), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(1), "it tried again");
    }
    let start = Instant::now();
    let error = fails(quick("http://127.0.0.1:1/x".to_owned()));
    assert!(error.contains("cannot connect to http://127.0.0.1:1/x"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
    for url in ["ftp://a/b", "no address", "file:///etc/passwd"] {
        assert_eq!(open(quick(url.to_owned())).err().map(|e| e.kind()), Some(importer::Kind::Usage), "{url}");
    }
}

#[test]
fn a_redirect_to_another_host_leaves_secrets_behind() {
    let data = data(3_000_000);
    let answer = Answer::new(&data);
    let other = Server::start(move |request, out| answer.give(request, out));
    let to = other.url("/real.img");
    let first = Server::start(move |_, out| plain(out, "302 Found", &format!("Location: {to}\r\n")));
    let mut options = quick(first.url("/a.img"));
    options.user = Some("me".to_owned());
    options.password = Some("pass".to_owned());
    options.headers.push(Header { name: "X-Plain".to_owned(), value: "yes".to_owned(), secret: false });
    options.headers.push(Header { name: "X-Key".to_owned(), value: "hunter2".to_owned(), secret: true });
    options.headers.push(Header { name: "Cookie".to_owned(), value: "hunter2".to_owned(), secret: false });
    survives(options, &data);
    for request in first.seen() {
        assert_eq!(request.header("authorization"), Some("Basic bWU6cGFzcw=="));
        assert_eq!(request.header("x-key"), Some("hunter2"));
    }
    assert!(!other.seen().is_empty());
    for request in other.seen() {
        assert_eq!(request.header("x-plain"), Some("yes"));
        for name in ["authorization", "x-key", "cookie"] {
            assert_eq!(request.header(name), None, "{name}");
        }
    }
    // One mirror is used for all parts: the redirect was asked for by HEAD only.
    assert_eq!(first.seen().len(), 1, "{:?}", first.seen());
}

#[test]
fn an_expired_redirect_target_is_asked_for_again() {
    let data = data(8_000_000);
    let answer = Answer::new(&data);
    let tickets = AtomicU64::new(0);
    let server = Server::start(move |request, out| {
        let Some(ticket) = request.path.strip_prefix("/real?ticket=") else {
            let ticket = tickets.fetch_add(1, Ordering::SeqCst) + 1;
            return plain(out, "307 Temporary Redirect", &format!("Location: /real?ticket={ticket}\r\n"));
        };
        // Only the newest ticket is good, and every second request makes it stale.
        if ticket.parse::<u64>().unwrap() != tickets.load(Ordering::SeqCst) {
            return plain(out, "403 Forbidden", "");
        }
        let outcome = answer.give(request, out);
        if request.range(0).is_some_and(|(start, _)| start > 0) {
            tickets.fetch_add(1, Ordering::SeqCst);
        }
        outcome
    });
    let source = open(quick(server.url("/a.img"))).unwrap();
    let mut got = Vec::new();
    for start in (0..8_000_000).step_by(1_000_000) {
        source.open(start..start + 1_000_000).unwrap().read_to_end(&mut got).unwrap();
    }
    assert!(got == *data);
}

#[test]
fn a_user_in_the_address_is_used_and_not_shown() {
    let data = data(1000);
    let answer = Answer::new(&data);
    let server = Server::start(move |request, out| {
        if request.header("authorization") == Some("Basic bWU6cEBzcw==") {
            return answer.give(request, out);
        }
        plain(out, "401 Unauthorized", "")
    });
    survives(quick(format!("http://me:p%40ss@{}/x", server.address)), &data);
    let error = fails(quick(format!("http://me:hunter2@{}/x", server.address)));
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn stopping_is_seen_while_the_server_is_silent() {
    let data = data(2_000_000);
    let answer = Answer { ranges: false, ..Answer::new(&data) };
    let server = Server::start(move |request, out| {
        if request.method == "HEAD" {
            return answer.give(request, out);
        }
        write!(out, "HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\nabc")?;
        std::thread::sleep(Duration::from_secs(5));
        Err(io::ErrorKind::Other.into())
    });
    let stop = Stop::new();
    let net = Net::new(stop.clone()).unwrap();
    let mut options = quick(server.url("/"));
    options.reach.stall = Duration::from_secs(60);
    let source = http::open(&net, options).unwrap();
    let mut reader = source.open(0..u64::MAX).unwrap();
    let mut three = [0; 3];
    reader.read_exact(&mut three).unwrap();
    let asked = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        stop.set();
        Instant::now()
    });
    let error = reader.read(&mut three).expect_err("stopped");
    let seen = Instant::now();
    assert!(text(&error).contains("stopped on request"), "{}", text(&error));
    let late = seen.duration_since(asked.join().unwrap());
    assert!(late < Duration::from_millis(200), "{late:?}");
}

/// A self-signed server for 127.0.0.1, and its certificate as PEM.
fn tls_server(data: &Arc<Vec<u8>>) -> (Server, String) {
    let signed =
        rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned(), "tls.invalid".to_owned()]).unwrap();
    let config = server_config(signed.cert.der().clone(), &signed.signing_key);
    let answer = Answer { cut: 3_000_000, ..Answer::new(data) };
    let server = Server::start_with(Some(config), move |request, out| answer.give(request, out));
    (server, signed.cert.pem())
}

#[test]
fn tls_trusts_folders_and_files_and_nobody_else() {
    let data = data(7_000_000);
    let (server, pem) = tls_server(&data);
    let url = format!("https://{}/a.img", server.address);
    let with = |trust: Trust| {
        let mut options = quick(url.clone());
        options.reach.trust = trust;
        options
    };

    let start = Instant::now();
    let error = fails(with(Trust::default()));
    assert!(error.contains("is not trusted; give its CA certificate"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(2), "a certificate does not get better by waiting");
    survives(with(Trust { insecure: true, ..Trust::default() }), &data);

    let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap().cert.pem();
    let folder = tempfile::tempdir().unwrap();
    let trust =
        || Trust { folders: vec!["/no/such/folder".into(), folder.path().into()], ..Trust::default() };
    // Neither another name nor a hidden file nor rubbish counts, and none of them is in the way.
    std::fs::write(folder.path().join("ca.txt"), &pem).unwrap();
    std::fs::write(folder.path().join(".ca.crt"), &pem).unwrap();
    std::fs::write(folder.path().join("bad.pem"), "rubbish").unwrap();
    std::fs::create_dir(folder.path().join("folder.crt")).unwrap();
    assert!(fails(with(trust())).contains("not trusted"));
    std::fs::write(folder.path().join("two.crt"), format!("{other}\n{pem}")).unwrap();
    survives(with(trust()), &data);

    let file = folder.path().join("ca.txt");
    survives(with(Trust { files: vec![file], ..Trust::default() }), &data);
    let bad = Trust { files: vec![folder.path().join("bad.pem")], ..Trust::default() };
    assert_eq!(open(with(bad)).err().map(|e| e.kind()), Some(importer::Kind::Usage));
}

#[test]
fn https_goes_through_a_connect_proxy() {
    let data = data(5_000_000);
    let (server, _) = tls_server(&data);
    let target = server.address;
    let proxy = Server::start(move |request, out| {
        if request.header("proxy-authorization") != Some("Basic bWU6cGFzcw==") {
            return plain(out, "407 Proxy Authentication Required", "");
        }
        assert_eq!(request.method, "CONNECT");
        assert_eq!(request.path, "tls.invalid:443");
        let upstream = TcpStream::connect(target)?;
        write!(out, "HTTP/1.1 200 OK\r\n\r\n")?;
        let (mut client, mut server) = (out.bare(), upstream.try_clone()?);
        let back = std::thread::spawn(move || {
            let _ = io::copy(&mut server, &mut client);
            let _ = client.shutdown(Shutdown::Both);
        });
        let _ = io::copy(&mut out.bare(), &mut &upstream);
        let _ = upstream.shutdown(Shutdown::Both);
        let _ = back.join();
        Err(io::ErrorKind::Other.into())
    });
    let with = |https: String| {
        let mut options = through(
            Proxies { https: Some(https), ..Proxies::default() },
            "https://tls.invalid/a.img".to_owned(),
        );
        options.reach.trust.insecure = true;
        options
    };
    survives(with(format!("http://me:pass@{}", proxy.address)), &data);
    assert!(!server.seen().is_empty() && !proxy.seen().is_empty());
    let error = fails(with(format!("http://me:hunter2@{}", proxy.address)));
    assert!(!error.contains("hunter2"), "{error}");
}

fn through(proxies: Proxies, url: String) -> Options {
    let mut options = quick(url);
    options.reach.proxies = proxies;
    options
}

#[test]
fn http_goes_through_a_proxy_but_for_no_proxy() {
    let data = data(1_000_000);
    let answer = Answer::new(&data);
    let server = Server::start(move |request, out| answer.give(request, out));
    let proxy = Proxies { http: Some(server.url("")), ..Proxies::default() };
    survives(through(proxy, "http://plain.invalid/a.img".to_owned()), &data);
    assert!(server.seen().iter().all(|r| r.path == "http://plain.invalid/a.img"));

    let dead = Proxies { http: Some("http://127.0.0.1:1".to_owned()), ..Proxies::default() };
    fails(through(dead.clone(), server.url("/")));
    let but = Proxies { no_proxy: Some("localhost,127.0.0.0/8".to_owned()), ..dead };
    survives(through(but, server.url("/")), &data);
    let empty = Proxies { http: Some(String::new()), https: Some(" ".to_owned()), no_proxy: None };
    survives(through(empty, server.url("/")), &data);
}
