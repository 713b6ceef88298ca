//! Places for connections that anybody may make: as many as there are. When one more comes, whoever has waited for his
//! other end the longest goes: connections that are opened and say nothing keep nobody out.
//!
//! ```text
//!  enter ─► waiting ─► working ─► waiting ─► … ─► dropped
//!              └─ all places are taken, and nobody has waited longer ─► told to go
//! ```
//!
//! Not here: what is said on a connection ([`crate::webhook`], [`crate::peers`]).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// So many places.
#[derive(Debug)]
pub(crate) struct Places {
    most: usize,
    taken: Mutex<Taken>,
    /// Somebody has left.
    left: Notify,
}

#[derive(Debug, Default)]
struct Taken {
    count: usize,
    /// The number of the last one that began to wait.
    turn: u64,
    /// Those who wait, and how each is told to go.
    waiting: BTreeMap<u64, Arc<Notify>>,
}

/// One connection's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    /// Since which turn it waits; `None`: it works.
    since: Mutex<Option<u64>>,
    go: Arc<Notify>,
}

impl Places {
    /// Nobody is there yet.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::default(), left: Notify::new() })
    }

    /// A place for somebody who waits for his other end. When all are taken and all others work, it takes until one leaves.
    /// To be called by one task: who leaves tells one.
    pub(crate) async fn enter(self: &Arc<Self>) -> Place {
        loop {
            {
                let mut taken = self.lock();
                if taken.count < self.most {
                    taken.count += 1;
                    break;
                }
                if let Some((_, go)) = taken.waiting.pop_first() {
                    go.notify_one();
                }
            }
            self.left.notified().await;
        }
        let place = Place { places: self.clone(), since: Mutex::new(None), go: Arc::default() };
        place.waits();
        place
    }

    /// Waits until everybody has left.
    pub(crate) async fn empty(&self) {
        while self.lock().count > 0 {
            self.left.notified().await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    /// From now on it waits for its other end, and has waited the shortest.
    pub(crate) fn waits(&self) {
        self.change(|taken| {
            taken.turn += 1;
            taken.waiting.insert(taken.turn, self.go.clone());
            Some(taken.turn)
        });
    }

    /// From now on nobody else gets its place.
    pub(crate) fn works(&self) {
        self.change(|_| None);
    }

    /// Waits until it is told to go.
    pub(crate) async fn told(&self) {
        self.go.notified().await;
    }

    fn change(&self, to: impl FnOnce(&mut Taken) -> Option<u64>) {
        let mut taken = self.places.lock();
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(before) = since.take() {
            taken.waiting.remove(&before);
        }
        *since = to(&mut taken);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.works();
        self.places.lock().count -= 1;
        self.places.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn is_told(place: &Place) -> bool {
        place.told().now_or_never().is_some()
    }

    #[tokio::test]
    async fn who_has_waited_the_longest_goes() {
        let places = Places::new(3);
        let (first, second, third) = (places.enter().await, places.enter().await, places.enter().await);
        // One that works, one that has been heard of since, one that said nothing.
        first.works();
        second.waits();
        let next = tokio::spawn({
            let places = places.clone();
            async move { places.enter().await }
        });
        third.told().await;
        assert!(!is_told(&first) && !is_told(&second) && !next.is_finished());
        drop(third);
        let next = next.await.unwrap();
        assert_eq!(places.lock().waiting.len(), 2);
        // All work: nobody goes, and the next one waits until somebody leaves.
        second.works();
        next.works();
        let mut last = Box::pin(places.enter());
        assert!(last.as_mut().now_or_never().is_none());
        assert!(![&first, &second, &next].into_iter().any(is_told));
        drop(first);
        let last = last.await;
        drop((second, next));
        assert!(places.empty().now_or_never().is_none());
        drop(last);
        places.empty().await;
        assert!(places.lock().waiting.is_empty());
    }
}
