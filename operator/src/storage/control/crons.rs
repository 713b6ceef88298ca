//! DataImportCrons: their imports, DataSource and status.

use cluster::{Apply, Delete, Key, Outcome, Resource, Result, Scope};
use serde_json::{Value, json};
use virt::time;

use super::{AGAIN, Controller, RECHECK, RETRY, refused};
use crate::storage::action::{About, Event};
use crate::storage::clone::authorize::{self, Origin};
use crate::storage::clone::permit;
use crate::storage::clone::token::Target;
use crate::storage::cron::plan::{self, Form, Observed, Step, Storage};
use crate::storage::cron::seen::{CRON, Cron, LAST_USED, STORAGE_CLASS};
use crate::storage::cron::status;
use crate::storage::datavolume::claim;
use crate::storage::names;
use crate::storage::resources::{CRONS, DATA_SOURCES, DATA_VOLUMES, SNAPSHOTS};
use crate::storage::seen::{Claim, DataVolume, Snapshot, Source};

/// Field manager of DataSources.
const MANAGER: &str = "ferrovirt-storage";

/// The resource of what imports leave.
fn resource(form: Form) -> Resource {
    match form {
        Form::Claim => DATA_VOLUMES,
        Form::Snapshot => SNAPSHOTS,
    }
}

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
        let snapshots = self.snapshots(&cron).await?;
        let of = |import: &DataVolume| self.caches.claims.get(&Key::new(key.namespace(), &import.meta.name));
        let claims: Vec<Claim> = imports.iter().filter_map(of).map(|claim| (*claim).clone()).collect();
        let classes = self.classes();
        let template = DataVolume::from(&json!({"spec": cron.template["spec"]}));
        let class = claim::class(&template, &classes).ok().flatten();
        let profile = class.map(|class| self.profile(class));
        let removing = self.is_removed();
        let mut plan = plan::plan(&Observed {
            cron: &cron,
            imports: &imports,
            snapshots: &snapshots,
            claims: &claims,
            storage: profile.as_ref().map(Storage::of).unwrap_or_default(),
            data_source: &data_source,
            claim: claim.as_ref().map(|claim| claim.meta.uid.as_str()),
            removing,
            now: &now,
        });
        for step in &plan.steps {
            if let Err(error) = self.step(&cron, step, &now).await {
                plan.trouble = Some(("NotAuthorized", refused(error)?));
                break;
            }
        }
        let problem = self.problems.of(key);
        let status = status::status(&cron, &plan, &imports, problem.as_deref(), &now);
        if let Some((reason, message)) = plan.trouble.as_ref().filter(|_| status != cron.status) {
            self.applier.report(&Event::warning(About::cron(&cron.meta), *reason, message.clone()));
        }
        if status != cron.status && !cron.meta.deleting {
            let patch = json!({"metadata": {"uid": cron.meta.uid}, "status": status});
            // DataImportCron has no status subresource.
            let _: Value = self.client.merge_patch(CRONS, key, &patch).await?;
        }
        let polled = matches!(cron.source, Source::Claim { .. });
        let snapped = plan.form == Form::Snapshot;
        Ok(match (plan.trouble.is_some(), polled || snapped || removing) {
            (true, _) => Outcome::After(RETRY),
            (false, _) if plan.awaits => Outcome::After(AGAIN),
            (false, true) => Outcome::After(RECHECK),
            (false, false) => Outcome::Done,
        })
    }

    /// The snapshots of a cron's imports.
    async fn snapshots(&self, cron: &Cron) -> Result<Vec<Snapshot>> {
        if self.caches.provisioners.snapshot_classes.all().is_empty() {
            // The kind may not be installed.
            return Ok(Vec::new());
        }
        let scope =
            Scope::all().namespace(&cron.meta.namespace).labels(&format!("{CRON}={}", cron.meta.name));
        let all: Vec<Value> = self.client.list(SNAPSHOTS, &scope).await?;
        Ok(all.iter().map(Snapshot::from).collect())
    }

    /// Puts a token on the import of a source in another namespace, which the ServiceAccount of the cron's imports has to
    /// be allowed to clone: the operator, which creates them, may clone everything.
    async fn granted(&self, cron: &Cron, import: &Value) -> Result<Value> {
        let namespace = &cron.meta.namespace;
        let mut import = import.clone();
        let far = Origin::of(&cron.source, namespace).filter(|origin| origin.namespace != *namespace);
        if let Some(origin) = far {
            let user = authorize::service_account(namespace, &cron.account);
            let name = import["metadata"]["name"].as_str().unwrap_or_default();
            let target = Target { namespace, name, uid: None };
            let token = permit::token(&self.client, &self.setup.namespace, &user, &origin, target).await?;
            import["metadata"]["annotations"][names::CLONE_TOKEN] = json!(token);
        }
        Ok(import)
    }

    async fn step(&self, cron: &Cron, step: &Step, now: &str) -> Result<()> {
        let namespace = cron.meta.namespace.as_str();
        match step {
            Step::Import(volume) => {
                let volume = self.granted(cron, volume).await?;
                match self.client.create::<Value>(DATA_VOLUMES, namespace, &volume).await {
                    Err(error) if error.is_already_exists() => {}
                    made => {
                        made?;
                    }
                }
            }
            Step::Snapshot(snapshot) => {
                match self.client.create::<Value>(SNAPSHOTS, namespace, snapshot).await {
                    Err(error) if error.is_already_exists() => {}
                    made => {
                        made?;
                    }
                }
            }
            Step::Use(form, name) => {
                let patch = json!({"metadata": {"annotations": {LAST_USED: now}}});
                let key = Key::new(namespace, name);
                let _: Value = self.client.merge_patch(resource(*form), &key, &patch).await?;
            }
            Step::Class(class) => {
                let meta = json!({"uid": cron.meta.uid, "annotations": {STORAGE_CLASS: class}});
                let key = Key::new(namespace, &cron.meta.name);
                let _: Value = self.client.merge_patch(CRONS, &key, &json!({"metadata": meta})).await?;
            }
            Step::Point(source) => {
                let name = source["metadata"]["name"].as_str().unwrap_or_default();
                let apply = Apply { manager: MANAGER, force: true };
                let key = Key::new(namespace, name);
                let _: Value = self.client.apply(DATA_SOURCES, &key, source, apply).await?;
            }
            Step::Drop { form, name, uid } => {
                let key = Key::new(namespace, name);
                match self.client.delete(resource(*form), &key, &Delete::default().uid(uid)).await {
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
