//! Work in the node's own network and mount namespaces, where CNI plugins have to run: their programs, configurations and
//! state are files of the node, and they make interfaces on it.
//!
//! A thread enters and ends there; the processes that it starts stay inside.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use link::Namespace;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::definition;
use crate::error::{Error, Kind, Result};
use crate::sys;

/// Folders in which container runtimes keep network namespaces as files.
const KEPT: [&str; 2] = ["/run/netns", "/var/run/netns"];
/// Most files of configurations that are read, and the longest in bytes.
const FILES_MAX: usize = 256;
const FILE_MAX: u64 = 1 << 20;

/// The node's namespaces.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    /// Path of its network namespace.
    pub(crate) network: PathBuf,
    /// Path of its mount namespace; `None`: the agent is in it.
    pub(crate) mounts: Option<PathBuf>,
    /// Its directory of CNI configurations.
    pub(crate) configurations: PathBuf,
}

impl Default for Node {
    /// The namespaces of the node's first process, which the DaemonSet lets the agent see.
    fn default() -> Self {
        Self {
            network: "/proc/1/ns/net".into(),
            mounts: Some("/proc/1/ns/mnt".into()),
            configurations: "/etc/cni/net.d".into(),
        }
    }
}

impl Node {
    /// Does `work` on the node.
    ///
    /// # Errors
    /// A namespace cannot be entered; the error of `work`.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let network = Namespace::open(&self.network)?;
        let failed = |error: std::io::Error| {
            Error::system("the node's mount namespace cannot be entered: the agent needs hostPID", error)
        };
        let mounts = self.mounts.as_ref().map(File::open).transpose().map_err(failed)?;
        let enter = || -> Result<T> {
            network.enter()?;
            if let Some(mounts) = &mounts {
                sys::own_root().map_err(failed)?;
                move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))
                    .map_err(|errno| failed(errno.into()))?;
            }
            work()
        };
        let done = std::thread::scope(|scope| scope.spawn(enter).join());
        done.unwrap_or_else(|_| Err(Error::new(Kind::System, "the thread on the node ended before its work")))
    }

    /// A path of the namespace that holds on the node: the file that the container runtime keeps it as, which is never
    /// reused, or `otherwise`. On the node.
    pub(crate) fn path_of(namespace: &Namespace, otherwise: PathBuf) -> PathBuf {
        let files = KEPT.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
        let same = |path: &PathBuf| {
            let found = Namespace::find(path).ok().flatten();
            found.is_some_and(|found| found.is(namespace))
        };
        files.map(|file| file.path()).find(same).unwrap_or(otherwise)
    }

    /// The node's CNI configurations, in the order of their names. On the node.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn files(&self) -> Result<Vec<definition::File>> {
        let folder = &self.configurations;
        let failed = |error| Error::system(format!("cannot read {}", folder.display()), error);
        let mut paths = Vec::new();
        for file in std::fs::read_dir(folder).map_err(failed)? {
            let path = file.map_err(failed)?.path();
            let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default();
            if ["conf", "conflist", "json"].contains(&kind) {
                paths.push(path);
            }
        }
        paths.sort();
        let text = |path: &PathBuf| Some((name(path), read(path)?));
        Ok(paths.iter().take(FILES_MAX).filter_map(text).collect())
    }

    /// The name of the pod network: of the first configuration, which the container runtime uses.
    pub(crate) fn pod_network(&self) -> String {
        let first = self.files().ok().and_then(|files| files.into_iter().next());
        first.and_then(|(_, text)| definition::name_of(&text)).unwrap_or_default()
    }
}

fn name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The text of a file of root's directory; `None` where it cannot be read or is too long.
fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    let file = File::open(path).ok()?;
    let length = file.take(FILE_MAX + 1).read_to_string(&mut text).ok()?;
    (u64::try_from(length).ok()? <= FILE_MAX).then_some(text)
}
