//! The rows of the table, as data: image, source, peer, and the bar to meet. Not here: running them (`run`).

use crate::images::Image;

/// How the importer gets the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// From a file in the page cache.
    File,
    /// From nginx on loopback, on the same cores.
    Http,
    /// From the same, each connection no faster than [`PACE`], so that all that are allowed are worth it.
    PacedHttp,
}

/// Rate of a connection of [`Via::PacedHttp`], in bytes a second, as nginx writes it.
pub const PACE: &str = "24m";
/// Connections that an import opens at most by default; from [`Via::PacedHttp`] it must.
pub const CONNECTIONS: usize = 8;

/// The importer's peer. Every peer ends with its output synced.
#[derive(Clone, Copy, Debug)]
pub enum Peer {
    /// `qemu-img convert` on the local file: the fastest of {-m 8, -m 16} × {-W, none} × {-t none, -t none -T none,
    /// -t writeback}.
    Convert,
    /// Download to a file, sync it, `qemu-img convert`, sync.
    DownloadThenConvert,
    /// A shell command; `{image}`, `{temporary}` and `{output}` are files.
    Shell(&'static str, &'static str),
    /// libdeflate alone, on the image's packed clusters: the CPU seconds that are left to an importer with this library.
    Inflate,
    /// Writing as many bytes as the image has data, past the page cache.
    DirectWrite,
    /// The importer itself on another image.
    Ours(Image),
}

/// One comparison of a row.
#[derive(Clone, Copy, Debug)]
pub struct Against {
    /// The peer.
    pub peer: Peer,
    /// How many times faster the importer must be, at least: the peer's wall seconds over ours.
    pub faster: f64,
    /// Whether the importer's CPU seconds may not exceed the peer's.
    pub cpu: bool,
}

/// The importer's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A file in the benchmark's folder.
    Folder,
    /// A file on an XFS of its own, for disks larger than other filesystems' files. Needs root.
    Xfs,
}

/// A row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its name, to be chosen by `--rows`.
    pub name: &'static str,
    /// The image.
    pub image: Image,
    /// From where.
    pub via: Via,
    /// To where.
    pub place: Place,
    /// The raw image the output must equal; none where only the cost is of interest, because the tests check such images.
    pub truth: Option<Image>,
    /// The compressor's declared window in KiB, which comes on top of 64 MiB for each decoder.
    pub window_kib: u32,
    /// Decoders that may run in parallel; each has a window.
    pub decoders: Decoders,
    /// Measured once, for its peak memory; the importer is stopped after two minutes if it is still at work.
    pub memory_only: bool,
    /// The peers.
    pub against: &'static [Against],
}

/// How many windows there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoders {
    /// One stream, one decoder.
    One,
    /// One per core.
    PerCore,
}

/// Memory any import may use in addition to windows, in MiB.
pub const MEMORY_MIB: u32 = 64;

const BASE: Row = Row {
    name: "",
    image: Image::QcowZlib,
    via: Via::File,
    place: Place::Folder,
    truth: Some(Image::RawSparse),
    window_kib: 0,
    decoders: Decoders::One,
    memory_only: false,
    against: &[],
};

/// A row that is about peak memory alone.
const MEMORY: Row = Row { memory_only: true, ..BASE };

const fn at_least(faster: f64, peer: Peer) -> Against {
    Against { peer, faster, cpu: false }
}

/// Data that packs badly, of which deflate takes longer; CPU seconds are shown next to those of the library alone.
const HALF_RANDOM: Row = Row {
    image: Image::QcowRandom,
    truth: Some(Image::RawRandom),
    against: &[at_least(2.5, Peer::Convert), at_least(0.0, Peer::Inflate)],
    ..BASE
};

/// As fast as the best conversion, and as fast as the disk.
const WRITE_BOUND: &[Against] = &[at_least(1.0, Peer::Convert), at_least(0.85, Peer::DirectWrite)];

const GZIP: Peer = Peer::Shell(
    "gzip -d, convert",
    "gzip -dc {image} > {temporary} && sync {temporary} && qemu-img convert -f raw -O raw {temporary} {output} && sync {output}",
);
const XZ_ONE: Peer = Peer::Shell(
    "xz -T1, convert",
    "xz -T1 -dc {image} > {temporary} && sync {temporary} && qemu-img convert -f raw -O raw {temporary} {output} && sync {output}",
);
const XZ_ALL: Peer = Peer::Shell("xz -T0", "xz -T0 -dc {image} > {output} && sync {output}");
const ZSTD_CONVERT: Peer = Peer::Shell(
    "zstd -d, convert",
    "zstd -q -d {image} -o {temporary} && sync {temporary} && qemu-img convert -f raw -O raw {temporary} {output} && sync {output}",
);
const ZSTD: Peer = Peer::Shell("zstd -d", "zstd -q -d {image} -o {output} && sync {output}");

