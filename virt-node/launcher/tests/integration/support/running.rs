//! A launcher that runs, as the program that ships, with a guest under emulation; stopped by its id when dropped, its
//! worker and QEMU too.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;

use api::launch::{Launch, Layout};
use api::launcher::{Answer, Cause, Event, Exit, Request, State, Status};
use api::names::QEMU_ID;
use guest::{CallError, Client};

pub(crate) use super::code::*;
pub(crate) use super::waiting::*;

/// Features of this machine's QEMU and libvirt, probed once and cached next to the build.
fn capabilities() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("capabilities");
        let output = output(Command::new(program()).arg("capabilities").arg(&folder));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        folder
    })
}

/// A copy of a cache where the guests' user may read it, which what was built may be hidden from.
fn copy(cache: &Path, folder: &Path) {
    let copy = folder.join("capabilities");
    let status = Command::new("cp").arg("-r").arg(cache).arg(&copy).status().unwrap();
    assert!(status.success());
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The program where the guests' user may run it.
fn copied(folder: &tempfile::TempDir) -> PathBuf {
    let copy = folder.path().join("virt-launcher");
    fs::copy(program(), &copy).unwrap();
    copy
}

/// The program: this package's own, or the one next to virt-node.
fn program() -> std::path::PathBuf {
    match (option_env!("CARGO_BIN_EXE_virt-launcher"), option_env!("CARGO_BIN_EXE_virt-node")) {
        (Some(own), _) => own.into(),
        (None, Some(node)) => Path::new(node).with_file_name("virt-launcher"),
        (None, None) => panic!("neither virt-launcher nor virt-node is built with this test"),
    }
}

/// A process's line of /proc/PID/status.
pub(crate) fn status_line(process: u32, name: &str) -> String {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim_start_matches(':').trim().to_owned()
}

/// Processes by parent.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let ids = fs::read_dir("/proc").unwrap();
    let ids = ids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    ids.filter(|id| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
        after.split_whitespace().nth(1).and_then(|word| word.parse().ok()) == Some(parent)
            && !after.trim_start().starts_with('Z')
    })
    .collect()
}

pub(crate) fn name(process: u32) -> String {
    fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default().trim().to_owned()
}

pub(crate) fn command_line(process: u32) -> String {
    String::from_utf8_lossy(&fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default())
        .replace('\0', " ")
}

/// A launcher and its folder.
pub(crate) struct Launcher {
    child: Child,
    /// The first process: `child`, or below it where that makes namespaces.
    outer: u32,
    folder: tempfile::TempDir,
}

