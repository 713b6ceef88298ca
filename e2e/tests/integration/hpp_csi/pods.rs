//! Claims and the pods that use them.

use std::fs;

use e2e::storage::DRIVER;
use serde_json::json;

use crate::hpp_csi::space::{Space, Volume, in_pool, until};
use crate::hpp_csi::{CLASS, CLUSTER, together};

#[test]
fn a_claim_waits_for_its_pod_and_is_what_was_asked_for() {
    let _driver = together();
    let space = Space::new("binds");
    space.claim("data", 1024, &json!({}));
    until("the claim waits", || {
        space.events("data").iter().any(|said| said.contains("waiting for first consumer")).then_some(())
    });
    space.pod("writer", "echo hello >/data/file; stat -c '%g %a' /data", &[Volume::Files("data")]);
    space.running("writer");
    let volume = space.bound("data");
    let csi = &volume["spec"]["csi"];
    assert_eq!(csi["driver"], DRIVER);
    assert_eq!(csi["volumeHandle"], volume["metadata"]["name"], "the volume is called as it was asked for");
    assert_eq!(csi["fsType"], "xfs");
    assert_eq!(csi["volumeAttributes"]["storagePool"], "legacy");
    assert_eq!(csi["volumeAttributes"]["csi.storage.k8s.io/pvc/name"], "data");
    assert!(csi["volumeAttributes"]["storage.kubernetes.io/csiProvisionerIdentity"].is_string());
    assert_eq!(volume["spec"]["capacity"]["storage"], "1Gi", "not the size of the disk");
    let term = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!(term["key"], "topology.hostpath.csi/node");
    assert_eq!(term["values"], json!(["node1"]));

    let folder = space.folder("data");
    until("the file is written", || {
        (fs::read_to_string(folder.join("file")).ok()? == "hello\n").then_some(())
    });
    // Not root, and no recursive chown by the kubelet: the driver gave the folder to the pod's group.
    assert_eq!(space.exec("writer", "stat -c '%g %A' /data | cut -c1-14").trim(), "107 drwxrwsr-x");
    space.delete("Pod", "writer");
    space.delete("PersistentVolumeClaim", "data");
    until("the folder is gone", || (!folder.exists()).then_some(()));
}

#[test]
fn a_claim_for_one_pod_is_refused_to_others() {
    let _driver = together();
    let space = Space::new("one-pod");
    space.claim("data", 100, &json!({"accessModes": ["ReadWriteOncePod"]}));
    space.pod("first", "echo first >/data/file", &[Volume::Files("data")]);
    space.running("first");
    // By the scheduler, and by the kubelet where no scheduler was asked.
    space.pod("second", "echo second >/data/file", &[Volume::Files("data")]);
    space.pod_on("placed", Some("node1"), "echo placed >/data/file", &[Volume::Files("data")]);
    for (pod, by) in [("second", "FailedScheduling"), ("placed", "FailedMount")] {
        until(&format!("{pod} is refused"), || {
            let refused = |said: &String| said.starts_with(by) && said.contains("ReadWriteOncePod");
            space.events(pod).iter().any(refused).then_some(())
        });
        assert_eq!(space.get("Pod", pod).unwrap()["status"]["phase"], "Pending");
    }
    assert_eq!(fs::read_to_string(space.folder("data").join("file")).unwrap(), "first\n");
    space.delete("Pod", "placed");
    space.delete("Pod", "first");
    space.running("second");
}

#[test]
fn volumes_of_a_pod_go_with_it() {
    let _driver = together();
    let space = Space::new("ephemeral");
    let template = json!({"ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "storageClassName": CLASS, "resources": {"requests": {"storage": "50Mi"}},
    }}}});
    let inline = json!({"csi": {"driver": DRIVER, "volumeAttributes": {"size": "20Mi"}}});
    let script = "echo generic >/generic/file; echo inline >/inline/file";
    space.pod("pod", script, &[Volume::Other("generic", template), Volume::Other("inline", inline)]);
    space.running("pod");
    let generic = space.folder("pod-generic");
    until("the generic one is written", || {
        (fs::read_to_string(generic.join("file")).ok()? == "generic\n").then_some(())
    });
    let inline = || -> Vec<String> {
        let names =
            fs::read_dir(in_pool("")).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("csi-")).collect()
    };
    let [name] = <[String; 1]>::try_from(inline()).unwrap();
    until("the inline one is written", || {
        (fs::read_to_string(in_pool(&name).join("file")).ok()? == "inline\n").then_some(())
    });
    space.delete("Pod", "pod");
    until("both are gone", || (inline().is_empty() && !generic.exists()).then_some(()));
}

