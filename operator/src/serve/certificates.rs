//! The platform's own authority: kept in the Secret kubevirt-ca, its bundle published in the ConfigMap kubevirt-ca, as
//! caBundle of our webhooks and APIServices, and the agents' certificate in a Secret that they mount.
//!
//! Every replica looks every ten seconds and does what is due; two that act at once meet in the Secret's resource version,
//! and the slower one starts over. When a step is due is decided by [`serve::authority`] (pure).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use api::hostpath::METADATA_SERVICE;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cluster::front::Front;
use cluster::{Client, JsonPatch, Key, Resource, Scope};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use serve::authority::{Profile, Store};
use serve::tls::{Authorities, Certificate, Clients, Identity, Live, client_config};

use super::{Site, agent};
use crate::authority::Keeper;
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::health::Health;
use crate::lifetimes;
use crate::view::{Age, oldest};

const KUBEVIRTS: Resource = Resource::namespaced("kubevirt.io", "v1", "kubevirts");
const API_SERVICES: Resource = Resource::cluster("apiregistration.k8s.io", "v1", "apiservices");
const MUTATING: Resource =
    Resource::cluster("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations");
const VALIDATING: Resource =
    Resource::cluster("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations");
/// Secret and ConfigMap of the authority; also how the authorities' names begin.
const NAME: &str = "kubevirt-ca";
/// The Secret that agents mount.
const AGENT_SECRET: &str = "kubevirt-virt-handler-server-certs";
/// Our objects among webhooks and APIServices: those that were installed. Helm sets the label managed-by to its own name.
const OURS: &str = "app.kubernetes.io/part-of=ferrovirt";
/// Secret of the MAC pool's certificates, and the entry with their ends.
const POOL_SECRET: &str = "kubemacpool-service";
const POOL_STORE: &str = "store.json";
const SECRETS: Resource = Resource::namespaced("", "v1", "secrets");
/// Services that lead to this server.
const SERVICES: [&str; 5] =
    ["virt-api", "cdi-api", "kubevirt-operator-webhook", "hco-webhook-service", "ferrovirt-operator"];
const DEFINITIONS: Resource = Resource::cluster("apiextensions.k8s.io", "v1", "customresourcedefinitions");
/// Between two looks.
const PERIOD: Duration = Duration::from_secs(10);

/// Certificates by name in the store.
const SERVER: &str = "operator";
const AGENT: &str = "agent";
const CLIENT: &str = "client";

fn profile(name: &str, namespace: &str) -> Profile {
    let names = match name {
        SERVER => SERVICES
            .iter()
            .flat_map(|service| [format!("{service}.{namespace}.svc"), format!("{service}.{namespace}")])
            .collect(),
        AGENT => {
            let service = format!("{METADATA_SERVICE}.{namespace}");
            vec![agent::NAME.to_owned(), format!("{service}.svc"), service]
        }
        _ => Vec::new(),
    };
    let common_name = match name {
        SERVER => format!("virt-api.{namespace}.svc"),
        AGENT => "kubevirt.io:system:node:virt-handler".to_owned(),
        _ => "kubevirt.io:system:client:virt-handler".to_owned(),
    };
    Profile { common_name, names, server: name != CLIENT, client: name != SERVER }
}

