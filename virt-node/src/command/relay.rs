//! Joins two streams: copies each to the other until both have ended. The end of one direction is passed on, and the other
//! direction continues.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{self, JoinHandle};

use rustix::net::{Shutdown, shutdown};

/// Bytes on their way.
const BUFFER: usize = 16 << 10;

/// One end of a joint: a socket, or two files.
pub(super) struct End {
    reads: File,
    writes: File,
}

impl End {
    /// Of a socket.
    pub(super) fn socket(socket: impl Into<OwnedFd>) -> io::Result<Self> {
        let writes = File::from(socket.into());
        Ok(Self { reads: writes.try_clone()?, writes })
    }

    /// Of standard input and output.
    pub(super) fn standard() -> io::Result<Self> {
        let own = |descriptor: std::os::fd::BorrowedFd<'_>| descriptor.try_clone_to_owned().map(File::from);
        Ok(Self { reads: own(io::stdin().as_fd())?, writes: own(io::stdout().as_fd())? })
    }
}

/// Copies both ways until `other` has ended. The opposite direction may continue: its thread owns the handle.
///
/// # Errors
/// There is no thread for it.
pub(super) fn join(one: End, other: End) -> io::Result<JoinHandle<()>> {
    let End { reads: from, writes: to } = one;
    let End { reads: answers, writes: into } = other;
    let asks = thread::Builder::new().name("relay".to_owned()).spawn(move || pass(from, into))?;
    pass(answers, to);
    Ok(asks)
}

/// Copies one direction to its end, and passes the end on. An error also ends the opposite direction.
fn pass(mut from: File, mut to: File) {
    match copy(&mut from, &mut to) {
        // Only a socket can be shut down.
        Ok(()) => _ = shutdown(&to, Shutdown::Write),
        Err(_) => {
            for socket in [&from, &to] {
                _ = shutdown(socket, Shutdown::Both);
            }
        }
    }
}

/// Not `io::copy`: that is `splice(2)` here, and one from a socket holds the lock of the pipe while it waits for bytes, so
/// that the pipe's reader does not even get the bytes that are in it. Ssh is such a reader.
fn copy(from: &mut File, to: &mut File) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => to.write_all(buffer.get(..count).unwrap_or_default())?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    /// Both ends of two sockets that are joined.
    fn joined() -> (TcpStream, TcpStream) {
        let ((client, one), (other, guest)) = (pair(), pair());
        thread::spawn(move || join(End::socket(one).unwrap(), End::socket(other).unwrap()).unwrap().join());
        (client, guest)
    }

    #[test]
    fn an_ended_side_still_receives() {
        let (mut client, mut guest) = joined();
        client.write_all(b"question").unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        guest.read_to_string(&mut text).unwrap();
        assert_eq!(text, "question");
        guest.write_all(b"answer").unwrap();
        drop(guest);
        text.clear();
        client.read_to_string(&mut text).unwrap();
        assert_eq!(text, "answer");
    }

    #[test]
    fn a_pipes_reader_gets_bytes_while_more_are_awaited() {
        let (mut guest, socket) = pair();
        let (mut heard, said) = io::pipe().unwrap();
        thread::spawn(move || pass(File::from(OwnedFd::from(socket)), File::from(OwnedFd::from(said))));
        // The reader is slower than the writer that waits for more.
        guest.write_all(b"first").unwrap();
        thread::sleep(std::time::Duration::from_millis(200));
        let (sender, received) = std::sync::mpsc::channel();
        thread::spawn(move || {
            let mut bytes = [0; 5];
            sender.send(heard.read_exact(&mut bytes).map(|()| bytes)).unwrap();
        });
        let bytes = received.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
        assert_eq!(&bytes.unwrap(), b"first");
    }

    #[test]
    fn a_side_that_received_the_end_may_continue() {
        let (mut client, mut guest) = joined();
        guest.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        client.write_all(b"more").unwrap();
        drop(client);
        let mut text = String::new();
        guest.read_to_string(&mut text).unwrap();
        assert_eq!(text, "more");
    }
}
