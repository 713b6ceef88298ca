//! A slow check behind the pool's webhook: the pool reviews machines with the label `later`, and they are written only when
//! the check admits them.
//!
//! Not here: the pool.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use base64::Engine;
use bytes::Bytes;
use e2e::pki::Authority;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::macpool::setup::{Place, addresses, machine, until};

const PORT: u16 = 8500;
/// The label of what is held back.
pub(crate) const LABEL: &str = "later";
/// A machine of this name is refused.
const REFUSED: &str = "refused-later";

/// The check.
pub(crate) struct Later {
    shared: Arc<Shared>,
}

struct Shared {
    /// Machines that have come, with their addresses.
    held: Mutex<Vec<(String, Vec<String>)>>,
    pass: watch::Sender<bool>,
}

impl Later {
    /// Begins to hold machines back.
    pub(crate) fn new(place: &Place) -> Self {
        let address = place.cluster.place().host_address();
        let authority = Authority::new("later").unwrap();
        let identity = authority.sign("later", None, &[address.to_string()]).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let shared = Arc::new(Shared { held: Mutex::default(), pass: watch::Sender::new(false) });
        place.cluster.run(async {
            let listener = TcpListener::bind((address, PORT)).await.unwrap();
            tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(config)), shared.clone()));
        });
        let bundle = base64::engine::general_purpose::STANDARD.encode(authority.certificate());
        let webhook = json!({
            "name": "later.example.org",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "failurePolicy": "Fail",
            "timeoutSeconds": 30,
            "clientConfig": {"url": format!("https://{address}:{PORT}/"), "caBundle": bundle},
            "objectSelector": {"matchExpressions": [{"key": LABEL, "operator": "Exists"}]},
            "rules": [{
                "apiGroups": ["kubevirt.io"],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["virtualmachines"],
            }],
        });
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "later"},
            "webhooks": [webhook],
        });
        place.apply(&configuration.to_string());
        let mut probe = machine(REFUSED, &json!([]));
        probe["metadata"]["labels"] = json!({LABEL: "yes"});
        until("the later check counts", || {
            let run =
                place.feed(&["-n", "default", "create", "--dry-run=server", "-f", "-"], &probe.to_string());
            (!run.status.success() && String::from_utf8_lossy(&run.stderr).contains(REFUSED)).then_some(())
        });
        Self { shared }
    }

    /// Machines that have come so far, with their addresses.
    pub(crate) fn held(&self) -> Vec<(String, Vec<String>)> {
        self.shared.held.lock().unwrap().clone()
    }

    /// Lets all of them be written.
    pub(crate) fn pass(&self) {
        self.shared.pass.send_replace(true);
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(answer_all(stream, acceptor.clone(), shared.clone()));
    }
}

async fn answer_all(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let answer = service_fn(|request| answer(request, &shared));
    drop(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await);
}

async fn answer(
    request: Request<Incoming>,
    shared: &Shared,
) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    let object = &review["request"]["object"];
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    let allowed = name != REFUSED;
    let reason = format!("no {name}");
    if allowed {
        shared.held.lock().unwrap().push((name, addresses(object)));
        drop(shared.pass.subscribe().wait_for(|pass| *pass).await);
    }
    let response =
        json!({"uid": review["request"]["uid"], "allowed": allowed, "status": {"message": reason}});
    let reply = json!({"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response});
    let mut response = Response::new(Full::new(Bytes::from(reply.to_string())));
    let json = hyper::header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, json);
    Ok(response)
}
