//! One resource's plugin, as the kubelet calls it. Not here: its socket and registration ([`super::register`]).

use std::pin::Pin;

use csi::deviceplugin::device_plugin_server::DevicePlugin;
use csi::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device as Unit, DevicePluginOptions, Empty,
    ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse,
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::{Give, Offer, Units, node};

/// A resource's plugin.
#[derive(Clone, Debug)]
pub(super) struct Plugin(pub(super) Offer);

/// The list of units that the kubelet is sent.
fn listed(units: &Units) -> ListAndWatchResponse {
    let unit = |(id, healthy): (&String, &bool)| {
        let health = if *healthy { "Healthy" } else { "Unhealthy" };
        Unit { id: id.clone(), health: health.to_owned() }
    };
    ListAndWatchResponse { devices: units.iter().map(unit).collect() }
}

impl Plugin {
    /// The devices of these units, as a container gets them.
    fn give(&self, ids: &[String]) -> Result<ContainerAllocateResponse, String> {
        match &self.0.give {
            Give::Node(path) => Ok(ContainerAllocateResponse {
                devices: vec![node((*path).to_owned())],
                ..ContainerAllocateResponse::default()
            }),
            Give::Found(bus, devices) => bus.allocate(devices, &self.0.resource, ids),
        }
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let mut units = self.0.units.clone();
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let list = listed(&units.borrow_and_update());
                if sender.send(Ok(list)).await.is_err() {
                    return;
                }
                tokio::select! {
                    changed = units.changed() => {
                        if changed.is_err() {
                            // The agent ends, or the plugin, and the connection with it.
                            return;
                        }
                    }
                    () = sender.closed() => return,
                }
            }
        });
        Ok(Response::new(Box::pin(tokio_stream::wrappers::ReceiverStream::new(receiver))))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        Ok(Response::new(PreferredAllocationResponse::default()))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let containers = request.into_inner().container_requests;
        let given: Result<_, _> = containers.iter().map(|one| self.give(&one.device_ids)).collect();
        let container_responses = given.map_err(Status::failed_precondition)?;
        Ok(Response::new(AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse::default()))
    }
}
