//! CDIConfig: what administrators set for all transfers, and the status that clients read.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::component::least_tls_version;
use serde_json::{Value, json};

use super::profile::CloneStrategy;
use super::size::Overhead;
use crate::storage::seen::{Class, map, text, texts};
use crate::view::WAITS;

/// Annotation of CDIConfig with the CDI object's `cloneStrategyOverride`. Ours.
pub const CLONE_STRATEGY: &str = "ferrovirt.io/clone-strategy-override";

/// Annotation of CDIConfig with the CDI object's `workload`: the placement of worker pods, JSON. Ours.
pub const PLACEMENT: &str = "ferrovirt.io/workload-placement";

/// Annotation of CDIConfig: networks that sources of DataImportCrons may be polled at although they are link-local,
/// loopback or Services' addresses; with commas between them. Ours.
pub const POLL_NETWORKS: &str = "ferrovirt.io/cron-source-networks";

/// Labels that CDIConfig and claims get from the CDI object.
const LABELS: [&str; 2] = ["app.kubernetes.io/part-of", "app.kubernetes.io/version"];

/// `imagePullPolicy` of worker images where the CDI object has none.
pub const PULL_POLICY: &str = "IfNotPresent";

/// Settings of transfers.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Overhead of classes that have none of their own.
    pub overhead: Overhead,
    /// Overhead by class.
    pub class_overhead: BTreeMap<String, Overhead>,
    /// Whether all blocks are reserved by default.
    pub preallocation: bool,
    /// Registries that are spoken to without verification: `host` or `host:port`.
    pub insecure_registries: Vec<String>,
    /// Proxy of importers.
    pub proxy: Proxy,
    /// Resources of worker pods.
    pub resources: Value,
    /// Secrets for pulling worker images.
    pub pull_secrets: Vec<String>,
    /// Labels of the installation that claims get.
    pub labels: BTreeMap<String, String>,
    /// Whether claims of classes with WaitForFirstConsumer wait for a pod of the user.
    pub honors_first_consumer: bool,
    /// Whether every DataVolume may adopt a claim of its name.
    pub adopts_claims: bool,
    /// The way of all clones; `None` for that of each class.
    pub clone_strategy: Option<CloneStrategy>,
    /// Networks that cron sources may be polled at although they are the node's or Services'.
    pub poll_networks: Vec<String>,
    /// Placement of worker pods: `nodeSelector`, `affinity`, `tolerations`.
    pub placement: Value,
    /// Lowest TLS version of upload servers.
    pub tls_version: String,
    /// Cipher suites of TLS 1.2 that upload servers accept, by OpenSSL's names; empty for all.
    pub tls_ciphers: Vec<String>,
    /// Verbosity of the workers' logs, as klog counts it.
    pub verbosity: u8,
}

/// Proxy of importers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proxy {
    /// For http.
    pub http: String,
    /// For https.
    pub https: String,
    /// Hosts that are reached without it.
    pub exceptions: String,
    /// ConfigMap in the install namespace with certificates of the proxy; empty for none.
    pub certificates: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self::from(&Value::Null)
    }
}

