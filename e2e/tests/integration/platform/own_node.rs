//! Writes that the API server refuses to the agent's own token: of objects of volumes that are another node's, by each
//! policy. Not here: the agent's work ([`super::hostpath`]); its writes of nodes, instances, pods and events, which the
//! operator's tests of policies try.

use cluster::credentials::Credentials;
use cluster::{Client, Config, Key, Resource};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::platform::hostpath::{DRIVER, PLATFORM, apply, claim};
use crate::platform::place::{CLAIMS, CONTENTS, PLACE, PODS};

const VOLUMES: Resource = Resource::cluster("", "v1", "persistentvolumes");
const CAPACITIES: Resource = Resource::namespaced("storage.k8s.io", "v1", "csistoragecapacities");
const GROUP_CONTENTS: Resource =
    Resource::cluster("groupsnapshot.storage.k8s.io", "v1beta2", "volumegroupsnapshotcontents");
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// The token of the node's agent.
struct Agent {
    client: Client,
    server: String,
    token: String,
    namespace: String,
}

impl Agent {
    fn of(namespace: &str) -> Self {
        let pods = PLACE.list(PODS, PLATFORM);
        let name = |pod: &Value| pod["metadata"]["name"].as_str().unwrap().to_owned();
        let agent = pods.iter().map(name).find(|name| name.starts_with("virt-handler-")).unwrap();
        let bound = ["--bound-object-kind=Pod", "--bound-object-name", &agent];
        let token = [&["-n", PLATFORM, "create", "token", "kubevirt-handler"][..], &bound].concat();
        let token = PLACE.kubectl(&token).unwrap().trim().to_owned();
        let mut config = Config::load(Some(&PLACE.cluster.kubeconfig()), None).unwrap();
        config.identity = None;
        config.credentials = Credentials::token(&token).unwrap();
        let client = Client::new(&config, "e2e").unwrap();
        Self { client, server: config.server, token, namespace: namespace.to_owned() }
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<(), String> {
        let own = [
            "--kubeconfig=/dev/null",
            "--insecure-skip-tls-verify",
            "--server",
            &self.server,
            "--token",
            &self.token,
            "-n",
            &self.namespace,
        ];
        PLACE.kubectl(&[&own, arguments].concat()).map(drop)
    }

    /// Changes an object, or its part, which kubectl would read first.
    fn patch(&self, resource: Resource, name: &str, patch: &Value) -> Result<(), String> {
        let namespace = match resource {
            CAPACITIES => PLATFORM,
            _ if resource.namespaced => self.namespace.as_str(),
            _ => "",
        };
        let key = Key::new(namespace, name);
        let written = PLACE.cluster.run(self.client.merge_patch::<IgnoredAny>(resource, &key, patch));
        written.map(drop).map_err(|error| error.chain())
    }

    /// Asks whether an object would be made.
    fn make(&self, object: &Value) -> Result<(), String> {
        let file = PLACE.cluster.place().path("by-the-agent.json");
        std::fs::write(&file, object.to_string()).unwrap();
        let file = file.display().to_string();
        let create = ["create", "--dry-run=server", "--validate=false", "-f", &file];
        match object["metadata"]["namespace"].as_str() {
            Some(namespace) => self.kubectl(&[&["-n", namespace], &create[..]].concat()),
            None => self.kubectl(&create),
        }
    }
}

/// A change of any object.
fn note() -> Value {
    json!({"metadata": {"annotations": {"note": "mine"}}})
}

#[track_caller]
fn refused(written: Result<(), String>, why: &str) {
    let refusal = written.unwrap_err();
    assert!(refusal.contains(why), "not {why:?}: {refusal}");
}

/// The agent's own token writes a claim and a volume of its node, and no object that is labelled with another node.
pub(super) fn is_all_that_an_agent_writes(namespace: &str, claim: &str, volume: &str) {
    let agent = Agent::of(namespace);
    for (kind, name) in [(CLAIMS, claim), (VOLUMES, volume)] {
        agent.patch(kind, name, &note()).unwrap();
    }
    // A change that users may make.
    let larger = json!({"spec": {"resources": {"requests": {"storage": "1Ti"}}}});
    refused(agent.patch(CLAIMS, claim, &larger), "may not change the spec of a claim");
    claims(&agent);
    volumes(&agent);
    contents(&agent);
    taken_contents(&agent);
    capacities(&agent);
}

fn claims(agent: &Agent) {
    let mut foreign = claim("", 1);
    foreign["metadata"] = json!({"name": "elsewhere", "labels": {"ferrovirt.io/node": "elsewhere"}});
    apply("claim-elsewhere", &foreign, &["-n", &agent.namespace]).unwrap();
    let why = "may change claims of its own node only";
    refused(agent.patch(CLAIMS, "elsewhere", &note()), why);
    let condition = json!({"status": {"conditions": [{"type": "note", "status": "True"}]}});
    refused(agent.patch(CLAIMS.sub("status"), "elsewhere", &condition), why);
    PLACE.kubectl(&["-n", &agent.namespace, "delete", "pvc", "elsewhere"]).unwrap();
}

/// A volume with the label of a node.
fn volume(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {"ferrovirt.io/node": node}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Mi"}, "storageClassName": "elsewhere",
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": {"driver": DRIVER, "volumeHandle": name},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.hostpath.csi/node", "operator": "In", "values": [node]},
            ]}]}},
        },
    })
}

