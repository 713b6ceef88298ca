//! Small images of VMDK, VHD, VHDX and VDI made by qemu, where their parts lie, and their checksums put right after
//! damage. qcow2 has a writer of its own (`qcow2`). Not here: what damage must lead to.

use std::ops::Range;
use std::sync::LazyLock;

use disk_image::Format;

use super::tools;

/// An image of `size` bytes made by qemu and written to here and there.
pub fn made(format: &str, options: &str, size: &str, writes: &[&str]) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let path = path.to_str().unwrap();
    tools::run("qemu-img", &["create", "-q", "-f", format, "-o", options, path, size]);
    let mut args = vec!["-f", format];
    for write in writes {
        args.extend(["-c", write]);
    }
    args.push(path);
    tools::run("qemu-io", &args);
    std::fs::read(path).unwrap()
}

pub const WRITES: &[&str] = &["write -P 1 0 70000", "write -P 2 3M 4096"];

pub fn sparse_vmdk() -> Vec<u8> {
    made("vmdk", "subformat=monolithicSparse,zeroed_grain=on", "4M", WRITES)
}

pub fn packed_vmdk() -> Vec<u8> {
    let writes = ["write -c -P 1 0 65536", "write -c -P 2 3M 65536"];
    made("vmdk", "subformat=streamOptimized", "4M", &writes)
}

pub fn dynamic_vhd() -> Vec<u8> {
    made("vpc", "subformat=dynamic,force_size=on", "7M", WRITES)
}

pub fn dynamic_vhdx() -> Vec<u8> {
    made("vhdx", "subformat=dynamic,block_size=1M", "4M", WRITES)
}

pub fn dynamic_vdi() -> Vec<u8> {
    made("vdi", "static=off", "4M", WRITES)
}

pub fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

pub fn le32(image: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(image[at..at + 4].try_into().unwrap())
}

pub fn le64(image: &[u8], at: usize) -> usize {
    u64::from_le_bytes(image[at..at + 8].try_into().unwrap()) as usize
}

/// Puts the checksum of a VHD footer or header right: one's complement of the sum.
pub fn sum_vhd(image: &mut [u8], range: Range<usize>, at: usize) {
    if let Some(bytes) = image.get_mut(range) {
        bytes[at..at + 4].fill(0);
        let sum = bytes.iter().fold(0_u32, |sum, &byte| sum.wrapping_add(u32::from(byte)));
        bytes[at..at + 4].copy_from_slice(&(!sum).to_be_bytes());
    }
}

/// Puts both checksums at the front of a dynamic VHD right.
pub fn repair_vhd(image: &mut [u8]) {
    sum_vhd(image, 0..512, 64);
    let header = image.get(16..24).map(|b| u64::from_be_bytes(b.try_into().unwrap()) as usize);
    if let Some(header) = header.filter(|at| (512..1 << 20).contains(at)) {
        sum_vhd(image, header..header + 1024, 36);
    }
}

/// Puts the CRC-32C at offset 4 of a range right.
pub fn sum_vhdx(image: &mut [u8], range: Range<usize>) {
    let Some(bytes) = image.get_mut(range) else {
        return;
    };
    bytes[4..8].fill(0);
    let step = |sum: u32, &byte: &u8| (sum >> 8) ^ CRC[usize::from(sum as u8 ^ byte)];
    let sum = bytes.iter().fold(u32::MAX, step);
    bytes[4..8].copy_from_slice(&(!sum).to_le_bytes());
}

/// Effect of a byte on a CRC-32C; computed bit by bit, independently of the decoder.
static CRC: LazyLock<[u32; 256]> = LazyLock::new(|| {
    let bit = |sum: u32, _| if sum & 1 == 1 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 };
    std::array::from_fn(|byte| (0..8).fold(byte as u32, bit))
});

pub const VHDX_HEADERS: [usize; 2] = [0x1_0000, 0x2_0000];
pub const VHDX_REGIONS: [usize; 2] = [0x3_0000, 0x4_0000];

pub fn repair_vhdx(image: &mut [u8]) {
    for at in VHDX_HEADERS {
        sum_vhdx(image, at..at + 4096);
    }
    for at in VHDX_REGIONS {
        sum_vhdx(image, at..at + 65536);
    }
}

/// A change in an entry of a VHDX log, and its place in the image.
#[derive(Clone, Debug)]
pub enum Change {
    /// A sector of 4096 bytes.
    Data(u64, Vec<u8>),
    /// So many zeroes.
    Zero(u64, u64),
}

/// An entry of a VHDX log (MS-VHDX 2.3.1).
#[derive(Clone, Debug, Default)]
pub struct LogEntry {
    pub id: [u8; 16],
    pub sequence: u64,
    pub tail: u32,
    pub flushed: u64,
    pub last: u64,
    pub changes: Vec<Change>,
}

