//! The next steps of a DataImportCron. Pure.

use serde_json::{Map, Value, json};

use super::seen::{ADVISED_SIZE, CLEANUP, CRON, Cron, DESIRED, LAST_USED, STORAGE_CLASS};
use super::stream;
use crate::storage::names;
use crate::storage::profile::Profile;
use crate::storage::seen::snapshot::SOURCE_MODE;
use crate::storage::seen::{Claim, DataVolume, Meta, Snapshot, Source};

/// The observation.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The cron.
    pub cron: &'a Cron,
    /// Its imports.
    pub imports: &'a [DataVolume],
    /// Its snapshots.
    pub snapshots: &'a [Snapshot],
    /// Claims of its imports.
    pub claims: &'a [Claim],
    /// The storage of its imports.
    pub storage: Storage<'a>,
    /// The DataSource that it manages; null when there is none.
    pub data_source: &'a Value,
    /// Id of the source claim, for crons that follow one.
    pub claim: Option<&'a str>,
    /// Whether workloads are removed with the platform: nothing is imported.
    pub removing: bool,
    /// Now, RFC 3339.
    pub now: &'a str,
}

/// The storage of imports, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Storage<'a> {
    /// Name of the storage class; empty when there is none.
    pub class: &'a str,
    /// VolumeSnapshotClass of the snapshots that are kept in place of claims; empty when claims are kept.
    pub snapshot_class: &'a str,
    /// Whether imports are ReadWriteOnce where the template names no access mode.
    pub once: bool,
}

impl<'a> Storage<'a> {
    /// The storage of a class. Without a VolumeSnapshotClass claims are kept.
    pub fn of(profile: &'a Profile) -> Self {
        let snapshot_class = if profile.cron_snapshots { profile.cron_snapshot_class.as_str() } else { "" };
        Self { class: &profile.class, snapshot_class, once: profile.cron_once }
    }
}

/// The kind of object that an import leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// A DataVolume with its claim.
    Claim,
    /// A VolumeSnapshot.
    Snapshot,
}

impl Form {
    /// The word in `status.sourceFormat`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Claim => "pvc",
            Self::Snapshot => "snapshot",
        }
    }
}

/// A change of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Create this DataVolume.
    Import(Value),
    /// Create this VolumeSnapshot of an import.
    Snapshot(Value),
    /// Write that this import is used now.
    Use(Form, String),
    /// Create the DataSource, or point it at another import.
    Point(Value),
    /// Delete this import.
    Drop {
        /// The kind of object.
        form: Form,
        /// Its name.
        name: String,
        /// Its id.
        uid: String,
    },
    /// Write the storage class of the latest import.
    Class(String),
}

/// The steps, and the status that reports them.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// In this order.
    pub steps: Vec<Step>,
    /// The digest that should be imported; `None` when no poller has found one.
    pub desired: Option<String>,
    /// Name of the import of that digest.
    pub name: Option<String>,
    /// The kind of object that the import of that digest leaves.
    pub form: Form,
    /// Whether that object is there.
    pub done: bool,
    /// Whether a snapshot is awaited, which is not watched.
    pub awaits: bool,
    /// Why nothing can be done.
    pub trouble: Option<(&'static str, String)>,
}

/// Name of the import of a digest.
fn import_name(cron: &Cron, digest: &str) -> String {
    let hex: String = digest.rsplit(':').next().unwrap_or(digest).chars().take(12).collect();
    let front: String = cron.managed.chars().take(240).collect();
    format!("{front}-{}", hex.to_lowercase())
}

/// Whether a digest can stand in a name and in a reference.
fn is_digest(text: &str) -> bool {
    let Some((kind, value)) = text.split_once(':') else { return false };
    ["sha256", "sha512", "uid", "etag"].contains(&kind)
        && value.len() >= 12
        && value.chars().all(|one| one.is_ascii_alphanumeric() || one == '-')
}

