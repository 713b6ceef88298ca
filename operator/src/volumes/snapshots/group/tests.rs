//! A group from its creation to its deletion, step by step, and what is written for it.

use serde_json::{Value, json};

use super::super::plan::ForContent;
use super::super::seen::{IN_GROUP, Snapshot};
use super::make::{self, Source};
use super::plan::{self, Around, Step};
use super::seen::{BEING_DELETED, BOUND, CONTENT, Group, GroupContent, Taken};
use crate::volumes::seen::{DRIVER, MANAGED_BY, NODE_LABEL};

fn group() -> Value {
    json!({
        "metadata": {"name": "g", "namespace": "n", "uid": "u", "resourceVersion": "7"},
        "spec": {"source": {"selector": {"matchLabels": {"app": "a"}}}, "volumeGroupSnapshotClassName": "k"},
    })
}

fn content(policy: &str) -> Value {
    json!({
        "metadata": {"name": "groupsnapcontent-u", "finalizers": [CONTENT], "labels": {MANAGED_BY: "node1"}},
        "spec": {"deletionPolicy": policy, "driver": DRIVER, "source": {"volumeHandles": ["h1", "h2"]},
            "volumeGroupSnapshotRef": {"namespace": "n", "name": "g", "uid": "u"}},
    })
}

/// A content of a group that was taken elsewhere, as an administrator makes it.
fn given_content() -> Value {
    let handles = json!({"volumeGroupSnapshotHandle": "gh", "volumeSnapshotHandles": ["s1", "s2"]});
    json!({
        "metadata": {"name": "given", "labels": {MANAGED_BY: "node1"}},
        "spec": {"deletionPolicy": "Retain", "driver": DRIVER, "source": {"groupSnapshotHandles": handles},
            "volumeGroupSnapshotRef": {"namespace": "n", "name": "g"}},
    })
}

fn taken() -> Value {
    json!({
        "volumeGroupSnapshotHandle": "gh", "readyToUse": true, "creationTime": "2026-11-21T17:30:05Z",
        "volumeSnapshotInfoList": [
            {"volumeHandle": "h1", "snapshotHandle": "s1", "readyToUse": true, "restoreSize": 7, "creationTime": 5},
            {"volumeHandle": "h2", "snapshotHandle": "s2", "readyToUse": true, "restoreSize": 8, "creationTime": 5},
        ],
    })
}

