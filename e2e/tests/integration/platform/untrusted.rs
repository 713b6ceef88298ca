//! Guests, users and pods that are not trusted: links, sockets and forged objects of theirs are refused, and nothing
//! outside of their pod is touched.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::Duration;

use e2e::volume::Volume;
use image::archive::{self, Tag};
use image::layer::{self, Member};
use reqwest::{Certificate, Client, Identity, Method};
use serde_json::{Value, json};

use crate::platform::machines::{create, machine, until_answers};
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS};
use crate::platform::streams::Streams;

const PLATFORM: &str = "kubevirt-hyperconverged";

/// Facts of a file that change when it is touched.
fn facts(path: &Path) -> (Vec<u8>, u32, u32, u32, i64) {
    let facts = fs::metadata(path).unwrap();
    (fs::read(path).unwrap(), facts.uid(), facts.gid(), facts.mode(), facts.ctime_nsec())
}

/// Waits until an instance has the reason for which its guest does not run.
#[track_caller]
pub(crate) fn until_refused(namespace: &str, name: &str, why: &str) {
    let text = PLACE.until(namespace, &format!("{name} is refused"), || {
        let instance = PLACE.find(INSTANCES, namespace, name)?;
        let conditions = instance["status"]["conditions"].as_array()?;
        let refused =
            conditions.iter().find(|one| one["type"] == "Synchronized" && one["status"] == "False")?;
        assert_ne!(instance["status"]["phase"], "Running", "{name}");
        Some(refused["message"].as_str()?.to_owned())
    });
    assert!(text.contains(why), "{name}: {text}");
}

#[test]
fn links_in_claims_and_images_are_not_followed() {
    let namespace = "planted";
    PLACE.namespace(namespace);
    let secret = PLACE.cluster.place().path("secret-of-the-node");
    fs::write(&secret, crate::platform::guest::disk()).unwrap();
    let before = facts(&secret);
    let mut volumes = Vec::new();
    let mut plant = |name: &str, plant: &dyn Fn(&Path)| {
        let volume = Volume::filesystem(&PLACE.cluster, namespace, name, 1 << 20).unwrap();
        plant(&volume.path().join("disk.img"));
        volumes.push(volume);
        PLACE.create(
            MACHINES,
            namespace,
            &machine(name, "Always", &json!({"persistentVolumeClaim": {"claimName": name}})),
        );
    };
    plant("link", &|disk| symlink(&secret, disk).unwrap());
    plant("folder", &|disk| fs::create_dir(disk).unwrap());
    plant("socket", &|disk| drop(UnixListener::bind(disk).unwrap()));
    // An image with a link that leads out of it in place of its disk.
    let members = BTreeMap::from([
        ("disk".to_owned(), Member::Folder { mode: 0o755 }),
        ("disk/disk.img".to_owned(), Member::Link { to: "/proc/1/root/etc/passwd".into() }),
    ]);
    let folder = tempfile::tempdir().unwrap();
    let layer = layer::pack(&members, &folder.path().join("layer")).unwrap();
    let tag = Tag {
        repository: "localhost/guests".into(),
        name: "link".into(),
        entrypoint: Vec::new(),
        user: None,
    };
    let file = PLACE.cluster.place().path("planted.tar");
    archive::write(&file, &[layer], &[tag]).unwrap();
    PLACE.cluster.import_images(&file).unwrap();
    PLACE.create(
        MACHINES,
        namespace,
        &machine("image", "Always", &json!({"containerDisk": {"image": "localhost/guests:link"}})),
    );
    until_refused(namespace, "link", "disk.img");
    until_refused(namespace, "folder", "is a directory");
    until_refused(namespace, "socket", "is a socket");
    until_refused(namespace, "image", "volume \"root\" of the guest cannot be used");
    assert_eq!(facts(&secret), before);
    for name in ["link", "folder", "socket", "image"] {
        PLACE.delete(MACHINES, namespace, name);
    }
    PLACE.remove_namespace(namespace);
}

/// The directory of a launcher's socket on the host.
fn private(namespace: &str) -> std::path::PathBuf {
    let pods = PLACE.list(PODS, namespace);
    let pod = pods.iter().find(|pod| pod["status"]["phase"] == "Running").unwrap();
    let uid = pod["metadata"]["uid"].as_str().unwrap();
    let path = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~empty-dir/private");
    PLACE.cluster.node_path(&path).unwrap()
}

