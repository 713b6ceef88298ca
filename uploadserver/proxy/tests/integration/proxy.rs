//! The proxy over real TLS before real upload servers, by tables: rights of clients, answers, forwarded headers and bodies,
//! and hostile clients. The cluster is a stand-in.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use api::upload::token::{Claims, Grant, LIFETIME, Operation, Signer, Target};
use serde_json::json;

use crate::support::cluster::{key_pair, now};
use crate::support::proxy::{Proxy, put, put_certificate};
use crate::support::server::client::{Answer, Client, form};
use crate::support::server::tls::{Authority, server};
use crate::support::server::{CLIENT, MIB, Pod, Setup, count, image, is_disk, sha256};

const UPLOAD: &str = "/v1beta1/upload";
const ASYNC: &str = "/v1beta1/upload-async";
const FORM_ASYNC: &str = "/v1beta1/upload-form-async";
const V8: &str = "Upload-Draft-Interop-Version: 8";

/// Pages of every origin may look at it.
#[track_caller]
fn assert_open(answer: &Answer) {
    assert_eq!(answer.header("access-control-allow-origin"), Some("*"), "{answer:?}");
    assert!(answer.header("access-control-expose-headers").unwrap().contains("upload-offset"), "{answer:?}");
}

#[test]
fn every_token_and_request_has_its_answer() {
    let proxy = Proxy::new();
    let good = proxy.bearer("none");
    for (method, path, headers, status) in [
        ("GET", "/healthz", vec![], 200),
        ("GET", "/", vec![], 404),
        ("GET", "/metrics", vec![good.as_str()], 404),
        ("POST", "/v1/upload", vec![good.as_str()], 404),
        ("POST", "/v1beta1/upload-archive", vec![good.as_str()], 404),
        ("HEAD", "/v1beta1/uploads/a/b", vec![good.as_str()], 404),
        // The console's first request.
        ("GET", FORM_ASYNC, vec![], 400),
        ("HEAD", ASYNC, vec![], 400),
        ("POST", UPLOAD, vec![], 400),
        ("POST", "/v1alpha1/upload-form", vec![], 400),
        ("PATCH", "/v1beta1/uploads/abc", vec![], 400),
        ("POST", UPLOAD, vec!["Authorization: Basic eDp5"], 400),
        ("POST", UPLOAD, vec!["Authorization: Bearer"], 400),
        ("POST", UPLOAD, vec!["Authorization: Bearer a b"], 400),
        ("POST", UPLOAD, vec![good.as_str(), good.as_str()], 400),
        ("POST", UPLOAD, vec!["Authorization: Bearer a.b.c"], 401),
        ("HEAD", ASYNC, vec!["Authorization: Bearer a.b.c"], 401),
        ("POST", UPLOAD, vec![good.as_str()], 503),
        ("HEAD", ASYNC, vec![good.as_str()], 503),
        ("PATCH", "/v1beta1/uploads/abc", vec![good.as_str()], 503),
    ] {
        let answer = proxy.client().request(method, path, &headers, b"");
        assert_eq!(answer.status, status, "{method} {path} {headers:?}: {answer:?}");
        assert_open(&answer);
    }
    let asked = proxy.cluster.requests();
    assert!(asked.iter().all(|path| path.ends_with("/ns/persistentvolumeclaims/none")), "{asked:?}");
    assert_eq!(proxy.client().request("GET", "/healthz", &[], b"").body, "OK");
    assert!(!proxy.log().contains(good.split_once("Bearer ").unwrap().1), "no tokens in the log");
}

