//! The images, made once and kept: a disk with an ext4 full of Debian packages' files, in every form the rows name, a disk of
//! half-random data, and two images that are all tables.
//!
//! Nothing here is timed. An image is made under a temporary name and renamed, so one that exists is complete.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, ensure};

/// Changed when the content of the images changes, so that a cache of an older form is not used.
const EDITION: &str = "1";
/// The size of the disk that all images hold.
const DISK_MIB: u64 = 1536;
/// Files are taken until they fill this much of it.
const FILES_MIB: u64 = 1200;
/// The size of the disk of half-random data, and of each piece of it that begins with so much data: 1.1 GiB in all.
const RANDOM_DISK_MIB: u64 = 2048;
const RANDOM_PIECE_MIB: u64 = 64;
const RANDOM_DATA_MIB: u64 = 35;
const MIB: u64 = 1 << 20;

/// An image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// The disk itself, with holes.
    RawSparse,
    /// The disk's data and nothing else: no hole, hardly a zero.
    RawFull,
    /// qcow2, deflate clusters.
    QcowZlib,
    /// qcow2, zstd clusters.
    QcowZstd,
    /// qcow2, not compressed.
    QcowPlain,
    /// qcow2 of the same data on a disk of 4 GiB.
    QcowZlib4G,
    /// qcow2 of the same data on a disk of 64 GiB.
    QcowZlib64G,
    /// One gzip member.
    RawGz,
    /// xz with the default level, blocks of 24 MiB.
    RawXz,
    /// xz -0.
    RawXz0,
    /// xz -9, dictionary of 64 MiB.
    RawXz9,
    /// One zstd frame, level 3.
    RawZst,
    /// One zstd frame with a window of 128 MiB.
    RawZstLong,
    /// A disk of half-random data: of each block of 4 KiB one half is random, the other one text.
    RawRandom,
    /// The same as qcow2, deflate clusters.
    QcowRandom,
    /// qcow2 of 1 TiB with every cluster allocated, in scattered order, in a hole of the file.
    QcowFullTables,
    /// VDI of 64 TiB: a block map of 256 MiB, one block in 2^20 allocated.
    VdiHugeMap,
}

impl Image {
    /// Its file's name.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::RawSparse => "disk.raw",
            Self::RawFull => "full.raw",
            Self::QcowZlib => "zlib.qcow2",
            Self::QcowZstd => "zstd.qcow2",
            Self::QcowPlain => "plain.qcow2",
            Self::QcowZlib4G => "4g.qcow2",
            Self::QcowZlib64G => "64g.qcow2",
            Self::RawGz => "disk.raw.gz",
            Self::RawXz => "disk.raw.xz",
            Self::RawXz0 => "disk-0.raw.xz",
            Self::RawXz9 => "disk-9.raw.xz",
            Self::RawZst => "disk.raw.zst",
            Self::RawZstLong => "disk-long.raw.zst",
            Self::RawRandom => "random.raw",
            Self::QcowRandom => "random.qcow2",
            Self::QcowFullTables => "full-tables.qcow2",
            Self::VdiHugeMap => "huge-map.vdi",
        }
    }

    /// The format's name as qemu-img knows it.
    pub fn qemu_format(self) -> &'static str {
        match self {
            Self::QcowZlib
            | Self::QcowZstd
            | Self::QcowPlain
            | Self::QcowZlib4G
            | Self::QcowZlib64G
            | Self::QcowRandom
            | Self::QcowFullTables => "qcow2",
            Self::VdiHugeMap => "vdi",
            Self::RawSparse
            | Self::RawFull
            | Self::RawRandom
            | Self::RawGz
            | Self::RawXz
            | Self::RawXz0
            | Self::RawXz9
            | Self::RawZst
            | Self::RawZstLong => "raw",
        }
    }
}

/// The folder the images are in.
#[derive(Debug)]
pub struct Images {
    folder: PathBuf,
}

