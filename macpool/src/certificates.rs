//! The certificate of the webhook: its names, and the store of it and its authorities as the Secret has it. Pure but for
//! random keys.
//!
//! Not here: when which certificate is replaced ([`serve::authority`]); the Secret, the webhook's caBundle
//! ([`crate::store`]).

use serde::{Deserialize, Serialize};
use serve::authority::{self, Identity, Intervals, Leaf, Profile, Step};

use crate::error::{Error, Kind, Result};

/// The beginning of the authorities' names, which is upstream's.
const AUTHORITY: &str = "kubemacpool-ca";
/// The only certificate.
const LEAF: &str = "webhook";

/// Authorities and the certificate that is served. Its form in the Secret is the first release's: replicas of every version
/// read and write it, and an upgrade keeps the authority that clients trust.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Authorities, the newest last.
    pub authorities: Vec<Identity>,
    /// The certificate that is served.
    pub serving: Option<Identity>,
    /// When the authority was made that signed it.
    pub signed_by: u64,
}

impl Store {
    /// The next step, if one is due. The bundle is published between two steps.
    pub fn plan(&self, intervals: Intervals, now: u64) -> Option<Step> {
        self.shared().plan([LEAF], intervals, now)
    }

    /// Does a step; the certificate is for `names`, of which the first is its subject.
    ///
    /// # Errors
    /// [`Kind::Internal`] when keys or certificates cannot be made.
    pub fn apply(&self, step: &Step, names: &[String], intervals: Intervals, now: u64) -> Result<Self> {
        // A replica is a client of the others with it.
        let common_name = names.first().cloned().unwrap_or_default();
        let profile = Profile { common_name, names: names.to_vec(), server: true, client: true };
        let made = self.shared().apply(step, AUTHORITY, &profile, intervals, now);
        let mut made =
            made.map_err(|error| Error::with(Kind::Internal, "the certificates cannot be renewed", error))?;
        let (serving, signed_by) = match made.leaves.remove(LEAF) {
            Some(Leaf { identity, signed_by }) => (Some(identity), signed_by),
            None => (None, 0),
        };
        Ok(Self { authorities: made.authorities, serving, signed_by })
    }

    /// All authorities' certificates: those that clients trust.
    pub fn bundle(&self) -> String {
        self.shared().bundle()
    }

    fn shared(&self) -> authority::Store {
        let leaf = self.serving.clone().map(|identity| Leaf { identity, signed_by: self.signed_by });
        let leaves = leaf.into_iter().map(|leaf| (LEAF.to_owned(), leaf)).collect();
        authority::Store { authorities: self.authorities.clone(), leaves }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn intervals() -> Intervals {
        Intervals {
            ca_rotate: HOUR * 48,
            ca_overlap: HOUR * 24,
            cert_rotate: HOUR * 24,
            cert_overlap: HOUR * 12,
        }
    }

    fn settled(mut store: Store, now: u64) -> Store {
        while let Some(step) = store.plan(intervals(), now) {
            store = store.apply(&step, &["kubemacpool-service.ns.svc".to_owned()], intervals(), now).unwrap();
        }
        store
    }

    #[test]
    fn a_settled_store_serves_a_certificate_of_its_only_authority() {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let store = settled(Store::default(), now);
        assert_eq!(store.bundle().matches("BEGIN CERTIFICATE").count(), 1);
        assert_eq!((store.authorities.len(), store.signed_by), (1, store.authorities[0].from));
        let read: Store = serde_json::from_str(&serde_json::to_string(&store).unwrap()).unwrap();
        assert_eq!(read, store);
        let offer = crate::tls::TlsProfile { only_tls13: true, ciphers: Vec::new() };
        assert!(crate::tls::Material::new(&store, &offer).is_ok());
    }

    /// As the first release wrote it: without the ends of certificates.
    #[test]
    fn a_store_of_the_first_release_keeps_its_authority() {
        let now = 1_800_000_000;
        let store = settled(Store::default(), now);
        let mut text = serde_json::to_value(&store).unwrap();
        for identity in ["/authorities/0", "/serving"] {
            text.pointer_mut(identity).unwrap().as_object_mut().unwrap().remove("until").unwrap();
        }
        let keys: Vec<&String> = text.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["authorities", "serving", "signed_by"]);
        let read: Store = serde_json::from_value(text).unwrap();
        assert_eq!(read.plan(intervals(), now), None);
        // A day later the certificate is due, signed by the same authority.
        let next = settled(read, now + 25 * HOUR.as_secs());
        assert_eq!((next.bundle(), next.signed_by), (store.bundle(), store.signed_by));
        assert_ne!(next.serving, store.serving);
    }
}
