//! qcow2 as tools write it: our reading equals `qemu-img convert`.

mod support;

use disk_image::Format;

#[test]
fn placeholder_reads_raw() {
    let disk = support::mutate::Rng::new(1).disk_bytes(70_000);
    assert!(support::read_image(&disk, Format::Raw).unwrap() == disk);
}
