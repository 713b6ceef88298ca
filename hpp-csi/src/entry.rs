//! Wires a process together: arguments, logs, the driver and its worker, the sockets, the signals. Not here: any decision
//! about a volume.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use serve::http::ServeError;
use serve::signals::Signal;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tonic::transport::Server;

use crate::apply::recover::recover;
use crate::args::Args;
use crate::call::{Lanes, THREADS};
use crate::config::{Config, Metrics};
use crate::controller::ControllerService;
use crate::driver::Driver;
use crate::error::{Error, Kind, Result};
use crate::group::GroupService;
use crate::identity::IdentityService;
use crate::metadata::MetadataService;
use crate::node::NodeService;
use crate::pool_states::StatesService;
use crate::pools::Pools;
use crate::socket::Socket;
use crate::{health, metrics, mounter, publications, registration, worker};
use csi::controller_server::ControllerServer;
use csi::group_controller_server::GroupControllerServer;
use csi::identity_server::IdentityServer;
use csi::node_server::NodeServer;
use csi::pools::pools_server::PoolsServer;
use csi::snapshot_metadata_server::SnapshotMetadataServer;

/// Longest message that is taken in; CSI's fields are small.
const MESSAGE_MAX: usize = 1 << 20;
/// Grace for requests in progress after SIGTERM; the kubelet kills after 30 seconds.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(20);

/// The program: arguments in (its name first), exit code out.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if arguments.get(1).is_some_and(|name| name == mounter::NAME) {
        return mounter::run(arguments.into_iter().skip(1));
    }
    let args = match Args::parse_from_os(arguments) {
        Ok(args) => args,
        Err(error) => {
            // clap prints help to stdout, mistakes to stderr.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let result = args.config().and_then(|(config, logs)| {
        serve::logs::init(serve::logs::klog_level(logs.v), logs.json);
        serve(&config)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            serve::logs::init(serve::logs::klog_level(0), false);
            tracing::error!(error = %error.chain(), "the driver cannot run");
            ExitCode::from(if error.kind() == Kind::Invalid { 2 } else { 1 })
        }
    }
}

/// Serves until a signal comes.
fn serve(config: &Config) -> Result<()> {
    crate::latency::observe_syncs();
    let (driver, worker) = Driver::new(config, recover)?;
    // Before the first request: load the published paths, and open the pools.
    publications::recover(&driver.pools.all, &driver.published)?;
    worker::start(worker)?;
    let (stop, stopped) = watch::channel(false);
    serve::signals::watch(move |signal| {
        let signal = match signal {
            Signal::Terminate => "TERM",
            Signal::Interrupt => "INT",
            Signal::HangUp => "HUP",
        };
        tracing::info!(signal, "stopping");
        let _ = stop.send(true);
    })
    .map_err(|error| Error::io("watch for signals", error))?;
    // One thread takes and answers all calls: with more, each call is handed from one to the other on its way.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(THREADS)
        .enable_all()
        .build()
        .map_err(|error| Error::io("start the runtime", error))?;
    let result = runtime.block_on(answer(config, driver, stopped));
    // Calls that still work on the disk come to their end.
    drop(runtime);
    result
}

async fn answer(config: &Config, driver: Driver, stopped: watch::Receiver<bool>) -> Result<()> {
    let socket = Socket::listen(&config.socket)
        .await
        .map_err(|error| Error::io(format!("listen on {}", config.socket.display()), error))?;
    tracing::info!(socket = %config.socket.display(), node = %config.node, driver = config.driver, "serving CSI");
    let Driver { pools, published, volumes, snapshots, groups, blocks, staging, publishing, expansion } =
        driver;
    serve_endpoints(config, &pools);
    let (name, version) = (config.driver.clone(), config.version.clone());
    let lanes = Lanes::default();
    let identity = IdentityServer::new(IdentityService { name, version, pools: pools.clone() });
    let controller = ControllerServer::new(ControllerService {
        pools: pools.clone(),
        published: published.clone(),
        volumes,
        snapshots,
        lanes: lanes.clone(),
    });
    let group =
        GroupControllerServer::new(GroupService { pools: pools.clone(), groups, lanes: lanes.clone() });
    let metadata = SnapshotMetadataServer::new(MetadataService { blocks, lanes });
    let states = PoolsServer::new(StatesService { pools: pools.clone() });
    let node = NodeServer::new(NodeService { pools, published, staging, publishing, expansion });
    let router = Server::builder()
        .add_service(identity.max_decoding_message_size(MESSAGE_MAX))
        .add_service(controller.max_decoding_message_size(MESSAGE_MAX))
        .add_service(group.max_decoding_message_size(MESSAGE_MAX))
        .add_service(metadata.max_decoding_message_size(MESSAGE_MAX))
        .add_service(states.max_decoding_message_size(MESSAGE_MAX))
        .add_service(node.max_decoding_message_size(MESSAGE_MAX));
    let mut stopping = stopped.clone();
    let registered = async {
        if let Some(registration) = &config.registration {
            registration::serve(registration, &config.driver, stopped.clone()).await;
        }
    };
    let served = socket.serve(router, async move {
        // An error means that the sender is gone: stop as well.
        drop(stopping.wait_for(|stopped| *stopped).await);
    });
    let mut ended = stopped.clone();
    let too_late = async {
        drop(ended.wait_for(|stopped| *stopped).await);
        tokio::time::sleep(SHUTDOWN_GRACE).await;
    };
    tokio::select! {
        (served, ()) = async { tokio::join!(served, registered) } => {
            served.map_err(|error| Error::io("serve CSI", io::Error::other(error)))
        }
        () = too_late => {
            tracing::warn!("requests did not end in time and are aborted");
            Ok(())
        }
    }
}

/// Starts the servers other than CSI. Volumes matter more than monitoring: a failure is a warning.
fn serve_endpoints(config: &Config, pools: &Arc<Pools>) {
    let told = |what: &str, served: std::result::Result<SocketAddr, ServeError>| match served {
        Ok(address) => tracing::info!(%address, "serving {what}"),
        Err(error) => {
            let because = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(%error, because, "{what} is not served");
        }
    };
    if let Some(address) = config.health {
        let routes = health::routes(config.socket.clone(), Handle::current());
        told("health", serve::http::serve(address, None, None, routes));
    }
    if let Some(Metrics { address, identity }) = &config.metrics {
        told(
            "metrics",
            serve::http::serve(
                *address,
                Some(identity),
                None,
                metrics::routes(pools.clone(), config.state.clone()),
            ),
        );
    }
}
