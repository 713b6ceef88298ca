//! DataImportCrons: a source that changes is imported again, and the DataSource follows.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, SystemTime};

use e2e::peer::registry::{self, Registry};
use e2e::peer::web::Web;
use image::layer::{self, Layer, Member};
use operator::storage::cron::seen::{DESIRED, LAST_POLLED};
use operator::storage::settings::POLL_NETWORKS;
use serde_json::{Value, json};

use crate::storage::platform;
use crate::storage::setup::{CLUSTER, DISK, IMMEDIATE, PLATFORM, apply, assert_same};
use crate::storage::space::{Space, until};

fn condition(space: &Space, kind: &str, name: &str, condition: &str) -> Option<(String, String)> {
    let object = space.get(kind, name)?;
    let found =
        object["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == condition)?.clone();
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Some((text("status"), text("reason")))
}

fn cron(space: &Space, annotations: &Value, source: &Value) {
    cron_in(space, IMMEDIATE, annotations, source);
}

fn cron_in(space: &Space, class: &str, annotations: &Value, source: &Value) {
    space.create(
        "DataImportCron",
        json!({
            "metadata": {"name": "nightly", "annotations": annotations},
            "spec": {
                "managedDataSource": "image", "schedule": "0 3 * * *", "importsToKeep": 1,
                "template": {"spec": {
                    "source": source,
                    "storage": {"storageClassName": class, "resources": {"requests": {"storage": "96Mi"}}},
                }},
            },
        }),
    );
}

#[test]
fn a_source_that_changes_is_imported_again() {
    let space = Space::new("crons");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    let golden = || {
        let source = json!({"http": {"url": web.url("disk.qcow2")}});
        space.data_volume("golden", &source, IMMEDIATE, "Filesystem", &json!({}));
        space.phases("golden", "Succeeded");
    };
    golden();
    cron(&space, &json!({}), &json!({"pvc": {"namespace": "crons", "name": "golden"}}));
    let first = pointed(&space, "");
    assert_same(&space.file(&first));
    until("the cron is up to date", || {
        let (status, reason) = condition(&space, "DataImportCron", "nightly", "UpToDate")?;
        (status == "True" && reason == "UpToDate").then_some(())
    });
    until("the DataSource is ready", || {
        (condition(&space, "DataSource", "image", "Ready")?.0 == "True").then_some(())
    });
    space.delete("DataVolume", "golden");
    until("the source is gone", || space.get("PersistentVolumeClaim", "golden").is_none().then_some(()));
    golden();
    let second = pointed(&space, &first);
    assert_same(&space.file(&second));
    until("the old import is gone", || space.get("DataVolume", &first).is_none().then_some(()));
    assert!(space.get("DataVolume", &second).is_some());
}

#[test]
fn a_source_in_another_namespace_needs_the_right_of_the_imports_account() {
    let (golden, space) = (Space::new("crons-golden"), Space::new("crons-far"));
    golden.data_volume("golden", &json!({"blank": {}}), IMMEDIATE, "Filesystem", &json!({}));
    golden.phases("golden", "Succeeded");
    cron(&space, &json!({}), &json!({"pvc": {"namespace": "crons-golden", "name": "golden"}}));
    until("the cron may not clone", || {
        let (status, reason) = condition(&space, "DataImportCron", "nightly", "UpToDate")?;
        (status == "False" && reason == "NotAuthorized").then_some(())
    });
    assert!(space.names("DataVolume").is_empty());
    apply(
        &CLUSTER,
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\n\
         metadata: {name: cloner, namespace: crons-golden}\n\
         roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: \"cdi.kubevirt.io:clone-sourcer\"}\n\
         subjects: [{kind: ServiceAccount, name: default, namespace: crons-far}]\n",
    );
    let import = pointed(&space, "");
    space.phases(&import, "Succeeded");
}

#[test]
fn an_import_becomes_a_snapshot_where_the_storage_profile_asks_for_it() {
    const CLASS: &str = "hostpath-snapshots";
    let space = Space::new("crons-snapshots");
    apply(
        &CLUSTER,
        &format!(
            "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {{name: {CLASS}}}\n\
             provisioner: kubevirt.io.hostpath-provisioner\nvolumeBindingMode: Immediate\n\
             allowVolumeExpansion: true\nparameters: {{storagePool: legacy}}\n"
        ),
    );
    until("the class has a profile", || space.get("StorageProfile", CLASS));
    let format = json!({"spec": {"dataImportCronSourceFormat": "snapshot"}});
    space.patch("StorageProfile", CLASS, &format);
    until("the profile has the format", || {
        let profile = space.get("StorageProfile", CLASS)?;
        (profile["status"]["dataImportCronSourceFormat"] == "snapshot").then_some(())
    });
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    let source = json!({"http": {"url": web.url("disk.qcow2")}});
    cron_in(&space, CLASS, &json!({}), &source);
    let name = until("the DataSource points at a snapshot", || {
        let object = space.get("DataSource", "image")?;
        Some(object["spec"]["source"]["snapshot"]["name"].as_str()?.to_owned())
    });
    until("the claim is gone", || {
        let left = [space.names("DataVolume"), space.names("PersistentVolumeClaim")];
        left.iter().all(Vec::is_empty).then_some(())
    });
    let snapshot = space.get("VolumeSnapshot", &name).unwrap();
    let annotations = &snapshot["metadata"]["annotations"];
    assert_eq!(annotations["cdi.kubevirt.io/storage.import.sourceVolumeMode"], "Filesystem");
    assert!(annotations["cdi.kubevirt.io/storage.import.advisedRestoreSize"].is_string());
    until("the cron is up to date", || {
        let (status, _) = condition(&space, "DataImportCron", "nightly", "UpToDate")?;
        let format = space.get("DataImportCron", "nightly")?["status"]["sourceFormat"].clone();
        (status == "True" && format == "snapshot").then_some(())
    });
    // A copy of it has the disk.
    let storage = json!({"storageClassName": CLASS, "resources": {"requests": {"storage": "96Mi"}}});
    let spec = json!({"sourceRef": {"kind": "DataSource", "name": "image"}, "storage": storage});
    space.create("DataVolume", json!({"metadata": {"name": "copy"}, "spec": spec}));
    space.phases("copy", "Succeeded");
    assert_same(&space.file("copy"));
}

#[test]
fn a_digest_of_a_poller_that_is_none_is_refused() {
    let space = Space::new("crons-refused");
    let desired = json!({"cdi.kubevirt.io/storage.import.sourceDesiredDigest": "latest"});
    cron(&space, &desired, &json!({"registry": {"url": "docker://registry.invalid/disk"}}));
    until("the cron says why", || {
        let (_, reason) = condition(&space, "DataImportCron", "nightly", "UpToDate")?;
        (reason == "DigestNotValid").then_some(())
    });
    assert!(space.names("DataVolume").is_empty());
}

/// The DataSource's claim, when it is another one than `other`.
#[track_caller]
fn pointed(space: &Space, other: &str) -> String {
    until("the DataSource points at an import", || {
        let source = space.get("DataSource", "image")?;
        let name = source["spec"]["source"]["pvc"]["name"].as_str()?.to_owned();
        (name != other).then_some(name)
    })
}

/// Makes a cron due, as if its last poll were years ago.
fn make_due(space: &Space) {
    let past = json!({"cdi.kubevirt.io/storage.import.lastCronTime": "2020-01-01T00:00:00Z"});
    space.patch("DataImportCron", "nightly", &json!({"metadata": {"annotations": past}}));
}

#[test]
fn a_file_that_changes_on_the_web_is_polled_and_imported_again() {
    let space = Space::new("crons-web");
    let folder = tempfile::tempdir_in(DISK.qcow2.parent().unwrap()).unwrap();
    let file = folder.path().join("disk.qcow2");
    fs::copy(&DISK.qcow2, &file).unwrap();
    let web = Web::start(CLUSTER.place(), folder.path()).unwrap();
    cron(&space, &json!({}), &json!({"http": {"url": web.url("disk.qcow2")}}));
    let first = pointed(&space, "");
    assert_same(&space.file(&first));
    let annotations = space.get("DataImportCron", "nightly").unwrap()["metadata"]["annotations"].clone();
    let next = annotations["cdi.kubevirt.io/storage.import.nextCronTime"].as_str().unwrap().to_owned();
    assert!(next.ends_with("T03:00:00Z"), "{next}");
    // A poll of the same file imports nothing.
    make_due(&space);
    until("it is polled again", || {
        let cron = space.get("DataImportCron", "nightly")?;
        let last = cron["metadata"]["annotations"]["cdi.kubevirt.io/storage.import.lastCronTime"].as_str()?;
        (!last.starts_with("2020")).then_some(())
    });
    until("the status has the time of the poll", || {
        let cron = space.get("DataImportCron", "nightly")?;
        let polled = &cron["metadata"]["annotations"][LAST_POLLED];
        (cron["status"]["lastExecutionTimestamp"] == *polled).then_some(())
    });
    assert_eq!(space.names("DataVolume"), std::slice::from_ref(&first));
    // nginx makes the ETag of time and length.
    let later = SystemTime::now() + Duration::from_secs(60);
    fs::File::options().write(true).open(&file).unwrap().set_modified(later).unwrap();
    platform::restart();
    make_due(&space);
    let second = pointed(&space, &first);
    assert_same(&space.file(&second));
    until("the old import is gone", || space.get("DataVolume", &first).is_none().then_some(()));
    // The usual retention policy keeps imports and DataSource.
    space.delete("DataImportCron", "nightly");
    until("the cron is gone", || space.get("DataImportCron", "nightly").is_none().then_some(()));
    assert!(space.get("DataSource", "image").is_some() && space.get("DataVolume", &second).is_some());
}

/// A layer with the disk, and another file so that it differs from other layers.
fn layer(mark: &str, folder: &std::path::Path) -> Layer {
    let other = folder.join(mark);
    fs::write(&other, mark).unwrap();
    let members = BTreeMap::from([
        ("disk".to_owned(), Member::Folder { mode: 0o755 }),
        ("disk/disk.qcow2".to_owned(), Member::File { from: DISK.qcow2.clone(), mode: 0o444 }),
        ("mark".to_owned(), Member::File { from: other, mode: 0o444 }),
    ]);
    layer::pack(&members, &folder.join(format!("{mark}.layer"))).unwrap()
}

#[test]
fn an_image_behind_a_login_is_polled_by_a_pod_and_imported_again() {
    let space = Space::new("crons-registry");
    let registry = Registry::start(CLUSTER.place()).unwrap();
    let folder = tempfile::tempdir_in(DISK.qcow2.parent().unwrap()).unwrap();
    let image = CLUSTER.run(registry.push("disks/cron", &layer("one", folder.path()), &[])).unwrap();
    space.create(
        "ConfigMap",
        json!({"metadata": {"name": "authority"}, "data": {"ca.pem": registry.authority()}}),
    );
    let source =
        json!({"url": format!("docker://{image}"), "certConfigMap": "authority", "secretRef": "keys"});
    cron(&space, &json!({}), &json!({"registry": source}));
    // The Secret comes later: the pod waits for it, or the registry refuses.
    until("the cron says that it cannot be polled", || {
        let object = space.get("DataImportCron", "nightly")?;
        let conditions = object["status"]["conditions"].as_array()?.clone();
        let current = conditions.into_iter().find(|one| one["type"] == "UpToDate")?;
        let message = current["message"].as_str()?.to_owned();
        (current["reason"] == "NoDigest" && message.len() > "No source digest: ".len()).then_some(())
    });
    let keys = json!({"accessKeyId": registry::USER, "secretKey": registry::PASSWORD});
    space.create("Secret", json!({"metadata": {"name": "keys"}, "stringData": keys}));
    // The variables of a pod are read when it starts.
    for pod in space.names("Pod").iter().filter(|name| name.starts_with("poll-")) {
        space.delete("Pod", pod);
    }
    let first = pointed(&space, "");
    assert_same(&space.file(&first));
    CLUSTER.run(registry.push("disks/cron", &layer("two", folder.path()), &[])).unwrap();
    let desired =
        || space.get("DataImportCron", "nightly").unwrap()["metadata"]["annotations"][DESIRED].clone();
    let before = desired();
    // The controllers are killed before the poll and before the import.
    platform::restart();
    make_due(&space);
    until("the other digest is found", || (desired() != before).then_some(()));
    platform::restart();
    let second = pointed(&space, &first);
    assert_same(&space.file(&second));
    until("the old import is gone", || space.get("DataVolume", &first).is_none().then_some(()));
    assert_eq!(space.names("DataVolume"), [second], "one import is made, and one is kept");
    until("no pod is left", || space.names("Pod").is_empty().then_some(()));
}

/// Why a cron is not up to date.
fn problem(space: &Space, name: &str) -> Option<String> {
    let cron = space.get("DataImportCron", name)?;
    let conditions = cron["status"]["conditions"].as_array()?;
    let current = conditions.iter().find(|one| one["type"] == "UpToDate")?;
    Some(current["message"].as_str()?.to_owned())
}

#[test]
fn addresses_of_the_node_and_of_services_are_not_polled() {
    let space = Space::new("crons-guarded");
    let service = Space(PLATFORM.to_owned()).get("Service", "cdi-uploadproxy").unwrap();
    let service = service["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let http = |url: String| json!({"http": {"url": url}});
    let registry = |host: &str| json!({"registry": {"url": format!("docker://{host}/disks/image:1")}});
    let services = "an address of the cluster's Services";
    for (name, source, why) in [
        ("metadata", http("http://169.254.169.254/latest/meta-data".to_owned()), "link-local"),
        ("loopback", http("http://127.0.0.1:8443/healthz".to_owned()), "a loopback address"),
        ("service", http(format!("https://{service}/healthz")), services),
        ("named", http(format!("https://cdi-uploadproxy.{PLATFORM}.svc/healthz")), services),
        ("image-metadata", registry("169.254.169.254"), "link-local"),
        ("image-loopback", registry("127.0.0.1:5000"), "a loopback address"),
        ("image-service", registry(&service), services),
    ] {
        space.create(
            "DataImportCron",
            json!({
                "metadata": {"name": name},
                "spec": {
                    "managedDataSource": name, "schedule": "0 3 * * *",
                    "template": {"spec": {
                        "source": source,
                        "storage": {"resources": {"requests": {"storage": "96Mi"}}},
                    }},
                },
            }),
        );
        until(&format!("{name} is refused"), || {
            let message = problem(&space, name)?;
            println!("{name}: {message}");
            message.contains(why).then_some(())
        });
        until(&format!("{name} has an event"), || {
            space.events(name).iter().any(|(reason, _)| reason == "PollFailed").then_some(())
        });
    }
    assert!(space.names("DataVolume").is_empty() && space.names("Pod").is_empty());
    // Only the operator's certificate opens the port.
    let poller = Space(PLATFORM.to_owned()).get("Service", "cdi-cron-poller").unwrap();
    let address = poller["spec"]["clusterIP"].as_str().unwrap().to_owned();
    let client = reqwest::Client::builder().no_proxy().tls_danger_accept_invalid_certs(true).build().unwrap();
    let sent = CLUSTER.run(client.post(format!("https://{address}/v1/poll")).body("{}").send());
    assert!(sent.is_err(), "{sent:?}");
}

#[test]
fn a_service_that_the_administrator_allows_is_polled() {
    let space = Space::new("crons-allowed");
    let web = Web::start(CLUSTER.place(), DISK.qcow2.parent().unwrap()).unwrap();
    let (host, port) = web
        .url("")
        .trim_start_matches("http://")
        .trim_end_matches('/')
        .split_once(':')
        .map(|(host, port)| (host.to_owned(), port.to_owned()))
        .unwrap();
    apply(
        &CLUSTER,
        &format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: {0}}}\n\
             spec: {{ports: [{{name: http, port: 80, targetPort: {port}}}]}}\n---\n\
             apiVersion: v1\nkind: Endpoints\nmetadata: {{name: web, namespace: {0}}}\n\
             subsets: [{{addresses: [{{ip: {host}}}], ports: [{{name: http, port: {port}}}]}}]\n",
            space.0
        ),
    );
    let service = space.get("Service", "web").unwrap()["spec"]["clusterIP"].as_str().unwrap().to_owned();
    cron(&space, &json!({}), &json!({"http": {"url": format!("http://{service}/disk.qcow2")}}));
    until("the Service is refused", || {
        problem(&space, "nightly")?.contains("an address of the cluster's Services").then_some(())
    });
    let allow = |networks: Value| {
        let annotations = json!({POLL_NETWORKS: networks});
        space.patch("CDIConfig", "config", &json!({"metadata": {"annotations": annotations}}));
    };
    // This address only: other tests have Services that stay refused.
    allow(json!(format!("{service}/32")));
    make_due(&space);
    let import = pointed(&space, "");
    assert_same(&space.file(&import));
    allow(Value::Null);
}

