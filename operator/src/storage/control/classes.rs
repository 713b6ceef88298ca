//! Storage classes, CDIConfig and DataSources: their status.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cluster::{Apply, Key, Outcome, Resource, Result, Scope};
use serde_json::{Value, json};
use virt::time;

use super::{Controller, Item, RECHECK, RETRY};
use crate::storage::clone::authorize::Origin;
use crate::storage::names;
use crate::storage::profile::{self, Property};
use crate::storage::resources::{
    CDIS, CONFIGS, DATA_SOURCES, DEFINITIONS, POPULATORS, PROFILES, SNAPSHOTS, TRANSFERS, VOLUMES,
};
use crate::storage::seen::{Source, Volume};
use crate::storage::{settings, source};

/// Name of the upload proxy's Service and Route.
const PROXY: &str = "cdi-uploadproxy";
const ROUTES: Resource = Resource::namespaced("route.openshift.io", "v1", "routes");
const INGRESSES: Resource = Resource::namespaced("networking.k8s.io", "v1", "ingresses");

/// The path that exists where the cluster has Routes.
const ROUTES_GROUP: &str = "/apis/route.openshift.io/v1";
/// Label of the platform's own objects.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// The Route to the upload proxy: the router has the certificate that users see, and trusts those of the proxy's
/// authority. An upload may take as long as upstream's. It goes with CDIConfig.
fn route(namespace: &str, config: &Value, bundle: &str) -> Value {
    json!({
        "apiVersion": ROUTES.api_version(),
        "kind": "Route",
        "metadata": {
            "name": PROXY,
            "namespace": namespace,
            "labels": {MANAGED_BY: "ferrovirt", "app.kubernetes.io/part-of": "ferrovirt"},
            "annotations": {"haproxy.router.openshift.io/timeout": "60m"},
            "ownerReferences": [{
                "apiVersion": names::API_VERSION, "kind": "CDIConfig", "name": config["metadata"]["name"],
                "uid": config["metadata"]["uid"],
            }],
        },
        "spec": {
            "port": {"targetPort": "https"},
            "tls": {"termination": "reencrypt", "destinationCACertificate": bundle},
            "to": {"kind": "Service", "name": PROXY, "weight": 100},
        },
    })
}

/// Whether the Route has to be written: there is neither one nor an Ingress, or it is the platform's own and trusts other
/// certificates.
fn is_stale(found: Option<&Value>, wanted: &Value, has_ingress: bool) -> bool {
    let Some(found) = found else { return !has_ingress };
    let trusted = |route: &Value| route["spec"]["tls"]["destinationCACertificate"].clone();
    let own = found["metadata"]["labels"][MANAGED_BY] == wanted["metadata"]["labels"][MANAGED_BY];
    own && trusted(found) != trusted(wanted)
}

/// The host of an Ingress that leads to the upload proxy.
fn ingress_host(ingress: &Value) -> Option<String> {
    let default = ingress["spec"]["defaultBackend"]["service"]["name"] == PROXY;
    let rules = ingress["spec"]["rules"].as_array().into_iter().flatten();
    let mut leading = rules.filter(|rule| {
        let paths = rule["http"]["paths"].as_array().into_iter().flatten();
        default || paths.into_iter().any(|path| path["backend"]["service"]["name"] == PROXY)
    });
    leading.find_map(|rule| rule["host"].as_str().map(str::to_owned))
}

impl Controller {
    /// The host name by which the upload proxy is reached from outside: of its Route, or of an Ingress that leads to it.
    async fn proxy_host(&self, config: &Value) -> Result<String> {
        let scope = Scope::all().namespace(&self.setup.namespace);
        let ingresses = self.client.list::<Value>(INGRESSES, &scope).await?;
        let ingress = ingresses.iter().find_map(ingress_host);
        let route = match self.route(config, ingress.is_some()).await {
            Ok(route) => route,
            // Nothing else of CDIConfig's status depends on it.
            Err(error) => {
                tracing::warn!(
                    error = error.chain(),
                    "cannot read or make the Route to the upload proxy; retrying"
                );
                None
            }
        };
        let host = route.as_ref().and_then(|route| route["spec"]["host"].as_str()).map(str::to_owned);
        Ok(host.or(ingress).unwrap_or_default())
    }

