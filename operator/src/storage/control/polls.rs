//! Polls of the sources of DataImportCrons: when each is due, by the upload proxy's process, by a pod or in the API server,
//! and what is found. They have a queue of their own, so that slow servers delay no transfer.
//!
//! Not here: what follows from a digest ([`super::crons`]); decisions (`cron::poll`).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use api::import::Outcome as Ended;
use api::poll::{self as contract, Answer};
use cluster::{Key, Outcome, Result, Scope};
use serde_json::{Value, json};
use virt::time;

use super::{Controller, Item, refused};
use crate::storage::action::{About, Action, Event, Kind};
use crate::storage::cron::poll::{self, Due, How};
use crate::storage::cron::seen::Cron;
use crate::storage::cron::stream::{self, Image};
use crate::storage::names;
use crate::storage::resources::{CRONS, IMAGE_STREAMS, SERVICE_NETWORKS, SERVICES};
use crate::storage::seen::worker::State;
use crate::storage::worker::importer;

/// Pause after a poll that failed.
const AGAIN: Duration = Duration::from_secs(30);
/// Pause after an own write, until the caches show it.
const WRITTEN: Duration = Duration::from_secs(1);
/// Longest pause: clocks may be set.
const LONGEST: u64 = 3600;

/// Why polls failed, by cron.
#[derive(Debug, Default)]
pub(super) struct Problems(Mutex<HashMap<Key, String>>);

impl Problems {
    /// Why the last poll of a cron failed.
    pub(super) fn of(&self, key: &Key) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Sets it; gives whether it is another one.
    fn set(&self, key: &Key, problem: Option<&str>) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = match problem {
            Some(problem) => all.insert(key.clone(), problem.to_owned()),
            None => all.remove(key),
        };
        before.as_deref() != problem
    }
}

impl Controller {
    /// A cron with a source that may have to be polled.
    pub(super) async fn poll(&self, key: &Key) -> Result<Outcome> {
        let Some(cron) = self.caches.crons.get(key).filter(|cron| !cron.meta.deleting) else {
            self.problems.set(key, None);
            return Ok(Outcome::Done);
        };
        let settings = self.settings();
        let services = self.service_networks().await?;
        let how = poll::how(&cron, &settings, &services);
        if how == How::Not {
            return Ok(Outcome::Done);
        }
        let now = time::now();
        match poll::due(&cron, now) {
            Due::Now => {}
            Due::At(next) => {
                self.solved(key);
                let pause = next.saturating_sub(now).clamp(1, LONGEST);
                return Ok(Outcome::After(Duration::from_secs(pause)));
            }
            Due::Never => return Ok(Outcome::Done),
            Due::Wrong(why) => {
                self.failed(key, &cron, &why);
                return Ok(Outcome::Done);
            }
        }
        let mut reference = None;
        let answer = match how {
            How::Not => return Ok(Outcome::Done),
            How::Unable(why) => {
                self.failed(key, &cron, why);
                return Ok(Outcome::Done);
            }
            How::Proxy(request) => self.ask(&request).await,
            How::Pod => match self.by_pod(&cron).await? {
                Some(answer) => answer,
                // The pod's next change leads here again.
                None => return Ok(Outcome::After(AGAIN)),
            },
            How::Stream(named) => match self.streamed(&cron, &named).await? {
                Ok(image) => {
                    reference = Some(image.reference);
                    Answer::Version(image.digest)
                }
                Err(why) => Answer::Failed(why),
            },
        };
        match answer {
            Answer::Version(version) => {
                let mut annotations = poll::polled(&cron, &version, now);
                if let Some(reference) = reference {
                    annotations[stream::REFERENCE] = json!(reference);
                }
                let patch = json!({"metadata": {"uid": cron.meta.uid, "annotations": annotations}});
                let _: Value = self.client.merge_patch(CRONS, key, &patch).await?;
                self.solved(key);
                Ok(Outcome::After(WRITTEN))
            }
            Answer::Refused(why) | Answer::Failed(why) => {
                self.failed(key, &cron, &why);
                Ok(Outcome::After(AGAIN))
            }
        }
    }

    fn solved(&self, key: &Key) {
        if self.problems.set(key, None) {
            self.queue.add(Item::Cron(key.clone()));
        }
    }

    fn failed(&self, key: &Key, cron: &Cron, why: &str) {
        if !self.problems.set(key, Some(why)) {
            return;
        }
        let about = About::cron(&cron.meta);
        self.applier.report(&Event::warning(
            about,
            "PollFailed",
            format!("The source cannot be polled: {why}"),
        ));
        self.queue.add(Item::Cron(key.clone()));
    }

    /// The image of a cron's ImageStream, or why there is none.
    async fn streamed(&self, cron: &Cron, named: &str) -> Result<std::result::Result<Image, String>> {
        let (name, tag) = stream::name(named);
        let key = Key::new(&cron.meta.namespace, name);
        let found = self.client.find::<Value>(IMAGE_STREAMS, &key).await?;
        let missing = || format!("ImageStream {key} does not exist: create it, or name the image by its url");
        Ok(found.ok_or_else(missing).and_then(|found| stream::image(&found, tag)))
    }

