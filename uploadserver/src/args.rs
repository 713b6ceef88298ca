//! What was typed. Everything else comes by environment ([`crate::config`]). What is logged is said to all programs of the
//! package alike.

use clap::Parser;

/// Takes one upload of a disk image over TLS and puts it straight into a volume. Stands in for cdi-uploadserver, and is
/// told what to do by the same environment: TLS_KEY_FILE, TLS_CERT_FILE, CLIENT_CERT_FILE, CLIENT_NAME,
/// UPLOAD_IMAGE_SIZE, FILESYSTEM_OVERHEAD, PREALLOCATION, DESTINATION, DEADLINE, LISTEN_ADDRESS, LISTEN_PORT.
#[derive(Clone, Debug, Parser)]
#[command(name = "uploadserver", version)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) log: Log,
}

/// What is logged.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Log {
    /// How much is logged: 1 info, 3 debug, 5 trace.
    #[arg(short, long = "v", global = true, value_name = "N", num_args = 0..=1, default_value_t = 0, default_missing_value = "1")]
    pub(crate) v: u8,
    /// Log as JSON lines.
    #[arg(long, global = true)]
    pub(crate) log_json: bool,
    /// Taken and ignored: klog's other flag that pods are given.
    #[arg(long, global = true, hide = true)]
    pub(crate) alsologtostderr: bool,
}
