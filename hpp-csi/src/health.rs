//! The health endpoint, as livenessprobe has it: `/healthz` asks the driver's own socket for a Probe, as any caller would,
//! and says `ok` or why not. Not here: volumes' conditions, which no restart mends.

use std::path::PathBuf;
use std::time::Duration;

use api::names::HEALTH_PATH;
use serve::http::Route;
use tokio::runtime::Handle;

use crate::socket;
use csi::ProbeRequest;
use csi::identity_client::IdentityClient;

/// How long a Probe may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// What is served.
pub(crate) fn routes(socket: PathBuf, runtime: Handle) -> Vec<Route> {
    let body = move || runtime.block_on(probe(socket.clone())).map(|()| "ok".to_owned());
    vec![Route { path: HEALTH_PATH, body: Box::new(body) }]
}

async fn probe(path: PathBuf) -> Result<(), String> {
    let asked = async {
        let channel =
            socket::connect(path, PATIENCE).await.map_err(|error| format!("no connection: {error}"))?;
        let answer = IdentityClient::new(channel).probe(ProbeRequest {}).await;
        let answer = answer.map_err(|status| format!("Probe failed: {}", status.message()))?;
        if answer.into_inner().ready == Some(false) { Err("not ready".to_owned()) } else { Ok(()) }
    };
    tokio::time::timeout(PATIENCE, asked).await.unwrap_or_else(|_| Err("no answer in time".to_owned()))
}
