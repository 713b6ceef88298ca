//! The bench in process and mount namespaces of its own: guests, drivers, servers and mounts end with it, however it is
//! ended. The files of a bench that was killed are removed at the start of the next one.
//!
//! ```text
//!  bench ─► setpriv --pdeathsig ─► unshare --kill-child ─► bench, the first process of its namespace ─► rows
//! ```
//!
//! Not here: the rows. Users other than root, and root in most containers, may not make namespaces: their benches have
//! none, and their rows mount nothing.

use std::fs::{self, File, Permissions, TryLockError};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, getpid};

/// Beginning of the name of the directory of temporary files.
const TEMPORARY: &str = "fv-bench-";
/// Beginnings of the names of folders of one run, in the cache and its folders of images.
const OF_ONE_RUN: [&str; 4] = [".tmp", "files-", "uploads-", "work-"];
/// Beginning of the names of folders of images.
const IMAGES: &str = "images-";

/// Whether this process is the first of its namespace.
pub fn is_inside() -> bool {
    getpid() == Pid::INIT
}

/// Whether this user may make the namespaces.
pub fn is_possible() -> bool {
    enclosed(Path::new("true")).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Claims the cache for as long as the file is open, and removes the files that an earlier bench left in it and in its
/// directory of temporary files, which the file names.
///
/// # Errors
/// Another bench has the cache, or a folder cannot be removed.
pub fn claim(cache: &Path) -> Result<File> {
    let path = cache.join("lock");
    let mut lock = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => bail!("another bench runs with the cache {}", cache.display()),
        Err(TryLockError::Error(error)) => return Err(error).context("lock the cache"),
    }
    let mut left = String::new();
    lock.read_to_string(&mut left)?;
    let left = Path::new(&left);
    let is_ours = left.file_name().is_some_and(|name| name.to_string_lossy().starts_with(TEMPORARY));
    if is_ours && left.is_dir() {
        fs::remove_dir_all(left).with_context(|| format!("remove {} of an earlier bench", left.display()))?;
    }
    for images in begin_with(cache, &[IMAGES])? {
        remove(&images, &OF_ONE_RUN)?;
    }
    remove(cache, &OF_ONE_RUN)?;
    Ok(lock)
}

/// The folders in a folder with names that begin with one of these texts.
fn begin_with(folder: &Path, texts: &[&str]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.file_type()?.is_dir() && texts.iter().any(|text| name.starts_with(text)) {
            found.push(entry.path());
        }
    }
    Ok(found)
}

fn remove(folder: &Path, texts: &[&str]) -> Result<()> {
    for path in begin_with(folder, texts)? {
        fs::remove_dir_all(&path)
            .with_context(|| format!("remove {} of an earlier bench", path.display()))?;
    }
    Ok(())
}

/// Runs this program again with its arguments, as the first process of its namespaces, with the cache that was claimed.
///
/// # Errors
/// It cannot be started.
pub fn run(mut claimed: File) -> Result<ExitCode> {
    let temporary = tempfile::Builder::new().prefix(TEMPORARY).tempdir()?;
    // Guests have users of their own.
    fs::set_permissions(temporary.path(), Permissions::from_mode(0o755))?;
    claimed.set_len(0)?;
    claimed.rewind()?;
    write!(claimed, "{}", temporary.path().display())?;
    let status = enclosed(&std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env("TMPDIR", temporary.path())
        .status()
        .context("start setpriv; make deps installs it")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.map_or(ExitCode::FAILURE, ExitCode::from))
}

/// A program that is the first process of its namespaces, and ends with the thread that starts it.
fn enclosed(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]);
    command.args(["unshare", "--pid", "--mount-proc", "--fork", "--kill-child", "--"]).arg(program);
    command
}

/// Hides names of network namespaces, which would stay as files, and the bus: libvirt's daemon would give systemd the
/// numbers that processes have inside.
///
/// # Errors
/// A mount fails.
pub fn hide() -> Result<()> {
    fs::create_dir_all("/run/netns")?;
    for folder in ["/run/netns", "/run/dbus"] {
        if !Path::new(folder).is_dir() {
            continue;
        }
        let status = Command::new("mount").args(["-t", "tmpfs", "tmpfs", folder]).status()?;
        ensure!(status.success(), "cannot mount a file system over {folder}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn processes_and_mounts_end_with_the_first_process() {
        let folder = tempfile::tempdir().unwrap();
        let script =
            "mount -t tmpfs tmpfs \"$0\"; touch \"$0/file\"; setsid sleep 1000 & echo \"ready $$\"; wait";
        let inside = enclosed(Path::new("bash"));
        // The shell stays, and is killed in place of a bench.
        let mut outer = Command::new("bash")
            .args(["-c", "\"$@\"; true", "bash"])
            .arg(inside.get_program())
            .args(inside.get_args())
            .args(["-c", script])
            .arg(folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(outer.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        assert_eq!(line, "ready 1\n");
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none(), "the mount is inside only");
        outer.kill().unwrap();
        outer.wait().unwrap();
        // The output ends with the last process that has it.
        let (tell, ended) = mpsc::channel();
        std::thread::spawn(move || tell.send(output.read_to_end(&mut Vec::new())));
        ended.recv_timeout(Duration::from_secs(20)).expect("a process is left").unwrap();
    }

    #[test]
    fn a_cache_is_of_one_bench_and_loses_what_the_last_one_left() {
        let cache = tempfile::tempdir().unwrap();
        for name in ["work-1", ".tmpX", "images-1/files-2", "images-1/kept", "kept"] {
            fs::create_dir_all(cache.path().join(name).join("below")).unwrap();
        }
        let temporary = tempfile::Builder::new().prefix(TEMPORARY).tempdir().unwrap().keep();
        fs::write(cache.path().join("lock"), temporary.to_str().unwrap()).unwrap();
        let lock = claim(cache.path()).unwrap();
        assert!(!temporary.exists(), "{}", temporary.display());
        for (name, there) in [
            ("work-1", false),
            (".tmpX", false),
            ("images-1/files-2", false),
            ("images-1/kept", true),
            ("kept", true),
        ] {
            assert_eq!(cache.path().join(name).is_dir(), there, "{name}");
        }
        let error = claim(cache.path()).unwrap_err().to_string();
        assert!(error.starts_with("another bench runs"), "{error}");
        drop(lock);
        claim(cache.path()).unwrap();
    }
}
