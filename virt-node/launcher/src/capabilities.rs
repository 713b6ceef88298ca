//! libvirt's capabilities of QEMU: probing them takes seconds, so they are cached once per node and build of both, and
//! copied to each run.
//!
//! ```text
//! CACHE/KEY/*.xml       KEY: QEMU's and libvirt's change times, the kernel, the microcode, whether there is KVM. libvirt
//!                       checks the same and more before it uses a copy, so a wrong one costs time only.
//! CACHE/KEY/node.json   what guests can have ([`api::launcher::capabilities`])
//! CACHE/node.json       the same, of the KEY that was asked for last: the node agent makes labels of it
//! ```
//!
//! A cache is filled by a user with write access, never by a guest's own launcher: guests trust its content.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use api::launcher::capabilities::CAPABILITIES;
use api::names::QEMU_ID;
use rustix::fs::{FlockOperation, flock};

use super::environment::{environment, own};
use super::folder::Folder;
use super::worker;
use crate::error::{Error, Kind};
use guest::found as programs;

/// Most files of a cache, and the longest in bytes.
const FILES_MAX: usize = 16;
const FILE_MAX: u64 = 4 << 20;
/// The device of KVM.
const KVM: &str = "/dev/kvm";

/// Whether a cache had to be filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Made {
    /// It was filled.
    Created,
    /// It was there.
    AlreadyThere,
}

/// The folder of `cache` for this QEMU, this libvirt and this kernel.
fn place(cache: &Path, emulator: &Path) -> Result<PathBuf, Error> {
    let missing = |what: &str| {
        Error::new(
            Kind::System,
            format!(
                "{what} does not exist; on Debian: apt install libvirt0 libvirt-daemon-driver-qemu qemu-system-x86"
            ),
        )
    };
    let mut key = String::new();
    for file in [Some(emulator.to_owned()), programs::libvirt_file(), programs::libvirt_driver()] {
        let file = file.ok_or_else(|| missing("libvirt"))?;
        let facts = fs::metadata(&file).map_err(|_| missing(&file.display().to_string()))?;
        key.push_str(&format!("{:x}.{:x}-", facts.ctime(), facts.ino()));
    }
    let system = rustix::system::uname();
    let kernel = format!("{} {}", system.release().to_string_lossy(), system.version().to_string_lossy());
    key.extend(kernel.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '_' }).take(150));
    let processor = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    key.extend(microcode(&processor).chars().filter(char::is_ascii_alphanumeric).take(20));
    if Path::new(KVM).exists() {
        key.push_str("-kvm");
    }
    Ok(cache.join(key))
}

/// The revision of the first processor's microcode, from the text of /proc/cpuinfo.
fn microcode(processor: &str) -> &str {
    let line = processor.lines().find(|line| line.starts_with("microcode"));
    line.and_then(|line| line.split_once(':')).map_or("", |(_, revision)| revision.trim())
}

/// The group that a probe runs with: that of the KVM device where only this may use it.
fn group() -> u32 {
    match fs::metadata(KVM) {
        Ok(facts) if facts.mode() & 0o066 == 0o060 => facts.gid(),
        Ok(_) | Err(_) => QEMU_ID,
    }
}

/// Copies what is known into a run's folder. Answers whether there was something.
pub(super) fn fetch(cache: &Path, folder: &Folder) -> Result<bool, Error> {
    let Some(emulator) = programs::emulator() else { return Ok(false) };
    let from = place(cache, &emulator)?;
    copy(&from, &folder.capabilities())
        .map_err(|error| Error::with(Kind::System, format!("cannot copy {}", from.display()), error))
}

/// Whether a run's folder has something already.
pub(super) fn known(folder: &Folder) -> bool {
    fs::read_dir(folder.capabilities()).is_ok_and(|mut files| files.next().is_some())
}

