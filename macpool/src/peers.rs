//! Replicas among each other: whether an address in another's block is free, and reviews for which one has no address left.
//!
//! Mutual TLS with the certificate that all share. A message is its length, 4 bytes big-endian, and that many bytes of
//! JSON; calls are answered in turn. A message that cannot be read ends the connection. Connections that have not shown the
//! certificate yet are evicted for newer ones.
//!
//! ```text
//!  calls ─► line, one for questions and one for reviews ─► connection, as long as it is good ─► answers, in order
//! ```
//!
//! No call waits for another's answer: they are written one behind the other. An answer that comes too late is thrown
//! away, and the connection stays. So it does when certificates change; a new connection shows the newest.
//!
//! Not here: the decision about an address when its replica does not answer ([`crate::webhook`]).

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serve::server::{Limit, Slot, tune};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::decision::decide;
use crate::namespaces::Policy;
use crate::review::{Answer, Hook, Reply, Review};
use crate::state::State;
use crate::tls::Material;
use api::net::Mac;
use api::net::pool::{Owner, Stamp, View};

/// How long another replica may take to answer.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(200);
/// Longest message: a review, and what JSON makes of it.
const MESSAGE_MAX: usize = 16 << 20;
/// Connections at once.
const CONNECTIONS: usize = 64;
/// Timeout of a client's TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// How long a connection stays without a call.
const IDLE: Duration = Duration::from_secs(120);
/// After how long without the answer to a call a connection is given up.
const SILENCE: Duration = Duration::from_secs(2);
/// Calls that wait to be written to one replica.
const CALLS: usize = 64;

/// A question to another replica.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    /// Reserves addresses for an object, as far as no other object has them.
    Keep(Keep),
    /// Answers a review with addresses of its own.
    Review {
        /// Whether it is about pods.
        pods: bool,
        /// The AdmissionReview.
        body: String,
        /// Addresses in it that others are known to have.
        taken: Vec<u64>,
    },
}

/// Addresses and the object that requests them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Keep {
    /// The addresses.
    pub(crate) macs: Vec<u64>,
    /// Whether a pod wants it.
    pub(crate) pod: bool,
    /// The object.
    pub(crate) namespace: String,
    /// The object.
    pub(crate) name: String,
    /// The guest in the pod.
    pub(crate) guest: Option<String>,
    /// When.
    pub(crate) stamp: Stamp,
    /// Whether it is only tried.
    pub(crate) dry_run: bool,
    /// The policy when another object has one of them.
    pub(crate) policy: Policy,
}

impl Keep {
    /// The question of a review.
    pub(crate) fn new(macs: &[Mac], owner: &Owner, stamp: Stamp, dry_run: bool, policy: Policy) -> Self {
        Self {
            macs: macs.iter().map(|mac| mac.bits()).collect(),
            pod: owner.view == View::Pod,
            namespace: owner.namespace.to_string(),
            name: owner.name.to_string(),
            guest: owner.guest.as_deref().map(str::to_owned),
            stamp,
            dry_run,
            policy,
        }
    }
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
enum Response {
    /// Whether another object has each of the addresses.
    Kept(Vec<bool>),
    /// An AdmissionReview, if it allows.
    Reviewed(Option<String>),
}

/// A message as it is written.
fn framed<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend(body);
    Ok(bytes)
}

async fn write(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

async fn read<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = usize::try_from(stream.read_u32().await?).map_err(io::Error::other)?;
    if length > MESSAGE_MAX {
        return Err(io::Error::other("a message is too long"));
    }
    let mut body = Vec::new();
    stream.take(length as u64).read_to_end(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// Answers other replicas until the process ends.
pub(crate) async fn serve(listener: TcpListener, state: Arc<State>) {
    let limit = Limit::new(CONNECTIONS);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(material) = state.certificates.material() else { continue };
        tune(&stream);
        let (slot, state) = (limit.enter().await, state.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = slot.evicted() => {}
                () = answer_all(stream, material, &state, &slot) => {}
            }
        });
    }
}

