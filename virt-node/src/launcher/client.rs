//! The other end of a launcher's socket: calls and events, as whoever started the launcher uses them.
//!
//! Not here: what to ask when.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use api::launch::{Launch, LaunchError};
use api::launcher::{Answer, Call, Event, FrameError, Message, RefusedKind, Request, SOCKET};
use serde_json::value::RawValue;
use thiserror::Error;

use crate::framing;

/// How long an answer may take, and that of a start: a guest's memory may have to be found first.
const ANSWER: Duration = Duration::from_secs(300);
const START: Duration = Duration::from_secs(1800);
/// How long the rest of a message may take once it began, and the launcher to take ours.
const PATIENCE: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum CallError {
    /// The launcher says no.
    #[error("{1}")]
    Refused(RefusedKind, String),
    /// It cannot be talked to.
    #[error("no answer from the launcher")]
    Lost(#[from] io::Error),
    /// What was to be sent, or came, is no message.
    #[error("the launcher's socket")]
    Frame(#[from] FrameError),
    /// The launch document is none.
    #[error("not launched")]
    Launch(#[from] LaunchError),
}

/// A connection to a launcher.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    last: u64,
    events: VecDeque<Event>,
}

impl Client {
    /// Connects to the launcher of a run's folder.
    ///
    /// # Errors
    /// There is none.
    pub fn connect(folder: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(folder.join(SOCKET))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { stream, last: 0, events: VecDeque::new() })
    }

    /// Asks, and waits for the answer, but not for ever: five minutes, and what the guest's agent is given, or half an hour
    /// for a start. Events that come meanwhile are kept.
    ///
    /// # Errors
    /// See [`CallError`]; after [`CallError::Lost`] the connection is of no use any more.
    pub fn call(&mut self, request: Request) -> Result<Answer, CallError> {
        self.last += 1;
        let until = Instant::now() + patience(&request);
        framing::send(&self.stream, &Call::new(self.last, request))?;
        loop {
            // None would be for ever.
            let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            self.stream.set_read_timeout(Some(left))?;
            match self.message()? {
                Message::Event(event) => self.events.push_back(event),
                Message::Answer { id, answer } if id == self.last => return Ok(answer),
                Message::Refused { id, kind, message } if id == self.last || id == 0 => {
                    return Err(CallError::Refused(kind, message));
                }
                // Of a call that was given up.
                Message::Answer { .. } | Message::Refused { .. } => {}
            }
        }
    }

    /// Starts a guest.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn launch(&mut self, launch: &Launch) -> Result<Answer, CallError> {
        let json = String::from_utf8(launch.write()?).map_err(io::Error::other)?;
        let document = RawValue::from_string(json).map_err(io::Error::other)?;
        self.call(Request::Launch(document))
    }

    /// The next event, for which [`Request::Watch`] was called; `None`: none came in time.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn event(&mut self, patience: Duration) -> Result<Option<Event>, CallError> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        self.stream.set_read_timeout(Some(patience))?;
        match self.message() {
            Ok(Message::Event(event)) => Ok(Some(event)),
            Ok(Message::Answer { .. } | Message::Refused { .. }) => Ok(None),
            Err(CallError::Lost(error))
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn message(&mut self) -> Result<Message, CallError> {
        let length =
            framing::next(&self.stream)?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))??;
        let json = framing::json(&self.stream, length, PATIENCE)?;
        Ok(serde_json::from_slice(&json).map_err(io::Error::from)?)
    }
}

/// How long the answer may take.
fn patience(request: &Request) -> Duration {
    if let Request::Agent { timeout_seconds, .. } = request {
        return ANSWER + Duration::from_secs((*timeout_seconds).into());
    }
    if matches!(request, Request::Launch(_)) { START } else { ANSWER }
}
