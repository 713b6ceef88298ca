//! The level of the agent's log, from the KubeVirt object while it changes: `logVerbosity.nodeVerbosity` of the node, else
//! `logVerbosity.virtHandler`, else that of the command line.
//!
//! Not here: what the numbers mean ([`serve::logs::klog_level`]).

use std::convert::Infallible;

use api::kubevirt::{KubeVirt, LogVerbosity};
use cluster::{Cache, Client, Resource, Scope};

const KUBEVIRTS: Resource = Resource::namespaced("kubevirt.io", "v1", "kubevirts");

/// A KubeVirt object, as far as the log depends on it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Levels {
    created: Option<String>,
    verbosity: LogVerbosity,
}

impl From<&KubeVirt> for Levels {
    fn from(object: &KubeVirt) -> Self {
        let configuration = object.spec.configuration.as_ref();
        let developer = configuration.and_then(|one| one.developer_configuration.as_ref());
        let verbosity = developer.and_then(|one| one.log_verbosity.clone()).unwrap_or_default();
        Self { created: object.metadata.creation_timestamp.clone(), verbosity }
    }
}

/// Keeps the level as long as the process runs.
pub(crate) async fn keep(client: Client, node: String) -> Infallible {
    let objects = Cache::<Levels>::builder().start::<KubeVirt>(&client, KUBEVIRTS, &Scope::all());
    let (mut changes, mut set) = (objects.changes(), None);
    loop {
        // There is one in a cluster; of several the oldest counts.
        let oldest = objects.all().into_iter().min_by_key(|(_, one)| one.created.clone());
        let level = oldest.and_then(|(_, one)| one.verbosity.of_node(&node));
        if level != set {
            let levels: Vec<(&str, u8)> = level.map(|level| ("", level)).into_iter().collect();
            serve::logs::set_levels(&levels);
            tracing::info!(?level, "the level of the log is changed");
            set = level;
        }
        changes.next().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_from_the_object() {
        let read = |text: &str| Levels::from(&serde_json::from_str::<KubeVirt>(text).unwrap()).verbosity;
        assert_eq!(read("{}").of_node("one"), None);
        let text = r#"{"spec": {"configuration": {"developerConfiguration": {"logVerbosity":
            {"virtHandler": 4, "nodeVerbosity": {"one": 6}}}}}}"#;
        let verbosity = read(text);
        assert_eq!((verbosity.of_node("one"), verbosity.of_node("two")), (Some(6), Some(4)));
    }
}
