//! Groups of controllers: each area runs under a lease of its own, so that two replicas can share the work.
//!
//! An area plugs in with one line in [`ALL`]. Its `run` is called while this replica holds the lease
//! `ferrovirt-<name>`; it ends gracefully when the stop is set, and is dropped where it stands when the lease is lost.
//! It must therefore own its tasks: what it spawns and does not abort would go on without the lease.

use cluster::Stop;
use cluster::lease::Lease;
use futures_util::future::{BoxFuture, join_all};

use crate::compute;
use crate::context::Context;
use crate::{storage, volumes};

/// A group of controllers.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Its name, and (behind `ferrovirt-`) that of its lease.
    pub name: &'static str,
    /// Runs its controllers until the stop is set.
    pub run: fn(Context, Stop) -> BoxFuture<'static, ()>,
}

/// All areas, named as in [`crate::config::AREAS`].
pub const ALL: &[Area] = &[
    Area { name: "compute", run: |area, stop| Box::pin(compute::run(area, stop)) },
    Area { name: "storage", run: |area, stop| Box::pin(storage::run(area, stop)) },
    Area { name: "volumes", run: |area, stop| Box::pin(volumes::run(area, stop)) },
    Area { name: "platform", run: crate::platform::run },
];

/// Runs the areas that the configuration names, each while its lease is held here, until the stop is set.
pub async fn run(context: &Context, stop: &Stop) {
    let chosen = ALL.iter().filter(|area| context.config.areas.contains(&area.name));
    let held = chosen.map(|area| async move {
        let (namespace, identity) = (&context.config.namespace, &context.config.identity);
        let lease = Lease::new(&context.client, namespace, &format!("ferrovirt-{}", area.name), identity);
        lease.hold(stop, |stop| (area.run)(context.clone(), stop)).await;
    });
    tokio::join!(join_all(held), stop.wait());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configurable_area_has_controllers() {
        let names: Vec<_> = ALL.iter().map(|area| area.name).collect();
        assert_eq!(names, crate::config::AREAS);
    }
}
