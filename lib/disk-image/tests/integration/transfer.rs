//! Whole transfers: every format by every way of reading, onto a file, judged by `qemu-img convert -O raw`; resuming,
//! stopping, spooling. Images come from qemu-img and, with fragmented tables, from qemu-io. Mutants are in `hostile`.

mod hostile;
mod memory;
mod ova;
mod vhdx_log;

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use disk_image::transfer::{self, Forgetful, Ledger, Limits, Progress, Report, Request, Spool, Way};
use disk_image::write::{Options, Target, Writer};
use disk_image::{Access, Error, Format, Kind, RangeSet, Stop};
use memory::Memory;
use tempfile::TempDir;

fn run(program: &str, args: &[&str]) {
    let output =
        Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}; run make deps"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A disk of 24 MiB and a bit: text that packs, noise that does not, holes.
fn disk() -> Vec<u8> {
    let mut bytes = vec![0; (24 << 20) + 512 * 5];
    let mut state = 42u64;
    for (index, chunk) in bytes.chunks_mut(64 << 10).enumerate() {
        match index % 5 {
            0 => {}
            1 => chunk.fill(b'a'),
            2 => {
                for byte in chunk.iter_mut() {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    *byte = (state >> 56) as u8;
                }
            }
            3 => chunk[..300].fill(7),
            _ => {
                for (i, byte) in chunk.iter_mut().enumerate() {
                    *byte = (i / 64 + index) as u8;
                }
            }
        }
    }
    bytes
}

fn import(
    source: Memory,
    path: &Path,
    spool: &Spool,
    ledger: &mut dyn Ledger,
    stop: &Stop,
) -> Result<(Report, Way), Error> {
    let keep = ledger.remembers() && path.exists();
    let progress = Progress::new();
    let request = Request {
        source: Arc::new(source),
        format: None,
        limits: Limits::default(),
        progress: progress.clone(),
        spool: spool.clone(),
    };
    let image = transfer::open(request)?;
    let target = Target::file(path, keep)?;
    let size = image.virtual_size();
    let options = Options { grows: size.is_none(), ..Options::default() };
    let mut writer = Writer::open(target, size.unwrap_or(1 << 40), &options)?;
    let report = transfer::run(&image, &writer, ledger, spool, &progress, stop)?;
    if size != Some(report.virtual_size) {
        writer.set_len(report.virtual_size);
    }
    writer.finish()?;
    assert!(progress.percent() >= 50.0, "progress ended at {}", progress.percent());
    Ok((report, image.way()))
}

fn once(source: Memory, path: &Path) -> Result<(Report, Way), Error> {
    import(source, path, &Spool::default(), &mut Forgetful, &Stop::new())
}

/// Converts the test disk with qemu-img.
fn image(dir: &TempDir, options: &[&str]) -> Vec<u8> {
    let raw = dir.path().join("disk.raw");
    std::fs::write(&raw, disk()).unwrap();
    let out = dir.path().join("image");
    let mut args = vec!["convert", "-f", "raw"];
    args.extend(options);
    args.extend([text(&raw), text(&out)]);
    run("qemu-img", &args);
    std::fs::read(out).unwrap()
}

/// The disk that qemu-img reads from an image.
fn judged(dir: &TempDir, image: &[u8]) -> Vec<u8> {
    let path = dir.path().join("judged");
    let raw = dir.path().join("judged.raw");
    std::fs::write(&path, image).unwrap();
    run("qemu-img", &["convert", "-O", "raw", text(&path), text(&raw)]);
    std::fs::read(raw).unwrap()
}

fn assert_same(got: &Path, want: &[u8], what: &str) {
    let got = std::fs::read(got).unwrap();
    assert_eq!(got.len(), want.len(), "{what}: size");
    if got == want {
        return;
    }
    if let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) {
        panic!("{what}: first difference at byte {at}");
    }
}

