//! The CSI driver in a cluster, by its own manifests: the stock sidecars as images, the stock snapshot-controller with
//! them, a pool on a filesystem that shares blocks. Not here: the driver's image, which is the product's.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use image::archive::{self, Tag};
use image::layer::{self, Member};
use k8s_openapi::api::storage::v1::CSINode;
use kube::api::Api;

use crate::Cluster;
pub use crate::node::POOL;
use crate::node::POOL_DISK;
use crate::programs::built;

/// Name of the driver.
pub const DRIVER: &str = "kubevirt.io.hostpath-provisioner";
/// Namespace of the driver.
pub const NAMESPACE: &str = "hostpath-provisioner";

/// The module that the stock programs are built from.
const SIDECARS: &str = "sidecars";
/// Stock programs that run as containers: the repository that each is of, and its name.
const CONTAINERS: [(&str, &str); 4] = [
    ("external-provisioner", "csi-provisioner"),
    ("external-resizer", "csi-resizer"),
    ("external-snapshotter", "csi-snapshotter"),
    ("external-snapshotter", "snapshot-controller"),
];
/// How long the driver may take until the kubelet knows it.
const READY: Duration = Duration::from_secs(120);

/// The program that makes the volumes of claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Provisioner {
    /// Stock csi-provisioner, csi-resizer and csi-snapshotter, next to the driver, and stock snapshot-controller.
    Sidecars,
    /// The node's agent and the operator; the test runs both. The operator makes the kinds of VolumeSnapshots, too.
    Agent,
}

/// Installs the driver with a pool of `size` bytes and waits until the kubelet knows it. The product's image is loaded
/// already.
///
/// # Errors
/// When a program is not built, or the driver does not come up in time.
pub fn install(cluster: &Cluster, size: u64, provisioner: Provisioner) -> Result<()> {
    prepare(cluster, size)?;
    provision_by(cluster, provisioner)?;
    registered(cluster)
}

/// Makes what the driver needs besides its own manifests: a pool of `size` bytes, and the sidecars' images.
///
/// # Errors
/// When a program is not built, or the node refuses an image or object.
pub fn prepare(cluster: &Cluster, size: u64) -> Result<()> {
    pool(cluster, size).context("cannot make the pool")?;
    cluster.import_images(&images(cluster).context("cannot build the sidecars' images")?)
}

/// Gives the second node a pool of `size` bytes, before it starts for the first time; it has it whenever it is on.
///
/// # Errors
/// When the disk cannot be made.
pub fn prepare_second(cluster: &Cluster, size: u64) -> Result<()> {
    let disk = cluster.place().second().path(POOL_DISK);
    fs::create_dir_all(disk.parent().context("a state folder")?)?;
    formatted(&disk, size)
}

/// Makes the kinds of VolumeSnapshots and their stock controller, or leaves both to the operator and waits for the kinds.
fn snapshots_by(cluster: &Cluster, provisioner: Provisioner) -> Result<()> {
    let controller = Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests").display().to_string();
    match provisioner {
        Provisioner::Sidecars => {
            apply(cluster, &built(SIDECARS)?.join("crds"))?;
            kubectl(cluster, &["apply", "--server-side", "-f", &controller])?;
        }
        Provisioner::Agent => kubectl(cluster, &["delete", "--ignore-not-found", "-f", &controller])?,
    }
    let kinds = ["volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"];
    let kinds = kinds.map(|kind| format!("crd/{kind}.snapshot.storage.k8s.io"));
    let wait = ["wait", "--for=condition=Established", "--timeout=30s"];
    let wait: Vec<&str> = wait.into_iter().chain(kinds.iter().map(String::as_str)).collect();
    let deadline = Instant::now() + READY;
    while let Err(error) = kubectl(cluster, &wait) {
        ensure!(Instant::now() < deadline, "no kinds of VolumeSnapshots after {READY:?}: {error:#}");
        thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Applies the driver's manifests, without the sidecars that the agent replaces where it makes the volumes, and with the
/// stock snapshot-controller where it does not. Switches a cluster that has the driver already.
///
/// # Errors
/// When the driver's pods are not replaced in time.
pub fn provision_by(cluster: &Cluster, provisioner: Provisioner) -> Result<()> {
    snapshots_by(cluster, provisioner)?;
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../hpp-csi/manifests").display().to_string();
    kubectl(cluster, &["apply", "--server-side", "--force-conflicts", "-f", &manifests])?;
    if provisioner == Provisioner::Agent {
        let without = r#"{"spec": {"template": {"spec": {"containers": [
            {"name": "csi-provisioner", "$patch": "delete"}, {"name": "csi-resizer", "$patch": "delete"},
            {"name": "csi-snapshotter", "$patch": "delete"}]}}}}"#;
        let daemon_set = ["-n", NAMESPACE, "patch", "daemonset", "hostpath-provisioner-csi", "-p", without];
        kubectl(cluster, &daemon_set)?;
    }
    kubectl(cluster, &["-n", NAMESPACE, "rollout", "status", "daemonset", "--timeout=120s"])
}

