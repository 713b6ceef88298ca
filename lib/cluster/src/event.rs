//! Events about objects, as `kubectl describe` shows them.
//!
//! Written as core/v1 Events, which every client reads and which the API server also shows under events.k8s.io/v1. Equal
//! events of an object become one with a count; more than ten different ones of one reason within ten minutes become one
//! summary; an object that causes more than 25 at once gets one each five minutes (client-go's rules and limits). Publishing
//! never blocks and never fails: a full queue drops events and counts them.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::client::Client;
use crate::key::Key;
use crate::resource::Resource;
use crate::time;

const EVENTS: Resource = Resource::namespaced("", "v1", "events");
/// Events that wait to be written.
const QUEUE: usize = 1024;
/// Events kept to detect equal ones; beyond this number the oldest half is dropped.
const REMEMBERED: usize = 4096;
/// Different messages of one reason that are shown apart, and for how long they are counted together.
const APART: u32 = 10;
const TOGETHER: Duration = Duration::from_secs(600);
/// Events of one object at once, and how often one more is allowed.
const BURST: f64 = 25.0;
const REFILL: Duration = Duration::from_secs(300);
/// The API server refuses longer messages.
const MOST_MESSAGE: usize = 1024;

/// The object of an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Reference {
    /// `apiVersion` of the object.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its namespace; empty for a cluster-scoped object: such events go to `default`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid; `kubectl describe` shows only events with the uid of the present object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}

/// Whether an event needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum Type {
    /// The course of things.
    Normal,
    /// Something that may need action.
    Warning,
}

/// Publishes events. Clones share it.
#[derive(Clone, Debug)]
pub struct Events {
    sender: mpsc::Sender<Event>,
    dropped: Arc<AtomicU64>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Event {
    about: Reference,
    kind: Type,
    reason: String,
    message: String,
}

impl Events {
    /// Starts a publisher for `component` (the program or controller that `kubectl describe` shows as the source) on
    /// `instance` (its pod). Needs a tokio runtime; it ends with its last clone.
    pub fn start(client: &Client, component: &str, instance: &str) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let writer = Writer {
            client: client.clone(),
            component: component.to_owned(),
            instance: instance.to_owned(),
            written: HashMap::new(),
            limits: Limits::default(),
        };
        tokio::spawn(writer.run(receiver));
        Self { sender, dropped: Arc::default() }
    }

