//! Wires a process together: arguments, logs, the API server, the webhook, the signals. Not here: any decision about an
//! address.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::process::ExitCode;
use std::sync::Arc;

use kube::Client;
use rustls::pki_types::ServerName;
use serve::tls::Identity;
use tokio::net::TcpListener;

use crate::args::Args;
use crate::blocks::{Ledger, Me};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::guard::Guard;
use crate::peers::{self, Peers};
use crate::state::State;
use crate::webhook::Webhook;
use crate::{metrics, upkeep, watch};
use api::net::pool::Pool;

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
            tracing::error!(error = error.chain(), "the pool ends");
            ExitCode::from(if error.kind() == Kind::Invalid { 2 } else { 1 })
        }
    }
}

/// Serves until a signal comes, or another process of our name has taken over.
fn serve(config: Config) -> Result<()> {
    // The libraries below are told once which cryptography to use.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let (stop, stopped) = tokio::sync::watch::channel(false);
    serve::signals::watch(move |signal| {
        tracing::info!(?signal, "stopping");
        let _ = stop.send(true);
    })
    .map_err(|error| Error::caused(Kind::Internal, "cannot watch for signals", error))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::caused(Kind::Internal, "cannot start the runtime", error))?;
    runtime.block_on(work(config, stopped))
}

async fn work(config: Config, mut stopped: tokio::sync::watch::Receiver<bool>) -> Result<()> {
    let client = Client::try_default()
        .await
        .map_err(|error| Error::caused(Kind::Unreachable, "no way to the API server is configured", error))?;
    let incarnation = format!("{:016x}", u64::from_ne_bytes(upkeep::random()));
    let cursor = u64::from_ne_bytes(upkeep::random()) & ((1 << 48) - 1);
    let me = Me { name: config.name.clone(), incarnation, address: config.address.clone() };
    let pool = Pool::new(config.range, config.wait, cursor);
    let (state, mut collisions) = State::new(pool, Ledger::new(me), config.policy);
    let state = Arc::new(state);
    let stopped = async move { drop(stopped.wait_for(|stopped| *stopped).await) };
    if config.only_certificates {
        tokio::select! {
            () = upkeep::certificates(&client, &config, &state) => {}
            () = stopped => {}
        }
        return Ok(());
    }
    let [.., host, _] = config.hosts();
    let name = ServerName::try_from(host)
        .map_err(|error| Error::caused(Kind::Invalid, "the namespace is no name", error))?;
    let webhook = Arc::new(Webhook::new(state.clone(), Peers::new(name)));
    let (reviews, others) = (listen(config.webhook).await?, listen(config.peers).await?);
    if let Some(address) = config.metrics {
        let identity = Identity { only_tls13: config.only_tls13, ..Identity::self_signed() };
        let guard = Guard::new(client.clone());
        let guard: serve::http::Guard = Box::new(move |token| guard.judge(token));
        let served =
            serve::http::serve(address, Some(&identity), Some(guard), metrics::routes(state.clone()));
        if let Err(error) = served {
            // Addresses matter more than who counts them.
            let because = std::error::Error::source(&error).map(ToString::to_string);
            tracing::warn!(%error, because, "metrics are not served");
        }
    }
    tracing::info!(range = %config.range, webhook = %config.webhook, "starting");
    let told = async {
        while let Some(collision) = collisions.recv().await {
            // One replica tells.
            let first = state.lock().ledger.is_first();
            if first {
                watch::tell(&client, &collision).await;
            }
        }
    };
    tokio::select! {
        () = stopped => Ok(()),
        ended = upkeep::blocks(&client, &config, &state) => ended,
        ((), (), (), (), ()) = async {
            tokio::join!(
                watch::all(&client, &config, &state),
                upkeep::certificates(&client, &config, &state),
                webhook.serve(reviews),
                peers::serve(others, state.clone()),
                told,
            )
        } => Ok(()),
    }
}

/// Listens; `[::]` means all addresses, also where the kernel has no IPv6.
async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let mut bound = TcpListener::bind(address).await;
    if bound.is_err() && address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        bound = TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await;
    }
    bound.map_err(|error| Error::caused(Kind::Internal, format!("cannot listen on {address}"), error))
}
