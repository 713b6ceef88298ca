//! A replica's knowledge, in one place: the pool, running objects, owners of blocks, namespaces' policies. One lock, held for
//! a decision and never while waiting. Not here: writes to the cluster (`store`).

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use cluster::follow::News;
use serde_json::Value;

use crate::blocks::{BookChange, FENCE, Ledger, RETURNED_MAX, enough, has};
use crate::collision::{Collision, Runner, Running};
use crate::fields;
use crate::namespaces::{Labels, POLICY, Policy, Selector};
use crate::tls::InUse;
use api::net::pool::{Block, Pool, Stamp, View};

/// How long after a watch is open again every change of the time without one has come. Only a list is complete at a known
/// moment.
const CATCH_UP: Duration = Duration::from_secs(5);
/// How often it is looked whether everything is loaded.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A replica.
#[derive(Debug)]
pub(crate) struct State {
    started: Instant,
    known: Mutex<Known>,
    /// The certificates in use.
    pub(crate) certificates: InUse,
    /// The process ends.
    leaving: AtomicBool,
    /// Addresses that several objects had at the start, and objects that came with an address of another one since.
    pub(crate) duplicates: AtomicU64,
    /// Those of the start are counted.
    counted: AtomicBool,
    /// Given addresses that were decided without the replica that has their block, as that did not answer.
    pub(crate) unanswered: AtomicU64,
    /// Reviews that were answered.
    pub(crate) reviews: AtomicU64,
}

/// The part that changes.
#[derive(Debug)]
pub(crate) struct Known {
    /// Owners of addresses.
    pub(crate) pool: Pool,
    /// Owners of blocks.
    pub(crate) ledger: Ledger,
    /// Running objects.
    pub(crate) running: Running,
    /// Policy of namespaces without one.
    pub(crate) policy: Policy,
    namespaces: HashMap<String, (Labels, Option<Policy>)>,
    /// Those that were not met yet in the listing that goes on.
    unmet: HashSet<String>,
    /// Which namespaces are ours: the selectors of the machines' and the pods' webhook. None is known: all.
    pub(crate) selectors: [Option<Selector>; 2],
    /// When our line in the object of blocks was last written, by the machine's clock.
    written: Option<SystemTime>,
    /// The problem of the ConfigMap's range, until an event reports it.
    pub(crate) complaint: Option<String>,
    /// Listings that are complete.
    loaded: [bool; 4],
    /// From when on every change of the objects has come; `None` while they are not followed.
    current: [Option<Duration>; 4],
}

/// A listing that has to be loaded before reviews are answered.
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
    /// A replica that knows nothing yet.
    pub(crate) fn new(pool: Pool, ledger: Ledger, policy: Policy) -> Self {
        let known = Known {
            pool,
            ledger,
            running: Running::default(),
            policy,
            namespaces: HashMap::new(),
            unmet: HashSet::new(),
            selectors: [None, None],
            written: None,
            complaint: None,
            loaded: [false; 4],
            current: [None; 4],
        };
        Self {
            started: Instant::now(),
            known: Mutex::new(known),
            certificates: InUse::default(),
            leaving: AtomicBool::new(false),
            duplicates: AtomicU64::new(0),
            counted: AtomicBool::new(false),
            unanswered: AtomicU64::new(0),
            reviews: AtomicU64::new(0),
        }
    }

    /// Since the program's start.
    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Locks the part that changes.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An object is there.
    pub(crate) fn observe(&self, view: View, object: &Value) {
        let Some(seen) = fields::read(view, object) else { return };
        let mut known = self.lock();
        if let Some(prefix) = &seen.prefix {
            known.pool.named(&seen.owner, prefix, &seen.macs);
        }
        known.pool.observe(&seen.owner, seen.stamp, seen.macs);
        if view != View::Machine {
            known.running.set(&seen.owner, Runner::read(view, object));
        }
    }

    /// An object is gone.
    pub(crate) fn forget(&self, view: View, object: &Value) {
        let Some(seen) = fields::read(view, object) else { return };
        let mut known = self.lock();
        known.pool.forget(&seen.owner, seen.stamp);
        known.running.set(&seen.owner, None);
    }

    /// Whether reviews can be answered: everything is loaded, and there is a block and a certificate.
    pub(crate) fn is_ready(&self) -> bool {
        let known = self.lock();
        known.loaded.iter().all(|loaded| *loaded)
            && known.ledger.has_written()
            && self.certificates.material().is_some()
    }

    /// Waits until reviews can be answered.
    pub(crate) async fn ready(&self) {
        while !self.is_ready() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// The process ends: no more callers are accepted.
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Whether others are to come here.
    pub(crate) fn is_open(&self) -> bool {
        self.is_ready() && !self.leaving.load(Ordering::Relaxed)
    }

    /// Counts the addresses that several objects have, once, as soon as all objects are known.
    pub(crate) fn count_shared(&self) {
        let known = self.lock();
        if known.loaded.iter().all(|loaded| *loaded) && !self.counted.swap(true, Ordering::Relaxed) {
            self.duplicates.fetch_add(known.pool.shared() as u64, Ordering::Relaxed);
        }
    }

    /// Counts a review, and the duplicates it brought.
    pub(crate) fn count(&self, duplicates: usize) {
        self.reviews.fetch_add(1, Ordering::Relaxed);
        self.duplicates.fetch_add(duplicates as u64, Ordering::Relaxed);
    }
}

