//! Rules over the whole workspace: who may depend on whom, what a program never links, how a source file looks, and
//! that the code map of ARCHITECTURE.md names exactly the files that exist.
//!
//! Everything here is read from `cargo metadata`, `cargo tree` and the tree of files; nothing is built or run.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// What a package of the workspace is, by the folder it lives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    /// Under `lib/`: may not see any other package of the workspace.
    Library,
    /// A folder at the top: may see libraries only.
    Program,
    /// `benches` and `e2e`: see everyone, nobody sees them.
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
    ("csi", &["kube", "reqwest", "rustls"]),
    ("disk-image", &["tokio", "async-std", "smol", "hyper", "reqwest", "kube", "tonic"]),
    ("link", &["tokio", "hyper", "serde", "serde_json", "kube", "tonic"]),
    ("serve", &["kube", "tonic", "reqwest"]),
    // Documents and schemas are features of api; the importer has no use for them.
    ("importer", &["serde-saphyr", "schemars", "kube", "kube-core", "k8s-openapi", "tonic"]),
    ("cdi-containerimage-server", &["disk-image", "reqwest", "rustls", "clap", "kube", "tonic"]),
    // The proxy is a feature; the server is built without.
    (
        "uploadserver --no-default-features",
        &["kube", "kube-core", "k8s-openapi", "jsonwebtoken", "schemars", "tonic", "reqwest"],
    ),
    ("uploadserver", &["tonic", "reqwest", "schemars"]),
    ("cni", &["tokio", "hyper", "kube", "tonic"]),
    ("hpp-csi", &["kube", "kube-core", "k8s-openapi", "reqwest", "disk-image", "nix"]),
    ("macpool", &["tonic"]),
    ("operator", &["tonic"]),
    ("virt-node", &["disk-image", "reqwest", "kube"]),
];

