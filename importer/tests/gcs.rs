//! The GCS source against a small server that answers the reads the client sends. A real one cannot be had here: what
//! is shown is ranges, conditions, retries and tokens as this client speaks them, not Google's side.

#![expect(clippy::cast_possible_truncation, reason = "small test data")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use disk_image::{Access, Source, Stop};
use importer::source::blocking::Net;
use importer::source::gcs::{self, Options};
use importer::source::http::Changed;
use importer::source::remote::RemoteSource;
use importer::source::retry::Policy;

struct Fake {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
    second: Arc<AtomicBool>,
}

/// Serves `data`; every third answer is a 503, and every body over 1 MB is cut there. After `second` is set the object
/// has another ETag.
fn fake(data: Vec<u8>) -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (requests, second) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicBool>::default());
    let fake = Fake { url, requests: requests.clone(), second: second.clone() };
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

fn open(fake: &Fake, url: &str) -> Result<RemoteSource, importer::Error> {
    let mut options = Options::new(url);
    options.server = Some(fake.url.clone());
    options.reach.retry =
        Policy { patience: Duration::from_secs(3), base: Duration::from_millis(10), ..Policy::default() };
    gcs::open(&Net::new(Stop::new()).unwrap(), options)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 251 % 256) as u8 ^ (i % 251) as u8).collect()
}

#[test]
fn ranges_survive_breaks_and_refusals() {
    let data = bytes(5_000_000);
    let fake = fake(data.clone());
    let source = open(&fake, "gs://bucket/dir/disk.img").unwrap();
    assert_eq!(source.facts(), disk_image::Facts { size: Some(5_000_000), access: Access::Ranges });
    assert!(source.identity().unwrap().contains("gs://bucket/dir/disk.img"));
    let mut got = Vec::new();
    source.open(0..u64::MAX).unwrap().read_to_end(&mut got).unwrap();
    assert!(got == data);
    got.clear();
    source.open(1_234_567..4_000_000).unwrap().read_to_end(&mut got).unwrap();
    assert!(got == data[1_234_567..4_000_000]);
    let requests = fake.requests.lock().unwrap();
    assert!(requests.iter().all(|r| !r.to_ascii_lowercase().contains("authorization")), "anonymous");
    assert!(requests.iter().skip(2).all(|r| r.to_ascii_lowercase().contains("if-match: \"one\"")));
}

#[test]
fn a_changed_object_is_told() {
    let fake = fake(bytes(3_000_000));
    let source = open(&fake, "https://storage.googleapis.com/bucket/dir/disk.img").unwrap();
    fake.second.store(true, Ordering::SeqCst);
    let error = source.open(0..u64::MAX).unwrap().read_to_end(&mut Vec::new()).expect_err("changed");
    assert!(Changed::find(&error).is_some(), "{error}");
}

#[test]
fn an_empty_object_is_empty() {
    let fake = fake(Vec::new());
    let source = open(&fake, "gs://bucket/dir/disk.img").unwrap();
    assert_eq!(source.facts().size, Some(0));
    assert_eq!(source.open(0..u64::MAX).unwrap().read_to_end(&mut Vec::new()).unwrap(), 0);
}

#[test]
fn a_missing_object_and_a_bad_account_are_told() {
    let fake = fake(bytes(10));
    let error = open(&fake, "gs://bucket/other").expect_err("missing").to_string();
    assert!(error.contains("gs://bucket/other answered 404"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let account = folder.path().join("account.json");
    std::fs::write(&account, "{\"private_key\": \"hunter2").unwrap();
    let options = Options { credentials: Some(account), ..Options::new("gs://bucket/x") };
    let error = gcs::open(&Net::new(Stop::new()).unwrap(), options).expect_err("rubbish");
    assert_eq!(error.kind(), importer::Kind::Usage);
    assert!(!format!("{error:?}").contains("hunter2"));
}

#[test]
fn an_account_signs_requests() {
    let data = bytes(100);
    let fake = fake(data.clone());
    let folder = tempfile::tempdir().unwrap();
    let account = folder.path().join("account.json");
    let text = format!(
        r#"{{"private_key": "p", "private_key_id": "i", "client_email": "e", "disable_oauth": true, "gcs_base_url": "{}"}}"#,
        fake.url
    );
    std::fs::write(&account, text).unwrap();
    let options = Options { credentials: Some(account), ..Options::new("gs://bucket/dir/disk.img") };
    let source = gcs::open(&Net::new(Stop::new()).unwrap(), options).unwrap();
    let mut got = Vec::new();
    source.open(0..u64::MAX).unwrap().read_to_end(&mut got).unwrap();
    assert_eq!(got, data);
}