/// Decides.
pub fn plan(o: &Observed<'_>) -> Plan {
    let mut plan = Plan {
        steps: Vec::new(),
        desired: None,
        name: None,
        form: Form::Claim,
        done: false,
        awaits: false,
        trouble: None,
    };
    if o.cron.meta.deleting {
        return plan;
    }
    match desired(o) {
        Ok(Some(digest)) => latest(o, &mut plan, digest),
        Ok(None) => {}
        Err(trouble) => plan.trouble = Some(trouble),
    }
    plan
}

/// The digest that should be imported, or why nothing can be done.
fn desired(o: &Observed<'_>) -> Result<Option<String>, (&'static str, String)> {
    let cron = o.cron;
    let managed_by = o.data_source["metadata"]["labels"][CRON].as_str();
    if o.data_source.is_object()
        && let Some(other) = managed_by.filter(|other| *other != cron.meta.name)
    {
        let text = format!("DataSource {} is already managed by DataImportCron {other}", cron.managed);
        return Err(("ErrDataSourceAlreadyManaged", text));
    }
    let polled = cron.meta.annotation(DESIRED).map(str::to_owned);
    let digest = match &cron.source {
        Source::Claim { .. } => o.claim.map(|uid| format!("uid:{uid}")),
        Source::Remote(_)
        | Source::Registry(_)
        | Source::Blank
        | Source::Upload
        | Source::Snapshot { .. }
        | Source::Reference { .. }
        | Source::Unsupported(_)
        | Source::Missing => polled,
    };
    match digest {
        Some(digest) if !is_digest(&digest) => {
            let text = format!("annotation {DESIRED}: {digest:?} is no digest such as sha256:…");
            Err(("DigestNotValid", text))
        }
        digest => Ok(digest),
    }
}

/// The steps towards the import of a digest.
fn latest(o: &Observed<'_>, plan: &mut Plan, digest: String) {
    let name = import_name(o.cron, &digest);
    let class = o.cron.meta.annotation(STORAGE_CLASS);
    if class.is_some_and(|class| moves(class, o)) {
        // It is made again in the other class.
        let left = left(o).into_iter().filter(|(_, meta)| meta.name == name && !meta.deleting);
        plan.steps.extend(left.map(|(form, meta)| dropped(form, meta)));
        plan.steps.push(Step::Class(o.storage.class.to_owned()));
        (plan.desired, plan.name) = (Some(digest), Some(name));
        return;
    }
    if !o.storage.class.is_empty() && class.is_none() {
        plan.steps.push(Step::Class(o.storage.class.to_owned()));
    }
    let taken = o.snapshots.iter().find(|snapshot| snapshot.meta.name == name);
    let found = o.imports.iter().find(|import| import.meta.name == name);
    plan.form = match taken.is_some() || !o.storage.snapshot_class.is_empty() {
        true => Form::Snapshot,
        false => Form::Claim,
    };
    match (found, taken) {
        (_, Some(snapshot)) if snapshot.ready && !snapshot.meta.deleting => {
            kept(o, plan, &name, &snapshot.meta);
        }
        (_, Some(_)) => plan.awaits = true,
        (None, None) if o.removing => {}
        (None, None) => plan.steps.push(Step::Import(import(o, &name, &digest))),
        (Some(import), None) if import.meta.deleting || import.status.phase != "Succeeded" => {}
        (Some(import), None) if plan.form == Form::Snapshot => {
            plan.steps.extend(snapshot(o, import));
            plan.awaits = true;
        }
        (Some(import), None) => kept(o, plan, &name, &import.meta),
    }
    // A claim is not needed when there is a snapshot of it.
    let snapped = |import: &&DataVolume| {
        let is_of = |one: &Snapshot| one.meta.name == import.meta.name && one.ready && !one.meta.deleting;
        may_go(&import.meta) && o.snapshots.iter().any(is_of)
    };
    plan.steps.extend(o.imports.iter().filter(snapped).map(|import| dropped(Form::Claim, &import.meta)));
    // An import that failed, of an image that is not wanted any more.
    let superseded = |import: &&DataVolume| {
        import.meta.name != name && import.status.phase != "Succeeded" && may_go(&import.meta)
    };
    let superseded = o.imports.iter().filter(superseded);
    plan.steps.extend(superseded.map(|import| dropped(Form::Claim, &import.meta)));
    (plan.desired, plan.name) = (Some(digest), Some(name));
}

