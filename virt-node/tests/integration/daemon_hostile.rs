//! Hostile documents, sent to the daemon directly, because the commands check them first: the daemon refuses each by its
//! field or as a whole, soon and with bounded memory, and stores nothing of it.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

use serde_json::{Value, json};
use virt::validate::{Documents, SourceDocument};

use crate::support::daemon::{Daemon, TIMEOUT, code, machine, peak};

/// Sends a call; the stream brings the answer.
fn call(daemon: &Daemon, call: &str) -> UnixStream {
    let mut stream = UnixStream::connect(daemon.state().join("virt-node.sock")).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TIMEOUT)).unwrap();
    let mut frame = u32::try_from(call.len()).unwrap().to_be_bytes().to_vec();
    frame.extend(call.bytes());
    stream.write_all(&frame).unwrap();
    stream
}

/// Asks the daemon to store the objects of a text. `None` if the text is not YAML: then there is no object to send.
fn apply(daemon: &Daemon, text: &str) -> Option<UnixStream> {
    let documents = Documents::parse([("hostile", text.as_bytes())]);
    if documents.read.is_empty() {
        return None;
    }
    let documents: Vec<SourceDocument> = documents.read.iter().map(SourceDocument::from).collect();
    Some(call(daemon, &json!({"version": 2, "request": {"apply": {"documents": documents}}}).to_string()))
}

/// The daemon's answer to it.
fn answered(mut stream: UnixStream) -> Value {
    let mut head = [0; 4];
    stream.read_exact(&mut head).unwrap();
    let mut answer = vec![0; u32::from_be_bytes(head) as usize];
    stream.read_exact(&mut answer).unwrap();
    serde_json::from_slice(&answer).unwrap()
}

/// All files below a folder.
fn files(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path.display().to_string());
        }
    }
    found.sort();
    found
}

/// A run with this volume and this of a domain's devices.
fn instance(volume: &str, devices: &str) -> String {
    format!(
        "\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: bad}}
spec:
  domain: {{memory: {{guest: 64Mi}}, devices: {{autoattachPodInterface: false, disks: [{{name: a}}]{devices}}}}}
  volumes: [{{name: a, {volume}}}]
"
    )
}

/// Documents, each with the expected message.
fn documents() -> Vec<(&'static str, String, &'static str)> {
    let mut laughs = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
    for level in 1..12 {
        let before = vec![format!("*a{}", level - 1); 10].join(",");
        laughs.push_str(&format!("a{level}: &a{level} [{before}]\n"));
    }
    let volumes: String =
        (0..10_000).map(|n| format!("{{name: v{n}, emptyDisk: {{capacity: 1Gi}}}}, ")).collect();
    let many =
        instance("emptyDisk: {capacity: 1Mi}", "").replace("volumes: [", &format!("volumes: [{volumes}"));
    let long = "x".repeat(10 << 20);
    let named = |from: &str, to: &str| machine("bad", "Always", "{blank: {}}", "").replace(from, to);
    let network = instance("emptyDisk: {capacity: 1Mi}", ", interfaces: [{name: ../up, bridge: {}}]")
        + "  networks: [{name: ../up, multus: {networkName: net}}]\n";
    let entry = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {../../../../etc/cron.d/x: word}\n---\n";
    vec![
        ("laughs", laughs, "invalid YAML"),
        ("deep", format!("a: {}{}", "[".repeat(5000), "]".repeat(5000)), "invalid YAML"),
        ("many volumes", many, "spec.volumes: "),
        (
            "ten mebibytes for cloud-init",
            instance(&format!("cloudInitNoCloud: {{userData: {long}}}"), ""),
            "spec.volumes[0].cloudInitNoCloud: ",
        ),
        ("a name that is a path", named("{name: bad}", "{name: ../../bad}"), "metadata.name: "),
        (
            "a namespace that is a path",
            named("{name: bad}", "{name: bad, namespace: ..}"),
            "metadata.namespace: ",
        ),
        ("a long name", named("{name: bad}", &format!("{{name: {}}}", "n".repeat(300))), "metadata.name: "),
        (
            "a volume's name that is a path",
            named("metadata: {name: bad-root}", "metadata: {name: ../bad-root}"),
            "spec.dataVolumeTemplates[0].metadata.name: ",
        ),
        ("a disk's name that is a path", named("{name: root", "{name: ../root"), "volumes[0].name: "),
        ("a network's name that is a path", network, "spec.networks[0].name: "),
        (
            "a file of the machine",
            instance("hostDisk: {path: /srv/../etc/shadow, type: Disk}", ""),
            "hostDisk.path: ",
        ),
        (
            "a file of an image",
            instance("containerDisk: {image: a, path: /disk/../../etc/shadow}", ""),
            "containerDisk.path: ",
        ),
        (
            "an entry that is a path",
            entry.to_owned() + &instance("secret: {secretName: s}", ""),
            "secret.secretName: ",
        ),
        (
            "a field's file that is a path",
            instance("downwardAPI: {fields: [{path: ../x, fieldRef: {fieldPath: metadata.name}}]}", ""),
            "downwardAPI.fields[0].path: ",
        ),
    ]
}

