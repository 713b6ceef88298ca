//! Shared by the tests of the built driver: filesystems of their own, a running driver, a client. Processes and mounts of a
//! test are removed when it ends, also when it fails. Not here: anything the product uses.

#![allow(clippy::print_stderr, reason = "what a failed test shows")]

pub(crate) mod place;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use csi::controller_client::ControllerClient;
use csi::group_controller_client::GroupControllerClient;
use csi::identity_client::IdentityClient;
use csi::node_client::NodeClient;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode};
use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use csi::*;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use place::Place;

pub(crate) const KIB: i64 = 1 << 10;
pub(crate) const MIB: i64 = 1 << 20;
pub(crate) const GIB: i64 = 1 << 30;

/// A running driver; killed when dropped.
pub(crate) struct Driver {
    child: Child,
    folder: PathBuf,
}

impl Driver {
    /// Starts a driver of the node `node` with its socket and memory in `folder`, and waits until it serves.
    pub(crate) fn start(folder: &Path, node: &str, pools: &str, more: &[&str]) -> Self {
        fs::create_dir_all(folder).unwrap();
        let log = fs::File::options().create(true).append(true).open(folder.join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_hpp-csi"));
        command
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .arg("--drivername=kubevirt.io.hostpath-provisioner")
            .arg(format!("--endpoint=unix://{}", folder.join("csi.sock").display()))
            .arg(format!("--nodeid={node}"))
            .arg(format!("--datadir={pools}"))
            .args(["--version=test", "--v=4", "--metrics-address=off"])
            .args(more)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let mut driver = Self { child: command.spawn().unwrap(), folder: folder.to_path_buf() };
        let until = Instant::now() + Duration::from_secs(20);
        while !driver.socket().exists() {
            assert!(driver.child.try_wait().unwrap().is_none(), "the driver ended:\n{}", driver.log());
            assert!(Instant::now() < until, "the driver does not serve:\n{}", driver.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        driver
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.join("csi.sock")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Ends it in order, by SIGTERM; gives its exit code.
    pub(crate) fn stop(mut self) -> Option<i32> {
        let id = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }

    /// Ends it at once, by SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(&self.socket())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The next driver of this directory recreates it, and waits for that.
        let _ = fs::remove_file(self.socket());
        if std::thread::panicking() {
            eprintln!("--- the driver's log\n{}", self.log());
        }
    }
}

/// A client of all services; calls wait.
pub(crate) struct Client {
    runtime: tokio::runtime::Runtime,
    channel: Channel,
}

macro_rules! call {
    ($name:ident, $client:ident, $request:ty, $response:ty) => {
        pub(crate) fn $name(&self, request: $request) -> Result<$response, Status> {
            let mut client = $client::new(self.channel.clone());
            self.runtime.block_on(client.$name(request)).map(tonic::Response::into_inner)
        }
    };
}

impl Client {
    pub(crate) fn new(socket: &Path) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let socket = socket.to_path_buf();
        let connect = tower::service_fn(move |_| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        // A driver that never answers fails its test.
        let endpoint = Endpoint::from_static("http://localhost").timeout(Duration::from_secs(120));
        let channel = runtime.block_on(endpoint.connect_with_connector(connect)).unwrap();
        Self { runtime, channel }
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) fn runtime(&self) -> &tokio::runtime::Runtime {
        &self.runtime
    }

    call!(probe, IdentityClient, ProbeRequest, ProbeResponse);
    call!(create_volume, ControllerClient, CreateVolumeRequest, CreateVolumeResponse);
    call!(delete_volume, ControllerClient, DeleteVolumeRequest, DeleteVolumeResponse);
    call!(list_volumes, ControllerClient, ListVolumesRequest, ListVolumesResponse);
    call!(get_capacity, ControllerClient, GetCapacityRequest, GetCapacityResponse);
    call!(
        controller_get_capabilities,
        ControllerClient,
        ControllerGetCapabilitiesRequest,
        ControllerGetCapabilitiesResponse
    );
    call!(controller_get_volume, ControllerClient, ControllerGetVolumeRequest, ControllerGetVolumeResponse);
    call!(
        controller_expand_volume,
        ControllerClient,
        ControllerExpandVolumeRequest,
        ControllerExpandVolumeResponse
    );
    call!(
        validate_volume_capabilities,
        ControllerClient,
        ValidateVolumeCapabilitiesRequest,
        ValidateVolumeCapabilitiesResponse
    );
    call!(create_snapshot, ControllerClient, CreateSnapshotRequest, CreateSnapshotResponse);
    call!(
        controller_modify_volume,
        ControllerClient,
        ControllerModifyVolumeRequest,
        ControllerModifyVolumeResponse
    );
    call!(
        create_volume_group_snapshot,
        GroupControllerClient,
        CreateVolumeGroupSnapshotRequest,
        CreateVolumeGroupSnapshotResponse
    );
    call!(
        delete_volume_group_snapshot,
        GroupControllerClient,
        DeleteVolumeGroupSnapshotRequest,
        DeleteVolumeGroupSnapshotResponse
    );
    call!(
        get_volume_group_snapshot,
        GroupControllerClient,
        GetVolumeGroupSnapshotRequest,
        GetVolumeGroupSnapshotResponse
    );
    call!(delete_snapshot, ControllerClient, DeleteSnapshotRequest, DeleteSnapshotResponse);
    call!(get_snapshot, ControllerClient, GetSnapshotRequest, GetSnapshotResponse);
    call!(list_snapshots, ControllerClient, ListSnapshotsRequest, ListSnapshotsResponse);
    call!(node_stage_volume, NodeClient, NodeStageVolumeRequest, NodeStageVolumeResponse);
    call!(node_unstage_volume, NodeClient, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse);
    call!(node_publish_volume, NodeClient, NodePublishVolumeRequest, NodePublishVolumeResponse);
    call!(node_unpublish_volume, NodeClient, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse);
    call!(node_get_volume_stats, NodeClient, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse);
    call!(node_expand_volume, NodeClient, NodeExpandVolumeRequest, NodeExpandVolumeResponse);

    /// Makes a volume and gives it.
    pub(crate) fn create(&self, request: CreateVolumeRequest) -> Volume {
        self.create_volume(request).unwrap().volume.unwrap()
    }

    pub(crate) fn delete(&self, id: &str) {
        self.delete_volume(DeleteVolumeRequest { volume_id: id.into(), ..Default::default() }).unwrap();
    }

    /// Takes a snapshot and gives it.
    pub(crate) fn snapshot(&self, name: &str, source: &str) -> Snapshot {
        let request = CreateSnapshotRequest {
            name: name.into(),
            source_volume_id: source.into(),
            ..Default::default()
        };
        self.create_snapshot(request).unwrap().snapshot.unwrap()
    }

    /// Names of all volumes.
    pub(crate) fn volumes(&self) -> Vec<String> {
        let list = self.list_volumes(ListVolumesRequest::default()).unwrap();
        list.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect()
    }

    /// Names of all snapshots.
    pub(crate) fn snapshots(&self) -> Vec<String> {
        let list = self.list_snapshots(ListSnapshotsRequest::default()).unwrap();
        list.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id).collect()
    }

    /// Bytes that may still be promised in the legacy pool.
    pub(crate) fn available(&self) -> i64 {
        self.get_capacity(GetCapacityRequest::default()).unwrap().available_capacity
    }

    /// Usage and condition of a volume that is in use at `path`.
    pub(crate) fn stats(&self, id: &str, path: &Path) -> NodeGetVolumeStatsResponse {
        let request = NodeGetVolumeStatsRequest {
            volume_id: id.into(),
            volume_path: path.to_str().unwrap().into(),
            ..Default::default()
        };
        self.node_get_volume_stats(request).unwrap()
    }

    pub(crate) fn unpublish(&self, id: &str, target: &Path) {
        let target_path = target.to_str().unwrap().to_owned();
        let request = NodeUnpublishVolumeRequest { volume_id: id.into(), target_path };
        when_unused(|| self.node_unpublish_volume(request.clone()).map(drop));
    }

    pub(crate) fn unstage(&self, id: &str, staging: &Path) {
        let staging_target_path = staging.to_str().unwrap().to_owned();
        let request = NodeUnstageVolumeRequest { volume_id: id.into(), staging_target_path };
        when_unused(|| self.node_unstage_volume(request.clone()).map(drop));
    }
}

/// A driver of `node1` with the legacy pool, with more keys, on a place's filesystem; and a client of it.
pub(crate) fn one_pool(place: &Place, more: &str) -> (Driver, Client) {
    let driver = one_pool_of("node1", place, more, &[]);
    let client = driver.client();
    (driver, client)
}

/// The same of the node `node`, with more arguments.
pub(crate) fn one_pool_of(node: &str, place: &Place, more: &str, arguments: &[&str]) -> Driver {
    let pools = format!("[{}]", pool("legacy", &place.pool(), more));
    Driver::start(&place.beside("run"), node, &pools, arguments)
}

/// A pool of the data-dir JSON, with more keys.
pub(crate) fn pool(name: &str, path: &Path, more: &str) -> String {
    format!(r#"{{"name":{name:?},"path":{:?}{more}}}"#, path.to_str().unwrap())
}

pub(crate) fn mount() -> VolumeCapability {
    capability(Mode::SingleNodeWriter, AccessType::Mount(MountVolume::default()))
}

pub(crate) fn block() -> VolumeCapability {
    capability(Mode::SingleNodeWriter, AccessType::Block(BlockVolume {}))
}

pub(crate) fn capability(mode: Mode, access_type: AccessType) -> VolumeCapability {
    VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access_type) }
}

/// A CreateVolume of `bytes` in the legacy pool.
pub(crate) fn volume(name: &str, bytes: i64, capability: VolumeCapability) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        volume_capabilities: vec![capability],
        ..Default::default()
    }
}

