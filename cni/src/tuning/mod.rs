//! The plugin `tuning`: changes sysctls and attributes of an interface that an earlier plugin of the chain made.
//!
//! The previous attributes are kept in the reference's file, so that each program can restore the other's changes; sysctls
//! of a namespace vanish with it and are not restored. GC leaves those files alone: their network is unknown.

mod allow_list;
mod apply;
mod backup;
mod check;
mod config;

use crate::error::{Error, Kind};
use crate::protocol::{Call, Outcome, Plugin};
use config::Config;

/// The plugin.
pub(crate) struct Tuning;

impl Plugin for Tuning {
    fn name(&self) -> &'static str {
        "tuning"
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
        call.valid_attachments().map(drop)
    }

    fn status(&self, call: &Call) -> Result<(), Error> {
        let unavailable = |error| {
            let message = format!("an interface of network {} cannot be tuned", call.network);
            Error::with(Kind::Unavailable, message, error)
        };
        Config::parse(call).map(drop).map_err(unavailable)
    }
}
