//! A limit on connections. When it is reached, the connection that has been idle longest is evicted for the next one.
//!
//! ```text
//!  enter ─► idle ─► busy ─► idle ─► … ─► dropped
//!             └─ the limit is reached and no other connection has been idle longer ─► evicted
//! ```
//!
//! Not here: what a connection does, and what counts as idle ([`super::serve`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// At most so many connections at once.
#[derive(Debug)]
pub struct Limit {
    most: usize,
    state: Mutex<State>,
    /// Signalled when a slot is free or its connection has become idle.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    count: usize,
    /// Number of the event that made a connection idle, ever increasing.
    event: u64,
    /// Idle connections by the event that made them so, each with its eviction signal.
    idle: BTreeMap<u64, Arc<Notify>>,
    /// Calls of [`Limit::enter`] that wait.
    waiting: usize,
    /// Connections that were evicted and still exist; never more than wait.
    evicting: usize,
}

/// A call of [`Limit::enter`] that waits.
struct Waiting<'a>(&'a Limit);

impl<'a> Waiting<'a> {
    fn begin(limit: &'a Limit) -> Self {
        limit.lock().waiting += 1;
        Self(limit)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

/// The place of one connection under a [`Limit`], until it is dropped.
#[derive(Debug)]
pub struct Slot {
    limit: Arc<Limit>,
    state: Mutex<SlotState>,
    evict: Arc<Notify>,
}

#[derive(Debug, Default)]
struct SlotState {
    /// Guards that are alive; the connection is idle at 0.
    busy: usize,
    /// Key in [`State::idle`].
    idle_since: Option<u64>,
    evicted: bool,
}

/// While this exists, its connection is not evicted.
#[derive(Debug)]
pub struct Busy(Arc<Slot>);

impl Limit {
    /// A limit of `most` connections.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default(), changed: Notify::new() })
    }

    /// Waits for a slot; its connection is idle. When the limit is reached, the connection idle longest is evicted. When all
    /// are busy, this waits until one leaves or becomes idle.
    pub async fn enter(self: &Arc<Self>) -> Arc<Slot> {
        let waiting = Waiting::begin(self);
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.lock();
                if state.count < self.most {
                    state.count += 1;
                    break;
                }
                if state.evicting < state.waiting
                    && let Some((_, evict)) = state.idle.pop_first()
                {
                    state.evicting += 1;
                    evict.notify_one();
                }
            }
            changed.await;
        }
        drop(waiting);
        let slot = Slot { limit: self.clone(), state: Mutex::default(), evict: Arc::default() };
        slot.touch();
        Arc::new(slot)
    }

    /// Waits until no connection is left.
    pub async fn empty(&self) {
        loop {
            let changed = self.changed.notified();
            if self.lock().count == 0 {
                return;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Marks an idle connection as the one that became idle last. Does nothing while it is busy.
    pub fn touch(&self) {
        let mut slot = self.lock();
        if slot.busy == 0 {
            self.set_idle(&mut slot);
        }
    }

    /// Protects the connection from eviction until the guard is dropped.
    pub fn busy(self: &Arc<Self>) -> Busy {
        let mut slot = self.lock();
        slot.busy += 1;
        if let Some(since) = slot.idle_since.take() {
            slot.evicted |= self.limit.lock().idle.remove(&since).is_none();
        }
        drop(slot);
        Busy(self.clone())
    }

    /// Waits until the connection is evicted.
    pub async fn evicted(&self) {
        self.evict.notified().await;
    }

    fn set_idle(&self, slot: &mut SlotState) {
        let mut state = self.limit.lock();
        if let Some(since) = slot.idle_since.take() {
            slot.evicted |= state.idle.remove(&since).is_none();
        }
        // An eviction that is under way stands.
        if slot.evicted {
            return;
        }
        state.event += 1;
        let event = state.event;
        state.idle.insert(event, self.evict.clone());
        slot.idle_since = Some(event);
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.limit.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut slot = self.0.lock();
        slot.busy -= 1;
        if slot.busy == 0 {
            self.0.set_idle(&mut slot);
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let (since, mut evicted) = {
            let mut slot = self.lock();
            (slot.idle_since.take(), slot.evicted)
        };
        let mut state = self.limit.lock();
        if let Some(since) = since {
            evicted |= state.idle.remove(&since).is_none();
        }
        state.evicting -= usize::from(evicted);
        state.count -= 1;
        drop(state);
        self.limit.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn is_evicted(slot: &Slot) -> bool {
        tokio::time::timeout(Duration::from_millis(1), slot.evicted()).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn the_connection_idle_longest_is_evicted_and_a_busy_one_never() {
        let limit = Limit::new(3);
        let (first, second, third) = (limit.enter().await, limit.enter().await, limit.enter().await);
        let busy = first.busy();
        second.touch();
        let next = tokio::spawn({
            let limit = limit.clone();
            async move { limit.enter().await }
        });
        third.evicted().await;
        assert!(!is_evicted(&first).await && !is_evicted(&second).await && !next.is_finished());
        // An eviction that is under way cannot be undone by a last sign of life.
        third.touch();
        drop(third);
        let next = next.await.unwrap();
        assert_eq!(limit.lock().idle.len(), 2);
        drop((second, next, busy, first));
        limit.empty().await;
        assert!(limit.lock().idle.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_connection_evicts_one_that_becomes_idle() {
        let limit = Limit::new(2);
        let (first, second) = (limit.enter().await, limit.enter().await);
        let (one, another, other) = (first.busy(), first.busy(), second.busy());
        let next = tokio::spawn({
            let limit = limit.clone();
            async move { limit.enter().await }
        });
        assert!(!is_evicted(&first).await && !is_evicted(&second).await);
        drop(one);
        assert!(!is_evicted(&first).await, "another request of the connection is still busy");
        drop(another);
        first.evicted().await;
        drop(first);
        next.await.unwrap();
        drop(other);
    }

    #[tokio::test(start_paused = true)]
    async fn many_that_wait_each_get_a_slot() {
        let limit = Limit::new(4);
        let mut held = Vec::new();
        for _ in 0..4 {
            held.push(limit.enter().await);
        }
        let waiting: Vec<_> = (0..16)
            .map(|_| {
                let limit = limit.clone();
                tokio::spawn(async move {
                    let slot = limit.enter().await;
                    slot.evicted().await;
                })
            })
            .collect();
        for slot in held {
            slot.evicted().await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(waiting.iter().filter(|waiting| !waiting.is_finished()).count(), 4);
        let state = limit.lock();
        assert_eq!((state.count, state.idle.len(), state.waiting, state.evicting), (4, 4, 0, 0));
        drop(state);
        waiting.iter().for_each(tokio::task::JoinHandle::abort);
    }
}