const FORMATS: &[&[&str]] = &[
    &["-O", "raw"],
    &["-O", "qcow2"],
    &["-O", "qcow2", "-c"],
    &["-O", "qcow2", "-c", "-o", "compression_type=zstd"],
    &["-O", "qcow2", "-o", "extended_l2=on"],
    &["-O", "qcow2", "-o", "cluster_size=512"],
    &["-O", "qcow2", "-c", "-o", "cluster_size=2M"],
    &["-O", "vmdk"],
    &["-O", "vmdk", "-o", "subformat=streamOptimized"],
    &["-O", "vpc"],
    &["-O", "vpc", "-o", "subformat=fixed,force_size=on"],
    &["-O", "vhdx"],
    &["-O", "vdi"],
];

#[test]
fn every_format_by_every_way() {
    let dir = TempDir::new().unwrap();
    for options in FORMATS {
        let bytes = image(&dir, options);
        let fixed = options.contains(&"subformat=fixed,force_size=on");
        let want = if fixed { disk() } else { judged(&dir, &bytes) };
        for access in [Access::Ranges, Access::Again, Access::Once] {
            let what = format!("{options:?} {access:?}");
            let out = dir.path().join("out.img");
            let (report, _) =
                once(Memory::new(bytes.clone(), access), &out).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_same(&out, &want, &what);
            assert!(!fixed || report.format == Format::Vhd, "{what}: {:?}", report.format);
            assert_eq!(report.virtual_size, want.len() as u64, "{what}");
            assert_eq!(
                report.bytes_written + report.bytes_zero,
                report.virtual_size,
                "{what}: every byte is counted"
            );
        }
    }
}

#[test]
fn a_raw_stream_of_unknown_size_ends_where_it_ends() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out.img");
    for size in [0, 1, 511, 512, 4096, (1 << 20) + 1, (3 << 20) + 4096] {
        let bytes = disk()[64 << 10..][..size].to_vec();
        let mut source = Memory::new(bytes.clone(), Access::Once);
        source.sized = false;
        let (report, way) = once(source, &out).unwrap();
        assert_eq!((report.virtual_size, way), (size as u64, Way::Forward));
        assert_same(&out, &bytes, &format!("{size} bytes"));
    }
}

/// The footer of a fixed VHD for a disk of `size` bytes, as Hyper-V writes it.
fn footer(size: u64) -> [u8; 512] {
    let mut footer = [0; 512];
    footer[..8].copy_from_slice(b"conectix");
    footer[28..32].copy_from_slice(b"win ");
    footer[48..56].copy_from_slice(&size.to_be_bytes());
    footer[60..64].copy_from_slice(&2_u32.to_be_bytes());
    let sum: u32 = footer.iter().map(|&byte| u32::from(byte)).sum();
    footer[64..68].copy_from_slice(&(!sum).to_be_bytes());
    footer
}

/// `bytes` as one stream of known and of unknown length, and as .xz in blocks of several lengths: each with its description
/// and its report.
fn by_stream(dir: &TempDir, bytes: &[u8], what: &str, check: &dyn Fn(Report, &Path, &str)) {
    let out = dir.path().join("out.img");
    for (access, sized) in [(Access::Again, true), (Access::Once, true), (Access::Once, false)] {
        let what = format!("{what} {access:?} sized {sized}");
        let mut source = Memory::new(bytes.to_vec(), access);
        source.sized = sized;
        let (report, way) = once(source, &out).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(way, Way::Forward, "{what}");
        check(report, &out, &what);
    }
    let plain = dir.path().join("plain");
    std::fs::write(&plain, bytes).unwrap();
    // Blocks that end with the disk, with the image, inside the last sector and before it.
    let len = bytes.len();
    for block in [1 << 20, len.div_ceil(2), len - 512, len - 100, (len - 600).div_ceil(2), 1000.max(len / 50)]
    {
        let what = format!("{what} xz in blocks of {block}");
        run("xz", &["-0", "-k", "-f", "-T2", &format!("--block-size={block}"), text(&plain)]);
        let packed = std::fs::read(dir.path().join("plain.xz")).unwrap();
        let (report, way) =
            once(Memory::new(packed, Access::Ranges), &out).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(way, if block < len { Way::Blocks } else { Way::Forward }, "{what}");
        check(report, &out, &what);
    }
}

