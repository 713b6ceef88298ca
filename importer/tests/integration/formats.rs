//! Images with a format that is not plain from the front: a fixed VHD in a stream, empty input, forms that are not read,
//! parts of a disk. Not here: every form from every source (`matrix`).

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use places::guest::Dice;
use places::{Loop, output, run};

use crate::support::server::{Served, Server};
use crate::support::{self, MIB, Pod, assert_exit, import, import_piped, importer, names, report, text};
use crate::vhds;

/// A folder that is served, and files in it.
struct Place {
    folder: tempfile::TempDir,
    server: Server,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::start(folder.path());
        fs::create_dir(folder.path().join("into")).unwrap();
        Self { folder, server }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> String {
        fs::write(self.path(name), bytes).unwrap();
        self.text(name)
    }

    /// A target that does not exist, alone in its folder.
    fn target(&self) -> String {
        let target = self.path("into/disk");
        let _missing = fs::remove_file(&target);
        self.text("into/disk")
    }

    fn shell(&self, script: &str) {
        run("sh", &["-c", &format!("cd '{}' && {script}", self.folder.path().display())]);
    }

    #[track_caller]
    fn assert_untouched(&self, what: &str) {
        let found = names(&self.path("into"));
        assert!(found.is_empty(), "{what}: something was written: {found:?}");
    }
}

#[track_caller]
fn assert_says(output: &Output, words: &[&str], what: &str) {
    let said = text(&output.stderr);
    assert!(words.iter().all(|words| said.contains(words)), "{what}: {said}");
}

/// A disk of 5 MiB and a bit, as a fixed VHD "vhd" and packed.
fn fixed_vhd(place: &Place) -> Vec<u8> {
    let mut disk = Dice(11).bytes(5 * MIB as usize + 1536);
    disk[1 << 20..3 << 20].fill(0);
    place.write("raw", &disk);
    place.shell("qemu-img convert -f raw -O vpc -o subformat=fixed,force_size=on raw vhd");
    place.shell(
        "gzip -1 -k vhd; zstd -1 -q vhd; xz -0 -k -T1 vhd; xz -0 -c -T2 --block-size=1MiB vhd > blocks.xz",
    );
    assert_eq!(fs::metadata(place.path("vhd")).unwrap().len(), disk.len() as u64 + 512);
    disk
}

/// Every way to read `fixed_vhd` without seeing its end first: name, and whether it is served or piped.
const STREAMS: [(&str, Option<Served>); 7] = [
    ("vhd", None),
    ("vhd", Some(Served::Whole)),
    ("vhd.gz", Some(Served::Ranges)),
    ("vhd.zst", None),
    ("vhd.xz", Some(Served::Ranges)),
    ("blocks.xz", Some(Served::Ranges)),
    ("blocks.xz", None),
];

fn import_stream(place: &Place, (name, served): (&str, Option<Served>), more: &[&str]) -> Output {
    match served {
        Some(served) => import(&[&[place.server.url(served, name).as_str()], more].concat()),
        None => import_piped(&place.path(name), &[&["-"], more].concat()),
    }
}

