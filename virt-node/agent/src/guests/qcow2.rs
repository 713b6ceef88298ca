//! The head of a qcow2 image, as far as a containerDisk's is judged by it before QEMU opens it: pure. An image that names
//! other files (a backing file, a data file) is refused: they would be files of the node or of the launcher pod.

use api::launch::DiskFormat;

/// Bytes of the head that are needed; a shorter file is not a qcow2 image.
pub(crate) const HEAD: usize = 104;
/// The magic of a qcow2 image.
const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Incompatible feature: the data is in another file.
const EXTERNAL_DATA: u64 = 1 << 2;

/// The format of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) format: DiskFormat,
    /// Bytes that the guest sees.
    pub(crate) size: u64,
}

/// Judges an image by the first [`HEAD`] bytes of its file (fewer when the file is shorter) and the file's length.
///
/// # Errors
/// Why it is not taken.
pub(crate) fn judge(head: &[u8], length: u64) -> Result<Image, &'static str> {
    if !head.starts_with(&MAGIC) {
        return Ok(Image { format: DiskFormat::Raw, size: length });
    }
    let field = |at: usize| head.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
    let version = head.get(4..8).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes);
    let features = match version {
        Some(2) => 0,
        Some(3) => field(72).ok_or("its header is cut off")?,
        Some(_) | None => return Err("its qcow2 version is neither 2 nor 3"),
    };
    if field(8) != Some(0) {
        return Err("it has a backing file");
    }
    if features & EXTERNAL_DATA != 0 {
        return Err("its data is in another file");
    }
    let size = field(24).ok_or("its header is cut off")?;
    Ok(Image { format: DiskFormat::Qcow2, size })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(version: u32, backing: u64, size: u64, features: u64) -> Vec<u8> {
        let mut head = vec![0; HEAD];
        head[..4].copy_from_slice(&MAGIC);
        head[4..8].copy_from_slice(&version.to_be_bytes());
        head[8..16].copy_from_slice(&backing.to_be_bytes());
        head[24..32].copy_from_slice(&size.to_be_bytes());
        head[72..80].copy_from_slice(&features.to_be_bytes());
        head
    }

    #[test]
    fn images_that_name_other_files_are_refused() {
        let qcow2 = Image { format: DiskFormat::Qcow2, size: 1 << 30 };
        assert_eq!(judge(&head(3, 0, 1 << 30, 0), 4096), Ok(qcow2));
        assert_eq!(judge(&head(2, 0, 1 << 30, EXTERNAL_DATA), 4096), Ok(qcow2));
        assert_eq!(judge(b"anything", 512), Ok(Image { format: DiskFormat::Raw, size: 512 }));
        assert_eq!(judge(&[], 0), Ok(Image { format: DiskFormat::Raw, size: 0 }));
        for bad in [head(3, 4096, 1 << 30, 0), head(3, 0, 1 << 30, EXTERNAL_DATA), head(9, 0, 0, 0)] {
            assert!(judge(&bad, 4096).is_err());
        }
        assert!(judge(&head(3, 0, 1, 0)[..40], 40).is_err());
        assert!(judge(&MAGIC, 4).is_err());
    }
}
