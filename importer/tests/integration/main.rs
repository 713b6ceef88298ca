//! The program and its sources from outside: servers, formats, targets, interruptions.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]
#![expect(clippy::cast_possible_truncation, reason = "small test data")]
#![expect(clippy::print_stdout, reason = "figures are shown with --nocapture")]

mod archive;
mod bad_servers;
mod engines;
mod formats;
mod gcs;
mod http;
mod huge;
mod killed;
mod late_tables;
mod matrix;
mod messages;
mod nbd;
mod node_pull;
mod power_cut;
mod process;
mod registry;
mod s3;
mod space;
mod support;
mod targets;
#[path = "../../../uploadserver/tests/integration/support/mod.rs"]
mod uploads;
mod vhds;
