//! Virtual machines: when they run, their instances, the launcher pods of those, and the nodes they run on.
//!
//! ```text
//! VirtualMachine ──machine──► VirtualMachineInstance ──instance──► launcher pod ──► virt-agent runs the guest
//!       └─ dataVolumeTemplates ──► DataVolume                nodes: heartbeats of the agents
//! VirtualMachinePool ──pool──► VirtualMachines             VirtualMachineInstanceReplicaSet ──replicas──► instances
//! ```
//! Each controller is a plan (pure), an apply (idempotent) and a status (pure). They call no other controllers and not
//! each other: they meet in objects. Not here: admission, filling of volumes, what runs on a node.

mod caches;
mod clock;
mod conditions;
mod context;
mod event;
mod instance;
mod launcher;
mod machine;
mod members;
mod metrics;
mod nodes;
mod pool;
mod replicas;
mod settings;
mod volumes;
pub(crate) mod why;

use std::sync::Arc;

use cluster::{Key, Stop};

use caches::{Caches, Queues};
use context::Context;
use launcher::Settings;

pub(crate) use machine::live::EPHEMERAL;

/// VMs that are reconciled at once.
const MACHINE_WORKERS: usize = 8;
/// Instances that are reconciled at once.
const INSTANCE_WORKERS: usize = 8;
/// Sets and pools of each kind that are reconciled at once.
const SET_WORKERS: usize = 2;
/// Nodes that are reconciled at once.
const NODE_WORKERS: usize = 2;

/// Runs the compute controllers until the stop is set and what is being done is done.
pub async fn run(area: crate::context::Context, stop: Stop) {
    let crate::context::Context { client, events, config, health } = area;
    let (image, namespace) = (config.image("virt-launcher"), config.namespace.clone());
    let base = Settings { image, ..Settings::default() };
    let queues = Queues::default();
    let transitions = Arc::new(metrics::transitions::Transitions::default());
    let caches = Caches::start(&client, &queues, &transitions);
    let configuration = settings::follow(&client);
    tokio::select! {
        () = stop.wait() => return,
        () = async { tokio::join!(caches.synced(), configuration.synced()); } => {}
    }
    let settings = settings::merged(&base, &configuration);
    let context = Arc::new(Context::new((client, events), namespace, caches, queues.clone(), settings));
    let observed = Arc::clone(&context);
    let syncs = Arc::new(metrics::syncs::Syncs::default());
    let counted = Arc::clone(&syncs);
    let _exposed = health.expose(move |page| {
        let (machines, instances) = (observed.caches.machines.all(), observed.caches.instances.all());
        let machines = machines.iter().map(|(_, machine)| machine.as_ref());
        let instances = instances.iter().map(|(_, instance)| instance.as_ref());
        metrics::write(page, &machines, instances.clone());
        metrics::write_sizes(page, &machines, |machine| {
            let key = Key::new(&machine.metadata.namespace, &machine.metadata.name);
            observed.caches.instances.get(&key).map(|instance| instance.spec.size)
        });
        metrics::write_nics(page, machines.clone());
        metrics::write_disks(page, machines.clone(), |machine, name| observed.caches.claim(machine, name));
        let settings = observed.settings();
        metrics::instances::write(page, &instances, &settings, |instance| observed.caches.pod_name(instance));
        transitions.write(page);
        counted.write(page);
        metrics::write_settings(page, &settings);
        let bounces = machines.filter_map(|one| Some((one, observed.caches.bounces(one)?)));
        metrics::write_bounces(page, bounces);
    });
    let machines = queues.machines.run(MACHINE_WORKERS, stop.wait(), |key: Key| {
        let context = Arc::clone(&context);
        async move { machine::reconcile(&context, &key).await }
    });
    let instances = queues.instances.run(INSTANCE_WORKERS, stop.wait(), |key: Key| {
        let (context, syncs) = (Arc::clone(&context), Arc::clone(&syncs));
        async move {
            syncs.count(&key, context.caches.instances.get(&key).is_some());
            instance::reconcile(&context, &key).await
        }
    });
    let sets = queues.replica_sets.run(SET_WORKERS, stop.wait(), |key: Key| {
        let context = Arc::clone(&context);
        async move { replicas::reconcile(&context, &key).await }
    });
    let pools = queues.pools.run(SET_WORKERS, stop.wait(), |key: Key| {
        let context = Arc::clone(&context);
        async move { pool::reconcile(&context, &key).await }
    });
    let nodes = queues.nodes.run(NODE_WORKERS, stop.wait(), |key: Key| {
        let context = Arc::clone(&context);
        async move { nodes::apply::reconcile(&context, &key).await }
    });
    tokio::select! {
        _ = async { tokio::join!(machines, instances, sets, pools, nodes) } => {}
        never = settings::keep(Arc::clone(&context), configuration, base) => match never {},
    }
}
