//! Images with tables or headers after data, from sources that are read forward. There is one order: read again if the
//! source can; spool into spare room next to the disk; scratch; else request it (environment) or explain how to convert
//! (command line). Every disk is compared with `qemu-img convert -O raw`.
//!
//! Not here: images that fit the window in memory (`matrix`), and the decoders by themselves.

use std::fs;
use std::path::{Path, PathBuf};

use places::guest::{Dice, qemu_io, round};
use places::{Loop, Mount, output, run};

use crate::support::server::{Served, Server};
use crate::support::{self, MIB, Pod, assert_exit, count, import, import_piped, names, sha256, text};

/// An image, and what qemu-img reads from it.
struct Image {
    name: &'static str,
    path: PathBuf,
    sha256: String,
    /// The message when the data cannot be kept, with no space and with too little.
    refused: [&'static str; 2],
}

impl Image {
    fn of(name: &'static str, format: &str, path: PathBuf, refused: [&'static str; 2]) -> Self {
        let raw = path.with_extension("raw");
        run(
            "qemu-img",
            &["convert", "-f", format, "-O", "raw", path.to_str().unwrap(), raw.to_str().unwrap()],
        );
        let sha256 = sha256(&raw);
        fs::remove_file(raw).unwrap();
        Self { name, path, sha256, refused }
    }
}

const LATE: [&str; 2] = [
    "the image's tables come after its data, and the source can be read only once; convert",
    "bytes of spare room do not hold that data; convert",
];
const FAR: [&str; 2] = ["the vhdx image keeps headers at byte 69206016, far from its start; convert"; 2];

fn create(path: &Path, options: &str, size: &str) {
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", options, path.to_str().unwrap(), size]);
}

fn snapshot(path: &Path) {
    run("qemu-img", &["snapshot", "-c", "s", path.to_str().unwrap()]);
}

/// One data cluster after the other, then copies of all tables: the snapshot keeps the first ones.
fn plain(folder: &Path, noise: &Path) -> Image {
    let path = folder.join("plain");
    create(&path, "cluster_size=4k", "24M");
    qemu_io("qcow2", &path, &[format!("write -s {} 0 16M", noise.display())]);
    snapshot(&path);
    let rewrite: Vec<_> = (0..12).map(|i| format!("write -P {} {}M 512", i + 1, 2 * i + 1)).collect();
    qemu_io("qcow2", &path, &rewrite);
    run("qemu-img", &["resize", "-q", "-f", "qcow2", path.to_str().unwrap(), "+2M"]);
    Image::of("plain", "qcow2", path, LATE)
}

/// The same of packed clusters, which share sectors; some are smaller than one.
fn packed(folder: &Path, noise: &Path) -> Image {
    let (disk, path) = (folder.join("disk"), folder.join("packed"));
    run("qemu-img", &["create", "-q", "-f", "raw", disk.to_str().unwrap(), "24M"]);
    let small: Vec<_> = (0..32).map(|i| format!("write -P {} {}k 300k", i + 1, 512 * i)).collect();
    qemu_io("raw", &disk, &[format!("write -s {} 0 20M", noise.display())]);
    qemu_io("raw", &disk, &small);
    let (from, to) = (disk.to_str().unwrap(), path.to_str().unwrap());
    run("qemu-img", &["convert", "-O", "qcow2", "-c", "-o", "cluster_size=4k", from, to]);
    fs::remove_file(&disk).unwrap();
    snapshot(&path);
    let rewrite: Vec<_> = (0..24).map(|i| format!("write -P {} {}k 512", i + 1, 1024 * i + 8)).collect();
    qemu_io("qcow2", &path, &rewrite);
    Image::of("packed", "qcow2", path, LATE)
}

/// qemu-img gives a VHDX of no length a block table of 64 MiB, and puts the metadata behind it.
fn far(folder: &Path) -> Image {
    let path = folder.join("far");
    run("qemu-img", &["create", "-q", "-f", "vhdx", path.to_str().unwrap(), "0"]);
    Image::of("far", "vhdx", path, FAR)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    Pipe,
    PipeGz,
    /// HTTP, no ranges.
    Whole,
    WholeGz,
}

/// Where the disk goes, and the free space next to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    Device,
    DeviceScratch,
    Roomy,
    Tight,
    TightScratch,
}

