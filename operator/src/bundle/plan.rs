//! The content of a support bundle. Pure.

use std::path::PathBuf;

use cluster::Resource;
use serde_json::Value;

use super::exec;

/// Pods of guests, and of imports, uploads and clones, by label.
pub(super) const WORKERS: [&str; 2] = [
    "kubevirt.io in (virt-launcher,hotplug-disk)",
    "cdi.kubevirt.io in (importer,cdi-upload-server,cdi-clone-source)",
];
/// Installed objects of kinds that others make too.
const INSTALLED: &str = "app.kubernetes.io/part-of=ferrovirt";

/// Bytes of QEMU's log.
const QEMU_LOG_BYTES: &str = "1048576";
/// ControllerRevisions of instance types and preferences.
const REVISIONS: &str = "instancetype.kubevirt.io/object-uid";
/// Container of the node agent, and value of its pods' label `kubevirt.io`.
const AGENT: &str = "virt-handler";

/// Objects that are listed.
#[derive(Debug)]
pub(super) struct Collection {
    /// Plural and group, as the name of their directory.
    pub(super) name: &'static str,
    pub(super) resource: Resource,
    /// Labels of the objects; empty for all of them.
    pub(super) labels: &'static str,
}

const fn namespaced(group: &'static str, version: &'static str, plural: &'static str) -> Collection {
    Collection { name: plural, resource: Resource::namespaced(group, version, plural), labels: "" }
}

const fn of_cluster(group: &'static str, version: &'static str, plural: &'static str) -> Collection {
    Collection { name: plural, resource: Resource::cluster(group, version, plural), labels: "" }
}

/// Objects collected in all namespaces. Secrets and ConfigMaps of users are not.
pub(super) fn everywhere() -> Vec<Collection> {
    let mut all: Vec<Collection> = api::definition::ALL
        .iter()
        .filter_map(|one| {
            let version = one.versions.first().copied()?;
            let resource = if one.namespaced {
                Resource::namespaced(one.group, version, one.plural)
            } else {
                Resource::cluster(one.group, version, one.plural)
            };
            Some(Collection { name: one.plural, resource, labels: "" })
        })
        .collect();
    all.extend([
        of_cluster("", "v1", "nodes"),
        of_cluster("", "v1", "namespaces"),
        of_cluster("", "v1", "persistentvolumes"),
        namespaced("", "v1", "persistentvolumeclaims"),
        namespaced("", "v1", "events"),
        of_cluster("storage.k8s.io", "v1", "storageclasses"),
        of_cluster("storage.k8s.io", "v1", "csidrivers"),
        of_cluster("storage.k8s.io", "v1", "csinodes"),
        of_cluster("apiregistration.k8s.io", "v1", "apiservices"),
        of_cluster("admissionregistration.k8s.io", "v1", "mutatingwebhookconfigurations"),
        of_cluster("admissionregistration.k8s.io", "v1", "validatingwebhookconfigurations"),
        of_cluster("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies"),
        of_cluster("admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings"),
        of_cluster("scheduling.k8s.io", "v1", "priorityclasses"),
        of_cluster("storage.k8s.io", "v1", "volumeattachments"),
        Collection { labels: INSTALLED, ..of_cluster("rbac.authorization.k8s.io", "v1", "clusterroles") },
        Collection {
            labels: INSTALLED,
            ..of_cluster("rbac.authorization.k8s.io", "v1", "clusterrolebindings")
        },
        Collection { labels: INSTALLED, ..of_cluster("flowcontrol.apiserver.k8s.io", "v1", "flowschemas") },
        Collection { labels: REVISIONS, ..namespaced("apps", "v1", "controllerrevisions") },
        namespaced("", "v1", "resourcequotas"),
        namespaced("storage.k8s.io", "v1", "csistoragecapacities"),
        namespaced("snapshot.storage.k8s.io", "v1", "volumesnapshots"),
        of_cluster("snapshot.storage.k8s.io", "v1", "volumesnapshotclasses"),
        of_cluster("snapshot.storage.k8s.io", "v1", "volumesnapshotcontents"),
        namespaced("groupsnapshot.storage.k8s.io", "v1beta2", "volumegroupsnapshots"),
        of_cluster("groupsnapshot.storage.k8s.io", "v1beta2", "volumegroupsnapshotcontents"),
    ]);
    all.extend(WORKERS.map(|labels| Collection { labels, ..namespaced("", "v1", "pods") }));
    all
}

