//! Rules over the whole workspace: which package may depend on which, what a program never links, and how a source
//! file looks.
//!
//! Everything here is read from `cargo metadata`, `cargo tree` and the tree of files; nothing is built or run.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

mod cycles;

/// The floor of every library. A library depends on libraries of a lower floor only, never sideways or up; a library
/// without a line here, and a line without a library, fail the test.
const FLOORS: &[(&str, u8)] = &[
    ("error", 0),
    ("mac", 0),
    ("api", 1),
    ("dir", 1),
    ("link", 1),
    ("cluster", 2),
    ("csi", 2),
    ("disk-image", 2),
    ("serve", 2),
    ("guest", 3),
    ("virt", 3),
    // The commands for a cluster, which are a program of their own too: virt-node offers them in addition to its own.
    ("virt-client", 3),
];

/// The kind of a package, by its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    /// Under `lib/`, on the floor that [`FLOORS`] gives it.
    Library(u8),
    /// Any other package: depends on libraries only, never on another program.
    Program,
    /// `benches`, `e2e` and `manual`: may depend on every package; no package depends on them.
    Observer,
    /// `e2e/guests`, `e2e/places` and `e2e/sources`: what tests of others boot and import from; see none of ours and are seen by tests
    /// alone.
    Stage,
}

/// A member of the workspace.
struct Member {
    /// Its folder, relative to the root.
    folder: String,
    layer: Layer,
    /// Names of all its dependencies, and whether its tests alone have it.
    dependencies: Vec<(String, bool)>,
}

/// Crates that must not be in a package's tree of normal dependencies. Behind a package's name may stand arguments of
/// `cargo tree`.
const NEVER_LINKED: &[(&str, &[&str])] = &[
    ("api", &["tokio", "hyper", "rustix", "nix", "reqwest", "kube", "tonic"]),
    ("cluster", &["kube", "kube-client", "k8s-openapi", "reqwest", "tonic", "schemars"]),
    ("csi", &["kube", "reqwest", "rustls"]),
    ("dir", &["tokio", "serde", "libc"]),
    ("disk-image", &["tokio", "async-std", "smol", "hyper", "reqwest", "kube", "tonic"]),
    ("link", &["tokio", "hyper", "serde", "serde_json", "kube", "tonic"]),
    ("serve", &["kube", "tonic", "reqwest"]),
    ("virt", &["tokio", "hyper", "rustix", "nix", "reqwest", "kube", "tonic", "rustls"]),
    // Documents and schemas are features of api; the importer has no use for them.
    ("importer", &["serde-saphyr", "schemars", "kube", "kube-core", "k8s-openapi", "tonic"]),
    // The registry is read by the importer's process.
    (
        "cdi-source-update-poller",
        &["disk-image", "oci-client", "schemars", "kube", "kube-core", "k8s-openapi", "tonic", "reqwest"],
    ),
    ("cdi-containerimage-server", &["disk-image", "reqwest", "rustls", "clap", "kube", "tonic"]),
    ("uploadserver", &["kube", "kube-core", "k8s-openapi", "jsonwebtoken", "schemars", "tonic", "reqwest"]),
    ("uploadproxy", &["disk-image", "kube", "k8s-openapi", "tonic", "schemars"]),
    (
        "clone-source",
        &["disk-image", "kube", "kube-core", "k8s-openapi", "jsonwebtoken", "schemars", "tonic", "reqwest"],
    ),
    ("cni", &["tokio", "hyper", "kube", "tonic"]),
    ("hpp-csi", &["kube", "kube-core", "k8s-openapi", "reqwest", "disk-image", "nix"]),
    ("macpool", &["tonic", "kube", "kube-core", "k8s-openapi", "reqwest"]),
    ("operator", &["kube", "k8s-openapi", "tonic", "link", "disk-image", "reqwest"]),
    ("guest", &["tokio", "hyper", "rustls", "tonic", "kube", "virt"]),
    (
        "virt-launcher",
        &["tokio", "hyper", "http", "rustls", "tonic", "kube", "kube-core", "k8s-openapi", "reqwest"],
    ),
    ("virt-node", &["disk-image", "reqwest", "kube"]),
    ("virt-agent", &["disk-image", "reqwest", "kube"]),
    ("virt-client", &["disk-image", "reqwest", "kube", "tonic", "link", "guest"]),
];

