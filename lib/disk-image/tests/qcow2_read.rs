//! qcow2 as tools write it: what we read equals `qemu-img convert -O raw`, and what a second reader sees.

#![expect(clippy::unwrap_used, reason = "a failure here is a failed test")]

mod support;

use std::path::Path;

use disk_image::Format;
use support::mutate::Rng;
use support::{Options, first_difference, read_image_with, tools};

/// Reads `image` in four ways (size known and not, small and large slices) and compares with the judge.
fn agrees(image: &Path, what: &str) {
    let bytes = std::fs::read(image).unwrap();
    let judge = tools::qemu_raw("qcow2", image);
    for (size_known, slice) in [(true, u64::MAX / 2), (true, 7), (false, 1000)] {
        let options = Options {
            size_known,
            slice,
            ..Options::default()
        };
        let ours = read_image_with(&bytes, Format::Qcow2, &options)
            .unwrap_or_else(|e| panic!("{what}: {e} ({options:?})"));
        if let Some(difference) = first_difference(&ours, &judge) {
            panic!("{what}: {difference} ({options:?})");
        }
    }
}

#[test]
fn every_cluster_size_converted() {
    let dir = tempfile::tempdir().unwrap();
    let raw = dir.path().join("raw");
    let mut disk = Rng::new(1).disk_bytes(3 << 20);
    disk[200_000..1_700_000].fill(0);
    disk.truncate((3 << 20) - 512 * 3);
    std::fs::write(&raw, &disk).unwrap();
    for bits in 9..=21 {
        for extra in ["", ",compression_type=zstd", ",compat=0.10"] {
            for packed in [&["-c"][..], &[]] {
                let image = dir.path().join("image");
                let options = format!("cluster_size={}{extra}", 1 << bits);
                let (from, to) = (raw.to_str().unwrap(), image.to_str().unwrap());
                let mut args = vec!["convert", "-f", "raw", "-O", "qcow2", "-o", &options, from, to];
                args.splice(1..1, packed.iter().copied());
                tools::run("qemu-img", &args);
                agrees(&image, &format!("{options} {packed:?}"));
            }
        }
    }
}
