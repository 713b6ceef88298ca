//! The program under its own name: `install`, `check-node`, and its output for wrong usage.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::support::{count, peer, run};

fn cni(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_cni")).env_remove("CNI_COMMAND").args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// The entries that `install` reports, as (name, result, version).
fn install(folder: &Path, more: &[&str]) -> Vec<(String, String, String)> {
    let output = cni(&[&["install", folder.to_str().unwrap(), "--output", "json"], more].concat());
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let word = |file: &Value, key: &str| file[key].as_str().unwrap().to_owned();
    let files = report["files"].as_array().unwrap();
    let told = run("sha256sum", &[folder.join("cnv-bridge").to_str().unwrap()]);
    assert_eq!(report["sha256"], told.split(' ').next().unwrap());
    files.iter().map(|file| (word(file, "name"), word(file, "result"), word(file, "version"))).collect()
}

fn results(report: &[(String, String, String)]) -> Vec<(&str, &str)> {
    report.iter().map(|(name, result, _)| (name.as_str(), result.as_str())).collect()
}

#[test]
fn a_folder_gets_what_is_absent_and_keeps_what_is_anothers() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let first = install(folder, &[]);
    let wanted = [
        ("cnv-bridge", "installed"),
        ("bridge", "linked"),
        ("cnv-tuning", "installed"),
        ("tuning", "linked"),
    ];
    assert_eq!(results(&first), wanted);
    assert!(first.iter().all(|(.., version)| version.contains("of ferrovirt")), "{first:?}");
    assert_eq!(fs::metadata(folder.join("bridge")).unwrap().mode() & 0o777, 0o755);
    let before = fs::metadata(folder.join("cnv-bridge")).unwrap().ino();
    let again = install(folder, &[]);
    assert!(again.iter().all(|(_, result, _)| result == "unchanged"), "{again:?}");
    assert_eq!(fs::metadata(folder.join("cnv-bridge")).unwrap().ino(), before);
    let mut names: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["bridge", "cnv-bridge", "cnv-tuning", "tuning"]);

    // As CNAO leaves a node that had a bridge plugin of its own, and one that had none.
    let other = tempfile::tempdir().unwrap();
    let other = other.path();
    fs::copy(peer("bridge"), other.join("bridge")).unwrap();
    symlink(other.join("bridge"), other.join("cnv-bridge")).unwrap();
    fs::copy(peer("tuning"), other.join("cnv-tuning")).unwrap();
    symlink("/opt/cni/bin/cnv-tuning", other.join("tuning")).unwrap();
    let report = install(other, &[]);
    let wanted = [
        ("cnv-bridge", "installed"),
        ("bridge", "left alone"),
        ("cnv-tuning", "installed"),
        ("tuning", "linked"),
    ];
    assert_eq!(results(&report), wanted);
    assert!(report[1].2.contains("CNI bridge plugin"), "{report:?}");
    assert_eq!(fs::read(other.join("bridge")).unwrap(), fs::read(peer("bridge")).unwrap());
    assert!(fs::symlink_metadata(other.join("cnv-bridge")).unwrap().is_file());

    let all = install(other, &["--all"]);
    assert!(all.iter().any(|(name, result, _)| name == "loopback" && result == "linked"), "{all:?}");
}

