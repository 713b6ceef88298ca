//! What is written to the cluster: the shared object of blocks, the Secret of certificates, the webhook's caBundle. Each
//! by compare-and-swap: of two replicas one writes, the other reads.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::Method;
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::apiserver::{News, call, follow, resource_version};
use crate::blocks::{Book, SETTLE, Turn};
use crate::certificates::Store;
use crate::config::{BLOCKS_MAP, CONFIGURATION, Config, HOOKS, SECRET};
use crate::error::{Kind, Result};
use crate::state::State;
use crate::tls::Material;

/// How often it is looked whether something is due.
const TICK: Duration = Duration::from_secs(1);
/// Key of the object of blocks.
const BOOK: &str = "blocks.json";
/// Key of the Secret's state.
const STORE: &str = "store.json";

/// Keeps our blocks until another process has taken them.
///
/// # Errors
/// [`Kind::Taken`] then.
pub(crate) async fn blocks(client: &Client, config: &Config, state: &Arc<State>) -> Result<()> {
    let maps = format!("/api/v1/namespaces/{}/configmaps", config.namespace);
    let query = format!("fieldSelector=metadata.name%3D{BLOCKS_MAP}");
    // News may be older than what we wrote: what they say of our own line is read again.
    let doubted = AtomicBool::new(false);
    let followed = follow(client, &maps, &query, |news| {
        if let News::There(object) = news
            && hear(state, object).is_err()
        {
            doubted.store(true, Ordering::Relaxed);
        }
    });
    let kept = async {
        loop {
            let doubt = doubted.swap(false, Ordering::Relaxed);
            match turn(client, state, &maps, doubt).await {
                // Somebody else wrote meanwhile.
                Ok(false) => continue,
                Ok(true) => {}
                Err(error) if error.kind() == Kind::Taken => return error,
                Err(error) => {
                    tracing::warn!(error = error.chain(), "our blocks cannot be kept; trying again");
                }
            }
            let now = state.now();
            state.lock().pool.expire(now);
            tokio::time::sleep(TICK).await;
        }
    };
    tokio::select! {
        () = followed => Ok(()),
        error = kept => Err(error),
    }
}

/// What the object says.
fn hear(state: &State, object: &Value) -> Result<()> {
    let text = object.pointer(&format!("/data/{BOOK}")).and_then(Value::as_str);
    let book = match text.map(Book::parse) {
        None => Book::default(),
        Some(book) => book?,
    };
    let now = state.now();
    state.lock().ledger.read(book, now)
}

/// What is due.
fn plan(state: &State) -> Option<Turn> {
    let known = state.lock();
    let now = state.now();
    let place = u64::from_ne_bytes(random());
    known.ledger.turn(known.pool.range(), known.pool.free(now), place, now)
}

/// Writes what is due, or reads anew; gives whether that is all. [`Kind::Taken`]: another process has our blocks.
async fn turn(client: &Client, state: &State, maps: &str, doubt: bool) -> Result<bool> {
    if !doubt && plan(state).is_none() {
        return Ok(true);
    }
    let path = format!("{maps}/{BLOCKS_MAP}");
    let began = state.now();
    let object = match call(client, Method::GET, &path, None).await {
        Ok(object) => Some(object),
        Err(error) if error.kind() == Kind::Invalid => None,
        Err(error) => return Err(error),
    };
    match &object {
        Some(object) => hear(state, object)?,
        None => state.lock().ledger.read(Book::default(), began)?,
    }
    let Some(turn) = plan(state) else { return Ok(true) };
    let mut metadata = json!({"name": BLOCKS_MAP});
    let data = json!({BOOK: turn.book.text()});
    let written = match object.as_ref().and_then(resource_version) {
        None => {
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
            call(client, Method::POST, maps, Some(&object)).await
        }
        Some(version) => {
            metadata["resourceVersion"] = version.into();
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
            call(client, Method::PUT, &path, Some(&object)).await
        }
    };
    match written {
        Ok(_) => {}
        Err(error) if error.kind() == Kind::Taken => return Ok(false),
        Err(error) => return Err(error),
    }
    let now = state.now();
    let mut known = state.lock();
    known.ledger.wrote(&turn, began);
    for (runs, from) in [(&turn.fresh, now), (&turn.settling, now + SETTLE)] {
        for (first, count) in runs {
            (*first..first + count).for_each(|block| known.pool.add_block(block, from));
        }
    }
    Ok(true)
}

/// The Secret and the webhook's configuration, as they were heard of last.
#[derive(Clone, Debug, Default)]
struct Heard {
    /// Both listings are complete.
    secret_listed: bool,
    configuration_listed: bool,
    secret: Option<Value>,
    configuration: Option<Value>,
}

