//! Replicas among each other: whether an address in another's block is free, and reviews for which one has no address left.
//!
//! Mutual TLS with the certificate that all share. A message is its length, 4 bytes big-endian, and that many bytes of
//! JSON; each call is answered in turn. What cannot be read ends the connection.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::namespaces::Policy;
use crate::review::{Answer, Hook, Reply, Review};
use crate::state::State;
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
    /// Keeps an address for an object, if nobody else has it.
    Keep(Keep),
    /// Answers a review with an address of its own.
    Review {
        /// Whether it is about pods.
        pods: bool,
        /// The AdmissionReview.
        body: String,
    },
}

/// An address and who wants it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Keep {
    /// The address.
    pub(crate) mac: u64,
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
    /// Whether the object gets it even if somebody else has it.
    pub(crate) anyway: bool,
}

impl Keep {
    /// The question of a review.
    pub(crate) fn new(mac: Mac, owner: &Owner, stamp: Stamp, dry_run: bool, policy: Policy) -> Self {
        Self {
            mac: mac.bits(),
            pod: owner.view == View::Pod,
            namespace: owner.namespace.to_string(),
            name: owner.name.to_string(),
            guest: owner.guest.as_deref().map(str::to_owned),
            stamp,
            dry_run,
            anyway: policy == Policy::Allow,
        }
    }
}

/// The answer.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    Free,
    Taken,
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
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Some(material) = state.certificates.material() else { continue };
        let state = state.clone();
        tokio::spawn(async move {
            let _place = place;
            let _unneeded = stream.set_nodelay(true);
            let accepted =
                tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(material.peers).accept(stream)).await;
            let Ok(Ok(mut stream)) = accepted else { return };
            loop {
                let Ok(Ok(call)) = tokio::time::timeout(IDLE, read::<Call>(&mut stream)).await else {
                    return;
                };
                let said = answer(&state, call);
                if write(&mut stream, &said).await.is_err() {
                    return;
                }
            }
        });
    }
}

fn answer(state: &State, call: Call) -> Said {
    match call {
        Call::Keep(keep) => {
            let view = if keep.pod { View::Pod } else { View::Machine };
            let mut owner = Owner::new(view, &keep.namespace, &keep.name);
            owner.guest = keep.guest.map(Into::into);
            let Some(mac) = Mac::new(keep.mac) else { return Said::Taken };
            let now = state.now();
            let mut known = state.lock();
            let taken = known.pool.other_holder(mac, &owner).is_some();
            if !keep.dry_run && (!taken || keep.anyway) {
                known.pool.reserve(&owner, mac, keep.stamp, now);
            }
            if taken { Said::Taken } else { Said::Free }
        }
        Call::Review { pods, body } => {
            let hook = if pods { Hook::Pods } else { Hook::Machines };
            let review = Review::read(hook, body.as_bytes()).ok();
            let reply = review.map(|review| webhook::decide(state, review, &HashMap::new()));
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

    /// Asks whether an address is free; `None` when no answer comes in time.
    pub(crate) async fn keep(&self, state: &State, address: &str, keep: Keep) -> Option<Answer> {
        match self.call(state, address, &Call::Keep(keep)).await? {
            Said::Free => Some(Answer::Free),
            Said::Taken => Some(Answer::Taken),
            Said::Reviewed(_) => None,
        }
    }

    /// Lets another replica answer a review; `None` when it cannot either.
    pub(crate) async fn review(
        &self,
        state: &State,
        address: &str,
        hook: Hook,
        body: &[u8],
    ) -> Option<String> {
        let body = String::from_utf8(body.to_vec()).ok()?;
        match self.call(state, address, &Call::Review { pods: hook == Hook::Pods, body }).await? {
            Said::Reviewed(reply) => reply,
            Said::Free | Said::Taken => None,
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
