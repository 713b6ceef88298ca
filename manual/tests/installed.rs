//! `make install` with DESTDIR and PREFIX: every program is there with its page, starts there, and finds the others there.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The programs without a page of their own: they run in users' images.
const IN_IMAGES: [&str; 2] = ["cdi-containerimage-server", "container-disk"];

fn names(folder: &Path) -> BTreeSet<String> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Runs an installed program with nothing else on the PATH than the system's own.
fn run(program: &Path, arguments: &[&str], variables: &[(&str, &Path)]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command.envs(variables.iter().copied()).output().unwrap()
}

/// Installs the programs of this build as those of the release; gives the folder of `PREFIX` in `DESTDIR`.
fn install(folder: &Path) -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_manual")).parent().unwrap();
    let target = folder.join("target");
    for profile in ["release", "x86_64-unknown-linux-gnu/release"] {
        let path = target.join(profile);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        symlink(built, path).unwrap();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let destination = folder.join("destination");
    let output = Command::new("make")
        // Without a build.
        .args(["--no-print-directory", "--old-file=build", "install", "PREFIX=/opt/ferrovirt"])
        .arg(format!("DESTDIR={}", destination.display()))
        .current_dir(root)
        .env("CARGO_TARGET_DIR", &target)
        .env_remove("MAKEFLAGS")
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(names(&destination), BTreeSet::from(["opt".to_owned()]), "outside of the prefix");
    destination.join("opt/ferrovirt")
}

#[test]
fn every_program_is_installed_and_finds_the_others() {
    let built = Path::new(env!("CARGO_BIN_EXE_manual")).parent().unwrap();
    let folder = tempfile::tempdir_in(built).unwrap();
    let prefix = install(folder.path());
    let program = |name: &str| prefix.join("bin").join(name);
    let commands = manual::programs::commands();
    let plain = manual::programs::plain().map(|program| program.name);
    let with_page: BTreeSet<String> =
        commands.iter().map(clap::Command::get_name).chain(plain).map(str::to_owned).collect();
    let all = with_page.iter().cloned().chain(IN_IMAGES.map(str::to_owned)).collect();
    assert_eq!(names(&prefix.join("bin")), all);
    let pages = names(&prefix.join("share/man/man1"));
    for name in &all {
        let mode = fs::metadata(program(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o755, "{name}: {mode:o}");
        assert!(
            IN_IMAGES.contains(&name.as_str()) || pages.contains(&format!("{name}.1")),
            "{name}: {pages:?}"
        );
    }
    for command in &commands {
        let output = run(&program(command.get_name()), &["--help"], &[]);
        assert!(output.status.success(), "{}: {output:?}", command.get_name());
    }

    // virt-node: the network plugins.
    let state = tempfile::tempdir_in(folder.path()).unwrap();
    let state = state.path().to_str().unwrap();
    let output = run(&program("virt-node"), &["check", "--output", "json", "--state", state], &[]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let bridge = checks.iter().find(|one| one["name"] == "bridge").unwrap();
    assert_eq!(bridge["offered"], true, "{bridge}");

    // The poller: the importer, which finds no registry.
    let cluster = folder.path().join("kubeconfig");
    let text = "{apiVersion: v1, kind: Config, current-context: c,
        clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: c, user: {}}],
        contexts: [{name: c, context: {cluster: c, user: c}}]}";
    fs::write(&cluster, text).unwrap();
    let arguments = ["-ns", "default", "-cron", "nightly", "-url", "docker://127.0.0.1:1/disk"];
    let output = run(&program("cdi-source-update-poller"), &arguments, &[("KUBECONFIG", &cluster)]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("127.0.0.1:1/v2"), "{said}");
    println!("{} programs in {}, {} pages", all.len(), prefix.display(), pages.len());
}
