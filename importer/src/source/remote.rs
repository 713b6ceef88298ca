//! One object on a server, read as [`disk_image::Source`]: what http, S3 and GCS have in common.
//!
//! A protocol defines how to ask for bytes ([`Remote`]); this module decides when to ask again, from where, and whether the
//! answer is still the same object. It never hands on a byte that it cannot place. Not here: URLs, headers, signatures.
//!
//! ```text
//!            ┌────────── get(from own offset) ◄───── wait ◄──┐
//!  read ──►  │                 │ part                        │ broke, busy, cut short
//!            │   placed? same mark, same length? ──no──► Changed, or the whole again and skip
//!            └──────► chunk ──► caller                       │
//!                       └── end of part before its end ──────┘
//! ```
//!
//! `object` is what was opened, `reader` reads it. Each reader has a lane of its own ([`Net::lane`]) with one connection
//! on it; lanes are kept for the next reader.

use std::collections::hash_map::RandomState;
use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, Hasher};
use std::pin::Pin;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use tokio::time::timeout;

use super::blocking::Net;
use super::retry::{self, Cause, Policy, Spell, Verdict, Why};
use super::tls::{Proxies, Trust};
use crate::error::{Error, Kind};

mod object;
mod reader;
mod shared;

pub use object::RemoteSource;

/// The object is no longer the one of the first bytes. The data imported so far is of no use; starting over gives the new
/// object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    what: String,
}

impl Changed {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into() }
    }

    /// The one in `error` or anywhere below it.
    pub fn find<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a Self> {
        crate::error::below(error).find_map(|error| error.downcast_ref::<Self>())
    }
}

impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the source changed while it was read: {}", self.what)
    }
}

impl StdError for Changed {}

/// How long to wait for an answer to end that is of no more use.
const TO_END: Duration = Duration::from_secs(5);

/// How a server is reached: trusted authorities, proxy, retries, connections.
#[derive(Clone, Debug)]
pub struct Reach {
    /// Trusted authorities.
    pub trust: Trust,
    /// Which way out.
    pub proxies: Proxies,
    /// Silence on an open connection, or while an answer is owed, that is an error.
    pub stall: Duration,
    /// When to try again.
    pub retry: Policy,
    /// Most connections at once; one at least is used.
    pub connections: usize,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            trust: Trust::default(),
            proxies: Proxies::default(),
            stall: Duration::from_secs(600),
            retry: Policy::default(),
            connections: 8,
        }
    }
}

/// Marks that distinguish versions of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) etag: Option<String>,
    pub(crate) modified: Option<String>,
}

impl Mark {
    /// The entity tag if it stands for the very bytes.
    pub(crate) fn strong(&self) -> Option<&str> {
        self.etag.as_deref().filter(|tag| !tag.starts_with("W/"))
    }

    /// The mark by which `self`, seen now, differs from the object first marked `first`. A partial answer may leave its
    /// marks out (RFC 9110, 15.3.7); a whole one may not lose any.
    fn differs(&self, first: &Self, whole: bool) -> Option<String> {
        match (first.strong(), self.strong()) {
            (Some(old), Some(new)) if old != new => return Some(format!("its ETag was {old} and is {new}")),
            (Some(_), Some(_)) => return None,
            (Some(old), None) if whole => return Some(format!("its ETag was {old} and is gone")),
            (Some(_) | None, None) | (None, Some(_)) => {}
        }
        match (&first.modified, &self.modified) {
            (Some(old), Some(new)) if old != new => Some(format!("Last-Modified was {old} and is {new}")),
            (Some(old), None) if whole && first.strong().is_none() => {
                Some(format!("Last-Modified was {old} and is gone"))
            }
            (Some(_) | None, Some(_) | None) => None,
        }
    }
}

/// A request for bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    /// The first one.
    pub(crate) from: u64,
    /// The one after the last, if there is one.
    pub(crate) end: Option<u64>,
    /// Ask for just these; otherwise for the whole object.
    pub(crate) ranges: bool,
}

pub(crate) type BoxError = Box<dyn StdError + Send + Sync>;
pub(crate) type Body = Pin<Box<dyn Stream<Item = Result<Bytes, BoxError>> + Send>>;

