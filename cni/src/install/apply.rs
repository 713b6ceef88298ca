//! Writes files and links, and asks what is there for its version.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use sha2::{Digest, Sha256};

use crate::error::{Error, Kind};
use crate::install::plan::{self, PresentFile, Step};

/// Timeout for another plugin's version output.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest version that is reported, in bytes.
const VERSION_LIMIT: u64 = 4 << 10;

/// The result for all names.
pub(super) struct Outcome {
    /// SHA-256 of the program, as hexadecimal digits.
    pub(super) checksum: String,
    pub(super) files: Vec<Entry>,
}

/// One name in the folder.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) what: What,
    /// The version that the plugin reports.
    pub(super) version: String,
}

/// The action taken for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Installed,
    Linked,
    Unchanged,
    LeftAlone,
    Removed,
}

impl What {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Installed => "installed",
            Self::Linked => "linked",
            Self::Unchanged => "unchanged",
            Self::LeftAlone => "left alone",
            Self::Removed => "removed",
        }
    }
}

/// Installs `plugins` into `folder`, which must be there.
///
/// # Errors
/// [`Kind::Io`], [`Kind::Mismatch`] for a folder in the place of a plugin.
pub(super) fn install(folder: &Path, plugins: &[&str]) -> Result<Outcome, Error> {
    let directory = lock(folder)?;
    let program = own_program()?;
    let checksum = sum(&program);
    let mut files = Vec::new();
    let mut first: Option<PathBuf> = None;
    for plugin in plugins {
        let own = format!("cnv-{plugin}");
        let path = folder.join(&own);
        let step = plan::ours(&inspect(&path)?, &checksum);
        let what = match (step, &first) {
            (Step::Link | Step::Leave | Step::Refuse, _) => {
                return Err(Error::mismatch(format!(
                    "{} is not a file and cannot be replaced; remove it",
                    path.display()
                )));
            }
            // One file under all names: by that a plugin knows another one for its own.
            (Step::Keep, Some(first)) if same_file(first, &path) => What::Unchanged,
            (_, Some(first)) if share(first, &path).is_ok() => What::Installed,
            (Step::Keep, _) => What::Unchanged,
            (Step::Write, _) => write(&path, &program, &checksum)?,
        };
        first.get_or_insert(path.clone());
        files.push(Entry { name: own.clone(), what, version: version(&path) });
        let path = folder.join(plugin);
        let what = match plan::plain(plugin, &inspect(&path)?) {
            Step::Link => link(&path, &own)?,
            Step::Keep => What::Unchanged,
            Step::Write | Step::Leave | Step::Refuse => What::LeftAlone,
        };
        files.push(Entry { name: (*plugin).to_owned(), what, version: version(&path) });
    }
    sync(&directory, folder)?;
    Ok(Outcome { checksum, files })
}

/// Removes this program and the links to it from `folder`. A folder that is not there has nothing to remove.
///
/// # Errors
/// [`Kind::Io`]. Files removed before the error stay removed.
pub(super) fn uninstall(folder: &Path) -> Result<Outcome, Error> {
    let checksum = sum(&own_program()?);
    let mut files = Vec::new();
    if !folder.exists() {
        return Ok(Outcome { checksum, files });
    }
    let directory = lock(folder)?;
    for plugin in crate::PLUGINS {
        let own = format!("cnv-{plugin}");
        let (path, own_path) = (folder.join(plugin), folder.join(&own));
        let (found, found_own) = (inspect(&path)?, inspect(&own_path)?);
        // The link first: an interrupted removal leaves no link to nothing.
        for (name, path, found, ours) in [
            (plugin, &path, &found, plan::is_own_link(plugin, &found, &found_own, &checksum)),
            (&own, &own_path, &found_own, plan::is_own(&found_own, &checksum)),
        ] {
            remove(&temporary(path)).map_err(|error| failed_to_remove(path, error))?;
            if *found == PresentFile::Nothing {
                continue;
            }
            let version = version(path);
            if ours {
                remove(path).map_err(|error| failed_to_remove(path, error))?;
            }
            let what = if ours { What::Removed } else { What::LeftAlone };
            files.push(Entry { name: name.to_owned(), what, version });
        }
    }
    sync(&directory, folder)?;
    Ok(Outcome { checksum, files })
}

