//! Volumes that come to a machine that runs, go, and grow, as its Linux sees them; and the rest of what Linux sees of its
//! machine's disks from one run to the next.

use std::fs;
use std::process::Stdio;

use crate::support::daemon::{self, Daemon, code, end_of, eventually, machine};
use crate::support::linux;

/// A DataVolume of nothing.
fn blank(name: &str, size: &str) -> String {
    format!(
        "\
apiVersion: cdi.kubevirt.io/v1beta1
kind: DataVolume
metadata: {{name: {name}}}
spec: {{source: {{blank: {{}}}}, storage: {{resources: {{requests: {{storage: {size}}}}}}}}}
---
"
    )
}

/// A claim as it is to be from now on.
fn claim(name: &str, size: &str) -> String {
    format!(
        "\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: {size}}}}}}}
---
"
    )
}

/// The entry of a run's volume in the status.
fn volume(daemon: &Daemon, run: &str, name: &str) -> Option<serde_json::Value> {
    let run = daemon.object(&format!("vmi/{run}"))?;
    run["status"]["volumeStatus"].as_array()?.iter().find(|one| one["name"] == name).cloned()
}

fn until_ready(daemon: &Daemon, run: &str, name: &str) {
    eventually(&format!("{name} of {run}: {}", daemon.log()), || {
        volume(daemon, run, name).filter(|one| one["phase"] == "Ready")
    });
}

fn until_gone(daemon: &Daemon, run: &str, name: &str) {
    eventually(&format!("{name} gone from {run}: {}", daemon.log()), || {
        volume(daemon, run, name).is_none().then_some(())
    });
}

