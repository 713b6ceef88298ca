//! Progress of transfers: read from the metrics page of each running worker, every two seconds.
//!
//! A worker's certificate is its own, so it is not verified; its answer is a number from 0 to 100 and nothing else. It
//! reaches a DataVolume's status, or an annotation of a claim without a DataVolume, in steps, to save writes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use api::names::{IMPORT_PROGRESS, METRICS_PATH, METRICS_PORT, OWNER_LABEL};
use api::upload::clone::CLONE_PROGRESS;
use cluster::Key;
use futures_util::StreamExt;
use futures_util::stream;
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Controller, Item};
use crate::storage::names;
use crate::storage::seen::Worker;
use crate::storage::seen::worker::State;

/// Between two looks at a worker.
const PERIOD: Duration = Duration::from_secs(2);
/// Longest wait for one answer.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Workers that are asked at once.
const AT_ONCE: usize = 16;
/// Longest page.
const LONGEST: usize = 64 << 10;
/// A change of so many points is reported after [`FIRST`], any other after [`REST`].
const STEP: f64 = 10.0;
/// From a worker's first number, or the last report, to the next one: most transfers are over by then.
const FIRST: Duration = Duration::from_secs(4);
/// The same for small changes.
const REST: Duration = Duration::from_secs(10);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Progress by claim.
#[derive(Debug, Default)]
pub(super) struct Progress(Mutex<HashMap<Key, Reported>>);

#[derive(Clone, Copy, Debug)]
struct Reported {
    value: f64,
    since: Instant,
}

impl Progress {
    /// Records a value; returns whether it is to be reported.
    fn record(&self, claim: &Key, value: f64, now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let last = *all.entry(claim.clone()).or_insert(Reported { value: 0.0, since: now });
        let age = now.saturating_duration_since(last.since);
        let far = (value - last.value).abs() >= STEP && age >= FIRST;
        let news = far || (value > last.value && age >= REST);
        if news {
            all.insert(claim.clone(), Reported { value, since: now });
        }
        news
    }

    /// Forgets claims that no worker works on.
    fn keep(&self, claims: &[Key]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|claim, _| claims.contains(claim));
    }

    /// The progress of a claim, as it and its DataVolume show it.
    pub(super) fn of(&self, claim: &Key) -> Option<String> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let reported = all.get(claim).filter(|reported| reported.value > 0.0)?;
        Some(format!("{:.2}%", reported.value))
    }
}

impl Controller {
    /// Follows the workers until it is dropped.
    pub(super) async fn follow_progress(&self) {
        let config = match serve::trust::client(None) {
            Ok(config) => config,
            Err(error) => {
                tracing::error!(error = error.to_string(), "progress of transfers cannot be read");
                return std::future::pending().await;
            }
        };
        let tls = TlsConnector::from(Arc::new(config));
        loop {
            tokio::time::sleep(PERIOD).await;
            let running: Vec<(Key, Arc<Worker>)> = self
                .caches
                .workers
                .all()
                .into_iter()
                .filter(|(_, worker)| worker.state == State::Running && !worker.address.is_empty())
                .filter_map(|(key, worker)| Some((self.filled_by(&key, &worker)?, worker)))
                .collect();
            let claims: Vec<Key> = running.iter().map(|(claim, _)| claim.clone()).collect();
            self.progress.keep(&claims);
            let asked = stream::iter(running).map(|(claim, worker)| {
                let tls = &tls;
                async move {
                    let page = tokio::time::timeout(TIMEOUT, page(tls, &worker.address)).await;
                    (claim, page.ok().and_then(Result::ok).and_then(|page| value(&page)))
                }
            });
            let mut answers = asked.buffer_unordered(AT_ONCE);
            while let Some((claim, value)) = answers.next().await {
                // 100 is withheld until the transfer has succeeded.
                let Some(value) = value.filter(|value| (0.0..100.0).contains(value)) else { continue };
                if self.progress.record(&claim, value, Instant::now()) {
                    self.queue.add(self.shown_by(claim));
                }
            }
        }
    }

