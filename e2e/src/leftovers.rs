//! Changes to the machine that a cluster might leave, as text lines that can be compared.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::place::{Place, cache};
use crate::supervisor::hierarchies;

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
        add("mount", &mounts()?);
        add("link", &output("ip", &["-oneline", "link"])?);
        add("route", &output("ip", &["route", "show", "table", "all"])?);
        add("network namespace", &output("ip", &["netns"])?);
        let devices = output("losetup", &["--noheadings", "--output", "NAME,BACK-FILE"])?;
        add("loop device", &lines_without(&devices, 1));
        add("nft", &output("nft", &["list", "tables"])?);
        for hierarchy in hierarchies()? {
            add("cgroup", &groups(Path::new(&hierarchy))?);
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

    /// The lines that were added and removed since `before`. Groups of an earlier cluster, which the next of its number
    /// removes, may go.
    pub fn changes(&self, before: &Self) -> Vec<String> {
        let come = self.lines.difference(&before.lines).map(|line| format!("+ {line}"));
        let ours = |line: &&String| line.contains("/ferrovirt-node");
        let gone = before.lines.difference(&self.lines).filter(|line| !ours(line));
        come.chain(gone.map(|line| format!("- {line}"))).collect()
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

fn mounts() -> Result<String> {
    Ok(lines_without(&fs::read_to_string("/proc/self/mounts")?, 1))
}

/// Lines without a path below the folder of temporary files at word `index`: those are of other tests, that may run at the
/// same time.
fn lines_without(text: &str, index: usize) -> String {
    let temporary = std::env::temp_dir();
    let other = |line: &&str| {
        line.split_whitespace().nth(index).is_none_or(|path| !Path::new(path).starts_with(&temporary))
    };
    text.lines().filter(other).collect::<Vec<_>>().join("\n")
}

/// The groups right below the top of a hierarchy; a cluster's are below one of them.
fn groups(hierarchy: &Path) -> Result<String> {
    let mut groups = Vec::new();
    for entry in fs::read_dir(hierarchy)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            groups.push(entry.path().display().to_string());
        }
    }
    Ok(groups.join("\n"))
}

fn entries(folder: &Path) -> String {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.path().display().to_string()).collect();
    names.sort();
    names.join("\n")
}

/// Processes of programs that a cluster starts, all that are in PID namespaces of their own, and those that were given a
/// file in a state folder.
fn processes(found: &mut dyn FnMut(&str)) -> Result<()> {
    let built = cache()?.join("kube");
    let folders =
        Place::all()?.iter().map(|place| format!("{}/", place.folder().display())).collect::<Vec<_>>();
    let own = fs::read_link("/proc/self/ns/pid")?;
    for entry in fs::read_dir("/proc")?.flatten() {
        let Ok(program) = fs::read_link(entry.path().join("exe")) else { continue };
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let named = ["containerd", "containerd-shim-runc-v2", "runc", "unshare", "cluster"];
        let inside = fs::read_link(entry.path().join("ns/pid")).is_ok_and(|namespace| namespace != own);
        let arguments = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let arguments = String::from_utf8_lossy(&arguments).into_owned();
        let given = folders.iter().any(|folder| arguments.contains(folder));
        if inside || given || program.starts_with(&built) || named.contains(&name.as_str()) {
            found(&format!("{} {}", entry.file_name().to_string_lossy(), program.display()));
        }
    }
    Ok(())
}