impl From<&Value> for Settings {
    fn from(config: &Value) -> Self {
        let spec = &config["spec"];
        let (overhead, proxy, tls) =
            (&spec["filesystemOverhead"], &spec["importProxy"], &spec["tlsSecurityProfile"]);
        let by_class = overhead["storageClass"].as_object().into_iter().flatten();
        let gates = spec["featureGates"].as_array().map(|_| texts(&spec["featureGates"]));
        let gate = |name: &str| gates.as_ref().is_some_and(|gates| gates.iter().any(|gate| gate == name));
        let secrets = spec["imagePullSecrets"].as_array().into_iter().flatten();
        Self {
            overhead: Overhead::of(&overhead["global"]).unwrap_or_default(),
            class_overhead: by_class
                .filter_map(|(class, share)| Some((class.clone(), Overhead::of(share)?)))
                .collect(),
            preallocation: spec["preallocation"] == true,
            insecure_registries: texts(&spec["insecureRegistries"]),
            proxy: Proxy {
                http: text(&proxy["HTTPProxy"]),
                https: text(&proxy["HTTPSProxy"]),
                exceptions: text(&proxy["noProxy"]),
                certificates: text(&proxy["trustedCAProxy"]),
            },
            resources: resources(&spec["podResourceRequirements"]),
            pull_secrets: secrets
                .map(|secret| text(&secret["name"]))
                .filter(|name| !name.is_empty())
                .collect(),
            labels: map(&config["metadata"]["labels"])
                .into_iter()
                .filter(|(name, _)| LABELS.contains(&name.as_str()))
                .collect(),
            honors_first_consumer: gates.is_none() || gate("HonorWaitForFirstConsumer"),
            adopts_claims: gate("DataVolumeClaimAdoption"),
            clone_strategy: config["metadata"]["annotations"][CLONE_STRATEGY]
                .as_str()
                .and_then(CloneStrategy::of_word),
            poll_networks: config["metadata"]["annotations"][POLL_NETWORKS]
                .as_str()
                .into_iter()
                .flat_map(|text| text.split(','))
                .map(|network| network.trim().to_owned())
                .filter(|network| !network.is_empty())
                .collect(),
            placement: config["metadata"]["annotations"][PLACEMENT]
                .as_str()
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default(),
            tls_version: least_tls_version(tls["type"].as_str(), tls["custom"]["minTLSVersion"].as_str())
                .to_owned(),
            tls_ciphers: texts(&tls["custom"]["ciphers"]),
            verbosity: spec["logVerbosity"].as_u64().and_then(|level| level.try_into().ok()).unwrap_or(1),
        }
    }
}

/// Upstream's resources of worker pods, with what the administrator sets in place of them.
fn resources(asked: &Value) -> Value {
    let mut resources = json!({
        "requests": {"cpu": "100m", "memory": "60M"},
        "limits": {"cpu": "750m", "memory": "600M"},
    });
    for part in ["requests", "limits"] {
        for (name, amount) in asked[part].as_object().into_iter().flatten() {
            resources[part][name] = amount.clone();
        }
    }
    resources
}

impl Settings {
    /// The overhead of a claim.
    pub fn overhead_of(&self, class: Option<&str>, block: bool) -> Overhead {
        if block {
            return Overhead::NONE;
        }
        class.and_then(|class| self.class_overhead.get(class)).copied().unwrap_or(self.overhead)
    }

    /// Whether a registry is spoken to without verification.
    pub fn trusts_registry(&self, url: &str) -> bool {
        let host = url.strip_prefix("docker://").unwrap_or_default().split('/').next().unwrap_or_default();
        !host.is_empty() && self.insecure_registries.iter().any(|registry| registry == host)
    }
}

/// The fields read from a CDI object itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Installed {
    /// Creation time and name, by which the oldest CDI object counts.
    pub age: (String, String),
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether its deletion waits for DataVolumes instead of removing them.
    pub waits: bool,
    /// Whether it is available and not degraded.
    pub available: bool,
    /// `spec.imagePullPolicy`: of worker images.
    pub pull_policy: String,
}

impl From<&Value> for Installed {
    fn from(cdi: &Value) -> Self {
        let conditions = cdi["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is = |kind: &str| conditions.iter().any(|one| one["type"] == kind && one["status"] == "True");
        let policy = cdi["spec"]["imagePullPolicy"].as_str().filter(|policy| !policy.is_empty());
        Self {
            age: age(cdi),
            deleting: is_deleted(cdi),
            waits: cdi["spec"]["uninstallStrategy"] == WAITS,
            available: is("Available") && !is("Degraded"),
            pull_policy: policy.unwrap_or(PULL_POLICY).to_owned(),
        }
    }
}

/// Creation time and name of a CDI object.
fn age(cdi: &Value) -> (String, String) {
    let meta = &cdi["metadata"];
    (text(&meta["creationTimestamp"]), text(&meta["name"]))
}

fn is_deleted(cdi: &Value) -> bool {
    !cdi["metadata"]["deletionTimestamp"].is_null()
}

/// The CDI object that counts: the oldest that is not being deleted.
pub fn effective(all: &[Value]) -> Option<&Value> {
    all.iter().filter(|one| !is_deleted(one)).min_by_key(|one| age(one))
}

/// The same, of what was read of each.
pub fn installed(all: impl IntoIterator<Item = Arc<Installed>>) -> Option<Arc<Installed>> {
    all.into_iter().filter(|one| !one.deleting).min_by(|one, other| one.age.cmp(&other.age))
}

/// Whether the oldest CDI object is being deleted, and all DataVolumes with it. Without a CDI object, whether that was so
/// `before` the last one was gone.
pub fn is_removed(all: impl IntoIterator<Item = Arc<Installed>>, before: bool) -> bool {
    let oldest = all.into_iter().min_by(|one, other| one.age.cmp(&other.age));
    oldest.map_or(before, |oldest| oldest.deleting && !oldest.waits)
}

/// A new CDIConfig for a CDI object.
pub fn config(cdi: &Value, app: &str) -> Value {
    // It goes with the CDI object.
    let owner = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDI", "name": cdi["metadata"]["name"],
        "uid": cdi["metadata"]["uid"],
    });
    let empty = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDIConfig",
        "metadata": {
            "name": "config", "labels": {"app": app, "cdi.kubevirt.io": ""}, "ownerReferences": [owner],
        },
        "spec": {},
    });
    adjusted(&empty, cdi).unwrap_or(empty)
}

