//! qemu-nbd, nbdkit, and the `nbd` crate's own server.

use std::fs;
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use disk_image::{Source, Stop};
use importer::source::blocking::Net;
use importer::source::nbd;
use importer::source::remote::Changed;
use importer::source::tls::Trust;

use crate::nbd::disks::{
    KIB, MIB, assert_ranges, assert_reads, assert_told, hasty, noise, open, options, read, read_all, sparse,
};
use crate::nbd::place::{Place, convert, free_port};
use crate::support::errors::chain;

#[test]
fn qemu_nbd_serves_disks_of_images() {
    let mut place = Place::new();
    let disk = sparse(20, 1);
    let raw = place.write("raw", &disk);
    convert(&raw, "qcow2", &place.text("qcow2"));
    let qcow2 = place.text("qcow2");
    place.qemu_nbd(&["--persistent", "--read-only", "-e", "8", "-f", "qcow2", &qcow2]);
    let source = open(options(&place.url(""))).unwrap();
    assert_reads(&source, &disk);
    assert_eq!(assert_ranges(&source, &disk), Some(13 << 20));
    assert!(source.connections() > 1);

    // The image itself, over TCP, under a name.
    let port = free_port().to_string();
    let mut tcp = Place::new();
    tcp.server = Some(
        Command::new("qemu-nbd")
            .args([
                "--persistent",
                "--read-only",
                "-f",
                "raw",
                "-b",
                "127.0.0.1",
                "-p",
                &port,
                "-x",
                "a b",
                &qcow2,
            ])
            .spawn()
            .expect("qemu-nbd is missing: run make deps"),
    );
    // It may not listen yet: that is what trying again is for.
    let source = open(options(&format!("nbd://127.0.0.1:{port}/a%20b"))).unwrap();
    assert_reads(&source, &fs::read(&qcow2).unwrap());
}

#[test]
fn a_server_for_one_client_gets_one_connection() {
    let mut place = Place::new();
    let disk = sparse(33, 2);
    let raw = place.write("raw", &disk);
    // Takes one client, and ends with its connection; claims to allow several.
    place.qemu_nbd(&["--read-only", "-f", "raw", &raw]);
    let source = open(options(&place.url(""))).unwrap();
    assert_reads(&source, &disk);
    drop(source);
    assert!(place.ends(), "qemu-nbd has not heard that we are gone");
}

#[test]
fn nbdkit_serves_files_and_memory() {
    let mut place = Place::new();
    let disk = sparse(9, 3);
    let raw = place.write("raw", &disk[..8 * MIB + 700]);
    let disk = &disk[..8 * MIB + 700];
    let plain = ["file", &raw];
    for before in [
        &[][..],
        &["--no-sr"],
        &["--mask-handshake=0"],
        &["--mask-handshake=1"],
        &["--mask-handshake=2"],
        &["--filter=noextents"],
        &["--filter=nozero"],
        &["--filter=multi-conn", "multi-conn-mode=disable"],
        &["--filter=cow"],
        &["--filter=delay", "rdelay=5ms"],
        &["--filter=noparallel"],
        &["--threads=1"],
    ] {
        let (flags, parameters): (Vec<&str>, Vec<&str>) = before.iter().partition(|a| a.starts_with('-'));
        place.nbdkit(&[&flags[..], &plain, &parameters].concat());
        let source = open(options(&place.url(""))).unwrap();
        assert_reads(&source, disk);
        let told = assert_ranges(&source, disk);
        let cannot = ["--no-sr", "--mask-handshake=0", "--mask-handshake=2"];
        assert_eq!(told.is_none(), before.iter().any(|b| cannot.contains(b)), "{before:?}");
        if before.is_empty() {
            assert!(told.unwrap() < 7 << 20, "{told:?} bytes of data");
        }
    }
}

#[test]
fn block_sizes_are_kept() {
    let mut place = Place::new();
    let disk = noise(MIB, 4);
    let raw = place.write("raw", &disk);
    for (min, preferred, max) in [("512", "4096", "8192"), ("4096", "64K", "64K"), ("64K", "1M", "32M")] {
        place.nbdkit(&[
            "--filter=blocksize-policy",
            "file",
            &raw,
            &format!("blocksize-minimum={min}"),
            &format!("blocksize-preferred={preferred}"),
            &format!("blocksize-maximum={max}"),
            "blocksize-error-policy=error",
        ]);
        let source = open(options(&place.url(""))).unwrap();
        assert_reads(&source, &disk);
        for range in [1..2, 511..513, 4095..70_000, 1_048_575..1_048_576, 700..700] {
            let expected = &disk[range.start as usize..range.end as usize];
            assert!(read(&source, range.clone()).unwrap() == expected, "{range:?} of {min}");
        }
    }
}

