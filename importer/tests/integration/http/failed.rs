//! Servers that must fail: an error that names the cause, and an end when one is asked for.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use disk_image::{Source, Stop};
use importer::source::blocking::Net;
use importer::source::http;

use crate::http::reading::{data, fails, open, quick};
use crate::http::server::{Answer, Server, plain};
use crate::support::errors::chain;

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
    // HEAD declares more, GET declares nothing and ends by the rules.
    let answer = Answer { ranges: false, ..Answer::new(&data) };
    let server = Server::start(move |request, out| match request.method.as_str() {
        "HEAD" => write!(out, "HTTP/1.1 200 OK\r\nContent-Length: 2000001\r\n\r\n"),
        _ => Answer { length: false, ..answer.clone() }.give(request, out),
    });
    let error = fails(quick(server.url("/")));
    assert!(error.contains("ends at byte 2000000 of 2000001 declared"), "{error}");

    // HEAD declares less.
    let answer = Answer { ranges: false, ..Answer::new(&data) };
    let server = Server::start(move |request, out| match request.method.as_str() {
        "HEAD" => write!(out, "HTTP/1.1 200 OK\r\nContent-Length: 1999999\r\n\r\n"),
        _ => Answer { length: false, ..answer.clone() }.give(request, out),
    });
    let error = fails(quick(server.url("/")));
    assert!(error.contains("more than the length it declared (1999999 bytes)"), "{error}");

    // A range brings more than it declares.
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
    assert!(error.contains("redirects lead in a circle") && error.contains("/b →"), "{error}");

    let server = Server::start(|request, out| {
        let n: u32 = request.path[1..].parse().unwrap();
        plain(out, "302 Found", &format!("Location: /{}\r\n", n + 1))
    });
    let error = fails(quick(server.url("/0")));
    assert!(error.contains("more than 10 redirects"), "{error}");
    assert!(server.requests().len() <= 22, "{}", server.requests().len());
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
        [("401 Unauthorized", "user and password"), ("404 Not Found", "no file at that path")]
    {
        let server = Server::start(move |_, out| plain(out, status, ""));
        let start = Instant::now();
        let error = fails(quick(server.url("/x?sig=hunter2")));
        assert!(error.contains(status) && error.contains(hint), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(2), "it tried again");
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
    assert!(chain(&error).contains("stopped on request"), "{}", chain(&error));
    let late = seen.duration_since(asked.join().unwrap());
    assert!(late < Duration::from_secs(2), "{late:?}");
}