#[test]
fn a_fixed_vhds_footer_is_cut_off_wherever_the_stream_ends() {
    let dir = TempDir::new().unwrap();
    let disk = disk();
    const MIB: u64 = 1 << 20;
    // Around the ends of chunks and pages, with what is kept back in one of them or in two.
    for size in [1024, MIB - 512, MIB, MIB + 512, 2 * MIB - 4096 - 512] {
        let disk = &disk[64 << 10..][..size as usize];
        let image = [disk, &footer(size)].concat();
        by_stream(&dir, &image, &format!("VHD of {size}"), &|report, out, what| {
            assert_eq!((report.format, report.virtual_size), (Format::Vhd, size), "{what}");
            assert_eq!(report.bytes_written + report.bytes_zero, size, "{what}: every byte is counted");
            assert_same(out, disk, what);
        });
    }
    // Bytes that the disk does not have, in front of the footer.
    for (size, less) in [(MIB + 4096, MIB), (2 * MIB - 3584, 4096), (2 * MIB, MIB + 512)] {
        let disk = &disk[64 << 10..][..size as usize];
        let image = [disk, &footer(less)].concat();
        by_stream(&dir, &image, &format!("VHD of {less} in {size}"), &|report, out, what| {
            assert_eq!((report.format, report.virtual_size), (Format::Vhd, less), "{what}");
            assert_same(out, &disk[..less as usize], what);
        });
    }
}

#[test]
fn a_sector_that_only_resembles_a_footer_is_kept() {
    let dir = TempDir::new().unwrap();
    let disk = &disk()[64 << 10..][..MIB + 512 * 3];
    let size = disk.len() as u64;
    const MIB: usize = 1 << 20;
    let good = footer(size);
    let mut damaged = good;
    damaged[100] ^= 1;
    let tails: [(&str, &[u8]); 5] = [
        ("a wrong checksum", &damaged),
        ("a disk larger than the image", &footer(size + 512)),
        ("a sector behind it", &[&good[..], &[0; 512]].concat()),
        ("no whole sector", &good[..511]),
        ("no footer", &[7; 512]),
    ];
    for (what, tail) in tails {
        let image = [disk, tail].concat();
        by_stream(&dir, &image, what, &|report, out, what| {
            assert_eq!((report.format, report.virtual_size), (Format::Raw, image.len() as u64), "{what}");
            assert_same(out, &image, what);
        });
    }
}

/// A qcow2 that a guest wrote in an order that puts tables after data.
fn scattered(dir: &TempDir) -> Vec<u8> {
    let path = dir.path().join("scattered.qcow2");
    run("qemu-img", &["create", "-f", "qcow2", "-o", "cluster_size=4k", text(&path), "64M"]);
    let mut command = Command::new("qemu-io");
    command.args(["-f", "qcow2"]);
    for i in 0..400u64 {
        let at = (i * 7919 % 16000) * 4096;
        command.args(["-c", &format!("write -P {} {at} 12k", i % 250 + 1)]);
    }
    let output = command.arg(&path).output().unwrap();
    assert!(output.status.success());
    // Growing moves the L1 table behind everything.
    run("qemu-img", &["resize", text(&path), "1200M"]);
    std::fs::read(path).unwrap()
}

#[test]
fn tables_after_data() {
    let dir = TempDir::new().unwrap();
    let bytes = scattered(&dir);
    let want = judged(&dir, &bytes);
    for access in [Access::Ranges, Access::Again] {
        let out = dir.path().join("out.img");
        once(Memory::new(bytes.clone(), access.clone()), &out).unwrap();
        assert_same(&out, &want, &format!("{access:?}"));
    }
    let out = dir.path().join("out.img");
    let spool = Spool { folders: vec![(dir.path().to_owned(), 1 << 30)] };
    let source = Memory::new(bytes.clone(), Access::Once);
    import(source, &out, &spool, &mut Forgetful, &Stop::new()).unwrap();
    assert_same(&out, &want, "once, with room to spool");
    let names: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(!names.iter().any(|n| n.to_string_lossy().contains("spool")), "{names:?}");
}

