//! A run's folder: what is in it, by name. Everything there is written as a whole or not at all.
//!
//! ```text
//! launcher      the socket                     lv/         libvirt's: its state, QEMU's monitor, logs, capabilities
//! launch.json   the launch document            started     the guest was there; holds the run's UUID
//! exit.json     how it ended                   NAME.iso    the guest's small CDs; serial0, vnc, agent, usbredir0, …: its
//!                                                          sockets
//! instance      uid of a pod's instance        deadline    when a guest that was asked to end is killed
//! thaw          when the guest's filesystems are thawed
//! ```
//!
//! Not here: what any of it means.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::launch::{DOCUMENT_MAX, Launch};
use api::launcher::{EXIT_RECORD, Exit, SOCKET};

use crate::error::{Error, Kind};

/// Further settings of libvirt: no process other than this one, and QEMU in a seccomp sandbox.
const QEMU_CONF: &str = "stdio_handler = \"file\"\nseccomp_sandbox = 1\n";

/// The file with the uid of a pod's instance.
const INSTANCE: &str = "instance";

/// A time that outlives the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadline {
    /// When a guest that was asked to end is killed.
    Kill,
    /// When the guest's filesystems are thawed.
    Thaw,
}

impl Deadline {
    fn file(self) -> &'static str {
        match self {
            Self::Kill => "deadline",
            Self::Thaw => "thaw",
        }
    }
}

/// A run's folder.
#[derive(Clone, Debug)]
pub(crate) struct Folder(PathBuf);

