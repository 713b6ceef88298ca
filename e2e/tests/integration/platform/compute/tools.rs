//! Tools of the launcher's pod: exit codes and output as backup software, the kubelet and support bundles read them; the
//! effect of probes of all kinds; and what the same guest does with its network: it reaches out, and many forwarded ports
//! carry its data at once.

use std::time::Duration;

use guests::inside::TOLD;
use serde_json::{Value, json};

use super::inside::{until_printed, vm, written};
use super::{condition, instance, patch, put};
use crate::platform::console::Console;
use crate::platform::machines::{create, until_answers};
use crate::platform::place::{INSTANCES, MACHINES, PLACE, PODS, SERVICES};
use crate::platform::streams::{Streams, agent};

/// The launcher's pod of the VM of a namespace.
struct Pod {
    namespace: &'static str,
    object: Value,
    domain: String,
}

impl Pod {
    /// Waits until there is one alone.
    #[track_caller]
    fn of(namespace: &'static str) -> Self {
        let object = PLACE.until(namespace, "one pod", || match PLACE.list(PODS, namespace).as_slice() {
            [pod] => Some(pod.clone()),
            _ => None,
        });
        Self { namespace, object, domain: format!("{namespace}_vm") }
    }

    fn exec_in(&self, container: &str, arguments: &[&str]) -> Result<String, String> {
        let pod = self.object["metadata"]["name"].as_str().unwrap();
        let all = [&["-n", self.namespace, "exec", pod, "-c", container, "--"][..], arguments].concat();
        PLACE.kubectl(&all)
    }

    fn exec(&self, arguments: &[&str]) -> Result<String, String> {
        self.exec_in("compute", arguments)
    }

    /// Runs a script in the guest, through its agent.
    fn run(&self, script: &str) -> Result<String, String> {
        let probe = ["virt-probe", "--domainName", &self.domain, "--timeoutSeconds", "10"];
        self.exec(&[&probe[..], &["--command", "/bin/sh", "--", "-c", script]].concat())
    }

    /// Kills a program of the guest; the agent does not answer when it is itself.
    fn kill(&self, program: &str) {
        let is_it = format!("[ \"$(cat $process/comm)\" = {program} ]");
        let script = format!("for process in /proc/[0-9]*; do {is_it} && kill -9 ${{process##*/}}; done");
        drop(self.run(&script));
    }

    /// Runs the command of a hook as backup software does, with more arguments.
    fn hook(&self, stage: &str, more: &[&str]) -> Result<String, String> {
        let annotation = |key: &str| {
            let key = format!("{stage}.hook.backup.velero.io/{key}");
            self.object["metadata"]["annotations"][key].as_str().unwrap().to_owned()
        };
        let command: Vec<String> = serde_json::from_str(&annotation("command")).unwrap();
        let command: Vec<&str> = command.iter().map(String::as_str).chain(more.iter().copied()).collect();
        self.exec_in(&annotation("container"), &command)
    }
}

#[test]
fn tools_of_the_pod_answer_as_upstream_does() {
    let namespace = "tools";
    PLACE.namespace(namespace);
    let _volume = create(namespace, "vm", "Always", 0);
    until_answers(namespace, "vm", 1);
    let pod = Pod::of(namespace);
    let exec = |arguments: &[&str]| pod.exec(arguments);
    let freezer = ["/usr/bin/virt-freezer", "--freeze", "--name", "vm", "--namespace", namespace];
    assert_eq!(exec(&freezer).unwrap(), "No guest agent, exiting\n");
    let domain = &pod.domain;
    let listed = exec(&["virsh", "list", "--all"]).unwrap();
    assert!(listed.contains(&format!(" 1    {domain}   running\n")), "{listed}");
    assert_eq!(exec(&["virsh", "-r", "domstate", domain]).unwrap(), "running\n\n");
    let xml = exec(&["virsh", "dumpxml", domain]).unwrap();
    assert!(xml.contains(&format!("<name>{domain}</name>")) && xml.contains("<devices>"), "{xml}");
    assert!(exec(&["virsh", "domstats", domain]).unwrap().contains("vcpu.current=1"));
    assert_eq!(exec(&["virsh", "dommemstat", domain]).unwrap(), "actual 65536\n");
    let absent = exec(&["virsh", "dumpxml", "other"]).unwrap_err();
    assert!(absent.contains("failed to get domain 'other'") && absent.contains("exit code 1"), "{absent}");
    let ping = ["virt-probe", "--guestAgentPing", "--domainName", domain, "--timeoutSeconds", "1"];
    assert!(exec(&ping).unwrap_err().contains("exit code 1"));
    let outside = exec(&["mkdir", "/usr/new"]).unwrap_err();
    assert!(outside.contains("Read-only file system"), "{outside}");
    exec(&["mkdir", "/tmp/new", "/var/tmp/newer"]).unwrap();
    PLACE.put(namespace, "virtualmachineinstances/vm/pause").unwrap();
    PLACE.until_status(namespace, "vm", "Paused");
    assert_eq!(exec(&freezer).unwrap(), "Guest is not running, exiting\n");
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}

