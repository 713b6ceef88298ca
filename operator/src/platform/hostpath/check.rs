//! Rules of a `HostPathProvisioner`. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use api::cdi::StorageSpec;
use api::hostpath::{HostPathProvisioner, HostPathSpec, StoragePool};
use cluster::Key;
use serde_json::Value;

use crate::install;
use crate::install::hostpath::{DAEMON_SET, LEGACY};
use crate::install::pools::is_shared;

/// Annotation that chooses the sidecars.
pub const SIDECARS: &str = "ferrovirt.io/sidecars";
/// Its value for stock sidecars.
pub const STOCK: &str = "stock";
/// Annotation with the names of pools, separated by commas, that have `ReadWriteMany` volumes on local disks.
pub const READ_WRITE_MANY: &str = "ferrovirt.io/read-write-many";
/// Annotation with pools whose disks are defragmented, and the extents above which they are: `fast=16384,legacy=16384`.
pub const DEFRAGMENT: &str = "ferrovirt.io/defragment";
/// Annotation of the driver's DaemonSet: version of the operator that wrote it. Upstream's objects do not have it.
pub const VERSION: &str = "ferrovirt.io/version";
/// Feature gate of snapshots.
pub const SNAPSHOTTING: &str = "Snapshotting";
/// Name of upstream's provisioner without CSI, and of the container of both its provisioners.
const PROVISIONER: &str = "hostpath-provisioner";
/// Longest name of a pool, as upstream.
const LONGEST_NAME: usize = 50;
/// Longest path, as upstream.
const LONGEST_PATH: usize = 255;
/// Most pools of an object.
const MOST_POOLS: usize = 32;

/// All problems of an object: path of the field, and text.
pub fn problems(object: &HostPathProvisioner) -> Vec<(String, String)> {
    let mut found = of_spec(&object.spec);
    let field = || format!("metadata.annotations[{DEFRAGMENT}]");
    match defragment(&object.metadata.annotations) {
        Err(text) => found.push((field(), text)),
        Ok(extents) => {
            let texts = extents.keys().filter_map(|pool| not_defragmented(&object.spec, pool));
            found.extend(texts.map(|text| (field(), text)));
        }
    }
    found
}

/// Settings that are accepted and do nothing. The prefix is that of directories of upstream's provisioner without CSI:
/// those of the CSI driver have the names of their PersistentVolumes, by which they are found again.
pub fn without_effect(spec: &HostPathSpec) -> Vec<&'static str> {
    let prefix = spec.path_config.as_ref().and_then(|config| config.use_naming_prefix) == Some(true);
    prefix.then_some("spec.pathConfig.useNamingPrefix").into_iter().collect()
}

/// Why an operator of version `own` does not touch a driver that one of version `live` wrote, which may keep its pools in a
/// form that is not known here. Upstream's text.
pub fn downgrade(live: Option<&str>, own: &str) -> Option<String> {
    let numbers = |version: &str| {
        let core = version.trim_start_matches('v').split(['-', '+']).next().unwrap_or_default();
        core.split('.').map(|part| part.parse().ok()).collect::<Option<Vec<u64>>>()
    };
    let live = live?;
    (numbers(live)? > numbers(own)?)
        .then(|| format!("operator downgraded from {live} to {own}, will not reconcile"))
}

/// Why stock sidecars are not deployed, where they are asked for and their user may not do their work.
pub fn without_rights(user: &str) -> (&'static str, String) {
    let text = format!(
        "{SIDECARS}: {STOCK} is set, and {user} may not create PersistentVolumes: install the platform with \
         `operator manifests --sidecars` (Helm: sidecars); until then the node agents make the volumes"
    );
    ("SidecarRightsMissing", text)
}

/// A DaemonSet with the label of upstream's provisioners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provisioner {
    /// Whether it has name and container of one of upstream's, and pods.
    pub serves: bool,
    /// User name of its pods.
    pub user: String,
}