impl Known {
    /// A list is complete.
    pub(crate) fn set_loaded(&mut self, part: Part, now: Duration) {
        self.loaded[part as usize] = true;
        self.current[part as usize] = Some(now);
    }

    /// Changes are missed until the objects are watched or listed again.
    pub(crate) fn set_lost(&mut self, part: Part) {
        self.current[part as usize] = None;
    }

    /// The objects are watched, from the last change that came.
    pub(crate) fn set_watched(&mut self, part: Part, now: Duration) {
        self.current[part as usize].get_or_insert(now + CATCH_UP);
    }

    /// Drops promises that have run out; none while their objects may exist without an event that has come.
    pub(crate) fn expire(&mut self, now: Duration) {
        if self.current.iter().all(|from| from.is_some_and(|from| from <= now)) {
            self.pool.expire(now);
        }
    }

    /// Gives only out of the blocks that are ours by the object. Those that are not in use yet come from a write without an
    /// answer: they are used from a time on.
    pub(crate) fn keep_blocks_of_ledger(&mut self, from: Duration) {
        let runs = self.ledger.blocks();
        self.pool.retain_blocks(|block| runs.iter().any(|run| has(*run, block)));
        for (first, count) in runs {
            (*first..first + count).for_each(|block| self.pool.add_block(block, from));
        }
    }

    /// Our line was written; its writing began at `began`, at `clock` by the machine's clock.
    pub(crate) fn wrote(&mut self, turn: &BookChange, began: Duration, clock: SystemTime) {
        self.ledger.wrote(turn, began);
        self.written = Some(clock);
    }

    /// Whether addresses may be given out of our blocks. A machine that slept or was paused has not counted the time in which
    /// others took them over; its clock shows it, once it is set again.
    pub(crate) fn may_give(&self, now: Duration, clock: SystemTime) -> bool {
        let since = self.written.and_then(|written| clock.duration_since(written).ok());
        self.ledger.may_give(now) && since.is_none_or(|since| since < FENCE)
    }

    /// Blocks that we can do without, in order.
    pub(crate) fn spare_blocks(&self, now: Duration) -> Vec<Block> {
        let keep = enough(self.pool.range(), self.pool.free(now));
        self.pool.spare(keep, RETURNED_MAX, now)
    }

    /// Follows namespaces. The last known state of each counts until another one comes.
    pub(crate) fn hear_of_namespaces(&mut self, news: News<'_, Value>, now: Duration) {
        match news {
            News::Begin => self.unmet = self.namespaces.keys().cloned().collect(),
            News::Present(meta, object) => self.observe_namespace(meta.key.name(), &object),
            News::Unreadable(meta, _) => {
                self.unmet.remove(meta.key.name());
            }
            News::Gone(meta, _) => {
                self.namespaces.remove(meta.key.name());
            }
            News::End => {
                for name in self.unmet.drain() {
                    self.namespaces.remove(&name);
                }
                self.set_loaded(Part::Namespaces, now);
            }
            News::Lost(_) => self.set_lost(Part::Namespaces),
            News::Watching => self.set_watched(Part::Namespaces, now),
        }
    }

    /// A namespace exists.
    fn observe_namespace(&mut self, name: &str, object: &Value) {
        self.unmet.remove(name);
        let labels = object.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
        let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        let policy = fields::annotation(object, POLICY).and_then(|text| {
            let policy = text.parse();
            if let Err(error) = &policy {
                tracing::warn!(namespace = name, %error, "the annotation {POLICY} of a namespace is invalid and ignored: set allow, reject or rewrite");
            }
            policy.ok()
        });
        self.namespaces.insert(name.to_owned(), (labels.collect(), policy));
    }

    /// Policy for duplicates in a namespace.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::blocks::{Book, Me};
    use api::net::pool::{Owner, block_of};
    use api::net::{Mac, Range};
    use cluster::Key;
    use cluster::follow::Meta;

    const WAIT: Duration = Duration::from_secs(10);

    fn state() -> State {
        let range = Range::parse("02:00:00:00:00:00", "02:00:00:00:ff:ff").unwrap();
        let me = Me { name: "a".to_owned(), incarnation: "1".to_owned(), address: "127.0.0.1:1".to_owned() };
        State::new(Pool::new(range, WAIT, 0), Ledger::new(me), Policy::Allow)
    }

    fn namespace(name: &str, policy: &str) -> Value {
        json!({"metadata": {"name": name, "annotations": {POLICY: policy}}})
    }

