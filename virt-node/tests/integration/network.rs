//! Guests' networks, without guests: what is attached, what is left, what comes of failures. Each test is a machine of its
//! own.

use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use link::Namespace;
use virt_node::network::{
    Addresses, Binding, Configuration, Forwarder, Interface, Names, Places, PodNetwork, Port, Resolvers,
    WantedNetworks, attach, attach_again, check, collect, detach, pod_gateway, status,
};

use crate::support::machine::{Machine, SERVER, files, inside, ip, links, nic, run};

/// A network with addresses of its own on the bridge `br1`.
fn blue(state: &Path) -> Configuration {
    let text = format!(
        r#"{{"cniVersion": "1.0.0", "name": "blue", "plugins": [{{"type": "bridge", "bridge": "br1", "mtu": 1300,
        "ipam": {{"type": "host-local", "dataDir": "{}", "subnet": "192.0.2.0/24",
        "routes": [{{"dst": "203.0.113.0/24", "gw": "192.0.2.1"}}]}}}}]}}"#,
        state.join("blue").display()
    );
    Configuration::read(&text, "blue").unwrap()
}

/// A guest that is on such a network, by a bridge.
fn bridged(machine: &Machine, name: &str, number: u8) -> WantedNetworks {
    let mut guest = machine.guest(name);
    guest.interfaces[0] = Interface {
        name: "blue".to_owned(),
        names: Names::primary(),
        network: blue(machine.folder.path()),
        binding: Binding::Bridge,
        mac: link::Mac([2, 0, 0, 0, 1, number]),
        many_queues: true,
    };
    guest
}

#[test]
fn a_guest_behind_masquerade_has_what_it_wants_and_leaves_nothing() {
    let machine = Machine::new();
    let before = machine.all();
    let guest = machine.guest("vm");
    status(&machine.places, &guest.interfaces[0].network).unwrap();
    let attached = attach(&machine.places, &guest).unwrap();
    let one = nic(&attached);
    assert_eq!((one.tap.link.as_str(), one.tap.mac.as_str()), ("tap0", "02:00:00:00:00:10"));
    assert_eq!((one.tap.mtu, one.pod_interface.as_str()), (1400, "eth0"), "the uplink's");
    assert_eq!(one.addresses.len(), 1);
    let dhcp = one.tap.dhcp.as_ref().unwrap();
    assert_eq!(dhcp.v4.as_ref().unwrap().address.to_string(), "10.0.2.2");
    assert_eq!(dhcp.resolvers, [SERVER.parse::<IpAddr>().unwrap()]);
    let shown = inside(&attached.namespace, || ip("-d -o link show") + &ip("-o addr show"));
    for part in ["k6t-eth0", "user 107 ", "mtu 1400", "10.0.2.1/24", &format!("{}/16", one.addresses[0])] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    check(&machine.places, &guest).unwrap();
    inside(&attached.namespace, || ip("link set tap0 down"));
    let said = check(&machine.places, &guest).unwrap_err().to_string();
    assert!(said.contains("tap0"), "{said}");
    attach(&machine.places, &guest).unwrap();
    check(&machine.places, &guest).unwrap();
    collect(&machine.places, &guest.interfaces[0].network).unwrap();
    // Again: nothing changes, and what was made is the same.
    let made = machine.all();
    let state = || inside(&attached.namespace, || links() + &ip("-o -4 addr show"));
    let before_again = state();
    assert_eq!(attach(&machine.places, &guest).unwrap(), attached);
    assert_eq!(state(), before_again);
    assert_eq!(machine.all(), made);
    // Another one, and one of both goes: the other's stay.
    let other = attach(&machine.places, &machine.guest("other")).unwrap();
    assert_ne!(nic(&other).addresses, one.addresses);
    detach(&machine.places, "default-other").unwrap();
    check(&machine.places, &guest).unwrap();
    detach(&machine.places, "default-vm").unwrap();
    assert_eq!(machine.all(), before);
    detach(&machine.places, "default-vm").unwrap();
    detach(&machine.places, "never-there").unwrap();
}

