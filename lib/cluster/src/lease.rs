//! Leader election by a Lease object, with client-go's times: a lease lives 15 s, its holder renews it every 2 s and
//! stops working when it could not for 10 s.
//!
//! Whether another's lease has expired is decided by our own monotonic clock since its record last changed, never by
//! comparing clocks of two machines. A holder that ends gracefully releases the lease, so that the next takes it at once.

use std::future::Future;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::client::Client;
use crate::error::{Kind, Result};
use crate::key::Key;
use crate::resource::Resource;
use crate::stop::{self, Stop};
use crate::time::micro;

const LEASES: Resource = Resource::namespaced("coordination.k8s.io", "v1", "leases");

/// How long a lease lives, until when its holder must have renewed it, and how often both sides look.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Others may take a lease that was not renewed for so long. Whole seconds.
    pub lives: Duration,
    /// The holder stops working when it could not renew for so long.
    pub renew_within: Duration,
    /// Between two attempts.
    pub period: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            lives: Duration::from_secs(15),
            renew_within: Duration::from_secs(10),
            period: Duration::from_secs(2),
        }
    }
}

/// How long graceful work may take to end after the stop before the lease is given away anyway.
const GRACE: Duration = Duration::from_secs(20);

/// A lease that a replica tries to hold.
#[derive(Clone, Debug)]
pub struct Lease {
    client: Client,
    key: Key,
    identity: String,
    times: Times,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Record {
    metadata: Value,
    #[serde(default)]
    spec: Spec,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    #[serde(skip_serializing_if = "Option::is_none")]
    holder_identity: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_duration_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    acquire_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    renew_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease_transitions: Option<u64>,
}

/// The last observed state of the lease, and when it changed.
struct Observed {
    spec: Spec,
    at: Instant,
}

impl Lease {
    /// The lease `name` in `namespace`, for the replica `identity` (its pod's name).
    pub fn new(client: &Client, namespace: &str, name: &str, identity: &str) -> Self {
        let identity = identity.to_owned();
        Self { client: client.clone(), key: Key::new(namespace, name), identity, times: Times::default() }
    }

    /// With other times; for tests.
    #[must_use]
    pub fn times(mut self, times: Times) -> Self {
        self.times = times;
        self
    }

    /// Runs `work` whenever this replica holds the lease, until `stop`. `work` gets a stop of its own: it is set when
    /// the process is to end, and the work then has 20 s. When the lease is lost the work is dropped where it stands, so
    /// it must own all its tasks. If the work ends by itself it is started again.
    pub async fn hold<F: Future<Output = ()>>(&self, stop: &Stop, mut work: impl FnMut(Stop) -> F) {
        let mut observed = None;
        loop {
            tokio::select! {
                () = stop.wait() => return,
                () = self.acquire(&mut observed) => {}
            }
            tracing::info!(lease = %self.key, "this replica leads");
            let (stopper, stopped) = stop::pair();
            let ended = tokio::select! {
                () = work(stopped.clone()) => None,
                () = self.renew(&mut observed) => {
                    tracing::warn!(lease = %self.key, "lost the leader lease; this replica stops its work");
                    Some(())
                }
                () = async {
                    stop.wait().await;
                    stopper.stop();
                    tokio::time::sleep(GRACE).await;
                    tracing::warn!(lease = %self.key, "work did not end within {GRACE:?} of shutdown; aborting it");
                } => None,
            };
            if ended.is_none() {
                self.release().await;
            }
            observed = None;
            // Work that ends at once, and leases lost at once, are no busy loop.
            tokio::select! {
                () = stop.wait() => return,
                () = self.pause() => {}
            }
        }
    }

    async fn pause(&self) {
        tokio::time::sleep(self.times.period.mul_f64(1.0 + fastrand::f64() / 5.0)).await;
    }

