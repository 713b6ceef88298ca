//! Kubernetes' own tests of a CSI driver, its External.Storage suite, on this driver. `suite/driver.yaml` declares the
//! driver's capabilities, `suite/cases.json` lists the cases that fail, those that are left out and those with a class of
//! their own, with reasons; both are the same for stock sidecars and for the agent. Part of `make soak`, which builds the
//! suite, and which also runs its slow cases and those that need the cluster for themselves. FERROVIRT_FOCUS, a regular
//! expression, chooses cases by their names, but for those with a class of their own.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use e2e::storage::DRIVER;
use e2e::{node, programs};
use image::archive::{self, Tag};
use image::layer::{self, Member};
use serde::Deserialize;
use serde_json::json;

use crate::hpp_csi::space::Space;
use crate::hpp_csi::{CLASS, CLUSTER, alone, provisioner};

/// The registry of all images, which no node asks, because it has them.
const REGISTRY: &str = "localhost/suite";
/// Images that the cases use: the same files under each name.
const IMAGES: [&str; 5] = ["agnhost", "busybox", "jessie-dnsutils", "nginx", "pause"];
/// Libraries and the loader, which bash and GNU dd need.
const LIBRARIES: [&str; 3] =
    ["lib/x86_64-linux-gnu/libc.so.6", "lib/x86_64-linux-gnu/libtinfo.so.6", "lib64/ld-linux-x86-64.so.2"];
/// Cases at once.
const AT_ONCE: &str = "4";
/// The name of the VolumeAttributesClass in the driver's declaration.
const ATTRIBUTES: &str = "suite-thin";
/// A copy of the class in the driver's declaration that binds claims at once.
const IMMEDIATE: &str = "suite-immediate";
/// Parts of the names of cases that only full counts run.
const LONG: [&str; 2] = ["[Serial]", "[Slow]"];

/// Cases that do not pass, by their names or parts of them, each with the reason.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Exceptions {
    /// Names of cases that run and fail.
    failing: BTreeMap<String, String>,
    /// Parts of the names of cases that do not run.
    left_out: BTreeMap<String, String>,
    /// Parts of the names of cases that run with a class that binds claims at once.
    immediate: BTreeMap<String, String>,
}

