//! Certificates of transfers: three authorities in Secrets of the platform's namespace, each with its bundle, and the
//! certificates that they sign.
//!
//! | authority | signs | trusted by |
//! |---|---|---|
//! | cdi-uploadproxy-signer | the upload proxy's server | clients of uploads |
//! | cdi-uploadserver-signer | each upload server | upload proxy, sending pods of clones |
//! | cdi-uploadserver-client-signer | the upload proxy as client, sending pods of clones | upload servers |
//!
//! Not here: storing and replacing authorities ([`crate::authority`]); keys of tokens (`keys`).

use std::sync::{PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster::{Client, Scope};
use serde_json::{Value, json};
use serve::authority::{Identity, Intervals, Profile, Step, Store};
use serve::tls::profile_text;

use super::resources::CDIS;
use super::settings::{self, Settings};
use crate::authority::Keeper;
use crate::lifetimes;

const PROXY_SIGNER: &str = "cdi-uploadproxy-signer";
const SERVER_SIGNER: &str = "cdi-uploadserver-signer";
const CLIENT_SIGNER: &str = "cdi-uploadserver-client-signer";
/// The Secrets that the upload proxy mounts.
const PROXY_SECRET: &str = "cdi-uploadproxy-server-cert";
const PROXY_CLIENT_SECRET: &str = "cdi-uploadserver-client-cert";
/// Entry of the bundles' ConfigMaps.
const ENTRY: &str = "ca-bundle.crt";
/// Name of an authority's only stored certificate.
const LEAF: &str = "leaf";

/// When authorities and certificates are replaced.
#[derive(Clone, Copy, Debug)]
struct Times {
    servers: Intervals,
    clients: Intervals,
}

impl Times {
    /// As the spec of a CDI object asks.
    fn of(spec: &Value) -> Self {
        let [servers, clients] = lifetimes::of_cdi(spec).map(|one| one.intervals);
        Self { servers, clients }
    }

    /// How long an upload server waits for its upload.
    fn patience(&self) -> Duration {
        lifetimes::patience(&self.servers)
    }

    /// Upload servers read the authorities of their clients once, when they start: a new authority signs for clients when
    /// no server is left that does not know it, with half as long for a transfer that begins at the last moment.
    fn client_lead(&self) -> Duration {
        self.patience() * 3 / 2
    }
}

impl Default for Times {
    fn default() -> Self {
        Self::of(&Value::Null)
    }
}

/// The authorities as they are now.
#[derive(Clone, Debug, Default)]
struct Known {
    proxy: Store,
    servers: Store,
    clients: Store,
    times: Times,
}

impl Known {
    /// When each authority and stored certificate ends.
    fn ends(&self) -> Vec<(String, u64)> {
        let stores = [
            (PROXY_SIGNER, PROXY_SECRET, &self.proxy),
            (SERVER_SIGNER, "", &self.servers),
            (CLIENT_SIGNER, PROXY_CLIENT_SECRET, &self.clients),
        ];
        let of = |(signer, secret, store): (&str, &str, &Store)| {
            let authority = store.authorities.last().map(|one| (signer.to_owned(), one.until));
            let leaf = store.leaves.get(LEAF).map(|leaf| (secret.to_owned(), leaf.identity.until));
            authority.into_iter().chain(leaf)
        };
        stores.into_iter().flat_map(of).collect()
    }
}

/// Signs certificates of transfers.
#[derive(Debug, Default)]
pub struct Signers(RwLock<Known>);

/// A certificate with the bundle that its peer is verified by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Issued {
    /// Certificate and key.
    pub identity: Identity,
    /// Authorities of the other side, PEM.
    pub trusted: String,
}

