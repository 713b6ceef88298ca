//! The S3 source against s3s-fs, over TLS: signatures, ranges, conditions and refusals as another implementation of
//! the protocol sees them. What goes wrong between the two is shown by a front that cuts connections.

use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::Duration;

use disk_image::{Access, Source, Stop};
use importer::source::blocking::Net;
use importer::source::http::Changed;
use importer::source::remote::RemoteSource;
use importer::source::retry::Policy;
use importer::source::s3::{self, Options};
use importer::source::tls::Trust;
use sources::s3::Server;

fn options(server: &Server, path: &str) -> Options {
    let folder = server.folder.path().join("ca");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("ca.crt"), &server.pem).unwrap();
    let mut options = Options::new(format!("https://{}/{path}", server.address));
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
    let server = Server::start(&data, usize::MAX, true);
    let source = open(options(&server, "images/dir/disk.img")).unwrap();
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
    let server = Server::start(&data, 1_000_000, true);
    let source = open(options(&server, "images/dir/disk.img")).unwrap();
    assert!(read(&source, 0..u64::MAX).unwrap() == data);
    assert!(server.connections.load(Ordering::SeqCst) >= 5);
}

#[test]
fn anonymous_reads_are_not_signed() {
    let data = bytes(100_000);
    let server = Server::start(&data, usize::MAX, false);
    let source = open(Options { keys: None, ..options(&server, "images/dir/disk.img") }).unwrap();
    assert!(read(&source, 0..u64::MAX).unwrap() == data);
}

#[test]
fn a_changed_object_is_reported() {
    let server = Server::start(&bytes(3_000_000), usize::MAX, true);
    let source = open(options(&server, "images/dir/disk.img")).unwrap();
    std::fs::write(server.folder.path().join("store/images/dir/disk.img"), vec![7; 3_000_000]).unwrap();
    let error = read(&source, 1_000_000..2_000_000).expect_err("changed");
    assert!(Changed::find(&error).is_some(), "{error}");
}

#[test]
fn refusals_are_reported() {
    let server = Server::start(&bytes(1000), usize::MAX, true);
    let error = |options| open(options).expect_err("refused").to_string();
    let missing = error(options(&server, "images/none"));
    assert!(missing.contains("404") && missing.contains("no object of that name"), "{missing}");
    let keys = Some(("KEY".to_owned(), "hunter2".to_owned()));
    let wrong = error(Options { keys, ..options(&server, "images/dir/disk.img") });
    assert!(wrong.contains("403") && !wrong.contains("hunter2"), "{wrong}");
    let trusting = |trust| {
        let mut options = options(&server, "images/dir/disk.img");
        options.reach.trust = trust;
        options
    };
    let untrusted = error(trusting(Trust::default()));
    assert!(untrusted.contains("not trusted"), "{untrusted}");
    let insecure = Trust { insecure: true, ..Trust::default() };
    assert!(open(trusting(insecure)).is_ok());
    let empty = server.folder.path().join("store/images/empty");
    std::fs::write(empty, "").unwrap();
    let source = open(options(&server, "images/empty")).unwrap();
    assert_eq!(source.facts().size, Some(0));
    assert!(read(&source, 0..u64::MAX).unwrap().is_empty());
}
