//! The `unsafe` calls of the driver: ioctls and two system calls that rustix lacks. Each takes open descriptors and
//! numbers and gives a result; none decides anything.
//!
//! Followed: linux/loop.h, linux/fs.h, linux/fiemap.h, linux/dqblk_xfs.h, linux/quota.h, xfs_fs.h, ext4's ioctl.h, mount_setattr(2),
//! quotactl_fd(2).

#![expect(unsafe_code, reason = "ioctls and raw system calls")]

use std::io;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use libc::{c_int, c_ulong, c_void};

const LOOP_CTL_GET_FREE: c_ulong = 0x4C82;
const LOOP_CONFIGURE: c_ulong = 0x4C0A;
const LOOP_SET_STATUS64: c_ulong = 0x4C04;
const LOOP_GET_STATUS64: c_ulong = 0x4C05;
const LOOP_CLR_FD: c_ulong = 0x4C01;
const LOOP_SET_CAPACITY: c_ulong = 0x4C07;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
const FIFREEZE: c_ulong = 0xC004_5877;
const FITHAW: c_ulong = 0xC004_5878;
const FITRIM: c_ulong = 0xC018_5879;
const FS_IOC_FSGETXATTR: c_ulong = 0x801C_581F;
const FS_IOC_FSSETXATTR: c_ulong = 0x401C_5820;
const FS_XFLAG_PROJINHERIT: u32 = 0x200;
const FS_IOC_FIEMAP: c_ulong = 0xC020_660B;
const FIEMAP_FLAG_SYNC: u32 = 1;
const FIEMAP_EXTENT_LAST: u32 = 0x1;
const FIEMAP_EXTENT_UNWRITTEN: u32 = 0x800;
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;
/// LAST, SHARED and MERGED do not affect an extent's place on the disk; every other flag may.
const FIEMAP_EXTENT_PLAIN: u32 = FIEMAP_EXTENT_LAST | FIEMAP_EXTENT_SHARED | 0x1000;
/// Extents that are asked for at once.
const EXTENTS: usize = 256;
const XFS_IOC_FSGROWFSDATA: c_ulong = 0x4010_586E;
const EXT4_IOC_RESIZE_FS: c_ulong = 0x4008_6610;
const F_SETSIG: c_int = 10;
const PRJQUOTA: c_int = 2;
const Q_XGETQUOTA: c_int = 0x5803;
const Q_XSETQLIM: c_int = 0x5804;
const Q_XGETQSTATV: c_int = 0x5808;
const FS_QSTATV_VERSION1: i8 = 1;
const FS_QUOTA_PDQ_ENFD: u16 = 1 << 5;
const FS_DQUOT_VERSION: i8 = 1;
const FS_PROJ_QUOTA: i8 = 2;
const FS_DQ_BHARD: u16 = 1 << 3;

/// struct loop_info64.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// struct loop_config.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// The state of an attached loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoopState {
    /// Device number of the backing file's filesystem, as the kernel packs it for user space.
    pub(crate) device: u64,
    /// Inode of the backing file.
    pub(crate) inode: u64,
    /// Whether writes are refused.
    pub(crate) read_only: bool,
    /// Whether the backing file is read and written past the page cache.
    pub(crate) direct: bool,
    /// Whether the kernel detaches it at the last close.
    pub(crate) leaving: bool,
}

impl LoopState {
    /// Device and inode number of the backing file.
    pub(crate) fn file(self) -> (u64, u64) {
        (self.device, self.inode)
    }
}

/// struct fsxattr.
#[repr(C)]
struct FsXattr {
    xflags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    pad: [u8; 8],
}

/// struct fs_disk_quota. Amounts are units of 512 bytes.
#[repr(C)]
#[derive(Clone, Copy)]
struct DiskQuota {
    version: i8,
    flags: i8,
    fieldmask: u16,
    id: u32,
    blk_hardlimit: u64,
    blk_softlimit: u64,
    ino_hardlimit: u64,
    ino_softlimit: u64,
    bcount: u64,
    icount: u64,
    itimer: i32,
    btimer: i32,
    iwarns: u16,
    bwarns: u16,
    itimer_hi: i8,
    btimer_hi: i8,
    rtbtimer_hi: i8,
    padding2: i8,
    rtb_hardlimit: u64,
    rtb_softlimit: u64,
    rtbcount: u64,
    rtbtimer: i32,
    rtbwarns: u16,
    padding3: i16,
    padding4: [u8; 8],
}

