//! Webhooks and aggregated APIs of the operator, and the MAC pool's webhook. Names are upstream's: uninstallers, GitOps
//! rules and security policies refer to them. `caBundle` is filled in at run time.

use serde_json::{Value, json};

use super::{Settings, object, own_users, with};

/// Names of the operator's webhook configurations.
pub(super) const NAMES: [&str; 14] = [
    "virt-api-mutator",
    "virt-api-validator",
    "virt-operator-validator",
    "cdi-api-datavolume-mutate",
    "cdi-api-datavolume-validate",
    "cdi-api-validate",
    PVC_MUTATE,
    "validate-hco.kubevirt.io",
    "mutate-ns-hco.kubevirt.io",
    "hostpathprovisioner.kubevirt.io",
    "cdi-api-dataimportcron-validate",
    "cdi-api-populator-validate",
    "objecttransfer-api-validate",
    "mutate-hyperconverged-hco.kubevirt.io",
];
/// The webhook of claims that ask for their storage profile.
const PVC_MUTATE: &str = "cdi-api-pvc-mutate";
/// Names of the operator's APIServices.
pub(super) const API_SERVICES: [&str; 3] =
    ["v1.subresources.kubevirt.io", "v1alpha3.subresources.kubevirt.io", "v1beta1.upload.cdi.kubevirt.io"];

/// One webhook.
struct Hook {
    name: &'static str,
    path: &'static str,
    service: &'static str,
    group: &'static str,
    versions: &'static [&'static str],
    resources: &'static [&'static str],
    operations: &'static [&'static str],
    /// Whether requests pass when no replica answers.
    optional: bool,
    /// A label that objects must have for the webhook to be called.
    label: Option<(&'static str, &'static str)>,
    /// Expressions that must be true for the webhook to be called.
    conditions: Vec<(&'static str, String)>,
}

impl Default for Hook {
    fn default() -> Self {
        Self {
            name: "",
            path: "",
            service: "virt-api",
            group: "kubevirt.io",
            // Requests in other versions are converted to this one.
            versions: &["v1"],
            resources: &[],
            operations: &["CREATE"],
            optional: false,
            label: None,
            conditions: Vec::new(),
        }
    }
}

impl Hook {
    fn manifest(&self, settings: &Settings) -> Value {
        let mut hook = json!({
            "name": self.name,
            "admissionReviewVersions": ["v1"],
            "clientConfig": {
                "service": {
                    "name": self.service,
                    "namespace": settings.namespace,
                    "path": self.path,
                    "port": 443,
                },
            },
            "rules": [{
                "apiGroups": [self.group],
                "apiVersions": self.versions,
                "operations": self.operations,
                "resources": self.resources,
                "scope": "*",
            }],
            "failurePolicy": if self.optional { "Ignore" } else { "Fail" },
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": 5,
        });
        if let Some((name, value)) = self.label {
            hook["objectSelector"] = json!({"matchLabels": {name: value}});
        }
        if !self.conditions.is_empty() {
            hook["matchConditions"] = self
                .conditions
                .iter()
                .map(|(name, expression)| json!({"name": name, "expression": expression}))
                .collect();
        }
        hook
    }
}

/// A condition that is false for the platform's own accounts: their writes must work while no replica answers.
fn not_ours(settings: &Settings) -> (&'static str, String) {
    let users: Vec<_> = own_users(&settings.namespace).iter().map(|user| format!("'{user}'")).collect();
    ("not-own-accounts", format!("!(request.userInfo.username in [{}])", users.join(", ")))
}

/// A condition that is false for updates that keep the spec: labels and finalizers can be changed while no replica
/// answers.
fn new_spec() -> (&'static str, String) {
    ("new-spec", "request.operation == 'CREATE' || object.spec != oldObject.spec".to_owned())
}

