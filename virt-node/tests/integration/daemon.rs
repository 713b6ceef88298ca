//! The daemon with guests of one boot sector under emulation: from a person's documents to a guest and away again.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use rustix::process::Signal;

use crate::support::daemon::{Daemon, code, end_of, eventually, kill, machine, rest};
use crate::support::web;

/// Nothing of any guest is left in the state folder, on the machine, or among the processes.
fn nothing_left(daemon: &Daemon) {
    for folder in ["run", "claims", "guests", "images", "objects/VirtualMachine", "objects/DataVolume"] {
        assert_eq!(daemon.names(folder), Vec::<String>::new(), "{folder}");
    }
    let volumes =
        daemon.names("volumes").into_iter().filter(|name| name != ".hpp-csi" && name != "snapshots");
    assert_eq!(volumes.collect::<Vec<_>>(), Vec::<String>::new());
    assert_eq!(daemon.mounts(), Vec::<String>::new());
    let others = |(_, line): &(u32, String)| !line.contains(" serve ") && !line.contains("hpp-csi");
    let left: Vec<_> = daemon.processes().into_iter().filter(others).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_machine_is_run_stopped_started_and_deleted() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", code::HALTS);
    let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
    let document = machine("mine", "Always", &source, "");
    let said = daemon.run(&document);
    assert!(said.contains("VirtualMachine default/mine created"), "{said}");
    assert!(said.contains("ImportSucceeded") && said.contains("Started"), "{said}");
    daemon.until_serial("mine", "K");
    assert!(daemon.says(&["list"]).contains("Running"));
    let yaml = daemon.says(&["get", "mine", "-o", "yaml"]);
    assert!(
        yaml.contains("kind: VirtualMachine\n") && yaml.contains("kind: VirtualMachineInstance\n"),
        "{yaml}"
    );

    // Everything of the guest is a user's of its own, without privileges.
    let user = daemon.user("mine");
    let outer = daemon.process("virt-launcher").unwrap();
    let status = fs::read_to_string(format!("/proc/{outer}/status")).unwrap();
    assert!(user != 0 && status.contains(&format!("Uid:\t{user}\t{user}")), "{status}");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");

    let said = daemon.run(&document);
    assert!(said.contains("VirtualMachine default/mine unchanged"), "{said}");
    daemon.says(&["pause", "mine"]);
    daemon.until("mine", "Paused");
    daemon.says(&["unpause", "mine"]);
    daemon.until("mine", "Running");
    let first = daemon.object("vmi/mine").unwrap()["metadata"]["uid"].clone();
    daemon.says(&["restart", "mine", "--force"]);
    eventually("another run", || {
        let run = daemon.object("vmi/mine")?;
        (run["metadata"]["uid"] != first && run["status"]["phase"] == "Running").then_some(())
    });
    daemon.says(&["stop", "mine"]);
    daemon.until("mine", "Stopped");
    // As in KubeVirt, a VM with an ended instance is stopped; the instance goes after that.
    eventually("no instance", || daemon.object("vmi/mine").is_none().then_some(()));
    eventually("no run", || daemon.names("run").is_empty().then_some(()));
    let twice = daemon.command(&["stop", "mine"]);
    assert_eq!(twice.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&twice.stderr).contains("VM is not running"));
    daemon.says(&["start", "mine", "--paused"]);
    daemon.until("mine", "Paused");
    assert_eq!(daemon.serial("mine"), "");
    daemon.says(&["unpause", "mine"]);
    daemon.until_serial("mine", "K");
    assert!(daemon.says(&["events", "mine"]).contains("Paused"));
    daemon.says(&["delete", "mine", "--force"]);
    nothing_left(&daemon);
    assert_eq!(daemon.command(&["get", "mine"]).status.code(), Some(1));
}

#[test]
fn disks_come_from_the_network_from_claims_and_from_nothing() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", code::HALTS);
    let url = web::file("disk.img", fs::read(&image).unwrap());
    let documents = format!(
        "\
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {{name: golden}}
spec:
  source: {{http: {{url: \"{url}\"}}}}
  pvc: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 4Mi}}}}}}
