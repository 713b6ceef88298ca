//! The level of the agent's log, from the KubeVirt object while it changes: `logVerbosity.nodeVerbosity` of the node, else
//! `logVerbosity.virtHandler`, else that of the command line.
//!
//! Not here: what the numbers mean ([`serve::logs::klog_level`]).

use std::convert::Infallible;

use cluster::Cache;

use crate::settings::{Settings, current};

/// Keeps the level as long as the process runs.
pub(crate) async fn keep(settings: Cache<Settings>, node: String) -> Infallible {
    let (mut changes, mut set) = (settings.changes(), None);
    loop {
        let level = current(&settings).verbosity.of_node(&node);
        if level != set {
            let levels: Vec<(&str, u8)> = level.map(|level| ("", level)).into_iter().collect();
            serve::logs::set_levels(&levels);
            tracing::info!(?level, "the level of the log is changed");
            set = level;
        }
        changes.next().await;
    }
}