#[test]
fn a_one_shot_stream_with_late_tables_and_no_room_is_refused() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("late.qcow2");
    run("qemu-img", &["create", "-f", "qcow2", "-o", "cluster_size=64k", text(&path), "64M"]);
    run("qemu-io", &["-f", "qcow2", "-c", "write -P 5 0 20M", text(&path)]);
    run("qemu-img", &["resize", text(&path), "8T"]);
    let bytes = std::fs::read(&path).unwrap();
    let out = dir.path().join("out.img");
    let error = once(Memory::new(bytes.clone(), Access::Once), &out).unwrap_err();
    assert_eq!(error.kind(), Kind::NotStreamable, "{error}");
    let small = Spool { folders: vec![(dir.path().to_owned(), 1 << 20)] };
    let error = import(Memory::new(bytes.clone(), Access::Once), &out, &small, &mut Forgetful, &Stop::new())
        .unwrap_err();
    assert_eq!(error.kind(), Kind::NotStreamable, "{error}");
}

/// A qcow2 of `clusters` clusters of 512 bytes, all tables first, then `gap` bytes of nothing and the data in no order;
/// and its disk.
fn shuffled(clusters: usize, gap: usize) -> (Vec<u8>, Vec<u8>) {
    const CLUSTER: usize = 512;
    let leaves = clusters.div_ceil(CLUSTER / 8);
    let l1 = 2 * CLUSTER;
    let l2 = l1 + (leaves * 8).next_multiple_of(CLUSTER);
    let data = l2 + leaves * CLUSTER + gap;
    let mut image = vec![0; data + clusters * CLUSTER];
    let mut disk = vec![0; clusters * CLUSTER];
    let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"QFI\xfb\0\0\0\x02");
    put(20, &9u32.to_be_bytes());
    put(24, &(disk.len() as u64).to_be_bytes());
    put(36, &(leaves as u32).to_be_bytes());
    put(40, &(l1 as u64).to_be_bytes());
    put(48, &(CLUSTER as u64).to_be_bytes());
    put(56, &1u32.to_be_bytes());
    for leaf in 0..leaves {
        put(l1 + leaf * 8, &((l2 + leaf * CLUSTER) as u64 | 1 << 63).to_be_bytes());
    }
    for cluster in 0..clusters {
        let host = data + cluster * 7919 % clusters * CLUSTER;
        put(l2 + cluster * 8, &(host as u64 | 1 << 63).to_be_bytes());
        // Most of it reads as zero, so that the test is quick.
        if cluster % 16 == 0 {
            put(host, &[(cluster / 16 % 251 + 1) as u8; CLUSTER]);
            disk[cluster * CLUSTER..][..CLUSTER].fill((cluster / 16 % 251 + 1) as u8);
        }
    }
    (image, disk)
}

#[test]
fn tables_that_lie_in_one_another_are_refused() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out.img");
    let (bytes, want) = shuffled(1000, 0);
    once(Memory::new(bytes.clone(), Access::Ranges), &out).unwrap();
    assert_same(&out, &want, "as it is");
    // The last entry of the L1 table leads where the first does.
    let (first, last) = (1024, 1024 + 15 * 8);
    let mut bytes = bytes;
    bytes.copy_within(first..first + 8, last);
    for access in [Access::Ranges, Access::Again, Access::Once] {
        let what = format!("{access:?}");
        let error = once(Memory::new(bytes.clone(), access), &out).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt, "{what}: {error}");
        assert!(
            error.to_string().contains("tables") && error.to_string().contains("overlap"),
            "{what}: {error}"
        );
    }
}

