//! Replicas among each other: whether an address in another's block is free, and reviews for which one has no address left.
//!
//! Mutual TLS with the certificate that all share. A message is its length, 4 bytes big-endian, and that many bytes of
//! JSON; each call is answered in turn. What cannot be read ends the connection. Who has not shown the certificate yet makes
//! room for whoever comes after him.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::namespaces::Policy;
use crate::places::{Place, Places};
use crate::review::{Answer, Hook, Reply, Review};
use crate::state::State;
use crate::tls::Material;
use crate::webhook;
use api::net::Mac;
use api::net::pool::{Owner, Stamp, View};

/// How long another replica may take to answer.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);
/// Longest message: a review, and what JSON makes of it.
const MESSAGE_MAX: usize = 16 << 20;
/// Connections at once.
const CONNECTIONS: usize = 64;
/// How long somebody who connects may take to show who he is.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// How long a connection stays without a call.
const IDLE: Duration = Duration::from_secs(120);

/// A question to another replica.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Call {
    /// Keeps addresses for an object, as far as nobody else has them.
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

/// Addresses and who wants them.
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
    /// What becomes of the object when somebody else has one of them.
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
enum Said {
    /// Whether somebody else has each of the addresses.
    Kept(Vec<bool>),
    /// An AdmissionReview, if it allows.
    Reviewed(Option<String>),
}

async fn write<T: Serialize>(stream: &mut (impl AsyncWrite + Unpin), message: &T) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend(body);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

async fn read<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<T> {
    let length = usize::try_from(stream.read_u32().await?).map_err(io::Error::other)?;
    if length > MESSAGE_MAX {
        return Err(io::Error::other("a message that is too long"));
    }
    let mut body = Vec::new();
    stream.take(length as u64).read_to_end(&mut body).await?;
    Ok(serde_json::from_slice(&body)?)
}

/// Answers other replicas until the process ends.
pub(crate) async fn serve(listener: TcpListener, state: Arc<State>) {
    let places = Places::new(CONNECTIONS);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(material) = state.certificates.material() else { continue };
        let (place, state) = (places.enter().await, state.clone());
        tokio::spawn(async move {
            tokio::select! {
                () = place.told() => {}
                () = answer_all(stream, material, &state, &place) => {}
            }
        });
    }
}

/// Answers whoever is at the other end of a connection, if he is a replica.
async fn answer_all(stream: TcpStream, material: Material, state: &State, place: &Place) {
    let _unneeded = stream.set_nodelay(true);
    let accepted = tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(material.peers).accept(stream)).await;
    let Ok(Ok(mut stream)) = accepted else { return };
    place.works();
    while let Ok(Ok(call)) = tokio::time::timeout(IDLE, read::<Call>(&mut stream)).await {
        let said = answer(state, call);
        if write(&mut stream, &said).await.is_err() {
            return;
        }
    }
}

fn answer(state: &State, call: Call) -> Said {
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
            Said::Kept(taken)
        }
        Call::Review { pods, body, taken } => {
            let hook = if pods { Hook::Pods } else { Hook::Machines };
            let review = Review::read(hook, body.as_bytes()).ok();
            let taken = taken.into_iter().filter_map(Mac::new).map(|mac| (mac, Answer::Taken)).collect();
            let reply = review.map(|review| webhook::decide(state, review, &taken));
            let reply = reply.filter(Reply::is_allowed);
            Said::Reviewed(reply.map(|reply| reply.document().to_string()))
        }
    }
}

type Line = Arc<Mutex<Option<TlsStream<TcpStream>>>>;

/// Connections to other replicas, by address.
#[derive(Debug)]
pub(crate) struct Peers {
    /// The name that the shared certificate has.
    name: ServerName<'static>,
    lines: Mutex<HashMap<String, Line>>,
}

impl Peers {
    /// No connection yet.
    pub(crate) fn new(name: ServerName<'static>) -> Self {
        Self { name, lines: Mutex::new(HashMap::new()) }
    }

