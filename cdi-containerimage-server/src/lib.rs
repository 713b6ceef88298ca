//! Offers the disk of a container image that the node has pulled to the importer in the same pod.
//!
//! It is copied into a container made of the user's image, which may hold nothing but a disk: so it is linked
//! statically and needs no file of its own. It listens on loopback only. The protocol is in [`api::import::node`].
//!
//! ```text
//!  find the one file ─► listen ─► ready file ─► serve … done file, or a signal ─► remove the ready file ─► exit
//! ```
//!
//! Not here: what the disk is. Nothing outside of the image folder is ever read or served.

mod answer;
pub mod args;
mod connections;
pub mod hold;
mod image;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use api::import::node::ServerInfo;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use thiserror::Error;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};

use crate::answer::Served;
use crate::args::{Args, Command};
use crate::connections::{Activity, BusyBody, Connections};
use crate::image::{Image, ImageError};

/// How often the done file is looked for.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Longest head of a request, in bytes.
const HEAD_MAX: usize = 16 << 10;
/// How long a head may take, and a connection may wait for its next request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Threads that read the disk.
const READERS: usize = 8;
/// The wait after the system had no descriptor for a connection.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Why the server cannot do its work.
#[derive(Debug, Error)]
enum Error {
    /// The folder has no image to serve.
    #[error("no image in {}", .0.display())]
    Image(PathBuf, #[source] ImageError),
    /// The port cannot be had.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] io::Error),
    /// The importer cannot be signalled.
    #[error("cannot write the ready file {}", .0.display())]
    Ready(PathBuf, #[source] io::Error),
    /// The process itself cannot be set up.
    #[error("cannot set up {0}")]
    SetUp(&'static str, #[source] io::Error),
}

/// Why the server ended in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// The importer is done.
    Done,
    /// SIGTERM or SIGINT, by number.
    Signal(u8),
}

/// The program: arguments in (without its name), exit code out. 0: the importer is done, or help was asked for; 1: it
/// cannot serve; 2: wrong arguments; 143 or 130: ended by SIGTERM or SIGINT. (Not 0 then: a container that ended in
/// order is not started again.)
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = match args::parse(arguments) {
        Ok(Command::Serve(args)) => args,
        Ok(Command::Help) => {
            say(args::USAGE.trim_end());
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            say(&format!("{error}\n{}", args::USAGE.trim_end()));
            return ExitCode::from(2);
        }
    };
    match start(&args) {
        Ok(End::Done) => {
            say("the importer is done");
            ExitCode::SUCCESS
        }
        Ok(End::Signal(number)) => {
            say(&format!("ended by signal {number}"));
            ExitCode::from(128 + number)
        }
        Err(error) => {
            say(&chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn start(args: &Args) -> Result<End, Error> {
    let image = Image::find(&args.image_dir).map_err(|e| Error::Image(args.image_dir.clone(), e))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(READERS)
        .build()
        .map_err(|e| Error::SetUp("the runtime", e))?;
    let end = runtime.block_on(serve(args, image));
    // A remaining reader has been signalled, or is gone.
    runtime.shutdown_background();
    end
}

async fn serve(args: &Args, image: Image) -> Result<End, Error> {
    let failed = |e| Error::SetUp("signals", e);
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let (four, six) = listen(args.port).await?;
    let port = four.local_addr().map_or(args.port, |address| address.port());
    let ready = Ready::write(&args.ready_file, image.name().as_bytes())
        .map_err(|e| Error::Ready(args.ready_file.clone(), e))?;
    say(&format!("serving {} on port {port}", args.image_dir.join(image.name()).display()));
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        // JSON has no other texts.
        Some(format!("{}={}", name.to_str()?, value.to_str()?))
    });
    let offer = Arc::new(Served { image, info: ServerInfo { env: environment.collect() }.to_json().into() });
    let mut connections = Connections::default();
    let mut look = tokio::time::interval(POLL_INTERVAL);
    let end = loop {
        tokio::select! {
            _ = look.tick() => {
                if fs::symlink_metadata(&args.done_file).is_ok() {
                    break End::Done;
                }
            }
            Some(()) = terminate.recv() => break End::Signal(15),
            Some(()) = interrupt.recv() => break End::Signal(2),
            accepted = accept(&four, six.as_ref()) => match accepted {
                // While all are busy a new one is closed.
                Ok(stream) => if connections.make_room() {
                    serve_connection(stream, &offer, &mut connections);
                },
                Err(error) => {
                    say(&format!("cannot accept a connection: {error}"));
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            },
        }
    };
    drop(ready);
    if end == End::Done
        && let Err(error) = fs::remove_file(&args.done_file)
    {
        say(&format!("cannot remove {}: {error}", args.done_file.display()));
    }
    Ok(end)
}

/// Loopback by both protocols. Literal addresses: an empty image has no /etc/hosts to look names up in. A pod without
/// IPv6 has no `::1`.
async fn listen(port: u16) -> Result<(TcpListener, Option<TcpListener>), Error> {
    let four = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = TcpListener::bind(four).await.map_err(|e| Error::Listen(four, e))?;
    let port = listener.local_addr().map_or(port, |address| address.port());
    let six = SocketAddr::from((Ipv6Addr::LOCALHOST, port));
    match TcpListener::bind(six).await {
        Ok(second) => Ok((listener, Some(second))),
        // The name localhost may lead there: its owner would be taken for us.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(Error::Listen(six, error)),
        Err(_) => Ok((listener, None)),
    }
}

async fn accept(four: &TcpListener, six: Option<&TcpListener>) -> io::Result<TcpStream> {
    let (stream, _) = match six {
        Some(six) => tokio::select! {
            accepted = four.accept() => accepted?,
            accepted = six.accept() => accepted?,
        },
        None => four.accept().await?,
    };
    Ok(stream)
}

/// Serves one connection on a task of its own.
fn serve_connection(stream: TcpStream, offer: &Arc<Served>, connections: &mut Connections) {
    // A late segment costs a round trip, not an answer.
    drop(stream.set_nodelay(true));
    let (offer, activity) = (offer.clone(), Activity::new());
    let of_connection = activity.clone();
    let task = tokio::spawn(async move {
        let service = service_fn(move |request| {
            let (offer, answering) = (offer.clone(), activity.answer());
            async move {
                let answer = answer::answer(&request, &offer).await?;
                Ok::<_, std::convert::Infallible>(answer.map(|body| BusyBody::new(body, answering)))
            }
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_buf_size(HEAD_MAX)
            .serve_connection(TokioIo::new(stream), service);
        if let Err(error) = connection.await {
            say(&format!("a connection failed: {}", chain(&error)));
        }
    });
    connections.add(of_connection, task.abort_handle());
}

/// The ready file, as long as the server is ready.
struct Ready<'a>(&'a Path);

impl<'a> Ready<'a> {
    /// Writes it to a temporary name first, so that readers never see half a name. A leftover of a killed server is replaced.
    fn write(path: &'a Path, name: &[u8]) -> io::Result<Self> {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".new");
        fs::write(&beside, name)?;
        fs::rename(&beside, path)?;
        Ok(Self(path))
    }
}

impl Drop for Ready<'_> {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(self.0) {
            say(&format!("cannot remove {}: {error}", self.0.display()));
        }
    }
}

fn say(text: &str) {
    // No reader is left.
    drop(writeln!(io::stderr().lock(), "cdi-containerimage-server: {text}"));
}

/// An error with everything below it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        text = format!("{text}: {cause}");
        below = cause.source();
    }
    text
}
