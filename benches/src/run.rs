//! Runs a row: first which variant of a peer is fastest; then, in every round, that of each peer and the importer once, one
//! after the other; then the minima of these rounds meet the bars.
//!
//! The choice does not count: of the least of many runs of many variants and the least of a few of ours, the first would
//! be less by chance alone.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Serialize;

use crate::{
    images::{Image, Images},
    inflate, judge,
    measure::{self, Cost},
    rows::{CONNECTIONS, Decoders, MEMORY_MIB, PACE, Peer, Place, Row, Via},
    server::Server,
};

/// How long a row that is about memory may take.
const MEMORY_LIMIT: Duration = Duration::from_secs(120);
/// Runs of each variant of a peer before one is chosen.
const TRIALS: u32 = 2;

/// Result of a row.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// The row.
    pub row: String,
    /// The importer: least wall and CPU seconds of all rounds, largest memory.
    pub ours: Cost,
    /// Memory allowed, in MiB.
    pub memory_mib: f64,
    /// Whether it was kept.
    pub memory_kept: bool,
    /// Each peer.
    pub against: Vec<Comparison>,
}

/// The importer and one peer.
#[derive(Debug, Serialize)]
pub struct Comparison {
    /// The peer, and its variant that was fastest.
    pub peer: String,
    /// Least wall seconds of that variant, and its least CPU seconds.
    pub cost: Cost,
    /// Peer's wall seconds over ours.
    pub ratio: f64,
    /// The least ratio.
    pub bar: f64,
    /// Whether CPU seconds count.
    pub cpu_counts: bool,
    /// Whether all of this holds.
    pub kept: bool,
}

impl Outcome {
    /// Whether every bar of the row is met.
    pub fn kept(&self) -> bool {
        self.memory_kept && self.against.iter().all(|one| one.kept)
    }
}

/// Where rows run.
#[derive(Debug)]
pub struct Bench {
    importer: PathBuf,
    images: Images,
    server: Server,
    rounds: u32,
    /// Outputs; on the measured disk, not in memory.
    work: tempfile::TempDir,
}

/// One step that is measured.
enum Step {
    Shell(String),
    DirectWrite(u64),
    Inflate,
    Importer(Image),
}

impl Bench {
    /// A bench that keeps its images below `cache` and measures the program `importer`.
    ///
    /// # Errors
    /// The cache cannot be made or nginx does not start.
    pub fn new(importer: PathBuf, cache: &Path, rounds: u32) -> Result<Self> {
        ensure!(importer.exists(), "{} is not there: `make build` makes it", importer.display());
        let images = Images::open(cache)?;
        let work = tempfile::Builder::new().prefix("work-").tempdir_in(cache)?;
        let server = Server::start(images.folder(), PACE)?;
        Ok(Self { importer, images, server, rounds, work })
    }

    /// Bytes of the disk's data, and of the deflate-compressed image of it.
    ///
    /// # Errors
    /// The images cannot be made.
    pub fn deflate(&self) -> Result<(u64, u64)> {
        self.images.make(Image::QcowZlib)?;
        let packed = fs::metadata(self.images.path(Image::QcowZlib))?.len();
        Ok((self.images.data_bytes(Image::RawSparse)?, packed))
    }

