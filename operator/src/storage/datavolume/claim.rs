//! The claim of a DataVolume: rendered from `spec.pvc` or `spec.storage`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::storage::class::Classes;
use crate::storage::names;
use crate::storage::profile::Profile;
use crate::storage::seen::source::Protocol;
use crate::storage::seen::{Class, DataVolume, Source};
use crate::storage::settings::Settings;

/// The cluster's storage.
#[derive(Clone, Copy, Debug)]
pub struct ClusterStorage<'a> {
    /// Storage classes.
    pub classes: &'a Classes,
    /// Profiles of the classes.
    pub profiles: &'a [Profile],
    /// Settings of transfers.
    pub settings: &'a Settings,
}

/// Why a claim cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For programs.
    pub reason: &'static str,
    /// The defect, and the remedy.
    pub message: String,
}

/// Reason of a DataVolume from which no valid claim follows.
pub const NOT_VALID: &str = "ErrClaimNotValid";

fn refused(message: impl Into<String>) -> Refusal {
    Refusal { reason: NOT_VALID, message: message.into() }
}

/// The class that a DataVolume's claim has; `None` when it has none.
///
/// # Errors
/// When the class does not exist, or there is no default class.
pub fn class<'a>(volume: &DataVolume, classes: &'a Classes) -> Result<Option<&'a Class>, Refusal> {
    match volume.claim.class.as_deref() {
        Some("") => Ok(None),
        Some(name) => classes.named(name).map(Some).ok_or_else(|| {
            refused(format!("StorageClass {name} does not exist: create it, or delete the DataVolume and name another one"))
        }),
        // A claim that names its volume needs no class.
        None if !volume.claim.volume.is_empty() => Ok(classes.preferred(!volume.archive)),
        None => classes.preferred(!volume.archive).map(Some).ok_or_else(|| {
            refused(
                "there is no default StorageClass: annotate one with storageclass.kubernetes.io/is-default-class=true, \
                 or name one in the DataVolume",
            )
        }),
    }
}

/// The claim of a DataVolume, as it is created. `size` is that of the source where the DataVolume gives none.
///
/// # Errors
/// When no valid claim follows from the DataVolume and the storage.
pub fn render(volume: &DataVolume, offer: ClusterStorage<'_>, size: Option<u64>) -> Result<Value, Refusal> {
    let class = class(volume, offer.classes)?;
    // A claim that names its volume binds to it at once: there is nothing for a populator to put in its place.
    let populated = offer.classes.populates(class, &volume.meta)
        && !is_external(volume)
        && volume.claim.volume.is_empty();
    let shape = if volume.claim.rendered { rendered(volume, class, offer, size)? } else { literal(volume)? };
    let mut spec = json!({
        "accessModes": shape.modes,
        "volumeMode": if shape.block { "Block" } else { "Filesystem" },
        "resources": {"requests": shape.requests},
    });
    if !volume.claim.limits.is_empty() {
        spec["resources"]["limits"] = json!(volume.claim.limits);
    }
    if let Some(name) = class.map(|class| class.meta.name.as_str()).or(volume.claim.class.as_deref()) {
        spec["storageClassName"] = json!(name);
    }
    for (field, value) in
        [("volumeName", &volume.claim.volume), ("volumeAttributesClassName", &volume.claim.attributes_class)]
    {
        if !value.is_empty() {
            spec[field] = json!(value);
        }
    }
    if !volume.claim.selector.is_null() {
        spec["selector"] = volume.claim.selector.clone();
    }
    if is_external(volume) {
        spec["dataSourceRef"] = volume.claim.source.clone();
    } else if populated {
        let (kind, name) = populator(volume);
        spec["dataSourceRef"] = json!({"apiGroup": names::GROUP, "kind": kind, "name": name});
    }
    let mut annotations = annotations(volume, offer.settings, populated);
    if volume.claim.size().is_none() {
        annotations.insert(names::PERMISSIVE_CLONE.to_owned(), json!("true"));
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": volume.meta.name,
            "namespace": volume.meta.namespace,
            "labels": labels(volume, shape.block, offer.settings),
            "annotations": annotations,
            "ownerReferences": [owner(volume)],
        },
        "spec": spec,
    }))
}

