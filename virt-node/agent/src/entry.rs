//! Wires the process together: arguments, logs, device plugins, the Node object, the reconciler, the servers, signals.
//!
//! ```text
//!  start ─► KVM tried ─► devices registered ─► VMIs and pods known ─► schedulable=true
//!  SIGTERM ─► schedulable=false ─► end; guests keep running
//! ```
//!
//! Not here: any decision about a guest.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster::Cache;
use http::StatusCode;
use serve::route::{Router, text};
use serve::server::{self, Limits};
use serve::tls::{Authorities, Certificate, Clients, Identity, Reloading};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::args::Args;
use crate::config::Config;
use crate::devices::{DEVICES, Health, KVM, Plugins, mediated_types, permitted};
use crate::error::{Error, Kind, Result};
use crate::guests::Site;
use crate::guests::controller::Controller;
use crate::networks::{self, Api, Networks};
use crate::node::plan::Facts;
use crate::node::{bridges, cpu, host, kvm, logs, network, report};
use crate::settings::Settings;
use crate::{metrics, settings, storage, streams};

/// How long the last write to the Node object may take.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// How often certificates that are not there yet are looked for.
const CERTIFICATES: Duration = Duration::from_secs(2);

/// The program: arguments in (its name first), exit code out.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match Args::parse_from_os(arguments) {
        Ok(args) => args,
        Err(error) => {
            // clap prints help to stdout and mistakes to stderr; a closed stream is no reason to fail.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let result = if args.show_network {
        show_network()
    } else {
        args.config().and_then(|(config, logs)| {
            serve::logs::init(serve::logs::klog_level(logs.verbosity), logs.json);
            serve(config)
        })
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            serve::logs::init(serve::logs::klog_level(0), false);
            tracing::error!(error = error.chain(), "the node agent failed");
            ExitCode::from(if error.kind() == Kind::Usage { 2 } else { 1 })
        }
    }
}

/// Prints the node's network and those of its guests.
fn show_network() -> Result<()> {
    let namespace = link::Namespace::open(&networks::Node::default().network)?;
    let mut found = network::show(&namespace)?;
    found["guests"] = network::guests()?.into();
    serde_json::to_writer(std::io::stdout().lock(), &found)
        .map_err(|error| Error::system("cannot print the node's network", error))
}

/// Serves until a signal comes.
fn serve(config: Config) -> Result<()> {
    // The libraries below use one provider of cryptography; a second call keeps the first.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let (stop, stopped) = watch::channel(false);
    serve::signals::watch(move |signal| {
        tracing::info!(?signal, "stopping; guests keep running");
        stop.send_replace(true);
    })
    .map_err(|error| Error::system("cannot watch for signals", error))?;
    if let Some((program, directory)) = &config.cni {
        command(Command::new(program).arg("install").arg(directory))?;
        tracing::info!(directory = %directory.display(), "network plugins installed");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|error| Error::system("cannot start the runtime", error))?;
    let ended = runtime.block_on(work(config, stopped));
    // Nothing that still runs is waited for: every step can be interrupted.
    runtime.shutdown_background();
    ended
}

async fn work(config: Config, stopped: watch::Receiver<bool>) -> Result<()> {
    let failed = |error| {
        Error::with(Kind::Cluster, "no API server is configured: run in a pod, or set KUBECONFIG", error)
    };
    let client =
        cluster::Config::load(None, None).and_then(|found| cluster::Client::new(&found, "virt-agent"));
    let client = client.map_err(failed)?;
    let ready = Arc::new(AtomicBool::new(false));
    let (facts, watched) = watch::channel(Facts::default());
    tokio::spawn(report::keep(client.clone(), config.node.clone(), watched));
    let settings = settings::follow(&client);
    tokio::spawn(logs::keep(settings.clone(), config.node.clone()));
    tokio::spawn(storage::run(client.clone(), config.storage(), std::future::pending()));
    let served = async {
        let (controller, _plugins) = start(&config, &client, settings, &ready, &facts).await?;
        listen(&config, &client, &controller, &ready, &stopped).await?;
        controller.run(std::future::pending()).await;
        Ok(())
    };
    let mut stopping = stopped.clone();
    let ended = tokio::select! {
        ended = served => ended,
        _ = stopping.wait_for(|stopped| *stopped) => Ok(()),
    };
    ready.store(false, Ordering::Relaxed);
    let last = Facts { schedulable: false, ..facts.borrow().clone() };
    match tokio::time::timeout(SHUTDOWN_GRACE, report::once(&client, &config.node, &last)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(
            error = error.chain(),
            "cannot mark the node unschedulable; new guests may still be placed here"
        ),
        Err(_) => tracing::warn!(
            "cannot mark the node unschedulable, the API server does not answer; new guests may still be placed here"
        ),
    }
    ended
}

