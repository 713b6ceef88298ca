//! The daemon's socket: root's, and the group's of [`super::members`]. Each client has a thread; the controller answers its
//! requests. A stream takes the connection over: bytes go both ways through buffers of a fixed size, so that a slow reader
//! stops its writer, and no other stream.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::controller::{Message, Reply};
use super::members::{self, Peer};
use crate::error::{Error, Kind};
use crate::protocol::{Answer, Call, RefusedKind, Request, VERSION};
use guest::clients::Client;
use guest::framing;

/// Most clients at once, streams included. The one idle longest is disconnected for the next.
const CLIENTS_MAX: usize = 128;
/// How long a call may take to come, and to be answered.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of a stream on their way.
const BUFFER: usize = 16 << 10;

/// The holder of each stream, by object.
type Holders = Arc<Mutex<BTreeMap<String, Arc<UnixStream>>>>;

/// That a client has a stream, or asks for it, while this is there.
struct StreamHolder {
    holders: Holders,
    name: String,
    client: Arc<UnixStream>,
}

impl StreamHolder {
    /// Disconnects the previous holder of a stream, and records the new one.
    fn take_over(holders: &Holders, name: String, client: &UnixStream) -> io::Result<Self> {
        let client = Arc::new(client.try_clone()?);
        let before = {
            let mut holders = holders.lock().unwrap_or_else(PoisonError::into_inner);
            holders.insert(name.clone(), Arc::clone(&client))
        };
        if let Some(before) = before {
            drop(before.shutdown(Shutdown::Both));
        }
        Ok(Self { holders: Arc::clone(holders), name, client })
    }
}

impl Drop for StreamHolder {
    fn drop(&mut self) {
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if holders.get(&self.name).is_some_and(|client| Arc::ptr_eq(client, &self.client)) {
            holders.remove(&self.name);
        }
    }
}

/// Listens.
pub(super) fn listen(path: &Path, controller: Sender<Message>) -> Result<(), Error> {
    let failed = |error| Error::with(Kind::System, format!("cannot listen on {}", path.display()), error);
    // Of a daemon that is gone: the state folder is ours.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        Ok(()) | Err(_) => {}
    }
    // It gets its name when its rights are right.
    let new = path.with_extension("new");
    drop(std::fs::remove_file(&new));
    let listener = UnixListener::bind(&new).map_err(failed)?;
    let group = members::group();
    std::os::unix::fs::chown(&new, Some(0), Some(group.unwrap_or(0))).map_err(failed)?;
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)?;
    let holders = Holders::default();
    let serve = move |client: &Client<UnixStream>| drop(serve(client, &controller, &holders));
    framing::accept(listener, CLIENTS_MAX, serve).map_err(failed)
}

fn refused(kind: RefusedKind, message: impl Into<String>) -> Answer {
    Answer::Refused { kind, message: message.into() }
}

/// Serves a client until it goes.
fn serve(client: &Client<UnixStream>, controller: &Sender<Message>, holders: &Holders) -> io::Result<()> {
    let stream = client.stream();
    stream.set_write_timeout(Some(TIMEOUT))?;
    let peer = Peer::of(stream);
    while let Some(length) = framing::next(stream)? {
        let length = length.map_err(|error| (RefusedKind::Invalid, error.to_string()));
        let length = match length.and_then(|length| peer.admit_length(length)) {
            Ok(length) => length,
            Err((kind, text)) => return framing::send(stream, &refused(kind, text)),
        };
        let json = framing::json(stream, length, TIMEOUT)?;
        let _busy = client.busy();
        let request = match read(&json) {
            Ok(request) => request,
            Err(problem) => {
                framing::send(stream, &refused(RefusedKind::Invalid, problem))?;
                continue;
            }
        };
        if let Err((kind, text)) = peer.admit(&request) {
            framing::send(stream, &refused(kind, text))?;
            continue;
        }
        let holder = match &request {
            Request::Stream { namespace, name, stream } => Some(format!("{namespace}/{name} {stream:?}")),
            Request::Apply { .. }
            | Request::List
            | Request::Rows
            | Request::Get(_)
            | Request::Events { .. }
            | Request::Power { .. }
            | Request::AddVolume { .. }
            | Request::RemoveVolume { .. }
            | Request::Upload { .. }
            | Request::Delete { .. } => None,
        };
        // QEMU serves one client of a port: the one before is gone when the next one comes.
        let _held = holder.map(|holder| StreamHolder::take_over(holders, holder, stream)).transpose()?;
        let (sender, replies) = channel();
        let asked = controller.send(Message::Call(Box::new(request), sender)).is_ok();
        match replies.recv_timeout(TIMEOUT) {
            Ok(Reply::Answer(answer)) => framing::send(stream, &answer)?,
            Ok(Reply::Stream(guest)) => {
                framing::send(stream, &Answer::Stream)?;
                return relay(stream, &guest);
            }
            Err(_) => {
                let text = if asked { "no answer in time" } else { "the daemon is ending" };
                framing::send(stream, &refused(RefusedKind::Failed, text))?;
            }
        }
    }
    Ok(())
}

/// A call: its version first, then its form.
fn read(json: &[u8]) -> Result<Request, String> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u64,
    }
    let invalid = |error: serde_json::Error| {
        format!("invalid request: {error}; client and daemon must be of one release")
    };
    let Versioned { version } = serde_json::from_slice(json).map_err(invalid)?;
    if version != u64::from(VERSION) {
        return Err(format!(
            "a call of version {version}; this daemon speaks version {VERSION}: both must be of one release"
        ));
    }
    let call: Call = serde_json::from_slice(json).map_err(invalid)?;
    Ok(call.request)
}

/// Moves bytes both ways until one end goes.
fn relay(client: &UnixStream, guest: &UnixStream) -> io::Result<()> {
    client.set_write_timeout(None)?;
    let (from, to) = (guest.try_clone()?, client.try_clone()?);
    framing::spawn("relay", move || {
        pour(&from, &to);
    })?;
    pour(client, guest);
    Ok(())
}

fn pour(mut from: &UnixStream, mut to: &UnixStream) {
    let mut buffer = [0; BUFFER];
    loop {
        match from.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) | Err(_) => break,
            Ok(count) => {
                if to.write_all(&buffer[..count]).is_err() {
                    break;
                }
            }
        }
    }
    for end in [from, to] {
        drop(end.shutdown(Shutdown::Both));
    }
}
