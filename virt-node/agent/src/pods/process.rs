//! A process of a pod, by its number on the node: its pod, its namespaces, its files.
//!
//! A number names another process as soon as the first one is gone. So /proc/PID is opened once, and every look-up is
//! beneath that descriptor: it fails when the process is gone, even if another process has its number.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use dir::Dir;
use rustix::fs::{Mode, OFlags, ResolveFlags, fgetxattr, openat, openat2};
use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, prlimit};

use crate::error::{Error, Kind, Result};

/// Longest line of /proc/PID/cgroup and status that is read.
const TEXT_MAX: u64 = 64 << 10;
/// Longest SELinux context in bytes: a page, as the kernel has it.
const CONTEXT_MAX: usize = 4096;

/// A process.
#[derive(Debug)]
pub(crate) struct Process {
    directory: Dir,
    number: i32,
}

impl Process {
    /// The process that has this number now; `None`: none has.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub(crate) fn open(number: i32) -> Result<Option<Self>> {
        let found = Dir::find(format!("/proc/{number}"))?;
        Ok(found.map(|directory| Self { directory, number }))
    }

    fn text(&self, name: &str) -> Result<String> {
        let content = self.directory.read(name, TEXT_MAX)?.ok_or_else(|| self.gone())?;
        Ok(String::from_utf8_lossy(&content).into_owned())
    }

    fn gone(&self) -> Error {
        Error::new(Kind::Launcher, format!("process {} has ended", self.number))
    }

    /// Whether the kubelet put it into the pod with this uid.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn is_in_pod(&self, uid: &str) -> Result<bool> {
        Ok(names_pod(&self.text("cgroup")?, uid))
    }

    /// Whether it belongs to the container with this id, as the container runtime calls it.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn is_in_container(&self, id: &str) -> Result<bool> {
        Ok(!id.is_empty() && self.text("cgroup")?.lines().any(|line| line.contains(id)))
    }

    /// Its control group in the hierarchy of a controller of version 1, and with an empty name in that of version 2; `None`:
    /// there is no such hierarchy.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn group(&self, controller: &str) -> Result<Option<String>> {
        Ok(group_of(&self.text("cgroup")?, controller))
    }

    /// The SELinux context of its files, that of its root; "none" where SELinux is off, as upstream has it in a status.
    ///
    /// # Errors
    /// It is gone, or the kernel does not give the context.
    pub(crate) fn selinux_context(&self) -> Result<String> {
        let failed = |error: Errno| {
            Error::system(format!("cannot read the SELinux context of process {}", self.number), error)
        };
        let filesystems = std::fs::read_to_string("/proc/filesystems")
            .map_err(|error| Error::system("cannot read /proc/filesystems", error))?;
        if !has_selinux(&filesystems) {
            return Ok("none".to_owned());
        }
        let mut context = vec![0_u8; CONTEXT_MAX];
        let root = self.directory("/")?;
        let length = fgetxattr(&root, "security.selinux", &mut context[..]).map_err(failed)?;
        let context = String::from_utf8_lossy(&context[..length]);
        Ok(context.trim_end_matches('\0').to_owned())
    }

    /// The words of its command line.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn command_line(&self) -> Result<Vec<String>> {
        Ok(self.text("cmdline")?.split_terminator('\0').map(str::to_owned).collect())
    }

    /// The environment that it was started with.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn environment(&self) -> Result<BTreeMap<String, String>> {
        let text = self.text("environ")?;
        let pairs = text.split('\0').filter_map(|pair| pair.split_once('='));
        Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// Lets it, its children and all that they start lock so many bytes of memory each.
    ///
    /// # Errors
    /// It is gone, or the kernel refuses.
    pub(crate) fn let_lock(&self, bytes: u64) -> Result<()> {
        // Children that it starts from now on inherit the limit.
        lock(self.number, bytes)?;
        let number = self.number.to_string();
        let failed = |error| Error::system(format!("cannot list the children of process {number}"), error);
        let path = self.directory.proc_path(format!("task/{number}/children"));
        let children = std::fs::read_to_string(path).map_err(failed)?;
        children.split_ascii_whitespace().filter_map(|child| child.parse().ok()).try_for_each(|child| {
            match lock(child, bytes) {
                Err(error) if error.kind() == Kind::Launcher => Ok(()),
                other => other,
            }
        })
    }

    /// Its mount namespace.
    ///
    /// # Errors
    /// It is gone.
    pub(crate) fn mounts(&self) -> Result<OwnedFd> {
        self.namespace("ns/mnt", OFlags::RDONLY)
    }

    /// Path of its network namespace, for as long as this value lives. It leads nowhere once the process is gone.
    pub(crate) fn network(&self) -> PathBuf {
        self.directory.proc_path("ns/net")
    }

    /// The same for other processes of the node: it names another process's namespace once this one is gone, so a program
    /// that opens it has to check which one it is.
    pub(crate) fn network_by_number(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/ns/net", self.number))
    }

    fn namespace(&self, name: &str, flags: OFlags) -> Result<OwnedFd> {
        // These are magic links, made by the kernel: they have to be followed.
        openat(self.directory.as_fd(), name, flags | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| Error::system(format!("cannot open {name} of process {}", self.number), error))
    }

    /// Its root.
    ///
    /// # Errors
    /// The process is gone.
    pub(crate) fn root(&self) -> Result<Root> {
        self.namespace("root", OFlags::PATH | OFlags::DIRECTORY).map(Root)
    }

    /// A directory as the process sees it. Symbolic links on the way are followed inside its root, never out of it.
    ///
    /// # Errors
    /// There is none, or the process is gone.
    pub(crate) fn directory(&self, path: &str) -> Result<Dir> {
        self.root()?.directory(path)
    }

    /// A file or device as the process sees it, without opening it.
    ///
    /// # Errors
    /// There is none, or the process is gone.
    pub(crate) fn file(&self, path: &str) -> Result<OwnedFd> {
        self.root()?.open(path, OFlags::PATH | OFlags::NOFOLLOW)
    }
}

