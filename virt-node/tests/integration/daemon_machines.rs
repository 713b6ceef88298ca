//! Guests with more than a disk: EFI with a TPM, a watchdog, a disk on full storage. And the objects' reports about them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::json;

use crate::support::daemon::{Daemon, bootable, code, eventually, machine, output};
use crate::support::linux;

/// A machine on a disk image.
fn on(image: &std::path::Path, name: &str) -> String {
    machine(name, "Always", &format!("{{http: {{url: \"file://{}\"}}}}", image.display()), "")
}

#[test]
fn linux_boots_by_efi_with_a_tpm_that_it_finds_again() {
    let daemon = Daemon::start();
    let image = daemon.path("linux.img");
    linux::disk(&image);
    let document = on(&image, "efi")
        .replace("64Mi}", "512Mi}")
        .replace("8Mi", "64Mi")
        .replace(
            "disks: [{name: root}]",
            "tpm: {persistent: true}, disks: [{name: root, disk: {bus: virtio}}]",
        )
        .replace(
            "        memory:",
            "        firmware: {bootloader: {efi: {secureBoot: false, persistent: true}}}\n        memory:",
        );
    daemon.run(&document);
    daemon.until_serial("efi", "guest: disks");
    let serial = daemon.serial("efi");
    assert!(serial.contains("guest: efi") && serial.contains("guest: tpm 2"), "{serial}");
    let uid = daemon.object("vm/efi").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    let kept = daemon.names(&format!("guests/{uid}/vm"));
    assert!(kept.iter().any(|name| name == "nvram.fd"), "EFI's variables are kept: {kept:?}");
    let guests = daemon.names(&format!("guests/{uid}/vm/swtpm"));
    let [guest] = guests.as_slice() else { panic!("the TPM's memory is kept: {guests:?}") };
    let memory = daemon.names(&format!("guests/{uid}/vm/swtpm/{guest}/tpm2"));
    assert!(memory.iter().any(|name| name.ends_with(".permall")), "{memory:?}");
    daemon.says(&["delete", "efi", "--force"]);
    assert_eq!(daemon.names("guests"), Vec::<String>::new());
    let swtpm = daemon.processes().into_iter().find(|(_, line)| line.contains("swtpm"));
    assert_eq!(swtpm, None);
}

