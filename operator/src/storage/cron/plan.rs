//! The next steps of a DataImportCron. Pure.

use serde_json::{Value, json};

use super::seen::{CLEANUP, CRON, Cron, DESIRED, LAST_USED};
use crate::storage::names;
use crate::storage::seen::{DataVolume, Source};

/// The observation.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// The cron.
    pub cron: &'a Cron,
    /// Its imports.
    pub imports: &'a [DataVolume],
    /// The DataSource that it manages; null when there is none.
    pub data_source: &'a Value,
    /// Id of the source claim, for crons that follow one.
    pub claim: Option<&'a str>,
    /// Now, RFC 3339.
    pub now: &'a str,
}

/// A change of the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Create this DataVolume.
    Import(Value),
    /// Write that this import is used now.
    Use(String),
    /// Create the DataSource, or point it at another import.
    Point(Value),
    /// Delete this import.
    Drop {
        /// Name of the DataVolume.
        name: String,
        /// Its id.
        uid: String,
    },
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
    let cron = o.cron;
    let mut plan = Plan { steps: Vec::new(), desired: None, name: None, trouble: None };
    if cron.meta.deleting {
        return plan;
    }
    let managed_by = o.data_source["metadata"]["labels"][CRON].as_str();
    if o.data_source.is_object() && managed_by.is_some_and(|other| other != cron.meta.name) {
        let other = managed_by.unwrap_or_default();
        let text = format!("DataSource {} is already managed by DataImportCron {other}", cron.managed);
        plan.trouble = Some(("ErrDataSourceAlreadyManaged", text));
        return plan;
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
    let Some(digest) = digest else { return plan };
    if !is_digest(&digest) {
        let text = format!("annotation {DESIRED}: {digest:?} is no digest such as sha256:…");
        plan.trouble = Some(("DigestNotValid", text));
        return plan;
    }
    let name = import_name(cron, &digest);
    match o.imports.iter().find(|import| import.meta.name == name) {
        None => plan.steps.push(Step::Import(import(o, &name, &digest))),
        Some(import) => {
            let current = cron.current().is_some_and(|(one, _)| one == name);
            if !current && import.meta.annotation(LAST_USED).is_some() && import.status.phase == "Succeeded" {
                plan.steps.push(Step::Use(name.clone()));
            }
            if import.status.phase == "Succeeded" {
                plan.steps.extend(point(o, &name));
                plan.steps.extend(old(o, &name));
            }
        }
    }
    // An import that failed, of an image that is not wanted any more.
    let superseded = |import: &&DataVolume| {
        import.meta.name != name
            && import.status.phase != "Succeeded"
            && import.meta.labels.contains_key(CLEANUP)
            && !import.meta.deleting
    };
    plan.steps.extend(o.imports.iter().filter(superseded).map(dropped));
    plan.desired = Some(digest);
    plan.name = Some(name);
    plan
}

fn dropped(import: &DataVolume) -> Step {
    Step::Drop { name: import.meta.name.clone(), uid: import.meta.uid.clone() }
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
    if let Some(url) = spec["source"]["registry"]["url"].as_str() {
        spec["source"]["registry"]["url"] = json!(pinned(url, digest));
    }
    json!({"apiVersion": names::API_VERSION, "kind": "DataVolume", "metadata": metadata, "spec": spec})
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
fn point(o: &Observed<'_>, name: &str) -> Option<Step> {
    let wanted = json!({"pvc": {"name": name, "namespace": o.cron.meta.namespace}});
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
    let mut done: Vec<&DataVolume> = o
        .imports
        .iter()
        .filter(|import| {
            import.meta.name != name
                && import.status.phase == "Succeeded"
                && import.meta.labels.contains_key(CLEANUP)
                && !import.meta.deleting
        })
        .collect();
    done.sort_by_key(|import| import.meta.annotation(LAST_USED).unwrap_or_default().to_owned());
    let many = (done.len() + 1).saturating_sub(o.cron.keep.max(1));
    done.into_iter().take(many).map(dropped).collect()
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
        plan(&Observed { cron, imports, data_source, claim: None, now: "2026-01-01T00:00:00Z" })
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
        assert_eq!(
            decide(&polled, &running, &Value::Null).steps,
            [Step::Drop { name: "fedora-old".into(), uid: "fedora-old".into() }]
        );
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
        assert_eq!(drops, [&Step::Drop { name: "b".into(), uid: "b".into() }]);
        assert!(decide(&polled, &done[..1], source).steps.iter().all(|step| matches!(step, Step::Use(_))));
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