#[test]
fn a_fixed_vhd_fits_where_its_disk_does() {
    let place = Place::new();
    let disk = fixed_vhd(&place);
    let size = disk.len() as u64;
    let device = Loop::new(size, 512);
    let device_path = device.device.to_str().unwrap();
    let ask = size.to_string();
    for stream in STREAMS {
        let what = format!("{stream:?}");
        let done = import_stream(&place, stream, &[device_path, "--force", "--output", "json"]);
        assert_exit(&done, 0, &what);
        assert_eq!(report(&done)["disk_size"], size, "{what}");
        assert!(fs::read(&device.device).unwrap() == disk, "{what}: the device's bytes");

        let target = place.target();
        let done =
            import_stream(&place, stream, &[&target, "--size", &ask, "--preallocate", "--output", "json"]);
        assert_exit(&done, 0, &what);
        assert_eq!(report(&done)["virtual_size"], size, "{what}");
        assert!(fs::read(&target).unwrap() == disk, "{what}: the file's bytes");
        assert!(allocated(Path::new(&target)) >= size, "{what}: its blocks are reserved");

        // A larger disk reads as zero where the footer was.
        let target = place.target();
        let done = import_stream(&place, stream, &[&target, "--size", "8Mi", "--preallocate"]);
        assert_exit(&done, 0, &what);
        let grown = fs::read(&target).unwrap();
        assert_eq!(grown.len() as u64, 8 * MIB, "{what}");
        assert!(grown[..disk.len()] == disk && grown[disk.len()..].iter().all(|&b| b == 0), "{what}: grown");
        assert!(allocated(Path::new(&target)) >= 8 * MIB, "{what}: its blocks are reserved");
    }
    // A raw disk one sector too large is not taken for one, whenever that is noticed.
    place.shell("cp raw larger; head -c 512 /dev/urandom >> larger; xz -0 -k -T2 --block-size=1MiB larger");
    for stream in [("larger", None), ("larger", Some(Served::Whole)), ("larger.xz", Some(Served::Ranges))] {
        let what = format!("{stream:?}");
        let done = import_stream(&place, stream, &[device_path, "--force"]);
        assert_exit(&done, 5, &what);
        assert_says(&done, &["is larger than the reported available"], &what);
    }
}

