//! The objects that the compute controllers follow, and the keys that a change concerns.
//!
//! ```text
//! VM ───────────────► machine queue      claim, DataVolume ─► VMs and instances that name it
//! instance ─────────► machine and instance queue
//! launcher pod ─────► its instance       node ─► node queue
//! StorageClass, VolumeSnapshotClass ─► all VMs
//! set, pool ────────► their queues, and so do their instances and VMs
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;

use cluster::cache::Index;
use cluster::{Cache, Client, Key, Priority, Queue, Resource, Scope};

use super::launcher::{OWNER_NAME, OWNER_UID, label_value};
use super::metrics::transitions::Transitions;
use super::volumes::Volume;
use crate::storage::class::Classes;
use crate::storage::resources::CLASSES;
use crate::storage::seen::Class;
use crate::view::{
    Claim, DataVolume, Instance, Machine, Meta, Node, Pod, Pool, ReplicaSet, SnapshotClass, TransferConfig,
    VolumeSource,
};

pub(super) const MACHINES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");
pub(super) const INSTANCES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstances");
pub(super) const REPLICA_SETS: Resource =
    Resource::namespaced("kubevirt.io", "v1", "virtualmachineinstancereplicasets");
pub(super) const POOLS: Resource = Resource::namespaced("pool.kubevirt.io", "v1beta1", "virtualmachinepools");
pub(super) const DATA_VOLUMES: Resource = Resource::namespaced("cdi.kubevirt.io", "v1beta1", "datavolumes");
pub(super) const REVISIONS: Resource = Resource::namespaced("apps", "v1", "controllerrevisions");
pub(super) const PODS: Resource = Resource::namespaced("", "v1", "pods");
pub(super) const NODES: Resource = Resource::cluster("", "v1", "nodes");
const TRANSFER_CONFIGS: Resource = Resource::cluster("cdi.kubevirt.io", "v1beta1", "cdiconfigs");
/// The only CDIConfig.
const TRANSFER_CONFIG: &str = "config";
const SNAPSHOT_CLASSES: Resource =
    Resource::cluster("snapshot.storage.k8s.io", "v1", "volumesnapshotclasses");
pub(super) const CLAIMS: Resource = Resource::namespaced("", "v1", "persistentvolumeclaims");
/// Selects launcher pods.
pub(super) const LAUNCHERS: &str = "kubevirt.io=virt-launcher";
/// Annotation of a launcher pod with the instance's name.
const DOMAIN: &str = "kubevirt.io/domain";
/// Selects attachment pods.
const ATTACHMENTS: &str = "kubevirt.io=hotplug-disk";

/// Keys to reconcile, by controller.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues {
    pub(super) machines: Queue<Key>,
    pub(super) instances: Queue<Key>,
    pub(super) replica_sets: Queue<Key>,
    pub(super) pools: Queue<Key>,
    pub(super) nodes: Queue<Key>,
}

impl Queues {
    /// Adds the set or pool that controls an object.
    fn add_controller(&self, meta: &Meta) {
        let Some(owner) = meta.controller() else { return };
        let key = Key::new(&meta.namespace, &owner.name);
        match owner.kind.as_str() {
            "VirtualMachineInstanceReplicaSet" => self.replica_sets.add(key),
            "VirtualMachinePool" => self.pools.add(key),
            _ => {}
        }
    }
}

/// The uid of the set or pool that controls an object.
fn controlled_by(meta: &Meta) -> Vec<String> {
    let owner = meta.controller().filter(|owner| {
        matches!(owner.kind.as_str(), "VirtualMachineInstanceReplicaSet" | "VirtualMachinePool")
    });
    owner.map(|owner| owner.uid.clone()).into_iter().collect()
}

/// Projections of everything that is decided on.
#[derive(Debug)]
pub(super) struct Caches {
    pub(super) machines: Cache<Machine>,
    pub(super) instances: Cache<Instance>,
    pub(super) pods: Cache<Pod>,
    attachments: Cache<Pod>,
    pub(super) replica_sets: Cache<ReplicaSet>,
    pub(super) pools: Cache<Pool>,
    pub(super) nodes: Cache<Node>,
    claims: Cache<Claim>,
    data_volumes: Cache<DataVolume>,
    transfer_configs: Cache<TransferConfig>,
    classes: Cache<Class>,
    snapshot_classes: Cache<SnapshotClass>,
    instances_by_node: Index,
    instances_by_set: Index,
    machines_by_pool: Index,
    pods_by_instance: Index,
    attachments_by_instance: Index,
    claims_by_guest: Index,
}

/// Names of the claims of volumes, with their namespace.
fn claims_of(key: &Key, volumes: &[VolumeSource]) -> Vec<String> {
    volumes.iter().filter_map(|volume| Some(format!("{}/{}", key.namespace(), volume.claim()?))).collect()
}

