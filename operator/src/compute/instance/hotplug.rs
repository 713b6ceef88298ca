//! Hotplugged volumes of an instance: one attachment pod for each, and its entry in `volumeStatus` until the node agent
//! takes over. Pure.
//!
//! ```text
//! Pending ─ claim bound ─► Bound ─ attachment pod runs ─► AttachedToNode ─ agent ─► MountedToPod ─► Ready
//! volume removed from the spec ─► Detaching ─ agent ─► UnMountedFromPod ─ pod deleted ─► no entry
//! ```
//! A pod of its own for each volume: no other volume of the guest is touched. The entries of all volumes follow the sizes
//! of their claims, by which the agent grows disks. Not here: the disk in the launcher's pod.

use api::kubevirt::{ClaimInfo, HotplugVolumeStatus, MemoryDumpStatus, Target, VolumeStatus};
use cluster::JsonPatch;
use serde_json::{Value, json};
use virt::live::dump;

use super::super::volumes::{Readiness, Volume};
use super::plan::{Observed, Phase, Plan, Step};
use super::volumes;
use crate::compute::launcher::attachment_name;
use crate::view::{Claim, Instance, Pod, VolumeEntry, VolumeSource};

/// A change of `status.volumeStatus`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    /// Appends an entry.
    Add(Box<VolumeStatus>),
    /// Changes the entry at this index, which was this one.
    Set(usize, VolumeEntry, Box<VolumeStatus>),
    /// Describes the claim of the entry at this index, which was this one.
    Claim(usize, VolumeEntry, Box<ClaimInfo>),
    /// Removes the entry at this index, which was this one.
    Remove(usize, VolumeEntry),
}

/// Adds the steps for hotplugged volumes to a plan, and gives the changes of entries.
pub(super) fn extend(observed: &Observed<'_>, plan: &mut Plan) -> Vec<Change> {
    let instance = observed.instance;
    let ends = matches!(plan.phase, Phase::Succeeded | Phase::Failed) || instance.is_final();
    let steps = &mut plan.steps;
    let launcher = observed.launcher().filter(|pod| !pod.is_down());
    let mut changes = Vec::new();
    let wanted: Vec<(String, &VolumeSource)> = match launcher {
        // The pods go with the guest; they are kept while it shuts down.
        None => Vec::new(),
        Some(_) if ends => Vec::new(),
        Some(_) if instance.metadata.deleting() => return changes,
        Some(_) if !matches!(instance.status.phase.as_str(), "Scheduled" | "Running") => return changes,
        Some(_) => {
            let volumes = instance.spec.volumes.iter().filter(|volume| volume.is_hotpluggable());
            volumes
                .filter_map(|volume| Some((name(observed, &volume.name, volume.claim()?), volume)))
                .collect()
        }
    };
    let mut kept: Vec<String> = wanted.iter().map(|(pod, _)| pod.clone()).collect();
    if launcher.is_some() && !ends {
        changes.extend(resized(observed));
        for (place, entry) in instance.status.volume_status.iter().enumerate() {
            let Some(of) = &entry.hotplug_volume else { continue };
            let claim = entry.persistent_volume_claim_info.claim_name.as_str();
            let same = |source: &VolumeSource| {
                source.name == entry.name && (claim.is_empty() || source.claim() == Some(claim))
            };
            if !wanted.iter().any(|(_, source)| same(source)) {
                changes.extend(going(observed, place, entry, &of.attach_pod_name, &mut kept));
            }
        }
        for (pod, source) in &wanted {
            changes.extend(coming(observed, pod, source, steps));
        }
    }
    for pod in &observed.attachments {
        if !kept.contains(&pod.metadata.name) && !pod.metadata.deleting() {
            steps.push(delete(pod));
        }
    }
    changes
}

/// Volumes that came with the guest and whose claims have another size by now.
fn resized(observed: &Observed<'_>) -> Vec<Change> {
    let entries = observed.instance.status.volume_status.iter().enumerate();
    let changes = entries.filter(|(_, entry)| entry.hotplug_volume.is_none()).filter_map(|(place, entry)| {
        let known = &entry.persistent_volume_claim_info;
        let volume = observed.volumes.iter().find(|one| one.claim_name == known.claim_name)?;
        let claim = volume.claim?;
        let same = known.capacity == claim.status.capacity && known.requests == claim.spec.resources.requests;
        (!same).then(|| Change::Claim(place, entry.clone(), Box::new(volumes::info(observed, claim))))
    });
    changes.collect()
}

fn name(observed: &Observed<'_>, volume: &str, claim: &str) -> String {
    attachment_name(&observed.instance.metadata.uid, volume, claim)
}