#[test]
fn a_terabyte_of_nothing_costs_little() {
    let mut place = Place::new();
    place.nbdkit(&["memory", "1T"]);
    let source = open(options(&place.url(""))).unwrap();
    assert_eq!(source.facts().size, Some(1 << 40));
    let started = Instant::now();
    for at in 0..1024u64 {
        assert_eq!(source.data_ranges(at << 30..(at + 1) << 30).unwrap(), Some(Vec::new()));
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert!(read(&source, (1 << 39)..(1 << 39) + 5).unwrap() == [0; 5]);
}

#[test]
fn errors_of_the_server_are_named() {
    let mut place = Place::new();
    let disk = noise(2 * MIB, 5);
    let raw = place.write("raw", &disk);
    for flag in ["--no-sr", "--exit-with-parent"] {
        place.nbdkit(&[flag, "--filter=error", "file", &raw, "error-pread=EIO", "error-pread-rate=100%"]);
        let source = open(options(&place.url(""))).unwrap();
        let error = read(&source, 5..9).unwrap_err();
        assert_told(&error, &["EIO", "byte 5", "socket", "8 times"]);
    }
    // Some requests fail, none for ever.
    place.nbdkit(&["--filter=error", "file", &raw, "error-pread=EIO", "error-pread-rate=20%"]);
    let source = open(options(&place.url(""))).unwrap();
    assert!(read_all(&source).unwrap() == disk);
    // Missing extents are not a failure.
    place.nbdkit(&["--filter=error", "file", &raw, "error-extents=EIO", "error-extents-rate=100%"]);
    let source = open(options(&place.url(""))).unwrap();
    assert_eq!(source.data_ranges(0..100).unwrap(), Some(vec![0..100; 1]));
    assert!(read_all(&source).unwrap() == disk);
}

#[test]
fn exports_that_are_not_there_are_named() {
    let mut place = Place::new();
    let raw = place.write("raw", &noise(4 * KIB, 6));
    place.qemu_nbd(&["--persistent", "--read-only", "-f", "raw", "-x", "disk", &raw]);
    let error = open(options(&place.url("disc"))).unwrap_err();
    assert_told(&error, &["no export \"disc\"", "it has \"disk\"", "after the last slash"]);
    assert_eq!(error.kind(), importer::Kind::Connect);
    assert_eq!(read(&open(options(&place.url("disk"))).unwrap(), 0..4).unwrap().len(), 4);
    // No listener.
    place.stop();
    drop(fs::remove_file(place.path("socket")));
    assert_told(
        &open(hasty(&place.url("disk"))).unwrap_err(),
        &["cannot open", "socket", "tries", "No such file"],
    );
    // A different listener.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("nbd://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || listener.accept().unwrap().0.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"));
    assert_told(&open(options(&url)).unwrap_err(), &["does not speak NBD"]);
}

#[test]
fn over_tls() {
    let mut place = Place::new();
    let disk = noise(3 * MIB, 7);
    let raw = place.write("raw", &disk);
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let certificates = place.path("pki");
    fs::create_dir(&certificates).unwrap();
    fs::write(certificates.join("server-cert.pem"), made.cert.pem()).unwrap();
    fs::write(certificates.join("ca-cert.pem"), made.cert.pem()).unwrap();
    fs::write(certificates.join("server-key.pem"), made.signing_key.serialize_pem()).unwrap();
    let port = free_port();
    let folder = format!("--tls-certificates={}", certificates.display());
    place.server = Some(
        Command::new("nbdkit")
            .args([
                "--foreground",
                "--tls=require",
                &folder,
                "-i",
                "127.0.0.1",
                "-p",
                &port.to_string(),
                "file",
                &raw,
            ])
            .stderr(Stdio::null())
            .spawn()
            .expect("nbdkit is missing: run make deps"),
    );
    let url = format!("nbds://localhost:{port}/");
    let trust = Trust { files: vec![certificates.join("ca-cert.pem")], ..Trust::default() };
    let trusting = |trust| {
        let mut options = options(&url);
        options.reach.trust = trust;
        options
    };
    let source = open(trusting(trust)).unwrap();
    assert_reads(&source, &disk);
    let insecure = Trust { insecure: true, ..Trust::default() };
    assert_reads(&open(trusting(insecure)).unwrap(), &disk);
    assert_told(&open(options(&url)).unwrap_err(), &["TLS", "certificate"]);
    assert_told(&open(options(&format!("nbd://localhost:{port}/"))).unwrap_err(), &["use nbds://"]);
    // And a server without it.
    let mut plain = Place::new();
    let port = free_port();
    plain.server = Some(
        Command::new("nbdkit")
            .args(["--foreground", "-i", "127.0.0.1", "-p", &port.to_string(), "file", &raw])
            .spawn()
            .unwrap(),
    );
    assert_told(&open(options(&format!("nbds://localhost:{port}/"))).unwrap_err(), &["no TLS"]);
}

#[test]
fn a_server_that_comes_back_is_read_on() {
    let mut place = Place::new();
    let disk = noise(24 * MIB, 8);
    let raw = place.write("raw", &disk);
    let arguments = ["--persistent", "--read-only", "-e", "4", "-f", "raw", &raw];
    place.qemu_nbd(&arguments);
    let source = open(options(&place.url(""))).unwrap();
    let mut reader = source.open(0..disk.len() as u64).unwrap();
    let mut got = vec![0; MIB + 5];
    reader.read_exact(&mut got).unwrap();
    for _ in 0..3 {
        place.qemu_nbd(&arguments);
        let had = got.len();
        got.resize(had + 6 * MIB, 0);
        reader.read_exact(&mut got[had..]).unwrap();
    }
    reader.read_to_end(&mut got).unwrap();
    assert!(got == disk);
    // With other content of another size it is another source.
    let mut reader = source.open(7..disk.len() as u64).unwrap();
    reader.read_exact(&mut got[..5]).unwrap();
    fs::write(&raw, noise(20 * MIB, 9)).unwrap();
    place.qemu_nbd(&arguments);
    let error = reader.read_to_end(&mut Vec::new()).unwrap_err();
    assert!(Changed::find(&error).is_some(), "{}", chain(&error));
    assert_told(&error, &["changed", "25165824", "20971520"]);
}

#[test]
fn stopping_is_quick() {
    let mut place = Place::new();
    place.nbdkit(&["--filter=delay", "memory", "1M", "rdelay=5"]);
    let stop = Stop::new();
    let net = Net::new(stop.clone()).unwrap();
    let source = nbd::open(&net, options(&place.url(""))).unwrap();
    let asked = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        stop.set();
        Instant::now()
    });
    let error = read(&source, 0..5).unwrap_err();
    let late = asked.join().unwrap().elapsed();
    assert!(late < Duration::from_secs(2), "{late:?}");
    assert!(chain(&error).contains("stopped"), "{}", chain(&error));
}

