//! A pool: a directory that holds one directory per volume, and the driver's directory `.hpp-csi`.
//!
//! ```text
//! <path>/<volume id>/                    a mount volume (shape loop: one file `image` in it)
//! <path>/snapshots/<snapshot id>/data/   a snapshot's content (shape loop, block: one file `image`)
//! <path>/snapshots/<snapshot id>/<volume id>/   empty: names its volume
//! <path>/.hpp-csi/pool.json              which pool this is
//!                 block/<volume id>      a block volume
//!                 volumes/<id>.json      what we know about a volume
//!                 snapshots/<id>.json    what we know about a snapshot
//!                 groups/<id>.json       which snapshots are a group; without it they are not there
//!                 tmp/<node>/            what is being made
//!                 trash/<node>/          what is being removed
//! ```
//!
//! A volume exists when its directory or file exists; a record alone is no volume. A pool is opened for every call and no
//! descriptor of it is kept after it: its filesystem can be unmounted, and its absence is noticed at once.

pub(crate) mod accounting;
pub(crate) mod clone;
pub(crate) mod copy;
pub(crate) mod identity;
pub(crate) mod neighbours;
pub(crate) mod scan;
pub(crate) mod trash;
pub(crate) mod tree;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, OFlags, StatVfs, StatVfsMountFlags, StatxFlags, fstatvfs, statx};

use crate::config::{Enforce, PoolConfig};
use crate::device::Devices;
use crate::error::{Error, Kind, Result};
use crate::id::Id;
use crate::mounts;
use crate::plan::room::Room;
use crate::record::{self, RECORD_MAX, Record, Shape, SnapshotRecord};
use crate::sys;
use dir::{Dir, is_dir, is_file};

use accounting::Accounting;
use identity::KnownPools;
use neighbours::Neighbours;

/// Our folder in a pool.
pub(crate) const OWN: &str = crate::config::OWN_FOLDER;
/// The folder of block volumes in it.
pub(crate) const BLOCK: &str = "block";
/// The file of a volume or snapshot that is stored as one file.
pub(crate) const IMAGE: &str = "image";
/// The folder of a snapshot's files.
pub(crate) const DATA: &str = "data";
/// How long the free bytes of a filesystem count after they were read: programs other than the driver write, too.
const FRESH: Duration = Duration::from_secs(1);

/// A configured pool, there or not.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) config: PoolConfig,
    node: Id,
    remembered: Arc<KnownPools>,
    pub(crate) neighbours: Arc<Neighbours>,
    pub(crate) devices: Arc<Devices>,
    recover: Recover,
    known: Mutex<Option<Arc<Known>>>,
    /// Disks of its volumes that this process defragmented.
    pub(crate) defragmented: AtomicU64,
}

/// Undoes what a process before this one did not finish in a pool. It runs before the pool is used.
pub(crate) type Recover = fn(&Open<'_>) -> Result<()>;

/// Probed properties of a pool's filesystem, valid as long as the mark is the same.
#[derive(Debug)]
pub(crate) struct Known {
    mark: Mark,
    /// Whether files can share blocks.
    pub(crate) sharing: bool,
    /// Whether project quota is enforced.
    pub(crate) quota: bool,
    pub(crate) book: Mutex<Accounting>,
    /// When the records of a shared pool were last changed, as far as they are in the book.
    pub(crate) records: Mutex<Option<scan::Stamp>>,
}

impl Known {
    /// Facts about a model of a pool.
    #[cfg(test)]
    pub(crate) fn of_model() -> Self {
        let mark = Mark { device: 0, mount: 0, read_only: false, own: (0, 0, 0) };
        Self { mark, sharing: true, quota: false, book: Mutex::default(), records: Mutex::default() }
    }

    /// The book, for a moment.
    pub(crate) fn book(&self) -> std::sync::MutexGuard<'_, Accounting> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Distinguishes filesystems, and mounts of one. Numbers of devices, inodes and mounts come again: when a folder
/// was made does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    device: u64,
    mount: u64,
    read_only: bool,
    /// `.hpp-csi`, which is on the data folder's mount: inode, and seconds and nanoseconds of birth, 0 where the filesystem
    /// does not keep them.
    own: (u64, i64, u32),
}

/// A pool that is there, open for one call.
pub(crate) struct Open<'a> {
    pub(crate) pool: &'a Pool,
    pub(crate) known: Arc<Known>,
    /// The data folder.
    pub(crate) root: Arc<Dir>,
    /// `.hpp-csi`.
    pub(crate) own: Dir,
    folders: Folders,
    numbers: Numbers,
}

