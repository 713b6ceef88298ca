//! Wires a process together: arguments, logs, signals, the proxy or one of its commands. Not here: any decision about a
//! request.

use std::ffi::OsString;
use std::fs;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use api::upload::token::{Grant, Signer};
use serve::failure::{Error, Kind, Result};
use serve::tls::{Current, Reloading};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::args::{self, Args, Command};
use crate::cluster::Kubernetes;
use crate::config::Config;
use crate::downloads;
use crate::poll::{self, Polls};
use crate::push;
use crate::server::{LIMITS, Proxy, stalled};
use crate::token_keys::{TrustedKeys, now};

/// The program: arguments in (its name first), exit code out.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match serve::start::start(arguments, |args: &Args| args.log) {
        Ok(args) => args,
        Err(code) => return code,
    };
    let done = match args.command {
        None => proxy(args.serve),
        Some(Command::Token(token)) => sign(&token),
        Some(Command::Push(push)) => runtime().and_then(|runtime| runtime.block_on(push::push(push))),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = error.chain(), "uploadproxy failed");
            error.exit_code()
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|e| Error::with(Kind::Process, "cannot start the runtime", e))
}

fn proxy(serve: args::Serve) -> Result<()> {
    // First: until then the first process of a container ignores SIGTERM.
    let (stop, stopped) = watch::channel(0u32);
    serve::signals::watch(move |signal| {
        tracing::info!(?signal, "stopping; running uploads are completed");
        stop.send_modify(|count| *count += 1);
    })
    .map_err(|e| Error::with(Kind::Process, "cannot watch for signals", e))?;
    let config = Config::from_args(serve)?;
    let runtime = runtime()?;
    let ended = runtime.block_on(work(config, stopped));
    runtime.shutdown_background();
    ended
}

async fn work(config: Config, mut stopped: watch::Receiver<u32>) -> Result<()> {
    let trusted = TrustedKeys::new(config.keys)?;
    let unusable = |e| Error::with(Kind::Usage, "cannot set up TLS", e);
    let polls = match config.polls {
        Some((address, clients)) => {
            let tls = Reloading::new(config.identity.clone(), Some(clients), false).map_err(unusable)?;
            Some((listen(address, "polls")?, tls))
        }
        None => None,
    };
    let tls: Arc<dyn Current> =
        Reloading::with_profile(config.identity, None, false, Some(config.profile)).map_err(unusable)?;
    let downloads = match config.downloads {
        Some((address, folders)) => Some((listen(address, "downloads")?, folders)),
        None => None,
    };
    let lookup = Kubernetes::new(&config.reach, &config.bundle)?;
    let listener = listen(config.listen, "uploads")?;
    let passed = Arc::<AtomicU64>::default();
    let proxy = Arc::new(Proxy { lookup, trusted, own: config.own, passed: Arc::clone(&passed) });
    let (close, closing) = watch::channel(false);
    if let Some((listener, tls)) = polls {
        let polls = Arc::new(Polls::default());
        tokio::spawn(serve::server::serve(listener, Some(tls), poll::LIMITS, polls, closing.clone()));
    }
    if let Some((listener, folders)) = downloads {
        let router = Arc::new(downloads::router(folders));
        tokio::spawn(serve::server::serve(listener, None, downloads::LIMITS, router, closing.clone()));
    }
    let follower = Arc::clone(&proxy);
    tokio::spawn(async move { follower.trusted.follow().await });
    let serving = serve::server::serve(listener, Some(tls), LIMITS, proxy, closing);
    let mut serving = tokio::spawn(serving);
    let first = stopped.wait_for(|count| *count > 0);
    tokio::select! {
        _ = first => {}
        _ = &mut serving => return Ok(()),
    }
    let _ = close.send(true);
    // A second signal does not wait.
    tokio::select! {
        _ = stopped.wait_for(|count| *count > 1) => {}
        _ = serving => {}
        () = stalled(&passed) => tracing::warn!("uploads without progress are given up"),
    }
    Ok(())
}

fn listen(address: SocketAddr, requests: &str) -> Result<TcpListener> {
    let failed = |e| Error::with(Kind::Process, format!("cannot listen on {address}"), e);
    let listener = serve::server::listen(address).and_then(TcpListener::from_std).map_err(failed)?;
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "waiting for {requests}");
    }
    Ok(listener)
}

#[expect(clippy::print_stdout, reason = "the command's result")]
fn sign(token: &args::Token) -> Result<()> {
    let pem = fs::read_to_string(&token.key)
        .map_err(|e| Error::with(Kind::Usage, format!("cannot read {}", token.key.display()), e))?;
    let signed = Signer::from_pem(&pem)
        .and_then(|signer| signer.sign(&Grant::upload(&token.pvc), now(), token.lifetime))
        .map_err(|e| Error::with(Kind::Usage, format!("cannot use {}", token.key.display()), e))?;
    println!("{signed}");
    Ok(())
}
