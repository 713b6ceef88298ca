//! Every request of virtctl to the aggregated API, with its bodies, in an order that leads through the states of a VM: HTTP
//! status, and the words or fields that virtctl and scripts match.
//!
//! Not here: migration, evacuation, export, templates and backup; bytes of streams (`client`, `console`).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use cluster::Resource;
use e2e::volume::Volume;
use http_body_util::BodyExt;
use hyper::Request;
use kube::client::Body;
use serde_json::{Value, json};

use super::{REVISIONS, claim, instance};
use crate::platform::console::Console;
use crate::platform::guest;
use crate::platform::hyperconverged::{OBJECT, alone};
use crate::platform::machines::{machine, until_answers};
use crate::platform::place::{CLAIMS, INSTANCES, MACHINES, PLACE, PODS, TIMEOUT};
use crate::platform::streams::Streams;

const NAMESPACE: &str = "requests";
/// Bytes of a claim that a guest's memory is dumped to: 64 MiB and 100 MiB more, and the filesystem's share.
const DUMP: u64 = 200 << 20;
/// Longest answer that is read.
const MOST: usize = 8 << 20;

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Get,
    Put,
    /// A GET that asks for a WebSocket.
    Stream,
}
use How::{Get, Put, Stream};

/// A request below the namespace, its body, the status and what the answer contains.
type Row<'a> = (How, &'a str, Value, u16, &'a str);

/// Sends a request; the status and the body of the answer. The API server closes the connection of a refused upgrade, and
/// the client may just have chosen it for the next request: that one is sent again.
fn send(how: How, path: &str, body: &Value) -> (u16, Vec<u8>) {
    let closed = |error: &kube::Error| format!("{error:?}").contains("IncompleteMessage");
    let answer = try_send(how, path, body);
    match answer {
        Err(error) if closed(&error) => try_send(how, path, body).unwrap(),
        answer => answer.unwrap(),
    }
}

fn try_send(how: How, path: &str, body: &Value) -> kube::Result<(u16, Vec<u8>)> {
    let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    let mut request = match how {
        Get | Stream => Request::get(path),
        Put => Request::put(path),
    };
    if how == Stream {
        request = request
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", "plain.kubevirt.io");
    }
    let client = PLACE.cluster.client();
    PLACE.cluster.run(async {
        let answer = client.send(request.body(Body::from(bytes)).unwrap()).await?;
        let code = answer.status().as_u16();
        if code == 101 {
            return Ok((code, Vec::new()));
        }
        let body = http_body_util::Limited::new(answer.into_body(), MOST).collect().await.unwrap();
        Ok((code, body.to_bytes().to_vec()))
    })
}

/// The path of a request: of the group where it begins with a slash, else of the namespace; `vm` and `vmi` for short.
fn whole(path: &str) -> String {
    let group = "/apis/subresources.kubevirt.io";
    if let Some(rest) = path.strip_prefix('/') {
        return format!("{group}/{rest}").trim_end_matches('/').to_owned();
    }
    let rest = match path.split_once('/') {
        Some(("vm", rest)) => format!("virtualmachines/{rest}"),
        Some(("vmi", rest)) => format!("virtualmachineinstances/{rest}"),
        Some(_) | None => path.to_owned(),
    };
    format!("{group}/v1/namespaces/{NAMESPACE}/{rest}")
}