/// Whether imports in this storage class are made again: the class of new imports is another one.
fn moves(class: &str, o: &Observed<'_>) -> bool {
    !o.storage.class.is_empty() && class != o.storage.class
}

fn may_go(meta: &Meta) -> bool {
    meta.labels.contains_key(CLEANUP) && !meta.deleting
}

fn dropped(form: Form, meta: &Meta) -> Step {
    Step::Drop { form, name: meta.name.clone(), uid: meta.uid.clone() }
}

/// All that imports have left: DataVolumes and snapshots.
fn left<'a>(o: &Observed<'a>) -> Vec<(Form, &'a Meta)> {
    let imports = o.imports.iter().map(|import| (Form::Claim, &import.meta));
    imports.chain(o.snapshots.iter().map(|snapshot| (Form::Snapshot, &snapshot.meta))).collect()
}

/// The import of the digest is there: it is used, published, and older ones go.
fn kept(o: &Observed<'_>, plan: &mut Plan, name: &str, meta: &Meta) {
    plan.done = true;
    let current = o.cron.current().is_some_and(|(one, _)| one == name);
    if !current && meta.annotation(LAST_USED).is_some() {
        plan.steps.push(Step::Use(plan.form, name.to_owned()));
    }
    plan.steps.extend(point(o, plan.form, name));
    plan.steps.extend(old(o, name));
}

/// The snapshot of an import, once its claim is seen.
fn snapshot(o: &Observed<'_>, import: &DataVolume) -> Option<Step> {
    let claim = o.claims.iter().find(|claim| claim.meta.name == import.meta.name)?;
    let mut metadata = json!({
        "name": import.meta.name,
        "namespace": o.cron.meta.namespace,
        "labels": {"app": names::APP, CRON: o.cron.meta.name, CLEANUP: "true"},
        "annotations": {
            LAST_USED: o.now,
            SOURCE_MODE: if claim.block { "Block" } else { "Filesystem" },
            ADVISED_SIZE: api::quantity::text(claim.size),
        },
    });
    let labels = claim.meta.labels.iter().chain(&import.meta.labels);
    for (label, value) in labels.filter(|(label, _)| names::follows_content(label)) {
        if metadata["labels"][label].is_null() {
            metadata["labels"][label] = json!(value);
        }
    }
    if !o.cron.retains {
        metadata["ownerReferences"] = json!([owner(o.cron)]);
    }
    Some(Step::Snapshot(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": metadata,
        "spec": {
            "volumeSnapshotClassName": o.storage.snapshot_class,
            "source": {"persistentVolumeClaimName": import.meta.name},
        },
    })))
}

/// The DataVolume that imports a digest.
fn import(o: &Observed<'_>, name: &str, digest: &str) -> Value {
    let template = &o.cron.template;
    let mut metadata = json!({
        "name": name,
        "namespace": o.cron.meta.namespace,
        "labels": template["metadata"]["labels"],
        "annotations": template["metadata"]["annotations"],
    });
    for (label, value) in [(CRON, o.cron.meta.name.as_str()), (CLEANUP, "true")] {
        metadata["labels"][label] = json!(value);
    }
    for (label, value) in o.cron.meta.labels.iter().filter(|(label, _)| names::follows_content(label)) {
        if metadata["labels"][label].is_null() {
            metadata["labels"][label] = json!(value);
        }
    }
    metadata["annotations"][names::IMMEDIATE] = json!("true");
    metadata["annotations"][LAST_USED] = json!(o.now);
    if !o.cron.retains {
        metadata["ownerReferences"] = json!([owner(o.cron)]);
    }
    let mut spec = template["spec"].clone();
    if let Some(registry) = spec.pointer_mut("/source/registry").and_then(Value::as_object_mut) {
        pin(registry, digest, o.cron.meta.annotation(stream::REFERENCE));
    }
    if o.storage.once && spec["storage"].is_object() && spec["storage"]["accessModes"].is_null() {
        spec["storage"]["accessModes"] = json!(["ReadWriteOnce"]);
    }
    json!({"apiVersion": names::API_VERSION, "kind": "DataVolume", "metadata": metadata, "spec": spec})
}

