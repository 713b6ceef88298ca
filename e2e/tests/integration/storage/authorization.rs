//! Rights to clone from another namespace, by the API server's own answers; and invalid tokens of clones.

use std::fs;

use operator::storage::clone::authorize::Origin;
use operator::storage::clone::token::{self, Target};
use operator::storage::keys::{SECRET, SigningKeys};
use operator::storage::signers;
use serde_json::{Value, json};

use crate::storage::platform::{PLATFORM, apply};
use crate::storage::setup::{CLUSTER, IMMEDIATE, assert_same};
use crate::storage::space::{Space, until};

/// Namespace of what is cloned.
const SOURCE: &str = "authorization-source";
/// Namespace of the clones.
const TARGET: &str = "authorization-target";

/// A user with rights in the source's namespace, and whether these let him clone the claim `golden` and the snapshot
/// `taken`.
pub(crate) struct User {
    pub(crate) name: &'static str,
    /// Rules of a Role; none: no Role.
    rules: &'static [&'static str],
    pub(crate) claim: bool,
    snapshot: bool,
}

impl User {
    /// The Role in a namespace, and its binding to a subject, as manifests.
    pub(crate) fn role(&self, namespace: &str, subject: &str) -> String {
        let (name, rules) = (self.name, self.rules.join(", "));
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
             rules: [{rules}]\n---\n\
             apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\n\
             metadata: {{name: {name}, namespace: {namespace}}}\nsubjects: [{subject}]\n\
             roleRef: {{kind: Role, name: {name}, apiGroup: rbac.authorization.k8s.io}}\n"
        )
    }
}

const fn user(name: &'static str, rules: &'static [&'static str], claim: bool, snapshot: bool) -> User {
    User { name, rules, claim, snapshot }
}

const ANY_SOURCE: &str = "{apiGroups: [cdi.kubevirt.io], resources: [datavolumes/source], verbs: [create]}";
const GOLDEN: &str = "{apiGroups: [cdi.kubevirt.io], resources: [datavolumes/source], resourceNames: [golden], verbs: [create]}";
const VOLUMES: &str = "{apiGroups: [cdi.kubevirt.io], resources: [datavolumes], verbs: ['*']}";
const READ: &str = "{apiGroups: [''], resources: [persistentvolumeclaims, pods], verbs: [get, list, watch]}";
const PODS: &str = "{apiGroups: [''], resources: [pods], verbs: [create]}";
const PVCS: &str = "{apiGroups: [''], resources: [pvcs], verbs: [create]}";
const ALL: &str = "{apiGroups: ['*'], resources: ['*'], verbs: ['*']}";

pub(crate) const USERS: [User; 9] = [
    user("nothing", &[], false, false),
    user("reads", &[READ], false, false),
    user("volumes", &[VOLUMES], false, false),
    user("sources", &[ANY_SOURCE], true, true),
    user("golden", &[GOLDEN], true, false),
    user("pods", &[PODS], true, false),
    user("pvcs", &[PVCS], false, false),
    user("both", &[PODS, PVCS], true, true),
    user("all", &[ALL], true, true),
];

/// A DataVolume with a source, as a manifest.
fn manifest(name: &str, source: &Value) -> Value {
    let mut volume = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume", "metadata": {"name": name, "namespace": TARGET},
        "spec": {"storage": {"storageClassName": IMMEDIATE, "resources": {"requests": {"storage": "96Mi"}}}},
    });
    for (field, value) in source.as_object().unwrap() {
        volume["spec"][field] = value.clone();
    }
    volume
}

/// Tries to create a DataVolume as a user, given as arguments of kubectl; the refusal's text.
fn attempt(user: &[&str], volume: &Value) -> Result<(), String> {
    let file = CLUSTER.place().path(&format!("{}.json", volume["metadata"]["namespace"].as_str().unwrap()));
    fs::write(&file, volume.to_string()).unwrap();
    let mut command = CLUSTER.kubectl();
    command.args(["create", "--dry-run=server"]).args(user).arg("-f").arg(&file);
    let run = command.output().unwrap();
    if run.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&run.stderr).into_owned()) }
}

/// Tries to create a DataVolume with a source as a user.
fn tried(user: &str, source: &Value) -> Result<(), String> {
    attempt(&["--as", user], &manifest("tried", source))
}