/// CDIConfig with `spec.config`, `spec.cloneStrategyOverride` and `spec.workload` of the CDI object; `None` when it has
/// them.
pub fn adjusted(config: &Value, cdi: &Value) -> Option<Value> {
    let mut object = config.clone();
    let labels = map(&cdi["metadata"]["labels"]);
    for (label, value) in labels.iter().filter(|(name, _)| LABELS.contains(&name.as_str())) {
        object["metadata"]["labels"][label] = json!(value);
    }
    let spec = &cdi["spec"]["config"];
    object["spec"] = if spec.is_null() { json!({}) } else { spec.clone() };
    let strategy = cdi["spec"]["cloneStrategyOverride"].as_str().filter(|strategy| !strategy.is_empty());
    let placement = Some(&cdi["spec"]["workload"]).filter(|placement| placement.is_object());
    for (annotation, value) in
        [(CLONE_STRATEGY, strategy.map(str::to_owned)), (PLACEMENT, placement.map(ToString::to_string))]
    {
        match value {
            Some(value) => object["metadata"]["annotations"][annotation] = json!(value),
            None => {
                let annotations = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
                if let Some(annotations) = annotations {
                    annotations.remove(annotation);
                }
            }
        }
    }
    (object["spec"] != config["spec"] || object["metadata"] != config["metadata"]).then_some(object)
}

