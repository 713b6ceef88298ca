//! The metrics page: upstream's gauge, and what each pool and volume has, was promised and uses. Everything is from the
//! driver's memory but a pool's own numbers and the loop devices; no volume is looked into.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use api::names::METRICS_PATH;
use serve::http::Route;
use serve::metrics::{Kind, Page};

use crate::apply::room::reported_capacity;
use crate::config::Enforce;
use crate::device::Loop;
use crate::error::Result;
use crate::id::Id;
use crate::latency;
use crate::plan::room::Room;
use crate::pool::accounting::VolumeAccount;
use crate::pool::{IMAGE, Open};
use crate::pools::Pools;
use crate::record::Shape;
use dir::Dir;

/// The routes of the metrics endpoint; the driver's memory is in `state`.
pub(crate) fn routes(pools: Arc<Pools>, state: PathBuf) -> Vec<Route> {
    vec![Route { path: METRICS_PATH, body: Box::new(move || Ok(page(&pools, &state))) }]
}

/// A volume on the page.
struct Volume {
    id: Id,
    pool: String,
    capacity: u64,
    promised: u64,
    used: u64,
    extents: Option<u64>,
    devices: Vec<Loop>,
}

/// The end of a gauge's name, what it is, and its value.
type Gauge<T> = (&'static str, &'static str, fn(&T) -> u64);

/// A pool that is there.
struct Pool {
    name: String,
    room: Room,
    enforce: Option<Enforce>,
    read_only: bool,
}

fn page(of: &Pools, state: &Path) -> String {
    let mut attached = of.devices.every();
    let mut shared_with_os = false;
    let mut ready = Vec::new();
    let mut pools = Vec::new();
    let mut volumes = Vec::new();
    for pool in &of.all {
        let name = pool.config.name.clone();
        let open = pool.open();
        ready.push((name.clone(), open.is_ok()));
        let Ok(open) = open else { continue };
        shared_with_os |= is_shared_with_os(state, &open);
        pools.push(Pool {
            name: name.clone(),
            // Of what is in the book: the page must not cost a system call for each volume.
            room: open.room_by_accounts(),
            enforce: open.enforce(),
            read_only: open.read_only(),
        });
        let lines: Vec<(Id, VolumeAccount)> =
            open.known.book().volumes.iter().map(|(id, line)| (id.clone(), line.clone())).collect();
        for (id, line) in lines {
            let file = file(&open, &id, line.shape).unwrap_or_default();
            let devices = file.and_then(|file| attached.remove(&file)).unwrap_or_default();
            let promised = line.promised();
            let capacity = reported_capacity(&open, line.shape, promised);
            volumes.push(Volume {
                id,
                pool: name.clone(),
                capacity,
                promised,
                used: line.used,
                extents: line.extents,
                devices,
            });
        }
    }
    let mut page = Page::default();
    let name = "kubevirt_hpp_pool_defragmented_total";
    page.begin(name, Kind::Counter, "Disks of volumes that were defragmented");
    for pool in of.all.iter().filter(|pool| pool.config.defragment.is_some()) {
        page.sample(name, &[("pool", &pool.config.name)], pool.defragmented.load(Ordering::Relaxed));
    }
    page.single(
        "kubevirt_hpp_pool_path_shared_with_os",
        Kind::Gauge,
        "1 when a pool shares the filesystem of the operating system, so that its volumes can fill the node",
        u8::from(shared_with_os),
    );
    tell_pools(&mut page, &ready, &pools);
    tell_volumes(&mut page, &volumes);
    page.times("kubevirt_hpp_fsync_seconds", "Waits for the disk", &latency::SYNCS);
    let clones = "Content of volumes and snapshots made of another's";
    page.times("kubevirt_hpp_clone_seconds", clones, &latency::CLONES);
    page.text()
}

/// Whether a pool shares its filesystem with the operating system: the root's, or the one that the kubelet keeps our
/// socket on.
fn is_shared_with_os(state: &Path, open: &Open<'_>) -> bool {
    let device = |folder: &Dir| folder.stat_self().ok().map(|stat| stat.st_dev);
    let own = device(&open.root);
    [Path::new("/"), state]
        .into_iter()
        .filter_map(|path| Dir::find(path).ok().flatten())
        .any(|folder| own.is_some() && device(&folder) == own)
}