/// Keeps certificates good and in use until the process ends; sets readiness.
pub(super) async fn keep(config: &Config, site: &Arc<Site>, tls: &Arc<Live>, health: &Health) -> Infallible {
    let mut used = None;
    loop {
        let pool = Key::new(&config.namespace, POOL_SECRET);
        // Only its own replicas renew them; without the pool there is no Secret.
        if let Ok(secret) = site.client.find_cached::<Value>(SECRETS, &pool).await {
            health.set_ends(POOL_SECRET, secret.as_ref().map(pool_ends).unwrap_or_default());
        }
        match reconcile(&site.client, &config.namespace).await {
            Ok(found) => {
                if used.as_ref() != Some(&found) {
                    match apply(site, tls, &found) {
                        Ok(()) => {
                            tracing::info!("certificates in use");
                            health.set_ends(NAME, ends(&found.store));
                            used = Some(found);
                        }
                        Err(error) => tracing::error!(
                            error = error.chain(),
                            "cannot use the certificates of the operator's server"
                        ),
                    }
                }
            }
            Err(error) => tracing::warn!(
                error = error.chain(),
                "cannot write the certificates to their Secrets; retrying"
            ),
        }
        // A replica with an expired certificate would only break connections.
        let valid = used.as_ref().and_then(|found| found.store.leaves.get(SERVER));
        health.set_ready(valid.is_some_and(|leaf| leaf.identity.until == 0 || now() < leaf.identity.until));
        tokio::time::sleep(PERIOD).await;
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// When the authority and each certificate ends.
fn ends(store: &Store) -> Vec<(String, u64)> {
    let authority = store.authorities.last().map(|one| ("ca".to_owned(), one.until));
    let leaves = store.leaves.iter().map(|(name, leaf)| (name.clone(), leaf.identity.until));
    authority.into_iter().chain(leaves).collect()
}

/// When the MAC pool's authority and certificate end, by the Secret of its replicas.
fn pool_ends(secret: &Value) -> Vec<(String, u64)> {
    let text = secret["data"][POOL_STORE].as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
    let store: Value = text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    let authority = store["authorities"].as_array().and_then(|all| all.last()).unwrap_or(&Value::Null);
    let ends = [("kubemacpool-ca", authority), (POOL_SECRET, &store["serving"])];
    ends.into_iter().filter_map(|(name, one)| Some((name.to_owned(), one["until"].as_u64()?))).collect()
}

/// The certificates of the server and its clients.
#[derive(Debug, PartialEq)]
struct StoredCertificates {
    store: Store,
    /// The front proxy's ConfigMap.
    front: std::collections::BTreeMap<String, String>,
    /// Whether clients that know nothing newer than TLS 1.2 are refused.
    only_tls13: bool,
    /// IANA's names of the cipher suites of TLS 1.2; empty for all.
    ciphers: Vec<String>,
}

/// Does what is due and publishes it; gives what is to be used.
async fn reconcile(client: &Client, namespace: &str) -> cluster::Result<StoredCertificates> {
    let front = Front::data(client).await?;
    let kubevirts: Vec<KubeVirt> = client.list(KUBEVIRTS, &Scope::all()).await?;
    let kubevirt = oldest(kubevirts, |one| &one.metadata);
    let spec = kubevirt.as_ref().map_or(&Value::Null, |one| &one.spec);
    let intervals = lifetimes::of_kubevirt(spec).intervals;
    let tls = &spec["configuration"]["tlsConfiguration"];
    let names = tls["ciphers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let keeper = Keeper {
        client,
        namespace,
        secret: NAME,
        bundle: NAME,
        entry: "ca-bundle",
        intervals,
        lead: Duration::ZERO,
    };
    let store = keeper.advance(&[SERVER, AGENT, CLIENT], |name| profile(name, namespace), now()).await?;
    if let Some(leaf) = store.leaves.get(AGENT) {
        keeper.deliver(AGENT_SECRET, &leaf.identity, &[]).await?;
    }
    inject(client, namespace, &BASE64_STANDARD.encode(store.bundle())).await?;
    Ok(StoredCertificates {
        store,
        front,
        only_tls13: tls["minTLSVersion"] == "VersionTLS13",
        ciphers: names.map(str::to_owned).collect(),
    })
}

/// A KubeVirt object, with the settings that its spec may have.
#[derive(serde::Deserialize)]
struct KubeVirt {
    metadata: Age,
    #[serde(default)]
    spec: Value,
}

/// A CustomResourceDefinition, without its schemas.
#[derive(serde::Deserialize)]
struct Converted {
    spec: ConvertedSpec,
}

#[derive(serde::Deserialize, serde::Serialize)]
struct ConvertedSpec {
    #[serde(default)]
    conversion: Value,
}

/// Sets the bundle in our webhooks, APIServices and definitions with a conversion webhook.
async fn inject(client: &Client, namespace: &str, bundle: &str) -> cluster::Result<()> {
    let scope = Scope::all().labels(OURS);
    for resource in [API_SERVICES, MUTATING, VALIDATING] {
        for object in client.list::<Value>(resource, &scope).await? {
            let patch = injection(&object, namespace, bundle);
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            if !patch.is_empty() {
                client.json_patch::<IgnoredAny>(resource, &Key::cluster(name), &patch).await?;
            }
        }
    }
    for name in crate::install::CONVERTED {
        let key = Key::cluster(name);
        let Some(definition) = client.find_cached::<Converted>(DEFINITIONS, &key).await? else { continue };
        let patch = injection(&json!({"spec": definition.spec}), namespace, bundle);
        if !patch.is_empty() {
            client.json_patch::<IgnoredAny>(DEFINITIONS, &key, &patch).await?;
        }
    }
    Ok(())
}

/// The patch that gives an object the bundle wherever it names a Service that leads here. The MAC pool has an authority of
/// its own.
fn injection(object: &Value, namespace: &str, bundle: &str) -> JsonPatch {
    let mut patch = JsonPatch::new();
    let mut set = |config: &Value, path: String| {
        let here = config["service"]["name"].as_str().is_some_and(|name| SERVICES.contains(&name));
        if here && config["service"]["namespace"] == namespace && config["caBundle"] != bundle {
            let service = format!("{path}/service/name");
            patch.extend(
                JsonPatch::new()
                    .test(service, &config["service"]["name"])
                    .add(format!("{path}/caBundle"), bundle),
            );
        }
    };
    set(&object["spec"], "/spec".to_owned());
    set(
        &object["spec"]["conversion"]["webhook"]["clientConfig"],
        "/spec/conversion/webhook/clientConfig".to_owned(),
    );
    for (index, webhook) in object["webhooks"].as_array().into_iter().flatten().enumerate() {
        set(&webhook["clientConfig"], format!("/webhooks/{index}/clientConfig"));
    }
    patch
}

/// Uses what was found: the server's certificate, the front proxy's authority, the client certificate for agents.
fn apply(site: &Site, tls: &Live, found: &StoredCertificates) -> Result<()> {
    let failed = |what: &'static str| {
        move |error: Box<dyn std::error::Error + Send + Sync>| Error::with(Kind::System, what, error)
    };
    let missing = || Error::new(Kind::System, "the Secret of the operator's authority lacks a certificate");
    let leaf = |name: &str| found.store.leaves.get(name).map(|leaf| &leaf.identity).ok_or_else(missing);
    let front = Front::parse(&found.front);
    let front =
        front.map_err(|error| failed("the front proxy's configuration cannot be used")(error.into()))?;
    let (server, client) = (leaf(SERVER)?, leaf(CLIENT)?);
    let certificate = Certificate::Pem { chain: server.certificate.clone(), key: server.key.clone() };
    let authorities =
        Authorities::Pem(found.front.get(cluster::front::AUTHORITY).cloned().unwrap_or_default());
    let identity = Identity { certificate, only_tls13: found.only_tls13, ciphers: found.ciphers.clone() };
    let config = identity.server_config(Some(&Clients { authorities, required: false }));
    let config = config.map_err(|error| failed("the server's certificate cannot be used")(error.into()))?;
    let agents = client_config(&found.store.bundle(), Some((&client.certificate, &client.key)));
    let agents = agents.map_err(|error| failed("the certificate for agents cannot be used")(error.into()))?;
    site.gate.set(front);
    site.agents.set(agents);
    tls.set(Arc::new(config));
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ends_of_the_mac_pools_certificates_are_read_from_its_secret() {
        let store =
            json!({"authorities": [{"until": 1}, {"until": 7}], "serving": {"until": 5}, "signed_by": 3});
        let secret = json!({"data": {POOL_STORE: BASE64_STANDARD.encode(store.to_string())}});
        let row = |name: &str, until| (name.to_owned(), until);
        assert_eq!(pool_ends(&secret), [row("kubemacpool-ca", 7), row("kubemacpool-service", 5)]);
        for damaged in [json!({}), json!({"data": {POOL_STORE: "?"}})] {
            assert_eq!(pool_ends(&damaged), []);
        }
    }

    #[test]
    fn bundle_is_injected_only_where_a_service_of_ours_is_named() {
        let service = |namespace: &str| json!({"name": "virt-api", "namespace": namespace});
        let object = json!({"webhooks": [
            {"clientConfig": {"service": service("ns"), "caBundle": "old"}},
            {"clientConfig": {"service": service("ns"), "caBundle": "new"}},
            {"clientConfig": {"service": service("other")}},
            {"clientConfig": {"url": "https://x"}},
            {"clientConfig": {"service": {"name": "kubemacpool-service", "namespace": "ns"}}},
        ]});
        let patch = injection(&object, "ns", "new");
        let expected = json!([
            {"op": "test", "path": "/webhooks/0/clientConfig/service/name", "value": "virt-api"},
            {"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": "new"},
        ]);
        assert_eq!(json!(patch), expected);
        let api = json!({"spec": {"service": service("ns"), "insecureSkipTLSVerify": false}});
        assert_eq!(injection(&api, "ns", "new").operations().len(), 2);
    }

    #[test]
    fn installed_webhooks_and_apis_are_found_by_their_label() {
        let (label, value) = OURS.split_once('=').unwrap();
        let all = crate::install::manifests(&crate::install::Settings::default());
        let called = all.iter().filter(|one| {
            let kind = one["kind"].as_str().unwrap();
            kind == "APIService" || kind.ends_with("WebhookConfiguration")
        });
        let mut patched = 0;
        for object in called {
            assert_eq!(object["metadata"]["labels"][label], value);
            patched += usize::from(!injection(object, crate::defaults::NAMESPACE, "b").is_empty());
        }
        assert!(patched > 5, "{patched}");
    }

    #[test]
    fn certificates_have_the_names_that_the_other_side_checks() {
        let server = profile(SERVER, "ns");
        assert!(server.names.contains(&"virt-api.ns.svc".to_owned()) && server.server && !server.client);
        assert_eq!(profile(AGENT, "ns").common_name, "kubevirt.io:system:node:virt-handler");
        let client = profile(CLIENT, "ns");
        assert_eq!(client.common_name, "kubevirt.io:system:client:virt-handler");
        assert!(client.client && !client.server);
    }
}
