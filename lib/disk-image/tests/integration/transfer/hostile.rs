//! Mutants through whole transfers, by every way of reading. One that is refused when it is opened has no target yet; of one
//! that turns out damaged later only the content of its undamaged part is on the target; one that is imported has the disk
//! that its decoder reads in memory. None panics, none hangs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use disk_image::transfer::{self, Forgetful, Limits, Progress, Request, Spool};
use disk_image::write::{Direct, EngineKind, Options as Writing, Target, Writer};
use disk_image::{Access, Error, Format, Kind, Stop};

use crate::support::images::repair;
use crate::support::mutate::mutate;
use crate::support::{self, Fetch, Options, count, images, qcow2};
use crate::transfer::memory::Memory;

/// Largest disk that is written.
const DISK_MAX: u64 = 16 << 20;
/// Limit of one transfer on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A disk as far as its image can be read in memory.
struct Read {
    disk: Vec<u8>,
    /// How far it is known, and whether that is all.
    known: usize,
    whole: bool,
}

fn read(image: &[u8], format: Format, size_known: bool) -> Option<Read> {
    let image = &*support::changed(image, format, size_known).ok()?;
    let layout = support::open(image, format, size_known).ok()?;
    let size = layout.virtual_size();
    if size > DISK_MAX || layout.scan().is_some() {
        return None;
    }
    let mut read = Read { disk: vec![0; usize::try_from(size).unwrap()], known: 0, whole: false };
    let mut fetch = Fetch::new();
    let options = Options { size_known, ..Options::default() };
    let driven = support::drive(image, format, &options, &mut |layout, extent| {
        let at = usize::try_from(extent.guest).unwrap();
        let len = usize::try_from(extent.len).unwrap();
        if let Some(data) = fetch.get(image, layout, extent)? {
            read.disk[at..at + len].copy_from_slice(data);
        }
        read.known = at + len;
        Ok(())
    });
    read.whole = driven.is_ok();
    Some(read)
}

/// Opens, and if that is not refused, transfers to `path`.
fn import(image: &[u8], format: Format, access: Access, path: &Path) -> Result<(), Error> {
    let progress = Progress::new();
    let image = transfer::open(Request {
        source: Arc::new(Memory::new(image.to_vec(), access)),
        format: Some(format),
        limits: Limits::default(),
        progress: progress.clone(),
        spool: Spool::default(),
    })?;
    assert!(!path.exists());
    let size = image.virtual_size().unwrap();
    // A ring for each of thousands would take most of the time.
    let writing =
        Writing { engine: Some(EngineKind::Pwrite), threads: 1, direct: Direct::Never, ..Writing::default() };
    let writer = Writer::open(Target::file(path, false)?, size, &writing)?;
    transfer::run(&image, &writer, &mut Forgetful, &Spool::default(), &progress, &Stop::new())?;
    writer.finish().map(drop)
}

/// The results of the mutants.
#[derive(Debug, Default)]
struct Survey {
    mutants: u64,
    refused: u64,
    damaged: u64,
    imported: u64,
    slowest: Duration,
}

#[expect(clippy::print_stdout, reason = "the figures are part of the result")]
fn mutants(format: Format) {
    let bases = if format == Format::Qcow2 { qcow2::bases() } else { images::bases(format) };
    // In memory: what is looked for is not the disk's speed.
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("disk");
    let mut survey = Survey::default();
    for seed in 0..count(100, 5_000) {
        let (base, places) = &bases[usize::try_from(seed).unwrap() % bases.len()];
        let mut image = base.clone();
        let said = mutate(&mut image, places, 1 << 50 | seed);
        repair(format, &mut image, seed);
        for access in [Access::Ranges, Access::Again, Access::Once] {
            let what = format!("{} mutant {seed} ({said}), {access:?}", format.name());
            // The decoder does not know where a stream ends.
            let size_known = access == Access::Ranges;
            if support::open(&image, format, size_known).is_ok_and(|layout| layout.virtual_size() > DISK_MAX)
            {
                continue;
            }
            let expected = read(&image, format, size_known);
            let started = Instant::now();
            let ended = import(&image, format, access, &path);
            let took = started.elapsed();
            assert!(took < TIMEOUT, "{what} takes {took:?}");
            survey.mutants += 1;
            survey.slowest = survey.slowest.max(took);
            let found = std::fs::read(&path).ok();
            drop(std::fs::remove_file(&path));
            match (&ended, found) {
                (Ok(()), Some(found)) => {
                    survey.imported += 1;
                    // A stream's reader learns the size at the stream's end, and cuts the last unit there.
                    let expected = expected.filter(|it| it.whole).or_else(|| read(&image, format, true));
                    if let Some(expected) = expected {
                        assert!(expected.whole && found == expected.disk, "{what}: other bytes");
                    }
                }
                (Ok(()), None) => panic!("{what}: done, and there is no disk"),
                (Err(error), found) => {
                    let kinds = [Kind::Refused, Kind::Corrupt, Kind::Source, Kind::NotStreamable];
                    assert!(kinds.contains(&error.kind()), "{what}: {error}");
                    survey.refused += u64::from(found.is_none());
                    survey.damaged += u64::from(found.is_some());
                    let Some(expected) = expected else { continue };
                    // Tables in one another, tables in no order a stream can be read in, and grains that reach into the
                    // next one are no harm in memory.
                    let said = error.to_string();
                    let order = error.kind() == Kind::NotStreamable
                        || said.contains("overlap")
                        || said.contains("packed bytes where at most");
                    assert!(!expected.whole || order, "{what}: it can be read: {said}");
                    let known = expected.disk.chunks(512).take(expected.known / 512);
                    let found = found.unwrap_or_default();
                    for (sector, (found, known)) in found.chunks(512).zip(known).enumerate() {
                        let zero = found.iter().all(|&byte| byte == 0);
                        assert!(
                            zero || found == known,
                            "{what}: sector {sector} is nothing that the image says"
                        );
                    }
                }
            }
        }
    }
    println!("{}: {survey:?}", format.name());
    assert!(survey.imported > 0 && survey.damaged > 0 && survey.refused > 0, "{survey:?}");
}

#[test]
fn qcow2_mutants_by_every_way() {
    mutants(Format::Qcow2);
}

#[test]
fn vmdk_mutants_by_every_way() {
    mutants(Format::Vmdk);
}

#[test]
fn vhd_mutants_by_every_way() {
    mutants(Format::Vhd);
}

#[test]
fn vhdx_mutants_by_every_way() {
    mutants(Format::Vhdx);
}

#[test]
fn vdi_mutants_by_every_way() {
    mutants(Format::Vdi);
}