fn delete(pod: &Pod) -> Step {
    let volume = pod.metadata.annotation(crate::compute::launcher::VOLUME).unwrap_or_default().to_owned();
    Step::DeleteAttachment { name: pod.metadata.name.clone(), uid: pod.metadata.uid.clone(), volume }
}

/// A volume that is not wanted any more. Its pod is kept until the launcher has let go of the claim.
fn going(
    observed: &Observed<'_>,
    place: usize,
    entry: &VolumeEntry,
    pod: &str,
    kept: &mut Vec<String>,
) -> Option<Change> {
    match entry.phase.as_str() {
        // Nothing of it is in the launcher's pod.
        "" | "Pending" | "Bound" | "UnMountedFromPod" => {
            let exists = observed.attachments.iter().any(|one| one.metadata.name == pod);
            (!exists).then(|| Change::Remove(place, entry.clone()))
        }
        phase => {
            kept.push(pod.to_owned());
            let after = VolumeStatus { phase: Some("Detaching".to_owned()), ..written(entry) };
            (phase != "Detaching").then(|| Change::Set(place, entry.clone(), Box::new(after)))
        }
    }
}

/// A volume that is wanted: its pod, and its entry until the agent takes over.
fn coming(
    observed: &Observed<'_>,
    pod: &str,
    source: &VolumeSource,
    steps: &mut Vec<Step>,
) -> Option<Change> {
    let status = &observed.instance.status.volume_status;
    let found = status.iter().position(|entry| entry.name == source.name);
    let claim_name = source.claim().unwrap_or_default();
    // Another claim by the same name goes first.
    if let Some(place) = found
        && let claim = status[place].persistent_volume_claim_info.claim_name.as_str()
        && status[place].hotplug_volume.is_some()
        && !claim.is_empty()
        && claim != claim_name
    {
        return None;
    }
    let volume = observed.volumes.iter().find(|volume| volume.claim_name == claim_name)?;
    let attachment = observed.attachments.iter().find(|one| one.metadata.name == pod).copied();
    let (usable, why) = usable(volume);
    match attachment {
        None if usable => {
            let of = source.name.clone();
            steps.push(Step::CreateAttachment {
                volume: of,
                claim: claim_name.to_owned(),
                pod: pod.to_owned(),
            });
        }
        Some(attachment) if attachment.is_down() && !attachment.metadata.deleting() => {
            steps.push(delete(attachment))
        }
        None | Some(_) => {}
    }
    let filled = volume.readiness() == Readiness::Usable;
    let runs = attachment.is_some_and(|one| one.container_ready("hotplug-disk") && !one.metadata.deleting());
    let bound = volume.claim.is_some_and(Claim::is_bound);
    let before = found.map(|place| status[place].phase.as_str());
    let (phase, reason, message) = match before {
        Some(phase) if is_agents(phase) => (phase, None, None),
        _ if runs && filled => {
            let text = format!("Created hotplug attachment pod {pod}, for volume {}", source.name);
            ("AttachedToNode", Some("SuccessfulCreate"), Some(text))
        }
        _ if bound => ("Bound", Some("PVCNotReady"), why.or_else(|| attachment.and_then(pending_reason))),
        _ => ("Pending", Some("PVCNotReady"), why.or_else(|| attachment.and_then(pending_reason))),
    };
    let pod_uid = attachment.map(|one| one.metadata.uid.clone());
    let hotplug = HotplugVolumeStatus { attach_pod_name: Some(pod.to_owned()), attach_pod_uid: pod_uid };
    let Some(place) = found else {
        let mut new = VolumeStatus {
            name: source.name.clone(),
            phase: Some(phase.to_owned()),
            reason: reason.map(str::to_owned),
            message,
            hotplug_volume: Some(hotplug),
            // The agent fills the rest in.
            memory_dump_volume: source.is_dump().then(|| MemoryDumpStatus {
                claim_name: Some(claim_name.to_owned()),
                ..MemoryDumpStatus::default()
            }),
            ..VolumeStatus::default()
        };
        new.persistent_volume_claim_info = Some(info(observed, claim_name, volume.claim));
        return Some(Change::Add(Box::new(new)));
    };
    let entry = &status[place];
    let mut after = written(entry);
    after.phase = Some(phase.to_owned());
    if !is_agents(phase) {
        (after.reason, after.message) = (reason.map(str::to_owned), message);
    }
    after.hotplug_volume = Some(hotplug);
    if volume.claim.is_some() {
        after.persistent_volume_claim_info = Some(info(observed, claim_name, volume.claim));
    }
    (VolumeEntry::from(&after) != *entry).then(|| Change::Set(place, entry.clone(), Box::new(after)))
}

/// Whether a phase is one that the agent enters and leaves.
fn is_agents(phase: &str) -> bool {
    matches!(phase, "MountedToPod" | "Ready") || dump::PHASES.contains(&phase)
}