impl Folder {
    /// The folder at an absolute path.
    pub(crate) fn new(path: &Path) -> Result<Self, Error> {
        let failed = |error| Error::with(Kind::System, format!("{}", path.display()), error);
        let path = fs::canonicalize(path).map_err(failed)?;
        if path.is_dir() {
            Ok(Self(path))
        } else {
            Err(Error::new(Kind::Usage, format!("{} is not a folder", path.display())))
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.0.join(SOCKET)
    }

    /// The root of libvirt's driver.
    pub(crate) fn libvirt(&self) -> PathBuf {
        self.0.join("lv")
    }

    /// Where libvirt keeps what it found out about QEMU.
    pub(crate) fn capabilities(&self) -> PathBuf {
        self.libvirt().join("cache/qemu/capabilities")
    }

    /// Makes what libvirt wants to find.
    pub(crate) fn prepare(&self) -> Result<(), Error> {
        let etc = self.libvirt().join("etc");
        for folder in [&etc, &self.capabilities()] {
            fs::create_dir_all(folder).map_err(|error| self.failed("make", folder, error))?;
        }
        self.write("lv/etc/qemu.conf", QEMU_CONF.as_bytes())
    }

    /// Makes what is found in a launcher pod besides: the uid of its instance, and QEMU's log at KubeVirt's place.
    pub(crate) fn prepare_pod(&self, uid: Option<&str>) -> Result<(), Error> {
        let logs = self.libvirt().join("log");
        for folder in [&self.0.join("libvirt/qemu/log"), &logs] {
            fs::create_dir_all(folder).map_err(|error| self.failed("make", folder, error))?;
        }
        // Tools pack KubeVirt's place as it is, so the link is at libvirt's.
        let link = logs.join("qemu");
        match std::os::unix::fs::symlink("../../libvirt/qemu/log", &link) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(self.failed("make", &link, error));
            }
            Ok(()) | Err(_) => {}
        }
        uid.map_or(Ok(()), |uid| self.write(INSTANCE, uid.as_bytes()))
    }

    /// The uid of the only instance that may be launched here; `None`: of any.
    pub(crate) fn instance(&self) -> Result<Option<String>, Error> {
        Ok(self.read(INSTANCE)?.map(|content| String::from_utf8_lossy(&content).into_owned()))
    }

    /// Has libvirt keep the memory of TPMs in a folder that outlives the run: it has no setting for that.
    pub(crate) fn keep_tpm(&self, state: &Path) -> Result<(), Error> {
        let (kept, lib) = (state.join("swtpm"), self.libvirt().join("lib"));
        for folder in [&kept, &lib] {
            fs::create_dir_all(folder).map_err(|error| self.failed("make", folder, error))?;
        }
        let link = lib.join("swtpm");
        if fs::read_link(&link).is_ok_and(|target| target == kept) {
            return Ok(());
        }
        // libvirt's own is empty before the first guest; another one stays, and is an error.
        match fs::remove_dir(&link) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(self.failed("replace", &link, error));
            }
            Ok(()) | Err(_) => {}
        }
        std::os::unix::fs::symlink(&kept, &link).map_err(|error| self.failed("make", &link, error))
    }

    /// Gives the folder to a user, and the group of the same number.
    pub(crate) fn give_away(&self, user: u32) -> Result<(), Error> {
        std::os::unix::fs::lchown(&self.0, Some(user), Some(user))
            .map_err(|error| self.failed("give away", &self.0, error))
    }

    /// A file of the folder, for its owner only: Secrets are in some.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<(), Error> {
        let path = self.0.join(name);
        dir::replace(&path, content, 0o600).map_err(|error| self.failed("write", &path, error.into()))
    }

    /// A file of the folder, if it is there; longer than any of ours is none of ours.
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let path = self.0.join(name);
        let failed = |error| self.failed("read", &path, error);
        let file = match fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let mut content = Vec::new();
        let most = u64::try_from(DOCUMENT_MAX).unwrap_or(u64::MAX);
        file.take(most).read_to_end(&mut content).map_err(failed)?;
        Ok(Some(content))
    }

    /// The record of the guest's end.
    pub(crate) fn exit(&self) -> Result<Option<Exit>, Error> {
        let Some(content) = self.read(EXIT_RECORD)? else { return Ok(None) };
        let exit = serde_json::from_slice(&content);
        exit.map(Some).map_err(|error| self.malformed(EXIT_RECORD, &error))
    }

    pub(crate) fn set_exit(&self, exit: &Exit) -> Result<(), Error> {
        let json = serde_json::to_vec(exit).map_err(|error| self.malformed(EXIT_RECORD, &error))?;
        self.write(EXIT_RECORD, &json)
    }

    /// The launch document, without the CDs' content.
    pub(crate) fn launch(&self) -> Result<Option<Launch>, Error> {
        let Some(content) = self.read("launch.json")? else { return Ok(None) };
        Launch::read(&content).map(Some).map_err(|error| self.malformed("launch.json", &error))
    }

    pub(crate) fn set_launch(&self, launch: &Launch) -> Result<(), Error> {
        let mut launch = launch.clone();
        launch.media.iter_mut().for_each(|medium| medium.files.clear());
        let json = launch.write().map_err(|error| self.malformed("launch.json", &error))?;
        self.write("launch.json", &json)
    }

    /// Whether the guest was there.
    pub(crate) fn started(&self) -> Result<bool, Error> {
        Ok(self.read("started")?.is_some())
    }

    pub(crate) fn set_started(&self, launch: &Launch) -> Result<(), Error> {
        self.write("started", launch.uid.as_bytes())
    }

    /// The remaining time until a deadline; `None`: there is none.
    pub(crate) fn remaining(&self, of: Deadline) -> Result<Option<Duration>, Error> {
        let Some(content) = self.read(of.file())? else { return Ok(None) };
        let nanoseconds = std::str::from_utf8(&content).ok().and_then(|text| text.parse().ok());
        let nanoseconds = nanoseconds.ok_or_else(|| {
            Error::new(Kind::System, format!("{}: the file is incomplete", self.0.join(of.file()).display()))
        })?;
        Ok(Some(Duration::from_nanos(nanoseconds).saturating_sub(clock())))
    }

    /// Records the remaining time, for the next worker.
    pub(crate) fn set_remaining(&self, of: Deadline, left: Duration) -> Result<(), Error> {
        let time = clock().saturating_add(left).as_nanos().min(u64::MAX.into());
        self.write(of.file(), time.to_string().as_bytes())
    }

    /// Forgets a deadline.
    pub(crate) fn forget(&self, of: Deadline) -> Result<(), Error> {
        let path = self.0.join(of.file());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(self.failed("remove", &path, error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn failed(&self, what: &str, path: &Path, error: io::Error) -> Error {
        Error::with(Kind::System, format!("cannot {what} {}", path.display()), error)
    }

    fn malformed(&self, name: &str, error: &dyn std::error::Error) -> Error {
        Error::new(Kind::System, format!("{}: {error}", self.0.join(name).display()))
    }
}

/// CLOCK_MONOTONIC: it cannot be set, and begins with each boot, which no guest survives.
fn clock() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}
