//! Runs every test program of the workspace, two at a time, so that `make test` ends in time: most tests wait for something
//! other than a processor.
//!
//! ```text
//! lane 1: programs with a cluster, longest first ──► other programs            ┐
//! lane 2: other programs ──► programs with a cluster, shortest first           ┴─► programs that run alone
//! ```
//!
//! `make soak` does not use it: its bars are for a machine that does nothing else.
//!
//! Not here: which tests there are (cargo), and their build.

#![expect(clippy::print_stdout, reason = "what it prints is its result")]

use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde::Deserialize;

/// The folder of the programs that start clusters.
const CLUSTERS: &str = "e2e/";
/// Of those, the ones that run longest, longest first; all others come after them.
const LONGEST: [&str; 4] = ["e2e/platform", "e2e/platform_nodes", "e2e/storage", "e2e/hpp_csi"];
/// Programs that run alone: they measure the whole machine, or count its loop devices or clusters.
const ALONE: [&str; 3] = ["e2e/macpool", "e2e/cluster", "importer/space"];

/// Run the workspace's test programs, two at a time
#[derive(Debug, Parser)]
#[command(
    after_help = "Examples:\n  lanes             all\n  lanes hpp-csi/    those of one package\n  lanes e2e/storage one program"
)]
struct Arguments {
    /// Only programs whose name, FOLDER/TARGET, contains this
    #[arg(default_value = "")]
    word: String,
}

/// A test program.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    /// Folder of its package and name of its target, such as `e2e/storage`; unit tests have the name of the crate.
    name: String,
    /// Where it runs: the package's folder.
    folder: PathBuf,
    executable: PathBuf,
}

/// A line that cargo prints of what it built, as far as it is used.
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
}

#[derive(Debug, Deserialize)]
struct Profile {
    /// Whether it is a test program.
    test: bool,
}

/// Builds the test programs.
fn programs() -> Result<Vec<Program>> {
    let root = std::env::current_dir()?;
    let built = Command::new("cargo")
        .args(["test", "--locked", "--workspace", "--no-run", "--message-format=json-render-diagnostics"])
        .stderr(Stdio::inherit())
        .output()
        .context("cargo does not run")?;
    ensure!(built.status.success(), "the tests do not build");
    let mut programs = Vec::new();
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
        programs.push(Program { name: format!("{}/{}", inside.display(), target.name), folder, executable });
    }
    Ok(programs)
}

/// What is left to run.
#[derive(Debug, Default)]
struct Queue {
    /// With a cluster, longest first.
    clusters: VecDeque<Program>,
    others: VecDeque<Program>,
    alone: VecDeque<Program>,
}

impl Queue {
    fn new(programs: Vec<Program>) -> Self {
        let mut queue = Self::default();
        for program in programs {
            let name = program.name.as_str();
            if ALONE.contains(&name) {
                queue.alone.push_back(program);
            } else if name.starts_with(CLUSTERS) {
                queue.clusters.push_back(program);
            } else {
                queue.others.push_back(program);
            }
        }
        let place = |program: &Program| LONGEST.iter().position(|name| *name == program.name);
        queue.clusters.make_contiguous().sort_by_key(|program| place(program).unwrap_or(LONGEST.len()));
        queue
    }

    fn next(&mut self, lane: Lane) -> Option<Program> {
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

/// How a program ended.
#[derive(Debug)]
struct Outcome {
    name: String,
    passed: bool,
    took: Duration,
    /// What it printed.
    output: String,
}

fn run(program: &Program) -> Result<Outcome> {
    let begun = Instant::now();
    // One file for both streams, so that their order stays.
    let file = tempfile::NamedTempFile::new()?;
    let status = Command::new(&program.executable)
        .current_dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .stdin(Stdio::null())
        .stdout(file.reopen()?)
        .stderr(file.as_file().try_clone()?)
        .status()
        .with_context(|| format!("{} does not start", program.executable.display()))?;
    let output = String::from_utf8_lossy(&std::fs::read(file.path())?).into_owned();
    Ok(Outcome { name: program.name.clone(), passed: status.success(), took: begun.elapsed(), output })
}

/// Runs what is in a lane. Prints what passes at once, and keeps what fails for the end.
fn drive(lane: Lane, queue: &Mutex<Queue>, ended: &Mutex<Vec<Outcome>>) -> Result<()> {
    loop {
        let next = queue.lock().unwrap_or_else(PoisonError::into_inner).next(lane);
        let Some(program) = next else { return Ok(()) };
        let outcome = run(&program)?;
        let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        let seconds = outcome.took.as_secs_f64();
        if outcome.passed {
            println!("     Running {} ({seconds:.1} s)\n{}", outcome.name, outcome.output);
        } else {
            println!("     Running {} ({seconds:.1} s): FAILED, its output is at the end\n", outcome.name);
        }
        ended.push(outcome);
    }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let programs: Vec<Program> =
        programs()?.into_iter().filter(|program| program.name.contains(&arguments.word)).collect();
    if programs.is_empty() {
        bail!("no test program has {:?} in its name", arguments.word);
    }
    let (queue, ended) = (Mutex::new(Queue::new(programs)), Mutex::default());
    std::thread::scope(|scope| {
        let lane = scope.spawn(|| drive(Lane::Others, &queue, &ended));
        drive(Lane::Clusters, &queue, &ended)?;
        lane.join().unwrap_or_else(|_| bail!("a lane ended"))
    })?;
    drive(Lane::Alone, &queue, &ended)?;
    let mut ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    ended.sort_by_key(|outcome| std::cmp::Reverse(outcome.took));
    for outcome in &ended {
        let word = if outcome.passed { "ok" } else { "FAILED" };
        println!("{:8.1} s  {word:6}  {}", outcome.took.as_secs_f64(), outcome.name);
    }
    let failed: Vec<&Outcome> = ended.iter().filter(|outcome| !outcome.passed).collect();
    for outcome in &failed {
        println!("\n--- {}\n{}", outcome.name, outcome.output);
    }
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_go_longest_first_and_from_the_tail_in_the_other_lane() {
        let of =
            |name: &str| Program { name: name.into(), folder: PathBuf::new(), executable: PathBuf::new() };
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
        let mut take = |lane| queue.next(lane).map(|program| program.name);
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
}
