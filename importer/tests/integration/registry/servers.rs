//! Proxies between a registry and its client: connections that are cut, and a request's head as a server reads it.

use std::io;
use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Passes connections on to `target` and cuts each after `every` bytes towards the client.
pub(crate) struct Cutter {
    pub(crate) address: SocketAddr,
    pub(crate) over: Arc<AtomicBool>,
    pub(crate) cuts: Arc<AtomicUsize>,
}

impl Cutter {
    pub(crate) fn start(target: SocketAddr, every: u64) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let cutter =
            Self { address: listener.local_addr().unwrap(), over: Arc::default(), cuts: Arc::default() };
        let (over, cuts) = (cutter.over.clone(), cutter.cuts.clone());
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, TcpStream::connect(target)) else { continue };
                let (mut up, mut down) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || {
                    drop(io::copy(&mut up, &mut down));
                    drop(down.shutdown(Shutdown::Both));
                });
                let cuts = cuts.clone();
                std::thread::spawn(move || {
                    let passed = io::copy(&mut (&server).take(every), &mut &client).unwrap_or(0);
                    if passed == every {
                        cuts.fetch_add(1, Ordering::SeqCst);
                    }
                    drop(client.shutdown(Shutdown::Both));
                    drop(server.shutdown(Shutdown::Both));
                });
            }
        });
        cutter
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

pub(crate) fn request_head(stream: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    String::from_utf8(head).ok()
}
