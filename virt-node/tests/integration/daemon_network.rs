//! The daemon's guests on networks, in a machine that is a namespace: attached as the status reports, kept over the daemon's
//! death and a boot, reached through ports of this machine, and removed with the guest.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};

use guests::telling;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::daemon::{
    Daemon, code, end_of, eventually, kill, linux_machine, machine, output, read_until, rest,
};
use crate::support::machine::{Machine, SERVER, files, ip, linux, page, run};

/// A VM whose disk is a file, on the pod network.
fn halting(daemon: &Daemon, name: &str) -> String {
    let image = daemon.image("disk.img", code::HALTS);
    let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
    machine(name, "Always", &source, "").replace("autoattachPodInterface: false, ", "")
}

/// Of a run's status.
fn interfaces(daemon: &Daemon, name: &str) -> Value {
    daemon.object(&format!("vmi/{name}")).unwrap()["status"]["interfaces"].clone()
}

/// All of the machine that a guest could leave something in: links, addresses, routes, rules, mounts, processes,
/// files.
fn traces(daemon: &Daemon) -> Vec<String> {
    let mut all: Vec<String> =
        ip("-o link show").lines().map(|line| line.split(": ").nth(1).unwrap().to_owned()).collect();
    all.push(ip("-o -4 addr show"));
    // The plugin's tables of bridge filters stay, empty: all runtimes of the machine share them.
    all.push(run("nft", &["list", "ruleset", "inet"]));
    all.extend(daemon.names("netns"));
    all.extend(files(&daemon.state().join("networks")));
    all.push(ip("-4 route show table all"));
    all.extend(daemon.mounts());
    let of_guests = |(_, line): &(u32, String)| !line.contains(" serve ") && !line.contains("hpp-csi");
    all.extend(daemon.processes().into_iter().filter(of_guests).map(|(_, line)| line));
    for folder in ["run", "claims", "guests", "images"] {
        all.extend(files(&daemon.state().join(folder)));
    }
    all
}

/// Nothing of a guest that runs has a way to more rights than binding low ports, and QEMU's calls are filtered.
fn has_no_privileges(daemon: &Daemon) {
    let processes = daemon.processes();
    for word in [" run --capabilities", " worker ", "qemu-system"] {
        let (process, _) = processes.iter().find(|(_, line)| line.contains(word)).expect(word);
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        let line = |name: &str| {
            let start = format!("{name}:");
            status.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default().trim()
        };
        let user = line("Uid").split_whitespace().next().unwrap().to_owned();
        assert!(user.parse::<u32>().unwrap() >= 1_900_000_000, "{word}: {status}");
        for name in ["Uid", "Gid"] {
            assert!(line(name).split_whitespace().all(|id| id == user), "{name} of {word}: {status}");
        }
        // CAP_NET_BIND_SERVICE is number 10.
        for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            let set = u64::from_str_radix(line(name), 16).unwrap();
            assert_eq!(set & !(1 << 10), 0, "{name} of {word}");
        }
        assert_eq!((line("Groups"), line("NoNewPrivs")), ("", "1"), "{word}");
        assert!(word != "qemu-system" || line("Seccomp") == "2", "{status}");
    }
}

/// Where a machine's devices are kept to be.
fn layout_of(daemon: &Daemon, name: &str) -> String {
    let machine = daemon.object(&format!("vm/{name}")).unwrap();
    let guest = daemon.state().join("guests").join(machine["metadata"]["uid"].as_str().unwrap());
    fs::read_to_string(guest.join("kept.json")).unwrap()
}

