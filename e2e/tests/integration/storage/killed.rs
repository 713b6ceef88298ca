//! The storage controllers are killed while they work: what they began is done in the end, once.

use std::time::Duration;

use e2e::peer::registry::Registry;
use e2e::peer::web::Web;
use serde_json::{Value, json};

use crate::storage::send::{upload_slowly, upload_to};
use crate::storage::setup::{
    ARCHIVE, ARCHIVE_URL, CLUSTER, DISK, IMMEDIATE, WAITING, assert_empty, assert_same,
};
use crate::storage::space::{Space, until};
use crate::storage::{clones, platform, sources};

/// Kinds of DataVolumes: one is made of each in a round.
const KINDS: [&str; 19] = [
    "file",
    "device",
    "direct",
    "blank",
    "clone",
    "copy",
    "direct-copy",
    "restored",
    "restored-copy",
    "smart",
    "grown",
    "referring",
    "pulled",
    "pulled-by-node",
    "stored",
    "in-bucket",
    "archive",
    "upload",
    "slow-upload",
];
/// Kinds of claims that name an object as their source: one is made of each in a round.
const CLAIMS: [&str; 3] = ["import-claim", "clone-claim", "upload-claim"];
/// Annotation of a claim: the namespace of its source.
const FAR: &str = "cdi.kubevirt.io/dataSourceNamespace";

/// How often they are killed at random moments, at least.
fn kills() -> u64 {
    if std::env::var_os("FERROVIRT_SOAK").is_some() { 50 } else { 5 }
}

/// Sources of the DataVolumes and claims: a claim `golden` and its snapshot in a namespace of their own, and servers.
struct Origins {
    far: Space,
    web: Web,
    /// A public bucket of Google Cloud Storage.
    bucket: Web,
    pulled: Value,
    /// The same image, by the node.
    by_node: Value,
    stored: Value,
    class: String,
}

impl Origins {
    /// Makes the DataVolumes of a round.
    fn data_volumes(&self, space: &Space, name: impl Fn(&str) -> String) {
        let http = json!({"http": {"url": self.web.url("disk.qcow2")}});
        let golden = json!({"pvc": {"namespace": self.far.0, "name": "golden"}});
        let taken = json!({"snapshot": {"namespace": self.far.0, "name": "taken"}});
        let bucket = json!({"gcs": {"url": self.bucket.url("bucket/disk.qcow2")}});
        let (none, blank, upload) = (json!({}), json!({"blank": {}}), json!({"upload": {}}));
        let forced = json!({"cdi.kubevirt.io/storage.bind.immediate.requested": ""});
        let direct = json!({"cdi.kubevirt.io/storage.usePopulator": "false"});
        for (kind, source, class, mode, annotations) in [
            ("file", &http, IMMEDIATE, "Filesystem", &none),
            ("device", &http, WAITING, "Block", &forced),
            ("direct", &http, IMMEDIATE, "Filesystem", &direct),
            ("blank", &blank, IMMEDIATE, "Filesystem", &none),
            ("clone", &golden, IMMEDIATE, "Filesystem", &none),
            ("copy", &golden, IMMEDIATE, "Block", &none),
            ("direct-copy", &golden, IMMEDIATE, "Filesystem", &direct),
            ("restored", &taken, IMMEDIATE, "Filesystem", &none),
            ("restored-copy", &taken, IMMEDIATE, "Block", &none),
            ("smart", &golden, self.class.as_str(), "Filesystem", &none),
            ("pulled", &self.pulled, IMMEDIATE, "Filesystem", &none),
            ("pulled-by-node", &self.by_node, IMMEDIATE, "Filesystem", &none),
            ("stored", &self.stored, IMMEDIATE, "Filesystem", &none),
            ("in-bucket", &bucket, IMMEDIATE, "Filesystem", &none),
            ("upload", &upload, IMMEDIATE, "Filesystem", &none),
            ("slow-upload", &upload, IMMEDIATE, "Filesystem", &none),
        ] {
            space.data_volume(&name(kind), source, class, mode, annotations);
        }
        let storage = json!({"storageClassName": IMMEDIATE, "resources": {"requests": {"storage": "96Mi"}}});
        let unpacked = json!({
            "source": {"http": {"url": self.web.url(ARCHIVE_URL)}}, "contentType": "archive", "storage": storage,
        });
        let reference = json!({"kind": "DataSource", "namespace": self.far.0, "name": "golden"});
        let referring = json!({"sourceRef": reference, "storage": storage});
        let mut grown = json!({"source": golden, "storage": storage});
        grown["storage"]["resources"]["requests"]["storage"] = json!("192Mi");
        for (kind, spec) in [("archive", unpacked), ("referring", referring), ("grown", grown)] {
            space.create("DataVolume", json!({"metadata": {"name": name(kind)}, "spec": spec}));
        }
    }
}

