//! Writes to the cluster: the shared object of blocks, the Secret of certificates, the webhook's caBundle. Each by
//! compare-and-swap: of two replicas one writes, the other reads. Not here: which blocks are claimed (`blocks`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use cluster::follow::{News, follow};
use cluster::{Client, Key, Scope};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use serve::authority::Step;
use tokio::sync::watch;

use crate::blocks::{Book, BookChange, SETTLE};
use crate::certificates::Store;
use crate::config::{BLOCKS_MAP, CONFIGURATION, Config, HOOKS, MAPS, SECRET, SECRETS, WEBHOOKS};
use crate::error::{Error, Kind, Result};
use crate::state::{Known, State};
use crate::tls::{InUse, Material};

/// How often due writes are looked for.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// After how long without the right to write the object of blocks this process takes itself for the only replica, and how
/// often it looks whether it has got it.
const FORBIDDEN: Duration = Duration::from_secs(10);
/// Key of the object of blocks.
const BOOK: &str = "blocks.json";
/// Key of the Secret's state.
const STORE: &str = "store.json";

/// Where the blocks are written.
#[derive(Debug)]
enum Shelf {
    /// The ConfigMap that all replicas share.
    Shared,
    /// This process: the account may not write the ConfigMap, as that of upstream's manifests, which run one replica.
    Own(Option<Value>),
}

/// The object of blocks.
#[derive(Debug)]
struct Blocks<'a> {
    client: &'a Client,
    config: &'a Config,
    state: &'a State,
    shelf: Mutex<Shelf>,
}

/// Keeps our blocks until another process has taken them.
///
/// # Errors
/// [`Kind::Taken`] then.
pub(crate) async fn blocks(client: &Client, config: &Config, state: &State) -> Result<()> {
    let blocks = Blocks { client, config, state, shelf: Mutex::new(Shelf::Shared) };
    let scope = config.scope(BLOCKS_MAP);
    // An event may be older than our last write: the object is read again for our own line.
    let doubted = AtomicBool::new(false);
    let followed = follow::<Value>(client, MAPS, &scope, |news| {
        let doubt = match news {
            News::Present(_, object) => observe(state, &object).is_err() || !state.lock().ledger.has_line(),
            News::Gone(..) | News::Unreadable(..) => true,
            News::Begin | News::End | News::Lost(_) | News::Watching => false,
        };
        if doubt {
            doubted.store(true, Ordering::Relaxed);
        }
    });
    let error = tokio::select! {
        never = followed => match never {},
        error = blocks.keep(&doubted) => error,
    };
    if error.kind() != Kind::Forbidden {
        return Err(error);
    }
    tracing::warn!(
        error = error.chain(),
        "the account may not write the ConfigMap {BLOCKS_MAP}: this process takes itself for the only replica; apply the \
         manifest of this release to run two"
    );
    *blocks.shelf() = Shelf::Own(None);
    tokio::select! {
        error = blocks.keep(&doubted) => Err(error),
        error = blocks.allowed() => Err(error),
    }
}

