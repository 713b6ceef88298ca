//! PersistentVolumes of upstream's provisioner without CSI: directories of a node next to the pool's, as `hostPath` volumes.
//! They stay as they are; a released one with the reclaim policy Delete is deleted. Pure.
//!
//! Not here: the deletion ([`super::removal`]), new claims of such classes, which get volumes of the CSI driver (the node agent).

use api::hostpath::LEGACY_PROVISIONER;
use serde_json::Value;

/// Annotation of a PersistentVolume: the provisioner that made it.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Annotation of a PersistentVolume: the provisioner's identity.
const IDENTITY: &str = "hostPathProvisionerIdentity";
/// Key of its node affinity.
const HOST: &str = "kubernetes.io/hostname";

/// A PersistentVolume of upstream's provisioner without CSI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Legacy {
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// Directory on the node.
    pub path: String,
    /// Label of its node.
    host: Option<String>,
    /// Whether it is released and is to be deleted.
    released: bool,
}

/// The next step for a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// It cannot be deleted: why.
    Refuse(String),
    /// A directory of the node is removed.
    Remove {
        /// The directory that it is in.
        parent: String,
        /// Its name there.
        name: String,
        /// The node's label `kubernetes.io/hostname`.
        host: String,
    },
}

impl Legacy {
    /// `None`: it is of another provisioner.
    pub fn read(object: &Value) -> Option<Self> {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let annotations = object.pointer("/metadata/annotations")?;
        if annotations.get(PROVISIONED_BY)?.as_str()? != LEGACY_PROVISIONER
            || annotations.get(IDENTITY).is_none()
        {
            return None;
        }
        let path = object.pointer("/spec/hostPath/path")?.as_str()?.to_owned();
        let terms = object.pointer("/spec/nodeAffinity/required/nodeSelectorTerms").and_then(Value::as_array);
        let rules =
            terms.into_iter().flatten().filter_map(|term| term.get("matchExpressions")?.as_array()).flatten();
        let mut hosts = rules.filter(|rule| rule.get("key").is_some_and(|key| key == HOST));
        let host =
            hosts.find_map(|rule| rule.pointer("/values/0").and_then(Value::as_str)).map(str::to_owned);
        let released = text("/status/phase") == "Released"
            && text("/spec/persistentVolumeReclaimPolicy") == "Delete"
            && object.pointer("/metadata/deletionTimestamp").is_none();
        Some(Self { name: text("/metadata/name"), uid: text("/metadata/uid"), path, host, released })
    }

    /// Its next step; `roots` are the directories in which such volumes are.
    pub fn step(&self, roots: &[String]) -> Step {
        if !self.released {
            return Step::Nothing;
        }
        let path = self.path.trim_end_matches('/');
        let Some((parent, name)) = path.rsplit_once('/') else {
            return Step::Refuse(format!("{path:?} is not an absolute path"));
        };
        if !roots.iter().any(|root| root.trim_end_matches('/') == parent) {
            return Step::Refuse(format!("{path} is not in a directory of the HostPathProvisioner"));
        }
        if !name.ends_with(&self.name) || self.name.is_empty() {
            return Step::Refuse(format!("the directory {name} is not named after the PersistentVolume"));
        }
        match &self.host {
            None => Step::Refuse(format!("its node affinity does not name a node by {HOST}")),
            Some(host) => {
                Step::Remove { parent: parent.to_owned(), name: name.to_owned(), host: host.clone() }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As upstream's provisioner writes it.
    fn object(path: &str, phase: &str) -> Value {
        json!({
            "metadata": {
                "name": "pvc-1", "uid": "u",
                "annotations": {
                    IDENTITY: "kubevirt.io/hostpath-provisioner-node1", PROVISIONED_BY: LEGACY_PROVISIONER,
                    "kubevirt.io/provisionOnNode": "node1",
                },
            },
            "spec": {
                "hostPath": {"path": path, "type": ""},
                "persistentVolumeReclaimPolicy": "Delete",
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                    {"key": HOST, "operator": "In", "values": ["node1"]},
                ]}]}},
            },
            "status": {"phase": phase},
        })
    }

    #[test]
    fn only_a_released_directory_of_the_object_is_removed() {
        let roots = ["/data/".to_owned(), "/fast".to_owned()];
        let remove = |parent: &str, name: &str| Step::Remove {
            parent: parent.to_owned(),
            name: name.to_owned(),
            host: "node1".to_owned(),
        };
        for (path, phase, expected) in [
            ("/data/pvc-1", "Bound", Some(Step::Nothing)),
            ("/data/pvc-1", "Released", Some(remove("/data", "pvc-1"))),
            ("/fast/disk-pvc-1/", "Released", Some(remove("/fast", "disk-pvc-1"))),
            ("/etc/pvc-1", "Released", None),
            ("/data/deep/pvc-1", "Released", None),
            ("/data/csi", "Released", None),
            ("/data/../pvc-1", "Released", None),
            ("pvc-1", "Released", None),
        ] {
            let step = Legacy::read(&object(path, phase)).unwrap().step(&roots);
            match expected {
                Some(expected) => assert_eq!(step, expected, "{path}"),
                None => assert!(matches!(step, Step::Refuse(_)), "{path}: {step:?}"),
            }
        }
        let mut kept = object("/data/pvc-1", "Released");
        kept["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        assert_eq!(Legacy::read(&kept).unwrap().step(&roots), Step::Nothing);
        let mut foreign = object("/data/pvc-1", "Released");
        foreign["metadata"]["annotations"][PROVISIONED_BY] = json!("other");
        assert_eq!(Legacy::read(&foreign), None);
        let mut anywhere = object("/data/pvc-1", "Released");
        anywhere["spec"]["nodeAffinity"] = json!({});
        assert!(matches!(Legacy::read(&anywhere).unwrap().step(&roots), Step::Refuse(_)));
    }
}