/// Device and inode of the file of a volume that is one.
pub(crate) fn file(open: &Open<'_>, id: &Id, shape: Shape) -> Result<Option<(u64, u64)>> {
    let stat = match shape {
        Shape::Folder => None,
        Shape::Block => open.blocks()?.stat(id)?,
        Shape::Loop => match open.root.dir(id)? {
            Some(folder) => folder.stat(IMAGE)?,
            None => None,
        },
    };
    Ok(stat.map(|stat| (stat.st_dev, stat.st_ino)))
}

fn tell_pools(page: &mut Page, ready: &[(String, bool)], pools: &[Pool]) {
    let name = "kubevirt_hpp_pool_ready";
    page.begin(name, Kind::Gauge, "Whether the pool's filesystem is there");
    for (pool, ready) in ready {
        page.sample(name, &[("pool", pool)], u8::from(*ready));
    }
    let name = "kubevirt_hpp_pool_enforced_info";
    page.begin(name, Kind::Gauge, "How mount volumes are kept at their capacity: quota, loop or none");
    for pool in pools {
        let by = match pool.enforce {
            Some(Enforce::Quota) => "quota",
            Some(Enforce::Loop) => "loop",
            Some(Enforce::None) | None => "none",
        };
        page.sample(name, &[("pool", &pool.name), ("by", by)], 1);
    }
    let gauges: [Gauge<Pool>; 7] = [
        ("size_bytes", "The filesystem's size", |pool| pool.room.size),
        ("free_bytes", "Free bytes that an unprivileged process can use", |pool| pool.room.free),
        ("foreign_bytes", "Bytes used by files other than volumes and snapshots", |pool| pool.room.foreign),
        ("promised_bytes", "Bytes reserved for volumes and held by snapshots", |pool| pool.room.promised),
        ("limit_bytes", "Upper limit of the sum of reservations", |pool| pool.room.limit()),
        ("available_bytes", "Bytes that can still be reserved", |pool| pool.room.available()),
        ("read_only", "Whether nothing can be written", |pool| u64::from(pool.read_only)),
    ];
    for (what, help, value) in gauges {
        let name = format!("kubevirt_hpp_pool_{what}");
        page.begin(&name, Kind::Gauge, help);
        for pool in pools {
            page.sample(&name, &[("pool", &pool.name)], value(pool));
        }
    }
}

fn tell_volumes(page: &mut Page, volumes: &[Volume]) {
    let gauges: [Gauge<Volume>; 3] = [
        ("capacity_bytes", "Capacity reported to clients", |volume| volume.capacity),
        ("promised_bytes", "Bytes reserved in the pool", |volume| volume.promised),
        ("used_bytes", "Bytes in use at the last scan, once a minute", |volume| volume.used),
    ];
    for (what, help, value) in gauges {
        let name = format!("kubevirt_hpp_volume_{what}");
        page.begin(&name, Kind::Gauge, help);
        for volume in volumes {
            page.sample(&name, &[("pool", &volume.pool), ("volume", volume.id.as_str())], value(volume));
        }
    }
    let name = "kubevirt_hpp_volume_extents";
    let help =
        "Extents of the volume's disk at the last scan; a snapshot holds the disk for about 50 us for each";
    page.begin(name, Kind::Gauge, help);
    for volume in volumes {
        if let Some(extents) = volume.extents {
            page.sample(name, &[("pool", &volume.pool), ("volume", volume.id.as_str())], extents);
        }
    }
    let name = "kubevirt_hpp_volume_loop_info";
    page.begin(
        name,
        Kind::Gauge,
        "A loop device on the volume's file, and whether it bypasses the page cache",
    );
    for volume in volumes {
        for device in &volume.devices {
            let labels = [
                ("pool", volume.pool.as_str()),
                ("volume", volume.id.as_str()),
                ("device", &device.path().display().to_string()),
                ("direct", &device.direct.to_string()),
                ("read_only", &device.read_only.to_string()),
            ];
            page.sample(name, &labels, 1);
        }
    }
}
