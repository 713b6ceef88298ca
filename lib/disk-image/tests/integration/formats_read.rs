//! VMDK, VHD, VHDX and VDI as tools and guests write them: what we read equals `qemu-img convert -O raw` and what a
//! second and a third reader see. Not here: refused images and mutants (`formats_hostile`).

use std::io::{Cursor, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use disk_image::format::vhd::fixed_vhd;
use disk_image::{Detected, Format, detect};

use crate::support::mutate::Rng;
use crate::support::{Options, count, first_difference, read_image_with, tools};

/// A disk as guests leave it: runs of data and holes, its end at any sector.
fn source_disk(rng: &mut Rng) -> Vec<u8> {
    let most = *rng.pick(&[1, 3, 700, 9000, 45_000]);
    let mut disk = vec![0; (1 + rng.below(most)) as usize * 512];
    for _ in 0..rng.below(12) {
        let at = rng.below(disk.len() as u64) as usize & !511;
        let most = *rng.pick(&[1 << 10, 1 << 16, 3 << 20]);
        let len = (1 + rng.below(most) as usize).min(disk.len() - at);
        let bytes = rng.disk_bytes(len);
        disk[at..at + len].copy_from_slice(&bytes);
    }
    disk
}

/// Writes `disk` sparsely to a file.
fn raw_file(dir: &Path, disk: &[u8]) -> PathBuf {
    let path = dir.join("source");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(disk.len() as u64).unwrap();
    for (at, chunk) in disk.chunks(4096).enumerate().filter(|(_, chunk)| chunk.iter().any(|&b| b != 0)) {
        file.write_all_at(chunk, at as u64 * 4096).unwrap();
    }
    path
}

/// qemu's name of a format.
fn qemu_name(format: Format) -> &'static str {
    if format == Format::Vhd { "vpc" } else { format.name() }
}

/// Options for `qemu-img -o`, and for VMDK whether grains are packed.
fn options_for(format: Format, rng: &mut Rng) -> String {
    let on = |rng: &mut Rng| *rng.pick(&["on", "off"]);
    match format {
        Format::Vmdk => {
            let kind = *rng.pick(&["monolithicSparse", "streamOptimized"]);
            let hardware = *rng.pick(&["", ",hwversion=7", ",compat6=on", ",adapter_type=lsilogic"]);
            format!("subformat={kind},zeroed_grain={}{hardware}", on(rng))
        }
        Format::Vhd => format!("subformat={},force_size={}", rng.pick(&["dynamic", "fixed"]), on(rng)),
        Format::Vhdx => format!(
            "subformat={},block_size={}M,log_size={}M",
            rng.pick(&["dynamic", "fixed"]),
            rng.pick(&[1, 1, 2, 4]),
            rng.pick(&[1, 1, 2])
        ),
        Format::Vdi => format!("static={}", on(rng)),
        Format::Raw | Format::Qcow2 => unreachable!("not tested here"),
    }
}

/// Our reading in several ways: size known and not, small and large slices of tables.
fn ours(bytes: &[u8], format: Format, what: &str) -> Vec<u8> {
    if let Some(size) = fixed_size(bytes) {
        return bytes[..size as usize].to_vec();
    }
    assert_eq!(
        detect(&bytes[..bytes.len().min(disk_image::detect::HEAD)]),
        Detected::Image(format),
        "{what}"
    );
    let mut disks = [(true, u64::MAX / 64), (true, 3), (false, 1000)].map(|(size_known, slice)| {
        let options = Options { size_known, slice, ..Options::default() };
        read_image_with(bytes, format, &options).unwrap_or_else(|e| panic!("{what}: {e} ({options:?})"))
    });
    assert!(disks[0] == disks[1] && disks[0] == disks[2], "{what}: the ways to read differ");
    std::mem::take(&mut disks[0])
}

/// The disk's size when `bytes` are a fixed VHD.
fn fixed_size(bytes: &[u8]) -> Option<u64> {
    fixed_vhd(bytes.last_chunk::<512>()?, bytes.len() as u64)
}

/// Compares with the judge and the other readers.
fn agrees(image: &Path, format: Format, what: &str) -> Vec<u8> {
    let bytes = std::fs::read(image).unwrap();
    let disk = ours(&bytes, format, what);
    same(&disk, &tools::qemu_raw(qemu_name(format), image), &format!("{what}: qemu-img"));
    second_opinion(&bytes, image, format, &disk, what);
    disk
}

fn same(ours: &[u8], theirs: &[u8], what: &str) {
    if let Some(difference) = first_difference(ours, theirs) {
        panic!("{what}: {difference}");
    }
}

