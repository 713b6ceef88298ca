//! Upgrades and WebSockets on a real connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use http::StatusCode;
use serve::route::{Call, Router};
use serve::server::{self, Limits};
use serve::websocket::{Closure, KeepAlive};
use serve::{upgrade, websocket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::{Error, Message};

const PROTOCOLS: [&str; 2] = ["plain.kubevirt.io", "v4.example.org"];

/// Bounds of the streams at `/bounded`.
const PING: Duration = Duration::from_millis(50);
const SILENCE: Duration = Duration::from_millis(300);
const RIGHTS: Duration = Duration::from_secs(1);

/// A server that echoes bytes until `end` comes.
fn start(limits: Limits) -> (SocketAddr, watch::Sender<bool>) {
    let listener = server::listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let echo = |mut far: tokio::io::DuplexStream| async move {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(size @ 1..) = far.read(&mut bytes).await {
            if &bytes[..size] == b"end" {
                return;
            }
            far.write_all(&bytes[..size]).await.unwrap();
        }
    };
    let router = Router::new()
        .get("/socket", move |mut call: Call| async move {
            match websocket::accept(&mut call, &PROTOCOLS) {
                Ok((answer, pending)) => {
                    tokio::spawn(async move {
                        let (socket, _busy) = pending.socket().await.unwrap();
                        let (near, far) = tokio::io::duplex(1 << 16);
                        tokio::spawn(echo(far));
                        let (bytes, keep) = (websocket::Messages::Bytes, websocket::KeepAlive::default());
                        websocket::pipe(socket, near, bytes, keep, std::future::pending()).await.unwrap();
                    });
                    answer
                }
                Err(refusal) => refusal.answer(),
            }
        })
        // Pings each 50 ms a client that may be silent for 300 ms, and revokes the stream after one second.
        .get("/bounded", |mut call: Call| async move {
            match websocket::accept(&mut call, &PROTOCOLS) {
                Ok((answer, pending)) => {
                    tokio::spawn(async move {
                        let (socket, _busy) = pending.socket().await.unwrap();
                        let keep = KeepAlive { ping: PING, silence: Some(SILENCE) };
                        let over = async {
                            tokio::time::sleep(RIGHTS).await;
                            Closure::policy("the right was taken away")
                        };
                        let (near, _far) = tokio::io::duplex(1 << 16);
                        websocket::pipe(socket, near, websocket::Messages::Bytes, keep, over).await.unwrap();
                    });
                    answer
                }
                Err(refusal) => refusal.answer(),
            }
        })
        // Sends without an end, and revokes the stream after a while.
        .get("/flood", |mut call: Call| async move {
            match websocket::accept(&mut call, &PROTOCOLS) {
                Ok((answer, pending)) => {
                    tokio::spawn(async move {
                        let (socket, _busy) = pending.socket().await.unwrap();
                        let over = async {
                            tokio::time::sleep(SILENCE).await;
                            Closure::normal(&"ä".repeat(100))
                        };
                        let (near, mut far) = tokio::io::duplex(1 << 16);
                        tokio::spawn(async move { while far.write_all(&[0; 1 << 14]).await.is_ok() {} });
                        let (bytes, keep) = (websocket::Messages::Bytes, KeepAlive::default());
                        websocket::pipe(socket, near, bytes, keep, over).await.unwrap();
                    });
                    answer
                }
                Err(refusal) => refusal.answer(),
            }
        })
        .get("/stream", |mut call: Call| async move {
            match upgrade::accept(&mut call, "ferrovirt-stream") {
                Ok((answer, pending)) => {
                    tokio::spawn(async move {
                        let (mut stream, _busy) = pending.stream().await.unwrap();
                        let mut bytes = [0; 5];
                        stream.read_exact(&mut bytes).await.unwrap();
                        stream.write_all(&bytes).await.unwrap();
                        stream.shutdown().await.unwrap();
                    });
                    answer
                }
                Err(refusal) => refusal.answer(),
            }
        });
    let (close, closing) = watch::channel(false);
    tokio::spawn(server::serve(listener, None, limits, Arc::new(router), closing));
    (address, close)
}

#[tokio::test]
async fn websockets_carry_bytes_both_ways_and_close() {
    let (address, _close) = start(Limits::default());
    let mut request = format!("ws://{address}/socket").into_client_request().unwrap();
    request.headers_mut().insert("Sec-WebSocket-Protocol", "other, plain.kubevirt.io".parse().unwrap());
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut socket, answer) = tokio_tungstenite::client_async(request, stream).await.unwrap();
    assert_eq!(answer.headers()["sec-websocket-protocol"], "plain.kubevirt.io");
    let long = vec![7; 100_000];
    socket.send(Message::Binary(long.clone().into())).await.unwrap();
    let mut echoed = Vec::new();
    while echoed.len() < long.len() {
        echoed.extend(socket.next().await.unwrap().unwrap().into_data());
    }
    assert!(echoed == long);
    socket.send(Message::Ping("x".into())).await.unwrap();
    assert_eq!(socket.next().await.unwrap().unwrap(), Message::Pong("x".into()));
    socket.send(Message::Binary("end".into())).await.unwrap();
    assert!(socket.next().await.unwrap().unwrap().is_close());
}

