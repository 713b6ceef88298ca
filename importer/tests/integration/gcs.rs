//! The GCS source against a small server (`e2e/sources`) that answers the reads the client sends. A real one cannot be had here: what
//! is shown is ranges, conditions, retries and tokens as this client speaks them, not Google's side.

use std::io::Read;
use std::sync::atomic::Ordering;
use std::time::Duration;

use disk_image::{Access, Source, Stop};
use importer::source::blocking::Net;
use importer::source::gcs::{self, Options};
use importer::source::http::Changed;
use importer::source::remote::RemoteSource;
use importer::source::retry::Policy;
use sources::gcs::Fake;

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
    let fake = Fake::start(data.clone());
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
fn a_changed_object_is_reported() {
    let fake = Fake::start(bytes(3_000_000));
    let source = open(&fake, "https://storage.googleapis.com/bucket/dir/disk.img").unwrap();
    fake.second.store(true, Ordering::SeqCst);
    let error = source.open(0..u64::MAX).unwrap().read_to_end(&mut Vec::new()).expect_err("changed");
    assert!(Changed::find(&error).is_some(), "{error}");
}

#[test]
fn an_empty_object_is_empty() {
    let fake = Fake::start(Vec::new());
    let source = open(&fake, "gs://bucket/dir/disk.img").unwrap();
    assert_eq!(source.facts().size, Some(0));
    assert_eq!(source.open(0..u64::MAX).unwrap().read_to_end(&mut Vec::new()).unwrap(), 0);
}

#[test]
fn a_missing_object_and_a_bad_account_are_reported() {
    let fake = Fake::start(bytes(10));
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
    let fake = Fake::start(data.clone());
    let folder = tempfile::tempdir().unwrap();
    let account = folder.path().join("account.json");
    std::fs::write(&account, fake.account()).unwrap();
    let options = Options { credentials: Some(account), ..Options::new("gs://bucket/dir/disk.img") };
    let source = gcs::open(&Net::new(Stop::new()).unwrap(), options).unwrap();
    let mut got = Vec::new();
    source.open(0..u64::MAX).unwrap().read_to_end(&mut got).unwrap();
    assert_eq!(got, data);
}
