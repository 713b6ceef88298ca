//! csi-sanity, the judge of CSI drivers, against the built driver: mount and block, on filesystems that share blocks and
//! on such that do not. What it skips is listed here with the reason; anything else that is skipped fails.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::support::place::{Place, loops, mounts};
use crate::support::{GIB, one_pool_of};

/// Of a 1.13 suite: calls that 1.12 does not have.
const NEWER: &[&str] = &[
    "GetVolumeHealth",
    "ListVolumeHealth",
    "NodeGetStorageHealth",
    "creating a snapshot with accessibility requirements",
];
/// A volume is on its node already: there is nothing to attach, and these calls do not exist.
const ATTACHING: &[&str] = &["ControllerPublishVolume", "ControllerUnpublishVolume", "volume lifecycle"];
/// Disabled in the suite itself.
const DISABLED: &[&str] = &["ListVolumes pagination"];
/// Without shared blocks there are no snapshots, no groups of them, and no clones.
const SHARING: &[&str] = &[
    "GroupController",
    "DeleteSnapshot",
    "CreateSnapshot",
    "ListSnapshots",
    "GetSnapshot",
    "from an existing source snapshot",
    "source snapshot is not found",
    "from an existing source volume",
    "source volume is not found",
];

/// Runs the suite; gives how many cases ran.
fn judge(filesystem: &str, access: &str, more: &str, skipped: &[&[&str]]) {
    let place = Place::new(filesystem, 6 * GIB);
    let driver = one_pool_of("node1", &place, more, &["--single-node"]);
    let targets = place.beside("targets");
    // Mutable parameters: a directory accepts only its present ones.
    let attributes = place.beside("attributes").join("parameters.yaml");
    let allocation = if access == "mount" && !more.contains("loop") { "thin" } else { "thick" };
    fs::write(&attributes, format!("allocation: {allocation}\n")).unwrap();
    let report = place.beside("report").join("junit.xml");
    let output = Command::new(judge_program())
        .current_dir(&targets)
        .arg("-csi.endpoint")
        .arg(driver.socket())
        .arg("-csi.mountdir")
        .arg(targets.join("target"))
        .arg("-csi.stagingdir")
        .arg(targets.join("staging"))
        .args(["-csi.testvolumesize", "419430400", "-csi.testvolumeexpandsize", "838860800"])
        .args(["-csi.testvolumeaccesstype", access])
        .arg(format!("-csi.testvolumemutableparameters={}", attributes.display()))
        .arg(format!("-ginkgo.junit-report={}", report.display()))
        .args(["-ginkgo.no-color", "-ginkgo.timeout=2m"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    let mut passed = 0;
    for case in fs::read_to_string(&report).unwrap().lines().filter(|line| line.contains("<testcase ")) {
        let name = case.split("name=\"").nth(1).unwrap().split('"').next().unwrap();
        let skip = case.contains("status=\"skipped\"") || case.contains("status=\"pending\"");
        let expected = skipped.iter().copied().flatten().any(|part| name.contains(part));
        assert_eq!(skip, expected, "{filesystem} {access}: {name}");
        passed += u32::from(!skip && name.starts_with("[It]"));
    }
    println!("{filesystem} {access}: {passed} cases pass");
    assert!(passed > 40, "{said}");
    assert_eq!(mounts(&targets), [] as [PathBuf; 0], "nothing stays mounted");
    assert_eq!(loops(&place.pool()), [] as [String; 0], "no device stays attached");
    assert_eq!(driver.stop(), Some(0));
}

fn judge_program() -> PathBuf {
    let folder = std::env::var_os("FERROVIRT_PEERS").expect(
        "FERROVIRT_PEERS names the folder of csi-sanity; `make test` sets it and builds what is in it",
    );
    let program = PathBuf::from(folder).join("csi-sanity");
    assert!(program.exists(), "{} is missing: `make peers` builds it", program.display());
    program
}

#[test]
fn mount_volumes_on_xfs() {
    judge("xfs", "mount", "", &[NEWER, ATTACHING, DISABLED]);
}

#[test]
fn block_volumes_on_xfs() {
    judge("xfs", "block", "", &[NEWER, ATTACHING, DISABLED]);
}

#[test]
fn mount_volumes_with_filesystems_of_their_own_on_xfs() {
    judge("xfs", "mount", r#","enforce":"loop""#, &[NEWER, ATTACHING, DISABLED]);
}

#[test]
fn mount_volumes_on_btrfs() {
    judge("btrfs", "mount", "", &[NEWER, ATTACHING, DISABLED]);
}

#[test]
fn block_volumes_on_btrfs() {
    judge("btrfs", "block", "", &[NEWER, ATTACHING, DISABLED]);
}

#[test]
fn mount_volumes_on_ext4() {
    judge("ext4", "mount", "", &[NEWER, ATTACHING, DISABLED, SHARING]);
}

#[test]
fn block_volumes_on_ext4() {
    judge("ext4", "block", "", &[NEWER, ATTACHING, DISABLED, SHARING]);
}

#[test]
fn mount_volumes_on_tmpfs() {
    judge("tmpfs", "mount", "", &[NEWER, ATTACHING, DISABLED, SHARING]);
}

#[test]
fn block_volumes_on_tmpfs() {
    judge("tmpfs", "block", "", &[NEWER, ATTACHING, DISABLED, SHARING]);
}
