//! The pod that attaches one claim to the node of a guest that runs: it holds the claim until the guest has let go of it,
//! and the node agent shows the claim's disk to the launcher's pod. Pure.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use virt::pod;

use super::storage::helper_resources;
use super::{QEMU, Settings, container_security, pull_with};

/// Start of every attachment pod's name. The eviction webhook selects pods by it.
const PREFIX: &str = "hp-volume-";
/// Characters behind it.
const SUFFIX: usize = 10;
const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// Annotations of an attachment pod: its instance, and the volume's name there.
pub(in crate::compute) const OWNER_NAME: &str = "kubevirt.io/owner-vmi-name";
pub(in crate::compute) const OWNER_UID: &str = "kubevirt.io/owner-vmi-uid";
pub(in crate::compute) const VOLUME: &str = "ferrovirt.io/volume";

/// The volume of an attachment pod, and its place.
#[derive(Clone, Copy, Debug)]
pub(in crate::compute) struct Attachment<'a> {
    /// Its name.
    pub(in crate::compute) pod: &'a str,
    /// The volume in the instance.
    pub(in crate::compute) volume: &'a str,
    pub(in crate::compute) claim: &'a str,
    pub(in crate::compute) is_block: bool,
    /// Node of the guest.
    pub(in crate::compute) node: &'a str,
    /// Name and uid of the launcher's pod.
    pub(in crate::compute) launcher: (&'a str, &'a str),
    /// Name, namespace and uid of the instance.
    pub(in crate::compute) instance: (&'a str, &'a str, &'a str),
}

/// Name of the pod for a volume: the same whenever and by whichever replica it is created, and another one for another
/// claim.
pub(in crate::compute) fn attachment_name(instance: &str, volume: &str, claim: &str) -> String {
    let digest = Sha256::new().chain_update(format!("{instance}/{volume}/{claim}")).finalize();
    let suffix = digest.iter().take(SUFFIX).map(|byte| char::from(BASE32[usize::from(byte % 32)]));
    format!("{PREFIX}{}", suffix.collect::<String>())
}

/// The pod.
pub(in crate::compute) fn attachment(of: &Attachment<'_>, settings: &Settings) -> Value {
    let (name, namespace, uid) = of.instance;
    let mut container = json!({
        "name": "hotplug-disk",
        "image": settings.image,
        "command": ["/usr/bin/container-disk"],
        "securityContext": container_security(),
        "resources": helper_resources(),
    });
    if of.is_block {
        container["volumeDevices"] =
            json!([{"name": "volume", "devicePath": pod::attached_device(of.volume)}]);
    } else {
        container["volumeMounts"] =
            json!([{"name": "volume", "mountPath": pod::attached_directory(of.volume)}]);
    }
    if let Some(policy) = &settings.pull_policy {
        container["imagePullPolicy"] = json!(policy);
    }
    let here = json!({"key": "metadata.name", "operator": "In", "values": [of.node]});
    let mut pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": of.pod,
            "namespace": namespace,
            "labels": {"kubevirt.io": "hotplug-disk"},
            "annotations": {OWNER_NAME: name, OWNER_UID: uid, VOLUME: of.volume},
            "ownerReferences": [{
                "apiVersion": "v1", "kind": "Pod", "name": of.launcher.0, "uid": of.launcher.1,
                "controller": true, "blockOwnerDeletion": true,
            }],
        },
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsUser": QEMU, "runAsGroup": QEMU, "fsGroup": QEMU, "runAsNonRoot": true,
                "fsGroupChangePolicy": "OnRootMismatch", "seccompProfile": {"type": "RuntimeDefault"},
            },
            // It runs where the guest does, on a node with taints too.
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [here]}],
            }}},
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
            "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": of.claim}}],
        },
    });
    pull_with(&mut pod["spec"], settings.pull_secrets.iter());
    pod
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_holds_one_claim_on_the_guests_node() {
        let name = attachment_name("u", "data", "claim");
        assert!(name.starts_with("hp-volume-") && name.len() == 20, "{name}");
        assert_ne!(name, attachment_name("u", "data", "other"));
        let mut of = Attachment {
            pod: &name,
            volume: "data",
            claim: "claim",
            is_block: false,
            node: "node-1",
            launcher: ("virt-launcher-vm-x", "p"),
            instance: ("vm", "n", "u"),
        };
        let pod = attachment(&of, &Settings::default());
        assert_eq!(pod["metadata"]["labels"]["kubevirt.io"], "hotplug-disk");
        assert_eq!(pod["metadata"]["ownerReferences"][0]["uid"], "p");
        let container = &pod["spec"]["containers"][0];
        assert_eq!(container["volumeMounts"][0]["mountPath"], "/attached/data");
        assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], true);
        assert_eq!(pod["spec"].get("imagePullSecrets"), None);
        of.is_block = true;
        let login = Settings { pull_secrets: ["login".to_owned()].into(), ..Settings::default() };
        let pod = attachment(&of, &login);
        assert_eq!(pod["spec"]["imagePullSecrets"], json!([{"name": "login"}]));
        assert_eq!(pod["spec"]["containers"][0]["volumeDevices"][0]["devicePath"], "/dev/attached-data");
    }
}