#[test]
fn a_guest_has_the_network_of_its_status_over_deaths_and_boots_and_leaves_nothing_of_it() {
    let _machine = Machine::new();
    let mut daemon = Daemon::with_taps(SERVER);
    let before = traces(&daemon);
    daemon.run(&halting(&daemon, "mine"));
    daemon.until_serial("mine", "K");
    let first = interfaces(&daemon, "mine");
    assert_eq!(first[0]["name"], "default");
    assert!(first[0]["ipAddress"].as_str().unwrap().starts_with("10.234."), "{first}");
    assert!(ip("-o link show").contains("fv0"));
    let places = layout_of(&daemon, "mine");
    // Its launcher is in the guest's namespace, and nothing else of the daemon is.
    assert_eq!(daemon.names("netns").len(), 1);
    let launcher = daemon.process(" run --capabilities").unwrap();
    let namespace = |process: u32| fs::read_link(format!("/proc/{process}/ns/net")).unwrap();
    assert_ne!(namespace(launcher), namespace(daemon.id()));
    has_no_privileges(&daemon);

    daemon.end(Signal::KILL);
    daemon.again();
    daemon.until("mine", "Running");
    assert_eq!(interfaces(&daemon, "mine"), first);
    // A boot takes the namespace and the links, and not the addresses.
    daemon.cut_power();
    ip("link del fv0");
    fs::write(daemon.state().join("boot"), "before").unwrap();
    daemon.again();
    daemon.until("mine", "Running");
    daemon.until_serial("mine", "K");
    assert_eq!(interfaces(&daemon, "mine"), first, "{}", daemon.log());
    assert_eq!(layout_of(&daemon, "mine"), places);
    // Nor does a stop, while another VM keeps the network.
    daemon.run(&halting(&daemon, "other"));
    daemon.says(&["stop", "mine", "--force"]);
    daemon.until("mine", "Stopped");
    daemon.says(&["start", "mine"]);
    daemon.until_serial("mine", "K");
    assert_eq!(interfaces(&daemon, "mine"), first, "{}", daemon.log());

    daemon.says(&["delete", "mine", "other", "--force"]);
    assert_eq!(traces(&daemon), before);
}

#[test]
fn remains_of_a_boot_are_removed_with_a_stopped_machine() {
    let _machine = Machine::new();
    let mut daemon = Daemon::with_taps(SERVER);
    let before = traces(&daemon);
    daemon.run(&halting(&daemon, "mine").replace("runStrategy: Always", "runStrategy: Once"));
    daemon.until_serial("mine", "K");
    daemon.cut_power();
    ip("link del fv0");
    fs::write(daemon.state().join("boot"), "before").unwrap();
    daemon.again();
    daemon.until("mine", "Stopped");
    assert_ne!(traces(&daemon), before, "its addresses are kept");
    daemon.says(&["delete", "mine", "--force"]);
    assert_eq!(traces(&daemon), before);
}

#[test]
fn a_missing_network_is_reported_by_its_field() {
    let _machine = Machine::new();
    let daemon = Daemon::start();
    let more = "      networks: [{name: other, multus: {networkName: missing}}]";
    let document = machine("lost", "Always", "{blank: {}}", more)
        .replace("autoattachPodInterface: false, ", "interfaces: [{name: other, bridge: {}}], ");
    let file = daemon.path("lost.yaml");
    fs::write(&file, document).unwrap();
    let child = daemon.started(&["run", "--detach", file.to_str().unwrap()], Stdio::null(), Stdio::null());
    eventually("a word about the network", || {
        let told = daemon.says(&["events", "lost"]);
        (told.contains("spec.networks[0].multus.networkName") && told.contains("missing")).then_some(())
    });
    drop(child);
    daemon.says(&["delete", "lost"]);
    assert_eq!(daemon.names("netns"), Vec::<String>::new());
}

#[test]
fn blocked_forwarding_and_a_used_subnet_are_reported() {
    let _machine = Machine::new();
    let mut daemon = Daemon::with_taps(SERVER);
    ip(&format!("route add 10.234.0.0/16 via {SERVER}"));
    run("nft", &["add table ip filter"]);
    run("nft", &["add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }"]);
    daemon.run(&halting(&daemon, "mine"));
    daemon.until_serial("mine", "K");
    let address = interfaces(&daemon, "mine")[0]["ipAddress"].as_str().unwrap().to_owned();
    assert!(address.starts_with("172.29.128."), "another subnet: {address}");
    let told = daemon.says(&["get", "vm/mine", "-o", "json"]);
    assert!(told.contains("NetworkNotes") && told.contains("iptables -I FORWARD -i fv0 -j ACCEPT"), "{told}");
    daemon.says(&["delete", "mine", "--force"]);
    // One that is asked for is not changed behind anybody's back.
    daemon.end(Signal::TERM);
    daemon.again_with(&["--pod-network", "10.234.7.0/24"]);
    let document = halting(&daemon, "other");
    let file = daemon.path("other.yaml");
    fs::write(&file, document).unwrap();
    let child = daemon.started(&["run", "--detach", file.to_str().unwrap()], Stdio::null(), Stdio::null());
    eventually("a word about the subnet", || {
        let told = daemon.says(&["events", "other"]);
        (told.contains("10.234.7.0/24") && told.contains("10.234.0.0/16")).then_some(())
    });
    drop(child);
    daemon.says(&["delete", "other", "--force"]);
}