/// A directory beneath which paths are resolved as if it were the root: a container's, or an image's in a container.
#[derive(Debug)]
pub(crate) struct Root(OwnedFd);

impl Root {
    /// The directory at `path` as a root of its own.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn at(&self, path: &str) -> Result<Self> {
        self.open(path, OFlags::PATH | OFlags::DIRECTORY).map(Self)
    }

    /// A directory. Symbolic links on the way are followed inside the root, never out of it.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn directory(&self, path: &str) -> Result<Dir> {
        let opened = self.open(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Dir::from_fd(opened, path))
    }

    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd> {
        let failed = |error: Errno| Error::system(format!("cannot open {path} in the container"), error);
        loop {
            let opened = openat2(
                &self.0,
                path,
                flags | OFlags::CLOEXEC,
                Mode::empty(),
                ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS,
            );
            match opened {
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return other.map_err(failed),
            }
        }
    }
}

/// Lets the process of this number lock so many bytes of memory.
fn lock(number: i32, bytes: u64) -> Result<()> {
    let gone = || Error::new(Kind::Launcher, format!("process {number} has ended"));
    let process = Pid::from_raw(number).ok_or_else(gone)?;
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    prlimit(Some(process), Resource::Memlock, limit).map(drop).map_err(|error| match error {
        Errno::SRCH => gone(),
        other => Error::system(format!("cannot let process {number} lock memory"), other),
    })
}

/// Whether SELinux is on, from /proc/filesystems: the kernel has its filesystem only then.
fn has_selinux(filesystems: &str) -> bool {
    filesystems.lines().any(|line| line.split_whitespace().next_back() == Some("selinuxfs"))
}

/// The group of a controller in /proc/PID/cgroup.
fn group_of(text: &str, controller: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let found = controllers.split(',').any(|one| one == controller);
        (found && !path.split('/').any(|part| part == "..")).then(|| path.to_owned())
    })
}

/// Whether /proc/PID/cgroup names the pod: the kubelet's cgroupfs driver writes its uid as it is, the systemd driver with
/// underscores.
fn names_pod(text: &str, uid: &str) -> bool {
    let (plain, systemd) = (format!("pod{uid}"), format!("pod{}", uid.replace('-', "_")));
    text.lines().any(|line| {
        line.split(['/', ':']).any(|part| {
            let part = part.strip_suffix(".slice").unwrap_or(part);
            part == plain || part.ends_with(&format!("-{systemd}")) || part == systemd
        })
    })
}

/// All processes, by their numbers.
///
/// # Errors
/// /proc cannot be read.
pub(crate) fn all() -> Result<impl Iterator<Item = Process>> {
    let entries = std::fs::read_dir("/proc").map_err(|error| Error::system("cannot read /proc", error))?;
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut numbers: Vec<_> = numbers.collect();
    numbers.sort_unstable();
    Ok(numbers.into_iter().filter_map(|number| Process::open(number).ok().flatten()))
}

