//! A plugin's socket and its registration with the kubelet, again after each restart of the kubelet: that removes all
//! sockets of its directory and forgets every plugin.

use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use csi::deviceplugin::device_plugin_server::DevicePluginServer;
use csi::deviceplugin::registration_client::RegistrationClient;
use csi::deviceplugin::{DevicePluginOptions, RegisterRequest};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{oneshot, watch};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};

use super::Offer;
use super::plugin::Plugin;
use crate::error::{Error, Kind, Result};

/// The kubelet's own socket in its directory.
const KUBELET: &str = "kubelet.sock";
/// Version of the API.
const VERSION: &str = "v1beta1";
/// How often the sockets are compared with those of the registration.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How long the kubelet may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The plugin to register, and the directory.
pub(super) struct Registration {
    pub(super) offer: Offer,
    /// The kubelet's directory of device plugins.
    pub(super) directory: PathBuf,
}

/// A file by what no other file has while it exists, and when it was made: a number is used again.
type Identity = Option<(u64, u64, i64, i64)>;

fn identity(path: &Path) -> Identity {
    let facts = std::fs::symlink_metadata(path).ok()?;
    Some((facts.dev(), facts.ino(), facts.ctime(), facts.ctime_nsec()))
}

impl Registration {
    /// Keeps the plugin registered, for ever. `tell` reports whether it is.
    pub(super) async fn keep(self, tell: &watch::Sender<bool>) {
        let mut failed = false;
        loop {
            match self.once(tell).await {
                Ok(()) => {
                    tracing::info!(
                        resource = self.offer.resource,
                        "the kubelet was restarted; registering again"
                    );
                    failed = false;
                }
                // The kubelet may be down for long: one line is enough.
                Err(error) if !failed => {
                    tracing::warn!(
                        resource = self.offer.resource,
                        error = error.chain(),
                        "cannot register the device plugin; retrying"
                    );
                    failed = true;
                }
                Err(_) => {}
            }
            tell.send_replace(false);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Serves and registers the plugin, and returns when the kubelet was restarted.
    async fn once(&self, tell: &watch::Sender<bool>) -> Result<()> {
        let path = self.directory.join(&self.offer.socket);
        let failed = |error: io::Error| {
            Error::with(Kind::Kubelet, format!("cannot listen on {}", path.display()), error)
        };
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            Ok(()) | Err(_) => {}
        }
        let listener = UnixListener::bind(&path).map_err(failed)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).map_err(failed)?;
        let plugin = Plugin(self.offer.clone());
        let (stop, stopped) = oneshot::channel::<()>();
        let served = Server::builder()
            .add_service(DevicePluginServer::new(plugin))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async {
                // Dropped at the end of this function, which means the same.
                drop(stopped.await);
            });
        let served = tokio::spawn(served);
        let kubelet = self.directory.join(KUBELET);
        let sockets = || (identity(&path), identity(&kubelet));
        let registered_with = sockets();
        let outcome = self.register(&kubelet).await;
        if outcome.is_ok() {
            tracing::info!(resource = self.offer.resource, "device plugin registered");
            tell.send_replace(true);
            while sockets() == registered_with && !served.is_finished() {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        }
        drop(stop);
        served.abort();
        outcome
    }

    async fn register(&self, kubelet: &Path) -> Result<()> {
        let to = kubelet.to_owned();
        let connect = tower::service_fn(move |_| {
            let to = to.clone();
            async move { UnixStream::connect(to).await.map(TokioIo::new) }
        });
        let refused = |error: Box<dyn std::error::Error + Send + Sync>| {
            Error::with(
                Kind::Kubelet,
                format!("the kubelet does not answer on its socket {}", kubelet.display()),
                error,
            )
        };
        // The address is never used: the connector knows the socket.
        let channel = Endpoint::from_static("http://localhost")
            .connect_timeout(TIMEOUT)
            .timeout(TIMEOUT)
            .connect_with_connector(connect)
            .await
            .map_err(|error| refused(error.into()))?;
        let request = RegisterRequest {
            version: VERSION.to_owned(),
            endpoint: self.offer.socket.clone(),
            resource_name: self.offer.resource.clone(),
            options: Some(DevicePluginOptions::default()),
        };
        let answer = RegistrationClient::new(channel).register(request).await;
        answer.map(drop).map_err(|error| {
            Error::with(
                Kind::Kubelet,
                format!("the kubelet refuses the device plugin {}", self.offer.resource),
                error,
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use csi::deviceplugin::Empty;
    use csi::deviceplugin::device_plugin_client::DevicePluginClient;
    use csi::deviceplugin::registration_server::{Registration as Kubelet, RegistrationServer};
    use tokio::io::AsyncWriteExt;
    use tonic::{Request, Response, Status};

    use super::*;
    use crate::devices::KVM;

    /// Accepts every plugin.
    struct Accepting;

    #[tonic::async_trait]
    impl Kubelet for Accepting {
        async fn register(
            &self,
            request: Request<RegisterRequest>,
        ) -> std::result::Result<Response<Empty>, Status> {
            assert_eq!(request.into_inner().resource_name, "devices.kubevirt.io/kvm");
            Ok(Response::new(Empty {}))
        }
    }

    async fn connected(socket: PathBuf) -> tonic::transport::Channel {
        let connect = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        Endpoint::from_static("http://localhost").connect_with_connector(connect).await.unwrap()
    }

    /// The full count of `make soak` is 1 000 idle connections and 256 that stop within a frame.
    #[tokio::test]
    async fn idle_connections_and_unfinished_frames_delay_no_call_of_the_kubelet() {
        let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
        let (idle, unfinished) = if soak { (1000, 256) } else { (200, 48) };
        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join(KUBELET)).unwrap();
        let kubelet = Server::builder().add_service(RegistrationServer::new(Accepting));
        tokio::spawn(kubelet.serve_with_incoming(UnixListenerStream::new(listener)));
        let (_units, units) = watch::channel(KVM.units(true));
        let plugin = Registration { offer: KVM.offer(units), directory: directory.path().to_owned() };
        let (tell, mut registered) = watch::channel(false);
        tokio::spawn(async move { plugin.keep(&tell).await });
        registered.wait_for(|yes| *yes).await.unwrap();

        let socket = directory.path().join("kubevirt-kvm.sock");
        let mut crowd = Vec::new();
        for number in 0..idle + unfinished {
            let mut stream = UnixStream::connect(&socket).await.unwrap();
            if number >= idle {
                stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x10\x00\x04\x00").await.unwrap();
            }
            crowd.push(stream);
        }
        let mut took = [Duration::ZERO; 11];
        for took in &mut took {
            let begun = Instant::now();
            let mut client = DevicePluginClient::new(connected(socket.clone()).await);
            client.get_device_plugin_options(Empty {}).await.unwrap();
            *took = begun.elapsed();
        }
        took.sort();
        let (median, longest) = (took[5], took[10]);
        println!(
            "{idle} idle connections, {unfinished} unfinished frames: device plugin {median:.1?} (longest {longest:.1?})"
        );
        // The machine may have other work: the median is the promise's.
        let bar = Duration::from_millis(if soak { 100 } else { 1000 });
        assert!(median < bar && longest < Duration::from_secs(4), "{took:?}");
    }
}
