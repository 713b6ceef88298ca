//! DataImportCrons: their imports, DataSource and status.

use cluster::{Apply, Delete, Key, Outcome, Result};
use serde_json::{Value, json};
use virt::time;

use super::{Controller, RECHECK, RETRY, refused};
use crate::storage::clone::authorize::Origin;
use crate::storage::cron::plan::{self, Observed, Step};
use crate::storage::cron::seen::{CRON, LAST_USED};
use crate::storage::cron::status;
use crate::storage::resources::{CRONS, DATA_SOURCES, DATA_VOLUMES};
use crate::storage::seen::{DataVolume, Source};

/// Field manager of DataSources.
const MANAGER: &str = "ferrovirt-storage";

impl Controller {
    /// A DataImportCron.
    pub(super) async fn cron(&self, key: &Key) -> Result<Outcome> {
        let Some(cron) = self.caches.crons.get(key) else { return Ok(Outcome::Done) };
        let all = self.caches.volumes.all().into_iter();
        let imports: Vec<DataVolume> = all
            .filter(|(volume, one)| {
                volume.namespace() == key.namespace() && one.meta.labels.get(CRON) == Some(&cron.meta.name)
            })
            .map(|(_, one)| (*one).clone())
            .collect();
        let managed = Key::new(key.namespace(), &cron.managed);
        let data_source: Value = self.client.find(DATA_SOURCES, &managed).await?.unwrap_or_default();
        let origin = Origin::of(&cron.source, key.namespace());
        let claim = origin.and_then(|origin| self.caches.claims.get(&origin.key()));
        let now = time::text(time::now());
        let mut plan = plan::plan(&Observed {
            cron: &cron,
            imports: &imports,
            data_source: &data_source,
            claim: claim.as_ref().map(|claim| claim.meta.uid.as_str()),
            now: &now,
        });
        for step in &plan.steps {
            if let Err(error) = self.step(key, step, &now).await {
                plan.trouble = Some(("NotAuthorized", refused(error)?));
                break;
            }
        }
        let problem = self.problems.of(key);
        let status = status::status(&cron, &plan, &imports, problem.as_deref(), &now);
        if status != cron.status && !cron.meta.deleting {
            let patch = json!({"metadata": {"uid": cron.meta.uid}, "status": status});
            // DataImportCron has no status subresource.
            let _: Value = self.client.merge_patch(CRONS, key, &patch).await?;
        }
        let polled = matches!(cron.source, Source::Claim { .. });
        Ok(match (plan.trouble.is_some(), polled) {
            (true, _) => Outcome::After(RETRY),
            (false, true) => Outcome::After(RECHECK),
            (false, false) => Outcome::Done,
        })
    }

    async fn step(&self, key: &Key, step: &Step, now: &str) -> Result<()> {
        match step {
            Step::Import(volume) => {
                match self.client.create::<Value>(DATA_VOLUMES, key.namespace(), volume).await {
                    Err(error) if error.is_already_exists() => {}
                    made => {
                        made?;
                    }
                }
            }
            Step::Use(name) => {
                let patch = json!({"metadata": {"annotations": {LAST_USED: now}}});
                let key = Key::new(key.namespace(), name);
                let _: Value = self.client.merge_patch(DATA_VOLUMES, &key, &patch).await?;
            }
            Step::Point(source) => {
                let name = source["metadata"]["name"].as_str().unwrap_or_default();
                let apply = Apply { manager: MANAGER, force: true };
                let key = Key::new(key.namespace(), name);
                let _: Value = self.client.apply(DATA_SOURCES, &key, source, apply).await?;
            }
            Step::Drop { name, uid } => {
                let key = Key::new(key.namespace(), name);
                match self.client.delete(DATA_VOLUMES, &key, &Delete::default().uid(uid)).await {
                    Err(error) if error.is_conflict() => {}
                    existed => {
                        existed?;
                    }
                }
            }
        }
        Ok(())
    }
}
