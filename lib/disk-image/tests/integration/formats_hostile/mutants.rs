//! Images cut short, and mutants: no panic, little memory, no hang, and never other bytes than qemu-img reads.

use disk_image::Format;

use crate::support::images::{
    bases, dynamic_vdi, dynamic_vhd, dynamic_vhdx, packed_vmdk, repair, sparse_vmdk,
};
use crate::support::mutate::{Rng, mutate};
use crate::support::{
    self, Options, count, first_difference, read_image, read_image_with, survey_repaired, tools,
};

/// Every image cut anywhere in its front and tables, its size known and not: an error or, when only unused bytes are
/// missing, the same disk; never a panic, never other bytes.
#[test]
fn cut_images() {
    for (format, base) in [
        (Format::Vmdk, sparse_vmdk()),
        (Format::Vmdk, packed_vmdk()),
        (Format::Vhd, dynamic_vhd()),
        (Format::Vhdx, dynamic_vhdx()),
        (Format::Vdi, dynamic_vdi()),
    ] {
        let disk = read_image(&base, format).unwrap();
        let mut rng = Rng::new(9);
        let mut lengths: Vec<u64> = (0..70).collect();
        lengths.extend((0..150).map(|_| rng.below(base.len() as u64)));
        lengths.extend((0..60).map(|_| base.len() as u64 - 1 - rng.below(70_000)));
        for len in lengths {
            for size_known in [true, false] {
                let options = Options { size_known, ..Options::default() };
                if let Ok(read) = read_image_with(&base[..len as usize], format, &options) {
                    assert!(read == disk, "{} cut to {len} reads differently", format.name());
                }
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "the figures are part of the result")]
fn mutants(format: Format, peak_max: u64) {
    let bases = bases(format);
    let survey = survey_repaired(format, &bases, count(5_000, 100_000), peak_max, |image, seed| {
        repair(format, image, seed)
    });
    println!("{}: {survey:?}", format.name());

    // Surviving mutants are read as qemu reads them, where qemu reads them at all.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let (mut agreed, mut seed) = (0, 0);
    while agreed < count(15, 500) {
        seed += 1;
        let (base, places) = &bases[seed as usize % bases.len()];
        let mut image = base.clone();
        let what = mutate(&mut image, places, seed);
        repair(format, &mut image, seed);
        let small = support::open(&image, format, true).is_ok_and(|layout| layout.virtual_size() <= 64 << 20);
        let Some(ours) = small.then(|| read_image(&image, format).ok()).flatten() else {
            continue;
        };
        std::fs::write(&path, &image).unwrap();
        let qemu = if format == Format::Vhd { "vpc" } else { format.name() };
        if let Some(judge) = tools::qemu_try_raw(qemu, &path) {
            assert_eq!(first_difference(&ours, &judge), None, "{} mutant {seed}: {what}", format.name());
            agreed += 1;
        }
    }
}

#[test]
fn vmdk_mutants() {
    // A packed grain may be 2 MiB.
    mutants(Format::Vmdk, 4 << 20);
}

#[test]
fn vhd_mutants() {
    mutants(Format::Vhd, 1 << 20);
}

#[test]
fn vhdx_mutants() {
    mutants(Format::Vhdx, 4 << 20);
}

#[test]
fn vdi_mutants() {
    mutants(Format::Vdi, 1 << 20);
}
