//! The webhook over HTTPS: reviews, and the probes `/readyz` and `/healthz`.
//!
//! Every pod in the cluster can connect: connections, heads, bodies and their sum are bounded, and each has a time limit.
//! Connections and their limits are [`serve::server`]'s. Bodies of usual size wait for no other body.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Incoming};
use rustls::ServerConfig;
use serve::server::{Connection, Limits, Service};
use serve::tls::Current;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, SemaphorePermit, watch};

use crate::decision::decide;
use crate::error::Kind;
use crate::namespaces::Policy;
use crate::peers::{Keep, Peers};
use crate::review::{Answer, Hook, Review};
use crate::state::{Known, State, stamp};
use api::net::Mac;
use api::net::pool::{Owner, block_of};

/// Longest body: an object is at most 3 MiB in a request of the API server, and an update has two.
const BODY_MAX: usize = 8 << 20;
/// A body of usual size: most are some KiB long.
const USUAL: usize = 64 << 10;
/// Longer bodies at once.
const LONG_BODIES: usize = 2;
/// Other replicas that are asked for an address where this one has none left.
const ASKED_MAX: usize = 4;
/// Longest wait for a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection waits for a request: longer than the API server keeps one (90 seconds), so that no request is on
/// its way when the connection ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(150);
/// How long connections that an API server keeps stay usable after the stop.
const WITHDRAWAL: Duration = Duration::from_secs(2);

/// The inputs of a request.
pub(crate) struct Webhook {
    /// This replica's knowledge.
    pub(crate) state: Arc<State>,
    /// Other replicas.
    pub(crate) peers: Peers,
    limits: Limits,
    long_bodies: Semaphore,
}

/// The requests of a review that concern other replicas.
struct PeerQuestions {
    owner: Owner,
    dry_run: bool,
    given: Vec<Mac>,
}

/// The webhook's certificate, as it is now.
struct Certificate(Arc<State>);

impl Current for Certificate {
    fn current(&self) -> Option<Arc<ServerConfig>> {
        self.0.certificates.material().map(|material| material.webhook)
    }
}

impl Service for Webhook {
    type Body = Full<Bytes>;

    async fn answer(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Response<Full<Bytes>> {
        self.respond(request, connection).await
    }
}

impl Webhook {
    /// A webhook that answers out of `state`.
    pub(crate) fn new(state: Arc<State>, peers: Peers) -> Self {
        let limits = Limits {
            // As many as connections: after a restart all clients of a busy API server come at once, and a handshake that waits
            // only for a processor is not to be evicted.
            handshakes: Limits::default().connections,
            idle_time: IDLE_TIMEOUT,
            withdrawal: WITHDRAWAL,
            ..Limits::default()
        };
        Self { state, peers, limits, long_bodies: Semaphore::new(LONG_BODIES) }
    }

    /// Answers reviews until it is asked to close, and those that are running then.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener, closing: watch::Receiver<bool>) {
        let tls: Arc<dyn Current> = Arc::new(Certificate(self.state.clone()));
        serve::server::serve(listener, Some(tls), self.limits, self, closing).await;
    }

