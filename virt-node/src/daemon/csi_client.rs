//! Volumes from hpp-csi over its socket: the calls that a cluster's sidecars and kubelet make, in their order.
//!
//! ```text
//! claims/UID/    the importer's root: data/ (the volume's filesystem) or dev/cdi-block-volume (its device)
//!            stage/  where the driver keeps what it needs once per volume
//!            device  where the driver puts a device
//! ```
//!
//! All calls are idempotent, as CSI's are.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use csi::controller_client::ControllerClient;
use csi::node_client::NodeClient;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi::volume_content_source::{Type, VolumeSource};
use csi::{
    CapacityRange, ControllerExpandVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest,
    NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest, NodeUnpublishVolumeRequest,
    NodeUnstageVolumeRequest, VolumeCapability, VolumeContentSource,
};
use dir::{Dir, Owner};
use rustix::fs::{CWD, FileType, Mode as FileMode, mknodat};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use super::disk::{self, Access};
use super::process;
use crate::error::{Error, Kind};

/// How long one call may take: a clone may be a copy.
const TIMEOUT: Duration = Duration::from_secs(3600);
/// How long the driver may take to serve.
const START: Duration = Duration::from_secs(30);
/// The node of a volume's device, in `dev` of its folder.
const DEVICE: &str = "cdi-block-volume";
/// The one pool.
pub(super) const POOL: &str = "default";

/// The driver of a state folder.
#[derive(Clone, Debug)]
pub(super) struct Driver {
    folder: PathBuf,
}

/// A volume, as far as calls name it.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    /// UID of its claim.
    pub(super) uid: String,
    /// Its folder.
    pub(super) folder: PathBuf,
    pub(super) block: bool,
    /// Bytes that were asked for.
    pub(super) size: u64,
}

impl Volume {
    fn id(&self) -> String {
        format!("pvc-{}", self.uid)
    }

    fn target(&self) -> PathBuf {
        self.folder.join(if self.block { "device" } else { "data" })
    }

    /// The file or device that is the disk.
    pub(super) fn disk(&self) -> PathBuf {
        self.folder.join(if self.block { "dev/cdi-block-volume" } else { "data/disk.img" })
    }

    /// Lets a transfer fill the volume.
    ///
    /// # Errors
    /// It is not shown.
    pub(super) fn open_to(&self, transfer: Owner) -> Result<(), Error> {
        let opened = match self.block {
            true => self.give_device(Access::writers(transfer)),
            false => disk::begin(&self.target(), transfer),
        };
        opened.map_err(|error| Error::with(Kind::System, "cannot hand over the volume", error))
    }

    /// Takes the volume back after a transfer, which changes no name in it any more.
    ///
    /// # Errors
    /// It is not shown.
    pub(super) fn close(&self) -> Result<(), Error> {
        let closed = if self.block { Ok(()) } else { disk::close(&self.target()) };
        closed.map_err(|error| Error::with(Kind::System, "cannot take back the volume", error))
    }

    /// Gives the disk to its users; a volume without content gets an empty disk of the claim's size.
    ///
    /// # Errors
    /// Something else than a disk has its name.
    pub(super) fn give(&self, access: Access) -> Result<(), Error> {
        let given = match self.block {
            true => self.give_device(access),
            false => self.close_then(|| disk::blank(&self.target(), access, self.size)),
        };
        given.map_err(|error| Error::with(Kind::Content, "cannot prepare the disk of the volume", error))
    }

    /// The same after a transfer, which made the disk; it gets at least the claim's size.
    ///
    /// # Errors
    /// There is none, or a file of another type has its name.
    pub(super) fn finish(&self, owner: Owner) -> Result<(), Error> {
        let access = Access::writers(owner);
        let given = match self.block {
            true => self.give_device(access),
            false => self.close_then(|| match disk::give(&self.target(), access, Some(self.size))? {
                Some(()) => Ok(()),
                None => Err(dir::Error::new("find the disk that was made", io::ErrorKind::NotFound)),
            }),
        };
        given.map_err(|error| Error::with(Kind::Content, "cannot prepare the disk of the volume", error))
    }

    /// Makes the disk of a volume that is no device at least this large, where there is one.
    ///
    /// # Errors
    /// Something else than a disk has its name.
    pub(super) fn grow_disk(&self, size: u64) -> Result<bool, Error> {
        disk::grow(&self.target(), size)
            .map_err(|error| Error::with(Kind::Content, "cannot prepare the disk of the volume", error))
    }

    fn close_then(&self, work: impl FnOnce() -> dir::Result<()>) -> dir::Result<()> {
        disk::close(&self.target())?;
        work()
    }