#[test]
fn one_order_for_every_late_image() {
    let folder = tempfile::tempdir().unwrap();
    let noise = folder.path().join("noise");
    fs::write(&noise, Dice(8).bytes(1 << 20)).unwrap();
    let scratch = folder.path().join("scratch");
    fs::create_dir(&scratch).unwrap();
    let images = [plain(folder.path(), &noise), packed(folder.path(), &noise), far(folder.path())];
    let server = Server::start(folder.path());
    let device = Loop::new(26 * MIB, 512);
    let roomy = Mount::on_loop("ext4", 128 << 20);
    let tight = Mount::on_loop("ext4", 36 << 20);
    let everything = [
        (From::Pipe, &[To::Device, To::DeviceScratch, To::Roomy, To::Tight, To::TightScratch][..]),
        (From::PipeGz, &[To::Device, To::DeviceScratch, To::Roomy]),
        (From::Whole, &[To::Device, To::Tight]),
        (From::WholeGz, &[To::Device]),
    ];
    let mut done = 0;
    for image in &images {
        assert!(!streamable(image), "{}", image.name);
        let packed = image.path.with_extension("gz");
        let (from, to) = (image.path.display(), packed.display());
        run("sh", &["-c", &format!("gzip -1 -c '{from}' > '{to}'")]);
        for (from, places) in everything {
            for &to in places {
                let what = format!("{} {from:?} {to:?}", image.name);
                let target = match to {
                    To::Device | To::DeviceScratch => device.device.clone(),
                    To::Roomy => roomy.path().join("disk"),
                    To::Tight | To::TightScratch => tight.path().join("disk"),
                };
                let mut rest = vec![target.to_str().unwrap(), "--output", "json", "--force"];
                if matches!(to, To::DeviceScratch | To::TightScratch) {
                    rest.extend(["--scratch", scratch.to_str().unwrap()]);
                }
                let url =
                    |path: &Path| server.url(Served::Whole, path.file_name().unwrap().to_str().unwrap());
                let output = match from {
                    From::Pipe => import_piped(&image.path, &[&["-"], &rest[..]].concat()),
                    From::PipeGz => import_piped(&packed, &[&["-"], &rest[..]].concat()),
                    From::Whole => import(&[&[&*url(&image.path)], &rest[..]].concat()),
                    From::WholeGz => import(&[&[&*url(&packed)], &rest[..]].concat()),
                };
                let refused = match (from, to) {
                    (From::Pipe | From::PipeGz, To::Device) => Some(image.refused[0]),
                    (From::Pipe | From::PipeGz, To::Tight) => Some(image.refused[1]),
                    _ => None,
                };
                judge(&what, image, &target, &output, refused);
                for place in [roomy.path(), tight.path(), &scratch] {
                    assert!(names(place).is_empty(), "{what}: {:?} is left", names(place));
                }
                done += 1;
            }
        }
    }
    println!("{done} ways to import {} images with tables or headers after data", images.len());
}

/// The output of `importer inspect` about reading an image as a stream.
fn streamable(image: &Image) -> bool {
    let output = import(&["inspect", image.path.to_str().unwrap(), "--output", "json"]);
    assert_exit(&output, 0, image.name);
    support::report(&output)["streamable"].as_bool().unwrap()
}

fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = output(std::process::Command::new(program).args(arguments)).unwrap();
    assert_exit(&output, 0, program);
    text(&output.stdout)
}

/// Judges an import, and takes its disk away.
fn judge(what: &str, image: &Image, target: &Path, output: &std::process::Output, refused: Option<&str>) {
    match refused {
        None => {
            assert_exit(output, 0, what);
            let size = support::report(output)["virtual_size"].as_u64().unwrap();
            // A device may be longer than the disk.
            let front = format!("head -c {size} '{}' | sha256sum", target.display());
            let said = output_of("sh", &["-c", &front]);
            assert!(said.starts_with(&image.sha256), "{what}: the disk's bytes");
            if !target.starts_with("/dev") {
                assert_eq!(fs::metadata(target).unwrap().len(), size, "{what}: the disk's length");
                fs::remove_file(target).unwrap();
            }
        }
        Some(words) => {
            assert_exit(output, 8, what);
            let said = text(&output.stderr);
            assert!(said.contains(words), "{what}: {said}");
            assert_eq!(
                said.matches("qemu-img convert").count(),
                1,
                "{what}: the advice is given once: {said}"
            );
        }
    }
}

