//! The API server, in raw JSON: objects by path, and collections followed by list and watch.

use std::fmt;
use std::marker::PhantomData;
use std::pin::pin;
use std::time::Duration;

use futures_util::{AsyncReadExt, TryStreamExt};
use http::{Method, Request, StatusCode};
use kube::Client;
use kube::core::WatchEvent;
use serde::Deserialize;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::error::{Error, Kind, Result};

/// Objects in one page of a listing: few enough that its text is small beside what is kept of all.
const PAGE: usize = 500;
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
    let answer = async {
        let mut text = Vec::new();
        receive(client, request, &mut text).await?;
        serde_json::from_slice(&text).map_err(kube::Error::SerdeError)
    };
    match tokio::time::timeout(PATIENCE, answer).await {
        Ok(answer) => answer.map_err(failed),
        Err(_) => Err(Error::new(Kind::Unreachable, format!("{method} {path}: no answer in {PATIENCE:?}"))),
    }
}

/// Puts an answer's text into a buffer. The client's own reading logs what it cannot read, which may be a Secret.
async fn receive(client: &Client, request: Request<Vec<u8>>, text: &mut Vec<u8>) -> kube::Result<()> {
    text.clear();
    let mut answer = pin!(client.request_stream(request).await?);
    answer.read_to_end(text).await.map_err(kube::Error::ReadEvents)?;
    Ok(())
}

fn status(error: &kube::Error) -> Option<StatusCode> {
    if let kube::Error::Api(status) = error { StatusCode::from_u16(status.code).ok() } else { None }
}

