//! Probes and metrics over plain HTTP: `/healthz`, `/readyz`, `/metrics`. The HTTPS server has the same page of metrics.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cluster::{Client, Events};
use serve::http::Route;
use serve::metrics::{Kind as Metric, Page};

use crate::config::Config;
use crate::error::{Error, Kind, Result};

/// Names of certificates, and when they end in seconds since 1970.
type Ends = BTreeMap<&'static str, Vec<(String, u64)>>;

/// Writes metrics of one area.
type Collector = dyn Fn(&mut Page) + Send + Sync;

/// Whether this process can serve requests, and the metrics of its areas.
#[derive(Clone, Default)]
pub struct Health {
    ready: Arc<AtomicBool>,
    stopping: Arc<AtomicBool>,
    collectors: Arc<Mutex<Vec<Weak<Collector>>>>,
    /// When certificates end, by the authority's Secret.
    ends: Arc<Mutex<Ends>>,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health")
            .field("ready", &self.ready)
            .field("stopping", &self.stopping)
            .finish_non_exhaustive()
    }
}

impl Health {
    /// Sets what `/readyz` answers.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Relaxed);
    }

    /// From now on, `/readyz` fails.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Adds metrics to the page until the result is dropped.
    #[must_use]
    pub(crate) fn expose(&self, collector: impl Fn(&mut Page) + Send + Sync + 'static) -> Arc<Collector> {
        let collector: Arc<Collector> = Arc::new(collector);
        let mut all = self.collectors.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&collector));
        collector
    }

    /// From now on, the page has these ends of an authority and its certificates, in seconds since 1970.
    pub(crate) fn set_ends(&self, authority: &'static str, ends: Vec<(String, u64)>) {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner).insert(authority, ends);
    }

    fn collect(&self, page: &mut Page) {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if ends.values().any(|ends| !ends.is_empty()) {
            let name = "ferrovirt_certificate_not_after_seconds";
            page.begin(name, Metric::Gauge, "End of each certificate in use, seconds since 1970.");
            for (certificate, until) in ends.values().flatten() {
                page.sample(name, &[("certificate", certificate)], until);
            }
        }
        let all = self.collectors.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for collector in all.iter().filter_map(Weak::upgrade) {
            collector(page);
        }
    }

    fn readiness(&self) -> std::result::Result<String, String> {
        if self.ready.load(Ordering::Relaxed) && !self.stopping.load(Ordering::Relaxed) {
            Ok("ok\n".to_owned())
        } else {
            Err("not ready\n".to_owned())
        }
    }
}

/// Serves probes and metrics until the process ends.
///
/// # Errors
/// [`Kind::System`] if the address is taken.
pub fn serve(config: &Config, health: &Health, client: &Client, events: &Events) -> Result<()> {
    let (health, probed) = (health.clone(), health.clone());
    let (client, events) = (client.clone(), events.clone());
    let routes = vec![
        Route { path: "/healthz", body: Box::new(|| Ok("ok\n".to_owned())) },
        Route { path: "/readyz", body: Box::new(move || probed.readiness()) },
        Route { path: "/metrics", body: Box::new(move || Ok(metrics(&client, &events, &health))) },
    ];
    let served = serve::http::serve(config.health, None, None, routes);
    served.map_err(|error| Error::with(Kind::System, "cannot serve probes and metrics", error))?;
    Ok(())
}

/// The page of metrics.
pub(crate) fn metrics(client: &Client, events: &Events, health: &Health) -> String {
    let counts = client.counts();
    let mut page = Page::default();
    for (name, help, value) in [
        (
            "ferrovirt_operator_api_requests_total",
            "Requests to the API server, watches included.",
            counts.requests,
        ),
        ("ferrovirt_operator_api_retries_total", "Requests that the API server put off.", counts.retries),
        ("ferrovirt_operator_api_watches_total", "Watches opened.", counts.watches),
        ("ferrovirt_operator_api_failures_total", "Requests without an answer.", counts.failures),
        (
            "ferrovirt_operator_events_dropped_total",
            "Events not written, because too many waited.",
            events.dropped(),
        ),
    ] {
        page.single(name, Metric::Counter, help, value);
    }
    let labels = [("goversion", ""), ("kubeversion", env!("CARGO_PKG_VERSION"))];
    page.begin("kubevirt_info", Metric::Gauge, "Version information.");
    page.sample("kubevirt_info", &labels, 1);
    // Upstream's three programs are this one.
    let ready = u8::from(health.readiness().is_ok());
    for (name, help) in [
        ("kubevirt_virt_api_ready_status", "Indication for a virt-api that is ready to serve requests."),
        (
            "kubevirt_virt_controller_ready_status",
            "Indication for a virt-controller that is ready to take the lead.",
        ),
        (
            "kubevirt_virt_operator_ready_status",
            "Indication for a virt-operator that is ready to take the lead.",
        ),
    ] {
        page.single(name, Metric::Gauge, help, ready);
    }
    health.collect(&mut page);
    page.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_certificates_are_one_metric_and_replaced_by_authority() {
        let health = Health::default();
        health.set_ends("a", vec![("ca".to_owned(), 1)]);
        health.set_ends("b", vec![("b-leaf".to_owned(), 2)]);
        health.set_ends("a", vec![("ca".to_owned(), 3)]);
        let mut page = Page::default();
        health.collect(&mut page);
        let text = page.text();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                r#"ferrovirt_certificate_not_after_seconds{certificate="ca"} 3"#,
                r#"ferrovirt_certificate_not_after_seconds{certificate="b-leaf"} 2"#
            ]
        );
        assert_eq!(text.matches("# TYPE").count(), 1);
    }
}
