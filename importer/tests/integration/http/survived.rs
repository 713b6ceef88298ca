//! Servers that must be survived: the right bytes all the same.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use disk_image::{Access, Source};

use crate::http::reading::{data, open, quick, survives};
use crate::http::server::{Answer, Server, plain};

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
    for request in server.requests() {
        assert_eq!(request.header("user-agent"), Some("cdi-golang-importer"));
        assert_eq!(request.header("accept-encoding"), Some("identity"));
    }
    let parts = server.requests().into_iter().filter(|r| r.header("range").is_some()).skip(1);
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
    assert_eq!(server.requests().iter().filter(|r| r.method == "GET").count(), 4);
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
