//! A daemon with a state folder of its own, as the program that ships, and everything that it started: ended by its id,
//! unmounted and removed when dropped.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use guests::Killed;
use rustix::process::Signal;
use serde_json::Value;

pub(crate) use super::launcher::code;
pub(crate) use super::launcher::waiting::*;

/// A program of another package, which the daemon expects next to itself.
fn beside(name: &str) {
    let program = Path::new(env!("CARGO_BIN_EXE_virt-node")).with_file_name(name);
    assert!(program.is_file(), "{} is not there: cargo build -p {name}", program.display());
}

/// Where programs are: a test's own first, and the plugins' too, for tests that have networks.
fn path(own: &Path) -> std::ffi::OsString {
    let mut path = own.as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    if let Some(cni) = std::env::var_os("FERROVIRT_CNI") {
        path.push(":");
        path.push(Path::new(&cni).parent().unwrap());
    }
    path
}

/// A daemon.
pub(crate) struct Daemon {
    child: Option<Killed>,
    /// The process that holds the mounts which the daemon and its guests see, where those are not ours.
    holder: Option<Killed>,
    /// Guests run in software whatever there is: no guest boots under the KVM of test machines.
    software: bool,
    folder: tempfile::TempDir,
    /// The folder of its programs.
    programs: PathBuf,
}

/// The folder of this release's programs.
pub(crate) fn programs() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_virt-node")).parent().unwrap().to_owned()
}

impl Daemon {
    pub(crate) fn start() -> Self {
        Self::prepared(|_| None)
    }