#[test]
fn processes_of_launchers_are_not_root_and_have_one_capability_at_most() {
    const NET_BIND_SERVICE: u64 = 1 << 10;
    let namespace = "confined";
    PLACE.namespace(namespace);
    let _volume = create(namespace, "vm", "Always", 0);
    PLACE.until_status(namespace, "vm", "Running");
    let pods = PLACE.list(PODS, namespace);
    let pod = pods[0]["metadata"]["uid"].as_str().unwrap();
    let mut seen = Vec::new();
    for process in e2e::processes::of_pod(pod) {
        // One that has ended.
        let Ok(status) = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())) else {
            continue;
        };
        let words = |name: &'static str| -> Vec<&str> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().collect()
        };
        let name = words("Name:").concat();
        for users in ["Uid:", "Gid:"] {
            assert!(!words(users).contains(&"0"), "{name}: {users} {:?}", words(users));
        }
        for capabilities in ["CapEff:", "CapPrm:", "CapInh:", "CapAmb:"] {
            let held = u64::from_str_radix(words(capabilities)[0], 16).unwrap();
            assert_eq!(held & !NET_BIND_SERVICE, 0, "{name}: {capabilities} {held:x}");
        }
        seen.push(name);
    }
    assert!(seen.iter().any(|name| name.starts_with("qemu")), "{seen:?}");
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}

#[test]
fn socket_that_is_replaced_is_not_connected_to() {
    let namespace = "sockets";
    PLACE.namespace(namespace);
    let _agent = Streams::follow();
    let _volume = create(namespace, "vm", "Always", 0);
    until_answers(namespace, "vm", 1);
    let private = private(namespace);
    let socket = private.join(api::launcher::SOCKET);
    let moved = private.join("moved");
    let outside = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(outside.path().join("outside")).unwrap();
    listener.set_nonblocking(true).unwrap();
    fs::rename(&socket, &moved).unwrap();
    // A link out of the pod, then a socket in its place on which another process than the launcher listens.
    symlink(outside.path().join("outside"), &socket).unwrap();
    PLACE.put(namespace, "virtualmachineinstances/vm/pause").unwrap_err();
    fs::remove_file(&socket).unwrap();
    // The path is longer than a socket's address may be.
    let directory = fs::File::open(&private).unwrap();
    let short = format!("/proc/self/fd/{}/{}", directory.as_raw_fd(), api::launcher::SOCKET);
    let impostor = UnixListener::bind(short).unwrap();
    let error = PLACE.put(namespace, "virtualmachineinstances/vm/pause").unwrap_err();
    println!("a launcher's socket of another process: {}", error.trim());
    assert!(!error.contains("no virt-handler pod"), "{error}");
    assert_eq!(listener.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    drop(impostor);
    fs::remove_file(&socket).unwrap();
    fs::rename(&moved, &socket).unwrap();
    PLACE.put(namespace, "virtualmachineinstances/vm/pause").unwrap();
    PLACE.until_status(namespace, "vm", "Paused");
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}

/// A user of the namespace with the rights of `kubevirt.io:admin` and `edit`.
fn user(namespace: &str) -> String {
    let user = format!("system:serviceaccount:{namespace}:default");
    for role in ["kubevirt.io:admin", "edit"] {
        let name = role.replace([':', '.'], "-");
        let account = format!("--serviceaccount={namespace}:default");
        let role = format!("--clusterrole={role}");
        PLACE.kubectl(&["-n", namespace, "create", "rolebinding", &name, &role, &account]).unwrap();
    }
    user
}

#[test]
fn forged_status_node_and_launcher_are_refused_or_reverted() {
    let namespace = "forged";
    PLACE.namespace(namespace);
    let _volume = create(namespace, "vm", "Always", 0);
    until_answers(namespace, "vm", 1);
    let user = format!("--as={}", user(namespace));
    let before = PLACE.find(INSTANCES, namespace, "vm").unwrap();
    let patch = |who: &[&str], kind: &str, patch: &Value| {
        let patch = patch.to_string();
        let words = [&["-n", namespace, "patch", kind, "vm", "--type=merge", "-p", &patch], who].concat();
        PLACE.kubectl(&words)
    };
    let status =
        json!({"status": {"nodeName": "elsewhere", "phase": "Failed", "activePods": {"p": "elsewhere"}}});
    // The administrator is a user, too: the status is written by the platform alone.
    for who in [&[user.as_str()][..], &[][..]] {
        let _ = patch(who, "vmi", &status);
        let after = PLACE.find(INSTANCES, namespace, "vm").unwrap();
        for field in ["nodeName", "phase", "activePods"] {
            assert_eq!(after["status"][field], before["status"][field], "{who:?}: {field}");
        }
        let label = json!({"metadata": {"labels": {"kubevirt.io/nodeName": "elsewhere"}}});
        patch(who, "vmi", &label).unwrap_err();
        let spec = json!({"spec": {"terminationGracePeriodSeconds": 1}});
        patch(who, "vmi", &spec).unwrap_err();
    }
    let words = ["-n", namespace, "patch", "vm", "vm", "--subresource=status", "--type=merge"];
    let forged = json!({"status": {"printableStatus": "Stopped", "ready": false}}).to_string();
    let words = [&words[..], &["-p", &forged, &user]].concat();
    PLACE.kubectl(&words).unwrap_err();

    // Pods with a launcher's label are made by the operator alone.
    let uid = before["metadata"]["uid"].as_str().unwrap();
    let pod = |labels: Value| {
        json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "impostor", "namespace": namespace, "labels": labels},
            "spec": {
                "securityContext": {"runAsNonRoot": true, "runAsUser": 107, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [{
                    "name": "compute", "image": e2e::node::BUSYBOX, "imagePullPolicy": "Never",
                    "command": ["sleep", "1000"],
                    "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
                }],
            },
        })
    };
    let apply = |object: &Value, who: &[&str]| {
        let file = PLACE.cluster.place().path("impostor.json");
        fs::write(&file, object.to_string()).unwrap();
        PLACE.kubectl(&[&["create", "-f", file.to_str().unwrap()], who].concat())
    };
    let labels =
        json!({"kubevirt.io": "virt-launcher", "kubevirt.io/created-by": uid, "vm.kubevirt.io/name": "vm"});
    for who in [&[user.as_str()][..], &[][..]] {
        let error = apply(&pod(labels.clone()), who).unwrap_err();
        assert!(error.contains("made by the operator only"), "{error}");
    }
    // Without the label the claim to be the VM's is only a claim; the label cannot be added later.
    apply(&pod(json!({"kubevirt.io/created-by": uid, "vm.kubevirt.io/name": "vm"})), &[&user]).unwrap();
    let error =
        PLACE.kubectl(&["-n", namespace, "label", "pod", "impostor", "kubevirt.io=virt-launcher", &user]);
    assert!(error.unwrap_err().contains("made by the operator only"));
    until_answers(namespace, "vm", 1);
    let after = PLACE.find(INSTANCES, namespace, "vm").unwrap();
    assert_eq!(after["status"]["activePods"], before["status"]["activePods"]);
    let impostor = PLACE.find(PODS, namespace, "impostor").unwrap();
    assert!(impostor["metadata"]["deletionTimestamp"].is_null(), "{impostor}");
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}

