//! The operator's HTTPS server: aggregated APIs and admission webhooks, on every replica.
//!
//! ```text
//!  API server ──front proxy──► access (certificate, user, SubjectAccessReview) ─► machine: start, stop, restart
//!                                                                              └► instance ─► agent of the node
//! ```
//!
//! - [`certificates`]: own authority, published with its bundle; the server's certificate while it runs.
//! - [`access`]: authentication and authorization. [`options`]: bodies of requests. [`status`]: refusals as Status objects.
//! - [`group`], [`discovery`], [`openapi`]: requests of the API server and clients about the group itself.
//! - [`upload`]: tokens for uploads. [`machine`], [`instance`], [`volume`], [`dump`], [`expand`], [`graph`], [`why`]:
//!   subresources;
//!   [`refused`]: those that are refused. [`agent`]: requests and streams to the agent of a node; [`streams`]: how many
//!   there are, and until when.
//! - [`mod@admission`]: what users may write, and the defaults they get. [`conversion`]: versions of HyperConverged.

mod access;
mod admission;
mod agent;
mod certificates;
pub(crate) mod conversion;
mod discovery;
mod dump;
mod expand;
mod graph;
mod group;
mod instance;
mod machine;
mod openapi;
mod options;
mod refused;
mod status;
mod streams;
mod upload;
mod volume;
mod why;

use std::sync::Arc;
use std::time::Duration;

use api::names::METRICS_PATH;
use cluster::{Client, Events, Stop};
use http::{Method, StatusCode};
use serve::route::{Call, Router};
use serve::server::{self, Limits};
use serve::tls::Live;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::health::{self, Health};
use access::Gate;
use admission::Admission;
use agent::Agents;
use streams::Streams;

/// Connections at once. Streams have at most half of them ([`streams`]), so that consoles and forwarded ports never keep
/// the API server from the webhooks.
const CONNECTIONS: usize = 1024;
/// How long a connection waits for a request: longer than an API server keeps one (90 s), so that no request is on its way
/// when the connection ends.
const IDLE: Duration = Duration::from_secs(150);
/// How long connections that an API server keeps stay usable after the stop.
const WITHDRAWAL: Duration = Duration::from_secs(2);

/// State shared by the handlers.
struct Site {
    client: Client,
    /// Namespace of the installation.
    namespace: String,
    gate: Gate,
    agents: Agents,
    streams: Streams,
    admission: Arc<Admission>,
}

/// Listens on the server's address.
///
/// # Errors
/// [`Kind::System`] if the address is taken.
pub fn listen(config: &Config) -> Result<TcpListener> {
    let failed = |error| Error::with(Kind::System, format!("cannot listen on {}", config.serve), error);
    server::listen(config.serve).and_then(TcpListener::from_std).map_err(failed)
}

/// Serves until the stop is set. The process is ready when its certificate is signed and the front proxy's authority known.
pub async fn run(
    listener: TcpListener,
    config: &Config,
    (client, events): (&Client, &Events),
    health: &Health,
    stop: &Stop,
) {
    let tls = Arc::new(Live::default());
    let site = Arc::new(Site {
        client: client.clone(),
        namespace: config.namespace.clone(),
        gate: Gate::new(client.clone()),
        agents: Agents::new(client.clone(), &config.namespace),
        streams: Streams::start(client),
        admission: Arc::new(Admission::start(client, &config.namespace)),
    });
    let limits =
        Limits { connections: CONNECTIONS, idle_time: IDLE, withdrawal: WITHDRAWAL, ..Limits::default() };
    let (close, closing) = watch::channel(false);
    let keeper = certificates::keep(config, &site, &tls, health);
    let router = metrics(router(&site), client, events, health);
    let admission = Arc::clone(&site.admission);
    let _exposed = health.expose(move |page| admission.measure(page));
    tokio::select! {
        () = server::serve(listener, Some(tls.clone()), limits, Arc::new(router), closing) => {}
        never = keeper => match never {},
        () = async {
            stop.wait().await;
            close.send_replace(true);
            std::future::pending::<()>().await;
        } => {}
    }
}

