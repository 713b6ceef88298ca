//! A dump of a guest's memory into a claim that is attached for it.
//!
//! ```text
//! AttachedToNode ─ name and time written ─► MemoryDumpInProgress ─ launcher ─► MemoryDumpCompleted | MemoryDumpFailed
//! ```
//! The name of the file is in the status before anything is written, so a dump that was cut short is repeated into the same
//! file. Not here: when there is to be a dump (the operator), the dump itself (the launcher).

use std::sync::Arc;

use api::kubevirt::{MemoryDumpStatus, VolumeStatus};
use api::launcher::{self, Answer, Dump, Request};
use cluster::event::Type;
use virt::live::dump::{COMPLETED, FAILED, IN_PROGRESS};
use virt::pod as place;
use virt::time;

use super::super::disks;
use super::super::talk::unexpected;
use super::{Done, Guest, enter, on_thread};
use crate::error::{Kind, Result};

impl Guest<'_> {
    /// Takes a dump one step further.
    pub(super) async fn dump(&mut self, volume: &mut VolumeStatus, done: &mut Done) -> Result<()> {
        let name = volume.name.clone();
        if volume.phase.as_deref() != Some(IN_PROGRESS) {
            begin(volume, &self.instance.name, time::now());
            let text = format!("Memory dump Volume {name} is attached, getting memory dump");
            enter(volume, IN_PROGRESS, "VolumeMountedToPod", text, done);
            // Once that is written.
            done.again = true;
            return Ok(());
        }
        let file = file(volume);
        let (attachments, process, of) = (self.attachments.clone(), Arc::clone(&self.process), file.clone());
        on_thread(move || disks::shown_for_dump(&name, &of, &attachments, &process)).await?;
        let path = format!("{}/{file}", place::HOTPLUG);
        let state = match self.talk.call(Request::Dump { path: path.clone() }).await {
            Ok(Answer::Status(seen)) => state(&seen, &path),
            Ok(_) => return Err(unexpected()),
            Err(error) if error.kind() == Kind::Content => {
                Some(Dump { path, ended: true, error: Some(error.chain()) })
            }
            Err(error) => return Err(error),
        };
        match state.filter(|dump| dump.ended) {
            None => done.again = true,
            Some(dump) => end(volume, dump.error, done),
        }
        Ok(())
    }

    /// Takes the file of a dump away; whether it is gone: one that is being written is not.
    pub(super) async fn release_dump(&mut self, dump: &MemoryDumpStatus) -> Result<bool> {
        let Some(file) = dump.target_file_name.clone() else { return Ok(true) };
        let path = format!("{}/{file}", place::HOTPLUG);
        let Answer::Status(seen) = self.talk.call(Request::Status).await? else { return Err(unexpected()) };
        if state(&seen, &path).is_some_and(|dump| !dump.ended) {
            return Ok(false);
        }
        let process = Arc::clone(&self.process);
        on_thread(move || disks::hidden(&file, &process)).await?;
        Ok(true)
    }
}

/// Writes down the file and the time of a dump.
fn begin(volume: &mut VolumeStatus, instance: &str, now: u64) {
    let stamp: String = time::text(now).chars().filter(char::is_ascii_digit).collect();
    let (day, hour) = stamp.split_at(stamp.len().min(8));
    let file = format!("{instance}-{}-{day}-{hour}.memory.dump", volume.name);
    let dump = volume.memory_dump_volume.get_or_insert_default();
    dump.claim_name.get_or_insert_with(|| volume.name.clone());
    dump.target_file_name = Some(file);
    (dump.start_timestamp, dump.end_timestamp) = (Some(time::text(now)), None);
}

fn file(volume: &VolumeStatus) -> String {
    let dump = volume.memory_dump_volume.as_ref();
    dump.and_then(|dump| dump.target_file_name.clone()).unwrap_or_else(|| volume.name.clone())
}

/// The dump into this file, as the launcher reports it.
fn state(seen: &launcher::Status, path: &str) -> Option<Dump> {
    seen.dump.clone().filter(|dump| dump.path == path)
}

/// Records the end of a dump.
fn end(volume: &mut VolumeStatus, error: Option<String>, done: &mut Done) {
    let name = volume.name.clone();
    volume.memory_dump_volume.get_or_insert_default().end_timestamp = Some(time::text(time::now()));
    match error {
        None => {
            let text = format!("Memory dump to Volume {name} has completed successfully");
            enter(volume, COMPLETED, "VolumeReady", text, done);
        }
        Some(error) => {
            let text = format!("Memory dump to pvc {name} failed: {error}");
            volume.phase = Some(FAILED.to_owned());
            (volume.reason, volume.message) = (Some("VolumeReady".to_owned()), Some(text.clone()));
            done.events.push((Type::Warning, "MemoryDumpFailed", text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_has_a_file_of_its_own_before_it_begins() {
        let mut volume = VolumeStatus { name: "claim".into(), ..VolumeStatus::default() };
        begin(&mut volume, "vm", 1_795_282_205);
        assert_eq!(file(&volume), "vm-claim-20261121-173005.memory.dump");
        let dump = volume.memory_dump_volume.clone().unwrap();
        assert_eq!(dump.start_timestamp.as_deref(), Some("2026-11-21T17:30:05Z"));
        let mut done = Done::default();
        end(&mut volume, None, &mut done);
        assert_eq!(volume.phase.as_deref(), Some(COMPLETED));
        assert!(volume.memory_dump_volume.as_ref().unwrap().end_timestamp.is_some());
        end(&mut volume, Some("no space".into()), &mut done);
        assert_eq!(volume.phase.as_deref(), Some(FAILED));
        assert_eq!(volume.message.as_deref(), Some("Memory dump to pvc claim failed: no space"));
    }
}
