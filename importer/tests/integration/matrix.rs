//! Forms × compressions × ways × contents, through the programs: every cell's SHA-256 equals that of
//! `qemu-img convert -O raw`, or the cell has the outcome that is written down for it here or in the table of forms. Each form
//! comes as a local file, from a server with ranges and without, by a pipe, and as an upload. Nothing is left out: what
//! qemu-img itself cannot make or read is asserted to be so.
//!
//! S3, GCS, registries and NBD have tests of their own; so have tables that come after more data than the window in
//! memory holds (`late_tables`).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use places::forms::{Content, FORMS, Form, Made, Verdict, make};
use places::guest::Dice;
use places::run;

use crate::support::server::{Served, Server};
use crate::support::{assert_exit, count, import, import_piped, names, report, sha256, text};
use crate::uploads::{self, Pod};

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
    /// An upload to an upload server, which has every other compression and way of uploading in tests of its own.
    Upload,
}

const SOURCES: [From; 5] = [From::File, From::Ranges, From::Whole, From::Stdin, From::Upload];

/// The cells of one image: every one of what a guest has written, and in the full count of everything; an image that is made
/// alone as it is.
fn cells(form: &Form, content: Content) -> Vec<(Packing, From)> {
    let alone = matches!(form.made, Made::Alone(_));
    let all = matches!(content, Content::Guest(_)) || count(0, 1) == 1;
    let packings: &[Packing] = match (alone, all) {
        (true, _) => &[Packing::None],
        (false, true) => &PACKINGS,
        (false, false) => &[Packing::None, Packing::Zst],
    };
    let sources = if all { &SOURCES[..] } else { &SOURCES[1..4] };
    let pairs = packings.iter().flat_map(|packing| sources.iter().map(|from| (*packing, *from)));
    pairs.filter(|(packing, from)| *from != From::Upload || *packing == Packing::None).collect()
}

/// Result of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The disk that qemu-img reads.
    Disk,
    /// Exit 4: not a byte came. With `--format raw` it is the disk that qemu-img reads: of no length.
    Nothing,
    /// Exit 4, and a refused upload: qemu-img refuses it, too.
    Refused,
}

/// The outcome of every cell.
fn expected(form: &Form, content: Content) -> Outcome {
    match (form.verdict, form.seen) {
        (Verdict::Refused(_), _) => Outcome::Refused,
        (Verdict::Disk, "raw") if content == Content::Empty => Outcome::Nothing,
        (Verdict::Disk, _) => Outcome::Disk,
    }
}

/// An image and the digest of its disk.
struct Image {
    size: u64,
    sha256: String,
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
    let expected = expected(form, content);
    if from == From::Upload {
        uploaded(form, image, &source, expected, &what);
        return expected;
    }
    let into = place.folder.join("into");
    let target = into.join("disk");
    let target = target.to_str().unwrap();
    let url = |served| place.server.url(served, &format!("{}/source{packing:?}", place.name));
    let run = |more: &[&str]| match from {
        From::File => import(&[&[source.to_str().unwrap(), target, "--output", "json"], more].concat()),
        From::Ranges => import(&[&[&url(Served::Ranges), target, "--output", "json"], more].concat()),
        From::Whole => import(&[&[&url(Served::Whole), target, "--output", "json"], more].concat()),
        From::Stdin | From::Upload => {
            import_piped(&source, &[&["-", target, "--output", "json"], more].concat())
        }
    };
    let mut output = run(&[]);
    match expected {
        Outcome::Disk => assert_exit(&output, 0, &what),
        Outcome::Refused => {
            assert_exit(&output, 4, &what);
            let said = text(&output.stderr);
            assert!(
                matches!(form.verdict, Verdict::Refused(words) if said.contains(words)),
                "{what}: {said}"
            );
            assert!(names(&into).is_empty(), "{what}: nothing is written");
            return expected;
        }
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

/// Uploads one cell and judges it.
fn uploaded(form: &Form, image: &Image, source: &Path, expected: Outcome, what: &str) {
    let mut pod = Pod::new();
    let answer = pod.client().request("POST", "/v1beta1/upload", &[], &fs::read(source).unwrap());
    match expected {
        Outcome::Disk => {
            assert_eq!(answer.status, 200, "{what}: {answer:?}\n{}", pod.log());
            pod.assert_uploaded();
            assert_eq!(fs::metadata(pod.disk()).unwrap().len(), image.size, "{what}: the disk's length");
            assert_eq!(uploads::sha256(&pod.disk(), image.size), (image.sha256.clone(), true), "{what}");
        }
        Outcome::Nothing | Outcome::Refused => {
            assert!(matches!(answer.status, 400 | 500), "{what}: {answer:?}");
            let words = match form.verdict {
                Verdict::Refused(words) => words,
                Verdict::Disk => "empty",
            };
            assert!(answer.body.contains(words), "{what}: {answer:?}");
            assert!(pod.runs() && names(&pod.path("data")).is_empty(), "{what}: {}", pod.log());
        }
    }
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
    let Some(made) = make(form, content, &place.folder, noise) else {
        fs::remove_dir_all(&place.folder).unwrap();
        return false;
    };
    let image = Image { size: made.disk.len() as u64, sha256: digest(&made.disk) };
    for (packing, from) in cells(form, content) {
        let packed = place.folder.join(format!("source{packing:?}"));
        if !packed.exists() {
            packing.pack(&made.path, &packed);
        }
        let outcome = check(form, content, &image, packing, from, place);
        *done.lock().unwrap().entry(outcome).or_default() += 1;
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
    // What is made alone has one content.
    let has = |form: &Form, content| !matches!(form.made, Made::Alone(_)) || content == Content::Guest(100);
    let work: Vec<_> = FORMS
        .iter()
        .flat_map(|form| contents.iter().map(move |&content| (form, content)))
        .filter(|(form, content)| has(form, *content))
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
    let unreadable = unreadable.into_inner();
    let total: u32 = done.values().sum();
    println!(
        "{total} cells ({} forms, {} contents, {} compressions, {} ways: {SOURCES:?}): {done:?}; {unreadable} empty images that qemu-img itself cannot make or read",
        FORMS.len(),
        contents.len(),
        PACKINGS.len(),
        SOURCES.len(),
    );
    let all: usize = work.iter().map(|(form, content)| cells(form, *content).len()).sum();
    let empty = cells(&FORMS[0], Content::Empty).len();
    assert_eq!(total as usize, all - unreadable * empty, "no cell is left out");
    assert_eq!(unreadable, 4, "a disk of no length as VMDK and as fixed VHD");
    assert!(FORMS.len() >= 25);
}