impl Signers {
    /// Does what is due, and publishes it.
    ///
    /// # Errors
    /// Those of the API server; what was known before stays in use.
    pub(super) async fn reconcile(&self, client: &Client, namespace: &str) -> cluster::Result<()> {
        let now = now();
        let all = match client.list::<Value>(CDIS, &Scope::all()).await {
            // The kind is not installed yet.
            Err(error) if error.is_not_found() => Vec::new(),
            listed => listed?,
        };
        let spec = settings::effective(&all).map_or(&Value::Null, |cdi| &cdi["spec"]);
        let times = Times::of(spec);
        let Settings { tls_version, tls_ciphers, .. } = Settings::from(&json!({"spec": spec["config"]}));
        let profile = (api::upload::PROXY_PROFILE, profile_text(&tls_version, &tls_ciphers));
        let keeper = |secret, bundle, intervals, lead| Keeper {
            client,
            namespace,
            secret,
            bundle,
            entry: ENTRY,
            intervals,
            lead,
        };
        let of_proxy = keeper(PROXY_SIGNER, "cdi-uploadproxy-signer-bundle", times.servers, Duration::ZERO);
        let proxy = of_proxy.advance(&[LEAF], |_| proxy_profile(namespace), now).await?;
        let of_clients = keeper(
            CLIENT_SIGNER,
            "cdi-uploadserver-client-signer-bundle",
            times.clients,
            times.client_lead(),
        );
        let client_profile = |_: &str| client_profile(api::upload::PROXY_CLIENT);
        let clients = of_clients.advance(&[LEAF], client_profile, now).await?;
        let of_servers =
            keeper(SERVER_SIGNER, "cdi-uploadserver-signer-bundle", times.servers, Duration::ZERO);
        let servers = of_servers.advance(&[], |_| server_profile(""), now).await?;
        for (keeper, store, secret, further) in [
            (&of_proxy, &proxy, PROXY_SECRET, &[profile][..]),
            (&of_clients, &clients, PROXY_CLIENT_SECRET, &[]),
        ] {
            if let Some(leaf) = store.leaves.get(LEAF) {
                keeper.deliver(secret, &leaf.identity, further).await?;
            }
        }
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Known { proxy, servers, clients, times };
        Ok(())
    }

    /// When each authority and stored certificate ends: name, and seconds since 1970.
    pub(super) fn ends(&self) -> Vec<(String, u64)> {
        self.known().ends()
    }

    /// How long an upload server waits for its upload. A transfer that begins then has as long again until its
    /// certificate's authority leaves the bundle.
    pub fn patience(&self) -> Duration {
        self.known().times.patience()
    }

