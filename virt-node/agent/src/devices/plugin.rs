//! One device's plugin, as the kubelet calls it. Not here: its socket and registration ([`super::register`]).

use std::pin::Pin;

use csi::deviceplugin::device_plugin_server::DevicePlugin;
use csi::deviceplugin::{
    AllocateRequest, AllocateResponse, ContainerAllocateResponse, Device as Unit, DevicePluginOptions,
    DeviceSpec, Empty, ListAndWatchResponse, PreStartContainerRequest, PreStartContainerResponse,
    PreferredAllocationRequest, PreferredAllocationResponse,
};
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use super::{Device, Health, UNITS};

/// A device's plugin.
#[derive(Clone, Debug)]
pub(super) struct Plugin {
    pub(super) device: Device,
    pub(super) health: watch::Receiver<Health>,
    /// The device's place in [`Health`].
    pub(super) place: usize,
}

/// The list of units that the kubelet is sent.
fn units(device: Device, healthy: bool) -> ListAndWatchResponse {
    let health = if healthy { "Healthy" } else { "Unhealthy" };
    let unit = |number| Unit { id: format!("{}{number}", device.name), health: health.to_owned() };
    ListAndWatchResponse { devices: (0..UNITS).map(unit).collect() }
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
        let Self { device, mut health, place } = self.clone();
        let (sender, receiver) = tokio::sync::mpsc::channel(1);
        tokio::spawn(async move {
            loop {
                let healthy = health.borrow_and_update()[place];
                if sender.send(Ok(units(device, healthy))).await.is_err() {
                    return;
                }
                tokio::select! {
                    changed = health.wait_for(|all| all[place] != healthy) => {
                        if changed.is_err() {
                            // The agent ends, and the connection with it.
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
        let node = DeviceSpec {
            container_path: self.device.path.to_owned(),
            host_path: self.device.path.to_owned(),
            permissions: "mrw".to_owned(),
        };
        let container = ContainerAllocateResponse { devices: vec![node] };
        let containers = request.into_inner().container_requests.len();
        Ok(Response::new(AllocateResponse { container_responses: vec![container; containers] }))
    }

    async fn pre_start_container(
        &self,
        _: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        Ok(Response::new(PreStartContainerResponse::default()))
    }
}