/// Copies the files of one folder to another; `false`: there is no such folder, or none in it.
fn copy(from: &Path, to: &Path) -> io::Result<bool> {
    let files = match fs::read_dir(from) {
        Ok(files) => files,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let mut copied = false;
    for file in files.take(FILES_MAX) {
        let file = file?;
        if file.metadata()?.len() <= FILE_MAX && file.file_name().to_string_lossy().ends_with(".xml") {
            dir::replace(to.join(file.file_name()), &fs::read(file.path())?, 0o600)?;
            copied = true;
        }
    }
    Ok(copied)
}

/// Fills the cache if it is not filled for this QEMU, this libvirt and this kernel. The callback receives a message before a slow
/// probe.
pub(crate) fn make(cache: &Path, say: impl FnOnce(&str)) -> Result<Made, Error> {
    let failed =
        |error: io::Error| Error::with(Kind::System, format!("cannot fill {}", cache.display()), error);
    let emulator = programs::emulator().ok_or_else(|| {
        Error::new(Kind::System, "QEMU is not on the PATH; on Debian: apt install qemu-system-x86")
    })?;
    fs::create_dir_all(cache).map_err(failed)?;
    let place = place(cache, &emulator)?;
    // Two at once: one makes it, the other finds it.
    let lock = fs::File::create(cache.join("lock")).map_err(failed)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
    let publish =
        |known: &[u8]| -> io::Result<()> { Ok(dir::replace(cache.join(CAPABILITIES), known, 0o644)?) };
    match fs::read(place.join(CAPABILITIES)) {
        Ok(known) => {
            publish(&known).map_err(failed)?;
            return Ok(Made::AlreadyThere);
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    say("probing the features of this QEMU and libvirt, once for this machine: some seconds");
    let work = tempfile::Builder::new().prefix("qemu").tempdir().map_err(failed)?;
    let folder = Folder::new(work.path())?;
    let mut probe = own();
    probe.arg("probe").arg(folder.path()).arg(&emulator);
    environment(&mut probe, &folder);
    if rustix::process::geteuid().is_root() {
        folder.give_away(QEMU_ID)?;
        probe.uid(QEMU_ID).gid(group());
    }
    let output = probe.stdin(Stdio::null()).output().map_err(failed)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::new(Kind::System, format!("libvirt cannot probe QEMU's features: {said}")));
    }
    let whole = tempfile::Builder::new().prefix(".new").tempdir_in(cache).map_err(failed)?;
    if !copy(&folder.capabilities(), whole.path()).map_err(failed)? {
        return Err(Error::new(Kind::System, "libvirt stored no capabilities of QEMU"));
    }
    let report = whole.path().join(CAPABILITIES);
    dir::replace(report, &output.stdout, 0o644).map_err(|error| failed(error.into()))?;
    // Guests' launchers read it, as another user.
    for file in fs::read_dir(whole.path()).map_err(failed)? {
        let file = file.map_err(failed)?.path();
        fs::set_permissions(file, fs::Permissions::from_mode(0o644)).map_err(failed)?;
    }
    fs::set_permissions(whole.path(), fs::Permissions::from_mode(0o755)).map_err(failed)?;
    if place.is_dir() {
        // Of an earlier release.
        fs::remove_dir_all(&place).map_err(failed)?;
    }
    let whole = whole.keep();
    fs::rename(&whole, &place).map_err(failed)?;
    publish(&output.stdout).map_err(failed)?;
    Ok(Made::Created)
}

/// The process that asks libvirt: as the guests' user, in a folder of its own. The answer is JSON.
pub(crate) fn probe(folder: &Path, emulator: &str) -> Result<String, Error> {
    let folder = Folder::new(folder)?;
    folder.prepare()?;
    let found = worker::probe(&folder, emulator)?;
    serde_json::to_string(&found)
        .map_err(|error| Error::with(Kind::System, "cannot write QEMU's features", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microcode_is_that_of_the_first_processor() {
        assert_eq!(microcode("processor\t: 0\nmicrocode\t: 0xd0\n\nmicrocode\t: 0xd1\n"), "0xd0");
        assert_eq!(microcode("processor\t: 0\n"), "");
    }
}
