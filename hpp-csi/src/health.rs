//! The health endpoint of livenessprobe: `/healthz` sends a Probe to the driver's own socket, as any client would, and
//! answers `ok` or the cause of the failure. Not here: conditions of volumes, which a restart does not repair.

use std::path::PathBuf;
use std::time::Duration;

use api::names::HEALTH_PATH;
use serve::http::Route;
use tokio::runtime::Handle;

use crate::socket;
use csi::ProbeRequest;
use csi::identity_client::IdentityClient;

/// How long a Probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// The routes of the health endpoint.
pub(crate) fn routes(socket: PathBuf, runtime: Handle) -> Vec<Route> {
    let body = move || runtime.block_on(probe(socket.clone())).map(|()| "ok".to_owned());
    vec![Route { path: HEALTH_PATH, body: Box::new(body) }]
}

async fn probe(path: PathBuf) -> Result<(), String> {
    let asked = async {
        let channel =
            socket::connect(path, PROBE_TIMEOUT).await.map_err(|error| format!("no connection: {error}"))?;
        let answer = IdentityClient::new(channel).probe(ProbeRequest {}).await;
        let answer = answer.map_err(|status| format!("Probe failed: {}", status.message()))?;
        if answer.into_inner().ready == Some(false) { Err("not ready".to_owned()) } else { Ok(()) }
    };
    tokio::time::timeout(PROBE_TIMEOUT, asked).await.unwrap_or_else(|_| Err("no answer in time".to_owned()))
}
