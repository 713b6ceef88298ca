//! Processes of pods, and the memory of processes. Not here: bounds of it, which the tests have.

use std::fs;

use anyhow::Result;
use rustix::process::Pid;

use crate::programs;

/// The processes of the pod with this uid, of all its containers, on either node.
pub fn of_pod(uid: &str) -> Vec<Pid> {
    // systemd's names of cgroups have no dashes.
    let scope = uid.replace('-', "_");
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let member = |entry: fs::DirEntry| {
        let process = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        let groups = fs::read_to_string(entry.path().join("cgroup")).ok()?;
        (groups.contains(uid) || groups.contains(&scope)).then_some(process)
    };
    entries.filter_map(member).collect()
}

/// Resident memory, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// All of it.
    pub resident: u64,
    /// The part that no file backs.
    pub anonymous: u64,
}

impl Memory {
    /// The memory of a process. `None`: it has ended.
    pub fn of(process: Pid) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{}/status", process.as_raw_nonzero())).ok()?;
        let line = |name: &str| -> Option<u64> {
            let value = status.lines().find_map(|line| line.strip_prefix(name))?;
            value.trim().strip_suffix(" kB")?.parse().ok()
        };
        Some(Self { resident: line("VmRSS:")?, anonymous: line("RssAnon:")? })
    }

    /// The sum over all processes of the pod with this uid. `None`: it has none.
    pub fn of_pod(uid: &str) -> Option<Self> {
        let processes = of_pod(uid).into_iter().filter_map(Self::of);
        processes.reduce(|sum, one| Self {
            resident: sum.resident + one.resident,
            anonymous: sum.anonymous + one.anonymous,
        })
    }

    /// The larger of both numbers, each for itself.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self { resident: self.resident.max(other.resident), anonymous: self.anonymous.max(other.anonymous) }
    }

    /// The part that bounds are about. Code is several times larger in a build for tests: there only the rest counts.
    ///
    /// # Errors
    /// When the product's image is not built.
    pub fn counted(self) -> Result<u64> {
        Ok(if programs::released()? { self.resident } else { self.anonymous })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_has_memory_until_it_ends() {
        let memory = Memory::of(rustix::process::getpid()).unwrap();
        assert!(memory.anonymous > 0 && memory.resident > memory.anonymous, "{memory:?}");
        let mut child = Command::new("true").spawn().unwrap();
        let process = Pid::from_child(&child);
        child.wait().unwrap();
        assert_eq!(Memory::of(process), None);
    }

    #[test]
    fn a_pod_that_is_not_there_has_no_process_and_no_memory() {
        let uid = "00000000-0000-4000-8000-00000000dead";
        assert_eq!((of_pod(uid), Memory::of_pod(uid)), (Vec::new(), None));
        let (one, other) = (Memory { resident: 3, anonymous: 1 }, Memory { resident: 2, anonymous: 2 });
        assert_eq!(one.max(other), Memory { resident: 3, anonymous: 2 });
    }
}
