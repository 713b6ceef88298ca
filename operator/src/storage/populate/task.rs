//! The content to fill a claim with: from its DataVolume, from the source object that its `dataSourceRef` names, or from
//! annotations.

use serde_json::Value;

use crate::storage::datavolume::Obstacle;
use crate::storage::names;
use crate::storage::seen::source::{Protocol, Registry, Remote};
use crate::storage::seen::{Claim, DataVolume, Source, text};

/// The transfer into a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Where content comes from.
    pub source: Source,
    /// Whether it is an archive.
    pub archive: bool,
    /// Whether all blocks are reserved.
    pub preallocation: bool,
    /// Uid in the progress metric.
    pub owner_uid: String,
    /// Priority class of workers that the source object names; empty for none.
    pub priority: String,
}

/// The source object that a claim names.
#[derive(Clone, Debug, PartialEq)]
pub enum Named {
    /// None is needed: the claim belongs to a DataVolume, or has no `dataSourceRef`.
    NotNeeded,
    /// It does not exist.
    Missing,
    /// This one.
    Found(Value),
}

/// The task of a claim. `None`: the claim is none of ours.
///
/// # Errors
/// When the source cannot be found or used, with what to do.
pub fn task(claim: &Claim, volume: Option<&DataVolume>, named: &Named) -> Result<Option<Task>, Obstacle> {
    let archive = claim.meta.says(names::CONTENT_TYPE, "archive");
    let preallocation = claim.meta.says(names::PREALLOCATION_REQUESTED, "true");
    let owner_uid = claim.meta.uid.clone();
    let ours = claim.source.as_ref().is_none_or(|source| source.group == names::GROUP);
    if !ours || claim.meta.says(names::EXTERNAL_POPULATION, "true") {
        return Ok(None);
    }
    if let Some(volume) = volume.filter(|volume| claim.meta.is_controlled_by(&volume.meta.uid)) {
        let (source, owner_uid) = (usable(volume.source.clone())?, volume.meta.uid.clone());
        return Ok(Some(Task { source, archive, preallocation, owner_uid, priority: String::new() }));
    }
    let Some(reference) = claim.source.as_ref().filter(|source| source.group == names::GROUP) else {
        let task = |source| Task { source, archive, preallocation, owner_uid, priority: String::new() };
        return annotated(claim).map(usable).transpose().map(|source| source.map(task));
    };
    if reference.namespace.as_ref().is_some_and(|namespace| *namespace != claim.meta.namespace) {
        // As upstream: sources of other namespaces are left to other populators.
        return Ok(None);
    }
    let object = match named {
        Named::Found(object) => object,
        Named::Missing | Named::NotNeeded => {
            let message = format!("{} {} does not exist: create it", reference.kind, reference.name);
            return Err(Obstacle { reason: "SourceNotFound", message });
        }
    };
    let spec = &object["spec"];
    let source = match reference.kind.as_str() {
        names::IMPORT_SOURCE => Source::from(&spec["source"]),
        names::UPLOAD_SOURCE => Source::Upload,
        names::CLONE_SOURCE => cloned(&spec["source"], claim.meta.annotation(names::SOURCE_NAMESPACE)),
        _ => return Ok(None),
    };
    Ok(Some(Task {
        source: usable(source)?,
        archive: spec["contentType"] == "archive",
        preallocation: spec["preallocation"].as_bool().unwrap_or(preallocation),
        owner_uid,
        priority: text(&spec["priorityClassName"]),
    }))
}

fn usable(source: Source) -> Result<Source, Obstacle> {
    match source {
        Source::Unsupported(kind) => {
            Err(Obstacle { reason: "SourceNotSupported", message: format!("source {kind} is not supported") })
        }
        Source::Missing => Err(Obstacle {
            reason: "SourceMissing",
            message: "the source is missing or of an unknown kind: use http, s3, gcs, registry, blank, upload, pvc or \
                      snapshot, or in a VolumeCloneSource the kind PersistentVolumeClaim or VolumeSnapshot"
                .into(),
        }),
        Source::Remote(_)
        | Source::Registry(_)
        | Source::Blank
        | Source::Upload
        | Source::Claim { .. }
        | Source::Snapshot { .. }
        | Source::Reference { .. } => Ok(source),
    }
}

/// The source of a clone. `far`: its namespace, where that is another one; the clone then needs a grant.
fn cloned(source: &Value, far: Option<&str>) -> Source {
    let (namespace, name) = (far.unwrap_or_default().to_owned(), text(&source["name"]));
    match source["kind"].as_str() {
        Some("PersistentVolumeClaim") => Source::Claim { namespace, name },
        Some("VolumeSnapshot") => Source::Snapshot { namespace, name },
        _ => Source::Missing,
    }
}