#[test]
fn objects_report_the_features_of_a_guest() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", code::HALTS);
    let document = on(&image, "mine")
        .replace("memory: {guest: 64Mi}", "cpu: {cores: 2, maxSockets: 2}\n        memory: {guest: 64Mi}")
        .replace(
            "terminationGracePeriodSeconds:",
            "evictionStrategy: None\n      terminationGracePeriodSeconds:",
        );
    let said = daemon.run(&document);
    let ignored = "spec.template.spec.evictionStrategy";
    assert!(said.contains(&format!("ignored {ignored}")), "{said}");
    assert!(said.contains("once for this machine"), "what takes seconds is told: {said}");
    daemon.until_serial("mine", "K");
    let run = daemon.object("vmi/mine").unwrap();
    let status = &run["status"];
    assert_eq!(status["currentCPUTopology"], json!({"cores": 2, "sockets": 1, "threads": 1}));
    let memory = json!({"guestAtBoot": "64Mi", "guestCurrent": "64Mi", "guestRequested": "64Mi"});
    assert_eq!(status["memory"], memory);
    assert_eq!((&status["runtimeUser"], &status["phase"]), (&json!(daemon.user("mine")), &json!("Running")));
    assert!(status["machine"]["type"].as_str().unwrap().starts_with("pc-q35-"), "{status}");
    assert_eq!(status["volumeStatus"][0]["persistentVolumeClaimInfo"]["claimName"], "mine-root");
    let phases = status["phaseTransitionTimestamps"].as_array().unwrap().iter();
    let phases: Vec<&str> = phases.map(|one| one["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["Pending", "Scheduling", "Scheduled", "Running"]);
    let condition = |object: &str, kind: &str| {
        let object = daemon.object(object).unwrap();
        let conditions = object["status"]["conditions"].as_array().unwrap();
        let mut found = conditions.iter().filter(|one| one["type"] == kind);
        let one = found.next().cloned();
        assert!(found.next().is_none(), "{kind} is there twice: {conditions:?}");
        one.map(|one| (one["status"].as_str().unwrap().to_owned(), one["message"].to_string()))
    };
    for object in ["vm/mine", "vmi/mine"] {
        for (kind, wanted) in [
            ("Ready", "True"),
            ("DataVolumesReady", "True"),
            ("Synchronized", "True"),
            ("SoftwareEmulation", "True"),
            ("LiveMigratable", "False"),
        ] {
            let found = condition(object, kind).map(|(status, _)| status);
            assert_eq!(found.as_deref(), Some(wanted), "{kind} of {object}");
        }
        assert_eq!(condition(object, "AgentConnected"), None);
    }
    let (status, message) = condition("vm/mine", "FieldsWithoutEffect").unwrap();
    assert!(status == "True" && message.contains(ignored), "{message}");
    // In its next run it has the same processors, by their name.
    let processor = || {
        let found = daemon.processes().into_iter().find(|(_, line)| line.contains("qemu-system"));
        let (_, line) = found.unwrap();
        line.split(" -cpu ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
    };
    let first = processor();
    daemon.says(&["restart", "mine", "--force"]);
    eventually("another run", || {
        let next = daemon.object("vmi/mine")?;
        (next["metadata"]["uid"] != run["metadata"]["uid"] && next["status"]["phase"] == "Running")
            .then_some(())
    });
    let folder = daemon.run_folder("mine").unwrap();
    let launch = fs::read_to_string(folder.join("launch.json")).unwrap();
    let launch: serde_json::Value = serde_json::from_str(&launch).unwrap();
    assert!(launch["cpu"]["model"]["named"].is_string(), "{}", launch["cpu"]);
    assert_eq!(processor(), first);
    // It goes with the field.
    daemon.run(&document.replace("evictionStrategy: None\n      ", ""));
    assert_eq!(condition("vm/mine", "FieldsWithoutEffect"), None);
    daemon.says(&["delete", "mine", "--force"]);
}

#[test]
fn a_watchdog_that_barks_resets_its_guest() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.img", guests::boot::WATCHED);
    let document =
        on(&image, "dog").replace("disks: [", "watchdog: {name: dog, i6300esb: {action: reset}}, disks: [");
    daemon.run(&document);
    daemon.until_serial("dog", "WW");
    assert!(daemon.says(&["events", "dog"]).contains("Watchdog"));
    assert_eq!(daemon.status("dog"), "Running");
    daemon.says(&["delete", "dog", "--force"]);
}

/// A small filesystem in memory, unmounted when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(path: PathBuf, options: &str) -> Self {
        fs::create_dir(&path).unwrap();
        let small = Self(path);
        small.tool("mount", &["-t", "tmpfs", "-o", options, "tmpfs"]);
        small
    }

    fn tool(&self, name: &str, words: &[&str]) {
        let output = output(Command::new(name).args(words).arg(&self.0));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.0).output());
    }
}

