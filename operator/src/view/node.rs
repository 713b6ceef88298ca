//! Nodes as controllers see them.

use api::nodes::{HEARTBEAT, SCHEDULABLE};
use serde::Deserialize;

use super::Meta;

/// A Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Node {
    pub(crate) metadata: Meta,
}

impl Node {
    /// Whether an agent offers the node to instances.
    pub(crate) fn schedulable(&self) -> bool {
        self.metadata.label(SCHEDULABLE) == Some("true")
    }

    /// When the agent last reported, in seconds since 1970; `None` if it never did.
    pub(crate) fn heartbeat(&self) -> Option<u64> {
        let text = self.metadata.annotation(HEARTBEAT)?;
        u64::try_from(text.parse::<jiff::Timestamp>().ok()?.as_second()).ok()
    }
}

/// A cache keeps what was read.
impl From<&Self> for Node {
    fn from(read: &Self) -> Self {
        read.clone()
    }
}
