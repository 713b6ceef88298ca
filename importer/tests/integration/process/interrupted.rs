//! Imports that are stopped, killed, meet another one, or find another image.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::process::place::{Loop, MIB, Place, assert_exit, checksum, disk_bytes, run, stalled, wait_for};
use crate::support::{count, crash, importer, text};

fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

#[test]
fn signals_stop_within_two_seconds() {
    for (sent, code) in [(rustix::process::Signal::TERM, 143), (rustix::process::Signal::INT, 130)] {
        let place = Place::new();
        let (mut child, _input) = stalled(&["-", &place.text("disk")], &disk_bytes(4 * MIB));
        wait_for("writing", || fs::metadata(place.path("disk")).ok().filter(|meta| meta.blocks() > 0));
        let asked = Instant::now();
        signal(&child, sent);
        let status = child.wait().unwrap();
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
        assert_eq!(status.code(), Some(code));
        // The file is recognised as ours: no --force is needed to begin again.
        let bytes = disk_bytes(MIB);
        assert_exit(&run(&[&place.write("image", &bytes), &place.text("disk")]), 0);
        assert_eq!(fs::read(place.path("disk")).unwrap(), bytes);
        assert_eq!(place.names("."), ["disk", "image"]);
    }
}

#[test]
fn a_signal_leaves_a_state_to_go_on_from() {
    let place = Place::new();
    let bytes = crash::disk(48, 7);
    let server = crash::Server::start(vec![("/raw".to_owned(), Arc::new(bytes.clone()))], 24e6);
    let (url, target) = (server.url("/raw"), place.text("disk"));
    let journal = place.path(".disk.import-journal");
    for (sent, code) in [
        (rustix::process::Signal::TERM, 143),
        (rustix::process::Signal::INT, 130),
        (rustix::process::Signal::HUP, 129),
    ] {
        // Under nohup a hang-up would be ignored, as it should be.
        let mut command = std::process::Command::new("env");
        command.env_clear().env("PATH", std::env::var("PATH").unwrap());
        command.arg("--default-signal=HUP").arg(importer().get_program());
        let mut child = command.args([&url, &target]).stderr(Stdio::piped()).spawn().unwrap();
        wait_for("a journal record", || {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it was stopped");
            (fs::read_to_string(&journal).unwrap_or_default().lines().count() > 1).then_some(())
        });
        let asked = Instant::now();
        signal(&child, sent);
        let ended = child.wait_with_output().unwrap();
        assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
        assert_eq!(ended.status.code(), Some(code));
        let said = text(&ended.stderr);
        assert!(said.contains("the same command goes on"), "{said}");
        assert_eq!(place.names("."), [".disk.import-journal", "disk"]);
        let output = run(&[&url, &target, "--output", "json"]);
        assert_exit(&output, 0);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["bytes_resumed"].as_u64().unwrap() > 0, "{report}");
        assert!(fs::read(&target).unwrap() == bytes, "other bytes");
        assert_eq!(place.names("."), ["disk"]);
        fs::remove_file(&target).unwrap();
    }
}

#[test]
fn two_importers_never_share_a_target() {
    let place = Place::new();
    let (mut child, input) = stalled(&["-", &place.text("disk")], &disk_bytes(4 * MIB));
    wait_for("writing", || fs::metadata(place.path("disk")).ok().filter(|meta| meta.blocks() > 0));
    let source = place.write("image", &disk_bytes(MIB));
    let output = run(&[&source, &place.text("disk"), "--force"]);
    assert_exit(&output, 7);
    assert!(text(&output.stderr).contains("another import is writing"), "{}", text(&output.stderr));
    drop(input);
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read(place.path("disk")).unwrap(), disk_bytes(4 * MIB));
}

#[test]
fn killed_imports_go_on() {
    let place = Place::new();
    let bytes = disk_bytes(384 * MIB);
    let source = place.write("image", &bytes);
    let wanted = checksum(&bytes);
    let target = place.text("disk");
    let mut state = 42u64;
    let mut resumed = 0;
    for round in 0..count(20, 200) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let moment = Duration::from_micros(5_000 + (state >> 33) % 250_000);
        let arguments = [source.as_str(), &target, "--output", "json", "--force"];
        let mut child = importer()
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(moment);
        drop(child.kill());
        drop(child.wait());
        let output = run(&arguments);
        assert_exit(&output, 0);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        resumed += u32::from(report["bytes_resumed"].as_u64().unwrap() > 0);
        assert_eq!(checksum(&fs::read(&target).unwrap()), wanted, "round {round}, killed after {moment:?}");
        assert_eq!(place.names("."), ["disk", "image"]);
        fs::remove_file(&target).unwrap();
    }
    assert!(resumed > 0, "no round went on where it was killed");
    println!("{resumed} imports went on where they were killed");
}

#[test]
fn another_image_is_a_clean_restart() {
    let place = Place::new();
    let first = disk_bytes(96 * MIB);
    let source = place.write("image", &first);
    let target = place.text("disk");
    let mut child = importer().args([&source, &target]).stderr(Stdio::null()).spawn().unwrap();
    // Killed as soon as something is journaled.
    let journal = place.path(".disk.import-journal");
    wait_for("a journal record", || {
        let lines = fs::read_to_string(&journal).unwrap_or_default().lines().count();
        (lines > 1 || child.try_wait().unwrap().is_some()).then_some(())
    });
    drop(child.kill());
    drop(child.wait());
    let second: Vec<u8> = first.iter().map(|b| b ^ 0x55).collect();
    fs::write(&source, &second).unwrap();
    let output = run(&[&source, &target, "--force", "--output", "json"]);
    assert_exit(&output, 0);
    assert!(fs::read(&target).unwrap() == second, "the new image, not a mixture");
    assert_eq!(place.names("."), ["disk", "image"]);
}

#[test]
fn an_import_to_a_device_resumes_with_a_journal_directory() {
    let place = Place::new();
    // With a mark that a stranger's device would be refused for; here it is ours.
    let mut bytes = crash::disk(48, 9);
    bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
    let server = crash::Server::start(vec![("/raw".to_owned(), Arc::new(bytes.clone()))], 24e6);
    fs::create_dir(place.path("journals")).unwrap();
    let device = Loop::new(&place, "backing", bytes.len() as u64, 0x11);
    let (url, journals) = (server.url("/raw"), place.text("journals"));
    let arguments = [url.as_str(), device.text(), "--journal", &journals, "--output", "json"];
    let wipe = || File::options().write(true).open(&device.path).unwrap().write_all_at(&[0, 0], 510).unwrap();
    for wiped in [false, true] {
        let mut child =
            importer().args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        wait_for("a journal record", || {
            assert!(child.try_wait().unwrap().is_none(), "it ended before it was killed");
            let record = |path| fs::read_to_string(path).unwrap_or_default().lines().count() > 1;
            fs::read_dir(&journals).unwrap().any(|entry| record(entry.unwrap().path())).then_some(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        if wiped {
            // As wipefs does: the journal's content is no longer true.
            wipe();
        }
        let output = run(&arguments);
        assert_exit(&output, 0);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["bytes_resumed"].as_u64().unwrap() > 0, !wiped, "{report}");
        assert!(fs::read(&device.path).unwrap() == bytes, "wiped {wiped}");
        assert!(place.names("journals").is_empty());
        // Finished, it is a stranger's.
        assert_exit(&run(&arguments), 7);
        wipe();
    }
}
