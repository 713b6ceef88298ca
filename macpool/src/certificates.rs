//! Who the webhook is: an authority of its own, the certificate it signs, and when each is made anew. Pure but for random
//! keys: what is decided follows from the store and a clock of seconds since 1970.
//!
//! ```text
//!  authority  ├──────── rotate ────────┤├ overlap ┤          the old one stays in the bundle during the overlap
//!  the next                             ├──────── rotate ────────┤
//!  certificate ├ rotate ┤├ overlap ┤     it is signed by the next authority when the bundle is known everywhere
//! ```
//!
//! Not here: the Secret, the webhook's caBundle ([`crate::upkeep`]).

use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result};

/// Longest time between a new bundle and a certificate that needs it.
const LEAD: Duration = Duration::from_secs(30);
/// Clocks of others may be behind ours.
const SKEW: Duration = Duration::from_secs(3600);
/// Most authorities that are trusted at once. Two are usual; there is one more each time the Secret is damaged.
const AUTHORITIES_MAX: usize = 8;
/// The latest end of a certificate, in the year 6325.
const LATEST: Duration = Duration::from_secs(1 << 37);

/// When what is made anew: upstream's four intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Age at which an authority is followed by the next.
    pub ca_rotate: Duration,
    /// How long the old one stays then.
    pub ca_overlap: Duration,
    /// Age at which a certificate is followed by the next.
    pub cert_rotate: Duration,
    /// How long the old one is good then.
    pub cert_overlap: Duration,
}

impl Intervals {
    /// How long an authority is good.
    fn validity(&self) -> Duration {
        self.ca_rotate.saturating_add(self.ca_overlap.saturating_mul(2))
    }

    /// Checks them against each other.
    ///
    /// # Errors
    /// [`Kind::Invalid`], with the rule.
    pub fn check(self) -> Result<Self> {
        let rules = [
            (self.ca_overlap.is_zero() || self.cert_overlap.is_zero(), "an overlap is zero"),
            (self.ca_rotate < self.ca_overlap, "CA_ROTATE_INTERVAL is less than CA_OVERLAP_INTERVAL"),
            (self.ca_rotate < self.cert_rotate, "CA_ROTATE_INTERVAL is less than CERT_ROTATE_INTERVAL"),
            (self.cert_rotate < self.cert_overlap, "CERT_ROTATE_INTERVAL is less than CERT_OVERLAP_INTERVAL"),
        ];
        match rules.iter().find(|(broken, _)| *broken) {
            Some((_, why)) => Err(Error::new(Kind::Invalid, *why)),
            None => Ok(self),
        }
    }
}

/// An authority or a certificate, as PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// When it was made.
    pub from: u64,
}

/// What the Secret holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Authorities, the newest last.
    pub authorities: Vec<Identity>,
    /// The certificate that is served.
    pub serving: Option<Identity>,
    /// When the authority was made that signed it.
    pub signed_by: u64,
}

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A new authority.
    Authority,
    /// A certificate, signed by the authority at this place.
    Sign(usize),
    /// Authorities but the newest go.
    Forget,
}

impl Store {
    /// Decides. One step at a time: the bundle is published between them.
    pub fn plan(&self, intervals: Intervals, now: u64) -> Option<Step> {
        let age = |from: u64| Duration::from_secs(now.saturating_sub(from));
        // Made by a clock that was ahead: not valid yet, and never old enough.
        let early = |from: u64| Duration::from_secs(from.saturating_sub(now)) > SKEW;
        let Some((newest, older)) = self.authorities.split_last() else { return Some(Step::Authority) };
        if age(newest.from) >= intervals.ca_rotate || early(newest.from) {
            return Some(Step::Authority);
        }
        // The newest one signs when clients know it, or nothing else is good any more.
        let good = |old: &Identity| age(old.from) < intervals.validity() && !early(old.from);
        let current = older.iter().position(|old| old.from == self.signed_by && good(old));
        let trusted = current.or_else(|| older.iter().rposition(good));
        let known = self.signed_by == newest.from || age(newest.from) >= LEAD.min(intervals.ca_overlap / 2);
        let signer = trusted.filter(|_| !known).unwrap_or(older.len());
        let signer_from = self.authorities.get(signer).map_or(0, |authority| authority.from);
        let due = |serving: &Identity| age(serving.from) >= intervals.cert_rotate || early(serving.from);
        if self.serving.as_ref().is_none_or(due) || self.signed_by != signer_from {
            return Some(Step::Sign(signer));
        }
        (!older.is_empty() && age(newest.from) >= intervals.ca_overlap).then_some(Step::Forget)
    }

