//! Disks as large as their formats allow, with data at the start, in the middle and at the end: onto an XFS that is
//! far smaller, where only data takes room, and onto an ext4, whose files are not that large.
//!
//! Judged by the disk's length and by its data (SEEK_DATA, 64 KiB at a time, SHA-256 of each piece) against what was
//! written into the image; holes are never read.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use places::guest::{Dice, qemu_io};
use places::{Mount, output, run};
use rustix::fs::SeekFrom;
use sha2::{Digest, Sha256};

use crate::support::server::{Served, Server};
use crate::support::{self, KIB, MIB, Pod, assert_exit, count, importer, measured, names, report, text};

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
/// Most memory that may be resident.
const PEAK: u64 = 64 * MIB;
/// Data is compared by this.
const PIECE: u64 = 64 * KIB;

type Pieces = BTreeMap<u64, [u8; 32]>;

/// Bytes written at an offset of the disk.
struct Written {
    at: u64,
    bytes: Vec<u8>,
}

/// Writes of the guest: the first cluster, something crooked in the middle, the last cluster.
fn writes(size: u64) -> Vec<Written> {
    let mut dice = Dice(size);
    [(0, 100 * KIB), (size / 2 - 1536, 70 * KIB), (size / 3 / MIB * MIB, 512), (size - 64 * KIB, 64 * KIB)]
        .map(|(at, len)| Written { at, bytes: dice.bytes(len as usize) })
        .into()
}

/// The pieces that hold something else than zeroes, and their hashes.
fn wanted(writes: &[Written]) -> Pieces {
    let mut pieces: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for Written { at, bytes } in writes {
        for (i, &byte) in bytes.iter().enumerate() {
            let at = at + i as u64;
            let piece = pieces.entry(at / PIECE).or_insert_with(|| vec![0; PIECE as usize]);
            piece[(at % PIECE) as usize] = byte;
        }
    }
    pieces.into_iter().map(|(number, bytes)| (number, Sha256::digest(bytes).into())).collect()
}

/// The same of a file, by its data alone; and the bytes of data there are.
fn found(path: &Path) -> (Pieces, u64) {
    let file = File::open(path).unwrap();
    let mut pieces = Pieces::new();
    let (mut at, mut data) = (0, 0);
    while let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap();
        data += end - start;
        for number in start / PIECE..end.div_ceil(PIECE) {
            let mut piece = vec![0; PIECE as usize];
            let mut got = 0;
            while got < piece.len() {
                match file.read_at(&mut piece[got..], number * PIECE + got as u64).unwrap() {
                    0 => break,
                    n => got += n,
                }
            }
            if piece.iter().any(|&byte| byte != 0) {
                pieces.insert(number, Sha256::digest(&piece).into());
            }
        }
        at = end;
    }
    (pieces, data)
}

/// A format at a size.
struct Form {
    name: &'static str,
    qemu: &'static str,
    seen: &'static str,
    options: &'static str,
    size: u64,
}

/// Writes the image with qemu; a format without write support is converted from a raw disk.
fn make(form: &Form, folder: &Path) -> (PathBuf, Vec<Written>) {
    let image = folder.join("image");
    let path = image.to_str().unwrap();
    let writes = writes(form.size);
    let mut commands = Vec::new();
    for (number, Written { at, bytes }) in writes.iter().enumerate() {
        let noise = folder.join(format!("noise{number}"));
        fs::write(&noise, bytes).unwrap();
        commands.push(format!("write -s {} {at} {}", noise.display(), bytes.len()));
    }
    let converted = form.options.contains("streamOptimized");
    let (kind, written) = if converted { ("raw", folder.join("raw")) } else { (form.qemu, image.clone()) };
    let size = form.size.to_string();
    let mut arguments = vec!["create", "-q", "-f", kind];
    if !form.options.is_empty() && !converted {
        arguments.extend(["-o", form.options]);
    }
    arguments.extend([written.to_str().unwrap(), &size]);
    run("qemu-img", &arguments);
    qemu_io(kind, &written, &commands);
    if converted {
        let from = written.to_str().unwrap();
        run("qemu-img", &["convert", "-f", "raw", "-O", form.qemu, "-o", form.options, from, path]);
        fs::remove_file(written).unwrap();
    }
    (image, writes)
}

