//! The program on NBD sources.

use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::nbd::disks::{MIB, noise, sparse};
use crate::nbd::place::{Place, convert, run};
use crate::nbd::wrong_server::{Way, server};

fn importer(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_importer"));
    command.env_clear().env("PATH", std::env::var("PATH").unwrap()).args(arguments).stdin(Stdio::null());
    command
}

#[test]
fn the_program_imports_from_qemu_nbd() {
    let mut place = Place::new();
    let disk = sparse(40, 15);
    let raw = place.write("raw", &disk);
    convert(&raw, "qcow2", &place.text("qcow2"));
    let (target, qcow2) = (place.text("disk"), place.text("qcow2"));
    for (format, fetched) in [("qcow2", 27 * MIB), ("raw", 28 * MIB)] {
        place.qemu_nbd(&["--read-only", "-f", format, &qcow2]);
        let output = run(&mut importer(&[&place.url(""), &target, "--output", "json", "--force"]));
        assert!(fs::read(&target).unwrap() == disk, "{format}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let read = report["bytes_read"].as_u64().unwrap() as usize;
        assert!((27 * MIB..fetched + MIB).contains(&read), "{format}: {report}");
        assert!(place.ends(), "the server has not heard that we are gone");
    }
    // Listed exports that the server does not serve.
    let (url, _) = server(&disk, Way::ListedAndRefused);
    for (address, which) in
        [(url.as_str(), "the export \"e\""), (url.trim_end_matches('e'), "its default export")]
    {
        let output = importer(&[address, &target, "--force"]).output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let told = format!("lists {which} and does not serve it (not now)");
        assert!(text.contains(&told) && !text.contains("it has"), "{text}");
    }
    // Options of an address that are not supported.
    let output = importer(&[&format!("{url}?tls-certificates=/c"), &target, "--force"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("\"tls-certificates\""), "{text}");
    // Exports that do not exist.
    place.qemu_nbd(&["--persistent", "-f", "raw", "-x", "disk", &raw]);
    let output = importer(&[&place.url("disc"), &target, "--force"]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("it has \"disk\""), "{text}");
}

#[test]
fn the_program_survives_a_restarted_server() {
    let mut place = Place::new();
    let disk = noise(24 * MIB, 16);
    let raw = place.write("raw", &disk);
    let target = place.text("disk");
    let arguments = ["--filter=delay", "--threads=1", "file", &raw, "rdelay=40ms"];
    place.nbdkit(&arguments);
    let url = place.url("");
    let import = std::thread::spawn(move || run(importer(&[&url, &target]).stdout(Stdio::piped())));
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(300));
        place.nbdkit(&arguments);
    }
    import.join().unwrap();
    assert!(fs::read(place.path("disk")).unwrap() == disk);
}
