//! Pools of a `HostPathProvisioner` that are volumes of claims, volumes of upstream's provisioner without CSI, and changed
//! blocks for a client outside of the node.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use api::hostpath::{METADATA_PORT, METADATA_SERVICE};
use csi::controller_client::ControllerClient;
use csi::snapshotmetadata::snapshot_metadata_client::SnapshotMetadataClient;
use csi::snapshotmetadata::{GetMetadataAllocatedRequest, GetMetadataDeltaRequest};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::platform::hostpath::{DRIVER, OBJECT, PLATFORM, apply, bound, claim, get};
use crate::platform::place::PLACE;
use crate::platform::streams::Streams;

/// Volumes of the pool `legacy`.
const LEGACY: &str = "/var/lib/hpvolumes";

fn patch_pools(patch: &Value) {
    PLACE.kubectl(&["patch", OBJECT, "--type=json", "-p", &patch.to_string()]).unwrap();
}

/// Waits for a condition of the object with a reason; gives its message.
#[track_caller]
fn condition(kind: &str, reason: &str) -> String {
    PLACE.until(PLATFORM, &format!("the object is {kind} with {reason}"), || {
        let object = get("", OBJECT)?;
        let all = object["status"]["conditions"].as_array()?.clone();
        let one = all.iter().find(|one| one["type"] == kind && one["status"] == "True")?;
        (one["reason"] == reason).then(|| one["message"].as_str().unwrap_or_default().to_owned())
    })
}

fn class(name: &str, provisioner: &str, parameters: &Value) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": name},
        "provisioner": provisioner, "volumeBindingMode": "Immediate", "parameters": parameters,
    });
    apply(name, &class, &[]).unwrap();
}

/// A PersistentVolume that is a directory of the node.
fn directory(name: &str, path: &str, more: &Value) -> Value {
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "hostPath": {"path": path, "type": "DirectoryOrCreate"},
        },
    });
    for (key, value) in more.as_object().unwrap() {
        let into = if key == "annotations" { &mut volume["metadata"] } else { &mut volume["spec"] };
        into[key] = value.clone();
    }
    volume
}

#[test]
fn a_pool_on_a_claim_is_mounted_by_its_pod_and_leaves_when_its_volumes_are_gone() {
    let namespace = "claimed-pool";
    PLACE.namespace(namespace);
    let disk = directory(
        "disk-of-a-pool",
        "/var/lib/disk-of-a-pool",
        &json!({"storageClassName": "disks-of-pools", "persistentVolumeReclaimPolicy": "Retain"}),
    );
    apply("disk-of-a-pool", &disk, &[]).unwrap();
    // A volume of upstream's provisioner; its claim is gone.
    let left = PLACE.cluster.node_path(&format!("{LEGACY}/left-over")).unwrap();
    fs::create_dir_all(&left).unwrap();
    fs::write(left.join("file"), "old").unwrap();
    let old = directory(
        "left-over",
        &format!("{LEGACY}/left-over"),
        &json!({
            "annotations": {
                "hostPathProvisionerIdentity": "kubevirt.io/hostpath-provisioner-node1",
                "pv.kubernetes.io/provisioned-by": "kubevirt.io/hostpath-provisioner",
            },
            "storageClassName": "before", "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"namespace": namespace, "name": "gone", "uid": "5c9ba1f6-5a5c-4f0f-9a04-5f3a1b1c2d3e"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node1"]},
            ]}]}},
        }),
    );
    apply("left-over", &old, &[]).unwrap();
    let pool = json!({
        "name": "disk", "path": "/var/lib/claimed-pool",
        "pvcTemplate": {
            "storageClassName": "disks-of-pools", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    });
    patch_pools(&json!([{"op": "add", "path": "/spec/storagePools/-", "value": pool}]));
    let status = PLACE.until(PLATFORM, "the pool is ready", || {
        let object = get("", OBJECT)?;
        let pools = object["status"]["storagePoolStatuses"].as_array()?.clone();
        pools.into_iter().find(|pool| pool["name"] == "disk" && pool["phase"] == "Ready")
    });
    assert_eq!((&status["desiredReady"], &status["currentReady"]), (&json!(1), &json!(1)), "{status}");
    let of = &status["claimStatuses"][0];
    assert_eq!((&of["name"], &of["status"]["phase"]), (&json!("hpp-pool-disk-node1"), &json!("Bound")));
    condition("Available", "Complete");
    PLACE.until(PLATFORM, "the old volume is deleted", || get("", "pv/left-over").is_none().then_some(()));
    assert!(!left.exists());
    class("on-the-disk", DRIVER, &json!({"storagePool": "disk"}));
    apply("claim-on-the-disk", &claim("on-the-disk", 64), &["-n", namespace]).unwrap();
    let (_, volume) = bound(namespace, "on-the-disk");
    let name = volume["metadata"]["name"].as_str().unwrap();
    let on_disk = PLACE.cluster.node_path(&format!("/var/lib/disk-of-a-pool/{name}")).unwrap();
    assert!(on_disk.is_dir(), "the volume is on the claim's volume");
    let objects = get("", OBJECT).unwrap()["spec"]["storagePools"].as_array().unwrap().len();
    patch_pools(&json!([{"op": "remove", "path": format!("/spec/storagePools/{}", objects - 1)}]));
    let waits = condition("Progressing", "VolumesExist");
    assert!(waits.contains(&format!("{name} of {namespace}/on-the-disk")), "{waits}");
    assert!(get(PLATFORM, "deployment/hpp-pool-disk-node1").is_some(), "the pool stays");
    PLACE.kubectl(&["-n", namespace, "delete", "pvc", "on-the-disk"]).unwrap();
    PLACE.until(PLATFORM, "the pool is gone", || {
        get(PLATFORM, "deployment/hpp-pool-disk-node1").is_none().then_some(())
    });
    condition("Available", "Complete");
    assert!(!on_disk.exists());
    let below = PLACE.cluster.node_path("/var/lib/claimed-pool/csi").unwrap();
    assert_eq!(fs::read_dir(below).unwrap().count(), 0, "nothing was written below the mount point");
    assert!(get(PLATFORM, "job/cleanup-pool-disk-node1").is_none());
    // Data stays with the claim.
    PLACE.kubectl(&["-n", PLATFORM, "delete", "pvc", "hpp-pool-disk-node1"]).unwrap();
    PLACE.kubectl(&["delete", "pv", "disk-of-a-pool"]).unwrap();
    PLACE.kubectl(&["delete", "storageclass", "on-the-disk"]).unwrap();
    PLACE.remove_namespace(namespace);
}

