//! Datagrams in a stream of bytes: before each its length, 16 bits, big-endian. The stream between two programs of this
//! project that carry a guest's UDP port; clients have one WebSocket message per datagram ([`crate::websocket`]).
//!
//! Not here: sockets.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest datagram in bytes: the largest value of the length, and more than UDP carries.
pub const LENGTH_MAX: usize = u16::MAX as usize;
/// Bytes of the length.
const PREFIX: usize = size_of::<u16>();

/// Writes one datagram. One longer than [`LENGTH_MAX`] is dropped, as a network drops it.
///
/// # Errors
/// The stream's.
pub async fn write(stream: &mut (impl AsyncWrite + Unpin), datagram: &[u8]) -> io::Result<()> {
    let Ok(length) = u16::try_from(datagram.len()) else { return Ok(()) };
    let mut framed = Vec::with_capacity(PREFIX + datagram.len());
    framed.extend(length.to_be_bytes());
    framed.extend(datagram);
    stream.write_all(&framed).await
}

/// Reads datagrams from a stream. Holds at most one datagram and one read beyond it.
#[derive(Debug, Default)]
pub struct Reader {
    received: Vec<u8>,
}

impl Reader {
    /// The next datagram; `None` at the end of the stream. A cancelled call loses no
    /// bytes: the reader keeps those received.
    ///
    /// # Errors
    /// The stream's; [`io::ErrorKind::UnexpectedEof`] when it ends within a datagram.
    pub async fn next(&mut self, stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some((length, rest)) = self.received.split_first_chunk::<PREFIX>() {
                let length = usize::from(u16::from_be_bytes(*length));
                if let Some(datagram) = rest.get(..length) {
                    let datagram = datagram.to_vec();
                    self.received.drain(..PREFIX + length);
                    return Ok(Some(datagram));
                }
            }
            if stream.read_buf(&mut self.received).await? == 0 {
                return match self.received.is_empty() {
                    true => Ok(None),
                    false => Err(io::ErrorKind::UnexpectedEof.into()),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn datagrams_keep_their_bounds_wherever_the_stream_is_cut() {
        let sent = [vec![], b"one".to_vec(), vec![7; LENGTH_MAX], vec![1]];
        let mut bytes = Vec::new();
        for datagram in &sent {
            write(&mut bytes, datagram).await.unwrap();
        }
        write(&mut bytes, &vec![0; LENGTH_MAX + 1]).await.unwrap();
        for piece in [1, 2, 3, 1000, bytes.len()] {
            let mut parts = in_pieces(&bytes, piece);
            let mut reader = Reader::default();
            for datagram in &sent {
                assert!(
                    reader.next(&mut parts).await.unwrap().as_ref() == Some(datagram),
                    "pieces of {piece}"
                );
            }
            assert_eq!(reader.next(&mut parts).await.unwrap(), None, "the one that is too long was dropped");
        }
    }

    /// A stream that gives at most `piece` bytes at a time.
    fn in_pieces(bytes: &[u8], piece: usize) -> impl AsyncRead + Unpin {
        let (mut write, read) = tokio::io::duplex(piece);
        let bytes = bytes.to_vec();
        tokio::spawn(async move { write.write_all(&bytes).await });
        read
    }

    #[tokio::test]
    async fn a_stream_that_ends_within_a_datagram_is_an_error() {
        for cut in [&[0][..], &[0, 2, 1]] {
            let mut stream = cut;
            let error = Reader::default().next(&mut stream).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{cut:?}");
        }
    }
}