    /// Asks whether addresses are free, and gives an answer for each; `None` when none comes in time.
    pub(crate) async fn keep(&self, state: &State, address: &str, keep: Keep) -> Option<Vec<Answer>> {
        let count = keep.macs.len();
        match self.call(state, address, &Call::Keep(keep)).await? {
            Said::Kept(taken) if taken.len() == count => {
                let answer = |taken| if taken { Answer::Taken } else { Answer::Free };
                Some(taken.into_iter().map(answer).collect())
            }
            Said::Kept(_) | Said::Reviewed(_) => None,
        }
    }

    /// Lets another replica answer a review, of whose addresses some are `taken`; `None` when it cannot either.
    pub(crate) async fn review(
        &self,
        state: &State,
        address: &str,
        hook: Hook,
        body: &[u8],
        taken: &[Mac],
    ) -> Option<String> {
        let body = String::from_utf8(body.to_vec()).ok()?;
        let taken = taken.iter().map(|mac| mac.bits()).collect();
        match self.call(state, address, &Call::Review { pods: hook == Hook::Pods, body, taken }).await? {
            Said::Reviewed(reply) => reply,
            Said::Kept(_) => None,
        }
    }

    /// The connection to an address, if there is one yet. Those to replicas that are gone end when a new one comes.
    async fn line(&self, state: &State, address: &str) -> Line {
        let mut lines = self.lines.lock().await;
        if !lines.contains_key(address) {
            let known = state.lock();
            let replicas = &known.ledger.book().replicas;
            lines.retain(|address, _| replicas.values().any(|replica| replica.address == *address));
        }
        lines.entry(address.to_owned()).or_default().clone()
    }

    async fn call(&self, state: &State, address: &str, call: &Call) -> Option<Said> {
        let line = self.line(state, address).await;
        let asked = async {
            let mut line = line.lock().await;
            // A connection from before may have ended since.
            if let Some(mut stream) = line.take()
                && let Ok(said) = converse(&mut stream, call).await
            {
                *line = Some(stream);
                return Ok(said);
            }
            let material = state.certificates.material();
            let material = material.ok_or_else(|| io::Error::other("no certificate yet"))?;
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let connector = TlsConnector::from(material.client);
            let mut stream = connector.connect(self.name.clone(), stream).await?;
            let said = converse(&mut stream, call).await?;
            *line = Some(stream);
            io::Result::Ok(said)
        };
        match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(said)) => Some(said),
            Ok(Err(error)) => {
                tracing::debug!(%error, address, "another replica does not answer");
                None
            }
            Err(_) => {
                tracing::debug!(address, "another replica does not answer in time");
                None
            }
        }
    }
}

async fn converse(stream: &mut TlsStream<TcpStream>, call: &Call) -> io::Result<Said> {
    write(stream, call).await?;
    read(stream).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::webhook::tests::{HOST, state};

    fn owner(name: &str) -> Owner {
        Owner::new(View::Machine, "n", name)
    }

    fn macs<const N: usize>(last: [u64; N]) -> [Mac; N] {
        last.map(|last| Mac::new(0x02_00_00_00_00_00 + last).unwrap())
    }

    fn peers() -> Peers {
        Peers::new(ServerName::try_from(HOST).unwrap())
    }

    #[test]
    fn what_is_kept_for_an_object_is_all_or_nothing_where_duplicates_are_rejected() {
        let all = macs([1, 2, 3]);
        for (policy, dry_run, kept) in [
            (Policy::Allow, false, [true, true, true]),
            (Policy::Rewrite, false, [true, false, true]),
            (Policy::Reject, false, [false, false, false]),
            (Policy::Allow, true, [false, false, false]),
        ] {
            let state = state("a");
            state.lock().pool.observe(&owner("other"), None, vec![all[1]]);
            let Said::Kept(taken) =
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
            let Said::Reviewed(reply) =
                answer(&state, Call::Review { pods: false, body: body.clone(), taken })
            else {
                panic!("another answer")
            };
            assert_eq!(reply.is_some(), allowed);
        }
    }

    #[tokio::test]
    async fn who_does_not_show_the_certificate_keeps_no_replica_out() {
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
        // It listens, and never says a word.
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let many: Vec<Mac> = macs([1, 2, 3, 4]).into_iter().cycle().take(256).collect();
        let peers = peers();
        let keep = Keep::new(&many, &owner("v"), 1, false, Policy::Reject);
        assert_eq!(peers.keep(&state, &address, keep).await, None);
    }
}
