//! Metrics of the node's guests, for Prometheus over HTTPS. Every scrape asks all launchers at once; one that does not answer
//! in time is left out. A page serves all clients for a second.
//!
//! Not here: which metrics there are ([`page`]).

mod page;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::launcher::Stats;
use api::names::METRICS_PATH;
use cluster::Key;
use http::StatusCode;
use serde_json::Value;
use serve::metrics::Page;
use serve::route::Router;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use crate::error::Result;
use crate::guests::controller::Controller;
use crate::guests::instance::Instance;
use crate::guests::osinfo;
use crate::guests::talk::Talk;
use crate::streams::Sessions;

/// How long a guest's launcher and agent may take together.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// The guest agent's own time for its answer, in seconds.
const AGENT_SECONDS: u32 = 1;
/// How long a page is served.
const PAGE_AGE: Duration = Duration::from_secs(1);

/// The counters of a guest.
#[derive(Debug, Default)]
struct Report {
    namespace: String,
    name: String,
    /// `None`: its launcher does not answer, or is of a release without counters.
    stats: Option<Stats>,
    /// The filesystems that its agent reports, in upstream's form.
    filesystems: Vec<Value>,
}

/// The last page, and when it was made.
type Last = Mutex<Option<(Instant, String)>>;

/// The route of the page.
pub(crate) fn router(controller: &Arc<Controller>, sessions: &Sessions, ready: &Arc<AtomicBool>) -> Router {
    let (controller, sessions, ready) = (Arc::clone(controller), sessions.clone(), Arc::clone(ready));
    let last = Arc::new(Last::default());
    Router::new().get(METRICS_PATH, move |_| {
        let (controller, sessions, last) = (Arc::clone(&controller), sessions.clone(), Arc::clone(&last));
        let ready = ready.load(Ordering::Relaxed);
        async move {
            let text = shared(&last, async {
                let instances = controller.running();
                let reports = reports(&controller, &instances).await;
                let mut page = Page::default();
                page::write(&mut page, controller.node(), &reports);
                page::write_interfaces(&mut page, controller.node(), &instances);
                page::write_agent(&mut page, ready, &sessions.counts(|key| controller.is_known(key)));
                page.text()
            });
            serve::route::with_type(StatusCode::OK, serve::metrics::CONTENT_TYPE, text.await.into())
        }
    })
}

/// The last page, or a new one; clients that come while one is made wait for it.
async fn shared(last: &Last, make: impl Future<Output = String>) -> String {
    let mut last = last.lock().await;
    if let Some((at, text)) = last.as_ref()
        && at.elapsed() < PAGE_AGE
    {
        return text.clone();
    }
    let text = make.await;
    *last = Some((Instant::now(), text.clone()));
    text
}

/// The reports of guests, in the order of their names.
async fn reports(controller: &Arc<Controller>, instances: &[Arc<Instance>]) -> Vec<Report> {
    let mut asked = JoinSet::new();
    for instance in instances {
        let key = Key::new(&instance.namespace, &instance.name);
        let controller = Arc::clone(controller);
        asked.spawn(async move {
            let has_agent = controller.has_agent(&key);
            let opened = async {
                let (_, pod) = controller.pod_of(&key)?;
                Ok(Talk::open(&pod).await?.0)
            };
            let report = ask(opened, has_agent, ANSWER_MAX).await;
            Report { namespace: key.namespace().to_owned(), name: key.name().to_owned(), ..report }
        });
    }
    let mut reports = Vec::new();
    while let Some(joined) = asked.join_next().await {
        // A task that panicked is left out, as a launcher that does not answer.
        reports.extend(joined);
    }
    reports.sort_by(|one, other| (&one.namespace, &one.name).cmp(&(&other.namespace, &other.name)));
    reports
}

/// The report of one guest: what came in time.
async fn ask(opened: impl Future<Output = Result<Talk>>, has_agent: bool, most: Duration) -> Report {
    let mut report = Report::default();
    let asked = timeout(most, async {
        let mut talk = opened.await?;
        report.stats = Some(talk.stats().await?);
        if has_agent {
            let text = talk.agent_within(osinfo::FILESYSTEMS, AGENT_SECONDS).await?;
            let list = osinfo::filesystems(&text);
            let items = list.as_ref().and_then(|list| list.get("items")?.as_array().cloned());
            report.filesystems = items.unwrap_or_default();
        }
        Ok::<_, crate::error::Error>(())
    });
    if let Ok(Err(error)) = asked.await {
        tracing::debug!(error = error.chain(), "a guest's metrics are incomplete");
    }
    report
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use api::launcher::{Answer, Message, RefusedKind, frame};
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// The report over a connection on which the launcher has sent these messages and sends no more.
    async fn report(has_agent: bool, messages: &[Message]) -> Report {
        let (talk, mut launcher) = Talk::pair();
        for message in messages {
            launcher.write_all(&frame(message).unwrap()).await.unwrap();
        }
        ask(async { Ok(talk) }, has_agent, Duration::from_millis(200)).await
    }

    fn counters() -> Message {
        let numbers = [("cpu.time".to_owned(), 7)].into();
        Message::Answer { id: 1, answer: Answer::Stats(Stats { numbers, ..Stats::default() }) }
    }

    #[tokio::test]
    async fn a_guest_reports_its_counters_and_the_filesystems_of_its_agent() {
        let list = r#"{"return": [{"name": "vda1", "mountpoint": "/", "type": "ext4", "used-bytes": 5, "total-bytes": 9}]}"#;
        let agent = Message::Answer { id: 2, answer: Answer::Agent(list.to_owned()) };
        let report = report(true, &[counters(), agent]).await;
        assert_eq!(report.stats.unwrap().numbers["cpu.time"], 7);
        assert_eq!(report.filesystems[0]["mountPoint"], "/");
    }

    #[tokio::test]
    async fn a_launcher_that_hangs_or_knows_no_counters_is_left_out() {
        let begun = Instant::now();
        assert_eq!(report(false, &[]).await.stats, None);
        assert!(begun.elapsed() < Duration::from_secs(2), "the wait is bounded");
        let message = "unknown variant `stats`".to_owned();
        let refused = Message::Refused { id: 1, kind: RefusedKind::Invalid, message };
        assert_eq!(report(false, &[refused]).await.stats, None);
        // The guest's agent hangs: the counters of its hypervisor are there.
        let hanging = report(true, &[counters()]).await;
        assert!(hanging.stats.is_some() && hanging.filesystems.is_empty());
    }

    #[tokio::test]
    async fn a_page_serves_clients_that_come_together() {
        let (last, made) = (Last::default(), AtomicUsize::new(0));
        let make = || async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            (made.fetch_add(1, Ordering::Relaxed) + 1).to_string()
        };
        let (one, other) = tokio::join!(shared(&last, make()), shared(&last, make()));
        assert_eq!((one.as_str(), other.as_str()), ("1", "1"));
        *last.lock().await = None;
        assert_eq!(shared(&last, make()).await, "2");
    }
}