/// Objects collected in the platform's namespace.
pub(super) fn of_platform() -> Vec<Collection> {
    vec![
        namespaced("", "v1", "pods"),
        namespaced("", "v1", "services"),
        namespaced("", "v1", "configmaps"),
        namespaced("", "v1", "serviceaccounts"),
        namespaced("apps", "v1", "deployments"),
        namespaced("apps", "v1", "daemonsets"),
        namespaced("apps", "v1", "replicasets"),
        namespaced("batch", "v1", "jobs"),
        namespaced("coordination.k8s.io", "v1", "leases"),
        namespaced("discovery.k8s.io", "v1", "endpointslices"),
        namespaced("monitoring.coreos.com", "v1", "prometheusrules"),
        namespaced("monitoring.coreos.com", "v1", "servicemonitors"),
        namespaced("networking.k8s.io", "v1", "ingresses"),
        namespaced("networking.k8s.io", "v1", "networkpolicies"),
        namespaced("policy", "v1", "poddisruptionbudgets"),
        namespaced("rbac.authorization.k8s.io", "v1", "roles"),
        namespaced("rbac.authorization.k8s.io", "v1", "rolebindings"),
    ]
}

/// File of an object, below the bundle's directory.
pub(super) fn path(collection: &str, object: &Value) -> PathBuf {
    let metadata = &object["metadata"];
    let name = file_name(metadata["name"].as_str().unwrap_or("unnamed"));
    let base = match metadata["namespace"].as_str() {
        Some(namespace) => PathBuf::from("namespaces").join(file_name(namespace)),
        None => PathBuf::from("cluster"),
    };
    base.join(collection).join(format!("{name}.yaml"))
}

/// A name as part of a path: names of RBAC objects may have any characters.
fn file_name(name: &str) -> String {
    let keep = |c: char| if c.is_ascii_alphanumeric() || "-_.:".contains(c) { c } else { '_' };
    let name: String = name.chars().map(keep).collect();
    if name.starts_with('.') { format!("_{name}") } else { name }
}

/// Directory of a pod's files.
fn of_pod(namespace: &str, name: &str) -> PathBuf {
    PathBuf::from("namespaces").join(file_name(namespace)).join("pods").join(file_name(name))
}

/// API paths and files of the logs of a pod's containers, those before the last restart too.
pub(super) fn logs(pod: &Value, bytes: u32) -> Vec<(String, PathBuf)> {
    let metadata = &pod["metadata"];
    let (Some(namespace), Some(name)) = (metadata["namespace"].as_str(), metadata["name"].as_str()) else {
        return Vec::new();
    };
    let spec = &pod["spec"];
    let containers = [&spec["initContainers"], &spec["containers"]];
    let containers = containers.into_iter().filter_map(Value::as_array).flatten();
    let directory = of_pod(namespace, name);
    let mut all = Vec::new();
    for container in containers.filter_map(|one| one["name"].as_str()) {
        let base = format!(
            "/api/v1/namespaces/{namespace}/pods/{name}/log?container={container}&limitBytes={bytes}"
        );
        all.push((base.clone(), directory.join(format!("{container}.log"))));
        all.push((format!("{base}&previous=true"), directory.join(format!("{container}.previous.log"))));
    }
    all
}

