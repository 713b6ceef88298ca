//! Forms of disk images: every format and variant that the programs read, and some that they refuse, each with what
//! `qemu-img convert` makes of it. One table for the tests of all ways by which an image can come.
//!
//! Not here: compression around an image, and the ways.

use std::fs;
use std::path::{Path, PathBuf};

use crate::guest::{Dice, qemu_io, round};
use crate::run;

const MIB: u64 = 1 << 20;

/// How an image comes into being.
#[derive(Clone, Copy, Debug)]
pub enum Made {
    /// Created empty, then a guest writes.
    Written,
    /// Converted from a disk that a guest has written; such an image cannot be written in place.
    Converted,
    /// Converted with compressed clusters.
    Packed,
    /// The same, and then a guest writes over parts of it.
    PackedAndWritten,
    /// By itself, whatever content is asked for: makes `image` in a folder, and `readable` there where qemu-img does not read
    /// the image as it is.
    Alone(fn(&Path)),
}

/// The verdict on an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The disk that qemu-img reads.
    Disk,
    /// It is refused, by qemu-img as well, with these words.
    Refused(&'static str),
}

/// A kind of image.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// Its name in messages.
    pub name: &'static str,
    /// qemu's name of the format.
    pub qemu: &'static str,
    /// The program's name of it.
    pub seen: &'static str,
    /// Options of its creation.
    pub options: &'static str,
    /// How it is made.
    pub made: Made,
    /// A snapshot between the rounds and a larger disk at the end: tables come to lie behind the data they map.
    pub moves: bool,
    /// qemu-img reads back what it made for a disk of no length.
    pub empty: bool,
    /// The verdict on it.
    pub verdict: Verdict,
}

const FORM: Form = Form {
    name: "",
    qemu: "qcow2",
    seen: "qcow2",
    options: "compat=1.1",
    made: Made::Written,
    moves: false,
    empty: true,
    verdict: Verdict::Disk,
};

/// Every form.
pub const FORMS: [Form; 30] = [
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
    Form { name: "VDI static", qemu: "vdi", seen: "vdi", options: "static=on", ..FORM },
    Form { name: "qcow2 cut inside its last cluster", made: Made::Alone(cut_qcow2), ..FORM },
    Form { name: "qcow2 not closed", made: Made::Alone(dirty_qcow2), ..FORM },
    Form {
        name: "VHDX with a log",
        qemu: "vhdx",
        seen: "vhdx",
        options: "",
        made: Made::Alone(logged_vhdx),
        ..FORM
    },
    Form { name: "OVA of a VMDK", qemu: "vmdk", seen: "vmdk", options: "", made: Made::Alone(ova), ..FORM },
    Form {
        name: "qcow2 over a file that is missing",
        made: Made::Alone(backed_qcow2),
        verdict: Verdict::Refused("backing file"),
        ..FORM
    },
    Form {
        name: "qcow2 of an unknown feature",
        made: Made::Alone(unknown_qcow2),
        verdict: Verdict::Refused("feature"),
        ..FORM
    },
    Form {
        name: "VMDK monolithicFlat's descriptor",
        qemu: "vmdk",
        seen: "vmdk",
        options: "",
        made: Made::Alone(descriptor),
        verdict: Verdict::Refused("a descriptor only"),
        ..FORM
    },
];

/// Content of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Content {
    /// Scattered writes in rounds.
    Guest(u64),
    /// The same on a disk that ends in a piece of a cluster, of a page and of an alignment.
    Odd(u64),
    /// No byte.
    Empty,
    /// One sector.
    Sector,
    /// Zeroes, written and not.
    Zero,
}