#[test]
fn the_matrix_of_rights_is_the_api_servers() {
    let (source, target) = (Space::new(SOURCE), Space::new(TARGET));
    for user in &USERS {
        let name = user.name;
        let subject = format!("{{kind: User, name: {name}, apiGroup: rbac.authorization.k8s.io}}");
        let role = user.role(SOURCE, &subject);
        apply(
            &CLUSTER,
            &format!(
                "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {{name: {name}, namespace: {TARGET}}}\n\
                 subjects: [{subject}]\n\
                 roleRef: {{kind: ClusterRole, name: cluster-admin, apiGroup: rbac.authorization.k8s.io}}\n---\n{role}"
            ),
        );
    }
    let claim = json!({"pvc": {"namespace": SOURCE, "name": "golden"}});
    let snapshot = json!({"snapshot": {"namespace": SOURCE, "name": "taken"}});
    source.create("DataSource", json!({"metadata": {"name": "image"}, "spec": {"source": claim}}));
    source.create("DataSource", json!({"metadata": {"name": "saved"}, "spec": {"source": snapshot}}));
    let refers = |name: &str| json!({"sourceRef": {"kind": "DataSource", "namespace": SOURCE, "name": name}});
    // The roles are in force when the last one is.
    until("the rights are in force", || tried("all", &json!({"source": snapshot})).ok());
    let mut asked = 0;
    for user in &USERS {
        for (source, allowed) in [
            (json!({"source": claim}), user.claim),
            (json!({"source": snapshot}), user.snapshot),
            (refers("image"), user.claim),
            (refers("saved"), user.snapshot),
        ] {
            let answer = tried(user.name, &source);
            asked += 1;
            assert_eq!(answer.is_ok(), allowed, "{} {source}: {answer:?}", user.name);
            let text =
                format!("User {} has insufficient permissions in clone source namespace {SOURCE}", user.name);
            assert!(answer.is_ok() || answer.as_ref().is_err_and(|said| said.contains(&text)), "{answer:?}");
        }
    }
    println!("{asked} clones asked for by {} users: answered as the table says", USERS.len());
    // The own namespace needs no rights; a source that is absent there is waited for.
    tried("nothing", &json!({"source": {"pvc": {"namespace": TARGET, "name": "golden"}}})).unwrap();
    // The namespace's owner lets every DataVolume of the other one.
    source.create(
        "ReferenceGrant",
        json!({
            "metadata": {"name": "golden"},
            "spec": {
                "from": [{"group": "cdi.kubevirt.io", "kind": "DataVolume", "namespace": TARGET}],
                "to": [{"group": "", "kind": "PersistentVolumeClaim", "name": "golden"}],
            },
        }),
    );
    until("the grant is read", || tried("nothing", &json!({"source": claim})).ok());
    assert!(tried("nothing", &json!({"source": snapshot})).is_err(), "the grant names claims");
    // The rights of a user's groups count.
    apply(
        &CLUSTER,
        &format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\n\
             metadata: {{name: cloners, namespace: {SOURCE}}}\n\
             subjects: [{{kind: Group, name: cloners, apiGroup: rbac.authorization.k8s.io}}]\n\
             roleRef: {{kind: Role, name: sources, apiGroup: rbac.authorization.k8s.io}}\n"
        ),
    );
    let of_snapshot = manifest("tried", &json!({"source": snapshot}));
    until("the group may clone", || {
        attempt(&["--as", "nothing", "--as-group", "cloners"], &of_snapshot).ok()
    });
    assert!(attempt(&["--as", "nothing", "--as-group", "others"], &of_snapshot).is_err());
    drop(target);
}

#[test]
fn absent_data_sources_and_namespaces_are_refused_unless_none_is_needed() {
    const ABSENT: &str = "authorization-nowhere";
    let space = Space::new("authorization-absent");
    // A user without rights in other namespaces.
    let role = ["create", "rolebinding", "restorer", "--clusterrole=cluster-admin", "--user=restorer", "-n"];
    assert!(CLUSTER.kubectl().args(role).arg(&space.0).output().unwrap().status.success());
    let tried = |source: &Value, annotations: Value| {
        let mut volume = manifest("tried", source);
        volume["metadata"]["namespace"] = json!(space.0);
        volume["metadata"]["annotations"] = annotations;
        attempt(&["--as", "restorer"], &volume)
    };
    let reference = |namespace: &str| {
        let named = json!({"kind": "DataSource", "namespace": namespace, "name": "absent"});
        json!({"sourceRef": named})
    };
    let claim = |namespace: &str| json!({"source": {"pvc": {"namespace": namespace, "name": "absent"}}});
    let denied = |namespace: &str| {
        format!("User restorer has insufficient permissions in clone source namespace {namespace}")
    };
    let near = json!({"source": {"pvc": {"namespace": space.0, "name": "absent"}}});
    until("the rights are in force", || tried(&near, json!({})).ok());
    let absent = "\"absent\" not found".to_owned();
    for (source, refusal, restorable) in [
        (reference(&space.0), &absent, true),
        (reference(ABSENT), &absent, true),
        (claim(ABSENT), &denied(ABSENT), true),
        // This one could be cloned from.
        (claim("default"), &denied("default"), false),
    ] {
        let said = tried(&source, json!({})).unwrap_err();
        assert!(said.contains(refusal.as_str()), "{source}: {said}");
        for annotation in ["prePopulated", "checkStaticVolume"] {
            let annotation = format!("cdi.kubevirt.io/storage.{annotation}");
            let answer = tried(&source, json!({annotation.as_str(): "tried"}));
            assert_eq!(answer.is_ok(), restorable, "{source}, {annotation}: {answer:?}");
        }
    }
}

