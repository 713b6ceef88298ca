//! Keyed work: each key waits at most once and is never processed twice at the same time.
//!
//! Waiting keys are taken by priority, then in the order of their arrival. A key added while it is being processed is
//! processed again afterwards. A failed key waits 5 ms·2ⁿ, at most 300 s; success resets n.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::time::backoff;

/// Back-off of a failed key.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// Which work comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Deletions and evacuations.
    Urgent,
    /// Migrations.
    High,
    /// Caused by a user or by a change.
    #[default]
    Normal,
    /// Periodic looks at what should be in order.
    Resync,
}

/// How the processing of a key ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until the key is added again.
    Done,
    /// Look again after this time, or earlier if the key is added.
    After(Duration),
    /// Failed: look again after the key's back-off.
    Retry,
}

impl Outcome {
    /// The outcome of a reconciliation of `object`, which is of this kind. A failure is retried, and logged unless the object
    /// changed in between.
    pub fn of(result: crate::Result<Self>, kind: &str, object: &impl fmt::Display) -> Self {
        result.unwrap_or_else(|error| {
            if !error.is_conflict() {
                tracing::warn!(kind, %object, error = error.chain(), "cannot reconcile; retrying");
            }
            Self::Retry
        })
    }
}

/// A queue of keys. Clones share it.
pub struct Queue<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

struct Shared<K> {
    state: Mutex<State<K>>,
    /// Work arrived, or a delayed key may be due earlier than the queue sleeps for.
    wake: Notify,
}

struct State<K> {
    ready: BTreeMap<(Priority, u64), K>,
    delayed: BTreeMap<(Instant, u64), K>,
    keys: HashMap<K, Entry>,
    sequence: u64,
}

#[derive(Default)]
struct Entry {
    ready: Option<(Priority, u64)>,
    delayed: Option<((Instant, u64), Priority)>,
    running: bool,
    /// Added while running.
    again: Option<Priority>,
    failures: u32,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        let state =
            State { ready: BTreeMap::new(), delayed: BTreeMap::new(), keys: HashMap::new(), sequence: 0 };
        Self { shared: Arc::new(Shared { state: Mutex::new(state), wake: Notify::new() }) }
    }
}

impl<K> fmt::Debug for Queue<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Queue")
    }
}

impl<K: Clone + Eq + Hash + Send + 'static> Queue<K> {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key with normal priority.
    pub fn add(&self, key: K) {
        self.add_with(key, Priority::Normal);
    }

    /// Adds a key. A key that waits keeps its place, or moves forward to a higher priority.
    pub fn add_with(&self, key: K, priority: Priority) {
        self.state().add(key, priority);
        self.shared.wake.notify_one();
    }

    /// Adds a key after a time. Of several times the earliest counts; a key that already waits is not delayed.
    pub fn add_after(&self, key: K, delay: Duration) {
        self.state().delay(key, delay, Priority::Normal);
        self.shared.wake.notify_one();
    }

    /// Keys that wait to be processed, without delayed ones.
    pub fn len(&self) -> usize {
        self.state().ready.len()
    }

    /// Whether no key waits to be processed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes keys with at most `workers` at once until `stop` is ready; then takes no more keys, waits for those in
    /// work, and returns. Keys that still wait stay in the queue.
    pub async fn run<F, W>(&self, workers: usize, stop: impl Future<Output = ()>, work: W)
    where
        F: Future<Output = Outcome> + Send + 'static,
        W: Fn(K) -> F,
    {
        let places = Arc::new(Semaphore::new(workers.max(1)));
        let mut running = JoinSet::new();
        let mut stop = std::pin::pin!(stop);
        loop {
            // The semaphore is never closed.
            let place = tokio::select! {
                () = &mut stop => break,
                place = Arc::clone(&places).acquire_owned() => place,
            };
            let key = tokio::select! {
                () = &mut stop => break,
                key = self.next() => key,
            };
            while running.try_join_next().is_some() {}
            let turn = KeyInWork { queue: self.clone(), key: Some(key.clone()), outcome: Outcome::Retry };
            let work = work(key);
            running.spawn(async move {
                let _place = place;
                // The whole turn moves in here: alone, its field would, and the turn would end at once.
                let mut turn = turn;
                turn.outcome = work.await;
            });
        }
        while running.join_next().await.is_some() {}
    }

    /// The next key; it counts as running from now on.
    async fn next(&self) -> K {
        loop {
            let due = {
                let mut state = self.state();
                state.promote(Instant::now());
                if let Some(key) = state.take() {
                    return key;
                }
                state.delayed.first_key_value().map(|((due, _), _)| *due)
            };
            match due {
                Some(due) => tokio::select! {
                    () = tokio::time::sleep_until(due) => {}
                    () = self.shared.wake.notified() => {}
                },
                None => self.shared.wake.notified().await,
            }
        }
    }
}

