//! Block devices that a launcher's container may open in addition to those that the container runtime allowed at its
//! start: those of hotplugged volumes.
//!
//! Version 1 of control groups has a list of devices per group. With version 2 the container runtime attaches a program to
//! the container's group, and systemd another one. Each is replaced by one that has the plugged devices in front of it.
//! The kernel keeps it while no agent runs, and the devices can be read from it: there is no other record of them. A
//! container runtime or systemd that attaches its own program again is found by the next call of [`permit`].
//! Not here: the device's file in the container.

mod program;
mod sys;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use self::program::Device;
use super::disk::Disk;
use super::process::Process;
use crate::error::{Error, Kind, Result};

/// The node's control groups. The agent's container has its own part of them alone, and the node's processes.
const GROUPS: &str = "/proc/1/root/sys/fs/cgroup";

/// Allows the container of `launcher` to read and write a block device.
///
/// # Errors
/// The kernel refuses.
pub(crate) fn permit(launcher: &Process, disk: &Disk) -> Result<()> {
    change(launcher, disk, true)
}

/// Takes that back.
///
/// # Errors
/// As [`permit`].
pub(crate) fn forbid(launcher: &Process, disk: &Disk) -> Result<()> {
    change(launcher, disk, false)
}

fn change(launcher: &Process, disk: &Disk, allow: bool) -> Result<()> {
    let device = disk.number()?;
    if let Some(group) = launcher.group("devices")? {
        return write(&group, device, allow);
    }
    let outside = || Error::new(Kind::System, "the launcher's control group is not one of the agent's node");
    let group = launcher.group("")?.ok_or_else(outside)?;
    levels(Path::new(&group)).into_iter().try_for_each(|level| {
        let place = Path::new(GROUPS).join(level.strip_prefix("/").unwrap_or(level));
        rewrite(&place, device, allow)
    })
}

/// Changes the list of a group of version 1.
fn write(group: &str, (major, minor): Device, allow: bool) -> Result<()> {
    let file = if allow { "devices.allow" } else { "devices.deny" };
    let path = PathBuf::from(format!("{GROUPS}/devices{group}/{file}"));
    std::fs::write(&path, format!("b {major}:{minor} rw"))
        .map_err(|error| Error::system(format!("cannot write {}", path.display()), error))
}

/// A process's group and those above it in its pod: a container runtime may make several for a container, and attach its
/// program to any. The kubelet names a pod's group podUID or …-podUID.slice.
fn levels(group: &Path) -> Vec<&Path> {
    let is_pod = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        name.starts_with("pod") || name.contains("-pod")
    };
    let count = group.ancestors().position(is_pod).unwrap_or_default();
    group.ancestors().take(count.max(1)).collect()
}

/// Adds a block device to the programs of a group of version 2, or takes it out of them again.
fn rewrite(group: &Path, device: Device, allow: bool) -> Result<()> {
    let failed = |what: &'static str| {
        move |error: io::Error| {
            Error::system(format!("cannot {what} the device rules of {}", group.display()), error)
        }
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(group, flags, Mode::empty())
        .map_err(|error| Error::system(format!("cannot open {}", group.display()), error))?;
    let (flags, ids) = sys::programs(&opened).map_err(failed("list"))?;
    for id in ids {
        let old = sys::open(id).map_err(failed("open"))?;
        let shown = sys::read(&old).map_err(failed("read"))?;
        let Some((name, wanted, again)) = replacement(group, shown, device, allow)? else { continue };
        let new = load(&wanted, name, again).map_err(failed("load"))?;
        sys::attach(&opened, &new, flags, Some(&old)).map_err(failed("replace"))?;
    }
    Ok(())
}

/// The replacement of a group's program, of which the kernel shows this: a name, instructions, and whether they have devices.
/// `None`: the program stays.
fn replacement(
    group: &Path,
    shown: Option<(sys::Name, Vec<program::Instruction>)>,
    device: Device,
    allow: bool,
) -> Result<Option<(sys::Name, Vec<program::Instruction>, bool)>> {
    let Some((name, instructions)) = shown else {
        // Programs with devices can be read: load() sees to that.
        if !allow {
            return Ok(None);
        }
        let text = format!(
            "the kernel does not show the device rules of {}, so none can be added; set net.core.bpf_jit_harden of the \
             node to 1 or 0 and start the guest again",
            group.display()
        );
        return Err(Error::new(Kind::Content, text));
    };
    let (mut devices, original) = program::parts(&instructions);
    if devices.contains(&device) == allow {
        return Ok(None);
    }
    match allow {
        true => devices.push(device),
        false => devices.retain(|one| *one != device),
    }
    let wanted = program::extended(&devices, original).ok_or_else(|| {
        Error::new(Kind::Content, format!("{} has too many block devices", group.display()))
    })?;
    Ok(Some((name, wanted, !devices.is_empty())))
}

