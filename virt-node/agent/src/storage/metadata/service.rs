//! Answers requests: authorizes the caller, finds the snapshot and its node; then the driver's ranges as they come.

use std::pin::Pin;
use std::sync::Arc;

use api::hostpath::METADATA_AUDIENCE;
use cluster::access::Access;
use cluster::{Client, Key, Resource};
use csi::identity_client::IdentityClient;
use csi::snapshot_metadata_client::SnapshotMetadataClient as DriverClient;
use csi::snapshotmetadata::snapshot_metadata_server::SnapshotMetadata;
use csi::snapshotmetadata::{GetMetadataAllocatedRequest, GetMetadataDeltaRequest};
use csi::{GetMetadataAllocatedResponse, GetMetadataDeltaResponse, GetPluginInfoRequest};
use serde_json::Value;
use serve::server::{Busy, Connection};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Channel;
use tonic::{Request, Response, Status, Streaming};

use super::plan::{self, Snapshot};
use super::{Settings, peer};
use crate::storage::driver;
use crate::storage::objects::{CONTENTS, SNAPSHOTS};

/// Metadata of a request that another agent forwards.
const FORWARDED: &str = "ferrovirt-forwarded";

/// The service.
pub(super) struct Metadata {
    client: Client,
    settings: Settings,
    driver: Channel,
}

type Ranges<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A stream of the driver or of another agent. The connection is in use while it lasts.
fn ranges<T: Send + 'static>(stream: Streaming<T>, busy: Option<Busy>) -> Response<Ranges<T>> {
    Response::new(Box::pin(stream.map(move |message| passed_on(busy.as_ref(), message))))
}

/// A message of a stream, with the sidecar's text for an error.
fn passed_on<T>(_in_use: Option<&Busy>, message: Result<T, Status>) -> Result<T, Status> {
    message.map_err(|status| {
        Status::internal(format!("failed to get response from CSI driver: {}", status.message()))
    })
}

/// A request for another agent.
fn forward<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(FORWARDED, tonic::metadata::MetadataValue::from_static("true"));
    request
}

/// The connection of a request.
fn connection<T>(request: &Request<T>) -> Option<Arc<Connection>> {
    request.extensions().get::<Arc<Connection>>().cloned()
}

impl Metadata {
    pub(super) fn new(client: Client, settings: Settings) -> Self {
        let driver = driver::channel(&settings.socket);
        Self { client, settings, driver }
    }

    /// Checks that the token is for this service and its user may read VolumeSnapshots of the namespace.
    async fn authorize(&self, token: &str, namespace: &str) -> Result<(), Status> {
        let user = self.client.user_for(token, METADATA_AUDIENCE).await;
        let user = user
            .map_err(|error| Status::internal(format!("failed to authenticate user: {}", error.chain())))?
            .ok_or_else(|| Status::unauthenticated("unauthenticated user"))?;
        let access = Access {
            namespace,
            verb: "get",
            group: SNAPSHOTS.group,
            version: SNAPSHOTS.version,
            resource: SNAPSHOTS.plural,
            ..Access::default()
        };
        let verdict = self.client.may(&user, &access).await;
        let verdict = verdict
            .map_err(|error| Status::internal(format!("failed to authorize the user: {}", error.chain())))?;
        if !verdict.allowed {
            let text = format!("user does not have permissions to perform the operation: {}", verdict.reason);
            return Err(Status::permission_denied(text));
        }
        Ok(())
    }

    async fn read(&self, resource: Resource, kind: &str, key: &Key) -> Result<Option<Value>, Status> {
        let found = self.client.find::<Value>(resource, key).await;
        found.map_err(|error| Status::unavailable(format!("failed to get {kind} {key}: {}", error.chain())))
    }

    /// The snapshot of a VolumeSnapshot; `None`: there is none of this name.
    async fn find(&self, namespace: &str, name: &str) -> Result<Option<Snapshot>, Status> {
        let key = Key::new(namespace, name);
        let Some(snapshot) = self.read(SNAPSHOTS, "VolumeSnapshot", &key).await? else { return Ok(None) };
        let content = plan::content_of(name, &snapshot)?;
        let found = self.read(CONTENTS, "VolumeSnapshotContent", &Key::cluster(&content)).await?;
        let found =
            found.ok_or_else(|| Status::not_found(format!("VolumeSnapshotContent {content} not found")))?;
        plan::snapshot_of(&content, &found, &self.driver_name().await?).map(Some)
    }

