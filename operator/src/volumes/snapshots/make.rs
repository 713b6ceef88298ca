//! The VolumeSnapshotContent that a VolumeSnapshot gets. Pure.

use serde_json::{Value, json};

use super::seen::{CONTENT, Snapshot};
use crate::storage::seen::Meta;
use crate::volumes::seen::{DRIVER, MANAGED_BY, Volume};

/// The Secrets of a kind of snapshots: parameters of its class, annotations of its content.
pub(super) struct Secrets {
    /// Parameters: name and namespace of the Secret that the driver needs.
    pub parameters: [&'static str; 2],
    /// Annotations: the Secret for its deletion.
    pub annotations: [&'static str; 2],
    /// How the kind is named in the templates of the parameters.
    pub kind: &'static str,
}

const SECRETS: Secrets = Secrets {
    parameters: [
        "csi.storage.k8s.io/snapshotter-secret-name",
        "csi.storage.k8s.io/snapshotter-secret-namespace",
    ],
    annotations: [
        "snapshot.storage.kubernetes.io/deletion-secret-name",
        "snapshot.storage.kubernetes.io/deletion-secret-namespace",
    ],
    kind: "volumesnapshot",
};

/// The volume of a claim that can be taken a snapshot of: the driver that has it.
///
/// # Errors
/// When the claim is not bound, or not to this PV, or the PV is not of a CSI driver.
pub(super) fn driver<'a>(claim: &Value, volume: &'a Value) -> Result<&'a str, String> {
    let (of, bound) = (Meta::from(claim), &volume["spec"]["claimRef"]);
    let uid = bound["uid"].as_str().unwrap_or_default();
    let same =
        bound["name"] == *of.name && bound["namespace"] == *of.namespace && (uid.is_empty() || uid == of.uid);
    if !same {
        return Err("claim in dataSource not bound or invalid".to_owned());
    }
    let name = volume["metadata"]["name"].as_str().unwrap_or_default();
    let none = || format!("cannot find CSI PersistentVolumeSource for volume {name}");
    volume["spec"]["csi"]["driver"].as_str().ok_or_else(none)
}

/// The content of a snapshot.
///
/// # Errors
/// As [`driver`], and when the class's Secret is not named properly.
pub(super) fn content(s: &Snapshot, class: &Value, claim: &Value, volume: &Value) -> Result<Value, String> {
    let driver = driver(claim, volume)?;
    if class["driver"] != driver {
        let (class, other) = (&class["metadata"]["name"], &class["driver"]);
        return Err(format!(
            "VolumeSnapshotClass {class} is of driver {other}, and the volume of {driver:?}"
        ));
    }
    let name = format!("snapcontent-{}", s.meta.uid);
    let mut content = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": {"name": name, "finalizers": [CONTENT]},
        "spec": {
            "volumeSnapshotRef": {
                "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "namespace": s.meta.namespace,
                "name": s.meta.name, "uid": s.meta.uid, "resourceVersion": s.meta.version,
            },
            "source": {"volumeHandle": volume["spec"]["csi"]["volumeHandle"]},
            "volumeSnapshotClassName": class["metadata"]["name"],
            "deletionPolicy": class["deletionPolicy"],
            "driver": class["driver"],
            "sourceVolumeMode": volume["spec"]["volumeMode"],
        },
    });
    // Other drivers' sidecars take contents without this label.
    if let Some(node) = Volume::from(volume).served_by().filter(|_| driver == DRIVER) {
        content["metadata"]["labels"] = json!({MANAGED_BY: node});
    }
    if let Some(annotations) = SECRETS.annotations(&s.meta, &name, class)? {
        content["metadata"]["annotations"] = annotations;
    }
    Ok(content)
}

impl Secrets {
    /// Annotations of the content `content` of a snapshot `of`: the Secret that the class names.
    ///
    /// # Errors
    /// When the class does not name it properly.
    pub(super) fn annotations(
        &self,
        of: &Meta,
        content: &str,
        class: &Value,
    ) -> Result<Option<Value>, String> {
        let [first, second] = self.parameters;
        let [name, namespace] =
            [first, second].map(|key| class["parameters"][key].as_str().unwrap_or_default());
        if name.is_empty() && namespace.is_empty() {
            return Ok(None);
        }
        if name.is_empty() || namespace.is_empty() {
            return Err(format!("parameters {first} and {second} of the class must be given together"));
        }
        let kind = self.kind;
        let known = [(format!("{kind}content.name"), content), (format!("{kind}.namespace"), &of.namespace)];
        let with_name = [&known[..], &[(format!("{kind}.name"), of.name.as_str())]].concat();
        let (name, namespace) = (expand(name, &with_name, first)?, expand(namespace, &known, second)?);
        Ok(Some(json!({self.annotations[0]: name, self.annotations[1]: namespace})))
    }
}

