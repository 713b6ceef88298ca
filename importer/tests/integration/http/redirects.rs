//! Redirects, and the secrets that do not follow them.

use std::io::Read;
use std::sync::atomic::{AtomicU64, Ordering};

use disk_image::Source;
use importer::source::http::Header;

use crate::http::reading::{data, fails, open, quick, survives};
use crate::http::server::{Answer, Server, plain};

#[test]
fn a_redirect_to_another_port_of_the_host_drops_credentials() {
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
    for request in first.requests() {
        assert_eq!(request.header("authorization"), Some("Basic bWU6cGFzcw=="));
        assert_eq!(request.header("x-key"), Some("hunter2"));
    }
    assert!(!other.requests().is_empty());
    for request in other.requests() {
        assert_eq!(request.header("x-plain"), Some("yes"));
        for name in ["authorization", "x-key", "cookie"] {
            assert_eq!(request.header(name), None, "{name}");
        }
    }
    // One mirror is used for all parts: the redirect was asked for by HEAD only.
    assert_eq!(first.requests().len(), 1, "{:?}", first.requests());
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
