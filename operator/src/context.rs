//! The process's connections and settings that every controller gets. Not here: which controllers run ([`crate::area`]).

use std::sync::Arc;

use cluster::{Client, Events};

use crate::config::Config;
use crate::health::Health;

/// Connections and settings of a controller.
#[derive(Clone, Debug)]
pub struct Context {
    /// The API server.
    pub client: Client,
    /// Publishes events.
    pub events: Events,
    /// Configuration of this process.
    pub config: Arc<Config>,
    /// Probes and metrics of this process.
    pub health: Health,
}
