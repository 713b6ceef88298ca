//! A machine for guests' networks: a network namespace that this thread is in and that ends with it, with an uplink to an
//! outside where a server is. Everything it starts ends with it.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use super::launcher::waiting::{output, started};
use guests::Killed;
use link::Namespace;
use virt_node::network::{
    Attached, Binding, Configuration, Interface, Names, Places, PodNetwork, Resolvers, WantedNetworks,
};

/// The output of a program that must succeed.
pub(crate) fn run(program: &str, arguments: &[&str]) -> String {
    let output = output(Command::new(program).args(arguments).stdin(Stdio::null()));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `ip` with words between spaces.
pub(crate) fn ip(words: &str) -> String {
    run("ip", &words.split(' ').collect::<Vec<_>>())
}

/// The machine.
pub(crate) struct Machine {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) places: Places,
    /// The namespace at the other end of the uplink.
    pub(crate) outside: PathBuf,
    children: Vec<Killed>,
}

/// Address of the machine, and of the server outside, with the uplink's network.
pub(crate) const OWN: &str = "198.51.100.2";
pub(crate) const SERVER: &str = "198.51.100.1";

impl Machine {
    /// Moves this thread into a new one.
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cni = std::env::var("FERROVIRT_CNI").expect("FERROVIRT_CNI is the program cni: make cni");
        let plugins = folder.path().join("plugins");
        virt_node::network::link_plugins(&plugins, Path::new(&cni)).unwrap();
        let places = Places {
            state: folder.path().join("state"),
            namespaces: folder.path().join("netns"),
            plugins: vec![plugins],
        };
        let outside = folder.path().join("outside");
        Namespace::create(&outside).unwrap();
        // On the way out whatever happens.
        let machine = Self { folder, places, outside, children: Vec::new() };
        Namespace::leave().unwrap();
        ip("link set lo up");
        ip("link add up0 mtu 1400 type veth peer name down0 mtu 1400");
        ip(&format!("link set down0 netns {}", machine.outside.display()));
        ip(&format!("addr add {OWN}/24 dev up0"));
        ip("link set up0 up");
        ip(&format!("route add default via {SERVER}"));
        machine.in_outside(|| {
            ip("link set lo up");
            ip(&format!("addr add {SERVER}/24 dev down0"));
            ip("link set down0 up");
        });
        machine
    }

    /// Does `work` in the namespace outside.
    pub(crate) fn in_outside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        inside(&self.outside, work)
    }

    /// Starts a web server outside with the page `text`.
    pub(crate) fn serve(&mut self, text: &str) {
        let folder = self.folder.path().join("www");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("index.html"), text).unwrap();
        let child = self.in_outside(|| {
            let mut command = Command::new("busybox");
            command.args(["httpd", "-f", "-p", "80", "-h"]).arg(&folder);
            started(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
        });
        self.children.push(child);
    }

    /// Starts a DNS server outside with one name: `outside.example` is the web server. It ends with the test.
    pub(crate) fn name_server(&self) {
        let socket = self.in_outside(|| UdpSocket::bind((SERVER, 53)).unwrap());
        let own: std::net::Ipv4Addr = SERVER.parse().unwrap();
        std::thread::spawn(move || {
            let mut packet = [0; 512];
            while let Ok((length, from)) = socket.recv_from(&mut packet) {
                let question = &packet[12..length];
                let known = question.starts_with(b"\x07outside\x07example\x00\x00\x01");
                let mut answer = [&packet[..2], &[0x81, 0x80, 0, 1, 0, u8::from(known), 0, 0, 0, 0]].concat();
                answer.extend(question);
                if known {
                    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                    answer.extend(own.octets());
                }
                drop(socket.send_to(&answer, from));
            }
        });
    }

    /// The pod network.
    pub(crate) fn pod(&self) -> Configuration {
        PodNetwork::default().configuration(&self.places.state).unwrap()
    }

    /// A guest of this name on the pod network, behind masquerade.
    pub(crate) fn guest(&self, name: &str) -> WantedNetworks {
        WantedNetworks {
            container: format!("default-{name}"),
            namespace: "default".to_owned(),
            name: name.to_owned(),
            interfaces: vec![Interface {
                name: "default".to_owned(),
                names: Names::primary(),
                network: self.pod(),
                binding: Binding::Masquerade {
                    v4: "10.0.2.0/24".parse().unwrap(),
                    v6: "fd10:0:2::/120".parse().unwrap(),
                    ports: Vec::new(),
                },
                mac: link::Mac([2, 0, 0, 0, 0, 0x10]),
                many_queues: false,
            }],
            resolvers: Resolvers { addresses: vec![SERVER.parse().unwrap()], ..Resolvers::default() },
            user: api::names::QEMU_ID,
        }
    }

    /// All of the machine that attachments could leave something in.
    pub(crate) fn all(&self) -> String {
        let mut all = vec![links(), ip("-o -4 addr show"), run("nft", &["list", "ruleset", "inet"])];
        all.push(run("nft", &["list", "ruleset", "ip"]));
        all.push(
            fs::read_to_string("/proc/self/mounts")
                .unwrap()
                .lines()
                .filter(|line| line.contains(self.places.namespaces.to_str().unwrap()))
                .collect(),
        );
        all.extend(files(&self.places.state));
        all.extend(files(&self.places.namespaces));
        all.join("\n")
    }
}

