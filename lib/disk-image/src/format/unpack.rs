//! Unpacks one packed extent: a qcow2 cluster (deflate, zstd) or a VMDK grain. Not here: streams (see
//! [`crate::compress`]), and cutting the last unit of a disk, which is the caller's.
//!
//! The output's length is known beforehand and is the bound: no decoder here ever allocates by what the bytes claim.

use libdeflater::DecompressionError;
use zstd::zstd_safe;

use crate::error::{Error, Kind};
use crate::extent::Codec;

/// Bytes of the marker before a VMDK grain: LBA u64, size u32, little endian.
const GRAIN_MARKER: usize = 12;

/// Unpackers of one thread; holds each decoder's state so that nothing is allocated per extent.
pub struct Unpacker {
    inflate: libdeflater::Decompressor,
    zstd: zstd::bulk::Decompressor<'static>,
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Unpacker")
    }
}

impl Unpacker {
    /// New decoders.
    ///
    /// # Errors
    /// When zstd cannot allocate its context.
    pub fn new() -> Result<Self, Error> {
        let zstd = zstd::bulk::Decompressor::new()
            .map_err(|e| Error::with(Kind::Compression, "cannot set up zstd", e))?;
        Ok(Self { inflate: libdeflater::Decompressor::new(), zstd })
    }

    /// Unpacks `packed` into `out`, which is the allocation unit's full length, and fills it exactly. `guest` names the
    /// place in errors and is compared with the address a VMDK grain carries. Bytes after the packed stream are
    /// padding or a neighbour's, and not looked at.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] when the bytes do not unpack to exactly `out.len()` bytes, or, for a disk's last grain,
    /// to enough of them; the rest is zero then.
    pub fn unpack(&mut self, codec: Codec, guest: u64, packed: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let got = match codec {
            Codec::Deflate => inflated(self.inflate.deflate_decompress(packed, out)),
            Codec::Zstd => self.unzstd(packed, out),
            Codec::VmdkGrain | Codec::VmdkLastGrain { .. } => {
                inflated(self.inflate.zlib_decompress(grain_stream(guest, packed)?, out))
            }
        };
        let what = match codec {
            Codec::Deflate => "deflate cluster",
            Codec::Zstd => "zstd cluster",
            Codec::VmdkGrain | Codec::VmdkLastGrain { .. } => "grain",
        };
        match got {
            Ok(n) if n == out.len() => Ok(()),
            Ok(n) if matches!(codec, Codec::VmdkLastGrain { len } if u32::try_from(n).is_ok_and(|n| n >= len)) =>
            {
                out[n..].fill(0);
                Ok(())
            }
            Ok(n) => Err(Error::corrupt(format!(
                "the {what} at guest offset {guest} unpacks to {n} bytes instead of {}",
                out.len()
            ))),
            Err(why) => {
                Err(Error::corrupt(format!("the {what} at guest offset {guest} does not unpack: {why}")))
            }
        }
    }

    /// One frame; `ZSTD_decompress` wants its exact length, the rest of `packed` is padding.
    fn unzstd(&mut self, packed: &[u8], out: &mut [u8]) -> Result<usize, String> {
        let len = zstd_safe::find_frame_compressed_size(packed)
            .map_err(|code| zstd_safe::get_error_name(code).to_owned())?;
        let frame = packed.get(..len).ok_or("the frame goes on past its end")?;
        self.zstd.decompress_to_buffer(frame, out).map_err(|e| e.to_string())
    }
}

fn inflated(result: Result<usize, DecompressionError>) -> Result<usize, String> {
    result.map_err(|e| match e {
        DecompressionError::BadData => "bad data".to_owned(),
        DecompressionError::InsufficientSpace => "more bytes than it may hold".to_owned(),
    })
}