/// An answer: bytes from `start` on.
pub(crate) struct Part {
    /// Offset in the object of the body's first byte.
    pub(crate) start: u64,
    /// Offset after the body's last byte, if declared.
    pub(crate) end: Option<u64>,
    /// The object's whole length, if declared.
    pub(crate) total: Option<u64>,
    /// Whether this is the whole object rather than a range.
    pub(crate) whole: bool,
    pub(crate) mark: Mark,
    pub(crate) body: Body,
}

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request failed.
    Failed(Cause, Error),
    /// The server does not do ranges after all: ask for the whole.
    NoRanges(String),
    /// The object is another one now.
    Changed(Changed),
}

/// A protocol.
pub(crate) trait Remote: Send + Sync + 'static {
    /// A client; each lane has one, used by one thread at a time.
    type Client: Send;

    /// The object's address without anything secret.
    fn name(&self) -> &str;

    /// The address's query, which may select another object, and may be secret.
    fn query(&self) -> Option<&str> {
        None
    }

    /// Learns the marks of the object that was opened, which later requests may be conditional on.
    fn remember(&self, mark: &Mark);

    /// A client for a new lane.
    fn client(&self) -> Result<Self::Client, Error>;

    /// Asks once, without trying again.
    fn get(&self, client: &Self::Client, want: Want) -> impl Future<Output = Result<Part, Failure>>;
}

/// A runtime and the client that lives on it. The client goes first.
pub(crate) struct Lane<C> {
    client: C,
    net: Net,
}

impl<C> Lane<C> {
    pub(crate) fn new<R: Remote<Client = C>>(net: &Net, remote: &R) -> Result<Self, Error> {
        let net = net.lane().map_err(|e| Error::connect("cannot set up a connection", e))?;
        Ok(Self { client: remote.client()?, net })
    }

    pub(crate) fn client(&self) -> &C {
        &self.client
    }

    pub(crate) fn block_on<F: Future>(&self, future: F) -> Result<F::Output, Error> {
        self.net.block_on(future).map_err(|e| Error::with(Kind::Stopped, "stopped on request", e))
    }
}

/// The failures since the last new byte.
pub(crate) struct Attempts {
    policy: Policy,
    spell: Spell,
    since: Option<Instant>,
}

impl Attempts {
    pub(crate) fn new(policy: &Policy, begun: bool) -> Self {
        Self { policy: policy.clone(), spell: Spell { begun, ..Spell::default() }, since: None }
    }

    pub(crate) fn progress(&mut self) {
        self.spell = Spell { begun: true, ..Spell::default() };
        self.since = None;
    }

    pub(crate) fn failed(&mut self, cause: Cause) -> Verdict {
        let since = *self.since.get_or_insert_with(Instant::now);
        self.spell.elapsed = since.elapsed();
        self.spell.failures = self.spell.failures.saturating_add(1);
        if cause == Cause::Truncated {
            self.spell.truncations = self.spell.truncations.saturating_add(1);
        }
        retry::decide(&self.policy, cause, self.spell, jitter())
    }

    /// Events since the last new byte.
    pub(crate) fn spell(&self) -> Spell {
        self.spell
    }
}

/// From 0 to 1, good enough to spread clients in time.
fn jitter() -> f64 {
    let bits = RandomState::new().build_hasher().finish();
    u32::try_from(bits >> 32).map_or(0.5, |high| f64::from(high) / f64::from(u32::MAX))
}

/// The first answer, asked for as often as the policy allows. Asks for a single byte, to learn whether that works.
pub(crate) fn first<R: Remote>(lane: &Lane<R::Client>, remote: &R, reach: &Reach) -> Result<Part, Error> {
    first_of(lane, remote, reach, Want { from: 0, end: Some(1), ranges: true })
}

