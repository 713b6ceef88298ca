//! The CSI driver behind its Unix socket: connection, name, topology, capabilities. Not here: what is asked for.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi::controller_client::ControllerClient;
use csi::controller_service_capability::{Type, rpc};
use csi::group_controller_client::GroupControllerClient;
use csi::identity_client::IdentityClient;
use csi::node_client::NodeClient;
use csi::pools::pools_client::PoolsClient;
use csi::{ControllerGetCapabilitiesRequest, GetPluginInfoRequest, NodeGetInfoRequest};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};

use crate::error::{Error, Kind, Result};

/// How long a call may take; the driver finishes it in any case, and the next try finds the result.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two looks for a driver that does not answer.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// A driver that answers.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    channel: Channel,
    name: String,
    topology: HashMap<String, String>,
    several_writers: bool,
}

/// A channel to the driver at a socket. Its calls fail while the driver does not answer; one that restarts is connected to
/// again.
pub(super) fn channel(socket: &Path) -> Channel {
    let path: PathBuf = socket.to_owned();
    let connector = tower::service_fn(move |_| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    });
    // The address is never used: the connector knows the socket.
    Endpoint::from_static("http://localhost").timeout(TIMEOUT).connect_with_connector_lazy(connector)
}

impl Driver {
    /// Waits until the driver at the socket answers.
    pub(super) async fn wait(socket: &Path) -> Self {
        let mut reported = false;
        loop {
            match Self::connect(socket).await {
                Ok(driver) => return driver,
                Err(error) if !reported => {
                    reported = true;
                    tracing::info!(
                        socket = %socket.display(),
                        error = error.chain(),
                        "the CSI driver does not answer yet: claims of this node wait"
                    );
                }
                Err(_) => {}
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    async fn connect(socket: &Path) -> Result<Self> {
        let failed = |what: &str, error: Box<dyn std::error::Error + Send + Sync>| {
            Error::with(Kind::System, format!("{what} failed at {}", socket.display()), error)
        };
        let channel = channel(socket);
        let info = IdentityClient::new(channel.clone())
            .get_plugin_info(GetPluginInfoRequest {})
            .await
            .map_err(|error| failed("GetPluginInfo", error.into()))?;
        let node = NodeClient::new(channel.clone())
            .node_get_info(NodeGetInfoRequest {})
            .await
            .map_err(|error| failed("NodeGetInfo", error.into()))?;
        let capabilities = ControllerClient::new(channel.clone())
            .controller_get_capabilities(ControllerGetCapabilitiesRequest {})
            .await
            .map_err(|error| failed("ControllerGetCapabilities", error.into()))?;
        let several = i32::from(rpc::Type::SingleNodeMultiWriter);
        let several_writers = capabilities
            .into_inner()
            .capabilities
            .into_iter()
            .any(|capability| matches!(capability.r#type, Some(Type::Rpc(one)) if one.r#type == several));
        Ok(Self {
            channel,
            name: info.into_inner().name,
            topology: node.into_inner().accessible_topology.map(|here| here.segments).unwrap_or_default(),
            several_writers,
        })
    }

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The node's topology, as the driver reports it.
    pub(super) fn topology(&self) -> &HashMap<String, String> {
        &self.topology
    }

    /// Whether it distinguishes one writer on a node from several.
    pub(super) fn several_writers(&self) -> bool {
        self.several_writers
    }

    /// A client of its controller service.
    pub(super) fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(self.channel.clone())
    }

    /// A client of its pools' states, which hpp-csi serves and other drivers do not.
    pub(super) fn pools(&self) -> PoolsClient<Channel> {
        PoolsClient::new(self.channel.clone())
    }

    /// A client of its group controller service.
    pub(super) fn groups(&self) -> GroupControllerClient<Channel> {
        GroupControllerClient::new(self.channel.clone())
    }
}