/// Adds the page of metrics, which needs no credentials, as upstream's: Prometheus reads it by the Service of all pods.
fn metrics(router: Router, client: &Client, events: &Events, health: &Health) -> Router {
    let (client, events, health) = (client.clone(), events.clone(), health.clone());
    router.get(METRICS_PATH, move |_| {
        let page = health::metrics(&client, &events, &health);
        async move { serve::route::with_type(StatusCode::OK, serve::metrics::CONTENT_TYPE, page.into()) }
    })
}

fn router(site: &Arc<Site>) -> Router {
    let documents = upload::routes(discovery::routes(Router::new()));
    let mut router =
        conversion::routes(admission::routes(documents, &site.admission)).refuse_with(status::unserved);
    let (method, pattern) = upload::pattern();
    let uploads = Arc::clone(site);
    router = router.route(method, &pattern, move |call| {
        let site = Arc::clone(&uploads);
        async move { upload::handle(&site, call).await }
    });
    for version in group::VERSIONS {
        let base = format!("/apis/{}/{version}/namespaces/{{namespace}}", group::GROUP);
        for verb in machine::VERBS {
            let pattern = format!("{base}/virtualmachines/{{name}}/{}", verb.name());
            router = with(router, site, Method::PUT, &pattern, move |site, call| {
                machine::handle(site, call, *verb)
            });
        }
        for verb in dump::VERBS {
            let pattern = format!("{base}/virtualmachines/{{name}}/{}", verb.name());
            router =
                with(router, site, Method::PUT, &pattern, move |site, call| dump::handle(site, call, verb));
        }
        for target in volume::TARGETS {
            for (verb, path) in volume::VERBS {
                let pattern = format!("{base}/{}/{{name}}/{path}", target.plural());
                router = with(router, site, Method::PUT, &pattern, move |site, call| {
                    volume::handle(site, call, target, verb, path)
                });
            }
        }
        for plural in graph::PLURALS {
            let pattern = format!("{base}/{plural}/{{name}}/objectgraph");
            router = with(router, site, Method::GET, &pattern, move |site, call| {
                graph::handle(site, call, plural)
            });
        }
        for row in refused::ROWS {
            let pattern = format!("{base}/virtualmachineinstances/{{name}}/{}", row.name);
            router = with(router, site, row.method(), &pattern, move |site, call| {
                refused::handle(site, call, row)
            });
        }
        let pattern = format!("{base}/virtualmachines/{{name}}/why");
        router = with(router, site, Method::GET, &pattern, why::handle);
        let pattern = format!("{base}/virtualmachines/{{name}}/expand-spec");
        router = with(router, site, Method::GET, &pattern, expand::stored);
        router = with(router, site, Method::PUT, &format!("{base}/expand-vm-spec"), expand::sent);
        for verb in instance::VERBS {
            let pattern = format!("{base}/virtualmachineinstances/{{name}}/{}", verb.name);
            router = with(router, site, verb.method(), &pattern, move |site, call| {
                instance::handle(site, call, verb)
            });
        }
        for kind in ["virtualmachines", "virtualmachineinstances"] {
            for protocol in ["", "/{protocol}"] {
                let pattern = format!("{base}/{kind}/{{name}}/portforward/{{port}}{protocol}");
                router = with(router, site, Method::GET, &pattern, move |site, call| {
                    instance::forward(site, call, kind)
                });
            }
        }
    }
    router
}

fn with<F>(
    router: Router,
    site: &Arc<Site>,
    method: Method,
    pattern: &str,
    handle: impl Fn(Arc<Site>, Call) -> F + Send + Sync + 'static,
) -> Router
where
    F: Future<Output = status::Answered> + Send + 'static,
{
    let site = Arc::clone(site);
    router.route(method, pattern, move |call| {
        let answered = handle(Arc::clone(&site), call);
        async move { answered.await.unwrap_or_else(|refusal| refusal.answer()) }
    })
}
