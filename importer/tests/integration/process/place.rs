//! A folder to import in, disks to import, a loop device, and waiting.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use crate::support::{self, importer, text};

pub(crate) const MIB: usize = 1 << 20;

#[track_caller]
pub(crate) fn assert_exit(output: &Output, code: i32) {
    support::assert_exit(output, code, "");
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    importer().args(arguments).output().unwrap()
}

/// Data, zeroes, data, and an end that is no whole page.
pub(crate) fn disk_bytes(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let mut state = 1u64;
    for (i, byte) in bytes.iter_mut().enumerate() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        if (i / MIB) % 3 != 1 {
            *byte = u8::try_from(state >> 56).unwrap();
        }
    }
    bytes
}

pub(crate) struct Place {
    pub(crate) folder: tempfile::TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> String {
        fs::write(self.path(name), bytes).unwrap();
        self.text(name)
    }

    /// Names in the folder, sorted.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.path(folder))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

/// A loop device on a file in `place`; gone with this value.
pub(crate) struct Loop {
    pub(crate) path: PathBuf,
}

impl Loop {
    pub(crate) fn new(place: &Place, name: &str, len: u64, fill: u8) -> Self {
        let backing = place.path(name);
        let mut file = File::create(&backing).unwrap();
        for _ in 0..len / MIB as u64 {
            file.write_all(&vec![fill; MIB]).unwrap();
        }
        file.set_len(len).unwrap();
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&backing).output();
        let output = output.expect("losetup is missing: run make deps");
        assert!(output.status.success(), "losetup: {}", text(&output.stderr));
        Self { path: PathBuf::from(text(&output.stdout).trim()) }
    }

    pub(crate) fn text(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        drop(Command::new("losetup").arg("--detach").arg(&self.path).status());
    }
}

pub(crate) fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn checksum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

/// A pipe that gives the bytes of `path`.
pub(crate) fn piped(path: &Path) -> Stdio {
    let mut child = Command::new("cat").arg(path).stdout(Stdio::piped()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    std::thread::spawn(move || child.wait());
    Stdio::from(out)
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut child =
        Command::new("gzip").arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let bytes = bytes.to_vec();
    let feed = std::thread::spawn(move || input.write_all(&bytes).unwrap());
    let mut packed = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut packed).unwrap();
    feed.join().unwrap();
    assert!(child.wait().unwrap().success());
    packed
}

/// An import from a pipe that has given `bytes` and stays open.
pub(crate) fn stalled(arguments: &[&str], bytes: &[u8]) -> (Child, ChildStdin) {
    let mut child = importer()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(bytes).unwrap();
    input.flush().unwrap();
    (child, input)
}
