//! Lists in pages: the text of one page is held, and of its objects one at a time is read.

use std::fmt;
use std::time::Duration;

use http::Method;
use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::value::RawValue;

use crate::client::{Call, Client};
use crate::error::{Error, Kind, Result};
use crate::key::Key;
use crate::resource::escaped;

/// Objects in one page.
const PAGE: usize = 500;
/// How long a page may take; the API server itself gives up after 60 s.
const PAGE_TIMEOUT: Duration = Duration::from_secs(65);

/// Metadata of every object.
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    /// Namespace and name.
    pub key: Key,
    /// Its uid; empty for objects of aggregated APIs that have none.
    pub uid: String,
    /// Its resource version.
    pub version: String,
}

/// An object in a list or watch: its metadata, and its text.
pub(crate) struct Listed<'a> {
    meta: Meta,
    text: &'a RawValue,
}

impl<'a> Listed<'a> {
    pub(crate) fn read(text: &'a RawValue) -> serde_json::Result<Self> {
        #[derive(Deserialize)]
        struct Object<'a> {
            #[serde(borrow)]
            metadata: Metadata<'a>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata<'a> {
            #[serde(default)]
            namespace: Option<std::borrow::Cow<'a, str>>,
            #[serde(default)]
            name: Option<std::borrow::Cow<'a, str>>,
            #[serde(default)]
            uid: Option<String>,
            #[serde(default)]
            resource_version: Option<String>,
        }
        let Metadata { namespace, name, uid, resource_version } =
            serde_json::from_str::<Object<'_>>(text.get())?.metadata;
        let key = Key::new(&namespace.unwrap_or_default(), &name.unwrap_or_default());
        let meta = Meta { key, uid: uid.unwrap_or_default(), version: resource_version.unwrap_or_default() };
        Ok(Self { meta, text })
    }

    pub(crate) fn key(&self) -> &Key {
        &self.meta.key
    }

    pub(crate) fn meta(&self) -> &Meta {
        &self.meta
    }

    pub(crate) fn object<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_str(self.text.get())
    }
}

/// Lists what `path` (with its query begun) selects, page by page; gives the list's resource version.
pub(crate) async fn list(
    client: &Client,
    path: &str,
    mut hear: impl FnMut(Listed<'_>) -> Result<()>,
) -> Result<String> {
    let mut token = String::new();
    loop {
        let call = Call::new(Method::GET, format!("{path}limit={PAGE}&continue={}", escaped(&token)));
        let text = client.call(&call.timeout(PAGE_TIMEOUT)).await?;
        let page = read(&text, &mut hear)?;
        match page.next.filter(|next| !next.is_empty()) {
            Some(next) => token = next,
            None => return Ok(page.version.unwrap_or_default()),
        }
    }
}

/// Metadata of a page.
#[derive(Debug, Default, Deserialize)]
struct Page {
    /// Where the next one begins.
    #[serde(default, rename = "continue")]
    next: Option<String>,
    #[serde(default, rename = "resourceVersion")]
    version: Option<String>,
}

/// Reads a page and hands over each object as soon as it is read.
fn read(text: &[u8], hear: &mut impl FnMut(Listed<'_>) -> Result<()>) -> Result<Page> {
    let mut failure = None;
    let mut reader = serde_json::Deserializer::from_slice(text);
    let seed = PageOf { hear, failure: &mut failure };
    let page = seed.deserialize(&mut reader).and_then(|page| reader.end().map(|()| page));
    match (page, failure) {
        (_, Some(error)) => Err(error),
        (Ok(page), None) => Ok(page),
        (Err(error), None) => {
            let text =
                format!("a list cannot be decoded, at line {} column {}", error.line(), error.column());
            Err(Error::new(Kind::Unreadable, text))
        }
    }
}

/// Reads a page, or (in it) its list of objects.
struct PageOf<'a, F> {
    hear: &'a mut F,
    failure: &'a mut Option<Error>,
}

impl<'de, F: FnMut(Listed<'_>) -> Result<()>> DeserializeSeed<'de> for PageOf<'_, F> {
    type Value = Page;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> std::result::Result<Page, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, F: FnMut(Listed<'_>) -> Result<()>> Visitor<'de> for PageOf<'_, F> {
    type Value = Page;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a page of a list")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Page, A::Error> {
        let mut page = Page::default();
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "metadata" => page = map.next_value()?,
                "items" => {
                    map.next_value_seed(PageOf { hear: &mut *self.hear, failure: &mut *self.failure })?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(page)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut objects: A) -> std::result::Result<Page, A::Error> {
        while let Some(text) = objects.next_element::<&RawValue>()? {
            let one = Listed::read(text).map_err(|_| A::Error::custom("an object without metadata"))?;
            if let Err(error) = (self.hear)(one) {
                *self.failure = Some(error);
                return Err(A::Error::custom("refused by the caller"));
            }
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

    fn keys(text: &str) -> Result<(Page, Vec<String>)> {
        let mut keys = Vec::new();
        let page = read(text.as_bytes(), &mut |one: Listed<'_>| {
            keys.push(format!("{}@{}", one.key(), one.meta().version));
            Ok(())
        })?;
        Ok((page, keys))
    }

    #[test]
    fn objects_of_a_page_are_handed_over_one_by_one() {
        let text = r#"{"kind":"PodList","items":[{"metadata":{"name":"a","namespace":"n","resourceVersion":"5"},"spec":{}},
            {"spec":{"metadata":{"name":"no"}},"metadata":{"name":"b\u00e9"}}],
            "metadata":{"resourceVersion":"7","continue":"t","remainingItemCount":9}}"#;
        let (page, keys) = keys(text).unwrap();
        assert_eq!((page.next.as_deref(), page.version.as_deref()), (Some("t"), Some("7")));
        assert_eq!(keys, ["n/a@5", "bé@"]);
    }

    #[test]
    fn empty_lists_are_read_as_go_writes_them() {
        for (text, version) in [
            (r#"{"items":null,"metadata":{"resourceVersion":"8"}}"#, Some("8")),
            (r#"{"metadata":{"continue":null},"items":[]}"#, None),
            ("{}", None),
        ] {
            let (page, keys) = keys(text).unwrap();
            assert_eq!((page.next, page.version.as_deref(), keys.len()), (None, version, 0), "{text}");
        }
    }

    #[test]
    fn torn_and_foreign_documents_are_errors() {
        for torn in
            ["", "{\"items\":[{", "{\"items\":[]}}", "{\"items\":7}", "{\"items\":[{\"metadata\":7}]}"]
        {
            assert_eq!(keys(torn).unwrap_err().kind(), Kind::Unreadable, "{torn}");
        }
    }
}
