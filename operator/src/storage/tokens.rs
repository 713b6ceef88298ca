//! Signing keys of upload and clone tokens, and their rotation: which key signs, which are trusted, when another is made.
//! Pure; times are seconds of Unix time.
//!
//! ```text
//!  made ──ANNOUNCED──► signs ──PERIOD──► successor is made ──ANNOUNCED──► retired ──RETIRED──► dropped
//!       trusted from here ─────────────────────────────────────────────────────────────────┘
//! ```
//! A key is published before the first token is signed with it, and stays trusted until the last has expired, so no
//! upload fails during a rotation.
//!
//! Not here: storage (Secret `cdi-api-signing-key`), generation of keys, requests.

use api::upload::token::{Grant, KeyError, LEEWAY, LIFETIME, Signer, Target};

/// Seconds for which a key is published before it signs: the kubelet refreshes mounted Secrets within two minutes.
pub const ANNOUNCED: u64 = 180;
/// Seconds after which a key gets a successor: 30 days.
pub const PERIOD: u64 = 30 * 24 * 3600;
/// Seconds for which a key that no longer signs is trusted.
pub const RETIRED: u64 = LIFETIME + LEEWAY;

/// A key pair.
#[derive(Clone, PartialEq, Eq)]
pub struct Key {
    /// When it was made.
    pub made: u64,
    /// Private half, PEM. Never logged.
    pub private: String,
    /// Public half, PEM.
    pub public: String,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("made", &self.made).finish_non_exhaustive()
    }
}

/// The step for the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Change {
    /// Nothing until this time.
    None(u64),
    /// Make a key.
    Make,
    /// Drop keys that are not trusted any more ([`Ring::drop_expired`]).
    Drop,
}

/// The keys, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ring(Vec<Key>);

impl Ring {
    /// A ring of stored keys.
    pub fn new(mut keys: Vec<Key>) -> Self {
        keys.sort_by_key(|key| key.made);
        Self(keys)
    }

    /// The keys, oldest first.
    pub fn keys(&self) -> &[Key] {
        &self.0
    }

    /// Adds a key that was made.
    pub fn add(&mut self, key: Key) {
        self.0.push(key);
        self.0.sort_by_key(|key| key.made);
    }

    /// Index of the key that signs: the newest that has been announced for long enough, else the oldest.
    fn signing(&self, now: u64) -> Option<usize> {
        let announced = self.0.iter().rposition(|key| key.made.saturating_add(ANNOUNCED) <= now);
        announced.or(if self.0.is_empty() { None } else { Some(0) })
    }

    /// When a key stops being trusted; `None` while it has no successor.
    fn end(&self, index: usize) -> Option<u64> {
        let successor = self.0.get(index + 1)?;
        Some(successor.made.saturating_add(ANNOUNCED).saturating_add(RETIRED))
    }

    /// The next step.
    pub fn change(&self, now: u64) -> Change {
        let Some(newest) = self.0.last() else { return Change::Make };
        if (0..self.0.len()).any(|index| self.end(index).is_some_and(|end| end < now)) {
            return Change::Drop;
        }
        let due = newest.made.saturating_add(PERIOD);
        if due <= now {
            return Change::Make;
        }
        let ends = (0..self.0.len()).filter_map(|index| self.end(index)).map(|end| end.saturating_add(1));
        Change::None(ends.chain([due]).min().unwrap_or(due))
    }

    /// Drops the keys whose last token has expired.
    pub fn drop_expired(&mut self, now: u64) {
        let keep: Vec<bool> =
            (0..self.0.len()).map(|index| self.end(index).is_none_or(|end| end >= now)).collect();
        let mut keep = keep.into_iter();
        self.0.retain(|_| keep.next().unwrap_or(true));
    }

    /// The public halves of all trusted keys, one PEM text: what verifiers are given.
    pub fn published(&self) -> String {
        self.0.iter().rev().map(|key| key.public.trim_end()).fold(String::new(), |all, one| all + one + "\n")
    }

    /// The private half of the key that signs.
    pub fn private(&self, now: u64) -> Option<&str> {
        self.signing(now).and_then(|index| self.0.get(index)).map(|key| key.private.as_str())
    }

