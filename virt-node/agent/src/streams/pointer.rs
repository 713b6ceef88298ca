//! Moves a guest's pointer, so that a screen that its guest has blanked shows a picture again: as a client of its VNC server
//! (RFC 6143) that shares the screen. Not here: the picture.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::pods::PodDirectory;
use crate::pods::launcher;

/// How long the server may take for each answer.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Version 3.8 of the protocol.
const VERSION: &[u8; 12] = b"RFB 003.008\n";
/// Security type without authentication.
const NONE: u8 = 1;
/// Longest name of a desktop.
const NAME_MAX: u32 = 4096;
/// Types of a client's messages.
const UPDATE_REQUEST: u8 = 3;
const POINTER_EVENT: u8 = 5;

/// Moves the pointer. While one client has the screen for itself, the server refuses others, and that client moves it.
pub(super) async fn wake(pod: Arc<PodDirectory>) {
    let moved = tokio::task::spawn_blocking(move || -> Result<()> {
        let stream = launcher::connect_to(&pod, "vnc")?;
        let failed = |error| Error::system("a guest's pointer cannot be moved", error);
        stream.set_read_timeout(Some(TIMEOUT)).map_err(failed)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(failed)?;
        nudge(stream).map_err(failed)
    });
    if let Ok(Err(error)) = moved.await {
        tracing::debug!(error = error.chain(), "a screenshot without a move of the pointer");
    }
}

/// Connects as a client that shares the screen, moves the pointer to the corner and one row down as upstream does, and waits
/// until the server has handled that.
fn nudge(mut server: impl Read + Write) -> io::Result<()> {
    let mut version = [0; VERSION.len()];
    server.read_exact(&mut version)?;
    check(version.starts_with(b"RFB 003."), "it speaks another protocol")?;
    server.write_all(VERSION)?;
    let mut kinds = vec![0; usize::from(byte(&mut server)?)];
    server.read_exact(&mut kinds)?;
    check(kinds.contains(&NONE), "it wants authentication")?;
    server.write_all(&[NONE])?;
    check(number(&mut server)? == 0, "it refuses the client")?;
    let shared = 1;
    server.write_all(&[shared])?;
    // Width, height and format of pixels, then the desktop's name.
    server.read_exact(&mut [0; 20])?;
    let length = number(&mut server)?;
    check(length <= NAME_MAX, "its name is too long")?;
    io::copy(&mut Read::by_ref(&mut server).take(length.into()), &mut io::sink())?;
    for row in [0, 1] {
        let (buttons, column) = (0, 0);
        server.write_all(&[POINTER_EVENT, buttons, 0, column, 0, row])?;
    }
    let (whole, size) = (0, 1);
    server.write_all(&[UPDATE_REQUEST, whole, 0, 0, 0, 0, 0, size, 0, size])?;
    byte(&mut server).map(drop)
}

fn check(held: bool, otherwise: &str) -> io::Result<()> {
    if held { Ok(()) } else { Err(io::Error::new(io::ErrorKind::InvalidData, otherwise)) }
}

fn byte(server: &mut impl Read) -> io::Result<u8> {
    let mut byte = [0];
    server.read_exact(&mut byte)?;
    Ok(byte[0])
}

fn number(server: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    server.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    /// Serves one client, and gives what it has sent after the handshake.
    fn serve(mut client: UnixStream, kinds: &[u8], result: u32) -> io::Result<Vec<u8>> {
        let mut sent = [0; 12];
        client.write_all(VERSION)?;
        client.read_exact(&mut sent)?;
        assert_eq!(&sent, VERSION);
        client.write_all(&[u8::try_from(kinds.len()).unwrap()])?;
        client.write_all(kinds)?;
        client.read_exact(&mut sent[..1])?;
        client.write_all(&result.to_be_bytes())?;
        client.read_exact(&mut sent[..1])?;
        assert_eq!(sent[0], 1, "the screen is shared");
        client.write_all(&[0; 20])?;
        client.write_all(&4_u32.to_be_bytes())?;
        client.write_all(b"QEMU")?;
        let mut events = vec![0; 22];
        client.read_exact(&mut events)?;
        client.write_all(&[0])?;
        Ok(events)
    }

    #[test]
    fn the_pointer_moves_as_the_client_of_a_shared_screen() {
        let (client, server) = UnixStream::pair().unwrap();
        let served = thread::spawn(move || serve(server, &[2, NONE], 0));
        nudge(client).unwrap();
        let events = served.join().unwrap().unwrap();
        assert_eq!(&events[..12], [5, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 1]);
        assert_eq!(&events[12..], [3, 0, 0, 0, 0, 0, 0, 1, 0, 1]);
    }

    #[test]
    fn a_server_that_refuses_the_client_is_an_error() {
        for (kinds, result, expected) in
            [(&[2][..], 0, "it wants authentication"), (&[NONE][..], 1, "it refuses the client")]
        {
            let (client, server) = UnixStream::pair().unwrap();
            let served = thread::spawn(move || serve(server, kinds, result));
            assert_eq!(nudge(client).unwrap_err().to_string(), expected);
            served.join().unwrap().unwrap_err();
        }
    }
}
