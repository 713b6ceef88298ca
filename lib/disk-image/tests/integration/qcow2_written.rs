//! qcow2 images of a known disk, made by the tests' own writer: zstd, extended L2, clusters in any order, tables after
//! data. Our reading equals the disk, and so does qemu-img's, which shows that the writer is right.

use disk_image::Format;

use crate::support::mutate::Rng;
use crate::support::qcow2::{PLAN, Plan, disk, put64, write};
use crate::support::{Options, count, first_difference, read_image_with, tools};

fn plan(rng: &mut Rng) -> Plan {
    let version = 2 + u32::from(!rng.one_in(5));
    let extended_l2 = version == 3 && rng.one_in(2);
    let least = if extended_l2 { 14 } else { 9 };
    let most = if rng.one_in(8) { 22 } else { 18 };
    Plan {
        version,
        cluster_bits: rng.within(least..most) as u32,
        zstd: version == 3 && rng.one_in(2),
        extended_l2,
        tables_last: rng.one_in(2),
        packed_of_ten: rng.below(11),
    }
}

#[test]
fn images_of_a_known_disk_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for seed in 0..count(60, 1000) {
        let mut rng = Rng::new(seed);
        let plan = plan(&mut rng);
        let most = (60 << plan.cluster_bits).min(6 << 20);
        let len = (rng.below(most) as usize) / 512 * 512;
        let disk = disk(&mut rng, len, plan.cluster_bits);
        let image = write(&disk, &plan, &mut rng);
        for size_known in [true, false] {
            let options = Options { size_known, slice: rng.within(1..3000), ..Options::default() };
            let ours = read_image_with(&image.bytes, Format::Qcow2, &options)
                .unwrap_or_else(|e| panic!("{seed} {plan:?}: {e}"));
            if let Some(difference) = first_difference(&ours, &disk) {
                panic!("{seed} {plan:?}: {difference}");
            }
        }
        std::fs::write(&path, &image.bytes).unwrap();
        if let Some(difference) = first_difference(&tools::qemu_raw("qcow2", &path), &disk) {
            panic!("qemu-img, {seed} {plan:?}: {difference}");
        }
    }
}

#[test]
fn a_file_that_ends_within_its_last_cluster_reads_as_zero_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let mut cut = 0;
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let disk = rng.disk_bytes(1 << 20);
        let mut image = write(&disk, &PLAN, &mut rng).bytes;
        image.truncate(image.len() - 30_001);
        std::fs::write(&path, &image).unwrap();
        let judge = tools::qemu_raw("qcow2", &path);
        cut += u32::from(judge != disk);
        // The last cluster may be a table: there qemu reads zeroes, here the image is cut short.
        match read_image_with(&image, Format::Qcow2, &Options::default()) {
            Ok(ours) => assert!(ours == judge, "seed {seed}"),
            Err(e) => assert!(e.to_string().contains("past the image's end"), "seed {seed}: {e}"),
        }
    }
    assert!(cut > 0, "no image lost data, so nothing was shown");
}

#[test]
fn a_size_that_is_no_multiple_of_a_sector_is_cut_as_qemu_cuts_it() {
    let plan = Plan {
        version: 3,
        cluster_bits: 12,
        zstd: false,
        extended_l2: false,
        tables_last: false,
        packed_of_ten: 5,
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    for size in [0, 1, 511, 513, 20_000, 65_535] {
        let mut rng = Rng::new(size);
        let disk = rng.disk_bytes(1 << 16);
        let mut image = write(&disk, &plan, &mut rng).bytes;
        put64(&mut image, 24, size);
        std::fs::write(&path, &image).unwrap();
        let ours = read_image_with(&image, Format::Qcow2, &Options::default()).unwrap();
        assert_eq!(ours.len() as u64, size & !511);
        assert_eq!(first_difference(&ours, &tools::qemu_raw("qcow2", &path)), None, "size {size}");
    }
}
