//! Idle, slow and hostile clients of a server: others are answered in time. Over TLS and plain.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use serve::route::{Call, Router, text};
use serve::server::{self, Limits};
use serve::tls::{Current, Identity, Live};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;

/// Time for one request of a good client among hostile ones. A machine that does other work is slower than the promise.
const IN_TIME: Duration = Duration::from_secs(1);

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

struct Server {
    address: SocketAddr,
    close: watch::Sender<bool>,
    running: tokio::task::JoinHandle<()>,
    tls: bool,
}

/// A server of `/healthz` and, by POST, `/length`.
fn start(tls: bool, limits: Limits) -> Server {
    let listener = server::listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let router = Router::new()
        .get("/healthz", |_| async { text(StatusCode::OK, "ok") })
        .get("/slow", |_| async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            text(StatusCode::OK, "late")
        })
        .route(Method::POST, "/length", |mut call: Call| async move {
            match call.bytes(1 << 20).await {
                Ok(bytes) => text(StatusCode::OK, format!("{} bytes", bytes.len())),
                Err(refusal) => refusal.answer(),
            }
        });
    let config =
        tls.then(|| Live::of(Identity::self_signed().server_config(None).unwrap()) as Arc<dyn Current>);
    let (close, closing) = watch::channel(false);
    let running = tokio::spawn(server::serve(listener, config, limits, Arc::new(router), closing));
    Server { address, close, running, tls }
}

impl Server {
    async fn connect(&self) -> Box<dyn Stream> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        if !self.tls {
            return Box::new(stream);
        }
        let config = serve::trust::client(None).unwrap();
        let name = "localhost".try_into().unwrap();
        Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap())
    }

    /// The answer to a request on a connection of its own.
    async fn ask(&self, request: &str) -> String {
        let mut stream = self.connect().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        read_all(&mut stream).await
    }

    async fn health(&self) -> Duration {
        let begun = Instant::now();
        let answer = self.ask("GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("ok"), "{answer}");
        begun.elapsed()
    }
}

/// All that comes; a peer that leaves without a TLS closure is an end.
async fn read_all(stream: &mut (impl AsyncRead + Unpin + ?Sized)) -> String {
    let mut bytes = Vec::new();
    let _closed = stream.read_to_end(&mut bytes).await;
    String::from_utf8(bytes).unwrap()
}

fn count() -> usize {
    if std::env::var_os("FERROVIRT_SOAK").is_some() { 1000 } else { 300 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_and_unfinished_handshakes_delay_no_client() {
    for tls in [false, true] {
        let server = start(tls, Limits { connections: 32, handshakes: 16, ..Limits::default() });
        let mut silent = Vec::new();
        for _ in 0..count() {
            silent.push(TcpStream::connect(server.address).await.unwrap());
        }
        for _ in 0..5 {
            let took = server.health().await;
            assert!(took < IN_TIME, "TLS {tls}: {took:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_heads_and_bodies_delay_no_client() {
    for tls in [false, true] {
        let server = start(tls, Limits { connections: 32, ..Limits::default() });
        let mut slow = Vec::new();
        for number in 0..count().min(256) {
            let mut stream = server.connect().await;
            let part = match number % 2 {
                0 => format!("GET /healthz HTTP/1.1\r\nHost: x\r\nX: {}", "x".repeat(15 << 10)),
                _ => "POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n12".to_owned(),
            };
            stream.write_all(part.as_bytes()).await.unwrap();
            slow.push(stream);
        }
        for _ in 0..5 {
            let took = server.health().await;
            assert!(took < IN_TIME, "TLS {tls}: {took:?}");
        }
        let answer = server
            .ask("POST /length HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc")
            .await;
        assert!(answer.ends_with("3 bytes"), "{answer}");
    }
}

#[tokio::test]
async fn a_handshake_ends_after_its_time() {
    let limits = Limits { handshake_time: Duration::from_millis(100), ..Limits::default() };
    let server = start(true, limits);
    let mut silent = TcpStream::connect(server.address).await.unwrap();
    let begun = Instant::now();
    assert_eq!(silent.read(&mut [0; 8]).await.unwrap(), 0);
    assert!(begun.elapsed() < Duration::from_secs(5));
}

#[tokio::test]
async fn a_head_of_more_than_16_kib_is_refused_with_431() {
    for (size, status) in [(12 << 10, "200"), (20 << 10, "431"), (200 << 10, "431")] {
        let server = start(true, Limits::default());
        let request = format!(
            "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX: {}\r\n\r\n",
            "x".repeat(size)
        );
        let mut stream = server.connect().await;
        // The rest of a head that is too long may not be taken any more.
        let _refused = stream.write_all(request.as_bytes()).await;
        let answer = read_all(&mut stream).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{size}: {answer}");
    }
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused_and_not_read() {
    let server = start(true, Limits::default());
    let mut stream = server.connect().await;
    let head = "POST /length HTTP/1.1\r\nHost: x\r\nContent-Length: 2000000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
    assert!(answer.to_ascii_lowercase().contains("connection: close"), "{answer}");
    assert!(answer.ends_with("the request body is longer than 1048576 bytes\n"), "{answer}");
    // The same in chunks, without an announced sum.
    let mut stream = server.connect().await;
    let head = "POST /length HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(1 << 16));
    for _ in 0..17 {
        if stream.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    let answer = read_all(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[tokio::test]
async fn a_request_with_length_and_chunks_is_read_by_its_chunks_and_the_last_one_of_its_connection() {
    let server = start(false, Limits::default());
    for headers in [
        "Content-Length: 3\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 3",
        "Transfer-Encoding: chunked\r\nContent-Length: 300",
    ] {
        // Behind the chunks another request, which a proxy that goes by the length may take for part of the body.
        let answer = server
            .ask(&format!(
                "POST /length HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
            ))
            .await;
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("5 bytes"), "{headers}: {answer}");
        assert!(answer.to_ascii_lowercase().contains("connection: close"), "{headers}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{headers}: {answer}");
    }
}

#[tokio::test]
async fn running_requests_end_before_the_server_does() {
    let server = start(true, Limits::default());
    let mut stream = server.connect().await;
    stream.write_all(b"GET /slow HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let _idle = server.connect().await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    server.close.send_replace(true);
    let answer = read_all(&mut stream).await;
    assert!(answer.ends_with("late"), "{answer}");
    tokio::time::timeout(Duration::from_secs(5), server.running).await.unwrap().unwrap();
    assert!(TcpStream::connect(server.address).await.is_err());
}
