//! The built driver defragments disks: it is killed in the middle, it is started again, and its metrics count.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::support::place::{Place, run};
use crate::support::{GIB, MIB, block, eventually, names, one_pool, one_pool_of, volume};

/// Extents of a file, as filefrag counts them.
fn extents(path: &Path) -> u64 {
    let text = run("filefrag", &[path.to_str().unwrap()]);
    text.rsplit(": ").next().unwrap().split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn a_kill_leaves_the_old_disk_and_a_restart_goes_on() {
    let place = Place::new("xfs", GIB);
    let path = place.pool().join(".hpp-csi/block/v");
    let (driver, client) = one_pool(&place, "");
    client.create(volume("v", 256 * MIB, block()));
    let file = File::options().write(true).open(&path).unwrap();
    for at in 0..200_u8 {
        file.write_all_at(&[at | 1; 1 << 20], u64::from(at) << 20).unwrap();
    }
    client.snapshot("s", "v");
    for block in 0..1000 {
        file.write_all_at(&[9; 4096], block * 16384).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    let (old, content) = (fs::metadata(&path).unwrap().ino(), fs::read(&path).unwrap());
    assert!(extents(&path) > 1000);
    drop((driver, client));

    let defragments = r#","defragment":500"#;
    let copy = place.pool().join(".hpp-csi/tmp/node1/d.v");
    let (driver, client) = one_pool(&place, defragments);
    eventually("the copy is being made", || fs::metadata(&copy).is_ok_and(|copy| copy.blocks() > 0));
    driver.kill();
    drop(client);
    assert!(copy.exists());
    assert_eq!(fs::metadata(&path).unwrap().ino(), old);

    let (driver, client) = one_pool(&place, "");
    assert_eq!(client.volumes(), ["v"]);
    assert_eq!(names(&place.pool().join(".hpp-csi/tmp/node1")), [] as [&str; 0]);
    eventually("the trash is empty", || names(&place.pool().join(".hpp-csi/trash/node1")).is_empty());
    assert_eq!(fs::metadata(&path).unwrap().ino(), old);
    assert!(fs::read(&path).unwrap() == content);
    drop((driver, client));

    let driver = one_pool_of("node1", &place, defragments, &["--metrics-address=127.0.0.1:0"]);
    eventually("the disk is defragmented", || extents(&path) < 20);
    assert!(fs::read(&path).unwrap() == content);
    eventually("it is logged", || driver.log().contains("the volume's disk is defragmented"));
    let log = driver.log();
    let port = log.split("127.0.0.1:").nth(1).unwrap().split(|c: char| !c.is_ascii_digit()).next().unwrap();
    let url = format!("https://127.0.0.1:{port}/metrics");
    let value = |name: &str| {
        let page = run("curl", &["-ks", &url]);
        let line = page.lines().find(|line| line.starts_with(name)).unwrap().to_owned();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    eventually("the metrics follow", || value("kubevirt_hpp_pool_defragmented_total") == 1);
    assert!(value("kubevirt_hpp_volume_extents") < 20);
}