/// Loads a program, and makes sure that the kernel gives it back as it is if it is to be changed again.
fn load(instructions: &[program::Instruction], name: sys::Name, again: bool) -> io::Result<OwnedFd> {
    let new = sys::load(instructions, name)?;
    let same = sys::read(&new)?.is_some_and(|(_, kept)| kept == instructions);
    match same || !again {
        true => Ok(new),
        false => Err(io::Error::other("the kernel changed the program's instructions")),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

    use super::*;

    #[test]
    fn groups_of_a_container_are_those_below_its_pod() {
        for (pod, below) in [
            ("/kubepods/burstable/pod0a1b", vec!["c0ffee"]),
            (
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0a_1b.slice",
                vec!["cri-c0.scope"],
            ),
            ("/kubepods.slice/kubepods-pod0a.slice", vec!["crio-c0.scope/container", "crio-c0.scope"]),
            ("/kubepods.slice", vec!["none"]),
        ] {
            let expected: Vec<PathBuf> = below.iter().map(|below| Path::new(pod).join(below)).collect();
            assert_eq!(levels(&expected[0]), expected, "{pod}");
        }
    }

    #[test]
    fn a_program_that_the_kernel_does_not_show_is_in_the_way_of_permit_alone() {
        let group = Path::new("/kubepods/pod0a");
        let refused = replacement(group, None, (7, 3), true).unwrap_err();
        assert_eq!(refused.kind(), Kind::Content, "{refused}");
        assert!(replacement(group, None, (7, 3), false).unwrap().is_none());
        let shown = || Some((NAME, program::tests::of_runtime()));
        assert!(replacement(group, shown(), (7, 3), false).unwrap().is_none());
        let (name, wanted, again) = replacement(group, shown(), (7, 3), true).unwrap().unwrap();
        assert!(name == NAME && again);
        let (name, original, again) =
            replacement(group, Some((NAME, wanted)), (7, 3), false).unwrap().unwrap();
        assert!(name == NAME && original == program::tests::of_runtime() && !again);
    }

    /// A group of version 2 in a mount of its own, so that machines with both versions have it too.
    struct Scratch {
        mount: tempfile::TempDir,
        group: PathBuf,
    }

    impl Scratch {
        fn new() -> Self {
            let place = tempfile::tempdir().unwrap();
            mount("none", place.path(), "cgroup2", MountFlags::empty(), None::<&CStr>)
                .expect("control groups version 2 and root are needed");
            let group = place.path().join(format!("ferrovirt-test-{}", std::process::id()));
            fs::create_dir(&group).unwrap();
            Self { mount: place, group }
        }

        /// Whether a process in the group can open a file for reading.
        fn opens(&self, file: &str) -> bool {
            let script = r#"echo $$ > "$0/cgroup.procs" || exit 9; exec 3< "$1""#;
            let mut shell = Command::new("sh");
            shell.args(["-c", script]).arg(&self.group).arg(file).stderr(Stdio::null());
            let status = shell.status().unwrap();
            assert_ne!(status.code(), Some(9), "the process is not in the group");
            status.success()
        }

        /// The programs' devices, and their ids.
        fn programs(&self) -> Vec<(Vec<Device>, u32)> {
            let opened = fs::File::open(&self.group).unwrap();
            let (_, ids) = sys::programs(&opened).unwrap();
            let read = |id: u32| {
                let (name, instructions) = sys::read(sys::open(id).unwrap()).unwrap().unwrap();
                assert_eq!(name, NAME);
                let (devices, original) = program::parts(&instructions);
                assert_eq!(original, program::tests::of_runtime());
                (devices, id)
            };
            ids.into_iter().map(read).collect()
        }

        fn attach(&self) {
            let new = sys::load(&program::tests::of_runtime(), NAME).unwrap();
            sys::attach(fs::File::open(&self.group).unwrap(), &new, sys::MULTI, None).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            drop(fs::remove_dir(&self.group));
            let _unmounted = unmount(self.mount.path(), UnmountFlags::DETACH);
        }
    }

    const NAME: sys::Name = *b"of_a_runtime\0\0\0\0";

    /// The kernel is the judge: with two programs, as with runc and systemd, both have to allow the device.
    #[test]
    fn a_container_opens_a_block_device_from_permit_to_forbid_only() {
        let device = "/dev/loop0";
        let facts = fs::metadata(device).expect("a loop device is needed").rdev();
        let device_number = (rustix::fs::major(facts), rustix::fs::minor(facts));
        let scratch = Scratch::new();
        // No program allows everything.
        rewrite(&scratch.group, device_number, true).unwrap();
        assert!(scratch.opens(device));
        scratch.attach();
        scratch.attach();
        assert_eq!(scratch.programs().len(), 2);
        assert!(scratch.opens("/dev/null") && !scratch.opens(device) && !scratch.opens("/dev/zero"));

        rewrite(&scratch.group, device_number, true).unwrap();
        assert!(scratch.opens("/dev/null") && scratch.opens(device) && !scratch.opens("/dev/zero"));
        let once = scratch.programs();
        assert!(once.iter().all(|(devices, _)| *devices == [device_number]), "{once:?}");
        // Again, as another agent does: the programs stay. A second device.
        rewrite(&scratch.group, device_number, true).unwrap();
        assert_eq!(scratch.programs(), once);
        rewrite(&scratch.group, (259, 9), true).unwrap();
        assert!(scratch.programs().iter().all(|(devices, _)| *devices == [device_number, (259, 9)]));
        // A program that is attached later is found.
        scratch.attach();
        assert!(!scratch.opens(device));
        rewrite(&scratch.group, device_number, true).unwrap();
        assert!(scratch.opens(device));

        rewrite(&scratch.group, device_number, false).unwrap();
        assert!(scratch.opens("/dev/null") && !scratch.opens(device));
        rewrite(&scratch.group, (259, 9), false).unwrap();
        let left = scratch.programs();
        assert!(left.len() == 3 && left.iter().all(|(devices, _)| devices.is_empty()), "{left:?}");
    }
}
