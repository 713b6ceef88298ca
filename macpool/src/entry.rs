//! Wires a process together: arguments, logs, the API server, the webhook, the signals.
//!
//! ```text
//!  start ─► everything is loaded, or STARTUP_GRACE is over ─► the webhook's port is open
//!  SIGTERM ─► not ready any more ─► RELEASE_TIMEOUT: still answered ─► no new connections, DRAIN at most ─► our blocks are others' ─► 0
//! ```
//!
//! All of it takes less than the 5 seconds that upstream's manifest gives. A second signal ends it at once.
//!
//! Not here: any decision about an address.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use cluster::Client;
use rustls::pki_types::ServerName;
use serve::tls::Identity;
use tokio::net::TcpListener;
use tokio::sync::watch::{Receiver, channel};

use crate::args::Args;
use crate::blocks::{Ledger, Me};
use crate::config::{Config, Role};
use crate::error::{Error, Kind, Result};
use crate::metrics_auth::MetricsAuth;
use crate::peers::{self, Peers};
use crate::state::State;
use crate::tls::InUse;
use crate::webhook::Webhook;
use crate::{metrics, store, watch};
use api::net::pool::Pool;

/// How long the webhook's port stays closed while the replica is not loaded: refused callers can ask another replica. Then it
/// is opened anyway, for liveness probes.
const STARTUP_GRACE: Duration = Duration::from_secs(10);
/// How long reviews are answered after readiness ends: the Service follows within a second or two.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long reviews may take that are on their way then.
const DRAIN: Duration = Duration::from_millis(1500);
/// How long an answer of the API server may take.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long telling others that they may have our blocks may take.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(1);

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
    let result = args.config().and_then(|(config, level)| {
        serve::logs::init(serve::logs::klog_level(level), false);
        serve(config)
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            serve::logs::init(serve::logs::klog_level(0), false);
            tracing::error!(error = error.chain(), "macpool failed");
            ExitCode::from(if error.kind() == Kind::Invalid { 2 } else { 1 })
        }
    }
}

/// Serves until a signal comes, or another process of our name has taken over.
fn serve(config: Config) -> Result<()> {
    // The libraries below get their provider of cryptography once.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let (stop, stopped) = channel(0);
    serve::signals::watch(move |signal| {
        tracing::info!(?signal, "stopping");
        stop.send_modify(|signals| *signals += 1);
    })
    .map_err(|error| Error::with(Kind::Internal, "cannot watch for signals", error))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::with(Kind::Internal, "cannot start the runtime", error))?;
    let ended = runtime.block_on(async {
        let mut twice = stopped.clone();
        tokio::select! {
            ended = work(config, stopped) => ended,
            () = signals(&mut twice, 2) => Ok(()),
        }
    });
    // Nothing that still runs is waited for.
    runtime.shutdown_background();
    ended
}

/// Waits for so many signals.
async fn signals(stopped: &mut Receiver<u32>, count: u32) {
    drop(stopped.wait_for(|signals| *signals >= count).await);
}

/// A client by `KUBECONFIG`, or by the pod's ServiceAccount.
fn client() -> cluster::Result<Client> {
    let mut config = cluster::Config::load(None, None)?;
    config.timeout = TIMEOUT;
    Client::new(&config, "macpool")
}

async fn work(config: Config, mut stopped: Receiver<u32>) -> Result<()> {
    let client =
        client().map_err(|error| Error::with(Kind::Unreachable, "no API server is configured", error))?;
    let incarnation = format!("{:016x}", u64::from_ne_bytes(store::random()));
    let cursor = u64::from_ne_bytes(store::random()) & ((1 << 48) - 1);
    let me = Me { name: config.name.clone(), incarnation, address: config.address.clone() };
    let Role::Addresses(range) = config.duty else {
        let certificates = InUse::default();
        tokio::select! {
            () = store::certificates(&client, &config, &certificates) => {}
            () = signals(&mut stopped, 1) => {}
        }
        return Ok(());
    };
    let pool = Pool::new(range, config.wait, cursor);
    let state = Arc::new(State::new(pool, Ledger::new(me), config.policy));
    let [.., host, _] = config.hosts();
    let name = ServerName::try_from(host)
        .map_err(|error| Error::with(Kind::Invalid, "the namespace is not a DNS name", error))?;
    let webhook = Arc::new(Webhook::new(state.clone(), Peers::new(name)));
    let others = listen(config.peers)?;
    serve_metrics(&client, &config, &state);
    tracing::info!(%range, webhook = %config.webhook, "starting");
    let (close, closing) = channel(false);
    let reviewed = async {
        let _either = tokio::time::timeout(STARTUP_GRACE, state.ready()).await;
        let reviews = listen(config.webhook)?;
        webhook.serve(reviews, closing).await;
        Ok(())
    };
    let answered = async {
        tokio::select! {
            ended = reviewed => ended,
            () = async {
                signals(&mut stopped, 1).await;
                state.leave();
                // The API server stops sending reviews in this time.
                tokio::time::sleep(if state.is_ready() { RELEASE_TIMEOUT } else { Duration::ZERO }).await;
                close.send_replace(true);
                tokio::time::sleep(DRAIN).await;
            } => Ok(()),
        }
    };
    let ended = tokio::select! {
        ended = answered => ended,
        ended = store::blocks(&client, &config, &state) => ended,
        ((), (), (), ()) = async {
            tokio::join!(
                watch::all(&client, &config, &state),
                store::certificates(&client, &config, &state.certificates),
                peers::serve(others, state.clone()),
                watch::report_collisions(&client, &config, &state),
            )
        } => Ok(()),
    };
    ended?;
    match tokio::time::timeout(SHUTDOWN_GRACE, store::leave(&client, &config, &state)).await {
        Ok(Ok(())) => tracing::info!("address blocks released"),
        Ok(Err(error)) => tracing::warn!(
            error = error.chain(),
            "cannot release the address blocks; peers take them over when the lease expires"
        ),
        Err(_) => {
            tracing::warn!("cannot release the address blocks; peers take them over when the lease expires")
        }
    }
    Ok(())
}

fn serve_metrics(client: &Client, config: &Config, state: &Arc<State>) {
    let Some(address) = config.metrics else { return };
    let crate::tls::TlsProfile { only_tls13, ciphers } = config.offer.clone();
    let identity = Identity { only_tls13, ciphers, ..Identity::self_signed() };
    let guard = MetricsAuth::new(client.clone());
    let guard: serve::http::Guard = Box::new(move |token| guard.authorize(token));
    let served = serve::http::serve(address, Some(&identity), Some(guard), metrics::routes(state.clone()));
    if let Err(error) = served {
        // Addresses matter more than metrics.
        let because = std::error::Error::source(&error).map(ToString::to_string);
        tracing::warn!(%error, because, "metrics are not served");
    }
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = serve::server::listen(address).and_then(TcpListener::from_std);
    listener.map_err(|error| Error::with(Kind::Internal, format!("cannot listen on {address}"), error))
}
