//! Guests on their networks, with the launcher as it ships: first a stand-in for the guest, then Linux.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use api::launch::{DhcpOptions, Interface, Launch, NicModel};
use api::launcher::{Answer, Event, Request};
use api::names::QEMU_ID;
use dhcproto::{Decodable, Decoder, Encodable, v6};
use link::Namespace;
use rustix::process::Signal;
use virt_node::network::{
    self, Attached, Binding, Configuration, Names, Nic, Port, WantedNetworks, attach, detach,
};

use crate::support::launcher::running::{HALTS, Launcher, TIMEOUT, eventually, kill, status_line};
use crate::support::machine::{Machine, SERVER, inside, ip, linux, nic, page, run};

/// A launcher in a guest's namespace.
fn launcher(attached: &Attached) -> Launcher {
    network::inside(&attached.namespace, || Ok::<_, virt_node::Error>(Launcher::with_taps())).unwrap()
}

/// An interface of the launch document.
fn interface(nic: &Nic) -> Interface {
    Interface {
        name: nic.name.clone(),
        tap: nic.tap.link.clone(),
        mac: nic.tap.mac.clone(),
        mtu: nic.tap.mtu,
        model: NicModel::Virtio,
        queues: nic.tap.many_queues.then_some(2),
        boot_order: None,
        acpi_index: None,
        pci_address: None,
        link_up: true,
        dhcp: nic.tap.dhcp.clone(),
    }
}

fn with_interfaces(mut document: Launch, attached: &Attached) -> Launch {
    document.interfaces = attached.nics.iter().map(interface).collect();
    document
}

/// A stand-in for the guest: a namespace on the guest's bridge, with the guest's Ethernet address. Removed when dropped.
struct StandIn(PathBuf);

impl StandIn {
    fn new(machine: &Machine, attached: &Attached) -> Self {
        let path = machine.folder.path().join(format!("stand-in-{}", nic(attached).tap.mac.replace(':', "")));
        Namespace::create(&path).unwrap();
        let bridge = nic(attached).tap.dhcp.as_ref().unwrap().link.clone();
        let mac = nic(attached).tap.mac.clone();
        inside(&attached.namespace, || {
            ip(&format!("link add stand type veth peer name eth0 address {mac} netns {}", path.display()));
            ip(&format!("link set stand master {bridge} up"));
        });
        inside(&path, || {
            ip("link set lo up");
            ip("link set eth0 up");
        });
        Self(path)
    }

    fn run(&self, program: &str, arguments: &[&str]) -> String {
        inside(&self.0, || run(program, arguments))
    }

    /// A script for a DHCP client, which runs it when it got a lease.
    fn script(&self, does: &str) -> String {
        let script = self.0.with_extension("sh");
        fs::write(&script, format!("#!/bin/sh\n[ \"$1\" = bound ] || exit 0\n{does}\n")).unwrap();
        run("chmod", &["755", script.to_str().unwrap()]);
        script.to_str().unwrap().to_owned()
    }