/// Sends requests; refusals are Status objects with the same code.
#[track_caller]
fn check(rows: &[Row<'_>]) {
    for (how, path, body, code, words) in rows {
        let whole = whole(path);
        let (found, answer) = send(*how, &whole, body);
        let text = String::from_utf8_lossy(&answer);
        assert_eq!(found, *code, "{how:?} {path} {body}: {text}");
        assert!(text.contains(words), "{how:?} {path} {body}: {words:?} is not in {text}");
        if found >= 400 {
            let status: Value = serde_json::from_slice(&answer).unwrap();
            assert_eq!(
                (&status["kind"], &status["code"]),
                (&json!("Status"), &json!(code)),
                "{path}: {text}"
            );
        }
    }
}

/// `status.memoryDumpRequest` of the VM once it is in a phase.
#[track_caller]
fn until_dump(phase: &str) -> Value {
    PLACE.until(NAMESPACE, &format!("the memory dump is {phase}"), || {
        let vm = PLACE.find(MACHINES, NAMESPACE, "vm").unwrap();
        Some(vm["status"]["memoryDumpRequest"].clone()).filter(|request| request["phase"] == phase)
    })
}

fn none() -> Value {
    Value::Null
}

/// The body that virtctl sends for a claim.
fn volume(name: &str) -> Value {
    json!({"name": name, "disk": {"disk": {"bus": "scsi"}},
        "volumeSource": {"persistentVolumeClaim": {"claimName": name, "hotpluggable": true}}})
}

fn of_the_group() {
    for version in ["v1", "v1alpha3"] {
        check(&[
            (Get, "/", none(), 200, "\"preferredVersion\""),
            (Get, &format!("/{version}/version"), none(), 200, "\"gitVersion\":\"v1."),
            (Get, &format!("/{version}/guestfs"), none(), 200, "\"registry\""),
            (Get, &format!("/{version}/healthz"), none(), 200, "ok"),
            (Get, &format!("/{version}/start-cluster-profiler"), none(), 403, "feature gate"),
            (Get, &format!("/{version}"), none(), 200, "virtualmachineinstances/vnc/screenshot"),
        ]);
        let described = format!("/openapi/v3/apis/subresources.kubevirt.io/{version}");
        let described = PLACE.kubectl(&["get", "--raw", &described]).unwrap();
        let described: Value = serde_json::from_str(&described).unwrap();
        let base = format!("/apis/subresources.kubevirt.io/{version}/namespaces/{{namespace}}");
        for (path, method) in [
            ("virtualmachines/{name}/start", "put"),
            ("virtualmachineinstances/{name}/console", "get"),
            ("virtualmachineinstances/{name}/portforward/{port}/{protocol}", "get"),
            ("expand-vm-spec", "put"),
        ] {
            assert!(described["paths"][format!("{base}/{path}")][method].is_object(), "{path}");
        }
    }
}

/// Requests for a VM or an instance that does not exist.
fn absent() {
    for verb in ["start", "stop", "restart", "removememorydump"] {
        check(&[(Put, &format!("vm/absent/{verb}"), json!({}), 404, "not found")]);
    }
    for verb in ["pause", "unpause", "softreboot", "reset", "freeze", "unfreeze"] {
        check(&[(Put, &format!("vmi/absent/{verb}"), json!({}), 404, "not found")]);
    }
    for verb in ["guestosinfo", "userlist", "filesystemlist", "vnc/screenshot?moveCursor=false"] {
        check(&[(Get, &format!("vmi/absent/{verb}"), none(), 404, "not found")]);
    }
    for stream in ["console", "vnc?preserveSession=false", "usbredir", "portforward/22/tcp"] {
        check(&[(Stream, &format!("vmi/absent/{stream}"), none(), 404, "not found")]);
    }
    check(&[
        (Get, "vm/absent/expand-spec", none(), 404, "not found"),
        (Put, "vm/absent/memorydump", json!({"claimName": "dump"}), 404, "not found"),
        (Put, "vm/absent/addvolume", volume("data"), 404, "not found"),
        (Put, "vmi/absent/addvolume", volume("data"), 404, "not found"),
        (Put, "vmi/absent/removevolume", json!({"name": "data"}), 404, "not found"),
        (Stream, "vm/absent/portforward/22/tcp", none(), 404, "not found"),
    ]);
}

/// Requests for a VM without an instance.
fn stopped(vm: &Value) {
    let of_manual = |strategy: &str| {
        let mut vm = vm.clone();
        vm["spec"]["runStrategy"] = json!(strategy);
        vm
    };
    check(&[
        (Put, "vm/vm/stop", json!({"gracePeriod": null}), 409, "VM is not running"),
        (Put, "vm/vm/restart", none(), 409, "VM is not running"),
        (Put, "vm/vm/memorydump", none(), 400, "Request with no body"),
        (Put, "vm/vm/memorydump", json!({}), 400, "Memory dump requires claim name to be set"),
        (Put, "vm/vm/memorydump", json!({"claimName": "dump"}), 404, "not found"),
        (Put, "vm/vm/removememorydump", none(), 409, "no association found"),
        (Put, "vm/vm/addvolume", json!({"name": "data"}), 400, "requires disk to not be nil"),
        (Put, "vm/vm/removevolume", json!({"name": "data"}), 409, "because it does not exist"),
        (Get, "vm/vm/expand-spec", none(), 200, "\"VirtualMachine\""),
        (Get, "vm/vm/why", none(), 200, "\"running\":false"),
        (Put, "expand-vm-spec", of_manual("Always"), 200, "\"VirtualMachine\""),
        (Put, "expand-vm-spec", json!({"kind": "Pod"}), 400, "not a valid VirtualMachine"),
        (Put, "vm/vm/start", json!({"paused": true, "dryRun": ["All"]}), 202, ""),
        (Put, "vm/vm/start", json!({"paused": true}), 202, ""),
    ]);
}

fn paused() {
    check(&[
        (Put, "vm/vm/start", json!({"paused": false}), 409, "VM is already running"),
        (Put, "vmi/vm/pause", json!({}), 409, "VMI is already paused"),
        (Put, "vmi/vm/softreboot", none(), 409, "VMI is paused"),
        (Stream, "vmi/vm/portforward/22/tcp", none(), 409, "VMI is paused"),
        (Stream, "vm/vm/portforward/22/tcp", none(), 409, "VMI is paused"),
        (Put, "vmi/vm/unpause", json!({"dryRun": ["All"]}), 200, ""),
        (Put, "vmi/vm/unpause", json!({}), 200, ""),
    ]);
}

/// Requests for a guest that runs, without an agent.
fn running() {
    for verb in ["guestosinfo", "userlist", "filesystemlist"] {
        check(&[(Get, &format!("vmi/vm/{verb}"), none(), 409, "VMI does not have guest agent connected")]);
    }
    for (how, verb) in [
        (Get, "sev/fetchcertchain"),
        (Get, "sev/querylaunchmeasurement"),
        (Put, "sev/setupsession"),
        (Put, "sev/injectlaunchsecret"),
    ] {
        check(&[(how, &format!("vmi/vm/{verb}"), none(), 400, "WorkloadEncryptionSEV")]);
    }
    let mut first = Console::open(&PLACE, NAMESPACE, "vm").unwrap();
    let mut second = Console::open(&PLACE, NAMESPACE, "vm").unwrap();
    second.ask(b'y', "G1y").unwrap();
    let ended = first.listen("never").unwrap_err();
    assert!(!ended.contains("has sent"), "the first console is still open: {ended}");
    drop(second);
    for stream in [
        "vmi/vm/console",
        "vmi/vm/vnc?preserveSession=false",
        "vmi/vm/vnc?preserveSession=false",
        "vmi/vm/vnc?preserveSession=false",
    ] {
        check(&[(Stream, stream, none(), 101, "")]);
    }
    // This guest has no network of its own: connections are refused, and datagrams are lost.
    check(&[
        (Stream, "vmi/vm/portforward/80/udp", none(), 101, ""),
        (Stream, "vmi/vm/portforward/80/sctp", none(), 400, "the protocol is neither tcp nor udp"),
    ]);
    for port in ["vmi/vm/portforward/80", "vmi/vm/portforward/80/tcp", "vm/vm/portforward/80/tcp"] {
        check(&[(Stream, port, none(), 400, "dialing VM")]);
    }
    check(&[
        (Get, "vm/vm/why", none(), 200, "\"running\":true"),
        (Put, "vmi/vm/unpause", json!({}), 409, "VMI is not paused"),
        (Put, "vmi/vm/freeze", json!({"unfreezeTimeout": "1m0s"}), 500, "QEMU guest agent is not connected"),
        (Put, "vmi/vm/unfreeze", none(), 500, "QEMU guest agent is not connected"),
        (Stream, "vmi/vm/usbredir", none(), 409, "Not configured with USB Redirection"),
        (Stream, "vmi/vm/vsock?port=22&tls=true", none(), 400, "VSOCK"),
        (Stream, "vmi/vm/portforward/0/tcp", none(), 400, "port"),
        (Get, "vmi/vm/console", none(), 400, "WebSocket"),
        (Get, "vmi/vm/vnc/screenshot?moveCursor=false", none(), 200, "PNG"),
        (Put, "vm/vm/restart", json!({"gracePeriodSeconds": 5}), 400, "only gracePeriod=0"),
        (Put, "vm/vm/memorydump", json!({"claimName": "data"}), 409, "should be bigger then"),
        (Put, "vm/vm/memorydump", json!({"claimName": "absent"}), 404, "not found"),
        (Put, "vm/vm/addvolume", volume("data"), 202, ""),
        (Put, "vm/vm/addvolume", volume("data"), 409, "volume with that name already exists"),
        (Put, "vm/vm/removevolume", json!({"name": "root"}), 409, "is not hotpluggable"),
        (Put, "vm/vm/removevolume", json!({"name": "data"}), 202, ""),
        (Put, "vmi/vm/reset", none(), 200, ""),
    ]);
}

/// Two dumps into one claim, which is taken away again.
fn dumps(volume: &Volume) {
    let mut names = Vec::new();
    for _ in 0..2 {
        check(&[(Put, "vm/vm/memorydump", json!({"claimName": "dump"}), 202, "")]);
        let request = until_dump("Completed");
        for field in ["startTimestamp", "endTimestamp", "fileName"] {
            assert!(request[field].is_string(), "{field}: {request}");
        }
        let name = request["fileName"].as_str().unwrap().to_owned();
        let file = volume.path().join(&name);
        let head = fs::read(&file).unwrap();
        assert_eq!(&head[..4], b"\x7fELF", "{name} is no core");
        assert!(head.len() >= 64 << 20, "{name}: {} bytes hold no 64 MiB", head.len());
        assert_eq!(fs::metadata(&file).unwrap().uid(), 107);
        let claim = PLACE.find(CLAIMS, NAMESPACE, "dump").unwrap();
        assert_eq!(claim["metadata"]["annotations"]["kubevirt.io/memory-dump"], name.as_str());
        let status = instance(NAMESPACE, "vm")["status"]["volumeStatus"].clone();
        assert!(!status.to_string().contains("\"dump\""), "{status}");
        // Names have seconds.
        std::thread::sleep(Duration::from_secs(1));
        names.push(name);
    }
    assert_ne!(names[0], names[1]);
    check(&[
        (Put, "vm/vm/memorydump", json!({"claimName": "data"}), 409, "is still associated"),
        (Put, "vm/vm/removememorydump", none(), 202, ""),
    ]);
    PLACE.until(NAMESPACE, "the memory dump is no more the VM's", || {
        let vm = PLACE.find(MACHINES, NAMESPACE, "vm").unwrap();
        vm["status"]["memoryDumpRequest"].is_null().then_some(())
    });
    let vm = PLACE.find(MACHINES, NAMESPACE, "vm").unwrap();
    assert_eq!(super::condition(&vm, "RestartRequired"), None, "a dump needs no restart");
}

/// Generation of the VM that its instance was started from; the instance names the revision of that start, the only one.
#[track_caller]
fn generation() -> String {
    let instance = instance(NAMESPACE, "vm");
    let generation = instance["metadata"]["annotations"]["kubevirt.io/vm-generation"].as_str().unwrap();
    let vm = PLACE.find(MACHINES, NAMESPACE, "vm").unwrap();
    let starts = format!("revision-start-vm-{}-", vm["metadata"]["uid"].as_str().unwrap());
    let name = format!("{starts}{generation}");
    assert_eq!(instance["status"]["virtualMachineRevisionName"], name.as_str());
    let mut revisions = PLACE.list(REVISIONS, NAMESPACE);
    revisions.retain(|one| one["metadata"]["name"].as_str().unwrap().starts_with(&starts));
    let [revision] = revisions.as_slice() else { panic!("not one revision: {revisions:#?}") };
    assert_eq!(revision["metadata"]["name"], name.as_str());
    assert_eq!(revision["revision"].to_string(), generation);
    generation.to_owned()
}

#[track_caller]
fn until_another(before: &Value) {
    PLACE.until(NAMESPACE, "another instance runs", || {
        let now = PLACE.find(INSTANCES, NAMESPACE, "vm")?;
        (now["metadata"]["uid"] != before["metadata"]["uid"] && now["status"]["phase"] == "Running")
            .then_some(())
    });
}

/// A changed template reaches the next instance: by a restart, or when the instance is deleted under Always.
fn restarts() {
    let (before, first) = (instance(NAMESPACE, "vm"), generation());
    let note = |text: &str| {
        let name = format!("kubernetes.io/{text}");
        json!({"annotations": {name: text}})
    };
    let mut of_template = note("template");
    of_template["labels"] = json!({"a": "b"});
    let template = json!({"metadata": of_template});
    let change =
        json!({"metadata": note("machine"), "spec": {"runStrategy": "Always", "template": template}});
    super::patch(NAMESPACE, "vm", &change);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(generation(), first, "the generation of a running instance");
    check(&[(Put, "vm/vm/restart", json!({"gracePeriodSeconds": 0}), 202, "")]);
    until_another(&before);
    let second = instance(NAMESPACE, "vm");
    assert_ne!(generation(), first);
    assert_eq!(second["metadata"]["labels"]["a"], "b");
    let own = |pod: &&Value| pod["metadata"]["labels"]["kubevirt.io/created-by"] == second["metadata"]["uid"];
    let pod = PLACE.list(PODS, NAMESPACE).iter().find(own).cloned().unwrap();
    for object in [&second, &pod] {
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(annotations["kubernetes.io/template"], "template", "{object}");
        assert!(annotations["kubernetes.io/machine"].is_null(), "{object}");
    }
    PLACE.delete(INSTANCES, NAMESPACE, "vm");
    until_another(&second);
}

/// A VM of the older version of the API.
fn older() {
    let older = Resource::namespaced("kubevirt.io", "v1alpha3", "virtualmachines");
    let mut vm = machine("older", "Halted", &json!({"emptyDisk": {"capacity": "1Mi"}}));
    vm["apiVersion"] = json!("kubevirt.io/v1alpha3");
    PLACE.create(older, NAMESPACE, &vm);
    PLACE.until_status(NAMESPACE, "older", "Stopped");
    assert_eq!(PLACE.find(older, NAMESPACE, "older").unwrap()["apiVersion"], "kubevirt.io/v1alpha3");
    PLACE.delete(older, NAMESPACE, "older");
    PLACE.until(NAMESPACE, "the older VM is gone", || {
        PLACE.find(MACHINES, NAMESPACE, "older").is_none().then_some(())
    });
}

#[test]
fn every_request_of_virtctl_is_answered_as_upstream_answers_it() {
    PLACE.namespace(NAMESPACE);
    let begun = std::time::Instant::now();
    let _streams = Streams::follow();
    of_the_group();
    absent();
    older();
    let root = claim(NAMESPACE, "vm", false);
    fs::write(root.path().join("disk.img"), guest::disk()).unwrap();
    let _data = claim(NAMESPACE, "data", false);
    let dump = Volume::filesystem(&PLACE.cluster, NAMESPACE, "dump", DUMP).unwrap();
    let mut vm = machine("vm", "Manual", &json!({"persistentVolumeClaim": {"claimName": "vm"}}));
    vm["metadata"]["namespace"] = json!(NAMESPACE);
    PLACE.create(MACHINES, NAMESPACE, &vm);
    PLACE.until_status(NAMESPACE, "vm", "Stopped");
    stopped(&vm);
    PLACE.until_status(NAMESPACE, "vm", "Paused");
    paused();
    until_answers(NAMESPACE, "vm", 1);
    running();
    until_answers(NAMESPACE, "vm", 2);
    dumps(&dump);
    until_answers(NAMESPACE, "vm", 2);
    restarts();
    check(&[(Put, "vm/vm/stop", json!({"gracePeriod": 0}), 202, "")]);
    PLACE.until_status(NAMESPACE, "vm", "Stopped");
    PLACE.delete(MACHINES, NAMESPACE, "vm");
    PLACE.remove_namespace(NAMESPACE);
    println!("all requests of virtctl: {:.1?}", begun.elapsed());
    assert!(begun.elapsed() < 2 * TIMEOUT);
}

/// `objectgraph`, which other tests do not request: its feature gate is one of the whole cluster.
#[test]
fn objects_that_a_vm_needs_are_a_tree_while_the_feature_gate_is_on() {
    let namespace = "graph";
    let platform = operator::defaults::NAMESPACE;
    let _alone = alone();
    PLACE.namespace(namespace);
    let volume = json!({"persistentVolumeClaim": {"claimName": "data"}});
    PLACE.create(MACHINES, namespace, &machine("vm", "Halted", &volume));
    let path =
        format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/virtualmachines/vm/objectgraph");
    let answer = || {
        let (code, body) = send(Get, &path, &json!({"includeOptionalNodes": true}));
        (code, String::from_utf8(body).unwrap())
    };
    let until_refused = || {
        PLACE.until(namespace, "objectgraph is refused", || {
            let (code, text) = answer();
            (code == 400 && text.contains("'ObjectGraph' feature gate is not enabled")).then_some(())
        });
    };
    let set = |gates: &Value| {
        let patch = json!({"spec": {"featureGates": gates}}).to_string();
        PLACE.kubectl(&["-n", platform, "patch", OBJECT, "--type=merge", "-p", &patch]).unwrap();
    };
    until_refused();
    let owner = PLACE.kubectl(&["-n", platform, "get", OBJECT, "-o", "json"]).unwrap();
    let before = serde_json::from_str::<Value>(&owner).unwrap()["spec"]["featureGates"].clone();
    let mut more = before.as_array().cloned().unwrap_or_default();
    more.push(json!({"name": "objectGraph"}));
    set(&json!(more));
    let tree = PLACE.until(namespace, "objectgraph is served", || {
        let (code, text) = answer();
        (code == 200).then(|| serde_json::from_str::<Value>(&text).unwrap())
    });
    assert_eq!(tree["objectReference"]["name"], "vm", "{tree}");
    let children = tree["children"].as_array().unwrap();
    let claim =
        json!({"apiGroup": "", "kind": "PersistentVolumeClaim", "name": "data", "namespace": namespace});
    assert!(children.iter().any(|one| one["objectReference"] == claim), "{tree}");
    set(&before);
    until_refused();
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}