/// Things that wait for their deletion go first.
fn priority(meta: Option<&Meta>) -> Priority {
    if meta.is_some_and(Meta::deleting) { Priority::Urgent } else { Priority::Normal }
}

impl Caches {
    /// Follows everything; changes are put into `queues`, those of instances' phases into `transitions`, too.
    pub(super) fn start(client: &Client, queues: &Queues, transitions: &Arc<Transitions>) -> Self {
        let all = Scope::all();
        let feed = queues.clone();
        let mut machines = Cache::<Machine>::builder();
        let machines_by_claim = machines.index(|key, machine| {
            let mut claims = claims_of(key, &machine.spec.template.spec.volumes);
            let templates = machine.spec.data_volume_templates.iter();
            claims
                .extend(templates.map(|template| format!("{}/{}", key.namespace(), template.metadata.name)));
            claims.sort_unstable();
            claims.dedup();
            claims
        });
        let machines_by_pool = machines.index(|_, machine| controlled_by(&machine.metadata));
        let machines = machines
            .on_change(move |change| {
                for machine in [change.before, change.after].into_iter().flatten() {
                    feed.add_controller(&machine.metadata);
                }
                let meta = change.after.map(|machine| &machine.metadata);
                feed.machines.add_with(change.key.clone(), priority(meta));
                if change.after.is_none() {
                    // Its instance may have been held for it.
                    feed.instances.add(change.key.clone());
                }
            })
            .start::<Machine>(client, MACHINES, &all);

        let feed = queues.clone();
        let mut instances = Cache::<Instance>::builder();
        let instances_by_claim = instances.index(|key, instance| claims_of(key, &instance.spec.volumes));
        let instances_by_node = instances.index(|_, instance| {
            let node = &instance.status.node_name;
            if node.is_empty() || instance.is_final() { Vec::new() } else { vec![node.clone()] }
        });
        let instances_by_set = instances.index(|_, instance| controlled_by(&instance.metadata));
        let transitions = Arc::clone(transitions);
        let instances = instances
            .on_change(move |change| {
                if let (Some(before), Some(after)) = (change.before, change.after) {
                    transitions.observe(before, after);
                }
                for instance in [change.before, change.after].into_iter().flatten() {
                    feed.add_controller(&instance.metadata);
                }
                let priority = priority(change.after.map(|instance| &instance.metadata));
                feed.instances.add_with(change.key.clone(), priority);
                feed.machines.add_with(change.key.clone(), priority);
            })
            .start::<Instance>(client, INSTANCES, &all);

        let feed = queues.clone();
        let mut pods = Cache::<Pod>::builder();
        let pods_by_instance = pods.index(|_, pod| pod.created_by().map(str::to_owned).into_iter().collect());
        let pods = pods
            .on_change(move |change| {
                for pod in [change.before, change.after].into_iter().flatten() {
                    // One that was orphaned has no owner.
                    let owner = pod.metadata.controller().map(|owner| owner.name.as_str());
                    if let Some(name) = owner.or_else(|| pod.metadata.annotation(DOMAIN)) {
                        feed.instances.add(Key::new(&pod.metadata.namespace, name));
                    }
                }
            })
            .start::<Pod>(client, PODS, &all.clone().labels(LAUNCHERS));

        let feed = queues.clone();
        let mut attachments = Cache::<Pod>::builder();
        let attachments_by_instance = attachments
            .index(|_, pod| pod.metadata.annotation(OWNER_UID).map(str::to_owned).into_iter().collect());
        let attachments = attachments
            .on_change(move |change| {
                for pod in [change.before, change.after].into_iter().flatten() {
                    if let Some(name) = pod.metadata.annotation(OWNER_NAME) {
                        feed.instances.add(Key::new(&pod.metadata.namespace, name));
                    }
                }
            })
            .start::<Pod>(client, PODS, &all.clone().labels(ATTACHMENTS));

        let concerned = {
            let (machines, instances, feed) = (machines.clone(), instances.clone(), queues.clone());
            move |claim: &Key| {
                let name = claim.to_string();
                for (key, _) in machines.by(machines_by_claim, &name) {
                    feed.machines.add(key);
                }
                for (key, _) in instances.by(instances_by_claim, &name) {
                    feed.instances.add(key);
                }
            }
        };
        let tell = concerned.clone();
        let mut claims = Cache::<Claim>::builder();
        let claims_by_guest = claims.index(|key, claim| {
            let guest = claim.metadata.label(virt::state::LABEL);
            guest.map(|guest| format!("{}/{guest}", key.namespace())).into_iter().collect()
        });
        let feed = queues.clone();
        let claims = claims
            .on_change(move |change| {
                tell(change.key);
                for claim in [change.before, change.after].into_iter().flatten() {
                    if let Some(guest) = claim.metadata.label(virt::state::LABEL) {
                        feed.instances.add(Key::new(change.key.namespace(), guest));
                    }
                }
            })
            .start::<Claim>(client, CLAIMS, &all);
        let data_volumes = Cache::<DataVolume>::builder();
        let data_volumes = data_volumes.on_change(move |change| concerned(change.key)).start::<DataVolume>(
            client,
            DATA_VOLUMES,
            &all,
        );

        let transfer_configs =
            Cache::<TransferConfig>::builder().start::<TransferConfig>(client, TRANSFER_CONFIGS, &all);

        // They change rarely: every VM is looked at again.
        let all_machines = {
            let (machines, feed) = (machines.clone(), queues.clone());
            move || machines.all().into_iter().for_each(|(key, _)| feed.machines.add(key))
        };
        let tell = all_machines.clone();
        let classes = Cache::<Class>::builder().on_change(move |_| tell());
        let classes = classes.start::<serde_json::Value>(client, CLASSES, &all);
        let snapshot_classes = Cache::<SnapshotClass>::builder().on_change(move |_| all_machines());
        let snapshot_classes = snapshot_classes.start::<SnapshotClass>(client, SNAPSHOT_CLASSES, &all);

        let feed = queues.clone();
        let replica_sets = Cache::<ReplicaSet>::builder()
            .on_change(move |change| feed.replica_sets.add(change.key.clone()))
            .start::<ReplicaSet>(client, REPLICA_SETS, &all);
        let feed = queues.clone();
        let pools = Cache::<Pool>::builder()
            .on_change(move |change| feed.pools.add(change.key.clone()))
            .start::<Pool>(client, POOLS, &all);

        let feed = queues.clone();
        let nodes = Cache::<Node>::builder();
        let nodes = nodes
            .on_change(move |change| feed.nodes.add(change.key.clone()))
            .start::<Node>(client, NODES, &all);

        Self {
            machines,
            instances,
            pods,
            attachments,
            replica_sets,
            pools,
            nodes,
            claims,
            data_volumes,
            transfer_configs,
            classes,
            snapshot_classes,
            instances_by_node,
            instances_by_set,
            machines_by_pool,
            pods_by_instance,
            attachments_by_instance,
            claims_by_guest,
        }
    }

