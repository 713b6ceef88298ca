//! Pulling a disk with the library: how a registry is reached, the data, and the messages.

use std::io::Read;
use std::time::Duration;

use disk_image::{Source, Stop};
use importer::source::blocking::Net;
use importer::source::layer::Disk;
use importer::source::registry;
use importer::source::registry::Options;
use importer::source::remote::Reach;
use importer::source::retry::Policy;
use importer::source::tls::Trust;
use importer::{Error, Kind};

use crate::support::errors::chain;
use sources::images::{PASSWORD, USER};
use sources::registry::Tls;

pub(crate) fn options(image: String, tls: Option<&Tls>) -> Options {
    let trust = match tls {
        Some(tls) => Trust { folders: vec![tls.certs()], ..Trust::default() },
        None => Trust { insecure: true, ..Trust::default() },
    };
    let retry = Policy {
        patience: Duration::from_secs(5),
        first: Duration::from_secs(3),
        base: Duration::from_millis(10),
        ..Policy::default()
    };
    let reach = Reach { trust, retry, stall: Duration::from_secs(5), ..Reach::default() };
    Options { reach, ..Options::new(image) }
}

pub(crate) fn with_user(image: String, tls: &Tls, password: &str) -> Options {
    Options { user: Some(USER.to_owned()), password: Some(password.to_owned()), ..options(image, Some(tls)) }
}

pub(crate) fn open(options: &Options) -> Result<Disk, Error> {
    registry::open(&Net::new(Stop::new()).unwrap(), options)
}

/// The disk, read to its end and verified.
pub(crate) fn read(disk: &Disk) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let mut reader = disk.open(0..u64::MAX).unwrap();
    reader.read_to_end(&mut bytes).map_err(|e| Error::with(Kind::Process, "reading", e))?;
    drop(reader);
    disk.verify(&Stop::new())?;
    Ok(bytes)
}

pub(crate) fn pull(options: &Options) -> Result<Vec<u8>, Error> {
    read(&open(options)?)
}

#[track_caller]
pub(crate) fn assert_pulled(options: &Options, want: &[u8]) {
    let got = pull(options).unwrap_or_else(|e| panic!("{}", chain(&e)));
    assert!(got == want, "{} bytes, wanted {}", got.len(), want.len());
}

#[track_caller]
pub(crate) fn assert_refused(options: &Options, kind: Kind, words: &str) {
    let error = pull(options).expect_err("nothing was wrong");
    let text = chain(&error);
    assert!(error.kind() == kind && text.contains(words), "{:?}: {text}", error.kind());
    assert!(!text.contains(PASSWORD) && !text.contains("Bearer") && !text.contains("eyJ"), "{text}");
}
