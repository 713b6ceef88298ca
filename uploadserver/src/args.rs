//! The command line. Everything else comes by environment ([`crate::config`]).

use clap::Parser;
use serve::start::Log;

/// Takes one upload of a disk image over TLS and puts it straight into a volume. Stands in for cdi-uploadserver, and reads
/// the same environment: TLS_KEY_FILE, TLS_CERT_FILE, CLIENT_CERT_FILE, CLIENT_NAME, UPLOAD_IMAGE_SIZE,
/// FILESYSTEM_OVERHEAD, PREALLOCATION, DESTINATION, DEADLINE, LISTEN_ADDRESS, LISTEN_PORT.
#[derive(Clone, Debug, Parser)]
#[command(name = "uploadserver", version)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) log: Log,
}
