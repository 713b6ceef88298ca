//! Claims that are cloned: observation, authorization, and the workers of copies.

use api::upload::service_name;
use cluster::{Key, Outcome, Result, Scope};
use serde_json::Value;

use super::{AGAIN, CATCH_UP, Controller, RETRY, refused};
use crate::storage::action::Action;
use crate::storage::clone::authorize::Origin;
use crate::storage::clone::plan::{self as cloning, From, Start};
use crate::storage::clone::token::{self, Target};
use crate::storage::clone::{plan, reference, sender};
use crate::storage::datavolume::Obstacle;
use crate::storage::populate::plan as filling;
use crate::storage::profile::CloneStrategy;
use crate::storage::resources::{CONTENTS, PODS, SNAPSHOTS};
use crate::storage::seen::claim::Phase;
use crate::storage::seen::{Claim, Snapshot, User, Worker};
use crate::storage::worker::upload::Upload;
use crate::storage::{keys, names, signers};

impl Controller {
    /// A claim that is cloned from another one, or from a snapshot; by a populator, or by a copy into the claim itself.
    pub(super) async fn clone_claim(
        &self,
        target: &Claim,
        origin: &Origin,
        populated: bool,
    ) -> Result<Outcome> {
        let written_key = match populated {
            true => temporary_key(target, origin),
            false => Key::new(&target.meta.namespace, &target.meta.name),
        };
        let sender_key = Key::new(&origin.namespace, &sender::name(&target.meta.uid));
        let server_key = Key::new(written_key.namespace(), &service_name(written_key.name()));
        let temporary = if populated { self.caches.claims.get(&written_key) } else { None };
        let serving = !populated && self.caches.workers.get(&server_key).is_some();
        let restored_key = Key::new(&origin.namespace, &cloning::restored(&target.meta.uid));
        let helped = temporary.is_some()
            || serving
            || self.caches.workers.get(&sender_key).is_some()
            || self.caches.claims.get(&restored_key).is_some();
        if cloning::is_over(target) && !helped {
            return Ok(Outcome::Done);
        }
        if let Some(trouble) = self.unauthorized(target, origin, populated).await? {
            return self.uncloned(target, &trouble).await;
        }
        let current = self.is_current(&written_key, Some(&server_key))
            && self.is_worker_current(&sender_key)
            && self.is_current(&restored_key, None);
        if !current {
            return Ok(Outcome::After(CATCH_UP));
        }
        let temporary = if populated { self.caches.claims.get(&written_key) } else { None };
        let written = if populated { temporary.as_deref() } else { Some(target) };
        let (server, sender) = (self.caches.workers.get(&server_key), self.caches.workers.get(&sender_key));
        let server = server
            .filter(|server| written.is_some_and(|written| server.meta.is_controlled_by(&written.meta.uid)));
        let pending = target.phase == Phase::Pending;
        let volume = self.persistent(temporary.as_deref().filter(|_| pending)).await?;
        let source = if origin.snapshot { None } else { self.caches.claims.get(&origin.key()) };
        let restored = if origin.snapshot { self.caches.claims.get(&restored_key) } else { None };
        let first = match populated {
            true => pending && temporary.is_none(),
            false => plan::chosen(target).is_none(),
        };
        let source_volume = self.persistent(source.as_deref().filter(|_| first)).await?;
        let writer = match source.as_deref() {
            Some(source) if first => self.user(source, User::writes).await?,
            Some(_) | None => None,
        };
        let unrestored = plan::chosen(target) == Some(CloneStrategy::Copy)
            && cloning::awaits_restore(target, restored.as_deref());
        let of_snapshot = match origin.snapshot && (first || unrestored) {
            true => self.source_snapshot(&origin.key()).await?,
            false => None,
        };
        let driver = of_snapshot.as_ref().map(|snapshot| self.driver(snapshot)).unwrap_or_default();
        let from = match (source.as_deref(), of_snapshot.as_ref()) {
            (Some(source), _) => From::Claim(source, source_volume.as_ref(), writer.as_deref()),
            (None, Some(snapshot)) => From::Snapshot(snapshot, &driver),
            (None, None) => From::Missing,
        };
        let snapshots = plan::chosen(target) == Some(CloneStrategy::Snapshot) && !origin.snapshot;
        let snapshot = match snapshots {
            true => self.snapshot(&Key::new(&origin.namespace, &cloning::snapshot(&target.meta.uid))).await?,
            false => None,
        };
        let classes = self.classes();
        let class = target.class.as_deref().and_then(|name| classes.named(name));
        let profile = class.map(|class| self.profile(class));
        let restores = classes.of_driver(&driver, class);
        let settings = self.settings();
        let observed = cloning::Observed {
            target,
            origin,
            from,
            temporary: temporary.as_deref(),
            volume: volume.as_ref(),
            snapshot: snapshot.as_ref(),
            restored: restored.as_deref(),
            restores,
            server: server.as_deref(),
            sender: sender.as_deref(),
            class,
            profile: profile.as_ref(),
            forced: settings.clone_strategy,
            honors_first_consumer: settings.honors_first_consumer,
            user: None,
        };
        let mut plan = if populated { cloning::plan(&observed) } else { cloning::direct(&observed) };
        if !populated && plan.start == Some(Start::Server) {
            let user = self.user(target, User::uses).await?;
            plan = cloning::direct(&cloning::Observed { user: user.as_deref(), ..observed });
        }
        if let Some(refusal) = self.act(target, &plan.actions).await? {
            return self.uncloned(target, &refusal).await;
        }
        if let Some(trouble) = &plan.trouble {
            return self.uncloned(target, trouble).await;
        }
        let read = source.as_deref().or(restored.as_deref());
        match (plan.start, written, server.as_deref(), read) {
            (Some(Start::Server), Some(written), ..) => {
                if let Err(error) = self.start_receiver(target, written, origin).await {
                    let message = refused(error)?;
                    return self.uncloned(target, &Obstacle { reason: filling::NOT_STARTED, message }).await;
                }
            }
            (Some(Start::Sender), Some(written), Some(server), Some(read)) => {
                if let Err(error) = self.start_sender(target, written, server, read).await {
                    return self.senderless(target, error).await;
                }
            }
            _ => {}
        }
        if plan.again {
            return Ok(Outcome::After(AGAIN));
        }
        let scheduled = server.as_ref().is_none_or(|server| server.unschedulable.is_none());
        let awaited = written.filter(|_| pending && scheduled && plan.actions.is_empty());
        self.unbound(target, awaited, class).await
    }