/// The address of a pod of the platform.
fn address(label: &str) -> String {
    let words = ["-n", PLATFORM, "get", "pods", "-l", label, "-o", "jsonpath={.items[0].status.podIP}"];
    PLACE.kubectl(&words).unwrap()
}

/// A client with the administrator's certificate, or none, that accepts any server.
fn client(certified: bool) -> Client {
    let pki = |name: &str| fs::read(PLACE.cluster.place().path("pki").join(name)).unwrap();
    let builder = Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(20))
        .tls_certs_only([Certificate::from_pem(&pki("ca.crt")).unwrap()])
        .tls_danger_accept_invalid_certs(true);
    let builder = match certified {
        true => {
            let identity = [pki("admin.key"), pki("admin.crt")].concat();
            builder.identity(Identity::from_pem(&identity).unwrap())
        }
        false => builder,
    };
    builder.build().unwrap()
}

#[test]
fn direct_calls_without_the_right_certificate_are_refused() {
    let namespace = "direct";
    PLACE.namespace(namespace);
    let _agent = Streams::follow();
    let _volume = create(namespace, "vm", "Always", 0);
    until_answers(namespace, "vm", 1);
    let (operator, agent) = (address("app=ferrovirt-operator"), address("kubevirt.io=virt-handler"));
    let stop = format!(
        "https://{operator}:8443/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachines/vm/stop"
    );
    let guest = format!("https://{agent}:8186/v1/namespaces/{namespace}/virtualmachineinstances/vm");
    for certified in [false, true] {
        // Made before: it reads files.
        let client = client(certified);
        for (method, url) in [
            (Method::PUT, stop.clone()),
            (Method::PUT, format!("{guest}/pause")),
            (Method::GET, format!("{guest}/console")),
        ] {
            let answer = PLACE.cluster.run(async {
                let request = client.request(method, &url).header("X-Remote-User", "admin");
                request.header("X-Remote-Group", "system:masters").send().await
            });
            // The end of the handshake, or an answer.
            match answer {
                Err(error) => assert!(!error.is_timeout(), "{url}: {error:?}"),
                Ok(answer) => {
                    let code = answer.status().as_u16();
                    assert!([401, 403].contains(&code), "{url}, certificate {certified}: {code}");
                }
            }
        }
    }
    until_answers(namespace, "vm", 1);
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}
