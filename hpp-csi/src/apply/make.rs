//! Making a volume. It is made aside and appears in one step:
//!
//! ```text
//! tmp/v.<id> (quota, content) ─► sync ─► record, sync ─► rename to its place, unless taken ─► sync
//! ```
//!
//! Not here: whether it is made, and of which size ([`crate::plan::volume`]).

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsFd;

use rustix::fs::fstat;

use crate::config::Enforce;
use crate::error::{Error, Kind, Result};
use crate::fault;
use crate::id::Id;
use crate::latency;
use crate::pool::clone::{self, How};
use crate::pool::{IMAGE, Open, record_name, tree};
use crate::record::{Record, Shape};
use crate::sys;
use dir::Dir;

use super::content::{Content, From};
use super::image::{self, Note};

/// A volume that is to be made.
#[derive(Clone, Copy)]
pub(super) struct New<'a> {
    pub(super) id: &'a Id,
    /// The filesystem that is asked for; empty when any is good.
    pub(super) filesystem: &'a str,
    pub(super) content: Option<&'a Content>,
}

/// Makes the volume; on failure nothing of it is left.
pub(super) fn make(open: &Open<'_>, new: &New<'_>, mut record: Record) -> Result<()> {
    let New { id, content, .. } = *new;
    let tmp = open.tmp()?;
    let name = super::volume_in_tmp(id, content.map(|content| content.how));
    super::ready(open, &tmp, &name, || is_resumable(&tmp, &name, content))?;
    let made = build(open, &tmp, &name, new, &mut record).and_then(|used| {
        content.map_or(Ok(()), Content::is_whole)?;
        super::write_volume_record(open, id, &record)?;
        let home = super::home(open, record.shape)?;
        if !tmp.rename_new(&name, &home, id)? {
            let path = home.path_of(id);
            return Err(Error::new(
                Kind::Exists,
                format!("{} exists and was not created by this driver; move it away", path.display()),
            ));
        }
        let shared = content.filter(|content| content.how == How::Share);
        let used_by_source = match shared.map(|content| &content.from) {
            Some(From::Image(file, _)) => bytes_of(file)?,
            Some(From::Folder(_)) | None => 0,
        };
        let mut book = open.known.book();
        book.note_made(id, &record, used, if shared.is_some() { 0 } else { used });
        if let Some(source) = shared.and_then(Content::volume) {
            book.note_shared(source.as_str(), used_by_source);
        }
        drop(book);
        fault::step("sync the new volume's name")?;
        Ok(home.sync()?)
    });
    if made.is_err() {
        undo(open, &tmp, &name, id);
    }
    made
}

/// Whether what is there under `name` is a copy of the content that an earlier try began.
fn is_resumable(tmp: &Dir, name: &str, content: Option<&Content>) -> Result<bool> {
    let Some(content) = content else { return Ok(false) };
    match (&content.from, content.shape) {
        (From::Folder(_), _) => super::is_copy_of_tree(&content.name, tmp, name),
        (From::Image(from, _), Shape::Block) => super::is_copy_of_file(from, tmp, name),
        (From::Image(from, _), Shape::Folder | Shape::Loop) => match tmp.dir(name)? {
            Some(folder) => super::is_copy_of_file(from, &folder, IMAGE),
            None => Ok(false),
        },
    }
}

/// Removes what was begun. What cannot be removed now is swept at the next start.
fn undo(open: &Open<'_>, tmp: &Dir, name: &str, id: &Id) {
    let undone = (|| {
        super::clear(open, tmp, name)?;
        if open.volume(id)?.is_none() {
            open.volume_records()?.unlink(record_name(id))?;
        }
        Ok::<(), Error>(())
    })();
    if let Err(error) = undone {
        tracing::warn!(volume = %id, error = %error.chain(), "cannot remove the remains of a failed call");
    }
}

