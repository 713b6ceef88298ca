//! TLS and proxies.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use importer::source::http::Options;
use importer::source::tls::{Proxies, Trust};

use crate::http::reading::{data, fails, open, quick, survives};
use crate::http::server::{Answer, Server, plain};
use sources::tls::server_config;

/// A self-signed server for 127.0.0.1, and its certificate as PEM.
fn tls_server(data: &Arc<Vec<u8>>) -> (Server, String) {
    let signed =
        rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned(), "tls.invalid".to_owned()]).unwrap();
    let config = server_config(signed.cert.der().clone(), &signed.signing_key);
    let answer = Answer { cut: 3_000_000, ..Answer::new(data) };
    let server = Server::start_with(Some(config), move |request, out| answer.give(request, out));
    (server, signed.cert.pem())
}

#[test]
fn tls_trusts_only_the_given_directories_and_files() {
    let data = data(7_000_000);
    let (server, pem) = tls_server(&data);
    let url = format!("https://{}/a.img", server.address);
    let with = |trust: Trust| {
        let mut options = quick(url.clone());
        options.reach.trust = trust;
        options
    };

    let start = Instant::now();
    let error = fails(with(Trust::default()));
    assert!(error.contains("is not trusted; give its CA certificate"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(2), "a certificate does not get better by waiting");
    survives(with(Trust { insecure: true, ..Trust::default() }), &data);

    let other = rcgen::generate_simple_self_signed(vec!["other".to_owned()]).unwrap().cert.pem();
    let folder = tempfile::tempdir().unwrap();
    let trust =
        || Trust { folders: vec!["/no/such/folder".into(), folder.path().into()], ..Trust::default() };
    // Neither another name nor a hidden file nor rubbish counts, and none of them is in the way.
    std::fs::write(folder.path().join("ca.txt"), &pem).unwrap();
    std::fs::write(folder.path().join(".ca.crt"), &pem).unwrap();
    std::fs::write(folder.path().join("bad.pem"), "rubbish").unwrap();
    std::fs::create_dir(folder.path().join("folder.crt")).unwrap();
    assert!(fails(with(trust())).contains("not trusted"));
    std::fs::write(folder.path().join("two.crt"), format!("{other}\n{pem}")).unwrap();
    survives(with(trust()), &data);

    let file = folder.path().join("ca.txt");
    survives(with(Trust { files: vec![file], ..Trust::default() }), &data);
    let bad = Trust { files: vec![folder.path().join("bad.pem")], ..Trust::default() };
    assert_eq!(open(with(bad)).err().map(|e| e.kind()), Some(importer::Kind::Usage));
}

#[test]
fn https_goes_through_a_connect_proxy() {
    let data = data(5_000_000);
    let (server, _) = tls_server(&data);
    let target = server.address;
    let proxy = Server::start(move |request, out| {
        if request.header("proxy-authorization") != Some("Basic bWU6cGFzcw==") {
            return plain(out, "407 Proxy Authentication Required", "");
        }
        assert_eq!(request.method, "CONNECT");
        assert_eq!(request.path, "tls.invalid:443");
        let upstream = TcpStream::connect(target)?;
        write!(out, "HTTP/1.1 200 OK\r\n\r\n")?;
        let (mut client, mut server) = (out.bare(), upstream.try_clone()?);
        let back = std::thread::spawn(move || {
            let _ = io::copy(&mut server, &mut client);
            let _ = client.shutdown(Shutdown::Both);
        });
        let _ = io::copy(&mut out.bare(), &mut &upstream);
        let _ = upstream.shutdown(Shutdown::Both);
        let _ = back.join();
        Err(io::ErrorKind::Other.into())
    });
    let with = |https: String| {
        let mut options = through(
            Proxies { https: Some(https), ..Proxies::default() },
            "https://tls.invalid/a.img".to_owned(),
        );
        options.reach.trust.insecure = true;
        options
    };
    survives(with(format!("http://me:pass@{}", proxy.address)), &data);
    assert!(!server.requests().is_empty() && !proxy.requests().is_empty());
    let error = fails(with(format!("http://me:hunter2@{}", proxy.address)));
    assert!(!error.contains("hunter2"), "{error}");
}

fn through(proxies: Proxies, url: String) -> Options {
    let mut options = quick(url);
    options.reach.proxies = proxies;
    options
}

#[test]
fn http_goes_through_a_proxy_but_for_no_proxy() {
    let data = data(1_000_000);
    let answer = Answer::new(&data);
    let server = Server::start(move |request, out| answer.give(request, out));
    let proxy = Proxies { http: Some(server.url("")), ..Proxies::default() };
    survives(through(proxy, "http://plain.invalid/a.img".to_owned()), &data);
    assert!(server.requests().iter().all(|r| r.path == "http://plain.invalid/a.img"));

    let dead = Proxies { http: Some("http://127.0.0.1:1".to_owned()), ..Proxies::default() };
    fails(through(dead.clone(), server.url("/")));
    let but = Proxies { no_proxy: Some("localhost,127.0.0.0/8".to_owned()), ..dead };
    survives(through(but, server.url("/")), &data);
    let empty = Proxies { http: Some(String::new()), https: Some(" ".to_owned()), no_proxy: None };
    survives(through(empty, server.url("/")), &data);
}