    /// The same on a machine for guests with networks: its resolver is at this address, and /dev/net/tun is everybody's,
    /// as the kernel and udev have it; some test machines' is not, and stays as it is, since mounts are the daemon's own.
    pub(crate) fn with_taps(resolver: &str) -> Self {
        Self::prepared(|folder| {
            let (node, resolv) = (folder.join("tun"), folder.join("resolv.conf"));
            let mode = rustix::fs::Mode::from_raw_mode(0o666);
            let device = rustix::fs::makedev(10, 200);
            let character = rustix::fs::FileType::CharacterDevice;
            rustix::fs::mknodat(rustix::fs::CWD, &node, character, mode, device).unwrap();
            fs::set_permissions(&node, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
            fs::write(&resolv, format!("nameserver {resolver}\n")).unwrap();
            let script = "mount --bind \"$0\" /dev/net/tun && mount --bind \"$1\" /etc/resolv.conf && echo && exec sleep 100000";
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", script]).args([node, resolv]);
            let mut holder = started(command.stdin(Stdio::null()).stdout(Stdio::piped()));
            read_until(&mut holder.0.stdout.take().unwrap(), "\n");
            Some(holder)
        })
    }

    /// The same on a machine with a /dev/kvm of this mode and group, which runs no guest.
    pub(crate) fn with_kvm(mode: u32, group: u32) -> Self {
        Self::prepared(|folder| {
            let node = folder.join("kvm");
            fs::write(&node, "").unwrap();
            std::os::unix::fs::chown(&node, Some(0), Some(group)).unwrap();
            fs::set_permissions(&node, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
            let script =
                "[ -e /dev/kvm ] || : > /dev/kvm; mount --bind \"$0\" /dev/kvm && echo && exec sleep 100000";
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", script]).arg(node);
            let mut holder = started(command.stdin(Stdio::null()).stdout(Stdio::piped()));
            read_until(&mut holder.0.stdout.take().unwrap(), "\n");
            Some(holder)
        })
    }

    /// The same on a machine with its accounts in the files `passwd` and `group` next to the state folder, which a test may
    /// write to.
    pub(crate) fn with_accounts() -> Self {
        Self::prepared(|folder| {
            let files = ["passwd", "group"].map(|name| {
                let file = folder.join(name);
                fs::copy(Path::new("/etc").join(name), &file).unwrap();
                file
            });
            let script = "mount --bind \"$0\" /etc/passwd && mount --bind \"$1\" /etc/group && echo && exec sleep 100000";
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", script]).args(files);
            let mut holder = started(command.stdin(Stdio::null()).stdout(Stdio::piped()));
            read_until(&mut holder.0.stdout.take().unwrap(), "\n");
            Some(holder)
        })
    }

    /// A daemon of the programs in a folder.
    pub(crate) fn of(programs: PathBuf) -> Self {
        Self::with(programs, |_| None)
    }

    fn prepared(prepare: impl FnOnce(&Path) -> Option<Killed>) -> Self {
        Self::with(programs(), prepare)
    }

    fn with(programs: PathBuf, prepare: impl FnOnce(&Path) -> Option<Killed>) -> Self {
        beside("importer");
        beside("virt-launcher");
        beside("hpp-csi");
        beside("uploadserver");
        let folder = tempfile::Builder::new().prefix("fv").tempdir_in("/var/tmp").unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(folder.path(), open).unwrap();
        let holder = prepare(folder.path());
        let software = !folder.path().join("kvm").exists();
        let mut daemon = Self { folder, child: None, holder, software, programs };
        daemon.again();
        daemon
    }

    /// Replaces its programs; a running daemon keeps its own.
    pub(crate) fn upgrade(&mut self, programs: PathBuf) {
        self.programs = programs;
    }

    fn program(&self) -> PathBuf {
        self.programs.join("virt-node")
    }

    /// Starts the daemon of the folder, when there is none.
    pub(crate) fn again(&mut self) {
        self.again_with(&[]);
    }

    /// The same with more arguments.
    pub(crate) fn again_with(&mut self, more: &[&str]) {
        let log = fs::File::options().create(true).append(true).open(self.path("test.log")).unwrap();
        let mut command = self.inside(&self.program());
        command.arg("serve").args(if self.software { &["--accelerator", "tcg"][..] } else { &[] });
        command.arg("--state").arg(self.state());
        command.arg("--host-disk").arg(self.folder.path()).args(more);
        command.env("PATH", path(&self.path("bin"))).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(started(&mut command));
        eventually("the daemon's socket", || {
            let ended = self.child.as_mut().unwrap().0.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.log());
            UnixStream::connect(self.state().join("virt-node.sock")).ok()
        });
    }

    /// A program that sees what the daemon sees.
    fn inside(&self, program: &Path) -> Command {
        let Some(holder) = &self.holder else { return Command::new(program) };
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", holder.0.id())).arg(program);
        command
    }

    /// A path next to the state directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.path("s")
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("test.log")).unwrap_or_default()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.as_ref().unwrap().0.id()
    }

    /// Ends the daemon: at once, or in order. Answers its exit code.
    pub(crate) fn end(&mut self, signal: Signal) -> Option<i32> {
        let mut child = self.child.take().unwrap();
        kill(child.0.id(), signal);
        end_of(&mut child.0, &format!("the daemon, {signal:?}: {}", self.log())).code()
    }

    /// The output of a command.
    pub(crate) fn command(&self, words: &[&str]) -> Output {
        let mut command = Command::new(self.program());
        command.args(words).arg("--state").arg(self.state()).stdin(Stdio::null());
        output(&mut command)
    }

    /// The output of a command that must succeed.
    pub(crate) fn says(&self, words: &[&str]) -> String {
        let output = self.command(words);
        let (said, told) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{words:?}: {}: {said}{told}\n{}", output.status, self.log());
        said.into_owned()
    }

    /// Writes a document and has it run, detached.
    pub(crate) fn run(&self, document: &str) -> String {
        let file = self.path("document.yaml");
        fs::write(&file, document).unwrap();
        self.says(&["run", "--detach", file.to_str().unwrap()])
    }

    /// Writes a document and has it kept.
    pub(crate) fn apply(&self, document: &str) -> String {
        let file = self.path("document.yaml");
        fs::write(&file, document).unwrap();
        self.says(&["apply", file.to_str().unwrap()])
    }

    /// An object; `None`: there is none.
    pub(crate) fn object(&self, name: &str) -> Option<Value> {
        let output = self.command(&["get", name, "-o", "json"]);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// A machine's state in one word.
    pub(crate) fn status(&self, name: &str) -> String {
        let object = self.object(&format!("vm/{name}"));
        let status = object.map(|object| object["status"]["printableStatus"].clone()).unwrap_or_default();
        status.as_str().unwrap_or_default().to_owned()
    }

    pub(crate) fn until(&self, name: &str, status: &str) {
        self.until_within(name, status, TIMEOUT);
    }

    /// The same of what may take longer.
    pub(crate) fn until_within(&self, name: &str, status: &str, patience: Duration) {
        let what = format!("{name} {status}");
        let until = Instant::now() + patience;
        while self.status(name) != status {
            assert!(Instant::now() < until, "{what}: {}\n{}", self.status(name), self.log());
            sleep(Duration::from_millis(50));
        }
    }

    /// The directory of a VM's run that belongs to its user: the launcher's; `None`: it has none.
    pub(crate) fn run_folder(&self, name: &str) -> Option<PathBuf> {
        Some(self.run_root(name)?.join("vm"))
    }

    /// The user that a VM runs as.
    pub(crate) fn user(&self, name: &str) -> u32 {
        let user = self.object(&format!("vmi/{name}")).unwrap()["status"]["runtimeUser"].as_u64();
        u32::try_from(user.unwrap()).unwrap()
    }

    /// The whole directory of a VM's run: root's.
    pub(crate) fn run_root(&self, name: &str) -> Option<PathBuf> {
        let run = self.object(&format!("vmi/{name}"))?;
        let uid = run["metadata"]["uid"].as_str().unwrap().replace('-', "");
        Some(self.state().join("run").join(&uid[..12]))
    }

    /// The output of a guest on its first serial port in its run.
    pub(crate) fn serial(&self, name: &str) -> String {
        let log = self.run_folder(name).and_then(|run| fs::read(run.join("serial0.log")).ok());
        String::from_utf8_lossy(&log.unwrap_or_default()).into_owned()
    }

    pub(crate) fn until_serial(&self, name: &str, text: &str) {
        self.until_serial_within(name, text, TIMEOUT);
    }

    /// The same of what may take longer.
    pub(crate) fn until_serial_within(&self, name: &str, text: &str, patience: Duration) {
        let what = format!("{text} on the serial port");
        eventually_within(patience, &what, || self.serial(name).contains(text).then_some(()));
    }

    /// A disk image that begins with `code`, readable by all.
    pub(crate) fn image(&self, name: &str, code: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bootable(code)).unwrap();
        path
    }

    /// A command in the background; its output is read by the test, or discarded.
    pub(crate) fn started(&self, words: &[&str], stdin: Stdio, stdout: Stdio) -> Killed {
        let mut command = Command::new(self.program());
        command.args(words).arg("--state").arg(self.state());
        started(command.stdin(stdin).stdout(stdout).stderr(Stdio::null()))
    }

    /// Processes with the state directory in their command line.
    pub(crate) fn processes(&self) -> Vec<(u32, String)> {
        processes(&self.state())
    }

    /// The process of the directory with this word in its command line.
    pub(crate) fn process(&self, word: &str) -> Option<u32> {
        self.processes().into_iter().find(|(_, line)| line.contains(word)).map(|(id, _)| id)
    }

    /// Mounts below the folder.
    pub(crate) fn mounts(&self) -> Vec<String> {
        let state = self.state().to_str().unwrap().to_owned();
        let whose = self.holder.as_ref().map_or("self".to_owned(), |holder| holder.0.id().to_string());
        // The holder may be gone, and the mounts with it.
        let table = fs::read_to_string(format!("/proc/{whose}/mountinfo")).unwrap_or_default();
        let targets = table.lines().filter_map(|line| line.split(' ').nth(4));
        targets.filter(|target| target.starts_with(&state)).map(str::to_owned).collect()
    }

    /// Names in a folder of the state.
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.state().join(folder));
        let mut names: Vec<String> = entries
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Ends everything of the folder as a loss of power does.
    pub(crate) fn cut_power(&mut self) {
        drop(self.child.take());
        end_all(&self.state());
        for target in self.mounts().into_iter().rev() {
            drop(self.inside(Path::new("umount")).arg("-l").arg(&target).status());
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.cut_power();
    }
}

