//! Formats × compressions × sources × contents, through the program: every cell's SHA-256 equals that of
//! `qemu-img convert -O raw`, or the cell has the outcome that is written down for it here. Nothing is left out: what
//! qemu-img itself cannot make or read is asserted to be so.
//!
//! S3, GCS, registries and NBD have tests of their own; so have tables that come after more data than the window in
//! memory holds (`late_tables`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use places::guest::{Dice, qemu_io, round};
use places::run;

use crate::support::server::{Served, Server};
use crate::support::{MIB, assert_exit, count, import, import_piped, names, report, sha256, text};

/// How an image comes into being.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// Created empty, then a guest writes.
    Written,
    /// Converted from a disk that a guest has written; such an image cannot be written in place.
    Converted,
    /// Converted with compressed clusters.
    Packed,
    /// The same, and then a guest writes over parts of it.
    PackedAndWritten,
}

/// A kind of image.
#[derive(Clone, Copy, Debug)]
struct Form {
    name: &'static str,
    /// qemu's name of the format.
    qemu: &'static str,
    /// The program's name of it.
    seen: &'static str,
    options: &'static str,
    made: Made,
    /// A snapshot between the rounds and a larger disk at the end: tables come to lie behind the data they map.
    moves: bool,
    /// qemu-img reads back what it made for a disk of no length.
    empty: bool,
}

const FORM: Form = Form {
    name: "",
    qemu: "qcow2",
    seen: "qcow2",
    options: "compat=1.1",
    made: Made::Written,
    moves: false,
    empty: true,
};

const FORMS: [Form; 22] = [
    Form { name: "raw", qemu: "raw", seen: "raw", options: "", ..FORM },
    Form { name: "qcow2 v2", options: "compat=0.10", ..FORM },
    Form { name: "qcow2 v3", ..FORM },
    Form { name: "qcow2 v2 moved", options: "compat=0.10,cluster_size=4k", moves: true, ..FORM },
    Form { name: "qcow2 v3 moved", options: "compat=1.1,cluster_size=4k", moves: true, ..FORM },
    Form { name: "qcow2 zlib", made: Made::Packed, ..FORM },
    Form { name: "qcow2 zstd", options: "compression_type=zstd", made: Made::Packed, ..FORM },
    Form { name: "qcow2 zlib, written", made: Made::PackedAndWritten, moves: true, ..FORM },
    Form {
        name: "qcow2 zstd, extended L2, written",
        options: "compression_type=zstd,extended_l2=on",
        made: Made::PackedAndWritten,
        ..FORM
    },
    Form { name: "qcow2 extended L2", options: "extended_l2=on", moves: true, ..FORM },
    Form { name: "qcow2 512 B", options: "cluster_size=512", moves: true, ..FORM },
    Form { name: "qcow2 2 MiB", options: "cluster_size=2M", ..FORM },
    Form { name: "qcow2 lazy refcounts", options: "lazy_refcounts=on", ..FORM },
    Form { name: "qcow2 metadata", options: "preallocation=metadata", ..FORM },
    Form {
        name: "VMDK monolithicSparse",
        qemu: "vmdk",
        seen: "vmdk",
        options: "subformat=monolithicSparse",
        empty: false,
        ..FORM
    },
    Form {
        name: "VMDK streamOptimized",
        qemu: "vmdk",
        seen: "vmdk",
        options: "subformat=streamOptimized",
        made: Made::Converted,
        empty: false,
        ..FORM
    },
    // The extent is the file that a user imports; qemu reads it by its descriptor, which lies next to it.
    Form {
        name: "VMDK monolithicFlat's extent",
        qemu: "vmdk",
        seen: "raw",
        options: "subformat=monolithicFlat",
        empty: false,
        ..FORM
    },
    Form {
        name: "VHD dynamic",
        qemu: "vpc",
        seen: "vhd",
        options: "subformat=dynamic,force_size=on",
        ..FORM
    },
    Form {
        name: "VHD fixed",
        qemu: "vpc",
        seen: "vhd",
        options: "subformat=fixed,force_size=on",
        empty: false,
        ..FORM
    },
    Form { name: "VHDX dynamic", qemu: "vhdx", seen: "vhdx", options: "subformat=dynamic", ..FORM },
    Form { name: "VHDX fixed", qemu: "vhdx", seen: "vhdx", options: "subformat=fixed", ..FORM },
    Form { name: "VDI dynamic", qemu: "vdi", seen: "vdi", options: "", ..FORM },
];
const STATIC_VDI: Form = Form { name: "VDI static", qemu: "vdi", seen: "vdi", options: "static=on", ..FORM };

