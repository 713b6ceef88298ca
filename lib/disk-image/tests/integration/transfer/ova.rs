//! OVAs by every way of reading: the disk equals what `qemu-img` reads from the file in the archive. Refusals are the same by
//! every way. Descriptors by themselves are tested next to their parser.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use disk_image::transfer::{self, Image, Limits, Progress, Request, Spool};
use disk_image::{Access, Error, Format, Kind};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

use crate::support::count;
use crate::support::mutate::mutate;
use crate::transfer::memory::Memory;
use crate::transfer::{assert_same, disk, image, judged, once, run, text};

/// A descriptor of disks in `files`.
fn descriptor(files: &[&str]) -> Vec<u8> {
    let mut text =
        r#"<?xml version="1.0"?><Envelope xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1">"#.to_owned();
    for (n, name) in files.iter().enumerate() {
        text += &format!(r#"<References><File ovf:id="file{n}" ovf:href="{name}"/></References>"#);
    }
    for n in 0..files.len() {
        // Another size than the disk's own.
        text += &format!(
            r#"<DiskSection><Disk ovf:fileRef="file{n}" ovf:capacity="1" ovf:diskId="d{n}"/></DiskSection>"#
        );
    }
    (text + "</Envelope>").into_bytes()
}

/// Names and contents.
type Files<'a> = Vec<(&'a str, &'a [u8])>;

/// A tar of files.
fn archive(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

const MANIFEST: (&str, &[u8]) = ("vm.mf", b"SHA1(disk.vmdk)= 0000000000000000000000000000000000000000\n");

/// An OVA with the disk `bytes` in the file `name`.
fn ova(name: &str, bytes: &[u8]) -> Vec<u8> {
    archive(&[("vm.ovf", &descriptor(&[name])), MANIFEST, (name, bytes), ("vm.nvram", b"not a disk")])
}

fn opened(source: Memory) -> Result<Image, Error> {
    transfer::open(Request {
        source: Arc::new(source),
        format: None,
        limits: Limits::default(),
        progress: Progress::new(),
        spool: Spool::default(),
    })
}

const WAYS: [(Access, bool); 4] =
    [(Access::Ranges, true), (Access::Again, true), (Access::Once, true), (Access::Once, false)];

fn source(bytes: &[u8], (access, sized): &(Access, bool)) -> Memory {
    let mut source = Memory::new(bytes.to_vec(), access.clone());
    source.sized = *sized;
    source
}

/// Imports `ova` by every way and compares.
fn imports(dir: &TempDir, ova: &[u8], want: &[u8], what: &str) {
    let out = dir.path().join("out.img");
    for way in &WAYS {
        let what = format!("{what} {way:?}");
        let (report, _) = once(source(ova, way), &out).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_same(&out, want, &what);
        assert_eq!(report.virtual_size, want.len() as u64, "{what}");
    }
}

/// The one refusal of `ova` by every way, before anything is written.
fn refused(ova: &[u8], kind: Kind, word: &str, what: &str) {
    for way in &WAYS {
        let error = opened(source(ova, way)).map(|_| ()).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(word), "{what} {way:?}: {error}");
    }
}

fn packed(dir: &TempDir, program: &str, bytes: &[u8]) -> Vec<u8> {
    let path = dir.path().join("packed");
    std::fs::write(&path, bytes).unwrap();
    run(program, &["-k", "-f", "-1", "-S", ".z", text(&path)]);
    std::fs::read(dir.path().join("packed.z")).unwrap()
}

#[test]
fn the_disk_of_an_ova_by_every_way() {
    let dir = TempDir::new().unwrap();
    let stream = image(&dir, &["-O", "vmdk", "-o", "subformat=streamOptimized"]);
    let want = judged(&dir, &stream);
    imports(&dir, &ova("disk.vmdk", &stream), &want, "streamOptimized");
    for options in
        [&["-O", "vmdk"][..], &["-O", "qcow2", "-c"], &["-O", "vdi"], &["-O", "vhdx"], &["-O", "raw"]]
    {
        let bytes = image(&dir, options);
        imports(&dir, &ova("disk.vmdk", &bytes), &judged(&dir, &bytes), &format!("{options:?}"));
    }
    let fixed = image(&dir, &["-O", "vpc", "-o", "subformat=fixed,force_size=on"]);
    imports(&dir, &ova("disk.vhd", &fixed), &disk(), "fixed VHD");
    // One layer of compression, around the disk or around the archive.
    for program in ["gzip", "xz"] {
        let disk = ova("disk.vmdk.z", &packed(&dir, program, &stream));
        imports(&dir, &disk, &want, &format!("disk in {program}"));
        imports(
            &dir,
            &packed(&dir, program, &ova("disk.vmdk", &stream)),
            &want,
            &format!("OVA in {program}"),
        );
        refused(&packed(&dir, program, &disk), Kind::Refused, "compressed twice", program);
    }
    let opened = opened(source(&ova("disk.vmdk", &stream), &WAYS[0])).unwrap();
    assert_eq!((opened.file(), opened.is_tar()), (Some("disk.vmdk"), false));
    assert_eq!((opened.format(), opened.virtual_size()), (Format::Vmdk, Some(want.len() as u64)));
}

#[test]
fn every_dialect_of_tar_is_an_ova() {
    let dir = TempDir::new().unwrap();
    let stream = image(&dir, &["-O", "vmdk", "-o", "subformat=streamOptimized"]);
    let want = judged(&dir, &stream);
    let long = format!("{}.vmdk", "name ".repeat(30).trim_end());
    for name in ["disk.vmdk", "a disk.vmdk", &long] {
        let folder = dir.path().join(format!("ova{}", name.len()));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("VM.OVF"), descriptor(&[&name.replace(' ', "%20")])).unwrap();
        std::fs::write(folder.join(name), &stream).unwrap();
        for format in ["ustar", "gnu", "pax", "oldgnu"] {
            if format == "ustar" && name == long {
                continue;
            }
            for prefix in ["", "./"] {
                let tar = dir.path().join("tar");
                let (format, ovf, name) =
                    (format!("--format={format}"), format!("{prefix}VM.OVF"), format!("{prefix}{name}"));
                run("tar", &["-cf", text(&tar), &format, "-C", text(&folder), &ovf, &name]);
                imports(&dir, &std::fs::read(&tar).unwrap(), &want, &format!("{format} {name}"));
            }
        }
    }
}