/// Makes a disk with Debian's kernel; its first process runs `network_init`.
pub(crate) fn linux(disk: &Path) {
    linux_with(disk, |_| ());
}

/// The same with dropbear, which lets root in by the key of this file, OpenSSH's scp, and an echo for datagrams.
pub(crate) fn linux_with_ssh(disk: &Path, key: &Path) {
    linux_with(disk, |tree| {
        tree.program(Path::new("/usr/sbin/dropbear"), Path::new("bin/dropbear"));
        tree.program(Path::new("/usr/bin/scp"), Path::new("bin/scp"));
        tree.program(Path::new("/usr/bin/socat"), Path::new("bin/socat"));
        tree.copy(key, Path::new("root/.ssh/authorized_keys"));
        fs::write(tree.place(Path::new("etc/passwd")), "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    });
}

fn linux_with(disk: &Path, more: impl FnOnce(&guests::Tree)) {
    let support = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/support");
    let work = tempfile::tempdir().unwrap();
    let applets = "sh mount mkdir modprobe sleep cat ip udhcpc nc tail httpd ping grep sed nslookup";
    let tree = guests::Tree::new(work.path(), &["www", "etc"], applets, &support.join("network_init"));
    tree.modules(&["virtio_pci", "virtio_net"]);
    tree.copy(&support.join("network_lease"), Path::new("lease"));
    more(&tree);
    tree.pack().disk(disk);
}

/// A web server's page, requested from this thread's namespace; `None` without an answer.
pub(crate) fn page(address: SocketAddr) -> Option<String> {
    let patience = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&address, patience).ok()?;
    stream.set_read_timeout(Some(patience)).ok()?;
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

/// The links of this thread's namespace, a line each, without carrier and operational state: the kernel updates those up
/// to a second after the event (`linkwatch` fires once a second).
pub(crate) fn links() -> String {
    let changing = ["NO-CARRIER", "LOWER_UP"];
    let line = |line: &str| {
        let mut words: Vec<String> = line.split(' ').map(ToOwned::to_owned).collect();
        if let Some(flags) = words.iter_mut().find(|word| word.starts_with('<')) {
            let kept: Vec<_> =
                flags[1..flags.len() - 1].split(',').filter(|flag| !changing.contains(flag)).collect();
            *flags = format!("<{}>", kept.join(","));
        }
        if let Some(state) = words.iter().position(|word| word == "state") {
            words.drain(state..state + 2);
        }
        words.join(" ") + "\n"
    };
    ip("-o link show").lines().map(line).collect()
}

/// Files below a folder, but for the lock.
pub(crate) fn files(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.file_name().unwrap() != "lock" {
            found.push(path.display().to_string());
        }
    }
    found.sort();
    found
}

/// Does `work` in a namespace.
pub(crate) fn inside<T: Send>(namespace: &Path, work: impl FnOnce() -> T + Send) -> T {
    virt_node::network::inside(namespace, || Ok::<_, virt_node::Error>(work())).unwrap()
}

/// The only interface that is attached.
pub(crate) fn nic(attached: &Attached) -> &virt_node::network::Nic {
    let [nic] = &attached.nics[..] else { panic!("{attached:?}") };
    nic
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.children.clear();
        // Namespaces that a failed test left.
        for path in files(&self.places.namespaces) {
            drop(Namespace::remove(Path::new(&path)));
        }
        drop(Namespace::remove(&self.outside));
    }
}
