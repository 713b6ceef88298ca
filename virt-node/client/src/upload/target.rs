//! The DataVolume or PersistentVolumeClaim of an upload: checked or created, waited for, and its DataSource.

use std::time::Duration;

use cluster::{Apply, Key, Resource, Scope};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::{Mode, Of, Options};
use crate::error::{Error, Kind, Result, failed, usage};
use crate::output::say;
use crate::site::{CLAIMS, Site, VOLUMES, text};

const SOURCES: Resource = Resource::namespaced("cdi.kubevirt.io", "v1beta1", "datasources");
const EVENTS: Resource = Resource::namespaced("", "v1", "events");
/// How often an object is read while it is waited for.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// How long filling may take, as in virtctl.
const FILLING: Duration = Duration::from_secs(24 * 3600);

/// Annotations of CDI, as JSON pointers below the annotations.
const UPLOAD_TARGET: &str = "cdi.kubevirt.io/storage.upload.target";
const POD_PHASE: &str = "cdi.kubevirt.io/storage.pod.phase";
const POD_READY: &str = "cdi.kubevirt.io/storage.pod.ready";
const IMMEDIATE: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
const CONTENT: &str = "cdi.kubevirt.io/storage.contentType";

fn annotation<'a>(object: &'a Value, name: &str) -> Option<&'a str> {
    object.pointer("/metadata/annotations")?.get(name)?.as_str()
}

/// Creates the object, or checks the one that exists.
pub(super) async fn prepare(site: &Site, typed: &Options) -> Result<()> {
    let key = Key::new(&site.namespace, &typed.name);
    let unread = || failed(format!("{key} cannot be read"));
    let volume: Option<Value> = site.client.find(VOLUMES, &key).await.map_err(unread())?;
    let claim: Option<Value> = site.client.find(CLAIMS, &key).await.map_err(unread())?;
    if volume.is_some() || claim.is_some() {
        check(typed, &key, volume.as_ref(), claim.as_ref())?;
        say(&format!("Using existing PVC {key}"));
        return Ok(());
    }
    let (kind, resource) = match typed.of {
        Of::Dv => ("DataVolume", VOLUMES),
        Of::Pvc => ("PVC", CLAIMS),
    };
    if typed.no_create {
        return Err(Error::new(
            Kind::Refused,
            format!("{kind} {key} does not exist; without --no-create it is created"),
        ));
    }
    let object = object(typed)?;
    let created = site.client.create::<IgnoredAny>(resource, &site.namespace, &object).await;
    created.map_err(failed(format!("{kind} {key} cannot be created")))?;
    say(&format!("{kind} {key} created"));
    Ok(())
}

/// Whether an object that exists waits for this upload.
fn check(typed: &Options, key: &Key, volume: Option<&Value>, claim: Option<&Value>) -> Result<()> {
    let refused = |text: String| Err(Error::new(Kind::Refused, text));
    if claim.is_some_and(|claim| annotation(claim, POD_PHASE) == Some("Succeeded"))
        || volume.is_some_and(|volume| text(volume, "/status/phase") == "Succeeded")
    {
        return refused(format!("PVC {key} already successfully imported/cloned/updated"));
    }
    let archive = match (volume, claim) {
        (Some(volume), _) if volume.pointer("/spec/source/upload").is_none() => {
            return refused(format!("DataVolume {key} is not filled by an upload"));
        }
        (Some(volume), _) => text(volume, "/spec/contentType") == "archive",
        (None, Some(_)) if typed.of == Of::Dv => {
            return refused(format!("No DataVolume is associated with the existing PVC {key}"));
        }
        (None, Some(claim)) if annotation(claim, UPLOAD_TARGET).is_none() => {
            return refused(format!(
                "PVC {key} not available for upload: it lacks the annotation {UPLOAD_TARGET}"
            ));
        }
        (None, Some(claim)) => annotation(claim, CONTENT) == Some("archive"),
        (None, None) => typed.archive_path.is_some(),
    };
    match (archive, typed.archive_path.is_some()) {
        (true, false) => refused(format!("PVC {key} takes an archive: use --archive-path")),
        (false, true) => refused(format!("PVC {key} takes a disk image: use --image-path")),
        (true, true) | (false, false) => Ok(()),
    }
}