/// Answers the calls of a connection with a client that presents the shared certificate.
async fn answer_all(stream: TcpStream, material: Material, state: &State, slot: &Arc<Slot>) {
    let accepted = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(material.peers).accept(stream)).await;
    let Ok(Ok(mut stream)) = accepted else { return };
    let _busy = slot.busy();
    while let Ok(Ok(call)) = tokio::time::timeout(IDLE, read::<Call>(&mut stream)).await {
        let Ok(said) = framed(&answer(state, call)) else { return };
        if write(&mut stream, &said).await.is_err() {
            return;
        }
    }
}

fn answer(state: &State, call: Call) -> Response {
    match call {
        Call::Keep(keep) => {
            let view = if keep.pod { View::Pod } else { View::Machine };
            let mut owner = Owner::new(view, &keep.namespace, &keep.name);
            owner.guest = keep.guest.map(Into::into);
            let now = state.now();
            let mut known = state.lock();
            let is_taken = |mac: Mac| known.pool.other_holder(mac, &owner).is_some();
            let taken: Vec<bool> =
                keep.macs.iter().map(|bits| Mac::new(*bits).is_none_or(is_taken)).collect();
            // An object that will be refused keeps none of them.
            let refused = keep.policy == Policy::Reject && taken.contains(&true);
            if !keep.dry_run && !refused {
                for (bits, taken) in keep.macs.iter().zip(&taken) {
                    if let Some(mac) = Mac::new(*bits).filter(|_| !taken || keep.policy == Policy::Allow) {
                        known.pool.reserve(&owner, mac, keep.stamp, now);
                    }
                }
            }
            Response::Kept(taken)
        }
        // Before all objects are known, an address that one of them has could be given out.
        Call::Review { .. } if !state.is_ready() => Response::Reviewed(None),
        Call::Review { pods, body, taken } => {
            let hook = if pods { Hook::Pods } else { Hook::Machines };
            let review = Review::read(hook, body.as_bytes()).ok();
            let taken = taken.into_iter().filter_map(Mac::new).map(|mac| (mac, Answer::Taken)).collect();
            let reply = review.map(|review| decide(state, review, &taken));
            let reply = reply.filter(Reply::is_allowed);
            Response::Reviewed(reply.map(|reply| reply.document().to_string()))
        }
    }
}

/// A call on its way.
struct PendingCall {
    /// The bytes to write; gone, when the caller no longer waits for the answer.
    bytes: Weak<Vec<u8>>,
    /// Where the answer goes.
    answer: oneshot::Sender<Response>,
}

/// Which calls share a connection: a long review holds up no question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Lane {
    Questions,
    Reviews,
}

/// Connections to other replicas, by address.
#[derive(Debug)]
pub(crate) struct Peers {
    /// The name that the shared certificate has.
    name: ServerName<'static>,
    /// How long an answer is waited for.
    patience: Duration,
    lines: Mutex<HashMap<(String, Lane), mpsc::Sender<PendingCall>>>,
}

impl Peers {
    /// No connection yet.
    pub(crate) fn new(name: ServerName<'static>) -> Self {
        Self { name, patience: TIMEOUT, lines: Mutex::default() }
    }

    /// Asks whether addresses are free, and gives an answer for each; `None` when none comes in time.
    pub(crate) async fn keep(&self, state: &Arc<State>, address: &str, keep: Keep) -> Option<Vec<Answer>> {
        let count = keep.macs.len();
        match self.call(state, address, &Call::Keep(keep)).await? {
            Response::Kept(taken) if taken.len() == count => {
                let answer = |taken| if taken { Answer::Taken } else { Answer::Free };
                Some(taken.into_iter().map(answer).collect())
            }
            Response::Kept(_) | Response::Reviewed(_) => None,
        }
    }

    /// Has another replica answer a review, with some of its addresses `taken`; `None` when it cannot either.
    pub(crate) async fn review(
        &self,
        state: &Arc<State>,
        address: &str,
        hook: Hook,
        body: &[u8],
        taken: &[Mac],
    ) -> Option<String> {
        let body = String::from_utf8(body.to_vec()).ok()?;
        let taken = taken.iter().map(|mac| mac.bits()).collect();
        match self.call(state, address, &Call::Review { pods: hook == Hook::Pods, body, taken }).await? {
            Response::Reviewed(reply) => reply,
            Response::Kept(_) => None,
        }
    }

