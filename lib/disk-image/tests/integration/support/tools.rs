//! The outside judges: qemu-img, qemu-io, 7zz. A missing one fails the test.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output};

/// Runs a tool to its end and gives what it printed; fails the test when it is missing or unhappy.
pub fn run<S: AsRef<OsStr>>(tool: &str, args: &[S]) -> Vec<u8> {
    let output = attempt(tool, args);
    assert!(
        output.status.success(),
        "{tool} {:?}: {}{}",
        args.iter().map(|a| a.as_ref().to_string_lossy()).collect::<Vec<_>>(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output.stdout
}

/// Runs a tool to its end, with any exit status; fails the test when it is missing.
pub fn attempt<S: AsRef<OsStr>>(tool: &str, args: &[S]) -> Output {
    Command::new(tool)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{tool} cannot be run ({e}); `make deps` installs it"))
}

/// The output of `qemu-img convert -O raw` for an image of `format` (qemu's name for it).
pub fn qemu_raw(format: &str, image: &Path) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let raw = dir.path().join("raw");
    let image = image.to_str().unwrap();
    run("qemu-img", &["convert", "-f", format, "-O", "raw", image, raw.to_str().unwrap()]);
    std::fs::read(raw).unwrap()
}

/// Whether `qemu-img convert -O raw` reads an image of `format`, and what it makes of it.
pub fn qemu_try_raw(format: &str, image: &Path) -> Option<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let raw = dir.path().join("raw");
    let args = ["convert", "-f", format, "-O", "raw", image.to_str().unwrap(), raw.to_str().unwrap()];
    attempt("qemu-img", &args).status.success().then(|| std::fs::read(raw).unwrap())
}

/// The disk inside an image as 7-Zip reads it; `None` when it does not take the image.
pub fn seven_zip_raw(kind: &str, image: &Path) -> Option<Vec<u8>> {
    let output = attempt("7zz", &["x", "-so", &format!("-t{kind}"), image.to_str().unwrap()]);
    output.status.success().then_some(output.stdout)
}