    /// Measures a row.
    ///
    /// # Errors
    /// A program fails, a tool is missing, or the importer's output is wrong.
    pub fn row(&self, row: &Row) -> Result<Outcome> {
        self.prepare(row)?;
        let place = Output::make(row.place, self.work.path())?;
        let rounds = if row.memory_only { 1 } else { self.rounds };
        let limit = row.memory_only.then_some(MEMORY_LIMIT);
        let mut peers = Vec::new();
        for against in row.against {
            peers.push(self.fastest(self.variants(against.peer, row.image)?, row.image, &place)?);
        }
        let mut ours: Option<Cost> = None;
        let mut costs: Vec<Option<Cost>> = peers.iter().map(|_| None).collect();
        for round in 0..rounds {
            for ((_, step), cost) in peers.iter().zip(&mut costs) {
                place.clear()?;
                *cost = Some(least(*cost, self.step(step, row.image, &place)?));
            }
            place.clear()?;
            // Memory does not depend on it, and these images may be mostly hole.
            if !row.memory_only {
                measure::warm(&self.images.path(row.image))?;
            }
            ours = Some(least(ours, self.import(row.image, row.via, &place.file(), limit)?));
            if round == 0
                && let Some(truth) = row.truth
                && let Some(at) = judge::first_difference(&place.file(), &self.images.path(truth))?
            {
                bail!("{}: the importer's output differs from {} at byte {at}", row.name, truth.file_name());
            }
        }
        if row.via == Via::PacedHttp {
            let used = self.server.paced_connections()?;
            ensure!(used >= CONNECTIONS, "{}: {used} connections were used, not {CONNECTIONS}", row.name);
        }
        place.clear()?;
        let ours = ours.context("at least one round")?;
        let mut against = Vec::new();
        for ((bar, (label, _)), cost) in row.against.iter().zip(&peers).zip(costs) {
            let cost = cost.context("at least one round")?;
            let ratio = cost.wall / ours.wall;
            let kept = ratio >= bar.faster && (!bar.cpu || ours.cpu <= cost.cpu);
            against.push(Comparison {
                peer: label.clone(),
                cost,
                ratio,
                bar: bar.faster,
                cpu_counts: bar.cpu,
                kept,
            });
        }
        let memory_mib = f64::from(MEMORY_MIB) + f64::from(row.window_kib * decoders(row.decoders)) / 1024.0;
        Ok(Outcome {
            row: row.name.to_owned(),
            ours,
            memory_mib,
            memory_kept: ours.peak_mib <= memory_mib,
            against,
        })
    }

    /// The fastest variant of a peer.
    fn fastest(&self, variants: Vec<(String, Step)>, image: Image, place: &Output) -> Result<(String, Step)> {
        let several = variants.len() > 1;
        let mut fastest: Option<(f64, (String, Step))> = None;
        for variant in variants {
            let mut cost = None;
            for _ in 0..if several { TRIALS } else { 0 } {
                place.clear()?;
                cost = Some(least(cost, self.step(&variant.1, image, place)?));
            }
            let wall = cost.map_or(0.0, |cost| cost.wall);
            if fastest.as_ref().is_none_or(|(least, _)| wall < *least) {
                fastest = Some((wall, variant));
            }
        }
        place.clear()?;
        Ok(fastest.context("a peer has a variant")?.1)
    }

    fn prepare(&self, row: &Row) -> Result<()> {
        self.images.make(row.image)?;
        for image in row.against.iter().filter_map(|against| match against.peer {
            Peer::Ours(image) => Some(image),
            Peer::Convert
            | Peer::DownloadThenConvert
            | Peer::Shell(..)
            | Peer::Inflate
            | Peer::DirectWrite => None,
        }) {
            self.images.make(image)?;
        }
        row.truth.map_or(Ok(()), |image| self.images.make(image))
    }

    fn import(&self, image: Image, via: Via, output: &Path, limit: Option<Duration>) -> Result<Cost> {
        let mut command = Command::new(&self.importer);
        match via {
            Via::File => command.arg(self.images.path(image)),
            Via::Http => command.arg(self.server.url(image.file_name())),
            Via::PacedHttp => command.arg(self.server.paced_url(image.file_name())),
        };
        command.arg(output).args(["--progress", "none", "--output", "json"]);
        measure::command(&mut command, limit)
    }

    fn step(&self, step: &Step, image: Image, place: &Output) -> Result<Cost> {
        match step {
            Step::Shell(line) => {
                measure::warm(&self.images.path(image))?;
                let line = line
                    .replace("{image}", &self.images.path(image).display().to_string())
                    .replace("{url}", &self.server.url(image.file_name()))
                    .replace("{temporary}", &place.temporary().display().to_string())
                    .replace("{output}", &place.file().display().to_string());
                measure::command(Command::new("bash").args(["-euo", "pipefail", "-c", &line]), None)
            }
            Step::Inflate => inflate::clusters(&self.images.path(image)),
            Step::DirectWrite(bytes) => measure::direct_write(&place.file(), *bytes),
            Step::Importer(image) => {
                measure::warm(&self.images.path(*image))?;
                self.import(*image, Via::File, &place.file(), None)
            }
        }
    }

