//! What the project's own image holds: a small Debian, and the programs, one layer each.
//!
//! Stock controllers give a pod arguments and no command, so every program has a tag of its own whose entrypoint it is.
//! `Containerfile` beside this package says the same for podman and docker; a test holds the two together.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::archive::{self, Tag};
use crate::args::Args;
use crate::layer::{self, Member};
use crate::root;

/// The repository of all tags; a registry's tools rename it.
pub const REPOSITORY: &str = "localhost/ferrovirt";

/// One program of the image.
#[derive(Clone, Copy, Debug)]
pub struct Program {
    /// Its name, and the tag's.
    pub name: &'static str,
    /// Whether it is linked statically: it runs where nobody knows what libraries there are.
    pub is_static: bool,
}

/// The programs, from the one that changes least to the one that changes most: layers below stay what they were.
pub const PROGRAMS: &[Program] = &[
    Program { name: "cdi-containerimage-server", is_static: true },
    Program { name: "cni", is_static: true },
    Program { name: "importer", is_static: false },
    Program { name: "uploadserver", is_static: false },
    Program { name: "uploadproxy", is_static: false },
    Program { name: "clone-source", is_static: false },
    Program { name: "hpp-csi", is_static: false },
    Program { name: "macpool", is_static: false },
];

/// Folder of the programs. Stock controllers copy `/usr/bin/cdi-containerimage-server` out of the image by this path.
pub const FOLDER: &str = "usr/bin";

/// Where the DaemonSet of the cluster network addons operator takes plugins from, each with a file of its checksum.
pub const PLUGINS: &str = "usr/src/github.com/containernetworking/plugins/bin";

/// The plugins it takes.
pub const TAKEN: [&str; 2] = ["bridge", "tuning"];

impl Program {
    /// Its file, relative to cargo's target folder. Those that are linked statically are of the release build always.
    pub fn built(&self, profile: &str) -> String {
        let folder = if self.is_static { "x86_64-unknown-linux-gnu/release" } else { profile };
        format!("{folder}/{}", self.name)
    }

    /// Its name in a pod's `image`.
    pub fn tag(&self) -> Tag {
        Tag {
            repository: REPOSITORY.into(),
            name: self.name.into(),
            entrypoint: vec![format!("/{FOLDER}/{}", self.name)],
        }
    }
}

pub(crate) fn build(args: &Args) -> Result<()> {
    let parent = args.output.parent().filter(|parent| !parent.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let work = tempfile::Builder::new().prefix(".image").tempdir_in(parent)?;
    let mut layers = vec![root::layer(args.cache.as_deref(), work.path())?];
    for program in PROGRAMS {
        let from = args.target.join(program.built(&args.profile));
        let mut members = BTreeMap::new();
        if program.name == "cni" {
            add_plugins(&from, &mut members)?;
        }
        members.insert(format!("{FOLDER}/{}", program.name), Member::File { from, mode: 0o755 });
        layers.push(layer::pack(&members, &work.path().join(program.name))?);
    }
    let tags: Vec<_> = PROGRAMS.iter().map(Program::tag).collect();
    // Whole or not at all: a reader of the archive never sees half of it.
    let written = work.path().join("archive");
    let digest = archive::write(&written, &layers, &tags)?;
    fs::rename(&written, &args.output).with_context(|| format!("cannot write {}", args.output.display()))?;
    report(&args.output, &digest, &tags);
    Ok(())
}

/// The program under the names that the operator's script copies, and what `sha256sum` says of it.
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

#[expect(clippy::print_stdout, reason = "the answer for the person who typed")]
fn report(output: &Path, digest: &str, tags: &[Tag]) {
    println!("{} sha256:{digest}", output.display());
    for tag in tags {
        println!("  {}", tag.reference());
    }
}
