//! `HostPathProvisioner` and the volumes that the node agent makes: the objects of both, and refusals. Not here: the limits of
//! an agent's writes ([`super::own_node`]).

use serde_json::{Value, json};

use crate::platform::own_node;
use crate::platform::place::{CLAIMS, PLACE, PODS};

/// Namespace of the platform.
pub(crate) const PLATFORM: &str = operator::defaults::NAMESPACE;
pub(crate) const DRIVER: &str = "kubevirt.io.hostpath-provisioner";
pub(crate) const OBJECT: &str = "hostpathprovisioner.hostpathprovisioner.kubevirt.io/hostpath-provisioner";

pub(crate) fn get(namespace: &str, object: &str) -> Option<Value> {
    let text = PLACE.kubectl(&["-n", namespace, "get", object, "-o", "json"]).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

/// Applies an object, or with `--dry-run=server` asks whether it would be taken.
pub(crate) fn apply(name: &str, object: &Value, arguments: &[&str]) -> Result<String, String> {
    let file = PLACE.cluster.place().path(&format!("{name}.json"));
    std::fs::write(&file, object.to_string()).unwrap();
    let file = file.display().to_string();
    PLACE.kubectl(&[&["apply", "--server-side", "--force-conflicts", "-f", &file], arguments].concat())
}

#[test]
fn one_object_deploys_the_driver_and_others_are_refused_by_their_fields() {
    let object = PLACE.until(PLATFORM, "HostPathProvisioner is available", || {
        let object = get(PLATFORM, OBJECT)?;
        let conditions = object["status"]["conditions"].as_array()?.clone();
        let is = |kind: &str, status: &str| {
            conditions
                .iter()
                .any(|one| one["type"] == kind && one["status"] == status && one["reason"] == "Complete")
        };
        (is("Available", "True") && is("Progressing", "False") && is("Degraded", "False")).then_some(object)
    });
    assert_eq!(object["status"]["observedVersion"], object["status"]["operatorVersion"]);
    assert_eq!(object["metadata"]["finalizers"], json!(["finalizer.delete.hostpath-provisioner"]));
    let set = get(PLATFORM, "daemonset/hostpath-provisioner-csi").unwrap();
    for made in [&set, &get("", &format!("csidriver/{DRIVER}")).unwrap()] {
        assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], object["metadata"]["uid"]);
        assert_eq!(made["metadata"]["labels"]["k8s-app"], "hostpath-provisioner");
    }
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(pod["containers"].as_array().unwrap().len(), 1, "no sidecars: {pod}");
    assert_eq!(pod["automountServiceAccountToken"], false, "the driver has no credentials");
    for (spec, field) in [
        (json!({}), "spec"),
        (json!({"storagePools": [{"name": "a", "path": "relative"}]}), "spec.storagePools[0].path"),
        (
            json!({"storagePools": [{"name": "a", "path": "/a"}, {"name": "b", "path": "/a/b"}]}),
            "spec.storagePools[1].path",
        ),
        (
            json!({"storagePools": [{"name": "a", "path": "/a"}], "pathConfig": {"path": "/b"}}),
            "spec: pathConfig and storagePools",
        ),
        (json!({"storagePools": [{"name": "A", "path": "/a"}]}), "spec.storagePools[0].name"),
        (
            json!({"storagePools": [{"name": "a", "path": "/a"}], "featureGates": ["Magic"]}),
            "spec.featureGates",
        ),
        (json!({"storagePools": [{"name": "a", "path": "/a", "size": "1Gi"}]}), "size"),
        (
            json!({"storagePools": [{"name": "a", "path": "/a", "pvcTemplate": {}}]}),
            "spec.storagePools[0].pvcTemplate.accessModes",
        ),
    ] {
        let invalid = json!({
            "apiVersion": "hostpathprovisioner.kubevirt.io/v1beta1",
            "kind": "HostPathProvisioner",
            "metadata": {"name": "hostpath-provisioner"},
            "spec": spec,
        });
        let refused = apply("invalid-pools", &invalid, &["--dry-run=server"]).unwrap_err();
        assert!(refused.contains(field), "{field}: {refused}");
    }
    let second = json!({
        "apiVersion": "hostpathprovisioner.kubevirt.io/v1beta1",
        "kind": "HostPathProvisioner",
        "metadata": {"name": "second"},
        "spec": {"pathConfig": {"path": "/second"}},
    });
    let refused = apply("second-pools", &second, &["--dry-run=server"]).unwrap_err();
    assert!(refused.contains("the cluster has the HostPathProvisioner hostpath-provisioner"), "{refused}");
}

pub(crate) fn claim(class: &str, mib: u64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": class},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": class,
            "resources": {"requests": {"storage": format!("{mib}Mi")}},
        },
    })
}