#[test]
fn more_extents_than_memory_is_for() {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out.img");
    // More than 192 Ki extents would be known and not reached. Tables wait in the window until there is memory.
    let (bytes, want) = shuffled(220_000, 0);
    once(Memory::new(bytes, Access::Once), &out).unwrap();
    assert_same(&out, &want, "tables from the window");
    // Or they are gone from it by then.
    let (bytes, want) = shuffled(300_000, 8 << 20);
    let source = Memory::new(bytes.clone(), Access::Again);
    let given = source.given.clone();
    once(source, &out).unwrap();
    assert_same(&out, &want, "read again");
    let times = given.load(Ordering::SeqCst) * 10 / bytes.len() as u64;
    assert!((11..=21).contains(&times), "{times} tenths of the image were read");
    let spool = Spool { folders: vec![(dir.path().to_owned(), 1 << 30)] };
    let source = Memory::new(bytes.clone(), Access::Once);
    import(source, &out, &spool, &mut Forgetful, &Stop::new()).unwrap();
    assert_same(&out, &want, "spooled");
    let error = once(Memory::new(bytes, Access::Once), &out).unwrap_err();
    assert_eq!(error.kind(), Kind::NotStreamable, "{error}");
}

#[test]
fn a_truncated_image_never_gives_wrong_bytes() {
    let dir = TempDir::new().unwrap();
    for options in &FORMATS[1..] {
        // Undecidable: the rest of a fixed VHD is a raw disk.
        if options.contains(&"subformat=fixed,force_size=on") {
            continue;
        }
        let bytes = image(&dir, options);
        let want = judged(&dir, &bytes);
        for access in [Access::Ranges, Access::Again, Access::Once] {
            for keep in [bytes.len() * 9 / 10, bytes.len() / 2, bytes.len() / 10] {
                let mut source = Memory::new(bytes[..keep].to_vec(), access.clone());
                source.sized = access == Access::Ranges;
                let out = dir.path().join("out.img");
                let what = format!("{options:?} {access:?} cut at {keep} of {}", bytes.len());
                match once(source, &out) {
                    // The end of an image may be room that nothing refers to.
                    Ok(_) => assert_same(&out, &want, &what),
                    Err(error) => {
                        assert!(matches!(error.kind(), Kind::Source | Kind::Corrupt), "{what}: {error}")
                    }
                }
            }
        }
    }
}

/// As `qemu-img convert` reads it, in each way of reading.
#[test]
fn an_image_that_ends_inside_its_last_cluster_reads_as_zero_there() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("cut.qcow2");
    for version in ["compat=1.1", "compat=1.1,extended_l2=on"] {
        run("qemu-img", &["create", "-f", "qcow2", "-o", version, text(&path), "4M"]);
        run("qemu-io", &["-f", "qcow2", "-c", "write -P 9 0 3M", text(&path)]);
        let whole = std::fs::read(&path).unwrap();
        for missing in [1, 30_001, 65_535] {
            let bytes = whole[..whole.len() - missing].to_vec();
            let want = judged(&dir, &bytes);
            assert_eq!(want[(3 << 20) - missing], 0, "{version}: the last cluster is data");
            for access in [Access::Ranges, Access::Again, Access::Once] {
                let mut source = Memory::new(bytes.clone(), access.clone());
                source.sized = access == Access::Ranges;
                let out = dir.path().join("out.img");
                let what = format!("{version} {access:?} without its last {missing} bytes");
                once(source, &out).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_same(&out, &want, &what);
            }
        }
        // Its last cluster is missing as a whole.
        let source = Memory::new(whole[..whole.len() - (64 << 10)].to_vec(), Access::Ranges);
        once(source, &dir.path().join("out.img")).unwrap_err();
        let mut source = Memory::new(whole[..whole.len() - (64 << 10)].to_vec(), Access::Once);
        source.sized = false;
        once(source, &dir.path().join("out.img")).unwrap_err();
    }
}

/// A ledger in memory.
#[derive(Clone, Default)]
struct MemoryLedger(Arc<Mutex<RangeSet>>);

impl Ledger for MemoryLedger {
    fn done(&self) -> RangeSet {
        self.0.lock().unwrap().clone()
    }

    fn commit(&mut self, ranges: &RangeSet) -> io::Result<()> {
        self.0.lock().unwrap().extend(ranges);
        Ok(())
    }
}