impl From<&Value> for Provisioner {
    fn from(set: &Value) -> Self {
        let (metadata, pod) = (&set["metadata"], &set["spec"]["template"]["spec"]);
        let named = [PROVISIONER, DAEMON_SET].iter().any(|name| metadata["name"] == *name);
        let contains = pod["containers"]
            .as_array()
            .is_some_and(|containers| containers.iter().any(|one| one["name"] == PROVISIONER));
        let pods = set["status"]["desiredNumberScheduled"].as_u64().unwrap_or(0);
        let account = pod["serviceAccountName"].as_str().filter(|name| !name.is_empty());
        Self {
            serves: named && contains && pods > 0,
            user: install::user(
                metadata["namespace"].as_str().unwrap_or_default(),
                account.unwrap_or("default"),
            ),
        }
    }
}

/// The other DaemonSets that serve claims of the same provisioners as the platform's, `own`, as the text of a problem.
pub fn others(all: &[Key], own: &Key) -> Option<(&'static str, String)> {
    let mut others: Vec<String> = all.iter().map(Key::to_string).collect();
    others.sort();
    let text = || {
        format!(
            "DaemonSet {} serves the same claims as {own}: stop the operator that keeps it, then delete it; volumes and \
             their data stay",
            others.join(", ")
        )
    };
    (!others.is_empty()).then(|| ("OtherProvisioner", text()))
}