/// Makes the claim `golden`, its snapshot and its DataSource, and lets claims of another namespace be cloned from it.
fn origins(space: &Space, [web, bucket]: [Web; 2], registry: &Registry, stored: Value) -> Origins {
    let far = Space::new("killed-far");
    let http = json!({"http": {"url": web.url("disk.qcow2")}});
    far.data_volume("golden", &http, IMMEDIATE, "Filesystem", &json!({}));
    far.phases("golden", "Succeeded");
    far.create(
        "VolumeSnapshot",
        json!({
            "metadata": {"name": "taken"},
            "spec": {"volumeSnapshotClassName": "hostpath-csi", "source": {"persistentVolumeClaimName": "golden"}},
        }),
    );
    let golden = json!({"pvc": {"namespace": far.0, "name": "golden"}});
    far.create("DataSource", json!({"metadata": {"name": "golden"}, "spec": {"source": golden}}));
    far.create(
        "ReferenceGrant",
        json!({
            "metadata": {"name": "golden"},
            "spec": {
                "from": [{"group": "", "kind": "PersistentVolumeClaim", "namespace": space.0}],
                "to": [{"group": "", "kind": "PersistentVolumeClaim", "name": "golden"}],
            },
        }),
    );
    space.create("VolumeImportSource", json!({"metadata": {"name": "web"}, "spec": {"source": http}}));
    space.create("VolumeUploadSource", json!({"metadata": {"name": "sent"}, "spec": {}}));
    let reference = json!({"kind": "PersistentVolumeClaim", "name": "golden"});
    space.create("VolumeCloneSource", json!({"metadata": {"name": "golden"}, "spec": {"source": reference}}));
    let image = sources::push(registry, "disks/killed");
    let pulled = json!({"registry": sources::pulled(space, registry, &image)});
    CLUSTER.trust_registry(&registry.address(), registry.authority()).unwrap();
    let login = json!({".dockerconfigjson": registry.docker_config()});
    let login =
        json!({"metadata": {"name": "login"}, "type": "kubernetes.io/dockerconfigjson", "stringData": login});
    space.create("Secret", login);
    let by_node = json!({"url": format!("docker://{image}"), "pullMethod": "node", "secretRef": "login"});
    let (by_node, class) = (json!({"registry": by_node}), clones::class("snapshot", "Immediate"));
    Origins { far, web, bucket, pulled, by_node, stored, class }
}

/// Volumes of claims of a namespace that are gone.
fn orphans(space: &Space) -> Vec<Value> {
    let claims = space.all("PersistentVolumeClaim");
    let claims: Vec<&Value> = claims.iter().map(|claim| &claim["metadata"]["uid"]).collect();
    let mut volumes = space.all("PersistentVolume");
    volumes.retain(|volume| {
        let claim = &volume["spec"]["claimRef"];
        claim["namespace"] == space.0 && !claims.contains(&&claim["uid"])
    });
    volumes
}

