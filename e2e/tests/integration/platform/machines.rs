//! VMs with the guest of [`guest`], and requests of tests to them.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use e2e::volume::Volume;
use guests::telling;
use serde_json::{Value, json};

use crate::platform::console::Console;
use crate::platform::guest;
use crate::platform::place::{INSTANCES, MACHINES, PLACE};

/// A VM with 64 MiB, one disk from `volume` (without its name), and the pod network by masquerade.
pub(crate) fn machine(name: &str, strategy: &str, volume: &Value) -> Value {
    let mut volume = volume.clone();
    volume["name"] = json!("root");
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": {
            "runStrategy": strategy,
            "template": {"spec": {
                "terminationGracePeriodSeconds": 0,
                "domain": {
                    "memory": {"guest": "64Mi"},
                    "devices": {
                        "disks": [{"name": "root", "disk": {"bus": "virtio"}}],
                        "interfaces": [{"name": "default", "masquerade": {}}],
                    },
                },
                "networks": [{"name": "default", "pod": {}}],
                "volumes": [volume],
            }},
        },
    })
}

/// A VM of the namespace with a claim of its own that holds the guest of [`guest`].
pub(crate) fn create(namespace: &str, name: &str, strategy: &str, grace: u64) -> Volume {
    create_with(namespace, name, strategy, grace, &guest::disk())
}

/// The same with another disk.
pub(crate) fn create_with(namespace: &str, name: &str, strategy: &str, grace: u64, disk: &[u8]) -> Volume {
    let volume = claim(namespace, name, disk);
    let mut vm = machine(name, strategy, &json!({"persistentVolumeClaim": {"claimName": name}}));
    vm["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = json!(grace);
    PLACE.create(MACHINES, namespace, &vm);
    volume
}

/// A VM with a DataVolume of its own in the pool of the CSI driver, filled from a URL.
pub(crate) fn imported(name: &str, url: &str) -> Value {
    let root = format!("{name}-root");
    let mut vm = machine(name, "Always", &json!({"dataVolume": {"name": root}}));
    vm["spec"]["dataVolumeTemplates"] = json!([{
        "metadata": {"name": root},
        "spec": {
            "source": {"http": {"url": url}},
            "storage": {
                "storageClassName": "hostpath-csi",
                "accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "64Mi"}},
            },
        },
    }]);
    vm
}

/// A claim with a disk.
pub(crate) fn claim(namespace: &str, name: &str, disk: &[u8]) -> Volume {
    let size = u64::try_from(disk.len()).unwrap();
    let volume = Volume::filesystem(&PLACE.cluster, namespace, name, size).unwrap();
    let file = volume.path().join("disk.img");
    fs::write(&file, disk).unwrap();
    std::os::unix::fs::chown(&file, Some(107), Some(107)).unwrap();
    volume
}

/// Waits until the VM runs and its guest, which has been started `count` times, answers.
#[track_caller]
pub(crate) fn until_answers(namespace: &str, name: &str, count: u8) {
    let answer = format!("G{count}x");
    PLACE.until(namespace, &format!("{name} answers {answer}"), || {
        let mut console = Console::open(&PLACE, namespace, name).ok()?;
        console.ask(b'x', &answer).ok()
    });
    PLACE.until_status(namespace, name, "Running");
}

/// The page of a guest of `guests::telling` at an address; none, if nothing answers there.
pub(crate) fn page(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.contains(telling::PAGE).then_some(answer)
}

/// Whether a guest of `guests::telling` sends back at an address what it is sent.
pub(crate) fn echoes(address: SocketAddr) -> bool {
    let Ok(mut stream) = TcpStream::connect_timeout(&address, Duration::from_secs(5)) else { return false };
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut byte = [0];
    stream.write_all(b"x").is_ok() && stream.read_exact(&mut byte).is_ok() && byte == *b"x"
}

/// The address of the guest's network card.
pub(crate) fn mac(namespace: &str, name: &str) -> Value {
    let instance = PLACE.find(INSTANCES, namespace, name).unwrap();
    let mac = instance.pointer("/spec/domain/devices/interfaces/0/macAddress").unwrap().clone();
    assert!(mac.is_string(), "{mac}");
    mac
}

/// A restricted pod that has claims, each mounted in a folder of its name, and sleeps.
pub(crate) fn user(name: &str, claims: &[&str]) -> Value {
    let volume = |claim: &&str| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}});
    let mount = |claim: &&str| json!({"name": claim, "mountPath": format!("/{claim}")});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 107, "fsGroup": 107, "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": "main", "image": e2e::node::BUSYBOX, "command": ["sleep", "100000"],
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                "volumeMounts": claims.iter().map(mount).collect::<Vec<_>>(),
            }],
            "volumes": claims.iter().map(volume).collect::<Vec<_>>(),
        },
    })
}