async fn connect(address: SocketAddr, path: &str) -> tokio_tungstenite::WebSocketStream<TcpStream> {
    let request = format!("ws://{address}{path}").into_client_request().unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    tokio_tungstenite::client_async(request, stream).await.unwrap().0
}

/// The closure of a stream as code and reason, and the pings before it.
async fn closure(socket: &mut tokio_tungstenite::WebSocketStream<TcpStream>) -> (u16, String, usize) {
    let mut pings = 0;
    loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Ping(content) => {
                assert_eq!(&content[..], b"keep alive");
                pings += 1;
            }
            Message::Close(frame) => {
                let frame = frame.unwrap();
                return (frame.code.into(), frame.reason.to_string(), pings);
            }
            Message::Text(_) | Message::Binary(_) | Message::Pong(_) | Message::Frame(_) => {}
        }
    }
}

#[tokio::test]
async fn a_client_that_answers_pings_stays_until_its_right_is_taken_away() {
    let (address, _close) = start(Limits::default());
    let begun = std::time::Instant::now();
    let (code, reason, pings) = closure(&mut connect(address, "/bounded").await).await;
    assert_eq!((code, reason.as_str()), (1008, "the right was taken away"));
    assert!(begun.elapsed() >= RIGHTS && pings >= 5, "{pings} pings");
}

#[tokio::test]
async fn a_silent_client_is_dropped() {
    let (address, _close) = start(Limits::default());
    let mut stream = connect(address, "/bounded").await.into_inner();
    // Reads bytes and answers nothing.
    let begun = std::time::Instant::now();
    let text = b"no answer to pings for 0.3 seconds";
    let mut received = Vec::new();
    while !received.windows(text.len()).any(|window| window == text) {
        let read = tokio::time::timeout(RIGHTS, stream.read_buf(&mut received)).await;
        assert!(read.unwrap().unwrap() > 0, "closed without a reason");
    }
    assert!(begun.elapsed() < RIGHTS, "dropped before its right ends");
}

#[tokio::test]
async fn a_client_that_does_not_read_is_closed_and_one_that_reads_late_gets_the_reason() {
    let (address, _close) = start(Limits::default());
    let mut late = connect(address, "/flood").await;
    tokio::time::sleep(SILENCE * 2).await;
    let (code, reason, _) = closure(&mut late).await;
    assert_eq!((code, reason), (1000, "ä".repeat(61)), "cut to the longest that a closure may have");
    let never = connect(address, "/flood").await;
    tokio::time::sleep(SILENCE + Duration::from_secs(3)).await;
    let mut stream = never.into_inner();
    let drained = async {
        let mut piece = vec![0; 1 << 16];
        while let Ok(1..) = stream.read(&mut piece).await {}
    };
    tokio::time::timeout(Duration::from_secs(5), drained).await.unwrap();
}

