//! Clones between two claims: the target's upload server and the source's pod, both as CDI's controller makes them
//! (`pkg/controller/clone-controller.go`), in a namespace that enforces the restricted Pod Security.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::process::Command;

use api::resource::Confidential;
use api::upload::clone::{Mode, SOURCE_DIR, Source};
use api::upload::service_name;
use e2e::volume::Volume;
use serde_json::{Value, json};

use crate::upload::controller::{is_ready, resources, restricted, serve};
use crate::upload::disks::{Disk, fill};
use crate::upload::objects::{create, ended, get, log, until};
use crate::upload::{CLUSTER, MIB, SITE, namespace};

const IMAGE: &str = "localhost/ferrovirt:clone-source";
const DEVICE: &str = "/dev/cdi-block-volume";

/// The source's pod. Keys and certificates are in its environment, as the controller puts them there.
fn source_pod(namespace: &str, from: &Volume, to: &Volume) -> String {
    let name = format!("{}-source-pod", to.uid);
    let identity = SITE.authority.sign(&client_name(namespace, from, to), None, &[]).unwrap();
    let (mode, mount_point) = match from.is_block() {
        true => (Mode::Block, DEVICE),
        false => (Mode::Filesystem, SOURCE_DIR),
    };
    let told = Source {
        client_key: Confidential(identity.key),
        client_cert: identity.certificate,
        server_ca_cert: SITE.authority.certificate(),
        upload_url: format!("https://{}.{namespace}.svc/v1beta1/upload", service_name(&to.claim)),
        owner_uid: to.uid.clone(),
        preallocation: false,
        mode,
        mount_point: mount_point.into(),
    };
    let environment: Vec<Value> =
        told.to_env().into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
    let (mounts, devices) = match from.is_block() {
        true => (json!([]), json!([{"name": "cdi-data-vol", "devicePath": mount_point}])),
        false => (json!([{"name": "cdi-data-vol", "mountPath": mount_point}]), json!([])),
    };
    // Only a pod with mounts has a group for them.
    let context = if from.is_block() { json!({}) } else { json!({"fsGroup": 107}) };
    let specification = json!({
        "restartPolicy": "OnFailure",
        "securityContext": context,
        "containers": [{
            "name": "cdi-clone-source",
            "image": IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "args": ["-v=1"],
            "env": environment,
            "ports": [{"name": "metrics", "containerPort": 8443, "protocol": "TCP"}],
            "resources": resources(),
            "securityContext": restricted(),
            "volumeMounts": mounts,
            "volumeDevices": devices,
        }],
        "volumes": [{"name": "cdi-data-vol", "persistentVolumeClaim": {"claimName": from.claim}}],
    });
    create(
        "Pod",
        namespace,
        json!({
            "metadata": {
                "name": name,
                "annotations": {"cdi.kubevirt.io/storage.createdByController": "yes"},
                "labels": {
                    "app": "containerized-data-importer",
                    "cdi.kubevirt.io": "cdi-clone-source",
                    "storage.clone.cloneUniqeId": name,
                    "prometheus.cdi.kubevirt.io": "true",
                },
            },
            "spec": specification,
        }),
    );
    name
}

fn client_name(namespace: &str, from: &Volume, to: &Volume) -> String {
    format!("{namespace}/{}-{namespace}/{}", from.claim, to.claim)
}

/// Clones one claim to another.
fn clone(namespace: &str, from: &Volume, to: &Volume, headless: bool) {
    let claim = get("PersistentVolumeClaim", namespace, &to.claim).unwrap();
    let server = serve(&claim, &client_name(namespace, from, to), headless);
    until("the upload server is ready", || get("Pod", namespace, &server).filter(is_ready).map(drop));
    let source = source_pod(namespace, from, to);
    assert_eq!(ended(namespace, &source), r#"{"message":"Clone Complete"}"#);
    let taken = ended(namespace, &server);
    assert_eq!(
        taken,
        r#"{"preallocationApplied":false,"message":"Clone Complete"}"#,
        "{}",
        log(namespace, &server)
    );
    let said = log(namespace, &source);
    assert!(said.contains("Clone Complete") && !said.contains("PRIVATE KEY"), "{said}");
}

#[test]
fn files_to_files_and_to_a_device() {
    let namespace = namespace("clone-files");
    let size = 128 * MIB;
    let from = Volume::filesystem(&CLUSTER, namespace, "from", size).unwrap();
    let disk = Disk::new("clone-files");
    let copy = ["--sparse=always", "-p"];
    let into = from.path().join("disk.img");
    assert!(Command::new("cp").args(copy).arg(&disk.raw).arg(into).status().unwrap().success());
    fs::create_dir(from.path().join("folder")).unwrap();
    fs::write(from.path().join("folder/file"), "text").unwrap();
    let to = Volume::filesystem(&CLUSTER, namespace, "to", size).unwrap();
    clone(namespace, &from, &to, true);
    disk.assert_in(&to);
    assert_eq!(fs::read_to_string(to.path().join("folder/file")).unwrap(), "text");
    assert!(sparse(&to.path().join("disk.img")), "holes stay holes");
    let device = Volume::block(&CLUSTER, namespace, "device", size).unwrap();
    fs::write(device.path(), vec![0xaa; usize::try_from(size).unwrap()]).unwrap();
    clone(namespace, &from, &device, false);
    disk.assert_in(&device);
}

/// Less is allocated than the file is long.
fn sparse(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let meta = fs::metadata(path).unwrap();
    meta.blocks() * 512 < meta.len() * 2 / 3
}

#[test]
fn a_device_to_a_device_and_refused_sources() {
    let namespace = namespace("clone-devices");
    let size = 64 * MIB;
    let from = Volume::block(&CLUSTER, namespace, "from", size).unwrap();
    let device = OpenOptions::new().write(true).open(from.path()).unwrap();
    fill(&device, "clone-devices");
    device.sync_all().unwrap();
    let to = Volume::block(&CLUSTER, namespace, "to", size).unwrap();
    fs::write(to.path(), vec![0xaa; usize::try_from(size).unwrap()]).unwrap();
    let claim = get("PersistentVolumeClaim", namespace, &to.claim).unwrap();
    // It waits for another source: this one is refused, and goes on trying as long as it is let.
    let server = serve(&claim, &format!("{namespace}/other-{namespace}/to"), true);
    until("the upload server is ready", || get("Pod", namespace, &server).filter(is_ready).map(drop));
    let stranger = source_pod(namespace, &from, &to);
    until("it is refused", || {
        let pod = get("Pod", namespace, &stranger)?;
        let status = &pod["status"]["containerStatuses"][0];
        (status["restartCount"].as_u64()? > 0).then_some(())
    });
    let first = File::open(to.path()).map(|mut to| {
        let mut byte = [0];
        std::io::Read::read_exact(&mut to, &mut byte).unwrap();
        byte[0]
    });
    assert_eq!(first.unwrap(), 0xaa, "nothing was written");
    for (kind, name) in [("Pod", &stranger), ("Pod", &server), ("Service", &server), ("Secret", &server)] {
        let name = ["-n", namespace, "delete", kind, name, "--now", "--wait"];
        assert!(CLUSTER.kubectl().args(name).status().unwrap().success());
    }
    clone(namespace, &from, &to, true);
    let same = Command::new("cmp").arg(from.path()).arg(to.path()).status().unwrap();
    assert!(same.success());
}