/// A key in work. When it is dropped, also by a panic of the work, the key is free again.
struct KeyInWork<K: Clone + Eq + Hash + Send + 'static> {
    queue: Queue<K>,
    key: Option<K>,
    outcome: Outcome,
}

impl<K: Clone + Eq + Hash + Send + 'static> Drop for KeyInWork<K> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.queue.state().finish(key, self.outcome);
            self.queue.shared.wake.notify_one();
        }
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn add(&mut self, key: K, priority: Priority) {
        let sequence = self.sequence();
        let entry = self.keys.entry(key.clone()).or_default();
        if entry.running {
            entry.again = Some(entry.again.map_or(priority, |before| before.min(priority)));
            return;
        }
        if let Some((at, _)) = entry.delayed.take() {
            self.delayed.remove(&at);
        }
        match entry.ready {
            Some((before, _)) if before <= priority => return,
            Some(place) => {
                self.ready.remove(&place);
            }
            None => {}
        }
        entry.ready = Some((priority, sequence));
        self.ready.insert((priority, sequence), key);
    }

    fn delay(&mut self, key: K, delay: Duration, priority: Priority) {
        let at = (Instant::now() + delay, self.sequence());
        let entry = self.keys.entry(key.clone()).or_default();
        if entry.ready.is_some() {
            return;
        }
        match entry.delayed {
            Some((before, _)) if before <= at => return,
            Some((before, _)) => {
                self.delayed.remove(&before);
            }
            None => {}
        }
        entry.delayed = Some((at, priority));
        self.delayed.insert(at, key);
    }

    /// Makes delayed keys ready that are due. A running key is marked to be processed again.
    fn promote(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry() {
            if first.key().0 > now {
                return;
            }
            let key = first.remove();
            let entry = self.keys.entry(key.clone()).or_default();
            let priority = entry.delayed.take().map_or(Priority::Normal, |(_, priority)| priority);
            self.add(key, priority);
        }
    }

    fn take(&mut self) -> Option<K> {
        let (_, key) = self.ready.pop_first()?;
        let entry = self.keys.entry(key.clone()).or_default();
        entry.ready = None;
        entry.running = true;
        Some(key)
    }

    fn finish(&mut self, key: K, outcome: Outcome) {
        let entry = self.keys.entry(key.clone()).or_default();
        entry.running = false;
        entry.failures = if outcome == Outcome::Retry { entry.failures.saturating_add(1) } else { 0 };
        let (again, failures) = (entry.again.take(), entry.failures);
        match (outcome, again) {
            // A failed key waits even if it was added in between: the change may be its own half-done work.
            (Outcome::Retry, again) => {
                let pause = backoff(FIRST_PAUSE, LONGEST_PAUSE, failures - 1);
                self.delay(key, pause, again.unwrap_or_default());
            }
            (_, Some(priority)) => self.add(key, priority),
            (Outcome::After(delay), None) => self.delay(key, delay, Priority::Normal),
            (Outcome::Done, None) => {
                if entry.delayed.is_none() {
                    self.keys.remove(&key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn processed(queue: &Queue<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| queue.state().take()).collect()
    }

    #[tokio::test]
    async fn keys_wait_once_and_are_taken_by_priority() {
        let queue = Queue::new();
        for (key, priority) in [
            ("a", Priority::Normal),
            ("b", Priority::Resync),
            ("c", Priority::Urgent),
            ("a", Priority::Resync),
            ("b", Priority::High),
            ("d", Priority::Normal),
        ] {
            queue.add_with(key, priority);
        }
        assert_eq!(queue.len(), 4);
        assert_eq!(processed(&queue), ["c", "b", "a", "d"]);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_and_success_resets_them() {
        let queue = Queue::new();
        queue.add("a");
        let mut waits = Vec::new();
        for outcome in [Outcome::Retry, Outcome::Retry, Outcome::Retry, Outcome::Done] {
            let begun = Instant::now();
            let key = queue.next().await;
            waits.push(begun.elapsed());
            queue.state().finish(key, outcome);
        }
        for (wait, most) in waits.iter().zip([0, 5, 10, 20]) {
            // The timer counts in milliseconds and rounds up.
            let most = Duration::from_millis(most);
            assert!(*wait <= most + Duration::from_millis(1) && *wait >= most.mul_f64(0.7), "{waits:?}");
        }
        assert!(queue.state().keys.is_empty(), "a key that is done is forgotten");
        let mut failures = 0;
        queue.add("a");
        for _ in 0..25 {
            let key = queue.next().await;
            queue.state().finish(key, Outcome::Retry);
            failures += 1;
        }
        let begun = Instant::now();
        assert_eq!((queue.next().await, failures), ("a", 25));
        let last = begun.elapsed();
        assert!(last <= LONGEST_PAUSE + Duration::from_millis(1) && last > LONGEST_PAUSE / 2, "{last:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn earliest_delay_counts_and_an_add_overrides_it() {
        let queue = Queue::new();
        queue.add_after("a", Duration::from_secs(60));
        queue.add_after("a", Duration::from_secs(10));
        queue.add_after("a", Duration::from_secs(30));
        let begun = Instant::now();
        let key = queue.next().await;
        assert_eq!((key, begun.elapsed().as_secs()), ("a", 10));
        queue.state().finish(key, Outcome::After(Duration::from_secs(5)));
        queue.add("a");
        let key = queue.next().await;
        assert_eq!(begun.elapsed().as_secs(), 10);
        queue.state().finish(key, Outcome::Done);
        assert!(queue.state().delayed.is_empty() && queue.state().keys.is_empty());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_key_is_ever_processed_twice_at_once() {
        let queue = Queue::new();
        let at_work: Arc<Vec<AtomicUsize>> = Arc::new((0..8).map(|_| AtomicUsize::new(0)).collect());
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let (adder, busy) = (queue.clone(), Arc::clone(&at_work));
        let feed = tokio::spawn(async move {
            for n in 0..4000usize {
                adder.add(n % 8);
                if n % 16 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            while !adder.is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let _ended = stop.send(());
        });
        let count = Arc::new(AtomicUsize::new(0));
        let total = Arc::clone(&count);
        let work = move |key: usize| {
            let (busy, total) = (Arc::clone(&busy), Arc::clone(&total));
            async move {
                assert_eq!(busy[key].fetch_add(1, Ordering::SeqCst), 0, "{key} is processed twice at once");
                tokio::time::sleep(Duration::from_micros(200)).await;
                busy[key].fetch_sub(1, Ordering::SeqCst);
                total.fetch_add(1, Ordering::SeqCst);
                Outcome::Done
            }
        };
        let stopped = async {
            let _sent = stopped.await;
        };
        queue.run(4, stopped, work).await;
        feed.await.unwrap();
        assert!(at_work.iter().all(|one| one.load(Ordering::SeqCst) == 0), "work in progress is waited for");
        let count = count.load(Ordering::SeqCst);
        assert!((8..=4000).contains(&count), "{count}");
    }

    #[tokio::test]
    async fn panicking_work_frees_its_key_for_another_try() {
        let queue = Queue::new();
        queue.add(1);
        let tries = Arc::new(AtomicUsize::new(0));
        let (counted, (stop, stopped)) = (Arc::clone(&tries), tokio::sync::oneshot::channel::<()>());
        let stop = Arc::new(Mutex::new(Some(stop)));
        let work = move |_| {
            let (counted, stop) = (Arc::clone(&counted), Arc::clone(&stop));
            async move {
                assert!(counted.fetch_add(1, Ordering::SeqCst) > 0, "the first try panics");
                drop(stop.lock().unwrap().take());
                Outcome::Done
            }
        };
        let stopped = async {
            let _closed = stopped.await;
        };
        tokio::time::timeout(Duration::from_secs(10), queue.run(1, stopped, work)).await.unwrap();
        assert_eq!(tries.load(Ordering::SeqCst), 2);
    }
}