fn has_condition(daemon: &Daemon, name: &str, kind: &str) -> bool {
    let machine = daemon.object(&format!("vm/{name}")).unwrap();
    let conditions = machine["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|one| one["type"] == kind && one["status"] == "True")
}

/// The last line of a guest's disks, as `NAME=SECTORS`.
fn disks(daemon: &Daemon, name: &str) -> String {
    let serial = daemon.serial(name);
    serial.lines().rfind(|line| line.starts_with("guest: disks ")).unwrap_or_default().trim().to_owned()
}

fn until_disks(daemon: &Daemon, name: &str, what: &str, wanted: impl Fn(&str) -> bool) {
    eventually(&format!("{what}: {}", daemon.log()), || wanted(&disks(daemon, name)).then_some(()));
}

#[test]
fn linux_sees_its_disks_come_go_and_grow_and_finds_again_what_it_wrote() {
    let daemon = Daemon::start();
    let image = daemon.path("linux.img");
    linux::disk(&image);
    let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
    let disks = "disks: [{name: root, disk: {bus: virtio}}, {name: kept, serial: kept, disk: {bus: virtio}}, \
                 {name: no-cloud, disk: {bus: virtio}}, {name: config, disk: {bus: virtio}}]";
    let document = machine("linux", "Always", &source, "")
        .replace("64Mi", "256Mi")
        .replace("8Mi", "64Mi")
        .replace("terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 600")
        .replace("disableHotplug: true, ", "")
        .replace("disks: [{name: root}]", disks)
        + "      - {name: kept, dataVolume: {name: kept}}\n\
           \x20     - {name: no-cloud, cloudInitNoCloud: {userData: \"#cloud-config from a document\", networkData: \"version: 2\"}}\n\
           \x20     - {name: config, cloudInitConfigDrive: {secretRef: {name: user}}}\n";
    let secret =
        "apiVersion: v1\nkind: Secret\nmetadata: {name: user}\nstringData: {userdata: from a Secret}\n---\n";
    daemon.run(&format!("{}{}{secret}{document}", blank("kept", "1Mi"), blank("more", "2Mi")));
    daemon.until_serial("linux", "guest: disks");
    let serial = daemon.serial("linux");
    for told in [
        "guest: cd cidata",
        "guest: /mnt/user-data: #cloud-config from a document",
        "guest: /mnt/network-config: version: 2",
        "\"local-hostname\":\"linux\"",
        "guest: cd config-2",
        "guest: /mnt/openstack/latest/user_data: from a Secret",
        "guest: kept .",
    ] {
        assert!(serial.contains(told), "{told}: {serial}");
    }

    // One comes, as virtctl gives it: for the run, and for the machine.
    let said = daemon.says(&["addvolume", "linux", "--volume-name", "more", "--dry-run"]);
    assert!(said.contains("Successfully submitted add volume request to VM linux for volume more"), "{said}");
    assert!(daemon.object("vm/linux").unwrap()["spec"]["template"]["spec"]["volumes"][4].is_null());
    daemon.says(&["addvolume", "linux", "--volume-name", "more", "--disk-name", "extra", "--cache", "none"]);
    until_disks(&daemon, "linux", "a disk comes", |disks| disks.contains(" sda=4096 "));
    until_ready(&daemon, "linux", "extra");
    let template = daemon.object("vm/linux").unwrap()["spec"]["template"]["spec"].clone();
    assert_eq!(template["volumes"][4]["dataVolume"]["hotpluggable"], true);
    assert_eq!(template["domain"]["devices"]["disks"][4]["serial"], "extra");
    assert!(!has_condition(&daemon, "linux", "RestartRequired"));

    // The targets of the disks are reported.
    eventually("targets", || {
        let target = |name| volume(&daemon, "linux", name).map(|one| one["target"].clone());
        let wanted = [("root", "vda"), ("kept", "vdb"), ("config", "vdd"), ("extra", "sda")];
        wanted.iter().all(|(name, dev)| target(name).is_some_and(|told| told == *dev)).then_some(())
    });

    // Its claim grows, and so does a disk that was there from the start; Linux is notified.
    daemon.says(&[
        "run",
        "--detach",
        write(&daemon, &(claim("more", "3Mi") + &claim("kept", "2Mi"))).as_str(),
    ]);
    until_disks(&daemon, "linux", "it grows", |disks| {
        disks.contains(" sda=6144 ") && disks.contains(" vdb=4096 ")
    });
    let smaller = write(&daemon, &claim("more", "1Mi"));
    let output = daemon.command(&["run", "--detach", &smaller]);
    assert_eq!(output.status.code(), Some(1), "nothing becomes smaller");

    // It is switched off by its power button long before its grace is over, and finds again what it wrote, with the new
    // disk.
    daemon.says(&["stop", "linux"]);
    daemon.until("linux", "Stopped");
    assert!(daemon.says(&["events", "linux"]).contains("was shut down"));
    daemon.says(&["start", "linux"]);
    daemon.until_serial("linux", "guest: disks");
    assert!(daemon.serial("linux").contains("guest: kept written before."), "{}", daemon.serial("linux"));
    until_disks(&daemon, "linux", "what came is there from the start", |disks| disks.contains(" sda=6144 "));
    daemon.says(&["removevolume", "linux", "--volume-name", "extra"]);
    until_disks(&daemon, "linux", "it goes", |disks| !disks.contains("sda"));
    until_gone(&daemon, "linux", "extra");
    let refused = daemon.command(&["removevolume", "linux", "--volume-name", "kept"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("because it is not hotpluggable"));
    daemon.says(&["delete", "linux", "dv/more", "dv/kept", "--force"]);
    assert_eq!(daemon.names("claims"), Vec::<String>::new());
}

/// A document next to the state directory.
fn write(daemon: &Daemon, text: &str) -> String {
    let file = daemon.path("more.yaml");
    fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

#[test]
fn linux_gets_processors_and_memory_while_it_runs() {
    let mut daemon = Daemon::start();
    let image = daemon.path("linux.img");
    linux::disk(&image);
    let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
    let document = |sockets: u32, memory: &str| {
        machine("linux", "Always", &source, "")
            .replace(
                "memory: {guest: 64Mi}",
                &format!("cpu: {{sockets: {sockets}}}\n        memory: {{guest: {memory}}}"),
            )
            .replace("8Mi", "64Mi")
            .replace("disableHotplug: true, ", "")
            .replace("disks: [{name: root}]", "disks: [{name: root, disk: {bus: virtio}}]")
    };
    let size = |daemon: &Daemon| {
        let serial = daemon.serial("linux");
        let line = serial.lines().rfind(|line| line.starts_with("guest: size "))?;
        let mut numbers =
            line.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u32>().ok());
        Some((numbers.next()?, numbers.next()?))
    };
    let until_size = |daemon: &Daemon, processors: u32, mebibytes: u32| {
        eventually(&format!("{processors} processors, {mebibytes} MiB: {}", daemon.log()), || {
            size(daemon).filter(|(count, memory)| *count == processors && *memory > mebibytes)
        });
    };
    let told = |daemon: &Daemon| daemon.object("vmi/linux").unwrap()["status"].clone();
    daemon.run(&document(1, "1Gi"));
    until_size(&daemon, 1, 800);
    let first = told(&daemon);
    assert_eq!(
        (&first["currentCPUTopology"]["sockets"], &first["memory"]["guestCurrent"]),
        (&1.into(), &"1Gi".into())
    );

    daemon.run(&document(2, "1280Mi"));
    until_size(&daemon, 2, 1050);
    eventually("the same told", || {
        let status = told(&daemon);
        let memory = &status["memory"];
        let all = status["currentCPUTopology"]["sockets"] == 2
            && (&memory["guestAtBoot"], &memory["guestRequested"]) == (&"1Gi".into(), &"1280Mi".into())
            && memory["guestCurrent"] == "1280Mi";
        (all && !has_condition(&daemon, "linux", "HotMemoryChange")).then_some(())
    });
    assert!(!has_condition(&daemon, "linux", "RestartRequired"));

    // Its disks are known to the next daemon and the next worker, and grow under them.
    daemon.end(rustix::process::Signal::KILL);
    daemon::kill(daemon.process(" worker ").unwrap(), rustix::process::Signal::KILL);
    daemon.again();
    daemon.run(&document(3, "1536Mi"));
    until_size(&daemon, 3, 1300);
    assert_eq!(told(&daemon)["memory"]["guestAtBoot"], "1Gi");

    // Less, and more than there is room for, waits for another run.
    for (sockets, memory) in [(1, "1536Mi"), (3, "1Gi"), (3, "64Gi")] {
        daemon.run(&document(sockets, memory));
        eventually("it is told", || has_condition(&daemon, "linux", "RestartRequired").then_some(()));
    }
    daemon.run(&document(3, "1536Mi"));
    eventually("nothing to tell", || (!has_condition(&daemon, "linux", "RestartRequired")).then_some(()));
    daemon.says(&["delete", "linux", "--force"]);
}

#[test]
fn volumes_follow_a_machines_document_and_survive_the_daemon() {
    let mut daemon = Daemon::start();
    let image = daemon.image("disk.img", code::HALTS);
    let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
    let plain = machine("mine", "Always", &source, "").replace("disableHotplug: true, ", "");
    let with = |volumes: &[&str]| {
        let disks: String =
            volumes.iter().map(|name| format!(", {{name: {name}, disk: {{bus: scsi}}}}")).collect();
        let volumes: String = volumes
            .iter()
            .map(|name| {
                format!("      - {{name: {name}, persistentVolumeClaim: {{claimName: {name}, hotpluggable: true}}}}\n")
            })
            .collect();
        plain.replace("disks: [{name: root}]", &format!("disks: [{{name: root}}{disks}]")) + &volumes
    };
    daemon.run(&(claim("a", "1Mi") + &claim("b", "1Mi") + &claim("c", "1Mi") + &plain));
    daemon.until_serial("mine", "K");
    daemon.run(&with(&["a", "b"]));
    until_ready(&daemon, "mine", "a");
    until_ready(&daemon, "mine", "b");
    // A SCSI disk goes without the guest's help; those that stay keep their places.
    daemon.run(&with(&["b", "c"]));
    until_gone(&daemon, "mine", "a");
    until_ready(&daemon, "mine", "c");
    assert!(!has_condition(&daemon, "mine", "RestartRequired"));
    // The daemon ends in the middle of the next moves, which go on.
    let file = write(&daemon, &with(&["a"]));
    let mut run = daemon.started(&["run", "--detach", &file], Stdio::null(), Stdio::null());
    eventually("the document", || {
        let machine = daemon.object("vm/mine")?;
        (machine["spec"]["template"]["spec"]["volumes"][1]["name"] == "a").then_some(())
    });
    daemon.end(rustix::process::Signal::KILL);
    end_of(&mut run.0, "run");
    daemon.again();
    until_ready(&daemon, "mine", "a");
    until_gone(&daemon, "mine", "b");
    until_gone(&daemon, "mine", "c");
    // A claim in use stays until it is let go of.
    daemon.says(&["delete", "pvc/a", "--no-wait"]);
    assert!(daemon.object("pvc/a").is_some());
    daemon.says(&["removevolume", "mine", "--volume-name", "a"]);
    eventually("the claim's end", || daemon.object("pvc/a").is_none().then_some(()));
    for (words, told) in [
        (
            &["addvolume", "mine", "--volume-name", "z"][..],
            "Volume z is not a DataVolume or PersistentVolumeClaim",
        ),
        (&["removevolume", "mine", "--volume-name", "z"], "[z] because it does not exist"),
        (
            &["addvolume", "mine", "--volume-name", "b", "--disk-name", "root"],
            "[root] because it already exists",
        ),
        (&["addvolume", "mine", "--volume-name", "b", "--serial", "a b"], ".serial"),
        (&["addvolume", "none", "--volume-name", "b"], "there is no VirtualMachine default/none"),
    ] {
        let output = daemon.command(words);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(told), "{words:?}: {said}");
    }
    daemon.says(&["delete", "mine", "--force"]);
}