/// A disk for the `nbd` crate's server, which wants something to write to.
struct Disk(Cursor<Vec<u8>>);

impl Read for Disk {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Seek for Disk {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.0.seek(to)
    }
}

impl Write for Disk {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::PermissionDenied.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The server of that crate knows neither GO nor structured replies, and closes on everything it does not know.
#[test]
fn the_server_of_the_nbd_crate() {
    let disk = noise(5 * MIB + 3, 10);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let content = disk.clone();
    std::thread::spawn(move || {
        for socket in listener.incoming() {
            let (mut socket, content) = (socket.unwrap(), content.clone());
            std::thread::spawn(move || -> io::Result<()> {
                let size = content.len() as u64;
                let () = ::nbd::server::handshake(&mut socket, |name| match name {
                    "disk" => Ok(::nbd::Export { size, readonly: true, ..::nbd::Export::<()>::default() }),
                    _ => Err(io::ErrorKind::NotFound.into()),
                })?;
                ::nbd::server::transmission(&mut socket, Disk(Cursor::new(content)))
            });
        }
    });
    let source = open(options(&format!("nbd://{address}/disk"))).unwrap();
    assert_reads(&source, &disk);
    assert_eq!(source.data_ranges(0..5).unwrap(), None);
    let error = open(hasty(&format!("nbd://{address}/disc"))).unwrap_err();
    assert_told(&error, &["\"disc\"", "check that the server has it"]);
}