    /// The ways a peer is run; the fastest of them counts.
    fn variants(&self, peer: Peer, image: Image) -> Result<Vec<(String, Step)>> {
        let format = image.qemu_format();
        Ok(match peer {
            Peer::Convert => {
                let mut variants = Vec::new();
                for depth in ["-m 8", "-m 16"] {
                    for order in ["-W ", ""] {
                        for cache in ["-t none", "-t none -T none", "-t writeback"] {
                            let line = format!(
                                "qemu-img convert -f {format} -O raw {depth} {order}{cache} {{image}} {{output}} && sync {{output}}"
                            );
                            variants.push((format!("convert {depth} {order}{cache}"), Step::Shell(line)));
                        }
                    }
                }
                variants
            }
            Peer::DownloadThenConvert => {
                let line = format!(
                    "curl -sSf -o {{temporary}} {{url}} && sync {{temporary}} && \
                     qemu-img convert -f {format} -O raw {{temporary}} {{output}} && sync {{output}}"
                );
                vec![("download, convert".to_owned(), Step::Shell(line))]
            }
            Peer::Shell(name, line) => vec![(name.to_owned(), Step::Shell(line.to_owned()))],
            Peer::Inflate => vec![("libdeflate alone, 1 thread".to_owned(), Step::Inflate)],
            Peer::DirectWrite => {
                // The bytes that a sparse copy has to write are the same for every packing of the data.
                let written = if image == Image::RawFull { image } else { Image::RawSparse };
                vec![("direct write".to_owned(), Step::DirectWrite(self.images.data_bytes(written)?))]
            }
            Peer::Ours(image) => vec![(format!("ours, {}", image.file_name()), Step::Importer(image))],
        })
    }
}

fn decoders(decoders: Decoders) -> u32 {
    match decoders {
        Decoders::One => 1,
        Decoders::PerCore => std::thread::available_parallelism()
            .ok()
            .and_then(|cores| u32::try_from(cores.get()).ok())
            .unwrap_or(1),
    }
}

/// The least of what two runs took; the most of what they held.
fn least(so_far: Option<Cost>, now: Cost) -> Cost {
    so_far.map_or(now, |before| Cost {
        wall: before.wall.min(now.wall),
        cpu: before.cpu.min(now.cpu),
        peak_mib: before.peak_mib.max(now.peak_mib),
    })
}

/// A folder for outputs; an XFS of its own, with room for images that are larger than their data, is unmounted when dropped.
pub(crate) struct Output {
    folder: PathBuf,
    mounted: bool,
}

impl Output {
    pub(crate) fn make(place: Place, work: &Path) -> Result<Self> {
        let (folder, disk) = (work.join("output"), work.join("xfs.img"));
        fs::create_dir_all(&folder)?;
        match place {
            Place::Folder => Ok(Self { folder, mounted: false }),
            Place::Xfs => {
                let line = "truncate -s 128G \"$1\" && mkfs.xfs -q -f \"$1\" && mount -o loop \"$1\" \"$2\"";
                let status =
                    Command::new("bash").args(["-euc", line, "bash"]).args([&disk, &folder]).status()?;
                ensure!(status.success(), "no XFS on a loop device: root and `make deps` are needed");
                Ok(Self { folder, mounted: true })
            }
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn file(&self) -> PathBuf {
        self.folder.join("disk.img")
    }

    fn temporary(&self) -> PathBuf {
        self.folder.join("temporary")
    }

    /// Removes what the last run left, and lets the disk come to rest.
    fn clear(&self) -> Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            fs::remove_file(entry?.path())?;
        }
        rustix::fs::sync();
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if self.mounted {
            Command::new("umount").arg(&self.folder).status().ok();
        }
    }
}