/// The next step; `change` is what differs from a group whose objects the caches show.
fn next(group: &Value, content: Option<&Value>, change: impl FnOnce(&mut Around<'_>)) -> Step {
    let content = content.map(GroupContent::from);
    let mut around = Around { content: content.as_ref(), class: true, ..Around::default() };
    change(&mut around);
    plan::group(&Group::from(group), around)
}

#[test]
fn a_group_is_taken_and_its_members_are_made_before_it_is_ready() {
    let (mut group, mut content) = (group(), content("Delete"));
    assert_eq!(next(&group, None, |_| {}), Step::Finalizers(vec![BOUND.to_owned()]));
    group["metadata"]["finalizers"] = json!([BOUND]);
    assert_eq!(next(&group, None, |_| {}), Step::Create);
    let Step::Status(change) = next(&group, Some(&content), |_| {}) else { panic!("no status") };
    let bound = json!({"boundVolumeGroupSnapshotContentName": "groupsnapcontent-u", "readyToUse": false});
    assert_eq!((change.status, change.taken, change.ready), (bound.clone(), false, false));
    group["status"] = bound;
    assert_eq!(next(&group, Some(&content), |_| {}), Step::Rest);
    content["status"] = json!({"readyToUse": false, "error": {"time": "t", "message": "another pool"}});
    let Step::Status(change) = next(&group, Some(&content), |_| {}) else { panic!("no status") };
    assert_eq!(change.status["error"]["message"], "another pool");
    group["status"]["error"] = change.status["error"].clone();
    content["status"] = taken();
    let missing = GroupContent::from(&content).taken;
    let step = next(&group, Some(&content), |around| around.missing.clone_from(&missing));
    assert_eq!(step, Step::Members(missing.clone()));
    let Step::Status(change) = next(&group, Some(&content), |_| {}) else { panic!("no status") };
    let ready = json!({"creationTime": "2026-11-21T17:30:05Z", "readyToUse": true, "error": null});
    assert_eq!((change.status.clone(), change.taken, change.ready), (ready, true, true));
    group["status"]["readyToUse"] = json!(true);
    let step = next(&group, Some(&content), |around| around.missing = missing);
    assert_eq!(step, Step::Rest, "members of a ready group are not made again");
}

#[test]
fn a_group_that_was_taken_elsewhere_is_bound_to_its_content() {
    let (mut group, mut content) = (group(), given_content());
    group["spec"]["source"] = json!({"volumeGroupSnapshotContentName": "given"});
    assert_eq!(Group::from(&group).content().as_deref(), Some("given"));
    assert_eq!(next(&group, Some(&content), |_| {}), Step::Finalizers(vec![BOUND.to_owned()]));
    group["metadata"]["finalizers"] = json!([BOUND]);
    assert_eq!(next(&group, Some(&content), |_| {}), Step::Bind(Some("k".to_owned())));
    content["spec"]["volumeGroupSnapshotRef"]["uid"] = json!("u");
    assert_eq!(next(&group, Some(&content), |_| {}), Step::Bind(Some("k".to_owned())), "its class");
    content["spec"]["volumeGroupSnapshotClassName"] = json!("k");
    let Step::Status(change) = next(&group, Some(&content), |_| {}) else { panic!("no status") };
    let bound = json!({"boundVolumeGroupSnapshotContentName": "given", "readyToUse": false});
    assert_eq!(change.status, bound);
    group["status"] = bound;
    content["status"] = json!({
        "volumeGroupSnapshotHandle": "gh", "readyToUse": true, "creationTime": "2026-11-21T17:30:05Z",
    });
    let Step::Status(change) = next(&group, Some(&content), |_| {}) else { panic!("no status") };
    assert_eq!((change.taken, change.ready), (true, true));
    group["status"]["readyToUse"] = json!(true);
    assert_eq!(next(&group, Some(&content), |_| {}), Step::Rest);
    // Without a class it needs none.
    let mut classless = given_content();
    group["spec"]["volumeGroupSnapshotClassName"] = Value::Null;
    group["status"] = Value::Null;
    let step = next(&group, Some(&classless), |around| around.class = false);
    assert_eq!(step, Step::Bind(None));
    classless["spec"]["volumeGroupSnapshotRef"]["uid"] = json!("u");
    assert!(matches!(next(&group, Some(&classless), |around| around.class = false), Step::Status(_)));
}

#[test]
fn a_group_is_deleted_with_its_content_and_members() {
    let (mut group, mut content) = (group(), content("Delete"));
    group["metadata"]["finalizers"] = json!(["other", BOUND]);
    group["metadata"]["deletionTimestamp"] = json!("t");
    content["status"] = taken();
    let members = |around: &mut Around<'_>| around.members = vec!["m".to_owned()];
    let step = next(&group, Some(&content), |around| around.restoring = Some("m".to_owned()));
    assert_eq!(step, Step::InUse("m".to_owned()));
    assert_eq!(next(&group, Some(&content), members), Step::Mark);
    content["metadata"]["annotations"] = json!({BEING_DELETED: "yes"});
    assert_eq!(next(&group, Some(&content), members), Step::Delete);
    content["metadata"]["deletionTimestamp"] = json!("t");
    assert_eq!(next(&group, Some(&content), members), Step::DeleteMembers(vec!["m".to_owned()]));
    assert_eq!(next(&group, Some(&content), |_| {}), Step::Rest, "it waits for its content");
    assert_eq!(next(&group, None, members), Step::DeleteMembers(vec!["m".to_owned()]));
    let released = Step::Finalizers(vec!["other".to_owned()]);
    assert_eq!(next(&group, None, |_| {}), released);
    let mut kept = self::content("Retain");
    kept["metadata"]["annotations"] = json!({BEING_DELETED: "yes"});
    assert_eq!(next(&group, Some(&kept), |_| {}), released, "a retained content outlives its group");
    group["metadata"]["finalizers"] = json!(["other"]);
    assert_eq!(next(&group, Some(&content), members), Step::Rest);
}

#[test]
fn groups_that_cannot_be_report_the_cause() {
    let mut held = group();
    held["metadata"]["finalizers"] = json!([BOUND]);
    let with = |path: &str, value: Value| {
        let mut group = held.clone();
        let (parent, key) = path.rsplit_once('/').unwrap();
        group.pointer_mut(parent).unwrap()[key] = value;
        group
    };
    let mut foreign = content("Delete");
    foreign["spec"]["volumeGroupSnapshotRef"]["uid"] = json!("another");
    let given = json!({"volumeGroupSnapshotContentName": "given"});
    let both = json!({"selector": {}, "volumeGroupSnapshotContentName": "given"});
    let made = self::content("Delete");
    let elsewhere = given_content();
    let changed = |field: &str, value: &str| {
        let mut content = given_content();
        content["spec"]["volumeGroupSnapshotRef"][field] = json!(value);
        content
    };
    let (of_another, named_another) = (changed("uid", "another"), changed("name", "another"));
    for (group, content, class, expected) in [
        (with("/spec/source", json!({})), None, true, "GroupSnapshotValidationError"),
        (with("/spec/source", both), None, true, "GroupSnapshotValidationError"),
        (with("/spec/source", given.clone()), None, true, "GroupSnapshotContentMissing"),
        (with("/spec/source", given.clone()), Some(&made), true, "GroupSnapshotContentMismatch"),
        (with("/spec/source", given.clone()), Some(&of_another), true, "GroupSnapshotContentMisbound"),
        (with("/spec/source", given.clone()), Some(&named_another), true, "GroupSnapshotContentMisbound"),
        (with("/spec/source", given), Some(&elsewhere), false, "GetGroupSnapshotClassFailed"),
        (held.clone(), Some(&elsewhere), true, "GroupSnapshotHandleSet"),
        (held.clone(), Some(&foreign), true, "GroupSnapshotContentMisbound"),
        (held.clone(), None, false, "GetGroupSnapshotClassFailed"),
        (with("/status", json!({"readyToUse": true})), None, true, "GroupSnapshotContentMissing"),
    ] {
        let step = next(&group, content, |around| around.class = class);
        let Step::Fail(fail) = step else { panic!("{group}: {step:?}") };
        assert_eq!(fail.reason, expected, "{group}");
    }
    assert_eq!(next(&with("/spec/volumeGroupSnapshotClassName", Value::Null), None, |_| {}), Step::Choose);
}

#[test]
fn a_content_has_its_finalizer_until_its_node_is_given_up() {
    let mut group = group();
    let mut one = content("Delete");
    let step = |content: &Value, group: &Value, lost| {
        plan::content(&GroupContent::from(content), Some(&Group::from(group)), lost)
    };
    assert_eq!(step(&one, &group, true), ForContent::Rest);
    one["metadata"]["finalizers"] = json!([]);
    assert_eq!(step(&one, &group, false), ForContent::Finalizers(vec![CONTENT.to_owned()]));
    one["metadata"]["finalizers"] = json!([CONTENT]);
    one["metadata"]["deletionTimestamp"] = json!("t");
    assert_eq!(step(&one, &group, true), ForContent::Finalizers(Vec::new()));
    group["metadata"]["finalizers"] = json!([BOUND]);
    group["metadata"]["deletionTimestamp"] = json!("t");
    assert_eq!(step(&one, &group, false), ForContent::Mark);
}

fn source(name: &str, driver: &str, node: &str) -> (Value, Value) {
    let claim = json!({"metadata": {"name": name, "namespace": "n", "uid": format!("{name}-uid")}});
    let volume = json!({"metadata": {"name": format!("pv-{name}")}, "spec": {
        "claimRef": {"namespace": "n", "name": name, "uid": format!("{name}-uid")}, "volumeMode": "Block",
        "csi": {"driver": driver, "volumeHandle": format!("h-{name}")},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "topology.hostpath.csi/node", "operator": "In", "values": [node]}]}]}},
    }});
    (claim, volume)
}

