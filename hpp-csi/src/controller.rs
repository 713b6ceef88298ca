//! CSI's Controller service: wire types in, a call, wire types out. Not here: decisions (`plan`) and effects (`apply`).

use std::collections::HashMap;
use std::sync::Arc;

use prost_types::Timestamp;
use tonic::{Request, Response, Status};

use crate::apply::room::reported_capacity;
use crate::apply::snapshot::Snapshots;
use crate::apply::volume::{self, Volumes};
use crate::call::{Call, Lanes};
use crate::error::{Error, Kind};
use crate::id::Id;
use crate::pagination;
use crate::plan::volume::writers;
use crate::pool::{Open, Pool, Snapshot, Volume};
use crate::pools::Pools;
use crate::publications::Publications;
use crate::request::{self, Access, Attributes, Parameters, Range, Source};
use crate::{topology, volume_health};
use csi::controller_server::Controller;
use csi::controller_service_capability::{Rpc, Type, rpc};
use csi::*;

type Answer<T> = Result<Response<T>, Status>;

/// The service.
#[derive(Debug)]
pub(crate) struct ControllerService {
    pub(crate) pools: Arc<Pools>,
    pub(crate) published: Arc<Publications>,
    pub(crate) volumes: Arc<Volumes>,
    pub(crate) snapshots: Arc<Snapshots>,
    pub(crate) lanes: Lanes,
}

