//! A service's view of the connection of a request. Not here: limits and protocols.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::pki_types::CertificateDer;

use super::informational::Queue;
use super::intake::Shared;
use super::limit::{Busy, Slot};
use crate::client::common_name;

/// A connection.
#[derive(Debug)]
pub struct Connection {
    peer: SocketAddr,
    client: Option<Client>,
    slot: Arc<Slot>,
    shared: Arc<Shared>,
    informational: Option<Queue>,
}

/// A client that has shown a certificate which one of the server's client authorities has signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// The common name in the certificate.
    pub name: Option<String>,
    /// The certificate.
    pub certificate: CertificateDer<'static>,
}

impl Client {
    pub(super) fn new(certificate: &CertificateDer<'_>) -> Self {
        Self { name: common_name(certificate), certificate: certificate.clone().into_owned() }
    }
}

impl Connection {
    pub(super) fn new(
        peer: SocketAddr,
        client: Option<Client>,
        slot: Arc<Slot>,
        shared: Arc<Shared>,
        informational: Option<Queue>,
    ) -> Arc<Self> {
        Arc::new(Self { peer, client, slot, shared, informational })
    }

    /// The peer's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The client, if it has shown a certificate.
    pub fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    /// The common name in the client's certificate.
    pub fn client_name(&self) -> Option<&str> {
        self.client.as_ref().and_then(|client| client.name.as_deref())
    }

    /// Protects the connection from eviction until the guard is dropped. To be taken when the client is known or its whole
    /// request has arrived, never while an unknown client's bytes are awaited.
    pub fn busy(&self) -> Busy {
        self.slot.busy()
    }

    /// From now on, takes [`Limits::read_ahead`](super::Limits::read_ahead) bytes from the socket at once: for large bodies
    /// of known clients.
    pub fn read_ahead(&self) {
        self.shared.read_ahead();
    }

    /// Where informational answers to a request of an HTTP/1 connection go, until its answer is begun.
    pub fn informational(&self) -> Option<&Queue> {
        self.informational.as_ref()
    }

    /// A request's head has arrived.
    pub(super) fn begin(&self, has_body: bool) {
        self.shared.set_has_body(has_body);
        self.slot.touch();
    }

    /// A request is answered.
    pub(super) fn end(&self) {
        self.slot.touch();
    }
}