/// qemu writes tables before data in all other forms, however much a guest writes: a pipe onto a device, no scratch.
#[test]
fn streams_that_need_no_scratch_space() {
    let folder = tempfile::tempdir().unwrap();
    let noise = folder.path().join("noise");
    fs::write(&noise, Dice(9).bytes(1 << 20)).unwrap();
    let forms = [
        ("qcow2", "cluster_size=64k"),
        ("qcow2", "extended_l2=on"),
        ("vmdk", "subformat=monolithicSparse"),
        ("vpc", "subformat=dynamic,force_size=on"),
        ("vhdx", "subformat=dynamic"),
        ("vdi", "static=off"),
    ];
    let device = Loop::new(40 * MIB, 512);
    for (format, options) in forms {
        let path = folder.path().join("image");
        run("qemu-img", &["create", "-q", "-f", format, "-o", options, path.to_str().unwrap(), "40M"]);
        let mut dice = Dice(10);
        for block in 0..16u64 {
            let write = format!("write -s {} {}M 2M", noise.display(), block * 7 % 20 * 2);
            qemu_io(format, &path, &[write]);
        }
        qemu_io(format, &path, &round(&mut dice, 40 * MIB, &noise));
        let image = Image::of(format, format, path, LATE);
        assert!(streamable(&image), "{format} {options}");
        let target = device.device.to_str().unwrap();
        let output = import_piped(&image.path, &["-", target, "--output", "json", "--force"]);
        judge(&format!("{format} {options}"), &image, &device.device, &output, None);
        fs::remove_file(&image.path).unwrap();
    }
}

/// Images of packed clusters after random writes and snapshots, by pipe, in the free space next to the disk.
#[test]
fn random_snapshots() {
    let folder = tempfile::tempdir().unwrap();
    let noise = folder.path().join("noise");
    fs::write(&noise, Dice(11).bytes(256 << 10)).unwrap();
    let options = [
        "cluster_size=4k",
        "cluster_size=512",
        "cluster_size=64k,extended_l2=on",
        "cluster_size=16k,compression_type=zstd",
    ];
    let (path, converted) = (folder.path().join("image"), folder.path().join("converted"));
    let target = folder.path().join("disk");
    let images = count(8, 200);
    for seed in 0..images {
        let mut dice = Dice(seed + 300);
        let options = options[usize::try_from(seed).unwrap() % options.len()];
        let size = 32 * MIB;
        let writes = |dice: &mut Dice, path: &Path| {
            for _ in 0..3 {
                qemu_io("qcow2", path, &round(dice, size, &noise));
            }
            qemu_io("qcow2", path, &[format!("write -s {} {}k 3M", noise.display(), seed * 37 % 20_000)]);
        };
        create(&path, options, &size.to_string());
        writes(&mut dice, &path);
        let (from, to) = (path.to_str().unwrap(), converted.to_str().unwrap());
        run("qemu-img", &["convert", "-O", "qcow2", "-c", "-o", options, from, to]);
        snapshot(&converted);
        writes(&mut dice, &converted);
        fs::remove_file(&path).unwrap();
        let image = Image::of("random", "qcow2", converted.clone(), LATE);
        let output = import_piped(&image.path, &["-", target.to_str().unwrap(), "--output", "json"]);
        judge(&format!("seed {seed} {options}"), &image, &target, &output, None);
    }
    println!("{images} images with snapshots");
}

/// Under the contract the controller is asked for scratch, once; no image written by qemu leads to that from a source a pod
/// has, as they can be read again, so this is a VMDK with grains in another order than its disk.
#[test]
fn the_controller_is_asked_for_scratch_once() {
    let folder = tempfile::tempdir().unwrap();
    let (raw, path) = (folder.path().join("raw"), folder.path().join("image"));
    fs::write(&raw, Dice(12).bytes(256 << 10)).unwrap();
    let (from, to) = (raw.to_str().unwrap(), path.to_str().unwrap());
    run("qemu-img", &["convert", "-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized", from, to]);
    let mut bytes = fs::read(&path).unwrap();
    let first = 64 << 10;
    let len = u32::from_le_bytes(bytes[first + 8..first + 12].try_into().unwrap()) as usize;
    let second = first + (12 + len).next_multiple_of(512);
    assert_eq!((bytes[first], bytes[second]), (0, 128), "two grains of 128 sectors");
    bytes.swap(first, second);
    // The header places the directory at the end, so the stream is walked from grain to grain.
    bytes[56..64].fill(0xff);
    fs::write(&path, bytes).unwrap();
    let server = Server::start(folder.path());
    let pod = Pod::new();
    let mut command = pod.command(&server.url(Served::Whole, "image"), "1Gi");
    assert_exit(&output(&mut command).unwrap(), 0, "asked");
    assert!(pod.message().contains(r#""scratchSpaceRequired":true"#), "{}", pod.message());
    assert!(names(&pod.path("data")).is_empty());
    fs::create_dir(pod.path("scratch")).unwrap();
    assert_exit(&output(&mut command).unwrap(), 1, "scratch does not help");
    let message = pod.message();
    assert!(message.contains("out of order; convert the image first (qemu-img convert"), "{message}");
}
