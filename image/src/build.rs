//! Builds the archive of one set of images from the programs that cargo has built. What is in it: `product`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use crate::archive::{self, Tag};
use crate::args::Args;
use crate::layer::{self, Member};
use crate::product::{DOWNLOAD, FOLDER, MANAGER, PLUGINS, Program, SETS, SIZE_DETECTION, TAKEN, TOOLS};
use crate::root;

pub(crate) fn build(args: &Args) -> Result<()> {
    let parent = args.output.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let work = tempfile::Builder::new().prefix(".image").tempdir_in(parent)?;
    let set = SETS.iter().find(|set| set.name == args.set).context("clap accepts the names of sets only")?;
    let mut layers = vec![root::layer(&set.root, args.cache.as_deref(), work.path())?];
    for program in set.programs {
        let mut from = args.target.join(program.built(&args.profile));
        if args.strip && !program.is_static {
            from = strip(&from, work.path())?;
        }
        let mut members = BTreeMap::new();
        if program.name == "cni" {
            add_plugins(&from, &mut members)?;
        }
        if program.name == "virt-launcher" {
            let link =
                |name| (format!("{FOLDER}/{name}"), Member::Link { to: format!("/{FOLDER}/virt-launcher") });
            members.extend(TOOLS.map(link));
        }
        if program.name == "kubectl-virt" {
            let archive = work.path().join("virtctl.tar.gz");
            let only = (DOWNLOAD.1.to_owned(), Member::File { from: from.clone(), mode: 0o755 });
            layer::pack(&BTreeMap::from([only]), &archive)?;
            members.insert(DOWNLOAD.0.to_owned(), Member::File { from: archive, mode: 0o644 });
        }
        if program.name == "importer" {
            members.insert(SIZE_DETECTION.to_owned(), Member::Link { to: format!("/{FOLDER}/importer") });
        }
        if program.name == "macpool" {
            members.insert(MANAGER.to_owned(), Member::Link { to: format!("/{FOLDER}/macpool") });
        }
        members.insert(format!("{FOLDER}/{}", program.name), Member::File { from, mode: 0o755 });
        layers.push(layer::pack(&members, &work.path().join(program.name))?);
    }
    let tags: Vec<_> = set.programs.iter().map(Program::tag).collect();
    // Whole or not at all: a reader of the archive never sees half of it.
    let written = work.path().join("archive");
    let digest = archive::write(&written, &layers, &tags)?;
    fs::rename(&written, &args.output).with_context(|| format!("cannot write {}", args.output.display()))?;
    report(&args.output, &digest, &tags);
    Ok(())
}

/// A copy of a program in `folder` without its debug information.
fn strip(program: &Path, folder: &Path) -> Result<PathBuf> {
    let name = program.file_name().context("a program has a name")?;
    let stripped = folder.join(format!("{}.stripped", name.display()));
    let status = Command::new("strip").arg("-o").args([&stripped, program]).status();
    let status = status.context("cannot run strip; install binutils")?;
    ensure!(status.success(), "strip failed for {}: {status}", program.display());
    Ok(stripped)
}

/// The program under the names that the operator's script copies, and its `sha256sum`.
fn add_plugins(program: &Path, members: &mut BTreeMap<String, Member>) -> Result<()> {
    let bytes = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let checksum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    for name in TAKEN {
        members.insert(format!("{PLUGINS}/{name}"), Member::Link { to: format!("/{FOLDER}/cni") });
        let content = format!("{checksum}  {name}\n");
        members.insert(format!("{PLUGINS}/{name}.checksum"), Member::Text { content, mode: 0o644 });
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the answer for the user")]
fn report(output: &Path, digest: &str, tags: &[Tag]) {
    println!("{} sha256:{digest}", output.display());
    for tag in tags {
        println!("  {}", tag.reference());
    }
}