/// Names without information about a module.
const EMPTY_NAMES: &[&str] = &["utils", "util", "helpers", "helper", "common", "misc", "manager"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf()
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(root()).output().unwrap();
    assert!(output.status.success(), "cargo {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn members() -> BTreeMap<String, Member> {
    let metadata: serde_json::Value =
        serde_json::from_str(&cargo(&["metadata", "--format-version=1", "--no-deps", "--locked"])).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(!packages.is_empty());
    let floor = |name: &str| FLOORS.iter().find(|(library, _)| *library == name).map(|(_, floor)| *floor);
    let member = |package: &serde_json::Value| {
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        let folder = manifest.parent().unwrap().strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let layer = match folder.as_str() {
            "benches" | "e2e" | "manual" => Layer::Observer,
            "e2e/guests" | "e2e/places" | "e2e/sources" => Layer::Stage,
            path if path.starts_with("lib/") || floor(&text(&package["name"])).is_some() => {
                let name = text(&package["name"]);
                Layer::Library(
                    floor(&name).unwrap_or_else(|| panic!("the library {name} has no line in FLOORS")),
                )
            }
            _ => Layer::Program,
        };
        let dependencies = package["dependencies"].as_array().unwrap().iter();
        let dependencies = dependencies.map(|one| (text(&one["name"]), one["kind"] == "dev"));
        (text(&package["name"]), Member { folder, layer, dependencies: dependencies.collect() })
    };
    packages.iter().map(member).collect()
}

/// Every `.rs` file under `folder`, relative to it, sorted.
fn sources(folder: &Path) -> Vec<String> {
    fn walk(folder: &Path, top: &Path, found: &mut Vec<String>) {
        let Ok(entries) = fs::read_dir(folder) else { return };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, top, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path.strip_prefix(top).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    let mut found = Vec::new();
    walk(folder, folder, &mut found);
    found.sort();
    found
}

/// Lines that are neither blank nor comment.
fn lines_of_code(text: &str) -> usize {
    text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with("//")).count()
}

#[test]
fn a_package_is_named_after_its_directory() {
    for (name, member) in members() {
        let folder = member.folder.rsplit('/').next().unwrap();
        // A nested program lives in the other's directory: virt-node/agent is the package virt-agent.
        let nested =
            !member.folder.starts_with("lib/") && member.folder.contains('/') && name.ends_with(folder);
        assert!(name == folder || nested, "the package {name} is in {}", member.folder);
    }
}

#[test]
fn dependencies_go_to_a_lower_floor() {
    let members = members();
    let absent: Vec<_> = FLOORS.iter().filter(|(library, _)| !members.contains_key(*library)).collect();
    assert!(absent.is_empty(), "FLOORS names libraries that do not exist: {absent:?}");
    let mut broken = Vec::new();
    for (name, member) in &members {
        for (dependency, tests_only) in &member.dependencies {
            let Some(target) = members.get(dependency) else {
                continue;
            };
            let allowed = match (member.layer, target.layer) {
                (_, Layer::Observer) | (Layer::Stage, _) => false,
                (_, Layer::Stage) => *tests_only,
                (Layer::Observer, Layer::Library(_) | Layer::Program) => true,
                (Layer::Program, Layer::Library(_)) => true,
                (Layer::Library(above), Layer::Library(below)) => below < above,
                (Layer::Program | Layer::Library(_), Layer::Program) => false,
            };
            if !allowed {
                broken.push(format!("{name} ({:?}) → {dependency} ({:?})", member.layer, target.layer));
            }
        }
    }
    assert!(broken.is_empty(), "forbidden edges: {broken:#?}");
}

#[test]
fn no_package_links_what_it_must_never_link() {
    let members = members();
    for (package, never) in NEVER_LINKED {
        let mut words = package.split(' ');
        let name = words.next().unwrap();
        assert!(members.contains_key(name), "NEVER_LINKED names {name}, which does not exist");
        // `cargo tree -p` resolves features for this package alone, as the release build does.
        let usual = ["tree", "--locked", "-p", name, "-e", "normal", "--prefix", "none", "-f", "{p}"];
        let tree = cargo(&usual.into_iter().chain(words).collect::<Vec<_>>());
        let linked: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(linked.contains(name), "cargo tree shows the package itself");
        for banned in *never {
            assert!(!linked.contains(*banned), "{name} links {banned}");
        }
    }
}

#[test]
fn main_only_starts_the_program() {
    let starts = |member: &&Member| match member.layer {
        Layer::Program => true,
        Layer::Library(_) => !member.folder.starts_with("lib/"),
        Layer::Observer | Layer::Stage => false,
    };
    for member in members().values().filter(starts) {
        let source = root().join(&member.folder).join("src");
        let programs = sources(&source.join("bin")).into_iter().map(|file| source.join("bin").join(file));
        for main in programs.chain([source.join("main.rs")]) {
            let Ok(text) = fs::read_to_string(&main) else { continue };
            let lines = lines_of_code(&text);
            assert!(
                lines <= 15,
                "{}: {lines} lines of code, 15 are enough to parse, run and exit",
                main.display()
            );
        }
    }
}

#[test]
fn every_source_file_has_a_header() {
    let mut silent = Vec::new();
    for member in members().values() {
        let folder = root().join(&member.folder);
        for file in sources(&folder).iter().filter(|file| !file.starts_with("fuzz/target")) {
            let text = fs::read_to_string(folder.join(file)).unwrap();
            if !text.trim_start_matches("#![no_main]").trim_start().starts_with("//!") {
                silent.push(format!("{}/{file}", member.folder));
            }
        }
    }
    assert!(silent.is_empty(), "files that do not open with a `//!` header: {silent:#?}");
}

#[test]
fn unsafe_code_lives_in_sys_files_only() {
    for member in members().values() {
        let folder = root().join(&member.folder);
        for file in sources(&folder.join("src")) {
            let text = fs::read_to_string(folder.join("src").join(&file)).unwrap();
            let opened = text.lines().any(|line| {
                let line = line.trim();
                line.starts_with("#")
                    && line.contains("unsafe_code")
                    && !line.contains("forbid(")
                    && !line.contains("deny(")
            });
            let name = Path::new(&file).file_name().unwrap().to_str().unwrap();
            assert!(
                !opened || name == "sys.rs",
                "{}/src/{file} opens unsafe code outside of a sys.rs",
                member.folder
            );
        }
    }
}

#[test]
fn modules_are_named_by_what_they_do() {
    for member in members().values() {
        for file in sources(&root().join(&member.folder).join("src")) {
            for part in file.trim_end_matches(".rs").split('/') {
                assert!(
                    !EMPTY_NAMES.contains(&part),
                    "{}/src/{file}: a name that says nothing",
                    member.folder
                );
            }
        }
    }
}
