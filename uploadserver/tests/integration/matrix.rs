//! Formats × compressions and OVAs × ways × targets, through the program over TLS: the disk's SHA-256 is that of what
//! `qemu-img convert -O raw` reads, and behind it are zeroes. Small counts take some ways of each image, the full ones
//! all.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use places::forms::{self, Content, FORMS, Made, Verdict};
use places::guest::{Dice, qemu_io};
use places::{Loop, run};

use crate::support::client::form;
use crate::support::{self, MIB, Pod, Setup, count, sha256};

const PACKINGS: [(&str, &str); 5] =
    [("", "cat"), (".gz", "gzip -1 -c"), (".xz", "xz -0 -c"), (".zst", "zstd -1 -q -c"), (".ova", OVA)];

/// Makes an OVA of its input.
const OVA: &str = r#"pack() { d=$(mktemp -d) && cat > $d/disk && echo "<File id='f' href='disk'/><Disk fileRef='f'/>" > $d/vm.ovf &&
    tar -C $d -c vm.ovf disk && rm -r $d; }; pack"#;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Sync,
    Async,
    Form,
    Resumed,
}

const WAYS: [Way; 4] = [Way::Sync, Way::Async, Way::Form, Way::Resumed];

struct Image {
    name: String,
    path: PathBuf,
    /// `None`: it is refused.
    disk: Option<(u64, String)>,
}

/// An image of a disk that a guest has written, packed in every way.
fn make(index: usize, folder: &Path) -> Vec<Image> {
    let form = &FORMS[index];
    let folder = folder.join(index.to_string());
    fs::create_dir(&folder).unwrap();
    let noise = folder.join("noise");
    fs::write(&noise, Dice(index as u64 + 7).bytes(64 << 10)).unwrap();
    let made = forms::make(form, Content::Odd(index as u64), &folder, &noise).unwrap();
    let raw = folder.join("raw");
    fs::write(&raw, &made.disk).unwrap();
    let size = made.disk.len() as u64;
    let disk = (form.verdict == Verdict::Disk).then(|| (size, sha256(&raw, size).0));
    let pack = |(ending, command): &(&str, &str)| {
        let packed = folder.join(format!("packed{ending}"));
        run("sh", &["-c", &format!("{command} < '{}' > '{}'", made.path.display(), packed.display())]);
        Image { name: format!("{}{ending}", form.name), path: packed, disk: disk.clone() }
    };
    let packings = if matches!(form.made, Made::Alone(_)) { &PACKINGS[..1] } else { &PACKINGS };
    packings.iter().map(pack).collect()
}

fn upload(pod: &Pod, way: Way, bytes: &[u8], dice: &mut Dice) -> support::client::Answer {
    match way {
        Way::Sync => pod.client().request("POST", "/v1beta1/upload", &[], bytes),
        Way::Async => pod.client().request("POST", "/v1beta1/upload-async", &[], bytes),
        Way::Form => {
            let (kind, body) = form(bytes);
            pod.client().request("POST", "/v1beta1/upload-form-async", &[&kind], &body)
        }
        Way::Resumed => {
            let first = dice.next(bytes.len() as u64) as usize;
            let version = "Upload-Draft-Interop-Version: 8";
            let headers = [version, "Upload-Complete: ?0"];
            let mut client = pod.client();
            let mut begun = client.request("POST", "/v1beta1/upload", &headers, &bytes[..first]);
            while begun.status == 104 {
                begun = client.answer().unwrap();
            }
            assert_eq!(begun.status, 201, "{begun:?}\n{}", pod.log());
            let offset = format!("Upload-Offset: {first}");
            let headers =
                ["Content-Type: application/partial-upload", version, "Upload-Complete: ?1", &offset];
            pod.client().request("PATCH", begun.header("location").unwrap(), &headers, &bytes[first..])
        }
    }
}

fn cell(image: &Image, way: Way, block: bool, dice: &mut Dice) {
    let what = format!("{} {way:?} {}", image.name, if block { "block" } else { "file" });
    let device = block.then(|| Loop::new(16 * MIB, 512));
    if let Some(device) = &device {
        // Earlier content must not show.
        fs::write(&device.device, vec![0xaa; 16 << 20]).unwrap();
    }
    let path = device.as_ref().map(|device| device.device.as_path());
    let mut pod = Pod::start(&Setup { device: path, ..Setup::default() });
    let answer = upload(&pod, way, &fs::read(&image.path).unwrap(), dice);
    let Some((size, sha256_of)) = &image.disk else {
        assert!(matches!(answer.status, 400 | 500), "{what}: {answer:?}");
        assert!(pod.runs() && pod.message().is_empty(), "{what}: {}", pod.log());
        return;
    };
    assert_eq!(answer.status, 200, "{what}: {answer:?}\n{}", pod.log());
    pod.assert_uploaded();
    let disk = path.map_or_else(|| pod.disk(), Path::to_owned);
    assert_eq!(sha256(&disk, *size), (sha256_of.clone(), true), "{what}");
}

