//! Everything that is installed, as data: [`manifests`] lists the objects in the order in which they are created.
//!
//! The objects have upstream's names, so that NetworkPolicies, GitOps rules and habits keep working. Three things are not
//! in them: certificate authorities of webhooks and APIServices (the operator fills in `caBundle` at run time), the
//! objects that switch the platform on ([`custom_resources`]), and what the operator deploys for some of these: the MAC
//! pool ([`mod@macpool`]) for a `NetworkAddonsConfig`, the CSI driver
//! ([`mod@hostpath`]) and its pools on claims ([`pools`]), and what makes changed blocks
//! reachable ([`metadata`]) for a `HostPathProvisioner`. All are made for server-side apply: a second apply changes nothing.
//!
//! Not here: applying and removing the objects.

mod accounts;
pub mod chart;
mod flow;
mod hooks;
pub mod hostpath;
pub mod macpool;
pub mod metadata;
pub(crate) mod monitoring;
mod network_policies;
mod node;
pub(crate) mod openshift;
mod policies;
pub mod pools;
mod related;
mod roles;
mod services;
mod user_roles;
mod webhooks;
mod workloads;

use serde_json::{Value, json};

pub(crate) use related::RELATED;
pub(crate) use roles::COMPUTE_ROLES;
pub(crate) use user_roles::AGGREGATE;

use crate::defaults::{CNI_DIRECTORY, IMAGE, KUBELET_DIRECTORY, NAMESPACE};

/// Label that all Services of the operator select.
const OPERATOR: (&str, &str) = ("app", OPERATOR_DEPLOYMENT);
/// Name of the operator's Deployment.
pub(crate) const OPERATOR_DEPLOYMENT: &str = "ferrovirt-operator";
/// Port of the operator's HTTPS server: webhooks and aggregated APIs.
const HTTPS: u16 = 8443;
/// Port of the operator's probes and metrics, plain HTTP.
const HEALTH: u16 = 8081;
/// Port of metrics over TLS of all pods with the label [`SCRAPED`]: the operator's [`HTTPS`] and the node agent's.
const METRICS: u16 = HTTPS;
/// Label of the pods whose metrics one Service offers to Prometheus.
const SCRAPED: (&str, &str) = ("prometheus.kubevirt.io", "true");

/// Choices of an installation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Namespace of the platform's own pods.
    pub namespace: String,
    /// Template of images; `{program}` stands for a program's name.
    pub image: String,
    /// Replicas of the operator; 0: two where two nodes take pods, else one, as the operator finds them.
    pub replicas: u32,
    /// Whether guests run without KVM on nodes that lack it.
    pub emulation: bool,
    /// Claim in the namespace with clients that are served for download besides the project's own; empty for none.
    pub clients_claim: String,
    /// Whether stock CSI sidecars may be asked for: their rights are installed.
    pub sidecars: bool,
    /// The nodes' directory of network plugins.
    pub cni_directory: String,
    /// The kubelet's directory on nodes, without a slash at its end.
    pub kubelet_directory: String,
    /// Namespaces, separated by commas, whose NetworkAttachmentDefinitions VMs of all namespaces may use; `*`: all.
    pub shared_networks: String,
    /// Whether administrators bind `kubevirt.io:view`, `edit` and `admin`: these are not part of the cluster's roles.
    pub manual_roles: bool,
    /// VMs that the cluster is to hold; the operator's memory request follows ([`Settings::operator_memory`]).
    pub machines: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespace: NAMESPACE.to_owned(),
            image: IMAGE.to_owned(),
            replicas: 0,
            emulation: false,
            clients_claim: String::new(),
            sidecars: false,
            cni_directory: CNI_DIRECTORY.to_owned(),
            kubelet_directory: KUBELET_DIRECTORY.to_owned(),
            shared_networks: String::new(),
            manual_roles: false,
            machines: 1000,
        }
    }
}

impl Settings {
    /// Image of a program.
    fn image(&self, program: &str) -> String {
        self.image.replace("{program}", program)
    }

    /// Memory that the operator asks for, in MiB: 64 for 1000 VMs, and 64 more for each further 9000, as SPECIFICATION.md
    /// promises.
    fn operator_memory(&self) -> u32 {
        64 + (self.machines.saturating_sub(1000).saturating_mul(64)).div_ceil(9000)
    }

    /// User name of a ServiceAccount of the platform.
    fn user(&self, account: &str) -> String {
        user(&self.namespace, account)
    }
}