    /// The options that a DHCP client gets, by variable.
    fn asks(&self) -> String {
        // It takes the address, and prints the options.
        let script = self.script(
            "set | grep -E '^(ip|mask|router|dns|mtu|hostname|domain|search|staticroutes|serverid)='\n\
            set | grep -E '^(bootfile|tftp|ntpsrv)='\n\
            ip addr add $ip/$mask dev $interface\n\
            [ -z \"$router\" ] || ip route add default via $router",
        );
        let options = ["mtu", "search", "staticroutes", "bootfile", "tftp", "ntpsrv"];
        let mut words = vec!["udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "20", "-T", "1", "-s", &script];
        words.extend(options.into_iter().flat_map(|option| ["-O", option]));
        self.run("busybox", &words)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        drop(Namespace::remove(&self.0));
    }
}

#[test]
fn a_stand_in_gets_the_guests_address_and_connectivity() {
    let mut machine = Machine::new();
    machine.serve("from outside");
    let mut guest = machine.guest("vm");
    guest.resolvers.search = vec!["a.example".to_owned()];
    let Binding::Masquerade { ports, .. } = &mut guest.interfaces[0].binding else { panic!("masquerade") };
    ports.extend([Port::one(true, 80), Port { tcp: true, number: 8080, last: 8082 }]);
    let attached = attach(&machine.places, &guest).unwrap();
    let launcher = launcher(&attached);
    let mut document = with_interfaces(launcher.document(HALTS), &attached);
    document.interfaces[0].dhcp.as_mut().unwrap().options = DhcpOptions {
        boot_file: Some("boot.efi".to_owned()),
        tftp_server: Some("tftp.example".to_owned()),
        ntp_servers: vec!["192.0.2.123".parse().unwrap()],
        ..DhcpOptions::default()
    };
    launcher.launch(&document);
    let capabilities = status_line(launcher.worker(), "CapEff");
    assert_eq!(u64::from_str_radix(&capabilities, 16).unwrap(), 0, "none is needed");
    let place = StandIn::new(&machine, &attached);
    let told = place.asks();
    for part in [
        "ip='10.0.2.2'",
        "mask='24'",
        "router='10.0.2.1'",
        "mtu='1400'",
        "hostname='vm'",
        "search='a.example'",
        "bootfile='boot.efi'",
        "tftp='tftp.example'",
        "ntpsrv='192.0.2.123'",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(told.contains(&format!("dns='{SERVER}'")), "{told}");
    // Out.
    let seen = inside(&place.0, || page(format!("{SERVER}:80").parse().unwrap()));
    assert!(seen.as_ref().is_some_and(|page| page.contains("from outside")), "{seen:?}");
    // In, to the port of the list and to no other.
    let folder = machine.folder.path().join("inner");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("index.html"), "from the guest").unwrap();
    let serve = |port: &str| {
        let mut command = Command::new("busybox");
        command.args(["httpd", "-f", "-p", port, "-h"]).arg(&folder);
        guests::Killed(inside(&place.0, || command.spawn().unwrap()))
    };
    let _servers = ["80", "81", "8082", "8083"].map(serve);
    let address = nic(&attached).addresses[0];
    for port in [80, 8082] {
        let seen = eventually("the guest's page", || page((address, port).into()));
        assert!(seen.contains("from the guest"), "{port}: {seen}");
    }
    for port in [81, 8083] {
        let inner: SocketAddr = ([10, 0, 2, 2], port).into();
        eventually("the port is served", || inside(&place.0, || page(inner)));
        assert_eq!(page((address, port).into()), None, "{port} is not on the list");
    }
    // The next worker answers as the one before.
    kill(launcher.worker(), Signal::KILL);
    eventually("another worker", || {
        place.run("ip", &["addr", "flush", "dev", "eth0"]);
        place.asks().contains("ip='10.0.2.2'").then_some(())
    });
    drop((place, launcher));
    detach(&machine.places, "default-vm").unwrap();
}

#[test]
fn a_bridged_guest_gets_the_networks_address() {
    let machine = Machine::new();
    let mut guest = machine.guest("vm");
    let text = format!(
        r#"{{"cniVersion": "1.0.0", "name": "blue", "type": "bridge", "bridge": "br1", "isGateway": true,
        "ipam": {{"type": "host-local", "dataDir": "{}", "subnet": "192.0.2.0/24",
        "routes": [{{"dst": "0.0.0.0/0"}}]}}}}"#,
        machine.folder.path().join("blue").display()
    );
    guest.interfaces[0].network = Configuration::read(&text, "blue").unwrap();
    guest.interfaces[0].binding = Binding::Bridge;
    let attached = attach(&machine.places, &guest).unwrap();
    let launcher = launcher(&attached);
    launcher.launch(&with_interfaces(launcher.document(HALTS), &attached));
    let place = StandIn::new(&machine, &attached);
    let told = place.asks();
    assert!(told.contains(&format!("ip='{}'", nic(&attached).addresses[0])), "{told}");
    // The bridge's address, on the same network, hears the guest with its own Ethernet address.
    place.run("busybox", &["ping", "-c", "1", "-W", "5", "192.0.2.1"]);
    let neighbours = ip("neigh show dev br1");
    assert!(neighbours.contains(&nic(&attached).tap.mac), "{neighbours}");
    drop((place, launcher));
    detach(&machine.places, "default-vm").unwrap();
}

/// The address that a DHCPv6 client is given at once; `None` without an answer within a second.
fn solicit(place: &StandIn) -> Option<Ipv6Addr> {
    let index = place.run("ip", &["-o", "link", "show", "eth0"]).split(':').next().unwrap().parse().unwrap();
    let identity = v6::IANA { id: 1, t1: 0, t2: 0, opts: v6::DhcpOptions::new() };
    let mut message = v6::Message::new(v6::MessageType::Solicit);
    for option in
        [v6::DhcpOption::ClientId(vec![0, 9]), v6::DhcpOption::RapidCommit, v6::DhcpOption::IANA(identity)]
    {
        message.opts_mut().insert(option);
    }
    let mut packet = [0; 1500];
    let length = inside(&place.0, || {
        let socket = UdpSocket::bind("[::]:546").unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let servers = SocketAddrV6::new("ff02::1:2".parse().unwrap(), 547, 0, index);
        socket.send_to(&message.to_vec().unwrap(), servers).ok()?;
        socket.recv(&mut packet).ok()
    })?;
    let reply = v6::Message::decode(&mut Decoder::new(&packet[..length])).unwrap();
    assert_eq!(reply.xid(), message.xid());
    let Some(v6::DhcpOption::IANA(identity)) = reply.opts().get(v6::OptionCode::IANA) else {
        panic!("{reply:?}")
    };
    let Some(v6::DhcpOption::IAAddr(address)) = identity.opts.get(v6::OptionCode::IAAddr) else {
        panic!("{reply:?}")
    };
    Some(address.addr)
}

