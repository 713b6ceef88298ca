//! Every source × volume mode × binding mode × with and without a populator: the bytes, the phases, the events, and
//! nothing left over.
//!
//! A third of the combinations of each source, another third for each, so that all sources together have every pair; all
//! of them with the full counts.

use std::fs;
use std::path::Path;

use e2e::peer::registry::Registry;
use e2e::peer::web::Web;
use serde_json::{Value, json};

use crate::storage::clones;
use crate::storage::send::upload_to;
use crate::storage::setup::{ARCHIVE, CLUSTER, DISK, IMMEDIATE, WAITING, assert_empty, assert_same};
use crate::storage::sources;
use crate::storage::space::{Space, until};
use crate::storage::timeline::Timeline;

/// How a claim is bound.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Binding {
    Immediate,
    /// A pod uses the claim.
    Consumer,
    /// The annotation asks not to wait for one.
    Forced,
}

/// Source of the content.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Work {
    Import,
    /// To this path of the upload proxy.
    Upload(&'static str),
    /// The driver clones a claim of the same volume mode, and with a populator only; the rest is copied.
    Clone {
        block: bool,
    },
    /// The driver takes a snapshot of a claim of the same volume mode and restores it, with a populator only; the rest
    /// is copied.
    Smart {
        block: bool,
    },
    /// The driver restores a snapshot of the same volume mode, and with a populator only; the rest is copied.
    Restore {
        block: bool,
    },
}

/// Content of a volume at the end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Content {
    Disk,
    Empty,
    /// The disk as a file of an archive.
    File,
}

/// A combination.
#[derive(Clone, Copy, Debug)]
struct Row {
    block: bool,
    binding: Binding,
    populated: bool,
}

impl Row {
    fn name(self) -> String {
        let mode = if self.block { "block" } else { "file" };
        let way = if self.populated { "populated" } else { "direct" };
        format!("{mode}-{:?}-{way}", self.binding).to_lowercase()
    }

    fn mode(self) -> &'static str {
        if self.block { "Block" } else { "Filesystem" }
    }
}

/// The combinations that are tried; `turn` chooses which third.
fn rows(turn: usize) -> Vec<Row> {
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let mut rows = Vec::new();
    for (way, populated) in [true, false].into_iter().enumerate() {
        for (at, binding) in [Binding::Immediate, Binding::Consumer, Binding::Forced].into_iter().enumerate()
        {
            for (mode, block) in [false, true].into_iter().enumerate() {
                if soak || (way + at + mode + turn).is_multiple_of(3) {
                    rows.push(Row { block, binding, populated });
                }
            }
        }
    }
    rows
}

/// The phases of a combination.
fn expected(row: Row, work: Work) -> Vec<&'static str> {
    let before: &[&str] = match (row.binding, row.populated) {
        (Binding::Consumer, true) => &["PendingPopulation"],
        (Binding::Consumer, false) => &["WaitForFirstConsumer", "PVCBound"],
        (Binding::Immediate | Binding::Forced, true) => &["Pending"],
        (Binding::Immediate | Binding::Forced, false) => &["Pending", "PVCBound"],
    };
    let going: &[&str] = match work {
        Work::Import => &["ImportScheduled", "ImportInProgress"],
        Work::Upload(_) => &["UploadScheduled", "UploadReady"],
        Work::Restore { .. } | Work::Clone { .. } | Work::Smart { .. } if !row.populated => {
            &["CloneScheduled", "CloneInProgress"]
        }
        Work::Smart { block } if block == row.block => {
            &["SnapshotForSmartCloneInProgress", "CloneFromSnapshotSourceInProgress", "RebindInProgress"]
        }
        Work::Restore { block } if block == row.block => {
            &["CloneFromSnapshotSourceInProgress", "RebindInProgress"]
        }
        Work::Restore { .. } => &["CloneFromSnapshotSourceInProgress", "CloneInProgress", "RebindInProgress"],
        Work::Clone { block } if block == row.block => &["CSICloneInProgress", "RebindInProgress"],
        Work::Clone { .. } | Work::Smart { .. } => &["CloneInProgress", "RebindInProgress"],
    };
    [before, going, &["Succeeded"]].concat()
}

