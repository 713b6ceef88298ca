//! `uploadproxy push` through the proxy, whatever happens to its connection.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::process::Output;
use std::sync::{Arc, Mutex};

use places::guest::Dice;
use serde_json::json;

use crate::support::proxy::Proxy;
use crate::support::server::{MIB, count, sha256, tls};

/// A file of noise, and what its SHA-256 is.
fn file(proxy: &Proxy, size: u64) -> (String, String) {
    let path = proxy.path("image");
    std::fs::write(&path, Dice(size).bytes(size as usize)).unwrap();
    let (digest, _) = sha256(&path, size);
    (path.to_str().unwrap().to_owned(), digest)
}

fn push(proxy: &Proxy, file: &str, port: u16, more: &[&str]) -> Output {
    let url = format!("localhost:{port}");
    let ca = proxy.path("ca.crt");
    std::fs::write(&ca, proxy.authority.certificate()).unwrap();
    let usual = ["push", file, "--pvc", "ns/disk", "--url", &url, "--ca", ca.to_str().unwrap()];
    proxy.command(&[&usual[..], more].concat()).output().unwrap()
}

/// Bytes that sockets on the way do not hold: when so many of a connection were passed on, the server has the head of its
/// request, and the client knows where the upload can be resumed.
const BEYOND_SOCKETS: u64 = 16 * MIB;

/// Passes connections on to `port`; each of the first ones that get so far is cut after that many bytes of the client's.
fn cutting(port: u16, cuts: Vec<u64>) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let own = listener.local_addr().unwrap().port();
    let cuts = Arc::new(Mutex::new(cuts));
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return };
            let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || {
                let _copied = std::io::copy(&mut back_from, &mut back_to);
                let _gone = back_to.shutdown(Shutdown::Both);
            });
            let cuts = cuts.clone();
            std::thread::spawn(move || pass(client, server, &cuts));
        }
    });
    own
}

fn pass(mut client: TcpStream, mut server: TcpStream, cuts: &Mutex<Vec<u64>>) {
    let (mut buffer, mut passed) = (vec![0; 16 << 10], 0);
    while let Ok(got @ 1..) = client.read(&mut buffer) {
        passed += got as u64;
        let cut = {
            let mut cuts = cuts.lock().unwrap();
            cuts.last().is_some_and(|cut| passed > *cut) && cuts.pop().is_some()
        };
        if cut || server.write_all(&buffer[..got]).is_err() {
            break;
        }
    }
    let _gone = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
}

#[test]
fn a_file_comes_whole_with_tokens_asked_for() {
    let proxy = Proxy::new();
    let (file, digest) = file(&proxy, 3 * MIB + 17);
    let mut pod = proxy.pod("disk");
    let config = json!({"spec": {}, "status": {"uploadProxyURL": format!("localhost:{}", proxy.port())}});
    proxy.cluster.put("/apis/cdi.kubevirt.io/v1beta1/cdiconfigs/config", config);
    let output = proxy.command(&["push", &file, "--pvc", "ns/disk", "--insecure"]).output().unwrap();
    assert!(output.status.success(), "{}\n{}", String::from_utf8_lossy(&output.stderr), proxy.log());
    pod.assert_uploaded();
    assert_eq!(sha256(&pod.disk(), 3 * MIB + 17).0, digest);
    let asked = proxy.cluster.requests();
    assert!(asked.iter().any(|asked| asked.starts_with("POST ") && asked.ends_with("/uploadtokenrequests")));
}

#[test]
fn broken_uploads_are_resumed() {
    let size = count(64, 256) * MIB;
    let mut resumed = 0;
    for round in 0..count(2, 20) {
        let proxy = Proxy::new();
        let (file, digest) = file(&proxy, size);
        let mut pod = proxy.pod("disk");
        let mut dice = Dice(round + 1);
        let cuts = (0..3).map(|_| BEYOND_SOCKETS + dice.next(size / 4)).collect();
        let port = cutting(proxy.port(), cuts);
        let output = push(&proxy, &file, port, &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}\n{}\n{}", proxy.log(), pod.log());
        assert!(said.contains("the upload was interrupted; retrying"), "{said}");
        pod.assert_uploaded();
        assert_eq!(sha256(&pod.disk(), size).0, digest, "round {round}");
        resumed += proxy.log().matches("method=PATCH").count();
    }
    println!("resumed {resumed} times");
    assert!(resumed > 0);
}

