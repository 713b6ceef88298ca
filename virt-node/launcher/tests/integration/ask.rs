//! `virt-launcher ask` and `virt-launcher capabilities`: the command line of a launcher that runs, and of what all share.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use api::launcher::capabilities::{CAPABILITIES, Capabilities};
use api::launcher::{Answer, Cause, Status};

use crate::support::program;
use crate::support::running::{HALTS, Launcher};

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = program::run(env!("CARGO_BIN_EXE_virt-launcher"), arguments, b"");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_guest_is_run_by_commands() {
    let mut launcher = Launcher::new();
    let folder = launcher.folder().to_str().unwrap().to_owned();
    launcher.status();
    let document = launcher.document(HALTS);
    let file = launcher.folder().join("asked.json");
    fs::write(&file, document.write().unwrap()).unwrap();
    let ask = |words: &[&str]| run(&[&["ask", &folder], words].concat());
    let (code, said, _) = ask(&["launch", file.to_str().unwrap()]);
    let Answer::Launched { new: true, .. } = serde_json::from_str(&said).unwrap() else { panic!("{said}") };
    assert_eq!(code, Some(0));
    launcher.until_serial("K");
    assert_eq!(ask(&["pause"]).0, Some(0));
    let Answer::Status(Status { uid, .. }) = serde_json::from_str(&ask(&["status"]).1).unwrap() else {
        panic!()
    };
    assert_eq!(uid, Some(document.uid));
    let picture = launcher.folder().join("screen");
    assert_eq!(ask(&["screenshot", picture.to_str().unwrap()]).0, Some(0));
    assert!(fs::metadata(&picture).unwrap().len() > 100);
    let (code, _, said) = ask(&["agent", "{\"execute\":\"guest-ping\"}", "--timeout", "1"]);
    assert!(code == Some(1) && said.starts_with("virt-launcher: "), "there is no agent: {said}");
    assert_eq!(ask(&["shutdown", "--grace-period", "0"]).0, Some(0));
    launcher.ends(Cause::Killed);
    let (code, _, said) = ask(&["status"]);
    assert!(code == Some(3) && said.contains("the launcher does not answer on its socket"), "{said}");
}

#[test]
fn capabilities_are_made_once_and_used_by_every_start() {
    let cache = tempfile::tempdir().unwrap();
    fs::set_permissions(cache.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = cache.path().to_str().unwrap();
    let (code, said, told) = run(&["capabilities", path]);
    assert_eq!((code, said.as_str()), (Some(0), "made\n"), "{told}");
    assert!(told.contains("once for this machine: some seconds"), "{told}");
    let (code, said, told) = run(&["capabilities", path]);
    assert_eq!((code, said.as_str(), told.as_str()), (Some(0), "already there\n", ""));
    let report: Capabilities =
        serde_json::from_slice(&fs::read(cache.path().join(CAPABILITIES)).unwrap()).unwrap();
    assert!(report.machines.iter().any(|machine| machine == "q35"), "{report:?}");
    let emulation = report.emulation.expect("emulation works everywhere");
    assert!(emulation.models.iter().any(|model| model == "qemu64"), "{emulation:?}");
    assert!(emulation.host_model.is_some() && emulation.features.len() > 20, "{emulation:?}");
    let launcher = Launcher::start(&[], Some(cache.path()));
    launcher.launch(&launcher.document(HALTS));
    assert!(!launcher.log().contains("some seconds"), "{}", launcher.log());
    // libvirt used it: a probe would rewrite it.
    let read = |folder: &std::path::Path| {
        let file = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        let file = file.into_iter().find(|file| file.extension().is_some_and(|end| end == "xml"));
        fs::read(file.expect("a file")).unwrap()
    };
    let place = fs::read_dir(cache.path()).unwrap().map(|one| one.unwrap().path()).find(|one| one.is_dir());
    assert_eq!(read(&place.expect("a folder")), read(&launcher.folder().join("lv/cache/qemu/capabilities")));
}
