//! `virt-launcher` from outside, and the launch documents and domains that it is given.
//!
//! One module per subject; `lanes` runs each of them as a process of its own.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod ask;
mod domain;
mod hotplug;
mod iso;
mod launcher;
mod layout;
mod lifecycle;
mod pinning;
mod pod;
mod resolve;
mod socket;
mod stats;
mod support;
mod usb;
mod worker_restart;