/// Whether another program's populator fills the claim.
pub fn is_external(volume: &DataVolume) -> bool {
    !volume.claim.source.is_null() || volume.meta.says(names::EXTERNAL_POPULATION, "true")
}

/// Kind and name of the data source of a DataVolume's claim. The object itself is not made: for claims of DataVolumes
/// the source is read from the DataVolume, which saves two writes.
pub fn populator(volume: &DataVolume) -> (&'static str, String) {
    let (kind, prefix) = match &volume.source {
        Source::Upload => (names::UPLOAD_SOURCE, "volume-upload-source"),
        Source::Claim { .. } | Source::Snapshot { .. } | Source::Reference { .. } => {
            (names::CLONE_SOURCE, "volume-clone-source")
        }
        Source::Remote(_)
        | Source::Registry(_)
        | Source::Blank
        | Source::Unsupported(_)
        | Source::Missing => (names::IMPORT_SOURCE, "volume-import-source"),
    };
    (kind, format!("{prefix}-{}", volume.meta.uid))
}

/// The owner reference to a DataVolume.
pub fn owner(volume: &DataVolume) -> Value {
    json!({
        "apiVersion": names::API_VERSION, "kind": "DataVolume", "name": volume.meta.name, "uid": volume.meta.uid,
        "controller": true, "blockOwnerDeletion": true,
    })
}

/// The shape of a claim.
struct Shape {
    modes: Vec<String>,
    block: bool,
    requests: BTreeMap<String, String>,
}

/// `spec.pvc` as it is.
fn literal(volume: &DataVolume) -> Result<Shape, Refusal> {
    if volume.claim.modes.is_empty() {
        return Err(refused(
            "spec.pvc.accessModes is missing: name at least one access mode, or use spec.storage",
        ));
    }
    Ok(Shape {
        modes: volume.claim.modes.clone(),
        block: volume.claim.mode.as_deref() == Some("Block"),
        requests: volume.claim.requests.clone(),
    })
}

/// `spec.storage`: what is missing comes from the class's profile, and the size is that of the disk.
fn rendered(
    volume: &DataVolume,
    class: Option<&Class>,
    offer: ClusterStorage<'_>,
    size: Option<u64>,
) -> Result<Shape, Refusal> {
    let template = &volume.claim;
    let name = class.map(|class| class.meta.name.as_str()).unwrap_or_default();
    let profile = offer.profiles.iter().find(|profile| profile.class == name);
    let asked = match template.mode.as_deref() {
        // An archive is unpacked into a filesystem.
        _ if volume.archive => Some(false),
        Some(mode) => Some(mode == "Block"),
        None => None,
    };
    let property = profile.and_then(|profile| profile.choose(&template.modes, asked));
    let modes = match (template.modes.is_empty(), property) {
        (false, _) => template.modes.clone(),
        (true, Some(property)) => property.modes.clone(),
        (true, None) if class.is_none() => {
            return Err(refused("PVC spec is missing accessMode and no storageClass to choose profile"));
        }
        (true, None) => {
            return Err(refused(format!(
                "no accessMode defined DV nor on StorageProfile for {name} StorageClass: set spec.storage.accessModes, or \
                 spec.claimPropertySets of StorageProfile {name}"
            )));
        }
    };
    let block = asked.or_else(|| property.map(|property| property.block)).unwrap_or(false);
    let size = template.size().or(size).ok_or_else(|| {
        refused("spec.storage.resources.requests.storage is missing, and the size of the source is not known")
    })?;
    let overhead = offer.settings.overhead_of(Some(name), block);
    let minimum = profile.map_or(0, |profile| profile.minimum);
    let mut requests = template.requests.clone();
    requests.insert("storage".to_owned(), overhead.volume_for(size).max(minimum).to_string());
    Ok(Shape { modes, block, requests })
}

