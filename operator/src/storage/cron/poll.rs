//! Whether and how the source of a DataImportCron is polled. Pure.
//!
//! ```text
//!  no credentials ─► upload proxy's process ─┐
//!  Secret, ConfigMap ─► pod in its namespace ┼─► version ─► digest (annotation of the cron)
//!  ImageStream ─► API server ────────────────┘
//! ```

use std::net::IpAddr;

use api::poll::Request;
use serde_json::{Value, json};
use virt::time;

use super::schedule::Schedule;
use super::seen::{Cron, DESIRED, LAST_POLLED, NEXT_POLL};
use crate::storage::names;
use crate::storage::seen::Source;
use crate::storage::settings::Settings;
use crate::storage::worker::importer;

/// How a source is polled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum How {
    /// Not at all: a claim is watched, and other sources do not change.
    Not,
    /// By the upload proxy's process.
    Proxy(Box<Request>),
    /// By a pod in the cron's namespace, which mounts what the source needs.
    Pod,
    /// In the API server: its ImageStream, `NAME[:TAG]`, of the cron's namespace.
    Stream(String),
    /// It cannot be polled, and why.
    Unable(&'static str),
}

/// How a cron's source is polled.
pub fn how(cron: &Cron, settings: &Settings, services: &[String]) -> How {
    let request = |url: &str, headers: &[String], insecure: bool| {
        How::Proxy(Box::new(Request {
            url: url.to_owned(),
            headers: headers.to_vec(),
            insecure,
            http_proxy: settings.proxy.http.clone(),
            https_proxy: settings.proxy.https.clone(),
            no_proxy: settings.proxy.exceptions.clone(),
            services: services.to_vec(),
            allowed: settings.poll_networks.clone(),
        }))
    };
    let trusts_more = !settings.proxy.certificates.is_empty();
    match &cron.source {
        Source::Remote(remote) => {
            let plain = remote.secret.is_empty()
                && remote.certificates.is_empty()
                && remote.secret_headers.is_empty()
                && !trusts_more;
            let web = ["http://", "https://"].iter().any(|scheme| remote.url.starts_with(scheme));
            match plain && web {
                true => request(&remote.url, &remote.headers, remote.insecure),
                false => How::Pod,
            }
        }
        Source::Registry(registry) if !registry.image_stream.is_empty() => {
            How::Stream(registry.image_stream.clone())
        }
        Source::Registry(registry) if !registry.url.starts_with("docker://") => {
            How::Unable("only docker:// images are polled")
        }
        Source::Registry(registry) => {
            match registry.secret.is_empty() && registry.certificates.is_empty() && !trusts_more {
                true => request(&registry.url, &[], settings.trusts_registry(&registry.url)),
                false => How::Pod,
            }
        }
        Source::Blank
        | Source::Upload
        | Source::Claim { .. }
        | Source::Snapshot { .. }
        | Source::Reference { .. }
        | Source::Unsupported(_)
        | Source::Missing => How::Not,
    }
}

/// When a cron is polled next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Due {
    /// Now.
    Now,
    /// At this time.
    At(u64),
    /// Never: it has no schedule.
    Never,
    /// Its schedule is none.
    Wrong(String),
}

/// When a cron is polled next. One without a digest is polled at once.
pub fn due(cron: &Cron, now: u64) -> Due {
    if cron.schedule.trim().is_empty() {
        return Due::Never;
    }
    let schedule = match Schedule::parse(&cron.schedule) {
        Ok(schedule) => schedule,
        Err(error) => return Due::Wrong(error),
    };
    if cron.meta.annotation(DESIRED).is_none() {
        return Due::Now;
    }
    let last = cron.meta.annotation(LAST_POLLED).and_then(time::seconds);
    let last = last.or_else(|| time::seconds(&cron.meta.created)).unwrap_or(now);
    match schedule.after(last) {
        Some(next) if next <= now => Due::Now,
        Some(next) => Due::At(next),
        None => Due::Never,
    }
}

/// The ConfigMap with the proxy's certificates for a poll's pod. Its name changes with them: the ConfigMap stays while the
/// cron exists, and is not written again.
pub fn proxy_certificates(cron: &Cron, trusted: &Value) -> Value {
    let version = names::digest(&trusted["data"].to_string(), 8);
    let name = importer::proxy_map(&format!("poll-{}-{version}", cron.meta.name));
    importer::proxy_certificates(&name, &cron.meta.namespace, &importer::owned_by(cron), trusted)
}

/// The annotations of a cron for this version of its source.
pub fn polled(cron: &Cron, version: &str, now: u64) -> Value {
    let next = Schedule::parse(&cron.schedule).ok().and_then(|schedule| schedule.after(now));
    json!({
        DESIRED: digest(version),
        LAST_POLLED: time::text(now),
        NEXT_POLL: next.map(time::text),
    })
}

/// The digest that stands for a version in names and references.
fn digest(version: &str) -> String {
    let is_digest = version
        .split_once(':')
        .is_some_and(|(kind, hex)| ["sha256", "sha512"].contains(&kind) && hex.len() >= 32);
    if is_digest { version.to_owned() } else { format!("etag:{}", names::digest(version, 40)) }
}

