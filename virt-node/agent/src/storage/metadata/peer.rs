//! Connections to the agents of other nodes. Not here: what they are asked.

use std::path::Path;
use std::sync::Arc;

use api::hostpath::METADATA_PORT;
use cluster::{Client, Resource, Scope};
use csi::snapshotmetadata::snapshot_metadata_client::SnapshotMetadataClient;
use serde::Deserialize;
use serve::peer;
use serve::tls::client_config;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

const PODS: Resource = Resource::namespaced("", "v1", "pods");
/// Label of agents.
const LABEL: &str = "kubevirt.io=virt-handler";
/// Name in agents' certificates.
const NAME: &str = "virt-handler";

#[derive(Deserialize)]
struct Pod {
    #[serde(default)]
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: String,
    #[serde(rename = "podIP")]
    pod_ip: String,
}

/// A client of the agent of a node.
pub(super) async fn connect(
    client: &Client,
    namespace: &str,
    node: &str,
    authorities: &Path,
) -> Result<SnapshotMetadataClient<Channel>, Status> {
    let unavailable =
        |error: &dyn std::fmt::Display| Status::unavailable(format!("the agent of node {node}: {error}"));
    let scope = Scope::all().namespace(namespace).labels(LABEL).fields(&format!("spec.nodeName={node}"));
    let pods: Vec<Pod> = client.list(PODS, &scope).await.map_err(|error| unavailable(&error.chain()))?;
    let running = pods.into_iter().find(|pod| pod.status.phase == "Running" && !pod.status.pod_ip.is_empty());
    let address = running.ok_or_else(|| unavailable(&"no pod of it runs"))?.status.pod_ip;
    let authorities = tokio::fs::read_to_string(authorities).await.map_err(|error| unavailable(&error))?;
    let mut tls = client_config(&authorities, None).map_err(|error| unavailable(&error))?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let tls = Arc::new(tls);
    let connector = tower::service_fn(move |_| {
        let (address, tls) = (address.clone(), Arc::clone(&tls));
        async move { peer::secure(peer::dial(&address, METADATA_PORT).await?, NAME, tls).await }
    });
    let channel = Endpoint::from_static("http://virt-handler").connect_with_connector(connector).await;
    Ok(SnapshotMetadataClient::new(channel.map_err(|error| unavailable(&::error::chain(&error)))?))
}
