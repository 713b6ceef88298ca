//! DeleteVolume: out of sight in one step, removed by the worker.

use std::fs::File;
use std::os::fd::AsFd;

use crate::device::Loop;
use crate::driver::Driver;
use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::locks::Thing;
use crate::pool::clone::How;
use crate::pool::{Open, Volume, record_name};
use crate::publications;
use crate::record::Shape;
use crate::sys;

impl Driver {
    /// Deletes a volume. One that is not here is deleted.
    ///
    /// # Errors
    /// [`Kind::Precondition`] when it is staged or published.
    pub(crate) fn delete_volume(&self, id: &Id) -> Result<()> {
        let _volume = self.locks.lock(Thing::Volume(id.clone()))?;
        let _mounts = self.locks.lock(Thing::Mounts(id.clone()))?;
        match self.volume(id)? {
            None => self.forget_copy(&super::volume_in_tmp(id, Some(How::Copy))),
            Some((open, volume)) => self.remove_volume(&open, &volume),
        }
    }

    /// Discards an interrupted copy that no call has resumed.
    pub(super) fn forget_copy(&self, name: &str) -> Result<()> {
        for pool in self.pools.iter().filter(|pool| pool.config.copy) {
            // A pool that is not there now lets go of it by its age.
            if let Ok(open) = pool.open() {
                super::clear(&open, &open.tmp()?, name)?;
            }
        }
        self.wake_worker();
        Ok(())
    }

    /// Deletes a volume. The caller holds its locks.
    pub(super) fn remove_volume(&self, open: &Open<'_>, volume: &Volume) -> Result<()> {
        let id = &volume.id;
        if let Some(path) = self.published.others(id, None)?.first() {
            return Err(Error::new(
                Kind::Precondition,
                format!("volume {id} is published at {}", path.display()),
            ));
        }
        if let Some(file) = open.image(volume)?
            && let Some(found) = self.used_device(open, volume, &file)?
        {
            return Err(Error::new(
                Kind::Precondition,
                format!("volume {id} is staged: {} is attached to it", found.path().display()),
            ));
        }
        super::create::discard(open, id, volume.shape)?;
        open.known.book().remove_volume(id);
        if let Some(project) = volume.record.as_ref().and_then(|record| record.project)
            && let Err(error) = sys::limit_project(open.root.as_fd(), project, 0)
        {
            tracing::warn!(volume = %id, project, %error, "cannot remove the quota limit of a deleted volume's project");
        }
        // A record without its volume is nothing: a crash before this leaves no trace that matters.
        open.volume_records()?.unlink(record_name(id))?;
        tracing::info!(volume = %id, pool = open.pool.config.name, "volume is deleted");
        self.wake_worker();
        Ok(())
    }

    /// A device of a volume's file that is in use. One that a stage left when the driver was killed is detached: it has a
    /// filesystem that is mounted nowhere.
    fn used_device(&self, open: &Open<'_>, volume: &Volume, file: &File) -> Result<Option<Loop>> {
        let devices = open.pool.devices.all(file)?;
        if volume.shape == Shape::Loop && !devices.is_empty() {
            let mounted = publications::mounted_devices()?;
            if devices.iter().all(|device| !mounted.contains(&device.device())) {
                devices.into_iter().try_for_each(Loop::detach)?;
                return Ok(None);
            }
        }
        Ok(devices.first().copied())
    }
}