/// A template with `${…}` replaced.
fn expand(template: &str, known: &[(String, &str)], parameter: &str) -> Result<String, String> {
    let mut text = template.to_owned();
    for (token, value) in known {
        text = text.replace(&format!("${{{token}}}"), value);
    }
    let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    if text.is_empty() || text.len() > 253 || !text.bytes().all(valid) {
        return Err(format!(
            "parameter {parameter} of the class: {template:?} gives {text:?}, which is not a name"
        ));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::seen::NODE_LABEL;

    fn snapshot() -> Snapshot {
        Snapshot::from(&json!({
            "metadata": {"name": "s", "namespace": "n", "uid": "su", "resourceVersion": "7"},
            "spec": {"source": {"persistentVolumeClaimName": "c"}, "volumeSnapshotClassName": "k"},
        }))
    }

    fn claim() -> Value {
        json!({"metadata": {"name": "c", "namespace": "n", "uid": "cu"}})
    }

    fn volume(driver: &str, uid: &str) -> Value {
        json!({"metadata": {"name": "pv"}, "spec": {
            "claimRef": {"namespace": "n", "name": "c", "uid": uid}, "volumeMode": "Block",
            "csi": {"driver": driver, "volumeHandle": "h"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.hostpath.csi/node", "operator": "In", "values": ["node1"]}]}]}},
        }})
    }

    fn class(parameters: &Value) -> Value {
        json!({"metadata": {"name": "k"}, "driver": DRIVER, "deletionPolicy": "Retain", "parameters": parameters})
    }

    #[test]
    fn a_content_names_volume_class_and_node() {
        let content = content(&snapshot(), &class(&json!({})), &claim(), &volume(DRIVER, "cu")).unwrap();
        let metadata =
            json!({"name": "snapcontent-su", "finalizers": [CONTENT], "labels": {MANAGED_BY: "node1"}});
        assert_eq!(content["metadata"], metadata);
        assert_eq!(
            content["spec"],
            json!({
                "volumeSnapshotRef": {"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                    "namespace": "n", "name": "s", "uid": "su", "resourceVersion": "7"},
                "source": {"volumeHandle": "h"}, "volumeSnapshotClassName": "k", "deletionPolicy": "Retain",
                "driver": DRIVER, "sourceVolumeMode": "Block",
            })
        );
        let mut shared = volume(DRIVER, "cu");
        shared["spec"]["nodeAffinity"] = Value::Null;
        shared["metadata"]["labels"] = json!({NODE_LABEL: "node2"});
        let shared = super::content(&snapshot(), &class(&json!({})), &claim(), &shared).unwrap();
        assert_eq!(shared["metadata"]["labels"], json!({MANAGED_BY: "node2"}));
        let mut ebs = class(&json!({}));
        ebs["driver"] = json!("ebs");
        let other = super::content(&snapshot(), &ebs, &claim(), &volume("ebs", "cu")).unwrap();
        assert!(other["metadata"]["labels"].is_null(), "contents of other drivers have no node");
    }

    #[test]
    fn a_volume_of_another_claim_and_a_volume_without_driver_are_refused() {
        let with = |volume: &Value| content(&snapshot(), &class(&json!({})), &claim(), volume).unwrap_err();
        assert_eq!(with(&volume(DRIVER, "another")), "claim in dataSource not bound or invalid");
        let other = "VolumeSnapshotClass \"k\" is of driver \"kubevirt.io.hostpath-provisioner\", and the volume of \"ebs\"";
        assert_eq!(with(&volume("ebs", "cu")), other);
        let mut local = volume(DRIVER, "cu");
        local["spec"]["csi"] = Value::Null;
        assert_eq!(with(&local), "cannot find CSI PersistentVolumeSource for volume pv");
    }

    #[test]
    fn secrets_are_named_by_the_class() {
        let with = |name: &str, namespace: &str| {
            let class = class(&json!({SECRETS.parameters[0]: name, SECRETS.parameters[1]: namespace}));
            content(&snapshot(), &class, &claim(), &volume(DRIVER, "cu"))
                .map(|content| content["metadata"]["annotations"].clone())
        };
        let named = |name: &str, namespace: &str| {
            Ok(json!({SECRETS.annotations[0]: name, SECRETS.annotations[1]: namespace}))
        };
        assert_eq!(with("key", "vault"), named("key", "vault"));
        assert_eq!(
            with("${volumesnapshot.name}.${volumesnapshotcontent.name}", "${volumesnapshot.namespace}"),
            named("s.snapcontent-su", "n")
        );
        assert_eq!(with("", ""), Ok(Value::Null));
        for (name, namespace) in
            [("key", ""), ("", "vault"), ("${secret}", "n"), ("key", "${volumesnapshot.name}"), ("A", "n")]
        {
            let error = with(name, namespace).unwrap_err();
            assert!(error.contains("parameter"), "{error}");
        }
    }
}
