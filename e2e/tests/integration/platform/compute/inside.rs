//! Fields that end inside the guest: a kernel from an image, the token of a ServiceAccount, fields of the object, keys and
//! passwords through the guest's agent, also changed ones, a TPM with memory that outlives the instance, and the serial console
//! as the log of a container.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use guests::inside;
use serde_json::{Value, json};

use super::{condition, get, instance};
use crate::platform::disks::container_image;
use crate::platform::place::{CLAIMS, EVENTS, INSTANCES, MACHINES, PLACE, PODS, SECRETS};

/// The image with the guest's kernel, made once.
static KERNEL: LazyLock<&str> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let guest = inside::guest(folder.path());
    let (kernel, initrd) = guest.files();
    container_image("kernel", "boot", &[("vmlinuz", kernel), ("initrd", initrd)]);
    "localhost/guests:kernel"
});

/// A VM with that kernel.
pub(super) fn vm() -> Value {
    let by_agent = |secret: &str| json!({"source": {"secret": {"secretName": secret}}});
    let mut keys = by_agent("agent-keys");
    keys["propagationMethod"] = json!({"qemuGuestAgent": {"users": ["ann"]}});
    let mut on_disk = by_agent("disk-keys");
    on_disk["propagationMethod"] = json!({"noCloud": {}});
    let mut passwords = by_agent("passwords");
    passwords["propagationMethod"] = json!({"qemuGuestAgent": {}});
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": {"name": "vm"},
        "spec": {"runStrategy": "Always", "template": {
            "metadata": {"labels": {"tier": "back"}},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "domain": {
                    "memory": {"guest": "256Mi"},
                    "devices": {"autoattachPodInterface": false, "logSerialConsole": true, "disks": [
                        {"name": "token", "disk": {"bus": "virtio"}}, {"name": "labels", "disk": {"bus": "virtio"}},
                        {"name": "init", "disk": {"bus": "virtio"}},
                    ]},
                    "firmware": {"kernelBoot": {
                        "kernelArgs": "mitigations=off no_timer_check quiet console=ttyS0 panic=-1 word=given",
                        "container": {"image": *KERNEL, "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd"},
                    }},
                },
                "accessCredentials": [
                    {"sshPublicKey": keys}, {"sshPublicKey": on_disk}, {"userPassword": passwords},
                ],
                "volumes": [
                    {"name": "token", "serviceAccount": {"serviceAccountName": "reader"}},
                    {"name": "labels", "downwardAPI": {"fields": [
                        {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
                    {"name": "init", "cloudInitNoCloud": {"userData": "#cloud-config\n"}},
                ],
            },
        }},
    })
}

/// The output of the container with the console's log.
fn printed(namespace: &str) -> String {
    let pods = PLACE.list(PODS, namespace);
    let Some(pod) = pods.iter().find_map(|pod| pod["metadata"]["name"].as_str()) else {
        return String::new();
    };
    PLACE.kubectl(&["-n", namespace, "logs", pod, "-c", "guest-console-log"]).unwrap_or_default()
}

/// Waits for an output of the guest; gives all of its output.
#[track_caller]
pub(super) fn until_printed(namespace: &str, wanted: &str) -> String {
    PLACE.until(namespace, &format!("the console's log has {wanted:?}"), || {
        Some(printed(namespace)).filter(|log| log.contains(wanted))
    })
}

/// The inode of the folder with the TPM's memory on its claim, on the node.
fn memory(namespace: &str) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let pod = &PLACE.list(PODS, namespace)[0]["metadata"]["uid"];
    let volumes = format!("/var/lib/kubelet/pods/{}/volumes/kubernetes.io~csi", pod.as_str().unwrap());
    let volumes = std::fs::read_dir(PLACE.cluster.node_path(&volumes).unwrap()).unwrap();
    let found = volumes.flatten().find_map(|volume| {
        let guests = std::fs::read_dir(volume.path().join("mount/swtpm")).ok()?;
        guests.flatten().find_map(|guest| std::fs::metadata(guest.path().join("tpm2")).ok())
    });
    found.unwrap().ino()
}

