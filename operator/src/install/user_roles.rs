//! Roles for users: aggregated to the cluster's roles view, edit and admin, with upstream's names and extent as far as
//! the installed kinds go.
//!
//! Kubernetes makes `admin` contain `edit`, and `edit` contain `view`; each role here lists what it adds and repeats
//! the entries that upstream repeats.

use serde_json::{Value, json};

use super::roles::{CLUSTER_FLAVORS, COMPUTE_ROLES, FLAVORS, RBAC, cluster_role, rule};
use super::{Settings, object, with};

const READ: &[&str] = &["get", "list", "watch"];
const EDIT: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete"];
const ADMIN: &[&str] = &["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];

const SUBRESOURCES: &str = "subresources.kubevirt.io";
/// Machines, instances, presets and sets.
const MACHINES: &[&str] = &[
    "virtualmachines",
    "virtualmachineinstances",
    "virtualmachineinstancepresets",
    "virtualmachineinstancereplicasets",
];
/// Subresources that describe a guest.
const INFORMATION: &[&str] = &[
    "virtualmachines/expand-spec",
    "virtualmachines/objectgraph",
    "virtualmachines/why",
    "virtualmachineinstances/guestosinfo",
    "virtualmachineinstances/filesystemlist",
    "virtualmachineinstances/userlist",
    "virtualmachineinstances/objectgraph",
    "virtualmachineinstances/sev/fetchcertchain",
    "virtualmachineinstances/sev/querylaunchmeasurement",
];
/// Subresources that connect to a guest.
const CONNECTIONS: &[&str] = &[
    "virtualmachines/portforward",
    "virtualmachineinstances/console",
    "virtualmachineinstances/vnc",
    "virtualmachineinstances/portforward",
    "virtualmachineinstances/usbredir",
];
/// Subresources that change a guest.
const ACTIONS: &[&str] = &[
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
    "virtualmachineinstances/evacuate/cancel",
    "virtualmachineinstances/sev/setupsession",
    "virtualmachineinstances/sev/injectlaunchsecret",
];
/// Kinds of storage that users make.
const VOLUMES: &[&str] = &[
    "datavolumes",
    "dataimportcrons",
    "datasources",
    "volumeimportsources",
    "volumeuploadsources",
    "volumeclonesources",
];

/// The start of labels by which a role is added to one of the cluster's.
pub(crate) const AGGREGATE: &str = "rbac.authorization.k8s.io/aggregate-to-";

/// All roles and bindings.
pub(super) fn roles(settings: &Settings) -> Vec<Value> {
    let compute = COMPUTE_ROLES.into_iter().zip([compute_view(), compute_edit(), compute_admin()]);
    let mut all: Vec<Value> =
        compute
            .map(|((name, to), rules)| {
                if settings.manual_roles { cluster_role(name, &rules) } else { aggregated(name, to, &rules) }
            })
            .collect();
    all.extend([
        cluster_role(
            "kubevirt.io:migrate",
            &[
                rule(SUBRESOURCES, &["virtualmachines/migrate"], &["update"]),
                rule("kubevirt.io", &["virtualmachineinstancemigrations"], ADMIN),
            ],
        ),
        aggregated(
            "cdi.kubevirt.io:view",
            "view",
            &[
                rule("cdi.kubevirt.io", VOLUMES, READ),
                rule("cdi.kubevirt.io", &["cdiconfigs", "objecttransfers", "storageprofiles"], READ),
            ],
        ),
        aggregated("cdi.kubevirt.io:edit", "edit", &storage_edit()),
        aggregated("cdi.kubevirt.io:admin", "admin", &storage_edit()),
        cluster_role(
            "cdi.kubevirt.io:clone-sourcer",
            &[rule("cdi.kubevirt.io", &["datavolumes/source"], &["create"])],
        ),
    ]);
    all.extend(entry_point());
    all.extend(everyone(
        "kubevirt.io:default",
        &[
            rule("kubevirt.io", &["kubevirts"], &["get", "list"]),
            rule(SUBRESOURCES, &["version", "guestfs"], &["get", "list"]),
        ],
    ));
    all.extend(everyone(
        "instancetype.kubevirt.io:view",
        &[rule("instancetype.kubevirt.io", CLUSTER_FLAVORS, READ)],
    ));
    all.extend(everyone(
        "cdi.kubevirt.io:config-reader",
        &[
            rule("cdi.kubevirt.io", &["cdiconfigs"], READ),
            rule("cdi.kubevirt.io", &["storageprofiles"], READ),
        ],
    ));
    all
}

/// Rules for the kinds of groups of their own.
fn groups(verbs: &[&str]) -> [Value; 3] {
    [
        rule("instancetype.kubevirt.io", FLAVORS, verbs),
        rule("pool.kubevirt.io", &["virtualmachinepools"], verbs),
        rule("migrations.kubevirt.io", &["migrationpolicies"], READ),
    ]
}

/// Roles for HyperConverged. Upstream leaves them to a package manager that few clusters have.
fn entry_point() -> [Value; 3] {
    let role = |to: &str, verbs: &[&str]| {
        let name = format!("hyperconvergeds.hco.kubevirt.io:{to}");
        aggregated(&name, to, &[rule("hco.kubevirt.io", &["hyperconvergeds"], verbs)])
    };
    [role("view", READ), role("edit", &["create", "update", "patch", "delete"]), role("admin", ADMIN)]
}

fn compute_view() -> Vec<Value> {
    let mut rules = vec![
        rule("kubevirt.io", MACHINES, READ),
        rule("kubevirt.io", &["virtualmachineinstancemigrations"], READ),
        rule("kubevirt.io", &["kubevirts"], &["get", "list"]),
        rule(SUBRESOURCES, INFORMATION, &["get"]),
        rule(SUBRESOURCES, &["expand-vm-spec"], &["update"]),
        rule("k8s.cni.cncf.io", &["network-attachment-definitions"], READ),
    ];
    rules.extend(groups(READ));
    rules
}

fn compute_edit() -> Vec<Value> {
    compute_change(EDIT)
}

fn compute_change(verbs: &[&str]) -> Vec<Value> {
    let mut rules = vec![
        rule("kubevirt.io", MACHINES, verbs),
        rule("kubevirt.io", &["virtualmachineinstancemigrations"], READ),
        rule("kubevirt.io", &["kubevirts"], &["get", "list"]),
        rule(SUBRESOURCES, INFORMATION, &["get"]),
        rule(SUBRESOURCES, &["expand-vm-spec"], &["update"]),
        rule(SUBRESOURCES, CONNECTIONS, &["get"]),
        rule(SUBRESOURCES, ACTIONS, &["update"]),
    ];
    rules.extend(groups(verbs));
    rules
}

fn compute_admin() -> Vec<Value> {
    let mut rules = compute_change(ADMIN);
    rules.push(rule(SUBRESOURCES, &["virtualmachineinstances/vnc/screenshot"], &["get"]));
    rules
}

fn storage_edit() -> Vec<Value> {
    vec![
        rule("cdi.kubevirt.io", VOLUMES, &["*"]),
        rule("cdi.kubevirt.io", &["datavolumes/source"], &["create"]),
        rule("upload.cdi.kubevirt.io", &["uploadtokenrequests"], &["*"]),
    ]
}

/// A role that is added to one of the cluster's.
fn aggregated(name: &str, to: &str, rules: &[Value]) -> Value {
    let mut role = cluster_role(name, rules);
    role["metadata"]["labels"] = json!({format!("{AGGREGATE}{to}"): "true"});
    role
}

/// A role that all authenticated users have.
fn everyone(name: &str, rules: &[Value]) -> [Value; 2] {
    let binding = with(
        object(RBAC, "ClusterRoleBinding", name, None),
        json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": "Group",
                "name": "system:authenticated",
            }],
        }),
    );
    [cluster_role(name, rules), binding]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Verbs of a resource that a role of the cluster has by the roles here. `edit` contains `view`, and `admin` both.
    fn verbs(roles: &[Value], of: &str, group: &str, resource: &str) -> Vec<String> {
        let contains: &[&str] = match of {
            "view" => &["view"],
            "edit" => &["view", "edit"],
            _ => &["view", "edit", "admin"],
        };
        let mut all = Vec::new();
        for role in roles {
            let labels = &role["metadata"]["labels"];
            let to = |name: &&&str| labels[format!("{AGGREGATE}{name}")] == "true";
            if !contains.iter().any(|name| to(&name)) {
                continue;
            }
            for rule in role["rules"].as_array().unwrap() {
                let has =
                    |list: &str, wanted: &str| rule[list].as_array().unwrap().iter().any(|one| one == wanted);
                if has("apiGroups", group) && has("resources", resource) {
                    let verbs = rule["verbs"].as_array().unwrap().iter();
                    all.extend(verbs.map(|verb| verb.as_str().unwrap().to_owned()));
                }
            }
        }
        all.sort();
        all.dedup();
        all
    }

    fn sorted(verbs: &[&str]) -> Vec<String> {
        let mut all: Vec<String> = verbs.iter().map(|verb| (*verb).to_owned()).collect();
        all.sort();
        all
    }

    #[test]
    fn roles_that_administrators_bind_are_not_aggregated() {
        let manual = roles(&Settings { manual_roles: true, ..Settings::default() });
        for (role, usual) in manual.iter().zip(roles(&Settings::default())) {
            assert_eq!(
                (&role["metadata"]["name"], &role["rules"]),
                (&usual["metadata"]["name"], &usual["rules"])
            );
            let ours = COMPUTE_ROLES.iter().any(|(name, _)| role["metadata"]["name"] == *name);
            assert!(
                !ours || (role["metadata"]["labels"].is_null() && usual["metadata"]["labels"].is_object())
            );
            assert!(ours || role == &usual, "{role}");
        }
        assert_eq!(verbs(&manual, "admin", "kubevirt.io", "virtualmachines"), [""; 0]);
    }

    /// The matrix of upstream's roles: group, resources, and the verbs of view, edit and admin.
    #[test]
    fn users_may_what_they_may_upstream() {
        const NONE: &[&str] = &[];
        const GET: &[&str] = &["get"];
        const UPDATE: &[&str] = &["update"];
        const ALL: &[&str] = &["*"];
        let roles = roles(&Settings::default());
        type Row<'a> = (&'a str, &'a [&'a str], [&'a [&'a str]; 3]);
        let rows: &[Row<'_>] = &[
            ("kubevirt.io", MACHINES, [READ, EDIT, ADMIN]),
            ("kubevirt.io", &["virtualmachineinstancemigrations"], [READ; 3]),
            ("kubevirt.io", &["kubevirts"], [&["get", "list"]; 3]),
            (SUBRESOURCES, INFORMATION, [GET; 3]),
            (SUBRESOURCES, &["expand-vm-spec"], [UPDATE; 3]),
            (SUBRESOURCES, CONNECTIONS, [NONE, GET, GET]),
            (SUBRESOURCES, &["virtualmachineinstances/vnc/screenshot"], [NONE, NONE, GET]),
            (SUBRESOURCES, ACTIONS, [NONE, UPDATE, UPDATE]),
            (SUBRESOURCES, &["virtualmachines/migrate"], [NONE; 3]),
            ("instancetype.kubevirt.io", FLAVORS, [READ, EDIT, ADMIN]),
            ("pool.kubevirt.io", &["virtualmachinepools"], [READ, EDIT, ADMIN]),
            ("migrations.kubevirt.io", &["migrationpolicies"], [READ; 3]),
            ("cdi.kubevirt.io", &["datavolumes/source"], [NONE, &["create"], &["create"]]),
            ("upload.cdi.kubevirt.io", &["uploadtokenrequests"], [NONE, ALL, ALL]),
        ];
        for (group, resources, wanted) in rows {
            for resource in *resources {
                for (of, wanted) in ["view", "edit", "admin"].into_iter().zip(wanted) {
                    assert_eq!(
                        verbs(&roles, of, group, resource),
                        sorted(wanted),
                        "{of}: {resource}.{group}"
                    );
                }
            }
        }
    }
}