    fn known(&self) -> Known {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The bundle that clients of the upload proxy trust, PEM; empty before the first reconciliation.
    pub fn proxy_bundle(&self) -> String {
        self.known().proxy.bundle()
    }

    /// A certificate for the upload server with this host name.
    ///
    /// # Errors
    /// When no authority is known yet.
    pub fn server(&self, host: &str) -> cluster::Result<Issued> {
        let known = self.known();
        let (times, profile) = (known.times, server_profile(host));
        let identity = issue(&known.servers, SERVER_SIGNER, times.servers, Duration::ZERO, &profile, now())?;
        Ok(Issued { identity, trusted: known.clients.bundle() })
    }

    /// A certificate for a client of upload servers with this common name.
    ///
    /// # Errors
    /// When no authority is known yet.
    pub fn client(&self, name: &str) -> cluster::Result<Issued> {
        let known = self.known();
        let (times, profile) = (known.times, client_profile(name));
        let identity =
            issue(&known.clients, CLIENT_SIGNER, times.clients, times.client_lead(), &profile, now())?;
        Ok(Issued { identity, trusted: known.servers.bundle() })
    }
}

/// Seconds of Unix time.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Signs a certificate that is not stored, by the authority that its peers know.
fn issue(
    store: &Store,
    authority: &str,
    intervals: Intervals,
    lead: Duration,
    profile: &Profile,
    now: u64,
) -> cluster::Result<Identity> {
    const NAME: &str = "issued";
    let unknown = || {
        let text = format!("authority {authority} is not ready yet");
        cluster::Error::new(cluster::Kind::Unreadable, text)
    };
    let mut fresh = Store { authorities: store.authorities.clone(), ..Store::default() };
    // An authority that is due for its successor signs until the successor is published.
    let newest = fresh.authorities.last().ok_or_else(unknown)?.from;
    let at = now.clamp(newest, newest.saturating_add(intervals.ca_rotate.as_secs().saturating_sub(1)));
    let Some(step @ Step::Sign(..)) = fresh.plan_late([NAME], intervals, lead, at) else {
        return Err(unknown());
    };
    fresh = fresh.apply(&step, authority, profile, intervals, now).map_err(|error| {
        let text = format!("cannot sign; delete the Secret {authority} to begin again");
        cluster::Error::caused(cluster::Kind::Input, text, error)
    })?;
    fresh.leaves.remove(NAME).map(|leaf| leaf.identity).ok_or_else(unknown)
}

fn proxy_profile(namespace: &str) -> Profile {
    const SERVICE: &str = "cdi-uploadproxy";
    Profile {
        common_name: SERVICE.to_owned(),
        names: ["", ".svc"].map(|end| format!("{SERVICE}.{namespace}{end}")).into(),
        server: true,
        client: false,
    }
}

fn server_profile(host: &str) -> Profile {
    Profile {
        common_name: "uploadserver".to_owned(),
        names: vec![host.to_owned()],
        server: true,
        client: false,
    }
}

fn client_profile(name: &str) -> Profile {
    Profile { common_name: name.to_owned(), names: Vec::new(), server: false, client: true }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times() -> Times {
        Times::default()
    }

    fn with_authority(store: &Store, name: &str, now: u64) -> Store {
        store.apply(&Step::Authority, name, &server_profile(""), times().servers, now).unwrap()
    }

    #[test]
    fn certificates_are_signed_by_an_authority_that_peers_know() {
        let signers = Signers::default();
        assert!(signers.server("a.b.svc").is_err(), "there is no authority yet");
        let (old, now) = (now() - 24 * 3600, now());
        let servers = with_authority(&Store::default(), SERVER_SIGNER, old);
        let clients = with_authority(&Store::default(), CLIENT_SIGNER, now);
        *signers.0.write().unwrap() =
            Known { servers: servers.clone(), clients: clients.clone(), ..Known::default() };
        // One that is due for its successor still signs.
        let server = signers.server("a.b.svc").unwrap();
        assert_eq!(server.trusted, clients.bundle());
        assert!(server.identity.certificate.contains("BEGIN CERTIFICATE"));
        // A successor that was made this second is not known to all clients.
        let both = with_authority(&servers, SERVER_SIGNER, now);
        let by = |store: &Store| {
            let profile = server_profile("x");
            let identity =
                issue(store, SERVER_SIGNER, times().servers, Duration::ZERO, &profile, now).unwrap();
            let mut fresh = Store { authorities: store.authorities.clone(), ..Store::default() };
            let step = fresh.plan(["x"], times().servers, now).unwrap();
            fresh = fresh.apply(&step, SERVER_SIGNER, &profile, times().servers, now).unwrap();
            assert_eq!(identity.from, fresh.leaves["x"].identity.from);
            fresh.leaves["x"].signed_by
        };
        assert_eq!(by(&both), old);
    }

    #[test]
    fn a_new_authority_signs_for_clients_when_no_server_is_left_that_does_not_know_it() {
        let now = now();
        let (clients, lead) = (times().clients, times().client_lead());
        let signs = |age: u64| {
            let (old, new) = (now - age - 24 * 3600, now - age);
            let first = with_authority(&Store::default(), CLIENT_SIGNER, old);
            let second = with_authority(&first, CLIENT_SIGNER, new);
            let issued = issue(&second, CLIENT_SIGNER, clients, lead, &client_profile("proxy"), now)
                .unwrap()
                .certificate;
            let step = second.plan_late([LEAF], clients, lead, now).unwrap();
            assert!(issued.contains("BEGIN CERTIFICATE"));
            match step {
                Step::Sign(_, signer) => signer,
                other @ (Step::Authority | Step::Forget) => panic!("{other:?}"),
            }
        };
        let deadline = times().patience().as_secs();
        assert_eq!((signs(600), signs(deadline)), (0, 0), "the older one: servers of before it still wait");
        assert_eq!(signs(lead.as_secs()), 1);
        assert!(lead < clients.ca_overlap);
    }

    #[test]
    fn ends_are_those_of_authorities_and_stored_certificates() {
        let now = now();
        let proxy = with_authority(&Store::default(), PROXY_SIGNER, now);
        let step = Step::Sign(LEAF.to_owned(), 0);
        let proxy = proxy.apply(&step, PROXY_SIGNER, &proxy_profile("ns"), times().servers, now).unwrap();
        let ends = Known { proxy, ..Known::default() }.ends();
        let hours = |until: u64| (until - now) / 3600;
        let ends: Vec<(&str, u64)> =
            ends.iter().map(|(name, until)| (name.as_str(), hours(*until))).collect();
        assert_eq!(ends, [("cdi-uploadproxy-signer", 48), ("cdi-uploadproxy-server-cert", 24)]);
    }

    #[test]
    fn certificates_last_as_the_cdi_object_asks() {
        let leaf = json!({"duration": "2h", "renewBefore": "1h"});
        let times = Times::of(
            &json!({"certConfig": {"ca": {"duration": "8h", "renewBefore": "4h"}, "server": leaf}}),
        );
        let now = now();
        let store = Store::default();
        let store =
            store.apply(&Step::Authority, SERVER_SIGNER, &server_profile(""), times.servers, now).unwrap();
        let made =
            issue(&store, SERVER_SIGNER, times.servers, Duration::ZERO, &server_profile("a"), now).unwrap();
        assert_eq!((store.authorities[0].until - now, made.until - now), (8 * 3600, 2 * 3600));
        assert_eq!(times.patience(), Duration::from_secs(3600));
    }

    #[test]
    fn certificates_have_the_names_that_the_other_side_checks() {
        assert!(proxy_profile("cdi").names.contains(&"cdi-uploadproxy.cdi.svc".to_owned()));
        let client = client_profile(api::upload::PROXY_CLIENT);
        assert!(client.client && !client.server);
        assert_eq!(client.common_name, "client.upload-server.cdi.kubevirt.io");
    }
}