/// Waits until the kubelet has registered the driver.
///
/// # Errors
/// When it does not in time.
pub fn registered(cluster: &Cluster) -> Result<()> {
    let nodes = Api::<CSINode>::all(cluster.client());
    let deadline = Instant::now() + READY;
    loop {
        let node = cluster.run(nodes.get_opt("node1"))?;
        let drivers = node.map(|node| node.spec.drivers).unwrap_or_default();
        if drivers.iter().any(|driver| driver.name == DRIVER) {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the kubelet does not know the driver after {READY:?}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// A sparse file with an XFS.
fn formatted(disk: &Path, size: u64) -> Result<()> {
    File::create_new(disk)?.set_len(size)?;
    run(Command::new("mkfs.xfs").args(["-q", "-f"]).arg(disk))
}

/// An XFS in a file of the cluster's, mounted on the node; it goes with the cluster.
fn pool(cluster: &Cluster, size: u64) -> Result<()> {
    let disk = cluster.place().path(POOL_DISK);
    formatted(&disk, size)?;
    run(cluster.on_node("mkdir")?.args(["-p", POOL]))?;
    run(cluster.on_node("mount")?.args(["-o", "loop"]).arg(&disk).arg(POOL))
}

/// An archive of the stock programs' images, named as the manifests name them.
fn images(cluster: &Cluster) -> Result<PathBuf> {
    let mut members = BTreeMap::new();
    members.insert("tmp".to_owned(), Member::Folder { mode: 0o1777 });
    let mut tags = Vec::new();
    let built = built(SIDECARS)?;
    for (repository, program) in CONTAINERS {
        members.insert(program.to_owned(), Member::File { from: built.join(program), mode: 0o755 });
        tags.push(Tag {
            repository: format!("registry.k8s.io/sig-storage/{program}"),
            name: version(repository)?,
            entrypoint: vec![format!("/{program}")],
            user: None,
        });
    }
    let layer = layer::pack(&members, &cluster.place().path("sidecars.layer"))?;
    let archive = cluster.place().path("sidecars.tar");
    archive::write(&archive, &[layer], &tags)?;
    Ok(archive)
}

/// The version of a repository's programs, as the module requires it.
fn version(repository: &str) -> Result<String> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("kube").join(SIDECARS).join("go.mod");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let program = format!("github.com/kubernetes-csi/{repository}/v");
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(&program));
    let version = line.and_then(|line| line.split(' ').nth(1));
    Ok(version.with_context(|| format!("{} requires no {repository}", file.display()))?.to_owned())
}

fn apply(cluster: &Cluster, path: &Path) -> Result<()> {
    kubectl(cluster, &["apply", "--server-side", "--force-conflicts", "-f", &path.display().to_string()])
}

fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<()> {
    run(cluster.kubectl().args(arguments))
}

fn run(command: &mut Command) -> Result<()> {
    let run = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let said = String::from_utf8_lossy(&run.stderr);
    ensure!(run.status.success(), "{command:?}: {}", said.trim());
    Ok(())
}
