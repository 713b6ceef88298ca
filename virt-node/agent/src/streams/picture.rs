//! A guest's screen as a PNG. Older libvirt gives a PPM, which is converted. Pure.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

/// The first bytes of every PNG.
const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
/// Most pixels in a row, and most rows.
const SIDE_MAX: usize = 16384;

/// The picture as a PNG; `None`: it is neither a PNG nor a PPM with 8 bits for each colour.
pub(super) fn png(picture: Vec<u8>) -> Option<Vec<u8>> {
    if picture.starts_with(PNG) { Some(picture) } else { write(&read(&picture)?) }
}

/// Rows of pixels, each of three bytes.
struct Pixels<'a> {
    width: usize,
    height: usize,
    bytes: &'a [u8],
}

/// Reads `P6`, width, height and 255, with white space or comments between them, and one white space behind.
fn read(ppm: &[u8]) -> Option<Pixels<'_>> {
    let mut rest = ppm.strip_prefix(b"P6")?;
    let mut numbers = [0_usize; 3];
    for number in &mut numbers {
        rest = skipped(rest)?;
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        *number = std::str::from_utf8(rest.get(..digits)?).ok()?.parse().ok()?;
        rest = rest.get(digits..)?;
    }
    let [width, height, most] = numbers;
    let side = 1..=SIDE_MAX;
    let bytes = rest.get(1..)?;
    let whole = width.checked_mul(height)?.checked_mul(3)?;
    (side.contains(&width) && side.contains(&height) && most == 255 && bytes.len() >= whole).then(|| Pixels {
        width,
        height,
        bytes: &bytes[..whole],
    })
}

/// The rest behind white space and comments, of which there is some.
fn skipped(mut rest: &[u8]) -> Option<&[u8]> {
    let begin = rest.len();
    loop {
        match rest.first()? {
            b'#' => {
                let line = rest.iter().take_while(|byte| **byte != b'\n').count();
                rest = rest.get(line..)?;
            }
            byte if byte.is_ascii_whitespace() => rest = &rest[1..],
            _ => return (rest.len() < begin).then_some(rest),
        }
    }
}

fn write(pixels: &Pixels<'_>) -> Option<Vec<u8>> {
    let mut data = ZlibEncoder::new(Vec::new(), Compression::fast());
    for row in pixels.bytes.chunks_exact(pixels.width * 3) {
        // Each row has a filter: none.
        data.write_all(&[0]).ok()?;
        data.write_all(row).ok()?;
    }
    let mut header = Vec::new();
    for side in [pixels.width, pixels.height] {
        header.extend(u32::try_from(side).ok()?.to_be_bytes());
    }
    // 8 bits, red, green and blue; the only methods that there are; not interlaced.
    header.extend([8, 2, 0, 0, 0]);
    let mut png = PNG.to_vec();
    for (name, content) in [(b"IHDR", header), (b"IDAT", data.finish().ok()?), (b"IEND", Vec::new())] {
        png.extend(u32::try_from(content.len()).ok()?.to_be_bytes());
        let mut crc = crc32fast::Hasher::new();
        for part in [&name[..], &content] {
            crc.update(part);
            png.extend(part);
        }
        png.extend(crc.finalize().to_be_bytes());
    }
    Some(png)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn pixels_of_a_ppm_are_those_of_the_png() {
        let pixels = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        let ppm = [b"P6\n# by hand\n2 2\n255\n".as_slice(), &pixels].concat();
        let made = png(ppm).unwrap();
        assert_eq!(png(made.clone()).unwrap(), made, "a PNG stays as it is");
        assert_eq!(&made[8..16], b"\0\0\0\x0dIHDR");
        assert_eq!(&made[16..29], [0, 0, 0, 2, 0, 0, 0, 2, 8, 2, 0, 0, 0]);
        let length = u32::from_be_bytes(made[33..37].try_into().unwrap()) as usize;
        assert_eq!(&made[37..41], b"IDAT");
        let mut rows = Vec::new();
        flate2::read::ZlibDecoder::new(&made[41..41 + length]).read_to_end(&mut rows).unwrap();
        assert_eq!(rows, [0, 1, 2, 3, 4, 5, 6, 0, 7, 8, 9, 10, 11, 12]);
        // The checksum of an empty IEND is well known.
        assert_eq!(&made[made.len() - 12..], b"\0\0\0\0IEND\xae\x42\x60\x82");
    }

    #[test]
    fn other_pictures_are_refused() {
        for picture in [
            &b""[..],
            b"P5\n1 1\n255\nx",
            b"P6",
            b"P6\n1",
            b"P6\n1 1\n65535\nabcdef",
            b"P6\n1 1\n255\nab",
            b"P6\n0 1\n255\n",
            b"P6\n99999999999999999999 1\n255\nabc",
            b"P6\n20000 20000\n255\nabc",
            b"P61 1\n255\nabc",
        ] {
            assert_eq!(png(picture.to_vec()), None, "{picture:?}");
        }
    }
}