/// The id in a request that is satisfied when there is nothing of that name: `None` for what cannot be a name.
pub(crate) fn id_or_nothing(field: &str, text: &str) -> Result<Option<Id>, Error> {
    if text.is_empty() {
        return Err(Error::new(Kind::Invalid, format!("{field} is missing")));
    }
    Ok(Id::read(text))
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Nanoseconds since 1970.
pub(crate) fn timestamp(nanoseconds: u64) -> Timestamp {
    let (seconds, nanos) = (nanoseconds / 1_000_000_000, nanoseconds % 1_000_000_000);
    Timestamp { seconds: signed(seconds), nanos: i32::try_from(nanos).unwrap_or(0) }
}

pub(crate) fn wire_snapshot(snapshot: &Snapshot) -> csi::Snapshot {
    let record = &snapshot.record;
    csi::Snapshot {
        size_bytes: signed(record.capacity),
        snapshot_id: snapshot.id.to_string(),
        source_volume_id: record.source.clone(),
        creation_time: Some(timestamp(record.created)),
        ready_to_use: true,
        group_snapshot_id: record.group.clone().unwrap_or_default(),
    }
}

fn wire_volume(node: &Id, open: &Open<'_>, volume: &Volume) -> csi::Volume {
    let used = open.known.book().volumes.get(&volume.id).map_or(0, |line| line.used);
    let capacity = volume.record.as_ref().map_or(used, |record| record.capacity);
    csi::Volume {
        capacity_bytes: signed(reported_capacity(open, volume.shape, capacity)),
        volume_id: volume.id.to_string(),
        volume_context: HashMap::new(),
        content_source: None,
        accessible_topology: topology::of_volume(node, open.pool.config.shared),
    }
}

/// A volume as it is listed: one that cannot be used is, too, and is ill.
fn listed(node: &Id, open: &Open<'_>, id: &Id) -> crate::error::Result<Option<list_volumes_response::Entry>> {
    let (volume, condition) = match open.volume(id) {
        Ok(None) => return Ok(None),
        Ok(Some(volume)) => (wire_volume(node, open, &volume), volume_health::quick(open, &volume)?),
        Err(error) if error.kind() == Kind::Internal => {
            let accessible_topology = topology::of_volume(node, open.pool.config.shared);
            let volume = csi::Volume { volume_id: id.to_string(), accessible_topology, ..Default::default() };
            (volume, volume_health::Condition { abnormal: true, message: error.chain() })
        }
        Err(error) => return Err(error),
    };
    Ok(Some(list_volumes_response::Entry {
        volume: Some(volume),
        status: Some(list_volumes_response::VolumeStatus {
            published_node_ids: Vec::new(),
            volume_condition: Some(wire_condition(condition)),
        }),
    }))
}

fn wire_condition(condition: volume_health::Condition) -> VolumeCondition {
    VolumeCondition { abnormal: condition.abnormal, message: condition.message }
}

/// Understands a CreateVolume.
fn parse(node: &Id, request: CreateVolumeRequest) -> Result<volume::Request, Error> {
    let id = Id::parse("name", &request.name)?;
    let capabilities = request::capabilities(request.volume_capabilities)?;
    let parameters = Parameters::read(&request.parameters)?;
    let range = Range::try_from(request.capacity_range)?;
    let source = request.volume_content_source.map(Source::try_from).transpose()?;
    let attributes = Attributes::read(&request.mutable_parameters)?;
    if let Some(wanted) = request.accessibility_requirements {
        let mut all = wanted.requisite.iter().chain(&wanted.preferred).peekable();
        if all.peek().is_some() && all.all(|topology| topology::is_elsewhere(node, topology)) {
            return Err(Error::new(
                Kind::Exhausted,
                format!("the requested topology excludes {node}, the node of this driver"),
            ));
        }
    }
    Ok(volume::Request { id, capabilities, parameters, range, source, attributes, inline: false })
}

#[tonic::async_trait]
impl Controller for ControllerService {
    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Answer<CreateVolumeResponse> {
        let request = request.into_inner();
        let volume_context = request.parameters.clone();
        let content_source = request.volume_content_source.clone();
        let parse = parse(&self.pools.node, request)?;
        let volume_id = parse.id.to_string();
        // Content of another volume, and blocks to allocate, take their time.
        let slow = parse.source.is_some() || parse.attributes.allocation.is_some();
        let call = move |volumes: &Volumes| volumes.create(&parse);
        let created = if slow {
            self.lanes.slow(&self.volumes, Call::of("CreateVolume", &volume_id), call).await?
        } else {
            self.lanes.run(&self.volumes, Call::of("CreateVolume", &volume_id), call).await?
        };
        Ok(Response::new(CreateVolumeResponse {
            volume: Some(csi::Volume {
                capacity_bytes: signed(created.capacity),
                volume_id,
                volume_context,
                content_source,
                accessible_topology: topology::of_volume(&self.pools.node, created.shared),
            }),
        }))
    }

    async fn delete_volume(&self, request: Request<DeleteVolumeRequest>) -> Answer<DeleteVolumeResponse> {
        if let Some(id) = id_or_nothing("volume_id", &request.into_inner().volume_id)? {
            self.lanes
                .run(&self.volumes, Call::of("DeleteVolume", &id), move |volumes| volumes.delete(&id))
                .await?;
        }
        Ok(Response::new(DeleteVolumeResponse {}))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<ControllerPublishVolumeRequest>,
    ) -> Answer<ControllerPublishVolumeResponse> {
        Err(Status::unimplemented("not supported: volumes are local to their node"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<ControllerUnpublishVolumeRequest>,
    ) -> Answer<ControllerUnpublishVolumeResponse> {
        Err(Status::unimplemented("not supported: volumes are local to their node"))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answer<ValidateVolumeCapabilitiesResponse> {
        let request = request.into_inner();
        let id = Id::parse("volume_id", &request.volume_id)?;
        let capabilities = request::capabilities(request.volume_capabilities.clone())?;
        Parameters::read(&request.parameters)?;
        Attributes::read(&request.mutable_parameters)?;
        request::bounded("volume_context", &request.volume_context)?;
        let misfit = self
            .lanes
            .run(&self.pools, Call::of("ValidateVolumeCapabilities", &id), move |pools| {
                let (open, volume) = pools.need_volume(&id)?;
                let block = volume.shape == crate::record::Shape::Block;
                if capabilities.iter().any(|capability| (capability.access == Access::Block) != block) {
                    return Ok(Some("the volume has the other access type".to_owned()));
                }
                Ok(writers(&open.pool.config, &capabilities).err().map(|error| error.to_string()))
            })
            .await?;
        if let Some(message) = misfit {
            return Ok(Response::new(ValidateVolumeCapabilitiesResponse { confirmed: None, message }));
        }
        Ok(Response::new(ValidateVolumeCapabilitiesResponse {
            confirmed: Some(validate_volume_capabilities_response::Confirmed {
                volume_context: request.volume_context,
                volume_capabilities: request.volume_capabilities,
                parameters: request.parameters,
                mutable_parameters: request.mutable_parameters,
            }),
            message: String::new(),
        }))
    }

    async fn list_volumes(&self, request: Request<ListVolumesRequest>) -> Answer<ListVolumesResponse> {
        let ListVolumesRequest { max_entries, starting_token } = request.into_inner();
        let (entries, next_token) = self
            .lanes
            .run(&self.pools, Call::named("ListVolumes"), move |pools| {
                let open_pools = pools.all.iter().map(Pool::open).collect::<Result<Vec<_>, _>>()?;
                let mut ids = Vec::new();
                for open in &open_pools {
                    ids.extend(open.volume_ids()?);
                }
                ids.sort();
                let (ids, next) = pagination::page(ids, &starting_token, max_entries)?;
                let mut entries = Vec::with_capacity(ids.len());
                for id in ids {
                    for open in &open_pools {
                        if let Some(entry) = listed(&pools.node, open, &id)? {
                            entries.push(entry);
                            break;
                        }
                    }
                }
                Ok((entries, next))
            })
            .await?;
        Ok(Response::new(ListVolumesResponse { entries, next_token }))
    }

    async fn get_capacity(&self, request: Request<GetCapacityRequest>) -> Answer<GetCapacityResponse> {
        let request = request.into_inner();
        let parameters = Parameters::read(&request.parameters)?;
        let elsewhere = request
            .accessible_topology
            .as_ref()
            .is_some_and(|topology| topology::is_elsewhere(&self.pools.node, topology));
        let (available, largest) = self
            .lanes
            .run(&self.pools, Call::named("GetCapacity"), move |pools| {
                // A class may name a pool that only other nodes have, and a pool may not be there: no room, then.
                let Ok(pool) = pools.pool(parameters.pool.as_deref()) else { return Ok((0, 0)) };
                if elsewhere {
                    return Ok((0, 0));
                }
                match pool.open() {
                    Ok(open) if open.read_only() => Ok((0, 0)),
                    Ok(open) => open.room().map(|room| (room.available(), room.largest())),
                    Err(error) if error.kind() == Kind::NotReady => Ok((0, 0)),
                    Err(error) => Err(error),
                }
            })
            .await?;
        Ok(Response::new(GetCapacityResponse {
            available_capacity: signed(available),
            maximum_volume_size: Some(signed(largest)),
            minimum_volume_size: Some(0),
        }))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answer<ControllerGetCapabilitiesResponse> {
        use rpc::Type as Can;
        let clones = self
            .lanes
            .run(&self.pools, Call::named("ControllerGetCapabilities"), |pools| Ok(pools.can_clone()))
            .await?;
        let always = [
            Can::CreateDeleteVolume,
            Can::GetVolume,
            Can::GetCapacity,
            Can::ListVolumes,
            Can::ExpandVolume,
            Can::ModifyVolume,
            Can::VolumeCondition,
            Can::SingleNodeMultiWriter,
        ];
        let with_clones = [Can::CreateDeleteSnapshot, Can::ListSnapshots, Can::GetSnapshot, Can::CloneVolume];
        let capabilities = always
            .into_iter()
            .chain(with_clones.into_iter().filter(|_| clones))
            .map(|can| ControllerServiceCapability { r#type: Some(Type::Rpc(Rpc { r#type: can.into() })) })
            .collect();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Answer<CreateSnapshotResponse> {
        let request = request.into_inner();
        let id = Id::parse("name", &request.name)?;
        let source = Id::parse("source_volume_id", &request.source_volume_id)?;
        let parameters = Parameters::read(&request.parameters)?;
        let snapshot = self
            .lanes
            .slow(
                &self.snapshots,
                Call::taking("CreateSnapshot", &id, std::slice::from_ref(&source)),
                move |snapshots| snapshots.create(&id, &source, parameters.copy),
            )
            .await?;
        Ok(Response::new(CreateSnapshotResponse { snapshot: Some(wire_snapshot(&snapshot)) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Answer<DeleteSnapshotResponse> {
        if let Some(id) = id_or_nothing("snapshot_id", &request.into_inner().snapshot_id)? {
            self.lanes
                .run(&self.snapshots, Call::of("DeleteSnapshot", &id), move |snapshots| snapshots.delete(&id))
                .await?;
        }
        Ok(Response::new(DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(&self, request: Request<ListSnapshotsRequest>) -> Answer<ListSnapshotsResponse> {
        let request = request.into_inner();
        let (entries, next_token) = self
            .lanes
            .run(&self.pools, Call::named("ListSnapshots"), move |pools| {
                let open_pools = pools.all.iter().map(Pool::open).collect::<Result<Vec<_>, _>>()?;
                let mut found = std::collections::BTreeMap::new();
                for open in &open_pools {
                    let ids = match request.snapshot_id.as_str() {
                        "" => open.snapshot_ids()?,
                        one => Id::read(one).into_iter().collect(),
                    };
                    for id in ids {
                        let snapshot = match open.snapshot(&id) {
                            Ok(Some(snapshot)) => snapshot,
                            Ok(None) => continue,
                            // The volume is not ready for any use; every call for it returns the cause.
                            Err(error)
                                if error.kind() == Kind::Internal && request.snapshot_id.is_empty() =>
                            {
                                tracing::warn!(error = %error.chain(), "a snapshot is not listed");
                                continue;
                            }
                            Err(error) => return Err(error),
                        };
                        let source = &request.source_volume_id;
                        if source.is_empty() || *source == snapshot.record.source {
                            found.insert(id, snapshot);
                        }
                    }
                }
                let (ids, next) = pagination::page(
                    found.keys().cloned().collect(),
                    &request.starting_token,
                    request.max_entries,
                )?;
                let entries = ids.iter().filter_map(|id| found.get(id)).map(|snapshot| {
                    list_snapshots_response::Entry { snapshot: Some(wire_snapshot(snapshot)) }
                });
                Ok((entries.collect(), next))
            })
            .await?;
        Ok(Response::new(ListSnapshotsResponse { entries, next_token }))
    }

    async fn get_snapshot(&self, request: Request<GetSnapshotRequest>) -> Answer<GetSnapshotResponse> {
        let request = request.into_inner();
        let absent = |id: &str, node: &Id| {
            let shown: String = id.chars().take(128).collect();
            Error::new(Kind::NotFound, format!("there is no snapshot {shown:?} on {node}"))
        };
        let snapshot = match id_or_nothing("snapshot_id", &request.snapshot_id)? {
            None => return Err(absent(&request.snapshot_id, &self.pools.node).into()),
            Some(id) => {
                self.lanes
                    .run(&self.pools, Call::of("GetSnapshot", &id), move |pools| {
                        match pools.snapshot(&id)? {
                            Some((_, snapshot)) => Ok(snapshot),
                            None => Err(absent(id.as_str(), &pools.node)),
                        }
                    })
                    .await?
            }
        };
        Ok(Response::new(GetSnapshotResponse { snapshot: Some(wire_snapshot(&snapshot)) }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Answer<ControllerExpandVolumeResponse> {
        let request = request.into_inner();
        let id = Id::parse("volume_id", &request.volume_id)?;
        let range =
            request.capacity_range.ok_or_else(|| Error::new(Kind::Invalid, "capacity_range is missing"))?;
        let range = Range::try_from(Some(range))?;
        let (capacity, node_expansion_required) = self
            .lanes
            .slow(&self.volumes, Call::of("ControllerExpandVolume", &id), move |volumes| {
                volumes.expand(&id, range)
            })
            .await?;
        Ok(Response::new(ControllerExpandVolumeResponse {
            capacity_bytes: signed(capacity),
            node_expansion_required,
        }))
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Answer<ControllerGetVolumeResponse> {
        let id = Id::parse("volume_id", &request.into_inner().volume_id)?;
        let published = self.published.clone();
        let answer = self
            .lanes
            .run(&self.pools, Call::of("ControllerGetVolume", &id), move |pools| {
                let (open, volume) = pools.need_volume(&id)?;
                let published = published.is_anywhere(&id);
                Ok(ControllerGetVolumeResponse {
                    volume: Some(wire_volume(&pools.node, &open, &volume)),
                    status: Some(controller_get_volume_response::VolumeStatus {
                        published_node_ids: published.then(|| pools.node.to_string()).into_iter().collect(),
                        volume_condition: Some(wire_condition(volume_health::of(&open, &volume)?)),
                    }),
                })
            })
            .await?;
        Ok(Response::new(answer))
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Answer<ControllerModifyVolumeResponse> {
        let request = request.into_inner();
        let id = Id::parse("volume_id", &request.volume_id)?;
        let attributes = Attributes::read(&request.mutable_parameters)?;
        self.lanes
            .slow(&self.volumes, Call::of("ControllerModifyVolume", &id), move |volumes| {
                volumes.modify(&id, attributes)
            })
            .await?;
        Ok(Response::new(ControllerModifyVolumeResponse {}))
    }
}