/// Makes the volume's folder or file in the folder of what is being made. Gives the bytes it uses.
fn build(open: &Open<'_>, tmp: &Dir, name: &str, new: &New<'_>, record: &mut Record) -> Result<u64> {
    let New { id, filesystem, content } = *new;
    fault::step("prepare the volume")?;
    match record.shape {
        Shape::Folder => {
            // Upstream's mode: all that the umask leaves.
            tmp.make_dir(name, 0o777)?;
            let folder = tmp.need_dir(name)?;
            if open.enforce() == Some(Enforce::Quota) {
                record.project = Some(limit(open, &folder, id, record.capacity)?);
            }
            let mut used = 0;
            if let Some(Content { from: From::Folder(from), how, name, .. }) = content {
                let trash = open.trash()?;
                let begun = super::begun(&folder, name, *how, &trash);
                used = latency::count(&latency::CLONES, || clone::tree(from, &folder, *how, begun))?;
            }
            fault::step("sync the new folder")?;
            folder.sync()?;
            Ok(used)
        }
        Shape::Block => {
            let file = super::file_to_fill(tmp, name, content.map(|content| content.how))?;
            fill(open, tmp, &file, record.capacity, content)?;
            bytes_of(&file)
        }
        Shape::Loop => {
            tmp.make_dir(name, 0o700)?;
            let folder = tmp.need_dir(name)?;
            let file = super::file_to_fill(&folder, IMAGE, content.map(|content| content.how))?;
            fill(open, tmp, &file, record.capacity, content)?;
            if content.is_none() {
                fault::step("make a filesystem")?;
                image::format(&file, filesystem, record.capacity)?;
            }
            folder.sync()?;
            bytes_of(&file)
        }
    }
}

/// Bytes that a volume's file uses.
fn bytes_of(file: &File) -> Result<u64> {
    fstat(file).map(|stat| tree::bytes(&stat)).map_err(|error| Error::io("inspect a volume's file", error))
}

/// Gives a new file its content and size, and syncs it.
fn fill(open: &Open<'_>, tmp: &Dir, file: &File, capacity: u64, content: Option<&Content>) -> Result<()> {
    if let Some(Content { from: From::Image(from, id), how, shape, .. }) = content {
        image::cut(&open.pool.devices, from, file, *shape, *how, &Note::new(tmp, id))?;
    }
    fault::step("size the file")?;
    file.set_len(capacity).map_err(|error| Error::io("set the size of a volume", error))?;
    dir::fsync(file).map_err(|error| Error::io("sync a volume", error))
}

/// Puts a folder under a project of its own that is limited to `bytes`. Gives the project.
fn limit(open: &Open<'_>, folder: &Dir, id: &Id, bytes: u64) -> Result<u32> {
    let io = |error| Error::io(format!("limit volume {id} by quota"), error);
    let taken: HashSet<u32> =
        open.known.book().volumes.values().filter_map(|line| line.record.as_ref()?.project).collect();
    // A copy that goes on has its project.
    let has = sys::project_of(folder.as_fd()).map_err(io)?;
    if has >= FIRST_PROJECT && !taken.contains(&has) {
        sys::limit_project(folder.as_fd(), has, bytes).map_err(io)?;
        return Ok(has);
    }
    let mut project = first_project(id);
    // Others may use projects too: one that holds anything is not ours.
    while taken.contains(&project)
        || sys::project_usage(folder.as_fd(), project).map_err(io)?.is_some_and(|used| used > 0)
    {
        project = project.checked_add(1).unwrap_or(FIRST_PROJECT);
    }
    sys::set_project(folder.as_fd(), project).map_err(io)?;
    sys::limit_project(folder.as_fd(), project, bytes).map_err(io)?;
    Ok(project)
}

/// Smaller numbers are given by hand.
const FIRST_PROJECT: u32 = 1 << 20;

/// Where to look for a free project: a hash of the id (FNV-1a), so that volumes rarely meet.
fn first_project(id: &Id) -> u32 {
    let hash = id
        .as_str()
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash | FIRST_PROJECT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn projects_are_out_of_the_way_of_hand_made_ones() {
        assert!(first_project(&Id::read("pvc-1").unwrap()) >= FIRST_PROJECT);
    }
}
