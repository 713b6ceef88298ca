//! The next step of a VolumeSnapshot or VolumeSnapshotContent. Pure: one step at a time, each seen done in the objects.
//!
//! ```text
//!  snapshot ─► finalizers ─► class ─► content (claim protected) ─► bound ─► status follows the content ─► ready
//!  deleted  ─► no claim is restored from it ─► content marked, deleted by its policy ─► finalizers
//! ```

use serde_json::{Value, json};

use super::seen::{AS_SOURCE, BOUND, CLAIM, CONTENT, Class, Content, Failure, IN_GROUP, Snapshot};
use crate::storage::seen::Meta;

/// Everything that a snapshot refers to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Around<'a> {
    /// The content of the name that [`Snapshot::content`] gives.
    pub content: Option<&'a Content>,
    /// Whether the class that it names exists.
    pub class: bool,
    /// Whether its source claim has the finalizer of a source.
    pub protected: bool,
    /// Whether another snapshot of the claim is still being taken.
    pub others: bool,
    /// Whether a claim is being restored from it.
    pub restoring: bool,
    /// Whether its group is there and is not being deleted.
    pub grouped: bool,
}

/// A step of a snapshot.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing until something changes.
    Rest,
    /// A claim is being restored from the deleted snapshot.
    InUse,
    /// The deleted snapshot is a member of a group, which is not deleted.
    InGroup,
    /// The snapshot gets an error.
    Fail(Fail),
    /// The driver's default class is chosen.
    Choose,
    /// These are the snapshot's finalizers.
    Finalizers(Vec<String>),
    /// The finalizer of its source claim goes.
    Free(String),
    /// The content is made.
    Create,
    /// The content gets the snapshot's id, and its class where it has none.
    Bind(Option<String>),
    /// The status changes.
    Status(Change),
    /// The content is marked: its snapshot is deleted.
    Mark,
    /// The content is deleted.
    Delete,
}

/// An error of a snapshot: its status and event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fail {
    /// Reason of the event.
    pub reason: &'static str,
    /// The error.
    pub message: String,
    /// Whether the snapshot is not ready for it.
    pub unready: bool,
}

impl Fail {
    /// An error that leaves `readyToUse` as it is, or makes it false.
    pub(super) fn new(reason: &'static str, message: impl Into<String>, unready: bool) -> Self {
        Self { reason, message: message.into(), unready }
    }
}

/// A change of a snapshot's status.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Change {
    /// Fields that change.
    pub status: Value,
    /// Whether the driver has just taken it.
    pub taken: bool,
    /// Whether it has just become ready.
    pub ready: bool,
}

/// Decides about a snapshot.
pub(super) fn snapshot(s: &Snapshot, a: Around<'_>) -> Step {
    if s.meta.deleting {
        return deleted(s, a);
    }
    if let Some(step) = free(s, a, s.is_ready()) {
        return step;
    }
    if s.claim.is_some() == s.named.is_some() {
        let message =
            "Exactly one of PersistentVolumeClaimName and VolumeSnapshotContentName should be specified";
        return Step::Fail(Fail::new("SnapshotValidationError", message, true));
    }
    if !(s.is_ready() && s.bound.is_some())
        && let Some(fail) = a.content.and_then(|content| mismatch(s, content))
    {
        return Step::Fail(fail);
    }
    let mut finalizers = s.meta.finalizers.clone();
    let deletes = a.content.is_some_and(|content| content.deletes);
    for (name, wanted) in [(AS_SOURCE, true), (BOUND, deletes)] {
        if wanted && !finalizers.iter().any(|one| one == name) {
            finalizers.push(name.to_owned());
        }
    }
    if finalizers != s.meta.finalizers {
        return Step::Finalizers(finalizers);
    }
    match (s.is_ready() && s.bound.is_some(), a.content) {
        (true, None) => Step::Fail(missing()),
        (true, Some(content)) if !content.is_of(s, true) => {
            let message = "VolumeSnapshotContent is not bound to the VolumeSnapshot correctly";
            Step::Fail(Fail::new("SnapshotMisbound", message, true))
        }
        (true, Some(_)) => Step::Rest,
        (false, content) => unready(s, a, content),
    }
}

fn missing() -> Fail {
    Fail::new("SnapshotContentMissing", "VolumeSnapshotContent is missing", true)
}