    /// The object that shows the progress of a claim: its DataVolume, which has its name, or the claim itself.
    fn shown_by(&self, claim: Key) -> Item {
        match self.caches.claims.get(&claim).is_some_and(|claim| claim.is_of_data_volume()) {
            true => Item::Volume(claim),
            false => Item::Claim(claim),
        }
    }

    /// The user's claim that a worker fills.
    fn filled_by(&self, key: &Key, worker: &Worker) -> Option<Key> {
        if worker.meta.labels.get(names::WORKER).is_some_and(|one| one == names::UPLOAD_SERVER) {
            return None;
        }
        if let Some(target) = super::cloned_for(&worker.meta) {
            return Some(target);
        }
        let written = Key::new(key.namespace(), &worker.meta.controller()?.name);
        let claim = self.caches.claims.get(&written)?;
        let owner = claim.meta.controller().filter(|owner| owner.kind == "PersistentVolumeClaim");
        Some(owner.map_or(written, |owner| Key::new(key.namespace(), &owner.name)))
    }
}

/// A worker's metrics page.
async fn page(tls: &TlsConnector, address: &str) -> Result<String, Failure> {
    let address: std::net::IpAddr = address.parse()?;
    let stream = TcpStream::connect((address, METRICS_PORT)).await?;
    let stream = tls.connect(ServerName::IpAddress(address.into()), stream).await?;
    let (mut send, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let request =
        http::Request::get(METRICS_PATH).header("host", "worker").body(Empty::<bytes::Bytes>::new())?;
    let read = async {
        let answer = send.send_request(request).await?;
        let body = Limited::new(answer.into_body(), LONGEST).collect().await?;
        Ok::<_, Failure>(String::from_utf8_lossy(&body.to_bytes()).into_owned())
    };
    tokio::select! {
        read = read => read,
        ended = connection => Err(ended.err().map_or_else(|| "the connection ended".into(), Into::into)),
    }
}

/// The value of the progress counter.
fn value(page: &str) -> Option<f64> {
    page.lines().find_map(|line| {
        let name = [IMPORT_PROGRESS, CLONE_PROGRESS].iter().find(|name| line.starts_with(**name))?;
        let labels = line.get(name.len()..)?.strip_prefix('{')?;
        let (labels, value) = labels.split_once("} ")?;
        labels.starts_with(OWNER_LABEL).then(|| value.trim().parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counter_is_found_on_a_page() {
        let page = "# HELP x\nkubevirt_cdi_import_progress_total{ownerUID=\"u\"} 12.5\n";
        assert_eq!(value(page), Some(12.5));
        assert_eq!(value("kubevirt_cdi_clone_progress_total{ownerUID=\"u\"} 7"), Some(7.0));
        for none in [
            "",
            "kubevirt_cdi_import_progress_total 3",
            "other{ownerUID=\"u\"} 3",
            "kubevirt_cdi_import_progress_total{ownerUID=\"u\"} x",
        ] {
            assert_eq!(value(none), None, "{none}");
        }
    }

    #[test]
    fn progress_is_reported_in_steps() {
        let (progress, claim, begun) = (Progress::default(), Key::new("n", "a"), Instant::now());
        assert!(!progress.record(&claim, 50.0, begun), "it may be over in a moment");
        assert_eq!(progress.of(&claim), None);
        assert!(progress.record(&claim, 60.0, begun + FIRST));
        assert!(!progress.record(&claim, 69.0, begun + FIRST + FIRST));
        assert!(progress.record(&claim, 71.5, begun + FIRST + FIRST));
        assert!(progress.record(&claim, 72.0, begun + FIRST + FIRST + REST));
        assert_eq!(progress.of(&claim).as_deref(), Some("72.00%"));
        progress.keep(&[]);
        assert_eq!(progress.of(&claim), None);
    }
}