    /// Publishes an event. `reason` is one CamelCase word for programs, `message` a sentence for people.
    pub fn publish(&self, about: &Reference, kind: Type, reason: &str, message: &str) {
        let mut message = message.to_owned();
        if message.len() > MOST_MESSAGE {
            let end = (0..=MOST_MESSAGE - 3).rev().find(|end| message.is_char_boundary(*end));
            message.truncate(end.unwrap_or(0));
            message.push_str("...");
        }
        let event = Event { about: about.clone(), kind, reason: reason.to_owned(), message };
        if self.sender.try_send(event).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Events lost because too many waited to be written.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

/// Result of applying the limits to an event.
#[derive(Debug, PartialEq)]
enum Allowed {
    Apart,
    Together,
    No,
}

/// Counts of recent events: pure, the time is given.
#[derive(Default)]
struct Limits {
    objects: HashMap<u64, (f64, Instant)>,
    reasons: HashMap<u64, (u32, Instant)>,
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl Limits {
    fn judge(&mut self, event: &Event, new: bool, now: Instant) -> Allowed {
        for map in [self.objects.len(), self.reasons.len()] {
            if map > REMEMBERED {
                self.objects.retain(|_, (_, at)| now.duration_since(*at) < REFILL);
                self.reasons.retain(|_, (_, at)| now.duration_since(*at) < TOGETHER);
            }
        }
        let (tokens, at) = self.objects.entry(hash(&event.about)).or_insert((BURST, now));
        *tokens = (*tokens + now.duration_since(*at).as_secs_f64() / REFILL.as_secs_f64()).min(BURST);
        *at = now;
        if *tokens < 1.0 {
            return Allowed::No;
        }
        *tokens -= 1.0;
        let reason = hash(&(&event.about, event.kind, &event.reason));
        let (count, since) = self.reasons.entry(reason).or_insert((0, now));
        if now.duration_since(*since) > TOGETHER {
            (*count, *since) = (0, now);
        }
        *count += u32::from(new);
        if *count > APART { Allowed::Together } else { Allowed::Apart }
    }
}

struct Writer {
    client: Client,
    component: String,
    instance: String,
    /// By the hash of an event: its object's key, how often it came, when it last did.
    written: HashMap<u64, (Key, u64, Instant)>,
    limits: Limits,
}

impl Writer {
    async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        while let Some(event) = events.recv().await {
            self.write(event).await;
        }
    }

    async fn write(&mut self, mut event: Event) {
        let now = Instant::now();
        let known = self.written.contains_key(&hash(&event));
        match self.limits.judge(&event, !known, now) {
            Allowed::Apart => {}
            Allowed::Together if known => {}
            Allowed::Together => {
                let combined = Event { message: String::new(), ..event.clone() };
                let id = hash(&combined);
                event.message = format!("(combined from similar events): {}", event.message);
                return self.publish(id, &event).await;
            }
            Allowed::No => return,
        }
        self.publish(hash(&event), &event).await;
    }

    async fn publish(&mut self, id: u64, event: &Event) {
        if let Some((key, count, at)) = self.written.get_mut(&id) {
            *count += 1;
            *at = Instant::now();
            let patch = json!({"count": *count, "lastTimestamp": time::seconds(), "message": event.message});
            let key = key.clone();
            match self.client.merge_patch::<Value>(EVENTS, &key, &patch).await {
                Ok(_) => return,
                // It lived for its hour; another one is made.
                Err(error) if error.is_not_found() => {
                    self.written.remove(&id);
                }
                Err(error) => {
                    tracing::debug!(error = error.chain(), reason = event.reason, "cannot count an event");
                    return;
                }
            }
        }
        if self.written.len() >= REMEMBERED {
            let mut times: Vec<Instant> = self.written.values().map(|(_, _, at)| *at).collect();
            times.sort_unstable();
            let middle = times[times.len() / 2];
            self.written.retain(|_, (_, _, at)| *at > middle);
        }
        let namespace = if event.about.namespace.is_empty() { "default" } else { &event.about.namespace };
        let name = format!("{}.{:016x}", event.about.name, fastrand::u64(..));
        let now = time::seconds();
        let object = json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": namespace},
            "involvedObject": event.about, "type": event.kind, "reason": event.reason, "message": event.message,
            "source": {"component": self.component}, "reportingComponent": self.component,
            "reportingInstance": self.instance, "firstTimestamp": now, "lastTimestamp": now, "count": 1,
        });
        match self.client.create::<Value>(EVENTS, namespace, &object).await {
            Ok(_) => {
                self.written.insert(id, (Key::new(namespace, &name), 1, Instant::now()));
            }
            // A namespace that is being deleted takes no events.
            Err(error) => {
                tracing::debug!(error = error.chain(), reason = event.reason, "cannot write an event")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(object: &str, message: usize) -> Event {
        let about = Reference { name: object.to_owned(), ..Reference::default() };
        Event { about, kind: Type::Normal, reason: "R".to_owned(), message: message.to_string() }
    }

    #[test]
    fn different_messages_of_one_reason_are_combined_after_ten() {
        let (mut limits, now) = (Limits::default(), Instant::now());
        for message in 0..10 {
            assert_eq!(limits.judge(&event("a", message), true, now), Allowed::Apart, "{message}");
        }
        assert_eq!(limits.judge(&event("a", 11), true, now), Allowed::Together);
        assert_eq!(limits.judge(&event("b", 11), true, now), Allowed::Apart, "another object");
        let later = now + TOGETHER + Duration::from_secs(1);
        assert_eq!(limits.judge(&event("a", 12), true, later), Allowed::Apart, "ten minutes later");
    }

    #[test]
    fn one_object_cannot_flood_the_api_server() {
        let (mut limits, now) = (Limits::default(), Instant::now());
        let passed = (0..100).filter(|_| limits.judge(&event("a", 0), false, now) != Allowed::No).count();
        assert_eq!(passed, 25);
        let later = now + REFILL + Duration::from_secs(1);
        assert_eq!(limits.judge(&event("a", 0), false, later), Allowed::Apart);
        assert_eq!(limits.judge(&event("a", 0), false, later), Allowed::No);
    }
}