#[test]
fn transfers_are_done_once_although_their_controllers_are_killed() {
    let space = Space::new("killed");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    assert!(ARCHIVE.exists());
    let registry = Registry::start(CLUSTER.place()).unwrap();
    let (store, root) = sources::store();
    let bucket = Web::start(CLUSTER.place(), root.path()).unwrap();
    let stored = sources::object(&space, &store, "disk.qcow2");
    let origins = origins(&space, [web, bucket], &registry, stored);
    let http = json!({"http": {"url": origins.web.url("disk.qcow2")}});
    let far = json!({FAR: origins.far.0});
    let bytes = std::fs::read(&DISK.qcow2).unwrap();
    let mut state = 11_u64;
    let mut random = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    // A round is one set of DataVolumes and claims and five kills.
    for round in 0..kills() / 5 {
        let name = |kind: &str| format!("{kind}-{round}");
        origins.data_volumes(&space, name);
        space.claim(&name("import-claim"), ("VolumeImportSource", "web"), &json!({}));
        space.claim(&name("clone-claim"), ("VolumeCloneSource", "golden"), &far);
        space.claim(&name("upload-claim"), ("VolumeUploadSource", "sent"), &json!({}));
        space.create(
            "DataImportCron",
            json!({
                "metadata": {"name": name("cron")},
                "spec": {
                    "managedDataSource": name("cron"), "schedule": "0 3 * * *",
                    "template": {"spec": {
                        "source": http,
                        "storage": {"storageClassName": IMMEDIATE, "resources": {"requests": {"storage": "96Mi"}}},
                    }},
                },
            }),
        );
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(random(1500)));
            platform::restart();
        }
        space.phases(&name("upload"), "UploadReady");
        platform::restart();
        upload_to(&space, &name("upload"), "/v1beta1/upload", &bytes);
        platform::restart();
        space.phases(&name("slow-upload"), "UploadReady");
        upload_slowly(&space, &name("slow-upload"), platform::restart);
        until("the claim's server is ready", || {
            let claim = space.get("PersistentVolumeClaim", &name("upload-claim"))?;
            (claim["metadata"]["annotations"]["cdi.kubevirt.io/storage.pod.ready"] == "true").then_some(())
        });
        upload_to(&space, &name("upload-claim"), "/v1beta1/upload", &bytes);
        platform::restart();
        for kind in KINDS {
            let name = name(kind);
            space.phases(&name, "Succeeded");
            match kind {
                "blank" => assert_empty(&space.file(&name)),
                "archive" => assert_same(&space.file(&name).with_file_name("files.raw")),
                _ => assert_same(&space.file(&name)),
            }
            let volume = space.get("DataVolume", &name).unwrap();
            assert_eq!(volume["status"]["restartCount"].as_u64().unwrap_or(0), 0, "{name}: imported once");
        }
        let smart = space.get("PersistentVolumeClaim", &name("smart")).unwrap();
        assert_eq!(smart["metadata"]["annotations"]["cdi.kubevirt.io/cloneType"], "snapshot");
        let grown = space.get("PersistentVolumeClaim", &name("grown")).unwrap();
        let capacity = grown["status"]["capacity"]["storage"].as_str().unwrap();
        assert!(api::quantity::bytes(capacity).unwrap() >= 192 << 20, "{capacity}");
        for kind in CLAIMS {
            let name = name(kind);
            until(&format!("{name} is filled"), || {
                (space.get("PersistentVolumeClaim", &name)?["status"]["phase"] == "Bound").then_some(())
            });
            assert_same(&space.file(&name));
        }
        let source = name("cron");
        let imported = until("the DataSource points at the cron's import", || {
            let source = space.get("DataSource", &source)?;
            Some(source["spec"]["source"]["pvc"]["name"].as_str()?.to_owned())
        });
        space.phases(&imported, "Succeeded");
        assert_same(&space.file(&imported));
        // Their volumes must go with them, and the pool is the other tests' too.
        for kind in KINDS {
            space.delete("DataVolume", &name(kind));
        }
        for kind in CLAIMS {
            space.delete("PersistentVolumeClaim", &name(kind));
        }
    }
    for space in [&space, &origins.far] {
        until("nothing that helped is left", || {
            let kinds = ["Pod", "PersistentVolumeClaim", "Service", "Secret", "ConfigMap", "VolumeSnapshot"];
            let left: Vec<String> = kinds.iter().flat_map(|kind| space.names(kind)).collect();
            let helps = |name: &String| {
                ["prime-", "tmp-", "importer-", "cdi-upload-", "poll-", "import-proxy-cm-"]
                    .iter()
                    .any(|begin| name.starts_with(begin))
                    || name.ends_with("-source-pod")
            };
            (!left.iter().any(helps)).then_some(())
        });
        until("no volume of a claim that is gone is left", || orphans(space).is_empty().then_some(()));
        // A worker that is made again would do its work again.
        let mut made = platform::pods_made(&space.0);
        let all = made.len();
        made.sort();
        made.dedup();
        assert_eq!(made.len(), all, "{made:?}");
    }
    // Five at random moments, and seven around and during uploads.
    println!("{} kills: all succeeded, each worker was made once, nothing is left", kills() / 5 * 12);
}
