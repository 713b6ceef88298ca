//! `make bench`: measures the promises and prints the table. Exit code 1 if one is not kept.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "its output is what this program is for")]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use benches::compare::{self, Comparison};
use benches::report::{self, Report};
use benches::rows::{ROWS, Row};
use benches::run::Bench;
use benches::size;
use benches::{cni, csi, enclosure, uploads, virt};
use clap::Parser;

/// Measures the programs in comparison with their peers.
#[derive(Parser)]
struct Args {
    /// The importer's release binary.
    #[arg(long)]
    importer: PathBuf,
    /// The CNI plugins' release binary. Default: FERROVIRT_CNI.
    #[arg(long)]
    cni: Option<PathBuf>,
    /// The CSI driver's release binary. Default: next to the importer's.
    #[arg(long)]
    csi: Option<PathBuf>,
    /// The launcher's release binary. Default: next to the importer's.
    #[arg(long)]
    launcher: Option<PathBuf>,
    /// The upload server's release binary; the proxy's is in the same directory. Default: next to the importer's.
    #[arg(long)]
    uploadserver: Option<PathBuf>,
    /// The folder of the Go reference plugins. Default: FERROVIRT_PEERS.
    #[arg(long)]
    peers: Option<PathBuf>,
    /// Only rows with this in their name; several, separated by commas, are possible.
    #[arg(long, default_value = "")]
    rows: String,
    /// Rounds; in each, every peer in its fastest variant and the importer run once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
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
    let claimed = if enclosure::is_inside() {
        enclosure::hide()?;
        None
    } else {
        let claimed = enclosure::claim(&cache)?;
        if enclosure::is_possible() {
            return enclosure::run(claimed);
        }
        Some(claimed)
    };
    let wanted: Vec<&str> = args.rows.split(',').map(str::trim).collect();
    let chosen = |name: &str| wanted.iter().any(|word| name.contains(word));
    let mut all = Report::default();
    let of_images: Vec<&Row> = ROWS.iter().filter(|row| chosen(row.name)).collect();
    let launcher = args.launcher.unwrap_or_else(|| args.importer.with_file_name("virt-launcher"));
    let driver = args.csi.unwrap_or_else(|| args.importer.with_file_name("hpp-csi"));
    let receiver = args.uploadserver.unwrap_or_else(|| args.importer.with_file_name("uploadserver"));
    if !of_images.is_empty() {
        all.sizes.push(size::of("importer", &args.importer)?);
        images(&Bench::new(args.importer, &cache, args.rounds)?, &of_images, &mut all)?;
    }
    let of_cni: Vec<&str> = cni::ROWS.iter().copied().filter(|name| chosen(name)).collect();
    if !of_cni.is_empty() {
        let given = |path: Option<PathBuf>, variable: &str, target: &str| {
            path.or_else(|| std::env::var_os(variable).map(PathBuf::from)).with_context(|| {
                format!("{variable} is not set: make {target} builds it, make bench sets it")
            })
        };
        let plugin = given(args.cni, "FERROVIRT_CNI", "cni")?;
        all.sizes.push(size::of("cni", &plugin)?);
        let peers = given(args.peers, "FERROVIRT_PEERS", "peers")?;
        let bench = cni::Bench::new(&plugin, &peers, cni::Counts::FULL)?;
        calls(|row| bench.row(row), &of_cni, &mut all);
    }
    let of_csi: Vec<&str> = csi::ROWS.iter().copied().filter(|name| chosen(name)).collect();
    if !of_csi.is_empty() {
        all.sizes.push(size::of("hpp-csi", &driver)?);
        let bench = csi::Bench::new(&driver, &cache)?;
        calls(|row| bench.row(row), &of_csi, &mut all);
    }
    let of_virt: Vec<&str> = virt::ROWS.iter().copied().filter(|name| chosen(name)).collect();
    if !of_virt.is_empty() {
        all.sizes.push(size::of("virt-launcher", &launcher)?);
        let bench = virt::Bench::new(&launcher)?;
        calls(|row| bench.row(row), &of_virt, &mut all);
    }
    let of_uploads: Vec<&str> = uploads::ROWS.iter().copied().filter(|name| chosen(name)).collect();
    if !of_uploads.is_empty() {
        let proxy = receiver.with_file_name("uploadproxy");
        all.sizes.push(size::of("uploadserver", &receiver)?);
        all.sizes.push(size::of("uploadproxy", &proxy)?);
        let bench = uploads::Bench::new(&receiver, &proxy, &cache)?;
        calls(|row| bench.row(row), &of_uploads, &mut all);
    }
    for size in &all.sizes {
        println!("{}: {} KiB, {} packages in its tree", size.package, size.bytes >> 10, size.packages);
    }
    let json = args.json.unwrap_or_else(|| cache.join("report.json"));
    std::fs::write(&json, serde_json::to_string_pretty(&all)?)?;
    println!("figures: {}", json.display());
    drop(claimed);
    println!("{}", if all.kept() { "every bar is met" } else { "NOT every bar is met" });
    Ok(if all.kept() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Rows about images.
fn images(bench: &Bench, rows: &[&Row], all: &mut Report) -> Result<()> {
    eprintln!("images are made first, once; a row takes up to three minutes");
    (all.data_bytes, all.deflate_bytes) = bench.deflate()?;
    println!(
        "data: {} MiB of an ext4 with files of Debian packages, {} MiB as deflate qcow2 ({} %)",
        all.data_bytes >> 20,
        all.deflate_bytes >> 20,
        all.deflate_bytes * 100 / all.data_bytes.max(1)
    );
    println!("{}", report::HEADING);
    for row in rows {
        match bench.row(row) {
            Ok(outcome) => {
                print!("{}", report::lines(&outcome));
                all.rows.push(outcome);
            }
            Err(error) => failed(row.name, &error, all),
        }
    }
    Ok(())
}

/// Rows about calls.
fn calls(measure: impl Fn(&str) -> Result<Vec<Comparison>>, rows: &[&str], all: &mut Report) {
    println!("{}", compare::HEADING);
    for row in rows {
        match measure(row) {
            Ok(compared) => {
                compared.iter().for_each(|one| print!("{}", one.line()));
                all.calls.extend(compared);
            }
            Err(error) => failed(row, &error, all),
        }
    }
}

fn failed(row: &str, error: &anyhow::Error, all: &mut Report) {
    println!("{row:<32} not measured: {error:#}");
    all.failed.push((row.to_owned(), format!("{error:#}")));
}