fn allocated(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn a_fixed_vhd_under_the_environment_contract() {
    let place = Place::new();
    let disk = fixed_vhd(&place);
    for (served, name) in [(Served::Whole, "vhd"), (Served::Ranges, "blocks.xz"), (Served::Ranges, "vhd.gz")]
    {
        let pod = Pod::new();
        let url = place.server.url(served, name);
        let done = output(&mut pod.command(&url, &disk.len().to_string())).unwrap();
        assert_exit(&done, 0, name);
        assert_eq!(pod.message(), r#"{"message":"Import Complete"}"#, "{name}");
        assert!(fs::read(pod.path("data/disk.img")).unwrap() == disk, "{name}: the disk's bytes");
    }
}

#[test]
fn the_format_of_a_fixed_vhd_may_be_given() {
    let place = Place::new();
    let disk = fixed_vhd(&place);
    let image = fs::read(place.path("vhd")).unwrap();
    let file = place.text("vhd");
    for (format, want) in [("vhd", &disk), ("raw", &image)] {
        let target = place.target();
        assert_exit(&import(&[&file, &target, "--format", format]), 0, format);
        assert!(&fs::read(&target).unwrap() == want, "{format} from a file");
        for stream in STREAMS {
            let what = format!("{stream:?} as {format}");
            let target = place.target();
            let done = import_stream(&place, stream, &[&target, "--format", format, "--output", "json"]);
            assert_exit(&done, 0, &what);
            assert!(&fs::read(&target).unwrap() == want, "{what}");
            assert!(report(&done)["format"].as_str().unwrap().starts_with(format), "{what}");
        }
    }
    // Other content is not taken for one.
    let raw = place.text("raw");
    place.shell("xz -0 -k -T2 --block-size=1MiB raw");
    for stream in [("raw", None), ("raw", Some(Served::Whole)), ("raw.xz", Some(Served::Ranges))] {
        let what = format!("{stream:?}");
        let done = import_stream(&place, stream, &[&place.target(), "--format", "vhd"]);
        assert_exit(&done, 4, &what);
        assert_says(&done, &["not a VHD: its cookie is missing"], &what);
    }
    assert_exit(&import(&[&raw, &place.target(), "--format", "vhd"]), 4, "from a file");
}

#[test]
fn nothing_is_no_image() {
    let place = Place::new();
    let empty = place.write("empty", b"");
    place.shell("gzip -k empty; xz -k empty; zstd -q -k empty");
    let piped = |name: &str, more: &[&str]| import_piped(&place.path(name), &[&["-"], more].concat());
    let served = |name: &str, served| import(&[&place.server.url(served, name), &place.target()]);
    let redirected = |path: &str| {
        let stdin = Stdio::from(fs::File::open(path).unwrap());
        importer().args(["-", &place.target()]).stdin(stdin).output().unwrap()
    };
    for (what, done) in [
        ("a pipe", piped("empty", &[&place.target()])),
        ("a pipe, packed", piped("empty.gz", &[&place.target()])),
        ("a redirected file", redirected(&empty)),
        ("/dev/null", redirected("/dev/null")),
        ("a server", served("empty", Served::Ranges)),
        ("a server without ranges", served("empty", Served::Whole)),
        ("a server, packed", served("empty.gz", Served::Ranges)),
        ("a named file", import(&[&empty, &place.target()])),
        ("a named file and a size", import(&[&empty, &place.target(), "--size", "1Mi"])),
        ("a named file, packed by gzip", import(&[&place.text("empty.gz"), &place.target()])),
        ("a named file, packed by xz", import(&[&place.text("empty.xz"), &place.target()])),
        ("a named file, packed by zstd", import(&[&place.text("empty.zst"), &place.target()])),
    ] {
        assert_exit(&done, 4, what);
        assert_says(&done, &["importer: the source is empty: ", " gave no byte; ", "--format raw"], what);
        if what.starts_with("a named file") {
            assert_says(&done, &[&empty], what);
        }
        place.assert_untouched(what);
    }
    // A source declared raw is accepted.
    for done in [
        import(&[&empty, &place.target(), "--format", "raw"]),
        import(&[&place.text("empty.gz"), &place.target(), "--format", "raw"]),
        piped("empty", &[&place.target(), "--format", "raw"]),
    ] {
        assert_exit(&done, 0, "a disk of no length");
        assert_eq!(fs::metadata(place.path("into/disk")).unwrap().len(), 0);
    }
    let pod = Pod::new();
    let done = output(&mut pod.command(&place.server.url(Served::Ranges, "empty"), "16Mi")).unwrap();
    assert_exit(&done, 1, "a pod");
    let message = pod.message();
    assert!(message.starts_with("Unable to process data: the source is empty: "), "{message}");
    assert!(names(&pod.path("data")).is_empty());
}

#[test]
fn unsupported_formats_are_rejected_by_name() {
    let place = Place::new();
    let padded = |front: &[u8]| [front, &vec![0x5a; MIB as usize - front.len()]].concat();
    place.shell("qemu-img create -q -f qed qed 1M; qemu-img create -q -f parallels parallels 1M");
    place.write("luks1", &padded(b"LUKS\xba\xbe\0\x01aes\0"));
    place.write("luks2", &padded(b"LUKS\xba\xbe\0\x02"));
    place.write("parallels1", &padded(b"WithoutFreeSpace"));
    place.write("cloop", &padded(b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop file=$0 && mount\n"));
    place.write("bochs", &padded(b"Bochs Virtual HD Image\0"));
    let mut dmg = padded(b"x\xda");
    let end = dmg.len() - 512;
    dmg[end..end + 12].copy_from_slice(b"koly\0\0\0\x04\0\0\x02\0");
    place.write("dmg", &dmg);
    for (name, seen, advice) in [
        ("luks1", "a LUKS container (encrypted)", "keeps it as it is"),
        ("luks2", "a LUKS container (encrypted)", "keeps it as it is"),
        ("qed", "a QED image", "qemu-img convert"),
        ("parallels", "a Parallels image", "qemu-img convert"),
        ("parallels1", "a Parallels image", "qemu-img convert"),
        ("cloop", "a cloop image", "qemu-img convert"),
        ("bochs", "a Bochs image", "qemu-img convert"),
        ("dmg", "a DMG image", "qemu-img convert"),
    ] {
        let file = place.text(name);
        let done = import(&[&file, &place.target()]);
        assert_exit(&done, 4, name);
        assert_says(&done, &[&format!("looks like {seen}, "), advice, "--format raw"], name);
        place.assert_untouched(name);
        if name != "dmg" {
            let done = import_piped(&place.path(name), &["-", &place.target()]);
            assert_exit(&done, 4, name);
        }
        let target = place.target();
        assert_exit(&import(&[&file, &target, "--format", "raw"]), 0, name);
        assert!(fs::read(&target).unwrap() == fs::read(&file).unwrap(), "{name} as it is");
        assert!(text(&import(&["inspect", &file]).stdout).contains(seen), "{name}");

        if name == "dmg" {
            continue;
        }
        let pod = Pod::new();
        let done = output(&mut pod.command(&place.server.url(Served::Ranges, name), "16Mi")).unwrap();
        assert_exit(&done, 0, name);
        let message = pod.message();
        assert!(message.contains("; warning: ") && message.contains(seen), "{name}: {message}");
        let disk = fs::read(pod.path("data/disk.img")).unwrap();
        assert!(disk.starts_with(&fs::read(&file).unwrap()), "{name}: taken as raw");
    }
}

/// A size that is not a multiple of 512, or an end that is read last, gave a disk of garbage.
#[test]
fn a_dmg_of_any_size_is_refused_however_it_comes() {
    let place = Place::new();
    for more in [0, 100, 511] {
        let name = format!("dmg{more}");
        let mut dmg = vec![0x5a; MIB as usize + more];
        let end = dmg.len() - 512;
        dmg[end..end + 12].copy_from_slice(b"koly\0\0\0\x04\0\0\x02\0");
        place.write(&name, &dmg);
        place.shell(&format!("xz -0 -c -T2 --block-size=256KiB {name} > {name}.xz; gzip -1 -k {name}"));
        let packed = [format!("{name}.xz"), format!("{name}.gz")];
        let url = |served, name: &str| place.server.url(served, name);
        for (how, done) in [
            ("a file", import(&[&place.text(&name), &place.target()])),
            ("a pipe", import_piped(&place.path(&name), &["-", &place.target()])),
            ("a server without ranges", import(&[&url(Served::Whole, &name), &place.target()])),
            ("a server with ranges", import(&[&url(Served::Ranges, &name), &place.target()])),
            ("blocks", import(&[&url(Served::Ranges, &packed[0]), &place.target()])),
            ("gzip", import(&[&url(Served::Ranges, &packed[1]), &place.target()])),
        ] {
            assert_exit(&done, 4, &format!("{how}, {more}"));
            assert_says(&done, &["a DMG image", "qemu-img convert"], how);
        }
        for served in [Served::Ranges, Served::Whole] {
            let pod = Pod::new();
            let done = output(&mut pod.command(&url(served, &name), "16Mi")).unwrap();
            assert_exit(&done, 1, &format!("a pod, {served:?}, {more}"));
            assert!(pod.message().contains("a DMG image"), "{served:?}: {}", pod.message());
        }
    }
}

/// Imports the served file `name` in every way, and compares each disk with `raw`; gives how the first import was reported.
fn imported_however_it_comes(place: &Place, name: &str, raw: &str) -> Output {
    let raw = fs::read(place.path(raw)).unwrap();
    let (file, url) = (place.text(name), |served| place.server.url(served, name));
    let target = place.target();
    let first = import(&[&file, &target, "--output", "json"]);
    let mut all: Vec<(&str, &dyn Fn() -> Output)> = Vec::new();
    let (ranges, whole) =
        (|| import(&[&url(Served::Ranges), &target]), || import(&[&url(Served::Whole), &target]));
    let pipe = || import_piped(&place.path(name), &["-", &target]);
    let checked = || {
        let sum = format!("sha256:{}", support::sha256(&place.path(name)));
        import(&[&url(Served::Ranges), &target, "--checksum", &sum])
    };
    all.extend([
        ("a server with ranges", &ranges as &dyn Fn() -> Output),
        ("a server without ranges", &whole),
        ("a pipe", &pipe),
        ("with a checksum", &checked),
    ]);
    assert_exit(&first, 0, name);
    assert!(fs::read(&target).unwrap() == raw, "{name}: the bytes of a file");
    for (how, import) in all {
        place.target();
        assert_exit(&import(), 0, &format!("{name}: {how}"));
        assert!(fs::read(&target).unwrap() == raw, "{name}: the bytes of {how}");
    }
    for served in [Served::Ranges, Served::Whole] {
        let pod = Pod::new();
        let done = output(&mut pod.command(&url(served), "64Mi")).unwrap();
        assert_exit(&done, 0, &format!("{name}: a pod, {served:?}"));
        let disk = fs::read(pod.path("data/disk.img")).unwrap();
        assert!(
            disk.starts_with(&raw) && disk[raw.len()..].iter().all(|&b| b == 0),
            "{name}: a pod, {served:?}"
        );
    }
    first
}

#[test]
fn the_disk_of_an_ova_is_imported_however_it_comes() {
    let place = Place::new();
    place.write("disk", &Dice(13).bytes(9 * MIB as usize));
    place.shell("qemu-img convert -f raw -O vmdk -o subformat=streamOptimized disk a.vmdk; gzip -k a.vmdk");
    for (name, disk) in [("one.ova", "a.vmdk"), ("gz.ova", "a.vmdk.gz"), ("raw.ova", "disk")] {
        place.write(
            "vm.ovf",
            format!("<File id='f' href='{disk}'/><Disk fileRef='f' capacity='1'/>").as_bytes(),
        );
        place.shell(&format!("echo > vm.mf; tar -cf {name} vm.ovf vm.mf {disk}"));
        let done = imported_however_it_comes(&place, name, "disk");
        assert_eq!(report(&done)["virtual_size"], 9 * MIB, "{name}");
        // The file that is found, and the size that a clone needs.
        let seen = import(&["inspect", &place.server.url(Served::Ranges, name)]);
        assert_exit(&seen, 0, name);
        let seen = text(&seen.stdout);
        assert!(seen.contains(&format!("{disk} in the OVA")) && !seen.contains("looks like"), "{seen}");
        let program = place.path("cdi-image-size-detection");
        let _another = std::os::unix::fs::symlink(importer().get_program(), &program);
        fs::create_dir_all(place.path("dev")).unwrap();
        let mut command = std::process::Command::new(&program);
        command.args(["-image-path", &place.text(name)]).env("FERROVIRT_IMPORTER_ROOT", place.folder.path());
        assert_exit(&output(&mut command).unwrap(), 0, name);
        assert_eq!(fs::read_to_string(place.path("dev/termination-log")).unwrap(), (9 * MIB).to_string());
    }
    // Two disks: the same answer in every way, and nothing is written.
    let two = b"<File id='f' href='a.vmdk'/><File id='g' href='disk'/><Disk fileRef='f'/><Disk fileRef='g'/>";
    place.write("vm.ovf", two);
    place.shell("tar -cf two.ova vm.ovf a.vmdk disk");
    let url = |served| place.server.url(served, "two.ova");
    for (how, done) in [
        ("a file", import(&[&place.text("two.ova"), &place.target()])),
        ("a server with ranges", import(&[&url(Served::Ranges), &place.target()])),
        ("a server without ranges", import(&[&url(Served::Whole), &place.target()])),
        ("a pipe", import_piped(&place.path("two.ova"), &["-", &place.target()])),
    ] {
        assert_exit(&done, 4, how);
        assert_says(&done, &["the OVA holds 2 disks (a.vmdk, disk)", "tar -xf"], how);
        place.assert_untouched(how);
    }
    // Without a descriptor it is a tar as any.
    place.shell("tar -cf plain.tar a.vmdk");
    let done = import(&[&place.text("plain.tar"), &place.target()]);
    assert_exit(&done, 4, "a plain tar");
    assert_says(&done, &["looks like a tar archive", "an OVA holds a VMDK"], "a plain tar");
}

#[test]
fn a_vhdx_is_read_through_its_log_however_it_comes() {
    let place = Place::new();
    place.shell("qemu-img create -q -f vhdx -o block_size=1M dirty.vhdx 16M");
    place.shell("qemu-io -f vhdx -c 'write -P 1 1M 3M' dirty.vhdx");
    // qemu logs the change of the block table, and cannot put it into its place at 2 MiB.
    place.shell(
        r#"qemu-io -c 'write -P 5 9M 2M' 'json:{"driver":"vhdx","file":{"driver":"blkdebug",
            "image":{"driver":"file","filename":"dirty.vhdx"},"inject-error":[{"event":"none",
            "iotype":"write","sector":4096,"errno":5,"once":false}]}}' || true"#,
    );
    place.shell("! qemu-img convert -f vhdx -O raw dirty.vhdx raw");
    let before = fs::read(place.path("dirty.vhdx")).unwrap();
    place.shell("cp dirty.vhdx repaired.vhdx; qemu-img check -q -f vhdx -r all repaired.vhdx");
    place.shell("qemu-img convert -f vhdx -O raw repaired.vhdx raw");
    let done = imported_however_it_comes(&place, "dirty.vhdx", "raw");
    assert!(
        report(&done)["warnings"].to_string().contains("the changes of its log"),
        "{}",
        text(&done.stdout)
    );
    assert!(fs::read(place.path("dirty.vhdx")).unwrap() == before, "the source is unchanged");
    assert!(fs::read(place.path("raw")).unwrap()[9 << 20..10 << 20].iter().all(|&byte| byte == 5));
}

#[test]
fn a_qcow2_that_ends_inside_its_last_cluster_is_read_however_it_comes() {
    let place = Place::new();
    for cut in [1, 30_001, 65_535] {
        place.shell(
            "qemu-img create -q -f qcow2 cut.qcow2 4M; qemu-io -f qcow2 -c 'write -P 9 0 3M' cut.qcow2",
        );
        place.shell(&format!("truncate -s -{cut} cut.qcow2; qemu-img convert -f qcow2 -O raw cut.qcow2 raw"));
        let raw = fs::read(place.path("raw")).unwrap();
        assert_eq!(
            raw[(3 << 20) - cut..].iter().position(|&byte| byte != 0),
            None,
            "the last cluster is data"
        );
        imported_however_it_comes(&place, "cut.qcow2", "raw");
    }
}

#[test]
fn a_qcow2_that_was_not_closed_is_read_with_a_warning_however_it_comes() {
    let place = Place::new();
    place.shell("qemu-img create -q -f qcow2 -o lazy_refcounts=on dirty.qcow2 4M");
    // qemu is gone before it has counted the references.
    place.shell("qemu-io -f qcow2 -c 'write -P 9 0 2M' -c flush -c abort dirty.qcow2 || true");
    place.shell("qemu-img convert -f qcow2 -O raw dirty.qcow2 raw");
    let before = fs::read(place.path("dirty.qcow2")).unwrap();
    assert_eq!(before[79] & 1, 1, "the image is not dirty");
    assert!(fs::read(place.path("raw")).unwrap()[..2 << 20].iter().all(|&byte| byte == 9));
    let done = imported_however_it_comes(&place, "dirty.qcow2", "raw");
    assert!(report(&done)["warnings"].to_string().contains("dirty"), "{}", text(&done.stdout));
    assert!(fs::read(place.path("dirty.qcow2")).unwrap() == before, "the source is unchanged");
}

/// A way of reading, and an import by it to a target.
type Way<'a> = (&'static str, &'a dyn Fn(&str) -> Output);

#[test]
fn an_impossible_vhd_is_refused_alike_however_it_comes() {
    let place = Place::new();
    for (name, image, words) in vhds::impossible(place.folder.path()) {
        place.write(name, &image);
        place.shell(&format!("gzip -1 -k {name}"));
        let url = |served, name: &str| place.server.url(served, name);
        let packed = format!("{name}.gz");
        let ways: [Way<'_>; 5] = [
            ("a file", &|to| import(&[&place.text(name), to])),
            ("a server with ranges", &|to| import(&[&url(Served::Ranges, name), to])),
            ("a server without ranges", &|to| import(&[&url(Served::Whole, name), to])),
            ("a pipe", &|to| import_piped(&place.path(name), &["-", to])),
            ("gzip", &|to| import(&[&url(Served::Ranges, &packed), to])),
        ];
        for (how, import) in ways {
            let what = format!("{name}: {how}");
            let done = import(&place.target());
            assert_exit(&done, 4, &what);
            let said = text(&done.stderr);
            // A stream says where it ended.
            assert!(said.contains(words) || said.contains("the image ends"), "{what}: {said}");
            place.assert_untouched(&what);
        }
        for served in [Served::Ranges, Served::Whole] {
            let pod = Pod::new();
            let done = output(&mut pod.command(&url(served, name), "16Mi")).unwrap();
            assert_exit(&done, 1, &format!("{name}: a pod, {served:?}"));
            assert!(!pod.message().is_empty(), "{name}, {served:?}");
            assert!(names(&pod.path("data")).is_empty(), "{name}, {served:?}");
        }
    }
}

#[test]
fn a_text_content_type_is_warned_about_once() {
    let place = Place::new();
    // Without a table of types, the server calls everything text.
    place.write("disk", &Dice(3).bytes(3 * MIB as usize));
    for served in [Served::Ranges, Served::Whole] {
        let done = import(&["-v", &place.server.url(served, "disk"), &place.target()]);
        assert_exit(&done, 0, "");
        let said = text(&done.stderr);
        assert_eq!(said.matches("the server declares a text type").count(), 1, "{served:?}: {said}");
    }
}

#[test]
fn parts_of_a_split_vmdk_are_refused_with_the_reason() {
    let place = Place::new();
    place.shell("qemu-img create -q -f vmdk -o subformat=twoGbMaxExtentSparse split.vmdk 3G");
    place.shell("qemu-img create -q -f vmdk -o subformat=twoGbMaxExtentSparse one.vmdk 1M");
    place.shell("qemu-img create -q -f vmdk -o subformat=twoGbMaxExtentFlat flats.vmdk 3G");
    place.shell("qemu-img create -q -f vmdk -o subformat=monolithicFlat flat.vmdk 1M");
    let part = "one part of a disk that is split into several files";
    let descriptor = "a descriptor only, the data is in other files";
    for (name, words) in [
        ("split-s001.vmdk", part),
        ("split-s002.vmdk", part),
        ("one-s001.vmdk", part),
        ("split.vmdk", descriptor),
        ("one.vmdk", descriptor),
        ("flats.vmdk", descriptor),
        ("flat.vmdk", "import that (the -flat.vmdk"),
    ] {
        for done in [
            import(&[&place.text(name), &place.target()]),
            import_piped(&place.path(name), &["-", &place.target()]),
        ] {
            assert_exit(&done, 4, name);
            assert_says(&done, &[words], name);
            place.assert_untouched(name);
        }
    }
}

#[test]
fn non_archives_are_rejected_with_a_reason() {
    let place = Place::new();
    place.write("noise", &Dice(5).bytes(MIB as usize));
    place.write("short", b"\x01\x02\x1b[2J");
    let mut program = Vec::new();
    fs::File::open(env!("CARGO_BIN_EXE_importer")).unwrap().take(MIB).read_to_end(&mut program).unwrap();
    place.write("program", &program);
    fs::create_dir(place.path("layout")).unwrap();
    place.write("layout/index.json", b"\x01\x1b[2J");
    place.shell("tar -C layout -cf binary.tar index.json");
    place.write("layout/index.json", b"{\"manifests\": \"\\u001b[2J\"}");
    place.shell("tar -C layout -cf strange.tar index.json");
    for (name, words) in [
        ("noise", "the content is not a tar archive"),
        ("short", "the content is not a tar archive"),
        ("program", "the content is not a tar archive"),
        ("binary.tar", "the image's manifest is not a valid document"),
        ("strange.tar", "the image's manifest is not a valid document"),
    ] {
        let done = import(&[&format!("oci-archive:{}", place.text(name)), &place.target()]);
        assert_exit(&done, 4, name);
        assert_says(&done, &[words], name);
        let raw = |byte: &u8| byte.is_ascii_control() && *byte != b'\n';
        assert!(!done.stderr.iter().any(raw), "{name}: {}", done.stderr.escape_ascii());
        assert!(!text(&done.stderr).contains('\u{fffd}'), "{name}: {}", text(&done.stderr));
    }
}