#[test]
fn every_image_by_every_way() {
    let folder = tempfile::tempdir().unwrap();
    let next = Mutex::new(0..FORMS.len());
    let done = AtomicUsize::new(0);
    let all = count(0, 1) == 1;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(index) = { next.lock().unwrap().next() } {
                    let mut dice = Dice(index as u64);
                    for (packing, image) in make(index, folder.path()).iter().enumerate() {
                        for (number, way) in WAYS.into_iter().enumerate() {
                            for block in [false, true] {
                                let turn = (index + packing + number) % WAYS.len();
                                let chosen =
                                    (turn == 0 && !block) || (turn == 2 && block && packing % 2 == index % 2);
                                if all || chosen {
                                    cell(image, way, block, &mut dice);
                                    done.fetch_add(1, Ordering::Relaxed);
                                }
                            }
                        }
                    }
                }
            });
        }
    });
    println!("{} uploads ({} forms, {} ways)", done.into_inner(), FORMS.len(), WAYS.len());
}

/// A qcow2 image with its tables after more data than is held in memory.
fn late_tables(folder: &Path) -> PathBuf {
    let image = folder.join("late.qcow2");
    let text = image.to_str().unwrap();
    let mut dice = Dice(3);
    let noise = folder.join("noise");
    fs::write(&noise, dice.bytes(1 << 20)).unwrap();
    run("qemu-img", &["create", "-q", "-f", "qcow2", "-o", "cluster_size=4k", text, "64M"]);
    let fill: Vec<String> =
        (0..48).map(|at| format!("write -s {} {} 1M", noise.display(), at * MIB)).collect();
    qemu_io("qcow2", &image, &fill);
    // A snapshot, and the tables of what is written over come last.
    run("qemu-img", &["snapshot", "-c", "one", text]);
    qemu_io("qcow2", &image, &(0..48).map(|at| format!("write -P 5 {} 4k", at * MIB)).collect::<Vec<_>>());
    image
}

#[test]
fn tables_that_come_late_need_room_or_another_image() {
    let folder = tempfile::tempdir().unwrap();
    let image = late_tables(folder.path());
    let raw = folder.path().join("raw");
    run("qemu-img", &["convert", "-O", "raw", image.to_str().unwrap(), raw.to_str().unwrap()]);
    let bytes = fs::read(&image).unwrap();
    // A filesystem has room next to the file.
    let mut pod = Pod::new();
    assert_eq!(pod.client().request("POST", "/v1beta1/upload", &[], &bytes).status, 200, "{}", pod.log());
    pod.assert_uploaded();
    assert_eq!(sha256(&pod.disk(), 64 * MIB).0, sha256(&raw, 64 * MIB).0);
    // On a device there is none.
    let device = Loop::new(64 * MIB, 512);
    let mut pod = Pod::start(&Setup { device: Some(&device.device), ..Setup::default() });
    let answer = pod.client().request("POST", "/v1beta1/upload", &[], &bytes);
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.body.contains("qemu-img convert -O qcow2"), "{answer:?}");
    // Converted as advised, it is taken.
    let converted = folder.path().join("converted");
    run("qemu-img", &["convert", "-O", "qcow2", image.to_str().unwrap(), converted.to_str().unwrap()]);
    let answer = pod.client().request("POST", "/v1beta1/upload", &[], &fs::read(&converted).unwrap());
    assert_eq!(answer.status, 200, "{answer:?}\n{}", pod.log());
    pod.assert_uploaded();
    assert_eq!(sha256(&device.device, 64 * MIB).0, sha256(&raw, 64 * MIB).0);
}

/// A size that is not a multiple of 512 gave a disk of garbage and success.
#[test]
fn dmg_of_any_size_is_refused_by_every_way_and_the_next_image_taken() {
    let mut dice = Dice(11);
    let mut dmg = vec![0x5a; MIB as usize];
    let end = dmg.len() - 512;
    dmg[end..end + 12].copy_from_slice(b"koly\0\0\0\x04\0\0\x02\0");
    for block in [false, true] {
        let device = block.then(|| Loop::new(8 * MIB, 512));
        let path = device.as_ref().map(|device| device.device.as_path());
        let mut pod = Pod::start(&Setup { device: path, ..Setup::default() });
        for more in [0, 1, 100, 511] {
            let image = [&vec![0x5a; more], &dmg[..]].concat();
            for way in WAYS {
                let what = format!("{way:?}, {more} bytes more, {}", if block { "block" } else { "file" });
                let answer = upload(&pod, way, &image, &mut dice);
                assert_eq!(answer.status, 500, "{what}: {answer:?}\n{}", pod.log());
                assert!(answer.body.contains("a DMG image"), "{what}: {answer:?}");
                assert!(pod.runs() && pod.message().is_empty(), "{what}: {}", pod.log());
            }
        }
        let good = Dice(12).bytes(MIB as usize + 100);
        let answer = upload(&pod, Way::Sync, &good, &mut dice);
        assert_eq!(answer.status, 200, "{answer:?}\n{}", pod.log());
        pod.assert_uploaded();
    }
}