/// A process of the container with this id: the one with the lowest number. `uid`: its pod's.
///
/// # Errors
/// [`Kind::Launcher`] when there is none, [`Kind::Untrusted`] when it is in another pod.
pub(crate) fn of_container(id: &str, uid: &str) -> Result<Process> {
    for process in all()? {
        if process.is_in_container(id).unwrap_or(false) {
            return match process.is_in_pod(uid)? {
                true => Ok(process),
                false => Err(Error::new(Kind::Untrusted, format!("container {id} is not in pod {uid}"))),
            };
        }
    }
    Err(Error::new(Kind::Launcher, format!("no process runs in container {id}")))
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use super::*;

    #[test]
    fn a_pod_is_named_by_both_cgroup_drivers() {
        let uid = "0a1b2c3d-0000-4000-8000-00000000000f";
        for (line, named) in [
            (format!("4:memory:/kubepods/burstable/pod{uid}/0123abcd"), true),
            (
                format!(
                    "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice/cri-containerd-01.scope",
                    uid.replace('-', "_")
                ),
                true,
            ),
            (format!("4:memory:/kubepods/pod{uid}"), true),
            (format!("4:memory:/kubepods/burstable/pod{uid}0/x"), false),
            (format!("4:memory:/user/notpod{uid}/x"), false),
            ("0::/init.scope".to_owned(), false),
        ] {
            assert_eq!(names_pod(&line, uid), named, "{line}");
        }
    }

    #[test]
    fn a_group_is_that_of_its_controller() {
        let text = "5:cpu,cpuacct:/a\n4:devices:/kubepods/podx/y\n0::/b";
        assert_eq!(group_of(text, "devices").as_deref(), Some("/kubepods/podx/y"));
        assert_eq!(group_of(text, "cpu").as_deref(), Some("/a"));
        assert_eq!(group_of(text, "").as_deref(), Some("/b"));
        assert_eq!(group_of("1:name=systemd:/a", ""), None);
        assert_eq!(group_of("0::/b", "devices"), None);
        assert_eq!(group_of("4:devices:/../../a", "devices"), None);
    }

    #[test]
    fn selinux_is_on_where_its_filesystem_is_known() {
        assert!(has_selinux("nodev\tsysfs\nnodev\tselinuxfs\n\text4\n"));
        assert!(!has_selinux("nodev\tsysfs\nnodev\tsecurityfs\n\text4\n"));
        let own = i32::try_from(std::process::id()).unwrap();
        let context = Process::open(own).unwrap().unwrap().selinux_context().unwrap();
        let is_on = has_selinux(&std::fs::read_to_string("/proc/filesystems").unwrap());
        assert_eq!(context == "none", !is_on, "{context}");
    }

    #[test]
    fn a_process_may_lock_memory_and_so_may_its_children() {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "sleep 60 & wait"]).env("PCI_RESOURCE_A", "0000:65:00.0").stdout(Stdio::null());
        let mut shell = shell.spawn().unwrap();
        let number = i32::try_from(shell.id()).unwrap();
        let process = Process::open(number).unwrap().unwrap();
        let children = format!("/proc/{number}/task/{number}/children");
        let child = loop {
            if let Ok(child) = std::fs::read_to_string(&children).unwrap().trim().parse::<i32>() {
                break child;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        assert_eq!(process.environment().unwrap()["PCI_RESOURCE_A"], "0000:65:00.0");
        // More than a process has needs a capability that tests may lack.
        let bytes = 32 << 10;
        process.let_lock(bytes).unwrap();
        for number in [number, child] {
            let limits = std::fs::read_to_string(format!("/proc/{number}/limits")).unwrap();
            let line = limits.lines().find(|line| line.starts_with("Max locked memory")).unwrap();
            assert_eq!(line.split_whitespace().rev().nth(1), Some(bytes.to_string().as_str()), "{line}");
        }
        for number in [child, number] {
            rustix::process::kill_process(Pid::from_raw(number).unwrap(), rustix::process::Signal::KILL)
                .unwrap();
        }
        shell.wait().unwrap();
        assert_eq!(process.let_lock(bytes).unwrap_err().kind(), Kind::Launcher);
    }

    #[test]
    fn a_process_that_is_gone_is_not_its_successor() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let number = i32::try_from(child.id()).unwrap();
        let process = Process::open(number).unwrap().unwrap();
        assert!(process.mounts().is_ok());
        assert!(process.directory("/").is_ok());
        assert!(!process.is_in_pod("0a1b2c3d").unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.mounts().is_err());
        assert!(process.is_in_pod("0a1b2c3d").is_err());
    }
}