    /// Networks of Services.
    async fn service_networks(&self) -> Result<Vec<String>> {
        let listed = match self.client.list::<Value>(SERVICE_NETWORKS, &Scope::all()).await {
            Ok(listed) => listed,
            // Before Kubernetes 1.33.
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error),
        };
        let first = match listed.is_empty() {
            true => self.client.find_cached::<Value>(SERVICES, &Key::new("default", "kubernetes")).await?,
            false => None,
        };
        let first = first.map(|service| service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned());
        Ok(poll::service_networks(&listed, first.as_deref().unwrap_or_default()))
    }

    /// Asks the upload proxy's process.
    async fn ask(&self, request: &contract::Request) -> Answer {
        let asked = async {
            let key = Key::new(&self.setup.namespace, contract::SERVICE);
            let service: Option<Value> = self.client.find_cached(SERVICES, &key).await?;
            let address = service.as_ref().and_then(|service| service["spec"]["clusterIP"].as_str());
            let unknown = || {
                let text = format!("Service {key} does not exist");
                cluster::Error::new(cluster::Kind::Unreadable, text)
            };
            let address = address.ok_or_else(unknown)?.to_owned();
            let issued = self.signers.client(contract::CLIENT)?;
            Ok::<_, cluster::Error>((address, issued))
        };
        let (address, issued) = match asked.await {
            Ok(found) => found,
            Err(error) => return Answer::Failed(error.chain()),
        };
        let server = format!("cdi-uploadproxy.{}.svc", self.setup.namespace);
        let trusted = self.signers.proxy_bundle();
        super::poller::ask(&address, &server, &trusted, &issued.identity, request).await
    }

    /// The answer of a pod in the cron's namespace; `None` while it works. Makes it, and deletes it in the end.
    async fn by_pod(&self, cron: &Cron) -> Result<Option<Answer>> {
        let settings = self.settings();
        let certificates = match importer::goes_by_proxy(&cron.source, &settings) {
            true => match self.proxy_certificates(&settings).await {
                Ok(trusted) => Some(poll::proxy_certificates(cron, &trusted)),
                Err(error) => return refused(error).map(|text| Some(Answer::Failed(text))),
            },
            false => None,
        };
        let map = certificates.as_ref().and_then(|map| map["metadata"]["name"].as_str()).unwrap_or_default();
        let Some(pod) = importer::poll(cron, &settings, &self.images(), map) else {
            return Ok(Some(Answer::Failed("only http, s3, gcs and registry sources are polled".to_owned())));
        };
        let name = pod["metadata"]["name"].as_str().unwrap_or_default();
        let key = Key::new(&cron.meta.namespace, name);
        if !self.is_worker_current(&key) {
            return Ok(None);
        }
        let Some(worker) = self.caches.workers.get(&key) else {
            for object in certificates.into_iter().chain([pod]) {
                if let Err(error) = self.applier.apply(&Action::Create(object)).await {
                    return refused(error).map(|text| Some(Answer::Failed(text)));
                }
            }
            return Ok(None);
        };
        if worker.meta.deleting || !worker.meta.is_controlled_by(&cron.meta.uid) {
            return Ok(None);
        }
        let ended = match (&worker.state, &worker.last) {
            (State::Ended(ended), _) => Some(ended.clone()),
            (State::Waiting { .. } | State::Running | State::Unreported, last) => last.clone(),
        };
        let answer = match ended {
            Some(ended) if ended.status == 0 => {
                let version = Ended::from_line(&ended.message).and_then(|outcome| outcome.version);
                version.map_or_else(
                    || Answer::Failed("the poll's pod reports no version".to_owned()),
                    Answer::Version,
                )
            }
            // It is started again by the kubelet; the problem is shown.
            Some(ended) => {
                self.failed(&Key::new(&cron.meta.namespace, &cron.meta.name), cron, ended.message.trim());
                return Ok(None);
            }
            None => {
                if let State::Waiting { reason, message } = &worker.state
                    && !["ContainerCreating", "PodInitializing"].contains(&reason.as_str())
                {
                    let text = format!("pod {name}: {reason}: {message}");
                    self.failed(&Key::new(&cron.meta.namespace, &cron.meta.name), cron, &text);
                }
                return Ok(None);
            }
        };
        let delete = Action::Delete {
            kind: Kind::Pod,
            key: (worker.meta.namespace.clone(), worker.meta.name.clone()),
            uid: worker.meta.uid.clone(),
        };
        self.applier.apply(&delete).await?;
        Ok(Some(answer))
    }
}

/// The cron that a poll's pod is for.
pub(super) fn polled_for(meta: &crate::storage::seen::Meta) -> Option<Key> {
    let owner = meta.controller().filter(|owner| owner.kind == "DataImportCron")?;
    meta.labels.contains_key(names::POLLER).then(|| Key::new(&meta.namespace, &owner.name))
}
