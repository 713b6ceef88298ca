//! What was typed. Everything else comes by environment ([`super::config`]).

use std::ffi::OsString;

use clap::Parser;

/// Sends a volume to the upload server of another claim. Stands in for cdi-cloner, and is told what to do by the same
/// environment: CLIENT_KEY, CLIENT_CERT, SERVER_CA_CERT, UPLOAD_URL, OWNER_UID, VOLUME_MODE, MOUNT_POINT.
#[derive(Clone, Debug, Parser)]
#[command(name = "clone-source", version)]
pub struct Args {
    /// How much is logged: 1 info, 3 debug, 5 trace.
    #[arg(short, long = "v", value_name = "N", num_args = 0..=1, default_value_t = 0, default_missing_value = "1")]
    pub(crate) v: u8,
    /// Log as JSON lines.
    #[arg(long)]
    pub(crate) log_json: bool,
    /// Taken and ignored: klog's other flag that pods are given.
    #[arg(long, hide = true)]
    pub(crate) alsologtostderr: bool,
}

impl Args {
    /// Parses a command line, program name first.
    ///
    /// # Errors
    /// clap's, which knows whether it is help, version or a mistake.
    pub fn parse_from_os(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        Self::try_parse_from(arguments)
    }
}