/// A user's claim with what its storage profile adds, as for `spec.storage` of a DataVolume.
///
/// # Errors
/// When no valid claim follows from the claim and the storage.
pub fn complete(claim: &Value, offer: ClusterStorage<'_>) -> Result<Value, Refusal> {
    let mut volume =
        DataVolume::from(&json!({"metadata": claim["metadata"], "spec": {"storage": claim["spec"]}}));
    volume.archive = volume.meta.says(names::CONTENT_TYPE, "archive");
    let class = class(&volume, offer.classes)?;
    let shape = rendered(&volume, class, offer, None)?;
    let mut claim = claim.clone();
    claim["spec"]["accessModes"] = json!(shape.modes);
    claim["spec"]["volumeMode"] = json!(if shape.block { "Block" } else { "Filesystem" });
    claim["spec"]["resources"]["requests"] = json!(shape.requests);
    if let Some(class) = class {
        claim["spec"]["storageClassName"] = json!(class.meta.name);
    }
    Ok(claim)
}

fn labels(volume: &DataVolume, block: bool, settings: &Settings) -> BTreeMap<String, String> {
    let mut labels = settings.labels.clone();
    labels.extend(volume.meta.labels.clone());
    labels.insert("app".to_owned(), names::APP.to_owned());
    if !block {
        labels.insert(names::FILLING_UP.to_owned(), "disabled".to_owned());
    }
    labels.entry("app.kubernetes.io/managed-by".to_owned()).or_insert_with(|| "cdi-controller".to_owned());
    labels.entry("app.kubernetes.io/component".to_owned()).or_insert_with(|| "storage".to_owned());
    labels
}

fn annotations(volume: &DataVolume, settings: &Settings, populated: bool) -> Map<String, Value> {
    let mut annotations: Map<String, Value> = Map::new();
    for (name, value) in &volume.meta.annotations {
        if ![names::POPULATED_FOR, names::VOLUME_LIST].contains(&name.as_str()) {
            annotations.insert(name.clone(), json!(value));
        }
    }
    let mut set = |name: &str, value: String| annotations.insert(name.to_owned(), Value::String(value));
    set(names::POD_RESTARTS, "0".to_owned());
    set(names::CONTENT_TYPE, if volume.archive { "archive" } else { "kubevirt" }.to_owned());
    let preallocation = volume.preallocation.unwrap_or(settings.preallocation);
    set(names::PREALLOCATION_REQUESTED, preallocation.to_string());
    set(names::CREATED_FOR, volume.meta.uid.clone());
    for (name, value) in
        [(names::PRIORITY_CLASS, &volume.priority_class), (names::SERVICE_ACCOUNT, &volume.service_account)]
    {
        if !value.is_empty() {
            set(name, value.clone());
        }
    }
    if volume.source == Source::Upload {
        set(names::UPLOAD_TARGET, String::new());
    }
    if !populated && let Some((source, endpoint)) = import(&volume.source) {
        set(names::IMPORT_SOURCE_NAME, source.to_owned());
        if !endpoint.is_empty() {
            set(names::IMPORT_ENDPOINT, endpoint.to_owned());
        }
    }
    annotations
}

