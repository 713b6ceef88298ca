//! The source of a clone: the DataVolume's own, or that of the DataSource that it names. Pure, but for
//! [`origin`] and [`origin_of`], which read DataSources.

use cluster::{Client, Key};
use serde_json::Value;

use super::authorize::Origin;
use crate::storage::names;
use crate::storage::resources::DATA_SOURCES;
use crate::storage::seen::Source;

/// Annotations of DataVolumes that need no source: their claim is filled, or made, by others.
const WITHOUT_SOURCE: [&str; 2] = [names::PREPOPULATED, names::CHECK_STATIC_VOLUME];

/// The source of a clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cloned {
    /// It is no clone.
    Nothing,
    /// A claim or a snapshot.
    Origin(Origin),
    /// The source that this DataSource names.
    DataSource {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

/// The source of a DataVolume with this spec in `namespace`.
pub fn of_volume(spec: &Value, namespace: &str) -> Cloned {
    let reference = &spec["sourceRef"];
    match (reference["kind"].as_str(), reference["name"].as_str()) {
        (Some("DataSource"), Some(name)) => {
            let other = reference["namespace"].as_str().filter(|name| !name.is_empty());
            Cloned::DataSource { namespace: other.unwrap_or(namespace).to_owned(), name: name.to_owned() }
        }
        _ => of_source(&spec["source"], namespace),
    }
}

/// The source that a DataSource of this namespace names. A DataSource of another namespace is not followed.
pub fn of_data_source(object: &Value, namespace: &str) -> Cloned {
    let source = &object["spec"]["source"];
    let reference = &source["dataSource"];
    match reference["name"].as_str() {
        Some(_) if reference["namespace"].as_str().is_some_and(|other| other != namespace) => Cloned::Nothing,
        Some(name) => Cloned::DataSource { namespace: namespace.to_owned(), name: name.to_owned() },
        None => of_source(source, namespace),
    }
}

fn of_source(source: &Value, namespace: &str) -> Cloned {
    Origin::of(&Source::from(source), namespace).map_or(Cloned::Nothing, Cloned::Origin)
}

/// Whether a DataVolume needs no source, by its annotations.
pub fn needs_no_source(volume: &Value) -> bool {
    let annotations = &volume["metadata"]["annotations"];
    WITHOUT_SOURCE.iter().any(|annotation| annotations.get(annotation).is_some())
}

/// The origin of a clone, if it is one: DataSources are followed, one of which may name another. `Err`: this one does not
/// exist.
///
/// # Errors
/// Those of the API server.
pub async fn origin(
    client: &Client,
    spec: &Value,
    namespace: &str,
) -> cluster::Result<Result<Option<Origin>, Key>> {
    follow(of_volume(spec, namespace), |key| async move { client.find::<Value>(DATA_SOURCES, &key).await })
        .await
}

/// The origin that a DataSource names. `Err`: this one does not exist.
///
/// # Errors
/// Those of the API server.
pub async fn origin_of(client: &Client, data_source: &Key) -> cluster::Result<Result<Option<Origin>, Key>> {
    let (namespace, name) = (data_source.namespace().to_owned(), data_source.name().to_owned());
    let named = Cloned::DataSource { namespace, name };
    follow(named, |key| async move { client.find::<Value>(DATA_SOURCES, &key).await }).await
}

/// Follows DataSources; `find` reads one.
async fn follow<E, F>(
    mut cloned: Cloned,
    mut find: impl FnMut(Key) -> F,
) -> Result<Result<Option<Origin>, Key>, E>
where
    F: Future<Output = Result<Option<Value>, E>>,
{
    for _ in 0..2 {
        let Cloned::DataSource { namespace, name } = &cloned else { break };
        let key = Key::new(namespace, name);
        match find(key.clone()).await? {
            Some(object) => cloned = of_data_source(&object, namespace),
            None => return Ok(Err(key)),
        }
    }
    Ok(Ok(match cloned {
        Cloned::Origin(origin) => Some(origin),
        Cloned::Nothing | Cloned::DataSource { .. } => None,
    }))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::ready;

    use serde_json::json;

    use super::*;

    #[test]
    fn sources_of_clones_are_found() {
        let at = |namespace: &str, snapshot| {
            Cloned::Origin(Origin { namespace: namespace.into(), name: "x".into(), snapshot })
        };
        let data_source =
            |namespace: &str| Cloned::DataSource { namespace: namespace.into(), name: "x".into() };
        for (spec, expected) in [
            (json!({"source": {"blank": {}}}), Cloned::Nothing),
            (json!({"source": {"pvc": {"name": "x", "namespace": "golden"}}}), at("golden", false)),
            (json!({"source": {"pvc": {"name": "x"}}}), at("mine", false)),
            (json!({"source": {"snapshot": {"name": "x", "namespace": "golden"}}}), at("golden", true)),
            (json!({"sourceRef": {"kind": "DataSource", "name": "x"}}), data_source("mine")),
            (
                json!({"sourceRef": {"kind": "DataSource", "name": "x", "namespace": "golden"}}),
                data_source("golden"),
            ),
        ] {
            assert_eq!(of_volume(&spec, "mine"), expected, "{spec}");
        }
        let of = |source: Value| of_data_source(&json!({"spec": {"source": source}}), "golden");
        assert_eq!(of(json!({"pvc": {"name": "x"}})), at("golden", false));
        assert_eq!(of(json!({"pvc": {"name": "x", "namespace": "far"}})), at("far", false));
        assert_eq!(of(json!({"dataSource": {"name": "x"}})), data_source("golden"));
        assert_eq!(of(json!({"dataSource": {"name": "x", "namespace": "golden"}})), data_source("golden"));
        assert_eq!(of(json!({"dataSource": {"name": "x", "namespace": "far"}})), Cloned::Nothing);
    }

    #[test]
    fn one_reference_between_data_sources_is_followed() {
        let object = |source: Value| json!({"spec": {"source": source}});
        let all = [
            ("direct", object(json!({"pvc": {"name": "disk"}}))),
            ("taken", object(json!({"snapshot": {"name": "disk", "namespace": "golden"}}))),
            ("once", object(json!({"dataSource": {"name": "direct", "namespace": "golden"}}))),
            ("twice", object(json!({"dataSource": {"name": "once", "namespace": "golden"}}))),
            ("itself", object(json!({"dataSource": {"name": "itself", "namespace": "golden"}}))),
            ("dangling", object(json!({"dataSource": {"name": "nothing", "namespace": "golden"}}))),
            ("sourceless", object(json!({}))),
        ];
        let find = |key: Key| {
            let found = all.iter().find(|(name, _)| key.namespace() == "golden" && *name == key.name());
            ready(Ok::<_, Infallible>(found.map(|(_, object)| object.clone())))
        };
        let disk = |snapshot| Origin { namespace: "golden".into(), name: "disk".into(), snapshot };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        for (name, expected) in [
            ("direct", Ok(Some(disk(false)))),
            ("taken", Ok(Some(disk(true)))),
            ("once", Ok(Some(disk(false)))),
            ("twice", Ok(None)),
            ("itself", Ok(None)),
            ("dangling", Err(Key::new("golden", "nothing"))),
            ("sourceless", Ok(None)),
            ("absent", Err(Key::new("golden", "absent"))),
        ] {
            let named = Cloned::DataSource { namespace: "golden".into(), name: name.into() };
            let found = runtime.block_on(follow(named, find)).unwrap();
            assert_eq!(found, expected, "{name}");
        }
    }
}