/// Names that say nothing about what a module does.
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
    let member = |package: &serde_json::Value| {
        let manifest = PathBuf::from(text(&package["manifest_path"]));
        let folder = manifest.parent().unwrap().strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let layer = match folder.as_str() {
            "benches" | "e2e" => Layer::Observer,
            "e2e/guests" | "e2e/places" | "e2e/sources" => Layer::Stage,
            path if path.starts_with("lib/") => Layer::Library,
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
fn folder_and_package_have_one_name() {
    for (name, member) in members() {
        let folder = member.folder.rsplit('/').next().unwrap();
        assert_eq!(folder, name, "the folder and its package");
    }
}

#[test]
fn programs_depend_on_libraries_only_and_libraries_on_none_of_ours() {
    let members = members();
    let mut broken = Vec::new();
    for (name, member) in &members {
        for (dependency, tests_only) in &member.dependencies {
            let Some(target) = members.get(dependency) else {
                continue;
            };
            let allowed = match (member.layer, target.layer) {
                (_, Layer::Observer) | (Layer::Stage, _) => false,
                (_, Layer::Stage) => *tests_only,
                (Layer::Observer, Layer::Library | Layer::Program) => true,
                (Layer::Program, Layer::Library) => true,
                (Layer::Program | Layer::Library, Layer::Program) | (Layer::Library, Layer::Library) => false,
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
    let mut checked = 0;
    for (package, never) in NEVER_LINKED {
        let mut words = package.split(' ');
        let name = words.next().unwrap();
        if !members.contains_key(name) {
            continue;
        }
        // `cargo tree -p` resolves features for this package alone, as the release build does.
        let usual = ["tree", "--locked", "-p", name, "-e", "normal", "--prefix", "none", "-f", "{p}"];
        let tree = cargo(&usual.into_iter().chain(words).collect::<Vec<_>>());
        let linked: BTreeSet<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
        assert!(linked.contains(name), "cargo tree shows the package itself");
        for banned in *never {
            assert!(!linked.contains(*banned), "{name} links {banned}");
        }
        checked += 1;
    }
    assert!(checked >= 3, "the table names packages that exist");
}

#[test]
fn main_only_starts_the_program() {
    for member in members().values().filter(|member| member.layer == Layer::Program) {
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
fn every_source_file_says_what_it_is() {
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

/// Path of every module as the code map writes it: files as they are, a module with a folder as `folder/`; `lib.rs`,
/// `main.rs` and `mod.rs` stand for their folder and have no line of their own.
fn modules(source: &Path) -> BTreeMap<String, PathBuf> {
    let mut modules = BTreeMap::new();
    for file in sources(source) {
        let path = source.join(&file);
        match file.rsplit_once('/') {
            None if file == "lib.rs" || file == "main.rs" => {}
            Some((folder, "mod.rs")) => {
                modules.insert(format!("{folder}/"), path);
            }
            Some(("bin", _)) | Some(_) | None => {
                modules.insert(file, path);
            }
        }
    }
    modules
}

/// The first sentence of a file's header, to offer as the text of a missing line.
fn summary(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    let header: Vec<&str> = text
        .lines()
        .map_while(|line| line.strip_prefix("//!"))
        .map(str::trim)
        .take_while(|line| !line.is_empty())
        .collect();
    let header = header.join(" ");
    let first = header.split_once(". ").map_or(header.as_str(), |(first, _)| first);
    first.trim_end_matches('.').replace("[`", "`").replace("`]", "`")
}

/// The code map as written: per package the lines of its modules. "### `folder`" opens a package; "- `path`: what it
/// is" is one of its modules, relative to folder/src.
fn written_map(map: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let quoted = |line: &str| line.split('`').nth(1).unwrap_or_default().to_owned();
    let mut written: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let mut package = String::new();
    for line in map.lines() {
        if line.starts_with("### `") {
            package = quoted(line);
            written.entry(package.clone()).or_default();
        } else if line.starts_with("- `") {
            let job = line.splitn(3, '`').nth(2).unwrap_or_default();
            assert!(job.trim().len() > 10, "a line without a job: {line}");
            let lines = written.get_mut(&package).unwrap();
            lines.insert(quoted(line), line.to_owned());
        }
    }
    written
}

/// With FERROVIRT_BLESS=1 the map is put right instead: missing lines are added with the first sentence of the file's
/// header, stale ones removed, the words of the others kept.
#[test]
fn the_code_map_names_exactly_the_files_that_exist() {
    let file = root().join("ARCHITECTURE.md");
    let text = fs::read_to_string(&file).unwrap();
    let (before, map) =
        text.split_once("\n## Code map\n").expect("ARCHITECTURE.md has a section `## Code map`");
    let map = map.split("\n## ").next().unwrap();
    let written = written_map(map);
    let trees: BTreeMap<String, BTreeMap<String, PathBuf>> = members()
        .into_values()
        .map(|member| {
            let files = modules(&root().join(&member.folder).join("src"));
            (member.folder, files)
        })
        .collect();

    if std::env::var_os("FERROVIRT_BLESS").is_some() {
        let mut right = String::new();
        let mut lines = map.lines().filter(|line| !line.starts_with("- `")).peekable();
        while let Some(line) = lines.next() {
            right.push_str(line);
            right.push('\n');
            let package = line.strip_prefix("### `").and_then(|rest| rest.split('`').next());
            let Some(files) = package.and_then(|package| trees.get(package)) else { continue };
            // The words between a package's heading and its modules stay where they are.
            let mut words = String::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with("##")) {
                words.push_str(line);
                words.push('\n');
            }
            if !words.trim().is_empty() {
                right.push_str(&format!("\n{}\n", words.trim()));
            }
            right.push('\n');
            let known = &written[package.unwrap_or_default()];
            for (file, path) in files {
                let line =
                    known.get(file).cloned().unwrap_or_else(|| format!("- `{file}`: {}", summary(path)));
                right.push_str(&line);
                right.push('\n');
            }
            right.push('\n');
        }
        let right = right.trim_end().to_owned() + "\n";
        let after = &text[before.len() + "\n## Code map\n".len() + map.len()..];
        fs::write(&file, format!("{before}\n## Code map\n{right}{after}")).unwrap();
        return;
    }

    let mut missing = Vec::new();
    let mut stale: Vec<String> =
        written.keys().filter(|package| !trees.contains_key(*package)).cloned().collect();
    for (package, files) in &trees {
        let Some(lines) = written.get(package) else {
            missing.push(format!("### `{package}`"));
            continue;
        };
        let absent = files.iter().filter(|(file, _)| !lines.contains_key(*file));
        missing.extend(absent.map(|(file, path)| format!("({package}) - `{file}`: {}", summary(path))));
        stale.extend(
            lines.keys().filter(|line| !files.contains_key(*line)).map(|line| format!("({package}) {line}")),
        );
    }
    let hint = "FERROVIRT_BLESS=1 cargo test -p benches --test layers code_map puts it right";
    assert!(
        missing.is_empty(),
        "missing in the code map of ARCHITECTURE.md ({hint}):\n{}",
        missing.join("\n")
    );
    assert!(stale.is_empty(), "no longer there, but in the code map ({hint}):\n{}", stale.join("\n"));
}