/// The importer's word for a source, and its URL.
fn import(source: &Source) -> Option<(&'static str, &str)> {
    match source {
        Source::Remote(remote) => {
            let word = match remote.protocol {
                Protocol::Http => "http",
                Protocol::S3 => "s3",
                Protocol::Gcs => "gcs",
            };
            Some((word, &remote.url))
        }
        Source::Registry(registry) => Some(("registry", &registry.url)),
        Source::Blank => Some(("none", "")),
        Source::Upload
        | Source::Claim { .. }
        | Source::Snapshot { .. }
        | Source::Reference { .. }
        | Source::Unsupported(_)
        | Source::Missing => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::profile::{Driver, Overrides, SnapshotClass};

    fn classes(provisioner: &str, driver: bool) -> Classes {
        let mut class = Class { provisioner: provisioner.into(), ..Class::default() };
        class.meta.name = "fast".into();
        class.meta.annotations.insert("storageclass.kubernetes.io/is-default-class".into(), "true".into());
        Classes {
            classes: vec![class],
            drivers: driver.then(|| provisioner.to_owned()).into_iter().collect(),
        }
    }

    fn render_in(classes: &Classes, volume: &Value) -> Result<Value, Refusal> {
        let of = |class| {
            let driver = classes.has_driver(class).then(Driver::default);
            Profile::of(class, &Overrides::default(), driver, &[] as &[SnapshotClass])
        };
        let profiles: Vec<Profile> = classes.classes.iter().map(of).collect();
        let settings = Settings::default();
        render(
            &DataVolume::from(volume),
            ClusterStorage { classes, profiles: &profiles, settings: &settings },
            None,
        )
    }

    fn volume(claim: &str, fields: &Value) -> Value {
        json!({
            "metadata": {"name": "d", "namespace": "n", "uid": "u", "labels": {"mine": "1"},
                "annotations": {"keep": "1", names::POPULATED_FOR: "d"}},
            "spec": {"source": {"http": {"url": "http://a"}}, claim: fields},
        })
    }

    #[test]
    fn storage_is_rendered_from_the_profile_with_room_for_the_filesystem() {
        let size = json!({"resources": {"requests": {"storage": "1Gi"}}});
        let claim = render_in(&classes("rbd.csi.ceph.com", true), &volume("storage", &size)).unwrap();
        assert_eq!(
            claim["spec"],
            json!({
                "accessModes": ["ReadWriteMany"], "volumeMode": "Block", "storageClassName": "fast",
                "resources": {"requests": {"storage": "1073741824"}},
                "dataSourceRef": {"apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "volume-import-source-u"},
            })
        );
        let file = json!({"resources": {"requests": {"storage": "1Gi"}}, "volumeMode": "Filesystem"});
        let claim = render_in(&classes("rbd.csi.ceph.com", true), &volume("storage", &file)).unwrap();
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "1138166334");
        assert_eq!(claim["spec"]["accessModes"], json!(["ReadWriteOnce"]));
        let mut archive = volume("storage", &size);
        archive["spec"]["contentType"] = json!("archive");
        let claim = render_in(&classes("rbd.csi.ceph.com", true), &archive).unwrap();
        assert_eq!(claim["spec"]["volumeMode"], "Filesystem");
    }

    #[test]
    fn a_detected_size_is_not_compared_with_the_source() {
        let classes = classes("rbd.csi.ceph.com", true);
        let driver = Some(Driver::default());
        let of = |class| Profile::of(class, &Overrides::default(), driver, &[] as &[SnapshotClass]);
        let profiles: Vec<Profile> = classes.classes.iter().map(of).collect();
        let settings = Settings::default();
        let offer = ClusterStorage { classes: &classes, profiles: &profiles, settings: &settings };
        let size = json!({"resources": {"requests": {"storage": "1Gi"}}});
        for (fields, found) in [(json!({}), Some("true")), (size, None)] {
            let volume = DataVolume::from(&volume("storage", &fields));
            let claim = render(&volume, offer, Some(1 << 30)).unwrap();
            let permissive = &claim["metadata"]["annotations"][names::PERMISSIVE_CLONE];
            assert_eq!(permissive.as_str(), found, "{fields}");
        }
    }

    #[test]
    fn a_claim_has_the_labels_of_the_installation_and_its_own() {
        let label = |value: &str| [("app.kubernetes.io/version".to_owned(), value.to_owned())].into();
        let settings = Settings { labels: label("1"), ..Settings::default() };
        let mut volume = DataVolume::from(&volume("storage", &json!({})));
        let found = labels(&volume, false, &settings);
        let of = |name: &str| found[name].as_str();
        assert_eq!((of("app.kubernetes.io/version"), of("app"), of("mine")), ("1", names::APP, "1"));
        volume.meta.labels = label("2");
        assert_eq!(labels(&volume, false, &settings)["app.kubernetes.io/version"], "2");
    }

    #[test]
    fn a_users_claim_gets_what_the_profile_adds() {
        let classes = classes("rbd.csi.ceph.com", true);
        let driver = Some(Driver::default());
        let of = |class| Profile::of(class, &Overrides::default(), driver, &[] as &[SnapshotClass]);
        let profiles: Vec<Profile> = classes.classes.iter().map(of).collect();
        let settings = Settings::default();
        let offer = ClusterStorage { classes: &classes, profiles: &profiles, settings: &settings };
        let claim = json!({"metadata": {"name": "c"}, "spec": {"volumeMode": "Filesystem", "resources": {"requests": {"storage": "1Gi"}}}});
        assert_eq!(
            complete(&claim, offer).unwrap()["spec"],
            json!({
                "accessModes": ["ReadWriteOnce"], "volumeMode": "Filesystem", "storageClassName": "fast",
                "resources": {"requests": {"storage": "1138166334"}},
            })
        );
        assert!(complete(&json!({"spec": {"storageClassName": "slow"}}), offer).is_err());
    }

    #[test]
    fn pvc_is_taken_as_it_is() {
        let fields = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5"}}, "volumeMode": "Block"});
        let claim = render_in(&classes("x", false), &volume("pvc", &fields)).unwrap();
        assert_eq!(
            claim["spec"],
            json!({
                "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": "fast",
                "resources": {"requests": {"storage": "5"}},
            })
        );
        let annotations = &claim["metadata"]["annotations"];
        assert_eq!(annotations[names::IMPORT_SOURCE_NAME], "http");
        assert_eq!(annotations[names::IMPORT_ENDPOINT], "http://a");
        assert_eq!((&annotations["keep"], &annotations[names::CREATED_FOR]), (&json!("1"), &json!("u")));
        assert!(annotations.get(names::POPULATED_FOR).is_none());
        assert_eq!(claim["metadata"]["labels"]["mine"], "1");
        assert!(claim["metadata"]["labels"].get(names::FILLING_UP).is_none());
        assert_eq!(claim["metadata"]["ownerReferences"][0]["uid"], "u");
    }

    #[test]
    fn refusals_name_the_remedy() {
        let size = json!({"resources": {"requests": {"storage": "1Gi"}}});
        for (classes, fields, word) in [
            (Classes::default(), size.clone(), "no default StorageClass"),
            (classes("x", false), size.clone(), "no accessMode defined DV nor on StorageProfile for fast"),
            (classes("x", true), json!({"storageClassName": "slow"}), "StorageClass slow does not exist"),
            (classes("x", true), json!({}), "requests.storage is missing"),
            (
                classes("x", true),
                json!({"storageClassName": "", "resources": {"requests": {"storage": "1"}}}),
                "missing accessMode",
            ),
        ] {
            let refusal = render_in(&classes, &volume("storage", &fields)).unwrap_err();
            assert!(refusal.message.contains(word), "{}", refusal.message);
        }
        let refusal = render_in(&classes("x", true), &volume("pvc", &size)).unwrap_err();
        assert!(refusal.message.contains("spec.pvc.accessModes"));
    }

    #[test]
    fn external_populators_keep_their_data_source() {
        let mine = json!({"apiGroup": "a", "kind": "K", "name": "x"});
        let fields = json!({"accessModes": ["ReadWriteOnce"], "dataSourceRef": mine, "resources": {"requests": {"storage": "5"}}});
        let claim = render_in(&classes("x", true), &volume("pvc", &fields)).unwrap();
        assert_eq!(claim["spec"]["dataSourceRef"], mine);
    }
}
