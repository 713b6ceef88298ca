//! `make cluster`: a Kubernetes node for a person. The same program keeps the tests' clusters.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use e2e::place::Place;
use e2e::{Cluster, Ended, failures, needs_root, node, platform, stop_kept, supervisor};

/// Bytes of a person's pool; it takes what is written.
const POOL: u64 = 64 << 30;

/// A Kubernetes node on this machine, in namespaces of its own.
#[derive(Debug, Parser)]
#[command(name = "cluster")]
struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Start a node that stays until `down`
    Up {
        /// Archives of images to load
        #[arg(value_name = "ARCHIVE")]
        images: Vec<std::path::PathBuf>,
        /// Install the CSI driver from an image archive
        #[arg(long, conflicts_with = "platform")]
        storage: bool,
        /// Install the platform from the archives FERROVIRT_IMAGE and FERROVIRT_LAUNCHER_IMAGE, and wait for it
        #[arg(long)]
        platform: bool,
    },
    /// Stop every node that `up` has started
    Down,
    /// Keep a node until standard input ends
    #[command(hide = true)]
    Keep,
    /// The first process of a node
    #[command(hide = true)]
    Node {
        /// The number of the node's place
        place: u8,
        /// The second node of that place
        #[arg(long)]
        second: bool,
    },
    /// Keep the second node of a running cluster until standard input ends
    #[command(hide = true)]
    KeepSecond {
        /// The number of the cluster's place
        place: u8,
        /// The first process of its first node
        first: String,
    },
}

fn main() -> ExitCode {
    let action = Args::parse().action;
    let say: fn(&str) = match action {
        Action::Up { .. } | Action::Down => print_error,
        Action::Keep | Action::Node { .. } | Action::KeepSecond { .. } => print,
    };
    match act(action) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{}{error:#}", supervisor::FAILED));
            ExitCode::FAILURE
        }
    }
}

fn act(action: Action) -> Result<()> {
    match action {
        Action::Up { images, storage, platform } => up(&images, storage, platform),
        Action::Down => {
            let ended = stop_kept()?;
            report_failures()?;
            down(&ended);
            Ok(())
        }
        Action::Keep => supervisor::keep(),
        Action::Node { place, second } => {
            let first = Place::of(place)?;
            node::run(&if second { first.second() } else { first })
        }
        Action::KeepSecond { place, first } => supervisor::keep_second(place, &first),
    }
}

fn up(images: &[std::path::PathBuf], storage: bool, platform: bool) -> Result<()> {
    needs_root()?;
    report_failures()?;
    if let Some(place) = Place::all()?.iter().find(|place| place.kept().is_some()) {
        print_access(place, "runs already, with the images of its start");
        return Ok(());
    }
    let cluster = Cluster::start()?;
    let filled = images
        .iter()
        .try_for_each(|archive| cluster.import_images(archive))
        .and_then(|()| {
            if storage {
                e2e::storage::install(&cluster, POOL, e2e::storage::Provisioner::Sidecars)
            } else {
                Ok(())
            }
        })
        .and_then(|()| if platform { install(&cluster) } else { Ok(()) });
    if let Err(error) = filled {
        cluster.stop()?;
        return Err(error);
    }
    // The node is kept as the very last: until then it ends with this process, however that does.
    print_access(cluster.place(), "runs");
    cluster.keep()
}

fn install(cluster: &Cluster) -> Result<()> {
    platform::prepare(cluster, POOL)?;
    let took = platform::install(cluster, &platform::settings())?;
    print_error(&format!("the platform is available after {} s", took.as_secs()));
    Ok(())
}

/// How to reach a node and how to end it.
fn print_access(place: &Place, runs: &str) {
    print_error(&format!(
        "node {} {runs}; its containerd is at {}; `make cluster-down` ends it",
        place.number(),
        place.containerd().display()
    ));
    print(&format!("export KUBECONFIG={}", place.kubeconfig().display()));
}

fn down(ended: &Ended) {
    for place in &ended.stopped {
        print(&format!("stopped: node {} in {}", place.number(), place.folder().display()));
    }
    for place in &ended.removed {
        print(&format!("removed: what node {} has left in {}", place.number(), place.folder().display()));
    }
    if ended.stopped.is_empty() && ended.removed.is_empty() {
        print("there was no node to stop");
    }
}

/// Reports once why a node has ended.
fn report_failures() -> Result<()> {
    for failure in failures()? {
        print_error(&failure);
    }
    Ok(())
}

fn print_error(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Standard output is the answer: of `up` for a user, of `keep` and `node` for the process that started them. It may have no
/// reader left.
fn print(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
