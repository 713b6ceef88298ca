//! The plugin `loopback`: sets a container's `lo` up, regardless of CNI_IFNAME. The kernel assigns its addresses.

use crate::bridge::present;
use crate::error::{Error, Kind};
use crate::namespace;
use crate::netlink::{Flag, Link, Router};
use crate::protocol::{Call, Interface, IpConfig, Outcome, Plugin};
use link::Namespace;

const NAME: &str = "lo";
/// The file exists if the kernel has IPv6, and `lo` gets its address unless it holds 1.
const IPV6_OFF: &str = "/proc/sys/net/ipv6/conf/lo/disable_ipv6";

/// The plugin.
pub(crate) struct Loopback;

impl Plugin for Loopback {
    fn name(&self) -> &'static str {
        "loopback"
    }

    fn add(&self, call: &Call) -> Result<Outcome, Error> {
        let previous = Outcome::previous(&call.config, call.version)?;
        if let Some(previous) = &previous {
            previous.render(call.version)?;
        }
        let (home, pod) = namespace::of_call(call)?;
        let six = pod.inside(&home, || {
            let mut router = Router::open()?;
            let lo = find(&mut router)?;
            router.ask(Link::switch(lo.index, Flag::Up, true, "set lo up"))?;
            Ok::<_, Error>(std::fs::read_to_string(IPV6_OFF).is_ok_and(|text| text.trim() == "0"))
        })?;
        // The previous result is passed on; without one, ours is the result.
        previous.map_or_else(|| outcome(&pod, six), Ok)
    }

    fn delete(&self, call: &Call) -> Result<(), Error> {
        let Some((home, pod)) = namespace::of_deletion(call)? else { return Ok(()) };
        let mut router = Router::open_in(&pod, &home)?;
        let lo = find(&mut router)?;
        router.ask(Link::switch(lo.index, Flag::Up, false, "set lo down"))?;
        Ok(())
    }

    fn check(&self, call: &Call) -> Result<(), Error> {
        let (home, pod) = namespace::of_call(call)?;
        let mut router = Router::open_in(&pod, &home)?;
        if find(&mut router)?.up {
            return Ok(());
        }
        Err(Error::mismatch(format!("lo in {} is down", pod.path().display())))
    }

    fn collect(&self, call: &Call) -> Result<(), Error> {
        call.valid_attachments().map(drop)
    }

    fn status(&self, _: &Call) -> Result<(), Error> {
        Ok(())
    }
}

fn find(router: &mut Router) -> Result<Link, Error> {
    let answer = router.exchange(vec![Link::get(NAME)])?.into_iter().next();
    let link = answer.map(present).transpose()?.flatten();
    link.ok_or_else(|| Error::new(Kind::UnknownContainer, "the namespace has no lo"))
}

fn outcome(pod: &Namespace, six: bool) -> Result<Outcome, Error> {
    let interface = Interface {
        name: NAME.to_owned(),
        mac: "00:00:00:00:00:00".to_owned(),
        sandbox: pod.path().display().to_string(),
        ..Interface::default()
    };
    let mut ips = Vec::new();
    for text in ["127.0.0.1/8", "::1/128"].into_iter().take(if six { 2 } else { 1 }) {
        let odd = |_| Error::new(Kind::Internal, "lo has an invalid address");
        ips.push(IpConfig { interface: Some(0), address: text.parse().map_err(odd)?, gateway: None });
    }
    Ok(Outcome { interfaces: vec![interface], ips, ..Outcome::default() })
}