/// A claim without a `dataSourceRef` that asks for a transfer by annotations.
fn annotated(claim: &Claim) -> Option<Source> {
    if claim.source.is_some() {
        return None;
    }
    let annotation = |name: &str| claim.meta.annotation(name).unwrap_or_default().to_owned();
    if claim.meta.annotation(names::UPLOAD_TARGET).is_some() {
        return Some(Source::Upload);
    }
    let url = annotation(names::IMPORT_ENDPOINT);
    let (secret, certificates) = (
        annotation("cdi.kubevirt.io/storage.import.secretName"),
        annotation("cdi.kubevirt.io/storage.import.certConfigMap"),
    );
    let protocol = match claim.meta.annotation(names::IMPORT_SOURCE_NAME) {
        Some("none") => return Some(Source::Blank),
        Some("registry") => {
            return Some(Source::Registry(Registry { url, secret, certificates, ..Registry::default() }));
        }
        Some("s3") => Protocol::S3,
        Some("gcs") => Protocol::Gcs,
        Some("http") => Protocol::Http,
        None if !url.is_empty() => Protocol::Http,
        // One that CDI has filled before stays as it is.
        Some(kind) if !claim.meta.says(names::POD_PHASE, "Succeeded") => return Source::unsupported(kind),
        Some(_) | None => return None,
    };
    Some(Source::Remote(Remote { protocol, url, secret, certificates, ..Remote::default() }))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(reference: &Value, annotations: &Value) -> Claim {
        Claim::from(&json!({
            "metadata": {"name": "c", "namespace": "n", "uid": "claim", "annotations": annotations,
                "ownerReferences": [{"kind": "DataVolume", "uid": "volume", "controller": true}]},
            "spec": {"dataSourceRef": reference},
        }))
    }

    fn reference(kind: &str) -> Value {
        json!({"apiGroup": "cdi.kubevirt.io", "kind": kind, "name": "s"})
    }

    #[test]
    fn a_data_volumes_claim_is_filled_from_the_data_volume() {
        let volume =
            DataVolume::from(&json!({"metadata": {"uid": "volume"}, "spec": {"source": {"blank": {}}}}));
        let ours = claim(&reference("VolumeImportSource"), &json!({names::PREALLOCATION_REQUESTED: "true"}));
        let task = task(&ours, Some(&volume), &Named::NotNeeded).unwrap().unwrap();
        assert_eq!(
            task,
            Task {
                source: Source::Blank,
                archive: false,
                preallocation: true,
                owner_uid: "volume".into(),
                priority: String::new(),
            }
        );
    }

    #[test]
    fn a_users_claim_is_filled_from_the_object_it_names() {
        let of = |kind: &str, named: &Named| task(&claim(&reference(kind), &json!({})), None, named);
        let import =
            Named::Found(json!({"spec": {"source": {"http": {"url": "u"}}, "contentType": "archive"}}));
        let found = of("VolumeImportSource", &import).unwrap().unwrap();
        assert!(matches!(found.source, Source::Remote(remote) if remote.url == "u"));
        assert_eq!((found.archive, found.owner_uid.as_str()), (true, "claim"));
        let clone = Named::Found(json!({"spec": {
            "source": {"kind": "PersistentVolumeClaim", "name": "x"}, "priorityClassName": "high",
        }}));
        let found = of("VolumeCloneSource", &clone).unwrap().unwrap();
        assert_eq!(found.priority, "high");
        assert_eq!(found.source, Source::Claim { namespace: String::new(), name: "x".into() });
        assert_eq!(
            of("VolumeUploadSource", &Named::Found(json!({}))).unwrap().unwrap().source,
            Source::Upload
        );
        assert_eq!(
            of("VolumeImportSource", &Named::Missing).unwrap_err().message,
            "VolumeImportSource s does not exist: create it"
        );
        let vddk = Named::Found(json!({"spec": {"source": {"vddk": {}}}}));
        assert_eq!(of("VolumeImportSource", &vddk).unwrap_err().reason, "SourceNotSupported");
        assert_eq!(of("OvirtVolumePopulator", &import).unwrap(), None);
        let mut foreign = reference("VolumeImportSource");
        foreign["namespace"] = json!("other");
        assert_eq!(task(&claim(&foreign, &json!({})), None, &import).unwrap(), None);
    }

    #[test]
    fn claims_without_a_data_source_ask_by_annotations() {
        let of =
            |annotations: Value| task(&claim(&Value::Null, &annotations), None, &Named::NotNeeded).unwrap();
        assert_eq!(of(json!({})), None);
        assert_eq!(of(json!({names::UPLOAD_TARGET: ""})).unwrap().source, Source::Upload);
        assert_eq!(of(json!({names::IMPORT_SOURCE_NAME: "none"})).unwrap().source, Source::Blank);
        assert!(matches!(of(json!({names::IMPORT_ENDPOINT: "http://a"})).unwrap().source, Source::Remote(_)));
        assert_eq!(of(json!({names::IMPORT_SOURCE_NAME: "floppy"})), None);
        let filled = json!({names::IMPORT_SOURCE_NAME: "vddk", names::POD_PHASE: "Succeeded"});
        assert_eq!(of(filled), None);
        for kind in ["glance", "imageio", "vddk"] {
            let asking = claim(&Value::Null, &json!({names::IMPORT_SOURCE_NAME: kind}));
            let refusal = task(&asking, None, &Named::NotNeeded).unwrap_err();
            let text = format!("source {kind} is not supported");
            assert_eq!((refusal.reason, refusal.message), ("SourceNotSupported", text));
        }
    }
}
