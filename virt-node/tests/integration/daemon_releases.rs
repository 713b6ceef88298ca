//! Guests across releases: a guest of the first release that agrees on a protocol version, under this release's daemon; and
//! launchers that speak later versions. Both are built here, which takes minutes: `make soak` runs it.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;

use crate::support::daemon::{Daemon, code, eventually, machine, programs, read_until};

/// The protocol's versions.
const VERSIONS: &str = "lib/api/src/launcher/version.rs";

fn git(words: &[&str]) -> Option<String> {
    let output = Command::new("git").args(words).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// The first commit with a launcher that agrees on a version, as a member of the workspace.
fn first_agreement() -> String {
    let commits = git(&["log", "--reverse", "--format=%H", "--", ":/Cargo.toml"]).unwrap();
    let agrees = |commit: &&str| {
        git(&["show", &format!("{commit}:Cargo.toml")])
            .is_some_and(|text| text.contains("\"virt-node/launcher\""))
            && git(&["cat-file", "-e", &format!("{commit}:{VERSIONS}")]).is_some()
    };
    let found = commits.lines().find(agrees);
    found.unwrap_or_else(|| panic!("no such commit: the clone is shallow")).to_owned()
}

/// The source of a commit, and where it is built: next to this program's own build, so that a second run builds little.
struct Release {
    folder: PathBuf,
}

impl Release {
    fn of(name: &str, commit: &str) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("releases").join(name);
        let source = folder.join("source");
        fs::create_dir_all(&source).unwrap();
        let archive = folder.join("source.tar");
        let root = git(&["rev-parse", "--show-toplevel"]).unwrap();
        git(&["-C", root.trim(), "archive", "--output", archive.to_str().unwrap(), commit]).unwrap();
        let unpacked = Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&source).status().unwrap();
        assert!(unpacked.success());
        Self { folder }
    }

    /// Has the protocol's versions replaced.
    fn speak(&self, versions: [u32; 2]) {
        let file = self.folder.join("source").join(VERSIONS);
        let text = fs::read_to_string(&file).unwrap();
        let is_list = |line: &&str| line.starts_with("pub const VERSIONS: [u32; 2] = ");
        let old = text.lines().find(is_list).unwrap();
        fs::write(&file, text.replace(old, &format!("pub const VERSIONS: [u32; 2] = {versions:?};")))
            .unwrap();
    }

    /// Builds these packages, each of which has a program of its name; answers the folder of all programs: those, and of this
    /// release the rest.
    fn build(&self, packages: &[&str]) -> PathBuf {
        let target = self.folder.join("target");
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .current_dir(self.folder.join("source"))
            .args(["build", "--locked", "--target-dir"])
            .arg(&target);
        for package in packages {
            cargo.args(["-p", package]);
        }
        assert!(cargo.status().unwrap().success(), "{packages:?}");
        let all = self.folder.join("programs");
        fs::create_dir_all(&all).unwrap();
        for program in ["virt-node", "virt-launcher", "importer", "hpp-csi", "uploadserver"] {
            let from = if packages.contains(&program) { target.join("debug") } else { programs() };
            // A copy: the daemon looks for its programs next to its own file.
            drop(fs::remove_file(all.join(program)));
            fs::copy(from.join(program), all.join(program)).unwrap();
        }
        all
    }
}

/// A VM that writes what it reads from its console, and a claim without disk in it.
fn document(daemon: &Daemon) -> String {
    let image = daemon.image("disk.img", code::ECHOES);
    let source = format!("{{http: {{url: \"file://{}\"}}}}", image.display());
    let claim = "\
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: more}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
";
    claim.to_owned() + &machine("mine", "Manual", &source, "").replace("disableHotplug: true, ", "")
}

fn phase(daemon: &Daemon, volume: &str) -> Option<String> {
    let instance = daemon.object("vmi/mine")?;
    let all = instance["status"]["volumeStatus"].as_array()?;
    Some(all.iter().find(|one| one["name"] == volume)?["phase"].as_str()?.to_owned())
}

/// Status, console, hotplug, pause and stop.
fn is_served(daemon: &Daemon) {
    daemon.until("mine", "Running");
    assert_eq!(daemon.object("vmi/mine").unwrap()["status"]["phase"], "Running");
    let mut console = daemon.started(&["console", "mine"], Stdio::piped(), Stdio::piped());
    console.0.stdin.as_mut().unwrap().write_all(b"hello").unwrap();
    read_until(console.0.stdout.as_mut().unwrap(), "hello");
    drop(console);
    daemon.says(&["addvolume", "mine", "--volume-name", "more"]);
    eventually("the volume is attached", || (phase(daemon, "more")? == "Ready").then_some(()));
    daemon.says(&["removevolume", "mine", "--volume-name", "more"]);
    eventually("the volume is detached", || phase(daemon, "more").is_none().then_some(()));
    daemon.says(&["pause", "mine"]);
    daemon.until("mine", "Paused");
    daemon.says(&["unpause", "mine"]);
    daemon.until("mine", "Running");
    daemon.says(&["stop", "mine"]);
    daemon.until("mine", "Stopped");
}

#[test]
#[ignore = "builds another release: make soak runs it"]
fn a_guest_of_the_first_release_that_agrees_on_a_version_is_served_and_starts_again() {
    let first = Release::of("first", &first_agreement());
    let mut daemon = Daemon::of(first.build(&["virt-node", "virt-launcher"]));
    let document = document(&daemon);
    daemon.run(&document);
    daemon.until_serial("mine", "K");
    let launcher = daemon.process("virt-launcher").unwrap();
    daemon.end(Signal::KILL);
    daemon.upgrade(programs());
    daemon.again();
    daemon.until("mine", "Running");
    assert_eq!(daemon.process("virt-launcher"), Some(launcher), "the guest keeps its launcher");
    is_served(&daemon);
    daemon.says(&["start", "mine"]);
    daemon.until_serial("mine", "K");
    daemon.says(&["delete", "mine", "--force"]);
}

#[test]
#[ignore = "builds another release: make soak runs it"]
fn launchers_of_later_versions_are_served_or_refused_with_the_versions_of_both() {
    let next = Release::of("next", "HEAD");
    next.speak([2, 3]);
    let daemon = Daemon::of(next.build(&["virt-launcher"]));
    daemon.run(&document(&daemon));
    daemon.until_serial("mine", "K");
    is_served(&daemon);
    drop(daemon);

    next.speak([3, 4]);
    let daemon = Daemon::of(next.build(&["virt-launcher"]));
    daemon.apply(&document(&daemon));
    let output = daemon.command(&["start", "mine"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let told = "the other side speaks versions [3, 4], this program [1, 2]: upgrade the older one";
    eventually(&format!("the versions in the status: {said} {}", daemon.log()), || {
        daemon.object("vm/mine")?.to_string().contains(told).then_some(())
    });
    daemon.says(&["delete", "mine", "--force"]);
}