impl Images {
    /// Opens the cache below `cache`, making it if it is not there.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn open(cache: &Path) -> Result<Self> {
        let folder = cache.join(format!("images-{EDITION}"));
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// Where they are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where an image is, or will be.
    pub fn path(&self, image: Image) -> PathBuf {
        self.folder.join(image.file_name())
    }

    /// Bytes of data in the disk: what a sparse copy must write.
    ///
    /// # Errors
    /// The image is not there.
    pub fn data_bytes(&self, image: Image) -> Result<u64> {
        Ok(fs::metadata(self.path(image))?.blocks() * 512)
    }

    /// Makes an image, if it is not there.
    ///
    /// # Errors
    /// A tool is missing or fails, or this machine has too few packages installed to fill the disk.
    pub fn make(&self, image: Image) -> Result<()> {
        let path = self.path(image);
        if path.exists() {
            return Ok(());
        }
        let is_random = matches!(image, Image::RawRandom | Image::QcowRandom);
        let disk = if is_random { Image::RawRandom } else { Image::RawSparse };
        if image != disk {
            self.make(disk)?;
        }
        let disk = self.path(disk);
        let new = self.folder.join(format!("new-{}", image.file_name()));
        // A half-made one is of no use.
        if new.exists() {
            fs::remove_file(&new)?;
        }
        match image {
            Image::RawSparse => disk_of_packages(&self.folder, &new)?,
            Image::RawFull => data_of(&disk, &new)?,
            Image::RawRandom => half_random(&new)?,
            Image::QcowZlib | Image::QcowRandom => {
                shell("qemu-img convert -f raw -O qcow2 -c -W -m 8 \"$1\" \"$2\"", &disk, &new)?
            }
            Image::QcowZstd => {
                shell(
                    "qemu-img convert -f raw -O qcow2 -c -o compression_type=zstd \"$1\" \"$2\"",
                    &disk,
                    &new,
                )?;
            }
            Image::QcowPlain => shell("qemu-img convert -f raw -O qcow2 \"$1\" \"$2\"", &disk, &new)?,
            Image::QcowZlib4G => self.on_larger_disk("4G", &new)?,
            Image::QcowZlib64G => self.on_larger_disk("64G", &new)?,
            Image::RawGz => shell("gzip -c \"$1\" > \"$2\"", &disk, &new)?,
            Image::RawXz => shell("xz -T0 -c \"$1\" > \"$2\"", &disk, &new)?,
            Image::RawXz0 => shell("xz -T0 -0 -c \"$1\" > \"$2\"", &disk, &new)?,
            Image::RawXz9 => shell("xz -T0 -9 -c \"$1\" > \"$2\"", &disk, &new)?,
            Image::RawZst => shell("zstd -q -3 -c \"$1\" > \"$2\"", &disk, &new)?,
            Image::RawZstLong => shell("zstd -q -3 --long=27 -c \"$1\" > \"$2\"", &disk, &new)?,
            Image::QcowFullTables => qcow2_full_tables(&new)?,
            Image::VdiHugeMap => vdi_huge_map(&new)?,
        }
        File::open(&new)?.sync_all()?;
        fs::rename(&new, &path)?;
        Ok(())
    }

    /// The disk with zeroes after it, converted as the other compressed images are.
    fn on_larger_disk(&self, size: &str, new: &Path) -> Result<()> {
        let larger = self.folder.join("larger.raw");
        shell(
            &format!("cp --sparse=always \"$1\" \"$2\" && truncate -s {size} \"$2\""),
            &self.path(Image::RawSparse),
            &larger,
        )?;
        let made = shell("qemu-img convert -f raw -O qcow2 -c -W -m 8 \"$1\" \"$2\"", &larger, new);
        fs::remove_file(&larger)?;
        made
    }
}

/// Runs a shell line with two files as its arguments.
fn shell(line: &str, from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("bash")
        .args(["-euo", "pipefail", "-c", line, "bash"])
        .args([from, to])
        .status()
        .context("start bash")?;
    ensure!(status.success(), "{line}: {status}; `make deps` installs what is missing");
    Ok(())
}

