//! Files that change while they are read.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use disk_image::Source;
use importer::source::http::Changed;

use crate::http::reading::{data, open, quick, survives};
use crate::http::server::{Answer, Server};
use crate::support::errors::chain;

#[test]
fn a_changed_file_is_reported_and_the_next_attempt_imports_it() {
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
        assert!(Changed::find(&error).is_some(), "{}", chain(&error));
        survives(options, &new);
    }
}

#[test]
fn a_changed_length_is_reported() {
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
    assert!(Changed::find(&error).is_some(), "{}", chain(&error));
}

#[test]
fn files_of_one_time_are_distinguished_by_their_queries() {
    let bytes = data(100_000);
    for (etag, apart) in [(None, true), (Some("W/\"one\""), true), (Some("\"one\""), false)] {
        let answer = Answer { etag, ..Answer::new(&bytes) };
        let server = Server::start(move |request, out| answer.give(request, out));
        let identity = |path| open(quick(server.url(path))).unwrap().identity().unwrap().to_owned();
        assert_eq!(identity("/d?id=1"), identity("/d?id=1"));
        // A strong mark is enough: a query may be a signature that is another one each time.
        assert_eq!(identity("/d?id=1") != identity("/d?id=2"), apart, "{etag:?}");
        assert!(!identity("/d?id=hunter2").contains("hunter2"));
    }
}
