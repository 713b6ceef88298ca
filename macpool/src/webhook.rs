//! The webhook over HTTPS: reviews, and the probes `/readyz` and `/healthz`.
//!
//! Everybody in the cluster can connect: connections, headers, bodies and their sum are bounded, and each has a time. Memory
//! is counted when bytes come, so that announcing many costs others nothing.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio_rustls::TlsAcceptor;

use crate::error::Kind;
use crate::peers::{Keep, Peers};
use crate::review::{Answer, Circumstances, Hook, Reply, Review};
use crate::state::{State, stamp};
use api::net::Mac;
use api::net::pool::{Owner, block_of};

/// Longest body: an object is at most 3 MiB in a request of the API server, and an update has two.
const BODY_MAX: usize = 8 << 20;
/// As much of a longer one is read and thrown away: who sends all before he reads is to read why it was refused.
const DISCARDED_MAX: usize = 16 << 20;
/// Bodies at once, in KiB all together.
const BODIES_KIB: usize = 16 << 10;
/// Connections at once; more wait in the kernel's backlog.
const CONNECTIONS: usize = 512;
/// Other replicas that are asked for an address where this one has none left.
const ASKED_MAX: usize = 4;
/// Bytes of a connection that are held at once: a whole head, a part of a body.
const BUFFER: usize = 32 << 10;
/// How long a handshake, a body may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection waits for a request: longer than the API server keeps one (90 seconds), so that none is on its way
/// when it ends.
const IDLE: Duration = Duration::from_secs(150);

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

    /// Answers until it is told to close, and all requests that are on their way then. Each connection gets the
    /// certificate of its time.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener, mut closing: watch::Receiver<bool>) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let coming = async { (places.clone().acquire_owned().await, listener.accept().await) };
            let (place, accepted) = tokio::select! {
                () = told(&mut closing) => break,
                coming = coming => coming,
            };
            let (Ok(place), Ok((stream, _))) = (place, accepted) else {
                // Out of descriptors, say: the next one may succeed.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let Some(material) = self.state.certificates.material() else { continue };
            let (webhook, mut closing) = (self.clone(), closing.clone());
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
                    .header_read_timeout(IDLE)
                    .max_buf_size(BUFFER)
                    .serve_connection(TokioIo::new(stream), answer);
                let mut served = pin!(served);
                let ended = tokio::select! {
                    ended = served.as_mut() => ended,
                    () = told(&mut closing) => {
                        served.as_mut().graceful_shutdown();
                        served.await
                    }
                };
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
            });
        }
        drop(listener);
        let all = u32::try_from(CONNECTIONS).unwrap_or(u32::MAX);
        drop(places.acquire_many(all).await);
    }

    async fn respond(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let hook = match request.uri().path() {
            "/mutate-virtualmachines" => Hook::Machines,
            "/mutate-pods" => Hook::Pods,
            "/healthz" => return text(StatusCode::OK, "ok"),
            "/readyz" if self.state.is_open() => return text(StatusCode::OK, "ok"),
            "/readyz" => return text(StatusCode::SERVICE_UNAVAILABLE, "the pool is not loaded yet"),
            _ => return text(StatusCode::NOT_FOUND, "not found"),
        };
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "only POST");
        }
        if !self.state.is_ready() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "the pool is not loaded yet");
        }
        let mut body = request.into_body();
        let read = async {
            if body.size_hint().lower() > BODY_MAX as u64 {
                return Err(discard(&mut body, 0).await);
            }
            self.read(&mut body).await
        };
        match tokio::time::timeout(PATIENCE, read).await {
            Err(_) => text(StatusCode::REQUEST_TIMEOUT, "the body did not come"),
            Ok(Err(refused)) => refused,
            Ok(Ok((body, share))) => {
                let reply = self.review(hook, &body).await;
                drop(share);
                reply
            }
        }
    }

    /// Reads a body, with its share of all that may be held at once.
    async fn read(
        &self,
        body: &mut Incoming,
    ) -> Result<(Vec<u8>, SemaphorePermit<'_>), Response<Full<Bytes>>> {
        let unable = |_| text(StatusCode::SERVICE_UNAVAILABLE, "no room");
        let mut share = self.bodies.acquire_many(0).await.map_err(unable)?;
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return Err(text(StatusCode::BAD_REQUEST, "the body did not come whole"));
            };
            let Some(data) = frame.data_ref() else { continue };
            let size = bytes.len() + data.len();
            if size > BODY_MAX {
                let read = std::mem::take(&mut bytes).len();
                drop(share);
                return Err(discard(body, read).await);
            }
            let more = (size / 1024 + 1).saturating_sub(share.num_permits());
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            share.merge(self.bodies.acquire_many(more).await.map_err(unable)?);
            bytes.extend_from_slice(data);
        }
        Ok((bytes, share))
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
                for address in self.others().into_iter().take(ASKED_MAX) {
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
        let mut silent: Vec<String> = Vec::new();
        for (address, keep) in asks {
            // Who does not answer once is not waited for again.
            let Some(mac) = Mac::new(keep.mac).filter(|_| !silent.contains(&address)) else { continue };
            match self.peers.keep(&self.state, &address, keep).await {
                Some(answer) => drop(answers.insert(mac, answer)),
                None => silent.push(address),
            }
        }
        answers
    }

    fn others(&self) -> Vec<String> {
        let known = self.state.lock();
        let me = &known.ledger.me().name;
        let others = known.ledger.book().replicas.iter().filter(|(name, of)| *name != me && !of.left);
        others.map(|(_, replica)| replica.address.clone()).collect()
    }
}

