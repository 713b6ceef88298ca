//! A guest of the daemon that is reached from its machine as a person does it: by ssh and scp, by datagrams, by IPv6.

use std::fs;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::Signal;

use crate::support::daemon::{Daemon, Dice, eventually, linux_machine, read_until};
use crate::support::machine::{Machine, SERVER, linux_with_ssh, page, run};

#[test]
fn linux_is_logged_in_to_files_go_both_ways_and_datagrams_and_ipv6_reach_it() {
    let _machine = Machine::new();
    let mut daemon = Daemon::with_taps(SERVER);
    daemon.end(Signal::TERM);
    daemon.again_with(&["--pod-network6", "fd00:7::/64"]);
    let (key, hosts, disk) = (daemon.path("key"), daemon.path("hosts"), daemon.path("linux.img"));
    let text = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    run("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &text(&key)]);
    linux_with_ssh(&disk, &key.with_extension("pub"));
    let interface = "[{name: default, masquerade: {}}]";
    daemon.run(&linux_machine("mine", &disk, interface, "[{name: default, pod: {}}]"));
    daemon.until_serial("mine", "guest: eth0 is 10.0.2.2/24");

    let (key, known) = (text(&key), text(&hosts));
    let flags = ["--identity-file", &key, "--known-hosts", &known, "-t", "-oBatchMode=yes"];
    let flags = [&flags[..], &["-t", "-oStrictHostKeyChecking=accept-new"]].concat();
    let ssh =
        |command: &str| daemon.command(&[&["ssh", "root@mine", "--command", command], &flags[..]].concat());
    let page_there = "cat /www/index.html";
    let said = eventually("a login", || Some(ssh(page_there)).filter(|output| output.status.success()));
    assert_eq!(String::from_utf8_lossy(&said.stdout), "from the guest\n");
    assert_eq!(ssh("exit 7").status.code(), Some(7), "the command's own");
    // It remembers its key, by the name that it has here.
    run("ssh-keygen", &["-F", "vmi.mine.default", "-f", &known]);
    let other = ["ssh", "root@mine", "--command", "true", "--known-hosts", &known, "-t", "-oBatchMode=yes"];
    let other =
        daemon.command(&[&other[..], &["-t", "-oIdentityFile=none", "-t", "-oIdentityAgent=none"]].concat());
    let told = String::from_utf8_lossy(&other.stderr);
    assert!(told.contains("Permission denied"), "nobody is let in without the key: {told}");

    let (here, back) = (daemon.path("a file"), daemon.path("back"));
    let mut dice = Dice(3);
    let content: Vec<u8> = (0..1 << 20).map(|_| u8::try_from(dice.next(256)).unwrap()).collect();
    fs::write(&here, &content).unwrap();
    // The guest has no server for scp's newer protocol.
    let there = "root@vm/mine:/run/file";
    for (from, to) in [(text(&here), there.to_owned()), (there.to_owned(), text(&back))] {
        daemon.says(&[&["scp", &from, &to, "-t", "-O"], &flags[..]].concat());
    }
    assert!(fs::read(&back).unwrap() == content, "what came back is what went");
    let lost =
        daemon.command(&[&["scp", "root@mine:/nowhere", &text(&back), "-t", "-O"], &flags[..]].concat());
    assert!(!lost.status.success());

    // Ports of this machine's IPv6, for connections and for datagrams.
    let words = ["port-forward", "mine", "0:80", "udp/0:7", "--address", "::1"];
    let mut forward = daemon.started(&words, Stdio::null(), Stdio::piped());
    let mut port = || {
        let line = read_until(forward.0.stdout.as_mut().unwrap(), "\n");
        line.split(' ').nth(2).unwrap().parse::<SocketAddr>().unwrap()
    };
    let (pages, echo) = (port(), port());
    assert!(pages.is_ipv6() && page(pages).unwrap().contains("from the guest"));
    let clients = [1, 2].map(|number: u8| (number, UdpSocket::bind("[::1]:0").unwrap()));
    for (number, client) in &clients {
        client.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut datagram = [0; 16];
        // As any network, it may lose some.
        let length = eventually("an answer", || {
            client.send_to(&[*number; 5], echo).unwrap();
            client.recv(&mut datagram).ok()
        });
        assert_eq!(&datagram[..length], [*number; 5], "each has its own");
    }

    // By its own address of IPv6.
    let status = daemon.object("vmi/mine").unwrap()["status"]["interfaces"][0].clone();
    let addresses = status["ipAddresses"].as_array().unwrap().iter();
    let mut addresses = addresses.map(|one| one.as_str().unwrap().parse::<IpAddr>().unwrap());
    let address = addresses.find(IpAddr::is_ipv6).expect("an address of IPv6");
    daemon.until_serial("mine", "guest: eth0 is fd10:0:2::2");
    let seen = eventually("the guest's page", || page((address, 80).into()));
    assert!(seen.contains("from the guest"), "{seen}");
    drop(forward);
    daemon.says(&["delete", "mine", "--force"]);
}
