//! Where the programs of a cluster are: those of Kubernetes as `make kube` built them, the rest from Debian.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::place::cache;

/// Folders of the programs that `make kube` builds.
#[derive(Clone, Debug)]
pub struct Programs {
    /// kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy, kubectl.
    pub kubernetes: PathBuf,
    /// etcd.
    pub etcd: PathBuf,
    /// The CNI reference plugins, cnitool, csi-sanity.
    pub judges: PathBuf,
}

impl Programs {
    /// Finds what a cluster runs.
    ///
    /// # Errors
    /// When it is not built.
    pub fn find() -> Result<Self> {
        Ok(Self { kubernetes: built("kubernetes")?, etcd: built("etcd")?, judges: built("judges")? })
    }

    /// Stock kubectl.
    pub fn kubectl(&self) -> PathBuf {
        self.kubernetes.join("kubectl")
    }
}

/// The folder of a module's programs; `kube/build` names it by the same hash.
///
/// # Errors
/// When it is not built.
pub fn built(module: &str) -> Result<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("kube").join(module);
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum", "tools.go"] {
        let file = sources.join(file);
        hash.update(fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    let key: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let folder = cache()?.join("kube").join(format!("{module}-{key}"));
    ensure!(folder.is_dir(), "{} does not exist: run `make kube`", folder.display());
    Ok(folder)
}
