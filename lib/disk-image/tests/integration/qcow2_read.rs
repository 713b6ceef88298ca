//! qcow2 as tools write it: what we read equals `qemu-img convert -O raw`, and what imago and 7-Zip see in it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use disk_image::Format;
use imago::{DenyImplicitOpenGate, FormatAccess, FormatDriverBuilder};

use crate::support::mutate::Rng;
use crate::support::{self, Options, count, first_difference, read_image_with, tools};

/// Reads `image` in three ways (size known and not, small and large slices), compares with the judge and gives the disk.
fn agrees(image: &Path, what: &str) -> Vec<u8> {
    let bytes = std::fs::read(image).unwrap();
    let judge = tools::qemu_raw("qcow2", image);
    for (size_known, slice) in [(true, u64::MAX / 2), (true, 7), (false, 1000)] {
        let options = Options { size_known, slice, ..Options::default() };
        let ours = read_image_with(&bytes, Format::Qcow2, &options)
            .unwrap_or_else(|e| panic!("{what}: {e} ({options:?})"));
        if let Some(difference) = first_difference(&ours, &judge) {
            panic!("{what}: {difference} ({options:?})");
        }
    }
    judge
}

/// The disk as imago reads it.
fn imago_raw(image: &Path) -> std::io::Result<Vec<u8>> {
    let file = imago::file::File::try_from(std::fs::File::open(image)?)?;
    let qcow2 =
        imago::qcow2::Qcow2::<imago::file::File>::builder(file).open(DenyImplicitOpenGate::default())?;
    let access = FormatAccess::new(qcow2);
    let mut disk = vec![0u8; access.size() as usize];
    access.read(&mut disk[..], 0)?;
    Ok(disk)
}

/// Options of an image, drawn.
#[derive(Debug)]
struct Drawn {
    options: String,
    /// zstd or extended L2, which only qemu reads.
    qemu_only: bool,
    old: bool,
    /// Its refcounts have room for snapshots.
    snapshots: bool,
    cluster: u64,
    size: u64,
}

fn draw(rng: &mut Rng) -> Drawn {
    let old = rng.one_in(5);
    let extended = !old && rng.one_in(4);
    let zstd = !old && rng.one_in(3);
    let bits = if rng.one_in(2) { 16 } else { rng.within(if extended { 14 } else { 9 }..22) };
    let cluster = 1 << bits;
    let mut options = format!("cluster_size={cluster},compat={}", if old { "0.10" } else { "1.1" });
    if extended {
        options.push_str(",extended_l2=on");
    }
    if zstd {
        options.push_str(",compression_type=zstd");
    }
    if !old && rng.one_in(4) {
        options.push_str(",lazy_refcounts=on");
    }
    let mut refcount_bits = 16;
    if !old && rng.one_in(3) {
        refcount_bits = 1 << rng.below(7);
        write!(options, ",refcount_bits={refcount_bits}").unwrap();
    }
    let size = match rng.below(10) {
        0 => 0,
        1 => 512,
        _ => rng.below(9 << 20) & !511,
    };
    Drawn { options, qemu_only: extended || zstd, old, snapshots: refcount_bits >= 4, cluster, size }
}

/// `qemu-img convert` of a drawn disk.
fn converted(dir: &Path, drawn: &Drawn, rng: &mut Rng) -> (PathBuf, String) {
    let (raw, image) = (dir.join("raw"), dir.join("image"));
    std::fs::write(&raw, support::qcow2::disk(rng, drawn.size as usize, 16)).unwrap();
    let mut args = vec!["convert", "-f", "raw", "-O", "qcow2", "-o", &drawn.options];
    let mut packed = false;
    match rng.below(4) {
        0 => {}
        1 => args.extend(["-W", "-m", "8"]),
        _ => packed = true,
    }
    if packed {
        args.extend(["-c", "-W", "-m", "4"]);
    }
    if rng.one_in(4) {
        args.extend(["-S", "0"]);
    }
    args.extend([raw.to_str().unwrap(), image.to_str().unwrap()]);
    tools::run("qemu-img", &args);
    (image.clone(), args.join(" "))
}

/// An image written as a guest writes: in any order, with zeroes, discards, compressed clusters and snapshots between.
fn guest_written(dir: &Path, drawn: &Drawn, rng: &mut Rng) -> (PathBuf, String) {
    let (image, noise) = (dir.join("image"), dir.join("noise"));
    std::fs::write(&noise, rng.bytes(200_000)).unwrap();
    let path = image.to_str().unwrap().to_owned();
    let mode = ["off", "metadata", "falloc", "full"][(rng.below(8) as usize).saturating_sub(4)];
    let options = format!("{},preallocation={mode}", drawn.options);
    tools::run("qemu-img", &["create", "-f", "qcow2", "-o", &options, &path, &drawn.size.to_string()]);
    let mut script = format!("create {options} {}", drawn.size);
    for round in 0..=rng.below(3) {
        let mut args = vec!["-f".to_owned(), "qcow2".to_owned(), "-d".to_owned(), "unmap".to_owned()];
        for _ in 0..rng.within(1..40) {
            args.extend(["-c".to_owned(), command(drawn, &noise, rng)]);
        }
        args.push(path.clone());
        // A command may be refused by the image (compressed over allocated); what counts is what is read back.
        tools::attempt("qemu-io", &args);
        write!(script, " | {}", args.join(" ")).unwrap();
        if drawn.snapshots && rng.one_in(3) {
            tools::run("qemu-img", &["snapshot", "-c", &format!("s{round}"), &path]);
            script.push_str(" | snapshot");
        }
    }
    if !drawn.old && rng.one_in(6) {
        tools::run("qemu-img", &["resize", "-f", "qcow2", &path, &format!("+{}", rng.within(1..64) * 4096)]);
        script.push_str(" | resize");
    }
    (image, script)
}