#[test]
fn a_source_with_ranges_is_read_from_the_disk_on() {
    let dir = TempDir::new().unwrap();
    let stream = image(&dir, &["-O", "vmdk", "-o", "subformat=streamOptimized"]);
    let large = vec![1; 16 << 20];
    let files = [("vm.ovf", &descriptor(&["disk.vmdk"])[..]), ("first.iso", &large), ("disk.vmdk", &stream)];
    let source = source(&archive(&files), &WAYS[0]);
    let given = source.given.clone();
    let out = dir.path().join("out.img");
    once(source, &out).unwrap();
    let read = given.load(Ordering::SeqCst);
    assert!(read < stream.len() as u64 + (1 << 20), "{read} bytes are read for a disk of {}", stream.len());
}

#[test]
fn archives_that_are_no_ova_are_as_before() {
    let descriptor = descriptor(&["disk.vmdk"]);
    for (what, files) in [
        ("no descriptor", vec![("disk.vmdk", &b"KDMV"[..])]),
        ("a descriptor that is not the first", vec![("a", &b"a"[..]), ("vm.ovf", &descriptor)]),
        ("a folder of that name", vec![("vm.ovf/", &b""[..])]),
        ("another ending", vec![("vm.ovfx", &descriptor[..])]),
    ] {
        for way in &WAYS {
            let image = opened(source(&archive(&files), way)).unwrap();
            assert!(image.is_tar() && image.file().is_none(), "{what} {way:?}");
        }
    }
    // A format that was given is not looked into.
    let bytes = ova("disk.vmdk", b"KDMV");
    let image = transfer::open(Request {
        source: Arc::new(source(&bytes, &WAYS[0])),
        format: Some(Format::Raw),
        limits: Limits::default(),
        progress: Progress::new(),
        spool: Spool::default(),
    });
    assert_eq!(image.unwrap().virtual_size(), Some(bytes.len() as u64));
}