#[test]
fn only_files_of_this_program_are_uninstalled() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::copy(peer("bridge"), folder.join("bridge")).unwrap();
    install(folder, &["--all"]);
    fs::copy(peer("tuning"), folder.join("other")).unwrap();
    // Another version, and what an install that was killed leaves.
    fs::remove_file(folder.join("cnv-tap")).unwrap();
    fs::copy(peer("tuning"), folder.join("cnv-tap")).unwrap();
    fs::write(folder.join(".cnv-static.new"), "").unwrap();
    let output = cni(&["uninstall", folder.to_str().unwrap(), "-ojson"]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let files = report["files"].as_array().unwrap();
    let result = |name: &str| files.iter().find(|file| file["name"] == name).unwrap()["result"].clone();
    for (name, wanted) in
        [("cnv-bridge", "removed"), ("bridge", "left alone"), ("tuning", "removed"), ("tap", "left alone")]
    {
        assert_eq!(result(name), wanted, "{name}");
    }
    let names = || {
        let files =
            fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = files.collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["bridge", "cnv-tap", "other", "tap"]);
    for path in [folder, &folder.join("absent")] {
        let output = cni(&["uninstall", path.to_str().unwrap()]);
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(names().len(), 4, "a second time nothing changes");
}

/// A runtime starts the plugin all the while, and never finds half of one.
#[test]
fn a_plugin_can_be_called_while_it_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cnv-bridge");
    install(folder.path(), &[]);
    std::thread::scope(|scope| {
        let replace = scope.spawn(|| {
            for _ in 0..count(3, 30) {
                fs::remove_file(folder.path().join("cnv-tuning")).unwrap();
                let mut other = fs::read(&path).unwrap();
                other.push(0);
                fs::write(folder.path().join("other"), other).unwrap();
                run("chmod", &["755", folder.path().join("other").to_str().unwrap()]);
                fs::rename(folder.path().join("other"), &path).unwrap();
                install(folder.path(), &[]);
            }
        });
        while !replace.is_finished() {
            let output = Command::new(&path).env("CNI_COMMAND", "VERSION").output();
            // Another thread of this test may have had the new file open for writing while it forked.
            let Ok(output) = output else { continue };
            assert!(output.status.success() && text(&output.stdout).contains("1.1.0"), "{output:?}");
        }
    });
}

#[test]
fn a_failed_install_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("cnv-tuning")).unwrap();
    let output = cni(&["install", folder.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cnv-tuning"), "{output:?}");
    let output = cni(&["install", "/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nowhere/at/all"), "{output:?}");
}

#[test]
fn the_node_is_looked_at_and_left_alone() {
    let links = run("ip", &["-o", "link"]).lines().count();
    let tables = run("nft", &["list", "tables"]);
    let output = cni(&["check-node", "-ojson"]);
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let offered = |name: &str| {
        let checks = report["checks"].as_array().unwrap();
        let check = checks.iter().find(|check| check["name"] == name).expect(name);
        assert_eq!(check["offered"] == false, check["reason"].is_string(), "{check}");
        check["offered"] == true
    };
    for name in ["netlink", "bridge", "veth", "tun", "nft-inet", "nft-bridge", "nft-masquerade"] {
        assert!(offered(name), "{name}: {report:#}");
    }
    // `ip` is the judge of the features.
    let mut made = Command::new("unshare");
    made.args(["-n", "ip", "link", "add", "b", "type", "bridge", "vlan_filtering", "1"]);
    let filters = made.output().unwrap().status.success();
    assert_eq!(offered("vlan-filtering"), filters);
    let output = cni(&["check-node", "--require", "vlan-filtering"]);
    assert_eq!(output.status.success(), filters, "{output:?}");
    assert_eq!(text(&output.stdout).contains("MISSING  vlan-filtering"), !filters, "{output:?}");
    assert_eq!(run("ip", &["-o", "link"]).lines().count(), links);
    assert_eq!(run("nft", &["list", "tables"]), tables);
}

#[test]
fn wrong_usage_and_help() {
    let help = cni(&["--help"]);
    assert!(help.status.success() && text(&help.stdout).contains("Examples"), "{help:?}");
    assert!(text(&cni(&["--version"]).stdout).starts_with("cni "));
    for wrong in [&[][..], &["fly"], &["install"], &["--require", "magic", "check-node"]] {
        let output = cni(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(output.stdout.is_empty() && text(&output.stderr).contains("--help"), "{output:?}");
    }
    // A runtime that calls a name that is no plugin gets an answer it understands.
    let output = Command::new(env!("CARGO_BIN_EXE_cni")).env("CNI_COMMAND", "ADD").output().unwrap();
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!output.status.success() && document["code"] == 4, "{output:?}");
}