#[test]
fn only_ports_of_the_list_are_forwarded() {
    let machine = Machine::new();
    let mut guest = machine.guest("vm");
    let Binding::Masquerade { ports, .. } = &mut guest.interfaces[0].binding else { panic!("masquerade") };
    let range = Port { tcp: true, number: 8000, last: 8010 };
    ports.extend([Port::one(true, 80), Port::one(false, 53), range]);
    let attached = attach(&machine.places, &guest).unwrap();
    let rules = inside(&attached.namespace, || run("nft", &["list", "table", "inet", "ferrovirt"]));
    for part in [
        "tcp dport 80 dnat ip to 10.0.2.2",
        "udp dport 53 dnat ip to 10.0.2.2",
        "tcp dport 8000-8010 dnat ip to 10.0.2.2",
        "oifname \"eth0\" masquerade",
    ] {
        assert!(rules.contains(part), "{rules}");
    }
    assert_eq!(rules.matches("dnat").count(), 3, "{rules}");
    detach(&machine.places, "default-vm").unwrap();
}

#[test]
fn a_bridged_guest_has_the_networks_address_and_its_own_mac() {
    let machine = Machine::new();
    let before = machine.all();
    let guest = bridged(&machine, "vm", 1);
    let attached = attach(&machine.places, &guest).unwrap();
    let one = nic(&attached);
    assert_eq!((one.tap.mac.as_str(), one.tap.mtu), ("02:00:00:00:01:01", 1300));
    let dhcp = one.tap.dhcp.clone().unwrap();
    let lease = dhcp.v4.unwrap();
    assert_eq!(IpAddr::V4(lease.address), one.addresses[0]);
    assert_eq!(
        (lease.server.to_string(), lease.gateway, lease.routes.len()),
        ("169.254.75.10".into(), None, 1)
    );
    let shown = inside(&attached.namespace, || ip("-d -o link show") + &ip("-o -4 addr show"));
    assert!(shown.contains("eth0-nic") && shown.contains(" multi_queue "), "{shown}");
    assert!(!shown.contains("inet 192.0.2"), "the address is the guest's: {shown}");
    assert_eq!(attach(&machine.places, &guest).unwrap(), attached);
    detach(&machine.places, "default-vm").unwrap();
    // The plugin's bridge and its folder of addresses are its own.
    ip("link del br1");
    assert_eq!(machine.all(), before);
}

#[test]
fn after_a_reboot_a_guest_has_its_address_again() {
    let machine = Machine::new();
    let guest = machine.guest("vm");
    let attached = attach(&machine.places, &guest).unwrap();
    attach(&machine.places, &machine.guest("other")).unwrap();
    // Links and mounts are gone, files are not, and others come first.
    for name in ["default-vm", "default-other"] {
        Namespace::remove(&machine.places.namespaces.join(name)).unwrap();
    }
    ip("link del fv0");
    run("nft", &["delete", "table", "inet", "cni_plugins_masquerade"]);
    fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
    attach(&machine.places, &machine.guest("new")).unwrap();
    assert_eq!(attach(&machine.places, &guest).unwrap(), attached);
    check(&machine.places, &guest).unwrap();
    for name in ["vm", "other", "new"] {
        detach(&machine.places, &format!("default-{name}")).unwrap();
    }
    assert_eq!(files(&machine.places.state), Vec::<String>::new());
}

#[test]
fn a_guest_that_is_started_again_has_its_addresses_again() {
    let machine = Machine::new();
    for guest in [machine.guest("vm"), bridged(&machine, "vm", 1)] {
        let named = |name: &str| WantedNetworks { container: format!("default-{name}"), ..guest.clone() };
        let first = attach(&machine.places, &guest).unwrap();
        let previous = Addresses::from([(nic(&first).name.clone(), nic(&first).addresses.clone())]);
        let again = |name: &str| attach_again(&machine.places, &named(name), &previous).unwrap();
        let stop = |name: &str| detach(&machine.places, &format!("default-{name}")).unwrap();
        // The network's only guest, and one of several.
        stop("vm");
        assert_eq!(again("vm"), first);
        attach(&machine.places, &named("stays")).unwrap();
        stop("vm");
        let new = attach(&machine.places, &named("new")).unwrap();
        assert_ne!(nic(&new).addresses, nic(&first).addresses);
        assert_eq!(again("vm"), first);
        // Another guest has them by now: any will do.
        stop("vm");
        assert_eq!(nic(&again("other")).addresses, nic(&first).addresses);
        let moved = again("vm");
        assert_eq!(nic(&moved).addresses.len(), 1);
        assert_ne!(nic(&moved).addresses, nic(&first).addresses);
        ["vm", "stays", "new", "other"].into_iter().for_each(stop);
    }
    assert_eq!(files(&machine.places.state), Vec::<String>::new());
}