---
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {{name: blank}}
spec: {{source: {{blank: {{}}}}, storage: {{resources: {{requests: {{storage: 3Mi}}}}}}}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: plain}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 2Mi}}}}}}
---
{}
      - {{name: blank, dataVolume: {{name: blank}}}}
      - {{name: plain, persistentVolumeClaim: {{claimName: plain}}}}
      - {{name: empty, emptyDisk: {{capacity: 1Mi}}}}
      - {{name: over, ephemeral: {{persistentVolumeClaim: {{claimName: golden}}}}}}
      - {{name: init, cloudInitNoCloud: {{userData: \"#!/bin/true\"}}}}
",
        machine("copy", "RerunOnFailure", "{pvc: {name: golden}}", "")
            .replace("disks: [{name: root}]", "disks: [{name: root}, {name: blank}, {name: plain}, {name: empty}, {name: over}, {name: init, cdrom: {}}]")
            .trim_end()
    );
    daemon.run(&documents);
    daemon.until_serial("copy", "K");
    let disk = |name: &str| {
        let claim = daemon.object(&format!("pvc/{name}")).unwrap();
        let uid = claim["metadata"]["uid"].as_str().unwrap().to_owned();
        fs::metadata(daemon.state().join("claims").join(uid).join("data/disk.img")).unwrap()
    };
    // Only the VM that writes to a disk owns it; what is below an ephemeral one is read by a group.
    let user = daemon.user("copy");
    for (name, size, owner, mode) in [
        ("golden", 4, 0, 0o440),
        ("copy-root", 8, user, 0o660),
        ("blank", 3, user, 0o660),
        ("plain", 2, user, 0o660),
    ] {
        let found = (disk(name).len(), disk(name).uid(), disk(name).mode() & 0o777);
        assert_eq!(found, (size << 20, owner, mode), "{name}");
    }
    let claim = daemon.object("dv/golden").unwrap();
    assert_eq!(claim["status"]["phase"], "Succeeded");
    assert_eq!(claim["status"]["progress"], "100.0%");
    let file = daemon.path("document.yaml");
    daemon.says(&["delete", "-f", file.to_str().unwrap(), "--grace-period", "0"]);
    nothing_left(&daemon);
    assert_eq!(daemon.names("objects/PersistentVolumeClaim"), Vec::<String>::new());
}

#[test]
fn a_guest_that_crashes_is_tried_later_and_later() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", code::TRIPLE_FAULT);
    let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
    let file = daemon.path("crash.yaml");
    let document = machine("crash", "Always", &source, "")
        .replace("memory:", "rebootPolicy: Terminate\n        memory:");
    fs::write(&file, document).unwrap();
    let output = daemon.command(&["run", file.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("CrashLoopBackOff"), "{told}");
    let failures = || {
        let machine = daemon.object("vm/crash").unwrap();
        machine["status"]["startFailure"]["consecutiveFailCount"].as_u64().unwrap_or(0)
    };
    eventually("a second crash", || (failures() >= 2).then_some(()));
    daemon.until("crash", "CrashLoopBackOff");
    daemon.says(&["stop", "crash"]);
    daemon.until("crash", "Stopped");
    daemon.says(&["delete", "crash"]);
    nothing_left(&daemon);
}

#[test]
fn failures_are_reported_and_retried() {
    let daemon = Daemon::start();
    let missing = machine("lost", "Always", "{http: {url: \"file:///nowhere/disk.img\"}}", "");
    let file = daemon.path("lost.yaml");
    fs::write(&file, missing).unwrap();
    let output = daemon.command(&["run", "--detach", file.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && told.contains("DataVolumeError"), "{told}");
    assert!(daemon.says(&["events", "lost-root"]).contains("/nowhere/disk.img"));
    daemon.says(&["delete", "lost"]);
    nothing_left(&daemon);
    // The wait for a guest without a disk is bounded.
    let file = daemon.path("nowhere.yaml");
    let disk = "hostDisk: {type: DiskOrCreate, capacity: 8Mi, path: /nowhere/disk.img}";
    let nowhere =
        machine("nowhere", "Always", "{blank: {}}", "").replace("dataVolume: {name: nowhere-root}", disk);
    fs::write(&file, nowhere).unwrap();
    let output = daemon.command(&["run", "--detach", file.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && told.contains("default/nowhere cannot be started"), "{told}");
    daemon.says(&["delete", "nowhere"]);
    nothing_left(&daemon);
    // A field that cannot be is refused as a whole, by its path.
    fs::write(&file, machine("bad", "Sometimes", "{blank: {}}", "")).unwrap();
    let output = daemon.command(&["run", file.to_str().unwrap()]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && told.contains("spec.runStrategy"), "{told}");
    assert!(daemon.object("vm/bad").is_none());
}

#[test]
fn run_in_the_foreground_starts_the_daemon_and_ends_with_the_guest() {
    let mut daemon = Daemon::start();
    let image = daemon.image("disk.img", code::HALTS);
    let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
    let file = daemon.path("mine.yaml");
    fs::write(&file, machine("mine", "Halted", &source, "")).unwrap();
    // It may just be starting the driver.
    assert_eq!(daemon.end(Signal::TERM), Some(0));
    assert_eq!(daemon.process("hpp-csi"), None, "the driver ends with the daemon");
    let mut run = daemon.started(&["run", file.to_str().unwrap()], Stdio::null(), Stdio::piped());
    eventually("the guest", || (daemon.status("mine") == "Running").then_some(()));
    kill(run.0.id(), Signal::INT);
    let said = rest(run.0.stdout.as_mut().unwrap());
    assert_eq!(end_of(&mut run.0, "run").code(), Some(0), "{said}");
    assert!(said.contains("stopping") && said.contains("ShuttingDown"), "{said}");
    assert_eq!(daemon.status("mine"), "Stopped");
    daemon.says(&["delete", "mine"]);
    nothing_left(&daemon);
}

#[test]
fn run_of_volumes_alone_reports_when_they_are_filled() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", code::HALTS);
    let volume = |name: &str, source: &str, class: &str| {
        format!(
            "\
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {{name: {name}}}
spec:
  source: {{{source}}}
  storage: {{{class}resources: {{requests: {{storage: 8Mi}}}}}}
---
"
        )
    };
    let run = |documents: &str, more: &[&str]| {
        let file = daemon.path("volumes.yaml");
        fs::write(&file, documents).unwrap();
        let output = daemon.command(&[&["run", file.to_str().unwrap()], more].concat());
        let told = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&told).into_owned())
    };
    let phase = |name: &str| daemon.object(&format!("dv/{name}")).unwrap()["status"]["phase"].clone();
    let source = format!("http: {{url: \"file://{}\"}}", image.display());
    let (code, told) = run(
        &(volume("mine", &source, "") + &volume("more", "blank: {}", "") + &volume("up", "upload: {}", "")),
        &[],
    );
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("ImportSucceeded: mine is filled"), "{told}");
    assert_eq!([phase("mine"), phase("more"), phase("up")], ["Succeeded", "Succeeded", "UploadReady"]);
    let (code, told) = run(&volume("lost", "http: {url: \"file:///nowhere/disk.img\"}", ""), &[]);
    assert!(code == Some(3) && told.contains("default/lost: DataVolumeError"), "{told}");
    assert!(told.contains("/nowhere/disk.img"), "{told}");
    let (code, told) = run(&volume("later", "http: {url: \"file:///nowhere/disk.img\"}", ""), &["--detach"]);
    assert_eq!(code, Some(0), "nobody waits: {told}");
    let (code, told) = run(&volume("nowhere", "blank: {}", "storageClassName: fast, "), &[]);
    assert!(code == Some(3) && told.contains("there is no pool \"fast\""), "{told}");
    for name in ["mine", "more", "up", "lost", "later", "nowhere"] {
        daemon.says(&["delete", &format!("dv/{name}")]);
    }
    nothing_left(&daemon);
}