    /// The way to an address. Those to replicas that are gone end when a new one comes.
    fn line(&self, state: &Arc<State>, address: &str, used: Lane) -> mpsc::Sender<PendingCall> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (address.to_owned(), used);
        if !lines.contains_key(&key) {
            let known = state.lock();
            let replicas = &known.ledger.book().replicas;
            lines.retain(|(address, _), _| replicas.values().any(|replica| replica.address == *address));
        }
        let begin = || {
            let (line, calls) = mpsc::channel(CALLS);
            tokio::spawn(carry(state.clone(), self.name.clone(), address.to_owned(), calls));
            line
        };
        lines.entry(key).or_insert_with(begin).clone()
    }

    async fn call(&self, state: &Arc<State>, address: &str, call: &Call) -> Option<Response> {
        let used = if matches!(call, Call::Keep(_)) { Lane::Questions } else { Lane::Reviews };
        let line = self.line(state, address, used);
        let bytes = Arc::new(framed(call).ok()?);
        let asked = async {
            // A connection from before may have ended since: once more, on a new one.
            for _ in 0..2 {
                let (answer, said) = oneshot::channel();
                line.send(PendingCall { bytes: Arc::downgrade(&bytes), answer }).await.ok()?;
                if let Ok(said) = said.await {
                    return Some(said);
                }
            }
            None
        };
        let said = tokio::time::timeout(self.patience, asked).await;
        if said.is_err() {
            tracing::debug!(address, "another replica does not answer in time");
        }
        said.ok().flatten()
    }
}

/// Carries calls to a replica until the last caller is gone. A call gets no answer when its connection ends before.
async fn carry(
    state: Arc<State>,
    name: ServerName<'static>,
    address: String,
    mut calls: mpsc::Receiver<PendingCall>,
) {
    while let Some(first) = calls.recv().await {
        if first.bytes.strong_count() == 0 {
            continue;
        }
        let connected = async {
            let material = state.certificates.material();
            let material = material.ok_or_else(|| io::Error::other("no certificate yet"))?;
            let stream = TcpStream::connect(&address).await?;
            stream.set_nodelay(true)?;
            TlsConnector::from(material.client).connect(name.clone(), stream).await
        };
        let ended = match tokio::time::timeout(HANDSHAKE, connected).await {
            Ok(Ok(stream)) => serve_connection(stream, first, &mut calls).await,
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::ErrorKind::TimedOut.into()),
        };
        if let Err(error) = ended {
            tracing::debug!(%error, address, "another replica does not answer");
        }
    }
}

