//! A launcher pod's files and processes, as the node's root reaches them without trusting anything in the pod.
//!
//! ```text
//! KUBELET/pods/UID  ─ Dir ─►  volumes/kubernetes.io~empty-dir/NAME
//!      └─ launcher: socket in `private` ─► its process: user, pod's cgroup
//!                        └─ process: /proc/PID ─► ns/net, root/… (disks, devices)
//! ```
//!
//! A pod's processes own its emptyDirs: any name in them may be a symbolic link, a FIFO, or gone a moment later. So every
//! name is opened beneath a directory descriptor (lib/dir) and the type of what was opened is checked afterwards.
//!
//! Not here: what a launcher is asked, what its files mean.

pub(crate) mod content;
pub(crate) mod devices;
pub(crate) mod disk;
pub(crate) mod launcher;
pub(crate) mod mount;
pub(crate) mod process;

use std::path::Path;

use dir::{Dir, Durability};

use crate::error::{Error, Kind, Result};

/// Longest note about a pod, in bytes.
const NOTE_MAX: u64 = 64 << 10;

/// The kubelet's directory of one pod.
#[derive(Debug)]
pub(crate) struct PodDirectory {
    directory: Dir,
    uid: String,
}

impl PodDirectory {
    /// The directory of the pod `uid` below the kubelet's; `None`: there is none, the pod is gone.
    ///
    /// # Errors
    /// The uid cannot be one, or the directory cannot be opened.
    pub(crate) fn open(kubelet: &Path, uid: &str) -> Result<Option<Self>> {
        if uid.is_empty() || !uid.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(Error::new(Kind::Content, format!("{uid:?} is not the uid of a pod")));
        }
        let found = Dir::find(kubelet.join("pods").join(uid))?;
        Ok(found.map(|directory| Self { directory, uid: uid.to_owned() }))
    }

    /// The pod's uid.
    pub(crate) fn uid(&self) -> &str {
        &self.uid
    }

    /// The emptyDir `name`; `None`: the kubelet did not make it yet.
    ///
    /// # Errors
    /// It cannot be opened, or is not a directory.
    pub(crate) fn empty_dir(&self, name: &str) -> Result<Option<Dir>> {
        self.volume("kubernetes.io~empty-dir", name)
    }

    /// The same, which must be there.
    ///
    /// # Errors
    /// As [`Self::empty_dir`], or it is not there.
    pub(crate) fn need_empty_dir(&self, name: &str) -> Result<Dir> {
        let text = || format!("pod {} has no emptyDir {name}", self.uid);
        self.empty_dir(name)?.ok_or_else(|| Error::new(Kind::Launcher, text()))
    }

    /// The Secret volume `name`.
    ///
    /// # Errors
    /// As [`Self::empty_dir`].
    pub(crate) fn secret(&self, name: &str) -> Result<Option<Dir>> {
        self.volume("kubernetes.io~secret", name)
    }

    /// The ConfigMap volume `name`.
    ///
    /// # Errors
    /// As [`Self::empty_dir`].
    pub(crate) fn config_map(&self, name: &str) -> Result<Option<Dir>> {
        self.volume("kubernetes.io~configmap", name)
    }

    /// The projected volume `name`.
    ///
    /// # Errors
    /// As [`Self::empty_dir`].
    pub(crate) fn projected(&self, name: &str) -> Result<Option<Dir>> {
        self.volume("kubernetes.io~projected", name)
    }

    /// A record of the agent about the pod, next to the kubelet's volumes: no process of the pod reaches it, and the kubelet
    /// removes it with the pod.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn note(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.directory.read(name, NOTE_MAX)?)
    }

    /// Replaces a note.
    ///
    /// # Errors
    /// It cannot be written.
    pub(crate) fn keep_note(&self, name: &str, content: &[u8]) -> Result<()> {
        Ok(self.directory.replace(name, content, 0o600, Durability::Volatile)?)
    }

    fn volume(&self, plugin: &str, name: &str) -> Result<Option<Dir>> {
        if name.is_empty() || name.contains('/') {
            return Err(Error::new(Kind::Content, format!("{name:?} is not the name of a volume")));
        }
        Ok(self.directory.dir(format!("volumes/{plugin}/{name}"))?)
    }
}