/// Combinations of one source.
struct Case<'a> {
    space: &'a Space,
    /// `spec.source`, or `spec.sourceRef`.
    source: Value,
    /// The class that binds claims at once, and the one that waits for the first consumer.
    classes: [&'a str; 2],
    work: Work,
    content: Content,
    turn: usize,
}

impl<'a> Case<'a> {
    fn import(space: &'a Space, source: Value, turn: usize) -> Self {
        let classes = [IMMEDIATE, WAITING];
        Self { space, source, classes, work: Work::Import, content: Content::Disk, turn }
    }

    /// Combinations that users can ask for.
    fn rows(&self) -> Vec<Row> {
        let mut rows = rows(self.turn);
        rows.retain(|row| match self.content {
            Content::File => !row.block,
            Content::Disk | Content::Empty => true,
        });
        rows
    }

    fn create(&self, row: Row) {
        let mut annotations = json!({});
        if row.binding == Binding::Forced {
            annotations["cdi.kubevirt.io/storage.bind.immediate.requested"] = json!("");
        }
        if !row.populated {
            annotations["cdi.kubevirt.io/storage.usePopulator"] = json!("false");
        }
        let [immediate, waiting] = self.classes;
        let class = if row.binding == Binding::Immediate { immediate } else { waiting };
        let mut spec = json!({
            "contentType": if self.content == Content::File { "archive" } else { "kubevirt" },
            "storage": {
                "resources": {"requests": {"storage": "96Mi"}}, "storageClassName": class,
                "volumeMode": row.mode(),
            },
        });
        let field = if self.source["kind"] == "DataSource" { "sourceRef" } else { "source" };
        spec[field] = self.source.clone();
        let metadata = json!({"name": row.name(), "annotations": annotations});
        self.space.create("DataVolume", json!({"metadata": metadata, "spec": spec}));
    }

    /// All at once.
    fn run(self) {
        let space = self.space;
        let timeline = Timeline::start(space);
        let rows = self.rows();
        for row in &rows {
            self.create(*row);
        }
        for row in rows.iter().filter(|row| row.binding == Binding::Consumer) {
            let waits = if row.populated { "PendingPopulation" } else { "WaitForFirstConsumer" };
            space.phases(&row.name(), waits);
            space.consumer(&row.name(), row.mode());
        }
        let in_use = match self.work {
            Work::Import => "ImportTargetInUse",
            Work::Upload(_) | Work::Clone { .. } | Work::Smart { .. } | Work::Restore { .. } => {
                "UploadTargetInUse"
            }
        };
        for row in rows.iter().filter(|row| row.binding == Binding::Consumer && !row.populated) {
            let (name, pod) = (row.name(), format!("consumer-{}", row.name()));
            until(&format!("{name} waits for the end of its first consumer"), || {
                let (status, reason, message) = space.condition(&name, "Running")?;
                (status == "False" && reason == in_use && message.contains(&pod)).then_some(())
            });
            space.delete("Pod", &pod);
        }
        if let Work::Upload(path) = self.work {
            let body = match self.content {
                Content::File => fs::read(&*ARCHIVE).unwrap(),
                Content::Disk | Content::Empty => fs::read(&DISK.qcow2).unwrap(),
            };
            for row in &rows {
                space.phases(&row.name(), "UploadReady");
                upload_to(space, &row.name(), path, &body);
            }
        }
        for row in &rows {
            self.assert_done(*row, &timeline);
        }
        let helps = |name: &String| {
            ["prime-", "tmp-", "importer-", "cdi-upload-"].iter().any(|begin| name.starts_with(begin))
                || name.ends_with("-source-pod")
        };
        let kinds = ["PersistentVolumeClaim", "Pod", "Service", "Secret"];
        until("nothing that helped is left", || {
            let left: Vec<String> = kinds.iter().flat_map(|kind| space.names(kind)).filter(helps).collect();
            left.is_empty().then_some(())
        });
        // The pool is the other tests' too.
        space.delete("Namespace", &space.0);
    }