#[test]
fn a_claim_of_a_legacy_class_gets_a_volume_of_the_driver() {
    let namespace = "legacy-class";
    PLACE.namespace(namespace);
    class("legacy-class", "kubevirt.io/hostpath-provisioner", &json!({}));
    let mut wanted = claim("legacy-class", 64);
    wanted["metadata"]["annotations"] = json!({"kubevirt.io/provisionOnNode": "node1"});
    apply("legacy-claim", &wanted, &["-n", namespace]).unwrap();
    let (_, volume) = bound(namespace, "legacy-class");
    assert_eq!(volume["spec"]["csi"]["driver"], DRIVER);
    let name = volume["metadata"]["name"].as_str().unwrap();
    // Larger than the node's pool: no other node is chosen.
    let mut vast = claim("legacy-class", 1 << 20);
    vast["metadata"] = json!({"name": "vast", "annotations": wanted["metadata"]["annotations"]});
    apply("legacy-vast", &vast, &["-n", namespace]).unwrap();
    PLACE.until(namespace, "the event names the annotation of the vast claim", || {
        let events = PLACE.kubectl(&["-n", namespace, "get", "events"]).unwrap();
        events.contains("the annotation kubevirt.io/provisionOnNode names this node").then_some(())
    });
    let kept = get(namespace, "pvc/vast").unwrap();
    assert_eq!(kept["metadata"]["annotations"]["kubevirt.io/provisionOnNode"], "node1");
    PLACE.kubectl(&["-n", namespace, "delete", "pvc", "--all"]).unwrap();
    PLACE
        .until(namespace, "the volume is deleted", || get("", &format!("pv/{name}")).is_none().then_some(()));
    PLACE.kubectl(&["delete", "storageclass", "legacy-class"]).unwrap();
    PLACE.remove_namespace(namespace);
}

/// The driver, by its socket; another test may have its pod replaced at the moment.
#[track_caller]
pub(crate) fn driver() -> ControllerClient<Channel> {
    let folder = PLACE.cluster.node_path("/var/lib/kubelet/plugins/csi-hostpath").unwrap();
    let folder = Arc::new(fs::File::open(folder).unwrap());
    // The socket's own path is too long.
    let socket = format!("/proc/self/fd/{}/csi.sock", std::os::fd::AsRawFd::as_raw_fd(folder.as_ref()));
    PLACE.until(PLATFORM, "the driver listens", || std::os::unix::net::UnixStream::connect(&socket).ok());
    let connector = tower::service_fn(move |_| {
        let (folder, socket) = (Arc::clone(&folder), socket.clone());
        async move {
            let stream = UnixStream::connect(socket).await;
            drop(folder);
            stream.map(TokioIo::new)
        }
    });
    let endpoint = Endpoint::from_static("http://localhost");
    ControllerClient::new(PLACE.cluster.run(endpoint.connect_with_connector(connector)).unwrap())
}

