//! Requests and answers over real TLS, by tables: rights of clients, answers, and the server's end.

use std::time::{Duration, Instant};

use crate::support::client::{Client, form};
use crate::support::{self, CLIENT, MIB, Pod, Setup, image, is_disk, sha256};

const UPLOAD: &str = "/v1beta1/upload";
const ASYNC: &str = "/v1beta1/upload-async";

#[test]
fn every_client_and_request_has_its_answer() {
    let mut pod = Pod::new();
    let strangers = [None, Some("somebody"), Some("client.upload-server.cdi.kubevirt.io.evil"), Some("")];
    for (method, path, strange, known) in [
        ("GET", "/healthz", 200, 200),
        ("GET", "/metrics", 200, 200),
        ("HEAD", ASYNC, 200, 200),
        ("HEAD", "/v1alpha1/upload-async", 200, 200),
        ("HEAD", "/v1beta1/upload-form-async", 200, 200),
        ("HEAD", UPLOAD, 404, 404),
        ("GET", UPLOAD, 404, 404),
        ("PUT", UPLOAD, 404, 404),
        ("DELETE", ASYNC, 404, 404),
        ("OPTIONS", UPLOAD, 404, 404),
        ("POST", "/v1beta1/other", 404, 404),
        ("GET", "/", 404, 404),
        ("HEAD", "/v1beta1/uploads/0", 401, 404),
        ("PATCH", "/v1beta1/uploads/0", 401, 404),
        ("DELETE", "/v1beta1/uploads/0", 401, 404),
    ] {
        for name in strangers {
            let answer = pod.client_named(name).request(method, path, &[], b"");
            assert_eq!(answer.status, strange, "{method} {path} by {name:?}");
        }
        assert_eq!(pod.client().request(method, path, &[], b"").status, known, "{method} {path}");
    }
    for path in [UPLOAD, ASYNC, "/v1beta1/upload-form", "/v1alpha1/upload-archive"] {
        for name in strangers {
            assert_eq!(
                pod.client_named(name).request("POST", path, &[], b"x").status,
                401,
                "{path} {name:?}"
            );
        }
    }
    assert_eq!(pod.client_named(None).request("GET", "/healthz", &[], b"").body, "OK");
    assert!(pod.runs() && !pod.disk().exists(), "nothing was written");
}

#[test]
fn certificates_of_another_authority_are_refused() {
    let pod = Pod::new();
    let other = support::tls::Authority::new().sign(CLIENT);
    let mut client = Client::new(pod.connect().unwrap(), Some(&other)).unwrap();
    // The handshake fails, at the latest with the first answer.
    let answer =
        client.head("POST", UPLOAD, &["Content-Length: 0".to_owned()]).and_then(|()| client.answer());
    assert!(answer.is_err(), "{answer:?}");
    assert_eq!(pod.client().request("HEAD", ASYNC, &[], b"").status, 200);
}

#[test]
fn every_way_leads_to_the_disk() {
    let image = image();
    let (form_type, form_body) = form(&image);
    for (path, headers, body) in [
        (UPLOAD, vec![], &image),
        ("/v1alpha1/upload", vec!["Content-Type: application/octet-stream"], &image),
        (ASYNC, vec![], &image),
        ("/v1beta1/upload-form", vec![form_type.as_str()], &form_body),
        ("/v1beta1/upload-form-async", vec![form_type.as_str()], &form_body),
        (UPLOAD, vec!["Expect: 100-continue"], &image),
    ] {
        let mut pod = Pod::of_size("64Mi");
        let mut client = pod.client();
        let mut answer = client.request("POST", path, &headers, body);
        if answer.status == 100 {
            answer = client.answer().unwrap();
        }
        assert_eq!((answer.status, answer.body.as_str()), (200, ""), "{path}\n{}", pod.log());
        // A client that comes just after it gets the same answer.
        let mut again = client.request("POST", path, &headers, b"");
        if again.status == 100 {
            again = client.answer().unwrap();
        }
        assert_eq!(again.status, 409, "{path}");
        // Answered means stored.
        assert!(is_disk(&pod, &image), "{path}");
        assert_eq!(std::fs::metadata(pod.disk()).unwrap().len(), 64 * MIB);
        pod.assert_uploaded();
    }
}

