//! A collection followed for the life of the process: listed in pages, then watched with bookmarks.
//!
//! Every failure waits with exponential back-off and jitter before the next attempt. When the API server has forgotten
//! the version to watch from (410), the collection is listed again, after the shortest pause: a server that was away
//! and is back answers so. A server that closes each watch at once, or forgets each version, is met with growing
//! pauses, never with a busy loop. A kind that does not exist is an empty collection.
//!
//! Lists are paged rather than streamed by `sendInitialEvents`: that needs Kubernetes 1.34 for its default, and pages
//! bound what the API server must hold for us in every version.

use std::convert::Infallible;
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::client::Client;
use crate::error::{Error, Kind, Result, Status};
use crate::page::{self, Listed};
use crate::resource::{Resource, Scope};
use crate::time::backoff;

pub use crate::page::Meta;

/// How long the API server lets a watch run; it ends it itself after a random time between this and its double.
const WATCH_SECONDS: u64 = 290;
/// A watch without an event or bookmark for so long may be dead and is opened again. Bookmarks come each minute.
const SILENCE: Duration = Duration::from_secs(150);
/// Back-off between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A watch that lived so long was a good one; its end is not a failure.
const GOOD_WATCH: Duration = Duration::from_secs(5);
/// Before a kind that does not exist is looked for again.
const ABSENCE: Duration = Duration::from_secs(5);