    /// Does a step.
    ///
    /// # Errors
    /// [`Kind::Internal`] when keys or certificates cannot be made.
    pub fn apply(&self, step: Step, names: &[String], intervals: Intervals, now: u64) -> Result<Self> {
        let failed = |error: rcgen::Error| Error::caused(Kind::Internal, "cannot make a certificate", error);
        let mut store = self.clone();
        match step {
            Step::Authority => {
                let key = KeyPair::generate().map_err(failed)?;
                // No two are of one second: that is what they are called by.
                let taken = |from: u64| store.authorities.iter().any(|one| one.from == from);
                let from = (now..).find(|from| !taken(*from)).unwrap_or(now);
                let certificate =
                    authority(from, intervals.validity()).self_signed(&key).map_err(failed)?.pem();
                store.authorities.push(Identity { certificate, key: key.serialize_pem(), from });
                // Whoever damages the Secret again and again does not make it grow.
                while store.authorities.len() > AUTHORITIES_MAX {
                    let unused = store.authorities.iter().position(|one| one.from != store.signed_by);
                    store.authorities.remove(unused.unwrap_or(0));
                }
            }
            Step::Sign(signer) => {
                let Some(by) = self.authorities.get(signer) else {
                    return Err(Error::new(Kind::Internal, "no authority to sign with"));
                };
                let issuer_key = KeyPair::from_pem(&by.key).map_err(failed)?;
                let issuer = Issuer::new(authority(by.from, Duration::ZERO), issuer_key);
                let key = KeyPair::generate().map_err(failed)?;
                let mut params = CertificateParams::new(names).map_err(failed)?;
                params.distinguished_name = named(names.first().map_or("", String::as_str));
                params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
                // A replica is a client of the others with it.
                params.extended_key_usages =
                    vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
                during(&mut params, now, intervals.cert_rotate.saturating_add(intervals.cert_overlap));
                let certificate = params.signed_by(&key, &issuer).map_err(failed)?.pem();
                store.serving = Some(Identity { certificate, key: key.serialize_pem(), from: now });
                store.signed_by = by.from;
            }
            Step::Forget => drop(store.authorities.drain(..store.authorities.len().saturating_sub(1))),
        }
        Ok(store)
    }

    /// All authorities' certificates: what clients trust.
    pub fn bundle(&self) -> String {
        self.authorities.iter().rev().map(|authority| authority.certificate.as_str()).collect()
    }
}

