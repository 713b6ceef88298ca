//! Messages of refusals: one damage done to a good image, and the error of reading it.

use disk_image::{Format, Kind};

use crate::support::images::put;
use crate::support::read_image;

/// The error of reading `image`, shortened.
pub(crate) fn outcome(image: &[u8], format: Format) -> Result<usize, (Kind, String)> {
    read_image(image, format).map(|disk| disk.len()).map_err(|e| (e.kind(), e.to_string()))
}

pub(crate) fn refuses(image: &[u8], format: Format, kind: Kind, word: &str, what: &str) {
    match outcome(image, format) {
        Err((got, message)) if got == kind && message.contains(word) => {}
        other => panic!("{what}: {other:?}, not {kind:?} with {word:?}"),
    }
}

/// One damage done to a good image: name, offset, bytes, what it must end with and a word of the message.
pub(crate) type Case<'a> = (&'a str, usize, &'a [u8], Kind, &'a str);

pub(crate) fn run(format: Format, base: &[u8], repair: fn(&mut [u8]), cases: &[Case<'_>]) {
    assert!(outcome(base, format).is_ok());
    for (what, at, bytes, kind, word) in cases {
        let mut image = base.to_vec();
        put(&mut image, *at, bytes);
        repair(&mut image);
        refuses(&image, format, *kind, word, what);
    }
}