/// struct fs_qfilestatv.
#[repr(C)]
struct QuotaFile {
    inode: u64,
    blocks: u64,
    extents: u32,
    pad: u32,
}

/// struct fs_quota_statv.
#[repr(C)]
struct QuotaState {
    version: i8,
    pad1: u8,
    flags: u16,
    incoredqs: u32,
    user: QuotaFile,
    group: QuotaFile,
    project: QuotaFile,
    btimelimit: i32,
    itimelimit: i32,
    rtbtimelimit: i32,
    bwarnlimit: u16,
    iwarnlimit: u16,
    rtbwarnlimit: u16,
    pad3: u16,
    pad4: u32,
    pad2: [u64; 7],
}

/// struct fiemap_extent.
#[repr(C)]
#[derive(Clone, Copy)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// struct fiemap with room for extents.
#[repr(C)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [FiemapExtent; EXTENTS],
}

/// A range of a file that holds data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Where it begins in the file.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// Where it begins on the disk; `None` when the bytes there are not just those of the file.
    pub(crate) place: Option<u64>,
}

/// struct fstrim_range.
#[repr(C)]
struct TrimRange {
    start: u64,
    length: u64,
    least: u64,
}

/// struct xfs_growfs_data.
#[repr(C)]
struct XfsGrow {
    blocks: u64,
    max_inode_percent: u32,
}

fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// An ioctl with a number as its argument, or none.
fn number(fd: BorrowedFd<'_>, request: c_ulong, argument: c_ulong) -> io::Result<c_int> {
    // SAFETY: the kernel takes the argument of these requests as a number and touches no memory of ours.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) })
}

/// An ioctl with a pointer to a struct that the kernel reads, fills, or both.
fn structure<T>(fd: BorrowedFd<'_>, request: c_ulong, argument: &mut T) -> io::Result<c_int> {
    // SAFETY: `argument` is exclusively ours, has the layout of the request's struct (repr(C), all fields plain
    // numbers), and lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) })
}

/// Zeroes as a `T`, for the structs above.
fn zeroed<T>() -> T {
    // SAFETY: only used with the structs of this file, which are plain numbers and arrays of them.
    unsafe { mem::zeroed() }
}

/// The number of a loop device that nothing is attached to; another process may take it before we do.
pub(crate) fn loop_free(control: BorrowedFd<'_>) -> io::Result<u32> {
    number(control, LOOP_CTL_GET_FREE, 0).map(c_int::unsigned_abs)
}

/// Attaches `file` to the loop device `device` in one step. EBUSY when another process attached one first.
pub(crate) fn loop_configure(
    device: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    block_size: u32,
    read_only: bool,
    direct: bool,
) -> io::Result<()> {
    let mut config: LoopConfig = zeroed();
    config.fd = file.as_raw_fd().unsigned_abs();
    config.block_size = block_size;
    config.info.flags =
        if read_only { LO_FLAGS_READ_ONLY } else { 0 } | if direct { LO_FLAGS_DIRECT_IO } else { 0 };
    structure(device, LOOP_CONFIGURE, &mut config).map(drop)
}

