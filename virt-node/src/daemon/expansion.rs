//! Expansion of claims: first the volume, then the disk in it; a running guest is notified.
//!
//! ```text
//! document with a larger request ─► claim's spec ─► CSI expand ─► disk.img or device ─► guest
//! ```
//!
//! Nothing becomes smaller. Each step finds out how large things are, and can be cut short anywhere.

use api::core::PersistentVolumeClaim;
use api::kubevirt::VirtualMachineInstance;
use api::launcher::{RefusedKind, Request};
use api::resource::Quantity;
use serde_json::{Value, json};

use super::controller::{Controller, Outcome, Work};
use super::csi_client::{Driver, Volume};
use super::run::Run;
use super::store::Stored;
use super::volumes::size;
use crate::error::{Error, Kind};
use guest::CallError;
use virt::resolve::claim_of;
use virt::run::Seen;

/// The requested size in a claim's spec.
const REQUEST: &str = "/resources/requests/storage";
/// Guests' disks have whole sectors.
const SECTOR: u64 = 512;

fn bytes(value: Option<&Value>) -> Option<u64> {
    let value = value?;
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    Quantity(text).bytes().ok()
}

/// A claim's spec as it is asked for, as if it did not ask for more than is `kept`: the one change that may be.
pub(super) fn without_growth(kept: &Value, mut asked: Value) -> Value {
    let (before, after) = (kept.pointer(REQUEST), asked.pointer_mut(REQUEST));
    if let (Some(before), Some(after)) = (before, after)
        && bytes(Some(after)) > bytes(Some(before))
    {
        *after = before.clone();
    }
    asked
}

/// Has a claim ask for as much as another form of it.
pub(super) fn ask_for(claim: &mut PersistentVolumeClaim, asked: &PersistentVolumeClaim) {
    if size(&asked.spec.resources) > size(&claim.spec.resources)
        && let Some(wanted) = asked.spec.resources.requests.get("storage")
    {
        claim.spec.resources.requests.insert("storage".to_owned(), wanted.clone());
    }
}

/// Bytes that a claim's volume has.
fn capacity(claim: &PersistentVolumeClaim) -> Option<u64> {
    bytes(claim.other.get("status")?.pointer("/capacity/storage"))
}

/// Whether a claim's volume is smaller than is asked for.
pub(super) fn is_wanted(claim: &PersistentVolumeClaim) -> bool {
    capacity(claim)
        .is_some_and(|capacity| size(&claim.spec.resources).is_some_and(|wanted| wanted > capacity))
}

/// A disk of a guest that runs.
struct Shown {
    run: Run,
    disk: String,
}

impl Controller {
    /// Has a claim's volume grow, once it is known which guests have it.
    pub(super) fn grow(&mut self, claim: &PersistentVolumeClaim) {
        let uid = claim.uid().to_owned();
        let mut shown = Vec::new();
        let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
        let users = self.store.users::<VirtualMachineInstance>(namespace, &claim.metadata.name);
        for run in users.collect::<Vec<_>>() {
            let named = |volume: &&api::kubevirt::Volume| claim_of(volume) == Some(&claim.metadata.name);
            let folder = self.state.run(run.uid());
            for volume in run.spec.volumes.iter().filter(named).filter(|_| folder.exists()) {
                if self.is_busy(run.uid()) || self.is_busy(&format!("{}/{}", run.uid(), volume.name)) {
                    // The end of that job is a message.
                    return;
                }
                if matches!(self.seen(run.uid()), Seen::Guest(_)) {
                    shown.push(Shown { run: folder.clone(), disk: volume.name.clone() });
                }
            }
        }
        let (driver, volume) = (self.driver.clone(), self.volume(claim));
        self.events.add(&claim.key(), false, "Resizing", &format!("to {} bytes", volume.size));
        self.job(&uid, Work::Grow, move |_, _| grow(&driver, &volume, &shown).map(Outcome::Made));
    }

    /// Notes that a claim's volume is larger.
    pub(super) fn grown(&mut self, mut claim: PersistentVolumeClaim, size: u64) -> Result<(), Error> {
        if let Some(status) = claim.other.get_mut("status").and_then(Value::as_object_mut) {
            status.insert("capacity".to_owned(), json!({"storage": size.to_string()}));
        }
        self.events.add(&claim.key(), false, "FileSystemResizeSuccessful", &format!("it has {size} bytes"));
        self.store.put(&claim)
    }
}

/// Expands a volume and the disk in it to the requested size, and notifies guests. Returns the new size.
fn grow(driver: &Driver, volume: &Volume, shown: &[Shown]) -> Result<u64, Error> {
    let capacity = driver.expand(volume)?;
    let size = volume.size / SECTOR * SECTOR;
    let mut told = false;
    for Shown { run, disk } in shown {
        let request = Request::ResizeDisk { name: disk.clone(), size };
        let answer = run.client().map_err(CallError::from).and_then(|mut client| client.call(request));
        match answer {
            Ok(_) => told = true,
            // It ended just now, or has the disk under another one.
            Err(CallError::Refused(RefusedKind::State | RefusedKind::Invalid, _)) => {}
            Err(error) => {
                return Err(Error::with(
                    Kind::System,
                    format!("the guest's disk {disk} does not grow"),
                    error,
                ));
            }
        }
    }
    if !told && !volume.block {
        // One that holds files has no disk in it, nor has one that no guest had yet.
        volume.grow_disk(size)?;
    }
    Ok(capacity)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(request: &str, capacity: &str) -> PersistentVolumeClaim {
        serde_json::from_value(json!({
            "metadata": {"name": "a"},
            "spec": {"resources": {"requests": {"storage": request}}},
            "status": {"phase": "Bound", "capacity": {"storage": capacity}},
        }))
        .unwrap()
    }

    #[test]
    fn a_larger_request_is_the_one_change() {
        let spec = |request: &str, mode: &str| json!({"resources": {"requests": {"storage": request}}, "volumeMode": mode});
        let kept = spec("1Mi", "Block");
        assert_eq!(without_growth(&kept, spec("2Mi", "Block")), kept);
        assert_ne!(without_growth(&kept, spec("2Mi", "Filesystem")), kept);
        for request in ["512Ki", "x"] {
            assert_eq!(without_growth(&kept, spec(request, "Block")), spec(request, "Block"));
        }
        let mut claim = claim("1Mi", "1048576");
        assert!(!is_wanted(&claim));
        ask_for(&mut claim, &self::claim("512Ki", "1"));
        assert!(!is_wanted(&claim), "not less");
        ask_for(&mut claim, &self::claim("3Mi", "1"));
        assert!(is_wanted(&claim));
    }

    #[test]
    fn a_volume_that_is_not_there_does_not_grow() {
        let mut unbound = claim("1Mi", "1");
        unbound.other.clear();
        assert!(!is_wanted(&unbound));
    }
}