/// The subnet became a smaller one, in which the previous address is the gateway's.
#[test]
fn a_guest_starts_with_another_address_where_its_own_is_not_given_any_more() {
    let machine = Machine::new();
    let mut guest = machine.guest("vm");
    let subnet = Some("10.234.7.0/24".parse().unwrap());
    let network = PodNetwork { subnet, subnet6: None };
    guest.interfaces[0].network = network.configuration(&machine.places.state).unwrap();
    let previous = Addresses::from([("default".to_owned(), vec!["10.234.7.1".parse().unwrap()])]);
    let attached = attach_again(&machine.places, &guest, &previous).unwrap();
    assert_eq!(nic(&attached).addresses, ["10.234.7.2".parse::<IpAddr>().unwrap()]);
    detach(&machine.places, "default-vm").unwrap();
}

#[test]
fn two_state_directories_give_each_guest_an_address_of_its_own() {
    let machine = Machine::new();
    let second = Places {
        state: machine.folder.path().join("second"),
        namespaces: machine.folder.path().join("second-netns"),
        plugins: machine.places.plugins.clone(),
    };
    let guests = [(&machine.places, "a"), (&second, "b"), (&machine.places, "c"), (&second, "d")];
    let mut addresses = std::collections::BTreeSet::new();
    for (places, name) in guests {
        let mut guest = machine.guest(name);
        guest.interfaces[0].network = PodNetwork::default().configuration(&places.state).unwrap();
        let attached = attach(places, &guest).unwrap();
        assert!(addresses.insert(nic(&attached).addresses.clone()), "{attached:?}");
    }
    for (places, name) in guests {
        detach(places, &format!("default-{name}")).unwrap();
    }
    for places in [&machine.places, &second] {
        assert_eq!(files(&places.state), Vec::<String>::new());
    }
}

/// Guests of one name, in two state directories, that start at the same moment: on the pod network and on a network of a
/// NetworkAttachmentDefinition, whose plugin keeps its records outside of both.
#[test]
fn guests_of_two_state_directories_start_at_once_with_addresses_of_their_own() {
    let machine = Machine::new();
    let second = Places {
        state: machine.folder.path().join("second"),
        namespaces: machine.folder.path().join("second-netns"),
        plugins: machine.places.plugins.clone(),
    };
    let names = ["a", "b", "c", "d"];
    let wanted = |places: &Places, name: &str, number: u8| {
        let mut guest = machine.guest(name);
        // The daemon has its owner's UID here.
        guest.container = format!("uid-{number}");
        guest.interfaces[0].network = PodNetwork::default().configuration(&places.state).unwrap();
        let mut blue = bridged(&machine, name, number).interfaces.remove(0);
        blue.names = Names::secondary("blue");
        guest.interfaces.push(blue);
        guest
    };
    let mut guests = Vec::new();
    for (directory, places) in [&machine.places, &second].into_iter().enumerate() {
        let number = |index: usize| u8::try_from(index + 10 * directory).unwrap();
        guests.extend(
            names.iter().enumerate().map(|(index, name)| (places, wanted(places, name, number(index)))),
        );
    }
    let barrier = std::sync::Barrier::new(guests.len());
    let attached: Vec<_> = std::thread::scope(|scope| {
        let start = |(places, guest)| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                attach(places, guest).unwrap()
            })
        };
        let started: Vec<_> = guests.iter().map(|(places, guest)| start((*places, guest))).collect();
        started.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let addresses: std::collections::BTreeSet<_> =
        attached.iter().flat_map(|one| &one.nics).flat_map(|nic| nic.addresses.clone()).collect();
    assert_eq!(addresses.len(), 2 * guests.len(), "{attached:?}");
    for (places, guest) in &guests {
        check(places, guest).unwrap();
        detach(places, &guest.container).unwrap();
    }
    for places in [&machine.places, &second] {
        assert_eq!(files(&places.state), Vec::<String>::new());
    }
    let mut left = files(&machine.folder.path().join("blue"));
    left.retain(|file| !file.contains("last_reserved_ip"));
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn a_subnet_that_the_machine_uses_is_not_taken() {
    let machine = Machine::new();
    ip(&format!("route add 10.234.5.0/24 via {SERVER}"));
    let attached = attach(&machine.places, &machine.guest("vm")).unwrap();
    assert!(nic(&attached).addresses[0].to_string().starts_with("172.29."), "{attached:?}");
    detach(&machine.places, "default-vm").unwrap();
    let asked =
        virt_node::network::PodNetwork { subnet: Some("10.234.0.0/16".parse().unwrap()), subnet6: None };
    let said = asked.configuration(&machine.places.state).unwrap_err().to_string();
    assert!(said.contains("10.234.5.0/24"), "{said}");
}

