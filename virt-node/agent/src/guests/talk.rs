//! A conversation with a launcher over its socket: calls, and the events of one that is watched.
//!
//! Not here: which process is at the other end ([`crate::pods::launcher`]), what to ask when.

use std::time::Duration;

use api::launch::Launch;
use api::launcher::{Answer, Call, Event, Hello, Message, Request, Stats, agreed, frame, length};
use serde_json::value::RawValue;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::error::{Error, Kind, Result};
use crate::pods::PodDirectory;
use crate::pods::launcher::{self, Connection};
use crate::pods::process::Process;

/// How long the launcher may take to read a call, and to send the rest of a message that it began.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(30);
/// The guest agent's own time for a command, in seconds.
const AGENT_SECONDS: u32 = 10;

/// A conversation.
#[derive(Debug)]
pub(crate) struct Talk {
    stream: UnixStream,
    /// The version that both sides speak, once it is agreed on.
    version: Option<u32>,
    last: u64,
    /// Bytes of a message that is not complete: a wait for an event may be given up in the middle of one.
    held: Vec<u8>,
}

fn lost(error: std::io::Error) -> Error {
    Error::with(Kind::Launcher, "the connection to the launcher broke", error)
}

impl Talk {
    /// Connects to a pod's launcher, which is checked. Gives its first process, too.
    ///
    /// # Errors
    /// As [`launcher::connect`].
    pub(crate) async fn open(pod: &std::sync::Arc<PodDirectory>) -> Result<(Self, Process)> {
        let pod = std::sync::Arc::clone(pod);
        let connected = tokio::task::spawn_blocking(move || launcher::connect(&pod)).await;
        let Connection { stream, process } = connected.unwrap_or_else(|_| {
            Err(Error::new(
                Kind::System,
                "a connection to a launcher was aborted: the thread panicked; see the agent's log",
            ))
        })?;
        stream.set_nonblocking(true).map_err(lost)?;
        Ok((
            Self {
                stream: UnixStream::from_std(stream).map_err(lost)?,
                version: None,
                last: 0,
                held: Vec::new(),
            },
            process,
        ))
    }

    /// Sends a request, and waits for the answer. Events that come before it are dropped: the next status includes them.
    ///
    /// # Errors
    /// [`Kind::Content`]: the launcher refuses; [`Kind::Launcher`]: it does not answer.
    pub(crate) async fn call(&mut self, request: Request) -> Result<Answer> {
        let limit = request.answer_max();
        let answered = async {
            let version = self.version().await?;
            self.last += 1;
            let call = Call::new(version, self.last, request).and_then(|call| frame(&call));
            let call =
                call.map_err(|error| Error::with(Kind::Content, "cannot use the launcher's socket", error))?;
            self.send(&call).await?;
            loop {
                match self.message().await? {
                    Message::Answer { id, answer } if id == self.last => return Ok(answer),
                    Message::Refused { id, message, .. } if id == self.last || id == 0 => {
                        return Err(Error::new(Kind::Content, format!("the launcher refuses: {message}")));
                    }
                    Message::Hello { .. }
                    | Message::Answer { .. }
                    | Message::Refused { .. }
                    | Message::Event(_) => {}
                }
            }
        };
        timeout(limit, answered).await.unwrap_or_else(|_| Err(late()))
    }

    async fn send(&mut self, frame: &[u8]) -> Result<()> {
        let sent = timeout(TRANSFER_TIMEOUT, self.stream.write_all(frame)).await;
        sent.map_err(|_| late())?.map_err(lost)
    }

    /// The version that both sides speak, agreed on before the first call.
    async fn version(&mut self) -> Result<u32> {
        if let Some(version) = self.version {
            return Ok(version);
        }
        let wrong = |error| {
            Error::with(
                Kind::Launcher,
                "the agent and the launcher have no protocol version in common",
                error,
            )
        };
        let hello = frame(&Hello::new()).map_err(wrong)?;
        self.send(&hello).await?;
        loop {
            if let Some(version) = agreed(&self.message().await?) {
                return Ok(*self.version.insert(version.map_err(wrong)?));
            }
        }
    }