/// The parameters of the authority of a time: the same whenever they are made, its validity aside.
fn authority(from: u64, valid: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.distinguished_name = named(&format!("kubemacpool-ca@{from}"));
    during(&mut params, from, valid);
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

fn during(params: &mut CertificateParams, from: u64, valid: Duration) {
    let from = Duration::from_secs(from);
    // In the years that dates have.
    let date = |since: Duration| rcgen::date_time_ymd(1970, 1, 1) + since.min(LATEST);
    params.not_before = date(from.saturating_sub(SKEW));
    params.not_after = date(from.saturating_add(valid));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn intervals(seconds: [u64; 4]) -> Intervals {
        let [ca_rotate, ca_overlap, cert_rotate, cert_overlap] = seconds.map(Duration::from_secs);
        Intervals { ca_rotate, ca_overlap, cert_rotate, cert_overlap }
    }

    #[test]
    fn intervals_that_cannot_be() {
        assert!(intervals([48, 24, 24, 12]).check().is_ok());
        for wrong in [[10, 20, 5, 5], [10, 5, 20, 5], [48, 24, 5, 10], [48, 0, 24, 12], [48, 24, 24, 0]] {
            assert!(intervals(wrong).check().is_err(), "{wrong:?}");
        }
    }

    /// Two days of upstream's defaults, and the fastest that is promised, second by second: at any time clients of the
    /// bundle trust the certificate, that is in date, and nothing is done without need.
    #[test]
    fn every_second_is_covered() {
        for (given, end, authorities) in [([48, 24, 24, 12], 200, 5), ([20, 10, 5, 3], 200, 10)] {
            let intervals = intervals(given);
            let mut store = Store::default();
            let mut bundles: Vec<Vec<u64>> = Vec::new();
            let mut made = 0;
            for now in 1000..1000 + end {
                let mut steps = 0;
                while let Some(step) = store.plan(intervals, now) {
                    // Keys are of no interest here.
                    let identity = Identity { certificate: String::new(), key: String::new(), from: now };
                    match step {
                        Step::Authority => {
                            store.authorities.push(identity);
                            made += 1;
                        }
                        Step::Sign(signer) => {
                            store.serving = Some(identity);
                            store.signed_by = store.authorities[signer].from;
                        }
                        Step::Forget => drop(store.authorities.drain(..store.authorities.len() - 1)),
                    }
                    steps += 1;
                    assert!(steps < 4, "no end at {now}: {store:?}");
                }
                let bundle: Vec<u64> = store.authorities.iter().map(|authority| authority.from).collect();
                assert!(bundle.len() <= 2 && bundle.contains(&store.signed_by), "{now}: {bundle:?}");
                let serving = store.serving.as_ref().unwrap().from;
                assert!(now - serving < given[2] && now - store.signed_by < given[0] + given[1], "{now}");
                // A client whose bundle is some seconds old trusts it too.
                if let Some(before) = bundles.len().checked_sub(3).map(|at| &bundles[at]) {
                    assert!(before.contains(&store.signed_by), "{now}: {before:?}");
                }
                bundles.push(bundle);
            }
            assert_eq!(made, authorities);
        }
    }

    /// Clocks that were wrong, machines that were off: what is not good is made anew at once, and that is enough.
    #[test]
    fn what_time_has_made_useless_is_replaced_at_once() {
        let intervals = intervals([48, 24, 24, 12].map(|hours| hours * 3600));
        let now = 1_700_000_000;
        for (authority, serving) in [(1, 1), (now - 200 * 3600, now), (now + 9000, now), (now, now + 9000)] {
            let identity = |from| Identity { certificate: String::new(), key: String::new(), from };
            let mut store = Store {
                authorities: vec![identity(authority)],
                serving: Some(identity(serving)),
                signed_by: authority,
            };
            let mut steps = 0;
            while let Some(step) = store.plan(intervals, now) {
                match step {
                    Step::Authority => store.authorities.push(identity(now)),
                    Step::Sign(signer) => {
                        store.serving = Some(identity(now));
                        store.signed_by = store.authorities[signer].from;
                    }
                    Step::Forget => panic!("{store:?}"),
                }
                steps += 1;
                assert!(steps < 4, "{store:?}");
            }
            assert_eq!((store.signed_by, store.serving.unwrap().from), (now, now), "{authority} {serving}");
        }
    }

    #[test]
    fn authorities_of_one_second_are_two() {
        let intervals = intervals([48, 24, 24, 12]);
        let mut store = Store::default();
        let more = |store: &Store| store.apply(Step::Authority, &[], intervals, 1_700_000_000).unwrap();
        let times = |store: &Store| -> Vec<u64> {
            store.authorities.iter().map(|one| one.from - 1_700_000_000).collect()
        };
        for _ in 0..3 {
            store = more(&store);
        }
        assert_eq!(times(&store), [0, 1, 2]);
        // However often: the one that has signed what is in use stays.
        store.signed_by = 1_700_000_001;
        for _ in 0..AUTHORITIES_MAX {
            store = more(&store);
        }
        let left: std::collections::BTreeSet<u64> = times(&store).into_iter().collect();
        assert!(left.len() == AUTHORITIES_MAX && times(&store).len() == AUTHORITIES_MAX && left.contains(&1));
    }

    #[test]
    fn certificates_are_signed_by_the_authority_that_is_named() {
        let intervals = intervals([48, 24, 24, 12]);
        let names = ["kubemacpool-service.ns.svc".to_owned()];
        let mut store = Store::default();
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        while let Some(step) = store.plan(intervals, now) {
            store = store.apply(step, &names, intervals, now).unwrap();
        }
        assert_eq!(store.bundle().matches("BEGIN CERTIFICATE").count(), 1);
        let read: Store = serde_json::from_str(&serde_json::to_string(&store).unwrap()).unwrap();
        assert_eq!(read, store);
        let offer = crate::tls::Offer { only_tls13: true, ciphers: Vec::new() };
        assert!(crate::tls::Material::new(&store, &offer).is_ok());
    }
}
