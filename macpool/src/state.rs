//! What a replica knows, in one place: the pool, what runs, whose blocks are whose, what namespaces say. One lock, held
//! for a decision and never while waiting.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use tokio::sync::{mpsc, watch};

use crate::blocks::Ledger;
use crate::certificates::Store;
use crate::collision::{Collision, Runner, Running};
use crate::manifest;
use crate::namespaces::{Labels, POLICY, Policy, Selector};
use crate::tls::Material;
use api::net::pool::{Pool, Stamp, View};

/// Collisions that wait to be told; more are counted only.
const COLLISIONS_MAX: usize = 1024;

/// A replica.
#[derive(Debug)]
pub(crate) struct State {
    started: Instant,
    known: Mutex<Known>,
    /// The certificates in use, when there are some.
    pub(crate) material: watch::Sender<Option<Material>>,
    /// The store that these are of.
    pub(crate) store: Mutex<Option<Store>>,
    /// Collisions that are to be told.
    pub(crate) collisions: mpsc::Sender<Collision>,
    /// Objects that brought an address that somebody else had.
    pub(crate) duplicates: AtomicU64,
    /// Reviews that were answered.
    pub(crate) reviews: AtomicU64,
}

/// What changes.
#[derive(Debug)]
pub(crate) struct Known {
    /// Who holds what.
    pub(crate) pool: Pool,
    /// Whose blocks are whose.
    pub(crate) ledger: Ledger,
    /// What runs.
    pub(crate) running: Running,
    /// The policy where a namespace says none.
    pub(crate) policy: Policy,
    namespaces: HashMap<String, (Labels, Option<Policy>)>,
    /// Which namespaces are ours: the selectors of the machines' and the pods' webhook. None is known: all.
    pub(crate) selectors: [Option<Selector>; 2],
    /// Listings that are complete.
    loaded: [bool; 4],
}

/// What has to be loaded before anything is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// VirtualMachines.
    Machines,
    /// VirtualMachineInstances.
    Instances,
    /// Pods.
    Pods,
    /// Namespaces.
    Namespaces,
}

impl State {
    /// A replica that knows nothing yet, and where the collisions come out that it finds.
    pub(crate) fn new(pool: Pool, ledger: Ledger, policy: Policy) -> (Self, mpsc::Receiver<Collision>) {
        let (collisions, told) = mpsc::channel(COLLISIONS_MAX);
        let known = Known {
            pool,
            ledger,
            running: Running::default(),
            policy,
            namespaces: HashMap::new(),
            selectors: [None, None],
            loaded: [false; 4],
        };
        let state = Self {
            started: Instant::now(),
            known: Mutex::new(known),
            material: watch::Sender::new(None),
            store: Mutex::new(None),
            collisions,
            duplicates: AtomicU64::new(0),
            reviews: AtomicU64::new(0),
        };
        (state, told)
    }

    /// Since the program's start.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// What is known, to look at and to change.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object is there.
    pub(crate) fn observe(&self, view: View, object: &Value) {
        let Some(seen) = manifest::seen(view, object) else { return };
        let mut known = self.lock();
        if let Some(prefix) = &seen.prefix {
            known.pool.named(&seen.owner, prefix, &seen.macs);
        }
        known.pool.observe(&seen.owner, seen.stamp, seen.macs);
        if view == View::Machine {
            return;
        }
        let collisions = known.running.set(&seen.owner, Runner::read(view, object));
        for collision in collisions.into_iter().filter_map(|collision| known.ours(collision)) {
            tracing::warn!(mac = %collision.mac, "running guests have the same MAC address");
            // One that finds no place is on the metrics page.
            drop(self.collisions.try_send(collision));
        }
    }

    /// An object is gone.
    pub(crate) fn forget(&self, view: View, object: &Value) {
        let Some(seen) = manifest::seen(view, object) else { return };
        let mut known = self.lock();
        known.pool.forget(&seen.owner, seen.stamp);
        known.running.set(&seen.owner, None);
    }

    /// Whether reviews can be answered: everything is loaded, and there is a block and a certificate.
    pub(crate) fn is_ready(&self) -> bool {
        let known = self.lock();
        known.loaded.iter().all(|loaded| *loaded)
            && known.ledger.has_written()
            && self.material.borrow().is_some()
    }

    /// Counts a review, and the duplicates it brought.
    pub(crate) fn count(&self, duplicates: usize) {
        self.reviews.fetch_add(1, Ordering::Relaxed);
        self.duplicates.fetch_add(duplicates as u64, Ordering::Relaxed);
    }
}

impl Known {
    /// A listing is complete.
    pub(crate) fn set_loaded(&mut self, part: Part) {
        if let Some(loaded) = self.loaded.get_mut(part as usize) {
            *loaded = true;
        }
    }

    /// A namespace is there.
    pub(crate) fn observe_namespace(&mut self, object: &Value) {
        let Some(name) = manifest::metadata(object, "name") else { return };
        let labels = object.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
        let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        let policy = manifest::annotation(object, POLICY).and_then(|text| {
            let policy = text.parse();
            if let Err(error) = &policy {
                tracing::warn!(namespace = name, %error, "the annotation {POLICY} is ignored");
            }
            policy.ok()
        });
        self.namespaces.insert(name.to_owned(), (labels.collect(), policy));
    }

    /// A namespace is gone.
    pub(crate) fn forget_namespace(&mut self, object: &Value) {
        self.namespaces.remove(manifest::metadata(object, "name").unwrap_or_default());
    }

    /// All namespaces are about to be told anew.
    pub(crate) fn forget_namespaces(&mut self) {
        self.namespaces.clear();
    }

    /// What becomes of duplicates in a namespace.
    pub(crate) fn policy_of(&self, namespace: &str) -> Policy {
        self.namespaces.get(namespace).and_then(|(_, policy)| *policy).unwrap_or(self.policy)
    }

    /// All collisions among what is ours.
    pub(crate) fn collisions(&self) -> Vec<Collision> {
        self.running.collisions().filter_map(|collision| self.ours(collision)).collect()
    }

    /// A collision without objects in namespaces that are not ours, if one is left.
    fn ours(&self, mut collision: Collision) -> Option<Collision> {
        collision.between.retain(|(owner, _)| {
            let selector = match owner.view {
                View::Machine | View::Instance => &self.selectors[0],
                View::Pod => &self.selectors[1],
            };
            let labels = self.namespaces.get(&*owner.namespace).map(|(labels, _)| labels);
            selector.as_ref().is_none_or(|selector| labels.is_some_and(|labels| selector.matches(labels)))
        });
        (collision.between.len() > 1).then_some(collision)
    }
}

/// Now, for annotations.
pub(crate) fn stamp() -> Stamp {
    let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Stamp::try_from(since.as_nanos()).unwrap_or(Stamp::MAX)
}