/// News of a followed collection.
#[derive(Debug)]
pub enum News<'a, T> {
    /// A list begins: objects that do not come before its end are gone.
    Begin,
    /// An object is new, changed, or listed.
    Present(&'a Meta, T),
    /// An object is present but not of the type `T`: what was known of it stays, it is not gone.
    Unreadable(&'a Meta, serde_json::Error),
    /// An object is gone; with its last state, if that is of the type `T`.
    Gone(&'a Meta, Option<T>),
    /// The list is complete: every present object was reported.
    End,
    /// No news until the next list or watch succeeds.
    Lost(&'a Error),
    /// The watch runs (again).
    Watching,
}

/// Follows a collection and reports each change; runs until it is dropped.
pub async fn follow<T: DeserializeOwned>(
    client: &Client,
    resource: Resource,
    scope: &Scope,
    mut hear: impl FnMut(News<'_, T>),
) -> Infallible {
    let mut version = None;
    let mut pauses = Pauses::default();
    loop {
        let begun = Instant::now();
        let result = round::<T>(client, resource, scope, &mut version, &mut hear).await;
        if begun.elapsed() >= GOOD_WATCH {
            pauses = Pauses::default();
        }
        let pause = match result {
            Ok(()) => {
                hear(News::Lost(&Error::new(Kind::Unreachable, "the watch ended")));
                pauses.after_failure()
            }
            Err(error) if error.kind() == Kind::NotFound => {
                version = None;
                hear(News::Begin);
                hear(News::End);
                backoff(ABSENCE, ABSENCE, 0)
            }
            Err(error) => {
                hear(News::Lost(&error));
                // A list that failed starts from the beginning by itself: `version` is still empty then.
                if error.kind() == Kind::Gone && version.take().is_some() {
                    pauses.expired();
                }
                let error = error.chain();
                match pauses.failures {
                    0 | 5 => {
                        tracing::warn!(plural = resource.plural, error, "cannot watch objects; retrying")
                    }
                    _ => tracing::debug!(plural = resource.plural, error, "cannot watch objects; retrying"),
                }
                pauses.after_failure()
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// The pauses before the next attempts.
#[derive(Debug, Default)]
struct Pauses {
    /// Attempts that failed since the last good watch, or since the version expired.
    failures: u32,
    /// A version expired since the last good watch.
    expired: bool,
}

impl Pauses {
    /// A version expired. The first one ends the long pauses of the failures before; those that follow are failures.
    fn expired(&mut self) {
        if !std::mem::replace(&mut self.expired, true) {
            self.failures = 0;
        }
    }

    /// The pause after a failure.
    fn after_failure(&mut self) -> Duration {
        let pause = backoff(FIRST_PAUSE, LONGEST_PAUSE, self.failures);
        self.failures = self.failures.saturating_add(1);
        pause
    }
}

/// Lists if there is no version to watch from, then watches until the watch ends.
async fn round<T: DeserializeOwned>(
    client: &Client,
    resource: Resource,
    scope: &Scope,
    version: &mut Option<String>,
    hear: &mut impl FnMut(News<'_, T>),
) -> Result<()> {
    let path = scope.path(&resource)?;
    let from = match version.as_deref() {
        Some(from) => from,
        None => {
            hear(News::Begin);
            let listed = page::list(client, &path, |one| {
                present(&one, hear);
                Ok(())
            })
            .await?;
            hear(News::End);
            version.insert(listed)
        }
    };
    let uri = format!(
        "{path}watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={from}"
    );
    let mut lines = client.lines(uri).await?;
    hear(News::Watching);
    loop {
        let line = tokio::time::timeout(SILENCE, lines.next()).await;
        let line =
            line.map_err(|_| Error::new(Kind::Timeout, format!("a watch was silent for {SILENCE:?}")))?;
        let Some(line) = line? else { return Ok(()) };
        if let Some(newer) = event(line, hear)? {
            *version = Some(newer);
        }
    }
}

fn present<T: DeserializeOwned>(one: &Listed<'_>, hear: &mut impl FnMut(News<'_, T>)) {
    match one.object() {
        Ok(object) => hear(News::Present(one.meta(), object)),
        Err(error) => hear(News::Unreadable(one.meta(), error)),
    }
}

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    what: What,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum What {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
    #[serde(other)]
    Unknown,
}

/// Reports one event of a watch; returns the version to watch from after it.
fn event<T: DeserializeOwned>(line: &[u8], hear: &mut impl FnMut(News<'_, T>)) -> Result<Option<String>> {
    let unreadable = |error: serde_json::Error| {
        let text = format!("an event of a watch cannot be decoded, at column {}", error.column());
        Error::new(Kind::Unreadable, text)
    };
    let Event { what, object } = serde_json::from_slice(line).map_err(unreadable)?;
    if matches!(what, What::Error) {
        let status: Status = serde_json::from_str(object.get()).unwrap_or_default();
        let code = http::StatusCode::from_u16(status.code).unwrap_or(http::StatusCode::INTERNAL_SERVER_ERROR);
        return Err(Error::refused("the watch ended", code, object.get().as_bytes()));
    }
    let one = Listed::read(object).map_err(unreadable)?;
    match what {
        What::Added | What::Modified => present(&one, hear),
        What::Deleted => hear(News::Gone(one.meta(), one.object().ok())),
        What::Bookmark | What::Error | What::Unknown => {}
    }
    let version = &one.meta().version;
    Ok((!version.is_empty()).then(|| version.clone()))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn events_of(line: &str) -> (Vec<String>, Result<Option<String>>) {
        let mut told = Vec::new();
        let result = event::<Value>(line.as_bytes(), &mut |news| {
            told.push(match news {
                News::Present(meta, object) => format!("present {} {}", meta.key, object["spec"]),
                News::Gone(meta, object) => {
                    format!("gone {} {}", meta.key, object.unwrap_or_default()["spec"])
                }
                other @ (News::Begin | News::Unreadable(..) | News::End | News::Lost(_) | News::Watching) => {
                    format!("{other:?}")
                }
            });
        });
        (told, result)
    }

    #[test]
    fn events_are_parsed_in_any_order_of_fields() {
        let object = r#"{"spec":7,"metadata":{"namespace":"n","name":"a","resourceVersion":"9"}}"#;
        for (line, expected) in [
            (format!(r#"{{"type":"ADDED","object":{object}}}"#), "present n/a 7"),
            (format!(r#"{{"object":{object},"type":"MODIFIED"}}"#), "present n/a 7"),
            (format!(r#"{{"type":"DELETED","object":{object}}}"#), "gone n/a 7"),
        ] {
            let (told, version) = events_of(&line);
            assert_eq!(told, [expected]);
            assert_eq!(version.unwrap().as_deref(), Some("9"));
        }
        let (silent, version) = events_of(&format!(r#"{{"type":"BOOKMARK","object":{object}}}"#));
        assert!(silent.is_empty());
        assert_eq!(version.unwrap().as_deref(), Some("9"));
    }

    #[test]
    fn first_expired_version_ends_long_pauses_and_later_ones_do_not() {
        let mut pauses = Pauses::default();
        let mut pause = |expired: bool| {
            if expired {
                pauses.expired();
            }
            pauses.after_failure()
        };
        // Up to a quarter is taken off each pause at random.
        for (expired, full) in [
            (false, FIRST_PAUSE),
            (false, FIRST_PAUSE * 2),
            (false, FIRST_PAUSE * 4),
            (false, FIRST_PAUSE * 8),
            (true, FIRST_PAUSE),
            (true, FIRST_PAUSE * 2),
            (false, FIRST_PAUSE * 4),
            (true, FIRST_PAUSE * 8),
        ] {
            let pause = pause(expired);
            assert!(pause <= full && pause >= full.mul_f64(0.74), "{expired} {full:?}: {pause:?}");
        }
    }

    #[test]
    fn expired_watch_is_gone_and_other_errors_are_not() {
        for (code, kind) in [(410, Kind::Gone), (504, Kind::Server)] {
            let line =
                format!(r#"{{"type":"ERROR","object":{{"kind":"Status","message":"m","code":{code}}}}}"#);
            assert_eq!(events_of(&line).1.unwrap_err().kind(), kind);
        }
        assert_eq!(events_of("{").1.unwrap_err().kind(), Kind::Unreadable);
    }
}