/// The object as it is created.
fn object(typed: &Options) -> Result<Value> {
    let Some(size) = &typed.size else {
        return usage("when creating a resource, the size must be specified: --size");
    };
    let mut storage = json!({"resources": {"requests": {"storage": size}}});
    if let Some(class) = &typed.storage_class {
        storage["storageClassName"] = json!(class);
    }
    let access = typed.access_mode.as_deref().or((typed.of == Of::Pvc).then_some("ReadWriteOnce"));
    if let Some(mode) = access {
        storage["accessModes"] = json!([mode]);
    }
    match typed.volume_mode {
        Some(Mode::Block) => storage["volumeMode"] = json!("Block"),
        None if typed.block_volume => storage["volumeMode"] = json!("Block"),
        Some(Mode::Filesystem) => storage["volumeMode"] = json!("Filesystem"),
        None => {}
    }
    let mut labels = json!({});
    for (name, value) in [
        ("instancetype.kubevirt.io/default-instancetype", &typed.default_instancetype),
        ("instancetype.kubevirt.io/default-instancetype-kind", &typed.default_instancetype_kind),
        ("instancetype.kubevirt.io/default-preference", &typed.default_preference),
        ("instancetype.kubevirt.io/default-preference-kind", &typed.default_preference_kind),
    ] {
        if let Some(value) = value {
            labels[name] = json!(value);
        }
    }
    let mut annotations = json!({});
    if typed.force_bind {
        annotations[IMMEDIATE] = json!("");
    }
    let archive = typed.archive_path.is_some();
    Ok(match typed.of {
        Of::Dv => {
            let mut spec = json!({"source": {"upload": {}}, "storage": storage});
            if archive {
                spec["contentType"] = json!("archive");
            }
            json!({"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
                "metadata": {"name": typed.name, "labels": labels, "annotations": annotations}, "spec": spec})
        }
        Of::Pvc => {
            annotations[UPLOAD_TARGET] = json!("");
            annotations[CONTENT] = json!(if archive { "archive" } else { "kubevirt" });
            labels["cdi.kubevirt.io/applyStorageProfile"] = json!("true");
            json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim",
                "metadata": {"name": typed.name, "labels": labels, "annotations": annotations}, "spec": storage})
        }
    })
}