impl Blocks<'_> {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what is due, until that ends for good: another process has our blocks, or the account may not write.
    async fn keep(&self, doubted: &AtomicBool) -> Error {
        let mut forbidden = None;
        loop {
            let doubt = doubted.swap(false, Ordering::Relaxed);
            match self.synchronize(doubt).await {
                // Another replica wrote first.
                Ok(false) => continue,
                Ok(true) => forbidden = None,
                Err(error) if error.kind() == Kind::Taken => return error,
                // The roles may be made a moment after this process.
                Err(error)
                    if error.kind() == Kind::Forbidden
                        && forbidden.get_or_insert_with(Instant::now).elapsed() >= FORBIDDEN =>
                {
                    return error;
                }
                Err(error) => {
                    tracing::warn!(
                        error = error.chain(),
                        "cannot write the address blocks of this replica; retrying"
                    );
                }
            }
            let now = self.state.now();
            self.state.lock().expire(now);
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until the account may write the ConfigMap, by making one without blocks. A replica that kept its blocks for itself
    /// ends then, and shares them from its next start on.
    async fn allowed(&self) -> Error {
        loop {
            tokio::time::sleep(FORBIDDEN).await;
            let (namespace, object) = (&self.config.namespace, self.new_object());
            let made = self.client.create::<IgnoredAny>(MAPS, namespace, &object).await.map_err(Error::from);
            if made.is_ok() || made.is_err_and(|error| error.kind() == Kind::Taken) {
                let text = "the account may write the ConfigMap kubemacpool-blocks now: this replica starts again to share it";
                return Error::new(Kind::Taken, text);
            }
        }
    }

    /// Reads the object, and gives nothing more out of blocks that are not ours by it. One that is gone or cannot be read is
    /// written again next, if we know its content.
    async fn read(&self) -> Result<Option<Value>> {
        let state = self.state;
        let own = match &*self.shelf() {
            Shelf::Shared => None,
            Shelf::Own(object) => Some(object.clone()),
        };
        let object = match own {
            Some(object) => object,
            None => self.client.find::<Value>(MAPS, &self.config.key(BLOCKS_MAP)).await?,
        };
        let now = state.now();
        let heard = match &object {
            Some(object) => observe(state, object),
            None => Err(Error::new(Kind::Invalid, format!("the ConfigMap {BLOCKS_MAP} was deleted"))),
        };
        let mut known = state.lock();
        match heard {
            Ok(()) => {}
            Err(error) if error.kind() == Kind::Invalid && known.ledger.has_written() => {
                tracing::warn!(
                    error = error.chain(),
                    "the ConfigMap {BLOCKS_MAP} is invalid; writing it again as last known"
                );
                known.ledger.lose(now);
            }
            Err(error) if error.kind() == Kind::Invalid && object_is_blank(object.as_ref()) => {
                known.ledger.read(Book::default(), now)?;
            }
            Err(error) => return Err(error),
        }
        known.keep_blocks_of_ledger(now + SETTLE);
        Ok(object)
    }

    /// The ConfigMap as this process makes it, without its data.
    fn new_object(&self) -> Value {
        let metadata = json!({"name": BLOCKS_MAP, "labels": self.config.labels});
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    }

    /// Writes the object over the one that was read.
    async fn write(&self, over: Option<&Value>, book: &Book) -> Result<()> {
        let data = json!({BOOK: book.text()});
        if let Shelf::Own(object) = &mut *self.shelf() {
            *object = Some(json!({"data": data}));
            return Ok(());
        }
        let (client, config) = (self.client, self.config);
        let mut object = over.map_or_else(|| self.new_object(), owned_by_others);
        object["data"] = data;
        let IgnoredAny = match over {
            None => client.create(MAPS, &config.namespace, &object).await?,
            Some(_) => client.replace(MAPS, &config.key(BLOCKS_MAP), &object).await?,
        };
        Ok(())
    }

    /// Writes what is due, or reads again; returns whether that is all. [`Kind::Taken`]: another process has our blocks.
    async fn synchronize(&self, doubt: bool) -> Result<bool> {
        let state = self.state;
        if !doubt && plan(&state.lock(), state.now()).is_none() {
            return Ok(true);
        }
        let (began, clock) = (state.now(), SystemTime::now());
        let object = self.read().await?;
        let turn = {
            let mut known = state.lock();
            let Some(mut turn) = plan(&known, began) else { return Ok(true) };
            // Nothing is given out of them from now on. When they are not written off in the end, the next reading gives them
            // back to us.
            let returned = known.spare_blocks(began);
            known.pool.retain_blocks(|block| returned.binary_search(&block).is_err());
            turn.give_back(&known.ledger.me().name, &returned);
            turn
        };
        match self.write(object.as_ref(), &turn.book).await {
            Ok(()) => {}
            Err(error) if error.kind() == Kind::Taken => return Ok(false),
            Err(error) => return Err(error),
        }
        let now = state.now();
        let mut known = state.lock();
        known.wrote(&turn, began, clock);
        for (runs, from) in [(&turn.fresh, now), (&turn.settling, now + SETTLE)] {
            for (first, count) in runs {
                (*first..first + count).for_each(|block| known.pool.add_block(block, from));
            }
        }
        Ok(true)
    }
}

/// Marks this replica as gone in the object, so that others may take our blocks over at once.
///
/// # Errors
/// When it cannot be read or written: others find out by themselves.
pub(crate) async fn leave(client: &Client, config: &Config, state: &State) -> Result<()> {
    let blocks = Blocks { client, config, state, shelf: Mutex::new(Shelf::Shared) };
    loop {
        let Some(object) = blocks.read().await? else { return Ok(()) };
        let Some(book) = state.lock().ledger.leave() else { return Ok(()) };
        match blocks.write(Some(&object), &book).await {
            Err(error) if error.kind() == Kind::Taken => {}
            // There is no such object.
            Err(error) if error.kind() == Kind::Forbidden => return Ok(()),
            written => return written,
        }
    }
}

/// Takes in the object's content. An empty one changes nothing.
fn observe(state: &State, object: &Value) -> Result<()> {
    let text = object.pointer(&format!("/data/{BOOK}")).and_then(Value::as_str);
    let book = Book::parse(text.unwrap_or_default())?;
    let now = state.now();
    state.lock().ledger.read(book, now)
}

/// The next write that is due.
fn plan(known: &Known, now: Duration) -> Option<BookChange> {
    let place = u64::from_ne_bytes(random());
    known.ledger.next_change(known.pool.range(), known.pool.free(now), place, now)
}

/// Whether there is no object, or one without a word of ours.
fn object_is_blank(object: Option<&Value>) -> bool {
    object.is_none_or(|object| object.pointer(&format!("/data/{BOOK}")).is_none())
}

/// An object to be written over the one that was read: with the metadata that others gave it.
fn owned_by_others(read: &Value) -> Value {
    let mut object = read.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

/// One object, as it was heard of last.
#[derive(Clone, Debug, Default)]
struct Observed {
    /// A listing is complete.
    listed: bool,
    /// It was met in the listing that goes on.
    met: bool,
    object: Option<Value>,
}

impl Observed {
    fn observe(&mut self, news: News<'_, Value>) {
        match news {
            News::Begin => self.met = false,
            News::Present(_, object) => (self.met, self.object) = (true, Some(object)),
            News::Unreadable(..) => self.met = true,
            News::Gone(..) => self.object = None,
            News::End => {
                self.listed = true;
                // It was deleted while it was not watched.
                self.object.take_if(|_| !self.met);
            }
            News::Lost(_) | News::Watching => {}
        }
    }
}

/// Keeps certificates in date, in use and known to the API server, until the process ends.
pub(crate) async fn certificates(client: &Client, config: &Config, in_use: &InUse) {
    let heard = watch::Sender::new([Observed::default(), Observed::default()]);
    let (of_secret, of_webhook) = (config.scope(SECRET), Scope::all().name(CONFIGURATION));
    let secret = follow::<Value>(client, SECRETS, &of_secret, |news| {
        heard.send_modify(|[secret, _]| secret.observe(news));
    });
    let configuration = follow::<Value>(client, WEBHOOKS, &of_webhook, |news| {
        heard.send_modify(|[_, configuration]| configuration.observe(news));
    });
    let kept = async {
        let mut changes = heard.subscribe();
        loop {
            let now = changes.borrow_and_update().clone();
            if now.iter().all(|one| one.listed)
                && let Err(error) = certify(client, config, in_use, &now).await
            {
                tracing::warn!(error = error.chain(), "cannot write the certificates; retrying");
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            // News of the two objects or the time, the first of them.
            let _either = tokio::time::timeout(POLL_INTERVAL, changes.changed()).await;
        }
    };
    let (_, _, ()) = tokio::join!(secret, configuration, kept);
}

/// Does the next step: takes what is in the Secret into use, publishes its authorities, and makes what is due.
async fn certify(
    client: &Client,
    config: &Config,
    in_use: &InUse,
    [secret, configuration]: &[Observed; 2],
) -> Result<()> {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs();
    let (store, step) = match adopt(config, in_use, secret.object.as_ref()) {
        Some(store) => {
            if !store.authorities.is_empty()
                && let Some(configuration) = &configuration.object
                && let Some(published) = publication(configuration, &BASE64.encode(store.bundle()))
            {
                // The next step waits for the event of this change, or of another writer's that came first.
                let key = Key::cluster(CONFIGURATION);
                return match client
                    .replace::<IgnoredAny>(WEBHOOKS, &key, &published)
                    .await
                    .map_err(Error::from)
                {
                    Err(error) if error.kind() != Kind::Taken => Err(error),
                    Ok(IgnoredAny) | Err(_) => Ok(()),
                };
            }
            let step = store.plan(config.intervals, since);
            (store, step)
        }
        // The certificate in use stays valid, and its authority is trusted for its whole time.
        None => (in_use.store().unwrap_or_default(), Some(Step::Authority)),
    };
    let Some(step) = step else { return Ok(()) };
    let hosts = config.hosts();
    let made = store.apply(&step, &hosts, config.intervals, since).or_else(|error| {
        tracing::warn!(
            error = error.chain(),
            "the certificate authorities in the Secret cannot be used; making a new one"
        );
        Store::default().apply(&Step::Authority, &hosts, config.intervals, since)
    })?;
    match write_secret(client, config, secret.object.as_ref(), &made).await {
        // Another replica was first: its certificate is as good.
        Err(error) if error.kind() == Kind::Taken => Ok(()),
        written => written,
    }
}

/// The store in the Secret, which is in use from now on if it has a certificate; `None` when there is none that can be
/// used: none yet, or a damaged one.
fn adopt(config: &Config, in_use: &InUse, secret: Option<&Value>) -> Option<Store> {
    let text = secret?.pointer("/data")?.get(STORE)?.as_str()?;
    let store: Option<Store> = BASE64.decode(text).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let Some(store) = store else {
        tracing::warn!(
            "the entry {STORE} of the Secret {SECRET} cannot be read; making a new certificate authority"
        );
        return None;
    };
    if in_use.store().as_ref() == Some(&store) {
        return Some(store);
    }
    let mut material = None;
    if store.serving.is_some() {
        let [.., host, _] = config.hosts();
        match Material::new(&store, &config.offer).and_then(|material| material.check(&store, host)) {
            Ok(usable) => material = Some(usable),
            Err(error) => {
                let error = error.chain();
                tracing::warn!(
                    error,
                    "the Secret {SECRET} cannot be used; making a new certificate authority"
                );
                return None;
            }
        }
        tracing::info!("a new certificate is in use");
    }
    in_use.install(store.clone(), material);
    Some(store)
}

/// Writes the store into the Secret and keeps its type and labels. A new one is as upstream's: of type kubernetes.io/tls, which
/// cannot be changed, with both of its keys from the beginning.
async fn write_secret(client: &Client, config: &Config, over: Option<&Value>, store: &Store) -> Result<()> {
    let encoded = |text: &str| Value::from(BASE64.encode(text));
    let (certificate, key) = match &store.serving {
        Some(serving) => (serving.certificate.as_str(), serving.key.as_str()),
        None => ("", ""),
    };
    let data = [
        (STORE, encoded(&serde_json::to_string(store).unwrap_or_default())),
        ("ca.crt", encoded(&store.bundle())),
        ("tls.crt", encoded(certificate)),
        ("tls.key", encoded(key)),
    ];
    let metadata = json!({"name": SECRET, "labels": config.labels});
    let new = json!({"type": "kubernetes.io/tls", "metadata": metadata});
    let mut secret = over.map_or(new, owned_by_others);
    // An object of a watch has them, one of a listing has not.
    secret["apiVersion"] = "v1".into();
    secret["kind"] = "Secret".into();
    if !secret.get("data").is_some_and(Value::is_object) {
        secret["data"] = json!({});
    }
    for (key, value) in data {
        secret["data"][key] = value;
    }
    let IgnoredAny = match over {
        None => client.create(SECRETS, &config.namespace, &secret).await?,
        Some(_) => client.replace(SECRETS, &config.key(SECRET), &secret).await?,
    };
    Ok(())
}

/// The configuration with which the API server trusts this bundle; `None` when it does already. It is written as a whole:
/// upstream's role allows no patch.
fn publication(configuration: &Value, bundle: &str) -> Option<Value> {
    let mut published = owned_by_others(configuration);
    let webhooks = published.get_mut("webhooks").and_then(Value::as_array_mut).into_iter().flatten();
    let ours = webhooks.filter(|webhook| HOOKS.iter().any(|hook| webhook["name"] == *hook));
    let mut stale = ours.filter(|webhook| webhook["clientConfig"]["caBundle"] != bundle).peekable();
    stale.peek()?;
    stale.for_each(|webhook| webhook["clientConfig"]["caBundle"] = bundle.into());
    // An object of a watch has them, one of a listing has not.
    published["apiVersion"] = "admissionregistration.k8s.io/v1".into();
    published["kind"] = "MutatingWebhookConfiguration".into();
    Some(published)
}

/// Random bytes of the system.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if rustls::crypto::aws_lc_rs::default_provider().secure_random.fill(&mut bytes).is_err() {
        tracing::warn!("the operating system gives no random numbers");
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
        let published = publication(&configuration, "new").unwrap();
        let webhooks = published["webhooks"].as_array().unwrap();
        let bundles: Vec<&Value> = webhooks.iter().map(|one| &one["clientConfig"]["caBundle"]).collect();
        assert_eq!(bundles, [&Value::Null, &"new".into(), &"new".into()]);
        assert_eq!(webhooks[1]["clientConfig"]["service"]["name"], "s");
        let configuration = json!({"webhooks": [{"name": HOOKS[0], "clientConfig": {"caBundle": "new"}}]});
        assert_eq!(publication(&configuration, "new"), None);
        assert_eq!(publication(&json!({"webhooks": "none"}), "new"), None);
    }
}