/// A client as a backup program makes it, by the driver's SnapshotMetadataService; its host is at this address.
async fn backup(service: &Value, address: &str) -> SnapshotMetadataClient<Channel> {
    use base64::Engine;
    let authorities = service["spec"]["caCert"].as_str().unwrap();
    let authorities = base64::prelude::BASE64_STANDARD.decode(authorities).unwrap();
    let mut tls = serve::tls::client_config(std::str::from_utf8(&authorities).unwrap(), None).unwrap();
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let (host, port) = service["spec"]["address"].as_str().unwrap().rsplit_once(':').unwrap();
    let (address, port, host) = (address.to_owned(), port.parse::<u16>().unwrap(), host.to_owned());
    let connector = TlsConnector::from(Arc::new(tls));
    let connector = tower::service_fn(move |_| {
        let (address, host, connector) = (address.clone(), host.clone(), connector.clone());
        async move {
            let stream = TcpStream::connect((address.as_str(), port)).await?;
            connector.connect(host.try_into().unwrap(), stream).await.map(TokioIo::new)
        }
    });
    let channel = Endpoint::from_static("http://agent").connect_with_connector(connector).await;
    SnapshotMetadataClient::new(channel.unwrap())
}

/// The driver's SnapshotMetadataService.
pub(crate) fn metadata_service() -> Value {
    PLACE.until(PLATFORM, "the driver's SnapshotMetadataService", || {
        get("", &format!("snapshotmetadataservice/{DRIVER}"))
    })
}

/// A token of a namespace's account for the service.
pub(crate) fn backup_token(service: &Value, namespace: &str, account: &str) -> String {
    let audience = format!("--audience={}", service["spec"]["audience"].as_str().unwrap());
    PLACE.kubectl(&["-n", namespace, "create", "token", account, &audience]).unwrap().trim().to_owned()
}

/// The ranges of a snapshot that hold data, by the service at an address.
pub(crate) fn allocated(
    service: &Value,
    address: &str,
    token: &str,
    namespace: &str,
    snapshot: &str,
) -> Result<Vec<(i64, i64)>, Status> {
    let request = GetMetadataAllocatedRequest {
        security_token: token.to_owned(),
        namespace: namespace.to_owned(),
        snapshot_name: snapshot.to_owned(),
        ..Default::default()
    };
    PLACE.cluster.run(async {
        let mut stream = backup(service, address).await.get_metadata_allocated(request).await?.into_inner();
        let mut ranges = Vec::new();
        while let Some(message) = stream.message().await? {
            ranges.extend(message.block_metadata.iter().map(|one| (one.byte_offset, one.size_bytes)));
        }
        Ok(ranges)
    })
}

/// A VolumeSnapshot of a snapshot that the driver has.
fn snapshot(namespace: &str, name: &str, handle: &str) {
    let content = format!("{namespace}-{name}");
    let object = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": content, "labels": {"snapshot.storage.kubernetes.io/managed-by": "node1"}},
        "spec": {
            "driver": DRIVER, "deletionPolicy": "Retain", "source": {"snapshotHandle": handle},
            "volumeSnapshotRef": {"namespace": namespace, "name": name},
        },
    });
    apply(&content, &object, &[]).unwrap();
    let object = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": name},
        "spec": {"source": {"volumeSnapshotContentName": content}},
    });
    apply(&format!("snapshot-{name}"), &object, &["-n", namespace]).unwrap();
    for (kind, name, status) in [
        ("volumesnapshotcontent", content.as_str(), json!({"readyToUse": true, "snapshotHandle": handle})),
        ("volumesnapshot", name, json!({"readyToUse": true, "boundVolumeSnapshotContentName": content})),
    ] {
        let patch = json!({"status": status}).to_string();
        let words =
            ["-n", namespace, "patch", kind, name, "--subresource=status", "--type=merge", "-p", &patch];
        PLACE.kubectl(&words).unwrap();
    }
}