/// A probe that fails after 120 s without a guest.
fn liveness(kind: &str, fields: &Value) -> Value {
    let mut probe =
        json!({"initialDelaySeconds": 100, "periodSeconds": 2, "timeoutSeconds": 5, "failureThreshold": 10});
    probe[kind] = fields.clone();
    probe
}

fn readiness(kind: &str, fields: &Value) -> Value {
    let mut probe = json!({"periodSeconds": 1, "timeoutSeconds": 5});
    probe[kind] = fields.clone();
    probe
}

/// Waits until the instance is ready, or is not.
#[track_caller]
fn until_ready(namespace: &str, wanted: &str) {
    PLACE.until(namespace, &format!("Ready is {wanted}"), || {
        let ready = condition(&PLACE.find(INSTANCES, namespace, "vm")?, "Ready")?;
        (ready["status"] == wanted).then_some(())
    });
}

/// Waits until the guest and its agent are there; the pod.
#[track_caller]
fn until_agent(namespace: &'static str) -> Pod {
    let pod = Pod::of(namespace);
    until_printed(namespace, TOLD);
    PLACE.until(namespace, "AgentConnected", || {
        condition(&instance(namespace, "vm"), "AgentConnected").filter(|found| found["status"] == "True")
    });
    pod
}

/// Waits until a liveness probe has ended the instance and there is another one.
#[track_caller]
fn until_replaced(namespace: &str, first: &Value) {
    PLACE.until(namespace, "another instance", || {
        PLACE.find(INSTANCES, namespace, "vm").filter(|one| one["metadata"]["uid"] != *first)
    });
}

/// The commands of backup software freeze the guest and thaw it, and a freeze ends by itself.
fn hooks(pod: &Pod) {
    let namespace = pod.namespace;
    let frozen = |wanted: bool| {
        PLACE.until(namespace, &format!("fsFreezeStatus is set: {wanted}"), || {
            let status = instance(namespace, "vm")["status"]["fsFreezeStatus"].clone();
            ((status == "frozen") == wanted).then_some(())
        });
    };
    // The write before the freeze may be printed after it.
    let rests = || {
        let before = written(namespace);
        std::thread::sleep(Duration::from_secs(3));
        let after = written(namespace);
        assert!(after <= before + 1, "{before} and {after} writes");
        after
    };
    let writes = |before: usize| {
        PLACE.until(namespace, "the guest writes", || (written(namespace) > before + 1).then_some(()));
    };
    until_printed(namespace, "inside: written");
    assert_eq!(pod.hook("pre", &[]).unwrap(), "");
    frozen(true);
    let before = rests();
    assert_eq!(pod.hook("post", &[]).unwrap(), "");
    frozen(false);
    writes(before);
    pod.hook("pre", &["--unfreezeTimeoutSeconds", "6"]).unwrap();
    writes(rests());
    frozen(false);
}

/// The commands of stock support bundles, in the launcher's pod and in the agent's.
fn bundle(pod: &Pod) {
    let log = format!("{}.log", pod.domain);
    for (command, wanted) in [
        (&["ip", "a"][..], "lo:"),
        (&["bridge", "fdb", "show"][..], ""),
        (&["bridge", "vlan", "show"][..], ""),
        (&["tar", "-c", "/var/run/kubevirt-private/libvirt/qemu/log"][..], log.as_str()),
    ] {
        let found = pod.exec(command).unwrap();
        assert!(found.contains(wanted), "{command:?}: {found}");
    }
    let agent = agent();
    let agent = agent["metadata"]["name"].as_str().unwrap();
    let exec = |arguments: &[&str]| {
        let place = ["-n", operator::defaults::NAMESPACE, "exec", agent, "-c", "virt-handler", "--"];
        PLACE.kubectl(&[&place[..], arguments].concat())
    };
    let uid = instance(pod.namespace, "vm")["metadata"]["uid"].as_str().unwrap().to_owned();
    let found = exec(&["pgrep", "-f", &format!("virt-launcher .*{uid}")]).unwrap();
    let process = found.lines().next().unwrap();
    let rules = exec(&["nsenter", "-t", process, "-n", "--", "nft", "list", "ruleset"]).unwrap();
    assert!(rules.contains("table"), "the rules of the pod's masquerading: {rules:?}");
}

/// The guest reaches the cluster's API server by the pod network.
fn reaches_out(pod: &Pod) {
    let service = PLACE.find(SERVICES, "default", "kubernetes").unwrap();
    let address = service["spec"]["clusterIP"].as_str().unwrap();
    let script = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} 443");
    let answer = PLACE.until(pod.namespace, "the API server answers the guest", || pod.run(&script).ok());
    assert!(answer.contains("Client sent an HTTP request to an HTTPS server"), "{answer}");
}