/// Has calls answered until the connection ends or an answer does not come.
async fn serve_connection(
    stream: TlsStream<TcpStream>,
    first: PendingCall,
    calls: &mut mpsc::Receiver<PendingCall>,
) -> io::Result<()> {
    let (reader, writer) = tokio::io::split(stream);
    let waiting = Waiting::default();
    tokio::select! {
        ended = write_calls(writer, first, calls, &waiting) => ended,
        ended = read_answers(reader, &waiting) => ended,
        () = waiting.silence() => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Writes calls as they come.
async fn write_calls(
    mut writer: impl AsyncWrite + Unpin,
    first: PendingCall,
    calls: &mut mpsc::Receiver<PendingCall>,
    waiting: &Waiting,
) -> io::Result<()> {
    let mut next = Some(first);
    while let Some(asked) = next {
        if let Some(bytes) = asked.bytes.upgrade() {
            waiting.lock().push_back((Instant::now(), asked.answer));
            write(&mut writer, &bytes).await?;
        }
        next = calls.recv().await;
    }
    Ok(())
}

/// Gives answers to their callers, in the order of the calls.
async fn read_answers(mut reader: impl AsyncRead + Unpin, waiting: &Waiting) -> io::Result<()> {
    loop {
        let said = read::<Response>(&mut reader).await?;
        let next = waiting.lock().pop_front();
        let Some((_, answer)) = next else { return Err(io::Error::other("an answer without a request")) };
        // A caller that no longer waits has decided without it.
        let _late = answer.send(said);
    }
}

/// Calls that were written, oldest first: since when, and where their answers go.
#[derive(Default)]
struct Waiting(Mutex<VecDeque<(Instant, oneshot::Sender<Response>)>>);

impl Waiting {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Instant, oneshot::Sender<Response>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until an answer does not come.
    async fn silence(&self) {
        let oldest = || self.lock().front().map(|(since, _)| since.elapsed());
        while oldest().is_none_or(|oldest| oldest < SILENCE) {
            tokio::time::sleep(SILENCE / 2).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::Ledger;
    use crate::webhook::tests::{HOST, state};
    use api::net::pool::Pool;

    fn owner(name: &str) -> Owner {
        Owner::new(View::Machine, "n", name)
    }

    fn macs<const N: usize>(last: [u64; N]) -> [Mac; N] {
        last.map(|last| Mac::new(0x02_00_00_00_00_00 + last).unwrap())
    }

    /// How long nothing takes, on a busy machine either.
    const LONG: Duration = Duration::from_secs(60);

    fn peers() -> Peers {
        Peers { patience: LONG, ..Peers::new(ServerName::try_from(HOST).unwrap()) }
    }

    /// A replica that is asked, at its end of a connection.
    async fn accepted(listener: &TcpListener, state: &State) -> tokio_rustls::server::TlsStream<TcpStream> {
        let (stream, _) = listener.accept().await.unwrap();
        TlsAcceptor::from(state.certificates.material().unwrap().peers).accept(stream).await.unwrap()
    }

    async fn say(stream: &mut (impl AsyncWrite + Unpin), said: Response) {
        write(stream, &framed(&said).unwrap()).await.unwrap();
    }

    #[test]
    fn reservations_are_all_or_nothing_where_duplicates_are_rejected() {
        let all = macs([1, 2, 3]);
        for (policy, dry_run, kept) in [
            (Policy::Allow, false, [true, true, true]),
            (Policy::Rewrite, false, [true, false, true]),
            (Policy::Reject, false, [false, false, false]),
            (Policy::Allow, true, [false, false, false]),
        ] {
            let state = state("a");
            state.lock().pool.observe(&owner("other"), None, vec![all[1]]);
            let Response::Kept(taken) =
                answer(&state, Call::Keep(Keep::new(&all, &owner("v"), 1, dry_run, policy)))
            else {
                panic!("another answer")
            };
            assert_eq!(taken, [false, true, false]);
            let known = state.lock();
            let holds = all.map(|mac| known.pool.holders(mac).any(|holder| *holder == owner("v")));
            assert_eq!(holds, kept, "{policy:?} {dry_run}");
        }
    }

    #[test]
    fn a_review_is_answered_with_what_the_asking_replica_knows() {
        let [mac] = macs([7]);
        let interfaces = serde_json::json!([{"name": "a", "masquerade": {}, "macAddress": mac.to_string()}]);
        let object = serde_json::json!({
            "metadata": {"name": "v", "namespace": "n"},
            "spec": {"template": {"spec": {"domain": {"devices": {"interfaces": interfaces}}}}},
        });
        let request =
            serde_json::json!({"uid": "u", "operation": "CREATE", "namespace": "n", "object": object});
        let body = serde_json::json!({"request": request}).to_string();
        for (taken, allowed) in [(vec![], true), (vec![mac.bits()], false)] {
            let state = state("a");
            state.lock().policy = Policy::Reject;
            let Response::Reviewed(reply) =
                answer(&state, Call::Review { pods: false, body: body.clone(), taken })
            else {
                panic!("another answer")
            };
            assert_eq!(reply.is_some(), allowed);
        }
        // A replica that has not read all objects yet gives no answer.
        let ready = state("a");
        let (pool, ledger) = {
            let known = ready.lock();
            (Pool::alone(known.pool.range(), LONG, 0), Ledger::new(known.ledger.me().clone()))
        };
        let early = State::new(pool, ledger, Policy::Allow);
        assert!(matches!(
            answer(&early, Call::Review { pods: false, body, taken: Vec::new() }),
            Response::Reviewed(None)
        ));
    }

    #[tokio::test]
    async fn no_question_waits_for_the_answer_to_another() {
        let state = state("a");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let peers = peers();
        let numbers: Vec<u64> = (1..=32).collect();
        let ask = |number: u64| {
            let keep = Keep::new(&macs([number]), &owner("v"), 1, false, Policy::Reject);
            peers.keep(&state, &address, keep)
        };
        let asked = futures_util::future::join_all(numbers.iter().map(|number| ask(*number)));
        let answering = async {
            let mut stream = accepted(&listener, &state).await;
            let mut all = Vec::new();
            // All of them, before the first answer.
            for _ in &numbers {
                let Call::Keep(keep) = read::<Call>(&mut stream).await.unwrap() else {
                    panic!("another call")
                };
                all.push(keep.macs[0]);
            }
            for mac in all {
                say(&mut stream, Response::Kept(vec![mac % 3 == 0])).await;
            }
            stream
        };
        let (answers, _stream) = tokio::join!(asked, answering);
        for (number, found) in numbers.iter().zip(answers) {
            let taken = macs([*number])[0].bits() % 3 == 0;
            assert_eq!(found, Some(vec![if taken { Answer::Taken } else { Answer::Free }]), "{number}");
        }
    }

    #[tokio::test]
    async fn a_late_answer_goes_to_no_other_call_and_ends_nothing() {
        let state = state("a");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let peers = peers();
        let keep = |number| Keep::new(&macs([number]), &owner("v"), 1, false, Policy::Reject);
        let mut stream = tokio::select! {
            _ = peers.keep(&state, &address, keep(1)) => panic!("nobody has answered"),
            stream = async {
                let mut stream = accepted(&listener, &state).await;
                read::<Call>(&mut stream).await.unwrap();
                stream
            } => stream,
        };
        // The caller of the first call is gone; the second call uses the same connection.
        let (answers, ()) = tokio::join!(peers.keep(&state, &address, keep(2)), async {
            read::<Call>(&mut stream).await.unwrap();
            say(&mut stream, Response::Kept(vec![true])).await;
            say(&mut stream, Response::Kept(vec![false])).await;
        });
        assert_eq!(answers, Some(vec![Answer::Free]));
        // The connection ends: the next question comes on another.
        drop(stream);
        let (answers, _stream) = tokio::join!(peers.keep(&state, &address, keep(3)), async {
            let mut stream = accepted(&listener, &state).await;
            read::<Call>(&mut stream).await.unwrap();
            say(&mut stream, Response::Kept(vec![true])).await;
            stream
        });
        assert_eq!(answers, Some(vec![Answer::Taken]));
    }

    #[tokio::test]
    async fn clients_without_the_certificate_block_no_replica() {
        let state = state("a");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(listener, state.clone()));
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS * 2 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let keep = || Keep::new(&macs([1]), &owner("v"), 1, false, Policy::Reject);
        let peers = peers();
        assert_eq!(peers.keep(&state, &address.to_string(), keep()).await, Some(vec![Answer::Free]));
        // Again, on the connection that is there.
        assert_eq!(peers.keep(&state, &address.to_string(), keep()).await, Some(vec![Answer::Free]));
        serving.abort();
        drop(silent);
    }

    #[tokio::test]
    async fn a_replica_that_does_not_answer_is_not_waited_for_long() {
        let state = state("a");
        // It listens, and never answers.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let many: Vec<Mac> = macs([1, 2, 3, 4]).into_iter().cycle().take(256).collect();
        let peers = Peers { patience: TIMEOUT, ..peers() };
        let keep = Keep::new(&many, &owner("v"), 1, false, Policy::Reject);
        assert_eq!(peers.keep(&state, &address, keep).await, None);
    }
}