fn command(drawn: &Drawn, noise: &Path, rng: &mut Rng) -> String {
    let len = (512 * rng.within(1..1 + 2 * drawn.cluster.max(4096) / 512)).min(drawn.size);
    let at = rng.below(drawn.size - len + 1) & !511;
    let cluster = rng.below(drawn.size / drawn.cluster + 1) * drawn.cluster;
    match rng.below(10) {
        0 => format!("write -z {at} {len}"),
        1 => format!("write -z -u {at} {len}"),
        2 => format!("discard {at} {len}"),
        3 => format!("discard {cluster} {}", drawn.cluster),
        4 | 5 => format!("write -c -P {} {cluster} {}", rng.below(256), drawn.cluster),
        6 => format!("write -P {} {at} {len}", rng.below(256)),
        _ => format!("write -s {} {at} {len}", noise.to_str().unwrap()),
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
        for extra in ["", ",compression_type=zstd", ",compat=0.10", ",extended_l2=on"] {
            if bits < 14 && extra.contains("extended") {
                continue;
            }
            for packed in [&["-c"][..], &[]] {
                let image = dir.path().join("image");
                let options = format!("cluster_size={}{extra}", 1 << bits);
                let (from, to) = (raw.to_str().unwrap(), image.to_str().unwrap());
                let mut args = vec!["convert", "-f", "raw", "-O", "qcow2", "-o", &options, from, to];
                args.splice(1..1, packed.iter().copied());
                tools::run("qemu-img", &args);
                let what = format!("{options} {packed:?}");
                assert_eq!(first_difference(&agrees(&image, &what), &disk), None, "{what}");
            }
        }
    }
}

#[test]
fn generated_images_agree_with_qemu_img_and_second_readers() {
    let images = count(40, 1000);
    let (mut by_imago, mut by_seven_zip, mut unread) = (0, 0, 0);
    for seed in 0..images {
        let dir = tempfile::tempdir().unwrap();
        let mut rng = Rng::new(seed);
        let drawn = draw(&mut rng);
        let (image, how) = if rng.one_in(3) {
            converted(dir.path(), &drawn, &mut rng)
        } else {
            guest_written(dir.path(), &drawn, &mut rng)
        };
        let what = format!("image {seed}, {drawn:?}: {how}");
        let disk = agrees(&image, &what);
        if drawn.qemu_only {
            continue;
        }
        by_imago += 1;
        let other = imago_raw(&image).unwrap_or_else(|e| panic!("imago, {what}: {e}"));
        assert_eq!(first_difference(&disk, &other), None, "imago, {what}");
        // 7-Zip takes no disk of no bytes, and stumbles over a few others; what it does read must be equal.
        if drawn.size > 0 {
            match tools::seven_zip_raw("qcow", &image) {
                Some(other) => {
                    by_seven_zip += 1;
                    assert_eq!(first_difference(&disk, &other), None, "7zz, {what}");
                }
                None => {
                    unread += 1;
                    println!("7zz does not read {what}");
                }
            }
        }
    }
    println!(
        "{images} images agree with qemu-img, {by_imago} of them with imago, {by_seven_zip} with 7zz ({unread} unread)"
    );
    assert!(by_imago * 3 >= images && by_seven_zip * 4 >= images, "too few for the second readers");
    assert!(unread * 10 <= by_seven_zip, "7zz leaves too many unread");
}

#[test]
fn the_largest_disks_open_and_their_ends_are_found() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let path = image.to_str().unwrap();
    // The most an L1 table of 32 MiB covers, or what the issue names.
    for (cluster, size, extra) in [
        (512, 128u64 << 30, ""),
        (65_536, 64 << 40, ""),
        (65_536, 64 << 40, ",extended_l2=on"),
        (2 << 20, 64 << 40, ""),
    ] {
        let options = format!("cluster_size={cluster}{extra}");
        tools::run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &options, path, &size.to_string()]);
        let write = format!("write -P 0x5a {} 512", size - 512);
        tools::run("qemu-io", &["-f", "qcow2", "-c", &write, path]);
        let bytes = std::fs::read(&image).unwrap();
        let mut last = None;
        let layout = support::drive(&bytes, Format::Qcow2, &Options::default(), &mut |_, extent| {
            last = Some(*extent);
            Ok(())
        })
        .unwrap();
        assert_eq!(layout.virtual_size(), size);
        let last = last.unwrap();
        let range = last.host_range().unwrap();
        assert_eq!(support::part(&bytes, &(range.end - 512..range.end)), [0x5a; 512], "{options}");
    }
}