#[test]
fn a_backup_program_reads_changed_blocks_with_its_own_token_only() {
    const MIB: u64 = 1 << 20;
    let namespace = "changed-blocks";
    PLACE.namespace(namespace);
    class("changed-blocks", DRIVER, &json!({"storagePool": "legacy"}));
    let mut wanted = claim("changed-blocks", 16);
    wanted["spec"]["volumeMode"] = json!("Block");
    apply("claim-of-blocks", &wanted, &["-n", namespace]).unwrap();
    let (_, volume) = bound(namespace, "changed-blocks");
    let name = volume["metadata"]["name"].as_str().unwrap().to_owned();
    let file = format!("{}/.hpp-csi/block/{name}", e2e::storage::POOL);
    let file = PLACE.cluster.node_path(&file).unwrap();
    let write = |at: u64| {
        let file = fs::File::options().write(true).open(&file).unwrap();
        file.write_all_at(&vec![1; usize::try_from(MIB).unwrap()], at).unwrap();
        file.sync_all().unwrap();
    };
    let cut = |id: &str| {
        let request = csi::CreateSnapshotRequest {
            source_volume_id: name.clone(),
            name: id.to_owned(),
            ..Default::default()
        };
        let mut driver = driver();
        let made = PLACE.cluster.run(driver.create_snapshot(request)).unwrap();
        made.into_inner().snapshot.unwrap().snapshot_id
    };
    write(0);
    let first = cut("changed-blocks-1");
    snapshot(namespace, "first", &first);
    write(4 * MIB);
    let second = cut("changed-blocks-2");
    snapshot(namespace, "second", &second);
    let service = metadata_service();
    for words in [
        &["create", "serviceaccount", "backup"][..],
        &["create", "serviceaccount", "stranger"],
        &["create", "role", "backup", "--verb=get", "--resource=volumesnapshots.snapshot.storage.k8s.io"],
        &[
            "create",
            "rolebinding",
            "backup",
            "--role=backup",
            &format!("--serviceaccount={namespace}:backup"),
        ],
    ] {
        PLACE.kubectl(&[&["-n", namespace][..], words].concat()).unwrap();
    }
    // By the Service, as a pod of a backup program reaches it.
    let _agent = Streams::follow();
    let of_service = get(PLATFORM, &format!("service/{METADATA_SERVICE}")).unwrap();
    let address = of_service["spec"]["clusterIP"].as_str().unwrap();
    PLACE.until(PLATFORM, "the Service leads to the agent", || {
        std::net::TcpStream::connect((address, METADATA_PORT)).ok()
    });
    let allocated = |token: &str, snapshot: &str| allocated(&service, address, token, namespace, snapshot);
    let changed = |token: &str, base: &str, target: &str| {
        let request = GetMetadataDeltaRequest {
            security_token: token.to_owned(),
            namespace: namespace.to_owned(),
            base_snapshot_id: base.to_owned(),
            target_snapshot_name: target.to_owned(),
            ..Default::default()
        };
        PLACE.cluster.run(async {
            let mut stream = backup(&service, address).await.get_metadata_delta(request).await?.into_inner();
            let mut ranges = Vec::new();
            while let Some(message) = stream.message().await? {
                ranges.extend(message.block_metadata.iter().map(|one| (one.byte_offset, one.size_bytes)));
            }
            Ok::<_, Status>(ranges)
        })
    };
    let own = backup_token(&service, namespace, "backup");
    let elsewhere = PLACE.kubectl(&["-n", namespace, "create", "token", "backup"]).unwrap();
    let mib = i64::try_from(MIB).unwrap();
    assert_eq!(allocated(&own, "first").unwrap(), [(0, mib)]);
    assert_eq!(allocated(&own, "second").unwrap(), [(0, mib), (4 * mib, mib)]);
    for base in [first.as_str(), "first"] {
        assert_eq!(changed(&own, base, "second").unwrap(), [(4 * mib, mib)], "{base}");
    }
    for (token, snapshot, code) in [
        (own.clone(), "absent", Code::NotFound),
        (own.clone(), "", Code::InvalidArgument),
        (backup_token(&service, namespace, "stranger"), "first", Code::PermissionDenied),
        (elsewhere.trim().to_owned(), "first", Code::Unauthenticated),
        ("forged".to_owned(), "first", Code::Unauthenticated),
    ] {
        let refused = allocated(&token, snapshot).unwrap_err();
        assert_eq!(refused.code(), code, "{snapshot}: {refused}");
    }
    PLACE.kubectl(&["-n", namespace, "delete", "volumesnapshot", "--all"]).unwrap();
    for (name, id) in [("first", first), ("second", second)] {
        let content = format!("{namespace}-{name}");
        PLACE.kubectl(&["delete", "volumesnapshotcontent", &content, "--ignore-not-found"]).unwrap();
        let request = csi::DeleteSnapshotRequest { snapshot_id: id, ..Default::default() };
        let mut driver = driver();
        PLACE.cluster.run(driver.delete_snapshot(request)).unwrap();
    }
    PLACE.kubectl(&["-n", namespace, "delete", "pvc", "--all"]).unwrap();
    PLACE.until(namespace, "the volume is deleted", || (!Path::new(&file).exists()).then_some(()));
    PLACE.kubectl(&["delete", "storageclass", "changed-blocks"]).unwrap();
    PLACE.remove_namespace(namespace);
}
