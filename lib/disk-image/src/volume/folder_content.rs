//! What a folder holds besides ext's own folder.

use std::path::Path;

/// ext's own folder; neither content nor ours to remove.
pub(super) const LOST_AND_FOUND: &str = "lost+found";

/// Removes what `folder` holds.
pub(super) fn empty_folder(folder: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_name() == LOST_AND_FOUND {
            continue;
        }
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
