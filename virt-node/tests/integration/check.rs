//! `virt-node check`: what is there is found by trying it, what is missing comes with advice.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::launcher::waiting;

/// The directory of the static `cni`, which reports the kernel's features.
fn cni_folder() -> PathBuf {
    let program = std::env::var_os("FERROVIRT_CNI").expect("FERROVIRT_CNI names the program cni (make cni)");
    let program = PathBuf::from(program);
    assert!(program.is_file(), "{} is not there: make cni", program.display());
    program.parent().unwrap().to_owned()
}

/// Runs the program alone in a directory: it looks for others next to itself, too.
fn run(path: &str, state: &Path, output: &str) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("virt-node");
    // By another process: a program that is open for writing here, when another test forks, cannot be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_virt-node")).arg(&program).status().unwrap();
    assert!(copied.success());
    let mut command = Command::new(program);
    command.args(["check", "--state", state.to_str().unwrap(), "--output", output]);
    waiting::output(command.env("PATH", path).stdin(Stdio::null()))
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)))
}

/// One of the things that were tried.
fn tried<'a>(report: &'a Value, name: &str) -> &'a Value {
    report["checks"]
        .as_array()
        .unwrap()
        .iter()
        .find(|one| one["name"] == name)
        .unwrap_or_else(|| panic!("{name}"))
}

fn full_path() -> String {
    format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", cni_folder().display())
}

#[test]
fn every_check_is_reported_and_failures_with_advice() {
    let state = tempfile::tempdir().unwrap();
    let output = run(&full_path(), &state.path().join("not/yet/there"), "json");
    let report = json(&output);
    let names: Vec<&str> =
        report["checks"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "qemu",
            "kvm",
            "libvirt",
            "ovmf",
            "swtpm",
            "users",
            "state",
            "reflink",
            "direct-io",
            "io_uring",
            "bridge",
            "veth",
            "tun",
            "nft",
            "nft-bridge",
            "forward"
        ]
    );
    let mut good = true;
    for one in report["checks"].as_array().unwrap() {
        let offered = one["offered"].as_bool().unwrap();
        good &= offered || !one["required"].as_bool().unwrap();
        assert_eq!(one["found"].is_string(), offered, "{one}");
        let words = |key: &str| one[key].as_str().is_some_and(|text| !text.is_empty());
        assert_eq!(words("reason") && words("advice"), !offered, "{one}");
    }
    assert_eq!(report["good"], good);
    assert_eq!(output.status.code(), Some(i32::from(!good)));
    for name in ["qemu", "bridge", "veth", "nft", "io_uring", "state"] {
        assert_eq!(tried(&report, name)["offered"], true, "{name}: {}", tried(&report, name));
    }
    // Some machines' is root's alone, and QEMU is not root.
    let open = fs::metadata("/dev/net/tun").unwrap().permissions().mode() & 0o6 == 0o6;
    let tun = tried(&report, "tun");
    assert_eq!(tun["offered"], open, "{tun}");
    assert!(open || tun["advice"].as_str().unwrap().contains("chmod 0666 /dev/net/tun"), "{tun}");
    assert!(!state.path().join("not").exists(), "nothing is made");
}

#[test]
fn nothing_is_left_behind_and_the_text_has_a_line_for_each() {
    let state = tempfile::tempdir().unwrap();
    let output = run(&full_path(), state.path(), "text");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().filter(|line| !line.trim_start().starts_with('→')).count() == 16, "{text}");
    assert_eq!(fs::read_dir(state.path()).unwrap().count(), 0);
}

/// As `make install` puts them: next to each other, and not on the PATH.
#[test]
fn programs_of_a_prefix_find_each_other() {
    let prefix = tempfile::tempdir_in(Path::new(env!("CARGO_BIN_EXE_virt-node")).parent().unwrap()).unwrap();
    let program = prefix.path().join("virt-node");
    fs::hard_link(env!("CARGO_BIN_EXE_virt-node"), &program).unwrap();
    let check = || {
        let state = tempfile::tempdir().unwrap();
        let mut command = Command::new(&program);
        command.args(["check", "--output", "json", "--state"]).arg(state.path());
        let output =
            waiting::output(command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null()));
        tried(&json(&output), "bridge").clone()
    };
    let alone = check();
    assert!(alone["reason"].as_str().is_some_and(|reason| reason.contains("cni")), "{alone}");
    fs::copy(cni_folder().join("cni"), prefix.path().join("cni")).unwrap();
    let together = check();
    assert_eq!(together["offered"], true, "{together}");
}