    async fn snapshot(&self, namespace: &str, name: &str) -> Result<Snapshot, Status> {
        let missing = || Status::not_found(format!("VolumeSnapshot {namespace}/{name} not found"));
        self.find(namespace, name).await?.ok_or_else(missing)
    }

    async fn driver_name(&self) -> Result<String, Status> {
        let answer = IdentityClient::new(self.driver.clone()).get_plugin_info(GetPluginInfoRequest {}).await;
        let not_ready = |status: Status| {
            Status::unavailable(format!("the CSI driver is not yet ready: {}", status.message()))
        };
        Ok(answer.map_err(not_ready)?.into_inner().name)
    }
}

#[tonic::async_trait]
impl SnapshotMetadata for Metadata {
    type GetMetadataAllocatedStream = Ranges<GetMetadataAllocatedResponse>;
    type GetMetadataDeltaStream = Ranges<GetMetadataDeltaResponse>;

    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<Self::GetMetadataAllocatedStream>, Status> {
        let (connection, forwarded) = (connection(&request), request.metadata().contains_key(FORWARDED));
        let asked = request.into_inner();
        plan::required(&[
            (&asked.security_token, "securityToken is missing"),
            (&asked.namespace, "namespace parameter cannot be empty"),
            (&asked.snapshot_name, "snapshotName cannot be empty"),
        ])?;
        self.authorize(&asked.security_token, &asked.namespace).await?;
        let busy = connection.map(|connection| connection.busy());
        let snapshot = self.snapshot(&asked.namespace, &asked.snapshot_name).await?;
        let Settings { node, namespace, authorities, .. } = &self.settings;
        if let Some(other) = plan::forward_to(&snapshot, node, forwarded)? {
            let mut agent = peer::connect(&self.client, namespace, other, authorities).await?;
            return Ok(ranges(agent.get_metadata_allocated(forward(asked)).await?.into_inner(), busy));
        }
        let wanted = csi::GetMetadataAllocatedRequest {
            snapshot_id: snapshot.handle,
            starting_offset: asked.starting_offset,
            max_results: asked.max_results,
            ..Default::default()
        };
        let answer = DriverClient::new(self.driver.clone()).get_metadata_allocated(wanted).await?;
        Ok(ranges(answer.into_inner(), busy))
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<Self::GetMetadataDeltaStream>, Status> {
        let (connection, forwarded) = (connection(&request), request.metadata().contains_key(FORWARDED));
        let asked = request.into_inner();
        plan::required(&[
            (&asked.security_token, "securityToken is missing"),
            (&asked.namespace, "namespace parameter cannot be empty"),
            (&asked.base_snapshot_id, "baseSnapshotId cannot be empty"),
            (&asked.target_snapshot_name, "targetSnapshotName cannot be empty"),
        ])?;
        self.authorize(&asked.security_token, &asked.namespace).await?;
        let busy = connection.map(|connection| connection.busy());
        let target = self.snapshot(&asked.namespace, &asked.target_snapshot_name).await?;
        let Settings { node, namespace, authorities, .. } = &self.settings;
        if let Some(other) = plan::forward_to(&target, node, forwarded)? {
            let mut agent = peer::connect(&self.client, namespace, other, authorities).await?;
            return Ok(ranges(agent.get_metadata_delta(forward(asked)).await?.into_inner(), busy));
        }
        // Clients of the first release name the VolumeSnapshot here, later ones its handle.
        let base = match self.find(&asked.namespace, &asked.base_snapshot_id).await? {
            Some(named) => named.handle,
            None => asked.base_snapshot_id,
        };
        let wanted = csi::GetMetadataDeltaRequest {
            base_snapshot_id: base,
            target_snapshot_id: target.handle,
            starting_offset: asked.starting_offset,
            max_results: asked.max_results,
            ..Default::default()
        };
        let answer = DriverClient::new(self.driver.clone()).get_metadata_delta(wanted).await?;
        Ok(ranges(answer.into_inner(), busy))
    }
}