#[test]
fn linux_reaches_out_and_is_reached_by_its_address_and_by_forwarded_ports() {
    let mut machine = Machine::new();
    machine.serve("from outside");
    machine.name_server();
    let daemon = Daemon::with_taps(SERVER);
    let disk = daemon.path("linux.img");
    linux(&disk);
    let interface =
        "[{name: default, masquerade: {}, macAddress: \"02:00:00:00:0a:01\", ports: [{port: 80}]}]";
    daemon.run(&linux_machine("mine", &disk, interface, "[{name: default, pod: {}}]"));
    daemon.until_serial("mine", "guest: eth0 is 10.0.2.2/24 02:00:00:00:0a:01");
    daemon.until_serial("mine", "guest: outside says from outside");
    daemon.until_serial("mine", &format!("guest: outside.example is Address: {SERVER}"));
    let status = interfaces(&daemon, "mine");
    assert_eq!(status[0]["mac"], "02:00:00:00:0a:01");
    let address: std::net::IpAddr = status[0]["ipAddress"].as_str().unwrap().parse().unwrap();
    let seen = eventually("the guest's page", || page((address, 80).into()));
    assert!(seen.contains("from the guest"), "{seen}");
    // It is served, and not on the list.
    assert_eq!(page((address, 81).into()), None);

    // Ports of this machine that lead there; each prints its address.
    let words = ["port-forward", "mine", "0:80", "tcp/0:81"];
    let mut forward = daemon.started(&words, Stdio::null(), Stdio::piped());
    let mut port = || {
        let line = read_until(forward.0.stdout.as_mut().unwrap(), "\n");
        line.split(' ').nth(2).unwrap().parse::<std::net::SocketAddr>().unwrap()
    };
    let (open, closed) = (port(), port());
    for _ in 0..3 {
        assert!(page(open).unwrap().contains("from the guest"));
    }
    assert_eq!(page(closed).as_deref().unwrap_or_default(), "");
    kill(forward.0.id(), Signal::TERM);
    end_of(&mut forward.0, "port-forward");

    // One connection on standard input and output, to its end.
    let words = ["port-forward", "--stdio=true", "vmi/mine", "80"];
    let mut one = daemon.started(&words, Stdio::piped(), Stdio::piped());
    one.0.stdin.take().unwrap().write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
    let text = rest(one.0.stdout.as_mut().unwrap());
    assert!(text.contains("from the guest") && end_of(&mut one.0, "port-forward").success(), "{text}");

    // Ssh gets a working way to the guest: a script in its place uses it as ssh does.
    let bin = daemon.path("bin");
    fs::create_dir(&bin).unwrap();
    let script = "#!/bin/sh\ncommand=$(printf %s \"${2#ProxyCommand=}\" | sed s/%%/%/g)\nprintf 'GET / HTTP/1.0\\r\\n\\r\\n' | exec sh -c \"exec $command\"\n";
    fs::write(bin.join("ssh"), script).unwrap();
    fs::set_permissions(bin.join("ssh"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut ssh = Command::new(env!("CARGO_BIN_EXE_virt-node"));
    ssh.args(["ssh", "root@mine", "--port", "80", "--state"]).arg(daemon.state()).env("PATH", path);
    let output = output(ssh.stdin(Stdio::null()));
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("from the guest"), "{output:?}");

    daemon.says(&["pause", "mine"]);
    daemon.until("mine", "Paused");
    let refused = daemon.command(&["port-forward", "mine", "0:80"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("paused"), "{refused:?}");
    assert_eq!(refused.status.code(), Some(1));
    daemon.says(&["delete", "mine", "--force"]);
    assert_eq!(daemon.names("netns"), Vec::<String>::new());
}

#[test]
fn two_guests_on_a_bridge_have_the_addresses_of_their_status_and_reach_each_other() {
    let _machine = Machine::new();
    let daemon = Daemon::with_taps(SERVER);
    let before = traces(&daemon);
    let disk = daemon.path("linux.img");
    linux(&disk);
    let addresses = daemon.path("addresses");
    let network = format!(
        "\
apiVersion: k8s.cni.cncf.io/v1
kind: NetworkAttachmentDefinition
metadata: {{name: blue}}
spec:
  config: '{{\"cniVersion\": \"1.0.0\", \"type\": \"cnv-bridge\", \"bridge\": \"br1\", \"ipam\":
    {{\"type\": \"host-local\", \"dataDir\": \"{}\", \"subnet\": \"192.0.2.0/24\"}}}}'
",
        addresses.display()
    );
    let guest = |number: u8| {
        let interface = format!("[{{name: blue, bridge: {{}}, macAddress: \"02:00:00:00:0b:0{number}\"}}]");
        linux_machine(
            &format!("vm{number}"),
            &disk,
            &interface,
            "[{name: blue, multus: {networkName: blue}}]",
        )
    };
    daemon.run(&[network, guest(1), guest(2)].join("---\n"));
    let status = [1, 2].map(|number| interfaces(&daemon, &format!("vm{number}"))[0].clone());
    let text = |number: usize, key: &str| status[number][key].as_str().unwrap().to_owned();
    for number in [0, 1] {
        let (address, mac) = (text(number, "ipAddress"), text(number, "mac"));
        assert_eq!(mac, format!("02:00:00:00:0b:0{}", number + 1));
        daemon.until_serial(&format!("vm{}", number + 1), &format!("guest: eth0 is {address}/24 {mac}"));
    }
    for (this, other) in [(0, 1), (1, 0)] {
        let said = format!("guest: {} answers from {}", text(other, "ipAddress"), text(other, "mac"));
        daemon.until_serial(&format!("vm{}", this + 1), &said);
    }
    // The first gets one more interface by its document, and loses it again.
    let two = |state: &str| {
        let interfaces = format!(
            "[{{name: blue, bridge: {{}}, macAddress: \"02:00:00:00:0b:01\"}}, \
             {{name: more, bridge: {{}}, macAddress: \"02:00:00:00:0b:03\"{state}}}]"
        );
        let networks =
            "[{name: blue, multus: {networkName: blue}}, {name: more, multus: {networkName: blue}}]";
        linux_machine("vm1", &disk, &interfaces, networks)
    };
    daemon.run(&two(""));
    let more = eventually("the interface", || interfaces(&daemon, "vm1").get(1).cloned());
    let address = more["ipAddress"].as_str().unwrap();
    daemon.until_serial("vm1", &format!("guest: eth1 is {address}/24 02:00:00:00:0b:03"));
    assert!(layout_of(&daemon, "vm1").contains("net-more"));
    daemon.run(&two(", state: absent"));
    eventually("one interface", || interfaces(&daemon, "vm1").get(1).is_none().then_some(()));
    let told = daemon.says(&["get", "vm/vm1", "-o", "json"]);
    assert!(!told.contains("RestartRequired"), "{told}");
    daemon.says(&["delete", "vm1", "vm2", "net-attach-def/blue", "--force"]);
    // The bridge is the network's, as the reference has it: it stays, and nothing else.
    ip("link del br1");
    assert_eq!(traces(&daemon), before);
}

/// Manifests that every run of the tests starts; all are started with `FERROVIRT_SOAK=1`.
const SOME: [&str; 4] = ["blank", "config", "instance", "network"];

#[test]
fn manifests_run_unchanged_and_their_guests_report_the_recorded_facts() {
    let _machine = Machine::new();
    let daemon = Daemon::with_taps(SERVER);
    telling::image(&daemon.path("guest.qcow2"));
    let server = format!("file://{}", daemon.path("").display());
    let all = std::env::var_os("FERROVIRT_SOAK").is_some();
    // Writes the reports down; the test in a cluster then compares with it.
    let record = std::env::var_os("FERROVIRT_RECORD").is_some();
    let manifests = telling::manifests().into_iter();
    for manifest in manifests.filter(|one| all || record || SOME.contains(&one.name.as_str())) {
        let name = manifest.name.as_str();
        daemon.run(&manifest.with_server(server.trim_end_matches('/')));
        daemon.until_serial_within(name, telling::TOLD, std::time::Duration::from_secs(120));
        let facts = telling::facts(&daemon.serial(name)).unwrap();
        if record {
            manifest.record(&facts);
        } else {
            assert_eq!(facts, manifest.facts, "{name}");
        }
        let kind = if name == "instance" { "vmi" } else { "vm" };
        daemon.says(&["delete", &format!("{kind}/{name}")]);
    }
}