#[test]
fn where_the_machines_resolver_is_local_names_are_asked_of_the_gateway() {
    let machine = Machine::new();
    let local: IpAddr = "127.0.0.1".parse().unwrap();
    let mut guest = machine.guest("vm");
    guest.resolvers = Resolvers { local: vec![local], ..Resolvers::default() };
    let attached = attach(&machine.places, &guest).unwrap();
    let gateway = pod_gateway().unwrap().unwrap();
    assert_eq!(nic(&attached).tap.dhcp.as_ref().unwrap().resolvers, [gateway]);
    let resolver = UdpSocket::bind((local, 53)).unwrap();
    let _forwarder = Forwarder::start(gateway, local).unwrap();
    let client = inside(&attached.namespace, || UdpSocket::bind("0.0.0.0:0").unwrap());
    for socket in [&resolver, &client] {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    client.send_to(b"\x12\x34..........question", (gateway, 53)).unwrap();
    let mut packet = [0; 64];
    let (length, from) = resolver.recv_from(&mut packet).unwrap();
    assert!(packet[..length].ends_with(b"question"));
    resolver.send_to(&packet[..length], from).unwrap();
    let (length, _) = client.recv_from(&mut packet).unwrap();
    assert_eq!(&packet[..length], b"\x12\x34..........question");
    detach(&machine.places, "default-vm").unwrap();
}

/// Whether a datagram comes to `at`; sent up to so many times, each waited for a tenth of a second.
fn reaches(from: &UdpSocket, to: (IpAddr, u16), at: &UdpSocket, times: usize) -> bool {
    at.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    (0..times).any(|_| from.send_to(b"x", to).is_ok() && at.recv_from(&mut [0; 8]).is_ok())
}

/// A VM's namespace reaches the machine, no other VM, and nothing under an address that is not its own. IP
/// forwarding, which the first VM needs, stays on.
#[test]
fn guests_are_kept_apart_and_to_their_own_addresses() {
    let machine = Machine::new();
    let forwarding = || fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap();
    fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
    let [one, two] = ["one", "two"].map(|name| {
        let mut guest = machine.guest(name);
        let Binding::Masquerade { ports, .. } = &mut guest.interfaces[0].binding else {
            panic!("masquerade")
        };
        // Other ports are the namespace's, where the test is.
        ports.push(Port::one(true, 80));
        attach(&machine.places, &guest).unwrap()
    });
    assert_eq!(forwarding(), "1\n");
    let gateway = pod_gateway().unwrap().unwrap();
    let socket = |namespace: &Path, at: &str| inside(namespace, || UdpSocket::bind(at).unwrap());
    let (first, second) = (socket(&one.namespace, "0.0.0.0:0"), socket(&two.namespace, "0.0.0.0:9"));
    let (own, listening) = (UdpSocket::bind("0.0.0.0:0").unwrap(), UdpSocket::bind((gateway, 9)).unwrap());
    let to_second = (nic(&two).addresses[0], 9);
    assert!(reaches(&own, to_second, &second, 100), "the machine reaches a VM");
    assert!(reaches(&first, (gateway, 9), &listening, 100), "a VM reaches the machine");
    assert!(!reaches(&first, to_second, &second, 5), "a VM reaches another one");
    // Masquerading gives packets the right address.
    inside(&one.namespace, || {
        run("nft", &["flush", "ruleset"]);
        ip("addr add 10.234.200.200/32 dev eth0");
    });
    assert!(reaches(&first, (gateway, 9), &listening, 100), "without masquerading");
    let spoofed = socket(&one.namespace, "10.234.200.200:0");
    assert!(!reaches(&spoofed, (gateway, 9), &listening, 5), "with another IP address");
    inside(&one.namespace, || ip("link set eth0 address 02:00:00:00:99:99"));
    let spoofed = socket(&one.namespace, "0.0.0.0:0");
    assert!(!reaches(&spoofed, (gateway, 9), &listening, 5), "with another MAC address");
    for name in ["one", "two"] {
        detach(&machine.places, &format!("default-{name}")).unwrap();
    }
    assert_eq!(forwarding(), "1\n", "other services may rely on it");
}

#[test]
fn interfaces_come_and_go() {
    let machine = Machine::new();
    let before = machine.all();
    let guest = machine.guest("vm");
    let first = attach(&machine.places, &guest).unwrap();
    let mut more = guest.clone();
    let mut blue = bridged(&machine, "vm", 2).interfaces.remove(0);
    blue.names = Names::secondary("blue");
    more.interfaces.push(blue);
    let both = attach(&machine.places, &more).unwrap();
    assert_eq!((both.nics.len(), &both.nics[0]), (2, &first.nics[0]));
    assert_eq!(both.nics[1].pod_interface, "pod16477688c0e");
    assert_eq!(attach(&machine.places, &guest).unwrap(), first);
    let shown = inside(&first.namespace, links);
    assert!(!shown.contains("16477688c0e"), "{shown}");
    detach(&machine.places, "default-vm").unwrap();
    ip("link del br1");
    assert_eq!(machine.all(), before);
}

/// Plugins that are a few lines of shell, in a folder that is looked through first.
fn script(machine: &mut Machine, name: &str, lines: &str) {
    let folder = machine.folder.path().join("scripts");
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join(name);
    fs::write(&file, format!("#!/bin/sh\n{lines}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    if machine.places.plugins.first() != Some(&folder) {
        machine.places.plugins.insert(0, folder);
    }
}

#[test]
fn plugins_are_chained_and_called_back_with_what_they_answered() {
    let mut machine = Machine::new();
    let log = machine.folder.path().join("log");
    let say = format!("echo \"$CNI_COMMAND $CNI_IFNAME $CNI_ARGS $(cat)\" >> {}", log.display());
    script(&mut machine, "third", &say);
    let mut guest = machine.guest("vm");
    let text = r#"{"cniVersion": "1.0.0", "name": "chain", "plugins": [{"type": "bridge", "bridge": "br1"},
        {"type": "third", "capabilities": {"mac": true}}]}"#;
    guest.interfaces[0].network = Configuration::read(text, "chain").unwrap();
    guest.interfaces[0].binding = Binding::Bridge;
    attach(&machine.places, &guest).unwrap();
    check(&machine.places, &guest).unwrap();
    detach(&machine.places, "default-vm").unwrap();
    let said = fs::read_to_string(&log).unwrap();
    let calls: Vec<&str> = said.lines().collect();
    // Where the kernel has dummies there is a CHECK, too.
    assert!(calls.len() >= 2 && calls.last().unwrap().starts_with("DEL "), "{said}");
    for (call, verb) in calls.iter().zip(["ADD", if calls.len() == 3 { "CHECK" } else { "DEL" }, "DEL"]) {
        assert!(
            call.starts_with(&format!("{verb} eth0 IgnoreUnknown=1;K8S_POD_NAMESPACE=default;")),
            "{call}"
        );
        assert!(
            call.contains("\"prevResult\":{") && call.contains("\"runtimeConfig\":{\"mac\":\"02:00"),
            "{call}"
        );
        assert!(call.contains("MAC=02:00:00:00:00:10") && call.contains("\"name\":\"chain\""), "{call}");
    }
    ip("link del br1");
}