/// Why a content cannot be the snapshot's.
fn mismatch(s: &Snapshot, content: &Content) -> Option<Fail> {
    let name = &content.meta.name;
    let fail = |reason, message: String| Some(Fail::new(reason, message, true));
    if s.named.is_some() && content.snapshot.is_none() {
        let message =
            "VolumeSnapshotContent is dynamically provisioned while expecting a pre-provisioned one";
        return fail("SnapshotContentMismatch", message.to_owned());
    }
    if s.named.is_none() && content.volume.is_none() && s.group.is_none() {
        let message = format!(
            "VolumeSnapshotContent {name} is pre-provisioned while expecting a dynamically provisioned one"
        );
        return fail("SnapshotContentMismatch", message);
    }
    if !content.is_of(s, s.named.is_none()) {
        let message = format!("VolumeSnapshotContent [{name}] is bound to a different snapshot");
        return fail("SnapshotContentMisbound", message);
    }
    None
}

/// The snapshot is not ready, or not bound.
fn unready(s: &Snapshot, a: Around<'_>, content: Option<&Content>) -> Step {
    if let Some(class) = s.class.as_ref().filter(|_| !a.class && (s.named.is_some() || content.is_none())) {
        let error = format!("volumesnapshotclass.snapshot.storage.k8s.io {class:?} not found");
        let message = format!("Failed to get snapshot class with error {error}");
        return Step::Fail(Fail::new("GetSnapshotClassFailed", message, false));
    }
    let Some(content) = content else {
        return match () {
            // A taken snapshot is not replaced by a later one under its name.
            () if s.named.is_some() || s.taken.is_some() => Step::Fail(missing()),
            // The group makes the contents of its members.
            () if s.group.is_some() => Step::Rest,
            () if s.class.is_none() => Step::Choose,
            () => Step::Create,
        };
    };
    let unnamed = content.class.is_none() && s.class.is_some();
    if s.named.is_some() && (content.of.2.is_empty() || unnamed) {
        return Step::Bind(s.class.clone().filter(|_| unnamed));
    }
    status(s, content).map_or(Step::Rest, Step::Status)
}

/// The change of a snapshot's status that its content's asks for.
pub(super) fn status(s: &Snapshot, content: &Content) -> Option<Change> {
    let mut status = json!({});
    if s.bound.is_none() {
        status["boundVolumeSnapshotContentName"] = json!(content.meta.name);
    }
    if let Some(size) =
        content.size.filter(|size| s.size.is_none() || (s.size.as_deref() == Some("0") && *size > 0))
    {
        status["restoreSize"] = json!(api::quantity::text(size));
    }
    let time = |nanoseconds| virt::time::text(nanoseconds / 1_000_000_000);
    let before = Progress { taken: s.taken.clone(), ready: s.ready, failure: s.failure.as_ref() };
    let after =
        Progress { taken: content.taken.map(time), ready: content.ready, failure: content.failure.as_ref() };
    follow(&before, &after, status)
}

/// The fields that the statuses of a snapshot or group and of its content have in common.
pub(super) struct Progress<'a> {
    /// `creationTime`, as text.
    pub taken: Option<String>,
    /// `readyToUse`.
    pub ready: Option<bool>,
    /// `error`.
    pub failure: Option<&'a Failure>,
}

/// The change of a status to what the content's says; `status` has its other fields that change.
pub(super) fn follow(before: &Progress<'_>, content: &Progress<'_>, mut status: Value) -> Option<Change> {
    let taken = content.taken.as_ref().filter(|_| before.taken.is_none());
    if let Some(time) = taken {
        status["creationTime"] = json!(time);
    }
    let ready = content.ready == Some(true);
    if before.ready != Some(ready) {
        status["readyToUse"] = json!(ready);
    }
    if before.failure != content.failure {
        let error = |failure: &Failure| json!({"time": failure.time, "message": failure.message});
        status["error"] = content.failure.map_or(Value::Null, error);
    }
    let changed = status.as_object().is_some_and(|fields| !fields.is_empty());
    let newly_ready = ready && before.ready != Some(true);
    changed.then_some(Change { status, taken: taken.is_some(), ready: newly_ready })
}

/// The finalizer of the source claim goes when no snapshot of it is being taken; `done`: nor is this one.
fn free(s: &Snapshot, a: Around<'_>, done: bool) -> Option<Step> {
    let claim = s.claim.as_ref().filter(|_| a.protected && done && !a.others)?;
    Some(Step::Free(claim.clone()))
}