/// Folders in `.hpp-csi`. Each is opened when the call needs it first.
#[derive(Default)]
struct Folders {
    tmp: OnceLock<Arc<Dir>>,
    trash: OnceLock<Arc<Dir>>,
    blocks: OnceLock<Arc<Dir>>,
    volumes: OnceLock<Arc<Dir>>,
    snapshots: OnceLock<Arc<Dir>>,
    groups: OnceLock<Arc<Dir>>,
}

/// The numbers of a filesystem, and when they were read.
struct Numbers {
    of: StatVfs,
    at: Instant,
}

impl Numbers {
    fn read_only(&self) -> bool {
        self.of.f_flag.contains(StatVfsMountFlags::RDONLY)
    }
}

/// A pool's path as a call finds it.
struct Inspected {
    root: Dir,
    /// `.hpp-csi` and its mark; absent in a folder that no driver has used.
    own: Option<(Dir, Mark)>,
    numbers: Numbers,
}

/// A volume that is there.
#[derive(Clone, Debug)]
pub(crate) struct Volume {
    pub(crate) id: Id,
    pub(crate) shape: Shape,
    /// `None`: not created by this driver.
    pub(crate) record: Option<Record>,
    /// Device and inode of its folder or file.
    pub(crate) file: (u64, u64),
}

/// A snapshot that is there.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) id: Id,
    pub(crate) record: SnapshotRecord,
}

impl Pool {
    pub(crate) fn new(
        config: PoolConfig,
        node: Id,
        remembered: Arc<KnownPools>,
        neighbours: Arc<Neighbours>,
        devices: Arc<Devices>,
        recover: Recover,
    ) -> Self {
        let (known, defragmented) = Default::default();
        Self { config, node, remembered, neighbours, devices, recover, known, defragmented }
    }

    /// Where the file of the volume `id` can be, if it is one.
    pub(crate) fn places_of_image(&self, id: &Id) -> [PathBuf; 2] {
        let path = &self.config.path;
        [path.join(OWN).join(BLOCK).join(id), path.join(id).join(IMAGE)]
    }

    /// An error of `kind` that names the pool.
    pub(crate) fn error(&self, kind: Kind, what: impl std::fmt::Display) -> Error {
        Error::new(kind, format!("pool {}: {what}", self.config.name))
    }