    /// Returns when the lease is ours.
    async fn acquire(&self, observed: &mut Option<Observed>) {
        loop {
            match self.attempt(observed).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(lease = %self.key, error = error.chain(), "cannot take the lease")
                }
            }
            self.pause().await;
        }
    }

    /// Renews the lease; returns when it is lost.
    async fn renew(&self, observed: &mut Option<Observed>) {
        let mut renewed = Instant::now();
        loop {
            tokio::time::sleep(self.times.period).await;
            let left = self.times.renew_within.saturating_sub(renewed.elapsed());
            let began = Instant::now();
            match tokio::time::timeout(left, self.attempt(observed)).await {
                Ok(Ok(true)) => renewed = began,
                Ok(Ok(false)) => return,
                Ok(Err(error)) => {
                    tracing::warn!(lease = %self.key, error = error.chain(), "cannot renew the lease");
                }
                Err(_) => return,
            }
            if renewed.elapsed() >= self.times.renew_within {
                return;
            }
        }
    }

    /// Takes or renews the lease; whether it is ours afterwards.
    async fn attempt(&self, observed: &mut Option<Observed>) -> Result<bool> {
        let found = self.client.find::<Record>(LEASES, &self.key).await?;
        let Some(found) = found else {
            let object = self.object(&json!({"name": self.key.name()}), &self.taken(&Spec::default()));
            let created = self.client.create::<Value>(LEASES, self.key.namespace(), &object).await;
            return raced(created);
        };
        if observed.as_ref().is_none_or(|before| before.spec != found.spec) {
            *observed = Some(Observed { spec: found.spec.clone(), at: Instant::now() });
        }
        let since = observed.as_ref().map_or(Duration::ZERO, |observed| observed.at.elapsed());
        if !free(&found.spec, &self.identity, since) {
            return Ok(false);
        }
        let object = self.object(&found.metadata, &self.taken(&found.spec));
        raced(self.client.replace::<Value>(LEASES, &self.key, &object).await)
    }

    /// The record with us as its holder.
    fn taken(&self, before: &Spec) -> Spec {
        let now = micro();
        let ours = before.holder_identity.as_deref() == Some(self.identity.as_str());
        let transitions = before.lease_transitions.unwrap_or(0);
        Spec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: Some(self.times.lives.as_secs().max(1)),
            acquire_time: if ours { before.acquire_time.clone() } else { Some(now.clone()) },
            renew_time: Some(now),
            lease_transitions: Some(if ours { transitions } else { transitions + 1 }),
        }
    }

    fn object(&self, metadata: &Value, spec: &Spec) -> Value {
        json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec})
    }

    /// Gives the lease away, if it is ours.
    async fn release(&self) {
        let released = async {
            let Some(found) = self.client.find::<Record>(LEASES, &self.key).await? else { return Ok(()) };
            if found.spec.holder_identity.as_deref() != Some(self.identity.as_str()) {
                return Ok(());
            }
            let spec =
                Spec { holder_identity: Some(String::new()), lease_duration_seconds: Some(1), ..found.spec };
            let object = self.object(&found.metadata, &spec);
            raced(self.client.replace::<Value>(LEASES, &self.key, &object).await).map(drop)
        };
        match tokio::time::timeout(self.times.renew_within, released).await {
            Ok(Ok(())) => tracing::info!(lease = %self.key, "lease released"),
            Ok(Err(error)) => {
                tracing::warn!(lease = %self.key, error = error.chain(), "cannot release the leader lease; another replica takes over when it expires");
            }
            Err(_) => {
                tracing::warn!(lease = %self.key, "cannot release the leader lease in time; another replica takes over when it expires")
            }
        }
    }
}

/// Whether the lease may be taken: ours, released, or unchanged for as long as it lives.
fn free(spec: &Spec, identity: &str, unchanged_for: Duration) -> bool {
    match spec.holder_identity.as_deref() {
        None | Some("") => true,
        Some(holder) if holder == identity => true,
        Some(_) => unchanged_for >= Duration::from_secs(spec.lease_duration_seconds.unwrap_or(15)),
    }
}

/// Another replica was faster: that is an answer, not a failure.
fn raced(written: Result<Value>) -> Result<bool> {
    match written {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), Kind::Conflict | Kind::AlreadyExists) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_free_when_ours_released_or_expired() {
        let held = |holder: &str| Spec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            ..Spec::default()
        };
        let seconds = Duration::from_secs;
        for (spec, unchanged, expected) in [
            (Spec::default(), seconds(0), true),
            (held(""), seconds(0), true),
            (held("me"), seconds(0), true),
            (held("you"), seconds(14), false),
            (held("you"), seconds(15), true),
        ] {
            assert_eq!(free(&spec, "me", unchanged), expected, "{spec:?}");
        }
    }
}