/// Networks of Services: as the cluster lists them (ServiceCIDR), else the largest network that begins at the API
/// server's own Service, which is always the first of its network.
pub fn service_networks(listed: &[Value], first: &str) -> Vec<String> {
    let listed: Vec<String> = listed
        .iter()
        .flat_map(|one| one["spec"]["cidrs"].as_array().cloned().unwrap_or_default())
        .filter_map(|cidr| cidr.as_str().map(str::to_owned))
        .collect();
    if !listed.is_empty() {
        return listed;
    }
    let Ok(first) = first.parse::<IpAddr>() else { return Vec::new() };
    match first {
        IpAddr::V4(address) => {
            let network = u32::from(address).saturating_sub(1);
            // 10.96.0.0/12 is kubeadm's; larger ones are not in use.
            let bits = network.trailing_zeros().clamp(4, 20);
            vec![format!("{}/{}", std::net::Ipv4Addr::from(network), 32 - bits)]
        }
        IpAddr::V6(address) => {
            let network = u128::from(address).saturating_sub(1);
            vec![format!("{}/{}", std::net::Ipv6Addr::from(network), 108)]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cron(source: &Value, schedule: &str, annotations: &Value) -> Cron {
        Cron::from(&json!({
            "metadata": {"name": "c", "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": annotations},
            "spec": {"schedule": schedule, "managedDataSource": "d", "template": {"spec": {"source": source}}},
        }))
    }

    #[test]
    fn sources_without_credentials_are_polled_by_the_proxy() {
        let settings = Settings { insecure_registries: vec!["reg:5000".into()], ..Settings::default() };
        let services = vec!["10.96.0.0/12".to_owned()];
        let of = |source: Value| how(&cron(&source, "@daily", &json!({})), &settings, &services);
        let How::Proxy(request) = of(json!({"http": {"url": "https://a/b", "extraHeaders": ["a: b"]}}))
        else {
            panic!()
        };
        assert_eq!(
            (request.url.as_str(), request.headers.len(), &request.services),
            ("https://a/b", 1, &services)
        );
        let How::Proxy(request) = of(json!({"registry": {"url": "docker://reg:5000/a"}})) else { panic!() };
        assert!(request.insecure);
        for source in [
            json!({"http": {"url": "https://a/b", "secretRef": "s"}}),
            json!({"http": {"url": "https://a/b", "certConfigMap": "s"}}),
            json!({"http": {"url": "https://a/b", "secretExtraHeaders": ["s"]}}),
            json!({"s3": {"url": "s3://a/b"}}),
            json!({"registry": {"url": "docker://a/b", "secretRef": "s"}}),
        ] {
            assert_eq!(of(source.clone()), How::Pod, "{source}");
        }
        for source in [json!({"pvc": {"name": "a"}}), json!({"blank": {}}), json!({})] {
            assert_eq!(of(source.clone()), How::Not, "{source}");
        }
        assert!(matches!(of(json!({"registry": {"url": "oci-archive:a"}})), How::Unable(_)));
        let stream = json!({"registry": {"imageStream": "a:1", "pullMethod": "node"}});
        assert_eq!(of(stream), How::Stream("a:1".to_owned()));
    }

    #[test]
    fn a_cron_is_due_by_its_schedule_and_before_its_first_digest() {
        let at = |text: &str| time::seconds(text).unwrap();
        let now = at("2026-01-02T12:00:00Z");
        let of = |schedule: &str, annotations: Value| due(&cron(&json!({}), schedule, &annotations), now);
        let polled = |when: &str| json!({DESIRED: "sha256:1", LAST_POLLED: when});
        assert_eq!(of("0 3 * * *", json!({})), Due::Now);
        assert_eq!(of("0 3 * * *", polled("2026-01-02T03:00:00Z")), Due::At(at("2026-01-03T03:00:00Z")));
        assert_eq!(of("0 3 * * *", polled("2026-01-02T02:59:00Z")), Due::Now);
        // A digest of another poller.
        assert_eq!(of("0 3 * * *", json!({DESIRED: "sha256:1"})), Due::Now);
        assert_eq!(of("", json!({})), Due::Never);
        assert!(matches!(of("daily", json!({})), Due::Wrong(_)));
    }

    #[test]
    fn versions_become_digests() {
        let sha = format!("sha256:{}", "0".repeat(64));
        let cron = cron(&json!({}), "0 3 * * *", &json!({}));
        let of = |version: &str| polled(&cron, version, time::seconds("2026-01-02T12:00:00Z").unwrap());
        assert_eq!(of(&sha)[DESIRED], sha);
        let mark = of("etag \"1\"");
        assert!(
            mark[DESIRED].as_str().unwrap().starts_with("etag:")
                && mark[DESIRED] != of("etag \"2\"")[DESIRED]
        );
        assert_eq!(mark[NEXT_POLL], "2026-01-03T03:00:00Z");
        assert!(of("sha256:x")[DESIRED].as_str().unwrap().starts_with("etag:"));
    }

    #[test]
    fn changed_certificates_of_the_proxy_get_another_config_map() {
        let cron = cron(&json!({}), "", &json!({}));
        let name = |data: &str| {
            let map = proxy_certificates(&cron, &json!({"data": {"ca.pem": data}}));
            assert_eq!(map["data"]["ca.pem"], data);
            map["metadata"]["name"].as_str().unwrap().to_owned()
        };
        assert!(name("a").starts_with("import-proxy-cm-poll-c-"));
        assert!(name("a") == name("a") && name("a") != name("b"));
    }

    #[test]
    fn networks_of_services_are_listed_or_derived() {
        let listed = [json!({"spec": {"cidrs": ["10.0.0.0/16", "fd00::/108"]}})];
        assert_eq!(service_networks(&listed, "10.96.0.1"), ["10.0.0.0/16", "fd00::/108"]);
        assert_eq!(service_networks(&[], "10.96.0.1"), ["10.96.0.0/12"]);
        assert_eq!(service_networks(&[], "172.30.0.1"), ["172.30.0.0/15"]);
        assert_eq!(service_networks(&[], "192.168.8.1"), ["192.168.8.0/21"]);
        assert_eq!(service_networks(&[], "fd00:10:96::1"), ["fd00:10:96::/108"]);
        assert!(service_networks(&[], "").is_empty());
    }
}