/// Every row, in the order of the table.
pub const ROWS: &[Row] = &[
    Row {
        name: "zlib qcow2 file",
        against: &[Against { peer: Peer::Convert, faster: 3.0, cpu: true }],
        ..BASE
    },
    Row {
        name: "zlib qcow2 http",
        via: Via::Http,
        against: &[
            Against { peer: Peer::Convert, faster: 3.0, cpu: true },
            at_least(4.0, Peer::DownloadThenConvert),
        ],
        ..BASE
    },
    Row { name: "zlib half-random file", ..HALF_RANDOM },
    Row { name: "zlib half-random http", via: Via::Http, ..HALF_RANDOM },
    Row { name: "zstd qcow2 file", image: Image::QcowZstd, against: &[at_least(2.0, Peer::Convert)], ..BASE },
    Row {
        name: "zstd qcow2 http",
        image: Image::QcowZstd,
        via: Via::Http,
        against: &[at_least(2.0, Peer::Convert)],
        ..BASE
    },
    Row { name: "plain qcow2 file", image: Image::QcowPlain, against: WRITE_BOUND, ..BASE },
    Row { name: "raw sparse file", image: Image::RawSparse, against: WRITE_BOUND, ..BASE },
    Row {
        name: "raw full file",
        image: Image::RawFull,
        truth: Some(Image::RawFull),
        against: WRITE_BOUND,
        ..BASE
    },
    Row { name: "raw.gz file", image: Image::RawGz, against: &[at_least(2.0, GZIP)], ..BASE },
    Row {
        name: "raw.xz file",
        image: Image::RawXz,
        window_kib: 8 << 10,
        decoders: Decoders::PerCore,
        against: &[at_least(2.0, XZ_ONE), at_least(0.95, XZ_ALL)],
        ..BASE
    },
    Row {
        name: "raw.zst file",
        image: Image::RawZst,
        window_kib: 2 << 10,
        against: &[at_least(1.15, ZSTD_CONVERT), at_least(0.95, ZSTD)],
        ..BASE
    },
    Row {
        name: "growth to 64 GiB virtual",
        image: Image::QcowZlib64G,
        truth: None,
        against: &[at_least(1.0 / 1.1, Peer::Ours(Image::QcowZlib4G))],
        ..BASE
    },
    Row { name: "memory: raw.gz http", image: Image::RawGz, via: Via::Http, ..MEMORY },
    Row {
        name: "memory: xz -0 http",
        image: Image::RawXz0,
        via: Via::Http,
        window_kib: 256,
        decoders: Decoders::PerCore,
        ..MEMORY
    },
    Row {
        name: "memory: xz -6 http",
        image: Image::RawXz,
        via: Via::Http,
        window_kib: 8 << 10,
        decoders: Decoders::PerCore,
        ..MEMORY
    },
    Row {
        name: "memory: xz -9 http",
        image: Image::RawXz9,
        via: Via::Http,
        window_kib: 64 << 10,
        decoders: Decoders::PerCore,
        ..MEMORY
    },
    Row { name: "memory: zstd -3 http", image: Image::RawZst, via: Via::Http, window_kib: 2 << 10, ..MEMORY },
    Row {
        name: "memory: zstd --long=27 http",
        image: Image::RawZstLong,
        via: Via::Http,
        window_kib: 128 << 10,
        ..MEMORY
    },
    Row { name: "memory: raw http", image: Image::RawSparse, via: Via::Http, ..MEMORY },
    Row { name: "memory: raw, 8 connections", image: Image::RawSparse, via: Via::PacedHttp, ..MEMORY },
    Row { name: "memory: qcow2, 8 connections", image: Image::QcowZlib, via: Via::PacedHttp, ..MEMORY },
    Row { name: "memory: full 1 TiB qcow2's tables", image: Image::QcowFullTables, truth: None, ..MEMORY },
    Row {
        name: "memory: 64 TiB VDI's map",
        image: Image::VdiHugeMap,
        truth: None,
        place: Place::Xfs,
        ..MEMORY
    },
];