#[test]
fn documents_that_mean_harm_are_refused_and_nothing_of_them_stays() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", code::HALTS);
    daemon.run(&machine("good", "Always", &format!("{{http: {{url: \"file://{}\"}}}}", image.display()), ""));
    daemon.until_serial("good", "K");
    let objects = || files(&daemon.state().join("objects"));
    let (before, memory) = (objects(), peak(daemon.id()));
    let file = daemon.path("hostile.yaml");
    for (name, document, wanted) in documents() {
        let begun = Instant::now();
        match apply(&daemon, &document) {
            Some(stream) => {
                let answer = answered(stream);
                let refused = &answer["refused"];
                let message = refused["message"].as_str().unwrap_or_default();
                assert!(refused["kind"] == "invalid" && message.contains(wanted), "{name}: {answer:.2000}");
                println!("{name}: refused after {:?}", begun.elapsed());
            }
            None => assert_eq!(wanted, "invalid YAML", "{name}"),
        }
        // The command refuses it for the same reason, without a call.
        fs::write(&file, document).unwrap();
        let output = daemon.command(&["run", "--detach", file.to_str().unwrap()]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && told.contains(wanted), "{name}: {told:.2000}");
        assert_eq!(daemon.status("good"), "Running", "{name}");
    }
    let nested = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
    let document = format!("{{\"source\": \"hostile\", \"number\": 1, \"value\": {nested}}}");
    let answer = answered(call(
        &daemon,
        &format!("{{\"version\": 2, \"request\": {{\"apply\": {{\"documents\": [{document}]}}}}}}"),
    ));
    let message = answer["refused"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("recursion limit"), "{answer:.2000}");
    let grown = peak(daemon.id()) - memory;
    println!("the daemon grew by {grown} MiB at most");
    assert!(grown < 256, "{grown} MiB");
    assert_eq!(objects(), before);
    daemon.says(&["delete", "good", "--force"]);
}

#[test]
fn others_are_answered_while_long_documents_are_checked() {
    let daemon = Daemon::start();
    let entries: String = (0..150_000).map(|n| format!("  key-{n}: word\n")).collect();
    let long = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: ../long}}\ndata:\n{entries}");
    let begun = Instant::now();
    let waiting: Vec<UnixStream> = (0..3).map(|_| apply(&daemon, &long).unwrap()).collect();
    assert!(daemon.says(&["list"]).starts_with("NAMESPACE"));
    println!("others are answered after {:?}", begun.elapsed());
    let last = waiting.iter().any(|stream| {
        let mut head = [0; 4];
        let flags = rustix::net::RecvFlags::PEEK | rustix::net::RecvFlags::DONTWAIT;
        rustix::net::recv(stream, &mut head, flags).err() == Some(rustix::io::Errno::AGAIN)
    });
    assert!(last, "all of them were answered before the others");
    for stream in waiting {
        let answer = answered(stream);
        let said = answer["refused"]["message"].as_str().unwrap_or_default();
        assert!(said.contains("metadata.name: "), "{answer:.2000}");
        println!("a long one after {:?}", begun.elapsed());
    }
}

/// The 129th client was closed, whatever the others did.
#[test]
fn idle_clients_and_unfinished_calls_delay_no_command() {
    let daemon = Daemon::start();
    let (idle, unfinished) =
        if std::env::var_os("FERROVIRT_SOAK").is_some() { (1000, 256) } else { (300, 64) };
    let mut open = Vec::new();
    for number in 0..idle + unfinished {
        let mut stream = UnixStream::connect(daemon.state().join("virt-node.sock")).unwrap();
        if number % 4 == 0 {
            // Half of a call; the daemon may have disconnected it.
            drop(stream.write_all(&[0, 0, 16, 0, b'{']));
        }
        open.push(stream);
    }
    let mut times: Vec<_> = (0..5)
        .map(|_| {
            let begun = Instant::now();
            daemon.says(&["list"]);
            begun.elapsed()
        })
        .collect();
    times.sort();
    let memory = peak(daemon.id());
    println!("{} clients that ask nothing: list {:?} to {:?}, {memory} MiB", open.len(), times[0], times[4]);
    assert!(times[0].as_secs() < 1 && times[4].as_secs() < 5, "{times:?}");
    assert!(memory <= 64, "{memory} MiB");
}