#[test]
fn pages_of_every_origin_may_ask() {
    let proxy = Proxy::new();
    for path in [FORM_ASYNC, UPLOAD, "/v1beta1/uploads/a", "/elsewhere"] {
        let headers = [
            "Origin: https://console.example.com",
            "Access-Control-Request-Method: POST",
            "Access-Control-Request-Headers: authorization,upload-offset",
        ];
        let answer = proxy.client().request("OPTIONS", path, &headers, b"");
        assert_eq!(answer.status, 204, "{path}: {answer:?}");
        assert_open(&answer);
        assert_eq!(answer.header("access-control-allow-headers"), Some("authorization,upload-offset"));
        let methods = answer.header("access-control-allow-methods").unwrap();
        assert!(["POST", "PATCH", "HEAD", "DELETE"].iter().all(|one| methods.contains(one)), "{methods}");
    }
}

#[test]
fn invalid_tokens_and_tokens_for_other_claims_are_refused() {
    let proxy = Proxy::new();
    let pod = proxy.pod("disk");
    let private = std::fs::read_to_string(proxy.path("id_rsa")).unwrap();
    let signer = Signer::from_pem(&private).unwrap();
    let (other, _) = key_pair();
    let grant = Grant::upload(&Target::new("ns", "disk").unwrap());
    let claims = Claims {
        grant: grant.clone(),
        iss: "cdi-apiserver".into(),
        iat: now(),
        nbf: now(),
        exp: now() + LIFETIME,
    };
    let signed = |change: &dyn Fn(&mut Claims)| {
        let mut claims = claims.clone();
        change(&mut claims);
        signer.sign_claims(&claims).unwrap()
    };
    let token = signed(&|_| {});
    let body = token.split('.').nth(1).unwrap();
    let base64 = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, text);
    let none = format!("{}.{body}.", base64(r#"{"alg":"none"}"#));
    let image = image();
    for (what, token, status) in [
        ("none-alg", none.as_str(), 401),
        ("none-alg with a signature", &format!("{none}x"), 401),
        ("other key", &Signer::from_pem(&other).unwrap().sign_claims(&claims).unwrap(), 401),
        ("changed", &token.replacen(body, &base64(r#"{"operation":"Upload"}"#), 1), 401),
        ("expired", &signed(&|claims| claims.exp = now() - 30), 401),
        ("early", &signed(&|claims| claims.nbf = now() + 60), 401),
        ("other issuer", &signed(&|claims| claims.iss = "cdi-deployment".into()), 401),
        ("a clone's", &signed(&|claims| claims.grant.operation = Operation::Clone), 400),
        ("of a secret", &signed(&|claims| claims.grant.resource.resource = "secrets".into()), 400),
        ("of nothing", &signed(&|claims| claims.grant.name = String::new()), 400),
        ("of a path", &signed(&|claims| claims.grant.name = "../../secrets/x".into()), 400),
        ("of another PVC", &signed(&|claims| claims.grant.name = "other".into()), 503),
        ("of another namespace", &signed(&|claims| claims.grant.namespace = "other".into()), 503),
    ] {
        let bearer = format!("Authorization: Bearer {token}");
        let answer = proxy.client().request("POST", UPLOAD, &[&bearer], &image);
        assert_eq!(answer.status, status, "{what}: {answer:?}");
        assert_open(&answer);
    }
    assert!(!pod.disk().exists(), "nothing came to the server");
    // It is still there for the right one.
    assert_eq!(proxy.request("disk", "POST", UPLOAD, &[], &image).status, 200, "{}", proxy.log());
    assert!(is_disk(&pod, &image));
}

#[test]
fn claims_that_cannot_take_an_upload() {
    let proxy = Proxy::new();
    let target = ("upload.target", "");
    proxy.cluster.put_claim("no-target", &[("pod.ready", "true")]);
    proxy.cluster.put_claim("done", &[target, ("pod.ready", "false"), ("pod.phase", "Succeeded")]);
    proxy.cluster.put_claim("odd", &[target, ("pod.ready", "true"), ("contentType", "<b>x")]);
    proxy.cluster.put_claim("waits", &[target, ("pod.phase", "Pending")]);
    proxy.cluster.put_ready("no-server");
    proxy.put_host("cdi-upload-no-server.ns.svc", 1);
    for (claim, status, words) in [
        ("none", 503, "rejecting Upload Request for PVC none that doesn't exist"),
        ("no-target", 503, "PVC no-target is not an upload target"),
        ("done", 503, "rejecting Upload Request for PVC done that already finished uploading"),
        ("odd", 503, "upload content-type <b>x is invalid"),
        // Ten seconds.
        ("waits", 503, "its upload server is not ready yet"),
        ("no-server", 502, "cannot be reached"),
    ] {
        let answer = proxy.request(claim, "POST", UPLOAD, &[], &image());
        assert_eq!(answer.status, status, "{claim}: {answer:?}");
        assert!(answer.body.contains(words), "{claim}: {answer:?}");
        assert_open(&answer);
        // A reason is never rendered as a page.
        assert_eq!(answer.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(answer.header("x-content-type-options"), Some("nosniff"));
    }
}

#[test]
fn servers_with_another_certificate_are_refused() {
    let proxy = Proxy::new();
    let image = image();
    // Of another authority, and of the right one for another claim.
    let stranger = Pod::new();
    proxy.cluster.put_ready("stranger");
    proxy.put_host("cdi-upload-stranger.ns.svc", stranger.port());
    let other = proxy.pod("other");
    proxy.cluster.put_ready("disk");
    proxy.put_host("cdi-upload-disk.ns.svc", other.port());
    for claim in ["stranger", "disk"] {
        let answer = proxy.request(claim, "POST", UPLOAD, &[], &image);
        assert_eq!(answer.status, 502, "{claim}: {answer:?}");
    }
    // One that does not know us.
    let variables = vec![("CLIENT_NAME", "somebody".to_owned())];
    let picky = proxy.pod_with("picky", Setup { variables, ..Setup::default() });
    assert_eq!(proxy.request("picky", "POST", UPLOAD, &[], &image).status, 401);
    for pod in [&stranger, &other, &picky] {
        assert!(!pod.disk().exists());
    }
    // Without the authorities no server is trusted.
    proxy
        .cluster
        .put("/api/v1/namespaces/cdi/configmaps/cdi-uploadserver-signer-bundle", json!({"data": {}}));
    assert_eq!(proxy.request("other", "POST", UPLOAD, &[], &image).status, 500);
}

#[test]
fn every_way_leads_to_the_disk() {
    let proxy = Proxy::new();
    let image = image();
    let (form_type, form_body) = form(&image);
    for (index, (path, headers, body)) in [
        (UPLOAD, vec![], &image),
        ("/v1alpha1/upload", vec!["Content-Type: application/octet-stream"], &image),
        (ASYNC, vec![], &image),
        ("/v1beta1/upload-form", vec![form_type.as_str()], &form_body),
        (FORM_ASYNC, vec![form_type.as_str(), "Origin: https://console.example.com"], &form_body),
        (UPLOAD, vec!["Expect: 100-continue"], &image),
    ]
    .into_iter()
    .enumerate()
    {
        let claim = format!("disk{index}");
        let mut pod = proxy.pod(&claim);
        // As virtctl looks first.
        let head = proxy.request(&claim, "HEAD", ASYNC, &[], b"");
        assert_eq!(head.status, 200, "{path}");
        assert_open(&head);
        let bearer = proxy.bearer(&claim);
        let headers: Vec<&str> = headers.into_iter().chain([bearer.as_str()]).collect();
        let mut client = proxy.client();
        let mut answer = client.request("POST", path, &headers, body);
        if answer.status == 100 {
            answer = client.answer().unwrap();
        }
        assert_eq!(
            (answer.status, answer.body.as_str()),
            (200, ""),
            "{path}\n{}\n{}",
            proxy.log(),
            pod.log()
        );
        assert_open(&answer);
        assert!(is_disk(&pod, &image), "{path}");
        pod.assert_uploaded();
        // The same token again.
        proxy.cluster.put_claim(&claim, &[("upload.target", ""), ("pod.phase", "Succeeded")]);
        let again = proxy.client().request("POST", path, &headers[headers.len() - 1..], body);
        assert_eq!(again.status, 503, "{again:?}");
        assert!(again.body.contains("already finished"), "{again:?}");
    }
}

#[test]
fn archives_and_chunks_and_refusals_of_servers_pass_through() {
    let proxy = Proxy::new();
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(5);
    header.set_mode(0o644);
    archive.append_data(&mut header, "folder/file", &b"hello"[..]).unwrap();
    let archive = archive.into_inner().unwrap();
    let mut pod = proxy.pod("archive");
    let annotations = [("upload.target", ""), ("pod.ready", "true"), ("contentType", "archive")];
    proxy.cluster.put_claim("archive", &annotations);
    assert_eq!(proxy.request("archive", "POST", ASYNC, &[], &archive).status, 200, "{}", pod.log());
    pod.assert_uploaded();
    assert_eq!(std::fs::read(pod.path("data/folder/file")).unwrap(), b"hello");

    let image = image();
    let mut pod = proxy.pod_with(
        "disk",
        Setup { variables: vec![("UPLOAD_IMAGE_SIZE", "4Mi".to_owned())], ..Setup::default() },
    );
    for (headers, body, status, words) in [
        (vec![], vec![7; 5 << 20], 400, "is larger than the reported available storage"),
        (vec![], vec![], 500, "Saving stream failed: the source is empty"),
        (vec!["Digest: md5=1B2M2Y8AsgTpgAmY7PhCfg=="], image.clone(), 400, "checksum mismatch"),
    ] {
        let answer = proxy.request("disk", "POST", UPLOAD, &headers, &body);
        assert_eq!(answer.status, status, "{answer:?}");
        assert!(answer.body.contains(words), "{answer:?}");
        assert_open(&answer);
    }
    // One at a time, also through the proxy.
    let bearer = proxy.bearer("disk");
    let mut first = proxy.client();
    let length = format!("Content-Length: {}", image.len());
    first
        .head("POST", UPLOAD, &[bearer.clone(), V8.to_owned(), "Upload-Complete: ?1".into(), length])
        .unwrap();
    first.send(&image[..1 << 20]).unwrap();
    assert_eq!(first.answer().unwrap().status, 104, "it is the one that runs");
    assert_eq!(proxy.request("disk", "POST", UPLOAD, &[], b"x").status, 503);
    drop(first);
    // It was cut off; the next one comes in chunks.
    let mut answer = proxy.client().chunked(UPLOAD, &[&bearer], &image, 50_000);
    pod.wait_for("the first one's end", || {
        if answer.status == 503 {
            answer = proxy.client().chunked(UPLOAD, &[&bearer], &image, 50_000);
        }
        answer.status != 503
    });
    assert_eq!(answer.status, 200, "{answer:?}\n{}", pod.log());
    assert!(is_disk(&pod, &image));
    pod.assert_uploaded();
}

#[test]
fn a_server_that_becomes_ready_is_waited_for_and_populators_are_followed() {
    let proxy = Proxy::new();
    let image = image();
    let mut pod = proxy.pod("prime-1");
    // Not yet, then filled by another claim, which is not ready yet, then is.
    let object = |annotations: serde_json::Value| {
        let source = json!({"apiGroup": "cdi.kubevirt.io", "kind": "VolumeUploadSource", "name": "x"});
        json!({"metadata": {"annotations": annotations}, "spec": {"dataSourceRef": source}})
    };
    let path = "/api/v1/namespaces/ns/persistentvolumeclaims/disk";
    proxy.cluster.put(path, object(json!({})));
    proxy.cluster.put_claim("prime-1", &[("upload.target", "")]);
    std::thread::scope(|scope| {
        let upload = scope.spawn(|| proxy.request("disk", "POST", ASYNC, &[], &image));
        let seen = |path: &str| proxy.cluster.requests().iter().any(|asked| asked.ends_with(path));
        pod.wait_for("the claim is looked at", || seen("/persistentvolumeclaims/disk"));
        proxy.cluster.put(path, object(json!({"cdi.kubevirt.io/storage.populator.pvcPrime": "prime-1"})));
        pod.wait_for("the other one is", || seen("/persistentvolumeclaims/prime-1"));
        proxy.cluster.put_ready("prime-1");
        assert_eq!(upload.join().unwrap().status, 200, "{}", proxy.log());
    });
    assert!(is_disk(&pod, &image));
    pod.assert_uploaded();
}

#[test]
fn broken_upload_is_resumed() {
    let proxy = Proxy::new();
    let image = image();
    let mut pod = proxy.pod("disk");
    let bearer = proxy.bearer("disk");
    let mut client = proxy.client();
    let head = [
        bearer.clone(),
        V8.to_owned(),
        "Upload-Complete: ?1".into(),
        format!("Content-Length: {}", image.len()),
    ];
    client.head("POST", UPLOAD, &head).unwrap();
    client.send(&image[..MIB as usize]).unwrap();
    let interim = client.answer().unwrap();
    assert_eq!(interim.status, 104, "{interim:?}");
    assert_eq!(interim.header("upload-draft-interop-version"), Some("8"));
    let place = interim.header("location").unwrap().to_owned();
    assert!(place.starts_with("/v1beta1/uploads/"), "{place}");
    drop(client);
    // As often as it breaks.
    let mut at = 0;
    for end in [2 * MIB, image.len() as u64] {
        let head = proxy.request("disk", "HEAD", &place, &[V8], b"");
        assert_eq!(head.status, 204, "{head:?}");
        assert_open(&head);
        assert_eq!(head.header("upload-complete"), Some("?0"));
        at = head.header("upload-offset").unwrap().parse::<u64>().unwrap();
        assert!(at <= end, "{at}");
        let last = end == image.len() as u64;
        let headers = [
            V8,
            "Content-Type: application/partial-upload",
            &format!("Upload-Complete: ?{}", u8::from(last)),
            &format!("Upload-Offset: {at}"),
        ];
        let answer = proxy.request("disk", "PATCH", &place, &headers, &image[at as usize..end as usize]);
        assert_eq!(answer.status, if last { 200 } else { 204 }, "{answer:?}\n{}", pod.log());
    }
    assert!(at > 0);
    assert!(is_disk(&pod, &image));
    pod.assert_uploaded();
    // An upload that is not there, and a place that cannot be.
    let pod = proxy.pod("disk");
    assert_eq!(proxy.request("disk", "HEAD", &place, &[V8], b"").status, 404);
    assert_eq!(proxy.request("disk", "DELETE", &place, &[V8], b"").status, 404);
    drop(pod);
}

#[test]
fn requests_that_could_be_two() {
    let proxy = Proxy::new();
    let mut pod = proxy.pod("disk");
    let bearer = proxy.bearer("disk");
    let post = format!("POST {UPLOAD} HTTP/1.1\r\nHost: x\r\n{bearer}\r\n");
    for (head, what) in [
        (format!("{post}Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef"), "two lengths"),
        (format!("{post}Content-Length: +5\r\n\r\nabcde"), "a signed length"),
        (format!("{post}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"), "chunked is not last"),
        (format!("{post}Transfer-Encoding: chunked\r\n\r\nzz\r\n"), "a chunk's size that is none"),
        (
            format!("{post}Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n"),
            "a chunk's size that is too large",
        ),
        (
            format!("{post}Transfer-Encoding: chunked\r\n\r\n5\r\nabcdefgh\r\n0\r\n\r\n"),
            "a chunk that is longer",
        ),
        (format!("{post}X: {}\r\n\r\n", "y".repeat(1 << 20)), "a giant header"),
        (format!("{post}{}\r\n", "X: y\r\n".repeat(1000)), "many headers"),
        (format!("{post}X y: z\r\n\r\n"), "a name with a space"),
        (format!("POST {UPLOAD} HTTP/1.1\r\nHost: x\r\n{bearer}\r\n folded\r\n\r\n"), "a folded header"),
        ("nonsense\r\n\r\n".to_owned(), "no request"),
    ] {
        let mut client = proxy.client();
        let _early = client.send(head.as_bytes());
        // Refused, or cut off.
        let status = client.answer().map_or(400, |answer| answer.status);
        assert!((400..=503).contains(&status), "{what}: {status}");
        assert!(pod.runs(), "{what}");
        assert!(!pod.disk().exists() || !is_disk_of(&pod, b"x"), "{what}");
    }
    let image = image();
    pod.wait_for("it is free", || {
        let answer = proxy.request("disk", "POST", UPLOAD, &[], &image);
        assert!([200, 503].contains(&answer.status), "{answer:?}\n{}", pod.log());
        answer.status == 200
    });
    assert!(is_disk(&pod, &image));
    pod.assert_uploaded();
}

/// RFC 9112, 6.1: the chunks count, and no byte behind them is taken for another request.
#[test]
fn a_request_with_length_and_chunks_is_forwarded_by_its_chunks_and_ends_its_connection() {
    let image = image();
    for headers in
        ["Content-Length: 5\r\nTransfer-Encoding: chunked", "Transfer-Encoding: chunked\r\nContent-Length: 5"]
    {
        let proxy = Proxy::new();
        let mut pod = proxy.pod("disk");
        let bearer = proxy.bearer("disk");
        let mut client = proxy.client();
        let head = format!(
            "POST {UPLOAD} HTTP/1.1\r\nHost: x\r\n{bearer}\r\n{headers}\r\n\r\n{:x}\r\n",
            image.len()
        );
        client.send(head.as_bytes()).unwrap();
        client.send(&image).unwrap();
        client.send(b"\r\n0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let answer = client.answer().unwrap();
        assert_eq!(answer.status, 200, "{headers}: {answer:?}\n{}", pod.log());
        assert!(client.answer().is_err(), "{headers}: the bytes behind the chunks are not a request");
        assert!(is_disk(&pod, &image), "{headers}");
        pod.assert_uploaded();
    }
}

fn is_disk_of(pod: &Pod, front: &[u8]) -> bool {
    std::fs::read(pod.disk()).is_ok_and(|disk| disk.starts_with(front))
}

#[test]
fn slow_clients_do_not_hold_up_a_good_one() {
    let proxy = Proxy::new();
    let mut pod = proxy.pod("disk");
    let image = image();
    let mut slow = Vec::new();
    for index in 0..count(100, 1000) {
        let Ok(stream) = proxy.connect() else { break };
        // Some do not even begin a handshake.
        if index % 4 == 0
            && let Ok(mut client) = Client::new(stream, None)
        {
            let _early = client.send(b"POST /v1beta1/upload HTTP/1.1\r\nX");
            slow.push((None, Some(client)));
        } else if let Ok(stream) = proxy.connect() {
            slow.push((Some(stream), None));
        }
    }
    let begun = Instant::now();
    assert_eq!(proxy.request("disk", "POST", UPLOAD, &[], &image).status, 200);
    assert!(begun.elapsed() < Duration::from_secs(50), "{:?}", begun.elapsed());
    assert!(is_disk(&pod, &image));
    pod.assert_uploaded();
}

#[test]
fn a_revoked_key_opens_nothing_and_damaged_files_change_nothing() {
    let proxy = Proxy::new();
    let pod = proxy.pod("disk");
    let status = || proxy.request("disk", "HEAD", ASYNC, &[], b"").status;
    assert_eq!(status(), 200);
    let public = std::fs::read_to_string(proxy.path("id_rsa.pub")).unwrap();
    let old = proxy.bearer("disk");
    let with_old = || proxy.client().request("HEAD", ASYNC, &[&old], b"").status;
    for damaged in ["", "nonsense", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"] {
        put(proxy.folder.path(), "id_rsa.pub", damaged);
        assert_eq!(status(), 200, "{damaged}");
    }
    // After a replacement both keys are valid for a while.
    let (private, new) = key_pair();
    put(proxy.folder.path(), "id_rsa.pub", &new);
    proxy.cluster.sign_with(&private);
    assert_eq!((status(), with_old()), (200, 200));
    // Revoked: at once.
    put(proxy.folder.path(), "revoked.pub", &public);
    assert_eq!((status(), with_old()), (200, 401));
    put(proxy.folder.path(), "revoked.pub", &format!("{public}{new}"));
    assert_eq!((status(), with_old()), (401, 401));
    drop(pod);
}

#[test]
fn files_that_vanish_change_nothing() {
    let proxy = Proxy::new();
    let mut pod = proxy.pod("disk");
    let status = || proxy.request("disk", "HEAD", ASYNC, &[], b"").status;
    assert_eq!(status(), 200);
    for file in ["server.crt", "server.key", "client.crt", "client.key", "id_rsa.pub"] {
        std::fs::remove_file(proxy.path(file)).unwrap();
        assert_eq!(status(), 200, "{file}\n{}", proxy.log());
    }
    // One of them alone is not taken with what the other one was, and both are.
    let (_, key) = proxy.authority.sign(CLIENT);
    put(proxy.folder.path(), "client.key", &key);
    assert_eq!(status(), 200, "{}", proxy.log());
    put_certificate(proxy.folder.path(), "client", &proxy.authority, "somebody");
    assert_eq!(proxy.request("disk", "POST", UPLOAD, &[], b"x").status, 401);
    put_certificate(proxy.folder.path(), "client", &proxy.authority, CLIENT);
    assert_eq!(proxy.request("disk", "POST", UPLOAD, &[], &image()).status, 200, "{}", proxy.log());
    pod.assert_uploaded();
}

#[test]
fn key_that_was_replaced_before_its_first_token_came_is_valid() {
    let proxy = Proxy::new();
    let _pod = proxy.pod("disk");
    let replace = |times: usize| {
        let (private, public) = key_pair();
        put(proxy.folder.path(), "id_rsa.pub", &public);
        proxy.cluster.sign_with(&private);
        let seen = || proxy.log().matches("the key of tokens was replaced").count() == times;
        let until = Instant::now() + Duration::from_secs(30);
        while !seen() {
            assert!(Instant::now() < until, "{}", proxy.log());
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let first = proxy.bearer("disk");
    replace(1);
    let second = proxy.bearer("disk");
    replace(2);
    for bearer in [first, second] {
        assert_eq!(proxy.client().request("HEAD", ASYNC, &[&bearer], b"").status, 200);
    }
}

/// A server that takes everything and keeps nothing, over TLS; counts the bytes of bodies.
fn sink(authority: &Authority, host: &str, taken: Arc<AtomicU64>) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = server(&authority.sign(host));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (config, taken) = (config.clone(), taken.clone());
            std::thread::spawn(move || {
                let connection = rustls::ServerConnection::new(config).unwrap();
                let mut stream = rustls::StreamOwned::new(connection, stream);
                let (mut head, mut byte) = (Vec::new(), [0]);
                while !head.ends_with(b"\r\n\r\n") {
                    if stream.read_exact(&mut byte).is_err() {
                        return;
                    }
                    head.push(byte[0]);
                }
                let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
                let length = head.split_once("content-length: ").unwrap().1;
                let mut left: u64 = length.split_once('\r').unwrap().0.parse().unwrap();
                let mut buffer = vec![0; 64 << 10];
                while left > 0 {
                    let Ok(got @ 1..) = stream.read(&mut buffer) else { return };
                    left -= got as u64;
                    taken.fetch_add(got as u64, Ordering::Relaxed);
                }
                let _gone = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
            });
        }
    });
    port
}

/// Bytes that are resident at most so far, but for the program's file: that of a test is ten times as large as the one that
/// is given out, of which `make bench` measures all.
fn peak(proxy: &Proxy) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.process().id())).unwrap();
    let bytes = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
    };
    bytes("VmHWM:") - bytes("RssFile:")
}