#[test]
fn guest_finds_what_it_was_given_and_follows_its_secrets() {
    let namespace = "inside";
    PLACE.namespace(namespace);
    PLACE.kubectl(&["-n", namespace, "create", "serviceaccount", "reader"]).unwrap();
    for (name, key, value) in [
        ("agent-keys", "one", "ssh-ed25519 AAAAfirst ann@host"),
        ("disk-keys", "one", "ssh-ed25519 AAAAdisk disk@host"),
        ("passwords", "ann", "first-word"),
    ] {
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "stringData": {key: value}});
        PLACE.create(SECRETS, namespace, &secret);
    }
    PLACE.create(MACHINES, namespace, &vm());
    let log = until_printed(namespace, inside::TOLD);
    assert!(log.contains("word=given"), "{log}");
    assert!(log.contains("tier=\"back\"") && log.contains("AAAAdisk"), "{log}");
    assert!(log.contains(&format!("/mnt/namespace: {namespace}")), "{log}");
    let token = log.lines().find_map(|line| line.trim_end().strip_prefix("inside: /mnt/token: ")).unwrap();
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    assert_eq!(claims["sub"], format!("system:serviceaccount:{namespace}:reader"));
    let log = until_printed(namespace, "inside: keys end");
    assert!(log.contains("AAAAfirst"), "{log}");
    until_printed(namespace, "inside: password ann:first-word");
    let synchronized = |wanted: &str| {
        PLACE.until(namespace, &format!("AccessCredentialsSynchronized is {wanted}"), || {
            let found = condition(&instance(namespace, "vm"), "AccessCredentialsSynchronized")?;
            (found["status"] == wanted).then_some(())
        });
    };
    synchronized("True");
    PLACE.until(namespace, "the event of its credentials", || {
        let events = PLACE.list(EVENTS, namespace);
        events.iter().any(|event| event["reason"] == "AccessCredentialsSyncSuccess").then_some(())
    });
    // The kubelet brings a changed Secret into the pod when it next looks at it: every minute, or when the pod changes.
    let change = json!({"stringData": {"one": "ssh-ed25519 AAAAsecond ann@host"}}).to_string();
    PLACE
        .kubectl(&["-n", namespace, "patch", "secret", "agent-keys", "--type=merge", "-p", &change])
        .unwrap();
    let pod = PLACE.list(PODS, namespace)[0]["metadata"]["name"].as_str().unwrap().to_owned();
    PLACE.kubectl(&["-n", namespace, "annotate", "pod", &pod, "looked=at"]).unwrap();
    let log = until_printed(namespace, "AAAAsecond");
    let last = log.rsplit("inside: keys begin").next().unwrap();
    assert!(last.contains("AAAAsecond") && !last.contains("AAAAfirst"), "{log}");
    synchronized("True");
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}

#[test]
fn memory_of_a_tpm_outlives_the_instance_on_a_claim_of_the_vm() {
    let namespace = "tpm";
    PLACE.namespace(namespace);
    // The claim is of this class, as disks are that name none.
    let class = ["annotate", "--overwrite", "storageclass", "hostpath-csi"];
    PLACE.kubectl(&[&class[..], &["storageclass.kubevirt.io/is-default-virt-class=true"]].concat()).unwrap();
    let mut machine = vm();
    let spec = &mut machine["spec"]["template"]["spec"];
    spec["domain"]["devices"]["tpm"] = json!({"persistent": true});
    (spec["accessCredentials"], spec["volumes"]) = (json!([]), json!([]));
    spec["domain"]["devices"]["disks"] = json!([]);
    PLACE.create(MACHINES, namespace, &machine);
    let log = until_printed(namespace, inside::TOLD);
    assert!(log.contains("inside: tpm 2"), "{log}");
    let claim = PLACE.list(CLAIMS, namespace)[0]["metadata"].clone();
    assert_eq!(claim["name"], "persistent-state-for-vm");
    assert_eq!(claim["labels"]["persistent-state-for"], "vm");
    let before = memory(namespace);
    let first = instance(namespace, "vm")["metadata"]["uid"].clone();
    PLACE.put(namespace, "virtualmachines/vm/restart").unwrap();
    PLACE.until(namespace, "another instance", || {
        PLACE.find(INSTANCES, namespace, "vm").filter(|one| one["metadata"]["uid"] != first)
    });
    PLACE.until(namespace, "one pod", || (PLACE.list(PODS, namespace).len() == 1).then_some(()));
    let log = until_printed(namespace, inside::TOLD);
    assert!(log.contains("inside: tpm 2"), "{log}");
    let after = &PLACE.list(CLAIMS, namespace)[0]["metadata"]["uid"];
    assert_eq!((after, memory(namespace)), (&claim["uid"], before));
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.until(namespace, "the VM and its claim are gone", || {
        let left = [MACHINES, PODS, CLAIMS].map(|kind| PLACE.list(kind, namespace).len());
        (left == [0; 3]).then_some(())
    });
    PLACE.remove_namespace(namespace);
}