/// Content of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Content {
    /// Scattered writes in rounds.
    Guest(u64),
    /// The same on a disk that ends in a piece of a cluster, of a page and of an alignment.
    Odd(u64),
    Empty,
    Sector,
    Zero,
}

impl Content {
    fn size(self) -> u64 {
        match self {
            Self::Guest(_) | Self::Zero => 4 * MIB,
            Self::Odd(_) => 3 * MIB + 1536,
            Self::Empty => 0,
            Self::Sector => 512,
        }
    }

    /// Each round is a list of qemu-io's commands.
    fn rounds(self, noise: &Path) -> Vec<Vec<String>> {
        match self {
            Self::Guest(seed) | Self::Odd(seed) => {
                let mut dice = Dice(seed);
                (0..3).map(|_| round(&mut dice, self.size(), noise)).collect()
            }
            Self::Empty => Vec::new(),
            Self::Sector => vec![vec!["write -P 0xa5 0 512".to_owned()]],
            Self::Zero => {
                vec![vec!["write -z 65536 1048576".to_owned(), "write -P 0 2097152 65536".to_owned()]]
            }
        }
    }

    fn seeded(self) -> bool {
        matches!(self, Self::Guest(_) | Self::Odd(_))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Packing {
    None,
    Gz,
    /// One block: only from its start.
    Xz,
    /// Blocks of 1 MiB: each by itself.
    XzBlocks,
    Zst,
}

const PACKINGS: [Packing; 5] = [Packing::None, Packing::Gz, Packing::Xz, Packing::XzBlocks, Packing::Zst];

impl Packing {
    /// The program's name of it, after the format.
    fn word(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Gz => ".gz",
            Self::Xz | Self::XzBlocks => ".xz",
            Self::Zst => ".zst",
        }
    }

    fn pack(self, image: &Path, packed: &Path) {
        let command = match self {
            Self::None => "cat",
            Self::Gz => "gzip -1 -c",
            Self::Xz => "xz -0 -T1 -c",
            Self::XzBlocks => "xz -0 -T2 --block-size=1MiB -c",
            Self::Zst => "zstd -1 -q -c",
        };
        let script = format!("{command} < '{}' > '{}'", image.display(), packed.display());
        run("sh", &["-c", &script]);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    File,
    /// HTTP, ranges offered.
    Ranges,
    /// HTTP, no ranges.
    Whole,
    /// A pipe.
    Stdin,
}

const SOURCES: [From; 4] = [From::File, From::Ranges, From::Whole, From::Stdin];

/// The cells of one image: every one of what a guest has written, and in the full count of everything.
fn cells(content: Content) -> (&'static [Packing], &'static [From]) {
    if matches!(content, Content::Guest(_)) || count(0, 1) == 1 {
        (&PACKINGS, &SOURCES)
    } else {
        (&[Packing::None, Packing::Zst], &[From::Ranges, From::Whole, From::Stdin])
    }
}

/// Result of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The disk that qemu-img reads.
    Disk,
    /// Exit 4: not a byte came. With `--format raw` it is the disk that qemu-img reads: of no length.
    Nothing,
}

/// The outcome of every cell.
fn expected(form: &Form, content: Content) -> Outcome {
    match form.seen {
        "raw" if content == Content::Empty => Outcome::Nothing,
        _ => Outcome::Disk,
    }
}

/// An image and what qemu-img reads from it.
struct Image {
    path: PathBuf,
    size: u64,
    sha256: String,
}

/// Makes an image; `None` where qemu-img does not read what it made.
fn make(form: &Form, content: Content, folder: &Path, noise: &Path) -> Option<Image> {
    let image = folder.join("image");
    let path = image.to_str().unwrap();
    let rounds = content.rounds(noise);
    let size = content.size().to_string();
    let readable = form.empty || content != Content::Empty;
    let create = |format: &str, path: &str, options: &str| {
        let mut arguments = vec!["create", "-q", "-f", format];
        if !options.is_empty() {
            arguments.extend(["-o", options]);
        }
        arguments.extend([path, &size]);
        run("qemu-img", &arguments);
    };
    if form.made == Made::Written {
        create(form.qemu, path, form.options);
    } else {
        let disk = folder.join("disk");
        create("raw", disk.to_str().unwrap(), "");
        for round in &rounds {
            qemu_io("raw", &disk, round);
        }
        let mut arguments = vec!["convert", "-f", "raw", "-O", form.qemu, "-o", form.options];
        if matches!(form.made, Made::Packed | Made::PackedAndWritten) {
            arguments.push("-c");
        }
        arguments.extend([disk.to_str().unwrap(), path]);
        if !readable {
            refused(&arguments, form, content);
            return None;
        }
        run("qemu-img", &arguments);
        fs::remove_file(disk).unwrap();
    }
    let written = match form.made {
        Made::Written | Made::PackedAndWritten if readable => &rounds[..],
        Made::Written | Made::PackedAndWritten | Made::Converted | Made::Packed => &[],
    };
    let moves = form.moves && content.seeded();
    for (number, round) in written.iter().enumerate() {
        if moves && number > 0 {
            run("qemu-img", &["snapshot", "-c", &format!("s{number}"), path]);
        }
        qemu_io(form.qemu, &image, round);
    }
    if moves {
        if form.options.contains("compat=0.10") {
            // qemu resizes no v2 image that has snapshots; the tables stay where the snapshots drove them.
            for number in 1..written.len() {
                run("qemu-img", &["snapshot", "-d", &format!("s{number}"), path]);
            }
        }
        run("qemu-img", &["resize", "-q", "-f", form.qemu, path, "+2M"]);
    }
    let raw = folder.join("raw");
    let arguments = ["convert", "-f", form.qemu, "-O", "raw", path, raw.to_str().unwrap()];
    if !readable {
        refused(&arguments, form, content);
        return None;
    }
    run("qemu-img", &arguments);
    let disk = fs::read(&raw).unwrap();
    fs::remove_file(&raw).unwrap();
    let size = disk.len() as u64;
    let path = match form.name {
        "VMDK monolithicFlat's extent" => folder.join("image-flat"),
        _ => image,
    };
    Some(Image { path, size, sha256: digest(&disk) })
}

/// qemu-img does not do this with a disk of no length.
fn refused(arguments: &[&str], form: &Form, content: Content) {
    let output = places::output(std::process::Command::new("qemu-img").args(arguments)).unwrap();
    assert!(!output.status.success(), "qemu-img can do {} {content:?} now: say so in FORMS", form.name);
}

fn digest(bytes: &[u8]) -> String {
    use sha2::{Digest, Sha256};
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Imports one cell and judges it.
fn check(
    form: &Form,
    content: Content,
    image: &Image,
    packing: Packing,
    from: From,
    place: &Place<'_>,
) -> Outcome {
    let what = format!("{} {content:?} {packing:?} {from:?}", form.name);
    let source = place.folder.join(format!("source{packing:?}"));
    let into = place.folder.join("into");
    let target = into.join("disk");
    let target = target.to_str().unwrap();
    let url = |served| place.server.url(served, &format!("{}/source{packing:?}", place.name));
    let run = |more: &[&str]| match from {
        From::File => import(&[&[source.to_str().unwrap(), target, "--output", "json"], more].concat()),
        From::Ranges => import(&[&[&url(Served::Ranges), target, "--output", "json"], more].concat()),
        From::Whole => import(&[&[&url(Served::Whole), target, "--output", "json"], more].concat()),
        From::Stdin => import_piped(&source, &[&["-", target, "--output", "json"], more].concat()),
    };
    let mut output = run(&[]);
    let expected = expected(form, content);
    match expected {
        Outcome::Disk => assert_exit(&output, 0, &what),
        Outcome::Nothing => {
            assert_exit(&output, 4, &what);
            assert!(
                text(&output.stderr).contains("the source is empty: "),
                "{what}: {}",
                text(&output.stderr)
            );
            assert!(names(&into).is_empty(), "{what}: nothing is written");
            output = run(&["--format", "raw"]);
            assert_exit(&output, 0, &what);
        }
    };
    let told = report(&output);
    assert_eq!(told["virtual_size"], image.size, "{what}: {told}");
    assert_eq!(told["format"], format!("{}{}", form.seen, packing.word()), "{what}: {told}");
    let target = Path::new(target);
    assert_eq!(fs::metadata(target).unwrap().len(), image.size, "{what}: the disk's length");
    assert_eq!(sha256(target), image.sha256, "{what}: the disk's bytes");
    assert_eq!(names(&into), ["disk"], "{what}: what is left");
    fs::remove_file(target).unwrap();
    expected
}

/// Where one thread works.
struct Place<'a> {
    server: &'a Server,
    /// Below what the server serves.
    folder: PathBuf,
    name: String,
}

/// Every compression and source of one image; the number of cells by outcome.
fn all_cells(
    form: &Form,
    content: Content,
    place: &Place<'_>,
    noise: &Path,
    done: &Mutex<BTreeMap<Outcome, u32>>,
) -> bool {
    fs::create_dir_all(place.folder.join("into")).unwrap();
    let made = make(form, content, &place.folder, noise);
    let Some(image) = made else {
        fs::remove_dir_all(&place.folder).unwrap();
        return false;
    };
    let (packings, sources) = cells(content);
    for &packing in packings {
        packing.pack(&image.path, &place.folder.join(format!("source{packing:?}")));
        for &from in sources {
            let outcome = check(form, content, &image, packing, from, place);
            *done.lock().unwrap().entry(outcome).or_default() += 1;
        }
    }
    fs::remove_dir_all(&place.folder).unwrap();
    true
}

#[test]
fn every_cell_is_what_qemu_img_makes_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let noise = folder.path().join("noise");
    fs::write(&noise, Dice(7).bytes(64 << 10)).unwrap();
    let server = Server::start(folder.path());
    let mut contents = vec![Content::Empty, Content::Sector, Content::Zero];
    for seed in 0..count(1, 12) {
        contents.extend([Content::Guest(100 + seed), Content::Odd(200 + seed)]);
    }
    let work: Vec<_> = FORMS
        .iter()
        .chain([&STATIC_VDI])
        .flat_map(|form| contents.iter().map(move |&content| (form, content)))
        .collect();
    let next = AtomicUsize::new(0);
    let done = Mutex::new(BTreeMap::new());
    let unreadable = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((form, content)) = work.get(next.fetch_add(1, Ordering::SeqCst)) {
                    let name = format!("{:p}-{content:?}", *form).replace(['(', ')'], "");
                    let place = Place { server: &server, folder: folder.path().join(&name), name };
                    if !all_cells(form, *content, &place, &noise, &done) {
                        unreadable.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    let done = done.into_inner().unwrap();
    let total: u32 = done.values().sum();
    let cells_of = |content| cells(content).0.len() * cells(content).1.len();
    let unreadable = unreadable.into_inner();
    println!(
        "{total} cells ({} forms, {} contents, {} compressions, {} sources): {done:?}; {unreadable} empty images that qemu-img itself cannot make or read",
        FORMS.len() + 1,
        contents.len(),
        PACKINGS.len(),
        SOURCES.len(),
    );
    let all: usize = contents.iter().map(|&c| cells_of(c) * (FORMS.len() + 1)).sum();
    assert_eq!(total as usize, all - unreadable * cells_of(Content::Empty), "no cell is left out");
    assert_eq!(unreadable, 4, "a disk of no length as VMDK and as fixed VHD");
}