    /// The Route to the upload proxy, made or changed where the cluster has the kind; one of an administrator stays, and
    /// none is made next to an Ingress.
    async fn route(&self, config: &Value, has_ingress: bool) -> Result<Option<Value>> {
        let namespace = &self.setup.namespace;
        let key = Key::new(namespace, PROXY);
        let found: Option<Value> = self.client.find_cached(ROUTES, &key).await?;
        let bundle = self.signers.proxy_bundle();
        let wanted = route(namespace, config, &bundle);
        if bundle.is_empty() || !is_stale(found.as_ref(), &wanted, has_ingress) {
            return Ok(found);
        }
        if found.is_none() {
            match self.client.read::<Value>(ROUTES_GROUP).await {
                Ok(_) => {}
                Err(error) if error.is_not_found() => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let apply = Apply { manager: "ferrovirt-storage", force: true };
        match self.client.apply(ROUTES, &key, &wanted, apply).await {
            Ok(made) => Ok(Some(made)),
            // Its host is still that of the proxy.
            Err(error) if found.is_some() => {
                tracing::warn!(
                    error = error.chain(),
                    "cannot update the Route to the upload proxy; retrying"
                );
                Ok(found)
            }
            Err(error) => Err(error),
        }
    }

    /// CDIConfig with what the CDI object sets; without one, as it is.
    async fn configured(&self, key: &Key, found: Option<Value>) -> Result<Option<Value>> {
        let all = match self.client.list::<Value>(CDIS, &Scope::all()).await {
            Ok(all) => all,
            // The kind is not installed yet.
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error),
        };
        let Some(cdi) = settings::effective(&all) else { return Ok(found) };
        let Some(config) = found else {
            let object = settings::config(cdi, names::APP);
            return Ok(Some(self.client.create(CONFIGS, "", &object).await?));
        };
        match settings::adjusted(&config, cdi) {
            Some(object) => Ok(Some(self.client.replace(CONFIGS, key, &object).await?)),
            None => Ok(Some(config)),
        }
    }

    /// Names the kinds that fill claims to volume-data-source-validator, where it is installed.
    async fn name_populators(&self) -> Result<()> {
        let definition = Key::cluster("volumepopulators.populator.storage.k8s.io");
        if self.client.find_cached::<Value>(DEFINITIONS, &definition).await?.is_none() {
            return Ok(());
        }
        for kind in [names::IMPORT_SOURCE, names::UPLOAD_SOURCE, names::CLONE_SOURCE] {
            let name = format!("{}-populator", kind.to_lowercase());
            if self.client.find::<Value>(POPULATORS, &Key::cluster(&name)).await?.is_some() {
                continue;
            }
            let object = json!({
                "apiVersion": "populator.storage.k8s.io/v1beta1", "kind": "VolumePopulator",
                "metadata": {"name": name, "labels": {"app": names::APP, "cdi.kubevirt.io": ""}},
                "sourceKind": {"group": names::GROUP, "kind": kind},
            });
            match self.client.create::<Value>(POPULATORS, "", &object).await {
                Err(error) if error.is_already_exists() || error.is_not_found() => {}
                made => {
                    made?;
                }
            }
        }
        Ok(())
    }

    /// The status of CDIConfig. Without Route, Ingress and override, a URL that another part wrote stays.
    pub(super) async fn publish_settings(&self) -> Result<Outcome> {
        // Each change of a CDI object leads here: how it is removed is remembered, also where there is no cron.
        self.is_removed();
        let key = Key::cluster("config");
        let found = self.client.find::<Value>(CONFIGS, &key).await?;
        let Some(config) = self.configured(&key, found).await? else { return Ok(Outcome::After(RETRY)) };
        self.name_populators().await?;
        let nodes: Value = self.client.read("/api/v1/nodes?limit=2").await?;
        let single = nodes["items"].as_array().is_some_and(|nodes| nodes.len() < 2);
        self.single_node.store(single, Ordering::Relaxed);
        let host = self.proxy_host(&config).await?;
        let status = settings::status(&config, &self.classes().classes, &host, &self.signers.proxy_bundle());
        // Route, Ingress and bundle change without a change of CDIConfig.
        let again = Ok(Outcome::After(RECHECK));
        let fields = status.as_object().into_iter().flatten();
        if fields.into_iter().all(|(name, value)| config["status"][name] == *value) {
            return again;
        }
        let mut patch = json!({"metadata": {"uid": config["metadata"]["uid"]}, "status": status});
        let shown = &config["status"]["filesystemOverhead"]["storageClass"];
        for (class, _) in shown.as_object().into_iter().flatten() {
            // Classes that are gone.
            let overheads = &mut patch["status"]["filesystemOverhead"]["storageClass"];
            if overheads[class].is_null() {
                overheads[class] = Value::Null;
            }
        }
        // CDIConfig has no status subresource.
        let _: Value = self.client.merge_patch(CONFIGS, &key, &patch).await?;
        again
    }

    /// A DataSource's status.
    pub(super) async fn source(&self, key: &Key) -> Result<Outcome> {
        let Some(object) = self.client.find::<Value>(DATA_SOURCES, key).await? else {
            return Ok(Outcome::Done);
        };
        let reference = &object["spec"]["source"]["dataSource"]["name"];
        let referred = match reference.as_str() {
            Some(name) => self.client.find::<Value>(DATA_SOURCES, &Key::new(key.namespace(), name)).await?,
            None => None,
        };
        let spec = referred.as_ref().unwrap_or(&object);
        let origin = Origin::of(&Source::from(&spec["spec"]["source"]), key.namespace());
        let of = origin.map(|origin| (Key::new(&origin.namespace, &origin.name), origin.snapshot));
        let claim =
            of.as_ref().filter(|(_, snapshot)| !snapshot).and_then(|(key, _)| self.caches.claims.get(key));
        let volume =
            of.as_ref().filter(|_| claim.is_some()).and_then(|(key, _)| self.caches.volumes.get(key));
        let snapshot = match of.as_ref().filter(|(_, snapshot)| *snapshot) {
            Some((key, _)) => self.client.find::<Value>(SNAPSHOTS, key).await?,
            None => None,
        };
        let observed = source::Observed {
            claim: claim.as_deref(),
            volume: volume.as_deref(),
            snapshot: snapshot.as_ref(),
            referred: referred.as_ref(),
        };
        let status = source::status(&object, &observed, &time::text(time::now()));
        let labels = source::labels(&object, &observed);
        if !source::is_current(&object["status"], &status) || !labels.is_empty() {
            let patch =
                json!({"metadata": {"uid": object["metadata"]["uid"], "labels": labels}, "status": status});
            // DataSource has no status subresource.
            let _: Value = self.client.merge_patch(DATA_SOURCES, key, &patch).await?;
        }
        // The object that it names may appear, change or go without a change of the DataSource.
        let ready = status["conditions"][0]["status"] == "True";
        Ok(Outcome::After(if ready { RECHECK } else { RETRY }))
    }

    /// A storage class: its StorageProfile. What waits for the class is looked at again.
    pub(super) async fn class(&self, key: &Key) -> Result<Outcome> {
        for (key, volume) in self.caches.volumes.all() {
            if !["Succeeded", "Failed"].contains(&volume.status.phase.as_str()) {
                self.queue.add(Item::Volume(key.clone()));
                self.queue.add(Item::Claim(key));
            }
        }
        let Some(class) = self.caches.classes.get(key) else { return Ok(Outcome::Done) };
        let mut overrides = (*self.caches.profiles.get(key).unwrap_or_default()).clone();
        let by_hand = class.provisioner == profile::NO_PROVISIONER;
        if by_hand {
            overrides.volumes = self.properties_of_volumes(&class.meta.name).await?;
        }
        let profile = self.profile_with(&class, &overrides);
        let found: Option<Value> = self.client.find(PROFILES, key).await?;
        let before = match found {
            Some(object) => object,
            None => {
                let object = json!({
                    "apiVersion": names::API_VERSION, "kind": "StorageProfile",
                    "metadata": {
                        "name": class.meta.name,
                        "labels": {"app": names::APP, "cdi.kubevirt.io": ""},
                        "ownerReferences": [{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
                            "name": class.meta.name, "uid": class.meta.uid}],
                    },
                    "spec": {},
                });
                match self.client.create(PROFILES, "", &object).await {
                    Ok(made) => made,
                    // The kind is not installed yet.
                    Err(error) if error.is_not_found() => return Ok(Outcome::After(RETRY)),
                    Err(error) => return Err(error),
                }
            }
        };
        let status = profile::status(&profile, &before["status"], &time::text(time::now()));
        if before["status"] != status {
            let patch = profile::patch(&before["status"], &status);
            let patch = json!({"metadata": {"uid": before["metadata"]["uid"]}, "status": patch});
            let _: Value = self.client.merge_patch(PROFILES.sub("status"), key, &patch).await?;
        }
        Ok(if by_hand { Outcome::After(until_read_again(&overrides.volumes)) } else { Outcome::Done })
    }

    /// The claim properties of a class without a provisioner.
    async fn properties_of_volumes(&self, class: &str) -> Result<Vec<Property>> {
        let mut volumes = Vec::new();
        self.client
            .each(VOLUMES, &Scope::all(), |volume: Value| {
                let volume = Volume::from(&volume);
                if volume.class == class {
                    volumes.push(volume);
                }
            })
            .await?;
        Ok(profile::properties_of(&volumes))
    }

    /// An ObjectTransfer: the kind is deprecated, and each is answered with a failure.
    pub(super) async fn transfer(&self, key: &Key) -> Result<Outcome> {
        let Some(object) = self.client.find::<Value>(TRANSFERS, key).await? else { return Ok(Outcome::Done) };
        if let Some(status) = answered(&object, &time::text(time::now())) {
            let patch = json!({"metadata": {"uid": object["metadata"]["uid"]}, "status": status});
            let _: Value = self.client.merge_patch(TRANSFERS.sub("status"), key, &patch).await?;
        }
        Ok(Outcome::Done)
    }
}

/// Time until the volumes of a class without a provisioner are read again. They are not watched, and each read is of all
/// volumes of the cluster: it is frequent only while the class has none.
fn until_read_again(found: &[Property]) -> Duration {
    if found.is_empty() { RECHECK } else { RECHECK * 10 }
}

/// The status by which an ObjectTransfer is answered; `None` when it has been.
fn answered(transfer: &Value, now: &str) -> Option<Value> {
    const FAILED: &str = "Failed";
    let condition = json!({
        "type": "Complete", "status": "False", "reason": "NotSupported",
        "message": "ObjectTransfer is deprecated: clone the claim into the other namespace by a DataVolume",
        "lastTransitionTime": now, "lastHeartbeatTime": now,
    });
    (transfer["status"]["phase"] != FAILED).then(|| json!({"phase": FAILED, "conditions": [condition]}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_read_less_often_when_the_class_has_some() {
        let found = [Property { modes: vec!["ReadWriteOnce".to_owned()], block: false }];
        assert_eq!((until_read_again(&[]), until_read_again(&found)), (RECHECK, RECHECK * 10));
    }

    #[test]
    fn an_object_transfer_is_answered_once_with_failed() {
        let status = answered(&json!({"metadata": {"name": "t"}}), "1").unwrap();
        assert_eq!(
            (&status["phase"], &status["conditions"][0]["status"]),
            (&json!("Failed"), &json!("False"))
        );
        assert_eq!(answered(&json!({"status": status}), "2"), None);
    }

    #[test]
    fn the_route_follows_the_proxys_authority_and_one_of_an_administrator_stays() {
        let config = json!({"metadata": {"name": "config", "uid": "u"}});
        let made = |bundle: &str| route("ns", &config, bundle);
        let first = made("first");
        assert_eq!(first["apiVersion"], "route.openshift.io/v1");
        let tls = json!({"termination": "reencrypt", "destinationCACertificate": "first"});
        assert_eq!((&first["spec"]["tls"], &first["spec"]["to"]["name"]), (&tls, &json!("cdi-uploadproxy")));
        assert_eq!(first["metadata"]["ownerReferences"][0]["uid"], "u");
        assert!(is_stale(None, &first, false));
        assert!(!is_stale(None, &first, true), "the Ingress leads to the proxy");
        for has_ingress in [false, true] {
            assert!(!is_stale(Some(&first), &first, has_ingress));
            assert!(is_stale(Some(&first), &made("second"), has_ingress));
        }
        let theirs =
            json!({"metadata": {"name": "cdi-uploadproxy"}, "spec": {"tls": {"termination": "passthrough"}}});
        assert!(!is_stale(Some(&theirs), &first, false));
    }

    #[test]
    fn the_host_is_that_of_an_ingress_that_leads_to_the_proxy() {
        let of = |service: &str| {
            let paths = json!([{"backend": {"service": {"name": service}}}]);
            ingress_host(
                &json!({"spec": {"rules": [{"host": "upload.example.com", "http": {"paths": paths}}]}}),
            )
        };
        assert_eq!(of("cdi-uploadproxy").as_deref(), Some("upload.example.com"));
        assert_eq!(of("other"), None);
    }
}
