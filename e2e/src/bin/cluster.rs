//! `make cluster`: a Kubernetes node for a person. The same program keeps the tests' clusters.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use e2e::{Cluster, keeper, node, stop_kept};

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
    },
    /// Stop every node that `up` has started
    Down,
    /// Keep a node until standard input ends; what tests start
    #[command(hide = true)]
    Keep {
        /// Until a signal comes instead
        #[arg(long)]
        kept: bool,
    },
    /// The first process of a node
    #[command(hide = true)]
    Node {
        /// The number of the node's place
        place: u8,
    },
}

fn main() -> ExitCode {
    match act(Args::parse().action) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tell(&format!("failed: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn act(action: Action) -> Result<()> {
    match action {
        Action::Up { images } => up(&images),
        Action::Down => {
            let stopped = stop_kept()?;
            tell(&format!("stopped: {stopped}"));
            Ok(())
        }
        Action::Keep { kept } => keeper::keep(kept),
        Action::Node { place } => node::run(place),
    }
}

fn up(images: &[std::path::PathBuf]) -> Result<()> {
    let cluster = Cluster::start_kept()?;
    for archive in images {
        if let Err(error) = cluster.import_images(archive) {
            cluster.stop()?;
            return Err(error);
        }
    }
    tell(&format!("export KUBECONFIG={}", cluster.kubeconfig().display()));
    Ok(())
}

/// Standard output is the answer: of `up` for a person, of `keep` and `node` for the process that started them.
/// Nobody may be left to read it.
fn tell(text: &str) {
    let _ = writeln!(io::stdout(), "{text}");
}