/// Follows a collection until the process ends; `query` chooses among its objects, `O` is what is read of each. A
/// collection that does not exist is empty.
pub(crate) async fn follow<O>(client: &Client, path: &str, query: &str, mut hear: impl FnMut(News<'_>))
where
    O: Clone + DeserializeOwned + Into<Value>,
{
    loop {
        match rounds::<O>(client, path, query, &mut hear).await {
            Ok(()) => {
                hear(News::Lost);
                tokio::time::sleep(PAUSE).await;
            }
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
async fn rounds<O>(
    client: &Client,
    path: &str,
    query: &str,
    hear: &mut impl FnMut(News<'_>),
) -> kube::Result<()>
where
    O: Clone + DeserializeOwned + Into<Value>,
{
    let mut version = list::<O>(client, path, query, hear).await?;
    loop {
        let uri = format!(
            "{path}?watch=true&allowWatchBookmarks=true&timeoutSeconds={WATCH_SECONDS}&resourceVersion={version}&{query}"
        );
        let begun = tokio::time::timeout(PATIENCE, client.request_events::<O>(get(&uri)?)).await;
        let mut events = Box::pin(begun.map_err(late)??);
        loop {
            let Ok(event) = tokio::time::timeout(SILENCE, events.try_next()).await else { break };
            let Some(event) = event? else { break };
            let seen = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let object = object.into();
                    hear(News::There(&object));
                    resource_version(&object)
                }
                WatchEvent::Deleted(object) => {
                    let object = object.into();
                    hear(News::Gone(&object));
                    resource_version(&object)
                }
                WatchEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version),
                // It has forgotten where we were, mostly.
                WatchEvent::Error(_) => return Ok(()),
            };
            version = seen.unwrap_or(version);
        }
        // Who lets watches end at once is not asked without a pause.
        tokio::time::sleep(PAUSE / 10).await;
    }
}

/// Lists in pages. Gives the version to watch from.
async fn list<O>(
    client: &Client,
    path: &str,
    query: &str,
    hear: &mut impl FnMut(News<'_>),
) -> kube::Result<String>
where
    O: DeserializeOwned + Into<Value>,
{
    hear(News::Begin);
    let mut token = String::new();
    let mut text = Vec::new();
    loop {
        let uri = format!("{path}?limit={PAGE}&continue={token}&{query}");
        let received = receive(client, get(&uri)?, &mut text);
        tokio::time::timeout(PATIENCE * 6, received).await.map_err(late)??;
        let page = page::<O>(&text, hear).map_err(kube::Error::SerdeError)?;
        match page.next.filter(|next| !next.is_empty()) {
            Some(next) => token = next,
            None => {
                hear(News::End);
                return Ok(page.version.unwrap_or_default());
            }
        }
    }
}

/// The version of an object.
fn resource_version(object: &Value) -> Option<String> {
    object.pointer("/metadata/resourceVersion")?.as_str().map(str::to_owned)
}

/// What a page of a listing says of itself.
#[derive(Debug, Default, Deserialize)]
struct Page {
    /// Where the next one begins.
    #[serde(default, rename = "continue")]
    next: Option<String>,
    #[serde(default, rename = "resourceVersion")]
    version: Option<String>,
}

/// Reads a page, and tells of each of its objects as soon as that is read: never are two of them held.
fn page<O>(text: &[u8], hear: &mut impl FnMut(News<'_>)) -> serde_json::Result<Page>
where
    O: DeserializeOwned + Into<Value>,
{
    let mut reader = serde_json::Deserializer::from_slice(text);
    let page = PageOf::<O, _> { hear, of: PhantomData }.deserialize(&mut reader)?;
    reader.end()?;
    Ok(page)
}

/// Reads a page, or (in it) its list of objects.
struct PageOf<'a, O, F> {
    hear: &'a mut F,
    of: PhantomData<O>,
}

impl<'de, O, F> DeserializeSeed<'de> for PageOf<'_, O, F>
where
    O: DeserializeOwned + Into<Value>,
    F: FnMut(News<'_>),
{
    type Value = Page;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Page, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, O, F> Visitor<'de> for PageOf<'_, O, F>
where
    O: DeserializeOwned + Into<Value>,
    F: FnMut(News<'_>),
{
    type Value = Page;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a page of a listing")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Page, A::Error> {
        let mut page = Page::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "metadata" => page = map.next_value()?,
                "items" => {
                    map.next_value_seed(PageOf::<O, F> { hear: &mut *self.hear, of: PhantomData })?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(page)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut objects: A) -> std::result::Result<Page, A::Error> {
        while let Some(object) = objects.next_element::<O>()? {
            (self.hear)(News::There(&object.into()));
        }
        Ok(Page::default())
    }

    /// No objects, as Go writes an empty list.
    fn visit_unit<E: serde::de::Error>(self) -> std::result::Result<Page, E> {
        Ok(Page::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lean::Lean;

    #[test]
    fn pages_are_heard_object_by_object() {
        let mut heard = Vec::new();
        let mut hear = |news: News<'_>| {
            if let News::There(object) = news {
                heard.push(object["metadata"]["name"].as_str().unwrap().to_owned());
            }
        };
        let text = r#"{"kind":"PodList","items":[{"metadata":{"name":"a"},"spec":{"containers":[1]}},
            {"metadata":{"name":"b"}}],"metadata":{"resourceVersion":"7","continue":"t","remainingItemCount":9}}"#;
        let read = page::<Lean>(text.as_bytes(), &mut hear).unwrap();
        assert_eq!((read.next.as_deref(), read.version.as_deref()), (Some("t"), Some("7")));
        for (text, version) in [
            (r#"{"items":null,"metadata":{"resourceVersion":"8"}}"#, Some("8")),
            (r#"{"metadata":{"continue":null},"items":[]}"#, None),
            ("{}", None),
        ] {
            let read = page::<Value>(text.as_bytes(), &mut hear).unwrap();
            assert_eq!((read.next, read.version.as_deref()), (None, version), "{text}");
        }
        for torn in ["", "{\"items\":[{", "{\"items\":[]}}", "{\"items\":7}"] {
            assert!(page::<Value>(torn.as_bytes(), &mut hear).is_err(), "{torn}");
        }
        assert_eq!(heard, ["a", "b"]);
    }
}
