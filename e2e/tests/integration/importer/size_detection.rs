//! `cdi-image-size-detection` in pods as CDI's controller makes them (v1.66, `pkg/controller/datavolume/pvc-clone-controller.go`)
//! before a clone without a size: the image of the importer, the program by its path, the source's claim at /data.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use e2e::volume::Volume;
use serde_json::{Value, json};

use crate::importer::pod::{IMAGE, run};
use crate::importer::{CLUSTER, MIB, namespace};

fn pod(name: &str, volume: &Volume, arguments: &[&str]) -> Value {
    json!({
        "metadata": {
            "name": name,
            "labels": {"app": "containerized-data-importer", "cdi.kubevirt.io": "cdi-clone-source"},
        },
        "spec": {
            "restartPolicy": "OnFailure",
            "securityContext": {"fsGroup": 107},
            "containers": [{
                "name": "size-detection",
                "image": IMAGE,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/usr/bin/cdi-image-size-detection"],
                "args": arguments,
                "resources": {
                    "requests": {"cpu": "100m", "memory": "60M"}, "limits": {"cpu": "750m", "memory": "600M"},
                },
                "volumeMounts": [{"name": "cdi-data-vol", "mountPath": "/data"}],
                "securityContext": {
                    "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"},
                    "allowPrivilegeEscalation": false, "runAsNonRoot": true, "runAsUser": 107,
                },
            }],
            "volumes": [{"name": "cdi-data-vol", "persistentVolumeClaim": {"claimName": volume.claim}}],
        },
    })
}

#[test]
fn virtual_size_of_a_claims_disk_is_the_termination_message() {
    let namespace = namespace("size-detection");
    let volume = Volume::filesystem(&CLUSTER, namespace, "disk", 64 * MIB).unwrap();
    // As an import leaves it.
    let put = |name: &str, format: &str, size: &str| {
        let path = volume.path().join(name);
        let created =
            Command::new("qemu-img").args(["create", "-q", "-f", format]).arg(&path).arg(size).status();
        assert!(created.unwrap().success());
        chown(&path, Some(107), Some(107)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o660)).unwrap();
        path
    };
    put("disk.img", "raw", "48M");
    put("disk.qcow2", "qcow2", "3G");
    fs::write(put("broken", "raw", "0"), b"QFI\xfb\0\0\0\x03 and no more").unwrap();
    for (name, arguments, exit, message) in [
        ("raw", &["-image-path", "/data/disk.img"][..], 0, "50331648"),
        ("qcow2", &["-image-path", "/data/disk.qcow2"], 0, "3221225472"),
        ("none", &[], 1, ""),
        ("broken", &["-image-path", "/data/broken"], 2, ""),
        ("missing", &["-image-path", "/data/missing"], 3, ""),
    ] {
        let ended = run(&CLUSTER, namespace, pod(name, &volume, arguments));
        assert_eq!((ended.exit, ended.message.as_str()), (exit, message), "{name}: {}", ended.log);
        assert!(exit == 0 || !ended.log.is_empty(), "{name}: a failure has a reason");
    }
}
