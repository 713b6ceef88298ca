//! The plugin `tap`: a tap device for a guest, without a veth pair between, alone or as a port of a bridge in the same
//! namespace. With CNI_NETNS_OVERRIDE that namespace may be the host's.
//!
//! The device is made by ioctl on /dev/net/tun, since the kernel refuses to make one by netlink; all else is netlink.

mod apply;
mod config;

use crate::error::Error;
use crate::protocol::{Call, Outcome, Plugin};
use config::Config;

/// The plugin.
pub(crate) struct Tap;

impl Plugin for Tap {
    fn name(&self) -> &'static str {
        "tap"
    }

    fn add(&self, call: &Call) -> Result<Outcome, Error> {
        apply::add(&Config::parse(call)?, call)
    }

    fn delete(&self, call: &Call) -> Result<(), Error> {
        apply::delete(call)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        apply::check(&Config::parse(call)?, call)
    }

    fn collect(&self, call: &Call) -> Result<(), Error> {
        apply::collect(call)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        apply::status(&Config::parse(call)?, call)
    }
}
