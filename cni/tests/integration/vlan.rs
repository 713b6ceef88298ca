//! VLANs with live frames, in a guest with Debian's kernel: the kernel under the tests may lack VLAN filtering. The guest is
//! emulated, holds only the program, busybox and iproute2, and runs `support/vlan_init`. Two namespaces of it are nodes with an
//! uplink between them.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use guests::{Guest, Tree};
use serde_json::Value;

use crate::support::{VERSIONS, golden, shipped, stable_in};

/// How long the guest may take in all; TCG on a busy machine is slow.
const GUEST_TIMEOUT: Duration = Duration::from_secs(300);
/// The applets of busybox that `vlan_init` uses.
const APPLETS: &str = "sh mount mkdir modprobe cat sed tr grep sort ls wc ping poweroff";

/// The guest.
fn guest(folder: &Path) -> Guest {
    let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/support/vlan_init");
    let tree = Tree::new(folder, &["plugins"], APPLETS, &init);
    for name in ["ip", "bridge"] {
        tree.program(&Path::new("/sbin").join(name), &Path::new("bin").join(name));
    }
    tree.copy(&shipped(), Path::new("plugins/bridge"));
    symlink("bridge", tree.place(Path::new("plugins/host-local"))).unwrap();
    tree.modules(&["bridge", "8021q", "veth"]);
    tree.pack()
}

#[test]
fn vlans_separate_live_frames() {
    let folder = tempfile::tempdir().unwrap();
    let (seen, took) = guest(folder.path()).run(384, &[], "gateway", GUEST_TIMEOUT);
    let said = |what: &str| seen.iter().filter(|line| line.contains(what)).count();
    assert_eq!(said("guest: FAILED"), 0, "{seen:#?}");
    println!("VLANs: {} things seen right in a guest, {:.1} s", said("guest: ok"), took.as_secs_f64());
    // In every version two things, and one more where there is a CHECK; between two nodes 54.
    assert_eq!(said("guest: ok"), 56 + 7 * 2 + 3 + 54, "{seen:#?}");
    for version in VERSIONS {
        let start = format!("guest: answer {version} ");
        let answer = seen.iter().find_map(|line| line.split_once(&start)).unwrap().1;
        let answer: Value = serde_json::from_str(answer).unwrap();
        golden(&format!("bridge-vlan-{version}.json"), &stable_in(&answer, "/run/netns/each"));
    }
}
