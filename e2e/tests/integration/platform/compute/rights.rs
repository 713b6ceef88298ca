//! Rights of users with the cluster's roles view, edit and admin, by SubjectAccessReviews: upstream's matrix for the kinds
//! that are installed.

use cluster::Resource;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};

use crate::platform::place::PLACE;

const NAMESPACE: &str = "rights";
const ROLES: [&str; 3] = ["view", "edit", "admin"];
const BINDINGS: Resource = Resource::namespaced("rbac.authorization.k8s.io", "v1", "rolebindings");
const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
/// Requests at once.
const AT_ONCE: usize = 16;

const NONE: &[&str] = &[];
const GET: &[&str] = &["get"];
const UPDATE: &[&str] = &["update"];
const CREATE: &[&str] = &["create"];
const LIST: &[&str] = &["get", "list"];
const READ: &[&str] = &["get", "list", "watch"];
const EDIT: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete"];
const ALL: &[&str] = &VERBS;

/// A group, its resources, and the verbs of view, edit and admin.
type Row<'a> = (&'a str, &'a [&'a str], [&'a [&'a str]; 3]);

const ROWS: &[Row<'_>] = &[
    (
        "kubevirt.io",
        &[
            "virtualmachines",
            "virtualmachineinstances",
            "virtualmachineinstancepresets",
            "virtualmachineinstancereplicasets",
        ],
        [READ, EDIT, ALL],
    ),
    ("kubevirt.io", &["virtualmachineinstancemigrations"], [READ; 3]),
    ("kubevirt.io", &["kubevirts"], [LIST; 3]),
    (
        "subresources.kubevirt.io",
        &[
            "virtualmachines/expand-spec",
            "virtualmachines/objectgraph",
            "virtualmachineinstances/guestosinfo",
            "virtualmachineinstances/filesystemlist",
            "virtualmachineinstances/userlist",
            "virtualmachineinstances/objectgraph",
            "virtualmachineinstances/sev/fetchcertchain",
            "virtualmachineinstances/sev/querylaunchmeasurement",
        ],
        [GET; 3],
    ),
    ("subresources.kubevirt.io", &["expand-vm-spec"], [UPDATE; 3]),
    (
        "subresources.kubevirt.io",
        &[
            "virtualmachines/portforward",
            "virtualmachineinstances/console",
            "virtualmachineinstances/vnc",
            "virtualmachineinstances/portforward",
            "virtualmachineinstances/usbredir",
        ],
        [NONE, GET, GET],
    ),
    ("subresources.kubevirt.io", &["virtualmachineinstances/vnc/screenshot"], [NONE, NONE, GET]),
    (
        "subresources.kubevirt.io",
        &[
            "virtualmachines/start",
            "virtualmachines/stop",
            "virtualmachines/restart",
            "virtualmachines/addvolume",
            "virtualmachines/removevolume",
            "virtualmachines/memorydump",
            "virtualmachines/removememorydump",
            "virtualmachines/evacuate/cancel",
            "virtualmachineinstances/pause",
            "virtualmachineinstances/unpause",
            "virtualmachineinstances/addvolume",
            "virtualmachineinstances/removevolume",
            "virtualmachineinstances/freeze",
            "virtualmachineinstances/unfreeze",
            "virtualmachineinstances/softreboot",
            "virtualmachineinstances/reset",
            "virtualmachineinstances/sev/setupsession",
            "virtualmachineinstances/sev/injectlaunchsecret",
            "virtualmachineinstances/evacuate/cancel",
        ],
        [NONE, UPDATE, UPDATE],
    ),
    ("subresources.kubevirt.io", &["virtualmachines/migrate"], [NONE; 3]),
    (
        "instancetype.kubevirt.io",
        &[
            "virtualmachineinstancetypes",
            "virtualmachineclusterinstancetypes",
            "virtualmachinepreferences",
            "virtualmachineclusterpreferences",
        ],
        [READ, EDIT, ALL],
    ),
    ("pool.kubevirt.io", &["virtualmachinepools"], [READ, EDIT, ALL]),
    ("migrations.kubevirt.io", &["migrationpolicies"], [READ; 3]),
    (
        "cdi.kubevirt.io",
        &[
            "datavolumes",
            "dataimportcrons",
            "datasources",
            "volumeimportsources",
            "volumeuploadsources",
            "volumeclonesources",
        ],
        [READ, ALL, ALL],
    ),
    ("cdi.kubevirt.io", &["cdiconfigs", "objecttransfers", "storageprofiles"], [READ; 3]),
    ("cdi.kubevirt.io", &["datavolumes/source"], [NONE, CREATE, CREATE]),
    ("upload.cdi.kubevirt.io", &["uploadtokenrequests"], [NONE, ALL, ALL]),
    ("hco.kubevirt.io", &["hyperconvergeds"], [READ, EDIT, ALL]),
];

/// Whether a user has the right to `verb` on a resource.
async fn may(client: kube::Client, user: String, group: &str, resource: &str, verb: &str) -> bool {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let review = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user,
            "groups": ["system:authenticated"],
            "resourceAttributes": {
                "namespace": NAMESPACE, "group": group, "resource": resource, "subresource": subresource,
                "verb": verb,
            },
        },
    });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let request = hyper::Request::post(path).header("content-type", "application/json");
    let answer: Value = client.request(request.body(review.to_string().into_bytes()).unwrap()).await.unwrap();
    answer["status"]["allowed"] == true
}

#[test]
fn users_may_what_upstreams_roles_allow() {
    PLACE.namespace(NAMESPACE);
    for role in ROLES {
        let binding = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{
                "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": format!("{role}-user"),
            }],
        });
        PLACE.create(BINDINGS, NAMESPACE, &binding);
    }
    let client = PLACE.cluster.client();
    // The cluster's roles are aggregated a moment after the platform's are there.
    PLACE.until(NAMESPACE, "roles are aggregated", || {
        let client = client.clone();
        PLACE
            .cluster
            .run(may(client, "edit-user".into(), "kubevirt.io", "virtualmachines", "create"))
            .then_some(())
    });
    let mut questions = Vec::new();
    for (group, resources, wanted) in ROWS {
        for resource in *resources {
            for (role, wanted) in ROLES.into_iter().zip(wanted) {
                questions.extend(VERBS.map(|verb| (role, *group, *resource, verb, wanted.contains(&verb))));
            }
        }
    }
    let asked = stream::iter(questions).map(|(role, group, resource, verb, wanted)| {
        let client = client.clone();
        async move {
            let found = may(client, format!("{role}-user"), group, resource, verb).await;
            (found != wanted).then(|| format!("{role} {verb} {resource}.{group}: {found}, not {wanted}"))
        }
    });
    let wrong: Vec<Option<String>> = PLACE.cluster.run(asked.buffer_unordered(AT_ONCE).collect());
    let wrong: Vec<String> = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    PLACE.remove_namespace(NAMESPACE);
}
