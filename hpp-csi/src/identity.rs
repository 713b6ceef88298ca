//! CSI's Identity service.

use std::collections::HashMap;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::call::{Call, run};
use crate::pools::Pools;
use csi::identity_server::Identity;
use csi::plugin_capability::service::Type as Service;
use csi::plugin_capability::volume_expansion::Type as Expansion;
use csi::plugin_capability::{self, Type};
use csi::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};

/// The service.
#[derive(Debug)]
pub(crate) struct IdentityService {
    /// Name and version of the driver.
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) pools: Arc<Pools>,
}

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.name.clone(),
            vendor_version: self.version.clone(),
            manifest: HashMap::new(),
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = |service: Service| Type::Service(plugin_capability::Service { r#type: service.into() });
        let clones =
            run(&self.pools, Call::named("GetPluginCapabilities"), |pools| Ok(pools.can_clone())).await?;
        let with_clones = [Service::GroupControllerService, Service::SnapshotMetadataService]
            .into_iter()
            .filter(|_| clones);
        let expansion = plugin_capability::VolumeExpansion { r#type: Expansion::Online.into() };
        let types = [
            service(Service::ControllerService),
            service(Service::VolumeAccessibilityConstraints),
            Type::VolumeExpansion(expansion),
        ];
        let types = types.into_iter().chain(with_clones.map(service));
        let capabilities = types.map(|one| PluginCapability { r#type: Some(one) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    /// The driver is ready when it answers. A pool that is missing is its volumes' condition, and nothing that a restart
    /// would mend.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