/// An ext4 with the files Debian's packages put below /usr on this machine, in the order of their names, up to the size.
fn disk_of_packages(folder: &Path, new: &Path) -> Result<()> {
    let tree = tempfile::Builder::new().prefix("files-").tempdir_in(folder)?;
    let mut left = FILES_MIB * MIB;
    copy_files(Path::new("/usr"), tree.path(), &mut left)?;
    ensure!(
        left < 16 * MIB,
        "/usr holds too few files to fill a disk of {DISK_MIB} MiB: {} MiB are missing",
        left / MIB
    );
    let file = File::create(new)?;
    file.set_len(DISK_MIB * MIB)?;
    shell("mke2fs -q -F -t ext4 -i 8192 -m 0 -d \"$1\" \"$2\"", tree.path(), new)
}

/// Copies regular files below `from`, in the order of their names, until `left` bytes (in 4 KiB blocks) are used up.
fn copy_files(from: &Path, to: &Path, left: &mut u64) -> Result<()> {
    let mut entries = fs::read_dir(from)?.collect::<Result<Vec<_>, _>>()?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        let kind = entry.file_type()?;
        // Files that are not from packages, and entries that are not files, are left out.
        if kind.is_dir() && path != Path::new("/usr/local") && path != Path::new("/usr/src") {
            fs::create_dir(&copy)?;
            copy_files(&path, &copy, left)?;
        } else if kind.is_file() {
            let size = entry.metadata()?.len().next_multiple_of(4096);
            if size < *left {
                fs::copy(&path, &copy).with_context(|| format!("copy {}", path.display()))?;
                *left -= size;
            }
        }
    }
    Ok(())
}

/// The 64 KiB pieces of `disk` that are not all zero, one after the other.
fn data_of(disk: &Path, new: &Path) -> Result<()> {
    let mut from = File::open(disk)?;
    let mut to = std::io::BufWriter::with_capacity(1 << 20, File::create(new)?);
    let mut piece = vec![0_u8; 1 << 16];
    loop {
        match from.read(&mut piece)? {
            0 => break,
            length => {
                let read = piece.get(..length).context("read no more than asked")?;
                if read.iter().any(|byte| *byte != 0) {
                    to.write_all(read)?;
                }
            }
        }
    }
    to.flush()?;
    let file = to.into_inner()?;
    // Direct I/O of the peers wants whole sectors; a MiB is what volumes are made of.
    let length = file.metadata()?.len() / MIB * MIB;
    file.set_len(length)?;
    Ok(())
}

/// A disk with pieces of data between holes. It is the same each time: the numbers are those of splitmix64.
fn half_random(new: &Path) -> Result<()> {
    const TEXT: &[u8] = b"half of this block is text that packs well; ";
    let file = File::create(new)?;
    file.set_len(RANDOM_DISK_MIB * MIB)?;
    let mut state = 0_u64;
    let mut number = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    };
    let text: Vec<u8> = TEXT.iter().copied().cycle().take(2048).collect();
    for piece in 0..RANDOM_DISK_MIB / RANDOM_PIECE_MIB {
        for at in 0..RANDOM_DATA_MIB {
            let mut data = Vec::with_capacity(1 << 20);
            while data.len() < 1 << 20 {
                (0..256).for_each(|_| data.extend(number().to_le_bytes()));
                data.extend(&text);
            }
            file.write_all_at(&data, (piece * RANDOM_PIECE_MIB + at) * MIB)?;
        }
    }
    Ok(())
}

