//! Node pull from outside: importer and server as the two containers of a pod, that is as two processes with one folder
//! between them. The server runs as uid 107 in an otherwise empty image: chroot into a folder that holds the disk, the
//! shared volume and nothing else.

mod pod;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use pod::{MIB, Pod, Process, ask, disk_bytes, eventually, server_program, text};

#[test]
fn the_program_is_static() {
    let path = server_program();
    let bytes = fs::read(&path).unwrap();
    assert_eq!(&bytes[..5], b"\x7fELF\x02", "a 64-bit ELF");
    let number = |at: usize, len: usize| {
        bytes[at..at + len].iter().rev().fold(0usize, |n, &byte| n << 8 | usize::from(byte))
    };
    let (table, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    let kinds: Vec<usize> = (0..count).map(|i| number(table + i * size, 4)).collect();
    assert!(kinds.contains(&1), "a segment to load: {kinds:?}");
    // PT_INTERP names the dynamic loader, which an empty image does not have.
    assert!(!kinds.contains(&3), "the program wants a dynamic loader");
    println!("cdi-containerimage-server: {} KiB, static", bytes.len() / 1024);
}

#[test]
fn a_pod_with_an_otherwise_empty_image() {
    let bytes = disk_bytes(24 * MIB);
    let pod = Pod::new();
    fs::write(pod.path("raw"), &bytes).unwrap();
    let image = pod.path("image/disk/fedora 40%2f.qcow2");
    let output = Command::new("qemu-img")
        .args(["convert", "-q", "-c", "-O", "qcow2"])
        .args([&pod.path("raw"), &image])
        .output()
        .expect("qemu-img is missing: run make deps");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(pod.names("image"), ["disk", "shared"]);

    // The importer is there first and waits.
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let mut importer = Process::start(pod.importer(port));
    eventually("the importer waits", || importer.log().contains("waiting for the server"));
    let mut server = pod.serve(port);
    assert_eq!(server.port, port);
    assert_eq!(importer.end().code(), Some(0), "{}", importer.log());
    pod.assert_disk(&bytes);
    assert_eq!(
        pod.message(),
        r#"{"labels":{"instancetype.kubevirt.io/default-instancetype":"u1.small"},"message":"Import Complete"}"#
    );
    // The server ends in order, and the volume is as the init container left it.
    assert_eq!(server.process.end().code(), Some(0), "{}", server.process.log());
    assert_eq!(pod.names("image/shared"), ["server"]);
    assert_eq!(pod.names("image/disk"), ["fedora 40%2f.qcow2"]);
    assert_eq!(pod.names("data"), ["disk.img"]);
}

#[test]
fn by_command_line() {
    let bytes = disk_bytes(MIB);
    let pod = Pod::with("disk.img", &bytes);
    let mut server = pod.serve(0);
    let mut command = Command::new(env!("CARGO_BIN_EXE_importer"));
    command
        .env_clear()
        .arg(format!("http://localhost:{}/disk.img", server.port))
        .arg(pod.path("data/disk.img"));
    command.arg("--node-pull").arg("--ready-file").arg(pod.path("image/shared/ready"));
    command.arg("--done-file").arg(pod.path("image/shared/done"));
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    pod.assert_disk(&bytes);
    assert_eq!(server.process.end().code(), Some(0), "{}", server.process.log());
}

#[test]
fn a_file_that_the_server_may_not_open() {
    let bytes = disk_bytes(MIB);
    let pod = Pod::with("disk.img", &bytes);
    pod.mode("image/disk/disk.img", 0o600);
    let mut server = pod.serve(0);
    assert_eq!(fs::read(pod.path("image/shared/ready")).unwrap(), b"disk.img");
    let output = pod.import(server.port);
    assert_eq!(output.status.code(), Some(1));
    let message = pod.message();
    assert!(
        message.starts_with("Unable to connect to http data source: ")
            && message.contains("403 Forbidden")
            && message.contains("uid 107"),
        "{message}"
    );
    assert_eq!(pod.names("data"), [""; 0]);
    // The kubelet starts the importer again: the server must be there still.
    assert!(server.process.running());
    assert_eq!(pod.names("image/shared"), ["ready", "server"]);
    pod.mode("image/disk/disk.img", 0o444);
    pod.assert_imports(server.port, &bytes);
    assert_eq!(server.process.end().code(), Some(0));
}

#[test]
fn nothing_outside_of_the_image_folder_is_served() {
    let pod = Pod::new();
    fs::write(pod.path("image/shared/secret"), "secret").unwrap();
    let disk = pod.path("image/disk/disk.img");
    for target in ["/shared/secret", "../shared/secret", "disk.img", "/nowhere"] {
        symlink(target, &disk).unwrap();
        let server = pod.serve(0);
        for path in
            ["/disk.img", "/../shared/secret", "/%2e%2e/shared/secret", "//shared/secret", "/shared/secret"]
        {
            let answer = server.ask("GET", path, &[]);
            let expected = if path == "/disk.img" { 403 } else { 404 };
            assert_eq!(answer.status, expected, "{target} {path}: {}", text(&answer.body));
            assert!(!text(&answer.body).contains("secret"), "{}", text(&answer.body));
        }
        drop(server);
        fs::remove_file(&disk).unwrap();
    }
    // A pipe does not hang the server.
    assert!(Command::new("mkfifo").arg("-m").arg("666").arg(&disk).status().unwrap().success());
    let server = pod.serve(0);
    assert_eq!(server.ask("GET", "/disk.img", &[]).status, 403);
    // Its replacement is served by the same rules.
    fs::remove_file(&disk).unwrap();
    assert_eq!(server.ask("GET", "/disk.img", &[]).status, 404);
    symlink("/shared/secret", &disk).unwrap();
    assert_eq!(server.ask("HEAD", "/disk.img", &[]).status, 403);
}

#[test]
fn folders_without_exactly_one_file() {
    let pod = Pod::new();
    let refused = |why: &str| {
        let mut server = Process::start(pod.server_command(0));
        assert_eq!(server.end().code(), Some(1));
        eventually("it says why", || server.log().contains(why));
        assert_eq!(pod.names("image/shared"), ["server"], "nobody is told that it is ready");
    };
    refused("the folder is empty");
    fs::create_dir(pod.path("image/disk/sub")).unwrap();
    refused("another folder");
    fs::write(pod.path("image/disk/disk.img"), "x").unwrap();
    refused("more than one file");
    pod.mode("image/disk", 0o700);
    refused("Permission denied");
    fs::remove_dir_all(pod.path("image/disk")).unwrap();
    refused("No such file");
    symlink("/shared", pod.path("image/disk")).unwrap();
    refused("no image in /disk");
}

#[test]
fn a_disk_that_is_gone() {
    let pod = Pod::with("disk.img", b"x");
    let mut server = pod.serve(0);
    fs::remove_file(pod.path("image/disk/disk.img")).unwrap();
    let output = pod.import(server.port);
    assert_eq!(output.status.code(), Some(1));
    assert!(pod.message().contains("404 Not Found"), "{}", pod.message());
    assert!(server.process.running());
}

#[test]
fn ranges_and_everything_else_of_http() {
    let bytes = disk_bytes(3 * MIB + 5);
    let len = bytes.len();
    let pod = Pod::with("a b.raw", &bytes);
    let server = pod.serve(0);
    for path in ["/disk.img", "/a%20b.raw", "/disk.img?x=y"] {
        let answer = server.ask("GET", path, &[]);
        assert!(answer.status == 200 && answer.body == bytes, "{path}: {}", answer.head);
    }
    let whole = server.ask("GET", "/disk.img", &[]);
    let etag = whole.header("etag").unwrap().to_owned();
    let modified = whole.header("last-modified").unwrap().to_owned();
    assert!(etag.starts_with('"') && etag.ends_with('"'), "{etag}");
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    assert_eq!(whole.header("content-type"), Some("application/octet-stream"));
    assert_eq!(whole.header("content-length"), Some(len.to_string().as_str()));

    let last = len - 1;
    #[rustfmt::skip]
    let ranges: [(&str, Option<std::ops::Range<usize>>); 9] = [
        ("bytes=0-0", Some(0..1)),
        ("bytes=1000-2000", Some(1000..2001)),
        ("bytes=262143-262144", Some(262_143..262_145)),
        ("bytes=-5", Some(len - 5..len)),
        ("bytes=3000000-", Some(3_000_000..len)),
        ("bytes=5-99999999", Some(5..len)),
        ("bytes=99999999-", None),
        ("bytes=-0", None),
        ("bytes=18446744073709551615-18446744073709551615", None),
    ];
    for (range, expected) in ranges {
        let answer = server.ask("GET", "/disk.img", &[("Range", range), ("If-Range", &etag)]);
        match expected {
            Some(part) => {
                let shown = format!("bytes {}-{}/{len}", part.start, part.end - 1);
                assert_eq!((answer.status, answer.header("content-range")), (206, Some(&*shown)), "{range}");
                assert!(answer.body == bytes[part], "{range}: other bytes");
            }
            None => {
                let shown = format!("bytes */{len}");
                assert_eq!((answer.status, answer.header("content-range")), (416, Some(&*shown)), "{range}");
                assert!(answer.body.is_empty());
            }
        }
        assert_eq!(answer.header("etag"), Some(&*etag));
    }
    // Ignored: several, malformed, for another version.
    for headers in [
        &[("Range", "bytes=0-1,5-6")][..],
        &[("Range", "bytes=5-1")],
        &[("Range", "bytes=x")],
        &[("Range", "bytes=0-1"), ("Range", "bytes=2-3")],
        &[("Range", "bytes=0-1"), ("If-Range", "\"other\"")],
        &[("Range", "bytes=0-1"), ("If-Range", "Thu, 01 Jan 1970 00:00:00 GMT")],
    ] {
        let answer = server.ask("GET", "/disk.img", headers);
        assert!(answer.status == 200 && answer.body == bytes, "{headers:?}: {}", answer.head);
    }
    let by_time = server.ask("GET", "/disk.img", &[("Range", "bytes=0-1"), ("If-Range", &modified)]);
    assert_eq!((by_time.status, &by_time.body[..]), (206, &bytes[..2]));

    let head = server.ask("HEAD", "/disk.img", &[("Range", "bytes=0-1")]);
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), Some(len.to_string().as_str()));
    for (method, path, status) in [
        ("POST", "/disk.img", 405),
        ("DELETE", "/info", 405),
        ("GET", "/", 404),
        ("GET", "/a", 404),
        ("GET", "/disk.img/", 404),
        ("HEAD", "/none", 404),
    ] {
        assert_eq!(server.ask(method, path, &[]).status, status, "{method} {path}");
    }
    assert_eq!(server.ask("PUT", "/", &[]).header("allow"), Some("GET, HEAD"));

    let info = server.ask("GET", "/info", &[]);
    assert_eq!((info.status, info.header("content-type")), (200, Some("application/json")));
    let json: serde_json::Value = serde_json::from_slice(&info.body)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&info.body)));
    let env: Vec<&str> = json["env"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
    assert!(env.contains(&"OTHER=x") && env.len() == json["env"].as_array().unwrap().len(), "{env:?}");
    assert_eq!(json.as_object().unwrap().len(), 1);

    // Another version has another mark.
    let mut changed = bytes.clone();
    changed[last] ^= 1;
    fs::write(pod.path("image/disk/a b.raw"), &changed).unwrap();
    let answer = server.ask("GET", "/disk.img", &[("Range", "bytes=0-1"), ("If-Range", &etag)]);
    assert!(answer.status == 200 && answer.body == changed && answer.header("etag") != Some(&*etag));
    if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
        let six = SocketAddr::from((Ipv6Addr::LOCALHOST, server.port));
        assert_eq!(ask(six, "HEAD", "/disk.img", &[]).status, 200);
    }
}