pub(crate) fn from_snapshot(id: &str) -> Option<VolumeContentSource> {
    Some(VolumeContentSource { r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id: id.into() })) })
}

pub(crate) fn from_volume(id: &str) -> Option<VolumeContentSource> {
    Some(VolumeContentSource { r#type: Some(Type::Volume(VolumeSource { volume_id: id.into() })) })
}

pub(crate) fn stage(id: &str, staging: &Path, capability: VolumeCapability) -> NodeStageVolumeRequest {
    NodeStageVolumeRequest {
        volume_id: id.into(),
        staging_target_path: staging.to_str().unwrap().into(),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

pub(crate) fn publish(
    id: &str,
    staging: &Path,
    target: &Path,
    capability: VolumeCapability,
) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: id.into(),
        staging_target_path: staging.to_str().unwrap().into(),
        target_path: target.to_str().unwrap().into(),
        volume_capability: Some(capability),
        ..Default::default()
    }
}

pub(crate) fn parameters(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// How often to do something: `full` times for the soak, `small` by default.
pub(crate) fn count(small: usize, full: usize) -> usize {
    if std::env::var_os("FERROVIRT_SOAK").is_some() { full } else { small }
}

/// The code and the message of a call that must fail.
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, Status>) -> (Code, String) {
    let status = result.unwrap_err();
    (status.code(), status.message().to_owned())
}

/// Repeats a call, as the kubelet does, while another process has the mount or the device open. A mount namespace made in
/// between, by any other test on this machine, holds our mounts and with them the devices until it ends; a process between
/// fork and exec holds our open files.
pub(crate) fn when_unused(call: impl Fn() -> Result<(), Status>) {
    let until = Instant::now() + Duration::from_secs(300);
    while let Err(status) = call() {
        assert!(status.code() == Code::FailedPrecondition && Instant::now() < until, "{status:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until `done`, for at most ten seconds.
pub(crate) fn eventually(what: &str, done: impl Fn() -> bool) {
    let until = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < until, "not within ten seconds: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Names in a folder, in order.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}
