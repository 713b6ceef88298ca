//! Wires the process together: arguments, logs, client, areas, signals.
//!
//! ```text
//!  start ─► probes ─► API server reached ─┬─► areas, each under its lease
//!                                         └─► aggregated APIs ─► certificates in use ─► ready
//!  SIGTERM ─► not ready ─► areas end what they do ─► leases released ─► 0
//! ```
//! A second signal ends the process at once.
//!
//! Not here: any decision about an object.

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use cluster::{Client, Events, Stop, stop};
use serde_json::Value;

use crate::area;
use crate::args::{Args, Command, HelmChart, LogFormat, Manifests, Run};
use crate::config::{self, Config};
use crate::context::Context;
use crate::error::{Error, Kind, Result};
use crate::health::{self, Health};
use crate::install;

/// How often an API server that does not answer yet is asked.
const RETRY: Duration = Duration::from_secs(2);

/// The program: arguments in (its name first), exit code out: 0 after a signal, 1 for failures, 2 for unusable
/// arguments.
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match Args::try_parse_from(arguments) {
        Ok(args) => args,
        Err(error) => {
            // clap prints help to stdout, mistakes to stderr.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let result = match &args.command {
        Command::Run(arguments) => {
            let level = serve::logs::klog_level(arguments.verbose.saturating_mul(2).saturating_add(1));
            serve::logs::init(level, arguments.log_format == LogFormat::Json);
            run(arguments)
        }
        Command::Manifests(arguments) => {
            serve::logs::init(serve::logs::klog_level(1), false);
            manifests(arguments)
        }
        Command::HelmChart(arguments) => {
            serve::logs::init(serve::logs::klog_level(1), false);
            chart(arguments)
        }
        Command::SupportBundle(arguments) => {
            serve::logs::init(serve::logs::klog_level(1), false);
            drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
            crate::bundle::run(arguments)
        }
        Command::Uninstall(arguments) => {
            serve::logs::init(serve::logs::klog_level(1), false);
            drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
            crate::removal::run(arguments)
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = error.chain(), "operator failed");
            ExitCode::from(if error.kind() == Kind::Usage { 2 } else { 1 })
        }
    }
}

fn manifests(arguments: &Manifests) -> Result<()> {
    let settings = config::settings(arguments)?;
    let objects = if arguments.custom_resources {
        install::custom_resources(&settings)
    } else {
        install::manifests(&settings)
    };
    let text = install::yaml(&objects)
        .map_err(|error| Error::with(Kind::System, "cannot write the manifests as YAML", error))?;
    match io::stdout().lock().write_all(text.as_bytes()) {
        // The reader has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(|error| Error::with(Kind::System, "cannot print the manifests", error)),
    }
}

fn chart(arguments: &HelmChart) -> Result<()> {
    let files = install::chart::files(env!("CARGO_PKG_VERSION"))
        .map_err(|error| Error::with(Kind::System, "cannot write the chart as YAML", error))?;
    for (path, text) in files {
        let path = arguments.output.join(path);
        let failed = |error| Error::with(Kind::System, format!("cannot write {}", path.display()), error);
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(failed)?;
        }
        std::fs::write(&path, text).map_err(failed)?;
    }
    Ok(())
}

fn run(arguments: &Run) -> Result<()> {
    let config = Arc::new(Config::new(arguments)?);
    // Libraries that build TLS configurations by themselves take this provider; a second call changes nothing.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let failed = |what: &'static str| move |error| Error::with(Kind::System, what, error);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(failed("cannot start the runtime"))?;
    let (stopper, stop) = stop::pair();
    let mut signals = 0;
    serve::signals::watch(move |signal| {
        signals += 1;
        tracing::info!(?signal, "stopping");
        stopper.stop();
        if signals > 1 {
            // Nothing is half written: objects are written by single requests.
            quit(signal);
        }
    })
    .map_err(failed("cannot watch for signals"))?;
    let ended = runtime.block_on(work(config, stop));
    // Running tasks are not waited for.
    runtime.shutdown_background();
    ended
}

#[expect(clippy::exit, reason = "a second signal ends the process without waiting for anything")]
fn quit(signal: serve::signals::Signal) {
    std::process::exit(signal.exit_code().into());
}

async fn work(config: Arc<Config>, stop: Stop) -> Result<()> {
    let reached = cluster::Config::load(config.kubeconfig.as_deref(), None);
    let client = reached.and_then(|reach| Client::new(&reach, "operator"));
    let client = client.map_err(|error| {
        Error::with(Kind::Cluster, "cannot read the cluster's address or credentials", error)
    })?;
    let events = Events::start(&client, "ferrovirt-operator", &config.identity);
    let health = Health::default();
    health::serve(&config, &health, &client, &events)?;
    let listener = crate::serve::listen(&config)?;
    tokio::select! {
        () = stop.wait() => return Ok(()),
        version = reachable(&client) => tracing::info!(version, areas = ?config.areas, "operator started"),
    }
    let context = Context {
        client: client.clone(),
        events: events.clone(),
        config: Arc::clone(&config),
        health: health.clone(),
    };
    let served = crate::serve::run(listener, &config, (&client, &events), &health, &stop);
    tokio::join!(area::run(&context, &stop), served, async {
        stop.wait().await;
        health.stop();
    });
    tracing::info!("operator stopped");
    Ok(())
}

/// Waits until the API server answers; gives its version.
async fn reachable(client: &Client) -> String {
    loop {
        match client.read::<Value>("/version").await {
            Ok(version) => return version["gitVersion"].as_str().unwrap_or("unknown").to_owned(),
            Err(error) => {
                tracing::warn!(error = error.chain(), "the API server does not answer yet; retrying")
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}
