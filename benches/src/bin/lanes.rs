//! Runs every test of the workspace in groups, two at a time, so that `make test` ends in time: most tests wait for programs
//! and timers, not for a processor.
//!
//! A group is a process: the unit tests of a crate, or one module of a package's integration tests. The tests of a module
//! share their cluster, statics and allocator with each other and with no other module.
//!
//! ```text
//! lane 1: groups with a cluster, longest first ──► other groups                ┐
//! lane 2: other groups ──► groups with a cluster, shortest first               ┴─► groups that run alone
//! ```
//!
//! Two groups share the processors, so a test with a deadline may fail because of the other group. The last step runs
//! up to five failed tests again, each group alone: that run decides, and the summary names the tests that needed it. A
//! program that crashed, or more failures, are not run again.
//!
//! With `--single` there is one lane and one run, as `make soak` has it: its bars are for a machine that does nothing else.
//!
//! Not here: which tests there are (cargo and the programs' own lists), and their build.

#![expect(clippy::print_stdout, reason = "what it prints is its result")]

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde::Deserialize;

/// The root of the integration tests of a package that has several subjects: a module each.
const INTEGRATION: &str = "tests/integration/main.rs";
/// The folder of the groups that start clusters.
const CLUSTERS: &str = "e2e/";
/// Of those, the ones that run longest, longest first; all others come after them.
const LONGEST: [&str; 4] = ["e2e/platform", "e2e/platform_nodes", "e2e/storage", "e2e/hpp_csi"];
/// Groups that run alone: they measure the whole machine, or count its loop devices or clusters.
const ALONE: [&str; 3] = ["e2e/macpool", "e2e/cluster", "importer/space"];

/// Most failed tests that run again.
const AGAIN: usize = 5;

/// Run the workspace's tests, two groups at a time
#[derive(Debug, Parser)]
#[command(
    after_help = "Examples:\n  lanes             all\n  lanes hpp-csi/    those of one package\n  lanes e2e/storage one module"
)]
struct Arguments {
    /// Only groups with this in their name, FOLDER/MODULE or FOLDER/TARGET
    #[arg(default_value = "")]
    word: String,
    /// One group at a time, each test once
    #[arg(long)]
    single: bool,
}

/// Tests that run in one process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Group {
    /// Folder of their package and their module, such as `e2e/storage`, or the name of the program that has no other tests;
    /// unit tests have the name of the crate.
    name: String,
    /// Where they run: the package's folder.
    folder: PathBuf,
    executable: PathBuf,
    /// Their names, where the program has other tests too.
    tests: Option<Vec<String>>,
}

/// A line of cargo about a program that it built: the fields that are used.
#[derive(Debug, Deserialize)]
struct Message {
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    src_path: PathBuf,
}

#[derive(Debug, Deserialize)]
struct Profile {
    /// Whether it is a test program.
    test: bool,
}