    /// Returns when everything was listed once. Nothing may be decided before.
    pub(super) async fn synced(&self) {
        self.machines.synced().await;
        self.instances.synced().await;
        self.pods.synced().await;
        self.attachments.synced().await;
        self.replica_sets.synced().await;
        self.pools.synced().await;
        self.nodes.synced().await;
        self.claims.synced().await;
        self.data_volumes.synced().await;
        self.transfer_configs.synced().await;
        self.classes.synced().await;
        self.snapshot_classes.synced().await;
    }

    /// Launcher pods of an instance, by its uid.
    pub(super) fn pods_of(&self, instance: &Instance) -> Vec<Arc<Pod>> {
        let found = self.pods.by(self.pods_by_instance, &instance.metadata.uid);
        found.into_iter().map(|(_, pod)| pod).collect()
    }

    /// Name of the pod that runs an instance.
    pub(super) fn pod_name(&self, instance: &Instance) -> Option<String> {
        let active = &instance.status.active_pods;
        let pods = self.pods_of(instance);
        pods.iter().find(|pod| active.contains_key(&pod.metadata.uid)).map(|pod| pod.metadata.name.clone())
    }

    /// Claims for what an instance keeps besides its disks.
    pub(super) fn state_claims_of(&self, instance: &Instance) -> Vec<Arc<Claim>> {
        if !instance.spec.keeps_state {
            return Vec::new();
        }
        let meta = &instance.metadata;
        let guest = format!("{}/{}", meta.namespace, label_value(&meta.name));
        self.claims.by(self.claims_by_guest, &guest).into_iter().map(|(_, claim)| claim).collect()
    }

    /// Attachment pods of an instance. An annotation alone can be set by others: the pods' names are compared, too.
    pub(super) fn attachments_of(&self, instance: &Instance) -> Vec<Arc<Pod>> {
        let found = self.attachments.by(self.attachments_by_instance, &instance.metadata.uid);
        let ours = |pod: &Pod| pod.metadata.namespace == instance.metadata.namespace;
        found.into_iter().map(|(_, pod)| pod).filter(|pod| ours(pod)).collect()
    }

    /// Instances that a set controls, by its uid.
    pub(super) fn instances_of(&self, uid: &str) -> Vec<Arc<Instance>> {
        self.instances.by(self.instances_by_set, uid).into_iter().map(|(_, instance)| instance).collect()
    }

