//! Changed blocks for clients outside of the node: the Kubernetes SnapshotMetadata API, as the sidecar
//! external-snapshot-metadata serves it, from the CSI driver's socket.
//!
//! ```text
//! client ─ TLS, token ─► Service ─► an agent: TokenReview, SubjectAccessReview ─► VolumeSnapshot, its content
//!                                     │ on another node                               │ on this node
//!                                     └─► the agent of that node                      └─► the driver ─► a stream of ranges
//! ```
//!
//! An agent that is asked by another one checks the token again: it trusts no caller.
//!
//! - [`plan`]: what is decided from the objects (pure). [`service`] does it. [`peer`]: other agents.
//!
//! Not here: ranges (hpp-csi), the SnapshotMetadataService object (the operator's).

mod peer;
mod plan;
mod service;

use std::path::PathBuf;
use std::sync::Arc;

use cluster::Client;
use csi::snapshotmetadata::snapshot_metadata_server::SnapshotMetadataServer;
use http::{Request, Response};
use hyper::body::Incoming;
use serve::server::{Connection, Service};
use tonic::body::Body;
use tower::Service as _;

use service::Metadata;

/// Longest request; a token is the longest field.
const LONGEST_REQUEST: usize = 64 << 10;

/// Settings of the service.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Name of the node.
    pub(crate) node: String,
    /// Namespace of the agents.
    pub(crate) namespace: String,
    /// The CSI driver's socket.
    pub(crate) socket: PathBuf,
    /// File of the authorities that sign agents' certificates.
    pub(crate) authorities: PathBuf,
}

/// The service, for [`serve::server`].
pub(crate) struct Server(SnapshotMetadataServer<Metadata>);

impl Server {
    pub(crate) fn new(client: Client, settings: Settings) -> Self {
        let service = SnapshotMetadataServer::new(Metadata::new(client, settings));
        Self(service.max_decoding_message_size(LONGEST_REQUEST))
    }
}

impl Service for Server {
    type Body = Body;

    async fn answer(&self, mut request: Request<Incoming>, connection: &Arc<Connection>) -> Response<Body> {
        request.extensions_mut().insert(Arc::clone(connection));
        match self.0.clone().call(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        }
    }
}