/// All webhook configurations.
pub(super) fn configurations(settings: &Settings) -> Vec<Value> {
    const CREATE_UPDATE: &[&str] = &["CREATE", "UPDATE"];
    let mutating = |name: &str, hooks: &[Hook]| configuration(settings, "Mutating", name, hooks);
    let validating = |name: &str, hooks: &[Hook]| configuration(settings, "Validating", name, hooks);
    let storage = |name: &'static str, path, resources, operations| Hook {
        name,
        path,
        service: "cdi-api",
        group: "cdi.kubevirt.io",
        versions: &["v1beta1"],
        resources,
        operations,
        ..Hook::default()
    };
    let form = |name: &'static str, path, resources| Hook {
        conditions: vec![not_ours(settings), new_spec()],
        ..storage(name, path, resources, CREATE_UPDATE)
    };
    let guests = |name, path, resources| Hook {
        name,
        path,
        resources,
        operations: CREATE_UPDATE,
        conditions: vec![not_ours(settings), new_spec()],
        ..Hook::default()
    };
    vec![
        mutating(
            NAMES[0],
            &[
                guests(
                    "virtualmachines-mutator.kubevirt.io",
                    "/virtualmachines-mutate",
                    &["virtualmachines"],
                ),
                Hook {
                    name: "virtualmachineinstances-mutator.kubevirt.io",
                    path: "/virtualmachineinstances-mutate",
                    resources: &["virtualmachineinstances"],
                    operations: CREATE_UPDATE,
                    // The operator's instances are created with everything that this webhook would add: all but CREATE
                    // of the platform's accounts pass.
                    conditions: vec![(
                        "create-or-not-own-accounts",
                        format!("request.operation == 'CREATE' || {}", not_ours(settings).1),
                    )],
                    ..Hook::default()
                },
            ],
        ),
        validating(
            NAMES[1],
            &[
                guests(
                    "virtualmachine-validator.kubevirt.io",
                    "/virtualmachines-validate",
                    &["virtualmachines"],
                ),
                Hook {
                    name: "virtualmachineinstances-validator.kubevirt.io",
                    path: "/virtualmachineinstances-validate",
                    resources: &["virtualmachineinstances"],
                    operations: CREATE_UPDATE,
                    conditions: vec![not_ours(settings)],
                    ..Hook::default()
                },
                guests(
                    "virtualmachinereplicaset-validator.kubevirt.io",
                    "/virtualmachinereplicaset-validate",
                    &["virtualmachineinstancereplicasets"],
                ),
                Hook {
                    group: "pool.kubevirt.io",
                    versions: &["v1beta1"],
                    ..guests(
                        "virtualmachinepool-validator.kubevirt.io",
                        "/virtualmachinepool-validate",
                        &["virtualmachinepools"],
                    )
                },
                Hook {
                    name: "virtualmachineinstancepresets-validator.kubevirt.io",
                    path: "/vmipreset-validate",
                    resources: &["virtualmachineinstancepresets"],
                    conditions: vec![not_ours(settings)],
                    ..Hook::default()
                },
            ],
        ),
        validating(
            NAMES[2],
            &[
                Hook {
                    name: "kubevirt-validator.kubevirt.io",
                    path: "/kubevirts-validate",
                    service: "kubevirt-operator-webhook",
                    resources: &["kubevirts"],
                    operations: &["DELETE"],
                    conditions: vec![not_ours(settings)],
                    ..Hook::default()
                },
                // Optional: the object may be applied together with the operator.
                Hook {
                    optional: true,
                    service: "kubevirt-operator-webhook",
                    ..guests("kubevirt-update-validator.kubevirt.io", "/kubevirts-validate", &["kubevirts"])
                },
            ],
        ),
        mutating(
            NAMES[3],
            &[storage(
                "datavolume-mutate.cdi.kubevirt.io",
                "/datavolume-mutate",
                &["datavolumes"],
                &["CREATE"],
            )],
        ),
        validating(
            NAMES[4],
            &[Hook {
                conditions: vec![new_spec()],
                ..storage(
                    "datavolume-validate.cdi.kubevirt.io",
                    "/datavolume-validate",
                    &["datavolumes"],
                    CREATE_UPDATE,
                )
            }],
        ),
        validating(
            NAMES[5],
            &[
                Hook {
                    optional: true,
                    ..storage("cdi-validate.cdi.kubevirt.io", "/cdi-validate", &["cdis"], &["DELETE"])
                },
                Hook {
                    optional: true,
                    ..form("cdi-update-validate.cdi.kubevirt.io", "/cdi-validate", &["cdis"])
                },
            ],
        ),
        mutating(
            PVC_MUTATE,
            &[Hook {
                group: "",
                versions: &["v1"],
                label: Some(("cdi.kubevirt.io/applyStorageProfile", "true")),
                ..storage(
                    "pvc-mutate.cdi.kubevirt.io",
                    "/pvc-mutate",
                    &["persistentvolumeclaims"],
                    &["CREATE"],
                )
            }],
        ),
        validating(
            NAMES[7],
            &[Hook {
                name: "validate-hco.kubevirt.io",
                path: "/validate-hco-kubevirt-io-v1-hyperconverged",
                service: "hco-webhook-service",
                group: "hco.kubevirt.io",
                resources: &["hyperconvergeds"],
                operations: &["CREATE", "UPDATE", "DELETE"],
                conditions: vec![not_ours(settings)],
                ..Hook::default()
            }],
        ),
        // Without the operator, the namespace can be deleted: nothing else could remove what is in it.
        validating(
            NAMES[8],
            &[Hook {
                name: "mutate-ns-hco.kubevirt.io",
                path: "/mutate-ns-hco-kubevirt-io",
                service: "hco-webhook-service",
                group: "",
                resources: &["namespaces"],
                operations: &["DELETE"],
                optional: true,
                conditions: vec![("own-namespace", format!("request.name == '{}'", settings.namespace))],
                ..Hook::default()
            }],
        ),
        validating(
            NAMES[9],
            &[Hook {
                name: "validate-hostpath-provisioner.kubevirt.io",
                path: "/validate-hostpathprovisioner-kubevirt-io-v1beta1-hostpathprovisioner",
                // A certificate that an older release made has the names of its Services only.
                service: "hco-webhook-service",
                group: api::hostpath::GROUP,
                versions: &["v1beta1"],
                resources: &["hostpathprovisioners"],
                operations: CREATE_UPDATE,
                // The status is written with the object.
                conditions: vec![not_ours(settings), new_spec()],
                ..Hook::default()
            }],
        ),
        // Forms of the storage kinds beside DataVolumes: a wrong one is reported in its status, too.
        validating(
            NAMES[10],
            &[form(
                "dataimportcron-validate.cdi.kubevirt.io",
                "/dataimportcron-validate",
                &["dataimportcrons"],
            )],
        ),
        validating(
            NAMES[11],
            &[form(
                "populator-validate.cdi.kubevirt.io",
                "/populator-validate",
                &["volumeimportsources", "volumeuploadsources"],
            )],
        ),
        validating(
            NAMES[12],
            &[form(
                "objecttransfer-validate.cdi.kubevirt.io",
                "/objecttransfer-validate",
                &["objecttransfers"],
            )],
        ),
        // Optional: the objects made of HyperConverged have these defaults in any case.
        mutating(
            NAMES[13],
            &[Hook {
                name: "mutate-hyperconverged-hco.kubevirt.io",
                path: "/mutate-hco-kubevirt-io-v1-hyperconverged",
                service: "hco-webhook-service",
                group: "hco.kubevirt.io",
                resources: &["hyperconvergeds"],
                operations: CREATE_UPDATE,
                optional: true,
                conditions: vec![not_ours(settings), new_spec()],
                ..Hook::default()
            }],
        ),
    ]
}