/// Keeps certificates in date, in use and known to the API server, until the process ends.
pub(crate) async fn certificates(client: &Client, config: &Config, state: &Arc<State>) {
    let secrets = format!("/api/v1/namespaces/{}/secrets", config.namespace);
    let webhooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";
    let heard = watch::Sender::new(Heard::default());
    let named = |name: &str| format!("fieldSelector=metadata.name%3D{name}");
    let (of_secret, of_webhook) = (named(SECRET), named(CONFIGURATION));
    let secret = follow(client, &secrets, &of_secret, |news| {
        heard.send_modify(|heard| match news {
            News::Begin => {}
            News::There(object) => heard.secret = Some(object.clone()),
            News::Gone(_) => heard.secret = None,
            News::End => heard.secret_listed = true,
        });
    });
    let configuration = follow(client, webhooks, &of_webhook, |news| {
        heard.send_modify(|heard| match news {
            News::Begin => {}
            News::There(object) => heard.configuration = Some(object.clone()),
            News::Gone(_) => heard.configuration = None,
            News::End => heard.configuration_listed = true,
        });
    });
    let kept = async {
        let mut changes = heard.subscribe();
        loop {
            let now = heard.borrow().clone();
            if now.secret_listed
                && now.configuration_listed
                && let Err(error) = certify(client, config, state, &secrets, webhooks, &now).await
            {
                tracing::warn!(error = error.chain(), "certificates cannot be kept; trying again");
                tokio::time::sleep(TICK).await;
            }
            // Whatever comes first: news of the two objects, or time.
            let _either = tokio::time::timeout(TICK, changes.changed()).await;
        }
    };
    tokio::join!(secret, configuration, kept);
}

/// Does the next step: takes what is in the Secret into use, publishes its authorities, and makes what is due.
async fn certify(
    client: &Client,
    config: &Config,
    state: &State,
    secrets: &str,
    webhooks: &str,
    heard: &Heard,
) -> Result<()> {
    let text = |secret: &Value| {
        let bytes = BASE64.decode(secret.pointer("/data")?.get(STORE)?.as_str()?).ok()?;
        serde_json::from_slice::<Store>(&bytes).ok()
    };
    let store = heard.secret.as_ref().and_then(text).unwrap_or_default();
    let in_use = state.store.lock().unwrap_or_else(PoisonError::into_inner).replace(store.clone());
    if store.serving.is_some() && in_use.as_ref() != Some(&store) {
        let material = Material::new(&store, config.only_tls13)?;
        state.material.send_replace(Some(material));
        tracing::info!("a new certificate is in use");
    }
    if !store.authorities.is_empty()
        && let Some(configuration) = &heard.configuration
        && let patch = publication(configuration, &BASE64.encode(store.bundle()))
        && !patch.is_empty()
    {
        // What is due waits for this to be heard of.
        let path = format!("{webhooks}/{CONFIGURATION}");
        call(client, Method::PATCH, &path, Some(&Value::Array(patch))).await?;
        return Ok(());
    }
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    let Some(step) = store.plan(config.intervals, since.as_secs()) else { return Ok(()) };
    let store = store.apply(step, &config.hosts(), config.intervals, since.as_secs())?;
    let encoded = |text: &str| BASE64.encode(text);
    let mut secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET},
        "data": {
            STORE: encoded(&serde_json::to_string(&store).unwrap_or_default()),
            "ca.crt": encoded(&store.bundle()),
        },
    });
    if let Some(serving) = &store.serving {
        secret["data"]["tls.crt"] = encoded(&serving.certificate).into();
        secret["data"]["tls.key"] = encoded(&serving.key).into();
    }
    let written = match heard.secret.as_ref().and_then(resource_version) {
        None => call(client, Method::POST, secrets, Some(&secret)).await,
        Some(version) => {
            secret["metadata"]["resourceVersion"] = version.into();
            call(client, Method::PUT, &format!("{secrets}/{SECRET}"), Some(&secret)).await
        }
    };
    match written {
        // Another replica was first: its certificate is as good.
        Err(error) if error.kind() == Kind::Taken => Ok(()),
        written => written.map(drop),
    }
}

/// What has to change for the API server to trust this bundle.
fn publication(configuration: &Value, bundle: &str) -> Vec<Value> {
    let webhooks = configuration.get("webhooks").and_then(Value::as_array).into_iter().flatten().enumerate();
    let ours = webhooks.filter(|(_, webhook)| HOOKS.iter().any(|hook| webhook["name"] == *hook));
    let stale = ours.filter(|(_, webhook)| webhook["clientConfig"]["caBundle"] != bundle);
    let patch = |(index, webhook): (usize, &Value)| {
        [
            json!({"op": "test", "path": format!("/webhooks/{index}/name"), "value": webhook["name"]}),
            json!({"op": "add", "path": format!("/webhooks/{index}/clientConfig/caBundle"), "value": bundle}),
        ]
    };
    stale.flat_map(patch).collect()
}

/// Random bytes of the system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if rustls::crypto::aws_lc_rs::default_provider().secure_random.fill(&mut bytes).is_err() {
        tracing::warn!("the system gives no random numbers");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_webhooks_get_the_bundle_and_only_when_they_have_another() {
        let configuration = json!({"webhooks": [
            {"name": "other", "clientConfig": {}},
            {"name": HOOKS[1], "clientConfig": {"service": {"name": "s"}}},
            {"name": HOOKS[0], "clientConfig": {"caBundle": "old"}},
        ]});
        let patch = publication(&configuration, "new");
        let paths: Vec<&str> = patch.iter().filter_map(|one| one["path"].as_str()).collect();
        let expected = [
            "/webhooks/1/name",
            "/webhooks/1/clientConfig/caBundle",
            "/webhooks/2/name",
            "/webhooks/2/clientConfig/caBundle",
        ];
        assert_eq!(paths, expected);
        let configuration = json!({"webhooks": [{"name": HOOKS[0], "clientConfig": {"caBundle": "new"}}]});
        assert!(publication(&configuration, "new").is_empty());
        assert!(publication(&json!({"webhooks": "none"}), "new").is_empty());
    }
}
