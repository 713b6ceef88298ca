//! The next step of a VolumeGroupSnapshot or VolumeGroupSnapshotContent. Pure: one step at a time, each seen done in the
//! objects.
//!
//! ```text
//!  group   ─► finalizer ─► class ─► content ─► taken by the driver ─► members ─► status follows the content ─► ready
//!  given   ─► finalizer ─► content bound by id ─► read by the driver ─► status follows the content ─► ready
//!  deleted ─► no claim is restored from a member ─► content marked, deleted by its policy ─► members ─► finalizer
//! ```

use serde_json::{Value, json};

use super::super::plan::{Change, Fail, ForContent, Kept, Progress, follow};
use super::seen::{BOUND, CONTENT, Group, GroupContent, Taken};

/// Everything that a group refers to.
#[derive(Clone, Debug, Default)]
pub(super) struct Around<'a> {
    /// The content of the name that [`Group::content`] gives.
    pub content: Option<&'a GroupContent>,
    /// Whether the class that it names exists.
    pub class: bool,
    /// Snapshots that the driver made, whose objects are not complete.
    pub missing: Vec<Taken>,
    /// A member from which a claim is being restored.
    pub restoring: Option<String>,
    /// Members that are not being deleted.
    pub members: Vec<String>,
}

/// A step of a group.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing until something changes.
    Rest,
    /// A claim is being restored from this member of the deleted group.
    InUse(String),
    /// The group gets an error.
    Fail(Fail),
    /// These are the group's finalizers.
    Finalizers(Vec<String>),
    /// The driver's default class is chosen.
    Choose,
    /// The content is made.
    Create,
    /// The content gets the group's id, and its class where it has none.
    Bind(Option<String>),
    /// The objects of these snapshots are made.
    Members(Vec<Taken>),
    /// The status changes.
    Status(Change),
    /// The content is marked: its group is deleted.
    Mark,
    /// The content is deleted.
    Delete,
    /// These members are deleted.
    DeleteMembers(Vec<String>),
}

/// Decides about a group.
pub(super) fn group(g: &Group, a: Around<'_>) -> Step {
    if g.meta.deleting {
        return deleted(g, a);
    }
    if g.selector.is_some() == g.named.is_some() {
        let message = "Exactly one of Selector and VolumeGroupSnapshotContentName should be specified";
        return fail("GroupSnapshotValidationError", message);
    }
    if let Some(fail) = a.content.and_then(|content| mismatch(g, content)) {
        return Step::Fail(fail);
    }
    if !g.meta.finalizers.iter().any(|name| name == BOUND) {
        let mut finalizers = g.meta.finalizers.clone();
        finalizers.push(BOUND.to_owned());
        return Step::Finalizers(finalizers);
    }
    match a.content {
        // A taken group is not replaced by a later one under its name.
        None if g.named.is_some() || g.taken.is_some() || g.ready == Some(true) => {
            fail("GroupSnapshotContentMissing", "VolumeGroupSnapshotContent is missing")
        }
        None if g.class.is_none() => Step::Choose,
        None if !a.class => classless(g),
        None => Step::Create,
        // Its members are complete, and stay what they are.
        Some(_) if g.ready == Some(true) && g.bound.is_some() => Step::Rest,
        Some(content) if g.named.is_some() => given(g, content, a.class),
        Some(_) if !a.missing.is_empty() => Step::Members(a.missing),
        Some(content) => status(g, content).map_or(Step::Rest, Step::Status),
    }
}

/// Why a content cannot be the group's.
fn mismatch(g: &Group, content: &GroupContent) -> Option<Fail> {
    let wrong = |reason, message: String| Some(Fail::new(reason, message, true));
    let name = &content.meta.name;
    if g.named.is_some() && !content.given {
        let message =
            "VolumeGroupSnapshotContent is dynamically provisioned while expecting a pre-provisioned one";
        return wrong("GroupSnapshotContentMismatch", message.to_owned());
    }
    if g.named.is_none() && content.given {
        let message = format!("GroupSnapshot handle should not be set in group snapshot content {name}");
        return wrong("GroupSnapshotHandleSet", message);
    }
    let fits = if g.named.is_some() { content.may_be_of(g) } else { content.is_of(g) };
    if !fits {
        let message = format!("VolumeGroupSnapshotContent [{name}] is bound to a different group snapshot");
        return wrong("GroupSnapshotContentMisbound", message);
    }
    None
}

fn classless(g: &Group) -> Step {
    let class = g.class.as_deref().unwrap_or_default();
    let message = format!("VolumeGroupSnapshotClass {class:?} not found");
    Step::Fail(Fail::new("GetGroupSnapshotClassFailed", message, false))
}

/// A group that was taken elsewhere, and its content. Its user makes the objects of its snapshots.
fn given(g: &Group, content: &GroupContent, class: bool) -> Step {
    if g.class.is_some() && !class {
        return classless(g);
    }
    let unnamed = content.class.is_none() && g.class.is_some();
    if content.of.2.is_empty() || unnamed {
        return Step::Bind(g.class.clone().filter(|_| unnamed));
    }
    status(g, content).map_or(Step::Rest, Step::Status)
}

fn fail(reason: &'static str, message: &str) -> Step {
    Step::Fail(Fail::new(reason, message, true))
}

fn status(g: &Group, content: &GroupContent) -> Option<Change> {
    let bound = json!({"boundVolumeGroupSnapshotContentName": content.meta.name});
    let status: Value = if g.bound.is_none() { bound } else { json!({}) };
    let before = Progress { taken: g.taken.clone(), ready: g.ready, failure: g.failure.as_ref() };
    let after =
        Progress { taken: content.time.clone(), ready: content.ready, failure: content.failure.as_ref() };
    follow(&before, &after, status)
}

/// The group is deleted.
fn deleted(g: &Group, a: Around<'_>) -> Step {
    if !g.is_held() {
        return Step::Rest;
    }
    if let Some(member) = a.restoring {
        return Step::InUse(member);
    }
    let content = a.content.filter(|content| content.is_of(g));
    if let Some(content) = content {
        if !content.is_marked() {
            return Step::Mark;
        }
        if content.deletes() && !content.meta.deleting {
            return Step::Delete;
        }
    }
    if !a.members.is_empty() {
        return Step::DeleteMembers(a.members);
    }
    if content.is_some_and(GroupContent::deletes) {
        return Step::Rest;
    }
    Step::Finalizers(g.meta.finalizers.iter().filter(|name| *name != BOUND).cloned().collect())
}

/// Decides about a content; `of` is the group of the name that it refers to, `lost` whether its node is given up.
pub(super) fn content(content: &GroupContent, of: Option<&Group>, lost: bool) -> ForContent {
    Kept {
        meta: &content.meta,
        finalizer: CONTENT,
        bound: !content.of.2.is_empty(),
        marked: content.is_marked(),
        deleted: of.is_some_and(|group| group.meta.uid == content.of.2 && group.is_held()),
        lost,
    }
    .next()
}
