//! Reading through the source. It is faster to fail than a real one: patience and stall limits are seconds here.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use disk_image::{Access, Source, Stop};
use importer::source::blocking::Net;
use importer::source::http::{self, Options};
use importer::source::remote::RemoteSource;
use importer::source::retry::Policy;

use crate::support::errors::chain;

/// Bytes that repeat nowhere nearby.
pub(crate) fn data(len: usize) -> Arc<Vec<u8>> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    Arc::new(bytes)
}

/// Seconds where the product has minutes.
pub(crate) fn quick(url: String) -> Options {
    let mut options = Options::new(url);
    options.reach.stall = Duration::from_secs(2);
    options.reach.retry = Policy {
        patience: Duration::from_secs(3),
        first: Duration::from_secs(3),
        base: Duration::from_millis(10),
        ..Policy::default()
    };
    options
}

pub(crate) fn open(options: Options) -> Result<RemoteSource, importer::Error> {
    http::open(&Net::new(Stop::new()).unwrap(), options)
}

/// Reads like the transfer does: parts on several threads if there are ranges, else one stream.
pub(crate) fn read_all(source: &RemoteSource) -> io::Result<Vec<u8>> {
    let facts = source.facts();
    if facts.access != Access::Ranges {
        let mut all = Vec::new();
        source.open(0..u64::MAX)?.read_to_end(&mut all)?;
        return Ok(all);
    }
    let size = facts.size.unwrap();
    let next = AtomicU64::new(0);
    let parts = Mutex::new(Vec::new());
    let part_size = 2_500_000;
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let start = next.fetch_add(part_size, Ordering::SeqCst);
                    if start >= size {
                        return;
                    }
                    let mut bytes = Vec::new();
                    let end = (start + part_size).min(size);
                    match source.open(start..end).and_then(|mut reader| reader.read_to_end(&mut bytes)) {
                        Ok(n) if n as u64 == end - start => parts.lock().unwrap().push((start, bytes)),
                        Ok(n) => panic!("{n} bytes without an error"),
                        Err(error) => {
                            *failure.lock().unwrap() = Some(error);
                            return;
                        }
                    }
                }
            });
        }
    });
    if let Some(error) = failure.into_inner().unwrap() {
        return Err(error);
    }
    let mut parts = parts.into_inner().unwrap();
    parts.sort();
    Ok(parts.into_iter().flat_map(|(_, bytes)| bytes).collect())
}

pub(crate) fn survives(options: Options, want: &[u8]) -> RemoteSource {
    let source = open(options).unwrap_or_else(|e| panic!("{}", chain(&e)));
    let got = read_all(&source).unwrap_or_else(|e| panic!("{}", chain(&e)));
    assert!(
        got == want,
        "{} bytes, wanted {}; equal up to {:?}",
        got.len(),
        want.len(),
        difference(&got, want)
    );
    source
}

pub(crate) fn difference(a: &[u8], b: &[u8]) -> Option<usize> {
    a.iter().zip(b).position(|(a, b)| a != b)
}

/// The error of opening or reading.
pub(crate) fn fails(options: Options) -> String {
    match open(options) {
        Err(error) => chain(&error),
        Ok(source) => match read_all(&source) {
            Ok(bytes) => panic!("{} bytes and no error", bytes.len()),
            Err(error) => chain(&error),
        },
    }
}
