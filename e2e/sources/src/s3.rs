//! An S3 store, s3s-fs, over TLS, behind a front that cuts connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::tls::server_config;

/// A store over TLS; stopped when dropped.
#[derive(Debug)]
pub struct Server {
    /// Where it listens.
    pub address: std::net::SocketAddr,
    /// `store/images/dir/disk.img` is what was given.
    pub folder: tempfile::TempDir,
    runtime: Option<tokio::runtime::Runtime>,
    /// Its certificate.
    pub pem: String,
    /// How many connections there were.
    pub connections: Arc<AtomicUsize>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Server {
    /// A store of one bucket; each connection is cut after `cut` bytes. Signed requests are `KEY`'s, with
    /// `SECRET`.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn start(data: &[u8], cut: usize, signed: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("store");
        std::fs::create_dir_all(store.join("images/dir")).unwrap();
        std::fs::write(store.join("images/dir/disk.img"), data).unwrap();
        let mut builder = S3ServiceBuilder::new(s3s_fs::FileSystem::new(&store).unwrap());
        if signed {
            builder.set_auth(SimpleAuth::from_single("KEY", "SECRET"));
        }
        let service = builder.build();
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let config = server_config(made.cert.der().clone(), &made.signing_key);
        let acceptor = tokio_rustls::TlsAcceptor::from(config);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::<AtomicUsize>::default();
        let counted = connections.clone();
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let (acceptor, service) = (acceptor.clone(), service.clone());
                tokio::spawn(async move {
                    let (inner, outer) = tokio::io::duplex(64 << 10);
                    tokio::spawn(front(socket, outer, cut));
                    let Ok(stream) = acceptor.accept(inner).await else { return };
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, folder, runtime: Some(runtime), pem: made.cert.pem(), connections }
    }
}

/// Passes bytes on until `cut` of them went to the client.
async fn front(socket: tokio::net::TcpStream, server: tokio::io::DuplexStream, cut: usize) {
    let (mut from_client, mut to_client) = socket.into_split();
    let (mut from_server, mut to_server) = tokio::io::split(server);
    let up = tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    let mut left = cut;
    let mut buffer = vec![0; 32 << 10];
    while left > 0 {
        let Ok(n @ 1..) = from_server.read(&mut buffer).await else { break };
        let n = n.min(left);
        if to_client.write_all(&buffer[..n]).await.is_err() {
            break;
        }
        left -= n;
    }
    drop(to_client);
    up.abort();
}