/// API paths and files of what the launcher of a guest that runs reports: its domain, as libvirt has it, its counters,
/// and the end of QEMU's log.
pub(super) fn domain(pod: &Value) -> Vec<(String, PathBuf)> {
    let metadata = &pod["metadata"];
    let (Some(namespace), Some(name), Some(domain)) = (
        metadata["namespace"].as_str(),
        metadata["name"].as_str(),
        metadata["annotations"]["kubevirt.io/domain"].as_str(),
    ) else {
        return Vec::new();
    };
    if pod["status"]["phase"] != "Running" || metadata["labels"]["kubevirt.io"] != "virt-launcher" {
        return Vec::new();
    }
    let directory = of_pod(namespace, name);
    let domain = format!("{namespace}_{domain}");
    let of = |verb: &str| {
        let path = exec::path(namespace, name, "compute", &["virsh", verb, &domain]);
        (path, directory.join(format!("virsh-{verb}.txt")))
    };
    let log = format!("{}/libvirt/qemu/log/{domain}.log", virt::pod::PRIVATE);
    let log = exec::path(namespace, name, "compute", &["tail", "-c", QEMU_LOG_BYTES, &log]);
    vec![of("dumpxml"), of("domstats"), (log, directory.join("qemu.log"))]
}

/// API path and file of the network of a node, as its agent sees it.
pub(super) fn network(pod: &Value) -> Option<(String, PathBuf)> {
    let metadata = &pod["metadata"];
    let (namespace, name) = (metadata["namespace"].as_str()?, metadata["name"].as_str()?);
    let node = pod["spec"]["nodeName"].as_str()?;
    if pod["status"]["phase"] != "Running" || metadata["labels"]["kubevirt.io"] != AGENT {
        return None;
    }
    let path = exec::path(namespace, name, AGENT, &["virt-agent", "--show-network"]);
    Some((path, PathBuf::from("nodes").join(file_name(node)).join("network.json")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[test]
    fn every_kind_of_ours_is_collected_and_no_secret() {
        let all = everywhere();
        let names: BTreeSet<&str> = all.iter().chain(&of_platform()).map(|one| one.name).collect();
        for definition in api::definition::ALL {
            assert!(names.contains(definition.plural), "{}", definition.plural);
        }
        // The sizes of guests, limits that keep them from starting, and the way of uploads into the cluster.
        for name in ["controllerrevisions", "resourcequotas", "ingresses"] {
            assert!(names.contains(name), "{name}");
        }
        assert!(!names.contains("secrets") && all.iter().all(|one| one.name != "configmaps"));
    }

    #[test]
    fn every_kind_that_is_installed_is_collected() {
        // Their content is that of other collections, or large and the same in every cluster.
        const LEFT_OUT: [&str; 3] = ["Namespace", "CustomResourceDefinition", "Secret"];
        let all: Vec<Collection> = everywhere().into_iter().chain(of_platform()).collect();
        for object in crate::install::manifests(&crate::install::Settings::default()) {
            let kind = object["kind"].as_str().unwrap().to_owned();
            let ends = |plural: &str| {
                [
                    format!("{}s", kind.to_lowercase()),
                    kind.to_lowercase().replace("policy", "policies"),
                    format!("{}es", kind.to_lowercase()),
                ]
                .contains(&plural.to_owned())
            };
            let found = all.iter().any(|one| ends(one.name));
            assert!(found || LEFT_OUT.contains(&kind.as_str()), "{kind}");
        }
    }

    #[test]
    fn workers_have_the_labels_of_their_pods() {
        use crate::storage::names;
        for (label, value) in [
            (names::WORKER, names::IMPORTER),
            (names::WORKER, names::UPLOAD_SERVER),
            (names::WORKER, names::CLONE_SOURCE_POD),
            ("kubevirt.io", "virt-launcher"),
        ] {
            let named = |one: &&str| one.starts_with(&format!("{label} in (")) && one.contains(value);
            assert!(WORKERS.iter().any(named), "{label}={value}");
        }
        let installed = crate::install::manifests(&crate::install::Settings::default());
        let (label, value) = INSTALLED.split_once('=').unwrap();
        for object in installed.iter().filter(|one| one["kind"].as_str().unwrap().starts_with("ClusterRole"))
        {
            assert_eq!(object["metadata"]["labels"][label], value, "{}", object["metadata"]["name"]);
        }
    }

    #[test]
    fn guests_that_run_are_asked_for_their_domain() {
        let pod = |phase: &str, label: &str| {
            json!({
                "metadata": {
                    "namespace": "ns",
                    "name": "virt-launcher-vm-x",
                    "labels": {"kubevirt.io": label},
                    "annotations": {"kubevirt.io/domain": "vm"},
                },
                "status": {"phase": phase},
            })
        };
        let all = domain(&pod("Running", "virt-launcher"));
        let (path, file) = &all[0];
        assert_eq!(
            path,
            "/api/v1/namespaces/ns/pods/virt-launcher-vm-x/exec?container=compute&stdout=true&stderr=true\
             &command=virsh&command=dumpxml&command=ns_vm"
        );
        assert_eq!(file, &PathBuf::from("namespaces/ns/pods/virt-launcher-vm-x/virsh-dumpxml.txt"));
        assert_eq!(all.len(), 3);
        let (path, file) = &all[2];
        let command = "&command=tail&command=-c&command=1048576\
                       &command=/var/run/kubevirt-private/libvirt/qemu/log/ns_vm.log";
        assert!(path.ends_with(command), "{path}");
        assert!(file.ends_with("virt-launcher-vm-x/qemu.log"), "{}", file.display());
        assert!(domain(&pod("Succeeded", "virt-launcher")).is_empty());
        assert!(domain(&pod("Running", "hotplug-disk")).is_empty());
    }

    #[test]
    fn agents_that_run_are_asked_for_the_network_of_their_node() {
        let installed = crate::install::manifests(&crate::install::Settings::default());
        let set = installed.iter().find(|one| one["kind"] == "DaemonSet").unwrap();
        let template = &set["spec"]["template"];
        let containers = template["spec"]["containers"].as_array().unwrap();
        assert!(containers.iter().any(|one| one["name"] == AGENT), "{containers:?}");
        let pod = |phase: &str, node: Option<&str>| {
            json!({
                "metadata": {"namespace": "ns", "name": "virt-handler-x", "labels": template["metadata"]["labels"]},
                "spec": {"nodeName": node},
                "status": {"phase": phase},
            })
        };
        let (path, file) = network(&pod("Running", Some("node1"))).unwrap();
        assert_eq!(
            path,
            "/api/v1/namespaces/ns/pods/virt-handler-x/exec?container=virt-handler&stdout=true&stderr=true\
             &command=virt-agent&command=--show-network"
        );
        assert_eq!(file, PathBuf::from("nodes/node1/network.json"));
        assert_eq!(network(&pod("Pending", Some("node1"))), None);
        assert_eq!(network(&pod("Running", None)), None);
    }

    #[test]
    fn files_stay_below_the_directory() {
        let of = |namespace: Option<&str>, name: &str| {
            let metadata = json!({"name": name, "namespace": namespace});
            path("pods", &json!({"metadata": metadata}))
        };
        assert_eq!(of(Some("a"), "b"), Path::new("namespaces/a/pods/b.yaml"));
        assert_eq!(of(None, "x:y/../z"), Path::new("cluster/pods/x:y_.._z.yaml"));
        assert_eq!(of(Some(".."), "."), Path::new("namespaces/_../pods/_..yaml"));
    }

    #[test]
    fn logs_of_all_containers_are_asked_for() {
        let pod = json!({"metadata": {"name": "p", "namespace": "n"},
            "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c"}]}});
        let all = logs(&pod, 5);
        assert_eq!(all.len(), 4);
        assert_eq!(all[3].0, "/api/v1/namespaces/n/pods/p/log?container=c&limitBytes=5&previous=true");
        assert_eq!(all[3].1, Path::new("namespaces/n/pods/p/c.previous.log"));
    }
}
