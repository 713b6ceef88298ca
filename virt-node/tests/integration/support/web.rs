//! Web servers of one file, without ranges; they end with the test's process. Not here: registries and stores, which the
//! package `sources` has.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// Serves a file; gives its URL.
pub(crate) fn file(name: &str, content: Vec<u8>) -> String {
    start(name, content, |stream, content| drop(stream.write_all(content)))
}

/// Serves the first half of a file and keeps the connection open; gives its URL.
pub(crate) fn stalled(name: &str, content: Vec<u8>) -> String {
    start(name, content, |stream, content| {
        drop(stream.write_all(&content[..content.len() / 2]));
        std::thread::sleep(Duration::from_secs(600));
    })
}

/// A server that sends the body of a GET by `send`.
fn start(name: &str, content: Vec<u8>, send: fn(&mut TcpStream, &[u8])) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, content) = (stream.unwrap(), content.clone());
            std::thread::spawn(move || {
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).is_ok() {
                    head.push(byte[0]);
                }
                let length = content.len();
                let answer =
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
                // A client may have closed the connection, or may want the head alone.
                drop(stream.write_all(answer.as_bytes()));
                if head.starts_with(b"GET") {
                    send(&mut stream, &content);
                }
            });
        }
    });
    format!("http://{address}/{name}")
}
