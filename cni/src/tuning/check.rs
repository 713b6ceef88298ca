//! CHECK: whether everything that was tuned still is.

use crate::error::Error;
use crate::namespace;
use crate::netlink::Router;
use crate::protocol::Call;
use crate::tuning::apply::{link, previous};
use crate::tuning::config::{Config, Sysctl};

/// Checks.
///
/// # Errors
/// [`crate::Kind::Mismatch`] with what differs.
pub(super) fn check(config: &Config, call: &Call) -> Result<(), Error> {
    previous(call)?;
    let (home, pod) = namespace::of_call(call)?;
    pod.inside(&home, || {
        config.sysctls.iter().try_for_each(check_sysctl)?;
        check_link(config, call)
    })
}

fn check_sysctl(sysctl: &Sysctl) -> Result<(), Error> {
    let key = sysctl.key.escape_debug();
    let found = std::fs::read_to_string(&sysctl.file)
        .map_err(|error| Error::io(format!("the sysctl \"{key}\" cannot be read"), error))?;
    // The kernel separates numbers by tabs, people by spaces.
    if found.split_whitespace().eq(sysctl.value.split_whitespace()) {
        return Ok(());
    }
    let (found, wanted) = (found.trim_end().escape_debug(), sysctl.value.escape_debug());
    Err(Error::mismatch(format!("the sysctl \"{key}\" is \"{found}\", and was set to \"{wanted}\"")))
}

fn check_link(config: &Config, call: &Call) -> Result<(), Error> {
    let mut router = Router::open()?;
    let link = link(call, &mut router)?;
    let name = &link.name;
    let differs = |what: &str, now: String, wanted: String| {
        Err(Error::mismatch(format!("the {what} of {name} is {now}, and was set to {wanted}")))
    };
    if let Some(mac) = config.mac.filter(|mac| link.mac != Some(*mac)) {
        let now = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
        return differs("Ethernet address", now, mac.to_string());
    }
    if link.promiscuous != config.promiscuous {
        return differs("promiscuous mode", link.promiscuous.to_string(), config.promiscuous.to_string());
    }
    if let Some(mtu) = config.mtu.filter(|mtu| link.mtu != *mtu) {
        return differs("MTU", link.mtu.to_string(), mtu.to_string());
    }
    if let Some(on) = config.all_multicast.filter(|on| link.all_multicast != *on) {
        return differs("all-multicast mode", link.all_multicast.to_string(), on.to_string());
    }
    if let Some(length) = config.transmit_queue.filter(|length| link.transmit_queue != *length) {
        return differs("transmit queue", link.transmit_queue.to_string(), length.to_string());
    }
    Ok(())
}
