//! A daemon with a state folder of its own, as the program that ships, and everything that it started: ended by its id,
//! unmounted and removed when dropped.

#![allow(dead_code, reason = "each test uses what it needs")]

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

#[path = "code.rs"]
pub(crate) mod code;
#[path = "waiting.rs"]
mod waiting;

#[allow(unused_imports, reason = "each test uses what it needs")]
pub(crate) use waiting::*;

/// A program of another package, which the daemon looks for beside itself.
fn beside(name: &str) {
    let program = Path::new(env!("CARGO_BIN_EXE_virt-node")).with_file_name(name);
    assert!(program.is_file(), "{} is not there: cargo build -p {name}", program.display());
}

/// Where programs are: the plugins' too, for tests that have networks.
fn path() -> std::ffi::OsString {
    let mut path = std::env::var_os("PATH").unwrap();
    if let Some(cni) = std::env::var_os("FERROVIRT_CNI") {
        path.push(":");
        path.push(Path::new(&cni).parent().unwrap());
    }
    path
}

/// A daemon.
pub(crate) struct Daemon {
    folder: tempfile::TempDir,
    child: Option<Child>,
    /// Who keeps the mounts that it and its guests see, where those are not ours.
    holder: Option<Child>,
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
            let mut holder = Command::new("unshare")
                .args(["--mount", "sh", "-c", script])
                .args([node, resolv])
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            std::io::Read::read_exact(&mut holder.stdout.take().unwrap(), &mut [0]).unwrap();
            Some(holder)
        })
    }

    fn prepared(prepare: impl FnOnce(&Path) -> Option<Child>) -> Self {
        beside("importer");
        beside("hpp-csi");
        let folder = tempfile::Builder::new().prefix("fv").tempdir_in("/var/tmp").unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(folder.path(), open).unwrap();
        let holder = prepare(folder.path());
        let mut daemon = Self { folder, child: None, holder };
        daemon.again();
        daemon
    }

    /// Starts the daemon of the folder, when there is none.
    pub(crate) fn again(&mut self) {
        self.again_with(&[]);
    }

    /// The same with more arguments.
    pub(crate) fn again_with(&mut self, more: &[&str]) {
        let log = fs::File::options().create(true).append(true).open(self.path("test.log")).unwrap();
        let child = self
            .inside(env!("CARGO_BIN_EXE_virt-node"))
            .args(["serve", "--accelerator", "tcg", "--state"])
            .arg(self.state())
            .args(more)
            .env("PATH", path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        self.child = Some(child.unwrap());
        eventually("the daemon's socket", || {
            let ended = self.child.as_mut().unwrap().try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", self.log());
            UnixStream::connect(self.state().join("virt-node.sock")).ok()
        });
    }

    /// A program that sees what the daemon sees.
    fn inside(&self, program: &str) -> Command {
        let Some(holder) = &self.holder else { return Command::new(program) };
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", holder.id())).arg(program);
        command
    }

    /// A path beside the state folder.
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
        self.child.as_ref().unwrap().id()
    }

    /// Ends the daemon: at once, or in order. Answers its exit code.
    pub(crate) fn end(&mut self, signal: Signal) -> Option<i32> {
        let mut child = self.child.take().unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        child.wait().unwrap().code()
    }

    /// What a command answers.
    pub(crate) fn command(&self, words: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_virt-node"));
        command.args(words).arg("--state").arg(self.state()).stdin(Stdio::null());
        command.output().unwrap()
    }

    /// What a command says that succeeds.
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
        let what = format!("{name} {status}");
        let until = Instant::now() + PATIENCE;
        while self.status(name) != status {
            assert!(Instant::now() < until, "{what}: {}\n{}", self.status(name), self.log());
            sleep(Duration::from_millis(50));
        }
    }

    /// The folder of a machine's run.
    pub(crate) fn run_folder(&self, name: &str) -> PathBuf {
        let run = self.object(&format!("vmi/{name}")).unwrap();
        let uid = run["metadata"]["uid"].as_str().unwrap().replace('-', "");
        self.state().join("run").join(&uid[..12])
    }

    /// What a guest wrote to its first serial port in its run.
    pub(crate) fn serial(&self, name: &str) -> String {
        let log = fs::read(self.run_folder(name).join("serial0.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    pub(crate) fn until_serial(&self, name: &str, text: &str) {
        eventually(&format!("{text} on the serial port"), || self.serial(name).contains(text).then_some(()));
    }

    /// A disk image that begins with `code`, readable by all.
    pub(crate) fn image(&self, name: &str, code: &[u8]) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, bootable(code)).unwrap();
        path
    }

    /// Processes whose command names the state folder.
    pub(crate) fn processes(&self) -> Vec<(u32, String)> {
        let state = self.state().to_str().unwrap().to_owned();
        let ids = fs::read_dir("/proc").unwrap();
        let ids = ids.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<u32>().ok());
        let line = |id: u32| {
            let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
            (id, String::from_utf8_lossy(&line).replace('\0', " "))
        };
        ids.map(line).filter(|(_, line)| line.contains(&state)).collect()
    }

    /// The process of the folder whose command has this word.
    pub(crate) fn process(&self, word: &str) -> Option<u32> {
        self.processes().into_iter().find(|(_, line)| line.contains(word)).map(|(id, _)| id)
    }

    /// Mounts below the folder.
    pub(crate) fn mounts(&self) -> Vec<String> {
        let state = self.state().to_str().unwrap().to_owned();
        let whose = self.holder.as_ref().map_or("self".to_owned(), |holder| holder.id().to_string());
        let table = fs::read_to_string(format!("/proc/{whose}/mountinfo")).unwrap();
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
        if let Some(mut child) = self.child.take() {
            drop(child.kill());
            drop(child.wait());
        }
        // What is started while the others are ended is seen in another round.
        for _ in 0..100 {
            let found = self.processes();
            if found.is_empty() {
                break;
            }
            for (id, _) in found {
                kill(id, Signal::KILL);
            }
            sleep(Duration::from_millis(20));
        }
        for target in self.mounts().into_iter().rev() {
            drop(self.inside("umount").arg("-l").arg(&target).status());
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.cut_power();
        if let Some(holder) = &mut self.holder {
            drop(holder.kill());
            drop(holder.wait());
        }
    }
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