/// Waits until the upload can begin.
pub(super) async fn ready(site: &Site, typed: &Options) -> Result<()> {
    let key = Key::new(&site.namespace, &typed.name);
    let until = Instant::now() + Duration::from_secs(typed.wait_secs);
    loop {
        let volume: Option<Value> = site.client.find(VOLUMES, &key).await?;
        let claim: Option<Value> = match volume {
            Some(_) => None,
            None => site.client.find(CLAIMS, &key).await?,
        };
        if is_ready(typed, volume.as_ref(), claim.as_ref())? {
            return Ok(());
        }
        if let Some(volume) = &volume {
            refused_claim(site, &key, text(volume, "/metadata/uid")).await?;
        }
        if Instant::now() >= until {
            let seen = volume.as_ref().map_or("no DataVolume", |volume| text(volume, "/status/phase"));
            let text = format!(
                "timed out waiting for {key} to be ready for the upload after {} s ({seen}); \
                 kubectl describe shows its events",
                typed.wait_secs
            );
            return Err(Error::new(Kind::System, text));
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn is_ready(typed: &Options, volume: Option<&Value>, claim: Option<&Value>) -> Result<bool> {
    let Some(volume) = volume else {
        return Ok(claim.is_some_and(|claim| annotation(claim, POD_READY) == Some("true")));
    };
    match text(volume, "/status/phase") {
        "UploadReady" => Ok(true),
        phase @ ("WaitForFirstConsumer" | "PendingPopulation")
            if !typed.force_bind && annotation(volume, IMMEDIATE).is_none() =>
        {
            let text = format!(
                "cannot upload to DataVolume in {phase} state, make sure the PVC is Bound, or use force-bind flag"
            );
            Err(Error::new(Kind::Refused, text))
        }
        "Succeeded" | "Failed" => {
            let text = format!("DataVolume {} was filled by another client or failed", typed.name);
            Err(Error::new(Kind::Refused, text))
        }
        _ => Ok(false),
    }
}

/// Fails if CDI has refused to make the claim of the DataVolume with this id: events of a deleted one of the same name are
/// kept for an hour.
async fn refused_claim(site: &Site, key: &Key, uid: &str) -> Result<()> {
    let scope = Scope::all()
        .namespace(key.namespace())
        .fields(&format!("involvedObject.uid={uid},reason=ErrClaimNotValid"));
    let events: Vec<Value> = site.client.list(EVENTS, &scope).await?;
    match events.first() {
        Some(event) => {
            Err(Error::new(Kind::Refused, format!("DataVolume {key}: {}", text(event, "/message"))))
        }
        None => Ok(()),
    }
}

/// Waits until the volume is filled.
pub(super) async fn filled(site: &Site, typed: &Options) -> Result<()> {
    let key = Key::new(&site.namespace, &typed.name);
    let until = Instant::now() + FILLING;
    while Instant::now() < until {
        let claim: Option<Value> = site.client.find(CLAIMS, &key).await?;
        if claim.is_some_and(|claim| annotation(&claim, POD_PHASE) == Some("Succeeded")) {
            return Ok(());
        }
        let volume: Option<Value> = site.client.find(VOLUMES, &key).await?;
        match volume.as_ref().map(|volume| text(volume, "/status/phase")) {
            Some("Succeeded") => return Ok(()),
            Some("Failed") => {
                return Err(Error::new(
                    Kind::Refused,
                    format!("DataVolume {key} has failed; kubectl describe shows why"),
                ));
            }
            Some(_) | None => sleep(POLL_INTERVAL).await,
        }
    }
    Err(Error::new(Kind::System, format!("{key} was not filled within {} hours", FILLING.as_secs() / 3600)))
}

/// Points a DataSource to the volume.
pub(super) async fn data_source(site: &Site, typed: &Options) -> Result<()> {
    let key = Key::new(&site.namespace, &typed.name);
    let source = json!({"apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource",
        "metadata": {"name": typed.name, "namespace": site.namespace},
        "spec": {"source": {"pvc": {"name": typed.name, "namespace": site.namespace}}}});
    let manager = Apply { manager: "kubectl-virt", force: true };
    let applied = site.client.apply::<IgnoredAny>(SOURCES, &key, &source, manager).await;
    applied.map_err(failed(format!("DataSource {key} cannot be created")))?;
    say(&format!("DataSource {key} points to the volume"));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tests::typed;
    use super::*;

    #[test]
    fn flags_become_the_objects_of_virtctl() {
        let words = "dv a --size 1Gi --image-path f --storage-class p --access-mode ReadWriteMany --volume-mode block \
                     --force-bind --default-preference linux";
        let made = object(&typed(words)).unwrap();
        assert_eq!(made["metadata"]["annotations"], json!({IMMEDIATE: ""}));
        assert_eq!(
            made["metadata"]["labels"],
            json!({"instancetype.kubevirt.io/default-preference": "linux"})
        );
        let storage = json!({"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "p",
            "accessModes": ["ReadWriteMany"], "volumeMode": "Block"});
        assert_eq!(made["spec"], json!({"source": {"upload": {}}, "storage": storage}));
        let claim = object(&typed("pvc a --size 1Gi --archive-path f")).unwrap();
        assert_eq!(claim["metadata"]["annotations"], json!({UPLOAD_TARGET: "", CONTENT: "archive"}));
        assert_eq!(claim["metadata"]["labels"], json!({"cdi.kubevirt.io/applyStorageProfile": "true"}));
        assert_eq!(claim["spec"]["accessModes"], json!(["ReadWriteOnce"]));
        assert!(object(&typed("dv a --image-path f")).unwrap_err().chain().contains("--size"));
    }

    #[test]
    fn objects_that_exist_must_wait_for_this_upload() {
        let key = Key::new("n", "a");
        let dv = |spec: Value, phase: &str| json!({"spec": spec, "status": {"phase": phase}});
        let upload = json!({"source": {"upload": {}}});
        let archive = json!({"source": {"upload": {}}, "contentType": "archive"});
        let image = typed("dv a --image-path f");
        let said = |volume: Option<Value>, claim: Option<Value>, typed: &Options| {
            check(typed, &key, volume.as_ref(), claim.as_ref()).err().map(|error| error.chain())
        };
        assert_eq!(said(Some(dv(upload.clone(), "UploadReady")), None, &image), None);
        for (volume, claim, part) in [
            (Some(dv(upload.clone(), "Succeeded")), None, "already successfully"),
            (Some(dv(json!({"source": {"blank": {}}}), "Pending")), None, "not filled by an upload"),
            (Some(dv(archive, "Pending")), None, "--archive-path"),
            (None, Some(json!({})), "No DataVolume"),
        ] {
            let text = said(volume, claim, &image).unwrap();
            assert!(text.contains(part), "{text}");
        }
        let pvc = typed("pvc a --image-path f");
        assert!(said(None, Some(json!({})), &pvc).unwrap().contains("not available for upload"));
        let waits = json!({"metadata": {"annotations": {UPLOAD_TARGET: ""}}});
        assert_eq!(said(None, Some(waits), &pvc), None);
    }

    #[test]
    fn uploads_begin_when_the_pod_is_ready() {
        let phase = |phase: &str| json!({"status": {"phase": phase}});
        let plain = typed("dv a --image-path f");
        let forced = typed("dv a --image-path f --force-bind");
        assert!(is_ready(&plain, Some(&phase("UploadReady")), None).unwrap());
        assert!(!is_ready(&plain, Some(&phase("UploadScheduled")), None).unwrap());
        assert!(is_ready(&plain, Some(&phase("WaitForFirstConsumer")), None).is_err());
        assert!(!is_ready(&forced, Some(&phase("WaitForFirstConsumer")), None).unwrap());
        assert!(is_ready(&plain, Some(&phase("Failed")), None).is_err());
        let claim = json!({"metadata": {"annotations": {POD_READY: "true"}}});
        assert!(is_ready(&plain, None, Some(&claim)).unwrap());
        assert!(!is_ready(&plain, None, None).unwrap());
    }
}