#[test]
fn a_group_is_of_volumes_of_one_node() {
    let class = json!({"metadata": {"name": "k"}, "driver": DRIVER, "deletionPolicy": "Delete", "parameters": {
        "csi.storage.k8s.io/group-snapshotter-secret-name": "${volumegroupsnapshot.name}",
        "csi.storage.k8s.io/group-snapshotter-secret-namespace": "vault",
    }});
    let make = |sources: &[(Value, Value)]| make::content(&Group::from(&group()), &class, sources);
    let one = make(&[source("a", DRIVER, "node1"), source("b", DRIVER, "node1")]).unwrap();
    assert_eq!(
        one["metadata"],
        json!({
            "name": "groupsnapcontent-u", "finalizers": [CONTENT], "labels": {MANAGED_BY: "node1"},
            "annotations": {
                "groupsnapshot.storage.kubernetes.io/deletion-secret-name": "g",
                "groupsnapshot.storage.kubernetes.io/deletion-secret-namespace": "vault",
            },
        })
    );
    assert_eq!(one["spec"]["source"], json!({"volumeHandles": ["h-a", "h-b"]}));
    let why = make(&[source("a", DRIVER, "node1"), source("b", DRIVER, "node2")]).unwrap_err();
    assert_eq!(
        why,
        "the volume of PVC a is on node node1, and that of PVC b on node node2: the volumes of a group must be on one node"
    );
    let shared = |name: &str, label: &str| {
        let (claim, mut volume) = source(name, DRIVER, "");
        volume["spec"]["nodeAffinity"] = Value::Null;
        volume["metadata"]["labels"] = json!({NODE_LABEL: label});
        (claim, volume)
    };
    let of_pool = make(&[shared("a", "node2"), shared("b", "node1")]).unwrap();
    assert_eq!(of_pool["metadata"]["labels"][MANAGED_BY], "node2");
    let why = make(&[source("a", DRIVER, "node1"), source("b", "ebs", "node1")]).unwrap_err();
    assert!(why.contains("the volume of PVC b of \"ebs\""), "{why}");
}