#[test]
fn fifty_uploads_pass_through_at_once() {
    const UPLOADS: u64 = 50;
    let proxy = Proxy::new();
    let taken = Arc::new(AtomicU64::new(0));
    let host = "cdi-upload-disk.ns.svc";
    proxy.put_host(host, sink(&proxy.authority, host, taken.clone()));
    proxy.cluster.put_ready("disk");
    let size = count(4, 256) * MIB;
    let piece = vec![5; MIB as usize];
    let begun = std::sync::Barrier::new(UPLOADS as usize);
    std::thread::scope(|scope| {
        for _ in 0..UPLOADS {
            scope.spawn(|| {
                let mut client = proxy.client();
                let head = [proxy.bearer("disk"), format!("Content-Length: {size}")];
                client.head("POST", UPLOAD, &head).unwrap();
                client.send(&piece).unwrap();
                // All of them are under way before any of them ends.
                begun.wait();
                for _ in 1..size / MIB {
                    client.send(&piece).unwrap();
                }
                assert_eq!(client.answer().unwrap().status, 200);
            });
        }
    });
    assert_eq!(taken.load(Ordering::Relaxed), UPLOADS * size);
    let most = peak(&proxy);
    println!("{UPLOADS} uploads of {} MiB: {} KiB resident at most", size / MIB, most >> 10);
    assert!(most <= 24 * MIB, "{} KiB resident", most >> 10);
}