/// The status that CDIConfig should have. `host` is that of the upload proxy's Route or Ingress; `authority` signs the
/// proxy's certificate (PEM). Both may be empty.
pub fn status(config: &Value, classes: &[Class], host: &str, authority: &str) -> Value {
    let settings = Settings::from(config);
    let spec = &config["spec"];
    let shown = |overhead: Overhead| overhead.share().to_string();
    let by_class: BTreeMap<&str, String> = classes
        .iter()
        .map(|class| {
            let name = class.meta.name.as_str();
            (name, shown(settings.overhead_of(Some(name), false)))
        })
        .collect();
    let mut status = json!({
        "filesystemOverhead": {"global": shown(settings.overhead), "storageClass": by_class},
        "defaultPodResourceRequirements": settings.resources,
        "preallocation": settings.preallocation,
    });
    let override_url = spec["uploadProxyURLOverride"].as_str().filter(|url| !url.is_empty());
    for (field, value) in [("uploadProxyURL", override_url.unwrap_or(host)), ("uploadProxyCA", authority)] {
        if !value.is_empty() {
            status[field] = json!(value);
        }
    }
    let scratch = spec["scratchSpaceStorageClass"]
        .as_str()
        .filter(|name| classes.iter().any(|one| one.meta.name == *name));
    let default = classes.iter().find(|class| class.is_default()).map(|class| class.meta.name.as_str());
    if let Some(class) = scratch.or(default) {
        status["scratchSpaceStorageClass"] = json!(class);
    }
    for field in ["importProxy", "imagePullSecrets"] {
        if !spec[field].is_null() {
            status[field] = spec[field].clone();
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_upstreams_defaults() {
        let settings = Settings::default();
        assert_eq!(
            (settings.overhead, settings.preallocation, settings.honors_first_consumer),
            (Overhead::default(), false, true)
        );
        assert_eq!(settings.resources["limits"]["memory"], "600M");
        assert!(!settings.adopts_claims);
        let row = (settings.tls_version.as_str(), settings.tls_ciphers.len(), settings.verbosity);
        assert_eq!(row, ("VersionTLS12", 0, 1));
    }

    #[test]
    fn a_degraded_cdi_object_is_not_ready() {
        let of = |available: &str, degraded: &str| {
            let conditions = json!([
                {"type": "Available", "status": available}, {"type": "Degraded", "status": degraded},
            ]);
            Installed::from(&json!({"status": {"conditions": conditions}})).available
        };
        assert!(of("True", "False"));
        assert!(!of("True", "True") && !of("False", "False") && !Installed::from(&json!({})).available);
    }

    #[test]
    fn the_oldest_cdi_object_sets_the_configuration() {
        let cdi = |name: &str, created: &str, spec: Value| json!({"metadata": {"name": name, "creationTimestamp": created}, "spec": spec});
        let set = json!({"config": {"preallocation": true}, "cloneStrategyOverride": "copy",
            "workload": {"nodeSelector": {"a": "b"}}});
        let all = [cdi("b", "2026-01-02T00:00:00Z", json!({})), cdi("a", "2026-01-01T00:00:00Z", set)];
        let chosen = effective(&all).unwrap();
        assert_eq!((&chosen["metadata"]["name"], effective(&[])), (&json!("a"), None));
        let made = config(chosen, "app");
        let settings = Settings::from(&made);
        assert!(settings.preallocation && settings.clone_strategy == Some(CloneStrategy::Copy));
        assert_eq!(settings.placement["nodeSelector"]["a"], "b");
        assert_eq!(adjusted(&made, chosen), None);
        let reset = adjusted(&made, &all[0]).unwrap();
        assert_eq!((&reset["spec"], &reset["metadata"]["annotations"]), (&json!({}), &json!({})));
        assert_eq!(adjusted(&reset, &all[0]), None);
        let plain = json!({"metadata": {"name": "config"}, "spec": {}});
        assert_eq!(adjusted(&plain, &all[0]), None);
    }

    #[test]
    fn readiness_and_pull_policy_are_those_of_the_oldest_cdi_object() {
        let cdi = |name: &str, created: &str, deleted: Option<&str>| {
            Arc::new(Installed::from(&json!({
                "metadata": {"name": name, "creationTimestamp": created, "deletionTimestamp": deleted},
                "spec": {"imagePullPolicy": name},
            })))
        };
        let chosen = |all: Vec<Arc<Installed>>| installed(all).map(|cdi| cdi.pull_policy.clone());
        let (old, new) = (cdi("old", "2026-01-01T00:00:00Z", None), cdi("new", "2026-01-02T00:00:00Z", None));
        assert_eq!(chosen(vec![new.clone(), old]).as_deref(), Some("old"));
        let going = cdi("going", "2026-01-01T00:00:00Z", Some("2026-01-03T00:00:00Z"));
        assert_eq!(chosen(vec![going.clone(), new]).as_deref(), Some("new"));
        assert_eq!(chosen(vec![going]), None);
    }

    #[test]
    fn removal_takes_data_volumes_with_it_unless_it_waits_for_them() {
        let cdi = |created: &str, deleted: bool, strategy: &str| {
            let deleted = deleted.then_some("2026-01-03T00:00:00Z");
            Arc::new(Installed::from(&json!({
                "metadata": {"name": "cdi", "creationTimestamp": created, "deletionTimestamp": deleted},
                "spec": {"uninstallStrategy": strategy},
            })))
        };
        let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
        for (all, expected) in [
            (vec![], false),
            (vec![cdi(early, false, "RemoveWorkloads")], false),
            (vec![cdi(early, true, "RemoveWorkloads")], true),
            (vec![cdi(early, true, "")], true),
            (vec![cdi(early, true, WAITS)], false),
            (vec![cdi(early, true, "RemoveWorkloads"), cdi(late, false, "")], true),
            // A duplicate never owned DataVolumes.
            (vec![cdi(early, false, "RemoveWorkloads"), cdi(late, true, "")], false),
        ] {
            assert_eq!(is_removed(all.clone(), false), expected, "{all:?}");
        }
        assert!(is_removed(Vec::new(), true), "the removed object is gone");
        assert!(!is_removed(vec![cdi(late, false, "RemoveWorkloads")], true), "there is another one");
    }

    #[test]
    fn labels_of_the_installation_reach_the_settings() {
        let labels = json!({"app.kubernetes.io/part-of": "hyperconverged-cluster", "app.kubernetes.io/version": "1.18.0",
            "app.kubernetes.io/component": "other"});
        let cdi = json!({"metadata": {"name": "cdi", "labels": labels}, "spec": {}});
        let made = config(&cdi, "app");
        assert_eq!((&made["metadata"]["labels"]["app"], adjusted(&made, &cdi)), (&json!("app"), None));
        let read: Vec<_> = Settings::from(&made).labels.into_iter().collect();
        let wanted = [("part-of", "hyperconverged-cluster"), ("version", "1.18.0")];
        let wanted = wanted.map(|(name, value)| (format!("app.kubernetes.io/{name}"), value.to_owned()));
        assert_eq!(read, wanted);
    }

    #[test]
    fn the_cdi_object_sets_the_pull_policy_of_workers() {
        let of = |cdi: Value| Installed::from(&cdi);
        let conditions = json!([{"type": "Available", "status": "True"}]);
        let usual = of(json!({"status": {"conditions": conditions}}));
        assert_eq!((usual.available, usual.pull_policy.as_str()), (true, "IfNotPresent"));
        let set = of(json!({"spec": {"imagePullPolicy": "Always"}}));
        assert_eq!((set.available, set.pull_policy.as_str()), (false, "Always"));
        assert_eq!(of(json!({"spec": {"imagePullPolicy": ""}})).pull_policy, "IfNotPresent");
    }

    #[test]
    fn settings_are_read() {
        let settings = Settings::from(&json!({"spec": {
            "filesystemOverhead": {"global": "0.1", "storageClass": {"fast": "0", "odd": "x"}},
            "featureGates": ["DataVolumeClaimAdoption"],
            "insecureRegistries": ["reg:5000"],
            "podResourceRequirements": {"limits": {"memory": "1G"}},
            "imagePullSecrets": [{"name": "pull"}],
            "logVerbosity": 4,
            "tlsSecurityProfile": {"type": "Custom", "custom": {"minTLSVersion": "VersionTLS13", "ciphers": ["A"]}},
        }}));
        let row = (settings.tls_version.as_str(), settings.tls_ciphers.join(","), settings.verbosity);
        assert_eq!(row, ("VersionTLS13", "A".to_owned(), 4));
        assert_eq!(settings.overhead_of(Some("fast"), false), Overhead::NONE);
        assert_eq!(settings.overhead_of(Some("odd"), false), Overhead::parse("0.1").unwrap());
        assert_eq!(settings.overhead_of(None, true), Overhead::NONE);
        assert!(settings.adopts_claims && !settings.honors_first_consumer);
        assert!(
            settings.trusts_registry("docker://reg:5000/a/b") && !settings.trusts_registry("docker://reg/a")
        );
        assert_eq!(
            (&settings.resources["limits"]["memory"], &settings.resources["limits"]["cpu"]),
            (&json!("1G"), &json!("750m"))
        );
        assert_eq!(settings.pull_secrets, ["pull"]);
    }

    #[test]
    fn the_status_names_every_class_and_the_proxy() {
        let mut class = Class { provisioner: "p".into(), ..Class::default() };
        class.meta.name = "fast".into();
        class.meta.annotations.insert("storageclass.kubernetes.io/is-default-class".into(), "true".into());
        let shown = status(
            &json!({"spec": {"filesystemOverhead": {"global": "0.1"}}}),
            &[class],
            "upload.example",
            "PEM",
        );
        assert_eq!(shown["filesystemOverhead"], json!({"global": "0.1", "storageClass": {"fast": "0.1"}}));
        assert_eq!(
            (&shown["uploadProxyURL"], &shown["scratchSpaceStorageClass"]),
            (&json!("upload.example"), &json!("fast"))
        );
        let config = json!({"spec": {"uploadProxyURLOverride": "mine"}});
        assert_eq!(status(&config, &[], "upload.example", "")["uploadProxyURL"], "mine");
    }
}
