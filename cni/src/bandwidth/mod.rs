//! The plugin `bandwidth`: limits the rate of an interface that an earlier plugin of the chain made, by token buckets of the
//! kernel.
//!
//! ```text
//!  to the pod:    host's end of the veth pair ── tbf
//!  from the pod:  host's end ── ingress ── redirected ─► bwp… (ifb) ── tbf
//! ```
//!
//! Keys, names, sizes and the result are the reference's, plugins/meta/bandwidth of v1.9.1, so that either side checks and
//! deletes what the other made. Ours removes all of it when an ADD fails, checks the redirection, finds the link of a
//! guest after KubeVirt renamed its interface, and collects the links that a lost DEL left.

mod apply;
mod check;
mod config;

use crate::error::{Error, Kind};
use crate::protocol::{Call, Outcome, Plugin};
use config::Config;

/// The plugin.
pub(crate) struct Bandwidth;

impl Plugin for Bandwidth {
    fn name(&self) -> &'static str {
        "bandwidth"
    }

    fn add(&self, call: &Call) -> Result<Outcome, Error> {
        apply::add(&Config::parse(call)?, call)
    }

    fn delete(&self, call: &Call) -> Result<(), Error> {
        apply::delete(call)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        check::check(&Config::parse(call)?, call)
    }

    fn collect(&self, call: &Call) -> Result<(), Error> {
        apply::collect(call)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        let unavailable = |error| {
            let message = format!("the rate of interfaces of network {} cannot be limited", call.network);
            Error::with(Kind::Unavailable, message, error)
        };
        Config::parse(call).map(drop).map_err(unavailable)
    }
}