#[test]
fn a_disk_without_a_byte_is_refused() {
    let pod = Pod::with("empty", &[]);
    let server = pod.serve(0);
    let output = pod.import(server.port);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(pod.message().contains("the source is empty: http://localhost:"), "{}", pod.message());
}

#[test]
fn odd_names() {
    for (name, bytes) in [("info", disk_bytes(MIB)), (".hidden", disk_bytes(513))] {
        let pod = Pod::with(name, &[]);
        fs::write(pod.path("image/disk").join(name), &bytes).unwrap();
        let mut server = pod.serve(0);
        pod.assert_imports(server.port, &bytes);
        assert_eq!(server.process.end().code(), Some(0), "{name}");
    }
}

#[test]
fn after_a_failure_the_server_is_still_there() {
    let bytes = disk_bytes(4 * MIB);
    let pod = Pod::with("disk.img", &bytes);
    let mut server = pod.serve(0);
    let output = pod.importer(server.port).env("IMPORTER_IMAGE_SIZE", "1Mi").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(pod.message().contains("is larger than the reported available"), "{}", pod.message());
    assert!(server.process.running() && pod.names("image/shared") == ["ready", "server"]);
    // The volume has grown.
    pod.assert_imports(server.port, &bytes);
    assert_eq!(server.process.end().code(), Some(0));
}

