//! The end of the proxy: it waits for uploads, and for no connection that a client merely keeps.

use std::time::Duration;

use crate::support::proxy::Proxy;
use crate::support::server::MIB;

const ASYNC: &str = "/v1beta1/upload-async";

/// The longest wait is that for the rest of a head, 10 s.
#[test]
fn sigterm_ends_the_proxy_while_clients_keep_their_connections() {
    let mut proxy = Proxy::new();
    let mut kept = proxy.client();
    assert_eq!(kept.request("GET", "/healthz", &[], b"").status, 200);
    let mut unfinished = proxy.client();
    unfinished.send(b"GET /healthz HT").unwrap();
    let silent = proxy.connect().unwrap();
    proxy.terminate();
    assert!(proxy.ends_within(Duration::from_secs(15)), "{}", proxy.log());
    drop((kept, unfinished, silent));
}

#[test]
fn sigterm_lets_an_upload_complete() {
    let mut proxy = Proxy::new();
    let mut pod = proxy.pod("disk");
    let image = vec![7u8; usize::try_from(MIB).unwrap()];
    let (front, rest) = image.split_at(image.len() / 2);
    let mut upload = proxy.client();
    let length = format!("Content-Length: {}", image.len());
    upload.head("POST", ASYNC, &[proxy.bearer("disk"), length]).unwrap();
    upload.send(front).unwrap();
    pod.wait_for("the upload has begun", || {
        let page = pod.client_named(None).request("GET", "/metrics", &[], b"").body;
        let line = page.lines().find_map(|line| line.strip_prefix("ferrovirt_upload_read_bytes_total "));
        line.is_some_and(|read| read != "0")
    });
    proxy.terminate();
    assert!(!proxy.ends_within(Duration::from_secs(2)), "{}", proxy.log());
    upload.send(rest).unwrap();
    assert_eq!(upload.answer().unwrap().status, 200, "{}", proxy.log());
    assert!(proxy.ends_within(Duration::from_secs(15)), "{}", proxy.log());
    assert!(pod.end().success(), "{}", pod.log());
    assert!(std::fs::read(pod.disk()).unwrap().starts_with(&image));
}