/// Forwarded ports that are open together, each with data of the guest's server.
fn forwards(pod: &Pod) {
    const LINES: usize = 1024;
    const LINE: &str = "0123456789abcdef\n";
    let count = if std::env::var_os("FERROVIRT_SOAK").is_some() { 100 } else { 20 };
    let line = LINE.trim_end();
    let script = format!("i=0; while [ $i -lt {LINES} ]; do echo {line}; i=$((i+1)); done > /www/lines");
    pod.run(&script).unwrap();
    let open = |_| Console::stream(&PLACE, pod.namespace, "vm", "portforward/80/tcp").unwrap();
    let mut all: Vec<Console<'_>> = (0..count).map(open).collect();
    for forward in &mut all {
        forward.send(b"GET /lines HTTP/1.0\r\n\r\n").unwrap();
    }
    for (number, forward) in all.iter_mut().enumerate() {
        // The header of the answer comes before it.
        let received = forward.read_until(&format!("\r\n\r\n{}", LINE.repeat(LINES))).unwrap();
        assert!(received.starts_with("HTTP/1."), "forward {number} of {count}: {received}");
    }
}

/// One VM, whose guest has an agent and a server: the probes of its first run go through the agent, those of the second to
/// the server.
#[test]
fn hooks_probes_and_bundles_work_with_a_guest_agent() {
    let namespace = "hooks";
    let _streams = Streams::follow();
    PLACE.namespace(namespace);
    let mut machine = vm();
    let spec = &mut machine["spec"]["template"]["spec"];
    spec["accessCredentials"] = json!([]);
    spec["volumes"] = json!([{"name": "data", "emptyDisk": {"capacity": "32Mi"}}]);
    spec["networks"] = json!([{"name": "default", "pod": {}}]);
    let devices = &mut spec["domain"]["devices"];
    devices["disks"] = json!([{"name": "data", "serial": "data", "disk": {"bus": "virtio"}}]);
    devices["interfaces"] = json!([{"name": "default", "masquerade": {}}]);
    devices["autoattachPodInterface"] = json!(true);
    spec["readinessProbe"] = readiness("exec", &json!({"command": ["/bin/cat", "/run/healthy"]}));
    spec["livenessProbe"] = liveness("guestAgentPing", &json!({}));
    PLACE.create(MACHINES, namespace, &machine);

    let pod = until_agent(namespace);
    until_ready(namespace, "False");
    assert_eq!(pod.run("echo word").unwrap(), "word\n");
    let failed = pod.run("echo bad >&2; exit 3").unwrap_err();
    assert!(failed.contains("bad") && failed.contains("exit code 3"), "{failed}");
    let ping = ["virt-probe", "--guestAgentPing", "--domainName", &pod.domain, "--timeoutSeconds", "5"];
    assert_eq!(pod.exec(&ping).unwrap(), "");
    let command = ["virsh", "qemu-agent-command", &pod.domain, r#"{"execute":"guest-ping"}"#];
    assert_eq!(pod.exec(&command).unwrap(), "{\"return\":{}}\n");
    pod.run(": > /run/healthy").unwrap();
    until_ready(namespace, "True");
    hooks(&pod);
    bundle(&pod);
    reaches_out(&pod);
    forwards(&pod);
    until_ready(namespace, "True");

    let probes = json!({
        "readinessProbe": readiness("httpGet", &json!({"port": 80, "path": "/healthy"})),
        "livenessProbe": liveness("tcpSocket", &json!({"port": 80})),
    });
    let mut change = probes.clone();
    change["readinessProbe"]["exec"] = Value::Null;
    change["livenessProbe"]["guestAgentPing"] = Value::Null;
    patch(namespace, "vm", &json!({"spec": {"template": {"spec": change}}}));
    let first = instance(namespace, "vm")["metadata"]["uid"].clone();
    pod.kill("qemu-ga");
    until_replaced(namespace, &first);

    let pod = until_agent(namespace);
    let second = instance(namespace, "vm");
    assert_eq!(second["spec"]["readinessProbe"]["httpGet"], probes["readinessProbe"]["httpGet"]);
    until_ready(namespace, "False");
    let refusal = put(namespace, "virtualmachineinstances/vm/pause", &json!({})).unwrap_err();
    assert!(refusal.contains("LivenessProbe is not supported"), "{refusal}");
    pod.run("echo yes > /www/healthy").unwrap();
    until_ready(namespace, "True");
    pod.kill("httpd");
    until_replaced(namespace, &second["metadata"]["uid"]);
    PLACE.delete(MACHINES, namespace, "vm");
    PLACE.remove_namespace(namespace);
}
