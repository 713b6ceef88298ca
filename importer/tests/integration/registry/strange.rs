//! Registries that are none: credentials stay with the one they are for, and no answer is without bounds.

use std::io;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use importer::Kind;
use importer::source::registry::Options;

use crate::registry::pull::{assert_pulled, assert_refused, options};
use crate::registry::servers::request_head;
use sources::images::{GZIP, Layer, MIB, OCI_MANIFEST, PASSWORD, USER, disk, manifest};

/// A server with scripted answers, without TLS; stops when dropped.
struct Fake {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    /// Heads of the requests that came.
    seen: Arc<Mutex<Vec<String>>>,
}

impl Fake {
    fn start(handler: impl Fn(&str, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let fake =
            Self { address: listener.local_addr().unwrap(), over: Arc::default(), seen: Arc::default() };
        let (over, seen, handler) = (fake.over.clone(), fake.seen.clone(), Arc::new(handler));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(mut stream) = stream else { continue };
                let (seen, handler) = (seen.clone(), handler.clone());
                std::thread::spawn(move || {
                    let mut first = [0];
                    // A client that tries TLS is hung up on.
                    if stream.peek(&mut first).is_ok()
                        && first[0] != 0x16
                        && let Some(head) = request_head(&mut stream)
                    {
                        seen.lock().unwrap().push(head.clone());
                        drop(handler(&head, &mut stream));
                    }
                    drop(stream.shutdown(Shutdown::Both));
                });
            }
        });
        fake
    }

    fn heads(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

fn answer(out: &mut TcpStream, status: &str, headers: &str, body: &[u8]) -> io::Result<()> {
    write!(out, "HTTP/1.1 {status}\r\n{headers}Connection: close\r\nContent-Length: {}\r\n\r\n", body.len())?;
    out.write_all(body)
}

/// A body that continues as long as a client reads it; notes when that was 64 MiB.
fn endless(out: &mut TcpStream, front: &[u8], taken: &AtomicBool) -> io::Result<()> {
    write!(out, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
    out.write_all(front)?;
    for _ in 0..64 {
        out.write_all(&vec![b' '; MIB])?;
    }
    taken.store(true, Ordering::SeqCst);
    Ok(())
}

fn authorized(head: &str) -> bool {
    head.to_ascii_lowercase().contains("\r\nauthorization:")
}

#[test]
fn credentials_stay_with_the_registry() {
    let layer = Layer::new(GZIP, &[("disk/a", &disk(MIB, 9))]);
    let manifest = manifest(OCI_MANIFEST, "c", b"{}", std::slice::from_ref(&layer)).to_string().into_bytes();
    let blob = layer.blob;
    // Blobs lie elsewhere, on a server without ranges, under addresses that are good for one use.
    let elsewhere = Fake::start(move |_, out| answer(out, "200 OK", "", &blob));
    let target = elsewhere.address;
    let registry = Fake::start(move |head, out| {
        let challenge = "WWW-Authenticate: Basic realm=\"x\"\r\n";
        match head.split_whitespace().nth(1).unwrap() {
            "/v2/" => answer(out, "200 OK", "", b""),
            _ if !authorized(head) => answer(out, "401 Unauthorized", challenge, b""),
            path if path.contains("/blobs/") => {
                let location = format!("Location: http://{target}/signed?key=hunter2\r\n");
                answer(out, "307 Temporary Redirect", &location, b"")
            }
            _ => answer(out, "200 OK", "", &manifest),
        }
    });
    let image = format!("docker://{}/a", registry.address);
    let login = Options { user: Some(USER.into()), password: Some(PASSWORD.into()), ..options(image, None) };
    assert_pulled(&login, &disk(MIB, 9));
    let heads = elsewhere.heads();
    assert!(!heads.is_empty() && !heads.iter().any(|head| authorized(head)), "{heads:?}");
    assert!(registry.heads().iter().filter(|head| authorized(head)).count() >= 2);
}

#[test]
fn hostile_registries_are_bounded() {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let manifest = Fake::start(|_, out| endless(out, b"{\"schemaVersion\":2", &TAKEN));
    let image = format!("docker://{}/a", manifest.address);
    assert_refused(&options(image, None), Kind::Refused, "is longer than 4194304 bytes");

    // A token without end; one that is no token; a realm that is no address; a challenge that is none.
    let realm = |handler: fn(&mut TcpStream) -> io::Result<()>| Fake::start(move |_, out| handler(out));
    let long = realm(|out| endless(out, b"{\"token\":\"", &TAKEN));
    let none = realm(|out| answer(out, "200 OK", "", b"{\"token\":7,\"eyJ\":1}"));
    for (challenge, words) in [
        (format!("Bearer realm=\"http://{}/t\"", long.address), "a token of more than"),
        (format!("Bearer realm=\"http://{}/t\"", none.address), "gives no token"),
        ("Bearer realm=\"nowhere\"".to_owned(), "by an invalid address"),
        ("Bearer".to_owned(), "by an invalid address"),
        ("Negotiate".to_owned(), "answered 401"),
        ("Bearer realm=\"".to_owned(), "answered 401"),
    ] {
        let registry = Fake::start(move |head, out| match head.split_whitespace().nth(1).unwrap() {
            "/v2/" => answer(out, "200 OK", "", b""),
            _ => answer(out, "401 Unauthorized", &format!("WWW-Authenticate: {challenge}\r\n"), b""),
        });
        let image = format!("docker://{}/a", registry.address);
        assert_refused(&options(image, None), Kind::Connect, words);
    }
    assert!(!TAKEN.load(Ordering::SeqCst), "64 MiB were read");
}