#[test]
fn stopped_anywhere_and_gone_on() {
    let dir = TempDir::new().unwrap();
    // On a busy machine a run may be stopped before its first commit, or after one of ranges without data alone.
    let mut kept = 0;
    for options in [FORMATS[0], FORMATS[1], FORMATS[2], FORMATS[8], FORMATS[10], FORMATS[11]] {
        let bytes = image(&dir, options);
        let fixed = options.contains(&"subformat=fixed,force_size=on");
        let want = if fixed { disk() } else { judged(&dir, &bytes) };
        for access in [Access::Ranges, Access::Again] {
            for tenth in [1, 4, 8] {
                let out = dir.path().join("out.img");
                let _ = std::fs::remove_file(&out);
                let mut ledger = MemoryLedger::default();
                let stop = Stop::new();
                let mut source = Memory::new(bytes.clone(), access.clone());
                source.stop_after = Some((stop.clone(), bytes.len() as u64 * tenth / 10));
                let what = format!("{options:?} {access:?} stopped at {tenth}/10");
                match import(source, &out, &Spool::default(), &mut ledger, &stop) {
                    Err(error) => assert_eq!(error.kind(), Kind::Stopped, "{what}: {error}"),
                    Ok(_) => assert!(!stop.is_set(), "{what}: did not stop"),
                }
                let source = Memory::new(bytes.clone(), access.clone());
                let given = source.given.clone();
                let result = import(source, &out, &Spool::default(), &mut ledger, &Stop::new());
                let (report, _) = result.unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_same(&out, &want, &what);
                if access == Access::Ranges && tenth == 8 && stop.is_set() && report.bytes_resumed > 0 {
                    kept += 1;
                    assert!(
                        given.load(Ordering::SeqCst) < bytes.len() as u64,
                        "{what}: everything was fetched again"
                    );
                }
            }
        }
    }
    assert!(kept > 0, "no run was resumed");
}

#[test]
fn a_fixed_vhd_in_blocks_goes_on_where_it_was_stopped() {
    let dir = TempDir::new().unwrap();
    let disk = &disk()[..(8 << 20) + 512];
    std::fs::write(dir.path().join("vhd"), [disk, &footer(disk.len() as u64)].concat()).unwrap();
    run("xz", &["-0", "-T2", "--block-size=1MiB", text(&dir.path().join("vhd"))]);
    let packed = std::fs::read(dir.path().join("vhd.xz")).unwrap();
    let out = dir.path().join("out.img");
    for tenth in [2, 5, 9, 11] {
        let what = format!("stopped at {tenth}/10");
        let _missing = std::fs::remove_file(&out);
        let mut ledger = MemoryLedger::default();
        let stop = Stop::new();
        let mut source = Memory::new(packed.clone(), Access::Ranges);
        source.stop_after = Some((stop.clone(), packed.len() as u64 * tenth / 10));
        match import(source, &out, &Spool::default(), &mut ledger, &stop) {
            Err(error) => assert_eq!(error.kind(), Kind::Stopped, "{what}: {error}"),
            Ok((report, _)) => assert_eq!((report.format, tenth), (Format::Vhd, 11), "{what}"),
        }
        let last = disk.len() as u64..disk.len() as u64 + 512;
        assert!(!ledger.done().contains(&last), "{what}: the footer is remembered as part of the disk");
        let source = Memory::new(packed.clone(), Access::Ranges);
        let result = import(source, &out, &Spool::default(), &mut ledger, &Stop::new());
        let (report, way) = result.unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!((report.format, way), (Format::Vhd, Way::Blocks), "{what}");
        assert_same(&out, disk, &what);
    }
}

#[test]
fn a_failing_ledger_ends_the_transfer() {
    struct Full;
    impl Ledger for Full {
        fn done(&self) -> RangeSet {
            RangeSet::new()
        }
        fn commit(&mut self, _: &RangeSet) -> io::Result<()> {
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }
    }
    let dir = TempDir::new().unwrap();
    let stop = Stop::new();
    let mut source = Memory::new(disk(), Access::Ranges);
    source.stop_after = Some((stop.clone(), 20 << 20));
    let result = import(source, &dir.path().join("out.img"), &Spool::default(), &mut Full, &stop);
    assert!(matches!(result.unwrap_err().kind(), Kind::Stopped | Kind::NoSpace));
}
