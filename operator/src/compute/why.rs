//! In words, why a VM does not run, or where it does. The objects are read at the API server, and the words are made of the
//! plans and the status that the controllers make of the same observation, so that both agree. Not here: the request.

use std::collections::BTreeSet;
use std::sync::Arc;

use cluster::{Client, Key, Scope};
use serde::Deserialize;
use serde_json::Value;

use super::caches::{CLAIMS, DATA_VOLUMES, INSTANCES, LAUNCHERS, MACHINES, NODES, PODS, Storage};
use super::context::Context;
use super::volumes::Progress;
use super::{instance, launcher, machine};
use crate::view::{Claim, DataVolume, Instance, Machine, Pod, VolumeSource, is_true};

/// Most claims that are read.
const MOST_CLAIMS: usize = 64;

/// The answer for a VM.
#[derive(Debug)]
pub(crate) struct Explanation {
    /// Whether its guest runs.
    pub(crate) running: bool,
    /// Sentences, the most important first.
    pub(crate) reasons: Vec<String>,
}

/// Explains a VM; `None`: it does not exist.
///
/// # Errors
/// The API server cannot be asked.
pub(crate) async fn explain(client: &Client, key: &Key) -> cluster::Result<Option<Explanation>> {
    let Some(machine) = client.find::<Machine>(MACHINES, key).await? else { return Ok(None) };
    let instance: Option<Instance> = client.find(INSTANCES, key).await?;
    let mut progress = Progress::new();
    let templates = machine.spec.data_volume_templates.iter().map(|one| (one.metadata.name.as_str(), true));
    let templates = storage(client, key, templates, &mut progress).await?;
    let volumes = storage(client, key, named(&machine.spec.template.spec.volumes), &mut progress).await?;
    let observed = machine::Observed {
        machine: &machine,
        instance: instance.as_ref(),
        volumes: volumes.volumes(),
        templates: templates.volumes(),
        snapshot_classes: BTreeSet::new(),
        expand_all: false,
        now: Context::now(),
    };
    let mut reasons = machine::why::words(&observed, &progress);
    if let Some(own) = observed.own_instance() {
        reasons.extend(of_instance(client, key, own, &mut progress).await?);
    }
    if is_true(&machine.status.conditions, "RestartRequired").is_some() {
        reasons.push("A change of the template takes effect at the next start.".to_owned());
    }
    let running = observed.own_instance().is_some_and(|one| one.status.phase == "Running");
    Ok(Some(Explanation { running, reasons }))
}

async fn of_instance(
    client: &Client,
    key: &Key,
    instance: &Instance,
    progress: &mut Progress,
) -> cluster::Result<Vec<String>> {
    let meta = &instance.metadata;
    let of = |labels: &str| Scope::all().namespace(key.namespace()).labels(labels);
    let pods: Vec<Pod> =
        client.list(PODS, &of(&format!("{LAUNCHERS},kubevirt.io/created-by={}", meta.uid))).await?;
    let states: Vec<Claim> = if instance.spec.keeps_state {
        let label = format!("{}={}", virt::state::LABEL, launcher::label_value(&meta.name));
        client.list(CLAIMS, &of(&label)).await?
    } else {
        Vec::new()
    };
    let node = match instance.status.node_name.as_str() {
        "" => None,
        name => client.find(NODES, &Key::cluster(name)).await?,
    };
    let volumes = storage(client, key, named(&instance.spec.volumes), progress).await?;
    let observed = instance::Observed {
        instance,
        pods: instance::own(instance, pods.iter()),
        attachments: Vec::new(),
        pods_confirmed: true,
        volumes: volumes.volumes(),
        state: launcher::state(instance, states.iter()),
        overhead: &|_| None,
        memory_overhead: instance.spec.overhead,
        owner_exists: true,
        node: node.as_ref(),
        now: Context::now(),
    };
    Ok(instance::why::words(&observed, progress))
}

fn named(volumes: &[VolumeSource]) -> impl Iterator<Item = (&str, bool)> {
    volumes.iter().filter_map(|volume| Some((volume.claim()?, volume.data_volume().is_some())))
}

/// Reads claims and DataVolumes; with each name, whether it is named as a DataVolume.
async fn storage(
    client: &Client,
    key: &Key,
    named: impl Iterator<Item = (&str, bool)>,
    progress: &mut Progress,
) -> cluster::Result<Storage> {
    let mut rows = Vec::new();
    for (name, data_volume) in named.take(MOST_CLAIMS) {
        let of = Key::new(key.namespace(), name);
        let claim: Option<Claim> = client.find(CLAIMS, &of).await?;
        let whole: Option<Value> = client.find(DATA_VOLUMES, &of).await?;
        let share = whole.as_ref().and_then(|whole| whole["status"]["progress"].as_str());
        if let Some(share) = share.filter(|share| share.ends_with('%')) {
            progress.insert(name.to_owned(), share.to_owned());
        }
        let read = whole.and_then(|whole| DataVolume::deserialize(whole).ok());
        rows.push((name.to_owned(), data_volume, claim.map(Arc::new), read.map(Arc::new)));
    }
    Ok(Storage::new(rows))
}
