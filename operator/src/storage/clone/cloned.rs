//! The source of a clone: the DataVolume's own, or that of the DataSource that it names. Pure, but for
//! [`origin`], which reads DataSources.

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

/// The source that a DataSource of this namespace names.
pub fn of_data_source(object: &Value, namespace: &str) -> Cloned {
    let source = &object["spec"]["source"];
    match source["dataSource"]["name"].as_str() {
        // One in another namespace is not followed by the controller.
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

/// Follows DataSources, one of which may name another. `Err`: this one does not exist.
///
/// # Errors
/// Those of the API server.
pub async fn origin(
    client: &Client,
    spec: &Value,
    namespace: &str,
) -> cluster::Result<Result<Option<Origin>, Key>> {
    let mut cloned = of_volume(spec, namespace);
    for _ in 0..2 {
        let Cloned::DataSource { namespace, name } = &cloned else { break };
        let key = Key::new(namespace, name);
        match client.find::<Value>(DATA_SOURCES, &key).await? {
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
        assert_eq!(of(json!({"dataSource": {"name": "x", "namespace": "far"}})), data_source("golden"));
    }
}
