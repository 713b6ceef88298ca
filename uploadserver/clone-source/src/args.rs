//! The command line. Everything else comes by environment ([`crate::config`]).

use clap::Parser;

use serve::start::Log;

/// Sends a volume to the upload server of another claim. Stands in for cdi-cloner, and reads the same environment:
/// CLIENT_KEY, CLIENT_CERT, SERVER_CA_CERT, UPLOAD_URL, OWNER_UID, VOLUME_MODE, MOUNT_POINT.
#[derive(Clone, Debug, Parser)]
#[command(name = "clone-source", version)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) log: Log,
}