    /// Gives away the node of the device, which lies in a directory of root's.
    fn give_device(&self, access: Access) -> dir::Result<()> {
        let failed =
            |error: io::Error| dir::Error::new(format!("give away {}", self.disk().display()), error);
        let dir = Dir::open(self.folder.join("dev"))?;
        // By its name: opening a device may have an effect.
        let node = dir.handle(DEVICE)?.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        drop(node);
        dir.chown(DEVICE, access.owner)?;
        let path = self.folder.join("dev").join(DEVICE);
        fs::set_permissions(path, fs::Permissions::from_mode(access.mode())).map_err(failed)
    }

    fn capability(&self) -> Option<VolumeCapability> {
        let access_type = if self.block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume::default())
        };
        let access_mode = AccessMode { mode: Mode::SingleNodeMultiWriter.into() };
        Some(VolumeCapability { access_mode: Some(access_mode), access_type: Some(access_type) })
    }
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

impl Driver {
    /// The driver with its socket and state in `csi` of a state directory, and its pool in `volumes`.
    pub(super) fn new(state: &Path) -> Self {
        Self { folder: state.to_owned() }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("csi/csi.sock")
    }

    fn log(&self) -> PathBuf {
        self.folder.join("csi/log")
    }

    /// Starts it, unless it lives; waits until it serves.
    pub(super) fn start(&self) -> Result<Option<Child>, Error> {
        let failed = |error| process::unstarted("hpp-csi", error);
        let pools = serde_json::json!([{
            "name": POOL, "path": self.folder.join("volumes"), "enforce": "none", "copy": true,
            // A volume stays published; the daemon copies none that a guest uses.
            "copyPublished": true, "readWriteMany": true,
        }]);
        let mut command = Command::new(process::program("hpp-csi"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .arg(format!("--endpoint=unix://{}", self.socket().display()))
            .arg(format!("--datadir={pools}"))
            .args(["--nodeid=this", "--single-node", "--metrics-address=off", "--v=1"]);
        let mut child = match process::start(command, &self.log()) {
            Ok(child) => Some(child),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
            Err(error) => return Err(failed(error)),
        };
        let until = Instant::now() + START;
        while UnixStream::connect(self.socket()).is_err() {
            let ended = child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)));
            if ended || Instant::now() > until {
                let said = process::last_words(&self.log());
                return Err(Error::new(Kind::System, format!("hpp-csi does not serve: {said}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(child)
    }

    /// Ends it, also when it is just being started.
    pub(super) fn stop(&self) {
        let until = Instant::now() + START;
        while self.lives() && Instant::now() < until {
            let asked = UnixStream::connect(self.socket()).and_then(|stream| process::stop_peer(&stream, 0));
            if asked.is_ok() {
                process::ended(&self.log(), START);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Whether it lives.
    pub(super) fn lives(&self) -> bool {
        process::lives(&self.log())
    }

    /// Runs calls on a connection of their own.
    fn call<T>(&self, what: &str, calls: impl AsyncFnOnce(Channel) -> Result<T, Status>) -> Result<T, Error> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::new(Kind::System, format!("{what}: the volumes' driver: {error}"))
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(&error))?;
        let endpoint = Endpoint::from_shared(format!("unix:{}", self.socket().display()));
        let endpoint = endpoint.map_err(|error| failed(&error))?.timeout(TIMEOUT);
        runtime.block_on(async {
            let channel = endpoint.connect().await;
            let channel =
                channel.map_err(|_| failed(&"hpp-csi is not running; virt-node events shows why"))?;
            calls(channel).await.map_err(|status| failed(&status.message()))
        })
    }

    /// Makes a volume of at least its size, with the blocks of another one where one is named, and shows it in its
    /// folder. Answers its size.
    pub(super) fn make(&self, volume: &Volume, source: Option<&str>, pool: &str) -> Result<u64, Error> {
        let parameters = HashMap::from([
            ("storagePool".to_owned(), pool.to_owned()),
            ("copy".to_owned(), "true".to_owned()),
        ]);
        let source = source.map(|uid| VolumeContentSource {
            r#type: Some(Type::Volume(VolumeSource { volume_id: format!("pvc-{uid}") })),
        });
        let request = CreateVolumeRequest {
            name: volume.id(),
            capacity_range: Some(CapacityRange {
                required_bytes: i64::try_from(volume.size).unwrap_or(i64::MAX),
                limit_bytes: 0,
            }),
            volume_capabilities: volume.capability().into_iter().collect(),
            parameters,
            volume_content_source: source,
            ..CreateVolumeRequest::default()
        };
        let made = self.call("the volume cannot be made", async |channel| {
            let mut controller = ControllerClient::new(channel);
            loop {
                match controller.create_volume(request.clone()).await {
                    // It is being made, by a call of a daemon that is gone.
                    Err(status) if status.code() == Code::Aborted => {
                        tokio::time::sleep(Duration::from_secs(1)).await;
                    }
                    answer => return answer,
                }
            }
        })?;
        self.publish(volume)?;
        let capacity = made.into_inner().volume.map_or(0, |volume| volume.capacity_bytes);
        Ok(u64::try_from(capacity).unwrap_or(0).max(volume.size))
    }

    /// Publishes a volume in its directory. Its owner stays.
    pub(super) fn publish(&self, volume: &Volume) -> Result<(), Error> {
        let failed = |error| {
            Error::with(Kind::System, format!("{} cannot be prepared", volume.folder.display()), error)
        };
        // The directory stays closed until the volume, which the driver opens to all users, is closed.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&volume.folder).map_err(failed)?;
        for name in ["dev", "stage"] {
            fs::create_dir_all(volume.folder.join(name)).map_err(failed)?;
        }
        let (id, stage) = (volume.id(), text(&volume.folder.join("stage")));
        let stage_request = NodeStageVolumeRequest {
            volume_id: id.clone(),
            staging_target_path: stage.clone(),
            volume_capability: volume.capability(),
            ..NodeStageVolumeRequest::default()
        };
        let publish_request = NodePublishVolumeRequest {
            volume_id: id,
            staging_target_path: stage,
            target_path: text(&volume.target()),
            volume_capability: volume.capability(),
            ..NodePublishVolumeRequest::default()
        };
        self.call("the volume cannot be used", async |channel| {
            let mut node = NodeClient::new(channel);
            node.node_stage_volume(stage_request).await?;
            node.node_publish_volume(publish_request).await
        })?;
        match volume.block {
            true => device(volume).map_err(failed)?,
            false => disk::close_new(&volume.target()).map_err(|error| failed(error.into()))?,
        }
        for name in [".", "dev"] {
            let open = fs::Permissions::from_mode(0o711);
            fs::set_permissions(volume.folder.join(name), open).map_err(failed)?;
        }
        Ok(())
    }

    /// Makes a volume at least as large as is asked for, also while it is in use. Answers its size.
    pub(super) fn expand(&self, volume: &Volume) -> Result<u64, Error> {
        self.publish(volume)?;
        let range = Some(CapacityRange {
            required_bytes: i64::try_from(volume.size).unwrap_or(i64::MAX),
            limit_bytes: 0,
        });
        let (target, stage) = (text(&volume.target()), text(&volume.folder.join("stage")));
        let grown = self.call("the volume does not grow", async |channel| {
            let request = ControllerExpandVolumeRequest {
                volume_id: volume.id(),
                capacity_range: range,
                volume_capability: volume.capability(),
                ..ControllerExpandVolumeRequest::default()
            };
            let mut controller = ControllerClient::new(channel.clone());
            let grown = controller.controller_expand_volume(request).await?.into_inner();
            if grown.node_expansion_required {
                let request = NodeExpandVolumeRequest {
                    volume_id: volume.id(),
                    volume_path: target,
                    staging_target_path: stage,
                    capacity_range: range,
                    volume_capability: volume.capability(),
                    ..NodeExpandVolumeRequest::default()
                };
                NodeClient::new(channel).node_expand_volume(request).await?;
            }
            Ok(grown)
        })?;
        Ok(u64::try_from(grown.capacity_bytes).unwrap_or(0).max(volume.size))
    }

    /// Takes a volume away with all that is in it; one that is not there is gone.
    pub(super) fn remove(&self, volume: &Volume) -> Result<(), Error> {
        let (id, stage) = (volume.id(), text(&volume.folder.join("stage")));
        let target = text(&volume.target());
        self.call("the volume cannot be removed", async |channel| {
            let mut node = NodeClient::new(channel.clone());
            node.node_unpublish_volume(NodeUnpublishVolumeRequest {
                volume_id: id.clone(),
                target_path: target,
            })
            .await?;
            node.node_unstage_volume(NodeUnstageVolumeRequest {
                volume_id: id.clone(),
                staging_target_path: stage,
            })
            .await?;
            let request = DeleteVolumeRequest { volume_id: id, ..DeleteVolumeRequest::default() };
            ControllerClient::new(channel).delete_volume(request).await
        })?;
        let (Some(above), Some(name)) = (volume.folder.parent(), volume.folder.file_name()) else {
            return Ok(());
        };
        let removed = Dir::open(above).and_then(|dir| dir.remove_all(name));
        removed.map(drop).map_err(|error| Error::with(Kind::System, "the volume's directory stays", error))
    }
}

/// A node for the device that the driver shows, to be given away: the machine's own stays root's.
fn device(volume: &Volume) -> io::Result<()> {
    let facts = volume.target().metadata()?;
    if !facts.file_type().is_block_device() {
        return Err(io::Error::other(format!("{} is no block device", volume.target().display())));
    }
    let path = volume.disk();
    if path.metadata().is_ok_and(|node| node.rdev() == facts.rdev()) {
        return Ok(());
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    mknodat(CWD, &path, FileType::BlockDevice, FileMode::from_raw_mode(0o600), facts.rdev())?;
    Ok(())
}
