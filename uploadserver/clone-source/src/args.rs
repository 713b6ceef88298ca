//! The command line. Everything else comes by environment ([`crate::config`]).

use std::time::Duration;

use api::names;
use clap::Parser;
use serve::peer;
use serve::start::Log;

/// Sends a volume to the upload server of another claim. Stands in for cdi-cloner, and reads the same environment:
/// CLIENT_KEY, CLIENT_CERT, SERVER_CA_CERT, UPLOAD_URL, OWNER_UID, VOLUME_MODE, MOUNT_POINT.
#[derive(Clone, Debug, Parser)]
#[command(name = "clone-source", version)]
pub(crate) struct Args {
    /// Longest wait for the answer once everything is sent, while the server writes the disk to its end.
    #[arg(long, env = names::CLONE_ANSWER_TIMEOUT_VARIABLE, value_name = "DURATION", default_value = peer::ANSWER_TIMEOUT, value_parser = peer::answer_timeout)]
    pub(crate) answer_timeout: Duration,
    #[command(flatten)]
    pub(crate) log: Log,
}