#[tokio::test]
async fn an_unknown_subprotocol_and_a_plain_request_are_refused() {
    let (address, _close) = start(Limits::default());
    let mut request = format!("ws://{address}/socket").into_client_request().unwrap();
    request.headers_mut().insert("Sec-WebSocket-Protocol", "other".parse().unwrap());
    let stream = TcpStream::connect(address).await.unwrap();
    let Err(Error::Http(answer)) = tokio_tungstenite::client_async(request, stream).await else {
        panic!("accepted")
    };
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    for path in ["/socket", "/stream"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream
            .write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").as_bytes())
            .await
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("this path needs"), "{answer}");
    }
}

#[tokio::test]
async fn a_stream_replaces_the_connection_and_is_not_evicted() {
    let (address, _close) = start(Limits { connections: 1, ..Limits::default() });
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        "GET /stream HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: ferrovirt-stream\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    // Another client waits for the stream's end.
    let mut other = TcpStream::connect(address).await.unwrap();
    other.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
    stream.write_all(b"hello").await.unwrap();
    let mut echoed = String::new();
    stream.read_to_string(&mut echoed).await.unwrap();
    assert_eq!(echoed, "hello");
    drop(stream);
    let mut answer = String::new();
    other.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
}

/// Informational answers to every request.
struct Announcing;

/// Bytes of an answer: more than sockets hold.
const LONG: usize = 16 << 20;

impl server::Service for Announcing {
    type Body = http_body_util::Full<bytes::Bytes>;

    async fn answer(
        &self,
        request: http::Request<hyper::body::Incoming>,
        connection: &Arc<server::Connection>,
    ) -> http::Response<Self::Body> {
        let number = request.uri().path().trim_start_matches('/').to_owned();
        connection.informational().unwrap().push(&format!("HTTP/1.1 104 Begun {number}\r\n\r\n"));
        http::Response::new(bytes::Bytes::from(vec![b'x'; LONG]).into())
    }
}

#[tokio::test]
async fn informational_answers_come_before_the_answer_of_their_request_on_every_request() {
    let listener = server::listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = tokio::net::TcpListener::from_std(listener).unwrap();
    let (_close, closing) = watch::channel(false);
    tokio::spawn(server::serve(listener, None, Limits::default(), Arc::new(Announcing), closing));
    let mut stream = TcpStream::connect(address).await.unwrap();
    // The second and third request are there before the first one's answer is read.
    for number in 1..=3 {
        let request = format!("GET /{number} HTTP/1.1\r\nHost: x\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
    }
    tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    let mut stream = tokio::io::BufReader::new(stream);
    for number in 1..=3 {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        assert_eq!(String::from_utf8_lossy(&head), format!("HTTP/1.1 104 Begun {number}\r\n\r\n"));
        head.clear();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 200 "), "{}", String::from_utf8_lossy(&head));
        let mut body = vec![0; LONG];
        stream.read_exact(&mut body).await.unwrap();
        assert!(body.iter().all(|byte| *byte == b'x'), "request {number}");
    }
}

/// One answer over a connection that may be kept.
async fn ask(stream: &mut TcpStream) -> String {
    stream.write_all(b"GET /socket HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(answer).unwrap().to_ascii_lowercase()
}

#[tokio::test]
async fn during_the_withdrawal_each_answer_ends_its_connection_and_idle_ones_stay() {
    let withdrawal = Duration::from_millis(500);
    let (address, close) = start(Limits { withdrawal, ..Limits::default() });
    let mut kept = TcpStream::connect(address).await.unwrap();
    let mut idle = TcpStream::connect(address).await.unwrap();
    assert!(!ask(&mut kept).await.contains("connection: close"), "before the stop");
    close.send_replace(true);
    tokio::time::sleep(withdrawal / 5).await;
    let mut new = TcpStream::connect(address).await.unwrap();
    for stream in [&mut kept, &mut new] {
        assert!(ask(stream).await.contains("connection: close"), "after the stop");
    }
    kept.read_to_end(&mut Vec::new()).await.unwrap();
    assert!(tokio::time::timeout(withdrawal / 5, idle.read_u8()).await.is_err(), "idle, and open");
    tokio::time::timeout(withdrawal * 4, idle.read_to_end(&mut Vec::new())).await.unwrap().unwrap();
    assert!(TcpStream::connect(address).await.is_err(), "after the withdrawal");
}