#[test]
fn volume_that_another_client_filled_is_no_success() {
    let proxy = Proxy::new();
    let (file, _) = file(&proxy, 64 * MIB);
    let mut pod = proxy.pod("disk");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let output = std::thread::scope(|scope| {
        let pushing = scope.spawn(|| push(&proxy, &file, port, &["--retries=3"]));
        let through = |client: TcpStream, most: u64| {
            let mut server = proxy.connect().unwrap();
            let (mut back_from, mut back_to) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            let back = std::thread::spawn(move || std::io::copy(&mut back_from, &mut back_to));
            let _copied = std::io::copy(&mut (&client).take(most), &mut server);
            let _gone = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
            let _ended = back.join();
        };
        // It breaks half way, and before it comes back another one has filled the volume.
        through(listener.accept().unwrap().0, 2 * BEYOND_SOCKETS);
        let image = Dice(7).bytes(MIB as usize);
        pod.wait_for("the broken one gives way", || {
            proxy.request("disk", "POST", "/v1beta1/upload", &[], &image).status == 200
        });
        pod.assert_uploaded();
        proxy.cluster.put_claim("disk", &[("upload.target", ""), ("pod.phase", "Succeeded")]);
        while !pushing.is_finished() {
            listener.set_nonblocking(true).unwrap();
            match listener.accept() {
                Ok((client, _)) => {
                    client.set_nonblocking(false).unwrap();
                    through(client, u64::MAX);
                }
                Err(_) => std::thread::sleep(std::time::Duration::from_millis(20)),
            }
        }
        pushing.join().unwrap()
    });
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("another client has filled the volume"), "{said}");
}

#[test]
fn refused_pushes_have_a_reason() {
    let proxy = Proxy::new();
    let (file, _) = file(&proxy, 1000);
    let empty = proxy.path("empty");
    std::fs::write(&empty, "").unwrap();
    proxy.cluster.put_claim("disk", &[("upload.target", ""), ("pod.phase", "Succeeded")]);
    let bad = "--token=a.b.c";
    for (file, port, more, code, words) in [
        (file.as_str(), proxy.port(), &["--retries=0"][..], 4, "already finished uploading"),
        (&file, proxy.port(), &[bad], 4, "401"),
        (&file, 1, &["--retries=1", bad], 3, "cannot connect"),
        ("/nowhere", proxy.port(), &[bad], 2, "/nowhere"),
        (empty.to_str().unwrap(), proxy.port(), &[bad], 2, "is a folder or empty"),
    ] {
        let output = push(&proxy, file, port, more);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{words}: {said}");
        assert!(said.contains(words), "{words}: {said}");
        assert!(!said.contains("a.b.c"), "{said}");
    }
    // A server without a trusted certificate does not get the token.
    let url = format!("localhost:{}", proxy.port());
    let output = proxy
        .command(&["push", &file, "--pvc", "ns/disk", "--url", &url, "--token", "t", "--retries=0"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(said.contains("cannot set up TLS with localhost"), "{said}");
}

/// Accepts TLS as `localhost`, reads, and never answers.
fn silent(proxy: &Proxy) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = tls::server(&proxy.authority.sign("x"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = rustls::ServerConnection::new(config.clone()).unwrap();
            let mut stream = rustls::StreamOwned::new(connection, stream);
            let mut some = vec![0; 64 << 10];
            while let Ok(1..) = stream.read(&mut some) {}
        }
    });
    port
}

#[test]
fn silent_server_ends_a_push_after_the_timeout_of_the_answer() {
    let proxy = Proxy::new();
    let (file, _) = file(&proxy, 1000);
    let port = silent(&proxy);
    let begun = std::time::Instant::now();
    let output = push(&proxy, &file, port, &["--token=a.b.c", "--retries=1", "--answer-timeout=1500ms"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    let reason = "the upload server localhost received everything but did not answer within 1.5 s: see its log; if it is \
                  still writing, allow more time with --answer-timeout";
    let last = said.lines().last().unwrap();
    assert!(last.contains("ERROR") && last.contains(reason), "{said}");
    assert!(begun.elapsed().as_secs() < 30, "{:?}", begun.elapsed());
}