    #[track_caller]
    fn assert_done(&self, row: Row, timeline: &Timeline) {
        let (space, name) = (self.space, row.name());
        space.phases(&name, "Succeeded");
        timeline.at("DataVolume", &name, "Succeeded");
        assert_eq!(timeline.phases(&name), expected(row, self.work), "{name}");
        let volume = space.get("DataVolume", &name).unwrap();
        let status = &volume["status"];
        assert_eq!((&status["progress"], &status["claimName"]), (&json!("100.0%"), &json!(name)), "{name}");
        space.completed(&name);
        for (condition, last) in [("Ready", "True"), ("Bound", "True Bound")] {
            timeline.at(condition, &name, last);
            let seen = timeline.states(condition, &name);
            let mut statuses: Vec<&str> = seen.iter().filter_map(|state| state.split(' ').next()).collect();
            statuses.dedup();
            assert_eq!(statuses, ["False", "True"], "{name}: {condition}: {seen:?}");
        }
        timeline.at("Running", &name, "False Completed");
        let running = timeline.states("Running", &name);
        let ended = running.iter().position(|state| state == "False Completed").unwrap();
        let again = running[ended..].iter().any(|state| state.starts_with("True"));
        assert!(!again, "{name} runs once: {running:?}");
        if matches!(self.work, Work::Import | Work::Upload(_)) {
            let mut statuses: Vec<bool> = running.iter().map(|state| state.starts_with("True")).collect();
            statuses.dedup();
            assert!(statuses.iter().filter(|runs| **runs).count() <= 1, "{name} runs once: {running:?}");
        }
        let file = space.file(&name);
        match self.content {
            Content::Disk => assert_same(&file),
            Content::Empty => assert_empty(&file),
            Content::File => assert_same(&file.with_file_name("files.raw")),
        }
        // Events are published after the status.
        let reasons: &[&str] = match self.work {
            Work::Import => &["ImportScheduled", "ImportInProgress", "ImportSucceeded"],
            Work::Upload(_) => &["UploadScheduled", "UploadReady", "UploadSucceeded"],
            Work::Clone { .. } | Work::Smart { .. } | Work::Restore { .. } => &["CloneSucceeded"],
        };
        for reason in reasons {
            until(&format!("{name} has one event {reason}"), || {
                let events = space.events(&name);
                (events.iter().filter(|event| event.0 == *reason).count() == 1).then_some(())
            });
        }
    }
}

fn served(folder: &Path) -> Web {
    Web::start(CLUSTER.place(), folder).unwrap()
}

#[test]
fn images_from_a_web_server_reach_every_kind_of_claim() {
    let space = Space::new("combined-http");
    let web = served(DISK.qcow2.parent().unwrap());
    Case::import(&space, json!({"http": {"url": web.url("disk.qcow2")}}), 0).run();
}

#[test]
fn archives_from_a_web_server_reach_every_kind_of_claim() {
    let space = Space::new("combined-archive");
    let web = served(ARCHIVE.parent().unwrap());
    let source = json!({"http": {"url": web.url("files.tar")}});
    Case { content: Content::File, ..Case::import(&space, source, 1) }.run();
}

#[test]
fn empty_disks_are_made_in_every_kind_of_claim() {
    let space = Space::new("combined-blank");
    Case { content: Content::Empty, ..Case::import(&space, json!({"blank": {}}), 2) }.run();
}