#[test]
fn chunks_of_any_size() {
    let image = image();
    for size in [1 << 20, 4096, 333_333] {
        let mut pod = Pod::new();
        assert_eq!(pod.client().chunked(UPLOAD, &[], &image, size).status, 200);
        assert!(is_disk(&pod, &image));
        pod.assert_uploaded();
    }
}

#[test]
fn one_upload_at_a_time() {
    let image = image();
    let mut pod = Pod::new();
    let mut first = pod.client();
    first.head("POST", UPLOAD, &[format!("Content-Length: {}", image.len())]).unwrap();
    let (front, rest) = image.split_at(image.len() / 2);
    first.send(front).unwrap();
    let metric = |pod: &Pod| {
        let page = pod.client_named(None).request("GET", "/metrics", &[], b"").body;
        let line = page.lines().find(|line| line.starts_with("kubevirt_cdi_import_progress_total{")).unwrap();
        line.strip_prefix("kubevirt_cdi_import_progress_total{ownerUID=\"1-2-3\"} ")
            .unwrap()
            .parse::<f64>()
            .unwrap()
    };
    pod.wait_for("progress", || metric(&pod) > 1.0);
    for path in [UPLOAD, ASYNC, "/v1beta1/upload-archive"] {
        let answer = pod.client().request("POST", path, &[], b"x");
        assert_eq!(answer.status, 503, "{path}: {answer:?}");
    }
    let head = pod.client().request("HEAD", ASYNC, &[], b"");
    let percent: f64 = head.header("ferrovirt-upload-progress").unwrap().parse().unwrap();
    assert!((1.0..100.0).contains(&percent), "{percent}");
    assert_eq!(
        pod.client_named(None).request("HEAD", ASYNC, &[], b"").header("ferrovirt-upload-progress"),
        None
    );
    first.send(rest).unwrap();
    assert_eq!(first.answer().unwrap().status, 200);
    assert!(is_disk(&pod, &image));
    assert_eq!(metric(&pod), 100.0);
    pod.assert_uploaded();
}

#[test]
fn failures_have_a_reason_and_the_next_upload_succeeds() {
    let image = image();
    let (form_type, _) = form(&image);
    let mut pod = Pod::of_size("4Mi");
    let too_large = vec![7; 5 << 20];
    let mut encrypted = b"QFI\xfb".to_vec();
    encrypted.extend([0, 0, 0, 3]);
    encrypted.extend(vec![0; 600]);
    type Case<'a> = (&'a str, Vec<&'a str>, &'a [u8], u16, &'a str);
    let cases: Vec<Case<'_>> = vec![
        (UPLOAD, vec![], &too_large, 400, "is larger than the reported available storage"),
        (
            ASYNC,
            vec![],
            &too_large,
            400,
            "Saving stream failed: effective image size is larger than the reported",
        ),
        (UPLOAD, vec![], b"", 500, "Saving stream failed: the source is empty"),
        (UPLOAD, vec![], &encrypted, 500, "Saving stream failed: "),
        ("/v1beta1/upload-form", vec![], b"no form", 400, "not a form"),
        ("/v1beta1/upload-form", vec![form_type.as_str()], b"no parts", 400, "no field \"file\""),
        ("/v1beta1/upload-archive", vec![], &image, 500, "not a tar archive"),
        (ASYNC, vec!["x-cdi-content-type: blockdevice-clone"], b"x", 500, "async clone not supported"),
        (UPLOAD, vec!["x-cdi-content-type: blockdevice-clone"], b"no snappy", 500, "Saving stream failed"),
        (UPLOAD, vec!["Digest: sha-256=AAAA"], b"x", 400, "the value of sha-256 in the header"),
        (UPLOAD, vec!["Digest: md5=1B2M2Y8AsgTpgAmY7PhCfg=="], &image, 400, "checksum mismatch"),
        (UPLOAD, vec!["Repr-Digest: md5=:1B2M2Y8AsgTpgAmY7PhCfg==:"], &image, 400, "checksum mismatch"),
        (UPLOAD, vec!["Upload-Complete: ?0"], b"x", 400, "version"),
        // Parts of an upload in other notations, and an unsupported coding: none of them is an image.
        (UPLOAD, vec!["Content-Range: bytes 512-1023/2048"], &image, 400, "content-range"),
        ("/v1beta1/upload-form", vec!["Content-Range: bytes 0-9/99", &form_type], b"x", 400, "content-range"),
        (ASYNC, vec!["Upload-Incomplete: ?1"], &image, 400, "upload-incomplete"),
        (UPLOAD, vec!["Upload-Offset: 512"], &image, 400, "upload-offset"),
        (UPLOAD, vec!["Content-Encoding: br"], &image, 400, "content coding"),
    ];
    for (path, headers, body, status, words) in cases {
        let answer = pod.client().request("POST", path, &headers, body);
        assert_eq!(answer.status, status, "{path} {headers:?}: {answer:?}");
        assert!(answer.body.contains(words), "{path} {headers:?}: {answer:?}");
        // A client can follow the advice: it has no options of the importer.
        assert!(!answer.body.contains("--"), "{path} {headers:?}: {answer:?}");
        assert!(pod.runs());
    }
    assert_eq!(pod.client().request("POST", ASYNC, &[], &image).status, 200, "{}", pod.log());
    assert!(is_disk(&pod, &image));
    pod.assert_uploaded();
}

