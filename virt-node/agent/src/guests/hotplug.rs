//! Volumes that come to a guest that runs and go, and processors and memory that come.
//!
//! ```text
//! AttachedToNode ─ disk shown to the launcher ─► MountedToPod ─ attached to the guest ─► Ready
//! Detaching ─ guest lets go ─ disk hidden ─► UnMountedFromPod          (the operator makes the other phases)
//! ```
//!
//! Each move can be cut short anywhere: the next attempt finds what is shown and what the guest has, and changes nothing
//! twice. Not here: attachment pods (the operator), which volumes are to move ([`virt::live`]).

mod dump;

use std::sync::Arc;

use api::kubevirt::{VirtualMachineInstanceStatus as Status, VolumeStatus};
use api::launch::{DiskDevice, Media};
use api::launcher::{self, Answer, Request};
use cluster::event::Type;
use virt::live::{self, Move};
use virt::status::amount;

use super::disks::{self, Attachments};
use super::instance::Instance;
use super::launch::{self, Site};
use super::pod::Pod;
use super::talk::{Talk, unexpected};
use crate::error::{Error, Kind, Result};
use crate::pods::PodDirectory;
use crate::pods::process::Process;

/// Outcome of an attempt.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Events: whether each is a warning, reason, text.
    pub(super) events: Vec<(Type, &'static str, String)>,
    /// Something is to be looked at again soon, without another change.
    pub(super) again: bool,
    /// How the guest is since then.
    pub(super) seen: Option<launcher::Status>,
}

/// A guest with volumes to attach or detach.
struct Guest<'a> {
    site: &'a Site,
    instance: &'a Arc<Instance>,
    pod: &'a Arc<Pod>,
    attachments: &'a Attachments,
    talk: Talk,
    process: Arc<Process>,
}

/// Does what can be done now, and notes it in `status`.
///
/// # Errors
/// The launcher does not answer. The failure of one volume is recorded in its status.
pub(super) async fn work(
    site: &Site,
    instance: &Arc<Instance>,
    pod: &Arc<Pod>,
    attachments: &Attachments,
    status: &mut Status,
) -> Result<Done> {
    let moves = live::moves(&instance.spec, &status.volume_status);
    let moves: Vec<Move> = moves.into_iter().filter(|one| is_due(one, &status.volume_status)).collect();
    let size = live::size_wanted(&instance.spec, status);
    let mut done = Done::default();
    let dumps = live::dumps(&instance.spec, &status.volume_status);
    let devices = on_devices(&status.volume_status);
    let idle = moves.is_empty() && dumps.is_empty() && size.is_none();
    if idle && devices.is_empty() {
        return Ok(done);
    }
    let (talk, process) = match connect(site, pod).await {
        // The guest has its devices open.
        Err(_) if idle => return Ok(done),
        other => other?,
    };
    let mut guest = Guest { site, instance, pod, attachments, talk, process: Arc::new(process) };
    guest.keep_permitted(devices).await;
    if idle {
        return Ok(done);
    }
    for one in &moves {
        let (Move::Attach(name) | Move::Detach(name)) = one;
        let Some(place) = status.volume_status.iter().position(|volume| volume.name == *name) else {
            continue;
        };
        let volume = &mut status.volume_status[place];
        let moved = match one {
            Move::Attach(_) => guest.attach(volume, &mut done).await,
            Move::Detach(_) => guest.detach(volume, &mut done).await,
        };
        if let Err(error) = moved {
            not_moved(&instance.name, volume, &error, &mut done);
        }
    }
    for name in &dumps {
        let Some(volume) = status.volume_status.iter_mut().find(|volume| volume.name == *name) else {
            continue;
        };
        if let Err(error) = guest.dump(volume, &mut done).await {
            not_moved(&instance.name, volume, &error, &mut done);
        }
    }
    if let Some((sockets, memory)) = size {
        guest.grow(sockets, memory, status, &mut done).await;
    }
    if let Answer::Status(seen) = guest.talk.call(Request::Status).await? {
        done.seen = Some(seen);
    }
    Ok(done)
}