/// Decides a review with what is known here, and what others said.
pub(crate) fn decide(state: &State, review: Review, answers: &HashMap<Mac, Answer>) -> Reply {
    let (now, stamp) = (state.now(), stamp());
    let mut known = state.lock();
    let dry_run = review.owner().is_some_and(|(_, dry_run)| dry_run);
    let policy = review.owner().map(|(owner, _)| known.policy_of(&owner.namespace)).unwrap_or_default();
    let may_give = known.ledger.may_give(now);
    let reply = review.decide(&mut known.pool, &Circumstances { policy, stamp, now, may_give, answers });
    drop(known);
    state.count(if dry_run { 0 } else { reply.duplicates().len() });
    reply
}

/// Waits until it is told to close, or nobody can tell any more.
async fn told(closing: &mut watch::Receiver<bool>) {
    drop(closing.wait_for(|closing| *closing).await);
}

/// Reads and throws away what comes of a body that is too long; gives what is answered then.
async fn discard(body: &mut Incoming, mut read: usize) -> Response<Full<Bytes>> {
    while read <= DISCARDED_MAX
        && let Some(Ok(frame)) = body.frame().await
    {
        read += frame.data_ref().map_or(0, Bytes::len);
    }
    text(StatusCode::PAYLOAD_TOO_LARGE, "an AdmissionReview is smaller")
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

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use rustls::pki_types::ServerName;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;

    use super::*;
    use crate::blocks::{Book, Ledger, Me};
    use crate::certificates::{Intervals, Step, Store};
    use crate::namespaces::Policy;
    use crate::state::Part;
    use crate::tls::Material;
    use api::net::Range;
    use api::net::pool::Pool;

    const HOST: &str = "kubemacpool-service.n.svc";

    /// A replica that is ready, and answers.
    struct Served {
        state: Arc<State>,
        address: SocketAddr,
        close: watch::Sender<bool>,
        ended: tokio::task::JoinHandle<()>,
    }

    async fn served() -> Served {
        let hour = Duration::from_secs(3600);
        let intervals =
            Intervals { ca_rotate: hour, ca_overlap: hour, cert_rotate: hour, cert_overlap: hour };
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let mut store = Store::default();
        for step in [Step::Authority, Step::Sign(0)] {
            store = store.apply(step, &[HOST.to_owned()], intervals, now).unwrap();
        }
        let range = Range::parse("02:00:00:00:00:00", "02:00:00:00:ff:ff").unwrap();
        let me = Me { name: "a".to_owned(), incarnation: "1".to_owned(), address: "127.0.0.1:1".to_owned() };
        let pool = Pool::alone(range, hour, range.first().bits());
        let state = Arc::new(State::new(pool, Ledger::new(me), Policy::Allow));
        let material = Material::new(&store, true).unwrap();
        state.certificates.take(store, Some(material));
        {
            let mut known = state.lock();
            known.ledger.read(Book::default(), Duration::ZERO).unwrap();
            let turn = known.ledger.turn(range, 0, 0, Duration::ZERO).unwrap();
            known.ledger.wrote(&turn, state.now());
            for part in [Part::Machines, Part::Instances, Part::Pods, Part::Namespaces] {
                known.set_loaded(part);
            }
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (close, closing) = watch::channel(false);
        let peers = Peers::new(ServerName::try_from(HOST).unwrap());
        let webhook = Arc::new(Webhook::new(state.clone(), peers));
        let ended = tokio::spawn(webhook.serve(listener, closing));
        Served { state, address, close, ended }
    }

    impl Served {
        async fn connect(&self) -> TlsStream<TcpStream> {
            let stream = TcpStream::connect(self.address).await.unwrap();
            let connector = TlsConnector::from(self.state.certificates.material().unwrap().client);
            connector.connect(ServerName::try_from(HOST).unwrap(), stream).await.unwrap()
        }

        /// Sends all of a request before it reads; gives the answer's status and body.
        async fn ask(&self, request: &[u8]) -> (u16, String) {
            let mut stream = self.connect().await;
            stream.write_all(request).await.unwrap();
            answer(&mut stream).await
        }
    }

    fn head(path: &str, more: &str) -> Vec<u8> {
        format!("POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}\r\n\r\n").into_bytes()
    }

    fn post(path: &str, body: &[u8]) -> Vec<u8> {
        [&head(path, &format!("Content-Length: {}", body.len()))[..], body].concat()
    }

    async fn answer(stream: &mut TlsStream<TcpStream>) -> (u16, String) {
        let mut text = Vec::new();
        stream.read_to_end(&mut text).await.unwrap();
        let text = String::from_utf8(text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn review() -> Vec<u8> {
        let interfaces = json!([{"name": "a", "masquerade": {}}]);
        let object = json!({
            "metadata": {"name": "v", "namespace": "n"},
            "spec": {"template": {"spec": {"domain": {"devices": {"interfaces": interfaces}}}}},
        });
        let request = json!({"uid": "u", "operation": "CREATE", "namespace": "n", "object": object});
        json!({"request": request}).to_string().into_bytes()
    }

    const MACHINES: &str = "/mutate-virtualmachines";

    #[tokio::test]
    async fn bodies_of_every_kind_get_their_answer() {
        let served = served().await;
        let (status, body) = served.ask(&post(MACHINES, &review())).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert!(status == 200 && body["response"]["allowed"] == true, "{status} {body}");
        let long = vec![b' '; BODY_MAX + (1 << 20)];
        let chunks: Vec<u8> =
            long.chunks(1 << 20).flat_map(|chunk| [b"100000\r\n", chunk, b"\r\n"].concat()).collect();
        let chunked = [&head(MACHINES, "Transfer-Encoding: chunked")[..], &chunks, b"0\r\n\r\n"].concat();
        for (what, request, status) in [
            ("no JSON", post(MACHINES, b"{"), 400),
            ("no uid", post(MACHINES, b"{}"), 400),
            ("nothing", post(MACHINES, b""), 400),
            ("elsewhere", post("/", b"{}"), 404),
            ("too long, as it says", post(MACHINES, &long), 413),
            ("too long, without saying so", chunked, 413),
        ] {
            assert_eq!(served.ask(&request).await.0, status, "{what}");
        }
    }

    #[tokio::test]
    async fn bodies_that_are_announced_and_do_not_come_hold_nobody_up() {
        let served = served().await;
        let mut silent = Vec::new();
        for _ in 0..8 {
            let mut stream = served.connect().await;
            stream.write_all(&head(MACHINES, &format!("Content-Length: {BODY_MAX}"))).await.unwrap();
            stream.write_all(b"{").await.unwrap();
            silent.push(stream);
        }
        assert_eq!(served.ask(&post(MACHINES, &review())).await.0, 200);
        // Cut off in the middle: nothing is left of it.
        drop(silent);
        assert_eq!(served.ask(&post(MACHINES, &review())).await.0, 200);
    }

    #[tokio::test]
    async fn who_is_on_his_way_when_it_ends_is_answered() {
        let served = served().await;
        let request = post(MACHINES, &review());
        let (first, rest) = request.split_at(request.len() / 2);
        let mut underway = served.connect().await;
        underway.write_all(first).await.unwrap();
        let mut idle = served.connect().await;
        served.state.leave();
        assert_eq!(served.ask(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.0, 503);
        assert_eq!(served.ask(&request).await.0, 200, "others are answered still");
        served.close.send_replace(true);
        assert_eq!(idle.read(&mut [0]).await.unwrap_or_default(), 0, "it ends");
        underway.write_all(rest).await.unwrap();
        assert_eq!(answer(&mut underway).await.0, 200);
        served.ended.await.unwrap();
        assert!(TcpStream::connect(served.address).await.is_err());
    }
}