#[test]
fn a_digest_is_of_the_bytes_that_came() {
    use sha2::{Digest, Sha256};
    let image = image();
    let digest = Sha256::digest(&image);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let base64 = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, digest);
    let mut pod = Pod::new();
    let header = format!("Repr-Digest: sha-256=:{base64}:");
    assert_eq!(pod.client().request("POST", UPLOAD, &[&header], &image).status, 200, "{}", pod.log());
    pod.assert_uploaded();
    assert_eq!(sha256(&pod.disk(), image.len() as u64), (hex, true));
}

#[test]
fn requests_that_could_be_two() {
    let mut pod = Pod::new();
    let post = format!("POST {UPLOAD} HTTP/1.1\r\nHost: x\r\n");
    for (head, what, status, message) in [
        (format!("{post}Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"), "two lengths", 400, ""),
        (format!("{post}Content-Length: +5\r\n\r\nabcde"), "a signed length", 400, ""),
        (
            format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
            "chunked is not last",
            400,
            "",
        ),
        (
            format!("{post}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
            "a coding below the chunks",
            501,
            "the only transfer coding that is supported is chunked",
        ),
        (
            format!("{post}Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            "a coding below the chunks, on a line of its own",
            501,
            "the only transfer coding that is supported is chunked",
        ),
        (
            format!("{post}Transfer-Encoding: chunked\r\n\r\nzz\r\n"),
            "a chunk's size that is not a number",
            400,
            "the body is incomplete",
        ),
        (format!("{post}X: {}\r\n\r\n", "y".repeat(17 << 10)), "a head of more than 16 KiB", 431, ""),
        (format!("{post}{}\r\n", "X: y\r\n".repeat(1000)), "many headers", 431, ""),
        ("nonsense\r\n\r\n".to_owned(), "no request", 400, ""),
    ] {
        let mut client = pod.client();
        let _early = client.send(head.as_bytes());
        let answer = client.answer().unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(answer.status, status, "{what}: {answer:?}");
        assert!(answer.body.contains(message), "{what}: {answer:?}");
        assert!(pod.runs(), "{what}");
    }
    let image = image();
    assert_eq!(pod.client().request("POST", UPLOAD, &[], &image).status, 200, "{}", pod.log());
    pod.assert_uploaded();
}

/// RFC 9112, 6.1: the chunks count, and no byte behind them is taken for another request.
#[test]
fn a_request_with_length_and_chunks_is_read_by_its_chunks_and_ends_its_connection() {
    let image = image();
    for headers in
        ["Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 5"]
    {
        let mut pod = Pod::new();
        let mut client = pod.client();
        let head = format!("POST {UPLOAD} HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n{:x}\r\n", image.len());
        client.send(head.as_bytes()).unwrap();
        client.send(&image).unwrap();
        client.send(b"\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let answer = client.answer().unwrap();
        assert_eq!(answer.status, 200, "{headers}: {answer:?}\n{}", pod.log());
        assert!(client.answer().is_err(), "{headers}: the bytes behind the chunks are not a request");
        pod.assert_uploaded();
        let disk = std::fs::read(pod.disk()).unwrap();
        assert!(disk.starts_with(&image), "{headers}");
    }
}

#[test]
fn slow_clients_do_not_hold_up_a_good_one() {
    let mut pod = Pod::new();
    let image = image();
    let mut slow = Vec::new();
    for index in 0..support::count(100, 1000) {
        let Ok(stream) = pod.connect() else { break };
        // Some do not even begin a handshake.
        if index % 4 == 0
            && let Ok(mut client) = Client::new(stream, None)
        {
            let _early = client.send(b"POST /v1beta1/upload HTTP/1.1\r\nX");
            slow.push((None, Some(client)));
        } else if let Ok(stream) = pod.connect() {
            slow.push((Some(stream), None));
        }
    }
    let begun = Instant::now();
    assert_eq!(pod.client().request("POST", UPLOAD, &[], &image).status, 200);
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
    assert!(is_disk(&pod, &image));
    pod.assert_uploaded();
}

#[test]
fn at_the_deadline_it_ends() {
    let at = |seconds| {
        let then = std::time::SystemTime::now() + Duration::from_secs(seconds);
        vec![("DEADLINE", jiff::Timestamp::try_from(then).unwrap().to_string())]
    };
    // Before the first client.
    let mut pod = Pod::start(&Setup { variables: at(3), ..Setup::default() });
    assert!(pod.end().success());
    assert_eq!(pod.message(), r#"{"deadlinePassed":true,"message":"Deadline Passed"}"#);
    // An upload that runs is waited for.
    let image = image();
    let mut pod = Pod::start(&Setup { variables: at(5), ..Setup::default() });
    let mut client = pod.client();
    client.head("POST", UPLOAD, &[format!("Content-Length: {}", image.len())]).unwrap();
    std::thread::sleep(Duration::from_secs(7));
    assert!(pod.runs());
    client.send(&image).unwrap();
    assert_eq!(client.answer().unwrap().status, 200);
    pod.assert_uploaded();
}

#[test]
fn unusable_configurations_end_the_program_with_a_reason() {
    for (name, value, words) in [
        ("TLS_KEY_FILE", "", "TLS_KEY_FILE"),
        ("CLIENT_NAME", "", "CLIENT_NAME"),
        ("TLS_CERT_FILE", "/nowhere", "/nowhere"),
        ("DEADLINE", "soon", "DEADLINE"),
        ("UPLOAD_IMAGE_SIZE", "big", "UPLOAD_IMAGE_SIZE"),
        ("DESTINATION", "/dev/cdi-block-volume", "does not exist"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let authority = support::tls::Authority::new();
        let (certificate, key) = authority.sign("x");
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        for (file, pem) in [("c", certificate), ("k", key), ("ca", authority.certificate())] {
            std::fs::write(path(file), pem).unwrap();
        }
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_uploadserver"))
            .env_clear()
            .envs([
                ("FERROVIRT_UPLOADSERVER_ROOT", path("")),
                ("LISTEN_PORT", "0".to_owned()),
                ("TLS_CERT_FILE", path("c")),
                ("TLS_KEY_FILE", path("k")),
                ("CLIENT_CERT_FILE", path("ca")),
                ("CLIENT_NAME", CLIENT.to_owned()),
                (name, value.to_owned()),
            ])
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{name}: {said}");
        assert!(said.contains(words), "{name}: {said}");
    }
}