    /// Starts a guest.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn launch(&mut self, launch: &Launch) -> Result<Answer> {
        let wrong = |error: ::error::Source| {
            Error::with(Kind::Content, "the guest's launch document is invalid", error)
        };
        let json = launch.write().map_err(|error| wrong(error.into()))?;
        let text = String::from_utf8(json).map_err(|error| wrong(error.into()))?;
        let document = RawValue::from_string(text).map_err(|error| wrong(error.into()))?;
        self.call(Request::Launch(document)).await
    }

    /// The answer of the guest's agent to a command.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn agent(&mut self, command: &str) -> Result<String> {
        self.agent_within(command, AGENT_SECONDS).await
    }

    /// The same, of an agent that has so many seconds.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn agent_within(&mut self, command: &str, timeout_seconds: u32) -> Result<String> {
        let request = Request::Agent { command: command.to_owned(), timeout_seconds };
        let Answer::Agent(text) = self.call(request).await? else { return Err(unexpected()) };
        Ok(text)
    }

    /// Counters of the guest.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub(crate) async fn stats(&mut self) -> Result<Stats> {
        let Answer::Stats(stats) = self.call(Request::Stats).await? else { return Err(unexpected()) };
        Ok(stats)
    }

    /// The next event, for which [`Request::Watch`] was called; `None`: none came in time.
    ///
    /// # Errors
    /// The launcher's worker is gone, or sends what is not a message.
    pub(crate) async fn event(&mut self, patience: Duration) -> Result<Option<Event>> {
        match timeout(patience, self.message()).await {
            Err(_) => Ok(None),
            Ok(Ok(Message::Event(event))) => Ok(Some(event)),
            Ok(Ok(Message::Hello { .. } | Message::Answer { .. } | Message::Refused { .. })) => Ok(None),
            Ok(Err(error)) => Err(error),
        }
    }

    /// The next message. Dropped in the middle, it is read to its end by the next call.
    async fn message(&mut self) -> Result<Message> {
        loop {
            if let Some(head) = self.held.first_chunk::<4>() {
                let size = length(*head).map_err(|error| {
                    Error::with(Kind::Launcher, "the launcher sent an invalid message", error)
                })?;
                if self.held.len() >= size + 4 {
                    let message = Message::read(&self.held[4..size + 4]);
                    self.held.drain(..size + 4);
                    let message = message.map_err(|error| {
                        Error::with(Kind::Launcher, "the launcher sent an invalid message", error)
                    })?;
                    match message {
                        Some(message) => return Ok(message),
                        // Of a later release.
                        None => continue,
                    }
                }
            }
            let mut chunk = [0; 4096];
            let count = self.stream.read(&mut chunk).await.map_err(lost)?;
            if count == 0 {
                return Err(lost(std::io::ErrorKind::UnexpectedEof.into()));
            }
            self.held.extend_from_slice(&chunk[..count]);
        }
    }
}

fn late() -> Error {
    Error::new(Kind::Launcher, "the launcher does not answer in time")
}

pub(crate) fn unexpected() -> Error {
    Error::new(Kind::Launcher, "the launcher sent an unexpected answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Talk {
        /// A conversation with an agreed version, and the launcher's end of its connection.
        pub(crate) fn pair() -> (Self, UnixStream) {
            let (ours, theirs) = UnixStream::pair().unwrap();
            (Self { stream: ours, version: Some(2), last: 0, held: Vec::new() }, theirs)
        }
    }

    #[tokio::test]
    async fn the_version_is_agreed_on_before_the_first_call() {
        let (mut talk, mut launcher) = Talk::pair();
        talk.version = None;
        let hello = frame(&Message::Hello { versions: vec![2, 3] }).unwrap();
        let answer = frame(&Message::Answer { id: 1, answer: Answer::Done }).unwrap();
        launcher.write_all(&[hello, answer].concat()).await.unwrap();
        assert_eq!(talk.call(Request::Pause).await.unwrap(), Answer::Done);
        let mut sent = vec![0; 1024];
        let count = launcher.read(&mut sent).await.unwrap();
        let sent = String::from_utf8_lossy(&sent[..count]).into_owned();
        assert!(sent.contains("{\"versions\":[1,2]}") && sent.contains("\"version\":2"), "{sent}");
    }

    #[tokio::test]
    async fn an_answer_is_found_among_events() {
        let (mut talk, mut launcher) = Talk::pair();
        let event = frame(&Message::Event(Event::Rebooted)).unwrap();
        let answer = frame(&Message::Answer { id: 1, answer: Answer::Done }).unwrap();
        launcher.write_all(&[event, answer].concat()).await.unwrap();
        assert_eq!(talk.call(Request::Pause).await.unwrap(), Answer::Done);
    }

    #[tokio::test]
    async fn an_event_that_comes_in_pieces_is_not_lost_by_a_wait_that_ends() {
        let (mut talk, mut launcher) = Talk::pair();
        let event = frame(&Message::Event(Event::Rebooted)).unwrap();
        launcher.write_all(&event[..7]).await.unwrap();
        assert_eq!(talk.event(Duration::from_millis(20)).await.unwrap(), None);
        launcher.write_all(&event[7..]).await.unwrap();
        assert_eq!(talk.event(Duration::from_secs(5)).await.unwrap(), Some(Event::Rebooted));
        drop(launcher);
        assert_eq!(talk.event(Duration::from_secs(5)).await.unwrap_err().kind(), Kind::Launcher);
    }

    #[tokio::test]
    async fn a_refusal_and_an_invalid_answer_are_different_errors() {
        let (mut talk, mut launcher) = Talk::pair();
        let refused =
            Message::Refused { id: 1, kind: api::launcher::RefusedKind::State, message: "no guest".into() };
        launcher.write_all(&frame(&refused).unwrap()).await.unwrap();
        assert_eq!(talk.call(Request::Pause).await.unwrap_err().kind(), Kind::Content);
        launcher.write_all(&[0xff; 8]).await.unwrap();
        assert_eq!(talk.event(Duration::from_secs(5)).await.unwrap_err().kind(), Kind::Launcher);
    }
}