    /// VMs that a pool controls, by its uid.
    pub(super) fn machines_of(&self, uid: &str) -> Vec<Arc<Machine>> {
        self.machines.by(self.machines_by_pool, uid).into_iter().map(|(_, machine)| machine).collect()
    }

    /// Keys of the instances on a node with guests that have not ended.
    pub(super) fn on_node(&self, node: &str) -> Vec<Key> {
        self.instances.by(self.instances_by_node, node).into_iter().map(|(key, _)| key).collect()
    }

    /// Whether a claim exists.
    pub(super) fn claim_exists(&self, key: &Key) -> bool {
        self.claims.get(key).is_some()
    }

    /// Whether the claim is a block device.
    pub(super) fn is_block(&self, namespace: &str, claim: &str) -> bool {
        self.claims.get(&Key::new(namespace, claim)).is_some_and(|claim| claim.is_block())
    }

    /// Share of a filesystem claim of a class that its filesystem takes; `None`: CDI is not configured.
    pub(super) fn overhead(&self, class: Option<&str>) -> Option<String> {
        let config = self.transfer_configs.get(&Key::cluster(TRANSFER_CONFIG))?;
        config.overhead(class).map(str::to_owned)
    }

    /// The claim of a VM's volume, by its name.
    pub(super) fn claim(&self, machine: &Machine, name: &str) -> Option<Arc<Claim>> {
        self.claims.get(&Key::new(&machine.metadata.namespace, name))
    }

    /// Of a VM with `Block` volumes of Ceph RBD: whether pages that change while they are sent are copied first, for each
    /// of them. Nothing of other VMs.
    pub(super) fn bounces(&self, machine: &Machine) -> Option<bool> {
        let volumes = &machine.spec.template.spec.volumes;
        let claims = volumes.iter().filter_map(VolumeSource::claim);
        let claims = claims.filter_map(|name| self.claim(machine, name));
        let classes = claims.filter(|claim| claim.is_block()).filter_map(|claim| {
            let class = claim.spec.storage_class_name.as_deref()?;
            self.classes.get(&Key::cluster(class))?.bounces()
        });
        classes.reduce(|all, one| all && one)
    }

    /// Name of the class that a guest's disk gets where none is named.
    pub(super) fn preferred_class(&self) -> Option<String> {
        let classes = self.classes.all().into_iter().map(|(_, class)| Class::clone(&class)).collect();
        let classes = Classes { classes, ..Classes::default() };
        classes.preferred(true).map(|class| class.meta.name.clone())
    }

    /// Names of the storage classes with a VolumeSnapshotClass for their driver.
    pub(super) fn classes_with_snapshots(&self) -> BTreeSet<String> {
        let drivers: BTreeSet<String> =
            self.snapshot_classes.all().into_iter().map(|(_, class)| class.driver.clone()).collect();
        let classes = self.classes.all().into_iter();
        let classes = classes.filter(|(_, class)| drivers.contains(&class.provisioner));
        classes.map(|(key, _)| key.name().to_owned()).collect()
    }

    /// The storage of volumes that are on claims.
    pub(super) fn storage(&self, namespace: &str, volumes: &[VolumeSource]) -> Storage {
        let named =
            volumes.iter().filter_map(|volume| Some((volume.claim()?, volume.data_volume().is_some())));
        self.storage_of(namespace, named)
    }

    /// The storage of claims; with each, whether it is named as a DataVolume.
    pub(super) fn storage_of<'a>(
        &self,
        namespace: &str,
        named: impl Iterator<Item = (&'a str, bool)>,
    ) -> Storage {
        Storage(
            named
                .map(|(name, data_volume)| {
                    let key = Key::new(namespace, name);
                    (name.to_owned(), data_volume, self.claims.get(&key), self.data_volumes.get(&key))
                })
                .collect(),
        )
    }
}

/// Name of a claim, whether it is named as a DataVolume, and what is there under that name.
pub(super) type Row = (String, bool, Option<Arc<Claim>>, Option<Arc<DataVolume>>);

/// Claims and DataVolumes as they were at one time.
#[derive(Debug)]
pub(super) struct Storage(Vec<Row>);

impl Storage {
    /// Claims and DataVolumes by name; with each, whether it is named as a DataVolume.
    pub(super) fn new(rows: Vec<Row>) -> Self {
        Self(rows)
    }

    pub(super) fn volumes(&self) -> Vec<Volume<'_>> {
        self.0
            .iter()
            .map(|(claim_name, named_data_volume, claim, data_volume)| Volume {
                claim_name,
                named_data_volume: *named_data_volume,
                claim: claim.as_deref(),
                data_volume: data_volume.as_deref(),
            })
            .collect()
    }
}