#[test]
fn the_api_server_is_asked_with_all_attributes_of_the_user() {
    let space = Space::new("authorization-extra");
    let role = ["create", "rolebinding", "scoped", "--clusterrole=cluster-admin", "--user=scoped", "-n"];
    assert!(CLUSTER.kubectl().args(role).arg(&space.0).output().unwrap().status.success());
    let mut volume =
        manifest("tried", &json!({"source": {"pvc": {"namespace": "default", "name": "golden"}}}));
    volume["metadata"]["namespace"] = json!(space.0);
    let path = format!("/apis/cdi.kubevirt.io/v1beta1/namespaces/{}/datavolumes?dryRun=All", space.0);
    // An authorizer of the cluster may decide by attributes that RBAC does not look at.
    until("a question has the user's groups and extra attributes", || {
        let request = hyper::Request::post(&path)
            .header("content-type", "application/json")
            .header("impersonate-user", "scoped")
            .header("impersonate-group", "restorers")
            .header("impersonate-extra-scopes", "storage");
        let request = request.body(volume.to_string().into_bytes()).unwrap();
        let answer: kube::Result<Value> = CLUSTER.run(CLUSTER.client().request(request));
        assert!(answer.is_err(), "RBAC gives no right: {answer:?}");
        let mut asked = CLUSTER.audit().unwrap().filter(|event| {
            event["objectRef"]["resource"] == "subjectaccessreviews"
                && event["requestObject"]["spec"]["user"] == "scoped"
        });
        asked.find_map(|event| {
            let spec = &event["requestObject"]["spec"];
            let groups = spec["groups"].as_array()?.contains(&json!("restorers"));
            (groups && spec["extra"]["scopes"] == json!(["storage"])).then_some(())
        })
    });
}

/// The annotation with a token.
const TOKEN: &str = "cdi.kubevirt.io/storage.clone.token";

#[test]
fn forged_expired_and_retargeted_tokens_are_refused() {
    let (source, _web) = crate::storage::clones::golden("tokens-source", IMMEDIATE);
    let target = Space::new("tokens-target");
    let golden = json!({"pvc": {"namespace": source.0, "name": "golden"}});
    let never = json!({"cdi.kubevirt.io/storage.prePopulated": "none"});
    for name in ["copy", "other"] {
        target.data_volume(name, &golden, IMMEDIATE, "Filesystem", &never);
    }
    let token = |name: &str| {
        let volume = target.get("DataVolume", name).unwrap();
        volume["metadata"]["annotations"][TOKEN].as_str().unwrap().to_owned()
    };
    let good = token("copy");
    let secret = Space(PLATFORM.to_owned()).get("Secret", SECRET).unwrap();
    let keys = SigningKeys::from(&secret);
    let origin = |name: &str| Origin { namespace: source.0.clone(), name: name.to_owned(), snapshot: false };
    let aim = Target { namespace: &target.0, name: "copy", uid: None };
    let now = signers::now();
    let signed = |origin: &Origin, at| keys.sign(&token::grant(origin, aim), at).unwrap();
    let mut forged = good.clone();
    forged.replace_range(forged.len() - 8.., "AAAAAAAA");
    let authority = rcgen::KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, rcgen::RsaKeySize::_2048)
        .unwrap()
        .serialize_pem();
    let foreign = api::upload::token::Signer::from_pem(&authority).unwrap();
    let wrong = [
        ("not signed", "a.b.c".to_owned()),
        ("changed", forged),
        ("of another key", foreign.sign(&token::grant(&origin("golden"), aim), now, 300).unwrap()),
        ("expired", signed(&origin("golden"), now - 3600)),
        ("for another source", signed(&origin("silver"), now)),
        ("for another target", token("other")),
        ("none", String::new()),
    ];
    let annotate = |name: &str, token: &str| {
        let annotations = json!({TOKEN: token, "cdi.kubevirt.io/storage.prePopulated": null});
        target.patch("DataVolume", name, &json!({"metadata": {"annotations": annotations}}));
    };
    for (what, token) in &wrong {
        // Regardless of the DataVolume's earlier state.
        let annotations = json!({TOKEN: good, "cdi.kubevirt.io/storage.prePopulated": "none"});
        target.patch("DataVolume", "copy", &json!({"metadata": {"annotations": annotations}}));
        until("the right token is no trouble", || {
            let (_, reason, _) = target.condition("copy", "Running")?;
            (reason != "CloneNotAuthorized").then_some(())
        });
        annotate("copy", token);
        until(&format!("a token {what} is refused"), || {
            let (status, reason, message) = target.condition("copy", "Running")?;
            let said = reason == "CloneNotAuthorized" && message.contains("delete it and create it again");
            (status == "False" && said).then_some(())
        });
        assert!(target.get("PersistentVolumeClaim", "copy").is_none(), "{what}: no claim is made");
    }
    annotate("copy", &good);
    target.phases("copy", "Succeeded");
    assert_same(&target.file("copy"));
}