#[test]
fn imports_go_by_their_last_use_and_with_a_cron_that_retains_none() {
    let space = Space::new("crons-retention");
    let folder = tempfile::tempdir_in(DISK.qcow2.parent().unwrap()).unwrap();
    let file = folder.path().join("disk.qcow2");
    fs::copy(&DISK.qcow2, &file).unwrap();
    let web = Web::start(CLUSTER.place(), folder.path()).unwrap();
    let storage = json!({"storageClassName": IMMEDIATE, "resources": {"requests": {"storage": "96Mi"}}});
    let template = json!({"source": {"http": {"url": web.url("disk.qcow2")}}, "storage": storage});
    let spec = json!({
        "managedDataSource": "image", "schedule": "0 3 * * *", "importsToKeep": 2, "retentionPolicy": "None",
        "template": {"spec": template},
    });
    space.create("DataImportCron", json!({"metadata": {"name": "nightly"}, "spec": spec}));
    let first = pointed(&space, "");
    // nginx makes the ETag of time and length.
    let begun = fs::metadata(&file).unwrap().modified().unwrap();
    let dated = |time: SystemTime| {
        fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
        make_due(&space);
    };
    dated(begun + Duration::from_secs(60));
    let second = pointed(&space, &first);
    assert!(space.get("DataVolume", &first).is_some(), "two imports are kept");
    // The first import is used again; times of use are whole seconds.
    std::thread::sleep(Duration::from_secs(1));
    dated(begun);
    assert_eq!(pointed(&space, &second), first);
    dated(begun + Duration::from_secs(120));
    let third = pointed(&space, &first);
    until("the import that was used longest ago is gone", || {
        space.get("DataVolume", &second).is_none().then_some(())
    });
    let (mut left, mut kept) = (space.names("DataVolume"), [first, third]);
    left.sort();
    kept.sort();
    assert_eq!(left, kept);
    space.delete("DataImportCron", "nightly");
    until("its imports and its DataSource are gone", || {
        let left = ["DataVolume", "PersistentVolumeClaim", "DataSource"].map(|kind| space.names(kind));
        left.iter().all(Vec::is_empty).then_some(())
    });
}