#[test]
fn every_format_at_its_maximum_onto_xfs() {
    let mount = Mount::on_loop("xfs", GIB);
    let form = |name, qemu, seen, options, size| Form { name, qemu, seen, options, size };
    let forms = [
        form("qcow2", "qcow2", "qcow2", "compat=1.1", 64 * TIB),
        form("VHDX", "vhdx", "vhdx", "subformat=dynamic", 64 * TIB),
        form("VHD", "vpc", "vhd", "subformat=dynamic,force_size=on", 2040 * GIB),
        // 512 TiB less what qemu's limit on the map takes: its map alone is 2 GiB, so only in the full count.
        form("VDI", "vdi", "vdi", "", if count(0, 1) == 1 { 512 * TIB - 128 * MIB } else { 64 * TIB }),
        // VMware's products allow 2 TiB for a hosted disk's extents; for any disk, 62 TiB.
        form(
            "VMDK",
            "vmdk",
            "vmdk",
            "subformat=monolithicSparse",
            if count(0, 1) == 1 { 62 * TIB } else { 8 * TIB },
        ),
        form("VMDK streamOptimized", "vmdk", "vmdk", "subformat=streamOptimized", 2 * TIB),
        // The largest file of the ext4 that sources lie on.
        form("raw", "raw", "raw", "", 16 * TIB - MIB),
    ];
    for form in &forms {
        let folder = tempfile::tempdir().unwrap();
        let (image, writes) = make(form, folder.path());
        let server = Server::start(folder.path());
        let target = mount.path().join("disk");
        // Ranges everywhere; streams where the whole image is small enough to be one.
        let local = image.to_str().unwrap().to_owned();
        let mut sources = vec![("file", local)];
        if image.metadata().unwrap().len() < GIB {
            sources.push(("http", server.url(Served::Ranges, "image")));
            sources.push(("http, no ranges", server.url(Served::Whole, "image")));
        }
        for (name, source) in &sources {
            let what = format!("{} of {} GiB from {name}", form.name, form.size / GIB);
            let started = std::time::Instant::now();
            let mut command = importer();
            command.args([source, target.to_str().unwrap(), "--output", "json"]);
            let (ran, peak) = measured(&mut command);
            assert_exit(&ran, 0, &what);
            let told = report(&ran);
            assert_eq!(told["virtual_size"], form.size, "{what}");
            assert_eq!(told["format"], form.seen, "{what}");
            let meta = fs::metadata(&target).unwrap();
            assert_eq!(meta.len(), form.size, "{what}");
            let (pieces, data) = found(&target);
            assert!(pieces == wanted(&writes), "{what}: the disk's data");
            assert!(data <= MIB && meta.blocks() * 512 <= MIB, "{what}: {data} bytes of data");
            assert!(peak <= PEAK, "{what}: {peak} bytes resident");
            assert_eq!(names(mount.path()), ["disk"], "{what}");
            fs::remove_file(&target).unwrap();
            println!(
                "{what}: {} pieces equal, {} KiB of data, {} MiB resident, {:.1} s",
                pieces.len(),
                data / KIB,
                peak / MIB,
                started.elapsed().as_secs_f64()
            );
        }
    }
}

#[test]
fn ext4_reports_that_its_largest_file_is_too_small() {
    let mount = Mount::on_loop("ext4", 64 * MIB);
    for (qemu, options) in [("qcow2", "compat=1.1"), ("vhdx", "subformat=dynamic")] {
        let form = Form { name: qemu, qemu, seen: qemu, options, size: 64 * TIB };
        let folder = tempfile::tempdir().unwrap();
        let (image, _) = make(&form, folder.path());
        let target = mount.path().join("disk");
        let ran = support::import(&[image.to_str().unwrap(), target.to_str().unwrap()]);
        assert_exit(&ran, 5, qemu);
        let said = text(&ran.stderr);
        let words = format!("has no files as large as {} bytes: its largest file is too small", form.size);
        assert!(said.contains(&words), "{qemu}: {said}");
        assert!(names(mount.path()).is_empty(), "{qemu}: {:?} is left", names(mount.path()));

        // By environment the volume is too small before that.
        let server = Server::start(folder.path());
        let pod = Pod::with_volume(mount.path());
        let ran = output(&mut pod.command(&server.url(Served::Ranges, "image"), "100Ti")).unwrap();
        assert_exit(&ran, 1, qemu);
        let message = pod.message();
        let words = format!(
            "Unable to process data: virtual image size {} is larger than the reported available storage ",
            form.size
        );
        assert!(message.starts_with(&words), "{qemu}: {message}");
        assert!(names(mount.path()).is_empty(), "{qemu}: nothing is left");
        println!("{qemu}: {}", said.lines().last().unwrap_or_default());
    }
}