/// Connects to the launcher of a pod; gives its first process, too.
async fn connect(site: &Site, pod: &Pod) -> Result<(Talk, Process)> {
    let gone = || Error::new(Kind::Launcher, format!("pod {} has no directory", pod.name));
    let directory = PodDirectory::open(&site.kubelet, &pod.uid)?.ok_or_else(gone)?;
    Talk::open(&Arc::new(directory)).await
}

/// Volumes that the guest has as block devices.
fn on_devices(volumes: &[VolumeStatus]) -> Vec<String> {
    let found = volumes.iter().filter(|volume| {
        let claim = volume.persistent_volume_claim_info.as_ref();
        volume.hotplug_volume.is_some()
            && volume.phase.as_deref() == Some("Ready")
            && claim.is_some_and(|claim| claim.volume_mode.as_deref() == Some("Block"))
    });
    found.map(|volume| volume.name.clone()).collect()
}

/// Notes why a volume is not where it is to be.
fn not_moved(instance: &str, volume: &mut VolumeStatus, error: &Error, done: &mut Done) {
    let text = error.chain();
    tracing::warn!(
        vmi = instance,
        volume = volume.name,
        error = text,
        "cannot attach or detach a volume; retrying"
    );
    done.again = true;
    if error.kind() != Kind::Launcher && volume.message.as_deref() != Some(&text) {
        (volume.reason, volume.message) = (Some("HotplugFailed".to_owned()), Some(text.clone()));
        done.events.push((Type::Warning, "HotplugFailed", format!("volume {}: {text}", volume.name)));
    }
}

/// Whether the agent has something to do for a move: the operator makes the phases before.
fn is_due(one: &Move, volumes: &[VolumeStatus]) -> bool {
    let phase = |name: &str| {
        let found = volumes.iter().find(|volume| volume.name == name);
        found.and_then(|volume| volume.phase.as_deref()).unwrap_or_default().to_owned()
    };
    match one {
        Move::Attach(name) => matches!(phase(name).as_str(), "AttachedToNode" | "MountedToPod"),
        Move::Detach(name) => phase(name) == "Detaching",
    }
}

/// Enters a phase, with its event.
fn enter(volume: &mut VolumeStatus, phase: &str, reason: &'static str, text: String, done: &mut Done) {
    if volume.phase.as_deref() == Some(phase) {
        return;
    }
    volume.phase = Some(phase.to_owned());
    (volume.reason, volume.message) = (Some(reason.to_owned()), Some(text.clone()));
    done.events.push((Type::Normal, reason, text));
}

