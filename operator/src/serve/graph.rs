//! `objectgraph` of VMs and instances: the objects that one needs, as a tree for backup and replication. Served while the
//! KubeVirt object switches the feature gate ObjectGraph on. The tree is made of the objects by [`tree`] (pure); claims,
//! Secrets and ConfigMaps are listed by their names, whether or not they exist.

use std::sync::Arc;

use api::core::LabelSelector;
use api::kubevirt::{FlavorReference, FlavorStatus};
use cluster::{Key, Resource, Scope};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use serve::route::{Call, json as json_answer};
use virt::instancetype::Which;

use super::Site;
use super::instance::INSTANCES;
use super::options;
use super::status::{Answered, Refusal};
use crate::flavor;
use crate::view::selects;

const MACHINES: Resource = Resource::namespaced("kubevirt.io", "v1", "virtualmachines");
const PODS: Resource = Resource::namespaced("", "v1", "pods");
const CLAIMS: Resource = Resource::namespaced("", "v1", "persistentvolumeclaims");
/// The feature gate.
const GATE: &str = "ObjectGraph";
/// Label of a node with the reason for the dependency.
const DEPENDENCY: &str = "kubevirt.io/dependency-type";
const COMPUTE: &str = "compute";
const CONFIG: &str = "config";
const NETWORK: &str = "network";
const STORAGE: &str = "storage";

/// The kinds that have the subresource, in plural.
pub(super) const PLURALS: [&str; 2] = ["virtualmachines", "virtualmachineinstances"];

/// Options of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    include_optional_nodes: Option<bool>,
    label_selector: Option<LabelSelector>,
}

/// A VM or instance, and the objects that are found for it.
#[derive(Debug, Default)]
struct Facts {
    /// Absent for an instance.
    machine: Option<Value>,
    instance: Option<Value>,
    /// Names of its launcher pods.
    pods: Vec<String>,
    /// Names of the claims with its TPM's or EFI's state.
    states: Vec<String>,
}

/// Answers a request; `plural` is one of [`PLURALS`].
pub(super) async fn handle(site: Arc<Site>, mut call: Call, plural: &'static str) -> Answered {
    site.gate.admit(&call, plural, "objectgraph").await?;
    if !site.admission.gate(GATE) {
        return Err(Refusal::gate(GATE));
    }
    let options: Options = options::read(&mut call).await?;
    let facts = read(&site, &Key::new(call.parameter("namespace"), call.parameter("name")), plural).await?;
    let tree = tree(&facts, &options).to_string();
    Ok(json_answer(StatusCode::OK, tree))
}

async fn read(site: &Site, key: &Key, plural: &str) -> Result<Facts, Refusal> {
    let mut facts = Facts::default();
    if plural == PLURALS[0] {
        let machine: Option<Value> = site.client.find(MACHINES, key).await?;
        facts.machine = Some(machine.ok_or_else(|| Refusal::absent("virtualmachine", key.name()))?);
    }
    facts.instance = site.client.find(INSTANCES, key).await?;
    if facts.machine.is_none() && facts.instance.is_none() {
        return Err(Refusal::absent("virtualmachineinstance", key.name()));
    }
    let names = async |resource, labels: String| -> Result<Vec<String>, Refusal> {
        let scope = Scope::all().namespace(key.namespace()).labels(&labels);
        let found: Vec<Value> = site.client.list(resource, &scope).await?;
        Ok(found.iter().filter_map(|one| one["metadata"]["name"].as_str()).map(str::to_owned).collect())
    };
    if let Some(uid) = facts.instance.as_ref().and_then(|one| one["metadata"]["uid"].as_str()) {
        facts.pods = names(PODS, format!("kubevirt.io/created-by={uid}")).await?;
    }
    facts.states = names(CLAIMS, format!("{}={}", virt::state::LABEL, key.name())).await?;
    Ok(facts)
}

/// A node of the tree.
#[derive(Debug)]
struct Node {
    group: &'static str,
    kind: String,
    namespace: String,
    name: String,
    dependency: &'static str,
    optional: bool,
    children: Vec<Node>,
}

impl Node {
    fn new(group: &'static str, kind: &str, namespace: &str, name: &str, dependency: &'static str) -> Self {
        let [kind, namespace, name] = [kind, namespace, name].map(str::to_owned);
        Self { group, kind, namespace, name, dependency, optional: false, children: Vec::new() }
    }

    fn claim(namespace: &str, name: &str) -> Self {
        Self::new("", "PersistentVolumeClaim", namespace, name, STORAGE)
    }

    /// Whether a request asks for it; its children go with it.
    fn is_asked_for(&self, options: &Options) -> bool {
        let selector = options.label_selector.as_ref();
        let selected = selector
            .is_none_or(|selector| selects(selector, |key| (key == DEPENDENCY).then_some(self.dependency)));
        selected && (!self.optional || options.include_optional_nodes != Some(false))
    }