/// User names of the ServiceAccounts whose writes of the platform's objects are trusted: operator and node agents.
pub fn own_users(namespace: &str) -> Vec<String> {
    [accounts::OPERATOR, accounts::AGENT].iter().map(|account| user(namespace, account)).collect()
}

/// User name of a ServiceAccount.
pub(crate) fn user(namespace: &str, account: &str) -> String {
    format!("system:serviceaccount:{namespace}:{account}")
}

/// All objects, in the order in which they are created.
pub fn manifests(settings: &Settings) -> Vec<Value> {
    let mut all = accounts::namespace(settings);
    all.extend(api::definition::ALL.iter().map(|one| definition(one, settings)));
    all.extend(accounts::accounts(settings));
    all.push(flow::schema(settings));
    all.extend(roles::roles(settings));
    all.extend(user_roles::roles(settings));
    all.extend(policies::policies(settings));
    all.extend(network_policies::policies(settings));
    all.extend(services::services(settings));
    all.extend(workloads::workloads(settings));
    all.extend([node::agent(settings), hostpath::storage_class()]);
    all.extend(webhooks::api_services(settings));
    all.extend(webhooks::configurations(settings));
    for object in &mut all {
        label(object);
    }
    all
}

/// Objects that the Helm chart has in addition, and that exist while `helm uninstall` runs only.
pub fn uninstall_hooks(settings: &Settings) -> Vec<Value> {
    let mut all = hooks::all(settings);
    all.iter_mut().for_each(label);
    all
}

/// Names of the definitions whose versions are converted by the operator. Of others the API server changes the version alone.
pub(crate) const CONVERTED: [&str; 1] = ["hyperconvergeds.hco.kubevirt.io"];

/// A definition, with the operator as its conversion webhook if it is one of [`CONVERTED`].
fn definition(definition: &api::definition::Definition, settings: &Settings) -> Value {
    let mut object = definition.manifest();
    if CONVERTED.contains(&definition.name().as_str()) {
        object["spec"]["conversion"] = json!({
            "strategy": "Webhook",
            "webhook": {
                "clientConfig": {"service": {
                    "name": "hco-webhook-service",
                    "namespace": settings.namespace,
                    "path": crate::serve::conversion::PATH,
                    "port": 443,
                }},
                "conversionReviewVersions": ["v1"],
            },
        });
    }
    object
}

/// The objects that switch the platform on: everything, and storage on the nodes. Their definitions must be established
/// first.
pub fn custom_resources(settings: &Settings) -> Vec<Value> {
    vec![
        json!({
            "apiVersion": api::hyperconverged::API_VERSION,
            "kind": "HyperConverged",
            "metadata": {"name": api::hyperconverged::NAME, "namespace": settings.namespace},
            "spec": {},
        }),
        json!({
            "apiVersion": api::hostpath::API_VERSION,
            "kind": "HostPathProvisioner",
            "metadata": {"name": api::hostpath::NAME},
            "spec": {"storagePools": [{"name": "legacy", "path": "/var/lib/hpvolumes"}]},
        }),
    ]
}

/// Objects as YAML documents.
///
/// # Errors
/// When the text cannot be written; objects of this module always can.
pub fn yaml(objects: &[Value]) -> Result<String, serde_saphyr::SerializeError> {
    serde_saphyr::to_string_multiple(objects)
}

/// The operator's PodDisruptionBudget, where it has more than one replica.
pub(crate) fn operator_budget(settings: &Settings) -> Value {
    let mut budget = workloads::budget(settings, OPERATOR_DEPLOYMENT, &json!({OPERATOR.0: OPERATOR.1}));
    label(&mut budget);
    budget
}

/// The labels by which all installed objects are found.
fn label(object: &mut Value) {
    object["metadata"]["labels"]["app.kubernetes.io/part-of"] = json!("ferrovirt");
    object["metadata"]["labels"]["app.kubernetes.io/managed-by"] = json!("ferrovirt");
}

/// An object with a name and, if it has one, a namespace.
fn object(api_version: &str, kind: &str, name: &str, namespace: Option<&str>) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
    if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
    }
    object
}

/// An object with further fields.
fn with(mut object: Value, fields: Value) -> Value {
    if let (Value::Object(object), Value::Object(fields)) = (&mut object, fields) {
        object.extend(fields);
    }
    object
}
