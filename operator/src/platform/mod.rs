//! The objects `HyperConverged` ([`hyperconverged`]), `NetworkAddonsConfig` ([`addons`]), `HostPathProvisioner`
//! ([`hostpath`]), `KubeVirt` and `CDI`. The latter two switch the two sides of the platform on and show whether these work; deleting one removes its side.
//!
//! ```text
//! KubeVirt, CDI, Deployments, DaemonSets, EndpointSlices ─► Observed ─► plan ─► actions ─► apply ─► finalizer, workloads, status
//! ```
//!
//! With `KubeVirt` come the instance types and preferences that every cluster has ([`instancetypes`]).
//!
//! [`mod@plan`] decides and [`mod@status`] reports, both pure; [`mod@apply`] does.
//!
//! Not here: installing the components ([`crate::install`]), and refusing a deletion at admission.

pub mod addons;
mod aggregation;
pub mod apply;
pub(crate) mod endpoints;
pub mod hostpath;
pub mod hyperconverged;
mod instancetypes;
mod placement;
pub mod plan;
mod replicas;
pub mod status;
mod without;

#[cfg(test)]
mod readers;

use std::sync::Arc;

use cluster::Stop;
use futures_util::future::BoxFuture;

use crate::context::Context;

/// Runs the controller until the stop is set.
pub fn run(context: Context, stop: Stop) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let config = &context.config;
        let image = config.image("operator");
        let controller =
            apply::Controller::start(&context.client, &config.namespace, env!("CARGO_PKG_VERSION"), &image);
        let _leading = context.health.expose(|page| {
            let help = "Whether this process deploys the platform.";
            page.single("kubevirt_virt_operator_leading_status", serve::metrics::Kind::Gauge, help, 1);
        });
        let values = Arc::new(hyperconverged::metrics::Metrics::default());
        let page = Arc::clone(&values);
        let _exposed = context.health.expose(move |into| page.write(into));
        let entry_point = hyperconverged::apply::Controller::start(
            &context.client,
            &context.events,
            &config.namespace,
            env!("CARGO_PKG_VERSION"),
            config.emulation,
            config.runbooks.as_deref(),
            values,
        );
        let values = Arc::new(addons::metrics::Metrics::default());
        let page = Arc::clone(&values);
        let _exposed_too = context.health.expose(move |into| page.write(into));
        let networks = addons::apply::Controller::start(
            &context.client,
            &context.events,
            config.installation(),
            env!("CARGO_PKG_VERSION"),
            values,
        );
        let values = Arc::new(hostpath::metrics::Metrics::default());
        let page = Arc::clone(&values);
        let _exposed_as_well = context.health.expose(move |into| page.write(into));
        let volumes = hostpath::apply::Controller::start(
            &context.client,
            &context.events,
            config.installation(),
            env!("CARGO_PKG_VERSION"),
            values,
        );
        let own = replicas::Controller::start(&context.client, config.installation(), config.scale);
        tokio::join!(
            own.run(stop.wait()),
            controller.run(stop.wait()),
            entry_point.run(stop.wait()),
            networks.run(stop.wait()),
            volumes.run(stop.wait())
        );
    })
}
