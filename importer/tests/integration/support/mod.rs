//! Shared by the tests of the built program: running it, tools, filesystems of their own, a web server, disks to import.
//! Filesystems, loop devices and denials are those of the writer's tests. Not here: anything the product uses.

#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "small test data"
)]

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use sha2::{Digest, Sha256};

pub(crate) mod crash;
pub(crate) mod crash_place;
pub(crate) mod errors;
pub(crate) mod server;
pub(crate) mod sys;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;

/// Full counts of the acceptance table (`FERROVIRT_SOAK=1`) instead of the small ones; same code, same seeds.
pub(crate) fn count(small: u64, soak: u64) -> u64 {
    if std::env::var("FERROVIRT_SOAK").is_ok_and(|v| v == "1") { soak } else { small }
}

/// The built program, with an empty environment and nothing to read.
pub(crate) fn importer() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_importer"));
    command.env_clear().env("PATH", std::env::var("PATH").unwrap()).stdin(Stdio::null());
    command
}

/// Runs the program by command line to its end.
pub(crate) fn import(arguments: &[&str]) -> Output {
    places::output(importer().args(arguments)).unwrap()
}

/// Runs the program with the bytes of `path` coming through a pipe, which cannot be sought in.
pub(crate) fn import_piped(path: &Path, arguments: &[&str]) -> Output {
    let mut cat = Command::new("cat").arg(path).stdout(Stdio::piped()).spawn().unwrap();
    let pipe = cat.stdout.take().unwrap();
    let output = importer()
        .args(arguments)
        .stdin(pipe)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .and_then(std::process::Child::wait_with_output);
    cat.wait().unwrap();
    output.unwrap()
}

/// How a command ended, and the most memory it had resident at once, in bytes.
#[expect(clippy::zombie_processes, reason = "wait4 waits for it")]
pub(crate) fn measured(command: &mut Command) -> (Output, u64) {
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let errors = std::thread::spawn(move || {
        let mut text = Vec::new();
        err.read_to_end(&mut text).map(|_| text)
    });
    let mut stdout = Vec::new();
    out.read_to_end(&mut stdout).unwrap();
    let stderr = errors.join().unwrap().unwrap();
    let (status, peak) = sys::wait(child.id() as i32).unwrap();
    (Output { status: std::process::ExitStatus::from_raw(status), stdout, stderr }, peak)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
pub(crate) fn assert_exit(output: &Output, code: i32, what: &str) {
    assert_eq!(
        output.status.code(),
        Some(code),
        "{what}\nstdout: {}\nstderr: {}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

/// The report of `--output json`.
#[track_caller]
pub(crate) fn report(output: &Output) -> serde_json::Value {
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}{}", text(&output.stdout), text(&output.stderr)))
}

/// SHA-256 of a file, in hex.
pub(crate) fn sha256(path: &Path) -> String {
    let mut file = File::open(path).unwrap();
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).unwrap() {
            0 => break,
            n => hasher.update(&buffer[..n]),
        }
    }
    hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Names in a folder, sorted; what the filesystem keeps there for itself is left out.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "lost+found")
        .collect();
    names.sort();
    names
}

/// The program under the environment contract, with the contract's paths below a folder of its own.
pub(crate) struct Pod {
    folder: tempfile::TempDir,
}

impl Pod {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("data")).unwrap();
        fs::create_dir(folder.path().join("dev")).unwrap();
        Self { folder }
    }

    /// The volume is `mount`, as far as the program can find out.
    pub(crate) fn with_volume(mount: &Path) -> Self {
        let pod = Self { folder: tempfile::tempdir().unwrap() };
        std::os::unix::fs::symlink(mount, pod.folder.path().join("data")).unwrap();
        fs::create_dir(pod.folder.path().join("dev")).unwrap();
        pod
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Imports `url`; `size` is the volume's request.
    pub(crate) fn command(&self, url: &str, size: &str) -> Command {
        let mut command = importer();
        command.arg("-v=1").envs([
            ("FERROVIRT_IMPORTER_ROOT", self.folder.path().to_str().unwrap()),
            ("FERROVIRT_IMPORTER_METRICS_PORT", "0"),
            ("IMPORTER_SOURCE", "http"),
            ("IMPORTER_ENDPOINT", url),
            ("IMPORTER_IMAGE_SIZE", size),
            ("IMPORTER_CONTENTTYPE", "kubevirt"),
            ("PREALLOCATION", "false"),
            ("FILESYSTEM_OVERHEAD", "0"),
            ("OWNER_UID", "1-2-3"),
        ]);
        command
    }

    pub(crate) fn message(&self) -> String {
        fs::read_to_string(self.path("dev/termination-log")).unwrap_or_default()
    }
}