fn configuration(settings: &Settings, kind: &str, name: &str, hooks: &[Hook]) -> Value {
    let hooks: Vec<Value> = hooks.iter().map(|hook| hook.manifest(settings)).collect();
    with(
        object("admissionregistration.k8s.io/v1", &format!("{kind}WebhookConfiguration"), name, None),
        json!({"webhooks": hooks}),
    )
}

/// The MAC pool's webhook, which writes its own `caBundle`.
pub(super) fn macpool(settings: &Settings) -> Value {
    let hook = |name: &str, path: &str, rule: Value, selector: Value| {
        json!({
            "name": name,
            "admissionReviewVersions": ["v1", "v1beta1"],
            "sideEffects": "NoneOnDryRun",
            "failurePolicy": "Fail",
            "clientConfig": {
                "service": {"name": super::services::MACPOOL, "namespace": settings.namespace, "path": path},
            },
            "rules": [rule],
            "namespaceSelector": {"matchExpressions": [
                {"key": "runlevel", "operator": "NotIn", "values": ["0", "1"]},
                {"key": "openshift.io/run-level", "operator": "NotIn", "values": ["0", "1"]},
                selector,
            ]},
        })
    };
    let hooks = [
        hook(
            "mutatepods.kubemacpool.io",
            "/mutate-pods",
            json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}),
            json!({"key": "mutatepods.kubemacpool.io", "operator": "In", "values": ["allocate"]}),
        ),
        hook(
            "mutatevirtualmachines.kubemacpool.io",
            "/mutate-virtualmachines",
            json!({
                "apiGroups": ["kubevirt.io"],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["virtualmachines"],
            }),
            json!({
                "key": "mutatevirtualmachines.kubemacpool.io",
                "operator": "NotIn",
                "values": ["ignore"],
            }),
        ),
    ];
    with(
        object(
            "admissionregistration.k8s.io/v1",
            "MutatingWebhookConfiguration",
            "kubemacpool-mutator",
            None,
        ),
        json!({"webhooks": hooks}),
    )
}

/// All APIServices.
pub(super) fn api_services(settings: &Settings) -> Vec<Value> {
    let service = |name: &str, service: &str, priority: u32| {
        let (version, group) = name.split_once('.').unwrap_or((name, ""));
        with(
            object("apiregistration.k8s.io/v1", "APIService", name, None),
            json!({"spec": {
                "group": group,
                "version": version,
                "groupPriorityMinimum": 1000,
                "versionPriority": priority,
                "service": {"name": service, "namespace": settings.namespace, "port": 443},
            }}),
        )
    };
    vec![
        service(API_SERVICES[0], "virt-api", 15),
        service(API_SERVICES[1], "virt-api", 14),
        service(API_SERVICES[2], "cdi-api", 15),
    ]
}