/// Services of both families reach the guest: the machine translates their addresses to the pod's, as kube-proxy does. Rules of
/// the machine, as an enforcer of NetworkPolicies sets them, deny the guest's port and allow it.
fn services_reach(addresses: &[IpAddr]) {
    for address in addresses {
        let (family, flag, service) = match address {
            IpAddr::V4(_) => ("ip", "-4", "203.0.113.80"),
            IpAddr::V6(_) => ("ip6", "-6", "fd00:245::80"),
        };
        let route = ip(&format!("{flag} -o route get {address}"));
        let device = route.split_once(" dev ").unwrap().1.split(' ').next().unwrap();
        ip(&format!("{flag} route add {service} dev {device}"));
        let nft = |rules: &str| run("nft", &[rules]);
        let direct = SocketAddr::new(*address, 80);
        let translated = SocketAddr::new(service.parse().unwrap(), 8000);
        nft(&format!(
            "table {family} test-service {{ chain output {{ type nat hook output priority -100; policy accept; \
             {family} daddr {service} tcp dport 8000 dnat to {direct}; }}; }}"
        ));
        eventually("the guest's page through the Service", || page(translated));
        let deny = |ports: &str| {
            let daddr = format!("{family} daddr {address} tcp dport {ports} drop");
            let hook = "type filter hook output priority 0; policy accept;";
            nft(&format!("table {family} test-policy {{ chain output {{ {hook} {daddr}; }}; }}"));
        };
        for (ports, allowed) in [("!= 80", true), ("80", false)] {
            deny(ports);
            for way in [direct, translated] {
                assert_eq!(page(way).is_some(), allowed, "{way}: {ports} denied");
            }
            nft(&format!("delete table {family} test-policy"));
        }
        assert!(page(translated).is_some(), "{address}: no port is denied any more");
    }
}

#[test]
fn a_guest_with_ipv6_gets_its_address_and_route() {
    let machine = Machine::new();
    let mut guest = machine.guest("vm");
    let pod = network::PodNetwork { subnet: None, subnet6: Some("fd00:7::/64".parse().unwrap()) };
    guest.interfaces[0].network = pod.configuration(&machine.places.state).unwrap();
    let Binding::Masquerade { ports, .. } = &mut guest.interfaces[0].binding else { panic!("masquerade") };
    ports.push(Port::one(true, 80));
    let attached = attach(&machine.places, &guest).unwrap();
    assert_eq!(nic(&attached).addresses.len(), 2, "{attached:?}");
    let _router = network::Advertiser::start(&attached.namespace, nic(&attached)).unwrap().unwrap();
    let launcher = launcher(&attached);
    launcher.launch(&with_interfaces(launcher.document(HALTS), &attached));
    let place = StandIn::new(&machine, &attached);
    // The kernel asks for routers when the link comes up, and again.
    eventually("the default route", || {
        place.run("ip", &["-6", "route", "show", "default"]).contains("via fe80::").then_some(())
    });
    let told = eventually("an address", || solicit(&place));
    assert_eq!(told.to_string(), "fd10:0:2::2");
    place.run("ip", &["-6", "addr", "add", "fd10:0:2::2/128", "dev", "eth0", "nodad"]);
    // The machine's end of the pod network is beyond the gateway.
    eventually("an answer from outside", || {
        inside(&place.0, || {
            Command::new("busybox").args(["ping6", "-c", "1", "-W", "2", "fd00:7::1"]).output().unwrap()
        })
        .status
        .success()
        .then_some(())
    });
    // In, to the pod's addresses of both families, as a dual-stack Service sends it; and to no other port.
    place.run("ip", &["addr", "add", "10.0.2.2/24", "dev", "eth0"]);
    place.run("ip", &["route", "add", "default", "via", "10.0.2.1"]);
    let folder = machine.folder.path().join("inner");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("index.html"), "from the guest").unwrap();
    let serve = |port: &str| {
        let mut command = Command::new("busybox");
        command.args(["httpd", "-f", "-p", &format!("[::]:{port}"), "-h"]).arg(&folder);
        guests::Killed(inside(&place.0, || command.spawn().unwrap()))
    };
    let _servers = [serve("80"), serve("81")];
    for address in &nic(&attached).addresses {
        let seen = eventually("the guest's page", || page((*address, 80).into()));
        assert!(seen.contains("from the guest"), "{address}: {seen}");
    }
    eventually("81 is served", || inside(&place.0, || page("[fd10:0:2::2]:81".parse().unwrap())));
    for address in &nic(&attached).addresses {
        assert_eq!(page((*address, 81).into()), None, "{address}: 81 is not on the list");
    }
    services_reach(&nic(&attached).addresses);
    drop((place, launcher));
    detach(&machine.places, "default-vm").unwrap();
}

