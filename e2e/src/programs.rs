//! Where the programs of a cluster are: those of Kubernetes as `make kube` built them, our own network plugins, the rest
//! from Debian.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::place::cache;

/// A release of Kubernetes that a cluster runs; its name is a folder of `kube/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The newest that the platform supports: `kubernetes`.
    Newest,
    /// The oldest: `oldest`.
    Oldest,
}

impl Release {
    /// The one of this process: `FERROVIRT_KUBERNETES=oldest`, otherwise the newest.
    pub fn of_this_run() -> Self {
        let wanted = std::env::var_os("FERROVIRT_KUBERNETES");
        if wanted.is_some_and(|name| name == "oldest") { Self::Oldest } else { Self::Newest }
    }

    /// Its folder's name.
    pub const fn module(self) -> &'static str {
        match self {
            Self::Newest => "kubernetes",
            Self::Oldest => "oldest",
        }
    }
}

/// Folders of the programs that `make kube` builds.
#[derive(Clone, Debug)]
pub struct Programs {
    /// kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy, kubectl.
    pub kubernetes: PathBuf,
    /// etcd.
    pub etcd: PathBuf,
    /// The CNI reference plugins, cnitool, csi-sanity.
    pub judges: PathBuf,
    /// CoreDNS.
    pub dns: PathBuf,
    /// Our own CNI plugins, one static file.
    pub cni: PathBuf,
}

impl Programs {
    /// Finds what a cluster runs.
    ///
    /// # Errors
    /// When it is not built.
    pub fn find() -> Result<Self> {
        let cni = PathBuf::from(
            std::env::var_os("FERROVIRT_CNI")
                .context("FERROVIRT_CNI is not set: `make cni` builds it, make sets it")?,
        );
        ensure!(cni.is_file(), "{} does not exist: run `make cni`", cni.display());
        let [kubernetes, etcd, judges, dns] =
            [Release::of_this_run().module(), "etcd", "judges", "dns"].map(built);
        Ok(Self { kubernetes: kubernetes?, etcd: etcd?, judges: judges?, dns: dns?, cni })
    }

    /// Stock kubectl.
    pub fn kubectl(&self) -> PathBuf {
        self.kubernetes.join("kubectl")
    }
}

/// A program that the same build has made: this package's own, or the client, which runs outside of the cluster.
///
/// # Errors
/// When it is not built.
pub fn of_this_build(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().context("a program has a folder")?;
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    let program = folder.join(name);
    ensure!(program.exists(), "{} does not exist: cargo build --workspace", program.display());
    Ok(program)
}

/// The product's image, an archive.
///
/// # Errors
/// When it is not built.
pub fn image() -> Result<PathBuf> {
    let image = std::env::var_os("FERROVIRT_IMAGE").map(PathBuf::from).filter(|path| path.is_file());
    image.context("FERROVIRT_IMAGE names no file: `make image` builds it, make sets it")
}

/// Whether the product's image is optimised. One for tests has several times more code, which is resident.
///
/// # Errors
/// When it is not built.
pub fn released() -> Result<bool> {
    Ok(!image()?.display().to_string().contains("-debug"))
}

/// The image that VMs run in, an archive.
///
/// # Errors
/// When it is not built.
pub fn launcher_image() -> Result<PathBuf> {
    let image = std::env::var_os("FERROVIRT_LAUNCHER_IMAGE").map(PathBuf::from).filter(|path| path.is_file());
    image.context("FERROVIRT_LAUNCHER_IMAGE names no file: `make image` builds it, make sets it")
}

/// The MAC pool, an optimised build.
///
/// # Errors
/// When it is not built.
pub fn macpool() -> Result<PathBuf> {
    let program = std::env::var_os("FERROVIRT_MACPOOL").map(PathBuf::from).filter(|path| path.is_file());
    program.context("FERROVIRT_MACPOOL names no file: `make build` builds it, make sets it")
}

/// The folder of a module's programs; `kube/build` names it by the same hash.
///
/// # Errors
/// When it is not built.
pub fn built(module: &str) -> Result<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("kube").join(module);
    let mut files = ["go.mod", "go.sum", "tools.go"].map(|file| sources.join(file)).to_vec();
    let folders = fs::read_dir(&sources).with_context(|| format!("cannot read {}", sources.display()))?;
    let mut own: Vec<PathBuf> = folders.flatten().map(|entry| entry.path().join("main.go")).collect();
    own.retain(|file| file.exists());
    own.sort();
    files.extend(own);
    let mut hash = Sha256::new();
    for file in files {
        hash.update(fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    let key: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    let folder = cache()?.join("kube").join(format!("{module}-{key}"));
    ensure!(folder.is_dir(), "{} does not exist: run `make kube`", folder.display());
    Ok(folder)
}