/// Names the image of a digest: by its URL, in place of an ImageStream the reference of the image that was found in it,
/// unless that reference is of another digest.
fn pin(registry: &mut Map<String, Value>, digest: &str, reference: Option<&str>) {
    let reference = reference.filter(|one| one.ends_with(digest));
    let url = match (registry.get("url").and_then(Value::as_str), reference) {
        (Some(url), _) => pinned(url, digest),
        (None, Some(reference)) => format!("docker://{reference}"),
        (None, None) => return,
    };
    registry.remove("imageStream");
    registry.insert("url".to_owned(), json!(url));
}

/// A registry's URL with a digest in place of its tag.
fn pinned(url: &str, digest: &str) -> String {
    if !digest.starts_with("sha") || url.contains('@') || !url.starts_with("docker://") {
        return url.to_owned();
    }
    let name = url.rfind('/').unwrap_or(0);
    let end = url.get(name..).and_then(|last| last.find(':')).map_or(url.len(), |at| name + at);
    format!("{}@{digest}", url.get(..end).unwrap_or(url))
}

fn owner(cron: &Cron) -> Value {
    json!({"apiVersion": names::API_VERSION, "kind": "DataImportCron", "name": cron.meta.name, "uid": cron.meta.uid})
}

/// The DataSource, when it does not point at an import yet.
fn point(o: &Observed<'_>, form: Form, name: &str) -> Option<Step> {
    let wanted = json!({form.word(): {"name": name, "namespace": o.cron.meta.namespace}});
    if o.data_source["spec"]["source"] == wanted {
        return None;
    }
    let mut metadata = json!({
        "name": o.cron.managed,
        "namespace": o.cron.meta.namespace,
        "labels": {CRON: o.cron.meta.name},
    });
    for (label, value) in o.cron.meta.labels.iter().filter(|(label, _)| names::follows_content(label)) {
        metadata["labels"][label] = json!(value);
    }
    if !o.cron.retains {
        metadata["ownerReferences"] = json!([owner(o.cron)]);
    }
    Some(Step::Point(json!({
        "apiVersion": names::API_VERSION, "kind": "DataSource", "metadata": metadata, "spec": {"source": wanted},
    })))
}