#[test]
fn a_command_signs_tokens() {
    let proxy = Proxy::new();
    let image = image();
    let mut pod = proxy.pod("disk");
    let key = proxy.path("id_rsa");
    let output =
        proxy.command(&["token", "--key", key.to_str().unwrap(), "--pvc", "ns/disk"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let bearer = format!("Authorization: Bearer {}", String::from_utf8(output.stdout).unwrap().trim());
    assert_eq!(proxy.client().request("POST", UPLOAD, &[&bearer], &image).status, 200);
    pod.assert_uploaded();
    assert!(sha256(&pod.disk(), image.len() as u64).1);
    for (arguments, code) in [
        (["token", "--key", "/nowhere", "--pvc", "ns/disk"], 2),
        (["token", "--key", proxy.path("id_rsa.pub").to_str().unwrap(), "--pvc", "ns/disk"], 2),
        (["token", "--key", key.to_str().unwrap(), "--pvc", "disk"], 2),
    ] {
        let output = proxy.command(&arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?} {output:?}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn unusable_configurations_end_the_program_with_a_reason() {
    let proxy = Proxy::new();
    let usual = |name: &str| {
        let mut command = proxy.command(&[]);
        for (variable, file) in [
            ("SERVER_CERT_FILE", "server.crt"),
            ("SERVER_KEY_FILE", "server.key"),
            ("APISERVER_PUBLIC_KEY_FILE", "id_rsa.pub"),
        ] {
            command.env(variable, proxy.path(file));
        }
        command.env("LISTEN", "127.0.0.1:0").env_remove(name);
        command
    };
    for (mut command, words) in [
        (usual("APISERVER_PUBLIC_KEY_FILE"), "APISERVER_PUBLIC_KEY"),
        (usual("SERVER_CERT_FILE"), "/var/run/certs/cdi-uploadproxy-server-cert/tls.crt"),
        (usual("KUBECONFIG"), "no cluster is configured"),
    ] {
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words}: {said}");
        assert!(said.contains(words), "{said}");
    }
    let mut command = usual("APISERVER_PUBLIC_KEY_FILE");
    let output = command.env("APISERVER_PUBLIC_KEY", "no key").output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
