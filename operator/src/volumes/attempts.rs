//! Pauses between the choices of a node for one claim, as csi-provisioner pauses between its attempts: a node that has
//! room by CSIStorageCapacity may refuse the claim, and is then chosen again. Likewise between reports that no node has
//! room. Not here: which node is chosen ([`super::plan`]).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cluster::Key;
use cluster::time::backoff;

/// Pause after the first choice, and the longest one: csi-provisioner's.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// The choices of all claims that have no volume yet.
#[derive(Debug, Default)]
pub(super) struct Attempts(Mutex<HashMap<Key, Attempt>>);

/// The choices of one claim.
#[derive(Debug)]
struct Attempt {
    uid: String,
    count: u32,
    next: Instant,
}

impl Attempts {
    /// Counts an attempt for a claim at `now`; gives the number of those before it.
    ///
    /// # Errors
    /// The time until the next attempt.
    pub(super) fn begin(&self, claim: &Key, uid: &str, now: Instant) -> Result<u32, Duration> {
        let mut all = self.all();
        let before = all.get(claim).filter(|one| one.uid == uid);
        if let Some(pause) = before.map(|one| one.next.saturating_duration_since(now))
            && !pause.is_zero()
        {
            return Err(pause);
        }
        let count = before.map_or(0, |one| one.count.saturating_add(1));
        let next = now + backoff(FIRST_PAUSE, LONGEST_PAUSE, count);
        all.insert(claim.clone(), Attempt { uid: uid.to_owned(), count, next });
        Ok(count)
    }

    /// Forgets the choices of a claim that has its volume, or is gone.
    pub(super) fn forget(&self, claim: &Key) {
        self.all().remove(claim);
    }

    fn all(&self) -> MutexGuard<'_, HashMap<Key, Attempt>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_nodes_refuse_is_given_a_node_less_and_less_often() {
        let (attempts, claim) = (Attempts::default(), Key::new("shop", "data"));
        let mut now = Instant::now();
        let mut pauses = Vec::new();
        for count in 0..12 {
            assert_eq!(attempts.begin(&claim, "u1", now), Ok(count));
            let pause = attempts.begin(&claim, "u1", now).unwrap_err();
            let early = now + pause.saturating_sub(Duration::from_millis(1));
            assert!(attempts.begin(&claim, "u1", early).is_err(), "{pause:?}");
            pauses.push(pause);
            now += pause;
        }
        for (count, pause) in pauses.iter().enumerate() {
            let full = Duration::from_secs(1 << count).min(LONGEST_PAUSE);
            assert!(*pause <= full && *pause >= full.mul_f64(0.749), "{count}: {pause:?}");
        }
    }

    #[test]
    fn pauses_belong_to_one_claim_until_it_has_a_volume() {
        let (attempts, claim, now) = (Attempts::default(), Key::new("shop", "data"), Instant::now());
        assert_eq!(attempts.begin(&claim, "u1", now), Ok(0));
        assert!(attempts.begin(&claim, "u1", now).is_err());
        assert_eq!(attempts.begin(&Key::new("shop", "other"), "u3", now), Ok(0));
        assert_eq!(attempts.begin(&claim, "u2", now), Ok(0), "another claim of the name");
        attempts.forget(&claim);
        assert_eq!(attempts.begin(&claim, "u2", now), Ok(0));
    }
}