#[test]
fn an_importer_that_is_stopped_or_killed_comes_back() {
    let bytes = disk_bytes(4 * MIB);
    let pod = Pod::with("disk.img", &bytes);
    let mut server = pod.serve(0);
    for (signal, code) in [(Signal::TERM, Some(143)), (Signal::KILL, None)] {
        // A silent server, so that the importer is in the middle.
        server.process.signal(Signal::STOP);
        let mut importer = Process::start(pod.importer(server.port));
        eventually("the importer waits", || importer.log().contains("waiting for the server"));
        thread::sleep(Duration::from_millis(300));
        assert!(importer.running(), "{}", importer.log());
        let begun = Instant::now();
        importer.signal(signal);
        assert_eq!(importer.end().code(), code, "{}", importer.log());
        assert!(begun.elapsed() < Duration::from_secs(2), "it took {:?}", begun.elapsed());
        server.process.signal(Signal::CONT);
        assert_eq!(pod.names("image/shared"), ["ready", "server"]);
    }
    pod.assert_imports(server.port, &bytes);
    assert_eq!(server.process.end().code(), Some(0));
}

#[test]
fn a_server_that_is_killed_is_waited_for() {
    let bytes = disk_bytes(4 * MIB);
    let pod = Pod::with("disk.img", &bytes);
    let server = pod.serve(0);
    let port = server.port;
    server.process.signal(Signal::STOP);
    let mut importer = Process::start(pod.importer(port));
    eventually("the importer waits", || importer.log().contains("waiting for the server"));
    thread::sleep(Duration::from_millis(300));
    drop(server);
    assert_eq!(pod.names("image/shared"), ["ready", "server"], "a killed server leaves its file");
    thread::sleep(Duration::from_millis(300));
    let mut server = pod.serve(port);
    assert_eq!(importer.end().code(), Some(0), "{}", importer.log());
    pod.assert_disk(&bytes);
    assert_eq!(server.process.end().code(), Some(0));
}

