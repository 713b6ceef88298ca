//! CHECK: whether the rates still are limited as they were.

use crate::bandwidth::apply::{find, host_end, link_name, previous};
use crate::bandwidth::config::{Config, Limit, ticks};
use crate::error::Error;
use crate::netlink::{Link, Router};
use crate::protocol::Call;
use link::netlink::{Bucket, list_filters, redirects};

/// Checks.
///
/// # Errors
/// [`crate::Kind::Mismatch`] with what differs.
pub(super) fn check(config: &Config, call: &Call) -> Result<(), Error> {
    let outcome = previous(call)?;
    let mut host = Router::open()?;
    let port = host_end(call, &outcome, &mut host)?;
    if let Some(limit) = config.ingress {
        check_bucket(limit, &port, &mut host)?;
    }
    let Some(limit) = config.egress else { return Ok(()) };
    let name = link_name(call);
    let link = find(&mut host, &name)?.ok_or_else(|| Error::mismatch(format!("the link {name} is gone")))?;
    check_bucket(limit, &link, &mut host)?;
    if redirects(&host.ask(list_filters(port.index))?, port.index, link.index) {
        return Ok(());
    }
    Err(Error::mismatch(format!("frames that arrive at {} are not redirected to {name} any more", port.name)))
}

fn check_bucket(limit: Limit, link: &Link, host: &mut Router) -> Result<(), Error> {
    let (name, wanted) = (&link.name, limit.bucket(ticks()));
    match Bucket::find(&host.ask(Bucket::list())?, link.index) {
        Some(found) if found == wanted => Ok(()),
        None => Err(Error::mismatch(format!("the rate of {name} is no longer limited"))),
        Some(found) => Err(Error::mismatch(format!(
            "{name} sends {} bytes in a second with {} waiting, and was limited to {} with {}",
            found.rate, found.limit, wanted.rate, wanted.limit
        ))),
    }
}