#[test]
fn a_document_comes_from_standard_input_and_the_reset_button_is_pressed() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", code::HALTS);
    let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
    let mut run = daemon.started(&["run", "--detach", "-"], Stdio::piped(), Stdio::piped());
    run.0.stdin.take().unwrap().write_all(machine("mine", "Manual", &source, "").as_bytes()).unwrap();
    let said = rest(run.0.stdout.as_mut().unwrap());
    assert_eq!(end_of(&mut run.0, "run").code(), Some(0), "{said}");
    daemon.until_serial("mine", "K");
    let first = daemon.object("vmi/mine").unwrap()["metadata"]["uid"].clone();
    daemon.says(&["reset", "mine"]);
    daemon.until_serial("mine", "KK");
    assert_eq!(daemon.object("vmi/mine").unwrap()["metadata"]["uid"], first, "the same run");
    let output = daemon.command(&["unpause", "mine"]);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && told.contains("not paused"), "{output:?}");
    // A guest that stands still is ended within its grace, too.
    daemon.says(&["pause", "mine"]);
    daemon.until("mine", "Paused");
    daemon.says(&["restart", "mine"]);
    eventually("another run", || {
        let run = daemon.object("vmi/mine")?;
        (run["metadata"]["uid"] != first && run["status"]["phase"] == "Running").then_some(())
    });
    daemon.says(&["delete", "mine"]);
    nothing_left(&daemon);
}