fn volumes(agent: &Agent) {
    apply("volume-elsewhere", &volume("elsewhere", "elsewhere"), &[]).unwrap();
    let why = "may make, change and delete PersistentVolumes of its own node only";
    refused(agent.patch(VOLUMES, "elsewhere", &note()), why);
    refused(agent.kubectl(&["delete", "pv", "elsewhere", "--wait=false"]), why);
    refused(agent.make(&volume("made-elsewhere", "elsewhere")), why);
    let mut unlabelled = volume("made-elsewhere", "node1");
    unlabelled["metadata"]["labels"] = json!({});
    refused(agent.make(&unlabelled), why);
    let mut other = volume("made-here", "node1");
    other["spec"]["csi"]["driver"] = json!("other.example.com");
    refused(agent.make(&other), "may write PersistentVolumes of the hostpath driver only");
    agent.make(&volume("made-here", "node1")).unwrap();
    PLACE.kubectl(&["delete", "pv", "elsewhere"]).unwrap();
}

/// A content of a snapshot that nothing waits for: it refers to no uid.
fn content(agent: &Agent, name: &str, labels: &Value, source: &Value) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "driver": DRIVER, "deletionPolicy": "Retain", "source": source,
            "volumeSnapshotRef": {"namespace": agent.namespace, "name": "elsewhere"},
        },
    })
}

fn contents(agent: &Agent) {
    let labels = json!({MANAGED_BY: "elsewhere"});
    let of_group = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1beta2", "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": "elsewhere", "labels": labels},
        "spec": {
            "driver": DRIVER, "deletionPolicy": "Retain", "source": {"volumeHandles": ["elsewhere"]},
            "volumeGroupSnapshotRef": {"namespace": agent.namespace, "name": "elsewhere"},
        },
    });
    apply("group-elsewhere", &of_group, &[]).unwrap();
    let single = content(agent, "elsewhere", &labels, &json!({"volumeHandle": "elsewhere"}));
    apply("content-elsewhere", &single, &[]).unwrap();
    let take = json!({"metadata": {"labels": {MANAGED_BY: "node1"}}});
    let status = json!({"status": {"readyToUse": false}});
    for (resource, kind) in
        [(CONTENTS, "VolumeSnapshotContents"), (GROUP_CONTENTS, "VolumeGroupSnapshotContents")]
    {
        let why = format!("may change {kind} of its own node only");
        refused(agent.patch(resource, "elsewhere", &note()), &why);
        refused(agent.patch(resource, "elsewhere", &take), &why);
        refused(agent.patch(resource.sub("status"), "elsewhere", &status), &why);
        PLACE.kubectl(&["delete", resource.plural, "elsewhere"]).unwrap();
    }
}

/// A content without a node is taken only where the operator asks for that, and as it is.
fn taken_contents(agent: &Agent) {
    let why = "may change VolumeSnapshotContents of its own node only";
    let take = |policy: Option<&str>, node: &str| {
        let mut patch = json!({"metadata": {"labels": {MANAGED_BY: node, "ferrovirt.io/unassigned": null}}});
        if let Some(policy) = policy {
            patch["spec"] = json!({"deletionPolicy": policy});
        }
        patch
    };
    // Its volume is nowhere: the operator waits.
    let unasked = content(agent, "unasked", &json!({}), &json!({"volumeHandle": "nowhere"}));
    apply("content-unasked", &unasked, &[]).unwrap();
    refused(agent.patch(CONTENTS, "unasked", &take(None, "node1")), why);
    let given = content(agent, "given", &json!({}), &json!({"snapshotHandle": "nowhere"}));
    apply("content-given", &given, &[]).unwrap();
    PLACE.until(&agent.namespace, "the operator asks for the snapshot", || {
        let content = PLACE.kubectl(&["get", CONTENTS.plural, "given", "-o", "json"]).ok()?;
        content.contains("ferrovirt.io/unassigned").then_some(())
    });
    refused(agent.patch(CONTENTS, "given", &take(None, "elsewhere")), why);
    refused(agent.patch(CONTENTS, "given", &take(Some("Delete"), "node1")), why);
    refused(agent.patch(CONTENTS, "given", &note()), why);
    let taken = take(None, "node1").to_string();
    let patch = ["patch", CONTENTS.plural, "given", "--dry-run=server", "--type=merge", "-p", &taken];
    agent.kubectl(&patch).unwrap();
    PLACE.kubectl(&["delete", CONTENTS.plural, "unasked", "given"]).unwrap();
}

fn capacities(agent: &Agent) {
    let manager =
        |node: &str| json!({"csi.storage.k8s.io/managed-by": format!("external-provisioner-{node}")});
    let capacity = |name: &str, node: &str| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
            "metadata": {"name": name, "namespace": PLATFORM, "labels": manager(node)},
            "storageClassName": "elsewhere", "capacity": "1Gi",
            "nodeTopology": {"matchLabels": {"topology.hostpath.csi/node": node}},
        })
    };
    apply("capacity-elsewhere", &capacity("elsewhere", "elsewhere"), &["-n", PLATFORM]).unwrap();
    let why = "may write CSIStorageCapacities of its own node only";
    refused(agent.make(&capacity("made-elsewhere", "elsewhere")), why);
    agent.make(&capacity("made-here", "node1")).unwrap();
    refused(agent.patch(CAPACITIES, "elsewhere", &json!({"capacity": "2Gi"})), why);
    // Its label would be the agent's: the object as it was is another node's.
    let taken = json!({"metadata": {"labels": manager("node1")}});
    refused(agent.patch(CAPACITIES, "elsewhere", &taken), why);
    let delete = ["-n", PLATFORM, "delete", "csistoragecapacity", "elsewhere"];
    refused(agent.kubectl(&[&delete[..], &["--wait=false"]].concat()), why);
    PLACE.kubectl(&delete).unwrap();
}