/// How often the guest has written to its disk.
pub(super) fn written(namespace: &str) -> usize {
    printed(namespace).matches("inside: written").count()
}

/// Reports of the guest's agent, as the API has them.
fn reports(namespace: &str) {
    let report = |name: &str| get(namespace, &format!("virtualmachineinstances/vm/{name}")).unwrap();
    let system = report("guestosinfo");
    assert!(system["guestAgentVersion"].as_str().is_some_and(|version| !version.is_empty()), "{system}");
    let users = report("userlist");
    assert!(users["items"].is_array(), "{users}");
    let filesystems = report("filesystemlist");
    let mounted = filesystems["items"].as_array().unwrap().iter().any(|one| one["mountPoint"] == "/data");
    assert!(mounted, "{filesystems}");
}

#[test]
fn a_freeze_ends_by_itself_and_the_agent_reboots_the_guest() {
    let namespace = "frozen";
    PLACE.namespace(namespace);
    let mut machine = vm();
    let spec = &mut machine["spec"]["template"]["spec"];
    spec["accessCredentials"] = json!([]);
    spec["volumes"] = json!([{"name": "data", "emptyDisk": {"capacity": "32Mi"}}]);
    spec["domain"]["devices"]["disks"] =
        json!([{"name": "data", "serial": "data", "disk": {"bus": "virtio"}}]);
    PLACE.create(MACHINES, namespace, &machine);
    until_printed(namespace, "inside: written");
    PLACE.until(namespace, "AgentConnected", || {
        condition(&instance(namespace, "vm"), "AgentConnected").filter(|found| found["status"] == "True")
    });
    reports(namespace);
    let begun = Instant::now();
    let options = json!({"unfreezeTimeout": "8s"});
    PLACE.put_with(namespace, "virtualmachineinstances/vm/freeze", &options).unwrap();
    let status = || instance(namespace, "vm")["status"]["fsFreezeStatus"].clone();
    PLACE.until(namespace, "fsFreezeStatus", || (status() == "frozen").then_some(()));
    // One that is frozen already stays so for the time from now.
    PLACE.put_with(namespace, "virtualmachineinstances/vm/freeze", &options).unwrap();
    let frozen = written(namespace);
    std::thread::sleep(Duration::from_secs(4));
    // The write before the freeze may be printed after it.
    let still = written(namespace);
    assert!(still <= frozen + 1, "{frozen} and {still} writes");
    PLACE.until(namespace, "writes after the freeze", || (written(namespace) > still + 1).then_some(()));
    assert!(begun.elapsed() >= Duration::from_secs(8), "{:?}", begun.elapsed());
    PLACE.until(namespace, "no fsFreezeStatus", || status().is_null().then_some(()));
    let options = json!({"unfreezeTimeout": "5m0s"});
    PLACE.put_with(namespace, "virtualmachineinstances/vm/freeze", &options).unwrap();
    PLACE.until(namespace, "fsFreezeStatus", || (status() == "frozen").then_some(()));
    PLACE.put(namespace, "virtualmachineinstances/vm/unfreeze").unwrap();
    PLACE.until(namespace, "no fsFreezeStatus", || status().is_null().then_some(()));
    let thawed = written(namespace);
    PLACE.until(namespace, "writes after it", || (written(namespace) > thawed + 1).then_some(()));

    let uid = instance(namespace, "vm")["metadata"]["uid"].clone();
    PLACE.put(namespace, "virtualmachineinstances/vm/softreboot").unwrap();
    until_printed(namespace, "inside: shutdown -h -r");
    PLACE.until(namespace, "another boot", || {
        (printed(namespace).matches(inside::TOLD).count() == 2).then_some(())
    });
    assert_eq!(instance(namespace, "vm")["metadata"]["uid"], uid);
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}