/// Problems as one: reason of the first, texts of all.
pub fn joined(problems: &[(&'static str, String)]) -> Option<(&'static str, String)> {
    let (reason, _) = problems.first()?;
    let texts: Vec<&str> = problems.iter().map(|(_, text)| text.as_str()).collect();
    Some((*reason, texts.join("; ")))
}

/// The extents of each pool that is to be defragmented.
///
/// # Errors
/// The annotation cannot be understood.
pub fn defragment(
    annotations: &BTreeMap<String, String>,
) -> std::result::Result<BTreeMap<String, NonZeroU64>, String> {
    let Some(text) = annotations.get(DEFRAGMENT) else { return Ok(BTreeMap::new()) };
    let one = |item: &str| {
        let (pool, extents) = item.split_once('=')?;
        Some((pool.trim().to_owned(), extents.trim().parse().ok()?))
    };
    text.split(',')
        .map(|item| {
            let item = item.trim();
            one(item).ok_or_else(|| format!("{item:?} is not POOL=EXTENTS, for example fast=16384"))
        })
        .collect()
}

/// Why a pool cannot be defragmented.
fn not_defragmented(spec: &HostPathSpec, name: &str) -> Option<String> {
    if spec.path_config.is_some() && name == LEGACY {
        return None;
    }
    match spec.storage_pools.iter().find(|pool| pool.name == name) {
        None => Some(format!("there is no pool {name:?}")),
        Some(pool) if pool.pvc_template.as_ref().is_some_and(is_shared) => {
            Some(format!("pool {name} is shared by all nodes: whether others use a volume is not known"))
        }
        Some(_) => None,
    }
}

fn of_spec(spec: &HostPathSpec) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut add = |field: String, text: String| found.push((field, text));
    match (&spec.path_config, spec.storage_pools.as_slice()) {
        (Some(_), [_, ..]) => {
            add("spec".to_owned(), "pathConfig and storagePools are both set; use storagePools".to_owned());
        }
        (None, []) => add("spec".to_owned(), "neither storagePools nor pathConfig is set".to_owned()),
        (Some(config), []) => {
            if let Some(text) = bad_path(config.path.as_deref().unwrap_or_default()) {
                add("spec.pathConfig.path".to_owned(), text);
            }
        }
        (None, pools) => {
            if pools.len() > MOST_POOLS {
                add("spec.storagePools".to_owned(), format!("more than {MOST_POOLS}"));
            }
            let (mut names, mut paths): (BTreeSet<&str>, Vec<&str>) = (BTreeSet::new(), Vec::new());
            for (index, pool) in pools.iter().take(MOST_POOLS).enumerate() {
                let field = |name: &str| format!("spec.storagePools[{index}].{name}");
                if let Some(text) = bad_name(&pool.name) {
                    add(field("name"), text);
                }
                if !names.insert(&pool.name) {
                    add(field("name"), format!("{:?} is the name of two pools", pool.name));
                }
                let path = pool.path.trim_end_matches('/');
                if let Some(text) = bad_path(&pool.path) {
                    add(field("path"), text);
                } else if let Some(other) =
                    paths.iter().find(|other| within(path, other) || within(other, path))
                {
                    add(field("path"), format!("one path of {path} and {other} contains the other"));
                }
                paths.push(path);
                of_pool(pool, &mut |name, text| add(field(name), text));
            }
        }
    }
    for gate in spec.feature_gates.iter().filter(|gate| *gate != SNAPSHOTTING) {
        add("spec.featureGates".to_owned(), format!("{gate:?} is not {SNAPSHOTTING}"));
    }
    if let Some(policy) = &spec.image_pull_policy
        && !["", "Always", "IfNotPresent", "Never"].contains(&policy.as_str())
    {
        let text = format!("{policy:?} is not Always, IfNotPresent or Never");
        add("spec.imagePullPolicy".to_owned(), text);
    }
    found
}

fn of_pool(pool: &StoragePool, add: &mut dyn FnMut(&str, String)) {
    if let Some(provider) = pool.snapshot_provider.as_deref()
        && !["", "reflink"].contains(&provider)
    {
        add("snapshotProvider", format!("{provider:?} is not reflink"));
    }
    if let Some(template) = &pool.pvc_template {
        of_template(template, add);
    }
    if pool.overlay_class_name.as_ref().is_some_and(|name| !name.is_empty()) && pool.pvc_template.is_none() {
        add("overlayClassName", "is set, pvcTemplate is not".to_owned());
    }
}

fn of_template(template: &StorageSpec, add: &mut dyn FnMut(&str, String)) {
    let modes = ["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"];
    if template.access_modes.is_empty() {
        add("pvcTemplate.accessModes", "is empty".to_owned());
    }
    for mode in template.access_modes.iter().filter(|mode| !modes.contains(&mode.as_str())) {
        add("pvcTemplate.accessModes", format!("{mode:?} is not {}", modes.join(", ")));
    }
    let asked = template.resources.as_ref().and_then(|all| all.requests.get("storage"));
    match asked.map(|size| api::quantity::bytes(&size.0)) {
        None => add("pvcTemplate.resources.requests.storage", "is not set".to_owned()),
        Some(Ok(0) | Err(_)) => {
            add("pvcTemplate.resources.requests.storage", "is not a number of bytes above 0".to_owned());
        }
        Some(Ok(_)) => {}
    }
    if let Some(mode) = template.volume_mode.as_deref()
        && !["Filesystem", "Block"].contains(&mode)
    {
        add("pvcTemplate.volumeMode", format!("{mode:?} is not Filesystem or Block"));
    }
    if template.volume_mode.as_deref() == Some("Block") && is_shared(template) {
        let text = "a filesystem on a block device cannot be mounted by several nodes";
        add("pvcTemplate.volumeMode", text.to_owned());
    }
}

/// Whether a path is another or lies in it.
pub(super) fn within(path: &str, other: &str) -> bool {
    path == other || path.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'))
}

/// Names are parts of names of volumes of pods.
fn bad_name(name: &str) -> Option<String> {
    let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let fits = name.len() <= LONGEST_NAME
        && name.bytes().all(good)
        && edge(name.bytes().next())
        && edge(name.bytes().last());
    (!fits).then(|| {
        format!(
            "{name:?} is not a name of 1 to {LONGEST_NAME} lowercase letters, digits and dashes between them"
        )
    })
}

fn bad_path(path: &str) -> Option<String> {
    if path.len() > LONGEST_PATH {
        return Some(format!("longer than {LONGEST_PATH} characters"));
    }
    let steps = path.trim_end_matches('/').split('/').skip(1);
    let mut steps = steps.peekable();
    let fits = path.starts_with('/')
        && steps.peek().is_some()
        && steps.all(|step| !["", ".", ".."].contains(&step) && !step.contains(['\0', ':']));
    (!fits).then(|| format!("{path:?} is not an absolute path of a directory below /"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn invalid_specs_are_named_by_their_fields() {
        let pools = |list: Value| json!({"storagePools": list});
        let long = "a".repeat(51);
        let size = json!({"requests": {"storage": "1Gi"}});
        let of_claims =
            |template: Value| pools(json!([{"name": "a", "path": "/a", "pvcTemplate": template}]));
        for (value, wanted) in [
            (json!({}), "spec"),
            (json!({"pathConfig": {"path": "/data"}}), ""),
            (json!({"pathConfig": {}}), "spec.pathConfig.path"),
            (json!({"pathConfig": {"path": "/"}}), "spec.pathConfig.path"),
            (json!({"pathConfig": {"path": "/a/../b"}}), "spec.pathConfig.path"),
            (json!({"pathConfig": {"path": "/a"}, "storagePools": [{"name": "a", "path": "/b"}]}), "spec"),
            (pools(json!([{"name": "a", "path": "/a"}, {"name": "b", "path": "/b/"}])), ""),
            (
                pools(json!([{"name": "a", "path": "/a"}, {"name": "a", "path": "/b"}])),
                "spec.storagePools[1].name",
            ),
            (
                pools(json!([{"name": "a", "path": "/a"}, {"name": "b", "path": "/a/"}])),
                "spec.storagePools[1].path",
            ),
            (
                pools(json!([{"name": "a", "path": "/a/b"}, {"name": "b", "path": "/a"}])),
                "spec.storagePools[1].path",
            ),
            (pools(json!([{"name": "a", "path": "/a"}, {"name": "b", "path": "/ab"}])), ""),
            (pools(json!([{"name": long, "path": "/a"}])), "spec.storagePools[0].name"),
            (pools(json!([{"name": "A", "path": "/a"}])), "spec.storagePools[0].name"),
            (pools(json!([{"name": "a-", "path": "/a"}])), "spec.storagePools[0].name"),
            (
                pools(json!([{"name": "a", "path": "/a", "snapshotProvider": "cp"}])),
                "spec.storagePools[0].snapshotProvider",
            ),
            (
                pools(json!([{"name": "a", "path": "/a", "overlayClassName": "x"}])),
                "spec.storagePools[0].overlayClassName",
            ),
            (of_claims(json!({"accessModes": ["ReadWriteOnce"], "resources": size})), ""),
            (of_claims(json!({"resources": size})), "spec.storagePools[0].pvcTemplate.accessModes"),
            (
                of_claims(json!({"accessModes": ["ReadOnlyMany"], "resources": size})),
                "spec.storagePools[0].pvcTemplate.accessModes",
            ),
            (
                of_claims(json!({"accessModes": ["ReadWriteOnce"]})),
                "spec.storagePools[0].pvcTemplate.resources.requests.storage",
            ),
            (
                of_claims(
                    json!({"accessModes": ["ReadWriteMany"], "resources": size, "volumeMode": "Block"}),
                ),
                "spec.storagePools[0].pvcTemplate.volumeMode",
            ),
            (json!({"pathConfig": {"path": "/a"}, "featureGates": ["Snapshotting"]}), ""),
            (json!({"pathConfig": {"path": "/a"}, "featureGates": ["Magic"]}), "spec.featureGates"),
            (json!({"pathConfig": {"path": "/a"}, "imagePullPolicy": "Sometimes"}), "spec.imagePullPolicy"),
        ] {
            let spec: HostPathSpec = serde_json::from_value(value.clone()).unwrap();
            let found: Vec<String> = of_spec(&spec).into_iter().map(|(field, _)| field).collect();
            assert_eq!(found.join(" "), wanted, "{value}");
        }
    }

    #[test]
    fn a_prefix_of_names_has_no_effect() {
        for (config, expected) in [
            (json!({"path": "/a"}), &[][..]),
            (json!({"path": "/a", "useNamingPrefix": false}), &[]),
            (json!({"path": "/a", "useNamingPrefix": true}), &["spec.pathConfig.useNamingPrefix"]),
        ] {
            let spec: HostPathSpec = serde_json::from_value(json!({"pathConfig": config})).unwrap();
            assert_eq!(without_effect(&spec), expected, "{config}");
        }
        let pools = json!({"storagePools": [{"name": "a", "path": "/a"}]});
        assert!(without_effect(&serde_json::from_value(pools).unwrap()).is_empty());
    }

    #[test]
    fn other_daemon_sets_of_the_same_claims_are_named() {
        let own = Key::new("kubevirt", "hostpath-provisioner-csi");
        let legacy = Key::new("kubevirt", "hostpath-provisioner");
        let upstream = Key::new("hpp", "hostpath-provisioner-csi");
        for (all, expected) in [
            (vec![], ""),
            (vec![legacy.clone()], "kubevirt/hostpath-provisioner"),
            (vec![legacy, upstream], "hpp/hostpath-provisioner-csi, kubevirt/hostpath-provisioner"),
        ] {
            let found = others(&all, &own);
            assert_eq!(found.is_none(), expected.is_empty(), "{all:?}");
            if let Some((reason, text)) = found {
                assert_eq!(reason, "OtherProvisioner");
                assert!(text.starts_with(&format!("DaemonSet {expected} serves")), "{text}");
            }
        }
    }

    #[test]
    fn a_provisioner_has_upstreams_name_and_container_and_pods() {
        for (name, container, pods, serves) in [
            ("hostpath-provisioner", "hostpath-provisioner", 1, true),
            ("hostpath-provisioner-csi", "hostpath-provisioner", 2, true),
            ("hostpath-provisioner", "hostpath-provisioner", 0, false),
            ("hostpath-provisioner", "web", 1, false),
            ("web", "hostpath-provisioner", 1, false),
        ] {
            let set = json!({
                "metadata": {"namespace": "team", "name": name},
                "spec": {"template": {"spec": {"containers": [{"name": "first"}, {"name": container}]}}},
                "status": {"desiredNumberScheduled": pods},
            });
            assert_eq!(Provisioner::from(&set).serves, serves, "{set}");
        }
        for (account, user) in [
            (json!(null), "system:serviceaccount:team:default"),
            (json!("admin"), "system:serviceaccount:team:admin"),
        ] {
            let set = json!({
                "metadata": {"namespace": "team", "name": "hostpath-provisioner"},
                "spec": {"template": {"spec": {"serviceAccountName": account}}},
            });
            assert_eq!(Provisioner::from(&set).user, user);
        }
    }

    #[test]
    fn all_problems_are_reported() {
        let [rights, other] = [("Rights", "a".to_owned()), ("Other", "b".to_owned())];
        for (problems, expected) in [
            (vec![], None),
            (vec![other.clone()], Some(("Other", "b".to_owned()))),
            (vec![rights, other], Some(("Rights", "a; b".to_owned()))),
        ] {
            assert_eq!(joined(&problems), expected);
        }
    }

    #[test]
    fn an_older_operator_leaves_the_driver_of_a_newer_one_alone() {
        for (live, own, refused) in [
            (None, "0.1.0", false),
            (Some("0.1.0"), "0.1.0", false),
            (Some("0.1.0"), "0.2.0", false),
            (Some("0.2.0"), "0.1.9", true),
            (Some("0.10.0"), "0.9.0", true),
            (Some("v1.0.0"), "0.9.0-rc.1", true),
            (Some("0.9.0-rc.1"), "0.9.0", false),
            (Some("unknown"), "0.1.0", false),
        ] {
            assert_eq!(downgrade(live, own).is_some(), refused, "{live:?} {own}");
        }
        let text = downgrade(Some("0.2.0"), "0.1.0").unwrap();
        assert_eq!(text, "operator downgraded from 0.2.0 to 0.1.0, will not reconcile");
    }

    #[test]
    fn only_pools_of_the_object_that_are_not_shared_are_defragmented() {
        let shared = json!({"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}});
        let pools = json!({"storagePools": [
            {"name": "fast", "path": "/a"},
            {"name": "shared", "path": "/b", "pvcTemplate": shared},
        ]});
        let path = json!({"pathConfig": {"path": "/a"}});
        for (spec, value, wanted) in [
            (&pools, "fast=16384", ""),
            (&pools, " fast = 1 ", ""),
            (&path, "legacy=16384", ""),
            (&pools, "legacy=16384", "no pool \"legacy\""),
            (&path, "fast=16384", "no pool \"fast\""),
            (&pools, "fast=9,shared=9", "pool shared is shared"),
            (&pools, "", "\"\" is not POOL=EXTENTS"),
            (&pools, "fast", "\"fast\" is not POOL=EXTENTS"),
            (&pools, "fast=0", "\"fast=0\" is not POOL=EXTENTS"),
            (&pools, "fast=many", "\"fast=many\" is not POOL=EXTENTS"),
        ] {
            let object = json!({"metadata": {"annotations": {DEFRAGMENT: value}}, "spec": spec});
            let found = problems(&serde_json::from_value(object).unwrap());
            assert_eq!(found.is_empty(), wanted.is_empty(), "{value}: {found:?}");
            for (field, text) in found {
                assert_eq!(field, "metadata.annotations[ferrovirt.io/defragment]");
                assert!(text.contains(wanted), "{value}: {text}");
            }
        }
    }
}