#[test]
fn images_from_object_stores_reach_every_kind_of_claim() {
    let (s3, gcs) = (Space::new("combined-s3"), Space::new("combined-gcs"));
    let (store, root) = sources::store();
    Case::import(&s3, sources::object(&s3, &store, "disk.qcow2"), 0).run();
    // The file of an account, as Google writes it, that leads to a server of this machine.
    let web = served(root.path());
    let account = json!({
        "private_key": "p", "private_key_id": "i", "client_email": "e", "disable_oauth": true,
        "gcs_base_url": web.url("").trim_end_matches('/'),
    });
    let account = json!({"credentials.json": account.to_string()});
    gcs.create("Secret", json!({"metadata": {"name": "account"}, "stringData": account}));
    let source = json!({"gcs": {"url": "gs://bucket/disk.qcow2", "secretRef": "account"}});
    Case::import(&gcs, source, 1).run();
}

#[test]
fn archives_from_object_stores_reach_every_kind_of_claim() {
    let (s3, gcs) = (Space::new("combined-s3-archives"), Space::new("combined-gcs-archives"));
    let (store, root) = sources::store();
    let archives = |space, source, turn| Case { content: Content::File, ..Case::import(space, source, turn) };
    archives(&s3, sources::object(&s3, &store, "files.tar"), 2).run();
    // A public bucket, by its address on the web.
    let web = served(root.path());
    archives(&gcs, json!({"gcs": {"url": web.url("bucket/files.tar")}}), 0).run();
}

#[test]
fn images_from_a_registry_reach_every_kind_of_claim() {
    let (pods, nodes) = (Space::new("combined-registry"), Space::new("combined-node"));
    let registry = Registry::start(CLUSTER.place()).unwrap();
    CLUSTER.trust_registry(&registry.address(), registry.authority()).unwrap();
    let image = sources::push(&registry, "disks/combined");
    Case::import(&pods, json!({"registry": sources::pulled(&pods, &registry, &image)}), 2).run();
    nodes.create(
        "Secret",
        json!({
            "metadata": {"name": "login"}, "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": registry.docker_config()},
        }),
    );
    let url = format!("docker://{image}");
    let source = json!({"url": url, "pullMethod": "node", "secretRef": "login"});
    Case::import(&nodes, json!({"registry": source}), 0).run();
}

#[test]
fn uploads_reach_every_kind_of_claim() {
    let (disks, archives) = (Space::new("combined-uploads"), Space::new("combined-upload-archives"));
    let case = |space, path, content, turn| Case {
        work: Work::Upload(path),
        content,
        ..Case::import(space, json!({"upload": {}}), turn)
    };
    case(&disks, "/v1beta1/upload-async", Content::Disk, 1).run();
    // The claim has the content type.
    case(&archives, "/v1beta1/upload", Content::File, 2).run();
}

#[test]
fn clones_reach_every_kind_of_claim() {
    let golden = Space::new("combined-golden");
    let web = served(DISK.qcow2.parent().unwrap());
    let source = json!({"http": {"url": web.url("disk.qcow2")}});
    for (name, mode) in [("file", "Filesystem"), ("block", "Block")] {
        golden.data_volume(name, &source, IMMEDIATE, mode, &json!({}));
        golden.phases(name, "Succeeded");
    }
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    for (turn, (name, block)) in [("file", false), ("block", true)].into_iter().enumerate() {
        let source = json!({"pvc": {"namespace": golden.0, "name": name}});
        golden.create("DataSource", json!({"metadata": {"name": name}, "spec": {"source": source}}));
        let reference = json!({"kind": "DataSource", "namespace": golden.0, "name": name});
        // One is named by its DataSource; each both ways with the full counts.
        for (way, source) in [("clones", source), ("references", reference)] {
            if soak || block == (way == "references") {
                let space = Space::new(&format!("combined-{name}-{way}"));
                Case { work: Work::Clone { block }, ..Case::import(&space, source, turn) }.run();
            }
        }
    }
    for (turn, (name, block)) in [("file", false), ("block", true)].into_iter().enumerate() {
        golden.create(
            "VolumeSnapshot",
            json!({
                "metadata": {"name": name},
                "spec": {"volumeSnapshotClassName": "hostpath-csi", "source": {"persistentVolumeClaimName": name}},
            }),
        );
        until("the snapshot is ready", || {
            (golden.get("VolumeSnapshot", name)?["status"]["readyToUse"] == true).then_some(())
        });
        let space = Space::new(&format!("combined-{name}-snapshots"));
        let source = json!({"snapshot": {"namespace": golden.0, "name": name}});
        Case { work: Work::Restore { block }, ..Case::import(&space, source, turn + 1) }.run();
    }
}