impl Launcher {
    /// The same on a machine with /dev/net/tun open to every user, as the kernel and udev have it: on some test machines it
    /// is not, and stays so, since the launcher has its mounts for itself.
    pub(crate) fn with_taps() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = folder.path().join("tun");
        let mode = rustix::fs::Mode::from_raw_mode(0o666);
        let device = rustix::fs::makedev(10, 200);
        rustix::fs::mknodat(rustix::fs::CWD, &node, rustix::fs::FileType::CharacterDevice, mode, device)
            .unwrap();
        chown(&node, Some(QEMU_ID), Some(QEMU_ID)).unwrap();
        let script = "mount --bind \"$0\" /dev/net/tun && exec \"$@\"";
        let before = ["unshare", "--mount", "sh", "-c", script, node.to_str().unwrap()];
        // The mount keeps the node when its folder goes.
        Self::start(&before, Some(capabilities()))
    }

    /// A launcher that may use the CPUs of this list only.
    pub(crate) fn on_cpus(list: &str) -> Self {
        Self::start(&["taskset", "--cpu-list", list], Some(capabilities()))
    }

    /// A launcher without a guest.
    pub(crate) fn new() -> Self {
        Self::start(&[], Some(capabilities()))
    }

    /// As in a launcher pod: started as the guests' user, which owns the directory, for the instance of this uid.
    pub(crate) fn in_pod(uid: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy(capabilities(), folder.path());
        chown(folder.path(), Some(QEMU_ID), Some(QEMU_ID)).unwrap();
        let mut command = Command::new(copied(&folder));
        command.arg("run").arg("--capabilities").arg(folder.path().join("capabilities")).arg(folder.path());
        command.args(["--pod", "--name", "mine", "--namespace", "default", "--uid", uid]);
        command.uid(QEMU_ID).gid(QEMU_ID).stdin(Stdio::null());
        let log = fs::File::options().create(true).append(true).open(folder.path().join("log")).unwrap();
        let child = command.stderr(log).spawn().unwrap();
        Self { outer: child.id(), child, folder }
    }

    /// The same with a cache of capabilities or none, started by other words, such as `unshare …`, before the program's.
    pub(crate) fn start(before: &[&str], cache: Option<&Path>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        if let Some(cache) = cache {
            copy(cache, folder.path());
        }
        let child = Self::run(&folder, before);
        let mut launcher = Self { outer: child.id(), child, folder };
        if !before.is_empty() {
            let child = launcher.child.id();
            // They became it, or have it as their child.
            launcher.outer = eventually("the first process", || {
                std::iter::once(child).chain(children(child)).find(|id| name(*id) == "virt-launcher")
            });
        }
        launcher
    }

    fn run(folder: &tempfile::TempDir, before: &[&str]) -> Child {
        let program = program();
        let program = program.to_str().unwrap();
        let mut words: Vec<&str> = before.to_vec();
        words.extend([program, "run"]);
        let cache = folder.path().join("capabilities");
        if cache.exists() {
            words.extend(["--capabilities", cache.to_str().unwrap()]);
        }
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg(folder.path()).stdin(Stdio::null());
        let log = fs::File::options().create(true).append(true).open(folder.path().join("log")).unwrap();
        command.stderr(log).spawn().unwrap()
    }

    /// Starts the program again on the same folder, when it is gone.
    pub(crate) fn again(&mut self) {
        self.child = Self::run(&self.folder, &[]);
        self.outer = self.child.id();
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn outer(&self) -> u32 {
        self.outer
    }

    /// Its log.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    pub(crate) fn worker(&self) -> u32 {
        eventually("a worker", || {
            children(self.outer).into_iter().find(|id| command_line(*id).contains(" worker "))
        })
    }

    pub(crate) fn qemu(&self) -> Option<u32> {
        children(self.outer).into_iter().find(|id| name(*id).starts_with("qemu"))
    }

    pub(crate) fn client(&self) -> Client {
        eventually("the socket", || Client::connect(self.folder()).ok())
    }

    /// An answer, from whichever worker gives one.
    pub(crate) fn status(&self) -> Status {
        eventually("a status", || match self.client().call(Request::Status) {
            Ok(Answer::Status(status)) => Some(status),
            Ok(_) => None,
            Err(_) => None,
        })
    }

    pub(crate) fn ask(&self, request: Request) -> Result<Answer, CallError> {
        self.client().call(request)
    }

    pub(crate) fn until(&self, state: State) -> Status {
        eventually(&format!("{state:?}"), || Some(self.status()).filter(|status| status.state == state))
    }

    /// A launch document for a disk that begins with `code`, without anything that the code does not need.
    pub(crate) fn document(&self, code: &[u8]) -> Launch {
        let disk = self.folder().join("disk.img");
        let mut sector = vec![0; 1 << 20];
        sector[..code.len()].copy_from_slice(code);
        sector[510..512].copy_from_slice(&[0x55, 0xaa]);
        fs::write(&disk, sector).unwrap();
        chown(&disk, Some(QEMU_ID), Some(QEMU_ID)).unwrap();
        let mut launch = super::launch(&super::golden("minimal"), Layout::default());
        launch.folder = self.folder().to_str().unwrap().to_owned();
        launch.devices.serial.as_mut().unwrap().log = Some(format!("{}/serial0.log", launch.folder));
        launch.memory.guest = 64 << 20;
        launch.memory.max_guest = 64 << 20;
        launch.grace_seconds = 2;
        let api::launch::Media::Storage(storage) = &mut launch.disks[0].media else { panic!("a disk") };
        storage.path = disk.to_str().unwrap().to_owned();
        // The file systems of some machines' /tmp have no direct I/O.
        launch.disks[0].cache = api::launch::Cache::Writeback;
        launch
    }

    /// Starts the guest of a document.
    pub(crate) fn launch(&self, launch: &Launch) {
        let answer = self.client().launch(launch).unwrap_or_else(|error| panic!("{error}: {}", self.log()));
        assert!(matches!(answer, Answer::Launched { new: true, .. }), "{answer:?}");
    }

    /// The guest's output on its serial port.
    pub(crate) fn serial(&self) -> String {
        let log = fs::read(self.folder().join("serial0.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    pub(crate) fn until_serial(&self, text: &str) {
        eventually(&format!("{text} on the serial port"), || self.serial().contains(text).then_some(()));
    }

    /// Waits for the end: the program's code, and the record.
    pub(crate) fn end(&mut self) -> (ExitStatus, Exit) {
        let status = eventually("the end", || self.ended());
        let record = fs::read(self.folder().join(api::launcher::EXIT_RECORD))
            .unwrap_or_else(|error| panic!("{error}: {}", self.log()));
        (status, serde_json::from_slice(&record).unwrap())
    }

    /// How the program ended, if it did.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for the end, with this cause and this code.
    pub(crate) fn ends(&mut self, cause: Cause) -> Exit {
        let (status, exit) = self.end();
        assert_eq!((exit.cause, exit.code), (cause, cause.code()), "{}", self.log());
        assert_eq!(status.code(), Some(cause.code().into()), "{}", self.log());
        assert!(!self.folder().join(api::launcher::SOCKET).exists(), "the socket goes");
        exit
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // Nothing is started again once the first process is gone; its children are looked up before.
        let children = children(self.outer);
        kill(self.outer, rustix::process::Signal::KILL);
        children.into_iter().for_each(|id| kill(id, rustix::process::Signal::KILL));
        drop(self.child.kill());
        drop(self.child.wait());
        // QEMU is nobody's child where the first process went before.
        end_all(self.folder());
    }
}

/// The next status event of a client.
pub(crate) fn next_status(client: &mut Client) -> Status {
    loop {
        if let Event::Status(status) = client.event(TIMEOUT).unwrap().unwrap() {
            return status;
        }
    }
}
