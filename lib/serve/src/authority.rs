//! An authority of the program's own, and the certificates that it signs: when each is replaced, and making them.
//!
//! ```text
//!  authority    ├──────── rotate ────────┤├ overlap ┤      the old one stays in the bundle during the overlap
//!  the next one                           ├──────── rotate ────────┤
//!  certificate  ├ rotate ┤├ overlap ┤       signed by the next authority once the bundle has reached the clients
//! ```
//!
//! [`Store::plan`] decides from the store and a clock of seconds since 1970; it is pure. [`Store::apply`] does one step and
//! is pure but for random keys. Between two steps the caller publishes the store and its bundle, so that clients trust an
//! authority before it signs. Any number of certificates share an authority, each under a name of the caller's.
//!
//! Not here: Secrets, ConfigMaps, webhooks' caBundle; TLS ([`crate::tls`]).

use std::collections::BTreeMap;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::{Deserialize, Serialize};

use crate::client;

/// Longest time between a new bundle and a certificate that needs it: the kubelet brings a bundle into a pod within a
/// minute and its cache's age.
const LEAD: Duration = Duration::from_secs(120);
/// How far clocks of clients may be behind.
const SKEW: Duration = Duration::from_secs(3600);
/// Most authorities that are trusted at once. Two are usual; there is one more each time the stored ones are damaged.
const AUTHORITIES_MAX: usize = 8;
/// The latest end of a certificate, in the year 6325.
const LATEST: Duration = Duration::from_secs(1 << 37);

/// Why there is no certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The intervals contradict each other.
    Intervals,
    /// A stored key cannot be read, or a certificate cannot be made.
    Make,
}

/// An error of this module.
pub type Error = error::Error<Kind>;

/// How long authorities and certificates are used: the four intervals that KubeVirt, CDI and kubemacpool configure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Age at which an authority is followed by the next.
    pub ca_rotate: Duration,
    /// How long the old authority stays in the bundle then.
    pub ca_overlap: Duration,
    /// Age at which a certificate is followed by the next.
    pub cert_rotate: Duration,
    /// How long the old certificate is valid then.
    pub cert_overlap: Duration,
}

impl Intervals {
    /// How long an authority is valid.
    fn validity(&self) -> Duration {
        self.ca_rotate.saturating_add(self.ca_overlap.saturating_mul(2))
    }

    /// Checks the intervals against each other.
    ///
    /// # Errors
    /// [`Kind::Intervals`], with the rule that is broken.
    pub fn check(self) -> Result<Self, Error> {
        let rules = [
            (
                self.ca_overlap.is_zero() || self.cert_overlap.is_zero(),
                "the overlap intervals of certificates must not be 0",
            ),
            (self.ca_rotate < self.ca_overlap, "the authority's rotation is shorter than its overlap"),
            (self.ca_rotate < self.cert_rotate, "the authority's rotation is shorter than the certificates'"),
            (
                self.cert_rotate < self.cert_overlap,
                "the certificates' rotation is shorter than their overlap",
            ),
        ];
        match rules.iter().find(|(broken, _)| *broken) {
            Some((_, why)) => Err(Error::new(Kind::Intervals, *why)),
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
    /// When it was made, in seconds since 1970.
    pub from: u64,
    /// When it ends, in seconds since 1970; 0 in stores of earlier versions.
    #[serde(default)]
    pub until: u64,
}

/// A certificate and the authority that signed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaf {
    /// The certificate.
    pub identity: Identity,
    /// When the authority was made that signed it.
    pub signed_by: u64,
}

/// Purpose of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Common name of its subject.
    pub common_name: String,
    /// DNS names and addresses.
    pub names: Vec<String>,
    /// Whether servers identify themselves with it.
    pub server: bool,
    /// Whether clients identify themselves with it.
    pub client: bool,
}

/// Authorities and certificates: what is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// Authorities, the newest last.
    pub authorities: Vec<Identity>,
    /// Certificates by name.
    pub leaves: BTreeMap<String, Leaf>,
}

