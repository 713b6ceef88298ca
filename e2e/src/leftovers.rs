//! What of the machine a cluster might leave changed, as text lines that can be compared.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::keeper::hierarchies;
use crate::place::{Place, cache};

/// The state of the machine at one time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leftovers {
    lines: BTreeSet<String>,
}

impl Leftovers {
    /// Looks at mounts, links, routes, loop devices, nft tables, cgroups, network namespaces by name, the settings of the
    /// kernel that kubelet writes, state folders, and those processes that a cluster starts.
    ///
    /// # Errors
    /// When `ip`, `nft` or `losetup` is missing.
    pub fn now() -> Result<Self> {
        let mut lines = BTreeSet::new();
        let mut add = |kind: &str, text: &str| {
            lines.extend(text.lines().map(|line| format!("{kind}: {}", line.trim_end())));
        };
        add("mount", &fs::read_to_string("/proc/self/mounts")?);
        add("link", &output("ip", &["-oneline", "link"])?);
        add("route", &output("ip", &["route", "show", "table", "all"])?);
        add("network namespace", &output("ip", &["netns"])?);
        add("loop device", &output("losetup", &["--noheadings", "--output", "NAME,BACK-FILE"])?);
        add("nft", &output("nft", &["list", "tables"])?);
        for hierarchy in hierarchies()? {
            cgroups(Path::new(&hierarchy), &mut |group| add("cgroup", group))?;
        }
        for setting in ["vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"] {
            add(setting, &fs::read_to_string(Path::new("/proc/sys").join(setting))?);
        }
        for folder in ["/run/containerd", "/run/netns", "/var/lib/cni", "/var/lib/kubelet", "/var/log/pods"] {
            add("entries", &entries(Path::new(folder)));
        }
        for place in Place::all()? {
            if place.folder().exists() {
                add("state folder", &place.folder().display().to_string());
            }
        }
        processes(&mut |process| add("process", process))?;
        Ok(Self { lines })
    }

    /// What is here and was not in `before`, and the other way round.
    pub fn changes(&self, before: &Self) -> Vec<String> {
        let come = self.lines.difference(&before.lines).map(|line| format!("+ {line}"));
        let gone = before.lines.difference(&self.lines).map(|line| format!("- {line}"));
        come.chain(gone).collect()
    }
}

fn output(program: &str, arguments: &[&str]) -> Result<String> {
    let run = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("cannot run {program}; `make deps` installs it"))?;
    ensure!(run.status.success(), "{program}: {}", String::from_utf8_lossy(&run.stderr).trim());
    Ok(String::from_utf8(run.stdout)?)
}

fn cgroups(group: &Path, found: &mut dyn FnMut(&str)) -> Result<()> {
    found(&group.display().to_string());
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            cgroups(&entry.path(), found)?;
        }
    }
    Ok(())
}

fn entries(folder: &Path) -> String {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.path().display().to_string()).collect();
    names.sort();
    names.join("\n")
}

/// Processes of programs that a cluster starts: by the place of the file, or Debian's names.
fn processes(found: &mut dyn FnMut(&str)) -> Result<()> {
    let built = cache()?.join("kube");
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(program) = fs::read_link(entry.path().join("exe")) else { continue };
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let ours = program.starts_with(&built)
            || ["containerd", "containerd-shim-runc-v2", "runc", "unshare", "cluster"].contains(&name.as_str())
            || name == "busybox";
        if ours {
            found(&format!("{} {}", entry.file_name().to_string_lossy(), program.display()));
        }
    }
    Ok(())
}