    /// Opens the pool.
    ///
    /// # Errors
    /// [`Kind::NotReady`] when its folder is not there, or is not the one it was.
    pub(crate) fn open(&self) -> Result<Open<'_>> {
        let Inspected { root, own, numbers } =
            self.inspect().map_err(|error| error.about(&self.config.name))?;
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let (Some(known), Some((own, mark))) = (known, own)
            && known.mark == mark
        {
            return Ok(self.opened(known, root, own, numbers));
        }
        self.find_out(root, numbers)
    }

    fn opened(&self, known: Arc<Known>, root: Dir, own: Dir, numbers: Numbers) -> Open<'_> {
        Open { pool: self, known, root: Arc::new(root), own, folders: Folders::default(), numbers }
    }

    /// Opens the pool's path and reads its state.
    fn inspect(&self) -> Result<Inspected> {
        let path = &self.config.path;
        let missing = || Error::new(Kind::NotReady, format!("{} does not exist", path.display()));
        // A pod's mount in its volume that the host sees is not the pool's: no call goes into it.
        let root = Dir::find(path)?.ok_or_else(missing)?.one_mount();
        if self.config.mounted && !mounts::is_root(&root)? {
            return Err(Error::new(
                Kind::NotReady,
                format!("its filesystem is not mounted at {} yet", path.display()),
            ));
        }
        let at = Instant::now();
        let of = fstatvfs(&root).map_err(|error| {
            Error::io(format!("read the size and free space of {}", path.display()), error)
        })?;
        let numbers = Numbers { of, at };
        let own = match root.dir(OWN)? {
            Some(own) => {
                let mark = Mark::of(&own, &numbers)?;
                Some((own, mark))
            }
            None => None,
        };
        Ok(Inspected { root, own, numbers })
    }

    /// Looks at a filesystem that is new to us. One caller does it, others wait.
    fn find_out(&self, root: Dir, numbers: Numbers) -> Result<Open<'_>> {
        let read_only = numbers.read_only();
        let mut slot = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(known), Some(own)) = (slot.clone(), root.dir(OWN)?)
            && known.mark == Mark::of(&own, &numbers)?
        {
            return Ok(self.opened(known, root, own, numbers));
        }
        *slot = None;
        let own = identity::own_folder(self, &root, read_only)?;
        let mark = Mark::of(&own, &numbers)?;
        let known = Known {
            mark,
            sharing: !read_only && self.probe_sharing(&own)?,
            quota: sys::project_quota_enforced(std::os::fd::AsFd::as_fd(&root)),
            book: Mutex::default(),
            records: Mutex::default(),
        };
        let open = self.opened(Arc::new(known), root, own, numbers);
        if !read_only {
            (self.recover)(&open)?;
            trash::sweep(&open)?;
        }
        scan::load(&open)?;
        let (volumes, snapshots) = {
            let book = open.known.book();
            (book.volumes.len(), book.snapshots.len())
        };
        tracing::info!(
            pool = self.config.name,
            path = %self.config.path.display(),
            volumes,
            snapshots,
            shares_blocks = open.known.sharing,
            enforced = open.enforce().map_or("unavailable", Enforce::word),
            read_only,
            "pool is ready"
        );
        if open.enforce().is_none_or(|enforce| enforce == Enforce::None) {
            tracing::warn!(pool = self.config.name, "capacity of mount volumes is not enforced in this pool");
        }
        self.neighbours.note(&self.config.name, mark.device, &open.known);
        *slot = Some(open.known.clone());
        Ok(open)
    }

    /// Whether one file can be made of another's blocks: it is tried.
    fn probe_sharing(&self, own: &Dir) -> Result<bool> {
        let tmp = own.need_dir(Path::new("tmp").join(&self.node))?;
        let names = [".probe-a", ".probe-b"];
        let result = (|| {
            tmp.write(names[0], &[1; 4096])?;
            tmp.write(names[1], &[])?;
            let open = |name: &str, flags| tmp.open_with(name, flags, 0);
            match (open(names[0], OFlags::RDONLY)?, open(names[1], OFlags::WRONLY)?) {
                (Some(from), Some(to)) => Ok(rustix::fs::ioctl_ficlone(to, from).is_ok()),
                _ => Ok(false),
            }
        })();
        for name in names {
            tmp.unlink(name)?;
        }
        match result {
            // Sharing cannot be probed on a full disk; the calls that write report the lack of room.
            Err(error) if Error::kind(&error) == Kind::Exhausted => Ok(false),
            other => other,
        }
    }
}

impl Mark {
    /// The mark of the pool with the folder `own`.
    fn of(own: &Dir, numbers: &Numbers) -> Result<Self> {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID | StatxFlags::BTIME;
        let found = statx(own, "", AtFlags::EMPTY_PATH, flags)
            .map_err(|error| Error::io(format!("look at {}", own.path_of("").display()), error))?;
        let (seconds, nanoseconds) =
            match StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME) {
                true => (found.stx_btime.tv_sec, found.stx_btime.tv_nsec),
                false => (0, 0),
            };
        Ok(Self {
            device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
            mount: found.stx_mnt_id,
            read_only: numbers.read_only(),
            own: (found.stx_ino, seconds, nanoseconds),
        })
    }
}