#[test]
fn data_sources_that_lead_to_nothing_give_the_reason() {
    let space = Space::new("crons-sources");
    let referring =
        |name: &str, namespace: &str| json!({"dataSource": {"name": name, "namespace": namespace}});
    let own = space.0.as_str();
    let cases = [
        ("absent", json!({"pvc": {"name": "absent", "namespace": own}}), "NotFound", "PVC not found"),
        (
            "untaken",
            json!({"snapshot": {"name": "absent", "namespace": own}}),
            "NotFound",
            "Snapshot not found",
        ),
        ("second", referring("absent", own), "NotFound", "PVC not found"),
        (
            "third",
            referring("second", own),
            "MaxReferenceDepthReached",
            "DataSource reference chain exceeds maximum depth of 1",
        ),
        ("circle", referring("circle", own), "SelfReference", "DataSource cannot reference itself"),
        (
            "far",
            referring("absent", "default"),
            "CrossNamespaceReference",
            "DataSource cannot reference a DataSource in another namespace",
        ),
    ];
    for (name, source, ..) in &cases {
        space.create("DataSource", json!({"metadata": {"name": name}, "spec": {"source": source}}));
    }
    for (name, _, reason, message) in &cases {
        until(&format!("{name} has reason {reason}"), || {
            let object = space.get("DataSource", name)?;
            let ready =
                object["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == "Ready")?;
            let given = ready["reason"] == *reason && ready["message"] == *message;
            (ready["status"] == "False" && given).then_some(())
        });
    }
}

#[test]
fn crons_and_sources_that_cannot_work_are_refused_and_their_spec_stays() {
    let space = Space::new("crons-wrong");
    let storage = json!({"resources": {"requests": {"storage": "96Mi"}}});
    let object = |kind: &str, name: &str, spec: Value| {
        json!({
            "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": kind,
            "metadata": {"name": name, "namespace": space.0}, "spec": spec,
        })
    };
    let cron = |schedule: &str, source: Value| {
        let template = json!({"spec": {"source": source, "storage": storage}});
        json!({"schedule": schedule, "managedDataSource": "image", "template": template})
    };
    let pause = || cron("", json!({"http": {"url": "http://a.invalid/disk"}}));
    let send = |verb: &str, object: &Value| {
        let file = CLUSTER.place().path("crons-wrong.json");
        fs::write(&file, object.to_string()).unwrap();
        let sent = CLUSTER.kubectl().args([verb, "-f"]).arg(&file).output().unwrap();
        (sent.status.success(), String::from_utf8_lossy(&sent.stderr).into_owned())
    };
    for (tried, words) in [
        (
            object("DataImportCron", "tried", cron("often", pause()["template"]["spec"]["source"].clone())),
            "Illegal cron schedule",
        ),
        (object("DataImportCron", "tried", cron("", json!({"blank": {}}))), "Missing registry source"),
        (
            object("VolumeImportSource", "tried", json!({"source": {"http": {"url": "ftp://a"}}})),
            "Invalid source URL scheme",
        ),
        (object("VolumeUploadSource", "tried", json!({"contentType": "iso"})), "ContentType not one of"),
    ] {
        let (accepted, said) = send("create", &tried);
        assert!(!accepted && said.contains(words), "{tried}: {said}");
    }
    let kept = object("DataImportCron", "kept", pause());
    let (accepted, said) = send("create", &kept);
    assert!(accepted, "{said}");
    let mut changed = kept;
    changed["spec"]["schedule"] = json!("0 3 * * *");
    let (accepted, said) = send("apply", &changed);
    assert!(!accepted && said.contains("Cannot update DataImportCron Spec"), "{said}");
}
