//! Storage: DataVolumes and what fills claims.
//!
//! ```text
//!  DataVolume ─► datavolume ─► claim ─► populate ─► prime claim, worker pod ─► volume rebound to the claim
//!      ▲ status                  │ annotations ◄──────────┘
//!      └─────────────────────────┘
//! ```
//!
//! Each controller decides in `plan` (pure), acts in `apply` and reports in `status` (pure). They share objects only: what
//! a worker does is written to its claim's annotations, and a DataVolume's status is read from them.
//!
//! - [`seen`]: what is read of objects. [`names`]: annotations and derived names. [`action`]: what plans ask for.
//! - [`datavolume`]: DataVolumes. [`populate`]: claims that are filled. [`worker`]: the pods that fill them.
//! - [`admit`]: refusals of DataVolumes, DataImportCrons and sources. [`clone`]: authorization and strategy of clones.
//! - [`tokens`]: when signing keys of tokens change; [`keys`]: where they are kept. [`signers`]: certificates of transfers.
//! - DataSources are in [`source`], DataImportCrons in [`mod@cron`].
//! - [`control`]: caches, queue and reconcile. [`apply`]: carries out actions. [`written`]: own writes not seen yet.
//! - [`offered`]: what storage offers, for webhooks.
//! - [`metrics`]: what Prometheus collects.
//! - [`class`], [`profile`], [`settings`], [`size`]: what storage classes can do, and what administrators set.

pub mod action;
pub mod admit;
pub mod apply;
pub mod class;
pub mod clone;
pub mod control;
pub mod cron;
pub mod datavolume;
pub mod keys;
pub mod metrics;
pub mod names;
pub mod offered;
pub mod populate;
pub mod profile;
pub mod resources;
pub mod seen;
pub mod settings;
pub mod signers;
pub mod size;
pub mod source;
pub mod tokens;
pub mod worker;
pub mod written;

#[cfg(test)]
mod tests;

use cluster::Stop;

use crate::context::Context;

/// Runs the storage controllers until the stop is set.
pub async fn run(context: Context, stop: Stop) {
    let images = worker::Images {
        importer: context.config.image("importer"),
        uploadserver: context.config.image("uploadserver"),
        clone_source: context.config.image("clone-source"),
        pull_policy: settings::PULL_POLICY.to_owned(),
    };
    let setup =
        control::Setup { namespace: context.config.namespace.clone(), images, health: context.health };
    control::run(context.client, context.events, setup, async move { stop.wait().await }).await;
}
