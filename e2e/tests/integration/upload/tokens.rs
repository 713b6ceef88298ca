//! Stands in for CDI's API server: the aggregated group upload.cdi.kubevirt.io, whose only kind is answered with a token
//! when it is created. The cluster's API server authenticates and authorizes the user; here only the front proxy may ask.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use api::upload::token::{Grant, LIFETIME, Signer, Target};
use bytes::Bytes;
use e2e::pki::Identity;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};

const GROUP: &str = "upload.cdi.kubevirt.io";
const VERSION: &str = "upload.cdi.kubevirt.io/v1beta1";

/// Serves at a free port of `host`; ends with the process. Only clients that `front` has signed may ask.
pub(crate) fn serve(host: Ipv4Addr, identity: &Identity, front: &str, signer: Signer) -> SocketAddr {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(front.as_bytes()).unwrap()).unwrap();
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = std::net::TcpListener::bind((host, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let signer = Arc::new(signer);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, signer) = (acceptor.clone(), signer.clone());
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let respond = service_fn(move |request| answer(request, signer.clone()));
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ends = http.serve_connection(TokioIo::new(stream), respond).await;
                });
            }
        });
    });
    address
}

async fn answer(
    request: Request<Incoming>,
    signer: Arc<Signer>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let words: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (code, body) = match (request.method(), words.as_slice()) {
        (&Method::GET, ["apis"]) => {
            (200, json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group()]}))
        }
        (&Method::GET, ["apis", GROUP]) => (200, group()),
        (&Method::GET, ["apis", GROUP, "v1beta1"]) => (
            200,
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION, "resources": [{
                "name": "uploadtokenrequests", "singularName": "uploadtokenrequest", "namespaced": true,
                "kind": "UploadTokenRequest", "verbs": ["create"], "shortNames": ["utr", "utrs"],
            }]}),
        ),
        (&Method::POST, ["apis", GROUP, "v1beta1", "namespaces", namespace, "uploadtokenrequests"]) => {
            let body = request.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            let mut wish: Value = serde_json::from_slice(&body).unwrap_or_default();
            let claim = wish["spec"]["pvcName"].as_str().unwrap_or_default();
            match Target::new(namespace, claim) {
                Some(target) => {
                    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
                    let token = signer.sign(&Grant::upload(&target), now, LIFETIME).unwrap();
                    wish["status"] = json!({"token": token});
                    (201, wish)
                }
                None => (422, status("pvcName is no name")),
            }
        }
        _ => (404, status("not found")),
    };
    let mut answer = Response::new(Full::from(body.to_string()));
    *answer.status_mut() = StatusCode::from_u16(code).unwrap();
    answer.headers_mut().insert("content-type", "application/json".parse().unwrap());
    Ok(answer)
}

fn group() -> Value {
    let version = json!({"groupVersion": VERSION, "version": "v1beta1"});
    json!({
        "kind": "APIGroup", "apiVersion": "v1", "name": GROUP, "versions": [version], "preferredVersion": version,
    })
}

fn status(message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message})
}
