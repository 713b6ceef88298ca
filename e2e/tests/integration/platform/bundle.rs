//! `operator support-bundle`: the objects and logs that it collects, and no content of a Secret.

use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use cluster::Resource;
use serde_json::json;

use crate::platform::machines::machine;
use crate::platform::place::{MACHINES, PLACE, PODS};

const SECRETS: Resource = Resource::namespaced("", "v1", "secrets");
const PLATFORM: &str = operator::defaults::NAMESPACE;

/// All files below a directory.
fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files(&path, found) } else { found.push(path) }
    }
}

#[test]
fn a_support_bundle_has_objects_and_logs_of_transfers_and_no_content_of_a_secret() {
    const PASSWORD: &str = "planted-password-7h2k9q";
    const WORD: &str = "--planted-word";
    let namespace = "support-bundle";
    PLACE.namespace(namespace);
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "planted"},
        "stringData": {"password": PASSWORD}});
    for place in [namespace, PLATFORM] {
        PLACE.create(SECRETS, place, &secret);
    }
    // An importer that names its unknown argument in its log.
    let variable = json!({"name": "PASSWORD",
        "valueFrom": {"secretKeyRef": {"name": "planted", "key": "password"}}});
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "importer-planted", "labels": {"cdi.kubevirt.io": "importer"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": "importer",
                "image": "localhost/ferrovirt:importer",
                "imagePullPolicy": "Never",
                "args": [WORD],
                "env": [variable],
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                    "runAsNonRoot": true,
                    "runAsUser": 107,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
            }],
        },
    });
    PLACE.create(PODS, namespace, &pod);
    PLACE.create(MACHINES, namespace, &machine("vm", "Always", &json!({"emptyDisk": {"capacity": "1Mi"}})));
    PLACE.until_status(namespace, "vm", "Running");
    PLACE.until(namespace, "the importer has ended", || {
        let pod = PLACE.find(PODS, namespace, "importer-planted")?;
        let phase = pod["status"]["phase"].as_str()?;
        ["Failed", "Succeeded"].contains(&phase).then_some(())
    });
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("bundle");
    let done = e2e::platform::bundle(&PLACE.cluster, &root).unwrap().output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    println!("{}", String::from_utf8_lossy(&done.stderr).trim());
    PLACE.delete(SECRETS, PLATFORM, "planted");
    let names = PLACE.list(PODS, namespace).into_iter();
    let mut names = names.filter_map(|pod| pod["metadata"]["name"].as_str().map(str::to_owned));
    let launcher = names.find(|name| name.starts_with("virt-launcher-")).unwrap();
    PLACE.remove_namespace(namespace);
    for file in [
        "cluster/clusterroles/kubevirt-controller.yaml",
        "cluster/priorityclasses/kubevirt-cluster-critical.yaml",
        &format!("namespaces/{PLATFORM}/services/virt-api.yaml"),
        &format!("namespaces/{namespace}/pods/importer-planted.yaml"),
    ] {
        assert!(root.join(file).is_file(), "{file}");
    }
    let log = root.join(format!("namespaces/{namespace}/pods/importer-planted/importer.log"));
    let log = fs::read_to_string(&log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
    assert!(log.contains(WORD), "{log}");
    let domain = root.join(format!("namespaces/{namespace}/pods/{launcher}/virsh-dumpxml.txt"));
    let domain = fs::read_to_string(&domain).unwrap_or_else(|error| panic!("{}: {error}", domain.display()));
    assert!(domain.contains(&format!("<name>{namespace}_vm</name>")), "{domain}");
    let log = root.join(format!("namespaces/{namespace}/pods/{launcher}/qemu.log"));
    let log = fs::read_to_string(&log).unwrap_or_else(|error| panic!("{}: {error}", log.display()));
    assert!(log.contains("qemu-system"), "{log}");
    let mut all = Vec::new();
    files(&root, &mut all);
    let networks: Vec<&PathBuf> = all.iter().filter(|file| file.ends_with("network.json")).collect();
    assert!(!networks.is_empty(), "{all:?}");
    let mut guests = Vec::new();
    for file in networks {
        let network: serde_json::Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
        let links = network["links"]["entries"].as_array().unwrap_or_else(|| panic!("{network}"));
        assert!(links.iter().any(|link| link["name"] == "lo"), "{network}");
        let failed = network.as_object().unwrap().values().find(|list| list.get("error").is_some());
        assert_eq!(failed, None);
        guests.extend(network["guests"].as_array().unwrap().iter().map(|guest| guest["namespace"].clone()));
    }
    assert!(guests.contains(&json!(namespace)), "{guests:?}");
    let encoded = BASE64_STANDARD.encode(PASSWORD);
    for file in &all {
        let text = String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned();
        assert!(!text.contains(PASSWORD) && !text.contains(&encoded), "{}", file.display());
    }
    assert!(all.len() > 100, "{} files", all.len());
    assert!(!root.join("errors.txt").exists(), "{}", fs::read_to_string(root.join("errors.txt")).unwrap());
}
