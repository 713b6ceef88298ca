//! The plugin `bridge`: a veth pair between a pod and a bridge of the host.
//!
//! `config` parses the request, `plan` decides the steps from the state of the host, `apply` carries them out, and `undo`
//! takes them back in reverse if any step fails. With IPAM, `addressing` decides about the addresses, and `container_ns` and
//! `gateway` set them on their side. An attachment is recognised from the host's side by the alias of its link, so that DEL,
//! CHECK and GC depend neither on the pod's namespace nor on the present name of the pod's end.

mod addressing;
mod apply;
mod check;
mod config;
mod container_ns;
mod del;
mod gateway;
mod gc;
pub(crate) mod identity;
mod lock;
mod plan;
mod status;
mod undo;

pub(crate) use undo::present;

use crate::error::Error;
use crate::protocol::{Call, Outcome, Plugin};
use config::Config;

/// The plugin.
pub(crate) struct Bridge;

impl Plugin for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn add(&self, call: &Call) -> Result<Outcome, Error> {
        apply::add(&Config::parse(call)?, call)
    }

    fn delete(&self, call: &Call) -> Result<(), Error> {
        del::delete(call)
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        check::check(&Config::parse(call)?, call)
    }

    fn collect(&self, call: &Call) -> Result<(), Error> {
        gc::collect(call)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        status::status(&Config::parse(call)?, call)
    }
}