/// A claim and its volume, once it is bound.
#[track_caller]
pub(crate) fn bound(namespace: &str, name: &str) -> (Value, Value) {
    PLACE.until(namespace, &format!("{name} is bound"), || {
        let claim =
            PLACE.find(CLAIMS, namespace, name).filter(|claim| claim["status"]["phase"] == "Bound")?;
        let volume = get("", &format!("pv/{}", claim["spec"]["volumeName"].as_str()?))?;
        Some((claim, volume))
    })
}

/// Bytes that may still be promised to a class, as the scheduler knows.
fn room(class: &str) -> Option<u64> {
    let text = PLACE.kubectl(&["-n", PLATFORM, "get", "csistoragecapacity", "-o", "json"]).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let all = all["items"].as_array().unwrap().clone();
    let mut of: Vec<&Value> = all.iter().filter(|one| one["storageClassName"] == class).collect();
    let one = of.pop()?;
    assert!(of.is_empty(), "one object for each class and node: {all:?}");
    let manager = &one["metadata"]["labels"]["csi.storage.k8s.io/managed-by"];
    assert_eq!(*manager, "external-provisioner-node1");
    Some(api::quantity::bytes(one["capacity"].as_str().unwrap()).unwrap())
}

#[test]
fn the_agent_makes_grows_and_deletes_volumes_of_its_node_only() {
    const GIB: u64 = 1 << 30;
    let namespace = "agent-volumes";
    let class = "agent-at-once";
    PLACE.namespace(namespace);
    let at_once = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": class},
        "provisioner": DRIVER, "volumeBindingMode": "Immediate", "allowVolumeExpansion": true,
        "parameters": {"storagePool": "legacy"},
    });
    apply(class, &at_once, &[]).unwrap();
    PLACE.until(namespace, "the class's room is known", || room(class));
    // Immediate: the operator chooses the node. WaitForFirstConsumer: the scheduler.
    let late = "hostpath-csi";
    for class in [class, late] {
        apply(&format!("claim-{class}"), &claim(class, 1024), &["-n", namespace]).unwrap();
    }
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "user"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": true, "runAsUser": 107, "fsGroup": 107, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{
                "name": "main", "image": e2e::node::BUSYBOX,
                "command": ["sh", "-c", "echo kept >/data/file; exec sleep 100000"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": late}}],
        },
    });
    apply("user-of-a-claim", &pod, &["-n", namespace]).unwrap();
    let mut names = Vec::new();
    for class in [class, late] {
        let (claim, volume) = bound(namespace, class);
        assert_eq!(claim["metadata"]["labels"]["ferrovirt.io/node"], "node1");
        assert_eq!(claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"], "node1");
        assert_eq!(volume["metadata"]["labels"]["ferrovirt.io/node"], "node1");
        assert_eq!(volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"], DRIVER);
        assert_eq!(volume["spec"]["capacity"]["storage"], "1Gi");
        names.push(volume["metadata"]["name"].as_str().unwrap().to_owned());
    }
    PLACE.until(namespace, "the pod runs", || {
        PLACE.find(PODS, namespace, "user").filter(|pod| pod["status"]["phase"] == "Running")
    });
    let before = room(class).unwrap();
    let grow = json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}}).to_string();
    PLACE.kubectl(&["-n", namespace, "patch", "pvc", late, "-p", &grow]).unwrap();
    PLACE.until(namespace, "the claim is larger", || {
        let claim = PLACE.find(CLAIMS, namespace, late)?;
        let status = &claim["status"];
        let done = status["capacity"]["storage"] == "3Gi"
            && status["conditions"].is_null()
            && status["allocatedResourceStatuses"].is_null();
        done.then_some(())
    });
    // Other tests take and give room, too: what this one takes is larger than their changes in this time, or the room is
    // looked at again.
    PLACE.until(namespace, "the room is smaller", || room(class).filter(|now| now + GIB <= before).map(drop));
    own_node::is_all_that_an_agent_writes(namespace, late, &names[1]);
    PLACE.kubectl(&["-n", namespace, "delete", "pod", "user"]).unwrap();
    PLACE.kubectl(&["-n", namespace, "delete", "pvc", "--all"]).unwrap();
    for name in &names {
        PLACE.until(namespace, &format!("{name} is gone"), || {
            get("", &format!("pv/{name}")).is_none().then_some(())
        });
        let folder = PLACE.cluster.node_path(&format!("{}/{name}", e2e::storage::POOL)).unwrap();
        assert!(!folder.exists(), "{}", folder.display());
    }
    PLACE.kubectl(&["delete", "storageclass", class]).unwrap();
    PLACE.until(namespace, "the class has no capacity object", || room(class).is_none().then_some(()));
    PLACE.remove_namespace(namespace);
}