/// The snapshot is deleted.
fn deleted(s: &Snapshot, a: Around<'_>) -> Step {
    if !s.is_held() {
        return Step::Rest;
    }
    if a.grouped {
        return Step::InGroup;
    }
    let content = a.content.filter(|content| content.is_of(s, true));
    if let Some(content) = content {
        if a.restoring {
            return Step::InUse;
        }
        if !content.is_marked() {
            return Step::Mark;
        }
        if content.deletes && !content.meta.deleting {
            return Step::Delete;
        }
    }
    if let Some(step) = free(s, a, true) {
        return step;
    }
    let stays = content.is_some_and(|content| content.deletes);
    let kept = |name: &&String| *name != AS_SOURCE && *name != IN_GROUP && (stays || *name != BOUND);
    let finalizers: Vec<String> = s.meta.finalizers.iter().filter(kept).cloned().collect();
    if finalizers == s.meta.finalizers { Step::Rest } else { Step::Finalizers(finalizers) }
}

/// A step of a content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ForContent {
    /// Nothing.
    Rest,
    /// It has no source, or two.
    Invalid(&'static str),
    /// These are its finalizers.
    Finalizers(Vec<String>),
    /// It is marked: its snapshot is deleted.
    Mark,
}

/// Decides about a content; `of` is the snapshot of the name that it refers to, `lost` whether its node is given up.
pub(super) fn content(content: &Content, of: Option<&Snapshot>, lost: bool) -> ForContent {
    let kept = Kept {
        meta: &content.meta,
        finalizer: CONTENT,
        bound: !content.of.2.is_empty(),
        marked: content.is_marked(),
        deleted: of.is_some_and(|snapshot| snapshot.meta.uid == content.of.2 && snapshot.is_held()),
        lost,
    };
    if content.volume.is_some() == content.snapshot.is_some() && !kept.is_given_up() {
        return ForContent::Invalid("Exactly one of VolumeHandle and SnapshotHandle should be specified");
    }
    kept.next()
}

/// A content of a snapshot or group: what its finalizer and mark depend on.
pub(super) struct Kept<'a> {
    /// Its metadata.
    pub meta: &'a Meta,
    /// The finalizer of its kind.
    pub finalizer: &'static str,
    /// Whether it refers to its snapshot by id.
    pub bound: bool,
    /// Whether its snapshot is marked as deleted.
    pub marked: bool,
    /// Whether its snapshot is being deleted.
    pub deleted: bool,
    /// Whether its node is given up.
    pub lost: bool,
}

impl Kept<'_> {
    fn is_held(&self) -> bool {
        self.meta.finalizers.iter().any(|name| name == self.finalizer)
    }

    fn is_given_up(&self) -> bool {
        self.lost && self.meta.deleting && self.is_held()
    }

    /// The next step.
    pub(super) fn next(&self) -> ForContent {
        let mut finalizers = self.meta.finalizers.clone();
        if self.is_given_up() {
            finalizers.retain(|name| name != self.finalizer);
            return ForContent::Finalizers(finalizers);
        }
        if !self.bound {
            return ForContent::Rest;
        }
        if !self.meta.deleting && !self.is_held() {
            finalizers.push(self.finalizer.to_owned());
            return ForContent::Finalizers(finalizers);
        }
        // A content without its snapshot stays: it may have been copied from another cluster.
        if self.deleted && !self.marked { ForContent::Mark } else { ForContent::Rest }
    }
}

/// The default class of a driver.
///
/// # Errors
/// When the driver has none, or several.
pub(super) fn default_class<'a>(
    driver: &str,
    classes: impl Iterator<Item = &'a Class>,
) -> Result<String, String> {
    let defaults: Vec<&Class> = classes.filter(|class| class.is_default && class.driver == driver).collect();
    match defaults.as_slice() {
        [] => Err("cannot find default snapshot class".to_owned()),
        [class] => Ok(class.name.clone()),
        several => Err(format!("{} default snapshot classes were found", several.len())),
    }
}

/// Finalizers of a claim with or without that of a source.
pub(super) fn claim_finalizers(before: &[String], protected: bool) -> Vec<String> {
    let mut after: Vec<String> = before.iter().filter(|name| *name != CLAIM).cloned().collect();
    if protected {
        after.push(CLAIM.to_owned());
    }
    after
}
