//! The kubelet's plugin registration, as node-driver-registrar does it: a socket in the kubelet's plugin registry. Over it
//! the kubelet asks for the driver's name and socket path, and reports whether it accepts them.
//!
//! A restarted kubelet finds the socket and asks again. When the registry has been emptied, the socket is recreated.
//!
//! It is not served by tonic, for the reason that [`crate::http2`] gives. The message distinguishes the two calls: GetInfo's
//! is empty. A status is empty only when it is a refusal without a message; it would be answered with fields that its answer
//! does not have, which clients ignore.
//!
//! At the limit of connections the one that is idle longest is evicted, so that idle ones never keep the kubelet out.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::Code;

use crate::config;
use crate::http2::{Connection, End};
use crate::socket::Socket;
use csi::registration::{PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use serve::server::{Limit, Slot};

/// The kubelet's name for what we are.
const TYPE: &str = "CSIPlugin";
/// The versions of CSI that the kubelet may take us for: it wants to see all of 1.x as this one.
const VERSIONS: [&str; 1] = ["1.0.0"];
/// Time between two looks at whether the socket is still there, and before trying again to make it.
const POLL_INTERVAL: Duration = Duration::from_secs(5);
/// Connections at once. The kubelet needs one, for milliseconds.
const CONNECTIONS: usize = 16;
/// Idle timeout of a connection. The kubelet closes its own after the status.
const SILENCE: Duration = Duration::from_secs(60);

struct Registrar {
    driver: String,
    endpoint: String,
}

impl Registrar {
    /// The answer to a call's message.
    fn answer(&self, message: &[u8]) -> Result<Vec<u8>, Code> {
        if message.is_empty() {
            return Ok(self.info().encode_to_vec());
        }
        let status = RegistrationStatus::decode(message).map_err(|_| Code::Internal)?;
        Ok(self.notified(&status).encode_to_vec())
    }

    fn info(&self) -> PluginInfo {
        PluginInfo {
            r#type: TYPE.to_owned(),
            name: self.driver.clone(),
            endpoint: self.endpoint.clone(),
            supported_versions: VERSIONS.map(str::to_owned).to_vec(),
        }
    }

    /// The kubelet tries again by itself, longer and longer apart: nothing is gained by ending the process, as the
    /// registrar does.
    fn notified(&self, status: &RegistrationStatus) -> RegistrationStatusResponse {
        if status.plugin_registered {
            tracing::info!(driver = self.driver, "the kubelet has registered the driver");
        } else {
            let error: String = status.error.chars().take(1000).collect();
            tracing::error!(driver = self.driver, error, "the kubelet does not register the driver");
        }
        RegistrationStatusResponse {}
    }
}

/// Serves the registration until `stopped`. The kubelet forgets the driver when the socket goes.
pub(crate) async fn serve(config: &config::Registration, driver: &str, mut stopped: watch::Receiver<bool>) {
    let registrar = Arc::new(Registrar { driver: driver.to_owned(), endpoint: config.endpoint.clone() });
    let mut told = false;
    while !*stopped.borrow() {
        match Socket::listen(&config.socket).await {
            Ok(socket) => {
                told = false;
                tracing::info!(socket = %config.socket.display(), endpoint = config.endpoint, "waiting for the kubelet");
                accept(&socket, &registrar, &mut stopped).await;
                socket.close();
            }
            Err(error) => {
                if !told {
                    let socket = config.socket.display();
                    tracing::error!(%socket, %error, "cannot listen for the kubelet; retrying");
                }
                told = true;
                tokio::select! {
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                }
            }
        }
    }
}

/// Answers callers until `stopped`, or until the socket is not where it was. A call is answered as soon as it is there:
/// none is cut short.
async fn accept(socket: &Socket, registrar: &Arc<Registrar>, stopped: &mut watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    let limit = Limit::new(CONNECTIONS);
    let mut look = tokio::time::interval(POLL_INTERVAL);
    loop {
        tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => return,
            _ = look.tick() => {
                if !socket.is_ours() {
                    tracing::warn!("the registration socket was removed");
                    return;
                }
            }
            Some(_) = connections.join_next() => {}
            accepted = socket.accept() => match accepted {
                Ok(stream) => {
                    // No connection is ever busy, so this waits for the end of one at most.
                    let slot = limit.enter().await;
                    connections.spawn(serve_connection(stream, registrar.clone(), slot));
                }
                Err(error) => {
                    tracing::warn!(%error, "the registration socket is not served");
                    tokio::time::sleep(POLL_INTERVAL).await;
                }
            },
        }
    }
}

/// Answers the calls of one connection until it ends or is evicted.
async fn serve_connection(stream: UnixStream, registrar: Arc<Registrar>, slot: Arc<Slot>) {
    tokio::select! {
        () = slot.evicted() => {}
        () = answer_all(stream, &registrar, &slot) => {}
    }
}

async fn answer_all(mut stream: UnixStream, registrar: &Registrar, slot: &Slot) {
    let (mut connection, mut output) = Connection::new();
    let mut buffer = [0; 4096];
    loop {
        if !matches!(tokio::time::timeout(SILENCE, stream.write_all(&output)).await, Ok(Ok(()))) {
            return;
        }
        output.clear();
        let Ok(Ok(read @ 1..)) = tokio::time::timeout(SILENCE, stream.read(&mut buffer)).await else {
            return;
        };
        slot.touch();
        let taken = connection.receive(&buffer[..read], &mut output, |message| registrar.answer(message));
        if let Err(end) = taken {
            match end {
                End::Served => {}
                End::Broken(why) => {
                    tracing::warn!(why, "a request on the registration socket is invalid")
                }
            }
            drop(tokio::time::timeout(SILENCE, stream.write_all(&output)).await);
            return;
        }
    }
}