/// The zlib stream of a grain, after its marker has been compared with the expected position.
fn grain_stream(guest: u64, packed: &[u8]) -> Result<&[u8], Error> {
    let cut_short = || Error::corrupt(format!("the grain at guest offset {guest} is cut short"));
    let (marker, rest) = packed.split_at_checked(GRAIN_MARKER).ok_or_else(cut_short)?;
    let (lba, size) = marker.split_at(8);
    let lba = u64::from_le_bytes(lba.try_into().map_err(|_| cut_short())?);
    let size = u32::from_le_bytes(size.try_into().map_err(|_| cut_short())?);
    if lba != guest / 512 {
        return Err(Error::corrupt(format!(
            "the marker of the grain at guest offset {guest} names sector {lba} instead of {}",
            guest / 512
        )));
    }
    usize::try_from(size).ok().and_then(|size| rest.get(..size)).ok_or_else(|| {
        Error::corrupt(format!(
            "the grain at guest offset {guest} claims {size} packed bytes where at most {} are stored",
            rest.len()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use libdeflater::{CompressionLvl, Compressor};

    fn sample(len: usize) -> Vec<u8> {
        (0..len).map(|i| u8::try_from((i * i / 7) % 251).unwrap()).collect()
    }

    fn deflate(data: &[u8]) -> Vec<u8> {
        let mut c = Compressor::new(CompressionLvl::default());
        let mut out = vec![0; c.deflate_compress_bound(data.len())];
        let n = c.deflate_compress(data, &mut out).unwrap();
        out.truncate(n);
        out
    }

    fn grain(lba: u64, data: &[u8]) -> Vec<u8> {
        let mut c = Compressor::new(CompressionLvl::default());
        let mut stream = vec![0; c.zlib_compress_bound(data.len())];
        let n = c.zlib_compress(data, &mut stream).unwrap();
        stream.truncate(n);
        let mut out = lba.to_le_bytes().to_vec();
        out.extend(u32::try_from(n).unwrap().to_le_bytes());
        out.extend(stream);
        out
    }

    #[test]
    fn every_codec_takes_trailing_bytes_and_only_the_exact_length() {
        let data = sample(65_536);
        let zstd = zstd::bulk::compress(&data, 3).unwrap();
        let mut unpacker = Unpacker::new().unwrap();
        for (codec, packed) in
            [(Codec::Deflate, deflate(&data)), (Codec::Zstd, zstd), (Codec::VmdkGrain, grain(2048, &data))]
        {
            for trailing in [0usize, 1, 511, 4096] {
                let mut bytes = packed.clone();
                bytes.extend(std::iter::repeat_n(0xa5, trailing));
                let mut out = vec![0x55; data.len()];
                unpacker.unpack(codec, 1 << 20, &bytes, &mut out).unwrap();
                assert!(out == data, "{codec:?} with {trailing} trailing bytes");
            }
            for len in [data.len() - 1, data.len() + 1, 512, data.len() * 2] {
                let mut out = vec![0; len];
                let error = unpacker.unpack(codec, 1 << 20, &packed, &mut out).unwrap_err();
                assert_eq!(error.kind(), Kind::Corrupt);
                assert!(error.to_string().contains("guest offset 1048576"), "{error}");
            }
            for cut in [0, 1, 11, 12, 13, packed.len() / 2, packed.len() - 1] {
                let mut out = vec![0; data.len()];
                assert!(
                    unpacker.unpack(codec, 1 << 20, &packed[..cut], &mut out).is_err(),
                    "{codec:?} {cut}"
                );
            }
        }
    }

    #[test]
    fn a_failure_leaves_the_decoders_usable() {
        let data = sample(4096);
        let zstd = zstd::bulk::compress(&data, 3).unwrap();
        let mut unpacker = Unpacker::new().unwrap();
        let mut out = vec![0; data.len()];
        for _ in 0..3 {
            assert!(unpacker.unpack(Codec::Zstd, 0, &zstd[..zstd.len() - 3], &mut out).is_err());
            assert!(unpacker.unpack(Codec::Deflate, 0, &[0xff; 40], &mut out).is_err());
            unpacker.unpack(Codec::Zstd, 0, &zstd, &mut out).unwrap();
            assert!(out == data);
        }
    }

    #[test]
    fn a_grain_must_lie_where_its_marker_points() {
        let data = sample(65_536);
        let mut out = vec![0; data.len()];
        let error = Unpacker::new()
            .unwrap()
            .unpack(Codec::VmdkGrain, 65_536, &grain(127, &data), &mut out)
            .unwrap_err();
        assert!(error.to_string().contains("sector 127 instead of 128"), "{error}");
    }

    #[test]
    fn a_grain_longer_than_what_is_stored_is_corrupt() {
        let data = sample(65_536);
        let mut packed = grain(0, &data);
        packed[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut out = vec![0; data.len()];
        let error = Unpacker::new().unwrap().unpack(Codec::VmdkGrain, 0, &packed, &mut out).unwrap_err();
        assert!(error.to_string().contains("claims 4294967295"), "{error}");
    }
}