#[test]
fn clones_by_snapshot_reach_every_kind_of_claim() {
    let (golden, _web) = clones::golden("combined-smart-golden", IMMEDIATE);
    let space = Space::new("combined-smart");
    let classes = ["Immediate", "WaitForFirstConsumer"].map(|binding| clones::class("snapshot", binding));
    let source = json!({"pvc": {"namespace": golden.0, "name": "golden"}});
    let work = Work::Smart { block: false };
    Case { classes: classes.each_ref().map(String::as_str), work, ..Case::import(&space, source, 0) }.run();
}

#[test]
fn combinations_that_cannot_be_are_refused() {
    let space = Space::new("combined-refused");
    let refused = |source: Value, content: &str, mode: &str, words: &str| {
        let volume = json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
            "metadata": {"name": "tried", "namespace": space.0},
            "spec": {
                "source": source, "contentType": content,
                "storage": {"resources": {"requests": {"storage": "96Mi"}}, "volumeMode": mode},
            },
        });
        let file = CLUSTER.place().path("combined-refused.json");
        fs::write(&file, volume.to_string()).unwrap();
        let tried = CLUSTER.kubectl().args(["create", "--dry-run=server", "-f"]).arg(&file).output().unwrap();
        let said = String::from_utf8_lossy(&tried.stderr).into_owned();
        assert!(!tried.status.success() && said.contains(words), "{volume}: {said}");
    };
    let http = || json!({"http": {"url": "http://a.invalid/disk.tar"}});
    let claim = || json!({"pvc": {"namespace": space.0, "name": "golden"}});
    let snapshot = || json!({"snapshot": {"namespace": space.0, "name": "golden"}});
    let registry = || json!({"registry": {"url": "docker://a.invalid/disk"}});
    let s3 = json!({"s3": {"url": "https://a.invalid/bucket/files.tar"}});
    let gcs = json!({"gcs": {"url": "gs://bucket/files.tar"}});
    for source in [http(), s3, gcs, json!({"upload": {}})] {
        refused(source, "archive", "Block", "ContentType archive needs volumeMode Filesystem");
    }
    refused(json!({"blank": {}}), "archive", "Filesystem", "SourceType cannot be blank");
    refused(registry(), "archive", "Filesystem", "ContentType must be kubevirt when Source is Registry");
    refused(claim(), "archive", "Filesystem", "ContentType must be kubevirt when Source is pvc");
    refused(snapshot(), "archive", "Filesystem", "ContentType must be kubevirt when Source is snapshot");
    let imageio = json!({"imageio": {"url": "https://a.invalid", "diskId": "1"}});
    refused(imageio, "kubevirt", "Filesystem", "source imageio is not supported");
    let vddk = json!({"vddk": {"url": "https://a.invalid", "uuid": "1", "backingFile": "a", "thumbprint": "a", "secretRef": "a"}});
    refused(vddk, "kubevirt", "Filesystem", "source vddk is not supported");
    let glance = json!({"glance": {"url": "https://a.invalid/v2/images/1/file", "secretRef": "a"}});
    refused(glance, "kubevirt", "Filesystem", "source glance is not supported");
}