#[test]
fn ova_refusals() {
    use Kind::{Corrupt, Refused};
    let (one, disk) = (descriptor(&["disk.vmdk"]), ("disk.vmdk", &[7_u8; 5000][..]));
    let two = descriptor(&["a.vmdk", "b.vmdk"]);
    let many: Vec<String> = (0..3000).map(|n| format!("{n}.vmdk")).collect();
    let many = descriptor(&many.iter().map(String::as_str).collect::<Vec<_>>());
    let huge = [&one[..], &vec![b' '; 1 << 20]].concat();
    let pieces = String::from_utf8(one.clone()).unwrap().replace("<File", "<File ovf:chunkSize='7'");
    #[rustfmt::skip] // A table.
    let cases: Vec<(&str, Files<'_>, Kind, &str)> = vec![
        ("two disks", vec![("vm.ovf", &two), ("a.vmdk", b"a"), ("b.vmdk", b"b")], Refused, "2 disks (a.vmdk, b.vmdk)"),
        ("many disks", vec![("vm.ovf", &many)], Refused, "3000 disks (0.vmdk, 1.vmdk, 2.vmdk, 3.vmdk, 4.vmdk, 5.vmdk, 6.vmdk, 7.vmdk, …)"),
        ("no disk", vec![("vm.ovf", b"<Envelope/>"), disk], Refused, "no disk with a file"),
        ("a disk that is not there", vec![("vm.ovf", &one), MANIFEST], Refused, "holds no such file"),
        ("a disk in pieces", vec![("vm.ovf", pieces.as_bytes()), disk], Refused, "cut into several files"),
        ("an empty disk", vec![("vm.ovf", &one), ("disk.vmdk", b"")], Refused, "sparse or empty"),
        ("a huge descriptor", vec![("vm.ovf", &huge), disk], Refused, "the most that are read"),
        ("no XML", vec![("vm.ovf", b"<Disk fileRef="), disk], Corrupt, "not XML"),
        ("a document type", vec![("vm.ovf", b"<!DOCTYPE a><a/>"), disk], Corrupt, "not XML"),
    ];
    for (what, files, kind, word) in cases {
        refused(&archive(&files), kind, word, what);
    }
    // Cut anywhere: in the descriptor, in a header, in front of the disk.
    let whole = archive(&[("vm.ovf", &one), MANIFEST, disk]);
    for len in [512, 600, 1024, 1100, 1536, 1600, 2048, 2060, 2500] {
        for way in &WAYS {
            assert!(opened(source(&whole[..len], way)).is_err(), "cut at {len} {way:?}");
        }
    }
    // In the disk: by the archive's length, or when the stream ends.
    let dir = TempDir::new().unwrap();
    for way in &WAYS {
        let error = once(source(&whole[..whole.len() - 4096], way), &dir.path().join("out")).unwrap_err();
        assert!(error.to_string().contains("truncated"), "{way:?}: {error}");
    }
    // Lengths that no archive has, and more files than are looked through.
    let header = |size: u64, kind: EntryType| {
        let mut header = Header::new_gnu();
        header.set_path("disk.vmdk").unwrap();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    };
    let front = &archive(&[("vm.ovf", &one)])[..1024 + one.len().next_multiple_of(512) - 512];
    for size in [u64::MAX, 1 << 63, 1 << 40] {
        for kind in [EntryType::Regular, EntryType::GNUSparse, EntryType::XHeader, EntryType::Directory] {
            for way in &WAYS {
                let bytes = [front, &header(size, kind), &[0; 4096]].concat();
                let result = once(source(&bytes, way), &dir.path().join("out"));
                assert!(result.is_err(), "{size} {kind:?} {way:?}");
            }
        }
    }
    let names: Vec<String> = (0..2000).map(|n| format!("{n}")).collect();
    let mut files: Files<'_> = vec![("vm.ovf", &one)];
    files.extend(names.iter().map(|name| (name.as_str(), &b"x"[..])));
    files.push(disk);
    refused(&archive(&files), Refused, "holds no such file", "too many files");
}

#[test]
fn mutants_of_an_ova_have_one_verdict_by_every_way() {
    let dir = TempDir::new().unwrap();
    let small = dir.path().join("small.vmdk");
    run("qemu-img", &["create", "-q", "-f", "vmdk", "-o", "subformat=streamOptimized", text(&small), "1M"]);
    run("qemu-io", &["-f", "vmdk", "-c", "write -c -P 7 64k 64k", text(&small)]);
    let base = ova("disk.vmdk", &std::fs::read(&small).unwrap());
    let out = dir.path().join("out");
    let (mut read, mut refused) = (0, 0);
    for seed in 0..count(150, 20_000) {
        let mut mutant = base.clone();
        let damage = mutate(&mut mutant, &[0..512, 512..1100, 1024..2600, 0..3000], seed);
        // The sums right again, where there are headers.
        if !seed.is_multiple_of(4) {
            for at in (0..mutant.len().min(4096) / 512 * 512).step_by(512) {
                let header = &mut mutant[at..at + 512];
                if &header[257..262] == b"ustar" {
                    header[148..156].fill(b' ');
                    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
                    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
                }
            }
        }
        let verdicts = WAYS.each_ref().map(|way| verdict(&mutant, way, &out));
        for (verdict, way) in verdicts.iter().zip(&WAYS) {
            assert_eq!(
                verdict.is_ok(),
                verdicts[0].is_ok(),
                "mutant {seed} ({damage}) {way:?}: {verdicts:?}"
            );
            assert!(
                verdict.is_err() || *verdict == verdicts[0],
                "mutant {seed} ({damage}) {way:?}: other bytes"
            );
        }
        match verdicts[0] {
            Ok(_) => read += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(read > 0 && refused > 0, "{read} read, {refused} refused");
}

/// A sum of the disk, or the message of the failure.
fn verdict(bytes: &[u8], way: &(Access, bool), out: &Path) -> Result<u64, String> {
    once(source(bytes, way), out).map_err(|error| error.to_string())?;
    let disk = std::fs::read(out).unwrap();
    Ok(disk.iter().fold(disk.len() as u64, |sum, &byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte))))
}
