//! Uploads as virtctl does them: a token, then the bytes to the upload proxy.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use e2e::Cluster;
use futures_util::{StreamExt, stream};
use reqwest::{Body, Certificate, Client, Method};
use serde_json::{Value, json};

use crate::storage::setup::{CLUSTER, DISK, PLATFORM};
use crate::storage::space::Space;

/// The proxy's name in its certificate.
const PROXY: &str = "cdi-uploadproxy.kubevirt-hyperconverged.svc";

/// A client that trusts the bundle as it is published now.
fn client(cluster: &Cluster) -> Client {
    let read = |path: &str| {
        let request = hyper::Request::get(format!("/api/v1/namespaces/{PLATFORM}/{path}"));
        let answer = cluster.run(cluster.client().request(request.body(Vec::new()).unwrap()));
        answer.map(|object: Value| object).unwrap()
    };
    let bundle = read("configmaps/cdi-uploadproxy-signer-bundle");
    let bundle = bundle["data"]["ca-bundle.crt"].as_str().unwrap().to_owned();
    let service = read("services/cdi-uploadproxy");
    let address: Ipv4Addr = service["spec"]["clusterIP"].as_str().unwrap().parse().unwrap();
    let authorities = Certificate::from_pem_bundle(bundle.as_bytes()).unwrap();
    // No connection is kept: the proxy closes idle ones, maybe while a test writes to it.
    Client::builder()
        .no_proxy()
        .pool_max_idle_per_host(0)
        .tls_certs_only(authorities)
        .resolve(PROXY, SocketAddr::from((address, 443)))
        .build()
        .unwrap()
}

/// A token for an upload, as virtctl asks for it.
pub(crate) fn token(space: &Space, claim: &str) -> String {
    token_of(&CLUSTER, &space.0, claim).unwrap()
}

/// The same in any cluster.
pub(crate) fn token_of(cluster: &Cluster, namespace: &str, claim: &str) -> kube::Result<String> {
    let path = format!("/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/{namespace}/uploadtokenrequests");
    let body = json!({
        "apiVersion": "upload.cdi.kubevirt.io/v1beta1", "kind": "UploadTokenRequest",
        "metadata": {"generateName": "token-for-virtctl-"}, "spec": {"pvcName": claim},
    });
    let request = hyper::Request::post(path).header("content-type", "application/json");
    let request = request.body(body.to_string().into_bytes()).unwrap();
    let answer: Value = cluster.run(cluster.client().request(request))?;
    Ok(answer["status"]["token"].as_str().unwrap().to_owned())
}

/// Sends to the proxy; gives status and body. An error is a connection that ended before its answer.
pub(crate) fn try_send(
    method: Method,
    path: &str,
    token: &str,
    body: Vec<u8>,
) -> reqwest::Result<(u16, String)> {
    try_send_to(&CLUSTER, method, path, token, body)
}

/// The same in any cluster.
pub(crate) fn try_send_to(
    cluster: &Cluster,
    method: Method,
    path: &str,
    token: &str,
    body: impl Into<Body>,
) -> reqwest::Result<(u16, String)> {
    // Made before: it asks the cluster.
    let client = client(cluster);
    cluster.run(async {
        let request = client.request(method, format!("https://{PROXY}{path}")).bearer_auth(token);
        let answer = request.body(body).send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    })
}

#[track_caller]
pub(crate) fn send(method: Method, path: &str, token: &str, body: Vec<u8>) -> (u16, String) {
    try_send(method, path, token, body).unwrap()
}

/// Uploads the disk as virtctl does.
#[track_caller]
pub(crate) fn upload(space: &Space, claim: &str) {
    upload_to(space, claim, "/v1beta1/upload-async", &std::fs::read(&DISK.qcow2).unwrap());
}

/// Uploads the disk in four pieces, and calls `between` before each of them.
#[track_caller]
pub(crate) fn upload_slowly(space: &Space, claim: &str, between: fn()) {
    let bytes = std::fs::read(&DISK.qcow2).unwrap();
    let pieces: Vec<Vec<u8>> = bytes.chunks(bytes.len().div_ceil(4)).map(<[u8]>::to_vec).collect();
    let pieces = stream::iter(pieces).then(move |piece| async move {
        between();
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok::<_, std::io::Error>(piece)
    });
    let (token, body) = (token(space, claim), Body::wrap_stream(pieces));
    let (status, body) = try_send_to(&CLUSTER, Method::POST, "/v1beta1/upload", &token, body).unwrap();
    assert_eq!(status, 200, "{body}");
}

/// Uploads these bytes to a path of the proxy.
#[track_caller]
pub(crate) fn upload_to(space: &Space, claim: &str, path: &str, bytes: &[u8]) {
    let token = token(space, claim);
    if path.ends_with("async") {
        let (status, body) = send(Method::HEAD, path, &token, Vec::new());
        assert_eq!(status, 200, "{body}");
    }
    let (status, body) = send(Method::POST, path, &token, bytes.to_vec());
    assert_eq!(status, 200, "{body}");
}