/// The most memory that a process had, in MiB.
pub(crate) fn peak(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() / 1024
}

/// A disk that begins with `code`.
pub(crate) fn bootable(code: &[u8]) -> Vec<u8> {
    let mut disk = vec![0; 1 << 20];
    disk[..code.len()].copy_from_slice(code);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

/// A machine with one disk, on a DataVolume of its own.
pub(crate) fn machine(name: &str, strategy: &str, source: &str, more: &str) -> String {
    format!(
        "\
apiVersion: kubevirt.io/v1
kind: VirtualMachine
metadata: {{name: {name}}}
spec:
  runStrategy: {strategy}
  dataVolumeTemplates:
  - metadata: {{name: {name}-root}}
    spec:
      source: {source}
      storage: {{resources: {{requests: {{storage: 8Mi}}}}}}
  template:
    spec:
      terminationGracePeriodSeconds: 1
      domain:
        memory: {{guest: 64Mi}}
        devices: {{disableHotplug: true, autoattachPodInterface: false, disks: [{{name: root}}]}}
{more}
      volumes:
      - {{name: root, dataVolume: {{name: {name}-root}}}}
"
    )
}

/// A VirtualMachineInstance of one volume.
pub(crate) fn instance(name: &str, volume: &str) -> String {
    format!(
        "\
apiVersion: kubevirt.io/v1
kind: VirtualMachineInstance
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 0
  domain:
    memory: {{guest: 64Mi}}
    devices: {{disableHotplug: true, autoattachPodInterface: false, disks: [{{name: root}}]}}
  volumes:
  - {{name: root, {volume}}}
"
    )
}

/// Linux on a disk of its own, with these interfaces and networks.
pub(crate) fn linux_machine(name: &str, disk: &Path, interfaces: &str, networks: &str) -> String {
    let source = format!("{{http: {{url: \"file://{}\"}}}}", disk.display());
    machine(name, "Always", &source, &format!("      networks: {networks}"))
        .replace("disableHotplug: true, ", "")
        .replace("storage: 8Mi", "storage: 64Mi")
        .replace("guest: 64Mi", "guest: 192Mi")
        .replace(
            "autoattachPodInterface: false, disks: [{name: root}]",
            &format!("interfaces: {interfaces}, disks: [{{name: root, disk: {{bus: virtio}}}}]"),
        )
}
