//! Snapshots from creation to deletion over a model of the cluster: the plans decide, the driver's sidecar is played.

use serde_json::{Value, json};

use super::plan::{self, Around, Fail, ForContent, Step, claim_finalizers, default_class};
use super::seen::{
    AS_SOURCE, BEING_DELETED, BOUND, CLAIM, CONTENT, Claim, Class, Content, IN_GROUP, Snapshot,
};

/// One snapshot, its claim, its content.
struct Model {
    snapshot: Option<Value>,
    content: Option<Value>,
    claim: Value,
    class: bool,
    others: bool,
    steps: Vec<String>,
}

fn snapshot(source: &Value) -> Value {
    json!({
        "metadata": {"name": "s", "namespace": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {"source": source, "volumeSnapshotClassName": "k"},
    })
}

fn content(policy: &str, source: &Value) -> Value {
    json!({
        "metadata": {"name": "snapcontent-u", "uid": "cu", "finalizers": []},
        "spec": {"deletionPolicy": policy, "source": source, "volumeSnapshotClassName": "k",
            "volumeSnapshotRef": {"namespace": "n", "name": "s", "uid": "u"}},
    })
}

impl Model {
    fn new(source: &Value) -> Self {
        Self {
            snapshot: Some(snapshot(source)),
            content: None,
            claim: json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection"]}, "status": {"phase": "Bound"}}),
            class: true,
            others: false,
            steps: Vec::new(),
        }
    }

    fn observed(&self) -> Option<Snapshot> {
        self.snapshot.as_ref().map(Snapshot::from)
    }

    fn status(&self, field: &str) -> &Value {
        &self.snapshot.as_ref().unwrap()["status"][field]
    }

    /// One step of the snapshot's plan; false when it rests.
    fn step(&mut self) -> bool {
        let Some(s) = self.observed() else { return false };
        let content = self.content.as_ref().map(Content::from);
        let around = Around {
            content: content.as_ref(),
            class: self.class,
            protected: Claim::from(&self.claim).protected,
            others: self.others,
            restoring: false,
            grouped: false,
        };
        let step = plan::snapshot(&s, around);
        let object = self.snapshot.as_mut().unwrap();
        let name = format!("{step:?}");
        self.steps.push(name.split(['(', ' ']).next().unwrap().to_owned());
        match step {
            Step::Rest | Step::InUse | Step::InGroup => {
                self.steps.pop();
                return false;
            }
            Step::Fail(fail) => {
                object["status"]["error"] = json!({"time": "t", "message": fail.message});
                if fail.unready {
                    object["status"]["readyToUse"] = json!(false);
                }
                return false;
            }
            Step::Choose => object["spec"]["volumeSnapshotClassName"] = json!("k"),
            Step::Finalizers(all) => {
                object["metadata"]["finalizers"] = json!(all);
                if all.is_empty() && s.meta.deleting {
                    self.snapshot = None;
                }
            }
            Step::Free(claim) => {
                assert_eq!(claim, "c");
                self.protect(false);
            }
            Step::Create => {
                self.protect(true);
                self.content = Some(self::content("Delete", &json!({"volumeHandle": "h"})));
            }
            Step::Bind(class) => {
                let spec = &mut self.content.as_mut().unwrap()["spec"];
                spec["volumeSnapshotRef"]["uid"] = json!("u");
                if let Some(class) = class {
                    spec["volumeSnapshotClassName"] = json!(class);
                }
            }
            Step::Status(change) => {
                for (field, value) in change.status.as_object().unwrap() {
                    object["status"][field] = value.clone();
                }
            }
            Step::Mark => self.mark(),
            Step::Delete => self.content.as_mut().unwrap()["metadata"]["deletionTimestamp"] = json!("t"),
        }
        true
    }

    fn protect(&mut self, protected: bool) {
        let before: Vec<String> =
            serde_json::from_value(self.claim["metadata"]["finalizers"].clone()).unwrap();
        self.claim["metadata"]["finalizers"] = json!(claim_finalizers(&before, protected));
    }

    fn mark(&mut self) {
        self.content.as_mut().unwrap()["metadata"]["annotations"] = json!({BEING_DELETED: "yes"});
    }

    /// Steps until nothing is left to do, in both plans.
    fn settle(&mut self) {
        for _ in 0..20 {
            let more = self.step();
            let seen = self.content.as_ref().map(Content::from);
            let step = seen.map(|content| plan::content(&content, self.observed().as_ref(), false));
            match step {
                Some(ForContent::Finalizers(all)) => {
                    self.content.as_mut().unwrap()["metadata"]["finalizers"] = json!(all);
                }
                Some(ForContent::Mark) => self.mark(),
                Some(ForContent::Rest | ForContent::Invalid(_)) | None if !more => return,
                Some(ForContent::Rest | ForContent::Invalid(_)) | None => {}
            }
        }
        panic!("it does not come to rest: {:?}", self.steps);
    }

    /// The sidecar takes the snapshot.
    fn take_snapshot(&mut self) {
        self.content.as_mut().unwrap()["status"] = json!({
            "creationTime": 1_795_282_205_999_999_999u64, "readyToUse": true, "restoreSize": 209_715_200, "snapshotHandle": "x",
        });
    }

    fn delete(&mut self) {
        self.snapshot.as_mut().unwrap()["metadata"]["deletionTimestamp"] = json!("t");
    }
}

#[test]
fn a_snapshot_is_taken_and_deleted() {
    let mut model = Model::new(&json!({"persistentVolumeClaimName": "c"}));
    model.settle();
    assert_eq!(model.steps, ["Finalizers", "Create", "Finalizers", "Status"]);
    assert_eq!(model.status("boundVolumeSnapshotContentName"), "snapcontent-u");
    assert_eq!(model.status("readyToUse"), false);
    assert!(Claim::from(&model.claim).protected, "the claim cannot go while its snapshot is taken");
    assert_eq!(model.snapshot.as_ref().unwrap()["metadata"]["finalizers"], json!([AS_SOURCE, BOUND]));
    assert_eq!(model.content.as_ref().unwrap()["metadata"]["finalizers"], json!([CONTENT]));
    model.take_snapshot();
    model.settle();
    assert_eq!(model.status("readyToUse"), true);
    assert_eq!(
        (model.status("creationTime"), model.status("restoreSize")),
        (&json!("2026-11-21T17:30:05Z"), &json!("200Mi"))
    );
    assert_eq!(model.claim["metadata"]["finalizers"], json!(["kubernetes.io/pvc-protection"]));
    model.delete();
    model.settle();
    let gone = &model.content.as_ref().unwrap()["metadata"];
    assert_eq!(
        (&gone["deletionTimestamp"], &gone["annotations"][BEING_DELETED]),
        (&json!("t"), &json!("yes"))
    );
    assert!(model.snapshot.is_some(), "the snapshot stays while its content does");
    model.content = None;
    model.settle();
    assert!(model.snapshot.is_none());
}

#[test]
fn a_retained_content_outlives_its_snapshot() {
    let mut model = Model::new(&json!({"persistentVolumeClaimName": "c"}));
    model.content = Some(content("Retain", &json!({"volumeHandle": "h"})));
    model.take_snapshot();
    model.settle();
    assert_eq!(model.snapshot.as_ref().unwrap()["metadata"]["finalizers"], json!([AS_SOURCE]));
    model.delete();
    model.settle();
    assert!(model.snapshot.is_none());
    let kept = &model.content.as_ref().unwrap()["metadata"];
    assert!(kept["deletionTimestamp"].is_null() && kept["annotations"][BEING_DELETED] == "yes");
}

#[test]
fn a_snapshot_that_is_deleted_before_it_is_taken_leaves_nothing() {
    for steps in 0..6 {
        let mut model = Model::new(&json!({"persistentVolumeClaimName": "c"}));
        for _ in 0..steps {
            model.step();
        }
        model.delete();
        model.settle();
        if let Some(content) = &model.content {
            assert_eq!(content["metadata"]["deletionTimestamp"], "t", "after {steps}");
            model.content = None;
        }
        model.settle();
        let left = model.snapshot.as_ref().map(|one| one["metadata"]["finalizers"].clone());
        assert!(left.is_none_or(|left| left.is_null()), "after {steps}");
        assert!(!Claim::from(&model.claim).protected, "after {steps}");
    }
}

#[test]
fn a_content_of_an_administrator_is_bound() {
    let mut model = Model::new(&json!({"volumeSnapshotContentName": "given"}));
    let mut given = content("Delete", &json!({"snapshotHandle": "x"}));
    given["metadata"]["name"] = json!("given");
    given["spec"]["volumeSnapshotRef"]["uid"] = Value::Null;
    given["spec"]["volumeSnapshotClassName"] = Value::Null;
    model.content = Some(given);
    model.settle();
    assert_eq!(model.steps, ["Finalizers", "Bind", "Status"]);
    let spec = &model.content.as_ref().unwrap()["spec"];
    assert_eq!(
        (&spec["volumeSnapshotRef"]["uid"], &spec["volumeSnapshotClassName"]),
        (&json!("u"), &json!("k"))
    );
    assert_eq!(model.status("boundVolumeSnapshotContentName"), "given");
}

#[test]
fn errors_of_the_driver_come_and_go() {
    let mut model = Model::new(&json!({"persistentVolumeClaimName": "c"}));
    model.settle();
    let error = json!({"time": "t", "message": "no space"});
    model.content.as_mut().unwrap()["status"] = json!({"readyToUse": false, "error": error});
    model.settle();
    assert_eq!(model.status("error"), &error);
    model.take_snapshot();
    model.settle();
    assert_eq!((model.status("error"), model.status("readyToUse")), (&Value::Null, &json!(true)));
}

#[test]
fn the_claim_stays_protected_while_another_snapshot_of_it_is_taken() {
    let mut model = Model::new(&json!({"persistentVolumeClaimName": "c"}));
    model.settle();
    model.others = true;
    model.take_snapshot();
    model.settle();
    assert!(Claim::from(&model.claim).protected);
    model.others = false;
    model.settle();
    assert!(!Claim::from(&model.claim).protected);
}

fn failure(object: &Value, content: Option<&Value>, class: bool) -> Option<Fail> {
    let mut object = object.clone();
    object["metadata"]["finalizers"] = json!([AS_SOURCE, BOUND]);
    let content = content.map(Content::from);
    let around = Around { content: content.as_ref(), class, ..Around::default() };
    let step = plan::snapshot(&Snapshot::from(&object), around);
    if let Step::Fail(fail) = step { Some(fail) } else { None }
}

#[test]
fn snapshots_that_cannot_be_report_the_cause() {
    let of_claim = snapshot(&json!({"persistentVolumeClaimName": "c"}));
    let of_content = snapshot(&json!({"volumeSnapshotContentName": "snapcontent-u"}));
    let status = |status: Value| {
        let mut object = of_claim.clone();
        object["status"] = status;
        object
    };
    let ready = status(json!({"readyToUse": true, "boundVolumeSnapshotContentName": "snapcontent-u"}));
    let lost = status(json!({"readyToUse": false, "creationTime": "t"}));
    let (made, given) = (
        content("Delete", &json!({"volumeHandle": "h"})),
        content("Delete", &json!({"snapshotHandle": "x"})),
    );
    let mut foreign = made.clone();
    foreign["spec"]["volumeSnapshotRef"]["uid"] = json!("another");
    let mut of_another = given.clone();
    of_another["spec"]["volumeSnapshotRef"]["name"] = json!("another");
    for (object, content, class, expected) in [
        (snapshot(&json!({})), None, true, "SnapshotValidationError"),
        (
            snapshot(&json!({"persistentVolumeClaimName": "c", "volumeSnapshotContentName": "x"})),
            None,
            true,
            "SnapshotValidationError",
        ),
        (of_claim.clone(), None, false, "GetSnapshotClassFailed"),
        (of_content.clone(), None, true, "SnapshotContentMissing"),
        (ready.clone(), None, true, "SnapshotContentMissing"),
        (lost, None, true, "SnapshotContentMissing"),
        (of_content.clone(), Some(&made), true, "SnapshotContentMismatch"),
        (of_claim.clone(), Some(&given), true, "SnapshotContentMismatch"),
        (of_content, Some(&of_another), true, "SnapshotContentMisbound"),
        (of_claim, Some(&foreign), true, "SnapshotContentMisbound"),
        (ready.clone(), Some(&foreign), true, "SnapshotMisbound"),
    ] {
        let fail = failure(&object, content, class).unwrap_or_else(|| panic!("{object} {content:?}"));
        assert_eq!(fail.reason, expected, "{object} {content:?}");
        assert!(!fail.message.is_empty());
        assert_eq!(fail.unready, expected != "GetSnapshotClassFailed");
    }
    assert_eq!(
        failure(&ready, Some(&made), false),
        None,
        "a class that is gone does not matter to taken snapshots"
    );
}

#[test]
fn a_deletion_waits_for_claims_that_are_being_restored() {
    let mut object = snapshot(&json!({"persistentVolumeClaimName": "c"}));
    object["metadata"]["finalizers"] = json!([AS_SOURCE, BOUND]);
    object["metadata"]["deletionTimestamp"] = json!("t");
    let content = Content::from(&content("Delete", &json!({"volumeHandle": "h"})));
    let around = Around { content: Some(&content), restoring: true, ..Around::default() };
    assert_eq!(plan::snapshot(&Snapshot::from(&object), around), Step::InUse);
    let pending = json!({"spec": {"dataSource": {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}},
        "status": {"phase": "Pending"}});
    assert_eq!(Claim::from(&pending).restores.as_deref(), Some("s"));
    let mut bound = pending;
    bound["status"]["phase"] = json!("Bound");
    assert_eq!(Claim::from(&bound).restores, None);
}

#[test]
fn a_member_of_a_group_is_deleted_with_it_only() {
    let mut object = snapshot(&json!({"persistentVolumeClaimName": "c"}));
    object["metadata"]["finalizers"] = json!([IN_GROUP, AS_SOURCE, BOUND]);
    object["metadata"]["deletionTimestamp"] = json!("t");
    object["metadata"]["ownerReferences"] =
        json!([{"kind": "VolumeGroupSnapshot", "name": "g", "uid": "gu"}]);
    let member = Snapshot::from(&object);
    let around = Around { grouped: true, ..Around::default() };
    assert_eq!(plan::snapshot(&member, around), Step::InGroup);
    assert_eq!(plan::snapshot(&member, Around::default()), Step::Finalizers(Vec::new()));
}

#[test]
fn contents_without_their_snapshot_are_left_alone() {
    let mut lone = content("Delete", &json!({"volumeHandle": "h"}));
    lone["metadata"]["finalizers"] = json!([CONTENT]);
    assert_eq!(plan::content(&Content::from(&lone), None, false), ForContent::Rest);
    assert_eq!(plan::content(&Content::from(&lone), None, true), ForContent::Rest);
    let mut deleted = lone.clone();
    deleted["metadata"]["deletionTimestamp"] = json!("t");
    for (lost, expected) in [(false, ForContent::Rest), (true, ForContent::Finalizers(Vec::new()))] {
        assert_eq!(
            plan::content(&Content::from(&deleted), None, lost),
            expected,
            "its node is given up: {lost}"
        );
    }
    lone["spec"]["source"] = json!({});
    assert!(matches!(plan::content(&Content::from(&lone), None, false), ForContent::Invalid(_)));
    assert_eq!(claim_finalizers(&["a".into(), CLAIM.into()], false), ["a"]);
}

#[test]
fn the_default_class_is_the_only_one_of_the_driver() {
    let class =
        |name: &str, driver: &str, is_default| Class { name: name.into(), driver: driver.into(), is_default };
    let choose = |classes: &[Class]| default_class("d", classes.iter());
    assert_eq!(
        choose(&[class("a", "d", false), class("b", "e", true), class("c", "d", true)]),
        Ok("c".into())
    );
    assert_eq!(choose(&[class("a", "d", false)]), Err("cannot find default snapshot class".into()));
    let two = [class("a", "d", true), class("b", "d", true)];
    assert_eq!(choose(&two), Err("2 default snapshot classes were found".into()));
}