/// The first answer to `want`, which may end up as one for the whole object.
pub(crate) fn first_of<R: Remote>(
    lane: &Lane<R::Client>,
    remote: &R,
    reach: &Reach,
    mut want: Want,
) -> Result<Part, Error> {
    let mut attempts = Attempts::new(&reach.retry, false);
    let outcome: Result<Part, Error> = lane.block_on(async {
        loop {
            let Ok(answer) = timeout(reach.stall, remote.get(&lane.client, want)).await else {
                return Err(stalled(remote.name(), 0, reach.stall));
            };
            let (cause, error) = match answer {
                Ok(mut part) => {
                    // The one byte is of no use, but its answer must end for the connection to be used again.
                    while !part.whole
                        && let Ok(Some(Ok(_))) = timeout(TO_END, part.body.next()).await
                    {}
                    return Ok(part);
                }
                Err(Failure::NoRanges(_)) if want.ranges => {
                    want = Want { from: 0, end: None, ranges: false };
                    continue;
                }
                Err(Failure::NoRanges(what)) => {
                    (Cause::Server, Error::new(Kind::Connect, format!("{}: {what}", remote.name())))
                }
                Err(Failure::Changed(changed)) => {
                    (Cause::Server, Error::connect("cannot open the source", changed))
                }
                Err(Failure::Failed(cause, error)) => (cause, error),
            };
            // A wrong name does not become right by waiting; one that cannot be looked up now may.
            let cause = if no_such_host(&error) { Cause::Final } else { cause };
            match attempts.failed(cause) {
                Verdict::Wait(wait) => {
                    tell_retry(remote.name(), attempts.spell.failures, &error, wait);
                    tokio::time::sleep(wait).await;
                }
                Verdict::GiveUp(Why::Final) => return Err(error),
                Verdict::GiveUp(Why::Patience | Why::Truncated) => {
                    let tries = attempts.spell.failures;
                    let seconds = attempts.spell.elapsed.as_secs();
                    let what = format!("cannot open {}: {tries} tries in {seconds} s", remote.name());
                    return Err(Error::connect(what, error));
                }
            }
        }
    })?;
    outcome
}

/// Logs that the source could not be opened: the first time as a warning, which is shown at once.
pub(crate) fn tell_retry(source: &str, failures: u32, error: &(dyn StdError + 'static), wait: Duration) {
    let error = Chain(error);
    if failures <= 1 {
        tracing::warn!(source, %error, ?wait, "cannot read the source; retrying");
    } else {
        tracing::info!(source, %error, ?wait, "cannot read the source; retrying");
    }
}

/// Whether the resolver knows that there is no such name, as opposed to having no answer now.
pub(crate) fn no_such_host(error: &(dyn StdError + 'static)) -> bool {
    const KNOWN: [&str; 2] = ["Name or service not known", "No address associated with hostname"];
    crate::error::below(error).any(|error| {
        let text = error.to_string();
        KNOWN.iter().any(|known| text.ends_with(known))
    })
}

fn stalled(name: &str, at: u64, stall: Duration) -> Error {
    Error::new(
        Kind::Process,
        format!("{name} stalled at byte {at}: the server sent nothing for {} s", stall.as_secs_f32()),
    )
}

/// An error with everything below it, for a log line.
pub(crate) struct Chain<'a>(pub(crate) &'a (dyn StdError + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut next = self.0.source();
        while let Some(error) = next {
            write!(f, ": {error}")?;
            next = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn mark(etag: &str, modified: &str) -> Mark {
        let given = |s: &str| (!s.is_empty()).then(|| s.to_owned());
        Mark { etag: given(etag), modified: given(modified) }
    }

    #[test]
    fn marks() {
        #[rustfmt::skip]
        let table = [
            // first, now, whole, differs
            (mark("", ""),           mark("", ""),           true,  false),
            (mark("\"a\"", ""),      mark("\"a\"", ""),      true,  false),
            (mark("\"a\"", ""),      mark("\"b\"", ""),      false, true),
            (mark("\"a\"", "mon"),   mark("\"a\"", "tue"),   true,  false),
            (mark("\"a\"", ""),      mark("", ""),           false, false),
            (mark("\"a\"", ""),      mark("", ""),           true,  true),
            (mark("W/\"a\"", "mon"), mark("W/\"b\"", "mon"), true,  false),
            (mark("W/\"a\"", "mon"), mark("W/\"a\"", "tue"), true,  true),
            (mark("", "mon"),        mark("", "tue"),        false, true),
            (mark("", "mon"),        mark("", ""),           true,  true),
            (mark("", "mon"),        mark("", ""),           false, false),
            (mark("", ""),           mark("\"n\"", "mon"),   true,  false),
        ];
        for (first, now, whole, want) in table {
            assert_eq!(now.differs(&first, whole).is_some(), want, "{first:?} {now:?} {whole}");
        }
    }

    #[test]
    fn a_change_is_found_below_other_errors() {
        let changed = || Changed::new("x");
        assert!(Changed::find(&changed()).is_some());
        let io = io::Error::other(changed());
        assert!(Changed::find(&io).is_some());
        let wrapped = disk_image::Error::from_source("reading", io::Error::other(changed()));
        assert!(Changed::find(&wrapped).is_some());
        let deep = Error::with(Kind::Process, "importing", io::Error::other(wrapped));
        assert!(Changed::find(&io::Error::other(deep)).is_some());
        assert!(Changed::find(&io::Error::other("no")).is_none());
    }
}
