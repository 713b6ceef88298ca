//! Wires a process together: arguments, logs, the driver and its worker, the socket, the signals. Not here: any decision
//! about a volume.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;

use crate::args::Args;
use crate::config::Config;
use crate::controller::ControllerService;
use crate::driver::Driver;
use crate::error::{Error, Kind, Result};
use crate::identity::IdentityService;
use crate::node::NodeService;
use crate::proto::controller_server::ControllerServer;
use crate::proto::identity_server::IdentityServer;
use crate::proto::node_server::NodeServer;
use crate::{published, worker};

/// Longest message that is taken in; CSI's fields are small.
const MESSAGE_MAX: usize = 1 << 20;
/// Calls that work on the disk at once; more wait.
const THREADS: usize = 64;

/// The program: arguments in (its name first), exit code out.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
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
        serve(config)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            serve::logs::init(serve::logs::klog_level(0), false);
            tracing::error!(error = error.chain(), "the driver cannot run");
            ExitCode::from(if error.kind() == Kind::Invalid { 2 } else { 1 })
        }
    }
}

/// Serves until a signal comes.
fn serve(config: Config) -> Result<()> {
    let socket = config.socket.clone();
    let (driver, woken) = Driver::new(config)?;
    // Before anybody can ask: what is published, and whether the pools are there.
    published::recover(&driver)?;
    worker::start(driver.clone(), woken)?;
    let (stop, stopped) = watch::channel(false);
    serve::signals::watch(move |signal| {
        tracing::info!(?signal, "stopping");
        let _ = stop.send(true);
    })
    .map_err(|error| Error::io("watch for signals", error))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(THREADS)
        .enable_all()
        .build()
        .map_err(|error| Error::io("start the runtime", error))?;
    let result = runtime.block_on(answer(driver, &socket, stopped));
    // Calls that still work on the disk come to their end.
    drop(runtime);
    result
}

async fn answer(driver: Arc<Driver>, socket: &Path, mut stopped: watch::Receiver<bool>) -> Result<()> {
    let listener =
        listen(socket).map_err(|error| Error::io(format!("listen on {}", socket.display()), error))?;
    let ours = inode(socket).unwrap_or(0);
    tracing::info!(socket = %socket.display(), node = %driver.config.node, driver = driver.config.driver, "serving CSI");
    let identity = IdentityServer::new(IdentityService { driver: driver.clone() });
    let controller = ControllerServer::new(ControllerService { driver: driver.clone() });
    let node = NodeServer::new(NodeService { driver });
    let served = Server::builder()
        .add_service(identity.max_decoding_message_size(MESSAGE_MAX))
        .add_service(controller.max_decoding_message_size(MESSAGE_MAX))
        .add_service(node.max_decoding_message_size(MESSAGE_MAX))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move {
            // An error means that nobody is left who could stop us.
            drop(stopped.wait_for(|stopped| *stopped).await);
        })
        .await;
    // Another driver may be serving in our place already.
    if inode(socket).is_some_and(|now| now == ours) {
        drop(std::fs::remove_file(socket));
    }
    served.map_err(|error| Error::io("serve CSI", io::Error::other(error)))
}

fn inode(path: &Path) -> Option<u64> {
    std::fs::symlink_metadata(path).ok().map(|metadata| metadata.ino())
}

/// Listens on a socket that only its owner may use. It appears with these rights, in the place of what a process before
/// us left.
fn listen(socket: &Path) -> io::Result<UnixListener> {
    let mut name = socket.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    let fresh: PathBuf = socket.with_file_name(name);
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let listener = UnixListener::bind(&fresh)?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&fresh, socket)?;
    Ok(listener)
}