#[test]
fn a_failing_plugin_is_reported_in_its_words_and_undone() {
    let mut machine = Machine::new();
    script(
        &mut machine,
        "fails",
        r#"case $CNI_COMMAND in ADD) echo '{"cniVersion": "1.0.0", "code": 100, "msg": "no room", "details": "at all"}'; exit 1;; esac"#,
    );
    script(
        &mut machine,
        "floods",
        "case $CNI_COMMAND in ADD) while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx; done;; esac",
    );
    script(&mut machine, "mumbles", "case $CNI_COMMAND in ADD) echo 'what now' >&2; exit 3;; esac");
    let before = machine.all();
    for (plugin, said) in [
        ("fails", "no room: at all"),
        ("floods", "its answer exceeds"),
        ("mumbles", "what now"),
        ("missing", "is in none of"),
    ] {
        let mut guest = machine.guest("vm");
        let text = format!(
            r#"{{"cniVersion": "1.0.0", "name": "net", "plugins": [{{"type": "bridge", "bridge": "br1"}}, {{"type": "{plugin}"}}]}}"#
        );
        let mut second = guest.interfaces[0].clone();
        second.names = Names::secondary("second");
        second.network = Configuration::read(&text, "net").unwrap();
        second.binding = Binding::Bridge;
        guest.interfaces.push(second);
        let error = attach(&machine.places, &guest).unwrap_err();
        assert!(error.chain().contains(said), "{}", error.chain());
        if plugin == "missing" {
            // The plugin is missing and cannot be undone: it is tried again when it is there.
            script(&mut machine, "missing", "true");
            detach(&machine.places, "default-vm").unwrap();
        }
        ip("link del br1");
        assert_eq!(machine.all(), before, "{plugin}");
    }
}

