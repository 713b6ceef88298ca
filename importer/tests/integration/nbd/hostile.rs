//! Servers that answer in any order, wrongly, or break off.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use disk_image::Source;
use importer::source::retry::Policy;

use crate::nbd::disks::{
    KIB, MIB, assert_reads, assert_told, hasty, noise, open, options, read, read_all, sparse,
};
use crate::nbd::wrong_server::{Way, server};
use crate::support::errors::chain;

#[test]
fn pieces_in_any_order_find_their_place() {
    let mut disk = sparse(7, 11);
    disk.truncate(7 * MIB - 300);
    let (url, connections) = server(&disk, Way::Shuffled);
    let source = open(options(&url)).unwrap();
    assert_reads(&source, &disk);
    // The server allows several connections, and five readers were there at once.
    let connections = connections.load(Ordering::SeqCst);
    assert!((2..=8).contains(&connections), "{connections} connections");
}

/// Never wrong bytes, always the cause.
#[test]
fn hostile_servers_are_survived() {
    let disk = noise(100 * KIB, 12);
    let breaks = "breaks the NBD protocol";
    #[rustfmt::skip]
    let table: &[(Way, bool, &[&str])] = &[
        // what it does, whether the export opens, what is said
        (Way::SilentHandshake,      false, &["no NBD handshake within 0.7 s"]),
        (Way::WrongOptionMagic,     false, &[breaks, "starts with 0xabababab"]),
        (Way::WrongOption,          false, &[breaks, "option 7 instead of 8"]),
        (Way::HugeOptionReply,      false, &[breaks, "claims 4294967295 bytes"]),
        (Way::EndlessOptionReplies, false, &[breaks, "1024 replies"]),
        (Way::NoSize,               false, &[breaks, "did not send the export's size"]),
        (Way::HugeSize,             false, &[breaks, "18446744073709551615"]),
        (Way::BadBlockSizes,        false, &[breaks, "block sizes are 3, 0 and 0"]),
        (Way::WrongContextName,     false, &[breaks, "base:other"]),
        (Way::Silent,               true,  &["sent nothing for 0.7 s", "byte 0"]),
        (Way::WrongMagic,           true,  &[breaks, "0x66666666"]),
        (Way::UnknownCookie,        true,  &[breaks, "which is not open"]),
        (Way::HugeData,             true,  &[breaks, "data for"]),
        (Way::DataBefore,           true,  &[breaks, "data for"]),
        (Way::DataBehind,           true,  &[breaks, "data for"]),
        (Way::DataTwice,            true,  &[breaks, "came twice"]),
        (Way::DataShort,            true,  &[breaks, "is answered with"]),
        (Way::HoleOfNothing,        true,  &[breaks, "data for"]),
        (Way::HoleTooLong,          true,  &[breaks, "data for"]),
        (Way::HoleWrongLength,      true,  &[breaks, "type 2 claims 16 bytes"]),
        (Way::SimpleForRead,        true,  &[breaks, "without structure"]),
        (Way::UnknownType,          true,  &[breaks, "type 99"]),
        (Way::NoneWithData,         true,  &[breaks, "type 0"]),
        (Way::NoneNotDone,          true,  &[breaks, "type 0"]),
        (Way::ErrorLies,            true,  &[breaks, "longer than its message"]),
        (Way::HugeError,            true,  &[breaks, "claims 4294967295 bytes"]),
        (Way::ShutsDown,            true,  &["ESHUTDOWN", "bye"]),
        (Way::InvalidArgument,      true,  &["EINVAL", "why?", "byte 0"]),
    ];
    std::thread::scope(|scope| {
        for (way, opens, words) in table {
            let disk = &disk;
            scope.spawn(move || {
                let (url, _) = server(disk, *way);
                let error = match open(hasty(&url)) {
                    Err(error) => {
                        assert!(!opens, "{way:?}: {}", chain(&error));
                        assert_eq!(error.kind(), importer::Kind::Connect);
                        chain(&error)
                    }
                    Ok(source) => {
                        assert!(opens, "{way:?} opened");
                        chain(&read(&source, 0..disk.len() as u64).unwrap_err())
                    }
                };
                for word in *words {
                    assert!(error.contains(word), "{way:?}: \"{word}\" is not in: {error}");
                }
            });
        }
    });
    // An answer that comes twice breaks the connection, but what came before is right.
    let (url, _) = server(&disk, Way::AnsweredTwice);
    assert!(read_all(&open(hasty(&url)).unwrap()).unwrap() == disk);
}

#[test]
fn hostile_statuses_are_survived() {
    let disk = noise(100 * KIB, 13);
    let breaks = "breaks the NBD protocol";
    #[rustfmt::skip]
    let table: &[(Way, &[&str])] = &[
        (Way::DataForStatus,      &[breaks, "Data is no answer"]),
        (Way::StatusOfNothing,    &[breaks, "length zero"]),
        (Way::StatusTooMany,      &[breaks, "more extents"]),
        (Way::StatusHuge,         &[breaks, "type 5 claims 4294967292 bytes"]),
        (Way::StatusOdd,          &[breaks, "type 5 claims 13 bytes"]),
        (Way::StatusEmpty,        &[breaks, "without descriptors"]),
        (Way::StatusWrongContext, &[breaks, "context 8"]),
    ];
    std::thread::scope(|scope| {
        for (way, words) in table {
            let disk = &disk;
            scope.spawn(move || {
                let (url, _) = server(disk, *way);
                let source = open(hasty(&url)).unwrap();
                let error = source.data_ranges(0..disk.len() as u64).unwrap_err();
                for word in *words {
                    assert!(chain(&error).contains(word), "{way:?}: \"{word}\" is not in: {}", chain(&error));
                }
                assert!(read_all(&source).unwrap() == *disk, "{way:?}");
            });
        }
    });
    let (url, _) = server(&disk, Way::Right);
    assert_reads(&open(hasty(&url)).unwrap(), &disk);
}

/// However few bytes a connection brings: the right ones, or an error.
#[test]
fn connections_that_break_at_every_byte() {
    let disk = noise(700, 14);
    let step = if std::env::var_os("FERROVIRT_SOAK").is_some() { 1 } else { 11 };
    let cuts: Vec<usize> = (0..1200).step_by(step).collect();
    let whole = AtomicUsize::new(0);
    let policy = Policy {
        patience: Duration::from_millis(400),
        first: Duration::from_millis(30),
        base: Duration::from_millis(1),
        longest: Duration::from_millis(5),
        ..Policy::default()
    };
    std::thread::scope(|scope| {
        for cuts in cuts.chunks(cuts.len().div_ceil(8)) {
            let (disk, whole, policy) = (&disk, &whole, &policy);
            scope.spawn(move || {
                for &cut in cuts {
                    let (url, _) = server(disk, Way::Cut(cut));
                    let mut options = hasty(&url);
                    options.reach.retry = policy.clone();
                    let result = open(options)
                        .map_err(io::Error::from)
                        .and_then(|source| read(&source, 0..disk.len() as u64));
                    match result {
                        Ok(bytes) => {
                            assert!(bytes == *disk, "cut after {cut}: other bytes");
                            whole.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            assert!(cut < 400, "cut after {cut}: {}", chain(&error));
                            assert_told(&error, &["tries in"]);
                        }
                    }
                }
            });
        }
    });
    assert!(whole.load(Ordering::Relaxed) >= (1200 - 400) / step);
}