#[test]
fn members_are_bound_to_each_other_and_to_their_group() {
    let mut content = content("Delete");
    content["status"] = taken();
    let (group, content) = (Group::from(&group()), GroupContent::from(&content));
    let volumes = [source("a", DRIVER, "node1").1, source("b", DRIVER, "node1").1];
    let mut volumes = volumes.map(|volume| serde_json::from_value::<Source>(volume).unwrap());
    let of = Taken { volume: "h-b".to_owned(), ..content.taken[1].clone() };
    assert!(volumes[1].is_of(&content, &of) && !volumes[0].is_of(&content, &of));
    volumes.reverse();
    let member = make::member(&group, &content, &of, Some(&volumes[0]));
    let [snapshot, name] = make::names("u", &of);
    assert_eq!((snapshot.len(), name.len()), ("snapshot-".len() + 64, "snapcontent-".len() + 64));
    assert_ne!(make::names("u", &content.taken[0]), make::names("u", &content.taken[1]));
    let seen = Snapshot::from(&member.snapshot);
    assert_eq!((seen.meta.name.as_str(), seen.claim.as_deref()), (snapshot.as_str(), Some("b")));
    assert_eq!(seen.group.unwrap().uid, "u");
    assert_eq!(seen.meta.finalizers, [IN_GROUP]);
    let made = &member.content;
    assert_eq!(made["metadata"]["labels"][MANAGED_BY], "node1");
    let handle = "groupsnapshot.storage.kubernetes.io/volumeGroupSnapshotHandle";
    assert_eq!(made["metadata"]["annotations"][handle], "gh");
    assert_eq!(made["spec"]["sourceVolumeMode"], "Block");
    assert_eq!(made["spec"]["volumeSnapshotRef"]["name"], *snapshot);
    assert_eq!(
        member.status,
        json!({"snapshotHandle": "s2", "volumeGroupSnapshotHandle": "gh", "creationTime": 5, "restoreSize": 8,
            "readyToUse": true})
    );
    assert_eq!(member.bound, json!({"boundVolumeSnapshotContentName": name, "volumeGroupSnapshotName": "g"}));
}