#[test]
fn an_attachment_with_a_torn_file_is_made_again() {
    let machine = Machine::new();
    let guest = machine.guest("vm");
    attach(&machine.places, &guest).unwrap();
    let [entry] = &files(&machine.places.state.join("results"))[..] else { panic!("one entry") };
    let whole = fs::read(entry).unwrap();
    fs::write(entry, &whole[..whole.len() / 2]).unwrap();
    attach(&machine.places, &guest).unwrap();
    check(&machine.places, &guest).unwrap();
    assert_eq!(files(&machine.places.state.join("torn")).len(), 1);
    detach(&machine.places, "default-vm").unwrap();
}

/// Where this test's child finds its machine.
const CHILD: &str = "FERROVIRT_TEST_NETWORK";

#[test]
fn killed_anywhere_it_converges() {
    if let Ok(folder) = std::env::var(CHILD) {
        // The child, in its parent's namespace: attaches and detaches until it is killed.
        let places = virt_node::network::Places {
            state: Path::new(&folder).join("state"),
            namespaces: Path::new(&folder).join("netns"),
            plugins: vec![Path::new(&folder).join("plugins")],
        };
        let text = fs::read_to_string(Path::new(&folder).join("pod")).unwrap();
        let (blue, pod) = (blue(Path::new(&folder)), Configuration::read(&text, "ferrovirt").unwrap());
        loop {
            let guest = both(pod.clone(), blue.clone());
            attach(&places, &guest).unwrap();
            detach(&places, &guest.container).unwrap();
        }
    }
    let machine = Machine::new();
    let before = machine.all();
    fs::write(machine.folder.path().join("pod"), machine.pod().text()).unwrap();
    let guest = both(machine.pod(), blue(machine.folder.path()));
    let turns = if std::env::var_os("FERROVIRT_SOAK").is_some() { 200 } else { 12 };
    let mut random = 7_u64;
    for turn in 0..turns {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "network::killed_anywhere_it_converges"])
            .env(CHILD, machine.folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(20_000 + (random >> 33) % 200_000));
        child.kill().unwrap();
        child.wait().unwrap();
        // A plugin that it had started ends by itself.
        while uses(machine.folder.path()) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if turn % 2 == 0 {
            let attached =
                attach(&machine.places, &guest).unwrap_or_else(|error| panic!("{}", error.chain()));
            assert_eq!(attached.nics.len(), 2);
            check(&machine.places, &guest).unwrap();
        }
        detach(&machine.places, &guest.container).unwrap_or_else(|error| panic!("{}", error.chain()));
        if ip("-o link show").contains("br1") {
            ip("link del br1");
        }
        assert_eq!(machine.all(), before, "turn {turn}");
    }
}

/// Whether a process was started with a path in this folder, or is a copy of the child that has not started its plugin yet.
fn uses(folder: &Path) -> bool {
    let folder = folder.to_str().unwrap();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    // One that is not there any more has neither.
    let told = ["cmdline", "environ"];
    let mut texts =
        processes.flat_map(|process| told.map(|name| fs::read(process.path().join(name)))).flatten();
    texts.any(|text| String::from_utf8_lossy(&text).contains(folder))
}

/// A guest on both networks.
fn both(pod: Configuration, blue: Configuration) -> WantedNetworks {
    let one = |name: &str, names, network, binding, last| Interface {
        name: name.to_owned(),
        names,
        network,
        binding,
        mac: link::Mac([2, 0, 0, 0, 2, last]),
        many_queues: false,
    };
    let masquerade = Binding::Masquerade {
        v4: "10.0.2.0/24".parse().unwrap(),
        v6: "fd10:0:2::/120".parse().unwrap(),
        ports: Vec::new(),
    };
    WantedNetworks {
        container: "default-vm".to_owned(),
        namespace: "default".to_owned(),
        name: "vm".to_owned(),
        interfaces: vec![
            one("pod", Names::primary(), pod, masquerade, 1),
            one("blue", Names::secondary("blue"), blue, Binding::Bridge, 2),
        ],
        resolvers: Resolvers::default(),
        user: api::names::QEMU_ID,
    }
}