    /// Reports why a clone waits.
    pub(super) async fn uncloned(&self, target: &Claim, trouble: &Obstacle) -> Result<Outcome> {
        if let Some(action) = filling::report_clone(target, trouble) {
            self.applier.apply(&action).await?;
        }
        Ok(Outcome::After(RETRY))
    }

    /// Reports that the API server refuses the sending pod: next to what the server reports.
    async fn senderless(&self, target: &Claim, error: cluster::Error) -> Result<Outcome> {
        let trouble = Obstacle { reason: filling::NOT_STARTED, message: refused(error)? };
        if let Some(action) = filling::report_sender(target, &trouble) {
            self.applier.apply(&action).await?;
        }
        Ok(Outcome::After(RETRY))
    }

    /// Why a claim may not be filled from another namespace; `None` when it may.
    async fn unauthorized(
        &self,
        target: &Claim,
        origin: &Origin,
        populated: bool,
    ) -> Result<Option<Obstacle>> {
        // A populator's target is bound when it has its content, another one before.
        let filled = match populated {
            true => target.phase == Phase::Bound,
            false => target.meta.says(names::CLONE_PHASE, "Succeeded"),
        };
        let over = target.meta.deleting || filled;
        if origin.namespace == target.meta.namespace || over {
            return Ok(None);
        }
        let token = target.meta.annotation(names::EXTENDED_CLONE_TOKEN);
        let keys = keys::read(&self.client, &self.setup.namespace).await?;
        let claims = token.and_then(|token| keys.verify_extended(token, signers::now()).ok());
        let uid = target.meta.controller().map(|owner| owner.uid.as_str());
        let wanted = Target { namespace: &target.meta.namespace, name: &target.meta.name, uid };
        if claims.is_some_and(|claims| token::fits(&claims, origin, wanted)) {
            return Ok(None);
        }
        if reference::granted(&self.client, origin, &target.meta.namespace).await? {
            return Ok(None);
        }
        let message = format!(
            "PVC {} has no valid token for a clone from namespace {}: create a DataVolume with this source instead, or a \
             ReferenceGrant there",
            target.meta.name, origin.namespace
        );
        Ok(Some(Obstacle { reason: "CloneNotAuthorized", message }))
    }