/// One change of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make a new authority.
    Authority,
    /// Make the certificate of this name, signed by the authority at this index.
    Sign(String, usize),
    /// Remove all authorities but the newest.
    Forget,
}

impl Store {
    /// The next step of a store that is to hold certificates of these names; `None` if there is nothing to do. One step at
    /// a time: the store and its bundle are to be published between two steps.
    pub fn plan<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        intervals: Intervals,
        now: u64,
    ) -> Option<Step> {
        self.plan_late(names, intervals, Duration::ZERO, now)
    }

    /// The same where the other side learns of an authority as late as `lead`, as a program does that reads its bundle once.
    pub fn plan_late<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
        intervals: Intervals,
        lead: Duration,
        now: u64,
    ) -> Option<Step> {
        let age = |from: u64| Duration::from_secs(now.saturating_sub(from));
        // Made by a clock that was ahead: not valid yet, and never old enough.
        let early = |from: u64| Duration::from_secs(from.saturating_sub(now)) > SKEW;
        // Made with shorter intervals: it would end before it is old enough.
        let ends = |one: &Identity, before: Duration| {
            one.until != 0 && now.saturating_add(before.as_secs()) >= one.until
        };
        let Some((newest, older)) = self.authorities.split_last() else { return Some(Step::Authority) };
        let overlaps = intervals.validity().saturating_sub(intervals.ca_rotate);
        if age(newest.from) >= intervals.ca_rotate || ends(newest, overlaps) || early(newest.from) {
            return Some(Step::Authority);
        }
        let good = |old: &Identity| age(old.from) < intervals.validity() && !early(old.from);
        let lead = lead.max(LEAD.min(intervals.ca_overlap / 2));
        for name in names {
            let leaf = self.leaves.get(name);
            let signed_by = leaf.map(|leaf| leaf.signed_by);
            // The newest authority signs when clients know it, or no other one is good any more.
            let current = older.iter().position(|old| Some(old.from) == signed_by && good(old));
            let trusted = current.or_else(|| older.iter().rposition(good));
            let known = signed_by == Some(newest.from) || age(newest.from) >= lead;
            let signer = trusted.filter(|_| !known).unwrap_or(older.len());
            let signer_from = self.authorities.get(signer).map(|authority| authority.from);
            let due = |leaf: &Leaf| {
                let identity = &leaf.identity;
                age(identity.from) >= intervals.cert_rotate
                    || ends(identity, intervals.cert_overlap)
                    || early(identity.from)
            };
            if leaf.is_none_or(due) || signed_by != signer_from {
                return Some(Step::Sign(name.to_owned(), signer));
            }
        }
        (!older.is_empty() && age(newest.from) >= intervals.ca_overlap).then_some(Step::Forget)
    }

    /// Does a step. `authority` is what the authorities' names begin with, the same for the life of the store; `profile` is
    /// that of the certificate which the step makes.
    ///
    /// # Errors
    /// [`Kind::Make`] when a stored key is damaged, or a certificate cannot be made.
    pub fn apply(
        &self,
        step: &Step,
        authority: &str,
        profile: &Profile,
        intervals: Intervals,
        now: u64,
    ) -> Result<Self, Error> {
        let failed = |error: rcgen::Error| Error::with(Kind::Make, "cannot make a certificate", error);
        let mut store = self.clone();
        match step {
            Step::Authority => {
                let key = KeyPair::generate().map_err(failed)?;
                // Authorities are identified by the second in which they were made, so no two share one.
                let taken = |from: u64| store.authorities.iter().any(|one| one.from == from);
                let from = (now..).find(|from| !taken(*from)).unwrap_or(now);
                let params = authority_params(authority, from, intervals.validity());
                let certificate = params.self_signed(&key).map_err(failed)?.pem();
                let until = from.saturating_add(intervals.validity().as_secs());
                store.authorities.push(Identity { certificate, key: key.serialize_pem(), from, until });
                // A store that is damaged again and again does not grow.
                while store.authorities.len() > AUTHORITIES_MAX {
                    let used = |from: u64| store.leaves.values().any(|leaf| leaf.signed_by == from);
                    let unused = store.authorities.iter().position(|one| !used(one.from));
                    store.authorities.remove(unused.unwrap_or(0));
                }
            }
            Step::Sign(name, signer) => {
                let Some(by) = self.authorities.get(*signer) else {
                    return Err(Error::new(Kind::Make, "the authority to sign with does not exist"));
                };
                let identity = sign(authority, by, profile, intervals, now).map_err(failed)?;
                store.leaves.insert(name.clone(), Leaf { identity, signed_by: by.from });
            }
            Step::Forget => drop(store.authorities.drain(..store.authorities.len().saturating_sub(1))),
        }
        Ok(store)
    }

    /// The certificates of all authorities, the newest first: what clients trust.
    pub fn bundle(&self) -> String {
        self.authorities.iter().rev().map(|authority| authority.certificate.as_str()).collect()
    }
}