#[test]
fn missing_programs_are_reported() {
    let state = tempfile::tempdir().unwrap();
    let report = json(&run("/nonexistent", state.path(), "json"));
    for name in ["qemu", "kvm", "swtpm", "bridge", "nft"] {
        assert_eq!(tried(&report, name)["offered"], false, "{name}");
    }
    assert_eq!(report["good"], false);
    assert!(tried(&report, "qemu")["advice"].as_str().unwrap().contains("apt install"));
    assert!(tried(&report, "bridge")["reason"].as_str().unwrap().contains("cni"));
}

/// A program in `folder` that stands for QEMU.
fn emulator(folder: &Path, script: &str) -> String {
    let file = folder.join("qemu-system-x86_64");
    fs::write(&file, format!("#!/bin/sh\n[ \"$1\" = --version ] && {{ echo stand-in; exit; }}\n{script}\n"))
        .unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:/usr/bin:/bin", folder.display())
}

/// A mount namespace with a /dev/kvm that opens, on any machine; then the program.
const WITH_A_DEVICE: &str = r#"
mkdir "$1/real" && mount --bind /dev "$1/real" && mount -t tmpfs dev /dev && : > /dev/kvm && chmod 0666 /dev/kvm || exit 99
for name in null zero urandom; do : > /dev/$name && mount --bind "$1/real/$name" /dev/$name || exit 99; done
shift
exec "$@"
"#;

#[test]
fn kvm_is_what_runs_a_guest_not_what_opens() {
    let state = tempfile::tempdir().unwrap();
    for (script, offered) in [
        ("printf K; exec sleep 60", true),
        ("exit 1", false),
        ("printf x; exec sleep 60", false),
        ("exec sleep 60", false),
        ("yes | head -c 1000000; printf K", false),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = emulator(folder.path(), script);
        let begun = Instant::now();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", WITH_A_DEVICE, "sh", folder.path().to_str().unwrap()])
            .args([env!("CARGO_BIN_EXE_virt-node"), "check", "--output", "json", "--state"])
            .arg(state.path());
        let output = waiting::output(command.env("PATH", &path).stdin(Stdio::null()));
        let report = json(&output);
        assert_eq!(tried(&report, "kvm")["offered"], offered, "{script}: {}", tried(&report, "kvm"));
        assert!(begun.elapsed() < Duration::from_secs(30), "{script}: {:?}", begun.elapsed());
    }
}

/// The same with a kvm of this mode and group; the device is reached through a mount, so that its node can be any file.
const WITH_RIGHTS: &str = r#"
mount -t tmpfs none "$1" && : > "$1/kvm" && chown 0:"$3" "$1/kvm" && chmod "$2" "$1/kvm" || exit 99
[ -e /dev/kvm ] || { mkdir "$1/real" && mount --bind /dev "$1/real" && mount -t tmpfs dev /dev && : > /dev/kvm || exit 99
for name in null zero urandom; do : > /dev/$name && mount --bind "$1/real/$name" /dev/$name || exit 99; done; }
mount --bind "$1/kvm" /dev/kvm || exit 99
shift 3
exec "$@"
"#;

