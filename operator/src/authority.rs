//! An authority of the platform's own that is kept in a Secret: read, advanced step by step, and its bundle published in a
//! ConfigMap before a step that needs it. Two replicas that act at once meet in the Secret's resource version, and the
//! slower one starts over.
//!
//! The time of a step is decided by [`serve::authority`] (pure). Not here: trust in the bundle, use of the certificates.

use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cluster::{Apply, Client, Delete, Key, Resource};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use serve::authority::{Identity, Intervals, Profile, Step, Store};

const SECRETS: Resource = Resource::namespaced("", "v1", "secrets");
const CONFIG_MAPS: Resource = Resource::namespaced("", "v1", "configmaps");
const MANAGER: &str = "ferrovirt-certificates";

/// Where an authority is kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keeper<'a> {
    /// Reads and writes.
    pub(crate) client: &'a Client,
    /// Namespace of all objects.
    pub(crate) namespace: &'a str,
    /// The Secret with the store; also how the authorities' names begin.
    pub(crate) secret: &'a str,
    /// The ConfigMap with the bundle.
    pub(crate) bundle: &'a str,
    /// The entry of its data.
    pub(crate) entry: &'a str,
    /// When authorities and certificates are replaced.
    pub(crate) intervals: Intervals,
    /// How late the other side may learn of an authority; zero where it reads the bundle again and again.
    pub(crate) lead: Duration,
}

impl Keeper<'_> {
    /// Does what is due for an authority and the certificates of these names, and publishes the bundle; gives what is to be
    /// used.
    ///
    /// # Errors
    /// Those of the API server, and a store that is damaged.
    pub(crate) async fn advance(
        &self,
        names: &[&str],
        profile: impl Fn(&str) -> Profile,
        now: u64,
    ) -> cluster::Result<Store> {
        let (mut store, mut version) = self.read().await?;
        while let Some(step) = store.plan_late(names.iter().copied(), self.intervals, self.lead, now) {
            let name = if let Step::Sign(name, _) = &step { name.as_str() } else { "" };
            let next = store.apply(&step, self.secret, &profile(name), self.intervals, now);
            store = next.map_err(|error| {
                let key = Key::new(self.namespace, self.secret);
                let text = format!("cannot make a certificate; delete the Secret {key}, and the operator makes a new authority");
                cluster::Error::caused(cluster::Kind::Input, text, error)
            })?;
            version = Some(self.write(&store, version.as_deref()).await?);
            tracing::info!(authority = self.secret, ?step, "authority changed");
            self.publish(&store).await?;
        }
        self.publish(&store).await?;
        Ok(store)
    }

    async fn read(&self) -> cluster::Result<(Store, Option<String>)> {
        let key = Key::new(self.namespace, self.secret);
        let Some(secret) = self.client.find::<Value>(SECRETS, &key).await? else {
            return Ok((Store::default(), None));
        };
        let version = secret["metadata"]["resourceVersion"].as_str().map(str::to_owned);
        let text = secret["data"]["store"].as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
        // A damaged Secret is replaced: a new authority is published before anything is signed by it.
        let store = text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        Ok((store, version))
    }

    /// Writes the store, as it was read; gives the Secret's new version.
    async fn write(&self, store: &Store, version: Option<&str>) -> cluster::Result<String> {
        let text = serde_json::to_vec(store).map_err(|error| {
            cluster::Error::caused(cluster::Kind::Input, "cannot write the authority", error)
        })?;
        let newest = store.authorities.last();
        let key = Key::new(self.namespace, self.secret);
        let mut object = json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque",
            "metadata": {"name": self.secret, "namespace": self.namespace, "labels": labels()},
            "data": {"store": BASE64_STANDARD.encode(text),
                "tls.crt": newest.map(|one| BASE64_STANDARD.encode(&one.certificate)),
                "tls.key": newest.map(|one| BASE64_STANDARD.encode(&one.key))}});
        let written: Value = match version {
            None => self.client.create(SECRETS, self.namespace, &object).await?,
            Some(version) => {
                object["metadata"]["resourceVersion"] = json!(version);
                self.client.replace(SECRETS, &key, &object).await?
            }
        };
        Ok(written["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned())
    }

    /// Publishes the bundle; one that is as it should be is not written.
    async fn publish(&self, store: &Store) -> cluster::Result<()> {
        let bundle = store.bundle();
        let key = Key::new(self.namespace, self.bundle);
        let map: Option<Value> = self.client.find_cached(CONFIG_MAPS, &key).await?;
        if map.is_none_or(|map| map["data"][self.entry] != bundle.as_str()) {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap",
                "metadata": {"name": self.bundle, "namespace": self.namespace, "labels": labels()},
                "data": {self.entry: bundle}});
            let apply = Apply { manager: MANAGER, force: true };
            self.client.apply::<IgnoredAny>(CONFIG_MAPS, &key, &object, apply).await?;
        }
        Ok(())
    }

    /// Puts a certificate, and further entries, into a Secret that pods mount; equal entries are not written.
    ///
    /// # Errors
    /// Those of the API server.
    pub(crate) async fn deliver(
        &self,
        secret: &str,
        identity: &Identity,
        further: &[(&str, String)],
    ) -> cluster::Result<()> {
        let key = Key::new(self.namespace, secret);
        let mut data = json!({"tls.crt": BASE64_STANDARD.encode(&identity.certificate)});
        for (entry, text) in further {
            data[*entry] = json!(BASE64_STANDARD.encode(text));
        }
        let found: Option<Value> = self.client.find_cached(SECRETS, &key).await?;
        let other = found.as_ref().is_some_and(|found| found["type"] != "kubernetes.io/tls");
        if other {
            // A Secret's type cannot be changed.
            self.client.delete(SECRETS, &key, &Delete::default()).await?;
        }
        let has = |found: &Value| {
            data.as_object().into_iter().flatten().all(|(entry, text)| found["data"][entry] == *text)
        };
        if other || !found.as_ref().is_some_and(has) {
            data["tls.key"] = json!(BASE64_STANDARD.encode(&identity.key));
            let object = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": {"name": secret, "namespace": self.namespace, "labels": labels()},
                "data": data});
            let apply = Apply { manager: MANAGER, force: true };
            self.client.apply::<IgnoredAny>(SECRETS, &key, &object, apply).await?;
        }
        Ok(())
    }
}

fn labels() -> Value {
    json!({"app.kubernetes.io/managed-by": "ferrovirt-operator", "app.kubernetes.io/part-of": "ferrovirt"})
}