    /// A token for an upload.
    ///
    /// # Errors
    /// When there is no key, or the stored one cannot be read.
    pub fn upload(&self, target: &Target, now: u64) -> Result<String, KeyError> {
        self.sign(&Grant::upload(target), now)
    }

    /// A token for a grant.
    ///
    /// # Errors
    /// When there is no key, or the stored one cannot be read.
    pub fn sign(&self, grant: &Grant, now: u64) -> Result<String, KeyError> {
        let key = self.signing(now).and_then(|index| self.0.get(index)).ok_or(KeyError::None)?;
        Signer::from_pem(&key.private)?.sign(grant, now, LIFETIME)
    }
}

#[cfg(test)]
mod tests {
    use api::upload::token::{Keys, PublicKey};

    use super::*;

    /// A small fake key: only its times matter.
    fn key(made: u64) -> Key {
        Key { made, private: format!("private {made}"), public: format!("public {made}\n") }
    }

    #[test]
    fn keys_are_made_announced_used_and_dropped_in_turn() {
        let mut ring = Ring::default();
        assert_eq!(ring.change(1000), Change::Make);
        ring.add(key(1000));
        assert_eq!((ring.signing(1000), ring.change(1000)), (Some(0), Change::None(1000 + PERIOD)));
        let second = 1000 + PERIOD;
        assert_eq!(ring.change(second), Change::Make);
        ring.add(key(second));
        // The old one signs until every verifier has the new one.
        assert_eq!((ring.signing(second), ring.signing(second + ANNOUNCED - 1)), (Some(0), Some(0)));
        assert_eq!(ring.signing(second + ANNOUNCED), Some(1));
        assert_eq!(ring.published(), format!("public {second}\npublic 1000\n"));
        // And is trusted until its last token has expired.
        let end = second + ANNOUNCED + RETIRED;
        assert_eq!(ring.change(second + 1), Change::None(end + 1));
        ring.drop_expired(end);
        assert_eq!(ring.keys().len(), 2);
        assert_eq!(ring.change(end + 1), Change::Drop);
        ring.drop_expired(end + 1);
        assert_eq!((ring.keys().len(), ring.keys()[0].made), (1, second));
        assert!(!format!("{ring:?}").contains("private"));
    }

    #[test]
    fn an_operator_that_was_away_for_long_makes_one_key() {
        let mut ring = Ring::new(vec![key(0)]);
        let now = 20 * PERIOD;
        assert_eq!(ring.change(now), Change::Make);
        ring.add(key(now));
        assert_eq!((ring.signing(now), ring.keys().len()), (Some(0), 2));
        assert!(matches!(ring.change(now), Change::None(_)));
    }

    /// A key pair (RSA, 2048 bits) from openssl, as no crate of this program makes RSA keys.
    fn real(made: u64) -> Key {
        let openssl = |arguments: &[&str], input: &str| {
            use std::io::Write;
            use std::process::{Command, Stdio};
            let mut child = Command::new("openssl")
                .args(arguments)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
        };
        let private = openssl(&["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"], "");
        let public = openssl(&["pkey", "-pubout"], &private);
        Key { made, private, public }
    }

    #[test]
    fn no_token_fails_while_keys_rotate() {
        let (first, second) = (real(0), real(PERIOD));
        let mut ring = Ring::new(vec![first]);
        let mut keys = Keys::default();
        let target = Target::new("n", "disk").unwrap();
        let mut tokens: Vec<(u64, String)> = Vec::new();
        for now in (PERIOD - 400..PERIOD + 1500).step_by(50) {
            match ring.change(now) {
                Change::Make => ring.add(second.clone()),
                Change::Drop => ring.drop_expired(now),
                Change::None(_) => {}
            }
            // The verifier reads what was published up to two minutes ago.
            if now % 100 == 0 {
                keys.replace(PublicKey::all_from_pem(&ring.published()).unwrap(), &[], now);
            }
            if keys.is_empty() {
                continue;
            }
            tokens.push((now, ring.upload(&target, now).unwrap()));
            for (made, token) in &tokens {
                assert_eq!(
                    keys.verify(token, now).is_ok(),
                    made + LIFETIME + LEEWAY >= now,
                    "made {made}, now {now}"
                );
            }
        }
        assert_eq!(ring.keys().len(), 1);
    }
}