/// A report of ginkgo: runs of suites.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Report {
    spec_reports: Vec<Case>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Case {
    container_hierarchy_texts: Option<Vec<String>>,
    leaf_node_text: String,
    leaf_node_type: String,
    state: String,
    #[serde(default)]
    run_time: u64,
    failure: Option<Failure>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Failure {
    message: String,
}

impl Case {
    /// Without the words that all cases share.
    fn name(&self) -> String {
        let texts = self.container_hierarchy_texts.iter().flatten().skip(1).map(String::as_str);
        let words: Vec<&str> = texts.chain([self.leaf_node_text.as_str()]).collect();
        words.join(" ")
    }

    fn failed(&self) -> bool {
        !["passed", "skipped", "pending"].contains(&self.state.as_str())
    }
}

/// Gives the node the images that the suite's cases name: a shell with small tools, GNU dd, agnhost.
fn import_images(suite: &Path, repositories: &Path, folder: &Path) {
    let listed = Command::new(suite.join("external"))
        .args(["--provider=skeleton", "--list-images"])
        .env("KUBE_TEST_REPO_LIST", repositories)
        .output()
        .unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let tags: Vec<Tag> = listed
        .lines()
        .filter_map(|image| image.rsplit_once(':'))
        .filter_map(|(repository, version)| {
            let name = repository.strip_prefix(REGISTRY)?.strip_prefix('/')?;
            let entrypoint = if name == "agnhost" { "/agnhost" } else { "/bin/sh" };
            IMAGES.contains(&name).then(|| Tag {
                repository: repository.to_owned(),
                name: version.to_owned(),
                entrypoint: vec![entrypoint.to_owned()],
                user: None,
            })
        })
        .collect();
    assert!(tags.len() >= IMAGES.len(), "{listed}");
    let mut members = node::shell().unwrap();
    members.insert("agnhost".into(), Member::File { from: suite.join("agnhost"), mode: 0o755 });
    // busybox's dd cannot write without the page cache, and busybox's shell prefers it to a program of that name.
    members.insert("bin/sh".into(), Member::File { from: "/bin/bash".into(), mode: 0o755 });
    members.insert("bin/dd".into(), Member::File { from: "/bin/dd".into(), mode: 0o755 });
    for library in LIBRARIES {
        members.insert(library.into(), Member::File { from: Path::new("/").join(library), mode: 0o755 });
    }
    let layer = layer::pack(&members, &folder.join("suite.layer")).unwrap();
    let archive = folder.join("suite.tar");
    archive::write(&archive, &[layer], &tags).unwrap();
    CLUSTER.import_images(&archive).unwrap();
}

/// A regular expression for this text.
fn exactly(text: &str) -> String {
    text.replace('[', r"\[").replace(']', r"\]")
}

/// Runs the cases of the suite that these regular expressions choose and leave out, with this declaration of the driver.
fn run(folder: &Path, suite: &Path, declared: &str, (focus, skipped): (&str, &[String])) -> Vec<Case> {
    let declaration = folder.join("driver.yaml");
    fs::write(&declaration, declared).unwrap();
    let output = fs::File::create(folder.join("output")).unwrap();
    let ended = Command::new(suite.join("ginkgo"))
        .arg(format!("--procs={AT_ONCE}"))
        .args(["--timeout=90m", "--json-report=report.json"])
        .arg(format!("--output-dir={}", folder.display()))
        .arg(format!("--focus={focus}"))
        .arg(format!("--skip={}", skipped.join("|")))
        .arg(folder.join("external.test"))
        .arg("--")
        .arg(format!("--storage.testdriver={}", declaration.display()))
        .arg(format!("--kubeconfig={}", CLUSTER.kubeconfig().display()))
        .arg(format!("--kubectl-path={}", programs::built("kubernetes").unwrap().join("kubectl").display()))
        .args(["--provider=skeleton", "--num-nodes=1"])
        .env("KUBE_TEST_REPO_LIST", folder.join("repositories.yaml"))
        .current_dir(folder)
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .status()
        .unwrap();
    let output = fs::read_to_string(folder.join("output")).unwrap();
    if let Some(kept) = std::env::var_os("FERROVIRT_CLUSTER_LOGS") {
        fs::create_dir_all(&kept).unwrap();
        let log =
            fs::File::options().create(true).append(true).open(Path::new(&kept).join("external-storage.log"));
        log.unwrap().write_all(output.as_bytes()).unwrap();
    }
    let report = fs::read_to_string(folder.join("report.json"));
    let report = report.unwrap_or_else(|error| panic!("{ended}: {error}: {output}"));
    let runs: Vec<Report> = serde_json::from_str(&report).unwrap();
    runs.into_iter().flat_map(|run| run.spec_reports).collect()
}

#[test]
#[ignore = "needs Kubernetes' suite, which `make soak` builds"]
fn external_storage_fails_in_listed_cases_only() {
    let _driver = alone();
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/integration/hpp_csi/suite");
    let listed: Exceptions =
        serde_json::from_str(&fs::read_to_string(here.join("cases.json")).unwrap()).unwrap();
    let suite = programs::built("suite").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let repositories = folder.path().join("repositories.yaml");
    let registries = ["promoterE2eRegistry", "gcRegistry"];
    let registries: Vec<String> = registries.iter().map(|name| format!("{name}: {REGISTRY}\n")).collect();
    fs::write(&repositories, registries.concat()).unwrap();
    import_images(&suite, &repositories, folder.path());

    // Directories are thin: they take the class, too.
    let class = json!({"driverName": DRIVER, "parameters": {"allocation": "thin"}});
    let space = Space::new("suite");
    space.create("VolumeAttributesClass", ATTRIBUTES, &class);
    let soak = std::env::var_os("FERROVIRT_SOAK").is_some();
    let mut skipped: Vec<String> = listed.left_out.keys().map(|part| exactly(part)).collect();
    if !soak {
        skipped.extend(LONG.map(exactly));
    }
    let focus = std::env::var("FERROVIRT_FOCUS").unwrap_or_else(|_| "External.Storage".to_owned());
    // ginkgo runs programs of this ending.
    std::os::unix::fs::symlink(suite.join("external"), folder.path().join("external.test")).unwrap();
    let declared = fs::read_to_string(here.join("driver.yaml")).unwrap();
    let class = json!({
        "provisioner": DRIVER, "parameters": {"storagePool": "legacy"},
        "volumeBindingMode": "Immediate", "allowVolumeExpansion": true,
    });
    space.create("StorageClass", IMMEDIATE, &class);
    let at_once = declared.replacen(CLASS, IMMEDIATE, 1);
    assert_ne!(at_once, declared);
    let immediate: Vec<String> = listed.immediate.keys().map(|part| exactly(part)).collect();
    let others: Vec<String> = skipped.iter().chain(&immediate).cloned().collect();
    let mut cases = run(folder.path(), &suite, &declared, (&focus, &others));
    if soak {
        let again = run(folder.path(), &suite, &at_once, (&immediate.join("|"), &skipped));
        let chosen: BTreeSet<String> =
            again.iter().filter(|case| case.state != "skipped").map(Case::name).collect();
        assert!(!chosen.is_empty(), "no case has one of these in its name: {immediate:?}");
        cases.retain(|case| !chosen.contains(&case.name()));
        cases.extend(again.into_iter().filter(|case| chosen.contains(&case.name())));
    }
    let (cases, others): (Vec<&Case>, Vec<&Case>) =
        cases.iter().partition(|case| case.leaf_node_type == "It");
    assert!(!others.iter().any(|case| case.failed()), "{others:?}");
    let names = |of: &dyn Fn(&Case) -> bool| -> BTreeSet<String> {
        cases.iter().filter(|case| of(case)).map(|case| case.name()).collect()
    };
    let (run, failed) = (names(&|case| case.state != "skipped"), names(&Case::failed));
    for case in cases.iter().filter(|case| case.failed()) {
        let message = case.failure.as_ref().map(|failure| failure.message.as_str()).unwrap_or_default();
        println!("{} after {} s: {}: {message}", case.state, case.run_time / 1_000_000_000, case.name());
    }
    // The suite gives a reason for each case that it leaves out by the declared capabilities.
    let mut left_out: BTreeMap<&str, u32> = BTreeMap::new();
    for case in cases.iter().filter(|case| case.state == "skipped") {
        let message = case.failure.as_ref().map(|failure| failure.message.as_str()).unwrap_or_default();
        *left_out.entry(message).or_default() += 1;
    }
    println!("left out: {left_out:#?}");
    println!("{:?}: {} of {} cases run, {} failed", provisioner(), run.len(), cases.len(), failed.len());
    assert!(run.len() > if focus == "External.Storage" { 50 } else { 0 }, "{} cases run", run.len());
    let all = names(&|_| true);
    let unknown: Vec<&String> = listed.failing.keys().filter(|name| !all.contains(*name)).collect();
    assert!(unknown.is_empty(), "cases that the suite does not have: {unknown:?}");
    let is_unknown = |part: &&String| !all.iter().any(|name| name.contains(part.as_str()));
    let unknown: Vec<&String> = listed.left_out.keys().filter(is_unknown).collect();
    assert!(unknown.is_empty(), "no case of the suite has these in its name: {unknown:?}");
    let expected: BTreeSet<String> = listed.failing.into_keys().filter(|name| run.contains(name)).collect();
    assert_eq!(failed, expected);
}