#[test]
fn a_guest_on_full_storage_pauses_until_there_is_room() {
    let daemon = Daemon::start();
    // Unmounted before the daemon's folder is removed: declared later, dropped earlier.
    let small = Small::mount(daemon.path("small"), "size=8m,mode=755");
    let disk = small.0.join("disk.img");
    fs::write(&disk, bootable(code::FILLS)).unwrap();
    fs::File::options().write(true).open(&disk).unwrap().set_len(32 << 20).unwrap();
    daemon.run(&format!(
        "\
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: full}}
spec:
  runStrategy: Always
  template:
    spec:
      terminationGracePeriodSeconds: 0
      domain:
        memory: {{guest: 64Mi}}
        devices: {{disableHotplug: true, autoattachPodInterface: false, disks: [{{name: root}}]}}
      volumes:
      - {{name: root, hostDisk: {{path: \"{}\", type: Disk}}}}
",
        disk.display()
    ));
    daemon.until("full", "Paused");
    let run = daemon.object("vmi/full").unwrap();
    let conditions = run["status"]["conditions"].as_array().unwrap();
    let paused = conditions.iter().find(|one| one["type"] == "Paused").unwrap();
    assert_eq!(paused["reason"], "PausedIOError");
    // Without more room it stands still again.
    daemon.says(&["unpause", "full"]);
    eventually("the reason", || {
        let events = daemon.says(&["events", "full"]);
        (events.contains("IOerror") && events.contains("enospc")).then_some(())
    });
    daemon.until("full", "Paused");
    assert!(!daemon.serial("full").contains(['D', 'E']));
    small.tool("mount", &["-o", "remount,size=64m"]);
    daemon.says(&["unpause", "full"]);
    daemon.until_serial("full", "D");
    assert_eq!(daemon.status("full"), "Running");
    assert!(!daemon.serial("full").contains('E'), "the guest saw no error");
    daemon.says(&["delete", "full", "--force"]);
}

/// A stock host's /dev/kvm is its group's: the daemon is root and opens it, and the guest did not.
#[test]
fn a_guest_starts_with_and_without_access_to_kvm_and_the_reason_is_reported() {
    for (group, reason, remedy) in
        [(0, "/dev/kvm: permission denied", "chgrp kvm /dev/kvm"), (1234, "/dev/kvm opens, but", "nested")]
    {
        let daemon = Daemon::with_kvm(0o660, group);
        let image = daemon.image("disk.img", code::HALTS);
        let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
        daemon.run(&machine("mine", "Always", &source, ""));
        daemon.until_serial("mine", "K");
        let told = |text: &str| [reason, remedy, "software"].iter().all(|words| text.contains(words));
        let events = daemon.says(&["events", "mine"]);
        assert!(events.contains("SoftwareEmulation") && told(&events), "{group}: {events}");
        daemon.until("mine", "Running");
        let run = daemon.object("vmi/mine").unwrap();
        let conditions = run["status"]["conditions"].as_array().unwrap();
        let condition = conditions.iter().find(|one| one["type"] == "SoftwareEmulation").unwrap();
        assert!(told(condition["message"].as_str().unwrap()), "{group}: {condition}");
        daemon.says(&["delete", "mine", "--force"]);
    }
}

/// Another service got numbers of VMs, of one that ran and of those to come.
#[test]
fn no_vm_runs_under_a_number_of_another_account() {
    let daemon = Daemon::with_accounts();
    let image = daemon.image("disk.img", code::HALTS);
    let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
    daemon.run(&machine("mine", "Always", &source, ""));
    daemon.until_serial("mine", "K");
    let before = daemon.user("mine");
    let first = daemon.object("vmi/mine").unwrap()["metadata"]["uid"].clone();
    // In place: it is the file that is mounted.
    let add = |name: &str, lines: &str| {
        let mut file = fs::File::options().append(true).open(daemon.path(name)).unwrap();
        std::io::Write::write_all(&mut file, lines.as_bytes()).unwrap();
    };
    add("passwd", &format!("mysql:x:{before}:5:::\n"));
    let range: Vec<u32> = (before + 1..before + 20).collect();
    add("group", &range.iter().map(|id| format!("tss{id}:x:{id}:\n")).collect::<String>());
    daemon.says(&["restart", "mine", "--force"]);
    eventually("another run", || {
        let next = daemon.object("vmi/mine")?;
        (next["metadata"]["uid"] != first && next["status"]["phase"] == "Running").then_some(())
    });
    daemon.until_serial("mine", "K");
    daemon.run(&machine("other", "Always", &source, ""));
    daemon.until_serial("other", "K");
    let users = [daemon.user("mine"), daemon.user("other")];
    for user in users {
        assert!(user != before && !range.contains(&user), "{users:?}: taken are {before} and {range:?}");
        let runs = daemon.processes().into_iter().filter(|(id, line)| {
            let owner =
                fs::metadata(format!("/proc/{id}")).map(|facts| std::os::unix::fs::MetadataExt::uid(&facts));
            line.contains("qemu-system") && owner.is_ok_and(|owner| owner == user)
        });
        assert_eq!(runs.count(), 1, "{users:?}");
    }
    let taken = daemon.processes().into_iter().filter(|(id, _)| {
        let owner =
            fs::metadata(format!("/proc/{id}")).map(|facts| std::os::unix::fs::MetadataExt::uid(&facts));
        owner.is_ok_and(|owner| owner == before || range.contains(&owner))
    });
    assert_eq!(taken.collect::<Vec<_>>(), Vec::new());
    for name in ["mine", "other"] {
        daemon.says(&["delete", name, "--force"]);
    }
}