    fn write(&self, options: &Options) -> Value {
        let mut reference = json!({"apiGroup": self.group, "kind": self.kind, "name": self.name});
        if !self.namespace.is_empty() {
            reference["namespace"] = json!(self.namespace);
        }
        let mut node = json!({"objectReference": reference, "optional": self.optional});
        if !self.dependency.is_empty() {
            node["labels"] = json!({DEPENDENCY: self.dependency});
        }
        let children = self.children.iter().filter(|child| child.is_asked_for(options));
        let children: Vec<Value> = children.map(|child| child.write(options)).collect();
        if !children.is_empty() {
            node["children"] = json!(children);
        }
        node
    }
}

/// The answer.
fn tree(facts: &Facts, options: &Options) -> Value {
    let instance = facts.instance.as_ref();
    let own = instance.map(|one| {
        let namespace = one["metadata"]["namespace"].as_str().unwrap_or_default();
        let name = one["metadata"]["name"].as_str().unwrap_or_default();
        let mut node = Node::new("kubevirt.io", "VirtualMachineInstance", namespace, name, COMPUTE);
        let pod = |name: &String| {
            let pod = Node::new("", "Pod", namespace, name, COMPUTE);
            Node { optional: true, ..pod }
        };
        node.children.extend(facts.pods.iter().map(pod));
        node
    });
    let root = match (&facts.machine, own) {
        (Some(machine), own) => {
            let namespace = machine["metadata"]["namespace"].as_str().unwrap_or_default();
            let name = machine["metadata"]["name"].as_str().unwrap_or_default();
            let mut root = Node::new("kubevirt.io", "VirtualMachine", namespace, name, "");
            root.children
                .extend(Which::BOTH.into_iter().filter_map(|which| flavor(machine, namespace, which)));
            root.children.extend(own.map(|own| Node { optional: true, ..own }));
            needs(&machine["spec"]["template"]["spec"], namespace, &facts.states, &mut root.children);
            root
        }
        (None, Some(mut root)) => {
            let namespace = root.namespace.clone();
            if let Some(instance) = instance {
                needs(&instance["spec"], &namespace, &facts.states, &mut root.children);
            }
            Node { dependency: "", ..root }
        }
        (None, None) => return Value::Null,
    };
    let mut tree = root.write(options);
    tree["kind"] = json!("ObjectGraphNode");
    tree["apiVersion"] = json!("subresources.kubevirt.io/v1");
    tree
}

/// The revision of an instance type or preference that a VM has, or the object itself before its first start.
fn flavor(machine: &Value, namespace: &str, which: Which) -> Option<Node> {
    let field = which.field();
    let reference = FlavorReference::deserialize(&machine["spec"][field]).ok()?;
    let status = FlavorStatus::deserialize(&machine["status"][format!("{field}Ref")]).ok();
    if let Some(revision) = flavor::revision_of(&reference, status.as_ref()) {
        return Some(Node::new("apps", "ControllerRevision", namespace, revision, CONFIG));
    }
    let kind = reference.kind.as_deref().unwrap_or_default();
    let (_, namespaced) = which.resource(kind)?;
    let (kind, namespace) = match namespaced {
        true => (which.cluster_kind().replacen("Cluster", "", 1), namespace),
        false => (which.cluster_kind().to_owned(), ""),
    };
    let name = reference.name.as_deref().filter(|name| !name.is_empty())?;
    Some(Node::new(virt::instancetype::GROUP, &kind, namespace, name, CONFIG))
}