/// Builds the test programs and lists their groups.
fn groups() -> Result<Vec<Group>> {
    let root = std::env::current_dir()?;
    let built = Command::new("cargo")
        .args(["test", "--locked", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("cargo does not run")?;
    ensure!(built.status.success(), "the tests do not build");
    let mut groups = Vec::new();
    for line in built.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let message: Message =
            serde_json::from_slice(line).context("cargo printed something else than JSON")?;
        let (Some(manifest), Some(target)) = (message.manifest_path, message.target) else { continue };
        let Some(executable) = message.executable.filter(|_| message.profile.is_some_and(|built| built.test))
        else {
            continue;
        };
        let folder = manifest.parent().context("a manifest without a folder")?.to_owned();
        let inside = folder
            .strip_prefix(&root)
            .context("a package outside of the workspace: start this at its root")?;
        let inside = inside.display().to_string();
        if target.src_path.ends_with(INTEGRATION) {
            let list = list(&executable, &folder)?;
            groups.extend(modules(&list).into_iter().map(|(module, tests)| Group {
                name: format!("{inside}/{module}"),
                folder: folder.clone(),
                executable: executable.clone(),
                tests: Some(tests),
            }));
        } else {
            groups.push(Group { name: format!("{inside}/{}", target.name), folder, executable, tests: None });
        }
    }
    Ok(groups)
}

/// The list of its tests that a test program prints.
fn list(executable: &Path, folder: &Path) -> Result<String> {
    let listed = Command::new(executable)
        .args(["--list", "--format", "terse"])
        .current_dir(folder)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{} does not start", executable.display()))?;
    ensure!(listed.status.success(), "{} does not list its tests", executable.display());
    String::from_utf8(listed.stdout).context("the names of tests are text")
}

/// The tests of a list, by their outermost module. A test outside of all modules is a module of its own.
fn modules(list: &str) -> BTreeMap<String, Vec<String>> {
    let mut modules: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for test in list.lines().filter_map(|line| line.strip_suffix(": test")) {
        let module = test.split_once("::").map_or(test, |(module, _)| module);
        modules.entry(module.to_owned()).or_default().push(test.to_owned());
    }
    modules
}

/// The groups that are left to run.
#[derive(Debug, Default)]
struct Queue {
    /// With a cluster, longest first.
    clusters: VecDeque<Group>,
    others: VecDeque<Group>,
    alone: VecDeque<Group>,
}

impl Queue {
    fn new(groups: Vec<Group>) -> Self {
        let mut queue = Self::default();
        for group in groups {
            let name = group.name.as_str();
            if ALONE.contains(&name) {
                queue.alone.push_back(group);
            } else if name.starts_with(CLUSTERS) {
                queue.clusters.push_back(group);
            } else {
                queue.others.push_back(group);
            }
        }
        let place = |group: &Group| LONGEST.iter().position(|name| *name == group.name);
        queue.clusters.make_contiguous().sort_by_key(|group| place(group).unwrap_or(LONGEST.len()));
        queue
    }

    fn next(&mut self, lane: Lane) -> Option<Group> {
        match lane {
            Lane::Clusters => self.clusters.pop_front().or_else(|| self.others.pop_front()),
            Lane::Others => self.others.pop_front().or_else(|| self.clusters.pop_back()),
            Lane::Alone => self.alone.pop_front(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Lane {
    Clusters,
    Others,
    Alone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    /// Its failed tests passed in a run of their own.
    PassedAlone,
    Failed,
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Passed => "ok",
            Self::PassedAlone => "alone",
            Self::Failed => "FAILED",
        }
    }
}

/// How a group ended.
#[derive(Debug)]
struct Outcome {
    group: Group,
    verdict: Verdict,
    took: Duration,
    /// Its output.
    output: String,
}

fn run(group: &Group) -> Result<Outcome> {
    let begun = Instant::now();
    // One file for both streams, so that their order stays.
    let file = tempfile::NamedTempFile::new()?;
    let mut command = Command::new(&group.executable);
    if let Some(tests) = &group.tests {
        // Whole names: without --exact, `space::` would select `crate_space::` too.
        command.arg("--exact").args(tests);
    }
    let status = command
        .current_dir(&group.folder)
        .env("CARGO_MANIFEST_DIR", &group.folder)
        .stdin(Stdio::null())
        .stdout(file.reopen()?)
        .stderr(file.as_file().try_clone()?)
        .status()
        .with_context(|| format!("{} does not start", group.executable.display()))?;
    let output = String::from_utf8_lossy(&std::fs::read(file.path())?).into_owned();
    let verdict = if status.success() { Verdict::Passed } else { Verdict::Failed };
    Ok(Outcome { group: group.clone(), verdict, took: begun.elapsed(), output })
}

/// The tests that failed, from the list at the end of a program's output; none: it ended without one.
fn failures(output: &str) -> Vec<String> {
    let list = output.rsplit_once("\nfailures:\n").map_or("", |(_, list)| list);
    list.lines().map_while(|line| line.strip_prefix("    ")).map(ToOwned::to_owned).collect()
}

/// Runs failed tests again, alone, where they are few.
fn run_again(ended: &mut [Outcome]) -> Result<()> {
    let failed = |outcome: &Outcome| outcome.verdict == Verdict::Failed;
    let count: usize =
        ended.iter().filter(|outcome| failed(outcome)).map(|one| failures(&one.output).len()).sum();
    if count > AGAIN {
        return Ok(());
    }
    for outcome in ended.iter_mut().filter(|outcome| failed(outcome)) {
        let tests = failures(&outcome.output);
        if tests.is_empty() {
            continue;
        }
        println!("     Running {} again: {}", outcome.group.name, tests.join(", "));
        let again = run(&Group { tests: Some(tests), ..outcome.group.clone() })?;
        if again.verdict == Verdict::Passed {
            outcome.verdict = Verdict::PassedAlone;
        } else {
            outcome.output = again.output;
        }
    }
    Ok(())
}

/// Runs what is in a lane. Prints what passes at once, and keeps what fails for the end.
fn drive(lane: Lane, queue: &Mutex<Queue>, ended: &Mutex<Vec<Outcome>>) -> Result<()> {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next(lane);
        let Some(group) = next else { return Ok(()) };
        let outcome = run(&group)?;
        let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = outcome.took.as_secs_f64();
        let name = &outcome.group.name;
        if outcome.verdict == Verdict::Passed {
            println!("     Running {name} ({seconds:.1} s)\n{}", outcome.output);
        } else {
            println!("     Running {name} ({seconds:.1} s): FAILED, its output is at the end\n");
        }
        ended.push(outcome);
    }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let groups: Vec<Group> =
        groups()?.into_iter().filter(|group| group.name.contains(&arguments.word)).collect();
    if groups.is_empty() {
        bail!("no test module or program has {:?} in its name", arguments.word);
    }
    let (queue, ended) = (Mutex::new(Queue::new(groups)), Mutex::default());
    std::thread::scope(|scope| {
        let second = (!arguments.single).then(|| scope.spawn(|| drive(Lane::Others, &queue, &ended)));
        drive(Lane::Clusters, &queue, &ended)?;
        second.map_or(Ok(()), |lane| lane.join().unwrap_or_else(|_| bail!("a lane ended")))
    })?;
    drive(Lane::Alone, &queue, &ended)?;
    let mut ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    if !arguments.single {
        run_again(&mut ended)?;
    }
    ended.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
    for outcome in &ended {
        let (seconds, word) = (outcome.took.as_secs_f64(), outcome.verdict.word());
        println!("{seconds:8.1} s  {word:6}  {}", outcome.group.name);
    }
    for outcome in ended.iter().filter(|outcome| outcome.verdict != Verdict::Passed) {
        println!("\n--- {} ({})\n{}", outcome.group.name, outcome.verdict.word(), outcome.output);
    }
    for outcome in ended.iter().filter(|outcome| outcome.verdict == Verdict::PassedAlone) {
        println!("passed alone only, {}: {}", outcome.group.name, failures(&outcome.output).join(", "));
    }
    let failed = ended.iter().any(|outcome| outcome.verdict == Verdict::Failed);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_go_longest_first_and_from_the_tail_in_the_other_lane() {
        let of = |name: &str| Group {
            name: name.into(),
            folder: PathBuf::new(),
            executable: PathBuf::new(),
            tests: None,
        };
        let names = [
            "a/lib",
            "e2e/upload",
            "e2e/storage",
            "e2e/cluster",
            "b/tests",
            "e2e/platform",
            "importer/space",
        ];
        let mut queue = Queue::new(names.map(of).to_vec());
        let mut take = |lane| queue.next(lane).map(|group| group.name);
        assert_eq!(take(Lane::Clusters).unwrap(), "e2e/platform");
        assert_eq!(take(Lane::Others).unwrap(), "a/lib");
        assert_eq!(take(Lane::Others).unwrap(), "b/tests");
        assert_eq!(take(Lane::Others).unwrap(), "e2e/upload");
        assert_eq!(take(Lane::Clusters).unwrap(), "e2e/storage");
        assert_eq!((take(Lane::Clusters), take(Lane::Others)), (None, None));
        assert_eq!(take(Lane::Alone).unwrap(), "e2e/cluster");
        assert_eq!(take(Lane::Alone).unwrap(), "importer/space");
        assert_eq!(take(Lane::Alone), None);
    }

    #[test]
    fn failed_tests_are_those_of_the_last_list() {
        let text = "running 2 tests\ntest a::b ... FAILED\ntest c ... ok\n\nfailures:\n\n---- a::b stdout ----\n\
                    printed\nfailures:\n    c\n\n\nfailures:\n    a::b\n    d\n\ntest result: FAILED. 1 passed\n";
        assert_eq!(failures(text), ["a::b", "d"]);
        assert_eq!(failures("running 2 tests\nkilled"), Vec::<String>::new());
    }

    /// A shell script takes the place of a test program; its first run fails.
    #[test]
    fn a_failed_test_is_decided_by_a_run_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let group = |name: &str, script: &str| {
            let executable = folder.path().join(name);
            std::fs::write(&executable, format!("#!/bin/sh\n{script}")).unwrap();
            let mut mode = std::fs::metadata(&executable).unwrap().permissions();
            std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o755);
            std::fs::set_permissions(&executable, mode).unwrap();
            Group { name: name.into(), folder: folder.path().to_owned(), executable, tests: None }
        };
        let list =
            |tests: &str| format!("printf '\\nfailures:\\n{tests}\\ntest result: FAILED\\n'; exit 101");
        let once = format!("echo \"$@\" >> ran; [ $(wc -l < ran) = 2 ] && exit; {}", list("    a\\n"));
        let ended = |groups: &[Group]| {
            let mut ended: Vec<Outcome> = groups.iter().map(|group| run(group).unwrap()).collect();
            run_again(&mut ended).unwrap();
            ended.iter().map(|outcome| outcome.verdict).collect::<Vec<_>>()
        };
        let always = group("always", &list("    b\\n"));
        let crashed = group("crashed", "kill -9 $$");
        let groups = [group("once", &once), always.clone(), crashed, group("passes", "exit 0")];
        assert_eq!(ended(&groups), [Verdict::PassedAlone, Verdict::Failed, Verdict::Failed, Verdict::Passed]);
        assert_eq!(std::fs::read_to_string(folder.path().join("ran")).unwrap(), "\n--exact a\n");
        // Too many are a defect of the tree, whatever they do alone.
        std::fs::remove_file(folder.path().join("ran")).unwrap();
        let many = group("many", &list(&"    c\\n".repeat(AGAIN)));
        assert_eq!(ended(&[groups[0].clone(), many]), [Verdict::Failed, Verdict::Failed]);
    }

    #[test]
    fn integration_tests_are_grouped_by_their_outermost_module() {
        let list = "space::fills: test\nalone: test\ncrate_space::deep::one: test\nspace::deep::two: test\n\
                    space::speed: benchmark\n\n3 tests, 1 benchmark\n";
        let modules = modules(list);
        let names: Vec<&str> = modules.keys().map(String::as_str).collect();
        assert_eq!(names, ["alone", "crate_space", "space"]);
        assert_eq!(modules["space"], ["space::fills", "space::deep::two"]);
        assert_eq!(modules["crate_space"], ["crate_space::deep::one"]);
        assert_eq!(modules["alone"], ["alone"]);
    }
}
