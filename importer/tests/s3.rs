//! The S3 source against s3s-fs, over TLS: signatures, ranges, conditions and refusals as another implementation of
//! the protocol sees them. What goes wrong between the two is shown by a front that cuts connections.

#![expect(clippy::cast_possible_truncation, reason = "small test data")]
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/tls.rs"]
mod tls;

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use disk_image::{Access, Source, Stop};
use hyper_util::rt::TokioIo;
use importer::source::blocking::Net;
use importer::source::http::Changed;
use importer::source::remote::RemoteSource;
use importer::source::retry::Policy;
use importer::source::s3::{self, Options};
use importer::source::tls::Trust;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use tls::server_config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct Server {
    address: std::net::SocketAddr,
    folder: tempfile::TempDir,
    runtime: Option<tokio::runtime::Runtime>,
    pem: String,
    connections: Arc<AtomicUsize>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A store of one bucket; each connection is cut after `cut` bytes.
fn server(data: &[u8], cut: usize, signed: bool) -> Server {
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
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
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
    Server { address, folder, runtime: Some(runtime), pem: made.cert.pem(), connections }
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

impl Server {
    fn options(&self, path: &str) -> Options {
        let folder = self.folder.path().join("ca");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("ca.crt"), &self.pem).unwrap();
        let mut options = Options::new(format!("https://{}/{path}", self.address));
        options.reach.trust = Trust { folders: vec![folder], ..Trust::default() };
        options.keys = Some(("KEY".to_owned(), "SECRET".to_owned()));
        options.reach.stall = Duration::from_secs(10);
        options.reach.retry = Policy {
            patience: Duration::from_secs(5),
            first: Duration::from_secs(2),
            base: Duration::from_millis(10),
            ..Policy::default()
        };
        options
    }
}

fn open(options: Options) -> Result<RemoteSource, importer::Error> {
    s3::open(&Net::new(Stop::new()).unwrap(), options)
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 251 % 256) as u8 ^ (i % 251) as u8).collect()
}

fn read(source: &RemoteSource, range: std::ops::Range<u64>) -> std::io::Result<Vec<u8>> {
    let mut got = Vec::new();
    source.open(range)?.read_to_end(&mut got)?;
    Ok(got)
}

#[test]
fn a_signed_object_is_read_in_ranges() {
    let data = bytes(6_000_000);
    let server = server(&data, usize::MAX, true);
    let source = open(server.options("images/dir/disk.img")).unwrap();
    assert_eq!(source.facts(), disk_image::Facts { size: Some(6_000_000), access: Access::Ranges });
    assert!(read(&source, 0..u64::MAX).unwrap() == data);
    for start in (0..6_000_000).step_by(1_500_000) {
        let end = start + 1_500_000;
        assert!(read(&source, start as u64..end as u64).unwrap() == data[start..end]);
    }
    assert_eq!(server.connections.load(Ordering::SeqCst), 1, "one after the other on one connection");
    let identity = source.identity().unwrap();
    assert!(identity.contains("images/dir/disk.img") && !identity.contains("SECRET"), "{identity}");
}

#[test]
fn cut_connections_are_survived() {
    let data = bytes(5_000_000);
    let server = server(&data, 1_000_000, true);
    let source = open(server.options("images/dir/disk.img")).unwrap();
    assert!(read(&source, 0..u64::MAX).unwrap() == data);
    assert!(server.connections.load(Ordering::SeqCst) >= 5);
}

#[test]
fn anonymous_reads_are_not_signed() {
    let data = bytes(100_000);
    let server = server(&data, usize::MAX, false);
    let source = open(Options { keys: None, ..server.options("images/dir/disk.img") }).unwrap();
    assert!(read(&source, 0..u64::MAX).unwrap() == data);
}

#[test]
fn a_changed_object_is_told() {
    let server = server(&bytes(3_000_000), usize::MAX, true);
    let source = open(server.options("images/dir/disk.img")).unwrap();
    std::fs::write(server.folder.path().join("store/images/dir/disk.img"), vec![7; 3_000_000]).unwrap();
    let error = read(&source, 1_000_000..2_000_000).expect_err("changed");
    assert!(Changed::find(&error).is_some(), "{error}");
}

#[test]
fn refusals_are_told() {
    let server = server(&bytes(1000), usize::MAX, true);
    let error = |options| open(options).expect_err("refused").to_string();
    let missing = error(server.options("images/none"));
    assert!(missing.contains("404") && missing.contains("nothing of that name"), "{missing}");
    let keys = Some(("KEY".to_owned(), "hunter2".to_owned()));
    let wrong = error(Options { keys, ..server.options("images/dir/disk.img") });
    assert!(wrong.contains("403") && !wrong.contains("hunter2"), "{wrong}");
    let trusting = |trust| {
        let mut options = server.options("images/dir/disk.img");
        options.reach.trust = trust;
        options
    };
    let untrusted = error(trusting(Trust::default()));
    assert!(untrusted.contains("not trusted"), "{untrusted}");
    let insecure = Trust { insecure: true, ..Trust::default() };
    assert!(open(trusting(insecure)).is_ok());
    let empty = server.folder.path().join("store/images/empty");
    std::fs::write(empty, "").unwrap();
    let source = open(server.options("images/empty")).unwrap();
    assert_eq!(source.facts().size, Some(0));
    assert!(read(&source, 0..u64::MAX).unwrap().is_empty());
}