/// The state of a loop device; `None` when no file is attached.
pub(crate) fn loop_state(device: BorrowedFd<'_>) -> io::Result<Option<LoopState>> {
    let mut info: LoopInfo = zeroed();
    match structure(device, LOOP_GET_STATUS64, &mut info) {
        Ok(_) => Ok(Some(LoopState {
            device: info.device,
            inode: info.inode,
            read_only: info.flags & LO_FLAGS_READ_ONLY != 0,
            direct: info.flags & LO_FLAGS_DIRECT_IO != 0,
            leaving: info.flags & LO_FLAGS_AUTOCLEAR != 0,
        })),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reloads the size of the backing file.
pub(crate) fn loop_set_capacity(device: BorrowedFd<'_>) -> io::Result<()> {
    number(device, LOOP_SET_CAPACITY, 0).map(drop)
}

/// Detaches the file; while the device is open elsewhere, the kernel does it at the last close.
pub(crate) fn loop_clear(device: BorrowedFd<'_>) -> io::Result<()> {
    match number(device, LOOP_CLR_FD, 0) {
        Ok(_) => Ok(()),
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Keeps the device attached at its last close; only that flag can be cleared.
pub(crate) fn loop_keep(device: BorrowedFd<'_>) -> io::Result<()> {
    let mut info: LoopInfo = zeroed();
    structure(device, LOOP_GET_STATUS64, &mut info)?;
    info.flags &= !LO_FLAGS_AUTOCLEAR;
    structure(device, LOOP_SET_STATUS64, &mut info).map(drop)
}

/// Sets and clears MOUNT_ATTR_* flags of one mount, all at once.
pub(crate) fn mount_setattr(mount: BorrowedFd<'_>, set: u64, clear: u64) -> io::Result<()> {
    let attributes = libc::mount_attr { attr_set: set, attr_clr: clear, propagation: 0, userns_fd: 0 };
    // SAFETY: the path is a static C string, the struct lives through the call and its size is passed with it.
    let result = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            std::ptr::from_ref(&attributes),
            mem::size_of::<libc::mount_attr>(),
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Holds back all writes to the filesystem of `fd`, after everything dirty has reached its device.
pub(crate) fn freeze(fd: BorrowedFd<'_>) -> io::Result<()> {
    number(fd, FIFREEZE, 0).map(drop)
}

/// Lets writes on again.
pub(crate) fn thaw(fd: BorrowedFd<'_>) -> io::Result<()> {
    number(fd, FITHAW, 0).map(drop)
}

/// The project id of a file or folder; 0 when it has none.
pub(crate) fn project_of(file: BorrowedFd<'_>) -> io::Result<u32> {
    let mut attributes: FsXattr = zeroed();
    structure(file, FS_IOC_FSGETXATTR, &mut attributes)?;
    Ok(attributes.project)
}

/// Gives a folder a project id that everything made in it inherits.
pub(crate) fn set_project(folder: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    change_project(folder, project, FS_XFLAG_PROJINHERIT)
}

/// Gives a file a project id.
pub(crate) fn set_project_of_file(file: BorrowedFd<'_>, project: u32) -> io::Result<()> {
    change_project(file, project, 0)
}

fn change_project(of: BorrowedFd<'_>, project: u32, flags: u32) -> io::Result<()> {
    let mut attributes: FsXattr = zeroed();
    structure(of, FS_IOC_FSGETXATTR, &mut attributes)?;
    attributes.project = project;
    attributes.xflags |= flags;
    structure(of, FS_IOC_FSSETXATTR, &mut attributes).map(drop)
}

/// Whether a file is open elsewhere, in this process or another one: asked by a lease for writing (fcntl(2), F_SETLEASE),
/// which no other open file description allows, and which is given back at once.
pub(crate) fn is_open_elsewhere(file: BorrowedFd<'_>) -> io::Result<bool> {
    let set = |command: c_int, argument: c_int| {
        // SAFETY: the kernel takes the argument of these commands as a number and touches no memory of ours.
        check(unsafe { libc::fcntl(file.as_raw_fd(), command, argument) })
    };
    // An open that comes in between sends a signal; by default SIGURG has no effect.
    set(F_SETSIG, libc::SIGURG)?;
    match set(libc::F_SETLEASE, libc::F_WRLCK) {
        Ok(_) => {}
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return Ok(true),
        Err(error) => return Err(error),
    }
    set(libc::F_SETLEASE, libc::F_UNLCK).map(|_| false)
}

fn quotactl(fd: RawFd, command: c_int, id: u32, argument: *mut c_void) -> io::Result<()> {
    let command = command.wrapping_shl(8) | (PRJQUOTA & 0xff);
    // SAFETY: every caller passes a struct of the command's layout that is exclusively its own and lives on.
    let result = unsafe { libc::syscall(libc::SYS_quotactl_fd, fd, command, id, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether the filesystem of `fd` enforces project quota.
pub(crate) fn project_quota_enforced(fd: BorrowedFd<'_>) -> bool {
    let mut state: QuotaState = zeroed();
    state.version = FS_QSTATV_VERSION1;
    quotactl(fd.as_raw_fd(), Q_XGETQSTATV, 0, std::ptr::from_mut(&mut state).cast()).is_ok()
        && state.flags & FS_QUOTA_PDQ_ENFD != 0
}

/// Limits a project to `bytes`, rounded up to 512; 0 lifts the limit.
pub(crate) fn limit_project(fd: BorrowedFd<'_>, project: u32, bytes: u64) -> io::Result<()> {
    let mut quota: DiskQuota = zeroed();
    quota.version = FS_DQUOT_VERSION;
    quota.flags = FS_PROJ_QUOTA;
    quota.id = project;
    quota.fieldmask = FS_DQ_BHARD;
    quota.blk_hardlimit = bytes.div_ceil(512);
    quotactl(fd.as_raw_fd(), Q_XSETQLIM, project, std::ptr::from_mut(&mut quota).cast())
}

/// Bytes that a project uses; `None` when the filesystem has never heard of it.
pub(crate) fn project_usage(fd: BorrowedFd<'_>, project: u32) -> io::Result<Option<u64>> {
    let mut quota: DiskQuota = zeroed();
    quota.version = FS_DQUOT_VERSION;
    match quotactl(fd.as_raw_fd(), Q_XGETQUOTA, project, std::ptr::from_mut(&mut quota).cast()) {
        Ok(()) => Ok(Some(quota.bcount.saturating_mul(512))),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The first extents of a file from `start` on, in order, and where to go on, `None` at the end.
fn mapped(file: BorrowedFd<'_>, start: u64, flags: u32) -> io::Result<(Vec<FiemapExtent>, Option<u64>)> {
    let mut map: Fiemap = zeroed();
    map.start = start;
    map.length = u64::MAX - start;
    map.flags = flags;
    map.count = u32::try_from(EXTENTS).unwrap_or(0);
    structure(file, FS_IOC_FIEMAP, &mut map)?;
    let mapped = usize::try_from(map.mapped).unwrap_or(0).min(EXTENTS);
    let found = map.extents.get(..mapped).unwrap_or_default();
    let next = found.last().filter(|last| mapped == EXTENTS && last.flags & FIEMAP_EXTENT_LAST == 0);
    let next = next.map(|last| last.logical.saturating_add(last.length));
    Ok((found.to_vec(), next))
}

/// The same, those that were never written left out.
pub(crate) fn extents(file: BorrowedFd<'_>, start: u64) -> io::Result<(Vec<Extent>, Option<u64>)> {
    let (found, next) = mapped(file, start, FIEMAP_FLAG_SYNC)?;
    let written = found.iter().filter(|extent| extent.flags & FIEMAP_EXTENT_UNWRITTEN == 0);
    let extents = written.map(|extent| Extent {
        offset: extent.logical,
        length: extent.length,
        place: (extent.flags & !FIEMAP_EXTENT_PLAIN == 0).then_some(extent.physical),
    });
    Ok((extents.collect(), next))
}

/// An allocated range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allocated {
    /// Where it begins in the file.
    pub(crate) offset: u64,
    /// Bytes.
    pub(crate) length: u64,
    /// Whether it was written since it was allocated; otherwise it reads as zeroes.
    pub(crate) written: bool,
}

/// The first extents of a file from `start` on, in order, written or not; and where to go on, `None` at the end.
pub(crate) fn allocated(file: BorrowedFd<'_>, start: u64) -> io::Result<(Vec<Allocated>, Option<u64>)> {
    let (found, next) = mapped(file, start, FIEMAP_FLAG_SYNC)?;
    let allocated = found.into_iter().map(|extent| Allocated {
        offset: extent.logical,
        length: extent.length,
        written: extent.flags & FIEMAP_EXTENT_UNWRITTEN == 0,
    });
    Ok((allocated.collect(), next))
}

/// How many extents a file has. With room for none the kernel only counts (FS_IOC_FIEMAP, `fm_extent_count` 0).
pub(crate) fn extent_count(file: BorrowedFd<'_>) -> io::Result<u64> {
    let mut map: Fiemap = zeroed();
    map.length = u64::MAX;
    structure(file, FS_IOC_FIEMAP, &mut map)?;
    Ok(map.mapped.into())
}

/// Bytes of a file's extents that no other file shares. What is not on the disk yet is its own.
pub(crate) fn unshared(file: BorrowedFd<'_>) -> io::Result<u64> {
    let (mut sum, mut start) = (0, Some(0));
    while let Some(from) = start {
        let (found, next) = mapped(file, from, 0)?;
        let own = found.iter().filter(|extent| extent.flags & FIEMAP_EXTENT_SHARED == 0);
        sum = own.map(|extent| extent.length).fold(sum, u64::saturating_add);
        start = next;
    }
    Ok(sum)
}

/// Discards the free blocks of a mounted filesystem on its device.
pub(crate) fn trim(mount: BorrowedFd<'_>) -> io::Result<()> {
    let mut range = TrimRange { start: 0, length: u64::MAX, least: 0 };
    structure(mount, FITRIM, &mut range).map(drop)
}

/// Grows a mounted XFS to `blocks` of its block size.
pub(crate) fn grow_xfs(mount: BorrowedFd<'_>, blocks: u64) -> io::Result<()> {
    let mut grow = XfsGrow { blocks, max_inode_percent: 25 };
    structure(mount, XFS_IOC_FSGROWFSDATA, &mut grow).map(drop)
}

/// Grows a mounted ext4 to `blocks` of its block size.
pub(crate) fn grow_ext4(mount: BorrowedFd<'_>, mut blocks: u64) -> io::Result<()> {
    structure(mount, EXT4_IOC_RESIZE_FS, &mut blocks).map(drop)
}

/// A byte of a file in shared memory, which a test changes as a process with a mapping does.
#[cfg(test)]
pub(crate) struct MappedByte(std::ptr::NonNull<u8>);

#[cfg(test)]
impl MappedByte {
    /// The byte at `offset`, which is a multiple of the page size.
    pub(crate) fn of(file: &std::fs::File, offset: u64) -> Self {
        let (protection, flags) =
            (rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE, rustix::mm::MapFlags::SHARED);
        // SAFETY: a new mapping, whose address the kernel chooses; it stays until the process ends.
        let page = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, flags, file, offset) };
        Self(
            page.ok()
                .and_then(|page| std::ptr::NonNull::new(page.cast()))
                .unwrap_or(std::ptr::NonNull::dangling()),
        )
    }

    pub(crate) fn set(&self, value: u8) {
        assert!(self.0 != std::ptr::NonNull::dangling(), "the file cannot be mapped");
        // SAFETY: the first byte of a mapped page that nothing else of this process refers to.
        unsafe { self.0.as_ptr().write_volatile(value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes as in the kernel's headers; the ioctl numbers that carry a size carry these.
    #[test]
    fn structs_have_the_kernels_sizes() {
        assert_eq!(mem::size_of::<LoopInfo>(), 232);
        assert_eq!(mem::size_of::<LoopConfig>(), 304);
        assert_eq!(mem::size_of::<FsXattr>(), 28);
        assert_eq!(mem::size_of::<DiskQuota>(), 112);
        assert_eq!(mem::size_of::<QuotaState>(), 160);
        assert_eq!(mem::size_of::<XfsGrow>(), 16);
        assert_eq!(mem::size_of::<TrimRange>(), 24);
        assert_eq!(mem::size_of::<FiemapExtent>(), 56);
        assert_eq!(mem::size_of::<Fiemap>(), 32 + 56 * EXTENTS);
    }
}
