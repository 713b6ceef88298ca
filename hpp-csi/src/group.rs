//! CSI's GroupController service: wire types in, a call, wire types out.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::apply::group::{Group, Groups};
use crate::call::{Call, Lanes};
use crate::controller::{id_or_nothing, timestamp, wire_snapshot};
use crate::error::{Error, Kind};
use crate::id::Id;
use crate::pools::Pools;
use crate::request::{self, Parameters};
use csi::group_controller_server::GroupController;
use csi::group_controller_service_capability::{Rpc, Type, rpc};
use csi::*;

type Answer<T> = Result<Response<T>, Status>;

/// The service.
#[derive(Debug)]
pub(crate) struct GroupService {
    pub(crate) pools: Arc<Pools>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) lanes: Lanes,
}

fn wire_group(group: &Group) -> VolumeGroupSnapshot {
    VolumeGroupSnapshot {
        group_snapshot_id: group.id.to_string(),
        snapshots: group.snapshots.iter().map(wire_snapshot).collect(),
        creation_time: Some(timestamp(group.record.created)),
        ready_to_use: group.snapshots.len() == group.record.members.len(),
    }
}

#[tonic::async_trait]
impl GroupController for GroupService {
    async fn group_controller_get_capabilities(
        &self,
        _: Request<GroupControllerGetCapabilitiesRequest>,
    ) -> Answer<GroupControllerGetCapabilitiesResponse> {
        let clones = self
            .lanes
            .run(&self.pools, Call::named("GroupControllerGetCapabilities"), |pools| Ok(pools.can_clone()))
            .await?;
        let can = clones.then(|| GroupControllerServiceCapability {
            r#type: Some(Type::Rpc(Rpc { r#type: rpc::Type::CreateDeleteGetVolumeGroupSnapshot.into() })),
        });
        Ok(Response::new(GroupControllerGetCapabilitiesResponse { capabilities: can.into_iter().collect() }))
    }

    async fn create_volume_group_snapshot(
        &self,
        request: Request<CreateVolumeGroupSnapshotRequest>,
    ) -> Answer<CreateVolumeGroupSnapshotResponse> {
        let request = request.into_inner();
        let id = Id::parse("name", &request.name)?;
        let sources = request::members(&request.source_volume_ids)?;
        let parameters = Parameters::read(&request.parameters)?;
        let group = self
            .lanes
            .slow(&self.groups, Call::taking("CreateVolumeGroupSnapshot", &id, &sources), move |groups| {
                groups.create(&id, &sources, parameters.copy)
            })
            .await?;
        Ok(Response::new(CreateVolumeGroupSnapshotResponse { group_snapshot: Some(wire_group(&group)) }))
    }

    async fn delete_volume_group_snapshot(
        &self,
        request: Request<DeleteVolumeGroupSnapshotRequest>,
    ) -> Answer<DeleteVolumeGroupSnapshotResponse> {
        let request = request.into_inner();
        if let Some(id) = id_or_nothing("group_snapshot_id", &request.group_snapshot_id)? {
            self.lanes
                .run(&self.groups, Call::of("DeleteVolumeGroupSnapshot", &id), move |groups| {
                    groups.delete(&id, &request.snapshot_ids)
                })
                .await?;
        }
        Ok(Response::new(DeleteVolumeGroupSnapshotResponse {}))
    }

    async fn get_volume_group_snapshot(
        &self,
        request: Request<GetVolumeGroupSnapshotRequest>,
    ) -> Answer<GetVolumeGroupSnapshotResponse> {
        let request = request.into_inner();
        let Some(id) = id_or_nothing("group_snapshot_id", &request.group_snapshot_id)? else {
            let text = format!("there is no group snapshot {:?}", request.group_snapshot_id);
            return Err(Error::new(Kind::NotFound, text).into());
        };
        let group = self
            .lanes
            .run(&self.groups, Call::of("GetVolumeGroupSnapshot", &id), move |groups| {
                groups.need(&id, &request.snapshot_ids)
            })
            .await?;
        Ok(Response::new(GetVolumeGroupSnapshotResponse { group_snapshot: Some(wire_group(&group)) }))
    }
}