impl Guest<'_> {
    /// Has the launcher keep the right to open the devices that its guest has. What fails is tried again with the next
    /// change: the guest has them open.
    async fn keep_permitted(&mut self, devices: Vec<String>) {
        for name in devices {
            let (process, of) = (Arc::clone(&self.process), name.clone());
            if let Err(error) = on_thread(move || disks::permitted(&of, &process)).await {
                tracing::warn!(
                    vmi = self.instance.name,
                    volume = name,
                    error = error.chain(),
                    "the container of a guest may not open its device again; retrying"
                );
            }
        }
    }

    async fn attach(&mut self, volume: &mut VolumeStatus, done: &mut Done) -> Result<()> {
        let name = volume.name.clone();
        let (site, instance, pod) = (self.site.clone(), Arc::clone(self.instance), Arc::clone(self.pod));
        let (attachments, process, of) = (self.attachments.clone(), Arc::clone(&self.process), name.clone());
        let claim = volume.persistent_volume_claim_info.clone();
        let shown = move || {
            let backend = disks::attached(&of, claim.as_ref(), &attachments, &process)?;
            launch::disk(&site, &instance, &pod, &of, backend)
        };
        let disk = on_thread(shown).await?;
        let text = format!("Volume {name} has been mounted in virt-launcher pod");
        enter(volume, "MountedToPod", "VolumeMountedToPod", text, done);
        let request = match (disk.device, disk.media.clone()) {
            (DiskDevice::Cdrom, Media::Storage(storage)) => {
                Request::Insert { name: name.clone(), storage: Box::new(storage) }
            }
            (DiskDevice::Cdrom | DiskDevice::Disk | DiskDevice::Lun, _) => {
                Request::AttachDisk(Box::new(disk))
            }
        };
        self.talk.call(request).await?;
        let text = format!("Successfully attach hotplugged volume {name} to VM");
        enter(volume, "Ready", "VolumeReady", text, done);
        Ok(())
    }

    async fn detach(&mut self, volume: &mut VolumeStatus, done: &mut Done) -> Result<()> {
        let name = volume.name.clone();
        if let Some(dump) = volume.memory_dump_volume.clone() {
            if !self.release_dump(&dump).await? {
                done.again = true;
                return Ok(());
            }
            let text = format!("Volume {name} has been unmounted from virt-launcher pod");
            enter(volume, "UnMountedFromPod", "VolumeUnMountedFromPod", text, done);
            return Ok(());
        }
        if live::is_in_drive(&self.instance.spec, &name) {
            self.talk.call(Request::Eject(name.clone())).await?;
        } else {
            let Answer::Layout(layout) = self.talk.call(Request::DetachDisk(name.clone())).await? else {
                return Err(unexpected());
            };
            if layout.has(&format!("disk-{name}")) {
                // The guest releases it in its time; the launcher reports that.
                done.again = true;
                return Ok(());
            }
        }
        let (process, of) = (Arc::clone(&self.process), name.clone());
        on_thread(move || disks::detached(&of, &process)).await?;
        let text = format!("Volume {name} has been unmounted from virt-launcher pod");
        enter(volume, "UnMountedFromPod", "VolumeUnMountedFromPod", text, done);
        volume.target.0.clear();
        Ok(())
    }

    /// Gives the guest processors and memory.
    async fn grow(&mut self, sockets: u32, memory: u64, status: &mut Status, done: &mut Done) {
        let topology = status.current_cpu_topology.clone().unwrap_or_default();
        let processors = sockets * topology.cores.unwrap_or(1) * topology.threads.unwrap_or(1);
        match self.talk.call(Request::Grow { processors, memory }).await {
            Ok(_) => {
                if let Some(status) = &mut status.memory {
                    status.guest_requested = Some(amount(memory));
                }
            }
            Err(error) => {
                let text = error.chain();
                tracing::warn!(
                    vmi = self.instance.name,
                    error = text,
                    "cannot add vCPUs or memory to a guest; retrying"
                );
                done.events.push((Type::Warning, "HotplugFailed", text));
                done.again = true;
            }
        }
    }
}

async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| {
        Err(Error::new(
            Kind::System,
            "attaching or detaching a volume was aborted: the thread panicked; see the agent's log",
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_volumes_that_are_on_the_node_are_moved() {
        let volume = |phase: &str| {
            vec![VolumeStatus { name: "a".into(), phase: Some(phase.into()), ..VolumeStatus::default() }]
        };
        let (attach, detach) = (Move::Attach("a".into()), Move::Detach("a".into()));
        for (phase, attaches, detaches) in [
            ("Pending", false, false),
            ("Bound", false, false),
            ("AttachedToNode", true, false),
            ("MountedToPod", true, false),
            ("Ready", false, false),
            ("Detaching", false, true),
            ("UnMountedFromPod", false, false),
        ] {
            let volumes = volume(phase);
            assert_eq!(
                (is_due(&attach, &volumes), is_due(&detach, &volumes)),
                (attaches, detaches),
                "{phase}"
            );
        }
        assert!(!is_due(&attach, &[]));
    }

    #[test]
    fn devices_of_plugged_block_volumes_are_kept_permitted() {
        let volume = |phase: &str, mode: &str, plugged: bool| {
            let mut volume = serde_json::json!({
                "name": format!("{phase}-{mode}-{plugged}"), "phase": phase,
                "persistentVolumeClaimInfo": {"claimName": "c", "volumeMode": mode},
            });
            if plugged {
                volume["hotplugVolume"] = serde_json::json!({"attachPodName": "hp-volume-a"});
            }
            serde_json::from_value::<VolumeStatus>(volume).unwrap()
        };
        let volumes = [
            volume("Ready", "Block", true),
            volume("Ready", "Block", false),
            volume("Ready", "Filesystem", true),
            volume("Detaching", "Block", true),
            volume("AttachedToNode", "Block", true),
        ];
        assert_eq!(on_devices(&volumes), ["Ready-Block-true"]);
        assert!(on_devices(&[VolumeStatus::default()]).is_empty());
    }
}