/// The objects that a guest's spec names, each once.
fn needs(spec: &Value, namespace: &str, states: &[String], found: &mut Vec<Node>) {
    let mut all = Vec::new();
    let of = |kind: &str, name: &Value| Some(Node::new("", kind, namespace, name.as_str()?, CONFIG));
    let claim = |name: &Value| Some(Node::claim(namespace, name.as_str()?));
    for volume in spec["volumes"].as_array().into_iter().flatten() {
        let data = volume["dataVolume"]["name"].as_str().map(|name| {
            let mut data = Node::new("cdi.kubevirt.io", "DataVolume", namespace, name, STORAGE);
            data.children.push(Node::claim(namespace, name));
            data
        });
        all.extend(data);
        all.extend(claim(&volume["persistentVolumeClaim"]["claimName"]));
        all.extend(claim(&volume["ephemeral"]["persistentVolumeClaim"]["claimName"]));
        all.extend(claim(&volume["memoryDump"]["claimName"]));
        all.extend(of("ConfigMap", &volume["configMap"]["name"]));
        all.extend(of("Secret", &volume["secret"]["secretName"]));
        all.extend(of("ServiceAccount", &volume["serviceAccount"]["serviceAccountName"]));
        all.extend(of("ConfigMap", &volume["sysprep"]["configMap"]["name"]));
        all.extend(of("Secret", &volume["sysprep"]["secret"]["name"]));
        for cloud_init in ["cloudInitNoCloud", "cloudInitConfigDrive"] {
            for field in ["secretRef", "networkDataSecretRef"] {
                all.extend(of("Secret", &volume[cloud_init][field]["name"]));
            }
        }
    }
    for credential in spec["accessCredentials"].as_array().into_iter().flatten() {
        for form in ["sshPublicKey", "userPassword"] {
            all.extend(of("Secret", &credential[form]["source"]["secret"]["secretName"]));
        }
    }
    for network in spec["networks"].as_array().into_iter().flatten() {
        let Some(name) = network["multus"]["networkName"].as_str() else { continue };
        let (namespace, name) = name.split_once('/').unwrap_or((namespace, name));
        all.push(Node::new("k8s.cni.cncf.io", "NetworkAttachmentDefinition", namespace, name, NETWORK));
    }
    all.extend(states.iter().map(|name| Node::claim(namespace, name)));
    for node in all {
        let same =
            |one: &Node| one.kind == node.kind && one.namespace == node.namespace && one.name == node.name;
        if !found.iter().any(same) {
            found.push(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kinds and names of a tree, children in parentheses; `?`: optional.
    fn text(node: &Value) -> String {
        let reference = &node["objectReference"];
        let optional = if node["optional"] == true { "?" } else { "" };
        let name = reference["name"].as_str().unwrap();
        let namespace = reference["namespace"].as_str().map(|name| format!("{name}/")).unwrap_or_default();
        let kind = reference["kind"].as_str().unwrap();
        let children: Vec<String> = node["children"].as_array().into_iter().flatten().map(text).collect();
        let children = if children.is_empty() { String::new() } else { format!("({})", children.join(" ")) };
        format!("{optional}{kind}:{namespace}{name}{children}")
    }

    fn facts() -> Facts {
        let spec = json!({
            "networks": [{"name": "a", "pod": {}}, {"name": "b", "multus": {"networkName": "other/lan"}}],
            "accessCredentials": [{"sshPublicKey": {"source": {"secret": {"secretName": "keys"}}}}],
            "volumes": [
                {"name": "root", "dataVolume": {"name": "root"}},
                {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "again", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "init", "cloudInitNoCloud": {"secretRef": {"name": "user"}}},
                {"name": "map", "configMap": {"name": "map"}},
                {"name": "disk", "containerDisk": {"image": "x"}},
            ],
        });
        let meta = json!({"name": "vm", "namespace": "n"});
        Facts {
            machine: Some(json!({"metadata": meta, "spec": {
                "instancetype": {"name": "small"},
                "preference": {"name": "linux", "kind": "VirtualMachinePreference"},
                "template": {"spec": spec}},
                "status": {"instancetypeRef": {"name": "small", "controllerRevisionRef": {"name": "vm-small-1"}}}})),
            instance: Some(json!({"metadata": meta, "spec": spec})),
            pods: vec!["virt-launcher-vm-x".to_owned()],
            states: vec!["persistent-state-for-vm".to_owned()],
        }
    }

    #[test]
    fn everything_that_a_machine_needs_is_in_the_tree_once() {
        let needs = "DataVolume:n/root(PersistentVolumeClaim:n/root) PersistentVolumeClaim:n/data Secret:n/user \
            ConfigMap:n/map Secret:n/keys NetworkAttachmentDefinition:other/lan \
            PersistentVolumeClaim:n/persistent-state-for-vm";
        let mut facts = facts();
        let whole = tree(&facts, &Options::default());
        assert_eq!(
            text(&whole),
            format!(
                "VirtualMachine:n/vm(ControllerRevision:n/vm-small-1 VirtualMachinePreference:n/linux \
                 ?VirtualMachineInstance:n/vm(?Pod:n/virt-launcher-vm-x) {needs})"
            )
        );
        assert_eq!((&whole["kind"], &whole["labels"]), (&json!("ObjectGraphNode"), &Value::Null));
        let data = &whole["children"][3];
        assert_eq!(data["objectReference"]["apiGroup"], "cdi.kubevirt.io");
        assert_eq!(data["labels"], json!({"kubevirt.io/dependency-type": "storage"}));
        facts.machine = None;
        assert_eq!(
            text(&tree(&facts, &Options::default())),
            format!("VirtualMachineInstance:n/vm(?Pod:n/virt-launcher-vm-x {needs})")
        );
    }

    #[test]
    fn options_leave_out_optional_nodes_and_those_without_a_label() {
        for (options, expected) in [
            (
                json!({"includeOptionalNodes": false,
                    "labelSelector": {"matchLabels": {"kubevirt.io/dependency-type": "compute"}}}),
                "VirtualMachine:n/vm",
            ),
            (
                json!({"labelSelector": {"matchLabels": {"kubevirt.io/dependency-type": "compute"}}}),
                "VirtualMachine:n/vm(?VirtualMachineInstance:n/vm(?Pod:n/virt-launcher-vm-x))",
            ),
            (
                json!({"labelSelector": {"matchExpressions": [
                    {"key": "kubevirt.io/dependency-type", "operator": "In", "values": ["network"]}]}}),
                "VirtualMachine:n/vm(NetworkAttachmentDefinition:other/lan)",
            ),
        ] {
            let options: Options = serde_json::from_value(options).unwrap();
            assert_eq!(text(&tree(&facts(), &options)), expected);
        }
    }
}