impl LogEntry {
    /// Its sectors, the checksum right.
    pub fn bytes(&self) -> Vec<u8> {
        let data = self.changes.iter().filter(|change| matches!(change, Change::Data(..))).count();
        let first = (64 + 32 * self.changes.len()).div_ceil(4096);
        let mut bytes = vec![0; (first + data) * 4096];
        let len = bytes.len();
        put(&mut bytes, 0, b"loge");
        put(&mut bytes, 8, &(len as u32).to_le_bytes());
        put(&mut bytes, 12, &self.tail.to_le_bytes());
        put(&mut bytes, 16, &self.sequence.to_le_bytes());
        put(&mut bytes, 24, &(self.changes.len() as u32).to_le_bytes());
        put(&mut bytes, 32, &self.id);
        put(&mut bytes, 48, &self.flushed.to_le_bytes());
        put(&mut bytes, 56, &self.last.to_le_bytes());
        let mut sector = first * 4096;
        for (n, change) in self.changes.iter().enumerate() {
            let at = 64 + 32 * n;
            put(&mut bytes, at + 24, &self.sequence.to_le_bytes());
            let host = match change {
                Change::Zero(host, len) => {
                    put(&mut bytes, at, b"zero");
                    put(&mut bytes, at + 8, &len.to_le_bytes());
                    host
                }
                Change::Data(host, content) => {
                    put(&mut bytes, at, b"desc");
                    put(&mut bytes, at + 4, &content[4092..]);
                    put(&mut bytes, at + 8, &content[..8]);
                    put(&mut bytes, sector, b"data");
                    put(&mut bytes, sector + 4, &((self.sequence >> 32) as u32).to_le_bytes());
                    put(&mut bytes, sector + 8, &content[8..4092]);
                    put(&mut bytes, sector + 4092, &(self.sequence as u32).to_le_bytes());
                    sector += 4096;
                    host
                }
            };
            put(&mut bytes, at + 16, &host.to_le_bytes());
        }
        sum_vhdx(&mut bytes, 0..len);
        bytes
    }
}

/// Puts `bytes`, whole sectors, into the log of a VHDX from `at` on, around its end.
pub fn put_in_log(image: &mut [u8], at: usize, bytes: &[u8]) {
    let (log, len) = (le64(image, VHDX_HEADERS[0] + 72), le32(image, VHDX_HEADERS[0] + 68) as usize);
    for (n, sector) in bytes.chunks(4096).enumerate() {
        put(image, log + (at + n * 4096) % len, sector);
    }
}

/// Sets the log's identifier; zeroes mean that the log is empty.
pub fn set_log_id(image: &mut [u8], id: [u8; 16]) {
    for at in VHDX_HEADERS {
        put(image, at + 48, &id);
        sum_vhdx(image, at..at + 4096);
    }
}

/// Host offsets of the VHDX metadata region, its item of `id`'s entry and data, and the BAT.
pub struct VhdxPlaces {
    pub metadata: usize,
    pub bat: usize,
}

impl VhdxPlaces {
    pub fn of(image: &[u8]) -> Self {
        let region = |first: u8| {
            let entries = (0..2).map(|i| VHDX_REGIONS[0] + 16 + 32 * i);
            le64(image, entries.into_iter().find(|&at| image[at] == first).unwrap() + 16)
        };
        Self { metadata: region(0x06), bat: region(0x66) }
    }

    /// Offset of the metadata table's entry with a GUID that starts with `first`.
    pub fn entry(&self, image: &[u8], first: u8) -> usize {
        (0..5).map(|i| self.metadata + 32 + 32 * i).find(|&at| image[at] == first).unwrap()
    }

    /// Offset of the item itself.
    pub fn item(&self, image: &[u8], first: u8) -> usize {
        self.metadata + le32(image, self.entry(image, first) + 16) as usize
    }
}

/// Good images of a format, with the places worth damaging.
pub fn bases(format: Format) -> Vec<(Vec<u8>, Vec<Range<usize>>)> {
    match format {
        Format::Vmdk => [sparse_vmdk(), packed_vmdk()]
            .into_iter()
            .map(|image| {
                let gd = le64(&image, 56) * 512;
                let gt = le32(&image, gd) as usize * 512;
                let grain = le32(&image, gt) as usize * 512;
                let places =
                    vec![0..80, 12..80, 512..900, gd..gd + 4, gt..gt + 200, gt..gt + 260, grain..grain + 80];
                (image, places)
            })
            .collect(),
        Format::Vhd => vec![(dynamic_vhd(), vec![0..88, 16..64, 512..560, 528..548, 1536..1568, 1536..1556])],
        Format::Vhdx => {
            let image = dynamic_vhdx();
            let VhdxPlaces { metadata, bat } = VhdxPlaces::of(&image);
            let items = metadata + 0x1_0000;
            let places = vec![
                0..16,
                VHDX_HEADERS[0]..VHDX_HEADERS[0] + 80,
                VHDX_HEADERS[1]..VHDX_HEADERS[1] + 80,
                VHDX_REGIONS[0]..VHDX_REGIONS[0] + 80,
                VHDX_REGIONS[1]..VHDX_REGIONS[1] + 80,
                metadata..metadata + 192,
                items..items + 40,
                bat..bat + 40,
                bat..bat + 32,
            ];
            vec![(image, places)]
        }
        Format::Vdi => vec![(dynamic_vdi(), vec![64..84, 340..392, 368..388, 424..456, 512..532, 512..528])],
        Format::Raw | Format::Qcow2 => unreachable!("not tested here"),
    }
}

/// Puts the checksums right in most mutants, so that the damage is seen.
pub fn repair(format: Format, image: &mut [u8], seed: u64) {
    if seed.is_multiple_of(8) {
        return;
    }
    match format {
        Format::Vhd => repair_vhd(image),
        Format::Vhdx => {
            for at in VHDX_HEADERS {
                sum_vhdx(image, at..at + 4096);
            }
            // The slow ones now and then only; damage elsewhere leaves them right.
            if seed % 8 == 1 {
                repair_vhdx(image);
            }
        }
        Format::Vmdk | Format::Vdi | Format::Raw | Format::Qcow2 => {}
    }
}
