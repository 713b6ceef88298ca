//! A whole Debian, as people run it: systemd, its usual kernel, cloud-init, the guest agent. Its disk is on SATA and it has a
//! watchdog, which small guests' kernels know nothing of. Minutes under emulation: `make soak` runs it.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use api::launcher::{Answer, Request};
use guest::Client;
use serde_json::Value;

use crate::support::daemon::{Daemon, eventually_within};
use crate::support::machine::{Machine, SERVER};

/// How long a boot, or a way down, may take in software on a machine that does other things too.
const BOOT: Duration = Duration::from_secs(1800);

/// The cloud-init configuration: in each boot, and once for an instance. None of it waits for DNS.
const USER_DATA: &str = r#"#cloud-config
locale: false
bootcmd:
- |
  echo "guest: boot" > /dev/ttyS0
runcmd:
- |
  echo "guest: once for $(cat /var/lib/cloud/data/instance-id) by $(cat /run/cloud-init/cloud-id)" > /dev/ttyS0
  echo "guest: $(hostname) has $(ip -4 -o addr show scope global | sed 's/.*inet //; s/ .*//')" > /dev/ttyS0
  echo "guest: on $(findmnt -no SOURCE /), $(($(findmnt -bno SIZE /) >> 20)) MiB" > /dev/ttyS0
final_message: "guest: cloud-init is through"
"#;

/// A Debian on a disk of 4 GiB, on this bus; `cloud` is the volume with its data.
fn document(name: &str, disk: &Path, bus: &str, cloud: &str) -> String {
    format!(
        "\
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: {name}}}
spec:
  runStrategy: RerunOnFailure
  dataVolumeTemplates:
  - metadata: {{name: {name}-root}}
    spec:
      source: {{http: {{url: \"file://{}\"}}}}
      storage: {{resources: {{requests: {{storage: 4Gi}}}}}}
  template:
    spec:
      terminationGracePeriodSeconds: 1800
      domain:
        memory: {{guest: 768Mi}}
        devices:
          watchdog: {{name: dog, i6300esb: {{action: shutdown}}}}
          disks: [{{name: root, disk: {{bus: {bus}}}}}, {{name: cloud, disk: {{bus: {bus}}}}}]
          interfaces: [{{name: default, masquerade: {{}}}}]
      networks: [{{name: default, pod: {{}}}}]
      volumes:
      - {{name: root, dataVolume: {{name: {name}-root}}}}
      - {{name: cloud, {cloud}}}
",
        disk.display()
    )
}

fn until_said(daemon: &Daemon, name: &str, text: &str) {
    let until = Instant::now() + BOOT;
    while !daemon.serial(name).contains(text) {
        assert!(Instant::now() < until, "{text} of {name}: {}\n{}", daemon.serial(name), daemon.log());
        sleep(Duration::from_millis(500));
    }
}

/// Waits until the objects report the guest's agent.
fn until_agent(daemon: &Daemon, name: &str) {
    eventually_within(BOOT, "the guest's agent", || {
        let run = daemon.object(&format!("vmi/{name}"))?;
        let conditions = run["status"]["conditions"].as_array()?.clone();
        conditions.iter().any(|one| one["type"] == "AgentConnected" && one["status"] == "True").then_some(())
    });
}

/// The answer of the guest's agent.
fn agent(daemon: &Daemon, name: &str, command: &str) -> Value {
    let folder = daemon.run_folder(name).expect("a run");
    let mut client = Client::connect(&folder).unwrap();
    let Answer::Agent(said) =
        client.call(Request::Agent { command: command.to_owned(), timeout_seconds: 120 }).unwrap()
    else {
        panic!("an answer of the agent")
    };
    serde_json::from_str(&said).unwrap()
}

#[test]
#[ignore = "its boots take many minutes under emulation: make soak runs it"]
fn cloud_init_and_the_agent_of_a_whole_debian_know_their_machine() {
    let begun = Instant::now();
    let disk = guests::debian();
    let _machine = Machine::new();
    let mut daemon = Daemon::with_taps(SERVER);
    let user_data = serde_json::to_string(USER_DATA).unwrap();
    let network =
        serde_json::to_string("version: 2\nethernets: {all: {match: {name: \"e*\"}, dhcp4: true}}").unwrap();
    let secret = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: user}}\nstringData: {{userdata: {user_data}}}\n---\n"
    );
    let inline = format!("cloudInitNoCloud: {{userData: {user_data}, networkData: {network}}}");
    daemon.run(&document("sata", &disk, "sata", &inline));
    daemon.run(
        &(secret + &document("drive", &disk, "virtio", "cloudInitConfigDrive: {secretRef: {name: user}}")),
    );
    let uid = daemon.object("vm/drive").unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
    for (name, instance, root) in [
        ("sata", "sata.default by nocloud".to_owned(), "/dev/sda2"),
        ("drive", format!("{uid} by configdrive"), "/dev/vda2"),
    ] {
        until_said(&daemon, name, &format!("guest: once for {instance}"));
        // The address that the launcher gives guests behind masquerade; its name is the VM's.
        until_said(&daemon, name, &format!("guest: {name} has 10.0.2.2/24"));
        until_said(&daemon, name, &format!("guest: on {root}, "));
        // It found that its disk is larger than its image.
        let serial = daemon.serial(name);
        let size = serial.split(&format!("on {root}, ")).nth(1).unwrap().split(' ').next().unwrap();
        assert!(size.parse::<u32>().unwrap() > 3000, "{size} MiB");
        println!("{name}: known to cloud-init after {:?}", begun.elapsed());
    }

    // Both agents are known by their daemon, and by the one after it.
    until_agent(&daemon, "sata");
    until_agent(&daemon, "drive");
    daemon.end(rustix::process::Signal::KILL);
    daemon.again();
    until_agent(&daemon, "sata");
    let told = agent(&daemon, "sata", "{\"execute\": \"guest-get-osinfo\"}");
    assert_eq!(told["return"]["id"], "debian", "{told}");
    eventually_within(BOOT, "what the guest is", || {
        (daemon.object("vmi/sata")?["status"]["guestOSInfo"]["id"] == "debian").then_some(())
    });
    daemon.says(&["delete", "drive", "--force"]);

    // Systemd obeys the power button; the next run is the same instance, for which all was done.
    daemon.says(&["stop", "sata"]);
    daemon.until_within("sata", "Stopped", BOOT);
    assert!(daemon.says(&["events", "sata"]).contains("was shut down"));
    daemon.says(&["start", "sata"]);
    until_said(&daemon, "sata", "guest: boot");
    until_said(&daemon, "sata", "guest: cloud-init is through");
    assert!(!daemon.serial("sata").contains("guest: once"), "the instance is known");
    until_agent(&daemon, "sata");
    println!("booted again after {:?}", begun.elapsed());

    // The watchdog's daemon is gone: it barks, and the guest is asked to shut down.
    let command = "modprobe i6300esb; until [ -e /dev/watchdog ]; do sleep 1; done; echo > /dev/watchdog";
    let command = serde_json::json!({"execute": "guest-exec",
        "arguments": {"path": "/bin/sh", "arg": ["-c", command]}});
    agent(&daemon, "sata", &command.to_string());
    daemon.until_within("sata", "Stopped", BOOT);
    let events = daemon.says(&["events", "sata"]);
    assert!(events.contains("Watchdog"), "{events}");
    daemon.says(&["delete", "sata", "--force"]);
    assert_eq!((daemon.names("claims"), daemon.names("netns")), (Vec::new(), Vec::new()));
    println!("done after {:?}", begun.elapsed());
}
