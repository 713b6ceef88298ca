//! The other end of a launcher's socket: calls and events, for the starter of the launcher.
//!
//! Not here: what to ask when.

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use api::launch::{Launch, LaunchError};
use api::launcher::{Answer, Call, Event, FrameError, Hello, Message, RefusedKind, Request, SOCKET, agreed};
use serde_json::value::RawValue;
use thiserror::Error;

use crate::framing;

/// How long the rest of a message may take once it began, and the launcher to take ours.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Most events that are kept while an answer is waited for.
const EVENTS_MAX: usize = 1024;

/// Why there is no answer.
#[derive(Debug, Error)]
pub enum CallError {
    /// The launcher refused the request.
    #[error("{1}")]
    Refused(RefusedKind, String),
    /// It cannot be talked to.
    #[error("the launcher does not answer on its socket")]
    Lost(#[from] io::Error),
    /// The message to send, or the received one, is invalid.
    #[error("cannot talk to the launcher")]
    Frame(#[from] FrameError),
    /// The launch document is none.
    #[error("the launch document is invalid")]
    Launch(#[from] LaunchError),
}

/// A connection to a launcher.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    /// The version that both sides speak, once it is agreed on.
    version: Option<u32>,
    last: u64,
    events: VecDeque<Event>,
}

impl Client {
    /// Connects to the launcher of a run's folder.
    ///
    /// # Errors
    /// There is none.
    pub fn connect(folder: &Path) -> io::Result<Self> {
        Self::over(UnixStream::connect(folder.join(SOCKET))?)
    }

    /// A client on a connection that is there: of a socket that was opened beneath a directory.
    ///
    /// # Errors
    /// The socket takes no timeout.
    pub fn over(stream: UnixStream) -> io::Result<Self> {
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { stream, version: None, last: 0, events: VecDeque::new() })
    }

    /// Sends a request, and waits for the answer within the request's limit ([`Request::answer_max`]). Events that arrive in
    /// between are kept.
    ///
    /// # Errors
    /// See [`CallError`]; after [`CallError::Lost`] the connection is of no use any more.
    pub fn call(&mut self, request: Request) -> Result<Answer, CallError> {
        let timeout = request.answer_max();
        self.call_within(request, timeout)
    }

    /// The same with a time limit of the caller's. A launcher that sends events without an end is not waited for longer.
    ///
    /// # Errors
    /// See [`Client::call`].
    pub fn call_within(&mut self, request: Request, timeout: Duration) -> Result<Answer, CallError> {
        let until = Instant::now() + timeout;
        let version = self.version(until)?;
        self.last += 1;
        framing::send(&self.stream, &Call::new(version, self.last, request)?)?;
        loop {
            match self.next(until)? {
                Message::Event(event) => self.events.push_back(event),
                Message::Answer { id, answer } if id == self.last => return Ok(answer),
                Message::Refused { id, kind, message } if id == self.last || id == 0 => {
                    return Err(CallError::Refused(kind, message));
                }
                // Of a call that was given up.
                Message::Hello { .. } | Message::Answer { .. } | Message::Refused { .. } => {}
            }
        }
    }

    /// The version that both sides speak, agreed on before the first call.
    fn version(&mut self, until: Instant) -> Result<u32, CallError> {
        if let Some(version) = self.version {
            return Ok(version);
        }
        framing::send(&self.stream, &Hello::new())?;
        loop {
            if let Some(version) = agreed(&self.next(until)?) {
                return Ok(*self.version.insert(version?));
            }
        }
    }

    /// The next message, which must come before `until`.
    fn next(&mut self, until: Instant) -> Result<Message, CallError> {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.events.len() > EVENTS_MAX {
                return Err(io::Error::from(io::ErrorKind::TimedOut).into());
            }
            self.stream.set_read_timeout(Some(left))?;
            if let Some(message) = self.message(left)? {
                return Ok(message);
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
        match self.message(TIMEOUT) {
            Ok(Some(Message::Event(event))) => Ok(Some(event)),
            Ok(Some(Message::Hello { .. } | Message::Answer { .. } | Message::Refused { .. }) | None) => {
                Ok(None)
            }
            Err(CallError::Lost(error))
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn message(&mut self, left: Duration) -> Result<Option<Message>, CallError> {
        let length =
            framing::next(&self.stream)?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))??;
        let json = framing::json(&self.stream, length, TIMEOUT.min(left))?;
        Ok(Message::read(&json)?)
    }
}

#[cfg(test)]
mod tests {
    use std::thread::{JoinHandle, spawn};

    use api::launcher::State;

    use super::*;

    const STATUS: &str =
        r#"{"answer":{"id":1,"answer":{"status":{"state":"running","reason":null,"uid":null,"exit":null}}}}"#;

    /// A launcher of another release: it answers each frame by the texts of `answers` in turn, and returns the frames.
    fn launcher(answers: &'static [&'static [&'static str]]) -> (Client, JoinHandle<Vec<String>>) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let serve = spawn(move || {
            let mut heard = Vec::new();
            for texts in answers {
                let Ok(Some(Ok(length))) = framing::next(&theirs) else { break };
                let json = framing::json(&theirs, length, TIMEOUT).unwrap();
                heard.push(String::from_utf8(json).unwrap());
                for text in *texts {
                    framing::send(&theirs, &RawValue::from_string((*text).to_owned()).unwrap()).unwrap();
                }
            }
            heard
        });
        (Client::over(ours).unwrap(), serve)
    }

    const REFUSED: &str =
        r#"{"refused":{"id":0,"kind":"invalid","message":"no message: missing field `version`"}}"#;

    #[test]
    fn a_launcher_from_before_version_agreement_is_spoken_to_in_version_1() {
        let (mut client, serve) = launcher(&[&[REFUSED], &[STATUS]]);
        let Ok(Answer::Status(status)) = client.call(Request::Status) else { panic!() };
        assert_eq!(status.state, State::Running);
        let facts = client.call(Request::Facts { paths: Vec::new(), kvm_works: None }).unwrap_err();
        let CallError::Frame(error) = facts else { panic!("{facts:?}") };
        assert!(error.to_string().contains("version 1, which has no request \"facts\""), "{error}");
        let heard = serve.join().unwrap();
        assert_eq!(heard, [r#"{"versions":[1,2]}"#, r#"{"version":1,"id":1,"request":"status"}"#]);
    }

    #[test]
    fn a_launcher_of_the_next_version_is_understood_as_far_as_it_is_known() {
        const NEWER: &str = r#"{"answer":{"id":1,"more":1,"answer":{"status":{"state":"migrating","reason":"post","uid":"u",
            "exit":null,"more":{}}}}}"#;
        let (mut client, serve) = launcher(&[
            &[r#"{"news":{"x":1}}"#, r#"{"hello":{"versions":[2,3],"more":1}}"#],
            &[r#"{"event":{"melted":{"core":1}}}"#, r#"{"event":"rebooted"}"#, NEWER],
        ]);
        let Ok(Answer::Status(status)) = client.call(Request::Status) else { panic!() };
        assert_eq!(status.state, State::Running, "there is a guest");
        assert_eq!(client.event(Duration::from_secs(1)).unwrap(), Some(Event::Rebooted));
        assert_eq!(serve.join().unwrap()[1], r#"{"version":2,"id":1,"request":"status"}"#);
    }

    #[test]
    fn a_launcher_without_a_common_version_gives_an_error_with_advice() {
        let (mut client, _serve) = launcher(&[&[r#"{"hello":{"versions":[3,4]}}"#]]);
        let error = client.call(Request::Status).unwrap_err();
        let CallError::Frame(error) = error else { panic!("{error:?}") };
        assert!(error.to_string().contains("upgrade the older one"), "{error}");
    }

    #[test]
    fn a_launcher_that_sends_events_without_an_end_is_not_waited_for() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let flood = spawn(move || while framing::send(&theirs, &Message::Event(Event::Rebooted)).is_ok() {});
        let mut client = Client::over(ours).unwrap();
        client.version = Some(2);
        client.call_within(Request::Status, Duration::from_secs(20)).unwrap_err();
        assert!(client.events.len() <= EVENTS_MAX + 1);
        drop(client);
        flood.join().unwrap();
    }
}