impl Open<'_> {
    /// The folder `name` in `.hpp-csi`, which is `known` after the first time.
    fn folder(&self, known: &OnceLock<Arc<Dir>>, name: impl AsRef<Path>) -> Result<Arc<Dir>> {
        if let Some(folder) = known.get() {
            return Ok(folder.clone());
        }
        let folder = Arc::new(self.own.need_dir(name)?);
        Ok(known.get_or_init(|| folder).clone())
    }

    /// The node's folder of what is being made.
    pub(crate) fn tmp(&self) -> Result<Arc<Dir>> {
        self.folder(&self.folders.tmp, Path::new("tmp").join(&self.pool.node))
    }

    /// The node's folder of what is being removed.
    pub(crate) fn trash(&self) -> Result<Arc<Dir>> {
        self.folder(&self.folders.trash, Path::new("trash").join(&self.pool.node))
    }

    /// Records of volumes.
    pub(crate) fn volume_records(&self) -> Result<Arc<Dir>> {
        self.folder(&self.folders.volumes, "volumes")
    }

    /// Records of snapshots.
    pub(crate) fn snapshot_records(&self) -> Result<Arc<Dir>> {
        self.folder(&self.folders.snapshots, "snapshots")
    }

    /// Block volumes.
    pub(crate) fn blocks(&self) -> Result<Arc<Dir>> {
        self.folder(&self.folders.blocks, BLOCK)
    }

    /// Snapshots; `None` when there was never one.
    pub(crate) fn snapshots(&self) -> Result<Option<Dir>> {
        match self.snapshots_beneath() {
            Some(name) => Ok(self.root.dir(name)?),
            None => Ok(Dir::find(&self.pool.config.snapshots)?.map(Dir::one_mount)),
        }
    }

    /// Snapshots, the folder made if it is the usual one.
    pub(crate) fn snapshots_or_make(&self) -> Result<Dir> {
        match self.snapshots_beneath() {
            Some(name) => Ok(self.root.dir_or_make(name, 0o755)?),
            None => self.snapshots()?.ok_or_else(|| {
                let path = self.pool.config.snapshots.display();
                self.pool.error(Kind::NotReady, format!("{path} does not exist"))
            }),
        }
    }

    /// Name of the snapshots' folder, where it is in the data folder.
    fn snapshots_beneath(&self) -> Option<&Path> {
        let config = &self.pool.config;
        config.snapshots.strip_prefix(&config.path).ok().filter(|name| name.components().count() == 1)
    }

    /// Checks that the pool can be written to.
    ///
    /// # Errors
    /// [`Kind::NotReady`] when it cannot.
    pub(crate) fn writable(&self) -> Result<()> {
        if self.read_only() { Err(self.pool.error(Kind::NotReady, "it is read-only")) } else { Ok(()) }
    }

    /// Whether nothing can be written.
    pub(crate) fn read_only(&self) -> bool {
        self.known.mark.read_only
    }

    /// Bytes of the filesystem, and those of it that unprivileged processes can still write.
    pub(crate) fn size_and_free(&self) -> (u64, u64) {
        let numbers = &self.numbers.of;
        let bytes = |blocks: u64| blocks.saturating_mul(numbers.f_frsize);
        (bytes(numbers.f_blocks), bytes(numbers.f_bavail))
    }

    /// An error about an operation that needs `asked` bytes; when the pool has no room, the error adds how much there is.
    pub(crate) fn without_room(&self, asked: u64, error: Error) -> Error {
        // It was opened before the disk was full.
        let free = fstatvfs(&self.root).map_or(0, |now| now.f_bavail.saturating_mul(now.f_frsize));
        error.with_room(&self.pool.config.name, asked, free)
    }

    /// Bytes in use now.
    pub(crate) fn used_now(&self) -> u64 {
        let now = fstatvfs(&self.root).ok();
        let numbers = now.as_ref().unwrap_or(&self.numbers.of);
        numbers.f_blocks.saturating_sub(numbers.f_bfree).saturating_mul(numbers.f_frsize)
    }

    /// How capacity is enforced here; `None` when quota is wanted and not to be had.
    pub(crate) fn enforce(&self) -> Option<Enforce> {
        match (self.pool.config.enforce, self.known.quota) {
            (Some(Enforce::Quota) | None, true) => Some(Enforce::Quota),
            (Some(Enforce::Quota), false) => None,
            (Some(Enforce::Loop), _) => Some(Enforce::Loop),
            (Some(Enforce::None), _) | (None, false) => Some(Enforce::None),
        }
    }

    /// How much there is.
    pub(crate) fn room(&self) -> Result<Room> {
        scan::follow(self)?;
        Ok(self.room_by_accounts())
    }

    /// The same, by the accounts alone: without a system call per volume.
    pub(crate) fn room_by_accounts(&self) -> Room {
        let others = self.elsewhere(Accounting::outstanding);
        self.room_by(&self.known.book(), others)
    }

    /// The same, by the book in hand; volumes of other pools may still take `others`.
    pub(crate) fn room_by(&self, book: &Accounting, others: u64) -> Room {
        // The pool was opened before others wrote, and before what is in the book.
        let free = fstatvfs(&self.root).map_or(0, |now| now.f_bavail.saturating_mul(now.f_frsize));
        Room {
            free,
            others,
            promised: book.promised(),
            outstanding: book.outstanding(),
            ..self.empty_room(book)
        }
    }

    /// The least room that there can be, by the book in hand: as if no volume had written any of the bytes promised to it, here
    /// and in other pools (`promised_elsewhere`). It needs no system call: bytes that were free when the pool was opened, and
    /// that the driver has taken since, are part of a promise. `None` when the pool was opened too long ago, or other nodes
    /// write to it.
    pub(crate) fn least_room(&self, book: &Accounting, promised_elsewhere: u64) -> Option<Room> {
        if self.pool.config.shared || self.numbers.at.elapsed() > FRESH {
            return None;
        }
        let promised = book.promised();
        let free = self.size_and_free().1;
        Some(Room {
            free,
            others: promised_elsewhere,
            promised,
            outstanding: promised,
            ..self.empty_room(book)
        })
    }

    /// The room of a pool without volumes, on a filesystem without free bytes.
    fn empty_room(&self, book: &Accounting) -> Room {
        Room {
            capacity: self.pool.config.capacity,
            size: self.size_and_free().0,
            free: 0,
            foreign: book.foreign,
            promised: 0,
            outstanding: 0,
            others: 0,
            reserve: self.pool.config.reserve,
            overcommit: self.pool.config.overcommit,
        }
    }

    /// The sum of `count` over all other pools on this filesystem. The caller has no account locked.
    pub(crate) fn elsewhere(&self, count: fn(&Accounting) -> u64) -> u64 {
        self.pool.neighbours.sum(&self.pool.config.name, self.known.mark.device, count)
    }

    /// Bytes that a volume owns alone and that sharing them would have it take again.
    pub(crate) fn owned(&self, id: &Id) -> u64 {
        self.known.book().volumes.get(id).map_or(0, accounting::VolumeAccount::to_share)
    }

    /// The volume `id`, if it is here.
    pub(crate) fn volume(&self, id: &Id) -> Result<Option<Volume>> {
        let found = match self.root.stat(id)? {
            Some(stat) if is_dir(&stat) => Some((stat, Shape::Folder)),
            Some(_) | None => self.blocks()?.stat(id)?.filter(is_file).map(|stat| (stat, Shape::Block)),
        };
        let Some((stat, place)) = found else {
            self.known.book().volumes.remove(id);
            return Ok(None);
        };
        let record = self.volume_record(id, place)?;
        let shape = record.as_ref().map_or(place, |record| record.shape);
        Ok(Some(Volume { id: id.clone(), shape, record, file: (stat.st_dev, stat.st_ino) }))
    }

    /// The record of the volume `id`. On a shared pool another node may have written it.
    fn volume_record(&self, id: &Id, place: Shape) -> Result<Option<Record>> {
        if !self.pool.config.shared
            && let Some(line) = self.known.book().volumes.get(id)
        {
            return Ok(line.record.clone());
        }
        let record = match self.volume_records()?.read(record_name(id), RECORD_MAX)? {
            None => None,
            Some(bytes) => {
                Some(record::read_volume(&bytes).map_err(|error| self.unusable("volume", id, &error))?)
            }
        };
        self.known.book().note_volume(id, record.clone(), place);
        Ok(record)
    }

    /// The error about a volume or snapshot with an unreadable record. It is left as it is: its properties cannot be
    /// guessed.
    fn unusable(&self, what: &str, id: &Id, error: &Error) -> Error {
        let record = self.own.path_of(format!("{what}s")).join(record_name(id));
        let record = record.display();
        self.pool.error(
            Kind::Internal,
            format!("{what} {id} cannot be used: {error}; repair {record}, or remove it if the {what} was not created by this driver"),
        )
    }

    /// The folder and the name of a volume's disk: its file, or the file [`scan::DISK`] of a directory; `None` when there is no
    /// such folder.
    pub(crate) fn disk(&self, id: &Id, shape: Shape) -> Result<Option<(Arc<Dir>, PathBuf)>> {
        let name = match shape {
            Shape::Block => return Ok(Some((self.blocks()?, id.as_str().into()))),
            Shape::Loop => IMAGE,
            Shape::Folder => scan::DISK,
        };
        Ok(self.root.dir(id)?.map(|folder| (Arc::new(folder), name.into())))
    }

    /// The file of a volume that is one, open for writing, or for reading where nothing can be written. `None` for a
    /// folder, or when it is gone.
    pub(crate) fn image(&self, volume: &Volume) -> Result<Option<File>> {
        let flags = if self.read_only() { OFlags::RDONLY } else { OFlags::RDWR } | OFlags::NONBLOCK;
        if volume.shape == Shape::Folder {
            return Ok(None);
        }
        match self.disk(&volume.id, volume.shape)? {
            Some((folder, name)) => Ok(folder.open_with(&name, flags, 0)?),
            None => Ok(None),
        }
    }

    /// The same, of a volume that must have one.
    pub(crate) fn need_image(&self, volume: &Volume) -> Result<File> {
        self.image(volume)?.ok_or_else(|| {
            self.pool.error(Kind::Precondition, format!("the file of volume {} is missing", volume.id))
        })
    }

    /// Names of all volumes that are here, in order.
    pub(crate) fn volume_ids(&self) -> Result<Vec<Id>> {
        let folders = self.root.entries()?.into_iter().filter(|entry| entry.is_dir);
        let blocks = self.blocks()?.entries()?.into_iter().filter(|entry| !entry.is_dir);
        let mut ids: Vec<Id> = folders.chain(blocks).filter_map(|entry| Id::read(&entry.name)).collect();
        ids.sort();
        ids.dedup();
        Ok(ids)
    }

    /// The snapshot `id`, if it is here.
    pub(crate) fn snapshot(&self, id: &Id) -> Result<Option<Snapshot>> {
        let Some(snapshots) = self.snapshots()? else { return Ok(None) };
        let there = snapshots.stat(id)?.is_some_and(|stat| is_dir(&stat));
        let Some(folder) = (if there { snapshots.dir(id)? } else { None }) else {
            self.known.book().snapshots.remove(id);
            return Ok(None);
        };
        let line = self.known.book().snapshots.get(id).cloned();
        if let Some(record) = line {
            return Ok(self.is_whole(&record)?.then(|| Snapshot { id: id.clone(), record }));
        }
        let record = match self.snapshot_records()?.read(record_name(id), RECORD_MAX)? {
            Some(bytes) => {
                record::read_snapshot(&bytes).map_err(|error| self.unusable("snapshot", id, &error))?
            }
            None => match adopted(&folder)? {
                Some(record) => record,
                // Neither marker nor record: not a snapshot.
                None => return Ok(None),
            },
        };
        self.known.book().note_snapshot(id, &record, self.known.sharing);
        Ok(self.is_whole(&record)?.then(|| Snapshot { id: id.clone(), record }))
    }

    /// Whether a snapshot is there: one of a group is when its group is.
    fn is_whole(&self, record: &SnapshotRecord) -> Result<bool> {
        match record.group.as_deref().map(Id::read) {
            None => Ok(true),
            Some(Some(group)) => Ok(self.groups()?.stat(record_name(&group))?.is_some()),
            Some(None) => Ok(false),
        }
    }

    /// Records of groups.
    pub(crate) fn groups(&self) -> Result<Arc<Dir>> {
        self.folder(&self.folders.groups, "groups")
    }

    /// Names of all snapshots that may be here, in order.
    pub(crate) fn snapshot_ids(&self) -> Result<Vec<Id>> {
        let Some(snapshots) = self.snapshots()? else { return Ok(Vec::new()) };
        let folders = snapshots.entries()?.into_iter().filter(|entry| entry.is_dir);
        let mut ids: Vec<Id> = folders.filter_map(|entry| Id::read(&entry.name)).collect();
        ids.sort();
        Ok(ids)
    }
}

/// A snapshot that upstream made: its marker names the volume.
fn adopted(folder: &Dir) -> Result<Option<SnapshotRecord>> {
    let entries = folder.entries()?;
    let source = entries.iter().filter(|entry| entry.is_dir).find_map(|entry| Id::read(&entry.name));
    let (Some(source), Some(data)) = (source, folder.dir(DATA)?) else { return Ok(None) };
    let used = tree::used(&data, &mut tree::Budget::default())?;
    let seconds = u64::try_from(data.stat_self()?.st_ctime).unwrap_or(0);
    let mut record = SnapshotRecord::new(&source, Shape::Folder, used, used);
    record.created = seconds.saturating_mul(1_000_000_000);
    Ok(Some(record))
}

/// Name of a record's file.
pub(crate) fn record_name(id: &Id) -> PathBuf {
    PathBuf::from(format!("{id}.json"))
}