    /// Name of a pod in a claim's namespace that `counts` for the claim.
    pub(super) async fn user(
        &self,
        claim: &Claim,
        counts: fn(&User, &Claim) -> bool,
    ) -> Result<Option<String>> {
        let mut found = None;
        let scope = Scope::all().namespace(&claim.meta.namespace);
        self.client
            .each(PODS, &scope, |pod: Value| {
                let pod = User::from(&pod);
                if counts(&pod, claim) {
                    found = Some(pod.meta.name);
                }
            })
            .await?;
        Ok(found)
    }

    pub(super) async fn snapshot(&self, key: &Key) -> Result<Option<Snapshot>> {
        let found = self.client.find::<Value>(SNAPSHOTS, key).await?;
        Ok(found.as_ref().map(Snapshot::from))
    }

    /// The snapshot that is cloned, with the fields of its content. A snapshot without a known node is on that of its claim.
    pub(super) async fn source_snapshot(&self, key: &Key) -> Result<Option<Snapshot>> {
        let Some(mut snapshot) = self.snapshot(key).await? else { return Ok(None) };
        if !snapshot.content.is_empty() {
            let content = self.client.find::<Value>(CONTENTS, &Key::cluster(&snapshot.content)).await?;
            if let Some(content) = content {
                snapshot.complete(&content);
            }
        }
        if snapshot.node.is_none() {
            let claim = self.caches.claims.get(&Key::new(key.namespace(), &snapshot.claim));
            snapshot.node = self.persistent(claim.as_deref()).await?.and_then(|volume| volume.node);
        }
        Ok(Some(snapshot))
    }

    /// The driver of a snapshot, by its class.
    fn driver(&self, snapshot: &Snapshot) -> String {
        let class = self.caches.provisioners.snapshot_classes.get(&Key::cluster(&snapshot.class));
        class.map(|class| class.driver.clone()).unwrap_or_default()
    }

    /// The upload server that receives a copy.
    async fn start_receiver(&self, target: &Claim, written: &Claim, origin: &Origin) -> Result<()> {
        let settings = self.settings();
        let client = sender::client((&origin.namespace, &cloning::read(target, origin)), target);
        let owner = crate::storage::populate::prime::owner(written);
        self.start_upload(&Upload {
            target,
            written,
            owner: &owner,
            client: &client,
            preallocation: target.meta.says(names::PREALLOCATION_REQUESTED, "true"),
            owner_uid: &target.meta.uid,
            settings: &settings,
            images: &self.images(),
        })
        .await
    }

    /// The sending pod, and the Secret with its key.
    async fn start_sender(
        &self,
        target: &Claim,
        written: &Claim,
        server: &Worker,
        source: &Claim,
    ) -> Result<()> {
        let (settings, images) = (self.settings(), &self.images());
        let name = sender::client((&source.meta.namespace, &source.meta.name), target);
        let issued = self.signers.client(&name)?;
        let secret = sender::secret(target, &source.meta.namespace, &issued);
        self.applier.apply(&Action::Create(secret)).await?;
        let sender = sender::Sender { target, source, written, server, settings: &settings, images };
        self.applier.apply(&Action::Create(sender::pod(&sender, &issued.trusted))).await?;
        Ok(())
    }
}

fn temporary_key(target: &Claim, origin: &Origin) -> Key {
    Key::new(cloning::namespace(target, origin), &cloning::temporary(&target.meta.uid))
}
