//! Volumes of known place, so that a test can inspect the data that a pod has written: local persistent volumes, bound to
//! one claim each, on a folder or a loop device of the cluster's state folder. The claim is made with it, or later by
//! another component.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::Api;
use serde_json::json;

use crate::Cluster;

/// A volume and its claim.
#[derive(Debug)]
pub struct Volume {
    /// The claim's name, which is also the volume's, with the namespace before it.
    pub claim: String,
    /// The claim's id; empty, if another component makes the claim.
    pub uid: String,
    /// A folder, or a loop device.
    path: PathBuf,
    /// The loop device's file; the claim's `volumeMode` is Block then.
    file: Option<PathBuf>,
}

impl Volume {
    /// A folder in which a pod may use `size` bytes by its claim; the limit is not enforced.
    ///
    /// # Errors
    /// When the folder or the objects cannot be made.
    pub fn filesystem(cluster: &Cluster, namespace: &str, claim: &str, size: u64) -> Result<Self> {
        Self::folder(cluster, namespace, claim, size)?.claimed(cluster, namespace, size)
    }

    /// The same without a claim: it is for the one of this name, which another component makes later, with no StorageClass.
    ///
    /// # Errors
    /// When the folder or the volume cannot be made.
    pub fn folder(cluster: &Cluster, namespace: &str, claim: &str, size: u64) -> Result<Self> {
        let path = cluster.place().path("volumes").join(format!("{namespace}-{claim}"));
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        has_room(&path, size)?;
        Self::offer(cluster, namespace, claim, size, path, None)
    }

    /// A loop device of `size` bytes, gone with this value.
    ///
    /// # Errors
    /// When the device or the objects cannot be made.
    pub fn block(cluster: &Cluster, namespace: &str, claim: &str, size: u64) -> Result<Self> {
        Self::device(cluster, namespace, claim, size)?.claimed(cluster, namespace, size)
    }

    /// The same without a claim: it is for the one of this name, which another component makes later, with no StorageClass.
    ///
    /// # Errors
    /// When the device or the volume cannot be made.
    pub fn device(cluster: &Cluster, namespace: &str, claim: &str, size: u64) -> Result<Self> {
        let file = cluster.place().path("volumes").join(format!("{namespace}-{claim}"));
        File::create_new(&file)?.set_len(size)?;
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output()?;
        ensure!(made.status.success(), "losetup: {}", String::from_utf8_lossy(&made.stderr).trim());
        let path = PathBuf::from(String::from_utf8(made.stdout)?.trim());
        Self::offer(cluster, namespace, claim, size, path, Some(file))
    }

    fn offer(
        cluster: &Cluster,
        namespace: &str,
        claim: &str,
        size: u64,
        path: PathBuf,
        file: Option<PathBuf>,
    ) -> Result<Self> {
        let volume = Self { claim: claim.to_owned(), uid: String::new(), path, file };
        let here = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": ["node1"]});
        cluster.create(
            &Api::<PersistentVolume>::all(cluster.client()),
            json!({
                "metadata": {"name": format!("{namespace}-{claim}")},
                "spec": {
                    "capacity": {"storage": size.to_string()},
                    "accessModes": ["ReadWriteOnce"],
                    "volumeMode": volume.mode(),
                    "persistentVolumeReclaimPolicy": "Retain",
                    "claimRef": {"namespace": namespace, "name": claim},
                    "local": {"path": volume.path},
                    "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
                },
            }),
        )?;
        Ok(volume)
    }

    fn claimed(mut self, cluster: &Cluster, namespace: &str, size: u64) -> Result<Self> {
        let created = cluster.create(
            &Api::<PersistentVolumeClaim>::namespaced(cluster.client(), namespace),
            json!({
                "metadata": {"name": self.claim},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "volumeMode": self.mode(),
                    "storageClassName": "",
                    "volumeName": format!("{namespace}-{}", self.claim),
                    "resources": {"requests": {"storage": size.to_string()}},
                },
            }),
        )?;
        self.uid = created.metadata.uid.context("an object has an id")?;
        Ok(self)
    }

    /// The claim's `volumeMode`.
    pub fn mode(&self) -> &'static str {
        if self.is_block() { "Block" } else { "Filesystem" }
    }

    /// Whether pods see a device.
    pub fn is_block(&self) -> bool {
        self.file.is_some()
    }

    /// The folder or the device, on the host.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Without room a pod would fail in its own words, of another size.
fn has_room(path: &Path, size: u64) -> Result<()> {
    let facts = rustix::fs::statvfs(path)?;
    let free = facts.f_bavail * facts.f_frsize;
    ensure!(
        free >= size,
        "{}: {free} bytes are free on its filesystem and a volume needs {size}; free some and run it again",
        path.display()
    );
    Ok(())
}

impl Drop for Volume {
    fn drop(&mut self) {
        let Some(file) = &self.file else { return };
        let Some(name) = self.path.file_name() else { return };
        let backing = Path::new("/sys/block").join(name).join("loop/backing_file");
        // The cluster may have removed it with everything else, and another file may have its number now.
        if fs::read_to_string(backing).is_ok_and(|backing| Path::new(backing.trim_end()) == file) {
            // While a pod uses it the kernel waits; what stays is removed with the cluster.
            let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
        }
    }
}