fn failed_to_remove(path: &Path, error: std::io::Error) -> Error {
    Error::io(format!("{} cannot be removed", path.display()), error)
}

/// The folder, for one process at a time: they share the names of their temporary files. Ends with the process.
fn lock(folder: &Path) -> Result<File, Error> {
    let failed = |what: &str, error| Error::io(format!("{}: {what}", folder.display()), error);
    let directory = File::open(folder).map_err(|error| failed("cannot be opened", error))?;
    flock(&directory, FlockOperation::LockExclusive)
        .map_err(|errno| failed("cannot be locked", errno.into()))?;
    Ok(directory)
}

fn sync(directory: &File, folder: &Path) -> Result<(), Error> {
    directory.sync_all().map_err(|error| Error::io(format!("{}: cannot be synced", folder.display()), error))
}

fn own_program() -> Result<Vec<u8>, Error> {
    std::fs::read("/proc/self/exe")
        .map_err(|error| Error::io("this program's own file cannot be read", error))
}

fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn inspect(path: &Path) -> Result<PresentFile, Error> {
    let failed = |error| Error::io(format!("{} cannot be read", path.display()), error);
    let kind = match std::fs::symlink_metadata(path) {
        Ok(facts) => facts.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(PresentFile::Nothing),
        Err(error) => return Err(failed(error)),
    };
    if kind.is_symlink() {
        let target = std::fs::read_link(path).map_err(failed)?;
        return Ok(PresentFile::Link(target.to_string_lossy().into_owned()));
    }
    if kind.is_file() {
        return std::fs::read(path).map(|bytes| PresentFile::File(sum(&bytes))).map_err(failed);
    }
    Ok(PresentFile::Other)
}

/// Where a file is made before it gets its name. A killed install leaves it to the next one.
fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.new"))
}

/// The program, read back and compared before it gets its name.
fn write(path: &Path, program: &[u8], checksum: &str) -> Result<What, Error> {
    let failed = |error| Error::io(format!("{} cannot be written", path.display()), error);
    let new = temporary(path);
    // A file that is being executed cannot be written to, and a link would be followed: always a new one.
    remove(&new).map_err(failed)?;
    let written = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o755).open(&new)?;
        // Regardless of the umask: runtimes of other users call it too.
        file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        file.write_all(program)?;
        file.sync_all()
    };
    let result = written().map_err(failed).and_then(|()| {
        let read = std::fs::read(&new).map_err(failed)?;
        if sum(&read) != checksum {
            return Err(Error::new(
                Kind::Io,
                format!(
                    "{} differs from what was written: the disk or another program changed it; install again",
                    new.display()
                ),
            ));
        }
        std::fs::rename(&new, path).map_err(failed)
    });
    result.map(|()| What::Installed).inspect_err(|_| drop(remove(&new)))
}

fn same_file(one: &Path, other: &Path) -> bool {
    let identity = |path| std::fs::symlink_metadata(path).ok().map(|facts| (facts.dev(), facts.ino()));
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// Gives a file a second name. There are file systems that cannot.
fn share(file: &Path, path: &Path) -> std::io::Result<()> {
    let new = temporary(path);
    remove(&new)?;
    std::fs::hard_link(file, &new)?;
    std::fs::rename(&new, path).inspect_err(|_| drop(remove(&new)))
}

fn link(path: &Path, target: &str) -> Result<What, Error> {
    let failed = |error| Error::io(format!("{} cannot be linked", path.display()), error);
    let new = temporary(path);
    remove(&new).map_err(failed)?;
    std::os::unix::fs::symlink(target, &new).map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed).map(|()| What::Linked).inspect_err(|_| drop(remove(&new)))
}

fn remove(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The first line that a plugin prints when it is called without a verb.
fn version(path: &Path) -> String {
    let unknown = || "unknown".to_owned();
    let child = Command::new(path)
        .env_remove("CNI_COMMAND")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else { return unknown() };
    let deadline = Instant::now() + VERSION_TIMEOUT;
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return unknown();
            }
        }
    }
    let mut said = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(VERSION_LIMIT).read_to_end(&mut said);
    }
    let said = String::from_utf8_lossy(&said);
    said.lines().next().map(str::trim).filter(|line| !line.is_empty()).map_or_else(unknown, str::to_owned)
}
