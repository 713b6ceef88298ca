//! The webhook over HTTPS: reviews, and the probes `/readyz` and `/healthz`.
//!
//! Everybody in the cluster can connect: connections, headers, bodies and their sum are bounded, and each has a time.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;

use crate::error::Kind;
use crate::peers::{Keep, Peers};
use crate::review::{Answer, Circumstances, Hook, Reply, Review};
use crate::state::{State, stamp};
use api::net::Mac;
use api::net::pool::{Owner, block_of};

/// Longest body: an object is at most 3 MiB in a request of the API server, and an update has two.
const BODY_MAX: usize = 8 << 20;
/// Bodies at once, in KiB all together.
const BODIES_KIB: usize = 16 << 10;
/// Connections at once; more wait in the kernel's backlog.
const CONNECTIONS: usize = 512;
/// Bytes of a connection that are held at once: a whole head, a part of a body.
const BUFFER: usize = 32 << 10;
/// How long a handshake, a header, a body may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a request needs.
pub(crate) struct Webhook {
    /// What is known.
    pub(crate) state: Arc<State>,
    /// Other replicas.
    pub(crate) peers: Peers,
    bodies: Arc<Semaphore>,
}

impl Webhook {
    /// A webhook that answers out of `state`.
    pub(crate) fn new(state: Arc<State>, peers: Peers) -> Self {
        Self { state, peers, bodies: Arc::new(Semaphore::new(BODIES_KIB)) }
    }

    /// Answers until the process ends. Each connection gets the certificate of its time.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let Ok(place) = places.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors, say: the next one may succeed.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let Some(material) = self.state.material.borrow().clone() else { continue };
            let webhook = self.clone();
            tokio::spawn(async move {
                let _place = place;
                let _unneeded = stream.set_nodelay(true);
                let acceptor = TlsAcceptor::from(material.webhook);
                let Ok(Ok(stream)) = tokio::time::timeout(PATIENCE, acceptor.accept(stream)).await else {
                    return;
                };
                let answer = service_fn(move |request| {
                    let webhook = webhook.clone();
                    async move { Ok::<_, Infallible>(webhook.respond(request).await) }
                });
                let served = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(PATIENCE * 6)
                    .max_buf_size(BUFFER)
                    .serve_connection(TokioIo::new(stream), answer)
                    .await;
                if let Err(error) = served {
                    tracing::debug!(%error, "a connection ended early");
                }
            });
        }
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let hook = match request.uri().path() {
            "/mutate-virtualmachines" => Hook::Machines,
            "/mutate-pods" => Hook::Pods,
            "/healthz" => return text(StatusCode::OK, "ok"),
            "/readyz" if self.state.is_ready() => return text(StatusCode::OK, "ok"),
            "/readyz" => return text(StatusCode::SERVICE_UNAVAILABLE, "the pool is not loaded yet"),
            _ => return text(StatusCode::NOT_FOUND, "not found"),
        };
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only POST");
        }
        if !self.state.is_ready() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "the pool is not loaded yet");
        }
        // Without a length, as much as can come.
        let size = request.body().size_hint().upper().and_then(|size| usize::try_from(size).ok());
        let size = size.unwrap_or(BODY_MAX);
        let too_large = || text(StatusCode::PAYLOAD_TOO_LARGE, "an AdmissionReview is smaller");
        if size > BODY_MAX {
            return too_large();
        }
        let share = u32::try_from(size / 1024 + 1).unwrap_or(u32::MAX);
        let Ok(_share) = self.bodies.acquire_many(share).await else { return too_large() };
        let body = Limited::new(request.into_body(), BODY_MAX).collect();
        match tokio::time::timeout(PATIENCE, body).await {
            Err(_) => text(StatusCode::REQUEST_TIMEOUT, "the body did not come"),
            Ok(Err(_)) => text(StatusCode::BAD_REQUEST, "the body did not come whole"),
            Ok(Ok(body)) => self.review(hook, &body.to_bytes()).await,
        }
    }

    async fn review(&self, hook: Hook, body: &[u8]) -> Response<Full<Bytes>> {
        let review = match Review::read(hook, body) {
            Ok(review) => review,
            Err(error) => return text(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let answers = self.ask(&review).await;
        let reply = decide(&self.state, review, &answers);
        if let Some(error) = reply.refused() {
            // Where this replica has none left, another may have some.
            if matches!(error.kind(), Kind::Exhausted | Kind::Unreachable) {
                for address in self.others() {
                    if let Some(reply) = self.peers.review(&self.state, &address, hook, body).await {
                        return json(reply);
                    }
                }
            }
            tracing::info!(%error, "refused");
        }
        json(reply.document().to_string())
    }

    /// Asks the replicas in whose blocks the given addresses are.
    async fn ask(&self, review: &Review) -> HashMap<Mac, Answer> {
        let mut answers = HashMap::new();
        let Some((owner, dry_run)) = review.owner() else { return answers };
        let (owner, stamp): (Owner, _) = (owner.clone(), stamp());
        let asks: Vec<(String, Keep)> = {
            let known = self.state.lock();
            let policy = known.policy_of(&owner.namespace);
            let given = review.given().into_iter().filter_map(|mac| {
                if known.pool.other_holder(mac, &owner).is_some() || !known.pool.range().contains(mac) {
                    // Decided here.
                    return None;
                }
                let (name, replica) = known.ledger.book().owner(block_of(mac))?;
                let keep = Keep::new(mac, &owner, stamp, dry_run, policy);
                (name != known.ledger.me().name).then(|| (replica.address.clone(), keep))
            });
            given.collect()
        };
        for (address, keep) in asks {
            let mac = Mac::new(keep.mac);
            if let (Some(mac), Some(answer)) = (mac, self.peers.keep(&self.state, &address, keep).await) {
                answers.insert(mac, answer);
            }
        }
        answers
    }

    fn others(&self) -> Vec<String> {
        let known = self.state.lock();
        let me = &known.ledger.me().name;
        let others = known.ledger.book().replicas.iter().filter(|(name, _)| *name != me);
        others.map(|(_, replica)| replica.address.clone()).collect()
    }
}

/// Decides a review with what is known here, and what others said.
pub(crate) fn decide(state: &State, review: Review, answers: &HashMap<Mac, Answer>) -> Reply {
    let (now, stamp) = (state.now(), stamp());
    let mut known = state.lock();
    let policy = review.owner().map(|(owner, _)| known.policy_of(&owner.namespace)).unwrap_or_default();
    let may_give = known.ledger.may_give(now);
    let reply = review.decide(&mut known.pool, &Circumstances { policy, stamp, now, may_give, answers });
    drop(known);
    state.count(reply.duplicates().len());
    reply
}

fn text(status: StatusCode, body: &str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_owned() + "\n")));
    *response.status_mut() = status;
    response
}

fn json(body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    let kind = header::HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}