#[test]
fn signals_end_the_server() {
    let pod = Pod::with("disk.img", b"x");
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut server = pod.serve(0);
        // An idle connection does not hold it up.
        let idle = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port)).unwrap();
        let begun = Instant::now();
        server.process.signal(signal);
        assert_eq!(server.process.end().code(), Some(code), "{}", server.process.log());
        assert!(begun.elapsed() < Duration::from_secs(2));
        assert_eq!(pod.names("image/shared"), ["server"]);
        drop(idle);
    }
    // One that starts when everything is over, as after a kill in the last moment, ends at once.
    fs::write(pod.path("image/shared/done"), "").unwrap();
    let mut server = Process::start(pod.server_command(0));
    assert_eq!(server.end().code(), Some(0));
    assert_eq!(pod.names("image/shared"), ["server"]);
}

#[test]
fn idle_connections_and_unfinished_heads_delay_no_importer() {
    let pod = Pod::with("disk.img", b"x");
    let server = pod.serve(0);
    let connect = || TcpStream::connect((Ipv4Addr::LOCALHOST, server.port)).unwrap();
    let (idle, heads) = if std::env::var_os("FERROVIRT_SOAK").is_some() { (1000, 256) } else { (200, 80) };
    let mut streams: Vec<TcpStream> = (0..idle).map(|_| connect()).collect();
    let part = format!("GET /disk.img HTTP/1.1\r\nHost: x\r\nX: {}", "x".repeat(15 << 10));
    for _ in 0..heads {
        let mut stream = connect();
        stream.write_all(part.as_bytes()).unwrap();
        streams.push(stream);
    }
    for _ in 0..5 {
        let begun = Instant::now();
        assert_eq!(server.ask("GET", "/disk.img", &[]).status, 200, "{}", server.process.log());
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
    let status = fs::read_to_string(format!("/proc/{}/status", server.process.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    assert!(kib < 16 << 10, "{kib} KiB");
    // A head of more than 16 KiB.
    let mut long = connect();
    long.write_all(part.as_bytes()).unwrap();
    long.write_all(part.as_bytes()).unwrap();
    let mut answer = String::new();
    drop(long.read_to_string(&mut answer));
    assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[test]
fn the_command_line() {
    let server = |arguments: &[&str]| {
        let output = Command::new(server_program()).args(arguments).output().unwrap();
        (output.status.code(), text(&output.stderr))
    };
    // A controller starts `server -h` to have an image pulled and nothing else.
    for help in ["-h", "--help"] {
        let (code, log) = server(&[help]);
        assert!(code == Some(0) && log.contains("-image-dir"), "{log}");
    }
    for wrong in [&["-x"][..], &["-p", "x"], &["-p"], &["what"]] {
        let (code, log) = server(wrong);
        assert!(code == Some(2) && log.contains("Usage: "), "{wrong:?}: {log}");
    }
    let pod = Pod::with("disk.img", b"x");
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut second = Process::start(pod.server_command(port));
    assert_eq!(second.end().code(), Some(1));
    eventually("it says why", || second.log().contains("Address already in use"));
    let folder = |path: &str| Path::new("/nowhere").join(path).to_str().unwrap().to_owned();
    let disk = pod.path("image/disk");
    let (code, log) = server(&[
        "-p=0",
        "-image-dir",
        disk.to_str().unwrap(),
        "--ready-file",
        &folder("ready"),
        "-done-file=x",
    ]);
    assert!(code == Some(1) && log.contains("ready file /nowhere/ready"), "{log}");
}