    fn meta(name: &str) -> Meta {
        Meta { key: Key::cluster(name), uid: String::new(), version: String::new() }
    }

    #[test]
    fn policy_of_a_namespace_counts_until_another_one_comes() {
        let state = state();
        let mut known = state.lock();
        let policies = |known: &Known| ["a", "b"].map(|name| known.policy_of(name));
        let (a, b) = (meta("a"), meta("b"));
        let lost = cluster::Error::new(cluster::Kind::Unreachable, "stopped");
        let unreadable = serde_json::from_str::<Value>("{").unwrap_err();
        // The API server stops in the middle of a list.
        let [allow, reject, rewrite] = [Policy::Allow, Policy::Reject, Policy::Rewrite];
        let steps = [
            (News::Begin, [allow, allow]),
            (News::Present(&a, namespace("a", "reject")), [reject, allow]),
            (News::Present(&b, namespace("b", "rewrite")), [reject, rewrite]),
            (News::End, [reject, rewrite]),
            (News::Lost(&lost), [reject, rewrite]),
            (News::Begin, [reject, rewrite]),
            (News::Lost(&lost), [reject, rewrite]),
            (News::Begin, [reject, rewrite]),
            (News::Unreadable(&b, unreadable), [reject, rewrite]),
            (News::End, [allow, rewrite]),
            (News::Gone(&b, None), [allow, allow]),
        ];
        for (number, (news, expected)) in steps.into_iter().enumerate() {
            known.hear_of_namespaces(news, Duration::ZERO);
            assert_eq!(policies(&known), expected, "step {number}");
        }
    }

    #[test]
    fn promises_do_not_run_out_before_every_change_of_their_objects_has_come() {
        let state = state();
        let mut known = state.lock();
        let all = [Part::Machines, Part::Instances, Part::Pods, Part::Namespaces];
        all.into_iter().for_each(|part| known.set_loaded(part, Duration::ZERO));
        let (owner, mac) = (Owner::new(View::Machine, "n", "v"), Mac::parse("02:00:00:00:00:01").unwrap());
        known.pool.reserve(&owner, mac, 1, Duration::ZERO);
        for part in all {
            known.set_lost(part);
            known.expire(WAIT);
            assert!(!known.pool.is_free(mac), "{part:?} is lost");
            known.set_watched(part, WAIT);
            known.expire(WAIT + CATCH_UP / 2);
            assert!(!known.pool.is_free(mac), "{part:?} may be behind");
            known.set_loaded(part, WAIT);
            // The watch that follows a list is up to date.
            known.set_watched(part, WAIT);
        }
        known.set_lost(Part::Pods);
        known.set_watched(Part::Pods, WAIT);
        known.expire(WAIT + CATCH_UP);
        assert!(known.pool.is_free(mac));
    }

    #[test]
    fn nothing_is_given_by_a_machine_that_slept() {
        let state = state();
        let mut known = state.lock();
        let (now, clock) =
            (Duration::from_secs(1), SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000));
        known.ledger.read(Book::default(), now).unwrap();
        assert!(!known.may_give(now, clock));
        let turn = known.ledger.next_change(known.pool.range(), 0, 0, now).unwrap();
        known.wrote(&turn, now, clock);
        let second = Duration::from_secs(1);
        for (elapsed, clock, expected) in [
            (second, clock + second, true),
            (FENCE, clock + FENCE, false),
            // The machine's own count stood still.
            (second, clock + FENCE, false),
            // Its clock was ahead, and is set right.
            (second, clock - FENCE * 2, true),
        ] {
            assert_eq!(known.may_give(now + elapsed, clock), expected, "{elapsed:?} {clock:?}");
        }
    }

    #[test]
    fn nothing_is_given_out_of_blocks_that_the_object_gives_to_others() {
        let state = state();
        let mut known = state.lock();
        let now = Duration::from_secs(1);
        let range = known.pool.range();
        known.ledger.read(Book::default(), now).unwrap();
        let turn = known.ledger.next_change(range, 0, 0, now).unwrap();
        // Its answer never came: what is ours by it is found by reading, and used when it has settled.
        known.ledger.read(turn.book.clone(), now).unwrap();
        known.keep_blocks_of_ledger(WAIT);
        assert!(known.pool.find(&[], now).is_err());
        let found = known.pool.find(&[], WAIT).unwrap();
        assert_eq!(block_of(found), turn.fresh[0].0);
        known.ledger.wrote(&turn, now);
        let mut stolen = turn.book.clone();
        let line = stolen.replicas.remove("a").unwrap();
        stolen
            .replicas
            .insert("b".to_owned(), crate::blocks::Replica { incarnation: "2".to_owned(), ..line });
        known.ledger.read(stolen, now).unwrap();
        known.keep_blocks_of_ledger(WAIT);
        assert!(known.pool.find(&[], WAIT).is_err());
    }
}
