//! `make bench`: measures the promises and prints the table. Exit code 1 if one is not kept.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is what this program is for")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use benches::report::{self, Report};
use benches::rows::ROWS;
use benches::run::Bench;
use benches::size;
use clap::Parser;

/// Measures the importer beside its peers.
#[derive(Parser)]
struct Args {
    /// The release binary.
    #[arg(long)]
    importer: PathBuf,
    /// Only rows whose name contains this; several, separated by commas, are possible.
    #[arg(long, default_value = "")]
    rows: String,
    /// Rounds; in each, all peers and the importer run once.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Where images are kept; their file system is the disk that is measured. Default: ~/.cache/ferrovirt/bench.
    #[arg(long)]
    cache: Option<PathBuf>,
    /// Where the figures go as JSON. Default: report.json in the cache.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    let cache = match args.cache {
        Some(cache) => cache,
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set: give --cache")?)
            .join(".cache/ferrovirt/bench"),
    };
    std::fs::create_dir_all(&cache)?;
    let sizes = vec![size::of("importer", &args.importer)?];
    let bench = Bench::new(args.importer, &cache, args.rounds)?;
    eprintln!("images are made first, once; a row takes up to three minutes");
    let (data, deflated) = bench.deflate()?;
    println!(
        "data: {} MiB of an ext4 with files of Debian packages, {} MiB as deflate qcow2 ({} %)",
        data >> 20,
        deflated >> 20,
        deflated * 100 / data.max(1)
    );
    println!("{}", report::HEADING);
    let wanted: Vec<&str> = args.rows.split(',').map(str::trim).collect();
    let mut all =
        Report { data_bytes: data, deflate_bytes: deflated, rows: Vec::new(), failed: Vec::new(), sizes };
    for row in ROWS.iter().filter(|row| wanted.iter().any(|word| row.name.contains(word))) {
        match bench.row(row) {
            Ok(outcome) => {
                print!("{}", report::lines(&outcome));
                all.rows.push(outcome);
            }
            Err(error) => {
                println!("{:<32} not measured: {error:#}", row.name);
                all.failed.push((row.name.to_owned(), format!("{error:#}")));
            }
        }
    }
    for size in &all.sizes {
        println!("{}: {} KiB, {} packages in its tree", size.package, size.bytes >> 10, size.packages);
    }
    let json = args.json.unwrap_or_else(|| cache.join("report.json"));
    std::fs::write(&json, serde_json::to_string_pretty(&all)?)?;
    println!("figures: {}", json.display());
    println!("{}", if all.kept() { "every bar is met" } else { "NOT every bar is met" });
    Ok(if all.kept() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