/// Readers that share no code with others. They count a VHD by its `current_size`, so only what both have is compared there.
fn second_opinion(bytes: &[u8], image: &Path, format: Format, ours: &[u8], what: &str) {
    // 7-Zip reads a VHDX only of whole MiB, a packed VMDK only with its directory at the end.
    let seven_reads = match format {
        Format::Vmdk => !bytes.windows(15).take(2048).any(|text| text == b"streamOptimized"),
        Format::Vhdx => ours.len().is_multiple_of(1 << 20),
        Format::Vhd | Format::Vdi | Format::Raw | Format::Qcow2 => true,
    };
    let seven = tools::seven_zip_raw(format.name(), image);
    assert!(seven.is_some() || !seven_reads, "{what}: 7zz refuses it");
    let mut second = Vec::new();
    match format {
        Format::Vmdk => {
            vmdk::VmdkReader::open(Cursor::new(bytes)).unwrap().read_to_end(&mut second).unwrap();
        }
        Format::Vhd => {
            let cursor = Box::new(Cursor::new(bytes.to_vec()));
            vhd::VhdReader::open_reader(cursor).unwrap().read_to_end(&mut second).unwrap();
        }
        Format::Vhdx => {
            vhdx::VhdxReader::from_bytes(bytes.to_vec()).unwrap().read_to_end(&mut second).unwrap();
        }
        // 7-Zip alone.
        Format::Vdi => second.clone_from(seven.as_ref().unwrap()),
        Format::Raw | Format::Qcow2 => unreachable!("not tested here"),
    }
    let readers =
        seven.as_ref().map(|seven| ("7zz", seven)).into_iter().chain([("the second reader", &second)]);
    for (who, theirs) in readers {
        let common = if format == Format::Vhd { ours.len().min(theirs.len()) } else { ours.len() };
        assert!(common > 0 && theirs.len() >= common, "{what}: {who} reads {} of {common}", theirs.len());
        let theirs = if format == Format::Vhd { &theirs[..common] } else { theirs };
        same(&ours[..common], theirs, &format!("{what}: {who}"));
    }
}

/// Images that `qemu-img convert` makes.
fn converted(format: Format) {
    for seed in 0..count(20, 700) {
        let dir = tempfile::tempdir().unwrap();
        let mut rng = Rng::new(seed);
        let mut disk = source_disk(&mut rng);
        if format == Format::Vhdx && rng.one_in(2) {
            disk.resize(disk.len().next_multiple_of(1 << 20), 0);
        }
        let options = options_for(format, &mut rng);
        let what = format!("{} {seed}, {} bytes, {options}", format.name(), disk.len());
        let raw = raw_file(dir.path(), &disk);
        let image = dir.path().join("image");
        let args = ["convert", "-f", "raw", "-O", qemu_name(format), "-o", &options];
        let paths = [raw.to_str().unwrap(), image.to_str().unwrap()];
        tools::run("qemu-img", &args.into_iter().chain(paths).collect::<Vec<_>>());
        let read = agrees(&image, format, &what);
        // VHD rounds up to a geometry.
        assert!(read.len() >= disk.len() && (read.len() == disk.len() || format == Format::Vhd), "{what}");
        assert!(read.starts_with(&disk) && read[disk.len()..].iter().all(|&b| b == 0), "{what}");
    }
}

/// Images that a guest has written to, in any order.
fn guest_written(format: Format) {
    for seed in 0..count(10, 300) {
        let dir = tempfile::tempdir().unwrap();
        let mut rng = Rng::new(seed ^ 0x6765_7374);
        let options = options_for(format, &mut rng);
        let packed = options.contains("streamOptimized");
        let step = if format == Format::Vhdx && rng.one_in(2) { 2048 } else { 1 };
        let sectors = (128 + rng.below(40_000)).next_multiple_of(step);
        let image = dir.path().join("image");
        let path = image.to_str().unwrap();
        let size = (sectors * 512).to_string();
        tools::run("qemu-img", &["create", "-q", "-f", qemu_name(format), "-o", &options, path, &size]);
        let mut commands = Vec::new();
        let mut grains = Vec::new();
        for _ in 0..rng.within(1..25) {
            let pattern = rng.below(256);
            if packed {
                // A packed grain is written once and whole.
                let grain = rng.below(sectors / 128);
                if !grains.contains(&grain) {
                    grains.push(grain);
                    commands.push(format!("write -c -P {pattern} {} 65536", grain * 65536));
                }
                continue;
            }
            let at = rng.below(sectors);
            let most = *rng.pick(&[4, 300, 5000]);
            let len = (1 + rng.below(most)).min(sectors - at);
            let (at, len) = (at * 512, len * 512);
            commands.push(match rng.below(6) {
                0 => format!("write -z {at} {len}"),
                1 => format!("write -z -u {at} {len}"),
                2 => format!("discard {at} {len}"),
                _ => format!("write -P {pattern} {at} {len}"),
            });
        }
        // Not every format takes every command (and each reports so): only the result counts.
        let mut args = vec!["-f", qemu_name(format)];
        for command in &commands {
            args.extend(["-c", command]);
        }
        args.push(path);
        tools::attempt("qemu-io", &args);
        let what = format!("{} {seed}, {sectors} sectors, {options}, {commands:?}", format.name());
        agrees(&image, format, &what);
    }
}

#[test]
fn vmdk_as_qemu_img_converts() {
    converted(Format::Vmdk);
}

#[test]
fn vmdk_as_guests_write() {
    guest_written(Format::Vmdk);
}

#[test]
fn vhd_as_qemu_img_converts() {
    converted(Format::Vhd);
}

#[test]
fn vhd_as_guests_write() {
    guest_written(Format::Vhd);
}

#[test]
fn vhdx_as_qemu_img_converts() {
    converted(Format::Vhdx);
}

#[test]
fn vhdx_as_guests_write() {
    guest_written(Format::Vhdx);
}

#[test]
fn vdi_as_qemu_img_converts() {
    converted(Format::Vdi);
}

#[test]
fn vdi_as_guests_write() {
    guest_written(Format::Vdi);
}