/// Linux that runs on its networks.
fn linux_on(attached: &Attached) -> (Launcher, Launch) {
    let launcher = launcher(attached);
    let mut document = with_interfaces(launcher.document(&[]), attached);
    let disk = launcher.folder().join("disk.img");
    linux(&disk);
    chown(&disk, Some(QEMU_ID), Some(QEMU_ID)).unwrap();
    document.memory.guest = 256 << 20;
    document.memory.max_guest = 256 << 20;
    document.devices.hotplug = true;
    launcher.launch(&document);
    (launcher, document)
}

/// A guest of this number on the network `blue`, with or without the pod network.
fn on_blue(machine: &Machine, name: &str, number: u8, alone: bool) -> WantedNetworks {
    let mut guest = machine.guest(name);
    let mut blue = guest.interfaces[0].clone();
    let text = format!(
        r#"{{"cniVersion": "1.0.0", "name": "blue", "type": "bridge", "bridge": "br1",
        "ipam": {{"type": "host-local", "dataDir": "{}", "subnet": "192.0.2.0/24"}}}}"#,
        machine.folder.path().join("blue").display()
    );
    blue.name = "blue".to_owned();
    blue.names = Names::secondary("blue");
    blue.network = Configuration::read(&text, "blue").unwrap();
    blue.binding = Binding::Bridge;
    blue.mac = link::Mac([2, 0, 0, 0, 7, number]);
    if alone {
        guest.interfaces.clear();
    }
    guest.interfaces.push(blue);
    guest
}

#[test]
fn linux_gets_its_address_connectivity_and_another_interface() {
    let mut machine = Machine::new();
    machine.serve("from outside");
    let attached = attach(&machine.places, &machine.guest("vm")).unwrap();
    let (launcher, _) = linux_on(&attached);
    launcher.until_serial("guest: eth0 is 10.0.2.2/24");
    launcher.until_serial("guest: outside says from outside");
    let seen = eventually("the guest's page", || page((nic(&attached).addresses[0], 80).into()));
    assert!(seen.contains("from the guest"), "{seen}");
    // One more, and away again.
    let both = attach(&machine.places, &on_blue(&machine, "vm", 1, false)).unwrap();
    let Answer::Layout(layout) =
        launcher.ask(Request::AttachInterface(Box::new(interface(&both.nics[1])))).unwrap()
    else {
        panic!("a layout")
    };
    assert!(layout.slots.contains_key("net-blue"), "{layout:?}");
    launcher.until_serial(&format!("guest: eth1 is {}/24 02:00:00:00:07:01", both.nics[1].addresses[0]));
    let mut watcher = launcher.client();
    watcher.call(Request::Watch).unwrap();
    launcher.ask(Request::DetachInterface("blue".to_owned())).unwrap();
    loop {
        if let Event::Detached { device } = watcher.event(TIMEOUT).unwrap().expect("an event") {
            assert_eq!(device, "net-blue");
            break;
        }
    }
    assert_eq!(attach(&machine.places, &machine.guest("vm")).unwrap(), attached);
    drop(launcher);
    detach(&machine.places, "default-vm").unwrap();
}

#[test]
fn two_guests_on_a_bridge_reach_each_other_by_the_addresses_they_were_given() {
    let machine = Machine::new();
    let guests = [1, 2].map(|number| {
        let attached =
            attach(&machine.places, &on_blue(&machine, &format!("vm{number}"), number, true)).unwrap();
        (linux_on(&attached).0, attached)
    });
    for (number, (launcher, attached)) in (1..).zip(&guests) {
        let address = nic(attached).addresses[0];
        launcher.until_serial(&format!("guest: eth0 is {address}/24 02:00:00:00:07:0{number}"));
    }
    // Each pings its neighbours; answers are identified by their Ethernet address.
    for (this, other) in [(0, 1), (1, 0)] {
        let address = nic(&guests[other].1).addresses[0];
        let mac = &nic(&guests[other].1).tap.mac;
        guests[this].0.until_serial(&format!("guest: {address} answers from {mac}"));
    }
    drop(guests);
    for name in ["vm1", "vm2"] {
        detach(&machine.places, &format!("default-{name}")).unwrap();
    }
}