impl Content {
    /// Size of the disk in bytes.
    pub fn size(self) -> u64 {
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

/// An image and what qemu-img reads from it.
#[derive(Clone, Debug)]
pub struct Image {
    /// The file.
    pub path: PathBuf,
    /// Its disk, where it is not refused.
    pub disk: Vec<u8>,
}

/// Makes an image in `folder`; `None` where qemu-img does not read what it made of no bytes. The noise that guests write is in
/// the file `noise`.
///
/// # Panics
/// qemu-img deviates from the table.
pub fn make(form: &Form, content: Content, folder: &Path, noise: &Path) -> Option<Image> {
    if let Made::Alone(make) = form.made {
        make(folder);
        return Some(judged(form, folder));
    }
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
    if matches!(form.made, Made::Written) {
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
        Made::Written | Made::PackedAndWritten | Made::Converted | Made::Packed | Made::Alone(_) => &[],
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
    let path = match form.name {
        "VMDK monolithicFlat's extent" => folder.join("image-flat"),
        _ => image,
    };
    Some(Image { path, disk })
}

/// qemu-img does not do this with a disk of no length.
fn refused(arguments: &[&str], form: &Form, content: Content) {
    assert!(
        !crate::tried("qemu-img", arguments),
        "qemu-img can do {} {content:?} now: say so in FORMS",
        form.name
    );
}

/// An image that was made alone.
fn judged(form: &Form, folder: &Path) -> Image {
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let read = if folder.join("readable").exists() { "readable" } else { "image" };
    let arguments = ["convert", "-f", form.qemu, "-O", "raw", &path(read), &path("raw")];
    let disk = match form.verdict {
        Verdict::Disk => {
            run("qemu-img", &arguments);
            fs::read(path("raw")).unwrap()
        }
        Verdict::Refused(_) => {
            assert!(!crate::tried("qemu-img", &arguments), "qemu-img reads {} now", form.name);
            Vec::new()
        }
    };
    let _none = fs::remove_file(path("raw"));
    Image { path: folder.join("image"), disk }
}

fn shell(folder: &Path, script: &str) {
    run("sh", &["-ec", &format!("cd '{}'\n{script}", folder.display())]);
}

fn cut_qcow2(folder: &Path) {
    shell(
        folder,
        "qemu-img create -q -f qcow2 image 4M; qemu-io -f qcow2 -c 'write -P 9 0 3M' image; truncate -s -30001 image",
    );
}

/// qemu is gone before it has counted the references.
fn dirty_qcow2(folder: &Path) {
    shell(
        folder,
        "qemu-img create -q -f qcow2 -o lazy_refcounts=on image 4M
         qemu-io -f qcow2 -c 'write -P 9 0 2M' -c flush -c abort image || true",
    );
    assert_eq!(fs::read(folder.join("image")).unwrap()[79] & 1, 1, "the image is not dirty");
}

/// qemu logs the change of the block table, and cannot put it into its place at 2 MiB. It reads no image with a log.
fn logged_vhdx(folder: &Path) {
    shell(
        folder,
        r#"qemu-img create -q -f vhdx -o block_size=1M image 16M
           qemu-io -f vhdx -c 'write -P 1 1M 3M' image
           qemu-io -c 'write -P 5 9M 2M' 'json:{"driver":"vhdx","file":{"driver":"blkdebug",
             "image":{"driver":"file","filename":"image"},"inject-error":[{"event":"none",
             "iotype":"write","sector":4096,"errno":5,"once":false}]}}' || true
           if qemu-img convert -f vhdx -O raw image raw; then exit 1; fi
           cp image readable; qemu-img check -q -f vhdx -r all readable"#,
    );
}

fn ova(folder: &Path) {
    fs::write(folder.join("disk"), Dice(13).bytes(3 << 20)).unwrap();
    shell(
        folder,
        r#"qemu-img convert -f raw -O vmdk -o subformat=streamOptimized disk a.vmdk
           echo "<File id='f' href='a.vmdk'/><Disk fileRef='f' capacity='1'/>" > vm.ovf
           tar -cf image vm.ovf a.vmdk; mv a.vmdk readable; rm disk vm.ovf"#,
    );
}

fn backed_qcow2(folder: &Path) {
    shell(
        folder,
        "qemu-img create -q -f raw base 4M; qemu-img create -q -f qcow2 -b base -F raw image
         qemu-io -f qcow2 -c 'write -P 9 0 1M' image; rm base",
    );
}

/// Bit 60 of the incompatible features.
fn unknown_qcow2(folder: &Path) {
    shell(folder, "qemu-img create -q -f qcow2 image 4M; qemu-io -f qcow2 -c 'write -P 9 0 1M' image");
    let mut bytes = fs::read(folder.join("image")).unwrap();
    bytes[72] |= 0x10;
    fs::write(folder.join("image"), bytes).unwrap();
}

fn descriptor(folder: &Path) {
    shell(folder, "qemu-img create -q -f vmdk -o subformat=monolithicFlat image 4M; rm image-flat");
}
