//! `console`: the guest's first serial port at this terminal. Threads carry standard input and output, which may block.

use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use cluster::websocket::Socket;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep};

use crate::error::{Error, Kind, Result, failed};
use crate::output::say;
use crate::site::Site;
use crate::stream::{self, End};
use crate::target::Target;
use crate::terminal::{Raw, before_escape};

/// Pause between two attempts while the guest does not run yet.
const AGAIN: Duration = Duration::from_secs(1);
/// Bytes between a thread and the connection.
const BUFFER: usize = 16 << 10;
const LOST: &str = "\nYou were disconnected from the console. This has one of the following reasons:\n \
                    - another user connected to the console of the target vm\n - network issues";

/// Connects the terminal until one end is over.
///
/// # Errors
/// The guest does not run within `patience`, or the connection breaks.
pub(crate) async fn console(site: &Site, target: &Target, patience: Duration) -> Result<()> {
    let socket = wait(site, target, patience).await?;
    let terminal = io::stdin().is_terminal();
    say(&format!(
        "Successfully connected to {} console. Press Ctrl+] or Ctrl+5 to exit console.",
        target.name
    ));
    let raw = terminal.then(Raw::set).flatten();
    let ended = at_terminal(socket, terminal, None).await;
    drop(raw);
    match ended? {
        End::Closed | End::Local => Ok(()),
        End::Broken => Err(Error::new(Kind::System, LOST)),
    }
}

/// Opens the console; a guest that does not run yet (400) is asked for again.
async fn wait(site: &Site, target: &Target, patience: Duration) -> Result<Socket> {
    let until = Instant::now() + patience;
    let mut waited = false;
    loop {
        match stream::open(site, target, "console").await {
            Ok(socket) => return Ok(socket),
            Err(error) if error.code() == Some(400) && Instant::now() < until => {
                if !waited {
                    say(&format!("Waiting for {} to run ({patience:?} at most)", target.name));
                }
                waited = true;
                sleep(AGAIN).await;
            }
            Err(error) => return Err(failed(format!("Can't access the console of {}", target.name))(error)),
        }
    }
}

/// Joins a stream with standard input and output. On a terminal the escape ends it; signals always do.
///
/// # Errors
/// There are no threads or sockets left.
pub(crate) async fn at_terminal(socket: Socket, escapes: bool, linger: Option<Duration>) -> Result<End> {
    let (typed, shown) = local(escapes)?;
    let stop = async {
        let (Ok(mut term), Ok(mut interrupt), Ok(mut hangup)) =
            (signal(SignalKind::terminate()), signal(SignalKind::interrupt()), signal(SignalKind::hangup()))
        else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
            _ = hangup.recv() => {}
        }
    };
    let ended = tokio::select! {
        ended = stream::join(socket, typed, linger) => ended?,
        () = stop => End::Local,
    };
    // The guest's last bytes are shown before the process ends.
    let shown = tokio::task::spawn_blocking(move || shown.join());
    drop(tokio::time::timeout(AGAIN, shown).await);
    Ok(ended)
}

/// Standard input and output as one socket, and the thread that writes to standard output.
fn local(escapes: bool) -> io::Result<(tokio::net::UnixStream, thread::JoinHandle<()>)> {
    let (inside, outside) = UnixStream::pair()?;
    inside.set_nonblocking(true)?;
    let inside = tokio::net::UnixStream::from_std(inside)?;
    let keys = outside.try_clone()?;
    thread::Builder::new().name("keys".to_owned()).spawn(move || type_into(&keys, escapes))?;
    let shown = thread::Builder::new().name("screen".to_owned()).spawn(move || show(&outside))?;
    Ok((inside, shown))
}

fn type_into(mut guest: &UnixStream, escapes: bool) {
    let mut buffer = [0; BUFFER];
    while let Ok(count @ 1..) = io::stdin().read(&mut buffer) {
        let typed = buffer.get(..count).unwrap_or_default();
        let (typed, escaped) = if escapes { before_escape(typed) } else { (typed, false) };
        if guest.write_all(typed).is_err() {
            return;
        }
        if escaped {
            drop(guest.shutdown(std::net::Shutdown::Both));
            return;
        }
    }
    drop(guest.shutdown(std::net::Shutdown::Write));
}

fn show(mut guest: &UnixStream) {
    let mut buffer = [0; BUFFER];
    let mut out = io::stdout().lock();
    while let Ok(count @ 1..) = guest.read(&mut buffer) {
        let shown = buffer.get(..count).unwrap_or_default();
        if out.write_all(shown).and_then(|()| out.flush()).is_err() {
            break;
        }
    }
    drop(guest.shutdown(std::net::Shutdown::Both));
}
