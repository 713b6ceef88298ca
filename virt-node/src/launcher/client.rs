//! The other end of a launcher's socket: calls and events, as whoever started the launcher uses them.
//!
//! Not here: what to ask when.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use api::launch::{Launch, LaunchError};
use api::launcher::{Answer, Call, Event, FrameError, Message, RefusedKind, Request, SOCKET};
use serde_json::value::RawValue;
use thiserror::Error;

use crate::framing;

/// How long the rest of a message may take once it began.
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
        Ok(Self { stream, last: 0, events: VecDeque::new() })
    }

    /// Asks, and waits for the answer; events that come meanwhile are kept.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call(&mut self, request: Request) -> Result<Answer, CallError> {
        self.last += 1;
        framing::send(&self.stream, &Call::new(self.last, request))?;
        loop {
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
        let message = self.message();
        self.stream.set_read_timeout(None)?;
        match message {
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
