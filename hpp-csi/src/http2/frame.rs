//! HTTP/2's frames (RFC 9113, section 4): reading and writing them. Not here: what they mean.

/// Bytes of a frame's header: length, type, flags, stream.
const HEADER: usize = 9;
/// Longest payload of a frame; the default, which we leave as it is.
const FRAME_MAX: usize = 16384;

/// Types of frames (RFC 9113, section 6).
pub(super) mod kind {
    pub(in crate::http2) const DATA: u8 = 0;
    pub(in crate::http2) const HEADERS: u8 = 1;
    pub(in crate::http2) const PRIORITY: u8 = 2;
    pub(in crate::http2) const RST_STREAM: u8 = 3;
    pub(in crate::http2) const SETTINGS: u8 = 4;
    pub(in crate::http2) const PUSH_PROMISE: u8 = 5;
    pub(in crate::http2) const PING: u8 = 6;
    pub(in crate::http2) const GOAWAY: u8 = 7;
    pub(in crate::http2) const WINDOW_UPDATE: u8 = 8;
    pub(in crate::http2) const CONTINUATION: u8 = 9;
}

/// Flags of frames; ACK and END_STREAM are of different types.
pub(super) mod flag {
    pub(in crate::http2) const ACK: u8 = 0x1;
    pub(in crate::http2) const END_STREAM: u8 = 0x1;
    pub(in crate::http2) const END_HEADERS: u8 = 0x4;
    pub(in crate::http2) const PADDED: u8 = 0x8;
    pub(in crate::http2) const PRIORITY: u8 = 0x20;
}

/// Codes of errors (RFC 9113, section 7).
pub(super) mod code {
    pub(in crate::http2) const NO_ERROR: u32 = 0;
    pub(in crate::http2) const PROTOCOL_ERROR: u32 = 1;
    pub(in crate::http2) const FRAME_SIZE_ERROR: u32 = 6;
    pub(in crate::http2) const REFUSED_STREAM: u32 = 7;
    pub(in crate::http2) const ENHANCE_YOUR_CALM: u32 = 11;
}

/// A frame with a checked length.
pub(super) struct Frame {
    pub(super) kind: u8,
    pub(super) flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Vec<u8>,
}

/// A connection error: its code and the text for the log.
pub(super) struct Malformed(pub(super) u32, pub(super) &'static str);

impl Frame {
    /// Removes the next frame from the input and decodes it; `None` until it is complete.
    pub(super) fn decode(input: &mut Vec<u8>) -> Result<Option<Self>, Malformed> {
        let Some((header, rest)) = input.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [a, b, c, kind, flags, stream @ ..] = *header;
        let length = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        if length > FRAME_MAX {
            return Err(Malformed(code::FRAME_SIZE_ERROR, "a frame that is too long"));
        }
        let Some(payload) = rest.get(..length) else { return Ok(None) };
        // The highest bit means nothing.
        let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
        let frame = Self { kind, flags, stream, payload: payload.to_vec() };
        input.drain(..HEADER + length);
        Ok(Some(frame))
    }
}

/// The payload without its padding.
pub(super) fn unpadded(flags: u8, payload: &[u8]) -> Result<&[u8], Malformed> {
    if flags & flag::PADDED == 0 {
        return Ok(payload);
    }
    let Some((&padding, rest)) = payload.split_first() else {
        return Err(Malformed(code::FRAME_SIZE_ERROR, "a padded frame without its padding's length"));
    };
    let length = rest.len().checked_sub(usize::from(padding));
    length
        .and_then(|length| rest.get(..length))
        .ok_or(Malformed(code::PROTOCOL_ERROR, "padding beyond its frame"))
}

/// Adds the end of a stream.
pub(super) fn reset(output: &mut Vec<u8>, id: u32, code: u32) {
    send(output, kind::RST_STREAM, 0, id, &code.to_be_bytes());
}

/// Adds a frame; no payload of ours is longer than 64 KiB.
pub(super) fn send(output: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let [a, b] = u16::try_from(payload.len()).unwrap_or(u16::MAX).to_be_bytes();
    output.extend([0, a, b, kind, flags]);
    output.extend(stream.to_be_bytes());
    output.extend(payload);
}