/// qcow2 version 3 (QEMU's docs/interop/qcow2.txt): header, L1, 2048 full L2 tables, refcounts left out of the count
/// of what matters here (a reader of disks does not need them), then a hole where all clusters are.
fn qcow2_full_tables(new: &Path) -> Result<()> {
    const CLUSTER: u64 = 1 << 16;
    const TABLES: u64 = 2048;
    const ENTRIES: u64 = CLUSTER / 8;
    let first_table = 2 * CLUSTER;
    let refcount_table = first_table + TABLES * CLUSTER;
    let first_data = (refcount_table + CLUSTER).next_multiple_of(1 << 30);
    let clusters = TABLES * ENTRIES;
    let file = OpenOptions::new().write(true).create_new(true).open(new)?;
    file.set_len(first_data + clusters * CLUSTER)?;

    let mut header = Vec::new();
    header.extend(b"QFI\xfb");
    header.extend(3_u32.to_be_bytes());
    header.extend([0; 12]); // no backing file
    header.extend(16_u32.to_be_bytes()); // cluster bits
    header.extend((clusters * CLUSTER).to_be_bytes());
    header.extend([0; 4]); // not encrypted
    header.extend(u32::try_from(TABLES)?.to_be_bytes());
    header.extend(CLUSTER.to_be_bytes()); // L1
    header.extend(refcount_table.to_be_bytes());
    header.extend(1_u32.to_be_bytes());
    header.extend([0; 12]); // no snapshots
    header.extend([0; 24]); // feature bits
    header.extend(4_u32.to_be_bytes()); // refcount order
    header.extend(104_u32.to_be_bytes());
    header.extend([0; 8]); // end of extensions
    file.write_all_at(&header, 0)?;

    const COPIED: u64 = 1 << 63;
    let l1: Vec<u8> =
        (0..TABLES).flat_map(|table| (COPIED | (first_table + table * CLUSTER)).to_be_bytes()).collect();
    file.write_all_at(&l1, CLUSTER)?;
    for table in 0..TABLES {
        // An odd factor permutes the clusters: neighbours of the guest lie far apart on the host.
        let place = |entry: u64| (table * ENTRIES + entry).wrapping_mul(0x9E37_79B1) % clusters;
        let l2: Vec<u8> = (0..ENTRIES)
            .flat_map(|entry| (COPIED | (first_data + place(entry) * CLUSTER)).to_be_bytes())
            .collect();
        file.write_all_at(&l2, first_table + table * CLUSTER)?;
    }
    Ok(())
}

/// VDI version 1.1 as VirtualBox's VDICore.h lays it out, blocks of 1 MiB.
fn vdi_huge_map(new: &Path) -> Result<()> {
    const BLOCKS: u32 = 1 << 26;
    const EVERY: u32 = 1 << 20;
    let map_at: u32 = 512;
    let data_at = u32::try_from(MIB)? + BLOCKS * 4;
    let allocated = BLOCKS / EVERY;
    let file = OpenOptions::new().write(true).create_new(true).open(new)?;
    file.set_len(u64::from(data_at) + u64::from(allocated) * MIB)?;

    let mut header = vec![0_u8; 512];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(place) = header.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    };
    put(0, b"<<< Oracle VM VirtualBox Disk Image >>>\n");
    put(0x40, &0xBEDA_107F_u32.to_le_bytes());
    put(0x44, &0x0001_0001_u32.to_le_bytes());
    put(0x48, &400_u32.to_le_bytes()); // size of the header
    put(0x4C, &1_u32.to_le_bytes()); // dynamic
    put(0x154, &map_at.to_le_bytes());
    put(0x158, &data_at.to_le_bytes());
    put(0x168, &512_u32.to_le_bytes()); // sector
    put(0x170, &(u64::from(BLOCKS) * MIB).to_le_bytes());
    put(0x178, &u32::try_from(MIB)?.to_le_bytes());
    put(0x180, &BLOCKS.to_le_bytes());
    put(0x184, &allocated.to_le_bytes());
    put(0x188, &[7; 16]); // the image's id, which must not be zero
    file.write_all_at(&header, 0)?;

    for group in 0..allocated {
        let mut map = vec![0xFF_u8; usize::try_from(EVERY)? * 4];
        if let Some(first) = map.first_chunk_mut::<4>() {
            *first = group.to_le_bytes();
        }
        file.write_all_at(&map, u64::from(map_at) + u64::from(group) * u64::from(EVERY) * 4)?;
        file.write_all_at(&[group.to_le_bytes()[0] | 1; 4096], u64::from(data_at) + u64::from(group) * MIB)?;
    }
    Ok(())
}