fn sign(
    authority: &str,
    by: &Identity,
    profile: &Profile,
    intervals: Intervals,
    now: u64,
) -> Result<Identity, rcgen::Error> {
    let mut issuer = authority_params(authority, by.from, Duration::ZERO);
    // Its name is the subject of its certificate.
    let shown = CertificateDer::from_pem_slice(by.certificate.as_bytes()).ok();
    if let Some(name) = shown.as_ref().and_then(client::common_name) {
        issuer.distinguished_name = named(&name);
    }
    let issuer = Issuer::new(issuer, KeyPair::from_pem(&by.key)?);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::new(profile.names.clone())?;
    params.distinguished_name = named(&profile.common_name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    let usages = [
        (profile.server, ExtendedKeyUsagePurpose::ServerAuth),
        (profile.client, ExtendedKeyUsagePurpose::ClientAuth),
    ];
    params.extended_key_usages =
        usages.into_iter().filter(|(wanted, _)| *wanted).map(|(_, usage)| usage).collect();
    let valid = intervals.cert_rotate.saturating_add(intervals.cert_overlap);
    during(&mut params, now, valid);
    let certificate = params.signed_by(&key, &issuer)?.pem();
    let until = now.saturating_add(valid.as_secs());
    Ok(Identity { certificate, key: key.serialize_pem(), from: now, until })
}

/// The parameters of the authority of a time: the same whenever they are made, except for the validity.
fn authority_params(name: &str, from: u64, valid: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    params.distinguished_name = named(&format!("{name}@{from}"));
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
    // Within the years that dates can express.
    let date = |since: Duration| rcgen::date_time_ymd(1970, 1, 1) + since.min(LATEST);
    params.not_before = date(from.saturating_sub(SKEW));
    params.not_after = date(from.saturating_add(valid));
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    fn intervals(seconds: [u64; 4]) -> Intervals {
        let [ca_rotate, ca_overlap, cert_rotate, cert_overlap] = seconds.map(Duration::from_secs);
        Intervals { ca_rotate, ca_overlap, cert_rotate, cert_overlap }
    }

    fn profile() -> Profile {
        let names = vec!["a.b.svc".to_owned()];
        Profile { common_name: "a.b.svc".to_owned(), names, server: true, client: true }
    }

    /// Does a step without keys.
    fn fake(store: &mut Store, step: &Step, now: u64) {
        let identity = Identity { certificate: String::new(), key: String::new(), from: now, until: 0 };
        match step {
            Step::Authority => store.authorities.push(identity),
            Step::Sign(name, signer) => {
                let signed_by = store.authorities[*signer].from;
                store.leaves.insert(name.clone(), Leaf { identity, signed_by });
            }
            Step::Forget => drop(store.authorities.drain(..store.authorities.len() - 1)),
        }
    }

    #[test]
    fn contradicting_intervals_are_refused() {
        assert!(intervals([48, 24, 24, 12]).check().is_ok());
        for wrong in [[10, 20, 5, 5], [10, 5, 20, 5], [48, 24, 5, 10], [48, 0, 24, 12], [48, 24, 24, 0]] {
            assert!(intervals(wrong).check().is_err(), "{wrong:?}");
        }
    }

    /// The defaults with seconds for hours, and shorter ones, second by second: at any time clients of a bundle that is some
    /// seconds old trust both certificates, which are valid, and no step is taken without need.
    #[test]
    fn clients_trust_every_certificate_at_any_second() {
        for (given, end, authorities) in [([48, 24, 24, 12], 200, 5), ([20, 10, 5, 3], 200, 10)] {
            let intervals = intervals(given);
            let mut store = Store::default();
            let mut bundles: Vec<Vec<u64>> = Vec::new();
            let mut made = 0;
            for now in 1000..1000 + end {
                let mut steps = 0;
                while let Some(step) = store.plan(["one", "two"], intervals, now) {
                    made += u32::from(step == Step::Authority);
                    fake(&mut store, &step, now);
                    steps += 1;
                    assert!(steps < 6, "no end at {now}: {store:?}");
                }
                let bundle: Vec<u64> = store.authorities.iter().map(|authority| authority.from).collect();
                assert!(bundle.len() <= 2, "{now}: {bundle:?}");
                let before = bundles.len().checked_sub(3).map(|at| &bundles[at]);
                for name in ["one", "two"] {
                    let leaf = &store.leaves[name];
                    assert!(bundle.contains(&leaf.signed_by), "{now}: {bundle:?}");
                    assert!(
                        now - leaf.identity.from < given[2] && now - leaf.signed_by < given[0] + given[1]
                    );
                    assert!(
                        before.is_none_or(|before| before.contains(&leaf.signed_by)),
                        "{now}: {before:?}"
                    );
                }
                bundles.push(bundle);
            }
            assert_eq!(made, authorities);
        }
    }

    #[test]
    fn certificates_that_end_before_they_are_old_enough_are_replaced() {
        let (short, long) = (intervals([48, 24, 24, 12]), intervals([480, 240, 240, 120]));
        let (start, now) = (1_700_000_000, 1_700_000_010);
        let mut store = Store::default();
        while let Some(step) = store.plan(["one"], short, start) {
            store = store.apply(&step, "ca", &profile(), short, start).unwrap();
        }
        assert_eq!(store.plan(["one"], short, now), None);
        let mut steps = Vec::new();
        while let Some(step) = store.plan(["one"], long, now) {
            store = store.apply(&step, "ca", &profile(), long, now).unwrap();
            steps.push(step);
            assert!(steps.len() < 6, "{steps:?}");
        }
        assert_eq!(steps[0], Step::Authority);
        let until = |one: &Identity| one.until - now;
        assert_eq!((until(&store.authorities[1]), until(&store.leaves["one"].identity)), (960, 360));
    }

    #[test]
    fn certificates_from_wrong_clocks_or_long_ago_are_replaced_at_once() {
        let intervals = intervals([48, 24, 24, 12].map(|hours| hours * HOUR));
        let now = 1_700_000_000;
        for (authority, serving) in [(1, 1), (now - 200 * HOUR, now), (now + 9000, now), (now, now + 9000)] {
            let identity = |from| Identity { certificate: String::new(), key: String::new(), from, until: 0 };
            let leaf = Leaf { identity: identity(serving), signed_by: authority };
            let mut store = Store {
                authorities: vec![identity(authority)],
                leaves: BTreeMap::from([("one".to_owned(), leaf)]),
            };
            let mut steps = 0;
            while let Some(step) = store.plan(["one"], intervals, now) {
                assert_ne!(step, Step::Forget);
                fake(&mut store, &step, now);
                steps += 1;
                assert!(steps < 4, "{store:?}");
            }
            let leaf = &store.leaves["one"];
            assert_eq!((leaf.signed_by, leaf.identity.from), (now, now), "{authority} {serving}");
        }
    }

    /// After a year without power, after a clock that ran ahead, and after one that ran behind, one round of steps leads to
    /// certificates that are valid now and signed by an authority of the bundle.
    #[test]
    fn one_round_of_steps_recovers_from_a_year_without_power_and_from_wrong_clocks() {
        const YEAR: u64 = 365 * 24 * HOUR;
        let intervals = intervals([48, 24, 24, 12].map(|hours| hours * HOUR));
        let round = |store: &mut Store, now: u64| {
            let mut steps = 0;
            while let Some(step) = store.plan(["one", "two"], intervals, now) {
                *store = store.apply(&step, "ca", &profile(), intervals, now).unwrap();
                steps += 1;
                assert!(steps < 8, "{step:?}");
            }
        };
        let start = 1_800_000_000;
        for now in [start + YEAR, start - YEAR, start + 49 * HOUR, start - 2 * HOUR] {
            let mut store = Store::default();
            round(&mut store, start);
            let before = store.bundle();
            round(&mut store, now);
            for name in ["one", "two"] {
                let leaf = &store.leaves[name];
                assert!(leaf.identity.from <= now + SKEW.as_secs() && now < leaf.identity.until, "{now}");
                let by = store.authorities.iter().find(|one| one.from == leaf.signed_by).unwrap();
                assert!(by.from <= now + SKEW.as_secs() && now < by.until, "{now}");
            }
            assert_ne!(store.bundle(), before, "{now}: clients get the new authority");
        }
    }

    #[test]
    fn authorities_of_one_second_differ_and_those_in_use_stay() {
        let intervals = intervals([48, 24, 24, 12]);
        let mut store = Store::default();
        let more = |store: &Store| {
            store.apply(&Step::Authority, "ca", &profile(), intervals, 1_700_000_000).unwrap()
        };
        let times = |store: &Store| -> Vec<u64> {
            store.authorities.iter().map(|one| one.from - 1_700_000_000).collect()
        };
        for _ in 0..3 {
            store = more(&store);
        }
        assert_eq!(times(&store), [0, 1, 2]);
        store = store
            .apply(&Step::Sign("one".to_owned(), 1), "ca", &profile(), intervals, 1_700_000_000)
            .unwrap();
        for _ in 0..AUTHORITIES_MAX {
            store = more(&store);
        }
        let left: std::collections::BTreeSet<u64> = times(&store).into_iter().collect();
        assert!(left.len() == AUTHORITIES_MAX && times(&store).len() == AUTHORITIES_MAX && left.contains(&1));
    }

    #[test]
    fn certificates_are_trusted_by_the_bundle_in_both_roles() {
        let intervals = intervals([48, 24, 24, 12].map(|hours| hours * HOUR));
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let mut store = Store::default();
        while let Some(step) = store.plan(["one"], intervals, now) {
            store = store.apply(&step, "ca", &profile(), intervals, now).unwrap();
            if step == Step::Authority {
                // A store that was edited: the authority's certificate has its name as before.
                store.authorities[0].from -= 5 * HOUR;
            }
        }
        let read: Store = serde_json::from_str(&serde_json::to_string(&store).unwrap()).unwrap();
        assert_eq!(read, store);
        let Identity { certificate, key, .. } = &store.leaves["one"].identity;
        let client = crate::tls::client_config(&store.bundle(), Some((certificate, key))).unwrap();
        let identity = crate::tls::Identity {
            certificate: crate::tls::Certificate::Pem { chain: certificate.clone(), key: key.clone() },
            ..crate::tls::Identity::self_signed()
        };
        let authorities = crate::tls::Authorities::Pem(store.bundle());
        let server =
            identity.server_config(Some(&crate::tls::Clients { authorities, required: true })).unwrap();
        let name = rustls::pki_types::ServerName::try_from("a.b.svc").unwrap();
        let mut client = rustls::ClientConnection::new(client.into(), name).unwrap();
        let mut server = rustls::ServerConnection::new(server.into()).unwrap();
        while client.is_handshaking() || server.is_handshaking() {
            let mut sent = Vec::new();
            client.write_tls(&mut sent).unwrap();
            server.read_tls(&mut &sent[..]).unwrap();
            server.process_new_packets().unwrap();
            let mut sent = Vec::new();
            server.write_tls(&mut sent).unwrap();
            client.read_tls(&mut &sent[..]).unwrap();
            client.process_new_packets().unwrap();
        }
        let shown = &server.peer_certificates().unwrap()[0];
        assert_eq!(crate::client::common_name(shown).as_deref(), Some("a.b.svc"));
    }
}
