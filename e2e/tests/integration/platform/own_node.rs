//! Writes that the API server refuses to the agent's own token: of objects of volumes that are another node's, by each
//! policy. Not here: the agent's work ([`super::hostpath`]); its writes of nodes, instances, pods and events, which the
//! operator's tests of policies try.

use serde_json::{Value, json};

use crate::platform::hostpath::{DRIVER, PLATFORM, apply, claim};
use crate::platform::place::{PLACE, PODS};

const GROUP_CONTENT: &str = "volumegroupsnapshotcontent";
const CONTENT: &str = "volumesnapshotcontent";
/// A change of any object.
const NOTE: &str = r#"{"metadata": {"annotations": {"note": "mine"}}}"#;
const MANAGED_BY: &str = "snapshot.storage.kubernetes.io/managed-by";

/// The token of the node's agent.
struct Agent {
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
        let server = ["config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.server}"];
        let read = |words: &[&str]| PLACE.kubectl(words).unwrap().trim().to_owned();
        Self { server: read(&server), token: read(&token), namespace: namespace.to_owned() }
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

    fn patch(&self, kind: &str, name: &str, patch: &str) -> Result<(), String> {
        self.kubectl(&["patch", kind, name, "--type=merge", "-p", patch])
    }

    fn patch_status(&self, kind: &str, name: &str, patch: &Value) -> Result<(), String> {
        let patch = json!({"status": patch}).to_string();
        self.kubectl(&["patch", kind, name, "--subresource=status", "--type=merge", "-p", &patch])
    }

    /// Makes an object, or writes it again.
    fn write(&self, verb: &[&str], object: &Value) -> Result<(), String> {
        let file = PLACE.cluster.place().path("by-the-agent.json");
        std::fs::write(&file, object.to_string()).unwrap();
        let file = file.display().to_string();
        self.kubectl(&[verb, &["--validate=false", "-f", &file]].concat())
    }
}

#[track_caller]
fn refused(written: Result<(), String>, why: &str) {
    let refusal = written.unwrap_err();
    assert!(refusal.contains(why), "not {why:?}: {refusal}");
}

/// The agent's own token writes a claim and a volume of its node, and no object that is labelled with another node.
pub(super) fn is_all_that_an_agent_writes(namespace: &str, claim: &str, volume: &str) {
    let agent = Agent::of(namespace);
    for (kind, name) in [("pvc", claim), ("pv", volume)] {
        agent.patch(kind, name, NOTE).unwrap();
    }
    assert!(agent.patch("pvc", claim, r#"{"spec": {"volumeMode": "Block"}}"#).is_err());
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
    refused(agent.patch("pvc", "elsewhere", NOTE), why);
    let condition = json!({"conditions": [{"type": "note", "status": "True"}]});
    refused(agent.patch_status("pvc", "elsewhere", &condition), why);
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
    refused(agent.patch("pv", "elsewhere", NOTE), why);
    refused(agent.kubectl(&["delete", "pv", "elsewhere", "--wait=false"]), why);
    let create = &["create", "--dry-run=server"];
    refused(agent.write(create, &volume("made-elsewhere", "elsewhere")), why);
    let mut unlabelled = volume("made-elsewhere", "node1");
    unlabelled["metadata"]["labels"] = json!({});
    refused(agent.write(create, &unlabelled), why);
    let mut other = volume("made-here", "node1");
    other["spec"]["csi"]["driver"] = json!("other.example.com");
    refused(agent.write(create, &other), "may write PersistentVolumes of the hostpath driver only");
    agent.write(create, &volume("made-here", "node1")).unwrap();
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
    let take = json!({"metadata": {"labels": {MANAGED_BY: "node1"}}}).to_string();
    for (kind, name) in [(CONTENT, "VolumeSnapshotContents"), (GROUP_CONTENT, "VolumeGroupSnapshotContents")]
    {
        let why = format!("may change {name} of its own node only");
        refused(agent.patch(kind, "elsewhere", NOTE), &why);
        refused(agent.patch(kind, "elsewhere", &take), &why);
        refused(agent.patch_status(kind, "elsewhere", &json!({"readyToUse": false})), &why);
        PLACE.kubectl(&["delete", kind, "elsewhere"]).unwrap();
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
        patch.to_string()
    };
    // Its volume is nowhere: the operator waits.
    let unasked = content(agent, "unasked", &json!({}), &json!({"volumeHandle": "nowhere"}));
    apply("content-unasked", &unasked, &[]).unwrap();
    refused(agent.patch(CONTENT, "unasked", &take(None, "node1")), why);
    let given = content(agent, "given", &json!({}), &json!({"snapshotHandle": "nowhere"}));
    apply("content-given", &given, &[]).unwrap();
    PLACE.until(&agent.namespace, "the operator asks for the snapshot", || {
        let content = PLACE.kubectl(&["get", CONTENT, "given", "-o", "json"]).ok()?;
        content.contains("ferrovirt.io/unassigned").then_some(())
    });
    refused(agent.patch(CONTENT, "given", &take(None, "elsewhere")), why);
    refused(agent.patch(CONTENT, "given", &take(Some("Delete"), "node1")), why);
    refused(agent.patch(CONTENT, "given", NOTE), why);
    let taken = take(None, "node1");
    agent.kubectl(&["patch", CONTENT, "given", "--dry-run=server", "--type=merge", "-p", &taken]).unwrap();
    PLACE.kubectl(&["delete", CONTENT, "unasked", "given"]).unwrap();
}

fn capacities(agent: &Agent) {
    let capacity = |name: &str, node: &str, size: &str| {
        json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSIStorageCapacity",
            "metadata": {
                "name": name, "namespace": PLATFORM,
                "labels": {"csi.storage.k8s.io/managed-by": format!("external-provisioner-{node}")},
            },
            "storageClassName": "elsewhere", "capacity": size,
            "nodeTopology": {"matchLabels": {"topology.hostpath.csi/node": node}},
        })
    };
    let of_platform = &["-n", PLATFORM];
    apply("capacity-elsewhere", &capacity("elsewhere", "elsewhere", "1Gi"), of_platform).unwrap();
    let why = "may write CSIStorageCapacities of its own node only";
    let create = &["-n", PLATFORM, "create", "--dry-run=server"];
    refused(agent.write(create, &capacity("made-elsewhere", "elsewhere", "1Gi")), why);
    agent.write(create, &capacity("made-here", "node1", "1Gi")).unwrap();
    let change = &["-n", PLATFORM, "apply", "--server-side", "--force-conflicts"];
    refused(agent.write(change, &capacity("elsewhere", "elsewhere", "2Gi")), why);
    // Its label would be the agent's: the object as it was is another node's.
    refused(agent.write(change, &capacity("elsewhere", "node1", "1Gi")), why);
    let delete = ["-n", PLATFORM, "delete", "csistoragecapacity", "elsewhere"];
    refused(agent.kubectl(&[&delete[..], &["--wait=false"]].concat()), why);
    PLACE.kubectl(&delete).unwrap();
}
