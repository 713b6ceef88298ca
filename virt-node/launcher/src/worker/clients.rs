//! Clients on the socket: their calls, and the events they watch. None waits for another, and none makes the guest wait.
//!
//! ```text
//! a client's thread: reads a call, does it, writes the answer, reads the next
//! its second, once it watches: writes events from a queue of 64; a queue that is full ends the connection
//! ```

use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use api::launcher::{Call, Event, Hello, Message, RefusedKind, Request, VERSIONS, frame};

use super::guest::Guest;
use guest::clients::Client;
use guest::framing::{self, Counted, spawn};

/// Most clients at once. The one idle longest is disconnected for the next.
const CLIENTS_MAX: usize = 32;
/// Events that may wait for a client.
const EVENTS_MAX: usize = 64;
/// Frames longer than this are read one at a time, over all clients.
const SHORT: usize = framing::STEP;
/// How long the rest of a frame may take, and how long a client may take to read an answer.
const TIMEOUT: Duration = Duration::from_secs(30);

type Watcher = (SyncSender<Arc<[u8]>>, UnixStream);

/// Clients that watch events.
#[derive(Default)]
pub(super) struct Clients {
    watchers: Mutex<Vec<Watcher>>,
    /// Unfinished output: threads that write events, and calls that are not answered yet.
    talking: Arc<AtomicUsize>,
    /// Held while a long frame is read.
    long: Mutex<()>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clients {
    /// Sends an event to all watchers. One that does not keep up is disconnected.
    pub(super) fn broadcast(&self, event: &Event) {
        let Ok(frame) = frame(&Message::Event(event.clone())) else { return };
        let frame: Arc<[u8]> = frame.into();
        locked(&self.watchers).retain(|(queue, stream)| match queue.try_send(Arc::clone(&frame)) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => {
                drop(stream.shutdown(std::net::Shutdown::Both));
                false
            }
            Err(TrySendError::Disconnected(_)) => false,
        });
    }

    /// Waits, within a limit, until all calls are answered and all watchers have every event.
    pub(super) fn drain(&self, patience: Duration) {
        locked(&self.watchers).clear();
        let until = Instant::now() + patience;
        while self.talking.load(Ordering::Acquire) > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Events go to a client from now on.
    fn watch(&self, stream: &UnixStream, output: &Arc<Mutex<UnixStream>>) -> io::Result<()> {
        let (queue, events) = sync_channel(EVENTS_MAX);
        let (output, counted) = (Arc::clone(output), Counted::new(&self.talking));
        spawn("events", move || {
            let _counted = counted;
            write_events(&events, &output);
        })?;
        locked(&self.watchers).push((queue, stream.try_clone()?));
        Ok(())
    }
}

fn write_events(events: &Receiver<Arc<[u8]>>, output: &Mutex<UnixStream>) {
    while let Ok(event) = events.recv() {
        if locked(output).write_all(&event).is_err() {
            return;
        }
    }
}

/// Takes clients on the socket that is standard input.
pub(super) fn listen(socket: UnixListener, guest: Arc<Guest>, clients: Arc<Clients>) -> io::Result<()> {
    framing::accept(socket, CLIENTS_MAX, move |client| drop(serve(client, &guest, &clients)))
}

/// Serves a client until it goes, or sends what is no frame.
fn serve(client: &Client<UnixStream>, guest: &Guest, clients: &Clients) -> io::Result<()> {
    let stream = client.stream();
    stream.set_write_timeout(Some(TIMEOUT))?;
    let output = Arc::new(Mutex::new(stream.try_clone()?));
    // A client that watches stays connected.
    let mut watching = None;
    while let Some(json) = read(stream, clients)? {
        let (_counted, _busy) = (Counted::new(&clients.talking), client.busy());
        let (message, watch) = match json {
            Err(message) => {
                send(&output, &message)?;
                return Ok(());
            }
            Ok(call) => answer(&call.json, guest),
        };
        // Events follow the answer; what happened between its status and them comes too.
        if watch && watching.is_none() {
            let whole = locked(&output);
            clients.watch(stream, &output)?;
            watching = Some(client.busy());
            drop(whole);
        }
        send(&output, &message)?;
    }
    Ok(())
}

fn answer(json: &[u8], guest: &Guest) -> (Message, bool) {
    // Each call has the client's version.
    if Hello::read(json).is_some() {
        return (Message::Hello { versions: VERSIONS.to_vec() }, false);
    }
    match Call::read(json) {
        Err((id, error)) => {
            (Message::Refused { id, kind: RefusedKind::Invalid, message: error.to_string() }, false)
        }
        Ok(Call { version: _, id, request }) => {
            let watch = matches!(request, Request::Watch);
            match guest.answer(request) {
                Ok(answer) => (Message::Answer { id, answer }, watch),
                Err(refusal) => {
                    (Message::Refused { id, kind: refusal.kind, message: refusal.message }, false)
                }
            }
        }
    }
}

fn send(output: &Mutex<UnixStream>, message: &Message) -> io::Result<()> {
    framing::send(&locked(output), message)
}

/// A frame's JSON, and what keeps other long ones away until it is done with.
struct Frame<'a> {
    json: Vec<u8>,
    _alone: Option<MutexGuard<'a, ()>>,
}

/// The next frame; `None`: the client went.
fn read<'a>(stream: &UnixStream, clients: &'a Clients) -> io::Result<Option<Result<Frame<'a>, Message>>> {
    let length = match framing::next(stream)? {
        None => return Ok(None),
        Some(Ok(length)) => length,
        Some(Err(error)) => {
            let message = error.to_string();
            return Ok(Some(Err(Message::Refused { id: 0, kind: RefusedKind::Invalid, message })));
        }
    };
    let alone = (length > SHORT).then(|| locked(&clients.long));
    Ok(Some(Ok(Frame { json: framing::json(stream, length, TIMEOUT)?, _alone: alone })))
}
