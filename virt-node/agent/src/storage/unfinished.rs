//! Volumes that the driver may be making, by their claims: until their PVs are there nothing else knows of them, and a claim
//! may go in between. Kept in memory only: what an agent leaves when it ends is reported by the next one ([`super::strays`]). Not
//! here: making and deleting them ([`super::claims`], [`super::removal`]).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cluster::Key;

use super::objects::Claim;

/// Uids of the claims for which volumes were begun, by the claims' names.
#[derive(Debug, Default)]
pub(super) struct Unfinished(Mutex<HashMap<Key, String>>);

impl Unfinished {
    fn all(&self) -> MutexGuard<'_, HashMap<Key, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a volume that the driver is asked for.
    pub(super) fn begin(&self, key: &Key, uid: &str) {
        self.all().insert(key.clone(), uid.to_owned());
    }

    /// Forgets it: it has its PV, was not made, or is another program's to finish.
    pub(super) fn end(&self, key: &Key) {
        self.all().remove(key);
    }

    /// Takes the uid of a claim that has left a volume behind. `claim` has its name now; one that is bound leaves nothing.
    pub(super) fn left(&self, key: &Key, claim: Option<&Claim>) -> Option<String> {
        let mut all = self.all();
        match claim.filter(|claim| all.get(key) == Some(&claim.metadata.uid)) {
            Some(claim) if claim.spec.volume_name.is_empty() => None,
            Some(_) => {
                all.remove(key);
                None
            }
            None => all.remove(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_goes_before_its_volume_has_a_pv_leaves_it() {
        let key = Key::new("shop", "data");
        let claim = |uid: &str, volume: &str| {
            let mut claim = Claim::default();
            uid.clone_into(&mut claim.metadata.uid);
            volume.clone_into(&mut claim.spec.volume_name);
            claim
        };
        let all = Unfinished::default();
        assert_eq!(all.left(&key, None), None);
        for (now, expected) in [(None, Some("u1")), (Some(claim("u2", "")), Some("u1"))] {
            all.begin(&key, "u1");
            assert_eq!(all.left(&key, Some(&claim("u1", ""))), None, "it still waits");
            assert_eq!(all.left(&key, now.as_ref()).as_deref(), expected, "{now:?}");
            assert_eq!(all.left(&key, None), None, "it is deleted once");
        }
        all.begin(&key, "u1");
        assert_eq!(all.left(&key, Some(&claim("u1", "pvc-u1"))), None);
        assert_eq!(all.left(&key, None), None, "a bound claim's volume is its PV's");
        all.begin(&key, "u1");
        all.end(&key);
        assert_eq!(all.left(&key, None), None);
    }
}
