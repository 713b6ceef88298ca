//! The most memory that the program has resident at once, for disks far larger than it.

use std::fs;

use places::guest::Dice;
use places::{Mount, run};

use crate::support::{MIB, Pod, Setup, count};

/// Bytes that were resident at most so far.
fn peak(pod: &Pod) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", pod.process().id())).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib << 10)
}

#[test]
fn a_large_sparse_disk() {
    let folder = tempfile::tempdir().unwrap();
    let (raw, packed) = (folder.path().join("raw"), folder.path().join("packed"));
    let size = count(4, 64) << 30;
    let disk = fs::File::create(&raw).unwrap();
    disk.set_len(size).unwrap();
    for at in [0, size / 2, size - MIB] {
        let noise = Dice(at).bytes(1 << 20);
        std::os::unix::fs::FileExt::write_all_at(&disk, &noise, at).unwrap();
    }
    run("sh", &["-c", &format!("zstd -1 -q -c < '{}' > '{}'", raw.display(), packed.display())]);
    let bytes = fs::read(&packed).unwrap();
    // A filesystem with room for it, of which little is there.
    let volume = Mount::on_loop("xfs", size + (2 << 30));
    let mut pod = Pod::start(&Setup { volume: Some(volume.path()), ..Setup::default() });
    let most = std::thread::scope(|scope| {
        let uploading =
            scope.spawn(|| pod.client().request("POST", "/v1beta1/upload-async", &[], &bytes).status);
        let mut most = 0;
        while !uploading.is_finished() {
            most = most.max(peak(&pod).unwrap_or(0));
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(uploading.join().unwrap(), 200, "{}", pod.log());
        most
    });
    println!("{} GiB: {} KiB resident at most", size >> 30, most >> 10);
    assert!(most > 0 && most <= 64 * MIB, "{most} bytes resident");
    pod.assert_uploaded();
    run("cmp", &[raw.to_str().unwrap(), pod.disk().to_str().unwrap()]);
}