/// A stock host's device is its group's, which a VM's user gets; one that is root's alone is of no use to it.
#[test]
fn rights_of_the_kvm_device_are_judged_for_vms_and_come_with_advice() {
    let (state, programs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    // QEMU is good: the device alone decides.
    let path = emulator(programs.path(), "printf K; exec sleep 60");
    for (mode, group, offered) in
        [("0660", "1234", true), ("0666", "0", true), ("0660", "0", false), ("0600", "1234", false)]
    {
        let place = tempfile::tempdir().unwrap();
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", WITH_RIGHTS, "sh", place.path().to_str().unwrap(), mode, group])
            .args([env!("CARGO_BIN_EXE_virt-node"), "check", "--output", "json", "--state"])
            .arg(state.path());
        let report = json(&waiting::output(command.env("PATH", &path).stdin(Stdio::null())));
        let kvm = tried(&report, "kvm");
        assert_eq!(kvm["offered"], offered, "{mode} {group}: {kvm}");
        let says = |key: &str, words: &str| kvm[key].as_str().is_some_and(|text| text.contains(words));
        assert!(offered || says("reason", "permission denied"), "{mode} {group}: {kvm}");
        assert!(
            offered || says("advice", "chgrp kvm /dev/kvm; chmod 0660 /dev/kvm"),
            "{mode} {group}: {kvm}"
        );
    }
}

/// Accounts of other services in ferrovirt's range.
#[test]
fn accounts_with_numbers_of_vms_are_named_with_advice() {
    let (state, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (passwd, group) = (place.path().join("passwd"), place.path().join("group"));
    let add = |path: &Path, own: &str, line: &str| {
        fs::write(path, fs::read_to_string(own).unwrap() + line).unwrap();
    };
    add(&passwd, "/etc/passwd", "mysql:x:1900000007:5:::\nferrovirt-first:x:1900000000:1900000000:::\n");
    add(&group, "/etc/group", "tss:x:1900065535:\n");
    let script =
        "mount --bind \"$1\" /etc/passwd && mount --bind \"$2\" /etc/group && shift 2 && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).args([&passwd, &group]);
    command.args([env!("CARGO_BIN_EXE_virt-node"), "check", "--output", "json", "--state"]).arg(state.path());
    let report = json(&waiting::output(command.stdin(Stdio::null())));
    let users = tried(&report, "users");
    let reason = users["reason"].as_str().unwrap_or_else(|| panic!("{users}"));
    assert!(reason.contains("user mysql has 1900000007"), "{users}");
    assert!(reason.contains("group tss has 1900065535") && !reason.contains("ferrovirt-first"), "{users}");
    assert!(users["advice"].as_str().unwrap().contains("no VM runs under theirs"), "{users}");
}

/// A filesystem in a file, gone with the value.
struct Mounted {
    folder: tempfile::TempDir,
}

impl Mounted {
    fn new(make: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disk");
        fs::File::create(&file).unwrap().set_len(400 << 20).unwrap();
        let mounted = Self { folder };
        let target = mounted.path();
        fs::create_dir(&target).unwrap();
        let run = |words: &[&str]| {
            let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
            assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        };
        let file = file.to_str().unwrap();
        run(&[make, &[file]].concat());
        run(&["mount", "-o", "loop", file, target.to_str().unwrap()]);
        mounted
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(self.path()).status());
    }
}

#[test]
fn filesystems_are_tried() {
    for (make, reflink) in [(&["mkfs.xfs", "-q"][..], true), (&["mkfs.ext4", "-q"], false)] {
        let mounted = Mounted::new(make);
        let report = json(&run(&full_path(), &mounted.path(), "json"));
        assert_eq!(tried(&report, "reflink")["offered"], reflink, "{make:?}: {}", tried(&report, "reflink"));
        assert_eq!(tried(&report, "direct-io")["offered"], true, "{make:?}");
    }
    let report = json(&run(&full_path(), Path::new("/proc/self"), "json"));
    assert_eq!(tried(&report, "state")["offered"], false, "{}", tried(&report, "state"));
}

#[test]
fn filters_that_drop_forwarded_traffic_are_named_with_the_remedy() {
    let state = tempfile::tempdir().unwrap();
    // Children of this thread are in its namespace.
    link::Namespace::leave().unwrap();
    let forward = || tried(&json(&run(&full_path(), state.path(), "json")), "forward").clone();
    assert_eq!(forward()["offered"], true);
    let nft = |text: &str| {
        assert!(Command::new("nft").arg(text).status().unwrap().success(), "{text}");
    };
    nft("add table ip filter");
    nft("add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }");
    let found = forward();
    assert_eq!(found["offered"], false);
    let advice = found["advice"].as_str().unwrap();
    assert!(advice.contains("iptables -I FORWARD -i fv0 -j ACCEPT"), "{advice}");
    nft("insert rule ip filter FORWARD iifname fv0 accept");
    assert_eq!(forward()["offered"], true);
    nft("add table inet firewalld");
    nft("add chain inet firewalld filter_FORWARD { type filter hook forward priority 10; policy accept; }");
    let found = forward();
    assert!(found["advice"].as_str().unwrap().starts_with("firewall-cmd "), "{found}");
}
