//! Forwarding entries of locked ports that follow VLANs, in an emulated guest: the kernel under the tests may lack VLAN
//! filtering. The guest runs `vlan_init`, which attaches pods with the program cni, and this test's own program as the agent.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use guests::{Guest, Tree};
use tokio::sync::watch;

use super::follow;

/// Set in the guest.
const MARK: &str = "AGENT_TEST_FOLLOWS";
/// How long the guest may take in all; TCG on a busy machine is slow.
const GUEST_TIMEOUT: Duration = Duration::from_secs(240);
/// The applets of busybox that `vlan_init` uses.
const APPLETS: &str = "sh mount mkdir modprobe cat sed tr grep sort sleep ping poweroff";

fn guest(folder: &Path) -> Guest {
    let cni = std::env::var_os("FERROVIRT_CNI")
        .expect("FERROVIRT_CNI is not set: make cni builds it, make test sets it");
    let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/node/bridges/vlan_init");
    let tree = Tree::new(folder, &["plugins", "tmp"], APPLETS, &init);
    for name in ["ip", "bridge"] {
        tree.program(&Path::new("/sbin").join(name), &Path::new("bin").join(name));
    }
    tree.copy(Path::new(&cni), Path::new("plugins/bridge"));
    symlink("bridge", tree.place(Path::new("plugins/host-local"))).unwrap();
    tree.program(&std::env::current_exe().unwrap(), Path::new("bin/agent"));
    tree.modules(&["bridge", "8021q", "veth"]);
    tree.pack()
}

#[test]
fn entries_of_locked_ports_follow_their_vlans() {
    if std::env::var_os(MARK).is_some() {
        let (tell, _seen) = watch::channel(BTreeSet::new());
        return follow(Path::new("/proc/thread-self/ns/net"), &tell).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let (seen, took) = guest(folder.path()).run(768, &[], "", GUEST_TIMEOUT);
    let lines = |what: &str| seen.iter().filter(|line| line.contains(what)).count();
    assert_eq!(lines("guest: FAILED"), 0, "{seen:#?}");
    assert_eq!(lines("guest: ok"), 32, "{seen:#?}");
    let times =
        seen.iter().filter_map(|line| line.split_once("guest: followed after ")).map(|(_, rest)| rest);
    println!(
        "entries follow VLANs; ms: {}; {:.1} s",
        times.collect::<Vec<_>>().join(" "),
        took.as_secs_f64()
    );
}