    async fn respond(
        &self,
        request: Request<Incoming>,
        connection: &Arc<Connection>,
    ) -> Response<Full<Bytes>> {
        let hook = match request.uri().path() {
            "/mutate-virtualmachines" => Hook::Machines,
            "/mutate-pods" => Hook::Pods,
            "/healthz" => return text(StatusCode::OK, "ok"),
            "/readyz" if self.state.is_open() => return text(StatusCode::OK, "ok"),
            "/readyz" => {
                return text(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "macpool has not loaded the cluster's MAC addresses yet; retry",
                );
            }
            _ => return text(StatusCode::NOT_FOUND, "not found"),
        };
        if request.method() != Method::POST {
            return text(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use POST");
        }
        if !self.state.is_ready() {
            return text(
                StatusCode::SERVICE_UNAVAILABLE,
                "macpool has not loaded the cluster's MAC addresses yet; retry",
            );
        }
        let read = tokio::time::timeout(BODY_TIMEOUT, self.read(request.into_body()));
        match read.await {
            Err(_) => close(text(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time")),
            Ok(Err(refused)) => close(refused),
            Ok(Ok((body, long))) => {
                let _busy = connection.busy();
                let reply = self.review(hook, &body).await;
                drop(long);
                reply
            }
        }
    }

    /// Reads a body; a long one with the right to be held.
    async fn read(
        &self,
        mut body: Incoming,
    ) -> Result<(Vec<u8>, Option<SemaphorePermit<'_>>), Response<Full<Bytes>>> {
        let too_long = || text(StatusCode::PAYLOAD_TOO_LARGE, "the AdmissionReview is too large");
        if body.size_hint().lower() > BODY_MAX as u64 {
            return Err(too_long());
        }
        let mut long = None;
        let mut bytes = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return Err(text(StatusCode::BAD_REQUEST, "the request body ended early"));
            };
            let Some(data) = frame.data_ref() else { continue };
            let size = bytes.len() + data.len();
            if size > BODY_MAX {
                return Err(too_long());
            }
            if size > USUAL && long.is_none() {
                let right = self.long_bodies.acquire().await;
                long = Some(right.map_err(|_| {
                    text(StatusCode::SERVICE_UNAVAILABLE, "the server is shutting down; retry")
                })?);
            }
            bytes.extend_from_slice(data);
        }
        Ok((bytes, long))
    }

    async fn review(&self, hook: Hook, body: &[u8]) -> Response<Full<Bytes>> {
        let review = match Review::read(hook, body) {
            Ok(review) => review,
            Err(error) => return text(StatusCode::BAD_REQUEST, &error.to_string()),
        };
        let wanted = review.owner().map(|(owner, dry_run)| {
            let (owner, given) = (owner.clone(), review.given());
            PeerQuestions { owner, dry_run, given }
        });
        let answers = match &wanted {
            Some(wanted) if !wanted.given.is_empty() => self.ask(wanted).await,
            Some(_) | None => HashMap::new(),
        };
        let reply = decide(&self.state, review, &answers);
        if let Some(error) = reply.refused() {
            // Where this replica has none left, another may have some.
            if matches!(error.kind(), Kind::Exhausted | Kind::Unreachable)
                && let Some(wanted) = &wanted
                && let Some(reply) = self.forward_review(hook, body, wanted, &answers).await
            {
                return json(reply);
            }
            tracing::info!(%error, "refused");
        }
        json(reply.document().to_string())
    }

    /// Asks the replicas that own the blocks of the given addresses, each once and all at the same time.
    async fn ask(&self, wanted: &PeerQuestions) -> HashMap<Mac, Answer> {
        let PeerQuestions { owner, dry_run, given } = wanted;
        let (policy, asks) = {
            let known = self.state.lock();
            let mut asks: BTreeMap<String, Vec<Mac>> = BTreeMap::new();
            for mac in given {
                if known.pool.other_holder(*mac, owner).is_some() || !known.pool.range().contains(*mac) {
                    // Decided here.
                    continue;
                }
                let of = known.ledger.book().owner(block_of(*mac));
                if let Some((_, replica)) = of.filter(|(name, _)| *name != known.ledger.me().name) {
                    asks.entry(replica.address.clone()).or_default().push(*mac);
                }
            }
            (known.policy_of(&owner.namespace), asks)
        };
        let stamp = stamp();
        let asked = asks.into_iter().map(|(address, macs)| async move {
            let keep = Keep::new(&macs, owner, stamp, *dry_run, policy);
            let answers = self.peers.keep(&self.state, &address, keep).await;
            if answers.is_none() {
                self.unanswered(&macs, owner, &address);
            }
            macs.into_iter().zip(answers.unwrap_or_default())
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Decides by this replica's knowledge about addresses in the blocks of a replica that does not answer.
    fn unanswered(&self, macs: &[Mac], owner: &Owner, replica: &str) {
        self.state.unanswered.fetch_add(macs.len() as u64, Ordering::Relaxed);
        let macs = macs.iter().map(Mac::to_string).collect::<Vec<_>>().join(",");
        tracing::info!(%macs, object = %owner, replica, "decided locally: the replica that owns the block does not answer");
    }

    /// Has another replica answer, with our knowledge of the given addresses; so they are reserved here, too.
    async fn forward_review(
        &self,
        hook: Hook,
        body: &[u8],
        wanted: &PeerQuestions,
        answers: &HashMap<Mac, Answer>,
    ) -> Option<String> {
        let PeerQuestions { owner, dry_run, given } = wanted;
        let (taken, others) = {
            let known = self.state.lock();
            let is_taken = |mac: &Mac| {
                answers.get(mac) == Some(&Answer::Taken) || known.pool.other_holder(*mac, owner).is_some()
            };
            (given.iter().copied().filter(is_taken).collect::<Vec<Mac>>(), others(&known))
        };
        // No later than the one that the object gets.
        let stamp = stamp();
        for address in others.into_iter().take(ASKED_MAX) {
            let Some(reply) = self.peers.review(&self.state, &address, hook, body, &taken).await else {
                continue;
            };
            let now = self.state.now();
            let mut known = self.state.lock();
            let anyway = known.policy_of(&owner.namespace) == Policy::Allow;
            for mac in given.iter().filter(|mac| !dry_run && (anyway || !taken.contains(mac))) {
                known.pool.reserve(owner, *mac, stamp, now);
            }
            return Some(reply);
        }
        None
    }
}

/// Where other replicas answer.
fn others(known: &Known) -> Vec<String> {
    let me = &known.ledger.me().name;
    let others = known.ledger.book().replicas.iter().filter(|(name, of)| *name != me && !of.left);
    others.map(|(_, replica)| replica.address.clone()).collect()
}

/// The same answer, with which the connection ends: its request's body was not read to the end.
fn close(mut answer: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    answer.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("close"));
    answer
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
pub(crate) mod tests {
    use std::net::SocketAddr;

    use rustls::pki_types::ServerName;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::client::TlsStream;

    use super::*;
    use crate::blocks::{Book, Ledger, Me, Replica};
    use crate::certificates::Store;
    use crate::state::Part;
    use crate::tls::Material;
    use api::net::Range;
    use api::net::pool::Pool;
    use serve::authority::Intervals;

    pub(crate) const HOST: &str = "kubemacpool-service.n.svc";
    /// Connections at once in these tests.
    const PLACES: usize = 16;

    /// A replica that is ready, and answers.
    struct Served {
        state: Arc<State>,
        address: SocketAddr,
        close: watch::Sender<bool>,
        ended: tokio::task::JoinHandle<()>,
    }

    /// The state of a ready replica of this name, with a certificate of its own.
    pub(crate) fn state(name: &str) -> Arc<State> {
        let hour = Duration::from_secs(3600);
        let intervals =
            Intervals { ca_rotate: hour, ca_overlap: hour, cert_rotate: hour, cert_overlap: hour };
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let mut store = Store::default();
        while let Some(step) = store.plan(intervals, now) {
            store = store.apply(&step, &[HOST.to_owned()], intervals, now).unwrap();
        }
        let range = Range::parse("02:00:00:00:00:00", "02:00:00:00:ff:ff").unwrap();
        let me = Me { name: name.to_owned(), incarnation: "1".to_owned(), address: "127.0.0.1:1".to_owned() };
        let pool = Pool::alone(range, hour, range.first().bits());
        let state = Arc::new(State::new(pool, Ledger::new(me), Policy::Allow));
        let offer = crate::tls::TlsProfile::read(crate::tls::TLS13, "").unwrap();
        let material = Material::new(&store, &offer).unwrap();
        state.certificates.install(store, Some(material));
        {
            let mut known = state.lock();
            known.ledger.read(Book::default(), Duration::ZERO).unwrap();
            let turn = known.ledger.next_change(range, 0, 0, Duration::ZERO).unwrap();
            known.ledger.wrote(&turn, state.now());
            for part in [Part::Machines, Part::Instances, Part::Pods, Part::Namespaces] {
                known.set_loaded(part, Duration::ZERO);
            }
        }
        state
    }

    async fn served() -> Served {
        let state = state("a");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (close, closing) = watch::channel(false);
        let peers = Peers::new(ServerName::try_from(HOST).unwrap());
        let limits = Limits { connections: PLACES, handshakes: PLACES, ..Limits::default() };
        let webhook = Arc::new(Webhook { limits, ..Webhook::new(state.clone(), peers) });
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
            // A body that is refused is not read to its end.
            let _refused = stream.write_all(request).await;
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
        let _closed = stream.read_to_end(&mut text).await;
        let text = String::from_utf8(text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    fn review() -> Vec<u8> {
        review_of(&json!([{"name": "a", "masquerade": {}}]))
    }

    fn review_of(interfaces: &Value) -> Vec<u8> {
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
            ("too long, announced", post(MACHINES, &long), 413),
            ("too long, not announced", chunked, 413),
        ] {
            assert_eq!(served.ask(&request).await.0, status, "{what}");
        }
    }

    #[tokio::test]
    async fn announced_bodies_that_do_not_arrive_block_no_other_request() {
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
    async fn long_bodies_that_stop_in_the_middle_hold_no_usual_one_up() {
        let served = served().await;
        let mut stopped = Vec::new();
        for _ in 0..LONG_BODIES * 2 {
            let mut stream = served.connect().await;
            stream.write_all(&head(MACHINES, &format!("Content-Length: {BODY_MAX}"))).await.unwrap();
            stream.write_all(&vec![b' '; USUAL * 2]).await.unwrap();
            stopped.push(stream);
        }
        assert_eq!(served.ask(&post(MACHINES, &review())).await.0, 200);
        // When they are gone, long ones are answered, too.
        drop(stopped);
        let long = [&vec![b' '; USUAL * 4][..], &review()].concat();
        assert_eq!(served.ask(&post(MACHINES, &long)).await.0, 200);
    }

    #[tokio::test]
    async fn idle_connections_are_closed_for_new_ones() {
        let served = served().await;
        let mut silent = Vec::new();
        for number in 0..PLACES * 3 {
            silent.push(TcpStream::connect(served.address).await.unwrap());
            // Some by TLS.
            if number % 5 == 0 {
                drop(served.connect().await);
            }
        }
        assert_eq!(served.ask(&post(MACHINES, &review())).await.0, 200);
        // The oldest ones were closed.
        assert_eq!(silent[0].read(&mut [0]).await.unwrap_or_default(), 0);
        served.close.send_replace(true);
        drop(silent);
        served.ended.await.unwrap();
    }

    #[tokio::test]
    async fn a_given_address_in_a_silent_replicas_blocks_is_decided_here() {
        let served = served().await;
        // Two replicas that listen, and never answer.
        let silent = [
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
            TcpListener::bind("127.0.0.1:0").await.unwrap(),
        ];
        {
            let mut known = served.state.lock();
            let mut book = known.ledger.book().clone();
            book.replicas.values_mut().for_each(|replica| replica.blocks.clear());
            for (number, listener) in (0_u64..).zip(&silent) {
                let replica = Replica {
                    incarnation: "1".to_owned(),
                    address: listener.local_addr().unwrap().to_string(),
                    blocks: vec![(0x02_0000_0000 + number, 1)],
                    ..Replica::default()
                };
                book.replicas.insert(format!("silent-{number}"), replica);
            }
            known.ledger.read(book, Duration::from_secs(1)).unwrap();
        }
        let interface = |number: usize| {
            let mac = format!("02:00:00:00:{:02x}:{number:02x}", number % 2);
            json!({"name": format!("i{number}"), "masquerade": {}, "macAddress": mac})
        };
        let interfaces: Vec<Value> = (0..crate::review::INTERFACES_MAX).map(interface).collect();
        let body = review_of(&interfaces.into());
        // 256 addresses, and less than the time in which a body must come.
        let answered = tokio::time::timeout(BODY_TIMEOUT, served.ask(&post(MACHINES, &body))).await;
        let (status, answer) = answered.unwrap();
        assert!(status == 200 && answer.contains("\"allowed\":true"), "{status} {answer}");
        assert_eq!(served.state.lock().pool.held(), crate::review::INTERFACES_MAX);
        // The count of addresses that were decided so is known.
        assert_eq!(served.state.unanswered.load(Ordering::Relaxed), crate::review::INTERFACES_MAX as u64);
    }

    #[tokio::test]
    async fn requests_in_flight_at_shutdown_are_answered() {
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
