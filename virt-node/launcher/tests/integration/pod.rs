//! The launcher in a pod: the pod's user stays, another instance's guest is refused, QEMU's log is where tools look for it.

use std::fs;
use std::process::Command;

use api::launcher::{Cause, RefusedKind, State};
use api::names::QEMU_ID;
use guest::CallError;

use crate::support::running::{self, HALTS, Launcher, status_line};
use crate::support::waiting::output;

const UID: &str = "00000000-0000-4000-8000-00000000000a";

#[test]
fn a_pods_launcher_keeps_the_pods_user_and_runs_its_own_instance_only() {
    let mut launcher = Launcher::in_pod(UID);
    assert!(status_line(launcher.outer(), "Uid:").contains(&QEMU_ID.to_string()));
    assert!(running::command_line(launcher.outer()).contains(UID), "found by its uid");
    let mut other = launcher.document(HALTS);
    other.uid = "00000000-0000-4000-8000-00000000000b".to_owned();
    let refused = launcher.client().launch(&other).unwrap_err();
    assert!(
        matches!(&refused, CallError::Refused(RefusedKind::Invalid, text) if text.contains(UID)),
        "{refused:?}"
    );
    let mut own = launcher.document(HALTS);
    own.uid = UID.to_owned();
    launcher.launch(&own);
    launcher.until(State::Running);
    let log = launcher.folder().join("libvirt/qemu/log");
    assert!(fs::symlink_metadata(&log).unwrap().is_dir(), "tar packs a link as a link");
    assert!(fs::read_dir(&log).unwrap().flatten().count() > 0, "QEMU's log is in {}", log.display());
    launcher.client().call(api::launcher::Request::Kill).unwrap();
    launcher.ends(Cause::Killed);
}

#[test]
fn a_pod_that_gives_root_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_virt-launcher"));
    let output = output(command.arg("run").arg(folder.path()).args(["--pod", "--uid", UID]));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("runAsUser"));
}