#[test]
fn a_claim_grows_while_its_pod_runs() {
    let _driver = together();
    let space = Space::new("expand");
    space.claim("files", 100, &json!({}));
    space.claim("disk", 100, &json!({"volumeMode": "Block"}));
    space.pod("user", "echo before >/files/file", &[Volume::Files("files"), Volume::Device("disk")]);
    space.running("user");
    let size = || space.exec("user", "blockdev --getsize64 /dev/disk").trim().parse::<u64>().unwrap();
    assert_eq!(size(), 100 * crate::hpp_csi::MIB);
    for claim in ["files", "disk"] {
        let larger = json!({"spec": {"resources": {"requests": {"storage": "300Mi"}}}});
        space.patch("PersistentVolumeClaim", claim, &larger);
    }
    for claim in ["files", "disk"] {
        until(&format!("{claim} has grown"), || {
            let claim = space.get("PersistentVolumeClaim", claim)?;
            (claim["status"]["capacity"]["storage"] == "300Mi").then_some(())
        });
    }
    assert_eq!(size(), 300 * crate::hpp_csi::MIB, "the pod's device, without a restart");
    let restarts = &space.get("Pod", "user").unwrap()["status"]["containerStatuses"][0]["restartCount"];
    assert_eq!(*restarts, json!(0));
}

/// RecoverVolumeExpansionFailure: the API server lets a claim ask for less again only while no driver may still work on the
/// larger size.
#[test]
fn a_claim_that_asked_for_too_much_is_reduced_and_grows_to_what_there_is() {
    let _driver = together();
    let space = Space::new("reduced");
    space.claim("files", 100, &json!({}));
    space.claim("disk", 100, &json!({"volumeMode": "Block"}));
    space.pod("user", "echo before >/files/file", &[Volume::Files("files"), Volume::Device("disk")]);
    space.running("user");
    let ask = |claim: &str, size: &str| {
        let spec = json!({"spec": {"resources": {"requests": {"storage": size}}}});
        space.patch("PersistentVolumeClaim", claim, &spec);
    };
    let claims = ["files", "disk"];
    claims.iter().for_each(|claim| ask(claim, "900Gi"));
    for claim in claims {
        until(&format!("the expansion of {claim} is infeasible"), || {
            let status = &space.get("PersistentVolumeClaim", claim)?["status"];
            let infeasible = status["allocatedResourceStatuses"]["storage"] == "ControllerResizeInfeasible";
            infeasible.then(|| assert_eq!(status["capacity"]["storage"], "100Mi", "{claim}"))
        });
    }
    claims.iter().for_each(|claim| ask(claim, "300Mi"));
    for claim in claims {
        until(&format!("{claim} has grown"), || {
            let status = &space.get("PersistentVolumeClaim", claim)?["status"];
            let done = status["capacity"]["storage"] == "300Mi"
                && status["allocatedResourceStatuses"].is_null()
                && status["conditions"].is_null();
            done.then(|| assert_eq!(status["allocatedResources"]["storage"], "300Mi", "{claim}"))
        });
        let volume = space.bound(claim);
        assert_eq!(volume["spec"]["capacity"]["storage"], "300Mi", "{claim}");
    }
    let size = space.exec("user", "blockdev --getsize64 /dev/disk");
    assert_eq!(size.trim().parse::<u64>().unwrap(), 300 * crate::hpp_csi::MIB);
    assert_eq!(space.exec("user", "echo after >>/files/file; cat /files/file"), "before\nafter\n");
}

/// Prometheus and eviction see volumes by these.
#[test]
fn the_kubelet_reports_the_size_of_a_mounted_volume() {
    let _shared = together();
    let space = Space::new("measured");
    space.claim("disk", 512, &json!({}));
    space.pod("user", "true", &[Volume::Files("disk")]);
    space.running("user");
    let node = CLUSTER.place().node_name();
    let metric = |name: &str| {
        let path = format!("/api/v1/nodes/{node}/proxy/metrics");
        let page = CLUSTER.kubectl().args(["get", "--raw", &path]).output().unwrap().stdout;
        let page = String::from_utf8_lossy(&page).into_owned();
        let line =
            page.lines().find(|line| line.starts_with(name) && line.contains("namespace=\"measured\""))?;
        line.rsplit_once(' ')?.1.parse::<f64>().ok()
    };
    let size = until("the volume's size is reported", || metric("kubelet_volume_stats_capacity_bytes"));
    let mib = f64::from(1 << 20);
    assert!((384.0 * mib..=512.0 * mib).contains(&size), "{size}");
    assert!(metric("kubelet_volume_stats_available_bytes").is_some_and(|free| free <= size));
}
