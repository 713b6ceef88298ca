//! `virt-launcher` as a program: launch documents in, libvirt's XML out.

use std::fs;
use std::process::Output;

use api::launch::{Launch, Layout};
use serde_json::Value;

use crate::support::{self, program};

fn run(arguments: &[&str], input: &[u8]) -> Output {
    program::run(env!("CARGO_BIN_EXE_virt-launcher"), arguments, input)
}

#[test]
fn a_launch_document_becomes_a_domain() {
    let document = support::launch(&support::golden("networks"), Layout::default()).write().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("launch.json");
    fs::write(&file, &document).unwrap();
    let output = run(&["domain", file.to_str().unwrap()], b"");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let golden = fs::read_to_string(support::beside("domain/networks.xml")).unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), golden);
    let output = run(&["domain", "--layout", "-"], &document);
    let layout: Layout = serde_json::from_slice(&output.stdout).unwrap();
    assert!(layout.slots.contains_key("net-default"));
}

#[test]
fn documents_that_are_none_are_refused() {
    let good = support::launch(&support::golden("minimal"), Layout::default()).write().unwrap();
    let mut newer: Value = serde_json::from_slice(&good).unwrap();
    newer["version"] = Value::from(2);
    for (document, said) in [
        (newer.to_string(), "-: launch document of version 2; this program reads version 1"),
        (String::new(), "-: not a launch document"),
        ("{\"version\": 1}".to_owned(), "-: not a launch document: missing field"),
    ] {
        let output = run(&["domain", "-"], document.as_bytes());
        assert_eq!(output.status.code(), Some(1), "{document}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.starts_with(&format!("virt-launcher: {said}")), "{error}");
        assert!(output.stdout.is_empty());
    }
    assert_eq!(run(&["domain", "/nonexistent"], b"").status.code(), Some(3));
    assert_eq!(run(&[], b"").status.code(), Some(2));
}

#[test]
fn no_byte_of_a_document_makes_it_panic() {
    let good = support::launch(&support::golden("devices"), Layout::default()).write().unwrap();
    let mut state: u64 = 88_172_645_463_325_252;
    let rounds = if std::env::var_os("FERROVIRT_SOAK").is_some() { 200_000 } else { 4_000 };
    let mut read = 0;
    for _ in 0..rounds {
        let mut document = good.clone();
        for _ in 0..3 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let place = usize::try_from(state % document.len() as u64).unwrap();
            // A byte of another place: digits become others, words and brackets break.
            document[place] = good[usize::try_from((state >> 32) % good.len() as u64).unwrap()];
        }
        if let Ok(launch) = Launch::read(&document) {
            drop(virt_launcher::domain(&launch));
            read += 1;
        }
    }
    assert!(read > 0, "some changes do no harm");
}
