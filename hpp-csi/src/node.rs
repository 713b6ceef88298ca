//! CSI's Node service: wire types in, a call, wire types out. Not here: decisions (`plan`) and effects (`apply`).

use std::sync::Arc;

use api::quantity;
use tonic::{Request, Response, Status};

use crate::apply::expand_node::Expansion;
use crate::apply::publish::{self, Publishing};
use crate::apply::stage::Staging;
use crate::apply::stats;
use crate::call::{Call, run};
use crate::error::{Error, Kind};
use crate::id::Id;
use crate::pools::Pools;
use crate::publications::Publications;
use crate::request::{self, Capability, EPHEMERAL, INLINE_SIZE, Parameters, Range};
use crate::topology;
use csi::node_server::Node;
use csi::node_service_capability::{Rpc, Type, rpc};
use csi::*;

type Answer<T> = Result<Response<T>, Status>;

/// The service.
#[derive(Debug)]
pub(crate) struct NodeService {
    pub(crate) pools: Arc<Pools>,
    pub(crate) published: Arc<Publications>,
    pub(crate) staging: Arc<Staging>,
    pub(crate) publishing: Arc<Publishing>,
    pub(crate) expansion: Arc<Expansion>,
}

fn missing(field: &str) -> Error {
    Error::new(Kind::Invalid, format!("{field} is missing"))
}

/// A path that a request must have.
fn path(field: &str, text: String) -> Result<String, Error> {
    if text.is_empty() { Err(missing(field)) } else { Ok(text) }
}

fn capability(wire: Option<VolumeCapability>) -> Result<Capability, Error> {
    wire.ok_or_else(|| missing("volume_capability"))?.try_into()
}

/// Understands a NodePublishVolume.
fn parse(request: NodePublishVolumeRequest) -> Result<publish::Request, Error> {
    let id = Id::parse("volume_id", &request.volume_id)?;
    let target = path("target_path", request.target_path)?;
    let capability = capability(request.volume_capability)?;
    let context = &request.volume_context;
    request::bounded("volume_context", context)?;
    let inline = if context.get(EPHEMERAL).is_some_and(|value| value == "true") {
        let required = match context.get(INLINE_SIZE) {
            None => 0,
            Some(text) => quantity::bytes(text)
                .map_err(|error| Error::new(Kind::Invalid, format!("{INLINE_SIZE}: {error}")))?,
        };
        Some((Parameters::read(context)?, Range { required, limit: 0 }))
    } else {
        None
    };
    Ok(publish::Request {
        id,
        target,
        staging: request.staging_target_path,
        capability,
        read_only: request.readonly,
        inline,
    })
}

#[tonic::async_trait]
impl Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Answer<NodeStageVolumeResponse> {
        let request = request.into_inner();
        let id = Id::parse("volume_id", &request.volume_id)?;
        let path = path("staging_target_path", request.staging_target_path)?;
        let capability = capability(request.volume_capability)?;
        run(&self.staging, Call::of("NodeStageVolume", &id), move |staging| {
            staging.stage(&id, &path, &capability)
        })
        .await?;
        Ok(Response::new(NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answer<NodeUnstageVolumeResponse> {
        let request = request.into_inner();
        let id = Id::parse("volume_id", &request.volume_id)?;
        let path = path("staging_target_path", request.staging_target_path)?;
        run(&self.staging, Call::of("NodeUnstageVolume", &id), move |staging| staging.unstage(&id, &path))
            .await?;
        Ok(Response::new(NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answer<NodePublishVolumeResponse> {
        let parse = parse(request.into_inner())?;
        run(&self.publishing, Call::of("NodePublishVolume", &parse.id), move |publishing| {
            publishing.publish(&parse)
        })
        .await?;
        Ok(Response::new(NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answer<NodeUnpublishVolumeResponse> {
        let request = request.into_inner();
        let id = Id::parse("volume_id", &request.volume_id)?;
        let target = path("target_path", request.target_path)?;
        run(&self.publishing, Call::of("NodeUnpublishVolume", &id), move |publishing| {
            publishing.unpublish(&id, &target)
        })
        .await?;
        Ok(Response::new(NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Answer<NodeGetVolumeStatsResponse> {
        let request = request.into_inner();
        let id = Id::parse("volume_id", &request.volume_id)?;
        let path = path("volume_path", request.volume_path)?;
        let published = self.published.clone();
        let stats = run(&self.pools, Call::of("NodeGetVolumeStats", &id), move |pools| {
            stats::of(pools, &published, &id, &path)
        })
        .await?;
        let usage = |unit: volume_usage::Unit, numbers: [u64; 3]| {
            let [total, used, available] = numbers.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
            VolumeUsage { available, total, used, unit: unit.into() }
        };
        let bytes = stats.bytes.map(|bytes| usage(volume_usage::Unit::Bytes, bytes));
        let inodes = stats.inodes.map(|inodes| usage(volume_usage::Unit::Inodes, inodes));
        Ok(Response::new(NodeGetVolumeStatsResponse {
            usage: bytes.into_iter().chain(inodes).collect(),
            volume_condition: Some(VolumeCondition {
                abnormal: stats.condition.abnormal,
                message: stats.condition.message,
            }),
        }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Answer<NodeExpandVolumeResponse> {
        let request = request.into_inner();
        let id = Id::parse("volume_id", &request.volume_id)?;
        let path = path("volume_path", request.volume_path)?;
        let range = Range::try_from(request.capacity_range)?;
        let staging = Some(request.staging_target_path).filter(|staging| !staging.is_empty());
        let capacity = run(&self.expansion, Call::of("NodeExpandVolume", &id), move |expansion| {
            expansion.expand(&id, &path, staging.as_deref(), range)
        })
        .await?;
        Ok(Response::new(NodeExpandVolumeResponse {
            capacity_bytes: i64::try_from(capacity).unwrap_or(i64::MAX),
        }))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answer<NodeGetCapabilitiesResponse> {
        use rpc::Type as Can;
        let capabilities = [
            Can::StageUnstageVolume,
            Can::GetVolumeStats,
            Can::ExpandVolume,
            Can::VolumeCondition,
            Can::SingleNodeMultiWriter,
            Can::VolumeMountGroup,
        ]
        .into_iter()
        .map(|can| NodeServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: can.into() })) })
        .collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Answer<NodeGetInfoResponse> {
        Ok(Response::new(NodeGetInfoResponse {
            node_id: self.pools.node.to_string(),
            max_volumes_per_node: 0,
            accessible_topology: Some(topology::of_node(&self.pools.node)),
        }))
    }
}