/// Whether an attachment pod may use a claim, and why not.
fn usable(volume: &Volume<'_>) -> (bool, Option<String>) {
    let claim = volume.claim_name;
    match volume.readiness() {
        Readiness::Usable | Readiness::Consumable | Readiness::ConsumableEmpty => (true, None),
        Readiness::Waits => (false, Some(format!("DataVolume {claim} is not filled yet"))),
        Readiness::Missing => (false, Some(format!("PVC {claim} not found"))),
        Readiness::Failed => (false, Some(format!("DataVolume {claim} failed: see its conditions"))),
    }
}

/// Why an attachment pod does not run yet.
fn pending_reason(pod: &Pod) -> Option<String> {
    let image = pod.image_problem().map(|problem| problem.message.clone());
    let refused = crate::view::condition(&pod.status.conditions, "PodScheduled");
    let refused = refused.filter(|one| one.status == "False").and_then(|one| one.message.clone());
    image.or(refused)
}

/// The facts about a claim in `volumeStatus`, as far as there is one.
fn info(observed: &Observed<'_>, name: &str, claim: Option<&Claim>) -> ClaimInfo {
    let known = claim.map(|claim| volumes::info(observed, claim)).unwrap_or_default();
    ClaimInfo { claim_name: Some(name.to_owned()), ..known }
}

/// An entry as it is written.
fn written(entry: &VolumeEntry) -> VolumeStatus {
    let given = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let claim = &entry.persistent_volume_claim_info;
    VolumeStatus {
        name: entry.name.clone(),
        target: Target(entry.target.clone()),
        phase: given(&entry.phase),
        reason: given(&entry.reason),
        message: given(&entry.message),
        hotplug_volume: entry.hotplug_volume.as_ref().map(|of| HotplugVolumeStatus {
            attach_pod_name: given(&of.attach_pod_name),
            attach_pod_uid: given(&of.attach_pod_uid),
        }),
        persistent_volume_claim_info: given(&claim.claim_name).map(|name| ClaimInfo {
            claim_name: Some(name),
            requests: claim.requests.clone(),
            capacity: claim.capacity.clone(),
            ..ClaimInfo::default()
        }),
        memory_dump_volume: entry.memory_dump_volume.as_ref().map(MemoryDumpStatus::from),
        ..VolumeStatus::default()
    }
}

/// The write of changes; each tests the entry that was decided on, and a new one that the list is the one that lacks it.
pub(super) fn patch(changes: &[Change], instance: &Instance) -> JsonPatch {
    let mut patch = JsonPatch::new();
    let entry = |patch: JsonPatch, place: usize, before: &VolumeEntry| {
        let path = format!("/status/volumeStatus/{place}");
        let phase = if before.phase.is_empty() { Value::Null } else { json!(before.phase) };
        patch.test(format!("{path}/name"), &before.name).test(format!("{path}/phase"), phase)
    };
    for change in changes {
        if let Change::Claim(place, before, after) = change {
            let path = format!("/status/volumeStatus/{place}/persistentVolumeClaimInfo");
            patch = entry(patch, *place, before).add(path, after);
        }
        if let Change::Set(place, before, after) = change {
            let path = format!("/status/volumeStatus/{place}");
            patch = entry(patch, *place, before);
            patch = patch.add(format!("{path}/phase"), &after.phase);
            for (field, value) in [("reason", &after.reason), ("message", &after.message)] {
                patch = patch.add(format!("{path}/{field}"), value.as_deref().unwrap_or_default());
            }
            patch = patch.add(format!("{path}/hotplugVolume"), &after.hotplug_volume);
            let info = after.persistent_volume_claim_info.as_ref();
            if info.is_some_and(|info| info.volume_mode.is_some()) {
                patch = patch.add(format!("{path}/persistentVolumeClaimInfo"), info);
            }
        }
    }
    // From the back, so that removals do not move what is before them.
    let removed = changes.iter().rev();
    for change in removed {
        if let Change::Remove(place, before) = change {
            patch = entry(patch, *place, before).remove(format!("/status/volumeStatus/{place}"));
        }
    }
    let added: Vec<_> = changes
        .iter()
        .filter_map(|change| match change {
            Change::Add(new) => Some(new),
            Change::Set(..) | Change::Claim(..) | Change::Remove(..) => None,
        })
        .collect();
    if added.is_empty() {
        return patch;
    }
    if instance.status.volume_status.is_empty() {
        return patch.test("/status/volumeStatus", Value::Null).add("/status/volumeStatus", added);
    }
    patch = patch.test("/metadata/resourceVersion", &instance.metadata.resource_version);
    for new in added {
        patch = patch.add("/status/volumeStatus/-", new);
    }
    patch
}