/// Imports beyond those that are kept, the one that was used longest ago first.
fn old(o: &Observed<'_>, name: &str) -> Vec<Step> {
    if !o.cron.collects {
        return Vec::new();
    }
    let is_taken = |import: &DataVolume| o.snapshots.iter().any(|one| one.meta.name == import.meta.name);
    let imports = o.imports.iter().filter(|import| import.status.phase == "Succeeded" && !is_taken(import));
    let imports = imports.map(|import| (Form::Claim, &import.meta));
    let snapshots = o.snapshots.iter().map(|snapshot| (Form::Snapshot, &snapshot.meta));
    let mut done: Vec<(Form, &Meta)> =
        imports.chain(snapshots).filter(|(_, meta)| meta.name != name && may_go(meta)).collect();
    done.sort_by_key(|(_, meta)| meta.annotation(LAST_USED).unwrap_or_default().to_owned());
    let many = (done.len() + 1).saturating_sub(o.cron.keep.max(1));
    done.into_iter().take(many).map(|(form, meta)| dropped(form, meta)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef";

    fn cron(annotations: &Value, extra: &Value) -> Cron {
        let mut object = json!({
            "metadata": {"name": "fedora", "namespace": "n", "uid": "c", "annotations": annotations},
            "spec": {"managedDataSource": "fedora", "template": {"spec": {
                "source": {"registry": {"url": "docker://quay.io/containerdisks/fedora:latest"}},
                "storage": {"resources": {"requests": {"storage": "5Gi"}}},
            }}},
        });
        for (field, value) in extra.as_object().into_iter().flatten() {
            object["spec"][field] = value.clone();
        }
        Cron::from(&object)
    }

    fn import(name: &str, phase: &str, used: &str) -> DataVolume {
        DataVolume::from(&json!({
            "metadata": {"name": name, "uid": name, "labels": {CRON: "fedora", CLEANUP: "true"},
                "annotations": {LAST_USED: used}},
            "spec": {"source": {"blank": {}}},
            "status": {"phase": phase},
        }))
    }

    fn decide(cron: &Cron, imports: &[DataVolume], data_source: &Value) -> Plan {
        decide_in(cron, imports, &[], data_source, Storage::default())
    }

    fn decide_in(
        cron: &Cron,
        imports: &[DataVolume],
        snapshots: &[Snapshot],
        data_source: &Value,
        storage: Storage<'_>,
    ) -> Plan {
        let claims: Vec<Claim> = imports
            .iter()
            .map(|import| {
                Claim::from(&json!({
                    "metadata": {"name": import.meta.name, "labels": {"kubevirt.io/os": "linux", "own": "1"}},
                    "spec": {"volumeMode": "Block", "resources": {"requests": {"storage": "5Gi"}}},
                }))
            })
            .collect();
        let mut observed = Observed {
            cron,
            imports,
            snapshots,
            claims: &claims,
            storage,
            data_source,
            claim: None,
            removing: true,
            now: "2026-01-01T00:00:00Z",
        };
        let removing = plan(&observed).steps;
        assert!(!removing.iter().any(|step| matches!(step, Step::Import(_))), "{removing:?}");
        observed.removing = false;
        plan(&observed)
    }

    fn taken(name: &str, ready: bool, used: &str) -> Snapshot {
        Snapshot::from(&json!({
            "metadata": {"name": name, "uid": name, "labels": {CRON: "fedora", CLEANUP: "true"},
                "annotations": {LAST_USED: used}},
            "status": {"readyToUse": ready},
        }))
    }

    fn drop_of(form: Form, name: &str) -> Step {
        Step::Drop { form, name: name.into(), uid: name.into() }
    }

    #[test]
    fn an_import_becomes_a_snapshot_where_the_storage_keeps_those() {
        let storage = Storage { class: "fast", snapshot_class: "snaps", once: false };
        let polled = cron(&json!({DESIRED: DIGEST, STORAGE_CLASS: "fast"}), &json!({"importsToKeep": 1}));
        let name = "fedora-0123456789ab";
        let of = |imports: &[DataVolume], snapshots: &[Snapshot], source: &Value| {
            decide_in(&polled, imports, snapshots, source, storage)
        };
        let begun = of(&[], &[], &Value::Null);
        assert!(matches!(begun.steps.as_slice(), [Step::Import(_)]) && begun.form == Form::Snapshot);
        assert_eq!(of(&[import(name, "ImportInProgress", "5")], &[], &Value::Null).steps, []);
        let imported = [import(name, "Succeeded", "5")];
        let taking = of(&imported, &[], &Value::Null);
        let [Step::Snapshot(made)] = taking.steps.as_slice() else { panic!("{taking:?}") };
        assert!(taking.awaits && !taking.done);
        let wanted =
            json!({"volumeSnapshotClassName": "snaps", "source": {"persistentVolumeClaimName": name}});
        assert_eq!(made["spec"], wanted);
        let annotations =
            json!({LAST_USED: "2026-01-01T00:00:00Z", SOURCE_MODE: "Block", ADVISED_SIZE: "5Gi"});
        assert_eq!(made["metadata"]["annotations"], annotations);
        let labels = &made["metadata"]["labels"];
        assert_eq!((&labels["kubevirt.io/os"], &labels["own"]), (&json!("linux"), &Value::Null));
        let waiting = of(&imported, &[taken(name, false, "5")], &Value::Null);
        assert!(waiting.steps.is_empty() && waiting.awaits && !waiting.done);
        // The snapshot is published, then claim and older ones go.
        let others = [taken(name, true, "5"), taken("older", true, "1")];
        let published = of(&imported, &others, &Value::Null);
        let Some(Step::Point(source)) = published.steps.iter().find(|step| matches!(step, Step::Point(_)))
        else {
            panic!("{published:?}")
        };
        assert_eq!(source["spec"]["source"], json!({"snapshot": {"name": name, "namespace": "n"}}));
        let drops: Vec<&Step> =
            published.steps.iter().filter(|step| matches!(step, Step::Drop { .. })).collect();
        assert_eq!(drops, [&drop_of(Form::Snapshot, "older"), &drop_of(Form::Claim, name)]);
        assert!(published.done && published.form == Form::Snapshot);
        // Without its claim it stays as it is, also when the storage keeps claims from now on.
        let settled = |storage| decide_in(&polled, &[], &others[..1], source, storage);
        for storage in [storage, Storage { snapshot_class: "", ..storage }] {
            let plan = settled(storage);
            assert!(plan.steps.iter().all(|step| matches!(step, Step::Use(Form::Snapshot, _))), "{plan:?}");
            assert!(plan.done && plan.form == Form::Snapshot);
        }
    }

    #[test]
    fn an_import_of_an_image_stream_names_the_image_that_was_found_in_it() {
        let template = |registry: Value| json!({"template": {"spec": {"source": {"registry": registry}}}});
        let named = template(json!({"imageStream": "fedora:41", "pullMethod": "node"}));
        let reference = format!("quay.io/containerdisks/fedora@{DIGEST}");
        let begun = |annotations: Value| {
            let plan = decide(&cron(&annotations, &named), &[], &Value::Null);
            let [Step::Import(volume)] = plan.steps.as_slice() else { panic!("{plan:?}") };
            volume["spec"]["source"]["registry"].clone()
        };
        assert_eq!(
            begun(json!({DESIRED: DIGEST, stream::REFERENCE: reference})),
            json!({"url": format!("docker://{reference}"), "pullMethod": "node"})
        );
        // A digest of another program: the stream's tag is imported, also where the last poll's reference is left.
        let tagged = json!({"imageStream": "fedora:41", "pullMethod": "node"});
        assert_eq!(begun(json!({DESIRED: DIGEST})), tagged);
        let stale = "quay.io/containerdisks/fedora@sha256:0";
        assert_eq!(begun(json!({DESIRED: DIGEST, stream::REFERENCE: stale})), tagged);
    }

    #[test]
    fn an_import_follows_the_storage_class() {
        let storage = Storage { class: "fast", snapshot_class: "", once: true };
        let name = "fedora-0123456789ab";
        let fresh = cron(&json!({DESIRED: DIGEST}), &json!({}));
        let begun = decide_in(&fresh, &[], &[], &Value::Null, storage);
        let [Step::Class(class), Step::Import(volume)] = begun.steps.as_slice() else { panic!("{begun:?}") };
        assert_eq!(class, "fast");
        assert_eq!(volume["spec"]["storage"]["accessModes"], json!(["ReadWriteOnce"]));
        let moved = cron(&json!({DESIRED: DIGEST, STORAGE_CLASS: "slow"}), &json!({}));
        let imports = [import(name, "Succeeded", "5"), import("older", "Succeeded", "1")];
        let snapshots = [taken(name, true, "5")];
        let plan = decide_in(&moved, &imports, &snapshots, &Value::Null, storage);
        let latest = [drop_of(Form::Claim, name), drop_of(Form::Snapshot, name)];
        assert_eq!(plan.steps, [&latest[..], &[Step::Class("fast".into())]].concat());
        assert!(!plan.done);
        // While no class is known nothing is made again, and one that is being deleted is waited for.
        let classless = decide_in(&moved, &imports[..1], &[], &Value::Null, Storage::default());
        assert!(classless.done && !classless.steps.iter().any(|step| matches!(step, Step::Drop { .. })));
        let mut going = import(name, "Succeeded", "5");
        going.meta.deleting = true;
        let there = cron(&json!({DESIRED: DIGEST, STORAGE_CLASS: "fast"}), &json!({}));
        let plan = decide_in(&there, &[going], &[], &Value::Null, storage);
        assert!(plan.steps.is_empty() && !plan.done);
    }

    #[test]
    fn a_digest_is_imported_then_published_and_old_imports_go() {
        let polled = cron(&json!({DESIRED: DIGEST}), &json!({"importsToKeep": 2}));
        assert_eq!(decide(&cron(&json!({}), &json!({})), &[], &Value::Null).steps, []);
        let begun = decide(&polled, &[], &Value::Null);
        let [Step::Import(volume)] = begun.steps.as_slice() else { panic!("{begun:?}") };
        assert_eq!(volume["metadata"]["name"], "fedora-0123456789ab");
        let url = &volume["spec"]["source"]["registry"]["url"];
        assert_eq!(*url, format!("docker://quay.io/containerdisks/fedora@{DIGEST}"));
        let name = "fedora-0123456789ab";
        let running = [import(name, "ImportInProgress", "5"), import("fedora-old", "Failed", "4")];
        assert_eq!(decide(&polled, &running, &Value::Null).steps, [drop_of(Form::Claim, "fedora-old")]);
        let done =
            [import(name, "Succeeded", "5"), import("a", "Succeeded", "2"), import("b", "Succeeded", "1")];
        let published = decide(&polled, &done, &Value::Null);
        let Some(Step::Point(source)) = published.steps.iter().find(|step| matches!(step, Step::Point(_)))
        else {
            panic!("{published:?}")
        };
        assert_eq!(source["spec"]["source"]["pvc"]["name"], name);
        let drops: Vec<&Step> =
            published.steps.iter().filter(|step| matches!(step, Step::Drop { .. })).collect();
        assert_eq!(drops, [&drop_of(Form::Claim, "b")]);
        assert!(decide(&polled, &done[..1], source).steps.iter().all(|step| matches!(step, Step::Use(..))));
        let never = cron(&json!({DESIRED: DIGEST}), &json!({"garbageCollect": "Never", "importsToKeep": 1}));
        assert!(!decide(&never, &done, source).steps.iter().any(|step| matches!(step, Step::Drop { .. })));
    }

    #[test]
    fn unusable_crons_are_refused() {
        let polled = cron(&json!({DESIRED: DIGEST}), &json!({}));
        let other = json!({"metadata": {"labels": {CRON: "other"}}});
        assert_eq!(decide(&polled, &[], &other).trouble.unwrap().0, "ErrDataSourceAlreadyManaged");
        for wrong in ["latest", "sha256:", "sha256:../../../../x", "md5:0123456789abcdef"] {
            let plan = decide(&cron(&json!({DESIRED: wrong}), &json!({})), &[], &Value::Null);
            assert_eq!(plan.trouble.unwrap().0, "DigestNotValid", "{wrong}");
        }
    }

    #[test]
    fn a_cron_without_retention_owns_what_it_makes() {
        let polled = cron(&json!({DESIRED: DIGEST}), &json!({"retentionPolicy": "None"}));
        let begun = decide(&polled, &[], &Value::Null);
        let [Step::Import(volume)] = begun.steps.as_slice() else { panic!("{begun:?}") };
        assert_eq!(volume["metadata"]["ownerReferences"][0]["uid"], "c");
    }

    #[test]
    fn tags_give_way_to_digests() {
        for (url, expected) in [
            ("docker://a:5000/b", "docker://a:5000/b@sha256:1"),
            ("docker://a:5000/b:c", "docker://a:5000/b@sha256:1"),
            ("docker://a/b@sha256:2", "docker://a/b@sha256:2"),
            ("oci-archive:x", "oci-archive:x"),
        ] {
            assert_eq!(pinned(url, "sha256:1"), expected);
        }
    }
}
