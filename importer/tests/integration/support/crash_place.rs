//! Runs of the importer for the tests of interrupted imports and of archives: by command line or as in a pod.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::importer;

/// A folder to import into, by command line or as a pod's volume.
pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
    /// The environment contract rather than the command line.
    pub(crate) pod: bool,
}

impl Place {
    /// In a folder of its own in `folder`.
    pub(crate) fn within(folder: &Path, pod: bool) -> Self {
        let folder = tempfile::tempdir_in(folder).unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        fs::create_dir(folder.path().join("dev")).unwrap();
        Self { folder, pod }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub(crate) fn disk(&self) -> PathBuf {
        self.data().join("disk.img")
    }

    /// An import of `url`, with a disk of `size` bytes. `more` are further arguments of the command line.
    pub(crate) fn command(&self, url: &str, size: u64, more: &[&str]) -> Command {
        let mut command = importer();
        command.stdout(Stdio::null()).stderr(Stdio::null());
        if self.pod {
            command.envs([
                ("FERROVIRT_IMPORTER_ROOT", self.folder.path().to_str().unwrap()),
                ("FERROVIRT_IMPORTER_METRICS_PORT", "0"),
                ("IMPORTER_SOURCE", "http"),
                ("IMPORTER_ENDPOINT", url),
                ("IMPORTER_CONTENTTYPE", "kubevirt"),
                ("IMPORTER_IMAGE_SIZE", &size.to_string()),
                ("FILESYSTEM_OVERHEAD", "0"),
                ("PREALLOCATION", "false"),
            ]);
        } else {
            command.arg(url).arg(self.disk()).args(more);
        }
        command
    }
}
