//! Unix sockets in a directory, without the length limit of their paths (108 bytes) and without following links.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, chmodat, fstat};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::directory::{Dir, component};
use crate::error::Result;

/// A path that names an open file of this process.
fn named(fd: impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

fn stream(address: &str, timeout: Duration) -> io::Result<UnixStream> {
    let socket: OwnedFd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The time that connect(2) waits for a place in the listener's queue.
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    connect(&socket, &SocketAddrUnix::new(address)?)?;
    set_socket_timeout(&socket, Timeout::Send, None)?;
    Ok(socket.into())
}

impl Dir {
    /// Connects to the socket `name`, which must be one and no link to one. A listener whose queue stays full for `timeout`
    /// (not zero) is [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    /// As above, and those of connect(2).
    pub fn connect(&self, name: impl AsRef<Path>, timeout: Duration) -> Result<UnixStream> {
        let name = name.as_ref();
        let connected = || {
            let file = self.open_raw(name, OFlags::PATH, Mode::empty())?;
            if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::Socket {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a socket"));
            }
            stream(&named(&file), timeout)
        };
        connected().map_err(|error| self.failed("connect to", name, error))
    }

    /// Listens on a new socket `name` with `mode`; the name must be free.
    ///
    /// # Errors
    /// Those of bind(2) and listen(2).
    pub fn listen(&self, name: impl AsRef<Path>, mode: u32) -> Result<UnixListener> {
        let name = name.as_ref();
        let listening = || {
            let name = component(name)?;
            let listener = UnixListener::bind(Path::new(&named(self)).join(name))?;
            chmodat(self, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
            Ok::<_, io::Error>(listener)
        };
        listening().map_err(|error| self.failed("listen on", name, error))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn sockets_with_long_paths_are_connected_to_and_links_to_sockets_are_not() {
        let place = tempfile::tempdir().unwrap();
        let deep = place.path().join("d".repeat(120));
        std::fs::create_dir(&deep).unwrap();
        let dir = Dir::open(&deep).unwrap();
        let listener = dir.listen("socket", 0o600).unwrap();
        let second = Duration::from_secs(1);
        dir.connect("socket", second).unwrap();
        listener.accept().unwrap();
        std::os::unix::fs::symlink("socket", deep.join("link")).unwrap();
        std::fs::write(deep.join("file"), "").unwrap();
        for bad in ["link", "file", "absent"] {
            dir.connect(bad, second).unwrap_err();
        }
        dir.listen("socket", 0o600).unwrap_err();
    }

    #[test]
    fn a_listener_that_never_accepts_does_not_hold_up_its_client() {
        let place = tempfile::tempdir().unwrap();
        let dir = Dir::open(place.path()).unwrap();
        let listener = dir.listen("socket", 0o600).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let begun = Instant::now();
        let mut waiting = Vec::new();
        let error = loop {
            match dir.connect("socket", Duration::from_millis(100)) {
                Ok(stream) => waiting.push(stream),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(begun.elapsed() < Duration::from_secs(5));
    }
}
