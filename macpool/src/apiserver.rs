//! The API server, in raw JSON: objects by path, and collections followed by list and watch.

use std::time::Duration;

use futures_util::TryStreamExt;
use http::{Method, Request, StatusCode};
use kube::Client;
use kube::core::WatchEvent;
use serde_json::Value;

use crate::error::{Error, Kind, Result};

/// Objects in one page of a listing: few enough that a page is small beside what is kept of it.
const PAGE: usize = 250;
/// How long the API server lets a watch run.
const WATCH_SECONDS: u64 = 290;
/// After so long without a word, bookmarks too, a watch may be dead, and is made anew.
const SILENCE: Duration = Duration::from_secs(90);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Before it is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// Before a kind that does not exist is looked for again.
const ABSENCE: Duration = Duration::from_secs(5);

/// What is heard of a collection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News<'a> {
    /// A listing begins: objects that do not come before its end are gone.
    Begin,
    /// An object is there, new or changed.
    There(&'a Value),
    /// An object is gone, as it was last.
    Gone(&'a Value),
    /// The listing is complete.
    End,
    /// Nothing is heard any more, until the next listing is complete.
    Lost,
}

/// A call without or with a JSON document.
///
/// # Errors
/// [`Kind::Taken`] for a conflict, [`Kind::Invalid`] for what does not exist, else [`Kind::Unreachable`].
pub(crate) async fn call(client: &Client, method: Method, path: &str, body: Option<&Value>) -> Result<Value> {
    let failed = |error: kube::Error| {
        let kind = match status(&error) {
            Some(StatusCode::CONFLICT) => Kind::Taken,
            Some(StatusCode::NOT_FOUND) => Kind::Invalid,
            Some(_) | None => Kind::Unreachable,
        };
        Error::caused(kind, format!("cannot {method} {path}"), error)
    };
    let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let kind = if method == Method::PATCH { "application/json-patch+json" } else { "application/json" };
    let request = Request::builder().method(method.clone()).uri(path).header("content-type", kind).body(body);
    let request = request.map_err(|error| Error::caused(Kind::Internal, format!("a path {path}"), error))?;
    match tokio::time::timeout(PATIENCE, client.request(request)).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(Error::new(Kind::Unreachable, format!("{method} {path}: no answer in {PATIENCE:?}"))),
    }
}

fn status(error: &kube::Error) -> Option<StatusCode> {
    if let kube::Error::Api(status) = error { StatusCode::from_u16(status.code).ok() } else { None }
}

/// Follows a collection until the process ends; `query` chooses among its objects. A collection that does not exist is
/// empty.
pub(crate) async fn follow(client: &Client, path: &str, query: &str, mut hear: impl FnMut(News<'_>)) {
    loop {
        match rounds(client, path, query, &mut hear).await {
            Ok(()) => tokio::time::sleep(PAUSE).await,
            Err(error) if status(&error) == Some(StatusCode::NOT_FOUND) => {
                hear(News::Begin);
                hear(News::End);
                tokio::time::sleep(ABSENCE).await;
            }
            Err(error) => {
                hear(News::Lost);
                let because = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, because, path, "cannot follow; trying again");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn get(uri: &str) -> kube::Result<Request<Vec<u8>>> {
    Request::get(uri).body(Vec::new()).map_err(kube::Error::HttpError)
}

/// No answer came in time.
fn late(elapsed: tokio::time::error::Elapsed) -> kube::Error {
    kube::Error::Service(elapsed.into())
}

/// Lists, and watches as long as the API server remembers where we were.
async fn rounds(
    client: &Client,
    path: &str,
    query: &str,
    hear: &mut impl FnMut(News<'_>),
) -> kube::Result<()> {
    let mut version = list(client, path, query, hear).await?;
    loop {
        let uri = format!(
            "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}&{query}"
        );
        let begun = tokio::time::timeout(PATIENCE, client.request_events::<Value>(get(&uri)?)).await;
        let mut events = Box::pin(begun.map_err(late)??);
        loop {
            let Ok(event) = tokio::time::timeout(SILENCE, events.try_next()).await else { break };
            let Some(event) = event? else { break };
            let seen = match &event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    hear(News::There(object));
                    resource_version(object)
                }
                WatchEvent::Deleted(object) => {
                    hear(News::Gone(object));
                    resource_version(object)
                }
                WatchEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version.clone()),
                // It has forgotten where we were, mostly.
                WatchEvent::Error(_) => return Ok(()),
            };
            version = seen.unwrap_or(version);
        }
    }
}

/// Lists in pages. Gives the version to watch from.
async fn list(
    client: &Client,
    path: &str,
    query: &str,
    hear: &mut impl FnMut(News<'_>),
) -> kube::Result<String> {
    hear(News::Begin);
    let mut token = String::new();
    loop {
        let uri = format!("{path}?limit={PAGE}&continue={token}&{query}");
        let page = tokio::time::timeout(PATIENCE * 6, client.request::<Value>(get(&uri)?)).await;
        let page = page.map_err(late)??;
        for object in page.get("items").and_then(Value::as_array).into_iter().flatten() {
            hear(News::There(object));
        }
        match page.pointer("/metadata/continue").and_then(Value::as_str) {
            Some(next) if !next.is_empty() => token = next.to_owned(),
            Some(_) | None => {
                hear(News::End);
                return Ok(resource_version(&page).unwrap_or_default());
            }
        }
    }
}

/// The version of an object or a listing.
fn resource_version(object: &Value) -> Option<String> {
    object.pointer("/metadata/resourceVersion")?.as_str().map(str::to_owned)
}
