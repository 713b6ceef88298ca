//! A guest's streams: its console at this terminal, its screen at a port of this machine.

use std::io::{self, IsTerminal, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;

use super::relay::{End, join};
use super::{Daemon, say};
use crate::error::{Error, Kind};
use crate::protocol::{Request, Stream};
use guest::framing;
use guest::signals::{Signal, block_signals, next_signal};
use virt_client::terminal::{Raw, before_escape};

/// Bytes on their way.
const BUFFER: usize = 16 << 10;

/// `virt-node console`.
pub(crate) fn console(daemon: Daemon, namespace: &str, name: &str) -> Result<(), Error> {
    stream(daemon, namespace, name, Stream::Console)
}

fn lost(error: io::Error) -> Error {
    Error::with(Kind::System, "the connection to the guest's console broke", error)
}

/// Joins a guest's stream and this terminal, until one of them ends.
pub(super) fn stream(mut daemon: Daemon, namespace: &str, name: &str, stream: Stream) -> Result<(), Error> {
    daemon.call(Request::Stream { namespace: namespace.to_owned(), name: name.to_owned(), stream })?;
    let guest = daemon.into_stream();
    guest.set_read_timeout(None).map_err(lost)?;
    let terminal = io::stdin().is_terminal();
    if terminal {
        say(&format!("Connected to {namespace}/{name}; the escape is ^]"))?;
    }
    let raw = terminal.then(Raw::set).flatten();
    // Signals end the connection, and so leave the terminal as it was.
    block_signals().map_err(lost)?;
    let cut = guest.try_clone().map_err(lost)?;
    framing::spawn("signals", move || {
        while !matches!(next_signal(None), Ok(Some(Signal::Stop)) | Err(_)) {}
        drop(cut.shutdown(Shutdown::Both));
    })
    .map_err(lost)?;
    let writer = guest.try_clone().map_err(lost)?;
    framing::spawn("keys", move || keys(&writer, terminal)).map_err(lost)?;
    let answer = copy_output(&guest);
    drop(raw);
    answer.map_err(lost)
}

/// Copies keystrokes up to the escape key, or a pipe to its end.
fn keys(mut guest: &UnixStream, terminal: bool) {
    let mut buffer = [0; BUFFER];
    while let Ok(count @ 1..) = io::stdin().read(&mut buffer) {
        let typed = &buffer[..count];
        let (typed, escaped) = if terminal { before_escape(typed) } else { (typed, false) };
        if guest.write_all(typed).is_err() || escaped {
            drop(guest.shutdown(Shutdown::Both));
            return;
        }
    }
    // The guest's output is still copied after the end of a pipe.
}

fn copy_output(mut guest: &UnixStream) -> io::Result<()> {
    let mut buffer = [0; BUFFER];
    let mut out = io::stdout().lock();
    loop {
        match guest.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                out.write_all(&buffer[..count])?;
                out.flush()?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// `virt-node vnc`: the screen at a port of this machine, until it is interrupted.
pub(crate) fn screen(daemon: &Daemon, namespace: &str, name: &str, port: u16) -> Result<(), Error> {
    let failed = |error| {
        Error::with(Kind::System, format!("cannot listen on 127.0.0.1:{port}; choose another port"), error)
    };
    let listener = TcpListener::bind(("127.0.0.1", port)).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    // A missing guest is reported now, and not to the first viewer.
    let mut trial = daemon.another()?;
    let wanted = |stream| Request::Stream { namespace: namespace.to_owned(), name: name.to_owned(), stream };
    trial.call(wanted(Stream::Screen))?;
    drop(trial);
    say(&format!("{address}: open it with a VNC viewer; Ctrl-C ends"))?;
    for viewer in listener.incoming() {
        let viewer = viewer.map_err(failed)?;
        let mut guest = daemon.another()?;
        guest.call(wanted(Stream::Screen))?;
        let guest = guest.into_stream();
        guest.set_read_timeout(None).map_err(lost)?;
        let (viewer, guest) = (End::socket(viewer).map_err(lost)?, End::socket(guest).map_err(lost)?);
        framing::spawn("screen", move || drop(join(viewer, guest))).map_err(lost)?;
    }
    Ok(())
}
