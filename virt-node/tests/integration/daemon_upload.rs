//! Volumes that are filled by an upload: images and archives of this machine's files, under guests that boot from them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::daemon::{Daemon, code, eventually, kill, machine, output, read_until};

/// The same disk as qcow2, compressed.
fn packed(image: &Path) -> PathBuf {
    let path = image.with_extension("qcow2");
    let made = Command::new("qemu-img").args(["convert", "-c", "-O", "qcow2"]).args([image, &path]).status();
    assert!(made.unwrap().success());
    path
}

/// The folder of a claim.
fn folder(daemon: &Daemon, name: &str) -> PathBuf {
    let claim = daemon.object(&format!("pvc/{name}")).unwrap();
    daemon.state().join("claims").join(claim["metadata"]["uid"].as_str().unwrap())
}

fn phase(daemon: &Daemon, name: &str) -> String {
    let object = daemon.object(&format!("dv/{name}"));
    object.map(|one| one["status"]["phase"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
}

/// The message and the exit code of a command that fails.
fn fails(daemon: &Daemon, words: &[&str]) -> (Option<i32>, String) {
    let output = daemon.command(words);
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn an_image_is_uploaded_and_boots() {
    let mut daemon = Daemon::start();
    let image = daemon.image("disk.raw", code::HALTS);
    let packed = packed(&image);
    let file = packed.to_str().unwrap();
    // virtctl's words make the DataVolume.
    let made = ["image-upload", "dv", "golden", "--size", "2Mi", "--image-path", file, "--insecure"];
    let said = daemon.says(&made);
    for word in
        ["DataVolume default/golden created", "Uploading data to default/golden", "completed successfully"]
    {
        assert!(said.contains(word), "{said}");
    }
    let (written, wanted) =
        (fs::read(folder(&daemon, "golden").join("data/disk.img")).unwrap(), fs::read(&image).unwrap());
    assert!(written[..wanted.len()] == wanted[..] && written.len() == 2 << 20);
    assert_eq!(daemon.process("uploadserver"), None, "it ends with the upload");
    // Once is enough.
    let (code, told) = fails(&daemon, &made);
    assert!(code == Some(1) && told.contains("filled already"), "{told}");
    // A VM's own volume waits for it; the daemon may be restarted in between.
    let document = daemon.path("mine.yaml");
    fs::write(&document, machine("mine", "Always", "{upload: {}}", "")).unwrap();
    let mut run =
        daemon.started(&["run", "--detach", document.to_str().unwrap()], Stdio::null(), Stdio::piped());
    read_until(run.0.stdout.as_mut().unwrap(), "image-upload dv mine-root");
    eventually("a server", || (phase(&daemon, "mine-root") == "UploadReady").then_some(()));
    drop(run);
    daemon.end(Signal::KILL);
    daemon.again();
    // A file that is no image is refused with the reason, and the next one accepted.
    let bad = daemon.path("bad.qcow2");
    let mut bytes = fs::read(&packed).unwrap();
    bytes[7] = 9;
    fs::write(&bad, bytes).unwrap();
    let more = ["image-upload", "dv", "mine-root", "--no-create", "--image-path"];
    let (code, told) = fails(&daemon, &[&more[..], &[bad.to_str().unwrap()]].concat());
    assert!(code == Some(1) && told.contains("version 9"), "{told}");
    daemon.says(&[&more[..], &[file]].concat());
    daemon.until_serial("mine", "K");
    for name in ["mine", "dv/golden"] {
        daemon.says(&["delete", name]);
    }
    assert_eq!((daemon.names("claims"), daemon.mounts()), (Vec::new(), Vec::new()));
}

#[test]
fn a_server_serves_its_client_and_ends_when_killed_or_unused() {
    let mut daemon = Daemon::start();
    let image = daemon.image("disk.raw", code::HALTS);
    let image = image.to_str().unwrap();
    // Too small a volume, and one that is not there.
    let (code, told) = fails(&daemon, &["image-upload", "dv", "none", "--no-create", "--image-path", image]);
    assert!(code == Some(1) && told.contains("DataVolume default/none does not exist"), "{told}");
    let (code, told) = fails(&daemon, &["image-upload", "dv", "none", "--image-path", image]);
    assert!(code == Some(2) && told.contains("--size"), "{told}");
    let small = ["image-upload", "pvc", "small", "--size", "64Ki", "--image-path", image];
    let (code, told) = fails(&daemon, &small);
    assert!(code == Some(1) && told.contains("larger"), "{told}");
    // No other client on the machine may send.
    eventually("a server", || (phase(&daemon, "small") == "UploadReady").then_some(()));
    let log = fs::read_to_string(folder(&daemon, "small").join("log")).unwrap();
    let port = log.rsplit_once("127.0.0.1:").unwrap().1.split_once('\n').unwrap().0.to_owned();
    let url = format!("https://127.0.0.1:{port}/v1beta1/upload");
    let asked =
        output(Command::new("curl").args(["-sk", "-o", "/dev/null", "-w", "%{http_code}", "-d", "x", &url]));
    assert_eq!(String::from_utf8_lossy(&asked.stdout), "401");
    // One that was killed is started again.
    let before = daemon.process("uploadserver").unwrap();
    kill(before, Signal::KILL);
    eventually("another server", || daemon.process("uploadserver").filter(|id| *id != before));
    eventually("a server", || (phase(&daemon, "small") == "UploadReady").then_some(()));
    // A daemon that did not start it ends it too.
    daemon.end(Signal::KILL);
    daemon.again();
    daemon.says(&["delete", "dv/small"]);
    assert_eq!(daemon.process("uploadserver"), None);
    assert_eq!((daemon.names("claims"), daemon.mounts()), (Vec::new(), Vec::new()));
}

#[test]
fn a_server_killed_during_an_upload_costs_a_try() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.raw", code::HALTS);
    // A refused upload leaves a volume and a server that waits.
    let bad = daemon.path("bad.qcow2");
    fs::write(&bad, [b"QFI\xfb\0\0\0\x09".as_slice(), &[0; 504]].concat()).unwrap();
    let made = ["image-upload", "dv", "again", "--size", "2Mi", "--image-path", bad.to_str().unwrap()];
    let (code, told) = fails(&daemon, &made);
    assert!(code == Some(1) && told.contains("version 9"), "{told}");
    eventually("a server", || (phase(&daemon, "again") == "UploadReady").then_some(()));
    let server = daemon.process("uploadserver").unwrap();
    // It answers nothing, and then it is gone: the next one has another port and other certificates.
    kill(server, Signal::STOP);
    let more = ["image-upload", "dv", "again", "--no-create", "--image-path", image.to_str().unwrap()];
    let mut uploading = daemon.started(&more, Stdio::null(), Stdio::piped());
    let mut said = uploading.0.stdout.take().unwrap();
    read_until(&mut said, "Uploading data to default/again");
    kill(server, Signal::KILL);
    read_until(&mut said, "; retrying");
    read_until(&mut said, "completed successfully");
    assert!(uploading.0.wait().unwrap().success());
    let wanted = fs::read(&image).unwrap();
    let written = fs::read(folder(&daemon, "again").join("data/disk.img")).unwrap();
    assert!(written[..wanted.len()] == wanted[..] && written.len() == 2 << 20);
    daemon.says(&["delete", "dv/again"]);
}

#[test]
fn block_volumes_and_archives_are_filled_too() {
    let daemon = Daemon::start();
    let image = daemon.image("disk.raw", code::HALTS);
    let document = daemon.path("block.yaml");
    let machine = machine("block", "Always", "{upload: {}}", "");
    fs::write(&document, machine.replace("storage: {resources", "storage: {volumeMode: Block, resources"))
        .unwrap();
    let run = daemon.started(&["run", "--detach", document.to_str().unwrap()], Stdio::null(), Stdio::null());
    eventually("a server", || (phase(&daemon, "block-root") == "UploadReady").then_some(()));
    daemon.says(&["image-upload", "dv", "block-root", "--image-path", image.to_str().unwrap()]);
    daemon.until_serial("block", "K");
    drop(run);
    let tar = daemon.path("files.tar");
    let notes = daemon.path("notes.txt");
    fs::write(&notes, "words").unwrap();
    let mut made = Command::new("tar");
    made.arg("-C").arg(notes.parent().unwrap()).arg("-cf").arg(&tar).arg("notes.txt");
    assert!(made.status().unwrap().success());
    let archive = ["image-upload", "dv", "files", "--size", "1Mi", "--archive-path", tar.to_str().unwrap()];
    daemon.says(&archive);
    let written = folder(&daemon, "files").join("data/notes.txt");
    assert_eq!(fs::read_to_string(written).unwrap(), "words");
    for name in ["block", "dv/files"] {
        daemon.says(&["delete", name]);
    }
    assert_eq!((daemon.names("claims"), daemon.mounts()), (Vec::new(), Vec::new()));
}