/// Everything that has to be true before launcher pods may come.
async fn start(
    config: &Config,
    client: &cluster::Client,
    settings: Cache<Settings>,
    ready: &AtomicBool,
    facts: &watch::Sender<Facts>,
) -> Result<(Arc<Controller>, Plugins)> {
    let emulation = config.emulation;
    let capabilities = config.state.join("capabilities");
    let (cache, kubelet) = (capabilities.clone(), config.kubelet.clone());
    let found = tokio::task::spawn_blocking(move || {
        let kvm = kvm::is_usable(emulation, Path::new(host::EMULATOR));
        let found = host::capabilities(&cache);
        if found.is_none() {
            tracing::warn!(
                "no capabilities of QEMU in {}, which `virt-launcher capabilities` fills: the node has no labels for CPU \
                 models, and each launcher probes QEMU itself, which takes seconds",
                cache.display()
            );
        }
        let host = host::find(kvm)?;
        let labels = cpu::labels(found.as_ref(), kvm, &host.machine, &host::files(&kubelet));
        Ok::<_, Error>((kvm, host, labels))
    });
    let found = found.await.map_err(|error| Error::system("cannot inspect the node", error))?;
    let (kvm, host, labels) = found?;
    let health: Health = DEVICES.map(|device| if device == KVM { kvm } else { device.exists() });
    let mut plugins = Plugins::start(&config.device_plugins(), health);
    plugins.registered().await;
    let on_node = networks::Node::default();
    tokio::spawn(bridges::keep(client.clone(), config.node.clone(), on_node.network.clone()));
    let networks = Networks::new(
        Arc::new(Api(client.clone())),
        on_node,
        &config.state,
        config.plugins.clone(),
        config.shared.clone(),
    );
    let networks = tokio::task::spawn_blocking(move || networks.alone()).await;
    let networks = networks.map_err(|error| Error::system("cannot prepare the networks", error))??;
    // From here on no other agent is at work on the node: the files are this one's.
    let note = config.state.join("mediated-devices.json");
    tokio::spawn(mediated_types::keep(client.clone(), settings.clone(), config.node.clone(), note));
    let note = config.state.join("usb-sets.json");
    tokio::spawn(permitted::keep(settings.clone(), config.device_plugins(), note));
    let networks = Arc::new(networks);
    settings.synced().await;
    let site = Site { kubelet: config.kubelet.clone(), capabilities, host, networks, settings };
    let controller = Controller::start(client, site, &config.node).await;
    tracing::info!(kvm, node = config.node, "ready");
    ready.store(true, Ordering::Relaxed);
    facts.send_replace(Facts { schedulable: true, labels });
    Ok((controller, plugins))
}

/// Serves the operator, the kubelet's probes, Prometheus, and clients of changed blocks.
async fn listen(
    config: &Config,
    client: &cluster::Client,
    controller: &Arc<Controller>,
    ready: &Arc<AtomicBool>,
    stopped: &watch::Receiver<bool>,
) -> Result<()> {
    let bound = |address| -> Result<TcpListener> {
        let failed = |error: std::io::Error| Error::system(format!("cannot listen on {address}"), error);
        TcpListener::from_std(server::listen(address).map_err(failed)?).map_err(failed)
    };
    let (probes, operator) = (bound(config.health)?, bound(config.listen)?);
    let probed = Arc::clone(ready);
    let health = Router::new().get("/healthz", move |_| {
        let ready = probed.load(Ordering::Relaxed);
        async move {
            if ready {
                text(StatusCode::OK, "ok\n")
            } else {
                text(StatusCode::SERVICE_UNAVAILABLE, "the agent is starting or stopping\n")
            }
        }
    });
    tokio::spawn(server::serve(probes, None, Limits::default(), Arc::new(health), stopped.clone()));
    let identity = Identity {
        certificate: Certificate::Files { chain: config.certificate.clone(), key: config.key.clone() },
        only_tls13: true,
        ..Identity::self_signed()
    };
    let clients = Clients { authorities: Authorities::File(config.client_ca.clone()), required: true };
    let sessions = streams::Sessions::default();
    let router = Arc::new(streams::router(controller, &sessions));
    let (backups, scraped) = (bound(config.metadata)?, bound(config.metrics)?);
    let metrics = Arc::new(metrics::router(controller, &sessions, ready));
    let metadata = Arc::new(storage::metadata::Server::new(client.clone(), config.snapshot_metadata()));
    let stopped = stopped.clone();
    tokio::spawn(async move {
        // The operator makes the certificate for both.
        let tls = certified(&identity, Some(clients), false).await;
        let limits = Limits { connections: streams::CONNECTIONS, ..Limits::default() };
        let streams = server::serve(operator, Some(tls), limits, router, stopped.clone());
        // Clients of changed blocks show a token. Metrics need none, as upstream's.
        let tls = certified(&identity, None, true).await;
        let metrics = server::serve(scraped, Some(tls.clone()), Limits::default(), metrics, stopped.clone());
        let backups = server::serve(backups, Some(tls), Limits::default(), metadata, stopped);
        tokio::join!(streams, metrics, backups);
    });
    Ok(())
}

/// Waits until there is a certificate to serve with.
async fn certified(identity: &Identity, clients: Option<Clients>, http2: bool) -> Arc<Reloading> {
    let mut complained = false;
    loop {
        match Reloading::new(identity.clone(), clients.clone(), http2) {
            Ok(tls) => return tls,
            Err(error) => {
                if !complained {
                    tracing::warn!(
                        error = ::error::chain(&error),
                        "the operator has signed no certificate yet: consoles, metrics and changed blocks are not served; retrying"
                    );
                    complained = true;
                }
                tokio::time::sleep(CERTIFICATES).await;
            }
        }
    }
}

/// Runs a program to its end.
fn command(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| Error::system(format!("cannot run {name}"), error))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::new(Kind::System, format!("{name}: {text}")))
}
